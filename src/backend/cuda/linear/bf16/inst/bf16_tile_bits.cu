/* Many-row matrix products of weights of two and three bits. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    TILE_WGMMA(Q2_K, q2_k, 3.5e-2f),
    TILE_WGMMA(Q3_K, q3_k, 2.5e-2f),
    TILE_WGMMA(TQ2_0, tq2_0, 2.5e-2f),
    TILE_WGMMA(TQ1_0, tq1_0, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_tile_bits) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    prepare_wgmma<SL_QTYPE_Q2_K, SL_QTYPE_Q3_K, SL_QTYPE_TQ2_0, SL_QTYPE_TQ1_0>};
