/* The gated feed-forward block, dense or over experts: the same ops, with a router in front and a combination
 * behind. */
#include "model/build.h"

static void activate(sl_builder *b, int32_t gate_up, int32_t y, int32_t width) {
    sl_op *op = sl_build_op(b, SL_OP_ACTIVATE);
    if (op) {
        op->in[0] = sl_at(gate_up, 0);
        op->in[1] = sl_at(gate_up, width);
        op->out[0] = sl_at(y, 0);
        op->u.activate.function = (sl_activation)b->config->activation;
        op->u.activate.width = width;
    }
}

static int32_t dense(sl_builder *b, int32_t x) {
    static const sl_tensor_id weights[] = {SL_TENSOR_GATE, SL_TENSOR_UP};
    static const sl_tensor_id biases[] = {SL_TENSOR_GATE_BIAS, SL_TENSOR_UP_BIAS};
    static const sl_tensor_id down = SL_TENSOR_DOWN, down_bias = SL_TENSOR_DOWN_BIAS;
    const int32_t width = b->config->feed_forward;
    const int32_t gate_up = sl_build_value(b, "gate_up", SL_ROWS_STEP, 2 * width);
    const int32_t gated = sl_build_value(b, "gated", SL_ROWS_STEP, width);
    const int32_t y = sl_build_value(b, "mlp_out", SL_ROWS_STEP, b->config->width);
    sl_build_linear(
        b, &(sl_build_projection){.x = x, .y = gate_up, .weights = weights, .biases = biases, .count = 2});
    activate(b, gate_up, gated, width);
    sl_build_linear(
        b, &(sl_build_projection){.x = gated, .y = y, .weights = &down, .biases = &down_bias, .count = 1});
    return y;
}

/* routing: ids, schedule, weights. */
static void route(sl_builder *b, int32_t x, int32_t routing[3]) {
    static const sl_tensor_id router = SL_TENSOR_ROUTER;
    const sl_config *config = b->config;
    const int32_t logits = sl_build_value(b, "router", SL_ROWS_STEP, config->experts);
    const sl_value ids = {
        .name = "expert_ids", .type = SL_VALUE_I32, .rows = SL_ROWS_STEP, .width = config->experts_used};
    const sl_value schedule = {.name = "expert_schedule",
                               .type = SL_VALUE_I32,
                               .rows = SL_ROWS_EXPERT,
                               .width = 1,
                               .fixed = config->experts + 1};
    routing[0] = sl_build_typed(b, ids);
    routing[1] = sl_build_typed(b, schedule);
    routing[2] = sl_build_value(b, "expert_weights", SL_ROWS_STEP, config->experts_used);
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = logits, .weights = &router, .count = 1});
    sl_op *op = sl_build_op(b, SL_OP_ROUTER);
    if (op) {
        op->in[0] = sl_at(logits, 0);
        op->out[0] = sl_at(routing[0], 0);
        op->out[1] = sl_at(routing[2], 0);
        op->out[2] = sl_at(routing[1], 0);
        op->u.router.kind = SL_ROUTER_SOFTMAX;
        op->u.router.experts = config->experts;
        op->u.router.used = config->experts_used;
        op->u.router.normalise = config->normalise;
        op->u.router.bias = SL_NONE;
        op->u.router.scale = (float)config->expert_scale;
    }
}

static int32_t sparse(sl_builder *b, int32_t x) {
    static const sl_tensor_id separate[] = {SL_TENSOR_GATE_EXPERTS, SL_TENSOR_UP_EXPERTS};
    static const sl_tensor_id fused = SL_TENSOR_FUSED_EXPERTS, down = SL_TENSOR_DOWN_EXPERTS;
    const sl_config *config = b->config;
    const bool is_fused = sl_build_weight(b, SL_TENSOR_FUSED_EXPERTS) != SL_NONE;
    const int32_t width = config->expert_width;
    int32_t routing[3];
    route(b, x, routing);
    const int32_t gate_up = sl_build_value(b, "gate_up", SL_ROWS_EXPERT, 2 * width);
    const int32_t gated = sl_build_value(b, "gated", SL_ROWS_EXPERT, width);
    const int32_t parts = sl_build_value(b, "expert_out", SL_ROWS_EXPERT, config->width);
    const int32_t y = sl_build_value(b, "mlp_out", SL_ROWS_STEP, config->width);
    sl_build_linear(b, &(sl_build_projection){.x = x,
                                              .y = gate_up,
                                              .weights = is_fused ? &fused : separate,
                                              .count = is_fused ? 1 : 2,
                                              .routing = routing});
    activate(b, gate_up, gated, width);
    sl_build_linear(
        b, &(sl_build_projection){.x = gated, .y = parts, .weights = &down, .count = 1, .routing = routing});
    sl_op *op = sl_build_op(b, SL_OP_COMBINE);
    if (op) {
        op->in[0] = sl_at(parts, 0);
        op->in[1] = sl_at(routing[2], 0);
        op->out[0] = sl_at(y, 0);
        op->u.combine.used = config->experts_used;
        op->u.combine.width = config->width;
    }
    return y;
}

int32_t sl_build_feed_forward(sl_builder *b, int32_t x) {
    const bool experts = b->config->experts > 0 && !b->config->dense[b->layer];
    return experts ? sparse(b, x) : dense(b, x);
}
