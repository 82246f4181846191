/* Functions of vectors, from the names of a tier's simd.h. Errors are measured against double over all floats
 * of the range named. */
#ifndef SL_BACKEND_CPU_SIMD_MATH_H
#define SL_BACKEND_CPU_SIMD_MATH_H

#include "quant/convert.h"
#include "quant/qtype.h"

/* e^x, within 2 units in the last place; 0 below -87 (a subnormal result would cost a hundred cycles),
 * infinity above 88.8, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, the Taylor series of e^r to r^7 (the
 * rest is below 2^-27), times 2^n. ln 2 is split so that n times the upper part is exact. */
SL_ALWAYS_INLINE vf vf_exp(vf x) {
    const vf lowest = vf_set1(-87.0f), any = x;
    x = vf_min(vf_set1(90.0f), vf_max(lowest, x));
    const vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    vf r = vf_fnma(n, vf_set1(0.693359375f), x);
    r = vf_fnma(n, vf_set1(-2.12194440e-4f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale_unless(p, n, any, lowest);
}

/* 2^x for x <= 0, within 2 units in the last place; 0 below -126, NaN for NaN. x = n + r with |r| <= 1 / 2,
 * the Taylor series of 2^r to r^6 (the rest is below 2^-22), times 2^n. */
SL_ALWAYS_INLINE vf vf_exp2(vf x) {
    const vf n = vf_round(x), r = vf_sub(x, n);
    vf p = vf_set1(1.5403530e-4f);
    p = vf_fma(p, r, vf_set1(1.3333558e-3f));
    p = vf_fma(p, r, vf_set1(9.6181291e-3f));
    p = vf_fma(p, r, vf_set1(5.5504109e-2f));
    p = vf_fma(p, r, vf_set1(2.4022651e-1f));
    p = vf_fma(p, r, vf_set1(6.9314718e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale_unless(p, n, x, vf_set1(-126.0f));
}

SL_ALWAYS_INLINE vf vf_sigmoid(vf x) {
    const vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
}

SL_ALWAYS_INLINE vf vf_silu(vf x) {
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* 1 - 2 / (e^2x + 1): the absolute error is that of a number near 1. */
SL_ALWAYS_INLINE vf vf_tanh(vf x) {
    const vf e = vf_exp(vf_add(x, x));
    return vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
}

SL_ALWAYS_INLINE vf vf_gelu_tanh(vf x) {
    const vf cube = vf_mul(vf_mul(x, x), x);
    const vf inner = vf_mul(vf_set1(0.7978845608028654f), vf_fma(vf_set1(0.044715f), cube, x));
    return vf_mul(vf_mul(vf_set1(0.5f), x), vf_add(vf_set1(1.0f), vf_tanh(inner)));
}

/* x / 2 (1 + erf(x / sqrt 2)) within 3.4e-7, erf by Abramowitz and Stegun 7.1.26: for z >= 0 it is 1 - q with
 * q = (a1 t + ... + a5 t^5) e^(-z^2) and t = 1 / (1 + p z). So it is max(x, 0) - |x| / 2 q, and nothing
 * cancels. Beyond 20 q is 0; the bound keeps infinity from being multiplied by it. */
SL_ALWAYS_INLINE vf vf_gelu(vf x) {
    const vf size = vf_min(vf_set1(20.0f), vf_max(x, vf_sub(vf_zero(), x)));
    const vf z = vf_mul(size, vf_set1(0.70710678f));
    const vf t = vf_div(vf_set1(1.0f), vf_fma(vf_set1(0.3275911f), z, vf_set1(1.0f)));
    vf q = vf_set1(1.061405429f);
    q = vf_fma(q, t, vf_set1(-1.453152027f));
    q = vf_fma(q, t, vf_set1(1.421413741f));
    q = vf_fma(q, t, vf_set1(-0.284496736f));
    q = vf_fma(q, t, vf_set1(0.254829592f));
    q = vf_mul(vf_mul(q, t), vf_exp(vf_sub(vf_zero(), vf_mul(z, z))));
    return vf_fnma(vf_mul(vf_set1(0.5f), size), q, vf_max(vf_zero(), x));
}

/* Sine and cosine of |x| below 2^30, within 2 units in the last place of 1: Taylor series on [-pi/4, pi/4],
 * the rests being below 2^-29. */
SL_ALWAYS_INLINE void vf_sincos(vf x, vf *sine, vf *cosine) {
    vf r;
    vi quadrant;
    vf_quadrant(x, &r, &quadrant);
    const vf s = vf_mul(r, r);
    vf a = vf_set1(1.0f / 362880);
    a = vf_fma(a, s, vf_set1(-1.0f / 5040));
    a = vf_fma(a, s, vf_set1(1.0f / 120));
    a = vf_fma(a, s, vf_set1(-1.0f / 6));
    a = vf_fma(vf_mul(a, s), r, r);
    vf b = vf_set1(-1.0f / 3628800);
    b = vf_fma(b, s, vf_set1(1.0f / 40320));
    b = vf_fma(b, s, vf_set1(-1.0f / 720));
    b = vf_fma(b, s, vf_set1(1.0f / 24));
    b = vf_fma(b, s, vf_set1(-0.5f));
    b = vf_fma(b, s, vf_set1(1.0f));
    /* Quadrants 1 and 3 swap them; sine is negative in 2 and 3, cosine in 1 and 2. */
    const vi sine_sign = vi_left(vi_and(quadrant, vi_set1(2)), 30);
    const vi cosine_sign = vi_left(vi_and(vi_add(quadrant, vi_set1(1)), vi_set1(2)), 30);
    *sine = vf_xor(vf_choose(quadrant, 0, a, b), sine_sign);
    *cosine = vf_xor(vf_choose(quadrant, 0, b, a), cosine_sign);
}

/* VN elements of a cache row from element `at` on; for q8_0 they lie in one block. */
SL_ALWAYS_INLINE vf vf_decode(sl_qtype type, const unsigned char *row, int32_t at) {
    switch (type) {
    case SL_QTYPE_F32:
        return vf_load(row + at * 4);
    case SL_QTYPE_F16:
        return vf_load_f16(row + at * 2);
    case SL_QTYPE_BF16:
        return vf_load_bf16(row + at * 2);
    case SL_QTYPE_FP8:
        return vf_load_e4m3(row + at);
    default: {
        const unsigned char *block = row + at / 32 * 34;
        uint16_t scale;
        __builtin_memcpy(&scale, block, sizeof scale);
        return vf_mul(vf_set1(sl_f16_to_f32(scale)), vf_load_i8(block + 2 + at % 32));
    }
    }
}

#endif
