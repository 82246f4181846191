/* Writing keys and values into pages, four elements at a time. */
#ifndef SL_BACKEND_CUDA_CACHE_CUH
#define SL_BACKEND_CUDA_CACHE_CUH

#include "backend/cuda/rows.cuh"

/* The layer's keys of the row's page, and the row's place among the page's tokens. NULL without a page: then
 * nothing is written; the step's maker left it out, and nothing else must be hurt. */
typedef struct sl_cache_spot {
    unsigned char *keys;
    int32_t token;
} sl_cache_spot;

/* Where a page table says which page the row's is. */
typedef struct sl_cache_entry {
    const int32_t *page;
    int32_t token;
} sl_cache_entry;

/* Reads the step block only. */
static __device__ __forceinline__ sl_cache_entry sl_find_entry(const sl_cuda_context &context,
                                                               const sl_cache_place &place, int32_t row) {
    const sl_step_span *span = &context.spans[context.rows[row].span];
    const int32_t index = span->length[place.group] + row - span->first_row;
    return {context.caches[place.group].table + (int64_t)span->slot * context.table_width +
                index / SL_PAGE_TOKENS,
            index % SL_PAGE_TOKENS};
}

static __device__ __forceinline__ sl_cache_spot sl_spot_of(const sl_cuda_cache &cache,
                                                           const sl_cache_place &place,
                                                           const sl_cache_entry &entry) {
    const int32_t page = *entry.page;
    sl_cache_spot spot = {NULL, entry.token};
    if (page >= 0) {
        spot.keys =
            cache.pages + (uint64_t)page * cache.page_bytes + (uint64_t)place.layer * cache.layer_bytes;
    }
    return spot;
}

static __device__ __forceinline__ sl_cache_spot sl_find_spot(const sl_cuda_context &context,
                                                             const sl_cache_place &place, int32_t row) {
    return sl_spot_of(context.caches[place.group], place, sl_find_entry(context, place, row));
}

/* Where head `head` of the row's keys or values goes. */
static __device__ __forceinline__ unsigned char *
sl_cache_row(const sl_cuda_cache &cache, const sl_cache_spot &spot, bool is_value, int32_t head) {
    const uint64_t tokens = (uint64_t)head * SL_PAGE_TOKENS + (uint64_t)spot.token;
    return is_value ? spot.keys + (uint64_t)cache.kv_heads * SL_PAGE_TOKENS * cache.key_bytes +
                          tokens * cache.value_bytes
                    : spot.keys + tokens * cache.key_bytes;
}

/* As the reference encode of Q8_0; eight neighbouring lanes hold a block. */
static __device__ __forceinline__ void sl_encode_q8_0_quad(float4 quad, unsigned char *row, int32_t i,
                                                           bool active) {
    float largest = 0.0f;
    const float values[SL_QUAD] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int k = 0; k < SL_QUAD; k++) {
        largest = fmaxf(largest, fabsf(values[k]));
    }
#pragma unroll
    for (int distance = 1; distance < 32 / SL_QUAD; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    const float scale = largest / 127.0f;
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    uint32_t packed = 0;
#pragma unroll
    for (int k = 0; k < SL_QUAD; k++) {
        const float value = roundf(values[k] * inverse);
        packed |= (fabsf(value) < 1024.0f ? (uint32_t)(int)value & 255u : 0u) << 8 * k;
    }
    if (active) {
        unsigned char *block = row + i / 32 * SL_Q8_0_BYTES;
        uint16_t *quants = (uint16_t *)(void *)(block + 2 + i % 32);
        quants[0] = (uint16_t)packed;
        quants[1] = (uint16_t)(packed >> 16);
        if (i % 32 == 0) {
            *(uint16_t *)(void *)block = sl_f32_to_f16(scale);
        }
    }
}

/* As sl_f32_to_e4m3, in memory's order. */
static __device__ __forceinline__ uint32_t sl_e4m3_quad(float4 quad) {
#if __CUDA_ARCH__ >= 890
    if (!sl_has_nan(quad)) {
        uint16_t low, high;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(quad.y), "f"(quad.x));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(quad.w), "f"(quad.z));
        return low | (uint32_t)high << 16;
    }
#endif
    return sl_f32_to_e4m3(quad.x) | (uint32_t)sl_f32_to_e4m3(quad.y) << 8 |
           (uint32_t)sl_f32_to_e4m3(quad.z) << 16 | (uint32_t)sl_f32_to_e4m3(quad.w) << 24;
}

/* One by one. */
template <typename TYPE, typename FUNCTION>
static __device__ __forceinline__ void sl_encode_elements(float4 quad, unsigned char *row, int32_t i,
                                                          int32_t width, FUNCTION encode) {
    const float values[SL_QUAD] = {quad.x, quad.y, quad.z, quad.w};
    for (int32_t k = 0; k < SL_QUAD && i + k < width; k++) {
        ((TYPE *)(void *)row)[i + k] = encode(values[k]);
    }
}

/* Elements [i, i + 4) of a head's key or value of `width` elements to `row` of the cache; by whole warps,
 * lane after lane a quad, zeros from the width on. */
template <bool ALIGNED>
static __device__ __forceinline__ void sl_encode_quad(sl_qtype type, float4 quad, unsigned char *row,
                                                      int32_t i, int32_t width) {
    if (type == SL_QTYPE_Q8_0) {
        sl_encode_q8_0_quad(quad, row, i, i < width);
        return;
    }
    if (i >= width) {
        return;
    }
    switch (type) {
    case SL_QTYPE_F32:
        sl_store_quad<ALIGNED>((float *)(void *)row, i, width, quad);
        break;
    case SL_QTYPE_F16:
        if (ALIGNED) {
            *(uint2 *)(void *)(row + 2 * i) = sl_f16_quad(quad);
        } else {
            sl_encode_elements<uint16_t>(quad, row, i, width, [](float v) { return sl_f32_to_f16(v); });
        }
        break;
    case SL_QTYPE_FP8:
        if (ALIGNED) {
            *(uint32_t *)(void *)(row + i) = sl_e4m3_quad(quad);
        } else {
            sl_encode_elements<uint8_t>(quad, row, i, width, [](float v) { return sl_f32_to_e4m3(v); });
        }
        break;
    default:
        sl_store_bf16_quad<ALIGNED>((uint16_t *)(void *)row, i, width, quad);
        break;
    }
}

#endif
