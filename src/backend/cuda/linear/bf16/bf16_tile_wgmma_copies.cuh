/* What bf16_tile_wgmma.cuh works with: its arguments, its tiles, and how weights and x come to shared memory.
 */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_WGMMA_COPIES_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_WGMMA_COPIES_CUH

#include "backend/cuda/common/ring.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/linear/k16/k16.h"
#include "backend/cuda/linear/bf16/bf16_tile_mma.cuh"
#include "backend/cuda/linear/bf16/bf16_rows128_bits.cuh"
#include "backend/cuda/linear/bf16/bf16_rows128_codes.cuh"

enum {
    TILE_OUTPUTS = 256,
    TILE_ROWS = 160, /* most in a tile */
    TILE_CONSUMERS = 256,
    TILE_THREADS = 384,
    TILE_COPIERS = 64, /* threads that bring x, and as many that bring weights */
    TILE_X_BYTES = TILE_ROWS * STEP * 2,
    TILE_EXPERTS = 512,
    TILE_CLASSES = 9, /* of heights: 160, 144, .. 32 */
};

/* Of a weight type: columns in a chunk, its bytes in a row, the distance of rows in shared memory (such that
 * eight rows lie in different banks), and how many chunks and steps of x are on their way. `before`: bytes in
 * front of a chunk that copies of 16 bytes begin with, at most. */
template <int TYPE> struct bf16_tile_layout;
template <> struct bf16_tile_layout<SL_QTYPE_F16> {
    enum { columns = 128, bytes = 256, stride = 272, chunks = 2, steps = 3, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_BF16> {
    enum { columns = 128, bytes = 256, stride = 272, chunks = 2, steps = 3, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q8_0> {
    enum { columns = 256, bytes = 8 * SL_Q8_0_BYTES, stride = 272, chunks = 2, steps = 3, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q4_0> {
    enum { columns = 256, bytes = 8 * SL_Q4_0_BYTES, stride = 144, chunks = 3, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q4_K> {
    enum { columns = 256, bytes = SL_Q4_K_BYTES, stride = 144, chunks = 3, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q5_K> {
    enum { columns = 256, bytes = SL_Q5_K_BYTES, stride = 176, chunks = 2, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q6_K> {
    enum { columns = 256, bytes = SL_Q6_K_BYTES, stride = 240, chunks = 2, steps = 3, before = 14 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q4_1> {
    enum { columns = 256, bytes = 8 * SL_Q4_1_BYTES, stride = 176, chunks = 2, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q5_0> {
    enum { columns = 256, bytes = 8 * SL_Q5_0_BYTES, stride = 176, chunks = 2, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_Q5_1> {
    enum { columns = 256, bytes = 8 * SL_Q5_1_BYTES, stride = 208, chunks = 2, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_IQ4_NL> {
    enum { columns = 256, bytes = 8 * SL_IQ4_NL_BYTES, stride = 144, chunks = 3, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_IQ4_XS> {
    enum { columns = 256, bytes = SL_IQ4_XS_BYTES, stride = 144, chunks = 3, steps = 4, before = 8 };
};
template <> struct bf16_tile_layout<SL_QTYPE_MXFP4> {
    enum { columns = 256, bytes = 8 * SL_MXFP4_BYTES, stride = 144, chunks = 3, steps = 4, before = 8 };
};
template <> struct bf16_tile_layout<SL_QTYPE_NVFP4> {
    enum { columns = 256, bytes = 4 * SL_NVFP4_BYTES, stride = 144, chunks = 3, steps = 4, before = 0 };
};
template <> struct bf16_tile_layout<SL_QTYPE_NVFP4_128> {
    enum { columns = 256, bytes = 2 * SL_NVFP4_128_BYTES, stride = 176, chunks = 2, steps = 4, before = 8 };
};
template <> struct bf16_tile_layout<SL_QTYPE_FP8_128> { /* and 16 bytes behind that have the two scales */
    enum { columns = 256, bytes = 256, stride = 272, chunks = 2, steps = 3, before = 0 };
};

/* FP8_128: where chunk `chunk`'s two scales lie in the 16 bytes that are copied. */
static __device__ __forceinline__ uint32_t bf16_tile_scales_at(int32_t chunk) {
    return (uint32_t)chunk * 8 % 16;
}

/* Types that are decoded as `bf16-rows128` does it, whatever the class, and lie as they do there. */
template <int TYPE> struct bf16_tile_layout {
    enum { columns = 256, bytes = skinny_layout<TYPE>::bytes, stride = skinny_layout<TYPE>::stride };
    enum {
        chunks = 3,
        steps = 4,
        before = bytes % 16 == 0  ? 0
                 : bytes % 4 != 0 ? 14
                 : bytes % 8 != 0 ? 12
                                  : 8
    };
};
template <int TYPE> static constexpr bool bf16_tile_takes_pairs() {
    return TYPE == SL_QTYPE_MXFP4 || TYPE == SL_QTYPE_NVFP4 || TYPE == SL_QTYPE_NVFP4_128 ||
           TYPE == SL_QTYPE_FP8_128 || TYPE == SL_QTYPE_Q2_K || TYPE == SL_QTYPE_Q3_K ||
           TYPE == SL_QTYPE_TQ1_0 || TYPE == SL_QTYPE_TQ2_0 || sl_codebook<TYPE>::POINTS > 0;
}

/* The tiles of an op: the highest first, so that a block needs one loop per height and the last ones to end
 * are short. An expert's rows are dealt to as few tiles as they need, about as many to each. */
typedef struct bf16_tile_schedule {
    int32_t offsets[TILE_EXPERTS + 1]; /* of an expert's rows */
    int32_t starts[TILE_EXPERTS + 1];  /* row tiles before the expert at that place */
    int16_t experts[TILE_EXPERTS];     /* at each place */
    int32_t places, rows, height;      /* height: without experts */
    /* In that class alone. The spare one: compiled code reads two at a time, and behind these lies what
     * others write then. */
    int32_t class_places[TILE_CLASSES], class_tiles[TILE_CLASSES + 1];
    int32_t class_end[TILE_CLASSES]; /* tiles of it and those before it */
} bf16_tile_schedule;

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int TYPE> struct bf16_tile_memory {
    typedef bf16_tile_layout<TYPE> layout;
    enum {
        x = 0,
        weights = x + layout::steps * TILE_X_BYTES,
        table = weights + layout::chunks * TILE_OUTPUTS * layout::stride, /* of types with a codebook */
        scales = table + sl_codebook<TYPE>::BYTES,                        /* [output][64] */
        rows = scales + TILE_OUTPUTS * 64, /* [consumer warp][TILE_ROWS]: y's rows */
        schedule = rows + TILE_CONSUMERS / SL_WARP * TILE_ROWS * 4,
        barriers = schedule + ((int)sizeof(bf16_tile_schedule) + 7) / 8 * 8,
        bytes = barriers + 16 * (layout::steps + layout::chunks) + 1024
    };
    static_assert(bytes <= 227 * 1024, "a block's shared memory");
};

/* A product, or with `gated` the activation of one: segment 0 are gates, segment 1 as many values, and what
 * is stored is f(gate) * value in BF16. */
typedef struct bf16_tile_args {
    matmul_args product;
    sl_cuda_operand gated; /* BF16, or absent */
    sl_gating gating;
} bf16_tile_args;

typedef struct bf16_tile_tile {
    const sl_cuda_weight *weight;
    int32_t expert, first, count; /* rows of the schedule or of y */
    int32_t first_output;
} bf16_tile_tile;

/* What a block works with. */
typedef struct bf16_tile_work {
    const bf16_tile_args &all;
    const matmul_args &args; /* all.product */
    const bf16_tile_schedule &schedule;
    int32_t blocks; /* of outputs */
    uint32_t base;  /* of shared memory */
    unsigned char *memory;
} bf16_tile_work;

static __device__ __forceinline__ int32_t bf16_tile_class(int32_t height) {
    return (TILE_ROWS + 15) / 16 - (height <= 32 ? 2 : (height + 15) / 16);
}

/* Without experts: the height that ends soonest, as waves of blocks times the time of a tile (of which the
 * least is that of decoding). */
static __device__ void bf16_tile_plan_rows(int32_t rows, int32_t blocks, bf16_tile_schedule *schedule) {
    if (threadIdx.x < SL_WARP) {
        const int32_t height = 32 + 16 * (int32_t)threadIdx.x, high = (rows + height - 1) / height;
        const int32_t waves = (high * blocks + (int32_t)gridDim.x - 1) / (int32_t)gridDim.x;
        const uint32_t time = (uint32_t)(waves * ((height < 64 ? 64 : height) + 24));
        const uint32_t best = __reduce_min_sync(
            SL_FULL_WARP, height > TILE_ROWS ? 0xffffffffu : time << 8 | (uint32_t)(255 - height));
        if (threadIdx.x == 0) {
            schedule->rows = rows;
            schedule->height = 255 - (int32_t)(best & 255u);
            const int32_t tiles = (rows + schedule->height - 1) / schedule->height * blocks;
            for (int32_t i = 0; i < TILE_CLASSES; i++) {
                schedule->class_end[i] = i < bf16_tile_class(schedule->height) ? 0 : tiles;
            }
        }
    }
    __syncthreads();
}

/* Experts in order of class. A warp per class: first how many, then their places. */
static __device__ void bf16_tile_plan_experts(const int32_t *offsets, int32_t experts, int32_t blocks,
                                              bf16_tile_schedule *schedule) {
    for (int32_t i = (int32_t)threadIdx.x; i <= experts; i += TILE_THREADS) {
        schedule->offsets[i] = offsets[i];
    }
    __syncthreads();
    const int32_t mine = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    for (int pass = 0; pass < 2; pass++) {
        int32_t place = 0, tiles = 0;
        for (int32_t i = 0; pass == 1 && i < mine && i < TILE_CLASSES; i++) {
            place += schedule->class_places[i];
            tiles += schedule->class_tiles[i];
        }
        for (int32_t first = 0; mine < TILE_CLASSES && first < experts; first += SL_WARP) {
            const int32_t expert = first + lane;
            const int32_t count =
                expert < experts ? schedule->offsets[expert + 1] - schedule->offsets[expert] : 0;
            const int32_t parts = (count + TILE_ROWS - 1) / TILE_ROWS;
            const bool in = parts > 0 && bf16_tile_class((count + parts - 1) / parts) == mine;
            const uint32_t votes = __ballot_sync(SL_FULL_WARP, in);
            const int32_t before = __popc(votes & ((1u << lane) - 1u));
            int32_t end = in ? parts : 0;
            for (int distance = 1; distance < SL_WARP; distance *= 2) {
                const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
                end += lane >= distance ? other : 0;
            }
            if (pass == 1 && in) {
                schedule->experts[place + before] = (int16_t)expert;
                schedule->starts[place + before] = tiles + end - parts;
            }
            place += __popc(votes);
            tiles += __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
        }
        if (mine < TILE_CLASSES && lane == 0) {
            if (pass == 0) {
                schedule->class_places[mine] = place;
                schedule->class_tiles[mine] = tiles;
            } else {
                schedule->class_end[mine] = tiles * blocks;
            }
            if (pass == 1 && mine == TILE_CLASSES - 1) {
                schedule->places = place;
                schedule->starts[place] = tiles;
            }
        }
        __syncthreads();
    }
}

/* Outputs of a segment in a tile: with gates, its rows 0..63 are gates, 64..127 their values, and so on. */
static __device__ __forceinline__ int32_t bf16_tile_outputs(const bf16_tile_work &work) {
    return work.all.gated.data ? TILE_OUTPUTS / 2 : TILE_OUTPUTS;
}

/* Of a tile's 256 rows of weights the first of those 64 that begin at 64 * part. */
typedef struct bf16_tile_part {
    const sl_cuda_weight &weight;
    int32_t output;
} bf16_tile_part;

static __device__ __forceinline__ bf16_tile_part bf16_tile_part_of(const bf16_tile_work &work,
                                                                   const bf16_tile_tile &tile, int32_t part) {
    const bool gated = work.all.gated.data != NULL;
    const bf16_tile_part result = {gated && part % 2 ? work.args.weights[1] : *tile.weight,
                                   tile.first_output + 64 * (gated ? part / 2 : part)};
    return result;
}

static __device__ __forceinline__ bf16_tile_tile bf16_tile_find(const bf16_tile_work &work, int32_t index) {
    const matmul_args &args = work.args;
    const bf16_tile_schedule &schedule = work.schedule;
    bf16_tile_tile tile;
    const int32_t high = index / work.blocks, block = index % work.blocks;
    int32_t segment = 0;
    while (segment + 1 < args.segments && block >= args.first_block[segment + 1]) {
        segment++;
    }
    tile.weight = &args.weights[segment];
    tile.first_output = (block - args.first_block[segment]) * bf16_tile_outputs(work);
    if (args.list == NULL) {
        tile.expert = 0;
        tile.first = high * schedule.height;
        tile.count = min(schedule.rows - tile.first, schedule.height);
        return tile;
    }
    int32_t low = 0, end = schedule.places; /* starts[low] <= high < starts[end] */
    while (end - low > 1) {
        const int32_t middle = (low + end) / 2;
        if (schedule.starts[middle] <= high) {
            low = middle;
        } else {
            end = middle;
        }
    }
    tile.expert = schedule.experts[low];
    const int32_t first = schedule.offsets[tile.expert], count = schedule.offsets[tile.expert + 1] - first;
    const int32_t parts = schedule.starts[low + 1] - schedule.starts[low];
    const int32_t height = (count + parts - 1) / parts, done = (high - schedule.starts[low]) * height;
    tile.first = first + done;
    tile.count = min(count - done, height);
    return tile;
}

#if SL_HAS_WGMMA

template <int TYPE> static __device__ __forceinline__ uint32_t bf16_tile_x_full(uint32_t base, uint32_t at) {
    return base + bf16_tile_memory<TYPE>::barriers + 8 * at;
}
template <int TYPE> static __device__ __forceinline__ uint32_t bf16_tile_x_empty(uint32_t base, uint32_t at) {
    return bf16_tile_x_full<TYPE>(base, bf16_tile_layout<TYPE>::steps + at);
}
template <int TYPE> static __device__ __forceinline__ uint32_t bf16_tile_full(uint32_t base, uint32_t at) {
    return bf16_tile_x_full<TYPE>(base, 2 * bf16_tile_layout<TYPE>::steps + at);
}
template <int TYPE> static __device__ __forceinline__ uint32_t bf16_tile_empty(uint32_t base, uint32_t at) {
    return bf16_tile_x_full<TYPE>(base,
                                  2 * bf16_tile_layout<TYPE>::steps + bf16_tile_layout<TYPE>::chunks + at);
}

/* ---- the producers ---- */

/* Whether piece `piece` of a row has bytes of the chunk at `from`. Of some types not all rows have the last:
 * behind the weight's end that would be of nothing. */
template <int TYPE>
static __device__ __forceinline__ bool bf16_tile_has_piece(const unsigned char *from, int32_t piece) {
    typedef bf16_tile_layout<TYPE> layout;
    return (layout::bytes + layout::before) % 16 == 0 ||
           16 * piece < (int32_t)((uint64_t)from % 16) + (int32_t)layout::bytes;
}

/* 64 rows of weights of one chunk, in pieces of 16 bytes: eight neighbouring threads bring 128 bytes of a
 * row, and what is left of its PIECES after that is dealt out alike. */
template <int TYPE>
static __device__ __forceinline__ void bf16_tile_bring_part(const unsigned char *start, uint32_t row_bytes,
                                                            int32_t rows, uint32_t to) {
    typedef bf16_tile_layout<TYPE> layout;
    enum { PIECES = (layout::bytes + layout::before + 15) / 16, REST = PIECES % 8 };
    enum { TOGETHER = REST > 4 ? 8 : REST > 2 ? 4 : REST > 1 ? 2 : 1 };
    const int32_t thread = (int32_t)threadIdx.x - TILE_CONSUMERS;
    {
        const int32_t mine = thread / 8, piece = thread % 8;
        const unsigned char *from = start + (uint64_t)((uint32_t)mine * row_bytes);
        const uint32_t at = to + (uint32_t)(mine * layout::stride + 16 * piece);
#pragma unroll
        for (int pass = 0; pass < 8; pass++) {
            const unsigned char *row =
                (const unsigned char *)((uint64_t)from & (layout::before > 0 ? ~(uint64_t)15 : ~(uint64_t)0));
#pragma unroll
            for (int group = 0; group < PIECES / 8; group++) {
                if (mine + 8 * pass < rows && bf16_tile_has_piece<TYPE>(from, piece + 8 * group)) {
                    sl_copy_16_of(at + (uint32_t)(8 * pass * layout::stride + 128 * group),
                                  row + 16 * piece + 128 * group, 16);
                }
            }
            from += 8 * row_bytes;
        }
    }
    if constexpr (REST > 0) {
        const int32_t mine = thread / TOGETHER, piece = thread % TOGETHER;
        const unsigned char *from = start + (uint64_t)((uint32_t)mine * row_bytes);
        const uint32_t at = to + (uint32_t)(mine * layout::stride + PIECES / 8 * 128 + 16 * piece);
#pragma unroll
        for (int pass = 0; pass < TOGETHER; pass++) {
            const unsigned char *row =
                (const unsigned char *)((uint64_t)from & (layout::before > 0 ? ~(uint64_t)15 : ~(uint64_t)0));
            if (mine + 64 / TOGETHER * pass < rows && piece < REST &&
                bf16_tile_has_piece<TYPE>(from, piece + PIECES / 8 * 8)) {
                sl_copy_16_of(at + (uint32_t)(64 / TOGETHER * pass * layout::stride),
                              row + PIECES / 8 * 128 + 16 * piece, 16);
            }
            from += 64 / TOGETHER * row_bytes;
        }
    }
}

/* The scales of FP8_128, likewise: a thread for each row. `start` is that of the first row. */
static __device__ __forceinline__ void bf16_tile_bring_scales(const unsigned char *start, uint64_t row_bytes,
                                                              int32_t rows, int32_t chunk, uint32_t to) {
    typedef bf16_tile_layout<SL_QTYPE_FP8_128> layout;
    static_assert(TILE_COPIERS == 64, "a thread for each row");
    const int32_t row = (int32_t)threadIdx.x - TILE_CONSUMERS;
    if (row < rows) {
        sl_copy_16_of(
            to + (uint32_t)(row * layout::stride + layout::bytes),
            start + (uint64_t)(uint32_t)row * row_bytes + sl_fp8_scales_at(row_bytes) + chunk / 2 * 16, 16);
    }
}

/* Two warps: all weights of all tiles of the block. */
template <int TYPE>
static __device__ __forceinline__ void bf16_tile_bring_weights(const bf16_tile_work &work) {
    typedef bf16_tile_layout<TYPE> layout;
    sl_ring_place<layout::chunks> place;
    for (int32_t index = (int32_t)blockIdx.x; index < work.schedule.class_end[TILE_CLASSES - 1];
         index += (int32_t)gridDim.x) {
        const bf16_tile_tile tile = bf16_tile_find(work, index);
        for (int32_t chunk = 0; chunk < tile.weight->columns / layout::columns; chunk++) {
            sl_barrier_wait(bf16_tile_empty<TYPE>(work.base, place.at), place.parity ^ 1);
#pragma unroll 1
            for (int i = 0; i < TILE_OUTPUTS / 64; i++) {
                const bf16_tile_part part = bf16_tile_part_of(work, tile, i);
                const unsigned char *start = part.weight.data +
                                             (uint64_t)tile.expert * part.weight.expert_bytes +
                                             (uint64_t)part.output * part.weight.row_bytes;
                const uint32_t to = work.base + bf16_tile_memory<TYPE>::weights +
                                    (place.at * TILE_OUTPUTS + 64 * i) * layout::stride;
                const int32_t rows = part.weight.rows - part.output;
                bf16_tile_bring_part<TYPE>(start + chunk * layout::bytes, (uint32_t)part.weight.row_bytes,
                                           rows, to);
                if constexpr (TYPE == SL_QTYPE_FP8_128) {
                    bf16_tile_bring_scales(start, part.weight.row_bytes, rows, chunk, to);
                }
            }
            sl_barrier_arrive_copied(bf16_tile_full<TYPE>(work.base, place.at));
            place.next();
        }
    }
}

/* The other two: x. */
template <int TYPE> static __device__ __forceinline__ void bf16_tile_bring_x(const bf16_tile_work &work) {
    typedef bf16_tile_layout<TYPE> layout;
    enum { AT_ONCE = TILE_COPIERS / 4, PASSES = (TILE_ROWS + AT_ONCE - 1) / AT_ONCE };
    sl_ring_place<layout::steps> place;
    const matmul_args &args = work.args;
    const int32_t thread = (int32_t)threadIdx.x - TILE_CONSUMERS - TILE_COPIERS;
    const int32_t piece = thread % 4, mine = thread / 4; /* and piece + 4 */
    const uint32_t place_of_first = (uint32_t)(mine * 128 + (piece ^ mine % 8) * 16);
    for (int32_t index = (int32_t)blockIdx.x; index < work.schedule.class_end[TILE_CLASSES - 1];
         index += (int32_t)gridDim.x) {
        const bf16_tile_tile tile = bf16_tile_find(work, index);
        uint32_t offsets[PASSES]; /* of the rows, in units of 16 bytes */
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int32_t at = mine + i * AT_ONCE;
            int32_t row = at < tile.count ? tile.first + at : tile.first;
            row = args.list ? args.list[row] : row;
            offsets[i] =
                (uint32_t)(((uint64_t)(uint32_t)row / (uint32_t)args.x_share * args.x.row_bytes) >> 4);
        }
        const unsigned char *x = args.x.data + 2 * (int64_t)args.x.column + 16 * piece;
        for (int32_t step = 0; step < tile.weight->columns / STEP; step++) {
            sl_barrier_wait(bf16_tile_x_empty<TYPE>(work.base, place.at), place.parity ^ 1);
            const uint32_t to =
                work.base + bf16_tile_memory<TYPE>::x + place.at * TILE_X_BYTES + place_of_first;
#pragma unroll
            for (int i = 0; i < PASSES; i++) {
                if (mine + i * AT_ONCE < tile.count) {
                    const unsigned char *from = x + (uint64_t)offsets[i] * 16;
                    sl_copy_16_of(to + i * AT_ONCE * 128, from, 16);
                    sl_copy_16_of((to ^ 64) + i * AT_ONCE * 128, from + 64, 16);
                }
            }
            sl_barrier_arrive_copied(bf16_tile_x_full<TYPE>(work.base, place.at));
            x += 2 * STEP;
            place.next();
        }
    }
}

#endif
#endif
