/* Groups of 32 of the types that are codes of four bits and a scale: IQ1, IQ2, IQ3 and the ternary TQ1_0 and
 * TQ2_0.
 *
 * With c the code of element i of a group, h = i / 16 and the table of the type (sl_code_value),
 *     value[i] = (scale * factor[h]) * table[c]
 * where every product is exact in f32. So it is ggml's value, in whatever order the
 * three are multiplied. For host and device code. */
#ifndef SL_QUANT_CODEBOOK_H
#define SL_QUANT_CODEBOOK_H

#include "quant/blocks.h"
#include "quant/codebook_grids.h"

#if defined(__CUDACC__)
#define SL_CODEBOOK static __device__ __forceinline__
#else
#define SL_CODEBOOK static inline
#endif

typedef struct sl_codes32 {
    uint32_t codes[4]; /* of element 8 k + i: nibble i of codes[k] */
    float scale;
    int32_t factor[2];
} sl_codes32;

/* ---- tables
 * ------------------------------------------------------------------------------------------------------------
 */

/* The values of codes: that of code j is byte j % 8, signed, of the word for j / 8. Of IQ2 and IQ3 the lower
 * three bits of a code are the level that the codebook has, and the fourth is the sign. Of IQ1 the lower two
 * are an element of the codebook, g + 1, and the fourth says that an eighth is subtracted instead of added;
 * values are 8 g + 1 and 8 g - 1. Codes that no block gives have the value 0. */
#define SL_IQ2_VALUES_0 0x00000000002b1908u     /* 8 25 43 */
#define SL_IQ2_VALUES_1 0x0000000000d5e7f8u     /* the same negative */
#define SL_IQ3_XXS_VALUES_0 0x3e342c241c140c04u /* 4 12 20 28 36 44 52 62 */
#define SL_IQ3_XXS_VALUES_1 0xc2ccd4dce4ecf4fcu
#define SL_IQ3_S_VALUES_0 0x0f0d0b0907050301u /* 1 3 5 7 9 11 13 15 */
#define SL_IQ3_S_VALUES_1 0xf1f3f5f7f9fbfdffu
#define SL_IQ1_VALUES_0 0x00000000000901f9u /* -7 1 9 */
#define SL_IQ1_VALUES_1 0x000000000007fff7u /* -9 -1 7 */
#define SL_TQ_VALUES_0 0x00000000020100ffu  /* -1 0 1, and 2, which no encoder writes */
#define SL_TQ_VALUES_1 0u

/* ---- bits
 * --------------------------------------------------------------------------------------------------------------
 */

/* Eight numbers of two bits to nibbles. */
SL_CODEBOOK uint32_t sl_spread_pairs(uint32_t pairs) {
    uint32_t x = (pairs | pairs << 8) & 0x00ff00ffu;
    x = (x | x << 4) & 0x0f0f0f0fu;
    return (x | x << 2) & 0x33333333u;
}

/* Eight bits to the fourth bits of nibbles. */
SL_CODEBOOK uint32_t sl_spread_signs(uint32_t bits) {
    uint32_t x = (bits | bits << 12) & 0x000f000fu;
    x = (x | x << 6) & 0x03030303u;
    return ((x | x << 3) & 0x11111111u) << 3;
}

/* The eight signs of which seven are written: their number is even. */
SL_CODEBOOK uint32_t sl_even_signs(uint32_t seven) {
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    return seven | ((odd ^ odd >> 1) & 1u) << 7;
}

/* The little-endian word at any address. */
SL_CODEBOOK uint32_t sl_word_at(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- groups: number `g`, 0 .. 7, of a block
 * ---------------------------------------------------------------------------- */

SL_CODEBOOK void sl_codes_scale(sl_codes32 *out, float scale, uint32_t number0, uint32_t number1) {
    out->scale = scale;
    out->factor[0] = (int32_t)(2 * number0 + 1);
    out->factor[1] = (int32_t)(2 * number1 + 1);
}

SL_CODEBOOK void sl_codes_iq2_xxs(const sl_block_iq2_xxs *block, uint32_t g, sl_codes32 *out) {
    const uint8_t *group = block->groups[g];
    const uint32_t signs = sl_word_at(group + 4);
    sl_codes_scale(out, sl_f16_to_f32(block->scale) * 0.125f, signs >> 28, signs >> 28);
    for (int k = 0; k < 4; k++) {
        out->codes[k] = sl_spread_pairs(sl_grid_iq2_xxs[group[k]]) |
                        sl_spread_signs(sl_even_signs(signs >> 7 * k & 127u));
    }
}

SL_CODEBOOK void sl_codes_iq2_xs(const sl_block_iq2_xs *block, uint32_t g, sl_codes32 *out) {
    sl_codes_scale(out, sl_f16_to_f32(block->scale) * 0.125f, block->scales[g] & 15u, block->scales[g] >> 4);
    for (int k = 0; k < 4; k++) {
        const uint32_t point = block->points[4 * g + (uint32_t)k];
        out->codes[k] =
            sl_spread_pairs(sl_grid_iq2_xs[point & 511u]) | sl_spread_signs(sl_even_signs(point >> 9));
    }
}

SL_CODEBOOK void sl_codes_iq2_s(const sl_block_iq2_s *block, uint32_t g, sl_codes32 *out) {
    sl_codes_scale(out, sl_f16_to_f32(block->scale) * 0.125f, block->scales[g] & 15u, block->scales[g] >> 4);
    for (int k = 0; k < 4; k++) {
        const uint32_t point = block->points[4 * g + (uint32_t)k] | (block->high[g] >> 2 * k & 3u) << 8;
        out->codes[k] =
            sl_spread_pairs(sl_grid_iq2_s[point]) | sl_spread_signs(block->signs[4 * g + (uint32_t)k]);
    }
}

SL_CODEBOOK void sl_codes_iq3_xxs(const sl_block_iq3_xxs *block, uint32_t g, sl_codes32 *out) {
    const uint8_t *points = block->points + 8 * g;
    const uint32_t signs = sl_word_at(block->signs[g]);
    sl_codes_scale(out, sl_f16_to_f32(block->scale) * 0.25f, signs >> 28, signs >> 28);
    for (int k = 0; k < 4; k++) {
        out->codes[k] = sl_grid_iq3_xxs[points[2 * k]] | (uint32_t)sl_grid_iq3_xxs[points[2 * k + 1]] << 16 |
                        sl_spread_signs(sl_even_signs(signs >> 7 * k & 127u));
    }
}

SL_CODEBOOK void sl_codes_iq3_s(const sl_block_iq3_s *block, uint32_t g, sl_codes32 *out) {
    const uint8_t *points = block->points + 8 * g;
    const uint32_t high = block->high[g], number = (uint32_t)block->scales[g / 2] >> 4 * (g % 2) & 15u;
    sl_codes_scale(out, sl_f16_to_f32(block->scale), number, number);
    for (int k = 0; k < 4; k++) {
        const uint32_t first = points[2 * k] | (high >> 2 * k & 1u) << 8;
        const uint32_t second = points[2 * k + 1] | (high >> (2 * k + 1) & 1u) << 8;
        out->codes[k] = sl_grid_iq3_s[first] | (uint32_t)sl_grid_iq3_s[second] << 16 |
                        sl_spread_signs(block->signs[4 * g + (uint32_t)k]);
    }
}

SL_CODEBOOK void sl_codes_iq1_s(const sl_block_iq1_s *block, uint32_t g, sl_codes32 *out) {
    const uint32_t high = block->high[g], number = high >> 12 & 7u;
    sl_codes_scale(out, sl_f16_to_f32(block->scale) * 0.125f, number, number);
    for (int k = 0; k < 4; k++) {
        const uint32_t point = block->points[4 * g + (uint32_t)k] | (high >> 3 * k & 7u) << 8;
        out->codes[k] = sl_spread_pairs(sl_grid_iq1[point]) | (high >> 15) * 0x88888888u;
    }
}

/* The f16 of which each word of scales has four bits at its upper end. */
SL_CODEBOOK uint16_t sl_iq1_m_scale(const sl_block_iq1_m *block) {
    return (uint16_t)(block->scales[0] >> 12 | (block->scales[1] >> 12) << 4 | (block->scales[2] >> 12) << 8 |
                      (block->scales[3] >> 12) << 12);
}

SL_CODEBOOK void sl_codes_iq1_m(const sl_block_iq1_m *block, uint32_t g, sl_codes32 *out) {
    const uint32_t numbers = (uint32_t)block->scales[g / 2] >> 6 * (g % 2);
    sl_codes_scale(out, sl_f16_to_f32(sl_iq1_m_scale(block)) * 0.125f, numbers & 7u, numbers >> 3 & 7u);
    for (int k = 0; k < 4; k++) {
        const uint32_t high = (uint32_t)block->high[2 * g + (uint32_t)k / 2] >> 4 * (k % 2);
        const uint32_t point = block->points[4 * g + (uint32_t)k] | (high & 7u) << 8;
        out->codes[k] = sl_spread_pairs(sl_grid_iq1[point]) | (high >> 3 & 1u) * 0x88888888u;
    }
}

/* The ternary digit of element i, 0 .. 2: a byte is five digits as a fraction of 256, the first the largest.
 */
SL_CODEBOOK uint32_t sl_tq1_0_digit(const sl_block_tq1_0 *block, uint32_t i) {
    const uint32_t fourth = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    const uint32_t byte = i < 160   ? block->digits[i % 32]
                          : i < 240 ? block->digits[32 + i % 16]
                                    : block->last[i % 4];
    const uint32_t power = fourth == 0 ? 1u : fourth == 1 ? 3u : fourth == 2 ? 9u : fourth == 3 ? 27u : 81u;
    return (byte * power & 255u) * 3 >> 8;
}

SL_CODEBOOK void sl_codes_tq1_0(const sl_block_tq1_0 *block, uint32_t g, sl_codes32 *out) {
    sl_codes_scale(out, sl_f16_to_f32(block->scale), 0, 0);
    for (uint32_t k = 0; k < 4; k++) {
        out->codes[k] = 0;
        for (uint32_t i = 0; i < 8; i++) {
            out->codes[k] |= sl_tq1_0_digit(block, 32 * g + 8 * k + i) << 4 * i;
        }
    }
}

SL_CODEBOOK void sl_codes_tq2_0(const sl_block_tq2_0 *block, uint32_t g, sl_codes32 *out) {
    const uint8_t *quants = block->quants + 32 * (g / 4);
    sl_codes_scale(out, sl_f16_to_f32(block->scale), 0, 0);
    for (uint32_t k = 0; k < 4; k++) {
        out->codes[k] = 0;
        for (uint32_t i = 0; i < 8; i++) {
            out->codes[k] |= (quants[8 * k + i] >> 2 * (g % 4) & 3u) << 4 * i;
        }
    }
}

/* ---- by type
 * -----------------------------------------------------------------------------------------------------------
 */

/* EACH(ID, name, table) of every type that this file describes. */
#define SL_EACH_CODEBOOK_TYPE(EACH)                                                                          \
    EACH(TQ1_0, tq1_0, TQ)                                                                                   \
    EACH(TQ2_0, tq2_0, TQ)                                                                                   \
    EACH(IQ3_XXS, iq3_xxs, IQ3_XXS)                                                                          \
    EACH(IQ3_S, iq3_s, IQ3_S)                                                                                \
    EACH(IQ2_XXS, iq2_xxs, IQ2)                                                                              \
    EACH(IQ2_XS, iq2_xs, IQ2)                                                                                \
    EACH(IQ2_S, iq2_s, IQ2)                                                                                  \
    EACH(IQ1_S, iq1_s, IQ1)                                                                                  \
    EACH(IQ1_M, iq1_m, IQ1)

/* The value of a code in the two words of a table. */
SL_CODEBOOK int8_t sl_code_value(uint64_t values_0, uint64_t values_1, uint32_t code) {
    return (int8_t)((code < 8 ? values_0 : values_1) >> 8 * (code % 8) & 255u);
}

#endif
