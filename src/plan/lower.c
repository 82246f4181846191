/* Lowering: a program's ops with a kernel each, for one bucket. A LINEAR is split by weight type, and a
 * QUANTIZE makes a copy of an input that a linear reads in another format. */
#include "plan/build.h"

#include <stdio.h>
#include <string.h>

/* A quantised copy that still equals its source. */
typedef struct copy {
    sl_operand source;
    int64_t width;
    int32_t value;
} copy;

typedef struct lowering {
    sl_plan *plan;
    sl_lowered *lowered;
    int32_t bucket;
    int32_t first_declined; /* of this bucket */
    const sl_program *program;
    sl_classes *classes;
    bool record;
    copy *copies;
    int32_t copy_count;
    int32_t fetched; /* the set that the last FETCH brought, or SL_NONE */
    sl_operand slots, slot_schedule;
    sl_error *error;
} lowering;

static int out_of_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
}

/* ---- kernels ---- */

int sl_note_declined(sl_plan *plan, const sl_declined *declined, sl_error *error) {
    if (plan->declined_count == plan->declined_capacity) {
        if (plan->declined_capacity > INT32_MAX / 2) {
            return out_of_memory(error);
        }
        const int32_t larger = plan->declined_capacity ? plan->declined_capacity * 2 : 64;
        sl_declined *grown = sl_arena_alloc(&plan->arena, (size_t)larger, sizeof *grown);
        if (!grown) {
            return out_of_memory(error);
        }
        if (plan->declined_count > 0) {
            memcpy(grown, plan->declined, (size_t)plan->declined_count * sizeof *grown);
        }
        plan->declined = grown;
        plan->declined_capacity = larger;
    }
    plan->declined[plan->declined_count++] = *declined;
    return 0;
}

bool sl_name_is_listed(const char *name, const char *list) {
    while (list && *list != '\0') {
        const size_t length = strcspn(list, ",");
        if (length > 0 && strncmp(name, list, length) == 0) {
            return true;
        }
        list += length + (list[length] == ',');
    }
    return false;
}

static bool same_class(const sl_kernel *kernel, const char *numeric_class) {
    return kernel->numeric_class && strcmp(kernel->numeric_class, numeric_class) == 0;
}

static const char *reason_against(const lowering *l, const sl_kernel *kernel, const sl_kernel_query *query,
                                  const char *required) {
    if (query->op->kind == SL_OP_LINEAR) {
        const sl_value_type x = query->values[query->op->in[0].value].type;
        if (x != SL_VALUE_F32 && x != kernel->activation) {
            return "x is in another format already";
        }
    }
    if (required && !same_class(kernel, required)) {
        return l->classes->reason;
    }
    if (kernel->on_request && !sl_name_is_listed(kernel->name, l->plan->options.prefer)) {
        return "is taken only when asked for";
    }
    if (kernel->copies && !l->plan->has_copies && !sl_name_is_listed(kernel->name, l->plan->options.prefer)) {
        return l->plan->options.copies == SL_COPIES_NEVER
                   ? "second copies of weights are switched off"
                   : "second copies of weights would not leave half of the memory free";
    }
    if (kernel->deterministic && !l->plan->backend->options.deterministic &&
        !sl_name_is_listed(kernel->name, l->plan->options.prefer)) {
        return "is for deterministic plans";
    }
    if (kernel->pack && !kernel->takes_unpacked && sl_plan_maps_all(l->plan)) {
        return "packs its weights, and repacking is switched off";
    }
    if (kernel->precisions && !(kernel->precisions >> l->plan->backend->options.prompt_precision & 1u) &&
        !sl_name_is_listed(kernel->name, l->plan->options.prefer)) {
        return "is for another prompt precision";
    }
    if (kernel->cut_dependent && l->plan->backend->options.deterministic) {
        return "its bits depend on how steps are cut";
    }
    const char *reason = kernel->declines ? kernel->declines(kernel, query) : NULL;
    if (!reason && query->op->kind == SL_OP_LINEAR && kernel->activation == SL_VALUE_Q8_32 &&
        (sl_operand_width(l->program, query->op, false, 0) % 32 != 0 || query->op->in[0].column % 32 != 0)) {
        reason = "x is no whole number of groups of 32";
    }
    return reason;
}

/* Is there a kernel of this one's class for the op whatever the number of rows? Not only for this plan's
 * buckets: the class must not depend on how large a step may be. */
static bool class_everywhere(const lowering *l, const sl_kernel *kernel, sl_kernel_query query) {
    enum { MOST_DOUBLINGS = 14 };
    int32_t count = 0;
    const sl_kernel *const *kernels = l->plan->backend->functions->kernels(l->plan->backend, &count);
    if (!l->plan->backend->fixed_buckets) {
        return true; /* its kernels take any */
    }
    for (int32_t doublings = 0; doublings <= MOST_DOUBLINGS; doublings++) {
        const int32_t rows[SL_ROWS_COUNT] = {[SL_ROWS_STEP] = 1 << doublings,
                                             [SL_ROWS_EXPERT] = l->program->experts_used << doublings,
                                             [SL_ROWS_OUTPUT] = 1 << doublings};
        query.rows = rows;
        query.span_rows = rows[SL_ROWS_STEP];
        bool found = false;
        for (int32_t k = 0; k < count && !found; k++) {
            found = kernels[k]->op == query.op->kind && kernel->numeric_class &&
                    !reason_against(l, kernels[k], &query, kernel->numeric_class);
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

static int refuse(lowering *l, const sl_op *op, int32_t first_declined) {
    char text[400];
    size_t used = 0;
    const int32_t end = l->plan->declined_count;
    text[0] = '\0';
    for (int32_t i = first_declined; i < end && used < sizeof text - 1; i++) {
        const sl_declined *declined = &l->plan->declined[i];
        const int written = snprintf(text + used, sizeof text - used, "%s%s: %s",
                                     i > first_declined ? "; " : "", declined->name, declined->reason);
        used += written > 0 ? (size_t)written : 0;
    }
    char place[160];
    if (op->kind == SL_OP_LINEAR || op->kind == SL_OP_EMBED) {
        const sl_weight *weight =
            &l->program
                 ->weights[op->kind == SL_OP_EMBED ? op->u.embed.weight : op->u.linear.segments[0].weight];
        snprintf(place, sizeof place, "%s, layer %d, weight %s of type %s", sl_op_name(op->kind), op->layer,
                 weight->name, sl_qtype_get(weight->type)->name);
    } else if (op->kind == SL_OP_CACHE_WRITE || op->kind == SL_OP_RECALL || op->kind == SL_OP_ATTENTION ||
               op->kind == SL_OP_COMPACT) {
        snprintf(place, sizeof place, "%s, layer %d, cache of type %s", sl_op_name(op->kind), op->layer,
                 sl_qtype_get(l->plan->options.cache_type)->name);
    } else {
        snprintf(place, sizeof place, "%s, layer %d", sl_op_name(op->kind), op->layer);
    }
    return sl_fail(l->error, SL_ERR_UNSUPPORTED, "%s: no kernel of backend %s takes it: %s", place,
                   l->plan->backend->name, used ? text : "it has none of this kind");
}

/* The class that the op would have with all rows of the step: which rows have outputs does not decide it. */
static const char *class_of_all(const lowering *l, const sl_op *op) {
    sl_kernel_query query = sl_plan_query(l->plan, l->lowered, op);
    int32_t count = 0;
    const sl_kernel *const *kernels = l->plan->backend->functions->kernels(l->plan->backend, &count);
    query.rows = l->lowered->rows;
    query.span_rows = l->lowered->span_rows;
    for (int32_t i = 0; i < 2 * count; i++) {
        const sl_kernel *kernel = kernels[i % count];
        if (kernel->op == op->kind &&
            sl_name_is_listed(kernel->name, l->plan->options.prefer) == (i < count) &&
            !reason_against(l, kernel, &query, NULL) && class_everywhere(l, kernel, query)) {
            return kernel->numeric_class;
        }
    }
    return NULL;
}

/* The kernel of an op that will be at index `at` of the lowered list. *numeric_class: the class to require or
 * record. */
static int choose(lowering *l, const sl_op *op, int32_t at, const char **numeric_class,
                  const sl_kernel **chosen) {
    const sl_kernel_query query = sl_plan_query(l->plan, l->lowered, op);
    const bool tail = l->record && l->classes->reason && sl_op_is_tail(l->lowered->values, op);
    const char *required = tail                               ? class_of_all(l, op)
                           : l->record || !l->classes->reason ? NULL
                                                              : *numeric_class;
    const int32_t first_declined = l->plan->declined_count;
    int32_t count = 0;
    const sl_kernel *const *kernels = l->plan->backend->functions->kernels(l->plan->backend, &count);
    /* First those that were asked for, then all others. */
    for (int32_t i = 0; i < 2 * count; i++) {
        const sl_kernel *kernel = kernels[i % count];
        if (kernel->op != op->kind ||
            sl_name_is_listed(kernel->name, l->plan->options.prefer) != (i < count)) {
            continue;
        }
        const char *reason = reason_against(l, kernel, &query, required);
        if (!reason && l->record && l->classes->reason && !class_everywhere(l, kernel, query)) {
            reason = "no kernels of its numeric class take every number of rows";
        }
        if (!reason) {
            *chosen = kernel;
            if (l->record) {
                *numeric_class = kernel->numeric_class;
            }
            return 0;
        }
        const sl_declined declined = {l->bucket, at, kernel->name, reason};
        const int code = sl_note_declined(l->plan, &declined, l->error);
        if (code) {
            return code;
        }
    }
    return refuse(l, op, first_declined);
}

/* ---- the list ---- */

/* Puts the op at `at`; those behind it move up, and so does what was noted about them. */
static void insert(lowering *l, int32_t at, const sl_op *op, const sl_kernel *kernel) {
    sl_lowered *lowered = l->lowered;
    const size_t behind = (size_t)(lowered->op_count - at);
    memmove(&lowered->ops[at + 1], &lowered->ops[at], behind * sizeof *lowered->ops);
    memmove(&lowered->kernels[at + 1], &lowered->kernels[at], behind * sizeof *lowered->kernels);
    lowered->ops[at] = *op;
    lowered->kernels[at] = kernel;
    lowered->op_count++;
}

static bool overlap(const sl_operand *a, int64_t a_width, const sl_operand *b, int64_t b_width) {
    return a->value == b->value && a->column < b->column + b_width && b->column < a->column + a_width;
}

static bool writes(const lowering *l, const sl_op *op, const sl_operand *x, int64_t width) {
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        if (op->out[o].value != SL_NONE &&
            overlap(&op->out[o], sl_operand_width(l->program, op, true, o), x, width)) {
            return true;
        }
    }
    return false;
}

static void append(lowering *l, const sl_op *op, const sl_kernel *kernel) {
    insert(l, l->lowered->op_count, op, kernel);
    /* Copies of what it overwrites are stale. */
    for (int32_t i = 0; i < l->copy_count; i++) {
        if (writes(l, op, &l->copies[i].source, l->copies[i].width)) {
            l->copies[i--] = l->copies[--l->copy_count];
        }
    }
}

/* Makes *x an operand of that format. Where there is no copy yet, a QUANTIZE goes right behind the op that
 * wrote the source, so that one kernel can do both. */
static int convert(lowering *l, const sl_op *linear, sl_value_type format, const char **numeric_class,
                   sl_operand *x) {
    sl_lowered *lowered = l->lowered;
    const int64_t width = sl_operand_width(l->program, linear, false, 0);
    for (int32_t i = 0; i < l->copy_count; i++) {
        const copy *c = &l->copies[i];
        if (c->source.value == x->value && c->source.column == x->column && c->width == width &&
            lowered->values[c->value].type == format) {
            *x = (sl_operand){c->value, 0};
            return 0;
        }
    }
    const sl_value *source = &lowered->values[x->value];
    const char *name = sl_arena_printf(&l->plan->arena, "%s.%s", source->name, sl_value_type_name(format));
    if (!name) {
        return out_of_memory(l->error);
    }
    const int32_t value = lowered->value_count++;
    lowered->values[value] =
        (sl_value){.name = name,
                   .type = format,
                   .rows = source->rows,
                   .tail = source->tail,
                   .width = sl_stored_width(l->plan->backend->column_multiple, (int32_t)width)};
    sl_op op = {.kind = SL_OP_QUANTIZE, .layer = linear->layer, .u.quantize.width = (int32_t)width};
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        op.in[i].value = SL_NONE;
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        op.out[i].value = SL_NONE;
    }
    op.in[0] = *x;
    op.out[0] = (sl_operand){value, 0};
    int32_t at = lowered->op_count;
    while (at > 0 && !writes(l, &lowered->ops[at - 1], x, width)) {
        at--;
    }
    const int32_t noted = l->plan->declined_count;
    const sl_kernel *kernel;
    const int code = choose(l, &op, at, numeric_class, &kernel);
    if (code) {
        return code;
    }
    for (int32_t i = l->first_declined; i < noted; i++) {
        l->plan->declined[i].op += l->plan->declined[i].op >= at;
    }
    insert(l, at, &op, kernel);
    l->copies[l->copy_count++] = (copy){*x, width, value};
    *x = op.out[0];
    return 0;
}

static int lower_part(lowering *l, const sl_op *op, int32_t slot) {
    const sl_kernel *kernel;
    sl_op lowered = *op;
    int code = choose(l, op, l->lowered->op_count, &l->classes->op[slot], &kernel);
    if (code) {
        return code;
    }
    if (op->kind == SL_OP_LINEAR && kernel->activation != SL_VALUE_F32 &&
        l->lowered->values[op->in[0].value].type == SL_VALUE_F32) {
        code = convert(l, op, kernel->activation, &l->classes->quantize[slot], &lowered.in[0]);
        if (code) {
            return code;
        }
    }
    append(l, &lowered, kernel);
    return 0;
}

/* An OBSERVE of what the LINEAR reads, for each of its weights. */
static int observe(lowering *l, const sl_op *linear) {
    for (int32_t s = 0; s < linear->u.linear.segment_count; s++) {
        sl_op op = *linear;
        const char *numeric_class = NULL;
        const sl_kernel *kernel;
        memset(&op.u, 0, sizeof op.u);
        for (int i = 0; i < SL_OP_INPUTS; i++) {
            op.in[i].value = SL_NONE;
        }
        for (int i = 0; i < SL_OP_OUTPUTS; i++) {
            op.out[i].value = SL_NONE;
        }
        op.kind = SL_OP_OBSERVE;
        op.in[0] = linear->in[0];
        op.in[1] = linear->in[2];
        op.u.observe.weight = linear->u.linear.segments[s].weight;
        const int code = choose(l, &op, l->lowered->op_count, &numeric_class, &kernel);
        if (code) {
            return code;
        }
        append(l, &op, kernel);
    }
    return 0;
}

static int32_t add_value(lowering *l, const sl_value *like, const char *name) {
    sl_value *value = &l->lowered->values[l->lowered->value_count];
    *value = *like;
    value->name = sl_arena_printf(&l->plan->arena, "%s.%s", like->name, name);
    return value->name ? l->lowered->value_count++ : SL_NONE;
}

/* A FETCH of the set that the LINEAR reads, unless it is there already. */
static int fetch(lowering *l, const sl_op *linear, int32_t set) {
    const bool has_experts = l->plan->deployment.fetch_sets[set].experts > 0;
    const sl_fetch_way way =
        has_experts ? sl_fetch_way_of(l->plan, l->lowered->rows[SL_ROWS_STEP]) : SL_FETCH_ALL;
    const int32_t slots = way == SL_FETCH_ALL ? 0 : l->plan->deployment.expert_slots;
    const char *numeric_class = NULL;
    const sl_kernel *kernel;
    if (set == l->fetched) {
        return 0;
    }
    sl_op op = {
        .kind = SL_OP_FETCH,
        .layer = linear->layer,
        .u.fetch = {
            .set = set, .slots = slots, .used = has_experts ? l->program->experts_used : 0, .way = way}};
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        op.in[i].value = SL_NONE;
    }
    for (int i = 0; i < SL_OP_OUTPUTS; i++) {
        op.out[i].value = SL_NONE;
    }
    op.in[0] = linear->in[1];
    op.in[1] = linear->in[2];
    l->fetched = set;
    l->slots = linear->in[1];
    l->slot_schedule = linear->in[2];
    if (way == SL_FETCH_TO_SLOTS) {
        op.out[0].value = add_value(l, &l->program->values[linear->in[1].value], "slots");
        op.out[1].value = add_value(l, &l->program->values[linear->in[2].value], "slots");
        if (op.out[0].value == SL_NONE || op.out[1].value == SL_NONE) {
            return out_of_memory(l->error);
        }
        op.out[0].column = op.out[1].column = 0;
        l->lowered->values[op.out[1].value].fixed = slots + 1;
        l->slots = op.out[0];
        l->slot_schedule = op.out[1];
    }
    const int code = choose(l, &op, l->lowered->op_count, &numeric_class, &kernel);
    if (code == 0) {
        append(l, &op, kernel);
    }
    return code;
}

/* One LINEAR per weight type, in the order in which the types appear. */
static int lower_linear(lowering *l, const sl_op *given, int32_t slot) {
    bool done[SL_LINEAR_SEGMENTS] = {false};
    const int32_t set = sl_fetch_set_of(l->plan, given);
    sl_op with_slots = *given;
    const sl_op *op = &with_slots;
    if (set != SL_NONE) {
        const int code = fetch(l, given, set);
        if (code) {
            return code;
        }
        with_slots.in[1] = l->slots;
        with_slots.in[2] = l->slot_schedule;
    }
    const int observed = l->plan->options.observe ? observe(l, op) : 0;
    if (observed) {
        return observed;
    }
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        if (done[s]) {
            continue;
        }
        const sl_qtype type = l->program->weights[op->u.linear.segments[s].weight].type;
        sl_op part = *op;
        memset(&part.u.linear, 0, sizeof part.u.linear);
        for (int32_t other = s; other < op->u.linear.segment_count; other++) {
            if (l->program->weights[op->u.linear.segments[other].weight].type == type) {
                part.u.linear.segments[part.u.linear.segment_count++] = op->u.linear.segments[other];
                done[other] = true;
            }
        }
        const int code = lower_part(l, &part, slot++);
        if (code) {
            return code;
        }
    }
    return 0;
}

/* Does an op behind `index` read the same cache? */
static bool read_again(const sl_program *program, int32_t index) {
    const sl_cache_place place = program->ops[index].u.attention.place;
    for (int32_t i = index + 1; i < program->op_count; i++) {
        const sl_cache_place other = program->ops[i].u.attention.place;
        if (program->ops[i].kind == SL_OP_ATTENTION && other.group == place.group &&
            other.layer == place.layer) {
            return true;
        }
    }
    return false;
}

/* A COMPACT behind the last ATTENTION that reads a cache without a window. */
static int compact(lowering *l, int32_t index) {
    const sl_op *attention = &l->program->ops[index];
    if (l->program->groups[attention->u.attention.place.group].window > 0 || read_again(l->program, index)) {
        return 0;
    }
    sl_op op = *attention;
    const char *numeric_class = NULL;
    const sl_kernel *kernel;
    op.kind = SL_OP_COMPACT;
    op.in[1].value = op.out[0].value = SL_NONE;
    memset(&op.u, 0, sizeof op.u);
    op.u.compact = (sl_op_compact){.attention = attention->u.attention,
                                   .keep = l->plan->options.kv_budget,
                                   .pool = l->plan->options.kv_pool};
    const int code = choose(l, &op, l->lowered->op_count, &numeric_class, &kernel);
    if (code) {
        return code;
    }
    append(l, &op, kernel);
    return 0;
}

/* Behind the last op that the plan runs of those that do not draft: an embedding one ends where its result is
 * complete. */
static int32_t ops_end(const sl_plan *plan, const sl_op *ops, int32_t count) {
    while (plan->options.embed && count > 0 && ops[count - 1].out[0].value != plan->deployment.result) {
        count--;
    }
    return count;
}

static int lower_op(lowering *l, const sl_op *op, int32_t index) {
    const int32_t slot = index * SL_LINEAR_SEGMENTS;
    const int code = op->kind == SL_OP_LINEAR ? lower_linear(l, op, slot) : lower_part(l, op, slot);
    return code || !l->lowered->compacts || op->kind != SL_OP_ATTENTION ? code : compact(l, index);
}

static int lower_all(lowering *l) {
    const sl_plan *plan = l->plan;
    const sl_program *program = l->program;
    const int32_t usual = program->op_count - program->draft_ops;
    int code = 0;
    if (l->bucket < plan->deployment.draft_buckets) {
        for (int32_t i = usual; code == 0 && i < program->op_count; i++) {
            code = lower_op(l, &program->ops[i], i);
        }
        return code;
    }
    const bool tail = sl_has_tail(plan, l->bucket);
    const sl_op *ops = tail ? plan->tail.ops : program->ops;
    const int32_t end = ops_end(plan, ops, tail ? plan->tail.op_count : usual);
    for (int32_t i = 0; code == 0 && i < end; i++) {
        code = lower_op(l, &ops[i], tail ? plan->tail.origins[i] : i);
    }
    return code;
}

int sl_lower(sl_plan *plan, int32_t bucket, sl_classes *classes, bool record, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    sl_lowered *lowered = &plan->deployment.buckets[bucket];
    uint64_t ops = (uint64_t)program->op_count, values = (uint64_t)program->value_count;
    ops += (uint64_t)plan->tail.op_count; /* a GATHER for each value that lives on */
    for (int32_t i = 0; i < program->op_count; i++) {
        if (program->ops[i].kind == SL_OP_LINEAR) {
            ops += 2 * (uint64_t)program->ops[i].u.linear.segment_count - 1;
            ops += plan->options.observe ? (uint64_t)program->ops[i].u.linear.segment_count : 0;
            values += (uint64_t)program->ops[i].u.linear.segment_count;
        }
        ops += lowered->compacts && program->ops[i].kind == SL_OP_ATTENTION;
    }
    ops += (uint64_t)plan->deployment.fetch_set_count;
    values += 2 * (uint64_t)plan->deployment.fetch_set_count;
    lowering l = {.plan = plan,
                  .lowered = lowered,
                  .bucket = bucket,
                  .first_declined = plan->declined_count,
                  .program = program,
                  .classes = classes,
                  .record = record,
                  .fetched = SL_NONE,
                  .error = error};
    sl_arena scratch = {0};
    lowered->values = sl_arena_alloc(&plan->arena, values, sizeof *lowered->values);
    lowered->value_offsets = sl_arena_alloc(&plan->arena, values, sizeof *lowered->value_offsets);
    lowered->ops = sl_arena_alloc(&plan->arena, ops, sizeof *lowered->ops);
    lowered->kernels = sl_arena_alloc(&plan->arena, ops, sizeof *lowered->kernels);
    lowered->scratch_offsets = sl_arena_alloc(&plan->arena, ops, sizeof *lowered->scratch_offsets);
    l.copies = sl_arena_alloc(&scratch, values, sizeof *l.copies);
    int code = 0;
    if (!lowered->values || !lowered->value_offsets || !lowered->ops || !lowered->kernels ||
        !lowered->scratch_offsets || !l.copies) {
        code = out_of_memory(error);
    } else {
        memcpy(lowered->values, program->values, (size_t)program->value_count * sizeof *lowered->values);
        lowered->value_count = program->value_count;
    }
    code = code ? code : lower_all(&l);
    sl_arena_free(&scratch);
    return code;
}
