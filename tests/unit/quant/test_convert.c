/* Conversions between f32 and the shorter floats, against the definition of the formats in double arithmetic
 * and, where the machine has them, against the F16C instructions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cpu.h"
#include "quant/convert.h"

#include <math.h>
#include <stdbool.h>

/* What rounding to nearest even gives in a format of `fraction_bits` bits after the point, smallest normal
 * exponent `lowest`, and infinity from 2^(highest + 1) on. Doubles hold every step exactly. */
static double rounded(double value, int fraction_bits, int lowest, int highest) {
    if (value == 0.0) {
        return value;
    }
    int exponent;
    frexp(value, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    const double unit = ldexp(1.0, exponent - fraction_bits);
    const double result = nearbyint(value / unit) * unit;
    return fabs(result) >= ldexp(1.0, highest + 1) ? copysign(INFINITY, value) : result;
}

static bool quiet_nan_16(uint16_t bits, uint16_t infinity, uint16_t quiet_bit) {
    return (bits & 0x7fff) > infinity && (bits & quiet_bit) != 0;
}

static void every_f16_pattern(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float value = sl_f16_to_f32((uint16_t)bits);
        assert_int_equal(sl_f32_bits(value), sl_f32_bits(sl_f16_to_f32_plain((uint16_t)bits)));
        const int exponent = (int)(bits >> 10 & 31);
        const int fraction = (int)(bits & 1023);
        if (exponent == 31 && fraction != 0) { /* a NaN comes back quiet, with its payload and sign */
            assert_int_equal(sl_f32_bits(value), (bits & 0x8000) << 16 | 0x7fc00000 | fraction << 13);
            assert_int_equal(sl_f32_to_f16(value), bits | 0x200);
            continue;
        }
        double expected = exponent == 31  ? INFINITY
                          : exponent == 0 ? ldexp(fraction, -24)
                                          : ldexp(1024 + fraction, exponent - 25);
        expected = bits & 0x8000 ? -expected : expected;
        assert_true((double)value == expected && !signbit(value) == !(bits & 0x8000));
        assert_int_equal(sl_f32_to_f16(value), bits);
    }
}

static void every_bf16_pattern(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float value = sl_bf16_to_f32((uint16_t)bits);
        assert_int_equal(sl_f32_bits(value), bits << 16);
        const bool nan = (bits & 0x7fff) > 0x7f80;
        assert_int_equal(sl_f32_to_bf16(value), nan ? bits | 0x40 : bits);
    }
}

static void check_f32(uint32_t bits) {
    const float value = sl_f32_from_bits(bits);
    const uint16_t half = sl_f32_to_f16(value);
    const uint16_t brain = sl_f32_to_bf16(value);
    assert_int_equal(half, sl_f32_to_f16_plain(value));
    assert_int_equal(half >> 15, bits >> 31);
    assert_int_equal(brain >> 15, bits >> 31);
    if (isnan(value)) {
        assert_true(quiet_nan_16(half, 0x7c00, 0x200));
        assert_true(quiet_nan_16(brain, 0x7f80, 0x40));
        return;
    }
    const bool infinite = isinf(value);
    const double half_expected = infinite ? (double)value : rounded(value, 10, -14, 15);
    const double brain_expected = infinite ? (double)value : rounded(value, 7, -126, 127);
    if ((double)sl_f16_to_f32(half) != half_expected || (double)sl_bf16_to_f32(brain) != brain_expected) {
        fail_msg("f32 0x%08x gives f16 0x%04x, bf16 0x%04x", bits, half, brain);
    }
}

static void f32_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 8191) {
        check_f32((uint32_t)bits);
    }
    /* Around every f16 value, every bf16 value, and the middles between neighbours. */
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint32_t brain = bits << 16;
        const uint32_t half = sl_f32_bits(sl_f16_to_f32_plain((uint16_t)bits));
        for (uint32_t near = 0; near < 3; near++) {
            check_f32(brain + near - 1);
            check_f32(brain + 0x8000 + near - 1);
            check_f32(half + near - 1);
            check_f32(half + 0x1000 + near - 1);
        }
        if ((bits & 0x7c00) == 0) { /* between f16 subnormals */
            const float middle = ((float)(bits & 0x3ff) + 0.5f) * 0x1p-24f;
            check_f32(sl_f32_bits(middle));
            check_f32(sl_f32_bits(-middle));
            check_f32(sl_f32_bits(middle) + 1);
            check_f32(sl_f32_bits(middle) - 1);
        }
    }
    check_f32(1);
    check_f32(0x007fffff);
    check_f32(0x7f7fffff);
}

/* A number of E4M3 by the OCP specification's table. */
static double e4m3_value(int code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double magnitude = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}

static void every_e4m3_code(void **state) {
    (void)state;
    assert_true(e4m3_value(0x7e) == 448.0 && e4m3_value(0x08) == 0x1p-6 && e4m3_value(0x01) == 0x1p-9);
    for (int code = 0; code < 256; code++) {
        const float value = sl_e4m3_to_f32((uint8_t)code);
        assert_int_equal(sl_f32_bits(value) >> 31, code >> 7);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(value));
        } else {
            assert_true((double)value == e4m3_value(code));
        }
        assert_int_equal(sl_f32_to_e4m3(value), code);
    }
}

/* The nearest of all numbers, the even code of two that are as near; the largest past the end. */
static void check_e4m3(uint32_t bits) {
    const float value = sl_f32_from_bits(bits);
    int expected = 0x7f;
    if (!isnan(value)) {
        const double magnitude = fabs((double)value);
        int low = 0, high = 0x7e; /* numbers rise with their codes */
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (e4m3_value(middle) <= magnitude) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        expected = low;
        if (low < 0x7e) {
            const double below = magnitude - e4m3_value(low), above = e4m3_value(low + 1) - magnitude;
            expected = above < below || (above == below && low % 2 == 1) ? low + 1 : low;
        }
    }
    expected |= (int)(bits >> 31) << 7;
    if (sl_f32_to_e4m3(value) != expected) {
        fail_msg("f32 0x%08x gives e4m3 0x%02x, not 0x%02x", bits, sl_f32_to_e4m3(value), expected);
    }
}

static void f32_rounds_to_nearest_e4m3(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4093) {
        check_e4m3((uint32_t)bits);
    }
    for (int code = 0; code < 0x7f; code++) { /* around every number and the middle before the next */
        const float number = (float)e4m3_value(code), next = (float)e4m3_value(code + 1);
        for (uint32_t near = 0; near < 3; near++) {
            check_e4m3(sl_f32_bits(number) + near - 1);
            check_e4m3((sl_f32_bits(number) + near - 1) ^ 0x80000000u);
            check_e4m3(sl_f32_bits((number + next) / 2) + near - 1);
            check_e4m3((sl_f32_bits((number + next) / 2) + near - 1) ^ 0x80000000u);
        }
    }
    check_e4m3(0x7f800000);
    check_e4m3(0xff800000);
    check_e4m3(0x7fc00000);
    check_e4m3(0xff800001);
    check_e4m3(0x7f7fffff);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("f16c"))) static uint16_t hardware_to_f16(float value) {
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0);
}

__attribute__((target("f16c"))) static float hardware_to_f32(uint16_t half) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

static void hardware_gives_the_same_bits(void **state) {
    (void)state;
    if (sl_cpu_isa() < SL_ISA_AVX2) { /* the tier that has F16C */
        print_message("this machine is below the AVX2 tier, which has F16C\n");
        skip();
    }
    for (uint32_t bits = 0; bits < 65536; bits++) {
        assert_int_equal(sl_f32_bits(hardware_to_f32((uint16_t)bits)),
                         sl_f32_bits(sl_f16_to_f32_plain((uint16_t)bits)));
    }
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4093) {
        const float value = sl_f32_from_bits((uint32_t)bits);
        if (hardware_to_f16(value) != sl_f32_to_f16_plain(value)) {
            fail_msg("f32 0x%08x", (uint32_t)bits);
        }
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_pattern),
        cmocka_unit_test(every_bf16_pattern),
        cmocka_unit_test(f32_rounds_to_nearest_even),
        cmocka_unit_test(every_e4m3_code),
        cmocka_unit_test(f32_rounds_to_nearest_e4m3),
#if defined(__x86_64__)
        cmocka_unit_test(hardware_gives_the_same_bits),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
