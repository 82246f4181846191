/* The choice of one row's experts and all their products in class "bf16/k16" (k16.h), in two launches: gate
 * and up with their activation as BF16, then down and the experts' sum. The bits of the ops' own kernels
 * (router.cu, k16_rows4.cuh, row_ops.cu).
 *
 * Chains of products are as long as a weight row, so what counts is that all of them run at once: a warp has
 * one tile of one expert. Of gate and up a block's tiles lie one behind the other, whichever experts they are
 * of. A block of down has one tile, a warp for each expert, so that their sum is the block's own. Its weights
 * are on their way while gate and up are multiplied. Every block chooses the experts by
 * itself, of gate and up every warp its own: that takes less time than to wait for another's choice. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_EXPERTS_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_EXPERTS_CUH

#include "backend/cuda/linear/k16/k16_rows4.cuh"
#include "backend/cuda/router/router.cuh"
#include "backend/cuda/rows/row_ops.cuh"

/* Experts of a lane, and of a row. */
enum {
    THIN_CHOICE_FEW = 4,
    THIN_CHOICE_MANY = 8,
    THIN_EXPERTS = THIN_CHOICE_MANY * SL_WARP,
    THIN_EXPERTS_USED = THIN_WARPS,
    THIN_DOWN_BYTES = 100 * 1024,      /* of shared memory: beside a block of gate and up */
    THIN_DOWN_MOST = THIN_BYTES - 1024 /* that and what the kernel declares is what a block can have */
};

typedef struct thin_experts_args {
    thin_args thin; /* gated: tiles of all experts; down: those of one */
    sl_op_router router;
    sl_cuda_operand logits;
    const float *bias; /* of the choice, or NULL */
    const sl_step_header *header;
    int32_t expert_tiles;    /* gated: of one expert */
    sl_combine_args combine; /* down's */
} thin_experts_args;

/* Down's shared memory has x of each warp, one behind the other, then outputs [used][CHAIN_ROWS]. */
template <int TYPE>
static __host__ __device__ __forceinline__ uint32_t thin_down_bytes(const thin_args &args,
                                                                    uint32_t *outputs) {
    const thin_memory memory = thin_memory_of<TYPE>(args);
    *outputs = memory.x + (uint32_t)args.warps * memory.x_row;
    return *outputs + (uint32_t)args.warps * CHAIN_ROWS * (uint32_t)sizeof(float);
}

#if SL_HAS_WGMMA

template <int TYPE>
static __device__ __forceinline__ void thin_begin_ring(const thin_work &work, bool brings) {
    if (brings) {
        for (int32_t slot = 0; slot < work.args.stages; slot++) {
            sl_barrier_init(thin_barrier<TYPE>(work, slot), 1);
        }
        sl_barriers_ready();
    }
}

/* The whole ring, by one lane. */
template <int TYPE>
static __device__ __forceinline__ void thin_fill_ring(const thin_work &work, thin_copies &copies,
                                                      bool brings) {
    for (int32_t slot = 0; brings && slot < work.args.stages; slot++) {
        thin_bring<TYPE>(work, copies, slot);
    }
    __syncwarp();
}

/* One tile of one expert. */
static __device__ __forceinline__ void thin_take_tile(thin_work &work, int32_t tile) {
    work.first_tile = tile;
    work.end_tile = tile + 1;
    work.tile_step = 1;
}

/* A row of BF16 to x in shared memory, by `threads` threads of which this one is number `thread`. */
template <int TYPE>
static __device__ __forceinline__ void thin_stage_row(const thin_work &work, int32_t row, int32_t thread,
                                                      int32_t threads) {
    enum { AT_ONCE = 4 };
    const sl_cuda_operand &x = work.args.x;
    const int32_t eights = work.args.weights[0].columns / 8;
    const uint4 *from =
        (const uint4 *)((const uint16_t *)(x.data + (uint64_t)(uint32_t)row * x.row_bytes) + x.column);
    uint32_t *to = (uint32_t *)(work.shared + work.memory.x);
#pragma unroll 1
    for (int32_t first = thread; first < eights; first += AT_ONCE * threads) {
        uint4 words[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int32_t at = first + i * threads;
            words[i] = at < eights ? from[at] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i * threads < eights) {
                chain_put_x<TYPE>(to, first + i * threads, words[i]);
            }
        }
    }
}

/* An output of the experts' sum, as sl_combine_quad. outputs: [used][CHAIN_ROWS]. */
static __device__ __forceinline__ void thin_combine(const sl_combine_args &combine, int32_t output,
                                                    const float *outputs, const float *weights) {
    float sum = 0;
    for (int32_t rank = 0; rank < combine.combine.used; rank++) {
        sum = sum + weights[rank] * outputs[rank * CHAIN_ROWS];
    }
    if (combine.shared.data) {
        const float weight = combine.shared_gate.data ? sl_sigmoid(*sl_f32(combine.shared_gate, 0)) : 1.0f;
        sum = sum + sl_f32(combine.shared, 0)[output] * weight;
    }
    if (combine.residual.data) {
        sum = sum + sl_f32(combine.residual, 0)[output];
    }
    sl_f32(combine.y, 0)[output] = sum;
}
#endif

template <int TYPE, int EACH>
static __global__ void __launch_bounds__(THIN_THREADS, 1)
    thin_gated_kernel(const __grid_constant__ thin_experts_args all) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char shared[];
    const thin_args &args = all.thin;
    const int32_t block = (int32_t)blockIdx.x;
    thin_work work = thin_work_of<TYPE>(args, shared, chain_warp());
    const int32_t tile = block * args.each + min(block, args.more) + work.warp;
    const int32_t end = (block + 1) * args.each + min(block + 1, args.more);
    const bool works = work.warp < args.warps && tile < end && all.header->rows > 0;
    const bool brings = works && work.lane == 0;
    const int32_t rank = works ? tile / all.expert_tiles : 0;
    thin_take_tile(work, tile - rank * all.expert_tiles);
    thin_copies copies = {work.first_tile, 0};
    thin_begin_ring<TYPE>(work, brings);
    sl_wait_for_inputs();
    sl_let_next_begin();                                            /* not earlier: see thin_down_kernel */
    const int32_t idle = args.warps == THIN_WARPS ? 0 : args.warps; /* warps from here on bring x */
    if (works) {
        sl_ranks<EACH> ranks;
        ranks.init(all.router, all.bias, sl_f32(all.logits, 0));
        uint32_t expert = 0;
#pragma unroll 1
        for (int32_t found = 0; found <= rank; found++) {
            expert = ranks.next();
        }
        work.expert = (int32_t)expert;
        thin_fill_ring<TYPE>(work, copies, brings);
    }
    if (work.warp >= idle) {
        thin_stage_row<TYPE>(work, 0, (int32_t)threadIdx.x - idle * SL_WARP, THIN_THREADS - idle * SL_WARP);
    }
    __syncthreads();
    work.y_row = rank;
    if (works) {
        thin_stream<TYPE, false>(
            work, copies, [] {},
            [&work](const float(&sums)[4], int32_t) {
                thin_store_tile<TYPE>(work, sums, work.first_tile, 1);
            });
    }
#else
    (void)all;
    sl_wait_for_inputs();
#endif
}

/* A warp for each expert, blockIdx.x is the tile. Chooses the experts, and asks for their weights, before it
 * waits for its inputs: it is launched behind thin_gated_kernel, which lets it begin only when the kernels in
 * front of that have ended, and it is they who wrote the logits. Those must be read past the first cache,
 * which may still have an earlier layer's. */
template <int TYPE>
static __global__ void __launch_bounds__(THIN_THREADS, 1)
    thin_down_kernel(const __grid_constant__ thin_experts_args all) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ int32_t experts[THIN_EXPERTS_USED];
    __shared__ float weights[THIN_EXPERTS_USED];
    const thin_args &args = all.thin;
    thin_work work = thin_work_of<TYPE>(args, shared, chain_warp());
    uint32_t first_output;
    thin_down_bytes<TYPE>(args, &first_output);
    float *outputs = (float *)(void *)(shared + first_output);
    const int32_t rank = work.warp;
    const bool valid = all.header->rows > 0, brings = valid && work.lane == 0;
    thin_take_tile(work, (int32_t)blockIdx.x);
    work.memory.x += (uint32_t)rank * work.memory.x_row;
    thin_copies copies = {work.first_tile, 0};
    thin_begin_ring<TYPE>(work, brings);
    if (rank == 0) { /* one warp alone: what it does now is taken from gate and up */
        const sl_chosen mine = sl_choose<THIN_CHOICE_MANY>(all.router, all.bias, sl_f32(all.logits, 0));
        if (work.lane < all.router.used) {
            experts[work.lane] = (int32_t)mine.expert;
            weights[work.lane] = mine.weight;
        }
    }
    __syncthreads();
    work.expert = experts[rank];
    thin_fill_ring<TYPE>(work, copies, brings);
    sl_wait_for_inputs();
    sl_let_next_begin();
    if (!valid) {
        return;
    }
    thin_stage_row<TYPE>(work, rank, work.lane, SL_WARP);
    __syncwarp();
    thin_stream<TYPE, false>(
        work, copies, [] {},
        [&](const float(&sums)[4], int32_t) {
            const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
            const int32_t output = work.first_tile * CHAIN_ROWS + work.lane / 4;
            const float *bias = args.weights[0].bias;
            if (work.lane % 4 == 0) {
                bias = bias ? bias + (int64_t)work.expert * args.weights[0].rows + output : NULL;
                for (int i = 0; i < 2; i++) {
                    const float sum = sums[2 * i] * scale;
                    const bool biased = bias && output + 8 * i < args.weights[0].rows;
                    outputs[rank * CHAIN_ROWS + work.lane / 4 + 8 * i] = biased ? sum + bias[8 * i] : sum;
                }
            }
        });
    __syncthreads();
    const int32_t output = work.first_tile * CHAIN_ROWS + (int32_t)threadIdx.x;
    if (threadIdx.x < CHAIN_ROWS && output < args.weights[0].rows) {
        thin_combine(all.combine, output, outputs + threadIdx.x, weights);
    }
#else
    (void)all;
    sl_wait_for_inputs();
#endif
}

/* ---- launches; op: of the run, from ROUTER on ---- */

static inline thin_experts_args thin_experts_args_of(const sl_cuda_context *context, const sl_cuda_op *op,
                                                     const sl_cuda_op *linear) {
    thin_experts_args all = {};
    sl_linear_fill(context, linear, &all.thin);
    all.thin.ids = op->out[0]; /* nobody reads them: they say that there are experts */
    all.thin.ranges = all.thin.rows = 1;
    all.thin.exponent = THIN_EXPONENT;
    all.router = op->op->u.router;
    all.logits = op->in[0];
    all.bias = (const float *)(const void *)op->weights[0].data;
    all.header = context->header;
    return all;
}

template <int TYPE>
static cudaError_t thin_gated_launch(const sl_cuda_context *context, const sl_cuda_op *op,
                                     cudaStream_t stream) {
    thin_experts_args all = thin_experts_args_of(context, op, op + 1);
    thin_args &args = all.thin;
    all.expert_tiles = chain_gate(op, 2, &args);
    args.tiles = all.router.used * all.expert_tiles;
    int32_t blocks = context->processors;
    cudaError_t code = thin_fit<TYPE>(&args, blocks);
    while (!code && args.warps * blocks < args.tiles) { /* a tile for a warp */
        blocks = (args.tiles + args.warps - 1) / args.warps;
        code = thin_fit<TYPE>(&args, blocks);
    }
    code = code ? code : chain_make_maps<thin_layout<TYPE>>(&args);
    const uint32_t bytes = thin_memory_of<TYPE>(args).bytes;
    const sl_launch_shape shape = {dim3((unsigned)blocks), dim3(THIN_THREADS),
                                   bytes < THIN_LEAST_BYTES ? (uint32_t)THIN_LEAST_BYTES : bytes};
    return code ? code
           : all.router.experts <= THIN_CHOICE_FEW * SL_WARP
               ? sl_launch(context, stream, shape, thin_gated_kernel<TYPE, THIN_CHOICE_FEW>, all)
               : sl_launch(context, stream, shape, thin_gated_kernel<TYPE, THIN_CHOICE_MANY>, all);
}

template <int TYPE>
static cudaError_t thin_down_launch(const sl_cuda_context *context, const sl_cuda_op *op,
                                    cudaStream_t stream) {
    thin_experts_args all = thin_experts_args_of(context, op, op + 4);
    thin_args &args = all.thin;
    all.combine = sl_combine_args_of(op + 5);
    args.tiles = sl_linear_cut(op + 4, CHAIN_ROWS, args.first_tile);
    args.warps = all.router.used;
    const int32_t slots =
        (args.weights[0].columns / thin_layout<TYPE>::columns + thin_layout<TYPE>::chunks - 1) /
        thin_layout<TYPE>::chunks;
    args.stages = slots < 2 ? 2 : slots < THIN_STAGES ? slots : (int32_t)THIN_STAGES;
    uint32_t outputs, bytes;
    while ((bytes = thin_down_bytes<TYPE>(args, &outputs)) > THIN_DOWN_BYTES && args.stages > 2) {
        args.stages--;
    }
    cudaError_t code =
        bytes > THIN_DOWN_MOST ? cudaErrorInvalidConfiguration : chain_make_maps<thin_layout<TYPE>>(&args);
    const sl_launch_shape shape = {dim3((unsigned)args.tiles), dim3((unsigned)(args.warps * SL_WARP)), bytes};
    return code ? code : sl_launch(context, stream, shape, thin_down_kernel<TYPE>, all);
}

#endif
