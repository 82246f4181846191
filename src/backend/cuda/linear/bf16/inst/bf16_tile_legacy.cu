/* Many-row matrix products of weights in blocks of 32. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    TILES_WGMMA(Q8_0, q8_0, 1.5e-2f, 2.5e-2f),
    TILES_WGMMA(Q4_0, q4_0, 1.5e-2f, 2.5e-2f),
    BF16_TILE_MMA(Q8_0, q8_0, 1.5e-2f),
    BF16_TILE_MMA(Q4_0, q4_0, 1.5e-2f),
};

static cudaError_t prepare(const sl_cuda_facts *facts) {
    const cudaError_t code = prepare_mma<SL_QTYPE_Q8_0, SL_QTYPE_Q4_0>(facts);
    return code ? code : prepare_wgmma<SL_QTYPE_Q8_0, SL_QTYPE_Q4_0>(facts);
}

SL_CUDA_FAMILY(bf16_tile_legacy) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
