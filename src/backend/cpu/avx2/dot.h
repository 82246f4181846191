/* What the AVX2 tier supplies to matmul_tiles.h. vpmaddubsw adds two products of an unsigned and a signed
 * byte into 16 bits, and must not saturate. How large weights are says how many of its results 16 bits hold:
 *
 *     narrow     2 * w * 127 * (steps of a scale, 4 or 8) < 32768: all, widened once
 *     pairs      weights 0 .. 64, 2 * 2 * 64 * 127 = 32512: two, widened together
 *     unsigned   weights 0 .. 127: one, widened at each step
 *     signed     |w| times x with w's sign, 2 * 128 * 127 = 32512: likewise */
#ifndef SL_BACKEND_CPU_AVX2_DOT_H
#define SL_BACKEND_CPU_AVX2_DOT_H

#include "backend/cpu/avx2/unpack.h"

enum {
    SL_MAIN_ROWS = 6, /* 12 integer sums; the float sums stay in memory */
    SL_MOST_ROWS = 7,
    SL_INT_CHUNK = 1024,
};

SL_ALWAYS_INLINE int32_t unpack_offset(sl_qtype type) {
    return panel_offset(type, 0);
}
SL_ALWAYS_INLINE float unpack_scale(sl_qtype type, int phase) {
    (void)type, (void)phase;
    return 1.0f;
}
SL_ALWAYS_INLINE vi unpack_weights(sl_qtype type, const unsigned char *period, int phase, int quad, int v) {
    return panel_weights(type, 0, period, phase, quad, v);
}

typedef enum dot_kind { DOT_NARROW, DOT_PAIRS, DOT_UNSIGNED, DOT_SIGNED } dot_kind;

SL_ALWAYS_INLINE dot_kind dot_kind_of(sl_qtype type) {
    switch (type) {
    case SL_QTYPE_Q4_0:
    case SL_QTYPE_Q4_1:
    case SL_QTYPE_Q4_K:
    case SL_QTYPE_Q2_K:
    case SL_QTYPE_Q3_K:
    case SL_QTYPE_TQ2_0:
    case SL_QTYPE_NVFP4:
    case SL_QTYPE_NVFP4_128:
    case SL_QTYPE_IQ1_M:
        return DOT_NARROW;
    case SL_QTYPE_Q5_0:
    case SL_QTYPE_Q5_1:
    case SL_QTYPE_Q5_K:
    case SL_QTYPE_Q6_K:
    case SL_QTYPE_MXFP4:
    case SL_QTYPE_IQ3_S:
        return DOT_PAIRS;
    case SL_QTYPE_IQ3_XXS:
    case SL_QTYPE_IQ2_S:
        return DOT_UNSIGNED;
    default:
        return DOT_SIGNED;
    }
}

SL_ALWAYS_INLINE vi widen(vi pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

SL_ALWAYS_INLINE int dot_quads(sl_qtype type) {
    return dot_kind_of(type) == DOT_PAIRS ? 2 : 1;
}
SL_ALWAYS_INLINE vi dot_start(sl_qtype type, vi start) {
    return dot_kind_of(type) == DOT_NARROW ? vi_zero() : start;
}
/* The sum in a register each time: a compiler that adds in another order keeps all products, and has no room
 * for them. */
SL_ALWAYS_INLINE vi dot_add(sl_qtype type, vi sum, const vi *weights, const vi *x) {
    switch (dot_kind_of(type)) {
    case DOT_NARROW:
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(*weights, *x));
        break;
    case DOT_PAIRS: {
        const vi first = _mm256_maddubs_epi16(weights[0], x[0]);
        sum = _mm256_add_epi32(sum, widen(_mm256_add_epi16(first, _mm256_maddubs_epi16(weights[1], x[1]))));
        break;
    }
    case DOT_UNSIGNED:
        sum = _mm256_add_epi32(sum, widen(_mm256_maddubs_epi16(*weights, *x)));
        break;
    default:
        sum = _mm256_add_epi32(
            sum, widen(_mm256_maddubs_epi16(_mm256_abs_epi8(*weights), _mm256_sign_epi8(*x, *weights))));
    }
    __asm__("" : "+x"(sum));
    return sum;
}
SL_ALWAYS_INLINE vi dot_end(sl_qtype type, vi sum, vi start) {
    return dot_kind_of(type) == DOT_NARROW ? _mm256_add_epi32(start, widen(sum)) : sum;
}
SL_ALWAYS_INLINE vi dot_x(const unsigned char *p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

#endif
