/* Matrix products of few rows, of weights from the codebooks of IQ1. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(IQ1_S, iq1_s, 9, 256, 3.5e-2f),
    BF16_ROWS128(IQ1_M, iq1_m, 9, 256, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_iq1) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                    skinny_prepare<SL_QTYPE_IQ1_S, SL_QTYPE_IQ1_M>};
