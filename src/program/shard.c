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
    sl_range experts; /* some of a HEAD_LINEAR's, whose rows and columns are whole; else all of them */
    sl_ranges rows, columns;
    int32_t unit;  /* rows of which each rank's are multiples, and begin at multiples */
    int32_t index; /* in the part */
} cut;

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "out of memory for the program of a rank");
}

/* ---- weights ---- */

static int32_t count_of(sl_ranges ranges) {
    int32_t count = 0;
    for (int32_t i = 0; i < ranges.count; i++) {
        count += ranges.list[i].count;
    }
    return count;
}

static bool are_same(sl_ranges a, sl_ranges b) {
    return a.count == b.count && memcmp(a.list, b.list, (size_t)a.count * sizeof *a.list) == 0;
}

static bool is_all(sl_ranges ranges, int32_t of) {
    return ranges.count == 1 && ranges.list[0].count == of;
}

/* The same for all ranks that have as many rows, so that these choose the same kernels. */
static int32_t scale_rows_of(const sl_weight *of, const cut *c) {
    if (of->scale_rows <= 0 || is_all(c->rows, of->rows)) {
        return of->scale_rows;
    }
    if (of->scale_rows >= of->rows) {
        return count_of(c->rows);
    }
    int32_t same = sl_common_divisor(of->scale_rows, c->unit);
    for (int32_t i = 0; i < c->rows.count; i++) {
        /* Of the first rank's rows, but for multiples of them. */
        same = sl_common_divisor(same, c->rows.list[i].first % c->unit);
    }
    return same;
}

/* "[0:32]", "[:,0:32]" or "[0:32,64:96]"; "[0:2,:,:]" of heads. */
static const char *cut_name(sharding *s, const sl_weight *of, const cut *c) {
    const bool of_rows = is_all(c->columns, of->columns);
    const sl_ranges *ranges = of_rows ? &c->rows : &c->columns;
    sl_buffer text = {0};
    if (c->experts.count < of->experts) {
        return sl_arena_printf(&s->part->arena, "%s[%d:%d,:,:]", of->name, c->experts.first,
                               c->experts.first + c->experts.count);
    }
    sl_buffer_printf(&text, "%s[%s", of->name, of_rows || of->rows == 1 ? "" : ":,");
    for (int32_t i = 0; i < ranges->count; i++) {
        const sl_range *range = &ranges->list[i];
        sl_buffer_printf(&text, "%s%d:%d", i ? "," : "", range->first, range->first + range->count);
    }
    sl_buffer_text(&text, "]");
    const char *name = text.failed ? NULL : sl_arena_printf(&s->part->arena, "%s", text.data);
    sl_buffer_free(&text);
    return name;
}

/* The cut as a weight, whose data is NULL where it is not adjacent. */
static bool describe_cut(sharding *s, const sl_weight *of, const cut *c, sl_weight *weight) {
    const bool heads = c->experts.count < of->experts;
    const bool adjacent = (of->experts == 1 || heads) && c->rows.count == 1 && c->columns.count == 1 &&
                          (is_all(c->columns, of->columns) || of->rows == 1);
    const uint64_t first_row =
        (uint64_t)c->experts.first * (uint64_t)of->rows + (uint64_t)c->rows.list[0].first;
    uint64_t row, before, elements;
    *weight = *of;
    weight->name = cut_name(s, of, c);
    weight->experts = c->experts.count;
    weight->rows = count_of(c->rows);
    weight->columns = count_of(c->columns);
    weight->scale_rows = scale_rows_of(of, c);
    weight->data = NULL;
    if (!weight->name ||
        !sl_mul_u64((uint64_t)weight->experts * (uint64_t)weight->rows, (uint64_t)weight->columns,
                    &elements) ||
        !sl_qtype_bytes(of->type, elements, &weight->bytes) ||
        !sl_qtype_bytes(of->type, (uint64_t)of->columns, &row) ||
        !sl_qtype_bytes(of->type, (uint64_t)c->columns.list[0].first, &before) ||
        !sl_mul_u64(row, first_row, &row) || !sl_add_u64(before, row, &before)) {
        return false;
    }
    if (adjacent && of->data) {
        weight->data = (const unsigned char *)of->data + before;
    }
    if (!adjacent) {
        s->part->slices[s->part->slice_count++] = (sl_slice){SL_NONE, of, c->rows, c->columns, NULL};
    }
    return true;
}

/* Its index in the part: the whole's own where the part needs no more of that weight. */
static int32_t cut_weight(sharding *s, cut c) {
    const sl_weight *of = &s->program->weights[c.weight];
    for (int32_t i = 0; i < s->cut_count; i++) {
        const cut *same = &s->cuts[i];
        if (same->weight == c.weight && same->experts.first == c.experts.first &&
            same->experts.count == c.experts.count && are_same(same->rows, c.rows) &&
            are_same(same->columns, c.columns)) {
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

/* They stay as long as the part. */
static sl_range *add_ranges(sharding *s, int32_t count) {
    sl_range *list = s->failed ? NULL : sl_arena_alloc(&s->part->arena, (size_t)count, sizeof *list);
    s->failed |= !list;
    return list;
}

static sl_ranges one_range(sharding *s, int32_t first, int32_t count) {
    sl_range *list = add_ranges(s, 1);
    if (list) {
        list[0] = (sl_range){first, count};
    }
    return (sl_ranges){list, 1};
}

/* `unit`: see there. */
static int32_t cut_rows(sharding *s, int32_t weight, sl_ranges rows, int32_t unit) {
    const sl_weight *of = &s->program->weights[weight];
    const sl_ranges columns = one_range(s, 0, of->columns);
    return s->failed ? SL_NONE : cut_weight(s, (cut){weight, {0, of->experts}, rows, columns, unit, SL_NONE});
}

static int32_t cut_heads(sharding *s, int32_t weight, sl_range heads) {
    const sl_weight *of = &s->program->weights[weight];
    const sl_ranges rows = one_range(s, 0, of->rows), columns = one_range(s, 0, of->columns);
    return s->failed ? SL_NONE : cut_weight(s, (cut){weight, heads, rows, columns, of->rows, SL_NONE});
}

static int32_t cut_columns(sharding *s, int32_t weight, sl_ranges columns) {
    if (weight == SL_NONE) {
        return SL_NONE;
    }
    const sl_weight *of = &s->program->weights[weight];
    const sl_ranges rows = one_range(s, 0, of->rows);
    return s->failed ? SL_NONE
                     : cut_weight(s, (cut){weight, {0, of->experts}, rows, columns, of->rows, SL_NONE});
}

/* ---- ops ---- */

static bool reads(const sharding *s, const sl_op *op) {
    return op->kind == SL_OP_LINEAR && sl_divides(s->division, op->in[0].value);
}

static bool writes(const sharding *s, const sl_op *op) {
    return op->kind == SL_OP_LINEAR && sl_divides(s->division, op->out[0].value);
}

static bool is_recurrent(const sl_op *op) {
    return op->kind == SL_OP_CONV || op->kind == SL_OP_DELTA_SCAN || op->kind == SL_OP_SSM_SCAN;
}

static sl_operand written_by(const sl_op *op, int32_t segment) {
    return (sl_operand){op->out[0].value, op->out[0].column + op->u.linear.segments[segment].column};
}

static bool is_whole_segment(const sharding *s, const sl_op *op, int32_t segment) {
    const int32_t rows = s->program->weights[op->u.linear.segments[segment].weight].rows;
    return sl_is_whole(s->division, written_by(op, segment), rows);
}

static void mark_whole_segments(sharding *s, const sl_op *op) {
    for (int32_t k = 0; k < op->u.linear.segment_count; k++) {
        const sl_linear_segment *segment = &op->u.linear.segments[k];
        if (is_whole_segment(s, op, k)) {
            s->whole[segment->weight] = true;
            if (segment->bias != SL_NONE) {
                s->whole[segment->bias] = true;
            }
        }
    }
}

/* Weights that an op of the part has as they are in the whole. */
static void mark_whole(sharding *s) {
    for (int32_t i = 0; i < s->program->op_count; i++) {
        const sl_op *op = &s->program->ops[i];
        int32_t weights[SL_OP_WEIGHTS];
        const int32_t count = sl_op_weights(op, weights);
        const bool divided = sl_divides(s->division, op->in[0].value);
        const bool own = (op->kind == SL_OP_RMSNORM && op->u.rmsnorm.own_weights) ||
                         op->kind == SL_OP_ATTENTION || op->kind == SL_OP_HEAD_LINEAR || is_recurrent(op);
        if (writes(s, op)) {
            mark_whole_segments(s, op);
            continue;
        }
        if (i == s->division->head || (divided && own && !sl_is_whole_op(s->division, op))) {
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
        const sl_operand begin = {at->value, 0};
        at->column = sl_share_columns(s->division, share_of(s, at->value), begin, region.first) +
                     (at->column - region.first);
    }
}

static sl_range own_range(sl_share share, int32_t first, sl_region region) {
    return region.whole
               ? (sl_range){first, region.width}
               : (sl_range){first + sl_share_begin(share, region.width), sl_share_size(share, region.width)};
}

/* Of columns [column, + width) of a value, which are whole regions, a rank's, counted from the first of them
 * on. */
static sl_ranges ranges_of(sharding *s, sl_operand at, int32_t width) {
    const sl_share share = share_of(s, at.value);
    int32_t count = 0;
    for (int32_t column = 0; column < width; count++) {
        column += sl_region_at(s->division, at.value, at.column + column).width;
    }
    sl_range *list = add_ranges(s, count);
    for (int32_t i = 0, column = 0; list && i < count; i++) {
        const sl_region region = sl_region_at(s->division, at.value, at.column + column);
        list[i] = own_range(share, column, region);
        column += region.width;
    }
    return (sl_ranges){list, count};
}

/* Columns that each region has whole numbers of in each unit. */
static int32_t unit_of(const sharding *s, sl_operand at, int32_t width) {
    const int32_t units = share_of(s, at.value).of;
    int32_t unit = 0;
    for (int32_t column = 0; column < width;) {
        const sl_region region = sl_region_at(s->division, at.value, at.column + column);
        unit = sl_common_divisor(unit, region.width / (region.whole ? 1 : units));
        column += region.width;
    }
    return unit;
}

/* The rows of a matrix, and of its bias, that write a rank's share of columns [at.column, + width). */
static sl_linear_segment write_piece(sharding *s, const sl_linear_segment *segment, sl_operand at,
                                     int32_t width, sl_ranges rows) {
    const int32_t unit = unit_of(s, at, width);
    move_operand(s, &at);
    return (sl_linear_segment){cut_rows(s, segment->weight, rows, unit), cut_columns(s, segment->bias, rows),
                               at.column};
}

/* A piece for each region that the segment writes. */
static void write_regions(sharding *s, const sl_linear_segment *segment, sl_operand at,
                          sl_op_linear *linear) {
    const sl_share share = share_of(s, at.value);
    const int32_t rows = s->program->weights[segment->weight].rows;
    for (int32_t row = 0; row < rows && !s->failed;) {
        const sl_operand begin = {at.value, at.column + row};
        const sl_region region = sl_region_at(s->division, at.value, begin.column);
        const sl_range range = own_range(share, row, region);
        const sl_ranges own = one_range(s, range.first, range.count);
        linear->segments[linear->segment_count++] = write_piece(s, segment, begin, region.width, own);
        row += region.width;
    }
}

/* A rank's rows of what each segment writes: a segment for each region, or, where these would be too many,
 * one for all of the segment's, whose rows are copied together. */
static void write_rows(sharding *s, const sl_op *from, sl_op *op) {
    sl_op_linear *linear = &op->u.linear;
    int32_t first = INT32_MAX, pieces = 0;
    for (int32_t k = 0; k < from->u.linear.segment_count; k++) {
        const sl_linear_segment *segment = &from->u.linear.segments[k];
        const int32_t rows = s->program->weights[segment->weight].rows;
        pieces += is_whole_segment(s, from, k) ? 1 : ranges_of(s, written_by(from, k), rows).count;
    }
    linear->segment_count = 0;
    for (int32_t k = 0; k < from->u.linear.segment_count; k++) {
        const sl_linear_segment *segment = &from->u.linear.segments[k];
        sl_operand at = written_by(from, k);
        if (is_whole_segment(s, from, k)) {
            move_operand(s, &at);
            linear->segments[linear->segment_count++] =
                (sl_linear_segment){segment->weight, segment->bias, at.column};
        } else if (pieces <= SL_LINEAR_SEGMENTS) {
            write_regions(s, segment, at, linear);
        } else {
            const int32_t width = s->program->weights[segment->weight].rows;
            const sl_ranges rows = ranges_of(s, at, width);
            linear->segments[linear->segment_count++] = write_piece(s, segment, at, width, rows);
        }
    }
    for (int32_t k = 0; k < linear->segment_count; k++) {
        first = linear->segments[k].column < first ? linear->segments[k].column : first;
    }
    for (int32_t k = 0; k < linear->segment_count; k++) {
        linear->segments[k].column -= first;
    }
    op->out[0].column = first;
}

/* What is added once is the first rank's to add. */
static void read_columns(sharding *s, sl_op *op) {
    sl_linear_segment *segment = &op->u.linear.segments[0];
    const int32_t columns = s->program->weights[segment->weight].columns;
    segment->weight = cut_columns(s, segment->weight, ranges_of(s, op->in[0], columns));
    if (s->rank > 0) {
        segment->bias = SL_NONE;
        op->in[3] = (sl_operand){SL_NONE, 0};
    }
    move_operand(s, &op->in[0]);
}

static void divide_head(sharding *s, sl_op *op) {
    sl_linear_segment *segment = &op->u.linear.segments[0];
    const int32_t rows = s->program->vocabulary / s->ranks, first = s->rank * rows;
    const sl_ranges own = one_range(s, first, rows);
    segment->weight = cut_rows(s, segment->weight, own, rows);
    segment->bias = cut_columns(s, segment->bias, own);
    op->out[0].value = s->logits;
}

/* Of heads of which some may be whole. A stride that is none is that of a head alone. */
static int32_t own_heads(const sharding *s, sl_operand at, int32_t heads, int32_t stride) {
    const sl_share share = share_of(s, at.value);
    int32_t own = 0;
    for (int32_t h = 0; h < heads;) {
        const sl_region region = sl_region_at(s->division, at.value, at.column + h * stride);
        const int32_t here = stride > 0 && region.width >= stride ? region.width / stride : heads;
        own += region.whole ? here : sl_share_size(share, here);
        h += here;
    }
    return own;
}

static void divide_norm(sharding *s, sl_op *op) {
    sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const sl_share share = share_of(s, op->in[0].value);
    const int32_t groups = norm->groups;
    norm->groups = own_heads(s, op->in[0], groups, groups == 1 ? norm->width : norm->stride);
    if (!norm->own_weights) {
        return;
    }
    norm->weight = norm->stride == norm->width
                       ? cut_columns(s, norm->weight, ranges_of(s, op->in[0], groups * norm->width))
                       : cut_columns(s, norm->weight,
                                     one_range(s, sl_share_begin(share, groups) * norm->width,
                                               norm->groups * norm->width));
}

/* Weights go with channels and with heads, of which `a` and `dt` have a column each. */
static void divide_recurrent(sharding *s, sl_op *op) {
    const sl_share share = share_of(s, op->in[0].value);
    if (op->kind == SL_OP_CONV) {
        sl_op_conv *conv = &op->u.conv;
        const int32_t channels = s->program->states[conv->state].channels;
        const sl_ranges own = ranges_of(s, op->in[0], channels);
        conv->weight = cut_rows(s, conv->weight, own, 1);
        conv->bias = cut_columns(s, conv->bias, own);
    } else if (op->kind == SL_OP_DELTA_SCAN) {
        sl_op_delta_scan *scan = &op->u.delta_scan;
        const sl_ranges own = ranges_of(s, op->in[1], scan->value_heads);
        scan->a_log = cut_columns(s, scan->a_log, own);
        scan->dt_bias = cut_columns(s, scan->dt_bias, own);
        scan->key_heads = sl_share_size(share, scan->key_heads);
        scan->value_heads = sl_share_size(share, scan->value_heads);
    } else {
        sl_op_ssm_scan *scan = &op->u.ssm_scan;
        const sl_ranges own = ranges_of(s, op->in[1], scan->heads);
        scan->a_log = cut_columns(s, scan->a_log, own);
        scan->dt_bias = cut_columns(s, scan->dt_bias, own);
        scan->skip = cut_columns(s, scan->skip, own);
        scan->groups = sl_share_size(share, scan->groups);
        scan->heads = sl_share_size(share, scan->heads);
    }
}

static void divide_heads(sharding *s, sl_op *op) {
    const sl_share share = share_of(s, op->in[0].value);
    switch (op->kind) {
    case SL_OP_RMSNORM:
        divide_norm(s, op);
        break;
    case SL_OP_ROPE:
        op->u.rope.heads = own_heads(s, op->in[0], op->u.rope.heads, op->u.rope.stride);
        break;
    case SL_OP_ATTENTION: {
        sl_op_attention *attention = &op->u.attention;
        const int32_t first = sl_share_begin(share, attention->heads);
        attention->heads = sl_share_size(share, attention->heads);
        attention->sinks = cut_columns(s, attention->sinks, one_range(s, first, attention->heads));
        break;
    }
    case SL_OP_HEAD_LINEAR: {
        sl_op_head_linear *linear = &op->u.head_linear;
        const int32_t heads = s->program->weights[linear->weight].experts;
        linear->weight = cut_heads(s, linear->weight,
                                   (sl_range){sl_share_begin(share, heads), sl_share_size(share, heads)});
        break;
    }
    case SL_OP_CONV:
    case SL_OP_DELTA_SCAN:
    case SL_OP_SSM_SCAN:
        divide_recurrent(s, op);
        break;
    case SL_OP_ACTIVATE:
        op->u.activate.width = sl_share_size(share, op->u.activate.width);
        break;
    case SL_OP_SOFTCAP:
        op->u.softcap.width = sl_share_size(share, op->u.softcap.width);
        break;
    default: /* a CACHE_WRITE's are the group's */
        break;
    }
}

static void move_operands(const sharding *s, sl_op *op) {
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
        if (!sl_is_whole_op(s->division, from)) {
            divide_heads(s, &op);
        }
        move_operands(s, &op);
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
        int32_t weights[SL_OP_WEIGHTS];
        const bool linear = program->ops[i].kind == SL_OP_LINEAR; /* whose segments may become more */
        count += (size_t)(linear ? SL_OP_WEIGHTS : sl_op_weights(&program->ops[i], weights));
    }
    return count;
}

static void copy_values(sharding *s) {
    const sl_program *program = s->program;
    for (int32_t v = 0; v < program->value_count; v++) {
        sl_value value = program->values[v];
        if (sl_divides(s->division, v)) {
            const sl_operand all = {v, 0};
            value.width = sl_share_columns(s->division, share_of(s, v), all, value.width);
        }
        sl_program_typed_value(s->part, &value);
    }
    for (int32_t w = 0; w < program->weight_count; w++) {
        sl_program_weight(s->part, &program->weights[w]);
    }
    for (int32_t i = 0; i < program->state_count; i++) {
        sl_state_layer state = program->states[i];
        state.channels /= s->division->states ? s->ranks : 1;
        state.heads /= s->division->states ? s->ranks : 1;
        sl_program_state(s->part, &state);
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

static uint64_t bytes_of(const sl_weight *of, int32_t columns) {
    uint64_t bytes = 0;
    sl_qtype_bytes(of->type, (uint64_t)columns, &bytes);
    return bytes;
}

/* One row's columns. Returns the end. */
static unsigned char *copy_columns(const sl_slice *slice, const unsigned char *row, unsigned char *to) {
    for (int32_t i = 0; i < slice->columns.count; i++) {
        const sl_range *range = &slice->columns.list[i];
        const uint64_t bytes = bytes_of(slice->of, range->count);
        memcpy(to, row + bytes_of(slice->of, range->first), (size_t)bytes);
        to += bytes;
    }
    return to;
}

static void copy_slice(const sl_slice *slice) {
    const sl_weight *of = slice->of;
    const uint64_t row_bytes = bytes_of(of, of->columns);
    const bool whole_rows = is_all(slice->columns, of->columns);
    unsigned char *to = slice->copy;
    for (int32_t e = 0; e < of->experts; e++) {
        for (int32_t i = 0; i < slice->rows.count; i++) {
            const sl_range *range = &slice->rows.list[i];
            const uint64_t row = (uint64_t)e * (uint64_t)of->rows + (uint64_t)range->first;
            const unsigned char *from = (const unsigned char *)of->data + row * row_bytes;
            if (whole_rows) {
                memcpy(to, from, (size_t)(row_bytes * (uint64_t)range->count));
                to += row_bytes * (uint64_t)range->count;
            }
            for (int32_t r = 0; r < range->count && !whole_rows; r++, from += row_bytes) {
                to = copy_columns(slice, from, to);
            }
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
        copy_slice(slice);
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
