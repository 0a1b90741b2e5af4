/* Rows that are quantized in groups, and the fields of groups of weights (groups.c, groups_amx.c).
 */
#ifndef FOREWORD_GROUPS_H
#define FOREWORD_GROUPS_H

#include "int8.h"

/* How the codes of a group are multiplied by the codes of a row: as bytes, if the processor adds up
 * four products of bytes; else in sums of 16 bits, if these cannot overflow; else as words. */
enum { BY_BYTES, BY_SHORTS, BY_WORDS };

static inline int manner_of(const Grouped *h) {
#if defined BYTE_DOTS
    return (void)h, BY_BYTES;
#elif defined SHORT_DOTS
    return h->most - h->least <= MOST_SHORT ? BY_SHORTS : BY_WORDS;
#else
    return (void)h, BY_WORDS;
#endif
}

/* What is added to the levels, so that none is negative where that is needed. */
static inline int lift_of(const Grouped *h) {
#ifdef BYTE_DOTS
    return (void)h, LIFT;
#else
    return manner_of(h) == BY_SHORTS ? (int)-h->least : 0;
#endif
}

/* Bytes of a code of a row. */
static inline int64_t width_of(const Grouped *h) { return manner_of(h) == BY_WORDS ? 2 : 1; }

/* A quantized row: codes [depth], then by group the scale of the codes, what their sum of products
 * begins with (the lift of levels taken off), and the product of scale and sum. Codes of two bytes
 * are in the order 0 2 1 3 of each four. */
typedef struct {
    const char *code;
    const float *step;
    const int32_t *begin;
    const float *moment;
} GroupedRow;

static inline GroupedRow grouped_row(const factor *x, int64_t depth, const Grouped *h) {
    const int64_t groups = depth / h->group;
    const char *code = (const char *)x;
    const float *step = (const float *)(code + width_of(h) * depth);
    return (GroupedRow){code, step, (const int32_t *)(step + groups), step + 2 * groups};
}

/* Quantize a row in place for a matrix. */
INTERNAL void to_groups(factor *x, int64_t depth, const Grouped *h);

/* Fours of depths whose codes are stored together. */
static inline int fours_of(int bits) { return bits == 5 ? 8 : bits == 6 ? 4 : 2; }

/* What turns codes into levels. */
typedef struct {
    codes table; /* of 4 bits: the level of each, `lift` added */
    int lift;    /* of 8: added to levels */
    int least;   /* of 5 and 6: the level of 0, `lift` added */
} Levels;

INLINE Levels levels_of(const Grouped *h, int lift) {
    return (Levels){lifted(table_of(h->level), lift), lift, (int)h->least + lift};
}

/* Levels of 16 outputs by 4 depths: number `four` of those stored together at `at`. */
INLINE codes four_levels(const Levels *levels, const char *at, const int four, const int BITS) {
    if (BITS == 8) return lifted(load_codes(at + 64 * four), levels->lift);
    const codes stored = load_codes(at + 64 * (four / 2));
    if (BITS == 4)
        return four % 2 ? high_levels(levels->table, stored) : low_levels(levels->table, stored);
    const codes more = load_codes(at + 32 * fours_of(BITS));
    /* From their place in a byte to the bits above the low four. */
    const int above = BITS == 5 ? four - 4 : 2 * four - 4, mask = BITS == 5 ? 0x10 : 0x30;
    const codes low = masked(stored, four % 2 ? 4 : 0, 15);
    return lifted(either(low, masked(more, above, mask)), levels->least);
}

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

/* Where a span of groups began, and how many groups of it are left. */
typedef struct {
    const char *start;
    int64_t left;
} Spanned;

/* Read the numbers of the next group. */
INLINE void next_fields(const Grouped *h, const char **at, Spanned *span, Fields *f) {
    const int scales = h->scale == FACTOR_FIELD, offsets = h->offset == FACTOR_FIELD;
    if (h->span && span->left-- == 0) {
        span->start = *at, span->left = h->span - 1;
        *at += 64 * (scales + offsets);
    }
    const float *factors = (const float *)span->start;
    f->scale = field(h->scale, at, scales ? load(factors) : all(0));
    if (h->offset)
        f->offset = field(h->offset, at,
                          h->offset == ZERO_FIELD ? f->scale
                          : offsets               ? load(factors + LANES * scales)
                                                  : all(0));
}

#endif
