/* Matrix products with few rows for Q4_K, Q5_K and Q6_K. */
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_KQUANTS(I8_ROWS8),
    I8_ROW1_TMA(Q4_K, q4_k),
};

SL_CUDA_FAMILY(i8_rows8_kquants) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                    matvec_prepare<SL_INTEGER_KQUANTS(SL_INTEGER_ID)>};
