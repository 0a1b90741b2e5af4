/* ---- products: x [rows, depth] times a packed weight. A panel is 32 outputs, [depth / 2][32][2], stored
 * in the order it is read: one stream is faster than several. The last panel may have 16. */

#define PANEL (2 * LANES)
#ifdef BF16_PRODUCTS
#define FETCHED 8192 /* bytes of prefetch distance; best on a Zen 5 */
#else
#define FETCHED 1024 /* best on a Xeon without bfloat16 instructions */
#endif

enum { STORE, ADD, GATE };

/* The header of a matrix in groups (groups.c). */
enum { NO_FIELD, BF16_FIELD, F16_FIELD, F32_FIELD, FACTOR_FIELD, ZERO_FIELD }; /* how a strip stores scales or offsets; FACTOR: bytes times the span's number; ZERO: bytes times the scale */

typedef struct {
    int64_t bits; /* of a code; 16: no groups, bfloat16 panels follow */
    int64_t group, span; /* depths of a group; groups of a span */
    int64_t scale, offset; /* kinds of fields */
    int64_t strip, matrix; /* bytes of a strip; of the whole matrix with its header */
    int8_t level[16]; /* of each code of 4 bits */
    char unused[56]; /* 128 bytes in all */
} Grouped;

typedef struct {
    const factor *x;
    const void *weight;
    int64_t rows, depth, outputs;
    int kind;
    float *to;         /* STORE, ADD: [rows, outputs] */
    const float *bias; /* NULL = none */
    factor *gated;     /* GATE: [rows, outputs / 2]; half of a panel is gate, half is up */
    int64_t coding, activation;
    float scale;  /* ADD: factor of the product */
    int64_t stored; /* outputs to store, all but some of the last 16; 0 = all */
    const float *steps; /* BYTES: [rows], scales of the quantized rows */
    const Grouped *grouped; /* GROUPS: its header, which `stored` sets */
} Product;

/* Store 16 sums of a row. */
INLINE void put_sums(const Product *p, int64_t row, int64_t column, floats sum) {
    const int64_t stored = p->stored ? p->stored : p->outputs;
    float *to = p->to + row * stored + column;
    if (p->bias) sum = add(sum, load(p->bias + column));
    if (p->kind == ADD) sum = fused(sum, all(p->scale), load(to));
    store_first(to, sum, stored - column);
}

/* Store P times 16 sums of a row; with GATE the first 16 are the gate of the others. Passed one by one: if an array is
 * indexed by a runtime value, gcc keeps it in memory and writes it in every iteration of the product loop. */
INLINE void finish(const Product *p, int64_t row, int64_t column, floats first, floats last, const int P) {
    if (p->kind == GATE) {
        if (p->bias) first = add(first, load(p->bias + column)), last = add(last, load(p->bias + column + LANES));
        store_factors(p->gated + row * (p->outputs / 2) + column / 2, gated_by(first, last, p->activation));
        return;
    }
    put_sums(p, row, column, first);
    if (P == 2) put_sums(p, row, column + LANES, last);
}

/* Passes over a panel for `rows` rows: registers may not hold the sums of both halves. */
INLINE int sides_of(int rows, int P) { return P == 2 && rows * P > SUMS ? 2 : 1; }

/* R rows by P times 16 outputs. `later` is where this pass prefetches the next panel, a share of it per pass; NULL = a single
 * pass, which prefetches its own panel. */
INLINE void tile(const Product *p, int64_t row, int64_t panel, const char *later, const int R, const int P) {
    const bf16 *w = (const bf16 *)p->weight + panel * PANEL * p->depth;
    const factor *x = p->x + row * p->depth;
    floats sum[MOST_TILED][2]; /* R by P are used; a constant size keeps them in registers */
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) sum[r][i] = all(0);
    const int side = P / sides_of(R, P);
#pragma GCC unroll 2
    for (int from = 0; from < P; from += side)
        for (int64_t k = 0; k < p->depth / 2; k++) {
            pairs weight[2];
#pragma GCC unroll 2
            for (int i = from; i < from + side; i++) {
                const bf16 *at = w + (k * P + i) * 2 * LANES;
                weight[i] = load_pairs(at);
                if (!later) prefetch(at + FETCHED);
            }
            if (later) prefetch_behind(later + (from * p->depth / 2 + k) * 64);
            const factor *near = x + 2 * k; /* a pointer per three rows: gcc has no registers for twelve, and moves them through vectors */
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                if (r && r % 3 == 0) near += 3 * p->depth;
                if (r % 3 == 0) AS_IT_IS(near);
#pragma GCC unroll 2
                for (int i = from; i < from + side; i++) sum[r][i] = dot(sum[r][i], weight[i], near + r % 3 * p->depth);
            }
        }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) finish(p, row + r, panel * PANEL, sum[r][0], sum[r][P - 1], P);
}

#define ROWS(n) case n: if (n > MOST_TILED) break; else if (!whole) tile(p, row, panel, 0, n, 1); else if (later) tile(p, row, panel, later, n, 2); else tile(p, row, panel, 0, n, 2); break;
static void tiled(const Product *p, int64_t row, int64_t panel, const char *later, int rows) {
    const int whole = (panel + 1) * PANEL <= p->outputs;
    switch (rows) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) }
}
