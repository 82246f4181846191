/* The table of tensors, and what it says for a config. */
#include "model/config_fields.h"

#include <math.h>
#include <stdio.h>

typedef enum scope {
    SCOPE_MODEL,
    SCOPE_LAYER,
    SCOPE_ATTENTION,
    SCOPE_KEYS,
    SCOPE_VALUES,
    SCOPE_DELTA,
    SCOPE_SSM,
    SCOPE_CONV,
    SCOPE_DENSE,
    SCOPE_EXPERT,
    SCOPE_DRAFT
} scope;

typedef enum need {
    NEED_ALWAYS,
    NEED_STAND_IN,
    NEED_UNTIED,
    NEED_DECODER,
    NEED_ENCODER,
    NEED_TOKEN_TYPES,
    NEED_GATE_BIAS,
    NEED_XIELU,
    NEED_ROPE_FACTORS,
    NEED_QUERY_BIAS,
    NEED_OUTPUT_BIAS,
    NEED_MLP_BIAS,
    NEED_QUERY_NORM,
    NEED_LONGROPE,
    NEED_BEFORE,
    NEED_BETWEEN,
    NEED_BEHIND,
    NEED_QKV,
    NEED_QUERY,
    NEED_QUERY_LATENT,
    NEED_LATENT,
    NEED_FUSED_QKV,
    NEED_GATE_UP,
    NEED_GATE,
    NEED_FUSED_GATE_UP,
    NEED_SINKS,
    NEED_APART,
    NEED_JOINED,
    NEED_ROUTER_BIAS,
    NEED_CHOOSING_BIAS,
    NEED_EXPERT_BIAS,
    NEED_GATED,
    NEED_SHARED,
    NEED_SHARED_UNIT_GATED,
    NEED_SHARED_GATED,
    NEED_EXPERT_LATENT,
    NEED_FUSED,
    NEED_CONV_BIAS,
    NEED_SSM_NORM,
    NEED_PER_LAYER,
    NEED_LAYER_SCALAR,
    NEED_BESIDE
} need;

typedef enum size {
    SIZE_ONE,
    SIZE_WIDTH,
    SIZE_TWO_WIDTHS,
    SIZE_VOCABULARY,
    SIZE_POSITIONS,
    SIZE_TOKEN_TYPES,
    SIZE_ROPE_HALF,
    SIZE_HEAD,
    SIZE_HEADS,
    SIZE_QUERY_NORM,
    SIZE_KEY_NORM,
    SIZE_QUERY,
    SIZE_QUERY_RANK,
    SIZE_LATENT,
    SIZE_LATENT_KEY,
    SIZE_LATENT_UP,
    SIZE_KEY_PART,
    SIZE_VALUE,
    SIZE_KEY,
    SIZE_QKV,
    SIZE_ATTENTION,
    SIZE_FEED_FORWARD,
    SIZE_TWO_FEED_FORWARDS,
    SIZE_EXPERTS,
    SIZE_EXPERT_ROWS,
    SIZE_EXPERT_LATENT,
    SIZE_EXPERT_WIDTH,
    SIZE_TWO_EXPERT_WIDTHS,
    SIZE_SHARED_WIDTH,
    SIZE_DELTA_CHANNELS,
    SIZE_DELTA_VALUES,
    SIZE_DELTA_HEADS,
    SIZE_TWO_DELTA_HEADS,
    SIZE_DELTA_QKVZ,
    SIZE_DELTA_VALUE,
    SIZE_DELTA_TAPS,
    SIZE_SSM_IN,
    SIZE_SSM_GROUPS,
    SIZE_SSM_GROUP,
    SIZE_TWO_SHARED_WIDTHS,
    SIZE_THREE_WIDTHS,
    SIZE_SHORT_CONV_TAPS,
    SIZE_PER_LAYER,
    SIZE_PER_LAYER_ALL
} size;

typedef struct tensor_row {
    scope scope;
    need need;
    sl_tensor_kind kind;
    size rows, columns;
    const char *gguf, *hf;
} tensor_row;

static const tensor_row TENSORS[SL_TENSOR_COUNT] = {
#define SL_TENSOR(ID, scope, need, kind, rows, columns, gguf, hf)                                            \
    {SCOPE_##scope, NEED_##need, SL_TENSOR_##kind, SIZE_##rows, SIZE_##columns, gguf, hf},
#include "model/tensors.def"
#undef SL_TENSOR
};

/* Of layers that keep a state. */
static int32_t recurrent_size(const sl_config *c, size what) {
    switch (what) {
    case SIZE_TWO_DELTA_HEADS:
        return 2 * c->delta_value_heads;
    case SIZE_DELTA_QKVZ:
        return 2 * (c->delta_key_heads * c->delta_key_size + c->delta_value_heads * c->delta_value_size);
    case SIZE_DELTA_CHANNELS:
        return 2 * c->delta_key_heads * c->delta_key_size + c->delta_value_heads * c->delta_value_size;
    case SIZE_DELTA_VALUES:
        return c->delta_value_heads * c->delta_value_size;
    case SIZE_DELTA_HEADS:
        return c->delta_value_heads;
    case SIZE_DELTA_VALUE:
        return c->delta_value_size;
    case SIZE_DELTA_TAPS:
        return c->delta_taps;
    case SIZE_SSM_IN: /* z, then what is convolved, then steps */
        return 2 * (c->delta_value_heads * c->delta_value_size + c->delta_key_heads * c->delta_key_size) +
               c->delta_value_heads;
    case SIZE_SSM_GROUPS:
        return c->delta_key_heads;
    case SIZE_SSM_GROUP:
        return c->delta_value_heads * c->delta_value_size / (c->delta_key_heads > 0 ? c->delta_key_heads : 1);
    case SIZE_THREE_WIDTHS:
        return 3 * c->width;
    case SIZE_SHORT_CONV_TAPS:
        return c->short_conv_taps;
    default:
        return 1;
    }
}

static int32_t size_of(const sl_config *c, size what, int32_t layer) {
    switch (what) {
    case SIZE_WIDTH:
        return c->width;
    case SIZE_TWO_WIDTHS:
        return 2 * c->width;
    case SIZE_VOCABULARY:
        return c->vocabulary;
    case SIZE_POSITIONS:
        return c->context + sl_config_position_offset(c);
    case SIZE_TOKEN_TYPES:
        return c->token_types;
    case SIZE_ROPE_HALF:
        return c->rope_dims / 2;
    case SIZE_HEAD:
        return sl_config_head_size(c, layer);
    case SIZE_QUERY_NORM:
        return sl_config_head_size(c, layer) * (c->family->query_norm == SL_QUERY_NORM_WHOLE ? c->heads : 1);
    case SIZE_KEY_NORM:
        return sl_config_head_size(c, layer) *
               (c->family->query_norm == SL_QUERY_NORM_WHOLE ? sl_config_kv_heads(c, layer) : 1);
    case SIZE_QKV:
        return (c->heads + 2 * sl_config_kv_heads(c, layer)) * sl_config_head_size(c, layer);
    case SIZE_TWO_FEED_FORWARDS:
        return 2 * sl_config_feed_forward(c, layer);
    case SIZE_HEADS:
        return c->heads;
    case SIZE_QUERY:
        return c->heads * sl_config_head_size(c, layer) * (c->family->output_gate ? 2 : 1);
    case SIZE_KEY:
        return sl_config_kv_heads(c, layer) * sl_config_head_size(c, layer);
    case SIZE_ATTENTION:
        return c->heads * sl_config_value_size(c, layer);
    case SIZE_QUERY_RANK:
        return c->query_rank;
    case SIZE_LATENT:
        return c->latent;
    case SIZE_LATENT_KEY:
        return c->latent + c->rope_dims;
    case SIZE_LATENT_UP:
        return c->heads * (c->head_size - c->rope_dims + c->value_size);
    case SIZE_KEY_PART:
        return c->head_size - c->rope_dims;
    case SIZE_VALUE:
        return sl_config_value_size(c, layer);
    case SIZE_FEED_FORWARD:
        return sl_config_feed_forward(c, layer);
    case SIZE_EXPERTS:
        return c->experts;
    case SIZE_EXPERT_ROWS:
        return sl_config_expert_rows(c);
    case SIZE_EXPERT_LATENT:
        return c->latent_width;
    case SIZE_EXPERT_WIDTH:
        return c->expert_width;
    case SIZE_TWO_EXPERT_WIDTHS:
        return 2 * c->expert_width;
    case SIZE_SHARED_WIDTH:
        return c->shared_width;
    case SIZE_TWO_SHARED_WIDTHS:
        return 2 * c->shared_width;
    case SIZE_PER_LAYER:
        return c->per_layer_width;
    case SIZE_PER_LAYER_ALL:
        return c->layers * c->per_layer_width;
    default:
        return recurrent_size(c, what);
    }
}

static bool in_scope(const sl_config *c, scope scope, int32_t layer) {
    const bool feeds = sl_config_has_feed_forward(c, layer), sparse = c->experts > 0 && !c->dense[layer];
    switch (scope) {
    case SCOPE_MODEL:
        return layer == 0;
    case SCOPE_ATTENTION:
        return sl_config_attends(c, layer);
    case SCOPE_KEYS:
        return sl_config_has_keys(c, layer);
    case SCOPE_VALUES:
        return sl_config_has_values(c, layer);
    case SCOPE_DELTA:
        return c->kinds[layer] == SL_LAYER_DELTA;
    case SCOPE_SSM:
        return c->kinds[layer] == SL_LAYER_SSM || c->family->ssm_beside;
    case SCOPE_CONV:
        return c->kinds[layer] == SL_LAYER_CONV;
    case SCOPE_DENSE:
        return feeds && (!sparse || c->family->dense_beside);
    case SCOPE_EXPERT:
        return feeds && sparse;
    case SCOPE_DRAFT:
        return layer >= c->layers;
    default:
        return true;
    }
}

static bool experts_need(const sl_config *c, need need) {
    switch (need) {
    case NEED_ROUTER_BIAS:
        return c->family->router_bias;
    case NEED_CHOOSING_BIAS:
        return c->choosing_bias;
    case NEED_EXPERT_BIAS:
        return c->family->expert_bias;
    case NEED_GATED:
        return !c->family->ungated;
    case NEED_SHARED:
        return c->shared_width > 0;
    case NEED_SHARED_UNIT_GATED:
        return c->shared_width > 0 && !c->family->ungated;
    case NEED_EXPERT_LATENT:
        return c->latent_width > 0;
    case NEED_SHARED_GATED:
        return c->shared_width > 0 && c->family->shared == SL_SHARED_GATED;
    default:
        return true;
    }
}

static bool is_needed(const sl_config *c, need need) {
    switch (need) {
    case NEED_UNTIED:
        return !c->tied;
    case NEED_DECODER:
        return !c->family->encoder;
    case NEED_ENCODER:
        return c->family->encoder;
    case NEED_TOKEN_TYPES:
        return c->family->encoder && c->token_types > 0;
    case NEED_GATE_BIAS:
        return c->mlp_bias && !c->family->encoder && !c->family->ungated;
    case NEED_XIELU:
        return c->activation == SL_ACTIVATION_XIELU && c->naming == SL_NAMING_HF;
    case NEED_ROPE_FACTORS:
        return c->rope_factors;
    case NEED_QUERY_BIAS:
        return c->query_bias;
    case NEED_OUTPUT_BIAS:
        return c->output_bias;
    case NEED_MLP_BIAS:
        return c->mlp_bias;
    case NEED_QUERY_NORM:
        return c->query_norm && !c->family->query_norm_plain;
    case NEED_LONGROPE:
        return c->rope.scaling == SL_ROPE_SCALING_LONGROPE;
    case NEED_BEFORE:
        return c->family->norms != SL_NORMS_BEHIND && !c->family->encoder;
    case NEED_BETWEEN:
        return is_needed(c, NEED_BEFORE) && !c->family->parallel && !c->family->one_block;
    case NEED_BEHIND:
        return c->family->norms != SL_NORMS_BEFORE;
    case NEED_QKV:
        return !c->fused_qkv && c->latent == 0;
    case NEED_QUERY:
        return !c->fused_qkv && c->query_rank == 0;
    case NEED_QUERY_LATENT:
        return c->query_rank > 0;
    case NEED_LATENT:
        return c->latent > 0;
    case NEED_FUSED_QKV:
        return c->fused_qkv;
    case NEED_GATE_UP:
        return !c->fused_gate_up;
    case NEED_GATE:
        return !c->fused_gate_up && !c->family->encoder && !c->family->ungated;
    case NEED_FUSED_GATE_UP:
        return c->fused_gate_up;
    case NEED_SINKS:
        return c->family->sinks;
    case NEED_APART:
        return !c->family->delta_joined;
    case NEED_JOINED:
        return c->family->delta_joined;
    case NEED_FUSED:
        return false;
    case NEED_CONV_BIAS:
        return c->ssm_conv_bias;
    case NEED_SSM_NORM:
        return c->ssm_norm;
    case NEED_PER_LAYER:
        return c->per_layer_width > 0;
    case NEED_LAYER_SCALAR:
        return c->family->layer_scalar;
    case NEED_BESIDE:
        return c->family->dense_beside;
    default:
        return experts_need(c, need);
    }
}

bool sl_config_tensor(const sl_config *config, sl_tensor_id id, int32_t layer, sl_tensor_fact *fact) {
    const tensor_row *row = &TENSORS[id];
    const sl_family *family = config->family;
    memset(fact, 0, sizeof *fact);
    fact->id = id;
    fact->kind = row->kind;
    fact->layer = row->scope == SCOPE_MODEL ? SL_NONE : layer;
    fact->stand_in = row->need == NEED_STAND_IN;
    fact->gguf = row->gguf;
    fact->hf = row->hf;
    for (int i = 0; i < family->rename_count; i++) {
        if (family->renamed[i].id == id) {
            const char *const *name = family->renamed[i].name;
            fact->gguf = name[SL_NAMING_GGUF] ? name[SL_NAMING_GGUF] : fact->gguf;
            fact->hf = name[SL_NAMING_HF] ? name[SL_NAMING_HF] : fact->hf;
        }
    }
    const bool of_experts = row->kind == SL_TENSOR_EXPERTS || row->kind == SL_TENSOR_EXPERT_VECTOR;
    fact->experts = of_experts ? config->experts : row->kind == SL_TENSOR_HEADS ? config->heads : 1;
    fact->rows = size_of(config, row->rows, layer);
    fact->columns = size_of(config, row->columns, layer);
    return in_scope(config, row->scope, layer) && is_needed(config, row->need);
}

void sl_tensor_name(const char *format, int32_t layer, int32_t expert, char name[SL_TENSOR_NAME_SIZE]) {
    const int32_t numbers[2] = {layer, expert};
    size_t length = 0;
    for (int next = 0; *format && length < SL_TENSOR_NAME_SIZE - 16;) {
        if (format[0] == '%' && format[1] == 'd') {
            length += (size_t)snprintf(name + length, 16, "%d", numbers[next]);
            next = 1;
            format += 2;
        } else {
            name[length++] = *format++;
        }
    }
    name[length] = '\0';
}

static void gguf_tensor(const sl_tensor_fact *fact, int32_t layer, sl_gguf_tensor_fact *tensor) {
    memset(tensor, 0, sizeof *tensor);
    sl_tensor_name(fact->gguf, layer, 0, tensor->name);
    tensor->id = fact->id;
    tensor->layer = fact->layer;
    tensor->stand_in = fact->stand_in;
    const bool blocks = fact->kind == SL_TENSOR_EXPERTS || fact->kind == SL_TENSOR_HEADS;
    tensor->vector = fact->kind != SL_TENSOR_MATRIX && !blocks;
    tensor->dim_count = blocks ? 3 : fact->rows == 1 && fact->kind != SL_TENSOR_EXPERT_VECTOR ? 1 : 2;
    for (int i = 0; i < SL_TENSOR_DIMS; i++) {
        tensor->dims[i] = 1;
    }
    tensor->dims[0] = (uint64_t)fact->columns;
    if (fact->kind == SL_TENSOR_EXPERT_VECTOR) {
        tensor->dims[1] = (uint64_t)fact->experts;
    } else {
        tensor->dims[1] = (uint64_t)fact->rows;
        tensor->dims[2] = (uint64_t)fact->experts;
    }
}

int sl_config_tensors(const sl_config *config, sl_tensor_visitor visit, void *context, sl_error *error) {
    for (int32_t layer = -1; layer < config->layers + config->draft_layers; layer++) {
        for (int id = 0; id < SL_TENSOR_COUNT; id++) {
            sl_tensor_fact fact;
            sl_gguf_tensor_fact tensor;
            const bool there = sl_config_tensor(config, (sl_tensor_id)id, layer < 0 ? 0 : layer, &fact);
            if (!there || !fact.gguf || (fact.layer == SL_NONE) != (layer < 0)) {
                continue;
            }
            gguf_tensor(&fact, layer, &tensor);
            const int code = visit(context, &tensor, error);
            if (code) {
                return code;
            }
        }
    }
    return 0;
}

/* ---- metadata of a GGUF file ---- */

/* Every so many-th layer has experts, and no other; 0: it is not so, or no family's where it is a fact. */
static int32_t sparse_step(const sl_config *config) {
    for (int32_t step = 1; config->family->sparse_steps && step <= config->layers; step++) {
        int32_t layer = 0;
        while (layer < config->layers && config->dense[layer] == ((layer + 1) % step != 0)) {
            layer++;
        }
        if (layer == config->layers) {
            return step;
        }
    }
    return 0;
}

/* The values that keys hold, back from the facts that were derived of them. */
static void to_raw(const sl_config *config, sl_config_raw *raw) {
    memset(raw, 0, sizeof *raw);
    raw->config = *config;
    raw->config.layers += config->draft_layers; /* block_count has them all */
    raw->draft_layers = config->draft_layers;
    raw->value_size = config->head_size;
    raw->window_value_size = config->window_head_size;
    raw->mixture = true;
    raw->attention_scale = config->attention_scale / config->factors.scores;
    raw->delta_values = config->delta_value_heads * config->delta_value_size;
    if (!config->family->local_rope) {
        raw->config.local_rope.base = 0;
    }
    sl_rope_config *rope = &raw->config.rope;
    if (rope->scaling != SL_ROPE_SCALING_LINEAR && rope->scaling != SL_ROPE_SCALING_YARN) {
        rope->factor = 0; /* llama3 is said by rope_freqs.weight */
    }
    if (rope->scaling != SL_ROPE_SCALING_YARN) {
        raw->rope_multiplier = rope->scaling == SL_ROPE_SCALING_LONGROPE ? rope->attention_factor : 0;
        rope->original_context = rope->scaling == SL_ROPE_SCALING_LONGROPE ? rope->original_context : 0;
        rope->beta_fast = rope->beta_slow = rope->attention_factor = 0;
    }
    if (rope->scaling != SL_ROPE_SCALING_YARN || rope->mscale == 0) {
        rope->mscale_all = 0;
    }
    if (config->latent > 0) {
        rope->mscale_all *= SL_LATENT_LOG_MULTIPLIER;
        raw->latent_head_size = config->head_size;
        raw->latent_value_size = config->value_size;
        raw->config.head_size = config->latent + config->rope_dims;
        raw->value_size = config->latent;
        raw->attention_scale = 0; /* follows from the others */
    }
    /* llama.cpp takes the length from the rotation's scaling, but not where attention is latent. */
    raw->sparse_step = sparse_step(config);
    const bool usual = config->temperature_length == config->rope.original_context && config->latent == 0;
    if (usual || config->temperature_scale == 0) {
        raw->config.temperature_length = 0;
    }
    if (!config->family->scaled) {
        raw->config.embed_factor = raw->config.branch_factor = raw->config.logit_divisor = 0;
    }
    if (config->family->logit_factor > 0) {
        raw->config.logit_divisor = 1 / config->logit_divisor; /* what the key means here */
    }
    if (config->family->layer_norm || config->family->encoder) {
        raw->layer_epsilon = config->epsilon;
        raw->config.epsilon = 0;
    }
    if (config->experts == 0) {
        raw->config.expert_scale = 0;
    }
    if (config->family->shared == SL_SHARED_PLAIN && config->expert_width > 0 &&
        config->shared_width % config->expert_width == 0) {
        raw->shared_experts = config->shared_width / config->expert_width;
    }
    raw->gating = config->router == SL_ROUTER_SIGMOID ? 2 : 0;
    if (config->expert_groups == 1) { /* what files leave out */
        raw->config.expert_groups = raw->config.expert_groups_used = 0;
    }
    while (config->experts > 0 && raw->leading_dense < config->layers && config->dense[raw->leading_dense]) {
        raw->leading_dense++;
    }
}

static int write_field(sl_gguf_writer *writer, const sl_config_raw *raw, const sl_config_field *field,
                       const char *key, sl_error *error) {
    const unsigned char *at = (const unsigned char *)raw + field->offset;
    if (field->type == SL_FIELD_REAL) {
        const double value = *(const double *)(const void *)at;
        return value == 0 ? 0 : sl_gguf_writer_float(writer, key, SL_GGUF_F32, value, error);
    }
    if (field->type == SL_FIELD_INT) {
        const int32_t value = *(const int32_t *)(const void *)at;
        return value == 0 ? 0 : sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)value, error);
    }
    if (field->type == SL_FIELD_CHOICE) {
        const int32_t scaling = raw->config.rope.scaling;
        const char *word = scaling == SL_ROPE_SCALING_LINEAR     ? "linear"
                           : scaling == SL_ROPE_SCALING_YARN     ? "yarn"
                           : scaling == SL_ROPE_SCALING_LONGROPE ? "longrope"
                                                                 : NULL;
        return word ? sl_gguf_writer_string(writer, key, sl_view_of(word), error) : 0;
    }
    return raw->config.experts == 0
               ? 0
               : sl_gguf_writer_bool(writer, key, *(const bool *)(const void *)at, error);
}

/* The period at whose end the layers with full attention stand, and only those; 0 when there is none. A
 * period longer than the model says that there are no such layers. */
static int32_t full_period(const sl_config *config) {
    for (int32_t period = 1; period <= config->layers + 1; period++) {
        int32_t layer = 0;
        while (layer < config->layers &&
               ((layer + 1) % period == 0) == (config->kinds[layer] == SL_LAYER_FULL)) {
            layer++;
        }
        if (layer == config->layers) {
            return period;
        }
    }
    return 0;
}

/* As a period where the layers follow one (what llama.cpp reads of every release), else as one truth value
 * per layer: is it of a kind other than full attention? */
static int write_kinds(sl_gguf_writer *writer, const sl_config *config, const char *name, sl_error *error) {
    /* llama.cpp reads one number as every layer's truth value where families have no period of their own. */
    const int32_t period = config->family->last_full ? 0 : full_period(config);
    const bool delta = config->family->delta;
    char key[SL_TENSOR_NAME_SIZE];
    uint8_t flags[SL_CONFIG_LAYERS];
    if (period > 0) {
        snprintf(key, sizeof key, "%s.%s", name,
                 delta ? "full_attention_interval" : "attention.sliding_window_pattern");
        return sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)period, error);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        flags[layer] = config->kinds[layer] != SL_LAYER_FULL;
    }
    const sl_gguf_items items = {SL_GGUF_BOOL, flags, (uint64_t)config->layers};
    snprintf(key, sizeof key, "%s.attention.%s", name, delta ? "recurrent_layers" : "sliding_window_pattern");
    return sl_gguf_writer_array(writer, key, &items, error);
}

/* llama.cpp asks for the three sections of multi-axis RoPE; with text they do not matter, but must add up. */
static int write_sections(sl_gguf_writer *writer, const sl_config *config, const char *key, sl_error *error) {
    const int32_t pairs = config->rope_dims / 2, third = (pairs + 2) / 3;
    const int32_t sections[4] = {third, pairs - third < third ? pairs - third : third,
                                 pairs - 2 * third > 0 ? pairs - 2 * third : 0, 0};
    const sl_gguf_items items = {SL_GGUF_I32, sections, 4};
    return sl_gguf_writer_array(writer, key, &items, error);
}

/* Readers know in which layers SmolLM3 does not rotate. */
static bool says_rope_layers(const sl_config *config) {
    for (int32_t layer = 0; layer < config->layers; layer++) {
        if (config->family->rope_layers == SL_ROPE_LAYERS_LISTED &&
            config->no_rope[layer] != ((layer + 1) % 4 == 0)) {
            return false;
        }
    }
    return true;
}

/* llama.cpp takes the magnitude that follows from the factor, whatever the file says. With latent attention
 * its two parts are one number. */
static bool says_magnitude(const sl_config *config) {
    const sl_rope_config *rope = &config->rope;
    sl_rope_config usual = *rope;
    usual.attention_factor = 0;
    const bool same = config->latent > 0 && rope->mscale == rope->mscale_all;
    if (rope->scaling != SL_ROPE_SCALING_YARN) {
        return true;
    }
    const bool one = rope->mscale == 0 || rope->mscale_all == 0 || rope->mscale == 1 || same;
    return one && fabsf(sl_rope_magnitude(rope) - sl_rope_magnitude(&usual)) < 1e-5f;
}

/* What no key of GGUF says must not get lost in the file. */
static int check_sayable(const sl_config *config, sl_error *error) {
    const sl_family *family = config->family;
    const int32_t layers = config->layers;
    const bool windows = memchr(config->kinds, SL_LAYER_WINDOW, (size_t)layers) != NULL;
    const bool full = memchr(config->kinds, SL_LAYER_FULL, (size_t)layers) != NULL;
    if (family->ssm && (config->step_least > 0 || isfinite(config->step_most))) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for %s's time_step_limit", family->name);
    }
    if (windows &&
        (family->pattern == SL_PATTERN_WINDOW_SWITCH || family->pattern == SL_PATTERN_WINDOW_UNTURNED ||
         family->pattern == SL_PATTERN_DELTA_PERIOD || family->pattern == SL_PATTERN_SSM_LISTED ||
         (family->pattern == SL_PATTERN_WINDOW_ALL && full))) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the windowed layers of %s",
                       family->name);
    }
    const bool at_ends = config->embed_factor != 1 || config->logit_divisor != 1;
    if (family->multiplied && config->tied && at_ends) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "GGUF has no place for factors of %s's embedding and head where they are one",
                       family->name);
    }
    if (config->ssm_norm && config->ssm_norm_first) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for mamba_norm_before_gate");
    }
    int32_t first = 0; /* with experts */
    while (family->leading_dense && first < layers && config->dense[first]) {
        first++;
    }
    /* Of layers with one block the tensors say it. */
    if (family->sparse_steps && config->experts > 0 && sparse_step(config) == 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the layers of %s with experts",
                       family->name);
    }
    for (int32_t layer = 0; family->chunk > 0 && layer < layers; layer++) {
        if (config->no_rope[layer] != (config->kinds[layer] == SL_LAYER_FULL)) {
            return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the layers of %s that see chunks",
                           family->name);
        }
    }
    if (family->query_norm_plain &&
        config->query_norm != (config->experts != family->gguf_unnormed_experts)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for %s's norms of queries and keys",
                       family->name);
    }
    if (family->still_temperature > 0 && config->temperature_scale == 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for %s without its temperature",
                       family->name);
    }
    if (config->experts > 0 && !family->one_block && !family->sparse_steps &&
        memchr(config->dense + first, true, (size_t)(layers - first))) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for layers without experts in %s",
                       family->name);
    }
    if (family->local_rope && config->local_rope.scaling != SL_ROPE_SCALING_NONE) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for RoPE scaling in windowed layers");
    }
    if (config->activation != (int32_t)family->activation) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the activation of %s", family->name);
    }
    if (!says_rope_layers(config)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the layers of %s without RoPE",
                       family->name);
    }
    if (!says_magnitude(config)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for YaRN's attention factor itself");
    }
    if (config->rope.scaling == SL_ROPE_SCALING_YARN && config->rope.exact != family->exact_yarn) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for YaRN's truncate");
    }
    if (config->swiglu_alpha != family->swiglu_alpha || config->swiglu_limit != family->swiglu_limit) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the numbers of %s's activation",
                       family->name);
    }
    return 0;
}

/* Facts of which every layer has its own. */
static int write_layer_sizes(sl_gguf_writer *writer, const sl_config *config, const char *name,
                             sl_error *error) {
    int32_t values[SL_CONFIG_LAYERS];
    char key[SL_TENSOR_NAME_SIZE];
    const sl_gguf_items items = {SL_GGUF_I32, values, (uint64_t)config->layers};
    /* 0: this is how files say that a layer has no attention. */
    const bool listed = config->family->pattern == SL_PATTERN_SSM_LISTED ||
                        memchr(config->kinds, SL_LAYER_CONV, (size_t)config->layers) != NULL;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const bool none = listed && !sl_config_attends(config, layer);
        values[layer] = none ? 0 : sl_config_kv_heads(config, layer);
    }
    snprintf(key, sizeof key, "%s.attention.head_count_kv", name);
    int code = config->window_kv_heads > 0 || listed
                   ? sl_gguf_writer_array(writer, key, &items, error)
                   : sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)config->kv_heads, error);
    bool differ = false;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const bool sparse = config->family->one_block && config->experts > 0 && !config->dense[layer];
        values[layer] = !sl_config_has_feed_forward(config, layer) ? 0
                        : sparse                                   ? config->expert_width
                                                                   : sl_config_feed_forward(config, layer);
        differ = differ || values[layer] != config->feed_forward;
    }
    snprintf(key, sizeof key, "%s.feed_forward_length", name);
    if (code == 0 && differ) {
        return sl_gguf_writer_array(writer, key, &items, error);
    }
    return code || config->feed_forward == 0
               ? code
               : sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)config->feed_forward, error);
}

static int write_xielu(sl_gguf_writer *writer, const sl_config *config, sl_error *error) {
    int code = 0;
    for (int number = 0; number < SL_XIELU_COUNT && code == 0; number++) {
        const sl_gguf_items items = {SL_GGUF_F32, config->xielu[number], (uint64_t)config->layers};
        code = sl_gguf_writer_array(writer, SL_XIELU_KEYS[number], &items, error);
    }
    return code;
}

int sl_config_write_gguf_metadata(const sl_config *config, sl_gguf_writer *writer, sl_error *error) {
    const sl_family *family = config->family;
    const char *name = sl_family_gguf_name(family);
    char key[SL_TENSOR_NAME_SIZE];
    sl_config_raw raw;
    to_raw(config, &raw);
    int code = check_sayable(config, error);
    code = code ? code : sl_gguf_writer_string(writer, "general.architecture", sl_view_of(name), error);
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT && code == 0; i++) {
        const sl_config_field *field = &SL_CONFIG_FIELDS[i];
        if (field->key[SL_NAMING_GGUF] && field->type != SL_FIELD_LAYERS &&
            field->offset != offsetof(sl_config_raw, turns)) { /* see below */
            snprintf(key, sizeof key, "%s.%s", name, field->key[SL_NAMING_GGUF]);
            code = write_field(writer, &raw, field, key, error);
        }
    }
    code = code ? code : write_layer_sizes(writer, config, name, error);
    if (code == 0 && (family->delta || (family->pattern == SL_PATTERN_WINDOW_PERIOD && config->window > 0))) {
        code = write_kinds(writer, config, name, error);
    }
    if (code == 0 && config->activation == SL_ACTIVATION_XIELU) {
        code = write_xielu(writer, config, error);
    }
    if (code == 0 && family->rope_layers == SL_ROPE_LAYERS_ASKED) {
        snprintf(key, sizeof key, "%s.rope.scaling.finetuned", name);
        code = sl_gguf_writer_bool(writer, key, sl_config_turns(config), error);
    }
    if (code == 0 && family->delta) {
        snprintf(key, sizeof key, "%s.rope.dimension_sections", name);
        code = write_sections(writer, config, key, error);
    }
    return code;
}
