/* Attention over the paged cache, for any mix of prompts and single rows.
 *
 * A unit is one row and one query head. The units of a span that read one key head are cut into tiles of 16,
 * row after row; a block takes one tile and walks the pages that its rows see, decoding keys and values in
 * slices of 64 columns that all units of the tile share, while the next slice is on its way. Which block
 * takes what is found on the device from the spans. Two kernels, one class: `whole` walks all of a tile's
 * keys; `split` gives every chunk of 256 keys to a block of its own and adds the parts in a second launch,
 * for few rows with many keys.
 *
 * Class "tile64/split256": keys in tiles of 64, at multiples of 64 of their index in the sequence, and chunks
 * of four tiles, at multiples of 256. Within a chunk, tiles in rising order; one of which a row sees nothing
 * is skipped. Score = the products of q and k added in order with fmaf, times scale, then softcap. m' =
 * max(m, scores), l and y are multiplied by exp(m - m'), p = exp(score - m'); l += the sum of p, keys 32
 * apart added first, then over a warp; y += p
 * * v with fmaf in order of key. A chunk starts with m = -infinity, l = 0. Chunks are added in rising order:
 * M' = max(M, m), Y = Y * exp(M - M') + y * exp(m - M'), L likewise, from M = -infinity, L = 0, or M = sink,
 * L = 1. At the end Y *= 1 / L, then Y *= sigmoid(gate). Only the row's own sequence takes part. */
#include "backend/cuda/device.cuh"

enum {
    THREADS = 128,
    UNITS = 16,               /* of a tile */
    SLICE = 64,               /* columns */
    SLICE_STRIDE = SLICE + 4, /* floats: vectors of four stay aligned, and rows fall on different banks */
    PART = 32,                /* elements of a slice that one thread moves */
    CHUNK_TILES = 4,
    MOST_SIZE = 512, /* of a head */
    MERGE_THREADS = 128,
    MERGE_EACH = MOST_SIZE / MERGE_THREADS,
    PARTIAL_HEAD = 2 /* floats before a partial result: m and l */
};

typedef struct attention_args {
    sl_op_attention attention;
    sl_cuda_operand q, gate, y;
    const float *sinks;
    float *partials; /* [row][head][splits][PARTIAL_HEAD + value_size]; NULL: the kernel is `whole` */
    int32_t splits;
    int32_t ratio; /* query heads per key head */
} attention_args;

/* What the threads of a block share, besides the arrays whose sizes vary, which follow it. */
typedef struct alignas(16) tile_state {
    float slice[SL_PAGE_TOKENS * SLICE_STRIDE];
    float scores[UNITS][SLICE_STRIDE]; /* then p; negative where the unit does not see the key */
    float largest[UNITS], sum[UNITS], correction[UNITS];
    float total_largest[UNITS], total_sum[UNITS], keep[UNITS], add[UNITS];
    int32_t from[UNITS], to[UNITS]; /* keys of the current tile that the unit sees */
    int32_t span, first_unit, units;
} tile_state;

/* Where a block is in its work. */
typedef struct walk {
    const sl_cuda_cache *cache;
    const int32_t *table;
    sl_cache_place place;
    int32_t kv_head;
    int32_t lowest, highest;       /* keys that some unit sees */
    int32_t first_tile, last_tile; /* of this block */
    int32_t key_slices, slices;    /* of keys, and with those of values */
    int32_t q_stride;
    float *q, *acc, *total; /* [UNITS][q_stride], [UNITS][value_size] twice */
} walk;

static __device__ __forceinline__ float half_to_float(uint32_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)half));
    return value;
}

static __device__ __forceinline__ int32_t clamp(int32_t value) {
    return value < 0 ? 0 : value > SL_PAGE_TOKENS ? SL_PAGE_TOKENS : value;
}

/* ---- moving slices ---- */

/* PART elements as they lie in the cache: thread t has those from 32 * (t % 2) on of key t / 2. */
typedef struct raw_part {
    uint32_t words[PART];
} raw_part;

template <int TYPE>
static __device__ __forceinline__ void fetch_row(const unsigned char *row, int32_t column, int32_t count,
                                                 raw_part *raw) {
    if (TYPE == SL_QTYPE_Q8_0) { /* whole blocks: the head size is a multiple of 32 */
        const uint16_t *block = (const uint16_t *)(row + (uint64_t)(column / 32) * SL_Q8_0_BYTES);
#pragma unroll
        for (int i = 0; i < 17; i++) {
            raw->words[i] = count > 0 ? block[i] : 0;
        }
        return;
    }
    const int bytes = TYPE == SL_QTYPE_F32 ? 4 : 2;
    const unsigned char *from = row + (int64_t)column * bytes;
    if (count == PART && (uint64_t)from % 16 == 0) {
#pragma unroll
        for (int i = 0; i < PART * bytes / 16; i++) {
            const uint4 four = ((const uint4 *)from)[i];
            raw->words[4 * i] = four.x;
            raw->words[4 * i + 1] = four.y;
            raw->words[4 * i + 2] = four.z;
            raw->words[4 * i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < PART * bytes / 4; i++) {
        if (TYPE == SL_QTYPE_F32) {
            raw->words[i] = i < count ? ((const uint32_t *)from)[i] : 0;
        } else {
            const uint32_t low = 2 * i < count ? ((const uint16_t *)from)[2 * i] : 0;
            const uint32_t high = 2 * i + 1 < count ? ((const uint16_t *)from)[2 * i + 1] : 0;
            raw->words[i] = low | high << 16;
        }
    }
}

/* Slice `slice` of a tile: first those of the keys, then those of the values; 0 for keys that nobody sees. */
template <int TYPE>
static __device__ __forceinline__ void fetch(const walk &w, int32_t tile, int32_t slice, raw_part *raw) {
    const sl_cuda_cache &cache = *w.cache;
    const bool is_key = slice < w.key_slices;
    const int32_t key = (int32_t)threadIdx.x / 2, size = is_key ? cache.key_size : cache.value_size;
    const int32_t column = (is_key ? slice : slice - w.key_slices) * SLICE + (int32_t)threadIdx.x % 2 * PART;
    const int32_t index = tile * SL_PAGE_TOKENS + key;
    const int32_t left = index >= w.lowest && index <= w.highest ? size - column : 0;
    const uint64_t row_bytes = is_key ? cache.key_bytes : cache.value_bytes;
    const unsigned char *layer = cache.pages + (uint64_t)w.table[tile] * cache.page_bytes +
                                 (uint64_t)w.place.layer * cache.layer_bytes +
                                 (is_key ? 0 : (uint64_t)cache.kv_heads * SL_PAGE_TOKENS * cache.key_bytes);
    if (left <= 0) {
#pragma unroll
        for (int i = 0; i < PART; i++) {
            raw->words[i] = 0;
        }
        return;
    }
    fetch_row<TYPE>(layer + ((uint64_t)w.kv_head * SL_PAGE_TOKENS + key) * row_bytes, column,
                    left < PART ? left : (int32_t)PART, raw);
}

template <int TYPE> static __device__ __forceinline__ float element_of(const raw_part &raw, int i) {
    if (TYPE == SL_QTYPE_F32) {
        return sl_f32_from_bits(raw.words[i]);
    }
    if (TYPE == SL_QTYPE_Q8_0) {
        const uint32_t byte = raw.words[1 + i / 2] >> 8 * (i % 2) & 255u;
        return (float)(int8_t)byte * half_to_float(raw.words[0]);
    }
    const uint32_t half = raw.words[i / 2] >> 16 * (i % 2) & 0xffffu;
    return TYPE == SL_QTYPE_F16 ? half_to_float(half) : sl_f32_from_bits(half << 16);
}

template <int TYPE> static __device__ __forceinline__ void put(const raw_part &raw, float *slice) {
    float4 *to =
        (float4 *)(slice + (int32_t)threadIdx.x / 2 * SLICE_STRIDE + (int32_t)threadIdx.x % 2 * PART);
#pragma unroll
    for (int i = 0; i < PART / 4; i++) {
        to[i] = make_float4(element_of<TYPE>(raw, 4 * i), element_of<TYPE>(raw, 4 * i + 1),
                            element_of<TYPE>(raw, 4 * i + 2), element_of<TYPE>(raw, 4 * i + 3));
    }
}

/* ---- arithmetic ---- */

/* Thread t takes key t % 64 of N units, every second one. */
template <int N>
static __device__ __forceinline__ void add_scores(const walk &w, int32_t column, const tile_state &shared,
                                                  float sums[N]) {
    const int32_t key = (int32_t)threadIdx.x % SL_PAGE_TOKENS, first = (int32_t)threadIdx.x / SL_PAGE_TOKENS;
    const int32_t columns = w.cache->key_size - column < SLICE ? w.cache->key_size - column : (int32_t)SLICE;
    const float4 *k = (const float4 *)(shared.slice + key * SLICE_STRIDE);
#pragma unroll 4
    for (int32_t c = 0; c < (columns + 3) / 4; c++) { /* behind the last column both are 0 */
        const float4 b = k[c];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 a = ((const float4 *)(w.q + (first + 2 * i) * w.q_stride + column))[c];
            sums[i] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sums[i]))));
        }
    }
}

template <int N>
static __device__ __forceinline__ void store_scores(const attention_args &args, const float sums[N],
                                                    tile_state *shared) {
    const int32_t key = (int32_t)threadIdx.x % SL_PAGE_TOKENS, first = (int32_t)threadIdx.x / SL_PAGE_TOKENS;
    const float softcap = args.attention.softcap;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float score = sums[i] * args.attention.scale;
        if (softcap > 0) {
            score = softcap * tanhf(score / softcap);
        }
        shared->scores[first + 2 * i][key] = score;
    }
}

/* Turns a unit's scores into p. One warp per unit. */
static __device__ void weigh_unit(int32_t unit, tile_state *shared) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t from = shared->from[unit], to = shared->to[unit];
    float *scores = shared->scores[unit];
    const bool see0 = lane >= from && lane < to, see1 = lane + 32 >= from && lane + 32 < to;
    const float s0 = scores[lane], s1 = scores[lane + 32], before = shared->largest[unit];
    float largest = before;
    largest = see0 && s0 > largest ? s0 : largest;
    largest = see1 && s1 > largest ? s1 : largest;
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    const float p0 = see0 ? expf(s0 - largest) : 0.0f, p1 = see1 ? expf(s1 - largest) : 0.0f;
    const float sum = sl_warp_sum(p0 + p1);
    scores[lane] = see0 ? p0 : -1.0f;
    scores[lane + 32] = see1 ? p1 : -1.0f;
    __syncwarp();
    if (lane == 0) {
        const float correction = from < to ? expf(before - largest) : 1.0f;
        shared->correction[unit] = correction;
        shared->sum[unit] = shared->sum[unit] * correction + sum;
        shared->largest[unit] = largest;
    }
}

/* acc = acc * correction + sum of p * v for a slice of columns: thread t takes column t % 64 of N units,
 * every second one. ALL: every unit sees every key of the tile. */
template <int N, bool ALL>
static __device__ __forceinline__ void add_values(const walk &w, int32_t column, const tile_state &shared) {
    const int32_t c = (int32_t)threadIdx.x % SLICE, first = (int32_t)threadIdx.x / SLICE;
    const int32_t size = w.cache->value_size;
    const bool mine = column + c < size;
    float sums[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int32_t unit = first + 2 * i;
        sums[i] = mine ? w.acc[unit * size + column + c] * shared.correction[unit] : 0.0f;
    }
#pragma unroll 2
    for (int32_t key = 0; key < SL_PAGE_TOKENS; key += 4) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[e] = shared.slice[(key + e) * SLICE_STRIDE + c];
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 four = *(const float4 *)&shared.scores[first + 2 * i][key];
            const float p[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sums[i] = !ALL && p[e] < 0 ? sums[i] : fmaf(p[e], v[e], sums[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (mine) {
            w.acc[(first + 2 * i) * size + column + c] = sums[i];
        }
    }
}

/* What adding a chunk's (m, l) to the total's (M, L) multiplies them by. add < 0: the chunk is empty. */
static __device__ __forceinline__ void merge_state(float m, float l, float *largest, float *sum, float *keep,
                                                   float *add) {
    *keep = 1.0f;
    *add = -1.0f;
    if (m == -INFINITY && l == 0.0f) {
        return;
    }
    const float both = fmaxf(*largest, m);
    *keep = expf(*largest - both);
    *add = expf(m - both);
    *sum = *sum * *keep + l * *add;
    *largest = both;
}

static __device__ __forceinline__ float finish(const attention_args &args, int32_t row, int32_t head,
                                               int32_t c, float value, float sum) {
    value *= sum == 0.0f ? 0.0f : 1.0f / sum;
    if (args.gate.data) {
        value *= sl_sigmoid(sl_f32(args.gate, row)[head * args.attention.gate_stride + c]);
    }
    return value;
}

/* ---- a block's work ---- */

/* By the first warp: span and units of tile `tile`; units is 0 when there is no such tile. */
static __device__ void find_units(const sl_cuda_context &context, int32_t tile, int32_t ratio,
                                  tile_state *shared) {
    const int32_t lane = (int32_t)threadIdx.x, spans = context.header->spans;
    int32_t before = 0;
    if (lane == 0) {
        shared->units = 0;
    }
    __syncwarp();
    for (int32_t base = 0; base < spans; base += SL_WARP) {
        const int32_t units = base + lane < spans ? context.spans[base + lane].row_count * ratio : 0;
        const int32_t tiles = (units + UNITS - 1) / UNITS;
        int32_t end = tiles;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        if (tile >= end - tiles && tile < end) {
            shared->span = base + lane;
            shared->first_unit = (tile - (end - tiles)) * UNITS;
            shared->units = units - shared->first_unit < UNITS ? units - shared->first_unit : (int32_t)UNITS;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
}

static __device__ void start_chunk(const walk &w, tile_state *shared) {
    for (int32_t i = (int32_t)threadIdx.x; i < UNITS * w.cache->value_size; i += THREADS) {
        w.acc[i] = 0;
    }
    if (threadIdx.x < UNITS) {
        shared->largest[threadIdx.x] = -INFINITY;
        shared->sum[threadIdx.x] = 0.0f;
    }
}

/* q into shared memory, with zeros behind its last column and unit. */
static __device__ void load_queries(const attention_args &args, const walk &w, int32_t first_row,
                                    const tile_state &shared) {
    for (int32_t i = (int32_t)threadIdx.x; i < UNITS * w.q_stride; i += THREADS) {
        const int32_t at = i / w.q_stride, c = i % w.q_stride, unit = shared.first_unit + at;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
        w.q[i] = at < shared.units && c < w.cache->key_size
                     ? sl_f32(args.q, first_row + unit / args.ratio)[head * args.attention.q_stride + c]
                     : 0.0f;
    }
}

/* Adds the chunk that ends to the total. */
static __device__ void end_chunk(const walk &w, tile_state *shared) {
    __syncthreads();
    if ((int32_t)threadIdx.x < shared->units) {
        const int32_t u = (int32_t)threadIdx.x;
        merge_state(shared->largest[u], shared->sum[u], &shared->total_largest[u], &shared->total_sum[u],
                    &shared->keep[u], &shared->add[u]);
    }
    __syncthreads();
    const int32_t size = w.cache->value_size;
    for (int32_t i = (int32_t)threadIdx.x; i < shared->units * size; i += THREADS) {
        const float add = shared->add[i / size];
        w.total[i] = add < 0 ? w.total[i] : w.total[i] * shared->keep[i / size] + w.acc[i] * add;
    }
    __syncthreads();
    start_chunk(w, shared);
    __syncthreads();
}

/* The next tile from `tile` on that has a page; behind the last when there is none. */
static __device__ __forceinline__ int32_t next_tile(const walk &w, int32_t tile) {
    while (tile <= w.last_tile && w.table[tile] < 0) {
        tile++;
    }
    return tile;
}

/* What each unit sees of a tile; true when all see all of it. */
static __device__ bool look_at_tile(const attention_args &args, const walk &w, int32_t length, int32_t tile,
                                    tile_state *shared) {
    bool all = true;
    if ((int32_t)threadIdx.x < shared->units) {
        const int32_t index = length + (shared->first_unit + (int32_t)threadIdx.x) / args.ratio;
        const int32_t window = w.cache->window, base = tile * SL_PAGE_TOKENS;
        const int32_t from = clamp((window > 0 && index >= window ? index - window + 1 : 0) - base);
        const int32_t to = clamp(index + 1 - base);
        shared->from[threadIdx.x] = from;
        shared->to[threadIdx.x] = to;
        all = from == 0 && to == SL_PAGE_TOKENS;
    }
    return __syncthreads_and(all) != 0;
}

template <int TYPE, int N>
static __device__ void walk_tiles(const attention_args &args, const walk &w, int32_t length,
                                  tile_state *shared) {
    raw_part raw;
    int32_t tile = next_tile(w, w.first_tile);
    if (tile <= w.last_tile) {
        fetch<TYPE>(w, tile, 0, &raw);
    }
    while (tile <= w.last_tile) {
        const bool all = look_at_tile(args, w, length, tile, shared);
        const int32_t next = next_tile(w, tile + 1);
        float sums[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[i] = 0;
        }
        for (int32_t slice = 0; slice < w.slices; slice++) {
            put<TYPE>(raw, shared->slice);
            __syncthreads();
            if (slice + 1 < w.slices) {
                fetch<TYPE>(w, tile, slice + 1, &raw);
            } else if (next <= w.last_tile) {
                fetch<TYPE>(w, next, 0, &raw);
            }
            if (slice < w.key_slices) {
                add_scores<N>(w, slice * SLICE, *shared, sums);
            } else if (all) {
                add_values<N, true>(w, (slice - w.key_slices) * SLICE, *shared);
            } else {
                add_values<N, false>(w, (slice - w.key_slices) * SLICE, *shared);
            }
            if (slice == w.key_slices - 1) {
                store_scores<N>(args, sums, shared);
                __syncthreads();
                for (int32_t u = (int32_t)threadIdx.x / SL_WARP; u < shared->units; u += THREADS / SL_WARP) {
                    weigh_unit(u, shared);
                }
            }
            __syncthreads();
        }
        if (!args.partials && (next > w.last_tile || next / CHUNK_TILES != tile / CHUNK_TILES)) {
            end_chunk(w, shared);
        }
        tile = next;
    }
}

static __device__ void store_result(const attention_args &args, const walk &w, int32_t first_row,
                                    const tile_state &shared) {
    const int32_t size = w.cache->value_size;
    for (int32_t i = (int32_t)threadIdx.x; i < shared.units * size; i += THREADS) {
        const int32_t at = i / size, c = i % size, unit = shared.first_unit + at;
        const int32_t head = w.kv_head * args.ratio + unit % args.ratio, row = first_row + unit / args.ratio;
        if (args.partials) {
            float *to =
                args.partials + (((int64_t)row * args.attention.heads + head) * args.splits + blockIdx.z) *
                                    (PARTIAL_HEAD + size);
            to[PARTIAL_HEAD + c] = w.acc[i];
            if (c == 0) {
                to[0] = shared.largest[at];
                to[1] = shared.sum[at];
            }
        } else {
            sl_f32(args.y, row)[head * size + c] =
                finish(args, row, head, c, w.total[i], shared.total_sum[at]);
        }
    }
}

template <int TYPE>
static __global__ void __launch_bounds__(THREADS)
    attention_kernel(sl_cuda_context context, attention_args args) {
    extern __shared__ float4 memory[];
    tile_state &shared = *(tile_state *)memory;
    if (threadIdx.x < SL_WARP) {
        find_units(context, (int32_t)blockIdx.x, args.ratio, &shared);
    }
    __syncthreads();
    if (shared.units == 0) {
        return;
    }
    const sl_step_span &span = context.spans[shared.span];
    const int32_t group = args.attention.place.group, length = span.length[group];
    walk w;
    w.cache = &context.caches[group];
    w.table = w.cache->table + (int64_t)span.slot * context.table_width;
    w.place = args.attention.place;
    w.kv_head = (int32_t)blockIdx.y;
    const int32_t first = length + shared.first_unit / args.ratio, window = w.cache->window;
    w.lowest = window > 0 && first >= window ? first - window + 1 : 0;
    w.highest = length + (shared.first_unit + shared.units - 1) / args.ratio;
    w.first_tile = w.lowest / SL_PAGE_TOKENS;
    w.last_tile = w.highest / SL_PAGE_TOKENS;
    if (args.partials) {
        const int32_t from = (int32_t)blockIdx.z * CHUNK_TILES;
        w.first_tile = w.first_tile < from ? from : w.first_tile;
        w.last_tile = w.last_tile < from + CHUNK_TILES - 1 ? w.last_tile : from + CHUNK_TILES - 1;
        if (w.first_tile > w.last_tile) {
            return;
        }
    }
    w.key_slices = (w.cache->key_size + SLICE - 1) / SLICE;
    w.slices = w.key_slices + (w.cache->value_size + SLICE - 1) / SLICE;
    w.q_stride = (w.cache->key_size + 3) / 4 * 4;
    w.q = (float *)(&shared + 1);
    w.acc = w.q + UNITS * w.q_stride;
    w.total = w.acc + UNITS * w.cache->value_size; /* `whole` only */
    load_queries(args, w, span.first_row, shared);
    start_chunk(w, &shared);
    if (!args.partials) {
        for (int32_t i = (int32_t)threadIdx.x; i < UNITS * w.cache->value_size; i += THREADS) {
            w.total[i] = 0;
        }
        if ((int32_t)threadIdx.x < shared.units) {
            const int32_t head =
                w.kv_head * args.ratio + (shared.first_unit + (int32_t)threadIdx.x) % args.ratio;
            shared.total_largest[threadIdx.x] = args.sinks ? args.sinks[head] : -INFINITY;
            shared.total_sum[threadIdx.x] = args.sinks ? 1.0f : 0.0f;
        }
    }
    __syncthreads();
    const int32_t each = (shared.units + 1) / 2; /* a thread takes every second unit */
    if (each <= 1) {
        walk_tiles<TYPE, 1>(args, w, length, &shared);
    } else if (each <= 2) {
        walk_tiles<TYPE, 2>(args, w, length, &shared);
    } else if (each <= 4) {
        walk_tiles<TYPE, 4>(args, w, length, &shared);
    } else {
        walk_tiles<TYPE, 8>(args, w, length, &shared);
    }
    __syncthreads();
    store_result(args, w, span.first_row, shared);
}

/* After `split`: adds the chunks of one row and head, in order. */
static __global__ void merge_kernel(sl_cuda_context context, attention_args args) {
    const int32_t row = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    if (row >= context.header->rows) {
        return;
    }
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const sl_step_span &span = context.spans[context.rows[row].span];
    const int32_t index = span.length[group] + row - span.first_row, size = cache.value_size;
    const int32_t seen = cache.window > 0 && index >= cache.window ? index - cache.window + 1 : 0;
    float largest = args.sinks ? args.sinks[head] : -INFINITY, sum = args.sinks ? 1.0f : 0.0f;
    float total[MERGE_EACH];
#pragma unroll
    for (int i = 0; i < MERGE_EACH; i++) {
        total[i] = 0;
    }
    const int32_t keys = CHUNK_TILES * SL_PAGE_TOKENS;
    for (int32_t chunk = seen / keys; chunk <= index / keys; chunk++) {
        const float *from =
            args.partials +
            (((int64_t)row * args.attention.heads + head) * args.splits + chunk) * (PARTIAL_HEAD + size);
        float keep, add;
        merge_state(from[0], from[1], &largest, &sum, &keep, &add);
#pragma unroll
        for (int i = 0; i < MERGE_EACH; i++) {
            const int32_t c = (int32_t)threadIdx.x + MERGE_THREADS * i;
            if (c < size && !(add < 0)) {
                total[i] = total[i] * keep + from[PARTIAL_HEAD + c] * add;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MERGE_EACH; i++) {
        const int32_t c = (int32_t)threadIdx.x + MERGE_THREADS * i;
        if (c < size) {
            sl_f32(args.y, row)[head * size + c] = finish(args, row, head, c, total[i], sum);
        }
    }
}

/* ---- launches ---- */

static size_t shared_bytes(const sl_cache_group *group, bool split) {
    const int32_t q = (group->key_size + 3) / 4 * 4;
    return sizeof(tile_state) + (size_t)(UNITS * (q + group->value_size * (split ? 1 : 2))) * sizeof(float);
}

const char *sl_cuda_attention_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_cache_group *group = &query->program->groups[query->op->u.attention.place.group];
    if (group->key_size > MOST_SIZE || group->value_size > MOST_SIZE) {
        return "takes head sizes up to 512";
    }
    if (row->most_rows > 0 && query->rows[SL_ROWS_STEP] > row->most_rows) {
        return "takes at most 8 rows";
    }
    switch (query->cache_type) {
    case SL_QTYPE_F32:
    case SL_QTYPE_F16:
    case SL_QTYPE_BF16:
    case SL_QTYPE_Q8_0:
        return NULL;
    default:
        return "takes caches of f32, f16, bf16 and q8_0";
    }
}

#define FOR_TYPE(type, call)                                                                                 \
    switch (type) {                                                                                          \
    case SL_QTYPE_F32:                                                                                       \
        call(SL_QTYPE_F32);                                                                                  \
        break;                                                                                               \
    case SL_QTYPE_F16:                                                                                       \
        call(SL_QTYPE_F16);                                                                                  \
        break;                                                                                               \
    case SL_QTYPE_BF16:                                                                                      \
        call(SL_QTYPE_BF16);                                                                                 \
        break;                                                                                               \
    default:                                                                                                 \
        call(SL_QTYPE_Q8_0);                                                                                 \
        break;                                                                                               \
    }

/* Lets the kernels use more shared memory than a launch may by default: what the largest heads need, or what
 * the device has (then a launch for such heads fails, at deploy). */
cudaError_t sl_cuda_attention_prepare(int device) {
    const sl_cache_group largest = {.name = NULL,
                                    .layers = 1,
                                    .kv_heads = 1,
                                    .key_size = MOST_SIZE,
                                    .value_size = MOST_SIZE,
                                    .window = 0};
    int bytes = 0;
    cudaError_t code = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if ((size_t)bytes > shared_bytes(&largest, false)) {
        bytes = (int)shared_bytes(&largest, false);
    }
    const int types[] = {SL_QTYPE_F32, SL_QTYPE_F16, SL_QTYPE_BF16, SL_QTYPE_Q8_0};
    for (unsigned i = 0; i < sizeof types / sizeof *types && code == cudaSuccess; i++) {
#define PREPARE(TYPE)                                                                                        \
    code = cudaFuncSetAttribute(attention_kernel<TYPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
        FOR_TYPE(types[i], PREPARE)
    }
    return code;
}

static int32_t splits_of(int32_t table_width) {
    return (table_width + CHUNK_TILES - 1) / CHUNK_TILES;
}

uint64_t sl_cuda_attention_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const uint64_t floats =
        PARTIAL_HEAD + (uint64_t)query->program->groups[attention->place.group].value_size;
    return (uint64_t)query->rows[SL_ROWS_STEP] * (uint64_t)attention->heads *
           (uint64_t)splits_of(sl_table_width(query->limits->context)) * floats * sizeof(float);
}

static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, bool split,
                          cudaStream_t stream) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const int32_t ratio = attention->heads / group->kv_heads, rows = op->rows[SL_ROWS_STEP];
    const int32_t splits = split ? splits_of(context->table_width) : 1;
    const attention_args args = {*attention,
                                 op->in[0],
                                 op->in[1],
                                 op->out[0],
                                 (const float *)op->weights[0].data,
                                 split ? (float *)op->scratch : NULL,
                                 splits,
                                 ratio};
    /* Each span may leave one tile partly empty. */
    const dim3 grid((unsigned)(rows * ratio / UNITS + op->spans), (unsigned)group->kv_heads,
                    (unsigned)splits);
    const size_t bytes = shared_bytes(group, split);
#define LAUNCH(TYPE) attention_kernel<TYPE><<<grid, THREADS, bytes, stream>>>(*context, args)
    FOR_TYPE(context->caches[attention->place.group].type, LAUNCH)
    if (split) {
        merge_kernel<<<dim3((unsigned)rows, (unsigned)attention->heads), MERGE_THREADS, 0, stream>>>(*context,
                                                                                                     args);
    }
    return cudaGetLastError();
}

SL_CUDA_RUN(sl_cuda_attention_whole) {
    return launch(context, op, false, stream);
}

SL_CUDA_RUN(sl_cuda_attention_split) {
    return launch(context, op, true, stream);
}
