/* IQ4_NL and IQ4_XS. */
#ifndef SL_BACKEND_CUDA_TYPES_IQ4_CUH
#define SL_BACKEND_CUDA_TYPES_IQ4_CUH

#include "backend/cuda/types/blocks.cuh"
#include "backend/cuda/types/type.cuh"

template <>
__device__ __forceinline__ float sl_element<SL_QTYPE_IQ4_NL>(const unsigned char *row, int32_t i) {
    const sl_block_iq4_nl *block = (const sl_block_iq4_nl *)row + i / 32;
    const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
    return sl_f16_to_f32(block->scale) * (float)sl_iq4_value((uint32_t)quant);
}

template <>
__device__ __forceinline__ float sl_element<SL_QTYPE_IQ4_XS>(const unsigned char *row, int32_t i) {
    const sl_block_iq4_xs *block = (const sl_block_iq4_xs *)row + i / 256;
    const int quant = (block->quants[16 * (i % 256 / 32) + i % 16] >> 4 * (i % 32 / 16)) & 15;
    return sl_f16_to_f32(block->scale) * (float)sl_iq4_xs_scale(block, (uint32_t)i % 256 / 32) *
           (float)sl_iq4_value((uint32_t)quant);
}

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_IQ4_NL>(const unsigned char *row, int32_t g,
                                                               sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_IQ4_NL_BYTES;
    uint32_t words[4];
    sl_load_words<4>(block + 2, words);
    w->scale = sl_half_at(block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sl_look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, words[i], &w->words[i], &w->words[4 + i]);
    }
}

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_IQ4_XS>(const unsigned char *row, int32_t g,
                                                               sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 8) * SL_IQ4_XS_BYTES;
    const uint2 *words = (const uint2 *)(block + 8 + 16 * (g % 8));
    const uint2 a = words[0], b = words[1];
    w->scale = sl_half_at(block) * (float)sl_iq4_xs_scale((const sl_block_iq4_xs *)block, (uint32_t)g % 8);
    sl_look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, a.x, &w->words[0], &w->words[4]);
    sl_look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, a.y, &w->words[1], &w->words[5]);
    sl_look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, b.x, &w->words[2], &w->words[6]);
    sl_look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, b.y, &w->words[3], &w->words[7]);
}

template <>
struct decode_part<SL_QTYPE_IQ4_NL>
    : decode_part_of_group<SL_QTYPE_IQ4_NL, SL_IQ4_NL_ELEMENTS, SL_IQ4_NL_BYTES> {};

template <>
struct decode_part<SL_QTYPE_IQ4_XS>
    : decode_part_of_group<SL_QTYPE_IQ4_XS, SL_IQ4_XS_ELEMENTS, SL_IQ4_XS_BYTES> {};

#define SL_IQ4_NEGATIVES 0x0a1623314153687full /* -sl_iq4_value(0..7); SL_IQ4_VALUES_1 has the others */

static __device__ __forceinline__ void sl_iq4_bytes(uint32_t nibbles, uint32_t quants[2], uint32_t less[2]) {
    const uint32_t turned = nibbles ^ 0x88888888u;
    quants[0] = sl_table_bytes(SL_IQ4_VALUES_1, turned);
    quants[1] = sl_table_bytes(SL_IQ4_VALUES_1, turned >> 16);
    less[0] = sl_table_bytes(SL_IQ4_NEGATIVES, nibbles);
    less[1] = sl_table_bytes(SL_IQ4_NEGATIVES, nibbles >> 16);
}

template <> struct sl_block32<SL_QTYPE_IQ4_NL> : sl_block32_of<SL_QTYPE_IQ4_NL> {
    enum { TABLE = 1, SPLIT = 1 };
    static constexpr uint64_t VALUES_0 = SL_IQ4_VALUES_0, VALUES_1 = SL_IQ4_VALUES_1;
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_IQ4_NL_BYTES * g + 2, i);
    }
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_IQ4_NL_BYTES * g);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t less[2]) {
        sl_iq4_bytes(sl_block32::nibbles(w, g, i), quants, less);
    }
};

template <> struct sl_block32<SL_QTYPE_IQ4_XS> : sl_block32_of<SL_QTYPE_IQ4_XS> {
    enum { TABLE = 1, SPLIT = 1, PAIR = 32, APART = 1 };
    static constexpr uint64_t VALUES_0 = SL_IQ4_VALUES_0, VALUES_1 = SL_IQ4_VALUES_1;
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(8 + 16 * g, i);
    }
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        const uint32_t first = w.word(0, 0), low = w.word(4, 0) >> 4 * g & 15u;
        const uint32_t high = first >> (16 + 2 * g) << 4 & 48u;
        const int32_t bits = SL_FLOAT_OF_INT_BITS - 32 + (int32_t)(low | high);
        return sl_half_of(first & 0xffffu) * (__int_as_float(bits) - SL_FLOAT_OF_INT);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t less[2]) {
        sl_iq4_bytes(sl_block32::nibbles(w, g, i), quants, less);
    }
};

#endif
