/* Products of rows and packed weights: x [rows, depth] times a weight [outputs, depth].
 *
 * A packed weight is panels of 32 outputs, of which the last may have 16, stored in the order they
 * are read: one stream is faster than several. A coding says how the numbers of a panel are stored,
 * and how rows are multiplied by it.
 */
#ifndef FOREWORD_PRODUCT_H
#define FOREWORD_PRODUCT_H

#include "../activations.h"
#include "../foreword.h"
#include "../threads.h"

#define PANEL (2 * LANES)
#define QUAD 4 /* consecutive depths of an output, where codes are bytes or smaller */

/* What becomes of a product: it is stored, or added, or its halves are a gate and its input. */
enum { STORE, ADD, GATE };

typedef struct {
    const factor *x;
    const void *weight;
    int64_t rows, depth, outputs;
    int kind;
    float *to;         /* STORE, ADD: [rows, outputs] */
    const float *bias; /* NULL = none */
    factor *gated;     /* GATE: [rows, outputs / 2]; half of a panel is gate, half is up */
    int64_t coding, activation;
    float scale;            /* ADD: factor of the product */
    int64_t stored;         /* outputs to store, all but some of the last 16; 0 = all */
    const float *steps;     /* BYTES: [rows], scales of the quantized rows */
    int64_t portable;       /* WHOLE: by fused operations alone */
    const int32_t *pairs;   /* of panels, which are multiplied alone; NULL = all */
    const Grouped *grouped; /* GROUPS: its header; `stored` sets it, and the next one */
    const struct Coding *by;
} Product;

/* State of a thread during a product (amx.h). */
typedef struct Matrices Matrices;

/* Multiply some rows by a panel. `later` is where this pass prefetches the next panel; NULL = it is
 * the only one. */
typedef void Tile(const Product *p, int64_t row, int64_t panel, const char *later);

/* Multiply the rows [row, last) by the panels from `panel` on that are taken together; prefetch
 * `next`. */
typedef void Turn(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel,
                  const char *next);

/* How the products of one coding are computed. A new coding is an entry of `coding_of` (product.c).
 */
typedef struct Coding {
    Turn *turn;
    int64_t (*bytes)(const Product *p, int64_t outputs); /* of so many outputs, whole panels */
    /* In vector registers, where `turn` is in_passes: */
    Tile *const *tile; /* [most]: tile[n - 1] multiplies n rows */
    int most;          /* rows of one pass */
    int alone;         /* rows up to which a single pass is fastest */
    /* In matrix registers: */
    int64_t pair; /* rows up to which two panels are taken together; 0 = never */
    /* Rows that do not fit in the cache are taken in bands, and `put_due` ends a chunk. */
    int banded;
} Coding;

/* make(1) make(2) ... make(most): functions that know their number of rows, which keeps sums in
 * registers. */
#define FOR_ROWS(most, make) FOR_ROWS_(most, make)
#define FOR_ROWS_(most, make) FOR_ROWS_##most(make)
#define FOR_ROWS_2(make) make(1) make(2)
#define FOR_ROWS_4(make) FOR_ROWS_2(make) make(3) make(4)
#define FOR_ROWS_6(make) FOR_ROWS_4(make) make(5) make(6)
#define FOR_ROWS_8(make) FOR_ROWS_6(make) make(7) make(8)
#define FOR_ROWS_12(make) FOR_ROWS_8(make) make(9) make(10) make(11) make(12)

/* Bytes of so many outputs: bfloat16; scales and codes of 8 bits; whole strips. */
static inline int64_t whole_bytes(const Product *p, int64_t outputs) {
    return outputs * p->depth * (int64_t)sizeof(bf16);
}
static inline int64_t byte_bytes(const Product *p, int64_t outputs) {
    return outputs * (p->depth + (int64_t)sizeof(float));
}
static inline int64_t group_bytes(const Product *p, int64_t outputs) {
    return outputs / LANES * p->grouped->strip;
}

DECLARED const Coding whole_coding; /* whole.c */
#ifdef BF16_PRODUCTS
DECLARED const Coding plain_coding; /* the same by fused operations */
#endif
DECLARED const Coding byte_coding;  /* int8.c */
DECLARED const Coding group_coding; /* groups.c */

/* The turn of every coding in vector registers: a panel times all rows, in passes of equal size. */
INTERNAL Turn in_passes;

/* Fill in what the header of a matrix says, and how it is multiplied. Again after `rows` changes.
 */
INTERNAL Product stored(const Product *p);

/* Quantize a row in place, as the matrix that it is multiplied by needs. */
INTERNAL void quantize_for(const void *matrix, int64_t coding, factor *x, int64_t depth,
                           float *step);

/* Multiply, with all threads of the forward. */
INTERNAL void product(const Product *given, Worker *w);

/* Turns of a chunk, each of `side` panels; two panels at least, so that one prefetches the next. */
static inline int64_t turns_of_chunk(int64_t turns, int64_t side, int threads) {
    return threads == 1 ? turns : at_least(parts_of(turns, CHUNKS * threads), 2 / side);
}

/* Panels multiplied together, rows multiplied together, and where a panel starts. */
static inline int64_t side_of(const Product *p) { return p->rows <= p->by->pair ? 2 : 1; }
INTERNAL int64_t band_of(const Product *p);
/* Row `row` of a matrix of a GGUF file, of this type (strips.c), rounded to bfloat16. */
INTERNAL void unpack_row(int kind, const void *rows, int64_t row, int64_t depth, float *to);
/* Where a panel is stored among all panels of the weight. */
static inline int64_t place_of(const Product *p, int64_t panel) {
    return p->pairs ? 2 * p->pairs[panel / 2] + panel % 2 : panel;
}
static inline const char *panel_at(const Product *p, int64_t panel) {
    return (const char *)p->weight + place_of(p, panel) * p->by->bytes(p, PANEL);
}

/* Store 16 sums of a row; the biases of all panels are stored, as their weights are. */
INLINE void put_sums(const Product *p, int64_t row, int64_t column, floats sum) {
    const int64_t stored = p->stored ? p->stored : p->outputs;
    float *to = p->to + row * stored + column;
    if (p->bias)
        sum = add(sum, load(p->bias + place_of(p, column / PANEL) * PANEL + column % PANEL));
    if (p->kind == ADD) sum = fused(sum, all(p->scale), load(to));
    store_first(to, sum, stored - column);
}

/* Store P times 16 sums of a row; with GATE the first 16 are the gate of the others. Passed one by
 * one: if an array is indexed by a runtime value, gcc keeps it in memory and writes it in every
 * iteration of the product loop. */
INLINE void finish(const Product *p, int64_t row, int64_t column, floats first, floats last,
                   const int P) {
    if (p->kind == GATE) {
        if (p->bias)
            first = add(first, load(p->bias + column)),
            last = add(last, load(p->bias + column + LANES));
        store_factors(p->gated + row * (p->outputs / 2) + column / 2,
                      gated_by(first, last, p->activation));
        return;
    }
    put_sums(p, row, column, first);
    if (P == 2) put_sums(p, row, column + LANES, last);
}

/* Passes over a panel for `rows` rows: registers may not hold the sums of both halves. */
INLINE int sides_of(int rows, int P) { return P == 2 && rows * P > SUMS ? 2 : 1; }

#endif
