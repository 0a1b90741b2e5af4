/* The structures of a model, as ctypes fills them (native/forward.py).
 *
 * layout.c lists their fields; Python compares offsets and sizes with its own when it loads the
 * library. A pointer may be NULL where a comment says so.
 */
#ifndef FOREWORD_MODEL_H
#define FOREWORD_MODEL_H

#include "simd/simd.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "cannot compile for a big-endian processor: the low half of a word must come first"
#endif

#define MOST_DIM 256
#define MOST_DEEP 256

/* Bits of Layer.skipped. */
enum { ATTENTION = 1, MLP = 2 };

/* Storage of weights: bfloat16, 8 bits, or each matrix with a header of its own (Grouped). */
enum { WHOLE, BYTES, GROUPS };

/* Activations. GELU is the tanh form; the next three are in ungated MLPs only; CLAMPED is that of
 * gpt-oss, in gated ones. */
enum { SILU, GELU, GELU_ERF, RELU, RELU_SQUARED, CLAMPED };

/* How a strip stores scales or offsets. FACTOR: bytes times the span's number; ZERO: bytes times
 * the scale. */
enum { NO_FIELD, BF16_FIELD, F16_FIELD, F32_FIELD, FACTOR_FIELD, ZERO_FIELD };

/* The header of a matrix in groups (products/groups.c). */
typedef struct {
    int64_t bits;          /* of a code; 16: no groups, bfloat16 panels follow */
    int64_t group, span;   /* depths of a group; groups of a span */
    int64_t scale, offset; /* kinds of fields */
    int64_t strip, matrix; /* bytes of a strip; of the whole matrix with its header */
    int64_t least, most;   /* levels: the lowest and the highest */
    int64_t counted;       /* the codes count levels from the least one on */
    int8_t level[16];      /* of each code of 4 bits */
    char unused[32];       /* 128 bytes in all */
} Grouped;

typedef struct {
    const void *qkv, *out, *gate_up, *down; /* packed, see foreword_pack and products/groups.c */
    const float *qkv_bias, *norm, *mlp_norm, *query_norm, *key_norm; /* NULL = none */
    /* Norms of the outputs of attention and MLP, before they are added; NULL = none. */
    const float *said_norm, *mlp_said_norm;
    const float *cos, *sin; /* [position, rotary_dim]; NULL = no rotary embedding */
    /* If set, the layer input is [embedding, given hidden state], and the residual starts from the
     * given state (EAGLE). */
    const float *given_norm;
    /* Where those of this layer start in a page, in numbers; in bytes if they have 8 bits. */
    int64_t keys, values;
    int64_t window;  /* 0 = none */
    int64_t skipped; /* bits: ATTENTION | MLP */
    int64_t normed;  /* the residual starts from the given state after its norm */
    /* [tap, channel], the current token last. Not NULL: the layer is recurrent
     * (layers/recurrent.c), without attention. */
    const float *taps;
    const float *decay, *step_bias, *gated_norm; /* [head], [head], [dim] of the recurrent layer */
    int64_t number;                              /* index among the recurrent layers */
    /* Packed bfloat16; not NULL: the MLP has experts (layers/experts.c). */
    const void *router;
    const float *expert_bias; /* added to router weights to choose experts; NULL = none */
    /* NULL = none. up_bias only in an ungated MLP, or of experts: [expert, outputs], as down_bias
     * then. */
    const float *norm_bias, *mlp_norm_bias, *out_bias, *up_bias, *down_bias;
    /* Not NULL: after attention, rows attend to their source, whose keys and values lie in pages as
     * those of this layer do. */
    const void *cross_q, *cross_out;
    const float *cross_norm, *cross_norm_bias, *cross_q_bias, *cross_out_bias; /* NULL = none */
    /* [head, distances]: added to the score of a key by its distance, the largest first; NULL =
     * none. */
    const float *bias;
    const float *router_bias; /* [experts, padded to whole panels]; NULL = none */
    /* [head]: a score that takes a share of attention and has no value; NULL = none. */
    const float *sinks;
} Layer;

/* The packed matrices of a layer that adapters add to. */
enum { QKV, OUT, GATE_UP, DOWN, ADAPTED };

/* What an adapter adds to a packed matrix, by low rank (layers/low_rank.c). */
typedef struct LowRank {
    int64_t rank;         /* sums of an output */
    int64_t count;        /* sums of a row, of all linear layers in the matrix; a multiple of 4 */
    const float *down;    /* [count, depth] */
    const float *up;      /* [outputs / 16, rank, 16], scaled */
    const int32_t *first; /* [outputs / 16]: the first sum of 16 outputs; NULL = nothing is added */
} LowRank;

/* Sizes of recurrent layers. */
typedef struct Recurrence {
    int64_t key_heads, heads, key_dim, dim; /* of the delta rule; heads = 0: none */
    int64_t taps;                           /* length of the convolution in tokens */
    int64_t channels; /* inputs of the convolution, the first numbers of a row */
    int64_t spread;   /* all numbers of a row */
} Recurrence;

/* Sizes of experts. */
typedef struct Experts {
    int64_t count, top_k;  /* routed experts; chosen per row */
    int64_t shared, inner; /* pieces of the shared expert; intermediate size of each */
    int64_t sigmoid;       /* router weights: sigmoid of each logit, else softmax */
    int64_t normed;        /* router weights of the top k sum to 1 */
    int64_t gated; /* weight of the shared expert: sigmoid of the router's last output, else 1 */
    float scale;   /* factor of router weights; 0 = none */
} Experts;

typedef struct {
    int64_t layers, hidden, heads, kv_heads, dim, intermediate, vocab;
    float eps, scale;
    const bf16 *embedding; /* [vocab, hidden]; NULL: use `table` */
    const float *norm;     /* NULL = none before the head */
    const void *head;      /* packed */
    const Layer *layer;
    int64_t coding;            /* of every packed weight */
    const int32_t *ids;        /* [vocab]: token ids of the head's outputs; NULL = identity */
    int64_t rotary_dim;        /* numbers of a head that are rotated, the first ones */
    int64_t activation, broad; /* broad: query and key norms span all heads */
    float embedding_scale, score_cap, logit_cap; /* caps: cap tanh(x / cap); 0 = none */
    /* Factors of what each half of a layer adds, and of logits before the cap; 0 = none. */
    float residual_scale, logit_scale;
    const void *table;  /* embeddings: tied to the head, packed; or rows of a GGUF file */
    int64_t table_rows; /* rows of `table`, if it is packed */
    int64_t table_kind; /* 0 = packed, else 1 + type of its rows (products/strips.c) */
    /* Numbers from one query to the next; 0 = dim; 2 dim if an output gate follows each query. */
    int64_t query_stride;
    const Recurrence *recurrence;       /* NULL = no recurrent layers */
    const Experts *experts;             /* NULL = none */
    const float *norm_bias, *head_bias; /* NULL = none; head_bias is padded to whole panels */
    /* [position_count, hidden], learned: added to token embeddings; NULL = none. */
    const bf16 *position_embedding;
    int64_t position_count;
    int64_t centred;  /* norms subtract the mean first (LayerNorm) */
    int64_t plain;    /* MLPs have no gates: `gate_up` is one matrix followed by the activation */
    int64_t parallel; /* MLPs read the same input as attention, before its output is added */
    int64_t norm_after_rotary; /* query and key norms come after the rotary embedding */
    const float *query_scale;  /* [position]: factor of queries after rotation; NULL = 1 */
    int64_t kv_coding;         /* of keys and values: WHOLE or BYTES (attention/kv.c) */
    /* In each layer's `bias`; at least as many as the longest sequence has keys. */
    int64_t distances;
    struct Stream *stream; /* what reads layers from a file; NULL = all are in memory */
    /* Bfloat16 is multiplied by fused operations alone, the same on every processor. */
    int64_t portable;
    /* Packed [hidden, 2 hidden]; not NULL: rows begin as its product with the normed embedding and
     * the normed given state, side by side (multi-token prediction). */
    const void *join;
    const float *embedding_norm, *state_norm;
    /* [vocab / 64]: pairs of panels of the head that are multiplied, rising; NULL = all. `vocab`
     * counts their outputs alone, and `ids` names them. */
    const int32_t *pairs;
} Model;

/* Outputs of the qkv product: queries (each with its gate, if any), keys and values. */
static inline int64_t query_stride_of(const Model *m) {
    return m->query_stride ? m->query_stride : m->dim;
}
static inline int64_t wide_of(const Model *m) {
    return m->heads * query_stride_of(m) + 2 * m->kv_heads * m->dim;
}

#endif
