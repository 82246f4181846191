/* Matrix products for 5 to 256 rows with Hopper's warpgroup instructions, as fast as the weights can be read:
 * y = x W^T (+ bias) (+ residual), with or without experts.
 *
 * Class "bf16/skinny": like "bf16/wgmma" (bf16_tile_wgmma.cuh) x is BF16, and weights are decoded to BF16 in
 * registers as the products' first operand, but by fused operations on BF16 pairs, for which scales (and
 * minima) are rounded to BF16 first: see bf16_rows128_types.cuh. The columns are cut into ranges, as many as
 * skinny_choose takes for the weights' shapes, type and device, whatever the rows; a range's products are
 * added in f32 by m64nNk16, 16 columns after the other, and the ranges one after the other. Where two groups
 * take turns, chunks of skinny_layout::columns columns of a range alternate between two sums, one after the
 * other. Then bias, then residual. In class "bf16/k16" (k16.h) the ranges are that class's.
 *
 * A block has up to four consumer warpgroups of 64 outputs each, all rows, and one warpgroup that copies. One
 * of its threads brings weights as the file has them, in boxes of 32 rows and skinny_layout::columns columns
 * (FP8_128: SKINNY_CODES codes; consumers read the scales),
 * another 128 columns of x at a time in the layout "128-byte swizzle" (see bf16_tile_wgmma.cuh). Experts'
 * rows of x lie anywhere: three warps bring them in pieces of 16 bytes. The ranges of a tile's columns belong
 * to the blocks of a cluster: in the end the sums of every block lie in its shared memory, and each block
 * adds and stores some of the rows, reading the others' shared memory. Without ranges sums are stored from
 * registers, and blocks go on to further tiles, for which weights are copied already. So they are where a
 * norm or the heads' launch follows, which then adds the ranges as it reads them (sl_cuda_skinny_ranges): no
 * block waits for another, and all processors can have one.
 *
 * Before the inputs are there, weights are copied as far as the ring goes or pays, the first chunk's scales
 * are made, and addresses of results found: what is read or run for the first time takes longest.
 *
 * Groups of one part take turns at its chunks where a block has one tile, so that one decodes while another
 * waits. Scales and the first columns of the next chunk are made while products of this one run, and barriers
 * are asked before their answer is needed: three or four warps to a scheduler hide little by themselves.
 *
 * Weights' bytes are read two at a time: wider reads of which four lanes take a part each cost four times the
 * time in shared memory. docs/lab/bf16-rows128.md says what bounds it. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_results.cuh"

#if SL_HAS_WGMMA

/* ---- the kernel ---- */

template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_copy_weights(const skinny_work &work, skinny_copies copies) {
    for (;;) {
        if (copies.issued >= (uint32_t)work.args.chunks) {
            sl_barrier_wait(skinny_barriers<TYPE, ROWS>::empty(work.base, copies.place.at),
                            copies.place.parity ^ 1);
            sl_fence_shared(); /* those of the warps that arrived */
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
        work->tiles =
            sl_plan_expert_tiles<ROWS>(work->args.offsets, work->args.weights[0].experts, work->plan) *
            work->blocks;
    }
}

template <int TYPE, int ROWS> static __device__ __forceinline__ void skinny_consume_all(skinny_work &work) {
    sl_take_registers<(int)skinny_shape<ROWS>::consumer_registers>();
    skinny_lane me = skinny_lane_of<TYPE, ROWS>(work);
    enum { STAGES = skinny_layout<TYPE>::columns / (2 * SKINNY_STEP) }; /* of a chunk */
    skinny_places places = {{(uint32_t)me.sub, 0}, {(uint32_t)(me.sub * STAGES), 0}, -1};
    bool taken = !work.args.list && work.first_chunk + me.sub < work.end_chunk;
    skinny_exit out = {NULL, 0, -1};
    if (taken) { /* weights do not wait for the inputs */
        skinny_find_scales<TYPE>(work, skinny_find<ROWS>(work, work.first_tile), &me);
        const skinny_spot first = skinny_first<TYPE>(work, me, places);
        skinny_take<TYPE, ROWS>(work, me, first, skinny_read_scale<TYPE>(work, me, first.chunk));
        if (skinny_shape<ROWS>::finds && !skinny_meets(work.args) &&
            work.first_tile + work.tile_step >= work.tiles) {
            out = skinny_exit_of<TYPE>(work, me, skinny_find<ROWS>(work, work.first_tile));
        }
    }
    skinny_begin<ROWS>(&work);
#pragma unroll 1
    for (int32_t index = work.first_tile; index < work.tiles; index += work.tile_step) {
        const skinny_tile tile = skinny_find<ROWS>(work, index);
        float sums[ROWS / 2] = {};
        skinny_find_scales<TYPE>(work, tile, &me);
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
    sl_give_registers<(int)skinny_shape<ROWS>::copier_registers>();
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
        sl_map_prefetch(&args.x_map);
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
    sl_copy_wait_all();
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
    sl_codebook<TYPE>::fill(memory + skinny_memory<TYPE, ROWS>::table, (int32_t)threadIdx.x,
                            (int32_t)blockDim.x);
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

/* Of FP8_128's codes: boxes of SKINNY_BOX rows and SKINNY_CODES columns, swizzled. */
static inline cudaError_t skinny_code_maps(const sl_cuda_weight weights[SL_LINEAR_SEGMENTS],
                                           CUtensorMap maps[SL_LINEAR_SEGMENTS]) {
    cudaError_t code = cudaSuccess;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS && !code; s++) {
        const sl_cuda_weight &weight = weights[s];
        const uint64_t rows = (uint64_t)weight.rows;
        const sl_cuda_tensor map = {
            weight.data,
            1,
            {sl_fp8_scales_at(weight.row_bytes), rows, (uint64_t)weight.experts},
            {weight.row_bytes, weight.experts > 1 ? weight.expert_bytes : weight.row_bytes * rows},
            {SKINNY_CODES, SKINNY_BOX},
            true};
        code = weight.data ? sl_cuda_tensor_map(&map, &maps[s]) : cudaSuccess;
    }
    return code;
}

#endif
