/* The tail of a program: ops behind the last one that leaves something in a cache or a state. Of what they
 * compute only rows with outputs are read by anybody, so that the rows go before the tail instead of in
 * front of the head: a GATHER for each value that lives on, and the ops behind it on values of their own. */
#include "plan/build.h"
#include "plan/split.h"

#include <string.h>

typedef struct finding {
    const sl_program *program;
    int32_t first, end; /* the tail, in the program's ops */
    /* Per value: columns that the tail reads of what the ops in front left there, and those that it has
     * written; and the value of the tail that stands for it, or SL_NONE. */
    struct columns {
        int64_t read_from, read_end, written_from, written_end;
        int32_t value;
        /* Of what the program's own GATHERs make: what they copy, and how far its columns are moved. */
        int32_t copied, moved;
        bool came_before; /* an op in front writes it */
    } * columns;
} finding;

static bool leaves(const sl_op *op) {
    return op->kind == SL_OP_CACHE_WRITE || op->kind == SL_OP_CONV || op->kind == SL_OP_DELTA_SCAN ||
           op->kind == SL_OP_SSM_SCAN;
}

static bool is_result(const sl_program *program, int32_t value) {
    return value == program->hidden || value == program->logits || value == program->tokens;
}

/* ---- where it begins ---- */

/* Do the program's own GATHERs, behind op `from`, make nothing but copies that the values themselves can
 * stand for? */
static bool note_copies(finding *f) {
    const sl_program *program = f->program;
    for (int32_t i = f->first; i < f->end; i++) {
        const sl_op *op = &program->ops[i];
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            const int32_t out = op->out[o].value;
            for (int32_t v = 0; out != SL_NONE && v < program->value_count; v++) {
                if (f->columns[v].copied == out || (v == out && f->columns[v].copied != SL_NONE)) {
                    return false; /* the value or its copy is written once more */
                }
            }
        }
        if (op->kind == SL_OP_GATHER) {
            if (is_result(program, op->out[0].value)) {
                return false;
            }
            f->columns[op->out[0].value].copied = op->in[0].value;
            f->columns[op->out[0].value].moved = op->in[0].column - op->out[0].column;
        }
    }
    return true;
}

/* Columns that join those written already; others are not noted, so that more may seem to live on than does.
 */
static void note_write(struct columns *columns, int64_t from, int64_t end) {
    if (columns->written_from == columns->written_end) {
        columns->written_from = from;
        columns->written_end = end;
    } else if (from <= columns->written_end && end >= columns->written_from) {
        columns->written_from = from < columns->written_from ? from : columns->written_from;
        columns->written_end = end > columns->written_end ? end : columns->written_end;
    }
}

static void note_writes(finding *f, const sl_op *op) {
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        const sl_operand out = op->out[o];
        const bool gaps = op->kind == SL_OP_RMSNORM && op->u.rmsnorm.stride != op->u.rmsnorm.width;
        if (out.value == SL_NONE || gaps) {
            continue;
        }
        struct columns *columns = &f->columns[out.value];
        if (op->kind != SL_OP_LINEAR) {
            note_write(columns, out.column, out.column + sl_operand_width(f->program, op, true, o));
            continue;
        }
        for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
            const sl_linear_segment *segment = &op->u.linear.segments[s];
            const int64_t from = (int64_t)out.column + segment->column;
            note_write(columns, from, from + f->program->weights[segment->weight].rows);
        }
    }
}

static void note_reads(finding *f, const sl_op *op) {
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        const sl_operand in = op->in[i];
        if (in.value == SL_NONE || !f->columns[in.value].came_before) {
            continue;
        }
        struct columns *columns = &f->columns[in.value];
        const int64_t from = in.column, end = from + sl_operand_width(f->program, op, false, i);
        if (from >= columns->written_from && end <= columns->written_end) {
            continue;
        }
        const bool none = columns->read_from == columns->read_end;
        columns->read_from = none || from < columns->read_from ? from : columns->read_from;
        columns->read_end = none || end > columns->read_end ? end : columns->read_end;
    }
}

/* What lives on where the tail begins at f->first. */
static void find_living(finding *f) {
    for (int32_t v = 0; v < f->program->value_count; v++) {
        f->columns[v] = (struct columns){.value = SL_NONE, .copied = SL_NONE};
    }
    for (int32_t i = 0; i < f->first; i++) {
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            if (f->program->ops[i].out[o].value != SL_NONE) {
                f->columns[f->program->ops[i].out[o].value].came_before = true;
            }
        }
    }
    for (int32_t i = f->first; i < f->end; i++) {
        note_reads(f, &f->program->ops[i]);
        note_writes(f, &f->program->ops[i]);
    }
}

/* Does a GATHER take all that lives on? */
static bool can_begin(const finding *f) {
    for (int32_t v = 0; v < f->program->value_count; v++) {
        const sl_value *value = &f->program->values[v];
        if (f->columns[v].read_end > f->columns[v].read_from &&
            (value->type != SL_VALUE_F32 || value->rows != SL_ROWS_STEP)) {
            return false;
        }
    }
    return true;
}

/* Finds the earliest op behind the last that leaves something. false: there is nothing but GATHERs between it
 * and the head, or the program is not of that kind. */
static bool find_first(finding *f) {
    const sl_program *program = f->program;
    f->end = program->op_count - program->draft_ops;
    for (int32_t i = 0; i < f->end; i++) {
        f->first = leaves(&program->ops[i]) ? i + 1 : f->first;
    }
    for (; f->first > 0 && f->first < f->end && program->ops[f->first].kind != SL_OP_GATHER; f->first++) {
        find_living(f);
        if (can_begin(f)) {
            return note_copies(f);
        }
    }
    return false;
}

/* ---- its ops ---- */

static int out_of_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
}

/* The value of the tail for one of the program's. Outputs have rows with outputs alone as they are. */
static int value_of(sl_plan *plan, finding *f, int32_t value, int32_t *stand_in, sl_error *error) {
    sl_program *program = &plan->tail.with_values;
    int32_t *found = &f->columns[value].value;
    if (f->program->values[value].rows == SL_ROWS_OUTPUT) {
        *stand_in = value;
        return 0;
    }
    if (*found == SL_NONE) {
        sl_value *made = &program->values[program->value_count];
        *made = f->program->values[value];
        made->tail = true;
        made->name = sl_arena_printf(&plan->arena, "%s.tail", made->name);
        if (!made->name) {
            return out_of_memory(error);
        }
        *found = program->value_count++;
    }
    *stand_in = *found;
    return 0;
}

static int move_operand(sl_plan *plan, finding *f, sl_operand *operand, sl_error *error) {
    if (operand->value == SL_NONE) {
        return 0;
    }
    const struct columns *columns = &f->columns[operand->value];
    if (columns->copied != SL_NONE) {
        operand->column += columns->moved;
        operand->value = columns->copied;
    }
    return value_of(plan, f, operand->value, &operand->value, error);
}

static int add_gathers(sl_plan *plan, finding *f, sl_error *error) {
    struct sl_plan_tail *tail = &plan->tail;
    int32_t gather = f->first;
    while (f->program->ops[gather].kind != SL_OP_GATHER) {
        gather++;
    }
    for (int32_t v = 0; v < f->program->value_count; v++) {
        const struct columns *columns = &f->columns[v];
        if (columns->read_end == columns->read_from) {
            continue;
        }
        const int32_t column = (int32_t)columns->read_from;
        sl_op op = f->program->ops[gather];
        op.layer = f->program->ops[f->first - 1].layer;
        op.in[0] = op.out[0] = (sl_operand){v, column};
        op.u.gather.width = (int32_t)(columns->read_end - columns->read_from);
        const int code = value_of(plan, f, v, &op.out[0].value, error);
        if (code) {
            return code;
        }
        tail->origins[tail->op_count] = gather;
        tail->ops[tail->op_count++] = op;
    }
    return 0;
}

static int add_ops(sl_plan *plan, finding *f, sl_error *error) {
    struct sl_plan_tail *tail = &plan->tail;
    int code = 0;
    for (int32_t i = 0; i < f->end && code == 0; i++) {
        sl_op op = f->program->ops[i];
        if (i == f->first) {
            code = add_gathers(plan, f, error);
        }
        if (i >= f->first && op.kind == SL_OP_GATHER) {
            continue;
        }
        for (int in = 0; in < SL_OP_INPUTS && i >= f->first && code == 0; in++) {
            code = move_operand(plan, f, &op.in[in], error);
        }
        for (int out = 0; out < SL_OP_OUTPUTS && i >= f->first && code == 0; out++) {
            code = move_operand(plan, f, &op.out[out], error);
        }
        tail->origins[tail->op_count] = i;
        tail->ops[tail->op_count++] = op;
    }
    return code;
}

static int make(sl_plan *plan, finding *f, sl_error *error) {
    struct sl_plan_tail *tail = &plan->tail;
    const size_t values = (size_t)f->program->value_count, ops = (size_t)f->end + values;
    tail->ops = sl_arena_alloc(&plan->arena, ops, sizeof *tail->ops);
    tail->origins = sl_arena_alloc(&plan->arena, ops, sizeof *tail->origins);
    tail->with_values = *f->program; /* its arena is the program's, who frees it */
    tail->with_values.values = sl_arena_alloc(&plan->arena, 2 * values, sizeof *tail->with_values.values);
    if (!tail->ops || !tail->origins || !tail->with_values.values) {
        return out_of_memory(error);
    }
    memcpy(tail->with_values.values, f->program->values, values * sizeof *tail->with_values.values);
    tail->with_values.has_tail = true;
    plan->deployment.program = &tail->with_values;
    const int code = add_ops(plan, f, error);
    return code ? code
                : sl_ops_check(&tail->with_values, tail->with_values.values, tail->with_values.value_count,
                               tail->ops, tail->op_count, error);
}

int sl_plan_find_tail(sl_plan *plan, sl_error *error) {
    const bool split =
        sl_split_count(plan->backend) > 0 && sl_split_kind_of(plan->backend) == SL_SPLIT_LAYERS;
    finding f = {.program = plan->deployment.program};
    sl_arena scratch = {0};
    /* A part has the tail of the whole, and ranks find their own. What observes counts all rows. Rows that
     * choose what is kept of a prompt have queries in all layers: one bucket of a single device does without
     * a tail. */
    if (f.program->partition || plan->options.observe || (split && plan->options.kv_budget > 0)) {
        return 0;
    }
    f.columns = sl_arena_alloc(&scratch, (size_t)f.program->value_count, sizeof *f.columns);
    int code = f.columns ? 0 : out_of_memory(error);
    if (code == 0 && find_first(&f)) {
        code = make(plan, &f, error);
    }
    sl_arena_free(&scratch);
    if (code == 0 && split && plan->tail.op_count > 0) {
        plan->tail.with_values.ops = plan->tail.ops;
        plan->tail.with_values.op_count = plan->tail.op_count;
    }
    return code;
}

bool sl_has_tail(const sl_plan *plan, int32_t bucket) {
    const sl_lowered *lowered = &plan->deployment.buckets[bucket];
    /* A bucket of its own for steps in which each row has an output does without. */
    return plan->tail.op_count > 0 && !lowered->compacts &&
           (lowered->rows[SL_ROWS_STEP] > lowered->rows[SL_ROWS_OUTPUT] || !plan->backend->fixed_buckets);
}
