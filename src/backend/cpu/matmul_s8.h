/* Quantised weights and activations as int8, both with a scale for 256 columns. Included by the matmul.c of
 * tiers that have vectors of 512 bits, after matmul_tiles.h.
 *
 * Class "s8/256": a product's sum over 256 columns is an exact integer, so that vectors and tiles give the
 * same bits; as f32 it is multiplied by both scales' product, itself rounded, fused with the addition to the
 * running sum, from left to right.
 *
 * A weight is `scale * number - minimum` with a scale and a minimum for 32 columns, or for 16. With `largest`
 * the largest size that these and the least and the largest number allow in 256 columns, its int8 is
 *
 *     (number * factor + offset >> 8) - 128 in 16 bits, factor = round(256 * 127 / largest * scale),
 *     offset = round(256 * 128.5 - 256 * 127 / largest * minimum)
 *
 * which is the nearest integer to weight * 127 / largest, or one that is further by less than an eighth. The
 * scale of the 256 columns is largest / 127. Numbers here are unsigned (unpack_offset). */
#ifndef SL_BACKEND_CPU_MATMUL_S8_H
#define SL_BACKEND_CPU_MATMUL_S8_H

#include "backend/cpu/matmul.h"
#include "quant/activation.h"

enum {
    S8_COLUMNS = 256,
    S8_GROUPS = S8_COLUMNS / SL_MATMUL_GROUP,
    S8_GROUP_BYTES = SL_MATMUL_GROUP + 1, /* with an eighth of a scale and of a sum */
    S8_CHUNK = 512,
    S8_ROWS = 12,
    S8_QUADS = SL_MATMUL_GROUP / 4,
    S8_EXPANDED = S8_GROUPS * 2 * SL_PANEL, /* scales and minima of 256 columns, at most */
};

/* A tile of x: of every 256 columns values [256 / S8_STEP][rows][S8_STEP], scales f32 [rows], and 32-bit
 * integers [rows]: what makes up for weights that are 128 too large. */
SL_ALWAYS_INLINE void s8_pack_row(const sl_matmul_source *source) {
    const uint64_t padded = sl_codes_padded(SL_CODES_Q8_256, (uint64_t)source->x->width);
    const unsigned char *row = sl_cpu_codes(source->x, source->row);
    const int32_t rows = source->rows, i = source->index;
    unsigned char *block = source->tile;
    for (int32_t done = 0; done < source->columns; done += S8_COLUMNS, block += rows * 8 * S8_GROUP_BYTES) {
        const int8_t *values = (const int8_t *)row + done;
        unsigned char *scales = block + rows * S8_COLUMNS, *sums = scales + rows * 4;
        const int32_t excess = -128 * sum_of(values, S8_COLUMNS);
        for (int step = 0; step < S8_COLUMNS / S8_STEP; step++) {
            memcpy(block + (step * rows + i) * S8_STEP, values + step * S8_STEP, S8_STEP);
        }
        memcpy(scales + i * 4, row + padded + (uint64_t)(done / S8_COLUMNS) * 4, 4);
        memcpy(sums + i * 4, &excess, sizeof excess);
    }
}

/* ---- weights ---- */

/* Of 256 columns and the outputs of a vector: [groups, or halves of them]; both words of a lane are the same.
 */
typedef struct s8_rounding {
    vi factors[2 * S8_GROUPS], offsets[2 * S8_GROUPS];
} s8_rounding;

SL_ALWAYS_INLINE float s8_largest_number(sl_qtype type) {
    return type == SL_QTYPE_Q6_K ? 63 : type == SL_QTYPE_Q5_K ? 31 : 15;
}

SL_ALWAYS_INLINE vi both_words(vi numbers) {
    return _mm512_mask_blend_epi16(0x55555555, vi_left(numbers, 16), numbers);
}

/* From the scales that expand_block makes; gives the scale of the int8 weights. */
SL_ALWAYS_INLINE vf s8_rounding_of(const sl_qtype type, const float *scales, s8_rounding *to) {
    const int halves = geometry_of(type).halves, minima = geometry_of(type).minima;
    const vf least_offset = vf_set1((float)unpack_offset(type));
    vf scale[2 * S8_GROUPS], minimum[2 * S8_GROUPS], largest = vf_zero();
    SL_UNROLL for (int i = 0; i < S8_GROUPS * halves; i++) {
        const float *of = scales + (i / halves * (halves + minima) + i % halves) * SL_PANEL;
        const float undo = 1 / unpack_scale(type, i / halves % 2);
        scale[i] = undo == 1 ? vf_load(of) : vf_mul(vf_load(of), vf_set1(undo));
        minimum[i] = minima ? vf_load(of + halves * SL_PANEL) : vf_mul(scale[i], least_offset);
        const vf most = _mm512_fmsub_ps(scale[i], vf_set1(s8_largest_number(type)), minimum[i]);
        largest = _mm512_max_ps(_mm512_abs_ps(minimum[i]), largest);
        largest = _mm512_max_ps(_mm512_abs_ps(most), largest);
    }
    /* Of zeros the offset is that of zero. What is not finite leaves a scale that is not finite. */
    const __mmask16 some = _mm512_cmp_ps_mask(largest, vf_set1(0x1p-100f), _CMP_GE_OQ);
    const vf inverse = _mm512_maskz_div_ps(some, vf_set1(256 * 127), largest);
    SL_UNROLL for (int i = 0; i < S8_GROUPS * halves; i++) {
        to->factors[i] = both_words(_mm512_cvtps_epi32(vf_mul(scale[i], inverse)));
        to->offsets[i] =
            both_words(_mm512_cvtps_epi32(_mm512_fnmadd_ps(minimum[i], inverse, vf_set1(256 * 128.5f))));
    }
    return vf_mul(largest, vf_set1(1.0f / 127));
}

/* Which columns of which outputs. */
typedef struct s8_place {
    const unsigned char *period; /* of a panel's block */
    int phase, group;            /* of the period; of the 256 columns */
    int quad, v;
} s8_place;

/* Four columns of sixteen outputs, plus 128. */
SL_ALWAYS_INLINE vi s8_weights(const sl_qtype type, const s8_place at, const s8_rounding *rounding) {
    const int halves = geometry_of(type).halves;
    const int scale = at.group * halves + at.quad * halves / S8_QUADS;
    vi numbers = unpack_weights(type, at.period, at.phase, at.quad, at.v);
    if (unpack_scale(type, at.phase) != 1) {
        numbers = vi_right(numbers, 4); /* of nibbles whose neighbours are zeros */
    }
    const vi factor = rounding->factors[scale], offset = rounding->offsets[scale];
    const vi even = vi_and(numbers, vi_set1(0x00ff00ff)), odd = _mm512_srli_epi16(numbers, 8);
    const vi low = _mm512_srli_epi16(_mm512_add_epi16(_mm512_mullo_epi16(even, factor), offset), 8);
    const vi high = _mm512_add_epi16(_mm512_mullo_epi16(odd, factor), offset);
    /* low | (high & 0xff00) */
    return _mm512_ternarylogic_epi32(low, high, vi_set1((int32_t)0xff00ff00), 0xf8);
}

/* ---- few rows: weights are rounded in registers ---- */

SL_ALWAYS_INLINE vf s8_add(vi dot, const unsigned char *x_scale, vf scale, vf sum) {
    return vf_fma(_mm512_cvtepi32_ps(dot), vf_mul(scale, broadcast_f32(x_scale)), sum);
}

/* Sums of 256 columns, where they can be read by an index that is no constant. */
typedef struct s8_dots {
    int32_t of[S8_ROWS][SL_PANEL];
} s8_dots;

SL_ALWAYS_INLINE void s8_keep(const int rows, vi dots[S8_ROWS][2], s8_dots *kept) {
    SL_UNROLL for (int r = 0; r < rows; r++) {
        vi_store(kept->of[r], dots[r][0]);
        vi_store(kept->of[r] + VN, dots[r][1]);
    }
    /* Else a compiler keeps a second copy of each through the loop that made it. */
    __asm__ volatile("" : : "r"(kept) : "memory");
}

/* To the running sums. `x`: the tile's 256 columns. */
SL_ALWAYS_INLINE void s8_add_rows(const int rows, const s8_dots *dots, const unsigned char *x,
                                  const float *scales, bool first, float *sums) {
    const unsigned char *x_scales = x + rows * S8_COLUMNS, *excess = x_scales + rows * 4;
    for (int r = 0; r < rows; r++) {
        SL_UNROLL for (int v = 0; v < 2; v++) {
            float *sum = sums + r * SL_PANEL + v * VN;
            const vi dot = vi_add(vi_load(dots->of[r] + v * VN), broadcast_i32(excess + r * 4));
            vf_store(sum, s8_add(dot, x_scales + r * 4, vf_load(scales + v * VN),
                                 first ? vf_zero() : vf_load(sum)));
        }
    }
}

SL_ALWAYS_INLINE void s8_tile(const sl_qtype type, const int rows, const sl_matmul_part *part) {
    const int periods = block_groups(type) / period_groups(type);
    const unsigned char *weights = part->weights, *x = part->x, *share = weights;
    float expanded[S8_EXPANDED] __attribute__((aligned(64)));
    float scales[SL_PANEL] __attribute__((aligned(64)));
    s8_rounding rounding[2];
    for (int32_t done = 0; done < part->columns; done += S8_COLUMNS) {
        vi dots[S8_ROWS][2];
        s8_dots kept;
        expand_block(type, weights, expanded);
        weights += header_bytes(type);
        SL_UNROLL for (int v = 0; v < 2; v++) {
            vf_store(scales + v * VN, s8_rounding_of(type, expanded + v * VN, &rounding[v]));
        }
        SL_UNROLL for (int r = 0; r < rows; r++) {
            dots[r][0] = dots[r][1] = vi_zero();
        }
        for (int p = 0; p < periods; p++, weights += period_bytes(type)) {
            SL_UNROLL for (int phase = 0; phase < period_groups(type); phase++) {
                prefetch_group(type, share);
                share += share_bytes(type);
                const int group = p * period_groups(type) + phase;
                const unsigned char *step = x + group * SL_MATMUL_GROUP / S8_STEP * rows * S8_STEP +
                                            group * SL_MATMUL_GROUP % S8_STEP;
                const unsigned char *period = weights;
                __asm__ volatile("" : "+r"(period)); /* see int_tile */
                SL_UNROLL for (int quad = 0; quad < S8_QUADS; quad++) {
                    const vi w[2] = {
                        s8_weights(type, (s8_place){period, phase, group, quad, 0}, &rounding[0]),
                        s8_weights(type, (s8_place){period, phase, group, quad, 1}, &rounding[1])};
                    SL_UNROLL for (int r = 0; r < rows; r++) {
                        const vi value = dot_x(step + r * S8_STEP + quad * 4);
                        dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w[0], value);
                        dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w[1], value);
                    }
                }
            }
        }
        s8_keep(rows, dots, &kept);
        s8_add_rows(rows, &kept, x, scales, part->first && done == 0, part->sums);
        x += rows * 8 * S8_GROUP_BYTES;
    }
}

/* ---- many rows: weights are rounded once ---- */

/* [columns / 4][SL_PANEL] words; with their signs, or plus 128. */
SL_ALWAYS_INLINE void s8_unpack(const sl_qtype type, const unsigned char *weights, int32_t blocks,
                                const bool is_signed, unsigned char *unpacked) {
    const int periods = block_groups(type) / period_groups(type);
    float expanded[S8_EXPANDED] __attribute__((aligned(64)));
    const unsigned char *share = weights;
    const vi sign = _mm512_set1_epi8(is_signed ? (char)0x80 : 0);
    for (int32_t b = 0; b < blocks; b++, weights += header_bytes(type) + periods * period_bytes(type)) {
        expand_block(type, weights, expanded);
        SL_UNROLL for (int v = 0; v < 2; v++) {
            s8_rounding rounding;
            (void)s8_rounding_of(type, expanded + v * VN, &rounding);
            const unsigned char *period = weights + header_bytes(type);
            for (int p = 0; p < periods; p++, period += period_bytes(type)) {
                SL_UNROLL for (int phase = 0; phase < period_groups(type); phase++) {
                    const int group = p * period_groups(type) + phase;
                    if (v == 0) {
                        prefetch_group(type, share);
                        share += share_bytes(type);
                    }
                    SL_UNROLL for (int quad = 0; quad < S8_QUADS; quad++) {
                        const vi w = s8_weights(type, (s8_place){period, phase, group, quad, v}, &rounding);
                        vi_store(unpacked + ((group * S8_QUADS + quad) * 2 + v) * (int)sizeof(vi),
                                 is_signed ? _mm512_xor_si512(w, sign) : w);
                    }
                }
            }
        }
        unpacked += S8_COLUMNS * SL_PANEL;
    }
}

/* The scales of a chunk: [columns / 256][SL_PANEL]. */
SL_ALWAYS_INLINE void s8_expand(const sl_qtype type, const unsigned char *weights, int32_t blocks,
                                float *scales) {
    const int periods = block_groups(type) / period_groups(type);
    float expanded[S8_EXPANDED] __attribute__((aligned(64)));
    for (int32_t b = 0; b < blocks; b++, scales += SL_PANEL) {
        expand_block(type, weights, expanded);
        weights += header_bytes(type) + periods * period_bytes(type);
        SL_UNROLL for (int v = 0; v < 2; v++) {
            s8_rounding rounding;
            vf_store(scales + v * VN, s8_rounding_of(type, expanded + v * VN, &rounding));
        }
    }
}

/* Of such weights plus 128. */
SL_ALWAYS_INLINE void s8_unpacked_tile(const int rows, const sl_matmul_part *part) {
    const unsigned char *weights = part->unpacked, *x = part->x;
    const float *scales = part->scales;
    for (int32_t done = 0; done < part->columns; done += S8_COLUMNS, scales += SL_PANEL) {
        vi dots[S8_ROWS][2];
        s8_dots kept;
        SL_UNROLL for (int r = 0; r < rows; r++) {
            dots[r][0] = dots[r][1] = vi_zero();
        }
        const unsigned char *step = x;
        for (int s = 0; s < S8_COLUMNS / S8_STEP; s++, step += (rows - 1) * S8_STEP) {
            for (int quad = 0; quad < S8_STEP / 4; quad++, weights += 2 * sizeof(vi), step += 4) {
                const vi w0 = vi_load(weights), w1 = vi_load(weights + sizeof(vi));
                SL_UNROLL for (int r = 0; r < rows; r++) {
                    const vi value = dot_x(step + r * S8_STEP);
                    dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w0, value);
                    dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w1, value);
                    __asm__("" : "+v"(dots[r][0]), "+v"(dots[r][1]));
                }
            }
        }
        s8_keep(rows, dots, &kept);
        s8_add_rows(rows, &kept, x, scales, part->first && done == 0, part->sums);
        x += rows * 8 * S8_GROUP_BYTES;
    }
}

/* ---- the table ---- */

#define SL_EACH_S8_TYPE(MACRO)                                                                               \
    MACRO(q4_k, Q4_K)                                                                                        \
    MACRO(q5_k, Q5_K)                                                                                        \
    MACRO(q6_k, Q6_K)

#define S8_TILE(name, ID, rows)                                                                              \
    static void name##_s8_tile_##rows(const sl_matmul_part *part) {                                          \
        s8_tile(SL_QTYPE_##ID, rows, part);                                                                  \
    }
#define S8_EXPAND(name, ID)                                                                                  \
    static void name##_s8_expand(const unsigned char *weights, int32_t blocks, float *scales) {              \
        s8_expand(SL_QTYPE_##ID, weights, blocks, scales);                                                   \
    }
#define S8_UNPACK(name, ID, is_signed)                                                                       \
    static void name##_s8_unpack(const unsigned char *weights, int32_t blocks, unsigned char *unpacked) {    \
        s8_unpack(SL_QTYPE_##ID, weights, blocks, is_signed, unpacked);                                      \
    }

/* What a type's row has on both tiers. */
#define S8_FIELDS(name, ID)                                                                                  \
    .pack_row = s8_pack, .expand = name##_s8_expand, .unpack = name##_s8_unpack, .unpacked_bytes = 1,        \
    .unpacked_tiles = s8_of_many, .block = SL_##ID##_ELEMENTS, .block_bytes = SL_##ID##_BYTES, .scales = 1,  \
    .group_bytes = S8_GROUP_BYTES, .chunk = S8_CHUNK

static void s8_pack(const sl_matmul_source *source) {
    s8_pack_row(source);
}

#endif
