/* What bf16_rows128.cuh works with: its arguments, how a product is cut, and how weights and x come to shared
 * memory. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_COPIES_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_COPIES_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/linear/k16/k16.h"
#include "backend/cuda/common/expert_tiles.cuh"
#include "backend/cuda/common/linear_arguments.cuh"
#include "backend/cuda/linear/bf16/bf16_rows128_bits.cuh"
#include "backend/cuda/linear/bf16/bf16_rows128_codes.cuh"

enum {
    SKINNY_PART = 64,     /* outputs of a consumer warpgroup */
    SKINNY_STEP = 64,     /* columns that are decoded at once; a stage of x is two steps */
    SKINNY_RANGE = 256,   /* columns: ranges are multiples */
    SKINNY_GROUP = 128,   /* threads */
    SKINNY_ROWS = 128,    /* of x in a launch, at most */
    SKINNY_BOX = 32,      /* rows of weights that are copied at once */
    SKINNY_CODES = 128,   /* and columns, of codes apart from scales */
    SKINNY_X_COPIERS = 3, /* warps, for experts */
    SKINNY_CHUNKS = 12,   /* most in the ring of weights */
    SKINNY_EXPERTS = 512,
    SKINNY_EXPERT_ROWS = 5, /* of the step: for fewer, most types' experts are read row by row */
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
    sl_gating gating;
    /* 0, or: every block stores the sums of its range by itself, `y` is those of the first range, and those
     * of the next lie so many bytes on. */
    uint64_t range_bytes;
} skinny_args;

/* Whether blocks, or groups that take turns, add each other's sums in the end. */
static __host__ __device__ __forceinline__ bool skinny_meets(const skinny_args &args) {
    return args.splits * args.subs > 1 && !args.range_bytes;
}

typedef sl_expert_tiles<SKINNY_EXPERTS> skinny_schedule; /* row tiles */

/* Whether the next chunk is begun while products of one run. With more rows, and many bytes, there are few
 * chunks in the ring, and a chunk would wait for the next one. */
template <int TYPE, int ROWS> struct skinny_looks {
    enum { AHEAD = skinny_shape<ROWS>::ahead && !skinny_kind<TYPE>::IS_BYTES };
};

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int TYPE, int ROWS> struct skinny_memory {
    enum {
        table = 0, /* of types with a codebook: its points */
        scales = table + sl_codebook<TYPE>::BYTES,
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
        sl_fence_shared();
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

/* The boxes of a part's chunk, whose first byte is `column` in memory: rows of weights, or gates and values.
 */
template <int TYPE>
static __device__ __forceinline__ void skinny_bring_part(const skinny_args &args, const skinny_part &part,
                                                         int32_t column, int32_t expert, uint32_t to,
                                                         uint32_t full) {
    const CUtensorMap *map = &args.maps[part.segment];
    const bool gated = args.gated.data != NULL;
    const CUtensorMap *second = gated ? &args.maps[1] : map;
    const int32_t output = part.output + (gated ? 0 : SKINNY_BOX);
    if constexpr (skinny_kind<TYPE>::IS_APART) {
#pragma unroll
        for (int i = 0; i < (int)skinny_layout<TYPE>::columns / SKINNY_CODES; i++) {
            const uint32_t box = SKINNY_BOX * SKINNY_CODES, there = to + 2 * (uint32_t)i * box;
            sl_box_copy_once(there, map, column + i * SKINNY_CODES, part.output, expert, full);
            sl_box_copy_once(there + box, second, column + i * SKINNY_CODES, output, expert, full);
        }
    } else { /* boxes begin at multiples of 16 bytes, and are of halves */
        const uint32_t box = SKINNY_BOX * skinny_layout<TYPE>::stride;
        sl_box_copy_once(to, map, column / 16 * 8, part.output, expert, full);
        sl_box_copy_once(to + box, second, column / 16 * 8, output, expert, full);
    }
}

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
    const int32_t column = skinny_chunk_at(work, copies->chunk) * layout::bytes;
    uint32_t to = work.base + work.weights + copies->place.at * (uint32_t)args.parts * (2 * box);
    sl_barrier_expect(full, (uint32_t)parts * 2 * box);
#pragma unroll 1
    for (int32_t i = 0; i < parts; i++) {
        skinny_bring_part<TYPE>(args, skinny_part_of(args, tile.part + i), column, tile.expert, to, full);
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
                sl_copy_16(to + (uint32_t)(row * 128) + (piece ^ (uint32_t)row % 8) * 16,
                           from + (uint64_t)rows[row] * 16);
            }
            sl_barrier_arrive_copied(barriers::x_full(work.base, slot));
        }
    }
}

#endif
#endif
