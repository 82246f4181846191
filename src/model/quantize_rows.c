/* The rows of a file's tensors: decoded, put into order, encoded and written, by all processors. */
#include "model/quantize.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/map.h"
#include "base/pool.h"
#include "quant/convert.h"
#include "quant/weighted.h"

#include <math.h>

static uint64_t source_index(const file_order *o, uint64_t index) {
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
    if (o->kind == ORDER_JOINED) {
        const uint64_t head = index / (2 * o->ratio), within = index % (2 * o->ratio);
        return within < o->ratio ? (o->heads + head) * o->ratio + within
                                 : head * o->ratio + within - o->ratio;
    }
    return index;
}

enum { BATCH_ELEMENTS = 4 << 20, MOST_THREADS = 256, MOST_BLOCK = 256 };

/* What is wrong with a row. */
typedef enum fault { NOT_FINITE, TOO_LARGE, FAULTS } fault;

typedef struct batch {
    const file_tensor *tensor;
    uint64_t first, rows;
    unsigned char *out; /* [rows][row_bytes] */
    float *scratch;     /* [threads][2][columns] */
    uint64_t *faults;   /* [threads]: row * FAULTS + fault of the first bad row, UINT64_MAX: none */
} batch;

static bool all_finite(const float *values, uint64_t count) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= (sl_f32_bits(values[i]) & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

static void scale_row(const file_tensor *t, uint64_t row, float *values) {
    float scale; /* anywhere in the file */
    memcpy(&scale, t->scales + (t->scale_count == 1 ? 0 : row / (t->rows / t->scale_count)), sizeof scale);
    for (uint64_t i = 0; i < t->columns; i++) {
        values[i] *= scale;
    }
}

static void encode_row(const file_tensor *t, uint64_t row, const float *values, unsigned char *out) {
    const uint64_t matrix = t->importance ? row / t->shape.dims[1] : 0;
    if (!t->importance || !sl_qtype_encode_weighted(t->shape.type, values,
                                                    t->importance + matrix * t->columns, out, t->columns)) {
        sl_qtype_get(t->shape.type)->encode(values, out, t->columns);
    }
}

/* A row that is a column of the source's matrix: of each of its rows the block with the element. */
static void decode_turned(const file_tensor *t, uint64_t row, float *values) {
    const sl_qtype_info *info = sl_qtype_get(t->from);
    const uint64_t matrix = row / t->shape.dims[1], column = row % t->shape.dims[1];
    const uint64_t block = column / info->block_elements;
    float elements[MOST_BLOCK];
    for (uint64_t i = 0; i < t->columns; i++) {
        info->decode(t->data + (matrix * t->columns + i) * t->from_row_bytes + block * info->block_bytes,
                     elements, info->block_elements);
        values[i] = elements[column % info->block_elements];
    }
}

/* Returns a fault, or FAULTS. */
static fault convert_row(const file_tensor *t, uint64_t row, unsigned char *out, float *values,
                         float *ordered) {
    const unsigned char *from = t->data + source_index(&t->row_order, row) * t->from_row_bytes;
    const bool plain = t->column_order.kind == ORDER_SAME && t->add == 0 && !t->negated_exp;
    if (t->turned) {
        decode_turned(t, row, values);
    } else {
        sl_qtype_get(t->from)->decode(from, values, t->columns);
    }
    if (!all_finite(values, t->columns)) {
        return NOT_FINITE;
    }
    if (plain && !t->scales && !t->turned && t->from == t->shape.type) {
        memcpy(out, from, (size_t)t->row_bytes);
        return FAULTS;
    }
    if (t->scales) {
        scale_row(t, row, values);
    }
    const float *result = values;
    if (!plain) {
        for (uint64_t i = 0; i < t->columns; i++) {
            const float value = values[source_index(&t->column_order, i)] + t->add;
            ordered[i] = t->negated_exp ? -expf(value) : value;
        }
        result = ordered;
    }
    encode_row(t, row, result, out);
    sl_qtype_get(t->shape.type)->decode(out, values, t->columns); /* what readers will see */
    return all_finite(values, t->columns) ? FAULTS : TOO_LARGE;
}

static void convert_batch(void *context, int thread, int threads) {
    const batch *b = context;
    const file_tensor *t = b->tensor;
    const uint64_t begin = b->rows * (uint64_t)thread / (uint64_t)threads;
    const uint64_t end = b->rows * (uint64_t)(thread + 1) / (uint64_t)threads;
    float *values = b->scratch + 2 * (uint64_t)thread * t->columns;
    b->faults[thread] = UINT64_MAX;
    for (uint64_t row = begin; row < end && b->faults[thread] == UINT64_MAX; row++) {
        const fault fault =
            convert_row(t, b->first + row, b->out + row * t->row_bytes, values, values + t->columns);
        b->faults[thread] = fault == FAULTS ? UINT64_MAX : (b->first + row) * FAULTS + fault;
    }
}

typedef struct conversion {
    const char *path;
    sl_gguf_writer *writer;
    sl_pool *pool;
    unsigned char *out;
    float *scratch;
    uint64_t *faults;
    uint64_t out_bytes, scratch_bytes;
    uint64_t done, total;
    const sl_file_progress *progress;
} conversion;

static uint64_t batch_rows(const file_tensor *t) {
    const uint64_t rows = BATCH_ELEMENTS / t->columns;
    return rows < 1 ? 1 : rows < t->rows ? rows : t->rows;
}

static int check_batch(const conversion *c, const batch *b, sl_error *error) {
    uint64_t first = UINT64_MAX;
    const int lost = sl_map_check(b->tensor->data, error);
    if (lost) {
        return lost;
    }
    for (int thread = 0; thread < sl_pool_threads(c->pool); thread++) {
        first = b->faults[thread] < first ? b->faults[thread] : first;
    }
    if (first == UINT64_MAX) {
        return 0;
    }
    const file_tensor *t = b->tensor;
    const unsigned long long row = first / FAULTS;
    return first % FAULTS == NOT_FINITE
               ? sl_fail(error, SL_ERR_FORMAT,
                         "tensor %.100s: row %llu has a weight that is no finite number", t->name, row)
               : sl_fail(error, SL_ERR_FORMAT,
                         "tensor %.100s: row %llu has weights that are too large for %s", t->name, row,
                         sl_qtype_get(t->shape.type)->name);
}

static int write_tensor(conversion *c, const file_tensor *t, sl_error *error) {
    int code = sl_file_report(c->progress, c->path, c->done, c->total, error);
    for (uint64_t row = 0; row < t->rows && code == 0;) {
        const uint64_t left = t->rows - row, most = batch_rows(t);
        batch b = {.tensor = t,
                   .first = row,
                   .rows = left < most ? left : most,
                   .out = c->out,
                   .scratch = c->scratch,
                   .faults = c->faults};
        sl_pool_run(c->pool, convert_batch, &b);
        code = check_batch(c, &b, error);
        code = code ? code : sl_gguf_writer_data(c->writer, c->out, b.rows * t->row_bytes, error);
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
    c->faults = code ? NULL : sl_alloc_zero((size_t)threads, sizeof *c->faults);
    if (code == 0 && (!c->out || !c->scratch || !c->faults)) {
        code = sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for rows", c->path);
    }
    c->total = list->bytes;
    for (uint64_t i = 0; i < list->count && code == 0; i++) {
        code = write_tensor(c, &list->tensors[i], error);
    }
    sl_free(c->out);
    sl_free(c->scratch);
    sl_free(c->faults);
    sl_pool_destroy(c->pool);
    return code;
}

int sl_file_write_list(const file_job *job, const file_list *list, sl_error *error) {
    conversion c = {.path = job->path, .writer = job->writer, .progress = job->progress};
    int code = 0;
    for (uint64_t i = 0; i < list->count && code == 0; i++) {
        code = sl_gguf_writer_tensor(job->writer, list->tensors[i].name, &list->tensors[i].shape, error);
    }
    code = code ? code : sl_gguf_writer_begin(job->writer, job->file_bytes, error);
    if (code || !job->data) {
        return code;
    }
    code = write_tensors(&c, list, error);
    return code ? code : sl_gguf_writer_finish(job->writer, error);
}
