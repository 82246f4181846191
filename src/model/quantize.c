/* Writes a model's weights in another type: a list of tensors, each a run of rows in some order of the
 * source's, then one loop that decodes and encodes them. */
#include "model/files.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "format/index.h"
#include "model/bind.h"

#include <math.h>
#include <stdio.h>

/* ---- what a type means for a file
 * --------------------------------------------------------------------------------- */

sl_qtype sl_file_matrix_type(sl_qtype type, uint64_t columns) {
    const sl_qtype row[] = {type, SL_QTYPE_Q8_0, SL_QTYPE_F16};
    int i = 0;
    while (columns % sl_qtype_get(row[i])->block_elements != 0) {
        i++; /* F16 has blocks of one */
    }
    return row[i];
}

int sl_file_write_type(sl_gguf_writer *writer, sl_qtype type, sl_error *error) {
    const int code = sl_gguf_writer_unsigned(writer, "general.quantization_version", SL_GGUF_U32, 2, error);
    return code ? code
                : sl_gguf_writer_unsigned(writer, "general.file_type", SL_GGUF_U32,
                                          sl_qtype_get(type)->file_type, error);
}

int sl_file_report(const sl_file_progress *progress, const char *path, uint64_t done, uint64_t total,
                   sl_error *error) {
    return !progress || !progress->report || progress->report(progress->context, done, total)
               ? 0
               : sl_fail(error, SL_ERR_CANCELLED, "%s: stopped before it was complete", path);
}

/* ---- the list of tensors
 * ------------------------------------------------------------------------------------------- */

/* Which place of the source the index-th row or column of the output comes from. */
typedef enum order_kind {
    ORDER_SAME,
    ORDER_PAIRS, /* heads of `size`: the two halves of a head side by side, element by element (GGUF's RoPE
                    pairs) */
    ORDER_PART,  /* blocks of `size` out of blocks of 2 * size, from their `part`-th half */
    ORDER_TILED, /* from `first` on, blocks of `size`: block t is the source's t % heads * ratio + t / heads,
                    so that those which share a key head lie `heads` apart and not side by side */
} order_kind;

typedef struct order {
    order_kind kind;
    uint64_t size, part, first, heads, ratio;
} order;

static uint64_t source_index(const order *o, uint64_t index) {
    if (o->kind == ORDER_PAIRS) {
        const uint64_t within = index % o->size;
        return index - within + within % 2 * (o->size / 2) + within / 2;
    }
    if (o->kind == ORDER_PART) {
        return (index / o->size * 2 + o->part) * o->size + index % o->size;
    }
    if (o->kind == ORDER_TILED && index >= o->first) {
        const uint64_t tile = (index - o->first) / o->size, within = (index - o->first) % o->size;
        return o->first + (tile % o->heads * o->ratio + tile / o->heads) * o->size + within;
    }
    return index;
}

typedef struct file_tensor {
    const char *name;
    sl_gguf_shape shape; /* as written */
    uint64_t rows, columns, row_bytes;
    sl_qtype from;
    const unsigned char *data; /* the source's [rows][columns], or more with ORDER_PART */
    uint64_t from_row_bytes;
    order row_order, column_order;
    const float *scales; /* of all elements of a matrix, [matrices]; NULL: none */
    uint64_t scale_count;
    float add;        /* to every element */
    bool negated_exp; /* -exp of every element */
} file_tensor;

typedef struct file_list {
    sl_arena arena; /* names, and values that are in no file */
    file_tensor *tensors;
    uint64_t count, capacity, bytes;
} file_list;

static void list_free(file_list *list) {
    sl_arena_free(&list->arena);
    sl_free(list->tensors);
}

/* Adds a tensor whose name, shape and source are set; `type` is what it is to be written in. */
static int list_add(file_list *list, const file_tensor *tensor, sl_qtype type, sl_error *error) {
    file_tensor *tensors = sl_grow(list->tensors, list->count, &list->capacity, sizeof *tensors);
    if (!tensors) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a list of tensors");
    }
    list->tensors = tensors;
    file_tensor *t = &tensors[list->count++];
    *t = *tensor;
    t->shape.type = type;
    t->columns = t->shape.dims[0];
    t->rows = 1;
    for (uint32_t i = 1; i < t->shape.dim_count; i++) {
        t->rows *= t->shape.dims[i];
    }
    /* The source was checked when it was opened: nothing here is larger than it by more than its blocks. */
    uint64_t bytes;
    if (!sl_qtype_bytes(type, t->columns, &t->row_bytes) ||
        !sl_qtype_bytes(t->from, t->columns, &t->from_row_bytes) ||
        !sl_mul_u64(t->row_bytes, t->rows, &bytes) || !sl_add_u64(list->bytes, bytes, &list->bytes)) {
        return sl_fail(error, SL_ERR_LIMIT, "tensor %s is too large as %s", t->name,
                       sl_qtype_get(type)->name);
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

static sl_qtype gguf_type_of(const sl_tensor *tensor, sl_qtype type) {
    /* What llama-quantize leaves alone too: small, and the result depends on it. */
    static const char *const exact[] = {"_norm.", "ffn_gate_inp", "ssm_conv1d", "rope_freqs", NULL};
    const bool matrix =
        (tensor->dim_count == 2 || tensor->dim_count == 3) && !contains_any(tensor->name, exact);
    return matrix ? sl_file_matrix_type(type, tensor->dims[0]) : SL_QTYPE_F32;
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

/* Scales of whole NVFP4 matrices (model/scaled.h) go into the values of other types, and stay beside NVFP4.
 */
static int list_gguf(file_list *list, const sl_gguf *gguf, sl_qtype type, sl_error *error) {
    int code = 0;
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf) && code == 0; i++) {
        const sl_tensor *from = sl_gguf_tensor_at(gguf, i);
        const sl_tensor *scale = is_nvfp4(from) ? gguf_sibling(gguf, from->name, "scale") : NULL;
        const char *last = strrchr(from->name, '.');
        const bool beside = last && (strcmp(last, ".scale") == 0 || strcmp(last, ".input_scale") == 0) &&
                            is_nvfp4(gguf_sibling(gguf, from->name, "weight"));
        file_tensor tensor = {.name = from->name, .from = from->type, .data = from->data};
        tensor.shape.dim_count = from->dim_count;
        memcpy(tensor.shape.dims, from->dims, sizeof tensor.shape.dims);
        if (beside && type != SL_QTYPE_NVFP4) {
            continue;
        }
        if (scale && type != SL_QTYPE_NVFP4) {
            if (scale->type != SL_QTYPE_F32 || (scale->elements != 1 && scale->elements != from->dims[2])) {
                return sl_fail(error, SL_ERR_FORMAT,
                               "tensor %.100s must be f32, one number for each expert, or one", scale->name);
            }
            tensor.scales = scale->data;
            tensor.scale_count = scale->elements;
        }
        code = list_add(list, &tensor, gguf_type_of(from, type), error);
    }
    return code;
}

static int copy_metadata(sl_gguf_writer *writer, const sl_gguf *gguf, sl_error *error) {
    int code = 0;
    for (uint64_t i = 0; i < sl_gguf_entry_count(gguf) && code == 0; i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(gguf, i);
        if (strcmp(entry->key, "general.file_type") != 0 &&
            strcmp(entry->key, "general.quantization_version") != 0) {
            code = sl_gguf_writer_copy(writer, entry, error);
        }
    }
    return code;
}

/* ---- from a Hugging Face folder
 * ------------------------------------------------------------------------------------ */

typedef struct folder_list {
    file_list *list;
    const sl_config *config;
    const sl_binding *binding;
    const sl_program *program;
    sl_qtype type;
} folder_list;

/* How GGUF stores what a checkpoint has: llama.cpp's conversion/ is the definition. */
static void gguf_conventions(const sl_config *config, sl_tensor_id id, file_tensor *tensor) {
    const uint64_t head = (uint64_t)config->head_size;
    const bool pairs = config->family->gguf_rope == SL_ROPE_PAIRS;
    order tiled = {.kind = ORDER_TILED, .size = (uint64_t)config->delta_value_size};
    if (config->delta_key_heads > 0) {
        tiled.heads = (uint64_t)config->delta_key_heads;
        tiled.ratio = (uint64_t)(config->delta_value_heads / config->delta_key_heads);
    }
    switch (id) {
    case SL_TENSOR_QUERY:
    case SL_TENSOR_KEY:
        tensor->row_order = (order){.kind = pairs ? ORDER_PAIRS : ORDER_SAME, .size = head};
        break;
    case SL_TENSOR_QUERY_BIAS:
    case SL_TENSOR_KEY_BIAS:
        tensor->column_order = (order){.kind = pairs ? ORDER_PAIRS : ORDER_SAME, .size = head};
        break;
    case SL_TENSOR_FINAL_NORM:
    case SL_TENSOR_ATTENTION_NORM:
    case SL_TENSOR_POST_ATTENTION_NORM:
    case SL_TENSOR_FEED_FORWARD_NORM:
    case SL_TENSOR_POST_FEED_FORWARD_NORM:
    case SL_TENSOR_QUERY_NORM:
    case SL_TENSOR_KEY_NORM:
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
    case SL_TENSOR_DELTA_OUTPUT:
        tensor->column_order = tiled;
        break;
    default:
        break;
    }
}

/* rope_freqs.weight is how GGUF says Llama 3's scaling. */
static int rope_factors(folder_list *f, file_tensor *tensor, sl_error *error) {
    float *factors = sl_arena_alloc(&f->list->arena, (size_t)f->config->rope_dims / 2, sizeof *factors);
    if (!factors) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for RoPE factors");
    }
    sl_rope_factors(&f->config->rope, f->config->rope_dims, factors);
    tensor->from = SL_QTYPE_F32;
    tensor->data = (const unsigned char *)factors;
    return 0;
}

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
    gguf_conventions(f->config, fact->id, &tensor);
    const bool gate = fact->id == SL_TENSOR_GATE_EXPERTS, up = fact->id == SL_TENSOR_UP_EXPERTS;
    if (index == SL_NONE && (gate || up)) {
        index = indices[SL_TENSOR_FUSED_EXPERTS];
        tensor.row_order = (order){.kind = ORDER_PART, .size = fact->dims[1], .part = up};
    }
    if (fact->id == SL_TENSOR_ROPE_FACTORS) {
        const int code = rope_factors(f, &tensor, error);
        return code ? code : list_add(f->list, &tensor, SL_QTYPE_F32, error);
    }
    if (index == SL_NONE) {
        return sl_fail(error, SL_ERR_INTERNAL, "tensor %s was not bound", fact->name);
    }
    tensor.from = f->program->weights[index].type;
    tensor.data = f->program->weights[index].data;
    const bool exact = fact->vector || fact->id == SL_TENSOR_ROUTER;
    return list_add(f->list, &tensor, exact ? SL_QTYPE_F32 : sl_file_matrix_type(f->type, fact->dims[0]),
                    error);
}

/* ---- writing
 * ------------------------------------------------------------------------------------------------------- */

enum { BATCH_ELEMENTS = 4 << 20, MOST_THREADS = 16 };

typedef struct batch {
    const file_tensor *tensor;
    uint64_t first, rows;
    unsigned char *out; /* [rows][row_bytes] */
    float *scratch;     /* [threads][2][columns] */
} batch;

static void convert_row(const file_tensor *t, uint64_t row, unsigned char *out, float *values,
                        float *ordered) {
    const unsigned char *from = t->data + source_index(&t->row_order, row) * t->from_row_bytes;
    const bool plain = t->column_order.kind == ORDER_SAME && t->add == 0 && !t->negated_exp;
    if (plain && !t->scales && t->from == t->shape.type) {
        memcpy(out, from, (size_t)t->row_bytes);
        return;
    }
    sl_qtype_get(t->from)->decode(from, values, t->columns);
    if (t->scales) {
        float scale; /* anywhere in the file */
        memcpy(&scale, t->scales + (t->scale_count == 1 ? 0 : row / (t->rows / t->scale_count)),
               sizeof scale);
        for (uint64_t i = 0; i < t->columns; i++) {
            values[i] *= scale;
        }
    }
    const float *result = values;
    if (!plain) {
        for (uint64_t i = 0; i < t->columns; i++) {
            const float value = values[source_index(&t->column_order, i)] + t->add;
            ordered[i] = t->negated_exp ? -expf(value) : value;
        }
        result = ordered;
    }
    sl_qtype_get(t->shape.type)->encode(result, out, t->columns);
}

static void convert_batch(void *context, int thread, int threads) {
    const batch *b = context;
    const file_tensor *t = b->tensor;
    const uint64_t begin = b->rows * (uint64_t)thread / (uint64_t)threads;
    const uint64_t end = b->rows * (uint64_t)(thread + 1) / (uint64_t)threads;
    float *values = b->scratch + 2 * (uint64_t)thread * t->columns;
    for (uint64_t row = begin; row < end; row++) {
        convert_row(t, b->first + row, b->out + row * t->row_bytes, values, values + t->columns);
    }
}

typedef struct conversion {
    const char *path;
    sl_gguf_writer *writer;
    sl_pool *pool;
    unsigned char *out;
    float *scratch;
    uint64_t out_bytes, scratch_bytes;
    uint64_t done, total;
    const sl_file_progress *progress;
} conversion;

static uint64_t batch_rows(const file_tensor *t) {
    const uint64_t rows = BATCH_ELEMENTS / t->columns;
    return rows < 1 ? 1 : rows < t->rows ? rows : t->rows;
}

static int write_tensor(conversion *c, const file_tensor *t, sl_error *error) {
    int code = sl_file_report(c->progress, c->path, c->done, c->total, error);
    for (uint64_t row = 0; row < t->rows && code == 0;) {
        const uint64_t left = t->rows - row, most = batch_rows(t);
        batch b = {.tensor = t,
                   .first = row,
                   .rows = left < most ? left : most,
                   .out = c->out,
                   .scratch = c->scratch};
        sl_pool_run(c->pool, convert_batch, &b);
        code = sl_gguf_writer_data(c->writer, c->out, b.rows * t->row_bytes, error);
        row += b.rows;
        c->done += b.rows * t->row_bytes;
        code = code ? code : sl_file_report(c->progress, c->path, c->done, c->total, error);
    }
    return code;
}

static int write_tensors(conversion *c, const file_list *list, sl_error *error) {
    const int cpus = sl_cpu_count(), threads = cpus < MOST_THREADS ? cpus : MOST_THREADS;
    int code = sl_pool_create(threads, &c->pool, error);
    for (uint64_t i = 0; i < list->count; i++) {
        const file_tensor *t = &list->tensors[i];
        const uint64_t out = batch_rows(t) * t->row_bytes, scratch = 2 * t->columns * sizeof(float);
        c->out_bytes = out > c->out_bytes ? out : c->out_bytes;
        c->scratch_bytes = scratch > c->scratch_bytes ? scratch : c->scratch_bytes;
    }
    c->out = code ? NULL : sl_alloc((size_t)c->out_bytes);
    c->scratch = code ? NULL : sl_alloc_zero((size_t)threads, (size_t)c->scratch_bytes);
    if (code == 0 && (!c->out || !c->scratch)) {
        code = sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for rows", c->path);
    }
    c->total = list->bytes;
    for (uint64_t i = 0; i < list->count && code == 0; i++) {
        code = write_tensor(c, &list->tensors[i], error);
    }
    sl_free(c->out);
    sl_free(c->scratch);
    sl_pool_destroy(c->pool);
    return code;
}

/* Everything after the metadata. */
static int write_list(sl_gguf_writer *writer, const char *path, const file_list *list,
                      const sl_file_progress *progress, sl_error *error) {
    conversion c = {.path = path, .writer = writer, .progress = progress};
    int code = 0;
    for (uint64_t i = 0; i < list->count && code == 0; i++) {
        code = sl_gguf_writer_tensor(writer, list->tensors[i].name, &list->tensors[i].shape, error);
    }
    code = code ? code : sl_gguf_writer_begin(writer, NULL, error);
    code = code ? code : write_tensors(&c, list, error);
    return code ? code : sl_gguf_writer_finish(writer, error);
}

static int convert_gguf(const sl_gguf *gguf, sl_gguf_writer *writer, sl_qtype type, const char *path,
                        const sl_file_progress *progress, sl_error *error) {
    file_list list = {0};
    int code = copy_metadata(writer, gguf, error);
    code = code ? code : sl_file_write_type(writer, type, error);
    code = code ? code : list_gguf(&list, gguf, type, error);
    code = code ? code : write_list(writer, path, &list, progress, error);
    list_free(&list);
    return code;
}

static int folder_metadata(const sl_source *source, const sl_config *config, sl_gguf_writer *writer,
                           sl_qtype type, sl_error *error) {
    const sl_hf *hf = sl_source_hf(source);
    int code = sl_config_write_gguf_metadata(config, writer, error);
    code = code ? code : sl_file_write_type(writer, type, error);
    if (code == 0 && sl_hf_tokenizer_path(hf)) {
        code = sl_file_write_tokenizer(writer, sl_hf_tokenizer_path(hf), sl_hf_tokenizer_config_path(hf),
                                       config->vocabulary, error);
    }
    return code;
}

static int convert_folder(const sl_source *source, sl_gguf_writer *writer, sl_qtype type, const char *path,
                          const sl_file_progress *progress, sl_error *error) {
    sl_config config;
    sl_program program = {0};
    sl_owned owned = {0};
    sl_binding binding = {0};
    file_list list = {0};
    int code = sl_config_read(source, &config, error);
    code = code ? code : sl_model_bind(&config, source, &program, &owned, &binding, error);
    if (code == 0) {
        config.rope_factors = config.rope.scaling == SL_ROPE_SCALING_LLAMA3;
        folder_list folder = {&list, &config, &binding, &program, type};
        code = folder_metadata(source, &config, writer, type, error);
        code = code ? code : sl_config_tensors(&config, list_fact, &folder, error);
        code = code ? code : write_list(writer, path, &list, progress, error);
    }
    list_free(&list);
    sl_binding_free(&binding);
    sl_program_free(&program);
    sl_owned_free(&owned);
    return code;
}

int sl_quantize_file(const char *input, const char *output, sl_qtype type, const sl_file_progress *progress,
                     sl_error *error) {
    sl_source *source;
    sl_gguf_writer *writer = NULL;
    int code = sl_source_open(input, &source, error);
    if (code) {
        return code;
    }
    code = sl_gguf_writer_create(output, &writer, error);
    if (code == 0) {
        const sl_gguf *gguf = sl_source_gguf(source);
        code = gguf ? convert_gguf(gguf, writer, type, output, progress, error)
                    : convert_folder(source, writer, type, output, progress, error);
    }
    sl_gguf_writer_free(writer);
    sl_source_close(source);
    return code;
}
