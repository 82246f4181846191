/* From a config and its weights to a program. Every family comes through here: what differs between them are
 * facts. */
#include "model/build.h"

#include "quant/convert.h"

#include <math.h>
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

void sl_build_linear(sl_builder *b, const sl_build_projection *projection) {
    sl_op *op = sl_build_op(b, SL_OP_LINEAR);
    if (!op) {
        return;
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
    }
    return op;
}

/* The norm in front of a block: adds what is pending to the stream, and returns the normed value. */
static int32_t norm_before(sl_builder *b, sl_tensor_id id, const char *name, const char *sum_name) {
    const int32_t width = b->config->width;
    const int32_t y = sl_build_value(b, name, SL_ROWS_STEP, width);
    const bool pending = b->stream.pending != SL_NONE;
    const int32_t sum = pending ? sl_build_value(b, sum_name, SL_ROWS_STEP, width) : SL_NONE;
    sl_op *op = sl_build_norm(b, sl_build_weight(b, id), 1, width, width);
    if (!op) {
        return y;
    }
    op->in[0] = sl_at(pending ? b->stream.pending : b->stream.value, 0);
    op->out[0] = sl_at(y, 0);
    if (pending) {
        op->u.rmsnorm.residual = SL_RESIDUAL_BEFORE;
        op->in[1] = sl_at(b->stream.value, 0);
        op->out[1] = sl_at(sum, 0);
        b->stream.value = sum;
        b->stream.pending = SL_NONE;
    }
    return y;
}

/* A block's output joins the stream: at the next norm, or (sandwich) behind a norm of its own now. */
static void join(sl_builder *b, int32_t output, sl_tensor_id post_norm, const char *sum_name) {
    const int32_t width = b->config->width;
    if (!b->config->family->sandwich) {
        b->stream.pending = output;
        return;
    }
    const int32_t sum = sl_build_value(b, sum_name, SL_ROWS_STEP, width);
    sl_op *op = sl_build_norm(b, sl_build_weight(b, post_norm), 1, width, width);
    if (op) {
        op->u.rmsnorm.residual = SL_RESIDUAL_AFTER;
        op->in[0] = sl_at(output, 0);
        op->in[1] = sl_at(b->stream.value, 0);
        op->out[0] = sl_at(sum, 0);
        b->stream.value = sum;
    }
}

/* The stream's values: `hidden.L` enters layer L, `attended.L` is between its two blocks; where
 * norms stand behind the blocks, `left.L` is what leaves it. */
static void build_layer(sl_builder *b) {
    const bool delta = b->config->kinds[b->layer] == SL_LAYER_DELTA;
    const int32_t x = norm_before(b, SL_TENSOR_ATTENTION_NORM, "mixer_in", "hidden");
    join(b, delta ? sl_build_delta(b, x) : sl_build_attention(b, x), SL_TENSOR_POST_ATTENTION_NORM,
         "attended");
    const int32_t y = norm_before(b, SL_TENSOR_FEED_FORWARD_NORM, "mlp_in", "attended");
    join(b, sl_build_feed_forward(b, y), SL_TENSOR_POST_FEED_FORWARD_NORM, "left");
}

/* The factor on embeddings, rounded to their type as transformers has it (bf16: sqrt(2560) is 50.5). */
static float embed_scale(const sl_builder *b) {
    const float scale = b->config->family->embed_scale ? sqrtf((float)b->config->width) : 1;
    switch (b->program->weights[b->binding->model[SL_TENSOR_EMBED]].type) {
    case SL_QTYPE_BF16:
        return sl_bf16_to_f32(sl_f32_to_bf16(scale));
    case SL_QTYPE_F16:
        return sl_f16_to_f32(sl_f32_to_f16(scale));
    default:
        return scale;
    }
}

static void build_embed(sl_builder *b) {
    sl_build_op(b, SL_OP_BEGIN);
    b->stream.value = sl_build_value(b, "embed", SL_ROWS_STEP, b->config->width);
    b->stream.pending = SL_NONE;
    sl_op *op = sl_build_op(b, SL_OP_EMBED);
    if (op) {
        op->out[0] = sl_at(b->stream.value, 0);
        op->u.embed.weight = b->binding->model[SL_TENSOR_EMBED];
        op->u.embed.scale = embed_scale(b);
    }
}

static int32_t gather(sl_builder *b, int32_t value, const char *name) {
    const int32_t y = sl_build_value(b, name, SL_ROWS_OUTPUT, b->config->width);
    sl_op *op = sl_build_op(b, SL_OP_GATHER);
    if (op) {
        op->in[0] = sl_at(value, 0);
        op->out[0] = sl_at(y, 0);
        op->u.gather.width = b->config->width;
    }
    return y;
}

/* Only rows with outputs go on from here. */
static int32_t final_norm(sl_builder *b) {
    const int32_t width = b->config->width;
    const bool pending = b->stream.pending != SL_NONE;
    const int32_t x = gather(b, b->stream.value, "output_hidden");
    const int32_t branch = pending ? gather(b, b->stream.pending, "output_branch") : SL_NONE;
    const int32_t y = sl_build_value(b, "output_normed", SL_ROWS_OUTPUT, width);
    sl_op *op = sl_build_norm(b, b->binding->model[SL_TENSOR_FINAL_NORM], 1, width, width);
    if (op) {
        op->in[0] = sl_at(pending ? branch : x, 0);
        op->out[0] = sl_at(y, 0);
        if (pending) {
            op->u.rmsnorm.residual = SL_RESIDUAL_BEFORE;
            op->in[1] = sl_at(x, 0);
        }
    }
    return y;
}

static void build_head(sl_builder *b) {
    static const sl_tensor_id head = SL_TENSOR_HEAD;
    const sl_config *config = b->config;
    const int32_t x = final_norm(b);
    const int32_t logits = sl_build_value(b, "logits", SL_ROWS_OUTPUT, config->vocabulary);
    if (config->tied) {
        b->binding->model[SL_TENSOR_HEAD] = b->binding->model[SL_TENSOR_EMBED];
    }
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = logits, .weights = &head, .count = 1});
    if (config->final_softcap > 0) {
        sl_op *op = sl_build_op(b, SL_OP_SOFTCAP);
        if (op) {
            op->in[0] = op->out[0] = sl_at(logits, 0);
            op->u.softcap.cap = (float)config->final_softcap;
            op->u.softcap.width = config->vocabulary;
        }
    }
    const sl_value tokens = {.name = "tokens", .type = SL_VALUE_I32, .rows = SL_ROWS_OUTPUT, .width = 1};
    b->program->logits = logits;
    b->program->tokens = sl_build_typed(b, tokens);
    sl_op *op = sl_build_op(b, SL_OP_SAMPLE);
    if (op) {
        op->in[0] = sl_at(logits, 0);
        op->out[0] = sl_at(b->program->tokens, 0);
        op->u.sample.vocabulary = config->vocabulary;
    }
}

static void build_groups(sl_builder *b) {
    const sl_config *config = b->config;
    int32_t layers[2] = {0, 0};
    for (int32_t i = 0; i < config->layers; i++) {
        if (config->kinds[i] != SL_LAYER_DELTA) {
            layers[config->kinds[i]]++;
        }
    }
    for (int kind = SL_LAYER_FULL; kind <= SL_LAYER_WINDOW; kind++) {
        b->group[kind] = SL_NONE;
        if (layers[kind] > 0) {
            const sl_cache_group group = {.name = kind == SL_LAYER_FULL ? "full" : "window",
                                          .layers = layers[kind],
                                          .kv_heads = config->kv_heads,
                                          .key_size = config->head_size,
                                          .value_size = config->head_size,
                                          .window = kind == SL_LAYER_FULL ? 0 : config->window};
            b->group[kind] = sl_program_group(b->program, &group);
        }
    }
}

int sl_model_build(const sl_config *config, sl_binding *binding, sl_program *program, sl_error *error) {
    sl_builder b = {.config = config, .binding = binding, .program = program, .layer = SL_NONE};
    program->name = config->family->name;
    program->width = config->width;
    program->vocabulary = config->vocabulary;
    program->experts = config->experts;
    program->experts_used = config->experts_used;
    program->logits = program->tokens = SL_NONE;
    build_groups(&b);
    build_embed(&b);
    for (b.layer = 0; b.layer < config->layers && !program->failed; b.layer++) {
        build_layer(&b);
    }
    b.layer = SL_NONE;
    if (!program->failed) {
        build_head(&b);
    }
    return sl_program_check(program, error);
}
