/* What a model is, as plain facts: read from GGUF metadata or config.json by one table, checked by one list
 * of rules. Nothing behind this point asks where a fact came from, and every fact may be used without another
 * check: sizes are positive, divisors divide, products fit. */
#ifndef SL_MODEL_CONFIG_H
#define SL_MODEL_CONFIG_H

#include "format/gguf_writer.h"
#include "format/source.h"
#include "model/family.h"

enum { SL_CONFIG_LAYERS = 1024, SL_ROPE_PAIRS_MOST = 256 /* with LongRoPE */ };

typedef enum sl_layer_kind {
    SL_LAYER_FULL,        /* attention to everything before */
    SL_LAYER_WINDOW,      /* attention to the last `window` tokens */
    SL_LAYER_DELTA,       /* gated delta rule: recurrent */
    SL_LAYER_SSM,         /* Mamba2: recurrent */
    SL_LAYER_CONV,        /* short convolution: its state are the last rows of its input */
    SL_LAYER_FEED_FORWARD /* a feed-forward alone */
} sl_layer_kind;

typedef enum sl_rope_scaling {
    SL_ROPE_SCALING_NONE,
    SL_ROPE_SCALING_LINEAR,
    SL_ROPE_SCALING_LLAMA3,
    SL_ROPE_SCALING_YARN,
    SL_ROPE_SCALING_LONGROPE,    /* every pair is divided by a number of its own */
    SL_ROPE_SCALING_DYNAMIC,     /* only while reading: a larger base */
    SL_ROPE_SCALING_PROPORTIONAL /* the first pairs of the whole head turn, the others stand (Gemma 4) */
} sl_rope_scaling;

/* Numbers of xIELU, of which each layer has its own: alphas as files have them, before softplus. */
typedef enum sl_xielu_number {
    SL_XIELU_POSITIVE,
    SL_XIELU_NEGATIVE,
    SL_XIELU_BETA,
    SL_XIELU_EPSILON,
    SL_XIELU_COUNT
} sl_xielu_number;

typedef struct sl_rope_config {
    double base;
    int32_t scaling; /* sl_rope_scaling */
    double factor;
    double low_factor, high_factor; /* llama3 */
    int32_t original_context;       /* llama3, yarn */
    double beta_fast, beta_slow;    /* yarn: turns in the original context that bound the ramp */
    double attention_factor;        /* yarn, longrope: on sine and cosine; 0: from the factor */
    double mscale, mscale_all;      /* yarn: of the attention factor; 0: see sl_rope_magnitude */
    bool exact;                     /* yarn: the ramp's ends are not rounded to whole pairs */
    double part;                    /* proportional: share of the pairs that turn */
} sl_rope_config;

/* Columns of Mamba2's input projection. */
typedef enum sl_ssm_part {
    SL_SSM_GATE,
    SL_SSM_X,
    SL_SSM_B,
    SL_SSM_C,
    SL_SSM_STEPS,
    SL_SSM_PARTS
} sl_ssm_part;

/* Of families whose configs multiply: factors on what projections leave. Those on what they read are in them.
 */
typedef struct sl_factors {
    double ssm[SL_SSM_PARTS], ssm_out;
    double scores;    /* of query and key together */
    double attention; /* on its output */
    double gate, down;
} sl_factors;

typedef struct sl_config {
    const sl_family *family;
    sl_naming naming;
    int32_t layers, width, vocabulary, context;
    int32_t draft_layers; /* behind them, of a head that drafts: 0 or 1 */
    int32_t heads, kv_heads, head_size;
    /* Latent attention: keys and values of all heads come out of one row of `latent` elements, which is
     * cached with `rope_dims` elements of a key that all heads share; 0: none. Queries come out of a row of
     * `query_rank` (0: of the stream). The head size is that of queries; its last rope_dims elements turn. */
    int32_t latent, query_rank, value_size;
    double latent_epsilon; /* of the norms on these two rows */
    bool latent_joined;    /* files have the heads' matrices of keys and values as one */
    int32_t feed_forward;  /* width of a dense feed-forward; the largest where they differ */
    bool fused_qkv;        /* query, key and value are one matrix */
    bool fused_gate_up;    /* gate and up are */
    /* Of windowed layers where they differ from the others, else 0: see sl_config_head_size. */
    int32_t window_kv_heads, window_head_size, window_rope_dims;
    int32_t shared_kv;       /* so many last layers attend to the cache of an earlier layer of their kind */
    bool key_is_value;       /* layers with full attention have no value projection: it is the key's */
    int32_t per_layer_width; /* of the embedding that every layer gets of its own; 0 without */
    double epsilon;
    int32_t activation; /* sl_activation */
    bool tied;          /* the head is the embedding */
    bool query_bias;    /* on q, k and v */
    bool output_bias;   /* on the attention's output projection */
    bool mlp_bias;
    bool both_sides;     /* rows see each other: a text is never cut, and nothing is generated */
    int32_t token_types; /* rows of the table that encoders add the first row of; 0: no table */
    bool query_norm;     /* RMS norm on each head's query and key */

    int32_t rope_dims; /* leading elements of a head that rotate */
    sl_rope_layout rope_layout;
    sl_rope_config rope, local_rope; /* of full and of windowed layers */
    bool rope_factors;               /* the file has a tensor that divides the frequencies */
    /* LongRoPE's two lists, for contexts up to the original one and beyond; of checkpoints alone: GGUF files
     * have tensors. */
    float short_factors[SL_ROPE_PAIRS_MOST], long_factors[SL_ROPE_PAIRS_MOST];
    /* Queries at position p times 1 + scale * ln(1 + floor(p / length)); scale 0: not. */
    double temperature_scale;
    int32_t temperature_length;
    /* On embeddings and on what joins the stream; logits are divided by the last. 1: not. */
    double embed_factor, branch_factor, logit_divisor;
    int32_t window; /* keys that a windowed layer's row sees, itself included; 0: no such layers */
    double attention_scale, attention_softcap, final_softcap; /* caps: 0 for none */

    int32_t experts, experts_used, expert_width; /* 0 without */
    bool normalise;                              /* weights of the chosen experts sum to 1 */
    double expert_scale;
    int32_t router;       /* sl_router_kind */
    bool choosing_bias;   /* on its scores, for the choice alone */
    bool group_by_best;   /* a group of experts counts its best one, not its two best */
    int32_t latent_width; /* of what experts read and write; 0: the model's */
    int32_t shared_width; /* of the expert that every row goes through; 0 without */
    int32_t expert_groups, expert_groups_used;
    double router_least_sum;
    double swiglu_alpha, swiglu_limit; /* of SWIGLU_OAI */

    /* Of recurrent layers. Mamba2's groups are key heads, its state size is that of keys. */
    int32_t delta_key_heads, delta_value_heads, delta_key_size, delta_value_size, delta_taps; /* 0 without */
    int32_t short_conv_taps; /* of layers that are a short convolution; 0 without */
    bool delta_tiled;        /* value head h belongs to key head h % key_heads (GGUF), not h / (value_heads /
                                key_heads) */

    double step_least, step_most; /* Mamba2: of a row's step; the latter may be infinite */
    bool ssm_conv_bias;
    bool ssm_norm, ssm_norm_first; /* behind the scan; in front of the gate, not behind it */

    uint8_t kinds[SL_CONFIG_LAYERS];         /* sl_layer_kind */
    bool dense[SL_CONFIG_LAYERS];            /* in a model with experts: a layer without them */
    bool no_rope[SL_CONFIG_LAYERS];          /* queries and keys are not rotated */
    int32_t feed_forwards[SL_CONFIG_LAYERS]; /* widths where they differ between layers; 0: feed_forward */
    float xielu[SL_XIELU_COUNT][SL_CONFIG_LAYERS];
    sl_factors factors; /* 1 each but in checkpoints of families with them */
} sl_config;

/* What a layer has by its kind, or by its number. */
int32_t sl_config_head_size(const sl_config *config, int32_t layer);
/* Rows of the table of positions in front of the first position's. */
int32_t sl_config_position_offset(const sl_config *config);
/* Of what attention leaves of each head, in front of the output projection. */
int32_t sl_config_value_size(const sl_config *config, int32_t layer);
int32_t sl_config_kv_heads(const sl_config *config, int32_t layer);
int32_t sl_config_rope_dims(const sl_config *config, int32_t layer);
int32_t sl_config_feed_forward(const sl_config *config, int32_t layer);
/* The layer whose keys and values this attending layer reads: itself, or the last of its kind that has its
 * own. SL_NONE: no earlier layer of its kind has any. */
int32_t sl_config_kv_layer(const sl_config *config, int32_t layer);
/* It has attention. */
bool sl_config_attends(const sl_config *config, int32_t layer);
/* A feed-forward block: alone, or behind what else it has. */
bool sl_config_has_feed_forward(const sl_config *config, int32_t layer);
/* What experts read and write: the model's width, or a narrower one. */
int32_t sl_config_expert_rows(const sl_config *config);
/* Some layer's queries and keys turn. */
bool sl_config_turns(const sl_config *config);
/* It attends, to keys and values of its own; with a value projection. */
bool sl_config_has_keys(const sl_config *config, int32_t layer);
bool sl_config_has_values(const sl_config *config, int32_t layer);
/* LongRoPE: whether the list for contexts beyond the original one is used. That depends on the context that
 * the model is declared for, not on that of a run: a token's numbers must not depend on how a text goes on.
 */
bool sl_config_is_long(const sl_config *config);

/* Reads and checks. SL_ERR_UNSUPPORTED names an unknown family or a feature that is not built; SL_ERR_FORMAT
 * or SL_ERR_INVALID the file, the key, its value and the rule it breaks. */
int sl_config_read(const sl_source *source, sl_config *config, sl_error *error);
/* The rules alone, for a config that was put together by hand; `file` stands in messages. */
int sl_config_check(const sl_config *config, const char *file, sl_error *error);
/* A config of this family with every fact that has a default; sizes are zero and to be filled in. */
void sl_config_init(sl_config *config, const sl_family *family, sl_naming naming);

/* ---- the tensors that a config implies
 * ----------------------------------------------------------------------------- */

typedef enum sl_tensor_kind {
    SL_TENSOR_MATRIX,
    SL_TENSOR_EXPERTS,
    SL_TENSOR_HEADS,
    SL_TENSOR_VECTOR,
    SL_TENSOR_EXPERT_VECTOR,
    SL_TENSOR_FLAT,
    SL_TENSOR_KERNEL,
    SL_TENSOR_NUMBER
} sl_tensor_kind;

enum { SL_TENSOR_NAME_SIZE = 128 };

typedef struct sl_tensor_fact {
    sl_tensor_id id;
    sl_tensor_kind kind;
    int32_t layer;         /* SL_NONE for the model's own */
    const char *gguf, *hf; /* templates, the family's renames applied; NULL when that naming has none */
    int32_t experts;       /* 1 unless kind is EXPERTS or EXPERT_VECTOR, or HEADS: how many of these */
    int32_t rows, columns;
    bool stand_in; /* a file may lack it: the model's own stands in */
} sl_tensor_fact;

/* What tensor `id` would be in `layer` (0 for the model's own). True when a model of this config has it; the
 * fused layouts of experts count as not there. */
bool sl_config_tensor(const sl_config *config, sl_tensor_id id, int32_t layer, sl_tensor_fact *fact);
/* The template with layer and expert put in. */
void sl_tensor_name(const char *format, int32_t layer, int32_t expert, char name[SL_TENSOR_NAME_SIZE]);

/* Calls back for every tensor of a GGUF file of this config, in file order; stops at the first nonzero result
 * and returns it. dims[0] is the innermost. `vector`: to be stored as F32. */
typedef struct sl_gguf_tensor_fact {
    char name[SL_TENSOR_NAME_SIZE];
    sl_tensor_id id;
    int32_t layer;
    uint32_t dim_count;
    uint64_t dims[SL_TENSOR_DIMS];
    bool vector, stand_in;
} sl_gguf_tensor_fact;
typedef int (*sl_tensor_visitor)(void *context, const sl_gguf_tensor_fact *tensor, sl_error *error);
int sl_config_tensors(const sl_config *config, sl_tensor_visitor visit, void *context, sl_error *error);

/* general.architecture and every key that llama.cpp needs to load the file; no tokenizer. SL_ERR_UNSUPPORTED
 * for facts that GGUF has no key for: dense layers among those with experts, windows in families whose files
 * never say them. */
int sl_config_write_gguf_metadata(const sl_config *config, sl_gguf_writer *writer, sl_error *error);

/* ---- RoPE
 * -----------------------------------------------------------------------------------------------------------
 */

/* Radians per position of each pair, [rope_dims / 2], scaling included. Formulas: transformers'
 * modeling_rope_utils. */
void sl_rope_frequencies(const sl_rope_config *rope, int32_t dims, float *frequencies);
/* What sine and cosine are multiplied by: 1 except with YaRN and LongRoPE. */
float sl_rope_magnitude(const sl_rope_config *rope);
/* YaRN with latent attention: what scores are multiplied by besides, the square of a magnitude. */
double sl_rope_latent_scale(const sl_rope_config *rope);
/* How much each unscaled frequency is divided: the contents of GGUF's rope_freqs.weight. */
void sl_rope_factors(const sl_rope_config *rope, int32_t dims, float *factors);

#endif
