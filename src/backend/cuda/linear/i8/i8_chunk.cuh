/* A weight row's chunk of 256 columns times the same columns of a row of x, by one thread, both in shared
 * memory: class "q8_32/256" of plain_linear.cu.
 *
 * Conversions to float run at a fraction of the rate of other instructions, so an integer n below 2^22 in
 * size is added to the bits of 1.5 * 2^23, which gives the bits of 1.5 * 2^23 + n; the dot product starts
 * from there. And fmaf(d, 2^23 + n, -d * 2^23) is d * n rounded once. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_CHUNK_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_CHUNK_CUH

#include "backend/cuda/types/types.cuh"
#include "backend/cuda/linear/i8/i8_arguments.cuh"

/* What a group of x brings besides its values and scale. */
enum {
    SL_X_NOTHING,
    SL_X_START,  /* where its dot product starts: 1.5 * 2^23 + FACTOR * sum, as an integer's bits */
    SL_X_MIN,    /* scale * sum */
    SL_X_HALVES, /* FACTOR * the sum of each half */
    SL_X_PACKED  /* these two in 16 bits each */
};

/* BYTES of a chunk of weights. A chunk of x is a record: 256 values, 8 scales, and EXTRA words that the type
 * needs; RECORD is padded to an odd multiple of 16, so that 16-byte reads of neighbouring records fall on
 * different banks. INTERLEAVED: a group's values lie as 0 16 1 17 ... 15 31. */
template <int WEIGHT_BYTES, int BRINGS, int TIMES = 0, bool INTERLEAVES = false> struct chunk_shape {
    enum { BYTES = WEIGHT_BYTES, X = BRINGS, FACTOR = TIMES, INTERLEAVED = INTERLEAVES };
    enum { EXTRA = SL_CHUNK_GROUPS * (BRINGS == SL_X_NOTHING ? 0 : BRINGS == SL_X_HALVES ? 2 : 1) };
    enum { RECORD = SL_CHUNK + 4 * (SL_CHUNK_GROUPS + EXTRA) + 16 };
    enum { HALVES = 0 };             /* whether there is sl_half_chunk */
    enum { HALVES_INTERLEAVED = 0 }; /* each half of a group lies as 0 8 1 9 ... 7 15 (in sl_chunk alone) */
    enum { EIGHTS = 0 };             /* a lane of sl_tile has eight neighbouring columns of a group */
};
/* Of the types of blocks.cuh; others have a shape of their own. */
template <int TYPE> struct block_chunk {
    typedef sl_block32<TYPE> block;
    enum { BYTES = SL_CHUNK / sl_block_size<TYPE>::ELEMENTS * sl_block_size<TYPE>::BYTES };
    enum { HAS_START = !block::MIN && block::OFFSET != 0 };
    enum { BRINGS = block::MIN ? SL_X_MIN : HAS_START ? SL_X_START : SL_X_NOTHING };
    enum { FACTOR = HAS_START ? -(int)block::OFFSET : 0 };
    typedef chunk_shape<BYTES, BRINGS, FACTOR, (block::TABLE != 0)> shape;
};
template <int TYPE> struct sl_chunk_shape : block_chunk<TYPE>::shape {};
template <> struct sl_chunk_shape<SL_QTYPE_Q8_0> : chunk_shape<8 * SL_Q8_0_BYTES, SL_X_NOTHING> {
    enum { HALVES = 1 };
};
template <> struct sl_chunk_shape<SL_QTYPE_Q4_0> : chunk_shape<8 * SL_Q4_0_BYTES, SL_X_START, -8> {};
template <> struct sl_chunk_shape<SL_QTYPE_Q4_K> : chunk_shape<SL_Q4_K_BYTES, SL_X_MIN> {
    enum { HALVES = 1 };
};
template <> struct sl_chunk_shape<SL_QTYPE_Q5_K> : chunk_shape<SL_Q5_K_BYTES, SL_X_MIN> {};
template <> struct sl_chunk_shape<SL_QTYPE_Q6_K> : chunk_shape<SL_Q6_K_BYTES, SL_X_HALVES, -32> {};
template <> struct sl_chunk_shape<SL_QTYPE_Q2_K> : chunk_shape<SL_Q2_K_BYTES, SL_X_PACKED, 1> {};
template <> struct sl_chunk_shape<SL_QTYPE_Q3_K> : chunk_shape<SL_Q3_K_BYTES, SL_X_PACKED, -4> {};

#define SL_FLOAT_OF_BYTE 8388608.0f /* 2^23 */

/* Bytes of a are unsigned, those of b signed. */
static __device__ __forceinline__ int32_t sl_dot_unsigned(uint32_t a, int32_t b, int32_t sum) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

/* The bits of 2^23 in blocks of one dimension, which the compiler does not know: with a constant it would
 * bring the selector of every __byte_perm to a register. */
static __device__ __forceinline__ uint32_t sl_float_of_byte_bits(void) {
    return 0x4b000000u | threadIdx.y;
}

/* d times byte `index` of `bytes`; less is -d * 2^23. */
static __device__ __forceinline__ float sl_times_byte(float d, float less, uint32_t bytes, int index) {
    return fmaf(d, __uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7540 + index)), less);
}

static __device__ __forceinline__ float sl_times_byte_by(uint32_t magic, float d, float less, uint32_t bytes,
                                                         int index) {
    return fmaf(d, __uint_as_float(__byte_perm(bytes, magic, 0x7540 + index)), less);
}

/* ---- x ---- */

/* What a group of x brings; low: its first half. */
template <int TYPE>
static __device__ __forceinline__ void sl_x_extra(const uint4 &low, float scale, int32_t sum,
                                                  uint32_t extra[2]) {
    typedef sl_chunk_shape<TYPE> shape;
    if (shape::X == SL_X_MIN) {
        extra[0] = __float_as_uint(scale * (float)sum);
    } else if (shape::X == SL_X_START) {
        extra[0] = (uint32_t)(SL_FLOAT_OF_INT_BITS + shape::FACTOR * sum);
    } else if (shape::X == SL_X_HALVES || shape::X == SL_X_PACKED) {
        int32_t half = __dp4a((int32_t)low.x, 0x01010101, 0);
        half = __dp4a((int32_t)low.y, 0x01010101, half);
        half = __dp4a((int32_t)low.z, 0x01010101, half);
        half = __dp4a((int32_t)low.w, 0x01010101, half);
        extra[0] = (uint32_t)(shape::FACTOR * half);
        extra[1] = (uint32_t)(shape::FACTOR * (sum - half));
        if (shape::X == SL_X_PACKED) {
            extra[0] = __byte_perm(extra[0], extra[1], 0x5410);
        }
    }
}

/* Four elements of a group's first half, and the four of its second half beside them, in turn. */
static __device__ __forceinline__ void sl_interleave(uint32_t first, uint32_t second, uint32_t *to) {
    to[0] = __byte_perm(first, second, 0x5140);
    to[1] = __byte_perm(first, second, 0x7362);
}

static __device__ __forceinline__ uint4 sl_interleave_half(const uint4 &half) {
    uint32_t words[4];
    sl_interleave(half.x, half.z, words);
    sl_interleave(half.y, half.w, words + 2);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Puts chunks of a row of x as records; all threads of the block, a group each. All loads of a thread are
 * under way at once. */
template <int TYPE>
static __device__ __forceinline__ void sl_stage_x(const sl_q8_32 &x, int32_t chunks, unsigned char *records) {
    typedef sl_chunk_shape<TYPE> shape;
#pragma unroll 2
    for (int32_t i = (int32_t)threadIdx.x; i < chunks * SL_CHUNK_GROUPS; i += (int32_t)blockDim.x) {
        uint4 low = ((const uint4 *)x.values)[2 * i], high = ((const uint4 *)x.values)[2 * i + 1];
        const float scale = x.scales[i];
        const int32_t x_sum = x.sums[i], g = i % SL_CHUNK_GROUPS;
        uint32_t extra[2];
        sl_x_extra<TYPE>(low, scale, x_sum, extra);
        if (shape::INTERLEAVED) {
            uint32_t words[8];
            sl_interleave(low.x, high.x, words);
            sl_interleave(low.y, high.y, words + 2);
            sl_interleave(low.z, high.z, words + 4);
            sl_interleave(low.w, high.w, words + 6);
            low = make_uint4(words[0], words[1], words[2], words[3]);
            high = make_uint4(words[4], words[5], words[6], words[7]);
        }
        if (shape::HALVES_INTERLEAVED) {
            low = sl_interleave_half(low);
            high = sl_interleave_half(high);
        }
        unsigned char *record = records + i / SL_CHUNK_GROUPS * shape::RECORD;
        ((uint4 *)record)[2 * g] = low;
        ((uint4 *)record)[2 * g + 1] = high;
        float *scales = (float *)(record + SL_CHUNK);
        uint32_t *extras = (uint32_t *)(scales + SL_CHUNK_GROUPS);
        scales[g] = scale;
        if (shape::X == SL_X_HALVES) {
            extras[2 * g] = extra[0];
            extras[2 * g + 1] = extra[1];
        } else if (shape::X != SL_X_NOTHING) {
            extras[g] = extra[0];
        }
    }
}

/* A lane's chunk of x. */
template <int TYPE> struct sl_x_chunk {
    enum { EXTRA = sl_chunk_shape<TYPE>::EXTRA };
    int32_t values[SL_CHUNK / 4];
    float scales[SL_CHUNK_GROUPS];
    uint32_t extra[EXTRA > 0 ? EXTRA : 1];

    __device__ __forceinline__ void load(const unsigned char *record) {
#pragma unroll
        for (int i = 0; i < SL_CHUNK / 16; i++) {
            const int4 v = ((const int4 *)record)[i];
            values[4 * i] = v.x, values[4 * i + 1] = v.y, values[4 * i + 2] = v.z, values[4 * i + 3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < SL_CHUNK_GROUPS / 4; i++) {
            const float4 v = ((const float4 *)(record + SL_CHUNK))[i];
            scales[4 * i] = v.x, scales[4 * i + 1] = v.y, scales[4 * i + 2] = v.z, scales[4 * i + 3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < EXTRA / 4; i++) {
            const uint4 v = ((const uint4 *)(record + SL_CHUNK + 4 * SL_CHUNK_GROUPS))[i];
            extra[4 * i] = v.x, extra[4 * i + 1] = v.y, extra[4 * i + 2] = v.z, extra[4 * i + 3] = v.w;
        }
    }
};

/* ---- products ---- */

template <int TYPE> struct sl_chunk;

/* What a type's products look up: BYTES of shared memory, at a multiple of 16. Constants, so a block fills
 * them before it waits for its inputs; a barrier is the caller's. */
template <int TYPE> struct sl_tables {
    enum { BYTES = 0 };
    static __device__ __forceinline__ void fill(unsigned char *) {
    }
};

/* sl_chunk's product; tables: what sl_tables filled. */
template <int TYPE>
static __device__ __forceinline__ float sl_multiply_chunk(const unsigned char *w, const sl_x_chunk<TYPE> &x,
                                                          const unsigned char *tables) {
    if constexpr (sl_tables<TYPE>::BYTES > 0) {
        return sl_chunk<TYPE>::product(w, x, tables);
    } else {
        (void)tables;
        return sl_chunk<TYPE>::product(w, x);
    }
}

/* A chunk by two neighbouring lanes, four groups each: half the registers for x, so twice the warps. `half`:
 * of this lane; x: its groups. The second lane returns the product, the bits of sl_chunk's. */
template <int TYPE> struct sl_half_chunk;

enum { SL_HALF_GROUPS = SL_CHUNK_GROUPS / 2 };

/* A lane's half of a chunk of x. */
template <int TYPE> struct sl_x_half {
    enum { EXTRA = sl_chunk_shape<TYPE>::EXTRA / 2 };
    int32_t values[SL_CHUNK / 8];
    float scales[SL_HALF_GROUPS];
    uint32_t extra[EXTRA > 0 ? EXTRA : 1];

    __device__ __forceinline__ void load(const unsigned char *record, int32_t half) {
#pragma unroll
        for (int i = 0; i < SL_CHUNK / 32; i++) {
            const int4 v = ((const int4 *)record)[SL_CHUNK / 32 * half + i];
            values[4 * i] = v.x, values[4 * i + 1] = v.y, values[4 * i + 2] = v.z, values[4 * i + 3] = v.w;
        }
        const float4 s = ((const float4 *)(record + SL_CHUNK))[half];
        scales[0] = s.x, scales[1] = s.y, scales[2] = s.z, scales[3] = s.w;
#pragma unroll
        for (int i = 0; i < EXTRA / 4; i++) {
            const uint4 v = ((const uint4 *)(record + SL_CHUNK + 4 * SL_CHUNK_GROUPS))[EXTRA / 4 * half + i];
            extra[4 * i] = v.x, extra[4 * i + 1] = v.y, extra[4 * i + 2] = v.z, extra[4 * i + 3] = v.w;
        }
    }
};

/* add(sum): a lane's groups added to a sum, those of the first half before those of the second. */
template <typename ADD> static __device__ __forceinline__ float sl_add_halves(int32_t half, ADD add) {
    const float first = __shfl_up_sync(SL_FULL_WARP, add(0.0f), 1);
    return add(half ? first : 0.0f);
}

/* What Q4_K and Q5_K blocks begin with: the groups' scales and minima as bytes, and their factors; m is
 * negative. `_less`: for sl_times_byte. */
typedef struct sl_kquant_head {
    uint32_t scales[2], mins[2];
    float d, d_less, m, m_less;
} sl_kquant_head;

static __device__ __forceinline__ sl_kquant_head sl_kquant_head_of(const uint4 &bytes) {
    sl_kquant_head head;
    head.d = sl_half_of(bytes.x & 0xffffu);
    head.m = -sl_half_of(bytes.x >> 16);
    head.d_less = head.d * -SL_FLOAT_OF_BYTE;
    head.m_less = head.m * -SL_FLOAT_OF_BYTE;
    head.scales[0] = bytes.y & 0x3f3f3f3fu;
    head.scales[1] = (bytes.w & 0x0f0f0f0fu) | (bytes.y >> 2 & 0x30303030u);
    head.mins[0] = bytes.z & 0x3f3f3f3fu;
    head.mins[1] = (bytes.w >> 4 & 0x0f0f0f0fu) | (bytes.z >> 2 & 0x30303030u);
    return head;
}

static __device__ __forceinline__ sl_kquant_head sl_kquant_head_of(const unsigned char *w) {
    return sl_kquant_head_of(*(const uint4 *)w);
}

template <> struct sl_chunk<SL_QTYPE_Q4_K> {
    typedef sl_x_chunk<SL_QTYPE_Q4_K> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        const sl_kquant_head head = sl_kquant_head_of(w);
        const float d16 = head.d * 0.0625f; /* of the high nibbles, which stay 16 times too large */
        const float d16_less = d16 * -SL_FLOAT_OF_BYTE;
        float sum = 0;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 a = ((const uint4 *)w)[1 + 2 * p], b = ((const uint4 *)w)[2 + 2 * p];
            const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int g = 2 * p + n;
                int32_t dot = SL_FLOAT_OF_INT_BITS;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    dot =
                        sl_dot_unsigned(words[i] & (n ? 0xf0f0f0f0u : 0x0f0f0f0fu), x.values[8 * g + i], dot);
                }
                const float scale =
                    sl_times_byte(n ? d16 : head.d, n ? d16_less : head.d_less, head.scales[g / 4], g % 4);
                const float min = sl_times_byte(head.m, head.m_less, head.mins[g / 4], g % 4);
                sum = fmaf(scale * (__int_as_float(dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
                sum = fmaf(min, __uint_as_float(x.extra[g]), sum);
            }
        }
        return sum;
    }
};

template <> struct sl_half_chunk<SL_QTYPE_Q4_K> {
    typedef sl_x_half<SL_QTYPE_Q4_K> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x, int32_t half) {
        const uint4 head = *(const uint4 *)w;
        const float d = sl_half_of(head.x & 0xffffu), m = -sl_half_of(head.x >> 16);
        const uint32_t low = half ? head.w : head.y, high = head.y >> 2 & 0x30303030u;
        const uint32_t scales = half ? (low & 0x0f0f0f0fu) | high : low & 0x3f3f3f3fu;
        const uint32_t mins =
            half ? (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u) : head.z & 0x3f3f3f3fu;
        const float d_less = d * -SL_FLOAT_OF_BYTE, m_less = m * -SL_FLOAT_OF_BYTE;
        const float d16 = d * 0.0625f, d16_less = d16 * -SL_FLOAT_OF_BYTE; /* as in sl_chunk */
        float dots[SL_HALF_GROUPS];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint4 a = ((const uint4 *)w)[1 + 4 * half + 2 * p],
                        b = ((const uint4 *)w)[2 + 4 * half + 2 * p];
            const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int g = 2 * p + n;
                int32_t dot = SL_FLOAT_OF_INT_BITS;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    dot =
                        sl_dot_unsigned(words[i] & (n ? 0xf0f0f0f0u : 0x0f0f0f0fu), x.values[8 * g + i], dot);
                }
                const float scale = sl_times_byte(n ? d16 : d, n ? d16_less : d_less, scales, g);
                dots[g] = scale * (__int_as_float(dot) - SL_FLOAT_OF_INT);
            }
        }
        return sl_add_halves(half, [&](float sum) {
#pragma unroll
            for (int g = 0; g < SL_HALF_GROUPS; g++) {
                sum = fmaf(dots[g], x.scales[g], sum);
                sum = fmaf(sl_times_byte(m, m_less, mins, g), __uint_as_float(x.extra[g]), sum);
            }
            return sum;
        });
    }
};

template <> struct sl_chunk<SL_QTYPE_Q5_K> {
    typedef sl_x_chunk<SL_QTYPE_Q5_K> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        const sl_kquant_head head = sl_kquant_head_of(w);
        const uint4 a = ((const uint4 *)w)[1], b = ((const uint4 *)w)[2];
        const uint32_t high[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float sum = 0;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 c = ((const uint4 *)w)[3 + 2 * p], d = ((const uint4 *)w)[4 + 2 * p];
            const uint32_t low[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int g = 2 * p + n;
                int32_t dot = SL_FLOAT_OF_INT_BITS;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const uint32_t bits = g < 4 ? high[i] << (4 - g) : high[i] >> (g - 4);
                    dot = sl_dot_unsigned((low[i] >> 4 * n & 0x0f0f0f0fu) | (bits & 0x10101010u),
                                          x.values[8 * g + i], dot);
                }
                const float scale = sl_times_byte(head.d, head.d_less, head.scales[g / 4], g % 4);
                const float min = sl_times_byte(head.m, head.m_less, head.mins[g / 4], g % 4);
                sum = fmaf(scale * (__int_as_float(dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
                sum = fmaf(min, __uint_as_float(x.extra[g]), sum);
            }
        }
        return sum;
    }
};

/* Group g's scale times its product with x; words: of the weights from a group of even number on, values:
 * those of x. */
static __device__ __forceinline__ float sl_q8_0_group(const uint32_t *words, int g, const int32_t *values) {
    const int at = 17 * g / 2; /* the word that the scale is in */
    int32_t dot = SL_FLOAT_OF_INT_BITS;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t word =
            g % 2 ? words[at + 1 + i] : __funnelshift_r(words[at + i], words[at + 1 + i], 16);
        dot = __dp4a((int32_t)word, values[8 * g + i], dot);
    }
    const float scale = sl_half_of(g % 2 ? words[at] >> 16 : words[at] & 0xffffu);
    return scale * (__int_as_float(dot) - SL_FLOAT_OF_INT);
}

template <> struct sl_chunk<SL_QTYPE_Q8_0> {
    typedef sl_x_chunk<SL_QTYPE_Q8_0> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        uint32_t words[68];
#pragma unroll
        for (int i = 0; i < 17; i++) {
            const uint4 v = ((const uint4 *)w)[i];
            words[4 * i] = v.x;
            words[4 * i + 1] = v.y;
            words[4 * i + 2] = v.z;
            words[4 * i + 3] = v.w;
        }
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            sum = fmaf(sl_q8_0_group(words, g, x.values), x.scales[g], sum);
        }
        return sum;
    }
};

template <> struct sl_half_chunk<SL_QTYPE_Q8_0> {
    typedef sl_x_half<SL_QTYPE_Q8_0> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x, int32_t half) {
        uint32_t words[34];
#pragma unroll
        for (int i = 0; i < 17; i++) {
            const uint2 v = ((const uint2 *)(w + 4 * SL_Q8_0_BYTES * half))[i];
            words[2 * i] = v.x;
            words[2 * i + 1] = v.y;
        }
        float dots[SL_HALF_GROUPS];
#pragma unroll
        for (int g = 0; g < SL_HALF_GROUPS; g++) {
            dots[g] = sl_q8_0_group(words, g, x.values);
        }
        return sl_add_halves(half, [&](float sum) {
#pragma unroll
            for (int g = 0; g < SL_HALF_GROUPS; g++) {
                sum = fmaf(dots[g], x.scales[g], sum);
            }
            return sum;
        });
    }
};

template <> struct sl_chunk<SL_QTYPE_Q4_0> {
    typedef sl_x_chunk<SL_QTYPE_Q4_0> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        uint32_t words[36];
#pragma unroll
        for (int i = 0; i < 9; i++) {
            const uint4 v = ((const uint4 *)w)[i];
            words[4 * i] = v.x;
            words[4 * i + 1] = v.y;
            words[4 * i + 2] = v.z;
            words[4 * i + 3] = v.w;
        }
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const int at = 9 * g / 2;
            int32_t dot = (int32_t)x.extra[g];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t word =
                    g % 2 ? words[at + 1 + i] : __funnelshift_r(words[at + i], words[at + 1 + i], 16);
                dot = sl_dot_unsigned(word & 0x0f0f0f0fu, x.values[8 * g + i], dot);
                dot = sl_dot_unsigned(word >> 4 & 0x0f0f0f0fu, x.values[8 * g + 4 + i], dot);
            }
            const float scale = sl_half_of(g % 2 ? words[at] >> 16 : words[at] & 0xffffu);
            sum = fmaf(scale * (__int_as_float(dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
        }
        return sum;
    }
};

template <> struct sl_chunk<SL_QTYPE_Q6_K> {
    typedef sl_x_chunk<SL_QTYPE_Q6_K> X;

    /* Words from a byte offset that is a multiple of 4 on; `shift` is 16 where the chunk starts at 2 mod 4.
     */
    template <int COUNT>
    static __device__ __forceinline__ void load(const uint32_t *aligned, uint32_t shift, uint32_t *words) {
        uint32_t before = aligned[0];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const uint32_t next = aligned[i + 1];
            words[i] = __funnelshift_r(before, next, shift);
            before = next;
        }
    }

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        const uint32_t odd = (uint32_t)(uint64_t)w & 2u, shift = 8 * odd;
        const uint32_t *aligned = (const uint32_t *)(w - odd);
        const float d = sl_half_of(((const uint16_t *)w)[104]);
        float sum = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t low[16], high[8], scales[2];
            load<16>(aligned + 16 * h, shift, low);
            load<8>(aligned + 32 + 8 * h, shift, high);
            load<2>(aligned + 48 + 2 * h, shift, scales);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int g = 4 * h + r;
                int32_t dots[2] = {(int32_t)x.extra[2 * g], (int32_t)x.extra[2 * g + 1]};
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const uint32_t nibbles = low[8 * (r % 2) + i] >> 4 * (r / 2) & 0x0f0f0f0fu;
                    const uint32_t bits =
                        (r < 2 ? high[i] << (4 - 2 * r) : high[i] >> (2 * r - 4)) & 0x30303030u;
                    dots[i / 4] = sl_dot_unsigned(nibbles | bits, x.values[8 * g + i], dots[i / 4]);
                }
                const int32_t f0 = (int8_t)(scales[r / 2] >> 16 * (r % 2)),
                              f1 = (int8_t)(scales[r / 2] >> (16 * (r % 2) + 8));
                sum = fmaf(d * (float)(f0 * dots[0] + f1 * dots[1]), x.scales[g], sum);
            }
        }
        return sum;
    }
};

#endif
