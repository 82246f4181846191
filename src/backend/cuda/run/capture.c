/* A bucket's launches: one after the other, or captured as a graph and compared with that. */
#include "backend/cuda/run/executor.h"
#include "base/log.h"

int sl_cuda_run_eagerly(sl_executor *executor, const sl_cuda_bucket *bucket, sl_error *error) {
    if (bucket->first_copies) {
        const int status = SL_CUDA(
            sl_cuda_begin_copies(&executor->copies, bucket->first_copies, executor->device.stream), error);
        if (status) {
            return status;
        }
    }
    const sl_cuda_context tail = sl_cuda_tail_context(executor);
    for (int32_t i = 0; i < bucket->op_count; i += bucket->ops[i].run_length) {
        const sl_cuda_op *op = &bucket->ops[i];
        const sl_cuda_context *context = op->is_tail ? &tail : &executor->context;
        const int status = sl_cuda_result(sl_cuda_inject("launch")
                                              ? cudaErrorUnknown
                                              : sl_cuda_run_of(op)(context, op, executor->device.stream),
                                          "launch", error);
        if (status) {
            sl_fail_prefix(error, sl_cuda_name_of(op));
            return status;
        }
    }
    return SL_OK;
}

static void give_up_graph(sl_executor *executor, sl_cuda_bucket *bucket, const char *why) {
    if (bucket->graph) {
        cudaGraphExecDestroy(bucket->graph);
        bucket->graph = NULL;
        executor->captured--;
    }
    cudaGetLastError();
    bucket->state = SL_CUDA_BUCKET_EAGER;
    executor->failed++;
    sl_log(SL_LOG_WARNING, "cuda: bucket %d (%d rows) runs eagerly: %s", bucket->index,
           executor->deployment->buckets[bucket->index].rows[SL_ROWS_STEP], why);
}

static int record(sl_executor *executor, const sl_cuda_bucket *bucket, cudaGraph_t *graph, sl_error *error) {
    int status =
        SL_CUDA(cudaStreamBeginCapture(executor->device.stream, cudaStreamCaptureModeThreadLocal), error);
    if (status) {
        return status;
    }
    status = sl_cuda_run_eagerly(executor, bucket, error);
    /* The capture must end in any case; it is an error of its own only if all went well before. */
    sl_error ending = {.code = SL_OK};
    const int ended =
        sl_cuda_result(cudaStreamEndCapture(executor->device.stream, graph), "cudaStreamEndCapture", &ending);
    if (!status && ended) {
        *error = ending;
        status = ended;
    }
    return status;
}

void sl_cuda_capture(sl_executor *executor, sl_cuda_bucket *bucket) {
    sl_error error = {.code = SL_OK};
    cudaGraph_t graph = NULL;
    int status = record(executor, bucket, &graph, &error);
    if (!status) {
        executor->device.allocations++; /* a graph takes device memory */
        status = SL_CUDA(cudaGraphInstantiate(&bucket->graph, graph, 0), &error);
    }
    if (!status) {
        executor->captured++;
        bucket->state =
            bucket->is_later || executor->joined ? SL_CUDA_BUCKET_REPLAYED : SL_CUDA_BUCKET_CAPTURED;
        status = SL_CUDA(cudaGraphUpload(bucket->graph, executor->device.stream), &error);
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    if (status) {
        give_up_graph(executor, bucket, error.message);
    }
}

static int copy_last_tokens(sl_executor *executor, bool back, sl_error *error) {
    const uint64_t bytes = (uint64_t)executor->deployment->limits.sequences * sizeof(int32_t);
    int32_t *saved = executor->control->last_tokens, *tokens = executor->context.last_tokens;
    return SL_CUDA(cudaMemcpyAsync(back ? tokens : saved, back ? saved : tokens, bytes,
                                   cudaMemcpyDeviceToDevice, executor->device.stream),
                   error);
}

int sl_cuda_digest_workspace(sl_executor *executor, unsigned long long *result, sl_error *error) {
    return SL_CUDA(sl_cuda_digest(executor->pools[SL_POOL_WORKSPACE],
                                  executor->deployment->pool_bytes[SL_POOL_WORKSPACE], result,
                                  executor->device.stream),
                   error);
}

/* The first step of a captured bucket: replayed, then run eagerly, so that what counts is eager's. Only a
 * failure of the eager run is an error. */
static int compare_ways(sl_executor *executor, sl_cuda_bucket *bucket, sl_error *error) {
    sl_cuda_control *control = executor->control;
    sl_error why = {.code = SL_OK};
    int status = copy_last_tokens(executor, false, error);
    if (!status) {
        status = SL_CUDA(cudaMemsetAsync(control, 0, sizeof *control, executor->device.stream), error);
    }
    if (status) {
        return status;
    }
    int replayed = SL_CUDA(cudaGraphLaunch(bucket->graph, executor->device.stream), &why);
    if (!replayed) {
        replayed = sl_cuda_digest_workspace(executor, &control->replayed, &why);
    }
    status = copy_last_tokens(executor, true, error);
    if (!status) {
        status = sl_cuda_run_eagerly(executor, bucket, error);
    }
    if (!status) {
        status = sl_cuda_digest_workspace(executor, &control->eager, error);
    }
    if (!status) {
        status = SL_CUDA(cudaMemcpyAsync(executor->digests, control, 2 * sizeof *executor->digests,
                                         cudaMemcpyDeviceToHost, executor->device.stream),
                         error);
    }
    if (!status) {
        status = sl_cuda_synchronize(&executor->device, error);
    }
    if (status) {
        return status;
    }
    if (replayed || executor->digests[0] != executor->digests[1]) {
        give_up_graph(executor, bucket, replayed ? why.message : "its replay differs from the eager run");
    } else {
        bucket->state = SL_CUDA_BUCKET_REPLAYED;
    }
    return SL_OK;
}

int sl_cuda_run_bucket(sl_executor *executor, sl_cuda_bucket *bucket, sl_error *error) {
    if (bucket->state == SL_CUDA_BUCKET_NEW) {
        sl_cuda_capture(executor, bucket);
    }
    if (bucket->state == SL_CUDA_BUCKET_REPLAYED) {
        executor->replayed_steps += !bucket->is_later;
        return SL_CUDA(cudaGraphLaunch(bucket->graph, executor->device.stream), error);
    }
    executor->eager_steps += !bucket->is_later;
    return bucket->state == SL_CUDA_BUCKET_CAPTURED ? compare_ways(executor, bucket, error)
                                                    : sl_cuda_run_eagerly(executor, bucket, error);
}
