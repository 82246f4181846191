/* Attention where values are the keys' first columns and many query heads share them (latent attention),
 * with mma m16n8k16: one kernel, instantiated per cache type and sizes (inst/latent_*.cu), launched by
 * latent.cu. Units, tiles and the end of a chunk are those of mma_kernel.cuh.
 *
 * A tile of keys comes to shared memory once, for both products. Four warps share units, 16 or 32: of a tile
 * each computes the scores of 16 keys, they exchange the largest ones and then p, and each adds up its
 * quarter of the columns. A block of 16 units has four warps, one of 64 has two times four, which wait for
 * each other at new tiles alone. With partials a block takes every n-th chunk of the keys instead of all of
 * them, and mma_merge_kernel adds the chunks.
 *
 * Class "latent64", after the type multiplied in: as "mma64/split512" but for two things. Chunks are those of
 * latent.h. And a lane adds the p of its columns of 16 keys alone; at a chunk's end these sums are added over
 * the four lanes of a row, then the tile's four times 16 keys in order. */
#ifndef SL_BACKEND_CUDA_ATTENTION_LATENT_KERNEL_CUH
#define SL_BACKEND_CUDA_ATTENTION_LATENT_KERNEL_CUH

#include "backend/cuda/attention/latent/latent.h"
#include "backend/cuda/attention/mma_products.cuh"
#include "backend/cuda/ptx/barrier.cuh"

enum { LATENT_WARPS = 4, LATENT_KEYS = MMA_KEYS / LATENT_WARPS }; /* that share units; keys of one */

struct latent_chunks {
    static constexpr bool LATE = true; /* rows may see no key at all */
    static __device__ __forceinline__ int32_t of(int32_t tile) {
        return growing_chunk_of(tile);
    }
    static __device__ __forceinline__ int32_t begin(int32_t chunk) {
        return growing_chunk_begin(chunk);
    }
};

/* What is exchanged or seldom needed, in shared memory. */
template <int UNITS> struct latent_rare {
    mma_place place;
    int32_t index[UNITS];    /* the last key that the unit sees */
    float2 totals[2][UNITS]; /* m (times log2 e) and l of the chunks before: of even ones, of odd */
    float exchanged[LATENT_WARPS][UNITS]; /* largest scores, at a chunk's end l */
};

/* SIZE: columns of keys; VALUES: the first ones of these, of values. What a head lacks is zeros. MS: groups
 * of 16 units per warp. STAGES: tiles in shared memory. Rows begin at multiples of 128 bytes; of eight rows,
 * the pieces of 16 bytes that stand below each other fall on different banks. */
template <int TYPE, int SIZE, int VALUES, int MS, int STAGES> struct latent_shape {
    static constexpr int GROUPS = MS, WARPS = LATENT_WARPS * GROUPS, THREADS = 32 * WARPS;
    static constexpr int UNITS = 16 * MS * GROUPS;
    static constexpr int COLUMNS = VALUES / LATENT_WARPS;
    static constexpr int ROW_BYTES = 2 * SIZE, TILE_BYTES = MMA_KEYS * ROW_BYTES;
    static constexpr int P_BYTES = 2 * MMA_KEYS; /* of a unit */
    static constexpr int PLANES = MMA_RAW<TYPE> ? 1 : STAGES;
    static constexpr int ROW = TYPE == SL_QTYPE_Q8_0 ? SIZE / 32 * SL_Q8_0_BYTES : SIZE;
    static constexpr int RAW = MMA_RAW<TYPE> ? ROW * MMA_KEYS : 0;
    static constexpr int BYTES = UNITS * (ROW_BYTES + P_BYTES) + PLANES * TILE_BYTES + RAW;
    static constexpr int ALL_BYTES = BYTES + (int)sizeof(latent_rare<UNITS>);
    static_assert(COLUMNS % 16 == 0 && SIZE % 64 == 0 && VALUES <= SIZE, "pieces that are turned by eight");

    static __device__ __forceinline__ uint32_t offset(int32_t row, int32_t at) {
        return (uint32_t)(row * ROW_BYTES + (at ^ (row & 7) << 4));
    }
    static __device__ __forceinline__ uint32_t p_offset(int32_t unit, int32_t at) {
        return (uint32_t)(unit * P_BYTES + (at ^ (unit & 7) << 4));
    }
};

/* A warp's own part of it all. */
typedef struct latent_warp {
    mma_warp mma;
    int32_t number;   /* among those that share units */
    int32_t barrier;  /* theirs */
    float *exchanged; /* of its units, the first warp's */
    uint32_t q, k, v; /* addresses of a lane's rows in shared memory, of pieces that are not turned */
    uint32_t p;       /* address of its units' first row */
} latent_warp;

/* Addresses of q, of the tiles, of q8_0's blocks and of p. */
typedef struct latent_places {
    unsigned char *memory; /* from q on */
    uint32_t q, k, raw, p;
} latent_places;

static __device__ __forceinline__ void latent_meet(const latent_warp &warp) {
    sl_meet(warp.barrier, 32 * LATENT_WARPS);
}

/* The block's tile after `tile`; behind the last when there is none. */
static __device__ __forceinline__ int32_t latent_next_tile(const mma_walk &w, int32_t tile) {
    do {
        tile++;
        if (w.skip > 0 && tile % (1 << GROWING_CHUNK_SHIFT) == 0) {
            const int32_t chunk = growing_chunk_of(tile);
            tile = growing_chunk_begin(chunk) == tile ? growing_chunk_begin(chunk + w.skip) : tile;
        }
    } while (tile <= w.last_tile && w.table[tile] < 0);
    return tile;
}

static __device__ __forceinline__ int32_t latent_first_tile(const mma_walk &w, int32_t part, int32_t parts) {
    const int32_t tile = mma_part_begin<latent_chunks>(w, part, parts);
    return tile > w.last_tile || w.table[tile] >= 0 ? tile : latent_next_tile(w, tile);
}

template <int UNITS, int THREADS>
static __device__ __forceinline__ void latent_start_units(const mma_args &args, const mma_walk &w,
                                                          latent_rare<UNITS> *rare) {
    for (int32_t i = (int32_t)threadIdx.x; i < UNITS; i += THREADS) {
        const int32_t unit = w.first_unit + i < w.last_unit ? w.first_unit + i : w.last_unit;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
        rare->index[i] = w.length + unit / args.ratio;
        rare->totals[0][i] = rare->totals[1][i] =
            args.sinks ? make_float2(args.sinks[head] * MMA_LOG2_E, 1.0f) : make_float2(-INFINITY, 0.0f);
    }
}

template <typename SHAPE, int MS>
static __device__ __forceinline__ latent_warp latent_start_warp(const mma_args &args, const mma_walk &w,
                                                                const latent_places &at,
                                                                latent_rare<SHAPE::UNITS> *rare) {
    const int32_t number = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t group = number / LATENT_WARPS, unit = group * 16 * MS;
    latent_warp warp;
    warp.number = number % LATENT_WARPS;
    warp.barrier = 1 + group;
    warp.exchanged = rare->exchanged[0] + unit;
    warp.mma = mma_start_warp<MS>(args, w, rare->index, rare->totals[0], unit);
    warp.mma.new_totals = rare->totals[1] + unit;
    warp.mma.from_low = max(warp.mma.from_low, args.attention.first);
    warp.mma.from_high = max(warp.mma.from_high, args.attention.first);
    warp.mma.keeps = warp.number == 0;
    warp.mma.column = warp.number * SHAPE::COLUMNS;
    warp.q = at.q + (uint32_t)((unit + lane % 16) * SHAPE::ROW_BYTES);
    warp.k = (uint32_t)((warp.number * LATENT_KEYS + lane % 8 + lane / 16 * 8) * SHAPE::ROW_BYTES);
    warp.v = (uint32_t)(lane % 16 * SHAPE::ROW_BYTES);
    warp.p = at.p + (uint32_t)(unit * SHAPE::P_BYTES);
    return warp;
}

/* scores = q . k for the warp's keys of the tile at `tile`. */
template <typename SHAPE, int TYPE, int SIZE, int MS>
static __device__ __forceinline__ void latent_scores(const latent_warp &warp, uint32_t tile,
                                                     float s[MS][2][4]) {
    const uint32_t lane = threadIdx.x % SL_WARP, row = lane % 8;
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0;
        }
    }
    const uint32_t k_at = tile + warp.k, k_turned = (lane / 8 % 2 ^ row) << 4;
    const uint32_t q_turned = (lane / 16 ^ row) << 4;
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
        const uint32_t line = (uint32_t)(step / 4 * 128), piece = (uint32_t)(step % 4 * 32);
        uint32_t a[MS][4], b[4];
        sl_load_matrices(k_at + line + (k_turned ^ piece), b);
#pragma unroll
        for (int i = 0; i < MS; i++) {
            sl_load_matrices(warp.q + (uint32_t)(i * 16 * SHAPE::ROW_BYTES) + line + (q_turned ^ piece),
                             a[i]);
        }
#pragma unroll
        for (int i = 0; i < MS; i++) {
            mma_mma<TYPE>(s[i][0], a[i], b[0], b[1]);
            mma_mma<TYPE>(s[i][1], a[i], b[2], b[3]);
        }
    }
}

/* Softcap, and what a unit does not see; keys from `base` on are the warp's, none sees those before `least`.
 */
template <int MS>
static __device__ __forceinline__ void latent_mask(const mma_warp &warp, int32_t least, int32_t tile,
                                                   int32_t base, float s[MS][2][4]) {
    const bool masked = tile + MMA_KEYS - 1 > warp.index_low || tile < warp.from_high;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, column = base + 2 * (lane % 4);
    if (warp.softcap > 0) {
        const float inverse = warp.scale / warp.softcap;
#pragma unroll
        for (int i = 0; i < MS; i++) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[i][n][e] = warp.softcap * mma_tanh(s[i][n][e] * inverse);
                }
            }
        }
    }
    if (masked) {
#pragma unroll
        for (int i = 0; i < MS; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int32_t to = warp.index[16 * i + 8 * h + lane / 4];
                const int32_t seen_from = max(mma_first_seen(warp.window, to), least);
                const int32_t first = seen_from - column, last = to - column;
#pragma unroll
                for (int n = 0; n < 2; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const bool seen = 8 * n + e >= first && 8 * n + e <= last;
                        s[i][n][2 * h + e] = seen ? s[i][n][2 * h + e] : -INFINITY;
                    }
                }
            }
        }
    }
}

/* Scores to p, which goes to shared memory, with the running maximum and sum; what acc is to be multiplied
 * by. The warps that share units meet twice. */
template <typename SHAPE, int TYPE, int MS>
static __device__ __forceinline__ void latent_weigh(mma_state<MS, SHAPE::COLUMNS> *state,
                                                    const latent_warp &warp, float s[MS][2][4],
                                                    float correction[MS][2]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const float c = warp.mma.c;
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest =
                fmaxf(fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]), fmaxf(s[i][1][2 * h], s[i][1][2 * h + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 2));
            if (lane % 4 == 0) {
                warp.exchanged[warp.number * SHAPE::UNITS + 16 * i + 8 * h + lane / 4] = largest;
            }
        }
    }
    latent_meet(warp);
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t unit = 16 * i + 8 * h + lane / 4;
            const float before = state->m[i][h];
            float largest = before;
#pragma unroll
            for (int n = 0; n < LATENT_WARPS; n++) {
                largest = fmaxf(largest, warp.exchanged[n * SHAPE::UNITS + unit]);
            }
            const float bias = largest == -INFINITY ? 0.0f : -largest * c;
            correction[i][h] = largest == before ? 1.0f : mma_exp2(fmaf(before, c, bias));
            float sum = state->l[i][h] * correction[i][h];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float low = mma_exp2(fmaf(s[i][n][2 * h], c, bias));
                const float high = mma_exp2(fmaf(s[i][n][2 * h + 1], c, bias));
                sum += low + high;
                const int32_t at = 2 * (warp.number * LATENT_KEYS + 8 * n + 2 * (lane % 4));
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(warp.p + SHAPE::p_offset(unit, at)),
                             "r"(mma_pack<TYPE>(low, high))
                             : "memory");
            }
            state->l[i][h] = sum;
            state->m[i][h] = largest;
        }
    }
    latent_meet(warp);
}

/* acc += p . v, of the warp's columns. */
template <typename SHAPE, int TYPE, int MS>
static __device__ __forceinline__ void latent_values(mma_state<MS, SHAPE::COLUMNS> *state,
                                                     const latent_warp &warp, uint32_t tile) {
    const uint32_t lane = threadIdx.x % SL_WARP, row = lane % 8, turned = (lane / 16 ^ row) << 4;
    const uint32_t column = 2 * (uint32_t)warp.mma.column, v_at = tile + warp.v;
    const uint32_t p_at = warp.p + lane % 16 * SHAPE::P_BYTES;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t p[MS][4];
#pragma unroll
        for (int i = 0; i < MS; i++) {
            sl_load_matrices(p_at + (uint32_t)(i * 16 * SHAPE::P_BYTES) + (turned ^ (uint32_t)(32 * step)),
                             p[i]);
        }
#pragma unroll
        for (int n = 0; n < SHAPE::COLUMNS / 16; n++) {
            /* Where a warp's columns are whole lines, only these 128 bytes are turned. */
            const uint32_t piece = SHAPE::COLUMNS % 64 == 0
                                       ? column + (uint32_t)(n / 4 * 128) + (turned ^ (uint32_t)(n % 4 * 32))
                                       : turned ^ (column + (uint32_t)(32 * n));
            uint32_t b[4];
            sl_load_matrices_transposed(v_at + (uint32_t)(step * 16 * SHAPE::ROW_BYTES) + piece, b);
#pragma unroll
            for (int i = 0; i < MS; i++) {
                mma_mma<TYPE>(state->acc[i][2 * n], p[i], b[0], b[1]);
                mma_mma<TYPE>(state->acc[i][2 * n + 1], p[i], b[2], b[3]);
            }
        }
    }
}

/* All keys' l to the first lane of each unit, whose sum over the lanes it is then. */
template <typename SHAPE, int MS>
static __device__ __forceinline__ void latent_add_sums(mma_state<MS, SHAPE::COLUMNS> *state,
                                                       const latent_warp &warp) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float l = mma_sum_lanes(state->l[i][h]);
            if (lane % 4 == 0) {
                warp.exchanged[warp.number * SHAPE::UNITS + 16 * i + 8 * h + lane / 4] = l;
            }
        }
    }
    latent_meet(warp);
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *of = warp.exchanged + 16 * i + 8 * h + lane / 4;
            float l = of[0];
#pragma unroll
            for (int n = 1; n < LATENT_WARPS; n++) {
                l += of[n * SHAPE::UNITS];
            }
            state->l[i][h] = lane % 4 == 0 ? l : 0.0f;
        }
    }
}

/* Waits for the tile, and starts copying the next one where there is room. Then nobody reads the tile before
 * any more. */
template <typename SHAPE, int TYPE, int SIZE, int STAGES>
static __device__ __forceinline__ void latent_take_tile(const mma_walk &w, const latent_places &at,
                                                        int32_t tile, int32_t next, uint32_t there) {
    sl_copy_wait<0>();
    __syncthreads();
    if (MMA_RAW<TYPE>) {
        mma_decode<SHAPE, TYPE, SIZE>(w, tile, true, at.memory + (at.raw - at.q), at.memory + (at.k - at.q));
        __syncthreads();
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.raw);
    } else if (STAGES == 2) {
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.k + there);
    }
}

template <int TYPE, int SIZE, int VALUES, int MS, int STAGES>
static __global__ void __launch_bounds__(latent_shape<TYPE, SIZE, VALUES, MS, STAGES>::THREADS, 1)
    latent_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ mma_args args) {
    typedef latent_shape<TYPE, SIZE, VALUES, MS, STAGES> SHAPE;
    constexpr bool RAW = MMA_RAW<TYPE>;
    extern __shared__ uint4 latent_memory[];
    __shared__ latent_rare<SHAPE::UNITS> rare;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (threadIdx.x < SL_WARP) {
        mma_find(context, (int32_t)blockIdx.y, args.ratio, SHAPE::UNITS, &rare.place);
    }
    __syncthreads();
    if (rare.place.units == 0) {
        return;
    }
    mma_walk w;
    mma_start_walk(context, args, rare.place, &w);
    w.skip = args.parts - 1;
    int32_t tile = latent_first_tile(w, (int32_t)blockIdx.z, args.parts);
    if (tile > w.last_tile) {
        return;
    }

    latent_places at;
    at.memory = (unsigned char *)latent_memory;
    at.q = sl_shared_address(at.memory);
    at.k = at.q + SHAPE::UNITS * SHAPE::ROW_BYTES;
    at.raw = at.k + SHAPE::PLANES * SHAPE::TILE_BYTES;
    at.p = at.raw + SHAPE::RAW;
    mma_fetch<SHAPE, TYPE, SIZE>(w, tile, true, RAW ? at.raw : at.k);
    mma_load_queries<SHAPE, TYPE, SIZE>(args, w, at.memory);
    latent_start_units<SHAPE::UNITS, SHAPE::THREADS>(args, w, &rare);
    latent_warp warp = latent_start_warp<SHAPE, MS>(args, w, at, &rare);
    mma_state<MS, SHAPE::COLUMNS> state;
    mma_start_chunk(&state);
    state.first = true;

    uint32_t stage = 0;
    while (tile <= w.last_tile) {
        const int32_t next = latent_next_tile(w, tile), base = tile * MMA_KEYS;
        const uint32_t here = stage * SHAPE::TILE_BYTES, there = (stage ^ 1u) * SHAPE::TILE_BYTES;
        const mma_warp &units = warp.mma;
        latent_take_tile<SHAPE, TYPE, SIZE, STAGES>(w, at, tile, next, there);
        if (!units.idle && base <= units.index_high && base + MMA_KEYS > units.from_low) {
            float s[MS][2][4], correction[MS][2];
            latent_scores<SHAPE, TYPE, SIZE, MS>(warp, at.k + here, s);
            latent_mask<MS>(units, args.attention.first, base, base + warp.number * LATENT_KEYS, s);
            latent_weigh<SHAPE, TYPE, MS>(&state, warp, s, correction);
            mma_rescale<MS, SHAPE::COLUMNS>(&state, correction);
            latent_values<SHAPE, TYPE, MS>(&state, warp, at.k + here);
        }
        if (!RAW && STAGES == 1) {
            __syncthreads();
            mma_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.k);
        }
        const bool last = next > w.last_tile;
        const int32_t chunk = growing_chunk_of(tile);
        if (last || growing_chunk_of(next) != chunk) {
            latent_add_sums<SHAPE, MS>(&state, warp);
            mma_end_chunk<true, latent_chunks>(args, w, warp.mma, chunk, last, &state);
            float2 *before = warp.mma.totals;
            warp.mma.totals = warp.mma.new_totals;
            warp.mma.new_totals = before;
        }
        stage = STAGES == 2 && !RAW ? stage ^ 1u : 0;
        tile = next;
    }
}

/* ---- launches ---- */

/* Calls `what`(SIZE, VALUES) for the smallest instance that has room for the sizes, or `none`. */
#define LATENT_FOR_SIZES(key_size, value_size, what, none)                                                   \
    if ((key_size) <= 128 && (value_size) <= 64) {                                                           \
        what(128, 64);                                                                                       \
    } else if ((key_size) <= 320 && (value_size) <= 256) {                                                   \
        what(320, 256);                                                                                      \
    } else if ((key_size) <= 576 && (value_size) <= 512) {                                                   \
        what(576, 512);                                                                                      \
    } else {                                                                                                 \
        none;                                                                                                \
    }

/* Blocks for the chunks of each of `runs` runs of units: a few for each multiprocessor. */
static inline int32_t latent_parts(const sl_cuda_context *context, const mma_args *args, int32_t runs) {
    const int32_t parts = 2 * context->processors / runs;
    return parts > args->splits ? args->splits : parts > 1 ? parts : 1;
}

template <int TYPE, int SIZE, int VALUES, int MS, int STAGES>
static cudaError_t latent_launch_as(const sl_cuda_context *context, const mma_args *args,
                                    const latent_launch_shape *shape, cudaStream_t stream) {
    typedef latent_shape<TYPE, SIZE, VALUES, MS, STAGES> SHAPE;
    const int32_t runs = mma_runs(shape->rows, shape->spans, args->ratio, SHAPE::UNITS);
    mma_args now = *args;
    now.parts = latent_parts(context, args, shape->kv_heads * runs);
    const sl_launch_shape launch = {dim3((unsigned)shape->kv_heads, (unsigned)runs, (unsigned)now.parts),
                                    dim3(SHAPE::THREADS), SHAPE::BYTES};
    return sl_launch(context, stream, launch, latent_kernel<TYPE, SIZE, VALUES, MS, STAGES>, *context, now);
}

/* Where a device lacks the room for two tiles of the largest sizes, the narrow kernel has one. */
template <int TYPE, int SIZE> static constexpr bool LATENT_HAS_ONE_STAGE = SIZE > 320 && !MMA_RAW<TYPE>;

template <int TYPE, int SIZE, int VALUES>
static cudaError_t latent_launch_sized(const sl_cuda_context *context, const mma_args *args,
                                       const latent_launch_shape *shape, cudaStream_t stream) {
    const int32_t most = context->shared_bytes;
    if (shape->wide && latent_shape<TYPE, SIZE, VALUES, 2, 2>::ALL_BYTES <= most) {
        return latent_launch_as<TYPE, SIZE, VALUES, 2, 2>(context, args, shape, stream);
    }
    if constexpr (LATENT_HAS_ONE_STAGE<TYPE, SIZE>) {
        if (latent_shape<TYPE, SIZE, VALUES, 1, 2>::ALL_BYTES > most) {
            return latent_launch_as<TYPE, SIZE, VALUES, 1, 1>(context, args, shape, stream);
        }
    }
    return latent_launch_as<TYPE, SIZE, VALUES, 1, 2>(context, args, shape, stream);
}

template <int TYPE>
static cudaError_t latent_launch(const sl_cuda_context *context, const mma_args *args,
                                 const latent_launch_shape *shape, cudaStream_t stream) {
#define LATENT_LAUNCH(SIZE, VALUES)                                                                          \
    return latent_launch_sized<TYPE, SIZE, VALUES>(context, args, shape, stream)
    LATENT_FOR_SIZES(shape->key_size, shape->value_size, LATENT_LAUNCH, return cudaErrorInvalidValue)
}

template <int TYPE> static int32_t latent_bytes(int32_t key_size, int32_t value_size) {
#define LATENT_BYTES(SIZE, VALUES)                                                                           \
    return latent_shape < TYPE, SIZE, VALUES, 1, LATENT_HAS_ONE_STAGE<TYPE, SIZE> ? 1 : 2 > ::ALL_BYTES
    LATENT_FOR_SIZES(key_size, value_size, LATENT_BYTES, return 0)
}

template <int TYPE, int SIZE, int VALUES, int MS, int STAGES> static cudaError_t latent_allow(int32_t most) {
    typedef latent_shape<TYPE, SIZE, VALUES, MS, STAGES> SHAPE;
    return SHAPE::ALL_BYTES <= most
               ? sl_allow_shared(latent_kernel<TYPE, SIZE, VALUES, MS, STAGES>, SHAPE::BYTES)
               : cudaSuccess;
}

/* Lets the kernels of all sizes use the shared memory they need, if the device has it. */
template <int TYPE, int SIZE, int VALUES> static cudaError_t latent_allow_sized(int32_t most) {
    cudaError_t code = latent_allow<TYPE, SIZE, VALUES, 2, 2>(most);
    code = code ? code : latent_allow<TYPE, SIZE, VALUES, 1, 2>(most);
    if constexpr (LATENT_HAS_ONE_STAGE<TYPE, SIZE>) {
        code = code ? code : latent_allow<TYPE, SIZE, VALUES, 1, 1>(most);
    }
    return code;
}

template <int TYPE> static cudaError_t latent_prepare(int32_t most) {
    static const struct { int32_t key_size, value_size; } sizes[] = {{128, 64}, {320, 256}, {576, 512}};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 3 && code == cudaSuccess; i++) {
#define LATENT_ALLOW(SIZE, VALUES) code = latent_allow_sized<TYPE, SIZE, VALUES>(most)
        LATENT_FOR_SIZES(sizes[i].key_size, sizes[i].value_size, LATENT_ALLOW, code = cudaErrorInvalidValue)
    }
    return code;
}

#endif
