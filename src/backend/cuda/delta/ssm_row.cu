/* Mamba2's scan, row after row. It reads the state slot state_read (or zeros) and writes its own part of the
 * slots that a span leaves, which are others, so that a step can be run again. */
#include "backend/cuda/delta/ssm.cuh"
#include "backend/cuda/delta/state_columns.cuh"

enum { MOST_KEYS = 512 };

template <int EACH, int COLUMNS> struct ssm_shared {
    float write[PARTS * EACH], read[PARTS * EACH];
    part_sums<COLUMNS> sums;
};

/* The item's rows, from the state in front of them. Class "f32/parts": a column's products are added within
 * each part in order, fused, then part after part, then what skips the state. Columns never meet. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ void scan_rows(const sl_cuda_context &context, const ssm_args &args,
                                                 const state_item &item, ssm_shared<EACH, COLUMNS> &shared,
                                                 float (&state)[EACH][COLUMNS]) {
    float(&write)[PARTS * EACH] = shared.write, (&read)[PARTS * EACH] = shared.read;
    const state_part &part = item.part;
    const int32_t keys = args.shape.key_size, values = args.shape.value_size, heads = args.scan.heads;
    const int32_t head = item.head, group = head / (heads / args.scan.groups);
    const float rate = ssm_rate(args, head), bias = args.dt_bias[head], skip = args.skip[head];
    for (int32_t at = 0; at < item.rows; at++) {
        const int32_t row = item.span->first_row + at;
        const float *xbc = sl_f32(args.xbc, row), *writes = xbc + heads * values + group * keys;
        const float *reads = writes + args.scan.groups * keys;
        for (int32_t i = (int32_t)threadIdx.x; i < PARTS * EACH; i += PARTS * SL_WARP) {
            write[i] = i < keys ? writes[i] : 0.0f;
            read[i] = i < keys ? reads[i] : 0.0f;
        }
        const float step = ssm_step(args, sl_f32(args.dt, row)[head] + bias);
        const float decay = expf(rate * step);
        float x[COLUMNS], y[COLUMNS] = {};
        load_inputs(xbc + head * values, part, x);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                state[i][c] = fmaf(write[part.number * EACH + i], step * x[c], state[i][c] * decay);
                y[c] = fmaf(state[i][c], read[part.number * EACH + i], y[c]);
            }
        }
        put_sums(shared.sums, part, y);
        __syncthreads(); /* also: B and C may be overwritten */
        if (part.number == 0) {
            add_sums(shared.sums, y);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                y[c] = fmaf(skip, x[c], y[c]);
            }
            store_outputs(sl_f32(args.y, row) + head * values, part, y);
        }
        store_state(context, args.shape, item, at, state);
    }
}

template <int EACH, int COLUMNS>
static __global__ void __launch_bounds__(PARTS *SL_WARP, state_blocks(EACH, COLUMNS))
    ssm_scan_kernel(sl_cuda_context context, ssm_args args, int32_t most_rows) {
    __shared__ ssm_shared<EACH, COLUMNS> shared;
    sl_wait_for_inputs();
    take_states<EACH, COLUMNS>(context, args.shape, most_rows,
                               [&](const state_item &item, float(&state)[EACH][COLUMNS]) {
                                   scan_rows<EACH, COLUMNS>(context, args, item, shared, state);
                               });
}

template <int EACH, int COLUMNS>
static cudaError_t scan(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                        int32_t most_rows) {
    const ssm_args args = ssm_scan_args(op);
    return sl_launch(context, stream, state_launch<EACH, COLUMNS>(context, args.shape, op->spans),
                     ssm_scan_kernel<EACH, COLUMNS>, *context, args, most_rows);
}

cudaError_t sl_cuda_ssm_scan_spans(const sl_cuda_context *context, const sl_cuda_op *op, int32_t most_rows,
                                   cudaStream_t stream) {
    const ssm_args args = ssm_scan_args(op);
    const int32_t wide = state_columns(context, args.shape, op->spans);
    SCAN_STATES(scan, args.shape.key_size, wide, context, op, stream, most_rows);
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
