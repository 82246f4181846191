/* NVFP4 and NVFP4_128. */
#ifndef SL_BACKEND_CUDA_TYPES_NVFP4_CUH
#define SL_BACKEND_CUDA_TYPES_NVFP4_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_NVFP4>(const unsigned char *row, int32_t i) {
    const sl_block_nvfp4 *block = (const sl_block_nvfp4 *)row + i / 64;
    const uint32_t quant = sl_nvfp4_quant(block->quants + 8 * (i % 64 / 16), (uint32_t)i % 16);
    return (float)sl_mxfp4_value(quant) * sl_nvfp4_scale(block->scales[i % 64 / 16]);
}

template <>
__device__ __forceinline__ float sl_element<SL_QTYPE_NVFP4_128>(const unsigned char *row, int32_t i) {
    const sl_block_nvfp4_128 *block = (const sl_block_nvfp4_128 *)row + i / 128;
    const uint32_t quant = sl_nvfp4_quant(block->quants + 8 * (i % 128 / 16), (uint32_t)i % 16);
    return (float)sl_mxfp4_value(quant) * (block->scale * sl_nvfp4_scale(block->scales[i % 128 / 16]));
}

/* The integers of a group of NVFP4, from four words. */
static __device__ __forceinline__ void sl_look_up_nvfp4(const uint32_t *words, sl_group32 *w) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, words[i], &w->words[at], &w->words[at + 2]);
    }
}

template <> struct sl_group_kind<SL_QTYPE_NVFP4> : sl_group_kind_of<false, false, false, true> {};
template <> struct sl_group_kind<SL_QTYPE_NVFP4_128> : sl_group_kind_of<false, false, false, true> {};

/* Blocks of 36 bytes: rows are aligned to 4. */
template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_NVFP4>(const unsigned char *row, int32_t g,
                                                              sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 2) * SL_NVFP4_BYTES, *scales = block + 2 * (g % 2);
    w->scale = sl_nvfp4_scale(scales[0]);
    w->upper = sl_nvfp4_scale(scales[1]);
    sl_look_up_nvfp4((const uint32_t *)(block + 4 + 16 * (g % 2)), w);
}

/* Blocks of 76 bytes: likewise. */
template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_NVFP4_128>(const unsigned char *row, int32_t g,
                                                                  sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 4) * SL_NVFP4_128_BYTES;
    const unsigned char *scales = block + 4 + 2 * (g % 4);
    const float scale = *(const float *)block;
    w->scale = scale * sl_nvfp4_scale(scales[0]);
    w->upper = scale * sl_nvfp4_scale(scales[1]);
    sl_look_up_nvfp4((const uint32_t *)(block + 12 + 16 * (g % 4)), w);
}

template <>
struct decode_part<SL_QTYPE_NVFP4> : decode_part_of_group<SL_QTYPE_NVFP4, SL_NVFP4_ELEMENTS, SL_NVFP4_BYTES> {
};

template <>
struct decode_part<SL_QTYPE_NVFP4_128>
    : decode_part_of_group<SL_QTYPE_NVFP4_128, SL_NVFP4_128_ELEMENTS, SL_NVFP4_128_BYTES> {};

#endif
