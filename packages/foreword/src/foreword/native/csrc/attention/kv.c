#include "kv.h"

/* Round a row of one head to integers, of which the largest is 127; return its scale. */
static float round_row(const Model *m, const float *row, int8_t *whole) {
    floats most = all(0);
    for (int64_t i = 0; i < m->dim; i += LANES)
        most = maximum(most, maximum(load(row + i), sub(all(0), load(row + i))));
    const float top = maximum_of(most);
    /* Of smaller ones the reciprocal is infinite. */
    const floats by = all(top > 1e-30f ? 127 / top : 0);
    for (int64_t i = 0; i < m->dim; i += LANES) {
        float each[LANES];
        store(each, rounded(mul(load(row + i), by)));
        for (int64_t k = 0; k < LANES; k++) whole[i + k] = (int8_t)each[k];
    }
    return top / 127;
}

/* Write the key and the value of a row of one head, byte by byte: another thread may write the row
 * beside it. */
static void write_codes(const Model *m, const Layer *layer, bf16 *page, const float *key,
                        const float *value, int64_t row, int64_t head) {
    int8_t whole[MOST_DIM], *keys = codes_at(page, layer->keys),
                            *values = codes_at(page, layer->values),
                            *to = keys + key_place(m, row, head);
    scales_of(m, keys, head)[row] = round_row(m, key, whole);
    for (int64_t i = 0; i < m->dim; i++) to[key_step(i)] = whole[i];
    scales_of(m, values, head)[row] = round_row(m, value, whole);
    to = values + value_place(m, row, head);
    for (int64_t i = 0; i < m->dim; i++) to[value_step(i)] = whole[i];
}

INTERNAL void unpack_keys(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t at, int64_t head, int count, const int8_t *next, bf16 *to) {
    int8_t *keys = codes_at(page_of(f, span, at), layer->keys);
    const float *scales = scales_of(m, keys, head) + at % PAGE;
    for (int b = 0; b < count; b++, scales += LANES) {
        const int64_t start = key_place(m, at % PAGE + b * LANES, head);
        float twice[2 * LANES];
        for (int i = 0; i < 2 * LANES; i++) twice[i] = scales[i / 2];
        const floats first = load(twice), last = load(twice + LANES);
        for (int64_t i = 0; i < LANES * m->dim; i += PANEL) {
            if (i % 64 == 0) prefetch(next + b * m->kv_heads * LANES * m->dim + i);
            unpack(keys + start + i, first, last, to + b * LANES * m->dim + i);
        }
    }
}

INTERNAL void unpack_head(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t low, int64_t reach, int64_t head, bf16 *to) {
    for (int64_t at = low / PAGE * PAGE; at < reach; at += PAGE) {
        const int64_t next = at + PAGE < reach ? at + PAGE : at;
        bf16 *page = page_of(f, span, next), *keys = to + 2 * at * m->dim,
             *values = keys + PAGE * m->dim;
        unpack_keys(m, layer, f, span, at, head, PAGE / LANES,
                    codes_at(page, layer->keys) + key_place(m, 0, head), keys);
        for (int64_t row = 0; row < PAGE; row += PANEL)
            for (int64_t column = 0; column < m->dim; column += LANES)
                unpack_values(m, layer, f, span, at + row, head, column, PANEL / 2, 1,
                              codes_at(page, layer->values) + value_place(m, row, head)
                                  + column / LANES * CHUNK,
                              values + row * m->dim + column / LANES * CHUNK);
    }
}

INTERNAL void write_kv(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                       const float *key, int64_t row, int64_t head) {
    const float *value = key + m->kv_heads * m->dim;
    if (m->kv_coding == BYTES) {
        write_codes(m, layer, page_of(f, span, row), key, value, row % PAGE, head);
        return;
    }
    bf16 *to = key_of(m, layer, f, span, row, head);
    for (int64_t i = 0; i < m->dim; i += LANES) {
        bf16 each[LANES];
        narrow_store(each, load(key + i));
        for (int64_t k = 0; k < LANES; k += 2)
            memcpy(to + (i + k) * LANES, each + k, 2 * sizeof *each);
    }
    bf16 *v = value_of(m, layer, f, span, row, head);
    /* Another thread may write the row beside it. */
    for (int64_t i = 0; i < m->dim; i += LANES, v += CHUNK) store_apart(v, narrow(load(value + i)));
}

/* Copy a row of one head within a page or to another one. */
#define MOVE(number, start, place, step)                                                           \
    do {                                                                                           \
        const number *a_ = (const number *)old + (start) + place(m, from, head);                   \
        number *b_ = (number *)new + (start) + place(m, to, head);                                 \
        for (int64_t i = 0; i < m->dim; i++) b_[step(i)] = a_[step(i)];                            \
    } while (0)
static void move_row(const Model *m, const Layer *layer, bf16 *old, bf16 *new, int64_t from,
                     int64_t to, int64_t head) {
    if (m->kv_coding == BYTES) {
        MOVE(int8_t, layer->keys, key_place, key_step);
        MOVE(int8_t, layer->values, value_place, value_step);
        scales_of(m, codes_at(new, layer->keys), head)[to] =
            scales_of(m, codes_at(old, layer->keys), head)[from];
        scales_of(m, codes_at(new, layer->values), head)[to] =
            scales_of(m, codes_at(old, layer->values), head)[from];
    } else {
        MOVE(bf16, layer->keys, key_place, key_step);
        MOVE(bf16, layer->values, value_place, value_step);
    }
}

/* Copy a row of the pool, counted over its pages, to another one. */
void foreword_move(const Model *m, bf16 *const *page, int64_t from, int64_t to) {
    for (const Layer *layer = m->layer; layer < m->layer + m->layers; layer++)
        for (int64_t head = 0; !layer->taps && head < m->kv_heads; head++)
            move_row(m, layer, page[from / PAGE], page[to / PAGE], from % PAGE, to % PAGE, head);
}
