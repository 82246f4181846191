/* Clusters (PTX, "barrier.cluster", "mapa"), of one block where the device does not know them. */
#ifndef SL_BACKEND_CUDA_PTX_CLUSTER_CUH
#define SL_BACKEND_CUDA_PTX_CLUSTER_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t sl_cluster_blocks(void) {
    uint32_t blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}

/* A barrier of the cluster in two parts. Other blocks' shared memory is there after the first, and until the
 * last. */
template <int BLOCKS> static __device__ __forceinline__ void sl_cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    }
#endif
}

template <int BLOCKS> static __device__ __forceinline__ void sl_cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
    if (BLOCKS > 1) {
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
#endif
}

static __device__ __forceinline__ void sl_cluster_sync(void) {
#if __CUDA_ARCH__ >= 900
    sl_cluster_arrive<2>();
    sl_cluster_wait<2>();
#else
    __syncthreads();
#endif
}

/* The same shared variable of another block. */
template <typename TYPE> static __device__ __forceinline__ TYPE *sl_of_block(TYPE *own, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    TYPE *other;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(rank));
    return other;
#else
    (void)rank;
    return own;
#endif
}

#endif
