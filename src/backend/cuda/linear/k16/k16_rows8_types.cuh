/* Weights of every type to the first operand of mma.m16n8k16, for k16_rows4.cuh: the values of
 * bf16_rows128_types.cuh, bit for bit, sixteen rows by 32 columns at a time.
 *
 * Which column takes which place among the sixteen of an instruction changes no bit, if x has them in the
 * same places. So types whose quants lie at multiples of 16 bytes are PERMUTED: a lane has columns 4 t .. 4 t
 * + 3 of every 16, with t = lane % 4, as one load of matrices hands them out; columns 4 t and 4 t + 2 are its
 * first pair. Others have 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_TYPES_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_ROWS8_TYPES_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_types.cuh"

/* chunks: of skinny_layout::columns columns, that are copied at once; stride: of rows in shared memory, an
 * odd number of 16 bytes; scales: bytes of a row's in a chunk, decoded. */
template <int TYPE> struct thin_layout {
    enum {
        columns = skinny_layout<TYPE>::columns,
        bytes = skinny_layout<TYPE>::bytes,
        chunks = TYPE == SL_QTYPE_Q4_K ? 2 : 1,
        stride = TYPE == SL_QTYPE_Q4_K ? 304 : (int)skinny_layout<TYPE>::stride,
        scales = TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K || TYPE == SL_QTYPE_Q6_K ? 32
                 : skinny_kind<TYPE>::IS_FLOAT                                           ? 0
                                                                                         : 16,
        permuted = TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K
    };
};

/* Where a lane reads a chunk: addresses of shared memory. */
typedef struct thin_view {
    uint32_t matrix; /* row lane % 16, 16 bytes on for the upper lanes: for matrices */
    uint32_t row;    /* row lane / 4, from column lane % 4 * 2 on if a quant is a byte */
    uint32_t scales; /* of row lane / 4 */
} thin_view;

static __device__ __forceinline__ uint32_t thin_one(uint32_t from) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

/* Bits (see bf16_rows128_types.cuh) times the lower half of `pair`, plus the upper. */
static __device__ __forceinline__ uint32_t thin_value(uint32_t bits, uint32_t pair) {
    uint32_t out;
    asm("{\n"
        ".reg .b16 low, high;\n"
        ".reg .b32 scale, constant;\n"
        "mov.b32 {low, high}, %2;\n"
        "mov.b32 scale, {low, low};\n"
        "mov.b32 constant, {high, high};\n"
        "fma.rn.bf16x2 %0, %1, scale, constant;\n"
        "}"
        : "=r"(out)
        : "r"(bits), "r"(pair));
    return out;
}

static __device__ __forceinline__ uint32_t thin_half_of(uint32_t pair, int which) {
    return __byte_perm(pair, pair, which ? 0x3232 : 0x1010);
}

/* ---- scales: two lanes to a row, each with half of the chunk; read as `header`, later made and stored ----
 */

/* skinny_byte_times. exponent: THIN_EXPONENT, where the compiler knows it selectors take a register each. */
#define THIN_EXPONENT 0x4b000000u
static __device__ __forceinline__ float thin_byte_times(uint32_t word, uint32_t i, uint32_t exponent,
                                                        float factor, float less) {
    return fmaf(__uint_as_float(__byte_perm(word, exponent, 0x7440u + i)), factor, less);
}

/* Of Q4_K and Q5_K: scale and constant of a group in a word. */
template <int TYPE>
static __device__ __forceinline__ void thin_k_scales(uint4 header, int32_t half, unsigned char *to,
                                                     uint32_t exponent) {
    const float middle = TYPE == SL_QTYPE_Q4_K ? 7.5f : 15.5f, next = TYPE == SL_QTYPE_Q4_K ? 16.0f : 1.0f;
    const uint32_t lows = half ? header.w : header.y, highs = half ? header.y >> 2 : header.y;
    const uint32_t low_mins = half ? header.w >> 4 : header.z, high_mins = half ? header.z >> 2 : header.z;
    const uint32_t scales = (lows & 0x0f0f0f0fu) | (highs & 0x30303030u);
    const uint32_t mins = (low_mins & 0x0f0f0f0fu) | (high_mins & 0x30303030u);
    const float min = sl_half_of(header.x >> 16) * -SKINNY_DOWN, all = sl_half_of(header.x) * SKINNY_UP;
    const float less_min = min * -8388608.0f;
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float center = (i % 2 ? middle * next : middle) * SKINNY_BIT;
        const float factor = i % 2 ? all * (1.0f / next) : all;
        const float scale = thin_byte_times(scales, (uint32_t)i, exponent, factor, factor * -8388608.0f);
        const float taken = __uint_as_float(sl_bf16_pair(0.0f, scale));
        out[i] = sl_bf16_pair(
            scale, fmaf(center, scale - taken, thin_byte_times(mins, (uint32_t)i, exponent, min, less_min)));
    }
    *(uint4 *)(to + 16 * half) = make_uint4(out[0], out[1], out[2], out[3]);
}

/* Bytes that scales are made of. */
template <int TYPE> static __device__ __forceinline__ uint4 thin_header(uint32_t row, int32_t half) {
    if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        (void)half;
        return skinny_four(row);
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        const uint32_t from = row + 192 + 8 * (uint32_t)half;
        return make_uint4(skinny_short(from) | skinny_short(from + 2) << 16,
                          skinny_short(from + 4) | skinny_short(from + 6) << 16, skinny_short(row + 208), 0);
    } else if constexpr (!skinny_kind<TYPE>::IS_FLOAT) {
        enum { BYTES = TYPE == SL_QTYPE_Q8_0 ? SL_Q8_0_BYTES : SL_Q4_0_BYTES };
        const uint32_t from = row + 4 * (uint32_t)half * BYTES;
        return make_uint4(skinny_short(from), skinny_short(from + BYTES), skinny_short(from + 2 * BYTES),
                          skinny_short(from + 3 * BYTES));
    } else {
        return make_uint4(0, 0, 0, 0);
    }
}

template <int TYPE>
static __device__ __forceinline__ void thin_scales(uint4 header, int32_t half, unsigned char *to,
                                                   uint32_t exponent = THIN_EXPONENT) {
    if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        thin_k_scales<TYPE>(header, half, to, exponent);
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        const float all = sl_half_of(header.z) * SKINNY_UP;
        const uint32_t words[2] = {header.x, header.y};
        uint32_t out[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t two = words[i / 2] >> 16 * (i % 2);
            out[i] = sl_bf16_pair(all * (float)(int8_t)two, all * (float)(int8_t)(two >> 8));
        }
        *(uint4 *)(to + 16 * half) = make_uint4(out[0], out[1], out[2], out[3]);
    } else if constexpr (!skinny_kind<TYPE>::IS_FLOAT) {
        *(uint2 *)(to + 8 * half) =
            make_uint2(sl_bf16_pair(sl_half_of(header.x) * SKINNY_UP, sl_half_of(header.y) * SKINNY_UP),
                       sl_bf16_pair(sl_half_of(header.z) * SKINNY_UP, sl_half_of(header.w) * SKINNY_UP));
    }
}

/* ---- quants ---- */

/* 64 columns: `load` what lies in shared memory, then `run` for either half, columns 16 k .. of it in a[k].
 */
template <int TYPE> struct thin_quants;

template <> struct thin_quants<SL_QTYPE_BF16> {
    uint32_t words[4][4];

    __device__ __forceinline__ void load(const thin_view &view, int step) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sl_load_matrices(view.matrix + (uint32_t)(128 * step + 32 * k), words[k]);
        }
    }

    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            a[i / 4][i % 4] = words[2 * HALF + i / 4][i % 4];
        }
    }
};

template <> struct thin_quants<SL_QTYPE_F16> : thin_quants<SL_QTYPE_BF16> {
    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t word = words[2 * HALF + i / 4][i % 4];
            a[i / 4][i % 4] = sl_bf16_pair(sl_half_of(word), sl_half_of(word >> 16));
        }
    }
};

template <> struct thin_quants<SL_QTYPE_Q4_K> {
    uint32_t words[4];
    uint2 scales[2];

    __device__ __forceinline__ void load(const thin_view &view, int step) {
        scales[0] = skinny_two(view.scales + (uint32_t)(8 * step));
        scales[1] = skinny_two(view.scales + (uint32_t)(8 * 32 + 8 * step));
        sl_load_matrices(view.matrix + (uint32_t)(16 + 32 * step), words);
    }

    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
        const uint32_t mask = HALF ? 0x00f000f0u : 0x000f000fu;
#pragma unroll
        for (int i = 0; i < 4; i++) { /* row i % 2, columns 16 (i / 2) .. */
            const uint32_t pair = HALF ? scales[i % 2].y : scales[i % 2].x;
            a[i / 2][i % 2] = thin_value(words[i] & mask, pair);
            a[i / 2][2 + i % 2] = thin_value(words[i] >> 8 & mask, pair);
        }
    }
};

template <> struct thin_quants<SL_QTYPE_Q5_K> {
    uint32_t words[4], fifths[4];
    uint2 scales[2];

    __device__ __forceinline__ void load(const thin_view &view, int step) {
        scales[0] = skinny_two(view.scales + (uint32_t)(8 * step));
        scales[1] = skinny_two(view.scales + (uint32_t)(8 * 32 + 8 * step));
        sl_load_matrices(view.matrix + (uint32_t)(48 + 32 * step), words);
        sl_load_matrices(view.matrix + 16, fifths);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            fifths[i] = fifths[i] >> 2 * step; /* two groups of 32 columns have bits 0 and 1 */
        }
    }

    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t pair = HALF ? scales[i % 2].y : scales[i % 2].x;
            const uint32_t low = words[i] >> (HALF ? 4 : 0), fifth = fifths[i] >> (HALF ? 1 : 0);
            a[i / 2][i % 2] = thin_value((low & 0x000f000fu) | (fifth << 4 & 0x00100010u), pair);
            a[i / 2][2 + i % 2] = thin_value((low >> 8 & 0x000f000fu) | (fifth >> 4 & 0x00100010u), pair);
        }
    }
};

template <> struct thin_quants<SL_QTYPE_Q8_0> {
    uint32_t words[2][4][2]; /* [row][16 columns][which eight] */
    uint32_t scales[2];

    __device__ __forceinline__ void load(const thin_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = thin_one(view.scales + (uint32_t)(8 * 16 * row + 4 * step));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t at = view.row + (uint32_t)(8 * row * thin_layout<SL_QTYPE_Q8_0>::stride) +
                                    (uint32_t)((2 * step + k / 2) * SL_Q8_0_BYTES + 2 + k % 2 * 16);
                words[row][k][0] = skinny_short(at);
                words[row][k][1] = skinny_short(at + 8);
            }
        }
    }

    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t scale = thin_half_of(scales[row], HALF);
            const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q8_0);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t pair = __byte_perm(words[row][2 * HALF + i / 2][i % 2], 0, 0x4140);
                a[i / 2][i % 2 * 2 + row] = skinny_value(pair ^ 0x00800080u, scale, constant);
            }
        }
    }
};

template <> struct thin_quants<SL_QTYPE_Q4_0> {
    uint32_t words[2][2][2]; /* [row][block][which eight] */
    uint32_t scales[2];

    __device__ __forceinline__ void load(const thin_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = thin_one(view.scales + (uint32_t)(8 * 16 * row + 4 * step));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t at = view.row + (uint32_t)(8 * row * thin_layout<SL_QTYPE_Q4_0>::stride) +
                                    (uint32_t)((2 * step + i) * SL_Q4_0_BYTES + 2);
                words[row][i][0] = skinny_short(at);
                words[row][i][1] = skinny_short(at + 8);
            }
        }
    }

    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t scale = thin_half_of(scales[row], HALF);
            const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q4_0);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t pair = __byte_perm(words[row][HALF][i], 0, 0x4140);
                a[0][2 * i + row] = skinny_value(pair & 0x000f000fu, scale, constant);
                a[1][2 * i + row] = skinny_value(pair >> 4 & 0x000f000fu, scale, constant);
            }
        }
    }
};

template <> struct thin_quants<SL_QTYPE_Q6_K> {
    uint32_t low[2][4][2], high[2][2][2]; /* [row][16 columns][which eight]; nibbles and bits in place */
    uint2 scales[2];                      /* of 16 columns each */

    __device__ __forceinline__ void load(const thin_view &view, int step) {
        const uint32_t half = (uint32_t)step / 2, odd = (uint32_t)step % 2;
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t from = view.row + (uint32_t)(8 * row * thin_layout<SL_QTYPE_Q6_K>::stride);
            scales[row] = skinny_two(view.scales + (uint32_t)(8 * 32 * row + 8 * step));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                low[row][i / 2][i % 2] = skinny_short(from + 64 * half + (uint32_t)(8 * i)) >> 4 * odd;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                high[row][i / 2][i % 2] = skinny_short(from + 128 + 32 * half + (uint32_t)(8 * i)) >> 4 * odd;
            }
        }
    }

    template <int HALF> __device__ __forceinline__ void run(uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint32_t scale = thin_half_of(HALF ? scales[row].y : scales[row].x, k);
                const uint32_t constant = skinny_product(scale, SKINNY_OFFSET_Q6_K);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t four = __byte_perm(low[row][2 * HALF + k][i], 0, 0x4140) & 0x000f000fu;
                    const uint32_t two =
                        __byte_perm(high[row][k][i] >> 2 * HALF, 0, 0x4140) << 4 & 0x00300030u;
                    a[k][2 * i + row] = skinny_value(four | two, scale, constant);
                }
            }
        }
    }
};

#endif
