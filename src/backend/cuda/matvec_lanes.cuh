/* What the products with few rows of FP8 and NVFP4 weights share: a warp takes one or more weight rows and
 * reads consecutive bytes of each; blockIdx.y is a group of rows of x, or with experts a row of y. */
#ifndef SL_BACKEND_CUDA_MATVEC_LANES_CUH
#define SL_BACKEND_CUDA_MATVEC_LANES_CUH

#include "backend/cuda/device.cuh"

enum { LANES_THREADS = 256, LANES_WARPS = LANES_THREADS / SL_WARP };

typedef struct lanes_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along x */
    int32_t segments;
    sl_cuda_operand x, ids, residual, y;
    int32_t experts_used, x_share; /* rows of y that read one row of x */
} lanes_args;

static __device__ __forceinline__ uint32_t load_word(const unsigned char *at) {
    uint32_t word;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
}

static __device__ __forceinline__ int32_t find_segment(const lanes_args &args) {
    int32_t segment = 0;
    while (segment + 1 < args.segments && (int32_t)blockIdx.x >= args.first_block[segment + 1]) {
        segment++;
    }
    return segment;
}

static __device__ __forceinline__ void store(const lanes_args &args, const sl_cuda_weight &weight,
                                             int32_t expert, int32_t row, int32_t output, float value) {
    if (weight.bias) {
        value += weight.bias[(int64_t)expert * weight.rows + output];
    }
    if (args.residual.data) {
        value += sl_f32(args.residual, row)[weight.column + output];
    }
    sl_f32(args.y, row)[weight.column + output] = value;
}

/* The weight rows of this warp from its first output on, of the segment's first expert; those past the end
 * are the last once more. Returns the first. */
template <int OUTPUTS>
static __device__ __forceinline__ int32_t find_rows(const lanes_args &args, int32_t segment,
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
static __device__ __forceinline__ void finish(const lanes_args &args, const lanes_part &part,
                                              const float (*sums)[ROWS]) {
    const sl_cuda_weight &weight = args.weights[part.segment];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float sum = sl_warp_sum(sums[o][r]);
            if (threadIdx.x % SL_WARP == 0 && part.output + o < weight.rows && r < part.rows) {
                store(args, weight, part.expert, part.first + r, part.output + o, sum);
            }
        }
    }
}

template <int ROWS, int OUTPUTS, typename KERNEL>
static cudaError_t lanes_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                                KERNEL kernel) {
    enum { EACH = LANES_WARPS * OUTPUTS };
    lanes_args args = {};
    int32_t blocks = 0;
    args.segments = op->weight_count;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        args.weights[s] = op->weights[s];
        args.first_block[s] = blocks;
        blocks += s < op->weight_count ? (op->weights[s].rows + EACH - 1) / EACH : 0;
    }
    args.first_block[SL_LINEAR_SEGMENTS] = blocks;
    args.x = op->in[0];
    args.ids = op->in[1];
    args.residual = op->in[3];
    args.y = op->out[0];
    args.experts_used = context->experts_used;
    args.x_share =
        op->out[0].rows == SL_ROWS_EXPERT && op->in[0].rows == SL_ROWS_STEP ? context->experts_used : 1;
    const unsigned groups = (unsigned)((op->rows[op->out[0].rows] + ROWS - 1) / ROWS);
    const sl_launch_shape shape = {dim3((unsigned)blocks, groups), dim3(LANES_THREADS), 0};
    return sl_launch(context, stream, shape, kernel, *context, args);
}

#endif
