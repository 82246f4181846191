#include "format/quantization.h"

#include <string.h>

#define ROOT "quantization_config"
enum {
    BLOCK_LIMIT = 1 << 20,
    CODES_OF_A_BLOCK = 128,  /* what a block of columns must be a multiple of */
    COLUMNS_OF_INTEGERS = 32 /* likewise a group of columns */
};

/* Where a rule is checked: an object of the config, and its path in messages. */
typedef struct part {
    sl_json_place place; /* of the object */
    const char *path;
    sl_error *error;
} part;

static int refuse(const part *p, const char *key, const char *value, const char *rule) {
    return sl_fail(p->error, SL_ERR_UNSUPPORTED, "%s: '%s.%s' is %.40s, %s", p->place.file, p->path, key,
                   value, rule);
}

/* A value as messages show it. */
static const char *shown(const json_t *value, char text[64]) {
    if (json_is_string(value)) {
        const char *string = json_string_value(value);
        size_t length = 0;
        text[length++] = '"';
        for (; *string && length < 40; string++) {
            text[length++] = *string >= 0x20 && *string < 0x7f ? *string : '?';
        }
        text[length++] = '"';
        text[length] = '\0';
        return text;
    }
    if (json_is_integer(value)) {
        snprintf(text, 64, "%lld", (long long)json_integer_value(value));
        return text;
    }
    return json_is_true(value) ? "true" : json_is_false(value) ? "false" : "of another type";
}

/* The key may be missing where `needed` is false; otherwise it is one of the words, of which a NULL is the
 * last. */
static int expect_word(const part *p, const char *key, bool needed, const char *const *words,
                       const char *rule) {
    char text[64];
    const json_t *value = sl_json_find(p->place.root, NULL, key);
    if (!value) {
        return needed ? refuse(p, key, "missing", rule) : 0;
    }
    for (; *words; words++) {
        if (json_is_string(value) && strcmp(json_string_value(value), *words) == 0) {
            return 0;
        }
    }
    return refuse(p, key, shown(value, text), rule);
}

/* Missing, null, or an object or array with nothing in it. */
static int expect_nothing(const part *p, const char *key, const char *rule) {
    char text[64];
    const json_t *value = sl_json_find(p->place.root, NULL, key);
    const bool empty = !value || (json_is_object(value) && json_object_size(value) == 0) ||
                       (json_is_array(value) && json_array_size(value) == 0);
    return empty ? 0 : refuse(p, key, shown(value, text), rule);
}

/* Missing, null or `wanted`. */
static int expect_bool(const part *p, const char *key, bool wanted, const char *rule) {
    char text[64];
    const json_t *value = sl_json_find(p->place.root, NULL, key);
    return !value || (json_is_boolean(value) && json_is_true(value) == wanted)
               ? 0
               : refuse(p, key, shown(value, text), rule);
}

/* Rows and columns that share a scale. */
static int read_block(const part *p, const char *key, sl_hf_quantization *q) {
    const json_t *value = sl_json_find(p->place.root, NULL, key);
    uint64_t sizes[2];
    if (!value) {
        return 0;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(value, i);
        if (json_array_size(value) != 2 || !json_is_integer(item) || json_integer_value(item) < 1 ||
            json_integer_value(item) > BLOCK_LIMIT) {
            return sl_fail(p->error, SL_ERR_FORMAT, "%s: '%s.%s' must be two integers from 1 to %d",
                           p->place.file, p->path, key, BLOCK_LIMIT);
        }
        sizes[i] = (uint64_t)json_integer_value(item);
    }
    if (sizes[1] % CODES_OF_A_BLOCK != 0) {
        return sl_fail(p->error, SL_ERR_UNSUPPORTED,
                       "%s: '%s.%s' has blocks of %llu columns, must be a multiple of %d", p->place.file,
                       p->path, key, (unsigned long long)sizes[1], CODES_OF_A_BLOCK);
    }
    if (q->block_rows && (q->block_rows != sizes[0] || q->block_columns != sizes[1])) {
        return sl_fail(p->error, SL_ERR_UNSUPPORTED, "%s: '%s.%s': all blocks must be of one size",
                       p->place.file, p->path, key);
    }
    q->block_rows = sizes[0];
    q->block_columns = sizes[1];
    return 0;
}

/* ---- the methods ---- */

static int read_fp8(const part *p, sl_hf_quantization *q) {
    static const char *const formats[] = {"e4m3", "float8_e4m3fn", NULL};
    const int code = expect_word(p, "fmt", false, formats, "only \"e4m3\" is supported");
    return code ? code : read_block(p, "weight_block_size", q);
}

/* Columns that share a scale of integers: *group becomes 0 for the whole row. */
static int read_group(const part *p, bool needed, uint64_t *group) {
    char text[64];
    const json_t *value = sl_json_find(p->place.root, NULL, "group_size");
    const json_int_t size = json_is_integer(value) ? json_integer_value(value) : 0;
    *group = 0;
    if ((!value && !needed) || size == -1) {
        return 0;
    }
    if (size < COLUMNS_OF_INTEGERS || size > BLOCK_LIMIT || size % COLUMNS_OF_INTEGERS != 0) {
        return refuse(p, "group_size", value ? shown(value, text) : "missing",
                      "only -1 and multiples of 32 are supported");
    }
    *group = (uint64_t)size;
    return 0;
}

/* The key is one of two numbers of bits; *bits becomes which. */
static int read_bits(const part *p, const char *key, const json_int_t allowed[2], const char *rule,
                     int32_t *bits) {
    char text[64];
    const json_t *value = sl_json_find(p->place.root, NULL, key);
    const json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;
    *bits = (int32_t)number;
    return number == allowed[0] || number == allowed[1]
               ? 0
               : refuse(p, key, value ? shown(value, text) : "missing", rule);
}

/* `weights` of a group of modules, in floats. */
static int read_float_weights(const part *p, bool four, sl_hf_quantization *q) {
    static const char *const strategies_8[] = {"tensor", "channel", "block", NULL};
    static const char *const strategies_4[] = {"tensor_group", "group", NULL};
    char text[64];
    const json_t *group = sl_json_find(p->place.root, NULL, "group_size");
    int code = 0;
    if (group && !(four && json_is_integer(group) && json_integer_value(group) == 16)) {
        code = refuse(p, "group_size", shown(group, text), "only 16 of 4 bits are supported");
    }
    code = code ? code
                : expect_word(p, "strategy", false, four ? strategies_4 : strategies_8,
                              "this is not supported for weights of so many bits");
    code = code ? code : expect_bool(p, "symmetric", true, "zero points are not supported");
    return code ? code : read_block(p, "block_structure", q);
}

/* The same in integers; how many bits and columns is told by the tensors' shapes. */
static int read_integer_weights(const part *p, bool four, sl_hf_quantization *q) {
    static const char *const strategies[] = {"group", "channel", "tensor", NULL};
    static const char *const orders[] = {"static", "weight", NULL};
    uint64_t group;
    q->integers = true;
    int code = expect_word(p, "strategy", false, strategies, "this is not supported for weights of integers");
    code = code ? code : read_group(p, false, &group);
    code = code ? code : expect_word(p, "actorder", false, orders, "columns must be in their own order");
    return code || four ? code : expect_bool(p, "symmetric", true, "zero points of 8 bits are not supported");
}

/* `weights` of a group of modules. */
static int read_weights(const part *p, sl_hf_quantization *q) {
    static const char *const types[] = {"float", "int", NULL};
    static const json_int_t allowed[2] = {8, 4};
    const char *type = json_string_value(sl_json_find(p->place.root, NULL, "type"));
    int32_t bits = 0;
    int code = expect_word(p, "type", true, types, "only \"float\" and \"int\" are supported");
    code = code ? code : read_bits(p, "num_bits", allowed, "only 8 and 4 are supported", &bits);
    code = code ? code : expect_bool(p, "dynamic", false, "weights must have scales of their own");
    if (code) {
        return code;
    }
    return strcmp(type, "int") == 0 ? read_integer_weights(p, bits == 4, q)
                                    : read_float_weights(p, bits == 4, q);
}

static int read_groups(const part *p, sl_hf_quantization *q) {
    const json_t *groups = sl_json_find(p->place.root, NULL, "config_groups"), *group;
    const char *name;
    if (groups && !json_is_object(groups)) {
        return sl_fail(p->error, SL_ERR_FORMAT, "%s: '%s.config_groups' must be an object", p->place.file,
                       p->path);
    }
    json_object_foreach((json_t *)(uintptr_t)groups, name, group) {
        const json_t *weights = sl_json_find(group, NULL, "weights");
        const part inner = {{weights, p->place.file}, ROOT ".config_groups.*.weights", p->error};
        const int code = weights ? read_weights(&inner, q) : 0;
        if (code) {
            return code;
        }
    }
    return 0;
}

static int read_compressed(const part *p, sl_hf_quantization *q) {
    static const char *const formats[] = {"float-quantized", "nvfp4-pack-quantized", "pack-quantized",
                                          "int-quantized",   "mixed-precision",      NULL};
    static const char *const done[] = {"compressed", NULL};
    static const char *const dense[] = {"dense", NULL};
    const json_t *sparsity = sl_json_find(p->place.root, NULL, "sparsity_config");
    const part inner = {{sparsity, p->place.file}, ROOT ".sparsity_config", p->error};
    int code = expect_word(p, "format", true, formats,
                           "only \"float-quantized\", \"nvfp4-pack-quantized\", \"pack-quantized\", "
                           "\"int-quantized\" and \"mixed-precision\" are supported");
    code =
        code ? code : expect_word(p, "quantization_status", false, done, "only \"compressed\" is supported");
    code = code ? code : expect_nothing(p, "transform_config", "transforms are not supported");
    code = code || !sparsity
               ? code
               : expect_word(&inner, "format", false, dense, "sparse weights are not supported");
    return code ? code : read_groups(p, q);
}

static int expect_algorithm(const part *p) {
    static const char *const algorithms[] = {"FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION", NULL};
    return expect_word(p, "quant_algo", true, algorithms,
                       "only \"FP8\", \"NVFP4\", \"W4A16_NVFP4\" and \"MIXED_PRECISION\" are supported");
}

/* FP8 has no groups, and what stands there then means nothing. */
static int expect_group(const part *p) {
    char text[64];
    const json_t *group = sl_json_find(p->place.root, NULL, "group_size");
    const char *algorithm = json_string_value(sl_json_find(p->place.root, NULL, "quant_algo"));
    return !group || (algorithm && strcmp(algorithm, "FP8") == 0) ||
                   (json_is_integer(group) && json_integer_value(group) == 16)
               ? 0
               : refuse(p, "group_size", shown(group, text), "only 16 is supported");
}

static int read_modelopt(const part *p, sl_hf_quantization *q) {
    int code = expect_algorithm(p);
    code = code ? code : expect_group(p);
    return code ? code : read_groups(p, q);
}

/* Rules for modules of some names: those that leave modules out are told by their tensors. */
static int expect_exclusions(const part *p) {
    const json_t *rules = sl_json_find(p->place.root, NULL, "dynamic"), *rule;
    const char *name;
    char text[64];
    if (rules && !json_is_object(rules)) {
        return refuse(p, "dynamic", shown(rules, text), "must be an object");
    }
    json_object_foreach((json_t *)(uintptr_t)rules, name, rule) {
        if (strncmp(name, "-:", 2) != 0) {
            return refuse(p, "dynamic", "of rules for some modules",
                          "only those that leave modules out (\"-:\") are supported");
        }
    }
    return 0;
}

/* GPTQModel has `format` beside AutoGPTQ's `checkpoint_format`. */
static int read_gptq_format(const part *p, const char *key, sl_hf_quantization *q) {
    static const char *const formats[] = {"gptq", "gptq_v2", NULL};
    const char *format = json_string_value(sl_json_find(p->place.root, NULL, key));
    q->zeros_less_one = q->zeros_less_one && !(format && strcmp(format, "gptq_v2") == 0);
    return expect_word(p, key, false, formats, "only \"gptq\" and \"gptq_v2\" are supported");
}

static int expect_words_of_32(const part *p) {
    static const char *const types[] = {"int32", NULL};
    return expect_word(p, "pack_dtype", false, types, "only \"int32\" is supported");
}

static int read_gptq(const part *p, sl_hf_quantization *q) {
    static const json_int_t allowed[2] = {8, 4};
    q->words = SL_HF_WORDS_GPTQ;
    q->zeros_less_one = true;
    q->symmetric = !json_is_false(sl_json_find(p->place.root, NULL, "sym"));
    int code = read_bits(p, "bits", allowed, "only 8 and 4 are supported", &q->bits);
    code = code ? code : read_group(p, true, &q->group);
    if (code == 0 && (q->bits == 8 || q->symmetric)) {
        code = expect_bool(p, "sym", true,
                           q->bits == 8 ? "zero points of 8 bits are not supported" : "must be a bool");
    }
    code = code ? code : read_gptq_format(p, "checkpoint_format", q);
    code = code ? code : read_gptq_format(p, "format", q);
    code = code ? code : expect_bool(p, "is_marlin_format", false, "that layout is not supported");
    code = code ? code : expect_words_of_32(p);
    return code ? code : expect_exclusions(p);
}

static int read_awq(const part *p, sl_hf_quantization *q) {
    static const json_int_t allowed[2] = {4, 4};
    static const char *const layouts[] = {"gemm", "GEMM", NULL};
    static const char *const writers[] = {"autoawq", NULL};
    static const char *const keys[] = {"version", "checkpoint_format", "format"};
    q->words = SL_HF_WORDS_AWQ;
    int code = read_bits(p, "bits", allowed, "only 4 is supported", &q->bits);
    code = code ? code : read_group(p, true, &q->group);
    code = code ? code : expect_bool(p, "zero_point", true, "only true is supported");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && code == 0; i++) {
        code = expect_word(p, keys[i], false, layouts, "only \"gemm\" is supported");
    }
    code = code ? code : expect_word(p, "backend", false, writers, "only \"autoawq\" is supported");
    code = code ? code : expect_words_of_32(p);
    return code ? code : expect_exclusions(p);
}

static int read_nothing(const part *p, sl_hf_quantization *q) {
    (void)p, (void)q;
    return 0;
}

static const struct {
    const char *name;
    int (*read)(const part *p, sl_hf_quantization *q);
} methods[] = {{"fp8", read_fp8},
               {"fbgemm_fp8", read_nothing},
               {"mxfp4", read_nothing},
               {"compressed-tensors", read_compressed},
               {"modelopt", read_modelopt},
               {"gptq", read_gptq},
               {"awq", read_awq}};

/* ---- hf_quant_config.json ---- */

/* What is said of all modules, or of one. */
static int read_algorithm(const part *p) {
    int code = expect_algorithm(p);
    code = code ? code : expect_group(p);
    code = code ? code : expect_bool(p, "has_zero_point", false, "zero points are not supported");
    return code ? code : expect_bool(p, "pre_quant_scale", false, "scales of inputs are not supported");
}

static int read_layers(const part *p) {
    const json_t *layers = sl_json_find(p->place.root, NULL, "quantized_layers"), *layer;
    const char *name;
    if (layers && !json_is_object(layers)) {
        return sl_fail(p->error, SL_ERR_FORMAT, "%s: '%s.quantized_layers' must be an object", p->place.file,
                       p->path);
    }
    json_object_foreach((json_t *)(uintptr_t)layers, name, layer) {
        const part inner = {{layer, p->place.file}, "quantization.quantized_layers.*", p->error};
        const int code = read_algorithm(&inner);
        if (code) {
            return code;
        }
    }
    return 0;
}

/* Without an algorithm it speaks of the cache alone. */
static int read_file(sl_json_place file, sl_hf_quantization *q, sl_error *error) {
    static const char *const names[] = {"modelopt", NULL};
    const json_t *inner = sl_json_find(file.root, NULL, "quantization");
    const part producer = {{sl_json_find(file.root, NULL, "producer"), file.file}, "producer", error};
    const part p = {{inner, file.file}, "quantization", error};
    if (!json_is_object(inner)) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: 'quantization' must be an object", file.file);
    }
    int code = expect_word(&producer, "name", false, names, "only \"modelopt\" is supported");
    if (code || !sl_json_find(inner, NULL, "quant_algo")) {
        return code;
    }
    q->there = true;
    code = read_algorithm(&p);
    return code ? code : read_layers(&p);
}

int sl_hf_read_quantization(const sl_hf *hf, sl_hf_quantization *quantization, sl_error *error) {
    char text[64];
    const sl_json_place root = sl_hf_config_place(hf), file = sl_hf_quant_config_place(hf);
    const json_t *outer = sl_json_find(root.root, NULL, ROOT);
    const json_t *config =
        outer ? outer : sl_json_find(sl_json_find(root.root, NULL, "text_config"), NULL, ROOT);
    const json_t *method = sl_json_find(config, NULL, "quant_method");
    const part p = {{config, root.file}, ROOT, error};
    memset(quantization, 0, sizeof *quantization);
    if (file.root) {
        const int code = read_file(file, quantization, error);
        if (code || !config) {
            return code;
        }
        memset(quantization, 0, sizeof *quantization); /* config.json is what counts */
    }
    if (!config) {
        return 0;
    }
    if (!json_is_object(config)) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: '" ROOT "' must be an object", root.file);
    }
    quantization->there = true;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (json_is_string(method) && strcmp(json_string_value(method), methods[i].name) == 0) {
            return methods[i].read(&p, quantization);
        }
    }
    return refuse(
        &p, "quant_method", method ? shown(method, text) : "missing",
        "only \"fp8\", \"fbgemm_fp8\", \"mxfp4\", \"compressed-tensors\", \"modelopt\", \"gptq\" and "
        "\"awq\" are supported");
}
