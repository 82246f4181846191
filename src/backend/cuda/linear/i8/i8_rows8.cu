/* Matrix products with few rows of x and integer weights: what the plan asks of them, and the runs with an
 * activation behind them. */
#include "backend/cuda/linear/i8/i8.h"
#include "backend/cuda/linear/i8/i8_row1_tma.cuh"

static const char *matvec_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const int32_t columns = sl_cuda_columns(&query->program->weights[op->u.linear.segments[0].weight]);
    if (sl_cuda_facts_of(query->backend)->block_bytes < MATVEC_SHARED_BYTES) {
        return "needs 227 KiB of shared memory";
    }
    if (columns % SL_CHUNK != 0 || columns > MATVEC_COLUMNS) {
        return "takes a multiple of 256 columns, at most 32768";
    }
    /* A row of x is int8 with 8 bytes per group of 32, and read 16 bytes at a time. */
    if (sl_cuda_x_width(query) % 64 != 0 || sl_cuda_x_column(query) % 32 != 0) {
        return "takes rows aligned to 16 bytes";
    }
    return sl_cuda_linear_declines(kernel, query);
}

static bool has_experts(const sl_kernel_query *query) {
    return query->op->in[1].value != SL_NONE;
}

static int32_t rows_of(const sl_kernel_query *query) {
    return query->rows[query->values[query->op->out[0].value].rows];
}

const char *sl_i8_row1_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = matvec_declines(kernel, query);
    return !reason && !has_experts(query) && rows_of(query) > 1 ? "is for one row, or for experts" : reason;
}

const char *sl_i8_row1_tma_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = matvec_declines(kernel, query);
    return reason ? reason
           : has_experts(query)
               ? "takes no experts"
               : sl_cuda_device_declines(SL_CUDA_I8_ROW1_TMA, sl_cuda_facts_of(query->backend));
}

const char *sl_i8_rows8_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = matvec_declines(kernel, query);
    return !reason && has_experts(query) ? "takes no experts" : reason;
}

/* ---- with an activation ---- */

/* Its kernel's own function does it. */
static SL_CUDA_RUN(run_activate) {
    return op->kernel->run(context, op, stream);
}

static bool same(sl_operand a, sl_operand b, int32_t column) {
    return a.value == b.value && a.column == b.column + column;
}

/* Whether `i8-row1-tma` has room for the sums of a block's whole range. */
static bool row1_tma_has_room(const sl_cuda_facts *facts, const sl_weight *gate) {
    sl_matvec_args args = {};
    args.activates = true;
    args.segments = 2;
    args.weights[0].rows = args.weights[1].rows = gate->rows;
    sl_matvec_cut(1, facts->processors, &args);
    const int32_t most = sl_matvec_most(args) * args.granule, chunks = sl_cuda_columns(gate) / SL_CHUNK;
    return gate->type == SL_QTYPE_Q8_0 ? row1_tma_activates<SL_QTYPE_Q8_0>(chunks, most, facts->block_bytes)
                                       : row1_tma_activates<SL_QTYPE_Q4_K>(chunks, most, facts->block_bytes);
}

/* Gate and up are the linear's two segments; nothing but a bias is added to them. */
static const char *activate_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *linear = &query->ops[0], *activate = &query->ops[1];
    const sl_op_linear *product = &linear->u.linear;
    const sl_cuda_arrangement arrangement = ((const sl_cuda_fusion *)fusion)->product;
    if (sl_cuda_arrangement_of(query, 0) != arrangement) {
        return "is for products of another kernel";
    }
    const sl_weight *gate = &query->program->weights[product->segments[0].weight];
    const char *reason =
        sl_cuda_activation_reason(activate, arrangement == SL_CUDA_I8_ROW1 && SL_CUDA_TAKES_OAI(gate->type));
    if (reason) {
        return reason;
    }
    const int32_t width = gate->rows;
    if (product->segment_count != 2 || query->program->weights[product->segments[1].weight].rows != width ||
        width % 32 != 0 || activate->u.activate.width != width || linear->in[3].value != SL_NONE) {
        return "takes two segments of whole groups of 32";
    }
    if (!same(activate->in[0], linear->out[0], product->segments[0].column) ||
        !same(activate->in[1], linear->out[0], product->segments[1].column) ||
        (fusion->count > 2 &&
         !(same(query->ops[2].in[0], activate->out[0], 0) && query->ops[2].u.quantize.width == width &&
           query->values[query->ops[2].out[0].value].type == SL_VALUE_Q8_32))) {
        return "takes ops that read each other's output";
    }
    if (fusion->count > 2 && arrangement != SL_CUDA_I8_ROW1 && sl_cuda_is_padded(query, &query->ops[2])) {
        return SL_CUDA_PADS_NOT;
    }
    if (arrangement == SL_CUDA_I8_ROW1_TMA && !row1_tma_has_room(sl_cuda_facts_of(query->backend), gate)) {
        return "takes so many outputs that the sums of a block fit into shared memory";
    }
    return NULL;
}

#define ACTIVATES(shape, arranged, rest, ...)                                                                \
    {                                                                                                        \
        .fusion = {.name = "linear-" shape "+activate" rest "/cuda",                                         \
                   .count = SL_CUDA_COUNT_OPS(SL_OP_LINEAR, __VA_ARGS__),                                    \
                   .ops = {SL_OP_LINEAR, __VA_ARGS__},                                                       \
                   .declines = activate_declines},                                                           \
        .run = run_activate, .product = arranged                                                             \
    }
#define ALL(shape, arranged)                                                                                 \
    ACTIVATES(shape, arranged, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),                                 \
        ACTIVATES(shape, arranged, "", SL_OP_ACTIVATE)
static const sl_cuda_fusion FUSIONS[] = {
    ALL("i8-row1-tma", SL_CUDA_I8_ROW1_TMA),
    ALL("i8-row1", SL_CUDA_I8_ROW1),
    ALL("i8-rows8-tma", SL_CUDA_I8_ROWS8_TMA),
    ALL("i8-rows8", SL_CUDA_I8_ROWS8),
};

SL_CUDA_FAMILY(i8_activate) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
