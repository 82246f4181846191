#include "model/builder.h"

#include <stdio.h>

int32_t sl_build_weight(const sl_builder *b, sl_tensor_id id) {
    return b->layer == SL_NONE ? b->binding->model[id] : b->binding->layers[b->layer][id];
}

int32_t sl_build_typed(sl_builder *b, sl_value value) {
    char text[64];
    if (b->layer != SL_NONE) {
        snprintf(text, sizeof text, "%s.%d", value.name, b->layer);
        value.name = text;
    }
    return sl_program_typed_value(b->program, &value);
}

int32_t sl_build_value(sl_builder *b, const char *name, sl_rows rows, int32_t width) {
    const sl_value value = {.name = name, .type = SL_VALUE_F32, .rows = rows, .width = width};
    return sl_build_typed(b, value);
}

sl_op *sl_build_op(sl_builder *b, sl_op_kind kind) {
    return sl_program_op(b->program, kind, b->layer);
}

sl_op *sl_build_linear(sl_builder *b, const sl_build_projection *projection) {
    sl_op *op = sl_build_op(b, SL_OP_LINEAR);
    if (!op) {
        return NULL;
    }
    op->in[0] = sl_at(projection->x, 0);
    if (projection->routing) {
        op->in[1] = sl_at(projection->routing[0], 0);
        op->in[2] = sl_at(projection->routing[1], 0);
    }
    op->out[0] = sl_at(projection->y, 0);
    op->u.linear.segment_count = projection->count;
    int32_t column = 0;
    for (int32_t i = 0; i < projection->count; i++) {
        sl_linear_segment *segment = &op->u.linear.segments[i];
        segment->weight = sl_build_weight(b, projection->weights[i]);
        segment->bias = projection->biases ? sl_build_weight(b, projection->biases[i]) : SL_NONE;
        segment->column = column;
        column += b->program->weights[segment->weight].rows;
    }
    return op;
}

sl_op *sl_build_norm(sl_builder *b, int32_t weight, int32_t groups, int32_t width, int32_t stride) {
    const sl_config *config = b->config;
    sl_op *op = sl_build_op(b, SL_OP_RMSNORM);
    if (op) {
        op->u.rmsnorm.weight = weight;
        op->u.rmsnorm.weight_offset = config->naming == SL_NAMING_HF ? config->family->hf_norm_offset : 0;
        op->u.rmsnorm.epsilon = (float)config->epsilon;
        op->u.rmsnorm.groups = groups;
        op->u.rmsnorm.width = width;
        op->u.rmsnorm.stride = stride;
        op->u.rmsnorm.x_factor = op->u.rmsnorm.y_factor = 1;
    }
    return op;
}

void sl_build_factor(sl_builder *b, sl_operand x, int32_t width, double factor) {
    sl_op *op = factor != 1 ? sl_build_op(b, SL_OP_SOFTCAP) : NULL;
    if (op) {
        op->in[0] = op->out[0] = x;
        op->u.softcap.scale = (float)factor;
        op->u.softcap.width = width;
    }
}
