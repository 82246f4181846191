/* The innermost loops of the matrix product, for one tier: included once by its matmul.c, after its unpack.h.
 *
 * Class "q8_32/chain": per group of 32 columns (half a group for q2_k, q3_k, q6_k, iq2 and iq1, which have a
 * scale for each) the integer sum is exact; as f32 it is multiplied by the weight's scale and then, fused
 * with the addition to the running sum, by x's. A minimum times x's sum, itself a rounded product, is then
 * subtracted in one more fused step (two for q2_k, one per half).
 *
 * The two planes behind a tile's scales, of a group or of each half: what the integer sum starts from, to
 * make up for weights kept as unsigned and to be a float (dot_bits), or, for types with minima, x's scale
 * times its sum as f32. */
#ifndef SL_BACKEND_CPU_MATMUL_TILES_H
#define SL_BACKEND_CPU_MATMUL_TILES_H

#include "backend/cpu/matmul.h"
#include "quant/convert.h"

#include <string.h>

enum { PREFETCH = 6144 }; /* bytes ahead: less, and a single row does not reach the memory's speed */

/* ---- a type's geometry, all constants after inlining ---- */

typedef struct geometry {
    int groups; /* of a block */
    int period; /* groups whose quants lie together */
    int header; /* bytes of one output in front of a block's periods */
    int quants; /* bytes of one output and period */
    int halves; /* scales of a group */
    int minima; /* of a group */
    bool exact; /* scales have at most 22 bits and are below 2^104: see scaled_dot */
} geometry;

SL_ALWAYS_INLINE geometry geometry_of(sl_qtype type) {
    switch (type) {
    case SL_QTYPE_Q8_0:
        return (geometry){1, 1, 2, 32, 1, 0, true};
    case SL_QTYPE_Q4_1:
        return (geometry){1, 1, 4, 16, 1, 1, true};
    case SL_QTYPE_Q5_0:
        return (geometry){1, 1, 2, 20, 1, 0, true};
    case SL_QTYPE_Q5_1:
        return (geometry){1, 1, 4, 20, 1, 1, true};
    case SL_QTYPE_Q2_K:
        return (geometry){8, 4, 20, 32, 2, 2, true};
    case SL_QTYPE_Q3_K:
        return (geometry){8, 4, 14, 48, 2, 0, true};
    case SL_QTYPE_Q4_K:
        return (geometry){8, 2, 16, 32, 1, 1, true};
    case SL_QTYPE_Q5_K:
        return (geometry){8, 2, 16, 40, 1, 1, true};
    case SL_QTYPE_Q6_K:
        return (geometry){8, 4, 18, 96, 2, 0, true};
    case SL_QTYPE_IQ4_XS:
        return (geometry){8, 1, 8, 16, 1, 0, true};
    case SL_QTYPE_MXFP4:
        return (geometry){1, 1, 1, 16, 1, 0, false};
    case SL_QTYPE_NVFP4:
        return (geometry){2, 1, 4, 16, 2, 0, true};
    case SL_QTYPE_NVFP4_128:
        return (geometry){4, 1, 12, 16, 2, 0, false};
    case SL_QTYPE_TQ2_0:
        return (geometry){8, 4, 2, 32, 1, 0, true};
    case SL_QTYPE_IQ3_XXS:
    case SL_QTYPE_IQ3_S:
        return (geometry){8, 1, 12, 16, 1, 0, false};
    case SL_QTYPE_IQ2_S:
    case SL_QTYPE_IQ1_M:
        return (geometry){8, 1, 20, 16, 2, 0, false};
    default: /* q4_0, iq4_nl */
        return (geometry){1, 1, 2, 16, 1, 0, true};
    }
}

SL_ALWAYS_INLINE int block_groups(sl_qtype type) {
    return geometry_of(type).groups;
}
SL_ALWAYS_INLINE int period_groups(sl_qtype type) {
    return geometry_of(type).period;
}
SL_ALWAYS_INLINE int header_bytes(sl_qtype type) {
    return SL_PANEL * geometry_of(type).header;
}
SL_ALWAYS_INLINE int period_bytes(sl_qtype type) {
    return SL_PANEL * geometry_of(type).quants;
}
/* Vectors of scales of a group and output: its scales, then its minima. */
SL_ALWAYS_INLINE int group_scales(sl_qtype type) {
    return geometry_of(type).halves + geometry_of(type).minima;
}

/* ---- scales ---- */

/* Byte i of words. */
SL_ALWAYS_INLINE vi byte_of(vi words, int i) {
    return vi_and(vi_right(words, 8 * i), vi_set1(255));
}

/* Six bits in each byte: four of `low`, then the upper two of `high`: how q4_k keeps the groups 4 to 7. */
SL_ALWAYS_INLINE vi q4_k_high(vi low, vi high) {
    return vi_or(vi_and(low, vi_set1(0x0f0f0f0f)), vi_and(vi_right(high, 2), vi_set1(0x30303030)));
}

/* Of q4_k and q5_k. */
SL_ALWAYS_INLINE void expand_q4_k(sl_qtype type, const unsigned char *header, int v, float *scales) {
    const vf scale = vf_load_f16(header + v * VN * 2), min = vf_load_f16(header + SL_PANEL * 2 + v * VN * 2);
    const unsigned char *words = header + SL_PANEL * 4 + v * (int)sizeof(vi);
    const vi a = vi_load(words), b = vi_load(words + SL_PANEL * 4), c = vi_load(words + SL_PANEL * 8);
    const vi scale_bytes[2] = {vi_and(a, vi_set1(0x3f3f3f3f)), q4_k_high(c, a)};
    const vi min_bytes[2] = {vi_and(b, vi_set1(0x3f3f3f3f)), q4_k_high(vi_right(c, 4), b)};
    const vf scale_of[2] = {scale, vf_mul(scale, vf_set1(unpack_scale(type, 1)))}; /* a power of two: exact */
    SL_UNROLL for (int g = 0; g < 8; g++) {
        const vi group_scale = byte_of(scale_bytes[g / 4], g % 4),
                 group_min = byte_of(min_bytes[g / 4], g % 4);
        vf_store(scales + (2 * g) * SL_PANEL, vf_mul(vf_from_int(group_scale), scale_of[g % 2]));
        vf_store(scales + (2 * g + 1) * SL_PANEL, vf_mul(vf_from_int(group_min), min));
    }
}

SL_ALWAYS_INLINE void expand_q6_k(const unsigned char *header, int v, float *scales) {
    const vf scale = vf_load_f16(header + v * VN * 2);
    const unsigned char *words = header + SL_PANEL * 2 + v * (int)sizeof(vi);
    SL_UNROLL for (int i = 0; i < 16; i++) {
        const vi word = vi_load(words + i / 4 * SL_PANEL * 4);
        const vi factor = vi_right_signed(vi_left(word, 24 - i % 4 * 8), 24);
        vf_store(scales + i * SL_PANEL, vf_mul(vf_from_int(factor), scale));
    }
}

/* Byte i of a run of words of the header. */
SL_ALWAYS_INLINE vi header_byte(const unsigned char *words, int i) {
    return vi_and(vi_right(vi_load(words + i / 4 * SL_PANEL * 4), i % 4 * 8), vi_set1(255));
}

SL_ALWAYS_INLINE void expand_q2_k(const unsigned char *header, int v, float *scales) {
    const unsigned char *words = header + v * (int)sizeof(vi);
    const vf scale = vf_load_f16(header + SL_PANEL * 16 + v * VN * 2);
    const vf min = vf_load_f16(header + SL_PANEL * 18 + v * VN * 2);
    SL_UNROLL for (int i = 0; i < 16; i++) {
        const vi both = header_byte(words, i);
        float *out = scales + (i / 2 * 4 + i % 2) * SL_PANEL;
        vf_store(out, vf_mul(vf_from_int(vi_and(both, vi_set1(15))), scale));
        vf_store(out + 2 * SL_PANEL, vf_mul(vf_from_int(vi_right(both, 4)), min));
    }
}

SL_ALWAYS_INLINE void expand_q3_k(const unsigned char *header, int v, float *scales) {
    const vf scale = vf_load_f16(header + v * VN * 2);
    const unsigned char *words = header + SL_PANEL * 2 + v * (int)sizeof(vi);
    SL_UNROLL for (int i = 0; i < 16; i++) {
        const vi low = vi_and(vi_right(header_byte(words, i % 8), i / 8 * 4), vi_set1(15));
        const vi high = vi_and(vi_right(header_byte(words, 8 + i % 4), i / 4 * 2), vi_set1(3));
        const vi number = vi_add(vi_or(low, vi_left(high, 4)), vi_set1(-32));
        vf_store(scales + i * SL_PANEL, vf_mul(vf_from_int(number), scale));
    }
}

SL_ALWAYS_INLINE void expand_iq4_xs(const unsigned char *header, int v, float *scales) {
    const vf scale = vf_load_f16(header + v * VN * 2);
    const vi high = vi_load_u16(header + SL_PANEL * 2 + v * VN * 2);
    const vi low = vi_load(header + SL_PANEL * 4 + v * (int)sizeof(vi));
    SL_UNROLL for (int g = 0; g < 8; g++) {
        const vi number = vi_or(vi_and(vi_right(low, 4 * g), vi_set1(15)),
                                vi_left(vi_and(vi_right(high, 2 * g), vi_set1(3)), 4));
        vf_store(scales + g * SL_PANEL, vf_mul(vf_from_int(vi_add(number, vi_set1(-32))), scale));
    }
}

/* Half of 2^(e - 127). As the bits of a float an exponent of 0 would be 0; it is 2^-127. */
SL_ALWAYS_INLINE void expand_mxfp4(const unsigned char *header, int v, float *scales) {
    const vi exponent = vi_left(vi_load_u8(header + v * VN), 23);
    const vf power = vf_xor(vf_zero(), vi_max_unsigned(exponent, vi_set1(0x00400000)));
    vf_store(scales, vf_mul(power, vf_set1(0.5f)));
}

/* Scale i of NVFP4, from the words that hold them: E4M3's bits are those of a smaller float, subnormals
 * included; 2^120 makes up for the biases, and half of that for the doubled values. */
SL_ALWAYS_INLINE vf nvfp4_scale(const unsigned char *words, int i) {
    return vf_mul(vf_xor(vf_zero(), vi_left(header_byte(words, i), 20)), vf_set1(0x1p119f));
}

SL_ALWAYS_INLINE void expand_nvfp4(const unsigned char *header, int v, float *scales) {
    SL_UNROLL for (int i = 0; i < 4; i++) {
        vf_store(scales + i * SL_PANEL, nvfp4_scale(header + v * (int)sizeof(vi), i));
    }
}

SL_ALWAYS_INLINE void expand_nvfp4_128(const unsigned char *header, int v, float *scales) {
    const vf scale = vf_load(header + v * (int)sizeof(vf));
    SL_UNROLL for (int i = 0; i < 8; i++) {
        const vf own = nvfp4_scale(header + SL_PANEL * 4 + v * (int)sizeof(vi), i);
        vf_store(scales + i * SL_PANEL, vf_mul(scale, own));
    }
}

/* One scale for all groups. */
SL_ALWAYS_INLINE void expand_tq2_0(const unsigned char *header, int v, float *scales) {
    const vf scale = vf_load_f16(header + v * VN * 2);
    SL_UNROLL for (int g = 0; g < 8; g++) {
        vf_store(scales + g * SL_PANEL, scale);
    }
}

/* Of `count` parts, each with a factor of one byte. */
SL_ALWAYS_INLINE void expand_codes(const unsigned char *header, int v, const int count, float *scales) {
    const vf scale = vf_load(header + v * (int)sizeof(vf));
    SL_UNROLL for (int i = 0; i < count; i++) {
        const vi factor = header_byte(header + SL_PANEL * 4 + v * (int)sizeof(vi), i);
        vf_store(scales + i * SL_PANEL, vf_mul(vf_from_int(factor), scale));
    }
}

/* Of one block: [groups][group_scales][SL_PANEL]. */
SL_ALWAYS_INLINE void expand_block(sl_qtype type, const unsigned char *header, float *scales) {
    SL_UNROLL for (int v = 0; v < 2; v++) {
        float *out = scales + v * VN;
        switch (type) {
        case SL_QTYPE_Q4_K:
        case SL_QTYPE_Q5_K:
            expand_q4_k(type, header, v, out);
            break;
        case SL_QTYPE_Q6_K:
            expand_q6_k(header, v, out);
            break;
        case SL_QTYPE_Q2_K:
            expand_q2_k(header, v, out);
            break;
        case SL_QTYPE_Q3_K:
            expand_q3_k(header, v, out);
            break;
        case SL_QTYPE_IQ4_XS:
            expand_iq4_xs(header, v, out);
            break;
        case SL_QTYPE_MXFP4:
            expand_mxfp4(header, v, out);
            break;
        case SL_QTYPE_NVFP4:
            expand_nvfp4(header, v, out);
            break;
        case SL_QTYPE_NVFP4_128:
            expand_nvfp4_128(header, v, out);
            break;
        case SL_QTYPE_TQ2_0:
            expand_tq2_0(header, v, out);
            break;
        case SL_QTYPE_IQ3_XXS:
        case SL_QTYPE_IQ3_S:
            expand_codes(header, v, 8, out);
            break;
        case SL_QTYPE_IQ2_S:
        case SL_QTYPE_IQ1_M:
            expand_codes(header, v, 16, out);
            break;
        default:
            vf_store(out, vf_load_f16(header + v * VN * 2));
            if (geometry_of(type).minima) { /* added in the file, subtracted here */
                const vf min = vf_load_f16(header + SL_PANEL * 2 + v * VN * 2);
                vf_store(out + SL_PANEL, vf_sub(vf_zero(), min));
            }
        }
    }
}

SL_ALWAYS_INLINE void expand_blocks(sl_qtype type, const unsigned char *weights, int32_t blocks,
                                    float *scales) {
    const int periods = block_groups(type) / period_groups(type);
    for (int32_t b = 0; b < blocks; b++) {
        expand_block(type, weights, scales);
        weights += header_bytes(type) + periods * period_bytes(type);
        scales += block_groups(type) * group_scales(type) * SL_PANEL;
    }
}

/* ---- activations ---- */

/* The bits of 2^23 + 2^22 as a float. An integer n added to them, when it is below 2^22 in size, makes those
 * of 2^23 + 2^22 + n: a sum that starts here is a float without being converted. */
#define SL_DOT_BITS 0x4b400000
#define SL_DOT_ZERO 12582912.0f

SL_ALWAYS_INLINE int32_t dot_bits(sl_qtype type) {
    return geometry_of(type).exact ? SL_DOT_BITS : 0;
}

enum { INT_GROUP_BYTES = SL_MATMUL_GROUP + 12 };

SL_ALWAYS_INLINE int32_t sum_of(const int8_t *values, int count) {
    int32_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum;
}

SL_ALWAYS_INLINE void pack_row_int(sl_qtype type, const sl_matmul_source *source) {
    const sl_q8_32 x = sl_cpu_q8_32(source->x, source->row);
    const int32_t rows = source->rows, i = source->index;
    unsigned char *group = source->tile;
    for (int32_t g = 0; g < source->columns / SL_MATMUL_GROUP; g++, group += rows * INT_GROUP_BYTES) {
        const int8_t *values = x.values + g * SL_MATMUL_GROUP;
        float *scales = (float *)(void *)(group + rows * SL_MATMUL_GROUP);
        int32_t *planes = (int32_t *)(void *)(scales + rows);
        memcpy(group + i * SL_MATMUL_GROUP, values, SL_MATMUL_GROUP);
        scales[i] = x.scales[g];
        const int halves = geometry_of(type).halves;
        const int32_t first = halves == 2 ? sum_of(values, 16) : x.sums[g];
        const int32_t sums[2] = {first, x.sums[g] - first};
        for (int h = 0; h < halves; h++) {
            const float scaled = (float)sums[h] * x.scales[g];
            planes[h * rows + i] = dot_bits(type) - unpack_offset(type) * sums[h];
            if (geometry_of(type).minima) {
                memcpy(&planes[h * rows + i], &scaled, sizeof scaled);
            }
        }
    }
}

/* ---- quantised weights ---- */

SL_ALWAYS_INLINE void load_sums(const sl_matmul_part *part, vf sums[SL_MATMUL_TILE][2], const int rows) {
    SL_UNROLL for (int r = 0; r < rows; r++) {
        SL_UNROLL for (int v = 0; v < 2; v++) {
            sums[r][v] = part->first ? vf_zero() : vf_load(part->sums + r * SL_PANEL + v * VN);
        }
    }
}

SL_ALWAYS_INLINE void store_sums(const sl_matmul_part *part, vf sums[SL_MATMUL_TILE][2], const int rows) {
    SL_UNROLL for (int r = 0; r < rows; r++) {
        SL_UNROLL for (int v = 0; v < 2; v++) {
            vf_store(part->sums + r * SL_PANEL + v * VN, sums[r][v]);
        }
    }
}

SL_ALWAYS_INLINE vf broadcast_f32(const unsigned char *p) {
    float value;
    memcpy(&value, p, sizeof value);
    return vf_set1(value);
}

SL_ALWAYS_INLINE vi broadcast_i32(const unsigned char *p) {
    int32_t value;
    memcpy(&value, p, sizeof value);
    return vi_set1(value);
}

/* Where the operands of one group of columns lie. */
typedef struct int_group {
    const unsigned char *period; /* the weights' period, of which it is group `phase` */
    int phase;                   /* a constant after unrolling */
    const unsigned char *x;      /* [rows][SL_MATMUL_GROUP], then the scales and the planes of all rows */
    const float *scales;         /* [group_scales][SL_PANEL] */
} int_group;

/* A group's sum times the weight's scale, rounded once. From a sum that is a float already, `zero`, minus its
 * zero times the scale, takes what it is too much, for the fused product is exact before it is rounded: the
 * bits are those of converting and multiplying, an operation less. */
SL_ALWAYS_INLINE vf scaled_dot(const sl_qtype type, vi dot, vf scale, vf zero) {
    return geometry_of(type).exact ? vf_fma(vf_xor(vf_zero(), dot), scale, zero)
                                   : vf_mul(vf_from_int(dot), scale);
}

/* Columns 4 quad .. of the group, for the outputs of vector v: `plain` are bytes that unpack_blocks made. */
SL_ALWAYS_INLINE vi group_weights(const sl_qtype type, const bool plain, const int_group group, int quad,
                                  int v) {
    return plain ? vi_load(group.period + (quad * 2 + v) * (int)sizeof(vi))
                 : unpack_weights(type, group.period, group.phase, quad, v);
}

SL_ALWAYS_INLINE void add_group(const sl_qtype type, const bool plain, const int rows, const int_group group,
                                vf sums[SL_MATMUL_TILE][2]) {
    const int halves = geometry_of(type).halves;
    const unsigned char *x_scales = group.x + rows * SL_MATMUL_GROUP, *planes = x_scales + rows * 4;
    SL_UNROLL for (int h = 0; h < halves; h++) {
        vi dots[SL_MATMUL_TILE][2];
        SL_UNROLL for (int r = 0; r < rows; r++) {
            const vi start =
                unpack_offset(type) ? broadcast_i32(planes + (h * rows + r) * 4) : vi_set1(dot_bits(type));
            dots[r][0] = dots[r][1] = dot_start(type, start);
        }
        SL_UNROLL for (int quad = h * 8 / halves; quad < (h + 1) * 8 / halves; quad += dot_quads(type)) {
            vi weights[2][2], words[2]; /* [vector][quad], [quad] */
            SL_UNROLL for (int q = 0; q < dot_quads(type); q++) {
                weights[0][q] = group_weights(type, plain, group, quad + q, 0);
                weights[1][q] = group_weights(type, plain, group, quad + q, 1);
            }
            SL_UNROLL for (int r = 0; r < rows; r++) {
                SL_UNROLL for (int q = 0; q < dot_quads(type); q++) {
                    words[q] = dot_x(group.x + r * SL_MATMUL_GROUP + (quad + q) * 4);
                }
                dots[r][0] = dot_add(type, dots[r][0], weights[0], words);
                dots[r][1] = dot_add(type, dots[r][1], weights[1], words);
            }
        }
        vf scales[2], zeros[2];
        SL_UNROLL for (int v = 0; v < 2; v++) {
            scales[v] = vf_load(group.scales + h * SL_PANEL + v * VN);
            zeros[v] = vf_mul(scales[v], vf_set1(-SL_DOT_ZERO));
        }
        SL_UNROLL for (int r = 0; r < rows; r++) {
            const vf x_scale = broadcast_f32(x_scales + r * 4);
            const vi start =
                unpack_offset(type) ? broadcast_i32(planes + (h * rows + r) * 4) : vi_set1(dot_bits(type));
            SL_UNROLL for (int v = 0; v < 2; v++) {
                const vf product = scaled_dot(type, dot_end(type, dots[r][v], start), scales[v], zeros[v]);
                sums[r][v] = vf_fma(product, x_scale, sums[r][v]);
            }
        }
    }
    SL_UNROLL for (int m = 0; m < geometry_of(type).minima; m++) {
        SL_UNROLL for (int r = 0; r < rows; r++) {
            const vf x_sum = broadcast_f32(planes + (m * rows + r) * 4);
            SL_UNROLL for (int v = 0; v < 2; v++) {
                const vf min = vf_load(group.scales + (halves + m) * SL_PANEL + v * VN);
                sums[r][v] = vf_fnma(min, x_sum, sums[r][v]);
            }
        }
    }
}

/* Bytes of a block's panel for each of its groups, a share of the header among them. */
SL_ALWAYS_INLINE int share_bytes(const sl_qtype type) {
    return period_bytes(type) / period_groups(type) + header_bytes(type) / block_groups(type);
}

/* What lies ahead of a group's share, which begins at `at`. Shares follow each other without a gap: a header
 * that came from memory when it is needed would stop all that follows. */
SL_ALWAYS_INLINE void prefetch_group(const sl_qtype type, const unsigned char *at) {
    SL_UNROLL for (int i = 0; i < share_bytes(type); i += 64) {
        _mm_prefetch((const char *)at + PREFETCH + i, _MM_HINT_T0);
    }
}

SL_ALWAYS_INLINE void int_tile(const sl_qtype type, const int rows, const sl_matmul_part *part) {
    const int block_scales = block_groups(type) * group_scales(type) * SL_PANEL;
    const int periods = block_groups(type) / period_groups(type);
    float local[8 * 4 * SL_PANEL] __attribute__((aligned(64)));
    const unsigned char *weights = part->weights, *share = weights, *x = part->x;
    const float *expanded = part->scales;
    vf sums[SL_MATMUL_TILE][2];
    load_sums(part, sums, rows);
    for (int32_t block = part->columns / (block_groups(type) * SL_MATMUL_GROUP); block > 0; block--) {
        const float *scales = expanded;
        if (expanded) {
            expanded += block_scales;
        } else {
            expand_block(type, weights, local);
            scales = local;
        }
        weights += header_bytes(type);
        for (int p = 0; p < periods; p++, weights += period_bytes(type)) {
            SL_UNROLL for (int phase = 0; phase < period_groups(type); phase++) {
                prefetch_group(type, share);
                share += share_bytes(type);
                /* A pointer that no other group's equals, as far as the compiler can tell: else it keeps the
                 * period's words for them all in registers, and has too few for the sums. */
                const unsigned char *period = weights;
                __asm__ volatile("" : "+r"(period));
                add_group(type, false, rows, (int_group){period, phase, x, scales}, sums);
                x += rows * INT_GROUP_BYTES;
                scales += group_scales(type) * SL_PANEL;
            }
        }
    }
    store_sums(part, sums, rows);
}

/* ---- float weights ---- */

SL_ALWAYS_INLINE vf load_weights(const sl_qtype type, const unsigned char *p) {
    return type == SL_QTYPE_F32 ? vf_load(p) : type == SL_QTYPE_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

/* Class "f32/chain": every product fused with its addition to the sum. */
SL_ALWAYS_INLINE void float_tile(const sl_qtype type, const int rows, const sl_matmul_part *part) {
    const int bytes = type == SL_QTYPE_F32 ? 4 : 2;
    const unsigned char *weights = part->weights, *x = part->x;
    vf sums[SL_MATMUL_TILE][2];
    load_sums(part, sums, rows);
    for (int32_t left = part->columns; left > 0; left -= SL_MATMUL_GROUP) {
        const int32_t count = left < SL_MATMUL_GROUP ? left : SL_MATMUL_GROUP;
        for (int32_t k = 0; k < count; k++, weights += SL_PANEL * bytes) {
            _mm_prefetch((const char *)weights + PREFETCH, _MM_HINT_T0);
            if (SL_PANEL * bytes > 64) {
                _mm_prefetch((const char *)weights + PREFETCH + 64, _MM_HINT_T0);
            }
            const vf w0 = load_weights(type, weights), w1 = load_weights(type, weights + VN * bytes);
            SL_UNROLL for (int r = 0; r < rows; r++) {
                const vf value = broadcast_f32(x + (r * SL_MATMUL_GROUP + k) * 4);
                sums[r][0] = vf_fma(w0, value, sums[r][0]);
                sums[r][1] = vf_fma(w1, value, sums[r][1]);
            }
        }
        x += rows * SL_MATMUL_GROUP * 4;
    }
    store_sums(part, sums, rows);
}

/* Likewise: a weight is its block's scale times its own number, rounded. */
SL_ALWAYS_INLINE void fp8_tile(const int rows, const sl_matmul_part *part) {
    const unsigned char *weights = part->weights, *x = part->x;
    vf sums[SL_MATMUL_TILE][2];
    load_sums(part, sums, rows);
    for (int32_t block = part->columns / 128; block > 0; block--) {
        const vf scale0 = vf_load(weights), scale1 = vf_load(weights + VN * 4);
        weights += SL_PANEL * 4;
        for (int group = 0; group < 128 / SL_MATMUL_GROUP; group++, x += rows * SL_MATMUL_GROUP * 4) {
            for (int k = 0; k < SL_MATMUL_GROUP; k++, weights += SL_PANEL) {
                _mm_prefetch((const char *)weights + PREFETCH, _MM_HINT_T0);
                const vf w0 = vf_mul(scale0, vf_load_e4m3(weights));
                const vf w1 = vf_mul(scale1, vf_load_e4m3(weights + VN));
                SL_UNROLL for (int r = 0; r < rows; r++) {
                    const vf value = broadcast_f32(x + (r * SL_MATMUL_GROUP + k) * 4);
                    sums[r][0] = vf_fma(w0, value, sums[r][0]);
                    sums[r][1] = vf_fma(w1, value, sums[r][1]);
                }
            }
        }
    }
    store_sums(part, sums, rows);
}

SL_ALWAYS_INLINE void pack_row_f32(const sl_matmul_source *source) {
    const float *x = sl_cpu_f32(source->x, source->row);
    float *group = (float *)(void *)source->tile + source->index * SL_MATMUL_GROUP;
    for (int32_t done = 0; done < source->columns; done += SL_MATMUL_GROUP) {
        const int32_t left = source->columns - done;
        memset(group, 0, SL_MATMUL_GROUP * sizeof *group);
        memcpy(group, x + done, (size_t)(left < SL_MATMUL_GROUP ? left : SL_MATMUL_GROUP) * sizeof *group);
        group += source->rows * SL_MATMUL_GROUP;
    }
}

SL_ALWAYS_INLINE void pack_row_bf16(const sl_matmul_source *source) {
    const uint16_t *x = sl_cpu_bf16(source->x, source->row);
    uint16_t *group = (uint16_t *)(void *)source->tile + source->index * SL_MATMUL_GROUP;
    for (int32_t done = 0; done < source->columns; done += SL_MATMUL_GROUP) {
        const int32_t left = source->columns - done;
        memset(group, 0, SL_MATMUL_GROUP * sizeof *group);
        memcpy(group, x + done, (size_t)(left < SL_MATMUL_GROUP ? left : SL_MATMUL_GROUP) * sizeof *group);
        group += source->rows * SL_MATMUL_GROUP;
    }
}

/* ---- the tables ---- */

#define SL_INT_TILE(name, ID, rows)                                                                          \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        int_tile(SL_QTYPE_##ID, rows, part);                                                                 \
    }
#define SL_FLOAT_TILE(name, ID, rows)                                                                        \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        float_tile(SL_QTYPE_##ID, rows, part);                                                               \
    }
#define SL_FP8_TILE(name, ID, rows)                                                                          \
    static void name##_tile_##rows(const sl_matmul_part *part) {                                             \
        fp8_tile(rows, part);                                                                                \
    }
#define SL_TILES(MACRO, name, ID)                                                                            \
    MACRO(name, ID, 1)                                                                                       \
    MACRO(name, ID, 2)                                                                                       \
    MACRO(name, ID, 3)                                                                                       \
    MACRO(name, ID, 4)                                                                                       \
    MACRO(name, ID, 5)                                                                                       \
    MACRO(name, ID, 6)                                                                                       \
    MACRO(name, ID, 7)                                                                                       \
    MACRO(name, ID, 8)
/* Those of more rows, of a tier whose registers hold their sums. */
#define SL_LONG_TILES(MACRO, name, ID)                                                                       \
    SL_TILES(MACRO, name, ID)                                                                                \
    MACRO(name, ID, 9)                                                                                       \
    MACRO(name, ID, 10)                                                                                      \
    MACRO(name, ID, 11)                                                                                      \
    MACRO(name, ID, 12)
#define SL_LONG_TILE_LIST(name)                                                                              \
    {                                                                                                        \
        name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4, name##_tile_5, name##_tile_6,            \
            name##_tile_7, name##_tile_8, name##_tile_9, name##_tile_10, name##_tile_11, name##_tile_12      \
    }
#define SL_TILE_LIST(name)                                                                                   \
    {                                                                                                        \
        name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4, name##_tile_5, name##_tile_6,            \
            name##_tile_7, name##_tile_8                                                                     \
    }

/* Every integer type, with the number of scales of a block. */
#define SL_EACH_INT_TYPE(MACRO)                                                                              \
    MACRO(q8_0, Q8_0, 1)                                                                                     \
    MACRO(q4_0, Q4_0, 1)                                                                                     \
    MACRO(q4_k, Q4_K, 16)                                                                                    \
    MACRO(q6_k, Q6_K, 16)                                                                                    \
    MACRO(q5_k, Q5_K, 16)                                                                                    \
    MACRO(q4_1, Q4_1, 2)                                                                                     \
    MACRO(q5_0, Q5_0, 1)                                                                                     \
    MACRO(q5_1, Q5_1, 2)                                                                                     \
    MACRO(q2_k, Q2_K, 32)                                                                                    \
    MACRO(q3_k, Q3_K, 16)                                                                                    \
    MACRO(iq4_nl, IQ4_NL, 1)                                                                                 \
    MACRO(iq4_xs, IQ4_XS, 8)                                                                                 \
    MACRO(mxfp4, MXFP4, 1)                                                                                   \
    MACRO(nvfp4, NVFP4, 4)                                                                                   \
    MACRO(nvfp4_128, NVFP4_128, 8)                                                                           \
    MACRO(tq2_0, TQ2_0, 8)                                                                                   \
    MACRO(iq3_xxs, IQ3_XXS, 8)                                                                               \
    MACRO(iq3_s, IQ3_S, 8)                                                                                   \
    MACRO(iq2_s, IQ2_S, 16)                                                                                  \
    MACRO(iq1_m, IQ1_M, 16)

/* Types that panels do not tell from another one. */
#define SL_EACH_INT_ALIAS(MACRO)                                                                             \
    MACRO(tq2_0, TQ1_0, 8)                                                                                   \
    MACRO(iq2_s, IQ2_XXS, 16)                                                                                \
    MACRO(iq2_s, IQ2_XS, 16)                                                                                 \
    MACRO(iq1_m, IQ1_S, 16)

/* A tier that unpacks weights for many rows (matmul_unpacked.h) has its fields of sl_matmul_type here. */
#ifndef SL_INT_UNPACKED
#define SL_INT_UNPACKED(name, ID)
#endif

#define SL_INT_TYPE(name, ID, block_scales)                                                                  \
    SL_TILES(SL_INT_TILE, name, ID)                                                                          \
    static void name##_pack_row(const sl_matmul_source *source) {                                            \
        pack_row_int(SL_QTYPE_##ID, source);                                                                 \
    }                                                                                                        \
    static void name##_expand(const unsigned char *weights, int32_t blocks, float *scales) {                 \
        expand_blocks(SL_QTYPE_##ID, weights, blocks, scales);                                               \
    }

/* Bytes of a block in a panel. */
#define SL_PACKED_BYTES(ID)                                                                                  \
    (SL_QTYPE_##ID == SL_QTYPE_TQ1_0 || SL_QTYPE_##ID == SL_QTYPE_TQ2_0     ? (int32_t)SL_PACKED_TERNARY     \
     : SL_QTYPE_##ID == SL_QTYPE_IQ3_XXS || SL_QTYPE_##ID == SL_QTYPE_IQ3_S ? (int32_t)SL_PACKED_CODES       \
     : SL_QTYPE_##ID >= SL_QTYPE_IQ2_XXS && SL_QTYPE_##ID <= SL_QTYPE_IQ1_M                                  \
         ? (int32_t)SL_PACKED_CODES_OF_HALVES                                                                \
         : (int32_t)SL_##ID##_BYTES)

#define SL_INT_ROW(name, ID, block_scales)                                                                   \
    [SL_QTYPE_##ID] = {.tiles = SL_TILE_LIST(name),                                                          \
                       .pack_row = name##_pack_row,                                                          \
                       .expand = name##_expand,                                                              \
                       .main_rows = SL_MAIN_ROWS,                                                            \
                       .most_rows = SL_MOST_ROWS,                                                            \
                       .few_rows = 2 * SL_MOST_ROWS,                                                         \
                       .block = SL_##ID##_ELEMENTS,                                                          \
                       .block_bytes = SL_PACKED_BYTES(ID),                                                   \
                       .scales = block_scales,                                                               \
                       .group_bytes = INT_GROUP_BYTES,                                                       \
                       .chunk = SL_INT_CHUNK,                                                                \
                       SL_INT_UNPACKED(name, ID)},
#define SL_FLOAT_ROW(name, ID)                                                                               \
    [SL_QTYPE_##ID] = {.tiles = SL_FLOAT_TILE_LIST(name),                                                    \
                       .pack_row = pack_row_f32,                                                             \
                       .main_rows = SL_FLOAT_ROWS,                                                           \
                       .most_rows = SL_FLOAT_ROWS,                                                           \
                       .block = SL_##ID##_ELEMENTS,                                                          \
                       .block_bytes = SL_##ID##_BYTES,                                                       \
                       .chunk = SL_FLOAT_CHUNK,                                                              \
                       .group_bytes = SL_MATMUL_GROUP * 4}

#endif
