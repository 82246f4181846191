/* What mma_kernel.cuh works with: which units and keys a block takes, and how tiles of keys and values come
 * to shared memory. */
#ifndef SL_BACKEND_CUDA_ATTENTION_MMA_TILES_CUH
#define SL_BACKEND_CUDA_ATTENTION_MMA_TILES_CUH

#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/attention/mma.h"
#include "program/window.h"

static constexpr int MMA_KEYS = SL_PAGE_TOKENS;
static constexpr float MMA_LOG2_E = 1.4426950408889634f;

/* Rows that are decoded to f16 before they are multiplied. */
template <int TYPE> static constexpr bool MMA_RAW = TYPE == SL_QTYPE_Q8_0 || TYPE == SL_QTYPE_FP8;

/* SIZE: columns of keys and values, what a head lacks is zeros. MS: groups of 16 units per warp. WN: warps
 * that share units; a pair of them, of eight warps, where a lane has no registers for all columns of y.
 * STAGES: tiles of keys and of values in shared memory. ONE_PLANE: decoded values take the place of the keys.
 */
template <int TYPE, int SIZE, int MS, int WN, int STAGES> struct mma_shape {
    static constexpr int WARPS = SIZE > 256 && WN == 2 ? 8 : 4, THREADS = 32 * WARPS;
    static constexpr int WM = WARPS / WN;
    static constexpr int UNITS = 16 * MS * WM;
    static constexpr int STRIDE = SIZE + 8; /* 16-bit elements: 8 rows of 16 bytes fall on different banks */
    static constexpr int COLUMNS = SIZE / WN;
    static constexpr int PLANES = MMA_RAW<TYPE> ? 1 : STAGES;
    static constexpr bool ONE_PLANE = MMA_RAW<TYPE> && SIZE > 256;
    static constexpr int ROW = TYPE == SL_QTYPE_Q8_0 ? SIZE / 32 * SL_Q8_0_BYTES : SIZE;
    static constexpr int RAW = MMA_RAW<TYPE> ? ROW * MMA_KEYS : 0;
    static constexpr int TILE_BYTES = MMA_KEYS * STRIDE * 2;
    static constexpr int BYTES = UNITS * STRIDE * 2 + (ONE_PLANE ? 1 : 2 * PLANES) * TILE_BYTES + 2 * RAW;
    static_assert(COLUMNS % 16 == 0 && RAW % 16 == 0, "pairs of columns of eight");

    /* Of byte `at` of a row of elements, from the first row's start. */
    static __device__ __forceinline__ uint32_t offset(int32_t row, int32_t at) {
        return (uint32_t)(row * STRIDE * 2 + at);
    }
};

/* How tiles make chunks: of eight. */
struct mma_chunks {
    static constexpr bool LATE = false; /* every row sees a key */
    static __device__ __forceinline__ int32_t of(int32_t tile) {
        return tile / MMA_CHUNK_TILES;
    }
    static __device__ __forceinline__ int32_t begin(int32_t chunk) {
        return chunk * MMA_CHUNK_TILES;
    }
};

/* Ranges that grow with the number of keys before them. */
struct mma_ranges {
    static __device__ __forceinline__ int32_t of(int32_t tile) {
        return mma_range_of(tile);
    }
    static __device__ __forceinline__ int32_t begin(int32_t range) {
        return growing_chunk_begin(RANGE_CHUNKS * range);
    }
};

/* What a block computes, and where that lies. */
typedef struct mma_walk {
    int32_t kv_head, window;
    const sl_step_span *span;
    int32_t length;                /* of the span: keys before its rows */
    int32_t first_unit, last_unit; /* numbered in the span, as all units below */
    const int32_t *table;
    const unsigned char *keys; /* of the layer and key head, in page 0 */
    const unsigned char *values;
    uint64_t page_bytes;
    int32_t key_bytes, value_bytes; /* of a row */
    int32_t key_size, value_size;
    int32_t lowest, highest; /* keys that some unit sees */
    int32_t first_tile, last_tile;
    int32_t skip; /* tiles of other blocks between two chunks of this one */
} mma_walk;

/* ---- instructions ---- */

static __device__ __forceinline__ float mma_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float mma_tanh(float x) {
    /* 1 - 2 / (e^2x + 1), at most 1e-6 off */
    return 1.0f - __fdividef(2.0f, mma_exp2(2.0f * MMA_LOG2_E * x) + 1.0f);
}

/* Two floats as one register of TYPE's elements, the first one low. */
template <int TYPE> static __device__ __forceinline__ uint32_t mma_pack(float low, float high) {
    uint32_t pair;
    if (TYPE == SL_QTYPE_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

/* c += a b; TYPE: f16 or bf16. */
template <int TYPE>
static __device__ __forceinline__ void mma_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if (TYPE == SL_QTYPE_BF16) {
        sl_mma_bf16(c, a, b0, b1);
    } else {
        sl_mma_f16(c, a, b0, b1);
    }
}

/* Two E4M3 values as f16, exactly. */
static __device__ __forceinline__ uint32_t mma_e4m3(uint32_t two) {
    uint32_t pair;
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 low; cvt.u16.u32 low, %1; cvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(pair) : "r"(two));
#else
    const uint32_t wide = (two & 0xffu) | (two & 0xff00u) << 8, magnitude = wide & 0x007f007fu;
    const uint32_t nan = ((magnitude + 0x00010001u) & 0x00800080u) * 0xfcu; /* 0x7e00 where it is the NaN */
    asm("mul.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(magnitude << 7), "r"(0x5c005c00u)); /* 256 */
    pair |= (wide & 0x00800080u) << 8 | nan;
#endif
    return pair;
}

/* ---- moving tiles ---- */

/* Starts copying a tile's keys (or values) to `to`: as elements, or q8_0's and fp8's rows as they lie in the
 * page. */
template <typename SHAPE, int TYPE, int SIZE>
static __device__ __forceinline__ void mma_fetch(const mma_walk &w, int32_t tile, bool is_key, uint32_t to) {
    if (tile <= w.last_tile) {
        const unsigned char *from = (is_key ? w.keys : w.values) + (uint64_t)w.table[tile] * w.page_bytes;
        const int32_t row_bytes = is_key ? w.key_bytes : w.value_bytes;
        if (MMA_RAW<TYPE>) {
            const int32_t pieces = row_bytes * MMA_KEYS / 16; /* 64 rows are a multiple of 16 */
#pragma unroll 4
            for (int32_t i = (int32_t)threadIdx.x; i < pieces; i += SHAPE::THREADS) {
                sl_copy_16_of(to + 16u * (uint32_t)i, from + 16 * i, 16);
            }
        } else {
            int32_t thread = (int32_t)threadIdx.x; /* likewise hidden from the loop over tiles */
            asm volatile("" : "+r"(thread));
            constexpr int PIECES = SIZE / 8;
            const int32_t size = is_key ? w.key_size : w.value_size, base = tile * MMA_KEYS;
            constexpr int COPIES = MMA_KEYS * PIECES / SHAPE::THREADS, UNROLL = COPIES > 16 ? 4 : COPIES;
#pragma unroll UNROLL
            for (int j = 0; j < COPIES; j++) {
                const int32_t i = thread + j * SHAPE::THREADS;
                const int32_t key = i / PIECES, piece = i % PIECES;
                const bool there = 8 * piece < size && base + key >= w.lowest && base + key <= w.highest;
                sl_copy_16_of(to + SHAPE::offset(key, piece * 16),
                              there ? from + key * row_bytes + piece * 16 : from, there ? 16 : 0);
            }
        }
    }
    sl_copy_commit();
}

/* 16 elements of a row as f16. */
template <int TYPE>
static __device__ __forceinline__ void mma_decode16(const unsigned char *row, int32_t piece,
                                                    uint32_t out[8]) {
    if (TYPE == SL_QTYPE_FP8) {
        const uint32_t *words = (const uint32_t *)(row + 16 * piece);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            out[e] = mma_e4m3(words[e / 2] >> e % 2 * 16 & 0xffffu);
        }
        return;
    }
    const uint16_t *block = (const uint16_t *)(row + piece / 2 * SL_Q8_0_BYTES);
    float scale;
    asm("cvt.f32.f16 %0, %1;" : "=f"(scale) : "h"(block[0]));
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t two = block[1 + piece % 2 * 8 + e];
        out[e] =
            mma_pack<SL_QTYPE_F16>((float)(int8_t)(two & 255u) * scale, (float)(int8_t)(two >> 8) * scale);
    }
}

/* Rows in shared memory to f16 elements, 16 at a time. */
template <typename SHAPE, int TYPE, int SIZE>
static __device__ __forceinline__ void mma_decode(const mma_walk &w, int32_t tile, bool is_key,
                                                  const unsigned char *raw, unsigned char *to) {
    constexpr int PIECES = SIZE / 16;
    const int32_t size = is_key ? w.key_size : w.value_size, base = tile * MMA_KEYS;
    const int32_t row_bytes = is_key ? w.key_bytes : w.value_bytes;
#pragma unroll 2
    for (int32_t i = (int32_t)threadIdx.x; i < MMA_KEYS * PIECES; i += SHAPE::THREADS) {
        const int32_t key = i / PIECES, piece = i % PIECES;
        uint32_t out[8];
        if (16 * piece < size && base + key >= w.lowest && base + key <= w.highest) {
            mma_decode16<TYPE>(raw + key * row_bytes, piece, out);
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                out[e] = 0;
            }
        }
        *(uint4 *)(to + SHAPE::offset(key, piece * 32)) = make_uint4(out[0], out[1], out[2], out[3]);
        *(uint4 *)(to + SHAPE::offset(key, piece * 32 + 16)) = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

static __device__ __forceinline__ float mma_q(float q) {
    return fminf(fmaxf(q, -65504.0f), 65504.0f); /* f16's range */
}

/* q into shared memory, with zeros behind its last column and unit. */
template <typename SHAPE, int TYPE, int SIZE>
static __device__ __forceinline__ void mma_load_queries(const mma_args &args, const mma_walk &w,
                                                        unsigned char *to) {
    constexpr int PIECES = SIZE / 4;
    const int32_t first_row = w.span->first_row;
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          15) == 0;
#pragma unroll 8
    for (int32_t i = (int32_t)threadIdx.x; i < SHAPE::UNITS * PIECES; i += SHAPE::THREADS) {
        const int32_t at = i / PIECES, c = i % PIECES * 4;
        float4 q = make_float4(0, 0, 0, 0);
        const int32_t unit = w.first_unit + at;
        if (unit <= w.last_unit && c < w.key_size) {
            const int32_t row = first_row + unit / args.ratio;
            const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
            const float *from = sl_f32(args.q, row) + head * args.attention.q_stride + c;
            q = aligned ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
        }
        uint2 *out = (uint2 *)(to + SHAPE::offset(at, 2 * c));
        *out = make_uint2(mma_pack<TYPE>(mma_q(q.x), mma_q(q.y)), mma_pack<TYPE>(mma_q(q.z), mma_q(q.w)));
    }
}

/* ---- finding work ---- */

typedef struct mma_place {
    int32_t span, first_unit, units;
} mma_place;

/* By the first warp: the block's run of units, the last runs of the last span first, because they have the
 * most keys; units is 0 when there is none. */
static __device__ __forceinline__ void mma_find(const sl_cuda_context &context, int32_t block, int32_t ratio,
                                                int32_t most, mma_place *place) {
    const int32_t lane = (int32_t)threadIdx.x, spans = context.header->spans;
    if (lane == 0) {
        place->units = 0;
    }
    __syncwarp();
    int32_t before = 0;
    for (int32_t top = spans; top > 0; top -= SL_WARP) {
        const int32_t s = top - 1 - lane;
        const int32_t units = s >= 0 ? context.spans[s].row_count * ratio : 0;
        const int32_t tiles = (units + most - 1) / most;
        int32_t end = tiles;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        if (block >= end - tiles && block < end) {
            place->span = s;
            place->first_unit = (end - 1 - block) * most;
            place->units = units - place->first_unit < most ? units - place->first_unit : most;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
}

static __device__ __forceinline__ int32_t mma_first_seen(int32_t window, int32_t index) {
    return sl_first_seen(window, index);
}

/* Then there is nothing to add up, and the block that has it stores y. */
template <typename CHUNKS>
static __device__ __forceinline__ bool mma_has_one_chunk(int32_t window, int32_t index) {
    return CHUNKS::of(mma_first_seen(window, index) / MMA_KEYS) == CHUNKS::of(index / MMA_KEYS);
}

/* The block's tile after `tile`; behind the last when there is none. */
static __device__ __forceinline__ int32_t mma_next_tile(const mma_walk &w, int32_t tile) {
    do {
        tile++;
        if (tile % MMA_CHUNK_TILES == 0) {
            tile += w.skip; /* the chunks of other blocks */
        }
    } while (tile <= w.last_tile && w.table[tile] < 0);
    return tile;
}

/* Where the block begins that takes the chunks that are `part` modulo `parts`. */
template <typename CHUNKS>
static __device__ __forceinline__ int32_t mma_part_begin(const mma_walk &w, int32_t part, int32_t parts) {
    const int32_t chunk = CHUNKS::of(w.first_tile);
    const int32_t others = (part + parts - chunk % parts) % parts;
    return others > 0 ? CHUNKS::begin(chunk + others) : w.first_tile;
}

/* Its first tile. */
static __device__ __forceinline__ int32_t mma_first_tile(const mma_walk &w, int32_t part, int32_t parts) {
    const int32_t tile = mma_part_begin<mma_chunks>(w, part, parts);
    return tile > w.last_tile || w.table[tile] >= 0 ? tile : mma_next_tile(w, tile);
}

#endif
