/* Matrix products for five to eight rows in class "bf16/k16" (k16.h): y = x W^T (+ bias) (+ residual).
 *
 * As in k16_rows4.cuh a warp takes sixteen weight rows and a range of the columns, one chain of
 * mma.m16n8k16, which has room for eight rows of x; it has a ring of weights of its own, which other warps
 * fill, and decodes the next 32 columns while the products of these run. Slots of rings have a chunk of the
 * columns each (k16_rows8_chunks.cuh) or a line of the cache (k16_rows8_lines.cuh). Warps load x, store
 * it a quarter of each range behind the other, and chains begin when the first quarter is there. What stands
 * between two chunks is short, as with few chains to a scheduler nothing hides it.
 *
 * Before the inputs are there a part of the ring is copied; where slots are small all of it, so that little
 * is under way when x is asked for, and what is then left at once when x is there. The kernel is in
 * k16_rows8_kernel.cuh.
 *
 * Where the next launch adds the ranges' sums (sl_cuda_slim_ranges) a block has one range. Else it has all
 * of a tile's, which are added through shared memory; or, where so much of x could not be loaded at once, two
 * blocks of a cluster share them, and each hands its sums to the one that adds a tile's. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/linear/k16/k16_chain.cuh"

enum {
    SLIM_X_ROWS = 8,               /* of x, at most */
    SLIM_WARPS = 12,               /* of a block, that have chains */
    SLIM_COPIERS = 4,              /* warps behind them: every fourth warp with a chain is one's */
    SLIM_X_WARPS = SLIM_WARPS + 4, /* that bring x */
    SLIM_BOUND = 768,        /* threads, and not so many: 80 registers, which leave room for a norm's block */
    SLIM_LINE = 128,         /* bytes of a line of the cache */
    SLIM_STAGES = 12,        /* slots of a ring, at most */
    SLIM_PARTS = 4,          /* of a range, whose x has a barrier each */
    SLIM_AT_ONCE = 3,        /* pieces of x that a lane loads of each part, before it stores them */
    SLIM_AHEAD = 64 * 1024,  /* of a block's weights, before inputs are there: more would delay x */
    SLIM_LITTLE = 32 * 1024, /* so little may always be under way meanwhile */
    SLIM_LINES_LEAST = 1024, /* columns of a range that pays slots of lines */
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

/* What a type's rings are like. A slot has one chunk of skinny_layout::columns columns; with LINES a line of
 * each of a tile's rows. */
template <int TYPE, bool LINES> struct slim_layout {
    enum {
        type = TYPE,
        lines = LINES,
        columns = skinny_layout<TYPE>::columns,
        bytes = skinny_layout<TYPE>::bytes,
        bits = skinny_layout<TYPE>::bits,
        stride = LINES ? (int)SLIM_LINE : (int)skinny_layout<TYPE>::stride,
        slot = LINES ? CHAIN_ROWS * SLIM_LINE : (CHAIN_ROWS * (int)stride + 127) / 128 * 128,
        scales = LINES ? 0 : CHAIN_ROWS * (int)thin_layout<TYPE>::scales, /* of a chunk */
        least = LINES ? 3 : 2,                                            /* slots of a ring */
        sums = SL_WARP * 16,
        /* Whether rings are filled before the inputs are there. Then x is brought by other warps than those
         * that copy: TMA takes copies one after the other, and who asks for many waits. */
        fills = SLIM_WARPS * slot <= SLIM_LITTLE,
        threads = (SLIM_X_WARPS + (fills ? SLIM_COPIERS : 0)) * SL_WARP
    };
    static_assert((int)threads <= (int)SLIM_BOUND, "registers");
    static_assert(LINES || (int)stride / 16 % 2 == 1, "rows of a matrix lie in different banks");
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

template <typename LAYOUT> static slim_memory slim_memory_of(const slim_args &args) {
    const uint32_t warps = (uint32_t)args.warps, stages = (uint32_t)args.stages;
    const uint32_t blocks = (uint32_t)(args.ranges / args.own);
    /* Of a cluster each block adds every so many'th tile. */
    const uint32_t tiles = (uint32_t)args.each + (args.more > 0), adds = (tiles + blocks - 1) / blocks;
    slim_memory memory;
    memory.scales = warps * stages * LAYOUT::slot;
    memory.barriers = memory.scales + warps * 2 * LAYOUT::scales;
    memory.empties = memory.barriers + warps * stages * 8;
    memory.x_barriers = memory.empties + warps * stages * 8;
    memory.sums = memory.x_barriers + SLIM_PARTS * 8;
    const uint32_t sums = args.range_bytes ? 0
                          : blocks > 1     ? adds * (uint32_t)args.ranges
                          : args.own > 1   ? warps * 2
                                           : 0;
    memory.x = memory.sums + sums * LAYOUT::sums;
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
    int32_t first_chunk, chunks, most_chunks; /* of the range; of the longest */
    int32_t slots;                            /* that a tile's range takes */
    int32_t first_line, shift; /* of a row, that has the range; where it begins there, in 16 bytes */
    int32_t first_tile, end_tile, tile_step, count; /* count: of the cluster's tiles */
} slim_work;

/* Number `index` of the cluster's tiles. */
static __device__ __forceinline__ int32_t slim_tile(const slim_work &work, int32_t index) {
    const int32_t step = work.tile_step / (work.args.warps / work.args.own);
    return work.first_tile + (index - work.pair) * step;
}

template <typename LAYOUT>
static __device__ __forceinline__ slim_work slim_work_of(const slim_args &args, unsigned char *shared,
                                                         int32_t warp) {
    enum { COLUMNS = LAYOUT::columns };
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
    work.slots = work.chunks;
    if (LAYOUT::lines) {
        const int32_t at = work.first_chunk * LAYOUT::bytes;
        work.first_line = at / SLIM_LINE;
        work.shift = at % SLIM_LINE / 16;
        work.slots = (at % SLIM_LINE + work.chunks * LAYOUT::bytes + SLIM_LINE - 1) / SLIM_LINE;
    }
    const int32_t start = cluster * args.each + min(cluster, args.more);
    const int32_t together = args.warps >> shift;
    work.count = args.each + (cluster < args.more);
    work.first_tile = args.deals ? cluster + work.pair * clusters : start + work.pair;
    work.end_tile = args.deals ? args.tiles : start + work.count;
    work.tile_step = args.deals ? together * clusters : together;
    return work;
}

static __device__ __forceinline__ uint32_t slim_x_barrier(const slim_work &work, int32_t part) {
    return work.base + work.memory.x_barriers + 8 * (uint32_t)part;
}

/* ---- copies of weights, by one lane ---- */

/* A warp's: of the first slot where it is, its barrier, which is passed when it is full, and that which is
 * passed when nobody reads it any more. */
typedef struct slim_ring {
    uint32_t slots, full, empty;
} slim_ring;

template <typename LAYOUT> static __device__ __forceinline__ slim_ring slim_ring_of(const slim_work &work) {
    const uint32_t slots = (uint32_t)(work.warp * work.args.stages);
    return {work.base + slots * LAYOUT::slot, work.base + work.memory.barriers + 8 * slots,
            work.base + work.memory.empties + 8 * slots};
}

/* Where a warp is in its ring: offsets of the slot, and of its barriers. */
typedef struct slim_place {
    uint32_t slot, barrier, parity;
} slim_place;

template <typename LAYOUT>
static __device__ __forceinline__ slim_place slim_next(const slim_work &work, const slim_place &place) {
    const bool wraps = place.barrier + 8 == 8 * (uint32_t)work.args.stages;
    return {wraps ? 0 : place.slot + LAYOUT::slot, wraps ? 0 : place.barrier + 8, place.parity ^ wraps};
}

typedef struct slim_copies {
    int32_t tile, slot; /* the next; of the tile's */
    int32_t row;        /* of weights, that the tile begins with, in `map` */
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
    if (++copies.slot >= work.slots) {
        copies = slim_copies_of(work, copies.tile + work.tile_step);
    }
}

/* To the slot at `to`, whose barrier is `full`. */
template <typename LAYOUT>
static __device__ __forceinline__ void slim_bring(const slim_work &work, slim_copies &copies, uint32_t to,
                                                  uint32_t full) {
    if constexpr (LAYOUT::lines) { /* gates and values are in one box */
        sl_barrier_expect(full, LAYOUT::slot);
        sl_box_copy_once(to, copies.map, (work.first_line + copies.slot) * (SLIM_LINE / 8), copies.row, 0,
                         full);
    } else {
        /* Boxes begin at multiples of 16 bytes; their columns are of two bytes. */
        const int32_t column = (work.first_chunk + copies.slot) * LAYOUT::bytes / 16 * 8;
        sl_barrier_expect(full, CHAIN_ROWS * LAYOUT::stride);
        sl_box_copy_once(to, copies.map, column, copies.row, 0, full);
        if (work.args.gated.data) {
            sl_box_copy_once(to + CHAIN_ROWS / 2 * LAYOUT::stride, &work.args.maps[1], column, copies.row, 0,
                             full);
        }
    }
    slim_pass(work, copies);
}

/* The warp's first chunks, to slots [first, end). */
template <typename LAYOUT>
static __device__ __forceinline__ void slim_bring_first(const slim_work &work, slim_copies &copies,
                                                        int32_t first, int32_t end) {
    const slim_ring ring = slim_ring_of<LAYOUT>(work);
    for (int32_t slot = first; slot < end && copies.tile < work.end_tile; slot++) {
        slim_bring<LAYOUT>(work, copies, ring.slots + (uint32_t)slot * LAYOUT::slot,
                           ring.full + 8 * (uint32_t)slot);
    }
}

/* A warp that fills the slots of its chains again, as they come free, each chain's by a lane: what boxes of
 * several chains need is computed at once, and a chain that is slow keeps no other waiting. Before, where
 * rings are filled, a slot when one before it has come, or when x is there. It needs none of the kernel's
 * inputs. */
template <typename LAYOUT>
static __device__ __forceinline__ void slim_copy_on(const slim_args &args, unsigned char *shared,
                                                    int32_t copier) {
    const int32_t chain = copier + (int32_t)threadIdx.x % SL_WARP * SLIM_COPIERS;
    if (chain < args.warps) {
        const slim_work own = slim_work_of<LAYOUT>(args, shared, chain);
        const int32_t tiles = max(own.end_tile - own.first_tile, 0);
        int32_t left = (tiles + own.tile_step - 1) / own.tile_step * own.slots - args.stages;
        slim_copies copies = slim_copies_of(own, own.first_tile);
        for (int32_t i = 0; i < (LAYOUT::fills ? args.ahead : args.stages); i++) {
            slim_pass(own, copies);
        }
        const slim_ring ring = slim_ring_of<LAYOUT>(own);
        if constexpr (LAYOUT::fills) {
            int32_t slot = args.ahead;
            bool has_x = false;
#pragma unroll 1
            while (slot < args.stages && copies.tile < own.end_tile) {
                has_x = has_x || sl_barrier_ask(slim_x_barrier(own, 0), 0);
                if (has_x || sl_barrier_ask(ring.full + 8 * (uint32_t)(slot - args.ahead), 0)) {
                    slim_bring_first<LAYOUT>(own, copies, slot, slot + 1);
                    slot++;
                }
            }
        }
        slim_place place = {};
#pragma unroll 1
        while (left > 0) {
            if (sl_barrier_try(ring.empty + place.barrier, place.parity)) {
                sl_fence_shared(); /* those of the warp that has come to the barrier */
                slim_bring<LAYOUT>(own, copies, ring.slots + place.slot, ring.full + place.barrier);
                place = slim_next<LAYOUT>(own, place);
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

/* Those that copy weights bring no x where they fill rings. */
template <typename LAYOUT> static __device__ __forceinline__ bool slim_brings_x(const slim_work &work) {
    return !LAYOUT::fills || work.warp < SLIM_WARPS || work.warp >= SLIM_WARPS + SLIM_COPIERS;
}

/* Number of the warp among those. */
template <typename LAYOUT> static __device__ __forceinline__ int32_t slim_x_warp(const slim_work &work) {
    return work.warp - (LAYOUT::fills && work.warp >= SLIM_WARPS ? (int32_t)SLIM_COPIERS : 0);
}

/* Where a lane that brings x puts the words of its pieces, all of which have the same number among 32: as
 * chain_put_x; with LINES turned as slim_line_run has the quants. */
template <typename LAYOUT> struct slim_places {
    int32_t words[4];

    __device__ __forceinline__ void find(int32_t eight) {
        if constexpr (LAYOUT::lines) {
            const int32_t first = eight % 2 * 4 + eight / 4 + 1;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t place = (first + i) % 8;
                words[i] = eight / 2 % 4 * 2 + place / 2 * 8 + place % 2;
                asm volatile("" : "+r"(words[i])); /* now */
            }
        }
    }
    __device__ __forceinline__ void put(uint32_t *row, int32_t eight, uint4 piece) const {
        if constexpr (LAYOUT::lines) {
            uint32_t *to = row + eight / 8 * 32;
            to[words[0]] = piece.x;
            to[words[1]] = piece.y;
            to[words[2]] = piece.z;
            to[words[3]] = piece.w;
        } else {
            chain_put_x<LAYOUT::type>(row, eight, piece);
        }
    }
};

/* By warps that bring x, two to a row. In front of the inputs: where to. */
template <typename LAYOUT> struct slim_x {
    enum { EACH = SLIM_X_STEP / SL_WARP };
    int32_t places[SLIM_PARTS][SLIM_AT_ONCE], row;
    slim_places<LAYOUT> put;
    uint4 words[SLIM_PARTS][SLIM_AT_ONCE];

    /* Pieces of a part: chunk after chunk, each of all of the block's ranges. */
    __device__ __forceinline__ explicit slim_x(const slim_work &work)
        : row(slim_x_warp<LAYOUT>(work) / EACH) {
        enum { COLUMNS = LAYOUT::columns, PIECES = COLUMNS / 8 };
        const slim_args &args = work.args;
        put.find(work.lane);
        int32_t start[SLIM_AT_ONCE], chunk[SLIM_AT_ONCE], end[SLIM_AT_ONCE]; /* end: of the range's chunks */
#pragma unroll
        for (int i = 0; i < SLIM_AT_ONCE; i++) {
            const int32_t index = slim_x_warp<LAYOUT>(work) % EACH * SL_WARP + work.lane + i * SLIM_X_STEP;
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
                    put.put(to, places[p][i] - before, words[p][i]);
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
template <typename LAYOUT> static __device__ __forceinline__ uint32_t slim_x_of(const slim_work &work) {
    const slim_args &args = work.args;
    const int32_t before = slim_first(args, work.rank * args.own);
    const int32_t row = work.lane / 4;
    return work.base + work.memory.x + (row < args.rows ? (uint32_t)row * work.memory.x_row : 0u) +
           (uint32_t)(work.lane % 4 * 32) + 2 * (uint32_t)(work.first_chunk * LAYOUT::columns - before);
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

template <typename LAYOUT>
static __device__ __forceinline__ void slim_store_tile(const slim_work &work, const float (&sums)[4],
                                                       int32_t tile, int32_t valid,
                                                       const float (&residual)[4]) {
    const slim_args &args = work.args;
    const float scale = __uint_as_float((127u + LAYOUT::bits) << 23);
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
template <typename LAYOUT>
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
        sl_meet(work.pair + 1, args.own * SL_WARP);
        for (int32_t r = 1; r < args.own && work.local == 0; r++) {
            slim_add(sums, all[r * SL_WARP]);
        }
    }
    if (work.local == 0) {
        slim_store_tile<LAYOUT>(work, sums, work.first_tile + round * work.tile_step, valid, residual);
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
template <typename LAYOUT, int BLOCKS>
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
        slim_store_tile<LAYOUT>(work, sums, slim_tile(work, index), valid, residual);
        place += LAYOUT::threads / SL_WARP;
        index = place * BLOCKS + work.rank;
        if (index < work.count) {
            slim_residual(work, slim_tile(work, index), valid, residual);
        }
    }
}

/* ---- what chains read of x ---- */

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
#endif

#endif
