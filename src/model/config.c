/* The table of fields, and the rules that a config must satisfy. */
#include "model/config_fields.h"

#include "base/checked.h"

#include <math.h>
#include <stddef.h>

static const sl_field_choice ACTIVATIONS[] = {
    {"gelu", SL_ACTIVATION_GELU},          {"silu", SL_ACTIVATION_SILU},
    {"relu2", SL_ACTIVATION_RELU_SQUARED}, {"gelu_pytorch_tanh", SL_ACTIVATION_GELU_TANH},
    {"xielu", SL_ACTIVATION_XIELU},        {NULL, 0}};
static const sl_field_choice SCALINGS[] = {{"longrope", SL_ROPE_SCALING_LONGROPE},
                                           {"su", SL_ROPE_SCALING_LONGROPE},
                                           {"dynamic", SL_ROPE_SCALING_DYNAMIC},
                                           {"none", SL_ROPE_SCALING_NONE},
                                           {"default", SL_ROPE_SCALING_NONE},
                                           {"linear", SL_ROPE_SCALING_LINEAR},
                                           {"llama3", SL_ROPE_SCALING_LLAMA3},
                                           {"yarn", SL_ROPE_SCALING_YARN},
                                           {"proportional", SL_ROPE_SCALING_PROPORTIONAL},
                                           {NULL, 0}};

static const sl_field_choice TOP_METHODS[] = {{"greedy", SL_TOP_GREEDY},
                                              {"group_limited_greedy", SL_TOP_GROUPS},
                                              {"noaux_tc", SL_TOP_BIASED},
                                              {NULL, 0}};

#define AT(member) offsetof(sl_config_raw, member)
#define INT(member, gguf, hf, least, most)                                                                   \
    { AT(member), SL_FIELD_INT, {gguf, hf}, least, most, NULL }
#define LAYERS(member, gguf, hf, least, most)                                                                \
    { AT(member), SL_FIELD_LAYERS, {gguf, hf}, least, most, NULL }
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
    LAYERS(config.kv_heads, "attention.head_count_kv", "num_key_value_heads", 1, 1 << 12),
    INT(config.head_size, "attention.key_length", "global_head_dim|head_dim", 2, 1 << 12),
    INT(config.window_head_size, "attention.key_length_swa", "head_dim", 0, 1 << 12),
    INT(global_kv_heads, NULL, "num_global_key_value_heads", 0, 1 << 12),
    INT(value_size, "attention.value_length", NULL, 2, 1 << 12),
    INT(config.latent, "attention.kv_lora_rank", "kv_lora_rank", 0, 1 << 12),
    INT(config.query_rank, "attention.q_lora_rank", "q_lora_rank", 0, 1 << 14),
    INT(latent_head_size, "attention.key_length_mla", NULL, 0, 1 << 12),
    INT(latent_value_size, "attention.value_length_mla", "v_head_dim", 0, 1 << 12),
    INT(key_part, NULL, "qk_nope_head_dim", 0, 1 << 12),
    INT(turning_part, NULL, "qk_rope_head_dim", 0, 1 << 12),
    INT(window_value_size, "attention.value_length_swa", NULL, 0, 1 << 12),
    LAYERS(config.feed_forward, "feed_forward_length", "intermediate_size", 0, 1 << 22),
    INT(block_width, NULL, "block_ff_dim", 1, 1 << 22),
    BOOL(adjusts_width, NULL, "block_auto_adjust_ff_dim"),
    REAL(width_multiplier, NULL, "block_ffn_dim_multiplier", 1e-6, 1e3),
    INT(width_multiple, NULL, "block_multiple_of", 1, 1 << 16),
    INT(config.shared_kv, "attention.shared_kv_layers", "num_kv_shared_layers", 0, SL_CONFIG_LAYERS),
    BOOL(config.key_is_value, NULL, "attention_k_eq_v"),
    INT(config.per_layer_width, "embedding_length_per_layer_input", "hidden_size_per_layer_input", 0,
        1 << 14),
    BOOL(mixture, NULL, "enable_moe_block"),
    REAL(config.epsilon, "attention.layer_norm_rms_epsilon",
         "rms_norm_eps|norm_eps|layer_norm_eps|layer_norm_epsilon", 1e-12, 1),
    REAL(layer_epsilon, "attention.layer_norm_epsilon", NULL, 0, 1),
    INT(config.token_types, NULL, "type_vocab_size", 0, 1 << 16),
    CHOICE(config.activation, NULL, "hidden_activation|hidden_act|mlp_hidden_act", ACTIVATIONS),
    BOOL(config.tied, NULL, "tie_embedding|tie_word_embeddings|^tie_word_embeddings"),
    BOOL(attention_bias, NULL, "attention_bias"),
    BOOL(config.output_bias, NULL, "attention_out_bias"),
    BOOL(all_bias, NULL, "use_bias"),
    BOOL(config.mlp_bias, NULL, "mlp_bias"),
    BOOL(config.query_norm, NULL, "use_qk_norm"),

    INT(config.rope_dims, "rope.dimension_count", NULL, 2, 1 << 12),
    INT(config.window_rope_dims, "rope.dimension_count_swa", NULL, 0, 1 << 12),
    REAL(config.rope.part, NULL, "rope_parameters.full_attention.partial_rotary_factor", 1e-6, 1),
    INT(rotary_dims, NULL, "rotary_dim", 2, 1 << 12),
    REAL(rope_part, NULL, "rope_parameters.partial_rotary_factor|partial_rotary_factor", 1e-6, 1),
    REAL(config.rope.base, "rope.freq_base", ROPE("rope_theta") "|theta|rope_theta", 1.000001, 1e15),
    CHOICE(config.rope.scaling, "rope.scaling.type",
           ROPE("rope_type") "|rope_parameters.type|rope_scaling.type", SCALINGS),
    REAL(config.rope.factor, "rope.scaling.factor", ROPE("factor"), 1e-6, 1e9),
    REAL(config.rope.low_factor, NULL, ROPE("low_freq_factor"), 1e-6, 1e9),
    REAL(config.rope.high_factor, NULL, ROPE("high_freq_factor"), 1e-6, 1e9),
    INT(config.rope.original_context, "rope.scaling.original_context_length",
        "original_max_position_embeddings|" ROPE("original_max_position_embeddings"), 0, 1 << 28),
    REAL(config.rope.beta_fast, "rope.scaling.yarn_beta_fast", ROPE("beta_fast"), 1e-3, 1e6),
    REAL(config.rope.beta_slow, "rope.scaling.yarn_beta_slow", ROPE("beta_slow"), 1e-3, 1e6),
    REAL(config.rope.attention_factor, "rope.scaling.yarn_attn_factor", ROPE("attention_factor"), 0, 1e3),
    REAL(config.rope.mscale, NULL, ROPE("mscale"), 0, 1e3),
    REAL(config.rope.mscale_all, "rope.scaling.yarn_log_multiplier", ROPE("mscale_all_dim"), 0, 1e3),
    REAL(rope_multiplier, "rope.scaling.attn_factor", NULL, 1e-6, 1e3),
    REAL(rope_alpha, NULL, ROPE("alpha"), 0, 1e9),
    REAL(config.temperature_scale, "attention.temperature_scale", ROPE("llama_4_scaling_beta"), 0, 1e3),
    INT(config.temperature_length, "attention.temperature_length", NULL, 0, 1 << 28),
    BOOL(truncate, NULL, ROPE("truncate")),
    REAL(config.local_rope.base, "rope.freq_base_swa", LOCAL("rope_theta") "|rope_local_base_freq", 1.000001,
         1e15),
    CHOICE(config.local_rope.scaling, NULL, LOCAL("rope_type"), SCALINGS),
    REAL(config.local_rope.factor, NULL, LOCAL("factor"), 1e-6, 1e9),
    REAL(config.local_rope.low_factor, NULL, LOCAL("low_freq_factor"), 1e-6, 1e9),
    REAL(config.local_rope.high_factor, NULL, LOCAL("high_freq_factor"), 1e-6, 1e9),
    INT(config.local_rope.original_context, NULL, LOCAL("original_max_position_embeddings"), 0, 1 << 28),

    INT(config.window, "attention.sliding_window", "sliding_window", 0, 1 << 28),
    INT(chunk_size, NULL, "attention_chunk_size", 0, 1 << 28),
    INT(dense_width, NULL, "intermediate_size_mlp", 0, 1 << 22),
    INT(sparse_step, "interleave_moe_layer_step", "interleave_moe_layer_step", 0, SL_CONFIG_LAYERS),
    REAL(still_temperature, NULL, "attn_scale", 0, 1e3),
    INT(still_length, NULL, "floor_scale", 1, 1 << 28),
    BOOL(use_window, NULL, "use_sliding_window"),
    INT(window_from, NULL, "max_window_layers", 0, SL_CONFIG_LAYERS),
    INT(period, "full_attention_interval",
        "sliding_window_pattern|_sliding_window_pattern|full_attention_interval", 1, SL_CONFIG_LAYERS),
    REAL(attention_scale, "attention.scale", "attention_multiplier", 0, 1e6),
    REAL(config.embed_factor, "embedding_scale", "embedding_multiplier", 0, 1e6),
    REAL(config.branch_factor, "residual_scale", "residual_multiplier", 0, 1e6),
    REAL(config.logit_divisor, "logit_scale", "logits_scaling|logit_scale", 0, 1e6),
    REAL(query_scalar, NULL, "query_pre_attn_scalar", 1e-6, 1e9),
    REAL(config.attention_softcap, "attn_logit_softcapping", "attn_logit_softcapping", 0, 1e6),
    REAL(config.final_softcap, "final_logit_softcapping", "final_logit_softcapping", 0, 1e6),

    INT(config.experts, "expert_count", "num_experts|num_local_experts|n_routed_experts|moe_num_experts", 0,
        1 << 12),
    INT(config.experts_used, "expert_used_count", "num_experts_per_tok|moe_k|moe_topk|top_k_experts", 0,
        1 << 12),
    INT(config.expert_width, "expert_feed_forward_length", "moe_intermediate_size", 0, 1 << 22),
    BOOL(config.normalise, "expert_weights_norm", "norm_topk_prob"),
    REAL(config.expert_scale, "expert_weights_scale", "routed_scaling_factor", 0, 1e6),
    INT(config.shared_width, "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size|shared_intermediate_size|moe_shared_expert_intermediate_size", 0,
        1 << 22),
    INT(config.latent_width, "moe_latent_size", "moe_latent_size", 0, 1 << 18),
    INT(shared_experts, "expert_shared_count", "n_shared_experts|moe_num_shared_experts|num_shared_expert", 0,
        1 << 8),
    INT(leading_dense, "leading_dense_block_count",
        "first_k_dense_replace|moe_layer_start_index|num_dense_layers", 0, SL_CONFIG_LAYERS),
    CHOICE(group_method, NULL, "topk_method", TOP_METHODS),
    INT(gating, "expert_gating_func", NULL, 0, 1 << 8),
    INT(config.expert_groups, "expert_group_count", "n_group", 0, 1 << 12),
    INT(config.expert_groups_used, "expert_group_used_count", "topk_group", 0, 1 << 12),
    REAL(config.router_least_sum, NULL, "moe_norm_min", 0, 1),
    REAL(config.swiglu_alpha, NULL, "swiglu_alpha", 0, 1e3),
    REAL(config.swiglu_limit, NULL, "swiglu_limit", 0, 1e6),

    INT(config.delta_key_heads, "ssm.group_count", "linear_num_key_heads|mamba_n_groups|n_groups", 0,
        1 << 12),
    INT(config.delta_value_heads, "ssm.time_step_rank",
        "linear_num_value_heads|mamba_n_heads|mamba_num_heads", 0, 1 << 12),
    INT(config.delta_key_size, "ssm.state_size", "linear_key_head_dim|mamba_d_state|ssm_state_size", 0,
        1 << 12),
    INT(config.delta_value_size, NULL, "linear_value_head_dim|mamba_d_head|mamba_head_dim", 0, 1 << 12),
    INT(delta_values, "ssm.inner_size", NULL, 0, 1 << 24),
    INT(config.delta_taps, "ssm.conv_kernel", "linear_conv_kernel_dim|mamba_d_conv|conv_kernel", 0, 64),
    BOOL(config.ssm_conv_bias, NULL, "mamba_conv_bias|use_conv_bias"),
    BOOL(config.ssm_norm, NULL, "mamba_rms_norm"),
    BOOL(config.ssm_norm_first, NULL, "mamba_norm_before_gate"),
    REAL(attention_in, NULL, "attention_in_multiplier", 1e-9, 1e9),
    REAL(attention_out, NULL, "attention_out_multiplier", 1e-9, 1e9),
    REAL(ssm_in, NULL, "ssm_in_multiplier", 1e-9, 1e9),
    REAL(ssm_out, NULL, "ssm_out_multiplier", 1e-9, 1e9),
    REAL(key_factor, NULL, "key_multiplier", 1e-9, 1e9),
    REAL(logit_factor, NULL, "lm_head_multiplier", 1e-9, 1e9),
    BOOL(turns, "rope.scaling.finetuned", NULL),
    INT(config.short_conv_taps, "shortconv.l_cache", "conv_L_cache", 0, 64),
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
        snprintf(key, SL_TENSOR_NAME_SIZE, "%s.%.*s", sl_family_gguf_name(family), (int)length, name);
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
    config->epsilon = hf && family->hf_epsilon > 0 ? family->hf_epsilon : 1e-6;
    config->activation = (int32_t)family->activation;
    config->tied = family->tied;
    config->query_bias = family->query_bias;
    config->query_norm =
        family->query_norm != SL_QUERY_NORM_NONE && (!family->query_norm_asked || family->query_norm_plain);
    config->window = family->chunk;
    config->temperature_scale = hf ? 0 : family->still_temperature;
    config->temperature_length = hf ? 0 : family->still_length;
    config->rope_layout = hf ? family->hf_rope : family->gguf_rope;
    config->fused_qkv = family->fused_qkv;
    config->fused_gate_up = family->fused_gate_up;
    config->embed_factor = config->branch_factor = config->logit_divisor = 1;
    const sl_rope_config rope = {.base = hf ? family->hf_rope_base : 10000,
                                 .factor = 1,
                                 .low_factor = 1,
                                 .high_factor = 4,
                                 .beta_fast = 32,
                                 .beta_slow = 1,
                                 .exact = family->exact_yarn,
                                 .part = 1};
    config->rope = rope;
    config->local_rope = rope;
    config->local_rope.base = family->local_rope == SL_LOCAL_ROPE_UNSCALED ? rope.base : 10000;
    config->ssm_conv_bias = family->ssm;
    config->ssm_norm = family->ssm && !family->ssm_norm_asked;
    config->ssm_norm_first = hf && family->ssm_norm_asked;
    config->factors = (sl_factors){.ssm = {1, 1, 1, 1, 1}, 1, 1, 1, 1, 1};
    config->step_most = INFINITY;
    config->normalise = hf ? family->hf_normalise : family->normalise;
    config->expert_scale = 1;
    config->router = (int32_t)family->router;
    config->expert_groups = config->expert_groups_used = 1;
    config->choosing_bias = family->choosing_bias;
    config->group_by_best = family->group_by_best;
    config->latent_joined = family->latent && hf;
    config->latent_epsilon = 1e-6; /* whatever config.json says; GGUF: the other norms' */
    config->router_least_sum = family->router_least_sum;
    config->swiglu_alpha = family->swiglu_alpha;
    config->swiglu_limit = family->swiglu_limit;
    if (hf) {
        config->head_size = family->hf_head_size;
        config->heads = family->hf_heads;
        config->kv_heads = family->hf_kv_heads;
        config->vocabulary = family->hf_vocabulary;
        config->context = family->hf_context;
        config->window = family->chunk > 0 ? family->chunk : family->hf_window;
        config->per_layer_width = family->hf_per_layer_width;
        config->short_conv_taps = family->hf_conv_taps;
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
    for (int32_t layer = 0; layer < c->layers; layer++) {
        if (sl_config_has_feed_forward(c, layer) && (c->experts == 0 || c->dense[layer])) {
            return true;
        }
    }
    return false;
}

static bool recurrent_sizes(const sl_config *c) {
    return c->delta_key_heads > 0 && c->delta_value_heads > 0 && c->delta_key_size > 0 &&
           c->delta_value_size > 0 && c->delta_taps > 0;
}

static bool kv_divides(const sl_config *c) {
    return c->heads % c->kv_heads == 0 && (c->window_kv_heads == 0 || c->heads % c->window_kv_heads == 0);
}
static bool rope_even(const sl_config *c) {
    return c->rope_dims % 2 == 0;
}
static bool rope_fits(const sl_config *c) {
    return c->rope_dims <= c->head_size;
}
static bool latent_given(const sl_config *c) {
    return !c->family->latent || (c->latent > 0 && c->value_size > 0);
}
static bool latent_part(const sl_config *c) {
    return c->latent == 0 || c->rope_dims < c->head_size;
}
static bool latent_unbiased(const sl_config *c) {
    return c->latent == 0 || (!c->query_bias && !c->output_bias);
}
static bool window_rope(const sl_config *c) {
    const int32_t size = c->window_head_size > 0 ? c->window_head_size : c->head_size;
    const int32_t dims = c->window_rope_dims > 0 ? c->window_rope_dims : c->rope_dims;
    return !any_kind(c, SL_LAYER_WINDOW) || (dims % 2 == 0 && dims <= size);
}
static bool shared_known(const sl_config *c) {
    for (int32_t layer = 0; layer < c->layers; layer++) {
        if (c->shared_kv >= c->layers ||
            (sl_config_attends(c, layer) && sl_config_kv_layer(c, layer) == SL_NONE)) {
            return false;
        }
    }
    return true;
}
static bool whole_proportional(const sl_config *c) {
    return c->rope.scaling != SL_ROPE_SCALING_PROPORTIONAL || c->rope_dims == c->head_size;
}
static bool local_proportional(const sl_config *c) {
    return !c->family->local_rope || c->local_rope.scaling != SL_ROPE_SCALING_PROPORTIONAL;
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
static bool local_plain(const sl_config *c) {
    const int32_t scaling = c->local_rope.scaling;
    return c->family->local_rope == SL_LOCAL_ROPE_SAME ||
           (scaling != SL_ROPE_SCALING_YARN && scaling != SL_ROPE_SCALING_LONGROPE &&
            scaling != SL_ROPE_SCALING_DYNAMIC);
}
static bool long_context(const sl_config *c) {
    return c->rope.scaling != SL_ROPE_SCALING_LONGROPE ||
           (c->rope.original_context > 1 && c->rope_dims <= 2 * SL_ROPE_PAIRS_MOST);
}
static bool temperature_length(const sl_config *c) {
    return c->temperature_scale == 0 || c->temperature_length > 0;
}
static bool unscaled(const sl_config *c, double factor) {
    return (float)factor > 0 && (c->family->scaled || c->family->multiplied || factor == 1);
}
static bool has_ssm(const sl_config *c) {
    return any_kind(c, SL_LAYER_SSM) || c->family->ssm_beside;
}
/* What is multiplied has no bias that would have to be, too. */
static bool multiplied_unbiased(const sl_config *c) {
    return !c->family->multiplied || (!c->query_bias && !c->output_bias && !c->mlp_bias);
}
static bool embed_factor(const sl_config *c) {
    return unscaled(c, c->embed_factor);
}
static bool branch_factor(const sl_config *c) {
    return unscaled(c, c->branch_factor);
}
static bool logit_divisor(const sl_config *c) {
    return (float)c->logit_divisor > 0 && isfinite((float)(1 / c->logit_divisor)) &&
           (c->family->logit_factor > 0 || unscaled(c, c->logit_divisor));
}
static bool query_norm_known(const sl_config *c) {
    return !c->query_norm || c->family->query_norm != SL_QUERY_NORM_NONE;
}
static bool xielu_finite(const sl_config *c) {
    for (int32_t layer = 0; layer < c->layers && c->activation == SL_ACTIVATION_XIELU; layer++) {
        for (int number = 0; number < SL_XIELU_COUNT; number++) {
            if (!isfinite(c->xielu[number][layer]) || fabsf(c->xielu[number][layer]) > 1e3f) {
                return false;
            }
        }
        if (c->xielu[SL_XIELU_EPSILON][layer] > 0) {
            return false;
        }
    }
    return true;
}
static bool can_have_biases(const sl_config *c) {
    const bool experts = c->experts > 0 && !c->family->expert_bias;
    return !(c->fused_qkv && c->query_bias) &&
           !(c->mlp_bias && (c->fused_gate_up || c->family->hf_fused_gate_up || experts));
}
static bool chunk_is_mask(const sl_config *c) {
    return c->family->chunk == 0 || (c->window > 0 && (c->window & (c->window - 1)) == 0);
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
static bool shared_expert_known(const sl_config *c) {
    return c->shared_width == 0 || c->family->shared != SL_SHARED_NONE;
}
static bool experts_unbiased(const sl_config *c) {
    return c->experts == 0 || !c->mlp_bias;
}
static bool groups_known(const sl_config *c) {
    return c->expert_groups == 1 || c->family->expert_groups;
}
/* Each has two experts at least: what chooses a group is the sum of two scores. */
static bool groups_divide(const sl_config *c) {
    return c->expert_groups == 1 ||
           (c->expert_groups > 1 && c->experts % c->expert_groups == 0 && c->experts >= 2 * c->expert_groups);
}
static bool groups_used(const sl_config *c) {
    const int64_t reached = (int64_t)c->expert_groups_used * (c->experts / c->expert_groups);
    return c->expert_groups == 1 || (c->expert_groups_used > 0 && c->expert_groups_used <= c->expert_groups &&
                                     c->experts_used <= reached);
}
static bool delta_given(const sl_config *c) {
    return !any_kind(c, SL_LAYER_DELTA) || (c->family->delta && recurrent_sizes(c));
}
static bool ssm_given(const sl_config *c) {
    return !has_ssm(c) || (c->family->ssm && recurrent_sizes(c));
}
static bool alone_known(const sl_config *c) {
    return !any_kind(c, SL_LAYER_FEED_FORWARD) || c->family->one_block;
}
static bool latent_known(const sl_config *c) {
    return c->latent_width == 0 || (c->experts > 0 && c->family->ungated);
}
static bool heads_divide(const sl_config *c) {
    return !(any_kind(c, SL_LAYER_DELTA) || has_ssm(c)) || c->delta_value_heads % c->delta_key_heads == 0;
}
static bool norm_groups(const sl_config *c) {
    return !any_kind(c, SL_LAYER_SSM) || !c->family->ssm_whole_norm || c->delta_key_heads == 1;
}
static bool steps_ordered(const sl_config *c) {
    return (float)c->step_least >= 0 && (float)c->step_most > (float)c->step_least;
}
static bool conv_given(const sl_config *c) {
    return !any_kind(c, SL_LAYER_CONV) ||
           (c->family->pattern == SL_PATTERN_CONV_LISTED && c->short_conv_taps > 1);
}
static bool conv_unwindowed(const sl_config *c) {
    return c->family->pattern != SL_PATTERN_CONV_LISTED || c->window == 0;
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
    {latent_given, AT(config.latent), SL_ERR_INVALID,
     "must be at least 1, with a size of values: keys and values come out of a latent row"},
    {latent_part, AT(config.rope_dims), SL_ERR_INVALID, "must leave elements of a head that do not turn"},
    {latent_unbiased, AT(config.latent), SL_ERR_UNSUPPORTED,
     "biases of the projections of latent attention are not supported"},
    {window_rope, AT(config.window_rope_dims), SL_ERR_INVALID,
     "must be even and not exceed the head size of windowed layers"},
    {shared_known, AT(config.shared_kv), SL_ERR_INVALID,
     "must leave a layer of each kind with keys and values of its own"},
    {whole_proportional, AT(config.rope.part), SL_ERR_UNSUPPORTED,
     "proportional RoPE of a part of a head is not supported"},
    {local_proportional, AT(config.local_rope.scaling), SL_ERR_UNSUPPORTED,
     "proportional RoPE in windowed layers is not supported"},
    {llama3_ordered, AT(config.rope.high_factor), SL_ERR_INVALID, "must be more than low_freq_factor"},
    {llama3_context, AT(config.rope.original_context), SL_ERR_INVALID,
     "must be at least 1 with llama3 scaling"},
    {local_llama3, AT(config.local_rope.high_factor), SL_ERR_INVALID,
     "must be more than low_freq_factor, with an original context"},
    {yarn_ordered, AT(config.rope.beta_fast), SL_ERR_INVALID, "must be more than beta_slow"},
    {local_plain, AT(config.local_rope.scaling), SL_ERR_UNSUPPORTED,
     "this scaling in windowed layers alone is not supported"},
    {long_context, AT(config.rope.original_context), SL_ERR_INVALID,
     "LongRoPE needs an original context of at least 2, and at most 512 elements of a head that turn"},
    {temperature_length, AT(config.rope.original_context), SL_ERR_INVALID,
     "must be at least 1: queries grow with the position"},
    {embed_factor, AT(config.embed_factor), SL_ERR_UNSUPPORTED,
     "this scaling of embeddings is not supported"},
    {branch_factor, AT(config.branch_factor), SL_ERR_UNSUPPORTED,
     "this scaling of the residual is not supported"},
    {logit_divisor, AT(config.logit_divisor), SL_ERR_UNSUPPORTED, "this scaling of logits is not supported"},
    {query_norm_known, AT(config.query_norm), SL_ERR_UNSUPPORTED,
     "norms of queries and keys are not supported in this family"},
    {can_have_biases, AT(config.mlp_bias), SL_ERR_UNSUPPORTED,
     "biases of fused projections, and of experts in this family, are not supported"},
    {xielu_finite, AT(config.activation), SL_ERR_INVALID,
     "xIELU's numbers must be -1000 to 1000 in every layer, and its eps at most 0"},
    {multiplied_unbiased, AT(config.mlp_bias), SL_ERR_UNSUPPORTED,
     "biases of projections are not supported in this family"},
    {chunk_is_mask, AT(config.window), SL_ERR_UNSUPPORTED,
     "rows see their own chunk: only chunks of a power of two are supported"},
    {window_given, AT(config.window), SL_ERR_INVALID, "must be at least 1: there are windowed layers"},
    {scale_positive, AT(attention_scale), SL_ERR_INVALID, "must give a finite attention scale above 0"},
    {attention_cap, AT(config.attention_softcap), SL_ERR_INVALID,
     "must be 0 (no cap) or a cap that a float holds"},
    {final_cap, AT(config.final_softcap), SL_ERR_INVALID, "must be 0 (no cap) or a cap that a float holds"},
    {dense_width, AT(config.feed_forward), SL_ERR_INVALID,
     "must be at least 1: there are layers without experts"},
    {experts_known, AT(config.experts), SL_ERR_UNSUPPORTED, "experts are not supported in this family"},
    {experts_used, AT(config.experts_used), SL_ERR_INVALID,
     "must be 1 to the number of experts, and 0 without experts"},
    {experts_width, AT(config.expert_width), SL_ERR_INVALID, "must be at least 1: there are experts"},
    {experts_scale, AT(config.expert_scale), SL_ERR_INVALID, "must be above 0"},
    {shared_expert_known, AT(config.shared_width), SL_ERR_UNSUPPORTED,
     "shared experts are not supported in this family"},
    {experts_unbiased, AT(config.mlp_bias), SL_ERR_UNSUPPORTED,
     "biases of dense and shared feed-forwards beside experts are not supported"},
    {groups_known, AT(config.expert_groups), SL_ERR_UNSUPPORTED,
     "grouped experts are not supported in this family"},
    {groups_divide, AT(config.expert_groups), SL_ERR_INVALID,
     "must divide the number of experts into groups of two or more"},
    {groups_used, AT(config.expert_groups_used), SL_ERR_INVALID,
     "must be 1 to the number of groups, with as many experts as a row uses"},
    {delta_given, AT(config.delta_value_heads), SL_ERR_INVALID,
     "recurrent layers need numbers of key and value heads, their sizes and the convolution's taps (and a "
     "family that has them)"},
    {ssm_given, AT(config.delta_value_heads), SL_ERR_INVALID,
     "Mamba2 layers need numbers of groups and heads, sizes of heads and state, and the convolution's taps "
     "(and a "
     "family that has them)"},
    {alone_known, AT(config.layers), SL_ERR_UNSUPPORTED,
     "layers with a feed-forward alone are not supported in this family"},
    {latent_known, AT(config.latent_width), SL_ERR_UNSUPPORTED,
     "experts of another width than the model's are not supported in this family"},
    {heads_divide, AT(config.delta_value_heads), SL_ERR_INVALID,
     "must be a multiple of the key heads, or groups"},
    {norm_groups, AT(config.delta_key_heads), SL_ERR_UNSUPPORTED,
     "more than one group of Mamba2 is not supported in this family"},
    {steps_ordered, AT(config.delta_value_heads), SL_ERR_INVALID,
     "time_step_limit must be two rising numbers"},
    {conv_given, AT(config.short_conv_taps), SL_ERR_INVALID,
     "must be at least 2: there are short convolutions (and a family that has them)"},
    {conv_unwindowed, AT(config.window), SL_ERR_UNSUPPORTED,
     "windows beside short convolutions are not supported"},
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
    const int64_t size =
        config->head_size > config->window_head_size ? config->head_size : config->window_head_size;
    const int64_t keys =
        config->kv_heads > config->window_kv_heads ? config->kv_heads : config->window_kv_heads;
    const int64_t query = config->heads * size * (config->family->output_gate ? 2 : 1);
    const int64_t latent = config->heads * ((int64_t)config->latent + config->rope_dims);
    const int64_t plain = query + 2 * keys * size;
    const int64_t projections = config->latent > 0 && latent > plain ? latent : plain;
    const int64_t recurrent = 2 * (int64_t)config->delta_key_heads * config->delta_key_size +
                              2 * (int64_t)config->delta_value_heads * config->delta_value_size +
                              2 * (int64_t)config->delta_value_heads;
    if ((int64_t)config->layers * config->per_layer_width > 1 << 24) {
        return sl_fail(error, SL_ERR_LIMIT, "%s: per-layer embeddings have %lld columns, more than %d", file,
                       (long long)config->layers * config->per_layer_width, 1 << 24);
    }
    if (projections > 1 << 24 || recurrent > 1 << 24) {
        return sl_fail(error, SL_ERR_LIMIT, "%s: a layer's projections have %lld columns, more than %d", file,
                       (long long)(projections > recurrent ? projections : recurrent), 1 << 24);
    }
    return 0;
}
