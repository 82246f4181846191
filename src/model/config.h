/* What a model is, as plain facts: read from GGUF metadata or config.json by one table, checked by one list
 * of rules. Nothing behind this point asks where a fact came from, and every fact may be used without another
 * check: sizes are positive, divisors divide, products fit. */
#ifndef SL_MODEL_CONFIG_H
#define SL_MODEL_CONFIG_H

#include "format/gguf_writer.h"
#include "format/source.h"
#include "model/family.h"

enum { SL_CONFIG_LAYERS = 1024 };

typedef enum sl_layer_kind {
    SL_LAYER_FULL,   /* attention to everything before */
    SL_LAYER_WINDOW, /* attention to the last `window` tokens */
    SL_LAYER_DELTA   /* gated delta rule: recurrent */
} sl_layer_kind;

typedef enum sl_rope_scaling {
    SL_ROPE_SCALING_NONE,
    SL_ROPE_SCALING_LINEAR,
    SL_ROPE_SCALING_LLAMA3,
    SL_ROPE_SCALING_YARN
} sl_rope_scaling;

typedef struct sl_rope_config {
    double base;
    int32_t scaling; /* sl_rope_scaling */
    double factor;
    double low_factor, high_factor; /* llama3 */
    int32_t original_context;       /* llama3, yarn */
    double beta_fast, beta_slow;    /* yarn: turns in the original context that bound the ramp */
    double attention_factor;        /* yarn: on sine and cosine; 0: from the factor */
} sl_rope_config;

typedef struct sl_config {
    const sl_family *family;
    sl_naming naming;
    int32_t layers, width, vocabulary, context;
    int32_t heads, kv_heads, head_size;
    int32_t feed_forward; /* width of a dense feed-forward */
    double epsilon;
    int32_t activation; /* sl_activation */
    bool tied;          /* the head is the embedding */
    bool query_bias;    /* on q, k and v */
    bool output_bias;   /* on the attention's output projection */
    bool mlp_bias;

    int32_t rope_dims; /* leading elements of a head that rotate */
    sl_rope_layout rope_layout;
    sl_rope_config rope, local_rope; /* of full and of windowed layers */
    bool rope_factors;               /* the file has a tensor that divides the frequencies */
    int32_t window; /* keys that a windowed layer's row sees, itself included; 0: no such layers */
    double attention_scale, attention_softcap, final_softcap; /* caps: 0 for none */

    int32_t experts, experts_used, expert_width; /* 0 without */
    bool normalise;                              /* weights of the chosen experts sum to 1 */
    double expert_scale;

    int32_t delta_key_heads, delta_value_heads, delta_key_size, delta_value_size, delta_taps; /* 0 without */
    bool delta_tiled; /* value head h belongs to key head h % key_heads (GGUF), not h / (value_heads /
                         key_heads) */

    uint8_t kinds[SL_CONFIG_LAYERS]; /* sl_layer_kind */
    bool dense[SL_CONFIG_LAYERS];    /* in a model with experts: a layer without them */
} sl_config;

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
    SL_TENSOR_VECTOR,
    SL_TENSOR_KERNEL
} sl_tensor_kind;

enum { SL_TENSOR_NAME_SIZE = 128 };

typedef struct sl_tensor_fact {
    sl_tensor_id id;
    sl_tensor_kind kind;
    int32_t layer;         /* SL_NONE for the model's own */
    const char *gguf, *hf; /* templates, the family's renames applied; NULL when that naming has none */
    int32_t experts;       /* 1 unless kind is EXPERTS */
    int32_t rows, columns;
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
    bool vector;
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
/* What sine and cosine are multiplied by: 1 except with YaRN. */
float sl_rope_magnitude(const sl_rope_config *rope);
/* How much each unscaled frequency is divided: the contents of GGUF's rope_freqs.weight. */
void sl_rope_factors(const sl_rope_config *rope, int32_t dims, float *factors);

#endif
