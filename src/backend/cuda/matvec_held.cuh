/* Matrix products with up to 8 rows of x at the rate the memory can be read, for Hopper. EXACT ones are of
 * class "q8_32/256" of linear.cu, others of "q8_32/factors" (Q4_K below).
 *
 * A block takes a range of tiles of 16 weight rows. Each of its multiplying warps owns a pair of neighbouring
 * chunks of 256 columns, whose x it holds in registers, and multiplies these columns of tile after tile on
 * the tensor cores. Weights come as boxes of a tensor map to slots of the warp's own, the first of them
 * before the kernel's inputs are there; x as boxes too, that of another phase while one is multiplied. The
 * chunks' sums go to shared memory, where two more warps in turns add those of an output in order, store them
 * or activate them. Rows of more chunks than the warps own take several phases, between which those keep the
 * outputs' sums; of fewer, teams of warps take a tile each.
 *
 * A block has a processor for itself, by the size of its shared memory. Where two would fit, and a small
 * kernel in front still has blocks on some processors, the device puts two blocks of this one on others and
 * none on those, and the launch takes up to twice as long. The next kernel may begin when this one has its x,
 * which would wait behind copies of weights. */
#ifndef SL_BACKEND_CUDA_MATVEC_HELD_CUH
#define SL_BACKEND_CUDA_MATVEC_HELD_CUH

#include "backend/cuda/matmul_skinny.cuh"
#include "backend/cuda/matvec_common.cuh"
#include "backend/cuda/matvec_tile.cuh"

enum {
    HELD_WARPS = 8,     /* that multiply */
    HELD_FINISHERS = 2, /* warps that add, activate and store */
    HELD_THREADS = (HELD_WARPS + HELD_FINISHERS) * SL_WARP,
    /* Of a thread. A quarter of a processor's 65536 has three of the warps, and two more of a norm's: more
     * registers, and blocks would not come up where the norm before them still runs. */
    HELD_REGISTERS = 144,
    HELD_CHUNKS = 2,  /* of a warp */
    HELD_STRIDE = 20, /* of a row of x in a chunk's sums: 16 and what keeps the banks apart */
    HELD_SUMS = HELD_STRIDE * SL_TILE_X,
    HELD_TILE = SL_TILE_ROWS * SL_TILE_X,
    /* A warp's x in shared memory: 128 columns of all rows, by the tensor map moved in pieces of 16 bytes,
     * four times; scales; sums. */
    HELD_X_VALUES = SL_TILE_X * 128,
    HELD_X_ROW = HELD_CHUNKS * SL_CHUNK_GROUPS * 4, /* bytes of scales, or sums */
    HELD_X_EACH = SL_TILE_X * HELD_X_ROW,
    HELD_X_BYTES = 2 * HELD_CHUNKS * HELD_X_VALUES + 2 * HELD_X_EACH,
    HELD_KEPT = 16,                                                    /* tiles */
    HELD_X_SCALES = HELD_CHUNKS * SL_CHUNK_GROUPS * SL_TILE_X / 2 * 16 /* bytes of a warp */
};

/* A unit is a tile. */
typedef struct held_args {
    CUtensorMap maps[SL_LINEAR_SEGMENTS];
    CUtensorMap values, scales, sums; /* of x */
    sl_matvec_args op;
    int32_t pairs, per_phase, phases; /* pairs of chunks of a row, of all phases but the last */
    int32_t teams;                    /* a power of two */
    int32_t group;                    /* tiles between which x is loaded and outputs are kept */
    int32_t x_rows;                   /* that x has memory for, at most SL_TILE_X */
    bool dealt; /* blocks take granules in turns, not ranges of them; EXACT ones alone */
} held_args;

/* ---- x ---- */

/* A lane's part of a chunk. scales_at: [group][pair of rows], a pair's two scales and what the type needs. */
template <int TYPE> struct held_x {
    uint2 held[SL_CHUNK_GROUPS];
    const float4 *scales_at;

    __device__ __forceinline__ uint2 values(int g) const {
        return held[g];
    }
    __device__ __forceinline__ float2 scales(int g) const {
        return *(const float2 *)(scales_at + g * (SL_TILE_X / 2));
    }
    __device__ __forceinline__ int2 extra(int g) const {
        return *(const int2 *)((const float2 *)(scales_at + g * (SL_TILE_X / 2)) + 1);
    }
};

/* Word i of a group of a row of 128 columns of x. */
static __device__ __forceinline__ uint32_t held_word(const uint32_t *staged, int32_t row, int g, int32_t i) {
    return staged[row * 32 + ((2 * g + i / 4) ^ row) * 4 + i % 4];
}

/* Words as the lane finds the weights: order_group's. */
template <int TYPE>
static __device__ __forceinline__ uint2 held_values(const uint32_t *staged, int g, int32_t lane) {
    const int32_t row = lane / 4, t = lane % 4;
    const auto word = [&](int32_t i) { return held_word(staged, row, g, i); };
    if (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        return *(const uint2 *)(staged + row * 32 + ((2 * g + t / 2) ^ row) * 4 + t % 2 * 2);
    }
    if (sl_chunk_shape<TYPE>::INTERLEAVED) {
        uint32_t moved[2];
        sl_interleave(word(t), word(4 + t), moved);
        return make_uint2(moved[0], moved[1]);
    }
    if (TYPE == SL_QTYPE_Q8_0 && g % 2 == 0) {
        const uint32_t last = word(4 + t), after = word(t == 3 ? 0 : 5 + t);
        return make_uint2(__funnelshift_r(word(t), word(1 + t), 16),
                          t == 3 ? (after & 0xffffu) | (last & 0xffff0000u)
                                 : __funnelshift_r(last, after, 16));
    }
    if (TYPE == SL_QTYPE_Q4_0 && g % 2 == 0) {
        uint32_t moved[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t own = word(4 * k + t), after = word(4 * k + (t + 1) % 4);
            moved[k] = t == 3 ? (after & 0xffffu) | (own & 0xffff0000u) : __funnelshift_r(own, after, 16);
        }
        return make_uint2(moved[0], moved[1]);
    }
    return make_uint2(word(t), word(4 + t));
}

/* What a warp holds of x, and the products of its chunks: SUMS sums of a tile's outputs, which are added in
 * order; SCALES bytes of shared memory; BUFFERS of all warps' sums. */
template <int TYPE, bool EXACT> struct held_part {
    enum { SUMS = HELD_CHUNKS, SCALES = HELD_X_SCALES, BUFFERS = HELD_FINISHERS };
    held_x<TYPE> x[HELD_CHUNKS];

    /* from: HELD_X_BYTES in shared memory, all there; scales: SCALES. */
    __device__ __forceinline__ void place(const unsigned char *from, float4 *scales);
    /* w: of chunk c, as sl_tile's. */
    __device__ __forceinline__ void add(int c, const unsigned char *const w[2], float sums[SUMS][4]) const {
        sl_tile<TYPE>::add(w, x[c], (int32_t)threadIdx.x % SL_WARP, sums[c]);
    }
};

template <int TYPE, bool EXACT>
__device__ __forceinline__ void held_part<TYPE, EXACT>::place(const unsigned char *from, float4 *scales) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t c = lane / 16, row = lane / 2 % 8, half = lane % 2;
    const float4 *of_rows = (const float4 *)(const void *)(from + 2 * HELD_CHUNKS * HELD_X_VALUES);
    const float4 scale = of_rows[4 * row + 2 * c + half];
    const int4 sum = ((const int4 *)(const void *)of_rows)[HELD_X_EACH / 16 + 4 * row + 2 * c + half];
    const float each[4] = {scale.x, scale.y, scale.z, scale.w};
    const int32_t sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t *to =
            (uint32_t *)(scales + (c * SL_CHUNK_GROUPS + 4 * half + i) * (SL_TILE_X / 2) + row / 2);
        uint32_t extra[2] = {0, 0};
        sl_x_extra<TYPE>(make_uint4(0, 0, 0, 0), each[i], sums[i], extra);
        to[row % 2] = __float_as_uint(each[i]);
        to[2 + row % 2] = extra[0];
    }
#pragma unroll
    for (int h = 0; h < 2 * HELD_CHUNKS; h++) {
#pragma unroll
        for (int g = 0; g < 4; g++) {
            x[h / 2].held[h % 2 * 4 + g] =
                held_values<TYPE>((const uint32_t *)(const void *)(from + h * HELD_X_VALUES), g, lane);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HELD_CHUNKS; i++) {
        x[i].scales_at = scales + i * (SL_CHUNK_GROUPS * SL_TILE_X / 2) + lane % 4;
    }
}

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

/* sums = a * b + c */
static __device__ __forceinline__ void held_outer(float sums[4], const uint32_t a[2], uint32_t b,
                                                  const float c[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, "
        "%10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
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

template <> struct held_part<SL_QTYPE_Q4_K, false> {
    enum { SUMS = 1, SCALES = 0, BUFFERS = 2 * HELD_FINISHERS };
    held_four x[HELD_CHUNKS];

    __device__ __forceinline__ void place(const unsigned char *from, float4 *) {
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
            held_outer(acc, scales[h], x[c].starts[h], acc);
            held_outer(least, minima[h], x[c].sums[h], least);
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
                tile_mma<true>(dots, a, x[c].values[g], make_int2(start, start));
                const float zeros[4] = {};
                float factors[4];
                held_outer(factors, scales[g / 4], t == g % 4 ? x[c].scales[g / 4] : 0u, zeros);
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

/* ---- items ---- */

/* As sl_matvec_unit: the segment and the first row of a tile. */
static __device__ __forceinline__ int32_t held_place(const sl_matvec_args &op, int32_t tile, int32_t *row) {
    int32_t segment = 0, first = 0;
    if (op.activates) {
        *row = (int32_t)((uint32_t)tile / 4 * SL_GRANULE + (uint32_t)tile % 2 * SL_TILE_ROWS);
        return (int32_t)((uint32_t)tile / 2 % 2);
    }
#pragma unroll
    for (int s = 1; s < SL_LINEAR_SEGMENTS; s++) {
        if (tile >= op.first_unit[s]) {
            segment = s;
            first = op.first_unit[s];
        }
    }
    *row = (tile - first) * SL_TILE_ROWS;
    return segment;
}

/* Tile i of the block, where it has every gridDim.x-th granule. */
static __device__ __forceinline__ int32_t held_dealt(const held_args &args, int32_t i) {
    if (!args.dealt) {
        return i;
    }
    const int32_t blocks = (int32_t)gridDim.x, block = (int32_t)blockIdx.x;
    return args.op.activates ? (i / 4 * blocks + block) * 4 + i % 4 : i * blocks + block;
}

/* Tile `tile` of the group that begins at `begin`, in a phase. */
typedef struct held_cursor {
    int32_t begin, phase, tile;
} held_cursor;

/* Of the group. */
static __device__ __forceinline__ int32_t held_stop(const held_args &args, const held_cursor &at,
                                                    int32_t end) {
    return min(at.begin + args.group, end);
}

/* To the first tile behind the group in its phase, of `team`. */
static __device__ __forceinline__ void held_leave(const held_args &args, int32_t team, int32_t end,
                                                  held_cursor *at) {
    const bool last = at->phase + 1 == args.phases;
    at->begin = last ? held_stop(args, *at, end) : at->begin;
    at->phase = last ? 0 : at->phase + 1;
    at->tile = at->begin + team;
}

/* To the first tile from here on that the warp takes; pair: of a phase. */
static __device__ __forceinline__ void held_settle(const held_args &args, int32_t team, int32_t pair,
                                                   int32_t end, held_cursor *at) {
    while (at->begin < end &&
           (at->tile >= held_stop(args, *at, end) || at->phase * args.per_phase + pair >= args.pairs)) {
        held_leave(args, team, end, at);
    }
}

/* ---- sums ---- */

typedef struct held_memory {
    float *sums;          /* buffers of [pair of the phase][team][a pair's sums][HELD_SUMS] */
    float *kept;          /* [tile of the group][HELD_TILE] */
    uint32_t full, empty; /* barriers of the buffers */
} held_memory;

/* Turns of the block's teams through its tiles are dealt to the warps that finish them, whole granules where
 * an activation follows: a turn's number is that of its warp and, times their count, of those that this warp
 * had before. Each has buffers of its own, as a barrier can be waited for by those only that saw its last
 * phase. */
static __device__ __forceinline__ int32_t held_finisher(const held_args &args, int32_t turn) {
    const int32_t together = args.op.activates && args.teams < 4 ? 4 / args.teams : 1;
    return turn / together % HELD_FINISHERS;
}

/* The number of the next turn of warp `finisher`, of which there were so many. */
static __device__ __forceinline__ int32_t held_index(const int32_t (&turns)[HELD_FINISHERS],
                                                     int32_t finisher) {
    int32_t count = turns[0];
#pragma unroll
    for (int f = 1; f < HELD_FINISHERS; f++) {
        count = f == finisher ? turns[f] : count;
    }
    return count * HELD_FINISHERS + finisher;
}

static __device__ __forceinline__ void held_count(int32_t (&turns)[HELD_FINISHERS], int32_t finisher) {
#pragma unroll
    for (int f = 0; f < HELD_FINISHERS; f++) {
        turns[f] += f == finisher;
    }
}

/* Where a warp puts the sums of the tiles that the block's teams multiply in turn `index`. */
template <int TYPE, bool EXACT>
static __device__ __forceinline__ float *held_own(const held_args &args, const held_memory &memory,
                                                  int32_t index, int32_t team, int32_t pair) {
    return memory.sums +
           ((index % held_part<TYPE, EXACT>::BUFFERS * args.per_phase + pair) * args.teams + team) *
               (held_part<TYPE, EXACT>::SUMS * HELD_SUMS);
}

#if __CUDA_ARCH__ >= 900

/* Until the sums that were in its buffer have been added. */
template <int BUFFERS>
static __device__ __forceinline__ void held_await(const held_memory &memory, int32_t index) {
    if (index >= BUFFERS) {
        sl_barrier_wait(memory.empty + 8 * (uint32_t)(index % BUFFERS), (uint32_t)(index / BUFFERS - 1) & 1);
    }
}

#endif

/* sl_matvec_quantize of a group of 32, of which four neighbouring lanes have elements 4 k .. 4 k + 3 of both
 * halves, k being the lane's place among them. */
static __device__ __forceinline__ void held_quantize(const float values[8], const sl_q8_32 &row,
                                                     int32_t group, bool stores) {
    uint32_t magnitude = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        magnitude = max(magnitude, sl_f32_bits(values[e]) & 0x7fffffffu);
    }
    magnitude = max(magnitude, __shfl_xor_sync(SL_FULL_WARP, magnitude, 1));
    magnitude = max(magnitude, __shfl_xor_sync(SL_FULL_WARP, magnitude, 2));
    const float largest = sl_f32_from_bits(magnitude), factor = 127.0f / largest;
    const bool usable = largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
    uint32_t packed[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < 8; e++) { /* the lowest byte of a whole number that 1.5 * 2^23 was added to */
        packed[e / 4] |= (sl_f32_bits(values[e] * factor + 12582912.0f) & 255u) << 8 * (e % 4);
    }
    packed[0] = usable ? packed[0] : 0;
    packed[1] = usable ? packed[1] : 0;
    int sum = __dp4a((int)packed[0], 0x01010101, __dp4a((int)packed[1], 0x01010101, 0));
    sum += __shfl_xor_sync(SL_FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(SL_FULL_WARP, sum, 2);
    const int32_t k = (int32_t)threadIdx.x % 4;
    if (stores) {
        ((uint32_t *)row.values)[SL_Q8_32_GROUP / 4 * group + k] = packed[0];
        ((uint32_t *)row.values)[SL_Q8_32_GROUP / 4 * group + 4 + k] = packed[1];
    }
    if (stores && k == 0) {
        row.sums[group] = sum;
        row.scales[group] = usable                          ? largest / 127.0f
                            : largest < SL_Q8_32_ZERO_BELOW ? 0.0f
                                                            : sl_f32_from_bits(0x7fc00000u);
    }
}

static __device__ __forceinline__ float4 held_add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#if __CUDA_ARCH__ >= 900

/* A lane's four outputs of a tile: what its parts' sums add up to behind `value`. */
template <int TYPE, bool EXACT>
static __device__ __forceinline__ float4 held_total(const held_args &args, const float *sum, int32_t phase,
                                                    float4 value) {
    enum { SUMS = held_part<TYPE, EXACT>::SUMS };
    const int32_t first = phase * args.per_phase, apart = args.teams * SUMS * HELD_SUMS;
    if (SUMS > 1) {
        const int32_t parts = min(args.per_phase * SUMS, args.op.chunks - first * SUMS);
#pragma unroll 8
        for (int32_t c = 0; c < parts / 2; c++, sum += apart) {
            const float4 one = *(const float4 *)sum, two = *(const float4 *)(sum + HELD_SUMS);
            value = held_add(held_add(value, one), two);
        }
        return parts % 2 ? held_add(value, *(const float4 *)sum) : value;
    }
    const int32_t parts = min(args.per_phase, args.pairs - first);
    float4 part[HELD_WARPS];
#pragma unroll
    for (int c = 0; c < HELD_WARPS; c++) {
        part[c] = c < parts ? *(const float4 *)(sum + c * apart) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int c = 0; c < HELD_WARPS; c++) {
        value = held_add(value, part[c]);
    }
    return value;
}

/* Where a lane's four outputs of a tile go, and what is added to them, known before they are. */
typedef struct held_target {
    float *y;      /* or NULL */
    int32_t count; /* of the four */
    bool biased;
    float biases[4], residuals[4];
} held_target;

static __device__ __forceinline__ held_target held_target_of(const sl_matvec_args &op, int32_t tile,
                                                             bool stores) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    held_target target = {};
    int32_t row;
    const sl_cuda_weight &weight = op.weights[held_place(op, tile, &row)];
    row += lane % 4 * 4;
    target.count = stores ? weight.rows - row : 0;
    target.y = op.y.data ? sl_f32(op.y, j) + weight.column + row : NULL;
    target.biased = weight.bias != NULL;
    if (target.biased) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            target.biases[e] = e < target.count ? weight.bias[row + e] : 0.0f;
        }
    }
    if (op.residual.data) {
        const float *residual = sl_f32(op.residual, j) + weight.column + row;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            target.residuals[e] = e < target.count ? residual[e] : 0.0f;
        }
    }
    return target;
}

/* As sl_linear_store. */
static __device__ __forceinline__ void held_store(const sl_matvec_args &op, const held_target &target,
                                                  const float value[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (e < target.count) {
            const float sum = target.biased ? value[e] + target.biases[e] : value[e];
            target.y[e] = op.residual.data ? sum + target.residuals[e] : sum;
        }
    }
}

/* Tile `tile` of a granule's four, gate, gate, up, up. value: a lane's four outputs; values: both halves of
 * the granule so far, activated gates until their products with up are there. */
static __device__ __forceinline__ void held_activate(const sl_matvec_args &op, const held_target &target,
                                                     int32_t tile, const float value[4], float values[8]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    const bool second = tile % 2 != 0, up = tile / 2 % 2 != 0, stores = target.count > 0;
    float now[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        now[e] = target.biased ? value[e] + target.biases[e] : value[e];
    }
    if (target.y && stores) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            target.y[e] = now[e];
        }
    }
    if (up) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            now[e] = (second ? values[4 + e] : values[e]) * now[e];
        }
    } else if (op.function == SL_ACTIVATION_SILU) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            now[e] = sl_silu(now[e]);
        }
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            now[e] = sl_gelu_tanh(now[e]);
        }
    }
    if (up && op.active.data && stores) {
        float *active = sl_f32(op.active, j) + tile / 4 * SL_GRANULE + tile % 2 * SL_TILE_ROWS + lane % 4 * 4;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            active[e] = now[e];
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        values[e] = second ? values[e] : now[e];
        values[4 + e] = second ? now[e] : values[4 + e];
    }
    if (tile % 4 == 3 && op.quantized.data) {
        held_quantize(values, sl_q8_32_of(op.quantized, j), tile / 4, stores);
    }
}

/* Warp `which` of those that finish outputs: a lane has four neighbouring ones of a row of x. The warps take
 * turns of the teams, or granules, one after the other. */
template <int TYPE, bool EXACT>
static __device__ __forceinline__ void held_finish(const held_args &args, const held_memory &memory,
                                                   held_cursor here, int32_t end, int32_t which) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    const bool stores = j < sl_matvec_rows(args.op);
    float values[8] = {};
    int32_t index = which;
#pragma unroll 1
    while (here.begin < end) {
        const bool last = here.phase + 1 == args.phases;
        const int32_t stop = held_stop(args, here, end);
#pragma unroll 1
        for (int32_t tile = here.begin, turn = 0; tile < stop; tile += args.teams, turn++) {
            if (held_finisher(args, turn) != which) {
                continue;
            }
            const int32_t buffer = index % held_part<TYPE, EXACT>::BUFFERS,
                          count = min(args.teams, stop - tile);
#pragma unroll 1
            for (int32_t team = 0; team < count; team++) {
                const int32_t placed = EXACT ? held_dealt(args, tile + team) : tile + team;
                float4 *kept = (float4 *)memory.kept + (tile + team - here.begin) * SL_WARP + lane;
                held_target target = {};
                if (last) {
                    target = held_target_of(args.op, placed, stores);
                }
                if (team == 0) {
                    sl_barrier_wait(memory.full + 8 * (uint32_t)buffer,
                                    (uint32_t)(index / held_part<TYPE, EXACT>::BUFFERS) & 1);
                }
                const float4 value = held_total<TYPE, EXACT>(
                    args,
                    held_own<TYPE, EXACT>(args, memory, index, team, 0) + j * HELD_STRIDE + lane % 4 * 4,
                    here.phase, here.phase == 0 ? make_float4(0, 0, 0, 0) : *kept);
                __syncwarp();
                if (team + 1 == count && lane < SL_ARRIVING_LANES) {
                    sl_barrier_arrive(memory.empty + 8 * (uint32_t)buffer);
                }
                const float four[4] = {value.x, value.y, value.z, value.w};
                if (!last) {
                    *kept = value;
                } else if (args.op.activates) {
                    held_activate(args.op, target, placed, four, values);
                } else {
                    held_store(args.op, target, four);
                }
            }
            index += HELD_FINISHERS;
        }
        held_leave(args, 0, end, &here);
    }
}

#endif

/* ---- the kernel ---- */

template <int TYPE> struct held_shape {
    enum { ITEM = sl_tile_shape<TYPE>::ITEM, ITEMS = HELD_CHUNKS / ITEM };
    enum { SLOT = SL_TILE_ROWS * sl_tile_shape<TYPE>::STRIDE };
};

/* What a multiplying warp works with. */
typedef struct held_warp {
    int32_t team, pair; /* pair: of a phase */
    bool works;
    int32_t end;
    unsigned char *slots;
    uint32_t barriers; /* of the slots, and of x */
    unsigned char *x;
    float4 *scales;
    held_cursor next; /* where it copies */
    int32_t item;     /* of the pair */
} held_warp;

#if __CUDA_ARCH__ >= 900

/* The next item, if there is one. */
template <int TYPE>
static __device__ __forceinline__ void held_copy_next(const held_args &args, held_warp *warp, uint32_t slot) {
    typedef held_shape<TYPE> shape;
    if (warp->next.begin >= warp->end) {
        return;
    }
    int32_t row;
    const int32_t segment = held_place(args.op, warp->next.tile, &row);
    const int32_t chunk =
        (warp->next.phase * args.per_phase + warp->pair) * HELD_CHUNKS + warp->item * shape::ITEM;
    if (threadIdx.x % SL_WARP == 0) {
        const uint32_t barrier = warp->barriers + 8 * slot;
        sl_barrier_expect(barrier, shape::SLOT);
        sl_box_copy_once(sl_shared_address(warp->slots + slot * shape::SLOT), &args.maps[segment],
                         chunk * (sl_chunk_shape<TYPE>::BYTES / 2), row, 0, barrier);
    }
    if (++warp->item == shape::ITEMS) {
        warp->item = 0;
        warp->next.tile += args.teams;
        held_settle(args, warp->team, warp->pair, warp->end, &warp->next);
    }
}

/* The warp's chunks of a tile. used: slots so far. */
template <int TYPE, bool EXACT, int SLOTS>
static __device__ __forceinline__ void held_multiply(const held_args &args, const held_memory &memory,
                                                     held_warp *warp, const held_part<TYPE, EXACT> &x,
                                                     int32_t index, uint32_t *used) {
    typedef held_shape<TYPE> shape;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float part[held_part<TYPE, EXACT>::SUMS][4] = {};
    const unsigned char *w[2];
    const auto enter = [&](int c) { /* the slot of chunk c */
                                    const uint32_t slot = *used % SLOTS;
                                    if (c % shape::ITEM == 0) {
                                        sl_barrier_wait(warp->barriers + 8 * slot, *used / SLOTS & 1);
                                    }
                                    w[0] = warp->slots + slot * shape::SLOT +
                                           lane / 4 * sl_tile_shape<TYPE>::STRIDE +
                                           c % shape::ITEM * sl_chunk_shape<TYPE>::BYTES;
                                    w[1] = w[0] + 8 * sl_tile_shape<TYPE>::STRIDE;
    };
    const auto leave = [&]() {
        sl_fence_reads();
        __syncwarp();
        held_copy_next<TYPE>(args, warp, *used % SLOTS);
        ++*used;
    };
#pragma unroll
    for (int c = 0; c < HELD_CHUNKS; c++) {
        enter(c);
        if constexpr (EXACT) {
            x.add(c, w, part);
            if (c % shape::ITEM == shape::ITEM - 1) {
                leave();
            }
        } else {
            const auto tile = x.load(w);
            if (c % shape::ITEM == shape::ITEM - 1) {
                leave();
            }
            x.add(c, tile, part);
        }
    }
    held_await<held_part<TYPE, EXACT>::BUFFERS>(memory, index);
    float *own = held_own<TYPE, EXACT>(args, memory, index, warp->team, warp->pair) +
                 lane % 4 * 2 * HELD_STRIDE + lane / 4;
#pragma unroll
    for (int c = 0; c < held_part<TYPE, EXACT>::SUMS; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            own[c * HELD_SUMS + e % 2 * HELD_STRIDE + e / 2 * 8] = part[c][e];
        }
    }
}

/* x of the warp's chunks of a phase. */
template <int SLOTS>
static __device__ __forceinline__ void held_bring_x(const held_args &args, const held_warp &warp,
                                                    int32_t phase) {
    if (threadIdx.x % SL_WARP == 0) {
        const int32_t pair = phase * args.per_phase + warp.pair;
        const uint32_t barrier = warp.barriers + 8 * SLOTS, to = sl_shared_address(warp.x);
        const uint32_t scales = to + 2 * HELD_CHUNKS * HELD_X_VALUES;
        sl_barrier_expect(barrier, HELD_X_BYTES);
        for (int h = 0; h < 2 * HELD_CHUNKS; h++) {
            sl_box_copy(to + (uint32_t)(h * HELD_X_VALUES), &args.values, 128 * (2 * HELD_CHUNKS * pair + h),
                        0, 0, barrier);
        }
        sl_box_copy(scales, &args.scales, HELD_X_ROW * pair, 0, 0, barrier);
        sl_box_copy(scales + HELD_X_EACH, &args.sums, HELD_X_ROW * pair, 0, 0, barrier);
    }
}

/* All tiles of the block, from here on. */
template <int TYPE, bool EXACT, int SLOTS>
static __device__ __forceinline__ void held_multiply_all(const held_args &args, const held_memory &memory,
                                                         held_warp *warp, held_cursor here) {
    held_part<TYPE, EXACT> x;
    int32_t turns[HELD_FINISHERS] = {};
    uint32_t used = 0;
    uint32_t phases = 0;
    if (warp->works) {
        held_bring_x<SLOTS>(args, *warp, 0);
    }
#pragma unroll 1
    while (here.begin < warp->end) {
        const int32_t first_pair = here.phase * args.per_phase, stop = held_stop(args, here, warp->end);
        if (phases == 0 || args.phases > 1) {
            if (warp->works) {
                sl_barrier_wait(warp->barriers + 8 * SLOTS, phases & 1);
                x.place(warp->x, warp->scales);
                sl_fence_reads();
                __syncwarp();
                if (args.phases > 1 && (here.phase + 1 < args.phases || stop < warp->end)) {
                    held_bring_x<SLOTS>(args, *warp, here.phase + 1 < args.phases ? here.phase + 1 : 0);
                }
            }
            phases++;
            sl_let_next_begin();
        }
        const bool owns = warp->works && first_pair + warp->pair < args.pairs;
#pragma unroll 1
        for (int32_t tile = here.begin, turn = 0; tile < stop; tile += args.teams, turn++) {
            const int32_t finisher = held_finisher(args, turn), index = held_index(turns, finisher);
            held_count(turns, finisher);
            if (owns && tile + warp->team < stop) {
                held_multiply<TYPE, EXACT, SLOTS>(args, memory, warp, x, index, &used);
            } else { /* nor may it arrive before the others did the last time */
                held_await<held_part<TYPE, EXACT>::BUFFERS>(memory, index);
            }
            __syncwarp();
            if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
                sl_barrier_arrive(memory.full + 8 * (uint32_t)(index % held_part<TYPE, EXACT>::BUFFERS));
            }
        }
        held_leave(args, 0, warp->end, &here);
    }
}

#endif

template <int TYPE, bool EXACT, int SLOTS>
static __global__ void __maxnreg__(HELD_REGISTERS) held_kernel(const __grid_constant__ held_args args) {
#if __CUDA_ARCH__ >= 900
    typedef held_shape<TYPE> shape;
    extern __shared__ __align__(128) unsigned char shared[];
    const int32_t index = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    unsigned char *base = shared + (0u - sl_shared_address(shared)) % 1024;
    unsigned char *slots = base + HELD_WARPS * HELD_X_BYTES,
                  *after = slots + HELD_WARPS * SLOTS * shape::SLOT;
    held_memory memory;
    memory.sums = (float *)(after + HELD_WARPS * held_part<TYPE, EXACT>::SCALES);
    memory.kept = memory.sums + held_part<TYPE, EXACT>::BUFFERS * args.per_phase * args.teams *
                                    held_part<TYPE, EXACT>::SUMS * HELD_SUMS;
    memory.full = sl_shared_address(memory.kept + (args.phases > 1 ? args.group * HELD_TILE : 0));
    memory.empty = memory.full + 8 * held_part<TYPE, EXACT>::BUFFERS;
    held_warp warp;
    warp.team = index / args.per_phase;
    warp.pair = index - warp.team * args.per_phase;
    warp.works = index < HELD_WARPS && warp.team < args.teams;
    warp.x = base + index * HELD_X_BYTES;
    warp.slots = slots + index * SLOTS * shape::SLOT;
    warp.barriers = memory.empty + (uint32_t)(8 * (held_part<TYPE, EXACT>::BUFFERS + index * (SLOTS + 1)));
    warp.scales = (float4 *)(after + index * held_part<TYPE, EXACT>::SCALES);
    held_cursor here = {};
    sl_matvec_range(args.op, &here.begin, &warp.end);
    warp.next = {warp.works ? here.begin : warp.end, 0, here.begin + warp.team};
    warp.item = 0;
    held_settle(args, warp.team, warp.pair, warp.end, &warp.next);
    if (lane == 0 && index == HELD_WARPS) {
        for (uint32_t i = 0; i < held_part<TYPE, EXACT>::BUFFERS; i++) {
            sl_barrier_init(memory.full + 8 * i, HELD_WARPS * SL_ARRIVING_LANES);
            sl_barrier_init(memory.empty + 8 * i, SL_ARRIVING_LANES);
        }
    } else if (lane == 0 && index < HELD_WARPS) {
        for (int i = 0; i < SLOTS + 1; i++) {
            sl_barrier_init(warp.barriers + 8 * (uint32_t)i, 1);
        }
        sl_barrier_fence();
    }
    __syncthreads();
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        held_copy_next<TYPE>(args, &warp, slot);
    }
    if (index < HELD_WARPS && lane == 0) {
        sl_map_prefetch(&args.values);
        sl_map_prefetch(&args.scales);
        sl_map_prefetch(&args.sums);
    }
    sl_wait_for_inputs();
    if (index >= HELD_WARPS) {
        sl_let_next_begin();
        held_finish<TYPE, EXACT>(args, memory, here, warp.end, index - HELD_WARPS);
    } else {
        held_multiply_all<TYPE, EXACT, SLOTS>(args, memory, &warp, here);
    }
#endif
}

/* ---- launches ---- */

/* Phases and teams that leave the fewest warps idle. */
static inline void held_divide(held_args *args) {
    int32_t best = 0;
    for (int32_t phases = (args->pairs + HELD_WARPS - 1) / HELD_WARPS, i = 0; i < 3; i++, phases++) {
        const int32_t per = (args->pairs + phases - 1) / phases;
        int32_t teams = 1;
        while (2 * teams * per <= HELD_WARPS) {
            teams *= 2;
        }
        const int32_t busy = teams * args->pairs * 64 / phases;
        if (busy > best) {
            best = busy;
            args->phases = phases;
            args->per_phase = per;
            args->teams = teams;
        }
    }
}

/* A tensor map of `bytes` bytes of each of `rows` rows, and boxes of `box` bytes of all of them. */
static inline cudaError_t held_map_x(const void *data, uint64_t row_bytes, int32_t rows, int32_t bytes,
                                     uint32_t box, CUtensorMap *map) {
    sl_cuda_tensor tensor = {};
    tensor.data = data;
    tensor.element_bytes = 1;
    tensor.sizes[0] = (uint64_t)bytes;
    tensor.sizes[1] = (uint64_t)rows;
    tensor.sizes[2] = 1;
    tensor.strides[0] = row_bytes;
    tensor.strides[1] = row_bytes * (uint64_t)rows;
    tensor.box[0] = box;
    tensor.box[1] = SL_TILE_X;
    tensor.swizzles = box == 128;
    return sl_cuda_tensor_map(&tensor, map);
}

/* Maps of the weights, and of the first `rows` rows of x. */
template <int TYPE> static cudaError_t held_map(int32_t rows, held_args *args) {
    const sl_cuda_operand &x = args->op.x;
    const unsigned char *values = x.data + x.column, *scales = x.data + x.width + x.column / 8;
    const int32_t count = rows < SL_TILE_X ? rows : (int32_t)SL_TILE_X, columns = args->op.chunks * SL_CHUNK;
    cudaError_t code = held_map_x(values, x.row_bytes, count, columns, 128, &args->values);
    code = code ? code : held_map_x(scales, x.row_bytes, count, columns / 8, HELD_X_ROW, &args->scales);
    code = code ? code
                : held_map_x(scales + x.width / 8, x.row_bytes, count, columns / 8, HELD_X_ROW, &args->sums);
    return code ? code
                : skinny_weight_maps(args->op.weights, sl_tile_shape<TYPE>::STRIDE / 2, SL_TILE_ROWS,
                                     args->maps);
}

/* Of shared memory, where `warps` of the warps work, and the outputs of `kept` tiles are kept. x begins at a
 * multiple of 1024, as its tensor map moves pieces by address. */
template <int TYPE, bool EXACT, int SLOTS> static constexpr int32_t held_bytes(int32_t warps, int32_t kept) {
    typedef held_part<TYPE, EXACT> part;
    return 1024 + HELD_WARPS * (HELD_X_BYTES + 8 + SLOTS * (held_shape<TYPE>::SLOT + 8) + part::SCALES) +
           part::BUFFERS * (warps * part::SUMS * HELD_SUMS * 4 + 16) + kept * HELD_TILE * 4;
}

/* As ring_launch. */
template <int TYPE, bool EXACT, int SLOTS>
static cudaError_t held_launch(const sl_cuda_context *context, const sl_cuda_op *op, int32_t blocks,
                               cudaStream_t stream) {
    static_assert(held_bytes<TYPE, EXACT, SLOTS>(HELD_WARPS, HELD_KEPT) <= MATVEC_SHARED_BYTES,
                  "a block fits");
    held_args args = {};
    args.op = sl_matvec_args_of(context, op);
    const int32_t along = sl_matvec_cut(SL_TILE_ROWS, blocks, &args.op);
    const int32_t each = sl_matvec_most(args.op) * args.op.granule;
    for (int32_t s = args.op.segments; s < SL_LINEAR_SEGMENTS; s++) {
        args.op.first_unit[s] = args.op.units;
    }
    args.pairs = (args.op.chunks + HELD_CHUNKS - 1) / HELD_CHUNKS;
    held_divide(&args);
    args.group = args.phases > 1 && each > HELD_KEPT ? (int32_t)HELD_KEPT : each;
    const cudaError_t code = held_map<TYPE>(op->rows[op->out[0].rows], &args);
    if (code) {
        return code;
    }
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)along);
    shape.block = dim3(HELD_THREADS);
    shape.shared_bytes = (uint32_t)held_bytes<TYPE, EXACT, SLOTS>(args.per_phase * args.teams,
                                                                  args.phases > 1 ? args.group : 0);
    const uint32_t most = (uint32_t)context->shared_bytes;
    shape.shared_bytes = shape.shared_bytes > most / 2 ? shape.shared_bytes : most / 2; /* one block */
    return sl_launch(context, stream, shape, held_kernel<TYPE, EXACT, SLOTS>, args);
}

#endif
