/* Products for many rows on the tensor cores' eight-bit formats: classes "e4m3/128" and "s8/256" (narrow.h).
 *
 * x comes as codes from a QUANTIZE. Weights become codes of the same kind in a scratch of the workspace pool,
 * a panel of rows at a time (narrow_weights.h), and are multiplied there. Segments that are neighbours in y
 * are one product. FP8_128 has codes and scales already, which are read where they lie: of segments that are
 * neighbours in memory as well. */
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/narrow/narrow_weights.h"
#include "backend/cuda/linear/panels.h"
#include "backend/cuda/types/integer_types.h"

#include <stdint.h>

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

static bool is_read_in_place(sl_qtype type) {
    return type == SL_QTYPE_FP8_128;
}

/* Of so many rows of weights: codes, then scales. */
static uint64_t code_bytes(int32_t rows, int32_t columns) {
    return aligned((uint64_t)rows * (uint64_t)columns);
}

static uint64_t panel_bytes(sl_narrow_kind kind, int32_t rows, int32_t columns) {
    const uint64_t times = (uint64_t)(kind == SL_NARROW_S8 ? columns / SL_NARROW_S8_GROUP : rows);
    const uint64_t scales = (uint64_t)sl_narrow_scales(kind, rows, columns);
    return code_bytes(rows, columns) + aligned(times * scales * sizeof(float));
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_program *program = query->program;
    const sl_op_linear *linear = &query->op->u.linear;
    const int32_t count = query->rows[query->values[query->op->out[0].value].rows];
    const int32_t columns = sl_cuda_columns(&program->weights[linear->segments[0].weight]);
    uint64_t most = 0;
    if (is_read_in_place(program->weights[linear->segments[0].weight].type)) {
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
    if (is_read_in_place(made->type)) {
        return;
    }
    made->codes = scratch;
    made->scales = (float *)(void *)(scratch + code_bytes(count, made->columns));
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

/* What product->outputs outputs are multiplied with, from segment `first` on. */
static void set_weights(const sl_cuda_op *op, int32_t first, const sl_narrow_weights *weights,
                        sl_narrow_product *product) {
    const sl_cuda_weight *from = &op->weights[first];
    if (is_read_in_place(from->type)) {
        product->weights = from->data;
        product->weight_row_bytes = product->scale_row_bytes = from->row_bytes;
        product->weight_scales =
            (const float *)(const void *)(from->data + sl_fp8_scales_at(from->row_bytes));
        product->has_blocks = have_blocks(op, first, weights->outputs);
        return;
    }
    product->weights = weights->codes;
    product->weight_row_bytes = (uint64_t)weights->columns;
    product->weight_scales = weights->scales;
    product->scale_row_bytes =
        sizeof(float) * (uint64_t)sl_narrow_scales(weights->kind, weights->outputs, weights->columns);
}

static int make_panel(const sl_cuda_context *context, const sl_cuda_op *op, int32_t first, int32_t row,
                      panel *made, sl_error *error) {
    const sl_narrow_weights *weights = &made->weights;
    const sl_cuda_operand *x = &op->in[0], *residual = &op->in[3], *y = &op->out[0];
    const uint64_t column = (uint64_t)(op->weights[first].column + row);
    sl_narrow_product product = {
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
    set_weights(op, first, weights, &product);
    return sl_narrow_prepare(&product, context->processors, &made->plan, error);
}

static int32_t run_end(const sl_cuda_op *op, int32_t first) {
    const int32_t end = sl_panel_run_end(op->program, &op->op->u.linear, first);
    int32_t s = first + 1;
    if (!is_read_in_place(op->weights[first].type)) {
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
    if (is_read_in_place(op->weights[first].type)) {
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
    if (query->rows[query->values[op->out[0].value].rows] < row->least_rows) {
        return "is for more rows";
    }
    if (columns % group != 0 || sl_cuda_x_width(query) < columns) {
        return group == SL_NARROW_E4M3_GROUP ? "takes columns in groups of 128"
                                             : "takes columns in groups of 256";
    }
    return sl_cuda_device_declines(row->arrangement, sl_cuda_facts_of(query->backend));
}

/* ---- rows ----
 *
 * Weights are rounded by the reference too (FP8_128 are not), so that what is left is how sums are added: of
 * int8 in f32, of E4M3 by the tensor core, which keeps fewer digits. */
#define NARROW(ID, type_name, shape, class_name, FORMAT, arranged, asked, most_error)                        \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" shape,                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##FORMAT,                                                          \
                   .tolerance = most_error,                                                                  \
                   .batched = true,                                                                          \
                   .precisions = asked,                                                                      \
                   .declines = declines,                                                                     \
                   .workspace = workspace_of},                                                               \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .least_rows = LEAST_ROWS, .run = run,         \
        .prepare = prepare                                                                                   \
    }
#define E4M3(ID, type_name, asked)                                                                           \
    NARROW(ID, type_name, "e4m3-tile", "e4m3/128", E4M3_128, SL_CUDA_E4M3_TILE, asked, 5e-3f)
#define E4M3_ASKED(ID, type_name) E4M3(ID, type_name, SL_PRECISION_BIT(FP8))
/* Of Q4_K unasked too: it costs a fortieth of what Q4_K itself does (docs/lab/narrow.md). */
#define S8_UNASKED(ID) (SL_QTYPE_##ID == SL_QTYPE_Q4_K ? SL_PRECISION_BIT(AUTO) : 0)
#define S8(ID, type_name)                                                                                    \
    NARROW(ID, type_name, "s8-tile", "s8/256", Q8_256, SL_CUDA_S8_TILE,                                      \
           SL_PRECISION_BIT(INT8) | S8_UNASKED(ID), 1e-4f)
static const sl_cuda_kernel KERNELS[] = {
    E4M3(FP8_128, fp8_128, SL_PRECISION_BIT(AUTO) | SL_PRECISION_BIT(FP8)),
    SL_INTEGER_TYPES(E4M3_ASKED),
    SL_INTEGER_TYPES(S8),
};

SL_CUDA_FAMILY(narrow_tile) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, sl_narrow_allow};
