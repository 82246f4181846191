/* What decode.cuh does, with the bits of class "mma64/split512" (mma_kernel.cuh): for few rows of
 * deterministic plans.
 *
 * A part is a chunk of eight tiles, keys first, then values. A warp scores 16 keys of every tile as it does
 * in class "decode16", but step after step of 16 columns in one sum; the tiles' largest scores meet in shared
 * memory, and with them every warp makes p of its keys. Then a warp has a part of y's columns and adds p v of
 * all keys, 16 after the other, tile after tile: what has an order there is not spread over warps. p's sum l
 * likewise: a lane adds what lane j of mma_kernel.cuh adds, of keys 2 j and 2 j + 1 of every eight. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DECODE_CHUNKS_CUH
#define SL_BACKEND_CUDA_ATTENTION_DECODE_CHUNKS_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/attention/decode.cuh"

#if __CUDA_ARCH__ >= 900

/* A thread's place in what warps exchange: scores of keys lane / 4 and lane / 4 + 8 of 16 `keys` (0 to 3) of
 * a tile, and units 2 j, 2 j + 1 with j = lane % 4; then p as the second product reads it, and sums of pairs
 * of p: with lane / 4 even of unit 2 j, else of 2 j + 1. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t chunk_at(int32_t tile, int32_t keys, int32_t n, int32_t lane) {
    return ((tile * DECODE_WARPS + keys) * (SHAPE::UNITS / 8) + n) * SL_WARP + lane;
}

template <typename SHAPE, int TYPE, typename SHARED, typename ADD>
static __device__ __forceinline__ void
chunk_scores(const decode_view<SHAPE::UNITS> &view,
             const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2], decode_ring *ring, SHARED *shared,
             float4 *exchange, ADD add) {
    constexpr int N = SHAPE::UNITS / 8;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    for (int32_t tile = view.tile; tile < view.end; tile++) {
        const int32_t base = tile * MMA_KEYS + 16 * warp;
        float s[N][4];
        unsigned char *slot = decode_take<SHAPE>(*ring);
        add(base, false, slot);
        const decode_slice keys = {slot, 16 * warp, (int32_t)view.cache->key_bytes, view.cache->key_size};
        decode_scores<SHAPE, TYPE>(keys, q, s);
        decode_leave<SHAPE>(ring);
        decode_see<SHAPE::UNITS>(s, view, base + lane / 4,
                                 base + 15 > view.lowest_last || base < view.highest_first);
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float largest = fmaxf(s[n][u], s[n][2 + u]);
                largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 4));
                largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 8));
                largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 16));
                if (lane / 4 == 0) {
                    shared->largest[tile - view.tile][warp][8 * n + 2 * lane + u] = largest;
                }
            }
            exchange[chunk_at<SHAPE>(tile - view.tile, warp, n, lane)] =
                make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
        }
    }
}

/* Scores to p, and what y is multiplied by before each tile. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void chunk_weigh(const decode_view<SHAPE::UNITS> &view, SHARED *shared,
                                                   float4 *exchange) {
    constexpr int N = SHAPE::UNITS / 8;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int32_t unit = 8 * n + 2 * (lane % 4);
        float m[2] = {-INFINITY, -INFINITY};
        for (int32_t tile = 0; tile < view.end - view.tile; tile++) {
            float4 *own = exchange + chunk_at<SHAPE>(tile, warp, n, lane);
            const float4 s = *own;
            float first[2] = {s.x, s.y}, second[2] = {s.z, s.w}, sums[2][2], correction[2];
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float largest = m[u];
#pragma unroll
                for (int w = 0; w < DECODE_WARPS; w++) {
                    largest = fmaxf(largest, shared->largest[tile][w][unit + u]);
                }
                const float bias = largest == -INFINITY ? 0.0f : -largest * view.c;
                correction[u] = largest == m[u] ? 1.0f : mma_exp2(fmaf(m[u], view.c, bias));
                first[u] = mma_exp2(fmaf(first[u], view.c, bias));
                second[u] = mma_exp2(fmaf(second[u], view.c, bias));
                sums[u][0] = first[u] + __shfl_xor_sync(SL_FULL_WARP, first[u], 4);
                sums[u][1] = second[u] + __shfl_xor_sync(SL_FULL_WARP, second[u], 4);
                m[u] = largest;
            }
            const bool even = lane / 4 % 2 == 0;
            *own = make_float4(__uint_as_float(sl_transposed(mma_pack<TYPE>(first[0], first[1]))),
                               __uint_as_float(sl_transposed(mma_pack<TYPE>(second[0], second[1]))),
                               even ? sums[0][0] : sums[1][0], even ? sums[0][1] : sums[1][1]);
            if (warp == 0 && lane / 4 == 0) {
                *(float2 *)&shared->correction[tile][unit] = make_float2(correction[0], correction[1]);
            }
        }
        if (warp == 0 && lane / 4 == 0) {
            shared->m[0][unit] = m[0] == -INFINITY ? -INFINITY : m[0] * view.c;
            shared->m[0][unit + 1] = m[1] == -INFINITY ? -INFINITY : m[1] * view.c;
        }
    }
}

/* l of a tile's keys, in the lane for unit 8 n + lane / 4 and pair j = lane % 4 of every eight keys. */
template <typename SHAPE, typename SHARED>
static __device__ __forceinline__ float chunk_add_sums(const SHARED &shared, const float4 *exchange,
                                                       int32_t tile, int32_t n, float l) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, unit = lane / 4;
    const int32_t from = (2 * (lane % 4) + unit % 2) * 4 + unit / 2;
    l *= shared.correction[tile][8 * n + unit];
#pragma unroll
    for (int keys = 0; keys < DECODE_WARPS; keys++) {
        const float4 of = exchange[chunk_at<SHAPE>(tile, keys, n, from)];
        l += of.z;
        l += of.w;
    }
    return l;
}

/* A warp's columns of y, left in `meeting`, and l. */
template <typename SHAPE, int TYPE, typename SHARED, typename ADD>
static __device__ __forceinline__ void chunk_values(const decode_view<SHAPE::UNITS> &view, decode_ring *ring,
                                                    SHARED *shared, float *meeting, ADD add) {
    constexpr int N = SHAPE::UNITS / 8, BLOCKS = SHAPE::COLUMNS / 16 / DECODE_WARPS;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const float4 *exchange = (const float4 *)meeting;
    float y[N][BLOCKS][4], l = 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 4 * BLOCKS; e++) {
            y[n][e / 4][e % 4] = 0;
        }
    }
    for (int32_t tile = view.tile; tile < view.end; tile++) {
        const int32_t at = tile - view.tile;
        if (warp < N) {
            l = chunk_add_sums<SHAPE>(*shared, exchange, at, warp, l);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 both = *(const float2 *)&shared->correction[at][8 * n + 2 * (lane % 4)];
#pragma unroll
            for (int e = 0; e < 4 * BLOCKS; e++) {
                y[n][e / 4][e % 4] *= e % 2 == 0 ? both.x : both.y;
            }
        }
        unsigned char *slot = decode_take<SHAPE>(*ring);
        if (add(tile * MMA_KEYS + 16 * warp, true, slot)) {
            sl_meet(1, DECODE_MULTIPLIERS); /* other warps read it too */
        }
#pragma unroll
        for (int keys = 0; keys < DECODE_WARPS; keys++) {
            const int32_t base = tile * MMA_KEYS + 16 * keys;
            uint32_t p[N][2], seen[2];
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float2 two =
                    *(const float2 *)(const void *)&exchange[chunk_at<SHAPE>(at, keys, n, lane)];
                p[n][0] = __float_as_uint(two.x);
                p[n][1] = __float_as_uint(two.y);
            }
            decode_seen(view, base, base + 15 > view.lowest_last || base < view.highest_first, seen);
            const decode_slice values = {slot, 16 * keys, (int32_t)view.cache->value_bytes,
                                         view.cache->value_size};
            decode_values<SHAPE, TYPE, BLOCKS>(values, seen, p, warp * BLOCKS, y);
        }
        decode_leave<SHAPE>(ring);
    }
    l += __shfl_xor_sync(SL_FULL_WARP, l, 1);
    l += __shfl_xor_sync(SL_FULL_WARP, l, 2);
    if (warp < N && lane % 4 == 0) {
        shared->l[0][8 * warp + lane / 4] = l;
    }
    sl_meet(1, DECODE_MULTIPLIERS); /* nobody reads p any more */
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 4 * BLOCKS; e++) {
            meeting[(8 * n + 2 * (lane % 4) + e % 2) * SHAPE::STRIDE +
                    decode_value_column<SHAPE>(warp * BLOCKS + e / 4, e % 4 / 2)] = y[n][e / 4][e % 4];
        }
    }
}

/* By the warps that multiply: a chunk, left in `meeting` as one strand. */
template <typename SHAPE, int TYPE, typename SHARED, typename ADD>
static __device__ __forceinline__ void
decode_chunk(const decode_view<SHAPE::UNITS> &view,
             const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2], decode_ring *ring, SHARED *shared,
             float *meeting, ADD add) {
    sl_meet(1, DECODE_MULTIPLIERS); /* nobody reads the part before any more */
    chunk_scores<SHAPE, TYPE>(view, q, ring, shared, (float4 *)meeting, add);
    sl_meet(1, DECODE_MULTIPLIERS);
    chunk_weigh<SHAPE, TYPE>(view, shared, (float4 *)meeting);
    sl_meet(1, DECODE_MULTIPLIERS);
    chunk_values<SHAPE, TYPE>(view, ring, shared, meeting, add);
    sl_meet(1, DECODE_MULTIPLIERS);
}

#endif

#endif
