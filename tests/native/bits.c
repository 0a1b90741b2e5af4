/* What test_simd.py compiles for each kind of processor: everything that promises equal bits on all of them, from the same
 * numbers, many of which lie at exact halves of a step. Says a line for each: its name, and a hash of its results.
 */
#ifdef EMULATED
#include "matrices.h"
#endif
#include <foreword.c>
#include <sampling.c>
#include <stdio.h>

enum { OUTPUTS = 48, DEPTH = 512, ROWS = 5, GROUP = 32, DIM = 64 };

static uint64_t hash = 0xcbf29ce484222325u;
static void add_to_hash(const void *from, size_t bytes) { /* FNV-1a */
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)from)[i]) * 0x100000001b3u;
}
static void say(const char *name) { printf("%s: %016llx\n", name, (unsigned long long)hash), hash = 0xcbf29ce484222325u; }

static uint32_t drawn_bits = 1;
static uint32_t draw_bits(void) { return drawn_bits = drawn_bits * 1664525u + 1013904223u; }
static float draw(void) { return (float)(draw_bits() >> 8) / (1 << 23) - 1; } /* in [-1, 1) */

static float as_bf16(float x) { /* towards zero */
    uint32_t raw;
    memcpy(&raw, &x, sizeof raw);
    raw &= 0xffff0000u;
    memcpy(&x, &raw, sizeof x);
    return x;
}

/* Numbers of which the first is the largest, and one in four an exact fraction of it: the half of 127 steps ends in one half. */
static void fill(float *x, int64_t n, float size) {
    const float top = as_bf16(size * (1 + draw() / 4));
    for (int64_t i = 0; i < n; i++) x[i] = i % 4 ? as_bf16(draw() * top) : top / (float)(1 << i / 4 % 9);
    for (int64_t i = 0; i < n; i++) x[i] = i && draw() < 0 ? -x[i] : x[i];
}

/* Random weights, quantized; and their bytes. */
static uint8_t *weights(int coding, int64_t *bytes) {
    static bf16 panels[OUTPUTS * DEPTH];
    float row[DEPTH];
    drawn_bits = 1;
    for (int64_t o = 0; o < OUTPUTS; o++) {
        const int64_t first = o / PANEL * PANEL, wide = OUTPUTS - first < PANEL ? LANES : PANEL;
        fill(row, DEPTH, 0.1f);
        for (int64_t k = 0; k < DEPTH; k += LANES) {
            bf16 each[LANES];
            narrow_store(each, load(row + k));
            for (int64_t i = k; i < k + LANES; i++) panels[first * DEPTH + (i / 2 * wide + o - first) * 2 + i % 2] = each[i - k];
        }
    }
    *bytes = foreword_coded_bytes(OUTPUTS, DEPTH, coding);
    uint8_t *made = calloc((size_t)*bytes + 65536, 1);
    foreword_quantize(panels, made, OUTPUTS, DEPTH, coding);
    return made;
}

static int uneven; /* whether the numbers of a row change their size after every 16 */

static factor *rows(void) {
    static factor made[ROWS * DEPTH];
    float row[DEPTH];
    drawn_bits = 2;
    for (int64_t r = 0; r < ROWS; r++) {
        fill(row, DEPTH, 3);
        for (int64_t i = 0; uneven && i < DEPTH; i++) row[i] *= (float)(1 << i / 16 * 5 % 6) / 8;
        for (int64_t i = 0; i < DEPTH; i += LANES) store_factors(made + r * DEPTH + i, load(row + i));
    }
    return made;
}

static int wrong_bound(uint32_t word) {
    const float exact = gumbel(word), near = gumbel_near(word);
    return exact > gumbel_bound(word) || exact > near || near > exact + 1e-5f;
}

static void noise(void) {
    enum { VOCAB = 5003 };
    static float out[3 * VOCAB];
    foreword_gumbel((uint64_t[]){0, 7, 4611686018427400249}, (int64_t[]){0, 9, 1u << 31}, (int64_t[]){1, 81, 17}, (int64_t[]){0, 3, 1}, 3, VOCAB, out);
    add_to_hash(out, sizeof out), say("noise");
    volatile uint32_t word = 1581221855u; /* of all words the one that fused operations round to another float32 */
    const float nearly = (float)-ln(-ln((word + 0.5) * 0x1p-32));
    add_to_hash(&nearly, sizeof nearly), say("noise of the word nearest to a tie");
    int wrong = 0; /* a bound must hold of every word: of some in each part, the largest and those nearest to it */
    for (uint64_t w = 0; w < 1ull << 32; w += 9973) wrong += wrong_bound((uint32_t)w);
    for (uint32_t w = 0; w < 4096; w++) wrong += wrong_bound(w) + wrong_bound(~w);
    wrong += wrong_bound(4247775793u) + wrong_bound(3036166274u); /* nearest to gumbel_near's limits */
    add_to_hash(&wrong, sizeof wrong), say("bounds of the noise that do not hold");
    float logits[VOCAB], best[9];
    int64_t places[9];
    for (int i = 0; i < VOCAB; i++) logits[i] = 4 * draw();
    const uint64_t key = foreword_extend(7, (int64_t[]){3, 8191}, 2);
    foreword_follow(logits, &key, 0.7f, VOCAB, NULL, NULL, 0, NULL, places), add_to_hash(places, sizeof *places);
    foreword_best(logits, 1, VOCAB, 9, best, places), add_to_hash(best, sizeof best), add_to_hash(places, sizeof places), say("draws");
}

/* Quantize rows for a matrix, and multiply_coded it by them. */
static void multiply_coded(const void *weight, int64_t coding, const char *name) {
    float to[ROWS * OUTPUTS], steps[ROWS];
    factor *x = rows();
    for (int r = 0; r < ROWS; r++) quantize_for(weight, coding, x + r * DEPTH, DEPTH, steps + r);
    if (coding == BYTES) add_to_hash(steps, sizeof steps);
    const Product given = {x, weight, ROWS, DEPTH, OUTPUTS, STORE, to, .coding = coding, .steps = steps}, p = stored(&given);
    Matrices m;
    begin_product(&m);
    for (int64_t panel = 0; panel < parts_of(OUTPUTS, PANEL); panel++)
        p.by->turn(&p, &m, 0, ROWS, panel, weight);
    add_to_hash(to, sizeof to), say(name);
}

static char *put_numbers(char *to, int64_t kind) {
    float each[LANES];
    uint16_t half[LANES];
    for (int i = 0; i < LANES; i++) each[i] = draw() / 64, half[i] = (uint16_t)(0x2000 | (draw_bits() >> 16 & 0x87ff)); /* the last are float16 */
    if (kind == BF16_FIELD) store_halves((bf16 *)to, narrow(load(each)));
    else if (kind == F16_FIELD) memcpy(to, half, sizeof half);
    else if (kind == F32_FIELD) memcpy(to, each, sizeof each);
    else for (int i = 0; i < LANES; i++) to[i] = (char)(draw_bits() >> 24);
    return to + (kind == F32_FIELD ? 64 : kind == BF16_FIELD || kind == F16_FIELD ? 32 : kind == NO_FIELD ? 0 : 16);
}

/* Levels of 4 bits that need all of a byte. */
static const int8_t FULL_RANGE[16] = {-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127};

/* Products with a matrix as files have them: random codes in groups, with scales and offsets of these kinds. */
static void multiply_file(int64_t bits, int64_t scale, int64_t offset, const char *name) {
    const int64_t groups = DEPTH / GROUP, span = 4, factors = (scale == FACTOR_FIELD) + (offset == FACTOR_FIELD);
    char *made = calloc(OUTPUTS * DEPTH * 4, 1), *to = made + sizeof(Grouped);
    Grouped h = {.bits = bits == 4 ? 4 : 8, .group = GROUP, .span = factors ? span : 0, .scale = scale, .offset = offset};
    h.most = (1 << (bits - 1)) - 1, h.least = -h.most - 1;
    if (bits == 4) memcpy(h.level, FULL_RANGE, sizeof FULL_RANGE), h.least = FULL_RANGE[0], h.most = FULL_RANGE[15];
    drawn_bits = 4;
    for (int strip = 0; strip < OUTPUTS / LANES; strip++)
        for (int64_t g = 0; g < groups; g++) {
            for (int i = 0; g % span == 0 && i < factors; i++) to = put_numbers(to, F32_FIELD);
            to = put_numbers(put_numbers(to, scale), offset);
            for (int64_t i = 0; i < GROUP * LANES * h.bits / 8; i++) *to++ = bits == 4 ? (char)(draw_bits() >> 24) : (char)((int32_t)draw_bits() >> (32 - bits));
        }
    h.strip = (to - made - (int64_t)sizeof h) / (OUTPUTS / LANES), h.matrix = to - made;
    memcpy(made, &h, sizeof h);
    multiply_coded(made, GROUPS, name);
}

/* Products with a matrix whose groups are added up in whole numbers: consecutive levels from `least` on. */
static void multiply_spans(int64_t bits, int64_t group, int64_t span, int64_t least, int64_t offset, const char *name) {
    const int64_t groups = DEPTH / group;
    char *made = calloc(OUTPUTS * DEPTH * 4, 1), *to = made + sizeof(Grouped);
    Grouped h = {.bits = bits, .group = group, .span = span, .scale = FACTOR_FIELD, .offset = offset, .least = least, .most = least + (1 << bits) - 1, .counted = 1};
    for (int i = 0; i < 16; i++) h.level[i] = (int8_t)(least + i);
    drawn_bits = 6;
    for (int strip = 0; strip < OUTPUTS / LANES; strip++)
        for (int64_t g = 0; g < groups; g++) {
            for (int i = 0; g % span == 0 && i < (offset ? 2 : 1); i++) to = put_numbers(to, F32_FIELD);
            to = put_numbers(put_numbers(to, FACTOR_FIELD), offset);
            for (int64_t i = 0; i < group * LANES * bits / 8; i++) *to++ = (char)(draw_bits() >> 24);
        }
    h.strip = (to - made - (int64_t)sizeof h) / (OUTPUTS / LANES), h.matrix = to - made;
    memcpy(made, &h, sizeof h);
    multiply_coded(made, GROUPS, name);
}

static void keys_and_values(void) {
    enum { HEADS = 2 };
    const Model m = {.layers = 1, .heads = HEADS, .kv_heads = HEADS, .dim = DIM, .kv_coding = BYTES};
    const Layer layer = {.values = PAGE * HEADS * (DIM + 4)};
    bf16 *page = calloc(2 * PAGE * HEADS * (DIM + 4), 1), *room = malloc(2 * PAGE * DIM * sizeof *room);
    const Forward f = {.page = &page};
    const int64_t first = 0;
    const Span span = {.pages = &first};
    float row[2 * HEADS * DIM];
    drawn_bits = 3;
    for (int64_t r = 0; r < PAGE; r++) {
        for (int i = 0; i < 2 * HEADS; i++) fill(row + i * DIM, DIM, 2);
        for (int64_t h = 0; h < HEADS; h++) write_kv(&m, &layer, &f, &span, row + h * DIM, r, h);
    }
    add_to_hash(page, 2 * PAGE * HEADS * (DIM + 4)), say("keys and values in 8 bits");
    for (int64_t h = 0; h < HEADS; h++) unpack_head(&m, &layer, &f, &span, 0, PAGE, h, room), add_to_hash(room, 2 * PAGE * DIM * sizeof *room);
    say("keys and values read from 8 bits");
}

/* Functions of one number, also where their whole part is nearly at a half. */
static void functions(void) {
    float out[6][LANES];
    for (int i = -80; i < 80; i++) {
        float x[LANES];
        for (int k = 0; k < LANES; k++) x[k] = ((float)i + 0.5f) * 0.69314718f * (1 + (float)(k - 8) * 0x1p-23f);
        const floats a = load(x), b = sub(all(1), a);
        store(out[0], vexp(a)), store(out[1], sigmoid(a)), store(out[2], capped(a, 30)), store(out[3], normal_gate(a));
        store(out[4], gated_by(a, b, SILU)), store(out[5], gated_by(a, b, CLAMPED));
        add_to_hash(out, sizeof out);
    }
    say("exponentials");
}

static void rotations(void) {
    float x[DIM], cos[DIM], sin[DIM];
    drawn_bits = 5;
    for (int64_t rotary_dim = 24; rotary_dim <= DIM; rotary_dim += 40) { /* 24: 12 pairs, fewer than a vector's */
        for (int i = 0; i < DIM; i++) x[i] = draw(), cos[i] = draw(), sin[i] = draw();
        apply_rotary(x, cos, sin, rotary_dim);
        add_to_hash(x, sizeof x);
    }
    say("rotations");
}

int main(void) {
    int64_t bytes;
    foreword_use_amx(0); /* stores quantized rows in another order */
    noise();
    uint8_t *bytes_coded = weights(BYTES, &bytes);
    add_to_hash(bytes_coded, (size_t)bytes), say("weights in 8 bits");
    multiply_coded(bytes_coded, BYTES, "products in 8 bits");
#ifdef EMULATED
    matrix_registers = 1;
#endif
    uint8_t *nibbles = weights(GROUPS, &bytes);
    add_to_hash(nibbles, (size_t)bytes), say("weights in 4 bits");
    multiply_coded(nibbles, GROUPS, "products in 4 bits");
    multiply_file(4, BF16_FIELD, NO_FIELD, "products in 4 bits, scales in bfloat16");
    multiply_file(8, F16_FIELD, NO_FIELD, "products in 8 bits, scales in float16");
    multiply_file(6, F16_FIELD, NO_FIELD, "products in 6 bits, scales in float16");
    multiply_file(4, F32_FIELD, F32_FIELD, "products in 4 bits, scales and offsets in float32");
    multiply_file(4, FACTOR_FIELD, FACTOR_FIELD, "products in 4 bits, scales of two levels");
    multiply_file(4, F16_FIELD, ZERO_FIELD, "products in 4 bits, zero points");
    uneven = 1;
    multiply_spans(4, 32, 8, 0, FACTOR_FIELD, "products in 4 bits, spans in whole numbers");
    multiply_spans(5, 32, 8, 0, FACTOR_FIELD, "products in 5 bits, spans in whole numbers");
    multiply_spans(6, 16, 16, -32, NO_FIELD, "products in 6 bits, spans in whole numbers");
    multiply_spans(4, 16, 16, -4, FACTOR_FIELD, "products in small groups, spans in whole numbers");
    keys_and_values();
    functions();
    rotations();
}
