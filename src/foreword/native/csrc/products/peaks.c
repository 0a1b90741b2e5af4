/* The most multiply-adds a second that the instructions of each form of weights reach: loops of
 * products as a tile has them, whose operands stay in the nearest cache. `foreword bench limit`
 * divides the products of a forward by them.
 */
#include "amx.h"
#include "groups.h"

/* Forms of weights: bfloat16; 8 bits beside rows of 15; levels in groups, in a small range or any.
 */
enum { PEAK_WHOLE, PEAK_BYTES, PEAK_SMALL, PEAK_LEVELS };

#ifdef BF16_PRODUCTS
#define PEAK_DEPTHS 2 /* of a product of bfloat16 */
#define PEAK_DOT(sum, at, x) dot(sum, load_pairs(at), (const factor *)(x))
#else
#define PEAK_DEPTHS 1
#define PEAK_DOT(sum, at, x) fused(load(at), all(*(const float *)(x)), sum)
#endif
/* Rows, and vectors of weights: as many sums of 16 outputs as registers hold. */
#define PEAK_ROWS 6
#ifdef __AVX512F__
#define PEAK_SIDES 2
#else
#define PEAK_SIDES 1
#endif
#define PEAK_SUMS (PEAK_ROWS * PEAK_SIDES)

static _Alignas(64) char peak_weights[PEAK_SIDES][128], peak_rows[PEAK_ROWS][64];

/* Keep sums, so that compilers do not drop their loop. */
static volatile float peak_kept;

/* `turns` times the products of all rows and weights; `next`: the sum after one. */
#define PEAK_LOOP(Sums, zero, next, kept)                                                          \
    do {                                                                                           \
        Sums sum[PEAK_SUMS];                                                                       \
        for (int r = 0; r < PEAK_SUMS; r++) sum[r] = zero;                                         \
        for (int64_t i = 0; i < turns; i++) {                                                      \
            const char *weights = peak_weights[0], *rows = peak_rows[0];                           \
            AS_IT_IS(weights);                                                                     \
            AS_IT_IS(rows);                                                                        \
            _Pragma("GCC unroll 12") for (int r = 0; r < PEAK_SUMS; r++) {                         \
                const char *at = weights + r % PEAK_SIDES * 128, *x = rows + r / PEAK_SIDES * 64;  \
                sum[r] = next;                                                                     \
            }                                                                                      \
        }                                                                                          \
        for (int r = 0; r < PEAK_SUMS; r++) peak_kept = sum_of(kept);                              \
    } while (0)

SUMS_STAY static int64_t peak_whole(int64_t turns) {
    PEAK_LOOP(floats, all(0), PEAK_DOT(sum[r], (const void *)at, x), sum[r]);
    return LANES * PEAK_DEPTHS;
}

SUMS_STAY static int64_t peak_words(int64_t turns) {
    PEAK_LOOP(counts, begun(0),
              word_dot(word_dot(sum[r], even_bytes(load_codes(at)), two_words(x)),
                       odd_bytes(load_codes(at)), two_words(x + 4)),
              whole_floats(sum[r]));
    return LANES * QUAD;
}

#ifdef BYTE_DOTS
SUMS_STAY static int64_t peak_bytes(int64_t turns) {
    PEAK_LOOP(counts, begun(0), byte_dot(sum[r], load_codes(at), x), whole_floats(sum[r]));
    return LANES * QUAD;
}
#endif

#ifdef SHORT_DOTS
SUMS_STAY static int64_t peak_shorts(int64_t turns) {
    PEAK_LOOP(counts, begun(0), short_dots(sum[r], load_codes(at), x, load_codes(at + 64), x + 4),
              whole_floats(sum[r]));
    return 2 * LANES * QUAD;
}
#endif

#ifdef MATRICES
/* Four sums of 16 rows by 16 outputs, of two blocks of each. */
static int64_t peak_matrices(int64_t turns, int bytes) {
    static _Alignas(64) char operands[4][BLOCK * WIDTH];
    shape_registers(MOST_ROWS);
    for (int64_t i = 0; i < turns; i++) {
        _tile_loadd(4, operands[0], WIDTH);
        _tile_loadd(5, operands[1], WIDTH);
        _tile_loadd(6, operands[2], WIDTH);
        _tile_loadd(7, operands[3], WIDTH);
        if (bytes) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    release_registers();
    return 4 * BLOCK * BLOCK * (bytes ? WIDTH : WIDTH / 2);
}
#endif

/* Multiply for a while with the instructions of a form of weights; return the multiply-adds. */
int64_t foreword_peak(int form, int64_t turns) {
#ifdef MATRICES
    /* A row of 15 bits is two rows. */
    if (matrix_registers)
        return turns * peak_matrices(turns, form != PEAK_WHOLE) / (form == PEAK_BYTES ? 2 : 1);
#endif
    if (form == PEAK_WHOLE) return turns * PEAK_SUMS * peak_whole(turns);
#ifdef BYTE_DOTS
    if (form != PEAK_BYTES) return turns * PEAK_SUMS * peak_bytes(turns);
#elif defined SHORT_DOTS
    if (form == PEAK_SMALL) return turns * PEAK_SUMS * peak_shorts(turns);
#endif
    return turns * PEAK_SUMS * peak_words(turns);
}
