/* The rows of a product that a block takes: a tile of the schedule's, with experts, or of the step's. */
#ifndef SL_BACKEND_CUDA_COMMON_TILE_ROWS_CUH
#define SL_BACKEND_CUDA_COMMON_TILE_ROWS_CUH

#include "backend/cuda/common/linear_arguments.cuh"

template <int ROWS> struct sl_tile_rows {
    int32_t y[ROWS], x[ROWS];     /* rows of y and of x, -1 past the end */
    int32_t expert, count, first; /* first: in the list or in y */
};

/* By the whole block, into shared memory; `tile`: which one. `all`: rows of the step or, where the bucket's
 * are taken whether the step has them or not, of the bucket; not read with experts. False when the tile has
 * none. */
template <int ROWS, typename ARGS>
static __device__ __forceinline__ bool sl_find_rows(const ARGS &args, int32_t experts, int32_t all,
                                                    int32_t tile, sl_tile_rows<ROWS> *rows) {
    if (threadIdx.x == 0) {
        const int32_t left = args.list ? 0 : all - tile * ROWS;
        rows->expert = 0;
        rows->first = tile * ROWS;
        rows->count = left < ROWS ? left : ROWS;
    }
    __syncwarp();
    if (args.list && threadIdx.x < SL_WARP) {
        sl_find_tile<ROWS>(args.offsets, experts, tile, rows);
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < ROWS; i += (int32_t)blockDim.x) {
        int32_t y = -1;
        if (i < rows->count) {
            y = args.list ? args.list[rows->first + i] : rows->first + i;
        }
        rows->y[i] = y;
        rows->x[i] = y < 0 ? -1 : y / args.x_share;
    }
    __syncthreads();
    return rows->count > 0;
}

#endif
