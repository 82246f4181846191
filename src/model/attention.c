/* The attention block: projections, norms of query, key and value, RoPE, cache, attention, output projection.
 */
#include "model/build.h"

/* Columns of the projections: heads of queries, then of keys, then of values. A layer that attends to
 * another's cache has queries alone. */
typedef struct head_layout {
    int32_t value; /* the projections' value */
    int32_t size, heads, kv_heads;
    int32_t stride;          /* of queries: with an output gate a head's rows are followed by its gate's */
    int32_t key, key_values; /* columns where keys and values begin */
    bool keys;               /* and values: it has its own */
} head_layout;

/* Heads of the projection from column `from` on, at column `to`: in place where they are the same. One norm
 * over all of them, or one for each. */
static void norm_heads(sl_builder *b, const head_layout *h, sl_operand from, int32_t to, int32_t weight) {
    const bool query = from.column == 0 && h->heads > 0;
    const bool whole = weight != SL_NONE && b->config->family->query_norm == SL_QUERY_NORM_WHOLE;
    const int32_t heads = query ? h->heads : h->kv_heads;
    sl_op *op = whole ? sl_build_norm(b, weight, 1, heads * h->size, heads * h->size)
                      : sl_build_norm(b, weight, heads, h->size, query ? h->stride : h->size);
    if (op) {
        op->in[0] = from;
        op->out[0] = sl_at(from.value, to);
        op->u.rmsnorm.weight_offset = weight == SL_NONE ? 0 : op->u.rmsnorm.weight_offset;
    }
}

static void rotate(sl_builder *b, sl_operand x, int32_t heads, int32_t stride) {
    if (b->config->family->encoder) {
        return; /* positions are in the embedding */
    }
    const bool window = b->config->kinds[b->layer] == SL_LAYER_WINDOW;
    const bool still = b->config->no_rope[b->layer], query = x.column == 0;
    /* Queries with a temperature: of all layers, or of those alone that do not rotate. */
    const bool grows =
        query && b->config->temperature_scale > 0 && still == (b->config->family->still_temperature > 0);
    sl_op *op = !still || grows ? sl_build_op(b, SL_OP_ROPE) : NULL;
    if (op) {
        op->in[0] = op->out[0] = x;
        op->u.rope.frequencies = window ? b->binding->local_rope : b->binding->rope;
        op->u.rope.heads = heads;
        op->u.rope.stride = stride;
        op->u.rope.dims = still ? 0 : sl_config_rope_dims(b->config, b->layer);
        op->u.rope.layout = b->config->rope_layout;
        op->u.rope.magnitude =
            still ? 1 : sl_rope_magnitude(window ? &b->config->local_rope : &b->config->rope);
    }
    if (op && grows) {
        op->u.rope.temperature =
            (sl_rope_temperature){.scale = (float)b->config->temperature_scale,
                                  .offset = still, /* llama.cpp and transformers: from p + 1 on */
                                  .length = b->config->temperature_length,
                                  .width = sl_config_head_size(b->config, b->layer)};
    }
}

static head_layout project(sl_builder *b, int32_t x) {
    static const sl_tensor_id weights[] = {SL_TENSOR_QUERY, SL_TENSOR_KEY, SL_TENSOR_VALUE};
    static const sl_tensor_id biases[] = {SL_TENSOR_QUERY_BIAS, SL_TENSOR_KEY_BIAS, SL_TENSOR_VALUE_BIAS};
    static const sl_tensor_id fused = SL_TENSOR_QKV;
    const sl_config *config = b->config;
    const int32_t size = sl_config_head_size(config, b->layer);
    head_layout h = {.size = size,
                     .heads = config->heads,
                     .kv_heads = sl_config_kv_heads(config, b->layer),
                     .stride = config->family->output_gate ? 2 * size : size,
                     .keys = sl_config_has_keys(config, b->layer)};
    h.key = h.heads * h.stride;
    h.key_values = h.key + h.kv_heads * size;
    h.value = sl_build_value(b, "qkv", SL_ROWS_STEP, h.keys ? h.key_values + h.kv_heads * size : h.key);
    const int32_t count = !h.keys ? 1 : sl_config_has_values(config, b->layer) ? 3 : 2;
    const sl_build_projection apart = {
        .x = x, .y = h.value, .weights = weights, .biases = biases, .count = count};
    const sl_build_projection one = {.x = x, .y = h.value, .weights = &fused, .count = 1};
    sl_build_linear(b, config->fused_qkv ? &one : &apart);
    return h;
}

/* Norms of queries, keys and values. */
static void norm_all(sl_builder *b, const head_layout *h) {
    const sl_family *family = b->config->family;
    const bool normed = b->config->query_norm && !(family->query_norm_plain && b->config->no_rope[b->layer]);
    if (family->value_norm && h->keys) {
        /* Where there is no value projection, the value is the key before its own norm. */
        const int32_t from = sl_config_has_values(b->config, b->layer) ? h->key_values : h->key;
        norm_heads(b, h, sl_at(h->value, from), h->key_values, SL_NONE);
    }
    if (normed) {
        norm_heads(b, h, sl_at(h->value, 0), 0, sl_build_weight(b, SL_TENSOR_QUERY_NORM));
    }
    if (normed && h->keys) {
        norm_heads(b, h, sl_at(h->value, h->key), h->key, sl_build_weight(b, SL_TENSOR_KEY_NORM));
    }
}

static void write_cache(sl_builder *b, const head_layout *h, sl_cache_place place) {
    sl_op *op = sl_build_op(b, SL_OP_CACHE_WRITE);
    if (op) {
        op->in[0] = sl_at(h->value, h->key);
        op->in[1] = sl_at(h->value, h->key_values);
        op->u.cache_write.place = place;
    }
}

void sl_build_keys(sl_builder *b, int32_t x) {
    static const sl_tensor_id weights[] = {SL_TENSOR_KEY, SL_TENSOR_VALUE};
    static const sl_tensor_id biases[] = {SL_TENSOR_KEY_BIAS, SL_TENSOR_VALUE_BIAS};
    const int32_t size = sl_config_head_size(b->config, b->layer);
    head_layout h = {.size = size, .kv_heads = sl_config_kv_heads(b->config, b->layer), .keys = true};
    h.key_values = h.kv_heads * size;
    h.value = sl_build_value(b, "kv", SL_ROWS_STEP, 2 * h.key_values);
    sl_build_linear(
        b, &(sl_build_projection){.x = x, .y = h.value, .weights = weights, .biases = biases, .count = 2});
    if (b->config->query_norm) {
        norm_heads(b, &h, sl_at(h.value, 0), 0, sl_build_weight(b, SL_TENSOR_KEY_NORM));
    }
    rotate(b, sl_at(h.value, 0), h.kv_heads, size);
    write_cache(b, &h, b->places[b->layer]);
}

int32_t sl_build_attention(sl_builder *b, int32_t x) {
    static const sl_tensor_id output = SL_TENSOR_OUTPUT, output_bias = SL_TENSOR_OUTPUT_BIAS;
    const sl_config *config = b->config;
    const head_layout h = project(b, x);
    const int32_t mixed = sl_build_value(b, "attention", SL_ROWS_STEP, h.heads * h.size);
    const bool joined = config->family->parallel || config->family->ssm_beside;
    const char *name = config->family->parallel ? "attended" : joined ? "joined" : "mixer_out";
    const int32_t y = sl_build_value(b, name, SL_ROWS_STEP, config->width);
    const sl_cache_place place = b->places[sl_config_kv_layer(config, b->layer)];
    const bool turned_first = config->family->query_norm == SL_QUERY_NORM_TURNED;
    if (!turned_first) {
        norm_all(b, &h);
    }
    rotate(b, sl_at(h.value, 0), h.heads, h.stride);
    if (h.keys) {
        rotate(b, sl_at(h.value, h.key), h.kv_heads, h.size);
    }
    if (turned_first) {
        norm_all(b, &h);
    }
    if (h.keys) {
        write_cache(b, &h, place);
    }
    sl_op *op = sl_build_op(b, SL_OP_ATTENTION);
    if (op) {
        op->in[0] = sl_at(h.value, 0);
        if (config->family->output_gate) {
            op->in[1] = sl_at(h.value, h.size);
            op->u.attention.gate_stride = h.stride;
        }
        op->out[0] = sl_at(mixed, 0);
        op->u.attention.place = place;
        op->u.attention.heads = h.heads;
        op->u.attention.q_stride = h.stride;
        op->u.attention.scale = (float)config->attention_scale;
        op->u.attention.softcap = (float)config->attention_softcap;
        op->u.attention.first =
            b->layer >= config->layers; /* the first row has none in front of it to join */
        op->u.attention.both_sides = b->program->both_sides;
        op->u.attention.sinks = sl_build_weight(b, SL_TENSOR_SINKS);
    }
    sl_build_factor(b, sl_at(mixed, 0), h.heads * h.size, config->factors.attention);
    op = sl_build_linear(b, &(sl_build_projection){
                                .x = mixed, .y = y, .weights = &output, .biases = &output_bias, .count = 1});
    if (op && joined) {
        op->in[3] = sl_at(b->stream.value, 0);
    }
    return y;
}
