/* Vectors of sixteen numbers with AVX2: two registers each. */
#ifndef FOREWORD_SIMD_AVX2_H
#define FOREWORD_SIMD_AVX2_H

#define SUMS 4
#define BUSY 3
#define MOST_TILED 4
#define MOST_CODED 6
#define MOST_GROUPED 6

#define PART 8
#define SAME(x) {x, x, x, x, x, x, x, x}
#define PARTS(type)                                                                                \
    struct {                                                                                       \
        type p0, p1;                                                                               \
    }
#define EQUAL(x) {x, x}
#define EACH(f) {f(a.p0), f(a.p1)}
#define EACH_OF_TWO(f) {f(a.p0, b.p0), f(a.p1, b.p1)}
#define EACH_OF_THREE(f) {f(a.p0, b.p0, c.p0), f(a.p1, b.p1, c.p1)}
#define EACH_AT(f, step) {f(at), f(at + (step))}
#define EACH_TO(f) f(at, x.p0), f(at + PART, x.p1)

#include "simd_types.h"

INLINE part turns_part(const float *at) {
    return (part){at[0], at[1], at[0], at[1], at[0], at[1], at[0], at[1]};
}
INLINE part fused_part(part a, part b, part c) {
    return (part)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE part fused_from_part(part a, part b, part c) {
    return (part)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE uint32_t above_part(part a, part b) { return (uint32_t)_mm256_movemask_ps((__m256)(a > b)); }
INLINE numbers shifted_part(numbers a, int32_t by) {
    return (numbers)_mm256_sllv_epi32((__m256i)a, _mm256_set1_epi32(by));
}
INLINE numbers signed_part(const int8_t *at) {
    return (numbers)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at));
}
#ifdef __F16C__
#define F16_PARTS
INLINE part load_f16_part(const uint16_t *at) {
    return (part)_mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
}
#endif
INLINE code_part level_part(code_part levels, code_part place) {
    return (code_part)_mm256_shuffle_epi8((__m256i)levels, (__m256i)place);
}

#ifdef __AVXVNNI__
#define BYTE_DOTS
#define LIFT 128
INLINE numbers word_dot_part(numbers a, word_part b, word_part c) {
    return (numbers)_mm256_dpwssd_avx_epi32((__m256i)a, (__m256i)b, (__m256i)c);
}
INLINE numbers byte_dot_part(numbers a, code_part b, code_part c) {
    return (numbers)_mm256_dpbusd_avx_epi32((__m256i)a, (__m256i)b, (__m256i)c);
}
#else
#define SHORT_DOTS
INLINE numbers word_dot_part(numbers a, word_part b, word_part c) {
    __m256i sum = _mm256_add_epi32((__m256i)a, _mm256_madd_epi16((__m256i)b, (__m256i)c));
    return (numbers)sum;
}
#define MOST_SHORT (INT16_MAX / 127 / 4)
INLINE word_part byte_pairs_part(code_part levels, code_part four) {
    return (word_part)_mm256_maddubs_epi16((__m256i)levels, (__m256i)four);
}
#endif

#include "simd_parts.h"

INLINE floats fused_exactly(floats a, floats b, floats c) { return fused(a, b, c); }

#endif
