/* Many-row matrix products of weights from the codebooks of IQ1. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    TILE_WGMMA(IQ1_S, iq1_s, 3.5e-2f),
    TILE_WGMMA(IQ1_M, iq1_m, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_tile_iq1) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                 prepare_wgmma<SL_QTYPE_IQ1_S, SL_QTYPE_IQ1_M>};
