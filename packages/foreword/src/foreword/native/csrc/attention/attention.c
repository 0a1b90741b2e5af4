/* Queries of the rows of a forward, and their attention in units. */
#include "attention.h"

/* Set the vector of a query, which is at `from`, and where its output goes. */
static void take_query(const Model *m, const Forward *f, const float *from, int64_t row,
                       int64_t head, Query *query) {
    for (int64_t i = 0; i < m->dim; i += LANES) store_factors(query->vector + i, load(from + i));
    query->to = f->narrow + (row * m->heads + head) * m->dim;
}

static void describe(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                     int64_t row, int64_t head, Query *query) {
    int64_t local = row - span->start;
    query->prefix = span->past + (span->mutual ? span->stop - span->start : local + 1),
    query->depth = 0;
    if (span->parents && local >= span->first_chain) {
        query->prefix = span->past + span->first_chain;
        for (int64_t node = local - span->first_chain + span->held; node >= 0;
             node = span->parents[node])
            query->tail[query->depth++] = query->prefix + node;
    }
    query->length = query->prefix + query->depth;
    query->low = layer->window && query->length > layer->window ? query->length - layer->window : 0;
    const int64_t *reach = local < span->placed ? span->reach[layer->window != 0] : 0;
    if (reach) query->low = reach[2 * local], query->prefix = query->length = reach[2 * local + 1];
    query->bias = layer->bias ? layer->bias + (head + 1) * m->distances - query->length : 0;
    query->sink = layer->sinks ? layer->sinks + head : 0;
    take_query(m, f, f->wide + row * wide_of(m) + head * query_stride_of(m), row, head, query);
}

/* The same for a query of cross-attention, which attends to the whole source; `span` has the pages
 * of the source. */
static void describe_cross(const Model *m, const Forward *f, const Span *span, int64_t row,
                           int64_t head, Query *query) {
    query->prefix = query->length = span->source, query->depth = query->low = 0,
    query->bias = query->sink = 0;
    take_query(m, f, f->wide + (row * m->heads + head) * m->dim, row, head, query);
}

INTERNAL int64_t units_of(const Model *m, const Span *span, int64_t tile) {
    return m->kv_heads * parts_of((span->stop - span->start) * (m->heads / m->kv_heads), tile);
}

static void attend_tile(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                        int64_t kv, Query *query, int count) {
    if (attends_in_registers(m)) attend_in_registers(m, layer, f, span, kv, query, count);
    else attend_in_vectors(m, layer, f, span, kv, query, count);
}

#define TILES 4 /* with fewer, each tile unpacks what it reads */

/* Attention of a tile over keys and values of 8 bits that are unpacked once for all tiles of a
 * head. */
static void attend_unpacked(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                            int64_t kv, Query *query, int count, Unpacked *unpacked) {
    const int64_t reach = span->past + span->held + span->stop - span->start,
                  pages = parts_of(reach, PAGE);
    if (unpacked->layer != layer || unpacked->span != span || unpacked->kv != kv) {
        const int64_t low =
            layer->window && !span->placed ? at_least(span->past - layer->window, 0) : 0;
        unpack_head(m, layer, f, span, low, reach, kv, unpacked->pages);
        unpacked->layer = layer, unpacked->span = span, unpacked->kv = kv;
    }
    int64_t number[pages];
    bf16 *page[pages];
    for (int64_t i = 0; i < pages; i++)
        number[i] = i, page[i] = unpacked->pages + 2 * i * PAGE * m->dim;
    Model one = *m;
    Layer alone = *layer;
    Forward over = *f;
    Span there = *span;
    one.kv_heads = 1, one.kv_coding = WHOLE, alone.keys = 0, alone.values = PAGE * m->dim,
    over.page = page, there.pages = number;
    attend_tile(&one, &alone, &over, &there, 0, query, count);
}

INTERNAL void attend(const Model *m, const Layer *layer, const Forward *f, int64_t unit,
                     int64_t tile, float *scores, Unpacked *unpacked, int cross) {
    const Span *span = f->span;
    while (unit >= units_of(m, span, tile)) unit -= units_of(m, span++, tile);
    const int64_t group = m->heads / m->kv_heads, queries = (span->stop - span->start) * group,
                  tiles = parts_of(queries, tile);
    const int64_t kv = unit / tiles, from = unit % tiles * tile,
                  count = at_most(queries - from, tile);
    Span source = *span;
    source.pages = span->source_pages;
    Query query[MOST_QUERIES];
    factor vectors[MOST_QUERIES][MOST_DIM];
    for (int64_t q = 0; q < count; q++) {
        query[q].scores = scores + q * f->longest, query[q].vector = vectors[q];
        const int64_t row = span->start + (from + q) / group,
                      head = kv * group + (from + q) % group;
        if (cross) describe_cross(m, f, span, row, head, query + q);
        else describe(m, layer, f, span, row, head, query + q);
    }
    if (cross) span = &source;
    if (unpacked->pages && tiles >= TILES && !cross)
        attend_unpacked(m, layer, f, span, kv, query, (int)count, unpacked);
    else attend_tile(m, layer, f, span, kv, query, (int)count);
}

INTERNAL const Span *span_of(const Forward *f, int64_t row) {
    for (int64_t s = 0; s < f->spans; s++)
        if (row >= f->span[s].start && row < f->span[s].stop) return f->span + s;
    return 0;
}
