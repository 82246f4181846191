/* Q4_0. */
#ifndef SL_BACKEND_CUDA_TYPES_Q4_0_CUH
#define SL_BACKEND_CUDA_TYPES_Q4_0_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q4_0>(const unsigned char *row, int32_t i) {
    const sl_block_q4_0 *block = (const sl_block_q4_0 *)row + i / 32;
    const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
    return (float)(quant - 8) * sl_f16_to_f32(block->scale);
}

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q4_0>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_Q4_0_BYTES;
    uint32_t words[4];
    sl_load_words<4>(block + 2, words);
    w->scale = sl_half_at(block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w->words[i] = sl_subtract_each(words[i] & 0x0f0f0f0fu, 8);
        w->words[4 + i] = sl_subtract_each(words[i] >> 4 & 0x0f0f0f0fu, 8);
    }
}

template <> struct decode_part<SL_QTYPE_Q4_0> {
    enum { elements = 32, bytes = SL_Q4_0_BYTES };
    uint32_t quants[2], scale;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        scale = *(const uint16_t *)block;
        decode_load_even(block + 2 + 8 * part, quants);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        const float all = sl_half_of(scale);
        return decode_eight(make_uint2(quants[0] >> 4 * i & 0x0f0f0f0fu, quants[1] >> 4 * i & 0x0f0f0f0fu),
                            all, -32776.0f * all);
    }
};

template <> struct decode_pair<SL_QTYPE_Q4_0> : decode_part<SL_QTYPE_Q4_0> {
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        return decode_eight_scaled(
            make_uint2(quants[0] >> 4 * i & 0x0f0f0f0fu, quants[1] >> 4 * i & 0x0f0f0f0fu),
            sl_half_of(scale) * SKINNY_UP, SKINNY_OFFSET_Q4_0);
    }
};

#endif
