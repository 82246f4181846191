/* Matrix products with few rows of NVFP4, whole chunks of 256 columns (the plain kernels take the others). */
#include "backend/cuda/linear/i8/i8_fp4.cuh"
#include "backend/cuda/linear/i8/i8_rows8_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_NVFP4(I8_ROWS8),
};

SL_CUDA_FAMILY(i8_rows8_nvfp4) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                  matvec_prepare<SL_INTEGER_NVFP4(SL_INTEGER_ID)>};
