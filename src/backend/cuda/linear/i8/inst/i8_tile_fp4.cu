/* int8 tensor-core products of NVFP4. */
#include "backend/cuda/linear/i8/i8_tile_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_NVFP4(I8_TILE),
};

SL_CUDA_FAMILY(i8_tile_fp4) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                               mmq_prepare_types<SL_INTEGER_NVFP4(SL_INTEGER_ID)>};
