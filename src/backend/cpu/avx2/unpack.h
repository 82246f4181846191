/* What the AVX2 tier supplies to matmul_tiles.h. vpmaddubsw adds two products of an unsigned and a signed
 * byte into 16 bits, and must not saturate:
 *
 *     q4_0, q4_k   weights 0 .. 15: 2 * 15 * 127 = 3810, so that a group's 8 steps fit 16 bits; widened once
 *     q8_0, q6_k   signed weights: |w| times x with w's sign, 2 * 128 * 127 = 32512; widened at each step */
#ifndef SL_BACKEND_CPU_AVX2_UNPACK_H
#define SL_BACKEND_CPU_AVX2_UNPACK_H

#include "backend/cpu/avx2/simd.h"
#include "quant/qtype.h"

enum {
    SL_PANEL = 16,
    SL_MAIN_ROWS = 4, /* 8 integer sums; the float sums stay in memory */
    SL_MOST_ROWS = 5,
};

SL_ALWAYS_INLINE int32_t unpack_offset(sl_qtype type) {
    return type == SL_QTYPE_Q4_0 ? 8 : 0;
}

SL_ALWAYS_INLINE float unpack_scale(sl_qtype type, int phase) {
    (void)type, (void)phase;
    return 1.0f;
}

SL_ALWAYS_INLINE vi unpack_weights(sl_qtype type, const unsigned char *period, int phase, int quad, int v) {
    enum { WORD = 4 * SL_PANEL };
    const vi nibble = _mm256_set1_epi8(15);
    period += v * (int)sizeof(vi);
    switch (type) {
    case SL_QTYPE_Q8_0:
        return vi_load(period + quad * WORD);
    case SL_QTYPE_Q4_0: {
        const vi both = vi_load(period + quad % 4 * WORD);
        return vi_and(quad < 4 ? both : vi_right(both, 4), nibble);
    }
    case SL_QTYPE_Q4_K: {
        const vi both = vi_load(period + quad * WORD);
        return vi_and(phase ? vi_right(both, 4) : both, nibble);
    }
    default: { /* q6_k */
        vi low = vi_load(period + (phase % 2 * 8 + quad) * WORD), high = vi_load(period + (16 + quad) * WORD);
        low = vi_and(phase / 2 ? vi_right(low, 4) : low, nibble);
        high = phase == 0   ? vi_left(high, 4)
               : phase == 1 ? vi_left(high, 2)
               : phase == 3 ? vi_right(high, 2)
                            : high;
        high = vi_and(high, _mm256_set1_epi8(48));
        return _mm256_sub_epi8(vi_or(low, high), _mm256_set1_epi8(32));
    }
    }
}

SL_ALWAYS_INLINE int dot_is_narrow(sl_qtype type) {
    return type == SL_QTYPE_Q4_0 || type == SL_QTYPE_Q4_K;
}
SL_ALWAYS_INLINE vi dot_start(sl_qtype type, vi start) {
    return dot_is_narrow(type) ? vi_zero() : start;
}
SL_ALWAYS_INLINE vi dot_add(sl_qtype type, vi sum, vi weights, vi x) {
    if (dot_is_narrow(type)) {
        return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, x));
    }
    const vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
SL_ALWAYS_INLINE vi dot_end(sl_qtype type, vi sum, vi start) {
    return dot_is_narrow(type) ? _mm256_add_epi32(start, _mm256_madd_epi16(sum, _mm256_set1_epi16(1))) : sum;
}
SL_ALWAYS_INLINE vi dot_x(const unsigned char *p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

#endif
