/* Ops resolved to {launch function, pointers}: every operand, weight and scratch has its place here. */
#include "backend/cuda/run/executor.h"
#include "base/checked.h"

#include <string.h>

static const uint32_t element_bytes[SL_VALUE_TYPE_COUNT] = {
    [SL_VALUE_F32] = 4,   [SL_VALUE_I32] = 4,      [SL_VALUE_BF16] = 2,
    [SL_VALUE_Q8_32] = 1, [SL_VALUE_E4M3_128] = 1, [SL_VALUE_Q8_256] = 1};

static int resolve_operand(const sl_executor *executor, const sl_lowered *lowered, const sl_operand *operand,
                           sl_cuda_operand *result, sl_error *error) {
    if (operand->value == SL_NONE) {
        return SL_OK;
    }
    const sl_value *value = &lowered->values[operand->value];
    const uint64_t offset = lowered->value_offsets[operand->value];
    if (offset == UINT64_MAX || !sl_range_inside(offset, sl_value_bytes(value, lowered->rows),
                                                 executor->deployment->pool_bytes[SL_POOL_WORKSPACE])) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: value %s lies outside the workspace", value->name);
    }
    unsigned char *start = executor->pools[SL_POOL_WORKSPACE] + offset;
    result->head = value->fixed > 0 ? (int32_t *)(void *)start : NULL;
    result->data = start + (uint64_t)value->fixed * element_bytes[value->type];
    result->row_bytes = sl_value_row_bytes(value->type, value->width);
    result->width = value->width;
    result->column = operand->column;
    result->type = value->type;
    result->rows = value->rows;
    return SL_OK;
}

/* The weight use as a part of what the FETCH in front brings: where it is then. */
static int resolve_fetched(const sl_executor *executor, int32_t use, sl_cuda_fetch *fetch,
                           sl_cuda_weight *result, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_weight_use *found = &deployment->weights[use];
    const uint64_t pool = deployment->pool_bytes[SL_POOL_FETCHED];
    const bool to_slots = fetch && fetch->way == SL_FETCH_TO_SLOTS;
    const uint64_t buffer =
        fetch ? (uint64_t)(fetch->number % SL_FETCH_BUFFERS) * deployment->buffer_bytes : 0;
    const uint64_t in_slots = fetch ? result->expert_bytes * (uint64_t)fetch->slots : 0;
    if (!fetch || fetch->set != found->set || result->experts != (fetch->experts > 0 ? fetch->experts : 1) ||
        (fetch->slots > 0 && !sl_range_inside(found->slots, in_slots, pool)) ||
        (!to_slots && !sl_range_inside(buffer + found->in_buffer, found->bytes, pool))) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s is in host memory, and nothing brings it",
                       deployment->program->weights[found->weight].name);
    }
    unsigned char *fetched = executor->pools[SL_POOL_FETCHED];
    const sl_cuda_fetch_part part = {.from = executor->pools[SL_POOL_HOST_WEIGHTS] +
                                             executor->weight_offsets[use],
                                     .to = fetched + (to_slots ? found->slots : buffer + found->in_buffer),
                                     .slots = fetched + found->slots,
                                     .expert_bytes = result->expert_bytes};
    int32_t p = 0;
    while (p < fetch->part_count && fetch->parts[p].from != part.from) {
        p++;
    }
    if (p == SL_CUDA_FETCH_PARTS) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: a fetch set has more than %d weights",
                       SL_CUDA_FETCH_PARTS);
    }
    fetch->parts[p] = part;
    fetch->part_count += p == fetch->part_count;
    result->data = part.to;
    result->experts = to_slots ? fetch->slots : result->experts;
    return SL_OK;
}

/* kernel: of a LINEAR, whose layout is wanted; NULL: the file's. fetch: the FETCH in front of the op, if any.
 */
static int resolve_weight(const sl_executor *executor, int32_t index, const sl_cuda_kernel *kernel,
                          sl_cuda_fetch *fetch, sl_cuda_weight *result, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_weight *weight = &deployment->program->weights[index];
    const bool packed = kernel && kernel->kernel.pack;
    int32_t use = 0;
    while (use < deployment->weight_count &&
           (deployment->weights[use].weight != index ||
            (deployment->weights[use].layout ? deployment->weights[use].layout->pack : NULL) !=
                (packed ? kernel->kernel.pack : NULL))) {
        use++;
    }
    if (use == deployment->weight_count) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s is used but not listed", weight->name);
    }
    const int32_t columns = packed ? weight->columns : sl_cuda_columns(weight);
    result->type = packed ? kernel->packed_type : weight->type;
    result->row_bytes =
        deployment->weights[use].bytes / ((uint64_t)weight->experts * (uint64_t)weight->rows);
    if (!packed && !sl_stored_row_bytes(SL_CUDA_COLUMN_MULTIPLE, weight, &result->row_bytes)) {
        return sl_fail(error, SL_ERR_INTERNAL, "weight %s: a row is no whole number of blocks", weight->name);
    }
    result->data = executor->pools[SL_POOL_WEIGHTS] + executor->weight_offsets[use];
    result->expert_bytes = deployment->weights[use].bytes / (uint64_t)weight->experts;
    result->experts = weight->experts;
    result->rows = weight->rows;
    result->columns = kernel ? columns : weight->columns;
    return deployment->weights[use].on_host ? resolve_fetched(executor, use, fetch, result, error) : SL_OK;
}

static int resolve_weights(const sl_executor *executor, const sl_op *op, sl_cuda_fetch *fetch,
                           sl_cuda_op *result, sl_error *error) {
    int status = SL_OK;
    if (op->kind == SL_OP_LINEAR) {
        result->weight_count = op->u.linear.segment_count;
        for (int32_t s = 0; s < result->weight_count && !status; s++) {
            const sl_linear_segment *segment = &op->u.linear.segments[s];
            status =
                resolve_weight(executor, segment->weight, result->kernel, fetch, &result->weights[s], error);
            result->weights[s].column = segment->column;
            if (!status && segment->bias != SL_NONE) {
                sl_cuda_weight bias = {0};
                status = resolve_weight(executor, segment->bias, NULL, fetch, &bias, error);
                result->weights[s].bias = (const float *)(const void *)bias.data;
            }
        }
        return status;
    }
    int32_t indices[SL_OP_WEIGHTS];
    result->weight_count = sl_op_weights(op, indices);
    for (int32_t i = 0; i < result->weight_count && !status; i++) {
        if (indices[i] != SL_NONE) {
            status = resolve_weight(executor, indices[i], NULL, fetch, &result->weights[i], error);
        }
    }
    return status;
}

/* One count per kernel that any bucket uses; `counts` has room for all ops. */
static sl_kernel_count *count_of(sl_executor *executor, const sl_kernel *kernel) {
    for (int32_t i = 0; i < executor->count_count; i++) {
        if (executor->counts[i].kernel == kernel) {
            return &executor->counts[i];
        }
    }
    executor->counts[executor->count_count].kernel = kernel;
    return &executor->counts[executor->count_count++];
}

static int resolve_scratch(const sl_executor *executor, const sl_lowered *lowered, int32_t index,
                           sl_cuda_op *result, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_kernel *kernel = &result->kernel->kernel;
    const sl_fusion *fusion = result->fusion ? &result->fusion->fusion : NULL;
    const bool of_run = fusion && fusion->workspace;
    if (!of_run && !kernel->workspace) {
        return SL_OK;
    }
    const sl_fusion_query run_query = {.program = deployment->program,
                                       .values = lowered->values,
                                       .ops = result->op,
                                       .kernels = &lowered->kernels[index],
                                       .rows = sl_rows_of_op(lowered, result->op),
                                       .limits = &deployment->limits};
    const sl_kernel_query query = {.program = deployment->program,
                                   .values = lowered->values,
                                   .op = result->op,
                                   .rows = sl_rows_of_op(lowered, result->op),
                                   .span_rows = sl_span_rows_of_op(lowered, result->op),
                                   .limits = &deployment->limits};
    const uint64_t bytes = of_run ? fusion->workspace(fusion, &run_query) : kernel->workspace(kernel, &query);
    if (!sl_range_inside(lowered->scratch_offsets[index], bytes, deployment->pool_bytes[SL_POOL_WORKSPACE])) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: the scratch of %s lies outside the workspace",
                       of_run ? fusion->name : kernel->name);
    }
    result->scratch = executor->pools[SL_POOL_WORKSPACE] + lowered->scratch_offsets[index];
    return SL_OK;
}

/* The op's record, and in *last that of the FETCH before: of those that bring a whole set each knows the
 * next.
 */
static int resolve_fetch(const sl_executor *executor, const sl_op *op, sl_cuda_bucket *bucket,
                         sl_cuda_fetch **last, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_op_fetch *asked = &op->u.fetch;
    const sl_fetch_set *set = asked->set >= 0 && asked->set < deployment->fetch_set_count
                                  ? &deployment->fetch_sets[asked->set]
                                  : NULL;
    const bool fits =
        set &&
        (set->experts == 0 ? asked->way == SL_FETCH_ALL && asked->slots == 0
                           : asked->slots == (asked->way == SL_FETCH_ALL ? 0 : deployment->expert_slots) &&
                                 sl_range_inside(set->table, sl_slot_table_bytes(set->experts, asked->slots),
                                                 deployment->pool_bytes[SL_POOL_FETCHED]));
    if (!fits) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: fetch set %d with %d slots does not exist", asked->set,
                       asked->slots);
    }
    sl_cuda_fetch *fetch = sl_arena_alloc(executor->context.arena, 1, sizeof *fetch);
    if (!fetch) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the op list");
    }
    *fetch =
        (sl_cuda_fetch){.set = asked->set, .experts = set->experts, .slots = asked->slots, .way = asked->way};
    if (set->experts > 0) {
        fetch->table = (sl_slot_table *)(void *)(executor->pools[SL_POOL_FETCHED] + set->table);
    }
    fetch->counts = &executor->expert_counts[SL_CUDA_EXPERT_COUNTS * asked->set];
    if (asked->way == SL_FETCH_ALL) {
        const sl_cuda_fetch *before = bucket->last_copies;
        fetch->number = before ? before->number + 1 : 0;
        if (before) {
            bucket->last_copies->next = fetch;
        } else {
            bucket->first_copies = fetch;
        }
        bucket->last_copies = fetch;
    }
    *last = fetch;
    return SL_OK;
}

/* Of a program with ranks: what they exchange has room. */
static int check_exchange(const sl_executor *executor, const sl_cuda_op *op, sl_error *error) {
    const bool exchanges = op->op->kind == SL_OP_ALL_REDUCE || op->op->kind == SL_OP_ALL_GATHER;
    return exchanges && op->program->ranks > 1 &&
                   sl_cuda_exchange_need(op) > executor->deployment->exchange_bytes
               ? sl_fail(error, SL_ERR_INTERNAL, "plan: %llu bytes for an exchange are too few",
                         (unsigned long long)executor->deployment->exchange_bytes)
               : SL_OK;
}

static int prepare(sl_executor *executor, sl_cuda_op *op, sl_error *error) {
    if (!op->is_tail) {
        return op->kernel->prepare(&executor->context, op, error);
    }
    sl_cuda_context tail = sl_cuda_tail_context(executor);
    const int status = op->kernel->prepare(&tail, op, error);
    executor->context.blas = tail.blas; /* made when it is first needed */
    return status;
}

static int resolve_op(sl_executor *executor, const sl_lowered *lowered, int32_t index, sl_cuda_fetch *fetch,
                      sl_cuda_op *result, sl_error *error) {
    const sl_op *op = &lowered->ops[index];
    const int32_t rows = sl_rows_of_op(lowered, op)[SL_ROWS_STEP];
    const int32_t sequences = executor->deployment->limits.sequences;
    int status = SL_OK;
    result->op = op;
    result->kernel = (const sl_cuda_kernel *)(const void *)lowered->kernels[index];
    result->program = executor->deployment->program;
    result->limits = &executor->deployment->limits;
    result->is_tail = sl_op_is_tail(lowered->values, op);
    result->rows = sl_rows_of_op(lowered, op);
    result->facts = executor->facts;
    if (lowered->fusions && lowered->fusions[index]) {
        result->fusion = (const sl_cuda_fusion *)(const void *)lowered->fusions[index];
    }
    result->run_length = result->fusion ? result->fusion->fusion.count : 1;
    for (int i = 0; i < SL_OP_OUTPUTS && lowered->unread; i++) {
        result->unread[i] = lowered->unread[index][i];
    }
    result->spans = rows < sequences ? rows : sequences;
    for (int i = 0; i < SL_OP_INPUTS && !status; i++) {
        status = resolve_operand(executor, lowered, &op->in[i], &result->in[i], error);
    }
    for (int i = 0; i < SL_OP_OUTPUTS && !status; i++) {
        status = resolve_operand(executor, lowered, &op->out[i], &result->out[i], error);
    }
    if (op->kind == SL_OP_QUANTIZE) {
        result->out[0].padding = result->out[0].width - op->u.quantize.width;
    }
    if (!status) {
        result->fetch = op->kind == SL_OP_FETCH ? fetch : NULL;
        status = resolve_weights(executor, op, fetch, result, error);
    }
    if (!status) {
        status = resolve_scratch(executor, lowered, index, result, error);
    }
    if (!status) {
        status = check_exchange(executor, result, error);
    }
    result->counted = op->out[0].value != SL_NONE ? result->out[0].rows : SL_ROWS_STEP;
    result->count = count_of(executor, &result->kernel->kernel);
    return status || !result->kernel->prepare ? status : prepare(executor, result, error);
}

/* Values that are filled in front of a section count as written: nothing in it writes over them. */
static void note_given(const sl_program *program, bool *written) {
    for (int32_t i = 0; program->partition && i < program->partition->border_count; i++) {
        const sl_border *border = &program->partition->borders[i];
        if (border->part == program->part) {
            written[border->given] = true;
        }
    }
}

/* Is every value written in the list before it is read? If not, somebody else fills it (a test of one op),
 * and the list may not give the same when it is run twice. `written` has room for all values. */
static bool is_self_contained(const sl_program *program, const sl_lowered *lowered, bool *written) {
    memset(written, 0, (size_t)lowered->value_count * sizeof *written);
    note_given(program, written);
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        for (int in = 0; in < SL_OP_INPUTS; in++) {
            if (op->in[in].value != SL_NONE && !written[op->in[in].value]) {
                return false;
            }
        }
        for (int out = 0; out < SL_OP_OUTPUTS; out++) {
            if (op->out[out].value != SL_NONE) {
                written[op->out[out].value] = true;
            }
        }
    }
    return true;
}

/* Each section's ops: from its first TRANSFER to that of the next. */
static void cut_bucket(sl_executor *executor, const sl_cuda_bucket *bucket) {
    int32_t section = 0;
    for (int32_t i = 0; i < bucket->op_count; i++) {
        section = sl_op_section(bucket->ops[i].op, section);
        sl_cuda_bucket *part = sl_cuda_section_of(executor, bucket->index, section);
        if (part->op_count == 0) {
            *part = (sl_cuda_bucket){.ops = &bucket->ops[i],
                                     .state = bucket->state,
                                     .index = bucket->index,
                                     .is_later = section > 0};
        }
        part->op_count++;
    }
}

static int resolve_bucket(sl_executor *executor, int32_t index, sl_error *error) {
    const sl_lowered *lowered = &executor->deployment->buckets[index];
    sl_cuda_bucket *bucket = &executor->buckets[index];
    bucket->op_count = lowered->op_count;
    bucket->ops = sl_arena_alloc(&executor->arena, (size_t)lowered->op_count, sizeof(sl_cuda_op));
    bool *written = sl_arena_alloc(&executor->arena, (size_t)lowered->value_count, sizeof *written);
    if (!bucket->ops || !written) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the op list");
    }
    const bool captured =
        !executor->no_graphs && is_self_contained(executor->deployment->program, lowered, written);
    bucket->index = index;
    bucket->state = captured ? SL_CUDA_BUCKET_NEW : SL_CUDA_BUCKET_EAGER;
    int32_t sampling = 0;
    while (sampling < lowered->op_count && lowered->ops[sampling].kind != SL_OP_SAMPLE) {
        sampling++;
    }
    sl_cuda_fetch *fetch = NULL;
    for (int32_t i = 0; i < lowered->op_count; i++) {
        int status = lowered->ops[i].kind == SL_OP_FETCH
                         ? resolve_fetch(executor, &lowered->ops[i], bucket, &fetch, error)
                         : SL_OK;
        if (!status) {
            status = resolve_op(executor, lowered, i, fetch, &bucket->ops[i], error);
        }
        if (status) {
            return status;
        }
    }
    *sl_cuda_front_of(executor, index) = (sl_cuda_bucket){.ops = bucket->ops,
                                                          .op_count = sampling,
                                                          .state = bucket->state,
                                                          .index = index,
                                                          .first_copies = bucket->first_copies};
    if (executor->sections) {
        cut_bucket(executor, bucket);
    }
    return SL_OK;
}

int sl_cuda_resolve_buckets(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    uint64_t ops = 0;
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        ops += (uint64_t)deployment->buckets[b].op_count;
    }
    executor->buckets =
        sl_arena_alloc(&executor->arena, 2 * (size_t)deployment->bucket_count, sizeof(sl_cuda_bucket));
    executor->counts = sl_arena_alloc(&executor->arena, (size_t)ops, sizeof(sl_kernel_count));
    executor->section_count = sl_program_sections(deployment->program);
    if (executor->section_count > 1) {
        executor->sections = sl_arena_alloc(&executor->arena, (size_t)deployment->bucket_count,
                                            (size_t)executor->section_count * sizeof(sl_cuda_bucket));
    }
    if (!executor->buckets || !executor->counts || (executor->section_count > 1 && !executor->sections)) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the op list");
    }
    int status = SL_OK;
    for (int32_t b = 0; b < deployment->bucket_count && !status; b++) {
        status = resolve_bucket(executor, b, error);
    }
    return status;
}
