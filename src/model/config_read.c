/* Configs from GGUF metadata and from config.json. */
#include "format/quantization.h"
#include "model/config_fields.h"

#include <math.h>
#include <stdio.h>

typedef struct reader {
    const char *file;
    const sl_gguf *gguf; /* or */
    const json_t *root, *text;
    const sl_family *family;
    sl_config_raw *raw;
    sl_error *error;
} reader;

enum { KEY_SIZE = SL_TENSOR_NAME_SIZE };

/* ---- look-ups: 1 found, 0 absent, negative on error ---- */

static int found(int code) {
    return code == 0 ? 1 : code == SL_ERR_NOT_FOUND ? 0 : code;
}

/* A per-layer array stands for its one value when all are equal. It may count draft layers or not. */
static int gguf_uniform(const reader *r, const char *key, int64_t *value) {
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key);
    if (!entry || entry->type != SL_GGUF_ARRAY || entry->count == 0 || entry->item_type == SL_GGUF_STRING ||
        entry->item_type == SL_GGUF_F32 || entry->item_type == SL_GGUF_F64 ||
        entry->item_type == SL_GGUF_ARRAY) {
        return found(sl_gguf_i64(r->gguf, key, value, r->error));
    }
    char draft_key[KEY_SIZE];
    uint64_t layers = (uint64_t)r->raw->config.layers, draft = 0;
    snprintf(draft_key, sizeof draft_key, "%s.nextn_predict_layers", r->family->gguf);
    if (sl_gguf_u64(r->gguf, draft_key, &draft, NULL) == 0 && draft < layers) {
        layers -= draft;
    }
    if (entry->count < layers) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: %s has %llu items, but there are %llu layers", r->file,
                       key, (unsigned long long)entry->count, (unsigned long long)layers);
    }
    *value = sl_gguf_item_i64(entry, 0);
    for (uint64_t i = 1; i < entry->count; i++) {
        if (sl_gguf_item_i64(entry, i) != *value) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                           "%s: %s differs between layers (%lld, %lld): not supported", r->file, key,
                           (long long)*value, (long long)sl_gguf_item_i64(entry, i));
        }
    }
    return 1;
}

static int gguf_value(const reader *r, const sl_config_field *field, const char *key, double *number,
                      sl_view *word) {
    int64_t integer = 0;
    bool flag = false;
    int code;
    switch (field->type) {
    case SL_FIELD_INT:
        code = gguf_uniform(r, key, &integer);
        *number = (double)integer;
        return code;
    case SL_FIELD_REAL:
        return found(sl_gguf_f64(r->gguf, key, number, r->error));
    case SL_FIELD_BOOL:
        code = found(sl_gguf_bool(r->gguf, key, &flag, r->error));
        *number = flag;
        return code;
    default:
        return found(sl_gguf_string(r->gguf, key, word, r->error));
    }
}

static int hf_value(const reader *r, const sl_config_field *field, const char *key, double *number,
                    sl_view *word) {
    char prefix[KEY_SIZE];
    const json_t *root = r->text;
    if (*key == '^') {
        root = r->root;
        key++;
    }
    snprintf(prefix, sizeof prefix, "%s", key);
    char *dot = strrchr(prefix, '.');
    if (dot) {
        *dot = '\0';
    }
    const sl_json_place place = {root, r->file};
    const char *above = dot ? prefix : NULL, *name = dot ? dot + 1 : prefix;
    const char *text = NULL;
    uint64_t integer = 0;
    bool flag = false;
    int code;
    switch (field->type) {
    case SL_FIELD_INT:
        code = sl_json_u64(place, above, name, &integer, r->error);
        *number = (double)integer;
        return found(code);
    case SL_FIELD_REAL:
        return found(sl_json_f64(place, above, name, number, r->error));
    case SL_FIELD_BOOL:
        code = sl_json_bool(place, above, name, &flag, r->error);
        *number = flag;
        return found(code);
    default:
        code = sl_json_string(place, above, name, &text, r->error);
        *word = sl_view_of(text);
        return found(code);
    }
}

static int choose(const reader *r, const sl_config_field *field, const char *key, sl_view word,
                  double *number) {
    for (const sl_field_choice *choice = field->choices; choice->word; choice++) {
        if (sl_view_is(word, choice->word)) {
            *number = choice->value;
            return 0;
        }
    }
    return sl_fail(r->error, SL_ERR_UNSUPPORTED, "%s: %s is \"%.*s\", which is not supported", r->file, key,
                   (int)(word.length < 64 ? word.length : 64), word.data);
}

static void store(sl_config_raw *raw, const sl_config_field *field, double number) {
    unsigned char *at = (unsigned char *)raw + field->offset;
    if (field->type == SL_FIELD_REAL) {
        *(double *)(void *)at = number;
    } else if (field->type == SL_FIELD_BOOL) {
        *(bool *)(void *)at = number != 0;
    } else {
        *(int32_t *)(void *)at = (int32_t)number;
    }
}

/* One key of a field's list. */
static int read_key(const reader *r, const sl_config_field *field, const char *key) {
    double number = 0;
    sl_view word = {NULL, 0};
    const int code =
        r->gguf ? gguf_value(r, field, key, &number, &word) : hf_value(r, field, key, &number, &word);
    if (code <= 0) {
        return code;
    }
    const int refused = field->type == SL_FIELD_CHOICE
                            ? choose(r, field, key, word, &number)
                            : sl_config_check_range(field, number, r->file, key, r->error);
    if (refused) {
        return refused;
    }
    store(r->raw, field, number);
    return 1;
}

static int read_field(const reader *r, const sl_config_field *field) {
    const char *keys = field->key[r->raw->config.naming];
    int code = 0;
    while (keys && *keys && code == 0) {
        const size_t length = strcspn(keys, "|");
        char key[KEY_SIZE];
        if (r->gguf) {
            snprintf(key, sizeof key, "%s.%.*s", r->family->gguf, (int)length, keys);
        } else {
            snprintf(key, sizeof key, "%.*s", (int)length, keys);
        }
        code = read_key(r, field, key);
        keys += length + (keys[length] == '|');
    }
    return code < 0 ? code : 0;
}

/* ---- keys that would change what is computed, with the one value that is built ---- */

typedef struct refusal {
    const char *key[SL_NAMING_COUNT]; /* ^: from the root */
    double built;
    const char *text;
} refusal;

static const refusal REFUSALS[] = {
    {{NULL, "use_bidirectional_attention"}, 0, "bidirectional attention is not supported"},
    {{"attention.causal", "is_causal"}, 1, "attention that is not causal is not supported"},
    {{NULL, "attn_output_gate"}, 1, "attention without its output gate is not supported"},
    {{"expert_shared_count", "n_shared_experts"}, 0, "shared experts are not supported"},
    {{"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
     0,
     "shared experts are not supported"},
    {{"expert_group_count", "n_group"}, 0, "grouped experts are not supported"},
    {{"expert_gating_func", NULL}, 1, "expert gating other than softmax is not supported"},
    {{"attention.clamp_kqv", "clip_qkv"}, 0, "clamping of query, key and value is not supported"},
    {{"rope.scale_linear", NULL}, 1, "the old key of linear RoPE scaling is not supported"},
    {{"rope.scaling.attn_factor", NULL}, 1, "this scaling of RoPE's sine and cosine is not supported"},
    {{"rope.scaling.yarn_attn_factor", "rope_parameters.mscale"},
     1,
     "this scaling of RoPE's sine and cosine is not supported"},
    {{"rope.scaling.yarn_log_multiplier", "rope_scaling.mscale"},
     0,
     "this scaling of RoPE's sine and cosine is not supported"},
    {{"rope.scaling.yarn_ext_factor", "rope_parameters.truncate"}, 1, "this form of YaRN is not supported"},
    {{NULL, "rope_scaling.truncate"}, 1, "this form of YaRN is not supported"},
    {{"attention.shared_kv_layers", "num_kv_shared_layers"},
     0,
     "layers that share keys and values are not supported"},
    {{"embedding_length_per_layer_input", "hidden_size_per_layer_input"},
     0,
     "per-layer embeddings are not supported"},
    {{"logit_scale", "logits_scaling"}, 1, "scaling of logits is not supported"},
    {{"residual_scale", "residual_multiplier"}, 1, "scaling of the residual is not supported"},
    {{"embedding_scale", "embedding_multiplier"}, 1, "this scaling of embeddings is not supported"},
};

static bool gguf_differs(const reader *r, const char *key, double built) {
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key);
    if (!entry) {
        return false;
    }
    if (entry->type == SL_GGUF_F32 || entry->type == SL_GGUF_F64) {
        return sl_gguf_item_f64(entry, 0) != built;
    }
    if (entry->type == SL_GGUF_STRING) {
        return true;
    }
    for (uint64_t i = 0; i < entry->count; i++) {
        if ((double)sl_gguf_item_i64(entry, i) != built) {
            return true;
        }
    }
    return false;
}

static bool hf_differs(const reader *r, const char *path, double built) {
    char prefix[KEY_SIZE];
    const json_t *root = *path == '^' ? r->root : r->text;
    snprintf(prefix, sizeof prefix, "%s", path + (*path == '^'));
    char *dot = strrchr(prefix, '.');
    if (dot) {
        *dot = '\0';
    }
    const json_t *value = sl_json_find(root, dot ? prefix : NULL, dot ? dot + 1 : prefix);
    if (!value) {
        return false;
    }
    return json_is_boolean(value) ? json_is_true(value) != (built != 0)
                                  : !json_is_number(value) || json_number_value(value) != built;
}

static int refuse_unbuilt(const reader *r) {
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        const char *name = REFUSALS[i].key[r->raw->config.naming];
        char key[KEY_SIZE];
        if (!name) {
            continue;
        }
        snprintf(key, sizeof key, "%s%s%s", r->gguf ? r->family->gguf : "", r->gguf ? "." : "", name);
        if (r->gguf ? gguf_differs(r, key, REFUSALS[i].built) : hf_differs(r, key, REFUSALS[i].built)) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED, "%s: %s: %s", r->file, key + (*key == '^'),
                           REFUSALS[i].text);
        }
    }
    return 0;
}

/* ---- layer kinds ---- */

static sl_layer_kind pattern_kind(const sl_config_raw *raw, int32_t layer) {
    const sl_config *config = &raw->config;
    const bool last_of_period = (layer + 1) % raw->period == 0;
    switch (config->family->pattern) {
    case SL_PATTERN_DELTA_PERIOD:
        return last_of_period ? SL_LAYER_FULL : SL_LAYER_DELTA;
    case SL_PATTERN_WINDOW_PERIOD:
        return last_of_period || config->window == 0 ? SL_LAYER_FULL : SL_LAYER_WINDOW;
    case SL_PATTERN_WINDOW_SWITCH:
        return config->window > 0 && layer >= raw->window_from ? SL_LAYER_WINDOW : SL_LAYER_FULL;
    default:
        return config->window > 0 ? SL_LAYER_WINDOW : SL_LAYER_FULL;
    }
}

/* layer_types of config.json, one word per layer. */
static int hf_layer_types(const reader *r, const json_t *types) {
    static const sl_field_choice words[] = {{"full_attention", SL_LAYER_FULL},
                                            {"sliding_attention", SL_LAYER_WINDOW},
                                            {"linear_attention", SL_LAYER_DELTA},
                                            {NULL, 0}};
    const sl_config_field field = {.type = SL_FIELD_CHOICE, .choices = words};
    sl_config *config = &r->raw->config;
    if (!json_is_array(types) || json_array_size(types) != (size_t)config->layers) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: layer_types must be an array of num_hidden_layers (%d) words", r->file,
                       config->layers);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const char *word = json_string_value(json_array_get(types, (size_t)layer));
        double kind;
        char key[KEY_SIZE];
        snprintf(key, sizeof key, "layer_types[%d]", layer);
        const int code = choose(r, &field, key, sl_view_of(word ? word : ""), &kind);
        if (code) {
            return code;
        }
        config->kinds[layer] = (uint8_t)kind;
    }
    return 0;
}

/* GGUF's arrays with a truth value per layer, or a period. */
static int gguf_layer_types(const reader *r) {
    sl_config *config = &r->raw->config;
    const bool delta = r->family->pattern == SL_PATTERN_DELTA_PERIOD;
    if (!delta && r->family->pattern != SL_PATTERN_WINDOW_PERIOD) {
        return 0;
    }
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "%s.attention.%s", r->family->gguf,
             delta ? "recurrent_layers" : "sliding_window_pattern");
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key);
    if (!entry) {
        return 0;
    }
    if (entry->type != SL_GGUF_ARRAY && !delta) {
        const sl_config_field field = {
            offsetof(sl_config_raw, period), SL_FIELD_INT, {NULL, NULL}, 1, SL_CONFIG_LAYERS, NULL};
        const int code = read_key(r, &field, key);
        if (code < 0) {
            return code;
        }
        for (int32_t layer = 0; layer < config->layers; layer++) {
            config->kinds[layer] = (uint8_t)pattern_kind(r->raw, layer);
        }
        return 0;
    }
    /* Draft layers behind the model's own may be counted too. */
    if (entry->type != SL_GGUF_ARRAY || entry->count < (uint64_t)config->layers ||
        entry->item_type == SL_GGUF_STRING) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: %s must be an array with a truth value for each of %d layers", r->file, key,
                       config->layers);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->kinds[layer] = (uint8_t)(sl_gguf_item_i64(entry, (uint64_t)layer) == 0 ? SL_LAYER_FULL
                                         : delta                                       ? SL_LAYER_DELTA
                                                                                       : SL_LAYER_WINDOW);
    }
    return 0;
}

/* In which layers config.json puts a dense feed-forward in place of experts. */
static int hf_dense_layers(const reader *r) {
    sl_config *config = &r->raw->config;
    uint64_t step = 1;
    const int code =
        found(sl_json_u64((sl_json_place){r->text, r->file}, NULL, "decoder_sparse_step", &step, r->error));
    if (code < 0) {
        return code;
    }
    if (step == 0 || step > SL_CONFIG_LAYERS) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: decoder_sparse_step is %llu, must be 1 to %d", r->file,
                       (unsigned long long)step, SL_CONFIG_LAYERS);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->dense[layer] = (uint64_t)(layer + 1) % step != 0;
    }
    const json_t *only = sl_json_find(r->text, NULL, "mlp_only_layers");
    if (only && !json_is_array(only)) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: mlp_only_layers must be an array", r->file);
    }
    for (size_t i = 0; only && i < json_array_size(only); i++) {
        const json_t *item = json_array_get(only, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= config->layers) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: mlp_only_layers[%zu] is not a layer (0 to %d)",
                           r->file, i, config->layers - 1);
        }
        config->dense[json_integer_value(item)] = true;
    }
    return 0;
}

static int layer_kinds(const reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (r->family->pattern == SL_PATTERN_WINDOW_SWITCH) {
        /* A GGUF file does not say whether its window is in use. */
        if (r->gguf && config->window > 0 && config->window < config->context) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                           "%s: %s.attention.sliding_window is %d, and the file does not say in which layers",
                           r->file, r->family->gguf, config->window);
        }
        config->window = raw->use_window && !r->gguf ? config->window : 0;
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->kinds[layer] = (uint8_t)pattern_kind(raw, layer);
    }
    if (r->gguf) {
        return gguf_layer_types(r);
    }
    const json_t *types = sl_json_find(r->text, NULL, "layer_types");
    int code = types ? hf_layer_types(r, types) : 0;
    if (code == 0 && config->experts > 0) {
        code = hf_dense_layers(r);
    }
    return code;
}

/* ---- what follows from what was read ---- */

static bool gguf_has(const reader *r, sl_tensor_id id, int32_t layer) {
    sl_tensor_fact fact;
    char name[SL_TENSOR_NAME_SIZE];
    sl_config_tensor(&r->raw->config, id, layer, &fact);
    sl_tensor_name(fact.gguf, layer, 0, name);
    return sl_gguf_tensor(r->gguf, name) != NULL;
}

/* Facts that only the tensors of a GGUF file tell. */
static void derive_from_tensors(const reader *r) {
    sl_config *config = &r->raw->config;
    const sl_tensor *embed = sl_gguf_tensor(r->gguf, "token_embd.weight");
    if (embed && embed->dim_count == 2 && embed->dims[1] <= 1 << 23) {
        config->vocabulary = (int32_t)embed->dims[1];
    }
    config->tied = !gguf_has(r, SL_TENSOR_HEAD, 0);
    config->rope_factors = gguf_has(r, SL_TENSOR_ROPE_FACTORS, 0);
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->query_bias |= gguf_has(r, SL_TENSOR_QUERY_BIAS, layer);
        config->output_bias |= gguf_has(r, SL_TENSOR_OUTPUT_BIAS, layer);
        config->mlp_bias |= gguf_has(r, SL_TENSOR_UP_BIAS, layer);
    }
}

static void derive_sizes(const reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (config->kv_heads == 0) {
        config->kv_heads = config->heads;
    }
    if (config->head_size == 0 && config->heads > 0) {
        config->head_size = config->width / config->heads;
    }
    if (config->rope_dims == 0) {
        config->rope_dims = (int32_t)(config->head_size * raw->rope_part);
    }
    if (config->rope.original_context == 0 && config->rope.scaling == SL_ROPE_SCALING_YARN) {
        config->rope.original_context = config->context;
    }
    if (!r->family->local_rope) {
        config->local_rope = config->rope;
    }
    if (config->expert_scale == 0) { /* GGUF's way of saying 1 */
        config->expert_scale = 1;
    }
    if (config->delta_value_size == 0 && config->delta_value_heads > 0) {
        config->delta_value_size = raw->delta_values / config->delta_value_heads;
    }
    double scalar = raw->query_scalar;
    if (r->gguf && config->layers == r->family->gguf_wide_scale_layers && config->heads > 0) {
        scalar = config->width / config->heads;
    }
    config->attention_scale =
        raw->attention_scale > 0 ? raw->attention_scale : 1 / sqrt(scalar > 0 ? scalar : config->head_size);
    if (raw->attention_bias) {
        config->query_bias = config->output_bias = true;
    }
}

static int derive(const reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (config->layers <= raw->draft_layers) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: block_count (%d) must exceed nextn_predict_layers (%d)",
                       r->file, config->layers, raw->draft_layers);
    }
    config->layers -= raw->draft_layers;
    derive_sizes(r);
    if (raw->value_size != 0 && raw->value_size != config->head_size) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: %s.attention.value_length (%d) differs from key_length (%d): not supported",
                       r->file, r->family->gguf, raw->value_size, config->head_size);
    }
    if (raw->delta_values % (config->delta_value_heads > 0 ? config->delta_value_heads : 1) != 0) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: %s.ssm.inner_size (%d) must be a multiple of ssm.time_step_rank (%d)", r->file,
                       r->family->gguf, raw->delta_values, config->delta_value_heads);
    }
    const int code = layer_kinds(r);
    if (code) {
        return code;
    }
    if (r->gguf) {
        derive_from_tensors(r);
        config->delta_tiled = r->family->delta;
    }
    return 0;
}

/* Required: a field whose default is out of its range. */
static int check_required(const reader *r) {
    static const size_t required[] = {offsetof(sl_config, layers), offsetof(sl_config, width),
                                      offsetof(sl_config, heads), offsetof(sl_config, context),
                                      offsetof(sl_config, vocabulary)};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        const sl_config *config = &r->raw->config;
        char key[SL_TENSOR_NAME_SIZE];
        if (*(const int32_t *)(const void *)((const unsigned char *)config + required[i]) == 0 &&
            !(r->gguf && required[i] == offsetof(sl_config, vocabulary))) {
            sl_config_key(config, sl_config_field_at(required[i]), key);
            return sl_fail(r->error, SL_ERR_INVALID, "%s: %s is missing", r->file, key);
        }
    }
    return 0;
}

static int read_all(reader *r, sl_config *config) {
    sl_config_raw raw = {.rope_part = 1, .use_window = false, .window_from = 28};
    sl_config_init(&raw.config, r->family, r->gguf ? SL_NAMING_GGUF : SL_NAMING_HF);
    raw.period = r->family->period ? r->family->period : 1;
    if (!r->gguf) {
        raw.rope_part = r->family->hf_rope_part;
        raw.query_scalar = r->family->hf_query_scalar;
    }
    r->raw = &raw;
    int code = refuse_unbuilt(r);
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT && code == 0; i++) {
        code = read_field(r, &SL_CONFIG_FIELDS[i]);
    }
    if (r->family->hf_query_scalar == 0) { /* the key of another family, left behind */
        raw.query_scalar = 0;
    }
    code = code ? code : check_required(r);
    code = code ? code : derive(r);
    code = code ? code : sl_config_check(&raw.config, r->file, r->error);
    if (code == 0) {
        *config = raw.config;
    }
    return code;
}

static int find_gguf_family(reader *r) {
    sl_view name, type;
    int code = sl_gguf_string(r->gguf, "general.type", &type, r->error);
    if (code == 0 && !sl_view_is(type, "model")) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: general.type is \"%.*s\": no model by itself, so it cannot run", r->file,
                       (int)(type.length < 64 ? type.length : 64), type.data);
    }
    if (code == 0 || code == SL_ERR_NOT_FOUND) {
        code = sl_gguf_string(r->gguf, "general.architecture", &name, r->error);
    }
    if (code) {
        return code;
    }
    r->family = sl_family_of_gguf(name);
    if (!r->family) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: general.architecture is \"%.*s\": this family is not known, so it cannot run",
                       r->file, (int)(name.length < 64 ? name.length : 64), name.data);
    }
    return 0;
}

static int find_hf_family(reader *r) {
    const char *type = NULL;
    const int code = sl_json_string((sl_json_place){r->root, r->file}, NULL, "model_type", &type, r->error);
    if (code) {
        return code;
    }
    r->family = sl_family_of_hf(sl_view_of(type));
    if (!r->family) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: model_type is \"%.64s\": this family is not known, so it cannot run", r->file,
                       type);
    }
    const json_t *text = sl_json_find(r->root, NULL, "text_config");
    if (text && !json_is_object(text)) {
        return sl_fail(r->error, SL_ERR_FORMAT, "%s: 'text_config' must be an object", r->file);
    }
    r->text = text ? text : r->root;
    return 0;
}

int sl_config_read(const sl_source *source, sl_config *config, sl_error *error) {
    char file[512];
    reader r = {.gguf = sl_source_gguf(source), .error = error};
    if (r.gguf) {
        r.file = sl_source_path(source);
    } else {
        snprintf(file, sizeof file, "%s/config.json", sl_source_path(source));
        r.file = file;
        r.root = sl_hf_config(sl_source_hf(source));
        r.text = r.root;
    }
    sl_hf_quantization quantization; /* the binder's: here only what is not supported is refused */
    int code = r.gguf ? find_gguf_family(&r) : find_hf_family(&r);
    code = code || r.gguf ? code : sl_hf_read_quantization(sl_source_hf(source), &quantization, error);
    return code ? code : read_all(&r, config);
}
