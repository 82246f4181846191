/* Weights of every type to BF16, sixteen elements a thread.
 *
 * The value is the one that products on the tensor cores use (class "bf16/..."): computed in f32, exact or
 * rounded once, then rounded to BF16. A matrix's blocks lie one after the other, and so do its decoded rows,
 * so neither rows nor columns matter here: part `index` of the stream is sixteen elements of one block, two
 * runs of eight. Neighbouring threads' first runs are neighbours in memory, and so are their second ones, so
 * that a store fills whole sectors. */
#ifndef SL_BACKEND_CUDA_DECODE_CUH
#define SL_BACKEND_CUDA_DECODE_CUH

#include "backend/cuda/groups.cuh"
#include "backend/cuda/matmul_skinny_types.cuh"

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

/* Scale and minimum of group `group` of Q4_K and Q5_K, from the header's 16 bytes, as decode_eight takes
 * them. */
static __device__ __forceinline__ void decode_k_scales(uint4 header, int32_t group, float *scale,
                                                       float *constant) {
    const int32_t bits = 8 * (group % 4);
    const uint32_t a = header.y >> bits, b = header.z >> bits, c = header.w >> bits;
    const uint32_t s = group >= 4 ? (c & 15u) | (a >> 2 & 48u) : a & 63u;
    const uint32_t m = group >= 4 ? (c >> 4 & 15u) | (b >> 2 & 48u) : b & 63u;
    const float all = sl_half_of(header.x), min = sl_half_of(header.x >> 16);
    *scale = fmaf(decode_byte(s, 0), all, -32768.0f * all);
    *constant = fmaf(-32768.0f, *scale, -fmaf(decode_byte(m, 0), min, -32768.0f * min));
}

template <> struct decode_part<SL_QTYPE_F16> {
    enum { elements = 32, bytes = 64 };
    uint4 halves[2];
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        halves[0] = ((const uint4 *)block)[part];
        halves[1] = ((const uint4 *)block)[part + 2];
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        const uint4 from = halves[i];
        return make_uint4(sl_bf16_pair(sl_half_of(from.x), sl_half_of(from.x >> 16)),
                          sl_bf16_pair(sl_half_of(from.y), sl_half_of(from.y >> 16)),
                          sl_bf16_pair(sl_half_of(from.z), sl_half_of(from.z >> 16)),
                          sl_bf16_pair(sl_half_of(from.w), sl_half_of(from.w >> 16)));
    }
};

template <> struct decode_part<SL_QTYPE_Q8_0> {
    enum { elements = 32, bytes = SL_Q8_0_BYTES };
    uint32_t quants[2][2], scale;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        scale = *(const uint16_t *)block;
        decode_load_even(block + 2 + 8 * part, quants[0]);
        decode_load_even(block + 18 + 8 * part, quants[1]);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        const float all = sl_half_of(scale);
        return decode_eight(make_uint2(quants[i][0] ^ 0x80808080u, quants[i][1] ^ 0x80808080u), all,
                            -32896.0f * all);
    }
};

template <> struct decode_part<SL_QTYPE_Q4_0> {
    enum { elements = 32, bytes = SL_Q4_0_BYTES };
    uint32_t quants[2], scale;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        scale = *(const uint16_t *)block;
        decode_load_even(block + 2 + 8 * part, quants);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 16;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        const float all = sl_half_of(scale);
        return decode_eight(make_uint2(quants[0] >> 4 * i & 0x0f0f0f0fu, quants[1] >> 4 * i & 0x0f0f0f0fu),
                            all, -32776.0f * all);
    }
};

template <> struct decode_part<SL_QTYPE_Q4_K> {
    enum { elements = 256, bytes = SL_Q4_K_BYTES };
    uint4 header;
    uint2 quants;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        header = *(const uint4 *)block;
        quants = *(const uint2 *)(block + 16 + 8 * part);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 64 * (part / 4) + 8 * (part % 4);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 32;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        float scale, constant;
        decode_k_scales(header, part / 4 * 2 + i, &scale, &constant);
        return decode_eight(make_uint2(quants.x >> 4 * i & 0x0f0f0f0fu, quants.y >> 4 * i & 0x0f0f0f0fu),
                            scale, constant);
    }
};

template <> struct decode_part<SL_QTYPE_Q5_K> {
    enum { elements = 256, bytes = SL_Q5_K_BYTES };
    uint4 header;
    uint2 low, high;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        header = *(const uint4 *)block;
        high = *(const uint2 *)(block + 16 + 8 * (part % 4));
        low = *(const uint2 *)(block + 48 + 8 * part);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 64 * (part / 4) + 8 * (part % 4);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 32;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        float scale, constant;
        const int32_t group = part / 4 * 2 + i;
        decode_k_scales(header, group, &scale, &constant);
        return decode_eight(make_uint2((low.x >> 4 * i & 0x0f0f0f0fu) | (high.x >> group & 0x01010101u) << 4,
                                       (low.y >> 4 * i & 0x0f0f0f0fu) | (high.y >> group & 0x01010101u) << 4),
                            scale, constant);
    }
};

template <> struct decode_part<SL_QTYPE_Q6_K> {
    enum { elements = 256, bytes = SL_Q6_K_BYTES };
    uint32_t low[2], high[2], scale;
    int32_t factors[2];
    /* part: half, then the lower or upper two of the half's four groups of 32, then a quarter of a group */
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        const int8_t *all = (const int8_t *)block + 192;
        decode_load_even(block + 8 * part, low);
        decode_load_even(block + 128 + 32 * (part / 8) + 8 * (part % 4), high);
        factors[0] = all[first(part) / 16];
        factors[1] = all[second(part) / 16];
        scale = *(const uint16_t *)(block + 208);
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 128 * (part / 8) + 32 * (part / 4 % 2) + 8 * (part % 4);
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return first(part) + 64;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const float all = sl_half_of(scale) * (float)factors[i];
        const int32_t bits = 2 * (part / 4 % 2) + 4 * i;
        return decode_eight(
            make_uint2((low[0] >> 4 * i & 0x0f0f0f0fu) | (high[0] >> bits & 0x03030303u) << 4,
                       (low[1] >> 4 * i & 0x0f0f0f0fu) | (high[1] >> bits & 0x03030303u) << 4),
            all, -32800.0f * all);
    }
};

/* Two codes of E4M3, in the lower half of the word, as f32: their bits are those of a smaller half,
 * subnormals included, and 2^8 makes up for the biases; the processor's own conversion has them all. */
static __device__ __forceinline__ float2 decode_e4m3(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("{.reg .b16 c; cvt.u16.u32 c, %1; cvt.rn.f16x2.e4m3x2 %0, c;}" : "=r"(halves) : "r"(codes));
    return make_float2(sl_half_of(halves), sl_half_of(halves >> 16));
#else
    return make_float2(sl_e4m3_to_f32((uint8_t)codes), sl_e4m3_to_f32((uint8_t)(codes >> 8)));
#endif
}

template <> struct decode_part<SL_QTYPE_FP8_128> {
    enum { elements = 128, bytes = SL_FP8_128_BYTES };
    uint32_t codes[2][2];
    float scale;
    __device__ __forceinline__ void load(const unsigned char *block, int32_t part) {
        const uint32_t *words = (const uint32_t *)(block + 4 + 8 * part);
        scale = *(const float *)block;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            codes[i][0] = words[16 * i];
            codes[i][1] = words[16 * i + 1];
        }
    }
    static __device__ __forceinline__ int32_t first(int32_t part) {
        return 8 * part;
    }
    static __device__ __forceinline__ int32_t second(int32_t part) {
        return 8 * part + 64;
    }
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        uint32_t out[4];
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float2 two = decode_e4m3(codes[i][pair / 2] >> 16 * (pair % 2));
            out[pair] = sl_bf16_pair(scale * two.x, scale * two.y);
        }
        return make_uint4(out[0], out[1], out[2], out[3]);
    }
};

/* Types that groups.cuh decodes: a part is every other eight of a group. */
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

#define DECODE_GROUPS(ID)                                                                                    \
    template <>                                                                                              \
    struct decode_part<SL_QTYPE_##ID>                                                                        \
        : decode_part_of_group<SL_QTYPE_##ID, SL_##ID##_ELEMENTS, SL_##ID##_BYTES> {};
DECODE_GROUPS(Q4_1)
DECODE_GROUPS(Q5_0)
DECODE_GROUPS(Q5_1)
DECODE_GROUPS(Q2_K)
DECODE_GROUPS(Q3_K)
DECODE_GROUPS(IQ4_NL)
DECODE_GROUPS(IQ4_XS)
DECODE_GROUPS(MXFP4)
DECODE_GROUPS(NVFP4)
DECODE_GROUPS(NVFP4_128)

/* ---- class "bf16/k16" ---- */

/* The same elements as matmul_skinny_types.cuh decodes them, bit for bit: by fused operations on BF16 pairs,
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

/* Of Q4_K and Q5_K; `middle` of a quant's range. */
static __device__ __forceinline__ uint4 decode_eight_k(uint2 bytes, uint4 header, int32_t group,
                                                       float middle) {
    const int32_t bits = 8 * (group % 4);
    const uint32_t a = header.y >> bits, b = header.z >> bits, c = header.w >> bits;
    const uint32_t s = group >= 4 ? (c & 15u) | (a >> 2 & 48u) : a & 63u;
    const uint32_t m = group >= 4 ? (c >> 4 & 15u) | (b >> 2 & 48u) : b & 63u;
    const float scale = (float)s * (sl_half_of(header.x) * SKINNY_UP);
    const float min = sl_half_of(header.x >> 16) * -SKINNY_DOWN;
    const float taken = __uint_as_float(sl_bf16_pair(0.0f, scale));
    return decode_eight_pairs(bytes, skinny_twice(taken),
                              skinny_twice(fmaf(middle * SKINNY_BIT, scale - taken, (float)m * min)));
}

template <> struct decode_pair<SL_QTYPE_Q8_0> : decode_part<SL_QTYPE_Q8_0> {
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        return decode_eight_scaled(make_uint2(quants[i][0] ^ 0x80808080u, quants[i][1] ^ 0x80808080u),
                                   sl_half_of(scale) * SKINNY_UP, SKINNY_OFFSET_Q8_0);
    }
};

template <> struct decode_pair<SL_QTYPE_Q4_0> : decode_part<SL_QTYPE_Q4_0> {
    __device__ __forceinline__ uint4 run(int i, int32_t) const {
        return decode_eight_scaled(
            make_uint2(quants[0] >> 4 * i & 0x0f0f0f0fu, quants[1] >> 4 * i & 0x0f0f0f0fu),
            sl_half_of(scale) * SKINNY_UP, SKINNY_OFFSET_Q4_0);
    }
};

template <> struct decode_pair<SL_QTYPE_Q4_K> : decode_part<SL_QTYPE_Q4_K> {
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        return decode_eight_k(make_uint2(quants.x >> 4 * i & 0x0f0f0f0fu, quants.y >> 4 * i & 0x0f0f0f0fu),
                              header, part / 4 * 2 + i, 7.5f);
    }
};

template <> struct decode_pair<SL_QTYPE_Q5_K> : decode_part<SL_QTYPE_Q5_K> {
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const int32_t group = part / 4 * 2 + i;
        return decode_eight_k(
            make_uint2((low.x >> 4 * i & 0x0f0f0f0fu) | (high.x >> group & 0x01010101u) << 4,
                       (low.y >> 4 * i & 0x0f0f0f0fu) | (high.y >> group & 0x01010101u) << 4),
            header, group, 15.5f);
    }
};

template <> struct decode_pair<SL_QTYPE_Q6_K> : decode_part<SL_QTYPE_Q6_K> {
    __device__ __forceinline__ uint4 run(int i, int32_t part) const {
        const int32_t bits = 2 * (part / 4 % 2) + 4 * i;
        return decode_eight_scaled(
            make_uint2((low[0] >> 4 * i & 0x0f0f0f0fu) | (high[0] >> bits & 0x03030303u) << 4,
                       (low[1] >> 4 * i & 0x0f0f0f0fu) | (high[1] >> bits & 0x03030303u) << 4),
            sl_half_of(scale) * SKINNY_UP * (float)factors[i], SKINNY_OFFSET_Q6_K);
    }
};

/* ---- streams of them ---- */

/* Parts `index`, `index + stride`, ... (UNROLL of them) of `count` parts: loaded together, stored later.
 * PART: decode_part or decode_pair of the type. */
template <int TYPE, int UNROLL, typename PART> struct decode_parts {
    enum { PARTS = decode_part<TYPE>::elements / DECODE_PART };
    PART parts[UNROLL];
    uint32_t index, stride, count;

    __device__ __forceinline__ void load(const unsigned char *weights, uint32_t first, uint32_t step,
                                         uint32_t all) {
        index = first;
        stride = step;
        count = all;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t at = index + (uint32_t)u * stride;
            if (at < count) {
                parts[u].load(weights + (uint64_t)(at / PARTS) * decode_part<TYPE>::bytes,
                              (int32_t)(at % PARTS));
            }
        }
    }

    __device__ __forceinline__ void store(uint4 *out) const {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t at = index + (uint32_t)u * stride;
            if (at < count) {
                const int32_t part = (int32_t)(at % PARTS);
                uint4 *const to = out + (uint64_t)(at / PARTS) * (decode_part<TYPE>::elements / 8);
                to[decode_part<TYPE>::first(part) / 8] = parts[u].run(0, part);
                to[decode_part<TYPE>::second(part) / 8] = parts[u].run(1, part);
            }
        }
    }
};

#endif
