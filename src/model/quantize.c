/* Writes a model's weights in other types: a list of tensors, each a run of rows in some order of the
 * source's, then their types, then their rows (quantize_rows.c). */
#include "model/quantize.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "format/index.h"
#include "model/bind.h"
#include "model/importance.h"
#include "model/pattern.h"

#include <stdio.h>

int sl_file_write_type(sl_gguf_writer *writer, uint32_t file_type, sl_error *error) {
    const int code = sl_gguf_writer_unsigned(writer, "general.quantization_version", SL_GGUF_U32, 2, error);
    return code ? code : sl_gguf_writer_unsigned(writer, "general.file_type", SL_GGUF_U32, file_type, error);
}

int sl_file_report(const sl_file_progress *progress, const char *path, uint64_t done, uint64_t total,
                   sl_error *error) {
    return !progress || !progress->report || progress->report(progress->context, done, total)
               ? 0
               : sl_fail(error, SL_ERR_CANCELLED, "%s: stopped before it was complete", path);
}

/* ---- the list of tensors
 * ------------------------------------------------------------------------------------------- */

static void list_free(file_list *list) {
    sl_arena_free(&list->arena);
    sl_free(list->tensors);
}

/* Adds a tensor whose name, shape and source are set; its type comes later. */
static int list_add(file_list *list, const file_tensor *tensor, sl_error *error) {
    file_tensor *tensors = sl_grow(list->tensors, list->count, &list->capacity, sizeof *tensors);
    if (!tensors) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a list of tensors");
    }
    list->tensors = tensors;
    file_tensor *t = &tensors[list->count++];
    *t = *tensor;
    t->columns = t->shape.dims[0];
    t->rows = 1;
    for (uint32_t i = 1; i < t->shape.dim_count; i++) {
        t->rows *= t->shape.dims[i];
    }
    return 0;
}

/* ---- from a GGUF file
 * ---------------------------------------------------------------------------------------------- */

static bool contains_any(const char *name, const char *const *parts) {
    while (*parts && !strstr(name, *parts)) {
        parts++;
    }
    return *parts != NULL;
}

/* What llama-quantize leaves alone too: small, and the result depends on it. */
static bool gguf_exact(const sl_tensor *tensor) {
    static const char *const exact[] = {
        "_norm.",     "ffn_gate_inp",  "ssm_conv1d",           "shortconv.conv",
        "rope_freqs", "position_embd", "token_types",          "attn_rel_b",
        "altup",      "laurel",        "per_layer_model_proj", "time_mix_",
        NULL};
    const char *last = strrchr(tensor->name, '.');
    return (tensor->dim_count != 2 && tensor->dim_count != 3) || !last || strcmp(last, ".weight") != 0 ||
           contains_any(tensor->name, exact);
}

/* The tensor of the same name but for its last part; NULL when there is none. */
static const sl_tensor *gguf_sibling(const sl_gguf *gguf, const char *name, const char *last) {
    char other[SL_TENSOR_NAME_SIZE];
    const char *dot = strrchr(name, '.');
    if (!dot ||
        (size_t)snprintf(other, sizeof other, "%.*s.%s", (int)(dot - name), name, last) >= sizeof other) {
        return NULL;
    }
    return sl_gguf_tensor(gguf, other);
}

static bool is_nvfp4(const sl_tensor *tensor) {
    return tensor && tensor->type == SL_QTYPE_NVFP4;
}

static int list_gguf(file_list *list, const sl_gguf *gguf, sl_error *error) {
    int code = 0;
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf) && code == 0; i++) {
        const sl_tensor *from = sl_gguf_tensor_at(gguf, i);
        const sl_tensor *weight = gguf_sibling(gguf, from->name, "weight");
        const char *last = strrchr(from->name, '.');
        const bool beside =
            last && (strcmp(last, ".scale") == 0 || strcmp(last, ".input_scale") == 0) && is_nvfp4(weight);
        file_tensor tensor = {.name = from->name,
                              .exact = gguf_exact(from),
                              .from = from->type,
                              .data = from->data,
                              .scale = is_nvfp4(from) ? gguf_sibling(gguf, from->name, "scale") : NULL,
                              .matrix = beside ? weight : NULL};
        tensor.shape.dim_count = from->dim_count;
        memcpy(tensor.shape.dims, from->dims, sizeof tensor.shape.dims);
        code = list_add(list, &tensor, error);
    }
    return code;
}

/* Scales of whole NVFP4 matrices (model/scaled.h) go into the values of other types, and stay beside NVFP4.
 */
static int place_scales(file_list *list, sl_error *error) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < list->count; i++) {
        file_tensor *t = &list->tensors[i];
        if (!t->scale || t->shape.type == SL_QTYPE_NVFP4) {
            continue;
        }
        if (t->scale->type != SL_QTYPE_F32 ||
            (t->scale->elements != 1 && t->scale->elements != t->shape.dims[2])) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "tensor %.100s must be f32, one number for each expert, or one", t->scale->name);
        }
        t->scales = t->scale->data;
        t->scale_count = t->scale->elements;
    }
    for (uint64_t i = 0; i < list->count; i++) {
        const sl_tensor *matrix = list->tensors[i].matrix;
        bool merged = false;
        for (uint64_t k = 0; matrix && k < list->count && !merged; k++) {
            merged = list->tensors[k].scales && list->tensors[k].data == matrix->data;
        }
        list->tensors[kept] = list->tensors[i];
        kept += !merged;
    }
    list->count = kept;
    return 0;
}

static int copy_metadata(sl_gguf_writer *writer, const sl_gguf *gguf, sl_error *error) {
    /* What speaks of the file that it was copied from. */
    static const char *const others[] = {"general.file_type", "general.quantization_version", "split.",
                                         "quantize.imatrix.", NULL};
    int code = 0;
    for (uint64_t i = 0; i < sl_gguf_entry_count(gguf) && code == 0; i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(gguf, i);
        bool copied = true;
        for (int k = 0; others[k]; k++) {
            copied &= strncmp(entry->key, others[k], strlen(others[k])) != 0;
        }
        code = copied ? sl_gguf_writer_copy(writer, entry, error) : 0;
    }
    return code;
}

/* A number that stands in the metadata, or the first of a list of them. */
static uint64_t gguf_number(const sl_gguf *gguf, sl_view architecture, const char *name, uint64_t otherwise) {
    char key[160];
    snprintf(key, sizeof key, "%.*s.%s", (int)(architecture.length < 64 ? architecture.length : 64),
             architecture.data, name);
    const sl_gguf_entry *entry = sl_gguf_find(gguf, key);
    const int64_t number = entry && entry->count > 0 ? sl_gguf_item_i64(entry, 0) : 0;
    return number > 0 ? (uint64_t)number : otherwise;
}

static sl_mixture_model gguf_model(const sl_gguf *gguf) {
    sl_mixture_model model = {.architecture = sl_view_of("")};
    sl_gguf_string(gguf, "general.architecture", &model.architecture, NULL);
    model.layers = gguf_number(gguf, model.architecture, "block_count", 0);
    model.heads = gguf_number(gguf, model.architecture, "attention.head_count", 0);
    model.kv_heads = gguf_number(gguf, model.architecture, "attention.head_count_kv", model.heads);
    model.experts = gguf_number(gguf, model.architecture, "expert_count", 0);
    return model;
}

/* ---- from a Hugging Face folder
 * ------------------------------------------------------------------------------------ */

typedef struct folder_list {
    file_list *list;
    const sl_config *config;
    const sl_binding *binding;
    const sl_program *program;
} folder_list;

/* How GGUF stores what a checkpoint has: llama.cpp's conversion/ is the definition. */
static void gguf_conventions(const sl_config *config, sl_tensor_id id, file_tensor *tensor) {
    const uint64_t head = (uint64_t)config->head_size;
    const bool pairs = config->family->gguf_rope == SL_ROPE_PAIRS && config->rope_layout != SL_ROPE_PAIRS;
    const order_kind values = config->family->gguf_tiled ? ORDER_TILED : ORDER_SAME;
    file_order tiled = {.kind = values, .size = (uint64_t)config->delta_value_size};
    if (config->delta_key_heads > 0) {
        tiled.heads = (uint64_t)config->delta_key_heads;
        tiled.ratio = (uint64_t)(config->delta_value_heads / config->delta_key_heads);
    }
    switch (id) {
    case SL_TENSOR_QUERY:
    case SL_TENSOR_KEY:
        tensor->row_order = (file_order){.kind = pairs ? ORDER_PAIRS : ORDER_SAME, .size = head};
        break;
    case SL_TENSOR_QUERY_BIAS:
    case SL_TENSOR_KEY_BIAS:
        tensor->column_order = (file_order){.kind = pairs ? ORDER_PAIRS : ORDER_SAME, .size = head};
        break;
    case SL_TENSOR_FINAL_NORM:
    case SL_TENSOR_ATTENTION_NORM:
    case SL_TENSOR_POST_ATTENTION_NORM:
    case SL_TENSOR_FEED_FORWARD_NORM:
    case SL_TENSOR_POST_FEED_FORWARD_NORM:
    case SL_TENSOR_QUERY_NORM:
    case SL_TENSOR_KEY_NORM:
    case SL_TENSOR_DRAFT_EMBED_NORM:
    case SL_TENSOR_DRAFT_HIDDEN_NORM:
    case SL_TENSOR_DRAFT_NORM:
        tensor->add = config->family->hf_norm_offset;
        break;
    case SL_TENSOR_DELTA_QKV:
    case SL_TENSOR_DELTA_CONV:
        tiled.first = 2 * tiled.heads * (uint64_t)config->delta_key_size; /* behind queries and keys */
        tensor->row_order = tiled;
        break;
    case SL_TENSOR_DELTA_GATE:
        tensor->row_order = tiled;
        break;
    case SL_TENSOR_DELTA_BETA:
    case SL_TENSOR_DELTA_ALPHA:
        tiled.size = 1;
        tensor->row_order = tiled;
        break;
    case SL_TENSOR_DELTA_DECAY:
    case SL_TENSOR_DELTA_DECAY_BIAS:
        tiled.size = 1;
        tensor->column_order = tiled;
        tensor->negated_exp = id == SL_TENSOR_DELTA_DECAY;
        break;
    case SL_TENSOR_SSM_DECAY:
        tensor->negated_exp = true;
        break;
    case SL_TENSOR_DELTA_OUTPUT:
        tensor->column_order = tiled;
        break;
    case SL_TENSOR_DELTA_ALPHA_BETA:
        tensor->row_order = (file_order){.kind = ORDER_JOINED, .heads = tiled.heads, .ratio = tiled.ratio};
        break;
    default:
        break;
    }
}

/* The factor of a matrix's row, where configs have factors and GGUF files have them in the weights. */
static double row_factor(const sl_config *config, sl_tensor_id id, uint64_t row) {
    const sl_factors *factors = &config->factors;
    const uint64_t inner = (uint64_t)config->delta_value_heads * (uint64_t)config->delta_value_size;
    const uint64_t group = (uint64_t)config->delta_key_heads * (uint64_t)config->delta_key_size;
    const uint64_t ends[] = {inner, 2 * inner, 2 * inner + group, 2 * inner + 2 * group};
    int part = 0;
    switch (id) {
    case SL_TENSOR_EMBED:
        return config->embed_factor;
    case SL_TENSOR_HEAD:
        return 1 / config->logit_divisor;
    case SL_TENSOR_KEY:
        return factors->scores;
    case SL_TENSOR_OUTPUT:
        return factors->attention;
    case SL_TENSOR_SSM_IN:
        while (part < SL_SSM_STEPS && row >= ends[part]) {
            part++;
        }
        return factors->ssm[part];
    case SL_TENSOR_SSM_OUT:
        return factors->ssm_out;
    case SL_TENSOR_GATE:
        return factors->gate;
    case SL_TENSOR_DOWN:
        return factors->down;
    default:
        return 1;
    }
}

static int set_factors(const folder_list *f, sl_tensor_id id, file_tensor *tensor, sl_error *error) {
    const uint64_t rows = tensor->shape.dim_count == 2 ? tensor->shape.dims[1] : 0;
    float *factors = f->config->family->multiplied && rows > 0
                         ? sl_arena_alloc(&f->list->arena, (size_t)rows, sizeof *factors)
                         : NULL;
    for (uint64_t row = 0; factors && row < rows; row++) {
        factors[row] = (float)row_factor(f->config, id, row);
        if (factors[row] != 1) {
            tensor->scales = factors;
            tensor->scale_count = rows;
        }
    }
    return factors || rows == 0 || !f->config->family->multiplied
               ? 0
               : sl_fail(error, SL_ERR_NOMEM, "out of memory for factors of a matrix");
}

/* rope_freqs.weight is how GGUF says Llama 3's scaling. LongRoPE's lists stand in the config. */
static int rope_factors(folder_list *f, sl_tensor_id id, file_tensor *tensor, sl_error *error) {
    float *factors = sl_arena_alloc(&f->list->arena, (size_t)f->config->rope_dims / 2, sizeof *factors);
    if (!factors) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for RoPE factors");
    }
    if (id == SL_TENSOR_ROPE_FACTORS) {
        sl_rope_factors(&f->config->rope, f->config->rope_dims, factors);
    } else {
        const float *list = id == SL_TENSOR_ROPE_LONG ? f->config->long_factors : f->config->short_factors;
        memcpy(factors, list, (size_t)f->config->rope_dims / 2 * sizeof *factors);
    }
    tensor->exact = true;
    tensor->from = SL_QTYPE_F32;
    tensor->data = (const unsigned char *)factors;
    return 0;
}

/* Gate and up rows in one tensor, as some checkpoints have them. */
static const struct {
    sl_tensor_id gate, up, of;
} FUSED[] = {{SL_TENSOR_GATE_EXPERTS, SL_TENSOR_UP_EXPERTS, SL_TENSOR_FUSED_EXPERTS},
             {SL_TENSOR_GATE, SL_TENSOR_UP, SL_TENSOR_GATE_UP},
             {SL_TENSOR_SHARED_GATE, SL_TENSOR_SHARED_UP, SL_TENSOR_SHARED_GATE_UP}};

static int list_fact(void *context, const sl_gguf_tensor_fact *fact, sl_error *error) {
    folder_list *f = context;
    const int32_t *indices = fact->layer == SL_NONE ? f->binding->model : f->binding->layers[fact->layer];
    int32_t index = indices[fact->id];
    file_tensor tensor = {.name = sl_arena_strndup(&f->list->arena, fact->name, strlen(fact->name))};
    if (!tensor.name) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a list of tensors");
    }
    tensor.shape.dim_count = fact->dim_count;
    memcpy(tensor.shape.dims, fact->dims, sizeof tensor.shape.dims);
    tensor.exact = fact->vector || fact->id == SL_TENSOR_ROUTER || fact->id == SL_TENSOR_SHARED_SHARE;
    gguf_conventions(f->config, fact->id, &tensor);
    for (size_t i = 0; i < sizeof FUSED / sizeof *FUSED && index == SL_NONE; i++) {
        if (fact->id == FUSED[i].gate || fact->id == FUSED[i].up) {
            index = indices[FUSED[i].of];
            tensor.row_order =
                (file_order){.kind = ORDER_PART, .size = fact->dims[1], .part = fact->id == FUSED[i].up};
        }
    }
    if (fact->id == SL_TENSOR_ROPE_FACTORS || fact->id == SL_TENSOR_ROPE_LONG ||
        fact->id == SL_TENSOR_ROPE_SHORT) {
        const int code = rope_factors(f, fact->id, &tensor, error);
        return code ? code : list_add(f->list, &tensor, error);
    }
    if (index == SL_NONE && fact->stand_in) {
        return 0;
    }
    if (index == SL_NONE) {
        return sl_fail(error, SL_ERR_INTERNAL, "tensor %s was not bound", fact->name);
    }
    tensor.turned = fact->id == SL_TENSOR_LATENT_KEYS && f->config->latent_joined;
    tensor.from = f->program->weights[index].type;
    tensor.data = f->program->weights[index].data;
    const int code = set_factors(f, fact->id, &tensor, error);
    return code ? code : list_add(f->list, &tensor, error);
}

static sl_mixture_model folder_model(const sl_config *config) {
    const char *architecture = sl_family_gguf_name(config->family);
    return (sl_mixture_model){.architecture = sl_view_of(architecture),
                              .layers = (uint64_t)config->layers,
                              .heads = (uint64_t)config->heads,
                              .kv_heads = (uint64_t)config->kv_heads,
                              .experts = (uint64_t)config->experts};
}

static int folder_metadata(const sl_source *source, const sl_config *config, sl_gguf_writer *writer,
                           sl_error *error) {
    const sl_hf *hf = sl_source_hf(source);
    const int code = sl_config_write_gguf_metadata(config, writer, error);
    return code || !sl_hf_tokenizer_path(hf)
               ? code
               : sl_file_write_tokenizer(writer, sl_hf_tokenizer_path(hf), sl_hf_tokenizer_config_path(hf),
                                         config->vocabulary, error);
}

/* ---- types
 * ---------------------------------------------------------------------------------------------------------
 */

/* What all the steps below work on. */
typedef struct quantization {
    const sl_quantize_options *options;
    const sl_file_progress *progress;
    const char *output;
    uint64_t *file_bytes;
    sl_importance importance;
    sl_pattern **patterns; /* [options->pattern_count] */
    bool *matched;         /* likewise: whether any tensor did */
    file_list list;
    sl_gguf_writer *writer;
} quantization;

/* The options' word on a tensor, which goes before the mixture's. */
static int asked_type(const quantization *q, const char *name, bool tied, sl_qtype *type, sl_error *error) {
    const sl_quantize_options *o = q->options;
    const sl_tensor_role role = sl_tensor_role_of(name);
    const bool head = role == SL_ROLE_OUTPUT || (role == SL_ROLE_EMBEDDING && tied);
    const sl_qtype *asked = role == SL_ROLE_EMBEDDING && o->embedding_type ? o->embedding_type
                            : head                                         ? o->output_type
                                                                           : NULL;
    if (asked) {
        *type = *asked;
        return 0;
    }
    for (uint64_t i = 0; i < o->pattern_count; i++) {
        bool found;
        const int code = sl_pattern_find(q->patterns[i], name, &found, error);
        if (code) {
            return code;
        }
        if (found) {
            q->matched[i] = true;
            *type = o->patterns[i].type;
            return 0;
        }
    }
    return 0;
}

/* Types by the mixture, [list->count]; those of exact tensors are not set. */
static int mixture_types(const quantization *q, const sl_mixture_model *model, sl_mixture_tensor *types,
                         sl_error *error) {
    const file_list *list = &q->list;
    const sl_qtype base = sl_mixture_base(q->options->mixture);
    uint64_t *places = sl_alloc_zero((size_t)list->count + 1, sizeof *places);
    sl_mixture_tensor *matrices = sl_alloc_zero((size_t)list->count + 1, sizeof *matrices);
    uint64_t count = 0;
    int code =
        places && matrices ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for the types of tensors");
    for (uint64_t i = 0; i < list->count && code == 0; i++) {
        const file_tensor *t = &list->tensors[i];
        const bool of_experts = t->shape.dim_count > 2 && strstr(t->name, "_exps.");
        const uint64_t experts = of_experts ? t->shape.dims[2] : 1;
        types[i] = (sl_mixture_tensor){t->name, t->columns, experts, base};
        if (!t->exact) {
            places[count] = i;
            matrices[count++] = types[i];
        }
    }
    if (code == 0 && !q->options->pure) {
        code = sl_mixture_assign(q->options->mixture, model, matrices, count, error);
    }
    for (uint64_t i = 0; i < count && code == 0; i++) {
        types[places[i]].type = matrices[i].type;
    }
    sl_free(places);
    sl_free(matrices);
    return code;
}

static int set_type(file_list *list, file_tensor *t, sl_qtype wanted, sl_error *error) {
    uint64_t bytes;
    t->wanted = wanted;
    t->shape.type = sl_mixture_fallback(wanted, t->columns);
    /* The source was checked when it was opened: nothing here is larger than it by more than its blocks. */
    if (!sl_qtype_bytes(t->shape.type, t->columns, &t->row_bytes) ||
        !sl_qtype_bytes(t->from, t->turned ? t->shape.dims[1] : t->columns, &t->from_row_bytes) ||
        !sl_mul_u64(t->row_bytes, t->rows, &bytes) || !sl_add_u64(list->bytes, bytes, &list->bytes)) {
        return sl_fail(error, SL_ERR_LIMIT, "tensor %s is too large as %s", t->name,
                       sl_qtype_get(t->shape.type)->name);
    }
    return 0;
}

static int choose_types(quantization *q, const sl_mixture_model *model, sl_error *error) {
    file_list *list = &q->list;
    sl_mixture_tensor *types = sl_alloc_zero((size_t)list->count + 1, sizeof *types);
    bool tied = true;
    int code = types ? mixture_types(q, model, types, error)
                     : sl_fail(error, SL_ERR_NOMEM, "out of memory for the types of tensors");
    for (uint64_t i = 0; i < list->count; i++) {
        tied = tied && sl_tensor_role_of(list->tensors[i].name) != SL_ROLE_OUTPUT;
    }
    for (uint64_t i = 0; i < list->count && code == 0; i++) {
        file_tensor *t = &list->tensors[i];
        sl_qtype type = t->exact ? SL_QTYPE_F32 : types[i].type;
        code = t->exact ? 0 : asked_type(q, t->name, tied, &type, error);
        code = code ? code : set_type(list, t, type, error);
    }
    for (uint64_t i = 0; i < q->options->pattern_count && code == 0; i++) {
        if (!q->matched[i]) {
            code = sl_fail(error, SL_ERR_INVALID, "pattern \"%.100s\" is found in the name of no matrix",
                           q->options->patterns[i].pattern);
        }
    }
    sl_free(types);
    return code;
}

/* ---- importance
 * ---------------------------------------------------------------------------------------------------- */

static int find_importance(quantization *q, sl_error *error) {
    for (uint64_t i = 0; i < q->list.count; i++) {
        file_tensor *t = &q->list.tensors[i];
        const sl_importance_entry *entry = t->exact ? NULL : sl_importance_find(&q->importance, t->name);
        const uint64_t matrices = t->shape.dim_count > 2 ? t->shape.dims[2] : 1;
        if (!entry) {
            continue;
        }
        if (entry->count == t->columns * matrices) {
            t->importance = entry->means;
        } else if (sl_tensor_role_of(t->name) != SL_ROLE_EMBEDDING) {
            return sl_fail(error, SL_ERR_FORMAT, "%s: has %llu values for %.100s, which has %llu columns",
                           q->options->importance, (unsigned long long)entry->count, t->name,
                           (unsigned long long)(t->columns * matrices));
        }
    }
    return 0;
}

/* As llama-quantize notes it. */
static int importance_metadata(const quantization *q, sl_error *error) {
    const sl_importance *importance = &q->importance;
    int code =
        sl_gguf_writer_string(q->writer, "quantize.imatrix.file", sl_view_of(q->options->importance), error);
    if (code == 0 && importance->dataset[0]) {
        code = sl_gguf_writer_string(q->writer, "quantize.imatrix.dataset", sl_view_of(importance->dataset),
                                     error);
    }
    code = code ? code
                : sl_gguf_writer_unsigned(q->writer, "quantize.imatrix.entries_count", SL_GGUF_U32,
                                          importance->count & UINT32_MAX, error);
    return code ? code
                : sl_gguf_writer_unsigned(q->writer, "quantize.imatrix.chunks_count", SL_GGUF_U32,
                                          importance->chunks & UINT32_MAX, error);
}

/* ---- the file
 * ------------------------------------------------------------------------------------------------------ */

static void report_tensors(const quantization *q) {
    for (uint64_t i = 0; i < q->list.count && q->options->tensor; i++) {
        const file_tensor *t = &q->list.tensors[i];
        sl_quantized_tensor report = {.name = t->name,
                                      .dim_count = t->shape.dim_count,
                                      .from = t->from,
                                      .to = t->shape.type,
                                      .wanted = t->wanted,
                                      .from_bytes = t->rows * t->from_row_bytes,
                                      .to_bytes = t->rows * t->row_bytes};
        memcpy(report.dims, t->shape.dims, sizeof report.dims);
        q->options->tensor(q->options->context, &report);
    }
}

/* All that comes after the source's metadata and the list of its tensors. */
static int write_model(quantization *q, sl_mixture_model model, sl_error *error) {
    const sl_quantize_options *o = q->options;
    const uint32_t file_type =
        o->pure ? sl_qtype_get(sl_mixture_base(o->mixture))->file_type : sl_mixture_file_type(o->mixture);
    const file_job job = {q->writer, q->output, q->progress, q->file_bytes, !o->dry_run};
    model.importance = o->importance != NULL;
    int code = sl_file_write_type(q->writer, file_type, error);
    code = code || !o->importance ? code : importance_metadata(q, error);
    code = code ? code : choose_types(q, &model, error);
    code = code ? code : place_scales(&q->list, error);
    code = code ? code : find_importance(q, error);
    if (code == 0) {
        report_tensors(q);
    }
    return code ? code : sl_file_write_list(&job, &q->list, error);
}

static int convert_gguf(quantization *q, const sl_gguf *gguf, sl_error *error) {
    int code = copy_metadata(q->writer, gguf, error);
    code = code ? code : list_gguf(&q->list, gguf, error);
    return code ? code : write_model(q, gguf_model(gguf), error);
}

static int convert_folder(quantization *q, const sl_source *source, sl_error *error) {
    sl_config config;
    sl_program program = {0};
    sl_owned owned = {0};
    sl_binding binding = {0};
    int code = sl_config_read(source, &config, error);
    code = code ? code : sl_model_bind(&config, source, &program, &owned, &binding, error);
    config.draft_layers = code ? 0 : binding.draft_layers;
    if (code == 0) {
        config.rope_factors = config.rope.scaling == SL_ROPE_SCALING_LLAMA3 ||
                              config.rope.scaling == SL_ROPE_SCALING_PROPORTIONAL;
        folder_list folder = {&q->list, &config, &binding, &program};
        code = folder_metadata(source, &config, q->writer, error);
        code = code ? code : sl_config_tensors(&config, list_fact, &folder, error);
        code = code ? code : write_model(q, folder_model(&config), error);
    }
    sl_binding_free(&binding);
    sl_program_free(&program);
    sl_owned_free(&owned);
    return code;
}

/* Everything that can be wrong with the options, before the model is looked at. */
static int prepare(quantization *q, const char *input, sl_error *error) {
    const sl_quantize_options *o = q->options;
    int code = 0;
    q->patterns = sl_alloc_zero((size_t)o->pattern_count + 1, sizeof *q->patterns);
    q->matched = sl_alloc_zero((size_t)o->pattern_count + 1, sizeof *q->matched);
    if (!q->patterns || !q->matched) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for patterns");
    }
    for (uint64_t i = 0; i < o->pattern_count && code == 0; i++) {
        code = sl_pattern_compile(o->patterns[i].pattern, &q->patterns[i], error);
    }
    if (code == 0 && !o->dry_run) {
        const char *inputs[] = {input, o->importance};
        const sl_output_rules rules = {o->replace, inputs, o->importance ? 2 : 1};
        code = sl_output_file_check(q->output, &rules, error);
    }
    return code || !o->importance ? code : sl_importance_read(&q->importance, o->importance, error);
}

static void release(quantization *q) {
    for (uint64_t i = 0; q->patterns && i < q->options->pattern_count; i++) {
        sl_pattern_free(q->patterns[i]);
    }
    sl_free(q->patterns);
    sl_free(q->matched);
    sl_importance_free(&q->importance);
    list_free(&q->list);
}

int sl_quantize_file(const char *input, const char *output, const sl_quantize_options *options,
                     const sl_file_progress *progress, uint64_t *file_bytes, sl_error *error) {
    const char *inputs[] = {input, options->importance};
    const sl_output_rules rules = {options->replace, inputs, options->importance ? 2 : 1};
    quantization q = {.options = options,
                      .progress = progress,
                      .output = options->dry_run ? input : output,
                      .file_bytes = file_bytes};
    sl_source *source = NULL;
    int code = prepare(&q, input, error);
    code = code ? code : sl_source_open(input, &source, error);
    code = code ? code : sl_gguf_writer_open(q.output, options->dry_run ? NULL : &rules, &q.writer, error);
    if (code == 0) {
        const sl_gguf *gguf = sl_source_gguf(source);
        code = gguf ? convert_gguf(&q, gguf, error) : convert_folder(&q, source, error);
    }
    sl_gguf_writer_free(q.writer);
    sl_source_close(source);
    release(&q);
    return code;
}
