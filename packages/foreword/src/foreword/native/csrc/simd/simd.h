/* Vectors of sixteen numbers on any processor: simd_avx512.h, simd_avx2.h or simd_generic.h.
 *
 * One register with AVX512, else two (AVX2) or four (NEON, SSE), each a named member so that
 * compilers keep it in a register. Each file has the same functions; tests/native/simd.c calls all.
 * A number's bits do not depend on the others. Processors may differ in the order of sums, and SSE
 * has no fused operations. Fused operations are named: compiler.py forbids any that a compiler
 * would make of a product and a sum.
 */
#ifndef FOREWORD_SIMD_H
#define FOREWORD_SIMD_H

#include "../base.h"

#define LANES 16

typedef uint16_t bf16;

#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VL__
#include "simd_avx512.h"
#elif defined __AVX2__ && defined __FMA__
#include "simd_avx2.h"
#else
#include "simd_generic.h"
#endif

/* The activations that multiply weights: bfloat16, stored widened to float32 if there are no
 * bfloat16 instructions. */
#ifdef BF16_PRODUCTS
typedef bf16 factor;
INLINE void store_factors(factor *at, floats x) { store_halves(at, narrow(x)); }
INLINE floats load_factors(const factor *at) { return widen(load_halves(at)); }
INLINE float float_of(bf16 x) {
    const uint32_t raw = (uint32_t)x << 16;
    float whole;
    memcpy(&whole, &raw, sizeof whole);
    return whole;
}
#else
typedef float factor;
INLINE void store_factors(factor *at, floats x) { store(at, widen(narrow(x))); }
INLINE floats load_factors(const factor *at) { return load(at); }
INLINE void store_two(bf16 *to, floats a, floats b) {
    store_halves(to, narrow(a));
    store_halves(to + LANES, narrow(b));
}
INLINE floats dot(floats sum, pairs weight, const factor *x) { /* x: two of them */
    return fused(odd_of(weight), all(x[1]), fused(even_of(weight), all(x[0]), sum));
}
#endif

/* The same, if PLAIN without instructions for bfloat16, which round otherwise. */
INLINE floats dot_as(floats sum, pairs weight, const factor *x, const int PLAIN) {
#ifdef BF16_PRODUCTS
    if (PLAIN)
        return fused(odd_of(weight), all(float_of(x[1])),
                     fused(even_of(weight), all(float_of(x[0])), sum));
#endif
    (void)PLAIN;
    return dot(sum, weight, x);
}

INLINE floats rounded_once(const double *total) {
    float each[LANES];
    for (int i = 0; i < LANES; i++) each[i] = (float)total[i];
    return load(each);
}

INLINE floats load_signed(const int8_t *at) { return whole_floats(signed_counts(at)); }

INLINE void narrow_store(bf16 *to, floats value) { store_halves(to, narrow(value)); }

#endif
