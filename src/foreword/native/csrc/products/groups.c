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
 * outputs by 4 depths, the levels themselves.
 */
#include "groups.h"

INTERNAL void to_groups(factor *x, int64_t depth, int64_t size) {
    const int64_t groups = depth / size;
    float step[groups], moment[groups];
    int32_t sums[groups];
    int8_t *code = (int8_t *)x;
    for (int64_t g = 0; g < groups; g++) {
        floats most = all(0);
        for (int64_t i = 0; i < size; i += LANES) {
            const floats v = load_factors(x + g * size + i);
            most = maximum(most, maximum(v, sub(all(0), v)));
        }
        const float top = maximum_of(most);
        const floats by = all(top > 0 ? 127 / top : 0);
        int32_t sum = 0;
        /* Codes take less room than what they replace, and trail it. */
        for (int64_t i = 0; i < size; i += LANES) {
            int8_t *to = code + g * size + i;
            store_bytes(to, rounded(mul(load_factors(x + g * size + i), by)));
            for (int k = 0; k < LANES; k++) sum += to[k];
        }
        step[g] = top / 127, sums[g] = sum, moment[g] = step[g] * (float)sum;
    }
    memcpy(code + depth, step, sizeof step);
    memcpy(code + depth + sizeof step, sums, sizeof sums);
    memcpy(code + depth + sizeof step + sizeof sums, moment, sizeof moment);
}

/* Add the products of 16 outputs by 4 depths and R rows, whose codes are `stride` bytes apart. */
INLINE void add_products(counts *sum, codes levels, const char *near, int64_t stride, const int R) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        if (r && r % 3 == 0) near += 3 * stride;
        if (r % 3 == 0) AS_IT_IS(near);
        sum[r] = byte_dot(sum[r], levels, near + r % 3 * stride);
    }
}

/* Sums of R rows and one strip, in vector registers. */
INLINE void strip_tile(const Product *p, const Grouped *h, int64_t row, const char *at, floats *out,
                       const int R, const int NIBBLES) {
    const int64_t groups = p->depth / h->group, loads = h->group * LANES / 64 / (NIBBLES ? 2 : 1),
                  stride = p->depth * (int64_t)sizeof(factor);
    const GroupedRow x = grouped_row(p->x + row * p->depth, p->depth, groups);
    const codes levels = table_of(h->level);
    floats total[MOST_GROUPED];
    const char *span = at;
    Fields f = {all(0), all(0)};
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) total[r] = all(0);
    for (int64_t g = 0; g < groups; g++) {
        counts sum[MOST_GROUPED];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            sum[r] = begun(*(const int32_t *)((const char *)(x.sum + g) + r * stride));
        next_fields(h, g, &at, &span, &f);
        const char *quad = (const char *)x.code + g * h->group;
        for (int64_t i = 0; i < loads; i++, at += 64) {
            const codes stored = load_codes(at),
                        low = NIBBLES ? low_levels(levels, stored) : as_levels(stored);
            prefetch(at + 2048);
            add_products(sum, low, quad, stride, R);
            quad += QUAD;
            if (!NIBBLES) continue;
            const codes high = high_levels(levels, stored);
            add_products(sum, high, quad, stride, R);
            quad += QUAD;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const float step = *(const float *)((const char *)(x.step + g) + r * stride);
            total[r] = fused_exactly(whole_floats(sum[r]), mul(f.scale, all(step)), total[r]);
        }
        if (!h->offset) continue;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            total[r] = fused_exactly(
                f.offset, all(*(const float *)((const char *)(x.moment + g) + r * stride)),
                total[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) out[r] = total[r];
}

typedef void Strip(const Product *p, const Grouped *h, int64_t row, const char *at, floats *out);

/* Some rows times the strips of a panel. Not inlined: one copy serves every number of rows. */
__attribute__((noinline)) static void group_tile(const Product *p, int64_t row, int64_t panel,
                                                 int rows, Strip *strip) {
    const Grouped *h = p->grouped;
    const char *at = (const char *)p->weight + panel * 2 * h->strip;
    const int strips = (panel + 1) * PANEL <= p->outputs ? 2 : 1;
    floats out[2][MOST_GROUPED];
    for (int i = 0; i < strips; i++) strip(p, h, row, at + i * h->strip, out[i]);
    for (int r = 0; r < rows; r++)
        finish(p, row + r, panel * PANEL, out[0][r], out[strips - 1][r], strips);
}

#define TILE(R)                                                                                    \
    SUMS_STAY static void strip_##R(const Product *p, const Grouped *h, int64_t row,               \
                                    const char *at, floats *out) {                                 \
        if (h->bits == 4) strip_tile(p, h, row, at, out, R, 1);                                    \
        else strip_tile(p, h, row, at, out, R, 0);                                                 \
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
