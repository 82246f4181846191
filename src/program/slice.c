/* Parts of a program, for devices that run it one after the other. */
#include "base/alloc.h"
#include "base/checked.h"
#include "program/program.h"

#include <string.h>

int32_t sl_program_layers(const sl_program *program) {
    int32_t layers = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        layers = program->ops[i].layer >= layers ? program->ops[i].layer + 1 : layers;
    }
    return layers;
}

int32_t sl_program_layer_begin(const sl_program *program, int32_t layer) {
    int32_t last = SL_NONE;
    for (int32_t i = 0; i < program->op_count; i++) {
        if (program->ops[i].layer >= layer) {
            return i;
        }
        last = program->ops[i].layer >= 0 ? i : last;
    }
    return last + 1;
}

/* ---- what lives between two ops ---- */

static void mark(unsigned char *columns, int64_t first, int64_t width, bool needed) {
    memset(columns + first, needed, (size_t)width);
}

/* Columns of values that ops from `op` on read before they write them: a byte for each column of each value,
 * value after value. NULL when memory ran out. */
static unsigned char *find_needed(const sl_program *program, int32_t op, uint64_t *starts) {
    uint64_t total = 0;
    for (int32_t v = 0; v < program->value_count; v++) {
        starts[v] = total;
        total += (uint64_t)program->values[v].width;
    }
    unsigned char *needed = sl_alloc_zero((size_t)total + 1, 1);
    for (int32_t i = program->op_count - 1; needed && i >= op; i--) {
        const sl_op *o = &program->ops[i];
        for (int out = 0; out < SL_OP_OUTPUTS; out++) {
            const sl_operand at = o->out[out];
            /* With gaps between its groups an op does not write all that its width spans. */
            const bool gaps = o->kind == SL_OP_RMSNORM && o->u.rmsnorm.stride != o->u.rmsnorm.width;
            if (at.value != SL_NONE && o->kind != SL_OP_LINEAR && !gaps) {
                mark(needed + starts[at.value], at.column, sl_operand_width(program, o, true, out), false);
            }
        }
        for (int32_t s = 0; o->kind == SL_OP_LINEAR && s < o->u.linear.segment_count; s++) {
            mark(needed + starts[o->out[0].value], (int64_t)o->out[0].column + o->u.linear.segments[s].column,
                 program->weights[o->u.linear.segments[s].weight].rows, false);
        }
        for (int in = 0; in < SL_OP_INPUTS; in++) {
            const sl_operand at = o->in[in];
            if (at.value != SL_NONE) {
                mark(needed + starts[at.value], at.column, sl_operand_width(program, o, false, in), true);
            }
        }
    }
    return needed;
}

/* Values that live across the cut in front of `op`, rising; *count SL_NONE when memory ran out. In `arena`.
 */
static int32_t *list_living(const sl_program *program, int32_t op, sl_arena *arena, int32_t *count) {
    *count = SL_NONE;
    int32_t *values = sl_arena_alloc(arena, (size_t)program->value_count + 1, sizeof *values);
    uint64_t *starts = sl_arena_alloc(arena, (size_t)program->value_count + 1, sizeof *starts);
    unsigned char *needed = values && starts ? find_needed(program, op, starts) : NULL;
    if (!needed) {
        return NULL;
    }
    *count = 0;
    for (int32_t v = 0; v < program->value_count; v++) {
        if (memchr(needed + starts[v], true, (size_t)program->values[v].width)) {
            values[(*count)++] = v;
        }
    }
    sl_free(needed);
    return values;
}

/* ---- where a program may be cut ---- */

/* The cache layer or recurrent state that an op touches: false when it has none. */
static bool place_of(const sl_op *op, sl_cache_place *place) {
    if (op->kind == SL_OP_CACHE_WRITE || op->kind == SL_OP_ATTENTION) {
        *place = op->kind == SL_OP_ATTENTION ? op->u.attention.place : op->u.cache_write.place;
        return true;
    }
    return false;
}

static int32_t state_of(const sl_op *op) {
    return op->kind == SL_OP_CONV         ? op->u.conv.state
           : op->kind == SL_OP_DELTA_SCAN ? op->u.delta_scan.state
           : op->kind == SL_OP_SSM_SCAN   ? op->u.ssm_scan.state
                                          : SL_NONE;
}

static bool touch_alike(const sl_op *a, const sl_op *b) {
    sl_cache_place left, right;
    if (place_of(a, &left) && place_of(b, &right)) {
        return left.group == right.group && left.layer == right.layer;
    }
    return state_of(a) != SL_NONE && state_of(a) == state_of(b);
}

const char *sl_program_cut_declines(const sl_program *program, int32_t op) {
    sl_arena arena = {0};
    int32_t count;
    const char *reason = NULL;
    for (int32_t i = 0; i < op && !reason; i++) {
        for (int32_t k = op; k < program->op_count && !reason; k++) {
            reason =
                touch_alike(&program->ops[i], &program->ops[k]) ? "layers on both sides share a cache" : NULL;
        }
    }
    const int32_t *values = reason ? NULL : list_living(program, op, &arena, &count);
    if (!reason && !values) {
        reason = "out of memory";
    }
    for (int32_t i = 0; !reason && i < count; i++) {
        const sl_value *value = &program->values[values[i]];
        if (value->type != SL_VALUE_F32 || value->rows != SL_ROWS_STEP) {
            reason = "what is needed behind it has no row for each row of the step";
        }
    }
    sl_arena_free(&arena);
    return reason;
}

/* ---- a part ---- */

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "out of memory for a part of a program");
}

/* Layers of groups and states that the part touches, numbered anew; its ops say the new numbers. */
static void number_places(sl_program *part, int32_t *layers) {
    int32_t counts[SL_CACHE_GROUPS] = {0}, first[SL_CACHE_GROUPS], total = 0;
    for (int32_t g = 0; g < part->group_count; g++) {
        first[g] = total;
        total += part->groups[g].layers;
    }
    for (int32_t i = 0; i < total; i++) {
        layers[i] = SL_NONE;
    }
    for (int32_t i = 0; i < part->op_count; i++) {
        sl_op *op = &part->ops[i];
        sl_cache_place place;
        if (!place_of(op, &place)) {
            continue;
        }
        int32_t *number = &layers[first[place.group] + place.layer];
        *number = *number == SL_NONE ? counts[place.group]++ : *number;
        place.layer = *number;
        if (op->kind == SL_OP_ATTENTION) {
            op->u.attention.place = place;
        } else {
            op->u.cache_write.place = place;
        }
    }
    for (int32_t g = 0; g < part->group_count; g++) {
        part->groups[g].layers = counts[g];
    }
}

/* A layer that the part does not touch takes no bytes of a slot. */
static void place_states(const sl_program *program, sl_program *part) {
    part->state_bytes = 0;
    for (int32_t s = 0; s < part->state_count; s++) {
        sl_state_layer *state = &part->states[s];
        const uint64_t begin = program->states[s].conv_offset, end = s + 1 < program->state_count
                                                                         ? program->states[s + 1].conv_offset
                                                                         : program->state_bytes;
        bool touched = false;
        for (int32_t i = 0; i < part->op_count && !touched; i++) {
            touched = state_of(&part->ops[i]) == s;
        }
        state->conv_offset = touched ? part->state_bytes : 0;
        state->delta_offset = touched ? part->state_bytes + (program->states[s].delta_offset - begin) : 0;
        part->state_bytes += touched ? end - begin : 0;
    }
}

static bool writes_value(const sl_program *part, int32_t value) {
    for (int32_t i = 0; value != SL_NONE && i < part->op_count; i++) {
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            if (part->ops[i].out[o].value == value) {
                return true;
            }
        }
    }
    return false;
}

/* BEGIN, and a TRANSFER for each value that comes over the border. */
static int add_front(const sl_program *program, const int32_t *living, int32_t count, sl_program *part,
                     sl_error *error) {
    int32_t *given = sl_arena_alloc(&part->arena, (size_t)count + 1, sizeof *given);
    sl_op *begin = given ? sl_program_op(part, SL_OP_BEGIN, SL_NONE) : NULL;
    for (int32_t i = 0; begin && i < count; i++) {
        const sl_value *value = &program->values[living[i]];
        const char *name = sl_arena_printf(&part->arena, "%s.border", value->name);
        given[i] = name ? sl_program_value(part, name, SL_ROWS_STEP, value->width) : SL_NONE;
        sl_op *op = given[i] == SL_NONE ? NULL : sl_program_op(part, SL_OP_TRANSFER, SL_NONE);
        if (!op) {
            return no_memory(error);
        }
        op->in[0] = (sl_operand){given[i], 0};
        op->out[0] = (sl_operand){living[i], 0};
        op->u.transfer.width = value->width;
    }
    part->given = given;
    part->given_count = count;
    return begin ? 0 : no_memory(error);
}

static int copy_ops(const sl_program *program, sl_program_range range, sl_program *part, sl_error *error) {
    for (int32_t i = range.first; i < range.end; i++) {
        if (program->ops[i].kind == SL_OP_BEGIN && range.first > 0) {
            continue;
        }
        sl_op *op = sl_program_op(part, program->ops[i].kind, program->ops[i].layer);
        if (!op) {
            return no_memory(error);
        }
        *op = program->ops[i];
    }
    return 0;
}

static int fill(const sl_program *program, sl_program_range range, sl_program *part, sl_error *error) {
    int32_t layers = 0, given_count = 0, kept_count = 0;
    sl_arena *arena = &part->arena;
    for (int32_t v = 0; v < program->value_count; v++) {
        sl_program_typed_value(part, &program->values[v]);
    }
    for (int32_t s = 0; s < program->state_count; s++) {
        sl_program_state(part, &program->states[s]);
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        layers += program->groups[g].layers;
    }
    int32_t *numbers = sl_arena_alloc(arena, (size_t)layers + 1, sizeof *numbers);
    const int32_t *given = range.first > 0 ? list_living(program, range.first, arena, &given_count) : NULL;
    part->kept = range.end < program->op_count ? list_living(program, range.end, arena, &kept_count) : NULL;
    part->kept_count = kept_count;
    if (part->failed || !numbers || given_count < 0 || kept_count < 0) {
        return no_memory(error);
    }
    int code = range.first > 0 ? add_front(program, given, given_count, part, error) : 0;
    code = code ? code : copy_ops(program, range, part, error);
    if (code || part->failed) {
        return code ? code : no_memory(error);
    }
    number_places(part, numbers);
    place_states(program, part);
    part->hidden = writes_value(part, program->hidden) ? program->hidden : SL_NONE;
    part->logits = writes_value(part, program->logits) ? program->logits : SL_NONE;
    part->tokens = writes_value(part, program->tokens) ? program->tokens : SL_NONE;
    return 0;
}

int sl_program_slice(const sl_program *program, sl_program_range range, sl_program *part, sl_error *error) {
    part->name = program->name;
    part->weights = program->weights;
    part->weight_count = program->weight_count;
    memcpy(part->groups, program->groups, sizeof part->groups);
    part->group_count = program->group_count;
    part->width = program->width;
    part->vocabulary = program->vocabulary;
    part->experts = program->experts;
    part->experts_used = program->experts_used;
    part->both_sides = program->both_sides;
    part->is_part = true;
    return fill(program, range, part, error);
}
