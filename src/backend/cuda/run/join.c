/* Executors of the ranks of one program, each on a device of its own, joined to a group. */
#include "backend/cuda/run/executor.h"

#include <stdio.h>

static int check_rank(sl_executor *const *ranks, int32_t count, int32_t rank, sl_error *error) {
    const sl_deployment *deployment = ranks[rank]->deployment;
    const uint64_t slots = SL_EXCHANGE_TURNS * (uint64_t)count * deployment->exchange_bytes;
    if (deployment->program->ranks != count || deployment->program->rank != rank) {
        return sl_fail(error, SL_ERR_INVALID, "cuda: rank %d of %d is given as rank %d of %d",
                       deployment->program->rank, deployment->program->ranks, (int)rank, (int)count);
    }
    if (deployment->exchange_bytes != ranks[0]->deployment->exchange_bytes ||
        deployment->pool_bytes[SL_POOL_EXCHANGE] < SL_EXCHANGE_FLAGS + slots) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: rank %d has no room for what ranks exchange",
                       (int)rank);
    }
    for (int32_t other = 0; other < rank; other++) {
        if (ranks[other]->device.index == ranks[rank]->device.index) {
            return sl_fail(error, SL_ERR_INVALID, "cuda: ranks %d and %d are both on device %d; name two",
                           (int)other, (int)rank, (int)ranks[rank]->device.index);
        }
    }
    return SL_OK;
}

static int reach_others(sl_executor *const *ranks, int32_t count, int32_t rank, sl_error *error) {
    const int own = ranks[rank]->device.index;
    int status = SL_OK;
    for (int32_t other = 0; other < count && !status; other++) {
        bool reaches = true;
        if (other != rank) {
            status = sl_cuda_reach(own, ranks[other]->device.index, &reaches, error);
        }
        if (!status && !reaches) {
            status = sl_fail(error, SL_ERR_UNSUPPORTED,
                             "cuda: devices %d and %d cannot reach each other's memory; name devices "
                             "that can (nvidia-smi topo -p2p w), or a single one",
                             own, (int)ranks[other]->device.index);
        }
    }
    return status;
}

static int fill_exchange(sl_executor *const *ranks, int32_t count, int32_t rank, sl_error *error) {
    sl_executor *executor = ranks[rank];
    sl_cuda_exchange exchange = {.rank = rank,
                                 .ranks = count,
                                 .slot_bytes = executor->deployment->exchange_bytes,
                                 .meeting = executor->meeting};
    for (int32_t r = 0; r < count; r++) {
        exchange.pools[r] = ranks[r]->pools[SL_POOL_EXCHANGE];
    }
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = SL_CUDA(cudaMemcpyAsync(executor->context.exchange, &exchange, sizeof exchange,
                                         cudaMemcpyHostToDevice, executor->device.stream),
                         error);
    }
    return status ? status : sl_cuda_synchronize(&executor->device, error);
}

/* While a rank makes a graph its device may wait for others, whose kernels may already wait for it: all
 * graphs are made before. Those that were to be compared with eager are not: a rank that runs a step twice
 * would meet others that run it once. */
static int make_graphs(sl_executor *executor, sl_error *error) {
    const int32_t fronts = executor->deployment->bucket_count;
    const int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    executor->joined = true;
    for (int32_t b = 0; b < 2 * fronts && !status; b++) {
        sl_cuda_bucket *bucket = &executor->buckets[b];
        if (bucket->state == SL_CUDA_BUCKET_NEW) {
            sl_cuda_capture(executor, bucket);
        } else if (bucket->state == SL_CUDA_BUCKET_CAPTURED) {
            bucket->state = SL_CUDA_BUCKET_REPLAYED;
        }
    }
    return status ? status : sl_cuda_synchronize(&executor->device, error);
}

static int name_rank(const sl_executor *executor, sl_error *error) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)executor->device.index);
    return sl_fail_prefix(error, name);
}

int sl_cuda_join(sl_executor *const *ranks, int32_t count, sl_error *error) {
    if (count < 2 || count > SL_MOST_RANKS) {
        return sl_fail(error, SL_ERR_INVALID, "cuda: %d ranks; 2 to %d can be joined", (int)count,
                       SL_MOST_RANKS);
    }
    int status = SL_OK;
    for (int32_t rank = 0; rank < count && !status; rank++) {
        status = sl_cuda_check_fault(ranks[rank], error);
        status = status ? status : check_rank(ranks, count, rank, error);
        if (!status && (ranks[rank]->steps > 0 || ranks[rank]->joined || ranks[rank]->section_count > 1)) {
            status =
                sl_fail(error, SL_ERR_INTERNAL,
                        "cuda: rank %d has run or was joined before, or has several sections", (int)rank);
        }
    }
    for (int32_t rank = 0; rank < 3 * count && !status; rank++) { /* each of these for all of them */
        status = rank < count       ? reach_others(ranks, count, rank, error)
                 : rank < 2 * count ? make_graphs(ranks[rank % count], error)
                                    : fill_exchange(ranks, count, rank % count, error);
        status = status ? name_rank(ranks[rank % count], error) : SL_OK;
    }
    return status;
}

void sl_cuda_leave(sl_executor *const *ranks, int32_t count) {
    for (int32_t rank = 0; rank < count; rank++) {
        ((volatile sl_cuda_meeting *)ranks[rank]->meeting)->over = 1;
    }
    for (int32_t rank = 0; rank < count; rank++) {
        cudaSetDevice(ranks[rank]->device.index);
        cudaStreamSynchronize(ranks[rank]->device.stream);
        cudaGetLastError();
    }
}

int sl_cuda_set_alone(sl_executor *executor, bool alone, sl_error *error) {
    const int32_t ranks = alone ? 0 : executor->deployment->program->ranks;
    if (!executor->joined) {
        return SL_OK;
    }
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = SL_CUDA(cudaMemcpyAsync(&executor->context.exchange->ranks, &ranks, sizeof ranks,
                                         cudaMemcpyHostToDevice, executor->device.stream),
                         error);
    }
    return status ? status : sl_cuda_synchronize(&executor->device, error);
}
