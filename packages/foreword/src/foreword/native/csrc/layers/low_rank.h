/* What adapters add to products of packed matrices: up (down x), of low rank (low_rank.c).
 *
 * `which` is one of a layer's packed matrices (model.h). Rows without an adapter keep their bits.
 */
#ifndef FOREWORD_LOW_RANK_H
#define FOREWORD_LOW_RANK_H

#include "../foreword.h"
#include "../products/product.h"

/* Compute the sums of row r of `x` for a product, then quantize the row as the matrix needs. */
INTERNAL void ready_row(const Model *m, const Forward *f, const Layer *layer, int which, factor *x,
                        int64_t depth, int64_t r);

/* Multiply, and add to the rows of adapters, with all threads of the forward. */
INTERNAL void adapted_product(const Model *m, const Forward *f, const Layer *layer, int which,
                              const Product *given, Worker *w);

#endif
