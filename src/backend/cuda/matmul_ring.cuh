/* Matrix products for many rows with Hopper's warpgroup instructions: y = x W^T (+ bias) (+ residual), with
 * or without experts.
 *
 * Class "bf16/wgmma": like "bf16/mma" (matmul_mma.cuh), added by wgmma.m64nNk16 instead; the order of the
 * columns does not depend on N. With PAIRS class "bf16/k16" (k16.h), whose weights are decoded in another
 * way.
 *
 * A tile is 256 outputs by up to 160 rows. As many blocks as there are processors go through all tiles, each
 * with two consumer warpgroups of 128 outputs and a producer warpgroup. Two producer warps bring weights, as
 * the file has them, in chunks of ring_layout::columns columns; the other two bring 64 columns of x at a
 * time, row by row because an expert's rows are scattered. (Bulk copies of a row each lose: a warp issues one
 * in 60 cycles, as their operands are uniform registers.) Both rings go on into the next tile while consumers
 * still write this one's results. The weights are the products' first operand, from registers: a consumer
 * decodes 64 outputs while the products of its other 64 run. x is the second, read by the tensor cores from
 * shared memory in the layout "128-byte swizzle": row r's 16-byte piece c lies at 128 r + 16 (c ^ r % 8). The
 * registers that products read are written again only after those were waited for.
 *
 * Why 256 outputs: a tile of O outputs takes x from L2 at 4096 / O bytes per cycle of a processor's tensor
 * cores; L2 gives some 24. */
#ifndef SL_BACKEND_CUDA_MATMUL_RING_CUH
#define SL_BACKEND_CUDA_MATMUL_RING_CUH

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/k16.h"
#include "backend/cuda/matmul_mma.cuh"
#include "backend/cuda/matmul_skinny_types.cuh"

enum {
    RING_OUTPUTS = 256,
    RING_ROWS = 160, /* most in a tile */
    RING_CONSUMERS = 256,
    RING_THREADS = 384,
    RING_COPIERS = 64, /* threads that bring x, and as many that bring weights */
    RING_X_BYTES = RING_ROWS * STEP * 2,
    RING_EXPERTS = 512,
    RING_CLASSES = 9, /* of heights: 160, 144, .. 32 */
};

/* Of a weight type: columns in a chunk, its bytes in a row, the distance of rows in shared memory (such that
 * eight rows lie in different banks), and how many chunks and steps of x are on their way. */
template <int TYPE> struct ring_layout;
template <> struct ring_layout<SL_QTYPE_F16> {
    enum { columns = 128, bytes = 256, stride = 272, chunks = 2, steps = 3 };
};
template <> struct ring_layout<SL_QTYPE_BF16> {
    enum { columns = 128, bytes = 256, stride = 272, chunks = 2, steps = 3 };
};
template <> struct ring_layout<SL_QTYPE_Q8_0> {
    enum { columns = 256, bytes = 8 * SL_Q8_0_BYTES, stride = 272, chunks = 2, steps = 3 };
};
template <> struct ring_layout<SL_QTYPE_Q4_0> {
    enum { columns = 256, bytes = 8 * SL_Q4_0_BYTES, stride = 144, chunks = 3, steps = 4 };
};
template <> struct ring_layout<SL_QTYPE_Q4_K> {
    enum { columns = 256, bytes = SL_Q4_K_BYTES, stride = 144, chunks = 3, steps = 4 };
};
template <> struct ring_layout<SL_QTYPE_Q5_K> {
    enum { columns = 256, bytes = SL_Q5_K_BYTES, stride = 176, chunks = 2, steps = 4 };
};
template <> struct ring_layout<SL_QTYPE_Q6_K> { /* copies begin up to 14 bytes before the block */
    enum { columns = 256, bytes = SL_Q6_K_BYTES, stride = 240, chunks = 2, steps = 3 };
};

/* The tiles of an op: the highest first, so that a block needs one loop per height and the last ones to end
 * are short. An expert's rows are dealt to as few tiles as they need, about as many to each. */
typedef struct ring_schedule {
    int32_t offsets[RING_EXPERTS + 1]; /* of an expert's rows */
    int32_t starts[RING_EXPERTS + 1];  /* row tiles before the expert at that place */
    int16_t experts[RING_EXPERTS];     /* at each place */
    int32_t places, rows, height;      /* height: without experts */
    /* In that class alone. The spare one: compiled code reads two at a time, and behind these lies what
     * others write then. */
    int32_t class_places[RING_CLASSES], class_tiles[RING_CLASSES + 1];
    int32_t class_end[RING_CLASSES]; /* tiles of it and those before it */
} ring_schedule;

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int TYPE> struct ring_memory {
    typedef ring_layout<TYPE> layout;
    enum {
        x = 0,
        weights = x + layout::steps * RING_X_BYTES,
        scales = weights + layout::chunks * RING_OUTPUTS * layout::stride, /* [output][64] */
        rows = scales + RING_OUTPUTS * 64, /* [consumer warp][RING_ROWS]: y's rows */
        schedule = rows + RING_CONSUMERS / SL_WARP * RING_ROWS * 4,
        barriers = schedule + ((int)sizeof(ring_schedule) + 7) / 8 * 8,
        bytes = barriers + 16 * (layout::steps + layout::chunks) + 1024
    };
    static_assert(bytes <= 227 * 1024, "a block's shared memory");
};

/* A position in a ring, and the parity of the phase of its barriers. */
template <int LENGTH> struct ring_place {
    uint32_t at = 0, parity = 0;
    __device__ __forceinline__ void next() {
        at++;
        if (at == LENGTH) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* A product, or with `gated` the activation of one: segment 0 are gates, segment 1 as many values, and what
 * is stored is f(gate) * value in BF16. */
typedef struct ring_args {
    matmul_args product;
    sl_cuda_operand gated; /* BF16, or absent */
    int32_t function;      /* sl_activation */
} ring_args;

typedef struct ring_tile {
    const sl_cuda_weight *weight;
    int32_t expert, first, count; /* rows of the schedule or of y */
    int32_t first_output;
} ring_tile;

/* What a block works with. */
typedef struct ring_work {
    const ring_args &all;
    const matmul_args &args; /* all.product */
    const ring_schedule &schedule;
    int32_t blocks; /* of outputs */
    uint32_t base;  /* of shared memory */
    unsigned char *memory;
} ring_work;

static __device__ __forceinline__ int32_t ring_class(int32_t height) {
    return (RING_ROWS + 15) / 16 - (height <= 32 ? 2 : (height + 15) / 16);
}

/* Without experts: the height that ends soonest, as waves of blocks times the time of a tile (of which the
 * least is that of decoding). */
static __device__ void ring_plan_rows(int32_t rows, int32_t blocks, ring_schedule *schedule) {
    if (threadIdx.x < SL_WARP) {
        const int32_t height = 32 + 16 * (int32_t)threadIdx.x, high = (rows + height - 1) / height;
        const int32_t waves = (high * blocks + (int32_t)gridDim.x - 1) / (int32_t)gridDim.x;
        const uint32_t time = (uint32_t)(waves * ((height < 64 ? 64 : height) + 24));
        const uint32_t best = __reduce_min_sync(
            SL_FULL_WARP, height > RING_ROWS ? 0xffffffffu : time << 8 | (uint32_t)(255 - height));
        if (threadIdx.x == 0) {
            schedule->rows = rows;
            schedule->height = 255 - (int32_t)(best & 255u);
            const int32_t tiles = (rows + schedule->height - 1) / schedule->height * blocks;
            for (int32_t i = 0; i < RING_CLASSES; i++) {
                schedule->class_end[i] = i < ring_class(schedule->height) ? 0 : tiles;
            }
        }
    }
    __syncthreads();
}

/* Experts in order of class. A warp per class: first how many, then their places. */
static __device__ void ring_plan_experts(const int32_t *offsets, int32_t experts, int32_t blocks,
                                         ring_schedule *schedule) {
    for (int32_t i = (int32_t)threadIdx.x; i <= experts; i += RING_THREADS) {
        schedule->offsets[i] = offsets[i];
    }
    __syncthreads();
    const int32_t mine = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    for (int pass = 0; pass < 2; pass++) {
        int32_t place = 0, tiles = 0;
        for (int32_t i = 0; pass == 1 && i < mine && i < RING_CLASSES; i++) {
            place += schedule->class_places[i];
            tiles += schedule->class_tiles[i];
        }
        for (int32_t first = 0; mine < RING_CLASSES && first < experts; first += SL_WARP) {
            const int32_t expert = first + lane;
            const int32_t count =
                expert < experts ? schedule->offsets[expert + 1] - schedule->offsets[expert] : 0;
            const int32_t parts = (count + RING_ROWS - 1) / RING_ROWS;
            const bool in = parts > 0 && ring_class((count + parts - 1) / parts) == mine;
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
        if (mine < RING_CLASSES && lane == 0) {
            if (pass == 0) {
                schedule->class_places[mine] = place;
                schedule->class_tiles[mine] = tiles;
            } else {
                schedule->class_end[mine] = tiles * blocks;
            }
            if (pass == 1 && mine == RING_CLASSES - 1) {
                schedule->places = place;
                schedule->starts[place] = tiles;
            }
        }
        __syncthreads();
    }
}

/* Outputs of a segment in a tile: with gates, its rows 0..63 are gates, 64..127 their values, and so on. */
static __device__ __forceinline__ int32_t ring_outputs(const ring_work &work) {
    return work.all.gated.data ? RING_OUTPUTS / 2 : RING_OUTPUTS;
}

/* Of a tile's 256 rows of weights the first of those 64 that begin at 64 * part. */
typedef struct ring_part {
    const sl_cuda_weight &weight;
    int32_t output;
} ring_part;

static __device__ __forceinline__ ring_part ring_part_of(const ring_work &work, const ring_tile &tile,
                                                         int32_t part) {
    const bool gated = work.all.gated.data != NULL;
    const ring_part result = {gated && part % 2 ? work.args.weights[1] : *tile.weight,
                              tile.first_output + 64 * (gated ? part / 2 : part)};
    return result;
}

static __device__ __forceinline__ ring_tile ring_find(const ring_work &work, int32_t index) {
    const matmul_args &args = work.args;
    const ring_schedule &schedule = work.schedule;
    ring_tile tile;
    const int32_t high = index / work.blocks, block = index % work.blocks;
    int32_t segment = 0;
    while (segment + 1 < args.segments && block >= args.first_block[segment + 1]) {
        segment++;
    }
    tile.weight = &args.weights[segment];
    tile.first_output = (block - args.first_block[segment]) * ring_outputs(work);
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

template <int TYPE> static __device__ __forceinline__ uint32_t ring_x_full(uint32_t base, uint32_t at) {
    return base + ring_memory<TYPE>::barriers + 8 * at;
}
template <int TYPE> static __device__ __forceinline__ uint32_t ring_x_empty(uint32_t base, uint32_t at) {
    return ring_x_full<TYPE>(base, ring_layout<TYPE>::steps + at);
}
template <int TYPE> static __device__ __forceinline__ uint32_t ring_full(uint32_t base, uint32_t at) {
    return ring_x_full<TYPE>(base, 2 * ring_layout<TYPE>::steps + at);
}
template <int TYPE> static __device__ __forceinline__ uint32_t ring_empty(uint32_t base, uint32_t at) {
    return ring_x_full<TYPE>(base, 2 * ring_layout<TYPE>::steps + ring_layout<TYPE>::chunks + at);
}

/* ---- the producers ---- */

/* 64 rows of weights of one chunk, in pieces of 16 bytes: eight neighbouring threads bring 128 bytes of a
 * row, and what is left of its PIECES after that is dealt out alike. */
template <int TYPE>
static __device__ __forceinline__ void ring_bring_part(const unsigned char *start, uint32_t row_bytes,
                                                       int32_t rows, uint32_t to) {
    typedef ring_layout<TYPE> layout;
    enum { PIECES = (layout::bytes + (TYPE == SL_QTYPE_Q6_K ? 14 : 0)) / 16, REST = PIECES % 8 };
    enum { TOGETHER = REST > 4 ? 8 : REST > 2 ? 4 : REST > 1 ? 2 : 1 };
    const int32_t thread = (int32_t)threadIdx.x - RING_CONSUMERS;
    {
        const int32_t mine = thread / 8, piece = thread % 8;
        const unsigned char *from = start + (uint64_t)((uint32_t)mine * row_bytes);
        const uint32_t at = to + (uint32_t)(mine * layout::stride + 16 * piece);
#pragma unroll
        for (int pass = 0; pass < 8; pass++) {
            const unsigned char *row =
                (const unsigned char *)((uint64_t)from &
                                        (TYPE == SL_QTYPE_Q6_K ? ~(uint64_t)15 : ~(uint64_t)0));
#pragma unroll
            for (int group = 0; group < PIECES / 8; group++) {
                if (mine + 8 * pass < rows) {
                    copy_16(at + (uint32_t)(8 * pass * layout::stride + 128 * group),
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
                (const unsigned char *)((uint64_t)from &
                                        (TYPE == SL_QTYPE_Q6_K ? ~(uint64_t)15 : ~(uint64_t)0));
            if (mine + 64 / TOGETHER * pass < rows && piece < REST) {
                copy_16(at + (uint32_t)(64 / TOGETHER * pass * layout::stride),
                        row + PIECES / 8 * 128 + 16 * piece, 16);
            }
            from += 64 / TOGETHER * row_bytes;
        }
    }
}

/* Two warps: all weights of all tiles of the block. */
template <int TYPE> static __device__ __forceinline__ void ring_bring_weights(const ring_work &work) {
    typedef ring_layout<TYPE> layout;
    ring_place<layout::chunks> place;
    for (int32_t index = (int32_t)blockIdx.x; index < work.schedule.class_end[RING_CLASSES - 1];
         index += (int32_t)gridDim.x) {
        const ring_tile tile = ring_find(work, index);
        for (int32_t chunk = 0; chunk < tile.weight->columns / layout::columns; chunk++) {
            sl_barrier_wait(ring_empty<TYPE>(work.base, place.at), place.parity ^ 1);
#pragma unroll 1
            for (int i = 0; i < RING_OUTPUTS / 64; i++) {
                const ring_part part = ring_part_of(work, tile, i);
                const unsigned char *start = part.weight.data + chunk * layout::bytes +
                                             (uint64_t)tile.expert * part.weight.expert_bytes +
                                             (uint64_t)part.output * part.weight.row_bytes;
                ring_bring_part<TYPE>(start, (uint32_t)part.weight.row_bytes, part.weight.rows - part.output,
                                      work.base + ring_memory<TYPE>::weights +
                                          (place.at * RING_OUTPUTS + 64 * i) * layout::stride);
            }
            sl_barrier_arrive_copied(ring_full<TYPE>(work.base, place.at));
            place.next();
        }
    }
}

/* The other two: x. */
template <int TYPE> static __device__ __forceinline__ void ring_bring_x(const ring_work &work) {
    typedef ring_layout<TYPE> layout;
    enum { AT_ONCE = RING_COPIERS / 4, PASSES = (RING_ROWS + AT_ONCE - 1) / AT_ONCE };
    ring_place<layout::steps> place;
    const matmul_args &args = work.args;
    const int32_t thread = (int32_t)threadIdx.x - RING_CONSUMERS - RING_COPIERS;
    const int32_t piece = thread % 4, mine = thread / 4; /* and piece + 4 */
    const uint32_t place_of_first = (uint32_t)(mine * 128 + (piece ^ mine % 8) * 16);
    for (int32_t index = (int32_t)blockIdx.x; index < work.schedule.class_end[RING_CLASSES - 1];
         index += (int32_t)gridDim.x) {
        const ring_tile tile = ring_find(work, index);
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
            sl_barrier_wait(ring_x_empty<TYPE>(work.base, place.at), place.parity ^ 1);
            const uint32_t to = work.base + ring_memory<TYPE>::x + place.at * RING_X_BYTES + place_of_first;
#pragma unroll
            for (int i = 0; i < PASSES; i++) {
                if (mine + i * AT_ONCE < tile.count) {
                    const unsigned char *from = x + (uint64_t)offsets[i] * 16;
                    copy_16(to + i * AT_ONCE * 128, from, 16);
                    copy_16((to ^ 64) + i * AT_ONCE * 128, from + 64, 16);
                }
            }
            sl_barrier_arrive_copied(ring_x_full<TYPE>(work.base, place.at));
            x += 2 * STEP;
            place.next();
        }
    }
}

/* ---- the consumers ---- */

static __device__ __forceinline__ uint32_t two_halves(const unsigned char *first,
                                                      const unsigned char *second) {
    return (uint32_t) * (const uint16_t *)first | (uint32_t) * (const uint16_t *)second << 16;
}

/* A row's scales of a chunk, by one lane: pairs (scale, constant) as decode_bytes takes them of eight groups
 * of 32 columns, or 16 scales. The four 16-byte pieces, one per step, change places with the row, so that
 * eight rows' lie in different banks. */
template <int TYPE>
static __device__ __forceinline__ void ring_scales(const unsigned char *row, float4 *to, int32_t swap) {
    if constexpr (TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16) {
        return;
    } else if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const uint4 header = *(const uint4 *)row;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            float4 pair;
            q4_k_scales(header, step, 0, &pair.x, &pair.y);
            q4_k_scales(header, step, 1, &pair.z, &pair.w);
            if (TYPE == SL_QTYPE_Q4_K) { /* its quants are taken 16 times as large */
                pair.w = fmaf(30720.0f, pair.z, pair.w);
                pair.z *= 0.0625f;
            }
            to[step ^ swap] = pair;
        }
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        const float all = sl_half_of(*(const uint16_t *)(row + 208));
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const int8_t *factors = (const int8_t *)row + 192 + 4 * step;
            to[step ^ swap] = make_float4(all * (float)factors[0], all * (float)factors[1],
                                          all * (float)factors[2], all * (float)factors[3]);
        }
    } else {
        enum { BYTES = TYPE == SL_QTYPE_Q8_0 ? SL_Q8_0_BYTES : SL_Q4_0_BYTES };
        const float offset = TYPE == SL_QTYPE_Q8_0 ? -32896.0f : -32776.0f;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const float first = sl_half_of(*(const uint16_t *)(row + 2 * step * BYTES));
            const float second = sl_half_of(*(const uint16_t *)(row + (2 * step + 1) * BYTES));
            to[step ^ swap] = make_float4(first, offset * first, second, offset * second);
        }
    }
}

/* A lane's quants of 64 columns of one row, undecoded: columns 2 part, 2 part + 1, and these plus 8, 16,
 * .. 56. */
typedef struct ring_quants {
    uint32_t words[6];
    float4 scales;
} ring_quants;

template <int TYPE>
static __device__ __forceinline__ void ring_load(const unsigned char *row, int32_t step, int32_t part,
                                                 ring_quants *raw) {
    if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const unsigned char *quants = row + (TYPE == SL_QTYPE_Q4_K ? 16 : 48) + 32 * step + 2 * part;
        const unsigned char *fifth = row + 16 + 2 * part;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw->words[i] = two_halves(quants + 16 * i, quants + 16 * i + 8);
            raw->words[2 + i] =
                TYPE == SL_QTYPE_Q5_K ? two_halves(fifth + 16 * i, fifth + 16 * i + 8) >> 2 * step : 0;
        }
    } else if constexpr (TYPE == SL_QTYPE_Q4_0) {
#pragma unroll
        for (int group = 0; group < 2; group++) {
            const unsigned char *quants = row + (2 * step + group) * SL_Q4_0_BYTES + 2 + 2 * part;
            raw->words[group] = two_halves(quants, quants + 8);
        }
    } else if constexpr (TYPE == SL_QTYPE_Q8_0) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const unsigned char *quants =
                row + (2 * step + k / 2) * SL_Q8_0_BYTES + 2 + 2 * part + k % 2 * 16;
            raw->words[k] = two_halves(quants, quants + 8);
        }
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        /* Step 2 h + o has the columns 64 o .. of half h, in blocks.h r = 2 o and 2 o + 1. */
        const unsigned char *low = row + 64 * (step / 2) + 2 * part;
        const unsigned char *high = row + 128 + 32 * (step / 2) + 2 * part;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            raw->words[k] = two_halves(low + 16 * k, low + 16 * k + 8) >> 4 * (step % 2);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw->words[4 + i] = two_halves(high + 16 * i, high + 16 * i + 8) >> 4 * (step % 2);
        }
    }
}

/* Columns 16 k .. of them, as the instruction wants them: two pairs. */
template <int TYPE>
static __device__ __forceinline__ void ring_decode(const ring_quants &raw, int k, uint32_t out[2]) {
    const uint32_t *words = raw.words;
    const float scale = k / 2 ? raw.scales.z : raw.scales.x, constant = k / 2 ? raw.scales.w : raw.scales.y;
    if constexpr (TYPE == SL_QTYPE_Q4_K) {
        decode_bytes(words[k % 2] & (k / 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu), scale, constant, out);
    } else if constexpr (TYPE == SL_QTYPE_Q5_K) {
        const uint32_t low = (k / 2 ? words[k % 2] >> 4 : words[k % 2]) & 0x0f0f0f0fu;
        const uint32_t fifth =
            k / 2 ? (words[2 + k % 2] & 0x02020202u) << 3 : (words[2 + k % 2] & 0x01010101u) << 4;
        decode_bytes(low | fifth, scale, constant, out);
    } else if constexpr (TYPE == SL_QTYPE_Q4_0) {
        decode_bytes((k % 2 ? words[k / 2] >> 4 : words[k / 2]) & 0x0f0f0f0fu, scale, constant, out);
    } else if constexpr (TYPE == SL_QTYPE_Q8_0) {
        decode_bytes(words[k] ^ 0x80808080u, scale, constant, out);
    } else {
        const float each = k == 0   ? raw.scales.x
                           : k == 1 ? raw.scales.y
                           : k == 2 ? raw.scales.z
                                    : raw.scales.w;
        const uint32_t high = (words[4 + k % 2] >> 2 * (k / 2) & 0x03030303u) << 4;
        decode_bytes((words[k] & 0x0f0f0f0fu) | high, each, -32800.0f * each, out);
    }
}

/* How far the bytes of weight row `row` of the tile start behind the place they were copied to. */
template <int TYPE>
static __device__ __forceinline__ uint32_t ring_shift(const ring_work &work, const ring_tile &tile,
                                                      int32_t chunk, int32_t row) {
    if constexpr (TYPE == SL_QTYPE_Q6_K) {
        const ring_part part = ring_part_of(work, tile, row / 64);
        return ((uint32_t)(uint64_t)part.weight.data +
                (uint32_t)tile.expert * (uint32_t)part.weight.expert_bytes +
                (uint32_t)(part.output + row % 64) * (uint32_t)part.weight.row_bytes +
                (uint32_t)(chunk * ring_layout<TYPE>::bytes)) %
               16;
    }
    return 0;
}

/* Which 64 columns: step of the chunk, and descriptor of x's. */
typedef struct ring_columns {
    int32_t step, lane;
    uint64_t x;
    uint32_t full, parity; /* of the barrier to wait for before x is read; 0: none */
} ring_columns;

/* Class "bf16/k16": where a row's scales are, behind `scales`: as skinny has them, within the 8192 bytes of
 * the row's warpgroup, which stores results there while the other may still multiply. */
template <int TYPE> static __device__ __forceinline__ uint32_t ring_pair_scales(int32_t row) {
    return (uint32_t)(row / 128 * 8192 + row % 128 / 16 * 16 * skinny_layout<TYPE>::scales + row % 16 * 16);
}

/* The same as ring_multiply in class "bf16/k16": all 64 columns are decoded before they are multiplied. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void
ring_multiply_pairs(const ring_work &work, const unsigned char *weights, int32_t row,
                    const ring_columns &columns, uint32_t (&a)[4][4], float (&sums)[ROWS / 2]) {
    enum { STRIDE = ring_layout<TYPE>::stride };
    skinny_view view;
    view.row[0] = (uint32_t)__cvta_generic_to_shared(weights) + (uint32_t)(row * STRIDE);
    view.row[1] = view.row[0] + 8 * STRIDE;
    view.matrix = 0;
    view.scales = work.base + ring_memory<TYPE>::scales + ring_pair_scales<TYPE>(row);
    view.pair = (uint32_t)columns.lane % 4 * 2;
    view.select = view.pair * 0x1111 + 0x1100;
    skinny_decoder<TYPE> decoder;
    decoder.load(view, columns.step);
    decoder.run(view, columns.step, a);
    if (columns.full) {
        sl_barrier_wait(columns.full, columns.parity);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])); /* now, not later */
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma<ROWS>(sums, a[k], columns.x + (uint64_t)(2 * k));
    }
    wgmma_commit();
}

/* sums += 64 outputs' weights times x, 64 columns: `row` and `row` + 8 of the tile are the lane's outputs. A
 * product is issued as soon as its 16 columns are decoded: a warp cannot issue the next before it has begun,
 * and decodes meanwhile. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void ring_multiply(const ring_work &work, const unsigned char *weights,
                                                     int32_t row, const ring_columns &columns,
                                                     uint32_t (&a)[4][4], float (&sums)[ROWS / 2]) {
    typedef ring_layout<TYPE> layout;
    const int32_t step = columns.step, lane = columns.lane;
    if constexpr (TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16) {
        /* Lanes 0..15 point at the 16 rows' first 8 columns, the others at the next 8. */
        const int32_t at = row - lane / 4 + lane % 16;
        const uint32_t from =
            sl_shared_address(weights) + (uint32_t)(at * layout::stride + step * STEP * 2 + lane / 16 * 16);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[k][0]), "=r"(a[k][1]), "=r"(a[k][2]), "=r"(a[k][3])
                         : "r"(from + 32 * k)
                         : "memory");
#pragma unroll
            for (int i = 0; i < 4 && TYPE == SL_QTYPE_F16; i++) {
                a[k][i] = sl_bf16_pair(sl_half_of(a[k][i]), sl_half_of(a[k][i] >> 16));
            }
        }
    }
    ring_quants raw[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t at = row + 8 * half;
        raw[half].scales =
            *(const float4 *)(work.memory + ring_memory<TYPE>::scales + at * 64 + (step ^ at / 2 % 4) * 16);
        ring_load<TYPE>(weights + at * layout::stride, step, lane % 4, &raw[half]);
    }
    if (columns.full) {
        sl_barrier_wait(columns.full, columns.parity);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if constexpr (TYPE != SL_QTYPE_F16 && TYPE != SL_QTYPE_BF16) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t pairs[2];
                ring_decode<TYPE>(raw[half], k, pairs);
                a[k][half] = pairs[0];
                a[k][2 + half] = pairs[1];
            }
            asm volatile(""
                         : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])); /* now, not later */
        }
        wgmma_fence();
        wgmma<ROWS>(sums, a[k], columns.x + (uint64_t)(2 * k));
    }
    wgmma_commit();
}

/* One or the other. */
template <int TYPE, int ROWS, bool PAIRS>
static __device__ __forceinline__ void ring_add(const ring_work &work, const unsigned char *weights,
                                                int32_t row, const ring_columns &columns, uint32_t (&a)[4][4],
                                                float (&sums)[ROWS / 2]) {
    if constexpr (PAIRS) {
        ring_multiply_pairs<TYPE, ROWS>(work, weights, row, columns, a, sums);
    } else {
        ring_multiply<TYPE, ROWS>(work, weights, row, columns, a, sums);
    }
}

template <int TYPE> struct ring_places {
    ring_place<ring_layout<TYPE>::steps> x;
    ring_place<ring_layout<TYPE>::chunks> weights;
};

/* ---- results ---- */

/* What one consumer warpgroup stores of a tile. Sums lie by output, eight neighbours in lanes four apart; so
 * that rows are written in long pieces, they pass through shared memory (where scales are, which nobody needs
 * then), 16 rows at a time as [row][64 outputs] for both parts. Outputs change places with the row so that a
 * warp's stores lie in different banks. Only the stores from registers are unrolled: as code runs once per
 * tile, fetching it can take longer than running it. */
typedef struct ring_results {
    const ring_work &work;
    const ring_tile &tile;
    float *buffer;       /* [2][16][64] */
    const int32_t *rows; /* of y, [tile.count] */
    int32_t thread;      /* 0..127 */
    int32_t group;       /* which warpgroup */
} ring_results;

enum { RING_BATCH = 16 }; /* rows */

static __device__ __forceinline__ void ring_meet(const ring_results &results) {
    asm volatile("bar.sync %0, 128;" ::"r"(results.group + 1) : "memory");
}

static __device__ __forceinline__ const float *ring_result(const ring_results &results, int32_t part,
                                                           int32_t row, int32_t output) {
    return &results.buffer[part * 1024 + row * 64 + (output ^ row / 2 % 4 * 8)];
}

/* Rows [first, first + 16) of 128 outputs, a warp to a row, where outputs do not lie in fours or have a bias.
 */
static __device__ __forceinline__ void ring_write_singly(const ring_results &results, int32_t first) {
    const matmul_args &args = results.work.args;
    const sl_cuda_weight &weight = *results.tile.weight;
#pragma unroll 1
    for (int32_t i = results.thread; i < RING_BATCH * 128; i += 128) {
        const int32_t n = i / 128, at = i % 128;
        const int32_t output = results.tile.first_output + 128 * results.group + at;
        if (first + n < results.tile.count && output < weight.rows) {
            const int32_t row = results.rows[first + n];
            float value = *ring_result(results, at / 64, n, at % 64);
            value = weight.bias ? value + weight.bias[(int64_t)results.tile.expert * weight.rows + output]
                                : value;
            value = args.residual.data ? value + sl_f32(args.residual, row)[weight.column + output] : value;
            sl_f32(args.y, row)[weight.column + output] = value;
        }
    }
}

/* The same in fours, where they do. */
static __device__ __forceinline__ void ring_write(const ring_results &results, int32_t first) {
    const matmul_args &args = results.work.args;
    const sl_cuda_weight &weight = *results.tile.weight;
    const int32_t quad = results.thread % SL_WARP * 4, mine = results.thread / SL_WARP;
    const int32_t output = results.tile.first_output + 128 * results.group + quad;
    const int32_t column = weight.column + output;
    const uint64_t y = (uint64_t)(sl_f32(args.y, 0) + column);
    const uint64_t residual = args.residual.data ? (uint64_t)(sl_f32(args.residual, 0) + column) : 0;
    const uint64_t y_bytes = args.y.row_bytes, residual_bytes = residual ? args.residual.row_bytes : 0;
    if (weight.bias || weight.rows % 4 != 0 || (y | residual | y_bytes | residual_bytes) % 16 != 0) {
        ring_write_singly(results, first);
        return;
    }
    uint32_t rows[RING_BATCH / 4];
    float4 sums[RING_BATCH / 4];
#pragma unroll
    for (int i = 0; i < RING_BATCH / 4; i++) {
        rows[i] = (uint32_t)results.rows[min(first + mine + 4 * i, results.tile.count - 1)];
        sums[i] = *(const float4 *)ring_result(results, quad / 64, mine + 4 * i, quad % 64);
    }
#pragma unroll
    for (int i = 0; i < RING_BATCH / 4; i++) {
        if (first + mine + 4 * i < results.tile.count && output < weight.rows) {
            if (residual) {
                const float4 more = *(const float4 *)(residual + rows[i] * residual_bytes);
                sums[i] = make_float4(sums[i].x + more.x, sums[i].y + more.y, sums[i].z + more.z,
                                      sums[i].w + more.w);
            }
            *(float4 *)(y + rows[i] * y_bytes) = sums[i];
        }
    }
}

/* f(gate) * value of rows [first, first + 16) and 64 outputs, of which a thread has eight of one row. */
static __device__ __forceinline__ void ring_write_gated(const ring_results &results, int32_t first) {
    const sl_cuda_weight *weights = results.work.args.weights;
    const sl_cuda_operand &gated = results.work.all.gated;
    const int32_t n = results.thread / 8, eight = results.thread % 8 * 8;
    const int32_t output = results.tile.first_output + 64 * results.group + eight;
    const int32_t left = weights[0].rows - output;
    if (first + n >= results.tile.count || left <= 0) {
        return;
    }
    const int64_t bias = (int64_t)results.tile.expert * weights[0].rows + output;
    uint16_t *to = (uint16_t *)(gated.data + (uint64_t)(uint32_t)results.rows[first + n] * gated.row_bytes) +
                   gated.column + output;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float gate = *ring_result(results, 0, n, eight + i), value = *ring_result(results, 1, n, eight + i);
        if (weights[0].bias && i < left) {
            gate += weights[0].bias[bias + i];
            value += weights[1].bias[bias + i];
        }
        const uint32_t bits = sl_f32_to_bf16(sl_activate(results.work.all.function, gate) * value);
        words[i / 2] = i % 2 ? words[i / 2] | bits << 16 : bits;
    }
    if (left >= 8 && (uint64_t)to % 16 == 0) {
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < left) {
            to[i] = (uint16_t)(words[i / 2] >> 16 * (i % 2));
        }
    }
}

/* scale: what sums are multiplied with. */
template <int ROWS>
static __device__ __forceinline__ void ring_store(const ring_results &results, float scale,
                                                  const float (&sums)[2][ROWS / 2]) {
    const int32_t lane = results.thread % SL_WARP, at = results.thread / SL_WARP * 16 + lane / 4;
    float *to = results.buffer + lane % 4 * 2 * 64;
#pragma unroll 1
    for (int32_t batch = 0; batch * RING_BATCH < results.tile.count; batch++) {
        ring_meet(results);
#pragma unroll
        for (int which = 0; which < ROWS / RING_BATCH; which++) {
            if (which == batch) {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    to[i / 8 * 1024 + (i % 8 / 4 * 8 + i % 2) * 64 + ((at + i % 4 / 2 * 8) ^ lane % 4 * 8)] =
                        sums[i / 8][which * 8 + i % 8] * scale;
                }
            }
        }
        ring_meet(results);
        if (results.work.all.gated.data) {
            ring_write_gated(results, batch * RING_BATCH);
        } else {
            ring_write(results, batch * RING_BATCH);
        }
    }
    ring_meet(results); /* before the next tile's scales */
}

/* A consumer warpgroup's half of a tile of ROWS rows or fewer. */
template <int TYPE, int ROWS, bool PAIRS>
static __device__ __forceinline__ void ring_consume(const ring_work &work, const ring_tile &tile,
                                                    ring_places<TYPE> &places) {
    typedef ring_layout<TYPE> layout;
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread)); /* nothing is kept for the other heights: registers are short */
    const int32_t lane = thread % SL_WARP, warp = thread / SL_WARP;
    /* Outputs in the tile: the warp's first of each 64, the lane's of both. */
    const int32_t first = warp / 4 * 128 + warp % 4 * 16, mine = first + lane / 4;
    /* Rows of 128 bytes, groups of 8 rows 1024 bytes apart, 128-byte swizzle; see PTX, "matrix descriptor".
     */
    const uint64_t matrix = (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16;
    float sums[2][ROWS / 2] = {};
    uint32_t a[2][4][4] = {};
    uint32_t before = 0;
    const int32_t chunks = tile.weight->columns / layout::columns;
    for (int32_t chunk = 0; chunk < chunks; chunk++) {
        const unsigned char *weights =
            work.memory + ring_memory<TYPE>::weights + places.weights.at * (RING_OUTPUTS * layout::stride);
        sl_barrier_wait(ring_full<TYPE>(work.base, places.weights.at), places.weights.parity);
        const int32_t at = first + lane / 16 * 64 + lane % 16;
        const unsigned char *headed = weights + at * layout::stride + ring_shift<TYPE>(work, tile, chunk, at);
        if constexpr (PAIRS) {
            uint4 *to = (uint4 *)(work.memory + ring_memory<TYPE>::scales + ring_pair_scales<TYPE>(at));
            skinny_scales<TYPE>(headed, 0, to);
            skinny_scales<TYPE>(headed, 1, to);
        } else {
            ring_scales<TYPE>(headed, (float4 *)(work.memory + ring_memory<TYPE>::scales + at * 64),
                              at / 2 % 4);
        }
        /* Eight rows on it is the same. */
        const uint32_t shifts[2] = {ring_shift<TYPE>(work, tile, chunk, mine),
                                    ring_shift<TYPE>(work, tile, chunk, mine + 64)};
        __syncwarp();
#pragma unroll 1
        for (int32_t step = 0; step < layout::columns / STEP; step++) {
            const uint64_t x =
                matrix |
                (uint64_t)((work.base + ring_memory<TYPE>::x + places.x.at * RING_X_BYTES) >> 4 & 0x3fffu);
            wgmma_wait<1>(a[0]);
            const ring_columns first_time = {step, lane, x, ring_x_full<TYPE>(work.base, places.x.at),
                                             places.x.parity};
            ring_add<TYPE, ROWS, PAIRS>(work, weights + shifts[0], mine, first_time, a[0], sums[0]);
            wgmma_wait<1>(a[1]);
            if (before && lane < SL_ARRIVING_LANES) {
                sl_barrier_arrive(before); /* the step before is done with x */
            }
            before = ring_x_empty<TYPE>(work.base, places.x.at);
            const ring_columns second_time = {step, lane, x, 0, 0};
            ring_add<TYPE, ROWS, PAIRS>(work, weights + shifts[1], mine + 64, second_time, a[1], sums[1]);
            places.x.next();
        }
        __syncwarp();
        if (lane < SL_ARRIVING_LANES) {
            sl_barrier_arrive(ring_empty<TYPE>(work.base, places.weights.at));
        }
        places.weights.next();
    }
    wgmma_wait<0>(a[0]);
    wgmma_wait<0>(a[1]);
    if (lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(before);
    }
    int32_t *rows = (int32_t *)(work.memory + ring_memory<TYPE>::rows) + warp * RING_ROWS;
    for (int32_t i = lane; i < tile.count; i += SL_WARP) {
        rows[i] = work.args.list ? work.args.list[tile.first + i] : tile.first + i;
    }
    __syncwarp();
    ring_store<ROWS>({work, tile, (float *)(work.memory + ring_memory<TYPE>::scales + warp / 4 * 8192), rows,
                      thread % 128, warp / 4},
                     __uint_as_float((127u + (PAIRS ? skinny_layout<TYPE>::bits : 0)) << 23), sums);
}

/* All tiles from `index` on that have this height. */
template <int TYPE, int ROWS, bool PAIRS>
static __device__ __forceinline__ void ring_consume_class(const ring_work &work, ring_places<TYPE> &places,
                                                          int32_t &index) {
    for (; index < work.schedule.class_end[(RING_ROWS - ROWS) / 16]; index += (int32_t)gridDim.x) {
        ring_consume<TYPE, ROWS, PAIRS>(work, ring_find(work, index), places);
    }
}

template <int TYPE, bool PAIRS>
static __device__ __forceinline__ void ring_consume_all(const ring_work &work) {
    ring_places<TYPE> places;
    int32_t index = (int32_t)blockIdx.x;
    ring_consume_class<TYPE, 160, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 144, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 128, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 112, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 96, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 80, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 64, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 48, PAIRS>(work, places, index);
    ring_consume_class<TYPE, 32, PAIRS>(work, places, index);
}

#endif

/* PAIRS: in class "bf16/k16". */
template <int TYPE, bool PAIRS>
static __global__ void __launch_bounds__(RING_THREADS, 1)
    ring_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ ring_args all) {
    sl_wait_for_inputs();
#if SL_HAS_WGMMA
    typedef ring_layout<TYPE> layout;
    const matmul_args &args = all.product;
    extern __shared__ __align__(128) unsigned char start[];
    const uint32_t window = sl_shared_address(start), base = (window + 1023) / 1024 * 1024;
    unsigned char *const memory = start + (base - window);
    ring_schedule *schedule = (ring_schedule *)(memory + ring_memory<TYPE>::schedule);
    const int32_t blocks = args.first_block[SL_LINEAR_SEGMENTS];
    if (args.list) {
        ring_plan_experts(args.offsets, args.weights[0].experts, blocks, schedule);
    } else {
        ring_plan_rows(sl_count(context, args.y.rows), blocks, schedule);
    }
    const ring_work work = {all, args, *schedule, blocks, base, memory};
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < layout::steps; i++) {
            sl_barrier_init(ring_x_full<TYPE>(base, i), RING_COPIERS);
            sl_barrier_init(ring_x_empty<TYPE>(base, i), RING_CONSUMERS / SL_WARP * SL_ARRIVING_LANES);
        }
        for (uint32_t i = 0; i < layout::chunks; i++) {
            sl_barrier_init(ring_full<TYPE>(base, i), RING_COPIERS);
            sl_barrier_init(ring_empty<TYPE>(base, i), RING_CONSUMERS / SL_WARP * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x >= RING_CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x < RING_CONSUMERS + RING_COPIERS) {
            ring_bring_weights<TYPE>(work);
        } else {
            ring_bring_x<TYPE>(work);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        ring_consume_all<TYPE, PAIRS>(work);
    }
#endif
}

/* ---- launches ---- */

/* Floats are the same in both classes. */
template <int TYPE> static constexpr bool ring_has_pairs() {
    return skinny_layout<TYPE>::bits > 0;
}

template <int TYPE> static cudaError_t ring_prepare_type() {
    cudaError_t code = cudaFuncSetAttribute(
        ring_kernel<TYPE, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, ring_memory<TYPE>::bytes);
    if (ring_has_pairs<TYPE>() && !code) {
        code = cudaFuncSetAttribute(ring_kernel<TYPE, ring_has_pairs<TYPE>()>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, ring_memory<TYPE>::bytes);
    }
    return code;
}

template <int TYPE>
static cudaError_t ring_launch(const sl_cuda_context *context, const sl_cuda_op *op, const ring_args &args,
                               cudaStream_t stream) {
    int device = 0, processors = 1;
    cudaError_t code = cudaGetDevice(&device);
    code = code ? code : cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    /* No more blocks than tiles: of 32 rows, or for each expert that may be chosen one more. */
    const int64_t tiles = (int64_t)row_tiles_of(op, 32) * args.product.first_block[SL_LINEAR_SEGMENTS];
    const sl_launch_shape shape = {dim3((unsigned)(tiles < processors ? tiles : processors)), RING_THREADS,
                                   ring_memory<TYPE>::bytes};
    if (code) {
        return code;
    }
    return sl_k16_is(op)
               ? sl_launch(context, stream, shape, ring_kernel<TYPE, ring_has_pairs<TYPE>()>, *context, args)
               : sl_launch(context, stream, shape, ring_kernel<TYPE, false>, *context, args);
}

template <int TYPE>
static cudaError_t ring_launch_type(const sl_cuda_context *context, const sl_cuda_op *op,
                                    cudaStream_t stream) {
    ring_args args = {};
    make_matmul_args(context, op, RING_OUTPUTS, &args.product);
    return ring_launch<TYPE>(context, op, args, stream);
}

/* LINEAR, ACTIVATE, QUANTIZE: op[0] .. op[2]. */
template <int TYPE>
static cudaError_t ring_launch_gated(const sl_cuda_context *context, const sl_cuda_op *op,
                                     cudaStream_t stream) {
    ring_args args = {};
    matmul_args *product = &args.product;
    make_matmul_args(context, op, RING_OUTPUTS / 2, product);
    const int32_t width = op[1].op->u.activate.width;
    if (product->segments == 1) { /* gates and values are one weight */
        product->weights[1] = product->weights[0];
        product->weights[1].data += (uint64_t)width * product->weights[0].row_bytes;
        product->weights[0].rows = product->weights[1].rows = width;
    }
    product->segments = 1;
    product->first_block[1] = product->first_block[SL_LINEAR_SEGMENTS] =
        (width + RING_OUTPUTS / 2 - 1) / (RING_OUTPUTS / 2);
    args.gated = op[2].out[0];
    args.function = op[1].op->u.activate.function;
    return ring_launch<TYPE>(context, op, args, stream);
}

#endif
