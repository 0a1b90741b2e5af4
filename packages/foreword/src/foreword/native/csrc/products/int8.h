/* Quantized rows and panels of 8 bits (int8.c). */
#ifndef FOREWORD_INT8_H
#define FOREWORD_INT8_H

#include "product.h"

#define LOW 128 /* value of one unit of a high byte */

/* Bytes of a panel: scales, then codes. */
static inline int64_t byte_panel(int64_t depth) { return PANEL * (depth + (int64_t)sizeof(float)); }

/* Store 16 whole numbers as words, each four in the order 0 2 1 3. */
INLINE void store_in_turns(char *to, floats whole) {
    int16_t word[LANES], turned[LANES];
    store_words(word, whole);
    for (int i = 0; i < LANES; i++) turned[i] = word[i / 4 * 4 + (i & 1) * 2 + (i >> 1 & 1)];
    memcpy(to, turned, sizeof turned);
}

/* Run a statement for R rows. Their codes begin at `near` and are `stride` bytes apart; `at` is
 * where the codes of row r begin. */
#define EACH_ROW(statement)                                                                        \
    for (int r = 0; r < R; r++) {                                                                  \
        if (r && r % 3 == 0) near += 3 * stride;                                                   \
        if (r % 3 == 0) AS_IT_IS(near);                                                            \
        const char *at = near + r % 3 * stride;                                                    \
        statement;                                                                                 \
    }

/* Add the products of 16 outputs by 4 depths and R rows. The products of bytes 1 and 3 go to sums
 * of their own unless both arrays are the same: a sum waits for the product before. */
INLINE void add_words(counts *sum, counts *odd_sum, codes levels, const char *near, int64_t stride,
                      const int R) {
    const words even = even_bytes(levels), odd = odd_bytes(levels);
#pragma GCC unroll 12
    EACH_ROW(sum[r] = word_dot(sum[r], even, two_words(at));
             odd_sum[r] = word_dot(odd_sum[r], odd, two_words(at + 4)))
}

/* Quantize a row to integers and return its scale. */
INTERNAL float to_integers(factor *x, int64_t depth);

#endif
