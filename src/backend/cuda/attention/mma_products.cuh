/* Products and softmax of mma_kernel.cuh, and how a chunk of keys ends. */
#ifndef SL_BACKEND_CUDA_ATTENTION_MMA_PRODUCTS_CUH
#define SL_BACKEND_CUDA_ATTENTION_MMA_PRODUCTS_CUH

#include "backend/cuda/attention/mma_tiles.cuh"

/* ---- arithmetic ---- */

/* Adds a chunk's m (times c) and l to the totals; what y's total and the chunk's y are multiplied by. */
static __device__ __forceinline__ void mma_merge(float m, float l, float *largest, float *sum, float *keep,
                                                 float *add) {
    const float both = fmaxf(*largest, m), base = both == -INFINITY ? 0.0f : both;
    *keep = *largest == both ? 1.0f : mma_exp2(*largest - base);
    *add = mma_exp2(m - base);
    *sum = *sum * *keep + l * *add;
    *largest = both;
}

static __device__ __forceinline__ float mma_finish(const mma_args &args, const float *gate, int32_t c,
                                                   float value, float factor) {
    (void)args;
    value *= factor;
    return gate ? value * sl_sigmoid(gate[c]) : value;
}

template <int MS, int COLUMNS> struct mma_state {
    float acc[MS][COLUMNS / 8][4];
    float m[MS][2], l[MS][2]; /* of the chunk; l: the lane's part */
    bool first;               /* no chunk before */
};

/* What is seldom needed, in shared memory. */
template <int UNITS, int WN> struct mma_rare {
    mma_place place;
    int32_t index[UNITS];     /* the last key that the unit sees */
    float2 totals[WN][UNITS]; /* m (times log2 e) and l of the chunks before; each warp its own */
};

/* What a warp computes. */
typedef struct mma_warp {
    int32_t unit, column; /* the first ones */
    const int32_t *index; /* of its units, in mma_rare */
    float2 *totals;       /* the same */
    float2 *new_totals;   /* where a chunk's end leaves them, if the warp keeps them */
    bool keeps;
    int32_t index_low, index_high; /* the first unit's, the last one's */
    int32_t from_low, from_high;   /* the first keys that these see */
    float scale, softcap;
    float c; /* what scores, after the softcap if any, are multiplied by for powers of two */
    int32_t window;
    bool idle; /* has no units */
} mma_warp;

/* For 16 MS units, from unit `at` of the block on; index, totals: of the block's units. */
template <int MS>
static __device__ __forceinline__ mma_warp mma_start_warp(const mma_args &args, const mma_walk &w,
                                                          const int32_t *index, float2 *totals, int32_t at) {
    mma_warp warp;
    warp.unit = w.first_unit + at;
    warp.column = 0;
    warp.index = index + at;
    warp.totals = warp.new_totals = totals + at;
    warp.keeps = true;
    const int32_t first = warp.unit < w.last_unit ? warp.unit : w.last_unit;
    const int32_t last = warp.unit + 16 * MS - 1 < w.last_unit ? warp.unit + 16 * MS - 1 : w.last_unit;
    warp.index_low = w.length + first / args.ratio;
    warp.index_high = w.length + last / args.ratio;
    warp.scale = args.attention.scale;
    warp.softcap = args.attention.softcap;
    warp.c = warp.softcap > 0 ? MMA_LOG2_E : warp.scale * MMA_LOG2_E;
    warp.window = w.window;
    warp.from_low = mma_first_seen(warp.window, warp.index_low);
    warp.from_high = mma_first_seen(warp.window, warp.index_high);
    warp.idle = warp.unit > w.last_unit;
    return warp;
}

/* scores = q . k for 64 keys. */
template <typename SHAPE, int TYPE, int SIZE, int MS, bool KEEP>
static __device__ __forceinline__ void mma_scores(uint32_t q_at, uint32_t k_at, const uint32_t kept[][MS][4],
                                                  float s[MS][8][4]) {
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
                sl_load_matrices(q_at + (uint32_t)(i * 16 * SHAPE::STRIDE * 2 + step * 32), a[i]);
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            sl_load_matrices(k_at + (uint32_t)(n * 16 * SHAPE::STRIDE * 2 + step * 32), b);
#pragma unroll
            for (int i = 0; i < MS; i++) {
                mma_mma<TYPE>(s[i][2 * n], a[i], b[0], b[1]);
                mma_mma<TYPE>(s[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Scores of the keys from `base` on to p, with the running maximum and sum; what acc is to be multiplied by.
 */
template <int MS, int COLUMNS>
static __device__ __forceinline__ void mma_weigh(mma_state<MS, COLUMNS> *state, float s[MS][8][4],
                                                 const mma_warp &warp, int32_t base,
                                                 float correction[MS][2]) {
    const float c = warp.c, softcap = warp.softcap;
    const bool masked = base + MMA_KEYS - 1 > warp.index_low || base < warp.from_high;
    const int32_t column = 2 * ((int32_t)threadIdx.x % 4);
    if (softcap > 0) {
        const float inverse = warp.scale / softcap;
#pragma unroll
        for (int i = 0; i < MS; i++) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[i][n][e] = softcap * mma_tanh(s[i][n][e] * inverse);
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
                const int32_t first = mma_first_seen(warp.window, to) - base - column;
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
            correction[i][h] = largest == before ? 1.0f : mma_exp2(fmaf(before, c, bias));
            float sum = state->l[i][h] * correction[i][h];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                s[i][n][2 * h] = mma_exp2(fmaf(s[i][n][2 * h], c, bias));
                s[i][n][2 * h + 1] = mma_exp2(fmaf(s[i][n][2 * h + 1], c, bias));
                sum += s[i][n][2 * h] + s[i][n][2 * h + 1];
            }
            state->l[i][h] = sum;
            state->m[i][h] = largest;
        }
    }
}

template <int MS, int COLUMNS>
static __device__ __forceinline__ void mma_rescale(mma_state<MS, COLUMNS> *state,
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
static __device__ __forceinline__ void mma_values(mma_state<MS, COLUMNS> *state, const uint32_t p[MS][4][4],
                                                  uint32_t v_at) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t b[4];
            sl_load_matrices_transposed(v_at + (uint32_t)(step * 16 * SHAPE::STRIDE * 2 + n * 32), b);
#pragma unroll
            for (int i = 0; i < MS; i++) {
                mma_mma<TYPE>(state->acc[i][2 * n], p[i][step], b[0], b[1]);
                mma_mma<TYPE>(state->acc[i][2 * n + 1], p[i][step], b[2], b[3]);
            }
        }
    }
}

/* ---- ending a chunk ---- */

template <int MS, int COLUMNS>
static __device__ __forceinline__ void mma_start_chunk(mma_state<MS, COLUMNS> *state) {
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

static __device__ __forceinline__ void mma_store2(float *to, float a, float b) {
    if (((uint64_t)to & 7) == 0) {
        *(float2 *)to = make_float2(a, b);
    } else {
        to[0] = a;
        to[1] = b;
    }
}

/* Over the four lanes of a row. */
static __device__ __forceinline__ float mma_sum_lanes(float l) {
    l += __shfl_xor_sync(SL_FULL_WARP, l, 1);
    return l + __shfl_xor_sync(SL_FULL_WARP, l, 2);
}

/* Adds the chunk to the total, which lies in y between chunks; or stores the chunk's part. SPLITS: other
 * blocks may have others of the units' chunks; a unit that sees no key of this chunk is left out then, as its
 * y is theirs. */
template <bool SPLITS, typename CHUNKS, int MS, int COLUMNS>
static __device__ __forceinline__ void mma_end_chunk(const mma_args &args, const mma_walk &w,
                                                     const mma_warp &warp, int32_t chunk, bool last,
                                                     mma_state<MS, COLUMNS> *state) {
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
            const float l = mma_sum_lanes(state->l[i][h]);
            const float m = state->m[i][h] == -INFINITY ? -INFINITY : state->m[i][h] * warp.c;
            const int32_t unit_at = 16 * i + 8 * h + lane / 4, u = unit + unit_at, seen = warp.index[unit_at];
            const bool sees_none = CHUNKS::LATE && chunk == 0 && seen < args.attention.first;
            if (u > w.last_unit || (SPLITS && args.partials && l == 0.0f && !sees_none)) {
                continue;
            }
            const int32_t row = first_row + u / args.ratio, head = kv_head * args.ratio + u % args.ratio;
            if (args.partials && !mma_has_one_chunk<CHUNKS>(warp.window, seen)) {
                const int64_t part = ((int64_t)row * args.attention.heads + head) * args.splits + chunk;
                float *to = args.partials + part * (MMA_PARTIAL_HEAD + size);
                if (lane % 4 == 0 && column == 0) {
                    to[0] = m;
                    to[1] = l;
                }
#pragma unroll
                for (int n = 0; n < COLUMNS / 8; n++) {
                    const int32_t at = column + 8 * n + 2 * (lane % 4);
                    if (at < size) {
                        mma_store2(to + MMA_PARTIAL_HEAD + at, state->acc[i][n][2 * h],
                                   state->acc[i][n][2 * h + 1]);
                    }
                }
                continue;
            }
            const float2 *total = warp.totals + 16 * i + 8 * h + lane / 4;
            float keep, add, largest = total->x, sum = total->y;
            mma_merge(m, l, &largest, &sum, &keep, &add);
            const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
            __syncwarp(15u << (lane & 28)); /* all four lanes have read */
            if (lane % 4 == 0 && warp.keeps) {
                warp.new_totals[16 * i + 8 * h + lane / 4] = make_float2(largest, sum);
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
                            a = mma_finish(args, gate, at, a, factor);
                            b = mma_finish(args, gate, at + 1, b, factor);
                        }
                        mma_store2(y + at, a, b);
                    }
                }
            }
        }
    }
    state->first = args.partials != NULL;
    mma_start_chunk(state);
}

/* A block's units, their place in the cache, and which tiles they need. */
static __device__ __forceinline__ void mma_start_walk(const sl_cuda_context &context, const mma_args &args,
                                                      const mma_place &place, mma_walk *walk) {
    mma_walk &w = *walk;
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
        ((uint64_t)cache.kv_heads * cache.key_bytes + (uint64_t)w.kv_head * cache.value_bytes) * MMA_KEYS;
    w.keys += (uint64_t)w.kv_head * MMA_KEYS * cache.key_bytes;
    w.lowest = mma_first_seen(window, w.length + w.first_unit / args.ratio);
    w.highest = w.length + w.last_unit / args.ratio;
    w.first_tile = w.lowest / MMA_KEYS;
    w.last_tile = w.highest / MMA_KEYS;
    w.skip = 0;
}

template <int UNITS, int WN, int THREADS>
static __device__ __forceinline__ void mma_start_units(const mma_args &args, const mma_walk &w,
                                                       mma_rare<UNITS, WN> *rare) {
    for (int32_t i = (int32_t)threadIdx.x; i < UNITS; i += THREADS) {
        const int32_t unit = w.first_unit + i < w.last_unit ? w.first_unit + i : w.last_unit;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
        rare->index[i] = w.length + unit / args.ratio;
#pragma unroll
        for (int n = 0; n < WN; n++) {
            rare->totals[n][i] =
                args.sinks ? make_float2(args.sinks[head] * MMA_LOG2_E, 1.0f) : make_float2(-INFINITY, 0.0f);
        }
    }
}

#endif
