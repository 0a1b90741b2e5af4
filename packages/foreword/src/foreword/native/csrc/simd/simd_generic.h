/* Vectors of sixteen numbers without AVX: four parts each, of NEON, SSE or plain C. */
#ifndef FOREWORD_SIMD_GENERIC_H
#define FOREWORD_SIMD_GENERIC_H

#define SUMS 4
#define BUSY 3
#define MOST_TILED 4
#define MOST_CODED 4
#define MOST_GROUPED 4

#define PART 4
#define SAME(x) {x, x, x, x}
#define PARTS(type)                                                                                \
    struct {                                                                                       \
        type p0, p1, p2, p3;                                                                       \
    }
#define EQUAL(x) {x, x, x, x}
#define EACH(f) {f(a.p0), f(a.p1), f(a.p2), f(a.p3)}
#define EACH_OF_TWO(f) {f(a.p0, b.p0), f(a.p1, b.p1), f(a.p2, b.p2), f(a.p3, b.p3)}
#define EACH_OF_THREE(f)                                                                           \
    {f(a.p0, b.p0, c.p0), f(a.p1, b.p1, c.p1), f(a.p2, b.p2, c.p2), f(a.p3, b.p3, c.p3)}
#define EACH_AT(f, step) {f(at), f(at + (step)), f(at + 2 * (step)), f(at + 3 * (step))}
#define EACH_TO(f) f(at, x.p0), f(at + PART, x.p1), f(at + 2 * PART, x.p2), f(at + 3 * PART, x.p3)

#include "simd_types.h"

INLINE part turns_part(const float *at) { return (part){at[0], at[1], at[0], at[1]}; }
INLINE numbers shifted_part(numbers a, int32_t by) { return a << by; }
INLINE numbers signed_part(const int8_t *at) {
    int8_t __attribute__((vector_size(PART))) x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(x, numbers);
}
INLINE uint32_t above_part(part a, part b) {
    const bits set = (bits)(a > b) & (bits){1, 2, 4, 8};
    return set[0] | set[1] | set[2] | set[3];
}
#ifdef __aarch64__

INLINE part fused_part(part a, part b, part c) {
    return (part)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
INLINE part fused_from_part(part a, part b, part c) {
    return (part)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
INLINE numbers word_dot_part(numbers a, word_part b, word_part c) {
    const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)b), vget_low_s16((int16x8_t)c));
    const int32x4_t high = vmull_high_s16((int16x8_t)b, (int16x8_t)c);
    return a + (numbers)vpaddq_s32(low, high);
}
INLINE code_part level_part(code_part levels, code_part place) {
    return (code_part)vqtbl1q_s8((int8x16_t)levels, (uint8x16_t)place);
}

#else

INLINE part fused_part(part a, part b, part c) { return a * b + c; }
INLINE part fused_from_part(part a, part b, part c) { return c - a * b; }
INLINE numbers word_dot_part(numbers a, word_part b, word_part c) {
#ifdef __SSE2__
    return a + (numbers)_mm_madd_epi16((__m128i)b, (__m128i)c);
#else
    numbers sum = a;
    for (int i = 0; i < 2 * PART; i++) sum[i / 2] += b[i] * c[i];
    return sum;
#endif
}
INLINE code_part level_part(code_part levels, code_part place) {
    code_part found;
    for (int i = 0; i < 16; i++) found[i] = levels[place[i]];
    return found;
}

#endif

#ifdef __ARM_FEATURE_DOTPROD
#define BYTE_DOTS
#define LIFT 0
INLINE numbers byte_dot_part(numbers a, code_part b, code_part c) {
    return (numbers)vdotq_s32((int32x4_t)a, (int8x16_t)b, (int8x16_t)c);
}
#endif

#include "simd_parts.h"

#ifdef __aarch64__
INLINE floats fused_exactly(floats a, floats b, floats c) { return fused(a, b, c); }
#else
/* a b + c of finite numbers, rounded once as on other processors. The product is exact in double,
 * and the sum is rounded to odd there, so that float32 rounds it as if it were exact (Boldo and
 * Melquiond 2008). */
typedef double double_part __attribute__((vector_size(8 * PART)));
typedef int64_t long_part __attribute__((vector_size(8 * PART)));
INLINE part fused_exactly_part(part a, part b, part c) {
    const double_part product = __builtin_convertvector(a, double_part)
                                * __builtin_convertvector(b, double_part),
                      added = __builtin_convertvector(c, double_part);
    const double_part sum = product + added, back = sum - product,
                      error = (product - (sum - back)) + (added - back);
    /* -1 where it is so. */
    const long_part outward = (error > 0) == (sum > 0),
                    inexact_even = (error != 0) & (((long_part)sum & 1) - 1);
    return __builtin_convertvector(
        (double_part)((long_part)sum + (inexact_even & (-2 * outward - 1))), part);
}
__attribute__((noinline)) static floats fused_exactly(floats a, floats b, floats c) {
    return (floats)EACH_OF_THREE(fused_exactly_part);
}
#endif

#endif
