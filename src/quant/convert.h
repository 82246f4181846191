/* Scalar conversions between f32 and the shorter floats, for host and device code of every layer.
 *
 * All round to nearest, ties to even, whatever the mode of the floating point unit, and keep subnormals.
 * Those of 16 bits keep infinities and overflow to infinity; E4M3 has none, and all that is larger becomes
 * its largest number. A NaN keeps its sign and the upper bits of its payload. f16 conversions make it quiet
 * in both directions, as the x86 F16C instructions do; so does f32 -> bf16. bf16 -> f32 only moves bits. E4M3
 * has one NaN of either sign. Formats: IEEE 754-2019, binary16 and binary32; bfloat16 is the upper half of
 * binary32; E4M3 is the OCP 8-bit floating point specification (revision 1.0), saturating mode: 4 bits of
 * exponent (bias 7), 3 of fraction, exponent 15 in use for numbers up to 448 and fraction 7 of it for the
 * NaN. */
#ifndef SL_QUANT_CONVERT_H
#define SL_QUANT_CONVERT_H

#include <stdint.h>
#include <string.h>

#if defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#if defined(__CUDACC__)
#define SL_INLINE static __host__ __device__ __forceinline__
#else
#define SL_INLINE static inline
#endif

SL_INLINE uint32_t sl_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SL_INLINE float sl_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The reference; sl_f16_to_f32 gives the same bits. */
SL_INLINE float sl_f16_to_f32_plain(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u;
    const uint32_t fraction = half & 0x3ffu;
    if (exponent == 31) {
        return sl_f32_from_bits(sign | 0x7f800000u | (fraction ? 0x400000u : 0u) | fraction << 13);
    }
    if (exponent == 0) { /* counts units of 2^-24; exact, and normal in f32 */
        return sl_f32_from_bits(sign | sl_f32_bits((float)fraction * 5.9604644775390625e-8f));
    }
    return sl_f32_from_bits(sign | (exponent + (127 - 15)) << 23 | fraction << 13);
}

/* The reference; sl_f32_to_f16 gives the same bits. */
SL_INLINE uint16_t sl_f32_to_f16_plain(float value) {
    const uint32_t bits = sl_f32_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 lies half way to 2^16, and the even neighbour is infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude >=
        0x38800000u) { /* 2^-14: normal in f16; a carry out of the fraction is the next exponent */
        magnitude += 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | (magnitude - ((127u - 15u) << 23)) >> 13);
    }
    if (magnitude < 0x33000000u) { /* below 2^-25, half of the smallest subnormal */
        return (uint16_t)sign;
    }
    const uint32_t shift = 126u - (magnitude >> 23); /* from 24-bit significand to units of 2^-24: 14 to 24 */
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = significand >> shift;
    const uint32_t half_and_odd = (1u << (shift - 1)) - 1u + (kept & 1u);
    return (uint16_t)(sign | (significand + half_and_odd) >> shift);
}

SL_INLINE float sl_f16_to_f32(uint16_t half) {
#if defined(__F16C__) && !defined(__CUDACC__)
    return _cvtsh_ss(half);
#else
    return sl_f16_to_f32_plain(half);
#endif
}

SL_INLINE uint16_t sl_f32_to_f16(float value) {
#if defined(__F16C__) && !defined(__CUDACC__)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    return sl_f32_to_f16_plain(value);
#endif
}

SL_INLINE float sl_bf16_to_f32(uint16_t value) {
    return sl_f32_from_bits((uint32_t)value << 16);
}

SL_INLINE uint16_t sl_f32_to_bf16(float value) {
    const uint32_t bits = sl_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { /* rounding could carry a NaN into infinity */
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

SL_INLINE float sl_e4m3_to_f32(uint8_t code) {
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7fu;
    if (magnitude == 0x7fu) {
        return sl_f32_from_bits(sign | 0x7fc00000u);
    }
    if (magnitude < 8) { /* counts units of 2^-9 */
        return sl_f32_from_bits(sign | sl_f32_bits((float)magnitude * 0.001953125f));
    }
    return sl_f32_from_bits(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

SL_INLINE uint8_t sl_f32_to_e4m3(float value) {
    const uint32_t bits = sl_f32_bits(value);
    const uint32_t sign = (bits >> 24) & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign | 0x7fu);
    }
    if (magnitude >= 0x43e00000u) { /* 448 */
        return (uint8_t)(sign | 0x7eu);
    }
    if (magnitude >= 0x3c800000u) { /* 2^-6: normal in E4M3; a carry is the next exponent */
        magnitude += 0x7ffffu + ((magnitude >> 20) & 1u);
        return (uint8_t)(sign | (magnitude - ((127u - 7u) << 23)) >> 20);
    }
    if (magnitude < 0x3a800000u) { /* below 2^-10, half of the smallest subnormal */
        return (uint8_t)sign;
    }
    const uint32_t shift = 141u - (magnitude >> 23); /* from 24-bit significand to units of 2^-9: 21 to 24 */
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = significand >> shift;
    return (uint8_t)(sign | (significand + (1u << (shift - 1)) - 1u + (kept & 1u)) >> shift);
}

#endif
