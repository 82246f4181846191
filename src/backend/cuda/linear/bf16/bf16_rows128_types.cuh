/* Weights of every type to the first operand of m64nNk16, for bf16_rows128.cuh: how a chunk of 256 columns
 * lies in shared memory, and how a lane turns 64 columns of its two weight rows into 16 registers.
 *
 * Decoding takes no conversions. Bits below 256 in a BF16 number mean bits * 2^-133: subnormal numbers and
 * those of the lowest exponent have one spacing. So quants are masked in place, two to a register, even four
 * bits further up (16 times as large), and one fused operation applies scale and constant. To keep those
 * finite, what comes out is 2^-44 times the weight (BITS below), and sums are put right in the end, exactly.
 *
 * A lane takes columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of every 16, with t = lane % 4, as the instruction
 * wants them. Where blocks lie at multiples of 16 bytes, the four lanes of a row read all 16 and pick theirs.
 */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_TYPES_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_TYPES_CUH

#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/types/bf16_pairs.cuh"

/* columns: of a chunk; bytes: of a row in it; pieces: of 16 bytes, that are copied; stride: of rows in shared
 * memory, an odd number of pieces, so that eight rows lie in different banks; scales: bytes that a row's
 * scales take, decoded; bits: sums are 2^-bits of what they should be. */
template <int TYPE> struct skinny_layout { /* types that are not decoded so */
    enum { bits = 0 };
};
/* Types of quants and scales. */
template <int BYTES, int STRIDE, int SCALES> struct skinny_quants {
    enum { columns = 256, bytes = BYTES, stride = STRIDE, scales = SCALES, bits = 44 };
};
template <> struct skinny_layout<SL_QTYPE_F16> {
    enum { columns = 128, bytes = 256, stride = 272, scales = 0, bits = 0 };
};
template <> struct skinny_layout<SL_QTYPE_BF16> {
    enum { columns = 128, bytes = 256, stride = 272, scales = 0, bits = 0 };
};
template <> struct skinny_layout<SL_QTYPE_Q8_0> : skinny_quants<8 * SL_Q8_0_BYTES, 272, 32> {};
template <> struct skinny_layout<SL_QTYPE_Q4_0> : skinny_quants<8 * SL_Q4_0_BYTES, 144, 32> {};
template <> struct skinny_layout<SL_QTYPE_Q4_K> : skinny_quants<SL_Q4_K_BYTES, 144, 64> {};
template <> struct skinny_layout<SL_QTYPE_Q5_K> : skinny_quants<SL_Q5_K_BYTES, 176, 64> {};
/* copies begin up to 14 bytes before the block */
template <> struct skinny_layout<SL_QTYPE_Q6_K> : skinny_quants<SL_Q6_K_BYTES, 240, 64> {};

/* copies begin up to 8 bytes before, as of those below */
template <> struct skinny_layout<SL_QTYPE_MXFP4> : skinny_quants<8 * SL_MXFP4_BYTES, 144, 32> {};
template <> struct skinny_layout<SL_QTYPE_NVFP4> : skinny_quants<4 * SL_NVFP4_BYTES, 144, 64> {};
template <> struct skinny_layout<SL_QTYPE_NVFP4_128> : skinny_quants<2 * SL_NVFP4_128_BYTES, 176, 64> {};
/* Codes alone: see skinny_kind. The part's rows of 128 columns, then those of the next 128, "128-byte
 * swizzle" */
template <> struct skinny_layout<SL_QTYPE_FP8_128> : skinny_quants<256, 256, 32> {};

template <int TYPE> struct skinny_kind {
    enum {
        IS_FLOAT = TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16,
        IS_APART = TYPE == SL_QTYPE_FP8_128, /* scales lie behind a row's codes: skinny_scale_of_half */
        IS_BYTES = TYPE == SL_QTYPE_Q8_0 || IS_APART /* chunks of many bytes are what it waits for */
    };
};

/* ---- pieces of it ---- */

static __device__ __forceinline__ uint32_t skinny_short(uint32_t from) {
    uint32_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(half) : "r"(from) : "memory");
    return half;
}

/* ---- scales: two lanes to a row, each with half of the chunk ----
 *
 * Each twice in a word, as BF16. Of Q4_K and Q5_K a scale and a constant for each 32 columns: minus the
 * minimum, that also takes up what the scale's rounding does to a quant in the middle of its range. Of Q6_K a
 * scale for each 16 columns, of the others for each 32; their constants are the scale times a power of two.
 */

/* Byte i of a word, plus 2^23. The exponent is in a register, so that the selector can be in the instruction.
 */
static __device__ __forceinline__ float skinny_byte(uint32_t word, uint32_t i) {
    uint32_t exponent = 0x4b000000u;
    asm("" : "+r"(exponent));
    return __uint_as_float(__byte_perm(word, exponent, 0x7440u + i));
}

/* Byte i of a word times a factor of 11 bits, exactly; `less`: minus 2^23 times the factor. */
static __device__ __forceinline__ float skinny_byte_times(uint32_t word, uint32_t i, float factor,
                                                          float less) {
    return fmaf(skinny_byte(word, i), factor, less);
}

/* Q4_K and Q5_K; `next`: how much larger the bits of odd groups are taken. */
static __device__ __forceinline__ void skinny_k_scales(uint4 header, int32_t half, float middle, float next,
                                                       uint32_t (&out)[8]) {
    const uint32_t lows = half ? header.w & 0x0f0f0f0fu : header.y & 0x0f0f0f0fu;
    const uint32_t highs = half ? header.y >> 2 : header.y;
    const uint32_t low_mins = half ? header.w >> 4 & 0x0f0f0f0fu : header.z & 0x0f0f0f0fu;
    const uint32_t high_mins = half ? header.z >> 2 : header.z;
    const uint32_t scales = lows | (highs & 0x30303030u), mins = low_mins | (high_mins & 0x30303030u);
    const float min = sl_half_of(header.x >> 16) * -SKINNY_DOWN, less_min = min * -8388608.0f;
    float all = sl_half_of(header.x) * SKINNY_UP;
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const float center = odd ? middle * next * SKINNY_BIT : middle * SKINNY_BIT, less = all * -8388608.0f;
#pragma unroll
        for (int i = odd; i < 4; i += 2) {
            const float scale = skinny_byte_times(scales, (uint32_t)i, all, less);
            const float taken = __uint_as_float(sl_bf16_pair(0.0f, scale));
            out[2 * i] = skinny_twice(taken);
            out[2 * i + 1] = skinny_twice(
                fmaf(center, scale - taken, skinny_byte_times(mins, (uint32_t)i, min, less_min)));
        }
        all *= 1.0f / next;
    }
}

/* One of each 16 columns. */
template <int TYPE>
static __device__ __forceinline__ void skinny_fp4_scales(const unsigned char *row, int32_t half, uint4 *to) {
    enum { WITH_WHOLE = TYPE == SL_QTYPE_NVFP4_128 };
    uint32_t out[8];
    const unsigned char *block = row + half * (WITH_WHOLE ? SL_NVFP4_128_BYTES : 2 * SL_NVFP4_BYTES);
    const float whole = WITH_WHOLE ? *(const float *)block : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t code = WITH_WHOLE ? block[4 + i] : block[i / 4 * SL_NVFP4_BYTES + i % 4];
        const float up = __uint_as_float((code & 127u) << 20) * SKINNY_E4M3_ROOT * SKINNY_E4M3_ROOT;
        out[i] = skinny_twice(code == 127 ? 0.0f : up * whole);
    }
    to[16 * (2 * half)] = make_uint4(out[0], out[1], out[2], out[3]);
    to[16 * (2 * half + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
}

/* Half a row's blocks that begin with a scale. */
template <int BYTES>
static __device__ __forceinline__ void skinny_scales_of_one(const unsigned char *row, int32_t half,
                                                            uint4 *to) {
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = skinny_twice(sl_half_of(*(const uint16_t *)(row + (4 * half + i) * BYTES)) * SKINNY_UP);
    }
    to[16 * half] = make_uint4(out[0], out[1], out[2], out[3]);
}

/* Half a row that has one scale. */
static __device__ __forceinline__ void skinny_scale_of_half(float scale, int32_t half, uint4 *to) {
    const uint32_t pair = skinny_twice(scale * SKINNY_FP8);
    to[16 * half] = make_uint4(pair, pair, pair, pair);
}

template <int TYPE>
static __device__ __forceinline__ void skinny_scales(const unsigned char *row, int32_t half, uint4 *to) {
    if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        uint32_t out[8];
        if (TYPE == SL_QTYPE_Q4_K) {
            skinny_k_scales(*(const uint4 *)row, half, 7.5f, 16.0f, out);
        } else {
            skinny_k_scales(*(const uint4 *)row, half, 15.5f, 1.0f, out);
        }
        to[16 * (2 * half)] = make_uint4(out[0], out[1], out[2], out[3]);
        to[16 * (2 * half + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        const float all = sl_half_of(*(const uint16_t *)(row + 208)) * SKINNY_UP;
        uint32_t out[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out[i] = skinny_twice(all * (float)(int8_t)row[192 + 8 * half + i]);
        }
        to[16 * (2 * half)] = make_uint4(out[0], out[1], out[2], out[3]);
        to[16 * (2 * half + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
    } else if constexpr (TYPE == SL_QTYPE_NVFP4 || TYPE == SL_QTYPE_NVFP4_128) {
        skinny_fp4_scales<TYPE>(row, half, to);
    } else if constexpr (TYPE == SL_QTYPE_MXFP4) {
        uint32_t out[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = skinny_twice(sl_mxfp4_scale(row[(4 * half + i) * SL_MXFP4_BYTES]) * SKINNY_FP4);
        }
        to[16 * half] = make_uint4(out[0], out[1], out[2], out[3]);
    } else if constexpr (!skinny_kind<TYPE>::IS_FLOAT) {
        skinny_scales_of_one<TYPE == SL_QTYPE_Q8_0 ? SL_Q8_0_BYTES : SL_Q4_0_BYTES>(row, half, to);
    }
}

/* ---- quants ---- */

/* A lane's view of a chunk: addresses of shared memory. */
typedef struct skinny_view {
    uint32_t
        matrix; /* row lane % 16 of the warp's, plus 16 bytes for the upper lanes: for sl_load_matrices */
    uint32_t row[2]; /* rows lane / 4 and lane / 4 + 8 */
    uint32_t scales; /* of the first of these; eight rows on are the other's */
    uint32_t pair;   /* lane % 4 * 2: first of the lane's two columns in each eight */
    uint32_t
        select; /* of two words, for __byte_perm: the bytes of these columns to the lower bytes of halves */
    uint32_t table; /* of a codebook: the lane's two columns of the first point */
} skinny_view;

/* A row's scales of a step: two words, of K-quants four. */
static __device__ __forceinline__ uint2 skinny_two(uint32_t from) {
    uint2 words;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(from) : "memory");
    return words;
}

static __device__ __forceinline__ uint4 skinny_four(uint32_t from) {
    uint4 words;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(from)
                 : "memory");
    return words;
}

/* Of sixteen bytes the lane's two of the first eight and its two of the others, as the lower bytes of halves;
 * the upper bytes are the same again. Lanes of one row read the same address. */
static __device__ __forceinline__ uint2 skinny_pick(uint4 words, uint32_t select) {
    return make_uint2(__byte_perm(words.x, words.y, select), __byte_perm(words.z, words.w, select));
}

static __device__ __forceinline__ uint2 skinny_pairs(uint32_t from, uint32_t select) {
    return skinny_pick(skinny_four(from), select);
}

/* Two bytes at an even address, as the lower bytes of halves. */
static __device__ __forceinline__ uint32_t skinny_pair(uint32_t from) {
    return __byte_perm(skinny_short(from), 0, 0x4140);
}

/* Columns 64 step .. 64 step + 63 of a chunk; a[k]: columns 16 k .. of these. `step` is known to the
 * compiler. `load` is called a step ahead. */
template <int TYPE> struct skinny_decoder;

/* Straight to where products read them: copies could be made of registers that products under way still read.
 */
struct skinny_floats {
    __device__ __forceinline__ void load(const skinny_view &, int) {
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sl_load_matrices(view.matrix + (uint32_t)(128 * step + 32 * k), a[k]);
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_BF16> : skinny_floats {};

template <> struct skinny_decoder<SL_QTYPE_F16> : skinny_floats {
    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
        skinny_floats::run(view, step, a);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint32_t word = a[i / 4][i % 4];
            a[i / 4][i % 4] = sl_bf16_pair(sl_half_of(word), sl_half_of(word >> 16));
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q4_K> {
    uint32_t words[2][4]; /* [row][which eight] */
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                words[row][i] = skinny_short(view.row[row] + view.pair + (uint32_t)(16 + 32 * step + 8 * i));
            }
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint4 s = scales[row];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t pair = __byte_perm(words[row][i], 0, 0x4140);
                a[i / 2][i % 2 * 2 + row] = skinny_value(pair & 0x000f000fu, s.x, s.y);
                a[2 + i / 2][i % 2 * 2 + row] = skinny_value(pair & 0x00f000f0u, s.z, s.w);
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q5_K> {
    /* Bits 0 to 3 of `low`, and bit `bit` of `high` for the fifth. */
    static __device__ __forceinline__ uint32_t join(uint32_t low, uint32_t high, int bit) {
        const uint32_t fifth = bit < 4 ? high << (4 - bit) : high >> (bit - 4);
        return (low & 0x000f000fu) | (fifth & 0x00100010u);
    }

    __device__ __forceinline__ void load(const skinny_view &, int) {
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint4 scales = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint2 low =
                    skinny_pairs(view.row[row] + (uint32_t)(48 + 32 * step + 16 * k), view.select);
                const uint2 high = skinny_pairs(view.row[row] + (uint32_t)(16 + 16 * k), view.select);
                a[k][row] = skinny_value(join(low.x, high.x, 2 * step), scales.x, scales.y);
                a[k][2 + row] = skinny_value(join(low.y, high.y, 2 * step), scales.x, scales.y);
                a[2 + k][row] = skinny_value(join(low.x >> 4, high.x, 2 * step + 1), scales.z, scales.w);
                a[2 + k][2 + row] = skinny_value(join(low.y >> 4, high.y, 2 * step + 1), scales.z, scales.w);
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q8_0> {
    uint32_t words[2][4][2]; /* [row][16 columns][which eight] */
    uint2 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_two(view.scales + (uint32_t)(128 * row + step / 2 * 256 + step % 2 * 8));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t at = (uint32_t)((2 * step + k / 2) * SL_Q8_0_BYTES + 2 + k % 2 * 16);
                words[row][k][0] = skinny_short(view.row[row] + view.pair + at);
                words[row][k][1] = skinny_short(view.row[row] + view.pair + at + 8);
            }
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t scale = k < 2 ? scales[row].x : scales[row].y;
                const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q8_0);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t pair = __byte_perm(words[row][k][i], 0, 0x4140);
                    a[k][2 * i + row] = skinny_value(pair ^ 0x00800080u, scale, constant);
                }
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q4_0> {
    uint32_t words[2][2][2]; /* [row][block][which eight] */
    uint2 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_two(view.scales + (uint32_t)(128 * row + step / 2 * 256 + step % 2 * 8));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t at = (uint32_t)((2 * step + i) * SL_Q4_0_BYTES + 2);
                words[row][i][0] = skinny_short(view.row[row] + view.pair + at);
                words[row][i][1] = skinny_short(view.row[row] + view.pair + at + 8);
            }
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t scale = i ? scales[row].y : scales[row].x;
                const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q4_0);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t pair = __byte_perm(words[row][i][j], 0, 0x4140);
                    a[2 * i][2 * j + row] = skinny_value(pair & 0x000f000fu, scale, constant);
                    a[2 * i + 1][2 * j + row] = skinny_value(pair >> 4 & 0x000f000fu, scale, constant);
                }
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_Q6_K> {
    /* Bits 4 nibble .. of `low`, and bits `bit` and `bit` + 1 of `high` for the upper two. */
    static __device__ __forceinline__ uint32_t join(uint32_t low, int nibble, uint32_t high, int bit) {
        const uint32_t upper = bit < 4 ? high << (4 - bit) : high >> (bit - 4);
        return ((nibble ? low >> 4 : low) & 0x000f000fu) | (upper & 0x00300030u);
    }

    __device__ __forceinline__ void load(const skinny_view &, int) {
    }

    __device__ __forceinline__ void run(const skinny_view &view, int step, uint32_t (&a)[4][4]) {
        const uint32_t half = (uint32_t)step / 2;
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint4 four = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
            const uint32_t scales[4] = {four.x, four.y, four.z, four.w}, from = view.row[row] + view.pair;
            uint32_t high[2][2];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                high[k / 2][k % 2] = skinny_pair(from + 128 + 32 * half + 8 * k);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int bit = 4 * (step % 2) + 2 * (k / 2);
                const uint32_t constant = skinny_product(scales[k], SKINNY_OFFSET_Q6_K);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t low = skinny_pair(from + 64 * half + (uint32_t)(16 * k + 8 * i));
                    const uint32_t bits = join(low, step % 2, high[k % 2][i], bit);
                    a[k][2 * i + row] = skinny_value(bits, scales[k], constant);
                }
            }
        }
    }
};

/* Codes in the lower bytes of halves to signs, exponents and first bits of BF16 numbers: E2M1 of the lower or
 * upper four bits; and E4M3 in the upper bytes, the lower being 0. */
static __device__ __forceinline__ uint32_t skinny_low_e2m1(uint32_t pair) {
    return (pair << 6 & 0x01c001c0u) | (pair << 12 & 0x80008000u);
}

static __device__ __forceinline__ uint32_t skinny_high_e2m1(uint32_t pair) {
    return (pair << 2 & 0x01c001c0u) | (pair << 8 & 0x80008000u);
}

static __device__ __forceinline__ uint32_t skinny_e4m3(uint32_t pair) {
    return (pair >> 4 & 0x07f007f0u) | (pair & 0x80008000u);
}

/* E2M1 in blocks of which element i is nibble i / 8 % 2 of byte i % 8 of its group of 16. */
template <int TYPE> struct skinny_decoder_nvfp4 {
    uint32_t words[2][4]; /* [row][16 columns] */
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
        const uint32_t at = TYPE == SL_QTYPE_NVFP4
                                ? (uint32_t)(step * SL_NVFP4_BYTES + 4)
                                : (uint32_t)(step / 2 * SL_NVFP4_128_BYTES + 12 + step % 2 * 32);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                words[row][k] = skinny_short(view.row[row] + view.pair + at + (uint32_t)(8 * k));
            }
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t s[4] = {scales[row].x, scales[row].y, scales[row].z, scales[row].w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t pair = __byte_perm(words[row][k], 0, 0x4140);
                a[k][row] = skinny_product(skinny_low_e2m1(pair), s[k]);
                a[k][2 + row] = skinny_product(skinny_high_e2m1(pair), s[k]);
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_NVFP4> : skinny_decoder_nvfp4<SL_QTYPE_NVFP4> {};
template <> struct skinny_decoder<SL_QTYPE_NVFP4_128> : skinny_decoder_nvfp4<SL_QTYPE_NVFP4_128> {};

/* Quants of every second block begin at odd addresses: a pair is the upper byte of one word and the lower of
 * the next. */
template <> struct skinny_decoder<SL_QTYPE_MXFP4> {
    uint32_t words[2][2][2]; /* [row][block][which eight]: bytes 0 and 1 */
    uint2 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_two(view.scales + (uint32_t)(128 * row + step / 2 * 256 + step % 2 * 8));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t at = (uint32_t)((2 * step + i / 2) * SL_MXFP4_BYTES + 1 + i % 2 * 8),
                               from = view.row[row] + view.pair + at;
                words[row][i / 2][i % 2] =
                    i / 2 ? skinny_short(from)
                          : __byte_perm(skinny_short(from - 1), skinny_short(from + 1), 0x0041);
            }
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t scale = i ? scales[row].y : scales[row].x;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t pair = __byte_perm(words[row][i][j], 0, 0x4140);
                    a[2 * i][2 * j + row] = skinny_product(skinny_low_e2m1(pair), scale);
                    a[2 * i + 1][2 * j + row] = skinny_product(skinny_high_e2m1(pair), scale);
                }
            }
        }
    }
};

template <> struct skinny_decoder<SL_QTYPE_FP8_128> {
    enum { COLUMNS = 128, PART = 64 * COLUMNS }; /* of a box; bytes from a row's first box to its second */
    uint32_t words[2][4][2];                     /* [row][16 columns][which eight] */
    uint2 scales[2];

    /* Rows that lie as in skinny_layout: their pieces of 16 bytes change places with the row. view.row has
     * the lane's columns and its row's change of places already. */
    __device__ __forceinline__ void load(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            uint32_t from = view.row[row];
            asm volatile("" : "+r"(from)); /* addresses are computed anew: registers are short */
#pragma unroll
            for (int k = 0; k < 4; k++) {
                load_pairs(row, k, (from ^ (uint32_t)(step % 2 * 64 + 16 * k)) + (uint32_t)(step / 2 * PART));
            }
        }
        load_scales(view, step);
    }

    /* Rows whose columns lie one after the other. */
    __device__ __forceinline__ void load_in_order(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                load_pairs(row, k, view.row[row] + view.pair + (uint32_t)(step * 64 + 16 * k));
            }
        }
        load_scales(view, step);
    }

    __device__ __forceinline__ void load_pairs(int row, int k, uint32_t from) {
        words[row][k][0] = skinny_short(from);
        words[row][k][1] = skinny_short(from + 8);
    }

    __device__ __forceinline__ void load_scales(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_two(view.scales + (uint32_t)(128 * row + step / 2 * 256 + step % 2 * 8));
        }
    }

    __device__ __forceinline__ void run(const skinny_view &, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t pair = __byte_perm(words[row][i / 2][i % 2], 0, 0x1404);
                a[i / 2][i % 2 * 2 + row] = skinny_product(skinny_e4m3(pair), scales[row].x);
            }
        }
    }
};

#endif
