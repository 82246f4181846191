/* Products of experts' rows in eight bits, many rows, whose weights are decoded in the tile: classes "s8/256"
 * and "e4m3/128" (narrow.h), with codes as narrow_weights.h says.
 *
 * A cluster of two blocks takes 256 of an expert's rows by 128 outputs, 128 rows a block. Decoding costs more
 * instructions than anything else here: a weight is decoded, compared for the scale and rounded again. So
 * each block decodes the weights of 64 outputs alone and stores the codes in both blocks' shared memory. 64
 * rows that an expert does not have cost no products. Experts are not decoded to a scratch: memory would
 * write and read every one of them in every step.
 *
 * A stage of the ring is 256 columns. Two warpgroups decode. Their warps bring bytes of the file ahead, each
 * those that it decodes, and x, row by row because an expert's rows are scattered. Two more multiply and add,
 * 64 rows each, as those of narrow.cuh do.
 *
 * Gated: a tile has 64 outputs of gates and the same of values, and what is stored is the activation. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_EXPERTS_CUH
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_EXPERTS_CUH

#include "backend/cuda/common/linear_arguments.cuh"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/narrow/narrow.cuh"
#include "backend/cuda/linear/narrow/narrow_codes.cuh"
#include "backend/cuda/linear/narrow/narrow_experts.h"

enum {
    EXPERTS_BLOCKS = 2, /* of a cluster */
    EXPERTS_COLUMNS = 256,
    EXPERTS_OUTPUTS = 128,
    EXPERTS_DECODED = EXPERTS_OUTPUTS / EXPERTS_BLOCKS, /* outputs, by a block */
    EXPERTS_HEIGHT = EXPERTS_BLOCKS * SL_NARROW_ROWS,
    EXPERTS_CONSUMERS = NARROW_CONSUMERS * NARROW_GROUP, /* threads */
    EXPERTS_DECODERS = 2 * NARROW_GROUP,
    EXPERTS_THREADS = EXPERTS_CONSUMERS + EXPERTS_DECODERS,
    EXPERTS_GIVEN = 88, /* registers of decoders, of consumers */
    EXPERTS_TAKEN = 168,
    EXPERTS_WARPS = EXPERTS_DECODERS / SL_WARP,
    EXPERTS_WARP_OUTPUTS = EXPERTS_DECODED / EXPERTS_WARPS,
    EXPERTS_WARP_ROWS = SL_NARROW_ROWS / EXPERTS_WARPS, /* of x */
    EXPERTS_LANES = EXPERTS_COLUMNS / WEIGHT_COLUMNS,   /* that decode one output */
    EXPERTS_PASSES = EXPERTS_WARP_OUTPUTS * EXPERTS_LANES / SL_WARP,
    EXPERTS_STAGES = 2,
    EXPERTS_RAW = 2, /* stages of the file's bytes */
    EXPERTS_HALF_BYTES = SL_NARROW_ROWS * NARROW_STEP,
    EXPERTS_X_BYTES = 2 * EXPERTS_HALF_BYTES,
    EXPERTS_STAGE_BYTES = 2 * EXPERTS_X_BYTES /* x, then weights: two halves of 128 columns each, swizzled */
};
static_assert((int)EXPERTS_OUTPUTS == (int)SL_NARROW_ROWS, "x and weights take as much room");

/* What a launch takes. */
typedef struct experts_args {
    sl_narrow_product product; /* but for the weights */
    sl_cuda_weight weights[2]; /* gated: of gates and of values; else the first alone */
    int32_t x_share;           /* rows of y that read one row of x */
    bool gated;
    sl_gating gating;
} experts_args;

/* Places in shared memory, from an address that is a multiple of 1024 on. */
template <int TYPE, int KIND> struct experts_memory {
    enum {
        groups = KIND == SL_NARROW_S8 ? 1 : 2, /* of a stage's columns */
        chunk = EXPERTS_COLUMNS / sl_block_size<TYPE>::ELEMENTS * sl_block_size<TYPE>::BYTES,
        stride = (chunk + 30) / 16 * 16, /* it may begin anywhere in a piece of 16 bytes */
        scales_bytes = groups * EXPERTS_OUTPUTS * 4,
        scales = EXPERTS_STAGES * EXPERTS_STAGE_BYTES, /* [stage][group][output] */
        raw = scales + EXPERTS_STAGES * scales_bytes,
        results = raw + EXPERTS_RAW * EXPERTS_DECODED * stride,
        offsets = results + NARROW_WARPS * NARROW_BATCH_BYTES, /* of rows of x */
        schedule = offsets + SL_NARROW_ROWS * 4,
        barriers = (schedule + (int)sizeof(narrow_schedule) + 7) / 8 * 8,
        bytes = barriers + 8 * 2 * EXPERTS_STAGES + 1024,
        counted = groups * EXPERTS_DECODED * 4 + EXPERTS_DECODED * EXPERTS_COLUMNS /* from the other block */
    };
    static_assert(bytes <= 227 * 1024, "a block's shared memory");
};

#if SL_HAS_WGMMA

typedef struct experts_work {
    const experts_args &args;
    const narrow_schedule &schedule;
    uint32_t base; /* of shared memory */
    unsigned char *memory;
    int32_t rank, wide, steps;
    int32_t first, stride, tiles; /* of the cluster: `first`, `first` + `stride`, ... below `tiles` */
} experts_work;

typedef struct experts_tile {
    int32_t index, expert;
    int32_t row, end; /* the block's rows of the schedule: the first, and behind the expert's last */
    int32_t column;   /* of tiles side by side */
} experts_tile;

/* From the tile before, whose expert is this one's or comes earlier; `index` is below the number of tiles. */
static __device__ __forceinline__ void experts_find(const experts_work &work, int32_t index,
                                                    experts_tile *tile) {
    const int32_t high = index / work.wide;
    tile->index = index;
    tile->column = index - high * work.wide;
#pragma unroll 1
    while (work.schedule.starts[tile->expert + 1] <= high) {
        tile->expert++;
    }
    tile->row = work.schedule.offsets[tile->expert] +
                (high - work.schedule.starts[tile->expert]) * EXPERTS_HEIGHT + work.rank * SL_NARROW_ROWS;
    tile->end = work.schedule.offsets[tile->expert + 1];
}

template <int TYPE, int KIND> struct experts_barriers {
    typedef experts_memory<TYPE, KIND> memory;
    static __device__ __forceinline__ uint32_t full(uint32_t base, uint32_t i) {
        return base + memory::barriers + 8 * i;
    }
    static __device__ __forceinline__ uint32_t empty(uint32_t base, uint32_t i) {
        return full(base, EXPERTS_STAGES + i);
    }
};

/* ---- the decoders ---- */

/* The file's bytes of output `output` of the block's. Behind the last one comes the last one again, which
 * nobody stores. */
static __device__ __forceinline__ const unsigned char *
experts_bytes(const experts_work &work, const experts_tile &tile, int32_t output) {
    const bool gated = work.args.gated;
    const sl_cuda_weight &weight = work.args.weights[gated ? work.rank : 0];
    const int32_t at = gated ? tile.column * EXPERTS_DECODED + output
                             : tile.column * EXPERTS_OUTPUTS + work.rank * EXPERTS_DECODED + output;
    return weight.data + (uint64_t)(uint32_t)tile.expert * weight.expert_bytes +
           (uint64_t)(uint32_t)min(at, weight.rows - 1) * weight.row_bytes;
}

/* Where in a piece of 16 bytes they begin, at the columns of a step. Blocks of whole pieces begin with one.
 */
template <int TYPE, int KIND>
static __device__ __forceinline__ uint32_t experts_shift(const experts_work &work, const experts_tile &tile,
                                                         int32_t output, int32_t step) {
    typedef experts_memory<TYPE, KIND> memory;
    if constexpr (memory::chunk % 16 == 0) {
        return 0;
    } else {
        return ((uint32_t)(uint64_t)experts_bytes(work, tile, output) + (uint32_t)(step * memory::chunk)) %
               16;
    }
}

/* Where bytes are asked for: ahead of where they are decoded. */
typedef struct experts_ahead {
    experts_tile tile;
    int32_t step;
    const unsigned char *row; /* the lane's, at the step's columns */
    sl_ring_place<EXPERTS_RAW> place;
} experts_ahead;

/* A warp's outputs; four lanes take one. A group of copies, empty behind the last tile. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void experts_bring_bytes(const experts_work &work, experts_ahead *ahead) {
    typedef experts_memory<TYPE, KIND> memory;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t warp = ((int32_t)threadIdx.x - EXPERTS_CONSUMERS) / SL_WARP;
    const int32_t output = warp * EXPERTS_WARP_OUTPUTS + lane / 4;
    if (ahead->tile.index < work.tiles) {
        if (ahead->step == 0) {
            experts_find(work, ahead->tile.index, &ahead->tile);
            ahead->row = experts_bytes(work, ahead->tile, output);
        }
        const uint32_t shift = memory::chunk % 16 == 0 ? 0 : (uint32_t)(uint64_t)ahead->row % 16;
        const uint32_t to =
            work.base + memory::raw + (ahead->place.at * EXPERTS_DECODED + (uint32_t)output) * memory::stride;
#pragma unroll
        for (int i = 0; i < (memory::stride / 16 + 3) / 4; i++) {
            const uint32_t piece = (uint32_t)(lane % 4 + 4 * i);
            if (16 * piece < shift + memory::chunk) {
                sl_copy_16(to + 16 * piece, ahead->row - shift + 16 * piece);
            }
        }
        ahead->row += memory::chunk;
        ahead->place.next();
        ahead->step++;
        if (ahead->step == work.steps) {
            ahead->step = 0;
            ahead->tile.index += work.stride;
        }
    }
    sl_copy_commit();
}

/* Where a warp's rows of x begin, in units of 16 bytes, to shared memory. Returns how many there are. */
template <int TYPE, int KIND>
static __device__ __forceinline__ int32_t experts_find_x(const experts_work &work, const experts_tile &tile) {
    const sl_narrow_product &product = work.args.product;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t first = ((int32_t)threadIdx.x - EXPERTS_CONSUMERS) / SL_WARP * EXPERTS_WARP_ROWS;
    uint32_t *const offsets = (uint32_t *)(void *)(work.memory + experts_memory<TYPE, KIND>::offsets) + first;
    const int32_t count = tile.end - tile.row - first;
    __syncwarp(); /* those of the tile before have been read */
    if (lane < EXPERTS_WARP_ROWS && lane < count) {
        const uint32_t row = (uint32_t)product.list[tile.row + first + lane] / (uint32_t)work.args.x_share;
        offsets[lane] = (uint32_t)((row * product.x_row_bytes) >> 4);
    }
    __syncwarp();
    return count;
}

/* A stage's columns of `count` rows at most; sixteen lanes take one. A group of copies. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void experts_bring_x(const experts_work &work, int32_t count, int32_t step,
                                                       uint32_t stage) {
    const uint32_t lane = threadIdx.x % SL_WARP, piece = lane % 8;
    const uint32_t first = (threadIdx.x - EXPERTS_CONSUMERS) / SL_WARP * EXPERTS_WARP_ROWS;
    const uint32_t *const offsets =
        (const uint32_t *)(void *)(work.memory + experts_memory<TYPE, KIND>::offsets) + first;
    const unsigned char *from =
        work.args.product.x + (uint64_t)(uint32_t)step * EXPERTS_COLUMNS + lane % 16 * 16;
    const uint32_t to = stage + lane % 16 / 8 * EXPERTS_HALF_BYTES + first * NARROW_STEP;
#pragma unroll 4 /* all at once leave too few registers for decoding */
    for (int i = 0; i < EXPERTS_WARP_ROWS / 2; i++) {
        const uint32_t row = lane / 16 + 2 * (uint32_t)i;
        if ((int32_t)row < count) {
            sl_copy_16(to + row * NARROW_STEP + 16 * (piece ^ row % 8), from + (uint64_t)offsets[row] * 16);
        }
    }
    sl_copy_commit();
}

/* A lane's codes and, of its group's first lane, the scale: here and in the other block. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void experts_store(const experts_work &work, uint32_t stage, int32_t output,
                                                     const weight_codes &made) {
    typedef experts_memory<TYPE, KIND> memory;
    enum { GROUP_LANES = EXPERTS_LANES / memory::groups };
    const uint32_t lane = threadIdx.x % EXPERTS_LANES, other = 1 - (uint32_t)work.rank;
    const uint32_t row = (uint32_t)(work.rank * EXPERTS_DECODED + output);
    const uint32_t to =
        EXPERTS_STAGE_BYTES * stage + EXPERTS_X_BYTES + lane / 4 * EXPERTS_HALF_BYTES + row * NARROW_STEP;
    const uint32_t full = experts_barriers<TYPE, KIND>::full(work.base, stage);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t at = to + 16 * ((lane % 4 * 2 + (uint32_t)i) ^ row % 8);
        const uint4 four = make_uint4(made.words[4 * i], made.words[4 * i + 1], made.words[4 * i + 2],
                                      made.words[4 * i + 3]);
        *(uint4 *)(void *)(work.memory + at) = four;
        sl_store_four_counted(work.base + at, four, full, other);
    }
    if (lane % GROUP_LANES == 0) {
        const uint32_t at =
            memory::scales + stage * memory::scales_bytes + (lane / GROUP_LANES * EXPERTS_OUTPUTS + row) * 4;
        *(float *)(void *)(work.memory + at) = made.scale;
        sl_store_counted(work.base + at, made.scale, full, other);
    }
}

/* A warp's outputs of one stage. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void experts_decode(const experts_work &work, const experts_tile &tile,
                                                      int32_t step, uint32_t raw, uint32_t stage) {
    typedef experts_memory<TYPE, KIND> memory;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t warp = ((int32_t)threadIdx.x - EXPERTS_CONSUMERS) / SL_WARP;
#pragma unroll 1
    for (int32_t pass = 0; pass < EXPERTS_PASSES; pass++) {
        const int32_t output =
            warp * EXPERTS_WARP_OUTPUTS + pass * (SL_WARP / EXPERTS_LANES) + lane / EXPERTS_LANES;
        const uint32_t shift = experts_shift<TYPE, KIND>(work, tile, output, step);
        const unsigned char *from =
            work.memory + memory::raw + (raw * EXPERTS_DECODED + (uint32_t)output) * memory::stride + shift;
        weight_codes made;
        if constexpr (TYPE == SL_QTYPE_FP8_128) {
            take_codes(from, (uint32_t)(lane % EXPERTS_LANES), &made);
        } else {
            make_codes<TYPE, KIND>(from, (uint32_t)(lane % EXPERTS_LANES), &made);
        }
        experts_store<TYPE, KIND>(work, stage, output, made);
    }
}

template <int TYPE, int KIND>
static __device__ __forceinline__ void experts_decode_all(const experts_work &work) {
    typedef experts_memory<TYPE, KIND> memory;
    typedef experts_barriers<TYPE, KIND> barriers;
    const bool first = threadIdx.x == EXPERTS_CONSUMERS;
    const bool arrives = threadIdx.x % SL_WARP < SL_ARRIVING_LANES;
    sl_ring_place<EXPERTS_STAGES> stage;
    sl_ring_place<EXPERTS_RAW> raw;
    experts_ahead ahead = {{work.first, 0, 0, 0, 0}, 0, NULL, {}};
    experts_tile tile = ahead.tile;
    /* Three groups of copies lie between a stage's bytes and where they are waited for. */
    experts_bring_bytes<TYPE, KIND>(work, &ahead);
    sl_copy_commit();
    experts_bring_bytes<TYPE, KIND>(work, &ahead);
    for (int32_t index = work.first; index < work.tiles; index += work.stride) {
        experts_find(work, index, &tile);
        const int32_t count = experts_find_x<TYPE, KIND>(work, tile);
#pragma unroll 1
        for (int32_t step = 0; step < work.steps; step++) {
            const uint32_t full = barriers::full(work.base, stage.at);
            sl_barrier_wait(barriers::empty(work.base, stage.at), stage.parity ^ 1);
            if (first) {
                sl_barrier_expect(full, memory::counted);
            }
            experts_bring_x<TYPE, KIND>(work, count, step, work.base + stage.at * EXPERTS_STAGE_BYTES);
            sl_copy_wait<3>();
            __syncwarp();
            experts_decode<TYPE, KIND>(work, tile, step, raw.at, stage.at);
            __syncwarp();
            sl_barrier_arrive_if(full, arrives);
            sl_barrier_arrive_copied(full);
            experts_bring_bytes<TYPE, KIND>(work, &ahead);
            stage.next();
            raw.next();
        }
    }
    sl_copy_wait_all();
}

/* ---- the consumers ---- */

/* Where scales of x of a lane's two rows begin, in floats behind x. */
typedef struct experts_x_scales {
    uint32_t rows[2];
} experts_x_scales;

static __device__ __forceinline__ experts_x_scales experts_scales_of(const experts_work &work,
                                                                     const experts_tile &tile) {
    const sl_narrow_product &product = work.args.product;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    experts_x_scales scales;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t row = min(tile.row + 16 * warp + 8 * i + lane / 4, tile.end - 1);
        const uint32_t at = (uint32_t)product.list[row] / (uint32_t)work.args.x_share;
        scales.rows[i] = (uint32_t)((at * product.x_row_bytes + product.x_scales) >> 2);
    }
    return scales;
}

/* Products of a stage, and their sums. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void
experts_multiply(const experts_work &work, uint32_t stage, const float (&x_scales)[2][2],
                 typename narrow_numbers<KIND>::sum (&d)[EXPERTS_OUTPUTS / 2],
                 float (&sums)[EXPERTS_OUTPUTS / 2]) {
    typedef experts_memory<TYPE, KIND> memory;
    const uint32_t x = work.base + stage * EXPERTS_STAGE_BYTES, weights = x + EXPERTS_X_BYTES;
    const uint32_t own = x + threadIdx.x / NARROW_GROUP * (EXPERTS_HALF_BYTES / NARROW_CONSUMERS);
    const float *scales =
        (const float *)(const void *)(work.memory + memory::scales + stage * memory::scales_bytes) +
        threadIdx.x % 4 * 2;
#pragma unroll
    for (int group = 0; group < memory::groups; group++) {
        wgmma_fence();
        narrow_multiply<EXPERTS_OUTPUTS, true>(own + (uint32_t)group * EXPERTS_HALF_BYTES,
                                               weights + (uint32_t)group * EXPERTS_HALF_BYTES, d);
        if constexpr (memory::groups == 1) {
            narrow_multiply<EXPERTS_OUTPUTS, false>(own + EXPERTS_HALF_BYTES, weights + EXPERTS_HALF_BYTES,
                                                    d);
        }
        wgmma_wait<0>();
        wgmma_keep(d);
        const narrow_scales both = {{x_scales[group][0], x_scales[group][1]},
                                    scales + group * EXPERTS_OUTPUTS};
        narrow_promote<EXPERTS_OUTPUTS, false>(both, d, sums);
    }
}

template <int TYPE, int KIND>
static __device__ __forceinline__ void experts_consume_all(const experts_work &work) {
    typedef experts_memory<TYPE, KIND> memory;
    typedef experts_barriers<TYPE, KIND> barriers;
    const uint32_t lane = threadIdx.x % SL_WARP;
    const bool arrives = lane < narrow_arriving(EXPERTS_BLOCKS);
    unsigned char *buffers = work.memory + memory::results;
    const float *x = (const float *)(const void *)work.args.product.x;
    sl_ring_place<EXPERTS_STAGES> stage;
    experts_tile tile = {work.first, 0, 0, 0, 0};
    for (int32_t index = work.first; index < work.tiles; index += work.stride) {
        typename narrow_numbers<KIND>::sum d[EXPERTS_OUTPUTS / 2] = {};
        float sums[EXPERTS_OUTPUTS / 2] = {};
        experts_find(work, index, &tile);
        const bool active = tile.row + (int32_t)(threadIdx.x / NARROW_GROUP) * 64 < tile.end;
        const experts_x_scales rows = experts_scales_of(work, tile);
#pragma unroll 1
        for (int32_t step = 0; step < work.steps; step++) {
            float x_scales[2][2]; /* [group][row]; they come while the stage is waited for */
#pragma unroll
            for (int i = 0; i < 2 * memory::groups; i++) {
                x_scales[i / 2][i % 2] = x[rows.rows[i % 2] + (uint32_t)(step * memory::groups + i / 2)];
            }
            sl_barrier_wait(barriers::full(work.base, stage.at), stage.parity);
            sl_fence_shared();
            if (active) {
                experts_multiply<TYPE, KIND>(work, stage.at, x_scales, d, sums);
            }
            __syncwarp();
            sl_barrier_arrive_there_if(barriers::empty(work.base, stage.at), lane % EXPERTS_BLOCKS, arrives);
            stage.next();
        }
        if (!active) {
            continue;
        }
        narrow_tile part = {tile.row, tile.end, tile.expert, tile.column * EXPERTS_OUTPUTS};
        if (work.args.gated) {
            float activated[EXPERTS_OUTPUTS / 4];
#pragma unroll
            for (int i = 0; i < EXPERTS_OUTPUTS / 4; i++) {
                activated[i] = sl_gate<SL_CUDA_TAKES_OAI(TYPE)>(work.args.gating, sums[i],
                                                                sums[i + EXPERTS_OUTPUTS / 4]);
            }
            part.output = tile.column * EXPERTS_DECODED;
            narrow_store_tile<EXPERTS_OUTPUTS / 2>(work.args.product, part, buffers, activated);
        } else {
            narrow_store_tile<EXPERTS_OUTPUTS>(work.args.product, part, buffers, sums);
        }
    }
}

#endif

template <int TYPE, int KIND>
static __global__ void __launch_bounds__(EXPERTS_THREADS, 1)
    experts_kernel(const __grid_constant__ experts_args args) {
    sl_wait_for_inputs();
#if SL_HAS_WGMMA
    typedef experts_memory<TYPE, KIND> places;
    typedef experts_barriers<TYPE, KIND> barriers;
    extern __shared__ __align__(128) unsigned char start[];
    const uint32_t window = sl_shared_address(start), base = (window + 1023) / 1024 * 1024;
    unsigned char *const memory = start + (base - window);
    narrow_schedule *schedule = (narrow_schedule *)(void *)(memory + places::schedule);
    const int32_t high =
        sl_plan_expert_tiles<EXPERTS_HEIGHT>(args.product.offsets, args.product.experts, schedule);
    const int32_t width = args.gated ? EXPERTS_DECODED : EXPERTS_OUTPUTS;
    const int32_t wide = (args.product.outputs + width - 1) / width;
    const experts_work work = {args,
                               *schedule,
                               base,
                               memory,
                               (int32_t)blockIdx.x % EXPERTS_BLOCKS,
                               wide,
                               args.product.columns / EXPERTS_COLUMNS,
                               (int32_t)blockIdx.x / EXPERTS_BLOCKS,
                               (int32_t)gridDim.x / EXPERTS_BLOCKS,
                               high * wide};
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < EXPERTS_STAGES; i++) {
            sl_barrier_init(barriers::full(base, i),
                            EXPERTS_DECODERS + EXPERTS_WARPS * SL_ARRIVING_LANES + 1);
            sl_barrier_init(barriers::empty(base, i), NARROW_WARPS * narrow_arriving(EXPERTS_BLOCKS));
        }
        sl_barriers_ready();
    }
    __syncthreads();
    sl_cluster_arrive<EXPERTS_BLOCKS>();
    sl_cluster_wait<EXPERTS_BLOCKS>();
    if (threadIdx.x >= EXPERTS_CONSUMERS) {
        sl_give_registers<EXPERTS_GIVEN>();
        experts_decode_all<TYPE, KIND>(work);
    } else {
        sl_take_registers<EXPERTS_TAKEN>();
        experts_consume_all<TYPE, KIND>(work);
    }
    /* Until the last store to this block and the last arrival at its barriers. */
    sl_cluster_arrive<EXPERTS_BLOCKS>();
    sl_cluster_wait<EXPERTS_BLOCKS>();
#endif
}

/* ---- launches ---- */

template <int TYPE, int KIND>
static cudaError_t experts_launch(const sl_cuda_context *context, const experts_args &args,
                                  cudaStream_t stream) {
    const sl_narrow_product &product = args.product;
    const int32_t width = args.gated ? EXPERTS_DECODED : EXPERTS_OUTPUTS;
    const int64_t most =
        (int64_t)((product.outputs + width - 1) / width) *
        (product.rows / EXPERTS_HEIGHT + (product.experts < product.rows ? product.experts : product.rows));
    const int64_t clusters =
        context->processors / EXPERTS_BLOCKS > 0 ? context->processors / EXPERTS_BLOCKS : 1;
    const sl_launch_shape shape = {dim3((unsigned)(EXPERTS_BLOCKS * (most < clusters ? most : clusters))),
                                   EXPERTS_THREADS, experts_memory<TYPE, KIND>::bytes, EXPERTS_BLOCKS};
    return sl_launch(context, stream, shape, experts_kernel<TYPE, KIND>, args);
}

static inline float *experts_floats(const sl_cuda_operand &operand) {
    return (float *)(void *)operand.data + operand.column;
}

/* All but weights and y's place. */
template <int KIND>
static experts_args experts_args_of(const sl_cuda_context *context, const sl_cuda_op *op) {
    const sl_cuda_operand *x = &op->in[0];
    experts_args args = {};
    args.x_share = sl_linear_share(context, op);
    args.product.kind = (sl_narrow_kind)KIND;
    args.product.rows = op->rows[op->out[0].rows];
    args.product.columns = op->weights[0].columns;
    args.product.x = x->data;
    args.product.x_row_bytes = x->row_bytes;
    args.product.x_scales = sl_narrow_x_scales(args.product.kind, x->width);
    args.product.experts = op->weights[0].experts;
    args.product.offsets = op->in[2].head;
    args.product.list = (const int32_t *)(const void *)op->in[2].data;
    return args;
}

template <int TYPE, int KIND>
static cudaError_t experts_run(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const sl_cuda_operand *y = &op->out[0], *residual = &op->in[3];
    experts_args args = experts_args_of<KIND>(context, op);
    cudaError_t code = cudaSuccess;
    for (int32_t s = 0; s < op->weight_count && !code; s++) {
        const sl_cuda_weight *weight = &op->weights[s];
        args.weights[0] = *weight;
        args.product.outputs = weight->rows;
        args.product.y = experts_floats(*y) + weight->column;
        args.product.y_row_bytes = y->row_bytes;
        args.product.bias = weight->bias;
        args.product.residual = residual->data ? experts_floats(*residual) + weight->column : NULL;
        args.product.residual_row_bytes = residual->row_bytes;
        code = experts_launch<TYPE, KIND>(context, args, stream);
    }
    return code;
}

/* LINEAR, ACTIVATE: op[0], op[1]. */
template <int TYPE, int KIND>
static cudaError_t experts_run_gated(const sl_cuda_context *context, const sl_cuda_op *op,
                                     cudaStream_t stream) {
    const int32_t width = op[1].op->u.activate.width;
    experts_args args = experts_args_of<KIND>(context, op);
    args.weights[0] = op->weights[0];
    args.weights[1] = op->weights[op->weight_count - 1];
    if (op->weight_count == 1) { /* gates and values are one weight */
        args.weights[1].data += (uint64_t)(uint32_t)width * args.weights[0].row_bytes;
        args.weights[0].rows = args.weights[1].rows = width;
    }
    args.gated = true;
    args.gating = sl_gating_of(op[1].op);
    args.product.outputs = width;
    args.product.y = experts_floats(op[1].out[0]);
    args.product.y_row_bytes = op[1].out[0].row_bytes;
    return experts_launch<TYPE, KIND>(context, args, stream);
}

template <int KIND, int... TYPES> static cudaError_t experts_allow(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    if (facts->has_wgmma) {
        ((code =
              code ? code : sl_allow_shared(experts_kernel<TYPES, KIND>, experts_memory<TYPES, KIND>::bytes)),
         ...);
    }
    return code;
}

/* Weights are rounded by the reference too (FP8_128 are not): see narrow_tile.c. */
#define EXPERTS(ID, type_name, shape, class_name, FORMAT, narrow_kind, arranged, asked, most_error)          \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" shape,                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##FORMAT,                                                          \
                   .tolerance = most_error,                                                                  \
                   .batched = true,                                                                          \
                   .precisions = asked,                                                                      \
                   .declines = sl_narrow_experts_declines},                                                  \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .least_rows = SL_NARROW_EXPERTS_LEAST_ROWS,   \
        .run = experts_run<SL_QTYPE_##ID, narrow_kind>,                                                      \
        .gated = experts_run_gated<SL_QTYPE_##ID, narrow_kind>                                               \
    }
#define E4M3_EXPERTS(ID, type_name, asked)                                                                   \
    EXPERTS(ID, type_name, "e4m3-experts", "e4m3/128", E4M3_128, SL_NARROW_E4M3, SL_CUDA_E4M3_EXPERTS,       \
            asked, 5e-3f)
#define S8_EXPERTS(ID, type_name, asked)                                                                     \
    EXPERTS(ID, type_name, "s8-experts", "s8/256", Q8_256, SL_NARROW_S8, SL_CUDA_S8_EXPERTS, asked, 1e-4f)

#endif
