/* The vector vocabulary of the bodies that tiers share, in AVX2 with FMA and F16C: see avx512/simd.h for what
 * the names mean. */
#ifndef SL_BACKEND_CPU_AVX2_SIMD_H
#define SL_BACKEND_CPU_AVX2_SIMD_H

#include "backend/cpu/unroll.h"
#include "quant/qtype.h"

#include <immintrin.h>
#include <stdint.h>

#define SL_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef __m256 vf;
typedef __m256i vi;
enum { VN = 8 };

SL_ALWAYS_INLINE vf vf_load(const void *p) {
    return _mm256_loadu_ps(p);
}
SL_ALWAYS_INLINE void vf_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
SL_ALWAYS_INLINE __m256i vi_lanes(void) {
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
SL_ALWAYS_INLINE vf vf_load_part(const float *p, int count) {
    return count >= VN ? vf_load(p)
                       : _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), vi_lanes()));
}
SL_ALWAYS_INLINE void vf_store_part(float *p, vf v, int count) {
    if (count >= VN) {
        vf_store(p, v);
    } else {
        _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), vi_lanes()), v);
    }
}
SL_ALWAYS_INLINE vf vf_zero(void) {
    return _mm256_setzero_ps();
}
SL_ALWAYS_INLINE vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}
SL_ALWAYS_INLINE vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
SL_ALWAYS_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
SL_ALWAYS_INLINE vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
SL_ALWAYS_INLINE vf vf_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
SL_ALWAYS_INLINE vf vf_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
SL_ALWAYS_INLINE vf vf_load_i8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}
SL_ALWAYS_INLINE void vf_store_f16(void *p, vf v) {
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
SL_ALWAYS_INLINE void vf_store_bf16(void *p, vf v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0xd8);
    _mm_storeu_si128(p, _mm256_castsi256_si128(packed));
}
SL_ALWAYS_INLINE vf vf_load_e4m3(const void *p) {
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(p));
    const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
    const __m128i half =
        _mm_or_si128(_mm_and_si128(codes, _mm_set1_epi16((short)0x8000)), _mm_slli_epi16(magnitude, 7));
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m128i chosen = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(chosen), _mm256_set1_ps(256.0f));
}
SL_ALWAYS_INLINE void vf_store_e4m3(void *p, vf v) {
    const __m256i bits = _mm256_castps_si256(v), all = _mm256_set1_epi32(0x7fffffff);
    const __m256i magnitude = _mm256_and_si256(bits, all);
    const __m256i kept = _mm256_min_epu32(magnitude, _mm256_set1_epi32(0x43e00000));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(kept, 20), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(kept, odd), _mm256_set1_epi32(0x7ffff));
    const __m256i normal = _mm256_srli_epi32(_mm256_sub_epi32(sum, _mm256_set1_epi32(120 << 23)), 20);
    const __m256 units = _mm256_add_ps(_mm256_castsi256_ps(kept), _mm256_set1_ps(16384.0f));
    const __m256i small = _mm256_and_si256(_mm256_castps_si256(units), _mm256_set1_epi32(15));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), kept);
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i code = _mm256_blendv_epi8(normal, small, is_small);
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), is_nan);
    code = _mm256_or_si256(code, _mm256_srli_epi32(_mm256_andnot_si256(all, bits), 24));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(p, _mm_packus_epi16(words, words));
}
SL_ALWAYS_INLINE vf vf_select(vf v, int from, int to, vf other) {
    const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(from), vi_lanes());
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32(to), vi_lanes());
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(_mm256_andnot_si256(before, inside)));
}
SL_ALWAYS_INLINE vf vf_where_positive(vf x, vf above, vf otherwise) {
    return _mm256_blendv_ps(otherwise, above, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}
SL_ALWAYS_INLINE unsigned vf_greater(vf a, vf b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
/* Halves added: lane i with i + 4, then 2, 1 apart. */
SL_ALWAYS_INLINE float vf_sum(vf v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
SL_ALWAYS_INLINE float vf_largest(vf v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

SL_ALWAYS_INLINE vi vi_load(const void *p) {
    return _mm256_loadu_si256(p);
}
SL_ALWAYS_INLINE void vi_store(void *p, vi v) {
    _mm256_storeu_si256(p, v);
}
/* VN unsigned numbers of 8 or 16 bits */
SL_ALWAYS_INLINE vi vi_load_u8(const void *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
}
SL_ALWAYS_INLINE vi vi_load_u16(const void *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
}
SL_ALWAYS_INLINE vi vi_zero(void) {
    return _mm256_setzero_si256();
}
SL_ALWAYS_INLINE vi vi_set1(int32_t x) {
    return _mm256_set1_epi32(x);
}
SL_ALWAYS_INLINE vi vi_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
SL_ALWAYS_INLINE vi vi_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
SL_ALWAYS_INLINE vi vi_right(vi a, int bits) {
    return _mm256_srli_epi32(a, bits);
}
SL_ALWAYS_INLINE vi vi_left(vi a, int bits) {
    return _mm256_slli_epi32(a, bits);
}
SL_ALWAYS_INLINE vi vi_right_signed(vi a, int bits) {
    return _mm256_srai_epi32(a, bits);
}
SL_ALWAYS_INLINE vi vi_max_unsigned(vi a, vi b) {
    return _mm256_max_epu32(a, b);
}
SL_ALWAYS_INLINE vi vi_add(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
SL_ALWAYS_INLINE uint32_t vi_largest_unsigned(vi v) {
    __m128i a = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1)));
}
SL_ALWAYS_INLINE int32_t vi_sum(vi v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
SL_ALWAYS_INLINE vf vf_from_int(vi v) {
    return _mm256_cvtepi32_ps(v);
}
SL_ALWAYS_INLINE vi vi_from_float(vf v) {
    return _mm256_cvtps_epi32(v);
}
SL_ALWAYS_INLINE vi vi_bits(vf v) {
    return _mm256_castps_si256(v);
}
SL_ALWAYS_INLINE void vi_store_i8(void *p, vi v) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(p, _mm_packs_epi16(words, words));
}

/* In two steps, so that each power of two is a number. */
SL_ALWAYS_INLINE vf vf_scale_unless(vf p, vf n, vf x, vf lowest) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    const __m256 scaled = _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
    return _mm256_and_ps(scaled, _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ));
}
SL_ALWAYS_INLINE vf vf_round(vf v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

SL_ALWAYS_INLINE void vf_quadrant(vf x, vf *rest, vi *quadrant) {
    const __m256d two_over_pi = _mm256_set1_pd(0.63661977236758134),
                  half_pi = _mm256_set1_pd(1.5707963267948966);
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
            high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    const __m256d n_low = _mm256_round_pd(_mm256_mul_pd(low, two_over_pi), _MM_FROUND_TO_NEAREST_INT);
    const __m256d n_high = _mm256_round_pd(_mm256_mul_pd(high, two_over_pi), _MM_FROUND_TO_NEAREST_INT);
    low = _mm256_fnmadd_pd(n_low, half_pi, low);
    high = _mm256_fnmadd_pd(n_high, half_pi, high);
    *rest = _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
    *quadrant = _mm256_set_m128i(_mm256_cvtpd_epi32(n_high), _mm256_cvtpd_epi32(n_low));
}
SL_ALWAYS_INLINE vf vf_choose(vi m, int bit, vf a, vf b) {
    return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(m, 31 - bit)));
}
SL_ALWAYS_INLINE vf vf_xor(vf a, vi bits) {
    return _mm256_xor_ps(a, _mm256_castsi256_ps(bits));
}
SL_ALWAYS_INLINE vf vf_swap_pairs(vf v) {
    return _mm256_permute_ps(v, 0xb1);
}

SL_ALWAYS_INLINE void vf_transpose(const float *in, int in_stride, float *out, int out_stride) {
    SL_UNROLL for (int c = 0; c < 8; c += 4) {
        __m256 r[4];
        SL_UNROLL for (int i = 0; i < 4; i++) {
            r[i] = _mm256_set_m128(_mm_loadu_ps(in + (4 + i) * in_stride + c),
                                   _mm_loadu_ps(in + i * in_stride + c));
        }
        const __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
        const __m256 d = _mm256_unpacklo_ps(r[2], r[3]), e = _mm256_unpackhi_ps(r[2], r[3]);
        _mm256_storeu_ps(out + (c + 0) * out_stride, _mm256_shuffle_ps(a, d, 0x44));
        _mm256_storeu_ps(out + (c + 1) * out_stride, _mm256_shuffle_ps(a, d, 0xee));
        _mm256_storeu_ps(out + (c + 2) * out_stride, _mm256_shuffle_ps(b, e, 0x44));
        _mm256_storeu_ps(out + (c + 3) * out_stride, _mm256_shuffle_ps(b, e, 0xee));
    }
}

/* The even and the odd ones of numbers of 16 bits that lie in pairs in each lane. */
SL_ALWAYS_INLINE vf vf_even(sl_qtype type, __m256i pairs) {
    const __m256i shifted = _mm256_slli_epi32(pairs, 16);
    if (type != SL_QTYPE_F16) {
        return _mm256_castsi256_ps(shifted);
    }
    const __m256i halves = _mm256_packus_epi32(_mm256_srli_epi32(shifted, 16), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}
SL_ALWAYS_INLINE vf vf_odd(sl_qtype type, __m256i pairs) {
    if (type != SL_QTYPE_F16) {
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
    }
    const __m256i halves = _mm256_packus_epi32(_mm256_srli_epi32(pairs, 16), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}

/* Eight numbers of 16 bits of each of 8 rows, `bytes` apart, to eight vectors. */
SL_ALWAYS_INLINE void vf_transpose_16(sl_qtype type, const unsigned char *in, uint64_t bytes, float *out,
                                      int out_stride) {
    __m256i r[4];
    SL_UNROLL for (int i = 0; i < 4; i++) {
        r[i] = _mm256_set_m128i(_mm_loadu_si128((const void *)(in + (uint64_t)(4 + i) * bytes)),
                                _mm_loadu_si128((const void *)(in + (uint64_t)i * bytes)));
    }
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i d = _mm256_unpacklo_epi32(r[2], r[3]), e = _mm256_unpackhi_epi32(r[2], r[3]);
    const __m256i pairs[4] = {_mm256_unpacklo_epi64(a, d), _mm256_unpackhi_epi64(a, d),
                              _mm256_unpacklo_epi64(b, e), _mm256_unpackhi_epi64(b, e)};
    SL_UNROLL for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + (2 * i) * out_stride, vf_even(type, pairs[i]));
        _mm256_storeu_ps(out + (2 * i + 1) * out_stride, vf_odd(type, pairs[i]));
    }
}

#endif
