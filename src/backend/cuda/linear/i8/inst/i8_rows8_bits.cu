/* Matrix products with few rows for Q2_K and Q3_K. */
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_BITS(I8_ROWS8),
};

SL_CUDA_FAMILY(i8_rows8_bits) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                 matvec_prepare<SL_INTEGER_BITS(SL_INTEGER_ID)>};
