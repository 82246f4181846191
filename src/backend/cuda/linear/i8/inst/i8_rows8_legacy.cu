/* Matrix products with few rows for Q8_0 and Q4_0. */
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_LEGACY(I8_ROWS8),
    I8_ROW1_TMA(Q8_0, q8_0),
};

SL_CUDA_FAMILY(i8_rows8_legacy) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                   matvec_prepare<SL_INTEGER_LEGACY(SL_INTEGER_ID)>};
