/* Products with 8-bit weights: rows are quantized to integers as well, so every sum is exact in any
 * order.
 *
 * Each output and each row has its own scale. A panel is 32 outputs (the last may have 16): their
 * scales in float32, then their codes [depth / 4][32][4]. A row of `depth` factors is quantized in
 * place: to 16-bit integers, each four in the order 0 2 1 3, or for matrix registers to all high
 * bytes, then all low bytes.
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
        } else store_in_turns(to + 2 * i, whole);
    }
    if (halves) memcpy(to + depth, low, sizeof low);
    return top / limit;
}

/* R rows by P times 16 outputs. */
INLINE void byte_tile(const Product *p, int64_t row, int64_t panel, const int R, const int P) {
    const int64_t place = place_of(p, panel) * byte_panel(p->depth);
    const float *scales = (const float *)((const char *)p->weight + place);
    const char *codes_at = (const char *)(scales + P * LANES);
    const int64_t stride = p->depth * (int64_t)sizeof(factor), four = QUAD * sizeof(int16_t);
    const char *x = (const char *)p->x + row * stride;
    const int parts = p->depth > STRETCH, side = 2 * R * P > SUMS ? 1 : P,
              chains = R * side < BUSY ? 2 : 1; /* sums of one result */
    floats out[MOST_CODED][2];
#pragma GCC unroll 2
    for (int from = 0; from < P; from += side) {
        counts sum[2][2][MOST_CODED];
        double total[2][MOST_CODED][LANES]; /* whole numbers, exact */
        if (parts) memset(total, 0, sizeof total);
        for (int64_t start = 0, stop; start < p->depth; start = stop) {
            stop = at_most(start + STRETCH, p->depth);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int i = 0; i < side; i++) sum[i][0][r] = sum[i][chains - 1][r] = begun(0);
            for (int64_t k = start / QUAD; k < stop / QUAD; k++) {
                const char *at = codes_at + (k * P + from) * QUAD * LANES;
#pragma GCC unroll 2
                for (int i = 0; i < side; i++)
                    add_words(sum[i][0], sum[i][chains - 1], load_codes(at + i * QUAD * LANES),
                              x + k * four, stride, R);
#pragma GCC unroll 2
                for (int i = 0; i < P && from == 0; i++) /* for the other half too */
                    prefetch(at + i * QUAD * LANES + 2048);
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int i = 0; i < side; i++) {
                    if (chains == 2) sum[i][0][r] = plus(sum[i][0][r], sum[i][1][r]);
                    if (parts) add_whole(total[i][r], sum[i][0][r]);
                }
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int i = 0; i < side; i++) {
                const floats scale = mul(all(p->steps[row + r]), load(scales + (from + i) * LANES));
                const floats whole = parts ? rounded_once(total[i][r]) : whole_floats(sum[i][0][r]);
                out[r][from + i] = mul(scale, whole);
            }
    }
#pragma GCC unroll 12
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
