/* The table of fields, and the rules that a config must satisfy. */
#include "model/config_fields.h"

#include "base/checked.h"

#include <math.h>
#include <stddef.h>

static const sl_field_choice ACTIVATIONS[] = {
    {"silu", SL_ACTIVATION_SILU}, {"gelu_pytorch_tanh", SL_ACTIVATION_GELU_TANH}, {NULL, 0}};
static const sl_field_choice SCALINGS[] = {
    {"none", SL_ROPE_SCALING_NONE},     {"default", SL_ROPE_SCALING_NONE}, {"linear", SL_ROPE_SCALING_LINEAR},
    {"llama3", SL_ROPE_SCALING_LLAMA3}, {"yarn", SL_ROPE_SCALING_YARN},    {NULL, 0}};

#define AT(member) offsetof(sl_config_raw, member)
#define INT(member, gguf, hf, least, most)                                                                   \
    { AT(member), SL_FIELD_INT, {gguf, hf}, least, most, NULL }
#define REAL(member, gguf, hf, least, most)                                                                  \
    { AT(member), SL_FIELD_REAL, {gguf, hf}, least, most, NULL }
#define BOOL(member, gguf, hf)                                                                               \
    { AT(member), SL_FIELD_BOOL, {gguf, hf}, 0, 1, NULL }
#define CHOICE(member, gguf, hf, choices)                                                                    \
    { AT(member), SL_FIELD_CHOICE, {gguf, hf}, 0, 1e9, choices }
/* Where a RoPE parameter of full layers stands: transformers 5 with and without layer types, transformers 4.
 */
#define ROPE(key) "rope_parameters.full_attention." key "|rope_parameters." key "|rope_scaling." key
#define LOCAL(key) "rope_parameters.sliding_attention." key

/* Sizes are bounded so that no product of two of them leaves 64 bits, and no row of a matrix 32. A key that
 * is absent leaves the default that sl_config_init (or the family's row) gave; where that is below `least`,
 * the key is required. */
const sl_config_field SL_CONFIG_FIELDS[] = {
    INT(config.layers, "block_count", "num_hidden_layers", 1, SL_CONFIG_LAYERS),
    INT(config.width, "embedding_length", "hidden_size", 1, 1 << 18),
    INT(config.vocabulary, "vocab_size", "vocab_size", 1, 1 << 23),
    INT(config.context, "context_length", "max_position_embeddings", 1, 1 << 28),
    INT(config.heads, "attention.head_count", "num_attention_heads", 1, 1 << 12),
    INT(config.kv_heads, "attention.head_count_kv", "num_key_value_heads", 1, 1 << 12),
    INT(config.head_size, "attention.key_length", "head_dim", 2, 1 << 12),
    INT(value_size, "attention.value_length", NULL, 2, 1 << 12),
    INT(config.feed_forward, "feed_forward_length", "intermediate_size", 0, 1 << 22),
    REAL(config.epsilon, "attention.layer_norm_rms_epsilon", "rms_norm_eps", 1e-12, 1),
    CHOICE(config.activation, NULL, "hidden_activation|hidden_act", ACTIVATIONS),
    BOOL(config.tied, NULL, "tie_word_embeddings|^tie_word_embeddings"),
    BOOL(attention_bias, NULL, "attention_bias"),
    BOOL(config.mlp_bias, NULL, "mlp_bias"),

    INT(config.rope_dims, "rope.dimension_count", NULL, 2, 1 << 12),
    REAL(rope_part, NULL, "rope_parameters.partial_rotary_factor|partial_rotary_factor", 1e-6, 1),
    REAL(config.rope.base, "rope.freq_base", ROPE("rope_theta") "|rope_theta", 1.000001, 1e15),
    CHOICE(config.rope.scaling, "rope.scaling.type",
           ROPE("rope_type") "|rope_parameters.type|rope_scaling.type", SCALINGS),
    REAL(config.rope.factor, "rope.scaling.factor", ROPE("factor"), 1e-6, 1e9),
    REAL(config.rope.low_factor, NULL, ROPE("low_freq_factor"), 1e-6, 1e9),
    REAL(config.rope.high_factor, NULL, ROPE("high_freq_factor"), 1e-6, 1e9),
    INT(config.rope.original_context, "rope.scaling.original_context_length",
        ROPE("original_max_position_embeddings"), 0, 1 << 28),
    REAL(config.rope.beta_fast, "rope.scaling.yarn_beta_fast", ROPE("beta_fast"), 1e-3, 1e6),
    REAL(config.rope.beta_slow, "rope.scaling.yarn_beta_slow", ROPE("beta_slow"), 1e-3, 1e6),
    REAL(config.rope.attention_factor, NULL, ROPE("attention_factor"), 0, 1e3),
    REAL(config.local_rope.base, "rope.freq_base_swa", LOCAL("rope_theta") "|rope_local_base_freq", 1.000001,
         1e15),
    CHOICE(config.local_rope.scaling, NULL, LOCAL("rope_type"), SCALINGS),
    REAL(config.local_rope.factor, NULL, LOCAL("factor"), 1e-6, 1e9),
    REAL(config.local_rope.low_factor, NULL, LOCAL("low_freq_factor"), 1e-6, 1e9),
    REAL(config.local_rope.high_factor, NULL, LOCAL("high_freq_factor"), 1e-6, 1e9),
    INT(config.local_rope.original_context, NULL, LOCAL("original_max_position_embeddings"), 0, 1 << 28),

    INT(config.window, "attention.sliding_window", "sliding_window", 0, 1 << 28),
    BOOL(use_window, NULL, "use_sliding_window"),
    INT(window_from, NULL, "max_window_layers", 0, SL_CONFIG_LAYERS),
    INT(period, "full_attention_interval",
        "sliding_window_pattern|_sliding_window_pattern|full_attention_interval", 1, SL_CONFIG_LAYERS),
    REAL(attention_scale, "attention.scale", NULL, 0, 1e6),
    REAL(query_scalar, NULL, "query_pre_attn_scalar", 1e-6, 1e9),
    REAL(config.attention_softcap, "attn_logit_softcapping", "attn_logit_softcapping", 0, 1e6),
    REAL(config.final_softcap, "final_logit_softcapping", "final_logit_softcapping", 0, 1e6),

    INT(config.experts, "expert_count", "num_experts|num_local_experts", 0, 1 << 12),
    INT(config.experts_used, "expert_used_count", "num_experts_per_tok", 0, 1 << 12),
    INT(config.expert_width, "expert_feed_forward_length", "moe_intermediate_size", 0, 1 << 22),
    BOOL(config.normalise, "expert_weights_norm", "norm_topk_prob"),
    REAL(config.expert_scale, "expert_weights_scale", NULL, 0, 1e6),

    INT(config.delta_key_heads, "ssm.group_count", "linear_num_key_heads", 0, 1 << 12),
    INT(config.delta_value_heads, "ssm.time_step_rank", "linear_num_value_heads", 0, 1 << 12),
    INT(config.delta_key_size, "ssm.state_size", "linear_key_head_dim", 0, 1 << 12),
    INT(config.delta_value_size, NULL, "linear_value_head_dim", 0, 1 << 12),
    INT(delta_values, "ssm.inner_size", NULL, 0, 1 << 24),
    INT(config.delta_taps, "ssm.conv_kernel", "linear_conv_kernel_dim", 0, 64),
    INT(draft_layers, "nextn_predict_layers", NULL, 0, SL_CONFIG_LAYERS),
};
const int SL_CONFIG_FIELD_COUNT = sizeof SL_CONFIG_FIELDS / sizeof *SL_CONFIG_FIELDS;

const sl_config_field *sl_config_field_at(size_t offset) {
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT; i++) {
        if (SL_CONFIG_FIELDS[i].offset == offset) {
            return &SL_CONFIG_FIELDS[i];
        }
    }
    return NULL;
}

void sl_config_key(const sl_config *config, const sl_config_field *field, char key[SL_TENSOR_NAME_SIZE]) {
    const char *name = field->key[config->naming];
    name = name ? name : field->key[!config->naming];
    const size_t length = strcspn(name, "|");
    const sl_family *family = config->family;
    if (config->naming == SL_NAMING_GGUF) {
        snprintf(key, SL_TENSOR_NAME_SIZE, "%s.%.*s", family->gguf ? family->gguf : "llama", (int)length,
                 name);
    } else {
        snprintf(key, SL_TENSOR_NAME_SIZE, "%.*s", (int)length, name);
    }
}

int sl_config_check_range(const sl_config_field *field, double value, const char *file, const char *key,
                          sl_error *error) {
    if (isfinite(value) && value >= field->least && value <= field->most) {
        return 0;
    }
    return sl_fail(error, SL_ERR_INVALID, "%s: %s is %.10g, must be %.10g to %.10g", file, key, value,
                   field->least, field->most);
}

void sl_config_init(sl_config *config, const sl_family *family, sl_naming naming) {
    const bool hf = naming == SL_NAMING_HF;
    memset(config, 0, sizeof *config);
    config->family = family;
    config->naming = naming;
    config->epsilon = 1e-6;
    config->activation = (int32_t)family->activation;
    config->tied = family->tied;
    config->query_bias = family->query_bias;
    config->rope_layout = hf ? SL_ROPE_HALVES : family->gguf_rope;
    const sl_rope_config rope = {.base = hf ? family->hf_rope_base : 10000,
                                 .factor = 1,
                                 .low_factor = 1,
                                 .high_factor = 4,
                                 .beta_fast = 32,
                                 .beta_slow = 1};
    config->rope = rope;
    config->local_rope = rope;
    config->local_rope.base = 10000;
    config->normalise = !hf && family->normalise;
    config->expert_scale = 1;
    if (hf) {
        config->head_size = family->hf_head_size;
        config->heads = family->hf_heads;
        config->kv_heads = family->hf_kv_heads;
        config->vocabulary = family->hf_vocabulary;
        config->context = family->hf_context;
    }
}

/* ---- rules ---- */

static bool any_kind(const sl_config *c, sl_layer_kind kind) {
    return memchr(c->kinds, (int)kind, (size_t)c->layers) != NULL;
}

static bool attends(const sl_config *c) {
    return any_kind(c, SL_LAYER_FULL) || any_kind(c, SL_LAYER_WINDOW);
}

static bool any_dense(const sl_config *c) {
    return c->experts == 0 || memchr(c->dense, true, (size_t)c->layers) != NULL;
}

static bool delta_sizes(const sl_config *c) {
    return c->family->delta && c->delta_key_heads > 0 && c->delta_value_heads > 0 && c->delta_key_size > 0 &&
           c->delta_value_size > 0 && c->delta_taps > 0;
}

static bool kv_divides(const sl_config *c) {
    return c->heads % c->kv_heads == 0;
}
static bool rope_even(const sl_config *c) {
    return c->rope_dims % 2 == 0;
}
static bool rope_fits(const sl_config *c) {
    return c->rope_dims <= c->head_size;
}
static bool llama3_ordered(const sl_config *c) {
    return c->rope.scaling != SL_ROPE_SCALING_LLAMA3 || c->rope.high_factor > c->rope.low_factor;
}
static bool llama3_context(const sl_config *c) {
    return c->rope.scaling != SL_ROPE_SCALING_LLAMA3 || c->rope.original_context > 0;
}
static bool local_llama3(const sl_config *c) {
    return c->local_rope.scaling != SL_ROPE_SCALING_LLAMA3 ||
           (c->local_rope.high_factor > c->local_rope.low_factor && c->local_rope.original_context > 0);
}
static bool yarn_ordered(const sl_config *c) {
    return c->rope.scaling != SL_ROPE_SCALING_YARN || c->rope.beta_fast > c->rope.beta_slow;
}
static bool local_no_yarn(const sl_config *c) {
    return !c->family->local_rope || c->local_rope.scaling != SL_ROPE_SCALING_YARN;
}
static bool window_given(const sl_config *c) {
    return !any_kind(c, SL_LAYER_WINDOW) || c->window > 0;
}
static bool dense_width(const sl_config *c) {
    return !any_dense(c) || c->feed_forward > 0;
}
static bool experts_known(const sl_config *c) {
    return c->experts == 0 || c->family->experts;
}
static bool experts_used(const sl_config *c) {
    return c->experts == 0 ? c->experts_used == 0 : c->experts_used > 0 && c->experts_used <= c->experts;
}
static bool experts_width(const sl_config *c) {
    return c->experts == 0 || c->expert_width > 0;
}
static bool experts_scale(const sl_config *c) {
    return (float)c->expert_scale > 0;
}
static bool delta_given(const sl_config *c) {
    return !any_kind(c, SL_LAYER_DELTA) || delta_sizes(c);
}
static bool delta_divides(const sl_config *c) {
    return !any_kind(c, SL_LAYER_DELTA) || c->delta_value_heads % c->delta_key_heads == 0;
}
/* What is computed with is a float: a smaller number than floats have is no scale and no cap. */
static bool scale_positive(const sl_config *c) {
    return isfinite((float)c->attention_scale) && (float)c->attention_scale > 0;
}
static bool is_cap(double cap) {
    return cap == 0 || (float)cap > 0;
}
static bool attention_cap(const sl_config *c) {
    return is_cap(c->attention_softcap);
}
static bool final_cap(const sl_config *c) {
    return is_cap(c->final_softcap);
}

typedef struct rule {
    bool (*holds)(const sl_config *config);
    size_t field; /* whose key and value the message names */
    int code;
    const char *text;
} rule;

/* In order: a rule may rely on those before it. */
static const rule RULES[] = {
    {attends, AT(config.layers), SL_ERR_UNSUPPORTED, "a model in which no layer attends is not supported"},
    {kv_divides, AT(config.kv_heads), SL_ERR_INVALID, "must divide the number of heads"},
    {rope_even, AT(config.rope_dims), SL_ERR_INVALID, "must be even: RoPE turns pairs"},
    {rope_fits, AT(config.rope_dims), SL_ERR_INVALID, "must not exceed the head size"},
    {llama3_ordered, AT(config.rope.high_factor), SL_ERR_INVALID, "must be more than low_freq_factor"},
    {llama3_context, AT(config.rope.original_context), SL_ERR_INVALID,
     "must be at least 1 with llama3 scaling"},
    {local_llama3, AT(config.local_rope.high_factor), SL_ERR_INVALID,
     "must be more than low_freq_factor, with an original context"},
    {yarn_ordered, AT(config.rope.beta_fast), SL_ERR_INVALID, "must be more than beta_slow"},
    {local_no_yarn, AT(config.local_rope.scaling), SL_ERR_UNSUPPORTED,
     "YaRN in windowed layers is not supported"},
    {window_given, AT(config.window), SL_ERR_INVALID, "must be at least 1: there are windowed layers"},
    {scale_positive, AT(attention_scale), SL_ERR_INVALID, "must give a finite attention scale above 0"},
    {attention_cap, AT(config.attention_softcap), SL_ERR_INVALID, "must be 0 (no cap) or a cap that a float holds"},
    {final_cap, AT(config.final_softcap), SL_ERR_INVALID, "must be 0 (no cap) or a cap that a float holds"},
    {dense_width, AT(config.feed_forward), SL_ERR_INVALID,
     "must be at least 1: there are layers without experts"},
    {experts_known, AT(config.experts), SL_ERR_UNSUPPORTED, "experts are not supported in this family"},
    {experts_used, AT(config.experts_used), SL_ERR_INVALID,
     "must be 1 to the number of experts, and 0 without experts"},
    {experts_width, AT(config.expert_width), SL_ERR_INVALID, "must be at least 1: there are experts"},
    {experts_scale, AT(config.expert_scale), SL_ERR_INVALID, "must be above 0"},
    {delta_given, AT(config.delta_value_heads), SL_ERR_INVALID,
     "recurrent layers need numbers of key and value heads, their sizes and the convolution's taps (and a "
     "family that has them)"},
    {delta_divides, AT(config.delta_value_heads), SL_ERR_INVALID, "must be a multiple of the key heads"},
};

static double field_value(const sl_config_raw *raw, const sl_config_field *field) {
    const unsigned char *at = (const unsigned char *)raw + field->offset;
    switch (field->type) {
    case SL_FIELD_REAL:
        return *(const double *)(const void *)at;
    case SL_FIELD_BOOL:
        return *(const bool *)(const void *)at;
    default:
        return *(const int32_t *)(const void *)at;
    }
}

int sl_config_check(const sl_config *config, const char *file, sl_error *error) {
    char key[SL_TENSOR_NAME_SIZE];
    sl_config_raw raw = {.config = *config, .attention_scale = config->attention_scale};
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT; i++) {
        const sl_config_field *field = &SL_CONFIG_FIELDS[i];
        if (field->offset >= sizeof(sl_config)) {
            continue;
        }
        sl_config_key(config, field, key);
        if (sl_config_check_range(field, field_value(&raw, field), file, key, error)) {
            return SL_ERR_INVALID;
        }
    }
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        if (!RULES[i].holds(config)) {
            const sl_config_field *field = sl_config_field_at(RULES[i].field);
            sl_config_key(config, field, key);
            return sl_fail(error, RULES[i].code, "%s: %s is %.10g: %s", file, key, field_value(&raw, field),
                           RULES[i].text);
        }
    }
    /* The widest row of a step holds a layer's projections side by side; it is counted in 32 bits. */
    const int64_t query = (int64_t)config->heads * config->head_size * (config->family->output_gate ? 2 : 1);
    const int64_t projections = query + 2 * (int64_t)config->kv_heads * config->head_size;
    const int64_t delta = 2 * (int64_t)config->delta_key_heads * config->delta_key_size +
                          2 * (int64_t)config->delta_value_heads * config->delta_value_size +
                          2 * (int64_t)config->delta_value_heads;
    if (projections > 1 << 24 || delta > 1 << 24) {
        return sl_fail(error, SL_ERR_LIMIT, "%s: a layer's projections have %lld columns, more than %d", file,
                       (long long)(projections > delta ? projections : delta), 1 << 24);
    }
    return 0;
}
