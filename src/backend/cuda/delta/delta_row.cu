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

template <int EACH, int COLUMNS> struct scan_shared {
    float q[PARTS * EACH], k[PARTS * EACH];
    part_sums<COLUMNS> reads, sums;
};

/* The item's rows, from the state in front of them. Class "f32/parts": a column's products are added within
 * each part in order, fused, then part after part. Columns never meet. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ void scan_rows(const sl_cuda_context &context, const delta_args &args,
                                                 const state_item &item, scan_shared<EACH, COLUMNS> &shared,
                                                 float (&state)[EACH][COLUMNS]) {
    float(&q)[PARTS * EACH] = shared.q, (&k)[PARTS * EACH] = shared.k;
    const state_part &part = item.part;
    const int32_t keys = args.shape.key_size, values = args.shape.value_size;
    const int32_t head = item.head, key_head = delta_key_head(args, head);
    const float rate = delta_rate(args, head), bias = args.dt_bias[head];
    for (int32_t at = 0; at < item.rows; at++) {
        const int32_t row = item.span->first_row + at;
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
        put_sums(shared.reads, part, read);
        __syncthreads();
        add_sums(shared.reads, read);
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
        put_sums(shared.sums, part, y);
        __syncthreads(); /* also: q and k may be overwritten */
        if (part.number == 0) {
            add_sums(shared.sums, y);
            store_outputs(sl_f32(args.y, row) + head * values, part, y);
        }
        store_state(context, args.shape, item, at, state);
    }
}

template <int EACH, int COLUMNS>
static __global__ void __launch_bounds__(PARTS *SL_WARP, state_blocks(EACH, COLUMNS))
    scan_kernel(sl_cuda_context context, delta_args args, int32_t most_rows) {
    __shared__ scan_shared<EACH, COLUMNS> shared;
    for (int32_t i = args.shape.key_size + (int32_t)threadIdx.x; i < PARTS * EACH; i += PARTS * SL_WARP) {
        shared.q[i] = shared.k[i] = 0; /* beyond the last key */
    }
    sl_wait_for_inputs();
    take_states<EACH, COLUMNS>(context, args.shape, most_rows,
                               [&](const state_item &item, float(&state)[EACH][COLUMNS]) {
                                   scan_rows<EACH, COLUMNS>(context, args, item, shared, state);
                               });
}

template <int EACH, int COLUMNS>
static cudaError_t scan(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                        int32_t most_rows) {
    const delta_args args = delta_scan_args(op);
    return sl_launch(context, stream, state_launch<EACH, COLUMNS>(context, args.shape, op->spans),
                     scan_kernel<EACH, COLUMNS>, *context, args, most_rows);
}

cudaError_t sl_cuda_delta_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                     cudaStream_t stream) {
    const delta_args args = delta_scan_args(op);
    const int32_t wide = state_columns(context, args.shape, op->spans);
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
