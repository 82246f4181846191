/* What wgmma_prompt.cu works with: which units a block takes, and how queries, keys and values come to shared
 * memory. */
#ifndef SL_BACKEND_CUDA_ATTENTION_WGMMA_WORK_CUH
#define SL_BACKEND_CUDA_ATTENTION_WGMMA_WORK_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma_tiles.cuh"
#include "backend/cuda/attention/page_maps.cuh"
#include "backend/cuda/attention/mma.h"

enum {
    WGMMA_GROUPS = 2, /* of four warps, that multiply */
    WGMMA_MULTIPLIERS = 128 * WGMMA_GROUPS,
    WGMMA_THREADS = 128 + WGMMA_MULTIPLIERS,
    WGMMA_LOADERS = 96, /* threads that convert queries */
    /* Named barriers: of a group; a run is there, for each place and group; it has been read, for each place;
     * of all that multiply */
    BARRIER_GROUP = 1,
    BARRIER_FULL = 3,
    BARRIER_EMPTY = 7,
    BARRIER_BOTH = 9
};

/* SIZE: columns of keys, VALUE_SIZE: of values. WIDE: a lane has no registers for all columns of y; both
 * groups have the same units then, and half of the columns each. VALUES: columns of a group. UNITS: of a run.
 * COLUMNS, VALUE_COLUMNS: of a row in shared memory. STAGES: tiles of keys, and of values, in shared memory.
 * RUNS: that are known at a time; QUERIES: whose queries are there. */
template <int SIZE, bool SPLIT, int VALUE_SIZE = SIZE> struct wgmma_shape {
    static constexpr bool WIDE = SIZE > 256;
    static constexpr int UNITS = WIDE ? 64 : 64 * WGMMA_GROUPS,
                         VALUES = WIDE ? VALUE_SIZE / WGMMA_GROUPS : VALUE_SIZE;
    static constexpr int STAGES = WIDE ? 1 : 2;
    static constexpr int KEYS = SIZE <= 192 && VALUE_SIZE <= 128 && !SPLIT ? 128 : 64;
    static constexpr int PAGES = KEYS / SL_PAGE_TOKENS;
    static constexpr int BOXES = (SIZE + 63) / 64, COLUMNS = 64 * BOXES;
    static constexpr int VALUE_BOXES = (VALUE_SIZE + 63) / 64, VALUE_COLUMNS = 64 * VALUE_BOXES;
    static constexpr int RUNS = 2, QUERIES = SIZE <= 128 ? 2 : 1;
    static constexpr int Q_BYTES = 64 * COLUMNS * 2, TILE_BYTES = KEYS * COLUMNS * 2; /* Q: of 64 units */
    static constexpr int VALUE_BYTES = KEYS * VALUE_COLUMNS * 2;                      /* a tile of values */
    static constexpr int ALL_Q_BYTES = QUERIES * (UNITS / 64) * Q_BYTES;
    static constexpr int BYTES =
        ALL_Q_BYTES + STAGES * (TILE_BYTES + VALUE_BYTES) + 1024; /* 1024: to align */
};

/* A run, for those who multiply; units is 0 behind the last. */
typedef struct wgmma_run {
    const int32_t *table;
    int32_t first_row;   /* of the span, in the step */
    int32_t length;      /* of the span: keys before its rows */
    int32_t keys;        /* of the span with its rows */
    int32_t unit, units; /* numbered in the span */
    int32_t kv_head;
    int32_t tile, last_tile;
} wgmma_run;

template <int RUNS, int STAGES> struct wgmma_shared {
    uint64_t full_keys[STAGES], full_values[STAGES], empty_keys[STAGES], empty_values[STAGES];
    wgmma_run runs[RUNS];
};

/* How a run's keys are cut for several blocks: not at all; or as `of` and `begin` of mma_ranges or mma_chunks
 * say, in tiles of MMA_KEYS. What a block has of a run is then a run of its own. */
struct wgmma_whole {};
template <typename CUT> static constexpr bool WGMMA_CUTS = true;
template <> constexpr bool WGMMA_CUTS<wgmma_whole> = false;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of a thread that feeds, and of one that multiplies: together they are the multiprocessor's. */
static constexpr int WGMMA_FEW_REGISTERS = 56, WGMMA_MANY_REGISTERS = 224;

/* ---- instructions ---- */

/* Where 16 bytes of a tile of `rows` rows lie. */
static __device__ __forceinline__ uint32_t swizzled(int32_t rows, int32_t row, int32_t piece) {
    return (uint32_t)((piece / 8 * rows + row) * 128 + ((piece ^ row) & 7) * 16);
}

/* ---- finding work ---- */

/* Ranges of the keys that `rows` rows behind `length` keys see. */
template <typename CUT>
static __device__ __forceinline__ int32_t wgmma_cuts(int32_t window, int32_t length, int32_t rows) {
    return CUT::of((length + rows - 1) / MMA_KEYS) - CUT::of(mma_first_seen(window, length) / MMA_KEYS) + 1;
}

/* Of a run's tiles those in the range that is the `range`-th of its span. If the rows see none of it: its
 * tile next to theirs, as every run has one, and nobody sees that. */
template <typename SHAPE, typename CUT>
static __device__ __forceinline__ void wgmma_cut(const sl_cuda_cache &cache, int32_t range, wgmma_run *run) {
    constexpr int PAGES = SHAPE::KEYS / MMA_KEYS;
    range += CUT::of(mma_first_seen(cache.window, run->length) / MMA_KEYS);
    const int32_t first = CUT::begin(range) / PAGES, last = CUT::begin(range + 1) / PAGES - 1;
    run->tile = min(max(run->tile, first), last);
    run->last_tile = max(min(run->last_tile, last), first);
}

/* Run `number` of the step, by a whole warp: the last ones of the last span first, because they have the most
 * keys. Of runs that are cut, the last range of each first. */
template <typename SHAPE, typename CUT = wgmma_whole>
static __device__ __forceinline__ wgmma_run wgmma_find(const sl_cuda_context &context, const mma_args &args,
                                                       int32_t number) {
    const int32_t group = args.attention.place.group, lane = (int32_t)threadIdx.x % SL_WARP;
    const sl_cuda_cache &cache = context.caches[group];
    const int32_t spans = context.header->spans, block = number / cache.kv_heads;
    int32_t before = 0, found = 0, range = 0;
    wgmma_run run = {};
    for (int32_t top = spans; top > 0 && before <= block; top -= SL_WARP) {
        const int32_t s = top - 1 - lane;
        const bool takes = s >= 0 && sl_direct_takes(&args.direct, &context.spans[s]) &&
                           sl_decoded_takes(&args.decoded, context.spans[s].slot);
        const int32_t rows = takes ? context.spans[s].row_count : 0;
        const int32_t units = args.beside && rows == 1 ? 0 : rows * args.ratio;
        const int32_t runs = (units + SHAPE::UNITS - 1) / SHAPE::UNITS;
        int32_t items = runs;
        if constexpr (WGMMA_CUTS<CUT>) {
            items = runs > 0 ? runs * wgmma_cuts<CUT>(cache.window, context.spans[s].length[group], rows) : 0;
        }
        int32_t end = items;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        const uint32_t mine = __ballot_sync(SL_FULL_WARP, block >= end - items && block < end);
        if (mine != 0) {
            const int32_t owner = __ffs((int32_t)mine) - 1;
            found = __shfl_sync(SL_FULL_WARP, s, owner);
            int32_t place = __shfl_sync(SL_FULL_WARP, end, owner) - 1 - block;
            if constexpr (WGMMA_CUTS<CUT>) {
                const int32_t each = __shfl_sync(SL_FULL_WARP, runs, owner);
                range = place / each;
                place -= range * each;
            }
            run.unit = place * SHAPE::UNITS;
            run.units = __shfl_sync(SL_FULL_WARP, units, owner) - run.unit;
            run.units = run.units < SHAPE::UNITS ? run.units : SHAPE::UNITS;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
    if (run.units > 0) {
        const sl_step_span &span = context.spans[found];
        run.table = cache.table + (int64_t)span.slot * context.table_width;
        run.first_row = span.first_row;
        run.length = span.length[group];
        run.keys = run.length + span.row_count;
        run.kv_head = number % cache.kv_heads;
        run.tile = mma_first_seen(cache.window, run.length + run.unit / args.ratio) / SHAPE::KEYS;
        run.last_tile = (run.length + (run.unit + run.units - 1) / args.ratio) / SHAPE::KEYS;
        if constexpr (WGMMA_CUTS<CUT>) {
            wgmma_cut<SHAPE, CUT>(cache, range, &run);
        }
    }
    return run;
}

/* The block's run in its round `round`: to and fro, so that each block has some long ones and some short. */
static __device__ __forceinline__ int32_t wgmma_turn(int32_t round) {
    const int32_t blocks = (int32_t)gridDim.x, block = (int32_t)blockIdx.x;
    return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

/* ---- feeding ---- */

/* A tile of keys or of values. */
typedef struct wgmma_tile {
    const CUtensorMap *map;
    const int32_t *table;
    int32_t first_page, last_page; /* pages behind the last one: that one again */
    int32_t row, layer, layers;
} wgmma_tile;

/* By one thread. A box of keys is 64 columns of all keys, one of values all columns of a page. */
template <typename SHAPE>
static __device__ __forceinline__ void wgmma_copy(const wgmma_tile &tile, bool is_key, uint32_t to,
                                                  uint32_t full) {
    const int boxes = is_key ? SHAPE::BOXES : SHAPE::VALUE_BOXES;
    sl_barrier_expect(full, is_key ? SHAPE::TILE_BYTES : SHAPE::VALUE_BYTES);
#pragma unroll
    for (int p = 0; p < SHAPE::PAGES; p++) {
        const int32_t at = tile.first_page + p < tile.last_page ? tile.first_page + p : tile.last_page;
        const int32_t page = tile.table[at] > 0 ? tile.table[at] : 0;
#pragma unroll
        for (int box = 0; box < boxes; box++) {
            const int place = is_key ? box * SHAPE::PAGES + p : p * boxes + box;
            sl_box_copy(to + (uint32_t)place * 128 * SL_PAGE_TOKENS, tile.map, 64 * box, tile.row,
                        page * tile.layers + tile.layer, full);
        }
    }
}

/* By the first warp: copies all tiles of the block's runs, values behind the keys of as many tiles as those
 * who multiply go ahead with them. Of two stages the second lets both be asked for at a time. */
template <typename SHAPE, typename CUT, typename SHARED>
static __device__ __forceinline__ void wgmma_feed(const sl_cuda_context &context, const mma_args &args,
                                                  const mma_maps &maps, SHARED *shared, uint32_t keys,
                                                  uint32_t values) {
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const bool copies = threadIdx.x == 0;
    constexpr int LAG = SHAPE::STAGES == 1;
    uint32_t stage = 0, phase = 1; /* the stages are empty at first */
    for (int32_t round = 0;; round++) {
        const int32_t number = wgmma_turn(round);
        const wgmma_run run = wgmma_find<SHAPE, CUT>(context, args, number);
        if (run.units == 0) {
            return;
        }
        if (copies) {
            wgmma_tile tile;
            tile.layer = args.attention.place.layer;
            tile.layers = (int32_t)(cache.page_bytes / cache.layer_bytes);
            tile.row = run.kv_head * SL_PAGE_TOKENS;
            tile.last_page = (run.length + (run.unit + run.units - 1) / args.ratio) / SL_PAGE_TOKENS;
            tile.table = run.table;
            for (int32_t t = run.tile; t <= run.last_tile + LAG; t++) {
                const bool has_keys = LAG == 0 || t <= run.last_tile;
                if (has_keys) {
                    tile.first_page = t * SHAPE::PAGES;
                    sl_barrier_wait(sl_shared_address(&shared->empty_keys[stage]), phase);
                    tile.map = &maps.keys;
                    wgmma_copy<SHAPE>(tile, true, keys + stage * SHAPE::TILE_BYTES,
                                      sl_shared_address(&shared->full_keys[stage]));
                }
                if (LAG == 0 || t > run.tile) {
                    tile.first_page = (t - LAG) * SHAPE::PAGES;
                    sl_barrier_wait(sl_shared_address(&shared->empty_values[stage]), phase ^ LAG);
                    tile.map = &maps.values;
                    wgmma_copy<SHAPE>(tile, false, values + stage * SHAPE::VALUE_BYTES,
                                      sl_shared_address(&shared->full_values[stage]));
                }
                if (has_keys) {
                    stage ^= SHAPE::STAGES - 1;
                    phase ^= stage == 0;
                }
            }
        }
        __syncwarp();
    }
}

/* The run's units from `first` on, `count` of them, to rows of `to`, by THREADS threads. */
template <int TYPE, int COLUMNS, int THREADS, int BATCH>
static __device__ __forceinline__ void wgmma_convert(const mma_args &args, const wgmma_run &run,
                                                     int32_t key_size, int32_t first, int32_t thread,
                                                     unsigned char *to) {
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          15) == 0;
    constexpr int PIECES = COLUMNS / 8;
    const int32_t left = run.units - first, count = (left < 64 ? left : 64) * PIECES;
    for (int32_t base = thread; base < count; base += BATCH * THREADS) {
        float4 q[BATCH][2];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int32_t i = base + j * THREADS, piece = i % PIECES, unit = run.unit + first + i / PIECES;
            q[j][0] = q[j][1] = make_float4(0, 0, 0, 0);
            if (i < count && 8 * piece < key_size) {
                const int32_t row = hopper_divide(unit, args.ratio);
                const int32_t head = run.kv_head * args.ratio + unit - row * args.ratio;
                const float *from =
                    sl_f32(args.q, run.first_row + row) + head * args.attention.q_stride + 8 * piece;
                if (aligned) {
                    q[j][0] = ((const float4 *)from)[0];
                    q[j][1] = ((const float4 *)from)[1];
                } else {
                    q[j][0] = make_float4(from[0], from[1], from[2], from[3]);
                    q[j][1] = make_float4(from[4], from[5], from[6], from[7]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int32_t i = base + j * THREADS;
            const float4 a = q[j][0], b = q[j][1];
            if (i < count) {
                *(uint4 *)(to + swizzled(64, i / PIECES, i % PIECES)) = make_uint4(
                    mma_pack<TYPE>(mma_q(a.x), mma_q(a.y)), mma_pack<TYPE>(mma_q(a.z), mma_q(a.w)),
                    mma_pack<TYPE>(mma_q(b.x), mma_q(b.y)), mma_pack<TYPE>(mma_q(b.z), mma_q(b.w)));
            }
        }
    }
    sl_fence_shared(); /* written by threads, read by wgmma */
}

/* By three warps: what the block's runs are; and their queries, but for the first, which nobody has anything
 * to do before, and where there is room for one run's only. */
template <typename SHAPE, int TYPE, typename CUT, typename SHARED>
static __device__ __forceinline__ void wgmma_load(const sl_cuda_context &context, const mma_args &args,
                                                  SHARED *shared, unsigned char *queries) {
    const int32_t key_size = context.caches[args.attention.place.group].key_size;
    const int32_t thread = (int32_t)threadIdx.x - SL_WARP;
    for (int32_t round = 0;; round++) {
        const wgmma_run run = wgmma_find<SHAPE, CUT>(context, args, wgmma_turn(round));
        const int32_t at = round % SHAPE::RUNS;
        if (round >= SHAPE::RUNS) {
            sl_meet(BARRIER_EMPTY + at, WGMMA_LOADERS + WGMMA_MULTIPLIERS);
        }
        if (SHAPE::QUERIES > 1 && round > 0) {
            for (int32_t group = 0; group < WGMMA_GROUPS; group++) {
                wgmma_convert<TYPE, SHAPE::COLUMNS, WGMMA_LOADERS, 3>(args, run, key_size, 64 * group, thread,
                                                                      queries + (at * WGMMA_GROUPS + group) *
                                                                                    SHAPE::Q_BYTES);
            }
        }
        if (thread == 0) {
            shared->runs[at] = run;
        }
        for (int32_t group = 0; group < WGMMA_GROUPS; group++) {
            sl_meet_without_waiting(BARRIER_FULL + 2 * at + group, WGMMA_LOADERS + 128);
        }
        if (run.units == 0) {
            return;
        }
    }
}

#endif

#endif
