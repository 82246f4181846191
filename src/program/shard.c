/* The program of one rank: the whole's ops with its share of heads and columns, and sums behind them. */
#include "base/alloc.h"
#include "base/checked.h"
#include "program/division.h"

#include <string.h>

typedef struct sharding {
    const sl_program *program;
    const sl_division *division;
    sl_program *part;
    int32_t rank, ranks;
    int32_t logits; /* the value of a rank's own; SL_NONE without */
    bool *whole;    /* per weight of the whole: some op of the part uses all of it */
    bool *taken;    /* per weight of the whole: a slice stands at its index */
    struct cut *cuts;
    int32_t cut_count;
    bool failed;
} sharding;

/* Rows and columns of each expert of a weight of the whole. */
typedef struct cut {
    int32_t weight;
    int32_t first_row, rows, first_column, columns;
    int32_t unit;  /* rows of which each rank's are multiples, and begin at multiples */
    int32_t index; /* in the part */
} cut;

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "out of memory for the program of a rank");
}

/* ---- weights ---- */

/* The same for all ranks that have as many rows, so that these choose the same kernels. */
static int32_t scale_rows_of(const sl_weight *of, const cut *c) {
    if (of->scale_rows <= 0 || c->rows == of->rows) {
        return of->scale_rows;
    }
    if (of->scale_rows >= of->rows) {
        return c->rows;
    }
    const int32_t begin = c->first_row % c->unit; /* of the first rank's rows, but for multiples of them */
    return sl_common_divisor(sl_common_divisor(of->scale_rows, c->unit), begin);
}

static const char *cut_name(sharding *s, const sl_weight *of, const cut *c) {
    const int32_t rows = c->first_row + c->rows, columns = c->first_column + c->columns;
    if (c->columns == of->columns) {
        return sl_arena_printf(&s->part->arena, "%s[%d:%d]", of->name, c->first_row, rows);
    }
    if (of->rows == 1) {
        return sl_arena_printf(&s->part->arena, "%s[%d:%d]", of->name, c->first_column, columns);
    }
    return sl_arena_printf(&s->part->arena, "%s[:,%d:%d]", of->name, c->first_column, columns);
}

/* The cut as a weight, whose data is NULL where it is not adjacent. */
static bool describe_cut(sharding *s, const sl_weight *of, const cut *c, sl_weight *weight) {
    const bool adjacent = of->experts == 1 && (c->columns == of->columns || of->rows == 1);
    uint64_t row, before, elements;
    *weight = *of;
    weight->name = cut_name(s, of, c);
    weight->rows = c->rows;
    weight->columns = c->columns;
    weight->scale_rows = scale_rows_of(of, c);
    weight->data = NULL;
    if (!weight->name ||
        !sl_mul_u64((uint64_t)of->experts * (uint64_t)c->rows, (uint64_t)c->columns, &elements) ||
        !sl_qtype_bytes(of->type, elements, &weight->bytes) ||
        !sl_qtype_bytes(of->type, (uint64_t)of->columns, &row) ||
        !sl_qtype_bytes(of->type, (uint64_t)c->first_column, &before) ||
        !sl_mul_u64(row, (uint64_t)c->first_row, &row) || !sl_add_u64(before, row, &before)) {
        return false;
    }
    if (adjacent && of->data) {
        weight->data = (const unsigned char *)of->data + before;
    }
    if (!adjacent) {
        s->part->slices[s->part->slice_count++] =
            (sl_slice){SL_NONE, of, c->first_row, c->first_column, NULL};
    }
    return true;
}

/* Its index in the part: the whole's own where the part needs no more of that weight. */
static int32_t cut_weight(sharding *s, cut c) {
    const sl_weight *of = &s->program->weights[c.weight];
    for (int32_t i = 0; i < s->cut_count; i++) {
        const cut *same = &s->cuts[i];
        if (same->weight == c.weight && same->first_row == c.first_row && same->rows == c.rows &&
            same->first_column == c.first_column && same->columns == c.columns) {
            return same->index;
        }
    }
    sl_weight weight;
    const int32_t before = s->part->slice_count;
    if (!describe_cut(s, of, &c, &weight)) {
        s->failed = true;
        return SL_NONE;
    }
    if (s->whole[c.weight] || s->taken[c.weight]) {
        c.index = sl_program_weight(s->part, &weight);
    } else {
        c.index = c.weight;
        s->taken[c.weight] = true;
        s->part->weights[c.weight] = weight;
    }
    if (c.index == SL_NONE) {
        s->part->slice_count = before;
        s->failed = true;
        return SL_NONE;
    }
    if (s->part->slice_count > before) {
        s->part->slices[before].weight = c.index;
    }
    s->cuts[s->cut_count++] = c;
    return c.index;
}

/* `unit`: see there. */
static int32_t cut_rows(sharding *s, int32_t weight, int32_t first, int32_t rows, int32_t unit) {
    const int32_t columns = s->program->weights[weight].columns;
    return cut_weight(s, (cut){weight, first, rows, 0, columns, unit, SL_NONE});
}

static int32_t cut_columns(sharding *s, int32_t weight, int32_t first, int32_t columns) {
    if (weight == SL_NONE) {
        return SL_NONE;
    }
    const int32_t rows = s->program->weights[weight].rows;
    return cut_weight(s, (cut){weight, 0, rows, first, columns, rows, SL_NONE});
}

/* ---- ops ---- */

static bool reads(const sharding *s, const sl_op *op) {
    return op->kind == SL_OP_LINEAR && sl_divides(s->division, op->in[0].value);
}

static bool writes(const sharding *s, const sl_op *op) {
    return op->kind == SL_OP_LINEAR && sl_divides(s->division, op->out[0].value);
}

/* Weights that an op of the part has as they are in the whole. */
static void mark_whole(sharding *s) {
    for (int32_t i = 0; i < s->program->op_count; i++) {
        const sl_op *op = &s->program->ops[i];
        int32_t weights[SL_OP_WEIGHTS];
        const int32_t count = sl_op_weights(op, weights);
        const bool divided = sl_divides(s->division, op->in[0].value);
        const bool own =
            (op->kind == SL_OP_RMSNORM && op->u.rmsnorm.own_weights) || op->kind == SL_OP_ATTENTION;
        if (writes(s, op) || i == s->division->head || (divided && own)) {
            continue;
        }
        for (int32_t w = reads(s, op) ? count / 2 : 0; w < count; w++) {
            if (weights[w] != SL_NONE) {
                s->whole[weights[w]] = true;
            }
        }
    }
}

static sl_share share_of(const sharding *s, int32_t value) {
    return sl_share_of(s->division, value, s->rank);
}

static void move_operand(const sharding *s, sl_operand *at) {
    if (sl_divides(s->division, at->value)) {
        const sl_region region = sl_region_at(s->division, at->value, at->column);
        at->column = sl_share_size(share_of(s, at->value), region.first) + (at->column - region.first);
    }
}

/* A rank's rows of each region that a segment writes, as a segment each. */
static void write_rows(sharding *s, const sl_op *from, sl_op *op) {
    const sl_share share = share_of(s, from->out[0].value);
    sl_op_linear *linear = &op->u.linear;
    int32_t first = INT32_MAX;
    linear->segment_count = 0;
    for (int32_t k = 0; k < from->u.linear.segment_count; k++) {
        const sl_linear_segment *segment = &from->u.linear.segments[k];
        const int32_t begin = from->out[0].column + segment->column;
        const int32_t end = begin + s->program->weights[segment->weight].rows;
        for (int32_t column = begin; column < end;) {
            const sl_region region = sl_region_at(s->division, from->out[0].value, column);
            const int32_t rows = sl_share_size(share, region.width);
            const int32_t row = column - begin + sl_share_begin(share, region.width);
            sl_linear_segment *piece = &linear->segments[linear->segment_count++];
            piece->weight = cut_rows(s, segment->weight, row, rows, region.width / share.of);
            piece->bias = cut_columns(s, segment->bias, row, rows);
            piece->column = sl_share_size(share, region.first);
            first = piece->column < first ? piece->column : first;
            column = region.first + region.width;
        }
    }
    for (int32_t k = 0; k < linear->segment_count; k++) {
        linear->segments[k].column -= first;
    }
    op->out[0].column = first;
}

/* What is added once is the first rank's to add. */
static void read_columns(sharding *s, sl_op *op) {
    sl_linear_segment *segment = &op->u.linear.segments[0];
    const sl_share share = share_of(s, op->in[0].value);
    const int32_t columns = s->program->weights[segment->weight].columns;
    segment->weight =
        cut_columns(s, segment->weight, sl_share_begin(share, columns), sl_share_size(share, columns));
    if (s->rank > 0) {
        segment->bias = SL_NONE;
        op->in[3] = (sl_operand){SL_NONE, 0};
    }
    move_operand(s, &op->in[0]);
}

static void divide_head(sharding *s, sl_op *op) {
    sl_linear_segment *segment = &op->u.linear.segments[0];
    const int32_t rows = s->program->vocabulary / s->ranks, first = s->rank * rows;
    segment->weight = cut_rows(s, segment->weight, first, rows, rows);
    segment->bias = cut_columns(s, segment->bias, first, rows);
    op->out[0].value = s->logits;
}

static void divide_heads(sharding *s, sl_op *op) {
    const sl_share share = share_of(s, op->in[0].value);
    switch (op->kind) {
    case SL_OP_RMSNORM: {
        sl_op_rmsnorm *norm = &op->u.rmsnorm;
        const int32_t first = sl_share_begin(share, norm->groups) * norm->width;
        norm->groups = sl_share_size(share, norm->groups);
        if (norm->own_weights) {
            norm->weight = cut_columns(s, norm->weight, first, norm->groups * norm->width);
        }
        break;
    }
    case SL_OP_ROPE:
        op->u.rope.heads = sl_share_size(share, op->u.rope.heads);
        break;
    case SL_OP_ATTENTION: {
        sl_op_attention *attention = &op->u.attention;
        const int32_t first = sl_share_begin(share, attention->heads);
        attention->heads = sl_share_size(share, attention->heads);
        attention->sinks = cut_columns(s, attention->sinks, first, attention->heads);
        break;
    }
    case SL_OP_ACTIVATE:
        op->u.activate.width = sl_share_size(share, op->u.activate.width);
        break;
    case SL_OP_SOFTCAP:
        op->u.softcap.width = sl_share_size(share, op->u.softcap.width);
        break;
    default: /* a CACHE_WRITE's are the group's */
        break;
    }
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        move_operand(s, &op->in[i]);
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        move_operand(s, &op->out[i]);
    }
}

/* Of shares: what is whole with every rank is added by the first. */
static void combine_shares(const sharding *s, sl_op *op) {
    const bool *partial = s->division->partial;
    if (s->rank == 0 || !partial[op->in[0].value]) {
        return;
    }
    const bool shares = op->in[3].value != SL_NONE && partial[op->in[3].value];
    for (int i = 2; i < SL_OP_INPUTS; i++) {
        if (i == 2 || !shares) {
            op->in[i] = (sl_operand){SL_NONE, 0};
        }
    }
}

static void add_sum(sharding *s, const sl_op *op) {
    sl_operand at = op->out[0];
    int32_t width = op->u.combine.width;
    if (op->kind == SL_OP_LINEAR) {
        at.column += op->u.linear.segments[0].column;
        width = s->part->weights[op->u.linear.segments[0].weight].rows;
    }
    sl_op *sum = sl_program_op(s->part, SL_OP_ALL_REDUCE, op->layer);
    if (sum) {
        sum->in[0] = sum->out[0] = at;
        sum->u.all_reduce.width = width;
    }
}

static void add_gather(sharding *s) {
    sl_op *gather = sl_program_op(s->part, SL_OP_ALL_GATHER, SL_NONE);
    if (gather) {
        gather->in[0].value = s->logits;
        gather->out[0].value = s->program->logits;
        gather->u.all_gather = (sl_op_all_gather){s->program->vocabulary / s->ranks, s->ranks};
    }
}

static void add_op(sharding *s, int32_t index) {
    const sl_op *from = &s->program->ops[index];
    sl_op op = *from;
    if (index == s->division->head) {
        divide_head(s, &op);
    } else if (reads(s, from)) {
        read_columns(s, &op);
    } else if (writes(s, from)) {
        write_rows(s, from, &op);
    } else if (op.kind == SL_OP_COMBINE) {
        combine_shares(s, &op);
    } else if (sl_divides(s->division, op.in[0].value)) {
        divide_heads(s, &op);
    }
    sl_op *to = s->failed ? NULL : sl_program_op(s->part, op.kind, op.layer);
    if (!to) {
        s->failed = true;
        return;
    }
    *to = op;
    if (s->division->summed[index]) {
        add_sum(s, &op);
    }
    if (index == s->division->head) {
        add_gather(s);
    }
}

/* ---- a rank ---- */

/* At most so many weights are cut. */
static size_t most_cuts(const sl_program *program) {
    size_t count = 1;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op_kind kind = program->ops[i].kind;
        count += kind == SL_OP_LINEAR                               ? SL_OP_WEIGHTS
                 : kind == SL_OP_RMSNORM || kind == SL_OP_ATTENTION ? 1
                                                                    : 0;
    }
    return count;
}

static void copy_values(sharding *s) {
    const sl_program *program = s->program;
    for (int32_t v = 0; v < program->value_count; v++) {
        sl_value value = program->values[v];
        if (sl_divides(s->division, v)) {
            value.width = sl_share_size(share_of(s, v), value.width);
        }
        sl_program_typed_value(s->part, &value);
    }
    for (int32_t w = 0; w < program->weight_count; w++) {
        sl_program_weight(s->part, &program->weights[w]);
    }
    for (int32_t i = 0; i < program->state_count; i++) {
        sl_program_state(s->part, &program->states[i]);
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        s->part->groups[g].kv_heads /= s->division->groups[g] ? s->ranks : 1;
    }
    s->logits = s->division->head == SL_NONE ? SL_NONE
                                             : sl_program_value(s->part, "logits.rank", SL_ROWS_OUTPUT,
                                                                program->vocabulary / s->ranks);
}

static int shard(sharding *s, sl_arena *scratch, sl_error *error) {
    const size_t weights = (size_t)s->program->weight_count + 1, cuts = most_cuts(s->program);
    s->whole = sl_arena_alloc(scratch, weights, sizeof *s->whole);
    s->taken = sl_arena_alloc(scratch, weights, sizeof *s->taken);
    s->cuts = sl_arena_alloc(scratch, cuts, sizeof *s->cuts);
    s->part->slices = sl_arena_alloc(&s->part->arena, cuts, sizeof *s->part->slices);
    if (!s->whole || !s->taken || !s->cuts || !s->part->slices) {
        return no_memory(error);
    }
    sl_program_copy_facts(s->program, s->part);
    s->part->hidden = s->program->hidden;
    s->part->logits = s->program->logits;
    s->part->tokens = s->program->tokens;
    copy_values(s);
    mark_whole(s);
    for (int32_t i = 0; i < s->program->op_count && !s->part->failed && !s->failed; i++) {
        add_op(s, i);
    }
    return s->part->failed || s->failed ? no_memory(error) : 0;
}

static const char drafts_reason[] = "a model's own head drafts on one device";

int sl_program_shard(const sl_program *program, int32_t rank, int32_t ranks, sl_program *part,
                     sl_error *error) {
    if (ranks < 2 || ranks > SL_MOST_RANKS || rank < 0 || rank >= ranks) {
        return sl_fail(error, SL_ERR_INVALID, "rank %d of %d: there must be 2 to %d ranks", rank, ranks,
                       SL_MOST_RANKS);
    }
    if (program->draft_ops > 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "no ranks: %s", drafts_reason);
    }
    if (program->partition || program->ranks > 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "no ranks: the program is a part of one already");
    }
    sl_division division = {0};
    sharding s = {.program = program, .division = &division, .part = part, .rank = rank, .ranks = ranks};
    part->rank = rank;
    part->ranks = ranks;
    const int code =
        sl_divide(program, ranks, &division) ? no_memory(error) : shard(&s, &division.arena, error);
    sl_division_free(&division);
    return code;
}

/* ---- copies ---- */

static void copy_slice(const sl_slice *slice, const sl_weight *weight) {
    const sl_weight *of = slice->of;
    uint64_t from_row, to_row, before;
    sl_qtype_bytes(of->type, (uint64_t)of->columns, &from_row);
    sl_qtype_bytes(of->type, (uint64_t)weight->columns, &to_row);
    sl_qtype_bytes(of->type, (uint64_t)slice->first_column, &before);
    unsigned char *to = slice->copy;
    for (int32_t e = 0; e < of->experts; e++) {
        const uint64_t row = (uint64_t)e * (uint64_t)of->rows + (uint64_t)slice->first_row;
        const unsigned char *from = (const unsigned char *)of->data + row * from_row + before;
        if (to_row == from_row) {
            memcpy(to, from, (size_t)(to_row * (uint64_t)weight->rows));
            to += to_row * (uint64_t)weight->rows;
            continue;
        }
        for (int32_t r = 0; r < weight->rows; r++, from += from_row, to += to_row) {
            memcpy(to, from, (size_t)to_row);
        }
    }
}

int sl_program_fill_slices(sl_program *part, sl_error *error) {
    for (int32_t i = 0; i < part->slice_count; i++) {
        sl_slice *slice = &part->slices[i];
        sl_weight *weight = &part->weights[slice->weight];
        if (slice->copy) {
            continue;
        }
        if (!slice->of->data) {
            return sl_fail(error, SL_ERR_INVALID, "weight %s has no data to copy", slice->of->name);
        }
        slice->copy = sl_alloc((size_t)weight->bytes);
        if (!slice->copy) {
            return sl_fail(error, SL_ERR_NOMEM, "weight %s: out of memory for a copy of %llu bytes",
                           weight->name, (unsigned long long)weight->bytes);
        }
        copy_slice(slice, weight);
        weight->data = slice->copy;
    }
    return 0;
}

/* ---- what is said of it ---- */

typedef enum part_kind { ATTENTION, FEED_FORWARD, STATE, PART_KINDS } part_kind;

/* Of a layer's blocks of one kind. */
typedef struct share {
    bool there, unevenly;
    const char *reason; /* NULL: all of them are divided */
} share;

static bool part_kind_of(const sl_division *d, const sl_op *op, part_kind *kind) {
    switch (op->kind) {
    case SL_OP_ATTENTION:
        *kind = ATTENTION;
        return true;
    case SL_OP_CONV:
    case SL_OP_DELTA_SCAN:
    case SL_OP_SSM_SCAN:
        *kind = STATE;
        return true;
    case SL_OP_ACTIVATE: {
        const sl_block *block = sl_block_of(d, op->out[0].value);
        *kind = FEED_FORWARD;
        return !block->attends && !block->recurs && !block->streams;
    }
    default:
        return false;
    }
}

static void add_text(const char *text, int32_t *count, sl_buffer *out) {
    sl_buffer_text(out, *count > 0 ? ", " : "");
    sl_buffer_text(out, text);
    ++*count;
}

static void say_layers(const share *shares, int32_t layers, const char *name, bool whole, int32_t *said,
                       sl_buffer *out) {
    int32_t all = 0, divided = 0, unevenly = 0;
    for (int32_t l = 0; l < layers; l++) {
        all += shares[l].there;
        divided += shares[l].there && !shares[l].reason;
        unevenly += shares[l].there && !shares[l].reason && shares[l].unevenly;
    }
    if (!whole && all > 0) {
        add_text("", said, out);
        sl_buffer_printf(out, "%d of %d layers' %s", divided, all, name);
    }
    if (!whole && unevenly > 0) {
        sl_buffer_printf(out, " (%d unevenly)", unevenly);
    }
    for (int32_t l = 0; whole && l < layers; l++) {
        int32_t same = 0;
        bool first = shares[l].reason != NULL;
        for (int32_t k = 0; k < layers; k++) {
            const bool equal = shares[l].reason && shares[k].reason == shares[l].reason;
            same += equal;
            first &= !equal || k >= l;
        }
        if (first) {
            add_text("", said, out);
            sl_buffer_printf(out, "%d layers' %s (%s)", same, name, shares[l].reason);
        }
    }
}

static void say_division(const sl_division *d, sl_arena *scratch, sl_buffer *out) {
    static const char *const names[PART_KINDS] = {"attention", "feed-forward", "state"};
    const int32_t layers = sl_program_layers(d->program) + 1;
    share *shares = sl_arena_alloc(scratch, (size_t)layers * PART_KINDS, sizeof *shares);
    if (!shares) {
        out->failed = true;
        return;
    }
    for (int32_t i = 0; i < d->program->op_count; i++) {
        const sl_op *op = &d->program->ops[i];
        part_kind kind;
        if (part_kind_of(d, op, &kind)) {
            share *found = &shares[(int32_t)kind * layers + op->layer + 1];
            const sl_block *block = sl_block_of(d, op->out[0].value);
            found->there = true;
            found->unevenly |= block->units % d->ranks != 0;
            found->reason = found->reason ? found->reason : block->reason;
        }
    }
    int32_t said = 0, whole = 0;
    sl_buffer list = {0};
    for (int k = 0; k < PART_KINDS; k++) {
        say_layers(shares + k * layers, layers, names[k], false, &said, out);
        say_layers(shares + k * layers, layers, names[k], true, &whole, &list);
    }
    if (d->head != SL_NONE) {
        sl_buffer_text(out, said > 0 ? " and the head" : "the head");
    } else if (d->head_reason) {
        add_text("", &whole, &list);
        sl_buffer_printf(&list, "the head (%s)", d->head_reason);
    }
    if (whole > 0) {
        sl_buffer_text(out, "; whole: ");
        sl_buffer_append(out, list.data, list.length);
    }
    out->failed = out->failed || list.failed;
    sl_buffer_free(&list);
}

void sl_program_describe_shards(const sl_program *program, int32_t ranks, sl_buffer *out) {
    sl_division division = {0};
    if (program->draft_ops > 0) {
        sl_buffer_printf(out, "nothing; whole: all of it (%s)", drafts_reason);
        return;
    }
    if (ranks < 2 || ranks > SL_MOST_RANKS) {
        sl_buffer_text(out, "nothing");
        return;
    }
    if (sl_divide(program, ranks, &division)) {
        out->failed = true;
    } else {
        say_division(&division, &division.arena, out);
    }
    sl_division_free(&division);
}
