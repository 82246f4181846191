/* Flash attention on Hopper for steps of few rows with many keys, where reading keys and values is the work.
 *
 * A unit is one row and one query head, as in flash.cuh; UNITS of them that read one key head are the columns
 * of the matrix instruction, keys (then values' columns) its rows. The keys of a row are cut into parts of
 * whole tiles. An item is a run of units, a key head and some parts; blocks take items in turn. In a block
 * one warp copies tiles into a ring of slots; four warps take 16 keys of every tile each, and add up what
 * they found at a part's end. If a run's parts are in several items, the last block to finish one adds them.
 *
 * Class "decode16", after the type multiplied in: q and p are rounded to that type, keys and values are of it
 * (q8_0 and fp8 decoded to f16). decode_part_tiles() says how many tiles a part has, by the number that the
 * row sees; it begins at a multiple of that. Keys 16 w to 16 w + 15 of a part's tiles are strand w. A strand
 * goes over its tiles in rising order: scores by matrix instructions over steps of 16 columns (even steps and
 * odd steps apart, then added), then softcap; m' = max(m, scores), corr = 2^((m - m') c) with c = scale log2
 * e (log2 e after a softcap), p = 2^(score c - m' c), l = l corr + p + p of the lane's two keys, y = y corr +
 * p v. l is added over the eight lanes of a unit at the end. A part is its strands in order: with M the
 * largest m, the fused sums of l 2^(m - M) and of y 2^(m - M). A row is its parts in order, each added as
 * flash_merge() says, behind a sink as a part with l = 1. What a row does not see adds nothing to its bits: p
 * = 0, corr = 1. So a result depends only on the row and its sequence. */
#ifndef SL_BACKEND_CUDA_FLASH_DECODE_CUH
#define SL_BACKEND_CUDA_FLASH_DECODE_CUH

#include "backend/cuda/flash_hopper.cuh"
#include "backend/cuda/heads.cuh"
#include "backend/cuda/touch.cuh"

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
    static constexpr bool CHUNKS = CHUNKS_; /* class "mma64/split512", flash_decode_chunks.cuh */
    static constexpr decode_let LETS_NEXT = CHUNKS                    ? DECODE_AT_ONCE
                                            : HEADS == DECODE_ONE_ROW ? DECODE_BEHIND_EARLY_KEYS
                                                                      : DECODE_AT_FIRST_KEYS;
    static constexpr int QUADS = (SIZE + SL_QUAD * SL_WARP - 1) / (SL_QUAD * SL_WARP); /* of a lane */
    static constexpr int BYTES = TYPE == SL_QTYPE_FP8 ? 1 : 2;
    static constexpr bool APART = (RAW || BYTES == 1) && !CHUNKS; /* the columns of a step */
    static constexpr int BOXES = (SIZE * BYTES + 127) / 128;
    static constexpr int COLUMNS = RAW ? SIZE : BOXES * 128 / BYTES;
    static constexpr int SLOT = RAW ? SIZE / 32 * SL_Q8_0_BYTES * FLASH_KEYS : BOXES * 128 * FLASH_KEYS;
    static constexpr int STRIDE = COLUMNS + 4; /* floats of a unit where strands meet: no bank twice */
    static constexpr int STRANDS = DECODE_WARPS * UNITS * STRIDE * 4;
    static constexpr int EXCHANGE = CHUNKS ? FLASH_CHUNK_TILES * FLASH_KEYS * UNITS * 4 : 0;
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
    int32_t fresh;       /* with ONE: of those, the ones before the step; it writes the others itself */
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
    flash_maps tiles, strands;
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
    rows.last_tile = index / FLASH_KEYS;
    rows.first_tile = flash_first_seen(cache.window, index) / FLASH_KEYS;
    rows.tiles = args.part_tiles > 0 ? args.part_tiles
                                     : decode_part_tiles(rows.last_tile + 1, cache.window, cache.kv_heads);
    rows.first_part = hopper_divide(rows.first_tile, rows.tiles);
    rows.parts = hopper_divide(rows.last_tile, rows.tiles) - rows.first_part + 1;
    rows.groups = hopper_divide(rows.parts + args.item_parts - 1, args.item_parts);
    rows.runs = (count * args.ratio + UNITS - 1) / UNITS;
    return rows;
}

static __device__ __forceinline__ int32_t decode_rows_before_cut(int32_t length, int32_t rows) {
    const int32_t left = FLASH_KEYS - length % FLASH_KEYS;
    return rows < left ? rows : left;
}

/* Which items there are. `each`: as many for each span; 0: `before`, of the block, has those before each. */
typedef struct decode_work {
    const int32_t *before;
    int32_t each, total;
} decode_work;

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
    if (args.item_parts >= args.most_parts && rows == spans) { /* one row each, its parts in one item */
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
    int32_t s = work.each > 0 ? hopper_divide(number, work.each) : 0;
    for (int32_t base = 1; work.each == 0 && base < args.spans; base += SL_WARP) {
        s += __popc(
            __ballot_sync(SL_FULL_WARP, base + lane < args.spans && work.before[base + lane] <= number));
    }
    const sl_step_span &span = context.spans[s];
    decode_item item;
    item.length = item.fresh = span.length[group];
    item.first_row = span.first_row;
    item.slot = span.slot;
    item.table = cache.table + (int64_t)span.slot * context.table_width;
    const int32_t cut = decode_rows_before_cut(item.length, span.row_count);
    int32_t rest = number - (work.each > 0 ? s * work.each : work.before[s]);
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
    const int32_t tile = item.length / FLASH_KEYS;
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
            (load.is_key ? 0 : (uint64_t)cache.kv_heads * FLASH_KEYS * cache.key_bytes) +
            (uint64_t)load.kv_head * FLASH_KEYS * row_bytes;
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
            const uint32_t to = load.to + (uint32_t)(box * FLASH_KEYS + strand * 16) * 128;
            const int32_t column = box * 128 / SHAPE::BYTES, row = load.kv_head * FLASH_KEYS + strand * 16;
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
    return {min(ONE ? item.end : item.length / FLASH_KEYS, changed), changed >= item.end};
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
    const int32_t most = SHAPE::CHUNKS ? FLASH_CHUNK_TILES - base % FLASH_CHUNK_TILES : SL_WARP;
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
        const int32_t behind = item.last - (cursor->base + tile) * FLASH_KEYS; /* the tile's first key */
        sl_barrier_wait(feeder->empty + 8 * feeder->slot, feeder->phase);
        if (threadIdx.x % SL_WARP == 0) {
            sl_fence_reads(); /* those of the warps that arrived */
            const decode_load load = {item.kv_head,
                                      page > 0 ? page : 0,
                                      behind < FLASH_KEYS ? behind / 16 + 1 : DECODE_WARPS,
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

/* ---- operands ---- */

/* The columns that a lane multiplies in step s of q . k, as the instruction's 2 j, 2 j + 1, 2 j + 8, 2 j + 9
 * with j = lane % 4. Where an element is decoded on the way, a lane's columns lie together if the class lets
 * them. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t decode_column(int32_t step, int32_t half) {
    const int32_t j = (int32_t)threadIdx.x % 4;
    return SHAPE::APART ? j * (SHAPE::COLUMNS / 4) + 4 * step + 2 * half : 16 * step + 2 * j + 8 * half;
}

/* A lane's pairs of an item's q, as they come. */
template <typename SHAPE> struct decode_pairs {
    static constexpr int OF_UNIT = SHAPE::COLUMNS / 2 / SL_WARP;
    float2 pair[SHAPE::UNITS][OF_UNIT];
};

/* By a warp. */
template <typename SHAPE>
static __device__ __forceinline__ void decode_load_queries(const decode_args &args, const decode_item &item,
                                                           int32_t key_size, decode_pairs<SHAPE> *pairs) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          7) == 0;
#pragma unroll
    for (int u = 0; u < SHAPE::UNITS; u++) {
        const int32_t unit = item.unit + u, of_span = hopper_divide(unit, args.ratio);
        const int32_t head = item.kv_head * args.ratio + unit - of_span * args.ratio;
        const float *from = sl_f32(args.q, item.first_row + of_span) + head * args.attention.q_stride;
#pragma unroll
        for (int k = 0; k < decode_pairs<SHAPE>::OF_UNIT; k++) {
            const int32_t c = 2 * (k * SL_WARP + lane);
            float2 pair = make_float2(0, 0);
            if (u < item.units && c < key_size) {
                pair = aligned ? *(const float2 *)(from + c) : make_float2(from[c], from[c + 1]);
            }
            pairs->pair[u][k] = pair;
        }
    }
}

/* By the same warp: the item and its q to those that multiply. phase: of the items before in turns 0 and 1.
 */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void
decode_hand_over(const decode_item &item, const decode_pairs<SHAPE> &pairs, uint32_t phase, SHARED *shared) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_barrier_wait(sl_shared_address(&shared->taken), phase ^ 1);
#pragma unroll
    for (int u = 0; u < SHAPE::UNITS; u++) {
#pragma unroll
        for (int k = 0; k < decode_pairs<SHAPE>::OF_UNIT; k++) {
            const float2 pair = pairs.pair[u][k];
            shared->queries[u][k * SL_WARP + lane] = flash_pack<TYPE>(flash_q(pair.x), flash_q(pair.y));
        }
    }
    if (lane == 0) {
        shared->item = item;
    }
    __syncwarp();
    if (lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(sl_shared_address(&shared->handed));
    }
}

template <bool ONE>
static __device__ __forceinline__ int32_t decode_row_of(const decode_args &args, const decode_item &item,
                                                        int32_t u) {
    return item.first_row + decode_rows_before<ONE>(args, item.unit + u);
}

template <bool ONE>
static __device__ __forceinline__ int32_t decode_head_of(const decode_args &args, const decode_item &item,
                                                         int32_t u) {
    const int32_t unit = item.unit + u;
    return item.kv_head * args.ratio + unit - decode_rows_before<ONE>(args, unit) * args.ratio;
}

/* What a warp makes heads with. */
template <int QUADS> struct decode_maker {
    float4 q_weight[QUADS], k_weight[QUADS];
    sl_turns<QUADS> turn;
};

/* Reads weights and the step block only. */
template <int QUADS>
static __device__ __forceinline__ void decode_begin_heads(const sl_cuda_context &context,
                                                          const sl_heads_args &args, int32_t row,
                                                          decode_maker<QUADS> *maker) {
    const int32_t size = context.caches[args.place.group].key_size;
    sl_load_head_weights(args.q_weight, args.q_offset, size, maker->q_weight);
    sl_load_head_weights(args.k_weight, args.k_offset, size, maker->k_weight);
    sl_make_turns(args.rope, args.frequencies, context.rows[row].position, maker->turn);
}

/* Heads of q, rounded, to `shared`, and the step's key and value. By all warps that multiply. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void
decode_make_heads(const sl_cuda_context &context, const decode_args &args, const sl_heads_args &made,
                  const decode_item &item, const decode_maker<SHAPE::QUADS> &maker, SHARED *shared) {
    enum { EACH = SHAPE::UNITS / DECODE_WARPS, QUADS = SHAPE::QUADS };
    const sl_cuda_cache &cache = context.caches[made.place.group];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const bool has_newest = decode_has_newest(item);
    /* The warp in whose strand it is makes it. */
    const bool makes = has_newest && item.length % FLASH_KEYS / 16 == warp;
    float4 x[EACH][QUADS], k[QUADS], v[QUADS];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int32_t at = warp + e * DECODE_WARPS, unit = at < item.units ? at : 0;
        sl_load_head(sl_f32(made.q, item.first_row) +
                         decode_head_of<true>(args, item, unit) * made.rope.stride,
                     at < item.units ? cache.key_size : 0, x[e]);
    }
    sl_load_head(sl_f32(made.k, item.first_row) + item.kv_head * cache.key_size, makes ? cache.key_size : 0,
                 k);
    sl_load_head(sl_f32(made.v, item.first_row) + item.kv_head * cache.value_size,
                 makes ? cache.value_size : 0, v);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int32_t at = warp + e * DECODE_WARPS;
        if (at < item.units) {
            if (made.has_norms) {
                sl_norm_head(made.share, made.q_epsilon, maker.q_weight, x[e]);
            }
            sl_turn_head_in_warp(made.rope, maker.turn, x[e]);
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            if (sl_head_at(i) < SHAPE::COLUMNS) {
                *(uint2 *)(void *)&shared->queries[at][sl_head_at(i) / 2] =
                    make_uint2(flash_pack<TYPE>(flash_q(x[e][i].x), flash_q(x[e][i].y)),
                               flash_pack<TYPE>(flash_q(x[e][i].z), flash_q(x[e][i].w)));
            }
        }
    }
    if (makes) {
        if (made.has_norms) {
            sl_norm_head(made.share, made.k_epsilon, maker.k_weight, k);
        }
        sl_turn_head_in_warp(made.rope, maker.turn, k);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            shared->newest[0][i][lane] = k[i];
            shared->newest[1][i][lane] = v[i];
        }
    }
    if (has_newest) {
        hopper_meet_without_waiting(DECODE_NEWEST, DECODE_THREADS);
    }
    hopper_meet(1, DECODE_MULTIPLIERS);
}

template <typename SHAPE, typename SHARED>
static __device__ __forceinline__ void
decode_take_queries(const SHARED &shared, uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int n = 0; n < SHAPE::UNITS / 8; n++) {
#pragma unroll
        for (int step = 0; step < SHAPE::COLUMNS / 16; step++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                q[n][step][half] = shared.queries[8 * n + lane / 4][decode_column<SHAPE>(step, half) / 2];
            }
        }
    }
}

/* Where element i of a row of a slot lies, minus where it would lie in the cache. */
template <typename SHAPE>
static __device__ __forceinline__ unsigned char *decode_slot_row(unsigned char *slot, int32_t row,
                                                                 int32_t row_bytes, int32_t i) {
    if (SHAPE::RAW) {
        return slot + row * row_bytes;
    }
    const int32_t byte = i * SHAPE::BYTES, piece = byte / 16;
    return slot + (piece / 8 * FLASH_KEYS + row) * 128 + ((piece ^ row) & 7) * 16 + byte % 16 - byte;
}

/* The step's key or value to the slot of its tile, if the warp's 16 keys from `base` on are with it. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_add_newest(const sl_cuda_cache &cache, const decode_item &item,
                                                         int32_t base, bool is_value, unsigned char *slot,
                                                         const SHARED *shared) {
    if (item.length / 16 != base / 16) {
        return;
    }
    const int32_t row_bytes = (int32_t)(is_value ? cache.value_bytes : cache.key_bytes);
#pragma unroll
    for (int k = 0; k < SHAPE::QUADS; k++) {
        const int32_t i = sl_head_at(k);
        unsigned char *row = decode_slot_row<SHAPE>(slot, item.length % FLASH_KEYS, row_bytes, i);
        sl_encode_quad<true>((sl_qtype)TYPE, shared->newest[is_value][k][threadIdx.x % SL_WARP], row, i,
                             is_value ? cache.value_size : cache.key_size);
    }
    __syncwarp();
}

/* Keys or values of the sequence's earlier rows in this step likewise, as their own blocks make them: those
 * write them to the cache, nobody knows when. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void decode_add_earlier(const sl_cuda_context &context,
                                                          const sl_heads_args &made, const decode_item &item,
                                                          int32_t base, bool is_value, unsigned char *slot) {
    enum { QUADS = SHAPE::QUADS };
    const sl_cuda_cache &cache = context.caches[made.place.group];
    const int32_t size = is_value ? cache.value_size : cache.key_size;
    const int32_t row_bytes = (int32_t)(is_value ? cache.value_bytes : cache.key_bytes);
#pragma unroll 1
    for (int32_t index = max(base, item.fresh); index < min(base + 16, item.length); index++) {
        const int32_t row = item.first_row + index - item.length;
        float4 x[QUADS];
        sl_load_head(sl_f32(is_value ? made.v : made.k, row) + item.kv_head * size, size, x);
        if (!is_value) {
            sl_turns<QUADS> turn;
            sl_make_turns(made.rope, made.frequencies, context.rows[row].position, turn);
            if (made.has_norms) {
                float4 weight[QUADS];
                sl_load_head_weights(made.k_weight, made.k_offset, size, weight);
                sl_norm_head(made.share, made.k_epsilon, weight, x);
            }
            sl_turn_head_in_warp(made.rope, turn, x);
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            unsigned char *to = decode_slot_row<SHAPE>(slot, index % FLASH_KEYS, row_bytes, sl_head_at(i));
            sl_encode_quad<true>((sl_qtype)TYPE, x[i], to, sl_head_at(i), size);
        }
        __syncwarp();
    }
}

/* Both to the cache, by the warp that copied the tiles: nobody waits for it. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_write_newest(const sl_cuda_context &context,
                                                           const sl_cache_place &place,
                                                           const decode_item &item, const SHARED *shared) {
    const sl_cuda_cache &cache = context.caches[place.group];
    const int32_t page = __ldcg(item.table + item.length / FLASH_KEYS);
    hopper_meet(DECODE_NEWEST, DECODE_THREADS);
    if (page < 0) {
        return;
    }
    const sl_cache_spot spot = {cache.pages + (uint64_t)page * cache.page_bytes +
                                    (uint64_t)place.layer * cache.layer_bytes,
                                item.length % FLASH_KEYS};
#pragma unroll
    for (int k = 0; k < SHAPE::QUADS; k++) {
#pragma unroll
        for (int is_value = 0; is_value < 2; is_value++) {
            sl_encode_quad<true>((sl_qtype)TYPE, shared->newest[is_value][k][threadIdx.x % SL_WARP],
                                 sl_cache_row(cache, spot, is_value, item.kv_head), sl_head_at(k),
                                 is_value ? cache.value_size : cache.key_size);
        }
    }
}

/* Two int8 values times a scale, as f16. */
static __device__ __forceinline__ uint32_t decode_int8(uint32_t two, uint32_t scale) {
    uint32_t pair;
    asm("prmt.b32 %0, %1, %2, 0x4140;" : "=r"(pair) : "r"(two ^ 0x8080u), "r"(0x64646464u));
    asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x64806480u)); /* 1024 + 128 */
    asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
    return pair;
}

static __device__ __forceinline__ uint32_t decode_twice(uint16_t half) {
    return (uint32_t)half * 0x10001u;
}

/* A slot's rows from `row` on, one for each of 16 keys. */
typedef struct decode_slice {
    const unsigned char *slot;
    int32_t row, row_bytes;
    int32_t size; /* columns that there are */
} decode_slice;

/* s = k . q for the warp's keys. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ void
decode_scores(const decode_slice &keys, const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2],
              float s[SHAPE::UNITS / 8][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float sums[SHAPE::UNITS / 8][2][4];
#pragma unroll
    for (int n = 0; n < SHAPE::UNITS / 8; n++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            sums[n][e / 4][e % 4] = 0;
        }
    }
    const uint32_t at = sl_shared_address(keys.slot);
    const int32_t key = keys.row + lane / 4;
#pragma unroll
    for (int step = 0; step < SHAPE::COLUMNS / 16; step++) {
        uint32_t a[4];
        if constexpr (SHAPE::RAW) {
            const int32_t c = decode_column<SHAPE>(step, 0), other = decode_column<SHAPE>(step, 1);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint16_t *block =
                    (const uint16_t *)(keys.slot + (key + 8 * h) * keys.row_bytes + c / 32 * SL_Q8_0_BYTES);
                const uint32_t scale = c < keys.size ? decode_twice(block[0]) : 0;
                a[h] = decode_int8(block[1 + c % 32 / 2], scale);
                a[2 + h] = decode_int8(block[1 + other % 32 / 2], scale);
            }
        } else if constexpr (SHAPE::BYTES == 1) {
            const int32_t c = decode_column<SHAPE>(step, 0);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int32_t k = key + 8 * h;
                const unsigned char *at_c =
                    keys.slot + (c / 128 * FLASH_KEYS + k) * 128 + ((c % 128 / 16) ^ (k & 7)) * 16 + c % 16;
                if (SHAPE::APART) {
                    const uint32_t four = *(const uint32_t *)at_c;
                    a[h] = flash_e4m3(four & 0xffffu);
                    a[2 + h] = flash_e4m3(four >> 16);
                } else { /* both of a step lie in one piece */
                    a[h] = flash_e4m3(*(const uint16_t *)at_c);
                    a[2 + h] = flash_e4m3(*(const uint16_t *)(at_c + 8));
                }
            }
        } else {
            const int32_t k = keys.row + lane % 16, piece = 2 * step + lane / 16;
            flash_load4(at + (uint32_t)((piece / 8 * FLASH_KEYS + k) * 128 + ((piece ^ k) & 7) * 16), a);
        }
#pragma unroll
        for (int n = 0; n < SHAPE::UNITS / 8; n++) {
            flash_mma<TYPE>(sums[n][SHAPE::CHUNKS ? 0 : step % 2], a, q[n][step][0], q[n][step][1]);
        }
    }
#pragma unroll
    for (int n = 0; n < SHAPE::UNITS / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = SHAPE::CHUNKS ? sums[n][0][e] : sums[n][0][e] + sums[n][1][e];
        }
    }
}

/* The column of y that row `r` of 16 of the instruction is. */
template <typename SHAPE>
static __device__ __forceinline__ int32_t decode_value_column(int32_t block, int32_t h) {
    const int32_t r = (int32_t)threadIdx.x % SL_WARP / 4;
    return SHAPE::RAW || SHAPE::BYTES == 1 ? r * (SHAPE::COLUMNS / 8) + 2 * block + h
                                           : 16 * block + r + 8 * h;
}

/* y += v . p, for BLOCKS blocks of 16 columns from `first` on. seen: which of the lane's keys 2 j, 2 j + 1
 * and 2 j + 8, 2 j + 9 some unit sees; what the others hold may be anything. */
template <typename SHAPE, int TYPE, int BLOCKS>
static __device__ __forceinline__ void decode_values(const decode_slice &values, const uint32_t seen[2],
                                                     const uint32_t p[SHAPE::UNITS / 8][2], int32_t first,
                                                     float y[SHAPE::UNITS / 8][BLOCKS][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, key = values.row + 2 * (lane % 4);
    const uint32_t at = sl_shared_address(values.slot);
#pragma unroll
    for (int i_block = 0; i_block < BLOCKS; i_block++) {
        const int32_t block = first + i_block;
        uint32_t a[4];
        if constexpr (SHAPE::RAW || SHAPE::BYTES == 1) {
            const int32_t c = decode_value_column<SHAPE>(block, 0);
            uint32_t two[4]; /* columns c and c + 1 of the four keys */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t k = key + i / 2 * 8 + i % 2;
                if constexpr (SHAPE::RAW) {
                    const uint16_t *of =
                        (const uint16_t *)(values.slot + k * values.row_bytes + c / 32 * SL_Q8_0_BYTES);
                    two[i] = decode_int8(of[1 + c % 32 / 2], c < values.size ? decode_twice(of[0]) : 0);
                } else {
                    two[i] = flash_e4m3(*(const uint16_t *)(values.slot + (c / 128 * FLASH_KEYS + k) * 128 +
                                                            ((c % 128 / 16) ^ (k & 7)) * 16 + c % 16));
                }
            }
            a[0] = __byte_perm(two[0], two[1], 0x5410);
            a[1] = __byte_perm(two[0], two[1], 0x7632);
            a[2] = __byte_perm(two[2], two[3], 0x5410);
            a[3] = __byte_perm(two[2], two[3], 0x7632);
        } else {
            const int32_t k = values.row + lane / 16 * 8 + lane % 8, piece = 2 * block + lane / 8 % 2;
            flash_load4_transposed(
                at + (uint32_t)((piece / 8 * FLASH_KEYS + k) * 128 + ((piece ^ k) & 7) * 16), a);
        }
        a[0] &= seen[0];
        a[1] &= seen[0];
        a[2] &= seen[1];
        a[3] &= seen[1];
#pragma unroll
        for (int n = 0; n < SHAPE::UNITS / 8; n++) {
            flash_mma<TYPE>(y[n][i_block], a, p[n][0], p[n][1]);
        }
    }
}

/* ---- softmax ---- */

/* Of a strand: per lane the units 2 j and 2 j + 1 of each eight, the same in all lanes of one j but for l,
 * which is the lane's part; y[][block][h] of row lane / 4 (h < 2) and lane / 4 + 8. */
template <int UNITS, int COLUMNS> struct decode_state {
    float m[UNITS / 8][2], l[UNITS / 8][2];
    float y[UNITS / 8][COLUMNS / 16][4];
};

/* What a warp has of a part. */
template <int UNITS> struct decode_view {
    const sl_cuda_cache *cache;
    float scale, softcap;
    float c; /* what scores, after the softcap if any, are multiplied by for powers of two */
    int32_t window;
    int32_t index[UNITS / 8][2];         /* the last key that the lane's units see */
    int32_t lowest_first, highest_first; /* of the first keys that units see */
    int32_t lowest_last, highest_last;   /* of the last ones */
    int32_t tile, end;
};

/* The softcap, and -infinity for what a unit does not see. key: the index of what s[][0] and s[][1] belong
 * to, s[][2] and s[][3] are 8 later. masked: some unit does not see all keys. */
template <int UNITS>
static __device__ __forceinline__ void decode_see(float s[UNITS / 8][4], const decode_view<UNITS> &view,
                                                  int32_t key, bool masked) {
    if (view.softcap > 0) {
        const float inverse = view.scale / view.softcap;
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = view.softcap * flash_tanh(s[n][e] * inverse);
            }
        }
    }
    if (masked) {
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t k = key + e / 2 * 8, to = view.index[n][e % 2];
                const bool seen = k <= to && k >= flash_first_seen(view.window, to);
                s[n][e] = seen ? s[n][e] : -INFINITY;
            }
        }
    }
}

/* Which of the lane's keys 2 j, 2 j + 1 and 2 j + 8, 2 j + 9 of 16 from `base` on some unit sees. */
template <int UNITS>
static __device__ __forceinline__ void decode_seen(const decode_view<UNITS> &view, int32_t base, bool masked,
                                                   uint32_t seen[2]) {
    seen[0] = seen[1] = ~0u;
    if (masked) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t k = base + 2 * ((int32_t)threadIdx.x % 4) + i / 2 * 8 + i % 2;
            if (k < view.lowest_first || k > view.highest_last) {
                seen[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
            }
        }
    }
}

/* Scores to p; what y is to be multiplied by. key and masked as above. */
template <int UNITS, int COLUMNS>
static __device__ __forceinline__ void
decode_weigh(decode_state<UNITS, COLUMNS> *state, float s[UNITS / 8][4], const decode_view<UNITS> &view,
             int32_t key, bool masked, float correction[UNITS / 8][2]) {
    decode_see(s, view, key, masked);
#pragma unroll
    for (int n = 0; n < UNITS / 8; n++) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float largest = fmaxf(s[n][u], s[n][2 + u]);
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 4));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 8));
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 16));
            const float before = state->m[n][u];
            largest = fmaxf(largest, before);
            const float bias = largest == -INFINITY ? 0.0f : -largest * view.c;
            correction[n][u] = largest == before ? 1.0f : flash_exp2(fmaf(before, view.c, bias));
            s[n][u] = flash_exp2(fmaf(s[n][u], view.c, bias));
            s[n][2 + u] = flash_exp2(fmaf(s[n][2 + u], view.c, bias));
            state->l[n][u] = state->l[n][u] * correction[n][u] + (s[n][u] + s[n][2 + u]);
            state->m[n][u] = largest;
        }
    }
}

static __device__ __forceinline__ uint32_t decode_transposed(uint32_t pair) {
    uint32_t other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
}

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
    return args.sinks ? make_float2(args.sinks[head] * FLASH_LOG2_E, 1.0f) : make_float2(-INFINITY, 0.0f);
}

static __device__ __forceinline__ void decode_add_part(float2 part, const float4 &y, float2 *total,
                                                       float sum[4]) {
    float keep, add;
    flash_merge(part.x, part.y, &total->x, &total->y, &keep, &add);
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
        const float weight = flash_exp2(shared->m[w][u] - base);
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
    hopper_meet(1, DECODE_MULTIPLIERS);
    if (threadIdx.x == 0) {
        uint32_t *arrivals = args.arrivals + decode_row_of<SHAPE::ONE>(args, item, 0) * args.attention.heads +
                             decode_head_of<SHAPE::ONE>(args, item, 0);
        shared->last = atomicAdd(arrivals, 1u) == (uint32_t)item.groups - 1;
        if (shared->last) {
            *arrivals = 0;
        }
        __threadfence();
    }
    hopper_meet(1, DECODE_MULTIPLIERS);
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
    view->lowest_first = flash_first_seen(view->window, view->lowest_last);
    view->highest_first = flash_first_seen(view->window, view->highest_last);
}

/* One tile of a strand, whose first of the warp's keys is `base`. */
template <typename SHAPE, int TYPE, typename ADD>
static __device__ __forceinline__ void
decode_tile(const decode_view<SHAPE::UNITS> &view, const uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2],
            int32_t base, decode_ring *ring, decode_state<SHAPE::UNITS, SHAPE::COLUMNS> *state, ADD add) {
    constexpr int N = SHAPE::UNITS / 8;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, row = base % FLASH_KEYS;
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
        p[n][0] = decode_transposed(flash_pack<TYPE>(s[n][0], s[n][1]));
        p[n][1] = decode_transposed(flash_pack<TYPE>(s[n][2], s[n][3]));
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
        decode_tile<SHAPE, TYPE>(view, q, tile * FLASH_KEYS + 16 * warp, ring, &state, add);
    }
    hopper_meet(1, DECODE_MULTIPLIERS); /* nobody reads the part before any more */
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
    hopper_meet(1, DECODE_MULTIPLIERS);
}

#endif

#endif
