/* Attention of up to 16 queries of one kv head in matrix registers (AMX): keys 16 and values 32 at
 * a time.
 *
 * Attention weights are rounded to bfloat16 first, and their sum is that of the rounded ones. A
 * query's values are added 32 positions at a time, counted from the start of the sequence, with
 * zeros for masked positions: adding 0 changes no sum, so the result does not depend on other
 * queries. Draft tokens of a tree, whose rows are not in order, are copied in order first.
 */
#include "attention.h"

#ifdef MATRICES

/* Raw scores of B blocks of 16 keys of one page from position `at` on; prefetches the B blocks at
 * `next`. */
INLINE void raw_scores(const Model *m, const Query *query, int64_t longest, const bf16 *block,
                       const bf16 *next, int64_t at, const int B) {
    const int64_t stride = key_stride(m);
    float *to = query->scores + at;
    _tile_zero(0);
    if (B == 4) {
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < m->dim; i += STEP, block += STEP * LANES, next += STEP * LANES) {
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) fetch((const char *)(next + b * stride), 16);
        _tile_loadd(4, query->vector + i, MOST_DIM * sizeof(bf16));
        _tile_loadd(5, block, 64);
        _tile_dpbf16ps(0, 4, 5);
        if (B == 1) continue;
        _tile_loadd(6, block + stride, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, block + 2 * stride, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, block + 3 * stride, 64);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, to, longest * sizeof(float));
    if (B == 1) return;
    _tile_stored(1, to + LANES, longest * sizeof(float));
    _tile_stored(2, to + 2 * LANES, longest * sizeof(float));
    _tile_stored(3, to + 3 * LANES, longest * sizeof(float));
}

/* Copy the values of positions [at, at + 32) of a query in sequence order, columns from `column`
 * on, in the layout of a block. */
static void lay_out(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                    const Query *query, int64_t kv, int64_t at, int64_t column, int chunks,
                    bf16 *to) {
    for (int64_t pair = 0; pair < PANEL / 2; pair++, at += 2, to += PANEL) {
        const bf16 *lines[2] = {0, 0}; /* row pairs, each containing the row needed */
        int64_t held[2] = {0, 0};
        bf16 room[2][4 * CHUNK];
        for (int64_t i = 0; i < 2 && at + i < query->length; i++) {
            held[i] = at + i < query->prefix ? at + i : query->tail[query->length - 1 - at - i];
            lines[i] =
                values_at(m, layer, f, span, held[i] / 2 * 2, 0, kv, column, 1, chunks, room[i]);
        }
        for (int64_t c = 0; c < chunks; c++) {
            floats side[2] = {all(0), all(0)};
            for (int64_t i = 0; i < 2 && lines[i]; i++)
                side[i] = one_of(load_pairs(lines[i] + c * CHUNK), held[i]);
            _mm512_storeu_si512(to + c * CHUNK, joined(side[0], side[1]));
        }
    }
}

/* 32 positions of the values, D * 16 columns, weighted and added to registers 0 to 3. */
INLINE void add_values(const bf16 *weights, int64_t longest, const bf16 *v, const int D) {
    _tile_loadd(4, weights, longest * sizeof(float));
    _tile_loadd(5, v, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, v + CHUNK, 64);
    _tile_dpbf16ps(1, 4, 6);
    if (D == 2) return;
    _tile_loadd(7, v + 2 * CHUNK, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, v + 3 * CHUNK, 64);
    _tile_dpbf16ps(3, 4, 5);
}

INLINE void load_sums(const Sums sums, const int D) {
    _tile_loadd(0, sums[0], sizeof sums[0]);
    _tile_loadd(1, sums[0] + LANES, sizeof sums[0]);
    if (D == 2) return;
    _tile_loadd(2, sums[0] + 2 * LANES, sizeof sums[0]);
    _tile_loadd(3, sums[0] + 3 * LANES, sizeof sums[0]);
}

INLINE void store_sums(Sums sums, const int D) {
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    if (D == 2) return;
    _tile_stored(2, sums[0] + 2 * LANES, sizeof sums[0]);
    _tile_stored(3, sums[0] + 3 * LANES, sizeof sums[0]);
}

/* D * 16 columns: up to `shared` from the pool for all queries at once, then the rest for the
 * queries of each row. */
INLINE void sum_values(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                       const Query *query, int count, const float *total, int64_t kv, int64_t first,
                       int64_t shared, int64_t column, const int D) {
    _Alignas(64) Sums sums, own;
    _Alignas(64) bf16 block[4 * CHUNK];
    const bf16 *weights = weights_of(query);
    const int64_t longest = f->longest;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = first; at < shared; at += PANEL) {
        const bf16 *v = values_at(m, layer, f, span, at, shared, kv, column, PANEL / 2, D, block),
                   *next = v;
        if (m->kv_coding == BYTES) written(block);
        else if (at + PANEL < shared)
            next = value_of(m, layer, f, span, at + PANEL, kv) + column / LANES * CHUNK;
#pragma GCC unroll 4
        /* The next block. */
        for (int d = 0; next != block && d < D; d++) fetch((const char *)(next + d * CHUNK), 16);
        add_values(weights + at, longest, v, D);
        if (at >= shared - EARLY * PANEL) wake_unit();
    }
    store_sums(sums, D);
    for (int q = 0, end; q < count; q = end) {
        const Query *deepest = query + q;
        for (end = q + 1; end < count && query[end].depth == query[q].depth
                          && (!query[q].depth || query[end].tail[0] == query[q].tail[0]);
             end++)
            if (query[end].length > deepest->length) deepest = query + end;
        if (deepest->length <= shared) continue;
        written(sums);
        load_sums(sums, D);
        for (int64_t at = shared > first ? shared : first; at < deepest->length; at += PANEL) {
            lay_out(m, layer, f, span, deepest, kv, at, column, D, block);
            written(block);
            add_values(weights + at, longest, block, D);
        }
        store_sums(own, D);
        memcpy(sums[q], own[q], (size_t)(end - q) * sizeof sums[0]);
    }
    for (int q = 0; q < count; q++)
        for (int64_t d = 0; d < D * LANES; d += LANES)
            narrow_store(query[q].to + column + d, _mm512_mul_ps(_mm512_load_ps(sums[q] + d),
                                                                 _mm512_set1_ps(1.0f / total[q])));
}

INTERNAL void attend_in_registers(const Model *m, const Layer *layer, const Forward *f,
                                  const Span *span, int64_t kv, Query *query, int count) {
    int64_t low = INT64_MAX, shared = INT64_MAX, reach = 0, length = 0;
    for (int q = 0; q < count; q++) {
        const int64_t own = reach_of(query + q);
        if (query[q].low < low) low = query[q].low;
        if (query[q].depth && query[q].prefix < shared) shared = query[q].prefix;
        if (own > reach) reach = own;
        if (query[q].length > length) length = query[q].length;
    }
    if (length < shared) shared = length;
    const int64_t first = low / PANEL * PANEL, last = parts_of(length, PANEL) * PANEL;
    /* Memory beyond the sequence may hold NaN, and NaN times 0 is NaN. */
    shared = shared / PANEL * PANEL;
    shape_registers(count);
    _Alignas(64) bf16 room[4 * LANES * MOST_DIM];
    for (int64_t at = first; at < reach;) {
        const int many = blocks_at(at, reach, 4);
        const bf16 *block = keys_at(m, layer, f, span, at, reach, kv, many, room),
                   *next = next_keys(m, layer, f, span, at + many * LANES, reach, kv, block);
        written(room);
        if (many == 4) raw_scores(m, query, f->longest, block, next, at, 4);
        else raw_scores(m, query, f->longest, block, next, at, 1);
        at += many * LANES;
    }
    float total[MOST_QUERIES];
    for (int q = 0; q < count; q++) total[q] = weigh(m, query + q, first, last);
    written(query->scores);
    int64_t column = 0;
    for (; column + 4 * LANES <= m->dim; column += 4 * LANES)
        sum_values(m, layer, f, span, query, count, total, kv, first, shared, column, 4);
    for (; column < m->dim; column += 2 * LANES)
        sum_values(m, layer, f, span, query, count, total, kv, first, shared, column, 2);
    release_registers();
}

#endif
