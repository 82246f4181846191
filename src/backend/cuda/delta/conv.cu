/* The causal convolution in front of a recurrent layer's scan, and short convolutions. */
#include "backend/cuda/common/quad.cuh"
#include "backend/cuda/delta/delta.cuh"

enum {
    CONV_THREADS = 128,
    CONV_ROWS = 16,   /* of a thread */
    CONV_FEW = 256,   /* rows up to which a thread has one, so that there are threads enough */
    CONV_BLOCKS = 12, /* side by side, see delta_blocks */
};

/* Element `index` of a channel's time line: the rows of the span follow the taps - 1 elements of the state.
 */
static __device__ __forceinline__ float conv_input(const delta_args &args, const sl_step_span &span,
                                                   const float *state, int32_t channel, int32_t index) {
    const int32_t kept = args.shape.taps - 1;
    if (index >= kept) {
        return sl_f32(args.x, span.first_row + index - kept)[channel];
    }
    return state ? state[(int64_t)index * args.shape.channels + channel] : 0.0f;
}

static __device__ __forceinline__ float conv_finish(const delta_args &args, int32_t channel, float sum) {
    sum += args.bias ? args.bias[channel] : 0.0f;
    return args.has_silu ? sl_silu(sum) : sum;
}

/* One row and what it leaves, from wherever its inputs are. */
static __device__ __forceinline__ void conv_row(const sl_cuda_context &context, const delta_args &args,
                                                const float *weights, int32_t channel, int32_t row) {
    const sl_step_span &span = context.spans[context.rows[row].span];
    const float *state = delta_old_state(context, span, args.shape.conv_offset);
    const int32_t at = row - span.first_row, taps = args.shape.taps;
    float sum = 0;
    for (int32_t tap = 0; tap < taps; tap++) {
        sum += weights[tap] * conv_input(args, span, state, channel, at + tap);
    }
    sl_f32(args.y, row)[channel] = conv_finish(args, channel, sum);
    float *left = delta_new_state(context, span, at, args.shape.conv_offset);
    for (int32_t k = 0; left && k < taps - 1; k++) {
        left[(int64_t)k * args.shape.channels + channel] = conv_input(args, span, state, channel, at + 1 + k);
    }
}

/* A thread per channel, for ROWS rows of the step. Where they lie in the middle of one span, and no state is
 * left behind them but the last, all inputs are read at once. Class "f32": products added from the oldest tap
 * to the newest, then the bias. */
template <int TAPS, int ROWS>
static __global__ void __launch_bounds__(CONV_THREADS, CONV_BLOCKS)
    conv_kernel(sl_cuda_context context, delta_args args) {
    sl_wait_for_inputs();
    const int32_t channel = (int32_t)(blockIdx.x * CONV_THREADS + threadIdx.x);
    const int32_t first = (int32_t)blockIdx.y * ROWS, rows = context.header->rows;
    if (first >= rows || channel >= args.shape.channels) {
        return;
    }
    const float *weights = args.weight + (int64_t)channel * args.shape.taps;
    const int32_t number = context.rows[first].span;
    const sl_step_span &span = context.spans[number];
    const int32_t end = span.first_row + span.row_count;
    if (args.shape.taps != TAPS || first - span.first_row < TAPS - 1 ||
        first + ROWS - 1 > end - span.state_count) {
        for (int32_t row = first; row < first + ROWS && row < rows; row++) {
            conv_row(context, args, weights, channel, row);
        }
        return;
    }
    float x[ROWS + TAPS - 1], weight[TAPS];
#pragma unroll
    for (int i = 0; i < ROWS + TAPS - 1; i++) {
        x[i] = sl_f32(args.x, first - (TAPS - 1) + i)[channel];
    }
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        weight[tap] = weights[tap];
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float sum = 0;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            sum += weight[tap] * x[i + tap];
        }
        sl_f32(args.y, first + i)[channel] = conv_finish(args, channel, sum);
    }
    float *left = delta_new_state(context, span, first + ROWS - 1 - span.first_row, args.shape.conv_offset);
    if (left) {
#pragma unroll
        for (int k = 0; k < TAPS - 1; k++) {
            left[(int64_t)k * args.shape.channels + channel] = x[ROWS + k];
        }
    }
}

static __device__ __forceinline__ void put_quad(float4 quad, float *to) {
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
}

/* A row and four channels a thread, all of whose inputs are read at once. The bits of conv_kernel. */
template <int TAPS>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_quads_kernel(sl_cuda_context context, delta_args args) {
    const int32_t channel = SL_QUAD * (int32_t)(blockIdx.x * CONV_THREADS + threadIdx.x);
    const int32_t row = (int32_t)blockIdx.y, channels = args.shape.channels;
    const bool mine = channel < channels;
    float weight[SL_QUAD * TAPS] = {}; /* as they lie: of a channel all, then of the next */
#pragma unroll
    for (int i = 0; i < SL_QUAD * TAPS && mine; i += SL_QUAD) {
        put_quad(*(const float4 *)(const void *)(args.weight + (int64_t)channel * TAPS + i), weight + i);
    }
    sl_wait_for_inputs();
    if (row >= context.header->rows || !mine) {
        return;
    }
    const sl_step_span &span = context.spans[context.rows[row].span];
    const float *state = delta_old_state(context, span, args.shape.conv_offset);
    const int32_t at = row - span.first_row;
    float x[TAPS][SL_QUAD] = {};
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        const int32_t index = at + tap - (TAPS - 1); /* in the span; before it in the state */
        const float *from = index >= 0 ? sl_f32(args.x, span.first_row + index)
                            : state    ? state + (int64_t)(index + TAPS - 1) * channels
                                       : NULL;
        if (from) {
            put_quad(*(const float4 *)(const void *)(from + channel), x[tap]);
        }
    }
    float y[SL_QUAD];
#pragma unroll
    for (int k = 0; k < SL_QUAD; k++) {
        float sum = 0;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            sum += weight[k * TAPS + tap] * x[tap][k];
        }
        y[k] = conv_finish(args, channel + k, sum);
    }
    sl_store_quad<true>(sl_f32(args.y, row), channel, channels, make_float4(y[0], y[1], y[2], y[3]));
    float *left = delta_new_state(context, span, at, args.shape.conv_offset);
#pragma unroll
    for (int tap = 1; left && tap < TAPS; tap++) {
        sl_store_quad<true>(left + (int64_t)(tap - 1) * channels, channel, channels,
                            make_float4(x[tap][0], x[tap][1], x[tap][2], x[tap][3]));
    }
}

static bool in_quads(const sl_cuda_context *context, const delta_args &args) {
    return args.shape.channels % SL_QUAD == 0 && sl_in_quads(args.x) && sl_in_quads(args.y) &&
           args.shape.conv_offset % sizeof(float4) == 0 && context->state_bytes % sizeof(float4) == 0;
}

/* Numbers of taps that no model has go row by row. */
static SL_CUDA_RUN(run_conv) {
    const sl_op_conv *conv = &op->op->u.conv;
    delta_args args = {};
    args.shape = op->program->states[conv->state];
    args.x = op->in[0];
    args.y = op->out[0];
    args.weight = (const float *)op->weights[0].data;
    args.bias = conv->bias == SL_NONE ? NULL : (const float *)op->weights[1].data;
    args.has_silu = conv->function == SL_ACTIVATION_SILU;
    const int32_t rows = op->rows[SL_ROWS_STEP], taps = args.shape.taps;
    const bool many = rows > CONV_FEW && (taps == 3 || taps == 4);
    if (!many && (taps == 3 || taps == 4) && in_quads(context, args)) {
        const unsigned quads = (unsigned)args.shape.channels / SL_QUAD;
        const sl_launch_shape few = {dim3((quads + CONV_THREADS - 1) / CONV_THREADS, (unsigned)rows),
                                     dim3(CONV_THREADS), 0};
        return taps == 3 ? sl_launch(context, stream, few, conv_quads_kernel<3>, *context, args)
                         : sl_launch(context, stream, few, conv_quads_kernel<4>, *context, args);
    }
    const sl_launch_shape shape = {dim3((unsigned)((args.shape.channels + CONV_THREADS - 1) / CONV_THREADS),
                                        (unsigned)(many ? (rows + CONV_ROWS - 1) / CONV_ROWS : rows)),
                                   dim3(CONV_THREADS), 0};
#define CONV(taps, rows) sl_launch(context, stream, shape, conv_kernel<taps, rows>, *context, args)
    return taps == 3 ? many ? CONV(3, CONV_ROWS) : CONV(3, 1) : many ? CONV(4, CONV_ROWS) : CONV(4, 1);
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(CONV, "conv/cuda", "f32", 1e-5f, NULL, run_conv),
};

SL_CUDA_FAMILY(conv) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
