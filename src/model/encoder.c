/* BERT's kind of layer: LayerNorm of the sum of a block and what went into it, behind the block. */
#include "model/build.h"

/* LayerNorm of x plus the stream (or of x alone), which becomes the stream. */
static void norm_behind(sl_builder *b, int32_t x, bool with_stream, sl_tensor_id weight, const char *name) {
    const int32_t width = b->config->width, y = sl_build_value(b, name, SL_ROWS_STEP, width);
    sl_op *op = sl_build_op(b, SL_OP_LAYERNORM);
    if (op) {
        op->in[0] = sl_at(x, 0);
        op->in[1].value = with_stream ? b->stream.value : SL_NONE;
        op->out[0] = sl_at(y, 0);
        op->u.layernorm.weight = sl_build_weight(b, weight);
        op->u.layernorm.bias = sl_build_weight(b, (sl_tensor_id)(weight + 1)); /* the row behind it */
        op->u.layernorm.epsilon = (float)b->config->epsilon;
        op->u.layernorm.width = width;
    }
    b->stream.value = y;
    b->stream.pending = SL_NONE;
}

/* Adds a table's row to x, in place. */
static void add_row(sl_builder *b, int32_t x, sl_tensor_id table, sl_embed_source source, int32_t offset) {
    const int32_t weight = sl_build_weight(b, table);
    sl_op *op = weight == SL_NONE ? NULL : sl_build_op(b, SL_OP_EMBED);
    if (op) {
        op->in[0] = op->out[0] = sl_at(x, 0);
        op->u.embed = (sl_op_embed){.weight = weight, .scale = 1, .source = source, .offset = offset};
    }
}

void sl_build_encoder_embed(sl_builder *b) {
    const int32_t x = b->stream.value;
    add_row(b, x, SL_TENSOR_TOKEN_TYPES, SL_EMBED_FIRST, 0);
    add_row(b, x, SL_TENSOR_POSITIONS, SL_EMBED_POSITION, sl_config_position_offset(b->config));
    norm_behind(b, x, false, SL_TENSOR_EMBED_NORM, "hidden");
}

void sl_build_encoder_layer(sl_builder *b) {
    const int32_t mixed = sl_build_attention(b, b->stream.value);
    norm_behind(b, mixed, true, SL_TENSOR_ATTENTION_OUT_NORM, "attended");
    const int32_t fed = sl_build_feed_forward(b, b->stream.value);
    norm_behind(b, fed, true, SL_TENSOR_LAYER_OUT_NORM, "left");
}
