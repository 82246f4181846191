/* Chunks and tiles (i8_chunk.cuh, i8_mma_tile.cuh) of TQ1_0 and TQ2_0: ternary digits and one scale for 256
 * columns. One is to be subtracted from a digit. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_TERNARY_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_TERNARY_CUH

#include "backend/cuda/linear/i8/i8_mma_tile.cuh"

template <> struct sl_chunk_shape<SL_QTYPE_TQ1_0> : chunk_shape<SL_TQ1_0_BYTES, SL_X_START, -1> {};
template <> struct sl_chunk_shape<SL_QTYPE_TQ2_0> : chunk_shape<SL_TQ2_0_BYTES, SL_X_START, -1> {};

/* A chunk's word at a multiple of 4; the chunk begins at an even address. */
static __device__ __forceinline__ uint32_t sl_ternary_word(const unsigned char *w, int32_t at) {
    return sl_tile<SL_QTYPE_Q6_K>::word(w, at);
}

/* ---- TQ2_0 ---- */

/* Pairs of bits are masked where they are, and the sum is shifted, exactly (i8_bits.cuh). */
template <> struct sl_chunk<SL_QTYPE_TQ2_0> {
    typedef sl_x_chunk<SL_QTYPE_TQ2_0> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        uint32_t words[16];
        sl_load_words<16>(w, words);
        const float d = sl_half_of(*(const uint16_t *)(w + 64));
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const int shift = 2 * (g % 4);
            int32_t dot = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                dot =
                    sl_dot_unsigned(words[8 * (g / 4) + i] & 0x03030303u << shift, x.values[8 * g + i], dot);
            }
            dot = (dot >> shift) + (int32_t)x.extra[g];
            sum = fmaf(d * (__int_as_float(dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
        }
        return sum;
    }
};

template <> struct sl_tile<SL_QTYPE_TQ2_0> {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const float d[2] = {sl_half_of(*(const uint16_t *)(w[0] + 64)),
                            sl_half_of(*(const uint16_t *)(w[1] + 64))};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                words[i] = sl_ternary_word(w[i % 2], 32 * h + 16 * (i / 2) + 4 * (lane % 4));
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int g = 4 * h + q;
                const uint32_t mask = 0x03030303u << 2 * q;
                const uint32_t a[4] = {words[0] & mask, words[1] & mask, words[2] & mask, words[3] & mask};
                const int2 start = x.extra(g);
                int32_t dots[4];
                sl_mma_i8<true>(dots, a, x.values(g), make_int2(0, 0));
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    dots[e] = (dots[e] >> 2 * q) + (e % 2 ? start.y : start.x);
                }
                tile_add(sums, dots, d, x.scales(g));
            }
        }
    }
};

/* ---- TQ1_0 ---- */

/* Four bytes of digits in two words, each in the lower half of 16 bits. A byte times three has its next digit
 * above its eight bits, and the others in them. */
struct ternary_word {
    uint32_t even, odd;

    __device__ __forceinline__ void init(uint32_t word) {
        even = word & 0x00ff00ffu;
        odd = word >> 8 & 0x00ff00ffu;
    }

    /* Leaves out digits: power is three to their number. */
    __device__ __forceinline__ void skip(uint32_t power) {
        even = even * power & 0x00ff00ffu;
        odd = odd * power & 0x00ff00ffu;
    }

    __device__ __forceinline__ uint32_t next(void) {
        const uint32_t a = even * 3, b = odd * 3;
        even = a & 0x00ff00ffu;
        odd = b & 0x00ff00ffu;
        return __byte_perm(a, b, 0x7351);
    }
};

/* Columns 0 .. 159 are digits 0 .. 4 of eight words, 160 .. 239 of four words, and the rest digits 0 .. 3 of
 * one. */
template <> struct sl_chunk<SL_QTYPE_TQ1_0> {
    typedef sl_x_chunk<SL_QTYPE_TQ1_0> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        uint32_t words[13];
        sl_load_words<13>(w, words);
        const float d = sl_half_of(*(const uint16_t *)(w + 52));
        ternary_word digits[8];
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            int32_t dot = (int32_t)x.extra[g];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int quad = 8 * g + i, at = g < 5 ? i : quad < 60 ? quad % 4 : 4;
                if (quad < 8 || (quad >= 40 && quad < 44) || quad == 60) {
                    digits[at].init(words[g < 5 ? i : 8 + at]);
                }
                dot = sl_dot_unsigned(digits[at].next(), x.values[quad], dot);
            }
            sum = fmaf(d * (__int_as_float(dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
        }
        return sum;
    }
};

template <> struct sl_tile<SL_QTYPE_TQ1_0> {
    /* A lane's words t and 4 + t of a group; of the last three groups all come from one word, but for the
     * last 16 columns. */
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const int32_t t = lane % 4;
        const uint32_t power = t == 0 ? 1u : t == 1 ? 3u : t == 2 ? 9u : 27u;
        float d[2];
        ternary_word digits[2][2]; /* [half][row] */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            d[r] = sl_half_of(*(const uint16_t *)(w[r] + 52));
            digits[0][r].init(sl_ternary_word(w[r], 4 * t));
            digits[1][r].init(sl_ternary_word(w[r], 16 + 4 * t));
        }
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (g == 5 && i < 2) {
                    digits[0][i].init(sl_ternary_word(w[i], 32 + 4 * t));
                }
                if (g == 7 && i >= 2) {
                    digits[1][i - 2].init(sl_ternary_word(w[i - 2], 48));
                    digits[1][i - 2].skip(power);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                a[r] = digits[0][r].next();
                a[2 + r] = g == 5 || g == 6 ? digits[0][r].next() : digits[1][r].next();
            }
            int32_t dots[4];
            sl_mma_i8<true>(dots, a, x.values(g), x.extra(g));
            tile_add(sums, dots, d, x.scales(g));
        }
    }
};

#endif
