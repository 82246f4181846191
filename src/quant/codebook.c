/* Decoding of the types of codebook.h, and encoding of the two that are ternary: the others' is in
 * codebook_encode.c. */
#include "quant/codebook.h"
#include "quant/codec.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256, GROUP = 32 };

/* ---- decoding
 * ----------------------------------------------------------------------------------------------------------
 */

static void decode_group(const sl_codes32 *group, uint64_t values_0, uint64_t values_1, float *values) {
    for (uint32_t i = 0; i < GROUP; i++) {
        const float scale = group->scale * (float)group->factor[i / 16];
        values[i] =
            scale * (float)sl_code_value(values_0, values_1, group->codes[i / 8] >> 4 * (i % 8) & 15u);
    }
}

#define DECODE(ID, name, table)                                                                              \
    void sl_decode_##name(const void *blocks, float *values, uint64_t count) {                               \
        const sl_block_##name *block = blocks;                                                               \
        for (uint64_t done = 0; done < count; done += BLOCK, block++) {                                      \
            for (uint32_t g = 0; g < BLOCK / GROUP; g++) {                                                   \
                sl_codes32 group;                                                                            \
                sl_codes_##name(block, g, &group);                                                           \
                decode_group(&group, SL_##table##_VALUES_0, SL_##table##_VALUES_1,                           \
                             values + done + (size_t)GROUP * g);                                             \
            }                                                                                                \
        }                                                                                                    \
    }
SL_EACH_CODEBOOK_TYPE(DECODE)

/* ---- encoding of ternary types
 * ----------------------------------------------------------------------------------------- */

/* The scale is the largest magnitude; levels are -1, 0 and 1, and one more: of halves, that further from 0.
 */
static float ternary_levels(const float *values, uint8_t *levels) {
    float largest = 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        const float magnitude = fabsf(values[i]);
        largest = largest < magnitude ? magnitude : largest;
    }
    const float inverse = largest != 0.0f ? 1.0f / largest : 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        const float x = values[i] * inverse;
        levels[i] = x >= 0.5f ? 2 : x <= -0.5f ? 0 : 1;
    }
    return largest;
}

/* Up to five digits, `stride` elements apart, as the byte that sl_tq1_0_digit reads. */
static uint8_t digits_of(const uint8_t *levels, int count, int stride) {
    uint32_t number = 0;
    for (int n = 0; n < 5; n++) {
        number = 3 * number + (n < count ? levels[n * stride] : 0u);
    }
    return (uint8_t)((number * 256 + 242) / 243);
}

void sl_encode_tq1_0(const float *values, void *blocks, uint64_t count) {
    sl_block_tq1_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += BLOCK, block++) {
        uint8_t levels[BLOCK];
        block->scale = sl_f32_to_f16(ternary_levels(values + done, levels));
        for (int i = 0; i < 48; i++) {
            block->digits[i] =
                i < 32 ? digits_of(levels + i, 5, 32) : digits_of(levels + 160 + i - 32, 5, 16);
        }
        for (int i = 0; i < 4; i++) {
            block->last[i] = digits_of(levels + 240 + i, 4, 4);
        }
    }
}

void sl_encode_tq2_0(const float *values, void *blocks, uint64_t count) {
    sl_block_tq2_0 *block = blocks;
    for (uint64_t done = 0; done < count; done += BLOCK, block++) {
        uint8_t levels[BLOCK];
        block->scale = sl_f32_to_f16(ternary_levels(values + done, levels));
        memset(block->quants, 0, sizeof block->quants);
        for (int i = 0; i < BLOCK; i++) {
            block->quants[i / 128 * 32 + i % 32] |= (uint8_t)(levels[i] << 2 * (i % 128 / 32));
        }
    }
}
