/* What the kernels of Mamba2's scan share. */
#ifndef SL_BACKEND_CUDA_DELTA_SSM_CUH
#define SL_BACKEND_CUDA_DELTA_SSM_CUH

#include "backend/cuda/delta/delta.cuh"

typedef struct ssm_args {
    sl_state_layer shape;
    sl_op_ssm_scan scan;
    sl_cuda_operand xbc, dt, y;
    const float *a_log, *dt_bias, *skip;
} ssm_args;

/* The logarithm of a head's decay: a factor that a step is multiplied by. */
static __device__ __forceinline__ float ssm_rate(const ssm_args &args, int32_t head) {
    return args.scan.decay_is_negated ? args.a_log[head] : -expf(args.a_log[head]);
}

static __device__ __forceinline__ float ssm_step(const ssm_args &args, float dt) {
    const float wanted = delta_softplus(dt);
    return wanted < args.scan.step_least  ? args.scan.step_least
           : wanted > args.scan.step_most ? args.scan.step_most
                                          : wanted;
}

/* ssm_row.cu: the scan row after row, for those spans that have no more than most_rows rows, or leave several
 * states. */
cudaError_t sl_cuda_ssm_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                   cudaStream_t stream);

static inline ssm_args ssm_scan_args(const sl_cuda_op *op) {
    ssm_args args = {};
    args.scan = op->op->u.ssm_scan;
    args.shape = op->program->states[args.scan.state];
    args.xbc = op->in[0];
    args.dt = op->in[1];
    args.y = op->out[0];
    args.a_log = (const float *)op->weights[0].data;
    args.dt_bias = (const float *)op->weights[1].data;
    args.skip = (const float *)op->weights[2].data;
    return args;
}

#endif
