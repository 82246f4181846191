/* What the kernels of LINEAR have in common: how a launch is asked for, and what follows the sums. */
#ifndef SL_BACKEND_CUDA_COMMON_LINEAR_ARGUMENTS_CUH
#define SL_BACKEND_CUDA_COMMON_LINEAR_ARGUMENTS_CUH

#include "backend/cuda/common/device.cuh"

/* ---- on the host ---- */

/* Rows of y that read one row of x. */
static inline int32_t sl_linear_share(const sl_cuda_context *context, const sl_cuda_op *op) {
    return op->out[0].rows == SL_ROWS_EXPERT && op->in[0].rows == SL_ROWS_STEP ? context->experts_used : 1;
}

/* Cuts each segment's weight rows into parts of `each`: segment s has those from first[s] on. Returns how
 * many there are, which is first[SL_LINEAR_SEGMENTS] too. */
static inline int32_t sl_linear_cut(const sl_cuda_op *op, int32_t each,
                                    int32_t (&first)[SL_LINEAR_SEGMENTS + 1]) {
    int32_t parts = 0;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        first[s] = parts;
        parts += s < op->weight_count ? (op->weights[s].rows + each - 1) / each : 0;
    }
    return first[SL_LINEAR_SEGMENTS] = parts;
}

/* The members of these names. */
template <typename ARGS>
static inline void sl_linear_fill(const sl_cuda_context *context, const sl_cuda_op *op, ARGS *args) {
    args->segments = op->weight_count;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        args->weights[s] = op->weights[s];
    }
    args->x = op->in[0];
    args->residual = op->in[3];
    args->y = op->out[0];
    args->x_share = sl_linear_share(context, op);
}

/* The schedule of expert rows, or NULL. */
template <typename ARGS> static inline void sl_linear_fill_schedule(const sl_cuda_op *op, ARGS *args) {
    args->offsets = op->in[2].head;
    args->list = (const int32_t *)op->in[2].data;
}

/* Of kernels in which a block takes weight rows of one segment. */
typedef struct sl_lanes_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along x */
    int32_t segments;
    sl_cuda_operand x, ids, residual, y;
    int32_t experts_used, x_share; /* rows of y that read one row of x */
} sl_lanes_args;

/* `each`: weight rows of a block. Returns the blocks along x. */
static inline unsigned sl_lanes_fill(const sl_cuda_context *context, const sl_cuda_op *op, int32_t each,
                                     sl_lanes_args *args) {
    sl_linear_fill(context, op, args);
    args->ids = op->in[1];
    args->experts_used = context->experts_used;
    return (unsigned)sl_linear_cut(op, each, args->first_block);
}

/* ---- in a kernel ---- */

/* The segment of part `part` of sl_linear_cut. */
static __device__ __forceinline__ int32_t sl_linear_find(const int32_t *first, int32_t segments,
                                                         int32_t part) {
    int32_t segment = 0;
    while (segment + 1 < segments && part >= first[segment + 1]) {
        segment++;
    }
    return segment;
}

/* Bias, then residual; row: of y. */
template <typename ARGS>
static __device__ __forceinline__ void sl_linear_store(const ARGS &args, const sl_cuda_weight &weight,
                                                       int32_t expert, int32_t row, int32_t output,
                                                       float value) {
    if (weight.bias) {
        value += weight.bias[(int64_t)expert * weight.rows + output];
    }
    if (args.residual.data) {
        value += sl_f32(args.residual, row)[weight.column + output];
    }
    sl_f32(args.y, row)[weight.column + output] = value;
}

#endif
