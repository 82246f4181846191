/* Weights of panels as the tiers of 256-bit vectors multiply them, for the unpack_offset and unpack_weights
 * that their dot.h supplies. `more` is added to weights of all signs: 128, which makes them unsigned, or 0.
 */
#ifndef SL_BACKEND_CPU_AVX2_UNPACK_H
#define SL_BACKEND_CPU_AVX2_UNPACK_H

#include "backend/cpu/avx2/simd.h"
#include "quant/codebook.h"
#include "quant/qtype.h"

enum { SL_PANEL = 16 };

/* What the operand below is above the true weight. */
SL_ALWAYS_INLINE int32_t panel_offset(sl_qtype type, int more) {
    switch (type) {
    case SL_QTYPE_Q8_0:
    case SL_QTYPE_IQ4_NL:
    case SL_QTYPE_IQ4_XS:
        return more;
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

/* Nibbles of the words at `words`, a group of 16 bytes: columns 4 quad .. */
SL_ALWAYS_INLINE vi unpack_nibbles(const unsigned char *words, int quad) {
    const vi both = vi_load(words + quad % 4 * 4 * SL_PANEL);
    return vi_and(quad < 4 ? both : vi_right(both, 4), _mm256_set1_epi8(15));
}

/* Bit `quad` of every byte of a word of high bits, as bit `to`. */
SL_ALWAYS_INLINE vi unpack_high(const unsigned char *word, int quad, int to) {
    const vi bits = vi_load(word);
    const vi moved = quad < to ? vi_left(bits, to - quad) : quad > to ? vi_right(bits, quad - to) : bits;
    return vi_and(moved, _mm256_set1_epi8((char)(1 << to)));
}

/* Of sixteen bytes, `more` added to each, those that the nibbles name. */
SL_ALWAYS_INLINE vi look_up(uint64_t values_0, uint64_t values_1, int more, vi nibbles) {
    const __m128i table = _mm_set_epi64x((long long)values_1, (long long)values_0);
    const __m128i sums = _mm_add_epi8(table, _mm_set1_epi8((char)more));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sums), nibbles);
}

SL_ALWAYS_INLINE vi panel_weights(sl_qtype type, int more, const unsigned char *period, int phase, int quad,
                                  int v) {
    enum { WORD = 4 * SL_PANEL };
    const vi nibble = _mm256_set1_epi8(15);
    period += v * (int)sizeof(vi);
    switch (type) {
    case SL_QTYPE_Q8_0: {
        const vi bytes = vi_load(period + quad * WORD);
        return more ? _mm256_xor_si256(bytes, _mm256_set1_epi8((char)more)) : bytes;
    }
    case SL_QTYPE_Q4_0:
    case SL_QTYPE_Q4_1:
        return unpack_nibbles(period, quad);
    case SL_QTYPE_IQ4_NL:
    case SL_QTYPE_IQ4_XS:
        return look_up(SL_IQ4_VALUES_0, SL_IQ4_VALUES_1, more, unpack_nibbles(period, quad));
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
        return vi_or(vi_and(phase ? vi_right(both, 4) : both, nibble),
                     unpack_high(period + phase * WORD, quad, 4));
    }
    case SL_QTYPE_Q2_K:
    case SL_QTYPE_TQ2_0:
        return vi_and(vi_right(vi_load(period + quad * WORD), 2 * phase), _mm256_set1_epi8(3));
    case SL_QTYPE_Q3_K:
        return vi_or(vi_and(vi_right(vi_load(period + (4 + quad) * WORD), 2 * phase), _mm256_set1_epi8(3)),
                     unpack_high(period + phase * WORD, quad, 2));
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
        return vi_or(low, vi_and(high, _mm256_set1_epi8(48)));
    }
    }
}

#endif
