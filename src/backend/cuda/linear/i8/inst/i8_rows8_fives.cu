/* Matrix products with few rows for Q4_1, Q5_0 and Q5_1. */
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_FIVES(I8_ROWS8),
};

SL_CUDA_FAMILY(i8_rows8_fives) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                  matvec_prepare<SL_INTEGER_FIVES(SL_INTEGER_ID)>};
