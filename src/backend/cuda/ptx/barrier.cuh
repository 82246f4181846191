/* Barriers among some warps of a block, and registers from one warpgroup to another (PTX, "bar",
 * "setmaxnreg"). */
#ifndef SL_BACKEND_CUDA_PTX_BARRIER_CUH
#define SL_BACKEND_CUDA_PTX_BARRIER_CUH

#include <stdint.h>

/* `threads` threads, whole warps, meet at barrier 1 to 15 wherever they are in the code. */
static __device__ __forceinline__ void sl_meet(int32_t barrier, int32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* The same, numbers known to the compiler. */
template <int BARRIER, int THREADS> static __device__ __forceinline__ void sl_meet(void) {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

/* Counts as one of them, and goes on. */
template <int BARRIER, int THREADS> static __device__ __forceinline__ void sl_meet_without_waiting(void) {
    asm volatile("bar.arrive %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

static __device__ __forceinline__ void sl_meet_without_waiting(int32_t barrier, int32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of each thread from now on, in all warps of a warpgroup: fewer than the kernel was compiled for, more. */
template <int REGISTERS> static __device__ __forceinline__ void sl_give_registers(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void sl_take_registers(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif
#endif
