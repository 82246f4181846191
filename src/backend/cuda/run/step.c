/* Steps: the block to the device, the bucket's launches, results to pinned memory. */
#include "backend/cuda/run/executor.h"
#include "backend/cuda/run/step_copies.h"

#include <stdio.h>

int sl_cuda_bring_block(sl_executor *executor, const sl_cuda_stage *stage, bool before_graph,
                        sl_error *error) {
    const sl_step_layout *layout = &executor->deployment->step;
    const uint64_t bytes = sl_step_head(stage->block)->masks_later
                               ? sl_step_unmasked_bytes(layout, stage->block)
                               : sl_step_used_bytes(layout, stage->block);
    cudaStream_t stream = executor->device.stream;
    return before_graph ? SL_CUDA(sl_cuda_copy_staged(executor->block, stage->block, bytes, stream), error)
                        : SL_CUDA(cudaMemcpyAsync(executor->block, stage->block, bytes,
                                                  cudaMemcpyHostToDevice, stream),
                                  error);
}

/* NULL: the bucket does not make it. */
static const unsigned char *result_of(const sl_executor *executor, const sl_lowered *lowered, int32_t value) {
    return value == SL_NONE || lowered->value_offsets[value] == UINT64_MAX
               ? NULL
               : executor->pools[SL_POOL_WORKSPACE] + lowered->value_offsets[value];
}

/* Logits are many bytes, and few steps want them: the copy engine leaves the processors to others. */
static int copy_results(sl_executor *executor, const sl_lowered *lowered, const sl_cuda_stage *stage,
                        sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_step_header *header = sl_step_head(stage->block);
    const uint64_t outputs = (uint64_t)header->outputs;
    const unsigned char *tokens = result_of(executor, lowered, deployment->tokens);
    const unsigned char *logits = result_of(executor, lowered, deployment->result);
    int status = SL_OK;
    if (tokens && outputs > 0) {
        status = SL_CUDA(
            sl_cuda_copy_staged(stage->tokens, tokens, outputs * sizeof(int32_t), executor->device.stream),
            error);
    }
    if (!status && logits && outputs > 0 && header->want_logits) {
        status = SL_CUDA(cudaMemcpyAsync(stage->logits, logits,
                                         outputs * (uint64_t)deployment->result_width * sizeof(float),
                                         cudaMemcpyDeviceToHost, executor->device.stream),
                         error);
    }
    return status;
}

static int end_step(sl_executor *executor, int32_t index, const sl_cuda_stage *stage, sl_error *error) {
    const int status = copy_results(executor, &executor->deployment->buckets[index], stage, error);
    return status ? status : SL_CUDA(cudaEventRecord(stage->finished, executor->device.stream), error);
}

static int run_step(sl_executor *executor, int32_t index, sl_error *error) {
    const sl_cuda_stage *stage = &executor->stages[executor->next];
    const bool waits = sl_step_head(stage->block)->masks_later;
    sl_cuda_bucket *bucket =
        waits ? sl_cuda_front_of(executor, index) : sl_cuda_section_of(executor, index, 0);
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = sl_cuda_bring_block(executor, stage, bucket->state == SL_CUDA_BUCKET_REPLAYED, error);
    }
    if (!status) {
        status = sl_cuda_run_bucket(executor, bucket, error);
    }
    executor->waits_for_masks = waits;
    executor->next_section = executor->section_count > 1;
    return status || waits || executor->next_section ? status : end_step(executor, index, stage, error);
}

/* The masks, and the launches behind the front. Those launches look at nothing else of the block before they
 * wait for what is in front of them, so that a kernel can bring the masks. */
static int run_rest(sl_executor *executor, const sl_cuda_stage *stage, sl_error *error) {
    const sl_step_layout *layout = &executor->deployment->step;
    const sl_cuda_bucket *whole = &executor->buckets[executor->last_bucket];
    const int32_t done = sl_cuda_front_of(executor, executor->last_bucket)->op_count;
    const sl_cuda_bucket rest = {.ops = whole->ops + done, .op_count = whole->op_count - done};
    const uint64_t first = sl_step_unmasked_bytes(layout, stage->block);
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = SL_CUDA(sl_cuda_copy_staged(executor->block + first, stage->block + first,
                                             sl_step_used_bytes(layout, stage->block) - first,
                                             executor->device.stream),
                         error);
    }
    if (!status) {
        status = sl_cuda_run_eagerly(executor, &rest, error);
    }
    return status ? status : end_step(executor, executor->last_bucket, stage, error);
}

int sl_cuda_fault(sl_executor *executor, const sl_error *why, sl_error *error) {
    const uint32_t absent = ((const volatile sl_cuda_meeting *)executor->meeting)->absent;
    executor->device.fault = *why;
    executor->device.fault.code = SL_ERR_DEVICE;
    if (absent > 0) {
        char what[128];
        snprintf(what, sizeof what, "cuda: rank %d waited %d seconds for rank %d, which did not come",
                 executor->deployment->program->rank, SL_CUDA_EXCHANGE_SECONDS, (int)absent - 1);
        sl_fail_prefix(&executor->device.fault, what);
    }
    executor->in_flight = 0;
    return sl_fail(error, SL_ERR_DEVICE, "%s", executor->device.fault.message);
}

int sl_cuda_check_fault(const sl_executor *executor, sl_error *error) {
    return executor->device.fault.code ? sl_fail(error, SL_ERR_DEVICE, "%s", executor->device.fault.message)
                                       : SL_OK;
}

void *sl_cuda_step_block(sl_executor *executor) {
    return executor->stages[executor->next].block;
}

#ifndef NDEBUG
/* What a step block may hold, and besides that the pools' ends, which only a deployment knows. */
static int check_block(const sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    void *block = executor->stages[executor->next].block;
    const sl_step_header *header = sl_step_head(block);
    const int status = sl_step_check(&deployment->step, deployment->program, block, error);
    for (int32_t i = 0; i < header->table_changes && !status; i++) {
        const sl_table_change *change = &sl_step_table_changes(&deployment->step, block)[i];
        if (change->page >= deployment->caches[change->group].pages) {
            return sl_fail(error, SL_ERR_INVALID, "step: table change %d: page %d does not exist", (int)i,
                           (int)change->page);
        }
    }
    for (int32_t i = 0; i < header->page_copies && !status; i++) {
        const sl_page_copy *copy = &sl_step_page_copies(&deployment->step, block)[i];
        const int32_t pages = deployment->caches[copy->group].pages;
        if (copy->source >= pages || copy->target >= pages) {
            return sl_fail(error, SL_ERR_INVALID, "step: page copy %d: page %d or %d does not exist", (int)i,
                           (int)copy->source, (int)copy->target);
        }
    }
    for (int32_t i = 0; i < header->spans && !status; i++) {
        const sl_step_span *span = &sl_step_spans(&deployment->step, block)[i];
        const int32_t *states = sl_step_states(&deployment->step, block) + span->state_first;
        for (int32_t k = -1; k < span->state_count; k++) {
            const int32_t slot = k < 0 ? span->state_read : states[k];
            if (slot >= deployment->state_slots) {
                return sl_fail(error, SL_ERR_INVALID, "step: span %d: state slot %d does not exist", (int)i,
                               (int)slot);
            }
        }
    }
    return status;
}
#endif

int sl_cuda_submit(sl_executor *executor, int32_t index, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_step_header *header = sl_step_head(executor->stages[executor->next].block);
    int status = sl_cuda_check_fault(executor, error);
    if (status) {
        return status;
    }
    if (index < 0 || index >= deployment->bucket_count) {
        return sl_fail(error, SL_ERR_INVALID, "step: there is no bucket %d", (int)index);
    }
    if (executor->in_flight == SL_CUDA_STAGES) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: %d are under way already", SL_CUDA_STAGES);
    }
    if (executor->waits_for_masks || executor->next_section) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: the one in front waits for its %s",
                       executor->waits_for_masks ? "masks" : "other sections");
    }
    if (header->masks_later && executor->sections) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: masks that come later, and several sections");
    }
    const sl_lowered *lowered = &deployment->buckets[index];
    if (header->rows < 0 || header->rows > lowered->rows[SL_ROWS_STEP] || header->outputs < 0 ||
        header->outputs > lowered->rows[SL_ROWS_OUTPUT] || header->spans < 0 ||
        header->spans > deployment->limits.sequences || header->table_changes < 0 ||
        header->table_changes > deployment->step.max_table_changes || header->adjustments < 0 ||
        header->adjustments > deployment->limits.adjustments || header->masks < 0 ||
        header->masks > deployment->limits.masks) {
        return sl_fail(error, SL_ERR_INVALID, "step: %d rows, %d outputs, %d sequences do not fit bucket %d",
                       (int)header->rows, (int)header->outputs, (int)header->spans, (int)index);
    }
#ifndef NDEBUG
    status = check_block(executor, error);
    if (status) {
        return status;
    }
#endif
    if (deployment->program->has_tail) {
        sl_step_write_tail(&deployment->step, executor->stages[executor->next].block);
    }
    sl_error why = {.code = SL_OK};
    status = run_step(executor, index, &why);
    if (status) {
        return sl_cuda_fault(executor, &why, error);
    }
    const int32_t counts[SL_ROWS_COUNT] = {[SL_ROWS_STEP] = header->rows,
                                           [SL_ROWS_EXPERT] =
                                               header->rows * deployment->program->experts_used,
                                           [SL_ROWS_OUTPUT] = header->outputs};
    int32_t tail[SL_ROWS_COUNT];
    sl_tail_rows(counts, tail);
    const sl_cuda_bucket *bucket = &executor->buckets[index];
    for (int32_t i = 0; i < bucket->op_count; i++) {
        const sl_cuda_op *op = &bucket->ops[i];
        op->count->calls++;
        op->count->rows += (uint64_t)(op->is_tail ? tail : counts)[op->counted];
    }
    for (const sl_cuda_fetch *all = bucket->first_copies; all; all = all->next) {
        executor->fetches[all->set].streamed_bytes += deployment->fetch_sets[all->set].bytes;
    }
    executor->steps++;
    executor->last_bucket = index;
    executor->next = (executor->next + 1) % SL_CUDA_STAGES;
    executor->in_flight++;
    return SL_OK;
}

static int run_next_section(sl_executor *executor, sl_error *error) {
    const sl_cuda_stage *stage = &executor->stages[(executor->next + SL_CUDA_STAGES - 1) % SL_CUDA_STAGES];
    const int32_t section = executor->next_section;
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status =
            sl_cuda_run_bucket(executor, sl_cuda_section_of(executor, executor->last_bucket, section), error);
    }
    executor->next_section = section + 1 < executor->section_count ? section + 1 : 0;
    return status || executor->next_section ? status
                                            : end_step(executor, executor->last_bucket, stage, error);
}

int sl_cuda_proceed(sl_executor *executor, sl_error *error) {
    int status = sl_cuda_check_fault(executor, error);
    if (status) {
        return status;
    }
    if (executor->next_section == 0) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: it has no other section");
    }
    sl_error why = {.code = SL_OK};
    status = run_next_section(executor, &why);
    return status ? sl_cuda_fault(executor, &why, error) : SL_OK;
}

int sl_cuda_resume(sl_executor *executor, sl_error *error) {
    int status = sl_cuda_check_fault(executor, error);
    if (status) {
        return status;
    }
    if (!executor->waits_for_masks) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: none waits for masks");
    }
    executor->waits_for_masks = false;
    sl_error why = {.code = SL_OK};
    status =
        run_rest(executor, &executor->stages[(executor->next + SL_CUDA_STAGES - 1) % SL_CUDA_STAGES], &why);
    return status ? sl_cuda_fault(executor, &why, error) : SL_OK;
}

static int32_t oldest(const sl_executor *executor) {
    return (executor->next + SL_CUDA_STAGES - executor->in_flight) % SL_CUDA_STAGES;
}

/* The stage before the oldest in flight. */
static int32_t waited_for(const sl_executor *executor) {
    return (oldest(executor) + SL_CUDA_STAGES - 1) % SL_CUDA_STAGES;
}

int sl_cuda_wait(sl_executor *executor, sl_error *error) {
    int status = sl_cuda_check_fault(executor, error);
    if (status || executor->in_flight == 0) {
        return status;
    }
    if (executor->in_flight == 1 && (executor->waits_for_masks || executor->next_section)) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: the oldest under way waits for its %s",
                       executor->waits_for_masks ? "masks" : "other sections");
    }
    sl_error why = {.code = SL_OK};
    status = SL_CUDA(cudaEventSynchronize(executor->stages[oldest(executor)].finished), &why);
    executor->in_flight--;
    return status ? sl_cuda_fault(executor, &why, error) : SL_OK;
}

const float *sl_cuda_logits(sl_executor *executor) {
    return executor->stages[waited_for(executor)].logits;
}

const int32_t *sl_cuda_tokens(sl_executor *executor) {
    return executor->stages[waited_for(executor)].tokens;
}
