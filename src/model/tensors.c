/* The table of tensors, and what it says for a config. */
#include "model/config_fields.h"

#include <stdio.h>

typedef enum scope {
    SCOPE_MODEL,
    SCOPE_LAYER,
    SCOPE_ATTENTION,
    SCOPE_DELTA,
    SCOPE_DENSE,
    SCOPE_EXPERT
} scope;

typedef enum need {
    NEED_ALWAYS,
    NEED_UNTIED,
    NEED_ROPE_FACTORS,
    NEED_QUERY_BIAS,
    NEED_OUTPUT_BIAS,
    NEED_MLP_BIAS,
    NEED_QUERY_NORM,
    NEED_SANDWICH,
    NEED_FUSED
} need;

typedef enum size {
    SIZE_ONE,
    SIZE_WIDTH,
    SIZE_VOCABULARY,
    SIZE_ROPE_HALF,
    SIZE_HEAD,
    SIZE_QUERY,
    SIZE_KEY,
    SIZE_ATTENTION,
    SIZE_FEED_FORWARD,
    SIZE_EXPERTS,
    SIZE_EXPERT_WIDTH,
    SIZE_TWO_EXPERT_WIDTHS,
    SIZE_DELTA_CHANNELS,
    SIZE_DELTA_VALUES,
    SIZE_DELTA_HEADS,
    SIZE_DELTA_VALUE,
    SIZE_DELTA_TAPS
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

static int32_t size_of(const sl_config *c, size what) {
    switch (what) {
    case SIZE_WIDTH:
        return c->width;
    case SIZE_VOCABULARY:
        return c->vocabulary;
    case SIZE_ROPE_HALF:
        return c->rope_dims / 2;
    case SIZE_HEAD:
        return c->head_size;
    case SIZE_QUERY:
        return c->heads * c->head_size * (c->family->output_gate ? 2 : 1);
    case SIZE_KEY:
        return c->kv_heads * c->head_size;
    case SIZE_ATTENTION:
        return c->heads * c->head_size;
    case SIZE_FEED_FORWARD:
        return c->feed_forward;
    case SIZE_EXPERTS:
        return c->experts;
    case SIZE_EXPERT_WIDTH:
        return c->expert_width;
    case SIZE_TWO_EXPERT_WIDTHS:
        return 2 * c->expert_width;
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
    default:
        return 1;
    }
}

static bool in_scope(const sl_config *c, scope scope, int32_t layer) {
    const bool delta = c->kinds[layer] == SL_LAYER_DELTA;
    const bool sparse = c->experts > 0 && !c->dense[layer];
    switch (scope) {
    case SCOPE_MODEL:
        return layer == 0;
    case SCOPE_ATTENTION:
        return !delta;
    case SCOPE_DELTA:
        return delta;
    case SCOPE_DENSE:
        return !sparse;
    case SCOPE_EXPERT:
        return sparse;
    default:
        return true;
    }
}

static bool is_needed(const sl_config *c, need need) {
    switch (need) {
    case NEED_UNTIED:
        return !c->tied;
    case NEED_ROPE_FACTORS:
        return c->rope_factors;
    case NEED_QUERY_BIAS:
        return c->query_bias;
    case NEED_OUTPUT_BIAS:
        return c->output_bias;
    case NEED_MLP_BIAS:
        return c->mlp_bias;
    case NEED_QUERY_NORM:
        return c->family->query_norm;
    case NEED_SANDWICH:
        return c->family->sandwich;
    case NEED_FUSED:
        return false;
    default:
        return true;
    }
}

bool sl_config_tensor(const sl_config *config, sl_tensor_id id, int32_t layer, sl_tensor_fact *fact) {
    const tensor_row *row = &TENSORS[id];
    const sl_family *family = config->family;
    memset(fact, 0, sizeof *fact);
    fact->id = id;
    fact->kind = row->kind;
    fact->layer = row->scope == SCOPE_MODEL ? SL_NONE : layer;
    fact->gguf = row->gguf;
    fact->hf = row->hf;
    for (int i = 0; i < family->rename_count; i++) {
        if (family->renamed[i].id == id) {
            const char *const *name = family->renamed[i].name;
            fact->gguf = name[SL_NAMING_GGUF] ? name[SL_NAMING_GGUF] : fact->gguf;
            fact->hf = name[SL_NAMING_HF] ? name[SL_NAMING_HF] : fact->hf;
        }
    }
    fact->experts = row->kind == SL_TENSOR_EXPERTS ? config->experts : 1;
    fact->rows = size_of(config, row->rows);
    fact->columns = size_of(config, row->columns);
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
    tensor->vector = fact->kind == SL_TENSOR_VECTOR || fact->kind == SL_TENSOR_KERNEL;
    tensor->dim_count = fact->kind == SL_TENSOR_EXPERTS ? 3 : fact->kind == SL_TENSOR_VECTOR ? 1 : 2;
    for (int i = 0; i < SL_TENSOR_DIMS; i++) {
        tensor->dims[i] = 1;
    }
    tensor->dims[0] = (uint64_t)fact->columns;
    if (fact->kind != SL_TENSOR_VECTOR) {
        tensor->dims[1] = (uint64_t)fact->rows;
        tensor->dims[2] = (uint64_t)fact->experts;
    }
}

int sl_config_tensors(const sl_config *config, sl_tensor_visitor visit, void *context, sl_error *error) {
    for (int32_t layer = -1; layer < config->layers; layer++) {
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

/* The values that keys hold, back from the facts that were derived of them. */
static void to_raw(const sl_config *config, sl_config_raw *raw) {
    memset(raw, 0, sizeof *raw);
    raw->config = *config;
    raw->value_size = config->head_size;
    raw->attention_scale = config->attention_scale;
    raw->delta_values = config->delta_value_heads * config->delta_value_size;
    if (!config->family->local_rope) {
        raw->config.local_rope.base = 0;
    }
    sl_rope_config *rope = &raw->config.rope;
    if (rope->scaling != SL_ROPE_SCALING_LINEAR && rope->scaling != SL_ROPE_SCALING_YARN) {
        rope->factor = 0; /* llama3 is said by rope_freqs.weight */
    }
    if (rope->scaling != SL_ROPE_SCALING_YARN) {
        rope->original_context = 0;
        rope->beta_fast = rope->beta_slow = 0;
    }
    if (config->experts == 0) {
        raw->config.expert_scale = 0;
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
        const char *word = scaling == SL_ROPE_SCALING_LINEAR ? "linear"
                           : scaling == SL_ROPE_SCALING_YARN ? "yarn"
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
    const int32_t period = full_period(config);
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

/* What no key of GGUF says must not get lost in the file. */
static int check_sayable(const sl_config *config, sl_error *error) {
    const sl_family *family = config->family;
    const int32_t layers = config->layers;
    const bool windows = memchr(config->kinds, SL_LAYER_WINDOW, (size_t)layers) != NULL;
    const bool full = memchr(config->kinds, SL_LAYER_FULL, (size_t)layers) != NULL;
    if (windows &&
        (family->pattern == SL_PATTERN_WINDOW_SWITCH || family->pattern == SL_PATTERN_DELTA_PERIOD ||
         (family->pattern == SL_PATTERN_WINDOW_ALL && full))) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for the windowed layers of %s",
                       family->name);
    }
    if (config->experts > 0 && memchr(config->dense, true, (size_t)layers)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for layers without experts in %s",
                       family->name);
    }
    if (family->local_rope && config->local_rope.scaling != SL_ROPE_SCALING_NONE) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for RoPE scaling in windowed layers");
    }
    if (config->rope.scaling == SL_ROPE_SCALING_YARN && config->rope.attention_factor > 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "GGUF has no key for YaRN's attention factor itself");
    }
    return 0;
}

int sl_config_write_gguf_metadata(const sl_config *config, sl_gguf_writer *writer, sl_error *error) {
    const sl_family *family = config->family;
    const char *name = family->gguf ? family->gguf : "llama";
    char key[SL_TENSOR_NAME_SIZE];
    sl_config_raw raw;
    to_raw(config, &raw);
    int code = check_sayable(config, error);
    code = code ? code : sl_gguf_writer_string(writer, "general.architecture", sl_view_of(name), error);
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT && code == 0; i++) {
        const sl_config_field *field = &SL_CONFIG_FIELDS[i];
        if (field->key[SL_NAMING_GGUF]) {
            snprintf(key, sizeof key, "%s.%s", name, field->key[SL_NAMING_GGUF]);
            code = write_field(writer, &raw, field, key, error);
        }
    }
    if (code == 0 && (family->delta || (family->pattern == SL_PATTERN_WINDOW_PERIOD && config->window > 0))) {
        code = write_kinds(writer, config, name, error);
    }
    if (code == 0 && family->delta) {
        snprintf(key, sizeof key, "%s.rope.dimension_sections", name);
        code = write_sections(writer, config, key, error);
    }
    return code;
}
