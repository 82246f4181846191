/* The gated delta net: projections, causal convolution, delta rule, gated norm, output projection. Layout and
 * formulas: Qwen3_5GatedDeltaNet in transformers. */
#include "model/build.h"

static int32_t add_state(sl_builder *b, int32_t channels) {
    const sl_config *config = b->config;
    const sl_state_layer state = {.channels = channels,
                                  .taps = config->delta_taps,
                                  .heads = config->delta_value_heads,
                                  .key_size = config->delta_key_size,
                                  .value_size = config->delta_value_size};
    return sl_program_state(b->program, &state);
}

int32_t sl_build_delta(sl_builder *b, int32_t x) {
    static const sl_tensor_id apart[] = {SL_TENSOR_DELTA_QKV, SL_TENSOR_DELTA_GATE, SL_TENSOR_DELTA_ALPHA,
                                         SL_TENSOR_DELTA_BETA};
    static const sl_tensor_id joined[] = {SL_TENSOR_DELTA_QKV, SL_TENSOR_DELTA_GATE,
                                          SL_TENSOR_DELTA_ALPHA_BETA};
    static const sl_tensor_id output = SL_TENSOR_DELTA_OUTPUT;
    const sl_config *config = b->config;
    const int32_t heads = config->delta_value_heads, size = config->delta_value_size;
    const int32_t channels = 2 * config->delta_key_heads * config->delta_key_size + heads * size;
    const int32_t gate = channels, alpha = gate + heads * size, beta = alpha + heads;
    const int32_t projected = sl_build_value(b, "delta_in", SL_ROWS_STEP, beta + heads);
    const int32_t convolved = sl_build_value(b, "delta_qkv", SL_ROWS_STEP, channels);
    const int32_t scanned = sl_build_value(b, "delta", SL_ROWS_STEP, heads * size);
    const int32_t normed = sl_build_value(b, "delta_gated", SL_ROWS_STEP, heads * size);
    const int32_t y = sl_build_value(b, "mixer_out", SL_ROWS_STEP, config->width);
    const int32_t state = add_state(b, channels);

    const bool is_joined = config->family->delta_joined;
    sl_build_linear(
        b, &(sl_build_projection){
               .x = x, .y = projected, .weights = is_joined ? joined : apart, .count = is_joined ? 3 : 4});
    sl_op *op = sl_build_op(b, SL_OP_CONV);
    if (op) {
        op->in[0] = sl_at(projected, 0);
        op->out[0] = sl_at(convolved, 0);
        op->u.conv.weight = sl_build_weight(b, SL_TENSOR_DELTA_CONV);
        op->u.conv.bias = SL_NONE;
        op->u.conv.state = state;
        op->u.conv.function = SL_ACTIVATION_SILU;
    }
    op = sl_build_op(b, SL_OP_DELTA_SCAN);
    if (op) {
        op->in[0] = sl_at(convolved, 0);
        op->in[1] = sl_at(projected, alpha);
        op->in[2] = sl_at(projected, beta);
        op->out[0] = sl_at(scanned, 0);
        op->u.delta_scan.a_log = sl_build_weight(b, SL_TENSOR_DELTA_DECAY);
        op->u.delta_scan.dt_bias = sl_build_weight(b, SL_TENSOR_DELTA_DECAY_BIAS);
        op->u.delta_scan.key_heads = config->delta_key_heads;
        op->u.delta_scan.value_heads = heads;
        op->u.delta_scan.state = state;
        op->u.delta_scan.keys_cycle = config->delta_tiled;
        op->u.delta_scan.decay_is_negated = config->naming == SL_NAMING_GGUF;
    }
    op = sl_build_norm(b, sl_build_weight(b, SL_TENSOR_DELTA_NORM), heads, size, size);
    if (op) {
        op->u.rmsnorm.weight_offset = 0; /* the one norm whose weight every family stores as it is */
        op->u.rmsnorm.gate_stride = size;
        op->in[0] = sl_at(scanned, 0);
        op->in[2] = sl_at(projected, gate);
        op->out[0] = sl_at(normed, 0);
    }
    sl_build_linear(b, &(sl_build_projection){.x = normed, .y = y, .weights = &output, .count = 1});
    return y;
}
