/* Many-row matrix products of weights whose quants are floating-point numbers of four or eight bits. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    TILE_WGMMA(MXFP4, mxfp4, 2.5e-2f),
    TILE_WGMMA(NVFP4, nvfp4, 2.5e-2f),
    TILE_WGMMA(NVFP4_128, nvfp4_128, 2.5e-2f),
    TILE_WGMMA(FP8_128, fp8_128, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_tile_small) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    prepare_wgmma<SL_QTYPE_MXFP4, SL_QTYPE_NVFP4, SL_QTYPE_NVFP4_128, SL_QTYPE_FP8_128>};
