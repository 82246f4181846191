/* Products with few rows of FP8 weights: a warp takes one or more weight rows and
 * reads consecutive bytes of each; blockIdx.y is a group of rows of x, or with experts a row of y. */
#ifndef SL_BACKEND_CUDA_LINEAR_F32_F32_LANES_CUH
#define SL_BACKEND_CUDA_LINEAR_F32_F32_LANES_CUH

#include "backend/cuda/common/linear_arguments.cuh"

enum { LANES_THREADS = 256, LANES_WARPS = LANES_THREADS / SL_WARP };

static __device__ __forceinline__ uint32_t load_word(const unsigned char *at) {
    uint32_t word;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
}

/* The weight rows of this warp from its first output on, of the segment's first expert; those past the end
 * are the last once more. Returns the first. */
template <int OUTPUTS>
static __device__ __forceinline__ int32_t find_rows(const sl_lanes_args &args, int32_t segment,
                                                    const unsigned char *w_rows[OUTPUTS]) {
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t output = (((int32_t)blockIdx.x - args.first_block[segment]) * LANES_WARPS + warp) * OUTPUTS;
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        const int32_t w_row = output + o < weight.rows ? output + o : weight.rows - 1;
        w_rows[o] = weight.data + (uint64_t)w_row * weight.row_bytes;
    }
    return output;
}

/* What a warp computes: rows `first` to `first` + rows of y, from an output of the segment on. */
typedef struct lanes_part {
    int32_t segment, expert, first, rows, output;
} lanes_part;

/* Adds the lanes and stores what there is. */
template <int ROWS, int OUTPUTS>
static __device__ __forceinline__ void finish(const sl_lanes_args &args, const lanes_part &part,
                                              const float (*sums)[ROWS]) {
    const sl_cuda_weight &weight = args.weights[part.segment];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float sum = sl_warp_sum(sums[o][r]);
            if (threadIdx.x % SL_WARP == 0 && part.output + o < weight.rows && r < part.rows) {
                sl_linear_store(args, weight, part.expert, part.first + r, part.output + o, sum);
            }
        }
    }
}

/* What a warp does, with PIECES, what a lane has of some neighbouring pieces of its weight rows: ELEMENTS of
 * a piece, STEP of them in all lanes, which all have a part of each. */
template <int ROWS, int OUTPUTS, typename PIECES>
static __device__ __forceinline__ void multiply(const sl_cuda_context &context, const sl_lanes_args &args) {
    sl_let_next_begin();
    const unsigned char *w_rows[OUTPUTS];
    const int32_t segment = sl_linear_find(args.first_block, args.segments, (int32_t)blockIdx.x);
    const int32_t output = find_rows<OUTPUTS>(args, segment, w_rows);
    const int32_t count = args.weights[segment].columns / PIECES::ELEMENTS;
    const int32_t first = (int32_t)blockIdx.y * ROWS;
    PIECES some;
    if (!args.ids.data) {
        some.load(w_rows, 0, count);
    }
    sl_wait_for_inputs();
    const int32_t left = sl_count(context, args.y.rows) - first, rows = left < ROWS ? left : ROWS;
    if (left <= 0) {
        return;
    }
    int32_t expert = 0;
    if (args.ids.data) {
        expert = sl_i32(args.ids, first / args.experts_used)[first % args.experts_used];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            w_rows[o] += (uint64_t)expert * args.weights[segment].expert_bytes;
        }
        some.load(w_rows, 0, count);
    }
    float sums[OUTPUTS][ROWS] = {};
    for (int32_t at = 0; at < count; at += PIECES::STEP) {
        PIECES next = some;
        if (at + PIECES::STEP < count) {
            next.load(w_rows, at + PIECES::STEP, count);
        }
        if (at + PIECES::STEP <= count) {
            some.template add<ROWS, true>(args.x, first / args.x_share, rows, at, count, sums);
        } else {
            some.template add<ROWS, false>(args.x, first / args.x_share, rows, at, count, sums);
        }
        some = next;
    }
    finish<ROWS, OUTPUTS>(args, {segment, expert, first, rows, output}, sums);
}

template <int ROWS, int OUTPUTS, typename KERNEL>
static cudaError_t lanes_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                                KERNEL kernel) {
    sl_lanes_args args = {};
    const unsigned blocks = sl_lanes_fill(context, op, LANES_WARPS * OUTPUTS, &args);
    const unsigned groups = (unsigned)((op->rows[op->out[0].rows] + ROWS - 1) / ROWS);
    const sl_launch_shape shape = {dim3(blocks, groups), dim3(LANES_THREADS), 0};
    return sl_launch(context, stream, shape, kernel, *context, args);
}

#endif
