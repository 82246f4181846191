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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_follow_the_definition),
        cmocka_unit_test(halves_round_to_even),
        cmocka_unit_test(odd_groups_have_fixed_results),
        cmocka_unit_test(rows_lie_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
