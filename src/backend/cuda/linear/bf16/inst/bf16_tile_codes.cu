/* Many-row matrix products of weights from the codebooks of IQ2 and IQ3. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

static const sl_cuda_kernel KERNELS[] = {
    TILE_WGMMA(IQ2_XXS, iq2_xxs, 2.5e-2f), TILE_WGMMA(IQ2_XS, iq2_xs, 2.5e-2f),
    TILE_WGMMA(IQ2_S, iq2_s, 2.5e-2f),     TILE_WGMMA(IQ3_XXS, iq3_xxs, 2.5e-2f),
    TILE_WGMMA(IQ3_S, iq3_s, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_tile_codes) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    prepare_wgmma<SL_QTYPE_IQ2_XXS, SL_QTYPE_IQ2_XS, SL_QTYPE_IQ2_S, SL_QTYPE_IQ3_XXS, SL_QTYPE_IQ3_S>};
