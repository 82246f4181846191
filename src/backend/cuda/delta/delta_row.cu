/* The scan of a gated-delta-net layer row after row, for few rows (delta_chunk.cu has the one for many). */
#include "backend/cuda/delta/state_columns.cuh"

enum { MOST_KEYS = 512 };

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

/* Class "f32/parts": a column's products are added within each part in order, fused, then part after part.
 * Columns never meet. */
template <int EACH, int COLUMNS>
static __global__ void __launch_bounds__(PARTS *SL_WARP, delta_blocks(EACH *COLUMNS))
    scan_kernel(sl_cuda_context context, delta_args args, int32_t most_rows) {
    __shared__ float q[PARTS * EACH], k[PARTS * EACH];
    __shared__ part_sums<COLUMNS> reads, sums;
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
    const state_part part = state_part_of<EACH, COLUMNS>(args.shape, head);
    const float rate = delta_rate(args, head), bias = args.dt_bias[head];
    float state[EACH][COLUMNS];
    load_state(delta_old_state(context, span, args.shape.delta_offset), part, values, state);
    for (int32_t i = keys + (int32_t)threadIdx.x; i < PARTS * EACH; i += PARTS * SL_WARP) {
        q[i] = k[i] = 0; /* beyond the last key */
    }
    for (int32_t row = span.first_row; row < span.first_row + span.row_count; row++) {
        const float *qkv = sl_f32(args.x, row);
        if (part.number == 0) {
            load_keys(qkv + key_head * keys, keys, 1.0f / sqrtf((float)keys), q);
        } else if (part.number == 1) {
            load_keys(qkv + (args.scan.key_heads + key_head) * keys, keys, 1.0f, k);
        }
        const float decay = expf(rate * delta_softplus(sl_f32(args.a, row)[head] + bias));
        const float beta = sl_sigmoid(sl_f32(args.b, row)[head]);
        float change[COLUMNS], read[COLUMNS] = {}, y[COLUMNS] = {};
        load_inputs(qkv + 2 * args.scan.key_heads * keys + head * values, part, change);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                state[i][c] *= decay;
                read[c] = fmaf(state[i][c], k[part.number * EACH + i], read[c]);
            }
        }
        put_sums(reads, part, read);
        __syncthreads();
        add_sums(reads, read);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            change[c] = beta * (change[c] - read[c]);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                state[i][c] = fmaf(k[part.number * EACH + i], change[c], state[i][c]);
                y[c] = fmaf(state[i][c], q[part.number * EACH + i], y[c]);
            }
        }
        put_sums(sums, part, y);
        __syncthreads(); /* also: q and k may be overwritten */
        if (part.number == 0) {
            add_sums(sums, y);
            store_outputs(sl_f32(args.y, row) + head * values, part, y);
        }
        store_state(delta_new_state(context, span, row - span.first_row, args.shape.delta_offset), part,
                    values, state);
    }
}

template <int EACH, int COLUMNS>
static cudaError_t scan(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                        int32_t most_rows) {
    const delta_args args = delta_scan_args(op);
    return sl_launch(context, stream, state_launch<COLUMNS>(args.shape, args.scan.value_heads, op->spans),
                     scan_kernel<EACH, COLUMNS>, *context, args, most_rows);
}

cudaError_t sl_cuda_delta_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                     cudaStream_t stream) {
    const delta_args args = delta_scan_args(op);
    const int32_t wide = state_columns(context, args.shape, args.scan.value_heads, op->spans);
    SCAN_STATES(scan, args.shape.key_size, wide, context, op, stream, most_rows);
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
