/* Flash attention for many rows with Hopper's wgmma, over caches of f16 and bf16.
 *
 * A unit is one row and one query head, as in mma_kernel.cuh; a run is 128 of them that read one key head. A
 * block stays and takes runs in turn, those with many keys first. Its first four warps feed the others: one
 * copies tiles of keys and of values, three convert the queries of the next run. Two groups of four warps
 * multiply 64 units each: while the scores of the next tile and the sum of this one are computed, the softmax
 * goes on. Of heads over 256 a run is 64 units; both groups compute all their scores and add up half of y's
 * columns each.
 *
 * Class "wgmma128", after the type: q and p are rounded to the type; keys in tiles of 128 (64 for heads over
 * 128, but for keys to 192 whose values to 128 leave registers) at multiples of that of their index in the
 * sequence, in rising order. Scores by
 * wgmma over steps of 16 columns, then softcap. Per tile m' = max(m, scores), corr = 2^((m - m') c), p =
 * 2^(score c - m' c) with c = scale log2 e (log2 e after a softcap); every lane adds the p of its own
 * columns, those of even and of odd pairs apart; y = y corr + p v over steps of 16 keys. l is added over the
 * four lanes of a row at the end. A sink is one more key with its logarithm as score and without value. What
 * a row does not see changes none of its bits: p = 0, corr = 1.
 *
 * SPLIT is the class "mma64/split512" of mma_kernel.cuh with the same instructions, for heads up to 128:
 * these matrix instructions add as mma does. Tiles of 64 keys, l in one chain, and every 512 keys m, l and y
 * are merged into totals, which stay in registers.
 *
 * Few rows have too few runs for all processors. With partials every range of a run's keys is a run of its
 * own, wherever it is done: mma_ranges, which begin at multiples of 1024 keys, or with SPLIT the chunks. What
 * a row has of a range goes to scratch, and mma_merge.cuh adds it up in rising order. That is the class
 * "wgmma128/split1024"; with SPLIT it is the same class. A row of one range is stored at once, as it is
 * without ranges. */
#include "backend/cuda/attention/wgmma_softmax.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- multiplying ---- */

template <int TYPE, int SIZE, int KEYS>
static __device__ __forceinline__ void wgmma_start_scores(float s[KEYS / 8][4], uint32_t q_at,
                                                          uint32_t k_at) {
    if (SIZE > 256) { /* with one stage, all operands' places would be kept from tile to tile, and spilled */
        asm volatile("" : "+r"(q_at), "+r"(k_at));
    }
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
        wgmma_scores<TYPE, KEYS>(s, wgmma_operand(q_at + (uint32_t)(step / 4 * 64 * 128 + step % 4 * 32), 16),
                                 wgmma_operand(k_at + (uint32_t)(step / 4 * KEYS * 128 + step % 4 * 32), 16),
                                 step > 0);
    }
    wgmma_commit();
}

template <int TYPE, int SIZE, int KEYS>
static __device__ __forceinline__ void wgmma_start_values(float y[SIZE / 8][4],
                                                          const uint32_t p[KEYS / 16][4], uint32_t v_at) {
    constexpr int PAGE = (SIZE + 63) / 64 * 64 * 128;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        wgmma_values<TYPE, SIZE>(
            y, p[step],
            wgmma_operand(v_at + (uint32_t)(step / 4 * PAGE + step % 4 * 2048), SL_PAGE_TOKENS * 128));
    }
    wgmma_commit();
}

/* What the chunks before amount to: as in mma_end_chunk(). */
template <int SIZE> struct wgmma_totals { float y[SIZE / 8][4], largest[2], sum[2]; };

template <typename SHAPE, int SIZE>
static __device__ __forceinline__ void wgmma_start_totals(const mma_args &args, const wgmma_run &run,
                                                          wgmma_totals<SIZE> *totals) {
    const int32_t at = wgmma_unit<SHAPE>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t head = run.kv_head * args.ratio + (run.unit + at + 8 * h) % args.ratio;
        totals->largest[h] = args.sinks ? args.sinks[head] * MMA_LOG2_E : -INFINITY;
        totals->sum[h] = args.sinks ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < SIZE / 2; e++) {
        totals->y[e / 4][e % 4] = 0;
    }
}

/* Adds a chunk, whose m and l `state` has. */
template <int SIZE>
static __device__ __forceinline__ void
wgmma_end_chunk(const wgmma_state &state, float c, const float y[SIZE / 8][4], wgmma_totals<SIZE> *totals) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float m = state.m[h] == -INFINITY ? -INFINITY : state.m[h] * c;
        float keep, add;
        mma_merge(m, mma_sum_lanes(state.l[h][0]), &totals->largest[h], &totals->sum[h], &keep, &add);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                totals->y[n][e] = totals->y[n][e] * keep + y[n][e] * add;
            }
        }
    }
}

template <typename SHAPE, int SIZE>
static __device__ __forceinline__ void wgmma_store_totals(const mma_args &args, const wgmma_run &run,
                                                          int32_t size, const wgmma_totals<SIZE> &totals) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, at = wgmma_unit<SHAPE>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t unit = run.unit + at + 8 * h;
        if (at + 8 * h >= run.units) {
            continue;
        }
        const int32_t row = run.first_row + unit / args.ratio;
        const int32_t head = run.kv_head * args.ratio + unit % args.ratio;
        const float factor = totals.sum[h] == 0.0f ? 0.0f : 1.0f / totals.sum[h];
        float *to = sl_f32(args.y, row) + head * size;
        const float *gate =
            args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            const int32_t column = 8 * n + 2 * (lane % 4);
            if (column < size) {
                mma_store2(to + column, mma_finish(args, gate, column, totals.y[n][2 * h], factor),
                           mma_finish(args, gate, column + 1, totals.y[n][2 * h + 1], factor));
            }
        }
    }
}

/* Where a group is in the ring of tiles of keys, or of values. */
typedef struct wgmma_ring {
    unsigned char *memory;
    uint32_t start, full, empty; /* the tiles, the barriers */
    uint32_t stage, phase;
} wgmma_ring;

/* The next tile, when it is there. */
static __device__ __forceinline__ void wgmma_take(const wgmma_ring &ring) {
    sl_barrier_wait(ring.full + 8 * ring.stage, ring.phase);
}

/* The warp has read it. */
template <typename SHAPE> static __device__ __forceinline__ void wgmma_leave(wgmma_ring *ring) {
    if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
        sl_barrier_arrive(ring->empty + 8 * ring->stage);
    }
    ring->stage ^= SHAPE::STAGES - 1;
    ring->phase ^= ring->stage == 0;
}

/* Where the group's queries of run `round` are. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ uint32_t wgmma_take_queries(const mma_args &args, const wgmma_run &run,
                                                              int32_t key_size, int32_t round,
                                                              unsigned char *memory) {
    if constexpr (SHAPE::WIDE) {
        sl_meet(BARRIER_BOTH, WGMMA_MULTIPLIERS); /* nobody reads those before any more */
        wgmma_convert<TYPE, SHAPE::COLUMNS, WGMMA_MULTIPLIERS, 8>(args, run, key_size, 0,
                                                                  (int32_t)threadIdx.x - 128, memory);
        sl_meet(BARRIER_BOTH, WGMMA_MULTIPLIERS);
        return sl_shared_address(memory);
    }
    const int32_t group = (int32_t)threadIdx.x / 128 - 1;
    unsigned char *queries =
        memory + (round % SHAPE::QUERIES * WGMMA_GROUPS + group) * (int32_t)SHAPE::Q_BYTES;
    if (SHAPE::QUERIES == 1 || round == 0) {
        wgmma_convert<TYPE, SHAPE::COLUMNS, 128, 8>(args, run, key_size, 64 * group,
                                                    (int32_t)threadIdx.x % 128, queries);
        sl_meet(BARRIER_GROUP + group, 128);
    }
    return sl_shared_address(queries);
}

/* What a group reads for a run. */
typedef struct wgmma_part {
    const wgmma_run &run;
    const wgmma_view &view;
    wgmma_ring *keys, *values;
} wgmma_part;

/* Tiles `first` to `last` of a run: y, m and l of their keys. */
template <typename SHAPE, int TYPE, int SIZE, bool SPLIT>
static __device__ __forceinline__ void wgmma_do_tiles(const wgmma_part &part, int32_t first, int32_t last,
                                                      wgmma_state *state, float (&y)[SHAPE::VALUES / 8][4]) {
    constexpr int KEYS = SHAPE::KEYS, VALUES = SHAPE::VALUES;
    const wgmma_run &run = part.run;
    const wgmma_view &view = part.view;
    wgmma_ring *const keys = part.keys, *const values = part.values;
    float s[KEYS / 8][4], correction[2];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int e = 0; e < VALUES / 2; e++) {
        y[e / 4][e % 4] = 0;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        state->m[h] = -INFINITY;
        state->l[h][0] = state->l[h][1] = 0;
    }
    wgmma_take(*keys);
    wgmma_fence();
    wgmma_start_scores<TYPE, SIZE, KEYS>(s, view.queries, keys->start + keys->stage * SHAPE::TILE_BYTES);
    wgmma_wait<0>();
    wgmma_leave<SHAPE>(keys);
    wgmma_weigh<KEYS, SPLIT>(state, s, view, first * KEYS, correction);
    wgmma_pack<TYPE, KEYS>(s, p);
    for (int32_t tile = first + 1; tile <= last; tile++) {
        wgmma_take(*keys);
        wgmma_fence();
        wgmma_start_scores<TYPE, SIZE, KEYS>(s, view.queries, keys->start + keys->stage * SHAPE::TILE_BYTES);
        wgmma_take(*values);
        wgmma_start_values<TYPE, VALUES, KEYS>(y, p, values->start + values->stage * SHAPE::VALUE_BYTES);
        wgmma_wait<1>();
        wgmma_leave<SHAPE>(keys);
        wgmma_weigh<KEYS, SPLIT>(state, s, view, tile * KEYS, correction);
        wgmma_wait<0>();
        wgmma_leave<SHAPE>(values);
#pragma unroll
        for (int e = 0; e < VALUES / 2; e++) {
            y[e / 4][e % 4] *= correction[e % 4 / 2];
        }
        wgmma_pack<TYPE, KEYS>(s, p);
    }
    wgmma_take(*values);
    if ((last + 1) * KEYS > run.keys) {
        wgmma_clear<SHAPE>(values->memory + values->stage * SHAPE::VALUE_BYTES, last * KEYS, run.keys);
    }
    wgmma_fence();
    wgmma_start_values<TYPE, VALUES, KEYS>(y, p, values->start + values->stage * SHAPE::VALUE_BYTES);
    wgmma_wait<0>();
    wgmma_leave<SHAPE>(values);
}

/* What a run's rows have of the range it is in: to its place among the row's ranges, or if there is no other
 * as the result. */
template <typename SHAPE, bool SPLIT, typename CUT>
static __device__ __forceinline__ void wgmma_store_range(const mma_args &args, const wgmma_run &run,
                                                         const wgmma_state &state, const wgmma_view &view,
                                                         const float y[SHAPE::VALUES / 8][4]) {
    const int32_t first = SHAPE::WIDE ? ((int32_t)threadIdx.x / 128 - 1) * SHAPE::VALUES : 0;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, at = wgmma_unit<SHAPE>(), size = view.value_size;
    const int32_t range = CUT::of(run.tile * (SHAPE::KEYS / MMA_KEYS));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float l = mma_sum_lanes(state.l[h][0] + state.l[h][1]);
        const float m = state.m[h] == -INFINITY ? -INFINITY : state.m[h] * view.c;
        const int32_t unit = run.unit + at + 8 * h;
        const int32_t begin = CUT::of(mma_first_seen(view.window, state.index[h]) / MMA_KEYS);
        const int32_t end = CUT::of(state.index[h] / MMA_KEYS);
        if (at + 8 * h >= run.units || range < begin || range > end) {
            continue;
        }
        const int32_t row = run.first_row + unit / args.ratio;
        const int32_t head = run.kv_head * args.ratio + unit % args.ratio;
        if (begin < end) {
            float *to =
                args.partials + (((int64_t)row * args.attention.heads + head) * args.splits + range - begin) *
                                    (DECODE_HEAD + size);
            if (lane % 4 == 0 && first == 0) {
                mma_store2(to, m, l);
            }
#pragma unroll
            for (int n = 0; n < SHAPE::VALUES / 8; n++) {
                const int32_t column = first + 8 * n + 2 * (lane % 4);
                if (column < size) {
                    *(float2 *)(to + DECODE_HEAD + column) = make_float2(y[n][2 * h], y[n][2 * h + 1]);
                }
            }
            continue;
        }
        float largest = args.sinks ? args.sinks[head] * MMA_LOG2_E : -INFINITY;
        float sum = args.sinks ? 1.0f : 0.0f, keep, add;
        mma_merge(m, l, &largest, &sum, &keep, &add);
        const float factor = sum == 0.0f ? 0.0f : (SPLIT ? 1.0f : add) / sum;
        float *to = sl_f32(args.y, row) + head * size;
        const float *gate =
            args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
#pragma unroll
        for (int n = 0; n < SHAPE::VALUES / 8; n++) {
            const int32_t column = first + 8 * n + 2 * (lane % 4);
            /* With SPLIT as chunks are merged. */
            const float a = SPLIT ? 0.0f * keep + y[n][2 * h] * add : y[n][2 * h];
            const float b = SPLIT ? 0.0f * keep + y[n][2 * h + 1] * add : y[n][2 * h + 1];
            if (column < size) {
                mma_store2(to + column, mma_finish(args, gate, column, a, factor),
                           mma_finish(args, gate, column + 1, b, factor));
            }
        }
    }
}

/* A group's part of one run. */
template <typename SHAPE, int TYPE, int SIZE, bool SPLIT, typename CUT>
static __device__ __forceinline__ void wgmma_do_run(const mma_args &args, const wgmma_run &run,
                                                    wgmma_view *view, wgmma_ring *keys, wgmma_ring *values) {
    wgmma_state state;
    float y[SHAPE::VALUES / 8][4];
    const wgmma_part part = {run, *view, keys, values};
    wgmma_start_run<SHAPE>(args, run, view, &state);
    if constexpr (WGMMA_CUTS<CUT>) {
        wgmma_do_tiles<SHAPE, TYPE, SIZE, SPLIT>(part, run.tile, run.last_tile, &state, y);
        wgmma_store_range<SHAPE, SPLIT, CUT>(args, run, state, *view, y);
    } else if constexpr (SPLIT) {
        wgmma_totals<SIZE> totals;
        wgmma_start_totals<SHAPE, SIZE>(args, run, &totals);
        for (int32_t first = run.tile; first <= run.last_tile;) {
            const int32_t end = (first / MMA_CHUNK_TILES + 1) * MMA_CHUNK_TILES - 1;
            const int32_t last = end < run.last_tile ? end : run.last_tile;
            wgmma_do_tiles<SHAPE, TYPE, SIZE, true>(part, first, last, &state, y);
            wgmma_end_chunk<SIZE>(state, view->c, y, &totals);
            first = last + 1;
        }
        wgmma_store_totals<SHAPE, SIZE>(args, run, view->value_size, totals);
    } else {
        wgmma_do_tiles<SHAPE, TYPE, SIZE, false>(part, run.tile, run.last_tile, &state, y);
        wgmma_store<SHAPE>(args, run, state, view->c, view->value_size, y);
    }
}

/* By the two groups: all runs of the block. */
template <typename SHAPE, int TYPE, int SIZE, bool SPLIT, typename CUT, typename SHARED>
static __device__ __forceinline__ void wgmma_multiply(const sl_cuda_context &context, const mma_args &args,
                                                      SHARED *shared, unsigned char *memory) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const int32_t full = BARRIER_FULL + (int32_t)threadIdx.x / 128 - 1;
    unsigned char *keys_memory = memory + SHAPE::ALL_Q_BYTES;
    unsigned char *values_memory = keys_memory + SHAPE::STAGES * SHAPE::TILE_BYTES;
    /* Of the group's columns: boxes of 64. */
    const uint32_t own =
        SHAPE::WIDE ? ((uint32_t)threadIdx.x / 128 - 1) * SHAPE::VALUES * SL_PAGE_TOKENS * 2 : 0;
    wgmma_ring keys = {keys_memory,
                       sl_shared_address(keys_memory),
                       sl_shared_address(shared->full_keys),
                       sl_shared_address(shared->empty_keys),
                       0,
                       0};
    wgmma_ring values = {values_memory,
                         sl_shared_address(values_memory) + own,
                         sl_shared_address(shared->full_values),
                         sl_shared_address(shared->empty_values),
                         0,
                         0};
    wgmma_view view = {
        args.attention.scale, args.attention.softcap, 0, cache.window, cache.value_size, 0, 0, 0};
    view.c = view.softcap > 0 ? MMA_LOG2_E : view.scale * MMA_LOG2_E;
    for (int32_t round = 0;; round++) {
        const int32_t place = round % SHAPE::RUNS;
        sl_meet(full + 2 * place, WGMMA_LOADERS + 128);
        const wgmma_run run = shared->runs[place];
        if (run.units == 0) {
            return;
        }
        view.queries = wgmma_take_queries<SHAPE, TYPE>(args, run, cache.key_size, round, memory);
        wgmma_do_run<SHAPE, TYPE, SIZE, SPLIT, CUT>(args, run, &view, &keys, &values);
        sl_meet_without_waiting(BARRIER_EMPTY + place, WGMMA_LOADERS + WGMMA_MULTIPLIERS);
    }
}
#endif

template <int TYPE, int SIZE, bool SPLIT, int VALUE_SIZE, typename CUT>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1)
    wgmma_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ mma_args args,
                 const __grid_constant__ mma_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef wgmma_shape<SIZE, SPLIT, VALUE_SIZE> SHAPE;
    sl_wait_for_inputs();
    if (args.beside) {
        sl_let_next_begin();
    }
    extern __shared__ uint4 mma_memory[];
    __shared__ wgmma_shared<SHAPE::RUNS, SHAPE::STAGES> shared;
    unsigned char *memory = (unsigned char *)(((uint64_t)mma_memory + 1023) & ~UINT64_C(1023));
    if (threadIdx.x == 0) {
        for (int i = 0; i < SHAPE::STAGES; i++) {
            sl_barrier_init(sl_shared_address(&shared.full_keys[i]), 1);
            sl_barrier_init(sl_shared_address(&shared.full_values[i]), 1);
            sl_barrier_init(sl_shared_address(&shared.empty_keys[i]),
                            WGMMA_MULTIPLIERS / SL_WARP * SL_ARRIVING_LANES);
            sl_barrier_init(sl_shared_address(&shared.empty_values[i]),
                            WGMMA_MULTIPLIERS / SL_WARP * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        sl_give_registers<WGMMA_FEW_REGISTERS>();
        if (threadIdx.x < SL_WARP) {
            const uint32_t keys = sl_shared_address(memory) + SHAPE::ALL_Q_BYTES;
            wgmma_feed<SHAPE, CUT>(context, args, maps, &shared, keys,
                                   keys + SHAPE::STAGES * SHAPE::TILE_BYTES);
        } else {
            wgmma_load<SHAPE, TYPE, CUT>(context, args, &shared, memory);
        }
    } else {
        sl_take_registers<WGMMA_MANY_REGISTERS>();
        wgmma_multiply<SHAPE, TYPE, SIZE, SPLIT, CUT>(context, args, &shared, memory);
    }
#else
    (void)context;
    (void)args;
    (void)maps;
#endif
}

/* ---- launches ---- */

template <int TYPE, int SIZE, bool SPLIT, int VALUE_SIZE, typename CUT>
static cudaError_t launch_cut(const sl_cuda_context *context, const mma_args *args,
                              const mma_launch_shape *shape, cudaStream_t stream) {
    mma_maps maps;
    cudaError_t code =
        sl_page_maps_make(&context->caches[args->attention.place.group], SL_PAGE_TOKENS, &maps);
    if (code != cudaSuccess) {
        return code;
    }
    typedef wgmma_shape<SIZE, SPLIT, VALUE_SIZE> SHAPE;
    const int32_t cuts = WGMMA_CUTS<CUT> ? args->splits : 1;
    const int32_t runs =
        cuts * shape->kv_heads * mma_runs(shape->rows, shape->spans, args->ratio, SHAPE::UNITS);
    const sl_launch_shape blocks = {dim3((unsigned)(runs < context->processors ? runs : context->processors)),
                                    dim3(WGMMA_THREADS), (uint32_t)SHAPE::BYTES};
    return sl_launch(context, stream, blocks, wgmma_kernel<TYPE, SIZE, SPLIT, VALUE_SIZE, CUT>, *context,
                     *args, maps);
}

template <bool SPLIT> struct wgmma_cut_of { typedef mma_ranges type; };
template <> struct wgmma_cut_of<true> { typedef mma_chunks type; };

template <int TYPE, int SIZE, bool SPLIT, int VALUE_SIZE = SIZE>
static cudaError_t launch(const sl_cuda_context *context, const mma_args *args, const mma_launch_shape *shape,
                          cudaStream_t stream) {
    typedef typename wgmma_cut_of<SPLIT>::type CUT;
    return args->partials
               ? launch_cut<TYPE, SIZE, SPLIT, VALUE_SIZE, CUT>(context, args, shape, stream)
               : launch_cut<TYPE, SIZE, SPLIT, VALUE_SIZE, wgmma_whole>(context, args, shape, stream);
}

#define FOR_SIZE(size, what)                                                                                 \
    if ((size) <= 64) {                                                                                      \
        what(64);                                                                                            \
    } else if ((size) <= 96) {                                                                               \
        what(96);                                                                                            \
    } else if ((size) <= 128) {                                                                              \
        what(128);                                                                                           \
    } else if ((size) <= 192) {                                                                              \
        what(192);                                                                                           \
    } else if ((size) <= 256) {                                                                              \
        what(256);                                                                                           \
    } else {                                                                                                 \
        what(512);                                                                                           \
    }

cudaError_t sl_wgmma_prompt_launch(const sl_cuda_context *context, const mma_args *args,
                                   const mma_launch_shape *shape, cudaStream_t stream) {
    const bool bf16 = context->caches[args->attention.place.group].type == SL_QTYPE_BF16;
#define LAUNCH(SIZE)                                                                                         \
    return bf16 ? launch<SL_QTYPE_BF16, SIZE, false>(context, args, shape, stream)                           \
                : launch<SL_QTYPE_F16, SIZE, false>(context, args, shape, stream)
    if (shape->uneven) { /* of latent attention's long prompts */
        return bf16 ? launch_cut<SL_QTYPE_BF16, 192, false, 128, wgmma_whole>(context, args, shape, stream)
                    : launch_cut<SL_QTYPE_F16, 192, false, 128, wgmma_whole>(context, args, shape, stream);
    }
    FOR_SIZE(shape->size, LAUNCH)
}

#define FOR_SPLIT_SIZE(size, what)                                                                           \
    if ((size) <= 64) {                                                                                      \
        what(64);                                                                                            \
    } else {                                                                                                 \
        what(128);                                                                                           \
    }

cudaError_t sl_wgmma_prompt_launch_split(const sl_cuda_context *context, const mma_args *args,
                                         const mma_launch_shape *shape, cudaStream_t stream) {
    const bool bf16 = context->caches[args->attention.place.group].type == SL_QTYPE_BF16;
#define LAUNCH_SPLIT(SIZE)                                                                                   \
    return bf16 ? launch<SL_QTYPE_BF16, SIZE, true>(context, args, shape, stream)                            \
                : launch<SL_QTYPE_F16, SIZE, true>(context, args, shape, stream)
    FOR_SPLIT_SIZE(shape->size, LAUNCH_SPLIT)
}

template <int TYPE, int SIZE, bool SPLIT, int VALUE_SIZE, typename CUT> static cudaError_t prepare_cut(void) {
    return cudaFuncSetAttribute(wgmma_kernel<TYPE, SIZE, SPLIT, VALUE_SIZE, CUT>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                wgmma_shape<SIZE, SPLIT, VALUE_SIZE>::BYTES);
}

template <int TYPE, int SIZE, bool SPLIT> static cudaError_t prepare(void) {
    const cudaError_t code = prepare_cut<TYPE, SIZE, SPLIT, SIZE, wgmma_whole>();
    return code ? code : prepare_cut<TYPE, SIZE, SPLIT, SIZE, typename wgmma_cut_of<SPLIT>::type>();
}

cudaError_t sl_wgmma_prompt_prepare(void) {
    static const int32_t sizes[] = {64, 96, 128, 192, 256, 512};
    cudaError_t code = prepare_cut<SL_QTYPE_F16, 192, false, 128, wgmma_whole>();
    code = code ? code : prepare_cut<SL_QTYPE_BF16, 192, false, 128, wgmma_whole>();
    for (int i = 0; i < 6 && code == cudaSuccess; i++) {
#define PREPARE(SIZE)                                                                                        \
    code = prepare<SL_QTYPE_F16, SIZE, false>();                                                             \
    code = code == cudaSuccess ? prepare<SL_QTYPE_BF16, SIZE, false>() : code
        FOR_SIZE(sizes[i], PREPARE)
    }
    for (int i = 0; i < 3 && code == cudaSuccess; i += 2) {
#define PREPARE_SPLIT(SIZE)                                                                                  \
    code = prepare<SL_QTYPE_F16, SIZE, true>();                                                              \
    code = code == cudaSuccess ? prepare<SL_QTYPE_BF16, SIZE, true>() : code
        FOR_SPLIT_SIZE(sizes[i], PREPARE_SPLIT)
    }
    return code;
}
