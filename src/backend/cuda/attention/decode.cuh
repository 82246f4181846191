/* Flash attention on Hopper for steps of few rows with many keys, where reading keys and values is the work.
 *
 * A unit is one row and one query head, as in mma_kernel.cuh; UNITS of them that read one key head are the
 * columns of the matrix instruction, keys (then values' columns) its rows. The keys of a row are cut into
 * parts of whole tiles. An item is a run of units, a key head and some parts; blocks take items in turn. In a
 * block one warp copies tiles into a ring of slots; four warps take 16 keys of every tile each, and add up
 * what they found at a part's end. If a run's parts are in several items, the last block to finish one adds
 * them.
 *
 * Class "decode16", after the type multiplied in: q and p are rounded to that type, keys and values are of it
 * (q8_0 and fp8 decoded to f16). decode_part_tiles() says how many tiles a part has, by the number that the
 * row sees; it begins at a multiple of that. Keys 16 w to 16 w + 15 of a part's tiles are strand w. A strand
 * goes over its tiles in rising order: scores by matrix instructions over steps of 16 columns (even steps and
 * odd steps apart, then added), then softcap; m' = max(m, scores), corr = 2^((m - m') c) with c = scale log2
 * e (log2 e after a softcap), p = 2^(score c - m' c), l = l corr + p + p of the lane's two keys, y = y corr +
 * p v. l is added over the eight lanes of a unit at the end. A part is its strands in order: with M the
 * largest m, the fused sums of l 2^(m - M) and of y 2^(m - M). A row is its parts in order, each added as
 * mma_merge() says, behind a sink as a part with l = 1. What a row does not see adds nothing to its bits: p
 * = 0, corr = 1. So a result depends only on the row and its sequence. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DECODE_CUH
#define SL_BACKEND_CUDA_ATTENTION_DECODE_CUH

#include "backend/cuda/attention/decode_operands.cuh"

#if __CUDA_ARCH__ >= 900

/* ---- ending a part ---- */

/* Four columns of one row and head. */
typedef struct decode_place {
    int32_t row, head;
    int32_t column, size; /* size: of all columns */
} decode_place;

/* A row's result: y, normalised and gated, and as a linear reads it. Eight neighbouring lanes store a group
 * of 32 columns of one head. */
static __device__ __forceinline__ void decode_store(const decode_args &args, const decode_place &at,
                                                    const float total[4], float sum) {
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int32_t column = at.head * at.size + at.column;
    const float *gate =
        args.gate.data ? sl_f32(args.gate, at.row) + at.head * args.attention.gate_stride + at.column : NULL;
    float out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = total[i] * factor;
        if (gate) {
            out[i] *= sl_sigmoid(gate[i]);
        }
    }
    const float4 quad = make_float4(out[0], out[1], out[2], out[3]);
    if (args.y.data) {
        float *y = sl_f32(args.y, at.row) + column;
        if (((uint64_t)y & 15) == 0) {
            *(float4 *)y = quad;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[i] = out[i];
            }
        }
    }
    if (!args.quantized.data) {
        return;
    }
    if (args.quantized.type == SL_VALUE_Q8_32) {
        sl_quantize_group(quad, sl_q8_32_of(args.quantized, at.row), column, true,
                          0xffu << (threadIdx.x & (SL_WARP - SL_Q8_32_GROUP / SL_QUAD)));
    } else {
        uint16_t *row =
            (uint16_t *)(void *)(args.quantized.data + (uint64_t)at.row * args.quantized.row_bytes);
        *(uint2 *)(void *)(row + args.quantized.column + column) = sl_bf16_quad(quad);
    }
}

/* Columns 4 i to 4 i + 3 of the item's units, one unit after the other. */
template <bool ONE>
static __device__ __forceinline__ decode_place decode_place_of(const decode_args &args,
                                                               const decode_item &item, int32_t size,
                                                               int32_t i, int32_t *u) {
    *u = hopper_divide(i, size / 4);
    return {decode_row_of<ONE>(args, item, *u), decode_head_of<ONE>(args, item, *u),
            4 * (i - *u * (size / 4)), size};
}

/* Where the parts of a row and head lie. */
static __device__ __forceinline__ float *decode_parts_of(const decode_args &args, const decode_place &at) {
    return args.partials +
           ((int64_t)at.row * args.attention.heads + at.head) * args.most_parts * (DECODE_HEAD + at.size);
}

/* m and l of a row before its first part. */
static __device__ __forceinline__ float2 decode_begin_row(const decode_args &args, int32_t head) {
    return args.sinks ? make_float2(args.sinks[head] * MMA_LOG2_E, 1.0f) : make_float2(-INFINITY, 0.0f);
}

static __device__ __forceinline__ void decode_add_part(float2 part, const float4 &y, float2 *total,
                                                       float sum[4]) {
    float keep, add;
    mma_merge(part.x, part.y, &total->x, &total->y, &keep, &add);
    sum[0] = sum[0] * keep + y.x * add;
    sum[1] = sum[1] * keep + y.y * add;
    sum[2] = sum[2] * keep + y.z * add;
    sum[3] = sum[3] * keep + y.w * add;
}

/* Adds all parts of one unit, for four columns. */
template <bool ONE>
static __device__ __forceinline__ void decode_merge(const decode_args &args, const decode_item &item,
                                                    const decode_place &at) {
    const int32_t stride = DECODE_HEAD + at.size;
    const float *from = decode_parts_of(args, at);
    float2 total = decode_begin_row(args, at.head);
    float sum[4] = {0, 0, 0, 0};
    for (int32_t part = 0; part < item.parts; part += DECODE_BATCH) {
        float4 y[DECODE_BATCH];
        float2 both[DECODE_BATCH];
#pragma unroll
        for (int k = 0; k < DECODE_BATCH; k++) {
            if (part + k < item.parts) {
                both[k] = __ldcg((const float2 *)(from + (part + k) * stride));
                y[k] = __ldcg((const float4 *)(from + (part + k) * stride + DECODE_HEAD + at.column));
            }
        }
#pragma unroll
        for (int k = 0; k < DECODE_BATCH; k++) {
            if (part + k < item.parts) {
                decode_add_part(both[k], y[k], &total, sum);
            }
        }
    }
    decode_store(args, at, sum, total.y);
}

/* Adds the strands of the item's part `n`, for four columns of one unit; then the part to those before it, or
 * stores it if other items have parts of the run. */
template <typename SHAPE, typename SHARED>
static __device__ __forceinline__ void decode_add_strands(const decode_args &args, const decode_item &item,
                                                          int32_t n, SHARED *shared, const float *meeting,
                                                          int32_t i) {
    int32_t u;
    const int32_t size = (int32_t)shared->value_size;
    const decode_place at = decode_place_of<SHAPE::ONE>(args, item, size, i, &u);
    const int32_t c = at.column;
    constexpr int STRANDS = SHAPE::CHUNKS ? 1 : DECODE_WARPS;
    float largest = shared->m[0][u];
#pragma unroll
    for (int w = 1; w < STRANDS; w++) {
        largest = fmaxf(largest, shared->m[w][u]);
    }
    const float base = largest == -INFINITY ? 0.0f : largest;
    float l = 0.0f;
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < STRANDS; w++) {
        const float weight = mma_exp2(shared->m[w][u] - base);
        const float4 more = *(const float4 *)(meeting + (w * SHAPE::UNITS + u) * SHAPE::STRIDE + c);
        l = fmaf(shared->l[w][u], weight, l);
        y.x = fmaf(more.x, weight, y.x);
        y.y = fmaf(more.y, weight, y.y);
        y.z = fmaf(more.z, weight, y.z);
        y.w = fmaf(more.w, weight, y.w);
    }
    if (item.count < item.parts) {
        float *to = decode_parts_of(args, at) + (item.part + n) * (DECODE_HEAD + at.size);
        if (c == 0) {
            __stcg((float2 *)to, make_float2(largest, l));
        }
        __stcg((float4 *)(to + DECODE_HEAD + c), y);
        return;
    }
    float4 *kept = (float4 *)(meeting + SHAPE::MEETING / 4 + u * SHAPE::STRIDE + c);
    float2 total = n == 0 ? decode_begin_row(args, at.head) : shared->totals[n % 2][u];
    const float4 before = n == 0 ? make_float4(0, 0, 0, 0) : *kept;
    float sum[4] = {before.x, before.y, before.z, before.w};
    decode_add_part(make_float2(largest, l), y, &total, sum);
    if (n == item.count - 1) {
        decode_store(args, at, sum, total.y);
        return;
    }
    *kept = make_float4(sum[0], sum[1], sum[2], sum[3]);
    if (c == 0) {
        shared->totals[(n + 1) % 2][u] = total;
    }
}

/* After the last part of an item that has not all of its run: the last block to come here adds them. */
template <typename SHAPE, typename SHARED>
static __device__ __forceinline__ void decode_end_item(const decode_args &args, const decode_item &item,
                                                       SHARED *shared, int32_t size) {
    const int32_t all = item.units * (size / 4);
    __threadfence();
    sl_meet(1, DECODE_MULTIPLIERS);
    if (threadIdx.x == 0) {
        uint32_t *arrivals = args.arrivals + decode_row_of<SHAPE::ONE>(args, item, 0) * args.attention.heads +
                             decode_head_of<SHAPE::ONE>(args, item, 0);
        shared->last = atomicAdd(arrivals, 1u) == (uint32_t)item.groups - 1;
        if (shared->last) {
            *arrivals = 0;
        }
        __threadfence();
    }
    sl_meet(1, DECODE_MULTIPLIERS);
    if (shared->last) {
        for (int32_t i = (int32_t)threadIdx.x; i < all; i += DECODE_MULTIPLIERS) {
            int32_t u;
            decode_merge<SHAPE::ONE>(args, item, decode_place_of<SHAPE::ONE>(args, item, size, i, &u));
        }
    }
}

/* ---- multiplying ---- */

/* What a warp has of the ring of slots. */
typedef struct decode_ring {
    unsigned char *slots;
    uint32_t full, empty; /* the barriers */
    uint32_t slot, phase;
} decode_ring;

template <typename SHAPE>
static __device__ __forceinline__ unsigned char *decode_take(const decode_ring &ring) {
    sl_barrier_wait(ring.full + 8 * ring.slot, ring.phase);
    return ring.slots + ring.slot * SHAPE::SLOT;
}

/* The warp has read the slot. */
template <typename SHAPE> static __device__ __forceinline__ void decode_leave(decode_ring *ring) {
    __syncwarp();
    if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
        sl_barrier_arrive(ring->empty + 8 * ring->slot);
    }
    ring->slot = ring->slot + 1 == SHAPE::SLOTS ? 0 : ring->slot + 1;
    ring->phase ^= ring->slot == 0;
}

template <int UNITS, bool ONE>
static __device__ __forceinline__ void decode_begin_item(const decode_args &args, const decode_item &item,
                                                         decode_view<UNITS> *view) {
#pragma unroll
    for (int i = 0; i < UNITS / 4; i++) {
        const int32_t at = i / 2 * 8 + 2 * ((int32_t)threadIdx.x % 4) + i % 2;
        const int32_t unit = at < item.units ? at : item.units - 1;
        view->index[i / 2][i % 2] = item.length + decode_rows_before<ONE>(args, item.unit + unit);
    }
    view->lowest_last = item.length + decode_rows_before<ONE>(args, item.unit);
    view->highest_last = item.length + decode_rows_before<ONE>(args, item.unit + item.units - 1);
    view->first = args.attention.first;
    view->lowest_first = decode_first_seen(view->window, view->first, view->lowest_last);
    view->highest_first = decode_first_seen(view->window, view->first, view->highest_last);
}

/* One tile of a strand, whose first of the warp's keys is `base`. */
template <typename SHAPE, int TYPE, typename ADD>
static __device__ __forceinline__ void
decode_tile(const decode_view<SHAPE::UNITS> &view, const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2],
            int32_t base, decode_ring *ring, decode_state<SHAPE::UNITS, SHAPE::COLUMNS> *state, ADD add) {
    constexpr int N = SHAPE::UNITS / 8;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, row = base % MMA_KEYS;
    const bool masked = base + 15 > view.lowest_last || base < view.highest_first;
    float s[N][4], correction[N][2];
    unsigned char *slot = decode_take<SHAPE>(*ring);
    if (SHAPE::LETS_NEXT == DECODE_AT_FIRST_KEYS) {
        sl_let_next_begin();
    }
    add(base, false, slot);
    const decode_slice keys = {slot, row, (int32_t)view.cache->key_bytes, view.cache->key_size};
    decode_scores<SHAPE, TYPE>(keys, q, s);
    decode_leave<SHAPE>(ring);
    decode_weigh<SHAPE::UNITS, SHAPE::COLUMNS>(state, s, view, base + lane / 4, masked, correction);
    bool same = true;
    uint32_t p[N][2];
#pragma unroll
    for (int n = 0; n < N; n++) {
        same = same && correction[n][0] == 1.0f && correction[n][1] == 1.0f;
        p[n][0] = sl_transposed(mma_pack<TYPE>(s[n][0], s[n][1]));
        p[n][1] = sl_transposed(mma_pack<TYPE>(s[n][2], s[n][3]));
    }
    if (!__all_sync(SL_FULL_WARP, same)) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < SHAPE::COLUMNS / 4; e++) {
                state->y[n][e / 4][e % 4] *= correction[n][e % 2];
            }
        }
    }
    uint32_t seen[2];
    decode_seen(view, base, masked, seen);
    slot = decode_take<SHAPE>(*ring);
    add(base, true, slot);
    const decode_slice values = {slot, row, (int32_t)view.cache->value_bytes, view.cache->value_size};
    decode_values<SHAPE, TYPE, SHAPE::COLUMNS / 16>(values, seen, p, 0, state->y);
    decode_leave<SHAPE>(ring);
}

/* A warp's strand of a part, left in `meeting`. */
template <typename SHAPE, int TYPE, typename SHARED, typename ADD>
static __device__ __forceinline__ void
decode_strand(const decode_view<SHAPE::UNITS> &view,
              const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2], decode_ring *ring, SHARED *shared,
              float *meeting, ADD add) {
    constexpr int N = SHAPE::UNITS / 8;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    decode_state<SHAPE::UNITS, SHAPE::COLUMNS> state;
#pragma unroll
    for (int n = 0; n < N; n++) {
        state.m[n][0] = state.m[n][1] = -INFINITY;
        state.l[n][0] = state.l[n][1] = 0;
#pragma unroll
        for (int e = 0; e < SHAPE::COLUMNS / 4; e++) {
            state.y[n][e / 4][e % 4] = 0;
        }
    }
    for (int32_t tile = view.tile; tile < view.end; tile++) {
        decode_tile<SHAPE, TYPE>(view, q, tile * MMA_KEYS + 16 * warp, ring, &state, add);
    }
    sl_meet(1, DECODE_MULTIPLIERS); /* nobody reads the part before any more */
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const int32_t unit = 8 * n + 2 * (lane % 4) + u;
            float l = state.l[n][u];
            l += __shfl_xor_sync(SL_FULL_WARP, l, 4);
            l += __shfl_xor_sync(SL_FULL_WARP, l, 8);
            l += __shfl_xor_sync(SL_FULL_WARP, l, 16);
            if (lane / 4 == 0) {
                shared->m[warp][unit] = state.m[n][u] == -INFINITY ? -INFINITY : state.m[n][u] * view.c;
                shared->l[warp][unit] = l;
            }
#pragma unroll
            for (int block = 0; block < SHAPE::COLUMNS / 16; block++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    meeting[(warp * SHAPE::UNITS + unit) * SHAPE::STRIDE +
                            decode_value_column<SHAPE>(block, h)] = state.y[n][block][2 * h + u];
                }
            }
        }
    }
    sl_meet(1, DECODE_MULTIPLIERS);
}

#endif
#endif
