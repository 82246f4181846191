/* Number formats that PTX converts and multiplies, as bits. Widths and special values: PTX ISA, "Alternate
 * floating-point data formats" (bf16, tf32, e4m3, e5m2), IEEE 754 (f16). */
#ifndef SL_TESTS_EMULATION_PTX_NUMBERS_H
#define SL_TESTS_EMULATION_PTX_NUMBERS_H

#include <cstdint>
#include <cstring>

/* sign, exponent, mantissa; has_infinity: the largest exponent means infinity and NaN. Without it (e4m3) only
 * all ones means NaN. */
struct ptx_format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;
};

static constexpr ptx_format PTX_FORMAT_F16 = {5, 10, true}, PTX_FORMAT_BF16 = {8, 7, true},
                            PTX_FORMAT_TF32 = {8, 10, true}, PTX_FORMAT_E4M3 = {4, 3, false},
                            PTX_FORMAT_E5M2 = {5, 2, true};

enum ptx_rounding {
    PTX_NEAREST_EVEN, /* .rn */
    PTX_NEAREST_AWAY, /* .rna */
    PTX_ZERO,         /* .rz */
    PTX_DOWN,         /* .rm */
    PTX_UP,           /* .rp */
};

static inline uint32_t ptx_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float ptx_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* What is added before cutting off the last `shift` bits of a magnitude. */
static inline uint64_t ptx_round_up_by(uint64_t magnitude, int shift, ptx_rounding rounding, bool negative) {
    const uint64_t unit = (uint64_t)1 << shift;
    switch (rounding) {
    case PTX_NEAREST_EVEN:
        return shift == 0 ? 0 : unit / 2 - 1 + (magnitude >> shift & 1);
    case PTX_NEAREST_AWAY:
        return unit / 2;
    case PTX_DOWN:
        return negative ? unit - 1 : 0;
    case PTX_UP:
        return negative ? 0 : unit - 1;
    default:
        return 0;
    }
}

/* f32 to a format with no more bits. saturate: what is too large becomes the largest finite number
 * (.satfinite). NaN becomes the format's own: all ones but for the sign. */
static inline uint32_t ptx_narrow(float x, ptx_format format, ptx_rounding rounding, bool saturate) {
    const uint32_t bits = ptx_bits(x), magnitude = bits & 0x7fffffffu;
    const int width = format.exponent_bits + format.mantissa_bits;
    const bool negative = bits >> 31;
    const uint32_t sign = (uint32_t)negative << width, ones = ((uint32_t)1 << width) - 1;
    const uint32_t infinity =
        format.has_infinity ? ones >> format.mantissa_bits << format.mantissa_bits : ones;
    if (magnitude > 0x7f800000u) {
        return ones;
    }
    int exponent = (int)(magnitude >> 23);
    const uint64_t significand = (magnitude & 0x7fffffu) | (exponent ? 0x800000u : 0);
    exponent = (exponent ? exponent : 1) - 127;
    const int smallest = 2 - (1 << (format.exponent_bits - 1));
    int shift = 23 - format.mantissa_bits + (exponent < smallest ? smallest - exponent : 0);
    shift = shift > 40 ? 40 : shift;
    const uint64_t rounded = (significand + ptx_round_up_by(significand, shift, rounding, negative)) >> shift;
    /* The hidden bit, where there is one, counts up the exponent; so does a carry. */
    const uint64_t above = exponent > smallest ? (uint64_t)(exponent - smallest) : 0;
    const uint64_t result = (above << format.mantissa_bits) + rounded;
    if (magnitude == 0x7f800000u || result >= infinity) {
        const bool to_largest =
            rounding == PTX_ZERO || (rounding == PTX_DOWN && !negative) || (rounding == PTX_UP && negative);
        const bool finite = saturate || (to_largest && magnitude != 0x7f800000u);
        return sign | (finite ? infinity - 1 : infinity);
    }
    return sign | (uint32_t)result;
}

/* Exact. */
static inline float ptx_widen(uint32_t bits, ptx_format format) {
    const int width = format.exponent_bits + format.mantissa_bits;
    const uint32_t ones = ((uint32_t)1 << width) - 1, magnitude = bits & ones;
    const uint32_t sign = (bits >> width & 1) << 31;
    const uint32_t infinity =
        format.has_infinity ? ones >> format.mantissa_bits << format.mantissa_bits : ones;
    if (magnitude >= infinity) {
        const bool is_nan = magnitude > infinity || !format.has_infinity;
        return ptx_float(sign | 0x7f800000u | (is_nan ? 0x7fffffu : 0));
    }
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const uint32_t exponent = magnitude >> format.mantissa_bits;
    if (exponent == 0) { /* units of 2^(1 - bias - mantissa_bits) */
        const int power = 1 - bias - format.mantissa_bits;
        const float unit = power >= -126 ? ptx_float((uint32_t)(power + 127) << 23)
                                         : ptx_float((uint32_t)1 << (power + 149));
        return ptx_float(sign | ptx_bits((float)magnitude * unit));
    }
    return ptx_float(sign | ((magnitude << (23 - format.mantissa_bits)) + ((uint32_t)(127 - bias) << 23)));
}

/* The conversions that programs do most often, without a branch for each kind of number. */

/* The exponent is moved by a product, which is exact for subnormal numbers too. */
static inline float ptx_from_f16(uint32_t bits) {
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const uint32_t finite = ptx_bits(ptx_float(magnitude) * 0x1p112f);
    const uint32_t value = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u | magnitude : finite;
    return ptx_float(value | (bits & 0x8000u) << 16);
}

static inline float ptx_from_bf16(uint32_t bits) {
    return ptx_float(bits << 16);
}

static inline uint32_t ptx_to_f16(float x) {
    const uint32_t magnitude = ptx_bits(x) & 0x7fffffffu, sign = ptx_bits(x) >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) {
        return 0x7fff;
    }
    if (magnitude >= 0x47800000u) { /* 2^16 */
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) { /* 2^-14: the sum's unit is that of subnormal numbers */
        return sign | (ptx_bits(ptx_float(magnitude) + 0.5f) - ptx_bits(0.5f));
    }
    return sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
}

static inline uint32_t ptx_to_bf16(float x) {
    const uint32_t bits = ptx_bits(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

#endif
