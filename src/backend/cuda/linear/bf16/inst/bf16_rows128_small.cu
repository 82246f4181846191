/* Matrix products of few rows, of weights whose quants are floating-point numbers of four or eight bits. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(MXFP4, mxfp4, 9, 256, 2.5e-2f),
    BF16_ROWS128(NVFP4, nvfp4, 2, 256, 2.5e-2f),
    BF16_ROWS128(NVFP4_128, nvfp4_128, 2, 256, 2.5e-2f),
    BF16_ROWS128(FP8_128, fp8_128, 3, 64, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_small) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    skinny_prepare<SL_QTYPE_MXFP4, SL_QTYPE_NVFP4, SL_QTYPE_NVFP4_128, SL_QTYPE_FP8_128>};
