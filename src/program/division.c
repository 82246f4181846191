#include "program/division.h"

static const char uneven_state[] = "its state does not divide evenly";
static const char beside_whole[] = "its state is beside one that is whole";
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
            block->streams || !(block->attends || block->activates || block->recurs)) {
            block->reason = no_block;
        }
    }
}

/* ---- heads ---- */

/* How heads may lie in regions of a value. */
typedef enum placing {
    SIDE_BY_SIDE, /* in several: no head has a place among the others */
    ALIKE,        /* in several, as many in each as the op's other operands have */
    TOGETHER      /* in one, which is all theirs */
} placing;

/* What an op knows of a part of an operand: `count` heads from `column` of it on, `stride` apart, of which it
 * touches `width` columns. */
typedef struct heads {
    int32_t column, count, stride, width;
    placing placing;
} heads;

/* Of an op: which of its operands, and which part of that. */
typedef struct role {
    bool output;
    int index;
    int32_t part;
} role;

static sl_operand operand_of(const sl_op *op, const role *r) {
    return r->output ? op->out[r->index] : op->in[r->index];
}

static bool rmsnorm_heads(const sl_op *op, const role *r, heads *h) {
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const bool in_place = op->in[0].value == op->out[0].value;
    const int32_t x_stride = norm->groups == 1 ? norm->width : norm->stride;
    const bool apart = norm->own_weights || op->in[2].value != SL_NONE || !in_place;
    *h = (heads){0, norm->groups, x_stride, norm->width, apart ? ALIKE : SIDE_BY_SIDE};
    if (r->output) {
        h->stride = in_place ? x_stride : norm->width;
        return r->index == 0;
    }
    if (r->index == 2) {
        h->stride = norm->groups == 1 ? norm->width : norm->gate_stride;
    }
    return r->index != 1;
}

static int32_t stride_of(int32_t count, int32_t stride, int32_t width) {
    return count == 1 ? width : stride;
}

static bool attention_heads(const sl_program *program, const sl_op *op, const role *r, heads *h) {
    const sl_op_attention *attention = &op->u.attention;
    const sl_cache_group *group = &program->groups[attention->place.group];
    const int32_t count = attention->heads;
    if (r->output) {
        *h = (heads){0, count, group->value_size, group->value_size, TOGETHER};
    } else if (r->index == 0) {
        const int32_t stride = stride_of(count, attention->q_stride, group->key_size);
        *h = (heads){0, count, stride, group->key_size, TOGETHER};
    } else {
        const int32_t stride = stride_of(count, attention->gate_stride, group->value_size);
        *h = (heads){0, count, stride, group->value_size, TOGETHER};
    }
    return true;
}

static bool head_linear_heads(const sl_program *program, const sl_op *op, const role *r, heads *h) {
    const sl_op_head_linear *linear = &op->u.head_linear;
    const sl_weight *weight = &program->weights[linear->weight];
    const int32_t count = weight->experts;
    const int32_t width = (r->output != linear->turned ? weight->rows : weight->columns) + linear->tail;
    *h = (heads){0, count, r->output ? width : stride_of(count, linear->x_stride, width), width, TOGETHER};
    return true;
}

static bool rope_heads(const sl_op_rope *rope, heads *h) {
    const int32_t width = rope->dims > rope->temperature.width ? rope->dims : rope->temperature.width;
    *h = (heads){0, rope->heads, rope->stride > width ? rope->stride : width, width, SIDE_BY_SIDE};
    return true;
}

/* Queries, keys, values. Where keys cycle, value heads come in runs that read the same keys in their order,
 * so that a rank has heads of each run. */
static bool delta_heads(const sl_program *program, const sl_op *op, const role *r, heads *h) {
    const sl_op_delta_scan *scan = &op->u.delta_scan;
    const sl_state_layer *state = &program->states[scan->state];
    const int32_t runs = scan->keys_cycle ? scan->value_heads / scan->key_heads : 1;
    const int32_t count = scan->value_heads / runs, keys = scan->key_heads * state->key_size;
    const bool qkv = !r->output && r->index == 0;
    if (qkv && r->part < 2) {
        *h = (heads){r->part * keys, scan->key_heads, state->key_size, state->key_size, TOGETHER};
        return true;
    }
    const int32_t run = qkv ? r->part - 2 : r->part, width = qkv || r->output ? state->value_size : 1;
    *h = (heads){(qkv ? 2 * keys : 0) + run * count * width, count, width, width, TOGETHER};
    return run < runs;
}

static bool ssm_heads(const sl_program *program, const sl_op *op, const role *r, heads *h) {
    const sl_op_ssm_scan *scan = &op->u.ssm_scan;
    const sl_state_layer *state = &program->states[scan->state];
    const bool xbc = !r->output && r->index == 0;
    const int32_t width = xbc || r->output ? state->value_size : 1;
    *h = (heads){0, scan->heads, width, width, TOGETHER};
    if (xbc && r->part > 0) {
        const int32_t group = scan->groups * state->key_size;
        *h = (heads){scan->heads * width + (r->part - 1) * group, scan->groups, state->key_size,
                     state->key_size, TOGETHER};
    }
    return r->part < (xbc ? 3 : 1);
}

/* False where there is no such part; without the first one the op, or that operand of it, is not for divided
 * values. */
static bool heads_of(const sl_program *program, const sl_op *op, const role *r, heads *h) {
    if (op->kind == SL_OP_DELTA_SCAN) {
        return delta_heads(program, op, r, h);
    }
    if (op->kind == SL_OP_SSM_SCAN) {
        return ssm_heads(program, op, r, h);
    }
    if (r->part > 0) {
        return false;
    }
    switch (op->kind) {
    case SL_OP_RMSNORM:
        return rmsnorm_heads(op, r, h);
    case SL_OP_ROPE:
        return rope_heads(&op->u.rope, h);
    case SL_OP_CACHE_WRITE: {
        const sl_cache_group *group = &program->groups[op->u.cache_write.place.group];
        const int32_t size = r->index == 0 ? group->key_size : group->value_size;
        *h = (heads){0, group->kv_heads, size, size, TOGETHER};
        return true;
    }
    case SL_OP_ATTENTION:
        return attention_heads(program, op, r, h);
    case SL_OP_HEAD_LINEAR:
        return head_linear_heads(program, op, r, h);
    case SL_OP_ACTIVATE:
        *h = (heads){0, op->u.activate.width, 1, 1, ALIKE};
        return r->output || r->index != 2;
    case SL_OP_CONV:
        *h = (heads){0, program->states[op->u.conv.state].channels, 1, 1, ALIKE};
        return true;
    case SL_OP_SOFTCAP:
        *h = (heads){0, op->u.softcap.width, 1, 1, SIDE_BY_SIDE};
        return true;
    case SL_OP_LINEAR:
        *h = (heads){0, program->weights[op->u.linear.segments[0].weight].columns, 1, 1, SIDE_BY_SIDE};
        return !r->output && r->index == 0;
    default:
        return false;
    }
}

/* Of operand `index` among inputs, then outputs, part 0. */
static role role_at(int index) {
    const bool output = index >= SL_OP_INPUTS;
    return (role){output, output ? index - SL_OP_INPUTS : index, 0};
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
    *bound = (sl_region_bound){(int32_t)column, false, *at};
    *at = bound;
    d->bound_count++;
    return true;
}

/* Heads without gaps between them say where they begin and end; others may begin anywhere in a head. */
static bool bound_operand(sl_division *d, const sl_op *op, role r) {
    const sl_operand at = operand_of(op, &r);
    heads h;
    bool ok = true;
    if (at.value == SL_NONE || block_at(d, at.value)->reason) {
        return true;
    }
    for (; ok && heads_of(d->program, op, &r, &h); r.part++) {
        const int64_t first = (int64_t)at.column + h.column;
        ok = h.stride != h.width ||
             (add_bound(d, at.value, first) && add_bound(d, at.value, first + (int64_t)h.count * h.stride));
    }
    return ok;
}

/* The operand, if its heads are without gaps and must lie in regions like those of the op's others. */
static bool is_alike(const sl_division *d, const sl_op *op, const role *r, heads *h) {
    const int32_t value = operand_of(op, r).value;
    return value != SL_NONE && !block_at(d, value)->reason && heads_of(d->program, op, r, h) &&
           h->placing == ALIKE && h->stride == h->width;
}

/* Where one operand's heads are told apart, the others' are. */
static bool spread_bounds(sl_division *d, const sl_op *op) {
    bool ok = true;
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS; i++) {
        const role from = role_at(i);
        const sl_operand a = operand_of(op, &from);
        heads h, other;
        for (int k = 0; is_alike(d, op, &from, &h) && k < SL_OP_INPUTS + SL_OP_OUTPUTS; k++) {
            const role to = role_at(k);
            const sl_operand b = operand_of(op, &to);
            if (k == i || !is_alike(d, op, &to, &other)) {
                continue;
            }
            for (const sl_region_bound *bound = d->bounds[a.value]; ok && bound; bound = bound->next) {
                const int64_t columns = (int64_t)bound->column - a.column;
                if (columns >= 0 && columns <= (int64_t)h.count * h.stride && columns % h.stride == 0) {
                    ok = add_bound(d, b.value, b.column + columns / h.stride * other.stride);
                }
            }
        }
    }
    return ok;
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
        for (int k = 0; k < SL_OP_INPUTS + SL_OP_OUTPUTS; k++) {
            ok = ok && bound_operand(d, op, role_at(k));
        }
        ok = ok && (op->kind != SL_OP_LINEAR || bound_segments(d, op));
    }
    for (int32_t before = -1; ok && before != d->bound_count;) {
        before = d->bound_count;
        for (int32_t i = 0; ok && i < program->op_count; i++) {
            ok = spread_bounds(d, &program->ops[i]);
        }
    }
    return ok;
}

sl_region sl_region_at(const sl_division *division, int32_t value, int32_t column) {
    const sl_region_bound *bound = division->bounds[value];
    while (bound->next && bound->next->column <= column) {
        bound = bound->next;
    }
    return (sl_region){bound->column, bound->next ? bound->next->column - bound->column : 0, bound->whole};
}

bool sl_is_whole(const sl_division *division, sl_operand at, int64_t width) {
    const sl_region_bound *bound = division->bounds[at.value];
    bool whole = bound != NULL;
    for (; bound && bound->next && bound->column < at.column + width; bound = bound->next) {
        whole &= bound->whole || bound->next->column <= at.column;
    }
    return whole;
}

/* ---- columns that are whole ---- */

static void mark_columns(sl_division *d, int32_t value, int64_t first, int64_t width, bool *changed) {
    for (sl_region_bound *b = d->bounds[value]; b && b->next; b = b->next) {
        if (!b->whole && b->column >= first && b->next->column <= first + width) {
            b->whole = *changed = true;
        }
    }
}

/* What all heads of a block read, since there is one of it. */
static bool is_for_all(const sl_division *d, const sl_op *op, const role *r) {
    return op->kind == SL_OP_CACHE_WRITE && !r->output &&
           d->program->groups[op->u.cache_write.place.group].kv_heads == 1;
}

/* Where regions of one operand are whole, the same heads of the op's others are. */
static void spread_whole(sl_division *d, const sl_op *op, bool *changed) {
    heads h, other;
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS; i++) {
        const role from = role_at(i);
        const sl_operand a = operand_of(op, &from);
        for (int k = 0; is_alike(d, op, &from, &h) && k < SL_OP_INPUTS + SL_OP_OUTPUTS; k++) {
            const role to = role_at(k);
            const sl_operand b = operand_of(op, &to);
            const sl_region_bound *bound = k != i && is_alike(d, op, &to, &other) ? d->bounds[a.value] : NULL;
            for (; bound && bound->next; bound = bound->next) {
                const int64_t first = (int64_t)bound->column - a.column;
                const int64_t width = bound->next->column - bound->column;
                if (bound->whole && first >= 0 && first + width <= (int64_t)h.count * h.stride) {
                    mark_columns(d, b.value, b.column + first / h.stride * other.stride,
                                 width / h.stride * other.stride, changed);
                }
            }
        }
    }
}

static void find_whole_columns(sl_division *d) {
    bool changed = false;
    for (int32_t i = 0; i < d->program->op_count; i++) {
        const sl_op *op = &d->program->ops[i];
        for (int k = 0; k < SL_OP_INPUTS + SL_OP_OUTPUTS; k++) {
            role r = role_at(k);
            const sl_operand at = operand_of(op, &r);
            heads h;
            for (; at.value != SL_NONE && heads_of(d->program, op, &r, &h); r.part++) {
                if (is_for_all(d, op, &r)) {
                    mark_columns(d, at.value, (int64_t)at.column + h.column, (int64_t)h.count * h.stride,
                                 &changed);
                }
            }
        }
    }
    while (changed) {
        changed = false;
        for (int32_t i = 0; i < d->program->op_count; i++) {
            spread_whole(d, &d->program->ops[i], &changed);
        }
    }
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

int32_t sl_share_columns(const sl_division *division, sl_share share, sl_operand at, int32_t width) {
    int32_t own = 0;
    for (int32_t column = at.column, end = at.column + width; column < end;) {
        const sl_region region = sl_region_at(division, at.value, column);
        const int32_t left = region.first + region.width - column, most = end - column;
        const int32_t here = left > 0 && left < most ? left : most;
        own += region.whole ? here : sl_share_size(share, here);
        column += here;
    }
    return own;
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

/* Each rank must get whole heads of each region, or all of them. */
static const char *heads_decline(const sl_division *d, sl_operand at, const heads *h) {
    const int32_t units = block_at(d, at.value)->units, column = at.column + h->column;
    sl_region region = sl_region_at(d, at.value, column);
    int64_t left = (int64_t)h->count * h->stride;
    if (sl_is_whole(d, (sl_operand){at.value, column}, left - h->stride + h->width)) {
        return NULL;
    }
    if (h->stride < 1 || (int64_t)column - region.first + h->width > h->stride) {
        return unknown_heads;
    }
    while (true) {
        if (region.width < 1 || region.width > left) {
            return unknown_heads;
        }
        if (region.width % ((int64_t)h->stride * (region.whole ? 1 : units)) != 0) {
            return uneven;
        }
        left -= region.width;
        if (left == 0) {
            return NULL;
        }
        if (h->placing == TOGETHER || (h->placing == ALIKE && h->stride != h->width)) {
            return unknown_heads;
        }
        region = sl_region_at(d, at.value, region.first + region.width);
    }
}

/* Of two operands without fault: as many heads in each region. */
static bool have_alike(const sl_division *d, const sl_op *op, const role *a, const role *b) {
    const sl_operand x = operand_of(op, a), y = operand_of(op, b);
    heads of_x, of_y;
    if (!heads_of(d->program, op, a, &of_x) || !heads_of(d->program, op, b, &of_y)) {
        return false;
    }
    sl_region left = sl_region_at(d, x.value, x.column), right = sl_region_at(d, y.value, y.column);
    for (int32_t count = of_x.count; count > 0;) {
        const int32_t heads_left = left.width / of_x.stride;
        if (heads_left < 1 || heads_left != right.width / of_y.stride || left.whole != right.whole) {
            return false;
        }
        count -= heads_left;
        left = sl_region_at(d, x.value, left.first + left.width);
        right = sl_region_at(d, y.value, right.first + right.width);
    }
    return true;
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
    const int32_t units = block_at(d, op->in[0].value)->units;
    for (int32_t left = weight->columns, column = op->in[0].column; left > 0;) {
        const sl_region region = sl_region_at(d, op->in[0].value, column);
        if (region.whole) {
            return "it is read beside what is whole";
        }
        if ((uint32_t)(region.width / units) % sl_qtype_get(weight->type)->block_elements != 0) {
            return "a rank's columns are no whole blocks of weights";
        }
        left -= region.width;
        column += region.width;
    }
    if (op->in[1].value != SL_NONE) {
        const int32_t combine = combine_of(program, op->out[0].value, index);
        if (combine == SL_NONE || program->ops[combine].in[0].value != op->out[0].value) {
            return "what its experts leave is not only combined";
        }
    }
    return NULL;
}

static const char *kind_declines(const sl_op *op) {
    switch (op->kind) {
    case SL_OP_LINEAR:
        return "a residual is added inside it";
    case SL_OP_RECALL:
        return "it reads the row in front";
    default:
        return "it has an op that is not divided";
    }
}

/* Of an op with a cache. */
static const char *group_declines(const sl_division *d, int32_t group) {
    return d->groups[group] ? NULL
           : d->program->groups[group].kv_heads % d->ranks != 0
               ? "its key heads do not divide evenly"
               : "its cache is shared with layers that are whole";
}

/* All query heads read one key head, which every rank has: then they divide by themselves. */
static bool shares_key_head(const sl_division *d, const sl_op *op) {
    return d->program->groups[op->u.attention.place.group].kv_heads == 1;
}

/* The state that an op keeps; SL_NONE: none. */
static int32_t state_of(const sl_op *op) {
    return op->kind == SL_OP_CONV         ? op->u.conv.state
           : op->kind == SL_OP_DELTA_SCAN ? op->u.delta_scan.state
           : op->kind == SL_OP_SSM_SCAN   ? op->u.ssm_scan.state
                                          : SL_NONE;
}

/* The ranks' states are together as large as the whole: no rank's have gaps that the whole's has not. */
static const char *state_declines(const sl_division *d, int32_t index) {
    enum { ALIGNMENT = 64 / sizeof(float) };
    const sl_state_layer *state = &d->program->states[index];
    const int64_t conv = (int64_t)(state->taps - 1) * (state->channels / d->ranks);
    const int64_t scan = (int64_t)(state->heads / d->ranks) * state->key_size * state->value_size;
    const bool even = state->channels % d->ranks == 0 && state->heads % d->ranks == 0;
    return !even || conv % ALIGNMENT != 0 || scan % ALIGNMENT != 0 ? uneven_state
           : !d->states                                            ? beside_whole
                                                                   : NULL;
}

/* An op of heads that all are with every rank is the whole's. */
static bool may_be_whole(const sl_op *op) {
    return op->kind == SL_OP_RMSNORM || op->kind == SL_OP_ROPE || op->kind == SL_OP_CACHE_WRITE;
}

bool sl_is_whole_op(const sl_division *division, const sl_op *op) {
    const role first = role_at(0);
    heads h;
    return may_be_whole(op) && heads_of(division->program, op, &first, &h) &&
           sl_is_whole(division, (sl_operand){op->in[0].value, op->in[0].column + h.column},
                       (int64_t)(h.count - 1) * h.stride + h.width);
}

static const char *operand_declines(const sl_division *d, int32_t index, role r) {
    const sl_op *op = &d->program->ops[index];
    const sl_operand at = operand_of(op, &r);
    const char *reason = NULL;
    heads h;
    if (op->kind == SL_OP_LINEAR && r.output) {
        return sl_divides(d, op->in[0].value) ? "it is computed from what is divided" : NULL;
    }
    if (!heads_of(d->program, op, &r, &h)) {
        return kind_declines(op);
    }
    const bool whole = sl_is_whole(d, (sl_operand){at.value, at.column + h.column},
                                   (int64_t)(h.count - 1) * h.stride + h.width);
    if (op->kind == SL_OP_RMSNORM && op->u.rmsnorm.groups == 1 && !whole) {
        return "a norm goes over all of its columns";
    }
    if (whole && !may_be_whole(op)) {
        return "its heads read what every rank has";
    }
    if (op->kind == SL_OP_CACHE_WRITE && !whole) {
        reason = group_declines(d, op->u.cache_write.place.group);
    } else if (op->kind == SL_OP_ATTENTION && !shares_key_head(d, op)) {
        reason = group_declines(d, op->u.attention.place.group);
    }
    const role first = role_at(0);
    const bool alike = h.placing == ALIKE;
    for (; !reason && heads_of(d->program, op, &r, &h); r.part++) {
        reason = heads_decline(d, at, &h);
    }
    if (!reason && alike && sl_divides(d, op->in[0].value) &&
        !have_alike(d, op, &first, &(role){r.output, r.index, 0})) {
        reason = unknown_heads;
    }
    if (!reason && state_of(op) != SL_NONE) {
        reason = state_declines(d, state_of(op));
    }
    return reason || op->kind != SL_OP_LINEAR ? reason : reader_declines(d, index);
}

static bool decline_operands(sl_division *d, int32_t index) {
    const sl_op *op = &d->program->ops[index];
    bool changed = false;
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS; i++) {
        const role r = role_at(i);
        const int32_t value = operand_of(op, &r).value;
        if (sl_divides(d, value)) {
            sl_block *block = block_at(d, value);
            block->reason = operand_declines(d, index, r);
            changed |= block->reason != NULL;
        }
    }
    return changed;
}

/* Every region that is divided has whole numbers of columns in each unit. */
static bool decline_regions(sl_division *d) {
    bool changed = false;
    for (int32_t v = 0; v < d->program->value_count; v++) {
        for (const sl_region_bound *b = d->bounds[v]; b && sl_divides(d, v); b = b->next) {
            if (b->next && !b->whole && (b->next->column - b->column) % block_at(d, v)->units != 0) {
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

/* A slot has all layers' states, and its bytes are the ranks' together: all are divided, or none. */
static bool decline_states(sl_division *d) {
    bool changed = false;
    for (int32_t i = 0; i < d->program->op_count && d->states; i++) {
        const sl_op *op = &d->program->ops[i];
        changed = state_of(op) != SL_NONE && !sl_divides(d, op->in[0].value);
        d->states = !changed;
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
    d->states = program->state_count > 0;
    mark_blocks(d);
    choose_units(d);
    if (!find_bounds(d)) {
        return SL_ERR_NOMEM;
    }
    find_whole_columns(d);
    for (int32_t i = 0; i < program->op_count; i++) { /* the best reasons first */
        const sl_op_kind kind = program->ops[i].kind;
        if (kind == SL_OP_ATTENTION || kind == SL_OP_CACHE_WRITE || kind == SL_OP_HEAD_LINEAR ||
            state_of(&program->ops[i]) != SL_NONE) {
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
        changed |= decline_states(d);
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
