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
static float largest_magnitude(const float *values, uint64_t count) {
    uint32_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t magnitude = sl_f32_bits(values[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return sl_f32_from_bits(largest);
}

/* The scale of a group whose values are not counted, being too small or no numbers. */
static bool is_usable(float largest, float *scale) {
    *scale = largest < SL_Q8_32_ZERO_BELOW ? 0.0f : sl_f32_from_bits(0x7fc00000u);
    return largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
}

/* Nearest integer, ties to even, of |value| < 2^22: at 1.5 * 2^23 the last place of a float is worth 1. */
static int nearest_even(float value) {
    return (int)(sl_f32_bits(value + 12582912.0f) & 0x7fffffu) - 0x400000;
}

void sl_q8_32_encode(const float *values, sl_q8_32 row, uint64_t width) {
    for (uint64_t group = 0; group < width / SL_Q8_32_GROUP; group++) {
        const float *in = values + SL_Q8_32_GROUP * group;
        int8_t *out = row.values + SL_Q8_32_GROUP * group;
        const float largest = largest_magnitude(in, SL_Q8_32_GROUP);
        row.sums[group] = 0;
        if (!is_usable(largest, &row.scales[group])) {
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

/* ---- codes ---- */

void sl_codes_encode(sl_codes type, const float *values, uint64_t width, uint64_t stored, void *row) {
    const uint64_t group = sl_codes_group(type), padded = sl_codes_padded(type, stored);
    const float most = type == SL_CODES_E4M3_128 ? SL_E4M3_LARGEST : 127.0f;
    uint8_t *codes = row;
    float *scales = (float *)(void *)(codes + padded);
    memset(row, 0, sl_codes_row_bytes(type, stored));
    for (uint64_t first = 0; first < width; first += group) {
        const uint64_t count = width - first < group ? width - first : group;
        const float largest = largest_magnitude(values + first, count);
        if (!is_usable(largest, &scales[first / group])) {
            continue;
        }
        const float inverse = most / largest;
        scales[first / group] = largest / most;
        for (uint64_t i = first; i < first + count; i++) {
            const float scaled = values[i] * inverse;
            codes[i] = type == SL_CODES_E4M3_128 ? sl_f32_to_e4m3(scaled) : (uint8_t)nearest_even(scaled);
        }
    }
}

void sl_codes_decode(sl_codes type, const void *row, uint64_t stored, float *values, uint64_t width) {
    const uint64_t group = sl_codes_group(type);
    const uint8_t *codes = row;
    const float *scales = (const float *)(const void *)(codes + sl_codes_padded(type, stored));
    for (uint64_t i = 0; i < width; i++) {
        const float value = type == SL_CODES_E4M3_128 ? sl_e4m3_to_f32(codes[i]) : (float)(int8_t)codes[i];
        values[i] = scales[i / group] * value;
    }
}
