/* Shapes of the tiles of eight-bit products. No bit depends on which is taken. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_SHAPES_CUH
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_SHAPES_CUH

#include "backend/cuda/common/device.cuh"
#include "backend/cuda/linear/narrow/narrow.h"

enum {
    SL_NARROW_ROWS = 128,  /* of a tile */
    SL_NARROW_BAND = 2048, /* rows that are gone through together */
    SL_NARROW_THREADS = 384
};

/* Blocks of a cluster are `down` by `across`: those one below the other have the same outputs, those side by
 * side the same rows. */
typedef struct sl_narrow_shape {
    int32_t width; /* outputs of a tile */
    int32_t down, across;
    int32_t time;                    /* of a tile in relation to others' */
    int32_t bytes;                   /* of shared memory */
    cudaError_t (*allow)(int bytes); /* the kernel's shared memory */
    cudaError_t (*launch)(const sl_cuda_context *context, const sl_narrow_plan *plan,
                          const sl_launch_shape *shape, cudaStream_t stream);
} sl_narrow_shape;

extern const sl_narrow_shape sl_narrow_e4m3_shapes[SL_NARROW_SHAPES];
extern const sl_narrow_shape sl_narrow_e4m3_blocks_shapes[SL_NARROW_SHAPES];
extern const sl_narrow_shape sl_narrow_s8_shapes[SL_NARROW_SHAPES];
/* Of gates and values: half of a tile's outputs each. */
extern const sl_narrow_shape sl_narrow_e4m3_gated_shapes[SL_NARROW_GATED_SHAPES];
extern const sl_narrow_shape sl_narrow_e4m3_blocks_gated_shapes[SL_NARROW_GATED_SHAPES];
extern const sl_narrow_shape sl_narrow_s8_gated_shapes[SL_NARROW_GATED_SHAPES];

#endif
