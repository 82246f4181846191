/* Quantised weights made BF16, as the left operand of a tile product. Included by the tier's matmul.c after
 * matmul_tiles.h.
 *
 * Of a group of 32 columns an output's weights are 32 words: column i, then column 16 + i, for i from 0.
 * Each is the number that the file's block stands for, in f32, rounded to BF16, ties away from zero. All
 * steps before that rounding are exact, or one rounding as quant/qtype.h's own.
 *
 * Types of four and five bits look their numbers up: a group has 16 or 32 of them, which one vpermw reads for
 * 32 columns. The others put quants into the mantissa of a power of two, which is a float as it stands. */
#ifndef SL_BACKEND_CPU_AMX_DECODE_H
#define SL_BACKEND_CPU_AMX_DECODE_H

#include "backend/cpu/avx512/unpack.h"
#include "backend/cpu/matmul_tiles.h"
#include "quant/codebook.h"

/* A block in panels of runs: bytes of an output. */
typedef struct run_geometry {
    int header;  /* in front of the periods */
    int period;  /* of a period, */
    int periods; /* of which a block has so many, */
    int groups;  /* each of so many groups */
} run_geometry;

SL_ALWAYS_INLINE run_geometry run_geometry_of(sl_qtype type) {
    switch (type) {
    case SL_QTYPE_Q4_K:
        return (run_geometry){16, 64, 2, 4};
    case SL_QTYPE_Q5_K:
        return (run_geometry){48, 32, 4, 2};
    case SL_QTYPE_Q6_K:
        return (run_geometry){18, 96, 2, 4};
    case SL_QTYPE_IQ4_XS:
        return (run_geometry){8, 64, 2, 4};
    case SL_QTYPE_Q4_0:
        return (run_geometry){2, 16, 1, 1};
    default: /* q8_0 */
        return (run_geometry){2, 32, 1, 1};
    }
}

enum {
    RUN_BYTES = 2 * SL_MATMUL_GROUP,      /* of an output's group as BF16 */
    DECODED_GROUP = SL_PANEL * RUN_BYTES, /* of a panel's group */
    LARGEST_PERIOD = 4,                   /* groups */
    LARGEST_SCALES = 8 * 4 * SL_PANEL,    /* of a block */
    LOW_WORDS = 0x55555555,               /* of 32-bit lanes, as a mask of words */
};

/* To the nearest BF16, in the upper half of each lane. */
SL_ALWAYS_INLINE vi rounded(vf numbers) {
    return vi_add(_mm512_castps_si512(numbers), vi_set1(0x8000));
}

/* The upper halves of two vectors: `even` to the even words. */
SL_ALWAYS_INLINE vi upper_halves(vi even, vi odd) {
    return _mm512_mask_blend_epi16(LOW_WORDS, odd, vi_right(even, 16));
}

/* Sixteen numbers as a table of words that ignores an index's fifth bit. */
SL_ALWAYS_INLINE vi table_of(vf numbers) {
    const vi upper = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29, 27,
                                      25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutexvar_epi16(upper, rounded(numbers));
}

/* Byte i twice in each of the words 2i and 2i + 1. */
SL_ALWAYS_INLINE vi bytes_twice(const unsigned char *bytes) {
    const vi places = _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a,
                                       0x09090909, 0x08080808, 0x07070707, 0x06060606, 0x05050505, 0x04040404,
                                       0x03030303, 0x02020202, 0x01010101, 0x00000000);
    return _mm512_permutexvar_epi8(
        places, _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)bytes)));
}

/* Byte i in word 2i, byte 16 + i in word 2i + 1. */
SL_ALWAYS_INLINE vi bytes_in_order(const unsigned char *bytes) {
    const vi places = _mm512_set_epi32(0x001f000f, 0x001e000e, 0x001d000d, 0x001c000c, 0x001b000b, 0x001a000a,
                                       0x00190009, 0x00180008, 0x00170007, 0x00160006, 0x00150005, 0x00140004,
                                       0x00130003, 0x00120002, 0x00110001, 0x00100000);
    const vi all = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)bytes));
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, places, all);
}

/* ---- tables ---- */

SL_ALWAYS_INLINE vf numbers_0_to_15(float first, float step) {
    const vf counted = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return vf_fma(counted, vf_set1(step), vf_set1(first));
}

SL_ALWAYS_INLINE vf iq4_numbers(void) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_set_epi64x((long long)SL_IQ4_VALUES_1, (long long)SL_IQ4_VALUES_0)));
}

SL_ALWAYS_INLINE void decode_q4_0(const unsigned char *quants, const float *scales, unsigned char *out) {
    const vf numbers = numbers_0_to_15(-8, 1);
    for (int o = 0; o < SL_PANEL; o++, quants += 16, out += RUN_BYTES) {
        _mm_prefetch((const char *)quants + PREFETCH, _MM_HINT_T0);
        const vi nibbles = _mm512_srlv_epi16(bytes_twice(quants), vi_set1(0x00040000));
        const vi table = table_of(vf_mul(numbers, vf_set1(scales[o])));
        vi_store(out, _mm512_permutexvar_epi16(nibbles, table));
    }
}

/* Four groups, whose nibbles share words: those of group g are bits 4 g + 1 .. 4 g + 4, where sixteen bits
 * are a ring. An odd index reads the upper half of a lane. */
SL_ALWAYS_INLINE void decode_words(sl_qtype type, const unsigned char *quants, const float *scales,
                                   unsigned char *out) {
    const bool minima = type == SL_QTYPE_Q4_K;
    const vf even = minima ? numbers_0_to_15(0, 1) : iq4_numbers();
    const vf odd = minima ? numbers_0_to_15(0, 16) : even; /* as expand_q4_k has scales */
    const vi one = _mm512_set1_epi16(1);
    for (int o = 0; o < SL_PANEL; o++, quants += 64, out += RUN_BYTES) {
        _mm_prefetch((const char *)quants + PREFETCH, _MM_HINT_T0);
        const vi words = vi_load(quants);
        const vi places[4] = {words, _mm512_srli_epi16(words, 4), _mm512_srli_epi16(words, 8),
                              _mm512_shldi_epi16(words, words, 4)};
        SL_UNROLL for (int g = 0; g < 4; g++) {
            const float *scale = scales + g * (minima ? 2 : 1) * SL_PANEL + o;
            const vf numbers = g % 2 ? odd : even;
            const vf table = minima ? _mm512_fmsub_ps(numbers, vf_set1(scale[0]), vf_set1(scale[SL_PANEL]))
                                    : vf_mul(numbers, vf_set1(scale[0]));
            vi_store(out + g * DECODED_GROUP,
                     _mm512_permutexvar_epi16(vi_or(places[g], one), rounded(table)));
        }
    }
}

/* The numbers of 0 .. 31: that of n is word 2 (n % 16) + n / 16. */
SL_ALWAYS_INLINE vi table_of_32(float scale, float minimum) {
    const vf low = numbers_0_to_15(0, 1), high = numbers_0_to_15(16, 1);
    return upper_halves(rounded(_mm512_fmsub_ps(low, vf_set1(scale), vf_set1(minimum))),
                        rounded(_mm512_fmsub_ps(high, vf_set1(scale), vf_set1(minimum))));
}

/* `highs`: the block's bytes of fifth bits, of which groups 2 pair and 2 pair + 1 have their own. */
SL_ALWAYS_INLINE void decode_q5_k(const unsigned char *quants, const unsigned char *highs, int pair,
                                  const float *scales, unsigned char *out) {
    const float *next = scales + 2 * SL_PANEL;
    const vi one = _mm512_set1_epi16(1);
    for (int o = 0; o < SL_PANEL; o++, quants += 32, highs += 32, out += RUN_BYTES) {
        _mm_prefetch((const char *)quants + PREFETCH, _MM_HINT_T0);
        const vi both = bytes_in_order(quants);
        const vi bits = _mm512_srl_epi16(bytes_in_order(highs), _mm_cvtsi32_si128(2 * pair));
        /* one ? bits : nibbles */
        const vi first = _mm512_ternarylogic_epi32(one, bits, _mm512_add_epi16(both, both), 0xca);
        const vi second =
            _mm512_ternarylogic_epi32(one, _mm512_srli_epi16(bits, 1), _mm512_srli_epi16(both, 3), 0xca);
        vi_store(out, _mm512_permutexvar_epi16(first, table_of_32(scales[o], scales[SL_PANEL + o])));
        vi_store(out + DECODED_GROUP,
                 _mm512_permutexvar_epi16(second, table_of_32(next[o], next[SL_PANEL + o])));
    }
}

/* ---- arithmetic ---- */

/* Sixteen bytes from `first` on as floats of 128 and more (place 2) or 2^15 and more (place 1). */
SL_ALWAYS_INLINE vf floats_of_bytes(vi bytes, const int first, const int place) {
    const vi lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const vi places = vi_left(vi_add(lanes, vi_set1(first)), 8 * place);
    const vi power = vi_set1(place == 2 ? 0x43000000 : 0x47000000);
    return _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(
        power, place == 2 ? 0x4444444444444444 : 0x2222222222222222, places, bytes));
}

SL_ALWAYS_INLINE vi decode_bytes(vi bytes, const int first, const int place, const float *const scales[2],
                                 const float *const zeros[2], int o) {
    vi halves[2];
    SL_UNROLL for (int h = 0; h < 2; h++) {
        const vf numbers = floats_of_bytes(bytes, first + 16 * h, place);
        halves[h] = rounded(vf_fma(numbers, vf_set1(scales[h][o]), vf_set1(zeros[h][o])));
    }
    return upper_halves(halves[0], halves[1]);
}

/* What a scale's zero is: exact, for scales have 18 bits at most, and 2^15 + 128 has nine of the 24. */
SL_ALWAYS_INLINE void zeros_of(const float *scales, int count, float zero, float *zeros) {
    SL_UNROLL for (int i = 0; i < count * SL_PANEL; i += VN) {
        vf_store(zeros + i, vf_mul(vf_load(scales + i), vf_set1(-zero)));
    }
}

SL_ALWAYS_INLINE void decode_q8_0(const unsigned char *quants, const float *scales, unsigned char *out) {
    float zeros[SL_PANEL] __attribute__((aligned(64)));
    const float *const both_scales[2] = {scales, scales}, *const both_zeros[2] = {zeros, zeros};
    zeros_of(scales, 1, 0x1p15f + 128, zeros);
    for (int o = 0; o < SL_PANEL; o++, quants += 32, out += RUN_BYTES) {
        _mm_prefetch((const char *)quants + PREFETCH, _MM_HINT_T0);
        const vi bytes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)quants));
        vi_store(out, decode_bytes(bytes, 0, 1, both_scales, both_zeros, o));
    }
}

SL_ALWAYS_INLINE void decode_q6_k(const unsigned char *quants, const float *scales, unsigned char *out) {
    enum { GROUPS = 4 };
    float zeros[2 * GROUPS * SL_PANEL] __attribute__((aligned(64)));
    const unsigned char *highs = quants + 64 * SL_PANEL;
    const vi nibble = _mm512_set1_epi8(15), high = _mm512_set1_epi8(0x30);
    const vi left = _mm512_mask_blend_epi32(0xff00, _mm512_set1_epi16(4), _mm512_set1_epi16(2));
    const vi right = _mm512_mask_blend_epi32(0xff00, vi_zero(), _mm512_set1_epi16(2));
    zeros_of(scales, 2 * GROUPS, 128 + 32, zeros);
    for (int o = 0; o < SL_PANEL; o++, quants += 64, highs += 32, out += RUN_BYTES) {
        _mm_prefetch((const char *)quants + PREFETCH, _MM_HINT_T0);
        _mm_prefetch((const char *)highs + PREFETCH, _MM_HINT_T0);
        const vi low = vi_load(quants);
        const vi bits = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)highs));
        /* low | (bits & high) */
        const vi pairs[2] = {
            _mm512_ternarylogic_epi32(vi_and(low, nibble), _mm512_sllv_epi16(bits, left), high, 0xf8),
            _mm512_ternarylogic_epi32(vi_and(vi_right(low, 4), nibble), _mm512_srlv_epi16(bits, right), high,
                                      0xf8)};
        SL_UNROLL for (int g = 0; g < GROUPS; g++) {
            const int at = 2 * g * SL_PANEL;
            const float *const both_scales[2] = {scales + at, scales + at + SL_PANEL};
            const float *const both_zeros[2] = {zeros + at, zeros + at + SL_PANEL};
            vi_store(out + g * DECODED_GROUP,
                     decode_bytes(pairs[g / 2], g % 2 * 32, 2, both_scales, both_zeros, o));
        }
    }
}

/* ---- any type ---- */

/* [groups][SL_PANEL] runs, of period `period` of a block at `block` whose scales are expanded. */
SL_ALWAYS_INLINE void decode_period(const sl_qtype type, const unsigned char *block, int period,
                                    const float *scales, unsigned char *out) {
    const run_geometry geometry = run_geometry_of(type);
    const unsigned char *quants = block + (geometry.header + period * geometry.period) * SL_PANEL;
    scales += period * geometry.groups * group_scales(type) * SL_PANEL;
    switch (type) {
    case SL_QTYPE_Q4_K:
    case SL_QTYPE_IQ4_XS:
        decode_words(type, quants, scales, out);
        break;
    case SL_QTYPE_Q5_K:
        decode_q5_k(quants, block + 16 * SL_PANEL, period, scales, out);
        break;
    case SL_QTYPE_Q6_K:
        decode_q6_k(quants, scales, out);
        break;
    case SL_QTYPE_Q8_0:
        decode_q8_0(quants, scales, out);
        break;
    default:
        decode_q4_0(quants, scales, out);
    }
}

SL_ALWAYS_INLINE void prefetch_header(const sl_qtype type, const unsigned char *block) {
    SL_UNROLL for (int i = 0; i < run_geometry_of(type).header * SL_PANEL; i += 64) {
        _mm_prefetch((const char *)block + PREFETCH + i, _MM_HINT_T0);
    }
}

#endif
