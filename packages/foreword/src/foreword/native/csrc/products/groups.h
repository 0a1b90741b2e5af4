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

/* What is added to levels, so that consecutive ones are their codes, and others not negative where
 * that is needed. */
static inline int lift_of(const Grouped *h) {
    if (h->counted) return (int)-h->least;
#ifdef BYTE_DOTS
    return LIFT;
#else
    return manner_of(h) == BY_SHORTS ? (int)-h->least : 0;
#endif
}

/* Bytes of a code of a row. */
static inline int64_t width_of(const Grouped *h) { return manner_of(h) == BY_WORDS ? 2 : 1; }

#define MOST_SPAN 16 /* groups of 16 depths whose sum in whole numbers fits in 32 bits */
#define FINEST 3     /* bits by which the steps of a span may differ: sums of codes stay words */

/* Whether the groups of a span are added up in whole numbers: their scales are bytes times one
 * number, and the steps of a row's codes in a span are one step times powers of two. */
static inline int in_whole_numbers(const Grouped *h) {
    return h->scale == FACTOR_FIELD && (!h->offset || h->offset == FACTOR_FIELD) && h->counted
           && h->span % 4 == 0 && h->span * h->group <= MOST_SPAN * LANES;
}

/* Depths of a row that have one step, or one and its powers of two. */
static inline int64_t stepped(const Grouped *h) {
    return in_whole_numbers(h) ? h->span * h->group : h->group;
}

/* A quantized row: codes [depth]; steps; by groups, what the sum of products begins with (the lift
 * of levels taken off), and the product of step and sum of the codes. Where groups are added up in
 * whole numbers, a step is the finest of a span; then by spans, whether groups have others; by
 * groups, [what the sum begins with, the bits by which codes are moved up from that step], and the
 * sums of codes moved so. Codes of two bytes are in the order 0 2 1 3 of each four. */
typedef struct {
    const char *code;
    const float *step;
    const int32_t *uneven, *begin;
    const float *moment;
    const int16_t *sum;
} GroupedRow;

static inline GroupedRow grouped_row(const factor *x, int64_t depth, const Grouped *h) {
    const int64_t groups = depth / h->group;
    const char *code = (const char *)x;
    const float *step = (const float *)(code + width_of(h) * depth);
    const int32_t *uneven = (const int32_t *)(step + depth / stepped(h));
    const int32_t *begin = uneven + (in_whole_numbers(h) ? depth / stepped(h) : 0);
    const void *moment = begin + groups, *sum = begin + 2 * groups;
    return (GroupedRow){code, step, uneven, begin, moment, sum};
}

/* The number of row r behind that of the first row. */
#define OF_ROW(from, type) (*(const type *)((const char *)(from) + r * stride))

/* Quantize a row in place for a matrix. */
INTERNAL void to_groups(factor *x, int64_t depth, const Grouped *h);

/* Forms of stored levels: 4 bits that are places in a table, 4, 5 or 6 bits that are consecutive,
 * and 8 bits. */
enum { TABLE, FOURS, FIVES, SIXES, EIGHTS };

static inline int form_of(const Grouped *h) {
    if (h->bits == 4) return h->counted ? FOURS : TABLE;
    return h->bits == 5 ? FIVES : h->bits == 6 ? SIXES : EIGHTS;
}

/* Fours of depths that are read at a time, and the bytes of 16 outputs by so many. Codes of 5 and 6
 * bits are stored together so. */
static inline int fours_of(int form) { return form == FIVES ? 8 : form == SIXES ? 4 : 2; }
static inline int bytes_of(int form) {
    return form == EIGHTS ? 128 : form == FIVES ? 320 : form == SIXES ? 192 : 64;
}

/* What turns codes into levels. */
typedef struct {
    codes table; /* of 4 bits: the level of each, `lift` added */
    int lift;    /* of 8: added to levels */
} Levels;

INLINE Levels levels_of(const Grouped *h, int lift) {
    return (Levels){lifted(table_of(h->level), lift), lift};
}

/* Levels of 16 outputs by 4 depths: number `four` of those stored together at `at`. */
INLINE codes four_levels(const Levels *levels, const char *at, const int four, const int FORM) {
    if (FORM == EIGHTS) return lifted(load_codes(at + 64 * four), levels->lift);
    const codes stored = load_codes(at + 64 * (four / 2));
    if (FORM == TABLE)
        return four % 2 ? high_levels(levels->table, stored) : low_levels(levels->table, stored);
    const codes low = masked(stored, four % 2 ? 4 : 0, 15);
    if (FORM == FOURS) return low;
    const codes more = load_codes(at + (FORM == FIVES ? 256 : 128));
    /* From their place in a byte to the bits above the low four. */
    const int above = FORM == FIVES ? four - 4 : 2 * four - 4, mask = FORM == FIVES ? 0x10 : 0x30;
    return either(low, masked(more, above, mask));
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

/* What the groups of a span are multiplied by, and the words of two groups beside each other:
 * factors of scales, and of offsets. */
typedef struct {
    const float *top;     /* what factors multiply: of scales, then of offsets */
    const int8_t *before; /* factors of the group before */
    words factors[MOST_SPAN / 2], shifts[MOST_SPAN / 2];
} SpanFactors;

/* Sums over the groups of a span of words of two groups times the sums of the codes of R rows. */
INLINE void add_moments(counts *total, const words *numbers, const int16_t *sums, int64_t groups,
                        int64_t stride, const int R) {
    for (int64_t i = 0; i < groups; i += 2) {
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            total[r] = word_dot(total[r], numbers[i / 2], two_words(&OF_ROW(sums + i, int16_t)));
    }
}

#endif
