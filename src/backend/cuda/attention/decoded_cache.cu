/* Keys and values of q8_0 and fp8 to f16 in scratch. See decoded_cache.h. */
#include "backend/cuda/attention/decoded_cache.h"
#include "backend/cuda/attention/mma_tiles.cuh"

enum {
    THREADS = 256,
    BLOCKS = 4, /* on each SM */
    PIECE = 16, /* elements of a thread */
    ALIGNMENT = 256,
    MOST_ROUNDS = 4,
    TILE_PAGES = 2 /* of the largest tile of keys that is read */
};
#define MOST_PAGES (UINT64_C(1) << 30) /* bytes of a round */

sl_decoded_cache sl_decoded_cache_of(const sl_cache_group *group, const sl_limits *limits) {
    sl_decoded_cache cache = {};
    const uint64_t width = (uint64_t)sl_table_width(limits->context);
    const uint64_t row = 2 * (uint64_t)group->kv_heads * SL_PAGE_TOKENS;
    cache.values = row * (uint64_t)group->key_size;
    cache.page_bytes = cache.values + row * (uint64_t)group->value_size;
    const uint64_t fit = MOST_PAGES / (width * cache.page_bytes);
    cache.slots = fit < (uint64_t)limits->sequences ? (int32_t)fit : limits->sequences;
    cache.rounds = cache.slots > 0 ? (limits->sequences + cache.slots - 1) / cache.slots : 0;
    cache.rounds = cache.rounds > MOST_ROUNDS ? 0 : cache.rounds;
    cache.table = (uint64_t)cache.slots * width * cache.page_bytes;
    cache.bytes = cache.table + (uint64_t)cache.slots * width * sizeof(int32_t);
    cache.bytes = (cache.bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
    return cache;
}

/* What a launch reads and where it puts it. */
typedef struct decoded_copy {
    sl_decoded_args args;
    sl_cuda_cache to; /* its table has all slots of the step, from slot 0 on */
} decoded_copy;

/* A head's keys, or values, of a page. */
template <int TYPE>
static __device__ __forceinline__ void decode_rows(const unsigned char *from, uint64_t row_bytes,
                                                   unsigned char *to, int32_t size) {
    const int32_t pieces = (size + PIECE - 1) / PIECE;
#pragma unroll 2
    for (int32_t i = (int32_t)threadIdx.x; i < SL_PAGE_TOKENS * pieces; i += THREADS) {
        const int32_t row = i / pieces, piece = i % pieces;
        uint32_t out[PIECE / 2];
        mma_decode16<TYPE>(from + (uint64_t)row * row_bytes, piece, out);
        uint4 *at = (uint4 *)(void *)(to + 2 * (row * size + PIECE * piece));
        at[0] = make_uint4(out[0], out[1], out[2], out[3]);
        if (PIECE * piece + 8 < size) {
            at[1] = make_uint4(out[4], out[5], out[6], out[7]);
        }
    }
}

/* A span for each y of the grid. Blocks of x take its pages' heads in turn, keys and values apart: of few
 * pages too there is something for many of them. */
template <int TYPE>
static __global__ void __launch_bounds__(THREADS)
    decode_cache_kernel(const __grid_constant__ sl_cuda_context context,
                        const __grid_constant__ decoded_copy copy) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    if ((int32_t)blockIdx.y >= context.header->spans) {
        return;
    }
    const int32_t group = copy.args.place.group;
    const sl_step_span &span = context.spans[blockIdx.y];
    const sl_cuda_cache &cache = context.caches[group];
    if (!sl_decoded_takes(&copy.args.slots, span.slot) || (span.row_count == 1 && !copy.args.single)) {
        return;
    }
    const int32_t *table = cache.table + (int64_t)span.slot * context.table_width;
    int32_t *to_table = copy.to.table + (int64_t)span.slot * context.table_width;
    const int32_t seen = mma_first_seen(cache.window, span.length[group]) / SL_PAGE_TOKENS,
                  first = seen / TILE_PAGES * TILE_PAGES,
                  last = (span.length[group] + span.row_count - 1) / SL_PAGE_TOKENS;
    const int32_t begin = (span.slot - copy.args.slots.first) * context.table_width,
                  parts = 2 * cache.kv_heads;
    for (int32_t item = (int32_t)blockIdx.x; item < (last + 1 - first) * parts; item += (int32_t)gridDim.x) {
        const int32_t index = first + item / parts, part = item % parts, head = part / 2;
        /* Of a page that is gone nobody sees anything. */
        const int32_t page = table[index] > 0 ? table[index] : 0;
        const unsigned char *from = cache.pages + (uint64_t)page * cache.page_bytes +
                                    (uint64_t)copy.args.place.layer * cache.layer_bytes;
        unsigned char *to = copy.to.pages + (uint64_t)(begin + index) * copy.to.page_bytes;
        const int32_t row = head * SL_PAGE_TOKENS;
        if (part % 2 == 0) {
            decode_rows<TYPE>(from + row * cache.key_bytes, cache.key_bytes, to + row * copy.to.key_bytes,
                              cache.key_size);
        } else {
            decode_rows<TYPE>(from + cache.values + row * cache.value_bytes, cache.value_bytes,
                              to + copy.to.values + row * copy.to.value_bytes, cache.value_size);
        }
        if (part == 0 && threadIdx.x == 0) {
            to_table[index] = begin + index;
        }
    }
}

cudaError_t sl_decode_cache(sl_cuda_context *context, const sl_cuda_op *op, const sl_decoded_args *args,
                            unsigned char *memory, cudaStream_t stream) {
    const sl_cache_group *group = &op->program->groups[args->place.group];
    const sl_decoded_cache layout = sl_decoded_cache_of(group, op->limits);
    decoded_copy copy = {*args, context->caches[args->place.group]};
    copy.to.pages = memory;
    copy.to.table =
        (int32_t *)(void *)(memory + layout.table) - (int64_t)args->slots.first * context->table_width;
    copy.to.page_bytes = copy.to.layer_bytes = layout.page_bytes;
    copy.to.key_bytes = 2 * (uint64_t)group->key_size;
    copy.to.value_bytes = 2 * (uint64_t)group->value_size;
    copy.to.values = layout.values;
    copy.to.type = SL_QTYPE_F16;
    const int32_t all = BLOCKS * context->processors, each = all / op->spans;
    const sl_launch_shape shape = {dim3((unsigned)(each < 1 ? 1 : each), (unsigned)op->spans), dim3(THREADS),
                                   0};
    const cudaError_t code =
        context->caches[args->place.group].type == SL_QTYPE_FP8
            ? sl_launch(context, stream, shape, decode_cache_kernel<SL_QTYPE_FP8>, *context, copy)
            : sl_launch(context, stream, shape, decode_cache_kernel<SL_QTYPE_Q8_0>, *context, copy);
    context->caches[args->place.group] = copy.to;
    return code;
}
