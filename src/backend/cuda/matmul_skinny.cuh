/* Matrix products for 5 to 256 rows with Hopper's warpgroup instructions, as fast as the weights can be read:
 * y = x W^T (+ bias) (+ residual), with or without experts.
 *
 * Class "bf16/skinny": like "bf16/wgmma" (matmul_ring.cuh) x is BF16, and weights are decoded to BF16 in
 * registers as the products' first operand, but by fused operations on BF16 pairs, for which scales (and
 * minima) are rounded to BF16 first: see matmul_skinny_types.cuh. The columns are cut into ranges, as many as
 * skinny_choose takes for the weights' shapes, type and device, whatever the rows; a range's products are
 * added in f32 by m64nNk16, 16 columns after the other, and the ranges one after the other. Where two groups
 * take turns, chunks of skinny_layout::columns columns of a range alternate between two sums, one after the
 * other. Then bias, then residual. In class "bf16/k16" (k16.h) the ranges are that class's.
 *
 * A block has up to four consumer warpgroups of 64 outputs each, all rows, and one warpgroup that copies. One
 * of its threads brings weights as the file has them, in boxes of 32 rows and skinny_layout::columns columns,
 * another 128 columns of x at a time in the layout "128-byte swizzle" (see matmul_ring.cuh). Experts' rows of
 * x lie anywhere: three warps bring them in pieces of 16 bytes. The ranges of a tile's columns belong to the
 * blocks of a cluster: in the end the sums of every block lie in its shared memory, and each block adds and
 * stores some of the rows, reading the others' shared memory. Without ranges sums are stored from registers,
 * and blocks go on to further tiles, for which weights are copied already. So they are where a norm or the
 * heads' launch follows, which then adds the ranges as it reads them (sl_cuda_skinny_ranges): no block waits
 * for another, and all processors can have one.
 *
 * Before the inputs are there, weights are copied as far as the ring goes or pays, the first chunk's scales
 * are made, and addresses of results found: what is read or run for the first time takes longest.
 *
 * Groups of one part take turns at its chunks where a block has one tile, so that one decodes while another
 * waits. Scales and the first columns of the next chunk are made while products of this one run, and barriers
 * are asked before their answer is needed: three or four warps to a scheduler hide little by themselves.
 *
 * What bounds it on a H200, 24576x4096 in Q4_K: at 64 rows tensor cores 13 of 32 us, instructions 14 (about
 * 430 a warp and 256 columns; those on integers take two cycles), shared memory 14, memory 13, beginning and
 * end 6; Q8_0 needs 24 us of memory. Weights' bytes are read two at a time: wider reads of which four lanes
 * take a part each cost four times the time in shared memory. */
#ifndef SL_BACKEND_CUDA_MATMUL_SKINNY_CUH
#define SL_BACKEND_CUDA_MATMUL_SKINNY_CUH

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/k16.h"
#include "backend/cuda/linear_args.cuh"
#include "backend/cuda/matmul_skinny_types.cuh"

enum {
    SKINNY_PART = 64,     /* outputs of a consumer warpgroup */
    SKINNY_STEP = 64,     /* columns that are decoded at once; a stage of x is two steps */
    SKINNY_RANGE = 256,   /* columns: ranges are multiples */
    SKINNY_GROUP = 128,   /* threads */
    SKINNY_ROWS = 128,    /* of x in a launch, at most */
    SKINNY_BOX = 32,      /* rows of weights that are copied at once */
    SKINNY_X_COPIERS = 3, /* warps, for experts */
    SKINNY_CHUNKS = 12,   /* most in the ring of weights */
    SKINNY_EXPERTS = 512,
    SKINNY_EXPERT_ROWS = 5, /* of the step: for fewer, experts are read row by row */
    SKINNY_SPLITS = 8,      /* most ranges */
    /* Most parts of all ranges, where there are ranges: at least SL_K16_RANGES for each of the processors. */
    SKINNY_PIECES = 640,
    SKINNY_SUBS = 2,    /* groups that take turns, at most */
    SKINNY_STAGES = 4,  /* of x, where no groups take turns and rows are not few */
    SKINNY_AT_ONCE = 4, /* of them, that are read before they are added */
    /* Chunks that are copied before the inputs are there: at least two, at once, and with few rows or weights
     * of many bytes as many as this holds. */
    SKINNY_FIRST = 2,
    SKINNY_EARLY_BYTES = 140 * 1024,
    SKINNY_BYTES = 227 * 1024
};

/* ROWS: 8, 16, 32, 64, 96 or 128. stages: in the ring of x; then registers. */
template <int ROWS> struct skinny_shape {
    enum {
        stages = ROWS <= 64 ? 8 : 4, /* most */
        parts = ROWS <= 8 ? 4 : 3,   /* most consumers: what registers there are */
        ahead = ROWS <= 64,          /* whether columns are loaded a step before they are decoded */
        finds = parts == 3,          /* whether there are registers for addresses of results, found ahead */
        threads = (parts + 1) * SKINNY_GROUP,
        consumer_registers = parts == 4 ? 104 : 152,
        copier_registers = parts == 4 ? 64 : 56,
        sums_bytes = parts * SKINNY_PART * ROWS * 4,
        step_bytes = ROWS * SKINNY_STEP * 2,
        stage_bytes = 2 * step_bytes
    };
};

typedef struct skinny_args {
    CUtensorMap x_map, maps[SL_LINEAR_SEGMENTS]; /* x without experts; weights */
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_part[SL_LINEAR_SEGMENTS + 1]; /* of each segment; all parts */
    int32_t segments;
    int32_t parts, splits, chunks; /* consumer groups of a block, ranges, chunks in the ring */
    int32_t subs;                  /* consumer groups that take turns at the chunks of a part; `parts` each */
    bool halves;                   /* these are alternately of the range's halves */
    int32_t stages;                /* in the ring of x */
    int32_t early;                 /* chunks that are copied before the inputs are there */
    sl_cuda_operand x, residual, y;
    const int32_t *offsets, *list; /* the schedule, or NULL */
    int32_t x_share;               /* rows of y that read one row of x */
    int32_t first_row;             /* without experts: rows of y before those of the operands */
    sl_cuda_operand gated;         /* BF16, or absent: segment 0 are gates, 1 as many values, and what is
                                      stored is f(gate) * value */
    int32_t function;              /* sl_activation */
    /* 0, or: every block stores the sums of its range by itself, `y` is those of the first range, and those
     * of the next lie so many bytes on. */
    uint64_t range_bytes;
} skinny_args;

/* Whether blocks, or groups that take turns, add each other's sums in the end. */
static __host__ __device__ __forceinline__ bool skinny_meets(const skinny_args &args) {
    return args.splits * args.subs > 1 && !args.range_bytes;
}

/* Row tiles, by expert: expert e's are starts[e] .. starts[e + 1] - 1. */
typedef struct skinny_schedule {
    int32_t offsets[SKINNY_EXPERTS + 1], starts[SKINNY_EXPERTS + 1];
} skinny_schedule;

/* Whether the next chunk is begun while products of one run. With more rows, and Q8_0, there are few chunks
 * in the ring, and a chunk would wait for the next one. */
template <int TYPE, int ROWS> struct skinny_looks {
    enum { AHEAD = skinny_shape<ROWS>::ahead && TYPE != SL_QTYPE_Q8_0 };
};

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int TYPE, int ROWS> struct skinny_memory {
    enum {
        scales = 0,
        rows = scales + 2 * (int)skinny_shape<ROWS>::parts * SKINNY_PART * skinny_layout<TYPE>::scales,
        barriers = rows + SKINNY_X_COPIERS * ROWS * 4,
        schedule = barriers + 8 * (2 * skinny_shape<ROWS>::stages + 2 * SKINNY_CHUNKS),
        x = (schedule + (int)sizeof(skinny_schedule) + 1023) / 1024 * 1024 /* then sums; then weights */
    };
};

typedef struct skinny_tile {
    int32_t expert, first, count; /* rows of the schedule or of y */
    int32_t part;                 /* the first */
} skinny_tile;

/* What a block works with. */
typedef struct skinny_work {
    const sl_cuda_context &context;
    const skinny_args &args;
    const skinny_schedule &schedule;
    skinny_schedule *plan; /* the same, to write */
    int32_t rows;          /* of the step, without experts */
    int32_t blocks;        /* of parts */
    int32_t first_tile, tiles, tile_step;
    int32_t first_chunk, end_chunk; /* the range */
    int32_t half;                   /* chunks of the first of its halves, or 0: see skinny_chunk_at */
    int32_t range;
    uint32_t base;    /* of shared memory */
    uint32_t weights; /* offset */
    unsigned char *memory;
} skinny_work;

/* Which chunk of the columns comes as number `turn`: groups that take turns have alternate chunks, in class
 * "bf16/k16" a half of the range each. */
static __device__ __forceinline__ int32_t skinny_chunk_at(const skinny_work &work, int32_t turn) {
    const int32_t done = turn - work.first_chunk;
    return work.half ? work.first_chunk + done / 2 + done % 2 * work.half : turn;
}

/* 64 rows of weights, or 32 gates and their 32 values. weight: NULL past the end. */
typedef struct skinny_part {
    const sl_cuda_weight *weight;
    int32_t segment, output; /* the first */
} skinny_part;

static __device__ __forceinline__ skinny_part skinny_part_of(const skinny_args &args, int32_t index) {
    skinny_part part = {NULL, 0, 0};
#pragma unroll 1
    while (part.segment + 1 < args.segments && index >= args.first_part[part.segment + 1]) {
        part.segment++;
    }
    if (index < args.first_part[SL_LINEAR_SEGMENTS]) {
        part.weight = &args.weights[part.segment];
        part.output = (index - args.first_part[part.segment]) * (args.gated.data ? 32 : SKINNY_PART);
    }
    return part;
}

template <int ROWS>
static __device__ __forceinline__ skinny_tile skinny_find(const skinny_work &work, int32_t index) {
    const skinny_args &args = work.args;
    skinny_tile tile = {0, 0, min(work.rows - args.first_row, ROWS), index * args.parts};
    if (args.list) {
        const int32_t high = index / work.blocks;
        tile.part = (index - high * work.blocks) * args.parts;
        const skinny_schedule &schedule = work.schedule;
        int32_t low = 0, end = args.weights[0].experts; /* starts[low] <= high < starts[end] */
#pragma unroll 1
        while (end - low > 1) {
            const int32_t middle = (low + end) / 2;
            if (schedule.starts[middle] <= high) {
                low = middle;
            } else {
                end = middle;
            }
        }
        const int32_t done = (high - schedule.starts[low]) * ROWS;
        tile.expert = low;
        tile.first = schedule.offsets[low] + done;
        tile.count = min(schedule.offsets[low + 1] - tile.first, ROWS);
    }
    return tile;
}

/* sl_count without experts: begins to read now, so that nobody waits before the end. */
static __device__ __forceinline__ int32_t skinny_count(const sl_cuda_context &context, sl_rows rows) {
    int32_t count;
    asm volatile("ld.global.b32 %0, [%1];"
                 : "=r"(count)
                 : "l"(rows == SL_ROWS_STEP ? &context.header->rows : &context.header->outputs)
                 : "memory");
    return count;
}

/* By all threads; returns the row tiles. */
template <int ROWS>
static __device__ int32_t skinny_plan(const skinny_args &args, skinny_schedule *schedule) {
    const int32_t experts = args.weights[0].experts;
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i <= experts; i += (int32_t)blockDim.x) {
        schedule->offsets[i] = args.offsets[i];
    }
    __syncthreads();
    if (threadIdx.x < SL_WARP) {
        const int32_t lane = (int32_t)threadIdx.x;
        int32_t before = 0;
#pragma unroll 1
        for (int32_t first = 0; first < experts; first += SL_WARP) {
            const int32_t expert = first + lane;
            const int32_t count =
                expert < experts ? schedule->offsets[expert + 1] - schedule->offsets[expert] : 0;
            const int32_t tiles = (count + ROWS - 1) / ROWS;
            int32_t end = tiles;
            for (int distance = 1; distance < SL_WARP; distance *= 2) {
                const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
                end += lane >= distance ? other : 0;
            }
            if (expert < experts) {
                schedule->starts[expert] = before + end - tiles;
            }
            before += __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
        }
        if (lane == 0) {
            schedule->starts[experts] = before;
        }
    }
    __syncthreads();
    return schedule->starts[experts];
}

#if SL_HAS_WGMMA

/* ---- barriers: x full, x empty, weights full, weights empty ---- */

template <int TYPE, int ROWS> struct skinny_barriers {
    enum { STAGES = skinny_shape<ROWS>::stages };
    static __device__ __forceinline__ uint32_t at(uint32_t base, uint32_t i) {
        return base + skinny_memory<TYPE, ROWS>::barriers + 8 * i;
    }
    static __device__ __forceinline__ uint32_t x_full(uint32_t base, uint32_t i) {
        return at(base, i);
    }
    static __device__ __forceinline__ uint32_t x_empty(uint32_t base, uint32_t i) {
        return at(base, STAGES + i);
    }
    static __device__ __forceinline__ uint32_t full(uint32_t base, uint32_t i) {
        return at(base, 2 * STAGES + i);
    }
    static __device__ __forceinline__ uint32_t empty(uint32_t base, uint32_t i) {
        return at(base, 2 * STAGES + SKINNY_CHUNKS + i);
    }
    /* By one thread, which may copy weights at once. */
    static __device__ __forceinline__ void init_full(uint32_t base, int32_t chunks) {
#pragma unroll 1
        for (int32_t i = 0; i < chunks; i++) {
            sl_barrier_init(full(base, (uint32_t)i), 1);
        }
        sl_barrier_fence();
        sl_barriers_ready();
    }
    /* The others, by a warp. */
    static __device__ __forceinline__ void init(uint32_t base, int32_t parts, bool has_experts) {
        static_assert(STAGES <= SL_WARP && (int)SKINNY_CHUNKS <= SL_WARP, "a lane for each");
        const uint32_t warps = 4 * (uint32_t)parts; /* that read one piece */
        const uint32_t lane = threadIdx.x % SL_WARP;
        if (lane < STAGES) {
            sl_barrier_init(x_full(base, lane), has_experts ? SL_WARP * SKINNY_X_COPIERS : 1);
            sl_barrier_init(x_empty(base, lane), warps * SL_ARRIVING_LANES);
        }
        if (lane < SKINNY_CHUNKS) {
            sl_barrier_init(empty(base, lane), warps * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
};

/* A position in the ring of weights, and the parity of the phase of its barriers. */
typedef struct skinny_place {
    uint32_t at, parity;
} skinny_place;

static __device__ __forceinline__ void skinny_skip(skinny_place *place, uint32_t count, uint32_t length) {
    place->at += count;
    if (place->at >= length) {
        place->at -= length;
        place->parity ^= 1;
    }
}

/* ---- weights: one thread ---- */

/* Where copies have come to. */
typedef struct skinny_copies {
    skinny_place place;
    int32_t index, chunk; /* tile, chunk of the row */
    uint32_t issued;
} skinny_copies;

/* The next chunk, if there is one. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ bool skinny_bring_chunk(const skinny_work &work, skinny_copies *copies) {
    typedef skinny_layout<TYPE> layout;
    if (copies->index >= work.tiles) {
        return false;
    }
    const skinny_args &args = work.args;
    const skinny_tile tile = skinny_find<ROWS>(work, copies->index);
    const uint32_t full = skinny_barriers<TYPE, ROWS>::full(work.base, copies->place.at);
    const uint32_t box = SKINNY_BOX * layout::stride;
    const int32_t parts = min(args.parts, args.first_part[SL_LINEAR_SEGMENTS] - tile.part);
    const int32_t chunk = skinny_chunk_at(work, copies->chunk);
    const int32_t column = chunk * layout::bytes / 16 * 8; /* boxes begin at multiples of 16 bytes */
    uint32_t to = work.base + work.weights + copies->place.at * (uint32_t)args.parts * (2 * box);
    sl_barrier_expect(full, (uint32_t)parts * 2 * box);
#pragma unroll 1
    for (int32_t i = 0; i < parts; i++) {
        const skinny_part part = skinny_part_of(args, tile.part + i);
        const CUtensorMap *map = &args.maps[part.segment];
        const bool gated = args.gated.data != NULL;
        sl_box_copy_once(to, map, column, part.output, tile.expert, full);
        sl_box_copy_once(to + box, gated ? &args.maps[1] : map, column,
                         part.output + (gated ? 0 : SKINNY_BOX), tile.expert, full);
        to += 2 * box;
    }
    skinny_skip(&copies->place, 1, (uint32_t)args.chunks);
    copies->issued++;
    if (++copies->chunk == work.end_chunk) {
        copies->chunk = work.first_chunk;
        copies->index += work.tile_step;
    }
    return true;
}

/* ---- x: without experts by one thread, with them in pieces of 16 bytes by three warps ---- */

static __device__ __forceinline__ void skinny_copy(uint32_t to, const unsigned char *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Before the inputs are there: how many stages come at once. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ int32_t skinny_expect_x(const skinny_work &work) {
    enum { STAGES = skinny_layout<TYPE>::columns / (2 * SKINNY_STEP) }; /* of a chunk */
    const int32_t ahead = min(work.args.stages, (work.end_chunk - work.first_chunk) * STAGES);
#pragma unroll 1
    for (int32_t i = 0; i < ahead; i++) {
        sl_barrier_expect(skinny_barriers<TYPE, ROWS>::x_full(work.base, (uint32_t)i),
                          skinny_shape<ROWS>::stage_bytes);
    }
    return ahead;
}

/* ahead: of skinny_expect_x. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_bring_x(const skinny_work &work, int32_t ahead) {
    typedef skinny_shape<ROWS> shape;
    typedef skinny_barriers<TYPE, ROWS> barriers;
    enum { STAGES = skinny_layout<TYPE>::columns / (2 * SKINNY_STEP) }; /* of a chunk */
    const int32_t stages = (work.end_chunk - work.first_chunk) * STAGES;
    skinny_place place = {0, 1};
#pragma unroll 1
    for (int32_t index = work.first_tile; index < work.tiles; index += work.tile_step) {
#pragma unroll 1
        for (int32_t stage = 0; stage < stages; stage++) {
            const uint32_t slot = place.at;
            const uint32_t to = work.base + skinny_memory<TYPE, ROWS>::x + slot * shape::stage_bytes,
                           full = barriers::x_full(work.base, slot);
            const int32_t chunk = skinny_chunk_at(work, work.first_chunk + stage / STAGES);
            const int32_t column = (chunk * STAGES + stage % STAGES) * (2 * SKINNY_STEP);
            if (ahead > 0) {
                ahead--;
            } else {
                sl_barrier_wait(barriers::x_empty(work.base, slot), place.parity);
                sl_barrier_expect(full, shape::stage_bytes);
            }
            skinny_skip(&place, 1, (uint32_t)work.args.stages);
            sl_box_copy(to, &work.args.x_map, column, 0, 0, full);
            sl_box_copy(to + shape::step_bytes, &work.args.x_map, column + SKINNY_STEP, 0, 0, full);
        }
    }
}

/* Warp `warp` of the three: every third pair of rows; sixteen lanes to a row of 128 columns. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_gather_x(const skinny_work &work, int32_t warp) {
    typedef skinny_shape<ROWS> shape;
    typedef skinny_barriers<TYPE, ROWS> barriers;
    const skinny_args &args = work.args;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t stages =
        (work.end_chunk - work.first_chunk) * (skinny_layout<TYPE>::columns / (2 * SKINNY_STEP));
    uint32_t *rows = (uint32_t *)(work.memory + skinny_memory<TYPE, ROWS>::rows) + warp * ROWS;
    skinny_place place = {0, 1};
    const int32_t first_row = 2 * warp + lane / 16;
    const uint32_t piece = (uint32_t)lane % 8, step = (uint32_t)lane / 8 % 2 * shape::step_bytes;
    const unsigned char *x = args.x.data + 2 * (int64_t)args.x.column +
                             (int64_t)work.first_chunk * (skinny_layout<TYPE>::columns * 2) + lane % 16 * 16;
#pragma unroll 1
    for (int32_t index = work.first_tile; index < work.tiles; index += work.tile_step) {
        const skinny_tile tile = skinny_find<ROWS>(work, index);
        __syncwarp();
#pragma unroll 1
        for (int32_t i = lane; i < tile.count; i += SL_WARP) {
            const uint32_t row = (uint32_t)args.list[tile.first + i] / (uint32_t)args.x_share;
            rows[i] = (uint32_t)((uint64_t)row * args.x.row_bytes >> 4);
        }
        __syncwarp();
#pragma unroll 1
        for (int32_t stage = 0; stage < stages; stage++) {
            const uint32_t slot = place.at;
            const unsigned char *from = x + (uint32_t)stage * (4 * SKINNY_STEP);
            const uint32_t to = work.base + skinny_memory<TYPE, ROWS>::x + slot * shape::stage_bytes + step;
            sl_barrier_wait(barriers::x_empty(work.base, slot), place.parity);
            skinny_skip(&place, 1, (uint32_t)args.stages);
#pragma unroll 4
            for (int32_t row = first_row; row < tile.count; row += 2 * SKINNY_X_COPIERS) {
                skinny_copy(to + (uint32_t)(row * 128) + (piece ^ (uint32_t)row % 8) * 16,
                            from + (uint64_t)rows[row] * 16);
            }
            sl_barrier_arrive_copied(barriers::x_full(work.base, slot));
        }
    }
}

/* ---- the consumers ---- */

typedef struct skinny_places {
    skinny_place weights;
    skinny_place x;
    int32_t last; /* slot of the stage before, or -1 */
} skinny_places;

/* What a consumer warp's lane knows for good. */
typedef struct skinny_lane {
    int32_t thread, lane, warp, group; /* warp: of the group */
    int32_t part, sub;
    int32_t scale_row; /* lane % 16 of the warp's rows, in a part */
    skinny_view view;  /* of chunk 0 */
    uint32_t scales;   /* offset, of the warp */
} skinny_lane;

/* Row m of the operand lies in row m of the part; with gates 8 of them and their values alternate in the
 * operand, while in shared memory 32 gates come first. */
static __device__ __forceinline__ int32_t skinny_row(bool gated, int32_t m) {
    return gated ? m / 16 * 8 + m % 8 + m % 16 / 8 * 32 : m;
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ skinny_lane skinny_lane_of(const skinny_work &work) {
    typedef skinny_layout<TYPE> layout;
    typedef skinny_memory<TYPE, ROWS> memory;
    skinny_lane me;
    me.thread = (int32_t)threadIdx.x;
    me.lane = me.thread % SL_WARP;
    me.warp = me.thread / SL_WARP % 4;
    /* The compiler knows what a shuffle gives as the same in the warp: uniform registers. */
    me.group = __shfl_sync(SL_FULL_WARP, me.thread / SKINNY_GROUP, 0);
    me.sub = me.group / work.args.parts;
    me.part = me.group - me.sub * work.args.parts;
    const bool gated = work.args.gated.data != NULL;
    const uint32_t start = work.base + work.weights + (uint32_t)(me.part * SKINNY_PART * layout::stride);
    me.scale_row = skinny_row(gated, 16 * me.warp + me.lane % 16);
    me.scales = (uint32_t)(memory::scales + (me.group * 4 + me.warp) * 32 * layout::scales);
    me.view.matrix = start + (uint32_t)(me.scale_row * layout::stride + me.lane / 16 * 16);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t m = 16 * me.warp + me.lane / 4 + 8 * i;
        me.view.row[i] = start + (uint32_t)(skinny_row(gated, m) * layout::stride);
    }
    me.view.pair = (uint32_t)me.lane % 4 * 2;
    me.view.select = me.view.pair * 0x1111 + 0x1100;
    me.view.scales = work.base + me.scales + (uint32_t)(me.lane / 4 * 16);
    return me;
}

/* A matrix of x in shared memory, at 16 * place: rows of 128 bytes, groups of 8 rows 1024 bytes apart,
 * 128-byte swizzle; see PTX, "matrix descriptor". */
static __device__ __forceinline__ uint64_t skinny_matrix(uint32_t place) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | ((1u << 16) + place);
}

/* sums += 64 outputs' weights times x, 64 columns. */
template <int ROWS>
static __device__ __forceinline__ void skinny_multiply(uint32_t (&a)[4][4], uint32_t x,
                                                       float (&sums)[ROWS / 2]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])); /* now, not later */
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma<ROWS>(sums, a[k], skinny_matrix(x + (uint32_t)(2 * k)));
    }
    wgmma_commit();
}

/* A chunk in the ring, and which of a warp's two places its scales take. */
typedef struct skinny_spot {
    skinny_place place;
    int32_t chunk;  /* number of its turn: see skinny_chunk_at */
    uint32_t shift; /* bytes of a row's copy that lie before it */
    uint32_t turn;
} skinny_spot;

template <int TYPE>
static __device__ __forceinline__ uint32_t skinny_offset(const skinny_work &work, const skinny_spot &spot) {
    return spot.place.at * (uint32_t)(work.args.parts * SKINNY_PART * skinny_layout<TYPE>::stride);
}

template <int TYPE>
static __device__ __forceinline__ uint32_t skinny_shift(const skinny_work &work, int32_t turn) {
    enum { BYTES = skinny_layout<TYPE>::bytes };
    return BYTES % 16 ? (uint32_t)(skinny_chunk_at(work, turn) * BYTES) % 16 : 0;
}

template <int TYPE>
static __device__ __forceinline__ skinny_view skinny_look(const skinny_work &work, const skinny_lane &me,
                                                          const skinny_spot &spot) {
    const uint32_t at = skinny_offset<TYPE>(work, spot);
    skinny_view view = me.view;
    view.matrix += at;
    view.row[0] += at + spot.shift;
    view.row[1] += at + spot.shift;
    view.scales += spot.turn * (16 * skinny_layout<TYPE>::scales);
    return view;
}

/* A chunk's scales, decoded by its warp; they are there after a __syncwarp(). */
template <int TYPE>
static __device__ __forceinline__ void skinny_make_scales(const skinny_work &work, const skinny_lane &me,
                                                          const skinny_spot &spot) {
    typedef skinny_layout<TYPE> layout;
    if constexpr (layout::scales > 0) {
        const unsigned char *row = work.memory + work.weights + skinny_offset<TYPE>(work, spot) +
                                   (me.part * SKINNY_PART + me.scale_row) * layout::stride + spot.shift;
        skinny_scales<TYPE>(
            row, me.lane / 16,
            (uint4 *)(work.memory + me.scales + spot.turn * (16 * layout::scales) + me.lane % 16 * 16));
    }
}

/* done: asked early, so that nobody waits for the answer. */
static __device__ __forceinline__ void skinny_await(uint32_t done, uint32_t barrier, uint32_t parity) {
    if (!done) {
        sl_barrier_wait(barrier, parity);
    }
}

/* A stage of x has been read, if slot is not -1. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_leave_x(const skinny_work &work, const skinny_lane &me,
                                                      int32_t slot) {
    if (slot >= 0 && me.lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(skinny_barriers<TYPE, ROWS>::x_empty(work.base, (uint32_t)slot));
    }
}

typedef struct skinny_spots {
    skinny_spot now, next;
} skinny_spots;

/* A lane's weights: on their way, and what two steps' products read. */
template <int TYPE> struct skinny_hands {
    skinny_decoder<TYPE> decoder;
    uint32_t a[2][4][4];
};

/* One chunk; the next one's scales and first columns on the way. The registers of products under way are left
 * alone until those of two steps ago are done. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_chunk(const skinny_work &work, const skinny_lane &me,
                                                    const skinny_spots &spots, skinny_places &places,
                                                    skinny_hands<TYPE> &hands, float (&sums)[ROWS / 2]) {
    const skinny_spot &now = spots.now, &next = spots.next;
    skinny_decoder<TYPE> &decoder = hands.decoder;
    typedef skinny_shape<ROWS> shape;
    typedef skinny_barriers<TYPE, ROWS> barriers;
    enum { STEPS = skinny_layout<TYPE>::columns / SKINNY_STEP, AHEAD = skinny_looks<TYPE, ROWS>::AHEAD };
    const skinny_view view = skinny_look<TYPE>(work, me, now);
    if (shape::ahead && !AHEAD) {
        decoder.load(view, 0);
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint32_t(&mine)[4][4] = hands.a[step % 2];
        const uint32_t slot = places.x.at, x_full = barriers::x_full(work.base, slot),
                       x_parity = places.x.parity;
        const uint32_t full = barriers::full(work.base, next.place.at);
        const uint32_t x_there = step % 2 == 0 ? sl_barrier_ask(x_full, x_parity) : 0;
        const uint32_t there = AHEAD && step + 2 == STEPS ? sl_barrier_ask(full, next.place.parity) : 0;
        if (!shape::ahead) {
            decoder.load(view, step);
        }
        wgmma_wait<1>(mine);
        /* Products with the group's stage before this one are done. */
        if (step % 2) {
            skinny_leave_x<TYPE, ROWS>(work, me, places.last);
        }
        decoder.run(view, step, mine);
        if (shape::ahead && step + 1 < STEPS) {
            decoder.load(view, step + 1);
        }
        if (AHEAD && step + 1 == STEPS) {
            __syncwarp();
            decoder.load(skinny_look<TYPE>(work, me, next), 0);
        }
        if (step % 2 == 0) { /* a loop between two steps would make the assembler wait for every product */
            skinny_await(x_there, x_full, x_parity);
            if (work.args.list) { /* of x that was not copied by boxes */
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            }
        }
        if (AHEAD && step + 2 == STEPS) {
            skinny_await(there, full, next.place.parity);
        }
        skinny_multiply<ROWS>(mine,
                              (work.base + skinny_memory<TYPE, ROWS>::x + slot * shape::stage_bytes) / 16 +
                                  (uint32_t)(step % 2 * shape::step_bytes / 16),
                              sums);
        if (AHEAD && step + 2 == STEPS) {
            skinny_make_scales<TYPE>(work, me, next);
        }
        if (step % 2) {
            places.last = (int32_t)slot;
            skinny_skip(&places.x, 1, (uint32_t)work.args.stages);
        }
    }
}

/* Waits for a chunk, and makes its scales. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_take(const skinny_work &work, const skinny_lane &me,
                                                   const skinny_spot &spot) {
    sl_barrier_wait(skinny_barriers<TYPE, ROWS>::full(work.base, spot.place.at), spot.place.parity);
    skinny_make_scales<TYPE>(work, me, spot);
    __syncwarp();
}

/* The group's first chunk of a tile. */
template <int TYPE>
static __device__ __forceinline__ skinny_spot skinny_first(const skinny_work &work, const skinny_lane &me,
                                                           const skinny_places &places) {
    const int32_t first = work.first_chunk + me.sub;
    return {places.weights, first, skinny_shift<TYPE>(work, first), 0};
}

/* The range's columns of a tile. taken: the first chunk is already. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_consume(const skinny_work &work, const skinny_lane &me,
                                                      skinny_places &places, bool taken,
                                                      float (&sums)[ROWS / 2]) {
    enum { AHEAD = skinny_looks<TYPE, ROWS>::AHEAD };
    skinny_spots spots = {skinny_first<TYPE>(work, me, places), {{0, 0}, 0, 0, 0}};
    skinny_spot &now = spots.now, &next = spots.next;
    if (now.chunk >= work.end_chunk) {
        return;
    }
    skinny_hands<TYPE> hands;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        hands.a[i / 16][i % 16 / 4][i % 4] = 0;
    }
    if (AHEAD) {
        if (!taken) {
            skinny_take<TYPE, ROWS>(work, me, now);
        }
        hands.decoder.load(skinny_look<TYPE>(work, me, now), 0);
    }
#pragma unroll 1
    for (bool more = true; more;) {
        if (!AHEAD && !taken) {
            skinny_take<TYPE, ROWS>(work, me, now);
        }
        taken = false;
        const int32_t turn = now.chunk + work.args.subs;
        next = {now.place, turn, skinny_shift<TYPE>(work, turn), now.turn ^ 1};
        skinny_skip(&next.place, (uint32_t)work.args.subs, (uint32_t)work.args.chunks);
        places.weights = next.place;
        more = next.chunk < work.end_chunk;
        if (!more) { /* the same again, for nothing */
            next.place = now.place;
            next.chunk = now.chunk;
            next.shift = now.shift;
        }
        skinny_chunk<TYPE, ROWS>(work, me, spots, places, hands, sums);
        __syncwarp();
        if (me.lane < SL_ARRIVING_LANES) {
            sl_barrier_arrive(skinny_barriers<TYPE, ROWS>::empty(work.base, now.place.at));
        }
        if (work.args.subs > 1) {
            enum { STAGES = skinny_layout<TYPE>::columns / (2 * SKINNY_STEP) }; /* of a chunk */
            skinny_skip(&places.x, (uint32_t)((work.args.subs - 1) * STAGES), (uint32_t)work.args.stages);
        }
        now = next;
    }
    wgmma_wait<0>(hands.a[0]);
    wgmma_wait<0>(hands.a[1]);
    if (work.args.subs > 1) { /* others may wait for it; there is one tile */
        skinny_leave_x<TYPE, ROWS>(work, me, places.last);
    }
}

/* ---- results ---- */

static __device__ __forceinline__ void skinny_meet(const skinny_work &work) {
    asm volatile("bar.sync 1, %0;" ::"r"(work.args.parts * work.args.subs * SKINNY_GROUP) : "memory");
}

/* Sums lie in every block as [row][group][outputs of the group]; outputs change places with the row so that a
 * warp's stores lie in different banks. */
static __device__ __forceinline__ int32_t skinny_place_of(const skinny_args &args, int32_t row,
                                                          int32_t output) {
    return row * (args.parts * args.subs * SKINNY_PART) + (output ^ row / 2 % 4 * 8);
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_put_sums(const skinny_work &work, const skinny_lane &me,
                                                       int32_t count, const float (&sums)[ROWS / 2]) {
    float *to = (float *)(work.memory + skinny_memory<TYPE, ROWS>::x);
    int32_t lane = me.lane;
    asm volatile("" : "+r"(lane)); /* nothing of this is kept while products run: registers are short */
    const int32_t output = me.group * SKINNY_PART + 16 * me.warp + lane / 4;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int32_t row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (i / 4 * 8 < count) {
            to[skinny_place_of(work.args, row, output + i % 4 / 2 * 8)] = sums[i];
        }
    }
}

/* Where a lane's outputs of a tile go without ranges: of its rows' first element; NULL: not there. */
typedef struct skinny_target {
    const sl_cuda_operand &to;
    unsigned char *first;          /* output `output` of row 0, of y or of the gated values */
    const unsigned char *residual; /* the same of the residual, or NULL */
    bool has_second;               /* output eight on is there */
    float scale;
    const float *bias[2]; /* of the two outputs, or NULL */
} skinny_target;

/* Two outputs of row `row` of y, eight apart, or a gate and its value. */
static __device__ __forceinline__ void skinny_store_two(const skinny_args &args, const skinny_target &target,
                                                        int32_t row, float low, float high) {
    low = target.bias[0] ? low * target.scale + *target.bias[0] : low * target.scale;
    high = target.bias[1] ? high * target.scale + *target.bias[1] : high * target.scale;
    unsigned char *to = target.first + (uint64_t)(uint32_t)row * target.to.row_bytes;
    if (args.gated.data) {
        *(uint16_t *)to = sl_f32_to_bf16(sl_activate(args.function, low) * high);
        return;
    }
    float *y = (float *)to;
    const float *residual =
        target.residual ? (const float *)(target.residual + (uint64_t)(uint32_t)row * args.residual.row_bytes)
                        : NULL;
    y[0] = residual ? low + residual[0] : low;
    if (target.has_second) {
        y[8] = residual ? high + residual[8] : high;
    }
}

/* Without ranges: from registers. A lane has outputs lane / 4 and lane / 4 + 8 of its warp's 16 (with gates a
 * gate and its value), and two of every eight rows. Code that runs once is slow, so this is a loop. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_store_sums(const skinny_work &work, const skinny_lane &me,
                                                         const skinny_tile &tile, float (&sums)[ROWS / 2]) {
    enum { AT_ONCE = ROWS < 16 ? ROWS / 8 : 2 }; /* eights of rows */
    const skinny_args &args = work.args;
    const skinny_part part = skinny_part_of(args, tile.part + me.part);
    int32_t lane = me.lane;
    asm volatile("" : "+r"(lane)); /* nothing of this is kept while products run: registers are short */
    const bool gated = args.gated.data != NULL;
    const int32_t output = part.output + (gated ? 8 : 16) * me.warp + lane / 4;
    if (!part.weight || output >= part.weight->rows) {
        return;
    }
    const sl_cuda_weight &weight = *part.weight;
    const int64_t bias = (int64_t)tile.expert * weight.rows + output;
    const bool has_second = gated || output + 8 < weight.rows;
    const float *second = gated ? args.weights[1].bias : weight.bias ? weight.bias + 8 : NULL;
    const int32_t column = weight.column + output, range = work.range * args.subs + me.sub;
    const skinny_target target = {
        gated ? args.gated : args.y,
        gated ? args.gated.data + 2 * (int64_t)(args.gated.column + output)
              : (unsigned char *)(sl_f32(args.y, 0) + column) + (uint32_t)range * args.range_bytes,
        !gated && args.residual.data ? (const unsigned char *)(sl_f32(args.residual, 0) + column) : NULL,
        has_second,
        __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23),
        {weight.bias ? weight.bias + bias : NULL, has_second && second ? second + bias : NULL}};
#pragma unroll 1
    for (int32_t first = lane % 4 * 2; first < tile.count; first += 8 * AT_ONCE) {
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) {
            const int32_t row = first + i / 2 * 8 + i % 2, at = i / 2 * 4 + i % 2;
            if (row < tile.count) {
                skinny_store_two(args, target, args.list ? args.list[tile.first + row] : row, sums[at],
                                 sums[at + 2]);
            }
        }
#pragma unroll
        for (int i = 0; i + 4 * AT_ONCE < ROWS / 2; i++) { /* the next rows' */
            sums[i] = sums[i + 4 * AT_ONCE];
        }
    }
}

/* The same, found before the inputs are there, for the block's first tile; else the operands that it reads
 * would come one after the other, from memory, when products are done. first: of row 0, or NULL: as above. */
typedef struct skinny_exit {
    unsigned char *first;
    uint32_t row_bytes;
    int32_t function; /* of gates, or -1 */
} skinny_exit;

static __device__ __forceinline__ skinny_exit skinny_exit_of(const skinny_work &work, const skinny_lane &me,
                                                             const skinny_tile &tile) {
    const skinny_args &args = work.args;
    skinny_exit out = {NULL, 0, -1};
    const skinny_part part = skinny_part_of(args, tile.part + me.part);
    const bool gated = args.gated.data != NULL;
    const int32_t output = part.output + (gated ? 8 : 16) * me.warp + me.lane / 4;
    if (!part.weight || args.residual.data || part.weight->bias || (gated && args.weights[1].bias) ||
        output + (gated ? 0 : 8) >= part.weight->rows) {
        return out;
    }
    const int32_t column = part.weight->column + output, range = work.range * args.subs + me.sub;
    const sl_cuda_operand &to = gated ? args.gated : args.y;
    out.row_bytes = (uint32_t)to.row_bytes;
    out.function = gated ? args.function : -1;
    out.first = gated ? to.data + 2 * (int64_t)(to.column + output)
                      : (unsigned char *)(sl_f32(to, 0) + column) + (uint32_t)range * args.range_bytes;
    out.first += (uint64_t)(uint32_t)(me.lane % 4 * 2) * out.row_bytes;
    return out;
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_leave(const skinny_exit &out, int32_t lane, int32_t count,
                                                    float (&sums)[ROWS / 2]) {
    const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
    unsigned char *to = out.first;
    count -= lane % 4 * 2;
    if (out.function < 0) {
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) { /* row i / 2 * 8 + i % 2 */
            if (i / 2 * 8 + i % 2 < count) {
                float *y = (float *)(to + (uint32_t)(i % 2) * out.row_bytes);
                y[0] = sums[i / 2 * 4 + i % 2] * scale;
                y[8] = sums[i / 2 * 4 + i % 2 + 2] * scale;
            }
            to += i % 2 ? (uint64_t)8 * out.row_bytes : 0;
        }
        return;
    }
#pragma unroll 1
    for (int32_t row = 0; row < count; row += 8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (row + i < count) {
                *(uint16_t *)(to + (uint32_t)i * out.row_bytes) =
                    sl_f32_to_bf16(sl_activate(out.function, sums[i] * scale) * (sums[i + 2] * scale));
            }
        }
        to += (uint64_t)8 * out.row_bytes;
#pragma unroll
        for (int i = 0; i + 4 < ROWS / 2; i++) { /* the next rows' */
            sums[i] = sums[i + 4];
        }
    }
}

/* What is to be stored of one row of y: the place of its sums, with those of the cluster's other blocks. */
typedef struct skinny_result {
    const skinny_work &work;
    const skinny_tile &tile;
    const skinny_part &part;
    int32_t row, y_row; /* of the tile, of y */
    float scale;
    float *sums;
} skinny_result;

/* WIDTH neighbouring outputs of the tile, the ranges one after the other. */
template <int WIDTH>
static __device__ __forceinline__ void skinny_add(const skinny_result &result, int32_t output,
                                                  float (&out)[WIDTH]) {
    const skinny_args &args = result.work.args;
    const float *from = result.sums + skinny_place_of(args, result.row, output);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        out[i] = 0.0f;
    }
    const int32_t count = args.splits * args.subs;
    uint32_t rank = 0, sub = 0;
#pragma unroll 1
    for (int32_t first = 0; first < count; first += SKINNY_AT_ONCE) {
        float parts[SKINNY_AT_ONCE][WIDTH];
#pragma unroll
        for (int s = 0; s < SKINNY_AT_ONCE; s++) {
            if (first + s < count) {
                const float *own = from + sub * (uint32_t)(args.parts * SKINNY_PART);
                const float *other = args.splits > 1 ? sl_of_block(own, rank) : own;
#pragma unroll
                for (int i = 0; i < WIDTH; i += 2) { /* two of them make one load */
                    const float2 two = ((const float2 *)other)[i / 2];
                    parts[s][i] = two.x;
                    parts[s][i + 1] = two.y;
                }
                sub++;
                if (sub == (uint32_t)args.subs) {
                    sub = 0;
                    rank++;
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SKINNY_AT_ONCE; s++) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                out[i] = first + s >= count ? out[i] : first + s == 0 ? parts[s][i] : out[i] + parts[s][i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        out[i] *= result.scale;
    }
}

/* Outputs 4 quad .. 4 quad + 3 of the part. */
static __device__ __forceinline__ void skinny_write(const skinny_result &result, int32_t first,
                                                    int32_t quad) {
    const skinny_args &args = result.work.args;
    const sl_cuda_weight &weight = *result.part.weight;
    const int32_t output = result.part.output + 4 * quad, left = weight.rows - output;
    float sums[4];
    skinny_add<4>(result, first + 4 * quad, sums);
    if (left <= 0) {
        return;
    }
    float *y = sl_f32(args.y, result.y_row) + weight.column + output;
    const float *residual =
        args.residual.data ? sl_f32(args.residual, result.y_row) + weight.column + output : NULL;
    const float *bias = weight.bias ? weight.bias + (int64_t)result.tile.expert * weight.rows + output : NULL;
    if (left >= 4 && !bias && ((uint64_t)y | (uint64_t)residual) % 16 == 0) {
        if (residual) {
            const float4 more = *(const float4 *)residual;
            sums[0] += more.x;
            sums[1] += more.y;
            sums[2] += more.z;
            sums[3] += more.w;
        }
        *(float4 *)y = make_float4(sums[0], sums[1], sums[2], sums[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < left) {
            sums[i] = bias ? sums[i] + bias[i] : sums[i];
            y[i] = residual ? sums[i] + residual[i] : sums[i];
        }
    }
}

/* f(gate) * value, outputs 2 pair and the next of the part's 32. */
static __device__ __forceinline__ void skinny_write_gated(const skinny_result &result, int32_t first,
                                                          int32_t pair) {
    const skinny_args &args = result.work.args;
    const int32_t output = result.part.output + 2 * pair, left = result.part.weight->rows - output;
    const int32_t gate = first + pair / 4 * 16 + pair % 4 * 2;
    float gates[2], values[2];
    skinny_add<2>(result, gate, gates);
    skinny_add<2>(result, gate + 8, values);
    if (left <= 0) {
        return;
    }
    const int64_t bias = (int64_t)result.tile.expert * result.part.weight->rows + output;
    uint16_t *to = (uint16_t *)(args.gated.data + (uint64_t)(uint32_t)result.y_row * args.gated.row_bytes) +
                   args.gated.column + output;
    uint32_t bits[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (args.weights[0].bias && i < left) {
            gates[i] += args.weights[0].bias[bias + i];
            values[i] += args.weights[1].bias[bias + i];
        }
        bits[i] = sl_f32_to_bf16(sl_activate(args.function, gates[i]) * values[i]);
    }
    if (left >= 2 && (uint64_t)to % 4 == 0) {
        *(uint32_t *)to = bits[0] | bits[1] << 16;
    } else {
        to[0] = (uint16_t)bits[0];
        if (left >= 2) {
            to[1] = (uint16_t)bits[1];
        }
    }
}

/* By the consumers: the block's rows of the tile, sixteen lanes to a row of a part. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_store(const skinny_work &work, const skinny_tile &tile) {
    const skinny_args &args = work.args;
    const int32_t rank = work.range;
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread)); /* nothing of this is kept while products run: registers are short */
    const int32_t sixteen = thread / 16, mine = thread % 16;
    const int32_t which = sixteen % args.parts, first_row = sixteen / args.parts;
    const skinny_part part = skinny_part_of(args, tile.part + which);
    const int32_t each = (ROWS + args.splits - 1) / args.splits, end = min((rank + 1) * each, tile.count);
    const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
    if (!part.weight) {
        return;
    }
#pragma unroll 1
    for (int32_t row = rank * each + first_row; row < end; row += 8 * args.subs) {
        const int32_t y_row = args.list ? args.list[tile.first + row] : row;
        const skinny_result result = {
            work, tile, part, row, y_row, scale, (float *)(work.memory + skinny_memory<TYPE, ROWS>::x)};
        if (args.gated.data) {
            skinny_write_gated(result, which * SKINNY_PART, mine);
        } else {
            skinny_write(result, which * SKINNY_PART, mine);
        }
    }
}

/* ---- the kernel ---- */

template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_copy_weights(const skinny_work &work, skinny_copies copies) {
    for (;;) {
        if (copies.issued >= (uint32_t)work.args.chunks) {
            sl_barrier_wait(skinny_barriers<TYPE, ROWS>::empty(work.base, copies.place.at),
                            copies.place.parity ^ 1);
            sl_fence_reads(); /* those of the warps that arrived */
        }
        if (!skinny_bring_chunk<TYPE, ROWS>(work, &copies)) {
            return;
        }
    }
}

/* Until inputs are there: which tiles and rows there are. By every thread. The step block is there before. */
template <int ROWS> static __device__ __forceinline__ void skinny_begin(skinny_work *work) {
    if (!work->args.list) {
        work->rows = skinny_count(work->context, work->args.y.rows);
    }
    sl_wait_for_inputs();
    if (work->args.list) {
        work->tiles = skinny_plan<ROWS>(work->args, work->plan) * work->blocks;
    }
}

template <int TYPE, int ROWS> static __device__ __forceinline__ void skinny_consume_all(skinny_work &work) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)skinny_shape<ROWS>::consumer_registers));
    const skinny_lane me = skinny_lane_of<TYPE, ROWS>(work);
    enum { STAGES = skinny_layout<TYPE>::columns / (2 * SKINNY_STEP) }; /* of a chunk */
    skinny_places places = {{(uint32_t)me.sub, 0}, {(uint32_t)(me.sub * STAGES), 0}, -1};
    bool taken = !work.args.list && work.first_chunk + me.sub < work.end_chunk;
    skinny_exit out = {NULL, 0, -1};
    if (taken) { /* weights do not wait for the inputs */
        skinny_take<TYPE, ROWS>(work, me, skinny_first<TYPE>(work, me, places));
        if (skinny_shape<ROWS>::finds && !skinny_meets(work.args) &&
            work.first_tile + work.tile_step >= work.tiles) {
            out = skinny_exit_of(work, me, skinny_find<ROWS>(work, work.first_tile));
        }
    }
    skinny_begin<ROWS>(&work);
#pragma unroll 1
    for (int32_t index = work.first_tile; index < work.tiles; index += work.tile_step) {
        const skinny_tile tile = skinny_find<ROWS>(work, index);
        float sums[ROWS / 2] = {};
        skinny_consume<TYPE, ROWS>(work, me, places, taken, sums);
        taken = false;
        if (out.first) {
            skinny_leave<TYPE, ROWS>(out, me.lane, tile.count, sums);
            continue;
        }
        if (!skinny_meets(work.args)) {
            skinny_store_sums<TYPE, ROWS>(work, me, tile, sums);
            __syncwarp();
            continue;
        }
        skinny_meet(work); /* all have read x, where the sums go */
        skinny_put_sums<TYPE, ROWS>(work, me, tile.count, sums);
        sl_cluster_sync();
        skinny_store<TYPE, ROWS>(work, tile);
    }
}

/* `copies`: of the thread that copies weights. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_copy_all(skinny_work &work, skinny_copies copies) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)skinny_shape<ROWS>::copier_registers));
    const skinny_args &args = work.args;
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP - 4 * args.parts * args.subs;
    const bool leads = threadIdx.x % SL_WARP == 0;
    if (warp == 0 && leads) { /* more would delay what this and the kernel before read */
#pragma unroll 1
        for (int32_t i = SKINNY_FIRST; i < args.early; i++) {
            skinny_bring_chunk<TYPE, ROWS>(work, &copies);
        }
    }
    int32_t ahead = 0;
    if (warp == 1 && leads && !args.list) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&args.x_map) : "memory");
        ahead = skinny_expect_x<TYPE, ROWS>(work);
    }
    __syncwarp();
    skinny_begin<ROWS>(&work);
    if (warp == 0) {
        if (leads) {
            skinny_copy_weights<TYPE, ROWS>(work, copies);
        }
    } else if (args.list) {
        skinny_gather_x<TYPE, ROWS>(work, warp - 1);
    } else if (warp == 1 && leads) {
        skinny_bring_x<TYPE, ROWS>(work, ahead);
    }
    __syncwarp();
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (skinny_meets(args)) {
        sl_cluster_sync();
    }
}
#endif

/* The first chunk of half `half` of the ranges, of which each has two. */
template <int TYPE>
static __device__ __forceinline__ int32_t skinny_cut_at(const skinny_args &args, int32_t half) {
    return sl_k16_range(args.weights[0].columns, 2 * args.splits, half) / skinny_layout<TYPE>::columns;
}

/* With ranges a cluster has one tile. */
template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(skinny_shape<ROWS>::threads, 1)
    skinny_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ skinny_args args) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char start[];
    const uint32_t window = sl_shared_address(start), base = (window + 1023) / 1024 * 1024;
    unsigned char *const memory = start + (base - window);
    skinny_schedule *schedule = (skinny_schedule *)(memory + skinny_memory<TYPE, ROWS>::schedule);
    const int32_t blocks = (args.first_part[SL_LINEAR_SEGMENTS] + args.parts - 1) / args.parts;
    const int32_t range = (int32_t)blockIdx.x % args.splits;
    skinny_work work = {
        context,
        args,
        *schedule,
        schedule,
        0,
        blocks,
        (int32_t)blockIdx.x / args.splits,
        blocks,
        (int32_t)gridDim.x / args.splits,
        skinny_cut_at<TYPE>(args, 2 * range),
        skinny_cut_at<TYPE>(args, 2 * range + 2),
        args.halves ? skinny_cut_at<TYPE>(args, 2 * range + 1) - skinny_cut_at<TYPE>(args, 2 * range) : 0,
        range,
        base,
        (uint32_t)(skinny_memory<TYPE, ROWS>::x + args.stages * skinny_shape<ROWS>::stage_bytes),
        memory};
    const int32_t consumers = args.parts * args.subs * SKINNY_GROUP;
    skinny_copies copies = {{0, 0}, work.first_tile, work.first_chunk, 0};
    if ((int32_t)threadIdx.x == consumers) { /* the first weights before anything else */
        skinny_barriers<TYPE, ROWS>::init_full(base, args.chunks);
#pragma unroll 1
        for (int32_t i = 0; i < SKINNY_FIRST && i < args.early; i++) {
            skinny_bring_chunk<TYPE, ROWS>(work, &copies);
        }
    }
    if (threadIdx.x < SL_WARP) {
        skinny_barriers<TYPE, ROWS>::init(base, args.parts, args.list != NULL);
    }
    __syncthreads();
    sl_let_next_begin();
    if ((int32_t)threadIdx.x < consumers) {
        skinny_consume_all<TYPE, ROWS>(work);
    } else {
        skinny_copy_all<TYPE, ROWS>(work, copies);
    }
    if (args.splits > 1 && skinny_meets(args)) { /* shared memory stays until the others have read it */
        sl_cluster_sync();
    }
#else
    (void)context;
    (void)args;
    sl_wait_for_inputs();
#endif
}

/* Of the weights that are there: boxes of `box_rows` rows and 2 * `halves` bytes of each, as they lie in
 * memory. */
static inline cudaError_t skinny_weight_maps(const sl_cuda_weight weights[SL_LINEAR_SEGMENTS],
                                             uint32_t halves, uint32_t box_rows,
                                             CUtensorMap maps[SL_LINEAR_SEGMENTS]) {
    cudaError_t code = cudaSuccess;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS && !code; s++) {
        const sl_cuda_weight &weight = weights[s];
        const uint64_t rows = (uint64_t)weight.rows;
        const sl_cuda_tensor map = {
            weight.data,
            2,
            {weight.row_bytes / 2, rows, (uint64_t)weight.experts},
            {weight.row_bytes, weight.experts > 1 ? weight.expert_bytes : weight.row_bytes * rows},
            {halves, box_rows},
            false};
        code = weight.data ? sl_cuda_tensor_map(&map, &maps[s]) : cudaSuccess;
    }
    return code;
}

#endif
