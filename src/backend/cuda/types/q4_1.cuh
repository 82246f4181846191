/* Q4_1. */
#ifndef SL_BACKEND_CUDA_TYPES_Q4_1_CUH
#define SL_BACKEND_CUDA_TYPES_Q4_1_CUH

#include "backend/cuda/types/blocks.cuh"
#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q4_1>(const unsigned char *row, int32_t i) {
    const sl_block_q4_1 *block = (const sl_block_q4_1 *)row + i / 32;
    const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
    return (float)quant * sl_f16_to_f32(block->scale) + sl_f16_to_f32(block->min);
}

template <> struct sl_group_kind<SL_QTYPE_Q4_1> : sl_group_kind_of<true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q4_1>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_Q4_1_BYTES;
    const uint32_t *words = (const uint32_t *)(block + 4);
    w->scale = sl_half_at(block);
    w->min = -sl_half_at(block + 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w->words[i] = (int32_t)(words[i] & 0x0f0f0f0fu);
        w->words[4 + i] = (int32_t)(words[i] >> 4 & 0x0f0f0f0fu);
    }
}

template <>
struct decode_part<SL_QTYPE_Q4_1> : decode_part_of_group<SL_QTYPE_Q4_1, SL_Q4_1_ELEMENTS, SL_Q4_1_BYTES> {};

template <> struct sl_block32<SL_QTYPE_Q4_1> : sl_block32_of<SL_QTYPE_Q4_1> {
    enum { MIN = 1 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q4_1_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q4_1_BYTES * g + 2);
    }
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_Q4_1_BYTES * g + 4, i);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        sl_nibbles(sl_block32::nibbles(w, g, i), quants);
    }
};

#endif
