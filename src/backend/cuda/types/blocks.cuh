/* Types that have a scale for each 32 columns, described once for the integer products with few rows
 * (i8_blocks.cuh) and with many (i8_mma.cuh). */
#ifndef SL_BACKEND_CUDA_TYPES_BLOCKS_CUH
#define SL_BACKEND_CUDA_TYPES_BLOCKS_CUH

#include "backend/cuda/common/device.cuh"

#define SL_FLOAT_OF_INT 12582912.0f /* 1.5 * 2^23 */
#define SL_FLOAT_OF_INT_BITS 0x4b400000

/* ---- sizes ---- */

template <int TYPE> struct sl_block_size;
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    template <> struct sl_block_size<SL_QTYPE_##ID> {                                                        \
        enum { ELEMENTS = block_elements, BYTES = block_bytes };                                             \
    };
#include "quant/qtypes.def"
#undef SL_QTYPE

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
 * A type's own file describes it, and the int8 kernels follow from that. scale and min: of group g; min times
 * scale times sum of x is added, of types with MIN. quants: of group g the bytes of elements 4 i .. 4 i + 3
 * and of the sixteen later; with a TABLE of elements 4 i, 4 i + 16, 4 i + 1, 4 i + 17 and so on. They are
 * unsigned, and OFFSET is to be subtracted. SPLIT: they are `quants` minus `less`. WIDE: a scale times 1.5 *
 * 2^23 can be too large for a float. nibbles: word i of a group's sixteen bytes, of which each has the lower
 * bits of an element and, in front, of the one sixteen later; with FIFTHS bit n of `fifths` is element n's
 * fifth. TABLE: they are indices of sixteen signed bytes, VALUES_0 and VALUES_1. PAIR: the bytes from the
 * quants of a pair of groups to those of the next; 0 where that is not the same all along a chunk. APART:
 * scales do not lie with their groups, so that a chunk's halves are not alike.
 */

template <int TYPE> struct sl_block32 { /* types that are described elsewhere, or not at all */
    enum { HERE = 0, WIDE = 0 };
};

/* What the description of a type that follows these rules begins from; it hides what it says otherwise. */
template <int TYPE> struct sl_block32_of {
    enum { HERE = 1, TABLE = 0, SPLIT = 0, WIDE = 0, OFFSET = 0, MIN = 0, APART = 0, FIFTHS = 0 };
    enum { PAIR = 64 / sl_block_size<TYPE>::ELEMENTS * sl_block_size<TYPE>::BYTES };
    template <typename WORDS> static __device__ __forceinline__ float min(const WORDS &, int) {
        return 0.0f;
    }
};

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

#endif
