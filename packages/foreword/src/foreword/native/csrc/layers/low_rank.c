#include "low_rank.h"

#include "../attention/attention.h"
#include "rows.h"

#define LOW_PART (16 * PANEL) /* outputs of a row that a thread takes at a time */

/* What the adapter of row r adds to a matrix; NULL = nothing. */
static const LowRank *low_rank_of(const Model *m, const Forward *f, const Layer *layer, int which,
                                  int64_t r) {
    const LowRank *adapter = span_of(f, r)->adapter;
    if (!adapter) return 0;
    adapter += (layer - m->layer) * ADAPTED + which;
    return adapter->first ? adapter : 0;
}

/* The sums of a row, four at a time, each over all depths in one order. */
static void sum_row(const LowRank *a, const factor *x, int64_t depth, float *to) {
    for (int64_t at = 0; at < a->count; at += 4) {
        const float *down = a->down + at * depth;
        floats first = all(0), second = all(0), third = all(0), fourth = all(0);
        for (int64_t i = 0; i < depth; i += LANES, down += LANES) {
            const floats v = load_factors(x + i);
            first = fused(v, load(down), first);
            second = fused(v, load(down + depth), second);
            third = fused(v, load(down + 2 * depth), third);
            fourth = fused(v, load(down + 3 * depth), fourth);
        }
        to[at] = sum_of(first), to[at + 1] = sum_of(second);
        to[at + 2] = sum_of(third), to[at + 3] = sum_of(fourth);
    }
}

INTERNAL void ready_row(const Model *m, const Forward *f, const Layer *layer, int which, factor *x,
                        int64_t depth, int64_t r) {
    const void *const matrix[] = {layer->qkv, layer->out, layer->gate_up, layer->down};
    const LowRank *a = f->sums ? low_rank_of(m, f, layer, which, r) : 0;
    if (a) sum_row(a, x + r * depth, depth, f->sums + r * f->most_sums);
    quantize_row(m, f, matrix[which], x, depth, r);
}

/* What is added to 16 outputs. */
static floats raised(const LowRank *a, const float *sums, int64_t output) {
    const float *up = a->up + output * a->rank, *sum = sums + a->first[output / LANES];
    floats total = all(0);
    for (int64_t i = 0; i < a->rank; i++) total = fused(all(sum[i]), load(up + i * LANES), total);
    return total;
}

/* Add to the outputs of row r from `first` on; gate them if `p` does. */
static void add_low(const Model *m, const Forward *f, const Layer *layer, int which,
                    const Product *p, int64_t r, int64_t first) {
    const LowRank *a = low_rank_of(m, f, layer, which, r);
    const float *sums = f->sums + r * f->most_sums;
    const int64_t last = at_most(first + LOW_PART, p->outputs);
    if (p->kind == GATE) {
        for (int64_t o = first; o < last; o += PANEL) {
            const float *from = f->halves + r * p->outputs + o;
            floats gate = load(from), up = load(from + LANES);
            if (a) gate = add(gate, raised(a, sums, o)), up = add(up, raised(a, sums, o + LANES));
            store_factors(p->gated + r * (p->outputs / 2) + o / 2,
                          gated_by(gate, up, p->activation));
        }
        return;
    }
    const floats scale = all(p->kind == ADD ? p->scale : 1);
    for (int64_t o = first; a && o < last; o += LANES) {
        float *to = p->to + r * p->outputs + o;
        store(to, fused(scale, raised(a, sums, o), load(to)));
    }
}

/* A gate and its input are added to before the activation: they are stored first. */
INTERNAL void adapted_product(const Model *m, const Forward *f, const Layer *layer, int which,
                              const Product *given, Worker *w) {
    Product p = *given;
    if (f->sums && p.kind == GATE) p.kind = STORE, p.to = f->halves;
    product(&p, w);
    const int64_t parts = parts_of(p.outputs, LOW_PART);
    if (f->sums)
        SHARE(f->rows * parts, 1, u,
              add_low(m, f, layer, which, given, u / parts, u % parts * LOW_PART));
}
