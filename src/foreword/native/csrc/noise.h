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

/* A nearer one, in a third of the time of gumbel: by less than 0.014 above it where u > 0.15.
 *
 * With x = 1 - u: -ln(-ln u) = -ln x - ln(-ln(1 - x) / x), and the second term is nearly a
 * polynomial in x. */
static inline float gumbel_near(uint32_t word) {
    const float x = (float)(int32_t)(~word >> 1) + 0.25f;
    int32_t raw;
    memcpy(&raw, &x, sizeof raw);
    const float exponent = (float)(raw >> 23); /* x is positive */
    raw = (raw & 0x7fffff) | 0x3f800000;
    float m; /* in [1, 2) */
    memcpy(&m, &raw, sizeof m);
    const float log = m * (2.11261708f + m * (-0.72909369f + m * 0.10968729f));
    const float s = x * 0x1p-31f;
    const float rest = s * (0.46694244f + s * (0.56150118f + s * (-0.95257184f + s * 1.11392864f)));
    return (111.0135f - exponent * 0.69314718f) - (log + rest);
}

#endif
