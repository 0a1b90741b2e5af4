/* The two halves of a layer, and the loop over layers. */

/* 16 weights of one output of a packed matrix, from the `i`th on; pairs of them are a panel's width apart. */
static inline halves packed_row(const bf16 *packed, int64_t outputs, int64_t depth, int64_t output, int64_t i) {
    const int64_t first = output / PANEL * PANEL, wide = outputs - first < PANEL ? LANES : PANEL;
    const bf16 *from = packed + first * depth + (i / 2 * wide + output - first) * 2;
    bf16 each[LANES];
    for (int64_t k = 0; k < LANES; k += 2) memcpy(each + k, from + k * wide, 2 * sizeof *each);
    return load_halves(each);
}

/* What images give row r before layer `l`; NULL = nothing. */
static inline const float *image_of(const Forward *f, int64_t l, int64_t r) { return l < f->image_layers ? f->image[l * f->rows + r] : 0; }

static void add_image(const Model *m, const Forward *f, int64_t l, int64_t r) {
    const float *image = image_of(f, l, r);
    float *x = f->residual + r * m->hidden;
    for (int64_t i = 0; image && i < m->hidden; i += LANES) store(x + i, add(load(x + i), load(image + i)));
}

static void embed(const Model *m, const Forward *f, int64_t r) {
    const float *image = image_of(f, 0, r);
    const floats scale = all(m->embedding_scale ? m->embedding_scale : 1.0f);
    const int64_t token = f->tokens[r], place = at_most(f->positions[r], m->position_count - 1);
    for (int64_t i = 0; i < m->hidden; i += LANES) {
        const halves row = m->embedding ? load_halves(m->embedding + token * m->hidden + i) : packed_row(m->table, m->table_rows, m->hidden, token, i);
        const floats there = m->position_embedding ? widen(load_halves(m->position_embedding + place * m->hidden + i)) : all(0);
        store(f->residual + r * m->hidden + i, image ? add(load(image + i), there) : fused(scale, widen(row), there));
    }
}

/* Norm row r, as input of a product. */
static void norm_row(const Model *m, const Forward *f, const float *weight, const float *bias, int64_t r, factor *to) {
    const float *x = f->residual + r * m->hidden;
    if (m->centred && weight) layer_norm(x, weight, bias, m->eps, m->hidden, to);
    else rms_norm(x, weight, m->eps, m->hidden, to);
}

/* Norm the output of half a layer for row r, in `wide`, and add it to the row. */
static void add_normed(const Model *m, const Forward *f, const float *norm, int64_t r) {
    float *output = f->wide + r * m->hidden, *x = f->residual + r * m->hidden;
    rms_norm_in_place(output, norm, m->eps, m->hidden);
    for (int64_t i = 0; i < m->hidden; i += LANES) store(x + i, add(load(x + i), load(output + i)));
}

static void shape_logits(const Model *m, float *logits) {
    const floats scale = all(m->logit_scale ? m->logit_scale : 1.0f);
    for (int64_t i = 0; i < m->vocab; i += LANES) store_first(logits + i, capped(mul(scale, load_first(logits + i, m->vocab - i, 0)), m->logit_cap), m->vocab - i);
}

static int wants_hidden(const Forward *f, int64_t l) {
    for (int64_t i = 0; i < f->hidden_layer_count; i++)
        if (f->hidden_layers[i] == l) return 1;
    return 0;
}

/* Copy the input of layer `l` for row r, if it was requested. */
static void keep_hidden(const Model *m, const Forward *f, int64_t l, int64_t r) {
    for (int64_t i = 0; i < f->hidden_layer_count; i++)
        if (f->hidden_layers[i] == l) memcpy(f->hidden_states + (r * f->hidden_layer_count + i) * m->hidden, f->residual + r * m->hidden, m->hidden * sizeof(float));
}

/* Compute the head's input: row r after the final norm, or as it is without one. */
static void head_input(const Model *m, const Forward *f, int64_t r, factor *to) {
    norm_row(m, f, m->norm, m->norm_bias, r, to);
}

static void keep_last_hidden(const Model *m, const Forward *f, int64_t r) {
    keep_hidden(m, f, m->layers + 1, r);
    factor *normed = f->narrow + r * m->hidden;
    head_input(m, f, r, normed);
    for (int64_t i = 0; i < f->hidden_layer_count; i++)
        for (int64_t at = 0; f->hidden_layers[i] == m->layers && at < m->hidden; at += LANES)
            store(f->hidden_states + (r * f->hidden_layer_count + i) * m->hidden + at, load_factors(normed + at));
}

static inline int64_t depth_of(const Model *m, const Layer *layer) { return layer->given_norm ? 2 * m->hidden : m->hidden; }

/* Compute the input of attention: the normed row, and beside it the given hidden state if the layer has given_norm. */
static void attention_input(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const int64_t depth = depth_of(m, layer);
    float *x = f->residual + r * m->hidden;
    factor *to = f->narrow + r * depth, *beside = to + m->hidden;
    norm_row(m, f, layer->norm, layer->norm_bias, r, to);
    if (!layer->given_norm) return;
    rms_norm(f->given[r], layer->given_norm, m->eps, m->hidden, beside);
    if (!layer->normed) memcpy(x, f->given[r], m->hidden * sizeof(float));
    else for (int64_t i = 0; i < m->hidden; i += LANES) store(x + i, load_factors(beside + i));
}

/* Whether the output of attention stays in `wide` until the MLP has read the row. */
static inline int defers_add(const Model *m, const Layer *layer) { return m->parallel && !layer->skipped; }

/* Compute the input of the MLP for row r. */
static void mlp_input(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    float *x = f->residual + r * m->hidden;
    norm_row(m, f, layer->mlp_norm, layer->mlp_norm_bias, r, f->narrow + r * m->hidden);
    for (int64_t i = 0; defers_add(m, layer) && i < m->hidden; i += LANES) store(x + i, add(load(x + i), load(f->wide + r * m->hidden + i)));
}

/* Activate 16 numbers of an ungated MLP. */
static void activate(const Model *m, const Forward *f, factor *to, int64_t at) {
    store_factors(to + at * LANES, plainly_activated(load(f->wide + at * LANES), m->activation));
}

/* Norm the queries and keys of a row, each over all heads. */
static void norm_broadly(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    float *x = f->wide + r * wide_of(m);
    rms_norm_in_place(x, layer->query_norm, m->eps, m->heads * m->dim);
    rms_norm_in_place(x + m->heads * query_stride_of(m), layer->key_norm, m->eps, m->kv_heads * m->dim);
}

/* Rotate queries and keys, and write keys and values to the pool: one kv head and 16 rows from `row` on. Rows share cache
 * lines of the pool, so one thread writes them, usually the one that reads them in attention. */
static void rotate_and_write(const Model *m, const Layer *layer, const Forward *f, int64_t kv, int64_t row) {
    const int64_t group = m->heads / m->kv_heads;
    const float *query_norm = m->broad ? 0 : layer->query_norm, *key_norm = m->broad ? 0 : layer->key_norm;
    for (int64_t r = row; r < row + LANES && r < f->rows; r++) {
        float *query = f->wide + r * wide_of(m) + kv * group * query_stride_of(m), *key = f->wide + r * wide_of(m) + m->heads * query_stride_of(m) + kv * m->dim;
        const int64_t at = f->positions[r] * m->rotary_dim;
        const float *cos = layer->cos ? layer->cos + at : 0, *sin = layer->sin ? layer->sin + at : 0;
        const floats scale = all(m->query_scale ? m->query_scale[f->positions[r]] : 1);
        for (int64_t h = 0; h < group; h++) {
            float *one = query + h * query_stride_of(m);
            norm_and_rotate(m, one, query_norm, cos, sin);
            for (int64_t i = 0; m->query_scale && i < m->dim; i += LANES) store(one + i, mul(scale, load(one + i)));
        }
        norm_and_rotate(m, key, key_norm, cos, sin);
        const Span *span = span_of(f, r);
        write_kv(m, layer, f, span, key, span->past + span->held + r - span->start, kv);
    }
}

/* Multiply the attention output of row r by the sigmoid of the gates stored behind its queries. */
static void gate_attention(const Model *m, const Forward *f, int64_t r) {
    for (int64_t h = 0; h < m->heads; h++) {
        const float *gate = f->wide + r * wide_of(m) + h * query_stride_of(m) + m->dim;
        factor *output = f->narrow + (r * m->heads + h) * m->dim;
        for (int64_t i = 0; i < m->dim; i += LANES)
            store_factors(output + i, mul(sigmoid(load(gate + i)), load_factors(output + i)));
    }
}

#include "recurrent.c"
#include "experts.c"

/* Share a loop over rows or heads among threads, `size` of them a chunk. */
#define SHARE(total, size, item, work)                                                       \
    do {                                                                                     \
        int64_t chunks_ = parts_of(total, size);                                             \
        for (int64_t c_; (c_ = claim(w, chunks_)) >= 0; finished(w))                         \
            for (int64_t item = c_ * (size); item < (total) && item < (c_ + 1) * (size); item++) work; \
        wait(w, chunks_);                                                                    \
    } while (0)

/* Quantize row r of `x` for a product with this matrix, if it needs that. */
static inline void quantize_row(const Model *m, const Forward *f, const void *matrix, factor *x, int64_t depth, int64_t r) {
    quantize_for(matrix, m->coding, x + r * depth, depth, f->steps + r);
}

/* The same for all rows, after a phase in which several threads wrote each. */
#define QUANTIZE_ROWS(matrix, x, depth) do { if (m->coding != WHOLE) SHARE(rows, 2, r, quantize_row(m, f, matrix, x, depth, r)); } while (0)

/* All rows and kv heads. */
#define ROTATE_AND_WRITE(layer)                                                                           \
    do {                                                                                                  \
        if (m->broad) SHARE(rows, 4, r, norm_broadly(m, layer, f, r));                                    \
        SHARE(m->kv_heads * blocks, 1, u, rotate_and_write(m, layer, f, u / blocks, u % blocks * LANES)); \
    } while (0)

/* Write keys and values of all layers from the same rows, after the final norm. */
static void write_all_kv(const Model *m, const Forward *f, Worker *w) {
    const int64_t rows = f->rows, blocks = parts_of(rows, LANES), wide = wide_of(m);
    SHARE(rows, 4, r, (head_input(m, f, r, f->narrow + r * m->hidden), quantize_row(m, f, m->layer->qkv, f->narrow, m->hidden, r)));
    for (const Layer *layer = m->layer; layer < m->layer + m->layers; layer++) {
        product(&(Product){f->narrow, layer->qkv, rows, m->hidden, wide, STORE, f->wide, layer->qkv_bias, 0, m->coding, .steps = f->steps}, w);
        ROTATE_AND_WRITE(layer);
    }
}

/* The recurrent part of a layer, in place of attention. */
static void run_recurrent(const Model *m, const Layer *layer, const Forward *f, Worker *w) {
    const Recurrence *a = m->recurrence;
    const int64_t rows = f->rows, blocks = a->channels / LANES, outputs = a->heads ? a->heads * a->dim : a->channels, each = parts_of(blocks * f->spans, CHUNKS * w->threads);
    SHARE(rows, 4, r, (rms_norm(f->residual + r * m->hidden, layer->norm, m->eps, m->hidden, f->narrow + r * m->hidden), quantize_row(m, f, layer->qkv, f->narrow, m->hidden, r)));
    product(&(Product){f->narrow, layer->qkv, rows, m->hidden, a->spread, STORE, f->wide, 0, 0, m->coding, .steps = f->steps}, w);
    if (!a->heads) SHARE(rows, 4, r, gate_input(a, f->wide + r * a->spread));
    SHARE(blocks * f->spans, each, u, convolve(m, layer, f, f->span + u / blocks, u % blocks * LANES));
    if (!a->heads) SHARE(rows, 4, r, gate_output(a, f->wide + r * a->spread, f->narrow + r * a->channels));
    else SHARE(a->heads * f->spans, 1, u, update_head(m, layer, f, f->span + u / a->heads, u % a->heads, f->states + w->me * f->room));
    QUANTIZE_ROWS(layer->out, f->narrow, outputs);
    product(&(Product){f->narrow, layer->out, rows, outputs, m->hidden, ADD, f->residual, 0, 0, m->coding, 0, 1, .steps = f->steps}, w);
}

/* The experts of a layer, in place of an MLP. */
static void run_experts(const Model *m, const Layer *layer, const Forward *f, Worker *w) {
    const Experts *e = m->experts;
    const Routing *a = f->routing;
    const int64_t rows = f->rows, places = rows * each_of(e);
    SHARE(rows, 4, r, rms_norm(f->residual + r * m->hidden, layer->mlp_norm, m->eps, m->hidden, f->narrow + r * m->hidden));
    product(&(Product){f->narrow, layer->router, rows, m->hidden, routed_of(e), STORE, f->wide, layer->router_bias}, w);
    SHARE(rows, 4, r, route(m, layer, f, r));
    SHARE(1, 1, once, group_by_expert(e, rows, a));
    SHARE(places, 4, place, gather_row(m, layer, f, place));
    expert_products(m, a, &(Product){a->gathered, layer->gate_up, places, m->hidden, 2 * e->inner, GATE, 0, layer->up_bias, a->gated, m->coding, m->activation, .steps = a->steps}, w);
    if (m->coding != WHOLE) SHARE(places, 2, place, quantize_for(layer->down, m->coding, a->gated + place * e->inner, e->inner, a->steps + place));
    expert_products(m, a, &(Product){a->gated, layer->down, places, e->inner, m->hidden, STORE, a->outputs, layer->down_bias, 0, m->coding, .steps = a->steps}, w);
    SHARE(rows, 4, r, add_experts(m, layer, f, r));
}

/* Cross-attention: each row attends to the source of its sequence. */
static void run_cross(const Model *m, const Layer *layer, const Forward *f, Worker *w, int64_t tile, int64_t units, int64_t share, Unpacked *unpacked) {
    const int64_t rows = f->rows, inner = m->heads * m->dim;
    SHARE(rows, 4, r, (norm_row(m, f, layer->cross_norm, layer->cross_norm_bias, r, f->narrow + r * m->hidden), quantize_row(m, f, layer->cross_q, f->narrow, m->hidden, r)));
    product(&(Product){f->narrow, layer->cross_q, rows, m->hidden, inner, STORE, f->wide, layer->cross_q_bias, 0, m->coding, .steps = f->steps}, w);
    SHARE(units, share, u, attend(m, layer, f, u, tile, f->scores + w->me * MOST_QUERIES * f->longest, unpacked, 1));
    QUANTIZE_ROWS(layer->cross_out, f->narrow, inner);
    product(&(Product){f->narrow, layer->cross_out, rows, inner, m->hidden, ADD, f->residual, layer->cross_out_bias, 0, m->coding, 0, 1, .steps = f->steps}, w);
}

static void run(const Model *m, const Forward *f, Worker *w) {
    if (f->kv_only) {
        write_all_kv(m, f, w);
        return;
    }
    const int64_t rows = f->rows, blocks = parts_of(rows, LANES), wide = wide_of(m);
    /* Few queries are split into small tiles, so that every thread has some; results are the same. */
    const int64_t each = rows * m->heads / (2 * w->threads), most = attends_in_registers(m) ? MOST_QUERIES : QUERIES, tile = at_least(at_most(each, most), 1);
    int64_t units = 0;
    for (int64_t i = 0; i < f->spans; i++) units += units_of(m, f->span + i, tile);
    const int64_t share = w->threads == 1 ? units : parts_of(units, CHUNKS * w->threads);
    factor *gated = f->narrow + rows * m->hidden;
    const float scale = m->residual_scale ? m->residual_scale : 1;
    Unpacked unpacked = {.pages = f->unpacked ? f->unpacked + w->me * 2 * parts_of(f->longest, PAGE) * PAGE * m->dim : 0};
    for (int64_t l = 0; l < m->layers; l++) {
        const Layer *layer = m->layer + l;
        if (m->stream) enter_layer(m->stream, l, w->me);
        if (l == 0) SHARE(rows, 4, r, embed(m, f, r));
        else if (l < f->image_layers) SHARE(rows, 4, r, add_image(m, f, l, r));
        if (wants_hidden(f, l)) SHARE(rows, 4, r, keep_hidden(m, f, l, r));
        if (layer->taps) run_recurrent(m, layer, f, w);
        else if (!(layer->skipped & ATTENTION)) {
            SHARE(rows, 4, r, (attention_input(m, layer, f, r), quantize_row(m, f, layer->qkv, f->narrow, depth_of(m, layer), r)));
            product(&(Product){f->narrow, layer->qkv, rows, depth_of(m, layer), wide, STORE, f->wide, layer->qkv_bias, 0, m->coding, .steps = f->steps}, w);
            ROTATE_AND_WRITE(layer);
            SHARE(units, share, u, attend(m, layer, f, u, tile, f->scores + w->me * MOST_QUERIES * f->longest, &unpacked, 0));
            if (query_stride_of(m) > m->dim) SHARE(rows, 2, r, gate_attention(m, f, r));
            QUANTIZE_ROWS(layer->out, f->narrow, m->heads * m->dim);
            const float *norm = layer->said_norm;
            const int later = norm || defers_add(m, layer);
            product(&(Product){f->narrow, layer->out, rows, m->heads * m->dim, m->hidden, later ? STORE : ADD, later ? f->wide : f->residual, layer->out_bias, 0, m->coding, 0, scale, .steps = f->steps}, w);
            if (norm) SHARE(rows, 4, r, add_normed(m, f, norm, r));
        }
        if (layer->cross_q) run_cross(m, layer, f, w, tile, units, share, &unpacked);
        if (layer->skipped & MLP) continue;
        const float *norm = layer->mlp_said_norm;
        if (layer->router) run_experts(m, layer, f, w);
        else {
            SHARE(rows, 4, r, (mlp_input(m, layer, f, r), quantize_row(m, f, layer->gate_up, f->narrow, m->hidden, r)));
            if (m->plain) {
                product(&(Product){f->narrow, layer->gate_up, rows, m->hidden, m->intermediate, STORE, f->wide, layer->up_bias, 0, m->coding, .steps = f->steps}, w);
                SHARE(rows * m->intermediate / LANES, 64, at, activate(m, f, gated, at));
            } else product(&(Product){f->narrow, layer->gate_up, rows, m->hidden, 2 * m->intermediate, GATE, 0, 0, gated, m->coding, m->activation, .steps = f->steps}, w);
            QUANTIZE_ROWS(layer->down, gated, m->intermediate);
            product(&(Product){gated, layer->down, rows, m->intermediate, m->hidden, norm ? STORE : ADD, norm ? f->wide : f->residual, layer->down_bias, 0, m->coding, 0, scale, .steps = f->steps}, w);
        }
        if (norm) SHARE(rows, 4, r, add_normed(m, f, norm, r));
    }
    if (wants_hidden(f, m->layers) || wants_hidden(f, m->layers + 1)) SHARE(rows, 4, r, keep_last_hidden(m, f, r));
    if (!f->kept) return;
    SHARE(f->kept, 4, i, (head_input(m, f, f->keep[i], f->narrow + i * m->hidden), quantize_row(m, f, m->head, f->narrow, m->hidden, i)));
    const int64_t outputs = parts_of(m->vocab, LANES) * LANES; /* the last panel may have unused outputs */
    product(&(Product){f->narrow, m->head, f->kept, m->hidden, outputs, STORE, f->logits, m->head_bias, 0, m->coding, .stored = m->vocab, .steps = f->steps}, w);
    if (m->logit_cap || m->logit_scale) SHARE(f->kept, 1, i, shape_logits(m, f->logits + i * m->vocab));
}
