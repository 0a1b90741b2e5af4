/* Products with 8-bit weights: rows are quantized to integers as well, so every sum is exact in any
 * order.
 *
 * Each output and each row has its own scale. A panel is 32 outputs (the last may have 16): their
 * scales in float32, then their codes [depth / 4][32][4]. A row of `depth` factors is quantized in
 * place: to 16-bit integers, or for matrix registers to all high bytes, then all low bytes.
 */
#include "int8.h"

#include "amx.h"

#define TOP (127 * LOW) /* largest integer of a quantized row */

#define STRETCH 1024 /* depths whose sums of products fit in 32 bits; a multiple of QUAD */

INTERNAL float to_integers(factor *x, int64_t depth) {
    floats most = all(0);
    for (int64_t i = 0; i < depth; i += LANES) {
        const floats v = load_factors(x + i);
        most = maximum(most, maximum(v, sub(all(0), v)));
    }
    const int halves = in_halves(depth);
    const float limit = TOP, top = maximum_of(most);
    if (!(top > 0)) {
        memset(x, 0, depth * sizeof(int16_t));
        return 0;
    }
    const floats by = all(limit / top);
    char low[halves ? depth : 1], *to = (char *)x;
    for (int64_t i = 0; i < depth; i += LANES) {
        const floats whole = rounded(mul(load_factors(x + i), by));
        if (halves) {
            const floats high = rounded(mul(whole, all(1.0f / LOW)));
            store_bytes(to + i, high), store_bytes(low + i, sub(whole, mul(high, all(LOW))));
        } else store_words(to + 2 * i, whole);
    }
    if (halves) memcpy(to + depth, low, sizeof low);
    return top / limit;
}

/* R rows by P times 16 outputs. A load of codes is 8 outputs by 4 depths, so each sum is two
 * adjacent partial sums. */
INLINE void byte_tile(const Product *p, int64_t row, int64_t panel, const int R, const int P) {
    const float *scales = (const float *)((const char *)p->weight + panel * byte_panel(p->depth));
    const int8_t *codes = (const int8_t *)(scales + P * LANES);
    const int64_t stride = p->depth * (int64_t)sizeof(factor);
    const char *x = (const char *)p->x + row * stride;
    const int side = 2 * R * P > SUMS ? 1 : P;
    floats out[MOST_CODED][2];
    double total[MOST_CODED][PANEL]; /* whole numbers, exact */
#pragma GCC unroll 2
    for (int from = 0; from < P; from += side)
        for (int64_t start = 0, stop; start < p->depth; start = stop) {
            stop = at_most(start + STRETCH, p->depth);
            counts sum[MOST_CODED][4];
#pragma GCC unroll 6
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int i = 0; i < 2 * side; i++) sum[r][i] = none();
            for (int64_t k = start / QUAD; k < stop / QUAD; k++) {
                words weight[4];
#pragma GCC unroll 4
                for (int i = 0; i < 2 * side; i++) {
                    const int8_t *at = codes + (k * P + from) * QUAD * LANES + i * 2 * LANES;
                    weight[i] = load_bytes(at);
                }
#pragma GCC unroll 2
                /* For the other half too. */
                for (int i = 0; i < P && from == 0; i++)
                    prefetch(codes + (k * P + i) * QUAD * LANES + 2048);
#pragma GCC unroll 6
                for (int r = 0; r < R; r++) {
                    const words four =
                        four_words(x + r * stride + k * QUAD * (int64_t)sizeof(int16_t));
#pragma GCC unroll 4
                    for (int i = 0; i < 2 * side; i++)
                        sum[r][i] = word_dot(sum[r][i], weight[i], four);
                }
            }
#pragma GCC unroll 6
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int i = 0; i < side; i++) {
                    const floats scale =
                        mul(all(p->steps[row + r]), load(scales + (from + i) * LANES));
                    out[r][from + i] = mul(scale, pair_sums(sum[r][2 * i], sum[r][2 * i + 1],
                                                            total[r] + (from + i) * LANES,
                                                            start == 0, stop == p->depth));
                }
        }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) finish(p, row + r, panel * PANEL, out[r][0], out[r][P - 1], P);
}

#define TILE(R)                                                                                    \
    SUMS_STAY static void byte_tile_##R(const Product *p, int64_t row, int64_t panel,              \
                                        const char *later) {                                       \
        (void)later;                                                                               \
        if ((panel + 1) * PANEL > p->outputs) byte_tile(p, row, panel, R, 1);                      \
        else byte_tile(p, row, panel, R, 2);                                                       \
    }
FOR_ROWS(MOST_CODED, TILE)
#undef TILE

#define NAMED(R) byte_tile_##R,
static Tile *const byte_tiles[] = {FOR_ROWS(MOST_CODED, NAMED)};
#undef NAMED

INTERNAL const Coding byte_coding = {.turn = in_passes,
                                     .bytes = byte_bytes,
                                     .tile = byte_tiles,
                                     .most = MOST_CODED,
                                     .alone = MOST_CODED};
