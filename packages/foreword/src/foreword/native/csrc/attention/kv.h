/* Places of keys and values, and their reading (kv.c).
 *
 * They lie in pages of 64 rows, each with those of every layer; a sequence has pages anywhere in
 * memory. With 8 bits a row is rounded when it is written, and attention reads bfloat16(code *
 * scale): the attention is that over bfloat16 rows. The rows of a forward are written before any is
 * read, so a row's bits do not depend on how tokens are split over forwards.
 */
#ifndef FOREWORD_KV_H
#define FOREWORD_KV_H

#include "../foreword.h"
#include "../products/product.h"

#define PAGE 64
static inline bf16 *page_of(const Forward *f, const Span *span, int64_t row) {
    return f->page[span->pages[row / PAGE]];
}

/* Keys of a page are stored in blocks of 16 rows, [block][kv_head][dim / 2][16][2]: one load holds
 * two numbers of 16 keys. */
static inline int64_t key_place(const Model *m, int64_t row, int64_t head) {
    return ((row / LANES) * m->kv_heads + head) * LANES * m->dim + row % LANES * 2;
}

/* Values of a page are stored in blocks of 32 rows, [block][kv_head][dim / 16][16][16][2]: one load
 * holds 16 numbers of two rows. */
#define CHUNK (LANES * PANEL)
static inline int64_t value_place(const Model *m, int64_t row, int64_t head) {
    return ((row / PANEL) * m->kv_heads + head) * PANEL * m->dim + row % PANEL / 2 * PANEL
           + row % 2;
}

/* Where number `i` of a row is, counted from its first. */
static inline int64_t key_step(int64_t i) { return i / 2 * PANEL + i % 2; }
static inline int64_t value_step(int64_t i) { return i / LANES * CHUNK + i % LANES * 2; }

/* The same in bfloat16, by row of a sequence. */
static inline bf16 *key_of(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                           int64_t row, int64_t head) {
    return page_of(f, span, row) + layer->keys + key_place(m, row % PAGE, head);
}
static inline bf16 *value_of(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                             int64_t row, int64_t head) {
    return page_of(f, span, row) + layer->values + value_place(m, row % PAGE, head);
}

/* ---- 8 bits: the keys, or the values, of a layer are codes as above, then their scales
 * [kv_head][64] */

static inline int8_t *codes_at(bf16 *page, int64_t start) { return (int8_t *)page + start; }
static inline float *scales_of(const Model *m, int8_t *codes, int64_t head) {
    return (float *)(codes + PAGE * m->kv_heads * m->dim) + head * PAGE;
}

/* Write the key and the value of a row of one head, which follow the other heads. */
INTERNAL void write_kv(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                       const float *key, int64_t row, int64_t head);

/* Unpack `count` blocks of 16 keys of one page, from row `at` of the sequence on; prefetches those
 * at `next`. */
INTERNAL void unpack_keys(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t at, int64_t head, int count, const int8_t *next, bf16 *to);

/* Unpack the keys and values of a head, those of the pages from row `low` on, as pages of one head.
 */
INTERNAL void unpack_head(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t low, int64_t reach, int64_t head, bf16 *to);

/* Unpack 32 codes, with the scales of the first and of the last 16. */
INLINE void unpack(const int8_t *codes, floats first, floats last, bf16 *to) {
    store_two(to, mul(load_signed(codes), first), mul(load_signed(codes + LANES), last));
}

/* Unpack D * 16 columns of `count` pairs of values from the even row `at` on, at their places in a
 * block; prefetches those at `next`. */
INLINE void unpack_values(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t at, int64_t head, int64_t column, int count, const int D,
                          const int8_t *next, bf16 *to) {
    int8_t *values = codes_at(page_of(f, span, at), layer->values);
    const float *scales = scales_of(m, values, head) + at % PAGE;
    const int8_t *from = values + value_place(m, at % PAGE, head) + column / LANES * CHUNK;
    to += at % PANEL / 2 * PANEL;
    for (int pair = 0; pair < count; pair++) {
        const floats both = two_by_turns(scales + 2 * pair);
        for (int d = 0; d < D; d++) {
            unpack(from + d * CHUNK + pair * PANEL, both, both, to + d * CHUNK + pair * PANEL);
            if (pair % 2 == 0) prefetch(next + d * CHUNK + pair * PANEL);
        }
    }
}

/* Where `count` blocks of 16 keys from row `at` on are in bfloat16, `key_stride` apart: in the
 * page, or unpacked in `room`. */
INLINE const bf16 *keys_at(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                           int64_t at, int64_t reach, int64_t head, int count, bf16 *room) {
    if (m->kv_coding != BYTES) return key_of(m, layer, f, span, at, head);
    const int64_t next = at + count * LANES < reach ? at + count * LANES : at;
    unpack_keys(m, layer, f, span, at, head, count,
                codes_at(page_of(f, span, next), layer->keys) + key_place(m, next % PAGE, head),
                room);
    return room;
}
static inline int64_t key_stride(const Model *m) {
    return (m->kv_coding == BYTES ? 1 : m->kv_heads) * LANES * m->dim;
}

/* Where D * 16 columns of `count` pairs of values from the even row `at` on are in bfloat16: in the
 * page, or unpacked in `room`. */
INLINE const bf16 *values_at(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                             int64_t at, int64_t reach, int64_t head, int64_t column, int count,
                             const int D, bf16 *room) {
    if (m->kv_coding != BYTES)
        return value_of(m, layer, f, span, at, head) + column / LANES * CHUNK;
    const int64_t next = at / PANEL * PANEL + PANEL < reach ? at / PANEL * PANEL + PANEL : at;
    unpack_values(m, layer, f, span, at, head, column, count, D,
                  codes_at(page_of(f, span, next), layer->values)
                      + value_place(m, next % PAGE, head) + column / LANES * CHUNK,
                  room);
    return room + at % PANEL / 2 * PANEL;
}

#endif
