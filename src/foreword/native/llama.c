/* One forward of a Llama-like model in one call: bfloat16 weights, float32 sums, keys and values read where they lie.
 *
 * Every number is computed for its own row in one fixed order, so a row's bits do not depend on how many rows a forward
 * has, on the rows beside it, or on the number of threads. Plain definition: the Hugging Face model this was built from.
 */
#include <pthread.h>
#include <unistd.h>

#include "draws.c"
#include "sharing.c"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "of two bfloat16 in a word the first is taken for the low half"
#endif

#define MOST_DIM 256
#define MOST_DEEP 256

typedef struct {
    const void *qkv, *out, *gate_up, *down; /* packed, see pack() and quantized.c */
    const float *qkv_bias, *norm, *mlp_norm, *query_norm, *key_norm; /* NULL where the model has none */
    const float *said_norm, *mlp_said_norm; /* of what attention and MLP say, before it is added; NULL = none */
    const float *cos, *sin; /* [position, turned]; NULL: places turn nothing */
    const float *given_norm; /* not NULL: the row goes on as the state given for it, and attention reads that beside what the row was */
    bf16 *keys, *values;
    int64_t window; /* 0 = none */
    int64_t skipped; /* ATTENTION | MLP */
    int64_t normed; /* the row goes on as the given state after its norm */
    const float *taps; /* not NULL: in place of attention the layer remembers in a state (recurrent.c); [tap, channel], the token's own last */
    const float *decay, *step_bias, *gated_norm; /* [head], [head], [dim] of it */
    int64_t number; /* among layers of its kind */
    const void *router; /* not NULL: the MLP is experts (experts.c); packed, in bfloat16 always */
    const float *leaning; /* added to trust where experts are chosen; NULL = nothing */
    const float *norm_bias, *mlp_norm_bias, *out_bias, *up_bias, *down_bias; /* NULL where the model has none; `up_bias` only in a plain MLP */
} Layer;

enum { ATTENTION = 1, MLP = 2 };
enum { WHOLE, BYTES, NIBBLES }; /* how weights are coded: bfloat16, 8 bits, 4 bits */
enum { SILU, GELU, GELU_ERF, RELU, RELU_SQUARED }; /* GELU in its form with tanh; the last three in plain MLPs only */

typedef struct {
    int64_t layers, hidden, heads, kv_heads, dim, intermediate, vocab;
    float eps, scale;
    const bf16 *embedding; /* [vocab, hidden]; NULL: `table` is read in its place */
    const float *norm; /* NULL = none before the head */
    const void *head; /* packed */
    const Layer *layer;
    int64_t coding; /* of every packed weight */
    const int32_t *ids; /* [vocab]: the tokens that the head speaks of; NULL = all, in their order */
    int64_t turned; /* numbers of a head that places turn, the first ones */
    int64_t activation, broad; /* broad: norms of queries and keys go over all heads at once */
    float embedding_scale, score_cap, logit_cap; /* 0 = none; what is capped goes no further than so far from 0 */
    float residual_scale, logit_scale; /* of what each half of a layer adds, and of what the head says before it is capped; 0 = none */
    const bf16 *table; /* embeddings, packed as the head that they are as well */
    int64_t tabled; /* rows of it */
    int64_t apart; /* numbers from one query to the next, 0 = dim; twice that where a gate for what it says lies behind it */
    const struct Recurrence *recurrence; /* sizes of layers that remember in a state; NULL = there are none */
    const struct Experts *experts; /* NULL = there are none */
    const float *norm_bias, *head_bias; /* NULL = none; the latter for whole panels */
    const bf16 *places; /* [placed, hidden], learnt: added to the embedding of a token at this place; NULL = none */
    int64_t placed;
    int64_t centred;  /* norms of rows take their mean away first (LayerNorm) */
    int64_t plain;    /* MLPs have no gates: `gate_up` is one matrix, and what it says is activated */
    int64_t parallel; /* MLPs read the rows that attention read, before what that says of them is added */
    int64_t turned_first; /* queries and keys are normed after they were turned */
    const float *warmth; /* [place]: queries there are multiplied by it once they are turned; NULL = 1 */
} Model;

/* One sequence's rows of a packed forward. Row r of the span, counted from `start`, may see the pool rows
 * [0, past + trunk_r) of its extent and then `tail`, its ancestors among the guesses, in text order. */
typedef struct {
    int64_t start, stop, extent, past, held, trunk; /* held: guesses read before; they lie after past, and trunk is 0 */
    const int32_t *parents; /* of the guesses held and of the rows after the trunk; NULL = a chain */
    int64_t mutual; /* the rows see each other, later ones too */
    int64_t sure; /* the first rows, which stay; read only where there is a state */
    struct State *state; /* NULL = no layer remembers in one */
} Span;

typedef struct {
    int64_t rows, spans, kept;
    const int64_t *tokens, *positions, *keep;
    const Span *span;
    float *logits; /* [kept, vocab] */
    float *residual, *wide, *scores; /* scratch: [rows, hidden], [rows, what a layer begins with, or hidden, or a plain MLP's inside], [MOST_QUERIES threads, longest] */
    factor *narrow; /* scratch: [rows, max(2 hidden, heads dim) + intermediate] */
    float *steps; /* scratch: [rows] */
    int64_t longest;
    int64_t heeded; /* layers whose input is wanted as well; one that is `layers` = what the head reads, the next that before its norm */
    const int64_t *heed;
    float *heard; /* [rows, heeded, hidden] */
    const float **given; /* [rows]: a state of `hidden` numbers for each, where a layer wants one */
    float *states; /* scratch: [threads, room], copies of states for guesses */
    int64_t room;
    int64_t remembered; /* keys and values alone are wanted, in every layer of the same rows, which `residual` holds */
    const struct Asked *asked; /* scratch, where there are experts */
} Forward;

/* What is computed of a row before attention: queries, each perhaps with its gate, keys and values. */
static inline int64_t apart_of(const Model *m) { return m->apart ? m->apart : m->dim; }
static inline int64_t wide_of(const Model *m) { return m->heads * apart_of(m) + 2 * m->kv_heads * m->dim; }

static inline void narrow_store(bf16 *to, floats value) { store_halves(to, narrow(value)); }

/* exp in float32: 2^n times a polynomial of degree 6 on |r| <= ln(2)/2; relative error about 2e-7. Beyond 87 it stays what it
 * is there: neither it nor what it is divided into is too small for a normal number, which takes a processor a hundred times as long. */
static inline floats vexp(floats x) {
    x = minimum(maximum(x, all(-87.0f)), all(87.0f));
    floats n = rounded(mul(x, all(1.442695041f)));
    floats r = fused(n, all(-0.693359375f), x);
    r = fused(n, all(2.12194440e-4f), r);
    floats p = all(1.0f / 720);
    p = fused(p, r, all(1.0f / 120));
    p = fused(p, r, all(1.0f / 24));
    p = fused(p, r, all(1.0f / 6));
    p = fused(p, r, all(0.5f));
    p = fused(p, r, all(1.0f));
    p = fused(p, r, all(1.0f));
    return scaled(p, n);
}

static inline floats sigmoid(floats x) {
    const floats one = all(1.0f);
    return quotient(one, add(one, vexp(sub(all(0), x))));
}

/* cap tanh(x / cap), and x where there is no cap */
static inline floats capped(floats x, float cap) {
    if (cap == 0) return x;
    const floats twice = mul(x, all(2.0f / cap));
    return mul(fused(all(2.0f), sigmoid(twice), all(-1.0f)), all(cap));
}

/* What a gate lets through of itself: x sigmoid(x), and with tanh x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)). */
static inline floats activated(floats x, int64_t activation) {
    floats slope = x;
    if (activation == GELU) {
        const floats cube = mul(mul(x, x), x);
        slope = mul(fused(cube, all(0.044715f), x), all(1.5957691216f));
    }
    return mul(x, sigmoid(slope));
}

/* x times the share of a normal law below it: max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, off by at most 1e-7 |x| (Abramowitz and Stegun, 7.1.26). */
static inline floats normal_gate(floats x) {
    const floats size = maximum(x, sub(all(0), x)), t = quotient(all(1), fused(size, all(0.3275911f * 0.70710678f), all(1)));
    floats p = all(1.061405429f);
    p = fused(p, t, all(-1.453152027f));
    p = fused(p, t, all(1.421413741f));
    p = fused(p, t, all(-0.284496736f));
    p = fused(p, t, all(0.254829592f));
    const floats beyond = mul(mul(p, t), vexp(mul(all(-0.5f), mul(size, size))));
    return fused(mul(all(-0.5f), size), beyond, maximum(x, all(0)));
}

/* What becomes of a number in a plain MLP. */
static inline floats plainly_activated(floats x, int64_t activation) {
    const floats positive = maximum(x, all(0));
    if (activation == GELU_ERF) return normal_gate(x);
    if (activation == RELU) return positive;
    if (activation == RELU_SQUARED) return mul(positive, positive);
    return activated(x, activation);
}

/* ---- products: x [rows, depth] times a packed weight. A panel is 32 outputs, [depth / 2][32][2]: it lies in memory as it
 * is read, in one stream, which memory gives faster than several. The last one has 16 where there are no more. */

#define PANEL (2 * LANES)
#ifdef BF16_PRODUCTS
#define FETCHED 8192 /* bytes ahead of what is multiplied; so far on a Zen 5 */
#else
#define FETCHED 1024 /* and so far where a Xeon does without bfloat16 */
#endif

enum { STORE, ADD, GATE };

typedef struct {
    const factor *x;
    const void *weight;
    int64_t rows, depth, outputs;
    int kind;
    float *to;         /* STORE, ADD: [rows, outputs] */
    const float *bias; /* STORE, ADD; NULL = none */
    factor *gated;     /* GATE: [rows, outputs / 2]; half of a panel is gate, half is up */
    int64_t coding, activation;
    float scale;  /* ADD: of what is added */
    int64_t said; /* outputs that are wanted, all but some of the last 16; 0 = all */
    const float *steps; /* BYTES: of each row, whose whole numbers count so much */
} Product;

/* Where 16 sums of a row go. */
INLINE void put_sums(const Product *p, int64_t row, int64_t column, floats sum) {
    const int64_t said = p->said ? p->said : p->outputs;
    float *to = p->to + row * said + column;
    if (p->bias) sum = add(sum, load(p->bias + column));
    if (p->kind == ADD) sum = fused(sum, all(p->scale), load(to));
    store_first(to, sum, said - column);
}

/* Where P times 16 sums of a row go; of GATE the first 16 are the gate of the others. Given one by one: gcc keeps an array
 * in memory, and writes it there in every turn of a product, once any place of it is reached by a number known late. */
INLINE void finish(const Product *p, int64_t row, int64_t column, floats first, floats last, const int P) {
    if (p->kind == GATE) {
        store_factors(p->gated + row * (p->outputs / 2) + column / 2, mul(activated(first, p->activation), last));
        return;
    }
    put_sums(p, row, column, first);
    if (P == 2) put_sums(p, row, column + LANES, last);
}

/* How often a panel is gone through for so many rows: registers may not hold the sums of both its sides. */
INLINE int sides_of(int rows, int P) { return P == 2 && rows * P > SUMS ? 2 : 1; }

/* R rows by P times 16 outputs. `later` is where this pass over the panel fetches from meanwhile: several passes share the
 * reading of the next panel; NULL = a single one, which fetches what it is about to use. */
INLINE void tile(const Product *p, int64_t row, int64_t panel, const char *later, const int R, const int P) {
    const bf16 *w = (const bf16 *)p->weight + panel * PANEL * p->depth;
    const factor *x = p->x + row * p->depth;
    floats sum[MOST_TILED][2]; /* R by P are used; a size known early keeps them in registers */
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) sum[r][i] = all(0);
    const int side = P / sides_of(R, P);
#pragma GCC unroll 2
    for (int from = 0; from < P; from += side)
        for (int64_t k = 0; k < p->depth / 2; k++) {
            pairs weight[2];
#pragma GCC unroll 2
            for (int i = from; i < from + side; i++) {
                const bf16 *at = w + (k * P + i) * 2 * LANES;
                weight[i] = load_pairs(at);
                if (!later) prefetch(at + FETCHED);
            }
            if (later) prefetch_behind(later + (from * p->depth / 2 + k) * 64);
            const factor *near = x + 2 * k; /* a place for every three rows: gcc has no registers for twelve, and moves them by way of vectors */
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                if (r && r % 3 == 0) near += 3 * p->depth;
                if (r % 3 == 0) AS_IT_IS(near);
#pragma GCC unroll 2
                for (int i = from; i < from + side; i++) sum[r][i] = dot(sum[r][i], weight[i], near + r % 3 * p->depth);
            }
        }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) finish(p, row + r, panel * PANEL, sum[r][0], sum[r][P - 1], P);
}

#define ROWS(n) case n: if (n > MOST_TILED) break; else if (!whole) tile(p, row, panel, 0, n, 1); else if (later) tile(p, row, panel, later, n, 2); else tile(p, row, panel, 0, n, 2); break;
static void tiled(const Product *p, int64_t row, int64_t panel, const char *later, int rows) {
    const int whole = (panel + 1) * PANEL <= p->outputs;
    switch (rows) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) }
}

#include "amx.c"
#include "bytes.c"
#include "quantized.c"

#define ALONE 8 /* rows at most whose products are made in one pass: with more a core no longer reads while it multiplies, unless another pass fetches for it */

/* A panel is read once from memory and serves all rows from the nearest cache, in several passes where they are many. */
static void in_passes(const Product *p, int64_t panel, const char *next) {
    const int64_t most = p->coding == WHOLE ? MOST_TILED : MOST_CODED;
    const int64_t passes = at_least(parts_of(p->rows, most), p->rows > ALONE ? 2 : 1), each = parts_of(p->rows, passes);
    const int sides = p->coding == WHOLE ? sides_of((int)each, 2) : 1;
    for (int64_t row = 0, pass = 0; row < p->rows; row += each, pass += sides) {
        const int rows = (int)(p->rows - row < each ? p->rows - row : each);
        const char *later = next + pass * PANEL * p->depth;
        if (p->coding == WHOLE) tiled(p, row, panel, passes * sides > 1 && pass < 2 ? later : 0, rows);
        else coded(p, row, panel, rows);
    }
}

#define OWN (1 << 19) /* bytes of either side of a product that stay in a core's own cache, beside as many of the other */
#define CHUNKS 4      /* chunks of a thread: fewer would make the last one a long wait, and more cost more */

static inline int64_t coded_bytes(int64_t outputs, int64_t depth, int64_t coding) {
    return coding == WHOLE ? outputs * depth * (int64_t)sizeof(bf16) : foreword_coded_bytes(outputs, depth, (int)coding);
}

static inline const char *panel_at(const Product *p, int64_t panel) { return (const char *)p->weight + panel * coded_bytes(PANEL, p->depth, p->coding); }

/* Panels that are gone through at once. */
static inline int64_t side_of(const Product *p) { return in_matrices(p) && p->rows <= (p->coding == BYTES ? BLOCK / 2 : BLOCK) ? 2 : 1; }

/* How the panels of a product are shared: in chunks of `size`. Of more rows than stay near, a band at a time goes through the
 * panels of a chunk, which stay near then. */
typedef struct { int64_t panels, size, chunks, band; } Dealt;

static int64_t band_of(const Product *p) {
    return in_matrices(p) ? at_least(OWN / (p->depth * (int64_t)sizeof *p->x) / MOST_ROWS, 1) * MOST_ROWS : p->rows;
}

static Dealt dealt(const Product *p, int threads) {
    Dealt s = {.panels = parts_of(p->outputs, PANEL), .band = band_of(p)};
    const int64_t side = side_of(p), turns = parts_of(s.panels, side);
    int64_t size = threads == 1 ? turns : at_least(parts_of(turns, CHUNKS * threads), 2 / side);
    if (p->rows > s.band) size = at_most(size, OWN / (PANEL * p->depth * (int64_t)sizeof(bf16)) + 1);
    s.size = size * side, s.chunks = parts_of(turns, size);
    return s;
}

/* A turn: the panels from `panel` on that are gone through at once, times some rows. `next` is fetched meanwhile. */
static inline void turn_of(const Product *p, Matrices *m, int64_t row, int64_t last, int64_t panel, const char *next) {
    if (in_matrices(p)) in_registers(p, m, row, last, panel, next);
    else if (p->coding == BYTES) in_bytes(p, panel);
    else in_passes(p, panel, next);
}

static void product(const Product *p, Worker *w) {
    const Dealt s = dealt(p, w->threads);
    const int64_t side = side_of(p);
    Matrices m;
    begin_product(&m);
    for (int64_t chunk = claim(w, s.chunks); chunk >= 0; finished(w)) {
        const int64_t from = chunk * s.size, to = at_most(from + s.size, s.panels);
        for (int64_t row = 0, last; row < p->rows; row = last) {
            last = at_most(row + s.band, p->rows);
            for (int64_t panel = from; panel < to; panel += side) {
                const int end = panel + side >= to;
                if (end && last == p->rows) chunk = claim(w, s.chunks); /* now, to fetch the beginning of what this thread reads next */
                const int64_t next = !end ? panel + side : last < p->rows ? from : chunk < 0 ? panel : chunk * s.size;
                turn_of(p, &m, row, last, panel, panel_at(p, next));
            }
        }
        if (in_matrices(p)) put_due(p, &m);
    }
    end_product(&m);
    wait(w, s.chunks);
}

/* ---- the rest of a layer */

static inline floats length_of(const float *x, float eps, int64_t n) {
    floats sum = all(0);
    for (int64_t i = 0; i < n; i += LANES) { floats v = load(x + i); sum = fused(v, v, sum); }
    return all(1.0f / sqrtf(sum_of(sum) / (float)n + eps));
}

/* Without weights nothing is normed. */
static void rms_norm(const float *x, const float *weight, float eps, int64_t n, factor *to) {
    if (!weight) {
        for (int64_t i = 0; i < n; i += LANES) store_factors(to + i, load(x + i));
        return;
    }
    const floats size = length_of(x, eps, n);
    for (int64_t i = 0; i < n; i += LANES)
        store_factors(to + i, mul(mul(load(x + i), size), load(weight + i)));
}

/* The same once the mean is gone, of n numbers. */
static void layer_norm(const float *x, const float *weight, const float *bias, float eps, int64_t n, factor *to) {
    floats sum = all(0), squares = all(0);
    for (int64_t i = 0; i < n; i += LANES) sum = add(sum, load(x + i));
    const floats mean = all(sum_of(sum) / (float)n);
    for (int64_t i = 0; i < n; i += LANES) { const floats v = sub(load(x + i), mean); squares = fused(v, v, squares); }
    const floats size = all(1.0f / sqrtf(sum_of(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES)
        store_factors(to + i, fused(mul(sub(load(x + i), mean), size), load(weight + i), bias ? load(bias + i) : all(0)));
}

static void rms_norm_in_place(float *x, const float *weight, float eps, int64_t n) {
    const floats size = length_of(x, eps, n);
    for (int64_t i = 0; i < n; i += LANES)
        store(x + i, mul(mul(load(x + i), size), load(weight + i)));
}

/* Turn one head, the first `turned` numbers of it, in place. */
static void turn(float *x, const float *cos, const float *sin, int64_t turned) {
    int64_t half = cos ? turned / 2 : 0, i = 0;
    for (; i + LANES <= half; i += LANES) { /* stored as it is loaded next, or it would be waited for until it has left the core */
        const floats a = load(x + i), b = load(x + i + half);
        store(x + i, sub(mul(a, load(cos + i)), mul(b, load(sin + i))));
        store(x + i + half, add(mul(b, load(cos + i + half)), mul(a, load(sin + i + half))));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

/* Turn one head, and norm it where the model does. */
static void rotate(const Model *m, float *x, const float *norm, const float *cos, const float *sin) {
    if (norm && !m->turned_first) rms_norm_in_place(x, norm, m->eps, m->dim);
    turn(x, cos, sin, m->turned);
    if (norm && m->turned_first) rms_norm_in_place(x, norm, m->eps, m->dim);
}

/* Keys lie in blocks of 16 rows, [block][kv_head][dim / 2][16][2]: one load holds two numbers of 16 keys. */
static inline bf16 *key_at(const Model *m, bf16 *keys, int64_t row, int64_t head) {
    return keys + ((row / LANES) * m->kv_heads + head) * LANES * m->dim + row % LANES * 2;
}

/* Values lie in blocks of 32 rows, [block][kv_head][dim / 16][16][16][2]: one load holds 16 numbers of two rows. */
#define CHUNK (LANES * PANEL)
static inline bf16 *value_at(const Model *m, bf16 *values, int64_t row, int64_t head) {
    return values + ((row / PANEL) * m->kv_heads + head) * PANEL * m->dim + row % PANEL / 2 * PANEL + row % 2;
}

static void write_kv(const Model *m, const Layer *layer, const float *key, const float *value, int64_t row, int64_t head) {
    bf16 *to = key_at(m, layer->keys, row, head);
    for (int64_t i = 0; i < m->dim; i += LANES) {
        bf16 each[LANES];
        narrow_store(each, load(key + i));
        for (int64_t k = 0; k < LANES; k += 2) memcpy(to + (i + k) * LANES, each + k, 2 * sizeof *each);
    }
    bf16 *v = value_at(m, layer->values, row, head);
    for (int64_t i = 0; i < m->dim; i += LANES, v += CHUNK) store_apart(v, narrow(load(value + i))); /* the row beside it may be written meanwhile */
}

/* ---- attention. QUERIES heads and rows that look at the same kv head share every load of a key and of a value. */

#define QUERIES 4
#define MOST_QUERIES 16 /* in matrix registers */

typedef struct {
    int64_t trunk, depth, length, low; /* sees the positions [low, length): the rows [low, trunk), then `tail`, deepest first */
    int64_t tail[MOST_DEEP];
    float *scores; /* in text order, wherever keys lie, so that a guess in a tree adds up as plain text does */
    factor *vector, *to;
} Query;

static void describe(const Model *m, const Layer *layer, const Forward *f, const Span *span, int64_t row, int64_t head, Query *query) {
    int64_t local = row - span->start;
    query->trunk = span->past + (span->mutual ? span->stop - span->start : local + 1), query->depth = 0;
    if (span->parents && local >= span->trunk) {
        query->trunk = span->past + span->trunk;
        for (int64_t node = local - span->trunk + span->held; node >= 0; node = span->parents[node]) query->tail[query->depth++] = query->trunk + node;
    }
    query->length = query->trunk + query->depth;
    query->low = layer->window && query->length > layer->window ? query->length - layer->window : 0;
    const float *from = f->wide + row * wide_of(m) + head * apart_of(m);
    for (int64_t i = 0; i < m->dim; i += LANES) store_factors(query->vector + i, load(from + i));
    query->to = f->narrow + (row * m->heads + head) * m->dim;
}

/* Q queries times B blocks of 16 keys; the next B blocks are fetched meanwhile. */
INLINE void scores_of(const Model *m, const Query *query, const bf16 *block, int64_t at, const int Q, const int B) {
    const int64_t stride = m->kv_heads * LANES * m->dim;
    floats sum[QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) sum[q][b] = all(0);
    for (int64_t i = 0; i < m->dim; i += 2) {
        pairs key[4];
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) {
            key[b] = load_pairs(block + b * stride + i * LANES);
            prefetch(block + (b + B) * stride + i * LANES);
        }
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) sum[q][b] = dot(sum[q][b], key[b], query[q].vector + i);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) store(query[q].scores + at + b * LANES, capped(mul(sum[q][b], all(m->scale)), m->score_cap));
}

/* Scores in text order, from `first` up to `last`: what the query does not see scores nothing. */
static void order(const Query *query, int64_t first, int64_t last) {
    float *scores = query->scores;
    for (int64_t i = 0; i < query->depth; i++) scores[query->trunk + i] = scores[query->tail[query->depth - 1 - i]];
    for (int64_t i = first; i < query->low; i++) scores[i] = -INFINITY;
    for (int64_t i = query->length; i < last; i++) scores[i] = -INFINITY;
}

/* Scores to weights, not yet divided by their sum, which is returned. What lies before `low` gets 0. */
static float soften(const Query *query, int64_t first) {
    float *scores = query->scores;
    const int64_t last = parts_of(query->length, LANES) * LANES;
    order(query, first, last);
    floats top = all(-INFINITY), sum = all(0);
    for (int64_t at = first; at < last; at += LANES) top = maximum(top, load(scores + at));
    top = all(maximum_of(top));
    for (int64_t at = first; at < last; at += LANES) {
        floats raw = load(scores + at), e = vexp(sub(raw, top));
        e = where_above(raw, all(-INFINITY), e);
        sum = add(sum, e);
        store(scores + at, e);
    }
    return sum_of(sum);
}

/* 16 numbers of one row of two: the low halves belong to the even one, the high halves to the odd one. */
INLINE floats one_of(pairs two, int64_t row) { return row % 2 ? odd_of(two) : even_of(two); }

/* D * 16 columns of the values, weighted and added up in text order: [first, common) for Q queries at once, then each query's own. */
INLINE void values_of(const Model *m, const Query *query, const float *total, bf16 *value, int64_t kv, int64_t first, int64_t common, int64_t column, const int Q, const int D) {
    floats out[QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) out[q][d] = all(0);
    const int64_t even = common > first ? common / 2 * 2 : first, next = m->kv_heads * PANEL * m->dim; /* block, which lies elsewhere */
    for (int64_t at = first; at < even;) {
        const bf16 *v = value_at(m, value, at, kv) + column / LANES * CHUNK;
        const int64_t block = (at / PANEL + 1) * PANEL;
        for (const int64_t stop = block < even ? block : even; at < stop; at += 2, v += PANEL) {
            pairs two[4];
#pragma GCC unroll 4
            for (int d = 0; d < D; d++) {
                two[d] = load_pairs(v + d * CHUNK);
                prefetch(v + d * CHUNK + next);
            }
#pragma GCC unroll 2
            for (int64_t i = 0; i < 2; i++) {
                floats wide[4];
#pragma GCC unroll 4
                for (int d = 0; d < D; d++) wide[d] = one_of(two[d], i);
#pragma GCC unroll 4
                for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
                    for (int d = 0; d < D; d++) out[q][d] = fused(all(query[q].scores[at + i]), wide[d], out[q][d]);
            }
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
        for (int64_t at = even; at < query[q].length; at++) {
            int64_t held = at < query[q].trunk ? at : query[q].tail[query[q].length - 1 - at];
            const bf16 *v = value_at(m, value, held / 2 * 2, kv) + column / LANES * CHUNK;
#pragma GCC unroll 4
            for (int d = 0; d < D; d++) out[q][d] = fused(all(query[q].scores[at]), one_of(load_pairs(v + d * CHUNK), held), out[q][d]);
        }
        floats share = all(1.0f / total[q]);
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) store_factors(query[q].to + column + d * LANES, mul(out[q][d], share));
    }
}

INLINE void attend_as(const Model *m, const Layer *layer, const Span *span, int64_t kv, Query *query, const int Q) {
    int64_t low = query[0].low, common = query[0].trunk, reach = 0;
    for (int q = 0; q < Q; q++) {
        int64_t own = query[q].depth ? query[q].tail[0] + 1 : query[q].trunk;
        if (query[q].low < low) low = query[q].low;
        if (query[q].trunk < common) common = query[q].trunk;
        if (own > reach) reach = own;
    }
    const int64_t first = low / LANES * LANES;
    int64_t at = first;
    const int B = SUMS / Q < 4 ? SUMS / Q : 4; /* blocks of keys, or of columns, that registers have room for */
    for (; at + B * LANES <= reach; at += B * LANES) scores_of(m, query, key_at(m, layer->keys, span->extent + at, kv), at, Q, B);
    for (; at < reach; at += LANES) scores_of(m, query, key_at(m, layer->keys, span->extent + at, kv), at, Q, 1);
    float total[QUERIES];
    for (int q = 0; q < Q; q++) total[q] = soften(query + q, first);
    bf16 *value = layer->values + span->extent * m->kv_heads * m->dim;
    int64_t column = 0;
    for (; column + B * LANES <= m->dim; column += B * LANES) values_of(m, query, total, value, kv, first, common, column, Q, B);
    for (; column < m->dim; column += LANES) values_of(m, query, total, value, kv, first, common, column, Q, 1);
}

#include "amx_attention.c"

/* A unit of attention is `tile` queries of one span that look at one kv head: its rows, and in each the heads of its group. */
static int64_t units_of(const Model *m, const Span *span, int64_t tile) {
    return m->kv_heads * parts_of((span->stop - span->start) * (m->heads / m->kv_heads), tile);
}

static void attend(const Model *m, const Layer *layer, const Forward *f, int64_t unit, int64_t tile, float *scores) {
    const Span *span = f->span;
    while (unit >= units_of(m, span, tile)) unit -= units_of(m, span++, tile);
    const int64_t group = m->heads / m->kv_heads, queries = (span->stop - span->start) * group, tiles = parts_of(queries, tile);
    const int64_t kv = unit / tiles, from = unit % tiles * tile, count = at_most(queries - from, tile);
    Query query[MOST_QUERIES];
    factor vectors[MOST_QUERIES][MOST_DIM];
    for (int64_t q = 0; q < count; q++) {
        query[q].scores = scores + q * f->longest, query[q].vector = vectors[q];
        describe(m, layer, f, span, span->start + (from + q) / group, kv * group + (from + q) % group, query + q);
    }
    if (attends_in_registers(m)) attend_in_registers(m, layer, span, kv, query, (int)count, f->longest);
    else switch (count) {
        case 1: attend_as(m, layer, span, kv, query, 1); break;
        case 2: attend_as(m, layer, span, kv, query, 2); break;
        case 3: attend_as(m, layer, span, kv, query, 3); break;
        default: attend_as(m, layer, span, kv, query, 4);
    }
}

static const Span *span_of(const Forward *f, int64_t row) {
    for (int64_t s = 0; s < f->spans; s++)
        if (row >= f->span[s].start && row < f->span[s].stop) return f->span + s;
    return 0;
}

/* 16 numbers of an output's weights in a packed matrix, from the `i`th on: pairs of them lie as far apart as a panel is wide. */
static inline halves packed_row(const bf16 *packed, int64_t outputs, int64_t depth, int64_t output, int64_t i) {
    const int64_t first = output / PANEL * PANEL, wide = outputs - first < PANEL ? LANES : PANEL;
    const bf16 *from = packed + first * depth + (i / 2 * wide + output - first) * 2;
    bf16 each[LANES];
    for (int64_t k = 0; k < LANES; k += 2) memcpy(each + k, from + k * wide, 2 * sizeof *each);
    return load_halves(each);
}

static void embed(const Model *m, const Forward *f, int64_t r) {
    const floats scale = all(m->embedding_scale ? m->embedding_scale : 1.0f);
    const int64_t token = f->tokens[r], place = at_most(f->positions[r], m->placed - 1);
    for (int64_t i = 0; i < m->hidden; i += LANES) {
        const halves row = m->embedding ? load_halves(m->embedding + token * m->hidden + i) : packed_row(m->table, m->tabled, m->hidden, token, i);
        const floats there = m->places ? widen(load_halves(m->places + place * m->hidden + i)) : all(0);
        store(f->residual + r * m->hidden + i, fused(scale, widen(row), there));
    }
}

/* Row r, normed for a product. */
static void norm_row(const Model *m, const Forward *f, const float *weight, const float *bias, int64_t r, factor *to) {
    const float *x = f->residual + r * m->hidden;
    if (m->centred && weight) layer_norm(x, weight, bias, m->eps, m->hidden, to);
    else rms_norm(x, weight, m->eps, m->hidden, to);
}

/* What a half of a layer said of row r, in `wide`: normed, then added to the row. */
static void add_normed(const Model *m, const Forward *f, const float *norm, int64_t r) {
    float *said = f->wide + r * m->hidden, *x = f->residual + r * m->hidden;
    rms_norm_in_place(said, norm, m->eps, m->hidden);
    for (int64_t i = 0; i < m->hidden; i += LANES) store(x + i, add(load(x + i), load(said + i)));
}

static void shape_logits(const Model *m, float *logits) {
    const floats scale = all(m->logit_scale ? m->logit_scale : 1.0f);
    for (int64_t i = 0; i < m->vocab; i += LANES) store_first(logits + i, capped(mul(scale, load_first(logits + i, m->vocab - i, 0)), m->logit_cap), m->vocab - i);
}

static int heeds(const Forward *f, int64_t l) {
    for (int64_t i = 0; i < f->heeded; i++)
        if (f->heed[i] == l) return 1;
    return 0;
}

/* What layer `l` reads in row r, kept for those who asked for it. */
static void hear(const Model *m, const Forward *f, int64_t l, int64_t r) {
    for (int64_t i = 0; i < f->heeded; i++)
        if (f->heed[i] == l) memcpy(f->heard + (r * f->heeded + i) * m->hidden, f->residual + r * m->hidden, m->hidden * sizeof(float));
}

/* What the head reads. Without layers and norms there is nothing before it: rows are given as they shall be read. */
static void ready(const Model *m, const Forward *f, int64_t r, factor *to) {
    norm_row(m, f, m->norm, m->norm_bias, r, to);
}

static void hear_last(const Model *m, const Forward *f, int64_t r) {
    hear(m, f, m->layers + 1, r);
    factor *normed = f->narrow + r * m->hidden;
    ready(m, f, r, normed);
    for (int64_t i = 0; i < f->heeded; i++)
        for (int64_t at = 0; f->heed[i] == m->layers && at < m->hidden; at += LANES)
            store(f->heard + (r * f->heeded + i) * m->hidden + at, load_factors(normed + at));
}

static inline int64_t depth_of(const Model *m, const Layer *layer) { return layer->given_norm ? 2 * m->hidden : m->hidden; }

/* What attention reads of a row: the row, normed; and beside it the state that was given for it, where the layer wants one. */
static void enter(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    const int64_t depth = depth_of(m, layer);
    float *x = f->residual + r * m->hidden;
    factor *to = f->narrow + r * depth, *beside = to + m->hidden;
    norm_row(m, f, layer->norm, layer->norm_bias, r, to);
    if (!layer->given_norm) return;
    rms_norm(f->given[r], layer->given_norm, m->eps, m->hidden, beside);
    if (!layer->normed) memcpy(x, f->given[r], m->hidden * sizeof(float));
    else for (int64_t i = 0; i < m->hidden; i += LANES) store(x + i, load_factors(beside + i));
}

/* Whether what attention says of a row waits in `wide` until the MLP has read the row. */
static inline int waits(const Model *m, const Layer *layer) { return m->parallel && !layer->skipped; }

/* What the MLP reads of row r. */
static void enter_mlp(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    float *x = f->residual + r * m->hidden;
    norm_row(m, f, layer->mlp_norm, layer->mlp_norm_bias, r, f->narrow + r * m->hidden);
    for (int64_t i = 0; waits(m, layer) && i < m->hidden; i += LANES) store(x + i, add(load(x + i), load(f->wide + r * m->hidden + i)));
}

/* 16 numbers within a plain MLP. */
static void activate(const Model *m, const Forward *f, factor *to, int64_t at) {
    store_factors(to + at * LANES, plainly_activated(load(f->wide + at * LANES), m->activation));
}

/* Queries and keys normed as a whole, of a row. */
static void norm_broadly(const Model *m, const Layer *layer, const Forward *f, int64_t r) {
    float *x = f->wide + r * wide_of(m);
    rms_norm_in_place(x, layer->query_norm, m->eps, m->heads * m->dim);
    rms_norm_in_place(x + m->heads * apart_of(m), layer->key_norm, m->eps, m->kv_heads * m->dim);
}

/* What attention wants of one kv head and 16 rows from `row` on: queries and keys turned, keys and values in their memory. Rows share
 * lines of that memory: it is one thread's that places them, the one which is to read them, if nobody was late. */
static void place(const Model *m, const Layer *layer, const Forward *f, int64_t kv, int64_t row) {
    const int64_t group = m->heads / m->kv_heads;
    const float *query_norm = m->broad ? 0 : layer->query_norm, *key_norm = m->broad ? 0 : layer->key_norm;
    for (int64_t r = row; r < row + LANES && r < f->rows; r++) {
        float *query = f->wide + r * wide_of(m) + kv * group * apart_of(m), *key = f->wide + r * wide_of(m) + m->heads * apart_of(m) + kv * m->dim;
        const int64_t at = f->positions[r] * m->turned;
        const float *cos = layer->cos ? layer->cos + at : 0, *sin = layer->sin ? layer->sin + at : 0;
        const floats warmth = all(m->warmth ? m->warmth[f->positions[r]] : 1);
        for (int64_t h = 0; h < group; h++) {
            float *one = query + h * apart_of(m);
            rotate(m, one, query_norm, cos, sin);
            for (int64_t i = 0; m->warmth && i < m->dim; i += LANES) store(one + i, mul(warmth, load(one + i)));
        }
        rotate(m, key, key_norm, cos, sin);
        const Span *span = span_of(f, r);
        write_kv(m, layer, key, key + m->kv_heads * m->dim, span->extent + span->past + span->held + r - span->start, kv);
    }
}

/* What attention says of row r, as far as the gates behind its queries let it through. */
static void let_through(const Model *m, const Forward *f, int64_t r) {
    for (int64_t h = 0; h < m->heads; h++) {
        const float *gate = f->wide + r * wide_of(m) + h * apart_of(m) + m->dim;
        factor *said = f->narrow + (r * m->heads + h) * m->dim;
        for (int64_t i = 0; i < m->dim; i += LANES)
            store_factors(said + i, mul(sigmoid(load(gate + i)), load_factors(said + i)));
    }
}

#include "recurrent.c"
#include "experts.c"

/* Rows or heads, `size` of them a chunk. */
#define SHARE(total, size, item, work)                                                       \
    do {                                                                                     \
        int64_t chunks_ = parts_of(total, size);                                             \
        for (int64_t c_; (c_ = claim(w, chunks_)) >= 0; finished(w))                         \
            for (int64_t item = c_ * (size); item < (total) && item < (c_ + 1) * (size); item++) work; \
        wait(w, chunks_);                                                                    \
    } while (0)

/* Row r of `x` for a product: whole numbers, where its weights are. */
static inline void count_row(const Model *m, const Forward *f, factor *x, int64_t depth, int64_t r) {
    if (m->coding == BYTES) f->steps[r] = made_whole(x + r * depth, depth);
}

/* The same of all rows, which several threads wrote. */
#define COUNT(x, depth) do { if (m->coding == BYTES) SHARE(rows, 2, r, count_row(m, f, x, depth, r)); } while (0)

/* All rows, one kv head after the other. */
#define PLACE(layer)                                                                                            \
    do {                                                                                                        \
        if (m->broad) SHARE(rows, 4, r, norm_broadly(m, layer, f, r));                                          \
        SHARE(m->kv_heads * blocks, 1, u, place(m, layer, f, u / blocks, u % blocks * LANES));                  \
    } while (0)

/* Keys and values of rows that every layer's attention reads alike: after the model's norm. */
static void remember(const Model *m, const Forward *f, Worker *w) {
    const int64_t rows = f->rows, blocks = parts_of(rows, LANES), wide = wide_of(m);
    SHARE(rows, 4, r, (ready(m, f, r, f->narrow + r * m->hidden), count_row(m, f, f->narrow, m->hidden, r)));
    for (const Layer *layer = m->layer; layer < m->layer + m->layers; layer++) {
        product(&(Product){f->narrow, layer->qkv, rows, m->hidden, wide, STORE, f->wide, layer->qkv_bias, 0, m->coding, .steps = f->steps}, w);
        PLACE(layer);
    }
}

/* In place of attention, in a layer that remembers in a state. */
static void recur(const Model *m, const Layer *layer, const Forward *f, Worker *w) {
    const Recurrence *a = m->recurrence;
    const int64_t rows = f->rows, blocks = a->channels / LANES, said = a->heads ? a->heads * a->dim : a->channels, each = parts_of(blocks * f->spans, CHUNKS * w->threads);
    SHARE(rows, 4, r, (rms_norm(f->residual + r * m->hidden, layer->norm, m->eps, m->hidden, f->narrow + r * m->hidden), count_row(m, f, f->narrow, m->hidden, r)));
    product(&(Product){f->narrow, layer->qkv, rows, m->hidden, a->spread, STORE, f->wide, 0, 0, m->coding, .steps = f->steps}, w);
    if (!a->heads) SHARE(rows, 4, r, let_in(a, f->wide + r * a->spread));
    SHARE(blocks * f->spans, each, u, convolve(m, layer, f, f->span + u / blocks, u % blocks * LANES));
    if (!a->heads) SHARE(rows, 4, r, let_out(a, f->wide + r * a->spread, f->narrow + r * a->channels));
    else SHARE(a->heads * f->spans, 1, u, recall(m, layer, f, f->span + u / a->heads, u % a->heads, f->states + w->me * f->room));
    COUNT(f->narrow, said);
    product(&(Product){f->narrow, layer->out, rows, said, m->hidden, ADD, f->residual, 0, 0, m->coding, 0, 1, .steps = f->steps}, w);
}

/* In place of the MLP, in a layer that has experts. */
static void consult(const Model *m, const Layer *layer, const Forward *f, Worker *w) {
    const Experts *e = m->experts;
    const Asked *a = f->asked;
    const int64_t rows = f->rows, places = rows * each_of(e);
    SHARE(rows, 4, r, rms_norm(f->residual + r * m->hidden, layer->mlp_norm, m->eps, m->hidden, f->narrow + r * m->hidden));
    product(&(Product){f->narrow, layer->router, rows, m->hidden, routed_of(e), STORE, f->wide, 0}, w);
    SHARE(rows, 4, r, ask(m, layer, f, r));
    SHARE(1, 1, once, assort(e, rows, a));
    SHARE(places, 4, place, bring(m, f, place));
    with_experts(m, a, &(Product){a->gathered, layer->gate_up, places, m->hidden, 2 * e->inner, GATE, 0, 0, a->gated, m->coding, m->activation, .steps = a->steps}, w);
    if (m->coding == BYTES) SHARE(places, 2, place, a->steps[place] = made_whole(a->gated + place * e->inner, e->inner));
    with_experts(m, a, &(Product){a->gated, layer->down, places, e->inner, m->hidden, STORE, a->said, 0, 0, m->coding, .steps = a->steps}, w);
    SHARE(rows, 4, r, add_experts(m, layer, f, r));
}

static void run(const Model *m, const Forward *f, Worker *w) {
    if (f->remembered) {
        remember(m, f, w);
        return;
    }
    const int64_t rows = f->rows, blocks = parts_of(rows, LANES), wide = wide_of(m);
    /* Few queries are dealt out singly, so that every thread has some; the numbers are the same. */
    const int64_t each = rows * m->heads / (2 * w->threads), most = attends_in_registers(m) ? MOST_QUERIES : QUERIES, tile = at_least(at_most(each, most), 1);
    int64_t units = 0;
    for (int64_t i = 0; i < f->spans; i++) units += units_of(m, f->span + i, tile);
    const int64_t share = w->threads == 1 ? units : parts_of(units, CHUNKS * w->threads);
    factor *gated = f->narrow + rows * m->hidden;
    const float scale = m->residual_scale ? m->residual_scale : 1;
    for (int64_t l = 0; l < m->layers; l++) {
        const Layer *layer = m->layer + l;
        if (l == 0) SHARE(rows, 4, r, embed(m, f, r));
        if (heeds(f, l)) SHARE(rows, 4, r, hear(m, f, l, r));
        if (layer->taps) recur(m, layer, f, w);
        else if (!(layer->skipped & ATTENTION)) {
            SHARE(rows, 4, r, (enter(m, layer, f, r), count_row(m, f, f->narrow, depth_of(m, layer), r)));
            product(&(Product){f->narrow, layer->qkv, rows, depth_of(m, layer), wide, STORE, f->wide, layer->qkv_bias, 0, m->coding, .steps = f->steps}, w);
            PLACE(layer);
            SHARE(units, share, u, attend(m, layer, f, u, tile, f->scores + w->me * MOST_QUERIES * f->longest));
            if (apart_of(m) > m->dim) SHARE(rows, 2, r, let_through(m, f, r));
            COUNT(f->narrow, m->heads * m->dim);
            const float *norm = layer->said_norm;
            const int later = norm || waits(m, layer);
            product(&(Product){f->narrow, layer->out, rows, m->heads * m->dim, m->hidden, later ? STORE : ADD, later ? f->wide : f->residual, layer->out_bias, 0, m->coding, 0, scale, .steps = f->steps}, w);
            if (norm) SHARE(rows, 4, r, add_normed(m, f, norm, r));
        }
        if (layer->skipped & MLP) continue;
        const float *norm = layer->mlp_said_norm;
        if (layer->router) consult(m, layer, f, w);
        else {
            SHARE(rows, 4, r, (enter_mlp(m, layer, f, r), count_row(m, f, f->narrow, m->hidden, r)));
            if (m->plain) {
                product(&(Product){f->narrow, layer->gate_up, rows, m->hidden, m->intermediate, STORE, f->wide, layer->up_bias, 0, m->coding, .steps = f->steps}, w);
                SHARE(rows * m->intermediate / LANES, 64, at, activate(m, f, gated, at));
            } else product(&(Product){f->narrow, layer->gate_up, rows, m->hidden, 2 * m->intermediate, GATE, 0, 0, gated, m->coding, m->activation, .steps = f->steps}, w);
            COUNT(gated, m->intermediate);
            product(&(Product){gated, layer->down, rows, m->intermediate, m->hidden, norm ? STORE : ADD, norm ? f->wide : f->residual, layer->down_bias, 0, m->coding, 0, scale, .steps = f->steps}, w);
        }
        if (norm) SHARE(rows, 4, r, add_normed(m, f, norm, r));
    }
    if (heeds(f, m->layers) || heeds(f, m->layers + 1)) SHARE(rows, 4, r, hear_last(m, f, r));
    if (!f->kept) return;
    SHARE(f->kept, 4, i, (ready(m, f, f->keep[i], f->narrow + i * m->hidden), count_row(m, f, f->narrow, m->hidden, i)));
    const int64_t outputs = parts_of(m->vocab, LANES) * LANES; /* some of the last are nobody's */
    product(&(Product){f->narrow, m->head, f->kept, m->hidden, outputs, STORE, f->logits, m->head_bias, 0, m->coding, .said = m->vocab, .steps = f->steps}, w);
    if (m->logit_cap || m->logit_scale) SHARE(f->kept, 1, i, shape_logits(m, f->logits + i * m->vocab));
}

/* ---- helpers: threads that join a forward if they happen to be running, and that nobody waits for to begin. */

#define PHASES_A_LAYER 22
#define MOST_THREADS 256
#define SPINS 50000 /* a fraction of a millisecond: about the time between two forwards of a small model */

typedef struct {
    const Model *model;
    const Forward *forward;
    Share *share;
    Phase *phase;
    int threads;
} Job;

static struct {
    pthread_mutex_t owner, lock; /* owner: one forward at a time has helpers; lock: with wake, for helpers that sleep */
    pthread_cond_t wake;
    atomic_long epoch;
    atomic_int active, asleep;
    _Atomic(Job *) job;
    int started;
    pid_t process; /* a forked child has no helpers yet */
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER}; /* and zeros */

static void work(const Job *job, int me) { run(job->model, job->forward, &(Worker){job->share, job->phase, me, job->threads}); }

static void *help(void *argument) {
    const int me = (int)(intptr_t)argument;
    for (long seen = 0;;) {
        for (long spins = 0; atomic_load(&pool.epoch) == seen; spins++) {
            if (spins < SPINS) {
                pause_briefly();
                continue;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.asleep, 1);
            while (atomic_load(&pool.epoch) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.asleep, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        seen = atomic_load(&pool.epoch);
        atomic_fetch_add(&pool.active, 1);
        Job *job = atomic_load(&pool.job);
        if (job && me < job->threads) work(job, me);
        atomic_fetch_sub(&pool.active, 1);
    }
    return 0;
}

static int gather(int threads) {
    if (pool.process != getpid()) {
        pool.process = getpid(), pool.started = 0;
        atomic_store(&pool.active, 0), atomic_store(&pool.asleep, 0);
        pthread_mutex_init(&pool.lock, 0), pthread_cond_init(&pool.wake, 0);
    }
    while (pool.started < threads - 1 && pool.started < MOST_THREADS - 1) {
        pthread_t thread;
        if (pthread_create(&thread, 0, help, (void *)(intptr_t)(pool.started + 1))) break;
        pthread_detach(thread);
        pool.started++;
    }
    return pool.started + 1 < threads ? pool.started + 1 : threads;
}

void foreword_forward(const Model *m, const Forward *f, int threads) {
    const int alone = threads < 2 || pthread_mutex_trylock(&pool.owner);
    const int together = alone ? 1 : gather(threads);
    Share share[together];
    Phase phase[m->layers * PHASES_A_LAYER + 5];
    memset(share, 0, sizeof share);
    memset(phase, 0, sizeof phase);
    Job job = {m, f, share, phase, together};
    if (!alone) {
        atomic_store(&pool.job, &job);
        atomic_fetch_add(&pool.epoch, 1);
        if (atomic_load(&pool.asleep)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_broadcast(&pool.wake);
            pthread_mutex_unlock(&pool.lock);
        }
    }
    work(&job, 0);
    if (!alone) {
        atomic_store(&pool.job, 0);
        for (long spins = 0; atomic_load(&pool.active); spins++) /* a helper may still be looking at the job */
            if (spins < SPINS) pause_briefly();
            else sched_yield();
        pthread_mutex_unlock(&pool.owner);
    }
    settle(m, f);
}

int foreword_factor_bytes(void) { return sizeof(factor); }

/* [outputs, depth] to panels [depth / 2][32][2], the last of which may have 16; what no output fills is 0. */
void foreword_pack(const bf16 *from, bf16 *to, int64_t outputs, int64_t depth) {
    for (int64_t first = 0; first < outputs; first += PANEL) {
        const int64_t wide = outputs - first > LANES ? PANEL : LANES;
        for (int64_t o = 0; o < wide; o++)
            for (int64_t k = 0; k < depth; k++)
                to[first * depth + (k / 2 * wide + o) * 2 + k % 2] = first + o < outputs ? from[(first + o) * depth + k] : 0;
    }
}

void foreword_move(const Model *m, int64_t from, int64_t to) {
    for (int64_t l = 0; l < m->layers; l++)
        for (int64_t head = 0; !m->layer[l].taps && head < m->kv_heads; head++) {
            bf16 *a = key_at(m, m->layer[l].keys, from, head), *b = key_at(m, m->layer[l].keys, to, head);
            for (int64_t i = 0; i < m->dim; i += 2) b[i * LANES] = a[i * LANES], b[i * LANES + 1] = a[i * LANES + 1];
            const bf16 *given = value_at(m, m->layer[l].values, from, head);
            bf16 *v = value_at(m, m->layer[l].values, to, head);
            for (int64_t i = 0; i < m->dim; i++) v[i / LANES * CHUNK + i % LANES * 2] = given[i / LANES * CHUNK + i % LANES * 2];
        }
}

#include "tree.c"
