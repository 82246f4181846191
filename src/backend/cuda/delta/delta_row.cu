/* The recurrent ops: the causal convolution, and the scan of a gated-delta-net layer row after row for
 * few rows (delta_chunk.cu has the one for many). */
#include "backend/cuda/delta/delta.cuh"

enum {
    CONV_THREADS = 128,
    CONV_ROWS = 16,   /* of a thread */
    CONV_FEW = 256,   /* rows up to which a thread has one, so that there are threads enough */
    CONV_BLOCKS = 12, /* side by side, see delta_blocks */
    MOST_KEYS = 512,
    PARTS = 8 /* of the keys, one warp each */
};

/* ---- convolution ---- */

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
    const sl_launch_shape shape = {dim3((unsigned)((args.shape.channels + CONV_THREADS - 1) / CONV_THREADS),
                                        (unsigned)(many ? (rows + CONV_ROWS - 1) / CONV_ROWS : rows)),
                                   dim3(CONV_THREADS), 0};
#define CONV(taps, rows) sl_launch(context, stream, shape, conv_kernel<taps, rows>, *context, args)
    return taps == 3 ? many ? CONV(3, CONV_ROWS) : CONV(3, 1) : many ? CONV(4, CONV_ROWS) : CONV(4, 1);
}

/* ---- scan ---- */

/* q and k of one row divided by their norms, by two warps: squares added lane by lane, then across. */
static __device__ __forceinline__ void load_keys(const float *x, int32_t size, float scale, float *y) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float sum = 0;
    for (int32_t i = lane; i < size; i += SL_WARP) {
        sum = fmaf(x[i], x[i], sum);
    }
    const float factor = 1.0f / sqrtf(sl_warp_sum(sum) + 1e-6f) * scale;
    for (int32_t i = lane; i < size; i += SL_WARP) {
        y[i] = x[i] * factor;
    }
}

/* A block per span, value head and 32 columns of its state [key_size][value_size]: lane l has a column, warp
 * w the keys from w * EACH on, in registers all through the span. Class "f32/parts": a column's products are
 * added within each part in order, fused, then part after part. Columns never meet. */
template <int EACH>
static __global__ void __launch_bounds__(PARTS *SL_WARP, delta_blocks(EACH))
    scan_kernel(sl_cuda_context context, delta_args args, int32_t most_rows) {
    __shared__ float q[PARTS * EACH], k[PARTS * EACH], reads[PARTS][SL_WARP], sums[PARTS][SL_WARP];
    sl_wait_for_inputs();
    if ((int32_t)blockIdx.z >= context.header->spans) {
        return;
    }
    const sl_step_span &span = context.spans[blockIdx.z];
    if (span.row_count > most_rows && span.state_count <= 1) {
        return;
    }
    const int32_t keys = args.shape.key_size, values = args.shape.value_size;
    const int32_t head = (int32_t)blockIdx.y, key_head = delta_key_head(args, head);
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, part = (int32_t)threadIdx.x / SL_WARP;
    const int32_t column = (int32_t)blockIdx.x * SL_WARP + lane;
    const bool mine = column < values;
    const int64_t at = ((int64_t)head * keys + part * EACH) * values + column;
    const float *old = delta_old_state(context, span, args.shape.delta_offset);
    const float rate = delta_rate(args, head), bias = args.dt_bias[head];
    float state[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        state[i] = old && mine && part * EACH + i < keys ? old[at + (int64_t)i * values] : 0.0f;
    }
    for (int32_t i = keys + (int32_t)threadIdx.x; i < PARTS * EACH; i += PARTS * SL_WARP) {
        q[i] = k[i] = 0; /* beyond the last key */
    }
    for (int32_t row = span.first_row; row < span.first_row + span.row_count; row++) {
        const float *qkv = sl_f32(args.x, row);
        if (part == 0) {
            load_keys(qkv + key_head * keys, keys, 1.0f / sqrtf((float)keys), q);
        } else if (part == 1) {
            load_keys(qkv + (args.scan.key_heads + key_head) * keys, keys, 1.0f, k);
        }
        const float decay = expf(rate * delta_softplus(sl_f32(args.a, row)[head] + bias));
        const float beta = sl_sigmoid(sl_f32(args.b, row)[head]);
        const float v = mine ? qkv[2 * args.scan.key_heads * keys + head * values + column] : 0.0f;
        __syncthreads();
        float read = 0, y = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            state[i] *= decay;
            read = fmaf(state[i], k[part * EACH + i], read);
        }
        reads[part][lane] = read;
        __syncthreads();
        read = 0;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            read += reads[p][lane];
        }
        const float change = beta * (v - read);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            state[i] = fmaf(k[part * EACH + i], change, state[i]);
            y = fmaf(state[i], q[part * EACH + i], y);
        }
        sums[part][lane] = y;
        __syncthreads(); /* also: q and k may be overwritten */
        if (part == 0 && mine) {
            y = 0;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                y += sums[p][lane];
            }
            sl_f32(args.y, row)[head * values + column] = y;
        }
        float *left = delta_new_state(context, span, row - span.first_row, args.shape.delta_offset);
        if (left && mine) {
            left += at;
#pragma unroll
            for (int i = 0; i < EACH; i++, left += values) {
                if (part * EACH + i < keys) {
                    *left = state[i];
                }
            }
        }
    }
}

cudaError_t sl_cuda_delta_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                     cudaStream_t stream) {
    const delta_args args = delta_scan_args(op);
    const sl_launch_shape shape = {dim3((unsigned)((args.shape.value_size + SL_WARP - 1) / SL_WARP),
                                        (unsigned)args.scan.value_heads, (unsigned)op->spans),
                                   dim3(PARTS * SL_WARP), 0};
    const int32_t keys = args.shape.key_size;
#define SCAN(each) sl_launch(context, stream, shape, scan_kernel<each>, *context, args, most_rows)
    return keys <= 4 * PARTS    ? SCAN(4)
           : keys <= 8 * PARTS  ? SCAN(8)
           : keys <= 16 * PARTS ? SCAN(16)
           : keys <= 32 * PARTS ? SCAN(32)
                                : SCAN(64);
}

static SL_CUDA_RUN(run_scan) {
    return sl_cuda_delta_scan_spans(context, op, INT32_MAX, stream);
}

static const char *scan_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_state_layer *shape = &query->program->states[query->op->u.delta_scan.state];
    return shape->key_size > MOST_KEYS ? "takes keys of up to 512" : NULL;
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(CONV, "conv/cuda", "f32", 1e-5f, NULL, run_conv),
    {.kernel = {.name = "delta_scan/cuda",
                .op = SL_OP_DELTA_SCAN,
                .numeric_class = "f32/parts",
                .tolerance = 1e-4f,
                .batched = true,
                .declines = scan_declines},
     .arrangement = SL_CUDA_DELTA_ROW,
     .run = run_scan},
};

SL_CUDA_FAMILY(delta_row) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
