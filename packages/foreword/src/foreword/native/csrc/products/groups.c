/* Products with weights in groups: codes of 4 or 8 bits, whole-number levels, a scale for each
 * group of an output's depths.
 *
 * weight = scale of the group * level of the code + offset of the group (model/quantized/coded.py).
 * Rows are quantized to 8 bits in the same groups, so the sum of a group is a whole number, exact
 * in any order; groups are then added up in float32, the first group first. So products have the
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

INTERNAL void to_groups(factor *x, int64_t depth, const Grouped *h) {
    const int64_t size = h->group, groups = depth / size, width = width_of(h);
    float step[groups], moment[groups];
    int32_t begin[groups];
    const int lift = lift_of(h);
    char *code = (char *)x;
    for (int64_t g = 0; g < groups; g++) {
        floats most = all(0);
        for (int64_t i = 0; i < size; i += LANES) {
            const floats v = load_factors(x + g * size + i);
            most = maximum(most, maximum(v, sub(all(0), v)));
        }
        const float top = maximum_of(most);
        const floats by = all(top > 0 ? 127 / top : 0);
        floats sum = all(0);
        /* Codes take less room than what they replace, and trail it. */
        for (int64_t i = 0; i < size; i += LANES) {
            const floats whole = rounded(mul(load_factors(x + g * size + i), by));
            char *to = code + width * (g * size + i);
            sum = add(sum, whole);
            if (width == 1) store_bytes(to, whole);
            else store_in_turns(to, whole);
        }
        const float whole_sum = sum_of(sum);
        begin[g] = -lift * (int32_t)whole_sum;
        step[g] = top / 127, moment[g] = step[g] * whole_sum;
    }
    char *fields = code + width * depth;
    memcpy(fields, step, sizeof step);
    memcpy(fields + sizeof step, begin, sizeof begin);
    memcpy(fields + sizeof step + sizeof begin, moment, sizeof moment);
}

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

/* The same by 8 depths. */
INLINE void add_shorts(counts *sum, codes first, codes second, const char *near, int64_t stride,
                       const int R) {
#ifdef SHORT_DOTS
#pragma GCC unroll 12
    EACH_ROW(sum[r] = short_dots(sum[r], first, at, second, at + QUAD))
#else
    (void)sum, (void)first, (void)second, (void)near, (void)stride, (void)R;
#endif
}

/* The number of row r behind that of the first row. */
#define OF_ROW(from, type) (*(const type *)((const char *)(from) + r * stride))

/* Sums of R rows and one strip, in vector registers. */
INLINE void strip_tile(const Product *p, const Grouped *h, int64_t row, const char *at, floats *out,
                       const int R, const int BITS, const int MANNER) {
    const int64_t groups = p->depth / h->group, stride = p->depth * (int64_t)sizeof(factor);
    const GroupedRow x = grouped_row(p->x + row * p->depth, p->depth, h);
    const int words = MANNER == BY_WORDS, four = QUAD * (words ? 2 : 1),
              fours = fours_of(BITS),       /* of an iteration */
        chains = words && R < BUSY ? 2 : 1; /* sums of one result */
    const Levels levels = levels_of(h, lift_of(h));
    const char *near = x.code;
    Spanned span = {at, 0};
    Fields f = {all(0), all(0)};
    floats total[MOST_GROUPED];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) total[r] = all(0);
    for (int64_t g = 0; g < groups; g++) {
        counts sum[2][MOST_GROUPED];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            sum[1][r] = begun(0), sum[0][r] = begun(words ? 0 : OF_ROW(x.begin + g, int32_t));
        next_fields(h, &at, &span, &f);
        for (int64_t k = 0; k < h->group; k += QUAD * fours) {
#pragma GCC unroll 5
            for (int i = 0; i < 8 * BITS * fours; i += 64) prefetch(at + 2048 + i);
#pragma GCC unroll 4
            for (int pair = 0; pair < fours; pair += 2) {
                const codes first = four_levels(&levels, at, pair, BITS);
                if (MANNER != BY_SHORTS)
                    add_four(sum[0], sum[chains - 1], first, near, stride, R, MANNER);
                const codes second = four_levels(&levels, at, pair + 1, BITS);
                if (MANNER == BY_SHORTS) add_shorts(sum[0], first, second, near, stride, R);
                else add_four(sum[0], sum[chains - 1], second, near + four, stride, R, MANNER);
                near += 2 * four;
            }
            at += 8 * BITS * fours;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            total[r] =
                fused_exactly(whole_floats(chains == 2 ? plus(sum[0][r], sum[1][r]) : sum[0][r]),
                              mul(f.scale, all(OF_ROW(x.step + g, float))), total[r]);
        if (!h->offset) continue;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            total[r] = fused_exactly(f.offset, all(OF_ROW(x.moment + g, float)), total[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) out[r] = total[r];
}

#ifdef BYTE_DOTS
#define IN_MANNER(R, BITS) strip_tile(p, h, row, at, out, R, BITS, BY_BYTES)
#elif defined SHORT_DOTS
#define IN_MANNER(R, BITS)                                                                         \
    if (manner_of(h) == BY_SHORTS) strip_tile(p, h, row, at, out, R, BITS, BY_SHORTS);             \
    else strip_tile(p, h, row, at, out, R, BITS, BY_WORDS)
#else
#define IN_MANNER(R, BITS) strip_tile(p, h, row, at, out, R, BITS, BY_WORDS)
#endif

typedef void Strip(const Product *p, const Grouped *h, int64_t row, const char *at, floats *out);

/* Some rows times the strips of a panel. Not inlined: one copy serves every number of rows. */
__attribute__((noinline)) static void group_tile(const Product *p, int64_t row, int64_t panel,
                                                 int rows, Strip *strip) {
    const Grouped *h = p->grouped;
    const char *at = (const char *)p->weight + place_of(p, panel) * 2 * h->strip;
    const int strips = (panel + 1) * PANEL <= p->outputs ? 2 : 1;
    floats out[2][MOST_GROUPED];
    for (int i = 0; i < strips; i++) strip(p, h, row, at + i * h->strip, out[i]);
    for (int r = 0; r < rows; r++)
        finish(p, row + r, panel * PANEL, out[0][r], out[strips - 1][r], strips);
}

#define TILE(R)                                                                                    \
    SUMS_STAY static void strip_##R(const Product *p, const Grouped *h, int64_t row,               \
                                    const char *at, floats *out) {                                 \
        if (h->bits == 4) {                                                                        \
            IN_MANNER(R, 4);                                                                       \
        } else if (h->bits == 5) {                                                                 \
            IN_MANNER(R, 5);                                                                       \
        } else if (h->bits == 6) {                                                                 \
            IN_MANNER(R, 6);                                                                       \
        } else {                                                                                   \
            IN_MANNER(R, 8);                                                                       \
        }                                                                                          \
    }                                                                                              \
    static void group_tile_##R(const Product *p, int64_t row, int64_t panel, const char *later) {  \
        (void)later;                                                                               \
        group_tile(p, row, panel, R, strip_##R);                                                   \
    }
FOR_ROWS(MOST_GROUPED, TILE)
#undef TILE

#define NAMED(R) group_tile_##R,
static Tile *const group_tiles[] = {FOR_ROWS(MOST_GROUPED, NAMED)};
#undef NAMED

INTERNAL const Coding group_coding = {.turn = in_passes,
                                      .bytes = group_bytes,
                                      .tile = group_tiles,
                                      .most = MOST_GROUPED,
                                      .alone = MOST_GROUPED};
