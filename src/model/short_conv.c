/* The short convolution block: a projection to b, c and x, a causal depthwise convolution of b * x without an
 * activation, c times its result, output projection. Layout and formulas: Lfm2ShortConv in transformers. */
#include "model/build.h"

/* left * right, element by element. */
static void multiply(sl_builder *b, sl_operand left, sl_operand right, int32_t y) {
    sl_op *op = sl_build_op(b, SL_OP_ACTIVATE);
    if (op) {
        op->in[0] = left;
        op->in[1] = right;
        op->out[0] = sl_at(y, 0);
        op->u.activate.function = SL_ACTIVATION_IDENTITY;
        op->u.activate.width = b->config->width;
    }
}

int32_t sl_build_short_conv(sl_builder *b, int32_t x) {
    static const sl_tensor_id input = SL_TENSOR_SHORT_CONV_INPUT, output = SL_TENSOR_SHORT_CONV_OUTPUT;
    const int32_t width = b->config->width;
    const sl_state_layer shape = {.channels = width, .taps = b->config->short_conv_taps};
    const int32_t projected = sl_build_value(b, "conv_in", SL_ROWS_STEP, 3 * width);
    const int32_t gated = sl_build_value(b, "conv_x", SL_ROWS_STEP, width);
    const int32_t convolved = sl_build_value(b, "convolved", SL_ROWS_STEP, width);
    const int32_t result = sl_build_value(b, "conv_gated", SL_ROWS_STEP, width);
    const int32_t y = sl_build_value(b, "mixer_out", SL_ROWS_STEP, width);
    const int32_t state = sl_program_state(b->program, &shape);

    sl_build_linear(b, &(sl_build_projection){.x = x, .y = projected, .weights = &input, .count = 1});
    multiply(b, sl_at(projected, 0), sl_at(projected, 2 * width), gated);
    sl_op *op = sl_build_op(b, SL_OP_CONV);
    if (op) {
        op->in[0] = sl_at(gated, 0);
        op->out[0] = sl_at(convolved, 0);
        op->u.conv.weight = sl_build_weight(b, SL_TENSOR_SHORT_CONV);
        op->u.conv.bias = SL_NONE;
        op->u.conv.state = state;
        op->u.conv.function = SL_ACTIVATION_IDENTITY;
    }
    multiply(b, sl_at(projected, width), sl_at(convolved, 0), result);
    sl_build_linear(b, &(sl_build_projection){.x = result, .y = y, .weights = &output, .count = 1});
    return y;
}
