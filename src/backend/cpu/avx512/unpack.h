/* What the AVX-512 tier supplies to matmul_tiles.h: weights as the unsigned operand of vpdpbusd. */
#ifndef SL_BACKEND_CPU_AVX512_UNPACK_H
#define SL_BACKEND_CPU_AVX512_UNPACK_H

#include "backend/cpu/avx512/simd.h"
#include "quant/codebook.h"
#include "quant/qtype.h"

enum {
    SL_PANEL = 32,
    SL_MAIN_ROWS = 6, /* 12 integer and 12 float sums, 2 weights, 2 scales: what 32 registers hold */
    SL_MOST_ROWS = 8,
    SL_INT_CHUNK = 512,
};

/* What the operand below is above the true weight. */
SL_ALWAYS_INLINE int32_t unpack_offset(sl_qtype type) {
    switch (type) {
    case SL_QTYPE_Q8_0:
    case SL_QTYPE_IQ4_NL:
    case SL_QTYPE_IQ4_XS:
        return 128;
    case SL_QTYPE_Q6_K:
        return 32;
    case SL_QTYPE_Q5_0:
        return 16;
    case SL_QTYPE_MXFP4:
    case SL_QTYPE_NVFP4:
    case SL_QTYPE_NVFP4_128:
        return 12;
    case SL_QTYPE_TQ2_0:
        return 1;
    case SL_QTYPE_IQ3_XXS:
        return 62;
    case SL_QTYPE_IQ3_S:
        return 15;
    case SL_QTYPE_IQ2_S:
        return 43;
    case SL_QTYPE_IQ1_M:
        return 9;
    case SL_QTYPE_Q4_0:
        return 8;
    case SL_QTYPE_Q3_K:
        return 4;
    default:
        return 0;
    }
}

/* The odd groups of q4_k stay 16 times as large. */
SL_ALWAYS_INLINE float unpack_scale(sl_qtype type, int phase) {
    return type == SL_QTYPE_Q4_K && phase == 1 ? 0.0625f : 1.0f;
}

/* Nibbles of the words at `words`, a group of 16 bytes: columns 4 quad .. */
SL_ALWAYS_INLINE vi unpack_nibbles(const unsigned char *words, int quad) {
    const vi both = vi_load(words + quad % 4 * 4 * SL_PANEL);
    return vi_and(quad < 4 ? both : vi_right(both, 4), _mm512_set1_epi8(15));
}

/* Bit `quad` of every byte of a word of high bits, as bit `to`. */
SL_ALWAYS_INLINE vi unpack_high(const unsigned char *word, int quad, int to) {
    const vi bits = vi_load(word);
    const vi moved = quad < to ? vi_left(bits, to - quad) : quad > to ? vi_right(bits, quad - to) : bits;
    return vi_and(moved, _mm512_set1_epi8((char)(1 << to)));
}

/* Of sixteen bytes, `more` added to each, those that the nibbles name. */
SL_ALWAYS_INLINE vi look_up(uint64_t values_0, uint64_t values_1, int more, vi nibbles) {
    const __m128i table = _mm_set_epi64x((long long)values_1, (long long)values_0);
    const __m128i sums = _mm_add_epi8(table, _mm_set1_epi8((char)more));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sums), nibbles);
}

/* Columns 4 quad .. of group `phase` of a period, for the outputs of vector v. */
SL_ALWAYS_INLINE vi unpack_weights(sl_qtype type, const unsigned char *period, int phase, int quad, int v) {
    enum { WORD = 4 * SL_PANEL };
    period += v * (int)sizeof(vi);
    switch (type) {
    case SL_QTYPE_Q8_0:
        return vi_load(period + quad * WORD);
    case SL_QTYPE_Q4_0:
    case SL_QTYPE_Q4_1:
        return unpack_nibbles(period, quad);
    case SL_QTYPE_IQ4_NL:
    case SL_QTYPE_IQ4_XS:
        return look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, 128, unpack_nibbles(period, quad));
    case SL_QTYPE_MXFP4:
    case SL_QTYPE_NVFP4:
    case SL_QTYPE_NVFP4_128:
        return look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, 12, unpack_nibbles(period, quad));
    case SL_QTYPE_IQ3_XXS:
        return look_up(SL_IQ3_XXS_VALUES_0, SL_IQ3_XXS_VALUES_1, 62, unpack_nibbles(period, quad));
    case SL_QTYPE_IQ3_S:
        return look_up(SL_IQ3_S_VALUES_0, SL_IQ3_S_VALUES_1, 15, unpack_nibbles(period, quad));
    case SL_QTYPE_IQ2_S:
        return look_up(SL_IQ2_VALUES_0, SL_IQ2_VALUES_1, 43, unpack_nibbles(period, quad));
    case SL_QTYPE_IQ1_M:
        return look_up(SL_IQ1_VALUES_0, SL_IQ1_VALUES_1, 9, unpack_nibbles(period, quad));
    case SL_QTYPE_Q5_0:
    case SL_QTYPE_Q5_1:
        return vi_or(unpack_nibbles(period + WORD, quad), unpack_high(period, quad, 4));
    case SL_QTYPE_Q5_K: {
        const vi both = vi_load(period + (2 + quad) * WORD);
        return vi_or(vi_and(phase ? vi_right(both, 4) : both, _mm512_set1_epi8(15)),
                     unpack_high(period + phase * WORD, quad, 4));
    }
    case SL_QTYPE_Q2_K:
    case SL_QTYPE_TQ2_0:
        return vi_and(vi_right(vi_load(period + quad * WORD), 2 * phase), _mm512_set1_epi8(3));
    case SL_QTYPE_Q3_K:
        return vi_or(vi_and(vi_right(vi_load(period + (4 + quad) * WORD), 2 * phase), _mm512_set1_epi8(3)),
                     unpack_high(period + phase * WORD, quad, 2));
    case SL_QTYPE_Q4_K:
        return vi_and(vi_load(period + quad * WORD), _mm512_set1_epi8((char)(phase ? 0xf0 : 0x0f)));
    default: { /* q6_k */
        vi low = vi_load(period + (phase % 2 * 8 + quad) * WORD), high = vi_load(period + (16 + quad) * WORD);
        low = vi_and(phase / 2 ? vi_right(low, 4) : low, _mm512_set1_epi8(15));
        high = phase == 0   ? vi_left(high, 4)
               : phase == 1 ? vi_left(high, 2)
               : phase == 3 ? vi_right(high, 2)
                            : high;
        return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(48), 0xf8); /* low | (high & 48) */
    }
    }
}

SL_ALWAYS_INLINE int dot_quads(sl_qtype type) {
    (void)type;
    return 1;
}
SL_ALWAYS_INLINE vi dot_start(sl_qtype type, vi start) {
    (void)type;
    return start;
}
SL_ALWAYS_INLINE vi dot_add(sl_qtype type, vi sum, const vi *weights, const vi *x) {
    (void)type;
    return _mm512_dpbusd_epi32(sum, *weights, *x);
}
SL_ALWAYS_INLINE vi dot_end(sl_qtype type, vi sum, vi start) {
    (void)type, (void)start;
    return sum;
}
/* Four bytes in all lanes. In a register: a compiler that broadcasts at each use runs out of load ports. */
SL_ALWAYS_INLINE vi dot_x(const unsigned char *p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    vi x = _mm512_set1_epi32(word);
    __asm__("" : "+v"(x));
    return x;
}

#endif
