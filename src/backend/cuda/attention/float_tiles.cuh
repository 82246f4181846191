/* Flash attention over F32 caches with fused multiply-adds: the kernel, which float_tiles.cu launches.
 *
 * A unit is one row and one query head; the units of a span that read one key head are numbered row after
 * row, so that a group of query heads shares its keys. A block has a run of units. Sixteen threads share a
 * few of them: of a tile of keys each has every sixteenth, of the values every sixteenth quad of columns.
 * Tiles come to shared memory by asynchronous copies: the next keys while values are added, and the next
 * values while scores are made. Blocks that share a processor fill each other's waits.
 *
 * Class "tile64/fma32/split512": keys in tiles of 64 (32 for heads over 256), at multiples of that of their
 * index in the sequence. Score = the products of q and k added in order of the columns with fmaf, times
 * scale, then softcap, in units of log 2. m' = max(m, scores), corr = 2^(m - m'), p = 2^(score - m'). A
 * thread adds the p of its keys in order, l = l corr + that; y = y corr, then y += p v with fmaf in order of
 * the keys. A range of keys starts with m = -infinity, l = 0, y = 0, and at its end the threads' l are added
 * as a tree. Ranges begin at multiples of 512 keys, twice as far apart behind 16384 and wherever their number
 * doubles. They are merged in order as mma_merge() says, a row's only one too, and a sink as what is before
 * the first. What a row does not see changes none of its bits: so neither units beside it nor the cut do. */
#ifndef SL_BACKEND_CUDA_ATTENTION_FLOAT_TILES_CUH
#define SL_BACKEND_CUDA_ATTENTION_FLOAT_TILES_CUH

#include "backend/cuda/attention/mma_merge.cuh"

enum { FLOAT_LANES = 16 /* threads that share units */ };

/* How tiles of 64 keys make ranges: half as long as those of mma_ranges, as blocks read 1 KiB a key. */
struct float_ranges {
    static constexpr int CHUNKS = RANGE_CHUNKS / 2;
    static __host__ __device__ __forceinline__ int32_t of(int32_t tile) {
        return growing_chunk_of(tile) / CHUNKS;
    }
    static __device__ __forceinline__ int32_t begin(int32_t range) {
        return growing_chunk_begin(CHUNKS * range);
    }
};

/* SIZE: columns of keys and values, what a head lacks is zeros. MINE: units of a thread. */
template <int SIZE, int MINE_, int THREADS_, int BLOCKS_> struct float_shape {
    static constexpr int MINE = MINE_, THREADS = THREADS_, BLOCKS = BLOCKS_;
    static constexpr int GROUPS = THREADS / FLOAT_LANES, UNITS = GROUPS * MINE;
    static constexpr int KEYS = SIZE > 256 ? 32 : 64, NEAR = KEYS / FLOAT_LANES;
    static constexpr int PARTS = MMA_KEYS / KEYS; /* tiles of a page */
    static constexpr int QUADS = SIZE / SL_QUAD, COLUMNS = QUADS / FLOAT_LANES;
    static constexpr int TILE = KEYS * QUADS; /* quads */
    static constexpr int BYTES = (UNITS * QUADS + 2 * TILE + UNITS * KEYS / SL_QUAD) * 16;
    static_assert(GROUPS % 8 == 0 && QUADS % FLOAT_LANES == 0, "rows fall on banks by their last three bits");
};

/* Where quad `quad` of a row lies, so that eight rows' fall on different banks. */
static __device__ __forceinline__ int32_t float_place(int32_t row, int32_t quad, int32_t quads) {
    return row * quads + (quad ^ (row & 7));
}

/* In shared memory. */
typedef struct float_memory {
    float4 *q;       /* [UNITS][QUADS] */
    float4 *keys;    /* [KEYS][QUADS] */
    float4 *values;  /* the same, rows as they are */
    float4 *weights; /* [UNITS][KEYS / 4]: p, below 0 where the unit does not see the key */
} float_memory;

/* Of a thread's units, numbered GROUPS apart. */
template <typename SHAPE> struct float_units {
    int32_t from[SHAPE::MINE], to[SHAPE::MINE]; /* keys that it sees, the last one too */
};

/* What a range amounts to. */
template <typename SHAPE> struct float_state {
    float m[SHAPE::MINE], l[SHAPE::MINE]; /* l: of the thread's keys */
    float y[SHAPE::MINE][SHAPE::COLUMNS][SL_QUAD];
};

/* What the ranges before amount to, but for y, which lies where the result will. */
template <typename SHAPE> struct float_totals { float largest[SHAPE::MINE], sum[SHAPE::MINE]; };

/* Hidden from the loop over tiles, which would keep every place that follows from it. */
static __device__ __forceinline__ int32_t float_thread(void) {
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

static __device__ __forceinline__ int32_t float_lane(void) {
    return float_thread() % FLOAT_LANES;
}

static __device__ __forceinline__ int32_t float_group(void) {
    return float_thread() / FLOAT_LANES;
}

/* ---- moving tiles ---- */

/* Starts copying a tile's keys, or values, with zeros for what no unit sees. */
template <typename SHAPE, bool IS_KEY>
static __device__ __forceinline__ void float_fetch(const mma_walk &w, int32_t tile, int32_t last,
                                                   float4 *to) {
    if (tile <= last) {
        const int32_t row_bytes = IS_KEY ? w.key_bytes : w.value_bytes;
        const int32_t size = IS_KEY ? w.key_size : w.value_size, base = tile * SHAPE::KEYS;
        const unsigned char *from = (IS_KEY ? w.keys : w.values) +
                                    (uint64_t)w.table[tile / SHAPE::PARTS] * w.page_bytes +
                                    tile % SHAPE::PARTS * SHAPE::KEYS * row_bytes;
        const int32_t thread = float_thread();
#pragma unroll 4
        for (int j = 0; j < SHAPE::TILE / SHAPE::THREADS; j++) {
            const int32_t i = thread + j * SHAPE::THREADS;
            const int32_t key = i / SHAPE::QUADS, quad = i % SHAPE::QUADS;
            const bool there = quad * SL_QUAD < size && base + key >= w.lowest && base + key <= w.highest;
            sl_copy_16_of(sl_shared_address(to + (IS_KEY ? float_place(key, quad, SHAPE::QUADS) : i)),
                          there ? from + key * row_bytes + quad * 16 : from, there ? 16 : 0);
        }
    }
    sl_copy_commit();
}

/* q into shared memory, with zeros behind its last column and unit. */
template <typename SHAPE>
static __device__ __forceinline__ void float_load_queries(const mma_args &args, const mma_walk &w,
                                                          float4 *to) {
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          15) == 0;
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < SHAPE::UNITS * SHAPE::QUADS; i += SHAPE::THREADS) {
        const int32_t at = i / SHAPE::QUADS, quad = i % SHAPE::QUADS, unit = w.first_unit + at;
        float4 q = make_float4(0, 0, 0, 0);
        if (unit <= w.last_unit && quad * SL_QUAD < w.key_size) {
            const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
            const float *from = sl_f32(args.q, w.span->first_row + unit / args.ratio) +
                                head * args.attention.q_stride + quad * SL_QUAD;
            q = aligned ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
        }
        to[float_place(at, quad, SHAPE::QUADS)] = q;
    }
}

/* ---- arithmetic ---- */

/* Of the thread's units with its keys. */
template <typename SHAPE>
static __device__ __forceinline__ void float_scores(const float_memory &memory, int32_t key_size,
                                                    float s[SHAPE::MINE][SHAPE::NEAR]) {
    const int32_t lane = float_lane(), group = float_group();
#pragma unroll
    for (int e = 0; e < SHAPE::MINE * SHAPE::NEAR; e++) {
        s[e / SHAPE::NEAR][e % SHAPE::NEAR] = 0;
    }
    constexpr int UNROLL = SHAPE::MINE > 1 ? 1 : 4; /* registers for operands on their way */
    const float4 *q = memory.q + group * SHAPE::QUADS, *k = memory.keys + lane * SHAPE::QUADS;
    for (int32_t base = 0; base * SL_QUAD < key_size; base += 8) {
#pragma unroll UNROLL
        for (int e = 0; e < 8; e++) {
            float4 a[SHAPE::MINE], b[SHAPE::NEAR];
#pragma unroll
            for (int i = 0; i < SHAPE::MINE; i++) {
                a[i] = q[i * SHAPE::GROUPS * SHAPE::QUADS + base + (e ^ (group & 7))];
            }
#pragma unroll
            for (int j = 0; j < SHAPE::NEAR; j++) {
                b[j] = k[j * FLOAT_LANES * SHAPE::QUADS + base + (e ^ (lane & 7))];
            }
#pragma unroll
            for (int i = 0; i < SHAPE::MINE; i++) {
#pragma unroll
                for (int j = 0; j < SHAPE::NEAR; j++) {
                    s[i][j] = fmaf(a[i].x, b[j].x, s[i][j]);
                    s[i][j] = fmaf(a[i].y, b[j].y, s[i][j]);
                    s[i][j] = fmaf(a[i].z, b[j].z, s[i][j]);
                    s[i][j] = fmaf(a[i].w, b[j].w, s[i][j]);
                }
            }
        }
    }
}

/* Scores to p in shared memory; m, l and y to the new m. */
template <typename SHAPE>
static __device__ __forceinline__ void float_weigh(const mma_args &args, const float_units<SHAPE> &units,
                                                   int32_t base, float s[SHAPE::MINE][SHAPE::NEAR],
                                                   float_state<SHAPE> *state, float *weights) {
    const int32_t lane = float_lane(), group = float_group();
    const float softcap = args.attention.softcap, scale = args.attention.scale;
#pragma unroll
    for (int i = 0; i < SHAPE::MINE; i++) {
        const int32_t unit = group + i * SHAPE::GROUPS;
        float largest = state->m[i];
#pragma unroll
        for (int j = 0; j < SHAPE::NEAR; j++) {
            const int32_t key = base + lane + FLOAT_LANES * j;
            float score = s[i][j] * scale;
            if (softcap > 0) {
                score = softcap * mma_tanh(score / softcap);
            }
            s[i][j] = key >= units.from[i] && key <= units.to[i] ? score * MMA_LOG2_E : -INFINITY;
            largest = fmaxf(largest, s[i][j]);
        }
#pragma unroll
        for (int distance = FLOAT_LANES / 2; distance > 0; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
        }
        const float from = largest == -INFINITY ? 0.0f : largest;
        const float correction = mma_exp2(state->m[i] - from);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < SHAPE::NEAR; j++) {
            const int32_t at = lane + FLOAT_LANES * j, key = base + at;
            const bool seen = key >= units.from[i] && key <= units.to[i];
            const float p = mma_exp2(s[i][j] - from);
            sum += seen ? p : 0.0f;
            weights[float_place(unit, at / SL_QUAD, SHAPE::KEYS / SL_QUAD) * SL_QUAD + at % SL_QUAD] =
                seen ? p : -1.0f;
        }
        state->m[i] = largest;
        state->l[i] = state->l[i] * correction + sum;
#pragma unroll
        for (int e = 0; e < SHAPE::COLUMNS * SL_QUAD; e++) {
            state->y[i][e / SL_QUAD][e % SL_QUAD] *= correction;
        }
    }
}

/* y += p v. EDGE: some unit does not see all keys of the tile; what it does not see may be no number. */
template <typename SHAPE, bool EDGE>
static __device__ __forceinline__ void float_values(const float_memory &memory, float_state<SHAPE> *state) {
    const int32_t lane = float_lane(), group = float_group();
    const float4 *v = memory.values + lane;
    constexpr int UNROLL = SHAPE::MINE > 1 ? 1 : 2;
#pragma unroll UNROLL
    for (int32_t keys = 0; keys < SHAPE::KEYS; keys += SL_QUAD) {
        float4 weights[SHAPE::MINE];
#pragma unroll
        for (int i = 0; i < SHAPE::MINE; i++) {
            weights[i] =
                memory.weights[float_place(group + i * SHAPE::GROUPS, keys / SL_QUAD, SHAPE::KEYS / SL_QUAD)];
        }
#pragma unroll
        for (int e = 0; e < SL_QUAD; e++) {
#pragma unroll
            for (int n = 0; n < SHAPE::COLUMNS; n++) {
                const float4 b = v[(keys + e) * SHAPE::QUADS + n * FLOAT_LANES];
#pragma unroll
                for (int i = 0; i < SHAPE::MINE; i++) {
                    const float p = e == 0   ? weights[i].x
                                    : e == 1 ? weights[i].y
                                    : e == 2 ? weights[i].z
                                             : weights[i].w;
                    float *y = state->y[i][n];
                    if (!EDGE || p >= 0) {
                        y[0] = fmaf(p, b.x, y[0]);
                        y[1] = fmaf(p, b.y, y[1]);
                        y[2] = fmaf(p, b.z, y[2]);
                        y[3] = fmaf(p, b.w, y[3]);
                    }
                }
            }
        }
    }
}

template <typename SHAPE> static __device__ __forceinline__ void float_start(float_state<SHAPE> *state) {
#pragma unroll
    for (int i = 0; i < SHAPE::MINE; i++) {
        state->m[i] = -INFINITY;
        state->l[i] = 0;
#pragma unroll
        for (int e = 0; e < SHAPE::COLUMNS * SL_QUAD; e++) {
            state->y[i][e / SL_QUAD][e % SL_QUAD] = 0;
        }
    }
}

/* ---- what comes of a range ---- */

template <typename SHAPE>
static __device__ __forceinline__ void float_start_totals(const mma_args &args, const mma_walk &w,
                                                          float_totals<SHAPE> *totals) {
#pragma unroll
    for (int i = 0; i < SHAPE::MINE; i++) {
        const int32_t unit = w.first_unit + float_group() + i * SHAPE::GROUPS;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
        totals->largest[i] = args.sinks ? args.sinks[head] * MMA_LOG2_E : -INFINITY;
        totals->sum[i] = args.sinks ? 1.0f : 0.0f;
    }
}

/* A row and a head of it, its columns of y so far, and which of its ranges there are. */
typedef struct float_result {
    int32_t row, head;
    float *y;
    bool first, last;
} float_result;

/* y = y keep + y of the range add, and behind the last range the result. */
template <typename SHAPE>
static __device__ __forceinline__ void float_add(const mma_args &args, const mma_walk &w,
                                                 const float_result &result, const float2 &factors, float sum,
                                                 float y[SHAPE::COLUMNS][SL_QUAD]) {
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float *gate =
        args.gate.data ? sl_f32(args.gate, result.row) + result.head * args.attention.gate_stride : NULL;
#pragma unroll
    for (int e = 0; e < SHAPE::COLUMNS * SL_QUAD; e++) {
        const int32_t column = (e / SL_QUAD * FLOAT_LANES + float_lane()) * SL_QUAD;
        const float before = result.first || column >= w.value_size ? 0.0f : result.y[column + e % SL_QUAD];
        float *value = &y[e / SL_QUAD][e % SL_QUAD];
        *value = before * factors.x + *value * factors.y;
    }
#pragma unroll
    for (int n = 0; n < SHAPE::COLUMNS; n++) {
        const int32_t column = (n * FLOAT_LANES + float_lane()) * SL_QUAD;
        if (column < w.value_size) {
#pragma unroll
            for (int e = 0; e < SL_QUAD; e++) {
                y[n][e] = result.last ? mma_finish(args, gate, column + e, y[n][e], factor) : y[n][e];
            }
            mma_store2(result.y + column, y[n][0], y[n][1]);
            mma_store2(result.y + column + 2, y[n][2], y[n][3]);
        }
    }
}

/* Of the units that see keys of the range: adds it to what they have, or leaves it in the scratch. */
template <typename SHAPE>
static __device__ __forceinline__ void
float_end_range(const mma_args &args, const mma_walk &w, const float_units<SHAPE> &units, int32_t range,
                float_state<SHAPE> *state, float_totals<SHAPE> *totals) {
#pragma unroll
    for (int i = 0; i < SHAPE::MINE; i++) {
        float l = state->l[i];
#pragma unroll
        for (int distance = FLOAT_LANES / 2; distance > 0; distance /= 2) {
            l += __shfl_xor_sync(SL_FULL_WARP, l, distance);
        }
        const int32_t unit = w.first_unit + float_group() + i * SHAPE::GROUPS;
        const int32_t begin = float_ranges::of(units.from[i] / MMA_KEYS);
        const int32_t end = float_ranges::of(units.to[i] / MMA_KEYS);
        if (unit > w.last_unit || range < begin || range > end) {
            continue;
        }
        const int32_t row = w.span->first_row + unit / args.ratio;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
        if (args.partials && begin < end) {
            float *to =
                args.partials + (((int64_t)row * args.attention.heads + head) * args.splits + range - begin) *
                                    (DECODE_HEAD + w.value_size);
            if (float_lane() == 0) {
                *(float2 *)to = make_float2(state->m[i], l);
            }
#pragma unroll
            for (int n = 0; n < SHAPE::COLUMNS; n++) {
                const int32_t column = (n * FLOAT_LANES + float_lane()) * SL_QUAD;
                const float *y = state->y[i][n];
                if (column < w.value_size) {
                    *(float4 *)(to + DECODE_HEAD + column) = make_float4(y[0], y[1], y[2], y[3]);
                }
            }
            continue;
        }
        float2 factors;
        mma_merge(state->m[i], l, &totals->largest[i], &totals->sum[i], &factors.x, &factors.y);
        const float_result result = {row, head, sl_f32(args.y, row) + head * w.value_size, range == begin,
                                     range == end};
        float_add<SHAPE>(args, w, result, factors, totals->sum[i], state->y[i]);
    }
}

/* ---- the kernel ---- */

/* From `tile` on, the first one that has a page. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t float_tile(const mma_walk &w, int32_t tile, int32_t last) {
    while (tile <= last && w.table[tile / SHAPE::PARTS] < 0) {
        tile++;
    }
    return tile;
}

/* A tile, the one behind it, and the block's last one. */
typedef struct float_turn {
    int32_t tile, next, last;
} float_turn;

/* Keys and values of the tile are on their way; leaves those of the next one on theirs. */
template <typename SHAPE>
static __device__ __forceinline__ void
float_do_tile(const mma_args &args, const mma_walk &w, const float_memory &memory,
              const float_units<SHAPE> &units, const float_turn &turn, float_state<SHAPE> *state) {
    const int32_t base = turn.tile * SHAPE::KEYS, end = base + SHAPE::KEYS - 1;
    const int32_t first_index = w.length + w.first_unit / args.ratio;
    const bool edge = end > first_index || base < mma_first_seen(w.window, w.highest);
    const bool works = w.first_unit + (int32_t)threadIdx.x / SL_WARP * (SL_WARP / FLOAT_LANES) <= w.last_unit;
    sl_copy_wait<1>();
    __syncthreads(); /* the keys are there */
    if (works) {
        float s[SHAPE::MINE][SHAPE::NEAR];
        float_scores<SHAPE>(memory, w.key_size, s);
        float_weigh<SHAPE>(args, units, base, s, state, (float *)memory.weights);
    }
    __syncthreads(); /* nobody reads the keys any more */
    float_fetch<SHAPE, true>(w, turn.next, turn.last, memory.keys);
    sl_copy_wait<1>();
    __syncthreads(); /* the values are there, and all weights */
    if (works) {
        if (edge) {
            float_values<SHAPE, true>(memory, state);
        } else {
            float_values<SHAPE, false>(memory, state);
        }
    }
    __syncthreads(); /* nobody reads the values and the weights any more */
    float_fetch<SHAPE, false>(w, turn.next, turn.last, memory.values);
}

/* WALK: a block has all ranges of its units, one after the other; else one of them. */
template <typename SHAPE, bool WALK>
static __global__ void __launch_bounds__(SHAPE::THREADS, SHAPE::BLOCKS)
    float_tiles_kernel(const __grid_constant__ sl_cuda_context context,
                       const __grid_constant__ mma_args args) {
    extern __shared__ float4 float_dynamic[];
    __shared__ mma_place place;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (threadIdx.x < SL_WARP) {
        mma_find(context, (int32_t)blockIdx.y, args.ratio, SHAPE::UNITS, &place);
    }
    __syncthreads();
    if (place.units == 0) {
        return;
    }
    mma_walk w;
    mma_start_walk(context, args, place, &w);
    int32_t range = float_ranges::of(w.first_tile) + (WALK ? 0 : (int32_t)blockIdx.z);
    const int32_t last_range = WALK ? float_ranges::of(w.last_tile) : range;
    if (!WALK && float_ranges::begin(range) > w.last_tile) {
        return;
    }
    const int32_t begin = float_ranges::begin(range) * SHAPE::PARTS, lowest = w.lowest / SHAPE::KEYS;
    const int32_t behind = float_ranges::begin(last_range + 1) * SHAPE::PARTS - 1;
    const int32_t highest = w.highest / SHAPE::KEYS, last = behind < highest ? behind : highest;
    int32_t tile = float_tile<SHAPE>(w, begin > lowest ? begin : lowest, last);
    float_memory memory;
    memory.q = float_dynamic;
    memory.keys = memory.q + SHAPE::UNITS * SHAPE::QUADS;
    memory.values = memory.keys + SHAPE::TILE;
    memory.weights = memory.values + SHAPE::TILE;
    float_fetch<SHAPE, true>(w, tile, last, memory.keys);
    float_fetch<SHAPE, false>(w, tile, last, memory.values);
    float_load_queries<SHAPE>(args, w, memory.q);
    float_units<SHAPE> units;
#pragma unroll
    for (int i = 0; i < SHAPE::MINE; i++) {
        const int32_t unit = w.first_unit + float_group() + i * SHAPE::GROUPS;
        units.to[i] = unit <= w.last_unit ? w.length + unit / args.ratio : -1;
        units.from[i] = unit <= w.last_unit ? mma_first_seen(w.window, units.to[i]) : 0;
    }
    float_totals<SHAPE> totals;
    if (WALK) {
        float_start_totals<SHAPE>(args, w, &totals);
    }
    for (; range <= last_range; range++) {
        const int32_t end = WALK ? float_ranges::begin(range + 1) * SHAPE::PARTS - 1 : last;
        float_state<SHAPE> state;
        float_start<SHAPE>(&state);
        while (tile <= end && tile <= last) {
            const int32_t next = float_tile<SHAPE>(w, tile + 1, last);
            float_do_tile<SHAPE>(args, w, memory, units, {tile, next, last}, &state);
            tile = next;
        }
        if (!WALK) {
            float_start_totals<SHAPE>(args, w, &totals);
        }
        float_end_range<SHAPE>(args, w, units, range, &state, &totals);
    }
    sl_copy_wait_all();
}

#endif
