/* Matrix products with few rows for the types whose values are in a table. */
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_TABLES(I8_ROWS8),
};

SL_CUDA_FAMILY(i8_rows8_tables) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                   matvec_prepare<SL_INTEGER_TABLES(SL_INTEGER_ID)>};
