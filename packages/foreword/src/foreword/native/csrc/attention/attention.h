/* Attention over keys and values: queries, and how a unit of them is computed. */
#ifndef FOREWORD_ATTENTION_H
#define FOREWORD_ATTENTION_H

#include "../products/amx.h"
#include "kv.h"

/* A unit has up to MOST_QUERIES pairs of head and row with the same kv head, which read it
 * together. In vector registers QUERIES of them share every load of a key and of a value. */
#define QUERIES 4
#define MOST_QUERIES 16

typedef struct {
    /* Attends to positions [low, length): the rows [low, prefix), then `tail`, deepest first. */
    int64_t prefix, depth, length, low;
    int64_t tail[MOST_DEEP];
    const float *bias; /* of each position in sequence order; NULL = none */
    const float *sink; /* a score without a value; NULL = none */
    /* In sequence order, wherever keys are stored, so a draft token in a tree has the same sums as
     * in a chain. */
    float *scores;
    factor *vector, *to;
} Query;

/* Sums of 4 * 16 columns of values, weighted, for each query of a unit. */
typedef float Sums[MOST_QUERIES][4 * LANES];

/* The keys and values of one head in bfloat16, for all of its tiles that a thread computes. */
typedef struct {
    bf16 *pages; /* scratch: NULL = none */
    const Layer *layer;
    const Span *span;
    int64_t kv;
} Unpacked;

/* Units of attention in a span; a unit is `tile` queries of one kv head, ordered by row, then by
 * head of the group. */
INTERNAL int64_t units_of(const Model *m, const Span *span, int64_t tile);

/* Attention of one unit of a forward. `cross`: to the source of the sequence, not to itself. */
INTERNAL void attend(const Model *m, const Layer *layer, const Forward *f, int64_t unit,
                     int64_t tile, float *scores, Unpacked *unpacked, int cross);

/* The span that a row of the forward belongs to. */
INTERNAL const Span *span_of(const Forward *f, int64_t row);

/* The rows that a query reads are before this one. */
static inline int64_t reach_of(const Query *query) {
    return query->depth ? query->tail[0] + 1 : query->prefix;
}

/* The weights of a query, which overwrite its scores. */
static inline factor *weights_of(const Query *query) { return (factor *)query->scores; }

/* Turn the raw scores of positions from `first` on into weights, rounded like any factor, up to
 * `last`; positions that the query does not attend to get 0. Returns the sum of the rounded
 * weights, by which they are not yet divided (weights.c). */
INTERNAL float weigh(const Model *m, const Query *query, int64_t first, int64_t last);

/* Attention of at most MOST_QUERIES queries in vector registers (vectors.c). */
INTERNAL void attend_in_vectors(const Model *m, const Layer *layer, const Forward *f,
                                const Span *span, int64_t kv, Query *query, int count);

/* 16 numbers of one row of a pair: low halves are the even row, high halves the odd one. */
INLINE floats one_of(pairs two, int64_t row) { return row % 2 ? odd_of(two) : even_of(two); }

/* How many blocks of 16 keys to read at once from row `at` on: B if the page and the sequence go on
 * so far, else one. */
static inline int blocks_at(int64_t at, int64_t reach, int B) {
    return at + B * LANES <= reach && at % PAGE + B * LANES <= PAGE ? B : 1;
}

/* Where the keys from row `at` on are, to be prefetched; `otherwise` at the end of the sequence, or
 * where `otherwise` is unpacked. */
static inline const bf16 *next_keys(const Model *m, const Layer *layer, const Forward *f,
                                    const Span *span, int64_t at, int64_t reach, int64_t kv,
                                    const bf16 *otherwise) {
    return at < reach && m->kv_coding != BYTES ? key_of(m, layer, f, span, at, kv) : otherwise;
}

/* Attention of at most MOST_QUERIES queries in matrix registers (amx_attention.c). */
#ifdef MATRICES
static inline int attends_in_registers(const Model *m) {
    return matrix_registers && !m->portable && m->dim % STEP == 0;
}
INTERNAL void attend_in_registers(const Model *m, const Layer *layer, const Forward *f,
                                  const Span *span, int64_t kv, Query *query, int count);
#else
static inline int attends_in_registers(const Model *m) { return (void)m, 0; }
static inline void attend_in_registers(const Model *m, const Layer *layer, const Forward *f,
                                       const Span *span, int64_t kv, Query *query, int count) {
    (void)m, (void)layer, (void)f, (void)span, (void)kv, (void)query, (void)count;
}
#endif

#endif
