/* From a config and its weights to a program. Every family comes through here: what differs between them are
 * facts. */
#include "model/build.h"

#include "quant/convert.h"

#include <math.h>

void sl_build_norm_stream(sl_builder *b, const sl_stream *from, int32_t weight, sl_stream to) {
    const int32_t width = b->config->width;
    const bool pending = from->pending != SL_NONE, centred = b->config->family->layer_norm;
    sl_op *op = centred ? sl_build_op(b, SL_OP_LAYERNORM) : sl_build_norm(b, weight, 1, width, width);
    if (!op) {
        return;
    }
    op->in[0] = sl_at(pending ? from->pending : from->value, 0);
    op->in[1].value = pending ? from->value : SL_NONE;
    op->out[0] = sl_at(to.value, 0);
    op->out[1].value = to.pending;
    if (centred) {
        op->u.layernorm = (sl_op_layernorm){
            .weight = weight, .bias = SL_NONE, .epsilon = (float)b->config->epsilon, .width = width};
    } else if (pending) {
        op->u.rmsnorm.residual = SL_RESIDUAL_BEFORE;
        op->u.rmsnorm.x_factor = (float)b->config->branch_factor;
    }
}

/* The norm in front of a block: adds what is pending to the stream, and returns the normed value. Where norms
 * stand behind blocks alone, that is the stream itself. */
static int32_t norm_before(sl_builder *b, sl_tensor_id id, const char *name, const char *sum_name) {
    const int32_t width = b->config->width;
    if (b->config->family->norms == SL_NORMS_BEHIND) {
        return b->stream.value;
    }
    const int32_t y = sl_build_value(b, name, SL_ROWS_STEP, width);
    const bool pending = b->stream.pending != SL_NONE;
    const int32_t sum = pending ? sl_build_value(b, sum_name, SL_ROWS_STEP, width) : SL_NONE;
    sl_build_norm_stream(b, &b->stream, sl_build_weight(b, id), (sl_stream){y, sum});
    if (pending) {
        b->stream = (sl_stream){sum, SL_NONE};
    }
    return y;
}

int32_t sl_build_layer_norm(sl_builder *b) {
    return norm_before(b, SL_TENSOR_ATTENTION_NORM, "mixer_in", "hidden");
}

/* Joins the stream behind a norm of its own; the sum is multiplied by `factor`. */
static void join_normed(sl_builder *b, int32_t output, sl_tensor_id post_norm, const char *sum_name,
                        float factor) {
    const int32_t width = b->config->width;
    const int32_t sum = sl_build_value(b, sum_name, SL_ROWS_STEP, width);
    sl_op *op = sl_build_norm(b, sl_build_weight(b, post_norm), 1, width, width);
    if (op) {
        op->u.rmsnorm.residual = SL_RESIDUAL_AFTER;
        op->u.rmsnorm.y_factor = factor;
        op->in[0] = sl_at(output, 0);
        op->in[1] = sl_at(b->stream.value, 0);
        op->out[0] = sl_at(sum, 0);
        b->stream.value = sum;
    }
}

/* A block's output joins the stream: at the next norm, or behind a norm of its own now. */
static void join(sl_builder *b, int32_t output, sl_tensor_id post_norm, const char *sum_name) {
    if (b->config->family->norms != SL_NORMS_BEFORE) {
        join_normed(b, output, post_norm, sum_name, 1);
    } else {
        b->stream.pending = output;
    }
}

/* What leaves the layer is multiplied by this. */
static float layer_factor(const sl_builder *b) {
    const int32_t weight = sl_build_weight(b, SL_TENSOR_LAYER_SCALAR);
    return weight == SL_NONE ? 1 : *(const float *)b->program->weights[weight].data;
}

static int32_t build_block(sl_builder *b, int32_t x) {
    switch (b->config->kinds[b->layer]) {
    case SL_LAYER_DELTA:
        return sl_build_delta(b, x);
    case SL_LAYER_SSM:
        return sl_build_ssm(b, x);
    case SL_LAYER_CONV:
        return sl_build_short_conv(b, x);
    case SL_LAYER_FEED_FORWARD:
        return sl_build_feed_forward(b, x);
    default:
        return b->config->latent > 0 ? sl_build_latent(b, x) : sl_build_attention(b, x);
    }
}

/* The stream's values: `hidden.L` enters layer L, `attended.L` is between its two blocks; where
 * norms stand behind the blocks, `left.L` is what leaves it. */
void sl_build_layer(sl_builder *b) {
    if (b->config->family->encoder) {
        sl_build_encoder_layer(b);
        return;
    }
    const int32_t x = sl_build_layer_norm(b);
    if (b->config->family->parallel) {
        b->stream.value = sl_build_attention(b, x); /* joined in its projection */
        b->stream.pending = sl_build_feed_forward(b, x);
        return;
    }
    if (b->config->family->ssm_beside) {
        b->stream.value = sl_build_attention(b, x); /* joined in its projection */
        join(b, sl_build_ssm(b, x), SL_TENSOR_POST_ATTENTION_NORM, "attended");
    } else if (b->config->family->one_block) {
        join(b, build_block(b, x), SL_TENSOR_POST_ATTENTION_NORM, "left");
        return;
    } else {
        join(b, build_block(b, x), SL_TENSOR_POST_ATTENTION_NORM, "attended");
    }
    const int32_t y = norm_before(b, SL_TENSOR_FEED_FORWARD_NORM, "mlp_in", "attended");
    const int32_t fed = sl_build_feed_forward(b, y);
    if (b->per_layer != SL_NONE) {
        join(b, fed, SL_TENSOR_POST_FEED_FORWARD_NORM, "fed");
        join_normed(b, sl_build_per_layer(b, b->stream.value), SL_TENSOR_PER_LAYER_POST_NORM, "left",
                    layer_factor(b));
    } else if (b->config->family->layer_scalar) {
        join_normed(b, fed, SL_TENSOR_POST_FEED_FORWARD_NORM, "left", layer_factor(b));
    } else {
        join(b, fed, SL_TENSOR_POST_FEED_FORWARD_NORM, "left");
    }
}

/* The factor on embeddings of `width` elements, rounded to their type as transformers has it (bf16:
 * sqrt(2560) is 50.5). */
float sl_build_embed_scale(const sl_builder *b, int32_t table, int32_t width) {
    if (!b->config->family->embed_scale) {
        return (float)b->config->embed_factor;
    }
    const float scale = sqrtf((float)width);
    switch (b->program->weights[table].type) {
    case SL_QTYPE_BF16:
        return sl_bf16_to_f32(sl_f32_to_bf16(scale));
    case SL_QTYPE_F16:
        return sl_f16_to_f32(sl_f32_to_f16(scale));
    default:
        return scale;
    }
}

int32_t sl_build_embed(sl_builder *b, int32_t table, const char *name) {
    const int32_t y = sl_build_value(b, name, SL_ROWS_STEP, b->config->width);
    sl_op *op = sl_build_op(b, SL_OP_EMBED);
    if (op) {
        op->out[0] = sl_at(y, 0);
        op->u.embed.weight = table;
        op->u.embed.scale = sl_build_embed_scale(b, table, b->config->width);
    }
    return y;
}

int32_t sl_build_gather(sl_builder *b, int32_t value, const char *name) {
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
    const bool pending = b->stream.pending != SL_NONE;
    sl_stream outputs = {sl_build_gather(b, b->stream.value, "output_hidden"), SL_NONE};
    if (pending) {
        outputs.pending = sl_build_gather(b, b->stream.pending, "output_branch");
    }
    const int32_t y = sl_build_value(b, "output_normed", SL_ROWS_OUTPUT, b->config->width);
    sl_build_norm_stream(b, &outputs, b->binding->model[SL_TENSOR_FINAL_NORM], (sl_stream){y, SL_NONE});
    return y;
}

static void make_results(sl_builder *b) {
    const sl_value tokens = {.name = "tokens", .type = SL_VALUE_I32, .rows = SL_ROWS_OUTPUT, .width = 1};
    b->program->logits = sl_build_value(b, "logits", SL_ROWS_OUTPUT, b->config->vocabulary);
    b->program->tokens = sl_build_typed(b, tokens);
    if (b->config->tied) {
        b->binding->model[SL_TENSOR_HEAD] = b->binding->model[SL_TENSOR_EMBED];
    }
}

void sl_build_head(sl_builder *b, sl_tensor_id head) {
    const sl_config *config = b->config;
    if (b->program->logits == SL_NONE) {
        make_results(b);
    }
    const int32_t x = b->program->hidden, logits = b->program->logits;
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = logits, .weights = &head, .count = 1});
    if (config->final_softcap > 0 || config->logit_divisor != 1) {
        sl_op *op = sl_build_op(b, SL_OP_SOFTCAP);
        if (op) {
            op->in[0] = op->out[0] = sl_at(logits, 0);
            op->u.softcap.cap = (float)config->final_softcap;
            op->u.softcap.scale = (float)(1 / config->logit_divisor);
            op->u.softcap.width = config->vocabulary;
        }
    }
    sl_op *op = sl_build_op(b, SL_OP_SAMPLE);
    if (op) {
        op->in[0] = sl_at(logits, 0);
        op->out[0] = sl_at(b->program->tokens, 0);
        op->u.sample.vocabulary = config->vocabulary;
    }
}

static void add_group(sl_builder *b, int kind, int32_t layers, int32_t first) {
    const sl_config *config = b->config;
    const int32_t size = sl_config_head_size(config, first), latent = config->latent;
    const sl_cache_group group = {.name = kind == SL_LAYER_FULL ? "full" : "window",
                                  .layers = layers,
                                  .kv_heads = sl_config_kv_heads(config, first),
                                  .key_size = latent > 0 ? latent + config->rope_dims : size,
                                  .value_size = latent > 0 ? latent : size,
                                  .window = kind == SL_LAYER_FULL ? 0 : config->window,
                                  .values_are_keys = latent > 0,
                                  .chunked = kind == SL_LAYER_WINDOW && config->family->chunk > 0};
    sl_program_group(b->program, &group);
}

/* The rows that the head reads, of which the next one needs the last alone. */
static void add_kept_rows(sl_builder *b) {
    int32_t size = 256;
    while (b->config->width % size != 0) {
        size /= 2;
    }
    const sl_cache_group group = {.name = "rows",
                                  .layers = 1,
                                  .kv_heads = b->config->width / size,
                                  .key_size = size,
                                  .value_size = size,
                                  .window = 2,
                                  .values_are_keys = true};
    b->kept = (sl_cache_place){sl_program_group(b->program, &group), 0};
}

/* Groups, and in which place of one each layer's keys are. */
static void build_groups(sl_builder *b) {
    const sl_config *config = b->config;
    for (int kind = SL_LAYER_FULL; kind <= SL_LAYER_WINDOW; kind++) {
        int32_t layers = 0, first = 0; /* one of them */
        for (int32_t i = 0; i < config->layers + b->draft_layers; i++) {
            if (sl_config_has_keys(config, i) && config->kinds[i] == kind) {
                b->places[i] = (sl_cache_place){b->program->group_count, layers++};
                first = i;
            }
        }
        if (layers > 0) {
            add_group(b, kind, layers, first);
        }
    }
    if (b->draft_layers > 0) {
        add_kept_rows(b);
    }
}

static int build(sl_builder *b, sl_error *error) {
    const sl_config *config = b->config;
    sl_program *program = b->program;
    program->name = config->family->name;
    program->width = config->width;
    program->vocabulary = config->vocabulary;
    program->experts = config->experts;
    program->experts_used = config->experts_used;
    program->hidden = program->logits = program->tokens = SL_NONE;
    b->per_layer = SL_NONE;
    program->both_sides = config->both_sides;
    build_groups(b);
    sl_build_op(b, SL_OP_BEGIN);
    b->stream = (sl_stream){sl_build_embed(b, b->binding->model[SL_TENSOR_EMBED], "embed"), SL_NONE};
    if (config->family->encoder) {
        sl_build_encoder_embed(b);
    }
    if (config->per_layer_width > 0) {
        b->per_layer = sl_build_per_layer_embeddings(b, b->stream.value);
    }
    for (b->layer = 0; b->layer < config->layers && !program->failed; b->layer++) {
        sl_build_layer(b);
    }
    b->layer = SL_NONE;
    if (!program->failed) {
        const bool whole = config->family->encoder || b->draft_layers > 0; /* nothing is left to norm */
        const int32_t rows = b->draft_layers > 0 ? sl_build_draft_keys(b) : b->stream.value;
        program->hidden = whole ? sl_build_gather(b, rows, "output_hidden") : final_norm(b);
        if (!config->both_sides) {
            sl_build_head(b, SL_TENSOR_HEAD);
        }
    }
    if (!program->failed && b->draft_layers > 0) {
        sl_build_drafts(b);
    }
    return sl_program_check(program, error);
}

int sl_model_build(const sl_config *config, sl_binding *binding, sl_program *program, sl_error *error) {
    sl_builder b = {.config = config, .binding = binding, .program = program, .layer = SL_NONE};
    return build(&b, error);
}

int sl_model_build_drafting(const sl_config *config, sl_binding *binding, const sl_program *bound,
                            sl_program *program, sl_error *error) {
    for (int32_t w = 0; w < bound->weight_count; w++) {
        sl_program_weight(program, &bound->weights[w]);
    }
    sl_builder b = {.config = config,
                    .binding = binding,
                    .program = program,
                    .layer = SL_NONE,
                    .draft_layers = config->draft_layers};
    return build(&b, error);
}
