/* The two halves of a layer, the loop over layers, and the head.
 *
 * Every function is run by all threads; SHARE divides a loop among them.
 */
#include "layer.h"

#include "../attention/attention.h"
#include "../products/product.h"
#include "../stream.h"
#include "experts.h"
#include "low_rank.h"
#include "norms.h"
#include "recurrent.h"
#include "rows.h"

/* What a thread needs in every layer of a forward. */
typedef struct {
    const Model *m;
    const Forward *f;
    Worker *w;
    int64_t tile;         /* queries of a unit of attention */
    int64_t units, share; /* of all spans; of a chunk */
    Unpacked unpacked;
} Run;

/* Names of what a run holds. */
#define OPENED(run)                                                                                \
    const Model *m = (run)->m;                                                                     \
    const Forward *f = (run)->f;                                                                   \
    Worker *w = (run)->w;                                                                          \
    const int64_t rows = f->rows

/* Quantize all rows for a product, after a phase in which several threads wrote each. */
#define QUANTIZE_ROWS(matrix, x, depth)                                                            \
    do {                                                                                           \
        if (m->coding != WHOLE) SHARE(rows, 2, r, quantize_row(m, f, matrix, x, depth, r));        \
    } while (0)

/* The same, where adapters may add to the product: they read the row before. */
#define READY_ROWS(layer, which, x, depth)                                                         \
    do {                                                                                           \
        if (m->coding != WHOLE || f->sums)                                                         \
            SHARE(rows, 2, r, ready_row(m, f, layer, which, x, depth, r));                         \
    } while (0)

/* The product of all rows of `x` and a packed weight, to be stored. */
static Product times(const Run *run, const factor *x, int64_t depth, const void *weight,
                     int64_t outputs, float *to, const float *bias) {
    return (Product){.x = x,
                     .weight = weight,
                     .rows = run->f->rows,
                     .depth = depth,
                     .outputs = outputs,
                     .kind = STORE,
                     .to = to,
                     .bias = bias,
                     .coding = run->m->coding,
                     .portable = run->m->portable,
                     .steps = run->f->steps};
}

/* The same, to be added to the rows, multiplied by `scale`. */
static Product added(const Run *run, const factor *x, int64_t depth, const void *weight,
                     const float *bias, float scale) {
    Product p = times(run, x, depth, weight, run->m->hidden, run->f->residual, bias);
    p.kind = ADD;
    p.scale = scale;
    return p;
}

/* Half of a layer: its output is added to the rows, or stored in `wide`, because it is normed or
 * added later. */
static Product half(const Run *run, const factor *x, int64_t depth, const void *weight,
                    const float *bias, int later) {
    const Model *m = run->m;
    if (later) return times(run, x, depth, weight, m->hidden, run->f->wide, bias);
    return added(run, x, depth, weight, bias, m->residual_scale ? m->residual_scale : 1);
}

/* All rows to a gate and its input, which it multiplies. */
static Product gate(const Run *run, const factor *x, const void *weight, int64_t inner,
                    factor *gated) {
    Product p = times(run, x, run->m->hidden, weight, 2 * inner, 0, 0);
    p.kind = GATE;
    p.gated = gated;
    p.activation = run->m->activation;
    return p;
}

/* Norm and rotate queries and keys, and write keys and values. */
static void place_rows(const Run *run, const Layer *layer) {
    OPENED(run);
    const int64_t blocks = parts_of(rows, LANES);
    if (m->broad) SHARE(rows, 4, r, norm_broadly(m, layer, f, r));
    SHARE(m->kv_heads * blocks, 1, u,
          rotate_and_write(m, layer, f, u / blocks, u % blocks * LANES));
}

/* Write keys and values of all layers from the same rows, after the final norm. */
static void write_all_kv(const Run *run) {
    OPENED(run);
    SHARE(rows, 4, r,
          (head_input(m, f, r, f->narrow + r * m->hidden),
           quantize_row(m, f, m->layer->qkv, f->narrow, m->hidden, r)));
    for (const Layer *layer = m->layer; layer < m->layer + m->layers; layer++) {
        const Product qkv =
            times(run, f->narrow, m->hidden, layer->qkv, wide_of(m), f->wide, layer->qkv_bias);
        product(&qkv, w);
        place_rows(run, layer);
    }
}

/* The recurrent part of a layer, in place of attention. */
static void run_recurrent(const Run *run, const Layer *layer) {
    OPENED(run);
    const Recurrence *a = m->recurrence;
    const int64_t blocks = a->channels / LANES,
                  each = parts_of(blocks * f->spans, CHUNKS * w->threads);
    const int64_t inner = a->heads ? a->heads * a->dim : a->channels;
    const Product in = times(run, f->narrow, m->hidden, layer->qkv, a->spread, f->wide, 0);
    const Product out = added(run, f->narrow, inner, layer->out, 0, 1);
    SHARE(rows, 4, r,
          (rms_norm(f->residual + r * m->hidden, layer->norm, m->eps, m->hidden,
                    f->narrow + r * m->hidden),
           quantize_row(m, f, layer->qkv, f->narrow, m->hidden, r)));
    product(&in, w);
    if (!a->heads) SHARE(rows, 4, r, gate_input(a, f->wide + r * a->spread));
    SHARE(blocks * f->spans, each, u,
          convolve(m, layer, f, f->span + u / blocks, u % blocks * LANES));
    if (!a->heads)
        SHARE(rows, 4, r, gate_output(a, f->wide + r * a->spread, f->narrow + r * a->channels));
    else
        SHARE(a->heads * f->spans, 1, u,
              update_head(m, layer, f, f->span + u / a->heads, u % a->heads,
                          f->states + w->me * f->room));
    QUANTIZE_ROWS(layer->out, f->narrow, inner);
    product(&out, w);
}

/* The experts of a layer, in place of an MLP. The router is always bfloat16. */
static void run_experts(const Run *run, const Layer *layer) {
    OPENED(run);
    const Experts *e = m->experts;
    const Routing *a = f->routing;
    const int64_t places = rows * each_of(e);
    Product router =
        times(run, f->narrow, m->hidden, layer->router, routed_of(e), f->wide, layer->router_bias);
    Product in = gate(run, a->gathered, layer->gate_up, e->inner, a->gated);
    Product out =
        times(run, a->gated, e->inner, layer->down, m->hidden, a->outputs, layer->down_bias);
    router.coding = WHOLE;
    in.rows = out.rows = places;
    in.steps = out.steps = a->steps;
    in.bias = layer->up_bias;
    SHARE(rows, 4, r,
          rms_norm(f->residual + r * m->hidden, layer->mlp_norm, m->eps, m->hidden,
                   f->narrow + r * m->hidden));
    product(&router, w);
    SHARE(rows, 4, r, route(m, layer, f, r));
    SHARE(1, 1, once, group_by_expert(e, rows, a));
    SHARE(places, 4, place, gather_row(m, layer, f, place));
    expert_products(m, a, &in, w);
    if (m->coding != WHOLE)
        SHARE(places, 2, place,
              quantize_for(layer->down, m->coding, a->gated + place * e->inner, e->inner,
                           a->steps + place));
    expert_products(m, a, &out, w);
    SHARE(rows, 4, r, add_experts(m, layer, f, r));
}

/* Attention of all units, to the sequence or to its source. */
static void run_units(Run *run, const Layer *layer, int cross) {
    Worker *w = run->w;
    float *scores = run->f->scores + w->me * MOST_QUERIES * run->f->longest;
    SHARE(run->units, run->share, u,
          attend(run->m, layer, run->f, u, run->tile, scores, &run->unpacked, cross));
}

/* Cross-attention: each row attends to the source of its sequence. */
static void run_cross(Run *run, const Layer *layer) {
    OPENED(run);
    const int64_t inner = m->heads * m->dim;
    const Product queries =
        times(run, f->narrow, m->hidden, layer->cross_q, inner, f->wide, layer->cross_q_bias);
    const Product out = added(run, f->narrow, inner, layer->cross_out, layer->cross_out_bias, 1);
    SHARE(rows, 4, r,
          (norm_row(m, f, layer->cross_norm, layer->cross_norm_bias, r, f->narrow + r * m->hidden),
           quantize_row(m, f, layer->cross_q, f->narrow, m->hidden, r)));
    product(&queries, w);
    run_units(run, layer, 1);
    QUANTIZE_ROWS(layer->cross_out, f->narrow, inner);
    product(&out, w);
}

static void run_attention(Run *run, const Layer *layer) {
    OPENED(run);
    const int64_t depth = depth_of(m, layer), inner = m->heads * m->dim;
    const int later = layer->said_norm || defers_add(m, layer);
    const Product qkv =
        times(run, f->narrow, depth, layer->qkv, wide_of(m), f->wide, layer->qkv_bias);
    const Product out = half(run, f->narrow, inner, layer->out, layer->out_bias, later);
    SHARE(rows, 4, r,
          (attention_input(m, layer, f, r), ready_row(m, f, layer, QKV, f->narrow, depth, r)));
    adapted_product(m, f, layer, QKV, &qkv, w);
    place_rows(run, layer);
    run_units(run, layer, 0);
    if (query_stride_of(m) > m->dim) SHARE(rows, 2, r, gate_attention(m, f, r));
    READY_ROWS(layer, OUT, f->narrow, inner);
    adapted_product(m, f, layer, OUT, &out, w);
    if (layer->said_norm) SHARE(rows, 4, r, add_normed(m, f, layer->said_norm, r));
}

static void run_mlp(const Run *run, const Layer *layer) {
    OPENED(run);
    factor *gated = f->narrow + rows * m->hidden;
    const Product in = m->plain ? times(run, f->narrow, m->hidden, layer->gate_up, m->intermediate,
                                        f->wide, layer->up_bias)
                                : gate(run, f->narrow, layer->gate_up, m->intermediate, gated);
    const Product out =
        half(run, gated, m->intermediate, layer->down, layer->down_bias, layer->mlp_said_norm != 0);
    SHARE(rows, 4, r,
          (mlp_input(m, layer, f, r), ready_row(m, f, layer, GATE_UP, f->narrow, m->hidden, r)));
    adapted_product(m, f, layer, GATE_UP, &in, w);
    if (m->plain) SHARE(rows * m->intermediate / LANES, 64, at, activate(m, f, gated, at));
    READY_ROWS(layer, DOWN, gated, m->intermediate);
    adapted_product(m, f, layer, DOWN, &out, w);
}

/* Begin rows from their embeddings and given states. */
static void run_join(const Run *run) {
    OPENED(run);
    const int64_t depth = 2 * m->hidden;
    const Product in = times(run, f->narrow, depth, m->join, m->hidden, f->residual, 0);
    SHARE(rows, 4, r, (join_input(m, f, r), quantize_row(m, f, m->join, f->narrow, depth, r)));
    product(&in, w);
}

static void run_layer(Run *run, int64_t l) {
    OPENED(run);
    const Layer *layer = m->layer + l;
    if (m->stream) enter_layer(m->stream, l, w->me);
    if (l == f->first_layer) SHARE(rows, 4, r, l ? resume(m, f, r) : embed(m, f, r));
    else if (l < f->image_layers) SHARE(rows, 4, r, add_image(m, f, l, r));
    if (l == 0 && m->join) run_join(run);
    if (wants_hidden(f, l)) SHARE(rows, 4, r, keep_hidden(m, f, l, r));
    if (layer->taps) run_recurrent(run, layer);
    else if (!(layer->skipped & ATTENTION)) run_attention(run, layer);
    if (layer->cross_q) run_cross(run, layer);
    if (layer->skipped & MLP) return;
    if (layer->router) run_experts(run, layer);
    else run_mlp(run, layer);
    if (layer->mlp_said_norm) SHARE(rows, 4, r, add_normed(m, f, layer->mlp_said_norm, r));
}

/* Logits of the rows that are kept. */
static void run_head(const Run *run) {
    OPENED(run);
    if (wants_hidden(f, m->layers) || wants_hidden(f, m->layers + 1))
        SHARE(rows, 4, r, keep_last_hidden(m, f, r));
    if (!f->kept) return;
    SHARE(f->kept, 4, i,
          (head_input(m, f, f->keep[i], f->narrow + i * m->hidden),
           quantize_row(m, f, m->head, f->narrow, m->hidden, i)));
    /* The last panel may have unused outputs. */
    const int64_t outputs = parts_of(m->vocab, LANES) * LANES;
    Product head = times(run, f->narrow, m->hidden, m->head, outputs, f->logits, m->head_bias);
    head.rows = f->kept;
    head.stored = m->vocab;
    head.pairs = m->pairs;
    product(&head, w);
    if (m->logit_cap || m->logit_scale)
        SHARE(f->kept, 1, i, shape_logits(m, f->logits + i * m->vocab));
}

INTERNAL void run_layers(const Model *m, const Forward *f, Worker *w) {
    Run run = {.m = m, .f = f, .w = w};
    if (f->kv_only) {
        write_all_kv(&run);
        return;
    }
    /* Few queries are split into small tiles, so that every thread has some; results are the same.
     */
    const int64_t each = f->rows * m->heads / (2 * w->threads);
    run.tile = at_least(at_most(each, MOST_QUERIES), 1);
    for (int64_t i = 0; i < f->spans; i++) run.units += units_of(m, f->span + i, run.tile);
    run.share = w->threads == 1 ? run.units : parts_of(run.units, CHUNKS * w->threads);
    if (f->unpacked)
        run.unpacked.pages = f->unpacked + w->me * 2 * parts_of(f->longest, PAGE) * PAGE * m->dim;
    for (int64_t l = f->first_layer; l < m->layers; l++) run_layer(&run, l);
    run_head(&run);
}
