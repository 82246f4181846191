/* Latent attention for many rows with Hopper's wgmma, over caches of f16 and bf16.
 *
 * Units and runs are those of wgmma_prompt.cu, 64 units a run, of which all see the same keys. A tile of 64
 * keys comes to shared memory once, for both products. Two groups of four warps multiply: the first one has
 * the scores of even tiles, the second one those of odd tiles, and each has its half of y's columns for all
 * tiles. A tile's p goes to the other group in shared memory, in place of the tile's last box, whose columns
 * are no values. So while one group is at a softmax, the other one multiplies.
 *
 * Class "wgmma64/pair", after the type: as "wgmma128", but for tiles of 64 keys, and for l: even tiles' and
 * odd tiles' p are added apart, the first ones' sum comes first at the end. */
#include "backend/cuda/attention/latent/latent.h"
#include "backend/cuda/attention/wgmma_softmax.cuh"

enum { LATENT_STAGES = 2, LATENT_RUNS = 2 /* known at a time */ };
/* What a tile is copied in: boxes of the first group's values, of the second one's, the others. */
enum { PART_FIRST, PART_SECOND, PART_REST, LATENT_PARTS };
/* Named barriers beside those of wgmma_work.cuh: p of an even tile is there, of an odd one. */
enum { BARRIER_EVEN = 3, BARRIER_ODD };

/* SIZE: columns of keys; VALUES: of values, of a group; what a head lacks is zeros. */
template <int SIZE, int ALL_VALUES> struct latent_wgmma_shape {
    static constexpr bool WIDE = true; /* both groups have the same units */
    static constexpr int UNITS = 64, KEYS = SL_PAGE_TOKENS, COLUMNS = SIZE, VALUE_COLUMNS = SIZE;
    static constexpr int VALUES = ALL_VALUES / WGMMA_GROUPS;
    static constexpr int BOXES = SIZE / 64, GROUP_BOXES = VALUES / 64;
    static constexpr int BOX_BYTES = KEYS * 128, TILE_BYTES = BOXES * BOX_BYTES;
    static constexpr int P_AT = (BOXES - 1) * BOX_BYTES;                  /* in a tile */
    static constexpr int BYTES = (1 + LATENT_STAGES) * TILE_BYTES + 1024; /* with q; 1024: to align */
    static_assert(BOXES > 2 * GROUP_BOXES && UNITS == KEYS, "p has room where no values are");

    static __device__ __forceinline__ constexpr int part_begin(int part) {
        return part * GROUP_BOXES;
    }
    static __device__ __forceinline__ constexpr int part_end(int part) {
        return part == PART_REST ? BOXES : (part + 1) * GROUP_BOXES;
    }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

typedef struct latent_shared {
    uint64_t full[LATENT_STAGES][LATENT_PARTS], empty[LATENT_STAGES][LATENT_PARTS];
    uint64_t full_run[LATENT_RUNS], empty_run[LATENT_RUNS];
    wgmma_run runs[LATENT_RUNS];
    float largest[WGMMA_GROUPS][64]; /* of the tiles up to the group's last one */
    float sums[WGMMA_GROUPS][64];    /* at the end: l of the group's tiles */
} latent_shared;

/* Where a group is in the ring of tiles. */
typedef struct latent_tile {
    uint32_t at, full, empty; /* in shared memory: the tile, and the barriers of its first part */
    uint32_t phase;
} latent_tile;

/* What a group has of a run. */
typedef struct latent_part {
    const wgmma_run &run;
    const wgmma_view &view;
    latent_shared *shared;
    latent_tile even, odd;
} latent_part;

/* A group's softmax; correction: what y is to be multiplied by before it adds p v. */
typedef struct latent_softmax {
    wgmma_state state;
    float correction[2];
    uint32_t p[SL_PAGE_TOKENS / 16][4];
} latent_softmax;

/* ---- feeding ---- */

/* By one thread: the tile at `tile.first_page`, part after part as those before are left. */
template <typename SHAPE>
static __device__ __forceinline__ void latent_copy(const wgmma_tile &tile, const latent_tile &to) {
    const int32_t page = tile.table[tile.first_page] > 0 ? tile.table[tile.first_page] : 0;
#pragma unroll
    for (int part = 0; part < LATENT_PARTS; part++) {
        constexpr int BYTES = SHAPE::BOX_BYTES;
        const uint32_t full = to.full + 8 * part;
        sl_barrier_wait(to.empty + 8 * part, to.phase ^ 1);
        sl_barrier_expect(full, (uint32_t)((SHAPE::part_end(part) - SHAPE::part_begin(part)) * BYTES));
#pragma unroll
        for (int box = SHAPE::part_begin(part); box < SHAPE::part_end(part); box++) {
            sl_box_copy(to.at + (uint32_t)(box * BYTES), tile.map, 64 * box, tile.row,
                        page * tile.layers + tile.layer, full);
        }
    }
}

/* Where the block's tile `number` is. */
template <typename SHAPE>
static __device__ __forceinline__ latent_tile latent_tile_of(latent_shared *shared, uint32_t tiles,
                                                             uint32_t number) {
    const uint32_t stage = number % LATENT_STAGES;
    return {tiles + stage * SHAPE::TILE_BYTES, sl_shared_address(shared->full[stage]),
            sl_shared_address(shared->empty[stage]), number / LATENT_STAGES % 2};
}

/* By the first warp: the block's runs, and all their tiles. */
template <typename SHAPE>
static __device__ __forceinline__ void latent_feed(const sl_cuda_context &context, const mma_args &args,
                                                   const mma_maps &maps, latent_shared *shared,
                                                   uint32_t tiles) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    uint32_t number = 0;
    for (int32_t round = 0;; round++) {
        const wgmma_run run = wgmma_find<SHAPE>(context, args, wgmma_turn(round));
        const int32_t place = round % LATENT_RUNS;
        if (threadIdx.x == 0) {
            sl_barrier_wait(sl_shared_address(&shared->empty_run[place]),
                            (uint32_t)(round / LATENT_RUNS % 2 ^ 1));
            shared->runs[place] = run;
            sl_barrier_arrive(sl_shared_address(&shared->full_run[place]));
        }
        if (run.units == 0) {
            return;
        }
        if (threadIdx.x == 0) {
            wgmma_tile tile;
            tile.map = &maps.keys;
            tile.table = run.table;
            tile.row = run.kv_head * SL_PAGE_TOKENS;
            tile.layer = args.attention.place.layer;
            tile.layers = (int32_t)(cache.page_bytes / cache.layer_bytes);
            for (tile.first_page = 0; tile.first_page <= run.last_tile; tile.first_page++) {
                latent_copy<SHAPE>(tile, latent_tile_of<SHAPE>(shared, tiles, number++));
            }
        }
        __syncwarp();
    }
}

/* ---- multiplying ---- */

static __device__ __forceinline__ int32_t latent_group(void) {
    return (int32_t)threadIdx.x / 128 - 1;
}

/* The warp has read the part. */
static __device__ __forceinline__ void latent_leave(const latent_tile &tile, int32_t part) {
    if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
        sl_barrier_arrive(tile.empty + 8 * (uint32_t)part);
    }
}

/* Begins the scores of the run's tile `number`. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_start_scores(const latent_part &at, const latent_tile &tile,
                                                           int32_t number, unsigned char *memory,
                                                           float (&s)[SHAPE::KEYS / 8][4]) {
    uint32_t q_at = at.view.queries, k_at = tile.at;
    /* Kept from tile to tile, all operands' places would be too many. */
    asm volatile("" : "+r"(q_at), "+r"(k_at));
    if ((number + 1) * SHAPE::KEYS > at.run.keys) {
#pragma unroll
        for (int part = 0; part < LATENT_PARTS; part++) {
            sl_barrier_wait(tile.full + 8 * part, tile.phase);
        }
        wgmma_clear<SHAPE>(memory + (tile.at - at.view.queries), number * SHAPE::KEYS, at.run.keys);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * SHAPE::BOXES; step++) {
        const uint32_t offset = (uint32_t)(step / 4 * SHAPE::BOX_BYTES + step % 4 * 32);
        if (step % (4 * SHAPE::GROUP_BOXES) == 0) {
            sl_barrier_wait(tile.full + (uint32_t)(step / (4 * SHAPE::GROUP_BOXES) * 8), tile.phase);
        }
        wgmma_scores<TYPE, SHAPE::KEYS>(s, wgmma_operand(q_at + offset, 16), wgmma_operand(k_at + offset, 16),
                                        step > 0);
    }
    wgmma_commit();
}

/* Begins y += p v of the group's own tile. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_start_own_values(float (&y)[SHAPE::VALUES / 8][4],
                                                               const uint32_t (&p)[SHAPE::KEYS / 16][4],
                                                               const latent_tile &tile) {
    uint32_t v_at = tile.at + (uint32_t)(SHAPE::part_begin(latent_group()) * SHAPE::BOX_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < SHAPE::KEYS / 16; step++) {
        wgmma_values<TYPE, SHAPE::VALUES>(y, p[step],
                                          wgmma_operand(v_at + (uint32_t)(step * 2048), SHAPE::BOX_BYTES));
    }
    wgmma_commit();
}

/* The same of the other group's. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_start_other_values(float (&y)[SHAPE::VALUES / 8][4],
                                                                 const latent_tile &tile) {
    const int32_t group = latent_group();
    uint32_t v_at = tile.at + (uint32_t)(SHAPE::part_begin(group) * SHAPE::BOX_BYTES);
    uint32_t p_at = tile.at + SHAPE::P_AT;
    sl_barrier_wait(tile.full + 8 * (uint32_t)group, tile.phase);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < SHAPE::KEYS / 16; step++) {
        wgmma_values<TYPE, SHAPE::VALUES>(y, wgmma_operand(p_at + (uint32_t)(step * 32), 16),
                                          wgmma_operand(v_at + (uint32_t)(step * 2048), SHAPE::BOX_BYTES));
    }
    wgmma_commit();
}

/* Softmax of the group's tile; its p and largest scores to the other group, which waits for them. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_weigh(const latent_part &at, const latent_tile &tile,
                                                    int32_t number, float (&s)[SHAPE::KEYS / 8][4],
                                                    latent_softmax *softmax) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, unit = wgmma_unit<SHAPE>(), group = latent_group();
    wgmma_weigh<SHAPE::KEYS, false>(&softmax->state, s, at.view, number * SHAPE::KEYS, softmax->correction);
    wgmma_pack<TYPE, SHAPE::KEYS>(s, softmax->p);
    const uint32_t row = tile.at + SHAPE::P_AT + (uint32_t)(unit * 128 + lane % 4 * 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (lane % 4 == 0) {
            at.shared->largest[group][unit + 8 * h] = softmax->state.m[h];
        }
#pragma unroll
        for (int n = 0; n < SHAPE::KEYS / 8; n++) {
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + (uint32_t)(h * 8 * 128 + (n ^ lane / 4) * 16)),
                         "r"(softmax->p[n / 2][n % 2 * 2 + h])
                         : "memory");
        }
    }
    sl_fence_shared();
    sl_meet_without_waiting(BARRIER_EVEN + group, WGMMA_MULTIPLIERS);
}

/* As in wgmma_weigh(), without a branch, which would wait for products under way. */
static __device__ __forceinline__ float latent_correction(float before, float largest, float c) {
    const float bias = largest == -INFINITY ? 0.0f : -largest * c;
    const float factor = mma_exp2(fmaf(before, c, bias));
    return largest == before ? 1.0f : factor;
}

/* Waits for the other group's p; m becomes that group's. */
template <typename SHAPE>
static __device__ __forceinline__ void latent_take_weights(const latent_part &at, latent_softmax *softmax) {
    wgmma_state *state = &softmax->state;
    const int32_t other = 1 - latent_group();
    sl_meet(BARRIER_EVEN + other, WGMMA_MULTIPLIERS);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float largest = at.shared->largest[other][wgmma_unit<SHAPE>() + 8 * h];
        const float correction = latent_correction(state->m[h], largest, at.view.c);
        state->l[h][0] *= correction;
        state->l[h][1] *= correction;
        state->m[h] = largest;
        softmax->correction[h] = correction;
    }
}

template <int COUNT>
static __device__ __forceinline__ void latent_rescale(float (&y)[COUNT][4], const float (&correction)[2]) {
    if (!__all_sync(SL_FULL_WARP, correction[0] == 1.0f && correction[1] == 1.0f)) {
#pragma unroll
        for (int e = 0; e < 4 * COUNT; e++) {
            y[e / 4][e % 4] *= correction[e % 4 / 2];
        }
    }
}

/* By the group of even tiles: its half of y, m, and its part of l. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_do_even(latent_part &at, unsigned char *memory,
                                                      latent_softmax *softmax,
                                                      float (&y)[SHAPE::VALUES / 8][4]) {
    const int32_t last = at.run.last_tile;
    float s[SHAPE::KEYS / 8][4];
    latent_start_scores<SHAPE, TYPE>(at, at.even, 0, memory, s);
    wgmma_wait<0>();
    latent_weigh<SHAPE, TYPE>(at, at.even, 0, s, softmax);
    for (int32_t tile = 0;; tile += 2) {
        latent_rescale(y, softmax->correction);
        latent_start_own_values<SHAPE, TYPE>(y, softmax->p, at.even);
        if (tile == last) {
            wgmma_wait<0>();
            latent_leave(at.even, PART_FIRST);
            return;
        }
        latent_take_weights<SHAPE>(at, softmax);
        wgmma_wait<0>();
        latent_leave(at.even, PART_FIRST);
        latent_rescale(y, softmax->correction);
        latent_start_other_values<SHAPE, TYPE>(y, at.odd);
        if (tile + 1 == last) {
            wgmma_wait<0>();
            latent_leave(at.odd, PART_FIRST);
            latent_leave(at.odd, PART_REST);
            return;
        }
        at.even.phase ^= 1;
        latent_start_scores<SHAPE, TYPE>(at, at.even, tile + 2, memory, s);
        wgmma_wait<1>();
        latent_leave(at.odd, PART_FIRST);
        latent_leave(at.odd, PART_REST);
        at.odd.phase ^= 1;
        wgmma_wait<0>();
        latent_weigh<SHAPE, TYPE>(at, at.even, tile + 2, s, softmax);
    }
}

/* Begins the second half of y += p v of an even tile. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void
latent_start_even_values(const latent_part &at, latent_softmax *softmax, float (&y)[SHAPE::VALUES / 8][4]) {
    latent_take_weights<SHAPE>(at, softmax);
    latent_rescale(y, softmax->correction);
    latent_start_other_values<SHAPE, TYPE>(y, at.even);
}

/* By the group of odd tiles, the same. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_do_odd(latent_part &at, unsigned char *memory,
                                                     latent_softmax *softmax,
                                                     float (&y)[SHAPE::VALUES / 8][4]) {
    const int32_t last = at.run.last_tile;
    float s[SHAPE::KEYS / 8][4];
    int32_t tile = 0;
    for (; tile < last; tile += 2) {
        latent_start_scores<SHAPE, TYPE>(at, at.odd, tile + 1, memory, s);
        wgmma_wait<0>();
        latent_start_even_values<SHAPE, TYPE>(at, softmax, y);
        latent_weigh<SHAPE, TYPE>(at, at.odd, tile + 1, s, softmax);
        wgmma_wait<0>();
        latent_leave(at.even, PART_SECOND);
        latent_leave(at.even, PART_REST);
        latent_rescale(y, softmax->correction);
        latent_start_own_values<SHAPE, TYPE>(y, softmax->p, at.odd);
        wgmma_wait<0>();
        latent_leave(at.odd, PART_SECOND);
        at.even.phase ^= 1;
        at.odd.phase ^= 1;
    }
    if (tile == last) {
        latent_start_even_values<SHAPE, TYPE>(at, softmax, y);
        wgmma_wait<0>();
        latent_leave(at.even, PART_SECOND);
        latent_leave(at.even, PART_REST);
    }
}

/* The sum of all tiles' l, in the first lane of each unit. */
template <typename SHAPE>
static __device__ __forceinline__ void latent_add_sums(latent_shared *shared, wgmma_state *state) {
    const bool first = threadIdx.x % 4 == 0;
    const int32_t unit = wgmma_unit<SHAPE>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float l = mma_sum_lanes(state->l[h][0] + state->l[h][1]);
        if (first) {
            shared->sums[latent_group()][unit + 8 * h] = l;
        }
    }
    sl_meet(BARRIER_BOTH, WGMMA_MULTIPLIERS);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        state->l[h][0] = first ? shared->sums[0][unit + 8 * h] + shared->sums[1][unit + 8 * h] : 0.0f;
        state->l[h][1] = 0.0f;
    }
}

/* By the two groups: all runs of the block. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void latent_multiply(const sl_cuda_context &context, const mma_args &args,
                                                       latent_shared *shared, unsigned char *memory) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const uint32_t queries = sl_shared_address(memory), tiles = queries + SHAPE::TILE_BYTES;
    wgmma_view view = {
        args.attention.scale, args.attention.softcap, 0, cache.window, cache.value_size, queries, 0, 0};
    view.c = view.softcap > 0 ? MMA_LOG2_E : view.scale * MMA_LOG2_E;
    uint32_t number = 0;
    for (int32_t round = 0;; round++) {
        const int32_t place = round % LATENT_RUNS;
        const wgmma_run &run = shared->runs[place];
        sl_barrier_wait(sl_shared_address(&shared->full_run[place]), (uint32_t)(round / LATENT_RUNS % 2));
        if (run.units == 0) {
            return;
        }
        /* Those before have been read: the groups have met since. */
        wgmma_convert<TYPE, SHAPE::COLUMNS, WGMMA_MULTIPLIERS, 8>(args, run, cache.key_size, 0,
                                                                  (int32_t)threadIdx.x - 128, memory);
        sl_meet(BARRIER_BOTH, WGMMA_MULTIPLIERS);
        latent_part at = {run, view, shared, latent_tile_of<SHAPE>(shared, tiles, number),
                          latent_tile_of<SHAPE>(shared, tiles, number + 1)};
        latent_softmax softmax;
        wgmma_state &state = softmax.state;
        float y[SHAPE::VALUES / 8][4];
        wgmma_start_run<SHAPE>(args, run, &view, &state);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            state.m[h] = -INFINITY;
            state.l[h][0] = state.l[h][1] = 0;
        }
#pragma unroll
        for (int e = 0; e < SHAPE::VALUES / 2; e++) {
            y[e / 4][e % 4] = 0;
        }
        if (latent_group() == 0) {
            latent_do_even<SHAPE, TYPE>(at, memory, &softmax, y);
        } else {
            latent_do_odd<SHAPE, TYPE>(at, memory, &softmax, y);
        }
        number += (uint32_t)run.last_tile + 1;
        latent_add_sums<SHAPE>(shared, &state);
        wgmma_store<SHAPE>(args, run, state, view.c, view.value_size, y);
        __syncwarp();
        if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
            sl_barrier_arrive(sl_shared_address(&shared->empty_run[place]));
        }
    }
}

static __device__ __forceinline__ void latent_start_barriers(latent_shared *shared) {
    for (int stage = 0; stage < LATENT_STAGES; stage++) {
        for (int part = 0; part < LATENT_PARTS; part++) {
            sl_barrier_init(sl_shared_address(&shared->full[stage][part]), 1);
            sl_barrier_init(sl_shared_address(&shared->empty[stage][part]),
                            128 / SL_WARP * SL_ARRIVING_LANES);
        }
    }
    for (int place = 0; place < LATENT_RUNS; place++) {
        sl_barrier_init(sl_shared_address(&shared->full_run[place]), 1);
        sl_barrier_init(sl_shared_address(&shared->empty_run[place]),
                        WGMMA_MULTIPLIERS / SL_WARP * SL_ARRIVING_LANES);
    }
    sl_barriers_ready();
}
#endif

template <int TYPE, int SIZE, int ALL_VALUES>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1)
    latent_wgmma_kernel(const __grid_constant__ sl_cuda_context context,
                        const __grid_constant__ mma_args args, const __grid_constant__ mma_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef latent_wgmma_shape<SIZE, ALL_VALUES> SHAPE;
    sl_wait_for_inputs();
    extern __shared__ uint4 latent_memory[];
    __shared__ latent_shared shared;
    unsigned char *memory = (unsigned char *)(((uint64_t)latent_memory + 1023) & ~UINT64_C(1023));
    if (threadIdx.x == 0) {
        latent_start_barriers(&shared);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        sl_give_registers<WGMMA_FEW_REGISTERS>();
        if (threadIdx.x < SL_WARP) {
            latent_feed<SHAPE>(context, args, maps, &shared, sl_shared_address(memory) + SHAPE::TILE_BYTES);
        }
    } else {
        sl_take_registers<WGMMA_MANY_REGISTERS>();
        latent_multiply<SHAPE, TYPE>(context, args, &shared, memory);
    }
#else
    (void)context;
    (void)args;
    (void)maps;
#endif
}

/* ---- launches ---- */

template <int TYPE, int SIZE, int ALL_VALUES>
static cudaError_t launch(const sl_cuda_context *context, const mma_args *args,
                          const latent_launch_shape *shape, cudaStream_t stream) {
    mma_maps maps;
    const cudaError_t code =
        sl_page_maps_make(&context->caches[args->attention.place.group], SL_PAGE_TOKENS, &maps);
    if (code != cudaSuccess) {
        return code;
    }
    typedef latent_wgmma_shape<SIZE, ALL_VALUES> SHAPE;
    const int32_t runs = shape->kv_heads * mma_runs(shape->rows, shape->spans, args->ratio, SHAPE::UNITS);
    const sl_launch_shape blocks = {dim3((unsigned)(runs < context->processors ? runs : context->processors)),
                                    dim3(WGMMA_THREADS), (uint32_t)SHAPE::BYTES};
    return sl_launch(context, stream, blocks, latent_wgmma_kernel<TYPE, SIZE, ALL_VALUES>, *context, *args,
                     maps);
}

cudaError_t sl_latent_wgmma_launch(const sl_cuda_context *context, const mma_args *args,
                                   const latent_launch_shape *shape, cudaStream_t stream) {
    const bool bf16 = context->caches[args->attention.place.group].type == SL_QTYPE_BF16;
    if (shape->key_size <= 320 && shape->value_size <= 256) {
        return bf16 ? launch<SL_QTYPE_BF16, 320, 256>(context, args, shape, stream)
                    : launch<SL_QTYPE_F16, 320, 256>(context, args, shape, stream);
    }
    return bf16 ? launch<SL_QTYPE_BF16, 576, 512>(context, args, shape, stream)
                : launch<SL_QTYPE_F16, 576, 512>(context, args, shape, stream);
}

template <int TYPE, int SIZE, int ALL_VALUES> static cudaError_t prepare(void) {
    return sl_allow_shared(latent_wgmma_kernel<TYPE, SIZE, ALL_VALUES>,
                           latent_wgmma_shape<SIZE, ALL_VALUES>::BYTES);
}

cudaError_t sl_latent_wgmma_prepare(void) {
    cudaError_t code = prepare<SL_QTYPE_F16, 576, 512>();
    code = code ? code : prepare<SL_QTYPE_BF16, 576, 512>();
    code = code ? code : prepare<SL_QTYPE_F16, 320, 256>();
    return code ? code : prepare<SL_QTYPE_BF16, 320, 256>();
}
