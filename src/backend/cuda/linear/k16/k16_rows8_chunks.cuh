/* Chains of k16_rows8.cuh whose slots have a chunk of the columns each. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_CHUNKS_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_CHUNKS_CUH

#include "backend/cuda/linear/k16/k16_rows8.cuh"

#if SL_HAS_WGMMA

/* Boxes begin at multiples of 16 bytes. */
template <typename LAYOUT>
static __device__ __forceinline__ uint32_t slim_shift(const slim_work &work, int32_t chunk) {
    enum { BYTES = LAYOUT::bytes };
    return BYTES % 16 ? (uint32_t)(work.first_chunk + chunk) * (uint32_t)BYTES % 16u : 0u;
}

/* What a lane knows for good: where it reads the ring's first slot and x, and puts scales. */
typedef struct slim_lane {
    thin_view view;
    uint32_t header, x, full; /* full: the first slot's barrier */
    unsigned char *scales;
} slim_lane;

template <typename LAYOUT> static __device__ __forceinline__ slim_lane slim_lane_of(const slim_work &work) {
    const int32_t lane = work.lane, row = lane / 4;
    const slim_ring ring = slim_ring_of<LAYOUT>(work);
    const uint32_t scales = work.memory.scales + (uint32_t)(work.warp * 2 * LAYOUT::scales);
    slim_lane me;
    me.view.matrix = ring.slots + (uint32_t)(lane % 16 * LAYOUT::stride + lane / 16 * 16);
    me.view.row = ring.slots + (uint32_t)(row * LAYOUT::stride + lane % 4 * 2);
    me.view.scales = work.base + scales + (uint32_t)(row * thin_layout<LAYOUT::type>::scales);
    me.header = ring.slots + (uint32_t)(lane % 16 * LAYOUT::stride);
    me.scales = work.shared + scales + lane % 16 * thin_layout<LAYOUT::type>::scales;
    me.x = slim_x_of<LAYOUT>(work);
    me.full = ring.full;
    return me;
}

/* All chunks of all tiles of a warp, as one stream. Calls begin(round) and finish(sums, round) for each tile.
 */
template <typename LAYOUT, typename BEGIN, typename FINISH>
static __device__ __forceinline__ void slim_stream_chunks(const slim_work &work, BEGIN begin, FINISH finish) {
    enum { COLUMNS = LAYOUT::columns, STEPS = COLUMNS / SLIM_STEP };
    enum { SCALES = LAYOUT::scales };
    const slim_lane me = slim_lane_of<LAYOUT>(work);
    const int32_t upper = work.lane / 16;
    const uint32_t to_empty = work.memory.empties - work.memory.barriers;
    thin_quants<LAYOUT::type> quants[2];
    uint32_t a[2][2][4], x[2][4];
    float d[4] = {};
    slim_place place = {};
    uint32_t x_from = me.x, scales = 0;
    int32_t left = (work.end_tile - work.first_tile + work.tile_step - 1) / work.tile_step * work.chunks;
    int32_t round = 0, part = 0;
    sl_barrier_wait(me.full, 0);
    uint32_t offset = slim_shift<LAYOUT>(work, 0);
    thin_view view = {me.view.matrix + offset, me.view.row + offset, me.view.scales};
    thin_scales<LAYOUT::type>(thin_header<LAYOUT::type>(me.header + offset, upper), upper, me.scales);
    __syncwarp();
    quants[0].load(view, 0);
    quants[0].template run<0>(a[0]);
    int32_t until = work.chunks - slim_wait_x(work, 0, &part); /* chunks left of the tile, then */
    slim_read_x(x_from, x[0]);
#pragma unroll 1
    while (left > 0) {
        begin(round);
#pragma unroll 1
        for (int32_t rest = work.chunks; rest > 0; rest--, left--) {
            slim_place next = place;
            thin_view ahead = view;
            uint4 header = {};
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const bool ends = step + 1 == STEPS;
                if (!ends) {
                    quants[(step + 1) % 2].load(view, step + 1);
                }
                slim_read_x(x_from + (uint32_t)(2 * SLIM_STEP * step + 16), x[1]);
                sl_mma_bf16(d, a[0][0], x[0][0], x[0][1]);
                sl_mma_bf16(d, a[0][1], x[0][2], x[0][3]);
                if (step == 0) {
                    if (left > 1) { /* what is decoded ahead in the end is nobody's */
                        next = slim_next<LAYOUT>(work, place);
                        sl_barrier_wait(me.full + next.barrier, next.parity);
                    }
                    if (rest - 1 == until) {
                        until = work.chunks - slim_wait_x(work, work.chunks - until, &part);
                    }
                    scales = SCALES - scales;
                    offset = next.slot + slim_shift<LAYOUT>(work, rest == 1 ? 0 : work.chunks - rest + 1);
                    ahead = {me.view.matrix + offset, me.view.row + offset, me.view.scales + scales};
                    header = thin_header<LAYOUT::type>(me.header + offset, upper);
                }
                if (ends) {
                    quants[(step + 1) % 2].load(ahead, 0);
                }
                quants[step % 2].template run<1>(a[1]);
                if (step == (STEPS > 2 ? STEPS - 3 : 0)) {
                    thin_scales<LAYOUT::type>(header, upper, me.scales + scales);
                }
                if (step == STEPS - 2) {
                    __syncwarp(); /* all of the chunk is read, and the next one's scales are there */
                }
                x_from = !ends ? x_from : rest == 1 ? me.x : x_from + 2 * COLUMNS;
                slim_read_x(ends ? x_from : x_from + (uint32_t)(2 * SLIM_STEP * (step + 1)), x[0]);
                sl_mma_bf16(d, a[1][0], x[1][0], x[1][1]);
                sl_mma_bf16(d, a[1][1], x[1][2], x[1][3]);
                quants[(step + 1) % 2].template run<0>(a[0]);
            }
            __syncwarp();
            sl_barrier_arrive_if(me.full + place.barrier + to_empty, work.lane < SL_ARRIVING_LANES);
            place = next;
            view = ahead;
        }
        finish(d, round);
        d[0] = d[1] = d[2] = d[3] = 0.0f;
        round++;
    }
}
#endif

#endif
