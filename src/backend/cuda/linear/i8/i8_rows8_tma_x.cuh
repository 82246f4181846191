/* x of i8_rows8_tma.cuh as lanes hold it, and its products with a tile's chunks. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_X_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_X_CUH

#include "backend/cuda/linear/i8/i8_arguments.cuh"
#include "backend/cuda/linear/i8/i8_mma_tile.cuh"
#include "backend/cuda/ptx/mma.cuh"

enum {
    HELD_CHUNKS = 2, /* of a warp with warp boxes */
    /* A warp's x in shared memory: 128 columns of all rows, by the tensor map moved in pieces of 16 bytes,
     * four times; scales; sums. */
    HELD_X_VALUES = SL_TILE_X * 128,
    HELD_X_ROW = HELD_CHUNKS * SL_CHUNK_GROUPS * 4, /* bytes of scales, or sums */
    HELD_X_EACH = SL_TILE_X * HELD_X_ROW,
    HELD_X_BYTES = 2 * HELD_CHUNKS * HELD_X_VALUES + 2 * HELD_X_EACH
};

/* ---- Q8_0 ---- */

/* A lane's part of a chunk of x; scales_at: [group][row]. */
typedef struct held_x {
    uint2 held[SL_CHUNK_GROUPS];
    const float *scales_at;

    __device__ __forceinline__ uint2 values(int g) const {
        return held[g];
    }
    __device__ __forceinline__ float2 scales(int g) const {
        return *(const float2 *)(const void *)(scales_at + g * SL_TILE_X);
    }
} held_x;

/* Word i of a group of a row of 128 columns of x. */
static __device__ __forceinline__ uint32_t held_word(const uint32_t *staged, int32_t row, int g, int32_t i) {
    return staged[row * 32 + ((2 * g + i / 4) ^ row) * 4 + i % 4];
}

/* Words as the lane finds the weights: order_group's. A block of Q8_0 may start in the middle of a word. */
template <int TYPE>
static __device__ __forceinline__ uint2 held_values(const uint32_t *staged, int g, int32_t lane) {
    const int32_t row = lane / 4, t = lane % 4;
    const auto word = [&](int32_t i) { return held_word(staged, row, g, i); };
    if (TYPE == SL_QTYPE_Q4_K) {
        return *(const uint2 *)(staged + row * 32 + ((2 * g + t / 2) ^ row) * 4 + t % 2 * 2);
    }
    if (g % 2 == 0) {
        const uint32_t last = word(4 + t), after = word(t == 3 ? 0 : 5 + t);
        return make_uint2(__funnelshift_r(word(t), word(1 + t), 16),
                          t == 3 ? (after & 0xffffu) | (last & 0xffff0000u)
                                 : __funnelshift_r(last, after, 16));
    }
    return make_uint2(word(t), word(4 + t));
}

/* What a warp with warp boxes holds of x, and the products of its chunks: SUMS sums of a tile's outputs,
 * which are added in order; SCALES bytes of shared memory; BUFFERS of all warps' sums; SLOTS of weights. */
template <int TYPE> struct held_part;

template <> struct held_part<SL_QTYPE_Q8_0> {
    enum {
        SUMS = HELD_CHUNKS,
        SCALES = HELD_CHUNKS * SL_CHUNK_GROUPS * SL_TILE_X * 4,
        BUFFERS = 2,
        SLOTS = 4
    };
    held_x x[HELD_CHUNKS];

    /* from: HELD_X_BYTES in shared memory, all there; scales: SCALES. */
    __device__ __forceinline__ void place(const unsigned char *from, float *scales) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
        const int32_t c = lane / 16, row = lane / 2 % 8, half = lane % 2;
        const float4 *of_rows = (const float4 *)(const void *)(from + 2 * HELD_CHUNKS * HELD_X_VALUES);
        const float4 scale = of_rows[4 * row + 2 * c + half];
        const float each[4] = {scale.x, scale.y, scale.z, scale.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scales[(c * SL_CHUNK_GROUPS + 4 * half + i) * SL_TILE_X + row] = each[i];
        }
#pragma unroll
        for (int h = 0; h < 2 * HELD_CHUNKS; h++) {
#pragma unroll
            for (int g = 0; g < 4; g++) {
                x[h / 2].held[h % 2 * 4 + g] = held_values<SL_QTYPE_Q8_0>(
                    (const uint32_t *)(const void *)(from + h * HELD_X_VALUES), g, lane);
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < HELD_CHUNKS; i++) {
            x[i].scales_at = scales + i * (SL_CHUNK_GROUPS * SL_TILE_X) + lane % 4 * 2;
        }
    }

    /* w: of chunk c, as sl_tile's. */
    __device__ __forceinline__ void add(int c, const unsigned char *const w[2], float sums[SUMS][4]) const {
        sl_tile<SL_QTYPE_Q8_0>::add(w, x[c], (int32_t)threadIdx.x % SL_WARP, sums[c]);
    }
};

/* ---- Q4_K ---- */

/* A chunk's sum is d * sum of (scale * x's scale * dot) - m * sum of (minimum * x's scale * x's sum). Both
 * are made by BF16 products of eight columns, in which a group of x takes two: what a scale of x is in
 * BF16, and what is left. So a group's products of scales, the factors of its 16 x 8 dots, are one
 * instruction; minima of four groups are one.
 *
 * A dot starts from HELD_START, so that it is no less than zero and a float's fraction: its bits are the
 * float dot * 2^-149, which products take as it is, and what the starts add up to is where the chunk's sum
 * starts. High nibbles stay 16 times too large, dot and start. */
enum { HELD_START = 1 << 16 };           /* more than 32 * 15 * 127 */
#define HELD_UP 1.2379400392853803e27f   /* 2^90, of scales of x: products with dots are normal floats */
#define HELD_DOWN 5.7646075230342349e17f /* 2^(149 - 90) */
#define HELD_START_UP -1.1368683772161603e-13f /* -HELD_START * 2^(90 - 149) */

/* BF16 of a value, and of what is left of it behind that. */
static __device__ __forceinline__ uint32_t held_split(float value) {
    const uint32_t high = sl_bf16_pair(value, 0.0f) << 16;
    return sl_bf16_pair(value, value - __uint_as_float(high));
}

/* Byte `select` of a word, below 128, twice as BF16; select: byte indices as __byte_perm's. */
static __device__ __forceinline__ uint32_t held_twice(uint32_t bytes, uint32_t select) {
    uint32_t pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" /* 128 + byte - 128 */
        : "=r"(pair)
        : "r"(__byte_perm(bytes, 0x43434343u, select)), "r"(0x3f803f80u), "r"(0xc300c300u));
    return pair;
}

/* A lane's part of a chunk: eight values of each group of row lane / 4, and of groups t and 4 + t, t = lane %
 * 4, split: scales, where sums start, and minus what minima take. */
typedef struct held_four {
    uint2 values[SL_CHUNK_GROUPS];
    uint32_t scales[2], starts[2], sums[2];
} held_four;

/* A lane's part of a chunk's weights. */
typedef struct held_tile_q4_k {
    uint4 heads[2];     /* [row] */
    uint2 quants[4][2]; /* [64 columns][row] */
} held_tile_q4_k;

template <> struct held_part<SL_QTYPE_Q4_K> {
    enum { SUMS = 1, SCALES = 0, BUFFERS = 4, SLOTS = 2 };
    held_four x[HELD_CHUNKS];

    __device__ __forceinline__ void place(const unsigned char *from, float *) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, t = lane % 4;
        const float *scales = (const float *)(const void *)(from + 2 * HELD_CHUNKS * HELD_X_VALUES);
        const int32_t *sums = (const int32_t *)(const void *)scales + HELD_X_EACH / 4;
        const float up = t % 2 ? HELD_UP * 0.0625f : HELD_UP;
#pragma unroll
        for (int c = 0; c < HELD_CHUNKS; c++) {
#pragma unroll
            for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
                const unsigned char *half = from + (2 * c + g / 4) * HELD_X_VALUES;
                x[c].values[g] =
                    held_values<SL_QTYPE_Q4_K>((const uint32_t *)(const void *)half, g % 4, lane);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int32_t at = (lane / 4 * HELD_CHUNKS + c) * SL_CHUNK_GROUPS + 4 * h + t;
                x[c].scales[h] = held_split(scales[at] * up);
                x[c].starts[h] = held_split(scales[at] * HELD_START_UP);
                x[c].sums[h] = held_split(scales[at] * -(float)sums[at]);
            }
        }
    }

    /* Read before it is multiplied, so that the slot can be filled again meanwhile. w: rows lane / 4 and 8
     * further. */
    static __device__ __forceinline__ held_tile_q4_k load(const unsigned char *const w[2]) {
        const int32_t t = (int32_t)threadIdx.x % 4;
        held_tile_q4_k tile;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            tile.heads[r] = *(const uint4 *)w[r];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                tile.quants[p][r] = *(const uint2 *)(w[r] + 16 + 32 * p + 8 * t);
            }
        }
        return tile;
    }

    __device__ __forceinline__ void add(int c, const held_tile_q4_k &tile, float sums[SUMS][4]) const {
        const int32_t t = (int32_t)threadIdx.x % 4;
        const uint32_t select = 0x4040u | (uint32_t)t * 0x0101u;
        float acc[4] = {}, least[4] = {}, d[2], m[2];
        uint32_t scales[2][2], minima[2][2]; /* [groups from 4 h on][row] */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const sl_kquant_head head = sl_kquant_head_of(tile.heads[r]);
            d[r] = head.d * HELD_DOWN;
            m[r] = -head.m;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scales[h][r] = held_twice(head.scales[h], select);
                minima[h][r] = held_twice(head.mins[h], select);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sl_mma_bf16_k8(acc, scales[h], x[c].starts[h], acc);
            sl_mma_bf16_k8(least, minima[h], x[c].sums[h], least);
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint2(&low)[2] = tile.quants[p];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int g = 2 * p + n, start = n ? 16 * HELD_START : (int)HELD_START;
                const uint32_t mask = n ? 0xf0f0f0f0u : 0x0f0f0f0fu;
                const uint32_t a[4] = {low[0].x & mask, low[1].x & mask, low[0].y & mask, low[1].y & mask};
                int32_t dots[4];
                sl_mma_i8<true>(dots, a, x[c].values[g], make_int2(start, start));
                const float zeros[4] = {};
                float factors[4];
                sl_mma_bf16_k8(factors, scales[g / 4], t == g % 4 ? x[c].scales[g / 4] : 0u, zeros);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    acc[e] = fmaf(__int_as_float(dots[e]), factors[e], acc[e]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[0][e] = fmaf(m[e / 2], least[e], fmaf(d[e / 2], acc[e], sums[0][e]));
        }
    }
};

#endif
