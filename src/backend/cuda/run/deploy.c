/* The executor made and ended, and what the backend's other functions are. */
#include "backend/cuda/linear/bf16/bf16_cublas.h"
#include "backend/cuda/run/executor.h"
#include "backend/cuda/run/step_copies.h"
#include "backend/cuda/table/table.h"
#include "base/alloc.h"

#include <string.h>

static void counters(const sl_executor *executor, sl_counters *result) {
    memset(result, 0, sizeof *result);
    result->steps = executor->steps;
    result->eager_steps = executor->eager_steps;
    result->replayed_steps = executor->replayed_steps;
    result->device_allocations = executor->device.allocations;
    result->synchronisations = executor->device.synchronisations;
    result->captured_buckets = executor->captured;
    result->failed_captures = executor->failed;
    result->kernels = executor->counts;
    result->kernel_count = executor->count_count;
    const sl_deployment *deployment = executor->deployment;
    for (int32_t i = 0; i < deployment->fetch_set_count; i++) {
        /* The device writes them while steps run. */
        const volatile unsigned long long *counts = &executor->expert_counts[SL_CUDA_EXPERT_COUNTS * i];
        const sl_fetch_set *set = &deployment->fetch_sets[i];
        sl_fetch_count *all = &executor->fetches[i];
        all->layer = set->layer;
        all->hits = counts[0];
        all->misses = counts[1];
        all->promotions = counts[2];
        all->fetched_bytes = set->experts > 0 ? all->misses * (set->bytes / (uint64_t)set->experts) : 0;
    }
    result->fetches = executor->fetches;
    result->fetch_count = deployment->fetch_set_count;
}

static int profile_step(sl_executor *executor, sl_profile *profile, sl_error *error) {
    int status = sl_cuda_check_fault(executor, error);
    if (status) {
        return status;
    }
    if (executor->steps == 0) {
        return sl_fail(error, SL_ERR_INVALID, "profile: no step has run yet");
    }
    const sl_cuda_bucket *bucket = &executor->buckets[executor->last_bucket];
    const sl_cuda_context tail = sl_cuda_tail_context(executor);
    const sl_cuda_list list = {&executor->context, &tail, bucket->ops, bucket->op_count};
    sl_error why = {.code = SL_OK};
    status = sl_cuda_set_alone(executor, true, &why); /* the others do not run it */
    if (!status) {
        status = sl_cuda_profile(&executor->device, &list, executor->pools[SL_POOL_WEIGHTS],
                                 executor->deployment->pool_bytes[SL_POOL_WEIGHTS], profile, &why);
    }
    status = status ? status : sl_cuda_set_alone(executor, false, &why);
    return status ? sl_cuda_fault(executor, &why, error) : SL_OK;
}

static int measure_rates(sl_executor *executor, sl_rates *rates, sl_error *error) {
    int status = sl_cuda_check_fault(executor, error);
    if (status) {
        return status;
    }
    sl_error why = {.code = SL_OK};
    status = sl_cuda_rates(&executor->device, executor->pools[SL_POOL_WEIGHTS],
                           executor->deployment->pool_bytes[SL_POOL_WEIGHTS], rates, &why);
    return status ? sl_cuda_fault(executor, &why, error) : SL_OK;
}

/* Also of one that was made in part. Errors do not matter any more. */
static void destroy_executor(sl_executor *executor) {
    if (!executor) {
        return;
    }
    cudaSetDevice(executor->device.index);
    if (executor->device.stream) {
        cudaStreamSynchronize(executor->device.stream);
    }
    sl_cuda_end_copies(&executor->copies);
    const int32_t bucket_count = executor->deployment->bucket_count;
    for (int32_t b = 0; executor->buckets && b < 2 * bucket_count; b++) {
        if (executor->buckets[b].graph) {
            cudaGraphExecDestroy(executor->buckets[b].graph);
        }
    }
    for (int32_t s = 0; executor->sections && s < bucket_count * executor->section_count; s++) {
        if (executor->sections[s].graph) {
            cudaGraphExecDestroy(executor->sections[s].graph);
        }
    }
    for (int pool = 0; pool < SL_POOL_COUNT; pool++) {
        if (sl_cuda_is_pinned(pool)) {
            sl_cuda_free_host(executor->pools[pool]);
        } else {
            sl_cuda_free(executor->pools[pool]);
        }
    }
    sl_cuda_cublas_destroy(executor->context.blas);
    sl_cuda_free(executor->block);
    sl_cuda_free(executor->control);
    sl_cuda_free(executor->arrivals);
    sl_cuda_free(executor->exchange);
    sl_cuda_free_host(executor->meeting);
    sl_cuda_free_host(executor->digests);
    sl_cuda_free_host(executor->expert_counts);
    for (int i = 0; i < SL_CUDA_STAGES; i++) {
        if (executor->stages[i].finished) {
            cudaEventDestroy(executor->stages[i].finished);
        }
    }
    if (executor->sent) {
        cudaEventDestroy(executor->sent);
    }
    if (executor->device.stream) {
        cudaStreamDestroy(executor->device.stream);
    }
    cudaGetLastError();
    sl_arena_free(&executor->arena);
    sl_free(executor);
}

/* The copies of a step by kernels, in words of 16 bytes and of 4: of an empty step's block, which the
 * device's copy is anyway, and of one token. */
static int warm_up_copies(sl_executor *executor, sl_error *error) {
    int status = sl_cuda_bring_block(executor, &executor->stages[0], true, error);
    if (!status) {
        status = SL_CUDA(sl_cuda_copy_staged(executor->stages[0].tokens, executor->context.last_tokens,
                                             sizeof(int32_t), executor->device.stream),
                         error);
    }
    return status;
}

/* Every bucket once with the empty step that the block holds now: no kernel has to be loaded later, and a
 * launch that the device refuses fails here. Then the small buckets are captured. */
static int warm_up(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    int status = SL_OK;
    for (int32_t b = 0; b < deployment->bucket_count && !status; b++) {
        status = sl_cuda_run_eagerly(executor, &executor->buckets[b], error);
    }
    if (!status) {
        status = sl_cuda_digest_workspace(executor, &executor->control->eager, error);
    }
    if (!status) {
        status = warm_up_copies(executor, error);
    }
    for (int32_t b = 0; b < deployment->bucket_count && !status; b++) {
        const bool small = deployment->buckets[b].rows[SL_ROWS_STEP] <= deployment->limits.sequences;
        for (int32_t s = 0; s < executor->section_count && small; s++) {
            sl_cuda_bucket *section = sl_cuda_section_of(executor, b, s);
            if (section->state == SL_CUDA_BUCKET_NEW) {
                sl_cuda_capture(executor, section);
            }
        }
    }
    return status ? status : sl_cuda_synchronize(&executor->device, error);
}

static int build(sl_executor *executor, const sl_progress *progress, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = SL_CUDA(cudaStreamCreateWithFlags(&executor->device.stream, cudaStreamNonBlocking), error);
    }
    executor->context.dependent_launches = executor->facts->has_bulk_copies;
    executor->context.processors = executor->facts->processors;
    executor->context.arena = &executor->arena;
    executor->context.shared_bytes = executor->facts->block_bytes;
    const unsigned waiting = executor->sleeps ? cudaEventBlockingSync : cudaEventDefault;
    for (int i = 0; i < SL_CUDA_STAGES && !status; i++) {
        status = SL_CUDA(
            cudaEventCreateWithFlags(&executor->stages[i].finished, cudaEventDisableTiming | waiting), error);
    }
    if (!status) {
        status = sl_cuda_make_pools(executor, error);
    }
    if (!status) {
        status = sl_cuda_make_context(executor, error);
    }
    if (!status && deployment->fetch_set_count > 0) {
        status = sl_cuda_make_copies(executor, error);
    }
    if (!status) {
        executor->weight_offsets = sl_arena_alloc(&executor->arena, (size_t)deployment->weight_count,
                                                  sizeof *executor->weight_offsets);
        status = executor->weight_offsets
                     ? sl_cuda_upload(&executor->device, deployment, executor->pools,
                                      executor->weight_offsets, progress, error)
                     : sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the list of weights");
    }
    if (!status) {
        status = sl_cuda_fill_slots(executor, error);
    }
    if (!status) {
        status = sl_cuda_resolve_buckets(executor, error);
    }
    if (!status) {
        status = sl_cuda_prepare_families(executor->facts, error);
    }
    return status ? status : warm_up(executor, error);
}

static int deploy(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                  sl_executor **result, sl_error *error) {
    *result = NULL;
    sl_executor *executor = sl_alloc_zero(1, sizeof *executor);
    if (!executor) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the executor");
    }
    executor->facts = sl_cuda_facts_of(backend);
    executor->deployment = deployment;
    executor->device.index = backend->options.device;
    executor->no_graphs = backend->options.no_graphs;
    executor->sleeps = backend->options.sleeps;
    const int status = build(executor, progress, error);
    if (status) {
        destroy_executor(executor);
        return status;
    }
    *result = executor;
    return SL_OK;
}

/* ---- the backend ---- */

static const sl_kernel *const *kernels(const sl_backend *backend, int32_t *count) {
    (void)backend;
    return sl_cuda_registry(count);
}

static const sl_fusion *const *fusions(const sl_backend *backend, int32_t *count) {
    (void)backend;
    return sl_cuda_fusions(count);
}

/* Part of what is free is left to the driver: graphs, kernels' local memory. */
static uint64_t memory_available(const sl_backend *backend) {
    enum { RESERVE = 256 << 20 };
    size_t available = 0, total = 0;
    if (cudaSetDevice(backend->options.device) != cudaSuccess ||
        cudaMemGetInfo(&available, &total) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return available > RESERVE ? available - RESERVE : 0;
}

static void destroy(sl_backend *backend) {
    sl_free(backend);
}

const sl_backend_functions sl_cuda_functions = {
    .kernels = kernels,
    .fusions = fusions,
    .deploy = deploy,
    .destroy_executor = destroy_executor,
    .step_block = sl_cuda_step_block,
    .submit = sl_cuda_submit,
    .proceed = sl_cuda_proceed,
    .join = sl_cuda_join,
    .leave = sl_cuda_leave,
    .resume = sl_cuda_resume,
    .wait = sl_cuda_wait,
    .logits = sl_cuda_logits,
    .tokens = sl_cuda_tokens,
    .read = sl_cuda_read_pool,
    .write = sl_cuda_write_pool,
    .counters = counters,
    .profile = profile_step,
    .rates = measure_rates,
    .speeds = sl_cuda_speeds,
    .memory_available = memory_available,
    .destroy = destroy,
    .pin = sl_cuda_pin,
    .unpin = sl_cuda_unpin,
    .send = sl_cuda_send,
    .receive = sl_cuda_receive,
    .link = sl_cuda_link,
};
