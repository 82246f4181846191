/* A digest of device memory, for comparing what two runs left there. */
#include "backend/cuda/run/run.h"
#include "backend/cuda/common/device.cuh"

enum { THREADS = 256, BLOCKS = 264, WORDS = 8 }; /* WORDS: of a thread at least, where there are many */

/* splitmix64's finaliser, so that a word counts together with its place. */
static __device__ unsigned long long mix(unsigned long long z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static __global__ void digest_kernel(const uint32_t *words, uint64_t count, unsigned long long *digest) {
    unsigned long long sum = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * THREADS) {
        sum += mix((unsigned long long)words[i] + (i + 1) * 0x9E3779B97F4A7C15ull);
    }
    atomicAdd(digest, sum);
}

cudaError_t sl_cuda_digest(const void *data, uint64_t bytes, unsigned long long *digest,
                           cudaStream_t stream) {
    const uint64_t words = bytes / sizeof(uint32_t), needed = words / (THREADS * WORDS) + 1;
    const uint32_t blocks = (uint32_t)(needed < BLOCKS ? needed : (uint64_t)BLOCKS);
    digest_kernel<<<blocks, THREADS, 0, stream>>>((const uint32_t *)data, words, digest);
    return cudaGetLastError();
}
