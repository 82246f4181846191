/* x to the scratch that planes.cuh reads, and with experts which of its rows are multiplied together. */
#ifndef SL_BACKEND_CUDA_PLANES_ROWS_CUH
#define SL_BACKEND_CUDA_PLANES_ROWS_CUH

#include "backend/cuda/planes.cuh"

enum { PLANES_FILL = 256, PLANES_LANES = 8, PLANES_EACH = PLANES_FILL / PLANES_LANES };

/* One warp: an expert's rows in tiles of at most ROWS, alike but for the last. */
template <int ROWS>
static __global__ void __launch_bounds__(SL_WARP)
    planes_plan_kernel(const int32_t *offsets, int32_t experts, planes_plan *plan) {
    sl_wait_for_inputs();
    const int32_t lane = (int32_t)threadIdx.x;
    int32_t tiles_before = 0, rows_before = 0;
    for (int32_t base = 0; base < experts; base += SL_WARP) {
        const int32_t expert = base + lane, at = expert < experts ? expert : experts - 1;
        const int32_t begin = offsets[at], count = expert < experts ? offsets[at + 1] - begin : 0;
        const int32_t tiles = (count + ROWS - 1) / ROWS, rows = (count + 7) / 8 * 8;
        int32_t tiles_end = tiles, rows_end = rows;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other_tiles = __shfl_up_sync(SL_FULL_WARP, tiles_end, distance);
            const int32_t other_rows = __shfl_up_sync(SL_FULL_WARP, rows_end, distance);
            tiles_end += lane >= distance ? other_tiles : 0;
            rows_end += lane >= distance ? other_rows : 0;
        }
        const int32_t each = tiles > 0 ? ((count + tiles - 1) / tiles + 7) / 8 * 8 : 0;
        const int32_t first_tile = tiles_before + tiles_end - tiles,
                      first_row = rows_before + rows_end - rows;
        for (int32_t i = 0; i < tiles; i++) {
            const planes_tile tile = {expert, first_row + i * each, begin + i * each,
                                      min(count - i * each, each)};
            plan->at[first_tile + i] = tile;
        }
        tiles_before += __shfl_sync(SL_FULL_WARP, tiles_end, SL_WARP - 1);
        rows_before += __shfl_sync(SL_FULL_WARP, rows_end, SL_WARP - 1);
    }
    if (lane == 0) {
        plan->tiles = tiles_before;
    }
}

/* Where 16 bytes of a row lie: of group g (32 columns) the one or the other half. */
static __device__ __forceinline__ uint32_t planes_piece(int32_t row, int32_t g, int32_t half) {
    return (uint32_t)(row / 8 * 1024 + row % 8 * 128 + (((g % 4 * 2 + half) ^ row % 8) * 16));
}

/* Stores a group's 32 bytes. Neighbouring lanes exchange halves, so that a store fills whole sectors. */
static __device__ __forceinline__ void planes_put(unsigned char *to, int32_t row, int32_t g,
                                                  const uint32_t words[8], bool there) {
    const bool odd = g % 2;
    uint32_t other[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        other[i] = __shfl_xor_sync(SL_FULL_WARP, odd ? words[i] : words[4 + i], 1);
    }
    if (!there) {
        return;
    }
    /* first the even lane's group, of which the odd one got the second half */
    *(uint4 *)(to + planes_piece(row, g & ~1, odd)) =
        odd ? make_uint4(other[0], other[1], other[2], other[3])
            : make_uint4(words[0], words[1], words[2], words[3]);
    *(uint4 *)(to + planes_piece(row, g | 1, odd)) = odd ? make_uint4(words[4], words[5], words[6], words[7])
                                                         : make_uint4(other[0], other[1], other[2], other[3]);
}

/* A tile of rows for each x of the grid; eight lanes take a chunk of a row. */
template <int ROWS>
static __global__ void __launch_bounds__(PLANES_FILL)
    planes_rows_kernel(const __grid_constant__ sl_cuda_context context,
                       const __grid_constant__ planes_args args, const __grid_constant__ sl_cuda_operand from,
                       int32_t x_share) {
    sl_wait_for_inputs();
    const int32_t rows = sl_count(context, args.y.rows);
    if ((int32_t)blockIdx.x >= planes_row_tiles<ROWS>(args, rows)) {
        return;
    }
    const planes_tile tile = planes_find<ROWS>(args, (int32_t)blockIdx.x, rows);
    const int32_t index = (int32_t)blockIdx.y * PLANES_EACH + (int32_t)threadIdx.x / PLANES_LANES;
    const int32_t g = (int32_t)threadIdx.x % PLANES_LANES, r = index / args.chunks, c = index % args.chunks;
    const int32_t at = tile.row + min(r, tile.count - 1), y_row = args.plan ? args.list[at] : at;
    const sl_q8_32 x = sl_q8_32_of(from, y_row / x_share);
    const int32_t group = 8 * c + g;
    const float own = x.scales[group], scale = units_x_scale(own), ratio = units_x_ratio(own, scale);
    const uint4 v[2] = {((const uint4 *)x.values)[2 * group], ((const uint4 *)x.values)[2 * group + 1]};
    const uint32_t in[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        words[i] = units_x_word(in[i], ratio);
    }
    unsigned char *to = (unsigned char *)args.x + ((int64_t)(2 * c + g / 4) * args.x_rows) * PLANES_STEP;
    planes_put(to, tile.first + r, g, words, r < tile.count);
    if (g == 0 && r < tile.count) {
        ((float *)args.x_scales)[(int64_t)c * args.x_rows + tile.first + r] = scale;
    }
}

#endif
