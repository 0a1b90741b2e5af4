/* Vectors of sixteen numbers made of parts: a function of them applies to each part. Included by
 * simd_avx2.h and simd_generic.h, which define the types and the operations that processors have
 * instructions for.
 */
#ifndef FOREWORD_SIMD_PARTS_H
#define FOREWORD_SIMD_PARTS_H

INLINE void wake_unit(void) {} /* see simd_avx512.h */

#define LOADED(name, All, one, from, step)                                                         \
    INLINE one name##_part(const from *at) {                                                       \
        one x;                                                                                     \
        memcpy(&x, at, sizeof x);                                                                  \
        return x;                                                                                  \
    }                                                                                              \
    INLINE All name(const from *at) { return (All)EACH_AT(name##_part, step); }
LOADED(load, floats, part, float, PART)
LOADED(load_halves, halves, shorts, bf16, PART)
LOADED(load_words, pairs, bits, char, 4 * PART)
INLINE pairs load_pairs(const void *at) { return load_words(at); }

#define STORED(name, All, one, to)                                                                 \
    INLINE void name##_part(to *at, one x) { memcpy(at, &x, sizeof x); }                           \
    INLINE void name(to *at, All x) { EACH_TO(name##_part); }
STORED(store, floats, part, float)
STORED(store_halves, halves, shorts, bf16)

INLINE part same(float x) { return (part)SAME(x); }
INLINE floats all(float x) { return (floats)EQUAL(same(x)); }
INLINE floats two_by_turns(const float *at) { return (floats)EQUAL(turns_part(at)); }

INLINE part chosen(numbers which, part a, part b) {
    return (part)((which & (numbers)a) | (~which & (numbers)b));
}

#define OF_TWO(name, result)                                                                       \
    INLINE part name##_part(part a, part b) { return result; }                                     \
    INLINE floats name(floats a, floats b) { return (floats)EACH_OF_TWO(name##_part); }
OF_TWO(add, a + b)
OF_TWO(sub, a - b)
OF_TWO(mul, a *b)
OF_TWO(quotient, a / b)
OF_TWO(maximum, chosen(a > b, a, b))
OF_TWO(minimum, chosen(a < b, a, b))
/* Exponents are clamped to the range of normal numbers. */
OF_TWO(scaled,
       a *(part)((__builtin_convertvector(maximum_part(minimum_part(b, same(127)), same(-126)),
                                          numbers)
                  + 127)
                 << 23))

INLINE floats fused(floats a, floats b, floats c) { return (floats)EACH_OF_THREE(fused_part); }
INLINE floats fused_from(floats a, floats b, floats c) {
    return (floats)EACH_OF_THREE(fused_from_part);
}
INLINE part where_above_part(part a, part b, part c) { return chosen(a > b, c, same(0)); }
INLINE floats where_above(floats a, floats b, floats c) {
    return (floats)EACH_OF_THREE(where_above_part);
}

#define OF_ONE(name, All, one, From, from, result)                                                 \
    INLINE one name##_part(from a) { return result; }                                              \
    INLINE All name(From a) { return (All)EACH(name##_part); }
/* 1.5 2^23: the sum has no bits for fractions, if |a| < 2^22. */
OF_ONE(rounded, floats, part, floats, part, (a + 12582912.0f) - 12582912.0f)
OF_ONE(even_of, floats, part, pairs, bits, (part)(a << 16))
OF_ONE(odd_of, floats, part, pairs, bits, (part)(a & 0xffff0000u))
INLINE bits joined_part(part a, part b) { return (bits)a >> 16 | (bits)b; }
INLINE pairs joined(floats a, floats b) { return (pairs)EACH_OF_TWO(joined_part); }
OF_ONE(widen, floats, part, halves, shorts, (part)(__builtin_convertvector(a, bits) << 16))
INLINE bits nearest_part(part a) { /* ties to even; NaN stays NaN; denormals become zero */
    const bits raw = (bits)a, near = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    const bits number = (bits)chosen(a == a, (part)near, (part)(bits)SAME(0x7fc0));
    /* Shifts: constants of masks would take registers from the sums of products. */
    const bits tiny = (bits)(raw << 1 >> 24 == 0), sign = raw >> 31 << 15;
    return (number & ~tiny) | (sign & tiny);
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

INLINE numbers plus_part(numbers a, numbers b) { return a + b; }
INLINE counts plus(counts a, counts b) { return (counts)EACH_OF_TWO(plus_part); }
INLINE void store_words_part(int16_t *at, part whole) {
    const short_part each =
        __builtin_convertvector(__builtin_convertvector(whole, numbers), short_part);
    memcpy(at, &each, sizeof each);
}
INLINE void store_words(void *to, floats x) {
    int16_t *at = to;
    EACH_TO(store_words_part);
}
INLINE void store_bytes(void *at, floats whole) {
    float each[LANES];
    int8_t *to = at;
    store(each, whole);
    for (int i = 0; i < LANES; i++) to[i] = (int8_t)each[i];
}
INLINE counts signed_counts(const int8_t *at) { return (counts)EACH_AT(signed_part, PART); }
INLINE numbers multiplied_part(numbers a, numbers b) { return a * b; }
INLINE counts multiplied(counts a, counts b) { return (counts)EACH_OF_TWO(multiplied_part); }
INLINE counts shifted(counts a, int32_t by) { /* a 2^by */
#define SHIFTED(part) shifted_part(part, by)
    return (counts)EACH(SHIFTED);
#undef SHIFTED
}
INLINE word_part paired_part(numbers a, numbers b) { return (word_part)((a & 0xffff) | b << 16); }
INLINE words paired(const int8_t *even, const int8_t *odd) {
    const counts a = signed_counts(even), b = signed_counts(odd);
    return (words)EACH_OF_TWO(paired_part);
}
INLINE words two_words(const void *at) { /* repeated */
    int32_t two;
    memcpy(&two, at, sizeof two);
    const numbers each = (numbers)SAME(0) + two;
    return (words)EQUAL((word_part)each);
}
INLINE words unit_words(void) { return (words)EQUAL((word_part){0} + 1); }
INLINE counts word_dot(counts a, words b, words c) { return (counts)EACH_OF_THREE(word_dot_part); }
INLINE part whole_part(numbers a) { return __builtin_convertvector(a, part); }
INLINE floats whole_floats(counts a) { return (floats)EACH(whole_part); }
INLINE void add_whole(double *total, counts a) {
    int32_t each[LANES];
    memcpy(each, &a, sizeof each);
    for (int i = 0; i < LANES; i++) total[i] += each[i];
}

/* Bytes: 16 outputs by 4 depths. */
LOADED(load_codes, codes, code_part, char, 4 * PART)
INLINE codes table_of(const int8_t *levels) { /* the first 16 bytes of each part */
    code_part each;
    for (int i = 0; i < 4 * PART; i++) each[i] = levels[i % 16];
    return (codes)EQUAL(each);
}
INLINE code_part lifted_part(code_part a, code_part b) { return a + b; }
INLINE codes lifted(codes a, int by) {
    const codes b = EQUAL((code_part){0} + (int8_t)by);
    return (codes)EACH_OF_TWO(lifted_part);
}
INLINE code_part low_part(code_part a, code_part b) { return level_part(a, b & 15); }
INLINE code_part high_part(code_part a, code_part b) {
    return level_part(a, (code_part)((bits)b >> 4) & 15);
}
INLINE codes low_levels(codes a, codes b) { return (codes)EACH_OF_TWO(low_part); }
INLINE codes high_levels(codes a, codes b) { return (codes)EACH_OF_TWO(high_part); }
INLINE code_part masked_part(code_part a, const int by, const int mask) {
    const code_part moved = (code_part)(by < 0 ? (bits)a << -by : (bits)a >> by);
    return moved & (code_part)((bits)SAME(0x01010101u) * (uint32_t)mask);
}
INLINE codes masked(codes a, const int by, const int mask) {
#define MASKED(part) masked_part(part, by, mask)
    return (codes)EACH(MASKED);
#undef MASKED
}
INLINE code_part either_part(code_part a, code_part b) { return a | b; }
INLINE codes either(codes a, codes b) { return (codes)EACH_OF_TWO(either_part); }
INLINE word_part even_part_of(code_part a) { return (word_part)a << 8 >> 8; }
INLINE word_part odd_part_of(code_part a) { return (word_part)a >> 8; }
INLINE words even_bytes(codes a) { return (words)EACH(even_part_of); }
INLINE words odd_bytes(codes a) { return (words)EACH(odd_part_of); }
INLINE counts begun(int32_t from) { return (counts)EQUAL(((numbers)SAME(0)) + from); }
#ifdef BYTE_DOTS
INLINE counts byte_dot(counts a, codes b, const void *four) {
    const words repeated = two_words(four);
    codes c;
    memcpy(&c, &repeated, sizeof c);
    return (counts)EACH_OF_THREE(byte_dot_part);
}
#endif
#ifdef SHORT_DOTS
INLINE code_part four_part(const void *at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return (code_part)((numbers)SAME(0) + four);
}
INLINE words byte_pairs(codes a, const void *at) {
    const code_part four = four_part(at);
    return (words){byte_pairs_part(a.p0, four), byte_pairs_part(a.p1, four)};
}
INLINE word_part plus_words_part(word_part a, word_part b) { return a + b; }
INLINE words plus_words(words a, words b) { return (words)EACH_OF_TWO(plus_words_part); }
#endif
#ifdef F16_PARTS
INLINE floats load_f16(const void *from) {
    const uint16_t *at = from;
    return (floats)EACH_AT(load_f16_part, PART);
}
#else
INLINE floats load_f16(const void *at) { /* finite numbers */
    uint16_t half[LANES];
    uint32_t each[LANES];
    float whole[LANES];
    memcpy(half, at, sizeof half);
    for (int i = 0; i < LANES; i++)
        each[i] = (uint32_t)(half[i] & 0x8000) << 16 | (uint32_t)(half[i] & 0x7fff) << 13;
    memcpy(whole, each, sizeof whole);
    return mul(load(whole), all(0x1p112f));
}
#endif

#endif
