/* Matrix products for one to four rows in class "bf16/k16" (k16.h), or one row per chosen expert:
 * y = x W^T (+ bias) (+ residual).
 *
 * A warp takes sixteen weight rows and a range of the columns, which are one chain of mma.m16n8k16: what
 * comes of one is added to by the next. It has a ring of slots in shared memory, which another warp fills
 * with boxes of tensor maps, as a box costs the warp that asks for it as much as 160 columns: all slots
 * before the kernel's inputs are there, if it takes so long, then each as it comes free. Quants, scales and x
 * are read ahead of their use, and the next 32 columns are decoded while the products of these run, the first
 * ones before the inputs are there. x lies in shared memory as lanes want it: the four words of 32 columns
 * one behind the other. Ranges of one tile belong to neighbouring warps, the first of which adds them. With
 * gates, eight of a tile's rows are gates and the other eight their values. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS4_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS4_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/linear/k16/k16_chain.cuh"

enum {
    THIN_WARPS = 12, /* of a block, that have chains */
    THIN_THREADS = THIN_WARPS * SL_WARP,
    THIN_COPIERS = 4,           /* warps behind them: every fourth warp with a chain is one's */
    THIN_STAGES = 4,            /* slots of a ring, at most, where it does not have the whole range */
    THIN_RING = 18 * 1024,      /* bytes of it, about */
    THIN_UNDER_WAY = 40 * 1024, /* of a block, while its rings fill: more would delay x */
    THIN_WHOLE = 112 * 1024,    /* weights that a block of one in two processors may have */
    THIN_STEP = 64,             /* columns that are read at once */
    THIN_BYTES = 227 * 1024,
    THIN_LEAST_BYTES = 116 * 1024 /* two blocks on one processor would leave another idle */
};

typedef struct thin_args {
    CUtensorMap maps[SL_LINEAR_SEGMENTS];
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_tile[SL_LINEAR_SEGMENTS + 1];
    int32_t segments, tiles;
    /* A block's tiles lie one behind the other, `each` and in the first `more` blocks one more; where a warp
     * has two at most they are dealt out one by one, so that neighbouring processors read neighbouring rows.
     */
    int32_t each, more;
    bool deals;
    int32_t ranges, warps, stages; /* warps: that have chains, a multiple of ranges */
    int32_t under_way;             /* slots of a copier that are on their way at once, before all are full */
    uint32_t exponent;             /* THIN_EXPONENT */
    bool whole;                    /* rings have room for all of a block's weights */
    int32_t rows;                  /* of x; 1 with experts, whose rows are blockIdx.y */
    sl_cuda_operand x, ids, residual, y;
    sl_cuda_operand gated; /* BF16, or absent: segment 0 are gates, 1 as many values */
    int32_t function;      /* sl_activation */
    int32_t x_share;       /* rows of y that read one row of x */
} thin_args;

/* Shared memory: rings, scales (two chunks of each warp), barriers of slots that are full and of such that
 * are empty, ranges' sums (two of each warp), x. */
typedef struct thin_memory {
    uint32_t scales, barriers, empties, sums, x, bytes;
    uint32_t x_row; /* bytes; rows begin in different banks */
} thin_memory;

template <int TYPE> struct thin_sizes {
    enum {
        slot = (CHAIN_ROWS * thin_layout<TYPE>::stride + 127) / 128 * 128,
        scales = CHAIN_ROWS * thin_layout<TYPE>::scales, /* of a chunk */
        sums = SL_WARP * 16
    };
};

template <int TYPE>
static __host__ __device__ __forceinline__ thin_memory thin_memory_of(const thin_args &args) {
    const uint32_t warps = (uint32_t)args.warps, stages = (uint32_t)args.stages;
    thin_memory memory;
    memory.scales = warps * stages * thin_sizes<TYPE>::slot;
    memory.barriers = memory.scales + warps * 2 * thin_sizes<TYPE>::scales;
    memory.empties = memory.barriers + warps * stages * 8;
    memory.sums = memory.empties + warps * stages * 8;
    memory.x = memory.sums + (args.ranges > 1 ? warps * 2 * thin_sizes<TYPE>::sums : 0);
    memory.x_row = 2 * (uint32_t)args.weights[0].columns + 16;
    memory.bytes = memory.x + (uint32_t)args.rows * memory.x_row;
    return memory;
}

#if SL_HAS_WGMMA

/* What a warp works with. */
typedef struct thin_work {
    const thin_args &args;
    thin_memory memory;
    unsigned char *shared;
    uint32_t base; /* the same, in the window */
    int32_t warp, lane;
    int32_t range, pair; /* of the warp; which warps share tiles */
    int32_t first_chunk, chunks;
    int32_t first_tile, end_tile, tile_step;
    int32_t expert, y_row; /* y_row: of the block's first row */
} thin_work;

/* ---- copies, by one lane ---- */

typedef struct thin_copies {
    int32_t tile, chunk; /* the next */
} thin_copies;

static __device__ __forceinline__ int32_t thin_segment(const thin_args &args, int32_t tile) {
    return sl_linear_find(args.first_tile, args.segments, tile);
}

template <int TYPE>
static __device__ __forceinline__ uint32_t thin_barrier(const thin_work &work, int32_t slot) {
    return work.base + work.memory.barriers + 8 * (uint32_t)(work.warp * work.args.stages + slot);
}

/* Where nobody reads a slot any more. */
static __device__ __forceinline__ uint32_t thin_empty(const thin_work &work, int32_t slot) {
    return work.base + work.memory.empties + 8 * (uint32_t)(work.warp * work.args.stages + slot);
}

template <int TYPE>
static __device__ __forceinline__ void thin_pass(const thin_work &work, thin_copies &copies) {
    copies.chunk += thin_layout<TYPE>::chunks;
    if (copies.chunk >= work.chunks) {
        copies.chunk = 0;
        copies.tile += work.tile_step;
    }
}

template <int TYPE>
static __device__ __forceinline__ void thin_bring(const thin_work &work, thin_copies &copies, int32_t slot) {
    typedef thin_layout<TYPE> layout;
    const thin_args &args = work.args;
    if (copies.tile >= work.end_tile) {
        return;
    }
    const uint32_t full = thin_barrier<TYPE>(work, slot);
    const uint32_t to = work.base + (uint32_t)(work.warp * args.stages + slot) * thin_sizes<TYPE>::slot;
    /* Boxes begin at multiples of 16 bytes; their columns are of two bytes. */
    const int32_t column = (work.first_chunk + copies.chunk) * layout::bytes / 16 * 8;
    sl_barrier_expect(full, CHAIN_ROWS * layout::stride);
    if (args.gated.data) {
        const int32_t row = copies.tile * (CHAIN_ROWS / 2);
        sl_box_copy_once(to, &args.maps[0], column, row, work.expert, full);
        sl_box_copy_once(to + CHAIN_ROWS / 2 * layout::stride, &args.maps[1], column, row, work.expert, full);
    } else {
        const int32_t segment = thin_segment(args, copies.tile);
        sl_box_copy_once(to, &args.maps[segment], column,
                         (copies.tile - args.first_tile[segment]) * CHAIN_ROWS, work.expert, full);
    }
    thin_pass<TYPE>(work, copies);
}

/* ---- x, by all threads ---- */

template <int TYPE> static __device__ __forceinline__ void thin_stage_x(const thin_work &work) {
    enum { AT_ONCE = 4 };
    const thin_args &args = work.args;
    const int32_t eights = args.weights[0].columns / 8;
    for (int32_t r = 0; r < args.rows; r++) {
        const int64_t x_row = (work.y_row + r) / args.x_share;
        const uint4 *from =
            (const uint4 *)((const uint16_t *)(args.x.data + (uint64_t)x_row * args.x.row_bytes) +
                            args.x.column);
        uint32_t *to = (uint32_t *)(work.shared + work.memory.x + (uint32_t)r * work.memory.x_row);
#pragma unroll 1
        for (int32_t first = (int32_t)threadIdx.x; first < eights; first += AT_ONCE * THIN_THREADS) {
            uint4 words[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int32_t at = first + i * THIN_THREADS;
                words[i] = at < eights ? from[at] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (first + i * THIN_THREADS < eights) {
                    chain_put_x<TYPE>(to, first + i * THIN_THREADS, words[i]);
                }
            }
        }
    }
}

/* ---- results ---- */

/* Output `output` of a segment, or of gates; the lane's row `row` of x. second: eight outputs on, or the
 * value of the gate. */
static __device__ __forceinline__ void thin_store(const thin_work &work, int32_t segment, int32_t output,
                                                  int32_t row, float first, float second) {
    const thin_args &args = work.args;
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t y_row = work.y_row + row;
    const bool gated = args.gated.data != NULL;
    if (output >= weight.rows) {
        return;
    }
    const int64_t bias = (int64_t)work.expert * weight.rows + output;
    first = weight.bias ? first + weight.bias[bias] : first;
    if (gated) {
        second = args.weights[1].bias ? second + args.weights[1].bias[bias] : second;
        uint16_t *to = (uint16_t *)(args.gated.data + (uint64_t)(uint32_t)y_row * args.gated.row_bytes) +
                       args.gated.column;
        to[output] = sl_f32_to_bf16(sl_activate(args.function, first) * second);
        return;
    }
    float *y = sl_f32(args.y, y_row) + weight.column + output;
    const float *residual = args.residual.data ? sl_f32(args.residual, y_row) + weight.column + output : NULL;
    y[0] = residual ? first + residual[0] : first;
    if (output + 8 < weight.rows) {
        second = weight.bias ? second + weight.bias[bias + 8] : second;
        y[8] = residual ? second + residual[8] : second;
    }
}

/* A tile's sums. valid: rows that the step has, of the block's. */
template <int TYPE>
static __device__ __forceinline__ void thin_store_tile(const thin_work &work, const float (&sums)[4],
                                                       int32_t tile, int32_t valid) {
    const thin_args &args = work.args;
    const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
    const int32_t segment = args.gated.data ? 0 : thin_segment(args, tile);
    const int32_t output = args.gated.data ? tile * (CHAIN_ROWS / 2) + work.lane / 4
                                           : (tile - args.first_tile[segment]) * CHAIN_ROWS + work.lane / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t row = work.lane % 4 * 2 + i;
        if (row < valid) {
            thin_store(work, segment, output, row, sums[i] * scale, sums[2 + i] * scale);
        }
    }
}

/* Adds the ranges of a tile and stores. round: tiles that the warp had before. */
template <int TYPE>
static __device__ __forceinline__ void thin_finish(const thin_work &work, const float (&d)[4], int32_t tile,
                                                   int32_t round, int32_t valid) {
    const thin_args &args = work.args;
    float sums[4] = {d[0], d[1], d[2], d[3]};
    if (args.ranges > 1) {
        float4 *all = (float4 *)(work.shared + work.memory.sums) +
                      (round % 2 * args.warps + work.warp - work.range) * SL_WARP + work.lane;
        if (work.range > 0) {
            all[work.range * SL_WARP] = make_float4(d[0], d[1], d[2], d[3]);
        }
        sl_meet(work.pair + 1, args.ranges * SL_WARP);
        for (int32_t r = 1; r < args.ranges && work.range == 0; r++) {
            const float4 more = all[r * SL_WARP];
            sums[0] += more.x;
            sums[1] += more.y;
            sums[2] += more.z;
            sums[3] += more.w;
        }
    }
    if (work.range == 0) {
        thin_store_tile<TYPE>(work, sums, tile, valid);
    }
}

/* ---- the chain ---- */

/* A slot of the ring, and the first chunk that it has. */
typedef struct thin_slot {
    int32_t chunk, slot;
    uint32_t parity;
} thin_slot;

/* The one behind it; itself if that was all. ends: the warp's columns end with it. */
static __device__ __forceinline__ thin_slot thin_next(const thin_args &args, const thin_slot &now,
                                                      int32_t chunks, bool ends, bool all) {
    const bool wraps = now.slot + 1 == args.stages;
    thin_slot next;
    next.chunk = all ? now.chunk : ends ? 0 : now.chunk + chunks;
    next.slot = all ? now.slot : wraps ? 0 : now.slot + 1;
    next.parity = now.parity ^ (uint32_t)(wraps && !all);
    return next;
}

static __device__ __forceinline__ thin_view thin_view_at(const thin_view &start, uint32_t offset,
                                                         uint32_t scales) {
    return {start.matrix + offset, start.row + offset, start.scales + scales};
}

/* Of its first chunk. start: of the ring. */
template <int TYPE>
static __device__ __forceinline__ thin_view thin_slot_view(const thin_work &work, const thin_view &start,
                                                           const thin_slot &at) {
    enum { BYTES = thin_layout<TYPE>::bytes };
    const uint32_t shift = BYTES % 16 ? (uint32_t)(work.first_chunk + at.chunk) * BYTES % 16u : 0u;
    return thin_view_at(start, (uint32_t)at.slot * thin_sizes<TYPE>::slot + shift, 0);
}

/* What a lane knows for good: where it reads the ring's first slot and x, and puts scales. */
typedef struct thin_lane {
    thin_view view;
    uint32_t header, x;
    unsigned char *scales;
    bool has_x; /* its row of x: the products' other columns are nobody's */
} thin_lane;

template <int TYPE> static __device__ __forceinline__ thin_lane thin_lane_of(const thin_work &work) {
    typedef thin_layout<TYPE> layout;
    const int32_t lane = work.lane, row = lane / 4;
    const uint32_t ring =
        work.base + (uint32_t)(work.warp * work.args.stages) * (uint32_t)thin_sizes<TYPE>::slot;
    const uint32_t scales =
        work.memory.scales + (uint32_t)(work.warp * 2) * (uint32_t)thin_sizes<TYPE>::scales;
    thin_lane me;
    me.view.matrix = ring + (uint32_t)(lane % 16 * layout::stride + lane / 16 * 16);
    me.view.row = ring + (uint32_t)(row * layout::stride + lane % 4 * 2);
    me.view.scales = work.base + scales + (uint32_t)(row * layout::scales);
    me.header = ring + (uint32_t)(lane % 16 * layout::stride);
    me.scales = work.shared + scales + lane % 16 * layout::scales;
    me.has_x = row < work.args.rows;
    me.x = work.base + work.memory.x + (me.has_x ? (uint32_t)row * work.memory.x_row : 0u) +
           (uint32_t)(lane % 4 * 32 + work.first_chunk * layout::columns * 2);
    return me;
}

/* Behind the last chunk of a slot. */
template <int TYPE, bool HAS_COPIER>
static __device__ __forceinline__ void thin_leave(const thin_work &work, thin_copies &copies, int32_t slot) {
    if constexpr (HAS_COPIER) {
        __syncwarp();
        sl_barrier_arrive_if(thin_empty(work, slot), work.lane < SL_ARRIVING_LANES);
    } else {
        sl_fence_shared();
        __syncwarp();
        if (work.lane == 0) {
            thin_bring<TYPE>(work, copies, slot);
        }
    }
}

/* Waits for the first slot and makes its first chunk's scales. */
template <int TYPE>
static __device__ __forceinline__ thin_view thin_first_view(const thin_work &work, const thin_lane &me) {
    const int32_t upper = work.lane / 16;
    sl_barrier_wait(thin_barrier<TYPE>(work, 0), 0);
    const thin_view view = thin_slot_view<TYPE>(work, me.view, {});
    thin_scales<TYPE>(thin_header<TYPE>(me.header + (view.matrix - me.view.matrix), upper), upper, me.scales);
    __syncwarp();
    return view;
}

/* All chunks of all tiles of a warp, as one stream. Calls begin() when it has decoded the first columns and
 * needs x, and finish(sums, round) for each tile, round by round. HAS_COPIER: another warp fills slots again.
 * What the next chunk needs is computed, and its barrier asked, between products: they wait for each other
 * anyway.
 */
template <int TYPE, bool HAS_COPIER, typename BEGIN, typename FINISH>
static __device__ __forceinline__ void thin_stream(const thin_work &work, thin_copies &copies, BEGIN begin,
                                                   FINISH finish) {
    typedef thin_layout<TYPE> layout;
    enum { COLUMNS = layout::columns, CHUNKS = layout::chunks, STEPS = COLUMNS / THIN_STEP };
    enum { SCALES = thin_sizes<TYPE>::scales, SCALED = STEPS > 2 ? STEPS - 3 : 0 };
    const thin_lane me = thin_lane_of<TYPE>(work);
    const int32_t upper = work.lane / 16;
    thin_quants<TYPE> quants[2];
    uint32_t a[2][2][4];
    uint4 x[2] = {};
    float d[4] = {};
    thin_slot now = {};
    uint32_t x_from = me.x, put = 0;
    int32_t left = (work.end_tile - work.first_tile + work.tile_step - 1) / work.tile_step *
                   ((work.chunks + CHUNKS - 1) / CHUNKS);
    int32_t round = 0;
    thin_view view = thin_first_view<TYPE>(work, me);
    quants[0].load(view, 0);
    quants[0].template run<0>(a[0]);
    begin();
    if (me.has_x) {
        x[0] = skinny_four(x_from);
    }
#pragma unroll 1
    while (left > 0) {
#pragma unroll 1
        for (int32_t rest = work.chunks; rest > 0; rest -= CHUNKS, left--) {
            const thin_slot next = thin_next(work.args, now, CHUNKS, rest <= CHUNKS, left == 1);
            const uint32_t full = thin_barrier<TYPE>(work, next.slot);
            const thin_view next_view = thin_slot_view<TYPE>(work, me.view, next);
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS && (chunk == 0 || chunk < rest); chunk++) {
                const bool ends_slot = chunk + 1 == CHUNKS || rest == chunk + 1;
                const uint32_t there = sl_barrier_ask(full, next.parity);
                const uint32_t x_next = rest == chunk + 1 ? me.x : x_from + 2 * COLUMNS;
                put = SCALES - put;
                thin_view ahead = ends_slot ? next_view : thin_view_at(view, layout::bytes, 0);
                ahead.scales = me.view.scales + put;
                uint4 header;
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    const bool ends = step + 1 == STEPS;
                    if (step == SCALED) {
                        skinny_await(ends_slot ? there : 1, full, next.parity);
                        header = thin_header<TYPE>(me.header + (ahead.matrix - me.view.matrix), upper);
                    }
                    quants[(step + 1) % 2].load(ends ? ahead : view, ends ? 0 : step + 1);
                    if (me.has_x) {
                        x[1] = skinny_four(x_from + (uint32_t)(2 * THIN_STEP * step + 16));
                    }
                    sl_mma_bf16(d, a[0][0], x[0].x, x[0].y);
                    sl_mma_bf16(d, a[0][1], x[0].z, x[0].w);
                    quants[step % 2].template run<1>(a[1]);
                    if (step == SCALED) {
                        thin_scales<TYPE>(header, upper, me.scales + put, work.args.exponent);
                    }
                    if (step == STEPS - 2) { /* the next chunk's scales are there */
                        __syncwarp();
                    }
                    if (me.has_x) {
                        x[0] = skinny_four(ends ? x_next : x_from + (uint32_t)(2 * THIN_STEP * (step + 1)));
                    }
                    sl_mma_bf16(d, a[1][0], x[1].x, x[1].y);
                    sl_mma_bf16(d, a[1][1], x[1].z, x[1].w);
                    quants[(step + 1) % 2].template run<0>(a[0]);
                }
                view = ahead;
                x_from = x_next;
            }
            thin_leave<TYPE, HAS_COPIER>(work, copies, now.slot);
            now = next;
        }
        finish(d, round);
        d[0] = d[1] = d[2] = d[3] = 0.0f;
        round++;
    }
}

/* ---- the kernel ---- */

template <int TYPE>
static __device__ __forceinline__ thin_work thin_work_of(const thin_args &args, unsigned char *shared,
                                                         int32_t warp) {
    enum { COLUMNS = thin_layout<TYPE>::columns };
    thin_work work = {args, thin_memory_of<TYPE>(args), shared};
    work.base = (uint32_t)__cvta_generic_to_shared(shared);
    work.warp = warp;
    work.lane = (int32_t)threadIdx.x % SL_WARP;
    work.pair = work.warp / args.ranges;
    work.range = work.warp - work.pair * args.ranges;
    const int32_t first = sl_k16_range(args.weights[0].columns, args.ranges, work.range);
    work.first_chunk = first / COLUMNS;
    work.chunks = (sl_k16_range(args.weights[0].columns, args.ranges, work.range + 1) - first) / COLUMNS;
    const int32_t block = (int32_t)blockIdx.x, start = block * args.each + min(block, args.more);
    const int32_t together = args.warps / args.ranges;
    work.first_tile = args.deals ? block + work.pair * (int32_t)gridDim.x : start + work.pair;
    work.end_tile = args.deals ? args.tiles : start + args.each + (block < args.more);
    work.tile_step = args.deals ? together * (int32_t)gridDim.x : together;
    work.expert = 0;
    work.y_row = (int32_t)blockIdx.y;
    return work;
}

/* A warp that fills the slots of its chains. A lane knows the chain of its number. */
typedef struct thin_copier {
    thin_work own;
    thin_copies copies;
    int32_t number;
    int32_t chains; /* of the warp */
    int32_t boxes;  /* of the lane's chain */
} thin_copier;

enum { THIN_CHAINS = THIN_WARPS / THIN_COPIERS }; /* of a copier, at most */

/* Makes the barriers of its chains, too. */
template <int TYPE>
static __device__ __forceinline__ thin_copier thin_copier_of(const thin_args &args, unsigned char *shared,
                                                             int32_t number) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const thin_work own = thin_work_of<TYPE>(args, shared, number + lane % THIN_CHAINS * THIN_COPIERS);
    const int32_t tiles = own.warp < args.warps ? own.end_tile - own.first_tile : 0;
    const int32_t slots = (own.chunks + thin_layout<TYPE>::chunks - 1) / thin_layout<TYPE>::chunks;
    const int32_t boxes = tiles > 0 ? (tiles + own.tile_step - 1) / own.tile_step * slots : 0;
    const bool has_chain = lane < THIN_CHAINS && boxes > 0;
    if (has_chain) {
        for (int32_t slot = 0; slot < args.stages; slot++) {
            sl_barrier_init(thin_barrier<TYPE>(own, slot), 1);
            sl_barrier_init(thin_empty(own, slot), SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
    return {own, {own.first_tile, 0}, number, __popc(__ballot_sync(SL_FULL_WARP, has_chain)), boxes};
}

/* Fills all slots, a few at a time: what is under way stands in front of x, and of what the kernels before
 * this one read. */
template <int TYPE> static __device__ __forceinline__ void thin_fill_slots(thin_copier &copier) {
    const thin_work &own = copier.own;
    const int32_t stages = own.args.stages;
    const uint32_t fulls = own.base + own.memory.barriers + (uint32_t)(copier.number * stages) * 8;
    int32_t chain = 0, slot = 0, came_chain = 0, came_slot = 0;
#pragma unroll 1
    for (int32_t n = 0; n < copier.chains * stages; n++) {
        if (n >= own.args.under_way) {
            if (came_slot < __shfl_sync(SL_FULL_WARP, copier.boxes, came_chain)) {
                sl_barrier_wait(fulls + (uint32_t)(came_chain * THIN_COPIERS * stages + came_slot) * 8, 0);
            }
            came_chain = came_chain + 1 == copier.chains ? 0 : came_chain + 1;
            came_slot += came_chain == 0;
        }
        if (own.lane == chain) {
            thin_bring<TYPE>(own, copier.copies, slot);
        }
        __syncwarp();
        chain = chain + 1 == copier.chains ? 0 : chain + 1;
        slot += chain == 0;
    }
}

/* And again, as they come free. */
template <int TYPE> static __device__ __forceinline__ void thin_refill_slots(thin_copier &copier) {
    const thin_work &own = copier.own;
    const int32_t stages = own.args.stages;
    const uint32_t empties = own.base + own.memory.empties + (uint32_t)(copier.number * stages) * 8;
    int32_t again[THIN_CHAINS], most = 0;
    for (int i = 0; i < THIN_CHAINS; i++) {
        again[i] = __shfl_sync(SL_FULL_WARP, copier.boxes, i) - stages;
        most = max(most, again[i]);
    }
    int32_t slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int32_t n = 0; n < most; n++) {
#pragma unroll
        for (int i = 0; i < THIN_CHAINS; i++) {
            if (n < again[i]) {
                sl_barrier_wait(empties + (uint32_t)(i * THIN_COPIERS * stages + slot) * 8, parity);
                if (own.lane == i) {
                    sl_fence_shared(); /* those of the warp that has come to the barrier */
                    thin_bring<TYPE>(own, copier.copies, slot);
                }
                __syncwarp();
            }
        }
        slot = slot + 1 == stages ? 0 : slot + 1;
        parity ^= slot == 0;
    }
}

/* Barriers of the block: at the first all chains wait until copiers, which do not wait, have made the slots'
 * barriers, at the other until all of x is there. Those from 1 on are of tiles. */
enum {
    THIN_HAS_BARRIERS = 0,
    THIN_HAS_BARRIERS_THREADS = THIN_THREADS + THIN_COPIERS * SL_WARP,
    THIN_HAS_X = THIN_WARPS + 1
};

/* The expert of a block, -1 where it has no row. */
static __device__ __forceinline__ int32_t thin_expert(const sl_cuda_context &context, const thin_args &args,
                                                      int32_t y_row) {
    if (y_row >= sl_count(context, args.y.rows)) {
        return -1;
    }
    return sl_i32(args.ids, y_row / context.experts_used)[y_row % context.experts_used];
}

template <int TYPE>
static __device__ __forceinline__ void thin_copy(const sl_cuda_context &context, const thin_args &args,
                                                 unsigned char *shared, int32_t number) {
    thin_copier copier = thin_copier_of<TYPE>(args, shared, number);
    __syncwarp();
    sl_meet_without_waiting<(int)THIN_HAS_BARRIERS, (int)THIN_HAS_BARRIERS_THREADS>();
    if (args.ids.data) {
        sl_wait_for_inputs();
        copier.own.expert = thin_expert(context, args, copier.own.y_row);
        if (copier.own.expert < 0) {
            return;
        }
    }
    thin_fill_slots<TYPE>(copier);
    sl_wait_for_inputs();
    thin_refill_slots<TYPE>(copier);
}
#endif

/* With experts blockIdx.y is a row of y. In the registers that a norm's block leaves free chains are a tenth
 * slower, which costs more than one processor's late beginning. */
template <int TYPE>
static __global__ void __launch_bounds__(THIN_THREADS + THIN_COPIERS * SL_WARP, 1)
    thin_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ thin_args args) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char shared[];
    thin_work work = thin_work_of<TYPE>(args, shared, chain_warp());
    sl_let_next_begin();
    if (work.warp >= THIN_WARPS) {
        thin_copy<TYPE>(context, args, shared, work.warp - THIN_WARPS);
        return;
    }
    sl_meet<(int)THIN_HAS_BARRIERS, (int)THIN_HAS_BARRIERS_THREADS>();
    int32_t valid = sl_count(context, args.y.rows);
    if (args.ids.data) {
        sl_wait_for_inputs();
        work.expert = thin_expert(context, args, work.y_row);
        if (work.expert < 0) {
            return;
        }
        valid = 1;
    }
    const auto begin = [&work] {
        sl_wait_for_inputs();
        thin_stage_x<TYPE>(work);
        sl_meet<(int)THIN_HAS_X, (int)THIN_THREADS>();
    };
    if (work.warp >= args.warps || work.first_tile >= work.end_tile) {
        begin();
        return;
    }
    thin_copies copies = {};
    thin_stream<TYPE, true>(work, copies, begin, [&work, valid](const float(&sums)[4], int32_t round) {
        thin_finish<TYPE>(work, sums, work.first_tile + round * work.tile_step, round, valid);
    });
#else
    (void)context;
    (void)args;
    sl_wait_for_inputs();
#endif
}

/* ---- launches ---- */

template <int TYPE> static cudaError_t thin_prepare_type() {
    return sl_allow_shared(thin_kernel<TYPE>, THIN_BYTES);
}

/* Copies that a warp's busiest chain takes. */
template <int TYPE> static int32_t thin_boxes(const thin_args *args, int32_t chains) {
    const int32_t columns = thin_layout<TYPE>::chunks * thin_layout<TYPE>::columns;
    const int32_t range = sl_k16_range(args->weights[0].columns, args->ranges, 1);
    return (range + columns - 1) / columns * ((chains + args->warps - 1) / args->warps);
}

/* As many warps as the busiest block has chains, and as many slots as there is room for. */
template <int TYPE> static cudaError_t thin_fit(thin_args *args, int32_t blocks) {
    const int32_t chains = (args->tiles + blocks - 1) / blocks * args->ranges;
    args->each = args->tiles / blocks;
    args->more = args->tiles % blocks;
    const int32_t most = THIN_WARPS / args->ranges * args->ranges;
    args->warps = chains < most ? chains : most;
    const int32_t in_ring = THIN_RING / thin_sizes<TYPE>::slot, boxes = thin_boxes<TYPE>(args, chains);
    const int32_t stages = args->whole ? boxes : in_ring < THIN_STAGES ? in_ring : (int32_t)THIN_STAGES;
    args->stages = stages < boxes ? stages : boxes < 2 ? 2 : boxes;
    while (args->stages > 2 && thin_memory_of<TYPE>(*args).bytes > THIN_BYTES) {
        args->stages--;
    }
    while (args->warps > args->ranges && thin_memory_of<TYPE>(*args).bytes > THIN_BYTES) {
        args->warps -= args->ranges;
    }
    const int32_t copiers = args->warps < THIN_COPIERS ? args->warps : (int32_t)THIN_COPIERS;
    const int32_t under_way = THIN_UNDER_WAY / (copiers * thin_sizes<TYPE>::slot);
    args->under_way = under_way > 1 ? under_way : 1;
    args->deals = args->each < 2 * (args->warps / args->ranges);
    return thin_memory_of<TYPE>(*args).bytes > THIN_BYTES ? cudaErrorInvalidConfiguration : cudaSuccess;
}

/* A launch of a LINEAR, or of one whose gates and values an ACTIVATE and a QUANTIZE behind it turn into BF16.
 */
template <int TYPE>
static cudaError_t thin_fill(const sl_cuda_context *context, const sl_cuda_op *op, bool gated,
                             thin_args *args, sl_launch_shape *shape) {
    const int32_t rows = op->rows[op->out[0].rows];
    sl_linear_fill(context, op, args);
    args->ids = op->in[1];
    args->tiles = sl_linear_cut(op, CHAIN_ROWS, args->first_tile);
    args->exponent = THIN_EXPONENT;
    args->ranges = sl_k16_ranges(op, context->processors);
    args->rows = args->ids.data ? 1 : rows;
    if (gated) {
        args->tiles = chain_gate(op, 1, args);
    }
    const int32_t together = args->ids.data ? rows : 1;
    int32_t wanted = context->processors > together ? context->processors / together : 1;
    /* Where every second processor has room for all weights, the product behind this one comes up, and has
     * its weights, on the others meanwhile. */
    const int64_t all_bytes = (int64_t)args->tiles * CHAIN_ROWS * args->weights[0].row_bytes;
    args->whole = !args->ids.data && wanted > 1 && all_bytes <= (int64_t)THIN_WHOLE * (wanted / 2);
    wanted = args->whole ? wanted / 2 : wanted;
    /* As few as take no longer: processors without a block have room for the small kernels around. */
    const int32_t each = (args->tiles + wanted - 1) / wanted;
    const int32_t blocks = (args->tiles + each - 1) / each;
    const cudaError_t code = thin_fit<TYPE>(args, blocks);
    const uint32_t bytes = thin_memory_of<TYPE>(*args).bytes;
    *shape = {dim3((unsigned)blocks, (unsigned)together), dim3(THIN_THREADS + THIN_COPIERS * SL_WARP),
              bytes < THIN_LEAST_BYTES ? (uint32_t)THIN_LEAST_BYTES : bytes};
    return code ? code : chain_make_maps<thin_layout<TYPE>>(args);
}

template <int TYPE>
static cudaError_t thin_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    thin_args args = {};
    sl_launch_shape shape = {};
    const cudaError_t code = thin_fill<TYPE>(context, op, op->run_length > 1, &args, &shape);
    return code ? code : sl_launch(context, stream, shape, thin_kernel<TYPE>, *context, args);
}

#endif
