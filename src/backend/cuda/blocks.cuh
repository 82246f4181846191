/* Types that have a scale for each 32 columns, described once for the integer products with few rows
 * (matvec_blocks.cuh) and with many (mmq.cuh). */
#ifndef SL_BACKEND_CUDA_BLOCKS_CUH
#define SL_BACKEND_CUDA_BLOCKS_CUH

#include "backend/cuda/device.cuh"

#define SL_FLOAT_OF_INT 12582912.0f /* 1.5 * 2^23 */
#define SL_FLOAT_OF_INT_BITS 0x4b400000

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

/* The same at any address. What lies behind is not read: a copy may be on its way there. */
struct sl_words_anywhere {
    const unsigned char *w;

    __device__ __forceinline__ uint32_t word(int at, int32_t i) const {
        const uint32_t odd = (uint32_t)(uint64_t)(w + at) & 3u;
        const uint32_t *words = (const uint32_t *)(w + at - odd) + i;
        return __funnelshift_r(words[0], words[odd > 0], 8 * odd);
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
 * 4 i, 4 i + 16, 4 i + 1, 4 i + 17 and so on. They are unsigned, and OFFSET is to be subtracted. SPLIT: they
 * are `quants` minus `less`. WIDE: a scale times 1.5 * 2^23 can be too large for a float. TABLE: `nibbles`
 * are indices of sixteen signed bytes, VALUES_0 and VALUES_1. */

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
    enum { TABLE = 0, SPLIT = 0, WIDE = 0, OFFSET = 0 };
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
    enum { TABLE = 0, SPLIT = 0, WIDE = 0, OFFSET = 16 };
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
    enum { TABLE = 0, SPLIT = 0, WIDE = 0, OFFSET = 0 };
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
    enum { TABLE = 1, SPLIT = 1, WIDE = 0, OFFSET = 0 };
    static constexpr uint64_t VALUES_0 = SL_IQ4_VALUES_0, VALUES_1 = SL_IQ4_VALUES_1;
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_IQ4_NL_BYTES * g + 2, i);
    }
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        return sl_block_half(w, SL_IQ4_NL_BYTES * g);
    }
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &, int) {
        return 0.0f;
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t less[2]) {
        sl_iq4_bytes(sl_block32::nibbles(w, g, i), quants, less);
    }
};

template <> struct sl_block32<SL_QTYPE_IQ4_XS> {
    enum { TABLE = 1, SPLIT = 1, WIDE = 0, OFFSET = 0 };
    static constexpr uint64_t VALUES_0 = SL_IQ4_VALUES_0, VALUES_1 = SL_IQ4_VALUES_1;
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(8 + 16 * g, i);
    }
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
        sl_iq4_bytes(sl_block32::nibbles(w, g, i), quants, less);
    }
};

template <> struct sl_block32<SL_QTYPE_MXFP4> {
    enum { TABLE = 1, SPLIT = 0, WIDE = 1, OFFSET = 12 };
    static constexpr uint64_t VALUES_0 = SL_MXFP4_VALUES_0, VALUES_1 = SL_MXFP4_VALUES_1;
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_MXFP4_BYTES * g + 1, i);
    }
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
        const uint32_t own = sl_block32::nibbles(w, g, i), turned = own ^ 0x88888888u;
        quants[0] = sl_table_bytes(SL_MXFP4_POSITIVES, own) | sl_table_bytes(SL_MXFP4_NEGATIVES, turned);
        quants[1] =
            sl_table_bytes(SL_MXFP4_POSITIVES, own >> 16) | sl_table_bytes(SL_MXFP4_NEGATIVES, turned >> 16);
    }
};

#endif
