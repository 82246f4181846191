/* What the attention kernels for Hopper share: tensor maps over the pages of a cache group. */
#ifndef SL_BACKEND_CUDA_ATTENTION_PAGE_MAPS_CUH
#define SL_BACKEND_CUDA_ATTENTION_PAGE_MAPS_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/attention/mma_kernel.cuh"

/* Keys and values of a cache group of f16, bf16 or fp8: [layer of a page][64 rows of each key head][columns];
 * a box is `rows` rows of one key head's page in 128 bytes of its columns, swizzled: piece p of 16 bytes of
 * row r lies in place p ^ r % 8. Columns behind the last one read as zeros. */
typedef struct mma_maps {
    CUtensorMap keys, values;
} mma_maps;

/* Makes them; host code, no device work. page_maps.cu */
cudaError_t sl_page_maps_make(const sl_cuda_cache *cache, uint32_t rows, mma_maps *maps);

#if __CUDA_ARCH__ >= 900

/* x / d rounded down, for 0 <= x < 2^20: half a step is farther from a whole number than the error. */
static __device__ __forceinline__ int32_t hopper_divide(int32_t x, int32_t d) {
    return (int32_t)__fdividef((float)x + 0.5f, (float)d);
}

#endif

#endif
