/* What the library exports: the structures of a forward, as ctypes fills them (native/forward.py
 * and native/tree.py), and the functions that Python calls. model.h has the structures of a model.
 *
 * No function returns an error code, except where its comment says so: Python checks sizes before
 * it calls. New fields are entered in layout.c.
 */
#ifndef FOREWORD_H
#define FOREWORD_H

#include "layout.h"
#include "model.h"

/* The recurrent state of one sequence in all layers. Each token after `folded` has a slot: its
 * position modulo `slots`. */
typedef struct State {
    int64_t folded; /* tokens in the state */
    int64_t back;   /* last tokens that are left out of it, so that a sequence can be truncated */
    int64_t slots;
    float *held;  /* [layer, head, key_dim, dim] */
    bf16 *tail;   /* [layer, taps - 1, channels]: convolution inputs of its last tokens */
    float *taken; /* [layer, slot, head, key_dim + dim + LANES]: k, u and d */
    bf16 *inputs; /* [layer, slot, channels]: convolution inputs */
} State;

/* Scratch of experts. `each` is top_k + shared; a place is one (row, expert) pair. */
typedef struct Routing {
    int32_t *expert, *place;  /* [rows, each] */
    float *weight;            /* [rows, each] */
    int32_t *row;             /* [places]: the row of each place, ordered by expert */
    int64_t *first;           /* [experts + 1]: the first place of each */
    factor *gathered, *gated; /* [places, hidden], [places, inner] */
    float *outputs, *steps;   /* [places, hidden], [places] */
} Routing;

/* One sequence's rows of a packed forward. Row r of the span, counted from `start`, attends to the
 * rows [0, past + min(r + 1, first_chain)) of its pages, then to its ancestors among the draft
 * tokens, in sequence order. */
typedef struct {
    int64_t start, stop, past;
    int64_t held;         /* draft tokens read before, stored after past (then first_chain = 0) */
    int64_t first_chain;  /* rows before the tree */
    const int64_t *pages; /* numbers of its pages, in order; those of all rows after this forward */
    /* Of the draft tokens held and of the rows after first_chain; NULL = a chain. */
    const int32_t *parents;
    int64_t mutual;    /* rows attend to each other in both directions */
    int64_t committed; /* the first rows, which are not draft tokens; used only with a state */
    State *state;      /* NULL = no recurrent layers */
    int64_t placed;    /* the first rows, whose keys `reach` gives */
    /* By whether a layer has a window: the first key of each such row and the one after its last;
     * NULL = as other rows. */
    const int64_t *reach[2];
    int64_t source;              /* rows of the source that cross-attention reads */
    const int64_t *source_pages; /* numbers of their pages */
    const LowRank *adapter;      /* [layers, ADAPTED]; NULL = none */
} Span;

typedef struct {
    int64_t rows, spans, kept;
    const int64_t *tokens, *positions, *keep;
    const Span *span;
    float *logits; /* [kept, vocab] */
    /* Scratch: [rows, hidden], [rows, max(wide_of, hidden, ungated intermediate)],
     * [MOST_QUERIES threads, longest]. */
    float *residual, *wide, *scores;
    factor *narrow; /* scratch: [rows, max(2 hidden, heads dim) + intermediate] */
    float *steps;   /* scratch: [rows] */
    int64_t longest;
    /* Layers whose input is returned; number `layers` = the head's input, `layers` + 1 = that
     * before the final norm. */
    int64_t hidden_layer_count;
    const int64_t *hidden_layers;
    float *hidden_states; /* [rows, hidden_layer_count, hidden] */
    /* [rows]: a given hidden state each, where a layer has given_norm or `first_layer` > 0. */
    const float **given;
    float *states;        /* scratch: [threads, room], copies of states for draft tokens */
    int64_t room;
    /* Only write keys and values, in every layer from the same rows, which `residual` holds. */
    int64_t kv_only;
    const Routing *routing; /* scratch, where there are experts */
    bf16 *const *page;      /* [number]: each page of the pool */
    /* [image_layers, rows]: what images put in the place of a row's embedding, then add to it
     * before each later layer; NULL = nothing. */
    const float **image;
    int64_t image_layers;
    /* Scratch: [threads, 2, longest in whole pages, dim], keys and values of a head of 8 bits; NULL
     * = none. */
    bf16 *unpacked;
    int64_t first_layer; /* earlier ones have run: `given` has their output */
    /* Scratch where a span has an adapter, else NULL: [rows, most_sums] numbers of low rank, and
     * [rows, 2 intermediate] gates and their inputs. */
    float *sums, *halves;
    int64_t most_sums;
} Forward;

/* A draft tree to grow (tree.c), and memory for the result. */
typedef struct {
    int64_t most, breadth, deep; /* draft tokens returned; children per node; levels */
    int64_t width, reads;        /* rows per forward; draft tokens read */
    double floor, expand;        /* draft tokens no likelier: not returned; not read */
    float temperature, scale;
    const uint64_t *key; /* of the noise after the sequence; NULL: temperature 0 */
    int64_t target;      /* tokens of the target, which have noise */
    uint32_t *words;     /* scratch: one more, in whole blocks */
    /* The target's token of each of the model's; `target` = none, such tokens stay out of the tree.
     * NULL: the model has the target's. */
    const int32_t *ids;
    int64_t ends;
    const int64_t *end; /* tokens that end a sequence */
    /* Logits [deep, vocab]; NULL: the model reads each draft token for the logits after it. */
    const float *distributions;
    /* Draft tokens in the order they were generated, [(reads + 1) * breadth], and how many of them
     * were read. */
    int64_t count, held;
    int64_t *tokens, *parents;
    double *probabilities;
    /* Results: the best `most` of them, likeliest first; those that were read; their children. */
    int64_t chosen;
    int64_t *best_tokens, *best_parents; /* [most] */
    double *best_probabilities;
    int64_t *read_tokens, *read_parents; /* [reads], parents as index among those read */
    /* [reads + 1, breadth]: of the end of the sequence, then of each draft token read; -1 = none.
     */
    int64_t *child;
    float *value;
} CoupledTree;

/* forward.c: one forward; NUMA nodes; bytes of a factor; packing of weights. */
void foreword_forward(const Model *m, const Forward *f, int threads);
void foreword_nodes(int count, const int32_t *threads, int64_t processors, const int32_t *node);
void foreword_touch(void *to, int64_t bytes, int64_t outputs, int threads);
int foreword_factor_bytes(void);
void foreword_pack(const bf16 *from, bf16 *to, int64_t outputs, int64_t depth);
void foreword_write(const Model *m, int64_t layer, bf16 *const *page, const int64_t *pages,
                    int64_t rows, const float *kv);

/* tree.c */
void foreword_grow(const Model *m, const Forward *f, CoupledTree *g, float *scratch, int threads);

/* products/encode.c: weights in 8 bits, or in groups of 4. */
void foreword_quantize(const bf16 *from, uint8_t *to, int64_t outputs, int64_t depth, int coding);
int64_t foreword_coded_bytes(int64_t outputs, int64_t depth, int coding);

/* products/amx.c: whether products use matrix registers. */
int foreword_use_amx(int enabled);
int foreword_uses_amx(void);

/* attention/kv.c: a row of the pool to another place. */
void foreword_move(const Model *m, bf16 *const *page, int64_t from, int64_t to);

/* layers/recurrent.c: the stored values of a draft token to another position. */
void foreword_shift(const Model *m, const State *state, int64_t from, int64_t to);

/* stream.c: weights larger than memory. NULL: the file cannot be opened (errno). */
struct Stream *foreword_stream(const char *path, int64_t first, int64_t parts, const int64_t *start,
                               char *slot, int64_t size);
int foreword_stream_failed(const struct Stream *s); /* errno of a read; 0 = none failed */
void foreword_end_stream(struct Stream *s);

#endif
