/* Storage of keys and values: bfloat16, or 8 bits with a scale for each row of a head.
 *
 * They lie in pages of 64 rows, each with those of every layer; a sequence has pages anywhere in memory. With 8 bits a row
 * is rounded when it is written, and attention reads bfloat16(code * scale): the attention is that over bfloat16 rows. The
 * rows of a forward are written before any is read, so a row's bits do not depend on how tokens are split over forwards.
 */
#define PAGE 64
static inline bf16 *page_of(const Forward *f, const Span *span, int64_t row) { return f->page[span->pages[row / PAGE]]; }

/* Keys of a page are stored in blocks of 16 rows, [block][kv_head][dim / 2][16][2]: one load holds two numbers of 16 keys. */
static inline int64_t key_place(const Model *m, int64_t row, int64_t head) { return ((row / LANES) * m->kv_heads + head) * LANES * m->dim + row % LANES * 2; }

/* Values of a page are stored in blocks of 32 rows, [block][kv_head][dim / 16][16][16][2]: one load holds 16 numbers of two rows. */
#define CHUNK (LANES * PANEL)
static inline int64_t value_place(const Model *m, int64_t row, int64_t head) { return ((row / PANEL) * m->kv_heads + head) * PANEL * m->dim + row % PANEL / 2 * PANEL + row % 2; }

/* Where number `i` of a row is, counted from its first. */
static inline int64_t key_step(int64_t i) { return i / 2 * PANEL + i % 2; }
static inline int64_t value_step(int64_t i) { return i / LANES * CHUNK + i % LANES * 2; }

/* The same in bfloat16, by row of a sequence. */
static inline bf16 *key_of(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t row, int64_t head) {
    return page_of(f, span, row) + layer->keys + key_place(m, row % PAGE, head);
}
static inline bf16 *value_of(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t row, int64_t head) {
    return page_of(f, span, row) + layer->values + value_place(m, row % PAGE, head);
}

/* ---- 8 bits: the keys, or the values, of a layer are codes as above, then their scales [kv_head][64] */

static inline int8_t *codes_at(bf16 *page, int64_t start) { return (int8_t *)page + start; }
static inline float *scales_of(const Model *m, int8_t *codes, int64_t head) { return (float *)(codes + PAGE * m->kv_heads * m->dim) + head * PAGE; }

/* Round a row of one head to integers, of which the largest is 127; return its scale. */
static float round_row(const Model *m, const float *row, int8_t *whole) {
    floats most = all(0);
    for (int64_t i = 0; i < m->dim; i += LANES) most = maximum(most, maximum(load(row + i), sub(all(0), load(row + i))));
    const float top = maximum_of(most);
    const floats by = all(top > 1e-30f ? 127 / top : 0); /* of smaller ones the reciprocal is infinite */
    for (int64_t i = 0; i < m->dim; i += LANES) {
        float each[LANES];
        store(each, rounded(mul(load(row + i), by)));
        for (int64_t k = 0; k < LANES; k++) whole[i + k] = (int8_t)each[k];
    }
    return top / 127;
}

/* Write the key and the value of a row of one head, byte by byte: another thread may write the row beside it. */
static void write_codes(const Model *m, const Layer *layer, bf16 *page, const float *key, const float *value, int64_t row, int64_t head) {
    int8_t whole[MOST_DIM], *keys = codes_at(page, layer->keys), *values = codes_at(page, layer->values), *to = keys + key_place(m, row, head);
    scales_of(m, keys, head)[row] = round_row(m, key, whole);
    for (int64_t i = 0; i < m->dim; i++) to[key_step(i)] = whole[i];
    scales_of(m, values, head)[row] = round_row(m, value, whole);
    to = values + value_place(m, row, head);
    for (int64_t i = 0; i < m->dim; i++) to[value_step(i)] = whole[i];
}

/* Unpack 32 codes, with the scales of the first and of the last 16. */
INLINE void unpack(const int8_t *codes, floats first, floats last, bf16 *to) { store_two(to, mul(load_signed(codes), first), mul(load_signed(codes + LANES), last)); }

/* Unpack `count` blocks of 16 keys of one page, from row `at` of the sequence on; prefetches those at `next`. */
static void unpack_keys(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t at, int64_t head, int count, const int8_t *next, bf16 *to) {
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

/* Unpack D * 16 columns of `count` pairs of values from the even row `at` on, at their places in a block; prefetches those at `next`. */
INLINE void unpack_values(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t at, int64_t head, int64_t column, int count, const int D, const int8_t *next, bf16 *to) {
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

/* Unpack the keys and values of a head, those of the pages from row `low` on, as pages of one head. */
static void unpack_head(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t low, int64_t reach, int64_t head, bf16 *to) {
    for (int64_t at = low / PAGE * PAGE; at < reach; at += PAGE) {
        const int64_t next = at + PAGE < reach ? at + PAGE : at;
        bf16 *page = page_of(f, span, next), *keys = to + 2 * at * m->dim, *values = keys + PAGE * m->dim;
        unpack_keys(m, layer, f, span, at, head, PAGE / LANES, codes_at(page, layer->keys) + key_place(m, 0, head), keys);
        for (int64_t row = 0; row < PAGE; row += PANEL)
            for (int64_t column = 0; column < m->dim; column += LANES)
                unpack_values(m, layer, f, span, at + row, head, column, PANEL / 2, 1, codes_at(page, layer->values) + value_place(m, row, head) + column / LANES * CHUNK, values + row * m->dim + column / LANES * CHUNK);
    }
}

/* ---- both */

static void write_kv(const Model *m, const Layer *layer, const Forward *f, const Span *span, const float *key, int64_t row, int64_t head) {
    const float *value = key + m->kv_heads * m->dim;
    if (m->kv_coding == BYTES) {
        write_codes(m, layer, page_of(f, span, row), key, value, row % PAGE, head);
        return;
    }
    bf16 *to = key_of(m, layer, f, span, row, head);
    for (int64_t i = 0; i < m->dim; i += LANES) {
        bf16 each[LANES];
        narrow_store(each, load(key + i));
        for (int64_t k = 0; k < LANES; k += 2) memcpy(to + (i + k) * LANES, each + k, 2 * sizeof *each);
    }
    bf16 *v = value_of(m, layer, f, span, row, head);
    for (int64_t i = 0; i < m->dim; i += LANES, v += CHUNK) store_apart(v, narrow(load(value + i))); /* another thread may write the row beside it */
}

/* Where `count` blocks of 16 keys from row `at` on are in bfloat16, `key_stride` apart: in the page, or unpacked in `room`. */
INLINE const bf16 *keys_at(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t at, int64_t reach, int64_t head, int count, bf16 *room) {
    if (m->kv_coding != BYTES) return key_of(m, layer, f, span, at, head);
    const int64_t next = at + count * LANES < reach ? at + count * LANES : at;
    unpack_keys(m, layer, f, span, at, head, count, codes_at(page_of(f, span, next), layer->keys) + key_place(m, next % PAGE, head), room);
    return room;
}
static inline int64_t key_stride(const Model *m) { return (m->kv_coding == BYTES ? 1 : m->kv_heads) * LANES * m->dim; }

/* Where D * 16 columns of `count` pairs of values from the even row `at` on are in bfloat16: in the page, or unpacked in `room`. */
INLINE const bf16 *values_at(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t at, int64_t reach, int64_t head, int64_t column, int count, const int D, bf16 *room) {
    if (m->kv_coding != BYTES) return value_of(m, layer, f, span, at, head) + column / LANES * CHUNK;
    const int64_t next = at / PANEL * PANEL + PANEL < reach ? at / PANEL * PANEL + PANEL : at;
    unpack_values(m, layer, f, span, at, head, column, count, D, codes_at(page_of(f, span, next), layer->values) + value_place(m, next % PAGE, head) + column / LANES * CHUNK, room);
    return room + at % PANEL / 2 * PANEL;
}

/* Copy a row of one head within a page or to another one. */
#define MOVE(number, start, place, step)                                                                       \
    do {                                                                                                       \
        const number *a_ = (const number *)old + (start) + place(m, from, head);                               \
        number *b_ = (number *)new + (start) + place(m, to, head);                                             \
        for (int64_t i = 0; i < m->dim; i++) b_[step(i)] = a_[step(i)];                                        \
    } while (0)
static void move_row(const Model *m, const Layer *layer, bf16 *old, bf16 *new, int64_t from, int64_t to, int64_t head) {
    if (m->kv_coding == BYTES) {
        MOVE(int8_t, layer->keys, key_place, key_step);
        MOVE(int8_t, layer->values, value_place, value_step);
        scales_of(m, codes_at(new, layer->keys), head)[to] = scales_of(m, codes_at(old, layer->keys), head)[from];
        scales_of(m, codes_at(new, layer->values), head)[to] = scales_of(m, codes_at(old, layer->values), head)[from];
    } else {
        MOVE(bf16, layer->keys, key_place, key_step);
        MOVE(bf16, layer->values, value_place, value_step);
    }
}

/* Copy a row of the pool, counted over its pages, to another one. */
void foreword_move(const Model *m, bf16 *const *page, int64_t from, int64_t to) {
    for (const Layer *layer = m->layer; layer < m->layer + m->layers; layer++)
        for (int64_t head = 0; !layer->taps && head < m->kv_heads; head++) move_row(m, layer, page[from / PAGE], page[to / PAGE], from % PAGE, to % PAGE, head);
}
