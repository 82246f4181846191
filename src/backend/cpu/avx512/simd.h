/* The vector vocabulary of the bodies that tiers share (simd_*.h, matmul_*.h), in AVX-512. avx2/simd.h has
 * the same names for 8 lanes. Float functions round as the one instruction that their name says. */
#ifndef SL_BACKEND_CPU_AVX512_SIMD_H
#define SL_BACKEND_CPU_AVX512_SIMD_H

#include "backend/cpu/unroll.h"
#include "quant/qtype.h"

#include <immintrin.h>
#include <stdint.h>

#define SL_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vi;
enum { VN = 16 }; /* lanes */

SL_ALWAYS_INLINE vf vf_load(const void *p) {
    return _mm512_loadu_ps(p);
}
SL_ALWAYS_INLINE void vf_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
/* The first `count` lanes, or all when there are more. */
SL_ALWAYS_INLINE vf vf_load_part(const float *p, int count) {
    return count >= VN ? vf_load(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
}
SL_ALWAYS_INLINE void vf_store_part(float *p, vf v, int count) {
    _mm512_mask_storeu_ps(p, count >= VN ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1), v);
}
SL_ALWAYS_INLINE vf vf_zero(void) {
    return _mm512_setzero_ps();
}
SL_ALWAYS_INLINE vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}
SL_ALWAYS_INLINE vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
/* a * b + c */
SL_ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a * b */
SL_ALWAYS_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
/* b where either is NaN */
SL_ALWAYS_INLINE vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
/* VN numbers of a 16-bit or 8-bit type as f32 */
SL_ALWAYS_INLINE vf vf_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
SL_ALWAYS_INLINE vf vf_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
SL_ALWAYS_INLINE vf vf_load_i8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
SL_ALWAYS_INLINE void vf_store_f16(void *p, vf v) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
/* As sl_f32_to_bf16; the processor's own conversion would drop subnormals. */
SL_ALWAYS_INLINE void vf_store_bf16(void *p, vf v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}
/* E4M3's bits are those of a smaller f16, subnormals included: 2^8 makes up for the biases. */
SL_ALWAYS_INLINE vf vf_load_e4m3(const void *p) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(p)); /* the sign's copies up to bit 15 */
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
    const __m256i half = _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi16((short)0x8000)),
                                         _mm256_slli_epi16(magnitude, 7));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i chosen = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(chosen), _mm512_set1_ps(256.0f));
}
/* As sl_f32_to_e4m3. What is subnormal there is rounded where f32 has units of 2^-9 too. */
SL_ALWAYS_INLINE void vf_store_e4m3(void *p, vf v) {
    const __m512i bits = _mm512_castps_si512(v), all = _mm512_set1_epi32(0x7fffffff);
    const __m512i magnitude = _mm512_and_si512(bits, all);
    const __m512i kept = _mm512_min_epu32(magnitude, _mm512_set1_epi32(0x43e00000));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(kept, 20), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(kept, odd), _mm512_set1_epi32(0x7ffff));
    const __m512i normal = _mm512_srli_epi32(_mm512_sub_epi32(sum, _mm512_set1_epi32(120 << 23)), 20);
    const __m512 units = _mm512_add_ps(_mm512_castsi512_ps(kept), _mm512_set1_ps(16384.0f));
    const __m512i small = _mm512_and_si512(_mm512_castps_si512(units), _mm512_set1_epi32(15));
    const __mmask16 is_small = _mm512_cmplt_epu32_mask(kept, _mm512_set1_epi32(0x3c800000));
    const __mmask16 is_nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i code = _mm512_mask_mov_epi32(normal, is_small, small);
    code = _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(0x7f));
    code = _mm512_or_si512(code, _mm512_srli_epi32(_mm512_andnot_si512(all, bits), 24));
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8(code));
}
/* Lanes [from, to) of v, the others of `other`; from and to may lie outside. */
SL_ALWAYS_INLINE vf vf_select(vf v, int from, int to, vf other) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(from)) &
                             _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(to));
    return _mm512_mask_mov_ps(other, inside, v);
}
/* `above` in lanes in which x > 0. */
SL_ALWAYS_INLINE vf vf_where_positive(vf x, vf above, vf otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), above);
}
/* A bit for each lane in which a > b. */
SL_ALWAYS_INLINE unsigned vf_greater(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
/* Halves added: lane i with i + 8, then 4, 2, 1 apart. */
SL_ALWAYS_INLINE float vf_sum(vf v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
SL_ALWAYS_INLINE float vf_largest(vf v) {
    return _mm512_reduce_max_ps(v);
}

SL_ALWAYS_INLINE vi vi_load(const void *p) {
    return _mm512_loadu_si512(p);
}
SL_ALWAYS_INLINE void vi_store(void *p, vi v) {
    _mm512_storeu_si512(p, v);
}
/* VN unsigned numbers of 8 or 16 bits */
SL_ALWAYS_INLINE vi vi_load_u8(const void *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}
SL_ALWAYS_INLINE vi vi_load_u16(const void *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
}
SL_ALWAYS_INLINE vi vi_zero(void) {
    return _mm512_setzero_si512();
}
SL_ALWAYS_INLINE vi vi_set1(int32_t x) {
    return _mm512_set1_epi32(x);
}
SL_ALWAYS_INLINE vi vi_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
SL_ALWAYS_INLINE vi vi_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
SL_ALWAYS_INLINE vi vi_right(vi a, int bits) {
    return _mm512_srli_epi32(a, (unsigned)bits);
}
SL_ALWAYS_INLINE vi vi_left(vi a, int bits) {
    return _mm512_slli_epi32(a, (unsigned)bits);
}
/* copies the sign */
SL_ALWAYS_INLINE vi vi_right_signed(vi a, int bits) {
    return _mm512_srai_epi32(a, (unsigned)bits);
}
SL_ALWAYS_INLINE vi vi_max_unsigned(vi a, vi b) {
    return _mm512_max_epu32(a, b);
}
SL_ALWAYS_INLINE vi vi_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
SL_ALWAYS_INLINE uint32_t vi_largest_unsigned(vi v) {
    return _mm512_reduce_max_epu32(v);
}
SL_ALWAYS_INLINE int32_t vi_sum(vi v) {
    return _mm512_reduce_add_epi32(v);
}
SL_ALWAYS_INLINE vf vf_from_int(vi v) {
    return _mm512_cvtepi32_ps(v);
}
SL_ALWAYS_INLINE vi vi_from_float(vf v) {
    return _mm512_cvtps_epi32(v);
}
SL_ALWAYS_INLINE vi vi_bits(vf v) {
    return _mm512_castps_si512(v);
}
/* The low bytes of all lanes. */
SL_ALWAYS_INLINE void vi_store_i8(void *p, vi v) {
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v));
}

/* 2^n * p for whole n, infinity past the end; 0 where x < lowest. */
SL_ALWAYS_INLINE vf vf_scale_unless(vf p, vf n, vf x, vf lowest) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
}
SL_ALWAYS_INLINE vf vf_round(vf v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x = quadrant * pi / 2 + rest, in double: exact enough for any position a context can have. */
SL_ALWAYS_INLINE void vf_quadrant(vf x, vf *rest, vi *quadrant) {
    const __m512d two_over_pi = _mm512_set1_pd(0.63661977236758134),
                  half_pi = _mm512_set1_pd(1.5707963267948966);
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)),
            high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    const __m512d n_low = _mm512_roundscale_pd(_mm512_mul_pd(low, two_over_pi), _MM_FROUND_TO_NEAREST_INT);
    const __m512d n_high = _mm512_roundscale_pd(_mm512_mul_pd(high, two_over_pi), _MM_FROUND_TO_NEAREST_INT);
    low = _mm512_fnmadd_pd(n_low, half_pi, low);
    high = _mm512_fnmadd_pd(n_high, half_pi, high);
    *rest = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
    *quadrant =
        _mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvtpd_epi32(n_low)), _mm512_cvtpd_epi32(n_high), 1);
}
/* a where bit `bit` of the lane of m is 0, else b */
SL_ALWAYS_INLINE vf vf_choose(vi m, int bit, vf a, vf b) {
    return _mm512_mask_mov_ps(a, _mm512_test_epi32_mask(m, _mm512_set1_epi32(1 << bit)), b);
}
SL_ALWAYS_INLINE vf vf_xor(vf a, vi bits) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), bits));
}

/* Lanes 2 i and 2 i + 1 change places. */
SL_ALWAYS_INLINE vf vf_swap_pairs(vf v) {
    return _mm512_permute_ps(v, 0xb1);
}

/* The 16 x 16 transpose: rows `stride` floats apart, the result's too. */
SL_ALWAYS_INLINE void vf_transpose(const float *in, int in_stride, float *out, int out_stride) {
    SL_UNROLL for (int c = 0; c < 16; c += 4) {
        __m512 r[4];
        SL_UNROLL for (int i = 0; i < 4; i++) {
            r[i] = _mm512_castps128_ps512(_mm_loadu_ps(in + i * in_stride + c));
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(in + (4 + i) * in_stride + c), 1);
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(in + (8 + i) * in_stride + c), 2);
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(in + (12 + i) * in_stride + c), 3);
        }
        const __m512 a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
        const __m512 d = _mm512_unpacklo_ps(r[2], r[3]), e = _mm512_unpackhi_ps(r[2], r[3]);
        _mm512_storeu_ps(out + (c + 0) * out_stride, _mm512_shuffle_ps(a, d, 0x44));
        _mm512_storeu_ps(out + (c + 1) * out_stride, _mm512_shuffle_ps(a, d, 0xee));
        _mm512_storeu_ps(out + (c + 2) * out_stride, _mm512_shuffle_ps(b, e, 0x44));
        _mm512_storeu_ps(out + (c + 3) * out_stride, _mm512_shuffle_ps(b, e, 0xee));
    }
}

/* The even and the odd ones of numbers of 16 bits that lie in pairs in each lane. */
SL_ALWAYS_INLINE vf vf_even(sl_qtype type, __m512i pairs) {
    return type == SL_QTYPE_F16 ? _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs))
                                : _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
SL_ALWAYS_INLINE vf vf_odd(sl_qtype type, __m512i pairs) {
    return type == SL_QTYPE_F16
               ? _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))
               : _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* Eight numbers of 16 bits of each of 16 rows, `bytes` apart, to eight vectors. */
SL_ALWAYS_INLINE void vf_transpose_16(sl_qtype type, const unsigned char *in, uint64_t bytes, float *out,
                                      int out_stride) {
    __m512i r[4];
    SL_UNROLL for (int i = 0; i < 4; i++) {
        const unsigned char *row = in + (uint64_t)i * bytes;
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)row));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(row + 4 * bytes)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(row + 8 * bytes)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(row + 12 * bytes)), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i d = _mm512_unpacklo_epi32(r[2], r[3]), e = _mm512_unpackhi_epi32(r[2], r[3]);
    const __m512i pairs[4] = {_mm512_unpacklo_epi64(a, d), _mm512_unpackhi_epi64(a, d),
                              _mm512_unpacklo_epi64(b, e), _mm512_unpackhi_epi64(b, e)};
    SL_UNROLL for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(out + (2 * i) * out_stride, vf_even(type, pairs[i]));
        _mm512_storeu_ps(out + (2 * i + 1) * out_stride, vf_odd(type, pairs[i]));
    }
}

#endif
