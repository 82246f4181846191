/* Writing keys and values into pages, four elements at a time. */
#ifndef SL_BACKEND_CUDA_ROWS_CACHE_WRITE_CUH
#define SL_BACKEND_CUDA_ROWS_CACHE_WRITE_CUH

#include "backend/cuda/rows/row_ops.cuh"
#include "backend/cuda/types/cache_types.cuh"

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

#endif
