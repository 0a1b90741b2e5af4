/* The structures of a model and of a forward, as ctypes fills them (native/forward.py). */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "cannot compile for a big-endian processor: the first bfloat16 of a word must be its low half"
#endif

#define MOST_DIM 256
#define MOST_DEEP 256

typedef struct {
    const void *qkv, *out, *gate_up, *down; /* packed, see pack() and groups.c */
    const float *qkv_bias, *norm, *mlp_norm, *query_norm, *key_norm; /* NULL where the model has none */
    const float *said_norm, *mlp_said_norm; /* norms of the outputs of attention and MLP, before they are added; NULL = none */
    const float *cos, *sin; /* [position, rotary_dim]; NULL = no rotary embedding */
    const float *given_norm; /* if set, the layer input is [embedding, given hidden state], and the residual starts from the given state (EAGLE) */
    int64_t keys, values; /* where those of this layer start in a page, in numbers; in bytes if they have 8 bits */
    int64_t window; /* 0 = none */
    int64_t skipped; /* bits: ATTENTION | MLP */
    int64_t normed; /* the residual starts from the given state after its norm */
    const float *taps; /* not NULL: the layer is recurrent instead of attention (recurrent.c); [tap, channel], the current token last */
    const float *decay, *step_bias, *gated_norm; /* [head], [head], [dim] of the recurrent layer */
    int64_t number; /* index among the recurrent layers */
    const void *router; /* not NULL: the MLP has experts (experts.c); packed, always bfloat16 */
    const float *expert_bias; /* added to router weights to choose experts; NULL = none */
    const float *norm_bias, *mlp_norm_bias, *out_bias, *up_bias, *down_bias; /* NULL where the model has none; `up_bias` only in an ungated MLP, or of experts: [expert, outputs], as `down_bias` then */
    const void *cross_q, *cross_out; /* not NULL: after attention, rows attend to their source, whose keys and values lie in pages as those of this layer do */
    const float *cross_norm, *cross_norm_bias, *cross_q_bias, *cross_out_bias; /* NULL where the model has none */
    const float *bias; /* [head, distances]: added to the score of a key by its distance, the largest first; NULL = none */
    const float *router_bias, *sinks; /* [experts, padded to whole panels]; [head]: a score that takes a share of attention and has no value; NULL = none */
} Layer;

enum { ATTENTION = 1, MLP = 2 };
enum { WHOLE, BYTES, GROUPS }; /* storage of weights: bfloat16, 8 bits, or each matrix with a header of its own (groups.c) */
enum { SILU, GELU, GELU_ERF, RELU, RELU_SQUARED, CLAMPED }; /* GELU: the tanh form; the next three in ungated MLPs only; CLAMPED: of gpt-oss, in gated ones */

typedef struct {
    int64_t layers, hidden, heads, kv_heads, dim, intermediate, vocab;
    float eps, scale;
    const bf16 *embedding; /* [vocab, hidden]; NULL: use `table` */
    const float *norm; /* NULL = none before the head */
    const void *head; /* packed */
    const Layer *layer;
    int64_t coding; /* of every packed weight */
    const int32_t *ids; /* [vocab]: token ids of the head's outputs; NULL = identity */
    int64_t rotary_dim; /* numbers of a head that are rotated, the first ones */
    int64_t activation, broad; /* broad: query and key norms span all heads */
    float embedding_scale, score_cap, logit_cap; /* caps: cap tanh(x / cap); 0 = none */
    float residual_scale, logit_scale; /* factors of what each half of a layer adds, and of logits before the cap; 0 = none */
    const bf16 *table; /* embeddings tied to the head, packed */
    int64_t table_rows; /* rows of `table` */
    int64_t query_stride; /* numbers from one query to the next; 0 = dim; 2 dim if an output gate follows each query */
    const struct Recurrence *recurrence; /* sizes of recurrent layers; NULL = there are none */
    const struct Experts *experts; /* NULL = there are none */
    const float *norm_bias, *head_bias; /* NULL = none; head_bias is padded to whole panels */
    const bf16 *position_embedding; /* [position_count, hidden], learned: added to token embeddings; NULL = none */
    int64_t position_count;
    int64_t centred;  /* norms subtract the mean first (LayerNorm) */
    int64_t plain;    /* MLPs have no gates: `gate_up` is one matrix followed by the activation */
    int64_t parallel; /* MLPs read the same input as attention, before its output is added */
    int64_t norm_after_rotary; /* query and key norms come after the rotary embedding */
    const float *query_scale; /* [position]: factor of queries after rotation; NULL = 1 */
    int64_t kv_coding; /* of keys and values: WHOLE or BYTES (kv.c) */
    int64_t distances; /* in each layer's `bias`; at least as many as the longest sequence has keys */
    struct Stream *stream; /* what reads layers from a file; NULL = all are in memory */
} Model;

/* One sequence's rows of a packed forward. Row r of the span, counted from `start`, attends to the rows
 * [0, past + min(r + 1, first_chain)) of its pages, then to its ancestors among the draft tokens, in sequence order. */
typedef struct {
    int64_t start, stop, past, held, first_chain; /* held: draft tokens read before, stored after past (then first_chain = 0); first_chain: rows before the tree */
    const int64_t *pages; /* numbers of the pages of its rows, in order; those of all rows after this forward */
    const int32_t *parents; /* of the draft tokens held and of the rows after first_chain; NULL = a chain */
    int64_t mutual; /* rows attend to each other in both directions */
    int64_t committed; /* the first rows, which are not draft tokens; used only with a state */
    struct State *state; /* NULL = no recurrent layers */
    int64_t placed; /* the first rows, whose keys `reach` gives */
    const int64_t *reach[2]; /* by whether a layer has a window: the first key of each such row and the one after its last; NULL = as other rows */
    int64_t source; /* rows of the source that cross-attention reads */
    const int64_t *source_pages; /* numbers of their pages */
} Span;

typedef struct {
    int64_t rows, spans, kept;
    const int64_t *tokens, *positions, *keep;
    const Span *span;
    float *logits; /* [kept, vocab] */
    float *residual, *wide, *scores; /* scratch: [rows, hidden], [rows, max(wide_of, hidden, ungated intermediate)], [MOST_QUERIES threads, longest] */
    factor *narrow; /* scratch: [rows, max(2 hidden, heads dim) + intermediate] */
    float *steps; /* scratch: [rows] */
    int64_t longest;
    int64_t hidden_layer_count; /* layers whose input is returned; number `layers` = the head's input, `layers` + 1 = that before the final norm */
    const int64_t *hidden_layers;
    float *hidden_states; /* [rows, hidden_layer_count, hidden] */
    const float **given; /* [rows]: a given hidden state each, where a layer has given_norm */
    float *states; /* scratch: [threads, room], copies of states for draft tokens */
    int64_t room;
    int64_t kv_only; /* only write keys and values, in every layer from the same rows, which `residual` holds */
    const struct Routing *routing; /* scratch, where there are experts */
    bf16 *const *page; /* [number]: each page of the pool */
    const float **image; /* [image_layers, rows]: what images put in the place of a row's embedding, then add to it before each later layer; NULL = nothing */
    int64_t image_layers;
    bf16 *unpacked; /* scratch: [threads, 2, longest in whole pages, dim], keys and values of a head of 8 bits; NULL = none */
} Forward;

/* Outputs of the qkv product: queries (each with its gate, if any), keys and values. */
static inline int64_t query_stride_of(const Model *m) { return m->query_stride ? m->query_stride : m->dim; }
static inline int64_t wide_of(const Model *m) { return m->heads * query_stride_of(m) + 2 * m->kv_heads * m->dim; }
