/* What the kernels with wgmma do between their products: masks, softmax, and where a run's result goes. */
#ifndef SL_BACKEND_CUDA_ATTENTION_WGMMA_SOFTMAX_CUH
#define SL_BACKEND_CUDA_ATTENTION_WGMMA_SOFTMAX_CUH

#include "backend/cuda/attention/wgmma_work.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

typedef struct wgmma_state {
    float m[2], l[2][2]; /* l: the lane's, of even and odd pairs of columns */
    int32_t index[2];    /* the last keys that the lane's units see */
} wgmma_state;

typedef struct wgmma_view {
    float scale, softcap;
    float c; /* what scores, after the softcap if any, are multiplied by for powers of two */
    int32_t window;
    int32_t value_size;
    uint32_t queries;      /* the group's, in shared memory */
    int32_t lowest, first; /* keys up to `lowest` and from `first` on are seen by all units of the group */
} wgmma_view;

/* Where the group's units begin in a run, and the lane's first one; 8 later is its other one. */
template <typename SHAPE> static __device__ __forceinline__ int32_t wgmma_group_unit(void) {
    return SHAPE::WIDE ? 0 : ((int32_t)threadIdx.x / 128 - 1) * 64;
}

template <typename SHAPE> static __device__ __forceinline__ int32_t wgmma_unit(void) {
    const int32_t warp = ((int32_t)threadIdx.x - 128) / SL_WARP;
    return (SHAPE::WIDE ? warp % 4 : warp) * 16 + (int32_t)threadIdx.x % SL_WARP / 4;
}

/* What a group begins a run with. */
template <typename SHAPE>
static __device__ __forceinline__ void wgmma_start_run(const mma_args &args, const wgmma_run &run,
                                                       wgmma_view *view, wgmma_state *state) {
    const int32_t last = run.unit + run.units - 1, first_of_group = run.unit + wgmma_group_unit<SHAPE>();
    const int32_t first = first_of_group < last ? first_of_group : last;
    const int32_t end = first_of_group + 63 < last ? first_of_group + 63 : last;
    const int32_t mine = run.unit + wgmma_unit<SHAPE>();
    view->lowest = run.length + hopper_divide(first, args.ratio);
    view->first = mma_first_seen(view->window, run.length + hopper_divide(end, args.ratio));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t unit = mine + 8 * h < last ? mine + 8 * h : last;
        state->index[h] = run.length + hopper_divide(unit, args.ratio);
    }
}

/* Scores of the keys from `base` on to p; what y is to be multiplied by. */
template <int KEYS, bool SPLIT>
static __device__ __forceinline__ void wgmma_weigh(wgmma_state *state, float s[KEYS / 8][4],
                                                   const wgmma_view &view, int32_t base,
                                                   float correction[2]) {
    const float c = view.c;
    if (view.softcap > 0) {
        const float inverse = view.scale / view.softcap;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = view.softcap * mma_tanh(s[n][e] * inverse);
            }
        }
    }
    if (base + KEYS - 1 > view.lowest || base < view.first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t offset = base + 2 * ((int32_t)threadIdx.x % 4);
            const int32_t first = mma_first_seen(view.window, state->index[h]) - offset;
            const int32_t last = state->index[h] - offset;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const bool seen = 8 * n + e >= first && 8 * n + e <= last;
                    s[n][2 * h + e] = seen ? s[n][2 * h + e] : -INFINITY;
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            most[n] = fmaxf(s[n][2 * h], s[n][2 * h + 1]);
        }
#pragma unroll
        for (int n = 4; n < KEYS / 8; n++) {
            most[n % 4] = fmaxf(most[n % 4], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        }
        float largest = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 2));
        const float before = state->m[h];
        largest = fmaxf(largest, before);
        const float bias = largest == -INFINITY ? 0.0f : -largest * c;
        correction[h] = largest == before ? 1.0f : mma_exp2(fmaf(before, c, bias));
        float sums[2] = {state->l[h][0] * correction[h], state->l[h][1] * correction[h]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][2 * h] = mma_exp2(fmaf(s[n][2 * h], c, bias));
            s[n][2 * h + 1] = mma_exp2(fmaf(s[n][2 * h + 1], c, bias));
            sums[SPLIT ? 0 : n % 2] += s[n][2 * h] + s[n][2 * h + 1];
        }
        state->l[h][0] = sums[0];
        state->l[h][1] = sums[1];
        state->m[h] = largest;
    }
}

/* p as the second product's operand. */
template <int TYPE, int KEYS>
static __device__ __forceinline__ void wgmma_pack(const float s[KEYS / 8][4], uint32_t p[KEYS / 16][4]) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        p[n / 2][n % 2 * 2] = mma_pack<TYPE>(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = mma_pack<TYPE>(s[n][2], s[n][3]);
    }
}

/* Values behind the span's last one have never been written: they may be anything, and 0 times that too. */
template <typename SHAPE>
static __device__ __forceinline__ void wgmma_clear(unsigned char *values, int32_t base, int32_t keys) {
    constexpr int PIECES = SHAPE::VALUE_COLUMNS / 8;
    const int32_t there = keys > base ? keys - base : 0;
    for (int32_t i = there * PIECES + (int32_t)threadIdx.x % 128; i < SHAPE::KEYS * PIECES; i += 128) {
        const int32_t key = i / PIECES, piece = i % PIECES;
        *(uint4 *)(values + key / SL_PAGE_TOKENS * (SL_PAGE_TOKENS * SHAPE::VALUE_COLUMNS * 2) +
                   swizzled(SL_PAGE_TOKENS, key % SL_PAGE_TOKENS, piece)) = make_uint4(0, 0, 0, 0);
    }
    sl_fence_shared();
    sl_meet(BARRIER_GROUP + (int32_t)threadIdx.x / 128 - 1, 128);
}

template <typename SHAPE>
static __device__ __forceinline__ void wgmma_store(const mma_args &args, const wgmma_run &run,
                                                   const wgmma_state &state, float c, int32_t size,
                                                   const float y[SHAPE::VALUES / 8][4]) {
    const int32_t first = SHAPE::WIDE ? ((int32_t)threadIdx.x / 128 - 1) * SHAPE::VALUES : 0;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, at = wgmma_unit<SHAPE>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = mma_sum_lanes(state.l[h][0] + state.l[h][1]);
        const int32_t unit = run.unit + at + 8 * h;
        if (at + 8 * h >= run.units) {
            continue;
        }
        const int32_t row = run.first_row + unit / args.ratio;
        const int32_t head = run.kv_head * args.ratio + unit % args.ratio;
        const float m = state.m[h] == -INFINITY ? -INFINITY : state.m[h] * c;
        float largest = args.sinks ? args.sinks[head] * MMA_LOG2_E : -INFINITY;
        float sum = args.sinks ? 1.0f : 0.0f, keep, add;
        mma_merge(m, l, &largest, &sum, &keep, &add);
        const float factor = sum == 0.0f ? 0.0f : add / sum;
        float *to = sl_f32(args.y, row) + head * size;
        const float *gate =
            args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
#pragma unroll
        for (int n = 0; n < SHAPE::VALUES / 8; n++) {
            const int32_t column = first + 8 * n + 2 * (lane % 4);
            if (column < size) {
                mma_store2(to + column, mma_finish(args, gate, column, y[n][2 * h], factor),
                           mma_finish(args, gate, column + 1, y[n][2 * h + 1], factor));
            }
        }
    }
}

#endif

#endif
