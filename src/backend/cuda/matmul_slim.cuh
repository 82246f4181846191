/* Matrix products for five to eight rows in class "bf16/k16" (k16.h): y = x W^T (+ bias) (+ residual).
 *
 * As in matmul_thin.cuh a warp takes sixteen weight rows and a range of the columns, one chain of
 * mma.m16n8k16, which has room for eight rows of x; it has a ring of weights of its own, which other warps
 * fill, and decodes the next 32 columns while the products of these run. Warps load x, store
 * it a quarter of each range behind the other, and chains begin when the first quarter is there. What stands
 * between two chunks is short, as with few chains to a scheduler nothing hides it.
 *
 * Before the inputs are there a part of the ring is copied; of types whose boxes are small all of it, one
 * box after the other, so that little is under way when x is asked for.
 *
 * Where the next launch adds the ranges' sums (sl_cuda_slim_ranges) a block has one range. Else it has all
 * of a tile's, which are added through shared memory; or, where so much of x could not be loaded at once, two
 * blocks of a cluster share them, and each hands its sums to the one that adds a tile's. */
#ifndef SL_BACKEND_CUDA_MATMUL_SLIM_CUH
#define SL_BACKEND_CUDA_MATMUL_SLIM_CUH

#include "backend/cuda/matmul_chain.cuh"

enum {
    SLIM_X_ROWS = 8,               /* of x, at most */
    SLIM_WARPS = 12,               /* of a block, that have chains */
    SLIM_COPIERS = 4,              /* warps behind them: every fourth warp with a chain is one's */
    SLIM_X_WARPS = SLIM_WARPS + 4, /* that bring x */
    SLIM_BOUND = 768,        /* threads, and not so many: 80 registers, which leave room for a norm's block */
    SLIM_STAGES = 8,         /* slots of a ring, at most */
    SLIM_PARTS = 4,          /* of a range, whose x has a barrier each */
    SLIM_AT_ONCE = 3,        /* pieces of x that a lane loads of each part, before it stores them */
    SLIM_AHEAD = 64 * 1024,  /* of a block's weights, before inputs are there: more would delay x */
    SLIM_LITTLE = 32 * 1024, /* so little may always be under way meanwhile */
    SLIM_X_STEP = SLIM_X_WARPS * SL_WARP / SLIM_X_ROWS, /* lanes that bring a row of x */
    SLIM_STEP = 64,                                     /* columns that are read at once */
    SLIM_BYTES = 227 * 1024,
    SLIM_LEAST_BYTES = 116 * 1024 /* two blocks on one processor would leave another idle */
};

/* Shared memory: rings, scales (two chunks of each warp), barriers of slots that are full, of such that are
 * empty, and of x; sums; x. */
typedef struct slim_memory {
    uint32_t scales, barriers, empties, x_barriers, sums, x, bytes;
    uint32_t x_row;
} slim_memory;

typedef struct slim_args {
    CUtensorMap maps[SL_LINEAR_SEGMENTS];
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_tile[SL_LINEAR_SEGMENTS + 1];
    int32_t segments, tiles;
    /* A cluster's tiles lie one behind the other, `each` and in the first `more` clusters one more; where a
     * warp has one at most they are dealt out one by one. */
    int32_t each, more;
    bool deals;
    int32_t ranges, own;   /* of the columns; of these a block's */
    int32_t warps, stages; /* warps: that have chains, a multiple of own */
    int32_t ahead;         /* slots that are filled at once, before the kernel's inputs are there */
    int32_t rows;          /* of x */
    sl_cuda_operand x, residual, y;
    int32_t x_share;       /* 1: for sl_linear_fill */
    sl_cuda_operand gated; /* BF16, or absent: segment 0 are gates, 1 as many values */
    int32_t function;      /* sl_activation */
    /* Every range stores its own sums, so many bytes behind the range before; else 0. */
    uint64_t range_bytes;
    slim_memory memory; /* of slim_memory_of, which the device need not do again */
} slim_args;

/* A slot has one chunk of skinny_layout::columns columns. */
template <int TYPE> struct slim_layout {
    enum {
        columns = skinny_layout<TYPE>::columns,
        bytes = skinny_layout<TYPE>::bytes,
        stride = skinny_layout<TYPE>::stride,
        slot = (CHAIN_ROWS * (int)stride + 127) / 128 * 128,
        scales = CHAIN_ROWS * (int)thin_layout<TYPE>::scales, /* of a chunk */
        sums = SL_WARP * 16,
        /* Whether rings are filled before the inputs are there, with a box of each chain under way. Then x is
         * brought by other warps than those that copy. */
        fills = SLIM_WARPS * slot <= SLIM_LITTLE,
        threads = (SLIM_X_WARPS + (fills ? SLIM_COPIERS : 0)) * SL_WARP
    };
    static_assert((int)threads <= (int)SLIM_BOUND, "registers");
    static_assert((int)stride / 16 % 2 == 1, "rows of a matrix lie in different banks");
};

/* Of 1, 2 or 4. */
static __host__ __device__ __forceinline__ int32_t slim_shift_of(int32_t count) {
    return count == 4 ? 2 : count - 1;
}

/* sl_k16_range. */
static __host__ __device__ __forceinline__ int32_t slim_first(const slim_args &args, int32_t range) {
    const int32_t chunks = args.weights[0].columns / SL_K16_CHUNK;
    return ((chunks * range + args.ranges - 1) >> slim_shift_of(args.ranges)) * SL_K16_CHUNK;
}

/* The columns of the ranges of a cluster's first block, the widest. */
static __host__ __device__ __forceinline__ int32_t slim_width(const slim_args &args) {
    return slim_first(args, args.own);
}

template <int TYPE> static slim_memory slim_memory_of(const slim_args &args) {
    typedef slim_layout<TYPE> layout;
    const uint32_t warps = (uint32_t)args.warps, stages = (uint32_t)args.stages;
    const uint32_t blocks = (uint32_t)(args.ranges / args.own);
    /* Of a cluster each block adds every so many'th tile. */
    const uint32_t tiles = (uint32_t)args.each + (args.more > 0), adds = (tiles + blocks - 1) / blocks;
    slim_memory memory;
    memory.scales = warps * stages * layout::slot;
    memory.barriers = memory.scales + warps * 2 * layout::scales;
    memory.empties = memory.barriers + warps * stages * 8;
    memory.x_barriers = memory.empties + warps * stages * 8;
    memory.sums = memory.x_barriers + SLIM_PARTS * 8;
    const uint32_t sums = args.range_bytes ? 0
                          : blocks > 1     ? adds * (uint32_t)args.ranges
                          : args.own > 1   ? warps * 2
                                           : 0;
    memory.x = memory.sums + sums * layout::sums;
    memory.x_row = 2 * (uint32_t)slim_width(args) + 16;
    memory.bytes = memory.x + (uint32_t)args.rows * memory.x_row;
    return memory;
}

#if SL_HAS_WGMMA

/* What a warp works with. */
typedef struct slim_work {
    const slim_args &args;
    const slim_memory &memory;
    unsigned char *shared;
    uint32_t base; /* the same, in the window */
    int32_t warp, lane;
    int32_t rank;               /* of the block, in its cluster */
    int32_t range, local, pair; /* of the warp, among all ranges and the block's; which warps share tiles */
    int32_t first_chunk, chunks, most_chunks;       /* of the range; of the longest */
    int32_t first_tile, end_tile, tile_step, count; /* count: of the cluster's tiles */
} slim_work;

/* Number `index` of the cluster's tiles. */
static __device__ __forceinline__ int32_t slim_tile(const slim_work &work, int32_t index) {
    const int32_t step = work.tile_step / (work.args.warps / work.args.own);
    return work.first_tile + (index - work.pair) * step;
}

template <int TYPE>
static __device__ __forceinline__ slim_work slim_work_of(const slim_args &args, unsigned char *shared,
                                                         int32_t warp) {
    enum { COLUMNS = slim_layout<TYPE>::columns };
    slim_work work = {args, args.memory, shared};
    const int32_t shift = slim_shift_of(args.own), among = slim_shift_of(args.ranges) - shift;
    const int32_t cluster = (int32_t)blockIdx.x >> among, clusters = (int32_t)gridDim.x >> among;
    work.base = (uint32_t)__cvta_generic_to_shared(shared);
    work.warp = warp;
    work.lane = (int32_t)threadIdx.x % SL_WARP;
    work.rank = (int32_t)blockIdx.x - (cluster << among);
    work.pair = warp >> shift;
    work.local = warp - (work.pair << shift);
    work.range = work.rank * args.own + work.local;
    const int32_t first = slim_first(args, work.range);
    work.first_chunk = first / COLUMNS;
    work.most_chunks = slim_first(args, 1) / COLUMNS;
    work.chunks = (slim_first(args, work.range + 1) - first) / COLUMNS;
    const int32_t start = cluster * args.each + min(cluster, args.more);
    const int32_t together = args.warps >> shift;
    work.count = args.each + (cluster < args.more);
    work.first_tile = args.deals ? cluster + work.pair * clusters : start + work.pair;
    work.end_tile = args.deals ? args.tiles : start + work.count;
    work.tile_step = args.deals ? together * clusters : together;
    return work;
}

/* ---- copies of weights, by one lane ---- */

/* A warp's: of the first slot where it is, its barrier, which is passed when it is full, and that which is
 * passed when nobody reads it any more. */
typedef struct slim_ring {
    uint32_t slots, full, empty;
} slim_ring;

template <int TYPE> static __device__ __forceinline__ slim_ring slim_ring_of(const slim_work &work) {
    const uint32_t slots = (uint32_t)(work.warp * work.args.stages);
    return {work.base + slots * slim_layout<TYPE>::slot, work.base + work.memory.barriers + 8 * slots,
            work.base + work.memory.empties + 8 * slots};
}

/* Where a warp is in its ring: offsets of the slot, and of its barriers. */
typedef struct slim_place {
    uint32_t slot, barrier, parity;
} slim_place;

template <int TYPE>
static __device__ __forceinline__ slim_place slim_next(const slim_work &work, const slim_place &place) {
    const bool wraps = place.barrier + 8 == 8 * (uint32_t)work.args.stages;
    return {wraps ? 0 : place.slot + slim_layout<TYPE>::slot, wraps ? 0 : place.barrier + 8,
            place.parity ^ wraps};
}

typedef struct slim_copies {
    int32_t tile, chunk; /* the next */
    int32_t row;         /* of weights, that the tile begins with, in `map` */
    const CUtensorMap *map;
} slim_copies;

/* From a tile's beginning on. */
static __device__ __forceinline__ slim_copies slim_copies_of(const slim_work &work, int32_t tile) {
    const slim_args &args = work.args;
    slim_copies copies = {tile, 0, tile * (CHAIN_ROWS / 2), &args.maps[0]};
    if (!args.gated.data && tile < work.end_tile) {
        const int32_t segment = sl_linear_find(args.first_tile, args.segments, tile);
        copies.row = (tile - args.first_tile[segment]) * CHAIN_ROWS;
        copies.map = &args.maps[segment];
    }
    return copies;
}

static __device__ __forceinline__ void slim_pass(const slim_work &work, slim_copies &copies) {
    if (++copies.chunk >= work.chunks) {
        copies = slim_copies_of(work, copies.tile + work.tile_step);
    }
}

/* To the slot at `to`, whose barrier is `full`. */
template <int TYPE>
static __device__ __forceinline__ void slim_bring(const slim_work &work, slim_copies &copies, uint32_t to,
                                                  uint32_t full) {
    typedef slim_layout<TYPE> layout;
    /* Boxes begin at multiples of 16 bytes; their columns are of two bytes. */
    const int32_t column = (work.first_chunk + copies.chunk) * layout::bytes / 16 * 8;
    sl_barrier_expect(full, CHAIN_ROWS * layout::stride);
    sl_box_copy_once(to, copies.map, column, copies.row, 0, full);
    if (work.args.gated.data) {
        sl_box_copy_once(to + CHAIN_ROWS / 2 * layout::stride, &work.args.maps[1], column, copies.row, 0,
                         full);
    }
    slim_pass(work, copies);
}

/* The warp's first chunks, to slots [first, end). */
template <int TYPE>
static __device__ __forceinline__ void slim_bring_first(const slim_work &work, slim_copies &copies,
                                                        int32_t first, int32_t end) {
    const slim_ring ring = slim_ring_of<TYPE>(work);
    for (int32_t slot = first; slot < end && copies.tile < work.end_tile; slot++) {
        slim_bring<TYPE>(work, copies, ring.slots + (uint32_t)slot * slim_layout<TYPE>::slot,
                         ring.full + 8 * (uint32_t)slot);
    }
}

/* A warp that fills the slots of its chains again, as they come free, each chain's by a lane: what boxes of
 * several chains need is computed at once, and a chain that is slow keeps no other waiting. Before, where the
 * type fills rings, a slot when one before it has come. It needs none of the kernel's inputs. */
template <int TYPE>
static __device__ __forceinline__ void slim_copy_on(const slim_args &args, unsigned char *shared,
                                                    int32_t copier) {
    const int32_t chain = copier + (int32_t)threadIdx.x % SL_WARP * SLIM_COPIERS;
    if (chain < args.warps) {
        const slim_work own = slim_work_of<TYPE>(args, shared, chain);
        const int32_t tiles = max(own.end_tile - own.first_tile, 0);
        int32_t left = (tiles + own.tile_step - 1) / own.tile_step * own.chunks - args.stages;
        slim_copies copies = slim_copies_of(own, own.first_tile);
        for (int32_t i = 0; i < (slim_layout<TYPE>::fills ? args.ahead : args.stages); i++) {
            slim_pass(own, copies);
        }
        const slim_ring ring = slim_ring_of<TYPE>(own);
        if constexpr (slim_layout<TYPE>::fills) {
            int32_t slot = args.ahead;
#pragma unroll 1
            while (slot < args.stages && copies.tile < own.end_tile) {
                if (sl_barrier_try(ring.full + 8 * (uint32_t)(slot - args.ahead), 0)) {
                    slim_bring_first<TYPE>(own, copies, slot, slot + 1);
                    slot++;
                }
            }
        }
        slim_place place = {};
#pragma unroll 1
        while (left > 0) {
            if (sl_barrier_try(ring.empty + place.barrier, place.parity)) {
                sl_fence_reads(); /* those of the warp that has come to the barrier */
                slim_bring<TYPE>(own, copies, ring.slots + place.slot, ring.full + place.barrier);
                place = slim_next<TYPE>(own, place);
                left--;
            }
        }
    }
    __syncwarp();
}

/* ---- x: eight columns, a piece, at a time ---- */

/* The chunk of its range that a part begins with. Ranges are as long as the first, or a chunk shorter. */
static __device__ __forceinline__ int32_t slim_part(const slim_work &work, int32_t part) {
    return work.most_chunks * part / SLIM_PARTS;
}

static __device__ __forceinline__ uint32_t slim_x_barrier(const slim_work &work, int32_t part) {
    return work.base + work.memory.x_barriers + 8 * (uint32_t)part;
}

/* Those that copy weights bring no x where they fill rings first. */
template <int TYPE> static __device__ __forceinline__ bool slim_brings_x(const slim_work &work) {
    return !slim_layout<TYPE>::fills || work.warp < SLIM_WARPS || work.warp >= SLIM_WARPS + SLIM_COPIERS;
}

/* Number of the warp among those. */
template <int TYPE> static __device__ __forceinline__ int32_t slim_x_warp(const slim_work &work) {
    return work.warp - (slim_layout<TYPE>::fills && work.warp >= SLIM_WARPS ? (int32_t)SLIM_COPIERS : 0);
}

/* By warps that bring x, two to a row. In front of the inputs: where to. */
template <int TYPE> struct slim_x {
    enum { EACH = SLIM_X_STEP / SL_WARP };
    int32_t places[SLIM_PARTS][SLIM_AT_ONCE], row;
    uint4 words[SLIM_PARTS][SLIM_AT_ONCE];

    /* Pieces of a part: chunk after chunk, each of all of the block's ranges. */
    __device__ __forceinline__ explicit slim_x(const slim_work &work) : row(slim_x_warp<TYPE>(work) / EACH) {
        enum { COLUMNS = slim_layout<TYPE>::columns, PIECES = COLUMNS / 8 };
        const slim_args &args = work.args;
        int32_t start[SLIM_AT_ONCE], chunk[SLIM_AT_ONCE], end[SLIM_AT_ONCE]; /* end: of the range's chunks */
#pragma unroll
        for (int i = 0; i < SLIM_AT_ONCE; i++) {
            const int32_t index = slim_x_warp<TYPE>(work) % EACH * SL_WARP + work.lane + i * SLIM_X_STEP;
            const int32_t number = index / PIECES, range = work.rank * args.own + (number & (args.own - 1));
            const int32_t first = slim_first(args, range);
            chunk[i] = number >> slim_shift_of(args.own);
            end[i] = row < args.rows ? (slim_first(args, range + 1) - first) / COLUMNS : 0;
            start[i] = first / 8 + chunk[i] * PIECES + index % PIECES;
        }
#pragma unroll
        for (int p = 0; p < SLIM_PARTS; p++) {
            const int32_t from = slim_part(work, p), to = slim_part(work, p + 1);
#pragma unroll
            for (int i = 0; i < SLIM_AT_ONCE; i++) {
                const bool is_there = chunk[i] < to - from && chunk[i] < end[i] - from;
                places[p][i] = is_there ? start[i] + from * PIECES : -1;
                asm volatile("" : "+r"(places[p][i])); /* now */
            }
        }
    }
    __device__ __forceinline__ void load(const slim_work &work) {
        const slim_args &args = work.args;
        const uint4 *from = (const uint4 *)(args.x.data + 2 * (int64_t)args.x.column +
                                            (uint64_t)(uint32_t)row * args.x.row_bytes);
#pragma unroll
        for (int p = 0; p < SLIM_PARTS; p++) {
#pragma unroll
            for (int i = 0; i < SLIM_AT_ONCE; i++) {
                words[p][i] = places[p][i] >= 0 ? from[places[p][i]] : make_uint4(0, 0, 0, 0);
            }
        }
    }
    __device__ __forceinline__ void store(const slim_work &work) const {
        const int32_t before = slim_first(work.args, work.rank * work.args.own) / 8;
        uint32_t *to = (uint32_t *)(work.shared + work.memory.x + (uint32_t)row * work.memory.x_row);
#pragma unroll
        for (int p = 0; p < SLIM_PARTS; p++) {
#pragma unroll
            for (int i = 0; i < SLIM_AT_ONCE; i++) {
                if (places[p][i] >= 0) {
                    chain_put_x<TYPE>(to, places[p][i] - before, words[p][i]);
                }
            }
            __syncwarp();
            if (work.lane < SL_ARRIVING_LANES) {
                sl_barrier_arrive(slim_x_barrier(work, p));
            }
        }
    }
};

/* Where a lane reads its range's x. Rows that there are not read the first. */
template <int TYPE> static __device__ __forceinline__ uint32_t slim_x_of(const slim_work &work) {
    const slim_args &args = work.args;
    const int32_t before = slim_first(args, work.rank * args.own);
    const int32_t row = work.lane / 4;
    return work.base + work.memory.x + (row < args.rows ? (uint32_t)row * work.memory.x_row : 0u) +
           (uint32_t)(work.lane % 4 * 32) +
           2 * (uint32_t)(work.first_chunk * slim_layout<TYPE>::columns - before);
}

/* ---- results ---- */

/* A lane's sums of a tile: rows 2 (lane % 4) + i % 2 of x, outputs `output` and for i >= 2 eight on; with
 * gates the values of the first two. */
typedef struct slim_outputs {
    const sl_cuda_weight *weight;
    int32_t output, row;
} slim_outputs;

static __device__ __forceinline__ slim_outputs slim_outputs_of(const slim_work &work, int32_t tile) {
    const slim_args &args = work.args;
    const bool gated = args.gated.data != NULL;
    const int32_t segment = gated ? 0 : sl_linear_find(args.first_tile, args.segments, tile);
    return {&args.weights[segment],
            (gated ? tile * (CHAIN_ROWS / 2) : (tile - args.first_tile[segment]) * CHAIN_ROWS) +
                work.lane / 4,
            work.lane % 4 * 2};
}

/* What is added to a lane's sums in the end, asked for early. valid: rows that the step has. */
static __device__ __forceinline__ void slim_residual(const slim_work &work, int32_t tile, int32_t valid,
                                                     float (&residual)[4]) {
    const slim_args &args = work.args;
    const slim_outputs to = slim_outputs_of(work, tile);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t output = to.output + i / 2 * 8, row = to.row + i % 2;
        residual[i] = args.residual.data && row < valid && output < to.weight->rows
                          ? sl_f32(args.residual, row)[to.weight->column + output]
                          : 0.0f;
    }
}

template <int TYPE>
static __device__ __forceinline__ void slim_store_tile(const slim_work &work, const float (&sums)[4],
                                                       int32_t tile, int32_t valid,
                                                       const float (&residual)[4]) {
    const slim_args &args = work.args;
    const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
    const slim_outputs to = slim_outputs_of(work, tile);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t output = to.output + i / 2 * 8, row = to.row + i % 2;
        const float *bias = to.weight->bias;
        if (args.gated.data) {
            if (i < 2 && row < valid && to.output < to.weight->rows) {
                const float *more = args.weights[1].bias;
                const float gate = sums[i] * scale + (bias ? bias[to.output] : 0.0f);
                const float value = sums[2 + i] * scale + (more ? more[to.output] : 0.0f);
                uint16_t *out =
                    (uint16_t *)(args.gated.data + (uint64_t)(uint32_t)row * args.gated.row_bytes) +
                    args.gated.column;
                out[to.output] = sl_f32_to_bf16(sl_activate(args.function, gate) * value);
            }
        } else if (row < valid && output < to.weight->rows) {
            float value = sums[i] * scale;
            value = bias ? value + bias[output] : value;
            float *y = (float *)((unsigned char *)sl_f32(args.y, row) + work.range * args.range_bytes);
            y[to.weight->column + output] = args.residual.data ? value + residual[i] : value;
        }
    }
}

static __device__ __forceinline__ void slim_add(float (&sums)[4], const float4 &more) {
    sums[0] += more.x;
    sums[1] += more.y;
    sums[2] += more.z;
    sums[3] += more.w;
}

/* Of a block with all ranges: adds those of a tile and stores. round: tiles that the warp had before. */
template <int TYPE>
static __device__ __forceinline__ void slim_finish(const slim_work &work, const float (&d)[4], int32_t round,
                                                   int32_t valid, const float (&residual)[4]) {
    const slim_args &args = work.args;
    float sums[4] = {d[0], d[1], d[2], d[3]};
    if (args.own > 1) {
        float4 *all = (float4 *)(work.shared + work.memory.sums) +
                      (round % 2 * args.warps + work.warp - work.local) * SL_WARP + work.lane;
        if (work.local > 0) {
            all[work.local * SL_WARP] = make_float4(d[0], d[1], d[2], d[3]);
        }
        asm volatile("bar.sync %0, %1;" ::"r"(work.pair + 1), "r"(args.own * SL_WARP) : "memory");
        for (int32_t r = 1; r < args.own && work.local == 0; r++) {
            slim_add(sums, all[r * SL_WARP]);
        }
    }
    if (work.local == 0) {
        slim_store_tile<TYPE>(work, sums, work.first_tile + round * work.tile_step, valid, residual);
    }
}

/* Of a cluster: hands a range's sums to the block that adds the tile's. */
template <int BLOCKS>
static __device__ __forceinline__ void slim_hand_over(const slim_work &work, const float (&d)[4],
                                                      int32_t round) {
    const slim_args &args = work.args;
    const int32_t index = work.pair + round * (args.warps / args.own);
    float4 *own = (float4 *)(work.shared + work.memory.sums) +
                  (index / BLOCKS * args.ranges + work.range) * SL_WARP + work.lane;
    *sl_of_block(own, (uint32_t)(index % BLOCKS)) = make_float4(d[0], d[1], d[2], d[3]);
}

/* What the other blocks handed over; by all threads. */
template <int TYPE, int BLOCKS>
static __device__ __forceinline__ void slim_finish_cluster(const slim_work &work, int32_t valid) {
    const slim_args &args = work.args;
    __syncwarp();
    sl_cluster_arrive<BLOCKS>();
    int32_t place = work.warp, index = place * BLOCKS + work.rank;
    float residual[4] = {};
    if (index < work.count) {
        slim_residual(work, slim_tile(work, index), valid, residual);
    }
    sl_cluster_wait<BLOCKS>();
#pragma unroll 1
    while (index < work.count) {
        const float4 *all =
            (const float4 *)(work.shared + work.memory.sums) + place * args.ranges * SL_WARP + work.lane;
        float sums[4] = {};
        const float4 first = all[0];
        sums[0] = first.x;
        sums[1] = first.y;
        sums[2] = first.z;
        sums[3] = first.w;
#pragma unroll 1
        for (int32_t r = 1; r < args.ranges; r++) {
            slim_add(sums, all[r * SL_WARP]);
        }
        slim_store_tile<TYPE>(work, sums, slim_tile(work, index), valid, residual);
        place += slim_layout<TYPE>::threads / SL_WARP;
        index = place * BLOCKS + work.rank;
        if (index < work.count) {
            slim_residual(work, slim_tile(work, index), valid, residual);
        }
    }
}

/* ---- the chain ---- */

/* Boxes begin at multiples of 16 bytes. */
template <int TYPE>
static __device__ __forceinline__ uint32_t slim_shift(const slim_work &work, int32_t chunk) {
    enum { BYTES = slim_layout<TYPE>::bytes };
    return BYTES % 16 ? (uint32_t)(work.first_chunk + chunk) * (uint32_t)BYTES % 16u : 0u;
}

/* What a lane knows for good: where it reads the ring's first slot and x, and puts scales. */
typedef struct slim_lane {
    thin_view view;
    uint32_t header, x, full; /* full: the first slot's barrier */
    unsigned char *scales;
} slim_lane;

template <int TYPE> static __device__ __forceinline__ slim_lane slim_lane_of(const slim_work &work) {
    typedef slim_layout<TYPE> layout;
    const int32_t lane = work.lane, row = lane / 4;
    const slim_ring ring = slim_ring_of<TYPE>(work);
    const uint32_t scales = work.memory.scales + (uint32_t)(work.warp * 2 * layout::scales);
    slim_lane me;
    me.view.matrix = ring.slots + (uint32_t)(lane % 16 * layout::stride + lane / 16 * 16);
    me.view.row = ring.slots + (uint32_t)(row * layout::stride + lane % 4 * 2);
    me.view.scales = work.base + scales + (uint32_t)(row * thin_layout<TYPE>::scales);
    me.header = ring.slots + (uint32_t)(lane % 16 * layout::stride);
    me.scales = work.shared + scales + lane % 16 * thin_layout<TYPE>::scales;
    me.x = slim_x_of<TYPE>(work);
    me.full = ring.full;
    return me;
}

/* 32 columns of x. */
static __device__ __forceinline__ void slim_read_x(uint32_t from, uint32_t (&x)[4]) {
    const uint4 words = skinny_four(from);
    x[0] = words.x;
    x[1] = words.y;
    x[2] = words.z;
    x[3] = words.w;
}

/* Waits for the parts of x that chunk `chunk` of the range begins with. Returns the chunk with which the next
 * one begins, or -1. */
static __device__ __forceinline__ int32_t slim_wait_x(const slim_work &work, int32_t chunk, int32_t *part) {
    int32_t begins = chunk;
#pragma unroll 1
    while (begins == chunk) {
        sl_barrier_wait(slim_x_barrier(work, *part), 0);
        ++*part;
        begins = *part < SLIM_PARTS ? slim_part(work, *part) : -1;
    }
    return begins;
}

/* All chunks of all tiles of a warp, as one stream. Calls begin(round) and finish(sums, round) for each tile.
 */
template <int TYPE, typename BEGIN, typename FINISH>
static __device__ __forceinline__ void slim_stream(const slim_work &work, BEGIN begin, FINISH finish) {
    enum { COLUMNS = slim_layout<TYPE>::columns, STEPS = COLUMNS / SLIM_STEP };
    enum { SCALES = slim_layout<TYPE>::scales };
    const slim_lane me = slim_lane_of<TYPE>(work);
    const int32_t upper = work.lane / 16;
    const uint32_t to_empty = work.memory.empties - work.memory.barriers;
    thin_quants<TYPE> quants[2];
    uint32_t a[2][2][4], x[2][4];
    float d[4] = {};
    slim_place place = {};
    uint32_t x_from = me.x, scales = 0;
    int32_t left = (work.end_tile - work.first_tile + work.tile_step - 1) / work.tile_step * work.chunks;
    int32_t round = 0, part = 0;
    sl_barrier_wait(me.full, 0);
    uint32_t offset = slim_shift<TYPE>(work, 0);
    thin_view view = {me.view.matrix + offset, me.view.row + offset, me.view.scales};
    thin_scales<TYPE>(thin_header<TYPE>(me.header + offset, upper), upper, me.scales);
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
                chain_multiply(d, a[0][0], x[0][0], x[0][1]);
                chain_multiply(d, a[0][1], x[0][2], x[0][3]);
                if (step == 0) {
                    if (left > 1) { /* what is decoded ahead in the end is nobody's */
                        next = slim_next<TYPE>(work, place);
                        sl_barrier_wait(me.full + next.barrier, next.parity);
                    }
                    if (rest - 1 == until) {
                        until = work.chunks - slim_wait_x(work, work.chunks - until, &part);
                    }
                    scales = SCALES - scales;
                    offset = next.slot + slim_shift<TYPE>(work, rest == 1 ? 0 : work.chunks - rest + 1);
                    ahead = {me.view.matrix + offset, me.view.row + offset, me.view.scales + scales};
                    header = thin_header<TYPE>(me.header + offset, upper);
                }
                if (ends) {
                    quants[(step + 1) % 2].load(ahead, 0);
                }
                quants[step % 2].template run<1>(a[1]);
                if (step == (STEPS > 2 ? STEPS - 3 : 0)) {
                    thin_scales<TYPE>(header, upper, me.scales + scales);
                }
                if (step == STEPS - 2) {
                    __syncwarp(); /* all of the chunk is read, and the next one's scales are there */
                }
                x_from = !ends ? x_from : rest == 1 ? me.x : x_from + 2 * COLUMNS;
                slim_read_x(ends ? x_from : x_from + (uint32_t)(2 * SLIM_STEP * (step + 1)), x[0]);
                chain_multiply(d, a[1][0], x[1][0], x[1][1]);
                chain_multiply(d, a[1][1], x[1][2], x[1][3]);
                quants[(step + 1) % 2].template run<0>(a[0]);
            }
            __syncwarp();
            chain_arrive_if(me.full + place.barrier + to_empty, work.lane < SL_ARRIVING_LANES);
            place = next;
            view = ahead;
        }
        finish(d, round);
        d[0] = d[1] = d[2] = d[3] = 0.0f;
        round++;
    }
}

/* The first rounds of copies, and barriers; until weights may be read and x is to come. */
template <int TYPE>
static __device__ __forceinline__ void slim_prepare(const slim_work &work, slim_copies &copies, bool brings) {
    const slim_args &args = work.args;
    if (brings) {
        const slim_ring ring = slim_ring_of<TYPE>(work);
        for (uint32_t slot = 0; slot < (uint32_t)args.stages; slot++) {
            sl_barrier_init(ring.full + 8 * slot, 1);
            sl_barrier_init(ring.empty + 8 * slot, SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
    if (work.warp == SLIM_WARPS && work.lane == 0) {
        for (int32_t i = 0; i < SLIM_PARTS; i++) {
            sl_barrier_init(slim_x_barrier(work, i), SLIM_X_WARPS * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
    if (brings) {
        slim_bring_first<TYPE>(work, copies, 0, args.ahead);
    }
    __syncthreads();
}
#endif

/* BLOCKS: of a cluster, which share the ranges. */
template <int TYPE, int BLOCKS>
static __global__ void __launch_bounds__(SLIM_BOUND, 1)
    slim_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ slim_args args) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char shared[];
    const slim_work work = slim_work_of<TYPE>(args, shared, chain_warp());
    const bool works = work.warp < args.warps && work.first_tile < work.end_tile;
    const bool brings = works && work.lane == 0;
    slim_copies copies = slim_copies_of(work, work.first_tile);
    sl_cluster_arrive<BLOCKS>();
    sl_let_next_begin();
    slim_prepare<TYPE>(work, copies, brings);
    /* Of the step block, which is there. In the smaller block reading it ahead does not pay. */
    int32_t count = slim_layout<TYPE>::fills ? sl_count(context, args.y.rows) : 0;
    if (slim_brings_x<TYPE>(work)) {
        slim_x<TYPE> x(work);
        sl_wait_for_inputs();
        if (!slim_layout<TYPE>::fills) {
            count = sl_count(context, args.y.rows);
        }
        x.load(work);
        if (!slim_layout<TYPE>::fills && brings) {
            slim_bring_first<TYPE>(work, copies, args.ahead, args.stages);
        }
        __syncwarp();
        x.store(work);
    } else {
        slim_copy_on<TYPE>(args, shared, work.warp - SLIM_WARPS);
        sl_wait_for_inputs();
    }
    sl_cluster_wait<BLOCKS>(); /* the other blocks are there */
    if (work.warp >= SLIM_WARPS) {
        if (!slim_layout<TYPE>::fills) {
            slim_copy_on<TYPE>(args, shared, work.warp - SLIM_WARPS);
        }
    } else {
        float residual[4] = {};
        if (works) {
            slim_stream<TYPE>(
                work,
                [&](int32_t round) {
                    if (BLOCKS == 1 && work.local == 0) {
                        slim_residual(work, work.first_tile + round * work.tile_step, count, residual);
                    }
                },
                [&](const float(&sums)[4], int32_t round) {
                    if (BLOCKS == 1) {
                        slim_finish<TYPE>(work, sums, round, count, residual);
                    } else {
                        slim_hand_over<BLOCKS>(work, sums, round);
                    }
                });
        }
    }
    if (BLOCKS > 1) {
        slim_finish_cluster<TYPE, BLOCKS>(work, count);
    }
#else
    (void)context;
    (void)args;
    sl_wait_for_inputs();
#endif
}

/* ---- launches ---- */

template <int TYPE> static cudaError_t slim_prepare_type() {
    const cudaError_t code = sl_allow_shared(slim_kernel<TYPE, 1>, SLIM_BYTES);
    return code ? code : sl_allow_shared(slim_kernel<TYPE, 2>, SLIM_BYTES);
}

/* Whether the block's threads can bring x at once. */
template <int TYPE> static bool slim_takes_x(const slim_args &args) {
    enum { COLUMNS = slim_layout<TYPE>::columns };
    const int32_t chunks = slim_first(args, 1) / COLUMNS, most = (chunks + SLIM_PARTS - 1) / SLIM_PARTS;
    return most * args.own * (COLUMNS / 8) <= SLIM_AT_ONCE * SLIM_X_STEP;
}

/* How args' tiles, ranges and rows are shared out; shape: NULL, or what is launched. False where not all
 * chains of a block that run at once have room for two slots. */
template <int TYPE> static bool slim_cut(slim_args *args, int32_t processors, sl_launch_shape *shape) {
    args->own = args->range_bytes ? 1 : args->ranges;
    if (args->own % 2 == 0 && !slim_takes_x<TYPE>(*args)) {
        args->own /= 2;
    }
    const int32_t blocks = args->ranges / args->own;
    const int32_t room = SLIM_WARPS / args->own; /* tiles that a block has at once */
    int32_t wanted = processors > blocks ? processors / blocks : 1;
    /* Processors without a block have room for the small kernels around: a quarter where all tiles run at
     * once nevertheless, else those that no longer time comes from. */
    const int32_t fewer = wanted * 3 / 4;
    wanted = fewer > 0 && (args->tiles + fewer - 1) / fewer <= room ? fewer : wanted;
    const int32_t most = (args->tiles + wanted - 1) / wanted, clusters = (args->tiles + most - 1) / most;
    const int32_t together = room < most ? room : most;
    args->each = args->tiles / clusters;
    args->more = args->tiles % clusters;
    args->warps = together * args->own;
    args->deals = args->each < 2 * together;
    args->stages = SLIM_STAGES;
    while (args->stages > 2 && slim_memory_of<TYPE>(*args).bytes > SLIM_BYTES) {
        args->stages--;
    }

    const int32_t ahead = slim_layout<TYPE>::fills ? 1 : SLIM_AHEAD / (args->warps * slim_layout<TYPE>::slot);
    args->ahead = ahead < 1 ? 1 : ahead < args->stages ? ahead : args->stages;
    args->memory = slim_memory_of<TYPE>(*args);
    const uint32_t bytes = args->memory.bytes;
    if (shape) {
        *shape = {dim3((unsigned)(clusters * blocks)), dim3(slim_layout<TYPE>::threads),
                  bytes < SLIM_LEAST_BYTES ? (uint32_t)SLIM_LEAST_BYTES : bytes,
                  args->range_bytes ? 1 : (uint32_t)blocks};
    }
    return bytes <= SLIM_BYTES && slim_takes_x<TYPE>(*args);
}

/* A launch of a LINEAR, or of one whose gates and values an ACTIVATE and a QUANTIZE behind it turn into BF16.
 * apart: NULL, or where the ranges' sums are instead. */
template <int TYPE>
static cudaError_t slim_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                               sl_cuda_ranges *apart = NULL) {
    slim_args args = {};
    sl_launch_shape shape = {};
    sl_linear_fill(context, op, &args);
    args.tiles = sl_linear_cut(op, CHAIN_ROWS, args.first_tile);
    args.ranges = sl_k16_ranges(op, context->processors);
    args.rows = op->rows[op->out[0].rows];
    if (apart) {
        apart->data = args.y.data = op->scratch;
        apart->bytes = args.range_bytes = (uint64_t)args.rows * args.y.row_bytes;
        apart->count = args.ranges;
    } else if (op->run_length > 1) {
        args.tiles = chain_gate(op, 1, &args);
    }
    if (!slim_cut<TYPE>(&args, context->processors, &shape)) {
        return cudaErrorInvalidConfiguration;
    }
    const cudaError_t code = chain_make_maps<slim_layout<TYPE>>(&args);
    return code                 ? code
           : shape.cluster == 1 ? sl_launch(context, stream, shape, slim_kernel<TYPE, 1>, *context, args)
                                : sl_launch(context, stream, shape, slim_kernel<TYPE, 2>, *context, args);
}

#endif
