/* Runs of ops that one kernel does: found in the lowered list, one bucket at a time. */
#include "plan/build.h"

#include "base/alloc.h"

static bool overlaps(const sl_operand *operand, int64_t width, const sl_operand *columns, int64_t count) {
    return operand->value == columns->value && operand->column < columns->column + count &&
           columns->column < operand->column + width;
}

static bool covers(int64_t first, int64_t width, const sl_operand *columns, int64_t count) {
    return first <= columns->column && columns->column + count <= first + width;
}

static bool overwrites(const sl_program *program, const sl_op *op, const sl_operand *columns, int64_t count) {
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        if (op->out[o].value != columns->value) {
            continue;
        }
        if (op->kind != SL_OP_LINEAR) {
            /* With gaps between its groups an op does not write all that its width spans. */
            const bool gaps = op->kind == SL_OP_RMSNORM && op->u.rmsnorm.stride != op->u.rmsnorm.width;
            if (!gaps && covers(op->out[o].column, sl_operand_width(program, op, true, o), columns, count)) {
                return true;
            }
            continue;
        }
        for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
            const sl_linear_segment *segment = &op->u.linear.segments[s];
            if (covers((int64_t)op->out[o].column + segment->column, program->weights[segment->weight].rows,
                       columns, count)) {
                return true;
            }
        }
    }
    return false;
}

/* Does an op from `from` on, or the caller of the step, read some of those columns? When in doubt, yes. */
static bool read_later(const sl_deployment *deployment, const sl_lowered *lowered, int32_t from,
                       const sl_operand *columns, int64_t count) {
    const sl_program *program = deployment->program;
    int32_t section = 0;
    for (int32_t i = 0; i < from; i++) {
        section = sl_op_section(&lowered->ops[i], section);
    }
    for (int32_t i = from; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        if (sl_begins_section(lowered, i) && sl_is_kept(program, columns->value, section)) {
            return true;
        }
        section = sl_op_section(op, section);
        for (int in = 0; in < SL_OP_INPUTS; in++) {
            if (op->in[in].value != SL_NONE &&
                overlaps(&op->in[in], sl_operand_width(program, op, false, in), columns, count)) {
                return true;
            }
        }
        if (overwrites(program, op, columns, count)) {
            return false;
        }
    }
    return columns->value == deployment->result || columns->value == deployment->tokens ||
           sl_is_kept(program, columns->value, section);
}

static bool same_kinds(const sl_lowered *lowered, int32_t first, const sl_fusion *fusion) {
    if (fusion->count > lowered->op_count - first) {
        return false;
    }
    for (int32_t i = 0; i < fusion->count; i++) {
        if (lowered->ops[first + i].kind != fusion->ops[i]) {
            return false;
        }
    }
    return true;
}

static void find_unread(const sl_deployment *deployment, sl_lowered *lowered, int32_t first, int32_t count) {
    for (int32_t i = first; i < first + count; i++) {
        const sl_op *op = &lowered->ops[i];
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            lowered->unread[i][o] = op->out[o].value != SL_NONE &&
                                    !read_later(deployment, lowered, first + count, &op->out[o],
                                                sl_operand_width(deployment->program, op, true, o));
        }
    }
}

static const char *reason_against(const sl_plan *plan, const sl_fusion *fusion,
                                  const sl_fusion_query *query) {
    const sl_backend *backend = plan->backend;
    if (backend->options.no_fusion) {
        return "fusion is switched off";
    }
    if (fusion->numeric_class && (backend->options.deterministic || !backend->fixed_buckets)) {
        return "its bits depend on how steps are cut";
    }
    return fusion->declines ? fusion->declines(fusion, query) : NULL;
}

/* Takes a fusion for the ops from `first` on, if one does not decline. */
static int fuse_at(sl_plan *plan, int32_t bucket, int32_t first, sl_error *error) {
    sl_lowered *lowered = &plan->deployment.buckets[bucket];
    int32_t count = 0;
    const sl_fusion *const *fusions = plan->backend->functions->fusions(plan->backend, &count);
    for (int32_t f = 0; f < count; f++) {
        if (!same_kinds(lowered, first, fusions[f])) {
            continue;
        }
        find_unread(&plan->deployment, lowered, first, fusions[f]->count);
        const sl_fusion_query query = sl_plan_fusion_query(plan, lowered, first);
        const char *reason = reason_against(plan, fusions[f], &query);
        if (!reason) {
            lowered->fusions[first] = fusions[f];
            return 0;
        }
        for (int32_t i = first; i < first + fusions[f]->count; i++) {
            for (int o = 0; o < SL_OP_OUTPUTS; o++) {
                lowered->unread[i][o] = false;
            }
        }
        const sl_declined declined = {bucket, first, fusions[f]->name, reason};
        const int code = sl_note_declined(plan, &declined, error);
        if (code) {
            return code;
        }
    }
    return 0;
}

/* Counting sort by op; reasons of one op stay in order. They are the last in the list. */
static int sort_declined(sl_plan *plan, int32_t bucket, sl_error *error) {
    int32_t first = plan->declined_count;
    while (first > 0 && plan->declined[first - 1].bucket == bucket) {
        first--;
    }
    const int32_t count = plan->declined_count - first;
    const int32_t ops = plan->deployment.buckets[bucket].op_count;
    sl_declined *copy = sl_alloc_zero((size_t)count + 1, sizeof *copy);
    int32_t *next = sl_alloc_zero((size_t)ops + 1, sizeof *next); /* where the next reason of an op goes */
    int code = SL_OK;
    if (copy && next) {
        for (int32_t i = 0; i < count; i++) {
            copy[i] = plan->declined[first + i];
            next[copy[i].op + 1]++;
        }
        for (int32_t op = 0; op < ops; op++) {
            next[op + 1] += next[op];
        }
        for (int32_t i = 0; i < count; i++) {
            plan->declined[first + next[copy[i].op]++] = copy[i];
        }
    } else {
        code = sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    sl_free(copy);
    sl_free(next);
    return code;
}

int sl_fuse(sl_plan *plan, int32_t bucket, sl_error *error) {
    sl_lowered *lowered = &plan->deployment.buckets[bucket];
    const size_t ops = (size_t)lowered->op_count;
    lowered->fusions = sl_arena_alloc(&plan->arena, ops, sizeof *lowered->fusions);
    lowered->unread = sl_arena_alloc(&plan->arena, ops, sizeof *lowered->unread);
    if (!lowered->fusions || !lowered->unread) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    for (int32_t op = 0; plan->backend->functions->fusions && op < lowered->op_count;
         op += sl_run_length(lowered, op)) {
        const int code = fuse_at(plan, bucket, op, error);
        if (code) {
            return code;
        }
    }
    return sort_declined(plan, bucket, error);
}
