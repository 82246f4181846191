/* int8 tensor-core products of the types whose values are in a table. */
#include "backend/cuda/linear/i8/i8_tile_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_TABLES(I8_TILE),
};

SL_CUDA_FAMILY(i8_tile_tables) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                  mmq_prepare_types<SL_INTEGER_TABLES(SL_INTEGER_ID)>};
