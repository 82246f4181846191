/* Checked calls of the CUDA runtime, and the counts that tests read. */
#include "backend/cuda/run/run.h"

#include <stdatomic.h>
#include <string.h>

static _Atomic uint64_t calls;
static _Atomic uint64_t live;    /* allocations that were not freed yet */
static _Atomic uint64_t fail_in; /* 0: never; n: the n-th next call fails */
static const char *_Atomic failed_call;
static _Atomic int failed_device;

void sl_cuda_fail_at(uint64_t nth) {
    atomic_store(&failed_call, NULL);
    atomic_store(&fail_in, nth);
}

const char *sl_cuda_failed_call(int *device) {
    *device = atomic_load(&failed_device);
    return atomic_load(&failed_call);
}

uint64_t sl_cuda_live_count(void) {
    return atomic_load_explicit(&live, memory_order_relaxed);
}

uint64_t sl_cuda_call_count(void) {
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

static void note_failed(const char *call) {
    int device = -1;
    cudaGetDevice(&device);
    atomic_store(&failed_device, device);
    atomic_store(&failed_call, call);
}

bool sl_cuda_inject(const char *call) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    uint64_t left = atomic_load_explicit(&fail_in, memory_order_relaxed);
    while (left != 0) {
        if (atomic_compare_exchange_weak(&fail_in, &left, left - 1)) {
            if (left == 1) {
                note_failed(call);
            }
            return left == 1;
        }
    }
    return false;
}

int sl_cuda_result(cudaError_t code, const char *call, sl_error *error) {
    if (code == cudaSuccess) {
        return SL_OK;
    }
    cudaGetLastError(); /* an error that is not final must not show up in a later call */
    const size_t length = strcspn(call, "(");
    return sl_fail(error, code == cudaErrorMemoryAllocation ? SL_ERR_NOMEM : SL_ERR_DEVICE,
                   "cuda: %.*s: %s (%s)", (int)length, call, cudaGetErrorString(code),
                   cudaGetErrorName(code));
}

int sl_cuda_malloc(sl_cuda_device *device, uint64_t bytes, void **memory, sl_error *error) {
    device->allocations++;
    *memory = NULL;
    const int status = SL_CUDA(cudaMalloc(memory, bytes > 0 ? bytes : 1), error);
    atomic_fetch_add_explicit(&live, status ? 0 : 1, memory_order_relaxed);
    return status;
}

int sl_cuda_malloc_host(sl_cuda_device *device, uint64_t bytes, void **memory, sl_error *error) {
    device->allocations++;
    *memory = NULL;
    const int status = SL_CUDA(cudaMallocHost(memory, bytes > 0 ? bytes : 1), error);
    atomic_fetch_add_explicit(&live, status ? 0 : 1, memory_order_relaxed);
    return status;
}

void sl_cuda_free(void *memory) {
    if (memory) {
        cudaFree(memory);
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    }
}

void sl_cuda_free_host(void *memory) {
    if (memory) {
        cudaFreeHost(memory);
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    }
}

int sl_cuda_synchronize(sl_cuda_device *device, sl_error *error) {
    device->synchronisations++;
    return SL_CUDA(cudaStreamSynchronize(device->stream), error);
}
