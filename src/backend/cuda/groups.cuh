/* Quantised weights in the file's layout, decoded 32 at a time. */
#ifndef SL_BACKEND_CUDA_GROUPS_CUH
#define SL_BACKEND_CUDA_GROUPS_CUH

#include "backend/cuda/device.cuh"

/* ---- bits ---- */

static __device__ __forceinline__ float sl_half_at(const unsigned char *at) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*(const uint16_t *)at));
    return value;
}

/* Words at any address, from aligned loads: where it is not a multiple of four, the bytes before and behind
 * that complete a word are read too. Before lie others of the block or of the row; behind, others of it, or
 * the padding of the weight. Without a branch, so that the loads of several groups can be under way at once.
 */
template <int WORDS>
static __device__ __forceinline__ void sl_load_words(const unsigned char *at, uint32_t words[WORDS]) {
    const uint32_t odd = (uint32_t)(uint64_t)at & 3u;
    const uint32_t *aligned = (const uint32_t *)(at - odd);
    uint32_t before = aligned[0];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const uint32_t next = i + 1 < WORDS ? aligned[i + 1] : aligned[WORDS - 1 + (odd + 3) / 4];
        words[i] = __funnelshift_r(before, next, 8 * odd);
        before = next;
    }
}

/* Each byte minus `value`; bytes are below 128 and the difference fits int8. */
static __device__ __forceinline__ int32_t sl_subtract_each(uint32_t word, uint32_t value) {
    return (int32_t)__vsub4(word, value * 0x01010101u);
}

/* Four bits as bytes of 0 or 1. */
static __device__ __forceinline__ uint32_t sl_spread_bits(uint32_t bits) {
    return (bits & 15u) * 0x00204081u & 0x01010101u;
}

/* Sixteen signed bytes, looked up by the eight nibbles of a word: those of the low nibbles and of the high
 * ones. A byte permutation chooses among eight bytes, so twice, and once more by the nibbles' upper bits. */
static __device__ __forceinline__ void sl_look_up(uint64_t values_0, uint64_t values_1, uint32_t nibbles,
                                                  int32_t *low, int32_t *high) {
    uint32_t found[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t four = nibbles >> 16 * i, index = four & 0x7777u;
        const uint32_t a = __byte_perm((uint32_t)values_0, (uint32_t)(values_0 >> 32), index);
        const uint32_t b = __byte_perm((uint32_t)values_1, (uint32_t)(values_1 >> 32), index);
        found[i] = __byte_perm(a, b, 0x3210u | (four & 0x8888u) >> 1);
    }
    *low = (int32_t)__byte_perm(found[0], found[1], 0x6420);
    *high = (int32_t)__byte_perm(found[0], found[1], 0x7531);
}

/* ---- groups ---- */

/* 32 integers of a weight row. With h the half that element i is in, its value is
 *     (scale * factor_h) * q[i] - min * min_factor_h
 * where a type has no factors they count as 1, without a minimum that is 0; they are undefined then. A type
 * with two scales has scale * q[i] in the first half and upper * q[i] in the second. Rounded after each
 * operation as it stands, that is the reference decode. */
typedef struct sl_group32 {
    int32_t words[8]; /* q[4 i + b], signed, is byte b of words[i] */
    float scale, min, upper;
    int32_t factor0, factor1, min_factor0, min_factor1; /* -128..127 */
} sl_group32;

template <int TYPE> struct sl_group_kind {
    enum {
        HAS_MIN = TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K || TYPE == SL_QTYPE_Q4_1 ||
                  TYPE == SL_QTYPE_Q5_1 || TYPE == SL_QTYPE_Q2_K,
        HAS_FACTORS = TYPE == SL_QTYPE_Q6_K || TYPE == SL_QTYPE_Q3_K || TYPE == SL_QTYPE_Q2_K,
        HAS_MIN_FACTORS = TYPE == SL_QTYPE_Q2_K,
        HAS_UPPER = TYPE == SL_QTYPE_NVFP4 || TYPE == SL_QTYPE_NVFP4_128
    };
};

/* Group g of a row in the file's layout: elements 32 g .. 32 g + 31. */
template <int TYPE>
static __device__ __forceinline__ void sl_load_group(const unsigned char *row, int32_t g, sl_group32 *w);

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

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_Q4_0>(const unsigned char *row, int32_t g,
                                                             sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_Q4_0_BYTES;
    uint32_t words[4];
    sl_load_words<4>(block + 2, words);
    w->scale = sl_half_at(block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w->words[i] = sl_subtract_each(words[i] & 0x0f0f0f0fu, 8);
        w->words[4 + i] = sl_subtract_each(words[i] >> 4 & 0x0f0f0f0fu, 8);
    }
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

/* Blocks of 176 bytes: rows are aligned to 16. */
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
__device__ __forceinline__ void sl_load_group<SL_QTYPE_MXFP4>(const unsigned char *row, int32_t g,
                                                              sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_MXFP4_BYTES;
    uint32_t words[4];
    sl_load_words<4>(block + 1, words);
    w->scale = sl_mxfp4_scale(block[0]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, words[i], &w->words[i], &w->words[4 + i]);
    }
}

/* The integers of a group of NVFP4, from four words. */
static __device__ __forceinline__ void sl_look_up_nvfp4(const uint32_t *words, sl_group32 *w) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, words[i], &w->words[at], &w->words[at + 2]);
    }
}

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

/* Elements 4 i .. 4 i + 3 of a group, with the bits of the reference decode. */
template <int TYPE> static __device__ __forceinline__ float4 sl_group_values(const sl_group32 &w, int i) {
    float scale = sl_group_kind<TYPE>::HAS_UPPER && i >= 4 ? w.upper : w.scale, min = w.min;
    if (sl_group_kind<TYPE>::HAS_FACTORS) {
        scale = scale * (float)(i < 4 ? w.factor0 : w.factor1);
    }
    if (sl_group_kind<TYPE>::HAS_MIN_FACTORS) {
        min = min * (float)(i < 4 ? w.min_factor0 : w.min_factor1);
    }
    float values[4];
#pragma unroll
    for (int b = 0; b < 4; b++) {
        values[b] = scale * (float)(int8_t)(w.words[i] >> 8 * b);
        if (sl_group_kind<TYPE>::HAS_MIN) {
            values[b] = values[b] - min;
        }
    }
    return make_float4(values[0], values[1], values[2], values[3]);
}

#endif
