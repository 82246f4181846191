/* The gated feed-forward block, dense or over experts: the same ops, with a router in front and a combination
 * behind. */
#include "model/build.h"

#include <math.h>

/* ln(1 + e^x) */
static double softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* The function and its numbers. */
static void set_function(const sl_builder *b, sl_op_activate *activate) {
    const sl_config *config = b->config;
    activate->function = (sl_activation)config->activation;
    activate->alpha = (float)config->swiglu_alpha;
    activate->limit = (float)config->swiglu_limit;
    if (activate->function == SL_ACTIVATION_XIELU) {
        const double beta = (double)config->xielu[SL_XIELU_BETA][b->layer];
        activate->alpha = (float)softplus((double)config->xielu[SL_XIELU_POSITIVE][b->layer]);
        activate->negative = (float)(beta + softplus((double)config->xielu[SL_XIELU_NEGATIVE][b->layer]));
        activate->beta = (float)beta;
        activate->limit = config->xielu[SL_XIELU_EPSILON][b->layer];
    }
}

/* f(gate) * up, or f(up) where there is no gate. */
static sl_op *activate(sl_builder *b, int32_t gate_up, int32_t y, int32_t width) {
    sl_op *op = sl_build_op(b, SL_OP_ACTIVATE);
    if (op) {
        op->in[0] = sl_at(gate_up, 0);
        if (!b->config->family->ungated) {
            op->in[1] = sl_at(gate_up, width);
        }
        op->out[0] = sl_at(y, 0);
        set_function(b, &op->u.activate);
        op->u.activate.width = width;
    }
    return op;
}

/* Without a gate. */
static int32_t plain(sl_builder *b, int32_t x) {
    static const sl_tensor_id up = SL_TENSOR_UP, up_bias = SL_TENSOR_UP_BIAS;
    static const sl_tensor_id down = SL_TENSOR_DOWN, down_bias = SL_TENSOR_DOWN_BIAS;
    const int32_t width = sl_config_feed_forward(b->config, b->layer);
    const int32_t h = sl_build_value(b, "up", SL_ROWS_STEP, width);
    const int32_t y = sl_build_value(b, "mlp_out", SL_ROWS_STEP, b->config->width);
    sl_build_linear(b,
                    &(sl_build_projection){.x = x, .y = h, .weights = &up, .biases = &up_bias, .count = 1});
    sl_op *op = sl_build_op(b, SL_OP_ACTIVATE);
    if (op) {
        op->in[0] = op->out[0] = sl_at(h, 0);
        set_function(b, &op->u.activate);
        op->u.activate.width = width;
    }
    sl_build_linear(
        b, &(sl_build_projection){.x = h, .y = y, .weights = &down, .biases = &down_bias, .count = 1});
    return y;
}

static int32_t dense(sl_builder *b, int32_t x) {
    static const sl_tensor_id weights[] = {SL_TENSOR_GATE, SL_TENSOR_UP};
    static const sl_tensor_id biases[] = {SL_TENSOR_GATE_BIAS, SL_TENSOR_UP_BIAS};
    static const sl_tensor_id fused = SL_TENSOR_GATE_UP;
    static const sl_tensor_id down = SL_TENSOR_DOWN, down_bias = SL_TENSOR_DOWN_BIAS;
    const int32_t width = sl_config_feed_forward(b->config, b->layer);
    const int32_t gate_up = sl_build_value(b, "gate_up", SL_ROWS_STEP, 2 * width);
    const int32_t gated = sl_build_value(b, "gated", SL_ROWS_STEP, width);
    const int32_t y = sl_build_value(b, "mlp_out", SL_ROWS_STEP, b->config->width);
    const sl_build_projection apart = {
        .x = x, .y = gate_up, .weights = weights, .biases = biases, .count = 2};
    const sl_build_projection one = {.x = x, .y = gate_up, .weights = &fused, .count = 1};
    sl_build_linear(b, sl_build_weight(b, fused) != SL_NONE ? &one : &apart);
    sl_build_factor(b, sl_at(gate_up, 0), width, b->config->factors.gate);
    activate(b, gate_up, gated, width);
    sl_build_factor(b, sl_at(gated, 0), width, b->config->factors.down);
    sl_build_linear(
        b, &(sl_build_projection){.x = gated, .y = y, .weights = &down, .biases = &down_bias, .count = 1});
    return y;
}

static int32_t router_logits(sl_builder *b, int32_t x) {
    static const sl_tensor_id router = SL_TENSOR_ROUTER, bias = SL_TENSOR_ROUTER_BIAS;
    const int32_t logits = sl_build_value(b, "router", SL_ROWS_STEP, b->config->experts);
    sl_build_linear(
        b, &(sl_build_projection){.x = x, .y = logits, .weights = &router, .biases = &bias, .count = 1});
    return logits;
}

/* routing: ids, schedule, weights. */
static void route(sl_builder *b, int32_t logits, int32_t routing[3]) {
    const sl_config *config = b->config;
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
    sl_op *op = sl_build_op(b, SL_OP_ROUTER);
    if (op) {
        op->in[0] = sl_at(logits, 0);
        op->out[0] = sl_at(routing[0], 0);
        op->out[1] = sl_at(routing[2], 0);
        op->out[2] = sl_at(routing[1], 0);
        op->u.router.kind = (sl_router_kind)config->router;
        op->u.router.experts = config->experts;
        op->u.router.used = config->experts_used;
        op->u.router.normalise = config->normalise;
        op->u.router.bias = sl_build_weight(b, SL_TENSOR_CHOOSING_BIAS);
        op->u.router.factors = sl_build_weight(b, SL_TENSOR_EXPERT_FACTORS);
        op->u.router.groups = config->expert_groups;
        op->u.router.groups_used = config->expert_groups_used;
        op->u.router.group_by_best = config->group_by_best;
        op->u.router.epsilon = (float)config->family->router_epsilon;
        op->u.router.least_sum = (float)config->router_least_sum;
        op->u.router.scale = (float)config->expert_scale;
    }
}

/* The expert that every row goes through: its output, and what that is multiplied by the sigmoid of; SL_NONE
 * without. */
static void shared_expert(sl_builder *b, int32_t x, int32_t shared[2]) {
    static const sl_tensor_id weights[] = {SL_TENSOR_SHARED_GATE, SL_TENSOR_SHARED_UP};
    static const sl_tensor_id fused = SL_TENSOR_SHARED_GATE_UP;
    static const sl_tensor_id down = SL_TENSOR_SHARED_DOWN, share = SL_TENSOR_SHARED_SHARE;
    const int32_t width = b->config->shared_width;
    shared[0] = shared[1] = SL_NONE;
    if (width == 0) {
        return;
    }
    if (sl_build_weight(b, share) != SL_NONE) {
        shared[1] = sl_build_value(b, "shared_share", SL_ROWS_STEP, 1);
        sl_build_linear(b, &(sl_build_projection){.x = x, .y = shared[1], .weights = &share, .count = 1});
    }
    const bool gated_too = !b->config->family->ungated;
    const int32_t gate_up = sl_build_value(b, "shared_gate_up", SL_ROWS_STEP, gated_too ? 2 * width : width);
    const int32_t gated = sl_build_value(b, "shared_gated", SL_ROWS_STEP, width);
    shared[0] = sl_build_value(b, "shared_out", SL_ROWS_STEP, b->config->width);
    const bool is_fused = sl_build_weight(b, fused) != SL_NONE;
    sl_build_linear(b, &(sl_build_projection){.x = x,
                                              .y = gate_up,
                                              .weights = is_fused    ? &fused
                                                         : gated_too ? weights
                                                                     : weights + 1,
                                              .count = is_fused || !gated_too ? 1 : 2});
    activate(b, gate_up, gated, width);
    sl_build_linear(b, &(sl_build_projection){.x = gated, .y = shared[0], .weights = &down, .count = 1});
}

/* What the experts read: x itself, or what a projection makes of it. */
static int32_t expert_input(sl_builder *b, int32_t x) {
    static const sl_tensor_id narrower = SL_TENSOR_LATENT_IN;
    if (b->config->latent_width == 0) {
        return x;
    }
    const int32_t y = sl_build_value(b, "latent_in", SL_ROWS_STEP, b->config->latent_width);
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = y, .weights = &narrower, .count = 1});
    return y;
}

/* A sum of experts back at the model's width, and the shared one's output. */
static int32_t expert_output(sl_builder *b, int32_t sum, int32_t shared) {
    static const sl_tensor_id wider = SL_TENSOR_LATENT_OUT;
    if (b->config->latent_width == 0) {
        return sum;
    }
    const int32_t y = sl_build_value(b, "mlp_out", SL_ROWS_STEP, b->config->width);
    sl_op *op = sl_build_linear(b, &(sl_build_projection){.x = sum, .y = y, .weights = &wider, .count = 1});
    if (op) {
        op->in[3] = sl_at(shared, 0);
    }
    return y;
}

/* Gate and up of the experts, side by side or one weight. */
static void expert_gate_up(sl_builder *b, int32_t x, int32_t y, const int32_t routing[3]) {
    static const sl_tensor_id separate[] = {SL_TENSOR_GATE_EXPERTS, SL_TENSOR_UP_EXPERTS};
    static const sl_tensor_id biases[] = {SL_TENSOR_GATE_EXPERTS_BIAS, SL_TENSOR_UP_EXPERTS_BIAS};
    static const sl_tensor_id fused = SL_TENSOR_FUSED_EXPERTS, fused_bias = SL_TENSOR_FUSED_EXPERTS_BIAS;
    const bool is_fused = sl_build_weight(b, SL_TENSOR_FUSED_EXPERTS) != SL_NONE;
    const int first = b->config->family->ungated ? 1 : 0;
    sl_build_linear(b, &(sl_build_projection){.x = x,
                                              .y = y,
                                              .weights = is_fused ? &fused : separate + first,
                                              .biases = is_fused ? &fused_bias : biases + first,
                                              .count = is_fused ? 1 : 2 - first,
                                              .routing = routing});
}

/* The experts read x, the router `routed`. From the router on, ops follow one another without others between:
 * a backend may run them as one. */
static int32_t sparse(sl_builder *b, int32_t x, int32_t routed) {
    static const sl_tensor_id down = SL_TENSOR_DOWN_EXPERTS, down_bias = SL_TENSOR_DOWN_EXPERTS_BIAS;
    const sl_config *config = b->config;
    const int32_t width = config->expert_width, rows = sl_config_expert_rows(config);
    const bool latent = config->latent_width > 0, beside = config->family->dense_beside;
    int32_t routing[3], shared[2];
    const int32_t logits = router_logits(b, routed);
    shared_expert(b, x, shared);
    const int32_t read = expert_input(b, x);
    route(b, logits, routing);
    const int32_t gate_up = sl_build_value(b, beside ? "expert_gate_up" : "gate_up", SL_ROWS_EXPERT,
                                           config->family->ungated ? width : 2 * width);
    const int32_t gated = sl_build_value(b, beside ? "expert_gated" : "gated", SL_ROWS_EXPERT, width);
    const int32_t parts = sl_build_value(b, "expert_out", SL_ROWS_EXPERT, rows);
    const int32_t y = sl_build_value(b,
                                     beside   ? "experts_out"
                                     : latent ? "latent_out"
                                              : "mlp_out",
                                     SL_ROWS_STEP, rows);
    expert_gate_up(b, read, gate_up, routing);
    /* A weight on what an expert reads is one on its gate and up. */
    sl_op *op = activate(b, gate_up, gated, width);
    if (op && config->family->weight_before) {
        op->in[2] = sl_at(routing[2], 0);
    }
    sl_build_linear(
        b,
        &(sl_build_projection){
            .x = gated, .y = parts, .weights = &down, .biases = &down_bias, .count = 1, .routing = routing});
    op = sl_build_op(b, SL_OP_COMBINE);
    if (op) {
        op->in[0] = sl_at(parts, 0);
        op->in[1] = sl_at(config->family->weight_before ? SL_NONE : routing[2], 0);
        op->in[3] = sl_at(latent ? SL_NONE : shared[0], 0);
        op->in[4] = sl_at(latent ? SL_NONE : shared[1], 0);
        op->out[0] = sl_at(y, 0);
        op->u.combine.used = config->experts_used;
        op->u.combine.width = rows;
    }
    return expert_output(b, y, shared[0]);
}

static sl_op *norm(sl_builder *b, int32_t x, sl_tensor_id id, const char *name) {
    const int32_t width = b->config->width;
    const int32_t y = sl_build_value(b, name, SL_ROWS_STEP, width);
    sl_op *op = sl_build_norm(b, sl_build_weight(b, id), 1, width, width);
    if (op) {
        op->in[0] = sl_at(x, 0);
        op->out[0] = sl_at(y, 0);
    }
    return op;
}

/* Gemma 4: the dense block reads x; experts and router read the stream behind norms of their own; the two
 * outputs are normed and added. */
static int32_t dense_and_sparse(sl_builder *b, int32_t x) {
    const int32_t stream = b->stream.value, first = dense(b, x);
    const sl_op *experts_in = norm(b, stream, SL_TENSOR_EXPERTS_NORM, "experts_in");
    const int32_t read = experts_in ? experts_in->out[0].value : SL_NONE;
    sl_op *router_in = norm(b, stream, SL_TENSOR_ROUTER_NORM, "router_in");
    const int32_t routed = router_in ? router_in->out[0].value : SL_NONE;
    if (router_in) {
        router_in->u.rmsnorm.y_factor = 1 / sqrtf((float)b->config->width);
    }
    const int32_t second = sparse(b, read, routed);
    const sl_op *after = norm(b, second, SL_TENSOR_EXPERTS_POST_NORM, "experts_normed");
    const int32_t added = after ? after->out[0].value : SL_NONE;
    sl_op *sum = norm(b, first, SL_TENSOR_DENSE_POST_NORM, "mlp_sum");
    if (sum) {
        sum->u.rmsnorm.residual = SL_RESIDUAL_AFTER;
        sum->in[1] = sl_at(added, 0);
    }
    return sum ? sum->out[0].value : SL_NONE;
}

int32_t sl_build_feed_forward(sl_builder *b, int32_t x) {
    const bool ungated = b->config->family->encoder || b->config->family->ungated;
    if (b->config->experts == 0 || b->config->dense[b->layer]) {
        return ungated ? plain(b, x) : dense(b, x);
    }
    return b->config->family->dense_beside ? dense_and_sparse(b, x) : sparse(b, x, x);
}
