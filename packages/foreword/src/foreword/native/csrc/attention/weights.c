/* Attention weights: raw scores in sequence order, capped, and their exponentials. */
#include "../activations.h"
#include "attention.h"

/* Put scores in sequence order, from `first` up to `last`, and add biases to them (there `scale` is
 * 1); masked positions get -INFINITY. */
static void order(const Query *query, int64_t first, int64_t last) {
    float *scores = query->scores;
    for (int64_t i = 0; i < query->depth; i++)
        scores[query->prefix + i] = scores[query->tail[query->depth - 1 - i]];
    for (int64_t i = first; i < query->low; i++) scores[i] = -INFINITY;
    for (int64_t i = query->length; i < last; i++) scores[i] = -INFINITY;
    for (int64_t i = first; query->bias && i < query->length; i += LANES)
        store(scores + i, add(load(scores + i), load(query->bias + i)));
}

/* 2^x for x <= 0, with a relative error of 3e-6, small compared with that of bfloat16. Below 2^-126
 * it is 0: computing a denormal result takes a processor a hundred times as long. NaN stays NaN. */
static inline floats power(floats x) {
    const floats least = all(-126.0f), near = maximum(least, x);
    const floats n = rounded(near), r = sub(near, n);
    floats p = all(0.00958285f);
    p = fused(p, r, all(0.05590643f));
    p = fused(p, r, all(0.24024099f));
    p = fused(p, r, all(0.69312419f));
    p = fused(p, r, all(1.0f));
    const floats y = scaled(p, n);
    return sub(y, where_above(least, x, y));
}

INTERNAL float weigh(const Model *m, const Query *query, int64_t first, int64_t last) {
    float *scores = query->scores;
    factor *weights = weights_of(query);
    const int64_t reach = reach_of(query);
    for (int64_t at = first; m->score_cap && at < reach; at += LANES)
        store(scores + at, capped(mul(load(scores + at), all(m->scale)), m->score_cap));
    order(query, first, last);
    floats top = all(-INFINITY), sum = all(0);
    for (int64_t at = first; at < last; at += LANES) top = maximum(top, load(scores + at));
    const float scale = m->score_cap ? 1 : m->scale, steep = 1.442695041f * scale;
    float most = maximum_of(top);
    if (query->sink && *query->sink > most * scale) most = *query->sink / scale;
    /* No weight is longer than a score: none is overwritten before it is read. */
    for (int64_t at = first; at < last; at += LANES) {
        const floats score = load(scores + at);
        store_factors(weights + at, power(fused(score, all(steep), all(-most * steep))));
        sum = add(sum, load_factors(weights + at));
    }
    return sum_of(sum) + (query->sink ? exp_of(*query->sink - most * scale) : 0);
}
