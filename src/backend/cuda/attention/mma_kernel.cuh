/* Flash attention with mma m16n8k16: one kernel, instantiated per cache type and head size (mma_*.cu),
 * launched by mma.cu.
 *
 * A unit is one row and one query head; the units of a span that read one key head are numbered row after
 * row, and 16 of them are the rows of a matrix instruction, so that a group of query heads shares its keys. A
 * block of four warps takes a run of units and walks the pages they see. Two arrangements: `tiles` for many
 * rows, where every warp has units of its own and all columns of y (of heads over 256 pairs of eight warps
 * have); `few`, where the warps share 16 (or 32) units, each computes all scores and adds up its part of the
 * columns. With partials a block takes every n-th chunk of the keys instead of all of them, and merge_kernel
 * in mma.cu adds the chunks.
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
#ifndef SL_BACKEND_CUDA_ATTENTION_MMA_KERNEL_CUH
#define SL_BACKEND_CUDA_ATTENTION_MMA_KERNEL_CUH

#include "backend/cuda/attention/mma_products.cuh"

/* ---- stages of the kernel ---- */

/* Shared memory: addresses of q, of the tiles of keys and of values, of q8_0's blocks. */
typedef struct mma_layout {
    unsigned char *memory; /* from q on */
    uint32_t q, k, v, raw;
} mma_layout;

template <typename SHAPE, int SIZE, int MS>
static __device__ __forceinline__ void mma_keep_queries(uint32_t q_at, uint32_t kept[SIZE / 16][MS][4]) {
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
#pragma unroll
        for (int i = 0; i < MS; i++) {
            sl_load_matrices(q_at + (uint32_t)(i * 16 * SHAPE::STRIDE * 2 + step * 32), kept[step][i]);
        }
    }
}

/* Finishes the tile's keys, and starts copying what is multiplied after them; `there`: the other stage. */
template <typename SHAPE, int TYPE, int SIZE, int STAGES>
static __device__ __forceinline__ void mma_take_keys(const mma_walk &w, const mma_layout &at, int32_t tile,
                                                     int32_t next, uint32_t there) {
    constexpr bool RAW = MMA_RAW<TYPE>;
    sl_copy_wait<RAW || STAGES == 2 ? 1 : 0>();
    __syncthreads(); /* the keys are there, and nobody reads the tile before any more */
    if (RAW) {
        mma_decode<SHAPE, TYPE, SIZE>(w, tile, true, at.memory + (at.raw - at.q), at.memory + (at.k - at.q));
        __syncthreads();
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.raw);
    } else if (STAGES == 2) {
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.k + there);
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, false, at.v + there);
    } else {
        mma_fetch<SHAPE, TYPE, SIZE>(w, tile, false, at.v);
    }
}

/* The same for its values. */
template <typename SHAPE, int TYPE, int SIZE, int STAGES>
static __device__ __forceinline__ void mma_take_values(const mma_walk &w, const mma_layout &at, int32_t tile,
                                                       int32_t next) {
    constexpr bool RAW = MMA_RAW<TYPE>;
    sl_copy_wait<RAW ? 1 : STAGES == 2 ? 2 : 0>();
    __syncthreads(); /* the values are there, and nobody reads the keys any more */
    if (RAW) {
        mma_decode<SHAPE, TYPE, SIZE>(w, tile, false, at.memory + (at.raw - at.q) + SHAPE::RAW,
                                      at.memory + (at.v - at.q));
        __syncthreads();
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, false, at.raw + SHAPE::RAW);
    } else if (STAGES == 1) {
        mma_fetch<SHAPE, TYPE, SIZE>(w, next, true, at.k);
    }
}

/* p as the second product's operand. */
template <int TYPE, int MS>
static __device__ __forceinline__ void mma_pack_weights(const float s[MS][8][4], uint32_t p[MS][4][4]) {
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            p[i][n / 2][n % 2 * 2] = mma_pack<TYPE>(s[i][n][0], s[i][n][1]);
            p[i][n / 2][n % 2 * 2 + 1] = mma_pack<TYPE>(s[i][n][2], s[i][n][3]);
        }
    }
}

/* ---- the kernel ---- */

template <int TYPE, int SIZE, int MS, int WN, int STAGES, int BLOCKS>
static __global__ void __launch_bounds__(mma_shape<TYPE, SIZE, MS, WN, STAGES>::THREADS, BLOCKS)
    mma_kernel(sl_cuda_context context, mma_args args) {
    typedef mma_shape<TYPE, SIZE, MS, WN, STAGES> SHAPE;
    constexpr bool RAW = MMA_RAW<TYPE>;
    constexpr bool KEEP = SIZE / 16 * MS * 4 <= 32; /* q stays in registers */
    extern __shared__ uint4 mma_memory[];
    __shared__ mma_rare<SHAPE::UNITS, WN> rare;
    if (threadIdx.x < SL_WARP) {
        mma_find(context, (int32_t)blockIdx.y, args.ratio, SHAPE::UNITS, &rare.place);
    }
    __syncthreads();
    if (rare.place.units == 0) {
        return;
    }
    mma_walk w;
    mma_start_walk(context, args, rare.place, &w);
    constexpr bool SPLITS = WN > 1 && SHAPE::WARPS == 4; /* else all chunks are the block's */
    w.skip = SPLITS ? (args.parts - 1) * MMA_CHUNK_TILES : 0;
    int32_t tile = mma_first_tile(w, SPLITS ? (int32_t)blockIdx.z : 0, SPLITS ? args.parts : 1);
    if (tile > w.last_tile) {
        return;
    }

    mma_layout at;
    at.memory = (unsigned char *)mma_memory;
    at.q = sl_shared_address(at.memory);
    at.k = at.q + SHAPE::UNITS * SHAPE::STRIDE * 2;
    at.v = at.k + (SHAPE::ONE_PLANE ? 0 : SHAPE::PLANES * SHAPE::TILE_BYTES);
    at.raw = at.v + SHAPE::PLANES * SHAPE::TILE_BYTES;
    mma_fetch<SHAPE, TYPE, SIZE>(w, tile, true, RAW ? at.raw : at.k);
    if (RAW || STAGES == 2) {
        mma_fetch<SHAPE, TYPE, SIZE>(w, tile, false, RAW ? at.raw + SHAPE::RAW : at.v);
    }
    mma_load_queries<SHAPE, TYPE, SIZE>(args, w, at.memory);
    mma_start_units<SHAPE::UNITS, WN, SHAPE::THREADS>(args, w, &rare);

    const int32_t number = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t my_unit = number / WN * 16 * MS;
    mma_warp warp = mma_start_warp<MS>(args, w, rare.index, rare.totals[number % WN], my_unit);
    warp.column = number % WN * SHAPE::COLUMNS;
    mma_state<MS, SHAPE::COLUMNS> state;
    mma_start_chunk(&state);
    state.first = true;
    const uint32_t q_at = at.q + (uint32_t)(((my_unit + lane % 16) * SHAPE::STRIDE + lane / 16 * 8) * 2);
    const uint32_t k_lane = (uint32_t)(((lane % 8 + lane / 16 * 8) * SHAPE::STRIDE + lane / 8 % 2 * 8) * 2);
    const uint32_t v_lane = (uint32_t)((lane % 16 * SHAPE::STRIDE + lane / 16 * 8 + warp.column) * 2);
    uint32_t kept[KEEP ? SIZE / 16 : 1][MS][4];
    if constexpr (KEEP) {
        __syncthreads();
        mma_keep_queries<SHAPE, SIZE, MS>(q_at, kept);
    }

    uint32_t stage = 0;
    while (tile <= w.last_tile) {
        const int32_t next = mma_next_tile(w, tile), base = tile * MMA_KEYS;
        const uint32_t here = stage * SHAPE::TILE_BYTES, there = (stage ^ 1u) * SHAPE::TILE_BYTES;
        const bool works = !warp.idle && base <= warp.index_high && base + MMA_KEYS > warp.from_low;
        mma_take_keys<SHAPE, TYPE, SIZE, STAGES>(w, at, tile, next, there);
        uint32_t p[MS][4][4];
        if (works) {
            float s[MS][8][4], correction[MS][2];
            mma_scores<SHAPE, TYPE, SIZE, MS, KEEP>(q_at, at.k + here + k_lane, kept, s);
            mma_weigh<MS, SHAPE::COLUMNS>(&state, s, warp, base, correction);
            mma_rescale<MS, SHAPE::COLUMNS>(&state, correction);
            mma_pack_weights<TYPE, MS>(s, p);
        }
        mma_take_values<SHAPE, TYPE, SIZE, STAGES>(w, at, tile, next);
        if (works) {
            mma_values<SHAPE, TYPE, MS, SHAPE::COLUMNS>(&state, p, at.v + here + v_lane);
        }
        const bool last = next > w.last_tile;
        if (last || next / MMA_CHUNK_TILES != tile / MMA_CHUNK_TILES) {
            mma_end_chunk<SPLITS, mma_chunks>(args, w, warp, tile / MMA_CHUNK_TILES, last, &state);
        }
        stage = STAGES == 2 && !RAW ? stage ^ 1u : 0;
        tile = next;
    }
}

/* ---- launches ---- */

/* Calls `what`(SIZE, MS, WN, STAGES, BLOCKS) for the arrangement of a head size. 96 / 4 is no multiple of
 * 16; 512 columns are too many for a warp. */
#define MMA_FOR_SIZE(size, few, what)                                                                        \
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
    } else if ((size) <= 256) {                                                                              \
        what(256, 1, 1, 1, 2);                                                                               \
    } else {                                                                                                 \
        what(512, 1, 2, 1, 1);                                                                               \
    }

/* Blocks for the chunks of each of `runs` runs: several for each multiprocessor, but not one for each chunk
 * that the longest context may have, when most of them would find nothing to do. */
static inline int32_t mma_parts(const mma_args *args, int32_t runs) {
    enum { BLOCKS = 1024 };
    const int32_t parts = BLOCKS / runs < args->splits ? BLOCKS / runs : args->splits;
    return parts > 1 ? parts : 1;
}

template <int TYPE>
static cudaError_t mma_launch(const sl_cuda_context *context, const mma_args *args,
                              const mma_launch_shape *shape, cudaStream_t stream) {
#define MMA_LAUNCH(SIZE, MS, WN, STAGES, BLOCKS)                                                             \
    do {                                                                                                     \
        typedef mma_shape<TYPE, SIZE, MS, WN, STAGES> SHAPE;                                                 \
        const int32_t runs = mma_runs(shape->rows, shape->spans, args->ratio, SHAPE::UNITS);                 \
        mma_args now = *args;                                                                                \
        now.parts = mma_parts(args, shape->kv_heads * runs);                                                 \
        const dim3 grid((unsigned)shape->kv_heads, (unsigned)runs, (unsigned)now.parts);                     \
        mma_kernel<TYPE, SIZE, MS, WN, STAGES, BLOCKS>                                                       \
            <<<grid, SHAPE::THREADS, SHAPE::BYTES, stream>>>(*context, now);                                 \
    } while (0)
    MMA_FOR_SIZE(shape->size, shape->few, MMA_LAUNCH)
    return cudaGetLastError();
}

/* Bytes of shared memory that the kernel needs. */
template <int TYPE> static int32_t mma_bytes(int32_t size, bool few) {
#define MMA_BYTES(SIZE, MS, WN, STAGES, BLOCKS) return mma_shape<TYPE, SIZE, MS, WN, STAGES>::BYTES
    MMA_FOR_SIZE(size, few, MMA_BYTES)
}

/* Lets the kernels of all sizes use the shared memory they need, if the device has it. */
template <int TYPE> static cudaError_t mma_prepare(int32_t most) {
    static const int32_t sizes[] = {64, 96, 128, 192, 256, 512};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 12 && code == cudaSuccess; i++) {
        const bool few = i >= 6;
#define MMA_PREPARE(SIZE, MS, WN, STAGES, BLOCKS)                                                            \
    do {                                                                                                     \
        typedef mma_shape<TYPE, SIZE, MS, WN, STAGES> SHAPE;                                                 \
        if (SHAPE::BYTES <= most) {                                                                          \
            code = cudaFuncSetAttribute(mma_kernel<TYPE, SIZE, MS, WN, STAGES, BLOCKS>,                      \
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SHAPE::BYTES);          \
        }                                                                                                    \
    } while (0)
        MMA_FOR_SIZE(sizes[i % 6], few, MMA_PREPARE)
    }
    return code;
}

#endif
