/* Matrix products of few rows, of weights in blocks of 256. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(Q4_K, q4_k, 9, 256, 3.5e-2f), K16_ROWS128(Q4_K, q4_k, 3.5e-2f),
    BF16_ROWS128(Q5_K, q5_k, 5, 256, 3.5e-2f), K16_ROWS128(Q5_K, q5_k, 3.5e-2f),
    BF16_ROWS128(Q6_K, q6_k, 2, 128, 2.5e-2f), K16_ROWS128(Q6_K, q6_k, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_kquants) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                        skinny_prepare<SL_QTYPE_Q4_K, SL_QTYPE_Q5_K, SL_QTYPE_Q6_K>};
