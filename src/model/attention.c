/* The attention block: projections, norms of query and key, RoPE, cache, attention, output projection. */
#include "model/build.h"

/* Query or key heads of the projection, in place. */
static void norm_heads(sl_builder *b, sl_operand x, sl_tensor_id id, int32_t heads, int32_t stride) {
    sl_op *op = sl_build_norm(b, sl_build_weight(b, id), heads, b->config->head_size, stride);
    if (op) {
        op->in[0] = op->out[0] = x;
    }
}

static void rotate(sl_builder *b, sl_operand x, int32_t heads, int32_t stride) {
    const bool window = b->config->kinds[b->layer] == SL_LAYER_WINDOW;
    sl_op *op = sl_build_op(b, SL_OP_ROPE);
    if (op) {
        op->in[0] = op->out[0] = x;
        op->u.rope.frequencies = window ? b->binding->local_rope : b->binding->rope;
        op->u.rope.heads = heads;
        op->u.rope.stride = stride;
        op->u.rope.dims = b->config->rope_dims;
        op->u.rope.layout = b->config->rope_layout;
        op->u.rope.magnitude = sl_rope_magnitude(window ? &b->config->local_rope : &b->config->rope);
    }
}

int32_t sl_build_attention(sl_builder *b, int32_t x) {
    static const sl_tensor_id weights[] = {SL_TENSOR_QUERY, SL_TENSOR_KEY, SL_TENSOR_VALUE};
    static const sl_tensor_id biases[] = {SL_TENSOR_QUERY_BIAS, SL_TENSOR_KEY_BIAS, SL_TENSOR_VALUE_BIAS};
    static const sl_tensor_id output = SL_TENSOR_OUTPUT, output_bias = SL_TENSOR_OUTPUT_BIAS;
    const sl_config *config = b->config;
    const int32_t size = config->head_size, kind = config->kinds[b->layer];
    /* With an output gate a head's query rows are followed by its gate's. */
    const int32_t stride = config->family->output_gate ? 2 * size : size;
    const int32_t key = config->heads * stride, value = key + config->kv_heads * size;
    const int32_t qkv = sl_build_value(b, "qkv", SL_ROWS_STEP, value + config->kv_heads * size);
    const int32_t mixed = sl_build_value(b, "attention", SL_ROWS_STEP, config->heads * size);
    const int32_t y = sl_build_value(b, "mixer_out", SL_ROWS_STEP, config->width);
    const sl_cache_place place = {b->group[kind], b->next[kind]++};

    sl_build_linear(
        b, &(sl_build_projection){.x = x, .y = qkv, .weights = weights, .biases = biases, .count = 3});
    if (config->family->query_norm) {
        norm_heads(b, sl_at(qkv, 0), SL_TENSOR_QUERY_NORM, config->heads, stride);
        norm_heads(b, sl_at(qkv, key), SL_TENSOR_KEY_NORM, config->kv_heads, size);
    }
    rotate(b, sl_at(qkv, 0), config->heads, stride);
    rotate(b, sl_at(qkv, key), config->kv_heads, size);
    sl_op *op = sl_build_op(b, SL_OP_CACHE_WRITE);
    if (op) {
        op->in[0] = sl_at(qkv, key);
        op->in[1] = sl_at(qkv, value);
        op->u.cache_write.place = place;
    }
    op = sl_build_op(b, SL_OP_ATTENTION);
    if (op) {
        op->in[0] = sl_at(qkv, 0);
        if (config->family->output_gate) {
            op->in[1] = sl_at(qkv, size);
            op->u.attention.gate_stride = stride;
        }
        op->out[0] = sl_at(mixed, 0);
        op->u.attention.place = place;
        op->u.attention.heads = config->heads;
        op->u.attention.q_stride = stride;
        op->u.attention.scale = (float)config->attention_scale;
        op->u.attention.softcap = (float)config->attention_softcap;
        op->u.attention.sinks = SL_NONE;
    }
    sl_build_linear(b, &(sl_build_projection){
                           .x = mixed, .y = y, .weights = &output, .biases = &output_bias, .count = 1});
    return y;
}
