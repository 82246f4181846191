/* The two recurrent ops of a gated-delta-net layer, row after row as the plain kernels do it. Both read the
 * state slot state_read (or zeros) and write their own part of state_write, which is another slot, so that a
 * step can be run again. */
#include "backend/cuda/device.cuh"

enum { CONV_THREADS = 128, MOST_KEYS = 512, MOST_VALUES = 1024 };

typedef struct delta_args {
    sl_state_layer shape;
    sl_op_delta_scan scan;
    sl_cuda_operand x, a, b, y;    /* x: also qkv */
    const float *weight, *dt_bias; /* weight: also a_log */
} delta_args;

static __device__ const float *old_state(const sl_cuda_context &context, const sl_step_span &span,
                                         uint64_t offset) {
    return span.state_read < 0
               ? NULL
               : (const float *)(context.state + (uint64_t)span.state_read * context.state_bytes + offset);
}

static __device__ float *new_state(const sl_cuda_context &context, const sl_step_span &span,
                                   uint64_t offset) {
    return (float *)(context.state + (uint64_t)span.state_write * context.state_bytes + offset);
}

/* Element `index` of a channel's time line: the rows of the span follow the taps - 1 elements of the state.
 */
static __device__ float conv_input(const delta_args &args, const sl_step_span &span, const float *state,
                                   int32_t channel, int32_t index) {
    const int32_t kept = args.shape.taps - 1;
    if (index >= kept) {
        return sl_f32(args.x, span.first_row + index - kept)[channel];
    }
    return state ? state[(int64_t)index * args.shape.channels + channel] : 0.0f;
}

/* A thread per span and channel. Class "f32": products added from the oldest tap to the newest. */
static __global__ void conv_kernel(sl_cuda_context context, delta_args args) {
    const int32_t channel = (int32_t)(blockIdx.x * CONV_THREADS + threadIdx.x), taps = args.shape.taps;
    if ((int32_t)blockIdx.y >= context.header->spans || channel >= args.shape.channels) {
        return;
    }
    const sl_step_span &span = context.spans[blockIdx.y];
    const float *weight = args.weight + (int64_t)channel * taps;
    const float *state = old_state(context, span, args.shape.conv_offset);
    float *kept = new_state(context, span, args.shape.conv_offset);
    for (int32_t i = 0; i < span.row_count; i++) {
        float sum = 0;
        for (int32_t tap = 0; tap < taps; tap++) {
            sum += weight[tap] * conv_input(args, span, state, channel, i + tap);
        }
        sl_f32(args.y, span.first_row + i)[channel] = sl_silu(sum);
    }
    for (int32_t i = 0; i < taps - 1; i++) {
        kept[(int64_t)i * args.shape.channels + channel] =
            conv_input(args, span, state, channel, span.row_count + i);
    }
}

SL_CUDA_RUN(sl_cuda_delta_conv) {
    delta_args args = {};
    args.shape = op->program->states[op->op->u.delta_conv.state];
    args.x = op->in[0];
    args.y = op->out[0];
    args.weight = (const float *)op->weights[0].data;
    const dim3 grid((unsigned)((args.shape.channels + CONV_THREADS - 1) / CONV_THREADS), (unsigned)op->spans);
    conv_kernel<<<grid, CONV_THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

/* q and k of one row, divided by their norms; every thread adds all squares, in order. */
static __device__ void load_keys(const float *x, int32_t size, float scale, float *y) {
    float sum = 0;
    for (int32_t i = 0; i < size; i++) {
        sum += x[i] * x[i];
    }
    const float factor = 1.0f / sqrtf(sum + 1e-6f) * scale;
    for (int32_t i = (int32_t)threadIdx.x; i < size; i += (int32_t)blockDim.x) {
        y[i] = x[i] * factor;
    }
}

static __device__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* A block per span and value head, a thread per column of its state [key_size][value_size]. Class "f32": sums
 * over keys in order. */
static __global__ void scan_kernel(sl_cuda_context context, delta_args args) {
    __shared__ float q[MOST_KEYS], k[MOST_KEYS];
    if ((int32_t)blockIdx.y >= context.header->spans) {
        return;
    }
    const sl_step_span &span = context.spans[blockIdx.y];
    const int32_t keys = args.shape.key_size, values = args.shape.value_size;
    const int32_t head = (int32_t)blockIdx.x, j = (int32_t)threadIdx.x;
    const int32_t key_head = args.scan.keys_cycle ? head % args.scan.key_heads
                                                  : head / (args.scan.value_heads / args.scan.key_heads);
    const int64_t first = (int64_t)head * keys * values;
    const float *old = old_state(context, span, args.shape.delta_offset);
    float *state = new_state(context, span, args.shape.delta_offset) + first;
    const float rate = args.scan.decay_is_negated ? args.weight[head] : -expf(args.weight[head]);
    for (int32_t i = 0; i < keys && j < values; i++) {
        state[i * values + j] = old ? old[first + i * values + j] : 0.0f;
    }
    for (int32_t row = span.first_row; row < span.first_row + span.row_count; row++) {
        const float *qkv = sl_f32(args.x, row);
        __syncthreads();
        load_keys(qkv + key_head * keys, keys, 1.0f / sqrtf((float)keys), q);
        load_keys(qkv + (args.scan.key_heads + key_head) * keys, keys, 1.0f, k);
        __syncthreads();
        if (j >= values) {
            continue;
        }
        const float decay = expf(rate * softplus(sl_f32(args.a, row)[head] + args.dt_bias[head]));
        const float beta = sl_sigmoid(sl_f32(args.b, row)[head]);
        const float v = qkv[2 * args.scan.key_heads * keys + head * values + j];
        float change = 0, y = 0;
        for (int32_t i = 0; i < keys; i++) {
            const float value = state[i * values + j] * decay;
            state[i * values + j] = value;
            change += value * k[i];
        }
        change = beta * (v - change);
        for (int32_t i = 0; i < keys; i++) {
            const float value = state[i * values + j] + k[i] * change;
            state[i * values + j] = value;
            y += value * q[i];
        }
        sl_f32(args.y, row)[head * values + j] = y;
    }
}

SL_CUDA_RUN(sl_cuda_delta_scan) {
    delta_args args = {};
    args.scan = op->op->u.delta_scan;
    args.shape = op->program->states[args.scan.state];
    args.x = op->in[0];
    args.a = op->in[1];
    args.b = op->in[2];
    args.y = op->out[0];
    args.weight = (const float *)op->weights[0].data;
    args.dt_bias = (const float *)op->weights[1].data;
    const unsigned threads = (unsigned)((args.shape.value_size + SL_WARP - 1) / SL_WARP * SL_WARP);
    scan_kernel<<<dim3((unsigned)args.scan.value_heads, (unsigned)op->spans), threads, 0, stream>>>(*context,
                                                                                                    args);
    return cudaGetLastError();
}

const char *sl_cuda_delta_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_state_layer *shape = &query->program->states[query->op->u.delta_scan.state];
    return shape->key_size > MOST_KEYS || shape->value_size > MOST_VALUES ? "takes heads of up to 512 by 1024"
                                                                          : NULL;
}
