/* Keys and values to the types that caches have. */
#ifndef SL_BACKEND_CUDA_TYPES_CACHE_TYPES_CUH
#define SL_BACKEND_CUDA_TYPES_CACHE_TYPES_CUH

#include "backend/cuda/common/quad.cuh"

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
