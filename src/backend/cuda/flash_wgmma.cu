/* Flash attention for many rows with Hopper's wgmma, over caches of f16 and bf16.
 *
 * A unit is one row and one query head, as in flash.cuh; a run is 128 of them that read one key head. A block
 * stays and takes runs in turn, those with many keys first. Its first four warps feed the others: one copies
 * tiles of keys and of values, three convert the queries of the next run. Two groups of four warps multiply
 * 64 units each: while the scores of the next tile and the sum of this one are computed, the softmax goes on.
 *
 * Class "wgmma128", after the type: q and p are rounded to the type; keys in tiles of 128 (64 for heads over
 * 128) at multiples of that of their index in the sequence, in rising order. Scores by wgmma over steps of 16
 * columns, then softcap. Per tile m' = max(m, scores), corr = 2^((m - m') c), p = 2^(score c - m' c) with c =
 * scale log2 e (log2 e after a softcap); every lane adds the p of its own columns, those of even and of odd
 * pairs apart; y = y corr + p v over steps of 16 keys. l is added over the four lanes of a row at the end. A
 * sink is one more key with its logarithm as score and without value. What a row does not see changes none of
 * its bits: p = 0, corr = 1.
 *
 * SPLIT is the class "mma64/split512" of flash.cuh with the same instructions, for heads up to 128: these
 * matrix instructions add as mma.sync does. Tiles of 64 keys, l in one chain, and every 512 keys m, l and y
 * are merged into totals, which stay in registers. */
#include "backend/cuda/flash_hopper.cuh"
#include "backend/cuda/flash_split.h"

enum {
    WGMMA_GROUPS = 2, /* of four warps, that multiply */
    WGMMA_UNITS = 64 * WGMMA_GROUPS,
    WGMMA_MULTIPLIERS = 128 * WGMMA_GROUPS,
    WGMMA_THREADS = 128 + WGMMA_MULTIPLIERS,
    WGMMA_LOADERS = 96, /* threads that convert queries */
    STAGES = 2,         /* tiles of keys, and of values, in shared memory */
    /* Named barriers: of a group; a run is there, for each place and group; it has been read, for each place
     */
    BARRIER_GROUP = 1,
    BARRIER_FULL = 3,
    BARRIER_EMPTY = 7
};

/* COLUMNS: of a row in shared memory. RUNS: that are known at a time; QUERIES: whose queries are there. */
template <int SIZE, bool SPLIT> struct wgmma_shape {
    static constexpr int KEYS = SIZE <= 128 && !SPLIT ? 128 : 64, PAGES = KEYS / SL_PAGE_TOKENS;
    static constexpr int BOXES = (SIZE + 63) / 64, COLUMNS = 64 * BOXES;
    static constexpr int RUNS = 2, QUERIES = SIZE <= 128 ? 2 : 1;
    static constexpr int Q_BYTES = 64 * COLUMNS * 2, TILE_BYTES = KEYS * COLUMNS * 2; /* Q: of a group */
    static constexpr int BYTES =
        QUERIES * WGMMA_GROUPS * Q_BYTES + 2 * STAGES * TILE_BYTES + 1024; /* 1024: to align */
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

template <int RUNS> struct wgmma_shared {
    uint64_t full_keys[STAGES], full_values[STAGES], empty_keys[STAGES], empty_values[STAGES];
    wgmma_run runs[RUNS];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of a thread that feeds, and of one that multiplies: together they are the multiprocessor's. */
static constexpr int WGMMA_FEW_REGISTERS = 56, WGMMA_MANY_REGISTERS = 224;

/* ---- instructions ---- */

/* Of a tile of rows of 128 bytes, swizzled: rows of eight are 1024 bytes apart. The leading distance counts
 * for operands whose rows are keys and that are wider than 64 columns. */
static __device__ __forceinline__ uint64_t wgmma_operand(uint32_t at, uint32_t leading) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           UINT64_C(1) << 62;
}

static __device__ __forceinline__ void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define D4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define D16(c, n) D4(c, n), D4(c, n + 1), D4(c, n + 2), D4(c, n + 3)
#define D32(c, n) D16(c, n), D16(c, n + 4)
#define R32                                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"                  \
    ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R48 R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R64                                                                                                  \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53"           \
        ",%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R96                                                                                                  \
    R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85"           \
        ",%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R128                                                                                                 \
    R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113"             \
        ",%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* s (+)= q . k for 16 columns, both in shared memory */
#define SCORES(type, n, registers, q, k, add, ...)                                                           \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " add ", 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, " q       \
                 ", " k ", p, 1, 1, 0, 0;}"                                                                  \
                 : __VA_ARGS__                                                                               \
                 : "l"(q_at), "l"(k_at), "r"(accumulate))
template <int TYPE, int KEYS>
static __device__ __forceinline__ void wgmma_scores(float s[KEYS / 8][4], uint64_t q_at, uint64_t k_at,
                                                    int accumulate) {
    if constexpr (KEYS == 64) {
        if (TYPE == SL_QTYPE_BF16) {
            SCORES("bf16", "64", R32, "%32", "%33", "%34", D32(s, 0));
        } else {
            SCORES("f16", "64", R32, "%32", "%33", "%34", D32(s, 0));
        }
    } else {
        if (TYPE == SL_QTYPE_BF16) {
            SCORES("bf16", "128", R64, "%64", "%65", "%66", D32(s, 0), D32(s, 8));
        } else {
            SCORES("f16", "128", R64, "%64", "%65", "%66", D32(s, 0), D32(s, 8));
        }
    }
}

/* y += p v for 16 keys */
#define VALUES(type, n, registers, a, b, ...)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, {" a      \
                 "}, " b ", 1, 1, 1, 1;"                                                                     \
                 : __VA_ARGS__                                                                               \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v_at))
#define VALUES_OF(n, registers, a, b, ...)                                                                   \
    if (TYPE == SL_QTYPE_BF16) {                                                                             \
        VALUES("bf16", n, registers, a, b, __VA_ARGS__);                                                     \
    } else {                                                                                                 \
        VALUES("f16", n, registers, a, b, __VA_ARGS__);                                                      \
    }
template <int TYPE, int SIZE>
static __device__ __forceinline__ void wgmma_values(float y[SIZE / 8][4], const uint32_t p[4],
                                                    uint64_t v_at) {
    if constexpr (SIZE == 64) {
        VALUES_OF("64", R32, "%32,%33,%34,%35", "%36", D32(y, 0))
    } else if constexpr (SIZE == 96) {
        VALUES_OF("96", R48, "%48,%49,%50,%51", "%52", D32(y, 0), D16(y, 8))
    } else if constexpr (SIZE == 128) {
        VALUES_OF("128", R64, "%64,%65,%66,%67", "%68", D32(y, 0), D32(y, 8))
    } else if constexpr (SIZE == 192) {
        VALUES_OF("192", R96, "%96,%97,%98,%99", "%100", D32(y, 0), D32(y, 8), D32(y, 16))
    } else {
        VALUES_OF("256", R128, "%128,%129,%130,%131", "%132", D32(y, 0), D32(y, 8), D32(y, 16), D32(y, 24))
    }
}

/* Where 16 bytes of a tile of `rows` rows lie. */
static __device__ __forceinline__ uint32_t swizzled(int32_t rows, int32_t row, int32_t piece) {
    return (uint32_t)((piece / 8 * rows + row) * 128 + ((piece ^ row) & 7) * 16);
}

/* ---- finding work ---- */

/* Run `number` of the step, by a whole warp: the last ones of the last span first, because they have the most
 * keys. */
static __device__ __forceinline__ wgmma_run wgmma_find(const sl_cuda_context &context, const flash_args &args,
                                                       int32_t keys_per_tile, int32_t number) {
    const int32_t group = args.attention.place.group, lane = (int32_t)threadIdx.x % SL_WARP;
    const sl_cuda_cache &cache = context.caches[group];
    const int32_t spans = context.header->spans, block = number / cache.kv_heads;
    int32_t before = 0, found = 0;
    wgmma_run run = {};
    for (int32_t top = spans; top > 0 && before <= block; top -= SL_WARP) {
        const int32_t s = top - 1 - lane;
        const int32_t units = s >= 0 ? context.spans[s].row_count * args.ratio : 0;
        const int32_t runs = (units + WGMMA_UNITS - 1) / WGMMA_UNITS;
        int32_t end = runs;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        const uint32_t mine = __ballot_sync(SL_FULL_WARP, block >= end - runs && block < end);
        if (mine != 0) {
            const int32_t owner = __ffs((int32_t)mine) - 1;
            found = __shfl_sync(SL_FULL_WARP, s, owner);
            run.unit = (__shfl_sync(SL_FULL_WARP, end, owner) - 1 - block) * WGMMA_UNITS;
            run.units = __shfl_sync(SL_FULL_WARP, units, owner) - run.unit;
            run.units = run.units < WGMMA_UNITS ? run.units : WGMMA_UNITS;
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
        run.tile = flash_first_seen(cache.window, run.length + run.unit / args.ratio) / keys_per_tile;
        run.last_tile = (run.length + (run.unit + run.units - 1) / args.ratio) / keys_per_tile;
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
    sl_barrier_expect(full, SHAPE::TILE_BYTES);
#pragma unroll
    for (int p = 0; p < SHAPE::PAGES; p++) {
        const int32_t at = tile.first_page + p < tile.last_page ? tile.first_page + p : tile.last_page;
        const int32_t page = tile.table[at] > 0 ? tile.table[at] : 0;
#pragma unroll
        for (int box = 0; box < SHAPE::BOXES; box++) {
            const int place = is_key ? box * SHAPE::PAGES + p : p * SHAPE::BOXES + box;
            sl_box_copy(to + (uint32_t)place * 128 * SL_PAGE_TOKENS, tile.map, 64 * box, tile.row,
                        page * tile.layers + tile.layer, full);
        }
    }
}

/* By the first warp: copies all tiles of the block's runs. */
template <typename SHAPE, typename SHARED>
static __device__ __forceinline__ void wgmma_feed(const sl_cuda_context &context, const flash_args &args,
                                                  const flash_maps &maps, SHARED *shared, uint32_t keys,
                                                  uint32_t values) {
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const bool copies = threadIdx.x == 0;
    uint32_t stage = 0, phase = 1; /* the stages are empty at first */
    for (int32_t round = 0;; round++) {
        const int32_t number = wgmma_turn(round);
        const wgmma_run run = wgmma_find(context, args, SHAPE::KEYS, number);
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
            for (int32_t t = run.tile; t <= run.last_tile; t++) {
                tile.first_page = t * SHAPE::PAGES;
                sl_barrier_wait(sl_shared_address(&shared->empty_keys[stage]), phase);
                tile.map = &maps.keys;
                wgmma_copy<SHAPE>(tile, true, keys + stage * SHAPE::TILE_BYTES,
                                  sl_shared_address(&shared->full_keys[stage]));
                sl_barrier_wait(sl_shared_address(&shared->empty_values[stage]), phase);
                tile.map = &maps.values;
                wgmma_copy<SHAPE>(tile, false, values + stage * SHAPE::TILE_BYTES,
                                  sl_shared_address(&shared->full_values[stage]));
                stage ^= 1;
                phase ^= stage == 0;
            }
        }
        __syncwarp();
    }
}

/* The run's units from `first` on, `count` of them, to rows of `to`, by THREADS threads. */
template <int TYPE, int COLUMNS, int THREADS, int BATCH>
static __device__ __forceinline__ void wgmma_convert(const flash_args &args, const wgmma_run &run,
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
                *(uint4 *)(to + swizzled(64, i / PIECES, i % PIECES)) =
                    make_uint4(flash_pack<TYPE>(flash_q(a.x), flash_q(a.y)),
                               flash_pack<TYPE>(flash_q(a.z), flash_q(a.w)),
                               flash_pack<TYPE>(flash_q(b.x), flash_q(b.y)),
                               flash_pack<TYPE>(flash_q(b.z), flash_q(b.w)));
            }
        }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* written by threads, read by wgmma */
}

/* By three warps: what the block's runs are; and their queries, but for the first, which nobody has anything
 * to do before, and where there is room for one run's only. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void wgmma_load(const sl_cuda_context &context, const flash_args &args,
                                                  SHARED *shared, unsigned char *queries) {
    const int32_t key_size = context.caches[args.attention.place.group].key_size;
    const int32_t thread = (int32_t)threadIdx.x - SL_WARP;
    for (int32_t round = 0;; round++) {
        const wgmma_run run = wgmma_find(context, args, SHAPE::KEYS, wgmma_turn(round));
        const int32_t at = round % SHAPE::RUNS;
        if (round >= SHAPE::RUNS) {
            hopper_meet(BARRIER_EMPTY + at, WGMMA_LOADERS + WGMMA_MULTIPLIERS);
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
            hopper_meet_without_waiting(BARRIER_FULL + 2 * at + group, WGMMA_LOADERS + 128);
        }
        if (run.units == 0) {
            return;
        }
    }
}

/* ---- multiplying ---- */

template <int TYPE, int SIZE, int KEYS>
static __device__ __forceinline__ void wgmma_start_scores(float s[KEYS / 8][4], uint32_t q_at,
                                                          uint32_t k_at) {
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

/* What a group begins a run with. */
static __device__ __forceinline__ void wgmma_start_run(const flash_args &args, const wgmma_run &run,
                                                       wgmma_view *view, wgmma_state *state) {
    const int32_t last = run.unit + run.units - 1,
                  first_of_group = run.unit + ((int32_t)threadIdx.x / 128 - 1) * 64;
    const int32_t first = first_of_group < last ? first_of_group : last;
    const int32_t end = first_of_group + 63 < last ? first_of_group + 63 : last;
    const int32_t mine =
        run.unit + ((int32_t)threadIdx.x - 128) / SL_WARP * 16 + (int32_t)threadIdx.x % SL_WARP / 4;
    view->lowest = run.length + hopper_divide(first, args.ratio);
    view->first = flash_first_seen(view->window, run.length + hopper_divide(end, args.ratio));
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
                s[n][e] = view.softcap * flash_tanh(s[n][e] * inverse);
            }
        }
    }
    if (base + KEYS - 1 > view.lowest || base < view.first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t offset = base + 2 * ((int32_t)threadIdx.x % 4);
            const int32_t first = flash_first_seen(view.window, state->index[h]) - offset;
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
        correction[h] = largest == before ? 1.0f : flash_exp2(fmaf(before, c, bias));
        float sums[2] = {state->l[h][0] * correction[h], state->l[h][1] * correction[h]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][2 * h] = flash_exp2(fmaf(s[n][2 * h], c, bias));
            s[n][2 * h + 1] = flash_exp2(fmaf(s[n][2 * h + 1], c, bias));
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
        p[n / 2][n % 2 * 2] = flash_pack<TYPE>(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = flash_pack<TYPE>(s[n][2], s[n][3]);
    }
}

/* Values behind the span's last one have never been written: they may be anything, and 0 times that too. */
template <typename SHAPE>
static __device__ __forceinline__ void wgmma_clear(unsigned char *values, int32_t base, int32_t keys) {
    constexpr int PIECES = SHAPE::COLUMNS / 8;
    const int32_t there = keys > base ? keys - base : 0;
    for (int32_t i = there * PIECES + (int32_t)threadIdx.x % 128; i < SHAPE::KEYS * PIECES; i += 128) {
        const int32_t key = i / PIECES, piece = i % PIECES;
        *(uint4 *)(values + key / SL_PAGE_TOKENS * (SL_PAGE_TOKENS * SHAPE::COLUMNS * 2) +
                   swizzled(SL_PAGE_TOKENS, key % SL_PAGE_TOKENS, piece)) = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    hopper_meet(BARRIER_GROUP + (int32_t)threadIdx.x / 128 - 1, 128);
}

/* What the chunks before amount to: as in flash_end_chunk(). */
template <int SIZE> struct wgmma_totals { float y[SIZE / 8][4], largest[2], sum[2]; };

template <int SIZE>
static __device__ __forceinline__ void wgmma_start_totals(const flash_args &args, const wgmma_run &run,
                                                          wgmma_totals<SIZE> *totals) {
    const int32_t at = ((int32_t)threadIdx.x - 128) / SL_WARP * 16 + (int32_t)threadIdx.x % SL_WARP / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t head = run.kv_head * args.ratio + (run.unit + at + 8 * h) % args.ratio;
        totals->largest[h] = args.sinks ? args.sinks[head] * FLASH_LOG2_E : -INFINITY;
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
        flash_merge(m, flash_sum_lanes(state.l[h][0]), &totals->largest[h], &totals->sum[h], &keep, &add);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                totals->y[n][e] = totals->y[n][e] * keep + y[n][e] * add;
            }
        }
    }
}

template <int SIZE>
static __device__ __forceinline__ void wgmma_store_totals(const flash_args &args, const wgmma_run &run,
                                                          int32_t size, const wgmma_totals<SIZE> &totals) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t at = ((int32_t)threadIdx.x - 128) / SL_WARP * 16 + lane / 4;
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
                flash_store2(to + column, flash_finish(args, gate, column, totals.y[n][2 * h], factor),
                             flash_finish(args, gate, column + 1, totals.y[n][2 * h + 1], factor));
            }
        }
    }
}

template <int SIZE>
static __device__ __forceinline__ void wgmma_store(const flash_args &args, const wgmma_run &run,
                                                   const wgmma_state &state, float c, int32_t size,
                                                   const float y[SIZE / 8][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t at = ((int32_t)threadIdx.x - 128) / SL_WARP * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = flash_sum_lanes(state.l[h][0] + state.l[h][1]);
        const int32_t unit = run.unit + at + 8 * h;
        if (at + 8 * h >= run.units) {
            continue;
        }
        const int32_t row = run.first_row + unit / args.ratio;
        const int32_t head = run.kv_head * args.ratio + unit % args.ratio;
        const float m = state.m[h] == -INFINITY ? -INFINITY : state.m[h] * c;
        float largest = args.sinks ? args.sinks[head] * FLASH_LOG2_E : -INFINITY;
        float sum = args.sinks ? 1.0f : 0.0f, keep, add;
        flash_merge(m, l, &largest, &sum, &keep, &add);
        const float factor = sum == 0.0f ? 0.0f : add / sum;
        float *to = sl_f32(args.y, row) + head * size;
        const float *gate =
            args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            const int32_t column = 8 * n + 2 * (lane % 4);
            if (column < size) {
                flash_store2(to + column, flash_finish(args, gate, column, y[n][2 * h], factor),
                             flash_finish(args, gate, column + 1, y[n][2 * h + 1], factor));
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
static __device__ __forceinline__ void wgmma_leave(wgmma_ring *ring) {
    if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
        sl_barrier_arrive(ring->empty + 8 * ring->stage);
    }
    ring->stage ^= 1;
    ring->phase ^= ring->stage == 0;
}

/* Where the group's queries of run `round` are. */
template <typename SHAPE, int TYPE>
static __device__ __forceinline__ uint32_t wgmma_take_queries(const flash_args &args, const wgmma_run &run,
                                                              int32_t key_size, int32_t round,
                                                              unsigned char *memory) {
    const int32_t group = (int32_t)threadIdx.x / 128 - 1;
    unsigned char *queries =
        memory + (round % SHAPE::QUERIES * WGMMA_GROUPS + group) * (int32_t)SHAPE::Q_BYTES;
    if (SHAPE::QUERIES == 1 || round == 0) {
        wgmma_convert<TYPE, SHAPE::COLUMNS, 128, 8>(args, run, key_size, 64 * group,
                                                    (int32_t)threadIdx.x % 128, queries);
        hopper_meet(BARRIER_GROUP + group, 128);
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
                                                      wgmma_state *state, float (&y)[SIZE / 8][4]) {
    constexpr int KEYS = SHAPE::KEYS;
    const wgmma_run &run = part.run;
    const wgmma_view &view = part.view;
    wgmma_ring *const keys = part.keys, *const values = part.values;
    float s[KEYS / 8][4], correction[2];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int e = 0; e < SIZE / 2; e++) {
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
    wgmma_leave(keys);
    wgmma_weigh<KEYS, SPLIT>(state, s, view, first * KEYS, correction);
    wgmma_pack<TYPE, KEYS>(s, p);
    for (int32_t tile = first + 1; tile <= last; tile++) {
        wgmma_take(*keys);
        wgmma_fence();
        wgmma_start_scores<TYPE, SIZE, KEYS>(s, view.queries, keys->start + keys->stage * SHAPE::TILE_BYTES);
        wgmma_take(*values);
        wgmma_start_values<TYPE, SIZE, KEYS>(y, p, values->start + values->stage * SHAPE::TILE_BYTES);
        wgmma_wait<1>();
        wgmma_leave(keys);
        wgmma_weigh<KEYS, SPLIT>(state, s, view, tile * KEYS, correction);
        wgmma_wait<0>();
        wgmma_leave(values);
#pragma unroll
        for (int e = 0; e < SIZE / 2; e++) {
            y[e / 4][e % 4] *= correction[e % 4 / 2];
        }
        wgmma_pack<TYPE, KEYS>(s, p);
    }
    wgmma_take(*values);
    if ((last + 1) * KEYS > run.keys) {
        wgmma_clear<SHAPE>(values->memory + values->stage * SHAPE::TILE_BYTES, last * KEYS, run.keys);
    }
    wgmma_fence();
    wgmma_start_values<TYPE, SIZE, KEYS>(y, p, values->start + values->stage * SHAPE::TILE_BYTES);
    wgmma_wait<0>();
    wgmma_leave(values);
}

/* A group's part of one run. */
template <typename SHAPE, int TYPE, int SIZE, bool SPLIT>
static __device__ __forceinline__ void wgmma_do_run(const flash_args &args, const wgmma_run &run,
                                                    wgmma_view *view, wgmma_ring *keys, wgmma_ring *values) {
    wgmma_state state;
    float y[SIZE / 8][4];
    const wgmma_part part = {run, *view, keys, values};
    wgmma_start_run(args, run, view, &state);
    if constexpr (SPLIT) {
        wgmma_totals<SIZE> totals;
        wgmma_start_totals<SIZE>(args, run, &totals);
        for (int32_t first = run.tile; first <= run.last_tile;) {
            const int32_t end = (first / FLASH_CHUNK_TILES + 1) * FLASH_CHUNK_TILES - 1;
            const int32_t last = end < run.last_tile ? end : run.last_tile;
            wgmma_do_tiles<SHAPE, TYPE, SIZE, true>(part, first, last, &state, y);
            wgmma_end_chunk<SIZE>(state, view->c, y, &totals);
            first = last + 1;
        }
        wgmma_store_totals<SIZE>(args, run, view->value_size, totals);
    } else {
        wgmma_do_tiles<SHAPE, TYPE, SIZE, false>(part, run.tile, run.last_tile, &state, y);
        wgmma_store<SIZE>(args, run, state, view->c, view->value_size, y);
    }
}

/* By the two groups: all runs of the block. */
template <typename SHAPE, int TYPE, int SIZE, bool SPLIT, typename SHARED>
static __device__ __forceinline__ void wgmma_multiply(const sl_cuda_context &context, const flash_args &args,
                                                      SHARED *shared, unsigned char *memory) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const int32_t full = BARRIER_FULL + (int32_t)threadIdx.x / 128 - 1;
    unsigned char *keys_memory = memory + SHAPE::QUERIES * WGMMA_GROUPS * SHAPE::Q_BYTES;
    unsigned char *values_memory = keys_memory + STAGES * SHAPE::TILE_BYTES;
    wgmma_ring keys = {keys_memory,
                       sl_shared_address(keys_memory),
                       sl_shared_address(shared->full_keys),
                       sl_shared_address(shared->empty_keys),
                       0,
                       0};
    wgmma_ring values = {values_memory,
                         sl_shared_address(values_memory),
                         sl_shared_address(shared->full_values),
                         sl_shared_address(shared->empty_values),
                         0,
                         0};
    wgmma_view view = {
        args.attention.scale, args.attention.softcap, 0, cache.window, cache.value_size, 0, 0, 0};
    view.c = view.softcap > 0 ? FLASH_LOG2_E : view.scale * FLASH_LOG2_E;
    for (int32_t round = 0;; round++) {
        const int32_t place = round % SHAPE::RUNS;
        hopper_meet(full + 2 * place, WGMMA_LOADERS + 128);
        const wgmma_run run = shared->runs[place];
        if (run.units == 0) {
            return;
        }
        view.queries = wgmma_take_queries<SHAPE, TYPE>(args, run, cache.key_size, round, memory);
        wgmma_do_run<SHAPE, TYPE, SIZE, SPLIT>(args, run, &view, &keys, &values);
        hopper_meet_without_waiting(BARRIER_EMPTY + place, WGMMA_LOADERS + WGMMA_MULTIPLIERS);
    }
}
#endif

template <int TYPE, int SIZE, bool SPLIT>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1)
    wgmma_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ flash_args args,
                 const __grid_constant__ flash_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef wgmma_shape<SIZE, SPLIT> SHAPE;
    sl_wait_for_inputs();
    extern __shared__ uint4 flash_memory[];
    __shared__ wgmma_shared<SHAPE::RUNS> shared;
    unsigned char *memory = (unsigned char *)(((uint64_t)flash_memory + 1023) & ~UINT64_C(1023));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
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
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(WGMMA_FEW_REGISTERS));
        if (threadIdx.x < SL_WARP) {
            const uint32_t keys = sl_shared_address(memory) + SHAPE::QUERIES * WGMMA_GROUPS * SHAPE::Q_BYTES;
            wgmma_feed<SHAPE>(context, args, maps, &shared, keys, keys + STAGES * SHAPE::TILE_BYTES);
        } else {
            wgmma_load<SHAPE, TYPE>(context, args, &shared, memory);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(WGMMA_MANY_REGISTERS));
        wgmma_multiply<SHAPE, TYPE, SIZE, SPLIT>(context, args, &shared, memory);
    }
#else
    (void)context;
    (void)args;
    (void)maps;
#endif
}

/* ---- launches ---- */

template <int TYPE, int SIZE, bool SPLIT>
static cudaError_t launch(const sl_cuda_context *context, const flash_args *args,
                          const flash_launch_shape *shape, cudaStream_t stream) {
    flash_maps maps;
    cudaError_t code =
        sl_flash_make_maps(&context->caches[args->attention.place.group], SL_PAGE_TOKENS, &maps);
    if (code != cudaSuccess) {
        return code;
    }
    const int32_t runs = shape->kv_heads * flash_runs(shape, args->ratio, WGMMA_UNITS);
    const sl_launch_shape blocks = {dim3((unsigned)(runs < context->processors ? runs : context->processors)),
                                    dim3(WGMMA_THREADS), (uint32_t)wgmma_shape<SIZE, SPLIT>::BYTES};
    return sl_launch(context, stream, blocks, wgmma_kernel<TYPE, SIZE, SPLIT>, *context, *args, maps);
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
    } else {                                                                                                 \
        what(256);                                                                                           \
    }

cudaError_t sl_flash_launch_wgmma(const sl_cuda_context *context, const flash_args *args,
                                  const flash_launch_shape *shape, cudaStream_t stream) {
    const bool bf16 = context->caches[args->attention.place.group].type == SL_QTYPE_BF16;
#define LAUNCH(SIZE)                                                                                         \
    return bf16 ? launch<SL_QTYPE_BF16, SIZE, false>(context, args, shape, stream)                           \
                : launch<SL_QTYPE_F16, SIZE, false>(context, args, shape, stream)
    FOR_SIZE(shape->size, LAUNCH)
}

#define FOR_SPLIT_SIZE(size, what)                                                                           \
    if ((size) <= 64) {                                                                                      \
        what(64);                                                                                            \
    } else {                                                                                                 \
        what(128);                                                                                           \
    }

cudaError_t sl_flash_launch_wgmma_split(const sl_cuda_context *context, const flash_args *args,
                                        const flash_launch_shape *shape, cudaStream_t stream) {
    const bool bf16 = context->caches[args->attention.place.group].type == SL_QTYPE_BF16;
#define LAUNCH_SPLIT(SIZE)                                                                                   \
    return bf16 ? launch<SL_QTYPE_BF16, SIZE, true>(context, args, shape, stream)                            \
                : launch<SL_QTYPE_F16, SIZE, true>(context, args, shape, stream)
    FOR_SPLIT_SIZE(shape->size, LAUNCH_SPLIT)
}

template <int TYPE, int SIZE, bool SPLIT> static cudaError_t prepare(void) {
    return cudaFuncSetAttribute(wgmma_kernel<TYPE, SIZE, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                wgmma_shape<SIZE, SPLIT>::BYTES);
}

cudaError_t sl_flash_prepare_wgmma(void) {
    static const int32_t sizes[] = {64, 96, 128, 192, 256};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 5 && code == cudaSuccess; i++) {
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
