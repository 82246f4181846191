/* Chunks and tiles (matvec_chunk.cuh, matvec_tile.cuh) of the types that have a scale for each 32 columns and
 * need no shape of their own: one description of a type serves both. */
#ifndef SL_BACKEND_CUDA_MATVEC_BLOCKS_CUH
#define SL_BACKEND_CUDA_MATVEC_BLOCKS_CUH

#include "backend/cuda/matvec_tile.cuh"

/* ---- where bytes come from ----
 *
 * Word i of those that begin at byte `at`, which is known to the compiler. */

/* A chunk in a lane's registers; i is known to the compiler too. */
template <int BYTES> struct sl_words_held {
    uint32_t words[BYTES / 4];

    __device__ __forceinline__ void load(const unsigned char *w) {
        if (BYTES % 16 == 0) {
#pragma unroll
            for (int i = 0; i < BYTES / 16; i++) {
                const uint4 v = ((const uint4 *)w)[i];
                words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
            }
        } else if (BYTES % 8 == 0) {
#pragma unroll
            for (int i = 0; i < BYTES / 8; i++) {
                const uint2 v = ((const uint2 *)w)[i];
                words[2 * i] = v.x, words[2 * i + 1] = v.y;
            }
        } else {
#pragma unroll
            for (int i = 0; i < BYTES / 4; i++) {
                words[i] = ((const uint32_t *)w)[i];
            }
        }
    }

    __device__ __forceinline__ uint32_t word(int at, int i) const {
        const int first = at / 4 + i;
        return at % 4 ? __funnelshift_r(words[first], words[first + 1], 8 * (at % 4)) : words[first];
    }
};

/* A chunk in shared memory, at a multiple of 4. */
struct sl_words_shared {
    const unsigned char *w;

    __device__ __forceinline__ uint32_t word(int at, int32_t i) const {
        const uint32_t *words = (const uint32_t *)w + at / 4 + i;
        return at % 4 ? __funnelshift_r(words[0], words[1], 8 * (at % 4)) : words[0];
    }
};

/* The f16 at an even byte. */
template <typename WORDS> static __device__ __forceinline__ float sl_block_half(const WORDS &w, int at) {
    const uint32_t word = w.word(at / 4 * 4, 0);
    return sl_half_of(at % 4 ? word >> 16 : word & 0xffffu);
}

/* ---- types ----
 *
 * scale and min: of group g; min times scale times sum of x is added. quants: of group g the bytes of
 * elements 4 i .. 4 i + 3 and of the sixteen later; of an INTERLEAVED type (sl_chunk_shape) of elements
 * 4 i, 4 i + 16, 4 i + 1, 4 i + 17 and so on. They are unsigned. SPLIT: they are `quants` minus `less`.
 * WIDE: a scale times 1.5 * 2^23 can be too large for a float. */

template <int TYPE> struct sl_block32;

/* Bytes of `nibbles`: low ones, and high ones. */
static __device__ __forceinline__ void sl_nibbles(uint32_t nibbles, uint32_t quants[2]) {
    quants[0] = nibbles & 0x0f0f0f0fu;
    quants[1] = nibbles >> 4 & 0x0f0f0f0fu;
}

/* Ors the fifth bits of elements 4 i .. and of the sixteen later. */
static __device__ __forceinline__ void sl_fifth_bits(uint32_t bits, int32_t i, uint32_t quants[2]) {
    const uint32_t own = bits >> 4 * i; /* bit b of four, to bit 4 of byte b: no two products meet */
    quants[0] |= (own & 15u) * 0x02040810u & 0x10101010u;
    quants[1] |= (own >> 16 & 15u) * 0x02040810u & 0x10101010u;
}

template <> struct sl_block32<SL_QTYPE_Q4_1> {
    enum { SPLIT = 0, WIDE = 0 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q4_1_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q4_1_BYTES * g + 2);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        sl_nibbles(w.word(SL_Q4_1_BYTES * g + 4, i), quants);
    }
};

template <> struct sl_block32<SL_QTYPE_Q5_0> {
    enum { SPLIT = 0, WIDE = 0 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q5_0_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &, int) {
        return 0.0f;
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        sl_nibbles(w.word(SL_Q5_0_BYTES * g + 6, i), quants);
        sl_fifth_bits(w.word(SL_Q5_0_BYTES * g + 2, 0), i, quants);
    }
};

template <> struct sl_block32<SL_QTYPE_Q5_1> {
    enum { SPLIT = 0, WIDE = 0 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q5_1_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &w, int g) {
        return sl_block_half(w, SL_Q5_1_BYTES * g + 2);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        sl_nibbles(w.word(SL_Q5_1_BYTES * g + 8, i), quants);
        sl_fifth_bits(w.word(SL_Q5_1_BYTES * g + 4, 0), i, quants);
    }
};

/* ---- types with a table of values ----
 *
 * prmt takes a byte of eight by the lower three bits of each of four nibbles; where a nibble's fourth bit is
 * set it repeats the byte's highest bit instead, which is 0 in these tables. So a table for the upper eight
 * values, with those bits turned over, gives 0 where the other table gives a value. */

/* By the lower four nibbles. */
static __device__ __forceinline__ uint32_t sl_table_bytes(uint64_t table, uint32_t nibbles) {
    uint32_t found;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(found)
        : "r"((uint32_t)table), "r"((uint32_t)(table >> 32)), "r"(nibbles));
    return found;
}

#define SL_IQ4_NEGATIVES 0x0a1623314153687full /* -sl_iq4_value(0..7); SL_IQ4_VALUES_1 has the others */
/* 12 + sl_mxfp4_value(0..7), and 12 - it */
#define SL_MXFP4_POSITIVES 0x181412100f0e0d0cull
#define SL_MXFP4_NEGATIVES 0x00040608090a0b0cull

static __device__ __forceinline__ void sl_iq4_bytes(uint32_t nibbles, uint32_t quants[2], uint32_t less[2]) {
    const uint32_t turned = nibbles ^ 0x88888888u;
    quants[0] = sl_table_bytes(SL_IQ4_VALUES_1, turned);
    quants[1] = sl_table_bytes(SL_IQ4_VALUES_1, turned >> 16);
    less[0] = sl_table_bytes(SL_IQ4_NEGATIVES, nibbles);
    less[1] = sl_table_bytes(SL_IQ4_NEGATIVES, nibbles >> 16);
}

template <> struct sl_block32<SL_QTYPE_IQ4_NL> {
    enum { SPLIT = 1, WIDE = 0 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_IQ4_NL_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &, int) {
        return 0.0f;
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t less[2]) {
        sl_iq4_bytes(w.word(SL_IQ4_NL_BYTES * g + 2, i), quants, less);
    }
};

template <> struct sl_block32<SL_QTYPE_IQ4_XS> {
    enum { SPLIT = 1, WIDE = 0 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        const uint32_t first = w.word(0, 0), low = w.word(4, 0) >> 4 * g & 15u;
        const uint32_t high = first >> (16 + 2 * g) << 4 & 48u;
        const int32_t bits = SL_FLOAT_OF_INT_BITS - 32 + (int32_t)(low | high);
        return sl_half_of(first & 0xffffu) * (__int_as_float(bits) - SL_FLOAT_OF_INT);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &, int) {
        return 0.0f;
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t less[2]) {
        sl_iq4_bytes(w.word(8 + 16 * g, i), quants, less);
    }
};

template <> struct sl_block32<SL_QTYPE_MXFP4> {
    enum { SPLIT = 0, WIDE = 1 };
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        const int at = SL_MXFP4_BYTES * g;
        return sl_mxfp4_scale(w.word(at / 4 * 4, 0) >> 8 * (at % 4) & 255u);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &, int) {
        return 0.0f;
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        const uint32_t nibbles = w.word(SL_MXFP4_BYTES * g + 1, i), turned = nibbles ^ 0x88888888u;
        quants[0] = sl_table_bytes(SL_MXFP4_POSITIVES, nibbles) | sl_table_bytes(SL_MXFP4_NEGATIVES, turned);
        quants[1] = sl_table_bytes(SL_MXFP4_POSITIVES, nibbles >> 16) |
                    sl_table_bytes(SL_MXFP4_NEGATIVES, turned >> 16);
    }
};

/* ---- products ---- */

template <int TYPE> struct chunk_of_blocks {
    typedef sl_x_chunk<TYPE> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        typedef sl_chunk_shape<TYPE> shape;
        sl_words_held<shape::BYTES> words;
        words.load(w);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            int32_t dot = shape::X == SL_X_START ? (int32_t)x.extra[g] : SL_FLOAT_OF_INT_BITS, less_dot = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t quants[2], less[2];
                sl_block32<TYPE>::quants(words, g, i, quants, less);
                const int32_t first = x.values[8 * g + (shape::INTERLEAVED ? 2 * i : i)];
                const int32_t second = x.values[8 * g + (shape::INTERLEAVED ? 2 * i + 1 : 4 + i)];
                dot = sl_dot_unsigned(quants[1], second, sl_dot_unsigned(quants[0], first, dot));
                if (sl_block32<TYPE>::SPLIT) {
                    less_dot = sl_dot_unsigned(less[1], second, sl_dot_unsigned(less[0], first, less_dot));
                }
            }
            const float scale = sl_block32<TYPE>::scale(words, g);
            sum = fmaf(scale * (__int_as_float(dot - less_dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
            if (shape::X == SL_X_MIN) {
                sum = fmaf(sl_block32<TYPE>::min(words, g), __uint_as_float(x.extra[g]), sum);
            }
        }
        return sum;
    }
};

template <int TYPE> struct tile_of_blocks {
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const unsigned char *x,
                                               int32_t lane, float sums[4]) {
        typedef sl_chunk_shape<TYPE> shape;
        const float2 *x_scales = (const float2 *)(x + sl_tile_shape<TYPE>::VALUES) + lane % 4;
        const sl_words_shared words[2] = {{w[0]}, {w[1]}};
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t a[4], less[4];
            float scale[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t own[2], own_less[2] = {0, 0};
                sl_block32<TYPE>::quants(words[r], g, lane % 4, own, own_less);
                scale[r] = sl_block32<TYPE>::scale(words[r], g);
                a[r] = own[0], a[2 + r] = own[1];
                less[r] = own_less[0], less[2 + r] = own_less[1];
            }
            const int2 extra = shape::X == SL_X_NOTHING ? make_int2(0, 0)
                                                        : ((const int2 *)x_scales)[(SL_CHUNK_GROUPS + g) * 4];
            const int2 start =
                shape::X == SL_X_START ? extra : make_int2(SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS);
            int32_t dots[4] = {start.x, start.y, start.x, start.y};
            const uint2 b = tile_values(x, g, lane);
            tile_mma<true>(dots, a, b.x, b.y);
            if (sl_block32<TYPE>::SPLIT) {
                int32_t less_dots[4] = {0, 0, 0, 0};
                tile_mma<true>(less_dots, less, b.x, b.y);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    dots[e] -= less_dots[e];
                }
            }
            const float2 x_scale = x_scales[g * 4];
            if (sl_block32<TYPE>::WIDE) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float dot = __int_as_float(dots[e]) - SL_FLOAT_OF_INT;
                    sums[e] = fmaf(scale[e / 2] * dot, e % 2 ? x_scale.y : x_scale.x, sums[e]);
                }
            } else {
                tile_add(sums, dots, scale, x_scale);
            }
            if (shape::X == SL_X_MIN) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sums[e] = fmaf(sl_block32<TYPE>::min(words[e / 2], g),
                                   __int_as_float(e % 2 ? extra.y : extra.x), sums[e]);
                }
            }
        }
    }
};

#define SL_BLOCKS(ID)                                                                                        \
    template <> struct sl_chunk<SL_QTYPE_##ID> : chunk_of_blocks<SL_QTYPE_##ID> {};                          \
    template <> struct sl_tile<SL_QTYPE_##ID> : tile_of_blocks<SL_QTYPE_##ID> {};
SL_BLOCKS(Q4_1)
SL_BLOCKS(Q5_0)
SL_BLOCKS(Q5_1)
SL_BLOCKS(IQ4_NL)
SL_BLOCKS(IQ4_XS)
SL_BLOCKS(MXFP4)
#undef SL_BLOCKS

#endif
