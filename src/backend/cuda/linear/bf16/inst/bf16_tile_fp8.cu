/* Many-row matrix products of FP8_128 weights. */
#include "backend/cuda/linear/bf16/bf16_tile_mma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_TILE_MMA(FP8_128, fp8_128, 1.5e-2f),
};

SL_CUDA_FAMILY(bf16_tile_fp8) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare_mma<SL_QTYPE_FP8_128>};
