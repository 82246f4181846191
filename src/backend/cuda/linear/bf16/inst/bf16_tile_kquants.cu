/* Many-row matrix products of weights in blocks of 256. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    TILES_WGMMA(Q4_K, q4_k, 1.5e-2f, 3.5e-2f), TILES_WGMMA(Q5_K, q5_k, 1.5e-2f, 3.5e-2f),
    TILES_WGMMA(Q6_K, q6_k, 2e-2f, 2.5e-2f),   BF16_TILE_MMA(Q4_K, q4_k, 1.5e-2f),
    BF16_TILE_MMA(Q6_K, q6_k, 2e-2f),
};

static cudaError_t prepare(const sl_cuda_facts *facts) {
    const cudaError_t code = prepare_mma<SL_QTYPE_Q4_K, SL_QTYPE_Q6_K>(facts);
    return code ? code : prepare_wgmma<SL_QTYPE_Q4_K, SL_QTYPE_Q5_K, SL_QTYPE_Q6_K>(facts);
}

SL_CUDA_FAMILY(bf16_tile_kquants) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
