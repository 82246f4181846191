/* Matrix products of few rows, of weights in blocks of 32 with minima or fifth bits. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(Q4_1, q4_1, 9, 256, 3.5e-2f),
    BF16_ROWS128(Q5_0, q5_0, 9, 256, 2.5e-2f),
    BF16_ROWS128(Q5_1, q5_1, 9, 192, 3.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_fives) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                      skinny_prepare<SL_QTYPE_Q4_1, SL_QTYPE_Q5_0, SL_QTYPE_Q5_1>};
