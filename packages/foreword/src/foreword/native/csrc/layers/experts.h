/* Experts of a layer, in place of its MLP (experts.c). */
#ifndef FOREWORD_EXPERTS_H
#define FOREWORD_EXPERTS_H

#include "../products/product.h"

/* Experts of a row; outputs of the router, in whole vectors. */
static inline int64_t each_of(const Experts *e) { return e->top_k + e->shared; }
static inline int64_t routed_of(const Experts *e) {
    return parts_of(e->count + e->gated, LANES) * LANES;
}

/* Choose the experts of row r (the first of equals). Router logits become weights in place. */
INTERNAL void route(const Model *m, const Layer *layer, const Forward *f, int64_t r);

/* Assign places to all (row, expert) pairs, grouped by expert; copy the row of a place there. */
INTERNAL void group_by_expert(const Experts *e, int64_t rows, const Routing *a);
INTERNAL void gather_row(const Model *m, const Layer *layer, const Forward *f, int64_t place);

/* Compute the products of all experts; `one` is that of all places and the first expert's weights.
 */
INTERNAL void expert_products(const Model *m, const Routing *a, const Product *one, Worker *w);

/* Add the weighted outputs of the experts of row r, in place of an MLP's output. */
INTERNAL void add_experts(const Model *m, const Layer *layer, const Forward *f, int64_t r);

#endif
