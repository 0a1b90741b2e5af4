/* Attention over keys and values. */

#include "kv.c"

/* QUERIES pairs of head and row with the same kv head share every load of a key and of a value. */

#define QUERIES 4
#define MOST_QUERIES 16 /* in matrix registers */

typedef struct {
    int64_t prefix, depth, length, low; /* attends to positions [low, length): the rows [low, prefix), then `tail`, deepest first */
    int64_t tail[MOST_DEEP];
    const float *bias; /* of each position in sequence order; NULL = none */
    const float *sink; /* a score without a value; NULL = none */
    float *scores; /* in sequence order, wherever keys are stored, so a draft token in a tree has the same sums as in a chain */
    factor *vector, *to;
} Query;

/* Set the vector of a query, which is at `from`, and where its output goes. */
static void take_query(const Model *m, const Forward *f, const float *from, int64_t row, int64_t head, Query *query) {
    for (int64_t i = 0; i < m->dim; i += LANES) store_factors(query->vector + i, load(from + i));
    query->to = f->narrow + (row * m->heads + head) * m->dim;
}

static void describe(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t row, int64_t head, Query *query) {
    int64_t local = row - span->start;
    query->prefix = span->past + (span->mutual ? span->stop - span->start : local + 1), query->depth = 0;
    if (span->parents && local >= span->first_chain) {
        query->prefix = span->past + span->first_chain;
        for (int64_t node = local - span->first_chain + span->held; node >= 0; node = span->parents[node]) query->tail[query->depth++] = query->prefix + node;
    }
    query->length = query->prefix + query->depth;
    query->low = layer->window && query->length > layer->window ? query->length - layer->window : 0;
    const int64_t *reach = local < span->placed ? span->reach[layer->window != 0] : 0;
    if (reach) query->low = reach[2 * local], query->prefix = query->length = reach[2 * local + 1];
    query->bias = layer->bias ? layer->bias + (head + 1) * m->distances - query->length : 0;
    query->sink = layer->sinks ? layer->sinks + head : 0;
    take_query(m, f, f->wide + row * wide_of(m) + head * query_stride_of(m), row, head, query);
}

/* The same for a query of cross-attention, which attends to the whole source; `span` has the pages of the source. */
static void describe_cross(const Model *m, const Forward *f, const Span *span, int64_t row, int64_t head, Query *query) {
    query->prefix = query->length = span->source, query->depth = query->low = 0, query->bias = query->sink = 0;
    take_query(m, f, f->wide + (row * m->heads + head) * m->dim, row, head, query);
}

/* Scores of Q queries and B blocks of 16 keys of one page; prefetches the B blocks at `next`. */
INLINE void scores_of(const Model *m, const Query *query, const bf16 *block, const bf16 *next, int64_t at, const int Q, const int B) {
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
            for (int b = 0; b < B; b++) sum[q][b] = dot(sum[q][b], key[b], query[q].vector + i);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) store(query[q].scores + at + b * LANES, capped(mul(sum[q][b], all(m->scale)), m->score_cap));
}

/* Put scores in sequence order, from `first` up to `last`, and add biases to them (there `scale` is 1); masked positions get -INFINITY. */
static void order(const Query *query, int64_t first, int64_t last) {
    float *scores = query->scores;
    for (int64_t i = 0; i < query->depth; i++) scores[query->prefix + i] = scores[query->tail[query->depth - 1 - i]];
    for (int64_t i = first; i < query->low; i++) scores[i] = -INFINITY;
    for (int64_t i = query->length; i < last; i++) scores[i] = -INFINITY;
    for (int64_t i = first; query->bias && i < query->length; i += LANES) store(scores + i, add(load(scores + i), load(query->bias + i)));
}

/* Turn scores into weights, not yet divided by their sum, which is returned. Positions before `low` get 0. */
static float soften(const Query *query, int64_t first) {
    float *scores = query->scores;
    const int64_t last = parts_of(query->length, LANES) * LANES;
    order(query, first, last);
    floats top = all(-INFINITY), sum = all(0);
    for (int64_t at = first; at < last; at += LANES) top = maximum(top, load(scores + at));
    const float most = query->sink && *query->sink > maximum_of(top) ? *query->sink : maximum_of(top);
    top = all(most);
    for (int64_t at = first; at < last; at += LANES) {
        floats raw = load(scores + at), e = vexp(sub(raw, top));
        e = where_above(raw, all(-INFINITY), e);
        sum = add(sum, e);
        store(scores + at, e);
    }
    return sum_of(sum) + (query->sink ? expf(*query->sink - most) : 0);
}

/* 16 numbers of one row of a pair: low halves are the even row, high halves the odd one. */
INLINE floats one_of(pairs two, int64_t row) { return row % 2 ? odd_of(two) : even_of(two); }

/* Weighted sum of D * 16 columns of the values in sequence order: [first, common) for Q queries at once, then each query's rest. */
INLINE void values_of(const Model *m, const Layer *layer, const Forward *f, const Span *span, const Query *query, const float *total, int64_t kv, int64_t first, int64_t common, int64_t column, const int Q, const int D) {
    floats out[QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) out[q][d] = all(0);
    const int64_t even = common > first ? common / 2 * 2 : first;
    _Alignas(64) bf16 room[4 * CHUNK];
    for (int64_t at = first; at < even;) {
        const int64_t block = (at / PANEL + 1) * PANEL;
        const bf16 *v = values_at(m, layer, f, span, at, even, kv, column, (int)(block - at) / 2, D, room);
        const int64_t next = block < even && m->kv_coding != BYTES ? value_of(m, layer, f, span, at + PANEL, kv) - value_of(m, layer, f, span, at, kv) : 0; /* distance to the next block */
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
                    for (int d = 0; d < D; d++) out[q][d] = fused(all(query[q].scores[at + i]), wide[d], out[q][d]);
            }
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
        for (int64_t at = even; at < query[q].length; at++) {
            int64_t held = at < query[q].prefix ? at : query[q].tail[query[q].length - 1 - at];
            const bf16 *v = values_at(m, layer, f, span, held / 2 * 2, 0, kv, column, 1, D, room);
#pragma GCC unroll 4
            for (int d = 0; d < D; d++) out[q][d] = fused(all(query[q].scores[at]), one_of(load_pairs(v + d * CHUNK), held), out[q][d]);
        }
        floats share = all(1.0f / total[q]);
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) store_factors(query[q].to + column + d * LANES, mul(out[q][d], share));
    }
}

/* How many blocks of 16 keys to read at once from row `at` on: B if the page and the sequence go on so far, else one. */
static inline int blocks_at(int64_t at, int64_t reach, int B) { return at + B * LANES <= reach && at % PAGE + B * LANES <= PAGE ? B : 1; }

/* Where the keys from row `at` on are, to be prefetched; `otherwise` at the end of the sequence, or where `otherwise` is unpacked. */
static inline const bf16 *next_keys(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t at, int64_t reach, int64_t kv, const bf16 *otherwise) {
    return at < reach && m->kv_coding != BYTES ? key_of(m, layer, f, span, at, kv) : otherwise;
}

INLINE void attend_as(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t kv, Query *query, const int Q) {
    int64_t low = query[0].low, common = query[0].prefix, reach = 0;
    for (int q = 0; q < Q; q++) {
        int64_t own = query[q].depth ? query[q].tail[0] + 1 : query[q].prefix;
        if (query[q].low < low) low = query[q].low;
        if (query[q].prefix < common) common = query[q].prefix;
        if (own > reach) reach = own;
    }
    const int64_t first = low / LANES * LANES;
    const int B = SUMS / Q < 4 ? SUMS / Q : 4; /* blocks of keys, or of columns, that fit in registers */
    _Alignas(64) bf16 room[4 * LANES * MOST_DIM];
    for (int64_t at = first; at < reach;) {
        const int many = blocks_at(at, reach, B);
        const bf16 *block = keys_at(m, layer, f, span, at, reach, kv, many, room), *next = next_keys(m, layer, f, span, at + many * LANES, reach, kv, block);
        if (many == B) scores_of(m, query, block, next, at, Q, B);
        else scores_of(m, query, block, next, at, Q, 1);
        at += many * LANES;
    }
    float total[QUERIES];
    for (int q = 0; q < Q; q++) total[q] = soften(query + q, first);
    int64_t column = 0;
    for (; column + B * LANES <= m->dim; column += B * LANES) values_of(m, layer, f, span, query, total, kv, first, common, column, Q, B);
    for (; column < m->dim; column += LANES) values_of(m, layer, f, span, query, total, kv, first, common, column, Q, 1);
}

#include "amx_attention.c"

/* Units of attention in a span; a unit is `tile` queries of one kv head, ordered by row, then by head of the group. */
static int64_t units_of(const Model *m, const Span *span, int64_t tile) {
    return m->kv_heads * parts_of((span->stop - span->start) * (m->heads / m->kv_heads), tile);
}

static void attend_tile(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t kv, Query *query, int count) {
    if (attends_in_registers(m)) attend_in_registers(m, layer, f, span, kv, query, count);
    else switch (count) {
        case 1: attend_as(m, layer, f, span, kv, query, 1); break;
        case 2: attend_as(m, layer, f, span, kv, query, 2); break;
        case 3: attend_as(m, layer, f, span, kv, query, 3); break;
        default: attend_as(m, layer, f, span, kv, query, 4);
    }
}

/* The keys and values of one head in bfloat16, for all of its tiles that a thread computes. */
typedef struct {
    bf16 *pages; /* scratch: NULL = none */
    const Layer *layer;
    const Span *span;
    int64_t kv;
} Unpacked;

#define TILES 4 /* with fewer, each tile unpacks what it reads */

/* Attention of a tile over keys and values of 8 bits that are unpacked once for all tiles of a head. */
static void attend_unpacked(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t kv, Query *query, int count, Unpacked *unpacked) {
    const int64_t reach = span->past + span->held + span->stop - span->start, pages = parts_of(reach, PAGE);
    if (unpacked->layer != layer || unpacked->span != span || unpacked->kv != kv) {
        const int64_t low = layer->window && !span->placed ? at_least(span->past - layer->window, 0) : 0;
        unpack_head(m, layer, f, span, low, reach, kv, unpacked->pages);
        unpacked->layer = layer, unpacked->span = span, unpacked->kv = kv;
    }
    int64_t number[pages];
    bf16 *page[pages];
    for (int64_t i = 0; i < pages; i++) number[i] = i, page[i] = unpacked->pages + 2 * i * PAGE * m->dim;
    Model one = *m;
    Layer alone = *layer;
    Forward over = *f;
    Span there = *span;
    one.kv_heads = 1, one.kv_coding = WHOLE, alone.keys = 0, alone.values = PAGE * m->dim, over.page = page, there.pages = number;
    attend_tile(&one, &alone, &over, &there, 0, query, count);
}

/* `cross`: to the source of the sequence, not to itself. */
static void attend(const Model *m, const Layer *layer, const Forward *f, int64_t unit, int64_t tile, float *scores, Unpacked *unpacked, int cross) {
    const Span *span = f->span;
    while (unit >= units_of(m, span, tile)) unit -= units_of(m, span++, tile);
    const int64_t group = m->heads / m->kv_heads, queries = (span->stop - span->start) * group, tiles = parts_of(queries, tile);
    const int64_t kv = unit / tiles, from = unit % tiles * tile, count = at_most(queries - from, tile);
    Span source = *span;
    source.pages = span->source_pages;
    Query query[MOST_QUERIES];
    factor vectors[MOST_QUERIES][MOST_DIM];
    for (int64_t q = 0; q < count; q++) {
        query[q].scores = scores + q * f->longest, query[q].vector = vectors[q];
        const int64_t row = span->start + (from + q) / group, head = kv * group + (from + q) % group;
        if (cross) describe_cross(m, f, span, row, head, query + q);
        else describe(m, layer, f, span, row, head, query + q);
    }
    if (cross) span = &source;
    if (unpacked->pages && tiles >= TILES && !cross) attend_unpacked(m, layer, f, span, kv, query, (int)count, unpacked);
    else attend_tile(m, layer, f, span, kv, query, (int)count);
}

static const Span *span_of(const Forward *f, int64_t row) {
    for (int64_t s = 0; s < f->spans; s++)
        if (row >= f->span[s].start && row < f->span[s].stop) return f->span + s;
    return 0;
}
