/* Which keys a sequence keeps behind its prompt, and their copies (sl_op_compact): five launches, in order.
 *
 * Queries are counted row after row, and in a row head after head of those that share a key head. A block of
 * the first and the third launch has one page of keys of one key head, and multiplies it with all queries,
 * 128 at a time and 16 to a warp. Products are those of mma with tf32, 8 columns after the other. tf32 has 11
 * bits, so a query is the sum of two such numbers, the lesser first. So is a key of f32 or Q8_0, without the
 * product of both lesser ones. What is lost is about what f32 rounds.
 *
 * Class "tile64/tf32x2": of each query and page the largest score and the sum of exp(score - largest), 16
 * keys in a thread, then across; pages l, l + 32, ... to lane l, then across. A key's score is the sum over
 * the queries of exp(score - largest) * (1 / sum): those 128 t + 16 w + g and + 8 in order to lane g of warp
 * w, then across lanes, then warps. */
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/types/cache_element.cuh"

#include <math.h>

enum {
    THREADS = 256,
    WARPS = THREADS / SL_WARP,
    WARP_QUERIES = 16,
    QUERIES = WARPS * WARP_QUERIES, /* multiplied at a time */
    KEY_TILES = SL_PAGE_TOKENS / 8, /* of an mma */
    SLICE = 32,                     /* columns multiplied at a time */
    QUADS = SLICE / SL_QUAD,        /* of a row's slice: a thread has one of some rows */
    STEP = THREADS / QUADS,         /* rows between these */
    STRIDE = SLICE + 4,             /* eight rows of 16 bytes lie in all banks */
    SELECT_THREADS = 1024,
    DIGITS = 256
};

typedef struct softmax {
    float largest, sum; /* of a whole query: 1 / sum */
} softmax;

typedef struct compact_args {
    sl_op_compact compact;
    sl_cuda_operand q;
    const float *sinks;
    int32_t ratio;       /* query heads per key head */
    int32_t queries;     /* of the bucket's rows */
    int32_t tiles, keys; /* that a sequence can have */
    int32_t spare;       /* row of the page tables */
    softmax *parts;      /* [kv_heads][queries][tiles] */
    softmax *wholes;     /* [kv_heads][queries] */
    float *scores;       /* [kv_heads][keys] */
    uint32_t *pooled;    /* [kv_heads][keys] */
    int32_t *kept;       /* [kv_heads][keys] */
} compact_args;

/* The sequence. */
typedef struct compact_view {
    const sl_cuda_cache &cache;
    const int32_t *table;
    int32_t rows, keys, queries;
} compact_view;

static __device__ __forceinline__ compact_view view_of(const sl_cuda_context &context,
                                                       const compact_args &args) {
    const sl_step_span &span = context.spans[0];
    const int32_t group = args.compact.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    return {cache, cache.table + (int64_t)span.slot * context.table_width, span.row_count,
            span.length[group] + span.row_count, span.row_count * args.ratio};
}

/* Of the layer in a page. */
static __device__ __forceinline__ unsigned char *layer_of(const compact_args &args,
                                                          const sl_cuda_cache &cache, int32_t page) {
    return cache.pages + (uint64_t)page * cache.page_bytes +
           (uint64_t)args.compact.attention.place.layer * cache.layer_bytes;
}

typedef struct product_memory {
    float keys[SL_PAGE_TOKENS][STRIDE], queries[QUERIES][STRIDE];
    const float *rows[QUERIES]; /* where each query begins; NULL: there are no more */
} product_memory;

/* x becomes the tf32 part of it; returns what it lacks, of which an mma takes the first 11 bits. */
static __device__ __forceinline__ uint32_t split_tf32(uint32_t *x) {
    const float whole = __uint_as_float(*x);
    *x &= 0xffffe000u;
    return __float_as_uint(whole - __uint_as_float(*x));
}

/* Eight columns of 16 queries and 64 keys; lane l has row l % 8 of matrix l / 8. */
template <bool EXACT>
static __device__ __forceinline__ void multiply_columns(const float *queries, const float *keys,
                                                        float (&sums)[KEY_TILES][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, row = lane % 8, matrix = lane / 8;
    uint32_t q[4], q_rest[4];
    sl_load_matrices(sl_shared_address(queries + (row + matrix % 2 * 8) * STRIDE + matrix / 2 * 4), q);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q_rest[i] = split_tf32(&q[i]);
    }
#pragma unroll
    for (int n = 0; n < KEY_TILES; n += 2) {
        uint32_t k[4], k_rest[4];
        sl_load_matrices(sl_shared_address(keys + (8 * n + row + matrix / 2 * 8) * STRIDE + matrix % 2 * 4),
                         k);
#pragma unroll
        for (int i = 0; !EXACT && i < 4; i++) {
            k_rest[i] = split_tf32(&k[i]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (!EXACT) {
                sl_mma_tf32(sums[n + i], q, k_rest[2 * i], k_rest[2 * i + 1]);
            }
            sl_mma_tf32(sums[n + i], q_rest, k[2 * i], k[2 * i + 1]);
            sl_mma_tf32(sums[n + i], q, k[2 * i], k[2 * i + 1]);
        }
    }
}

/* What a thread carries from global memory to a slice. */
typedef struct carried {
    float4 keys[SL_PAGE_TOKENS / STEP], queries[QUERIES / STEP];
} carried;

template <int TYPE, bool ALIGNED>
static __device__ __forceinline__ carried fetch_slice(const compact_view &view, const unsigned char *keys,
                                                      const product_memory &memory, int32_t from) {
    const int32_t row = (int32_t)threadIdx.x / QUADS, size = view.cache.key_size;
    const int32_t column = from + (int32_t)threadIdx.x % QUADS * SL_QUAD;
    const float4 none = make_float4(0, 0, 0, 0);
    carried result;
#pragma unroll
    for (int i = 0; i < SL_PAGE_TOKENS / STEP; i++) {
        const unsigned char *key = keys + (uint64_t)(row + i * STEP) * view.cache.key_bytes;
        result.keys[i] = column < size ? sl_cache_quad<TYPE, ALIGNED>(key, column, size) : none;
    }
#pragma unroll
    for (int i = 0; i < QUERIES / STEP; i++) {
        const float *query = memory.rows[row + i * STEP];
        result.queries[i] = query && column < size ? sl_load_quad<ALIGNED>(query, column, size) : none;
    }
    return result;
}

static __device__ __forceinline__ void store_slice(const carried &from, product_memory *to) {
    const int32_t row = (int32_t)threadIdx.x / QUADS, column = (int32_t)threadIdx.x % QUADS * SL_QUAD;
#pragma unroll
    for (int i = 0; i < SL_PAGE_TOKENS / STEP; i++) {
        *(float4 *)&to->keys[row + i * STEP][column] = from.keys[i];
    }
#pragma unroll
    for (int i = 0; i < QUERIES / STEP; i++) {
        *(float4 *)&to->queries[row + i * STEP][column] = from.queries[i];
    }
}

/* Scores of queries first + [0, 128) and the page's keys: sums[n][i] of query 16 warp + lane / 4 + i / 2 * 8
 * and key 8 n + 2 (lane % 4) + i % 2. The next slice is on its way while one is multiplied. */
template <int TYPE, bool ALIGNED>
static __device__ __forceinline__ void multiply(const compact_args &args, const compact_view &view,
                                                const unsigned char *keys, int32_t first,
                                                product_memory *memory, float (&sums)[KEY_TILES][4]) {
    const bool exact = TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16 || TYPE == SL_QTYPE_FP8;
    const int32_t own = (int32_t)threadIdx.x / SL_WARP * WARP_QUERIES;
    const int32_t size = view.cache.key_size, kv_head = (int32_t)blockIdx.y;
    const sl_op_attention &attention = args.compact.attention;
#pragma unroll
    for (int i = 0; i < KEY_TILES * 4; i++) {
        sums[i / 4][i % 4] = 0;
    }
    if (threadIdx.x < QUERIES) {
        const int32_t query = first + (int32_t)threadIdx.x, head = kv_head * args.ratio + query % args.ratio;
        memory->rows[threadIdx.x] =
            query < view.queries ? sl_f32(args.q, query / args.ratio) + head * attention.q_stride : NULL;
    }
    __syncthreads();
    carried next = fetch_slice<TYPE, ALIGNED>(view, keys, *memory, 0);
    for (int32_t from = 0; from < size; from += SLICE) {
        store_slice(next, memory);
        __syncthreads();
        if (from + SLICE < size) {
            next = fetch_slice<TYPE, ALIGNED>(view, keys, *memory, from + SLICE);
        }
        if (first + own < view.queries) {
#pragma unroll
            for (int c = 0; c < SLICE; c += 8) {
                multiply_columns<exact>(&memory->queries[own][c], &memory->keys[0][c], sums);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < KEY_TILES * 4; i++) {
        float &score = sums[i / 4][i % 4];
        score *= attention.scale;
        if (attention.softcap > 0) {
            score = attention.softcap * tanhf(score / attention.softcap);
        }
    }
}

/* Over the four lanes that have the same queries. */
static __device__ __forceinline__ float row_largest(float value) {
    value = fmaxf(value, __shfl_xor_sync(SL_FULL_WARP, value, 2));
    return fmaxf(value, __shfl_xor_sync(SL_FULL_WARP, value, 1));
}

static __device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(SL_FULL_WARP, value, 2);
    return value + __shfl_xor_sync(SL_FULL_WARP, value, 1);
}

static __device__ __forceinline__ float exp_of(float x) {
    return exp2f(x * 1.44269504f); /* a third of what expf takes */
}

/* ---- 1: of each page */

template <int TYPE, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, 2)
    compact_sum_kernel(sl_cuda_context context, compact_args args) {
    __shared__ product_memory memory;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (!context.header->compact) {
        return;
    }
    const compact_view view = view_of(context, args);
    const int32_t tile = (int32_t)blockIdx.x, kv_head = (int32_t)blockIdx.y;
    if (tile * SL_PAGE_TOKENS >= view.keys) {
        return;
    }
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t page = view.table[tile];
    const unsigned char *keys = layer_of(args, view.cache, page < 0 ? 0 : page) +
                                (uint64_t)kv_head * SL_PAGE_TOKENS * view.cache.key_bytes;
    for (int32_t first = 0; first < view.queries; first += QUERIES) {
        float scores[KEY_TILES][4];
        multiply<TYPE, ALIGNED>(args, view, keys, first, &memory, scores);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t query = first + WARP_QUERIES * warp + lane / 4 + 8 * half;
            const int32_t end =
                page < 0 ? 0 : view.keys - view.rows + query / args.ratio + 1 - tile * SL_PAGE_TOKENS;
            float largest = -INFINITY, sum = 0;
#pragma unroll
            for (int j = 0; j < 2 * KEY_TILES; j++) {
                const int32_t key = j / 2 * 8 + lane % 4 * 2 + j % 2;
                largest = key < end ? fmaxf(largest, scores[j / 2][2 * half + j % 2]) : largest;
            }
            largest = row_largest(largest);
#pragma unroll
            for (int j = 0; j < 2 * KEY_TILES; j++) {
                const int32_t key = j / 2 * 8 + lane % 4 * 2 + j % 2;
                sum += key < end ? exp_of(scores[j / 2][2 * half + j % 2] - largest) : 0.0f;
            }
            sum = row_sum(sum);
            if (lane % 4 == 0 && query < view.queries) {
                args.parts[((int64_t)kv_head * args.queries + query) * args.tiles + tile] = {largest, sum};
            }
        }
    }
}

/* ---- 2: of all pages, a warp for each query */

static __global__ void __launch_bounds__(THREADS)
    compact_join_kernel(sl_cuda_context context, compact_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (!context.header->compact) {
        return;
    }
    const compact_view view = view_of(context, args);
    const int32_t kv_head = (int32_t)blockIdx.y, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t query = (int32_t)(blockIdx.x * THREADS + threadIdx.x) / SL_WARP;
    const int32_t tiles = (view.keys + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
    if (query >= view.queries) {
        return;
    }
    const softmax *parts = args.parts + ((int64_t)kv_head * args.queries + query) * args.tiles;
    const float sink = args.sinks ? args.sinks[kv_head * args.ratio + query % args.ratio] : -INFINITY;
    float largest = sink, sum = 0;
    for (int32_t tile = lane; tile < tiles; tile += SL_WARP) {
        largest = fmaxf(largest, parts[tile].largest);
    }
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    for (int32_t tile = lane; tile < tiles; tile += SL_WARP) {
        sum += parts[tile].sum > 0 ? parts[tile].sum * expf(parts[tile].largest - largest) : 0.0f;
    }
    sum = sl_warp_sum(sum) + (args.sinks ? expf(sink - largest) : 0.0f);
    if (lane == 0) {
        args.wholes[kv_head * args.queries + query] = {largest, sum > 0 ? 1.0f / sum : 0.0f};
    }
}

/* ---- 3: of each key in front of the rows' own */

template <int TYPE, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, 2)
    compact_score_kernel(sl_cuda_context context, compact_args args) {
    __shared__ product_memory memory;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (!context.header->compact) {
        return;
    }
    const compact_view view = view_of(context, args);
    const int32_t tile = (int32_t)blockIdx.x, kv_head = (int32_t)blockIdx.y;
    const int32_t rest = view.keys - view.rows - tile * SL_PAGE_TOKENS;
    if (rest <= 0) {
        return;
    }
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t page = view.table[tile];
    const unsigned char *keys = layer_of(args, view.cache, page < 0 ? 0 : page) +
                                (uint64_t)kv_head * SL_PAGE_TOKENS * view.cache.key_bytes;
    float sums[2 * KEY_TILES];
#pragma unroll
    for (int j = 0; j < 2 * KEY_TILES; j++) {
        sums[j] = 0;
    }
    for (int32_t first = 0; first < view.queries; first += QUERIES) {
        float scores[KEY_TILES][4];
        multiply<TYPE, ALIGNED>(args, view, keys, first, &memory, scores);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t query = first + WARP_QUERIES * warp + lane / 4 + 8 * half;
            if (query < view.queries) {
                const softmax whole = args.wholes[kv_head * args.queries + query];
#pragma unroll
                for (int j = 0; j < 2 * KEY_TILES; j++) {
                    sums[j] += exp_of(scores[j / 2][2 * half + j % 2] - whole.largest) * whole.sum;
                }
            }
        }
    }
    float(*across)[SL_PAGE_TOKENS] = (float(*)[SL_PAGE_TOKENS])(void *)memory.keys; /* [WARPS] */
#pragma unroll
    for (int j = 0; j < 2 * KEY_TILES; j++) {
#pragma unroll
        for (int distance = 4; distance < SL_WARP; distance *= 2) {
            sums[j] += __shfl_xor_sync(SL_FULL_WARP, sums[j], distance);
        }
        if (lane < 4) {
            across[warp][j / 2 * 8 + lane * 2 + j % 2] = sums[j];
        }
    }
    __syncthreads();
    const int32_t key = (int32_t)threadIdx.x;
    if (key < SL_PAGE_TOKENS && key < rest) {
        float sum = 0;
        for (int i = 0; i < WARPS; i++) {
            sum += across[i][key];
        }
        args.scores[(int64_t)kv_head * args.keys + tile * SL_PAGE_TOKENS + key] = page < 0 ? 0.0f : sum;
    }
}

/* ---- 4: a block for each key head */

typedef struct select_memory {
    int32_t counts[DIGITS];
    int32_t above[SL_WARP], equal[SL_WARP]; /* of each warp, then before it */
    int32_t wanted, digit;
} select_memory;

/* Scores are not negative, so that their bits have their order. */
static __device__ void pool_scores(const float *scores, int32_t count, int32_t reach, uint32_t *pooled) {
    for (int32_t key = (int32_t)threadIdx.x; key < count; key += SELECT_THREADS) {
        const int32_t first = key > reach ? key - reach : 0;
        const int32_t last = key + reach < count ? key + reach : count - 1;
        uint32_t largest = 0;
        for (int32_t j = first; j <= last; j++) {
            const uint32_t bits = __float_as_uint(scores[j]);
            largest = bits > largest ? bits : largest;
        }
        pooled[key] = largest;
    }
}

/* The largest number that at least shared->wanted of the pooled reach, digit by digit; `wanted` is then how
 * many of those equal to it are among them. */
static __device__ uint32_t find_least(const uint32_t *pooled, int32_t count, select_memory *shared) {
    uint32_t least = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int32_t i = (int32_t)threadIdx.x; i < DIGITS; i += SELECT_THREADS) {
            shared->counts[i] = 0;
        }
        __syncthreads();
        for (int32_t key = (int32_t)threadIdx.x; key < count; key += SELECT_THREADS) {
            if ((pooled[key] & known) == least) {
                atomicAdd(&shared->counts[pooled[key] >> shift & (DIGITS - 1)], 1);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int32_t digit = DIGITS - 1;
            for (; digit > 0 && shared->counts[digit] < shared->wanted; digit--) {
                shared->wanted -= shared->counts[digit];
            }
            shared->digit = digit;
        }
        __syncthreads();
        least |= (uint32_t)shared->digit << shift;
        known |= (uint32_t)(DIGITS - 1) << shift;
    }
    return least;
}

/* Of the threads before this one. */
static __device__ int32_t sum_before(int32_t value, int32_t *warps) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    int32_t end = value;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
        end += lane >= distance ? other : 0;
    }
    if (lane == SL_WARP - 1) {
        warps[warp] = end;
    }
    __syncthreads();
    int32_t before = 0;
    for (int32_t i = 0; i < warp; i++) {
        before += warps[i];
    }
    return before + end - value;
}

static __global__ void __launch_bounds__(SELECT_THREADS)
    compact_select_kernel(sl_cuda_context context, compact_args args) {
    __shared__ select_memory shared;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (!context.header->compact) {
        return;
    }
    const compact_view view = view_of(context, args);
    const int64_t at = (int64_t)blockIdx.x * args.keys;
    const int32_t count = view.keys - view.rows, keep = args.compact.keep;
    uint32_t *pooled = args.pooled + at;
    int32_t *kept = args.kept + at;
    const int32_t chosen = (keep < view.keys ? keep : view.keys) - view.rows;
    if (threadIdx.x == 0) {
        shared.wanted = chosen;
    }
    pool_scores(args.scores + at, count, args.compact.pool / 2, pooled);
    __syncthreads();
    const uint32_t least = find_least(pooled, count, &shared);
    const int32_t each = (count + SELECT_THREADS - 1) / SELECT_THREADS;
    const int32_t first = each * (int32_t)threadIdx.x, end = first + each < count ? first + each : count;
    int32_t above = 0, equal = 0;
    for (int32_t key = first; key < end; key++) {
        above += pooled[key] > least;
        equal += pooled[key] == least;
    }
    above = sum_before(above, shared.above);
    equal = sum_before(equal, shared.equal);
    for (int32_t key = first; key < end; key++) {
        const int32_t to = above + (equal < shared.wanted ? equal : shared.wanted);
        if (pooled[key] > least || (pooled[key] == least && equal < shared.wanted)) {
            kept[to] = key;
        }
        above += pooled[key] > least;
        equal += pooled[key] == least;
    }
    for (int32_t row = (int32_t)threadIdx.x; row < view.rows; row += SELECT_THREADS) {
        kept[chosen + row] = count + row;
    }
}

/* ---- 5: a block for each page of what is kept, and key head */

/* Both lie at multiples of 16 bytes if the rows are such. */
static __device__ __forceinline__ void copy_row(unsigned char *to, const unsigned char *from,
                                                uint64_t bytes) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    if (bytes % sizeof(uint4) == 0) {
        for (uint64_t i = (uint64_t)lane; i < bytes / sizeof(uint4); i += SL_WARP) {
            ((uint4 *)(void *)to)[i] = ((const uint4 *)(const void *)from)[i];
        }
    } else {
        for (uint64_t i = (uint64_t)lane; i < bytes; i += SL_WARP) {
            to[i] = from[i];
        }
    }
}

static __global__ void __launch_bounds__(THREADS)
    compact_copy_kernel(sl_cuda_context context, compact_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (!context.header->compact) {
        return;
    }
    const compact_view view = view_of(context, args);
    const sl_cuda_cache &cache = view.cache;
    const int32_t tile = (int32_t)blockIdx.x, kv_head = (int32_t)blockIdx.y, keep = args.compact.keep;
    const int32_t all = keep < view.keys ? keep : view.keys;
    const int32_t target = cache.table[(int64_t)args.spare * context.table_width + tile];
    const int32_t *kept = args.kept + (int64_t)kv_head * args.keys;
    const uint64_t head = (uint64_t)kv_head * SL_PAGE_TOKENS;
    for (int32_t slot = (int32_t)threadIdx.x / SL_WARP; slot < SL_PAGE_TOKENS; slot += THREADS / SL_WARP) {
        const int32_t to = tile * SL_PAGE_TOKENS + slot, from = to < all ? kept[to] : 0;
        const int32_t page = to < all ? view.table[from / SL_PAGE_TOKENS] : SL_NONE;
        if (page < 0 || target < 0) {
            continue;
        }
        const unsigned char *source = layer_of(args, cache, page);
        unsigned char *copy = layer_of(args, cache, target);
        const uint64_t row = head + (uint64_t)(from % SL_PAGE_TOKENS), place = head + (uint64_t)slot;
        copy_row(copy + place * cache.key_bytes, source + row * cache.key_bytes, cache.key_bytes);
        if (cache.values > 0) {
            copy_row(copy + cache.values + place * cache.value_bytes,
                     source + cache.values + row * cache.value_bytes, cache.value_bytes);
        }
    }
}

/* ---- all of it */

/* Of rows in quads, and of others. */
typedef struct typed_kernels {
    sl_qtype type;
    void (*sum[2])(sl_cuda_context, compact_args);
    void (*score[2])(sl_cuda_context, compact_args);
} typed_kernels;

template <int TYPE>
static const typed_kernels OF_TYPE = {(sl_qtype)TYPE,
                                      {compact_sum_kernel<TYPE, false>, compact_sum_kernel<TYPE, true>},
                                      {compact_score_kernel<TYPE, false>, compact_score_kernel<TYPE, true>}};

static const typed_kernels *const TYPES[] = {&OF_TYPE<SL_QTYPE_F32>, &OF_TYPE<SL_QTYPE_F16>,
                                             &OF_TYPE<SL_QTYPE_BF16>, &OF_TYPE<SL_QTYPE_Q8_0>,
                                             &OF_TYPE<SL_QTYPE_FP8>};

/* Byte offsets of the arrays, and behind the last one. */
typedef struct compact_layout {
    uint64_t wholes, scores, pooled, kept, bytes;
} compact_layout;

static compact_layout layout_of(const sl_cache_group *group, int32_t queries, int32_t tiles) {
    const uint64_t heads = (uint64_t)group->kv_heads;
    const uint64_t keys = heads * (uint64_t)tiles * SL_PAGE_TOKENS * sizeof(float);
    compact_layout layout;
    layout.wholes = heads * (uint64_t)queries * (uint64_t)tiles * sizeof(softmax);
    layout.scores = layout.wholes + heads * (uint64_t)queries * sizeof(softmax);
    layout.pooled = layout.scores + keys;
    layout.kept = layout.pooled + keys;
    layout.bytes = layout.kept + keys;
    return layout;
}

static uint64_t workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.compact.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const int32_t queries = query->rows[SL_ROWS_STEP] * (attention->heads / group->kv_heads);
    return layout_of(group, queries, sl_table_width(query->limits->context)).bytes;
}

static SL_CUDA_RUN(run) {
    const sl_op_compact *compact = &op->op->u.compact;
    const sl_cache_group *group = &op->program->groups[compact->attention.place.group];
    const int32_t ratio = compact->attention.heads / group->kv_heads, tiles = context->table_width;
    const int32_t queries = op->rows[SL_ROWS_STEP] * ratio;
    const compact_layout layout = layout_of(group, queries, tiles);
    unsigned char *scratch = op->scratch;
    const compact_args args = {*compact,
                               op->in[0],
                               (const float *)op->weights[0].data,
                               ratio,
                               queries,
                               tiles,
                               tiles * SL_PAGE_TOKENS,
                               context->slots,
                               (softmax *)(void *)scratch,
                               (softmax *)(void *)(scratch + layout.wholes),
                               (float *)(void *)(scratch + layout.scores),
                               (uint32_t *)(void *)(scratch + layout.pooled),
                               (int32_t *)(void *)(scratch + layout.kept)};
    const unsigned heads = (unsigned)group->kv_heads;
    const unsigned joins = ((unsigned)queries + WARPS - 1) / WARPS;
    const int32_t copies = sl_table_width(compact->keep) < tiles ? sl_table_width(compact->keep) : tiles;
    const sl_launch_shape pages = {dim3((unsigned)tiles, heads), dim3(THREADS), 0};
    const bool in_quads = sl_in_quads(op->in[0]) && compact->attention.q_stride % SL_QUAD == 0 &&
                          group->key_size % SL_QUAD == 0;
    const typed_kernels *const *row = TYPES;
    while ((*row)->type != context->caches[compact->attention.place.group].type) {
        if (++row == TYPES + sizeof TYPES / sizeof *TYPES) {
            return cudaErrorInvalidValue;
        }
    }
    cudaError_t code = sl_launch(context, stream, pages, (*row)->sum[in_quads], *context, args);
    code = code ? code
                : sl_launch(context, stream, {dim3(joins, heads), dim3(THREADS), 0}, compact_join_kernel,
                            *context, args);
    code = code ? code : sl_launch(context, stream, pages, (*row)->score[in_quads], *context, args);
    code = code ? code
                : sl_launch(context, stream, {dim3(heads), dim3(SELECT_THREADS), 0}, compact_select_kernel,
                            *context, args);
    return code ? code
                : sl_launch(context, stream, {dim3((unsigned)copies, heads), dim3(THREADS), 0},
                            compact_copy_kernel, *context, args);
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "compact/cuda",
                .op = SL_OP_COMPACT,
                .numeric_class = "tile64/tf32x2",
                .batched = true,
                .workspace = workspace},
     .run = run},
};

SL_CUDA_FAMILY(compact) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
