/* What a layer does with single rows, between its products (rows.c). `r` is a row of the forward.
 */
#ifndef FOREWORD_ROWS_H
#define FOREWORD_ROWS_H

#include "../foreword.h"

/* The embedding of row r, or what an image puts in its place; its given hidden state; and what
 * images add before layer `l`. */
INTERNAL void embed(const Model *m, const Forward *f, int64_t r);
INTERNAL void resume(const Model *m, const Forward *f, int64_t r);
INTERNAL void add_image(const Model *m, const Forward *f, int64_t l, int64_t r);

/* The normed embedding of row r, and its normed given state, as input of a product. */
INTERNAL void join_input(const Model *m, const Forward *f, int64_t r);

/* Norm row r, as input of a product. */
INTERNAL void norm_row(const Model *m, const Forward *f, const float *weight, const float *bias,
                       int64_t r, factor *to);

/* Norm the output of half a layer for row r, in `wide`, and add it to the row. */
INTERNAL void add_normed(const Model *m, const Forward *f, const float *norm, int64_t r);

/* Quantize row r of `x` for a product with this matrix, if it needs that. */
INTERNAL void quantize_row(const Model *m, const Forward *f, const void *matrix, factor *x,
                           int64_t depth, int64_t r);

/* Inputs of attention, of numbers `depth_of`; of the MLP; and of the head. */
static inline int64_t depth_of(const Model *m, const Layer *layer) {
    return layer->given_norm ? 2 * m->hidden : m->hidden;
}
INTERNAL void attention_input(const Model *m, const Layer *layer, const Forward *f, int64_t r);
INTERNAL void mlp_input(const Model *m, const Layer *layer, const Forward *f, int64_t r);
INTERNAL void head_input(const Model *m, const Forward *f, int64_t r, factor *to);

/* Whether the output of attention stays in `wide` until the MLP has read the row. */
static inline int defers_add(const Model *m, const Layer *layer) {
    return m->parallel && !layer->skipped;
}

/* Norm the queries and keys of a row, each over all heads. */
INTERNAL void norm_broadly(const Model *m, const Layer *layer, const Forward *f, int64_t r);

/* Rotate queries and keys, and write keys and values to the pool: one kv head and 16 rows from
 * `row` on. Rows share cache lines of the pool, so one thread writes them, usually the one that
 * reads them in attention. */
INTERNAL void rotate_and_write(const Model *m, const Layer *layer, const Forward *f, int64_t kv,
                               int64_t row);

/* Multiply the attention output of row r by the sigmoid of the gates stored behind its queries. */
INTERNAL void gate_attention(const Model *m, const Forward *f, int64_t r);

/* Activate 16 numbers of an ungated MLP. */
INTERNAL void activate(const Model *m, const Forward *f, factor *to, int64_t at);

/* Whether the input of layer `l` was requested, and its copy; of the head, the input too. */
INTERNAL int wants_hidden(const Forward *f, int64_t l);
INTERNAL void keep_hidden(const Model *m, const Forward *f, int64_t l, int64_t r);
INTERNAL void keep_last_hidden(const Model *m, const Forward *f, int64_t r);

/* Scale and cap the logits of one row. */
INTERNAL void shape_logits(const Model *m, float *logits);

#endif
