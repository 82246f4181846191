/* int8 activations against the definition in quant/activation.h, computed here with the C library's own
 * rounding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "quant/activation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 96, GROUPS = WIDTH / SL_Q8_32_GROUP };

typedef struct planes {
    int8_t values[WIDTH + 1];
    float scales[GROUPS + 1];
    int32_t sums[GROUPS + 1];
} planes;

static void encode(const float *input, planes *out) {
    memset(out, 0x5a, sizeof *out);
    sl_q8_32 row = {out->values, out->scales, out->sums};
    sl_q8_32_encode(input, row, WIDTH);
    planes untouched;
    memset(&untouched, 0x5a, sizeof untouched);
    assert_memory_equal(&out->values[WIDTH], &untouched.values[WIDTH], 1);
    assert_memory_equal(&out->scales[GROUPS], &untouched.scales[GROUPS], sizeof(float));
    assert_memory_equal(&out->sums[GROUPS], &untouched.sums[GROUPS], sizeof(int32_t));
}

static void random_rows_follow_the_definition(void **state) {
    (void)state;
    uint32_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        float input[WIDTH];
        const float size = ldexpf(1.0f, round % 170 - 70);
        for (int i = 0; i < WIDTH; i++) {
            seed = seed * 1664525u + 1013904223u;
            input[i] = (float)((int32_t)seed >> (round % 7 == 0 ? 24 : 4)) * 0x1p-28f * size;
        }
        planes out;
        encode(input, &out);
        float back[WIDTH];
        sl_q8_32_decode((sl_q8_32){out.values, out.scales, out.sums}, back, WIDTH);
        for (int group = 0; group < GROUPS; group++) {
            const float *in = input + SL_Q8_32_GROUP * group;
            float largest = 0.0f;
            for (int i = 0; i < SL_Q8_32_GROUP; i++) {
                largest = fmaxf(largest, fabsf(in[i]));
            }
            assert_true(out.scales[group] == largest / 127.0f);
            int sum = 0;
            int extreme = 0;
            for (int i = 0; i < SL_Q8_32_GROUP; i++) {
                const int value = out.values[SL_Q8_32_GROUP * group + i];
                const float inverse = 127.0f / largest;
                const float scaled = in[i] * inverse;
                assert_int_equal(value, lrintf(scaled));
                assert_true(fabsf(back[SL_Q8_32_GROUP * group + i] - in[i]) <= 0.50004f * out.scales[group]);
                sum += value;
                extreme = abs(value) > extreme ? abs(value) : extreme;
            }
            assert_int_equal(out.sums[group], sum);
            assert_int_equal(extreme, 127);
        }
    }
}

static void halves_round_to_even(void **state) {
    (void)state;
    float input[WIDTH] = {0};
    planes out;
    for (int group = 0; group < GROUPS; group++) { /* 127 / 127 = 1: values are what is written */
        input[SL_Q8_32_GROUP * group] = -127.0f;
        for (int i = 1; i < SL_Q8_32_GROUP; i++) {
            input[SL_Q8_32_GROUP * group + i] = (float)(SL_Q8_32_GROUP * group + i) - 48.5f;
        }
    }
    encode(input, &out);
    assert_int_equal(out.values[0], -127);
    assert_true(out.scales[0] == 1.0f);
    for (int i = 1; i < SL_Q8_32_GROUP;
         i++) { /* i - 48.5 lies between i - 49 and i - 48; the even one of them */
        assert_int_equal(out.values[i], i % 2 ? i - 49 : i - 48);
    }
    assert_int_equal(out.values[48], 0);
    assert_int_equal(out.values[50], 2);
}

static void odd_groups_have_fixed_results(void **state) {
    (void)state;
    planes out;
    float input[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        input[i] = i < 32 ? (i % 2 ? 0.0f : -0.0f) : i < 64 ? 0x1.fffffep-101f : 0x1p-100f;
    }
    encode(input, &out);
    const float zero[2] = {0.0f, 0.0f};
    const int8_t zeros[64] = {0};
    assert_memory_equal(out.scales, zero, sizeof zero);
    assert_memory_equal(out.values, zeros, sizeof zeros);
    assert_true(out.sums[0] == 0 && out.sums[1] == 0);
    assert_true(out.scales[2] == 0x1p-100f / 127.0f && out.values[95] == 127 && out.sums[2] == 32 * 127);

    static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (size_t k = 0; k < 4; k++) {
        for (int at = 0; at < 32; at += 31) {
            for (int i = 0; i < WIDTH; i++) {
                input[i] = 1.0f;
            }
            input[32 + at] = bad[k];
            encode(input, &out);
            const uint32_t quiet = 0x7fc00000;
            assert_memory_equal(&out.scales[1], &quiet, 4);
            assert_memory_equal(out.values + 32, zeros, 32);
            assert_int_equal(out.sums[1], 0);
            assert_true(out.values[31] == 127 && out.values[64] == 127 && out.scales[2] == 1.0f / 127.0f);
        }
    }
    for (int i = 0; i < WIDTH; i++) {
        input[i] = 3.40282347e+38f;
    }
    encode(input, &out);
    assert_true(out.values[0] == 127 && isfinite(out.scales[0]));
}

static void rows_lie_as_documented(void **state) {
    (void)state;
    uint64_t bytes;
    assert_true(sl_q8_32_bytes(3, 64, &bytes) && bytes == 3 * (64 + 2 * 4 + 2 * 4));
    assert_true(sl_q8_32_bytes(0, 64, &bytes) && bytes == 0);
    assert_false(sl_q8_32_bytes(3, 48, &bytes));
    assert_false(sl_q8_32_bytes(UINT64_MAX / 80 + 1, 64, &bytes));
    assert_false(sl_q8_32_bytes(1, UINT64_MAX - 31, &bytes));
    float buffer[60];
    sl_q8_32 row = sl_q8_32_row(buffer, 64, 2);
    assert_ptr_equal(row.values, (char *)buffer + 160);
    assert_ptr_equal(row.scales, (char *)buffer + 160 + 64);
    assert_ptr_equal(row.sums, (char *)buffer + 160 + 64 + 8);
    assert_ptr_equal(row.sums + 2, buffer + 60);
}

/* ---- codes ---- */

enum { CODES_WIDTH = 600, CODES_STORED = 768, CODES_MOST = 1024 };

/* An E4M3 code's value by its definition (OCP 8-bit Floating Point Specification): 1 sign, 4 exponent bits
 * with bias 7, 3 mantissa bits; NaN where all seven are ones. */
static double e4m3_value(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double value = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa / 8.0, -6);
    return (code & 127) == 127 ? (double)NAN : code & 128 ? -value : value;
}

/* The code of x's sign whose value is nearest, the even one of two: by looking at all. */
static int nearest_e4m3(double x) {
    const int sign = signbit(x) ? 128 : 0;
    int best = sign;
    for (int code = sign; code < sign + 127; code++) {
        const double here = fabs(e4m3_value(code) - x), there = fabs(e4m3_value(best) - x);
        best = here < there || (here == there && code % 2 == 0) ? code : best;
    }
    return best;
}

static void check_codes(sl_codes type, const float *input, uint64_t width) {
    const uint64_t group = type == SL_CODES_E4M3_128 ? 128 : 256;
    const float most = type == SL_CODES_E4M3_128 ? 448.0f : 127.0f;
    const uint64_t bytes = sl_codes_row_bytes(type, CODES_STORED);
    _Alignas(16) unsigned char row[CODES_MOST];
    float scales[CODES_STORED / 128], back[CODES_STORED];
    memset(row, 0x5a, sizeof row);
    sl_codes_encode(type, input, width, CODES_STORED, row);
    memcpy(scales, row + CODES_STORED, CODES_STORED / group * sizeof *scales);
    sl_codes_decode(type, row, CODES_STORED, back, CODES_STORED);
    for (uint64_t g = 0; g < CODES_STORED / group; g++) {
        float largest = 0;
        for (uint64_t i = g * group; i < (g + 1) * group && i < width; i++) {
            largest = fmaxf(largest, fabsf(input[i]));
        }
        const bool zero = largest < 0x1p-100f;
        assert_true(scales[g] == (zero ? 0.0f : largest / most));
        for (uint64_t i = g * group; i < (g + 1) * group; i++) {
            const float factor = most / largest, scaled = zero || i >= width ? 0.0f : input[i] * factor;
            const int expected = zero || i >= width          ? 0
                                 : type == SL_CODES_E4M3_128 ? nearest_e4m3((double)scaled)
                                                             : (int)lrintf(scaled) & 255;
            assert_int_equal(row[i], expected);
            const double value = type == SL_CODES_E4M3_128 ? e4m3_value(row[i]) : (double)(int8_t)row[i];
            assert_true(back[i] == scales[g] * (float)value);
        }
    }
    for (uint64_t i = CODES_STORED + CODES_STORED / group * 4; i < sizeof row; i++) {
        assert_int_equal(row[i], i < bytes ? 0 : 0x5a);
    }
}

static void codes_follow_the_definition(void **state) {
    (void)state;
    uint32_t seed = 7;
    float input[CODES_WIDTH];
    for (int round = 0; round < 200; round++) {
        const float size = ldexpf(1.0f, round % 170 - 90);
        for (int i = 0; i < CODES_WIDTH; i++) {
            seed = seed * 1664525u + 1013904223u;
            input[i] = (float)((int32_t)seed >> (round % 7 == 0 ? 24 : 4)) * 0x1p-28f * size;
            input[i] = round % 5 == 0 ? ldexpf(input[i], -(int)(seed >> 8) % 20) : input[i];
        }
        check_codes(SL_CODES_E4M3_128, input, CODES_WIDTH - (uint64_t)round % 3 * 100);
        check_codes(SL_CODES_Q8_256, input, CODES_WIDTH - (uint64_t)round % 3 * 100);
    }
    for (int i = 0; i < CODES_WIDTH; i++) { /* scale 1: every value between two codes */
        const int code = i / 4 % 126;
        const double low = e4m3_value(code), step = (e4m3_value(code + 1) - low) / 4;
        input[i] = i % 128 == 0 ? 448.0f : (float)((i & 4 ? -1 : 1) * (low + i % 4 * step));
    }
    check_codes(SL_CODES_E4M3_128, input, CODES_WIDTH);
    for (int i = 0; i < CODES_WIDTH; i++) {
        input[i] = i % 256 == 0 ? -127.0f : (float)(i % 253) / 2 - 63;
    }
    check_codes(SL_CODES_Q8_256, input, CODES_WIDTH);
}

static void codes_show_what_is_no_number(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (int k = 0; k < 8; k++) {
        const sl_codes type = k % 2 ? SL_CODES_E4M3_128 : SL_CODES_Q8_256;
        float input[CODES_WIDTH], back[CODES_WIDTH];
        _Alignas(16) unsigned char row[CODES_MOST];
        for (int i = 0; i < CODES_WIDTH; i++) {
            input[i] = 1.0f;
        }
        input[300] = bad[k / 2];
        sl_codes_encode(type, input, CODES_WIDTH, CODES_WIDTH, row);
        sl_codes_decode(type, row, CODES_WIDTH, back, CODES_WIDTH);
        for (int i = 0; i < CODES_WIDTH; i++) {
            const bool beside = i / (k % 2 ? 128 : 256) == 300 / (k % 2 ? 128 : 256);
            assert_int_equal(isnan(back[i]), beside);
            assert_int_equal(row[i], beside ? 0 : k % 2 ? 0x7e : 127);
        }
    }
}

static void code_rows_lie_as_documented(void **state) {
    (void)state;
    assert_int_equal(sl_codes_row_bytes(SL_CODES_E4M3_128, 4096), 4096 + 32 * 4);
    assert_int_equal(sl_codes_row_bytes(SL_CODES_E4M3_128, 129), 256 + 2 * 4 + 8);
    assert_int_equal(sl_codes_row_bytes(SL_CODES_Q8_256, 4096), 4096 + 16 * 4);
    assert_int_equal(sl_codes_row_bytes(SL_CODES_Q8_256, 1), 256 + 4 + 12);
    assert_int_equal(sl_codes_padded(SL_CODES_Q8_256, 257), 512);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_follow_the_definition), cmocka_unit_test(halves_round_to_even),
        cmocka_unit_test(odd_groups_have_fixed_results),     cmocka_unit_test(rows_lie_as_documented),
        cmocka_unit_test(codes_follow_the_definition),       cmocka_unit_test(codes_show_what_is_no_number),
        cmocka_unit_test(code_rows_lie_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
