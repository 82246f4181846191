/* What the device can do at most, for profiles: memory read by plain loads, and BF16 products without memory.
 */
#include "backend/cuda/run/run.h"
#include "backend/cuda/ptx/wgmma.cuh"

enum { READ_THREADS = 512, READ_BLOCKS = 4096, LOADS = 8, PRODUCTS = 8192, TENSOR_THREADS = 256 };

static __global__ void read_kernel(const uint4 *memory, uint64_t words, uint32_t *sink) {
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += LOADS * threads) {
        uint4 part[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const uint64_t from = at + (uint64_t)i * threads;
            part[i] = from < words ? __ldcs(memory + from) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            sum += part[i].x ^ part[i].y ^ part[i].z ^ part[i].w;
        }
    }
    if (sum == 0x9e3779b9u) {
        *sink = sum;
    }
}

cudaError_t sl_cuda_peak_read(const void *memory, uint64_t bytes, uint32_t *sink, cudaStream_t stream) {
    read_kernel<<<READ_BLOCKS, READ_THREADS, 0, stream>>>((const uint4 *)memory, bytes / 16, sink);
    return cudaGetLastError();
}

/* BF16 numbers of either sign between 2^-7 and 2: that they are as good as random matters, because the power
 * that products take depends on it. */
static __device__ __forceinline__ uint32_t random_pair(uint32_t seed) {
    uint32_t x = seed * 2654435769u + 0x85ebca6bu;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    x ^= x >> 15;
    return (x & 0x83ff83ffu) | 0x3c003c00u;
}

static __global__ void __launch_bounds__(TENSOR_THREADS, 1) tensor_kernel(float *sink) {
#if SL_HAS_WGMMA
    __shared__ __align__(1024) uint32_t x[256 * 128 / 4];
    float sums[128] = {};
    uint32_t a[4];
    for (int i = (int)threadIdx.x; i < 256 * 128 / 4; i += TENSOR_THREADS) {
        x[i] = random_pair((uint32_t)i);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = random_pair(threadIdx.x * 4 + (uint32_t)i + 77777u);
    }
    sl_fence_shared();
    __syncthreads();
    const uint32_t start = sl_shared_address(x);
    const uint64_t layout = (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16;
    const uint64_t rows = layout | (uint64_t)(start >> 4 & 0x3fffu);
    for (int i = 0; i < PRODUCTS / 4; i++) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            wgmma<256>(sums, a, rows + (uint64_t)(2 * k));
        }
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 128; i++) {
        sum += sums[i];
    }
    if (sum == 1.2345f) {
        *sink = sum;
    }
#endif
}

cudaError_t sl_cuda_peak_tensor(int device, float *sink, double *operations, cudaStream_t stream) {
    int major = 0, count = 0;
    *operations = 0;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    code = code ? code : cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (code || major != 9) {
        return code;
    }
    tensor_kernel<<<count, TENSOR_THREADS, 0, stream>>>(sink);
    *operations = 2.0 * 64 * 256 * 16 * PRODUCTS * (TENSOR_THREADS / 128) * count;
    return cudaGetLastError();
}
