/* Attention of queries of one kv head in vector registers: a block of keys, or of values, is read
 * for all of them before the next, QUERIES at a time. */
#include "attention.h"

/* Blocks of 16 keys, or of 16 columns of values, whose sums for Q queries fit in registers. */
#define AT_ONCE(Q) (SUMS / (Q) < 4 ? SUMS / (Q) : 4)

/* A statement for Q queries, a constant, of `count`. */
#define FOR_QUERIES(count, Q, statement)                                                           \
    do {                                                                                           \
        if ((count) >= 4) {                                                                        \
            enum { Q = 4 };                                                                        \
            statement;                                                                             \
        } else if ((count) == 3) {                                                                 \
            enum { Q = 3 };                                                                        \
            statement;                                                                             \
        } else if ((count) == 2) {                                                                 \
            enum { Q = 2 };                                                                        \
            statement;                                                                             \
        } else {                                                                                   \
            enum { Q = 1 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* Scores of Q queries and B blocks of 16 keys of one page; prefetches the B blocks at `next`. */
INLINE void block_scores(const Model *m, const Query *query, const bf16 *block, const bf16 *next,
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
        for (int b = 0; b < B; b++) store(query[q].scores + at + b * LANES, sum[q][b]);
}

/* Scores of Q queries and `many` blocks of 16 keys of one page. */
INLINE void scores_of(const Model *m, const Query *query, const bf16 *block, const bf16 *next,
                      int64_t at, int many, const int Q, const int PLAIN) {
    const int B = AT_ONCE(Q);
    const int64_t stride = key_stride(m);
    for (; many >= B; many -= B, at += B * LANES, block += B * stride, next += B * stride)
        block_scores(m, query, block, next, at, Q, B, PLAIN);
    for (; many > 0; many--, at += LANES, block += stride, next += stride)
        block_scores(m, query, block, next, at, Q, 1, PLAIN);
}

/* 16 columns of the values at the even position `at` of a query and at the next, wherever they are;
 * zeros from its end on. */
INLINE pairs pair_of(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                     const Query *query, int64_t kv, int64_t at, int64_t column, bf16 *room) {
    floats side[2] = {all(0), all(0)};
    for (int64_t i = 0; i < 2 && at + i < query->length; i++) {
        const int64_t in = at + i,
                      held = in < query->prefix ? in : query->tail[query->length - 1 - in];
        const bf16 *v = values_at(m, layer, f, span, held / 2 * 2, 0, kv, column, 1, 1, room);
        side[i] = one_of(load_pairs(v), held);
    }
    return joined(side[0], side[1]);
}

/* Add D * 16 columns of the values at [at, stop), two positions at a time, to sums of Q queries;
 * prefetches those at `ahead`. */
INLINE void add_columns(const Query *query, float (*sums)[4 * LANES], const bf16 *v, int64_t ahead,
                        int64_t at, int64_t stop, int64_t column, const int Q, const int D,
                        const int PLAIN) {
    floats out[QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) out[q][d] = load(sums[q] + column + d * LANES);
    for (v += column / LANES * CHUNK; at < stop; at += 2, v += PANEL) {
        pairs two[4];
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) {
            two[d] = load_pairs(v + d * CHUNK);
            prefetch(v + d * CHUNK + ahead);
        }
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
            for (int d = 0; d < D; d++)
                out[q][d] = dot_as(out[q][d], two[d], weights_of(query + q) + at, PLAIN);
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) store(sums[q] + column + d * LANES, out[q][d]);
}

/* The same for `columns` times 16 columns. */
INLINE void add_block(const Query *query, float (*sums)[4 * LANES], const bf16 *v, int64_t ahead,
                      int64_t at, int64_t stop, int64_t columns, const int Q, const int PLAIN) {
    const int D = AT_ONCE(Q);
    int64_t column = 0;
    for (; columns >= D; columns -= D, column += D * LANES)
        add_columns(query, sums, v, ahead, at, stop, column, Q, D, PLAIN);
    for (; columns > 0; columns--, column += LANES)
        add_columns(query, sums, v, ahead, at, stop, column, Q, 1, PLAIN);
}

/* The positions, an even number, that each query of a few shares with the others. */
static int64_t common_of(const Query *query, int64_t count) {
    int64_t common = query->prefix;
    for (int64_t q = 1; q < count; q++) common = at_most(common, query[q].prefix);
    return common / 2 * 2;
}

/* Add the values at positions from `at` on of one query, and store the result. */
INLINE void end_values(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                       const Query *query, float *sums, float total, int64_t kv, int64_t at,
                       int64_t column, int64_t columns, const int PLAIN) {
    bf16 room[CHUNK];
    for (; at < query->length; at += 2)
        for (int64_t d = 0; d < columns; d++) {
            const pairs two = pair_of(m, layer, f, span, query, kv, at, column + d * LANES, room);
            float *sum = sums + d * LANES;
            store(sum, dot_as(load(sum), two, weights_of(query) + at, PLAIN));
        }
    const floats share = all(1.0f / total);
    for (int64_t d = 0; d < columns; d++)
        store_factors(query->to + column + d * LANES, mul(load(sums + d * LANES), share));
}

/* Weighted sums of `columns` times 16 columns of the values in sequence order, two positions at a
 * time, counted from the start of the sequence: first shared positions, in blocks, then
 * each query's rest. */
INLINE void values_of(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                      const Query *query, const float *total, int count, int64_t kv, int64_t first,
                      int64_t column, int columns, const int PLAIN) {
    _Alignas(64) Sums sums = {0};
    _Alignas(64) bf16 room[4 * CHUNK];
    int64_t common[MOST_QUERIES / QUERIES], last = first;
    for (int q = 0; q < count; q += QUERIES) {
        const int64_t own = common_of(query + q, at_most(count - q, QUERIES));
        common[q / QUERIES] = at_least(own, first);
        last = at_least(last, own);
    }
    for (int64_t at = first, stop; at < last; at = stop) {
        stop = at_most((at / PANEL + 1) * PANEL, last);
        const int64_t next = (at / PANEL + 1) * PANEL;
        const bf16 *v =
            values_at(m, layer, f, span, at, last, kv, column, (int)(next - at) / 2, columns, room);
        /* Distance to the next block. */
        const int64_t ahead =
            next < last && m->kv_coding != BYTES
                ? value_of(m, layer, f, span, at + PANEL, kv) - value_of(m, layer, f, span, at, kv)
                : 0;
        for (int q = 0; q < count; q += QUERIES)
            FOR_QUERIES(count - q, Q,
                        add_block(query + q, sums + q, v, ahead, at,
                                  at_most(stop, common[q / QUERIES]), columns, Q, PLAIN));
    }
    for (int q = 0; q < count; q++)
        end_values(m, layer, f, span, query + q, sums[q], total[q], kv, common[q / QUERIES], column,
                   columns, PLAIN);
}

INLINE void attend_as(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                      int64_t kv, Query *query, int count, const int PLAIN) {
    int64_t low = query->low, reach = 0;
    for (int q = 0; q < count; q++) {
        low = at_most(low, query[q].low);
        reach = at_least(reach, reach_of(query + q));
    }
    const int64_t first = low / LANES * LANES;
    _Alignas(64) bf16 room[4 * LANES * MOST_DIM];
    for (int64_t at = first; at < reach;) {
        const int many = blocks_at(at, reach, 4);
        const bf16 *block = keys_at(m, layer, f, span, at, reach, kv, many, room),
                   *next = next_keys(m, layer, f, span, at + many * LANES, reach, kv, block);
        for (int q = 0; q < count; q += QUERIES)
            FOR_QUERIES(count - q, Q, scores_of(m, query + q, block, next, at, many, Q, PLAIN));
        at += many * LANES;
    }
    float total[MOST_QUERIES];
    for (int q = 0; q < count; q++)
        total[q] = weigh(m, query + q, first, parts_of(query[q].length, LANES) * LANES);
    for (int64_t column = 0; column < m->dim; column += 4 * LANES)
        values_of(m, layer, f, span, query, total, count, kv, first, column,
                  (int)at_most((m->dim - column) / LANES, 4), PLAIN);
}

INTERNAL void attend_in_vectors(const Model *m, const Layer *layer, const Forward *f,
                                const Span *span, int64_t kv, Query *query, int count) {
#ifdef BF16_PRODUCTS
    if (m->portable) {
        attend_as(m, layer, f, span, kv, query, count, 1);
        return;
    }
#endif
    attend_as(m, layer, f, span, kv, query, count, 0);
}
