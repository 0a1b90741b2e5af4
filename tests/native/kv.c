/* What test_kv.py runs: attention over keys and values in 8 bits, and over bfloat16 ones that were rounded to 8 bits by a
 * plain definition. Arguments: heads, kv heads, numbers of a head, window, whether to use matrix registers. Says the first
 * output that differs, else "equal".
 */
#include <foreword.c>
#include <stdio.h>

enum { LENGTH = 340, PAST = 270, PAGES = 7 };

static uint32_t drawn = 1;
static float draw(void) { return (float)((drawn = drawn * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1; } /* in [-1, 1) */

static float nearest(float x) { /* bfloat16, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void round_to_bytes(float *x, int64_t count) {
    float top = 0;
    for (int64_t i = 0; i < count; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    const float scale = top / 127, by = top > 0 ? 127 / top : 0;
    for (int64_t i = 0; i < count; i++) x[i] = nearest(rintf(x[i] * by) * scale);
}

typedef struct {
    Model m;
    Layer layer;
    bf16 *page[PAGES];
    factor *to;
} Side;

static Side side(Model m, int64_t window, int64_t row_numbers, int64_t coding) {
    Side s = {.m = m, .layer = {.keys = 0, .values = PAGE * m.kv_heads * row_numbers, .window = window}};
    for (int p = 0; p < PAGES; p++) s.page[p] = calloc(2 * PAGE * m.kv_heads * row_numbers, coding == BYTES ? 1 : sizeof(bf16));
    s.m.kv_coding = coding, s.to = calloc(LENGTH * m.heads * m.dim, sizeof(factor));
    return s;
}

static void attend_all(Side *s, Forward f, bf16 *unpacked) {
    Unpacked own = {.pages = unpacked};
    const int64_t tile = attends_in_registers(&s->m) ? MOST_QUERIES : QUERIES;
    f.page = s->page, f.narrow = s->to;
    for (int64_t u = 0; u < units_of(&s->m, f.span, tile); u++) attend(&s->m, &s->layer, &f, u, tile, f.scores, &own, 0);
}

/* Tiles that unpack what they read, then tiles that share a head that was unpacked. */
static void compare(Side *bytes, Side *whole, Forward f, const char *what) {
    const int64_t count = f.rows * whole->m.heads * whole->m.dim;
    bf16 *room = malloc(2 * PAGES * PAGE * whole->m.dim * sizeof *room);
    attend_all(whole, f, 0);
    for (int shared = 0; shared < 2; shared++) {
        attend_all(bytes, f, shared ? room : 0);
        for (int64_t i = 0; i < count; i++)
            if (memcmp(bytes->to + i, whole->to + i, sizeof *whole->to)) {
                printf("%s%s: output %ld of %ld differs\n", what, shared ? ", shared" : "", (long)i, (long)count);
                exit(0);
            }
    }
    free(room);
}

int main(int argc, char **argv) {
    int64_t given[5];
    for (int i = 0; i < 5; i++) given[i] = i + 1 < argc ? atoi(argv[i + 1]) : 0;
    foreword_use_amx((int)given[4]);
    const Model m = {.layers = 1, .heads = given[0], .kv_heads = given[1], .dim = given[2], .scale = 0.3f};
    Side bytes = side(m, given[3], m.dim + 4, BYTES), whole = side(m, given[3], m.dim, WHOLE);
    bytes.m.layer = &bytes.layer, whole.m.layer = &whole.layer;
    const int64_t pages[] = {4, 1, 6, 0, 2, 5}, rows = LENGTH - PAST; /* in no order */
    Span span = {.stop = rows, .past = PAST, .first_chain = rows, .pages = pages};
    Forward f = {.rows = rows, .spans = 1, .span = &span, .longest = 2 * LENGTH, .scores = malloc(MOST_QUERIES * 2 * LENGTH * sizeof(float))};
    float *numbers = malloc(LENGTH * wide_of(&m) * sizeof *numbers);
    for (int64_t r = 0; r < LENGTH; r++) {
        float *row = numbers + r * wide_of(&m), *key = row + m.heads * m.dim;
        for (int64_t i = 0; i < wide_of(&m); i++) row[i] = draw() * (i % 7 == 3 ? 9 : 1);
        if (r == 11) memset(key, 0, 2 * m.kv_heads * m.dim * sizeof *key);
        f.page = bytes.page;
        for (int64_t h = 0; h < m.kv_heads; h++) write_kv(&bytes.m, &bytes.layer, &f, &span, key + h * m.dim, r, h);
        for (int64_t h = 0; h < 2 * m.kv_heads; h++) round_to_bytes(key + h * m.dim, m.dim);
        f.page = whole.page;
        for (int64_t h = 0; h < m.kv_heads; h++) write_kv(&whole.m, &whole.layer, &f, &span, key + h * m.dim, r, h);
    }
    f.wide = numbers + PAST * wide_of(&m);
    compare(&bytes, &whole, f, "chain");
    int32_t parents[LENGTH];
    for (int i = 0; i < LENGTH; i++) parents[i] = i < 3 ? -1 : i < 40 ? i - 1 - i % 3 : i - 33; /* 33 apart: at the same place of a block */
    span.first_chain = 4, span.parents = parents;
    compare(&bytes, &whole, f, "tree");
    span.first_chain = rows, span.parents = 0;
    for (int64_t r = 0; r < 40; r++) { /* within a page and to another one; counted over the pool */
        const int64_t from = pages[(PAST - 6 * r) / PAGE] * PAGE + (PAST - 6 * r) % PAGE, to = pages[7 * r / PAGE] * PAGE + 7 * r % PAGE;
        foreword_move(&bytes.m, bytes.page, from, to), foreword_move(&whole.m, whole.page, from, to);
    }
    compare(&bytes, &whole, f, "moved");
    puts("equal");
}
