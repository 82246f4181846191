/* Q8_0. */
#ifndef SL_BACKEND_CUDA_TYPES_Q8_0_CUH
#define SL_BACKEND_CUDA_TYPES_Q8_0_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q8_0>(const unsigned char *row, int32_t i) {
    const sl_block_q8_0 *block = (const sl_block_q8_0 *)row + i / 32;
    return (float)block->quants[i % 32] * sl_f16_to_f32(block->scale);
}

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q8_0>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_Q8_0_BYTES;
    uint32_t words[8];
    sl_load_words<8>(block + 2, words);
    w->scale = sl_half_at(block);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w->words[i] = (int32_t)words[i];
    }
}

template <> struct decode_part<SL_QTYPE_Q8_0> {
    enum { elements = 32, bytes = SL_Q8_0_BYTES };
    uint32_t quants[2][2], scale;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        scale = *(const uint16_t *)block;
        decode_load_even(block + 2 + 8 * part, quants[0]);
        decode_load_even(block + 18 + 8 * part, quants[1]);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        const float all = sl_half_of(scale);
        return decode_eight(make_uint2(quants[i][0] ^ 0x80808080u, quants[i][1] ^ 0x80808080u), all,
                            -32896.0f * all);
    }
};

template <> struct decode_pair<SL_QTYPE_Q8_0> : decode_part<SL_QTYPE_Q8_0> {
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        return decode_eight_scaled(make_uint2(quants[i][0] ^ 0x80808080u, quants[i][1] ^ 0x80808080u),
                                   sl_half_of(scale) * SKINNY_UP, SKINNY_OFFSET_Q8_0);
    }
};

#endif
