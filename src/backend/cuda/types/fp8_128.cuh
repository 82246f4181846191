/* FP8_128. */
#ifndef SL_BACKEND_CUDA_TYPES_FP8_128_CUH
#define SL_BACKEND_CUDA_TYPES_FP8_128_CUH

#include "backend/cuda/types/type.cuh"

template <>
__device__ __forceinline__ float sl_element<SL_QTYPE_FP8_128>(const unsigned char *row, int32_t i) {
    const sl_block_fp8_128 *block = (const sl_block_fp8_128 *)row + i / 128;
    return block->scale * sl_e4m3_to_f32(block->codes[i % 128]);
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
    enum { elements = 128, bytes = SL_FP8_128_BYTES };
    uint32_t codes[2][2];
    float scale;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        const uint32_t *words = (const uint32_t *)(block + 4 + 8 * part);
        scale = *(const float *)block;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            codes[i][0] = words[16 * i];
            codes[i][1] = words[16 * i + 1];
        }
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
            const float2 two = decode_e4m3(codes[i][pair / 2] >> 16 * (pair % 2));
            out[pair] = sl_bf16_pair(scale * two.x, scale * two.y);
        }
        return make_uint4(out[0], out[1], out[2], out[3]);
    }
};

#endif
