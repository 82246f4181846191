/* What decode.cuh works with: which rows and parts of their keys a block takes, and how those come to shared
 * memory. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DECODE_WORK_CUH
#define SL_BACKEND_CUDA_ATTENTION_DECODE_WORK_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/attention/page_maps.cuh"
#include "backend/cuda/rows/heads.cuh"
#include "backend/cuda/common/prefetch.cuh"

enum {
    DECODE_WARPS = 4, /* that multiply */
    DECODE_THREADS = 32 * (DECODE_WARPS + 1),
    DECODE_MULTIPLIERS = 32 * DECODE_WARPS,
    DECODE_BATCH = 8,  /* parts that are on their way at a time */
    DECODE_NEWEST = 2, /* the barrier at which the step's key and value are in shared memory */
    DECODE_READY = 3   /* the barrier behind which other barriers may be used */
};

/* Norms, rotation and cache write of the heads: by a launch before; in this one, of steps of one row at most
 * or of any. Where heads are made here every block has one item at most, of one row. */
typedef enum decode_heads { DECODE_APART, DECODE_ONE_ROW, DECODE_ROWS } decode_heads;

/* When the next kernel may begin: what it copies ahead stands before the keys asked for later. Not before the
 * first keys are there; or, as one row has little else to wait for, when keys that are there before the
 * inputs are asked for; or at once, where few blocks come up before their inputs are there. */
typedef enum decode_let { DECODE_AT_FIRST_KEYS, DECODE_BEHIND_EARLY_KEYS, DECODE_AT_ONCE } decode_let;

/* BYTES: of an element in a slot. BOXES: of 128 bytes of a row. COLUMNS: of keys and values, what a head
 * lacks is zeros. */
template <int TYPE, int SIZE, int UNITS_, int SLOTS_, decode_heads HEADS_, bool CHUNKS_ = false>
struct decode_shape {
    static constexpr bool RAW = TYPE == SL_QTYPE_Q8_0; /* rows as they lie in the page */
    static constexpr int UNITS = UNITS_, SLOTS = SLOTS_;
    static constexpr decode_heads HEADS = HEADS_;
    static constexpr bool ONE = HEADS != DECODE_APART;
    static constexpr bool CHUNKS = CHUNKS_; /* class "mma64/split512", decode_chunks.cuh */
    static constexpr decode_let LETS_NEXT = CHUNKS                    ? DECODE_AT_ONCE
                                            : HEADS == DECODE_ONE_ROW ? DECODE_BEHIND_EARLY_KEYS
                                                                      : DECODE_AT_FIRST_KEYS;
    static constexpr int QUADS = (SIZE + SL_QUAD * SL_WARP - 1) / (SL_QUAD * SL_WARP); /* of a lane */
    static constexpr int BYTES = TYPE == SL_QTYPE_FP8 ? 1 : 2;
    static constexpr bool APART = (RAW || BYTES == 1) && !CHUNKS; /* the columns of a step */
    static constexpr int BOXES = (SIZE * BYTES + 127) / 128;
    static constexpr int COLUMNS = RAW ? SIZE : BOXES * 128 / BYTES;
    static constexpr int SLOT = RAW ? SIZE / 32 * SL_Q8_0_BYTES * MMA_KEYS : BOXES * 128 * MMA_KEYS;
    static constexpr int STRIDE = COLUMNS + 4; /* floats of a unit where strands meet: no bank twice */
    static constexpr int STRANDS = DECODE_WARPS * UNITS * STRIDE * 4;
    static constexpr int EXCHANGE = CHUNKS ? MMA_CHUNK_TILES * MMA_KEYS * UNITS * 4 : 0;
    static constexpr int MEETING = STRANDS > EXCHANGE ? STRANDS : EXCHANGE;
    static constexpr int TOTALS = UNITS * STRIDE * 4;
    static constexpr int SHARED = 1024 + SLOTS * SLOT + MEETING + TOTALS; /* 1024: to align */
};

/* Some parts of a run of units. */
typedef struct decode_item {
    const int32_t *table;
    int32_t slot;        /* of the sequence */
    int32_t first_row;   /* in the step: of the span; with ONE the item's */
    int32_t length;      /* keys before that row */
    int32_t fresh;       /* of those, the ones before the step; with ONE it writes the others itself */
    int32_t unit, units; /* numbered in the span */
    int32_t kv_head;
    int32_t part, count;       /* the first one, from the run's first part on; how many */
    int32_t parts, part_tiles; /* of the run; of a part */
    int32_t groups;            /* items that the run's parts are in */
    int32_t tile, end;         /* tiles of all parts of the item */
    int32_t last;              /* the last key that a unit sees */
} decode_item;

/* Boxes of whole tiles, and of the 16 keys of a tile that a warp has. */
typedef struct decode_maps {
    mma_maps tiles, strands;
} decode_maps;

/* QUADS: with ONE of a lane, else 0. TILES: of a chunk, else 1. */
template <int UNITS, int SLOTS, int COLUMNS, int QUADS, int TILES> struct decode_shared {
    uint64_t full[SLOTS], empty[SLOTS];
    int32_t before[DECODE_MOST_ROWS + 1]; /* items before each span */
    int32_t value_size, total;            /* total: items of the step, where heads are made elsewhere */
    float m[DECODE_WARPS][UNITS], l[DECODE_WARPS][UNITS]; /* of the strands; m times c */
    float2 totals[2][UNITS];                              /* m and l of the parts before, by turns */
    uint32_t queries[UNITS][COLUMNS / 2 + 4];             /* pairs of q, no bank twice */
    /* Where heads are made elsewhere the item that they are of; whether both are there, and read. */
    decode_item item;
    uint64_t handed, taken;
    /* Where heads are made here the last key and value. */
    float4 newest[2][QUADS > 0 ? QUADS : 1][QUADS > 0 ? SL_WARP : 1];
    /* Of chunks each tile's largest scores by warp, and what y is multiplied by before it. */
    float largest[TILES][DECODE_WARPS][UNITS], correction[TILES][UNITS];
    bool last;
};

#if __CUDA_ARCH__ >= 900

/* ---- finding work ---- */

static __device__ __forceinline__ int32_t decode_rest(int32_t x, int32_t d) {
    return x - hopper_divide(x, d) * d;
}

/* Rows of the span before a unit's. */
template <bool ONE>
static __device__ __forceinline__ int32_t decode_rows_before(const decode_args &args, int32_t unit) {
    return ONE ? 0 : hopper_divide(unit, args.ratio);
}

/* Rows of a span in one tile of keys: they have the same parts. */
typedef struct decode_rows {
    int32_t first, count; /* in the span */
    int32_t tiles;        /* of a part */
    int32_t first_tile, last_tile, first_part;
    int32_t runs, parts, groups; /* groups: of parts, an item each */
} decode_rows;

template <int UNITS>
static __device__ __forceinline__ decode_rows decode_cut(const decode_args &args, const sl_cuda_cache &cache,
                                                         int32_t length, int32_t first, int32_t count) {
    decode_rows rows;
    const int32_t index = length + first;
    rows.first = first;
    rows.count = count;
    rows.last_tile = index / MMA_KEYS;
    rows.first_tile = mma_first_seen(cache.window, index) / MMA_KEYS;
    rows.tiles = args.part_tiles > 0 ? args.part_tiles
                                     : decode_part_tiles(rows.last_tile + 1, cache.window, cache.kv_heads);
    rows.first_part = hopper_divide(rows.first_tile, rows.tiles);
    rows.parts = hopper_divide(rows.last_tile, rows.tiles) - rows.first_part + 1;
    rows.groups = hopper_divide(rows.parts + args.item_parts - 1, args.item_parts);
    rows.runs = (count * args.ratio + UNITS - 1) / UNITS;
    return rows;
}

static __device__ __forceinline__ int32_t decode_rows_before_cut(int32_t length, int32_t rows) {
    const int32_t left = MMA_KEYS - length % MMA_KEYS;
    return rows < left ? rows : left;
}

/* Which items there are. `each`: as many for each span; 0: `before`, of the block, has those before each. */
typedef struct decode_work {
    const int32_t *before;
    int32_t each, total;
} decode_work;

/* By a whole warp: the `number`-th span of one row; behind the last -1 less how many there are. */
static __device__ __forceinline__ int32_t decode_single(const sl_cuda_context &context, int32_t number) {
    const int32_t spans = context.header->spans, lane = (int32_t)threadIdx.x % SL_WARP;
    int32_t before = 0;
    for (int32_t base = 0; base < spans; base += SL_WARP) {
        const bool single = base + lane < spans && context.spans[base + lane].row_count == 1;
        const uint32_t all = __ballot_sync(SL_FULL_WARP, single);
        const int32_t mine = before + __popc(all & ((1u << lane) - 1));
        const uint32_t found = __ballot_sync(SL_FULL_WARP, single && mine == number);
        if (found != 0) {
            return base + __ffs((int32_t)found) - 1;
        }
        before += __popc(all);
    }
    return -1 - before;
}

/* By one warp. */
template <int UNITS>
static __device__ __forceinline__ decode_work decode_list(const sl_cuda_context &context,
                                                          const decode_args &args, int32_t *before) {
    const int32_t group = args.attention.place.group, lane = (int32_t)threadIdx.x % SL_WARP;
    const sl_cuda_cache &cache = context.caches[group];
    const int32_t each = (args.ratio + UNITS - 1) / UNITS * cache.kv_heads;
    /* Brings near what will mostly be asked for next. */
    const int32_t likely = min(hopper_divide((int32_t)blockIdx.x, each), args.spans - 1);
    const int32_t slot = context.spans[likely].slot;
    const int32_t spans = context.header->spans, rows = context.header->rows;
    asm volatile("" ::"r"(slot));
    if (args.beside) {
        return {before, each, (-1 - decode_single(context, INT32_MAX)) * each};
    }
    /* One row each, its parts in one item; of more rows than DECODE_MOST_ROWS a plan gives no others. */
    if (args.spans > DECODE_MOST_ROWS || (args.item_parts >= args.most_parts && rows == spans)) {
        return {before, each, spans * each};
    }
    int32_t sum = 0;
    before[0] = 0;
    for (int32_t base = 0; base < args.spans; base += SL_WARP) {
        const int32_t s = base + lane;
        int32_t items = 0;
        if (s < args.spans) {
            const int32_t length = context.spans[s].length[group], count = context.spans[s].row_count;
            if (s < spans) {
                const int32_t cut = decode_rows_before_cut(length, count);
                const decode_rows a = decode_cut<UNITS>(args, cache, length, 0, cut);
                items = a.runs * a.groups * cache.kv_heads;
                if (cut < count) {
                    const decode_rows b = decode_cut<UNITS>(args, cache, length, cut, count - cut);
                    items += b.runs * b.groups * cache.kv_heads;
                }
            }
        }
        if (args.spans > 1) {
            for (int distance = 1; distance < SL_WARP; distance *= 2) {
                const int32_t other = __shfl_up_sync(SL_FULL_WARP, items, distance);
                items += lane >= distance ? other : 0;
            }
        }
        items += sum;
        if (s < args.spans) {
            before[s + 1] = items;
        }
        sum = __shfl_sync(SL_FULL_WARP, items, SL_WARP - 1);
    }
    __syncwarp();
    return {before, 0, before[args.spans]};
}

/* What of an item follows from the rows it belongs to: run `run`, from part `part` on, at most `most` parts.
 */
template <int UNITS, bool ONE>
static __device__ __forceinline__ void decode_choose(const decode_args &args, const decode_rows &rows,
                                                     int32_t run, int32_t part, int32_t most,
                                                     decode_item *item) {
    const int32_t units = rows.count * args.ratio - run * UNITS;
    item->parts = rows.parts;
    item->part_tiles = rows.tiles;
    item->part = part;
    item->count = rows.parts - part < most ? rows.parts - part : most;
    item->unit = rows.first * args.ratio + run * UNITS;
    item->units = units < UNITS ? units : UNITS;
    item->last = item->length + decode_rows_before<ONE>(args, item->unit + item->units - 1);
    const int32_t begin = (rows.first_part + part) * rows.tiles, end = begin + item->count * rows.tiles;
    item->tile = begin > rows.first_tile ? begin : rows.first_tile;
    item->end = end <= rows.last_tile ? end : rows.last_tile + 1;
}

/* The item of block `number` of a step of one row; count is 0 when there is none. Blocks lie [run][group of
 * parts][key head]. */
template <typename SHAPE>
static __device__ __forceinline__ decode_item decode_find_only(const sl_cuda_context &context,
                                                               const decode_args &args, int32_t number) {
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const sl_step_span &span = context.spans[0];
    decode_item item;
    item.length = item.fresh = span.length[group];
    item.first_row = 0;
    item.slot = span.slot;
    item.table = cache.table + (int64_t)span.slot * context.table_width;
    const decode_rows rows = decode_cut<SHAPE::UNITS>(args, cache, item.length, 0, 1);
    const int32_t each = SHAPE::CHUNKS ? hopper_divide(rows.parts + args.groups - 1, args.groups) : 1;
    item.groups = SHAPE::CHUNKS ? hopper_divide(rows.parts + each - 1, each) : rows.parts;
    const int32_t total = context.header->rows > 0 ? rows.runs * item.groups * cache.kv_heads : 0;
    const int32_t outer = hopper_divide(number, cache.kv_heads), run = hopper_divide(outer, item.groups);
    item.kv_head = number - outer * cache.kv_heads;
    decode_choose<SHAPE::UNITS, SHAPE::ONE>(args, rows, run, (outer - run * item.groups) * each, each, &item);
    item.count = number < total ? item.count : 0;
    return item;
}

/* The same of a step of several rows, of whatever sequences. Blocks lie [group of parts][row][run][key head].
 * Loads do not wait for each other where they need not. */
template <typename SHAPE>
static __device__ __forceinline__ decode_item decode_find_row(const sl_cuda_context &context,
                                                              const decode_args &args, int32_t number) {
    const int32_t cache_group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[cache_group];
    const int32_t runs = (args.ratio + SHAPE::UNITS - 1) / SHAPE::UNITS, of_row = runs * cache.kv_heads;
    const int32_t group = hopper_divide(number, args.rows * of_row);
    const int32_t row = hopper_divide(number - group * args.rows * of_row, of_row);
    const int32_t run_head = number - (group * args.rows + row) * of_row;
    const int32_t run = hopper_divide(run_head, cache.kv_heads), at = context.rows[row].span;
    const bool there = row < context.header->rows;
    const sl_step_span *span = &context.spans[row]; /* mostly: a row is its sequence's only one */
    int32_t slot = span->slot, length = span->length[cache_group], first_row = span->first_row;
    if (there && at != row) {
        span = &context.spans[at];
        slot = span->slot;
        length = span->length[cache_group];
        first_row = span->first_row;
    }
    decode_item item;
    item.slot = there ? slot : 0;
    item.table = cache.table + (int64_t)item.slot * context.table_width;
    item.fresh = there ? length : 0;
    item.length = item.fresh + (there ? row - first_row : 0);
    item.first_row = row;
    item.kv_head = run_head - run * cache.kv_heads;
    const decode_rows rows = decode_cut<SHAPE::UNITS>(args, cache, item.length, 0, 1);
    const int32_t each = hopper_divide(rows.parts + args.groups - 1, args.groups);
    item.groups = hopper_divide(rows.parts + each - 1, each);
    decode_choose<SHAPE::UNITS, SHAPE::ONE>(args, rows, run, group * each, each, &item);
    item.count = there && group < item.groups ? item.count : 0;
    return item;
}

template <typename SHAPE>
static __device__ __forceinline__ decode_item decode_find_own(const sl_cuda_context &context,
                                                              const decode_args &args, int32_t number) {
    return SHAPE::HEADS == DECODE_ONE_ROW ? decode_find_only<SHAPE>(context, args, number)
                                          : decode_find_row<SHAPE>(context, args, number);
}

/* By a whole warp: what item `number`, which exists, is. */
template <typename SHAPE>
static __device__ __forceinline__ decode_item decode_find(const sl_cuda_context &context,
                                                          const decode_args &args, const decode_work &work,
                                                          int32_t number) {
    const int32_t group = args.attention.place.group, lane = (int32_t)threadIdx.x % SL_WARP;
    const sl_cuda_cache &cache = context.caches[group];
    const int32_t of_each = work.each > 0 ? hopper_divide(number, work.each) : 0;
    int32_t s = args.beside ? decode_single(context, of_each) : of_each;
    for (int32_t base = 1; work.each == 0 && base < args.spans; base += SL_WARP) {
        s += __popc(
            __ballot_sync(SL_FULL_WARP, base + lane < args.spans && work.before[base + lane] <= number));
    }
    const sl_step_span &span = context.spans[s];
    decode_item item;
    item.length = span.length[group];
    item.fresh = item.length - span.written;
    item.first_row = span.first_row;
    item.slot = span.slot;
    item.table = cache.table + (int64_t)span.slot * context.table_width;
    const int32_t cut = decode_rows_before_cut(item.length, span.row_count);
    int32_t rest = number - (work.each > 0 ? of_each * work.each : work.before[s]);
    decode_rows rows = decode_cut<SHAPE::UNITS>(args, cache, item.length, 0, cut);
    const int32_t items = rows.runs * rows.groups * cache.kv_heads;
    if (rest >= items) {
        rest -= items;
        rows = decode_cut<SHAPE::UNITS>(args, cache, item.length, cut, span.row_count - cut);
    }
    const int32_t outer = hopper_divide(rest, cache.kv_heads), run = hopper_divide(outer, rows.groups);
    item.kv_head = rest - outer * cache.kv_heads;
    item.groups = rows.groups;
    decode_choose<SHAPE::UNITS, SHAPE::ONE>(args, rows, run, (outer - run * rows.groups) * args.item_parts,
                                            args.item_parts, &item);
    return item;
}

/* With ONE: whether the key of the item's row is in its tiles. */
static __device__ __forceinline__ bool decode_has_newest(const decode_item &item) {
    const int32_t tile = item.length / MMA_KEYS;
    return tile >= item.tile && tile < item.end;
}

/* ---- copying ---- */

/* A tile of keys or of values, and the slot and barrier it is for. */
typedef struct decode_load {
    int32_t kv_head, page;
    int32_t strands; /* 16 keys each: behind them nobody sees one */
    bool is_key;
    uint32_t to, barrier;
} decode_load;

/* Where tiles come from. */
typedef struct decode_source {
    const sl_cuda_cache *cache;
    const decode_args *args;
    const decode_maps *maps;
} decode_source;

/* By one thread. */
template <typename SHAPE>
static __device__ __forceinline__ void decode_copy(const decode_source &source, const decode_load &load) {
    const sl_cuda_cache &cache = *source.cache;
    const decode_maps &maps = *source.maps;
    const int32_t layer = source.args->attention.place.layer;
    if (SHAPE::RAW) {
        const uint32_t row_bytes = (uint32_t)(load.is_key ? cache.key_bytes : cache.value_bytes);
        const uint32_t bytes = 16 * (uint32_t)load.strands * row_bytes;
        const unsigned char *from =
            cache.pages + (uint64_t)load.page * cache.page_bytes + (uint64_t)layer * cache.layer_bytes +
            (load.is_key ? 0 : (uint64_t)cache.kv_heads * MMA_KEYS * cache.key_bytes) +
            (uint64_t)load.kv_head * MMA_KEYS * row_bytes;
        sl_barrier_expect(load.barrier, bytes);
        sl_bulk_copy(load.to, from, bytes, load.barrier);
        return;
    }
    sl_barrier_expect(load.barrier, SHAPE::SLOT / DECODE_WARPS * (uint32_t)load.strands);
    const bool whole = load.strands == DECODE_WARPS;
    const CUtensorMap *map = whole ? (load.is_key ? &maps.tiles.keys : &maps.tiles.values)
                                   : (load.is_key ? &maps.strands.keys : &maps.strands.values);
    for (int32_t strand = 0; strand < (whole ? 1 : load.strands); strand++) {
#pragma unroll
        for (int box = 0; box < SHAPE::BOXES; box++) {
            const uint32_t to = load.to + (uint32_t)(box * MMA_KEYS + strand * 16) * 128;
            const int32_t column = box * 128 / SHAPE::BYTES, row = load.kv_head * MMA_KEYS + strand * 16;
            const int32_t at = load.page * source.args->layers + layer;
            /* Mostly read once in a step: leaves L2 first, as weights do, which it would drive out. */
            sl_box_copy_once(to, map, column, row, at, load.barrier);
        }
    }
}

/* The tiles below `tile` may be copied before the inputs are there: nothing of this step changes them, nor
 * where they lie. The step block is there from the beginning, and tells. `settled`: nor where any tile of the
 * item lies. */
typedef struct decode_stable {
    int32_t tile;
    bool settled;
} decode_stable;

/* By a whole warp. */
template <bool ONE>
static __device__ __forceinline__ decode_stable decode_find_stable(const sl_cuda_context &context,
                                                                   const decode_args &args,
                                                                   const decode_item &item) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, group = args.attention.place.group;
    const int32_t changes = context.header->table_changes;
    int32_t changed = INT32_MAX;
    if (context.header->page_copies > 0 || changes > SL_WARP) {
        return {0, false};
    }
    if (lane < changes) {
        const sl_table_change change = context.table_changes[lane];
        changed = change.group == group && change.slot == item.slot ? change.index : INT32_MAX;
    }
    changed = __reduce_min_sync(SL_FULL_WARP, changed);
    /* With ONE the step's keys go to their tile in shared memory. */
    return {min(ONE ? item.end : item.fresh / MMA_KEYS, changed), changed >= item.end};
}

/* Where the warp that copies is. */
typedef struct decode_feeder {
    uint32_t slots, full, empty; /* shared memory; the barriers */
    uint32_t slot, phase;
} decode_feeder;

/* What of an item is copied next: load k of tiles [base, base + count), keys and values in turn; of chunks
 * the keys, then the values. `mine`: the lane's entry of the page table, from tile `base` on. */
typedef struct decode_cursor {
    int32_t base, count, k;
    int32_t mine;
} decode_cursor;

/* Past the first level of the cache: it may hold lines from before the inputs were there. */
static __device__ __forceinline__ int32_t decode_entry(const decode_item &item, int32_t base) {
    const int32_t tile = base + (int32_t)threadIdx.x % SL_WARP;
    return tile < item.end ? __ldcg(item.table + tile) : 0;
}

template <typename SHAPE>
static __device__ __forceinline__ decode_cursor decode_cursor_at(const decode_item &item, int32_t base) {
    const int32_t most = SHAPE::CHUNKS ? MMA_CHUNK_TILES - base % MMA_CHUNK_TILES : SL_WARP;
    return {base, item.end - base < most ? item.end - base : most, 0, decode_entry(item, base)};
}

/* How many loads at the cursor, which is at the item's beginning, need no tile from `stable` on. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t decode_stable_loads(const decode_item &item,
                                                              const decode_cursor &cursor, int32_t stable) {
    const int32_t tiles = stable - item.tile;
    if (stable >= item.end) {
        return 2 * (item.end - item.tile);
    }
    if (!SHAPE::CHUNKS) {
        return 2 * tiles;
    }
    return tiles < cursor.count ? tiles : 2 * cursor.count; /* the first chunk's keys, or all of it */
}

/* Makes the next copies, `loads` at most. */
template <typename SHAPE>
static __device__ __forceinline__ void decode_feed_loads(const decode_source &source, const decode_item &item,
                                                         int32_t loads, decode_cursor *cursor,
                                                         decode_feeder *feeder) {
    for (; loads > 0 && cursor->base < item.end; loads--) {
        const int32_t k = cursor->k, count = cursor->count;
        const bool is_key = SHAPE::CHUNKS ? k < count : k % 2 == 0;
        const int32_t tile = SHAPE::CHUNKS ? (is_key ? k : k - count) : k / 2;
        const int32_t page = __shfl_sync(SL_FULL_WARP, cursor->mine, tile);
        const int32_t behind = item.last - (cursor->base + tile) * MMA_KEYS; /* the tile's first key */
        sl_barrier_wait(feeder->empty + 8 * feeder->slot, feeder->phase);
        if (threadIdx.x % SL_WARP == 0) {
            sl_fence_shared(); /* those of the warps that arrived */
            const decode_load load = {item.kv_head,
                                      page > 0 ? page : 0,
                                      behind < MMA_KEYS ? behind / 16 + 1 : DECODE_WARPS,
                                      is_key,
                                      feeder->slots + feeder->slot * SHAPE::SLOT,
                                      feeder->full + 8 * feeder->slot};
            decode_copy<SHAPE>(source, load);
        }
        feeder->slot = feeder->slot + 1 == SHAPE::SLOTS ? 0 : feeder->slot + 1;
        feeder->phase ^= feeder->slot == 0;
        cursor->k++;
        if (cursor->k == 2 * count) {
            *cursor = decode_cursor_at<SHAPE>(item, cursor->base + count);
        }
    }
}

#endif
#endif
