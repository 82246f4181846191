/* What the flash kernels for Hopper share: barriers in shared memory, copies by the tensor memory
 * accelerator, and tensor maps over the pages of a cache group. */
#ifndef SL_BACKEND_CUDA_FLASH_HOPPER_CUH
#define SL_BACKEND_CUDA_FLASH_HOPPER_CUH

#include "backend/cuda/flash.cuh"

#include <cuda.h>

/* Keys and values of a cache group of f16, bf16 or fp8: [layer of a page][64 rows of each key head][columns];
 * a box is one key head's page in 128 bytes of its columns, swizzled: piece p of 16 bytes of row r lies in
 * place p ^ r % 8. Columns behind the last one read as zeros. */
typedef struct flash_maps {
    CUtensorMap keys, values;
} flash_maps;

/* Makes them; host code, no device work. flash_hopper.cu */
cudaError_t sl_flash_make_maps(const sl_cuda_cache *cache, flash_maps *maps);

#if __CUDA_ARCH__ >= 900

/* x / d rounded down, for 0 <= x < 2^20: half a step is farther from a whole number than the error. */
static __device__ __forceinline__ int32_t hopper_divide(int32_t x, int32_t d) {
    return (int32_t)__fdividef((float)x + 0.5f, (float)d);
}

static __device__ __forceinline__ void hopper_barrier_start(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* After the barriers' start, before anybody else uses them. */
static __device__ __forceinline__ void hopper_barriers_started(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void hopper_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and lets the barrier wait for that many bytes of copies too. */
static __device__ __forceinline__ void hopper_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Until the barrier has ended the phase of that parity. */
static __device__ __forceinline__ void hopper_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Brings a map near, that copies will need. */
static __device__ __forceinline__ void hopper_expect_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

static __device__ __forceinline__ void hopper_copy_box(uint32_t to, const CUtensorMap *map, int32_t column,
                                                       int32_t row, int32_t layer, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(layer), "r"(barrier)
                 : "memory");
}

/* Multiples of 16 bytes. */
static __device__ __forceinline__ void hopper_copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                                         uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Among `threads` threads that name the same barrier (1 to 15). */
static __device__ __forceinline__ void hopper_meet(int32_t barrier, int32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

static __device__ __forceinline__ void hopper_meet_without_waiting(int32_t barrier, int32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif

#endif
