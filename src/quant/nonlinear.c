/* Types of 4 bits whose values stand in a table: IQ4_NL, IQ4_XS, MXFP4, NVFP4 and NVFP4_128; and FP8_128. */
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/weigh.h"

#include <math.h>
#include <string.h>

enum { GROUP = 32, GROUPS = 8, STEPS = 7 };

/* A group whose values are all below this counts as zero. */
#define NEGLIGIBLE 1e-15f

/* 32 values from 16 bytes: elements 0 to 15 in the low nibbles. */
static void put_nibbles(const uint8_t *levels, uint8_t *quants) {
    for (int i = 0; i < GROUP / 2; i++) {
        quants[i] = (uint8_t)(levels[i] | levels[GROUP / 2 + i] << 4);
    }
}

static int nibble(const uint8_t *quants, int i) {
    return quants[i % 16] >> 4 * (i / 16) & 15;
}

/* ---- IQ4
 * -------------------------------------------------------------------------------------------------------- */

static void decode_iq4(const uint8_t *quants, float scale, float *values) {
    for (int i = 0; i < GROUP; i++) {
        values[i] = scale * (float)sl_iq4_value((uint32_t)nibble(quants, i));
    }
}

/* The level whose value is nearest, the upper one of two as near. */
static uint8_t iq4_level(float x) {
    uint32_t above = 1;
    while (above < 15 && !(x < (float)sl_iq4_value(above))) {
        above++;
    }
    const float below = x - (float)sl_iq4_value(above - 1);
    return (uint8_t)(below < (float)sl_iq4_value(above) - x ? above - 1 : above);
}

/* What a choice of levels gives: with weights x^2, or the importance if there is one, the sums of weight * x
 * * value and weight * value^2. */
typedef struct iq4_sums {
    float xv, vv;
} iq4_sums;

static iq4_sums iq4_round(const float *values, const float *importance, float inverse, uint8_t *levels) {
    iq4_sums sums = {0.0f, 0.0f};
    for (int i = 0; i < GROUP; i++) {
        levels[i] = iq4_level(inverse * values[i]);
        const float weight = importance ? importance[i] : values[i] * values[i];
        const float value = (float)sl_iq4_value(levels[i]), weighted = weight * value;
        sums.xv += weighted * values[i];
        sums.vv += weighted * value;
    }
    return sums;
}

static float iq4_extreme(const float *values) {
    float extreme =
        0.0f; /* with its sign: it becomes the table's first value, or that with `steps` about it */
    for (int i = 0; i < GROUP; i++) {
        extreme = fabsf(values[i]) > fabsf(extreme) ? values[i] : extreme;
    }
    return extreme;
}

void sl_decode_iq4_nl(const void *blocks, float *values, uint64_t count) {
    const sl_block_iq4_nl *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_IQ4_NL_ELEMENTS, block++) {
        decode_iq4(block->quants, sl_f16_to_f32(block->scale), values + done);
    }
}

/* Of a negligible block ggml leaves the quants undefined; here they are the value nearest to 0. */
void sl_encode_iq4_nl(const float *values, void *blocks, uint64_t count) {
    sl_block_iq4_nl *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_IQ4_NL_ELEMENTS, block++) {
        const float extreme = iq4_extreme(values + done);
        uint8_t levels[GROUP];
        float scale = 0.0f;
        if (fabsf(extreme) < NEGLIGIBLE) {
            memset(levels, iq4_level(0.0f), sizeof levels);
        } else {
            const iq4_sums sums =
                iq4_round(values + done, NULL, 1.0f / (extreme / (float)sl_iq4_value(0)), levels);
            scale = sums.vv > 0.0f ? sums.xv / sums.vv : 0.0f;
        }
        block->scale = sl_f32_to_f16(scale);
        put_nibbles(levels, block->quants);
    }
}

void sl_decode_iq4_xs(const void *blocks, float *values, uint64_t count) {
    const sl_block_iq4_xs *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_IQ4_XS_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        for (uint32_t g = 0; g < GROUPS; g++) {
            decode_iq4(block->quants + (size_t)16 * g, block_scale * (float)sl_iq4_xs_scale(block, g),
                       values + done + (size_t)GROUP * g);
        }
    }
}

/* The scale that fits a group best in weighted least squares, of several tried. */
static float iq4_search(const float *values, const float *importance) {
    const float extreme = iq4_extreme(values), first = (float)sl_iq4_value(0);
    if (fabsf(extreme) < NEGLIGIBLE) {
        return 0.0f;
    }
    uint8_t levels[GROUP];
    iq4_sums sums = iq4_round(values, importance, 1.0f / (-extreme / first), levels);
    float scale = sums.vv > 0.0f ? sums.xv / sums.vv : 0.0f;
    float gain = scale * sums.xv; /* by how much the weighted squared error falls from that of zero */
    for (int step = -STEPS; step <= STEPS; step++) {
        sums = iq4_round(values, importance, ((float)step + first) / extreme, levels);
        if (sums.vv > 0.0f && sums.xv * sums.xv > gain * sums.vv) {
            scale = sums.xv / sums.vv;
            gain = scale * sums.xv;
        }
    }
    return scale;
}

/* Nearest integer, ties to even, for |value| < 2^22; see kquants.c. */
static int nearest(float value) {
    return (int)(sl_f32_bits(value + 12582912.0f) & 0x7fffffu) - 0x400000;
}

static void iq4_xs_encode_block(const float *values, const float *importance, sl_block_iq4_xs *block) {
    float scales[GROUPS];
    float extreme = 0.0f; /* the largest scale, with its sign: it becomes -32 */
    for (int g = 0; g < GROUPS; g++) {
        const size_t first = (size_t)GROUP * (size_t)g;
        scales[g] = iq4_search(values + first, importance ? importance + first : NULL);
        extreme = fabsf(scales[g]) > fabsf(extreme) ? scales[g] : extreme;
    }
    const float block_scale = -extreme / 32.0f;
    const float inverse = block_scale != 0.0f ? 1.0f / block_scale : 0.0f;
    uint32_t high = 0;
    block->scale = sl_f32_to_f16(block_scale);
    memset(block->scales_low, 0, sizeof block->scales_low);
    for (int g = 0; g < GROUPS; g++) {
        int number = nearest(inverse * scales[g]);
        number = number < -32 ? -32 : number > 31 ? 31 : number;
        const float scale = block_scale * (float)number;
        const float inverse_scale = scale != 0.0f ? 1.0f / scale : 0.0f;
        uint8_t levels[GROUP];
        for (int i = 0; i < GROUP; i++) {
            levels[i] = iq4_level(inverse_scale * values[GROUP * g + i]);
        }
        put_nibbles(levels, block->quants + (size_t)16 * (size_t)g);
        block->scales_low[g / 2] |= (uint8_t)((number + 32) % 16 << 4 * (g % 2));
        high |= (uint32_t)(number + 32) / 16 << 2 * g;
    }
    block->scales_high = (uint16_t)high;
}

void sl_encode_iq4_xs(const float *values, void *blocks, uint64_t count) {
    sl_block_iq4_xs *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_IQ4_XS_ELEMENTS) {
        iq4_xs_encode_block(values + done, NULL, block++);
    }
}

void sl_weigh_iq4_xs(const float *values, const float *importance, void *block) {
    iq4_xs_encode_block(values, importance, block);
}

void sl_weigh_iq4_nl(const float *values, const float *importance, void *block) {
    sl_block_iq4_nl *out = block;
    uint8_t levels[GROUP];
    out->scale = sl_f32_to_f16(iq4_search(values, importance));
    const float scale = sl_f16_to_f32(out->scale);
    for (int i = 0; i < GROUP; i++) {
        levels[i] = iq4_level(scale != 0.0f ? values[i] / scale : 0.0f);
    }
    put_nibbles(levels, out->quants);
}

/* ---- MXFP4
 * ------------------------------------------------------------------------------------------------------ */

void sl_decode_mxfp4(const void *blocks, float *values, uint64_t count) {
    const sl_block_mxfp4 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_MXFP4_ELEMENTS, block++) {
        const float scale = sl_mxfp4_scale(block->exponent);
        for (int i = 0; i < GROUP; i++) {
            values[done + (uint64_t)i] = (float)sl_mxfp4_value((uint32_t)nibble(block->quants, i)) * scale;
        }
    }
}

/* The nearest value, the first in the table of two as near. */
static uint8_t mxfp4_level(float x, float scale) {
    uint8_t best = 0;
    float best_error = fabsf((float)sl_mxfp4_value(0) * scale - x);
    for (uint8_t level = 1; level < 16; level++) {
        const float error = fabsf((float)sl_mxfp4_value(level) * scale - x);
        if (error < best_error) {
            best = level;
            best_error = error;
        }
    }
    return best;
}

/* The exponent is floor(log2(largest)) - 2. It is taken from the bits, which log2f is not sure to give for
 * what lies just below a power of two; and it ends at the smallest there is, where ggml's wraps around. */
void sl_encode_mxfp4(const float *values, void *blocks, uint64_t count) {
    sl_block_mxfp4 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_MXFP4_ELEMENTS, block++) {
        float largest = 0.0f;
        for (int i = 0; i < GROUP; i++) {
            const float magnitude = fabsf(values[done + (uint64_t)i]);
            largest = largest < magnitude ? magnitude : largest;
        }
        const uint32_t exponent = sl_f32_bits(largest) >> 23;
        block->exponent = (uint8_t)(exponent > 2 ? exponent - 2 : 0);
        const float scale = sl_mxfp4_scale(block->exponent);
        uint8_t levels[GROUP];
        for (int i = 0; i < GROUP; i++) {
            levels[i] = mxfp4_level(values[done + (uint64_t)i], scale);
        }
        put_nibbles(levels, block->quants);
    }
}

/* ---- NVFP4
 * ------------------------------------------------------------------------------------------------------ */

enum { SMALL = 16 }; /* elements that share a scale */

static float largest_of(const float *values, int count) {
    float largest = 0.0f;
    for (int i = 0; i < count; i++) {
        const float magnitude = fabsf(values[i]);
        largest = largest < magnitude ? magnitude : largest;
    }
    return largest;
}

static void decode_small(const uint8_t *quants, float scale, float *values) {
    for (uint32_t i = 0; i < SMALL; i++) {
        values[i] = (float)sl_mxfp4_value(sl_nvfp4_quant(quants, i)) * scale;
    }
}

static void encode_small(const float *values, float scale, uint8_t *quants) {
    for (int i = 0; i < SMALL / 2; i++) {
        quants[i] = (uint8_t)(mxfp4_level(values[i], scale) | mxfp4_level(values[SMALL / 2 + i], scale) << 4);
    }
}

/* Nearest in E4M3, of two as near the upper one; from 256 on the largest, 448. x is not negative. */
static uint8_t nvfp4_scale_code(float x) {
    const uint32_t bits = sl_f32_bits(x < 448.0f ? x : 448.0f);
    if (!(x > 0.0f)) {
        return 0;
    }
    if (bits >> 23 <= 120) { /* below 2^-6 */
        const int number = (int)(x * 512.0f + 0.5f);
        return (uint8_t)(number < 7 ? number : 7);
    }
    const uint32_t code = ((bits >> 19) + 1) / 2 - (120u << 3);
    return (uint8_t)(code < 120 ? code : 126);
}

void sl_decode_nvfp4(const void *blocks, float *values, uint64_t count) {
    const sl_block_nvfp4 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_NVFP4_ELEMENTS, block++) {
        for (size_t g = 0; g < SL_NVFP4_ELEMENTS / SMALL; g++) {
            decode_small(block->quants + 8 * g, sl_nvfp4_scale(block->scales[g]), values + done + SMALL * g);
        }
    }
}

void sl_encode_nvfp4(const float *values, void *blocks, uint64_t count) {
    sl_block_nvfp4 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_NVFP4_ELEMENTS, block++) {
        for (size_t g = 0; g < SL_NVFP4_ELEMENTS / SMALL; g++) {
            const float *group = values + done + SMALL * g;
            block->scales[g] = nvfp4_scale_code(largest_of(group, SMALL) / 6.0f);
            encode_small(group, sl_nvfp4_scale(block->scales[g]), block->quants + 8 * g);
        }
    }
}

void sl_decode_nvfp4_128(const void *blocks, float *values, uint64_t count) {
    const sl_block_nvfp4_128 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_NVFP4_128_ELEMENTS, block++) {
        for (size_t g = 0; g < SL_NVFP4_128_ELEMENTS / SMALL; g++) {
            decode_small(block->quants + 8 * g, block->scale * sl_nvfp4_scale(block->scales[g]),
                         values + done + SMALL * g);
        }
    }
}

/* A scale that maps the largest of `count` numbers to `top`; one that is finite, and divides, in any case. */
static float scale_to(const float *values, int count, float top) {
    const float scale = largest_of(values, count) / top;
    return scale >= 1e-30f && scale <= 1e30f ? scale : 1.0f;
}

void sl_encode_nvfp4_128(const float *values, void *blocks, uint64_t count) {
    sl_block_nvfp4_128 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_NVFP4_128_ELEMENTS, block++) {
        const float scale = scale_to(values + done, SL_NVFP4_128_ELEMENTS, 6.0f * 448.0f);
        block->scale = scale;
        for (size_t g = 0; g < SL_NVFP4_128_ELEMENTS / SMALL; g++) {
            const float *group = values + done + SMALL * g;
            block->scales[g] = sl_f32_to_e4m3(largest_of(group, SMALL) / 6.0f / scale) & 127;
            encode_small(group, scale * sl_nvfp4_scale(block->scales[g]), block->quants + 8 * g);
        }
    }
}

/* ---- FP8
 * -------------------------------------------------------------------------------------------------------- */

void sl_decode_fp8_128(const void *blocks, float *values, uint64_t count) {
    const sl_block_fp8_128 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_FP8_128_ELEMENTS, block++) {
        for (size_t i = 0; i < SL_FP8_128_ELEMENTS; i++) {
            values[done + i] = block->scale * sl_e4m3_to_f32(block->codes[i]);
        }
    }
}

void sl_encode_fp8_128(const float *values, void *blocks, uint64_t count) {
    sl_block_fp8_128 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_FP8_128_ELEMENTS, block++) {
        const float scale = scale_to(values + done, SL_FP8_128_ELEMENTS, 448.0f);
        block->scale = scale;
        for (size_t i = 0; i < SL_FP8_128_ELEMENTS; i++) {
            block->codes[i] = sl_f32_to_e4m3(values[done + i] / scale);
        }
    }
}
