/* The kernel of k16_rows8.cuh, and its launches. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_KERNEL_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_KERNEL_CUH

#include "backend/cuda/linear/k16/k16_rows8_chunks.cuh"
#include "backend/cuda/linear/k16/k16_rows8_lines.cuh"

#if SL_HAS_WGMMA

/* The first rounds of copies, and barriers; until weights may be read and x is to come. */
template <typename LAYOUT>
static __device__ __forceinline__ void slim_prepare(const slim_work &work, slim_copies &copies, bool brings) {
    const slim_args &args = work.args;
    if (brings) {
        const slim_ring ring = slim_ring_of<LAYOUT>(work);
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
        slim_bring_first<LAYOUT>(work, copies, 0, args.ahead);
    }
    __syncthreads();
}
#endif

/* BLOCKS: of a cluster, which share the ranges. */
template <typename LAYOUT, int BLOCKS>
static __global__ void __launch_bounds__(SLIM_BOUND, 1)
    slim_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ slim_args args) {
#if SL_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char shared[]; /* boxes of lines are moved by address */
    const slim_work work = slim_work_of<LAYOUT>(args, shared, chain_warp());
    const bool works = work.warp < args.warps && work.first_tile < work.end_tile;
    const bool brings = works && work.lane == 0;
    slim_copies copies = slim_copies_of(work, work.first_tile);
    sl_cluster_arrive<BLOCKS>();
    sl_let_next_begin();
    slim_prepare<LAYOUT>(work, copies, brings);
    /* Of the step block, which is there. In the smaller block reading it ahead does not pay. */
    int32_t count = LAYOUT::fills ? sl_count(context, args.y.rows) : 0;
    if (slim_brings_x<LAYOUT>(work)) {
        slim_x<LAYOUT> x(work);
        sl_wait_for_inputs();
        if (!LAYOUT::fills) {
            count = sl_count(context, args.y.rows);
        }
        x.load(work);
        if (!LAYOUT::fills && brings) {
            slim_bring_first<LAYOUT>(work, copies, args.ahead, args.stages);
        }
        __syncwarp();
        x.store(work);
    } else {
        slim_copy_on<LAYOUT>(args, shared, work.warp - SLIM_WARPS);
        sl_wait_for_inputs();
    }
    sl_cluster_wait<BLOCKS>(); /* the other blocks are there */
    if (work.warp >= SLIM_WARPS) {
        if (!LAYOUT::fills) {
            slim_copy_on<LAYOUT>(args, shared, work.warp - SLIM_WARPS);
        }
    } else {
        float residual[4] = {};
        if (works) {
            const auto begin = [&](int32_t round) {
                if (BLOCKS == 1 && work.local == 0) {
                    slim_residual(work, work.first_tile + round * work.tile_step, count, residual);
                }
            };
            const auto finish = [&](const float(&sums)[4], int32_t round) {
                if (BLOCKS == 1) {
                    slim_finish<LAYOUT>(work, sums, round, count, residual);
                } else {
                    slim_hand_over<BLOCKS>(work, sums, round);
                }
            };
            if constexpr (LAYOUT::lines) {
                slim_stream_lines<LAYOUT>(work, begin, finish);
            } else {
                slim_stream_chunks<LAYOUT>(work, begin, finish);
            }
        }
    }
    if (BLOCKS > 1) {
        slim_finish_cluster<LAYOUT, BLOCKS>(work, count);
    }
#else
    (void)context;
    (void)args;
    sl_wait_for_inputs();
#endif
}

/* ---- launches ---- */

template <typename LAYOUT> static cudaError_t slim_prepare_as() {
    const cudaError_t code = sl_allow_shared(slim_kernel<LAYOUT, 1>, SLIM_BYTES);
    return code ? code : sl_allow_shared(slim_kernel<LAYOUT, 2>, SLIM_BYTES);
}

template <int TYPE> static cudaError_t slim_prepare_type() {
    cudaError_t code = slim_prepare_as<slim_layout<TYPE, false>>();
    if constexpr (TYPE == SL_QTYPE_Q8_0) {
        code = code ? code : slim_prepare_as<slim_layout<TYPE, true>>();
    }
    return code;
}

/* Whether the block's threads can bring x at once. */
template <typename LAYOUT> static bool slim_takes_x(const slim_args &args) {
    enum { COLUMNS = LAYOUT::columns };
    const int32_t chunks = slim_first(args, 1) / COLUMNS, most = (chunks + SLIM_PARTS - 1) / SLIM_PARTS;
    return most * args.own * (COLUMNS / 8) <= SLIM_AT_ONCE * SLIM_X_STEP;
}

/* How args' tiles, ranges and rows are shared out; shape: NULL, or what is launched. False where not all
 * chains of a block that run at once have room for the fewest slots that a ring can have. */
template <typename LAYOUT> static bool slim_cut(slim_args *args, int32_t processors, sl_launch_shape *shape) {
    args->own = args->range_bytes ? 1 : args->ranges;
    if (args->own % 2 == 0 && !slim_takes_x<LAYOUT>(*args)) {
        args->own /= 2;
    }
    const int32_t blocks = args->ranges / args->own;
    const int32_t room = SLIM_WARPS / args->own; /* tiles that a block has at once */
    int32_t wanted = processors > blocks ? processors / blocks : 1;
    /* Processors without a block have room for the small kernels around: a quarter where all tiles run at
     * once nevertheless, else those that no longer time comes from. Rings that are filled ahead gain more
     * from all processors, where a block has many chains. */
    const int32_t fewer = wanted * 3 / 4;
    const bool spreads = LAYOUT::fills && 2 * args->tiles > room * wanted;
    wanted = !spreads && fewer > 0 && (args->tiles + fewer - 1) / fewer <= room ? fewer : wanted;
    const int32_t most = (args->tiles + wanted - 1) / wanted, clusters = (args->tiles + most - 1) / most;
    const int32_t together = room < most ? room : most;
    args->each = args->tiles / clusters;
    args->more = args->tiles % clusters;
    args->warps = together * args->own;
    args->deals = args->each < 2 * together;
    args->stages = SLIM_STAGES;
    while (args->stages > LAYOUT::least && slim_memory_of<LAYOUT>(*args).bytes > SLIM_BYTES) {
        args->stages--;
    }
    const int32_t under_way = LAYOUT::fills ? SLIM_LITTLE : SLIM_AHEAD;
    const int32_t ahead = under_way / (args->warps * LAYOUT::slot);
    args->ahead = ahead < 1 ? 1 : ahead < args->stages ? ahead : args->stages;
    args->memory = slim_memory_of<LAYOUT>(*args);
    const uint32_t bytes = args->memory.bytes;
    if (shape) {
        *shape = {dim3((unsigned)(clusters * blocks)), dim3(LAYOUT::threads),
                  bytes < SLIM_LEAST_BYTES ? (uint32_t)SLIM_LEAST_BYTES : bytes,
                  args->range_bytes ? 1 : (uint32_t)blocks};
    }
    return bytes <= SLIM_BYTES && slim_takes_x<LAYOUT>(*args);
}

/* Boxes of a line of a tile's rows; of gates and their values at once. */
static inline cudaError_t slim_line_maps(slim_args *args) {
    const bool gated = args->gated.data != NULL;
    cudaError_t code = cudaSuccess;
    for (int32_t s = 0; s < (gated ? 1 : args->segments) && !code; s++) {
        const sl_cuda_weight &weight = args->weights[s];
        const uint64_t rows = (uint64_t)weight.rows;
        const sl_cuda_tensor map = {
            weight.data,
            8,
            {weight.row_bytes / 8, rows, gated ? 2u : 1u},
            {weight.row_bytes,
             gated ? (uint64_t)(args->weights[1].data - weight.data) : weight.row_bytes * rows},
            {SLIM_LINE / 8, gated ? CHAIN_ROWS / 2u : (uint32_t)CHAIN_ROWS, gated ? 2u : 1u},
            true};
        code = sl_cuda_tensor_map(&map, &args->maps[s]);
    }
    return code;
}

/* Whether slots have lines: rows begin with one, ranges are long enough, and gates lie before their values,
 * as far as args says where they are. */
template <int TYPE> static bool slim_has_lines(const slim_args &args) {
    const int32_t columns = args.weights[0].columns;
    return TYPE == SL_QTYPE_Q8_0 && columns / SL_K16_CHUNK * skinny_layout<TYPE>::bytes % SLIM_LINE == 0 &&
           columns / args.ranges >= SLIM_LINES_LEAST &&
           (!args.gated.data || args.weights[1].data > args.weights[0].data);
}

/* Whether every warp has room for its ring beside x, with either kind of slots. */
template <int TYPE> static bool slim_fits(slim_args *args, int32_t processors) {
    bool fits = slim_cut<slim_layout<TYPE, false>>(args, processors, NULL);
    if constexpr (TYPE == SL_QTYPE_Q8_0) {
        fits = fits &&
               (!slim_has_lines<TYPE>(*args) || slim_cut<slim_layout<TYPE, true>>(args, processors, NULL));
    }
    return fits;
}

template <typename LAYOUT>
static cudaError_t slim_launch_as(const sl_cuda_context *context, cudaStream_t stream, slim_args *args) {
    sl_launch_shape shape = {};
    if (!slim_cut<LAYOUT>(args, context->processors, &shape)) {
        return cudaErrorInvalidConfiguration;
    }
    const cudaError_t code = LAYOUT::lines ? slim_line_maps(args) : chain_make_maps<LAYOUT>(args);
    return code                 ? code
           : shape.cluster == 1 ? sl_launch(context, stream, shape, slim_kernel<LAYOUT, 1>, *context, *args)
                                : sl_launch(context, stream, shape, slim_kernel<LAYOUT, 2>, *context, *args);
}

/* A launch of a LINEAR, or of one whose gates and values an ACTIVATE and a QUANTIZE behind it turn into BF16.
 * apart: NULL, or where the ranges' sums are instead. */
template <int TYPE>
static cudaError_t slim_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                               sl_cuda_ranges *apart = NULL) {
    slim_args args = {};
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
    if constexpr (TYPE == SL_QTYPE_Q8_0) {
        if (slim_has_lines<TYPE>(args)) {
            return slim_launch_as<slim_layout<TYPE, true>>(context, stream, &args);
        }
    }
    return slim_launch_as<slim_layout<TYPE, false>>(context, stream, &args);
}

#endif
