/* Recurrent layers: a short convolution, then a gated delta rule (Yang et al. 2024, arXiv
 * 2412.06464, section 3.1), or only gates before and after it (LFM2: 2511.23404).
 *
 * A token updates the state S [key_dim, dim] of a head by S <- d S + k (x) u, where u = b (v - d
 * S'k). This cannot be undone, so S includes committed tokens only. Draft tokens update copies; the
 * key, u and d of each are stored, and the next forward applies those of accepted ones, with the
 * same sums. So a row's bits depend only on the tokens before it, in a tree as well, and a draft
 * tree is one forward.
 */
#include "recurrent.h"

#include "../activations.h"
#include "../exact.h"
#include "norms.h"

/* Tokens of a sequence in its state after this forward. */
static inline int64_t folded_after(const Span *span) {
    const State *state = span->state;
    const int64_t sure = span->past + span->committed - state->back;
    return span->committed && sure > state->folded ? sure : state->folded;
}

static inline bf16 *input_at(const Recurrence *a, const State *state, int64_t layer,
                             int64_t position) {
    return state->inputs + (layer * state->slots + position % state->slots) * a->channels;
}
static inline float *taken_at(const Recurrence *a, const State *state, int64_t layer,
                              int64_t position, int64_t head) {
    return state->taken
           + ((layer * state->slots + position % state->slots) * a->heads + head)
                 * (a->key_dim + a->dim + LANES);
}

/* The node number of a row: nodes are the held ones, then the rows after the committed ones. And
 * the parent of a node. */
static inline int64_t node_of(const Span *span, int64_t local) {
    return local - span->committed + span->held;
}
static inline int64_t parent_of(const Span *span, int64_t node) {
    return span->parents ? span->parents[node] : node - 1;
}

#define MOST_TAPS 8
/* Vectors of a state at once: those written and those read. */
enum { COLUMNS = SUMS < 16 ? SUMS / 2 : 8 };

/* 16 channels of the convolution input at a position before this forward. */
static inline floats earlier(const Recurrence *a, const State *state, int64_t layer,
                             int64_t position, int64_t channel) {
    const bf16 *from =
        position < state->folded
            ? state->tail
                  + (layer * (a->taps - 1) + position - state->folded + a->taps - 1) * a->channels
            : input_at(a, state, layer, position);
    return widen(load_halves(from + channel));
}

/* Convolve 16 channels of all rows of a span in place; later rows first, since they read the inputs
 * of earlier ones. */
INTERNAL void convolve(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                       int64_t channel) {
    const Recurrence *a = m->recurrence;
    State *state = span->state;
    const int64_t spread = a->spread, channels = a->channels, reach = a->taps - 1,
                  first = span->past + span->held;
    const int64_t folded = folded_after(span), rows = span->stop - span->start;
    float *x = f->wide + span->start * spread + channel;
    floats before[MOST_TAPS], tail[MOST_TAPS];
    for (int64_t i = 0; i < reach; i++)
        before[i] = earlier(a, state, layer->number, span->past - reach + i, channel);
    /* Rounded as when stored, so both sources give the same result. */
    for (int64_t r = 0; r < rows; r++) store(x + r * spread, widen(narrow(load(x + r * spread))));
    for (int64_t i = 0; i < reach; i++) {
        const int64_t position = folded - reach + i;
        tail[i] = position < span->past ? earlier(a, state, layer->number, position, channel)
                                        : load(x + (position - span->past) * spread);
    }
    for (int64_t r = rows - 1; r >= 0; r--) {
        const floats own = load(x + r * spread);
        floats sum = mul(own, load(layer->taps + reach * channels + channel));
        /* A committed row, or a node. */
        int64_t node = r < span->committed ? -1 : node_of(span, r), at = r;
        for (int64_t tap = reach - 1; tap >= 0; tap--) {
            at = node < 0 ? at - 1 : (node = parent_of(span, node)) < 0 ? span->committed - 1 : at;
            floats input;
            if (node >= span->held)
                input = load(x + (node - span->held + span->committed) * spread);
            else if (node >= 0)
                input = earlier(a, state, layer->number, span->past + node, channel);
            else if (at >= 0) input = load(x + at * spread);
            else input = before[reach + at];
            sum = fused(input, load(layer->taps + tap * channels + channel), sum);
        }
        if (first + r >= folded)
            narrow_store(input_at(a, state, layer->number, first + r) + channel, own);
        store(x + r * spread, a->heads ? activated(sum, SILU) : sum);
    }
    for (int64_t i = 0; i < reach; i++)
        narrow_store(state->tail + (layer->number * reach + i) * channels + channel, tail[i]);
}

/* Without a delta rule a row is two gates and an input: the first gate multiplies the input of the
 * convolution (stored over the gate), the second its output. */
INTERNAL void gate_input(const Recurrence *a, float *x) {
    for (int64_t i = 0; i < a->channels; i += LANES)
        store(x + i, mul(load(x + i), load(x + 2 * a->channels + i)));
}
INTERNAL void gate_output(const Recurrence *a, const float *x, factor *to) {
    for (int64_t i = 0; i < a->channels; i += LANES)
        store_factors(to + i, mul(load(x + i), load(x + a->channels + i)));
}

/* Update `C` times 16 columns of a state by one token, in place or elsewhere (NULL = not stored).
 * If `query` is not NULL the token is new: compute u first, and write the query's output to `read`.
 */
INLINE void delta_step(const float *from, float *to, const float *key, float decay, float rate,
                       const float *value, float *u, const float *query, float *read, int64_t deep,
                       int64_t wide, const int C) {
    const floats d = all(decay);
    floats written[COLUMNS], out[COLUMNS];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) written[c] = out[c] = all(0);
    if (query) {
        for (int64_t i = 0; i < deep; i++)
#pragma GCC unroll 8
            for (int c = 0; c < C; c++)
                written[c] = fused(all(key[i]), load(from + i * wide + c * LANES), written[c]);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            written[c] = mul(all(rate), fused(all(-decay), written[c], load(value + c * LANES)));
            store(u + c * LANES, written[c]);
        }
    } else
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) written[c] = load(u + c * LANES);
    for (int64_t i = 0; i < deep; i++) {
        const floats k = all(key[i]), q = query ? all(query[i]) : k;
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            const floats now = fused(k, written[c], mul(d, load(from + i * wide + c * LANES)));
            if (to) store(to + i * wide + c * LANES, now);
            if (query) out[c] = fused(q, now, out[c]);
        }
    }
    if (query)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(read + c * LANES, out[c]);
}

/* One head of a layer, of one sequence; and how many tokens are in its state after the forward. */
typedef struct {
    const Model *model;
    const Layer *layer;
    const Forward *forward;
    const Span *span;
    int64_t head, folded;
} Head;

/* Update all columns by a stored token (row < 0), or by a row of this forward, whose output is
 * written too. */
static void update_state(const Head *o, const float *from, float *to, int64_t position,
                         int64_t row) {
    const Recurrence *a = o->model->recurrence;
    float scratch[2 * MOST_DIM + LANES], query[MOST_DIM], read[MOST_DIM];
    const int64_t deep = a->key_dim, wide = a->dim, channels = a->channels;
    float *kept = row < 0 || position >= o->folded
                      ? taken_at(a, o->span->state, o->layer->number, position, o->head)
                      : scratch;
    float *key = kept, *u = kept + deep, *decay = kept + deep + wide, rate = 0;
    const float *x = o->forward->wide + row * a->spread,
                *value = x + 2 * a->key_heads * deep + o->head * wide;
    if (row >= 0) {
        const int64_t shared = o->head / (a->heads / a->key_heads) * deep;
        const float *own = x + a->key_heads * deep + shared,
                    gate = x[channels + a->heads * wide + o->head];
        const float step =
            x[channels + a->heads * wide + a->heads + o->head] + o->layer->step_bias[o->head];
        /* 1 / sqrt(sum of squares + eps): length_of takes the mean of squares */
        const floats of_key = length_of(own, 1e-6f / (float)deep, deep),
                     of_query = length_of(x + shared, 1e-6f / (float)deep, deep);
        const floats root = all(1.0f / sqrtf((float)deep));
        for (int64_t i = 0; i < deep; i += LANES) {
            store(key + i, mul(mul(load(own + i), of_key), root));
            store(query + i, mul(mul(mul(load(x + shared + i), of_query), root), root));
        }
        const float above = (float)ln(1 + (double)exp_of(step)); /* of a step that is not large */
        *decay = exp_of(-o->layer->decay[o->head] * (step > 20.0f ? step : above));
        rate = 1.0f / (1.0f + exp_of(-gate));
    }
    const float *new_query = row < 0 ? 0 : query;
    int64_t c = 0;
    for (; c + COLUMNS * LANES <= wide; c += COLUMNS * LANES)
        delta_step(from + c, to ? to + c : 0, key, *decay, rate, value + c, u + c, new_query,
                   read + c, deep, wide, COLUMNS);
    for (; c < wide; c += LANES)
        delta_step(from + c, to ? to + c : 0, key, *decay, rate, value + c, u + c, new_query,
                   read + c, deep, wide, 1);
    if (row < 0) return;
    const floats size = length_of(read, o->model->eps, wide);
    const float *through = x + channels + o->head * wide;
    factor *out = o->forward->narrow + (row * a->heads + o->head) * wide;
    for (int64_t i = 0; i < wide; i += LANES) {
        const floats normed = mul(mul(load(read + i), size), load(o->layer->gated_norm + i));
        store_factors(out + i, mul(normed, activated(load(through + i), SILU)));
    }
}

/* Update one head of a sequence by the committed tokens, then each draft token from the state after
 * its parent. `room` holds copies of states; one is freed after the last child of its node. */
INTERNAL void update_head(const Model *m, const Layer *layer, const Forward *f, const Span *span,
                          int64_t head, float *room) {
    const Recurrence *a = m->recurrence;
    State *state = span->state;
    const Head o = {m, layer, f, span, head, folded_after(span)};
    const int64_t size = a->key_dim * a->dim, rows = span->stop - span->start,
                  nodes = span->held + rows - span->committed, end = span->past + span->committed;
    float *now = state->held + (layer->number * a->heads + head) * size;
    for (int64_t position = state->folded; position < end; position++) {
        /* The first copy is that of the committed tokens. */
        float *next = position < o.folded ? now : room;
        update_state(&o, now, next, position,
                     position < span->past ? -1 : span->start + position - span->past);
        now = next;
    }
    if (!nodes) return;
    int32_t place[nodes], children[nodes];
    memset(children, 0, sizeof children);
    for (int64_t node = nodes - 1; node >= 0; node--) /* count only new nodes and their ancestors */
        if ((node >= span->held || children[node]) && parent_of(span, node) >= 0)
            children[parent_of(span, node)]++;
    int32_t spare[nodes], free_ones = 0, used = 1;
    for (int64_t node = 0; node < nodes; node++) {
        const int64_t parent = parent_of(span, node);
        const int new = node >= span->held;
        if (!new && !children[node]) continue;
        const float *from = parent < 0 ? now : room + place[parent] * size;
        /* The last child may update it in place. */
        if (parent >= 0 && --children[parent] == 0) spare[free_ones++] = place[parent];
        if (children[node]) place[node] = free_ones ? spare[--free_ones] : used++;
        update_state(&o, from, children[node] ? room + place[node] * size : 0, end + node,
                     new ? span->start + span->committed + node - span->held : -1);
    }
}

INTERNAL void commit_states(const Model *m, const Forward *f) {
    for (int64_t s = 0; m->recurrence && s < f->spans; s++)
        f->span[s].state->folded = folded_after(f->span + s);
}

/* Copy the stored values of an accepted draft token from its position to its new one. */
void foreword_shift(const Model *m, const State *state, int64_t from, int64_t to) {
    const Recurrence *a = m->recurrence;
    for (int64_t l = 0; l < m->layers; l++) {
        const Layer *layer = m->layer + l;
        if (!layer->taps) continue;
        memcpy(input_at(a, state, layer->number, to), input_at(a, state, layer->number, from),
               a->channels * sizeof(bf16));
        memcpy(taken_at(a, state, layer->number, to, 0), taken_at(a, state, layer->number, from, 0),
               a->heads * (a->key_dim + a->dim + LANES) * sizeof(float));
    }
}
