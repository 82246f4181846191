/* Tensor maps over the pages of a cache group. */
#include "backend/cuda/attention/page_maps.cuh"

static cudaError_t make_map(const sl_cuda_cache *cache, uint32_t rows, bool is_key, CUtensorMap *map) {
    const bool bytes = cache->type == SL_QTYPE_FP8;
    const uint64_t key_rows = (uint64_t)cache->kv_heads * SL_PAGE_TOKENS;
    const uint64_t size = (uint64_t)(is_key ? cache->key_size : cache->value_size);
    const uint64_t row_bytes = is_key ? cache->key_bytes : cache->value_bytes;
    const sl_cuda_tensor tensor = {cache->pages + (is_key ? 0 : cache->values),
                                   bytes ? 1 : 2,
                                   {size, key_rows, INT32_MAX},
                                   {row_bytes, cache->layer_bytes},
                                   {bytes ? 128u : 64u, rows},
                                   true};
    return sl_cuda_tensor_map(&tensor, map);
}

cudaError_t sl_page_maps_make(const sl_cuda_cache *cache, uint32_t rows, mma_maps *maps) {
    const cudaError_t keys = make_map(cache, rows, true, &maps->keys);
    return keys == cudaSuccess ? make_map(cache, rows, false, &maps->values) : keys;
}
