/* LINEAR of gates and values, ACTIVATE, QUANTIZE to BF16: one launch of the product's own kernel. */
#include "backend/cuda/linear/linear.h"

const char *sl_cuda_gated_reason(const sl_fusion_query *query, sl_value_type format) {
    const sl_op *linear = &query->ops[0], *activate = &query->ops[1], *quantize = &query->ops[2];
    const sl_op_linear *parts = &linear->u.linear;
    const int32_t width = activate->u.activate.width, first = parts->segments[0].weight;
    const int32_t rows = query->program->weights[first].rows;
    const sl_operand *y = &linear->out[0], *gate = &activate->in[0], *up = &activate->in[1];
    int32_t gate_column = parts->segments[0].column, up_column = gate_column + width;
    if (parts->segment_count == 1) {
        if (rows != 2 * width || parts->segments[0].bias != SL_NONE) {
            return "one weight must be gates and values, without bias";
        }
    } else if (parts->segment_count == 2) {
        up_column = parts->segments[1].column;
        if ((parts->segments[0].bias == SL_NONE) != (parts->segments[1].bias == SL_NONE)) {
            return "both weights must have a bias or none";
        }
        if (rows != width || query->program->weights[parts->segments[1].weight].rows != width) {
            return "both weights must be as high as the activation is wide";
        }
    } else {
        return "takes gates and values, nothing else";
    }
    if (linear->in[3].value != SL_NONE) {
        return "takes no residual";
    }
    if (gate->value != y->value || up->value != y->value || gate->column != y->column + gate_column ||
        up->column != y->column + up_column) {
        return "the activation must read what the product writes";
    }
    if (quantize->in[0].value != activate->out[0].value ||
        quantize->in[0].column != activate->out[0].column || quantize->u.quantize.width != width ||
        query->values[quantize->out[0].value].type != format) {
        return "the activation must become what a product reads, all of it";
    }
    return query->unread[0][0] && query->unread[1][0] ? NULL : "something else reads what it would not write";
}

static const char *declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_cuda_arrangement product = ((const sl_cuda_fusion *)(const void *)fusion)->product;
    if (sl_cuda_arrangement_of(query, 0) != product) {
        return "is for products of another kernel";
    }
    const bool is_tile = product == SL_CUDA_BF16_TILE_WGMMA || product == SL_CUDA_K16_TILE;
    const sl_qtype type = query->program->weights[query->ops[0].u.linear.segments[0].weight].type;
    const char *reason = sl_cuda_activation_reason(
        &query->ops[1], (product == SL_CUDA_BF16_ROWS128 || is_tile) && SL_CUDA_TAKES_OAI(type));
    if (!reason && !is_tile && sl_cuda_is_padded(query, &query->ops[2])) {
        return SL_CUDA_PADS_NOT;
    }
    return reason ? reason : sl_cuda_gated_reason(query, SL_VALUE_BF16);
}

static SL_CUDA_RUN(run) {
    return op->kernel->gated(context, op, stream);
}

#define GATED(shape, arranged)                                                                               \
    {                                                                                                        \
        .fusion = {.name = "linear-" shape "+activate+quantize/cuda",                                        \
                   .count = 3,                                                                               \
                   .ops = {SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE},                                    \
                   .declines = declines},                                                                    \
        .run = run, .product = arranged                                                                      \
    }
static const sl_cuda_fusion FUSIONS[] = {
    GATED("bf16-tile-wgmma", SL_CUDA_BF16_TILE_WGMMA),
    GATED("k16-tile", SL_CUDA_K16_TILE),
    GATED("bf16-rows128", SL_CUDA_BF16_ROWS128),
    GATED("k16-rows128", SL_CUDA_K16_ROWS128),
    GATED("k16-rows4", SL_CUDA_K16_ROWS4),
    GATED("k16-rows8", SL_CUDA_K16_ROWS8),
};

SL_CUDA_FAMILY(gated) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
