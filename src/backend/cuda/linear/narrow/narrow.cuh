/* Products of eight-bit numbers with Hopper's warpgroup instructions: narrow.h says what they compute.
 *
 * A tile is 128 rows by WIDTH outputs. As many blocks as there are processors go through all tiles, each with
 * two consumer warpgroups of 64 rows and a producer, which is one thread. It fills two rings by tensor maps:
 * stages of 128 columns of x and of the weights, swizzled, and slots with the scales of four groups. Both go
 * on into the next tile while consumers still store this one's results.
 *
 * A thread of a consumer has each of its elements twice: what the tensor cores add, of one group, and the sum
 * of the groups so far. That is why a tile is not larger. While one warpgroup adds a group to its sums the
 * tensor cores multiply for the other; barriers hand them from one to the other, as both would otherwise be
 * served in turns and be ready at the same time.
 *
 * Two blocks of a cluster have tiles of the same outputs. Each brings one half of the weights to both, since
 * L2 gives a processor some 24 bytes in a cycle, and a tile of 128 by 192 alone would want 53. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_CUH
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_CUH

#include "backend/cuda/common/device.cuh"
#include "backend/cuda/linear/narrow/narrow_shapes.h"
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

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int WIDTH> struct narrow_memory {
    enum {
        x_bytes = SL_NARROW_ROWS * NARROW_STEP,
        stage_bytes = x_bytes + WIDTH * NARROW_STEP,
        stages = WIDTH == 192   ? 5
                 : WIDTH == 128 ? 6
                                : 8,
        x_scales_bytes = SL_NARROW_ROWS * NARROW_SCALED * 4,     /* [row][group] */
        slot_bytes = x_scales_bytes + NARROW_SCALED * WIDTH * 4, /* [group][output] */
        slots = stages * stage_bytes,
        results = slots + NARROW_SLOTS * slot_bytes,
        barriers = results + NARROW_WARPS * NARROW_BATCH_BYTES,
        bytes = barriers + 8 * (2 * stages + 2 * NARROW_SLOTS) + 1024
    };
    static_assert(bytes <= 227 * 1024, "a block's shared memory");
};

#if SL_HAS_WGMMA

/* A position in a ring, and the parity of the phase of its barriers. */
template <int LENGTH> struct narrow_place {
    uint32_t at = 0, parity = 0;
    __device__ __forceinline__ void next() {
        at++;
        if (at == LENGTH) {
            at = 0;
            parity ^= 1;
        }
    }
};

template <int WIDTH> struct narrow_places {
    narrow_place<narrow_memory<WIDTH>::stages> stage;
    narrow_place<NARROW_SLOTS> slot;
};

/* What a block works with. */
typedef struct narrow_work {
    const sl_narrow_plan &plan;
    uint32_t base, rank;        /* of shared memory; of the block in its cluster */
    int32_t rows;               /* of the step */
    int32_t first, step, tiles; /* of the cluster: `first`, `first` + `step`, ... below `tiles` */
    unsigned char *memory;
} narrow_work;

typedef struct narrow_tile {
    int32_t row, output; /* the first */
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
template <int CLUSTER> static constexpr __device__ uint32_t narrow_arriving() {
    return SL_ARRIVING_LANES > CLUSTER ? SL_ARRIVING_LANES : CLUSTER;
}

/* Clusters go through a band of rows output by output: its x stays in L2, and weights come there once. */
template <int WIDTH, int CLUSTER>
static __device__ __forceinline__ narrow_tile narrow_find(const narrow_work &work, int32_t index) {
    enum { HEIGHT = SL_NARROW_ROWS * CLUSTER, BAND = SL_NARROW_BAND / HEIGHT };
    const int32_t wide = (work.plan.product.outputs + WIDTH - 1) / WIDTH;
    const int32_t high = (work.rows + HEIGHT - 1) / HEIGHT;
    const int32_t band = index / (BAND * wide), rest = index - band * BAND * wide;
    const int32_t height = min(high - band * BAND, (int32_t)BAND), column = rest / height;
    return {(band * BAND + rest - column * height) * HEIGHT + (int32_t)work.rank * SL_NARROW_ROWS,
            column * WIDTH};
}

/* ---- the producer: one thread ---- */

template <int WIDTH>
static __device__ __forceinline__ void narrow_bring_scales(const narrow_work &work, const narrow_tile &tile,
                                                           int32_t group, narrow_places<WIDTH> &places) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    const uint32_t to = work.base + memory::slots + places.slot.at * memory::slot_bytes;
    const uint32_t full = barriers::slot_full(work.base, places.slot.at);
    sl_barrier_wait(barriers::slot_empty(work.base, places.slot.at), places.slot.parity ^ 1);
    sl_fence_shared();
    sl_barrier_expect(full, memory::slot_bytes);
    sl_box_copy(to, &work.plan.x_scales, group * 4, tile.row, 0, full);
    sl_box_copy(to + memory::x_scales_bytes, &work.plan.weight_scales, tile.output / 2, group, 0, full);
    places.slot.next();
}

template <int KIND, int WIDTH, int CLUSTER>
static __device__ __forceinline__ void narrow_bring_tile(const narrow_work &work, const narrow_tile &tile,
                                                         narrow_places<WIDTH> &places) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    enum { STEPS = narrow_numbers<KIND>::steps, PART = WIDTH / CLUSTER };
    const int32_t steps = work.plan.product.columns / NARROW_STEP;
#pragma unroll 1
    for (int32_t step = 0; step < steps; step++) {
        if (step % (STEPS * NARROW_SCALED) == 0) {
            narrow_bring_scales<WIDTH>(work, tile, step / STEPS, places);
        }
        const uint32_t to = work.base + places.stage.at * memory::stage_bytes;
        const uint32_t full = barriers::full(work.base, places.stage.at);
        sl_barrier_wait(barriers::empty(work.base, places.stage.at), places.stage.parity ^ 1);
        sl_barrier_expect(full, memory::stage_bytes);
        sl_box_copy(to, &work.plan.x, step * NARROW_STEP, tile.row, 0, full);
        const uint32_t part = work.rank * PART;
        if constexpr (CLUSTER == 1) {
            sl_box_copy(to + memory::x_bytes, &work.plan.weights, step * NARROW_STEP, tile.output, 0, full);
        } else {
            sl_box_copy_to_all(to + memory::x_bytes + part * NARROW_STEP, &work.plan.weights,
                               step * NARROW_STEP, tile.output + (int32_t)part, full, (1 << CLUSTER) - 1);
        }
        places.stage.next();
    }
}

/* ---- results ---- */

/* What a warp stores: 16 rows, 32 outputs at a time. A lane's four outputs of them begin at `output`. */
typedef struct narrow_results {
    const sl_narrow_product &product;
    float *buffer;      /* the warp's own, [8][32] */
    int32_t rows, lane; /* rows: of the step */
    bool aligned;       /* four outputs of y, bias and residual lie at multiples of 16 bytes */
} narrow_results;

static __device__ __forceinline__ bool narrow_is_aligned(const sl_narrow_product &product) {
    return ((uint64_t)product.y | product.y_row_bytes | (uint64_t)product.bias | (uint64_t)product.residual |
            product.residual_row_bytes) %
               16 ==
           0;
}

static __device__ __forceinline__ void narrow_store_four(const narrow_results &results, int32_t row,
                                                         int32_t output, float4 sums) {
    const sl_narrow_product &product = results.product;
    const int32_t left = product.outputs - output;
    if (row >= results.rows || left <= 0) {
        return;
    }
    float *y = (float *)((unsigned char *)product.y + (uint64_t)row * product.y_row_bytes) + output;
    const float *bias = product.bias ? product.bias + output : NULL;
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
 * a row; eight outputs change places with the row, so that stores lie in different banks. first: of the rows
 * and outputs of the warp. */
template <int WIDTH>
static __device__ __forceinline__ void narrow_store(const narrow_results &results, const narrow_tile &first,
                                                    const float (&sums)[WIDTH / 2]) {
    const int32_t lane = results.lane, from = lane / 8, four = lane % 8;
    float *to = results.buffer + lane / 4 * NARROW_BATCH_OUTPUTS + lane % 4 * 2;
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
                const int32_t row = from + 4 * i;
                const float4 values = *(const float4 *)(results.buffer + row * NARROW_BATCH_OUTPUTS +
                                                        (four / 2 ^ row % 4) * 8 + four % 2 * 4);
                narrow_store_four(results, first.row + NARROW_BATCH * half + row,
                                  first.output + NARROW_BATCH_OUTPUTS * batch + 4 * four, values);
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

/* sums += what the tensor cores added of a group, times the scales: x's of two rows, weights' of all outputs.
 */
template <int WIDTH, typename SUM>
static __device__ __forceinline__ void narrow_promote(const float *x_scales, const float *weight_scales,
                                                      const SUM (&d)[WIDTH / 2], float (&sums)[WIDTH / 2]) {
    const float first = x_scales[0], second = x_scales[8 * NARROW_SCALED];
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
        const float2 scale = *(const float2 *)(weight_scales + 8 * i);
        sums[4 * i] = fmaf(first * scale.x, (float)d[4 * i], sums[4 * i]);
        sums[4 * i + 1] = fmaf(first * scale.y, (float)d[4 * i + 1], sums[4 * i + 1]);
        sums[4 * i + 2] = fmaf(second * scale.x, (float)d[4 * i + 2], sums[4 * i + 2]);
        sums[4 * i + 3] = fmaf(second * scale.y, (float)d[4 * i + 3], sums[4 * i + 3]);
    }
}

/* Issues the products of a group, and waits for them. */
template <int KIND, int WIDTH, int CLUSTER, bool ORDERED>
static __device__ __forceinline__ void
narrow_multiply_group(const narrow_work &work, int32_t mine, narrow_places<WIDTH> &places,
                      typename narrow_numbers<KIND>::sum (&d)[WIDTH / 2]) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    enum { STEPS = narrow_numbers<KIND>::steps };
    const uint32_t lane = threadIdx.x % SL_WARP;
    uint32_t empty[STEPS];
    if constexpr (ORDERED)
        sl_meet(1 + mine, NARROW_CONSUMERS * NARROW_GROUP); /* the tensor cores are this warpgroup's */
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
    if constexpr (ORDERED)
        sl_meet_without_waiting(1 + (mine ^ 1), NARROW_CONSUMERS * NARROW_GROUP);
    const bool arrives = lane < narrow_arriving<CLUSTER>();
    if constexpr (STEPS == 2) {
        wgmma_wait<1>();
        sl_barrier_arrive_there_if(empty[0], lane % CLUSTER, arrives);
    }
    wgmma_wait<0>();
    wgmma_keep(d);
    sl_barrier_arrive_there_if(empty[STEPS - 1], lane % CLUSTER, arrives);
}

template <int KIND, int WIDTH, int CLUSTER, bool ORDERED>
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
        narrow_multiply_group<KIND, WIDTH, CLUSTER, ORDERED>(work, warp / 4, places, d);
        if (at == 0) {
            sl_barrier_wait(barriers::slot_full(work.base, places.slot.at), places.slot.parity);
        }
        const float *slot =
            (const float *)(work.memory + memory::slots + places.slot.at * memory::slot_bytes);
        narrow_promote<WIDTH>(slot + (16 * warp + lane / 4) * NARROW_SCALED + at,
                              slot + memory::x_scales_bytes / 4 + at * WIDTH + lane % 4 * 2, d, sums);
        if (at == NARROW_SCALED - 1 || group == groups - 1) {
            __syncwarp();
            sl_barrier_arrive_if(barriers::slot_empty(work.base, places.slot.at), lane < SL_ARRIVING_LANES);
            places.slot.next();
        }
    }
    const narrow_results results = {work.plan.product,
                                    (float *)(work.memory + memory::results + warp * NARROW_BATCH_BYTES),
                                    work.rows, lane, narrow_is_aligned(work.plan.product)};
    narrow_store<WIDTH>(results, {tile.row + 16 * warp, tile.output}, sums);
}

template <int WIDTH, int CLUSTER> static __device__ __forceinline__ void narrow_init_barriers(uint32_t base) {
    typedef narrow_memory<WIDTH> memory;
    typedef narrow_barriers<WIDTH> barriers;
    for (uint32_t i = 0; i < memory::stages; i++) {
        sl_barrier_init(barriers::full(base, i), 1);
        sl_barrier_init(barriers::empty(base, i), NARROW_WARPS * narrow_arriving<CLUSTER>());
    }
    for (uint32_t i = 0; i < NARROW_SLOTS; i++) {
        sl_barrier_init(barriers::slot_full(base, i), 1);
        sl_barrier_init(barriers::slot_empty(base, i), NARROW_WARPS * SL_ARRIVING_LANES);
    }
    sl_barriers_ready();
}

#endif

template <int KIND, int WIDTH, int CLUSTER, bool ORDERED>
static __global__ void __launch_bounds__(SL_NARROW_THREADS, 1)
    narrow_kernel(const __grid_constant__ sl_narrow_plan plan) {
    sl_wait_for_inputs();
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char start[];
    const uint32_t window = sl_shared_address(start), base = (window + 1023) / 1024 * 1024;
    const int32_t rows = *plan.product.true_rows;
    const narrow_work work = {plan,
                              base,
                              blockIdx.x % CLUSTER,
                              rows,
                              (int32_t)blockIdx.x / CLUSTER,
                              (int32_t)gridDim.x / CLUSTER,
                              sl_narrow_tiles(rows, plan.product.outputs, WIDTH, CLUSTER),
                              start + (base - window)};
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
            narrow_bring_tile<KIND, WIDTH, CLUSTER>(work, narrow_find<WIDTH, CLUSTER>(work, i), places);
        }
    } else {
        sl_take_registers<232>();
        const int32_t mine = (int32_t)threadIdx.x / NARROW_GROUP;
        if (ORDERED && mine == 1) { /* the other begins */
            sl_meet_without_waiting(1, NARROW_CONSUMERS * NARROW_GROUP);
        }
        for (int32_t i = work.first; i < work.tiles; i += work.step) {
            narrow_consume_tile<KIND, WIDTH, CLUSTER, ORDERED>(work, narrow_find<WIDTH, CLUSTER>(work, i),
                                                               places);
        }
        if (ORDERED && mine == 0) {
            sl_meet(1, NARROW_CONSUMERS * NARROW_GROUP);
        }
    }
    /* Until the last copy to this block and the last arrival at its barriers. */
    sl_cluster_arrive<CLUSTER>();
    sl_cluster_wait<CLUSTER>();
#endif
}

template <int KIND, int WIDTH, int CLUSTER, bool ORDERED> static cudaError_t narrow_allow(int bytes) {
    return sl_allow_shared(narrow_kernel<KIND, WIDTH, CLUSTER, ORDERED>, bytes);
}

template <int KIND, int WIDTH, int CLUSTER, bool ORDERED>
static cudaError_t narrow_launch(const sl_cuda_context *context, const sl_narrow_plan *plan,
                                 const sl_launch_shape *shape, cudaStream_t stream) {
    return sl_launch(context, stream, *shape, narrow_kernel<KIND, WIDTH, CLUSTER, ORDERED>, *plan);
}

#define NARROW_SHAPE(KIND, WIDTH, CLUSTER, ORDERED, TIME)                                                    \
    {                                                                                                        \
        WIDTH, CLUSTER, TIME, narrow_memory<WIDTH>::bytes, narrow_allow<KIND, WIDTH, CLUSTER, ORDERED>,      \
            narrow_launch<KIND, WIDTH, CLUSTER, ORDERED>                                                     \
    }

#endif
