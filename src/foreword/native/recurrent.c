/* Layers that remember in a state: a short convolution, and behind it a gated delta rule (Yang et al. 2024, arXiv 2412.06464,
 * section 3.1), or nothing but gates on both sides of it (LFM2: 2511.23404).
 *
 * A head's state S [key_dim, dim] takes a token in by S <- d S + k (x) u, where u = b (v - d S'k): what the key shall say from
 * now on, less what it says already. It cannot be undone, so S holds only text that stays. Guesses go on from copies; of each the
 * key, u and d are kept, and those that turn out to stay are taken in by the next forward, with the same sums. So a row's
 * bits depend on the text before it alone, in a tree as well, and a tree of guesses is one forward.
 */

typedef struct Recurrence {
    int64_t key_heads, heads, key_dim, dim; /* of the delta rule; heads = 0: there is none */
    int64_t taps, channels, spread; /* of the convolution: a token and those before it; what it reads, the first numbers of a row; all of them */
} Recurrence;

/* What all such layers hold of one sequence. A token after those taken in has a slot: its position modulo their number. */
typedef struct State {
    int64_t folded, back; /* tokens taken in; how many of the last ones are left out, for texts that are taken back */
    int64_t slots;
    float *held; /* [layer, head, key_dim, dim] */
    bf16 *tail;  /* [layer, taps - 1, channels]: what the convolution reads of the last tokens taken in */
    float *taken; /* [layer, slot, head, key_dim + dim + LANES]: k, u and d */
    bf16 *inputs; /* [layer, slot, channels]: what the convolution reads */
} State;

/* Tokens of a sequence that are taken in once a forward is over. */
static inline int64_t folded_after(const Span *span) {
    const State *state = span->state;
    const int64_t sure = span->past + span->sure - state->back;
    return span->sure && sure > state->folded ? sure : state->folded;
}

static inline bf16 *input_at(const Recurrence *a, const State *state, int64_t layer, int64_t position) {
    return state->inputs + (layer * state->slots + position % state->slots) * a->channels;
}
static inline float *taken_at(const Recurrence *a, const State *state, int64_t layer, int64_t position, int64_t head) {
    return state->taken + ((layer * state->slots + position % state->slots) * a->heads + head) * (a->key_dim + a->dim + LANES);
}

/* A row's place among the nodes of its span, which are those held and those after the sure rows; the parent of a node. */
static inline int64_t node_of(const Span *span, int64_t local) { return local - span->sure + span->held; }
static inline int64_t parent_of(const Span *span, int64_t node) { return span->parents ? span->parents[node] : node - 1; }

#define MOST_TAPS 8
enum { COLUMNS = SUMS < 16 ? SUMS / 2 : 8 }; /* 16 of a state, at once: what is written to and what is read */

/* 16 channels of what the convolution reads at a position before the rows of this forward. */
static inline floats earlier(const Recurrence *a, const State *state, int64_t layer, int64_t position, int64_t channel) {
    const bf16 *from = position < state->folded ? state->tail + (layer * (a->taps - 1) + position - state->folded + a->taps - 1) * a->channels
                                                : input_at(a, state, layer, position);
    return widen(load_halves(from + channel));
}

/* 16 channels of all rows of a span, in place. Later rows first: they read what earlier ones were. */
static void convolve(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t channel) {
    const Recurrence *a = m->recurrence;
    State *state = span->state;
    const int64_t spread = a->spread, channels = a->channels, reach = a->taps - 1, first = span->past + span->held;
    const int64_t folded = folded_after(span), rows = span->stop - span->start;
    float *x = f->wide + span->start * spread + channel;
    floats before[MOST_TAPS], tail[MOST_TAPS];
    for (int64_t i = 0; i < reach; i++) before[i] = earlier(a, state, layer->number, span->past - reach + i, channel);
    for (int64_t r = 0; r < rows; r++) /* as they are kept, so that it does not matter where they are read */
        store(x + r * spread, widen(narrow(load(x + r * spread))));
    for (int64_t i = 0; i < reach; i++) {
        const int64_t position = folded - reach + i;
        tail[i] = position < span->past ? earlier(a, state, layer->number, position, channel) : load(x + (position - span->past) * spread);
    }
    for (int64_t r = rows - 1; r >= 0; r--) {
        const floats own = load(x + r * spread);
        floats sum = mul(own, load(layer->taps + reach * channels + channel));
        int64_t node = r < span->sure ? -1 : node_of(span, r), at = r; /* a row of the text, or a node */
        for (int64_t tap = reach - 1; tap >= 0; tap--) {
            at = node < 0 ? at - 1 : (node = parent_of(span, node)) < 0 ? span->sure - 1 : at;
            floats input;
            if (node >= span->held) input = load(x + (node - span->held + span->sure) * spread);
            else if (node >= 0) input = earlier(a, state, layer->number, span->past + node, channel);
            else if (at >= 0) input = load(x + at * spread);
            else input = before[reach + at];
            sum = fused(input, load(layer->taps + tap * channels + channel), sum);
        }
        if (first + r >= folded) narrow_store(input_at(a, state, layer->number, first + r) + channel, own);
        store(x + r * spread, a->heads ? activated(sum, SILU) : sum);
    }
    for (int64_t i = 0; i < reach; i++) narrow_store(state->tail + (layer->number * reach + i) * channels + channel, tail[i]);
}

/* Without a delta rule a row is two gates and what passes them: through the first before the convolution, in whose place it
 * then lies, and through the second after it. */
static void let_in(const Recurrence *a, float *x) {
    for (int64_t i = 0; i < a->channels; i += LANES) store(x + i, mul(load(x + i), load(x + 2 * a->channels + i)));
}
static void let_out(const Recurrence *a, const float *x, factor *to) {
    for (int64_t i = 0; i < a->channels; i += LANES) store_factors(to + i, mul(load(x + i), load(x + a->channels + i)));
}

/* `C` times 16 columns of a state: it takes in a token, in place or elsewhere (NULL = nowhere). Where `query` is not NULL the
 * token is new: u is found first, and what the query reads afterwards goes to `said`. */
INLINE void take_in(const float *from, float *to, const float *key, float decay, float rate, const float *value, float *u, const float *query, float *said, int64_t deep, int64_t wide, const int C) {
    const floats d = all(decay);
    floats written[COLUMNS], out[COLUMNS];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) written[c] = out[c] = all(0);
    if (query) {
        for (int64_t i = 0; i < deep; i++)
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) written[c] = fused(all(key[i]), load(from + i * wide + c * LANES), written[c]);
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
        for (int c = 0; c < C; c++) store(said + c * LANES, out[c]);
}

/* Whose state it is: one head of a layer, of one sequence; and how many tokens are taken in once the forward is over. */
typedef struct {
    const Model *model;
    const Layer *layer;
    const Forward *forward;
    const Span *span;
    int64_t head, folded;
} Head;

/* All columns: of a token kept in a slot (no row), or of a row of this forward, whose output is written too. */
static void remember_token(const Head *o, const float *from, float *to, int64_t position, int64_t row) {
    const Recurrence *a = o->model->recurrence;
    float scratch[2 * MOST_DIM + LANES], query[MOST_DIM], said[MOST_DIM];
    const int64_t deep = a->key_dim, wide = a->dim, channels = a->channels;
    float *kept = row < 0 || position >= o->folded ? taken_at(a, o->span->state, o->layer->number, position, o->head) : scratch;
    float *key = kept, *u = kept + deep, *decay = kept + deep + wide, rate = 0;
    const float *x = o->forward->wide + row * a->spread, *value = x + 2 * a->key_heads * deep + o->head * wide;
    if (row >= 0) {
        const int64_t shared = o->head / (a->heads / a->key_heads) * deep;
        const float *own = x + a->key_heads * deep + shared, gate = x[channels + a->heads * wide + o->head];
        const float step = x[channels + a->heads * wide + a->heads + o->head] + o->layer->step_bias[o->head];
        /* 1 / sqrt(sum of squares + eps), as length_of would have it of a mean */
        const floats of_key = length_of(own, 1e-6f / (float)deep, deep), of_query = length_of(x + shared, 1e-6f / (float)deep, deep);
        const floats root = all(1.0f / sqrtf((float)deep));
        for (int64_t i = 0; i < deep; i += LANES) {
            store(key + i, mul(mul(load(own + i), of_key), root));
            store(query + i, mul(mul(mul(load(x + shared + i), of_query), root), root));
        }
        *decay = expf(-o->layer->decay[o->head] * (step > 20.0f ? step : log1pf(expf(step))));
        rate = 1.0f / (1.0f + expf(-gate));
    }
    const float *asked = row < 0 ? 0 : query;
    int64_t c = 0;
    for (; c + COLUMNS * LANES <= wide; c += COLUMNS * LANES) take_in(from + c, to ? to + c : 0, key, *decay, rate, value + c, u + c, asked, said + c, deep, wide, COLUMNS);
    for (; c < wide; c += LANES) take_in(from + c, to ? to + c : 0, key, *decay, rate, value + c, u + c, asked, said + c, deep, wide, 1);
    if (row < 0) return;
    const floats size = length_of(said, o->model->eps, wide);
    const float *through = x + channels + o->head * wide;
    factor *out = o->forward->narrow + (row * a->heads + o->head) * wide;
    for (int64_t i = 0; i < wide; i += LANES) {
        const floats normed = mul(mul(load(said + i), size), load(o->layer->gated_norm + i));
        store_factors(out + i, mul(normed, activated(load(through + i), SILU)));
    }
}

/* One head of a sequence: what stays is taken in, then each guess goes on from the state after its parent. `room` holds
 * states; one is free again after the last child of its node. */
static void recall(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t head, float *room) {
    const Recurrence *a = m->recurrence;
    State *state = span->state;
    const Head o = {m, layer, f, span, head, folded_after(span)};
    const int64_t size = a->key_dim * a->dim, rows = span->stop - span->start, nodes = span->held + rows - span->sure, end = span->past + span->sure;
    float *now = state->held + (layer->number * a->heads + head) * size;
    for (int64_t position = state->folded; position < end; position++) {
        float *next = position < o.folded ? now : room; /* the first place in the room is the text's */
        remember_token(&o, now, next, position, position < span->past ? -1 : span->start + position - span->past);
        now = next;
    }
    if (!nodes) return;
    int32_t place[nodes], children[nodes];
    memset(children, 0, sizeof children);
    for (int64_t node = nodes - 1; node >= 0; node--) /* those that matter: new ones, and what leads there */
        if ((node >= span->held || children[node]) && parent_of(span, node) >= 0) children[parent_of(span, node)]++;
    int32_t spare[nodes], free_ones = 0, used = 1;
    for (int64_t node = 0; node < nodes; node++) {
        const int64_t parent = parent_of(span, node);
        const int new = node >= span->held;
        if (!new && !children[node]) continue;
        const float *from = parent < 0 ? now : room + place[parent] * size;
        if (parent >= 0 && --children[parent] == 0) spare[free_ones++] = place[parent]; /* it may go on in place */
        if (children[node]) place[node] = free_ones ? spare[--free_ones] : used++;
        remember_token(&o, from, children[node] ? room + place[node] * size : 0, end + node, new ? span->start + span->sure + node - span->held : -1);
    }
}

/* A forward is over: its sure rows are text. */
static void settle(const Model *m, const Forward *f) {
    for (int64_t s = 0; m->recurrence && s < f->spans; s++) ((State *)f->span[s].state)->folded = folded_after(f->span + s);
}

/* What is kept of a guess at one position is what is kept of the text at another: the guess has come true. */
void foreword_shift(const Model *m, const State *state, int64_t from, int64_t to) {
    const Recurrence *a = m->recurrence;
    for (int64_t l = 0; l < m->layers; l++) {
        const Layer *layer = m->layer + l;
        if (!layer->taps) continue;
        memcpy(input_at(a, state, layer->number, to), input_at(a, state, layer->number, from), a->channels * sizeof(bf16));
        memcpy(taken_at(a, state, layer->number, to, 0), taken_at(a, state, layer->number, from, 0), a->heads * (a->key_dim + a->dim + LANES) * sizeof(float));
    }
}
