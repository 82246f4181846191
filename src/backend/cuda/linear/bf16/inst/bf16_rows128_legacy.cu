/* Matrix products of few rows, of weights in blocks of 32. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(Q8_0, q8_0, 9, 192, 2.5e-2f),
    K16_ROWS128(Q8_0, q8_0, 2.5e-2f),
    BF16_ROWS128(Q4_0, q4_0, 5, 256, 2.5e-2f),
    K16_ROWS128(Q4_0, q4_0, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_legacy) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                       skinny_prepare<SL_QTYPE_Q8_0, SL_QTYPE_Q4_0>};
