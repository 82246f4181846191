/* Eight-bit products of experts: what they take, and the run of gates, values and their activation. */
#include "backend/cuda/linear/narrow/narrow_experts.h"
#include "backend/cuda/linear/narrow/narrow.h"

const char *sl_narrow_experts_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)(const void *)kernel;
    const int32_t columns = sl_cuda_columns(weight);
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    if (op->in[1].value == SL_NONE) {
        return "is for experts";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows kind = query->values[op->out[0].value].rows;
    const int32_t rows = query->rows[kind == SL_ROWS_EXPERT ? SL_ROWS_STEP : kind];
    const int64_t choices = (int64_t)rows * query->program->experts_used;
    if (rows < row->least_rows || choices < (int64_t)SL_NARROW_EXPERTS_LEAST_MEAN * weight->experts) {
        return "is for more rows";
    }
    if (columns % SL_NARROW_S8_GROUP != 0 || sl_cuda_x_width(query) < columns ||
        sl_cuda_x_column(query) != 0) {
        return "takes columns in groups of 256";
    }
    if (weight->experts > SL_NARROW_EXPERTS) {
        return "takes up to 512 experts";
    }
    return sl_cuda_device_declines(row->arrangement, sl_cuda_facts_of(query->backend));
}

static const char *gated_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_cuda_arrangement product = ((const sl_cuda_fusion *)(const void *)fusion)->product;
    const sl_op *linear = &query->ops[0], *activate = &query->ops[1];
    const sl_weight *weight = &query->program->weights[linear->u.linear.segments[0].weight];
    if (sl_cuda_arrangement_of(query, 0) != product) {
        return "is for products of another kernel";
    }
    if (linear->u.linear.segments[0].bias != SL_NONE) {
        return "takes no bias";
    }
    const char *reason = sl_cuda_activation_reason(activate, SL_CUDA_TAKES_OAI(weight->type));
    reason = reason ? reason : sl_cuda_gates_reason(query);
    return reason ? reason : query->unread[0][0] ? NULL : "something else reads what it would not write";
}

static SL_CUDA_RUN(run) {
    return op->kernel->gated(context, op, stream);
}

#define GATED(shape, arranged)                                                                               \
    {                                                                                                        \
        .fusion = {.name = "linear-" shape "+activate/cuda",                                                 \
                   .count = 2,                                                                               \
                   .ops = {SL_OP_LINEAR, SL_OP_ACTIVATE},                                                    \
                   .declines = gated_declines},                                                              \
        .run = run, .product = arranged                                                                      \
    }
static const sl_cuda_fusion FUSIONS[] = {
    GATED("s8-experts", SL_CUDA_S8_EXPERTS),
    GATED("e4m3-experts", SL_CUDA_E4M3_EXPERTS),
};

SL_CUDA_FAMILY(narrow_experts) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
