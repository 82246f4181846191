/* sl_program_check: what every op list must satisfy before anybody plans or runs it. */
#include "program/program.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <math.h>
#include <stdio.h>

typedef enum rows_rule {
    ROWS_STEP = SL_ROWS_STEP,
    ROWS_EXPERT = SL_ROWS_EXPERT,
    ROWS_OUTPUT = SL_ROWS_OUTPUT,
    ROWS_SAME, /* as the op's other operands of this rule */
    ROWS_FREE, /* the op's own check says */
} rows_rule;

typedef enum type_rule {
    TYPE_F32,
    TYPE_I32,
    TYPE_FORMAT /* what QUANTIZE makes */,
    TYPE_ACTIVATION
} type_rule;

typedef struct role_rule {
    rows_rule rows;
    type_rule type;
    /* Of an output: bit i allows that it lies exactly on input i. Overlaps of any other kind are mistakes. */
    unsigned onto;
} role_rule;

typedef struct op_rule {
    role_rule in[SL_OP_INPUTS], out[SL_OP_OUTPUTS];
} op_rule;

#define STEP                                                                                                 \
    { ROWS_STEP, TYPE_F32, 0 }
#define SAME                                                                                                 \
    { ROWS_SAME, TYPE_F32, 0 }
#define OUTPUT                                                                                               \
    { ROWS_OUTPUT, TYPE_F32, 0 }
static const op_rule RULES[SL_OP_COUNT] = {
    [SL_OP_EMBED] = {.in = {STEP}, .out = {{ROWS_STEP, TYPE_F32, 1}}},
    [SL_OP_LAYERNORM] = {.in = {SAME, SAME}, .out = {{ROWS_SAME, TYPE_F32, 3}, {ROWS_SAME, TYPE_F32, 3}}},
    [SL_OP_RMSNORM] = {.in = {SAME, SAME, SAME}, .out = {{ROWS_SAME, TYPE_F32, 7}, {ROWS_SAME, TYPE_F32, 3}}},
    [SL_OP_QUANTIZE] = {.in = {SAME}, .out = {{ROWS_SAME, TYPE_FORMAT, 0}}},
    [SL_OP_LINEAR] =
        {.in = {{ROWS_FREE, TYPE_ACTIVATION, 0}, {ROWS_STEP, TYPE_I32, 0}, {ROWS_EXPERT, TYPE_I32, 0}, SAME},
         .out = {{ROWS_SAME, TYPE_F32, 8}}},
    [SL_OP_HEAD_LINEAR] = {.in = {SAME}, .out = {SAME}},
    [SL_OP_ROPE] = {.in = {STEP}, .out = {{ROWS_STEP, TYPE_F32, 1}}},
    [SL_OP_CACHE_WRITE] = {.in = {STEP, STEP}},
    [SL_OP_ATTENTION] = {.in = {STEP, STEP}, .out = {STEP}},
    [SL_OP_COMPACT] = {.in = {STEP}},
    [SL_OP_RECALL] = {.out = {STEP}},
    [SL_OP_ROUTER] = {.in = {STEP}, .out = {{ROWS_STEP, TYPE_I32, 0}, STEP, {ROWS_EXPERT, TYPE_I32, 0}}},
    [SL_OP_COMBINE] = {.in = {{ROWS_EXPERT, TYPE_F32, 0}, STEP, STEP, STEP, STEP},
                       .out = {{ROWS_STEP, TYPE_F32, 12}}},
    [SL_OP_ACTIVATE] = {.in = {SAME, SAME, STEP}, .out = {{ROWS_SAME, TYPE_F32, 3}}},
    [SL_OP_CONV] = {.in = {STEP}, .out = {STEP}},
    [SL_OP_DELTA_SCAN] = {.in = {STEP, STEP, STEP}, .out = {STEP}},
    [SL_OP_SSM_SCAN] = {.in = {STEP, STEP}, .out = {STEP}},
    [SL_OP_GATHER] = {.in = {STEP}, .out = {{ROWS_FREE, TYPE_F32, 0}}},
    [SL_OP_TRANSFER] = {.in = {SAME}, .out = {SAME}},
    [SL_OP_ALL_REDUCE] = {.in = {SAME}, .out = {{ROWS_SAME, TYPE_F32, 1}}},
    [SL_OP_ALL_GATHER] = {.in = {SAME}, .out = {SAME}},
    [SL_OP_SOFTCAP] = {.in = {SAME}, .out = {{ROWS_SAME, TYPE_F32, 1}}},
    [SL_OP_SAMPLE] = {.in = {OUTPUT}, .out = {{ROWS_OUTPUT, TYPE_I32, 0}}},
    [SL_OP_FETCH] = {.in = {{ROWS_STEP, TYPE_I32, 0}, {ROWS_EXPERT, TYPE_I32, 0}},
                     .out = {{ROWS_STEP, TYPE_I32, 0}, {ROWS_EXPERT, TYPE_I32, 0}}},
    [SL_OP_OBSERVE] = {.in = {{ROWS_FREE, TYPE_F32, 0}, {ROWS_EXPERT, TYPE_I32, 0}}},
};
#undef STEP
#undef SAME
#undef OUTPUT

/* One interval of columns that an op wrote; those of one value are chained. */
typedef struct write {
    int64_t first, end;
    int32_t next;
} write;

enum { OP_WRITES = SL_LINEAR_SEGMENTS > SL_OP_OUTPUTS ? SL_LINEAR_SEGMENTS : SL_OP_OUTPUTS };

typedef struct checker {
    const sl_program *program;
    const sl_value *values;
    int32_t value_count;
    const sl_op *op;
    int32_t index;
    sl_error *error;
    write *writes;
    int32_t write_count;
    int32_t *heads;        /* per value: its last write, or SL_NONE */
    unsigned char *places; /* per cache place: written already */
    int32_t first_place[SL_CACHE_GROUPS];
} checker;

static int refuse(const checker *c, const char *format, ...) SL_PRINTF(2, 3);

static int refuse(const checker *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sl_fail_va(c->error, SL_ERR_INVALID, format, arguments);
    va_end(arguments);
    char prefix[96], layer[24] = "";
    if (c->op->layer >= 0) {
        snprintf(layer, sizeof layer, ", layer %d", c->op->layer);
    }
    snprintf(prefix, sizeof prefix, "op %d (%s%s)", c->index, sl_op_name(c->op->kind), layer);
    if (c->error) {
        sl_fail_prefix(c->error, prefix);
    }
    return SL_ERR_INVALID;
}

#define REQUIRE(c, condition, ...)                                                                           \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            return refuse(c, __VA_ARGS__);                                                                   \
        }                                                                                                    \
    } while (0)

/* ---- weights ---- */

static int check_weight_index(const checker *c, int32_t weight, const char *what) {
    REQUIRE(c, weight >= 0 && weight < c->program->weight_count, "%s: weight %d does not exist", what,
            weight);
    return 0;
}

/* A vector of `columns` F32 elements (per expert), or SL_NONE where `optional`. */
static int check_vector(const checker *c, int32_t index, const char *what, bool optional, int64_t columns,
                        int32_t experts) {
    if (optional && index == SL_NONE) {
        return 0;
    }
    if (check_weight_index(c, index, what)) {
        return SL_ERR_INVALID;
    }
    const sl_weight *weight = &c->program->weights[index];
    REQUIRE(c, weight->type == SL_QTYPE_F32, "%s: weight %s must be f32", what, weight->name);
    REQUIRE(c, weight->rows == 1 && weight->columns == columns && weight->experts == experts,
            "%s: weight %s is %dx%dx%d, expected %dx1x%lld", what, weight->name, weight->experts,
            weight->rows, weight->columns, experts, (long long)columns);
    return 0;
}

static int check_place(const checker *c, sl_cache_place place) {
    REQUIRE(c, place.group >= 0 && place.group < c->program->group_count, "cache group %d does not exist",
            place.group);
    REQUIRE(c, place.layer >= 0 && place.layer < c->program->groups[place.group].layers,
            "layer %d does not exist in cache group %s", place.layer, c->program->groups[place.group].name);
    return 0;
}

static int check_state(const checker *c, int32_t state) {
    REQUIRE(c, state >= 0 && state < c->program->state_count, "state layer %d does not exist", state);
    return 0;
}

/* ---- parameters of each kind: checked before operands, whose widths follow from them ---- */

static int check_embed(const checker *c) {
    const sl_op_embed *embed = &c->op->u.embed;
    if (check_weight_index(c, embed->weight, "table")) {
        return SL_ERR_INVALID;
    }
    const sl_weight *weight = &c->program->weights[embed->weight];
    REQUIRE(c, (unsigned)embed->source < SL_EMBED_SOURCE_COUNT, "unknown source %d", (int)embed->source);
    REQUIRE(c, weight->experts == 1, "table %s has experts", weight->name);
    REQUIRE(c, embed->offset >= 0, "offset must not be negative");
    REQUIRE(c, embed->source != SL_EMBED_TOKEN || weight->rows >= c->program->vocabulary,
            "table %s has %d rows for a vocabulary of %d", weight->name, weight->rows,
            c->program->vocabulary);
    return 0;
}

static int check_rmsnorm(const checker *c) {
    const sl_op_rmsnorm *norm = &c->op->u.rmsnorm;
    REQUIRE(c, norm->groups >= 1 && norm->width >= 1, "groups and width must be at least 1");
    REQUIRE(c, norm->groups == 1 || norm->stride >= norm->width, "stride %d is less than the width %d",
            norm->stride, norm->width);
    REQUIRE(c, norm->stride >= 0 && norm->gate_stride >= 0, "strides must not be negative");
    REQUIRE(c, norm->epsilon >= 0 && isfinite(norm->epsilon), "epsilon must be finite and not negative");
    REQUIRE(c,
            norm->residual == SL_RESIDUAL_NONE || norm->residual == SL_RESIDUAL_BEFORE ||
                norm->residual == SL_RESIDUAL_AFTER,
            "unknown place %d of the residual", (int)norm->residual);
    REQUIRE(c, (c->op->in[1].value != SL_NONE) == (norm->residual != SL_RESIDUAL_NONE),
            "a residual and its place (before or after the norm) go together");
    REQUIRE(c, c->op->out[1].value == SL_NONE || norm->residual == SL_RESIDUAL_BEFORE,
            "sum: there is one only with a residual before the norm");
    REQUIRE(
        c, norm->x_factor != 0 && isfinite(norm->x_factor) && norm->y_factor != 0 && isfinite(norm->y_factor),
        "factors must be finite and not 0");
    REQUIRE(c, c->op->in[2].value == SL_NONE || norm->groups == 1 || norm->gate_stride >= norm->width,
            "gate stride %d is less than the width %d", norm->gate_stride, norm->width);
    const int64_t weights = (int64_t)norm->width * (norm->own_weights ? norm->groups : 1);
    return check_vector(c, norm->weight, "weight", true, weights, 1);
}

static int check_layernorm(const checker *c) {
    const sl_op_layernorm *norm = &c->op->u.layernorm;
    REQUIRE(c, norm->width >= 1, "width must be at least 1");
    REQUIRE(c, norm->epsilon >= 0 && isfinite(norm->epsilon), "epsilon must be finite and not negative");
    REQUIRE(c, c->op->out[1].value == SL_NONE || c->op->in[1].value != SL_NONE,
            "sum: there is one only with a residual");
    const int code = check_vector(c, norm->weight, "weight", false, norm->width, 1);
    return code ? code : check_vector(c, norm->bias, "bias", true, norm->width, 1);
}

static int check_quantize(const checker *c) {
    REQUIRE(c, c->op->u.quantize.width >= 1, "width must be at least 1");
    REQUIRE(c,
            c->op->out[0].value < 0 || c->op->out[0].value >= c->value_count ||
                c->values[c->op->out[0].value].type != SL_VALUE_Q8_32 || c->op->u.quantize.width % 32 == 0,
            "width %d is no multiple of 32", c->op->u.quantize.width);
    return 0;
}

static int check_segment(const checker *c, int32_t s) {
    const sl_op_linear *linear = &c->op->u.linear;
    const sl_linear_segment *segment = &linear->segments[s];
    const bool experts = c->op->in[1].value != SL_NONE;
    if (check_weight_index(c, segment->weight, "segment")) {
        return SL_ERR_INVALID;
    }
    const sl_weight *weight = &c->program->weights[segment->weight];
    const sl_weight *first = &c->program->weights[linear->segments[0].weight];
    REQUIRE(c, weight->columns == first->columns, "weight %s reads %d columns, %s reads %d", weight->name,
            weight->columns, first->name, first->columns);
    REQUIRE(c, weight->experts == (experts ? c->program->experts : 1), "weight %s has %d experts; %s",
            weight->name, weight->experts,
            experts ? "with ids it must have the program's" : "without ids it must have 1");
    REQUIRE(c, segment->column >= 0, "weight %s: column %d is negative", weight->name, segment->column);
    for (int32_t other = 0; other < s; other++) {
        const sl_linear_segment *before = &linear->segments[other];
        REQUIRE(c,
                before->column >= (int64_t)segment->column + weight->rows ||
                    segment->column >= (int64_t)before->column + c->program->weights[before->weight].rows,
                "weights %s and %s write the same columns", c->program->weights[before->weight].name,
                weight->name);
    }
    return check_vector(c, segment->bias, "bias", true, weight->rows, weight->experts);
}

static int check_linear(const checker *c) {
    const sl_op_linear *linear = &c->op->u.linear;
    REQUIRE(c, linear->segment_count >= 1 && linear->segment_count <= SL_LINEAR_SEGMENTS,
            "%d segments, expected 1 to %d", linear->segment_count, SL_LINEAR_SEGMENTS);
    REQUIRE(c, (c->op->in[1].value == SL_NONE) == (c->op->in[2].value == SL_NONE),
            "ids and schedule go together");
    REQUIRE(c, c->op->in[1].value == SL_NONE || c->program->experts > 0, "ids: the program has no experts");
    for (int32_t s = 0; s < linear->segment_count; s++) {
        if (check_segment(c, s)) {
            return SL_ERR_INVALID;
        }
    }
    return 0;
}

static int check_head_linear(const checker *c) {
    const sl_op_head_linear *linear = &c->op->u.head_linear;
    if (check_weight_index(c, linear->weight, "weight")) {
        return SL_ERR_INVALID;
    }
    const sl_weight *weight = &c->program->weights[linear->weight];
    const int32_t inputs = linear->turned ? weight->rows : weight->columns;
    REQUIRE(c, linear->tail >= 0 && linear->x_stride >= 0, "tail and stride must not be negative");
    REQUIRE(c, weight->experts == 1 || linear->x_stride >= (int64_t)inputs + linear->tail,
            "stride %d is less than what a head reads (%d and %d)", linear->x_stride, inputs, linear->tail);
    return 0;
}

static int check_rope(const checker *c) {
    const sl_op_rope *rope = &c->op->u.rope;
    REQUIRE(c, rope->heads >= 1, "heads must be at least 1");
    const sl_rope_temperature *temperature = &rope->temperature;
    REQUIRE(c, rope->dims >= 0 && rope->dims % 2 == 0, "dims %d must be even and not negative", rope->dims);
    REQUIRE(c, rope->dims > 0 || temperature->width > 0, "neither rotates nor scales");
    REQUIRE(c, temperature->width >= 0 && (temperature->width == 0 || temperature->length >= 1),
            "a temperature's width %d must not be negative, its length %d positive", temperature->width,
            temperature->length);
    REQUIRE(c, temperature->offset >= 0 && isfinite(temperature->scale),
            "a temperature's offset must not be negative, its scale finite");
    REQUIRE(c, rope->heads == 1 || (rope->stride >= rope->dims && rope->stride >= temperature->width),
            "dims %d or width %d exceed the stride %d", rope->dims, temperature->width, rope->stride);
    REQUIRE(c, rope->stride >= 0, "stride must not be negative");
    REQUIRE(c, rope->layout == SL_ROPE_HALVES || rope->layout == SL_ROPE_PAIRS, "unknown layout %d",
            (int)rope->layout);
    REQUIRE(c, c->op->in[0].value == c->op->out[0].value && c->op->in[0].column == c->op->out[0].column,
            "works in place: x must be the same before and after");
    return rope->dims == 0 ? 0 : check_vector(c, rope->frequencies, "frequencies", false, rope->dims / 2, 1);
}

static int check_cache_write(const checker *c) {
    if (check_place(c, c->op->u.cache_write.place)) {
        return SL_ERR_INVALID;
    }
    const sl_cache_group *group = &c->program->groups[c->op->u.cache_write.place.group];
    REQUIRE(c, (c->op->in[1].value == SL_NONE) == group->values_are_keys,
            "v: there is none where values are part of keys, and only there");
    return 0;
}

/* Of the queries and the keys that they meet. */
static int check_queries(const checker *c, const sl_op_attention *attention) {
    if (check_place(c, attention->place)) {
        return SL_ERR_INVALID;
    }
    const sl_cache_group *group = &c->program->groups[attention->place.group];
    REQUIRE(c, attention->heads >= 1 && attention->heads % group->kv_heads == 0,
            "%d heads are no multiple of the group's %d", attention->heads, group->kv_heads);
    REQUIRE(c, attention->heads == 1 || attention->q_stride >= group->key_size,
            "q stride %d is less than the key size %d", attention->q_stride, group->key_size);
    REQUIRE(c, attention->q_stride >= 0 && attention->gate_stride >= 0, "strides must not be negative");
    REQUIRE(c, attention->first >= 0 && (attention->first == 0 || !attention->both_sides),
            "first %d must not be negative, and is for attention to one side", attention->first);
    REQUIRE(c, isfinite(attention->scale) && attention->softcap >= 0,
            "scale must be finite, softcap not negative");
    REQUIRE(c, c->places[c->first_place[attention->place.group] + attention->place.layer],
            "reads layer %d of cache group %s before it is written", attention->place.layer, group->name);
    return check_vector(c, attention->sinks, "sinks", true, attention->heads, 1);
}

static int check_attention(const checker *c) {
    const sl_op_attention *attention = &c->op->u.attention;
    if (check_queries(c, attention)) {
        return SL_ERR_INVALID;
    }
    REQUIRE(c,
            c->op->in[1].value == SL_NONE || attention->heads == 1 ||
                attention->gate_stride >= c->program->groups[attention->place.group].value_size,
            "gate stride %d is less than the value size %d", attention->gate_stride,
            c->program->groups[attention->place.group].value_size);
    REQUIRE(c, attention->both_sides == c->program->both_sides,
            "all attention of a program looks to both sides, or none does");
    return 0;
}

static int check_compact(const checker *c) {
    const sl_op_compact *compact = &c->op->u.compact;
    if (check_queries(c, &compact->attention)) {
        return SL_ERR_INVALID;
    }
    const sl_cache_group *group = &c->program->groups[compact->attention.place.group];
    REQUIRE(c, group->window == 0 && !c->program->both_sides,
            "group %s: a window drops its keys by itself, and texts read to both sides none", group->name);
    REQUIRE(c, compact->keep >= 1 && compact->pool >= 1 && compact->pool % 2 == 1,
            "keep %d must be at least 1, pool %d odd", compact->keep, compact->pool);
    return 0;
}

static int check_recall(const checker *c) {
    if (check_place(c, c->op->u.recall.place)) {
        return SL_ERR_INVALID;
    }
    const sl_cache_group *group = &c->program->groups[c->op->u.recall.place.group];
    REQUIRE(c, group->window != 1, "a window of 1 does not keep the row in front");
    return 0;
}

static int check_router(const checker *c) {
    const sl_op_router *router = &c->op->u.router;
    REQUIRE(c, router->kind == SL_ROUTER_SOFTMAX || router->kind == SL_ROUTER_SIGMOID, "unknown kind %d",
            (int)router->kind);
    REQUIRE(c, router->experts >= 1 && router->used >= 1, "experts and used must be at least 1");
    REQUIRE(c, router->experts == c->program->experts && router->used == c->program->experts_used,
            "chooses %d of %d experts, the program %d of %d", router->used, router->experts,
            c->program->experts_used, c->program->experts);
    const int32_t schedule = c->op->out[2].value;
    REQUIRE(c, schedule < 0 || schedule >= c->value_count || c->values[schedule].fixed == router->experts + 1,
            "schedule: value %s must have %d fixed elements", c->values[schedule].name, router->experts + 1);
    REQUIRE(c,
            router->groups >= 1 && router->experts % router->groups == 0 && router->groups_used >= 1 &&
                router->groups_used <= router->groups,
            "%d of %d groups of %d experts", router->groups_used, router->groups, router->experts);
    REQUIRE(c, (int64_t)router->used <= (int64_t)router->experts / router->groups * router->groups_used,
            "%d groups have less than the %d experts used", router->groups_used, router->used);
    REQUIRE(c,
            router->epsilon >= 0 && isfinite(router->epsilon) && router->least_sum >= 0 &&
                isfinite(router->least_sum),
            "epsilon and least sum must be finite and not negative");
    return check_vector(c, router->bias, "bias", true, router->experts, 1)
               ? SL_ERR_INVALID
               : check_vector(c, router->factors, "factors", true, router->experts, 1);
}

static int check_combine(const checker *c) {
    REQUIRE(c, c->op->u.combine.width >= 1, "width must be at least 1");
    REQUIRE(c, c->op->u.combine.used >= 1 && c->op->u.combine.used == c->program->experts_used,
            "sums %d experts, the program uses %d", c->op->u.combine.used, c->program->experts_used);
    REQUIRE(c, c->op->in[4].value == SL_NONE || c->op->in[3].value != SL_NONE, "shared_gate needs shared");
    return 0;
}

static int check_activate(const checker *c) {
    REQUIRE(c, c->op->u.activate.width >= 1, "width must be at least 1");
    REQUIRE(c, c->op->in[2].value == SL_NONE || c->values[c->op->in[0].value].rows == SL_ROWS_EXPERT,
            "weights are those of experts' rows");
    const sl_op_activate *activate = &c->op->u.activate;
    REQUIRE(c, activate->function >= 0 && activate->function < SL_ACTIVATION_COUNT, "unknown function %d",
            (int)activate->function);
    if (activate->function == SL_ACTIVATION_SWIGLU_OAI) {
        REQUIRE(c, c->op->in[1].value != SL_NONE, "swiglu_oai needs up");
        REQUIRE(c, isfinite(activate->alpha) && activate->limit > 0, "alpha must be finite, limit positive");
    }
    if (activate->function == SL_ACTIVATION_XIELU) {
        REQUIRE(c,
                isfinite(activate->alpha) && isfinite(activate->negative) && isfinite(activate->beta) &&
                    activate->limit <= 0,
                "alpha, negative and beta must be finite, limit at most 0");
    }
    return 0;
}

static int check_conv(const checker *c) {
    const sl_op_conv *conv = &c->op->u.conv;
    if (check_state(c, conv->state) || check_weight_index(c, conv->weight, "weight")) {
        return SL_ERR_INVALID;
    }
    const sl_weight *weight = &c->program->weights[conv->weight];
    const sl_state_layer *state = &c->program->states[conv->state];
    REQUIRE(c, weight->type == SL_QTYPE_F32, "weight %s must be f32", weight->name);
    REQUIRE(c, weight->experts == 1 && weight->rows == state->channels && weight->columns == state->taps,
            "weight %s is %dx%d, the state has %d channels and %d taps", weight->name, weight->rows,
            weight->columns, state->channels, state->taps);
    REQUIRE(c, conv->function == SL_ACTIVATION_SILU || conv->function == SL_ACTIVATION_IDENTITY,
            "function must be silu or identity");
    return check_vector(c, conv->bias, "bias", true, state->channels, 1);
}

static int check_delta_scan(const checker *c) {
    const sl_op_delta_scan *scan = &c->op->u.delta_scan;
    if (check_state(c, scan->state)) {
        return SL_ERR_INVALID;
    }
    REQUIRE(c, scan->value_heads >= 1, "value heads must be at least 1");
    REQUIRE(c, scan->value_heads == c->program->states[scan->state].heads, "%d value heads, the state has %d",
            scan->value_heads, c->program->states[scan->state].heads);
    REQUIRE(c, scan->key_heads >= 1 && scan->value_heads % scan->key_heads == 0,
            "%d value heads are no multiple of %d key heads", scan->value_heads, scan->key_heads);
    if (check_vector(c, scan->a_log, "a_log", false, scan->value_heads, 1)) {
        return SL_ERR_INVALID;
    }
    return check_vector(c, scan->dt_bias, "dt_bias", false, scan->value_heads, 1);
}

static int check_ssm_scan(const checker *c) {
    const sl_op_ssm_scan *scan = &c->op->u.ssm_scan;
    if (check_state(c, scan->state)) {
        return SL_ERR_INVALID;
    }
    REQUIRE(c, scan->heads == c->program->states[scan->state].heads, "%d heads, the state has %d",
            scan->heads, c->program->states[scan->state].heads);
    REQUIRE(c, scan->groups >= 1 && scan->heads % scan->groups == 0, "%d heads are no multiple of %d groups",
            scan->heads, scan->groups);
    REQUIRE(c, scan->step_least >= 0 && scan->step_most > scan->step_least,
            "steps of %g to %g are no interval from 0 on", (double)scan->step_least, (double)scan->step_most);
    int code = check_vector(c, scan->a_log, "a_log", false, scan->heads, 1);
    code = code ? code : check_vector(c, scan->dt_bias, "dt_bias", false, scan->heads, 1);
    return code ? code : check_vector(c, scan->skip, "skip", false, scan->heads, 1);
}

static int check_gather(const checker *c) {
    REQUIRE(c, c->op->u.gather.width >= 1, "width must be at least 1");
    return 0;
}

static int check_transfer(const checker *c) {
    REQUIRE(c, c->op->u.transfer.width >= 1, "width must be at least 1");
    return 0;
}

static int check_all_reduce(const checker *c) {
    REQUIRE(c, c->op->u.all_reduce.width >= 1, "width must be at least 1");
    REQUIRE(c, c->op->in[0].value == c->op->out[0].value && c->op->in[0].column == c->op->out[0].column,
            "works in place: x must be the same before and after");
    return 0;
}

/* A program that is no rank's may have a group of one. */
static int check_all_gather(const checker *c) {
    const sl_op_all_gather *gather = &c->op->u.all_gather;
    REQUIRE(c, gather->width >= 1, "width must be at least 1");
    REQUIRE(c, gather->ranks >= 1 && gather->ranks <= SL_MOST_RANKS, "%d ranks, expected 1 to %d",
            gather->ranks, SL_MOST_RANKS);
    REQUIRE(c, c->program->ranks == 0 || gather->ranks == c->program->ranks, "%d ranks, the program has %d",
            gather->ranks, c->program->ranks);
    return 0;
}

static int check_softcap(const checker *c) {
    REQUIRE(c, c->op->u.softcap.width >= 1, "width must be at least 1");
    REQUIRE(c, c->op->u.softcap.cap >= 0 && isfinite(c->op->u.softcap.cap), "cap must not be negative");
    REQUIRE(c, c->op->u.softcap.scale != 0 && isfinite(c->op->u.softcap.scale),
            "scale must be finite and not 0");
    REQUIRE(c, c->op->in[0].value == c->op->out[0].value && c->op->in[0].column == c->op->out[0].column,
            "works in place: x must be the same before and after");
    return 0;
}

static int check_sample(const checker *c) {
    REQUIRE(c, c->op->u.sample.vocabulary >= 1 && c->op->u.sample.vocabulary == c->program->vocabulary,
            "vocabulary %d, the program has %d", c->op->u.sample.vocabulary, c->program->vocabulary);
    return 0;
}

static int check_observe(const checker *c) {
    const int32_t index = c->op->u.observe.weight;
    if (check_weight_index(c, index, "weight")) {
        return SL_ERR_INVALID;
    }
    const sl_weight *weight = &c->program->weights[index];
    const int32_t experts = c->op->in[1].value == SL_NONE ? 1 : c->program->experts;
    REQUIRE(c, weight->experts == experts, "weight %s has %d experts, expected %d", weight->name,
            weight->experts, experts);
    return 0;
}

static int check_fetch(const checker *c) {
    const sl_op_fetch *fetch = &c->op->u.fetch;
    REQUIRE(c, fetch->set >= 0, "set %d does not exist", fetch->set);
    if (fetch->used == 0) {
        const sl_op *op = c->op;
        REQUIRE(c,
                fetch->way == SL_FETCH_ALL && fetch->slots == 0 && op->in[0].value == SL_NONE &&
                    op->in[1].value == SL_NONE && op->out[0].value == SL_NONE && op->out[1].value == SL_NONE,
                "without experts it has neither slots nor operands");
        return 0;
    }
    REQUIRE(c, c->op->in[0].value != SL_NONE && c->op->in[1].value != SL_NONE,
            "of experts it has ids and a schedule");
    REQUIRE(c, fetch->slots >= 0 && fetch->slots <= c->program->experts, "%d slots for %d experts",
            fetch->slots, c->program->experts);
    REQUIRE(c, fetch->used == c->program->experts_used, "%d experts of a row, the program uses %d",
            fetch->used, c->program->experts_used);
    REQUIRE(c, (unsigned)fetch->way <= SL_FETCH_TO_BUFFER, "there is no way %d", (int)fetch->way);
    REQUIRE(c, (fetch->way == SL_FETCH_ALL) == (fetch->slots == 0), "%d slots, which chosen experts need",
            fetch->slots);
    for (int i = 0; i < 2; i++) {
        REQUIRE(c, (c->op->out[i].value != SL_NONE) == (fetch->way == SL_FETCH_TO_SLOTS),
                "to slots it has both outputs, else none");
    }
    if (fetch->way == SL_FETCH_TO_SLOTS) {
        const int32_t schedule = c->op->out[1].value;
        REQUIRE(c,
                schedule < 0 || schedule >= c->value_count || c->values[schedule].fixed == fetch->slots + 1,
                "slot_schedule: value %s must have %d fixed elements", c->values[schedule].name,
                fetch->slots + 1);
    }
    return 0;
}

static int check_begin(const checker *c) {
    REQUIRE(c, c->index == 0, "must be the first op");
    return 0;
}

static int check_parameters(const checker *c) {
    static int (*const checks[SL_OP_COUNT])(const checker *) = {
#define SL_OP(ID, name, inputs, outputs, text) check_##name,
#include "program/ops.def"
#undef SL_OP
    };
    return checks[c->op->kind](c);
}

/* ---- operands ---- */

static bool type_allowed(type_rule rule, sl_value_type type) {
    switch (rule) {
    case TYPE_F32:
        return type == SL_VALUE_F32;
    case TYPE_I32:
        return type == SL_VALUE_I32;
    case TYPE_FORMAT:
        return type != SL_VALUE_F32 && type != SL_VALUE_I32;
    default:
        return type != SL_VALUE_I32;
    }
}

static int check_operand(const checker *c, bool output, int i, int *same) {
    const sl_operand *operand = output ? &c->op->out[i] : &c->op->in[i];
    sl_codes codes;
    const role_rule *rule = output ? &RULES[c->op->kind].out[i] : &RULES[c->op->kind].in[i];
    const sl_view role = sl_op_role(c->op->kind, output, i);
    const bool optional = role.length > 0 && role.data[role.length - 1] == '?';
    const int length = (int)role.length - optional;
    if (operand->value == SL_NONE) {
        REQUIRE(c, role.length == 0 || optional, "%.*s is missing", length, role.data);
        return 0;
    }
    REQUIRE(c, role.length > 0, "%s %d is not one that the op has", output ? "output" : "input", i);
    REQUIRE(c, operand->value >= 0 && operand->value < c->value_count, "%.*s: value %d does not exist",
            length, role.data, operand->value);
    const sl_value *value = &c->values[operand->value];
    const int64_t width = sl_operand_width(c->program, c->op, output, i);
    REQUIRE(c, operand->column >= 0 && operand->column + width <= value->width,
            "%.*s: columns %d to %lld are outside value %s of width %d", length, role.data, operand->column,
            (long long)(operand->column + width), value->name, value->width);
    REQUIRE(c, type_allowed(rule->type, value->type), "%.*s: value %s has type %s", length, role.data,
            value->name, sl_value_type_name(value->type));
    REQUIRE(c, value->type != SL_VALUE_Q8_32 || operand->column % 32 == 0,
            "%.*s: column %d of a quantised value is no multiple of 32", length, role.data, operand->column);
    REQUIRE(c, !sl_value_codes(value->type, &codes) || operand->column == 0,
            "%.*s: column %d of value %s, which is read from its beginning on", length, role.data,
            operand->column, value->name);
    if (rule->rows == ROWS_SAME) {
        /* Of the tail a step's rows are the outputs. */
        const sl_rows rows = value->tail && value->rows == SL_ROWS_STEP ? SL_ROWS_OUTPUT : value->rows;
        REQUIRE(c, *same < 0 || *same == (int)rows, "%.*s: value %s has %s rows, other operands %s rows",
                length, role.data, value->name, sl_rows_name(rows), sl_rows_name((sl_rows)*same));
        *same = (int)rows;
    } else if (rule->rows != ROWS_FREE) {
        REQUIRE(c, (int)rule->rows == (int)value->rows, "%.*s: value %s has %s rows, expected %s rows",
                length, role.data, value->name, sl_rows_name(value->rows), sl_rows_name((sl_rows)rule->rows));
    }
    return 0;
}

static int check_schedule(const checker *c, int input) {
    const int32_t value = c->op->in[input].value;
    const sl_value *schedule = &c->values[value];
    /* One of a lowered list is a FETCH's, of slots. */
    const bool of_slots = value >= c->program->value_count && schedule->fixed > 1;
    REQUIRE(c, of_slots || schedule->fixed == c->program->experts + 1,
            "schedule: value %s must have %d fixed elements", schedule->name, c->program->experts + 1);
    return 0;
}

static int check_observe_rows(const checker *c) {
    if (c->op->in[1].value == SL_NONE) {
        return 0;
    }
    REQUIRE(c, c->values[c->op->in[0].value].rows != SL_ROWS_OUTPUT,
            "x: with a schedule it must have step or expert rows");
    return check_schedule(c, 1);
}

static int check_linear_rows(const checker *c) {
    const sl_rows x = c->values[c->op->in[0].value].rows, y = c->values[c->op->out[0].value].rows;
    if (c->op->in[1].value == SL_NONE) {
        const bool tail = sl_op_is_tail(c->values, c->op) && x != SL_ROWS_EXPERT && y != SL_ROWS_EXPERT;
        REQUIRE(c, x == y || tail, "x has %s rows, y has %s rows", sl_rows_name(x), sl_rows_name(y));
        return 0;
    }
    REQUIRE(c, y == SL_ROWS_EXPERT, "y: with ids it must have expert rows");
    REQUIRE(c, x != SL_ROWS_OUTPUT, "x: with ids it must have step or expert rows");
    return check_schedule(c, 2);
}

static int check_gather_rows(const checker *c) {
    const sl_value *x = &c->values[c->op->in[0].value], *y = &c->values[c->op->out[0].value];
    REQUIRE(c, !x->tail, "x: value %s has rows with outputs alone already", x->name);
    REQUIRE(c, y->rows == SL_ROWS_OUTPUT || (y->rows == SL_ROWS_STEP && y->tail),
            "y: value %s has %s rows, expected output rows", y->name, sl_rows_name(y->rows));
    return 0;
}

/* All of the step's rows, or those with outputs: an op has nothing of both. */
static int check_tail(const checker *c) {
    const bool tail = c->op->kind != SL_OP_GATHER && sl_op_is_tail(c->values, c->op);
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS && tail; i++) {
        const int32_t v = i < SL_OP_INPUTS ? c->op->in[i].value : c->op->out[i - SL_OP_INPUTS].value;
        REQUIRE(c, v == SL_NONE || c->values[v].tail || c->values[v].rows == SL_ROWS_OUTPUT,
                "value %s has all rows, other operands rows with outputs", c->values[v].name);
    }
    return 0;
}

static int check_overlap(const checker *c) {
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        if (c->op->out[o].value == SL_NONE) {
            continue;
        }
        const sl_operand out = c->op->out[o];
        const int64_t out_end = out.column + sl_operand_width(c->program, c->op, true, o);
        for (int i = 0; i < SL_OP_INPUTS; i++) {
            const sl_operand in = c->op->in[i];
            const int64_t in_end = in.column + sl_operand_width(c->program, c->op, false, i);
            const bool overlap = in.value == out.value && in.column < out_end && out.column < in_end;
            const bool exact = in.column == out.column && in_end == out_end;
            REQUIRE(c, !overlap || (exact && (RULES[c->op->kind].out[o].onto >> i & 1)),
                    "output %d overwrites input %d, which the op still reads", o, i);
        }
        for (int other = 0; other < o; other++) {
            const sl_operand with = c->op->out[other];
            REQUIRE(c,
                    with.value != out.value || with.column >= out_end ||
                        out.column >= with.column + sl_operand_width(c->program, c->op, true, other),
                    "outputs %d and %d overlap", other, o);
        }
    }
    return 0;
}

/* ---- read before write ---- */

static int check_written(const checker *c) {
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        if (c->op->in[i].value == SL_NONE) {
            continue;
        }
        int64_t at = c->op->in[i].column;
        const int64_t end = at + sl_operand_width(c->program, c->op, false, i);
        while (at < end) {
            int64_t reached = at;
            for (int32_t w = c->heads[c->op->in[i].value]; w != SL_NONE; w = c->writes[w].next) {
                if (c->writes[w].first <= at && c->writes[w].end > reached) {
                    reached = c->writes[w].end;
                }
            }
            REQUIRE(c, reached > at, "reads column %lld of value %s before it is written", (long long)at,
                    c->values[c->op->in[i].value].name);
            at = reached;
        }
    }
    return 0;
}

static void add_write(checker *c, int32_t value, int64_t first, int64_t width) {
    /* A loop over layers writes the same columns again and again. */
    for (int32_t w = c->heads[value]; w != SL_NONE; w = c->writes[w].next) {
        if (c->writes[w].first <= first && c->writes[w].end >= first + width) {
            return;
        }
    }
    c->writes[c->write_count] = (write){first, first + width, c->heads[value]};
    c->heads[value] = c->write_count++;
}

static void note_writes(checker *c) {
    const sl_op *op = c->op;
    if (op->kind == SL_OP_LINEAR) {
        for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
            const sl_linear_segment *segment = &op->u.linear.segments[s];
            add_write(c, op->out[0].value, (int64_t)op->out[0].column + segment->column,
                      c->program->weights[segment->weight].rows);
        }
        return;
    }
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        if (op->out[o].value != SL_NONE) {
            add_write(c, op->out[o].value, op->out[o].column, sl_operand_width(c->program, op, true, o));
        }
    }
    if (op->kind == SL_OP_CACHE_WRITE) {
        c->places[c->first_place[op->u.cache_write.place.group] + op->u.cache_write.place.layer] = 1;
    }
}

static int check_op(checker *c) {
    int same = -1;
    if (check_parameters(c)) {
        return SL_ERR_INVALID;
    }
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        if (check_operand(c, false, i, &same)) {
            return SL_ERR_INVALID;
        }
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        if (check_operand(c, true, i, &same)) {
            return SL_ERR_INVALID;
        }
    }
    if (check_tail(c) || (c->op->kind == SL_OP_LINEAR && check_linear_rows(c)) ||
        (c->op->kind == SL_OP_GATHER && check_gather_rows(c)) ||
        (c->op->kind == SL_OP_OBSERVE && check_observe_rows(c)) || check_overlap(c) || check_written(c)) {
        return SL_ERR_INVALID;
    }
    note_writes(c);
    return 0;
}

/* Values that are filled in front of its sections. */
static int32_t given_count(const sl_program *program) {
    int32_t count = 0;
    for (int32_t i = 0; program->partition && i < program->partition->border_count; i++) {
        count += program->partition->borders[i].part == program->part;
    }
    return count;
}

int sl_ops_check(const sl_program *program, const sl_value *values, int32_t value_count, const sl_op *ops,
                 int32_t op_count, sl_error *error) {
    checker c = {.program = program, .values = values, .value_count = value_count, .error = error};
    int32_t places = 0;
    for (int32_t g = 0; g < program->group_count; g++) {
        c.first_place[g] = places;
        places += program->groups[g].layers;
    }
    c.writes = sl_alloc_zero((size_t)op_count * OP_WRITES + (size_t)given_count(program), sizeof *c.writes);
    c.heads = sl_alloc_zero((size_t)value_count, sizeof *c.heads);
    c.places = sl_alloc_zero((size_t)places, 1);
    int code = c.writes && c.heads && c.places ? 0 : sl_fail(error, SL_ERR_NOMEM, "checking: out of memory");
    for (int32_t v = 0; code == 0 && v < value_count; v++) {
        c.heads[v] = SL_NONE;
    }
    for (int32_t i = 0; code == 0 && program->partition && i < program->partition->border_count; i++) {
        const sl_border *border = &program->partition->borders[i];
        if (border->part == program->part) {
            add_write(&c, border->given, 0, values[border->given].width);
        }
    }
    for (int32_t i = 0; code == 0 && i < op_count; i++) {
        c.op = &ops[i];
        c.index = i;
        code = (unsigned)c.op->kind < SL_OP_COUNT
                   ? check_op(&c)
                   : sl_fail(error, SL_ERR_INVALID, "op %d: kind %d does not exist", i, (int)c.op->kind);
    }
    sl_free(c.writes);
    sl_free(c.heads);
    sl_free(c.places);
    return code;
}

/* ---- what is not an op ---- */

static int check_weights(const sl_program *program, sl_error *error) {
    for (int32_t i = 0; i < program->weight_count; i++) {
        const sl_weight *weight = &program->weights[i];
        uint64_t elements, bytes;
        if ((unsigned)weight->type >= SL_QTYPE_COUNT) {
            return sl_fail(error, SL_ERR_INVALID, "weight %s: type %d does not exist", weight->name,
                           (int)weight->type);
        }
        if (weight->experts < 1 || weight->rows < 1 || weight->columns < 1) {
            return sl_fail(error, SL_ERR_INVALID, "weight %s: %dx%dx%d, every size must be at least 1",
                           weight->name, weight->experts, weight->rows, weight->columns);
        }
        const sl_qtype_info *info = sl_qtype_get(weight->type);
        if ((uint32_t)weight->columns % info->block_elements != 0) {
            return sl_fail(error, SL_ERR_INVALID, "weight %s: %d columns are no whole blocks of %u (%s)",
                           weight->name, weight->columns, info->block_elements, info->name);
        }
        if (!sl_mul_u64((uint64_t)weight->experts * (uint64_t)weight->rows, (uint64_t)weight->columns,
                        &elements) ||
            !sl_qtype_bytes(weight->type, elements, &bytes) || bytes != weight->bytes) {
            return sl_fail(error, SL_ERR_INVALID,
                           "weight %s: %llu bytes do not fit its shape %dx%dx%d and type %s", weight->name,
                           (unsigned long long)weight->bytes, weight->experts, weight->rows, weight->columns,
                           info->name);
        }
    }
    return 0;
}

static int check_geometry(const sl_program *program, sl_error *error) {
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_group *group = &program->groups[g];
        const int32_t most = 1 << 20; /* keeps every product of a page's sizes inside 64 bits */
        if (group->chunked &&
            (group->window < 1 || (group->window & (group->window - 1)) != 0 || program->both_sides)) {
            return sl_fail(error, SL_ERR_INVALID,
                           "cache group %s: chunks of %d keys: must be a power of two, and causal",
                           group->name, group->window);
        }
        if (group->values_are_keys && group->value_size > group->key_size) {
            return sl_fail(error, SL_ERR_INVALID, "cache group %s: values of %d are no part of keys of %d",
                           group->name, group->value_size, group->key_size);
        }
        if (group->layers < !program->partition || group->kv_heads < 1 || group->key_size < 1 ||
            group->value_size < 1 || group->window < 0 || group->layers > most || group->kv_heads > most ||
            group->key_size > most || group->value_size > most ||
            (int64_t)group->layers * group->kv_heads > most * (int64_t)64) {
            return sl_fail(
                error, SL_ERR_INVALID,
                "cache group %s: %d layers of %d heads of %d and %d, window %d: a size is out of range",
                group->name, group->layers, group->kv_heads, group->key_size, group->value_size,
                group->window);
        }
    }
    for (int32_t s = 0; s < program->state_count; s++) {
        const sl_state_layer *state = &program->states[s];
        const bool scans = state->heads > 0 && state->key_size > 0 && state->value_size > 0;
        const bool plain = state->heads == 0 && state->key_size == 0 && state->value_size == 0;
        if (state->channels < 1 || state->taps < 1 || !(scans || plain)) {
            return sl_fail(error, SL_ERR_INVALID,
                           "state layer %d: every size must be at least 1, or those of a scan all 0", s);
        }
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        const sl_value *value = &program->values[v];
        if (value->width < 1 || value->fixed < 0 || (unsigned)value->type >= SL_VALUE_TYPE_COUNT ||
            (unsigned)value->rows >= SL_ROWS_COUNT) {
            return sl_fail(error, SL_ERR_INVALID, "value %s: width, type or rows are out of range",
                           value->name);
        }
        if (value->rows == SL_ROWS_EXPERT && program->experts_used < 1) {
            return sl_fail(error, SL_ERR_INVALID, "value %s: expert rows in a program without experts",
                           value->name);
        }
    }
    return 0;
}

static int check_result(const sl_program *program, const char *what, int32_t index, sl_value_type type,
                        int32_t width, sl_error *error) {
    if (index == SL_NONE) {
        return 0;
    }
    if (index < 0 || index >= program->value_count) {
        return sl_fail(error, SL_ERR_INVALID, "%s: value %d does not exist", what, index);
    }
    const sl_value *value = &program->values[index];
    if (value->type != type || value->rows != SL_ROWS_OUTPUT || value->width != width) {
        return sl_fail(error, SL_ERR_INVALID, "%s: value %s must be %s with output rows of width %d", what,
                       value->name, sl_value_type_name(type), width);
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        if (program->ops[i].out[0].value == index) {
            return 0;
        }
    }
    return sl_fail(error, SL_ERR_INVALID, "%s: no op writes value %s", what, value->name);
}

static int check_all(const sl_program *program, sl_error *error) {
    if (program->failed) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory while it was built");
    }
    if (program->too_many_groups) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "more than %d cache geometries", SL_CACHE_GROUPS);
    }
    if (program->width < 1 || program->vocabulary < 1) {
        return sl_fail(error, SL_ERR_INVALID, "width %d and vocabulary %d must be at least 1", program->width,
                       program->vocabulary);
    }
    if (program->experts < 0 || program->experts_used < 0 || program->experts_used > program->experts ||
        (program->experts > 0 && program->experts_used == 0)) {
        return sl_fail(error, SL_ERR_INVALID, "%d of %d experts used", program->experts_used,
                       program->experts);
    }
    if (program->ranks < 0 || program->ranks > SL_MOST_RANKS || program->rank < 0 ||
        (program->rank > 0 && program->rank >= program->ranks)) {
        return sl_fail(error, SL_ERR_INVALID, "rank %d of %d", program->rank, program->ranks);
    }
    int code = check_weights(program, error);
    code = code ? code : check_geometry(program, error);
    if (code == 0 && (program->draft_ops < 0 || program->draft_ops > program->op_count)) {
        code = sl_fail(error, SL_ERR_INVALID, "%d of %d ops draft", program->draft_ops, program->op_count);
    }
    const int32_t ops = program->op_count - program->draft_ops;
    code =
        code ? code : sl_ops_check(program, program->values, program->value_count, program->ops, ops, error);
    code = code || program->draft_ops == 0 ? code
                                           : sl_ops_check(program, program->values, program->value_count,
                                                          program->ops + ops, program->draft_ops, error);
    code =
        code ? code : check_result(program, "hidden", program->hidden, SL_VALUE_F32, program->width, error);
    code = code ? code
                : check_result(program, "logits", program->logits, SL_VALUE_F32, program->vocabulary, error);
    return code ? code : check_result(program, "tokens", program->tokens, SL_VALUE_I32, 1, error);
}

int sl_program_check(const sl_program *program, sl_error *error) {
    const int code = check_all(program, error);
    if (code && error) {
        char prefix[96];
        snprintf(prefix, sizeof prefix, "program %s", program->name ? program->name : "?");
        sl_fail_prefix(error, prefix);
    }
    return code;
}
