/* Flash attention with mma.sync m16n8k16: one kernel, instantiated per cache type and head size (flash_*.cu),
 * launched by flash.cu.
 *
 * A unit is one row and one query head; the units of a span that read one key head are numbered row after
 * row, and 16 of them are the rows of a matrix instruction, so that a group of query heads shares its keys. A
 * block of four warps takes a run of units and walks the pages they see. Two arrangements: `tiles` for many
 * rows, where every warp has units of its own and all columns of y; `few`, where the warps share 16 (or 32)
 * units, each computes all scores and adds up its part of the columns. With partials a block takes every
 * n-th chunk of the keys instead of all of them, and merge_kernel in flash.cu adds the chunks.
 *
 * Class "mma64/split512", after the type multiplied in: q and p are rounded to that type, keys and values
 * are of it (q8_0 and fp8 decoded to f16). Keys in tiles of 64, at multiples of 64 of their index in the
 * sequence; chunks of eight tiles, at multiples of 512. Scores in f32 by matrix instructions over steps of 16
 * columns, then softcap. Per tile m' = max(m, scores), corr = 2^((m - m') c) with c = scale log2 e (log2 e
 * after a softcap), p = 2^(score c - m' c); every lane adds the p of its own columns, l = l corr + p + ...; y
 * = y corr
 * + p v over steps of 16 keys. A chunk starts with m = -infinity, l = 0, y = 0. Its l is added over the four
 * lanes of a row at its end, then the chunks as merge_chunk() says. A tile that a row does not see changes
 * none of its bits: p = 0, corr = 1. So a result depends on neither arrangement nor the rest of the step. */
#ifndef SL_BACKEND_CUDA_FLASH_CUH
#define SL_BACKEND_CUDA_FLASH_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/flash.h"

static constexpr int FLASH_THREADS = 128, FLASH_WARPS = 4, FLASH_KEYS = SL_PAGE_TOKENS;
static constexpr float FLASH_LOG2_E = 1.4426950408889634f;

/* Rows that are decoded to f16 before they are multiplied. */
template <int TYPE> static constexpr bool FLASH_RAW = TYPE == SL_QTYPE_Q8_0 || TYPE == SL_QTYPE_FP8;

/* SIZE: columns of keys and values, what a head lacks is zeros. MS: groups of 16 units per warp. WN: warps
 * that share units. STAGES: tiles of keys and of values in shared memory. */
template <int TYPE, int SIZE, int MS, int WN, int STAGES> struct flash_shape {
    static constexpr int WM = FLASH_WARPS / WN;
    static constexpr int UNITS = 16 * MS * WM;
    static constexpr int STRIDE = SIZE + 8; /* 16-bit elements: 8 rows of 16 bytes fall on different banks */
    static constexpr int COLUMNS = SIZE / WN;
    static constexpr int PLANES = FLASH_RAW<TYPE> ? 1 : STAGES;
    static constexpr int ROW = TYPE == SL_QTYPE_Q8_0 ? SIZE / 32 * SL_Q8_0_BYTES : SIZE;
    static constexpr int RAW = FLASH_RAW<TYPE> ? ROW * FLASH_KEYS : 0;
    static constexpr int TILE_BYTES = FLASH_KEYS * STRIDE * 2;
    static constexpr int BYTES = UNITS * STRIDE * 2 + 2 * PLANES * TILE_BYTES + 2 * RAW;
    static_assert(COLUMNS % 16 == 0 && RAW % 16 == 0, "pairs of columns of eight");
};

/* What a block computes, and where that lies. */
typedef struct flash_walk {
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
} flash_walk;

/* ---- instructions ---- */

static __device__ __forceinline__ float flash_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float flash_tanh(float x) {
    /* 1 - 2 / (e^2x + 1), at most 1e-6 off */
    return 1.0f - __fdividef(2.0f, flash_exp2(2.0f * FLASH_LOG2_E * x) + 1.0f);
}

/* Two floats as one register of TYPE's elements, the first one low. */
template <int TYPE> static __device__ __forceinline__ uint32_t flash_pack(float low, float high) {
    uint32_t pair;
    if (TYPE == SL_QTYPE_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

template <int TYPE>
static __device__ __forceinline__ void flash_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if (TYPE == SL_QTYPE_BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

static __device__ __forceinline__ void flash_load4(uint32_t at, uint32_t r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void flash_load4_transposed(uint32_t at, uint32_t r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes, of which the first `bytes` are copied and the others become zeros. */
static __device__ __forceinline__ void flash_copy16(uint32_t to, const unsigned char *from, int32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void flash_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void flash_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Two E4M3 values as f16, exactly. */
static __device__ __forceinline__ uint32_t flash_e4m3(uint32_t two) {
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
static __device__ __forceinline__ void flash_fetch(const flash_walk &w, int32_t tile, bool is_key,
                                                   uint32_t to) {
    if (tile <= w.last_tile) {
        const unsigned char *from = (is_key ? w.keys : w.values) + (uint64_t)w.table[tile] * w.page_bytes;
        const int32_t row_bytes = is_key ? w.key_bytes : w.value_bytes;
        if (FLASH_RAW<TYPE>) {
            const int32_t pieces = row_bytes * FLASH_KEYS / 16; /* 64 rows are a multiple of 16 */
#pragma unroll 4
            for (int32_t i = (int32_t)threadIdx.x; i < pieces; i += FLASH_THREADS) {
                flash_copy16(to + 16u * (uint32_t)i, from + 16 * i, 16);
            }
        } else {
            int32_t thread = (int32_t)threadIdx.x; /* likewise hidden from the loop over tiles */
            asm volatile("" : "+r"(thread));
            constexpr int PIECES = SIZE / 8;
            const int32_t size = is_key ? w.key_size : w.value_size, base = tile * FLASH_KEYS;
#pragma unroll
            for (int j = 0; j < FLASH_KEYS * PIECES / FLASH_THREADS; j++) {
                const int32_t i = thread + j * FLASH_THREADS;
                const int32_t key = i / PIECES, piece = i % PIECES;
                const bool there = 8 * piece < size && base + key >= w.lowest && base + key <= w.highest;
                flash_copy16(to + (uint32_t)(key * SHAPE::STRIDE * 2 + piece * 16),
                             there ? from + key * row_bytes + piece * 16 : from, there ? 16 : 0);
            }
        }
    }
    flash_commit();
}

/* 16 elements of a row as f16. */
template <int TYPE>
static __device__ __forceinline__ void flash_decode16(const unsigned char *row, int32_t piece,
                                                      uint32_t out[8]) {
    if (TYPE == SL_QTYPE_FP8) {
        const uint32_t *words = (const uint32_t *)(row + 16 * piece);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            out[e] = flash_e4m3(words[e / 2] >> e % 2 * 16 & 0xffffu);
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
            flash_pack<SL_QTYPE_F16>((float)(int8_t)(two & 255u) * scale, (float)(int8_t)(two >> 8) * scale);
    }
}

/* Rows in shared memory to f16 elements, 16 at a time. */
template <typename SHAPE, int TYPE, int SIZE>
static __device__ __forceinline__ void flash_decode(const flash_walk &w, int32_t tile, bool is_key,
                                                    const unsigned char *raw, unsigned char *to) {
    constexpr int PIECES = SIZE / 16;
    const int32_t size = is_key ? w.key_size : w.value_size, base = tile * FLASH_KEYS;
    const int32_t row_bytes = is_key ? w.key_bytes : w.value_bytes;
#pragma unroll 2
    for (int32_t i = (int32_t)threadIdx.x; i < FLASH_KEYS * PIECES; i += FLASH_THREADS) {
        const int32_t key = i / PIECES, piece = i % PIECES;
        uint32_t out[8];
        if (16 * piece < size && base + key >= w.lowest && base + key <= w.highest) {
            flash_decode16<TYPE>(raw + key * row_bytes, piece, out);
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                out[e] = 0;
            }
        }
        uint4 *at = (uint4 *)(to + key * SHAPE::STRIDE * 2 + piece * 32);
        at[0] = make_uint4(out[0], out[1], out[2], out[3]);
        at[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

static __device__ __forceinline__ float flash_q(float q) {
    return fminf(fmaxf(q, -65504.0f), 65504.0f); /* f16's range */
}

/* q into shared memory, with zeros behind its last column and unit. */
template <typename SHAPE, int TYPE, int SIZE>
static __device__ __forceinline__ void flash_load_queries(const flash_args &args, const flash_walk &w,
                                                          uint32_t *to) {
    constexpr int PIECES = SIZE / 4;
    const int32_t first_row = w.span->first_row;
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          15) == 0;
#pragma unroll 8
    for (int32_t i = (int32_t)threadIdx.x; i < SHAPE::UNITS * PIECES; i += FLASH_THREADS) {
        const int32_t at = i / PIECES, c = i % PIECES * 4;
        float4 q = make_float4(0, 0, 0, 0);
        const int32_t unit = w.first_unit + at;
        if (unit <= w.last_unit && c < w.key_size) {
            const int32_t row = first_row + unit / args.ratio;
            const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
            const float *from = sl_f32(args.q, row) + head * args.attention.q_stride + c;
            q = aligned ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
        }
        uint2 *out = (uint2 *)(to + (at * SHAPE::STRIDE + c) / 2);
        *out = make_uint2(flash_pack<TYPE>(flash_q(q.x), flash_q(q.y)),
                          flash_pack<TYPE>(flash_q(q.z), flash_q(q.w)));
    }
}

/* ---- finding work ---- */

typedef struct flash_place {
    int32_t span, first_unit, units;
} flash_place;

/* By the first warp: the block's run of units, the last runs of the last span first, because they have the
 * most keys; units is 0 when there is none. */
static __device__ __forceinline__ void flash_find(const sl_cuda_context &context, int32_t block,
                                                  int32_t ratio, int32_t most, flash_place *place) {
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

static __device__ __forceinline__ int32_t flash_first_seen(int32_t window, int32_t index) {
    return window > 0 && index >= window ? index - window + 1 : 0;
}

/* Then there is nothing to add up, and the block that has it stores y. */
static __device__ __forceinline__ bool flash_has_one_chunk(int32_t window, int32_t index) {
    const int32_t keys = FLASH_CHUNK_TILES * FLASH_KEYS;
    return flash_first_seen(window, index) / keys == index / keys;
}

/* The block's tile after `tile`; behind the last when there is none. */
static __device__ __forceinline__ int32_t flash_next_tile(const flash_walk &w, int32_t tile) {
    do {
        tile++;
        if (tile % FLASH_CHUNK_TILES == 0) {
            tile += w.skip; /* the chunks of other blocks */
        }
    } while (tile <= w.last_tile && w.table[tile] < 0);
    return tile;
}

/* The first one, for the block that takes the chunks that are `part` modulo `parts`. */
static __device__ __forceinline__ int32_t flash_first_tile(const flash_walk &w, int32_t part, int32_t parts) {
    const int32_t chunk = w.first_tile / FLASH_CHUNK_TILES;
    const int32_t others = (part + parts - chunk % parts) % parts;
    const int32_t tile = others > 0 ? (chunk + others) * FLASH_CHUNK_TILES : w.first_tile;
    return tile > w.last_tile || w.table[tile] >= 0 ? tile : flash_next_tile(w, tile);
}

/* ---- arithmetic ---- */

/* Adds a chunk's m (times c) and l to the totals; what y's total and the chunk's y are multiplied by. */
static __device__ __forceinline__ void flash_merge(float m, float l, float *largest, float *sum, float *keep,
                                                   float *add) {
    const float both = fmaxf(*largest, m), base = both == -INFINITY ? 0.0f : both;
    *keep = *largest == both ? 1.0f : flash_exp2(*largest - base);
    *add = flash_exp2(m - base);
    *sum = *sum * *keep + l * *add;
    *largest = both;
}

static __device__ __forceinline__ float flash_finish(const flash_args &args, const float *gate, int32_t c,
                                                     float value, float factor) {
    (void)args;
    value *= factor;
    return gate ? value * sl_sigmoid(gate[c]) : value;
}

template <int MS, int COLUMNS> struct flash_state {
    float acc[MS][COLUMNS / 8][4];
    float m[MS][2], l[MS][2]; /* of the chunk; l: the lane's part */
    bool first;               /* no chunk before */
};

/* What is seldom needed, in shared memory. */
template <int UNITS, int WN> struct flash_rare {
    flash_place place;
    int32_t index[UNITS];     /* the last key that the unit sees */
    float2 totals[WN][UNITS]; /* m (times log2 e) and l of the chunks before; each warp its own */
};

/* What a warp computes. */
typedef struct flash_warp {
    int32_t unit, column;          /* the first ones */
    const int32_t *index;          /* of its units, in flash_rare */
    float2 *totals;                /* the same */
    int32_t index_low, index_high; /* the first unit's, the last one's */
    int32_t from_low, from_high;   /* the first keys that these see */
    float scale, softcap;
    float c; /* what scores, after the softcap if any, are multiplied by for powers of two */
    int32_t window;
    bool idle; /* has no units */
} flash_warp;

/* For 16 MS units, from unit `at` of the block on; `n`: of the warps that share units. */
template <int MS, int UNITS, int WN>
static __device__ __forceinline__ flash_warp flash_start_warp(const flash_args &args, const flash_walk &w,
                                                              flash_rare<UNITS, WN> *rare, int32_t at,
                                                              int32_t n) {
    flash_warp warp;
    warp.unit = w.first_unit + at;
    warp.column = 0;
    warp.index = rare->index + at;
    warp.totals = rare->totals[n] + at;
    const int32_t first = warp.unit < w.last_unit ? warp.unit : w.last_unit;
    const int32_t last = warp.unit + 16 * MS - 1 < w.last_unit ? warp.unit + 16 * MS - 1 : w.last_unit;
    warp.index_low = w.length + first / args.ratio;
    warp.index_high = w.length + last / args.ratio;
    warp.scale = args.attention.scale;
    warp.softcap = args.attention.softcap;
    warp.c = warp.softcap > 0 ? FLASH_LOG2_E : warp.scale * FLASH_LOG2_E;
    warp.window = w.window;
    warp.from_low = flash_first_seen(warp.window, warp.index_low);
    warp.from_high = flash_first_seen(warp.window, warp.index_high);
    warp.idle = warp.unit > w.last_unit;
    return warp;
}

/* scores = q . k for 64 keys. */
template <typename SHAPE, int TYPE, int SIZE, int MS, bool KEEP>
static __device__ __forceinline__ void flash_scores(uint32_t q_at, uint32_t k_at,
                                                    const uint32_t kept[][MS][4], float s[MS][8][4]) {
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0;
        }
    }
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
        uint32_t a[MS][4];
#pragma unroll
        for (int i = 0; i < MS; i++) {
            if (KEEP) {
                a[i][0] = kept[step][i][0], a[i][1] = kept[step][i][1];
                a[i][2] = kept[step][i][2], a[i][3] = kept[step][i][3];
            } else {
                flash_load4(q_at + (uint32_t)(i * 16 * SHAPE::STRIDE * 2 + step * 32), a[i]);
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            flash_load4(k_at + (uint32_t)(n * 16 * SHAPE::STRIDE * 2 + step * 32), b);
#pragma unroll
            for (int i = 0; i < MS; i++) {
                flash_mma<TYPE>(s[i][2 * n], a[i], b[0], b[1]);
                flash_mma<TYPE>(s[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Scores of the keys from `base` on to p, with the running maximum and sum; what acc is to be multiplied by.
 */
template <int MS, int COLUMNS>
static __device__ __forceinline__ void flash_weigh(flash_state<MS, COLUMNS> *state, float s[MS][8][4],
                                                   const flash_warp &warp, int32_t base,
                                                   float correction[MS][2]) {
    const float c = warp.c, softcap = warp.softcap;
    const bool masked = base + FLASH_KEYS - 1 > warp.index_low || base < warp.from_high;
    const int32_t column = 2 * ((int32_t)threadIdx.x % 4);
    if (softcap > 0) {
        const float inverse = warp.scale / softcap;
#pragma unroll
        for (int i = 0; i < MS; i++) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[i][n][e] = softcap * flash_tanh(s[i][n][e] * inverse);
                }
            }
        }
    }
    if (masked) {
#pragma unroll
        for (int i = 0; i < MS; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int32_t to = warp.index[16 * i + 8 * h + (int32_t)threadIdx.x % SL_WARP / 4];
                const int32_t first = flash_first_seen(warp.window, to) - base - column;
                const int32_t last = to - base - column;
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const bool seen = 8 * n + e >= first && 8 * n + e <= last;
                        s[i][n][2 * h + e] = seen ? s[i][n][2 * h + e] : -INFINITY;
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < 8; n++) {
                largest = fmaxf(largest, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 2));
            const float before = state->m[i][h];
            largest = fmaxf(largest, before);
            const float bias = largest == -INFINITY ? 0.0f : -largest * c;
            correction[i][h] = largest == before ? 1.0f : flash_exp2(fmaf(before, c, bias));
            float sum = state->l[i][h] * correction[i][h];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                s[i][n][2 * h] = flash_exp2(fmaf(s[i][n][2 * h], c, bias));
                s[i][n][2 * h + 1] = flash_exp2(fmaf(s[i][n][2 * h + 1], c, bias));
                sum += s[i][n][2 * h] + s[i][n][2 * h + 1];
            }
            state->l[i][h] = sum;
            state->m[i][h] = largest;
        }
    }
}

template <int MS, int COLUMNS>
static __device__ __forceinline__ void flash_rescale(flash_state<MS, COLUMNS> *state,
                                                     const float correction[MS][2]) {
    bool same = true;
#pragma unroll
    for (int i = 0; i < MS; i++) {
        same = same && correction[i][0] == 1.0f && correction[i][1] == 1.0f;
    }
    if (!__all_sync(SL_FULL_WARP, same)) {
#pragma unroll
        for (int i = 0; i < MS; i++) {
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    state->acc[i][n][e] *= correction[i][e / 2];
                }
            }
        }
    }
}

/* acc += p . v */
template <typename SHAPE, int TYPE, int MS, int COLUMNS>
static __device__ __forceinline__ void flash_values(flash_state<MS, COLUMNS> *state,
                                                    const uint32_t p[MS][4][4], uint32_t v_at) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t b[4];
            flash_load4_transposed(v_at + (uint32_t)(step * 16 * SHAPE::STRIDE * 2 + n * 32), b);
#pragma unroll
            for (int i = 0; i < MS; i++) {
                flash_mma<TYPE>(state->acc[i][2 * n], p[i][step], b[0], b[1]);
                flash_mma<TYPE>(state->acc[i][2 * n + 1], p[i][step], b[2], b[3]);
            }
        }
    }
}

/* ---- ending a chunk ---- */

template <int MS, int COLUMNS>
static __device__ __forceinline__ void flash_start_chunk(flash_state<MS, COLUMNS> *state) {
#pragma unroll
    for (int i = 0; i < MS; i++) {
        state->m[i][0] = state->m[i][1] = -INFINITY;
        state->l[i][0] = state->l[i][1] = 0;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                state->acc[i][n][e] = 0;
            }
        }
    }
}

static __device__ __forceinline__ void flash_store2(float *to, float a, float b) {
    if (((uint64_t)to & 7) == 0) {
        *(float2 *)to = make_float2(a, b);
    } else {
        to[0] = a;
        to[1] = b;
    }
}

/* Over the four lanes of a row. */
static __device__ __forceinline__ float flash_sum_lanes(float l) {
    l += __shfl_xor_sync(SL_FULL_WARP, l, 1);
    return l + __shfl_xor_sync(SL_FULL_WARP, l, 2);
}

/* Adds the chunk to the total, which lies in y between chunks; or stores the chunk's part. SPLITS: other
 * blocks may have others of the units' chunks; a unit that sees no key of this chunk is left out then, as its
 * y is theirs. */
template <bool SPLITS, int MS, int COLUMNS>
static __device__ __forceinline__ void flash_end_chunk(const flash_args &args, const flash_walk &w,
                                                       const flash_warp &warp, int32_t chunk, bool last,
                                                       flash_state<MS, COLUMNS> *state) {
    int32_t unit = warp.unit, column = warp.column, kv_head = w.kv_head, first_row = w.span->first_row;
    const int32_t size = w.value_size;
    /* Hides that the addresses below are the same for every chunk: kept over the loop, they would push what
     * the loop needs out of the registers. */
    asm volatile("" : "+r"(unit), "+r"(column), "+r"(kv_head), "+r"(first_row));
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float l = flash_sum_lanes(state->l[i][h]);
            const float m = state->m[i][h] == -INFINITY ? -INFINITY : state->m[i][h] * warp.c;
            const int32_t u = unit + 16 * i + 8 * h + lane / 4;
            if (u > w.last_unit || (SPLITS && args.partials && l == 0.0f)) {
                continue;
            }
            const int32_t row = first_row + u / args.ratio, head = kv_head * args.ratio + u % args.ratio;
            const int32_t seen = warp.index[16 * i + 8 * h + lane / 4];
            if (args.partials && !flash_has_one_chunk(warp.window, seen)) {
                const int64_t part = ((int64_t)row * args.attention.heads + head) * args.splits + chunk;
                float *to = args.partials + part * (FLASH_PARTIAL_HEAD + size);
                if (lane % 4 == 0 && column == 0) {
                    to[0] = m;
                    to[1] = l;
                }
#pragma unroll
                for (int n = 0; n < COLUMNS / 8; n++) {
                    const int32_t at = column + 8 * n + 2 * (lane % 4);
                    if (at < size) {
                        flash_store2(to + FLASH_PARTIAL_HEAD + at, state->acc[i][n][2 * h],
                                     state->acc[i][n][2 * h + 1]);
                    }
                }
                continue;
            }
            float2 *total = warp.totals + 16 * i + 8 * h + lane / 4;
            float keep, add, largest = total->x, sum = total->y;
            flash_merge(m, l, &largest, &sum, &keep, &add);
            const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
            __syncwarp(15u << (lane & 28)); /* all four lanes have read */
            if (lane % 4 == 0) {
                *total = make_float2(largest, sum);
            }
            float *y = sl_f32(args.y, row) + head * size;
            const float *gate =
                args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
            constexpr int BATCH = COLUMNS / 8 < 8 ? COLUMNS / 8 : 8; /* loads on their way */
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n += BATCH) {
                float before[BATCH][2];
#pragma unroll
                for (int k = 0; k < BATCH; k++) {
                    const int32_t at = column + 8 * (n + k) + 2 * (lane % 4);
                    const bool there = !state->first && n + k < COLUMNS / 8 && at < size;
                    before[k][0] = there ? y[at] : 0.0f;
                    before[k][1] = there ? y[at + 1] : 0.0f;
                }
#pragma unroll
                for (int k = 0; k < BATCH && n + k < COLUMNS / 8; k++) {
                    const int32_t at = column + 8 * (n + k) + 2 * (lane % 4);
                    if (at < size) {
                        float a = before[k][0] * keep + state->acc[i][n + k][2 * h] * add;
                        float b = before[k][1] * keep + state->acc[i][n + k][2 * h + 1] * add;
                        if (last || args.partials) {
                            a = flash_finish(args, gate, at, a, factor);
                            b = flash_finish(args, gate, at + 1, b, factor);
                        }
                        flash_store2(y + at, a, b);
                    }
                }
            }
        }
    }
    state->first = args.partials != NULL;
    flash_start_chunk(state);
}

/* A block's units, their place in the cache, and which tiles they need. */
static __device__ __forceinline__ void flash_start_walk(const sl_cuda_context &context,
                                                        const flash_args &args, const flash_place &place,
                                                        flash_walk *walk) {
    flash_walk &w = *walk;
    /* Read apart from the one below: as one value it costs the loop registers. */
    w.window = context.caches[args.attention.place.group].window;
    const sl_step_span &span = context.spans[place.span];
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const int32_t window = cache.window;
    w.kv_head = (int32_t)blockIdx.x;
    w.span = &span;
    w.length = span.length[group];
    w.first_unit = place.first_unit;
    w.last_unit = place.first_unit + place.units - 1;
    w.table = cache.table + (int64_t)span.slot * context.table_width;
    w.page_bytes = cache.page_bytes;
    w.key_bytes = (int32_t)cache.key_bytes;
    w.value_bytes = (int32_t)cache.value_bytes;
    w.key_size = cache.key_size;
    w.value_size = cache.value_size;
    w.keys = cache.pages + (uint64_t)args.attention.place.layer * cache.layer_bytes;
    w.values =
        w.keys +
        ((uint64_t)cache.kv_heads * cache.key_bytes + (uint64_t)w.kv_head * cache.value_bytes) * FLASH_KEYS;
    w.keys += (uint64_t)w.kv_head * FLASH_KEYS * cache.key_bytes;
    w.lowest = flash_first_seen(window, w.length + w.first_unit / args.ratio);
    w.highest = w.length + w.last_unit / args.ratio;
    w.first_tile = w.lowest / FLASH_KEYS;
    w.last_tile = w.highest / FLASH_KEYS;
    w.skip = 0;
}

template <int UNITS, int WN, int THREADS>
static __device__ __forceinline__ void flash_start_units(const flash_args &args, const flash_walk &w,
                                                         flash_rare<UNITS, WN> *rare) {
    for (int32_t i = (int32_t)threadIdx.x; i < UNITS; i += THREADS) {
        const int32_t unit = w.first_unit + i < w.last_unit ? w.first_unit + i : w.last_unit;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
        rare->index[i] = w.length + unit / args.ratio;
#pragma unroll
        for (int n = 0; n < WN; n++) {
            rare->totals[n][i] = args.sinks ? make_float2(args.sinks[head] * FLASH_LOG2_E, 1.0f)
                                            : make_float2(-INFINITY, 0.0f);
        }
    }
}

/* ---- stages of the kernel ---- */

/* Shared memory: addresses of q, of the tiles of keys and of values, of q8_0's blocks. */
typedef struct flash_layout {
    unsigned char *memory; /* from q on */
    uint32_t q, k, v, raw;
} flash_layout;

template <typename SHAPE, int SIZE, int MS>
static __device__ __forceinline__ void flash_keep_queries(uint32_t q_at, uint32_t kept[SIZE / 16][MS][4]) {
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
#pragma unroll
        for (int i = 0; i < MS; i++) {
            flash_load4(q_at + (uint32_t)(i * 16 * SHAPE::STRIDE * 2 + step * 32), kept[step][i]);
        }
    }
}

/* Finishes the tile's keys, and starts copying what is multiplied after them; `there`: the other stage. */
template <typename SHAPE, int TYPE, int SIZE, int STAGES>
static __device__ __forceinline__ void flash_take_keys(const flash_walk &w, const flash_layout &at,
                                                       int32_t tile, int32_t next, uint32_t there) {
    constexpr bool RAW = FLASH_RAW<TYPE>;
    flash_wait<RAW || STAGES == 2 ? 1 : 0>();
    __syncthreads(); /* the keys are there, and nobody reads the tile before any more */
    if (RAW) {
        flash_decode<SHAPE, TYPE, SIZE>(w, tile, true, at.memory + (at.raw - at.q),
                                        at.memory + (at.k - at.q));
        __syncthreads();
        flash_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.raw);
    } else if (STAGES == 2) {
        flash_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.k + there);
        flash_fetch<SHAPE, TYPE, SIZE>(w, next, false, at.v + there);
    } else {
        flash_fetch<SHAPE, TYPE, SIZE>(w, tile, false, at.v);
    }
}

/* The same for its values. */
template <typename SHAPE, int TYPE, int SIZE, int STAGES>
static __device__ __forceinline__ void flash_take_values(const flash_walk &w, const flash_layout &at,
                                                         int32_t tile, int32_t next) {
    constexpr bool RAW = FLASH_RAW<TYPE>;
    flash_wait<RAW ? 1 : STAGES == 2 ? 2 : 0>();
    __syncthreads(); /* the values are there, and nobody reads the keys any more */
    if (RAW) {
        flash_decode<SHAPE, TYPE, SIZE>(w, tile, false, at.memory + (at.raw - at.q) + SHAPE::RAW,
                                        at.memory + (at.v - at.q));
        __syncthreads();
        flash_fetch<SHAPE, TYPE, SIZE>(w, next, false, at.raw + SHAPE::RAW);
    } else if (STAGES == 1) {
        flash_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.k);
    }
}

/* p as the second product's operand. */
template <int TYPE, int MS>
static __device__ __forceinline__ void flash_pack_weights(const float s[MS][8][4], uint32_t p[MS][4][4]) {
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            p[i][n / 2][n % 2 * 2] = flash_pack<TYPE>(s[i][n][0], s[i][n][1]);
            p[i][n / 2][n % 2 * 2 + 1] = flash_pack<TYPE>(s[i][n][2], s[i][n][3]);
        }
    }
}

/* ---- the kernel ---- */

template <int TYPE, int SIZE, int MS, int WN, int STAGES, int BLOCKS>
static __global__ void __launch_bounds__(FLASH_THREADS, BLOCKS)
    flash_kernel(sl_cuda_context context, flash_args args) {
    typedef flash_shape<TYPE, SIZE, MS, WN, STAGES> SHAPE;
    constexpr bool RAW = FLASH_RAW<TYPE>;
    constexpr bool KEEP = SIZE / 16 * MS * 4 <= 32; /* q stays in registers */
    extern __shared__ uint4 flash_memory[];
    __shared__ flash_rare<SHAPE::UNITS, WN> rare;
    if (threadIdx.x < SL_WARP) {
        flash_find(context, (int32_t)blockIdx.y, args.ratio, SHAPE::UNITS, &rare.place);
    }
    __syncthreads();
    if (rare.place.units == 0) {
        return;
    }
    flash_walk w;
    flash_start_walk(context, args, rare.place, &w);
    constexpr bool SPLITS = WN > 1; /* else all chunks are the block's */
    w.skip = SPLITS ? (args.parts - 1) * FLASH_CHUNK_TILES : 0;
    int32_t tile = flash_first_tile(w, SPLITS ? (int32_t)blockIdx.z : 0, SPLITS ? args.parts : 1);
    if (tile > w.last_tile) {
        return;
    }

    flash_layout at;
    at.memory = (unsigned char *)flash_memory;
    at.q = sl_shared_address(at.memory);
    at.k = at.q + SHAPE::UNITS * SHAPE::STRIDE * 2;
    at.v = at.k + SHAPE::PLANES * SHAPE::TILE_BYTES;
    at.raw = at.v + SHAPE::PLANES * SHAPE::TILE_BYTES;
    flash_fetch<SHAPE, TYPE, SIZE>(w, tile, true, RAW ? at.raw : at.k);
    if (RAW || STAGES == 2) {
        flash_fetch<SHAPE, TYPE, SIZE>(w, tile, false, RAW ? at.raw + SHAPE::RAW : at.v);
    }
    flash_load_queries<SHAPE, TYPE, SIZE>(args, w, (uint32_t *)at.memory);
    flash_start_units<SHAPE::UNITS, WN, FLASH_THREADS>(args, w, &rare);

    const int32_t number = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t my_unit = number / WN * 16 * MS;
    flash_warp warp = flash_start_warp<MS>(args, w, &rare, my_unit, number % WN);
    warp.column = number % WN * SHAPE::COLUMNS;
    flash_state<MS, SHAPE::COLUMNS> state;
    flash_start_chunk(&state);
    state.first = true;
    const uint32_t q_at = at.q + (uint32_t)(((my_unit + lane % 16) * SHAPE::STRIDE + lane / 16 * 8) * 2);
    const uint32_t k_lane = (uint32_t)(((lane % 8 + lane / 16 * 8) * SHAPE::STRIDE + lane / 8 % 2 * 8) * 2);
    const uint32_t v_lane = (uint32_t)((lane % 16 * SHAPE::STRIDE + lane / 16 * 8 + warp.column) * 2);
    uint32_t kept[KEEP ? SIZE / 16 : 1][MS][4];
    if constexpr (KEEP) {
        __syncthreads();
        flash_keep_queries<SHAPE, SIZE, MS>(q_at, kept);
    }

    uint32_t stage = 0;
    while (tile <= w.last_tile) {
        const int32_t next = flash_next_tile(w, tile), base = tile * FLASH_KEYS;
        const uint32_t here = stage * SHAPE::TILE_BYTES, there = (stage ^ 1u) * SHAPE::TILE_BYTES;
        const bool works = !warp.idle && base <= warp.index_high && base + FLASH_KEYS > warp.from_low;
        flash_take_keys<SHAPE, TYPE, SIZE, STAGES>(w, at, tile, next, there);
        uint32_t p[MS][4][4];
        if (works) {
            float s[MS][8][4], correction[MS][2];
            flash_scores<SHAPE, TYPE, SIZE, MS, KEEP>(q_at, at.k + here + k_lane, kept, s);
            flash_weigh<MS, SHAPE::COLUMNS>(&state, s, warp, base, correction);
            flash_rescale<MS, SHAPE::COLUMNS>(&state, correction);
            flash_pack_weights<TYPE, MS>(s, p);
        }
        flash_take_values<SHAPE, TYPE, SIZE, STAGES>(w, at, tile, next);
        if (works) {
            flash_values<SHAPE, TYPE, MS, SHAPE::COLUMNS>(&state, p, at.v + here + v_lane);
        }
        const bool last = next > w.last_tile;
        if (last || next / FLASH_CHUNK_TILES != tile / FLASH_CHUNK_TILES) {
            flash_end_chunk<SPLITS>(args, w, warp, tile / FLASH_CHUNK_TILES, last, &state);
        }
        stage = STAGES == 2 && !RAW ? stage ^ 1u : 0;
        tile = next;
    }
}

/* ---- launches ---- */

/* Calls `what`(SIZE, MS, WN, STAGES, BLOCKS) for the arrangement of a head size. 96 / 4 is no multiple of
 * 16; 512 columns per warp are too many. */
#define FLASH_FOR_SIZE(size, few, what)                                                                      \
    if (few) {                                                                                               \
        if ((size) <= 64) {                                                                                  \
            what(64, 1, 4, 2, 4);                                                                            \
        } else if ((size) <= 96) {                                                                           \
            what(96, 1, 2, 2, 3);                                                                            \
        } else if ((size) <= 128) {                                                                          \
            what(128, 1, 4, 2, 3);                                                                           \
        } else if ((size) <= 192) {                                                                          \
            what(192, 1, 4, 1, 3);                                                                           \
        } else if ((size) <= 256) {                                                                          \
            what(256, 1, 4, 1, 3);                                                                           \
        } else {                                                                                             \
            what(512, 1, 4, 1, 1);                                                                           \
        }                                                                                                    \
    } else if ((size) <= 64) {                                                                               \
        what(64, 2, 1, 2, 2);                                                                                \
    } else if ((size) <= 96) {                                                                               \
        what(96, 2, 1, 2, 2);                                                                                \
    } else if ((size) <= 128) {                                                                              \
        what(128, 2, 1, 2, 2);                                                                               \
    } else if ((size) <= 192) {                                                                              \
        what(192, 1, 1, 1, 2);                                                                               \
    } else {                                                                                                 \
        what(256, 1, 1, 1, 2);                                                                               \
    }

/* Most runs of units in a step. Each span may leave one partly empty. */
static inline int32_t flash_runs(const flash_launch_shape *shape, int32_t ratio, int32_t units) {
    const int32_t runs = shape->rows * ratio / units + shape->spans;
    return ratio <= units && shape->rows < runs ? shape->rows : runs;
}

/* Blocks for the chunks of each of `runs` runs: several for each multiprocessor, but not one for each chunk
 * that the longest context may have, when most of them would find nothing to do. */
static inline int32_t flash_parts(const flash_args *args, int32_t runs) {
    enum { BLOCKS = 1024 };
    const int32_t parts = BLOCKS / runs < args->splits ? BLOCKS / runs : args->splits;
    return parts > 1 ? parts : 1;
}

template <int TYPE>
static cudaError_t flash_launch(const sl_cuda_context *context, const flash_args *args,
                                const flash_launch_shape *shape, cudaStream_t stream) {
#define FLASH_LAUNCH(SIZE, MS, WN, STAGES, BLOCKS)                                                           \
    do {                                                                                                     \
        typedef flash_shape<TYPE, SIZE, MS, WN, STAGES> SHAPE;                                               \
        const int32_t runs = flash_runs(shape, args->ratio, SHAPE::UNITS);                                   \
        flash_args now = *args;                                                                              \
        now.parts = flash_parts(args, shape->kv_heads * runs);                                               \
        const dim3 grid((unsigned)shape->kv_heads, (unsigned)runs, (unsigned)now.parts);                     \
        flash_kernel<TYPE, SIZE, MS, WN, STAGES, BLOCKS>                                                     \
            <<<grid, FLASH_THREADS, SHAPE::BYTES, stream>>>(*context, now);                                  \
    } while (0)
    FLASH_FOR_SIZE(shape->size, shape->few, FLASH_LAUNCH)
    return cudaGetLastError();
}

/* Bytes of shared memory that the kernel needs. */
template <int TYPE> static int32_t flash_bytes(int32_t size, bool few) {
#define FLASH_BYTES(SIZE, MS, WN, STAGES, BLOCKS) return flash_shape<TYPE, SIZE, MS, WN, STAGES>::BYTES
    FLASH_FOR_SIZE(size, few, FLASH_BYTES)
}

/* Lets the kernels of all sizes use the shared memory they need, if the device has it. */
template <int TYPE> static cudaError_t flash_prepare(int32_t most) {
    static const int32_t sizes[] = {64, 96, 128, 192, 256, 512};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 12 && code == cudaSuccess; i++) {
        const bool few = i >= 6;
        if (!few && sizes[i] > 256) {
            continue;
        }
#define FLASH_PREPARE(SIZE, MS, WN, STAGES, BLOCKS)                                                          \
    do {                                                                                                     \
        typedef flash_shape<TYPE, SIZE, MS, WN, STAGES> SHAPE;                                               \
        if (SHAPE::BYTES <= most) {                                                                          \
            code = cudaFuncSetAttribute(flash_kernel<TYPE, SIZE, MS, WN, STAGES, BLOCKS>,                    \
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SHAPE::BYTES);          \
        }                                                                                                    \
    } while (0)
        FLASH_FOR_SIZE(sizes[i % 6], few, FLASH_PREPARE)
    }
    return code;
}

#define FLASH_DEFINE(name, TYPE)                                                                             \
    cudaError_t sl_flash_launch_##name(const sl_cuda_context *context, const flash_args *args,               \
                                       const flash_launch_shape *shape, cudaStream_t stream) {               \
        return flash_launch<TYPE>(context, args, shape, stream);                                             \
    }                                                                                                        \
    int32_t sl_flash_bytes_##name(int32_t size, bool few) {                                                  \
        return flash_bytes<TYPE>(size, few);                                                                 \
    }                                                                                                        \
    cudaError_t sl_flash_prepare_##name(int32_t most) {                                                      \
        return flash_prepare<TYPE>(most);                                                                    \
    }

#endif
