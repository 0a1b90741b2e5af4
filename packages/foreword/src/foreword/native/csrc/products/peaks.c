/* The most multiply-adds a second that the instructions of each form of weights reach: loops of
 * products whose operands stay in registers. `foreword bench limit`
 * divides the products of a forward by them.
 */
#include "amx.h"
#include "groups.h"

/* Forms of weights: bfloat16; 8 bits beside rows of 15; levels in groups, in a small range or any.
 */
enum { PEAK_WHOLE, PEAK_BYTES, PEAK_SMALL, PEAK_LEVELS };

/* Sums in registers, enough that none waits for the product before it. */
#define PEAK_SUMS 12

#ifdef __AVX2__

/* In assembly: compilers move sums about, which takes longer than the products. */
#ifdef __AVX512F__
#define PEAK_LANES 16
#define PEAK_WEIGHT "%%zmm28"
#define PEAK_OTHER "%%zmm29"
#define PEAK_ROW "%%zmm30"
#define PEAK_MADE "%%zmm31"
#define PEAK_SUM "%%zmm"
#define PEAK_USED "xmm28", "xmm29", "xmm30", "xmm31"
#else
#define PEAK_LANES 8
#define PEAK_WEIGHT "%%ymm12"
#define PEAK_OTHER "%%ymm13"
#define PEAK_ROW "%%ymm14"
#define PEAK_MADE "%%ymm15"
#define PEAK_SUM "%%ymm"
#define PEAK_USED "xmm12", "xmm13", "xmm14", "xmm15"
#endif
#define PEAK_DO(code, a, b, to) code " " a "," b "," to "\n"
#define PEAK_EACH(f)                                                                               \
    f("0") f("1") f("2") f("3") f("4") f("5") f("6") f("7") f("8") f("9") f("10") f("11")

/* A function that does the products of all sums so many times. */
#define PEAK_LOOP(name, products)                                                                  \
    static void name(int64_t turns) {                                                              \
        for (int64_t i = 0; i < turns; i++)                                                        \
            __asm__ volatile(PEAK_EACH(products)::                                                 \
                                 : PEAK_USED, "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",      \
                                   "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");              \
    }

#ifdef BF16_PRODUCTS
#define WHOLE_DEPTHS 2
#define WHOLE_PRODUCT(n) PEAK_DO("vdpbf16ps", PEAK_WEIGHT, PEAK_ROW, PEAK_SUM n)
#else
#define WHOLE_DEPTHS 1
#define WHOLE_PRODUCT(n) PEAK_DO("vfmadd231ps", PEAK_WEIGHT, PEAK_ROW, PEAK_SUM n)
#endif
PEAK_LOOP(whole_loop, WHOLE_PRODUCT)

/* Four words of 16 bits to a sum. */
#ifdef __AVX512VNNI__
#define WORD_PRODUCT(n) PEAK_DO("vpdpwssd", PEAK_WEIGHT, PEAK_ROW, PEAK_SUM n)
#elif defined __AVXVNNI__
#define WORD_PRODUCT(n) PEAK_DO("%{vex%} vpdpwssd", PEAK_WEIGHT, PEAK_ROW, PEAK_SUM n)
#else
#define WORD_PRODUCT(n)                                                                            \
    PEAK_DO("vpmaddwd", PEAK_WEIGHT, PEAK_ROW, PEAK_MADE)                                          \
    PEAK_DO("vpaddd", PEAK_MADE, PEAK_SUM n, PEAK_SUM n)
#endif
#define WORD_PRODUCTS(n) WORD_PRODUCT(n) WORD_PRODUCT(n)
PEAK_LOOP(word_loop, WORD_PRODUCTS)

/* Four bytes to a sum, or eight by sums of 16 bits. */
#if defined __AVX512VNNI__
#define LEVEL_DEPTHS QUAD
#define LEVEL_PRODUCT(n) PEAK_DO("vpdpbusd", PEAK_WEIGHT, PEAK_ROW, PEAK_SUM n)
#elif defined __AVXVNNI__
#define LEVEL_DEPTHS QUAD
#define LEVEL_PRODUCT(n) PEAK_DO("%{vex%} vpdpbusd", PEAK_WEIGHT, PEAK_ROW, PEAK_SUM n)
#else
#define LEVEL_DEPTHS (2 * QUAD)
#define LEVEL_PRODUCT(n)                                                                           \
    PEAK_DO("vpmaddubsw", PEAK_WEIGHT, PEAK_ROW, PEAK_MADE)                                        \
    PEAK_DO("vpmaddubsw", PEAK_WEIGHT, PEAK_ROW, PEAK_OTHER)                                       \
    PEAK_DO("vpaddw", PEAK_OTHER, PEAK_MADE, PEAK_MADE)                                            \
    PEAK_DO("vpmaddwd", PEAK_ROW, PEAK_MADE, PEAK_MADE)                                            \
    PEAK_DO("vpaddd", PEAK_MADE, PEAK_SUM n, PEAK_SUM n)
#endif
PEAK_LOOP(level_loop, LEVEL_PRODUCT)

#else

/* As compilers write them. */
#define PEAK_LANES LANES
#define WHOLE_DEPTHS 1
#define LEVEL_DEPTHS QUAD
static _Alignas(64) char peak_weights[64], peak_row[64];

/* Keep sums, so that compilers do not drop their loop. */
static volatile float peak_kept;

#define PEAK_LOOP(name, Sums, zero, next, kept)                                                    \
    SUMS_STAY static void name(int64_t turns) {                                                    \
        Sums sum[PEAK_SUMS];                                                                       \
        for (int r = 0; r < PEAK_SUMS; r++) sum[r] = zero;                                         \
        for (int64_t i = 0; i < turns; i++) {                                                      \
            const char *at = peak_weights, *x = peak_row;                                          \
            AS_IT_IS(at);                                                                          \
            AS_IT_IS(x);                                                                           \
            for (int r = 0; r < PEAK_SUMS; r++) sum[r] = next;                                     \
        }                                                                                          \
        for (int r = 0; r < PEAK_SUMS; r++) peak_kept = sum_of(kept);                              \
    }
#define WORDS_NEXT                                                                                 \
    word_dot(word_dot(sum[r], even_bytes(load_codes(at)), two_words(x)),                           \
             odd_bytes(load_codes(at)), two_words(x + 4))
PEAK_LOOP(whole_loop, floats, all(0),
          fused(load((const float *)at), all(*(const float *)x), sum[r]), sum[r])
PEAK_LOOP(word_loop, counts, begun(0), WORDS_NEXT, whole_floats(sum[r]))
#ifdef BYTE_DOTS
PEAK_LOOP(level_loop, counts, begun(0), byte_dot(sum[r], load_codes(at), x), whole_floats(sum[r]))
#else
#define level_loop word_loop
#endif

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
    const int64_t sums = turns * PEAK_SUMS * PEAK_LANES;
    if (form == PEAK_WHOLE) {
        whole_loop(turns);
        return sums * WHOLE_DEPTHS;
    }
#ifdef BYTE_DOTS
    const int small = form != PEAK_BYTES;
#else
    const int small = form == PEAK_SMALL;
#endif
    if (small) level_loop(turns);
    else word_loop(turns);
    return sums * (small ? LEVEL_DEPTHS : QUAD);
}
