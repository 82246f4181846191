/* Asynchronous copies to shared memory by the threads themselves (PTX, "cp.async"). */
#ifndef SL_BACKEND_CUDA_PTX_COPY_CUH
#define SL_BACKEND_CUDA_PTX_COPY_CUH

#include <stdint.h>

/* In the window of shared memory, as PTX takes it. */
static __device__ __forceinline__ uint32_t sl_shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void sl_copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* 16 bytes, of which the first `bytes` are copied and the others become zeros. */
static __device__ __forceinline__ void sl_copy_16_of(uint32_t to, const void *from, int32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* The same, and the line's 128 bytes come to L2. */
static __device__ __forceinline__ void sl_copy_16_of_line(uint32_t to, const void *from, int32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Four bytes, of which the first `bytes` are copied and the others become zeros. */
static __device__ __forceinline__ void sl_copy_4_of(uint32_t to, const void *from, int32_t bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* What the thread copied since the last time is a group. */
static __device__ __forceinline__ void sl_copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until no more than LEFT of the thread's groups are under way. */
template <int LEFT> static __device__ __forceinline__ void sl_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

static __device__ __forceinline__ void sl_copy_wait_all(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Between what threads do in shared memory and what another proxy does there (PTX): the bulk or tensor copy
 * that fills it again, and products that read it as a matrix. By all who read or wrote, before they say so,
 * or by who copies, behind the barrier that told it: it delays nobody. */
static __device__ __forceinline__ void sl_fence_shared(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#endif
