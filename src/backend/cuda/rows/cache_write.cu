/* Page tables and cache writes. */
#include "backend/cuda/rows/cache_write.cuh"

#include "backend/cuda/types/cache_element.cuh"

enum { THREADS = 256, BEGIN_BLOCKS = 32, WRITE_WARPS = 8, RECALL_THREADS = 64 };

/* All blocks share each page copy and the table changes, which are few and name each entry once. Neither
 * reads what the other writes. A page's bytes are a multiple of 64. */
static __global__ void begin_kernel(const __grid_constant__ sl_cuda_context context) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const uint64_t first = blockIdx.x * THREADS + threadIdx.x, step = (uint64_t)gridDim.x * THREADS;
    const int32_t copies = context.header->page_copies, changes = context.header->table_changes;
    for (int32_t i = 0; i < copies; i++) {
        const sl_page_copy copy = context.page_copies[i];
        const sl_cuda_cache *cache = &context.caches[copy.group];
        const uint4 *from = (const uint4 *)(cache->pages + (uint64_t)copy.source * cache->page_bytes);
        uint4 *to = (uint4 *)(cache->pages + (uint64_t)copy.target * cache->page_bytes);
#pragma unroll 4
        for (uint64_t at = first; at < cache->page_bytes / sizeof *to; at += step) {
            to[at] = from[at];
        }
    }
    for (uint64_t i = first; i < (uint64_t)changes; i += step) {
        const sl_table_change change = context.table_changes[i];
        context.caches[change.group].table[(int64_t)change.slot * context.table_width + change.index] =
            change.page;
    }
}

static SL_CUDA_RUN(run_begin) {
    (void)op;
    const sl_launch_shape shape = {dim3(BEGIN_BLOCKS), dim3(THREADS), 0};
    return sl_launch(context, stream, shape, begin_kernel, *context);
}

/* ---- cache write ---- */

typedef struct write_args {
    sl_cache_place place;
    sl_cuda_operand k, v;
} write_args;

/* A row for each x of the grid; a warp for each of its key heads, and of its value heads if there are any. */
template <bool ALIGNED>
static __global__ void write_kernel(const __grid_constant__ sl_cuda_context context,
                                    const __grid_constant__ write_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, lane = (int32_t)threadIdx.x;
    if (row >= context.header->rows) {
        return;
    }
    const sl_cuda_cache &cache = context.caches[args.place.group];
    const sl_cache_spot spot = sl_find_spot(context, args.place, row);
    if (!spot.keys) {
        return;
    }
    const int32_t first = (int32_t)(blockIdx.y * blockDim.y + threadIdx.y);
    const int32_t heads = args.v.data ? 2 * cache.kv_heads : cache.kv_heads;
    for (int32_t i = first; i < heads; i += (int32_t)(gridDim.y * blockDim.y)) {
        const bool is_value = i >= cache.kv_heads;
        const int32_t head = is_value ? i - cache.kv_heads : i;
        const int32_t size = is_value ? cache.value_size : cache.key_size;
        const float *in = sl_f32(is_value ? args.v : args.k, row) + head * size;
        unsigned char *out = sl_cache_row(cache, spot, is_value, head);
        for (int32_t base = 0; base < size; base += SL_QUAD * SL_WARP) {
            const int32_t at = base + SL_QUAD * lane;
            const float4 quad = at < size ? sl_load_quad<ALIGNED>(in, at, size) : make_float4(0, 0, 0, 0);
            sl_encode_quad<ALIGNED>(cache.type, quad, out, at, size);
        }
    }
}

static SL_CUDA_RUN(run_cache_write) {
    const write_args args = {op->op->u.cache_write.place, op->in[0], op->in[1]};
    const sl_cuda_cache *cache = &context->caches[args.place.group];
    const bool aligned = cache->key_size % SL_QUAD == 0 && cache->value_size % SL_QUAD == 0 &&
                         sl_in_quads(args.k) && sl_in_quads(args.v);
    const unsigned heads = (args.v.data ? 2 : 1) * (unsigned)cache->kv_heads;
    const sl_launch_shape shape = {
        dim3((unsigned)op->rows[SL_ROWS_STEP], (heads + WRITE_WARPS - 1) / WRITE_WARPS),
        dim3(SL_WARP, heads < WRITE_WARPS ? heads : (unsigned)WRITE_WARPS), 0};
    return sl_launch(context, stream, shape, aligned ? write_kernel<true> : write_kernel<false>, *context,
                     args);
}

/* ---- recall ---- */

typedef struct recall_args {
    sl_cache_place place;
    sl_cuda_operand y;
} recall_args;

/* A row for each x of the grid; its heads are shared out among the blocks of y. */
template <int TYPE>
static __global__ void recall_kernel(const __grid_constant__ sl_cuda_context context,
                                     const __grid_constant__ recall_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= context.header->rows) {
        return;
    }
    const sl_cuda_cache &cache = context.caches[args.place.group];
    const sl_step_span *span = &context.spans[context.rows[row].span];
    const int32_t index = span->length[args.place.group] + row - span->first_row - 1;
    sl_cache_spot spot = {NULL, 0};
    if (index >= 0) {
        const int32_t *table = cache.table + (int64_t)span->slot * context.table_width;
        spot = sl_spot_of(cache, args.place, {table + index / SL_PAGE_TOKENS, index % SL_PAGE_TOKENS});
    }
    for (int32_t head = (int32_t)blockIdx.y; head < cache.kv_heads; head += (int32_t)gridDim.y) {
        float *y = sl_f32(args.y, row) + head * cache.key_size;
        const unsigned char *keys = spot.keys ? sl_cache_row(cache, spot, false, head) : NULL;
        for (int32_t i = (int32_t)threadIdx.x; i < cache.key_size; i += RECALL_THREADS) {
            y[i] = keys ? sl_cache_element<TYPE>(keys, i) : 0.0f;
        }
    }
}

static SL_CUDA_RUN(run_recall) {
    const recall_args args = {op->op->u.recall.place, op->out[0]};
    const sl_cuda_cache *cache = &context->caches[args.place.group];
    const sl_launch_shape shape = {dim3((unsigned)op->rows[SL_ROWS_STEP], (unsigned)cache->kv_heads),
                                   dim3(RECALL_THREADS), 0};
    return sl_with_cache_type(cache->type, [&](auto type) {
        return sl_launch(context, stream, shape, recall_kernel<decltype(type)::VALUE>, *context, args);
    });
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(BEGIN, "begin/cuda", "exact", 0, NULL, run_begin),
    SL_CUDA_KERNEL(CACHE_WRITE, "cache_write/cuda", "exact", 0, NULL, run_cache_write),
    SL_CUDA_KERNEL(RECALL, "recall/cuda", "exact", 0, NULL, run_recall),
};

SL_CUDA_FAMILY(cache_write) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
