/* Q5_K. */
#ifndef SL_BACKEND_CUDA_TYPES_Q5_K_CUH
#define SL_BACKEND_CUDA_TYPES_Q5_K_CUH

#include "backend/cuda/types/q4_k.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q5_K>(const unsigned char *row, int32_t i) {
    const sl_block_q5_k *block = (const sl_block_q5_k *)row + i / 256;
    const uint32_t group = i % 256 / 32;
    uint8_t scale, min;
    sl_q4_k_group(block->scales, group, &scale, &min);
    return sl_f16_to_f32(block->scale) * (float)scale * (float)sl_q5_k_quant(block, group, (uint32_t)i % 32) -
           sl_f16_to_f32(block->min_scale) * (float)min;
}

/* Blocks of 176 bytes: rows are aligned to 16. */
template <> struct sl_group_kind<SL_QTYPE_Q5_K> : sl_group_kind_of<true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q5_K>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 8) * SL_Q5_K_BYTES;
    const uint32_t group = (uint32_t)g % 8;
    sl_load_kquant_factors(block, group, w);
    const uint32_t *highs = (const uint32_t *)(block + 16);
    const uint32_t *lows = (const uint32_t *)(block + 48 + 32 * (group / 2));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t low = lows[i] >> 4 * (group % 2) & 0x0f0f0f0fu;
        w->words[i] = (int32_t)(low | (highs[i] >> group & 0x01010101u) << 4);
    }
}

template <> struct decode_part<SL_QTYPE_Q5_K> {
    enum { elements = 256, bytes = SL_Q5_K_BYTES };
    uint4 header;
    uint2 low, high;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        header = *(const uint4 *)block;
        high = *(const uint2 *)(block + 16 + 8 * (part % 4));
        low = *(const uint2 *)(block + 48 + 8 * part);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 64 * (part / 4) + 8 * (part % 4);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 32;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        float scale, constant;
        const int32_t group = part / 4 * 2 + i;
        decode_k_scales(header, group, &scale, &constant);
        return decode_eight(make_uint2((low.x >> 4 * i & 0x0f0f0f0fu) | (high.x >> group & 0x01010101u) << 4,
                                       (low.y >> 4 * i & 0x0f0f0f0fu) | (high.y >> group & 0x01010101u) << 4),
                            scale, constant);
    }
};

template <> struct decode_pair<SL_QTYPE_Q5_K> : decode_part<SL_QTYPE_Q5_K> {
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const int32_t group = part / 4 * 2 + i;
        return decode_eight_k(
            make_uint2((low.x >> 4 * i & 0x0f0f0f0fu) | (high.x >> group & 0x01010101u) << 4,
                       (low.y >> 4 * i & 0x0f0f0f0fu) | (high.y >> group & 0x01010101u) << 4),
            header, group, 15.5f);
    }
};

#endif
