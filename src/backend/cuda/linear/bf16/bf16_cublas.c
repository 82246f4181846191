/* Products for many rows by cuBLASLt. Class "bf16/cublaslt": x and the weights as in "bf16/mma"; the order of
 * adding is the library's.
 *
 * Weights are decoded to BF16 in a scratch of the workspace pool, a bounded number of rows at a time, and the
 * library multiplies from there; BF16 weights are read where they are. Segments that are neighbours in y are
 * one product. All rows of the bucket are multiplied; what lies in rows that the step does not have is
 * nobody's, and x is cleared there.
 *
 * The library is opened at run time. What is declared of it here is its documented interface (cuBLAS library,
 * "Using the cuBLASLt API"), so that building needs none of its headers. The algorithm of a shape is chosen
 * when an op is resolved, from a list that the library orders by its own estimate. Which one it is may depend
 * on the number of rows; the library promises nothing about their bits.
 *
 * Class "bf16/k16" (k16.h): the same, but weights are decoded as that class has it, and where columns are cut
 * into ranges each is a product, which adds the sums of those before; where the next launch adds them
 * (run_ranges) they are a batch, whose sums lie apart. None of the algorithms splits a sum,
 * and all of them gave the class's bits where it was tried (tests/kernels compares them on the machine at
 * hand). */
#include "backend/cuda/types/integer_types.h"
#include "quant/codebook.h"
#include "backend/cuda/linear/bf16/bf16_cublas.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/panels.h"
#include "backend/cuda/run/run.h"
#include "backend/cuda/linear/k16/k16.h"
#include "backend/cuda/run/library.h"
#include "base/alloc.h"
#include "quant/convert.h"

#include <dlfcn.h>
#include <library_types.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

/* ---- the library ---- */

typedef struct lt_algorithm {
    uint64_t data[8];
} lt_algorithm;

typedef struct lt_heuristic {
    lt_algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} lt_heuristic;

enum {
    LT_COMPUTE_F32 = 68,
    LT_TRANSPOSED = 1,
    /* cublasLtMatmulDescAttributes_t */
    LT_TRANSPOSE_A = 3,
    LT_EPILOGUE = 7,
    LT_BIAS = 8,
    LT_EPILOGUE_BIAS = 4,
    /* cublasLtMatmulPreferenceAttributes_t */
    LT_MOST_WORKSPACE = 1,
    LT_REDUCTIONS = 3,
    LT_ALIGNMENT_A = 5, /* then B, C, D */
    /* cublasLtMatrixLayoutAttribute_t */
    LT_BATCHES = 5,
    LT_BATCH_STRIDE = 6
};

static struct {
    pthread_once_t once;
    void *library;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*description_create)(void **description, int compute, int scale);
    int (*description_destroy)(void *description);
    int (*description_set)(void *description, int attribute, const void *value, size_t size);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int (*layout_destroy)(void *layout);
    int (*layout_set)(void *layout, int attribute, const void *value, size_t size);
    int (*preference_create)(void **preference);
    int (*preference_destroy)(void *preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t size);
    int (*heuristic)(void *handle, void *description, void *a, void *b, void *c, void *d, void *preference,
                     int wanted, lt_heuristic *found, int *count);
    int (*multiply)(void *handle, void *description, const void *alpha, const void *a, void *a_layout,
                    const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d,
                    void *d_layout, const lt_algorithm *algorithm, void *workspace, size_t bytes,
                    cudaStream_t stream);
} lt = {.once = PTHREAD_ONCE_INIT};

static void open_library(void) {
    /* By the loader's own rules, then where the toolkit puts it. */
    static const char *const places[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                         "/opt/cuda/lib64/libcublasLt.so.13"};
    const struct {
        const char *name;
        void *function;
    } symbols[] = {{"cublasLtCreate", &lt.create},
                   {"cublasLtDestroy", &lt.destroy},
                   {"cublasLtMatmulDescCreate", &lt.description_create},
                   {"cublasLtMatmulDescDestroy", &lt.description_destroy},
                   {"cublasLtMatmulDescSetAttribute", &lt.description_set},
                   {"cublasLtMatrixLayoutCreate", &lt.layout_create},
                   {"cublasLtMatrixLayoutDestroy", &lt.layout_destroy},
                   {"cublasLtMatrixLayoutSetAttribute", &lt.layout_set},
                   {"cublasLtMatmulPreferenceCreate", &lt.preference_create},
                   {"cublasLtMatmulPreferenceDestroy", &lt.preference_destroy},
                   {"cublasLtMatmulPreferenceSetAttribute", &lt.preference_set},
                   {"cublasLtMatmulAlgoGetHeuristic", &lt.heuristic},
                   {"cublasLtMatmul", &lt.multiply}};
    void *library = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !library; i++) {
        library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols && library; i++) {
        *(void **)symbols[i].function = dlsym(library, symbols[i].name);
        if (!*(void **)symbols[i].function) {
            dlclose(library);
            library = NULL;
        }
    }
    lt.library = library;
}

static bool has_library(void) {
    pthread_once(&lt.once, open_library);
    return lt.library != NULL;
}

/* ---- products ---- */

/* y[rows][y_stride] = x[rows][x_stride] weights[outputs][columns]^T: BF16 times BF16 to F32. The library
 * counts rows and columns the other way round: weights are its A, transposed, x is its B. */
typedef struct shape {
    int32_t rows, outputs, columns, stride, x_stride, y_stride; /* stride: of weights */
    uint32_t alignment[3]; /* of weights, x and y: powers of two, to 256 */
    const float *bias;     /* of one product with the shape; NULL: none has one */
    int32_t batches;       /* of `columns` each, side by side in weights and x, one behind the other in y */
} shape;

typedef struct product {
    struct product *next;
    shape shape;
    void *description, *weights, *x, *y;
    lt_algorithm algorithm;
} product;

/* Rows of an op's weights that are decoded and multiplied together. */
typedef struct part {
    sl_cuda_decode decode;
    const product *products[SL_K16_RANGES]; /* of each range of columns */
    const product *apart;                   /* of all of them; NULL: they are not stored apart */
    int32_t ranges;
    float factor;                 /* what sums are multiplied with */
    const unsigned char *weights; /* BF16 */
    const float *bias;
    float *y, *apart_y; /* apart_y: of the first range, in the scratch */
} part;

typedef struct parts {
    struct parts *next;
    unsigned char *apart; /* where the sums of ranges lie */
    int32_t count;
    part at[];
} parts;

struct sl_cuda_blas {
    void *handle, *gemm; /* of cuBLASLt, of cuBLAS; each when it is first needed */
    product *products;
    parts *ops;
};

#define LIBRARY_BYTES ((uint64_t)32 << 20) /* scratch of the library's own */
/* Of ranges' sums that lie apart, at most: what L2 keeps until they are added (docs/lab/k16-rows8.md). */
#define APART_BYTES ((uint64_t)48 << 20)

#define LT(call, error) lt_result(sl_cuda_inject(#call) ? 1 : (call), #call, (error))

static int lt_result(int code, const char *call, sl_error *error) {
    return code == 0 ? SL_OK
                     : sl_fail(error, code == 3 ? SL_ERR_NOMEM : SL_ERR_DEVICE, "cublasLt: %.*s: status %d",
                               (int)strcspn(call, "("), call, code);
}

static void free_product(product *p) {
    if (p->description) {
        lt.description_destroy(p->description);
    }
    void *const layouts[] = {p->weights, p->x, p->y};
    for (int i = 0; i < 3; i++) {
        if (layouts[i]) {
            lt.layout_destroy(layouts[i]);
        }
    }
    sl_free(p);
}

/* stride: elements from a batch to the next. */
static int batch_layout(void *layout, int32_t count, int64_t stride, sl_error *error) {
    const int status = LT(lt.layout_set(layout, LT_BATCHES, &count, sizeof count), error);
    return status ? status : LT(lt.layout_set(layout, LT_BATCH_STRIDE, &stride, sizeof stride), error);
}

static int batch(product *p, sl_error *error) {
    const shape *s = &p->shape;
    int status = batch_layout(p->weights, s->batches, s->columns, error);
    status = status ? status : batch_layout(p->x, s->batches, s->columns, error);
    return status ? status : batch_layout(p->y, s->batches, (int64_t)s->rows * s->y_stride, error);
}

static int describe(product *p, sl_error *error) {
    const shape *s = &p->shape;
    const int32_t transposed = LT_TRANSPOSED, epilogue = LT_EPILOGUE_BIAS;
    const uint64_t outputs = (uint64_t)s->outputs, rows = (uint64_t)s->rows, columns = (uint64_t)s->columns;
    int status = LT(lt.description_create(&p->description, LT_COMPUTE_F32, CUDA_R_32F), error);
    if (!status) {
        status =
            LT(lt.description_set(p->description, LT_TRANSPOSE_A, &transposed, sizeof transposed), error);
    }
    if (!status && s->bias) {
        status = LT(lt.description_set(p->description, LT_EPILOGUE, &epilogue, sizeof epilogue), error);
    }
    if (!status && s->bias) {
        status = LT(lt.description_set(p->description, LT_BIAS, &s->bias, sizeof s->bias), error);
    }
    if (!status) {
        status = LT(lt.layout_create(&p->weights, CUDA_R_16BF, columns, outputs, s->stride), error);
    }
    if (!status) {
        status = LT(lt.layout_create(&p->x, CUDA_R_16BF, columns, rows, s->x_stride), error);
    }
    if (!status) {
        status = LT(lt.layout_create(&p->y, CUDA_R_32F, outputs, rows, s->y_stride), error);
    }
    return status || s->batches == 1 ? status : batch(p, error);
}

/* The library's first choice among algorithms that add in one piece: no second pass over parts of a sum. */
static int choose(const sl_cuda_blas *blas, product *p, sl_error *error) {
    const uint32_t *alignment = p->shape.alignment, none = 0;
    const uint64_t most = LIBRARY_BYTES;
    void *preference = NULL;
    lt_heuristic found = {.status = 0};
    int count = 0;
    int status = LT(lt.preference_create(&preference), error);
    if (!status) {
        status = LT(lt.preference_set(preference, LT_MOST_WORKSPACE, &most, sizeof most), error);
    }
    if (!status) {
        status = LT(lt.preference_set(preference, LT_REDUCTIONS, &none, sizeof none), error);
    }
    for (int i = 0; i < 4 && !status; i++) {
        status = LT(
            lt.preference_set(preference, LT_ALIGNMENT_A + i, &alignment[i < 2 ? i : 2], sizeof *alignment),
            error);
    }
    if (!status) {
        status = LT(lt.heuristic(blas->handle, p->description, p->weights, p->x, p->y, p->y, preference, 1,
                                 &found, &count),
                    error);
    }
    if (!status && (count == 0 || found.status)) {
        status = sl_fail(error, SL_ERR_UNSUPPORTED, "cublasLt: no algorithm for %d rows of %d by %d",
                         (int)p->shape.rows, (int)p->shape.outputs, (int)p->shape.columns);
    }
    if (preference) {
        lt.preference_destroy(preference);
    }
    p->algorithm = found.algorithm;
    return status;
}

static bool same_shape(const shape *a, const shape *b) {
    return a->rows == b->rows && a->outputs == b->outputs && a->columns == b->columns &&
           a->stride == b->stride && a->x_stride == b->x_stride && a->y_stride == b->y_stride &&
           a->batches == b->batches && !a->bias == !b->bias &&
           memcmp(a->alignment, b->alignment, sizeof a->alignment) == 0;
}

static int find_product(sl_cuda_blas *blas, const shape *wanted, const product **result, sl_error *error) {
    for (product *p = blas->products; p; p = p->next) {
        if (same_shape(&p->shape, wanted)) {
            *result = p;
            return SL_OK;
        }
    }
    product *p = sl_alloc_zero(1, sizeof *p);
    if (!p) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for a product");
    }
    p->shape = *wanted;
    int status = describe(p, error);
    status = status ? status : choose(blas, p, error);
    if (status) {
        free_product(p);
        return status;
    }
    p->next = blas->products;
    blas->products = p;
    *result = p;
    return SL_OK;
}

/* ---- what an op is cut into ---- */

static int32_t panel_rows(sl_qtype type, int32_t columns, int32_t rows, int32_t count) {
    return type == SL_QTYPE_BF16 ? rows : sl_panel_rows(2 * (uint64_t)columns, rows, count);
}

/* Ranges of a LINEAR's columns that run_ranges stores apart, where y has so many bytes; 0: none.
 */
static int32_t ranges_apart(const sl_program *program, const sl_op *linear, uint64_t y_bytes,
                            int32_t processors) {
    static const float BIAS = 0.0f;
    sl_cuda_op op = {.weight_count = linear->u.linear.segment_count};
    for (int32_t s = 0; s < op.weight_count; s++) {
        const sl_linear_segment *segment = &linear->u.linear.segments[s];
        op.weights[s].rows = program->weights[segment->weight].rows;
        op.weights[s].columns = sl_cuda_columns(&program->weights[segment->weight]);
        op.weights[s].bias = segment->bias == SL_NONE ? NULL : &BIAS;
    }
    const int32_t ranges = sl_k16_ranges(&op, processors);
    const bool whole = op.weights[0].columns % (ranges * SL_K16_CHUNK) == 0; /* ranges of one length */
    return ranges > 1 && whole && (uint64_t)ranges * y_bytes <= APART_BYTES ? ranges : 0;
}

/* 0 where no device is asked about: then there is no question of ranges. */
static int32_t processors_of(const sl_backend *backend) {
    return backend ? sl_cuda_facts_of(backend)->processors : 0;
}

/* The sums of ranges lie behind the library's scratch and the weights. */
static uint64_t apart_offset(uint64_t weight_bytes) {
    return LIBRARY_BYTES + (weight_bytes + 255) / 256 * 256;
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_program *program = query->program;
    const sl_op_linear *linear = &query->op->u.linear;
    const sl_weight *weight = &program->weights[linear->segments[0].weight];
    const int32_t count = query->rows[query->values[query->op->out[0].value].rows];
    const int32_t columns = sl_cuda_columns(weight);
    uint64_t most = 0;
    for (int32_t s = 0; s < linear->segment_count && weight->type != SL_QTYPE_BF16 && !kernel->pack;) {
        const int32_t end = sl_panel_run_end(program, linear, s);
        const uint64_t rows =
            (uint64_t)panel_rows(weight->type, columns, sl_panel_run_rows(program, linear, s, end), count);
        const uint64_t bytes = rows * (uint64_t)columns * 2;
        most = bytes > most ? bytes : most;
        s = end;
    }
    const sl_value *y = &query->values[query->op->out[0].value];
    const uint64_t y_bytes = (uint64_t)count * sl_value_row_bytes(y->type, y->width);
    const int32_t apart =
        kernel->deterministic ? ranges_apart(program, query->op, y_bytes, processors_of(query->backend)) : 0;
    return 256 + apart_offset(most) + (uint64_t)apart * y_bytes;
}

static uint32_t alignment_of(const void *at, uint64_t stride) {
    const uint64_t bits = (uint64_t)(uintptr_t)at | stride | 256;
    return (uint32_t)(bits & (~bits + 1));
}

/* The pool aligns to 64; the library wants more. */
static unsigned char *library_scratch(const sl_cuda_op *op) {
    return op->scratch + (256 - (uintptr_t)op->scratch % 256) % 256;
}

/* BF16 weights that lie one behind the other are read as one matrix. */
static int32_t op_run_end(const sl_cuda_op *op, int32_t first) {
    const int32_t end = sl_panel_run_end(op->program, &op->op->u.linear, first);
    int32_t s = first + 1;
    if (op->weights[first].type != SL_QTYPE_BF16) {
        return end;
    }
    while (s < end && op->weights[s].data == op->weights[s - 1].data + (uint64_t)op->weights[s - 1].rows *
                                                                           op->weights[s - 1].row_bytes) {
        s++;
    }
    return s;
}

/* Rows [row, row + count) of the run of segments that begins at `first`; see also sl_panel_run_end. */
static void make_part(const sl_cuda_op *op, int32_t first, int32_t row, int32_t count, part *made) {
    sl_cuda_decode *decode = &made->decode;
    unsigned char *to = library_scratch(op) + LIBRARY_BYTES;
    made->y = (float *)(void *)op->out[0].data + op->out[0].column + op->weights[first].column + row;
    made->bias = op->weights[first].bias ? op->weights[first].bias + row : NULL;
    made->weights = to;
    decode->type = op->weights[first].type;
    decode->columns = op->weights[first].columns;
    decode->row_bytes = op->weights[first].row_bytes;
    for (int32_t before = 0, s = first; before < row + count; before += op->weights[s++].rows) {
        const sl_cuda_weight *from = &op->weights[s];
        const int32_t begin = row > before ? row - before : 0;
        const int32_t end = row + count - before < from->rows ? row + count - before : from->rows;
        const uint64_t elements = (uint64_t)(end - begin) * (uint64_t)from->columns;
        const unsigned char *bytes = from->data + (uint64_t)begin * from->row_bytes;
        if (begin >= end) {
            continue;
        }
        if (decode->type == SL_QTYPE_BF16) {
            made->weights = made->weights == to ? bytes : made->weights;
        } else {
            decode->jobs[decode->count++] = (sl_cuda_decode_job){bytes, to, elements};
            to += 2 * elements;
        }
    }
}

/* The last range's product adds the bias. */
static int resolve_part(sl_cuda_blas *blas, const sl_cuda_op *op, int32_t outputs, part *made,
                        sl_error *error) {
    const uint64_t x_bytes = op->in[0].row_bytes, y_bytes = op->out[0].row_bytes;
    const int32_t columns = op->weights[0].columns;
    int status = 0;
    for (int32_t r = 0; r < made->ranges && !status; r++) {
        const int32_t first = made->ranges > 1 ? sl_k16_range(columns, made->ranges, r) : 0;
        const int32_t end = made->ranges > 1 ? sl_k16_range(columns, made->ranges, r + 1) : columns;
        const unsigned char *x = op->in[0].data + 2 * ((uint64_t)op->in[0].column + (uint64_t)first);
        const shape wanted = {
            .rows = op->rows[op->out[0].rows],
            .outputs = outputs,
            .columns = end - first,
            .stride = columns,
            .x_stride = (int32_t)(x_bytes / 2),
            .y_stride = (int32_t)(y_bytes / 4),
            .alignment = {alignment_of(made->weights + 2 * (uint64_t)first, 2 * (uint64_t)columns),
                          alignment_of(x, x_bytes), alignment_of(made->y, y_bytes)},
            .bias = r + 1 == made->ranges ? made->bias : NULL,
            .batches = 1};
        status = find_product(blas, &wanted, &made->products[r], error);
    }
    return status;
}

/* Ranges of one length as one product. */
static int resolve_apart(sl_cuda_blas *blas, const sl_cuda_op *op, parts *made, sl_error *error) {
    uint64_t most = 0;
    int status = SL_OK;
    for (int32_t i = 0; i < made->count; i++) {
        uint64_t bytes = 0;
        for (int32_t j = 0; j < made->at[i].decode.count; j++) {
            bytes += 2 * made->at[i].decode.jobs[j].elements;
        }
        most = bytes > most ? bytes : most;
    }
    made->apart = library_scratch(op) + apart_offset(most);
    for (int32_t i = 0; i < made->count && !status; i++) {
        part *at = &made->at[i];
        shape wanted = at->products[0]->shape;
        at->apart_y = (float *)(void *)(made->apart + ((unsigned char *)at->y - op->out[0].data));
        wanted.batches = at->ranges;
        wanted.alignment[2] = alignment_of(at->apart_y, op->out[0].row_bytes);
        status = find_product(blas, &wanted, &at->apart, error);
    }
    return status;
}

static int make_holder(sl_cuda_context *context, sl_error *error) {
    if (!context->blas) {
        context->blas = sl_alloc_zero(1, sizeof *context->blas);
    }
    return context->blas ? SL_OK : sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for cublasLt");
}

static int make_blas(sl_cuda_context *context, sl_error *error) {
    const int status = make_holder(context, error);
    return status || context->blas->handle ? status : LT(lt.create(&context->blas->handle), error);
}

int sl_cuda_cublas_make_gemm(sl_cuda_context *context, sl_error *error) {
    const int status = make_holder(context, error);
    return status || context->blas->gemm ? status : sl_cuda_gemm_create(&context->blas->gemm, error);
}

void *sl_cuda_cublas_gemm(const sl_cuda_blas *blas) {
    return blas->gemm;
}

void sl_cuda_cublas_destroy(sl_cuda_blas *blas) {
    if (!blas) {
        return;
    }
    while (blas->products) {
        product *next = blas->products->next;
        free_product(blas->products);
        blas->products = next;
    }
    while (blas->ops) {
        parts *next = blas->ops->next;
        sl_free(blas->ops);
        blas->ops = next;
    }
    if (blas->handle) {
        lt.destroy(blas->handle);
    }
    sl_cuda_gemm_destroy(blas->gemm);
    sl_free(blas);
}

static bool has_scales(sl_qtype type) {
    return sl_qtype_get(type)->block_elements > 1;
}

static int prepare(sl_cuda_context *context, sl_cuda_op *op, sl_error *error) {
    int32_t count = 0;
    const int32_t x_rows = op->rows[op->out[0].rows];
    const sl_cuda_weight *weight = &op->weights[0];
    for (int32_t s = 0, end; s < op->weight_count; s = end) {
        end = op_run_end(op, s);
        const int32_t rows = sl_panel_run_rows(op->program, &op->op->u.linear, s, end),
                      panel = panel_rows(weight->type, weight->columns, rows, x_rows);
        count += (rows + panel - 1) / panel;
    }
    int status = make_blas(context, error);
    parts *made = status ? NULL : sl_alloc_zero(1, sizeof *made + (size_t)count * sizeof *made->at);
    if (!made) {
        return status ? status : sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for a product's parts");
    }
    made->next = context->blas->ops;
    context->blas->ops = made;
    op->prepared = made;
    for (int32_t s = 0, end; s < op->weight_count && !status; s = end) {
        end = op_run_end(op, s);
        const int32_t rows = sl_panel_run_rows(op->program, &op->op->u.linear, s, end),
                      panel = panel_rows(weight->type, weight->columns, rows, x_rows);
        for (int32_t row = 0; row < rows && !status; row += panel) {
            const int32_t here = rows - row < panel ? rows - row : panel;
            part *at = &made->at[made->count++];
            make_part(op, s, row, here, at);
            at->ranges = sl_k16_is(op) ? sl_k16_ranges(op, context->processors) : 1;
            at->decode.pairs = sl_k16_is(op);
            at->factor = sl_k16_is(op) && has_scales(weight->type) ? ldexpf(1.0f, SL_K16_BITS) : 1.0f;
            status = resolve_part(context->blas, op, here, at, error);
        }
    }
    const uint64_t y_bytes = (uint64_t)x_rows * op->out[0].row_bytes;
    if (!status && sl_k16_is(op) && ranges_apart(op->program, op->op, y_bytes, context->processors) > 0) {
        status = resolve_apart(context->blas, op, made, error);
    }
    if (!status) {
        sl_cuda_decode *first = &made->at[0].decode;
        first->x = op->in[0];
        first->x_columns = weight->columns;
        first->x_rows = x_rows;
    }
    return status;
}

/* ---- copies in BF16 ---- */

static uint64_t copy_bytes(const sl_weight *weight) {
    return 2 * (uint64_t)weight->experts * (uint64_t)weight->rows * (uint64_t)weight->columns;
}

/* The layout as such; on the device it is made by copy_repack, with the same values but where these
 * are rounded twice. */
static void copy_pack(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    enum { AT_ONCE = 256 };
    float values[AT_ONCE];
    const sl_qtype_info *type = sl_qtype_get(weight->type);
    const uint64_t from = (uint64_t)first * (uint64_t)weight->columns;
    const uint64_t end = from + (uint64_t)count * (uint64_t)weight->columns;
    for (uint64_t i = from; i < end; i += AT_ONCE) {
        const uint64_t here = end - i < AT_ONCE ? end - i : AT_ONCE;
        type->decode((const unsigned char *)weight->data + i / type->block_elements * type->block_bytes,
                     values, here);
        for (uint64_t j = 0; j < here; j++) {
            ((uint16_t *)packed)[i + j] = sl_f32_to_bf16(values[j]);
        }
    }
}

static cudaError_t copy_repack(const sl_weight *weight, const unsigned char *from, unsigned char *packed,
                               cudaStream_t stream) {
    const sl_cuda_context none = {0};
    const uint64_t elements = (uint64_t)weight->rows * (uint64_t)weight->columns;
    sl_cuda_decode decode = {
        .jobs = {{from, packed, elements}}, .count = 1, .type = weight->type, .columns = weight->columns};
    return sl_stored_row_bytes(SL_CUDA_COLUMN_MULTIPLE, weight, &decode.row_bytes)
               ? sl_cuda_decode_weights(&none, &decode, stream)
               : cudaErrorInvalidValue;
}

/* ---- the kernel ---- */

static cudaError_t multiply(const sl_cuda_context *context, const sl_cuda_op *op, const part *at,
                            cudaStream_t stream) {
    const float zero = 0, one = 1;
    int code = 0;
    for (int32_t r = 0; r < at->ranges && !code; r++) {
        const product *p = at->products[r];
        const uint64_t first =
            at->ranges > 1 ? (uint64_t)sl_k16_range(op->weights[0].columns, at->ranges, r) : 0;
        const unsigned char *x = op->in[0].data + 2 * ((uint64_t)op->in[0].column + first);
        if (p->shape.bias && lt.description_set(p->description, LT_BIAS, &at->bias, sizeof at->bias)) {
            return cudaErrorInvalidValue;
        }
        code = lt.multiply(context->blas->handle, p->description, &at->factor, at->weights + 2 * first,
                           p->weights, x, p->x, r == 0 ? &zero : &one, at->y, p->y, at->y, p->y,
                           &p->algorithm, library_scratch(op), LIBRARY_BYTES, stream);
    }
    return code ? cudaErrorLaunchFailure : cudaSuccess;
}

static SL_CUDA_RUN(run) {
    const parts *prepared = op->prepared;
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < prepared->count && !code; i++) {
        code = sl_cuda_decode_weights(context, &prepared->at[i].decode, stream);
        code = code ? code : multiply(context, op, &prepared->at[i], stream);
    }
    return code;
}

/* The sums of the ranges to the op's scratch. */
static SL_CUDA_RANGES(run_ranges) {
    const parts *prepared = op->prepared;
    const float zero = 0;
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < prepared->count && !code; i++) {
        const part *at = &prepared->at[i];
        const product *p = at->apart;
        const unsigned char *x = op->in[0].data + 2 * (uint64_t)op->in[0].column;
        code = sl_cuda_decode_weights(context, &at->decode, stream);
        if (!code && lt.multiply(context->blas->handle, p->description, &at->factor, at->weights, p->weights,
                                 x, p->x, &zero, at->apart_y, p->y, at->apart_y, p->y, &p->algorithm,
                                 library_scratch(op), LIBRARY_BYTES, stream)) {
            code = cudaErrorLaunchFailure;
        }
    }
    ranges->data = prepared->apart;
    ranges->bytes = (uint64_t)op->rows[op->out[0].rows] * op->out[0].row_bytes;
    ranges->count = prepared->at[0].ranges;
    return code;
}

static const char *ranges_reason(const sl_fusion_query *query) {
    const sl_value *y = &query->values[query->ops[0].out[0].value];
    const uint64_t y_bytes = (uint64_t)query->rows[y->rows] * sl_value_row_bytes(y->type, y->width);
    return ranges_apart(query->program, &query->ops[0], y_bytes, processors_of(query->backend)) > 0
               ? NULL
               : "takes products without bias, of few bytes, whose ranges have one length";
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_op_linear *linear = &op->u.linear;
    const sl_weight *weight = &query->program->weights[linear->segments[0].weight];
    const sl_value *x = &query->values[op->in[0].value], *y = &query->values[op->out[0].value];
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)(const void *)kernel;
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    if (op->in[1].value != SL_NONE) {
        return "takes no experts";
    }
    if (kernel->copies && query->backend && query->backend->options.prompt_precision == SL_PRECISION_FP8) {
        return "is for another prompt precision";
    }
    if (op->in[3].value != SL_NONE) {
        return "adds no residual";
    }
    if (query->backend && query->backend->options.deterministic && !kernel->deterministic) {
        return "the library may choose another order of adding for another bucket";
    }
    if (kernel->deterministic && sl_cuda_columns(weight) % SL_K16_CHUNK != 0) {
        return "takes columns in groups of 256";
    }
    if (query->rows[y->rows] < row->least_rows) {
        return "is for more rows";
    }
    for (int32_t s = 0; s < linear->segment_count; s++) {
        if (query->program->weights[linear->segments[s].weight].columns % 32 != 0 ||
            linear->segments[s].column % 8 != 0) {
            return "takes columns in groups of 32";
        }
    }
    if (y->width % 8 != 0 || op->out[0].column % 8 != 0 ||
        (x->type == SL_VALUE_BF16 && (x->width % 8 != 0 || op->in[0].column % 8 != 0))) {
        return "takes x and y at multiples of 8 columns";
    }
    return has_library() ? NULL : "libcublasLt.so.13 was not found";
}

/* ---- rows ---- */

enum { CUBLAS_ROWS = 96 }; /* of a bucket, at least, where a row says nothing else */

#define FUNCTIONS(ID) .weight_type = SL_QTYPE_##ID, .run = run, .prepare = prepare
#define BF16_CUBLAS(ID, type_name, least, most_error)                                                        \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-bf16-cublas", "bf16/cublaslt", most_error,         \
                              .declines = declines, .workspace = workspace_of),                              \
        .arrangement = SL_CUDA_BF16_CUBLAS, .least_rows = least, FUNCTIONS(ID)                               \
    }
#define K16_CUBLAS(ID, type_name, most_error)                                                                \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-k16-cublas", "bf16/k16", most_error,               \
                              .deterministic = true, .declines = declines, .workspace = workspace_of),       \
        .arrangement = SL_CUDA_K16_CUBLAS, .least_rows = CUBLAS_ROWS, .ranges = run_ranges,                  \
        .ranges_declines = ranges_reason, FUNCTIONS(ID)                                                      \
    }
/* The same from a second copy of the weights in BF16: no decoding in a step, for two bytes an element. */
#define COPY(ID, type_name)                                                                                  \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-bf16-copy-cublas", "bf16/cublaslt", 1.5e-2f,       \
                              .copies = true, .declines = declines, .packed_bytes = copy_bytes,              \
                              .pack = copy_pack, .workspace = workspace_of),                                 \
        .arrangement = SL_CUDA_BF16_COPY_CUBLAS, .least_rows = SL_CUDA_COPY_ROWS, .repack = copy_repack,     \
        .packed_type = SL_QTYPE_BF16, FUNCTIONS(ID)                                                          \
    }
#define BOTH(ID, type_name) BF16_CUBLAS(ID, type_name, CUBLAS_ROWS, 1.5e-2f), COPY(ID, type_name)
#define BOTH_CODEBOOK(ID, type_name, table) BOTH(ID, type_name),
static const sl_cuda_kernel kernels[] = {
    BOTH(F16, f16),
    BF16_CUBLAS(BF16, bf16, CUBLAS_ROWS, 1e-4f),
    SL_INTEGER_TYPES(BOTH),
    SL_EACH_CODEBOOK_TYPE(BOTH_CODEBOOK) BF16_CUBLAS(FP8_128, fp8_128, SL_CUDA_FEW_ROWS + 1, 1.5e-2f),
    K16_CUBLAS(F16, f16, 1.5e-2f),
    K16_CUBLAS(BF16, bf16, 1e-4f),
    K16_CUBLAS(Q8_0, q8_0, 2.5e-2f),
    K16_CUBLAS(Q4_0, q4_0, 2.5e-2f),
    K16_CUBLAS(Q4_K, q4_k, 3.5e-2f),
    K16_CUBLAS(Q5_K, q5_k, 3.5e-2f),
    K16_CUBLAS(Q6_K, q6_k, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_cublas) = {SL_CUDA_ROWS(kernels), SL_CUDA_NO_ROWS, NULL};
