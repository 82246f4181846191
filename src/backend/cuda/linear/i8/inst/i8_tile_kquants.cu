/* int8 tensor-core products of weights in blocks of 256. */
#include "backend/cuda/linear/i8/i8_tile_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_KQUANTS(I8_TILE),
};

SL_CUDA_FAMILY(i8_tile_kquants) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                   mmq_prepare_types<SL_INTEGER_KQUANTS(SL_INTEGER_ID)>};
