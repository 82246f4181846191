/* Products for many rows on the tensor cores' eight-bit formats: classes "e4m3/128" and "s8/256" (narrow.h).
 *
 * x comes as codes from a QUANTIZE. Weights become codes of the same kind in a scratch of the workspace pool,
 * a panel of rows at a time (narrow_weights.h), and are multiplied there. Segments that are neighbours in y
 * are one product. FP8_128 has codes and scales already, and so have second copies in int8: they are read
 * where they lie, of segments that are neighbours in memory as well. */
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/narrow/narrow_weights.h"
#include "backend/cuda/linear/panels.h"
#include "backend/cuda/types/integer_types.h"
#include "quant/activation.h"

#include <stdint.h>
#include <string.h>

enum { LEAST_ROWS = 96, ALIGNMENT = 256 };

/* Rows of an op's weights that are decoded and multiplied together. */
typedef struct panel {
    sl_narrow_plan plan;       /* aligned to 64 */
    sl_narrow_weights weights; /* without jobs: nothing is decoded */
} panel;

typedef struct panels {
    panel *at;
    int32_t count;
} panels;

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static sl_narrow_kind kind_of(const sl_kernel *kernel) {
    return kernel->activation == SL_VALUE_E4M3_128 ? SL_NARROW_E4M3 : SL_NARROW_S8;
}

static bool is_read_in_place(const sl_kernel *kernel) {
    return kernel->copies || ((const sl_cuda_kernel *)(const void *)kernel)->weight_type == SL_QTYPE_FP8_128;
}

/* Of so many rows of weights: codes, then scales. */
static uint64_t code_bytes(int32_t rows, int32_t columns) {
    return aligned((uint64_t)rows * (uint64_t)columns);
}

static uint64_t panel_bytes(sl_narrow_kind kind, int32_t rows, int32_t columns) {
    const uint64_t scales = (uint64_t)sl_narrow_scales(kind, columns);
    return code_bytes(rows, columns) + aligned((uint64_t)(rows + rows % 2) * scales * sizeof(float));
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_program *program = query->program;
    const sl_op_linear *linear = &query->op->u.linear;
    const int32_t count = query->rows[query->values[query->op->out[0].value].rows];
    const int32_t columns = sl_cuda_columns(&program->weights[linear->segments[0].weight]);
    uint64_t most = 0;
    if (is_read_in_place(kernel)) {
        return 0;
    }
    for (int32_t s = 0, end; s < linear->segment_count; s = end) {
        end = sl_panel_run_end(program, linear, s);
        const int32_t rows = sl_panel_run_rows(program, linear, s, end);
        const uint64_t bytes =
            panel_bytes(kind_of(kernel), sl_panel_rows((uint64_t)columns, rows, count), columns);
        most = bytes > most ? bytes : most;
    }
    return ALIGNMENT + most;
}

/* Rows [row, row + count) of the run of segments that begins at `first`. */
static void make_weights(const sl_cuda_op *op, int32_t first, int32_t row, int32_t count,
                         sl_narrow_weights *made) {
    unsigned char *scratch = op->scratch + (ALIGNMENT - (uintptr_t)op->scratch % ALIGNMENT) % ALIGNMENT;
    made->type = op->weights[first].type;
    made->kind = kind_of(&op->kernel->kernel);
    made->outputs = count;
    made->columns = op->weights[first].columns;
    if (is_read_in_place(&op->kernel->kernel)) {
        return;
    }
    made->codes = scratch;
    made->code_row_bytes = (uint64_t)made->columns;
    made->scales = (float *)(void *)(scratch + code_bytes(count, made->columns));
    made->scale_row = (uint64_t)sl_narrow_scales(made->kind, made->columns);
    for (int32_t before = 0, s = first; before < row + count; before += op->weights[s++].rows) {
        const sl_cuda_weight *from = &op->weights[s];
        const int32_t begin = row > before ? row - before : 0;
        const int32_t end = row + count - before < from->rows ? row + count - before : from->rows;
        if (begin < end) {
            made->jobs[made->count++] = (sl_narrow_job){from->data + (uint64_t)begin * from->row_bytes,
                                                        before + begin - row, end - begin};
        }
    }
}

/* Whether the outputs of segments, from `first` on, have one scale for each block of them. */
static bool have_blocks(const sl_cuda_op *op, int32_t first, int32_t outputs) {
    bool have = true;
    for (int32_t before = 0, s = first; before < outputs; before += op->weights[s++].rows) {
        const sl_weight *weight = &op->program->weights[op->op->u.linear.segments[s].weight];
        const bool whole = weight->scale_rows >= weight->rows;
        have = have && before % SL_NARROW_BLOCK == 0 &&
               (whole || (weight->scale_rows > 0 && weight->scale_rows % SL_NARROW_BLOCK == 0));
    }
    return have;
}

/* Scales of what is read in place. */
static const float *scales_of(sl_narrow_kind kind, const sl_cuda_weight *weight) {
    const uint64_t at =
        kind == SL_NARROW_S8 ? (uint64_t)weight->columns : sl_fp8_scales_at(weight->row_bytes);
    return (const float *)(const void *)(weight->data + at);
}

/* What product->outputs outputs are multiplied with, from segment `first` on. */
static void set_weights(const sl_cuda_op *op, int32_t first, const sl_narrow_weights *weights,
                        sl_narrow_product *product) {
    const sl_cuda_weight *from = &op->weights[first];
    if (is_read_in_place(&op->kernel->kernel)) {
        product->weights = from->data;
        product->weight_row_bytes = product->scale_row_bytes = from->row_bytes;
        product->weight_scales = scales_of(weights->kind, from);
        product->has_blocks = weights->kind == SL_NARROW_E4M3 && have_blocks(op, first, weights->outputs);
        return;
    }
    product->weights = weights->codes;
    product->weight_row_bytes = weights->code_row_bytes;
    product->weight_scales = weights->scales;
    product->scale_row_bytes = sizeof(float) * weights->scale_row;
}

/* Of the outputs of `weights`, which begin at row `row` of segment `first`. */
static void make_product(const sl_cuda_context *context, const sl_cuda_op *op, int32_t first, int32_t row,
                         const sl_narrow_weights *weights, sl_narrow_product *product) {
    const sl_cuda_operand *x = &op->in[0], *residual = &op->in[3], *y = &op->out[0];
    const uint64_t column = (uint64_t)(op->weights[first].column + row);
    *product = (sl_narrow_product){
        .kind = weights->kind,
        .rows = op->rows[y->rows],
        .outputs = weights->outputs,
        .columns = weights->columns,
        .x = x->data,
        .x_row_bytes = x->row_bytes,
        .x_scales = (uint64_t)((x->width + sl_narrow_group(weights->kind) - 1) /
                               sl_narrow_group(weights->kind) * sl_narrow_group(weights->kind)),
        .y = (float *)(void *)y->data + (uint64_t)y->column + column,
        .y_row_bytes = y->row_bytes,
        .bias = op->weights[first].bias ? op->weights[first].bias + row : NULL,
        .residual = residual->data
                        ? (const float *)(void *)residual->data + (uint64_t)residual->column + column
                        : NULL,
        .residual_row_bytes = residual->row_bytes,
        .true_rows = sl_narrow_rows(context, y->rows)};
    set_weights(op, first, weights, product);
}

static int make_panel(const sl_cuda_context *context, const sl_cuda_op *op, int32_t first, int32_t row,
                      panel *made, sl_error *error) {
    sl_narrow_product product;
    make_product(context, op, first, row, &made->weights, &product);
    return sl_narrow_prepare(&product, context->processors, &made->plan, error);
}

static int32_t run_end(const sl_cuda_op *op, int32_t first) {
    const int32_t end = sl_panel_run_end(op->program, &op->op->u.linear, first);
    int32_t s = first + 1;
    if (!is_read_in_place(&op->kernel->kernel)) {
        return end;
    }
    while (s < end && op->weights[s].data == op->weights[s - 1].data + (uint64_t)op->weights[s - 1].rows *
                                                                           op->weights[s - 1].row_bytes) {
        s++;
    }
    return s;
}

static int32_t rows_of_panel(const sl_cuda_op *op, int32_t first, int32_t end) {
    const int32_t rows = sl_panel_run_rows(op->program, &op->op->u.linear, first, end);
    if (is_read_in_place(&op->kernel->kernel)) {
        return rows;
    }
    return sl_panel_rows((uint64_t)op->weights[first].columns, rows, op->rows[op->out[0].rows]);
}

static int prepare(sl_cuda_context *context, sl_cuda_op *op, sl_error *error) {
    const sl_op_linear *linear = &op->op->u.linear;
    int32_t count = 0;
    for (int32_t s = 0, end; s < op->weight_count; s = end) {
        end = run_end(op, s);
        const int32_t panel_rows = rows_of_panel(op, s, end);
        count += (sl_panel_run_rows(op->program, linear, s, end) + panel_rows - 1) / panel_rows;
    }
    enum { PLAN_ALIGNMENT = 64 };
    panels *made = sl_arena_alloc(context->arena, 1, sizeof *made);
    char *memory = sl_arena_alloc(context->arena, 1, (size_t)count * sizeof(panel) + PLAN_ALIGNMENT);
    if (!made || !memory) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for a product's panels");
    }
    made->at =
        (panel *)(void *)(memory + (PLAN_ALIGNMENT - (uintptr_t)memory % PLAN_ALIGNMENT) % PLAN_ALIGNMENT);
    op->prepared = made;
    int status = SL_OK;
    for (int32_t s = 0, end; s < op->weight_count && !status; s = end) {
        end = run_end(op, s);
        const int32_t rows = sl_panel_run_rows(op->program, linear, s, end), most = rows_of_panel(op, s, end);
        for (int32_t row = 0; row < rows && !status; row += most) {
            panel *here = &made->at[made->count++];
            make_weights(op, s, row, rows - row < most ? rows - row : most, &here->weights);
            status = make_panel(context, op, s, row, here, error);
        }
    }
    return status;
}

static SL_CUDA_RUN(run) {
    const panels *prepared = op->prepared;
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < prepared->count && !code; i++) {
        const sl_narrow_weights *weights = &prepared->at[i].weights;
        code = weights->count > 0 ? sl_narrow_decode(context, weights, stream) : cudaSuccess;
        code = code ? code : sl_narrow_launch(context, &prepared->at[i].plan, stream);
    }
    return code;
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)(const void *)kernel;
    const int32_t group = sl_narrow_group(kind_of(kernel)), columns = sl_cuda_columns(weight);
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    if (op->in[1].value != SL_NONE) {
        return "takes no experts";
    }
    for (int32_t s = 0; s < op->u.linear.segment_count && kernel->copies; s++) {
        const sl_weight *copied = &query->program->weights[op->u.linear.segments[s].weight];
        if (copied->rows % 2 != 0 || copied->columns != columns) {
            return "copies rows in pairs, and columns in groups of 256";
        }
    }
    if (query->rows[query->values[op->out[0].value].rows] < row->least_rows) {
        return "is for more rows";
    }
    if (columns % group != 0 || sl_cuda_x_width(query) < columns) {
        return group == SL_NARROW_E4M3_GROUP ? "takes columns in groups of 128"
                                             : "takes columns in groups of 256";
    }
    return sl_cuda_device_declines(row->arrangement, sl_cuda_facts_of(query->backend));
}

/* ---- copies in int8 ----
 *
 * A row: codes of its columns, then room for as many scales, whole 16 bytes (sl_narrow_scale_at). */

static uint64_t copy_row_bytes(const sl_weight *weight) {
    return (uint64_t)weight->columns +
           sizeof(float) * (uint64_t)sl_narrow_scales(SL_NARROW_S8, weight->columns);
}

static uint64_t copy_bytes(const sl_weight *weight) {
    return (uint64_t)weight->experts * (uint64_t)weight->rows * copy_row_bytes(weight);
}

/* The layout as such; on the device copy_repack makes it, with the same bits. */
static void copy_pack(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    const sl_qtype_info *type = sl_qtype_get(weight->type);
    const uint64_t row_bytes = weight->bytes / ((uint64_t)weight->experts * (uint64_t)weight->rows);
    for (int32_t row = first; row < first + count; row++) {
        unsigned char *const to = (unsigned char *)packed + (uint64_t)row * copy_row_bytes(weight);
        float *const scales = (float *)(void *)((unsigned char *)packed + weight->columns);
        for (int32_t column = 0; column < weight->columns; column += SL_NARROW_S8_GROUP) {
            float values[SL_NARROW_S8_GROUP];
            struct {
                int8_t codes[SL_NARROW_S8_GROUP];
                float scale, more[3];
            } made;
            type->decode((const unsigned char *)weight->data + (uint64_t)row * row_bytes +
                             (uint64_t)column / type->block_elements * type->block_bytes,
                         values, SL_NARROW_S8_GROUP);
            sl_codes_encode(SL_CODES_Q8_256, values, SL_NARROW_S8_GROUP, SL_NARROW_S8_GROUP, &made);
            memcpy(to + column, made.codes, sizeof made.codes);
            scales[sl_narrow_scale_at(SL_NARROW_S8, row, column / SL_NARROW_S8_GROUP,
                                      copy_row_bytes(weight) / sizeof(float))] = made.scale;
        }
    }
}

static cudaError_t copy_repack(const sl_weight *weight, const unsigned char *from, unsigned char *packed,
                               cudaStream_t stream) {
    const sl_cuda_context none = {0};
    const sl_narrow_weights weights = {.jobs = {{from, 0, weight->rows}},
                                       .count = 1,
                                       .type = weight->type,
                                       .kind = SL_NARROW_S8,
                                       .outputs = weight->rows,
                                       .columns = weight->columns,
                                       .codes = packed,
                                       .code_row_bytes = copy_row_bytes(weight),
                                       .scales = (float *)(void *)(packed + weight->columns),
                                       .scale_row = copy_row_bytes(weight) / sizeof(float)};
    return sl_narrow_decode(&none, &weights, stream);
}

/* ---- gates and values ----
 *
 * LINEAR, ACTIVATE, QUANTIZE: the product stores what is activated in BF16, a third of the bytes that gates,
 * values and activations take otherwise, and the QUANTIZE's own kernel reads that. */

static uint64_t activated_row_bytes(int32_t width) {
    return 2 * (uint64_t)width;
}

static uint64_t gated_workspace(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_rows rows = query->values[query->ops[1].out[0].value].rows;
    (void)fusion;
    return ALIGNMENT + (uint64_t)query->rows[rows] * activated_row_bytes(query->ops[1].u.activate.width);
}

static const char *gated_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op_linear *linear = &query->ops[0].u.linear;
    if (sl_cuda_arrangement_of(query, 0) != ((const sl_cuda_fusion *)(const void *)fusion)->product ||
        !is_read_in_place(query->kernels[0])) {
        return "is for products of another kernel";
    }
    const char *reason = sl_cuda_activation_reason(&query->ops[1], false);
    reason = reason ? reason : sl_cuda_gated_reason(query, query->kernels[0]->activation);
    if (!reason && sl_cuda_is_padded(query, &query->ops[2])) {
        return SL_CUDA_PADS_NOT;
    }
    if (!reason && (linear->segments[0].bias != SL_NONE || query->ops[1].u.activate.width % 8 != 0)) {
        return "takes no bias, and widths of a multiple of 8";
    }
    return reason;
}

static SL_CUDA_RUN(run_gated) {
    enum { PLAN_ALIGNMENT = 64 };
    const int32_t width = op[1].op->u.activate.width;
    unsigned char memory[sizeof(sl_narrow_plan) + PLAN_ALIGNMENT];
    sl_narrow_plan *const plan =
        (void *)(memory + (PLAN_ALIGNMENT - (uintptr_t)memory % PLAN_ALIGNMENT) % PLAN_ALIGNMENT);
    const sl_narrow_weights weights = {
        .kind = kind_of(&op->kernel->kernel), .outputs = width, .columns = op->weights[0].columns};
    sl_narrow_product product;
    sl_cuda_weight values = op->weights[op->weight_count - 1];
    sl_error error;
    if (op->weight_count == 1) { /* gates and values are one weight */
        values.data += (uint64_t)width * values.row_bytes;
    }
    make_product(context, op, 0, 0, &weights, &product);
    product.has_blocks = product.has_blocks && width % SL_NARROW_BLOCK == 0 &&
                         have_blocks(op, 0, op->weight_count == 1 ? width : 2 * width);
    product.values = values.data;
    product.value_scales = scales_of(weights.kind, &values);
    product.activated =
        (uint16_t *)(void *)(op->scratch + (ALIGNMENT - (uintptr_t)op->scratch % ALIGNMENT) % ALIGNMENT);
    product.activated_row_bytes = activated_row_bytes(width);
    product.activation = op[1].op->u.activate.function;
    if (sl_narrow_prepare(&product, context->processors, plan, &error)) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t code = sl_narrow_launch(context, plan, stream);
    sl_cuda_op quantize = op[2];
    quantize.in[0] = (sl_cuda_operand){.data = (unsigned char *)product.activated,
                                       .row_bytes = product.activated_row_bytes,
                                       .width = width,
                                       .type = SL_VALUE_BF16,
                                       .rows = op[2].in[0].rows};
    return code ? code : quantize.kernel->run(context, &quantize, stream);
}

/* ---- rows ----
 *
 * Weights are rounded by the reference too (FP8_128 are not), so that what is left is how sums are added: of
 * int8 in f32, of E4M3 by the tensor core, which keeps fewer digits. */
#define NARROW(ID, type_name, shape, class_name, FORMAT, arranged, least, asked, ...)                        \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" shape,                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##FORMAT,                                                          \
                   .batched = true,                                                                          \
                   .precisions = asked,                                                                      \
                   .declines = declines,                                                                     \
                   .workspace = workspace_of,                                                                \
                   .tolerance = __VA_ARGS__},                                                                \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .least_rows = least, .run = run,              \
        .prepare = prepare, .repack = copy_repack, .packed_type = SL_QTYPE_##ID                              \
    }
#define E4M3(ID, type_name, asked)                                                                           \
    NARROW(ID, type_name, "e4m3-tile", "e4m3/128", E4M3_128, SL_CUDA_E4M3_TILE, LEAST_ROWS, asked, 5e-3f)
#define E4M3_ASKED(ID, type_name) E4M3(ID, type_name, SL_PRECISION_BIT(FP8))
/* Of Q4_K unasked too: it costs a fortieth of what Q4_K itself does (docs/lab/narrow.md). */
#define S8_UNASKED(ID) (SL_QTYPE_##ID == SL_QTYPE_Q4_K ? SL_PRECISION_BIT(AUTO) : 0)
#define S8(ID, type_name)                                                                                    \
    NARROW(ID, type_name, "s8-tile", "s8/256", Q8_256, SL_CUDA_S8_TILE, LEAST_ROWS,                          \
           SL_PRECISION_BIT(INT8) | S8_UNASKED(ID), 1e-4f)
#define S8_COPY(ID, type_name)                                                                               \
    NARROW(ID, type_name, "s8-copy-tile", "s8/256", Q8_256, SL_CUDA_S8_COPY_TILE, SL_CUDA_COPY_ROWS,         \
           SL_PRECISION_BIT(INT8) | S8_UNASKED(ID), 1e-4f, .copies = true, .packed_bytes = copy_bytes,       \
           .pack = copy_pack)
static const sl_cuda_kernel KERNELS[] = {
    E4M3(FP8_128, fp8_128, SL_PRECISION_BIT(AUTO) | SL_PRECISION_BIT(FP8)),
    SL_INTEGER_TYPES(E4M3_ASKED),
    SL_INTEGER_TYPES(S8),
    SL_INTEGER_TYPES(S8_COPY),
};

#define NARROW_GATED(shape, class_name, arranged)                                                            \
    {                                                                                                        \
        .fusion = {.name = "linear-" shape "+activate+quantize/cuda",                                        \
                   .numeric_class = class_name,                                                              \
                   .count = 3,                                                                               \
                   .ops = {SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE},                                    \
                   .declines = gated_declines,                                                               \
                   .workspace = gated_workspace},                                                            \
        .run = run_gated, .product = arranged                                                                \
    }
static const sl_cuda_fusion FUSIONS[] = {
    NARROW_GATED("s8-copy-tile", "s8/256+bf16", SL_CUDA_S8_COPY_TILE),
    NARROW_GATED("e4m3-tile", "e4m3/128+bf16", SL_CUDA_E4M3_TILE),
};

SL_CUDA_FAMILY(narrow_tile) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_ROWS(FUSIONS), sl_narrow_allow};
