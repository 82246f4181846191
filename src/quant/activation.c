#include "quant/activation.h"

#include "base/checked.h"
#include "quant/convert.h"

#include <string.h>

bool sl_q8_32_bytes(uint64_t rows, uint64_t width, uint64_t *bytes) {
    uint64_t row;
    return width % SL_Q8_32_GROUP == 0 && sl_mul_u64(width / 4, 5, &row) && sl_mul_u64(rows, row, bytes);
}

/* Largest magnitude of a group. As integers, magnitudes order like the numbers, with infinity and NaN on top,
 * so that the result does not depend on the order of comparison. */
static float largest_magnitude(const float *values) {
    uint32_t largest = 0;
    for (int i = 0; i < SL_Q8_32_GROUP; i++) {
        const uint32_t magnitude = sl_f32_bits(values[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return sl_f32_from_bits(largest);
}

/* Nearest integer, ties to even, of |value| < 2^22: at 1.5 * 2^23 the last place of a float is worth 1. */
static int nearest_even(float value) {
    return (int)(sl_f32_bits(value + 12582912.0f) & 0x7fffffu) - 0x400000;
}

void sl_q8_32_encode(const float *values, sl_q8_32 row, uint64_t width) {
    for (uint64_t group = 0; group < width / SL_Q8_32_GROUP; group++) {
        const float *in = values + SL_Q8_32_GROUP * group;
        int8_t *out = row.values + SL_Q8_32_GROUP * group;
        const float largest = largest_magnitude(in);
        row.sums[group] = 0;
        if (!(largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f)) {
            row.scales[group] = largest < SL_Q8_32_ZERO_BELOW ? 0.0f : sl_f32_from_bits(0x7fc00000u);
            memset(out, 0, SL_Q8_32_GROUP);
            continue;
        }
        const float inverse = 127.0f / largest;
        row.scales[group] = largest / 127.0f;
        for (int i = 0; i < SL_Q8_32_GROUP; i++) {
            out[i] = (int8_t)nearest_even(in[i] * inverse);
            row.sums[group] += out[i];
        }
    }
}

void sl_q8_32_decode(sl_q8_32 row, float *values, uint64_t width) {
    for (uint64_t i = 0; i < width; i++) {
        values[i] = row.scales[i / SL_Q8_32_GROUP] * (float)row.values[i];
    }
}
