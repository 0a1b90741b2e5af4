#include "rows.h"

#include "../attention/attention.h"
#include "../products/product.h"
#include "norms.h"

/* 16 weights of one output of a packed matrix, from the `i`th on; pairs of them are a panel's width
 * apart. */
static inline halves packed_row(const bf16 *packed, int64_t outputs, int64_t depth, int64_t output,
                                int64_t i) {
    const int64_t first = output / PANEL * PANEL, wide = outputs - first < PANEL ? LANES : PANEL;
    const bf16 *from = packed + first * depth + (i / 2 * wide + output - first) * 2;
    bf16 each[LANES];
    for (int64_t k = 0; k < LANES; k += 2) memcpy(each + k, from + k * wide, 2 * sizeof *each);
    return load_halves(each);
}

/* What images give row r before layer `l`; NULL = nothing. */
static inline const float *image_of(const Forward *f, int64_t l, int64_t r) {
    return l < f->image_layers ? f->image[l * f->rows + r] : 0;
}

INTERNAL void add_image(const Model *m, const Forward *f, int64_t l, int64_t r) {
    const float *image = image_of(f, l, r);
    float *x = f->residual + r * m->hidden;
    for (int64_t i = 0; image && i < m->hidden; i += LANES)
        store(x + i, add(load(x + i), load(image + i)));
}

INTERNAL void embed(const Model *m, const Forward *f, int64_t r) {
    const float *image = image_of(f, 0, r);
    const floats scale = all(m->embedding_scale ? m->embedding_scale : 1.0f);
    const int64_t token = f->tokens[r], place = at_most(f->positions[r], m->position_count - 1);
    float *x = f->residual + r * m->hidden;
    if (m->table_kind && !image) unpack_row(m->table_kind - 1, m->table, token, m->hidden, x);
    for (int64_t i = 0; i < m->hidden; i += LANES) {
        const floats row =
            m->table_kind  ? load(x + i)
            : m->embedding ? widen(load_halves(m->embedding + token * m->hidden + i))
                           : widen(packed_row(m->table, m->table_rows, m->hidden, token, i));
        const floats there = m->position_embedding
                                 ? widen(load_halves(m->position_embedding + place * m->hidden + i))
                                 : all(0);
        store(x + i, image ? add(load(image + i), there) : fused(scale, row, there));
    }
}

INTERNAL void join_input(const Model *m, const Forward *f, int64_t r) {
    factor *to = f->narrow + r * 2 * m->hidden;
    rms_norm(f->residual + r * m->hidden, m->embedding_norm, m->eps, m->hidden, to);
    rms_norm(f->given[r], m->state_norm, m->eps, m->hidden, to + m->hidden);
}

INTERNAL void resume(const Model *m, const Forward *f, int64_t r) {
    memcpy(f->residual + r * m->hidden, f->given[r], m->hidden * sizeof(float));
}

INTERNAL void norm_row(const Model *m, const Forward *f, const float *weight, const float *bias,
                       int64_t r, factor *to) {
    const float *x = f->residual + r * m->hidden;
    if (m->centred && weight) layer_norm(x, weight, bias, m->eps, m->hidden, to);
    else rms_norm(x, weight, m->eps, m->hidden, to);
}

INTERNAL void add_normed(const Model *m, const Forward *f, const float *norm, int64_t r) {
    float *output = f->wide + r * m->hidden, *x = f->residual + r * m->hidden;
    rms_norm_in_place(output, norm, m->eps, m->hidden);
    for (int64_t i = 0; i < m->hidden; i += LANES) store(x + i, add(load(x + i), load(output + i)));
}

INTERNAL void shape_logits(const Model *m, float *logits) {
    const floats scale = all(m->logit_scale ? m->logit_scale : 1.0f);
    for (int64_t i = 0; i < m->vocab; i += LANES)
        store_first(logits + i,
                    capped(mul(scale, load_first(logits + i, m->vocab - i, 0)), m->logit_cap),
                    m->vocab - i);
}

INTERNAL int wants_hidden(const Forward *f, int64_t l) {
    for (int64_t i = 0; i < f->hidden_layer_count; i++)
        if (f->hidden_layers[i] == l) return 1;
    return 0;
}

INTERNAL void keep_hidden(const Model *m, const Forward *f, int64_t l, int64_t r) {
    for (int64_t i = 0; i < f->hidden_layer_count; i++)
        if (f->hidden_layers[i] == l)
            memcpy(f->hidden_states + (r * f->hidden_layer_count + i) * m->hidden,
                   f->residual + r * m->hidden, m->hidden * sizeof(float));
}

INTERNAL void head_input(const Model *m, const Forward *f, int64_t r, factor *to) {
    norm_row(m, f, m->norm, m->norm_bias, r, to);
}

INTERNAL void keep_last_hidden(const Model *m, const Forward *f, int64_t r) {
    keep_hidden(m, f, m->layers + 1, r);
    factor *normed = f->narrow + r * m->hidden;
    head_input(m, f, r, normed);
    for (int64_t i = 0; i < f->hidden_layer_count; i++)
        for (int64_t at = 0; f->hidden_layers[i] == m->layers && at < m->hidden; at += LANES)
            store(f->hidden_states + (r * f->hidden_layer_count + i) * m->hidden + at,
                  load_factors(normed + at));
}

/* Compute the input of attention: the normed row, and beside it the given hidden state if the layer
 * has given_norm. */
INTERNAL void attention_input(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const int64_t depth = depth_of(m, layer);
    float *x = f->residual + r * m->hidden;
    factor *to = f->narrow + r * depth, *beside = to + m->hidden;
    norm_row(m, f, layer->norm, layer->norm_bias, r, to);
    if (!layer->given_norm) return;
    rms_norm(f->given[r], layer->given_norm, m->eps, m->hidden, beside);
    if (!layer->normed) memcpy(x, f->given[r], m->hidden * sizeof(float));
    else
        for (int64_t i = 0; i < m->hidden; i += LANES) store(x + i, load_factors(beside + i));
}

INTERNAL void mlp_input(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    float *x = f->residual + r * m->hidden;
    norm_row(m, f, layer->mlp_norm, layer->mlp_norm_bias, r, f->narrow + r * m->hidden);
    for (int64_t i = 0; defers_add(m, layer) && i < m->hidden; i += LANES)
        store(x + i, add(load(x + i), load(f->wide + r * m->hidden + i)));
}

INTERNAL void activate(const Model *m, const Forward *f, factor *to, int64_t at) {
    store_factors(to + at * LANES, plainly_activated(load(f->wide + at * LANES), m->activation));
}

INTERNAL void norm_broadly(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    float *x = f->wide + r * wide_of(m);
    rms_norm_in_place(x, layer->query_norm, m->eps, m->heads * m->dim);
    rms_norm_in_place(x + m->heads * query_stride_of(m), layer->key_norm, m->eps,
                      m->kv_heads * m->dim);
}

INTERNAL void rotate_and_write(const Model *m, const Layer *layer, const Forward *f, int64_t kv,
                               int64_t row) {
    const int64_t group = m->heads / m->kv_heads;
    const float *query_norm = m->broad ? 0 : layer->query_norm,
                *key_norm = m->broad ? 0 : layer->key_norm;
    for (int64_t r = row; r < row + LANES && r < f->rows; r++) {
        float *query = f->wide + r * wide_of(m) + kv * group * query_stride_of(m),
              *key = f->wide + r * wide_of(m) + m->heads * query_stride_of(m) + kv * m->dim;
        const int64_t at = f->positions[r] * m->rotary_dim;
        const float *cos = layer->cos ? layer->cos + at : 0,
                    *sin = layer->sin ? layer->sin + at : 0;
        const floats scale = all(m->query_scale ? m->query_scale[f->positions[r]] : 1);
        for (int64_t h = 0; h < group; h++) {
            float *one = query + h * query_stride_of(m);
            norm_and_rotate(m, one, query_norm, cos, sin);
            for (int64_t i = 0; m->query_scale && i < m->dim; i += LANES)
                store(one + i, mul(scale, load(one + i)));
        }
        norm_and_rotate(m, key, key_norm, cos, sin);
        const Span *span = span_of(f, r);
        write_kv(m, layer, f, span, key, span->past + span->held + r - span->start, kv);
    }
}

INTERNAL void gate_attention(const Model *m, const Forward *f, int64_t r) {
    for (int64_t h = 0; h < m->heads; h++) {
        const float *gate = f->wide + r * wide_of(m) + h * query_stride_of(m) + m->dim;
        factor *output = f->narrow + (r * m->heads + h) * m->dim;
        for (int64_t i = 0; i < m->dim; i += LANES)
            store_factors(output + i, mul(sigmoid(load(gate + i)), load_factors(output + i)));
    }
}

INTERNAL void quantize_row(const Model *m, const Forward *f, const void *matrix, factor *x,
                           int64_t depth, int64_t r) {
    quantize_for(matrix, m->coding, x + r * depth, depth, f->steps + r);
}
