/* Q4_K, and what Q5_K has in common with it. */
#ifndef SL_BACKEND_CUDA_TYPES_Q4_K_CUH
#define SL_BACKEND_CUDA_TYPES_Q4_K_CUH

#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_Q4_K>(const unsigned char *row, int32_t i) {
    const sl_block_q4_k *block = (const sl_block_q4_k *)row + i / 256;
    const uint32_t group = i % 256 / 32;
    uint8_t scale, min;
    sl_q4_k_group(block->scales, group, &scale, &min);
    const int quant = (block->quants[32 * (group / 2) + i % 32] >> 4 * (group % 2)) & 15;
    return sl_f16_to_f32(block->scale) * (float)scale * (float)quant -
           sl_f16_to_f32(block->min_scale) * (float)min;
}

/* What Q4_K and Q5_K blocks begin with: both factors, and a scale and a minimum for each of eight groups. */
static __device__ __forceinline__ void sl_load_kquant_factors(const unsigned char *block, uint32_t group,
                                                              sl_group32 *w) {
    uint8_t scale, min;
    sl_q4_k_group(block + 4, group, &scale, &min);
    w->scale = sl_half_at(block) * (float)scale;
    w->min = sl_half_at(block + 2) * (float)min;
}

/* Blocks of 144 bytes: rows are aligned to 16. */
template <> struct sl_group_kind<SL_QTYPE_Q4_K> : sl_group_kind_of<true> {};

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q4_K>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)(g / 8) * SL_Q4_K_BYTES;
    const uint32_t group = (uint32_t)g % 8;
    sl_load_kquant_factors(block, group, w);
    const uint4 *quants = (const uint4 *)(block + 16 + 32 * (group / 2));
    const uint4 low = quants[0], high = quants[1];
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w->words[i] = (int32_t)(words[i] >> 4 * (group % 2) & 0x0f0f0f0fu);
    }
}

/* Scale and minimum of group `group` of Q4_K and Q5_K, from the header's 16 bytes, as decode_eight takes
 * them. */
static __device__ __forceinline__ void decode_k_scales(uint4 header, int32_t group, float *scale,
                                                       float *constant) {
    const int32_t bits = 8 * (group % 4);
    const uint32_t a = header.y >> bits, b = header.z >> bits, c = header.w >> bits;
    const uint32_t s = group >= 4 ? (c & 15u) | (a >> 2 & 48u) : a & 63u;
    const uint32_t m = group >= 4 ? (c >> 4 & 15u) | (b >> 2 & 48u) : b & 63u;
    const float all = sl_half_of(header.x), min = sl_half_of(header.x >> 16);
    *scale = fmaf(decode_byte(s, 0), all, -32768.0f * all);
    *constant = fmaf(-32768.0f, *scale, -fmaf(decode_byte(m, 0), min, -32768.0f * min));
}

template <> struct decode_part<SL_QTYPE_Q4_K> {
    enum { elements = 256, bytes = SL_Q4_K_BYTES };
    uint4 header;
    uint2 quants;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        header = *(const uint4 *)block;
        quants = *(const uint2 *)(block + 16 + 8 * part);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 64 * (part / 4) + 8 * (part % 4);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 32;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        float scale, constant;
        decode_k_scales(header, part / 4 * 2 + i, &scale, &constant);
        return decode_eight(make_uint2(quants.x >> 4 * i & 0x0f0f0f0fu, quants.y >> 4 * i & 0x0f0f0f0fu),
                            scale, constant);
    }
};

/* Of Q4_K and Q5_K; `middle` of a quant's range. */
static __device__ __forceinline__ uint4 decode_eight_k(uint2 bytes, uint4 header, int32_t group,
                                                       float middle) {
    const int32_t bits = 8 * (group % 4);
    const uint32_t a = header.y >> bits, b = header.z >> bits, c = header.w >> bits;
    const uint32_t s = group >= 4 ? (c & 15u) | (a >> 2 & 48u) : a & 63u;
    const uint32_t m = group >= 4 ? (c >> 4 & 15u) | (b >> 2 & 48u) : b & 63u;
    const float scale = (float)s * (sl_half_of(header.x) * SKINNY_UP);
    const float min = sl_half_of(header.x >> 16) * -SKINNY_DOWN;
    const float taken = __uint_as_float(sl_bf16_pair(0.0f, scale));
    return decode_eight_pairs(bytes, skinny_twice(taken),
                              skinny_twice(fmaf(middle * SKINNY_BIT, scale - taken, (float)m * min)));
}

template <> struct decode_pair<SL_QTYPE_Q4_K> : decode_part<SL_QTYPE_Q4_K> {
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        return decode_eight_k(make_uint2(quants.x >> 4 * i & 0x0f0f0f0fu, quants.y >> 4 * i & 0x0f0f0f0fu),
                              header, part / 4 * 2 + i, 7.5f);
    }
};

#endif
