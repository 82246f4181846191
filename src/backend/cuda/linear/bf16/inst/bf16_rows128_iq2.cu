/* Matrix products of few rows, of weights from the codebooks of IQ2. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(IQ2_XXS, iq2_xxs, 9, 256, 2.5e-2f),
    BF16_ROWS128(IQ2_XS, iq2_xs, 9, 256, 2.5e-2f),
    BF16_ROWS128(IQ2_S, iq2_s, 9, 256, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_iq2) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                    skinny_prepare<SL_QTYPE_IQ2_XXS, SL_QTYPE_IQ2_XS, SL_QTYPE_IQ2_S>};
