/* What a type of weights has, file by file in this folder: the value of one element, its groups of 32 as
 * integers and scales, and its decoding to BF16. types.cuh has them all. What single kernels want besides
 * (how weights lie in shared memory and come to registers) is beside those kernels. */
#ifndef SL_BACKEND_CUDA_TYPES_TYPE_CUH
#define SL_BACKEND_CUDA_TYPES_TYPE_CUH

#include "backend/cuda/common/device.cuh"
#include "backend/cuda/types/bf16_pairs.cuh"

/* ---- one element ---- */

/* Element i of a row: the bits of the reference decode (quant/codec.h). */
template <int TYPE> static __device__ __forceinline__ float sl_element(const unsigned char *row, int32_t i);

/* The same of types whose scales lie behind all of a row's codes too. */
template <int TYPE>
static __device__ __forceinline__ float sl_row_element(const unsigned char *row, uint64_t row_bytes,
                                                       int32_t i) {
    (void)row_bytes;
    return sl_element<TYPE>(row, i);
}

/* ---- bits ---- */

static __device__ __forceinline__ float sl_half_at(const unsigned char *at) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*(const uint16_t *)at));
    return value;
}

/* Words at any address, from aligned loads: where it is not a multiple of four, the bytes before and behind
 * that complete a word are read too. Before lie others of the block or of the row; behind, others of it, or
 * the padding of the weight. Without a branch, so that the loads of several groups can be under way at once.
 */
template <int WORDS>
static __device__ __forceinline__ void sl_load_words(const unsigned char *at, uint32_t words[WORDS]) {
    const uint32_t odd = (uint32_t)(uint64_t)at & 3u;
    const uint32_t *aligned = (const uint32_t *)(at - odd);
    uint32_t before = aligned[0];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const uint32_t next = i + 1 < WORDS ? aligned[i + 1] : aligned[WORDS - 1 + (odd + 3) / 4];
        words[i] = __funnelshift_r(before, next, 8 * odd);
        before = next;
    }
}

/* Each byte minus `value`; bytes are below 128 and the difference fits int8. */
static __device__ __forceinline__ int32_t sl_subtract_each(uint32_t word, uint32_t value) {
    return (int32_t)__vsub4(word, value * 0x01010101u);
}

/* Four bits as bytes of 0 or 1. */
static __device__ __forceinline__ uint32_t sl_spread_bits(uint32_t bits) {
    return (bits & 15u) * 0x00204081u & 0x01010101u;
}

/* Sixteen signed bytes, looked up by the eight nibbles of a word: those of the low nibbles and of the high
 * ones. A byte permutation chooses among eight bytes, so twice, and once more by the nibbles' upper bits. */
static __device__ __forceinline__ void sl_look_up(uint64_t values_0, uint64_t values_1, uint32_t nibbles,
                                                  int32_t *low, int32_t *high) {
    uint32_t found[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t four = nibbles >> 16 * i, index = four & 0x7777u;
        const uint32_t a = __byte_perm((uint32_t)values_0, (uint32_t)(values_0 >> 32), index);
        const uint32_t b = __byte_perm((uint32_t)values_1, (uint32_t)(values_1 >> 32), index);
        found[i] = __byte_perm(a, b, 0x3210u | (four & 0x8888u) >> 1);
    }
    *low = (int32_t)__byte_perm(found[0], found[1], 0x6420);
    *high = (int32_t)__byte_perm(found[0], found[1], 0x7531);
}

/* ---- groups ---- */

/* 32 integers of a weight row. With h the half that element i is in, its value is
 *     (scale * factor_h) * q[i] - min * min_factor_h
 * where a type has no factors they count as 1, without a minimum that is 0; they are undefined then. A type
 * with two scales has scale * q[i] in the first half and upper * q[i] in the second. Rounded after each
 * operation as it stands, that is the reference decode. */
typedef struct sl_group32 {
    int32_t words[8]; /* q[4 i + b], signed, is byte b of words[i] */
    float scale, min, upper;
    int32_t factor0, factor1, min_factor0, min_factor1; /* -128..127 */
} sl_group32;

/* What a type's groups have; a type with any of it says so in its own file. */
template <bool MIN = false, bool FACTORS = false, bool MIN_FACTORS = false, bool UPPER = false>
struct sl_group_kind_of {
    enum { HAS_MIN = MIN, HAS_FACTORS = FACTORS, HAS_MIN_FACTORS = MIN_FACTORS, HAS_UPPER = UPPER };
};
template <int TYPE> struct sl_group_kind : sl_group_kind_of<> {};

/* Group g of a row in the file's layout: elements 32 g .. 32 g + 31. Of types that are integers and scales.
 */
template <int TYPE>
static __device__ __forceinline__ void sl_load_group(const unsigned char *row, int32_t g, sl_group32 *w);

/* Elements 4 i .. 4 i + 3 of a group, with the bits of the reference decode. */
template <int TYPE> static __device__ __forceinline__ float4 sl_group_values(const sl_group32 &w, int i) {
    float scale = sl_group_kind<TYPE>::HAS_UPPER && i >= 4 ? w.upper : w.scale, min = w.min;
    if (sl_group_kind<TYPE>::HAS_FACTORS) {
        scale = scale * (float)(i < 4 ? w.factor0 : w.factor1);
    }
    if (sl_group_kind<TYPE>::HAS_MIN_FACTORS) {
        min = min * (float)(i < 4 ? w.min_factor0 : w.min_factor1);
    }
    float values[4];
#pragma unroll
    for (int b = 0; b < 4; b++) {
        values[b] = scale * (float)(int8_t)(w.words[i] >> 8 * b);
        if (sl_group_kind<TYPE>::HAS_MIN) {
            values[b] = values[b] - min;
        }
    }
    return make_float4(values[0], values[1], values[2], values[3]);
}

/* ---- to BF16, sixteen elements a thread ----
 *
 * The value is the one that products on the tensor cores use (class "bf16/..."): computed in f32, exact or
 * rounded once, then rounded to BF16. A matrix's blocks lie one after the other, and so do its decoded rows,
 * so neither rows nor columns matter here: part `index` of the stream is sixteen elements of one block, two
 * runs of eight. Neighbouring threads' first runs are neighbours in memory, and so are their second ones, so
 * that a store fills whole sectors. */

enum { DECODE_PART = 16 };

/* The bytes of a part as loaded, and where it goes. Types without one have no elements. */
template <int TYPE> struct decode_part {
    enum { elements = 0, bytes = 0 };
};

/* 32768 + byte i of the word, without a conversion. */
static __device__ __forceinline__ float decode_byte(uint32_t word, uint32_t i) {
    return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7504u | i << 4));
}

/* Eight bytes b to scale * (b - offset), where constant = -scale * (32768 + offset). */
static __device__ __forceinline__ uint4 decode_eight(uint2 bytes, float scale, float constant) {
    const uint32_t words[2] = {bytes.x, bytes.y};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = sl_bf16_pair(fmaf(decode_byte(words[i / 2], i % 2 * 2), scale, constant),
                              fmaf(decode_byte(words[i / 2], i % 2 * 2 + 1), scale, constant));
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* COUNT words at an even address; reads no word that holds none of their bytes. */
template <int COUNT>
static __device__ __forceinline__ void decode_load_even(const unsigned char *at, uint32_t (&out)[COUNT]) {
    const uint32_t *words = (const uint32_t *)((uint64_t)at & ~(uint64_t)3);
    const uint32_t bits = ((uint32_t)(uint64_t)at & 2u) * 8;
    uint32_t in[COUNT + 1];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        in[i] = words[i];
    }
    in[COUNT] = bits ? words[COUNT] : 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        out[i] = __funnelshift_r(in[i], in[i + 1], bits);
    }
}

/* Types whose groups sl_load_group reads: a part is every other eight of a group. */
template <int TYPE, int ELEMENTS, int BYTES> struct decode_part_of_group {
    enum { elements = ELEMENTS, bytes = BYTES };
    sl_group32 group;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        sl_load_group<TYPE>(block, part / 2, &group);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 32 * (part / 2) + 8 * (part % 2);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const float4 a = sl_group_values<TYPE>(group, 4 * i), b = sl_group_values<TYPE>(group, 4 * i + 1);
        const float4 c = sl_group_values<TYPE>(group, 4 * i + 2), d = sl_group_values<TYPE>(group, 4 * i + 3);
        const float4 low = part % 2 ? c : a, high = part % 2 ? d : b;
        return make_uint4(sl_bf16_pair(low.x, low.y), sl_bf16_pair(low.z, low.w),
                          sl_bf16_pair(high.x, high.y), sl_bf16_pair(high.z, high.w));
    }
};

/* ---- class "bf16/k16" ---- */

/* The same elements as bf16_rows128_types.cuh decodes them, bit for bit: by fused operations on BF16 pairs,
 * and 2^-44 of what they should be. F16 has no scales and is decoded as above. */
template <int TYPE> struct decode_pair : decode_part<TYPE> {};

/* Eight numbers below 256 to pairs: each counts 2^-133, times scale, plus constant. */
static __device__ __forceinline__ uint4 decode_eight_pairs(uint2 bytes, uint32_t scale, uint32_t constant) {
    return make_uint4(skinny_value(__byte_perm(bytes.x, 0, 0x4140), scale, constant),
                      skinny_value(__byte_perm(bytes.x, 0, 0x4342), scale, constant),
                      skinny_value(__byte_perm(bytes.y, 0, 0x4140), scale, constant),
                      skinny_value(__byte_perm(bytes.y, 0, 0x4342), scale, constant));
}

/* Of a type whose constant is the scale times a number of quants. */
static __device__ __forceinline__ uint4 decode_eight_scaled(uint2 bytes, float scale, uint32_t offset) {
    const uint32_t pair = skinny_twice(scale);
    return decode_eight_pairs(bytes, pair, skinny_product(pair, offset));
}

#endif
