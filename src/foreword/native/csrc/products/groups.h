/* Rows that are quantized in groups, and the fields of groups of weights (groups.c, groups_amx.c).
 */
#ifndef FOREWORD_GROUPS_H
#define FOREWORD_GROUPS_H

#include "product.h"

/* A quantized row: codes [depth], then by group the scale of the codes, their sum, and the product
 * of both. */
typedef struct {
    const int8_t *code;
    const float *step;
    const int32_t *sum;
    const float *moment;
} GroupedRow;

static inline GroupedRow grouped_row(const factor *x, int64_t depth, int64_t groups) {
    const int8_t *code = (const int8_t *)x;
    const float *step = (const float *)(code + depth);
    return (GroupedRow){code, step, (const int32_t *)(step + groups), step + 2 * groups};
}

/* Quantize a row in place. */
INTERNAL void to_groups(factor *x, int64_t depth, int64_t size);

/* Scales and offsets of a group of 16 outputs. */
typedef struct {
    floats scale, offset;
} Fields;

/* Read the next scales or offsets. `by`: what bytes are multiplied by. */
INLINE floats field(int64_t kind, const char **at, floats by) {
    const char *from = *at;
    if (kind == BF16_FIELD) return *at += 32, widen(load_halves((const bf16 *)from));
    if (kind == F16_FIELD) return *at += 32, load_f16(from);
    if (kind == F32_FIELD) return *at += 64, load((const float *)from);
    return *at += 16, mul(load_signed((const int8_t *)from), by);
}

/* Read the numbers of group g; `span` keeps where its span began. */
INLINE void next_fields(const Grouped *h, int64_t g, const char **at, const char **span,
                        Fields *f) {
    const int scales = h->scale == FACTOR_FIELD, offsets = h->offset == FACTOR_FIELD;
    if (h->span && g % h->span == 0) *span = *at, *at += 64 * (scales + offsets);
    f->scale = field(h->scale, at, scales ? load((const float *)*span) : all(0));
    if (h->offset)
        f->offset = field(h->offset, at,
                          h->offset == ZERO_FIELD ? f->scale
                          : offsets               ? load((const float *)*span + LANES * scales)
                                                  : all(0));
}

#endif
