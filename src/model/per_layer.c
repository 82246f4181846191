/* Per-layer embeddings (Gemma 3n, Gemma 4): a table with a short row for every layer, mixed with a projection
 * of the model's embedding once, and gated into the stream behind every layer. Formulas: Gemma4TextModel in
 * transformers. */
#include "model/build.h"

#include <math.h>

int32_t sl_build_per_layer_embeddings(sl_builder *b, int32_t x) {
    static const sl_tensor_id projection = SL_TENSOR_PER_LAYER_PROJECTION;
    const sl_config *config = b->config;
    const int32_t width = config->per_layer_width, all = config->layers * width;
    const int32_t embedded = sl_build_value(b, "per_layer_embed", SL_ROWS_STEP, all);
    const int32_t projected = sl_build_value(b, "per_layer_in", SL_ROWS_STEP, all);
    const int32_t y = sl_build_value(b, "per_layer", SL_ROWS_STEP, all);
    sl_op *op = sl_build_op(b, SL_OP_EMBED);
    if (op) {
        op->out[0] = sl_at(embedded, 0);
        op->u.embed.weight = sl_build_weight(b, SL_TENSOR_PER_LAYER_EMBED);
        op->u.embed.scale = sl_build_embed_scale(b, op->u.embed.weight, width);
    }
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = projected, .weights = &projection, .count = 1});
    op = sl_build_norm(b, sl_build_weight(b, SL_TENSOR_PER_LAYER_NORM), config->layers, width, width);
    if (op) {
        op->in[0] = sl_at(projected, 0);
        op->in[1] = sl_at(embedded, 0);
        op->out[0] = sl_at(y, 0);
        op->u.rmsnorm.residual = SL_RESIDUAL_AFTER;
        op->u.rmsnorm.x_factor = 1 / sqrtf((float)config->width);
        op->u.rmsnorm.y_factor = sqrtf(0.5f);
    }
    return y;
}

int32_t sl_build_per_layer(sl_builder *b, int32_t x) {
    static const sl_tensor_id gate = SL_TENSOR_PER_LAYER_GATE, output = SL_TENSOR_PER_LAYER_OUTPUT;
    const int32_t width = b->config->per_layer_width;
    const int32_t gates = sl_build_value(b, "per_layer_gate", SL_ROWS_STEP, width);
    const int32_t gated = sl_build_value(b, "per_layer_gated", SL_ROWS_STEP, width);
    const int32_t y = sl_build_value(b, "per_layer_out", SL_ROWS_STEP, b->config->width);
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = gates, .weights = &gate, .count = 1});
    sl_op *op = sl_build_op(b, SL_OP_ACTIVATE);
    if (op) {
        op->in[0] = sl_at(gates, 0);
        op->in[1] = sl_at(b->per_layer, b->layer * width);
        op->out[0] = sl_at(gated, 0);
        op->u.activate.function = (sl_activation)b->config->activation;
        op->u.activate.width = width;
    }
    sl_build_linear(b, &(sl_build_projection){.x = gated, .y = y, .weights = &output, .count = 1});
    return y;
}
