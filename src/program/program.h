/* A program: what a model computes in one step, as a flat list of ops over values, weights, cache groups and
 * state. It is data and knows no device; src/plan lowers it, src/backend runs it, `sluice plan --ops` prints
 * it.
 *
 * A step carries rows: any mix of prompt chunks and single tokens from any number of sequences. Decode is a
 * step in which each sequence has one row; nothing in a program tells the two apart. */
#ifndef SL_PROGRAM_PROGRAM_H
#define SL_PROGRAM_PROGRAM_H

#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"
#include "quant/activation.h"
#include "quant/qtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- values: the activations of a step
 * ---------------------------------------------------------------------------- */

/* How many rows a value has. */
typedef enum sl_rows {
    SL_ROWS_STEP,   /* one per row of the step */
    SL_ROWS_EXPERT, /* one per row and chosen expert: row * experts_used + rank */
    SL_ROWS_OUTPUT, /* one per output asked for */
    SL_ROWS_COUNT
} sl_rows;

typedef enum sl_value_type {
    SL_VALUE_F32,
    SL_VALUE_I32,
    SL_VALUE_BF16,
    SL_VALUE_Q8_32,    /* int8 with a scale and a sum per 32: quant/activation.h */
    SL_VALUE_E4M3_128, /* E4M3 with a scale per 128: likewise */
    SL_VALUE_Q8_256,   /* int8 with a scale per 256: likewise */
    SL_VALUE_TYPE_COUNT
} sl_value_type;

typedef struct sl_value {
    const char *name;
    sl_value_type type;
    sl_rows rows;
    int32_t width; /* elements per row */
    int32_t fixed; /* elements in front of the rows (a schedule's offsets); 0 otherwise */
    bool tail;     /* step or expert rows: of those rows of the step alone that have an output */
} sl_value;

enum { SL_NONE = -1, SL_MOST_RANKS = 8 };

/* Columns [column, column + what the op's parameters say) of a value; value is SL_NONE for an absent operand.
 */
typedef struct sl_operand {
    int32_t value;
    int32_t column;
} sl_operand;

/* ---- weights
 * ------------------------------------------------------------------------------------------------------- */

/* A matrix [experts][rows][columns], columns innermost and contracted (y = x W^T), or a vector (rows 1).
 * Vectors, convolution kernels and constants are always F32. The data is borrowed from the model. */
typedef struct sl_weight {
    const char *name;
    sl_qtype type;
    int32_t experts; /* 1 for an ordinary matrix */
    int32_t rows, columns;
    const void *data;
    uint64_t bytes;
    int32_t scale_rows; /* from each multiple of it on, so many rows have the same scales in each block of
                           columns; 0: nothing is known of that */
} sl_weight;

/* ---- cache and state
 * ----------------------------------------------------------------------------------------------- */

enum {
    SL_PAGE_TOKENS = 64, /* tokens of one sequence in one page; also the key tile of every attention kernel */
    SL_CACHE_GROUPS = 4, /* at most this many geometries in a model */
};

/* Layers whose keys and values have one geometry; they share page tables and lengths. Within a page, for each
 * layer in turn: keys [kv_heads][SL_PAGE_TOKENS][key_size], then values
 * [kv_heads][SL_PAGE_TOKENS][value_size], in the cache's type; keys alone where a value is the first
 * value_size elements of its key. */
typedef struct sl_cache_group {
    const char *name;
    int32_t layers;
    int32_t kv_heads, key_size, value_size;
    int32_t window; /* keys a row may see, itself included; 0: all */
    bool values_are_keys;
    bool chunked; /* a row sees those of its own chunk of `window` keys, a power of two */
} sl_cache_group;

/* One recurrent layer's part of a state slot, all F32: conv [taps - 1][channels] (oldest first), then what
 * the scan behind it keeps, [heads][key_size][value_size]; a layer without a scan has heads 0. Offsets in
 * bytes from the slot's start. */
typedef struct sl_state_layer {
    int32_t channels, taps;
    int32_t heads, key_size, value_size;
    uint64_t conv_offset, delta_offset;
} sl_state_layer;

/* ---- ops
 * -----------------------------------------------------------------------------------------------------------
 */

typedef enum sl_op_kind {
#define SL_OP(ID, name, inputs, outputs, text) SL_OP_##ID,
#include "program/ops.def"
#undef SL_OP
    SL_OP_COUNT
} sl_op_kind;

enum { SL_OP_INPUTS = 5, SL_OP_OUTPUTS = 3, SL_LINEAR_SEGMENTS = 4 };

/* Which row of the table a row of the step takes. */
typedef enum sl_embed_source {
    SL_EMBED_TOKEN,
    SL_EMBED_POSITION,
    SL_EMBED_FIRST, /* row 0: what all rows have in common */
    SL_EMBED_SOURCE_COUNT
} sl_embed_source;

/* A row that the table has not counts as zeros. */
typedef struct sl_op_embed {
    int32_t weight; /* [vocab or positions][width] */
    float scale;
    sl_embed_source source;
    int32_t offset; /* added to a position: what stands in front of the first one's row */
} sl_op_embed;

typedef enum sl_residual { SL_RESIDUAL_NONE, SL_RESIDUAL_BEFORE, SL_RESIDUAL_AFTER } sl_residual;

/* For each group g: columns [column + g * stride, + width). y has the same strides as x unless y is another
 * value, in which case its groups are `width` apart. gate, if any, is laid out like x's groups at stride
 * gate_stride; a residual and the sum like x (before the norm), a residual added after it like y.
 * sum = x_factor * x + residual (BEFORE); y = y_factor * (norm * weight * silu(gate) + residual (AFTER)). */
typedef struct sl_op_rmsnorm {
    int32_t weight;      /* [width], shared by the groups; SL_NONE: all ones */
    bool own_weights;    /* each group has its own: [groups * width] */
    float weight_offset; /* added to every weight: 1 where a checkpoint stores w - 1 */
    float epsilon;
    int32_t groups, width, stride;
    int32_t gate_stride;
    sl_residual residual;
    float x_factor, y_factor; /* 1: none */
} sl_op_rmsnorm;

/* sum = x + residual; y = (sum - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance being
 * those of all `width` columns (Ba, Kiros, Hinton: "Layer Normalization", 2016). */
typedef struct sl_op_layernorm {
    int32_t weight, bias; /* [width]; bias may be SL_NONE */
    float epsilon;
    int32_t width;
} sl_op_layernorm;

typedef struct sl_op_quantize {
    int32_t width;
} sl_op_quantize;

/* Segment s writes columns [y.column + column, + its weight's rows), and adds the same columns from
 * residual.column on. With ids, x has STEP rows (each read by all of its experts) or EXPERT rows, and y has
 * EXPERT rows; a bias then is [experts][1][rows]. */
typedef struct sl_linear_segment {
    int32_t weight;
    int32_t bias; /* vector of the weight's rows, or SL_NONE */
    int32_t column;
} sl_linear_segment;

typedef struct sl_op_linear {
    int32_t segment_count;
    sl_linear_segment segments[SL_LINEAR_SEGMENTS];
} sl_op_linear;

/* Head h of x: columns [x.column + h * x_stride, + inputs + tail); of y: [y.column + h * (outputs + tail), +
 * outputs + tail). The first `outputs` are W_h x_h, the tail is x's. The weight has a matrix for each head,
 * [heads][outputs][inputs], or, turned, [heads][inputs][outputs] of which the transpose is meant. */
typedef struct sl_op_head_linear {
    int32_t weight;
    int32_t x_stride, tail;
    bool turned;
} sl_op_head_linear;

typedef enum sl_rope_layout {
    SL_ROPE_HALVES, /* element i pairs with i + dims / 2 (Hugging Face, "neox") */
    SL_ROPE_PAIRS,  /* element 2 i pairs with 2 i + 1 (GGUF's llama) */
} sl_rope_layout;

/* The first `width` elements of each head times 1 + scale * ln(1 + floor((position + offset) / length)):
 * queries that sharpen with the distance (transformers: llama_4_scaling_beta, attn_scale). width 0: none. */
typedef struct sl_rope_temperature {
    float scale;
    int32_t offset, length, width;
} sl_rope_temperature;

/* `heads` heads, `stride` apart, of which the first `dims` elements rotate; dims 0 with a temperature alone.
 */
typedef struct sl_op_rope {
    int32_t frequencies; /* weight [dims / 2]: radians per position, scaling included */
    int32_t heads, stride, dims;
    sl_rope_layout layout;
    float magnitude; /* multiplies sine and cosine (YaRN); 1 otherwise */
    sl_rope_temperature temperature;
} sl_op_rope;

/* Where keys and values live: layer `layer` of group `group`. */
typedef struct sl_cache_place {
    int32_t group, layer;
} sl_cache_place;

/* k: [kv_heads][key_size], v: [kv_heads][value_size], heads adjacent; no v where values are part of keys. */
typedef struct sl_op_cache_write {
    sl_cache_place place;
} sl_op_cache_write;

/* y: [kv_heads][key_size], what index - 1 of the sequence has there, decoded. */
typedef struct sl_op_recall {
    sl_cache_place place;
} sl_op_recall;

/* q: head h at columns [q.column + h * q_stride, + key_size); gate likewise with value_size. y:
 * [heads][value_size] adjacent. Query head h reads key head h / (heads / kv_heads). */
typedef struct sl_op_attention {
    sl_cache_place place;
    int32_t heads, q_stride, gate_stride;
    float scale;
    float softcap; /* 0: none */
    int32_t sinks; /* weight [heads], or SL_NONE */
    int32_t first; /* keys at indices in front of this one are not seen; a row that sees none gets zeros */
    /* A row sees all rows of its span, those behind it too: of a window (index - window, index + window). */
    bool both_sides;
} sl_op_attention;

/* SnapKV (Li et al.: "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv 2404.14469). The
 * step is one span, whose rows are the w last of a prompt; the sequence has T keys, theirs included. For each
 * key head, the score of key j < T - w is the sum, over the rows and the key head's query heads, of the
 * probabilities that their attention gives it, and its pooled score the largest of keys (j - pool / 2) to (j
 * + pool / 2) that are in [0, T - w). The min(keep, T) - w keys with the largest pooled scores, of equal ones
 * the first, and the rows' own go to indices 0, 1, ... in their order, with their values and as the bytes
 * that they are. These indices count in the spare row of the page tables (sl_limits.keep). Nothing else is
 * written, and nothing at all in steps that do not compact (sl_step_header). */
typedef struct sl_op_compact {
    sl_op_attention attention; /* whose queries are read; `gate_stride` and `both_sides` have no meaning */
    int32_t keep;              /* of a sequence, more than the rows of a step */
    int32_t pool;              /* odd */
} sl_op_compact;

typedef enum sl_router_kind { SL_ROUTER_SOFTMAX, SL_ROUTER_SIGMOID } sl_router_kind;

/* ids and weights: [rows][used]; schedule: EXPERT rows of width 1 behind `fixed` = experts + 1. Scores
 * over all experts, the top `used` by score (+ bias, which only chooses; lower index wins a tie). With groups
 * (experts / groups adjacent experts each), only experts of the `groups_used` best are chosen: a group counts
 * the sum of its two best choosing scores (DeepSeek V3), or its best one (V2). When `normalise`, weights are
 * divided by max(their sum + epsilon, least_sum); then times scale, and times factors[expert]. */
typedef struct sl_op_router {
    sl_router_kind kind;
    int32_t experts, used;
    bool normalise;
    int32_t bias;                /* weight [experts], or SL_NONE */
    int32_t factors;             /* weight [experts], or SL_NONE */
    int32_t groups, groups_used; /* 1 and 1 without */
    bool group_by_best;          /* not by the two best */
    float epsilon, least_sum;
    float scale;
} sl_op_router;

typedef struct sl_op_combine {
    int32_t used, width;
} sl_op_combine;

/* Of a gate g: f(g), times up where there is one. SWIGLU_OAI (gpt-oss) is (clamp(up, -limit, limit) + 1) *
 * c * sigmoid(alpha * c) with c = min(g, limit). XIELU (Huang and Schlag: "Deriving Activation Functions
 * Using Integration", 2024) is alpha g^2 + beta g above 0, else negative (exp(min(g, limit)) - 1 - g) + beta
 * g. */
typedef enum sl_activation {
    SL_ACTIVATION_SILU,
    SL_ACTIVATION_GELU_TANH,
    SL_ACTIVATION_GELU, /* 0.5 g (1 + erf(g / sqrt 2)) */
    SL_ACTIVATION_RELU_SQUARED,
    SL_ACTIVATION_IDENTITY, /* g: a product of two values */
    SL_ACTIVATION_SWIGLU_OAI,
    SL_ACTIVATION_XIELU,
    SL_ACTIVATION_COUNT
} sl_activation;

typedef struct sl_op_activate {
    sl_activation function;
    int32_t width;
    float alpha, limit;   /* of SWIGLU_OAI and XIELU */
    float beta, negative; /* of XIELU */
} sl_op_activate;

/* y = f(sum over taps of weight * x + bias); the last tap is the row itself. */
typedef struct sl_op_conv {
    int32_t weight;         /* [channels][taps], F32 */
    int32_t bias;           /* weight [channels], or SL_NONE */
    int32_t state;          /* index into the program's state layers */
    sl_activation function; /* SILU or IDENTITY */
} sl_op_conv;

/* qkv columns: q [key_heads][key_size], k likewise, v [value_heads][value_size]. Value head h uses key head
 * h / (value_heads / key_heads), or h % key_heads when keys_cycle (the order of GGUF files). q and k are
 * L2-normalised per head (epsilon 1e-6), q scaled by key_size^-1/2; decay = exp(-exp(a_log[h]) * softplus(a +
 * dt_bias[h])), beta = sigmoid(b); S = decay * S; S
 * += k (beta * (v - S^T k))^T; y = S^T q. y: [value_heads][value_size]. */
typedef struct sl_op_delta_scan {
    int32_t a_log, dt_bias; /* weights [value_heads] */
    int32_t key_heads, value_heads;
    int32_t state;
    bool keys_cycle;
    bool decay_is_negated; /* a_log holds -exp(A_log) already (GGUF's ssm_a) */
} sl_op_delta_scan;

/* xbc columns: x [heads][value_size], B [groups][key_size], C likewise. Head h uses group h / (heads /
 * groups). step = softplus(dt + dt_bias[h]), held within step_least and step_most; S = exp(-exp(a_log[h]) *
 * step) * S; S += B (step * x)^T; y = S^T C + skip[h] * x. y: [heads][value_size]. */
typedef struct sl_op_ssm_scan {
    int32_t a_log, dt_bias, skip; /* weights [heads] */
    int32_t groups, heads;
    int32_t state;
    float step_least, step_most; /* the latter may be infinite */
    bool decay_is_negated;       /* a_log holds -exp(A_log) already (GGUF's ssm_a) */
} sl_op_ssm_scan;

typedef struct sl_op_gather {
    int32_t width;
} sl_op_gather;

typedef struct sl_op_transfer {
    int32_t width;
    int32_t section; /* of its part: it stands at its beginning */
} sl_op_transfer;

/* Of a program with ranks: x + width of all ranks, ((x0 + x1) + x2) + ..., whatever the rows. */
typedef struct sl_op_all_reduce {
    int32_t width;
} sl_op_all_reduce;

/* y: [ranks][width] of each row. */
typedef struct sl_op_all_gather {
    int32_t width; /* of one rank */
    int32_t ranks;
} sl_op_all_gather;

/* x = cap * tanh(scale * x / cap); cap 0: x = scale * x. */
typedef struct sl_op_softcap {
    float cap, scale;
    int32_t width;
} sl_op_softcap;

typedef struct sl_op_sample {
    int32_t vocabulary;
} sl_op_sample;

/* How a FETCH brings its set. */
typedef enum sl_fetch_way {
    SL_FETCH_ALL,       /* all of it, to a buffer */
    SL_FETCH_TO_SLOTS,  /* the chosen experts, which are at most `slots`: an expert's slot is its number from
                           then on, in ids [rows][used] and in a schedule of `slots` experts */
    SL_FETCH_TO_BUFFER, /* the chosen experts, which may be more, each to its place in a buffer of all: an
                           expert keeps its number. `slots` stay in use as far as there are any */
} sl_fetch_way;

/* The weights of fetch set `set` (sl_deployment.fetch_sets). slots 0: of SL_FETCH_ALL. used 0: a layer's
 * without experts, and there are no operands. */
typedef struct sl_op_fetch {
    int32_t set, slots, used;
    sl_fetch_way way;
} sl_op_fetch;

/* x is what a LINEAR reads with this weight, and the schedule is the LINEAR's. Where the sums lie: see
 * sl_deployment.observations. */
typedef struct sl_op_observe {
    int32_t weight;
} sl_op_observe;

typedef struct sl_op {
    sl_op_kind kind;
    int32_t layer; /* of the model; SL_NONE before and after the layers */
    /* In the order of the roles in ops.def; absent ones have value SL_NONE. */
    sl_operand in[SL_OP_INPUTS];
    sl_operand out[SL_OP_OUTPUTS];
    union {
        sl_op_embed embed;
        sl_op_rmsnorm rmsnorm;
        sl_op_layernorm layernorm;
        sl_op_quantize quantize;
        sl_op_linear linear;
        sl_op_head_linear head_linear;
        sl_op_rope rope;
        sl_op_cache_write cache_write;
        sl_op_attention attention;
        sl_op_compact compact;
        sl_op_recall recall;
        sl_op_router router;
        sl_op_combine combine;
        sl_op_activate activate;
        sl_op_conv conv;
        sl_op_delta_scan delta_scan;
        sl_op_ssm_scan ssm_scan;
        sl_op_gather gather;
        sl_op_transfer transfer;
        sl_op_all_reduce all_reduce;
        sl_op_all_gather all_gather;
        sl_op_softcap softcap;
        sl_op_sample sample;
        sl_op_fetch fetch;
        sl_op_observe observe;
    } u;
} sl_op;

/* ---- the program
 * ---------------------------------------------------------------------------------------------------- */

/* Rows, or columns: [first, + count) for each of the list, one behind the other. */
typedef struct sl_range {
    int32_t first, count;
} sl_range;

typedef struct sl_ranges {
    const sl_range *list;
    int32_t count;
} sl_ranges;

/* A weight of a rank that is not adjacent in the whole's: these rows and columns of each expert of that. */
typedef struct sl_slice {
    int32_t weight;
    const sl_weight *of;
    sl_ranges rows, columns;
    void *copy; /* NULL: not filled */
} sl_slice;

/* Arrays live in `arena`; weight data does not. Zero-initialise, fill with the sl_program_ functions, free
 * with sl_program_free. */
typedef struct sl_program {
    sl_arena arena;
    const char *name; /* the family, for dumps */
    sl_value *values;
    int32_t value_count, value_capacity;
    sl_weight *weights;
    int32_t weight_count, weight_capacity;
    sl_op *ops;
    int32_t op_count, op_capacity;
    /* The last so many ops are a list of their own, which drafts: from what rows in front left in the cache
     * and the rows' tokens to the tokens behind them. It begins with a BEGIN, and reads and leaves no value
     * of the others but `hidden`, `logits` and `tokens`. 0: there is none. */
    int32_t draft_ops;
    sl_cache_group groups[SL_CACHE_GROUPS];
    int32_t group_count;
    sl_state_layer *states;
    int32_t state_count, state_capacity;
    uint64_t state_bytes; /* of one slot */
    int32_t width, vocabulary;
    int32_t experts, experts_used; /* 0 when there are none */
    bool both_sides; /* attention looks to both sides: a sequence is one span of one step, never cut */
    bool has_tail;   /* it has values of the tail; a span's rows with outputs are its last ones then */
    int32_t hidden;  /* value: [outputs][width] F32, what the head reads; all that an embedding plan makes */
    int32_t logits,
        tokens; /* values: [outputs][vocabulary] F32 and [outputs][1] I32; SL_NONE without a head */
    /* Of a part of a program (slice.c): which part it is, and all that crosses borders between the parts;
     * borrowed. Groups may have no layers in it. */
    const struct sl_partition *partition;
    int32_t part;
    /* Of a program that several devices run at once, each with its share of heads and columns (shard.c):
     * which one this is, and how many there are. ranks 0: it is no such program. */
    int32_t rank, ranks;
    sl_slice *slices; /* of its weights those that are copies */
    int32_t slice_count;
    bool failed;          /* an append ran out of memory: sl_program_check reports it */
    bool too_many_groups; /* more than SL_CACHE_GROUPS were appended: likewise */
} sl_program;

/* Appends return the new index; when memory runs out they set program->failed and return SL_NONE, so that a
 * builder checks once. Names are copied. */
int32_t sl_program_value(sl_program *program, const char *name, sl_rows rows, int32_t width);
int32_t sl_program_typed_value(sl_program *program, const sl_value *value);
int32_t sl_program_weight(sl_program *program, const sl_weight *weight);
int32_t sl_program_state(sl_program *program, const sl_state_layer *shape); /* offsets are filled in here */
int32_t sl_program_group(sl_program *program, const sl_cache_group *group);
/* Returns the op to fill, operands absent and parameters zero, valid until the next op is appended; NULL when
 * memory ran out. */
sl_op *sl_program_op(sl_program *program, sl_op_kind kind, int32_t layer);
/* Verifies every op: operands present and inside their values, shapes agree with weights, groups and states
 * exist, no value read before it is written. Names the op and the rule it breaks; SL_ERR_INVALID, or
 * SL_ERR_NOMEM for an append that failed. */
int sl_program_check(const sl_program *program, sl_error *error);
/* The same for the ops alone; values and ops are the program's or a lowered list's. */
int sl_ops_check(const sl_program *program, const sl_value *values, int32_t value_count, const sl_op *ops,
                 int32_t op_count, sl_error *error);
void sl_program_free(sl_program *program);

/* ---- parts: a program for several devices, one after the other (slice.c)
 * ----------------------------------------------------------------- */

/* The first op of that layer of the model, or behind the last layer; op_count where there is none. */
int32_t sl_program_layer_begin(const sl_program *program, int32_t layer);
int32_t sl_program_layers(const sl_program *program);
/* Does the op compute with the rows' experts, or choose or combine them? What such ops of one layer read and
 * leave has a row for each row of the step. */
bool sl_program_is_expert(const sl_program *program, const sl_op *op);
/* May the ops from `op` on run on another device than those before? NULL: yes; else why not, as the end of a
 * sentence. SL_ERR_NOMEM is "out of memory". */
const char *sl_program_cut_declines(const sl_program *program, int32_t op);

/* Ops that follow one another and belong to one part. */
typedef struct sl_section {
    int32_t part, number; /* the number-th section of that part */
    int32_t first, end;   /* ops of the whole program */
} sl_section;

/* A value that one part computed and another reads. It is given in front of a section, and a TRANSFER takes
 * it over there. */
typedef struct sl_border {
    int32_t part, section; /* that takes it over */
    int32_t from, kept; /* the part that computed it, and the last of its sections that must leave it alone */
    int32_t value;      /* in the program and in both parts */
    int32_t given;      /* in the part that takes it over: a value as wide, which is filled */
} sl_border;

/* Who runs what. Zero-initialise, free with sl_partition_free. */
typedef struct sl_partition {
    sl_arena arena;
    int32_t parts;
    sl_section *sections; /* in the order of a step */
    int32_t section_count;
    sl_border *borders; /* in the order of the sections that take them over */
    int32_t border_count;
} sl_partition;

/* owners[op_count]: the part of each op, 0 to parts - 1. SL_ERR_UNSUPPORTED says why a border is not
 * possible: what crosses one must be F32 with a row for each row of the step, and computed by one part; ops
 * that touch one cache or state must have one owner. */
int sl_program_partition(const sl_program *program, const int32_t *owners, int32_t parts,
                         sl_partition *partition, sl_error *error);
void sl_partition_free(sl_partition *partition);
/* The ops of one part as a program of its own. Groups and states have this part's layers alone; values,
 * groups, states and weights keep their indices. Weights are the program's, which must outlive it, and so
 * must the partition. Zero-initialise *part; free it with sl_program_free. */
int sl_program_slice(const sl_program *program, const sl_partition *partition, int32_t index,
                     sl_program *part, sl_error *error);
/* ---- ranks: a program for several devices, all at once (shard.c)
 * ------------------------------------------------------------------------ */

/* What rank `rank` of `ranks` computes: a program with all ops of the whole, of which those of attention,
 * recurrent and feed-forward blocks have the rank's share of heads and columns (Shoeybi et al.:
 * "Megatron-LM", arXiv 1909.08053). A block's first LINEARs have some of the rows of their weights, its last
 * one some of the columns, and an ALL_REDUCE stands behind that. Of the head each rank has some of the
 * tokens, and an ALL_GATHER stands behind it. What does not divide evenly, or is of a kind that is not
 * divided, every rank computes whole. Values, groups and states keep their indices; groups and states have
 * the rank's heads. Weights whose rows or columns are not adjacent in the whole have no data until
 * sl_program_fill_slices. The whole and its weights must outlive it. Zero-initialise *part; free it with
 * sl_program_free. SL_ERR_INVALID for ranks below 2 or above SL_MOST_RANKS. */
int sl_program_shard(const sl_program *program, int32_t rank, int32_t ranks, sl_program *part,
                     sl_error *error);
/* Copies those weights, by the calling thread. SL_ERR_NOMEM. */
int sl_program_fill_slices(sl_program *part, sl_error *error);
/* Frees the copies; a device that reads none of them any more needs them no more. */
void sl_program_drop_slices(sl_program *part);
/* "36 of 36 layers' attention, 36 of 36 layers' feed-forward and the head", what ranks divide, with
 * "(36 unevenly)" where they do not have as much, and behind "; whole: " what they do not and why, if there
 * is any such. */
void sl_program_describe_shards(const sl_program *program, int32_t ranks, sl_buffer *out);

/* What a part or a rank's program has of the whole as it is: name, widths, counts, groups, and which rows it
 * has. */
void sl_program_copy_facts(const sl_program *program, sl_program *part);
/* Sections of a part; 1 for a program that is none. */
int32_t sl_program_sections(const sl_program *program);
/* The section that a TRANSFER begins, if it is not the one that `section` says; else `section`. For walks
 * over a list of ops, lowered or not. */
static inline int32_t sl_op_section(const sl_op *op, int32_t section) {
    return op->kind == SL_OP_TRANSFER ? op->u.transfer.section : section;
}

const char *sl_op_name(sl_op_kind kind);
const char *sl_op_text(sl_op_kind kind);
/* The name of operand `index` among the inputs (or outputs) of a kind, "?" included; an empty view when there
 * is none. */
sl_view sl_op_role(sl_op_kind kind, bool output, int index);
/* The program's weights that an op computes with, in the order of its parameter struct; SL_NONE for one that
 * it may have and has not. Of a LINEAR: its segments' matrices, then as many biases. Returns how many. */
enum { SL_OP_WEIGHTS = 2 * SL_LINEAR_SEGMENTS };
int32_t sl_op_weights(const sl_op *op, int32_t weights[SL_OP_WEIGHTS]);
const char *sl_value_type_name(sl_value_type type);
const char *sl_activation_name(sl_activation function);
/* f(gate) * up, f being a function of the gate alone without numbers: what fused kernels do. */
bool sl_activation_is_gate(const sl_op *op);
const char *sl_rows_name(sl_rows rows);

/* Columns that an op reads or writes of an operand, counted from the operand's own column and with strides'
 * gaps included; 0 when it is absent. The op's weights, groups and states must exist. */
int64_t sl_operand_width(const sl_program *program, const sl_op *op, bool output, int index);

/* What the type's codes are (quant/activation.h); false where it has none. */
bool sl_value_codes(sl_value_type type, sl_codes *codes);
/* Does the op compute rows with outputs alone? Those are all the rows of the step that it knows of. */
bool sl_op_is_tail(const sl_value *values, const sl_op *op);
/* Of so many rows of each kind, those of the tail. */
void sl_tail_rows(const int32_t rows[SL_ROWS_COUNT], int32_t tail[SL_ROWS_COUNT]);
/* Bytes of one row of `width` elements (of groups: see quant/activation.h), and of a whole value with that
 * many rows of each kind. */
uint64_t sl_value_row_bytes(sl_value_type type, int32_t width);
/* rows[kind]: how many rows of each kind, indexed by sl_rows. */
uint64_t sl_value_bytes(const sl_value *value, const int32_t rows[SL_ROWS_COUNT]);

/* Elements of a row of `width` where a backend stores rows in whole multiples of `multiple` elements, the
 * ones behind its own being zeros: `width` itself where `multiple` is 0, where it is no whole number of
 * groups of 32, and where zeros would be more than a quarter. */
int32_t sl_stored_width(int32_t multiple, int32_t width);
/* The same of a weight's columns, which is for types with blocks: zeros are added as blocks of zeros. And its
 * bytes then; false when these pass 64 bits. */
int32_t sl_stored_columns(int32_t multiple, const sl_weight *weight);
bool sl_stored_bytes(int32_t multiple, const sl_weight *weight, uint64_t *bytes);
/* Bytes of a row then. Where `multiple` is not 0 those of FP8_128 are multiples of 16: such a backend keeps
 * codes and scales apart in a row, and wants all rows' codes aligned. */
bool sl_stored_row_bytes(int32_t multiple, const sl_weight *weight, uint64_t *bytes);

/* Work of an op for that many rows: floating-point operations, bytes of weights read, bytes of values moved.
 * Attention counts `context` keys per row (fewer in a window), each at two bytes per element. An expert's
 * weights count once if there are rows enough to reach it. */
typedef struct sl_cost {
    double operations, weight_bytes, value_bytes;
} sl_cost;
sl_cost sl_op_cost(const sl_program *program, const sl_op *op, const int32_t rows[SL_ROWS_COUNT],
                   int32_t context);

/* The same where the rows are those of so many sequences, which read each of their keys once: its last row
 * sees the most. `keys`: of a row in the mean. */
sl_cost sl_step_cost(const sl_program *program, const sl_op *op, const int32_t rows[SL_ROWS_COUNT],
                     int32_t keys, int32_t sequences);

/* What products are computed with. */
typedef enum sl_arithmetic { SL_WITH_INT8, SL_WITH_BF16, SL_WITH_F32, SL_ARITHMETICS } sl_arithmetic;
/* Of products with weights of that type: int8 for quantised ones, BF16 for its own, else f32. */
sl_arithmetic sl_qtype_arithmetic(sl_qtype type);
/* Whether the op's time is that of products, and then what most of them are computed with. */
bool sl_op_products(const sl_program *program, const sl_op *op, sl_arithmetic *arithmetic);

/* What a device was measured to do at most in a second; 0: not known. */
typedef struct sl_rates {
    double read_bytes;                 /* from memory, by all threads or processors together */
    double operations[SL_ARITHMETICS]; /* a multiplication and an addition are two */
    int32_t threads;                   /* of the CPU that took part; 0 on a GPU */
} sl_rates;
/* What products have at their disposal. Those of BF16 may be computed in f32 where that is faster, and where
 * a rate is not known they are computed in BF16. 0: not known. */
double sl_rates_of(const sl_rates *rates, sl_arithmetic arithmetic);
/* The least seconds of work that reads so many bytes and computes so many operations; 0: not known. */
double sl_rates_least(const sl_rates *rates, double bytes, sl_arithmetic arithmetic, double operations);

/* One op as one line, without number, layer and newline: `linear q_k_v = attn_norm . [blk.0.attn_q.weight
 * q4_k 64x64, ...]`. `values` are the program's or a lowered list's. */
const char *sl_fetch_way_name(sl_fetch_way way); /* of experts */
void sl_op_print(const sl_program *program, const sl_value *values, const sl_op *op, sl_buffer *out);
/* Groups, states, values and the op list; the golden text of a family. */
void sl_program_print(const sl_program *program, sl_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
