/* Single elements of keys and values, from the types that caches have. */
#ifndef SL_BACKEND_CUDA_TYPES_CACHE_ELEMENT_CUH
#define SL_BACKEND_CUDA_TYPES_CACHE_ELEMENT_CUH

#include "backend/cuda/common/quad.cuh"

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

/* Elements [i, i + 4) of a row that ends at `width`; what lies behind counts as 0. ALIGNED: width is a
 * multiple of 4. */
template <int TYPE, bool ALIGNED>
static __device__ __forceinline__ float4 sl_cache_quad(const unsigned char *row, int32_t i, int32_t width) {
    if constexpr (TYPE == SL_QTYPE_F32) {
        return sl_load_quad<ALIGNED>((const float *)(const void *)row, i, width);
    } else if constexpr (ALIGNED && (TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16)) {
        const uint2 pairs = *(const uint2 *)(const void *)(row + 2 * i);
        const auto one = [](uint32_t bits) {
            return TYPE == SL_QTYPE_F16 ? sl_half_of(bits & 0xffff) : sl_bf16_to_f32((uint16_t)bits);
        };
        return make_float4(one(pairs.x), one(pairs.x >> 16), one(pairs.y), one(pairs.y >> 16));
    } else if constexpr (ALIGNED && TYPE == SL_QTYPE_FP8) {
        const uint32_t bytes = *(const uint32_t *)(const void *)(row + i);
        return make_float4(sl_e4m3_to_f32((uint8_t)bytes), sl_e4m3_to_f32((uint8_t)(bytes >> 8)),
                           sl_e4m3_to_f32((uint8_t)(bytes >> 16)), sl_e4m3_to_f32((uint8_t)(bytes >> 24)));
    } else {
        float values[SL_QUAD];
#pragma unroll
        for (int k = 0; k < SL_QUAD; k++) {
            values[k] = ALIGNED || i + k < width ? sl_cache_element<TYPE>(row, i + k) : 0.0f;
        }
        return make_float4(values[0], values[1], values[2], values[3]);
    }
}

/* A number as a type. */
template <int NUMBER> struct sl_constant {
    enum { VALUE = NUMBER };
};

/* call(constant), whose VALUE is the type of a cache. */
template <typename CALL> static inline cudaError_t sl_with_cache_type(sl_qtype type, CALL call) {
    switch (type) {
    case SL_QTYPE_F32:
        return call(sl_constant<SL_QTYPE_F32>{});
    case SL_QTYPE_F16:
        return call(sl_constant<SL_QTYPE_F16>{});
    case SL_QTYPE_FP8:
        return call(sl_constant<SL_QTYPE_FP8>{});
    case SL_QTYPE_Q8_0:
        return call(sl_constant<SL_QTYPE_Q8_0>{});
    default:
        return call(sl_constant<SL_QTYPE_BF16>{});
    }
}

#endif
