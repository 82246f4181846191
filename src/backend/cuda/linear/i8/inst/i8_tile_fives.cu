/* int8 tensor-core products of Q4_1, Q5_0 and Q5_1. */
#include "backend/cuda/linear/i8/i8_tile_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_FIVES(I8_TILE),
};

SL_CUDA_FAMILY(i8_tile_fives) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                 mmq_prepare_types<SL_INTEGER_FIVES(SL_INTEGER_ID)>};
