/* Q6_K. */
#ifndef SL_BACKEND_CUDA_TYPES_Q6_K_CUH
#define SL_BACKEND_CUDA_TYPES_Q6_K_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q6_K>(const unsigned char *row, int32_t i) {
    const sl_block_q6_k *block = (const sl_block_q6_k *)row + i / 256;
    const int half = i % 256 / 128, r = i % 128 / 32, c = i % 32;
    const int low = (block->low[64 * half + 32 * (r % 2) + c] >> 4 * (r / 2)) & 15;
    const int high = (block->high[32 * half + c] >> 2 * r) & 3;
    return sl_f16_to_f32(block->scale) * (float)block->scales[i % 256 / 16] * (float)((low | high << 4) - 32);
}

template <> struct sl_group_kind<SL_QTYPE_Q6_K> : sl_group_kind_of<false, true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q6_K>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 8) * SL_Q6_K_BYTES;
    const int32_t half = g % 8 / 4, r = g % 4;
    const unsigned char *low = block + 64 * half + 32 * (r % 2), *high = block + 128 + 32 * half;
    const int8_t *scales = (const int8_t *)block + 192;
    w->scale = sl_half_at(block + 208);
    w->factor0 = scales[2 * (g % 8)];
    w->factor1 = scales[2 * (g % 8) + 1];
    uint32_t low_words[8], high_words[8];
    sl_load_words<8>(low, low_words);
    sl_load_words<8>(high, high_words);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t quants =
            (low_words[i] >> 4 * (r / 2) & 0x0f0f0f0fu) | (high_words[i] >> 2 * r & 0x03030303u) << 4;
        w->words[i] = sl_subtract_each(quants, 32);
    }
}

template <> struct decode_part<SL_QTYPE_Q6_K> {
    enum { elements = 256, bytes = SL_Q6_K_BYTES };
    uint32_t low[2], high[2], scale;
    int32_t factors[2];
    /* part: half, then the lower or upper two of the half's four groups of 32, then a quarter of a group */
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        const int8_t *all = (const int8_t *)block + 192;
        decode_load_even(block + 8 * part, low);
        decode_load_even(block + 128 + 32 * (part / 8) + 8 * (part % 4), high);
        factors[0] = all[first(part) / 16];
        factors[1] = all[second(part) / 16];
        scale = *(const uint16_t *)(block + 208);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 128 * (part / 8) + 32 * (part / 4 % 2) + 8 * (part % 4);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 64;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const float all = sl_half_of(scale) * (float)factors[i];
        const int32_t bits = 2 * (part / 4 % 2) + 4 * i;
        return decode_eight(
            make_uint2((low[0] >> 4 * i & 0x0f0f0f0fu) | (high[0] >> bits & 0x03030303u) << 4,
                       (low[1] >> 4 * i & 0x0f0f0f0fu) | (high[1] >> bits & 0x03030303u) << 4),
            all, -32800.0f * all);
    }
};

template <> struct decode_pair<SL_QTYPE_Q6_K> : decode_part<SL_QTYPE_Q6_K> {
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const int32_t bits = 2 * (part / 4 % 2) + 4 * i;
        return decode_eight_scaled(
            make_uint2((low[0] >> 4 * i & 0x0f0f0f0fu) | (high[0] >> bits & 0x03030303u) << 4,
                       (low[1] >> 4 * i & 0x0f0f0f0fu) | (high[1] >> bits & 0x03030303u) << 4),
            sl_half_of(scale) * SKINNY_UP * (float)factors[i], SKINNY_OFFSET_Q6_K);
    }
};

#endif
