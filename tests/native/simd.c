/* What test_simd.py runs on each processor: every operation of simd.h on numbers from standard input, and one forward of a
 * small model with weights of its own making. Results go to standard output, float32 after float32.
 */
#include <stdio.h>
#include <stdlib.h>

#include <foreword.c>

static void say(floats x) {
    float each[LANES];
    store(each, x);
    fwrite(each, sizeof *each, LANES, stdout);
}
static void say_number(float x) { fwrite(&x, sizeof x, 1, stdout); }

/* Sums of levels times four bytes, as this processor computes them. */
static floats summed(codes levels, const int8_t *four) {
#ifdef BYTE_DOTS
    return whole_floats(byte_dot(begun(-LIFT * (four[0] + four[1] + four[2] + four[3])), lifted(levels, LIFT), four));
#else
    const int16_t words[] = {four[0], four[2], four[1], four[3]};
    return whole_floats(word_dot(word_dot(begun(0), even_bytes(levels), two_words(words)), odd_bytes(levels), two_words(words + 2)));
#endif
}

/* Sums of two times levels of 0 to 60, times four bytes each. */
static floats both(codes held, const int8_t *x, const int8_t *y) {
    int8_t each[LANES];
    for (int i = 0; i < LANES; i++) each[i] = (int8_t)(4 * i);
    const codes a = low_levels(table_of(each), held), b = high_levels(table_of(each), held);
#ifdef SHORT_DOTS
    return whole_floats(word_dot(begun(0), plus_words(byte_pairs(a, x), byte_pairs(b, y)), unit_words()));
#else
    return add(summed(a, x), summed(b, y));
#endif
}

static void operations(const float *a, const float *b, const float *c) {
    const floats x = load(a), y = load(b), z = load(c);
    bf16 narrowed[2 * LANES];
    factor factors[LANES];
    int32_t at[LANES];
    for (int i = 0; i < LANES; i++) at[i] = (7 * i + 3) % LANES;
    say(add(x, y)), say(sub(x, y)), say(mul(x, y)), say(quotient(x, y)), say(fused(x, y, z));
    say(maximum(x, y)), say(minimum(x, y)), say(rounded(x)), say(scaled(x, rounded(y))), say(vexp(x)), say(sigmoid(x));
    say(widen(narrow(x))), say(where_above(x, y, z)), say(gathered(a, at)), say(all(a[0]));
    store_halves(narrowed, narrow(x)), store_halves(narrowed + LANES, narrow(y));
    say(even_of(load_pairs(narrowed))), say(odd_of(load_pairs(narrowed)));
    store_factors(factors, z);
    say(load_factors(factors)), say(dot(x, load_pairs(narrowed), factors));
    store_apart(narrowed + 1, narrow(z));
    say(even_of(load_pairs(narrowed))), say(odd_of(load_pairs(narrowed)));
    int8_t stored[4 * LANES], level[LANES], four[4];
    store_bytes(level, rounded(minimum(maximum(x, all(-127)), all(127))));
    for (int i = 0; i < 4 * LANES; i++) stored[i] = (int8_t)(i * 77 + 13);
    memcpy(four, level + 4, sizeof four);
    const codes levels = table_of(level), held = load_codes((const char *)stored);
    say(summed(low_levels(levels, held), four)), say(summed(high_levels(levels, held), four)), say(summed(held, four));
    say(load_signed(stored)), say(load_f16(a));
    int16_t small[LANES];
    store_words((void *)small, rounded(minimum(maximum(x, all(-3e4f)), all(3e4f))));
    counts sums = begun(5), more = begun(0);
    sums = word_dot(sums, even_bytes(held), two_words(small));
    sums = plus(sums, word_dot(more, odd_bytes(held), two_words(small + 2)));
    double total[LANES] = {0};
    add_whole(total, sums), add_whole(total, sums);
    say(whole_floats(sums)), say(rounded_once(total)), say(both(held, four, level));
    say(two_by_turns(a + 3)), say(fused_from(x, y, z)), say(fused_exactly(x, y, z));
    say(summed(either(masked(held, 4, 15), masked(held, -4, 0x30)), four));
    store_halves(narrowed, narrow(x)), store_halves(narrowed + LANES, narrow(y));
    say(even_of(joined(even_of(load_pairs(narrowed)), widen(narrow(z))))), say(odd_of(joined(widen(narrow(z)), odd_of(load_pairs(narrowed)))));
    say_number(sum_of(x)), say_number(maximum_of(x)), say_number((float)above(x, y));
}

static uint32_t drawn = 1;
static float draw(void) { return (float)((drawn = drawn * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1; } /* in [-1, 1) */
static void *packed(int64_t outputs, int64_t depth, int coding) {
    bf16 *plain = aligned_alloc(64, outputs * depth * 2), *made = calloc(outputs * depth + 65536, 2);
    for (int64_t i = 0; i < outputs * depth; i += LANES) {
        float each[LANES];
        for (int k = 0; k < LANES; k++) each[k] = draw() / 8;
        narrow_store(plain + i, load(each));
    }
    foreword_pack(plain, made, outputs, depth);
    if (coding == WHOLE) return made;
    uint8_t *coded_weights = calloc(foreword_coded_bytes(outputs, depth, coding) + 65536, 1);
    foreword_quantize(made, coded_weights, outputs, depth, coding);
    return coded_weights;
}
static float *ones(int64_t n) {
    float *made = malloc(n * sizeof *made);
    for (int64_t i = 0; i < n; i++) made[i] = 1 + draw() / 4;
    return made;
}

enum { HIDDEN = 64, HEADS = 4, KV = 2, DIM = 32, INNER = 96, VOCAB = 112, LAYERS = 2, LENGTH = 40, ACROSS = (HEADS + 2 * KV) * DIM };

/* The logits of all rows, read in steps of `step`. */
static void forward(int coding, int64_t step) {
    drawn = 1;
    Layer layers[LAYERS] = {0};
    float *cos = ones(LENGTH * DIM), *sin = ones(LENGTH * DIM);
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (Layer){
            .qkv = packed(ACROSS, HIDDEN, coding), .out = packed(HIDDEN, HEADS * DIM, coding), .gate_up = packed(2 * INNER, HIDDEN, coding), .down = packed(HIDDEN, INNER, coding),
            .norm = ones(HIDDEN), .mlp_norm = ones(HIDDEN), .qkv_bias = ones(ACROSS), .cos = cos, .sin = sin,
            .keys = 2 * l * PAGE * KV * DIM, .values = (2 * l + 1) * PAGE * KV * DIM,
        };
    const Model m = {
        .layers = LAYERS, .hidden = HIDDEN, .heads = HEADS, .kv_heads = KV, .dim = DIM, .intermediate = INNER, .vocab = VOCAB, .eps = 1e-6f, .scale = 0.2f,
        .table = packed(VOCAB, HIDDEN, WHOLE), .table_rows = VOCAB, .norm = ones(HIDDEN), .head = packed(VOCAB, HIDDEN, coding), .layer = layers, .coding = coding, .rotary_dim = DIM,
    };
    float residual[LENGTH * HIDDEN], wide[LENGTH * ACROSS], steps[LENGTH], *logits = malloc(LENGTH * VOCAB * sizeof(float)), *scores = malloc(2 * MOST_QUERIES * 1024 * sizeof(float));
    factor *narrowed = malloc(LENGTH * (HEADS * DIM + 2 * HIDDEN + INNER) * sizeof(factor));
    bf16 *pages[2] = {0, calloc(2 * LAYERS * PAGE * KV * DIM, sizeof(bf16))};
    const int64_t page = 1; /* LENGTH rows fit into one */
    int64_t tokens[LENGTH], positions[LENGTH], keep[LENGTH];
    for (int64_t i = 0; i < LENGTH; i++) tokens[i] = (i * 37 + 5) % VOCAB, positions[i] = i, keep[i] = i;
    for (int64_t start = 0; start < LENGTH; start += step) {
        const Span span = {.stop = step, .past = start, .first_chain = step, .pages = &page};
        const Forward f = {
            .rows = step, .spans = 1, .kept = step, .tokens = tokens + start, .positions = positions + start, .keep = keep, .span = &span, .logits = logits + start * VOCAB,
            .residual = residual, .wide = wide, .scores = scores, .narrow = narrowed, .steps = steps, .longest = 1024, .page = pages,
        };
        foreword_forward(&m, &f, 2);
    }
    fwrite(logits, sizeof *logits, LENGTH * VOCAB, stdout);
}

/* Products with 8-bit weights, deeper than one stretch. */
static void product_in_bytes(void) {
    enum { OUTPUTS = 48, DEPTH = 2 * STRETCH + 80, ROWS = 5 };
    drawn = 7;
    float to[ROWS * OUTPUTS], steps[ROWS], *from = ones(ROWS * DEPTH);
    factor *rows = malloc(ROWS * DEPTH * sizeof *rows);
    for (int64_t i = 0; i < ROWS * DEPTH; i += LANES) store_factors(rows + i, load(from + i));
    for (int r = 0; r < ROWS; r++) steps[r] = to_integers(rows + r * DEPTH, DEPTH);
    const Product given = {rows, packed(OUTPUTS, DEPTH, BYTES), ROWS, DEPTH, OUTPUTS, STORE, to, .coding = BYTES, .steps = steps}, p = stored(&given);
    Matrices m;
    for (int64_t panel = 0; panel < parts_of(OUTPUTS, PANEL); panel++) p.by->turn(&p, &m, 0, ROWS, panel, p.weight);
    fwrite(to, sizeof to, 1, stdout);
}

/* Products with weights in groups: 4 bits as `foreword_quantize` makes them. */
static void product_in_groups(void) {
    enum { OUTPUTS = 48, DEPTH = 1024, ROWS = 5 };
    drawn = 7;
    float to[ROWS * OUTPUTS], *from = ones(ROWS * DEPTH);
    factor *rows = malloc(ROWS * DEPTH * sizeof *rows);
    for (int64_t i = 0; i < ROWS * DEPTH; i += LANES) store_factors(rows + i, load(from + i));
    const Product given = {rows, packed(OUTPUTS, DEPTH, GROUPS), ROWS, DEPTH, OUTPUTS, STORE, to, .coding = GROUPS}, p = stored(&given);
    for (int r = 0; r < ROWS; r++) to_groups(rows + r * DEPTH, DEPTH, p.grouped);
    Matrices m;
    for (int64_t panel = 0; panel < parts_of(OUTPUTS, PANEL); panel++) p.by->turn(&p, &m, 0, ROWS, panel, p.weight);
    fwrite(to, sizeof to, 1, stdout);
}

int main(void) {
    float numbers[3][LANES];
    foreword_use_amx(0);
    while (fread(numbers, sizeof numbers, 1, stdin)) operations(numbers[0], numbers[1], numbers[2]);
    for (int coding = WHOLE; coding <= GROUPS; coding++) forward(coding, LENGTH), forward(coding, 1);
    product_in_bytes();
    product_in_groups();
}
