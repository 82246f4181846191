/* Q2_K. */
#ifndef SL_BACKEND_CUDA_TYPES_Q2_K_CUH
#define SL_BACKEND_CUDA_TYPES_Q2_K_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q2_K>(const unsigned char *row, int32_t i) {
    const sl_block_q2_k *block = (const sl_block_q2_k *)row + i / 256;
    const int numbers = block->scales[i % 256 / 16];
    const int quant = (block->quants[32 * (i % 256 / 128) + i % 32] >> 2 * (i % 128 / 32)) & 3;
    return sl_f16_to_f32(block->scale) * (float)(numbers & 15) * (float)quant -
           sl_f16_to_f32(block->min_scale) * (float)(numbers >> 4);
}

template <> struct sl_group_kind<SL_QTYPE_Q2_K> : sl_group_kind_of<true, true, true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q2_K>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 8) * SL_Q2_K_BYTES, *scales = block + 2 * (g % 8);
    const uint32_t *words = (const uint32_t *)(block + 16 + 32 * (g % 8 / 4));
    w->scale = sl_half_at(block + 80);
    w->min = sl_half_at(block + 82);
    w->factor0 = scales[0] & 15;
    w->factor1 = scales[1] & 15;
    w->min_factor0 = scales[0] >> 4;
    w->min_factor1 = scales[1] >> 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w->words[i] = (int32_t)(words[i] >> 2 * (g % 4) & 0x03030303u);
    }
}

template <>
struct decode_part<SL_QTYPE_Q2_K> : decode_part_of_group<SL_QTYPE_Q2_K, SL_Q2_K_ELEMENTS, SL_Q2_K_BYTES> {};

#endif
