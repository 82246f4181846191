/* Mamba2's scan, row after row. It reads the state slot state_read (or zeros) and writes its own part of the
 * slots that a span leaves, which are others, so that a step can be run again. */
#include "backend/cuda/delta/ssm.cuh"

enum {
    MOST_KEYS = 512,
    PARTS = 8 /* of the keys, one warp each */
};

/* A block per span, head and 32 columns of its state [key_size][value_size]: lane l has a column, warp w the
 * keys from w * EACH on, in registers all through the span. Class "f32/parts": a column's products are added
 * within each part in order, fused, then part after part, then what skips the state. Columns never meet. */
template <int EACH>
static __global__ void __launch_bounds__(PARTS *SL_WARP, delta_blocks(EACH))
    ssm_scan_kernel(sl_cuda_context context, ssm_args args, int32_t most_rows) {
    __shared__ float write[PARTS * EACH], read[PARTS * EACH], sums[PARTS][SL_WARP];
    sl_wait_for_inputs();
    if ((int32_t)blockIdx.z >= context.header->spans) {
        return;
    }
    const sl_step_span &span = context.spans[blockIdx.z];
    if (span.row_count > most_rows && span.state_count <= 1) {
        return;
    }
    const int32_t keys = args.shape.key_size, values = args.shape.value_size, heads = args.scan.heads;
    const int32_t head = (int32_t)blockIdx.y, group = head / (heads / args.scan.groups);
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, part = (int32_t)threadIdx.x / SL_WARP;
    const int32_t column = (int32_t)blockIdx.x * SL_WARP + lane;
    const bool mine = column < values;
    const int64_t at = ((int64_t)head * keys + part * EACH) * values + column;
    const float *old = delta_old_state(context, span, args.shape.delta_offset);
    const float rate = ssm_rate(args, head), bias = args.dt_bias[head], skip = args.skip[head];
    float state[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        state[i] = old && mine && part * EACH + i < keys ? old[at + (int64_t)i * values] : 0.0f;
    }
    for (int32_t row = span.first_row; row < span.first_row + span.row_count; row++) {
        const float *xbc = sl_f32(args.xbc, row), *writes = xbc + heads * values + group * keys;
        const float *reads = writes + args.scan.groups * keys;
        for (int32_t i = (int32_t)threadIdx.x; i < PARTS * EACH; i += PARTS * SL_WARP) {
            write[i] = i < keys ? writes[i] : 0.0f;
            read[i] = i < keys ? reads[i] : 0.0f;
        }
        const float step = ssm_step(args, sl_f32(args.dt, row)[head] + bias);
        const float decay = expf(rate * step), x = mine ? xbc[head * values + column] : 0.0f;
        __syncthreads();
        float y = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            state[i] = fmaf(write[part * EACH + i], step * x, state[i] * decay);
            y = fmaf(state[i], read[part * EACH + i], y);
        }
        sums[part][lane] = y;
        __syncthreads(); /* also: B and C may be overwritten */
        if (part == 0 && mine) {
            y = 0;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                y += sums[p][lane];
            }
            sl_f32(args.y, row)[head * values + column] = fmaf(skip, x, y);
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

cudaError_t sl_cuda_ssm_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                   cudaStream_t stream) {
    const ssm_args args = ssm_scan_args(op);
    const sl_launch_shape shape = {dim3((unsigned)((args.shape.value_size + SL_WARP - 1) / SL_WARP),
                                        (unsigned)args.scan.heads, (unsigned)op->spans),
                                   dim3(PARTS * SL_WARP), 0};
    const int32_t keys = args.shape.key_size;
#define SCAN(each) sl_launch(context, stream, shape, ssm_scan_kernel<each>, *context, args, most_rows)
    return keys <= 4 * PARTS    ? SCAN(4)
           : keys <= 8 * PARTS  ? SCAN(8)
           : keys <= 16 * PARTS ? SCAN(16)
           : keys <= 32 * PARTS ? SCAN(32)
                                : SCAN(64);
}

static SL_CUDA_RUN(run_scan) {
    return sl_cuda_ssm_scan_spans(context, op, INT32_MAX, stream);
}

static const char *scan_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_state_layer *shape = &query->program->states[query->op->u.ssm_scan.state];
    return shape->key_size > MOST_KEYS ? "takes states of up to 512" : NULL;
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "ssm_scan/cuda-row",
                .op = SL_OP_SSM_SCAN,
                .numeric_class = "f32/parts",
                .tolerance = 1e-4f,
                .batched = true,
                .declines = scan_declines},
     .arrangement = SL_CUDA_SSM_ROW,
     .run = run_scan},
};

SL_CUDA_FAMILY(ssm_row) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
