/* What bf16_rows128_types.cuh has, for further types of four and five bits, whose scales are for 32 columns.
 */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_BLOCKS_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_BLOCKS_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_types.cuh"

template <> struct skinny_layout<SL_QTYPE_Q4_1> : skinny_quants<8 * SL_Q4_1_BYTES, 176, 64> {};
template <> struct skinny_layout<SL_QTYPE_Q5_0> : skinny_quants<8 * SL_Q5_0_BYTES, 176, 32> {};
template <> struct skinny_layout<SL_QTYPE_Q5_1> : skinny_quants<8 * SL_Q5_1_BYTES, 208, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ4_NL> : skinny_quants<8 * SL_IQ4_NL_BYTES, 144, 32> {};
/* copies begin up to 8 bytes before the block */
template <> struct skinny_layout<SL_QTYPE_IQ4_XS> : skinny_quants<SL_IQ4_XS_BYTES, 144, 32> {};

/* ---- scales ---- */

/* scale * bits + constant as BF16 numbers. The constant also takes up what the scale's rounding does to a
 * quant of `middle` bits. */
typedef struct skinny_line {
    float scale, constant;
} skinny_line;

static __device__ __forceinline__ skinny_line skinny_line_of(float scale, float constant, float middle) {
    const float taken = __uint_as_float(sl_bf16_pair(0.0f, scale));
    return {taken, fmaf(middle * SKINNY_BIT, scale - taken, constant)};
}

/* Half a row's blocks that begin with scale and minimum. */
template <int BYTES>
static __device__ __forceinline__ void skinny_scales_of_two(const unsigned char *row, int32_t half,
                                                            float middle, uint4 *to) {
    uint32_t out[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t both = *(const uint32_t *)(row + (4 * half + i) * BYTES);
        const skinny_line line =
            skinny_line_of(sl_half_of(both) * SKINNY_UP, sl_half_of(both >> 16) * SKINNY_DOWN, middle);
        out[2 * i] = skinny_twice(line.scale);
        out[2 * i + 1] = skinny_twice(line.constant);
    }
    to[16 * (2 * half)] = make_uint4(out[0], out[1], out[2], out[3]);
    to[16 * (2 * half + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_Q4_1>(const unsigned char *row, int32_t half,
                                                             uint4 *to) {
    skinny_scales_of_two<SL_Q4_1_BYTES>(row, half, 7.5f, to);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_Q5_0>(const unsigned char *row, int32_t half,
                                                             uint4 *to) {
    skinny_scales_of_one<SL_Q5_0_BYTES>(row, half, to);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_Q5_1>(const unsigned char *row, int32_t half,
                                                             uint4 *to) {
    skinny_scales_of_two<SL_Q5_1_BYTES>(row, half, 15.5f, to);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_IQ4_NL>(const unsigned char *row, int32_t half,
                                                               uint4 *to) {
    skinny_scales_of_one<SL_IQ4_NL_BYTES>(row, half, to);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_IQ4_XS>(const unsigned char *row, int32_t half,
                                                               uint4 *to) {
    const float all = sl_half_of(*(const uint16_t *)row) * SKINNY_UP;
    const uint32_t lows = *(const uint16_t *)(row + 4 + 2 * half);
    const uint32_t highs = (uint32_t) * (const uint16_t *)(row + 2) >> 8 * half;
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t number = (lows >> 4 * i & 15u) | (highs >> 2 * i & 3u) << 4;
        out[i] = skinny_twice(all * (float)((int32_t)number - 32));
    }
    to[16 * half] = make_uint4(out[0], out[1], out[2], out[3]);
}

/* ---- quants ---- */

/* A lane's two bytes of both eights of the two groups of a step, whose quants lie so many bytes apart. */
struct skinny_nibbles {
    uint32_t words[2][2][2]; /* [row][group][which eight] */

    __device__ __forceinline__ void load(const skinny_view &view, uint32_t first, uint32_t distance) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t at = first + (uint32_t)(i / 2) * distance + (uint32_t)(8 * (i % 2));
                words[row][i / 2][i % 2] = skinny_short(view.row[row] + view.pair + at);
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q4_1> {
    skinny_nibbles nibbles;
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        nibbles.load(view, (uint32_t)(2 * step * SL_Q4_1_BYTES + 4), SL_Q4_1_BYTES);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t scale = i ? scales[row].z : scales[row].x,
                               constant = i ? scales[row].w : scales[row].y,
                               less = skinny_product(scale, 0x3d803d80u); /* a sixteenth */
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t pair = __byte_perm(nibbles.words[row][i][j], 0, 0x4140);
                    a[2 * i][2 * j + row] = skinny_value(pair & 0x000f000fu, scale, constant);
                    a[2 * i + 1][2 * j + row] = skinny_value(pair & 0x00f000f0u, less, constant);
                }
            }
        }
    }
};

/* Q5_0 and Q5_1. A group's fifth bits are a word, of which a lane wants bits `pair`, `pair` + 1 and these
 * plus 8, 16 and 24: a byte comes to both halves, one bit stays in each, and as a BF16 number that is 16 or 0
 * when it was multiplied by the lane's powers of two, exactly. */
template <int TYPE, int HIGH> struct skinny_fives {
    enum { BYTES = TYPE == SL_QTYPE_Q5_0 ? SL_Q5_0_BYTES : SL_Q5_1_BYTES };
    skinny_nibbles nibbles;

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        nibbles.load(view, (uint32_t)(2 * step * BYTES + HIGH + 4), BYTES);
    }

    /* Block i of the step. */
    __device__ __forceinline__ void run(const skinny_view &view, int step, int row, int i, const uint2 &line,
                                        uint32_t (&a)[4][4]) {
        const uint32_t high = view.row[row] + (uint32_t)((2 * step + i) * BYTES + HIGH);
        const uint32_t fifths[2] = {skinny_short(high), skinny_short(high + 2)};
        const uint32_t bits = 0x00020001u << view.pair; /* bit `pair`, and the next in the upper half */
        const uint32_t powers = 0x41004180u - view.pair * 0x00800080u; /* 2^(4 - pair), half of that */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t pair = __byte_perm(nibbles.words[row][i][j], 0, 0x4140);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t byte = __byte_perm(fifths[n], 0, j ? 0x4141 : 0x4040);
                const uint32_t fifth = skinny_product(byte & bits, powers);
                a[2 * i + n][2 * j + row] =
                    skinny_value(((n ? pair >> 4 : pair) & 0x000f000fu) | fifth, line.x, line.y);
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q5_0> {
    skinny_fives<SL_QTYPE_Q5_0, 2> fives;
    uint2 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        fives.load(view, step);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_two(view.scales + (uint32_t)(128 * row + step / 2 * 256 + step % 2 * 8));
        }
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t scale = i % 2 ? scales[i / 2].y : scales[i / 2].x;
            fives.run(view, step, i / 2, i % 2, make_uint2(scale, skinny_product(scale, SKINNY_OFFSET_Q5_0)),
                      a);
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q5_1> {
    skinny_fives<SL_QTYPE_Q5_1, 4> fives;
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        fives.load(view, step);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
        }
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 s = scales[i / 2];
            fives.run(view, step, i / 2, i % 2, i % 2 ? make_uint2(s.z, s.w) : make_uint2(s.x, s.y), a);
        }
    }
};

/* IQ4_NL and IQ4_XS: nibbles to values plus 128, a group of 32 columns every DISTANCE bytes. A byte
 * permutation chooses among eight bytes, so there are two, and one more by the nibbles' upper bits. */
template <int FIRST, int DISTANCE> struct skinny_decoder_iq4 {
    skinny_nibbles nibbles;
    uint2 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        nibbles.load(view, (uint32_t)(2 * step * DISTANCE + FIRST), DISTANCE);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_two(view.scales + (uint32_t)(128 * row + step / 2 * 256 + step % 2 * 8));
        }
    }

    static __device__ __forceinline__ uint32_t look_up(uint64_t values, uint32_t nibbles) {
        const uint64_t moved = values ^ 0x8080808080808080u;
        return __byte_perm((uint32_t)moved, (uint32_t)(moved >> 32), nibbles);
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t scale = i ? scales[row].y : scales[row].x;
                const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q8_0);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t four = nibbles.words[row][i][j], index = four & 0x7777u;
                    const uint32_t found =
                        __byte_perm(look_up(SL_IQ4_VALUES_0, index), look_up(SL_IQ4_VALUES_1, index),
                                    0x3210u | (four >> 1 & 0x4444u));
                    a[2 * i][2 * j + row] = skinny_value(found & 0x00ff00ffu, scale, constant);
                    a[2 * i + 1][2 * j + row] = skinny_value(__byte_perm(found, 0, 0x4341), scale, constant);
                }
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_IQ4_NL> : skinny_decoder_iq4<2, SL_IQ4_NL_BYTES> {};
template <> struct skinny_decoder<SL_QTYPE_IQ4_XS> : skinny_decoder_iq4<8, 16> {};

#endif
