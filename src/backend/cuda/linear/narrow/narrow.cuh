/* Products of eight-bit numbers with Hopper's warpgroup instructions: narrow.h says what they compute.
 *
 * A tile is 128 rows by WIDTH outputs. As many blocks as there are processors go through all tiles, each with
 * two consumer warpgroups of 64 rows and a producer, which is one thread. It fills two rings by tensor maps:
 * stages of 128 columns of x and of the weights, swizzled, and slots with the scales of four groups. Both go
 * on into the next tile while consumers still store this one's results.
 *
 * A thread of a consumer has each of its elements twice: what the tensor cores add, of one group, and the sum
 * of the groups so far. That is why a tile is not larger. While one warpgroup adds a group to its sums the
 * tensor cores multiply for the other.
 *
 * What bounds it is shared memory, which copies write and products read: 832 cycles of 128 bytes for a group
 * of 128 columns in a tile of 128 by 192, where the tensor cores take 768. Each warp reads a scale for each
 * output besides, 384 cycles, unless 128 outputs have the same one (BLOCKS).
 *
 * With gates and values a tile has half of its outputs of each, so that a thread has a gate and its value.
 *
 * A cluster's blocks have tiles side by side or one below the other. Each brings a part of what they share to
 * all, since L2 gives a processor some 24 bytes in a cycle, and a tile of 128 by 192 alone would want 53. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_CUH
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_CUH

#include "backend/cuda/common/expert_tiles.cuh"
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/common/ring.cuh"
#include "backend/cuda/linear/narrow/narrow_shapes.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma_narrow.cuh"

static_assert(SL_NARROW_THREADS == 3 * 128, "two warpgroups of consumers, and one");
enum {
    NARROW_STEP = 128,    /* columns, and bytes, of a stage */
    NARROW_GROUP = 128,   /* threads of a warpgroup */
    NARROW_CONSUMERS = 2, /* warpgroups */
    NARROW_WARPS = NARROW_CONSUMERS * NARROW_GROUP / SL_WARP,
    NARROW_SLOTS = 2,  /* of scales */
    NARROW_SCALED = 4, /* groups whose scales are in a slot */
    NARROW_BATCH = 8,  /* rows by 32 outputs pass through shared memory when results are stored */
    NARROW_BATCH_OUTPUTS = 32,
    NARROW_BATCH_BYTES = NARROW_BATCH * NARROW_BATCH_OUTPUTS * 4
};

template <int KIND> struct narrow_numbers {
    typedef float sum;
    enum { steps = SL_NARROW_E4M3_GROUP / NARROW_STEP };
};
template <> struct narrow_numbers<SL_NARROW_S8> {
    typedef int32_t sum;
    enum { steps = SL_NARROW_S8_GROUP / NARROW_STEP };
};

/* Tiles of clusters one below the other. */
typedef sl_expert_tiles<SL_NARROW_EXPERTS> narrow_schedule;

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int WIDTH> struct narrow_memory {
    enum {
        x_bytes = SL_NARROW_ROWS * NARROW_STEP,
        stage_bytes = x_bytes + WIDTH * NARROW_STEP,
        stages = WIDTH == 192   ? 5
                 : WIDTH == 128 ? 6
                                : 8,
        x_scales_bytes = SL_NARROW_ROWS * NARROW_SCALED * 4, /* [row][group] */
        /* Of weights: [output][group] as sl_narrow_scale_at says, of blocks one output of each 64. */
        slot_bytes = x_scales_bytes + NARROW_SCALED * WIDTH * 4,
        slots = stages * stage_bytes,
        results = slots + NARROW_SLOTS * slot_bytes,
        schedule = results + NARROW_WARPS * NARROW_BATCH_BYTES,
        barriers = schedule + (int)sizeof(narrow_schedule),
        bytes = barriers + 8 * (2 * stages + 2 * NARROW_SLOTS) + 1024
    };
    static_assert(bytes <= 227 * 1024, "a block's shared memory");
};

#if SL_HAS_WGMMA

template <int WIDTH> struct narrow_places {
    sl_ring_place<narrow_memory<WIDTH>::stages> stage;
    sl_ring_place<NARROW_SLOTS> slot;
};

/* What a block works with. */
typedef struct narrow_work {
    const sl_narrow_plan &plan;
    const narrow_schedule &schedule;
    uint32_t base; /* of shared memory */
    unsigned char *memory;
    int32_t down, across;       /* the block's place in its cluster */
    int32_t rows;               /* of the step, without experts */
    int32_t high, wide;         /* tiles of clusters one below the other, side by side */
    int32_t first, step, tiles; /* of the cluster: `first`, `first` + `step`, ... below `tiles` */
} narrow_work;

typedef struct narrow_tile {
    int32_t row, end;       /* rows of x: the first, and behind the last */
    int32_t expert, output; /* output: the first */
} narrow_tile;

template <int WIDTH> struct narrow_barriers {
    typedef narrow_memory<WIDTH> memory;
    static __device__ __forceinline__ uint32_t full(uint32_t base, uint32_t i) {
        return base + memory::barriers + 8 * i;
    }
    static __device__ __forceinline__ uint32_t empty(uint32_t base, uint32_t i) {
        return full(base, memory::stages + i);
    }
    static __device__ __forceinline__ uint32_t slot_full(uint32_t base, uint32_t i) {
        return full(base, 2 * memory::stages + i);
    }
    static __device__ __forceinline__ uint32_t slot_empty(uint32_t base, uint32_t i) {
        return full(base, 2 * memory::stages + NARROW_SLOTS + i);
    }
};

/* Lanes of a warp that tell the cluster's blocks that it has read a stage. */
static constexpr __host__ __device__ uint32_t narrow_arriving(int blocks) {
    return (int)SL_ARRIVING_LANES > blocks ? (uint32_t)SL_ARRIVING_LANES : (uint32_t)blocks;
}

/* Experts: one after the other, all outputs of some rows together. Without: clusters go through a band of
 * rows output by output, so that its x stays in L2 and weights come there once. */
template <int OUTPUTS, int DOWN, int ACROSS>
static __device__ __forceinline__ narrow_tile narrow_find(const narrow_work &work, int32_t index) {
    enum { HEIGHT = SL_NARROW_ROWS * DOWN, BAND = SL_NARROW_BAND / HEIGHT };
    narrow_tile tile = {0, work.rows, 0, 0};
    int32_t column;
    if (work.plan.product.experts) {
        const narrow_schedule &schedule = work.schedule;
        const int32_t high = index / work.wide;
        column = index - high * work.wide;
        int32_t low = 0, end = work.plan.product.experts; /* starts[low] <= high < starts[end] */
#pragma unroll 1
        while (end - low > 1) {
            const int32_t middle = (low + end) / 2;
            if (schedule.starts[middle] <= high) {
                low = middle;
            } else {
                end = middle;
            }
        }
        tile.expert = low;
        tile.row = schedule.offsets[low] + (high - schedule.starts[low]) * HEIGHT;
        tile.end = schedule.offsets[low + 1];
    } else {
        const int32_t band = index / (BAND * work.wide), rest = index - band * BAND * work.wide;
        const int32_t height = min(work.high - band * BAND, (int32_t)BAND);
        column = rest / height;
        tile.row = (band * BAND + rest - column * height) * HEIGHT;
    }
    tile.row += work.down * SL_NARROW_ROWS;
    tile.output = (column * ACROSS + work.across) * OUTPUTS;
    return tile;
}

/* ---- the producer: one thread ---- */

/* A box, and which blocks of the cluster it comes to. */
typedef struct narrow_box {
    int32_t column, row, expert;
    uint16_t ranks;
} narrow_box;

template <int SHARED>
static __device__ __forceinline__ void narrow_bring(uint32_t to, const CUtensorMap *map,
                                                    const narrow_box &box, uint32_t barrier) {
    if constexpr (SHARED == 1) {
        sl_box_copy(to, map, box.column, box.row, box.expert, barrier);
    } else {
        sl_box_copy_to_all(to, map, box.column, box.row, box.expert, {barrier, box.ranks});
    }
}

/* Where scales of weights lie in a slot: of OUTPUTS outputs, and of as many values behind them. Boxes come to
 * multiples of 128 bytes. */
template <int OUTPUTS, bool BLOCKS> struct narrow_scaled {
    enum {
        same = BLOCKS ? SL_NARROW_BLOCK / 2 : 1, /* outputs */
        rows = (OUTPUTS + same - 1) / same,
        bytes = rows * NARROW_SCALED * 4,
        values = (bytes + 127) / 128 * 128
    };
};

template <int WIDTH, bool BLOCKS, bool GATED>
static __device__ __forceinline__ void narrow_bring_scales(const narrow_work &work, const narrow_tile &tile,
                                                           int32_t group, narrow_places<WIDTH> &places) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    typedef narrow_scaled<GATED ? WIDTH / 2 : WIDTH, BLOCKS> scaled;
    const uint32_t to = work.base + memory::slots + places.slot.at * memory::slot_bytes;
    const uint32_t full = barriers::slot_full(work.base, places.slot.at);
    sl_barrier_wait(barriers::slot_empty(work.base, places.slot.at), places.slot.parity ^ 1);
    sl_fence_shared();
    sl_barrier_expect(full, memory::x_scales_bytes + (GATED ? 2 : 1) * scaled::bytes);
    sl_box_copy(to, &work.plan.x_scales, group * 4, tile.row, 0, full);
    sl_box_copy(to + memory::x_scales_bytes, &work.plan.weight_scales, group * 4, tile.output / scaled::same,
                tile.expert, full);
    if constexpr (GATED) {
        sl_box_copy(to + memory::x_scales_bytes + scaled::values, &work.plan.value_scales, group * 4,
                    tile.output / scaled::same, tile.expert, full);
    }
    places.slot.next();
}

/* A stage's columns of a tile's weights, or this block's part of them. */
template <int WIDTH, int DOWN, bool GATED>
static __device__ __forceinline__ void narrow_bring_weights(const narrow_work &work, const narrow_tile &tile,
                                                            uint32_t to, const narrow_box &box,
                                                            uint32_t barrier) {
    enum { PART = WIDTH / DOWN, HALF = WIDTH / 2 };
    const sl_narrow_plan &plan = work.plan;
    const int32_t first = work.down * PART;
    if constexpr (!GATED) {
        narrow_bring<DOWN>(to + (uint32_t)first * NARROW_STEP, &plan.weights,
                           {box.column, tile.output + first, tile.expert, box.ranks}, barrier);
    } else if constexpr (DOWN == 2) {
        narrow_bring<DOWN>(to + (uint32_t)first * NARROW_STEP, work.down ? &plan.values : &plan.weights,
                           {box.column, tile.output, 0, box.ranks}, barrier);
    } else {
        narrow_bring<DOWN>(to, &plan.weights, {box.column, tile.output, 0, box.ranks}, barrier);
        narrow_bring<DOWN>(to + HALF * NARROW_STEP, &plan.values, {box.column, tile.output, 0, box.ranks},
                           barrier);
    }
}

template <int KIND, int WIDTH, int DOWN, int ACROSS, bool BLOCKS, bool GATED>
static __device__ __forceinline__ void narrow_bring_tile(const narrow_work &work, const narrow_tile &tile,
                                                         narrow_places<WIDTH> &places) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    enum {
        STEPS = narrow_numbers<KIND>::steps,
        X_PART = SL_NARROW_ROWS / ACROSS /* rows that this block brings */
    };
    static_assert(DOWN <= 2, "two ranks at most have the same outputs");
    const uint32_t x_ranks = ((1u << ACROSS) - 1) << work.down * ACROSS,
                   weights_ranks = (1u | (DOWN - 1) << ACROSS) << work.across;
    const int32_t x_first = work.across * X_PART;
    const int32_t steps = work.plan.product.columns / NARROW_STEP;
#pragma unroll 1
    for (int32_t step = 0; step < steps; step++) {
        if (step % (STEPS * NARROW_SCALED) == 0) {
            narrow_bring_scales<WIDTH, BLOCKS, GATED>(work, tile, step / STEPS, places);
        }
        const uint32_t to = work.base + places.stage.at * memory::stage_bytes;
        const uint32_t full = barriers::full(work.base, places.stage.at);
        sl_barrier_wait(barriers::empty(work.base, places.stage.at), places.stage.parity ^ 1);
        sl_barrier_expect(full, memory::stage_bytes);
        narrow_bring<ACROSS>(to + (uint32_t)x_first * NARROW_STEP, &work.plan.x,
                             {step * NARROW_STEP, tile.row + x_first, 0, (uint16_t)x_ranks}, full);
        narrow_bring_weights<WIDTH, DOWN, GATED>(work, tile, to + memory::x_bytes,
                                                 {step * NARROW_STEP, 0, 0, (uint16_t)weights_ranks}, full);
        places.stage.next();
    }
}

/* ---- results ---- */

enum { NARROW_LANE_ROWS = 4 }; /* of a warp's 16 rows, that a lane stores a part of */

/* What a warp stores: 16 rows, 32 outputs at a time. */
typedef struct narrow_results {
    const sl_narrow_product &product;
    const float *bias; /* the expert's, or NULL */
    float *buffer;     /* the warp's own, [8][32] */
    int32_t lane;
    bool aligned;                   /* four outputs of y, bias and residual lie at multiples of 16 bytes */
    int32_t rows[NARROW_LANE_ROWS]; /* of y, or -1 */
} narrow_results;

static __device__ __forceinline__ void narrow_store_four(const narrow_results &results, int32_t row,
                                                         int32_t output, float4 sums) {
    const sl_narrow_product &product = results.product;
    const int32_t left = product.outputs - output;
    if (row < 0 || left <= 0) {
        return;
    }
    float *y = (float *)((unsigned char *)product.y + (uint64_t)row * product.y_row_bytes) + output;
    const float *bias = results.bias ? results.bias + output : NULL;
    const float *residual = product.residual ? (const float *)((const unsigned char *)product.residual +
                                                               (uint64_t)row * product.residual_row_bytes) +
                                                   output
                                             : NULL;
    if (results.aligned && left >= 4) {
        if (bias) {
            const float4 more = *(const float4 *)bias;
            sums = make_float4(sums.x + more.x, sums.y + more.y, sums.z + more.z, sums.w + more.w);
        }
        if (residual) {
            const float4 more = *(const float4 *)residual;
            sums = make_float4(sums.x + more.x, sums.y + more.y, sums.z + more.z, sums.w + more.w);
        }
        *(float4 *)y = sums;
        return;
    }
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < left) {
            const float value = bias ? values[i] + bias[i] : values[i];
            y[i] = residual ? value + residual[i] : value;
        }
    }
}

/* Sums lie by row, two outputs in a lane. They pass through shared memory, so that a warp writes 128 bytes of
 * a row; eight outputs change places with the row, so that stores lie in different banks. SUMS: they are what
 * is stored, of outputs that all are there, in fours. */
template <int WIDTH, bool SUMS>
static __device__ __forceinline__ void narrow_store(const narrow_results &results, int32_t first_output,
                                                    const float (&sums)[WIDTH / 2]) {
    const int32_t lane = results.lane, from = lane / 8, four = lane % 8;
    float *to = results.buffer + lane / 4 * NARROW_BATCH_OUTPUTS + lane % 4 * 2;
    float *y[NARROW_LANE_ROWS];
#pragma unroll
    for (int i = 0; i < NARROW_LANE_ROWS && SUMS; i++) {
        y[i] = (float *)((unsigned char *)results.product.y +
                         (uint64_t)(uint32_t)results.rows[i] * results.product.y_row_bytes) +
               first_output + 4 * four;
    }
#pragma unroll
    for (int batch = 0; batch < WIDTH / NARROW_BATCH_OUTPUTS; batch++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                *(float2 *)(to + (i ^ lane / 4 % 4) * 8) =
                    make_float2(sums[16 * batch + 4 * i + 2 * half], sums[16 * batch + 4 * i + 2 * half + 1]);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < NARROW_BATCH / 4; i++) {
                const int32_t row = from + 4 * i, which = NARROW_BATCH / 4 * half + i;
                const float4 values = *(const float4 *)(results.buffer + row * NARROW_BATCH_OUTPUTS +
                                                        (four / 2 ^ row % 4) * 8 + four % 2 * 4);
                if constexpr (SUMS) {
                    if (results.rows[which] >= 0) {
                        *(float4 *)(y[which] + NARROW_BATCH_OUTPUTS * batch) = values;
                    }
                } else {
                    narrow_store_four(results, results.rows[which],
                                      first_output + NARROW_BATCH_OUTPUTS * batch + 4 * four, values);
                }
            }
        }
    }
}

/* A warp's. */
template <int WIDTH>
static __device__ __forceinline__ void narrow_store_tile(const narrow_work &work, const narrow_tile &tile,
                                                         const float (&sums)[WIDTH / 2]) {
    const sl_narrow_product &product = work.plan.product;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const float *bias = product.bias ? product.bias + (int64_t)tile.expert * product.outputs : NULL;
    const uint64_t places = (uint64_t)product.y | product.y_row_bytes | (uint64_t)bias |
                            (uint64_t)product.residual | product.residual_row_bytes;
    narrow_results results = {
        product,
        bias,
        (float *)(work.memory + narrow_memory<WIDTH>::results + warp * NARROW_BATCH_BYTES),
        lane,
        places % 16 == 0,
        {}};
#pragma unroll
    for (int i = 0; i < NARROW_LANE_ROWS; i++) {
        const int32_t row = tile.row + 16 * warp + lane / 8 + 4 * i;
        results.rows[i] = row >= tile.end ? -1 : product.list ? product.list[row] : row;
    }
    if (results.aligned && !bias && !product.residual && tile.output + WIDTH <= product.outputs) {
        narrow_store<WIDTH, true>(results, tile.output, sums);
    } else {
        narrow_store<WIDTH, false>(results, tile.output, sums);
    }
}

/* Gates' sums, then as many of values: what is activated of them, in BF16. 32 outputs of eight rows pass
 * through shared memory at a time, as words of two; four words change places with the row. */
template <int WIDTH>
static __device__ __forceinline__ void
narrow_store_activated(const narrow_work &work, const narrow_tile &tile, const float (&sums)[WIDTH / 2]) {
    enum { HALF = WIDTH / 4, WORDS = NARROW_BATCH_OUTPUTS / 2 };
    const sl_narrow_product &product = work.plan.product;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    uint32_t *const buffer =
        (uint32_t *)(work.memory + narrow_memory<WIDTH>::results + warp * NARROW_BATCH_BYTES);
    const int32_t own = lane / 4,
                  four = lane % 4; /* a lane writes words of row `own`, and stores four of it */
    const auto activate = [&product, &sums](int i) {
        return sl_activate(product.activation, sums[i]) * sums[i + HALF];
    };
#pragma unroll
    for (int batch = 0; batch < WIDTH / 2 / NARROW_BATCH_OUTPUTS; batch++) {
        const int32_t output = tile.output + NARROW_BATCH_OUTPUTS * batch + 8 * four;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 16 * batch + 4 * i + 2 * half;
                buffer[own * WORDS + (i ^ own / 2) * 4 + four] = sl_bf16_pair(activate(at), activate(at + 1));
            }
            __syncwarp();
            const uint4 words = *(const uint4 *)(buffer + own * WORDS + (four ^ own / 2) * 4);
            const int32_t row = tile.row + 16 * warp + 8 * half + own;
            if (row < tile.end && output < product.outputs) {
                *(uint4 *)((unsigned char *)product.activated + (uint64_t)row * product.activated_row_bytes +
                           2 * (uint64_t)output) = words;
            }
        }
    }
}

/* ---- the consumers ---- */

/* One stage's products. */
template <int WIDTH, bool FIRST, typename SUM>
static __device__ __forceinline__ void narrow_multiply(uint32_t x, uint32_t weights, SUM (&d)[WIDTH / 2]) {
    const uint64_t a = wgmma_operand(x, 16), b = wgmma_operand(weights, 16);
    wgmma_narrow<WIDTH, !FIRST>(d, a, b);
#pragma unroll
    for (int k = 1; k < NARROW_STEP / 32; k++) {
        wgmma_narrow<WIDTH, true>(d, a + (uint64_t)(2 * k), b + (uint64_t)(2 * k));
    }
    wgmma_commit();
}

/* A lane's of a group: x's of its two rows, and where those of the weights begin: of its outputs, or BLOCKS:
 * of the tile. Of E4M3 an output has NARROW_SCALED neighbours. shift: outputs in front of the tile that are
 * of its first 64. */
typedef struct narrow_scales {
    float x[2];
    const float *weights;
    int32_t shift;
} narrow_scales;

/* Of outputs [8 i, 8 i + 8) of a tile, of which 64 have one, as tiles begin at multiples of 32 and blocks
 * have 128. */
template <int WIDTH, bool GATED>
static __device__ __forceinline__ float narrow_block_scale(const narrow_scales &scales, int i) {
    enum { OUTPUTS = GATED ? WIDTH / 2 : WIDTH, VALUES = narrow_scaled<OUTPUTS, true>::values / 4 };
    const int first = i % (OUTPUTS / 8) * 8, row = first / 64;
    /* With a shift, which is 32, the upper half of 64 outputs is of the next. */
    const bool next = GATED && OUTPUTS % 64 != 0 && first % 64 >= 32 && scales.shift > 0;
    return scales.weights[i / (OUTPUTS / 8) * VALUES + (row + (next ? 1 : 0)) * NARROW_SCALED];
}

/* sums += what the tensor cores added of a group, times the scales. */
template <int KIND, int WIDTH, bool BLOCKS, bool GATED, typename SUM>
static __device__ __forceinline__ void narrow_promote(const narrow_scales &scales, const SUM (&d)[WIDTH / 2],
                                                      float (&sums)[WIDTH / 2]) {
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
        float2 scale;
        if constexpr (BLOCKS) {
            scale.x = scale.y = narrow_block_scale<WIDTH, GATED>(scales, i);
        } else if constexpr (KIND == SL_NARROW_E4M3) { /* as many words in each bank as of a pair */
            scale.x = scales.weights[8 * NARROW_SCALED * i];
            scale.y = scales.weights[8 * NARROW_SCALED * i + NARROW_SCALED];
        } else {
            scale = *(const float2 *)(scales.weights + 8 * NARROW_SCALED * i);
        }
        sums[4 * i] = fmaf(scales.x[0] * scale.x, (float)d[4 * i], sums[4 * i]);
        sums[4 * i + 1] = fmaf(scales.x[0] * scale.y, (float)d[4 * i + 1], sums[4 * i + 1]);
        sums[4 * i + 2] = fmaf(scales.x[1] * scale.x, (float)d[4 * i + 2], sums[4 * i + 2]);
        sums[4 * i + 3] = fmaf(scales.x[1] * scale.y, (float)d[4 * i + 3], sums[4 * i + 3]);
    }
}

/* Issues the products of a group, and waits for them. */
template <int KIND, int WIDTH, int DOWN, int ACROSS>
static __device__ __forceinline__ void
narrow_multiply_group(const narrow_work &work, int32_t mine, narrow_places<WIDTH> &places,
                      typename narrow_numbers<KIND>::sum (&d)[WIDTH / 2]) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    enum { STEPS = narrow_numbers<KIND>::steps, CLUSTER = DOWN * ACROSS };
    const uint32_t lane = threadIdx.x % SL_WARP;
    uint32_t empty[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const uint32_t x = work.base + places.stage.at * memory::stage_bytes;
        const uint32_t own = x + (uint32_t)mine * (memory::x_bytes / NARROW_CONSUMERS);
        empty[step] = barriers::empty(work.base, places.stage.at);
        sl_barrier_wait(barriers::full(work.base, places.stage.at), places.stage.parity);
        wgmma_fence();
        if (step == 0) {
            narrow_multiply<WIDTH, true>(own, x + memory::x_bytes, d);
        } else {
            narrow_multiply<WIDTH, false>(own, x + memory::x_bytes, d);
        }
        places.stage.next();
    }
    const bool arrives = lane < narrow_arriving(CLUSTER);
    if constexpr (STEPS == 2) {
        wgmma_wait<1>();
        sl_barrier_arrive_there_if(empty[0], lane % CLUSTER, arrives);
    }
    wgmma_wait<0>();
    wgmma_keep(d);
    sl_barrier_arrive_there_if(empty[STEPS - 1], lane % CLUSTER, arrives);
}

template <int KIND, int WIDTH, int DOWN, int ACROSS, bool BLOCKS, bool GATED>
static __device__ __forceinline__ void narrow_consume_tile(const narrow_work &work, const narrow_tile &tile,
                                                           narrow_places<WIDTH> &places) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t groups = work.plan.product.columns / (narrow_numbers<KIND>::steps * NARROW_STEP);
    typename narrow_numbers<KIND>::sum d[WIDTH / 2] = {};
    float sums[WIDTH / 2] = {};
#pragma unroll 1
    for (int32_t group = 0; group < groups; group++) {
        const int32_t at = group % NARROW_SCALED;
        if (at == 0) { /* long before they are needed, but no branch comes behind products */
            sl_barrier_wait(barriers::slot_full(work.base, places.slot.at), places.slot.parity);
        }
        const float *slot =
            (const float *)(work.memory + memory::slots + places.slot.at * memory::slot_bytes);
        const float *x_scales = slot + (16 * warp + lane / 4) * NARROW_SCALED + at;
        const int32_t first = BLOCKS ? 0 : lane % 4 * 2; /* output */
        const narrow_scales scales = {{x_scales[0], x_scales[8 * NARROW_SCALED]},
                                      slot + memory::x_scales_bytes / 4 +
                                          sl_narrow_scale_at((sl_narrow_kind)KIND, first, at, NARROW_SCALED),
                                      tile.output % 64};
        narrow_multiply_group<KIND, WIDTH, DOWN, ACROSS>(work, warp / 4, places, d);
        narrow_promote<KIND, WIDTH, BLOCKS, GATED>(scales, d, sums);
        if (at == NARROW_SCALED - 1 || group == groups - 1) {
            __syncwarp();
            sl_barrier_arrive_if(barriers::slot_empty(work.base, places.slot.at), lane < SL_ARRIVING_LANES);
            places.slot.next();
        }
    }
    if constexpr (GATED) {
        narrow_store_activated<WIDTH>(work, tile, sums);
    } else {
        narrow_store_tile<WIDTH>(work, tile, sums);
    }
}

template <int WIDTH, int CLUSTER> static __device__ __forceinline__ void narrow_init_barriers(uint32_t base) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    for (uint32_t i = 0; i < memory::stages; i++) {
        sl_barrier_init(barriers::full(base, i), 1);
        sl_barrier_init(barriers::empty(base, i), NARROW_WARPS * narrow_arriving(CLUSTER));
    }
    for (uint32_t i = 0; i < NARROW_SLOTS; i++) {
        sl_barrier_init(barriers::slot_full(base, i), 1);
        sl_barrier_init(barriers::slot_empty(base, i), NARROW_WARPS * SL_ARRIVING_LANES);
    }
    sl_barriers_ready();
}

#endif

template <int KIND, int WIDTH, int DOWN, int ACROSS, bool BLOCKS, bool GATED>
static __global__ void __launch_bounds__(SL_NARROW_THREADS, 1)
    narrow_kernel(const __grid_constant__ sl_narrow_plan plan) {
    sl_wait_for_inputs();
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char start[];
    const uint32_t window = sl_shared_address(start), base = (window + 1023) / 1024 * 1024;
    enum { CLUSTER = DOWN * ACROSS, HEIGHT = SL_NARROW_ROWS * DOWN, OUTPUTS = GATED ? WIDTH / 2 : WIDTH };
    unsigned char *const memory = start + (base - window);
    narrow_schedule *schedule = (narrow_schedule *)(memory + narrow_memory<WIDTH>::schedule);
    const int32_t rows = plan.product.experts ? 0 : *plan.product.true_rows;
    const int32_t high = plan.product.experts ? sl_plan_expert_tiles<HEIGHT>(plan.product.offsets,
                                                                             plan.product.experts, schedule)
                                              : (rows + HEIGHT - 1) / HEIGHT;
    const int32_t wide = (plan.product.outputs + OUTPUTS * ACROSS - 1) / (OUTPUTS * ACROSS);
    const int32_t rank = (int32_t)blockIdx.x % CLUSTER;
    const narrow_work work = {plan,
                              *schedule,
                              base,
                              memory,
                              rank / ACROSS,
                              rank % ACROSS,
                              rows,
                              high,
                              wide,
                              (int32_t)blockIdx.x / CLUSTER,
                              (int32_t)gridDim.x / CLUSTER,
                              high * wide};
    if (threadIdx.x == 0) {
        narrow_init_barriers<WIDTH, CLUSTER>(base);
    }
    __syncthreads();
    sl_cluster_arrive<CLUSTER>();
    sl_cluster_wait<CLUSTER>();
    narrow_places<WIDTH> places;
    if (threadIdx.x >= NARROW_CONSUMERS * NARROW_GROUP) {
        sl_give_registers<40>();
        for (int32_t i = work.first; i < work.tiles && threadIdx.x == NARROW_CONSUMERS * NARROW_GROUP;
             i += work.step) {
            narrow_bring_tile<KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED>(
                work, narrow_find<OUTPUTS, DOWN, ACROSS>(work, i), places);
        }
    } else {
        sl_take_registers<232>();
        for (int32_t i = work.first; i < work.tiles; i += work.step) {
            narrow_consume_tile<KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED>(
                work, narrow_find<OUTPUTS, DOWN, ACROSS>(work, i), places);
        }
    }
    /* Until the last copy to this block and the last arrival at its barriers. */
    sl_cluster_arrive<CLUSTER>();
    sl_cluster_wait<CLUSTER>();
#endif
}

template <int KIND, int WIDTH, int DOWN, int ACROSS, bool BLOCKS, bool GATED>
static cudaError_t narrow_allow(int bytes) {
    return sl_allow_shared(narrow_kernel<KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED>, bytes);
}

template <int KIND, int WIDTH, int DOWN, int ACROSS, bool BLOCKS, bool GATED>
static cudaError_t narrow_launch(const sl_cuda_context *context, const sl_narrow_plan *plan,
                                 const sl_launch_shape *shape, cudaStream_t stream) {
    return sl_launch(context, stream, *shape, narrow_kernel<KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED>, *plan);
}

#define NARROW_SHAPE(KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED, TIME)                                         \
    {                                                                                                        \
        WIDTH, DOWN, ACROSS, TIME, narrow_memory<WIDTH>::bytes,                                              \
            narrow_allow<KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED>,                                          \
            narrow_launch<KIND, WIDTH, DOWN, ACROSS, BLOCKS, GATED>                                          \
    }

#endif
