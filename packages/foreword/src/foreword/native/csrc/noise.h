/* Gumbel noise: the keys of texts, the words of a key, the number of a word. References:
 * sampling/noise.py.
 *
 * Loops are written so that the compiler vectorises them.
 */
#ifndef FOREWORD_NOISE_H
#define FOREWORD_NOISE_H

#include "exact.h"

/* Counters computed together. More than GCC unrolls: loops that it unrolls before vectorising take
 * twice as long. */
#define WIDE 32
#define NOISE_BLOCK 128 /* tokens that they give words to */

/* The key after one more token of the text. */
static inline uint64_t extended(uint64_t key, int64_t token) {
    uint64_t x = (key + (uint64_t)token + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Philox4x32-10 (Salmon et al. 2011, section 4), WIDE counters side by side. */
static inline void philox(uint32_t c[4][WIDE], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < WIDE; i++) {
            uint64_t p0 = (uint64_t)c[0][i] * 0xD2511F53u, p1 = (uint64_t)c[2][i] * 0xCD9E8D57u;
            uint32_t a = (uint32_t)(p1 >> 32) ^ c[1][i] ^ k0,
                     b = (uint32_t)(p0 >> 32) ^ c[3][i] ^ k1;
            c[0][i] = a, c[1][i] = (uint32_t)p1, c[2][i] = b, c[3][i] = (uint32_t)p0;
        }
}

/* The words of NOISE_BLOCK tokens from `first`, a multiple of 4, on. */
static inline void noise_words(uint64_t key, uint32_t depth, uint32_t stream, uint32_t round,
                               int64_t first, uint32_t *word) {
    uint32_t c[4][WIDE];
    for (int i = 0; i < WIDE; i++)
        c[0][i] = (uint32_t)(first / 4 + i), c[1][i] = depth, c[2][i] = stream, c[3][i] = round;
    philox(c, (uint32_t)key, (uint32_t)(key >> 32));
    for (int i = 0; i < WIDE; i++)
        word[4 * i] = c[0][i], word[4 * i + 1] = c[1][i], word[4 * i + 2] = c[2][i],
                 word[4 * i + 3] = c[3][i];
}

/* -ln(-ln u), rounded once to float32; u = (word + 1/2) / 2^32. */
static inline float gumbel(uint32_t word) { return (float)-ln(-ln((word + 0.5) * 0x1p-32)); }

/* A number above gumbel(word), in a few operations: -ln(1 - u), as 1 - u <= -ln u, and of its
 * logarithm, which is concave, the chord between two powers of 2. True of every word, as of the
 * next: all were tried, and no compiler may change a bit. */
static inline float gumbel_bound(uint32_t word) {
    const float x = (float)(int32_t)(~word >> 1) + 0.25f; /* at most 2^31 (1 - u) */
    int32_t raw;
    memcpy(&raw, &x, sizeof raw);
    return 109.5174f - (float)raw * 8.2629582e-8f; /* 158 ln 2, raised; ln 2 / 2^23 */
}

/* x = (1 + f) 2^exponent, with 1 + f in [sqrt(1/2), sqrt(2)); returns f. */
static inline float split(float x, int32_t *exponent) {
    int32_t raw;
    memcpy(&raw, &x, sizeof raw);
    const int32_t power = (raw - 0x3f3504f3) & (int32_t)0xff800000;
    *exponent = power >> 23;
    raw -= power;
    memcpy(&x, &raw, sizeof raw);
    return x - 1;
}

/* ln((1 + f) 2^exponent), with a relative error of ln(1 + f) of 1.2e-6: a polynomial that is nearly
 * the best of its degree. */
static inline float ln_of(float f, int32_t exponent) {
    float p = 0.12210975f;
    p = p * f - 0.18782735f;
    p = p * f + 0.20454758f;
    p = p * f - 0.24896792f;
    p = p * f + 0.33316028f;
    p = p * f - 0.500014f;
    p = p * f + 1.0000008f;
    return (float)exponent * 0.69314718f + f * p;
}

/* (word + 1/2) / 2^32; AVX2 converts no unsigned numbers. */
static inline float unit(uint32_t word) {
    const float low = (float)(int32_t)(word & 1) + 0.5f;
    return (float)(int32_t)(word >> 1) * 0x1p-31f + low * 0x1p-32f;
}

/* A number above gumbel(word) by less than 1e-5, in half its time. */
static inline float gumbel_near(uint32_t word) {
    int32_t exponent, bits, exact;
    float f = split(unit(word), &exponent);
    /* Near 1, u - 1 loses digits that u - 1 = -unit(~word) has. A mask instead of a branch, for the
     * compiler. */
    const float below = -unit(~word);
    const int32_t near_1 = -(exponent == 0);
    memcpy(&bits, &f, sizeof bits), memcpy(&exact, &below, sizeof exact);
    bits = (bits & ~near_1) | (exact & near_1);
    memcpy(&f, &bits, sizeof f);
    const float inner = -ln_of(f, exponent);
    f = split(inner, &exponent);
    return 4e-6f - ln_of(f, exponent);
}

#endif
