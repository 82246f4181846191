/* Building programs: appends, names and sizes. */
#include "program/program.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <string.h>

typedef struct op_text {
    const char *name, *inputs, *outputs, *text;
} op_text;

static const op_text OPS[SL_OP_COUNT] = {
#define SL_OP(ID, name, inputs, outputs, text) {#name, inputs, outputs, text},
#include "program/ops.def"
#undef SL_OP
};

const char *sl_op_name(sl_op_kind kind) {
    return (unsigned)kind < SL_OP_COUNT ? OPS[kind].name : "?";
}

const char *sl_op_text(sl_op_kind kind) {
    return (unsigned)kind < SL_OP_COUNT ? OPS[kind].text : "";
}

sl_view sl_op_role(sl_op_kind kind, bool output, int index) {
    sl_view role = {"", 0};
    if ((unsigned)kind >= SL_OP_COUNT || index < 0) {
        return role;
    }
    const char *at = output ? OPS[kind].outputs : OPS[kind].inputs;
    for (;; index--) {
        at += strspn(at, " ");
        role.data = at;
        role.length = strcspn(at, " ");
        if (role.length == 0 || index == 0) {
            return role;
        }
        at += role.length;
    }
}

int32_t sl_op_weights(const sl_op *op, int32_t weights[SL_OP_WEIGHTS]) {
    int32_t count = 0;
    switch (op->kind) {
    case SL_OP_EMBED:
        weights[count++] = op->u.embed.weight;
        break;
    case SL_OP_RMSNORM:
        weights[count++] = op->u.rmsnorm.weight;
        break;
    case SL_OP_LAYERNORM:
        weights[count++] = op->u.layernorm.weight;
        weights[count++] = op->u.layernorm.bias;
        break;
    case SL_OP_LINEAR:
        for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
            weights[count++] = op->u.linear.segments[s].weight;
        }
        for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
            weights[count++] = op->u.linear.segments[s].bias;
        }
        break;
    case SL_OP_HEAD_LINEAR:
        weights[count++] = op->u.head_linear.weight;
        break;
    case SL_OP_ROPE:
        weights[count++] = op->u.rope.frequencies;
        break;
    case SL_OP_ATTENTION:
        weights[count++] = op->u.attention.sinks;
        break;
    case SL_OP_COMPACT:
        weights[count++] = op->u.compact.attention.sinks;
        break;
    case SL_OP_ROUTER:
        weights[count++] = op->u.router.bias;
        weights[count++] = op->u.router.factors;
        break;
    case SL_OP_CONV:
        weights[count++] = op->u.conv.weight;
        weights[count++] = op->u.conv.bias;
        break;
    case SL_OP_DELTA_SCAN:
        weights[count++] = op->u.delta_scan.a_log;
        weights[count++] = op->u.delta_scan.dt_bias;
        break;
    case SL_OP_SSM_SCAN:
        weights[count++] = op->u.ssm_scan.a_log;
        weights[count++] = op->u.ssm_scan.dt_bias;
        weights[count++] = op->u.ssm_scan.skip;
        break;
    default:
        break;
    }
    return count;
}

const char *sl_activation_name(sl_activation function) {
    static const char *const names[SL_ACTIVATION_COUNT] = {
        [SL_ACTIVATION_SILU] = "silu",         [SL_ACTIVATION_GELU_TANH] = "gelu_tanh",
        [SL_ACTIVATION_GELU] = "gelu",         [SL_ACTIVATION_RELU_SQUARED] = "relu_squared",
        [SL_ACTIVATION_IDENTITY] = "identity", [SL_ACTIVATION_SWIGLU_OAI] = "swiglu_oai",
        [SL_ACTIVATION_XIELU] = "xielu",
    };
    return function >= 0 && function < SL_ACTIVATION_COUNT ? names[function] : "?";
}

bool sl_activation_is_gate(const sl_op *op) {
    return op->in[1].value != SL_NONE && op->in[2].value == SL_NONE &&
           (op->u.activate.function == SL_ACTIVATION_SILU ||
            op->u.activate.function == SL_ACTIVATION_GELU_TANH);
}

const char *sl_value_type_name(sl_value_type type) {
    static const char *const names[SL_VALUE_TYPE_COUNT] = {"f32",   "i32",      "bf16",
                                                           "q8_32", "e4m3_128", "q8_256"};
    return (unsigned)type < SL_VALUE_TYPE_COUNT ? names[type] : "?";
}

const char *sl_rows_name(sl_rows rows) {
    static const char *const names[SL_ROWS_COUNT] = {"step", "expert", "output"};
    return (unsigned)rows < SL_ROWS_COUNT ? names[rows] : "?";
}

bool sl_value_codes(sl_value_type type, sl_codes *codes) {
    *codes = type == SL_VALUE_E4M3_128 ? SL_CODES_E4M3_128 : SL_CODES_Q8_256;
    return type == SL_VALUE_E4M3_128 || type == SL_VALUE_Q8_256;
}

uint64_t sl_value_row_bytes(sl_value_type type, int32_t width) {
    const uint64_t elements = width > 0 ? (uint64_t)width : 0;
    switch (type) {
    case SL_VALUE_BF16:
        return elements * 2;
    case SL_VALUE_Q8_32:
        return (elements + 31) / 32 * 40;
    case SL_VALUE_E4M3_128:
        return sl_codes_row_bytes(SL_CODES_E4M3_128, elements);
    case SL_VALUE_Q8_256:
        return sl_codes_row_bytes(SL_CODES_Q8_256, elements);
    default:
        return elements * 4;
    }
}

int32_t sl_stored_width(int32_t multiple, int32_t width) {
    if (multiple <= 0 || width <= 0 || width % 32 != 0 || width > INT32_MAX - multiple) {
        return width;
    }
    const int32_t stored = (width + multiple - 1) / multiple * multiple;
    return stored - width <= stored / 4 ? stored : width;
}

int32_t sl_stored_columns(int32_t multiple, const sl_weight *weight) {
    return sl_qtype_get(weight->type)->block_elements > 1 ? sl_stored_width(multiple, weight->columns)
                                                          : weight->columns;
}

static bool is_aligned_by_row(int32_t multiple, const sl_weight *weight) {
    return multiple > 0 && weight->type == SL_QTYPE_FP8_128;
}

bool sl_stored_row_bytes(int32_t multiple, const sl_weight *weight, uint64_t *bytes) {
    return sl_qtype_bytes(weight->type, (uint64_t)sl_stored_columns(multiple, weight), bytes) &&
           (!is_aligned_by_row(multiple, weight) || sl_align_u64(*bytes, 16, bytes));
}

bool sl_stored_bytes(int32_t multiple, const sl_weight *weight, uint64_t *bytes) {
    uint64_t row;
    *bytes = weight->bytes;
    return (sl_stored_columns(multiple, weight) == weight->columns && !is_aligned_by_row(multiple, weight)) ||
           (sl_stored_row_bytes(multiple, weight, &row) &&
            sl_mul_u64(row, (uint64_t)weight->rows * (uint64_t)weight->experts, bytes));
}

bool sl_op_is_tail(const sl_value *values, const sl_op *op) {
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        if (op->in[i].value != SL_NONE && values[op->in[i].value].tail) {
            return true;
        }
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        if (op->out[i].value != SL_NONE && values[op->out[i].value].tail) {
            return true;
        }
    }
    return false;
}

void sl_tail_rows(const int32_t rows[SL_ROWS_COUNT], int32_t tail[SL_ROWS_COUNT]) {
    const int32_t outputs = rows[SL_ROWS_OUTPUT];
    const int32_t experts = rows[SL_ROWS_STEP] > 0 ? rows[SL_ROWS_EXPERT] / rows[SL_ROWS_STEP] : 0;
    tail[SL_ROWS_STEP] = tail[SL_ROWS_OUTPUT] = outputs;
    tail[SL_ROWS_EXPERT] = outputs * experts;
}

uint64_t sl_value_bytes(const sl_value *value, const int32_t rows[SL_ROWS_COUNT]) {
    int32_t tail[SL_ROWS_COUNT];
    sl_tail_rows(rows, tail);
    const int32_t given = value->tail ? tail[value->rows] : rows[value->rows];
    const uint64_t count = given > 0 ? (uint64_t)given : 0;
    uint64_t bytes;
    if (!sl_mul_u64(sl_value_row_bytes(value->type, value->width), count, &bytes) ||
        !sl_add_u64(bytes, sl_value_row_bytes(value->type, value->fixed), &bytes)) {
        return UINT64_MAX;
    }
    return bytes;
}

/* ---- appends ---- */

/* Room for one more element of `size` bytes in an array in the program's arena; NULL when memory ran out. The
 * old array stays in the arena: doubling makes that at most as much again. */
static void *grow(sl_program *program, void *items, int32_t count, int32_t *capacity, size_t size) {
    if (count < *capacity) {
        return items;
    }
    if (*capacity > INT32_MAX / 2) {
        program->failed = true;
        return NULL;
    }
    const int32_t larger = *capacity ? *capacity * 2 : 32;
    void *grown = sl_arena_alloc(&program->arena, (size_t)larger, size);
    if (!grown) {
        program->failed = true;
        return NULL;
    }
    if (count > 0) {
        memcpy(grown, items, (size_t)count * size);
    }
    *capacity = larger;
    return grown;
}

/* NULL and `failed` when memory ran out. */
static const char *keep(sl_program *program, const char *name) {
    const char *copy = sl_arena_strndup(&program->arena, name ? name : "", name ? strlen(name) : 0);
    if (!copy) {
        program->failed = true;
    }
    return copy;
}

int32_t sl_program_typed_value(sl_program *program, const sl_value *value) {
    sl_value *values =
        grow(program, program->values, program->value_count, &program->value_capacity, sizeof *values);
    if (!values) {
        return SL_NONE;
    }
    program->values = values;
    const char *name = keep(program, value->name);
    if (!name) {
        return SL_NONE;
    }
    values[program->value_count] = *value;
    values[program->value_count].name = name;
    return program->value_count++;
}

int32_t sl_program_value(sl_program *program, const char *name, sl_rows rows, int32_t width) {
    const sl_value value = {.name = name, .type = SL_VALUE_F32, .rows = rows, .width = width};
    return sl_program_typed_value(program, &value);
}

int32_t sl_program_weight(sl_program *program, const sl_weight *weight) {
    sl_weight *weights =
        grow(program, program->weights, program->weight_count, &program->weight_capacity, sizeof *weights);
    if (!weights) {
        return SL_NONE;
    }
    program->weights = weights;
    const char *name = keep(program, weight->name);
    if (!name) {
        return SL_NONE;
    }
    weights[program->weight_count] = *weight;
    weights[program->weight_count].name = name;
    return program->weight_count++;
}

int32_t sl_program_state(sl_program *program, const sl_state_layer *shape) {
    sl_state_layer *states =
        grow(program, program->states, program->state_count, &program->state_capacity, sizeof *states);
    if (!states) {
        return SL_NONE;
    }
    program->states = states;
    sl_state_layer *state = &states[program->state_count];
    *state = *shape;
    /* A shape that does not make sense is refused by sl_program_check; here it only must not overflow. */
    const uint64_t taps = shape->taps > 1 ? (uint64_t)shape->taps - 1 : 0;
    const uint64_t channels = shape->channels > 0 ? (uint64_t)shape->channels : 0;
    const uint64_t heads = shape->heads > 0 ? (uint64_t)shape->heads : 0;
    uint64_t conv, delta = shape->key_size > 0 && shape->value_size > 0
                               ? (uint64_t)shape->key_size * (uint64_t)shape->value_size
                               : 0;
    state->conv_offset = program->state_bytes;
    if (!sl_mul_u64(taps * channels, sizeof(float), &conv) ||
        !sl_add_u64(state->conv_offset, conv, &state->delta_offset) ||
        !sl_align_u64(state->delta_offset, 64, &state->delta_offset) || !sl_mul_u64(delta, heads, &delta) ||
        !sl_mul_u64(delta, sizeof(float), &delta) ||
        !sl_add_u64(state->delta_offset, delta, &program->state_bytes) ||
        !sl_align_u64(program->state_bytes, 64, &program->state_bytes)) {
        program->failed = true;
        return SL_NONE;
    }
    return program->state_count++;
}

int32_t sl_program_group(sl_program *program, const sl_cache_group *group) {
    if (program->group_count == SL_CACHE_GROUPS) {
        program->too_many_groups = true;
        return SL_NONE;
    }
    const char *name = keep(program, group->name);
    if (!name) {
        return SL_NONE;
    }
    program->groups[program->group_count] = *group;
    program->groups[program->group_count].name = name;
    return program->group_count++;
}

sl_op *sl_program_op(sl_program *program, sl_op_kind kind, int32_t layer) {
    sl_op *ops = grow(program, program->ops, program->op_count, &program->op_capacity, sizeof *ops);
    if (!ops) {
        return NULL;
    }
    program->ops = ops;
    sl_op *op = &ops[program->op_count++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->layer = layer;
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        op->in[i].value = SL_NONE;
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        op->out[i].value = SL_NONE;
    }
    return op;
}

/* Here, so that who frees programs needs no shard.c. */
void sl_program_drop_slices(sl_program *part) {
    for (int32_t i = 0; i < part->slice_count; i++) {
        sl_free(part->slices[i].copy);
        part->slices[i].copy = NULL;
        part->weights[part->slices[i].weight].data = NULL;
    }
}

void sl_program_free(sl_program *program) {
    sl_program_drop_slices(program);
    sl_arena_free(&program->arena);
    memset(program, 0, sizeof *program);
}

void sl_program_copy_facts(const sl_program *program, sl_program *part) {
    part->name = program->name;
    part->width = program->width;
    part->vocabulary = program->vocabulary;
    part->experts = program->experts;
    part->experts_used = program->experts_used;
    part->both_sides = program->both_sides;
    part->has_tail = program->has_tail;
    memcpy(part->groups, program->groups, sizeof part->groups);
    part->group_count = program->group_count;
}

int32_t sl_program_sections(const sl_program *program) {
    int32_t count = 0;
    for (int32_t s = 0; program->partition && s < program->partition->section_count; s++) {
        count += program->partition->sections[s].part == program->part;
    }
    return count > 0 ? count : 1;
}
