/* What the kernels of a gated-delta-net layer share. They read the state slot state_read (or zeros) and write
 * their own part of the slots that a span leaves, which are others, so that a step can be run again. */
#ifndef SL_BACKEND_CUDA_DELTA_DELTA_CUH
#define SL_BACKEND_CUDA_DELTA_DELTA_CUH

#include "backend/cuda/common/device.cuh"

typedef struct delta_args {
    sl_state_layer shape;
    sl_op_delta_scan scan;
    sl_cuda_operand x, a, b, y;    /* x: also qkv */
    const float *weight, *dt_bias; /* weight: also a_log */
    const float *bias;             /* of the convolution; NULL without */
    bool has_silu;
} delta_args;

/* NULL: the sequence begins, all is zero. */
static __device__ __forceinline__ const float *delta_old_state(const sl_cuda_context &context,
                                                               const sl_step_span &span, uint64_t offset) {
    return span.state_read < 0
               ? NULL
               : (const float *)(context.state + (uint64_t)span.state_read * context.state_bytes + offset);
}

/* Behind row `at` of the span; NULL: it leaves none there. */
static __device__ __forceinline__ float *
delta_new_state(const sl_cuda_context &context, const sl_step_span &span, int32_t at, uint64_t offset) {
    const int32_t index = at - (span.row_count - span.state_count);
    return index < 0
               ? NULL
               : (float *)(context.state +
                           (uint64_t)context.states[span.state_first + index] * context.state_bytes + offset);
}

/* Blocks of a scan with so much state to a thread that are to lie on a multiprocessor side by side. Without a
 * bound the addresses of a state that may be left behind any row take as many registers as the state. */
static constexpr int delta_blocks(int elements) {
    return elements <= 8 ? 4 : elements <= 32 ? 3 : elements <= 64 ? 2 : 1;
}

static __device__ __forceinline__ float delta_softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The logarithm of a row's decay for a value head: a factor that a softplus is multiplied by. */
static __device__ __forceinline__ float delta_rate(const delta_args &args, int32_t head) {
    return args.scan.decay_is_negated ? args.weight[head] : -expf(args.weight[head]);
}

static __device__ __forceinline__ int32_t delta_key_head(const delta_args &args, int32_t head) {
    return args.scan.keys_cycle ? head % args.scan.key_heads
                                : head / (args.scan.value_heads / args.scan.key_heads);
}

/* delta_row.cu: the scan row after row, for those spans that have no more than most_rows rows, or leave
 * several states. */
cudaError_t sl_cuda_delta_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                     cudaStream_t stream);

static inline delta_args delta_scan_args(const sl_cuda_op *op) {
    delta_args args = {};
    args.scan = op->op->u.delta_scan;
    args.shape = op->program->states[args.scan.state];
    args.x = op->in[0];
    args.a = op->in[1];
    args.b = op->in[2];
    args.y = op->out[0];
    args.weight = (const float *)op->weights[0].data;
    args.dt_bias = (const float *)op->weights[1].data;
    return args;
}

#endif
