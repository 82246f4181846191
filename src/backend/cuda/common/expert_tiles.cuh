/* The tiles of rows of every expert, for blocks that go through all tiles of a product. */
#ifndef SL_BACKEND_CUDA_COMMON_EXPERT_TILES_CUH
#define SL_BACKEND_CUDA_COMMON_EXPERT_TILES_CUH

#include "backend/cuda/common/device.cuh"

/* Of EXPERTS experts at most. Rows of expert e are offsets[e] .. offsets[e + 1] - 1 of the schedule's list,
 * and its tiles starts[e] .. starts[e + 1] - 1. */
template <int EXPERTS> struct sl_expert_tiles { int32_t offsets[EXPERTS + 1], starts[EXPERTS + 1]; };

/* By all threads of a block, into shared memory: tiles of HEIGHT rows at most. Returns how many there are. */
template <int HEIGHT, int EXPERTS>
static __device__ int32_t sl_plan_expert_tiles(const int32_t *offsets, int32_t experts,
                                               sl_expert_tiles<EXPERTS> *tiles) {
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i <= experts; i += (int32_t)blockDim.x) {
        tiles->offsets[i] = offsets[i];
    }
    __syncthreads();
    if (threadIdx.x < SL_WARP) {
        const int32_t lane = (int32_t)threadIdx.x;
        int32_t before = 0;
#pragma unroll 1
        for (int32_t first = 0; first < experts; first += SL_WARP) {
            const int32_t expert = first + lane;
            const int32_t count = expert < experts ? tiles->offsets[expert + 1] - tiles->offsets[expert] : 0;
            const int32_t own = (count + HEIGHT - 1) / HEIGHT;
            int32_t end = own;
            for (int distance = 1; distance < SL_WARP; distance *= 2) {
                const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
                end += lane >= distance ? other : 0;
            }
            if (expert < experts) {
                tiles->starts[expert] = before + end - own;
            }
            before += __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
        }
        if (lane == 0) {
            tiles->starts[experts] = before;
        }
    }
    __syncthreads();
    return tiles->starts[experts];
}

#endif
