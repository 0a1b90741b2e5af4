/* Attention of up to four queries of one kv head in vector registers. */
#include "attention.h"

#include "../activations.h"

/* Scores of Q queries and B blocks of 16 keys of one page; prefetches the B blocks at `next`. */
INLINE void scores_of(const Model *m, const Query *query, const bf16 *block, const bf16 *next,
                      int64_t at, const int Q, const int B, const int PLAIN) {
    const int64_t stride = key_stride(m);
    floats sum[QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) sum[q][b] = all(0);
    for (int64_t i = 0; i < m->dim; i += 2) {
        pairs key[4];
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) {
            key[b] = load_pairs(block + b * stride + i * LANES);
            prefetch(next + b * stride + i * LANES);
        }
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
#pragma GCC unroll 4
            for (int b = 0; b < B; b++)
                sum[q][b] = dot_as(sum[q][b], key[b], query[q].vector + i, PLAIN);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++)
            store(query[q].scores + at + b * LANES,
                  capped(mul(sum[q][b], all(m->scale)), m->score_cap));
}

/* Turn scores into weights, not yet divided by their sum, which is returned. Positions before `low`
 * get 0. */
static float soften(const Query *query, int64_t first) {
    float *scores = query->scores;
    const int64_t last = parts_of(query->length, LANES) * LANES;
    order(query, first, last);
    floats top = all(-INFINITY), sum = all(0);
    for (int64_t at = first; at < last; at += LANES) top = maximum(top, load(scores + at));
    const float most =
        query->sink && *query->sink > maximum_of(top) ? *query->sink : maximum_of(top);
    top = all(most);
    for (int64_t at = first; at < last; at += LANES) {
        floats raw = load(scores + at), e = vexp(sub(raw, top));
        e = where_above(raw, all(-INFINITY), e);
        sum = add(sum, e);
        store(scores + at, e);
    }
    return sum_of(sum) + (query->sink ? exp_of(*query->sink - most) : 0);
}

/* Weighted sum of D * 16 columns of the values in sequence order: [first, common) for Q queries at
 * once, then each query's rest. */
INLINE void values_of(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                      const Query *query, const float *total, int64_t kv, int64_t first,
                      int64_t common, int64_t column, const int Q, const int D) {
    floats out[QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) out[q][d] = all(0);
    const int64_t even = common > first ? common / 2 * 2 : first;
    _Alignas(64) bf16 room[4 * CHUNK];
    for (int64_t at = first; at < even;) {
        const int64_t block = (at / PANEL + 1) * PANEL;
        const bf16 *v =
            values_at(m, layer, f, span, at, even, kv, column, (int)(block - at) / 2, D, room);
        /* Distance to the next block. */
        const int64_t next =
            block < even && m->kv_coding != BYTES
                ? value_of(m, layer, f, span, at + PANEL, kv) - value_of(m, layer, f, span, at, kv)
                : 0;
        for (const int64_t stop = block < even ? block : even; at < stop; at += 2, v += PANEL) {
            pairs two[4];
#pragma GCC unroll 4
            for (int d = 0; d < D; d++) {
                two[d] = load_pairs(v + d * CHUNK);
                prefetch(v + d * CHUNK + next);
            }
#pragma GCC unroll 2
            for (int64_t i = 0; i < 2; i++) {
                floats wide[4];
#pragma GCC unroll 4
                for (int d = 0; d < D; d++) wide[d] = one_of(two[d], i);
#pragma GCC unroll 4
                for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
                    for (int d = 0; d < D; d++)
                        out[q][d] = fused(all(query[q].scores[at + i]), wide[d], out[q][d]);
            }
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
        for (int64_t at = even; at < query[q].length; at++) {
            int64_t held = at < query[q].prefix ? at : query[q].tail[query[q].length - 1 - at];
            const bf16 *v = values_at(m, layer, f, span, held / 2 * 2, 0, kv, column, 1, D, room);
#pragma GCC unroll 4
            for (int d = 0; d < D; d++)
                out[q][d] = fused(all(query[q].scores[at]), one_of(load_pairs(v + d * CHUNK), held),
                                  out[q][d]);
        }
        floats share = all(1.0f / total[q]);
#pragma GCC unroll 4
        for (int d = 0; d < D; d++)
            store_factors(query[q].to + column + d * LANES, mul(out[q][d], share));
    }
}

INLINE void attend_as(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                      int64_t kv, Query *query, const int Q, const int PLAIN) {
    int64_t low = query[0].low, common = query[0].prefix, reach = 0;
    for (int q = 0; q < Q; q++) {
        int64_t own = query[q].depth ? query[q].tail[0] + 1 : query[q].prefix;
        if (query[q].low < low) low = query[q].low;
        if (query[q].prefix < common) common = query[q].prefix;
        if (own > reach) reach = own;
    }
    const int64_t first = low / LANES * LANES;
    /* Blocks of keys, or of columns, that fit in registers. */
    const int B = SUMS / Q < 4 ? SUMS / Q : 4;
    _Alignas(64) bf16 room[4 * LANES * MOST_DIM];
    for (int64_t at = first; at < reach;) {
        const int many = blocks_at(at, reach, B);
        const bf16 *block = keys_at(m, layer, f, span, at, reach, kv, many, room),
                   *next = next_keys(m, layer, f, span, at + many * LANES, reach, kv, block);
        if (many == B) scores_of(m, query, block, next, at, Q, B, PLAIN);
        else scores_of(m, query, block, next, at, Q, 1, PLAIN);
        at += many * LANES;
    }
    float total[QUERIES];
    for (int q = 0; q < Q; q++) total[q] = soften(query + q, first);
    int64_t column = 0;
    for (; column + B * LANES <= m->dim; column += B * LANES)
        values_of(m, layer, f, span, query, total, kv, first, common, column, Q, B);
    for (; column < m->dim; column += LANES)
        values_of(m, layer, f, span, query, total, kv, first, common, column, Q, 1);
}

INLINE void attend_count(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                         int64_t kv, Query *query, int count, const int PLAIN) {
    switch (count) {
        case 1: attend_as(m, layer, f, span, kv, query, 1, PLAIN); break;
        case 2: attend_as(m, layer, f, span, kv, query, 2, PLAIN); break;
        case 3: attend_as(m, layer, f, span, kv, query, 3, PLAIN); break;
        default: attend_as(m, layer, f, span, kv, query, 4, PLAIN);
    }
}

INTERNAL void attend_in_vectors(const Model *m, const Layer *layer, const Forward *f,
                                const Span *span, int64_t kv, Query *query, int count) {
#ifdef BF16_PRODUCTS
    if (m->portable) {
        attend_count(m, layer, f, span, kv, query, count, 1);
        return;
    }
#endif
    attend_count(m, layer, f, span, kv, query, count, 0);
}
