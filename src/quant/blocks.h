/* Blocks of every weight type as they lie in a GGUF file, shared by C and CUDA.
 *
 * A tensor's row is width / block_elements blocks, one after the other; all numbers are little-endian. The
 * structs are packed, so that a pointer into a mapped file may be used as it is; device code that knows a
 * stronger alignment loads words itself. Nibble n of byte b below means (b >> 4 * n) & 15.
 *
 * Source of the layouts: ggml (block structs in ggml-common.h, dequantize_row_* in ggml-quants.c). */
#ifndef SL_QUANT_BLOCKS_H
#define SL_QUANT_BLOCKS_H

#include "quant/convert.h"

#include <assert.h>
#include <stdint.h>

#define SL_PACKED __attribute__((packed))

/* SL_Q4_K_ELEMENTS, SL_Q4_K_BYTES: one block's elements and bytes. */
enum sl_block_geometry {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    SL_##ID##_ELEMENTS = block_elements, SL_##ID##_BYTES = block_bytes,
#include "quant/qtypes.def"
#undef SL_QTYPE
};

typedef struct SL_PACKED sl_block_f32 {
    float value;
} sl_block_f32;

typedef struct SL_PACKED sl_block_f16 {
    uint16_t value;
} sl_block_f16;

typedef struct SL_PACKED sl_block_bf16 {
    uint16_t value;
} sl_block_bf16;

/* value[i] = scale * quants[i], i in 0..31 */
typedef struct SL_PACKED sl_block_q8_0 {
    uint16_t scale; /* f16 */
    int8_t quants[32];
} sl_block_q8_0;

/* value[i] = scale * (q[i] - 8): q[i] for i in 0..15 is nibble 0 of quants[i], for i in 16..31 nibble 1 of
 * quants[i - 16] */
typedef struct SL_PACKED sl_block_q4_0 {
    uint16_t scale; /* f16 */
    uint8_t quants[16];
} sl_block_q4_0;

/* value[i] = scale * q[i] + min: q as in Q4_0, 0..15 */
typedef struct SL_PACKED sl_block_q4_1 {
    uint16_t scale; /* f16 */
    uint16_t min;   /* f16 */
    uint8_t quants[16];
} sl_block_q4_1;

/* value[i] = scale * (q[i] - 16): the lower four bits of q[i] as in Q4_0; the fifth is bit i % 8 of high[i /
 * 8] */
typedef struct SL_PACKED sl_block_q5_0 {
    uint16_t scale; /* f16 */
    uint8_t high[4];
    uint8_t quants[16];
} sl_block_q5_0;

/* value[i] = scale * q[i] + min: q as in Q5_0, 0..31 */
typedef struct SL_PACKED sl_block_q5_1 {
    uint16_t scale; /* f16 */
    uint16_t min;   /* f16 */
    uint8_t high[4];
    uint8_t quants[16];
} sl_block_q5_1;

/* 8 groups of 32: with g = i / 32, value[i] = (scale * group_scale[g]) * q[i] - (min_scale * group_min[g]).
 *
 * q[i] in 0..15: two groups share 32 bytes, the even one in nibble 0, the odd one in nibble 1:
 *     q[i] = nibble (g % 2) of quants[32 * (g / 2) + i % 32]
 * group_scale and group_min, 0..63, in 12 bytes:
 *     bytes 0..3    bits 0-5 group_scale[0..3]     bits 6-7 the upper two bits of group_scale[4..7]
 *     bytes 4..7    bits 0-5 group_min[0..3]       bits 6-7 the upper two bits of group_min[4..7]
 *     bytes 8..11   bits 0-3 the lower four bits of group_scale[4..7], bits 4-7 of group_min[4..7] */
typedef struct SL_PACKED sl_block_q4_k {
    uint16_t scale;     /* f16, of the group scales */
    uint16_t min_scale; /* f16, of the group minima */
    uint8_t scales[12];
    uint8_t quants[128];
} sl_block_q4_k;

/* As Q4_K with q[i] in 0..31: bit g of high[i % 32] is the fifth bit of q[i]. */
typedef struct SL_PACKED sl_block_q5_k {
    uint16_t scale;     /* f16, of the group scales */
    uint16_t min_scale; /* f16, of the group minima */
    uint8_t scales[12];
    uint8_t high[32];
    uint8_t quants[128];
} sl_block_q5_k;

/* 16 groups of 16: value[i] = (scale * scales[i / 16]) * (q[i] - 32), q[i] in 0..63.
 *
 * The block is two halves of 128 elements; half h has low[64 * h ..] and high[32 * h ..]. Inside a half,
 * element i = 32 * r + c (r in 0..3, c in 0..31) has its lower four bits in nibble (r / 2) of low[32 * (r %
 * 2) + c] and its upper two in bits 2r and 2r + 1 of high[c]. */
typedef struct SL_PACKED sl_block_q6_k {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t scale; /* f16, of the group scales */
} sl_block_q6_k;

/* 16 groups of 16: with s = scales[i / 16], value[i] = (scale * (s & 15)) * q[i] - (min_scale * (s >> 4)),
 * q[i] in 0..3.
 *
 * Two halves of 128 elements; element i = 32 * r + c of half h (r in 0..3, c in 0..31) has its q in bits 2r
 * and 2r + 1 of quants[32 * h + c]. */
typedef struct SL_PACKED sl_block_q2_k {
    uint8_t scales[16];
    uint8_t quants[64];
    uint16_t scale;     /* f16, of the group scales */
    uint16_t min_scale; /* f16, of the group minima */
} sl_block_q2_k;

/* 16 groups of 16: value[i] = (scale * (s[i / 16] - 32)) * (q[i] - 4), q[i] in 0..7, s in 0..63.
 *
 * The lower two bits of q[i] as in Q2_K; the third is bit i / 32 of high[i % 32]. The lower four bits of s[j]
 * are nibble j / 8 of scales[j % 8], the upper two bits 2 (j / 4) and the next of scales[8 + j % 4]. */
typedef struct SL_PACKED sl_block_q3_k {
    uint8_t high[32];
    uint8_t quants[64];
    uint8_t scales[12];
    uint16_t scale; /* f16, of the group scales */
} sl_block_q3_k;

/* value[i] = scale * sl_iq4_value(q[i]): q as in Q4_0 */
typedef struct SL_PACKED sl_block_iq4_nl {
    uint16_t scale; /* f16 */
    uint8_t quants[16];
} sl_block_iq4_nl;

/* 8 groups of 32: value[i] = (scale * (s[g] - 32)) * sl_iq4_value(q[i]), g = i / 32. A group has 16 bytes of
 * quants, as in Q4_0. The lower four bits of s[g] are nibble g % 2 of scales_low[g / 2], the upper two bits
 * 2g and 2g + 1 of scales_high. */
typedef struct SL_PACKED sl_block_iq4_xs {
    uint16_t scale; /* f16, of the group scales */
    uint16_t scales_high;
    uint8_t scales_low[4];
    uint8_t quants[128];
} sl_block_iq4_xs;

/* value[i] = sl_mxfp4_scale(exponent) * sl_mxfp4_value(q[i]): q as in Q4_0. Source of the format: OCP
 * Microscaling Formats (MX) 1.0, MXFP4, with doubled values and half the scale. */
typedef struct SL_PACKED sl_block_mxfp4 {
    uint8_t exponent;
    uint8_t quants[16];
} sl_block_mxfp4;

/* 4 groups of 16: value[i] = sl_nvfp4_scale(scales[i / 16]) * sl_mxfp4_value(q[i]). A group has 8 bytes of
 * quants: q of its elements 0..7 are their nibbles 0, of 8..15 their nibbles 1. */
typedef struct SL_PACKED sl_block_nvfp4 {
    uint8_t scales[4];
    uint8_t quants[32];
} sl_block_nvfp4;

/* Types whose elements come from codebooks of points; codebook.h says what their bits mean. 8 groups of 32:
 * value[i] = (scale * part * (2 s + 1)) * v, where s is a number of the group, or of its half, and v a value
 * of the codebook. */

/* part 1/8, s in 0..15. Of a group: four points of eight elements, then a word: four times seven of eight
 * signs, of which an even number is set, and s in bits 28-31. */
typedef struct SL_PACKED sl_block_iq2_xxs {
    uint16_t scale; /* f16 */
    uint8_t groups[8][8];
} sl_block_iq2_xxs;

/* part 1/8. A point of eight elements is bits 0-8, seven of eight signs bits 9-15; s of a group's first half
 * is nibble 0 of scales[g], of the second half nibble 1. */
typedef struct SL_PACKED sl_block_iq2_xs {
    uint16_t scale; /* f16 */
    uint16_t points[32];
    uint8_t scales[8];
} sl_block_iq2_xs;

/* As IQ2_XS with all signs; the upper two bits of point k of a group are bits 2k and 2k + 1 of high[g]. */
typedef struct SL_PACKED sl_block_iq2_s {
    uint16_t scale; /* f16 */
    uint8_t points[32];
    uint8_t signs[32];
    uint8_t high[8];
    uint8_t scales[8];
} sl_block_iq2_s;

/* part 1/4. A point is four elements; signs and s as in IQ2_XXS. */
typedef struct SL_PACKED sl_block_iq3_xxs {
    uint16_t scale; /* f16 */
    uint8_t points[64];
    uint8_t signs[8][4];
} sl_block_iq3_xxs;

/* part 1. A point is four elements, the ninth bit of point k of a group bit k of high[g]; s is nibble g % 2
 * of scales[g / 2]. */
typedef struct SL_PACKED sl_block_iq3_s {
    uint16_t scale; /* f16 */
    uint8_t points[64];
    uint8_t high[8];
    uint8_t signs[32];
    uint8_t scales[4];
} sl_block_iq3_s;

/* part 1/8, v 8 times an element and 1 more, or 1 less where bit 15 of high[g] is set; s, 0..7, is bits
 * 12-14, the upper three bits of point k bits 3k .. 3k + 2. */
typedef struct SL_PACKED sl_block_iq1_s {
    uint16_t scale; /* f16 */
    uint8_t points[32];
    uint16_t high[8];
} sl_block_iq1_s;

/* As IQ1_S. Nibble k % 2 of high[2g + k / 2] is three bits of point k and whether its v have 1 less. Half j
 * of the block's 16 has s in three bits of scales[j / 4] from 3 (j % 4) on; the four words' upper four bits
 * are the f16 scale, lowest first. */
typedef struct SL_PACKED sl_block_iq1_m {
    uint8_t points[32];
    uint8_t high[16];
    uint16_t scales[4];
} sl_block_iq1_m;

/* value[i] = scale * (t[i] - 1), t in 0..2. A byte is ceil(256 / 243 * number) of five ternary digits, the
 * first element's the highest: elements 32 n + j, n in 0..4, in digits[j], 160 + 16 n + j in digits[32 + j],
 * and 240 + 4 n + j, n in 0..3, in last[j], whose lowest digit is 0. */
typedef struct SL_PACKED sl_block_tq1_0 {
    uint8_t digits[48];
    uint8_t last[4];
    uint16_t scale; /* f16 */
} sl_block_tq1_0;

/* value[i] = scale * (q[i] - 1): q as in Q2_K */
typedef struct SL_PACKED sl_block_tq2_0 {
    uint8_t quants[64];
    uint16_t scale; /* f16 */
} sl_block_tq2_0;

/* value[i] = (scale * sl_nvfp4_scale(scales[i / 16])) * sl_mxfp4_value(q[i]), 8 groups, q as in NVFP4: an
 * NVFP4 matrix that has a scale of its own besides, with that in every block. */
typedef struct SL_PACKED sl_block_nvfp4_128 {
    float scale;
    uint8_t scales[8];
    uint8_t quants[64];
} sl_block_nvfp4_128;

/* value[i] = scale * sl_e4m3_to_f32(codes[i]): a matrix of E4M3 numbers with scales of its own. */
typedef struct SL_PACKED sl_block_fp8_128 {
    float scale;
    uint8_t codes[128];
} sl_block_fp8_128;

#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    static_assert(sizeof(sl_block_##name) == (block_bytes), "block of " #name);
#include "quant/qtypes.def"
#undef SL_QTYPE

/* group_scale[group] and group_min[group] of the 12 bytes `scales` of Q4_K and Q5_K. */
SL_INLINE void sl_q4_k_group(const uint8_t *scales, uint32_t group, uint8_t *scale, uint8_t *min) {
    if (group < 4) {
        *scale = scales[group] & 63;
        *min = scales[group + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[group + 4] & 15) | (scales[group - 4] >> 6 << 4));
        *min = (uint8_t)((scales[group + 4] >> 4) | (scales[group] >> 6 << 4));
    }
}

/* q[i] of Q5_0 and Q5_1. */
SL_INLINE uint8_t sl_q5_quant(const uint8_t *high, const uint8_t *quants, uint32_t i) {
    const uint32_t low = (uint32_t)quants[i % 16] >> 4 * (i / 16) & 15u;
    return (uint8_t)(low | ((uint32_t)high[i / 8] >> i % 8 & 1u) << 4);
}

/* s[j] - 32 of Q3_K, j in 0..15. */
SL_INLINE int8_t sl_q3_k_scale(const uint8_t *scales, uint32_t j) {
    const uint32_t low = (uint32_t)scales[j % 8] >> 4 * (j / 8) & 15u;
    return (int8_t)((int32_t)(low | ((uint32_t)scales[8 + j % 4] >> 2 * (j / 4) & 3u) << 4) - 32);
}

/* s[g] - 32 of IQ4_XS. */
SL_INLINE int8_t sl_iq4_xs_scale(const sl_block_iq4_xs *block, uint32_t g) {
    const uint32_t low = (uint32_t)block->scales_low[g / 2] >> 4 * (g % 2) & 15u;
    return (int8_t)((int32_t)(low | ((uint32_t)block->scales_high >> 2 * g & 3u) << 4) - 32);
}

/* The values of IQ4_NL and IQ4_XS, rising: value j is byte j % 8, signed, of the word for j / 8. */
#define SL_IQ4_VALUES_0 0xf6eaddcfbfad9881u /* -127 -104 -83 -65 -49 -35 -22 -10 */
#define SL_IQ4_VALUES_1 0x7159453526190d01u /* 1 13 25 38 53 69 89 113 */

SL_INLINE int8_t sl_iq4_value(uint32_t j) {
    return (int8_t)((j < 8 ? SL_IQ4_VALUES_0 : SL_IQ4_VALUES_1) >> 8 * (j % 8) & 255u);
}

/* The values of E2M1 twice: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and the same negative. */
#define SL_MXFP4_VALUES_0 0x0c08060403020100u
#define SL_MXFP4_VALUES_1 0xf4f8fafcfdfeff00u

SL_INLINE int8_t sl_mxfp4_value(uint32_t j) {
    return (int8_t)((j < 8 ? SL_MXFP4_VALUES_0 : SL_MXFP4_VALUES_1) >> 8 * (j % 8) & 255u);
}

/* 2^(exponent - 128): half of what E8M0 means. Its NaN, 255, is 2^127, as ggml has it. */
SL_INLINE float sl_mxfp4_scale(uint32_t exponent) {
    return sl_f32_from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

/* Half of what E4M3 means, the sign left out: 0 for the NaN 127 (255 is 240), as ggml has it. */
SL_INLINE float sl_nvfp4_scale(uint32_t code) {
    if ((code & 120u) == 0) {
        return (float)(code & 7u) * 0.0009765625f; /* 2^-10 */
    }
    return code == 127 ? 0.0f : sl_f32_from_bits(((code & 127u) << 20) + (119u << 23));
}

/* The level of element i of a group of NVFP4, from the group's 8 bytes. */
SL_INLINE uint32_t sl_nvfp4_quant(const uint8_t *quants, uint32_t i) {
    return (uint32_t)quants[i % 8] >> 4 * (i / 8) & 15u;
}

/* q[32 * group + i] of Q5_K, i in 0..31 */
SL_INLINE uint8_t sl_q5_k_quant(const sl_block_q5_k *block, uint32_t group, uint32_t i) {
    const uint32_t low = (uint32_t)block->quants[32 * (group / 2) + i] >> 4 * (group % 2) & 15u;
    return (uint8_t)(low | ((uint32_t)block->high[i] >> group & 1u) << 4);
}

#endif
