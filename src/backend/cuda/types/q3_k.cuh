/* Q3_K. */
#ifndef SL_BACKEND_CUDA_TYPES_Q3_K_CUH
#define SL_BACKEND_CUDA_TYPES_Q3_K_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q3_K>(const unsigned char *row, int32_t i) {
    const sl_block_q3_k *block = (const sl_block_q3_k *)row + i / 256;
    const int low = (block->quants[32 * (i % 256 / 128) + i % 32] >> 2 * (i % 128 / 32)) & 3;
    const int high = (block->high[i % 32] >> i % 256 / 32) & 1;
    return sl_f16_to_f32(block->scale) * (float)sl_q3_k_scale(block->scales, (uint32_t)i % 256 / 16) *
           (float)(low + 4 * high - 4);
}

template <> struct sl_group_kind<SL_QTYPE_Q3_K> : sl_group_kind_of<false, true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q3_K>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 8) * SL_Q3_K_BYTES;
    uint32_t low_words[8], high_words[8];
    sl_load_words<8>(block + 32 + 32 * (g % 8 / 4), low_words);
    sl_load_words<8>(block, high_words);
    w->scale = sl_half_at(block + 108);
    w->factor0 = sl_q3_k_scale(block + 96, 2 * ((uint32_t)g % 8));
    w->factor1 = sl_q3_k_scale(block + 96, 2 * ((uint32_t)g % 8) + 1);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t low = low_words[i] >> 2 * (g % 4) & 0x03030303u;
        w->words[i] = sl_subtract_each(low | (high_words[i] >> g % 8 & 0x01010101u) << 2, 4);
    }
}

template <>
struct decode_part<SL_QTYPE_Q3_K> : decode_part_of_group<SL_QTYPE_Q3_K, SL_Q3_K_ELEMENTS, SL_Q3_K_BYTES> {};

#endif
