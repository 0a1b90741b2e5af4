/* Rows quantized to 8 bits in the groups of the matrix that they are multiplied by: GroupedRow. */
#include "groups.h"

/* Share of the squares of a row; steps fitted to 32 normal numbers lose 3e-5 of their squares. */
#define MATTERS 5e-5f

static float largest_of(const factor *x, int64_t depth) {
    floats most = all(0);
    for (int64_t i = 0; i < depth; i += LANES) {
        const floats v = load_factors(x + i);
        most = maximum(most, maximum(v, sub(all(0), v)));
    }
    return maximum_of(most);
}

/* Quantize some numbers in place, in steps of 1 / `by`; return the sum of the codes. `by` is no
 * vector: clang 22 misaligns vectors of AVX2 that it passes from a function whose arrays have
 * variable lengths. */
static float quantize_group(const factor *x, char *code, int64_t depth, float by, int64_t width) {
    floats sum = all(0);
    /* Codes take less room than what they replace, and trail it. */
    for (int64_t i = 0; i < depth; i += LANES) {
        const floats whole = rounded(mul(load_factors(x + i), all(by)));
        sum = add(sum, whole);
        if (width == 1) store_bytes(code + i, whole);
        else store_in_turns(code + 2 * i, whole);
    }
    return sum_of(sum);
}

/* Write the largest numbers of groups; return the sum of the squares of a row. */
static float measured(const factor *x, int64_t groups, int64_t size, float *largest) {
    floats squares = all(0);
    for (int64_t g = 0; g < groups; g++) {
        largest[g] = largest_of(x + g * size, size);
        for (int64_t i = g * size; i < (g + 1) * size; i += LANES) {
            const floats v = load_factors(x + i);
            squares = add(squares, mul(v, v));
        }
    }
    return sum_of(squares);
}

/* Bits by which a group may have finer steps than its span: its largest number is so much less. */
static int32_t bits_finer(float largest, float of_span) {
    int32_t bits = 0;
    for (; largest > 0 && bits < FINEST && 2 * largest <= of_span; bits++) largest *= 2;
    return bits;
}

/* Set by how many bits each group of a span has finer steps: 0, which is faster, unless finer ones
 * lower the squares of errors by MATTERS of the squares of the row. Return the largest number. */
static float finer_steps(const float *largest, int64_t groups, int64_t size, float squares,
                         int32_t *finer) {
    float top = 0, lowered = 0;
    for (int64_t g = 0; g < groups; g++) top = largest[g] > top ? largest[g] : top;
    const float step = top / 127;
    for (int64_t g = 0; g < groups; g++) {
        finer[g] = bits_finer(largest[g], top);
        const float finest = step / (float)(1 << finer[g]);
        lowered += (float)size * (step * step - finest * finest) / 12;
    }
    if (lowered <= MATTERS * squares) memset(finer, 0, (size_t)groups * sizeof *finer);
    return top;
}

/* Quantize a row whose groups are added up in whole numbers. */
static void to_spans(factor *x, int64_t depth, const Grouped *h) {
    const int64_t size = h->group, spans = depth / stepped(h), width = width_of(h);
    const int lift = lift_of(h);
    float step[spans], largest[depth / size], top = 0;
    int32_t begin[depth / size][2], uneven[spans], finer[MOST_SPAN];
    int16_t total[depth / size];
    char *code = (char *)x;
    memset(uneven, 0, sizeof uneven);
    const float squares = measured(x, depth / size, size, largest);
    for (int64_t at = 0, g = 0; at < depth; at += size, g++) {
        const int64_t s = g / h->span, i = g % h->span;
        if (!i) {
            top = finer_steps(largest + g, h->span, size, squares, finer);
            step[s] = top / (127 << FINEST);
        }
        const int32_t bits = FINEST - finer[i];
        const float by = top > 0 ? 127 / top * (float)(1 << finer[i]) : 0;
        const int32_t sum = (int32_t)quantize_group(x + at, code + width * at, size, by, width);
        uneven[s] |= finer[i];
        begin[g][0] = -lift * sum, begin[g][1] = bits;
        total[g] = (int16_t)(sum * (1 << bits));
    }
    char *fields = code + width * depth;
    memcpy(fields, step, sizeof step), fields += sizeof step;
    memcpy(fields, uneven, sizeof uneven), fields += sizeof uneven;
    memcpy(fields, begin, sizeof begin), fields += sizeof begin;
    memcpy(fields, total, sizeof total);
}

INTERNAL void to_groups(factor *x, int64_t depth, const Grouped *h) {
    if (in_whole_numbers(h)) {
        to_spans(x, depth, h);
        return;
    }
    const int64_t size = h->group, groups = depth / size, width = width_of(h);
    const int lift = lift_of(h);
    float step[groups], moment[groups];
    int32_t begin[groups];
    char *code = (char *)x;
    for (int64_t g = 0; g < groups; g++) {
        const float top = largest_of(x + g * size, size);
        const float by = top > 0 ? 127 / top : 0;
        const float sum = quantize_group(x + g * size, code + width * g * size, size, by, width);
        begin[g] = -lift * (int32_t)sum;
        step[g] = top / 127, moment[g] = step[g] * sum;
    }
    char *fields = code + width * depth;
    memcpy(fields, step, sizeof step), fields += sizeof step;
    memcpy(fields, begin, sizeof begin), fields += sizeof begin;
    memcpy(fields, moment, sizeof moment);
}
