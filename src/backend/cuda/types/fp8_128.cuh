/* FP8_128, whose rows lie in planes: sl_fp8_scales_at. */
#ifndef SL_BACKEND_CUDA_TYPES_FP8_128_CUH
#define SL_BACKEND_CUDA_TYPES_FP8_128_CUH

#include "backend/cuda/types/type.cuh"

static __device__ __forceinline__ const float *sl_fp8_scales(const unsigned char *row, uint64_t row_bytes) {
    return (const float *)(row + sl_fp8_scales_at(row_bytes));
}

template <>
__device__ __forceinline__ float sl_row_element<SL_QTYPE_FP8_128>(const unsigned char *row,
                                                                  uint64_t row_bytes, int32_t i) {
    return sl_fp8_scales(row, row_bytes)[i / SL_FP8_128_ELEMENTS] * sl_e4m3_to_f32(row[i]);
}

/* Two codes of E4M3, in the lower half of the word, as f32: their bits are those of a smaller half,
 * subnormals included, and 2^8 makes up for the biases; the processor's own conversion has them all. */
static __device__ __forceinline__ float2 decode_e4m3(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("{.reg .b16 c; cvt.u16.u32 c, %1; cvt.rn.f16x2.e4m3x2 %0, c;}" : "=r"(halves) : "r"(codes));
    return make_float2(sl_half_of(halves), sl_half_of(halves >> 16));
#else
    return make_float2(sl_e4m3_to_f32((uint8_t)codes), sl_e4m3_to_f32((uint8_t)(codes >> 8)));
#endif
}

template <> struct decode_part<SL_QTYPE_FP8_128> {
    enum { elements = SL_FP8_128_ELEMENTS, bytes = SL_FP8_128_BYTES };
    uint2 codes[2];
    float scale;
    /* Of block `block` of a row. */
    __device__ __forceinline__ void load(const unsigned char *row, uint64_t row_bytes, uint32_t block,
                                         int32_t part) {
        const uint2 *eights = (const uint2 *)(row + block * SL_FP8_128_ELEMENTS) + part;
        scale = sl_fp8_scales(row, row_bytes)[block];
        codes[0] = eights[0];
        codes[1] = eights[8];
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 64;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        uint32_t out[4];
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float2 two = decode_e4m3((pair / 2 ? codes[i].y : codes[i].x) >> 16 * (pair % 2));
            out[pair] = sl_bf16_pair(scale * two.x, scale * two.y);
        }
        return make_uint4(out[0], out[1], out[2], out[3]);
    }
};

#endif
