/* int8 tensor-core products of Q2_K and Q3_K. */
#include "backend/cuda/linear/i8/i8_tile_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_BITS(I8_TILE),
};

SL_CUDA_FAMILY(i8_tile_bits) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                mmq_prepare_types<SL_INTEGER_BITS(SL_INTEGER_ID)>};
