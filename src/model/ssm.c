/* The Mamba2 block: one projection, causal convolution, selective scan, gate and norm, output projection. */
#include "model/build.h"

/* y of every head times silu(z), and an RMS norm over each group, with weights of its own: the norm first in
 * some families, or none. Returns what the output projection reads. */
static int32_t gate_and_norm(sl_builder *b, sl_operand y, sl_operand z) {
    const sl_config *config = b->config;
    const int32_t inner = config->delta_value_heads * config->delta_value_size;
    const int32_t groups = config->delta_key_heads, width = inner / groups;
    const bool norm_first = config->ssm_norm && config->ssm_norm_first;
    const int32_t gated = sl_build_value(b, "ssm_gated", SL_ROWS_STEP, inner);
    if (!norm_first) {
        sl_op *op = sl_build_op(b, SL_OP_ACTIVATE);
        if (op) {
            op->in[0] = z;
            op->in[1] = y;
            op->out[0] = sl_at(gated, 0);
            op->u.activate.function = SL_ACTIVATION_SILU;
            op->u.activate.width = inner;
        }
        y = sl_at(gated, 0);
    }
    if (config->ssm_norm) {
        sl_op *op = sl_build_norm(b, sl_build_weight(b, SL_TENSOR_SSM_NORM), groups, width, width);
        if (op) {
            op->u.rmsnorm.weight_offset = 0;
            op->u.rmsnorm.own_weights = groups > 1;
            op->u.rmsnorm.gate_stride = width;
            op->in[0] = y;
            op->in[2] = norm_first ? z : sl_at(SL_NONE, 0);
            op->out[0] = sl_at(gated, 0);
        }
    }
    return gated;
}

static void scan(sl_builder *b, sl_operand xbc, sl_operand dt, sl_operand y, int32_t state) {
    const sl_config *config = b->config;
    sl_op *op = sl_build_op(b, SL_OP_SSM_SCAN);
    if (op) {
        op->in[0] = xbc;
        op->in[1] = dt;
        op->out[0] = y;
        op->u.ssm_scan.a_log = sl_build_weight(b, SL_TENSOR_SSM_DECAY);
        op->u.ssm_scan.dt_bias = sl_build_weight(b, SL_TENSOR_SSM_STEP_BIAS);
        op->u.ssm_scan.skip = sl_build_weight(b, SL_TENSOR_SSM_SKIP);
        op->u.ssm_scan.groups = config->delta_key_heads;
        op->u.ssm_scan.heads = config->delta_value_heads;
        op->u.ssm_scan.state = state;
        op->u.ssm_scan.step_least = (float)config->step_least;
        op->u.ssm_scan.step_most = (float)config->step_most;
        op->u.ssm_scan.decay_is_negated = config->naming == SL_NAMING_GGUF;
    }
}

int32_t sl_build_ssm(sl_builder *b, int32_t x) {
    static const sl_tensor_id input = SL_TENSOR_SSM_IN, output = SL_TENSOR_SSM_OUT;
    const sl_config *config = b->config;
    const int32_t heads = config->delta_value_heads, inner = heads * config->delta_value_size;
    const int32_t channels = inner + 2 * config->delta_key_heads * config->delta_key_size;
    const int32_t projected = sl_build_value(b, "ssm_in", SL_ROWS_STEP, inner + channels + heads);
    const int32_t convolved = sl_build_value(b, "ssm_xbc", SL_ROWS_STEP, channels);
    const int32_t scanned = sl_build_value(b, "ssm", SL_ROWS_STEP, inner);
    const sl_state_layer shape = {.channels = channels,
                                  .taps = config->delta_taps,
                                  .heads = heads,
                                  .key_size = config->delta_key_size,
                                  .value_size = config->delta_value_size};
    const int32_t state = sl_program_state(b->program, &shape);

    sl_build_linear(b, &(sl_build_projection){.x = x, .y = projected, .weights = &input, .count = 1});
    const int32_t group = config->delta_key_heads * config->delta_key_size;
    const int32_t widths[SL_SSM_PARTS] = {inner, inner, group, group, heads};
    for (int32_t part = 0, column = 0; part < SL_SSM_PARTS; column += widths[part++]) {
        sl_build_factor(b, sl_at(projected, column), widths[part], config->factors.ssm[part]);
    }
    sl_op *op = sl_build_op(b, SL_OP_CONV);
    if (op) {
        op->in[0] = sl_at(projected, inner);
        op->out[0] = sl_at(convolved, 0);
        op->u.conv.weight = sl_build_weight(b, SL_TENSOR_SSM_CONV);
        op->u.conv.bias = sl_build_weight(b, SL_TENSOR_SSM_CONV_BIAS);
        op->u.conv.function = SL_ACTIVATION_SILU;
        op->u.conv.state = state;
    }
    scan(b, sl_at(convolved, 0), sl_at(projected, inner + channels), sl_at(scanned, 0), state);
    const int32_t gated = gate_and_norm(b, sl_at(scanned, 0), sl_at(projected, 0));
    const int32_t y = sl_build_value(b, "mixer_out", SL_ROWS_STEP, config->width);
    sl_build_factor(b, sl_at(gated, 0), inner, config->factors.ssm_out);
    sl_build_linear(b, &(sl_build_projection){.x = gated, .y = y, .weights = &output, .count = 1});
    return y;
}
