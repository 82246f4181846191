/* Products of quantised weights with int8 activations on the tensor cores (mma m16n8k32, from capability
 * 8.0): what the kernels for few rows (i8_rows64.cuh) and for many (i8_tile.cuh) share. Class "q8_32/256",
 * defined in plain_linear.cu.
 *
 * Weights are the instruction's first operand, 16 weight rows, and x its second, 8 rows. A lane with i = lane
 * / 4 and j = lane % 4 holds of the sums: weight rows i and i + 8, rows of x 2 j and 2 j + 1.
 *
 * Sums begin at the integer whose bits are the float OFFSET. A sum's bits, read as a float, are then OFFSET +
 * dot: exact, because |dot| stays below 2^22, and without a conversion. fmaf(scale, OFFSET + dot, -scale *
 * OFFSET) is scale * dot rounded once, because scale * OFFSET needs no more bits than a float has: scales are
 * an f16 (11 bits) times an integer of six, and OFFSET is 3 * 2^22. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_MMA_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_MMA_CUH

#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/types/types.cuh"
#include "backend/cuda/common/tile_rows.cuh"

enum {
    MMQ_CHUNK = 256, /* columns */
    MMQ_GROUPS = MMQ_CHUNK / 32,
    MMQ_OUTPUTS = 16,        /* of one instruction */
    MMQ_X_STRIDE = 256 + 16, /* bytes of a row of x in shared memory: eight rows start on different banks */
    MMQ_FACTORS = 5,         /* float4 of a row's factors, likewise: a pair of groups each, and one more */
    MMQ_OFFSET = 0x4b400000, /* the bits of 12582912.0f */
};
#define MMQ_OFFSET_FLOAT 12582912.0f

/* A chunk of a weight row as it lies in the file: `bytes`, brought to shared memory in 16-byte pieces. There
 * rows are `stride` apart, so that they start on different banks; instead of pieces without bytes of the
 * chunk the last one with some comes again. */
template <int TYPE> struct mmq_type;
template <> struct mmq_type<SL_QTYPE_Q4_K> {
    enum { bytes = 144, pieces = 9, stride = 144, has_min = 1, is_unsigned = 1, halves = 0 };
};
template <> struct mmq_type<SL_QTYPE_Q5_K> {
    enum { bytes = 176, pieces = 11, stride = 176, has_min = 1, is_unsigned = 1, halves = 0 };
};
template <> struct mmq_type<SL_QTYPE_Q8_0> {
    enum { bytes = 272, pieces = 17, stride = 272, has_min = 0, is_unsigned = 0, halves = 0 };
};
template <> struct mmq_type<SL_QTYPE_Q4_0> {
    enum { bytes = 144, pieces = 9, stride = 144, has_min = 0, is_unsigned = 0, halves = 0 };
};
/* Blocks start at even addresses: pieces start at a multiple of 16 at or below. */
template <> struct mmq_type<SL_QTYPE_Q6_K> {
    enum { bytes = 210, pieces = 14, stride = 224, has_min = 0, is_unsigned = 0, halves = 1 };
};

/* A scale of four bits times two bits fits a byte, so scales are in the fragments (`mins` in mmq_pair). */
template <> struct mmq_type<SL_QTYPE_Q2_K> {
    enum { bytes = 84, pieces = 7, stride = 112, has_min = 1, is_unsigned = 1, halves = 0 };
};
template <> struct mmq_type<SL_QTYPE_Q3_K> {
    enum { bytes = 110, pieces = 9, stride = 144, has_min = 0, is_unsigned = 0, halves = 1 };
};
/* A scale for each half of a group, where others have factors of one scale. */
template <> struct mmq_type<SL_QTYPE_NVFP4> {
    enum { bytes = 4 * SL_NVFP4_BYTES, pieces = 9, stride = 144 };
    enum { has_min = 0, is_unsigned = 0, halves = 1 };
};
template <> struct mmq_type<SL_QTYPE_NVFP4_128> {
    enum { bytes = 2 * SL_NVFP4_128_BYTES, pieces = 11, stride = 176 };
    enum { has_min = 0, is_unsigned = 0, halves = 1 };
};
/* The types of blocks.cuh. An odd number of pieces, enough for a chunk that begins behind a multiple of 16.
 */
template <int TYPE> struct mmq_type {
    enum { bytes = MMQ_CHUNK / sl_block_size<TYPE>::ELEMENTS * sl_block_size<TYPE>::BYTES };
    enum { behind = bytes % 16 == 0 ? 0 : 16 - (bytes & -bytes), pieces = (bytes + behind + 15) / 16 | 1 };
    enum { has_min = sl_block32<TYPE>::MIN, is_unsigned = has_min, halves = 0, stride = 16 * pieces };
};
template <int TYPE> struct mmq_kind {
    enum {
        IS_BLOCK = sl_block32<TYPE>::HERE,
        IS_FP4 = TYPE == SL_QTYPE_NVFP4 || TYPE == SL_QTYPE_NVFP4_128,
        IS_WIDE = sl_block32<TYPE>::WIDE
    };
};

/* How a chunk's bytes lie, `stride` of them on: from a multiple of 4 on, or not. */
template <int STRIDE, bool WORDS = STRIDE % 4 == 0> struct mmq_words { typedef sl_words_shared type; };
template <int STRIDE> struct mmq_words<STRIDE, false> { typedef sl_words_anywhere type; };

/* ---- instructions ---- */

/* Until no more than `left` of this thread's groups are under way. */
static __device__ __forceinline__ void mmq_wait(int32_t left) {
    if (left >= 2) {
        sl_copy_wait<2>();
    } else if (left == 1) {
        sl_copy_wait<1>();
    } else {
        sl_copy_wait<0>();
    }
}

/* OFFSET + a b^T: 32 columns of a, which is signed or not, and b. */
template <int IS_UNSIGNED>
static __device__ __forceinline__ void mmq_multiply(float sums[4], const uint32_t a[4], const uint32_t b[2]) {
    int32_t d[4];
    const int32_t offset = MMQ_OFFSET;
    sl_mma_i8<IS_UNSIGNED != 0>(d, a, make_uint2(b[0], b[1]), make_int2(offset, offset));
#pragma unroll
    for (int e = 0; e < 4; e++) {
        sums[e] = __int_as_float(d[e]);
    }
}

/* The same for 16 columns. */
static __device__ __forceinline__ void mmq_multiply_16(float sums[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    int32_t d[4];
    const int32_t offset = MMQ_OFFSET;
    sl_mma_i8_k16(d, a0, a1, b0, offset);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        sums[e] = __int_as_float(d[e]);
    }
}

/* scale * byte i of a word without a conversion, exact: scale is an f16, constant = -2^23 * scale. */
static __device__ __forceinline__ float mmq_scale_byte(uint32_t word, int i, float scale, float constant) {
    return fmaf(scale, __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | (uint32_t)i)), constant);
}

static __device__ __forceinline__ uint32_t mmq_word(const unsigned char *at) {
    return *(const uint32_t *)at;
}

/* Four bytes at an even address. */
static __device__ __forceinline__ uint32_t mmq_even_word(const unsigned char *at) {
    const uint32_t odd = (uint32_t)(uint64_t)at & 2u;
    const uint32_t *aligned = (const uint32_t *)(at - odd);
    return __funnelshift_r(aligned[0], aligned[odd / 2], 8 * odd);
}

/* Bytes below 128, less `value` (16 or 32 or 8), as signed ones. */
static __device__ __forceinline__ uint32_t mmq_subtract(uint32_t word, uint32_t value) {
    return ((word | 0x80808080u) - value * 0x01010101u) ^ 0x80808080u;
}

/* Chunks of 16 weight rows in shared memory, as copied. start: the low bits of the address that the first
 * came from. */
typedef struct mmq_raw {
    const unsigned char *at;
    uint32_t start, row_bytes;
} mmq_raw;

template <int TYPE>
static __device__ __forceinline__ const unsigned char *mmq_raw_row(const mmq_raw &raw, int32_t row) {
    const uint32_t shift =
        mmq_type<TYPE>::bytes % 16 == 0 ? 0 : (raw.start + (uint32_t)row * raw.row_bytes) % 16;
    return raw.at + row * mmq_type<TYPE>::stride + shift;
}

/* The piece that is copied as piece `piece` of the chunk at `start`, of which the low bits count. */
template <int TYPE> static __device__ __forceinline__ uint32_t mmq_own_piece(uint32_t piece, uint32_t start) {
    typedef mmq_type<TYPE> type;
    const uint32_t last = ((type::bytes % 16 ? start % 16 : 0) + type::bytes - 1) / 16;
    return (type::bytes - 1) / 16 + 1 < type::pieces && piece > last ? last : piece;
}

/* ---- factors: what the groups of a chunk are multiplied with ---- */

/* Of 16 weight rows and pairs of groups: scale and -minimum of the one and the other group; for a type with
 * halves the factors of a group's halves. A scale is divided by what the fragment is multiplied with: a power
 * of two. */
typedef struct mmq_factors {
    float4 of[MMQ_OUTPUTS][MMQ_FACTORS];
} mmq_factors;

/* By one warp: a lane makes half of a row. */
template <int TYPE>
static __device__ __forceinline__ void mmq_make_factors(const mmq_raw &raw, mmq_factors *factors) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, row = lane % MMQ_OUTPUTS, half = lane / MMQ_OUTPUTS;
    const unsigned char *chunk = mmq_raw_row<TYPE>(raw, row);
    float f[4][2];
    if (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const uint4 header = *(const uint4 *)chunk;
        const uint32_t scales =
            half == 0 ? header.y & 0x3f3f3f3fu : (header.w & 0x0f0f0f0fu) | (header.y >> 2 & 0x30303030u);
        const uint32_t mins = half == 0 ? header.z & 0x3f3f3f3fu
                                        : (header.w >> 4 & 0x0f0f0f0fu) | (header.z >> 2 & 0x30303030u);
        const float scale = sl_half_of(header.x & 0xffffu), min = -sl_half_of(header.x >> 16);
        const float scale_constant = -8388608.0f * scale, min_constant = -8388608.0f * min;
        /* Q4_K's odd groups are the high nibbles, left where they are. */
        const float part = TYPE == SL_QTYPE_Q4_K ? 0.0625f : 1.0f;
        const float high = part * scale, high_constant = part * scale_constant;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[i][0] = mmq_scale_byte(scales, i, i % 2 ? high : scale, i % 2 ? high_constant : scale_constant);
            f[i][1] = mmq_scale_byte(mins, i, min, min_constant);
        }
    } else if constexpr (mmq_kind<TYPE>::IS_BLOCK) {
        const bool whole = sl_block32<TYPE>::APART;
        const int half_bytes = whole ? 0 : mmq_type<TYPE>::bytes / 2;
        const typename mmq_words<half_bytes>::type words = {chunk + half_bytes * half};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t group = whole ? 4 * half + i : i;
            f[i][0] = sl_block32<TYPE>::scale(words, group);
            f[i][1] = sl_block32<TYPE>::min(words, group);
        }
    } else if constexpr (mmq_kind<TYPE>::IS_FP4) {
        const bool whole = TYPE == SL_QTYPE_NVFP4_128;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned char *block =
                chunk + (whole ? SL_NVFP4_128_BYTES * half : SL_NVFP4_BYTES * (2 * half + i / 2));
            const uint32_t scales = mmq_word(block + (whole ? 4 + i / 2 * 4 : 0)) >> 16 * (i % 2);
            const float scale = whole ? __uint_as_float(mmq_word(block)) : 1.0f;
            f[i][0] = scale * sl_nvfp4_scale(scales & 255u);
            f[i][1] = scale * sl_nvfp4_scale(scales >> 8 & 255u);
        }
    } else if (TYPE == SL_QTYPE_Q2_K) {
        const uint32_t both = mmq_word(chunk + 80);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[i][0] = sl_half_of(both & 0xffffu);
            f[i][1] = -sl_half_of(both >> 16);
        }
    } else if (TYPE == SL_QTYPE_Q3_K) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f[i / 2][i % 2] = (float)sl_q3_k_scale(chunk + 96, (uint32_t)(8 * half + i));
        }
    } else {
        const int32_t block = TYPE == SL_QTYPE_Q8_0 ? SL_Q8_0_BYTES : SL_Q4_0_BYTES;
        const int8_t *scales = (const int8_t *)chunk + 192 + 8 * half;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool halves = mmq_type<TYPE>::halves;
            f[i][0] = halves ? (float)scales[2 * i]
                             : sl_half_of(*(const uint16_t *)(chunk + (4 * half + i) * block));
            f[i][1] = halves ? (float)scales[2 * i + 1] : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        factors->of[row][2 * half + i] =
            make_float4(f[2 * i][0], f[2 * i][1], f[2 * i + 1][0], f[2 * i + 1][1]);
    }
}

/* Four groups' scales and sums of x, as copied one behind the other, to pairs of scale and scale * sum. */
static __device__ __forceinline__ void mmq_finish_x(float4 at[2]) {
    const float4 scales = at[0], sums = at[1];
    at[0] = make_float4(scales.x, scales.x * (float)__float_as_int(sums.x), scales.y,
                        scales.y * (float)__float_as_int(sums.y));
    at[1] = make_float4(scales.z, scales.z * (float)__float_as_int(sums.z), scales.w,
                        scales.w * (float)__float_as_int(sums.w));
}

/* ---- fragments ---- */

/* Groups 2 pair and 2 pair + 1 of the weight rows lane / 4 and 8 further, of a type of blocks.cuh. */
template <int TYPE>
static __device__ __forceinline__ void mmq_block_fragments(const mmq_raw &raw, int32_t pair,
                                                           uint32_t a[2][4]) {
    enum { PAIR = sl_block32<TYPE>::PAIR };
    typedef typename mmq_words<PAIR>::type words_type;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t first = PAIR > 0 ? 0 : 2 * pair; /* group, of those behind words */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const words_type words = {mmq_raw_row<TYPE>(raw, lane / 4 + 8 * r) + PAIR * pair};
#pragma unroll
        for (int g = 0; g < 2; g++) {
            if constexpr (sl_block32<TYPE>::TABLE) {
                int32_t low, high;
                sl_look_up(sl_block32<TYPE>::VALUES_0, sl_block32<TYPE>::VALUES_1,
                           sl_block32<TYPE>::nibbles(words, first + g, lane % 4), &low, &high);
                a[g][r] = (uint32_t)low;
                a[g][r + 2] = (uint32_t)high;
            } else {
                uint32_t quants[2];
                sl_block32<TYPE>::quants(words, first + g, lane % 4, quants, NULL);
                for (int i = 0; i < 2; i++) {
                    a[g][r + 2 * i] = sl_block32<TYPE>::OFFSET > 0
                                          ? mmq_subtract(quants[i], sl_block32<TYPE>::OFFSET)
                                          : quants[i];
                }
            }
        }
    }
}

/* Of NVFP4: a word has four columns in its low nibbles, and those eight columns on in its high ones. */
template <int TYPE>
static __device__ __forceinline__ void mmq_fp4_fragments(const mmq_raw &raw, int32_t pair, uint32_t a[2][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t at = TYPE == SL_QTYPE_NVFP4 ? SL_NVFP4_BYTES * pair + 4
                                              : SL_NVFP4_128_BYTES * (pair / 2) + 12 + 32 * (pair % 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned char *quants = mmq_raw_row<TYPE>(raw, lane / 4 + 8 * r) + at + 4 * (lane % 2);
#pragma unroll
        for (int i = 0; i < 4; i++) { /* halves of the two groups */
            int32_t low, high;
            sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, mmq_word(quants + 8 * i), &low, &high);
            a[i / 2][r + i % 2 * 2] = (uint32_t)(lane % 4 < 2 ? low : high);
        }
    }
}

/* Of Q3_K. */
static __device__ __forceinline__ void mmq_q3_k_fragments(const mmq_raw &raw, int32_t pair,
                                                          uint32_t a[2][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned char *chunk = mmq_raw_row<SL_QTYPE_Q3_K>(raw, lane / 4 + 8 * r) + 4 * (lane % 4);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t high = mmq_even_word(chunk + 16 * i) >> 2 * pair;
            const uint32_t low = mmq_even_word(chunk + 32 + pair / 2 * 32 + 16 * i) >> 4 * (pair % 2);
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const uint32_t quants = (low >> 2 * g & 0x03030303u) | (high >> g & 0x01010101u) << 2;
                a[g][r + 2 * i] = mmq_subtract(quants, 4);
            }
        }
    }
}

/* Of Q2_K; mins: every column of a half times the half's minimum. */
static __device__ __forceinline__ void mmq_q2_k_fragments(const mmq_raw &raw, int32_t pair, uint32_t a[2][4],
                                                          uint32_t mins[2][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned char *chunk = mmq_raw_row<SL_QTYPE_Q2_K>(raw, lane / 4 + 8 * r);
        const uint32_t scales = mmq_word(chunk + 4 * pair);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t quants =
                mmq_word(chunk + 16 + pair / 2 * 32 + 16 * i + 4 * (lane % 4)) >> 4 * (pair % 2);
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const uint32_t numbers = scales >> 8 * (2 * g + i);
                a[g][r + 2 * i] = (quants >> 2 * g & 0x03030303u) * (numbers & 15u);
                mins[g][r + 2 * i] = (numbers >> 4 & 15u) * 0x01010101u;
            }
        }
    }
}

/* Groups 2 pair and 2 pair + 1 of 16 weight rows as the instruction takes them. */
template <int TYPE>
static __device__ __forceinline__ void mmq_fragments(const mmq_raw &raw, int32_t pair, uint32_t a[2][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    if constexpr (mmq_kind<TYPE>::IS_BLOCK) {
        mmq_block_fragments<TYPE>(raw, pair, a);
        return;
    } else if constexpr (mmq_kind<TYPE>::IS_FP4) {
        mmq_fp4_fragments<TYPE>(raw, pair, a);
        return;
    } else if constexpr (TYPE == SL_QTYPE_Q3_K) {
        mmq_q3_k_fragments(raw, pair, a);
        return;
    }
    if (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const uint32_t at =
            sl_shared_address(raw.at) + (uint32_t)(lane % 16 * mmq_type<TYPE>::stride + lane / 16 * 16 + 16);
        uint32_t words[4], high[4];
        if (TYPE == SL_QTYPE_Q4_K) {
            sl_load_matrices(at + (uint32_t)(32 * pair), words);
        } else {
            sl_load_matrices(at, high);
            sl_load_matrices(at + (uint32_t)(32 + 32 * pair), words);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (TYPE == SL_QTYPE_Q4_K) {
                a[0][i] = words[i] & 0x0f0f0f0fu;
                a[1][i] = words[i] & 0xf0f0f0f0u;
            } else {
                const uint32_t bits = high[i] >> 2 * pair;
                a[0][i] = (words[i] & 0x0f0f0f0fu) | (bits << 4 & 0x10101010u);
                a[1][i] = (words[i] >> 4 & 0x0f0f0f0fu) | (bits << 3 & 0x10101010u);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2 && TYPE != SL_QTYPE_Q4_K && TYPE != SL_QTYPE_Q5_K; r++) {
        const unsigned char *chunk = mmq_raw_row<TYPE>(raw, lane / 4 + 8 * r);
        if (TYPE == SL_QTYPE_Q8_0) {
            const unsigned char *at = chunk + 2 * SL_Q8_0_BYTES * pair + 4 * (lane % 4);
#pragma unroll
            for (int i = 0; i < 2; i++) { /* the first block's integers are two bytes behind a word */
                a[0][r + 2 * i] = __funnelshift_r(mmq_word(at + 16 * i), mmq_word(at + 16 * i + 4), 16);
                a[1][r + 2 * i] = mmq_word(at + SL_Q8_0_BYTES + 2 + 16 * i);
            }
        } else if (TYPE == SL_QTYPE_Q4_0) {
            const unsigned char *at = chunk + 2 * SL_Q4_0_BYTES * pair + 4 * (lane % 4);
            const uint32_t even = __funnelshift_r(mmq_word(at), mmq_word(at + 4), 16);
            const uint32_t odd = mmq_word(at + SL_Q4_0_BYTES + 2);
            a[0][r] = mmq_subtract(even & 0x0f0f0f0fu, 8);
            a[0][r + 2] = mmq_subtract(even >> 4 & 0x0f0f0f0fu, 8);
            a[1][r] = mmq_subtract(odd & 0x0f0f0f0fu, 8);
            a[1][r + 2] = mmq_subtract(odd >> 4 & 0x0f0f0f0fu, 8);
        } else {
            const unsigned char *at = chunk + 4 * (lane % 4) + pair / 2 * 64;
            const unsigned char *highs = chunk + 4 * (lane % 4) + 128 + pair / 2 * 32;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t high = mmq_even_word(highs + 16 * i) >> 4 * (pair % 2);
#pragma unroll
                for (int g = 0; g < 2; g++) {
                    const uint32_t low = mmq_even_word(at + 32 * g + 16 * i) >> 4 * (pair % 2);
                    const uint32_t quants = (low & 0x0f0f0f0fu) | ((high >> 2 * g & 0x03030303u) << 4);
                    a[g][r + 2 * i] = mmq_subtract(quants, 32);
                }
            }
        }
    }
}

/* ---- the product of a chunk ---- */

/* A chunk in shared memory: HEIGHT times 16 weight rows, and 8 TILES rows of x. x_factors: of each row of x
 * and pair of groups, scale and scale * sum of the one and the other. */
template <int HEIGHT> struct mmq_chunk {
    mmq_raw raw[HEIGHT];
    const mmq_factors *factors; /* [HEIGHT] */
    const unsigned char *x;
    const float4 *x_factors; /* [rows][MMQ_FACTORS] */
};

/* What 16 weight rows bring to two groups: the instruction's operand, and of rows i and i + 8 the factors,
 * and what takes the OFFSET away. */
template <int TYPE> struct mmq_pair {
    uint32_t a[2][4];
    float factors[2][2][2]; /* [group][i or i + 8] */
    float offset[2][2];
    float scale[2];                                  /* types with halves */
    uint32_t mins[TYPE == SL_QTYPE_Q2_K ? 2 : 1][4]; /* Q2_K: for sums of x times the halves' minima */
};

template <int TYPE>
static __device__ __forceinline__ void mmq_load_pair(const mmq_raw &raw, const mmq_factors &factors,
                                                     int32_t pair, mmq_pair<TYPE> *w) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    if constexpr (TYPE == SL_QTYPE_Q2_K) {
        mmq_q2_k_fragments(raw, pair, w->a, w->mins);
    } else {
        mmq_fragments<TYPE>(raw, pair, w->a);
    }
#pragma unroll
    for (int o = 0; o < 2; o++) {
        const float4 f = factors.of[lane / 4 + 8 * o][pair];
        w->factors[0][o][0] = f.x;
        w->factors[0][o][1] = f.y;
        w->factors[1][o][0] = f.z;
        w->factors[1][o][1] = f.w;
        w->offset[0][o] = -MMQ_OFFSET_FLOAT * f.x;
        w->offset[1][o] = -MMQ_OFFSET_FLOAT * f.z;
        if (mmq_type<TYPE>::halves && !mmq_kind<TYPE>::IS_FP4) {
            w->scale[o] = sl_half_of(
                *(const uint16_t *)(mmq_raw_row<TYPE>(raw, lane / 4 + 8 * o) + mmq_type<TYPE>::bytes - 2));
        }
    }
}

/* part += group g of the pair times eight rows of x; x_scale, x_sum: scale and scale * sum of this lane's two
 * rows. */
template <int TYPE>
static __device__ __forceinline__ void mmq_add_group(const mmq_pair<TYPE> &w, int g, const uint32_t b[2],
                                                     const float x_scale[2], const float x_sum[2],
                                                     float part[4]) {
    float sums[4], high[4] = {};
    if (mmq_type<TYPE>::halves) {
        mmq_multiply_16(sums, w.a[g][0], w.a[g][1], b[0]);
        mmq_multiply_16(high, w.a[g][2], w.a[g][3], b[1]);
    } else {
        mmq_multiply<mmq_type<TYPE>::is_unsigned>(sums, w.a[g], b);
    }
    if (TYPE == SL_QTYPE_Q2_K) {
        mmq_multiply<1>(high, w.mins[g % (sizeof w.mins / sizeof *w.mins)], b);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int o = e / 2, r = e % 2;
        if (mmq_kind<TYPE>::IS_FP4) {
            part[e] = fmaf(w.factors[g][o][0] * (sums[e] - MMQ_OFFSET_FLOAT), x_scale[r], part[e]);
            part[e] = fmaf(w.factors[g][o][1] * (high[e] - MMQ_OFFSET_FLOAT), x_scale[r], part[e]);
            continue;
        }
        float term = mmq_kind<TYPE>::IS_WIDE ? w.factors[g][o][0] * (sums[e] - MMQ_OFFSET_FLOAT)
                                             : fmaf(w.factors[g][o][0], sums[e], w.offset[g][o]);
        if (mmq_type<TYPE>::halves) { /* below 2^24: exact */
            term = w.scale[o] * fmaf(w.factors[g][o][1], high[e] - MMQ_OFFSET_FLOAT, term);
        }
        part[e] = fmaf(term, x_scale[r], part[e]);
        if (mmq_type<TYPE>::has_min) {
            const float own = TYPE == SL_QTYPE_Q2_K ? x_scale[r] * (high[e] - MMQ_OFFSET_FLOAT) : x_sum[r];
            part[e] = fmaf(w.factors[g][o][1], own, part[e]);
        }
    }
}

template <int TYPE, int HEIGHT, int TILES>
static __device__ __forceinline__ void mmq_add_chunk(const mmq_chunk<HEIGHT> &chunk,
                                                     float part[HEIGHT][TILES][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const uint32_t x = sl_shared_address(chunk.x) + (uint32_t)(lane % 8 * MMQ_X_STRIDE + lane / 8 * 16);
    const float4 *x_factors = chunk.x_factors + lane % 4 * 2 * MMQ_FACTORS;
#pragma unroll(TILES *HEIGHT <= 2 ? 4 : TILES * HEIGHT <= 4 ? 2 : 1)
    for (int pair = 0; pair < MMQ_GROUPS / 2; pair++) {
        mmq_pair<TYPE> w[HEIGHT];
#pragma unroll
        for (int m = 0; m < HEIGHT; m++) {
            mmq_load_pair<TYPE>(chunk.raw[m], chunk.factors[m], pair, &w[m]);
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            uint32_t b[4];
            sl_load_matrices(x + (uint32_t)(8 * n * MMQ_X_STRIDE + 64 * pair), b);
            const float4 f0 = x_factors[8 * n * MMQ_FACTORS + pair];
            const float4 f1 = x_factors[(8 * n + 1) * MMQ_FACTORS + pair];
            const float scales[2][2] = {{f0.x, f1.x}, {f0.z, f1.z}},
                        sums[2][2] = {{f0.y, f1.y}, {f0.w, f1.w}};
#pragma unroll
            for (int g = 0; g < 2; g++) {
#pragma unroll
                for (int m = 0; m < HEIGHT; m++) {
                    mmq_add_group<TYPE>(w[m], g, b + 2 * g, scales[g], sums[g], part[m][n]);
                }
            }
        }
    }
}

/* ---- arguments ---- */

typedef struct mmq_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_tile[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along x of the grid */
    int32_t segments;
    sl_cuda_operand x, residual, y;
    const int32_t *offsets, *list; /* the schedule, or NULL */
    int32_t x_share;               /* rows of y that read one row of x */
} mmq_args;

static inline int32_t mmq_outputs(const sl_cuda_op *op) {
    int32_t outputs = 0;
    for (int32_t s = 0; s < op->weight_count; s++) {
        outputs += op->weights[s].rows;
    }
    return outputs;
}

/* `outputs`: of a tile. Returns the number of tiles. */
static inline int32_t mmq_make_args(const sl_cuda_context *context, const sl_cuda_op *op, int32_t outputs,
                                    mmq_args *args) {
    const mmq_args none = {};
    *args = none;
    sl_linear_fill(context, op, args);
    sl_linear_fill_schedule(op, args);
    return sl_linear_cut(op, outputs, args->first_tile);
}

#endif
