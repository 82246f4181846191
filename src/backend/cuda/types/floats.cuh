/* F32, F16 and BF16. */
#ifndef SL_BACKEND_CUDA_TYPES_FLOATS_CUH
#define SL_BACKEND_CUDA_TYPES_FLOATS_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_F32>(const unsigned char *row, int32_t i) {
    return ((const float *)row)[i];
}

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_F16>(const unsigned char *row, int32_t i) {
    return sl_f16_to_f32(((const uint16_t *)row)[i]);
}

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_BF16>(const unsigned char *row, int32_t i) {
    return sl_bf16_to_f32(((const uint16_t *)row)[i]);
}

template <> struct decode_part<SL_QTYPE_F16> {
    enum { elements = 32, bytes = 64 };
    uint4 halves[2];
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        halves[0] = ((const uint4 *)block)[part];
        halves[1] = ((const uint4 *)block)[part + 2];
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        const uint4 from = halves[i];
        return make_uint4(sl_bf16_pair(sl_half_of(from.x), sl_half_of(from.x >> 16)),
                          sl_bf16_pair(sl_half_of(from.y), sl_half_of(from.y >> 16)),
                          sl_bf16_pair(sl_half_of(from.z), sl_half_of(from.z >> 16)),
                          sl_bf16_pair(sl_half_of(from.w), sl_half_of(from.w >> 16)));
    }
};

#endif
