/* How chunks of keys that several blocks took are added. */
#ifndef SL_BACKEND_CUDA_ATTENTION_MMA_MERGE_CUH
#define SL_BACKEND_CUDA_ATTENTION_MMA_MERGE_CUH

#include "backend/cuda/attention/mma_products.cuh"
#include "backend/cuda/common/quad.cuh"

enum { MERGE_THREADS = 128, MERGE_ROWS = MERGE_THREADS / SL_WARP };

/* After a launch with partials: adds the chunks of one row and head, in order. A thread has EACH columns, and
 * BATCH chunks on their way at a time; what columns are left are the blocks' behind along z. */
template <typename CHUNKS, int EACH, int BATCH>
static __global__ void __launch_bounds__(MERGE_THREADS)
    mma_merge_kernel(sl_cuda_context context, mma_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t column = (int32_t)blockIdx.z * MERGE_THREADS * EACH + (int32_t)threadIdx.x;
    const int32_t row = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    if (row >= context.header->rows) {
        return;
    }
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const sl_step_span &span = context.spans[context.rows[row].span];
    const int32_t index = span.length[group] + row - span.first_row, size = cache.value_size;
    const int32_t first = CHUNKS::of(mma_first_seen(cache.window, index) / MMA_KEYS);
    const int32_t last = CHUNKS::of(index / MMA_KEYS), stride = MMA_PARTIAL_HEAD + size;
    if (first == last) {
        return;
    }
    const float *from =
        args.partials + (((int64_t)row * args.attention.heads + head) * args.splits + first) * stride;
    float largest = args.sinks ? args.sinks[head] * MMA_LOG2_E : -INFINITY;
    float sum = args.sinks ? 1.0f : 0.0f;
    float total[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        total[i] = 0;
    }
    for (int32_t chunk = first; chunk <= last; chunk += BATCH, from += BATCH * stride) {
        float m[BATCH], l[BATCH], y[BATCH][EACH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const bool there = chunk + k <= last;
            m[k] = there ? from[k * stride] : 0.0f;
            l[k] = there ? from[k * stride + 1] : 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int32_t c = column + MERGE_THREADS * i;
                y[k][i] = there && c < size ? from[k * stride + MMA_PARTIAL_HEAD + c] : 0.0f;
            }
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (chunk + k <= last) {
                float keep, add;
                mma_merge(m[k], l[k], &largest, &sum, &keep, &add);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    total[i] = total[i] * keep + y[k][i] * add;
                }
            }
        }
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float *gate = args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t c = column + MERGE_THREADS * i;
        if (c < size) {
            sl_f32(args.y, row)[head * size + c] = mma_finish(args, gate, c, total[i], factor);
        }
    }
}

/* After wgmma by ranges of keys: a warp adds those of one row and head, in order. A lane has EACH quads of
 * columns, and BATCH ranges on their way at a time. Rows of one range are there already. */
template <typename CUT, int EACH, int BATCH>
static __global__ void __launch_bounds__(MERGE_THREADS)
    mma_merge_ranges_kernel(sl_cuda_context context, mma_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t number = (int32_t)blockIdx.x * MERGE_ROWS + (int32_t)threadIdx.x / SL_WARP;
    const int32_t row = number / args.attention.heads, head = number - row * args.attention.heads;
    if (row >= context.header->rows) {
        return;
    }
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const sl_step_span &span = context.spans[context.rows[row].span];
    const int32_t index = span.length[group] + row - span.first_row, size = cache.value_size;
    const int32_t first = CUT::of(mma_first_seen(cache.window, index) / MMA_KEYS);
    const int32_t count = CUT::of(index / MMA_KEYS) - first + 1, stride = DECODE_HEAD + size;
    if (count == 1 || (args.beside && span.row_count == 1)) {
        return;
    }
    const float *from = args.partials + (int64_t)number * args.splits * stride;
    const int32_t column = (int32_t)threadIdx.x % SL_WARP * SL_QUAD;
    float largest = args.sinks ? args.sinks[head] * MMA_LOG2_E : -INFINITY;
    float sum = args.sinks ? 1.0f : 0.0f;
    float total[EACH][SL_QUAD] = {};
    for (int32_t part = 0; part < count; part += BATCH, from += BATCH * stride) {
        float2 both[BATCH];
        float4 y[BATCH][EACH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const bool there = part + k < count;
            both[k] = there ? __ldcg((const float2 *)(from + k * stride)) : make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int32_t c = column + SL_WARP * SL_QUAD * i;
                y[k][i] = there && c < size ? __ldcg((const float4 *)(from + k * stride + DECODE_HEAD + c))
                                            : make_float4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (part + k < count) {
                float keep, add;
                mma_merge(both[k].x, both[k].y, &largest, &sum, &keep, &add);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    total[i][0] = total[i][0] * keep + y[k][i].x * add;
                    total[i][1] = total[i][1] * keep + y[k][i].y * add;
                    total[i][2] = total[i][2] * keep + y[k][i].z * add;
                    total[i][3] = total[i][3] * keep + y[k][i].w * add;
                }
            }
        }
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float *gate = args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
    float *to = sl_f32(args.y, row) + head * size;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t c = column + SL_WARP * SL_QUAD * i;
        for (int e = 0; e < SL_QUAD && c < size; e += 2) {
            mma_store2(to + c + e, mma_finish(args, gate, c + e, total[i][e], factor),
                       mma_finish(args, gate, c + e + 1, total[i][e + 1], factor));
        }
    }
}

template <typename CUT>
static cudaError_t mma_merge_ranges(const sl_cuda_context *context, const mma_args *args, int32_t rows,
                                    int32_t size, cudaStream_t stream) {
    const int32_t blocks = (rows * args->attention.heads + MERGE_ROWS - 1) / MERGE_ROWS;
    const sl_launch_shape shape = {dim3((unsigned)blocks), dim3(MERGE_THREADS), 0};
    return size <= 128
               ? sl_launch(context, stream, shape, mma_merge_ranges_kernel<CUT, 1, 8>, *context, *args)
           : size <= 256
               ? sl_launch(context, stream, shape, mma_merge_ranges_kernel<CUT, 2, 4>, *context, *args)
               : sl_launch(context, stream, shape, mma_merge_ranges_kernel<CUT, 4, 2>, *context, *args);
}

#endif
