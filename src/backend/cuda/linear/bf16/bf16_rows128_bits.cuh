/* What bf16_rows128_types.cuh has, for types of two and three bits. Four columns, 32 apart, are in a byte:
 * they stay where they are, 1, 4, 16 or 64 times as large, and their scales are as much smaller. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_BITS_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_BITS_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_blocks.cuh"

/* Copies begin up to 14 bytes before the block, of Q2_K up to 12. */
template <> struct skinny_layout<SL_QTYPE_Q2_K> : skinny_quants<SL_Q2_K_BYTES, 112, 64> {};
template <> struct skinny_layout<SL_QTYPE_Q3_K> : skinny_quants<SL_Q3_K_BYTES, 144, 64> {};
template <> struct skinny_layout<SL_QTYPE_TQ2_0> : skinny_quants<SL_TQ2_0_BYTES, 80, 16> {};
template <> struct skinny_layout<SL_QTYPE_TQ1_0> : skinny_quants<SL_TQ1_0_BYTES, 80, 16> {};

/* ---- scales ---- */

/* 4^-i. */
static __device__ __forceinline__ float skinny_quarter(int i) {
    return __uint_as_float((uint32_t)(127 - 2 * i) << 23);
}

/* Of each 16 columns the scale is the lower half of a word, the constant the upper. */
template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_Q2_K>(const unsigned char *row, int32_t half,
                                                             uint4 *to) {
    const uint32_t both = *(const uint32_t *)(row + 80);
    const float all = sl_half_of(both) * SKINNY_UP, min = sl_half_of(both >> 16) * -SKINNY_DOWN;
    uint32_t out[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t word = *(const uint32_t *)(row + 8 * half + i / 4 * 4);
        const float each = all * skinny_quarter(i / 2), middle = 1.5f / skinny_quarter(i / 2);
        const float scale = skinny_byte_times(word & 0x0f0f0f0fu, (uint32_t)i % 4, each, each * -8388608.0f);
        const float constant =
            skinny_byte_times(word >> 4 & 0x0f0f0f0fu, (uint32_t)i % 4, min, min * -8388608.0f);
        const skinny_line line = skinny_line_of(scale, constant, middle);
        out[i] = sl_bf16_pair(line.scale, line.constant);
    }
    to[16 * (2 * half)] = make_uint4(out[0], out[1], out[2], out[3]);
    to[16 * (2 * half + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_Q3_K>(const unsigned char *row, int32_t half,
                                                             uint4 *to) {
    const uint16_t *words = (const uint16_t *)(row + 96);
    const uint32_t highs = (words[4] | (uint32_t)words[5] << 16) >> 4 * half;
    const float all = sl_half_of(words[6]) * SKINNY_UP;
    uint32_t out[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t lows = (words[i / 4 * 2] | (uint32_t)words[i / 4 * 2 + 1] << 16) >> 4 * half;
        const uint32_t numbers = (lows & 0x0f0f0f0fu) | (highs >> i / 4 * 2 << 4 & 0x30303030u);
        const float number = skinny_byte(numbers, (uint32_t)i % 4) - 8388640.0f; /* 2^23 + 32 */
        out[i] = skinny_twice(all * skinny_quarter(i / 2) * number);
    }
    to[16 * (2 * half)] = make_uint4(out[0], out[1], out[2], out[3]);
    to[16 * (2 * half + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
}

/* The block's scale, for each of the four places in a byte. */
static __device__ __forceinline__ void skinny_ternary_scales(const unsigned char *at, int32_t half,
                                                             uint4 *to) {
    if (half == 0) {
        const float all = sl_half_of(*(const uint16_t *)at) * SKINNY_UP;
        to[0] = make_uint4(skinny_twice(all), skinny_twice(all * skinny_quarter(1)),
                           skinny_twice(all * skinny_quarter(2)), skinny_twice(all * skinny_quarter(3)));
    }
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_TQ2_0>(const unsigned char *row, int32_t half,
                                                              uint4 *to) {
    skinny_ternary_scales(row + 64, half, to);
}

template <>
__device__ __forceinline__ void skinny_scales<SL_QTYPE_TQ1_0>(const unsigned char *row, int32_t half,
                                                              uint4 *to) {
    skinny_ternary_scales(row + 52, half, to);
}

/* ---- quants ---- */

/* A lane's bytes of 32 at `first` in both rows. */
struct skinny_quarters {
    uint32_t words[2][2][2]; /* [row][sixteen][which eight] */

    __device__ __forceinline__ void load(const skinny_view &view, uint32_t first) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                words[row][i / 2][i % 2] = skinny_short(view.row[row] + view.pair + first + 8 * i);
            }
        }
    }
    __device__ __forceinline__ uint32_t pair(int row, int k, int i) const {
        return __byte_perm(words[row][k % 2][i], 0, 0x4140);
    }
};

/* Which two bits of a byte are columns 16 k .. of a step. */
static __device__ __forceinline__ int skinny_quarter_of(int step, int k) {
    return 2 * (step % 2) + k / 2;
}

template <> struct skinny_decoder<SL_QTYPE_Q2_K> {
    skinny_quarters quarters;
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        quarters.load(view, (uint32_t)(16 + step / 2 * 32));
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int step, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t words[4] = {scales[row].x, scales[row].y, scales[row].z, scales[row].w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t scale = __byte_perm(words[k], 0, 0x1010),
                               constant = __byte_perm(words[k], 0, 0x3232);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t bits = quarters.pair(row, k, i) & 0x00030003u
                                                                         << 2 * skinny_quarter_of(step, k);
                    a[k][2 * i + row] = skinny_value(bits, scale, constant);
                }
            }
        }
    }
};

/* Third bits lie elsewhere: they take the constant from minus four quants to none, exactly. */
template <> struct skinny_decoder<SL_QTYPE_Q3_K> {
    skinny_quarters quarters;

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        quarters.load(view, (uint32_t)(32 + step / 2 * 32));
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
        skinny_quarters thirds;
        thirds.load(view, 0);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint4 four = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
            const uint32_t scales[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int quarter = skinny_quarter_of(step, k), bit = 2 * step + k / 2;
                const uint32_t up = (uint32_t)(127 + 2 + 2 * quarter - bit) << 7; /* a power of two */
                const uint32_t third = skinny_product(scales[k], up * 0x00010001u);
                const uint32_t less = skinny_product(scales[k], 0x80008000u | 0x00040004u << 2 * quarter);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t constant =
                        skinny_value(thirds.pair(row, k, i) & 0x00010001u << bit, third, less);
                    a[k][2 * i + row] = skinny_value(quarters.pair(row, k, i) & 0x00030003u << 2 * quarter,
                                                     scales[k], constant);
                }
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_TQ2_0> {
    skinny_quarters quarters;
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        quarters.load(view, (uint32_t)(step / 2 * 32));
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row));
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int step, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t words[4] = {scales[row].x, scales[row].y, scales[row].z, scales[row].w};
            const uint32_t constant = skinny_product(words[0], SKINNY_OFFSET_TQ);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int k = i / 2, quarter = skinny_quarter_of(step, k);
                const uint32_t bits = quarters.pair(row, k, i % 2) & 0x00030003u << 2 * quarter;
                a[k][i % 2 * 2 + row] = skinny_value(bits, words[quarter], constant);
            }
        }
    }
};

/* Bytes of five ternary digits (quant/blocks.h). Of the last 16 columns each four bytes' digits are one
 * column of four, so lanes want different digits of the same bytes. */
template <> struct skinny_decoder<SL_QTYPE_TQ1_0> {
    skinny_quarters quarters; /* of the first 32 bytes; in the last step of the others */

    /* Of two bytes in halves, where 3^n is `power`: (byte * power & 255) * 3 >> 8. */
    static __device__ __forceinline__ uint32_t digits(uint32_t pair, uint32_t power) {
        const uint32_t left = power == 1 ? pair : pair * power & 0x00ff00ffu;
        return __byte_perm(left * 3, 0, 0x4341);
    }

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        if (step < 3) {
            quarters.load(view, 0);
        }
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
        const uint32_t powers[5] = {1, 3, 9, 27, 81};
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t scale = skinny_two(view.scales + (uint32_t)(128 * row)).x;
            const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_TQ);
            const uint32_t from = view.row[row] + view.pair + 32;
            const uint32_t middle[2] = {step > 1 ? skinny_pair(from) : 0,
                                        step > 1 ? skinny_pair(from + 8) : 0};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int k = i / 2, number = 4 * step + k; /* of 16 columns */
                uint32_t found;
                if (number < 10) {
                    found = digits(quarters.pair(row, k, i % 2), powers[number / 2]);
                } else if (number < 15) {
                    found = digits(middle[i % 2], powers[number - 10]);
                } else {
                    const uint32_t last = skinny_pair(view.row[row] + 48 + view.pair % 4);
                    found = digits(last, (view.pair < 4 ? 1u : 3u) * powers[i % 2 * 2]);
                }
                a[k][i % 2 * 2 + row] = skinny_value(found, scale, constant);
            }
        }
    }
};

#endif
