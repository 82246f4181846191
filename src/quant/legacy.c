/* Types with one scale for 32 elements: Q8_0 and Q4_0. */
#include "quant/blocks.h"
#include "quant/codec.h"

#include <math.h>

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

/* 0..15; adding a half and cutting rounds to nearest. The value opposite the extreme one would be 16. */
static uint8_t q4_0_quant(float value, float inverse) {
    const int quant = small_integer(value * inverse + 8.5f);
    return (uint8_t)(quant < 15 ? quant : 15);
}

void sl_encode_q4_0(const float *values, void *blocks, uint64_t count) {
    sl_block_q4_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_0_ELEMENTS, block++) {
        const float *in = values + done;
        float extreme = 0.0f; /* with its sign: it becomes -8, the longer side of the range */
        for (int i = 0; i < SL_Q4_0_ELEMENTS; i++) {
            extreme = fabsf(extreme) < fabsf(in[i]) ? in[i] : extreme;
        }
        const float scale = extreme / -8.0f;
        const float inverse = reciprocal_or_zero(scale);
        block->scale = sl_f32_to_f16(scale);
        for (int i = 0; i < 16; i++) {
            block->quants[i] = (uint8_t)(q4_0_quant(in[i], inverse) | q4_0_quant(in[16 + i], inverse) << 4);
        }
    }
}
