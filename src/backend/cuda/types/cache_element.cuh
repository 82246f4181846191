/* Single elements of keys and values, from the types that caches have. */
#ifndef SL_BACKEND_CUDA_TYPES_CACHE_ELEMENT_CUH
#define SL_BACKEND_CUDA_TYPES_CACHE_ELEMENT_CUH

#include "backend/cuda/common/device.cuh"

template <int TYPE>
static __device__ __forceinline__ float sl_cache_element(const unsigned char *row, int32_t i) {
    if (TYPE == SL_QTYPE_F32) {
        return ((const float *)row)[i];
    }
    if (TYPE == SL_QTYPE_F16) {
        return sl_half_of(((const uint16_t *)row)[i]);
    }
    if (TYPE == SL_QTYPE_BF16) {
        return sl_bf16_to_f32(((const uint16_t *)row)[i]);
    }
    if (TYPE == SL_QTYPE_FP8) {
        return sl_e4m3_to_f32(row[i]);
    }
    const unsigned char *block = row + (uint64_t)(i / 32) * SL_Q8_0_BYTES;
    return (float)(int8_t)block[2 + i % 32] * sl_half_of(*(const uint16_t *)block);
}

#endif
