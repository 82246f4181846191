#include "program/division.h"

static const char recurrent[] = "its state is recurrent";
static const char no_block[] = "it is not between two matrices";
static const char uneven[] = "its heads or columns do not divide evenly";
static const char unknown_heads[] = "its columns are not told apart as heads";

/* ---- blocks ---- */

static int32_t root_of(const sl_division *d, int32_t value) {
    while (d->parents[value] != value) {
        value = d->parents[value];
    }
    return value;
}

static sl_block *block_at(const sl_division *d, int32_t value) {
    return &d->blocks[root_of(d, value)];
}

const sl_block *sl_block_of(const sl_division *division, int32_t value) {
    return block_at(division, value);
}

static void join(sl_division *d, int32_t a, int32_t b) {
    if (a != SL_NONE && b != SL_NONE) {
        d->parents[root_of(d, b)] = root_of(d, a);
    }
}

/* An ACTIVATE's weights are the rows', not the columns'. */
static bool connects(const sl_op *op, int input) {
    return op->kind != SL_OP_ACTIVATE || input != 2;
}

static void join_operands(sl_division *d, const sl_op *op) {
    if (op->kind == SL_OP_LINEAR) {
        join(d, op->in[3].value, op->out[0].value);
        return;
    }
    int32_t one = SL_NONE;
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS; i++) {
        const bool output = i >= SL_OP_INPUTS;
        const int32_t value = output ? op->out[i - SL_OP_INPUTS].value : op->in[i].value;
        if (value != SL_NONE && (output || connects(op, i))) {
            join(d, one, value);
            one = value;
        }
    }
}

static void mark_operand(sl_block *block, const sl_op *op) {
    block->attends |= op->kind == SL_OP_ATTENTION;
    block->activates |= op->kind == SL_OP_ACTIVATE;
    block->recurs |= op->kind == SL_OP_CONV || op->kind == SL_OP_DELTA_SCAN || op->kind == SL_OP_SSM_SCAN;
    block->streams |= op->kind == SL_OP_EMBED || op->kind == SL_OP_GATHER || op->kind == SL_OP_TRANSFER;
}

static void mark_blocks(sl_division *d) {
    const sl_program *program = d->program;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (op->kind == SL_OP_LINEAR) {
            block_at(d, op->in[0].value)->read = true;
            block_at(d, op->out[0].value)->written = true;
            continue;
        }
        for (int k = 0; k < SL_OP_INPUTS; k++) {
            if (op->in[k].value != SL_NONE && connects(op, k)) {
                mark_operand(block_at(d, op->in[k].value), op);
            }
        }
        if (op->out[0].value != SL_NONE) {
            mark_operand(block_at(d, op->out[0].value), op);
        }
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        sl_block *block = block_at(d, v);
        const bool result = v == program->hidden || v == program->logits || v == program->tokens;
        if (result || program->values[v].type != SL_VALUE_F32 || !block->read || !block->written ||
            block->streams || !(block->attends || block->activates)) {
            block->reason = no_block;
        }
        if (block->recurs) {
            block->reason = recurrent;
        }
    }
}

/* ---- heads ---- */

/* What an op knows of an operand: `count` heads, `stride` apart, of which it touches `width` columns. */
typedef struct heads {
    int32_t count, stride, width;
    bool several; /* they may lie in several regions side by side: no head has a place among the others */
} heads;

static bool rmsnorm_heads(const sl_op *op, bool output, int index, heads *h) {
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const bool in_place = op->in[0].value == op->out[0].value;
    const int32_t x_stride = norm->groups == 1 ? norm->width : norm->stride;
    const bool apart = norm->own_weights || op->in[2].value != SL_NONE || !in_place;
    *h = (heads){norm->groups, x_stride, norm->width, !apart};
    if (output) {
        h->stride = in_place ? x_stride : norm->width;
        return index == 0;
    }
    if (index == 2) {
        h->stride = norm->groups == 1 ? norm->width : norm->gate_stride;
    }
    return index != 1;
}

static int32_t stride_of(int32_t count, int32_t stride, int32_t width) {
    return count == 1 ? width : stride;
}

static bool attention_heads(const sl_program *program, const sl_op *op, bool output, int index, heads *h) {
    const sl_op_attention *attention = &op->u.attention;
    const sl_cache_group *group = &program->groups[attention->place.group];
    const int32_t heads_count = attention->heads;
    if (output) {
        *h = (heads){heads_count, group->value_size, group->value_size, false};
    } else if (index == 0) {
        *h = (heads){heads_count, stride_of(heads_count, attention->q_stride, group->key_size),
                     group->key_size, false};
    } else {
        *h = (heads){heads_count, stride_of(heads_count, attention->gate_stride, group->value_size),
                     group->value_size, false};
    }
    return true;
}

static bool rope_heads(const sl_op_rope *rope, heads *h) {
    const int32_t width = rope->dims > rope->temperature.width ? rope->dims : rope->temperature.width;
    *h = (heads){rope->heads, rope->stride > width ? rope->stride : width, width, true};
    return true;
}

/* False where the op, or that operand of it, is not for divided values. */
static bool heads_of(const sl_program *program, const sl_op *op, bool output, int index, heads *h) {
    switch (op->kind) {
    case SL_OP_RMSNORM:
        return rmsnorm_heads(op, output, index, h);
    case SL_OP_ROPE:
        return rope_heads(&op->u.rope, h);
    case SL_OP_CACHE_WRITE: {
        const sl_cache_group *group = &program->groups[op->u.cache_write.place.group];
        const int32_t size = index == 0 ? group->key_size : group->value_size;
        *h = (heads){group->kv_heads, size, size, false};
        return true;
    }
    case SL_OP_ATTENTION:
        return attention_heads(program, op, output, index, h);
    case SL_OP_ACTIVATE:
        *h = (heads){op->u.activate.width, 1, 1, false};
        return output || index != 2;
    case SL_OP_SOFTCAP:
        *h = (heads){op->u.softcap.width, 1, 1, true};
        return true;
    case SL_OP_LINEAR:
        *h = (heads){program->weights[op->u.linear.segments[0].weight].columns, 1, 1, false};
        return !output && index == 0;
    default:
        return false;
    }
}

/* ---- regions ---- */

static bool add_bound(sl_division *d, int32_t value, int64_t column) {
    if (column < 0 || column > d->program->values[value].width) {
        return true;
    }
    sl_region_bound **at = &d->bounds[value];
    while (*at && (*at)->column < column) {
        at = &(*at)->next;
    }
    if (*at && (*at)->column == column) {
        return true;
    }
    sl_region_bound *bound = sl_arena_alloc(&d->arena, 1, sizeof *bound);
    if (!bound) {
        return false;
    }
    *bound = (sl_region_bound){(int32_t)column, *at};
    *at = bound;
    return true;
}

/* Heads without gaps between them say where they begin and end; others may begin anywhere in a head. */
static bool bound_operand(sl_division *d, const sl_op *op, bool output, int index) {
    const sl_operand at = output ? op->out[index] : op->in[index];
    heads h;
    if (at.value == SL_NONE || block_at(d, at.value)->reason ||
        !heads_of(d->program, op, output, index, &h) || h.stride != h.width) {
        return true;
    }
    return add_bound(d, at.value, at.column) &&
           add_bound(d, at.value, at.column + (int64_t)h.count * h.stride);
}

static bool bound_segments(sl_division *d, const sl_op *op) {
    const sl_operand at = op->out[0];
    bool ok = true;
    for (int32_t s = 0; s < op->u.linear.segment_count && !block_at(d, at.value)->reason; s++) {
        const sl_linear_segment *segment = &op->u.linear.segments[s];
        const int64_t first = (int64_t)at.column + segment->column;
        ok = ok && add_bound(d, at.value, first) &&
             add_bound(d, at.value, first + d->program->weights[segment->weight].rows);
    }
    return ok;
}

static bool find_bounds(sl_division *d) {
    const sl_program *program = d->program;
    bool ok = true;
    for (int32_t v = 0; v < program->value_count; v++) {
        ok = ok &&
             (block_at(d, v)->reason || (add_bound(d, v, 0) && add_bound(d, v, program->values[v].width)));
    }
    for (int32_t i = 0; ok && i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        for (int k = 0; k < SL_OP_INPUTS; k++) {
            ok = ok && bound_operand(d, op, false, k);
        }
        for (int k = 0; k < SL_OP_OUTPUTS; k++) {
            ok = ok && bound_operand(d, op, true, k);
        }
        ok = ok && (op->kind != SL_OP_LINEAR || bound_segments(d, op));
    }
    return ok;
}

sl_region sl_region_at(const sl_division *division, int32_t value, int32_t column) {
    const sl_region_bound *bound = division->bounds[value];
    while (bound->next && bound->next->column <= column) {
        bound = bound->next;
    }
    return (sl_region){bound->column, bound->next ? bound->next->column - bound->column : 0};
}

/* ---- shares ---- */

sl_share sl_share_of(const sl_division *division, int32_t value, int32_t rank) {
    const sl_block *block = block_at(division, value);
    const int32_t ranks = division->ranks, each = block->units / ranks, more = block->units % ranks;
    sl_share share = {0, 0, block->units};
    for (int32_t r = 0; r <= rank; r++) {
        share.first += share.count;
        share.count = each + ((r - block->turn + ranks) % ranks < more);
    }
    return share;
}

/* Columns that kernels read together, and whose weights are whole blocks. */
static int32_t unit_columns(const sl_weight *weight) {
    enum { LEAST = 32 };
    const int32_t block = (int32_t)sl_qtype_get(weight->type)->block_elements;
    return block > LEAST ? block : LEAST;
}

static const sl_weight *weight_read(const sl_division *d, int32_t op) {
    return &d->program->weights[d->program->ops[op].u.linear.segments[0].weight];
}

/* May what this op reads be divided in whole blocks without as many columns for each rank? */
static bool reads_columns(const sl_division *d, int32_t index) {
    const sl_op *op = &d->program->ops[index];
    const sl_block *block = op->kind == SL_OP_LINEAR ? block_at(d, op->in[0].value) : NULL;
    return block && !block->reason && !block->attends && !block->recurs;
}

static bool divides_evenly(const sl_division *d, const sl_weight *weight) {
    const int32_t block = (int32_t)sl_qtype_get(weight->type)->block_elements;
    return weight->columns % d->ranks == 0 && weight->columns / d->ranks % block == 0;
}

/* As many units as ranks where that gives whole blocks of weights; else as many as there are. */
static void choose_units(sl_division *d) {
    const sl_program *program = d->program;
    for (int32_t v = 0; v < program->value_count; v++) {
        d->blocks[v].units = d->ranks;
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        if (reads_columns(d, i) && !divides_evenly(d, weight_read(d, i))) {
            block_at(d, program->ops[i].in[0].value)->units = 0;
        }
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        sl_block *block = reads_columns(d, i) ? block_at(d, program->ops[i].in[0].value) : NULL;
        const sl_weight *weight = block ? weight_read(d, i) : NULL;
        if (block && block->units != d->ranks) {
            const int32_t unit = unit_columns(weight);
            const int32_t units = weight->columns % unit == 0 ? weight->columns / unit : 1;
            block->units = sl_common_divisor(block->units, units);
        }
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        d->blocks[v].units = d->blocks[v].units < d->ranks ? d->ranks : d->blocks[v].units;
    }
}

/* Who has more of one block has less of another, so that all have about as many bytes. */
static void take_turns(sl_division *d) {
    int32_t turn = 0;
    for (int32_t v = 0; v < d->program->value_count; v++) {
        if (root_of(d, v) == v && sl_divides(d, v)) {
            d->blocks[v].turn = turn;
            turn = (turn + d->blocks[v].units) % d->ranks;
        }
    }
}

/* ---- what declines ---- */

/* Each rank must get whole heads of each region. */
static const char *heads_decline(const sl_division *d, sl_operand at, const heads *h) {
    sl_region region = sl_region_at(d, at.value, at.column);
    int64_t left = (int64_t)h->count * h->stride;
    if (h->stride < 1 || (int64_t)at.column - region.first + h->width > h->stride) {
        return unknown_heads;
    }
    while (true) {
        if (region.width < 1 || region.width > left) {
            return unknown_heads;
        }
        if (region.width % ((int64_t)h->stride * block_at(d, at.value)->units) != 0) {
            return uneven;
        }
        left -= region.width;
        if (left == 0) {
            return NULL;
        }
        if (!h->several) {
            return unknown_heads;
        }
        region = sl_region_at(d, at.value, region.first + region.width);
    }
}

/* The only other op that touches a value, if it is a COMBINE; SL_NONE: none, or others do too. */
static int32_t combine_of(const sl_program *program, int32_t value, int32_t writer) {
    int32_t found = SL_NONE;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        bool touches = false;
        for (int k = 0; k < SL_OP_INPUTS; k++) {
            touches |= op->in[k].value == value;
        }
        for (int k = 0; k < SL_OP_OUTPUTS; k++) {
            touches |= op->out[k].value == value;
        }
        if (!touches || i == writer) {
            continue;
        }
        if (found != SL_NONE || op->kind != SL_OP_COMBINE || op->out[0].value == value) {
            return SL_NONE;
        }
        found = i;
    }
    return found;
}

/* Of a LINEAR that reads what is divided. */
static const char *reader_declines(const sl_division *d, int32_t index) {
    const sl_program *program = d->program;
    const sl_op *op = &program->ops[index];
    const sl_weight *weight = weight_read(d, index);
    if (op->u.linear.segment_count != 1) {
        return "several matrices read it";
    }
    const int32_t unit = weight->columns / block_at(d, op->in[0].value)->units;
    if ((uint32_t)unit % sl_qtype_get(weight->type)->block_elements != 0) {
        return "a rank's columns are no whole blocks of weights";
    }
    if (op->in[1].value != SL_NONE) {
        const int32_t combine = combine_of(program, op->out[0].value, index);
        if (combine == SL_NONE || program->ops[combine].in[0].value != op->out[0].value) {
            return "what its experts leave is not only combined";
        }
    }
    return NULL;
}

/* Of a LINEAR that writes it. */
static const char *writer_declines(const sl_division *d, const sl_op *op) {
    const sl_operand at = op->out[0];
    int32_t pieces = 0;
    if (sl_divides(d, op->in[0].value)) {
        return "it is computed from what is divided";
    }
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        const sl_linear_segment *segment = &op->u.linear.segments[s];
        int32_t column = at.column + segment->column;
        const int32_t end = column + d->program->weights[segment->weight].rows;
        while (column < end) {
            const sl_region region = sl_region_at(d, at.value, column);
            column = region.first + region.width;
            pieces++;
        }
    }
    return pieces > SL_LINEAR_SEGMENTS ? "a matrix would be in too many pieces" : NULL;
}

static const char *kind_declines(const sl_op *op) {
    switch (op->kind) {
    case SL_OP_LINEAR:
        return "a residual is added inside it";
    case SL_OP_HEAD_LINEAR:
        return "its keys are latent";
    case SL_OP_CONV:
    case SL_OP_DELTA_SCAN:
    case SL_OP_SSM_SCAN:
        return recurrent;
    case SL_OP_RECALL:
        return "it reads the row in front";
    default:
        return "it has an op that is not divided";
    }
}

static const char *operand_declines(const sl_division *d, int32_t index, bool output, int operand) {
    const sl_op *op = &d->program->ops[index];
    const sl_operand at = output ? op->out[operand] : op->in[operand];
    heads h;
    if (op->kind == SL_OP_LINEAR && output) {
        return writer_declines(d, op);
    }
    if (!heads_of(d->program, op, output, operand, &h)) {
        return kind_declines(op);
    }
    if (op->kind == SL_OP_RMSNORM && op->u.rmsnorm.groups == 1) {
        return "a norm goes over all of its columns";
    }
    if ((op->kind == SL_OP_CACHE_WRITE && !d->groups[op->u.cache_write.place.group]) ||
        (op->kind == SL_OP_ATTENTION && !d->groups[op->u.attention.place.group])) {
        const int32_t group =
            op->kind == SL_OP_ATTENTION ? op->u.attention.place.group : op->u.cache_write.place.group;
        return d->program->groups[group].kv_heads % d->ranks != 0
                   ? "its key heads do not divide evenly"
                   : "its cache is shared with layers that are whole";
    }
    const char *reason = heads_decline(d, at, &h);
    return reason || op->kind != SL_OP_LINEAR ? reason : reader_declines(d, index);
}

static bool decline_operands(sl_division *d, int32_t index) {
    const sl_op *op = &d->program->ops[index];
    bool changed = false;
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS; i++) {
        const bool output = i >= SL_OP_INPUTS;
        const int operand = output ? i - SL_OP_INPUTS : i;
        const int32_t value = output ? op->out[operand].value : op->in[operand].value;
        if (sl_divides(d, value)) {
            sl_block *block = block_at(d, value);
            block->reason = operand_declines(d, index, output, operand);
            changed |= block->reason != NULL;
        }
    }
    return changed;
}

/* Every region of a value begins between two units of it. */
static bool decline_regions(sl_division *d) {
    bool changed = false;
    for (int32_t v = 0; v < d->program->value_count; v++) {
        for (const sl_region_bound *b = d->bounds[v]; b && sl_divides(d, v); b = b->next) {
            if (b->column % block_at(d, v)->units != 0) {
                block_at(d, v)->reason = uneven;
                changed = true;
            }
        }
    }
    return changed;
}

static bool decline_groups(sl_division *d) {
    bool changed = false;
    for (int32_t i = 0; i < d->program->op_count; i++) {
        const sl_op *op = &d->program->ops[i];
        int32_t group = SL_NONE;
        bool divided = false;
        switch (op->kind) {
        case SL_OP_CACHE_WRITE:
            group = op->u.cache_write.place.group;
            divided = sl_divides(d, op->in[0].value);
            break;
        case SL_OP_ATTENTION:
            group = op->u.attention.place.group;
            divided = sl_divides(d, op->in[0].value);
            break;
        case SL_OP_RECALL:
            group = op->u.recall.place.group;
            break;
        case SL_OP_COMPACT:
            group = op->u.compact.attention.place.group;
            break;
        default:
            break;
        }
        if (group != SL_NONE && !divided && d->groups[group]) {
            d->groups[group] = false;
            changed = true;
        }
    }
    return changed;
}

/* ---- sums and the head ---- */

static bool is_reader(const sl_division *d, const sl_op *op) {
    return op->kind == SL_OP_LINEAR && sl_divides(d, op->in[0].value);
}

/* A COMBINE adds up shares as it would the sums: what all of it is a share of is summed behind it. */
static void find_sums(sl_division *d) {
    const sl_program *program = d->program;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (is_reader(d, op) && op->in[1].value != SL_NONE) {
            d->partial[op->out[0].value] = true;
            d->summed[combine_of(program, op->out[0].value, i)] = true;
        }
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (!is_reader(d, op) || op->in[1].value != SL_NONE) {
            continue;
        }
        const int32_t combine = combine_of(program, op->out[0].value, i);
        if (combine != SL_NONE && program->ops[combine].in[3].value == op->out[0].value &&
            d->partial[program->ops[combine].in[0].value]) {
            d->partial[op->out[0].value] = true;
        } else {
            d->summed[i] = true;
        }
    }
}

static void find_head(sl_division *d) {
    const sl_program *program = d->program;
    d->head = SL_NONE;
    for (int32_t i = 0; i < program->op_count && program->logits != SL_NONE; i++) {
        const sl_op *op = &program->ops[i];
        if (op->out[0].value != program->logits || op->kind == SL_OP_SOFTCAP) {
            continue;
        }
        const sl_linear_segment *segment = &op->u.linear.segments[0];
        const bool plain = d->head == SL_NONE && op->kind == SL_OP_LINEAR &&
                           op->u.linear.segment_count == 1 && segment->column == 0 &&
                           op->out[0].column == 0 && op->in[1].value == SL_NONE &&
                           op->in[3].value == SL_NONE && !sl_divides(d, op->in[0].value);
        const int32_t rows = plain ? program->weights[segment->weight].rows : 0;
        if (!plain || rows != program->vocabulary) {
            d->head_reason = "it is more than one matrix of the vocabulary";
            d->head = SL_NONE;
            return;
        }
        d->head_reason = rows % d->ranks != 0 ? "its rows do not divide evenly" : NULL;
        d->head = d->head_reason ? SL_NONE : i;
    }
}

/* ---- the whole ---- */

int sl_divide(const sl_program *program, int32_t ranks, sl_division *d) {
    const size_t values = (size_t)program->value_count + 1, ops = (size_t)program->op_count + 1;
    d->program = program;
    d->ranks = ranks;
    d->parents = sl_arena_alloc(&d->arena, values, sizeof *d->parents);
    d->blocks = sl_arena_alloc(&d->arena, values, sizeof *d->blocks);
    d->bounds = sl_arena_alloc(&d->arena, values, sizeof(sl_region_bound *));
    d->partial = sl_arena_alloc(&d->arena, values, sizeof *d->partial);
    d->summed = sl_arena_alloc(&d->arena, ops, sizeof *d->summed);
    if (!d->parents || !d->blocks || !d->bounds || !d->partial || !d->summed) {
        return SL_ERR_NOMEM;
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        d->parents[v] = v;
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        join_operands(d, &program->ops[i]);
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        d->groups[g] = program->groups[g].kv_heads % ranks == 0;
    }
    mark_blocks(d);
    choose_units(d);
    if (!find_bounds(d)) {
        return SL_ERR_NOMEM;
    }
    for (int32_t i = 0; i < program->op_count; i++) { /* the best reasons first */
        const sl_op_kind kind = program->ops[i].kind;
        if (kind == SL_OP_ATTENTION || kind == SL_OP_CACHE_WRITE || kind == SL_OP_HEAD_LINEAR) {
            decline_operands(d, i);
        }
    }
    bool changed = true; /* what declines one block may decline another */
    while (changed) {
        changed = decline_regions(d);
        for (int32_t i = 0; i < program->op_count; i++) {
            changed |= decline_operands(d, i);
        }
        changed |= decline_groups(d);
    }
    take_turns(d);
    find_sums(d);
    find_head(d);
    return 0;
}

void sl_division_free(sl_division *division) {
    sl_arena_free(&division->arena);
    *division = (sl_division){0};
}
