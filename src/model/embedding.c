#include "model/embedding.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct reader {
    const sl_source *source;
    const sl_config *config;
    sl_embedding *embedding;
    sl_error *error;
} reader;

/* ---- matrices in front of what the caller gets ---- */

static void free_dense(sl_dense *layer) {
    sl_free(layer->weight);
    sl_free(layer->bias);
    *layer = (sl_dense){0};
}

void sl_embedding_free(sl_embedding *embedding) {
    for (int i = 0; i < SL_EMBEDDING_LAYERS; i++) {
        free_dense(&embedding->layers[i]);
        free_dense(&embedding->classifier[i]);
    }
}

static int decode(const sl_tensor *tensor, float **values, sl_error *error) {
    *values = sl_alloc_zero(tensor->elements, sizeof **values);
    if (!*values) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for tensor %s", tensor->name);
    }
    sl_qtype_get(tensor->type)->decode(tensor->data, *values, tensor->elements);
    return 0;
}

/* Reads W and, where there is one, its bias, for a vector of `columns`. */
static int read_dense(const char *file, const sl_tensor *weight, const sl_tensor *bias, int32_t columns,
                      sl_dense *layer, sl_error *error) {
    enum { MOST_ROWS = 1 << 18 };
    if (weight->dims[0] != (uint64_t)columns || weight->dims[1] > MOST_ROWS || weight->dims[2] != 1 ||
        weight->dims[3] != 1) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: tensor %s has rows of %llu, the vector in front of it %d",
                       file, weight->name, (unsigned long long)weight->dims[0], columns);
    }
    if (bias && bias->elements != weight->dims[1]) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: tensor %s has %llu elements, the matrix %llu rows", file,
                       bias->name, (unsigned long long)bias->elements, (unsigned long long)weight->dims[1]);
    }
    layer->rows = (int32_t)weight->dims[1];
    layer->columns = columns;
    const int code = decode(weight, &layer->weight, error);
    return code || !bias ? code : decode(bias, &layer->bias, error);
}

/* A tensor that may be missing: NULL then. */
static int find(const reader *r, const char *name, const sl_tensor **tensor) {
    *tensor = NULL;
    const int code = sl_source_tensor(r->source, name, tensor, r->error);
    return code == SL_ERR_NOT_FOUND ? 0 : code;
}

/* The layer of these tensors behind layers[*count], if the file has it. */
static int add_layer(const reader *r, const char *weight_name, const char *bias_name, sl_dense *layers,
                     int32_t *count) {
    const sl_tensor *weight, *bias = NULL;
    int code = find(r, weight_name, &weight);
    code = code || !weight || !bias_name ? code : find(r, bias_name, &bias);
    if (code || !weight) {
        return code;
    }
    const int32_t columns = *count > 0 ? layers[*count - 1].rows : r->config->width;
    code = read_dense(sl_source_path(r->source), weight, bias, columns, &layers[*count], r->error);
    *count += code == 0;
    return code;
}

/* ---- GGUF ---- */

/* Names: gguf-py's constants.py (DENSE_2_OUT, DENSE_3_OUT, CLS, CLS_OUT). */
static int read_gguf_layers(const reader *r) {
    sl_embedding *e = r->embedding;
    int code = add_layer(r, "dense_2.weight", NULL, e->layers, &e->layer_count);
    code = code ? code : add_layer(r, "dense_3.weight", NULL, e->layers, &e->layer_count);
    code = code ? code : add_layer(r, "cls.weight", "cls.bias", e->classifier, &e->classifier_count);
    if (code == 0 && e->classifier_count == 1) {
        e->classifier[0].tanh = true;
    }
    return code ? code
                : add_layer(r, "cls.output.weight", "cls.output.bias", e->classifier, &e->classifier_count);
}

static int read_gguf(const reader *r, const sl_gguf *gguf) {
    sl_embedding *e = r->embedding;
    sl_view architecture;
    char key[SL_TENSOR_NAME_SIZE];
    uint64_t pooling;
    int code = sl_gguf_string(gguf, "general.architecture", &architecture, r->error);
    if (code) {
        return code;
    }
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)(architecture.length < 64 ? architecture.length : 64),
             architecture.data);
    code = sl_gguf_u64(gguf, key, &pooling, r->error);
    if (code == 0) {
        if (pooling > SL_POOLING_RANK) {
            return sl_fail(r->error, SL_ERR_UNSUPPORTED, "%s: %s is %llu, must be 0 to %d",
                           sl_gguf_path(gguf), key, (unsigned long long)pooling, SL_POOLING_RANK);
        }
        e->pooling = (sl_pooling)pooling;
        e->given = true;
    }
    return code == 0 || code == SL_ERR_NOT_FOUND ? read_gguf_layers(r) : code;
}

/* ---- Hugging Face folders with sentence-transformers' files ---- */

enum { FILE_LIMIT = 1 << 20, PATH_SIZE = 4096 };

/* A JSON file of the folder; *json is NULL when there is none. */
static int load_file(const reader *r, const char *folder, const char *name, char path[PATH_SIZE],
                     json_t **json) {
    const char *root = sl_hf_path(sl_source_hf(r->source));
    *json = NULL;
    if (snprintf(path, PATH_SIZE, "%s/%s%s%s", root, folder, *folder ? "/" : "", name) >= PATH_SIZE) {
        return sl_fail(r->error, SL_ERR_LIMIT, "%s: a path of more than %d bytes", root, PATH_SIZE);
    }
    FILE *file = fopen(path, "rb");
    if (!file) {
        return 0;
    }
    fclose(file);
    return sl_json_load(path, FILE_LIMIT, json, r->error);
}

static bool is_set(const json_t *config, const char *key) {
    return json_is_true(json_object_get(config, key));
}

/* sentence_transformers.models.Pooling: one of its ways must be on. */
static int read_pooling(const reader *r, const json_t *config, const char *path) {
    static const struct {
        const char *key;
        sl_pooling pooling;
    } ways[] = {{"pooling_mode_cls_token", SL_POOLING_CLS},
                {"pooling_mode_mean_tokens", SL_POOLING_MEAN},
                {"pooling_mode_lasttoken", SL_POOLING_LAST}};
    int found = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (is_set(config, ways[i].key)) {
            r->embedding->pooling = ways[i].pooling;
            found++;
        }
    }
    const bool other = is_set(config, "pooling_mode_max_tokens") ||
                       is_set(config, "pooling_mode_mean_sqrt_len_tokens") ||
                       is_set(config, "pooling_mode_weightedmean_tokens");
    if (found != 1 || other) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED,
                       "%s: exactly one of pooling_mode_cls_token, pooling_mode_mean_tokens and "
                       "pooling_mode_lasttoken must be on, and no other mode",
                       path);
    }
    return 0;
}

/* sentence_transformers.models.Dense: a folder with weights of its own. */
static int read_dense_module(const reader *r, const char *folder, const json_t *config, const char *path) {
    sl_embedding *e = r->embedding;
    const char *activation = json_string_value(json_object_get(config, "activation_function"));
    const bool tanh = activation && strstr(activation, "Tanh");
    if (e->layer_count == SL_EMBEDDING_LAYERS || (activation && !tanh && !strstr(activation, "Identity"))) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED, "%s: activation_function %.80s, or more than %d layers",
                       path, activation ? activation : "", SL_EMBEDDING_LAYERS);
    }
    char file[PATH_SIZE];
    sl_safetensors *tensors;
    if (snprintf(file, sizeof file, "%s/%s/model.safetensors", sl_hf_path(sl_source_hf(r->source)), folder) >=
        PATH_SIZE) {
        return sl_fail(r->error, SL_ERR_LIMIT, "%s: a path of more than %d bytes", folder, PATH_SIZE);
    }
    int code = sl_safetensors_open(file, &tensors, r->error);
    if (code) {
        return code;
    }
    const sl_safetensors_entry *weight = sl_safetensors_find(tensors, "linear.weight");
    const sl_safetensors_entry *bias = sl_safetensors_find(tensors, "linear.bias");
    if (!weight || weight->refusal || (bias && bias->refusal)) {
        code = sl_fail(r->error, SL_ERR_FORMAT,
                       "%s: tensor linear.weight is missing or of a type that is "
                       "not read",
                       file);
    } else {
        sl_dense *layer = &e->layers[e->layer_count];
        const int32_t columns = e->layer_count > 0 ? layer[-1].rows : r->config->width;
        layer->tanh = tanh;
        code = read_dense(file, &weight->tensor, bias ? &bias->tensor : NULL, columns, layer, r->error);
        e->layer_count += code == 0;
    }
    sl_safetensors_close(tensors);
    return code;
}

static int read_module(const reader *r, const json_t *module, const char *list) {
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *folder = json_string_value(json_object_get(module, "path"));
    if (!type || !folder || folder[0] == '/' || strstr(folder, "..")) {
        return sl_fail(r->error, SL_ERR_FORMAT,
                       "%s: every module must have a type, and a path inside the folder", list);
    }
    const char *dot = strrchr(type, '.'), *kind = dot ? dot + 1 : type;
    if (strcmp(kind, "Transformer") == 0) {
        return 0;
    }
    if (strcmp(kind, "Normalize") == 0) {
        r->embedding->normalise = true;
        return 0;
    }
    const bool pooling = strcmp(kind, "Pooling") == 0;
    if (!pooling && strcmp(kind, "Dense") != 0) {
        return sl_fail(r->error, SL_ERR_UNSUPPORTED, "%s: module %.80s is not supported", list, type);
    }
    char path[PATH_SIZE];
    json_t *config;
    int code = load_file(r, folder, "config.json", path, &config);
    if (code == 0 && !config) {
        code =
            sl_fail(r->error, SL_ERR_NOT_FOUND, "%s: there is no such file, which %s asks for", path, list);
    }
    code = code ? code : pooling ? read_pooling(r, config, path) : read_dense_module(r, folder, config, path);
    json_decref(config);
    return code;
}

/* The heads of transformers' RobertaForSequenceClassification and BertForSequenceClassification. */
static int read_hf_classifier(const reader *r) {
    sl_embedding *e = r->embedding;
    int code =
        add_layer(r, "classifier.dense.weight", "classifier.dense.bias", e->classifier, &e->classifier_count);
    code = code ? code
                : add_layer(r, "classifier.out_proj.weight", "classifier.out_proj.bias", e->classifier,
                            &e->classifier_count);
    if (code == 0 && e->classifier_count == 0) {
        const sl_tensor *weight;
        code = find(r, "classifier.weight", &weight);
        code = code || !weight ? code
                               : add_layer(r, "bert.pooler.dense.weight", "bert.pooler.dense.bias",
                                           e->classifier, &e->classifier_count);
        code =
            code ? code
                 : add_layer(r, "classifier.weight", "classifier.bias", e->classifier, &e->classifier_count);
    }
    if (e->classifier_count == 2) {
        e->classifier[0].tanh = true;
    }
    e->given |= e->classifier_count > 0;
    return code;
}

static int read_hf(const reader *r) {
    char path[PATH_SIZE];
    json_t *modules = NULL;
    int code = read_hf_classifier(r);
    code = code ? code : load_file(r, "", "modules.json", path, &modules);
    if (code || !modules) {
        return code;
    }
    r->embedding->given = true;
    r->embedding->normalise = false;
    for (size_t i = 0; i < json_array_size(modules) && code == 0; i++) {
        code = read_module(r, json_array_get(modules, i), path);
    }
    json_decref(modules);
    return code;
}

int sl_embedding_read(const sl_source *source, const sl_config *config, sl_embedding *embedding,
                      sl_error *error) {
    *embedding = (sl_embedding){.pooling = config->both_sides ? SL_POOLING_MEAN : SL_POOLING_LAST,
                                .ranked = config->family->encoder ? SL_POOLING_CLS : SL_POOLING_LAST,
                                .normalise = true};
    const reader r = {source, config, embedding, error};
    const sl_gguf *gguf = sl_source_gguf(source);
    return gguf ? read_gguf(&r, gguf) : read_hf(&r);
}

/* The matrix that makes the logits; NULL without a head. */
static const sl_weight *find_head(const sl_program *program) {
    for (int32_t i = 0; program->logits != SL_NONE && i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (op->kind == SL_OP_LINEAR && op->out[0].value == program->logits) {
            return &program->weights[op->u.linear.segments[0].weight];
        }
    }
    return NULL;
}

int sl_embedding_take_head(const sl_program *program, const sl_tokenizer *tokenizer, sl_embedding *embedding,
                           sl_error *error) {
    const sl_weight *head = find_head(program);
    const int32_t ids[] = {tokenizer ? sl_tokenizer_find(tokenizer, sl_view_of("yes")) : -1,
                           tokenizer ? sl_tokenizer_find(tokenizer, sl_view_of("no")) : -1};
    if (!head || embedding->classifier_count > 0 || ids[0] < 0 || ids[1] < 0 || ids[0] >= head->rows ||
        ids[1] >= head->rows) {
        return 0;
    }
    sl_dense *layer = &embedding->classifier[0];
    const uint64_t row_bytes = head->bytes / (uint64_t)head->rows;
    *layer = (sl_dense){.rows = 2, .columns = head->columns};
    layer->weight = sl_alloc_zero(2 * (size_t)head->columns, sizeof *layer->weight);
    if (!layer->weight) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the rows of \"yes\" and \"no\"");
    }
    for (int i = 0; i < 2; i++) {
        sl_qtype_get(head->type)
            ->decode((const unsigned char *)head->data + (uint64_t)ids[i] * row_bytes,
                     layer->weight + (size_t)i * (size_t)head->columns, (uint64_t)head->columns);
    }
    embedding->classifier_count = 1;
    embedding->from_head = true;
    return 0;
}

void sl_dense_apply(const sl_dense *layer, const float *x, float *y) {
    for (int32_t row = 0; row < layer->rows; row++) {
        const float *weight = layer->weight + (size_t)row * (size_t)layer->columns;
        double sum = layer->bias ? layer->bias[row] : 0;
        for (int32_t i = 0; i < layer->columns; i++) {
            sum += (double)weight[i] * x[i];
        }
        y[row] = (float)(layer->tanh ? tanh(sum) : sum);
    }
}
