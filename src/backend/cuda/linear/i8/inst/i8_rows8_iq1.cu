/* Matrix products with few rows of IQ1 and of the ternary types. */
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_IQ1(I8_ROWS8),
    SL_INTEGER_TERNARY(I8_ROWS8),
};

SL_CUDA_FAMILY(i8_rows8_iq1) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    matvec_prepare<SL_INTEGER_IQ1(SL_INTEGER_ID), SL_INTEGER_TERNARY(SL_INTEGER_ID)>};
