/* What the flash kernels for Hopper share: tensor maps over the pages of a cache group, and barriers among
 * some threads of a block. */
#ifndef SL_BACKEND_CUDA_FLASH_HOPPER_CUH
#define SL_BACKEND_CUDA_FLASH_HOPPER_CUH

#include "backend/cuda/copies.cuh"
#include "backend/cuda/flash.cuh"

/* Keys and values of a cache group of f16, bf16 or fp8: [layer of a page][64 rows of each key head][columns];
 * a box is `rows` rows of one key head's page in 128 bytes of its columns, swizzled: piece p of 16 bytes of
 * row r lies in place p ^ r % 8. Columns behind the last one read as zeros. */
typedef struct flash_maps {
    CUtensorMap keys, values;
} flash_maps;

/* Makes them; host code, no device work. flash_hopper.cu */
cudaError_t sl_flash_make_maps(const sl_cuda_cache *cache, uint32_t rows, flash_maps *maps);

#if __CUDA_ARCH__ >= 900

/* x / d rounded down, for 0 <= x < 2^20: half a step is farther from a whole number than the error. */
static __device__ __forceinline__ int32_t hopper_divide(int32_t x, int32_t d) {
    return (int32_t)__fdividef((float)x + 0.5f, (float)d);
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
