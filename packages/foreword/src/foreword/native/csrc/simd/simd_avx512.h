/* Vectors of sixteen numbers with AVX512: one register each. */
#ifndef FOREWORD_SIMD_AVX512_H
#define FOREWORD_SIMD_AVX512_H

#define SUMS 24        /* sums that fit in registers, beside their operands */
#define BUSY 12        /* sums of products of words at which none waits for the product before */
#define MOST_TILED 12  /* rows per pass of a product */
#define MOST_CODED 6   /* the same with weights of 8 bits */
#define MOST_GROUPED 8 /* and with weights in groups */

typedef __m512 floats;
typedef __m512i pairs;  /* 16 times two bfloat16, the even one in the low half */
typedef __m256i halves; /* 16 bfloat16 */

/* The upper half of the vector unit powers down after 0.7 us without 512-bit arithmetic
 * (fourth-generation Xeon; moves and matrix products do not count), and its next use takes 0.3 us,
 * including a store from a matrix register. This sum, whose result is unused, wakes it ahead of
 * time. */
INLINE void wake_unit(void) {
    __m512 sum = _mm512_setzero_ps();
    __asm__ volatile("vaddps %0, %0, %0" : "+v"(sum));
}

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
/* Rounded once on any processor. */
INLINE floats fused_exactly(floats a, floats b, floats c) { return fused(a, b, c); }
/* c - a b */
INLINE floats fused_from(floats a, floats b, floats c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE floats maximum(floats a, floats b) { return _mm512_max_ps(a, b); }
INLINE floats minimum(floats a, floats b) { return _mm512_min_ps(a, b); }
INLINE floats rounded(floats x) { return _mm512_roundscale_ps(x, 0); }
/* x 2^by, of whole numbers */
INLINE floats scaled(floats x, floats by) { return _mm512_scalef_ps(x, by); }
/* Each number and the one half of the rest away, as on processors with narrower vectors. */
INLINE float sum_of(floats x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float maximum_of(floats x) { return _mm512_reduce_max_ps(x); }
/* One bit each. */
INLINE uint32_t above(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
/* Elsewhere 0. */
INLINE floats where_above(floats a, floats b, floats x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
}
INLINE floats gathered(const float *from, const int32_t *at) {
    return _mm512_i32gather_ps(_mm512_loadu_si512(at), from, 4);
}
INLINE floats even_of(pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
INLINE floats odd_of(pairs x) {
    return _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(0xffff), x));
}
/* The reverse, of bfloat16 numbers. */
INLINE pairs joined(floats even, floats odd) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                           _mm512_castps_si512(odd));
}
INLINE floats widen(halves x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
/* To every other element. */
INLINE void store_apart(bf16 *at, halves x) {
    _mm512_mask_storeu_epi16(at, 0x55555555, _mm512_cvtepu16_epi32(x));
}

#ifdef __AVX512BF16__
#define BF16_PRODUCTS
INLINE halves narrow(floats x) { return (__m256i)_mm512_cvtneps_pbh(x); }
/* Rounded, in one piece. */
INLINE void store_two(bf16 *to, floats a, floats b) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
}
INLINE floats dot(floats sum, pairs weight, const bf16 *x) { /* x: two of them */
    int32_t both;
    memcpy(&both, x, sizeof both);
    return _mm512_dpbf16_ps(sum, (__m512bh)weight, (__m512bh)_mm512_set1_epi32(both));
}
#else
INLINE halves narrow(floats x) { /* to nearest, ties to even */
    const __m512i bits = _mm512_castps_si512(x),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i near = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    near = _mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_set1_epi32(0x7fc0));
    /* Denormal numbers become zero, as by the instruction. */
    const __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(near, tiny, sign));
}
#endif

/* The first `count` of 16, at the end of an array. Branch-free: with a branch gcc keeps the sums of
 * a product in memory, and writes them there at every step. */
INLINE __mmask16 first_of(int64_t count) {
    return (__mmask16)(count >= LANES ? 0xffff : (1u << count) - 1);
}
INLINE floats load_first(const float *at, int64_t count, float otherwise) {
    return _mm512_mask_loadu_ps(all(otherwise), first_of(count), at);
}
INLINE void store_first(float *at, floats x, int64_t count) {
    _mm512_mask_storeu_ps(at, first_of(count), x);
}

/* Integers: 16 of 32 bits, 32 of 16 bits. */
typedef __m512i counts;
typedef __m512i words;
INLINE counts plus(counts a, counts b) { return _mm512_add_epi32(a, b); }
INLINE void store_words(void *at, floats whole) {
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(whole)));
}
INLINE void store_bytes(void *at, floats whole) {
    _mm_storeu_si128((__m128i *)at, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole)));
}
INLINE counts signed_counts(const int8_t *at) { /* 16 of them */
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at));
}
INLINE counts multiplied(counts a, counts b) { return _mm512_mullo_epi32(a, b); }
INLINE counts shifted(counts a, int32_t by) { /* a 2^by */
    return _mm512_sllv_epi32(a, _mm512_set1_epi32(by));
}
/* 16 of each, as words beside each other. */
INLINE words paired(const int8_t *even, const int8_t *odd) {
    const __m512i low = _mm512_and_si512(signed_counts(even), _mm512_set1_epi32(0xffff));
    return _mm512_or_si512(low, _mm512_slli_epi32(signed_counts(odd), 16));
}
INLINE words two_words(const void *at) { /* repeated */
    int32_t two;
    memcpy(&two, at, sizeof two);
    return _mm512_set1_epi32(two);
}
INLINE words unit_words(void) { return _mm512_set1_epi16(1); }
INLINE counts word_dot(counts sum, words a, words b) { /* of each adjacent pair */
#ifdef __AVX512VNNI__
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
INLINE floats whole_floats(counts x) { return _mm512_cvtepi32_ps(x); }
/* To sums of 16 outputs. */
INLINE void add_whole(double *total, counts x) {
    const __m512d low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(x)),
                  high = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(x, 1));
    _mm512_storeu_pd(total, _mm512_add_pd(_mm512_loadu_pd(total), low));
    _mm512_storeu_pd(total + 8, _mm512_add_pd(_mm512_loadu_pd(total + 8), high));
}

/* Bytes: 16 outputs by 4 depths. */
typedef __m512i codes;
INLINE codes load_codes(const void *at) { return _mm512_loadu_si512(at); }
INLINE codes table_of(const int8_t *levels) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)levels));
}
/* `by` is added to each. */
INLINE codes lifted(codes a, int by) { return _mm512_add_epi8(a, _mm512_set1_epi8((char)by)); }
INLINE codes low_levels(codes levels, codes stored) {
    return _mm512_shuffle_epi8(levels, _mm512_and_si512(stored, _mm512_set1_epi8(15)));
}
INLINE codes high_levels(codes levels, codes stored) {
    return _mm512_shuffle_epi8(
        levels, _mm512_and_si512(_mm512_srli_epi16(stored, 4), _mm512_set1_epi8(15)));
}
/* Some bits of each byte, moved down by `by`, which may be negative. */
INLINE codes masked(codes a, const int by, const int mask) {
    const __m512i moved = by < 0 ? _mm512_slli_epi32(a, -by) : _mm512_srli_epi32(a, by);
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)mask));
}
INLINE codes either(codes a, codes b) { return _mm512_or_si512(a, b); }
/* Bytes 0 and 2 of each four, and bytes 1 and 3, widened. */
INLINE words even_bytes(codes a) { return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8); }
INLINE words odd_bytes(codes a) { return _mm512_srai_epi16(a, 8); }
INLINE counts begun(int32_t from) { return _mm512_set1_epi32(from); }
#ifdef __AVX512VNNI__
#define BYTE_DOTS
#define LIFT 128 /* makes levels unsigned, which this instruction multiplies by signed bytes */
/* Add the products of each four bytes and the same four. */
INLINE counts byte_dot(counts sum, codes levels, const void *four) {
    return _mm512_dpbusd_epi32(sum, levels, two_words(four));
}
#else
#define SHORT_DOTS
/* The largest level whose products with bytes, four of them added up, fit in 16 bits. */
#define MOST_SHORT (INT16_MAX / 127 / 4)
/* Sums of the products of each two bytes, unsigned ones and the same four signed ones. */
INLINE words byte_pairs(codes levels, const void *four) {
    return _mm512_maddubs_epi16(levels, two_words(four));
}
INLINE words plus_words(words a, words b) { return _mm512_add_epi16(a, b); }
#endif
INLINE floats load_f16(const void *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
}

#endif
