/* Copies by kernels: the stream's own are the work of another engine, and changing from kernels to it and
 * back takes longer than a launch (docs/lab/run.md). */
#include "backend/cuda/run/step_copies.h"

#include "backend/cuda/common/device.cuh"

enum { THREADS = 256, MOST_BLOCKS = 256 };

/* A word to a thread, so that as many as can be are on their way over the bus at once. */
template <typename WORD>
static __global__ void __launch_bounds__(THREADS) copy_kernel(WORD *to, const WORD *from, uint64_t count) {
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * THREADS) {
        to[i] = from[i];
    }
}

template <typename WORD>
static cudaError_t copy_words(void *to, const void *from, uint64_t bytes, cudaStream_t stream) {
    const uint64_t count = bytes / sizeof(WORD), blocks = (count + THREADS - 1) / THREADS;
    const unsigned grid = blocks < (uint64_t)MOST_BLOCKS ? (unsigned)blocks : (unsigned)MOST_BLOCKS;
    copy_kernel<WORD><<<grid, THREADS, 0, stream>>>((WORD *)to, (const WORD *)from, count);
    return cudaGetLastError();
}

cudaError_t sl_cuda_copy_staged(void *to, const void *from, uint64_t bytes, cudaStream_t stream) {
    return ((uintptr_t)to | (uintptr_t)from | bytes) % sizeof(uint4) == 0
               ? copy_words<uint4>(to, from, bytes, stream)
               : copy_words<uint32_t>(to, from, bytes, stream);
}
