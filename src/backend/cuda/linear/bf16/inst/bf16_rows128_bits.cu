/* Matrix products of few rows, of weights of two and three bits. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(Q2_K, q2_k, 9, 256, 3.5e-2f),
    BF16_ROWS128(Q3_K, q3_k, 9, 256, 2.5e-2f),
    BF16_ROWS128(TQ2_0, tq2_0, 9, 256, 2.5e-2f),
    BF16_ROWS128(TQ1_0, tq1_0, 9, 256, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_bits) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    skinny_prepare<SL_QTYPE_Q2_K, SL_QTYPE_Q3_K, SL_QTYPE_TQ2_0, SL_QTYPE_TQ1_0>};
