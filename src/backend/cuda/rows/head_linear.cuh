/* What the kernels of HEAD_LINEAR share: a matrix for each head, in the file's type. */
#ifndef SL_BACKEND_CUDA_ROWS_HEAD_LINEAR_CUH
#define SL_BACKEND_CUDA_ROWS_HEAD_LINEAR_CUH

#include "backend/cuda/attention/latent/direct.h"
#include "backend/cuda/rows/row_ops.cuh"

typedef struct sl_head_args {
    sl_cuda_weight weight;
    sl_cuda_operand x, y;
    int32_t x_stride, tail;
    int32_t inputs, outputs; /* of a head */
    sl_direct direct;        /* whose rows; head_linear_tile.cu */
} sl_head_args;

/* What a block works on. */
typedef struct sl_head_rows {
    const unsigned char *matrix;
    int32_t head, first, count; /* rows of the step */
} sl_head_rows;

static inline sl_head_args sl_head_args_of(const sl_cuda_op *op) {
    const sl_op_head_linear *linear = &op->op->u.head_linear;
    const sl_cuda_weight &weight = op->weights[0];
    return {weight,
            op->in[0],
            op->out[0],
            linear->x_stride,
            linear->tail,
            linear->turned ? weight.rows : weight.columns,
            linear->turned ? weight.columns : weight.rows,
            {}};
}

/* Rows `most` times the block's number along x, of the head along y; count is 0 or less behind the last. */
static __device__ __forceinline__ sl_head_rows sl_head_rows_of(const sl_cuda_context &context,
                                                               const sl_head_args &args, int32_t most) {
    const int32_t first = (int32_t)blockIdx.x * most, left = sl_count(context, args.y.rows) - first;
    return {args.weight.data + blockIdx.y * args.weight.expert_bytes, (int32_t)blockIdx.y, first,
            left < most ? left : most};
}

static __device__ __forceinline__ const float *sl_head_x(const sl_head_args &args, const sl_head_rows &rows,
                                                         int32_t r) {
    return sl_f32(args.x, rows.first + r) + rows.head * args.x_stride;
}

static __device__ __forceinline__ float *sl_head_y(const sl_head_args &args, const sl_head_rows &rows,
                                                   int32_t r) {
    return sl_f32(args.y, rows.first + r) + rows.head * (args.outputs + args.tail);
}

/* What is not multiplied, by the blocks with the first outputs. */
static __device__ __forceinline__ void sl_head_copy_tail(const sl_head_args &args, const sl_head_rows &rows,
                                                         int32_t threads) {
    for (int32_t i = (int32_t)threadIdx.x; blockIdx.z == 0 && i < rows.count * args.tail; i += threads) {
        sl_head_y(args, rows, i / args.tail)[args.outputs + i % args.tail] =
            sl_head_x(args, rows, i / args.tail)[args.inputs + i % args.tail];
    }
}

#endif
