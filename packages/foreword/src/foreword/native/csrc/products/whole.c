/* Products with bfloat16 weights, in vector registers. A panel is [depth / 2][32][2]. */
#include "product.h"

#ifdef BF16_PRODUCTS
#define FETCHED 8192 /* bytes of prefetch distance; best on a Zen 5 */
#else
#define FETCHED 1024 /* best on a Xeon without bfloat16 instructions */
#endif

#define ALONE                                                                                      \
    8 /* rows. Most in one pass: with more, a core does not read while it multiplies, unless       \
         another pass prefetches */

/* R rows by P times 16 outputs. `later` is where this pass prefetches the next panel, a share of it
 * per pass; NULL = a single pass, which prefetches its own panel. */
INLINE void whole_tile(const Product *p, int64_t row, int64_t panel, const char *later, const int R,
                       const int P, const int PLAIN) {
    const bf16 *w = (const bf16 *)p->weight + place_of(p, panel) * PANEL * p->depth;
    const factor *x = p->x + row * p->depth;
    floats sum[MOST_TILED][2]; /* R by P are used; a constant size keeps them in registers */
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) sum[r][i] = all(0);
    const int side = P / sides_of(R, P);
#pragma GCC unroll 2
    for (int from = 0; from < P; from += side)
        for (int64_t k = 0; k < p->depth / 2; k++) {
            pairs weight[2];
#pragma GCC unroll 2
            for (int i = from; i < from + side; i++) {
                const bf16 *at = w + (k * P + i) * 2 * LANES;
                weight[i] = load_pairs(at);
                if (!later) prefetch(at + FETCHED);
            }
            if (later) prefetch_behind(later + (from * p->depth / 2 + k) * 64);
            /* A pointer per three rows: gcc has no registers for twelve, and moves them through
             * vectors. */
            const factor *near = x + 2 * k;
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                if (r && r % 3 == 0) near += 3 * p->depth;
                if (r % 3 == 0) AS_IT_IS(near);
#pragma GCC unroll 2
                for (int i = from; i < from + side; i++)
                    sum[r][i] = dot_as(sum[r][i], weight[i], near + r % 3 * p->depth, PLAIN);
            }
        }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) finish(p, row + r, panel * PANEL, sum[r][0], sum[r][P - 1], P);
}

/* The coding NAME##_coding, and its tiles. */
#define TILE(NAME, R, PLAIN)                                                                       \
    SUMS_STAY static void NAME##_tile_##R(const Product *p, int64_t row, int64_t panel,            \
                                          const char *later) {                                     \
        if ((panel + 1) * PANEL > p->outputs) whole_tile(p, row, panel, 0, R, 1, PLAIN);           \
        else if (later) whole_tile(p, row, panel, later, R, 2, PLAIN);                             \
        else whole_tile(p, row, panel, 0, R, 2, PLAIN);                                            \
    }
#define CODING(NAME)                                                                               \
    INTERNAL const Coding NAME##_coding = {.turn = in_passes,                                      \
                                           .bytes = whole_bytes,                                   \
                                           .tile = NAME##_tiles,                                   \
                                           .most = MOST_TILED,                                     \
                                           .alone = ALONE};

#define WHOLE_TILE(R) TILE(whole, R, 0)
#define WHOLE_NAMED(R) whole_tile_##R,
FOR_ROWS(MOST_TILED, WHOLE_TILE)
static Tile *const whole_tiles[] = {FOR_ROWS(MOST_TILED, WHOLE_NAMED)};
CODING(whole)

#ifdef BF16_PRODUCTS
#define PLAIN_TILE(R) TILE(plain, R, 1)
#define PLAIN_NAMED(R) plain_tile_##R,
FOR_ROWS(MOST_TILED, PLAIN_TILE)
static Tile *const plain_tiles[] = {FOR_ROWS(MOST_TILED, PLAIN_NAMED)};
CODING(plain)
#endif
#undef TILE
#undef CODING
