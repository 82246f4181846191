/* Q5_0 and Q5_1. */
#ifndef SL_BACKEND_CUDA_TYPES_Q5_CUH
#define SL_BACKEND_CUDA_TYPES_Q5_CUH

#include "backend/cuda/types/blocks.cuh"
#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q5_0>(const unsigned char *row, int32_t i) {
    const sl_block_q5_0 *block = (const sl_block_q5_0 *)row + i / 32;
    const int quant = sl_q5_quant(block->high, block->quants, (uint32_t)i % 32);
    return (float)(quant - 16) * sl_f16_to_f32(block->scale);
}

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q5_1>(const unsigned char *row, int32_t i) {
    const sl_block_q5_1 *block = (const sl_block_q5_1 *)row + i / 32;
    const int quant = sl_q5_quant(block->high, block->quants, (uint32_t)i % 32);
    return (float)quant * sl_f16_to_f32(block->scale) + sl_f16_to_f32(block->min);
}

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q5_0>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_Q5_0_BYTES;
    uint32_t words[5];
    sl_load_words<5>(block + 2, words);
    w->scale = sl_half_at(block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = sl_spread_bits(words[0] >> 4 * i),
                       high = sl_spread_bits(words[0] >> (16 + 4 * i));
        w->words[i] = sl_subtract_each((words[1 + i] & 0x0f0f0f0fu) | low << 4, 16);
        w->words[4 + i] = sl_subtract_each((words[1 + i] >> 4 & 0x0f0f0f0fu) | high << 4, 16);
    }
}

template <> struct sl_group_kind<SL_QTYPE_Q5_1> : sl_group_kind_of<true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q5_1>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_Q5_1_BYTES;
    const uint32_t *words = (const uint32_t *)(block + 4);
    w->scale = sl_half_at(block);
    w->min = -sl_half_at(block + 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = sl_spread_bits(words[0] >> 4 * i),
                       high = sl_spread_bits(words[0] >> (16 + 4 * i));
        w->words[i] = (int32_t)((words[1 + i] & 0x0f0f0f0fu) | low << 4);
        w->words[4 + i] = (int32_t)((words[1 + i] >> 4 & 0x0f0f0f0fu) | high << 4);
    }
}

template <>
struct decode_part<SL_QTYPE_Q5_0> : decode_part_of_group<SL_QTYPE_Q5_0, SL_Q5_0_ELEMENTS, SL_Q5_0_BYTES> {};

template <>
struct decode_part<SL_QTYPE_Q5_1> : decode_part_of_group<SL_QTYPE_Q5_1, SL_Q5_1_ELEMENTS, SL_Q5_1_BYTES> {};

template <> struct sl_block32<SL_QTYPE_Q5_0> : sl_block32_of<SL_QTYPE_Q5_0> {
    enum { OFFSET = 16, FIFTHS = 1 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q5_0_BYTES * g);
    }
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_Q5_0_BYTES * g + 6, i);
    }
    template <typename WORDS> static __device__ __forceinline__ uint32_t fifths(const WORDS &w, int g) {
        return w.word(SL_Q5_0_BYTES * g + 2, 0);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        sl_nibbles(sl_block32::nibbles(w, g, i), quants);
        sl_fifth_bits(fifths(w, g), i, quants);
    }
};

template <> struct sl_block32<SL_QTYPE_Q5_1> : sl_block32_of<SL_QTYPE_Q5_1> {
    enum { MIN = 1, FIFTHS = 1 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q5_1_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q5_1_BYTES * g + 2);
    }
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_Q5_1_BYTES * g + 8, i);
    }
    template <typename WORDS> static __device__ __forceinline__ uint32_t fifths(const WORDS &w, int g) {
        return w.word(SL_Q5_1_BYTES * g + 4, 0);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        sl_nibbles(sl_block32::nibbles(w, g, i), quants);
        sl_fifth_bits(fifths(w, g), i, quants);
    }
};

#endif
