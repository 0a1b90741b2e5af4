/* Products with weights in groups: codes of 4 to 8 bits, whole-number levels, a scale for each
 * group of an output's depths.
 *
 * weight = scale of the group * level of the code + offset of the group (model/quantized/coded.py).
 * Rows are quantized to 8 bits in the same groups, so the sum of a group is a whole number, exact
 * in any order; groups are then added up in float32, the first group first. Where scales are bytes
 * times the number of a span, the steps of a row's groups in a span are one step times powers of
 * two, so the span is a whole number too, and spans are added up in float32. So products have the
 * same bits for any number of rows and on any processor.
 *
 * A matrix is a header, then strips of 16 outputs. A strip holds for every group its scales, its
 * offsets and its codes, and before each span of groups the numbers that the factors of two-level
 * scales multiply. 64 bytes of 4-bit codes are 16 outputs by 8 depths: byte 4 o + i belongs to
 * output o, its low nibble to depth i and its high one to depth 4 + i. Of 8 bits they are 16
 * outputs by 4 depths, the levels themselves. Codes of 5 or 6 bits are in blocks of 32 or 16
 * depths: their low four bits as codes of 4, then 64 bytes of the higher ones, of the first four
 * depths lowest. They count levels from the least one on.
 */
#include "groups.h"

#define AHEAD 4096 /* bytes of prefetch distance; 2048 and 6144 were slower on a Zen 4 */

/* What a tile needs of a product. */
typedef struct {
    const Grouped *h;
    GroupedRow x; /* the first row */
    int64_t groups, stride;
    Levels levels;
} Tiled;

/* Add the products of 16 outputs by 4 depths and R rows. */
INLINE void add_four(counts *sum, counts *odd_sum, codes levels, const char *near, int64_t stride,
                     const int R, const int MANNER) {
    if (MANNER == BY_WORDS) {
        add_words(sum, odd_sum, levels, near, stride, R);
        return;
    }
    (void)odd_sum;
#ifdef BYTE_DOTS
#pragma GCC unroll 12
    EACH_ROW(sum[r] = byte_dot(sum[r], levels, at))
#endif
}

/* The same by 8 depths, sums of 16 bits multiplied by `by`. */
INLINE void add_eight(counts *sum, codes first, codes second, words by, const char *near,
                      int64_t stride, const int R) {
#ifdef SHORT_DOTS
#pragma GCC unroll 12
    EACH_ROW(const words both = plus_words(byte_pairs(first, at), byte_pairs(second, at + QUAD));
             sum[r] = word_dot(sum[r], both, by))
#else
    (void)sum, (void)first, (void)second, (void)by, (void)near, (void)stride, (void)R;
#endif
}

/* Add one group of R rows to sums; return where its codes end. `by`: what sums of 16 bits are
 * multiplied by. */
INLINE const char *add_group(counts *sum, const Tiled *t, const char *at, const char *near,
                             words by, const int R, const int FORM, const int MANNER) {
    const int four = QUAD * (MANNER == BY_WORDS ? 2 : 1), fours = fours_of(FORM),
              chains = MANNER == BY_WORDS && R < BUSY ? 2 : 1; /* sums of one result */
    const int64_t stride = t->stride;
    counts other[MOST_GROUPED], *odd_sum = chains == 2 ? other : sum;
#pragma GCC unroll 12
    for (int r = 0; r < R && chains == 2; r++) other[r] = begun(0);
    for (int64_t k = 0; k < t->h->group; k += QUAD * fours, at += bytes_of(FORM)) {
#pragma GCC unroll 5
        for (int i = 0; i < bytes_of(FORM); i += 64) prefetch(at + AHEAD + i);
#pragma GCC unroll 4
        for (int i = 0; i < fours; i += 2, near += 2 * four) {
            const codes first = four_levels(&t->levels, at, i, FORM);
            if (MANNER != BY_SHORTS) add_four(sum, odd_sum, first, near, stride, R, MANNER);
            const codes second = four_levels(&t->levels, at, i + 1, FORM);
            if (MANNER == BY_SHORTS) add_eight(sum, first, second, by, near, stride, R);
            else add_four(sum, odd_sum, second, near + four, stride, R, MANNER);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R && chains == 2; r++) sum[r] = plus(sum[r], other[r]);
    return at;
}

/* Sums of R rows and one strip, groups added up in float32. */
INLINE void in_floats(const Tiled *t, const char *at, floats *out, const int R, const int FORM,
                      const int MANNER) {
    const GroupedRow *x = &t->x;
    const int64_t stride = t->stride, bytes = t->h->group * (MANNER == BY_WORDS ? 2 : 1);
    Spanned span = {at, 0};
    Fields f = {all(0), all(0)};
    floats total[MOST_GROUPED];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) total[r] = all(0);
    for (int64_t g = 0; g < t->groups; g++) {
        counts sum[MOST_GROUPED];
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) sum[r] = begun(OF_ROW(x->begin + g, int32_t));
        prefetch(at + AHEAD);
        next_fields(t->h, &at, &span, &f);
        at = add_group(sum, t, at, x->code + g * bytes, unit_words(), R, FORM, MANNER);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const floats scale = mul(f.scale, all(OF_ROW(x->step + g, float)));
            total[r] = fused_exactly(whole_floats(sum[r]), scale, total[r]);
        }
        if (!t->h->offset) continue;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            total[r] = fused_exactly(f.offset, all(OF_ROW(x->moment + g, float)), total[r]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) out[r] = total[r];
}

/* Sums of R rows in the next span of a strip, in whole numbers; return where it ends. UNEVEN: in
 * some row, groups have steps of their own. */
INLINE const char *add_span(counts *total, SpanFactors *f, const Tiled *t, const char *at,
                            int64_t g, const int R, const int FORM, const int MANNER,
                            const int UNEVEN) {
    const int64_t stride = t->stride, bytes = t->h->group * (MANNER == BY_WORDS ? 2 : 1),
                  offsets = t->h->offset ? LANES : 0;
    const int8_t *before = 0;
    prefetch(at + AHEAD), prefetch(at + AHEAD + 4 * offsets);
    f->top = (const float *)at, at += 4 * (LANES + offsets);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) total[r] = begun(0);
    for (int64_t i = 0; i < t->h->span; i++, g++) {
        const int8_t *factor = (const int8_t *)at;
        prefetch(at + AHEAD);
        const int32_t *begin = t->x.begin + 2 * g;
        at += LANES + offsets;
        if (i % 2 && offsets) f->shifts[i / 2] = paired(before + LANES, factor + LANES);
        if (i % 2 && MANNER == BY_SHORTS) f->factors[i / 2] = paired(before, factor);
        before = factor;
        const words twice = MANNER == BY_SHORTS ? paired(factor, factor) : unit_words();
        const counts by = signed_counts(factor);
        counts sum[MOST_GROUPED];
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            sum[r] = begun(MANNER == BY_SHORTS ? 0 : OF_ROW(begin, int32_t));
        at = add_group(sum, t, at, t->x.code + g * bytes, twice, R, FORM, MANNER);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            if (MANNER != BY_SHORTS) sum[r] = multiplied(sum[r], by);
            if (UNEVEN) sum[r] = shifted(sum[r], OF_ROW(begin + 1, int32_t));
            total[r] = plus(total[r], sum[r]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R && !UNEVEN; r++) total[r] = shifted(total[r], FINEST);
    return at;
}

/* The same as in_floats, spans added up in float32 and their groups in whole numbers. */
INLINE void in_spans(const Tiled *t, const char *at, floats *out, const int R, const int FORM,
                     const int MANNER) {
    const int64_t stride = t->stride, groups = t->h->span;
    const int lift = MANNER == BY_SHORTS ? lift_of(t->h) : 0; /* else sums begin with it */
    SpanFactors f;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) out[r] = all(0);
    for (int64_t g = 0; g < t->groups; g += groups) {
        const float *step = t->x.step + g / groups;
        counts total[MOST_GROUPED], moment[MOST_GROUPED];
        floats partial[MOST_GROUPED];
        int32_t uneven = 0;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) uneven |= OF_ROW(t->x.uneven + g / groups, int32_t);
        at = uneven ? add_span(total, &f, t, at, g, R, FORM, MANNER, 1)
                    : add_span(total, &f, t, at, g, R, FORM, MANNER, 0);
        AS_IT_IS(out); /* in memory: registers hold the sums that are added to more often */
        if (lift) {
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) moment[r] = begun(0);
            add_moments(moment, f.factors, t->x.sum + g, groups, stride, R);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
                total[r] = plus(total[r], multiplied(moment[r], begun(-lift)));
        }
        const floats top = load(f.top);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) partial[r] = mul(whole_floats(total[r]), top);
        if (t->h->offset) {
            const floats low = load(f.top + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) moment[r] = begun(0);
            add_moments(moment, f.shifts, t->x.sum + g, groups, stride, R);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
                partial[r] = fused_exactly(whole_floats(moment[r]), low, partial[r]);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            out[r] = fused_exactly(partial[r], all(OF_ROW(step, float)), out[r]);
    }
}

/* Sums of some rows and one strip. */
typedef void Strip(const Tiled *t, const char *at, floats *out);

#if defined BYTE_DOTS
#define IN_MANNER(make, R, FORM) make(t, at, out, R, FORM, BY_BYTES)
#elif defined SHORT_DOTS
#define IN_MANNER(make, R, FORM)                                                                   \
    if (manner_of(t->h) == BY_SHORTS) make(t, at, out, R, FORM, BY_SHORTS);                        \
    else make(t, at, out, R, FORM, BY_WORDS)
#else
#define IN_MANNER(make, R, FORM) make(t, at, out, R, FORM, BY_WORDS)
#endif

#define STRIP(R, FORM, make)                                                                       \
    SUMS_STAY static void make##_##FORM##_##R(const Tiled *t, const char *at, floats *out) {       \
        IN_MANNER(make, R, FORM);                                                                  \
    }
#define STRIPS(R)                                                                                  \
    STRIP(R, TABLE, in_floats)                                                                     \
    STRIP(R, FOURS, in_floats)                                                                     \
    STRIP(R, FIVES, in_floats)                                                                     \
    STRIP(R, SIXES, in_floats)                                                                     \
    STRIP(R, EIGHTS, in_floats)                                                                    \
    STRIP(R, FOURS, in_spans)                                                                      \
    STRIP(R, FIVES, in_spans)                                                                      \
    STRIP(R, SIXES, in_spans)
FOR_ROWS(MOST_GROUPED, STRIPS)

#define NAMED(R)                                                                                   \
    {in_floats_TABLE_##R, in_floats_FOURS_##R,  in_floats_FIVES_##R, in_floats_SIXES_##R,          \
     in_floats_EIGHTS_##R, in_spans_FOURS_##R,  in_spans_FIVES_##R,  in_spans_SIXES_##R},
/* [rows - 1][form; behind all forms, the forms of matrices with spans] */
static Strip *const strips[][EIGHTS + SIXES + 1] = {FOR_ROWS(MOST_GROUPED, NAMED)};
#undef NAMED

/* A panel times all rows, in passes of equal size. */
static void in_strips(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel,
                      const char *next) {
    const Grouped *h = p->grouped;
    const char *at = panel_at(p, panel);
    const int count = (panel + 1) * PANEL <= p->outputs ? 2 : 1;
    const int64_t most = parts_of(last - row, parts_of(last - row, MOST_GROUPED));
    const int kind = form_of(h) + (in_whole_numbers(h) ? EIGHTS : 0);
    Tiled t = {.h = h,
               .groups = p->depth / h->group,
               .stride = p->depth * (int64_t)sizeof(factor),
               .levels = levels_of(h, lift_of(h))};
    (void)m, (void)next;
    for (int64_t rows; row < last; row += rows) {
        floats out[2][MOST_GROUPED];
        rows = at_most(most, last - row);
        t.x = grouped_row(p->x + row * p->depth, p->depth, h);
        for (int i = 0; i < count; i++) strips[rows - 1][kind](&t, at + i * h->strip, out[i]);
        for (int64_t r = 0; r < rows; r++)
            finish(p, row + r, panel * PANEL, out[0][r], out[count - 1][r], count);
    }
}

INTERNAL const Coding group_coding = {.turn = in_strips, .bytes = group_bytes};

