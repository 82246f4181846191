/* Types with one scale, or a scale and a minimum, for 32 elements: Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1. */
#include "quant/blocks.h"
#include "quant/codec.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Towards zero, modulo 256, of what is certain to be small unless `value` is no number or infinite: a scale
 * whose reciprocal overflowed makes those, and they become 0 (which is also what x86 makes of ggml's plain
 * cast). */
static int small_integer(float value) {
    return fabsf(value) < 1024.0f ? (int)value : 0;
}

static float reciprocal_or_zero(float value) {
    return value != 0.0f ? 1.0f / value : 0.0f;
}

void sl_decode_q8_0(const void *blocks, float *values, uint64_t count) {
    const sl_block_q8_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q8_0_ELEMENTS, block++) {
        const float scale = sl_f16_to_f32(block->scale);
        for (int i = 0; i < SL_Q8_0_ELEMENTS; i++) {
            values[done + i] = (float)block->quants[i] * scale;
        }
    }
}

void sl_encode_q8_0(const float *values, void *blocks, uint64_t count) {
    sl_block_q8_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q8_0_ELEMENTS, block++) {
        const float *in = values + done;
        float largest = 0.0f;
        for (int i = 0; i < SL_Q8_0_ELEMENTS; i++) {
            const float magnitude = fabsf(in[i]);
            largest = largest > magnitude ? largest : magnitude;
        }
        const float scale = largest / 127.0f;
        const float inverse =
            reciprocal_or_zero(scale); /* of the exact scale, not of the one rounded to f16 */
        block->scale = sl_f32_to_f16(scale);
        for (int i = 0; i < SL_Q8_0_ELEMENTS; i++) {
            block->quants[i] = (int8_t)small_integer(roundf(in[i] * inverse));
        }
    }
}

void sl_decode_q4_0(const void *blocks, float *values, uint64_t count) {
    const sl_block_q4_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_0_ELEMENTS, block++) {
        const float scale = sl_f16_to_f32(block->scale);
        for (int i = 0; i < 16; i++) {
            values[done + i] = (float)((block->quants[i] & 15) - 8) * scale;
            values[done + 16 + i] = (float)((block->quants[i] >> 4) - 8) * scale;
        }
    }
}

/* The largest in magnitude, with its sign. */
static float extreme_of(const float *in) {
    float extreme = 0.0f;
    for (int i = 0; i < 32; i++) {
        extreme = fabsf(extreme) < fabsf(in[i]) ? in[i] : extreme;
    }
    return extreme;
}

/* 0..most; adding a half to where zero lies and cutting rounds to nearest. */
static uint8_t quant_of(float value, float zero, int most) {
    const int quant = small_integer(value + (zero + 0.5f));
    return (uint8_t)(quant < most ? quant : most);
}

void sl_encode_q4_0(const float *values, void *blocks, uint64_t count) {
    sl_block_q4_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_0_ELEMENTS, block++) {
        const float *in = values + done;
        /* The extreme becomes -8, the longer side of the range; what lies opposite would be 16. */
        const float scale = extreme_of(in) / -8.0f;
        const float inverse = reciprocal_or_zero(scale);
        block->scale = sl_f32_to_f16(scale);
        for (int i = 0; i < 16; i++) {
            block->quants[i] = (uint8_t)(quant_of(in[i] * inverse, 8.0f, 15) |
                                         quant_of(in[16 + i] * inverse, 8.0f, 15) << 4);
        }
    }
}

/* Five bits of 32 elements. */
static void put_five_bits(const uint8_t *levels, uint8_t *high, uint8_t *quants) {
    memset(high, 0, 4);
    for (int i = 0; i < 32; i++) {
        high[i / 8] |= (uint8_t)(levels[i] >> 4 << i % 8);
    }
    for (int i = 0; i < 16; i++) {
        quants[i] = (uint8_t)((levels[i] & 15) | (levels[16 + i] & 15) << 4);
    }
}

void sl_decode_q5_0(const void *blocks, float *values, uint64_t count) {
    const sl_block_q5_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q5_0_ELEMENTS, block++) {
        const float scale = sl_f16_to_f32(block->scale);
        for (uint32_t i = 0; i < SL_Q5_0_ELEMENTS; i++) {
            values[done + i] = (float)(sl_q5_quant(block->high, block->quants, i) - 16) * scale;
        }
    }
}

void sl_encode_q5_0(const float *values, void *blocks, uint64_t count) {
    sl_block_q5_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q5_0_ELEMENTS, block++) {
        const float scale = extreme_of(values + done) / -16.0f;
        const float inverse = reciprocal_or_zero(scale);
        uint8_t levels[SL_Q5_0_ELEMENTS];
        for (uint32_t i = 0; i < SL_Q5_0_ELEMENTS; i++) {
            levels[i] = quant_of(values[done + i] * inverse, 16.0f, 31);
        }
        block->scale = sl_f32_to_f16(scale);
        put_five_bits(levels, block->high, block->quants);
    }
}

/* Levels 0..most of 32 elements between their least and their largest. */
typedef struct fit {
    float scale, min;
    uint8_t levels[32];
} fit;

static fit fit_range(const float *in, int most) {
    float low = FLT_MAX, high = -FLT_MAX;
    for (int i = 0; i < 32; i++) {
        low = in[i] < low ? in[i] : low;
        high = in[i] > high ? in[i] : high;
    }
    fit fit = {.scale = (high - low) / (float)most, .min = low};
    const float inverse = reciprocal_or_zero(fit.scale);
    for (int i = 0; i < 32; i++) {
        fit.levels[i] = quant_of((in[i] - low) * inverse, 0.0f, most);
    }
    return fit;
}

void sl_decode_q4_1(const void *blocks, float *values, uint64_t count) {
    const sl_block_q4_1 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_1_ELEMENTS, block++) {
        const float scale = sl_f16_to_f32(block->scale), min = sl_f16_to_f32(block->min);
        for (int i = 0; i < 16; i++) {
            values[done + (uint64_t)i] = (float)(block->quants[i] & 15) * scale + min;
            values[done + 16 + (uint64_t)i] = (float)(block->quants[i] >> 4) * scale + min;
        }
    }
}

void sl_encode_q4_1(const float *values, void *blocks, uint64_t count) {
    sl_block_q4_1 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_1_ELEMENTS, block++) {
        const fit fit = fit_range(values + done, 15);
        block->scale = sl_f32_to_f16(fit.scale);
        block->min = sl_f32_to_f16(fit.min);
        for (int i = 0; i < 16; i++) {
            block->quants[i] = (uint8_t)(fit.levels[i] | fit.levels[16 + i] << 4);
        }
    }
}

void sl_decode_q5_1(const void *blocks, float *values, uint64_t count) {
    const sl_block_q5_1 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q5_1_ELEMENTS, block++) {
        const float scale = sl_f16_to_f32(block->scale), min = sl_f16_to_f32(block->min);
        for (uint32_t i = 0; i < SL_Q5_1_ELEMENTS; i++) {
            values[done + i] = (float)sl_q5_quant(block->high, block->quants, i) * scale + min;
        }
    }
}

void sl_encode_q5_1(const float *values, void *blocks, uint64_t count) {
    sl_block_q5_1 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q5_1_ELEMENTS, block++) {
        const fit fit = fit_range(values + done, 31);
        block->scale = sl_f32_to_f16(fit.scale);
        block->min = sl_f32_to_f16(fit.min);
        put_five_bits(fit.levels, block->high, block->quants);
    }
}
