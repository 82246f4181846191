/* Page tables and cache writes. */
#include "backend/cuda/device.cuh"

#include <math.h>

enum { THREADS = 256, BEGIN_BLOCKS = 64 };

/* All blocks share each page copy and the table changes, which are few and name each entry once. Neither
 * reads what the other writes. */
static __global__ void begin_kernel(sl_cuda_context context) {
    const uint64_t first = blockIdx.x * THREADS + threadIdx.x, step = (uint64_t)gridDim.x * THREADS;
    for (int32_t i = 0; i < context.header->page_copies; i++) {
        const sl_page_copy copy = context.page_copies[i];
        const sl_cuda_cache *cache = &context.caches[copy.group];
        const uint32_t *from = (const uint32_t *)(cache->pages + (uint64_t)copy.source * cache->page_bytes);
        uint32_t *to = (uint32_t *)(cache->pages + (uint64_t)copy.target * cache->page_bytes);
        for (uint64_t word = first; word < cache->page_bytes / sizeof *to; word += step) {
            to[word] = from[word];
        }
    }
    for (uint64_t i = first; i < (uint64_t)context.header->table_changes; i += step) {
        const sl_table_change change = context.table_changes[i];
        context.caches[change.group].table[(int64_t)change.slot * context.table_width + change.index] =
            change.page;
    }
}

SL_CUDA_RUN(sl_cuda_begin) {
    (void)op;
    begin_kernel<<<BEGIN_BLOCKS, THREADS, 0, stream>>>(*context);
    return cudaGetLastError();
}

/* ---- cache write ---- */

typedef struct write_args {
    sl_cache_place place;
    sl_cuda_operand k, v;
} write_args;

/* 32 elements as the reference encode of Q8_0 does it. */
static __device__ void encode_q8_0(const float *in, unsigned char *out) {
    sl_block_q8_0 *block = (sl_block_q8_0 *)out;
    float largest = 0.0f;
    for (int i = 0; i < 32; i++) {
        const float magnitude = fabsf(in[i]);
        largest = largest > magnitude ? largest : magnitude;
    }
    const float scale = largest / 127.0f;
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    block->scale = sl_f32_to_f16(scale);
    for (int i = 0; i < 32; i++) {
        const float value = roundf(in[i] * inverse);
        block->quants[i] = (int8_t)(fabsf(value) < 1024.0f ? (int)value : 0);
    }
}

/* Unit `unit` of a head's key or value: one element, or a block of 32. */
static __device__ void encode_unit(sl_qtype type, const float *in, unsigned char *row, int32_t unit) {
    switch (type) {
    case SL_QTYPE_F32:
        ((float *)row)[unit] = in[unit];
        break;
    case SL_QTYPE_F16:
        ((uint16_t *)row)[unit] = sl_f32_to_f16(in[unit]);
        break;
    case SL_QTYPE_BF16:
        ((uint16_t *)row)[unit] = sl_f32_to_bf16(in[unit]);
        break;
    case SL_QTYPE_FP8:
        row[unit] = sl_f32_to_e4m3(in[unit]);
        break;
    default:
        encode_q8_0(in + 32 * unit, row + (uint64_t)unit * SL_Q8_0_BYTES);
        break;
    }
}

/* One block per row. Without a page nothing is written: the step's maker left it out, nothing else must be
 * hurt. */
static __global__ void write_kernel(sl_cuda_context context, write_args args) {
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= context.header->rows) {
        return;
    }
    const sl_cuda_cache *cache = &context.caches[args.place.group];
    const sl_step_span *span = &context.spans[context.rows[row].span];
    const int32_t index = span->length[args.place.group] + row - span->first_row;
    const int32_t page = cache->table[(int64_t)span->slot * context.table_width + index / SL_PAGE_TOKENS];
    if (page < 0) {
        return;
    }
    const int32_t per_unit = cache->type == SL_QTYPE_Q8_0 ? 32 : 1;
    const int32_t key_units = cache->key_size / per_unit, value_units = cache->value_size / per_unit;
    const int32_t keys = cache->kv_heads * key_units, all = keys + cache->kv_heads * value_units;
    unsigned char *layer =
        cache->pages + (uint64_t)page * cache->page_bytes + (uint64_t)args.place.layer * cache->layer_bytes;
    unsigned char *values = layer + (uint64_t)cache->kv_heads * SL_PAGE_TOKENS * cache->key_bytes;
    for (int32_t i = (int32_t)threadIdx.x; i < all; i += THREADS) {
        const bool is_key = i < keys;
        const int32_t units = is_key ? key_units : value_units, at = is_key ? i : i - keys;
        const uint64_t bytes = is_key ? cache->key_bytes : cache->value_bytes;
        const int32_t head = at / units;
        const float *in = sl_f32(is_key ? args.k : args.v, row) + head * units * per_unit;
        encode_unit(cache->type, in,
                    (is_key ? layer : values) +
                        ((uint64_t)head * SL_PAGE_TOKENS + index % SL_PAGE_TOKENS) * bytes,
                    at % units);
    }
}

SL_CUDA_RUN(sl_cuda_cache_write) {
    const write_args args = {op->op->u.cache_write.place, op->in[0], op->in[1]};
    write_kernel<<<op->rows[SL_ROWS_STEP], THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}
