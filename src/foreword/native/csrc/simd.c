/* Vectors of sixteen numbers on any processor, used by the other files.
 *
 * One register with AVX512, else two (AVX2) or four (NEON, SSE), each a named member so that compilers keep it in a register.
 * A number's bits do not depend on the others. Processors may differ in the order of sums, and SSE has no fused operations. Those
 * of others are named: compiler.py forbids any that a compiler would make of a product and a sum.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#elif defined __ARM_NEON
#include <arm_neon.h>
#endif

/* Attribute of functions with product loops: gcc would hoist code that follows the loop, and then keep sums in memory. */
#if defined __GNUC__ && !defined __clang__
#define SUMS_STAY __attribute__((optimize("no-tree-pre")))
#else
#define SUMS_STAY
#endif

/* Hide the origin of an address from the compiler, so that it does not keep related addresses in registers. */
#define AS_IT_IS(at) __asm__("" : "+r"(at))

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

/* Prefetch into the nearest cache, or into the next level. */
INLINE void prefetch(const void *at) { __builtin_prefetch(at, 0, 3); }
INLINE void prefetch_behind(const void *at) { __builtin_prefetch(at, 0, 2); }

/* Pause in a spin loop. */
INLINE void pause_briefly(void) {
#if defined __x86_64__
    _mm_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* The upper half of the vector unit powers down after 0.7 us without 512-bit arithmetic (fourth-generation Xeon; moves and
 * matrix products do not count), and its next use takes 0.3 us, including a store from a matrix register. This sum, whose
 * result is unused, wakes it ahead of time. */
INLINE void wake_unit(void) {
#if defined __AVX512F__
    __m512 sum = _mm512_setzero_ps();
    __asm__ volatile("vaddps %0, %0, %0" : "+v"(sum));
#endif
}

#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VL__

#define SUMS 24       /* sums that fit in registers, beside their operands */
#define MOST_TILED 12 /* rows per pass of a product */
#define MOST_CODED 6  /* the same with weights of 8 bits */
#define MOST_GROUPED 8 /* and with weights in groups */

typedef __m512 floats;
typedef __m512i pairs; /* 16 times two bfloat16, the even one in the low half */
typedef __m256i halves; /* 16 bfloat16 */

INLINE floats all(float x) { return _mm512_set1_ps(x); }
INLINE floats load(const float *at) { return _mm512_loadu_ps(at); }
INLINE floats two_by_turns(const float *at) {
    double two;
    memcpy(&two, at, sizeof two);
    return _mm512_castpd_ps(_mm512_set1_pd(two));
}
INLINE void store(float *at, floats x) { _mm512_storeu_ps(at, x); }
INLINE halves load_halves(const bf16 *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE void store_halves(bf16 *at, halves x) { _mm256_storeu_si256((__m256i *)at, x); }
INLINE pairs load_pairs(const void *at) { return _mm512_loadu_si512(at); }
INLINE floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
INLINE floats sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
INLINE floats mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats quotient(floats a, floats b) { return _mm512_div_ps(a, b); }
INLINE floats fused(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); } /* a b + c */
INLINE floats fused_from(floats a, floats b, floats c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE floats maximum(floats a, floats b) { return _mm512_max_ps(a, b); }
INLINE floats minimum(floats a, floats b) { return _mm512_min_ps(a, b); }
INLINE floats rounded(floats x) { return _mm512_roundscale_ps(x, 0); }
INLINE floats scaled(floats x, floats by) { return _mm512_scalef_ps(x, by); } /* x 2^by, of whole numbers */
INLINE float sum_of(floats x) { return _mm512_reduce_add_ps(x); }
INLINE float maximum_of(floats x) { return _mm512_reduce_max_ps(x); }
INLINE uint32_t above(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); } /* one bit each */
INLINE floats where_above(floats a, floats b, floats x) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x); } /* elsewhere 0 */
INLINE floats gathered(const float *from, const int32_t *at) { return _mm512_i32gather_ps(_mm512_loadu_si512(at), from, 4); }
INLINE floats even_of(pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
INLINE floats odd_of(pairs x) { return _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(0xffff), x)); }
INLINE floats widen(halves x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
INLINE void store_apart(bf16 *at, halves x) { _mm512_mask_storeu_epi16(at, 0x55555555, _mm512_cvtepu16_epi32(x)); } /* to every other element */

#ifdef __AVX512BF16__
#define BF16_PRODUCTS
INLINE halves narrow(floats x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
INLINE halves narrow(floats x) { /* to nearest, ties to even */
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0)));
}
#endif

/* The first `count` of 16, at the end of an array. Branch-free: with a branch gcc keeps the sums of a product in memory, and
 * writes them there at every step. */
INLINE __mmask16 first_of(int64_t count) { return (__mmask16)(count >= LANES ? 0xffff : (1u << count) - 1); }
INLINE floats load_first(const float *at, int64_t count, float otherwise) { return _mm512_mask_loadu_ps(all(otherwise), first_of(count), at); }
INLINE void store_first(float *at, floats x, int64_t count) { _mm512_mask_storeu_ps(at, first_of(count), x); }

/* Integers: 16 of 32 bits, 32 of 16 bits. */
typedef __m512i counts;
typedef __m512i words;
INLINE counts none(void) { return _mm512_setzero_si512(); }
INLINE void store_words(void *at, floats whole) { _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(whole))); }
INLINE void store_bytes(void *at, floats whole) { _mm_storeu_si128((__m128i *)at, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole))); }
INLINE floats load_signed(const int8_t *at) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at))); } /* 16 of them */
INLINE words load_bytes(const int8_t *at) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)at)); } /* 32 of them, widened */
INLINE words four_words(const void *at) { /* repeated */
    int64_t four;
    memcpy(&four, at, sizeof four);
    return _mm512_set1_epi64(four);
}
INLINE counts word_dot(counts sum, words a, words b) { /* of each adjacent pair */
#ifdef __AVX512VNNI__
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
/* Sums of each adjacent pair, first those of a. In several parts they are added up in `total`, and rounded once, in the last. */
INLINE floats pair_sums(counts a, counts b, double *total, int first, int last) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    const __m512i sums = _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b));
    if (first && last) return _mm512_cvtepi32_ps(sums);
    __m512d low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums)), high = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(sums, 1));
    if (!first) low = _mm512_add_pd(low, _mm512_loadu_pd(total)), high = _mm512_add_pd(high, _mm512_loadu_pd(total + LANES / 2));
    _mm512_storeu_pd(total, low), _mm512_storeu_pd(total + LANES / 2, high);
    const __m512i halves[] = {_mm512_castsi256_si512(_mm256_castps_si256(_mm512_cvtpd_ps(low))), _mm512_castsi256_si512(_mm256_castps_si256(_mm512_cvtpd_ps(high)))};
    return _mm512_castsi512_ps(_mm512_inserti64x4(halves[0], _mm512_castsi512_si256(halves[1]), 1));
}

/* Bytes: 16 outputs by 4 depths. BIAS is added to each level where the processor multiplies unsigned bytes by signed ones. */
typedef __m512i codes;
INLINE codes load_codes(const void *at) { return _mm512_loadu_si512(at); }
INLINE codes signed_table(const int8_t *levels) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)levels)); }
#ifdef __AVX512VNNI__
#define BIAS 128
INLINE codes table_of(const int8_t *levels) { return _mm512_xor_si512(signed_table(levels), _mm512_set1_epi8((char)BIAS)); }
INLINE codes as_levels(codes stored) { return _mm512_xor_si512(stored, _mm512_set1_epi8((char)BIAS)); }
#else
#define BIAS 0
INLINE codes table_of(const int8_t *levels) { return signed_table(levels); }
INLINE codes as_levels(codes stored) { return stored; }
#endif
INLINE codes low_levels(codes levels, codes stored) { return _mm512_shuffle_epi8(levels, _mm512_and_si512(stored, _mm512_set1_epi8(15))); }
INLINE codes high_levels(codes levels, codes stored) { return _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16(stored, 4), _mm512_set1_epi8(15))); }
INLINE counts begun(int32_t sum) { return _mm512_set1_epi32(-BIAS * sum); } /* a sum of products of levels, before the first; `sum`: of the other factors */
INLINE counts byte_dot(counts sum, codes levels, const void *four) { /* of each four bytes with the same four */
    int32_t x;
    memcpy(&x, four, sizeof x);
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, levels, _mm512_set1_epi32(x));
#else
    const __m512i others = _mm512_set1_epi32(x);
    const __m512i even = _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(levels, 8), 8), _mm512_srai_epi16(_mm512_slli_epi16(others, 8), 8));
    return _mm512_add_epi32(_mm512_add_epi32(sum, even), _mm512_madd_epi16(_mm512_srai_epi16(levels, 8), _mm512_srai_epi16(others, 8)));
#endif
}
INLINE floats whole_floats(counts x) { return _mm512_cvtepi32_ps(x); }
INLINE floats load_f16(const void *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at)); }

#else

#define SUMS 4
#define MOST_TILED 4
#define MOST_CODED 2
#define MOST_GROUPED 4

/* A function of 16 numbers applies to each part of them. */
#if defined __AVX2__ && defined __FMA__
#define PART 8
#define SAME(x) {x, x, x, x, x, x, x, x}
#define PARTS(type) struct { type p0, p1; }
#define EQUAL(x) {x, x}
#define EACH(f) {f(a.p0), f(a.p1)}
#define EACH_OF_TWO(f) {f(a.p0, b.p0), f(a.p1, b.p1)}
#define EACH_OF_THREE(f) {f(a.p0, b.p0, c.p0), f(a.p1, b.p1, c.p1)}
#define EACH_AT(f, step) {f(at), f(at + (step))}
#define EACH_TO(f) f(at, x.p0), f(at + PART, x.p1)
#else
#define PART 4
#define SAME(x) {x, x, x, x}
#define PARTS(type) struct { type p0, p1, p2, p3; }
#define EQUAL(x) {x, x, x, x}
#define EACH(f) {f(a.p0), f(a.p1), f(a.p2), f(a.p3)}
#define EACH_OF_TWO(f) {f(a.p0, b.p0), f(a.p1, b.p1), f(a.p2, b.p2), f(a.p3, b.p3)}
#define EACH_OF_THREE(f) {f(a.p0, b.p0, c.p0), f(a.p1, b.p1, c.p1), f(a.p2, b.p2, c.p2), f(a.p3, b.p3, c.p3)}
#define EACH_AT(f, step) {f(at), f(at + (step)), f(at + 2 * (step)), f(at + 3 * (step))}
#define EACH_TO(f) f(at, x.p0), f(at + PART, x.p1), f(at + 2 * PART, x.p2), f(at + 3 * PART, x.p3)
#endif

typedef float part __attribute__((vector_size(4 * PART)));
typedef int32_t numbers __attribute__((vector_size(4 * PART)));
typedef uint32_t bits __attribute__((vector_size(4 * PART)));
typedef uint16_t shorts __attribute__((vector_size(2 * PART)));
typedef PARTS(part) floats;
typedef PARTS(bits) pairs;
typedef PARTS(shorts) halves;

#define LOADED(name, All, one, from, step)                                               \
    INLINE one name##_part(const from *at) { one x; memcpy(&x, at, sizeof x); return x; } \
    INLINE All name(const from *at) { return (All)EACH_AT(name##_part, step); }
LOADED(load, floats, part, float, PART)
LOADED(load_halves, halves, shorts, bf16, PART)
LOADED(load_words, pairs, bits, char, 4 * PART)
INLINE pairs load_pairs(const void *at) { return load_words(at); }

#define STORED(name, All, one, to)                                          \
    INLINE void name##_part(to *at, one x) { memcpy(at, &x, sizeof x); }     \
    INLINE void name(to *at, All x) { EACH_TO(name##_part); }
STORED(store, floats, part, float)
STORED(store_halves, halves, shorts, bf16)

INLINE part same(float x) { return (part)SAME(x); }
INLINE floats all(float x) { return (floats)EQUAL(same(x)); }
INLINE floats two_by_turns(const float *at) {
    const part two = {at[0], at[1], at[0], at[1]
#if PART == 8
                      , at[0], at[1], at[0], at[1]
#endif
    };
    return (floats)EQUAL(two);
}

INLINE part chosen(numbers which, part a, part b) { return (part)((which & (numbers)a) | (~which & (numbers)b)); }
INLINE part fused_part(part a, part b, part c) {
#if PART == 8
    return (part)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined __aarch64__
    return (part)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
INLINE part fused_from_part(part a, part b, part c) {
#if PART == 8
    return (part)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined __aarch64__
    return (part)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return c - a * b;
#endif
}

#define OF_TWO(name, result)                                       \
    INLINE part name##_part(part a, part b) { return result; }      \
    INLINE floats name(floats a, floats b) { return (floats)EACH_OF_TWO(name##_part); }
OF_TWO(add, a + b)
OF_TWO(sub, a - b)
OF_TWO(mul, a * b)
OF_TWO(quotient, a / b)
OF_TWO(maximum, chosen(a > b, a, b))
OF_TWO(minimum, chosen(a < b, a, b))
/* Exponents are clamped to those of normal numbers. */
OF_TWO(scaled, a * (part)((__builtin_convertvector(maximum_part(minimum_part(b, same(127)), same(-126)), numbers) + 127) << 23))

INLINE floats fused(floats a, floats b, floats c) { return (floats)EACH_OF_THREE(fused_part); }
INLINE floats fused_from(floats a, floats b, floats c) { return (floats)EACH_OF_THREE(fused_from_part); }
INLINE part where_above_part(part a, part b, part c) { return chosen(a > b, c, same(0)); }
INLINE floats where_above(floats a, floats b, floats c) { return (floats)EACH_OF_THREE(where_above_part); }

#define OF_ONE(name, All, one, From, from, result)       \
    INLINE one name##_part(from a) { return result; }     \
    INLINE All name(From a) { return (All)EACH(name##_part); }
OF_ONE(rounded, floats, part, floats, part, (a + 12582912.0f) - 12582912.0f) /* 1.5 2^23: the sum has no bits for fractions, if |a| < 2^22 */
OF_ONE(even_of, floats, part, pairs, bits, (part)(a << 16))
OF_ONE(odd_of, floats, part, pairs, bits, (part)(a & 0xffff0000u))
OF_ONE(widen, floats, part, halves, shorts, (part)(__builtin_convertvector(a, bits) << 16))
INLINE bits nearest_part(part a) { /* ties to even; NaN stays NaN */
    const bits raw = (bits)a, near = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    return (bits)chosen(a == a, (part)near, (part)(bits)SAME(0x7fc0));
}
OF_ONE(narrow, halves, shorts, floats, part, __builtin_convertvector(nearest_part(a), shorts))

INLINE float sum_of(floats x) {
    float each[LANES];
    store(each, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) each[i] += each[i + width];
    return each[0];
}
INLINE float maximum_of(floats x) {
    float each[LANES];
    store(each, x);
    for (int i = 1; i < LANES; i++) each[0] = each[i] > each[0] ? each[i] : each[0];
    return each[0];
}
INLINE uint32_t above_part(part a, part b) {
#if PART == 8
    return (uint32_t)_mm256_movemask_ps((__m256)(a > b));
#else
    const bits set = (bits)(a > b) & (bits){1, 2, 4, 8};
    return set[0] | set[1] | set[2] | set[3];
#endif
}
INLINE uint32_t above(floats a, floats b) {
    const uint32_t each[] = EACH_OF_TWO(above_part);
    uint32_t set = 0;
    for (int i = 0; i < LANES / PART; i++) set |= each[i] << i * PART;
    return set;
}
INLINE floats gathered(const float *from, const int32_t *at) {
    float each[LANES];
    for (int i = 0; i < LANES; i++) each[i] = from[at[i]];
    return load(each);
}
INLINE void store_apart(bf16 *at, halves x) {
    bf16 each[LANES];
    store_halves(each, x);
    for (int i = 0; i < LANES; i++) at[2 * i] = each[i];
}

INLINE floats load_first(const float *at, int64_t count, float otherwise) {
    if (count >= LANES) return load(at);
    float each[LANES];
    for (int i = 0; i < LANES; i++) each[i] = i < count ? at[i] : otherwise;
    return load(each);
}
INLINE void store_first(float *at, floats x, int64_t count) {
    float each[LANES];
    if (count >= LANES) store(at, x);
    else store(each, x), memcpy(at, each, (size_t)count * sizeof *at);
}

typedef int16_t word_part __attribute__((vector_size(4 * PART)));
typedef int8_t byte_part __attribute__((vector_size(2 * PART)));
typedef PARTS(numbers) counts;
typedef PARTS(word_part) words;
INLINE counts none(void) { return (counts)EQUAL((numbers)SAME(0)); }
INLINE void store_words_part(char *at, part whole) {
    const int16_t __attribute__((vector_size(2 * PART))) each = __builtin_convertvector(__builtin_convertvector(whole, numbers), int16_t __attribute__((vector_size(2 * PART))));
    memcpy(at, &each, sizeof each);
}
INLINE void store_words(char *at, floats whole) {
    store_words_part(at, whole.p0), store_words_part(at + 2 * PART, whole.p1);
#if PART == 4
    store_words_part(at + 4 * PART, whole.p2), store_words_part(at + 6 * PART, whole.p3);
#endif
}
INLINE void store_bytes(void *at, floats whole) {
    float each[LANES];
    int8_t *to = at;
    store(each, whole);
    for (int i = 0; i < LANES; i++) to[i] = (int8_t)each[i];
}
INLINE part load_signed_part(const int8_t *at) {
    int8_t __attribute__((vector_size(PART))) x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(__builtin_convertvector(x, numbers), part);
}
INLINE floats load_signed(const int8_t *at) { return (floats)EACH_AT(load_signed_part, PART); }
INLINE word_part load_bytes_part(const int8_t *at) {
#if PART == 8 /* compilers need four instructions for it */
    return (word_part)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)at));
#else
    byte_part x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(x, word_part);
#endif
}
INLINE words load_bytes(const int8_t *at) { return (words)EACH_AT(load_bytes_part, 2 * PART); }
INLINE words four_words(const void *at) {
    int64_t four;
    memcpy(&four, at, sizeof four);
    const int64_t __attribute__((vector_size(4 * PART))) each = (four + (int64_t __attribute__((vector_size(4 * PART)))){0});
    return (words)EQUAL((word_part)each);
}
INLINE numbers word_dot_part(numbers a, word_part b, word_part c) {
#if defined __AVXVNNI__
    return (numbers)_mm256_dpwssd_avx_epi32((__m256i)a, (__m256i)b, (__m256i)c);
#elif PART == 8
    return (numbers)_mm256_add_epi32((__m256i)a, _mm256_madd_epi16((__m256i)b, (__m256i)c));
#elif defined __aarch64__
    const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)b), vget_low_s16((int16x8_t)c)), high = vmull_high_s16((int16x8_t)b, (int16x8_t)c);
    return a + (numbers)vpaddq_s32(low, high);
#elif defined __SSE2__
    return a + (numbers)_mm_madd_epi16((__m128i)b, (__m128i)c);
#else
    numbers sum = a;
    for (int i = 0; i < 2 * PART; i++) sum[i / 2] += b[i] * c[i];
    return sum;
#endif
}
INLINE counts word_dot(counts a, words b, words c) { return (counts)EACH_OF_THREE(word_dot_part); }
INLINE floats pair_sums(counts a, counts b, double *total, int first, int last) {
    int32_t each[2 * LANES];
    float sums[LANES];
    memcpy(each, &a, sizeof a), memcpy(each + LANES, &b, sizeof b);
    for (int i = 0; i < LANES; i++) {
        const int32_t sum = each[2 * i] + each[2 * i + 1];
        sums[i] = first && last ? (float)sum : (float)(total[i] = first ? sum : total[i] + sum);
    }
    return load(sums);
}

/* Bytes: 16 outputs by 4 depths. BIAS is added to each level where the processor multiplies unsigned bytes by signed ones. */
#if defined __AVXVNNI__
#define BIAS 128
#else
#define BIAS 0
#endif
typedef int8_t code_part __attribute__((vector_size(4 * PART)));
typedef PARTS(code_part) codes;
LOADED(load_codes, codes, code_part, char, 4 * PART)
INLINE code_part biased_part(code_part a) { return a ^ (int8_t)BIAS; }
INLINE codes as_levels(codes a) { return (codes)EACH(biased_part); }
INLINE codes table_of(const int8_t *levels) { /* the first 16 bytes of each part */
    code_part each;
    for (int i = 0; i < 4 * PART; i++) each[i] = (int8_t)(levels[i % 16] ^ BIAS);
    return (codes)EQUAL(each);
}
INLINE code_part level_part(code_part levels, code_part place) {
#if PART == 8
    return (code_part)_mm256_shuffle_epi8((__m256i)levels, (__m256i)place);
#elif defined __aarch64__
    return (code_part)vqtbl1q_s8((int8x16_t)levels, (uint8x16_t)place);
#else
    code_part found;
    for (int i = 0; i < 16; i++) found[i] = levels[place[i]];
    return found;
#endif
}
INLINE code_part low_part(code_part a, code_part b) { return level_part(a, b & 15); }
INLINE code_part high_part(code_part a, code_part b) { return level_part(a, (code_part)((bits)b >> 4) & 15); }
INLINE codes low_levels(codes a, codes b) { return (codes)EACH_OF_TWO(low_part); }
INLINE codes high_levels(codes a, codes b) { return (codes)EACH_OF_TWO(high_part); }
INLINE counts begun(int32_t sum) { return (counts)EQUAL(((numbers)SAME(0)) - BIAS * sum); } /* a sum of products of levels, before the first; `sum`: of the other factors */
INLINE numbers byte_dot_part(numbers a, code_part b, code_part c) {
#if defined __AVXVNNI__
    return (numbers)_mm256_dpbusd_avx_epi32((__m256i)a, (__m256i)b, (__m256i)c);
#elif defined __ARM_FEATURE_DOTPROD
    return (numbers)vdotq_s32((int32x4_t)a, (int8x16_t)b, (int8x16_t)c);
#else
    const numbers even = word_dot_part(a, (word_part)b << 8 >> 8, (word_part)c << 8 >> 8);
    return word_dot_part(even, (word_part)b >> 8, (word_part)c >> 8);
#endif
}
INLINE counts byte_dot(counts a, codes b, const void *four) { /* of each four bytes with the same four */
    int32_t x;
    memcpy(&x, four, sizeof x);
    const codes c = EQUAL((code_part)((numbers)SAME(0) + x));
    return (counts)EACH_OF_THREE(byte_dot_part);
}
INLINE part whole_part(numbers a) { return __builtin_convertvector(a, part); }
INLINE floats whole_floats(counts a) { return (floats)EACH(whole_part); }
INLINE floats load_f16(const void *at) { /* finite numbers */
    uint16_t half[LANES];
    uint32_t each[LANES];
    float whole[LANES];
    memcpy(half, at, sizeof half);
    for (int i = 0; i < LANES; i++) each[i] = (uint32_t)(half[i] & 0x8000) << 16 | (uint32_t)(half[i] & 0x7fff) << 13;
    memcpy(whole, each, sizeof whole);
    return mul(load(whole), all(0x1p112f));
}

#endif

/* a b + c of finite numbers, rounded once on any processor. Without fused operations the product is exact in double, and the sum
 * is rounded to odd there, so that float32 rounds it as if it were exact (Boldo and Melquiond 2008). */
#if defined PART && PART == 4 && !defined __aarch64__
typedef double double_part __attribute__((vector_size(8 * PART)));
typedef int64_t long_part __attribute__((vector_size(8 * PART)));
INLINE part fused_exactly_part(part a, part b, part c) {
    const double_part product = __builtin_convertvector(a, double_part) * __builtin_convertvector(b, double_part), added = __builtin_convertvector(c, double_part);
    const double_part sum = product + added, back = sum - product, error = (product - (sum - back)) + (added - back);
    const long_part outward = (error > 0) == (sum > 0), inexact_even = (error != 0) & (((long_part)sum & 1) - 1); /* -1 where it is so */
    return __builtin_convertvector((double_part)((long_part)sum + (inexact_even & (-2 * outward - 1))), part);
}
__attribute__((noinline)) static floats fused_exactly(floats a, floats b, floats c) { return (floats)EACH_OF_THREE(fused_exactly_part); }
#else
INLINE floats fused_exactly(floats a, floats b, floats c) { return fused(a, b, c); }
#endif

/* The activations that multiply weights: bfloat16, stored widened to float32 if there are no bfloat16 instructions. */
#ifdef BF16_PRODUCTS
INLINE void store_two(bf16 *to, floats a, floats b) { _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a)); } /* rounded, in one piece */
typedef bf16 factor;
INLINE void store_factors(factor *at, floats x) { store_halves(at, narrow(x)); }
INLINE floats load_factors(const factor *at) { return widen(load_halves(at)); }
INLINE floats dot(floats sum, pairs weight, const factor *x) { /* x: two of them */
    int32_t both;
    memcpy(&both, x, sizeof both);
    return _mm512_dpbf16_ps(sum, (__m512bh)weight, (__m512bh)_mm512_set1_epi32(both));
}
#else
INLINE void store_two(bf16 *to, floats a, floats b) { store_halves(to, narrow(a)), store_halves(to + LANES, narrow(b)); }
typedef float factor;
INLINE void store_factors(factor *at, floats x) { store(at, widen(narrow(x))); }
INLINE floats load_factors(const factor *at) { return load(at); }
INLINE floats dot(floats sum, pairs weight, const factor *x) { return fused(odd_of(weight), all(x[1]), fused(even_of(weight), all(x[0]), sum)); }
#endif
