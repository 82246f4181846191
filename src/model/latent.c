/* Latent attention (MLA), absorbed: what the cache has of a token is one row for all heads, [latent | part
 * that turns]. Queries go through their head's matrix of keys into the latent space, and what attention
 * leaves there, a sum of latent rows, goes through the head's matrix of values (DeepSeek-AI: "DeepSeek-V2",
 * 2024). */
#include "model/build.h"

/* Columns of the projections: queries, or the row that they come out of, then the latent row. */
typedef struct latent_layout {
    int32_t value;         /* the projections' value */
    int32_t queries;       /* the value of queries, [heads][part | rope] from column 0 on */
    int32_t part, rope;    /* elements of a head that do not turn, and that do */
    int32_t latent, begin; /* size of the latent row, and the column where it begins */
} latent_layout;

static void norm_row(sl_builder *b, sl_operand at, sl_tensor_id id, int32_t width) {
    sl_op *op = sl_build_norm(b, sl_build_weight(b, id), 1, width, width);
    if (op) {
        op->in[0] = op->out[0] = at;
        op->u.rmsnorm.epsilon = (float)b->config->latent_epsilon;
    }
}

static latent_layout project(sl_builder *b, int32_t x) {
    static const sl_tensor_id plain[] = {SL_TENSOR_QUERY, SL_TENSOR_LATENT};
    static const sl_tensor_id ranked[] = {SL_TENSOR_QUERY_LATENT, SL_TENSOR_LATENT}, up = SL_TENSOR_QUERY_UP;
    const sl_config *config = b->config;
    const int32_t width = config->heads * config->head_size, rank = config->query_rank;
    latent_layout l = {.part = config->head_size - config->rope_dims,
                       .rope = config->rope_dims,
                       .latent = config->latent,
                       .begin = rank > 0 ? rank : width};
    l.value = sl_build_value(b, "projected", SL_ROWS_STEP, l.begin + l.latent + l.rope);
    sl_build_linear(
        b, &(sl_build_projection){.x = x, .y = l.value, .weights = rank > 0 ? ranked : plain, .count = 2});
    l.queries = l.value;
    if (rank > 0) {
        norm_row(b, sl_at(l.value, 0), SL_TENSOR_QUERY_LATENT_NORM, rank);
        l.queries = sl_build_value(b, "queries", SL_ROWS_STEP, width);
        sl_build_linear(b, &(sl_build_projection){.x = l.value, .y = l.queries, .weights = &up, .count = 1});
    }
    norm_row(b, sl_at(l.value, l.begin), SL_TENSOR_LATENT_NORM, l.latent);
    return l;
}

static sl_op *turn(sl_builder *b, sl_operand x, int32_t heads, int32_t stride) {
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
    return op;
}

/* All of the queries, also what does not turn. */
static void sharpen(sl_builder *b, const latent_layout *l) {
    const sl_config *config = b->config;
    sl_op *op = config->temperature_scale > 0
                    ? turn(b, sl_at(l->queries, 0), config->heads, config->head_size)
                    : NULL;
    if (op) {
        op->u.rope.dims = 0;
        op->u.rope.magnitude = 1;
        op->u.rope.temperature = (sl_rope_temperature){.scale = (float)config->temperature_scale,
                                                       .length = config->temperature_length,
                                                       .width = config->head_size};
    }
}

static void write_row(sl_builder *b, sl_operand row) {
    sl_op *op = sl_build_op(b, SL_OP_CACHE_WRITE);
    if (op) {
        op->in[0] = row;
        op->u.cache_write.place = b->places[b->layer];
    }
}

/* `x_stride`: of heads; the tail behind what is multiplied comes along. */
static void multiply_heads(sl_builder *b, int32_t x, int32_t y, const sl_op_head_linear *parameters) {
    sl_op *op = sl_build_op(b, SL_OP_HEAD_LINEAR);
    if (op) {
        op->in[0] = sl_at(x, 0);
        op->out[0] = sl_at(y, 0);
        op->u.head_linear = *parameters;
    }
}

void sl_build_latent_keys(sl_builder *b, int32_t x) {
    static const sl_tensor_id weight = SL_TENSOR_LATENT;
    const sl_config *config = b->config;
    const int32_t latent = config->latent, rope = config->rope_dims;
    const int32_t row = sl_build_value(b, "latent", SL_ROWS_STEP, latent + rope);
    sl_build_linear(b, &(sl_build_projection){.x = x, .y = row, .weights = &weight, .count = 1});
    norm_row(b, sl_at(row, 0), SL_TENSOR_LATENT_NORM, latent);
    turn(b, sl_at(row, latent), 1, rope);
    write_row(b, sl_at(row, 0));
}

int32_t sl_build_latent(sl_builder *b, int32_t x) {
    static const sl_tensor_id output = SL_TENSOR_OUTPUT;
    const sl_config *config = b->config;
    const latent_layout l = project(b, x);
    const int32_t key = l.latent + l.rope, heads = config->heads;
    const sl_cache_place place = b->places[b->layer];
    const int32_t absorbed = sl_build_value(b, "absorbed", SL_ROWS_STEP, heads * key);
    const int32_t mixed = sl_build_value(b, "attention", SL_ROWS_STEP, heads * l.latent);
    const int32_t values = sl_build_value(b, "values", SL_ROWS_STEP, heads * config->value_size);
    const int32_t y = sl_build_value(b, "mixer_out", SL_ROWS_STEP, config->width);
    turn(b, sl_at(l.queries, l.part), heads, config->head_size);
    sharpen(b, &l);
    turn(b, sl_at(l.value, l.begin + l.latent), 1, l.rope);
    multiply_heads(b, l.queries, absorbed,
                   &(sl_op_head_linear){.weight = sl_build_weight(b, SL_TENSOR_LATENT_KEYS),
                                        .x_stride = config->head_size,
                                        .tail = l.rope,
                                        .turned = config->latent_joined});
    write_row(b, sl_at(l.value, l.begin));
    sl_op *op = sl_build_op(b, SL_OP_ATTENTION);
    if (op) {
        op->in[0] = sl_at(absorbed, 0);
        op->out[0] = sl_at(mixed, 0);
        op->u.attention = (sl_op_attention){.place = place,
                                            .heads = heads,
                                            .q_stride = key,
                                            .scale = (float)config->attention_scale,
                                            .softcap = (float)config->attention_softcap,
                                            .first = b->layer >= config->layers, /* as in attention.c */
                                            .both_sides = b->program->both_sides,
                                            .sinks = SL_NONE};
    }
    multiply_heads(
        b, mixed, values,
        &(sl_op_head_linear){.weight = sl_build_weight(b, SL_TENSOR_LATENT_VALUES), .x_stride = l.latent});
    sl_build_linear(b, &(sl_build_projection){.x = values, .y = y, .weights = &output, .count = 1});
    return y;
}
