/* Matrix products of few rows, of weights from the codebooks of IQ3. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(IQ3_XXS, iq3_xxs, 9, 256, 2.5e-2f),
    BF16_ROWS128(IQ3_S, iq3_s, 9, 192, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_iq3) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                    skinny_prepare<SL_QTYPE_IQ3_XXS, SL_QTYPE_IQ3_S>};
