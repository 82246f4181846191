/* Tensor maps over the pages of a cache group. */
#include "backend/cuda/flash_hopper.cuh"

#include <cudaTypedefs.h>

static cudaError_t make_map(PFN_cuTensorMapEncodeTiled_v12000 encode, const sl_cuda_cache *cache, bool is_key,
                            CUtensorMap *map) {
    const bool bytes = cache->type == SL_QTYPE_FP8;
    const uint64_t key_rows = (uint64_t)cache->kv_heads * SL_PAGE_TOKENS;
    const uint64_t size = (uint64_t)(is_key ? cache->key_size : cache->value_size);
    const uint64_t row_bytes = is_key ? cache->key_bytes : cache->value_bytes;
    const cuuint64_t sizes[3] = {size, key_rows, INT32_MAX};
    const cuuint64_t strides[2] = {row_bytes, cache->layer_bytes};
    const cuuint32_t box[3] = {bytes ? 128u : 64u, SL_PAGE_TOKENS, 1}, steps[3] = {1, 1, 1};
    const CUresult result =
        encode(map, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 3,
               cache->pages + (is_key ? 0 : key_rows * cache->key_bytes), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t sl_flash_make_maps(const sl_cuda_cache *cache, flash_maps *maps) {
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        return code != cudaSuccess ? code : cudaErrorNotSupported;
    }
    const PFN_cuTensorMapEncodeTiled_v12000 encode = (PFN_cuTensorMapEncodeTiled_v12000)entry;
    const cudaError_t keys = make_map(encode, cache, true, &maps->keys);
    return keys == cudaSuccess ? make_map(encode, cache, false, &maps->values) : keys;
}
