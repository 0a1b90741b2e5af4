/* Quantization of packed bfloat16 weights to 8 bits (int8.c), or to 4 in groups (groups.c). */
#include "int8.h"

/* Quantize packed bfloat16 panels to 8 bits: the largest weight of an output is 127 steps of its
 * scale. */
static void encode_bytes(const bf16 *from, char *to, int64_t outputs, int64_t depth) {
    for (int64_t first = 0; first < outputs; first += LANES) {
        const int64_t start = first / PANEL * PANEL, wide = outputs - start < PANEL ? LANES : PANEL;
        const bf16 *pair = from + start * depth + (first - start) * 2;
        float *scales = (float *)(to + start * (depth + (int64_t)sizeof(float)));
        int8_t *codes = (int8_t *)(scales + wide) + (first - start) * QUAD;
        floats top = all(1e-20f);
        for (int64_t k = 0; k < depth; k += 2, pair += 2 * wide) {
            const floats even = even_of(load_pairs(pair)), odd = odd_of(load_pairs(pair));
            top = maximum(
                top, maximum(maximum(even, sub(all(0), even)), maximum(odd, sub(all(0), odd))));
        }
        const floats scale = mul(top, all(1.0f / 127)), by = quotient(all(127), top);
        store(scales + first - start, scale);
        pair = from + start * depth + (first - start) * 2;
        for (int64_t k = 0; k < depth; k += 2, pair += 2 * wide) {
            float whole[2][LANES];
            store(whole[0], rounded(mul(even_of(load_pairs(pair)), by))),
                store(whole[1], rounded(mul(odd_of(load_pairs(pair)), by)));
            int8_t *at = codes + k / QUAD * wide * QUAD + k % QUAD;
            for (int o = 0; o < LANES; o++)
                at[o * QUAD] = (int8_t)whole[0][o], at[o * QUAD + 1] = (int8_t)whole[1][o];
        }
    }
}

#define MOST 64 /* depths of the larger of two sizes of groups */
#define CLIPS                                                                                      \
    6 /* scales tried for a group; the largest weight may be cut by a few steps of 1/24            \
       */

/* Levels of 4 bits with the least squared error for weights from a normal distribution, and from
 * one with heavier tails, among whole numbers from -31 to 31. NF4 has more, in 8 bits; sums of 16
 * bits hold the products of these (simd.h, MOST_SHORT). */
static const int8_t LEVELS[16] = {-31, -23, -17, -13, -9, -6, -3, 0, 2, 5, 8, 11, 14, 18, 23, 31};

static Grouped quantized(int64_t outputs, int64_t depth) {
    const int64_t size = depth % MOST ? MOST / 2 : MOST;
    Grouped h = {.bits = 4,
                 .group = size,
                 .scale = BF16_FIELD,
                 .strip = depth / size * (LANES * 2 + LANES * size / 2),
                 .least = LEVELS[0],
                 .most = LEVELS[15]};
    h.matrix = (int64_t)sizeof h + outputs / LANES * h.strip;
    memcpy(h.level, LEVELS, sizeof LEVELS);
    return h;
}

/* Compute the codes of one group with a scale per output, and the sums of squared errors. */
static void encode(int64_t size, float weight[MOST][LANES], const float *scale,
                   float code[MOST][LANES], float *error) {
    memset(error, 0, LANES * sizeof *error);
    for (int k = 0; k < size; k++) {
        const floats given = load(weight[k]), by = load(scale), x = quotient(given, by);
        floats level = all(LEVELS[0]), place = all(0);
#pragma GCC unroll 15
        for (int i = 0; i < 15; i++) { /* the nearest of LEVELS */
            const floats middle = all((float)(LEVELS[i] + LEVELS[i + 1]) / 2);
            level = add(level, where_above(x, middle, all((float)(LEVELS[i + 1] - LEVELS[i])))),
            place = add(place, where_above(x, middle, all(1)));
        }
        const floats off = fused_exactly(sub(all(0), level), by, given);
        store(code[k], place), store(error, fused_exactly(off, off, load(error)));
    }
}

/* Quantize 16 outputs by `size` depths; `wide` outputs are beside one another in `from`. */
static void encode_group(const bf16 *from, int64_t size, int64_t wide, bf16 *scales) {
    float weight[MOST][LANES], top[LANES], least[LANES], best[LANES], scale[LANES], error[LANES];
    float code[MOST][LANES], kept[MOST][LANES];
    uint8_t *codes = (uint8_t *)(scales + LANES);
    /* A group of zeros has zero codes under any scale. */
    for (int o = 0; o < LANES; o++) top[o] = 1e-20f, least[o] = INFINITY;
    for (int k = 0; k < size; k++)
        for (int o = 0; o < LANES; o++) {
            const uint32_t bits_of = (uint32_t)from[(k / 2 * wide + o) * 2 + k % 2] << 16;
            memcpy(&weight[k][o], &bits_of, 4);
            top[o] = fabsf(weight[k][o]) > top[o] ? fabsf(weight[k][o]) : top[o];
        }
    for (int clip = 0; clip < CLIPS; clip++) {
        const float share = (1.0f - (float)clip / 24) / (float)LEVELS[15];
        store(scale, widen(narrow(mul(load(top), all(share)))));
        encode(size, weight, scale, code, error);
        for (int o = 0; o < LANES; o++)
            if (error[o] < least[o]) {
                least[o] = error[o], best[o] = scale[o];
                for (int k = 0; k < size; k++) kept[k][o] = code[k][o];
            }
    }
    narrow_store(scales, load(best));
    for (int k = 0; k < size; k++)
        for (int o = 0; o < LANES; o++)
            codes[k / 8 * 64 + o * QUAD + k % QUAD] |=
                (uint8_t)((int)kept[k][o] << (k % 8 / QUAD * 4));
}

/* Quantize packed bfloat16 panels; `to` must hold foreword_coded_bytes zeros. */
void foreword_quantize(const bf16 *from, uint8_t *to, int64_t outputs, int64_t depth, int coding) {
    if (coding == BYTES) {
        encode_bytes(from, (char *)to, outputs, depth);
        return;
    }
    const Grouped h = quantized(outputs, depth);
    memcpy(to, &h, sizeof h);
    for (int64_t first = 0; first < outputs; first += LANES) {
        const int64_t whole = first / PANEL * PANEL, wide = outputs - whole < PANEL ? LANES : PANEL;
        uint8_t *strip = to + sizeof h + first / LANES * h.strip;
        for (int64_t g = 0; g < depth / h.group; g++)
            encode_group(from + whole * depth + (g * h.group / 2 * wide + first - whole) * 2,
                         h.group, wide, (bf16 *)(strip + g * (h.strip / (depth / h.group))));
    }
}

int64_t foreword_coded_bytes(int64_t outputs, int64_t depth, int coding) {
    return coding == BYTES ? outputs * (depth + (int64_t)sizeof(float))
                           : quantized(outputs, depth).matrix;
}
