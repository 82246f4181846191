/* Configs from GGUF metadata and from config.json. */
#include "format/quantization.h"
#include "model/config_reader.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

enum { KEY_SIZE = SL_TENSOR_NAME_SIZE };

/* ---- look-ups: 1 found, 0 absent, negative on error ---- */

static int found(int code) {
    return code == 0 ? 1 : code == SL_ERR_NOT_FOUND ? 0 : code;
}

/* A per-layer array stands for its one value when all are equal, or for its largest where they may differ. It
 * may count draft layers or not. */
static int gguf_layers(const sl_config_reader *r, const char *key, bool may_differ, int64_t *value) {
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
        if (may_differ) {
            const int64_t item = sl_gguf_item_i64(entry, i);
            *value = item > *value ? item : *value;
        } else if (sl_gguf_item_i64(entry, i) != *value) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                           "%s: %s differs between layers (%lld, %lld): not supported", r->file, key,
                           (long long)*value, (long long)sl_gguf_item_i64(entry, i));
        }
    }
    return 1;
}

static int gguf_value(const sl_config_reader *r, const sl_config_field *field, const char *key,
                      double *number, sl_view *word) {
    int64_t integer = 0;
    bool flag = false;
    int code;
    switch (field->type) {
    case SL_FIELD_INT:
    case SL_FIELD_LAYERS:
        code = gguf_layers(r, key, field->type == SL_FIELD_LAYERS, &integer);
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

/* The same of config.json: a list with a number for each layer, all equal. */
static int hf_integer(const sl_json_place *place, const char *above, const char *name, uint64_t *value,
                      sl_error *error) {
    const json_t *list = sl_json_find(place->root, above, name);
    if (!json_is_array(list)) {
        return found(sl_json_u64(*place, above, name, value, error));
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            (i > 0 && (uint64_t)json_integer_value(item) != *value)) {
            return sl_fail(error, SL_ERR_UNSUPPORTED,
                           "%s: %s is a list of other than equal numbers: not supported", place->file, name);
        }
        *value = (uint64_t)json_integer_value(item);
    }
    return json_array_size(list) > 0;
}

static int hf_value(const sl_config_reader *r, const sl_config_field *field, const char *key, double *number,
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
    case SL_FIELD_LAYERS:
        code = hf_integer(&place, above, name, &integer, r->error);
        *number = (double)integer;
        return code;
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

static int choose(const sl_config_reader *r, const sl_config_field *field, const char *key, sl_view word,
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
static int read_key(const sl_config_reader *r, const sl_config_field *field, const char *key) {
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

/* What layer_types says goes before a period, which some files write as a word ("LLLG"). */
static bool is_superseded(const sl_config_reader *r, const sl_config_field *field) {
    return field->offset == offsetof(sl_config_raw, period) && !r->gguf &&
           json_is_array(sl_json_find(r->text, NULL, "layer_types"));
}

static int read_field(const sl_config_reader *r, const sl_config_field *field) {
    const char *keys = field->key[r->raw->config.naming];
    int code = 0;
    if (is_superseded(r, field)) {
        return 0;
    }
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
    const char *word; /* of a config.json, that is built too; NULL: none */
} refusal;

static const refusal REFUSALS[] = {
    {{NULL, "use_bidirectional_attention"}, 0, "bidirectional attention is not supported", "vision"},
    {{"attention.causal", "is_causal"}, 1, "attention that is not causal is not supported", NULL},
    {{NULL, "mamba_proj_bias"}, 0, "biases of Mamba2's projections are not supported", NULL},
    {{NULL, "projectors_bias"}, 0, "biases of Mamba2's projections are not supported", NULL},
    {{NULL, "mamba_hidden_act"}, 0, "only silu is supported in Mamba2", "silu"},
    {{NULL, "attn_output_gate"}, 1, "attention without its output gate is not supported", NULL},
    {{"attention.clamp_kqv", "clip_qkv"}, 0, "clamping of query, key and value is not supported", NULL},
    {{NULL, "rope_interleave"}, 1, "RoPE of halves is not supported in this family", NULL},
    {{NULL, "use_expert_bias"}, 1, "this router without its bias is not supported", NULL},
    {{NULL, "conv_bias"}, 0, "biases of short convolutions are not supported", NULL},
    {{"rope.scale_linear", NULL}, 1, "the old key of linear RoPE scaling is not supported", NULL},
    {{"rope.scaling.yarn_ext_factor", NULL}, 1, "this form of YaRN is not supported", NULL},
};

static bool gguf_differs(const sl_config_reader *r, const char *key, double built) {
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

static bool hf_differs(const sl_config_reader *r, const char *path, const refusal *refused) {
    const double built = refused->built;
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
    if (refused->word && json_is_string(value)) {
        return strcmp(json_string_value(value), refused->word) != 0;
    }
    return json_is_boolean(value) ? json_is_true(value) != (built != 0)
                                  : !json_is_number(value) || json_number_value(value) != built;
}

static int refuse_unbuilt(const sl_config_reader *r) {
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        const char *name = REFUSALS[i].key[r->raw->config.naming];
        char key[KEY_SIZE];
        if (!name || (r->family->both_sides && strstr(name, "causal")) ||
            (!r->family->latent && strstr(name, "interleave")) ||
            (r->family->hf_both_sides && strstr(name, "bidirectional"))) {
            continue;
        }
        snprintf(key, sizeof key, "%s%s%s", r->gguf ? r->family->gguf : "", r->gguf ? "." : "", name);
        if (r->gguf ? gguf_differs(r, key, REFUSALS[i].built) : hf_differs(r, key, &REFUSALS[i])) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED, "%s: %s: %s", r->file, key + (*key == '^'),
                           REFUSALS[i].text);
        }
    }
    return 0;
}

/* ---- layer kinds ---- */

static sl_layer_kind pattern_kind(const sl_config_raw *raw, int32_t layer) {
    const sl_config *config = &raw->config;
    const bool last_of_period =
        (layer + 1) % raw->period == 0 || (config->family->last_full && layer == config->layers - 1);
    switch (config->family->pattern) {
    case SL_PATTERN_SSM_LISTED:
        return SL_LAYER_SSM;
    case SL_PATTERN_DELTA_PERIOD:
        return last_of_period ? SL_LAYER_FULL : SL_LAYER_DELTA;
    case SL_PATTERN_WINDOW_PERIOD:
        return last_of_period || config->window == 0 ? SL_LAYER_FULL : SL_LAYER_WINDOW;
    case SL_PATTERN_WINDOW_TURNED:
        return config->no_rope[layer] ? SL_LAYER_FULL : SL_LAYER_WINDOW;
    case SL_PATTERN_WINDOW_UNTURNED:
        return config->window > 0 && config->no_rope[layer] ? SL_LAYER_WINDOW : SL_LAYER_FULL;
    case SL_PATTERN_WINDOW_SWITCH:
        return config->window > 0 && layer >= raw->window_from ? SL_LAYER_WINDOW : SL_LAYER_FULL;
    default:
        return config->window > 0 ? SL_LAYER_WINDOW : SL_LAYER_FULL;
    }
}

/* SmolLM3: 1 or true for layers that rotate. Absent, and in GGUF files: all but every fourth. */
static int listed_rope(const sl_config_reader *r) {
    enum { INTERVAL = 4 };
    sl_config *config = &r->raw->config;
    const json_t *list = r->gguf ? NULL : sl_json_find(r->text, NULL, "no_rope_layers");
    uint64_t interval = INTERVAL;
    const sl_json_place place = {r->text, r->file};
    const int code =
        r->gguf ? 0 : found(sl_json_u64(place, NULL, "no_rope_layer_interval", &interval, r->error));
    if (code < 0) {
        return code;
    }
    if (interval == 0) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: no_rope_layer_interval is 0", r->file);
    }
    if (json_is_null(list) || (json_is_array(list) && json_array_size(list) == 0)) {
        list = NULL;
    }
    if (list && (!json_is_array(list) || json_array_size(list) < (size_t)config->layers)) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: no_rope_layers must be an array of num_hidden_layers (%d) numbers", r->file,
                       config->layers);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const json_t *item = list ? json_array_get(list, (size_t)layer) : NULL;
        if (item && !json_is_boolean(item) && !json_is_integer(item)) {
            return sl_fail(r->error, SL_ERR_FORMAT, "%s: no_rope_layers[%d] must be 0 or 1", r->file, layer);
        }
        config->no_rope[layer] =
            item ? json_is_false(item) || (json_is_integer(item) && json_integer_value(item) == 0)
                 : (uint64_t)(layer + 1) % interval == 0;
    }
    return 0;
}

/* The list of layers: what transformers 5 writes, and what families with layers of one block call it. */
static const json_t *hf_layer_list(const sl_config_reader *r) {
    const json_t *types = sl_json_find(r->text, NULL, "layer_types");
    return types || !r->family->ssm ? types : sl_json_find(r->text, NULL, "layers_block_type");
}

/* The same as a letter for each layer. */
static const char *hf_layer_letters(const sl_config_reader *r) {
    const json_t *letters =
        r->family->one_block ? sl_json_find(r->text, NULL, "hybrid_override_pattern") : NULL;
    return json_string_value(letters);
}

static int hf_layers_by_letter(const sl_config_reader *r, const char *letters) {
    sl_config *config = &r->raw->config;
    if (strlen(letters) != (size_t)config->layers) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: hybrid_override_pattern must have num_hidden_layers (%d) letters", r->file,
                       config->layers);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const char letter = letters[layer];
        if (!strchr("M*-E", letter)) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                           "%s: hybrid_override_pattern has \"%c\": only M, *, - and E are supported",
                           r->file, letter);
        }
        config->kinds[layer] = (uint8_t)(letter == 'M'   ? SL_LAYER_SSM
                                         : letter == '*' ? SL_LAYER_FULL
                                                         : SL_LAYER_FEED_FORWARD);
        config->dense[layer] |= letter == '-' && config->experts > 0;
    }
    return 0;
}

/* layer_types of config.json, one word per layer. */
static int hf_layer_types(const sl_config_reader *r, const json_t *types) {
    static const sl_field_choice words[] = {{"full_attention", SL_LAYER_FULL},
                                            {"sliding_attention", SL_LAYER_WINDOW},
                                            {"chunked_attention", SL_LAYER_WINDOW},
                                            {"attention", SL_LAYER_FULL},
                                            {"linear_attention", SL_LAYER_DELTA},
                                            {"mamba", SL_LAYER_SSM},
                                            {"hybrid", SL_LAYER_FULL},
                                            {"mlp", SL_LAYER_FEED_FORWARD},
                                            {"moe", SL_LAYER_FEED_FORWARD},
                                            {"conv", SL_LAYER_CONV},
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
        const bool chunked = word && strcmp(word, "chunked_attention") == 0;
        if ((sl_layer_kind)kind == SL_LAYER_WINDOW && chunked != (r->family->chunk > 0)) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                           "%s: %s is \"%s\", which is not supported in this family", r->file, key, word);
        }
        const bool mamba = r->family->ssm && (sl_layer_kind)kind == SL_LAYER_DELTA; /* transformers 5 */
        config->kinds[layer] = (uint8_t)(mamba ? SL_LAYER_SSM : (sl_layer_kind)kind);
        config->dense[layer] |= config->experts > 0 && word && strcmp(word, "mlp") == 0;
    }
    return 0;
}

/* A number that GGUF may have for each layer; `otherwise` when the key is absent. */
static int64_t gguf_of_layer(const sl_config_reader *r, const char *name, int32_t layer, int64_t otherwise) {
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "%s.%s", r->family->gguf, name);
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key); /* long enough: gguf_layers */
    const uint64_t index = entry && entry->type == SL_GGUF_ARRAY ? (uint64_t)layer : 0;
    return entry ? sl_gguf_item_i64(entry, index) : otherwise;
}

static bool gguf_has(const sl_config_reader *r, sl_tensor_id id, int32_t layer);

/* Layers of GGUF files that attend have heads of keys; a feed-forward has a width. */
static void gguf_ssm_layers(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const bool attends = gguf_of_layer(r, "attention.head_count_kv", layer, 1) > 0;
        const bool feeds = r->family->one_block && gguf_of_layer(r, "feed_forward_length", layer, 0) > 0;
        config->kinds[layer] = (uint8_t)(feeds     ? SL_LAYER_FEED_FORWARD
                                         : attends ? SL_LAYER_FULL
                                                   : SL_LAYER_SSM);
        config->dense[layer] = feeds && config->experts > 0 && !gguf_has(r, SL_TENSOR_ROUTER, layer);
    }
}

/* Older configs of LFM2: the numbers of the layers that attend; absent, all do. */
static int hf_attending_layers(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const json_t *list = sl_json_find(r->text, NULL, "full_attn_idxs");
    if (!list || json_is_null(list) || r->family->pattern != SL_PATTERN_CONV_LISTED) {
        return 0;
    }
    if (!json_is_array(list)) {
        return sl_fail(r->error, SL_ERR_FORMAT, "%s: full_attn_idxs must be an array", r->file);
    }
    memset(config->kinds, SL_LAYER_CONV, (size_t)config->layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= config->layers) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: full_attn_idxs[%zu] is not a layer (0 to %d)",
                           r->file, i, config->layers - 1);
        }
        config->kinds[json_integer_value(item)] = SL_LAYER_FULL;
    }
    return 0;
}

/* Layers without key heads are short convolutions. The array is long enough: gguf_layers. */
static void gguf_conv_layers(const sl_config_reader *r) {
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "%s.attention.head_count_kv", r->family->gguf);
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key);
    for (int32_t layer = 0; entry && entry->type == SL_GGUF_ARRAY && layer < r->raw->config.layers; layer++) {
        if (sl_gguf_item_i64(entry, (uint64_t)layer) == 0) {
            r->raw->config.kinds[layer] = SL_LAYER_CONV;
        }
    }
}

/* GGUF's arrays with a truth value per layer, or a period. */
static int gguf_layer_types(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const bool delta = r->family->pattern == SL_PATTERN_DELTA_PERIOD;
    if (r->family->pattern == SL_PATTERN_SSM_LISTED) {
        gguf_ssm_layers(r);
        return 0;
    }
    if (r->family->pattern == SL_PATTERN_CONV_LISTED) {
        gguf_conv_layers(r);
    }
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

/* A step of layers with experts, the last of which is one; 1 when the key is absent. */
static int hf_sparse_step(const sl_config_reader *r, const char *key, uint64_t *step) {
    *step = 1;
    const int code = found(sl_json_u64((sl_json_place){r->text, r->file}, NULL, key, step, r->error));
    if (code < 0) {
        return code;
    }
    return *step > 0 && *step <= SL_CONFIG_LAYERS
               ? 0
               : sl_fail(r->error, SL_ERR_INVALID, "%s: %s is %llu, must be 1 to %d", r->file, key,
                         (unsigned long long)*step, SL_CONFIG_LAYERS);
}

/* mlp_layer_types of config.json, one word per layer, says it all. */
static int hf_listed_dense(const sl_config_reader *r, const json_t *types) {
    static const sl_field_choice words[] = {{"sparse", false}, {"dense", true}, {NULL, 0}};
    const sl_config_field field = {.type = SL_FIELD_CHOICE, .choices = words};
    sl_config *config = &r->raw->config;
    if (!json_is_array(types) || json_array_size(types) != (size_t)config->layers) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: mlp_layer_types must be an array of num_hidden_layers (%d) words", r->file,
                       config->layers);
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        const char *word = json_string_value(json_array_get(types, (size_t)layer));
        double dense;
        char key[KEY_SIZE];
        snprintf(key, sizeof key, "mlp_layer_types[%d]", layer);
        const int code = choose(r, &field, key, sl_view_of(word ? word : ""), &dense);
        if (code) {
            return code;
        }
        config->dense[layer] = dense != 0;
    }
    return 0;
}

/* In which layers config.json puts a dense feed-forward in place of experts. */
static int hf_dense_layers(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const json_t *types = sl_json_find(r->text, NULL, "mlp_layer_types");
    if (types && !json_is_null(types)) {
        return hf_listed_dense(r, types);
    }
    uint64_t step, interval;
    const json_t *end = sl_json_find(r->text, NULL, "moe_layer_end_index"); /* -1: the last layer */
    int code = hf_sparse_step(r, "decoder_sparse_step", &step);
    code = code ? code : hf_sparse_step(r, "moe_layer_interval", &interval);
    if (code) {
        return code;
    }
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->dense[layer] |=
            (uint64_t)(layer + 1) % step != 0 || (uint64_t)(layer + 1) % interval != 0 ||
            (json_is_integer(end) && json_integer_value(end) >= 0 && layer > json_integer_value(end));
    }
    const json_t *sparse = r->family->sparse_steps ? sl_json_find(r->text, NULL, "moe_layers") : NULL;
    if (json_is_array(sparse)) {
        return sl_config_listed_sparse(r, sparse);
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

static int layer_kinds(const sl_config_reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (r->family->rope_layers == SL_ROPE_LAYERS_LISTED) {
        const int listed = listed_rope(r);
        if (listed) {
            return listed;
        }
    }
    if (r->family->pattern == SL_PATTERN_WINDOW_SWITCH || r->family->pattern == SL_PATTERN_WINDOW_UNTURNED) {
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
    for (int32_t layer = 0; layer < config->layers && config->experts > 0; layer++) {
        config->dense[layer] =
            layer < raw->leading_dense ||
            (r->family->sparse_steps && raw->sparse_step > 0 && (layer + 1) % raw->sparse_step != 0);
    }
    if (r->gguf) {
        return gguf_layer_types(r);
    }
    const json_t *types = hf_layer_list(r);
    const char *letters = hf_layer_letters(r);
    int code = types     ? hf_layer_types(r, types)
               : letters ? hf_layers_by_letter(r, letters)
                         : hf_attending_layers(r);
    if (code == 0 && config->experts > 0) {
        code = hf_dense_layers(r);
    }
    return code;
}

/* Where a window is declared, layers without it do not rotate; or a file says that none does. */
static void still_layers(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const char *type =
        r->gguf ? NULL : json_string_value(sl_json_find(r->text, NULL, "position_embedding_type"));
    const bool turns = r->gguf ? r->raw->turns : type && strcmp(type, "rope") == 0;
    const bool none = r->family->rope_layers == SL_ROPE_LAYERS_NONE ||
                      (r->family->rope_layers == SL_ROPE_LAYERS_ASKED && !turns);
    for (int32_t layer = 0; none && layer < config->layers; layer++) {
        config->no_rope[layer] = true;
    }
    for (int32_t layer = 0; r->family->rope_layers == SL_ROPE_LAYERS_WINDOWED && layer < config->layers;
         layer++) {
        config->no_rope[layer] = config->window > 0 && config->kinds[layer] == SL_LAYER_FULL;
    }
}

/* ---- RoPE's scaling ---- */

/* One of LongRoPE's lists, a number above 0 for each pair. */
static int read_factors(const sl_config_reader *r, const json_t *rope, const char *name, float *factors) {
    const json_t *list = json_object_get(rope, name);
    const size_t pairs = (size_t)r->raw->config.rope_dims / 2;
    if (!json_is_array(list) || json_array_size(list) != pairs || pairs > SL_ROPE_PAIRS_MOST) {
        return sl_fail(r->error, SL_ERR_FORMAT,
                       "%s: %s must be an array of %zu numbers, one for each pair that turns (at most %d)",
                       r->file, name, pairs, SL_ROPE_PAIRS_MOST);
    }
    for (size_t i = 0; i < pairs; i++) {
        const json_t *item = json_array_get(list, i);
        factors[i] = json_is_number(item) ? (float)json_number_value(item) : 0;
        if (!(factors[i] > 0) || !isfinite(factors[i])) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: %s[%zu] must be a number above 0", r->file, name,
                           i);
        }
    }
    return 0;
}

/* Microsoft's LongRoPE: two lists of divisors; the magnitude grows with the stretch of the context. */
static int hf_longrope(const sl_config_reader *r) {
    static const struct {
        const char *above, *name;
    } places[] = {{"rope_parameters", "full_attention"}, {NULL, "rope_parameters"}, {NULL, "rope_scaling"}};
    sl_config *config = &r->raw->config;
    const json_t *rope = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !json_is_object(rope); i++) {
        rope = sl_json_find(r->text, places[i].above, places[i].name);
    }
    int code = read_factors(r, rope, "short_factor", config->short_factors);
    code = code ? code : read_factors(r, rope, "long_factor", config->long_factors);
    if (config->rope.original_context == 0) {
        config->rope.original_context = config->context;
    }
    if (config->rope.original_context < 2) { /* its logarithm divides */
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: original_max_position_embeddings is %d: LongRoPE needs an original context of at "
                       "least 2",
                       r->file, config->rope.original_context);
    }
    const double original = config->rope.original_context;
    const bool given = json_is_number(json_object_get(rope, "factor"));
    const double stretch = given ? config->rope.factor : config->context / original;
    if (code == 0 && config->rope.attention_factor == 0) {
        config->rope.attention_factor =
            stretch > 1 && original > 1 ? sqrt(1 + log(stretch) / log(original)) : 1;
    }
    return code;
}

/* rope_type "dynamic" with an alpha (Hunyuan) is a larger base. Without, it would change with the text. */
static int larger_base(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    if (!r->family->rope_alpha || r->raw->rope_alpha <= 0 || config->head_size <= 2) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: rope_parameters.rope_type is \"dynamic\", which is not supported", r->file);
    }
    const double size = config->head_size;
    config->rope.base *= pow(r->raw->rope_alpha, size / (size - 2));
    config->rope.scaling = SL_ROPE_SCALING_NONE;
    return 0;
}

/* A file's keys of scaling made into what is computed with. */
static int derive_rope(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    sl_rope_config *rope = &config->rope;
    rope->exact = config->local_rope.exact = !r->raw->truncate;
    if (rope->original_context == 0 && rope->scaling == SL_ROPE_SCALING_YARN) {
        rope->original_context = config->context;
    }
    int code = 0;
    if (rope->scaling == SL_ROPE_SCALING_DYNAMIC) {
        code = larger_base(r);
    } else if (rope->scaling == SL_ROPE_SCALING_LONGROPE && !r->gguf) {
        code = hf_longrope(r);
    }
    if (r->gguf && r->family->latent) { /* the files have no key for the other, which is the same then */
        rope->mscale_all /= SL_LATENT_LOG_MULTIPLIER;
        rope->mscale = rope->mscale_all;
    } else if (r->gguf && rope->mscale_all > 0) { /* and 1 otherwise */
        rope->mscale = 1;
    }
    if (r->gguf && rope->scaling == SL_ROPE_SCALING_YARN && r->raw->rope_multiplier != 1) {
        rope->attention_factor = r->raw->rope_multiplier * (double)sl_rope_magnitude(rope);
    } else if (r->gguf && rope->scaling == SL_ROPE_SCALING_LONGROPE) {
        rope->attention_factor = r->raw->rope_multiplier;
    } else if (r->gguf && code == 0 && r->raw->rope_multiplier != 1) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: %s.rope.scaling.attn_factor: this scaling of RoPE's sine and cosine is not "
                       "supported",
                       r->file, r->family->gguf);
    }
    if (r->family->latent) {
        config->attention_scale *= sl_rope_latent_scale(rope);
    }
    if (config->temperature_scale > 0 && config->temperature_length == 0) {
        config->temperature_length = rope->original_context;
    }
    if (r->family->local_rope == SL_LOCAL_ROPE_SAME) {
        config->local_rope = *rope;
    } else if (config->local_rope.base == 0) {
        config->local_rope.base = rope->base;
    }
    return code;
}

/* ---- sizes that differ between layers ---- */

/* The value that all layers of a kind have: the first one's; the others must agree. */
static int by_kind(const sl_config_reader *r, const char *key, sl_layer_kind kind, const int64_t *values,
                   int32_t *result) {
    const sl_config *config = &r->raw->config;
    int64_t value = 0;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        if (config->kinds[layer] != kind) {
            continue;
        }
        if (value != 0 && values[layer] != value) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                           "%s: %s differs between layers of one kind (%lld, %lld): not supported", r->file,
                           key, (long long)value, (long long)values[layer]);
        }
        if (values[layer] < 1 || values[layer] > 1 << 12) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: %s is %lld in layer %d, must be 1 to %d", r->file,
                           key, (long long)values[layer], layer, 1 << 12);
        }
        value = values[layer];
    }
    *result = (int32_t)value;
    return 0;
}

/* values [layers], by layer: of full layers into *full, of windowed ones into *window. */
static int split_kinds(const sl_config_reader *r, const char *key, const int64_t *values, int32_t *full,
                       int32_t *window) {
    int32_t of_full = 0, of_window = 0;
    int code = by_kind(r, key, SL_LAYER_FULL, values, &of_full);
    code = code ? code : by_kind(r, key, SL_LAYER_WINDOW, values, &of_window);
    *full = of_full ? of_full : of_window;
    *window = of_full ? of_window : 0;
    return code;
}

static int gguf_layer_sizes(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    int64_t values[SL_CONFIG_LAYERS];
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "%s.attention.head_count_kv", r->family->gguf);
    const sl_gguf_entry *entry = sl_gguf_find(r->gguf, key);
    if (entry && entry->type == SL_GGUF_ARRAY) { /* long enough: gguf_layers */
        for (int32_t layer = 0; layer < config->layers; layer++) {
            values[layer] = sl_gguf_item_i64(entry, (uint64_t)layer);
        }
        const int code = split_kinds(r, key, values, &config->kv_heads, &config->window_kv_heads);
        if (code) {
            return code;
        }
    }
    snprintf(key, sizeof key, "%s.feed_forward_length", r->family->gguf);
    entry = sl_gguf_find(r->gguf, key);
    for (int32_t layer = 0; entry && entry->type == SL_GGUF_ARRAY && layer < config->layers; layer++) {
        const int64_t width = sl_gguf_item_i64(entry, (uint64_t)layer);
        if (width < 0 || width > config->feed_forward) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: %s is %lld in layer %d", r->file, key,
                           (long long)width, layer);
        }
        config->feed_forwards[layer] = (int32_t)width;
    }
    return 0;
}

/* What transformers 5.15 and later write for layers that differ: {"05": {"head_dim": 512, ...}, ...}. `base`:
 * what the others have. */
static int hf_layer_overrides(const sl_config_reader *r, const char *name, int32_t base, int64_t *values,
                              bool *found_any) {
    const json_t *overrides = sl_json_find(r->text, NULL, "per_layer_config");
    const char *layer_text;
    json_t *one;
    for (int32_t layer = 0; layer < r->raw->config.layers; layer++) {
        values[layer] = base;
    }
    if (overrides && !json_is_object(overrides)) {
        return sl_fail(r->error, SL_ERR_FORMAT, "%s: per_layer_config must be an object", r->file);
    }
    json_object_foreach((json_t *)overrides, layer_text, one) {
        char *end;
        const long layer = strtol(layer_text, &end, 10);
        if (*end != '\0' || end == layer_text || layer < 0 || layer >= r->raw->config.layers) {
            return sl_fail(r->error, SL_ERR_INVALID, "%s: per_layer_config has \"%.40s\", which is no layer",
                           r->file, layer_text);
        }
        const json_t *value = json_object_get(one, name);
        if (json_is_integer(value)) {
            values[layer] = json_integer_value(value);
            *found_any = true;
        }
    }
    return 0;
}

static int hf_layer_sizes(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    int64_t values[SL_CONFIG_LAYERS];
    bool found_any = false, doubled = false;
    int code = hf_layer_overrides(r, "head_dim", config->window_head_size, values, &found_any);
    if (code == 0 && found_any) {
        code = split_kinds(r, "per_layer_config", values, &config->head_size, &config->window_head_size);
    }
    found_any = false;
    code = code ? code : hf_layer_overrides(r, "num_key_value_heads", config->kv_heads, values, &found_any);
    if (code == 0 && found_any) {
        code = split_kinds(r, "per_layer_config", values, &config->kv_heads, &config->window_kv_heads);
    } else if (code == 0 && config->key_is_value && r->raw->global_kv_heads > 0) {
        config->window_kv_heads = config->kv_heads;
        config->kv_heads = r->raw->global_kv_heads;
    }
    code = code ? code
                : found(sl_json_bool((sl_json_place){r->text, r->file}, NULL, "use_double_wide_mlp", &doubled,
                                     r->error));
    for (int32_t layer = 0; code >= 0 && doubled && layer < config->layers; layer++) {
        const bool shares = layer >= config->layers - config->shared_kv;
        config->feed_forwards[layer] = shares ? 2 * config->feed_forward : config->feed_forward;
    }
    return code < 0 ? code : 0;
}

/* Sizes of windowed layers that are those of the others are no fact of their own. */
static void derive_windows(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const bool windows = memchr(config->kinds, SL_LAYER_WINDOW, (size_t)config->layers) != NULL;
    const int32_t size = config->window_head_size > 0 ? config->window_head_size : config->head_size;
    if (config->window_rope_dims == 0 && size != config->head_size) {
        config->window_rope_dims = (int32_t)(size * r->raw->rope_part);
    }
    if (!windows || config->window_head_size == config->head_size) {
        config->window_head_size = 0;
    }
    if (!windows || config->window_kv_heads == config->kv_heads) {
        config->window_kv_heads = 0;
    }
    if (!windows || config->window_rope_dims == config->rope_dims) {
        config->window_rope_dims = 0;
    }
}

/* ---- what follows from what was read ---- */

static bool gguf_has(const sl_config_reader *r, sl_tensor_id id, int32_t layer) {
    sl_tensor_fact fact;
    char name[SL_TENSOR_NAME_SIZE];
    sl_config_tensor(&r->raw->config, id, layer, &fact);
    sl_tensor_name(fact.gguf, layer, 0, name);
    return sl_gguf_tensor(r->gguf, name) != NULL;
}

/* Facts that only the tensors of a GGUF file tell. */
static void derive_from_tensors(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const sl_tensor *embed = sl_gguf_tensor(r->gguf, "token_embd.weight");
    if (embed && embed->dim_count == 2 && embed->dims[1] <= 1 << 23) {
        config->vocabulary = (int32_t)embed->dims[1];
    }
    config->tied = !gguf_has(r, SL_TENSOR_HEAD, 0);
    const sl_tensor *types = sl_gguf_tensor(r->gguf, "token_types.weight");
    config->token_types = types && types->dims[1] <= 1 << 16 ? (int32_t)types->dims[1] : 0;
    config->rope_factors = gguf_has(r, SL_TENSOR_ROPE_FACTORS, 0);
    config->fused_qkv = r->family->fused_qkv && gguf_has(r, SL_TENSOR_QKV, 0);
    config->fused_gate_up = r->family->fused_gate_up && !gguf_has(r, SL_TENSOR_GATE, 0);
    for (int32_t layer = 0; r->family->key_may_be_value && layer < config->layers; layer++) {
        config->key_is_value |= config->kinds[layer] == SL_LAYER_FULL && sl_config_has_keys(config, layer) &&
                                !gguf_has(r, SL_TENSOR_VALUE, layer);
    }
    config->ssm_conv_bias = config->ssm_norm = false;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->ssm_conv_bias |= gguf_has(r, SL_TENSOR_SSM_CONV_BIAS, layer);
        config->ssm_norm |= gguf_has(r, SL_TENSOR_SSM_NORM, layer);
        config->query_bias |= gguf_has(r, SL_TENSOR_QUERY_BIAS, layer);
        config->output_bias |= gguf_has(r, SL_TENSOR_OUTPUT_BIAS, layer);
        config->mlp_bias |= gguf_has(r, SL_TENSOR_UP_BIAS, layer);
        config->query_norm |= r->family->query_norm_asked && gguf_has(r, SL_TENSOR_QUERY_NORM, layer);
    }
    if (r->family->query_norm_plain) {
        config->query_norm = config->experts != r->family->gguf_unnormed_experts;
    }
}

/* Files of one architecture have a choosing bias or not. Those that have none are DeepSeek V2's and its like:
 * a group of experts counts its best one. */
static void derive_choosing_bias(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    if (!r->gguf || !r->family->choosing_bias_asked) {
        return;
    }
    config->choosing_bias = false;
    for (int32_t layer = 0; layer < config->layers; layer++) {
        config->choosing_bias |= gguf_has(r, SL_TENSOR_CHOOSING_BIAS, layer);
    }
    config->router = config->choosing_bias ? SL_ROUTER_SIGMOID : SL_ROUTER_SOFTMAX;
    config->group_by_best = !config->choosing_bias;
}

/* Of the experts, after the keys were read. */
static int derive_experts(const sl_config_reader *r) {
    static const sl_router_kind kinds[] = {SL_ROUTER_SOFTMAX, SL_ROUTER_SIGMOID}; /* 1 and 2 in GGUF */
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (r->family->hf_expert_width && (!r->gguf || config->expert_width == 0)) {
        config->expert_width = config->experts > 0 || !r->gguf ? config->feed_forward : 0;
    }
    if (r->family->hf_expert_width && !r->gguf && raw->dense_width > 0) {
        config->feed_forward = raw->dense_width;
    }
    if (r->family->shared_is_dense && config->experts == 0) {
        config->feed_forward = config->shared_width > 0 ? config->shared_width : config->feed_forward;
        config->shared_width = config->experts_used = config->expert_width = 0;
    }
    if (config->shared_width == 0) {
        const int64_t width = (int64_t)raw->shared_experts * config->expert_width;
        config->shared_width = width <= 1 << 22 ? (int32_t)width : 0;
    }
    derive_choosing_bias(r);
    if (!r->gguf && r->family->group_by_best && raw->group_method == SL_TOP_BIASED) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: topk_method is \"noaux_tc\", which is not supported in this family", r->file);
    }
    if (!r->gguf && r->family->group_by_best && raw->group_method != SL_TOP_GROUPS) {
        config->expert_groups = 1;
    }
    config->expert_groups += config->expert_groups == 0;
    if (config->expert_groups == 1 || config->expert_groups_used == 0) {
        config->expert_groups_used = 1;
    }
    if (config->expert_scale == 0) { /* GGUF's way of saying 1 */
        config->expert_scale = 1;
    }
    if (raw->gating > (int32_t)(sizeof kinds / sizeof *kinds)) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: %s.expert_gating_func is %d: only 1 (softmax) and 2 (sigmoid) are supported",
                       r->file, r->family->gguf, raw->gating);
    }
    config->router = raw->gating > 0 ? (int32_t)kinds[raw->gating - 1] : config->router;
    return 0;
}

/* LFM2's feed-forward is two thirds as wide as its config says, times a factor, rounded up; transformers does
 * not round where the factor is null. */
static int adjust_width(const sl_config_reader *r) {
    const sl_config_raw *raw = r->raw;
    sl_config *config = &r->raw->config;
    if (r->gguf || !r->family->hf_adjusted_width) {
        return 0;
    }
    config->feed_forward = raw->block_width > 0 ? raw->block_width : config->feed_forward;
    if (!raw->adjusts_width) {
        return 0;
    }
    const int32_t two_thirds = 2 * config->feed_forward / 3;
    const double wanted = two_thirds * raw->width_multiplier;
    if (json_is_null(json_object_get(r->text, "block_ffn_dim_multiplier"))) {
        config->feed_forward = two_thirds;
        return 0;
    }
    if (wanted > 1 << 22) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: block_ffn_dim_multiplier is %g: too wide", r->file,
                       raw->width_multiplier);
    }
    const int32_t multiple = raw->width_multiple;
    config->feed_forward = ((int32_t)wanted + multiple - 1) / multiple * multiple;
    return 0;
}

/* What encoders always have, and how they say it. */
static int derive_encoder(const sl_config_reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    const json_t *asked = r->gguf ? NULL : sl_json_find(r->text, NULL, "use_bidirectional_attention");
    config->both_sides = r->family->both_sides || (r->family->hf_both_sides && json_is_true(asked));
    if (config->both_sides && !r->family->encoder && config->window > 0) {
        config->window =
            config->window / 2 + 1; /* transformers' Gemma3TextConfig; llama.cpp's symmetric window */
    }
    if (!r->family->encoder) {
        return 0;
    }
    config->query_bias = config->output_bias = config->mlp_bias = config->tied = true;
    config->context -= sl_config_position_offset(config);
    const char *positions = NULL;
    if (!r->gguf &&
        sl_json_string((sl_json_place){r->text, r->file}, NULL, "position_embedding_type", &positions,
                       NULL) == 0 &&
        strcmp(positions, "absolute") != 0) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: position_embedding_type is \"%.40s\"; only \"absolute\" is supported", r->file,
                       positions);
    }
    return config->context >= 1 ? 0
                                : sl_fail(r->error, SL_ERR_INVALID,
                                          "%s: max_position_embeddings leaves no "
                                          "positions",
                                          r->file);
}

/* Of latent attention. Files that were made before llama.cpp knew it have the sizes of queries and values
 * where the others have those of the cache. */
static void derive_latent(const sl_config_reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (!r->family->latent) { /* another family's keys */
        config->latent = config->query_rank = 0;
        return;
    }
    config->kv_heads = 1;
    config->value_size = raw->latent_value_size;
    if (!r->gguf) {
        config->rope_dims = raw->turning_part;
        config->head_size = raw->key_part + config->rope_dims;
    } else if (raw->latent_head_size > 0) {
        config->head_size = raw->latent_head_size;
    } else {
        config->value_size = raw->value_size;
    }
    raw->value_size = 0;
    config->latent_epsilon = r->gguf ? config->epsilon : config->latent_epsilon;
    config->latent_joined = !r->gguf || gguf_has(r, SL_TENSOR_LATENT_UP, 0);
}

/* What scores are multiplied by. */
static double derive_scale(const sl_config_reader *r) {
    const sl_config *config = &r->raw->config;
    double scalar = r->raw->query_scalar;
    if (r->gguf && config->layers == r->family->gguf_wide_scale_layers && config->heads > 0) {
        scalar = config->width / config->heads;
    }
    return r->raw->attention_scale > 0      ? r->raw->attention_scale
           : r->family->attention_scale > 0 ? r->family->attention_scale
                                            : 1 / sqrt(scalar > 0 ? scalar : config->head_size);
}

/* One of time_step_limit's two numbers. Infinity is an object in what transformers 5 writes, and a very large
 * number as the reader of JSON gives the word: beyond floats all are infinite. */
static double step_limit(const json_t *item) {
    const char *word = json_string_value(json_is_object(item) ? json_object_get(item, "__float__") : item);
    if (word) {
        return strcmp(word, "Infinity") == 0 ? INFINITY : NAN;
    }
    const double number = json_is_number(item) ? json_number_value(item) : NAN;
    return number > FLT_MAX ? INFINITY : number;
}

static int derive_steps(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    const json_t *limits = r->gguf ? NULL : sl_json_find(r->text, NULL, "time_step_limit");
    if (!r->family->ssm || !limits || json_is_null(limits)) {
        return 0;
    }
    config->step_least = json_array_size(limits) == 2 ? step_limit(json_array_get(limits, 0)) : NAN;
    config->step_most = json_array_size(limits) == 2 ? step_limit(json_array_get(limits, 1)) : NAN;
    return isnan(config->step_least) || isnan(config->step_most)
               ? sl_fail(r->error, SL_ERR_FORMAT, "%s: time_step_limit must be an array of two numbers",
                         r->file)
               : 0;
}

static void derive_sizes(const sl_config_reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (config->kv_heads == 0) {
        config->kv_heads = config->heads;
    }
    derive_latent(r);
    if (config->head_size == 0 && config->heads > 0) {
        config->head_size = config->width / config->heads;
    }
    if (!r->family->query_norm_asked) { /* another family's key */
        config->query_norm = r->family->query_norm;
    }
    if (config->rope_dims == 0) {
        config->rope_dims = raw->rotary_dims;
    }
    if (config->rope_dims == 0) {
        config->rope_dims = (int32_t)(config->head_size * raw->rope_part);
    }
    if (config->branch_factor == 0) { /* GGUF's way of saying 1 */
        config->branch_factor = 1;
    }
    if ((r->family->layer_norm || r->family->encoder) && raw->layer_epsilon > 0) {
        config->epsilon = raw->layer_epsilon;
    }
    if (r->family->activation == SL_ACTIVATION_SWIGLU_OAI) {
        config->activation = SL_ACTIVATION_SWIGLU_OAI; /* what hidden_act names is a part of it */
    }
    if (config->delta_value_size == 0 && config->delta_value_heads > 0) {
        config->delta_value_size = raw->delta_values / config->delta_value_heads;
    }
    config->attention_scale = derive_scale(r);
    if (raw->attention_bias || raw->all_bias) {
        config->query_bias = true;
        config->output_bias |= !r->family->no_output_bias;
        config->mlp_bias |= raw->all_bias;
    }
}

/* What multiplies logits is kept as what divides them. */
static int derive_logits(const sl_config_reader *r) {
    sl_config *config = &r->raw->config;
    if (r->family->logit_factor == 0) {
        return 0;
    }
    if (config->logit_divisor < 1e-6) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: %s%slogit_scale is %.10g, must be at least 1e-06",
                       r->file, r->gguf ? r->family->gguf : "", r->gguf ? "." : "", config->logit_divisor);
    }
    config->logit_divisor = 1 / config->logit_divisor;
    return 0;
}

static int derive(const sl_config_reader *r) {
    sl_config_raw *raw = r->raw;
    sl_config *config = &raw->config;
    if (config->layers <= raw->draft_layers) {
        return sl_fail(r->error, SL_ERR_INVALID, "%s: block_count (%d) must exceed nextn_predict_layers (%d)",
                       r->file, config->layers, raw->draft_layers);
    }
    config->layers -= raw->draft_layers;
    /* The tensors of a head may be there or not, whatever the keys say: the binder looks. */
    config->draft_layers = r->family->drafts && config->layers < SL_CONFIG_LAYERS;
    if (!raw->mixture) {
        config->experts = config->experts_used = config->expert_width = 0;
        config->shared_width = config->latent_width = raw->shared_experts = 0;
        config->expert_groups = 1;
    }
    config->key_is_value = config->key_is_value && r->family->key_may_be_value;
    int code = derive_experts(r);
    code = code ? code : derive_logits(r);
    code = code ? code : layer_kinds(r);
    code = code ? code : adjust_width(r);
    code = code ? code : r->gguf ? gguf_layer_sizes(r) : hf_layer_sizes(r);
    if (code) {
        return code;
    }
    still_layers(r);
    code = derive_steps(r);
    code = code ? code : sl_config_derive_xielu(r);
    if (code) {
        return code;
    }
    derive_sizes(r);
    sl_config_derive_temperature(r);
    code = sl_config_derive_factors(r);
    if (code) {
        return code;
    }
    if (r->gguf && gguf_has(r, SL_TENSOR_ROPE_LONG, 0)) {
        config->rope.scaling = SL_ROPE_SCALING_LONGROPE;
    }
    code = derive_rope(r);
    if (code) {
        return code;
    }
    derive_windows(r);
    code = derive_encoder(r);
    if (code) {
        return code;
    }
    if (raw->value_size != 0 && raw->value_size != config->head_size) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: %s.attention.value_length (%d) differs from key_length (%d): not supported",
                       r->file, r->family->gguf, raw->value_size, config->head_size);
    }
    if (raw->window_value_size != 0 && config->window_head_size != 0 &&
        raw->window_value_size != config->window_head_size) {
        return sl_fail(
            r->error, SL_ERR_UNSUPPORTED,
            "%s: %s.attention.value_length_swa (%d) differs from key_length_swa (%d): not supported", r->file,
            r->family->gguf, raw->window_value_size, config->window_head_size);
    }
    if (raw->delta_values % (config->delta_value_heads > 0 ? config->delta_value_heads : 1) != 0) {
        return sl_fail(r->error, SL_ERR_INVALID,
                       "%s: %s.ssm.inner_size (%d) must be a multiple of ssm.time_step_rank (%d)", r->file,
                       r->family->gguf, raw->delta_values, config->delta_value_heads);
    }
    if (r->gguf) {
        derive_from_tensors(r);
        config->delta_tiled = r->family->gguf_tiled;
    }
    return 0;
}

/* Required: a field whose default is out of its range. */
static int check_required(const sl_config_reader *r) {
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

static int read_all(sl_config_reader *r, sl_config *config) {
    sl_config_raw raw = {.rope_part = 1,
                         .rope_multiplier = 1,
                         .mixture = true,
                         .use_window = false,
                         .window_from = 28,
                         .turns = true};
    sl_config_init(&raw.config, r->family, r->gguf ? SL_NAMING_GGUF : SL_NAMING_HF);
    raw.period = r->family->period ? r->family->period : 1;
    raw.truncate = !r->family->exact_yarn;
    raw.shared_experts = r->family->shared_experts;
    if (!r->gguf && r->family->ssm) { /* transformers 5 writes the list alone */
        raw.config.layers = (int32_t)json_array_size(hf_layer_list(r));
    }
    raw.mixture = r->family->experts || !r->family->with_experts;
    raw.adjusts_width = true;
    raw.width_multiplier = 1;
    raw.sparse_step = 1;
    raw.chunk_size = r->family->chunk;
    raw.still_temperature = r->family->still_temperature;
    raw.still_length = r->family->still_length;
    raw.attention_in = raw.attention_out = raw.ssm_in = raw.ssm_out = raw.key_factor = raw.logit_factor = 1;
    raw.width_multiple = 256;
    if (r->family->logit_factor > 0) {
        raw.config.logit_divisor = r->gguf ? 1 : r->family->logit_factor;
    }
    if (!r->gguf) {
        raw.rope_part = r->family->hf_rope_part;
        raw.query_scalar = r->family->hf_query_scalar;
        raw.attention_bias = r->family->hf_attention_bias;
        raw.leading_dense = r->family->hf_leading_dense;
    }
    if (r->family->local_rope == SL_LOCAL_ROPE_UNSCALED) {
        raw.config.local_rope.base = 0;
    }
    r->raw = &raw;
    int code = refuse_unbuilt(r);
    for (int i = 0; i < SL_CONFIG_FIELD_COUNT && code == 0; i++) {
        code = read_field(r, &SL_CONFIG_FIELDS[i]);
    }
    if (r->family->chunk > 0 && !r->gguf) {
        const bool none = json_is_null(json_object_get(r->text, "attention_chunk_size"));
        raw.config.window = none ? 0 : raw.chunk_size;
    } else if (!r->gguf && json_is_null(json_object_get(r->text, "sliding_window"))) {
        raw.config.window = 0;
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
    r->raw = NULL;
    return code;
}

static int find_gguf_family(sl_config_reader *r) {
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

static int find_hf_family(sl_config_reader *r) {
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
    const sl_json_place place = {r->text, r->file};
    const char *text_type = type;
    const int named = text ? sl_json_string(place, NULL, "model_type", &text_type, r->error) : 0;
    if (named && named != SL_ERR_NOT_FOUND) {
        return named;
    }
    r->family = named ? r->family : sl_family_of_hf(sl_view_of(text_type));
    if (!r->family) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: text_config.model_type is \"%.64s\": this family is not known, so it cannot run",
                       r->file, text_type);
    }
    return 0;
}

/* Some layer has experts. */
static bool hf_lists_experts(const sl_config_reader *r) {
    const json_t *types = hf_layer_list(r);
    const char *letters = hf_layer_letters(r);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *word = json_string_value(json_array_get(types, i));
        if (word && strcmp(word, "moe") == 0) {
            return true;
        }
    }
    return !types && letters && strchr(letters, 'E');
}

int sl_config_read(const sl_source *source, sl_config *config, sl_error *error) {
    char file[512];
    sl_config_reader r = {.source = source, .gguf = sl_source_gguf(source), .error = error};
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
    if (code == 0 && !r.gguf && r.family->with_experts && hf_lists_experts(&r)) {
        r.family = sl_family_find(r.family->with_experts);
    }
    code = code || r.gguf ? code : sl_hf_read_quantization(sl_source_hf(source), &quantization, error);
    return code ? code : read_all(&r, config);
}
