/* Which keys a sequence keeps behind its prompt, and their copies (sl_op_compact): five launches, in order.
 *
 * Queries are counted row after row, and in a row head after head of those that share a key head. A block of
 * the first and the third launch has one page of keys of one key head, and multiplies it with all queries, 64
 * at a time. Products are fmaf chains over the columns.
 *
 * Class "tile64/fma": of each query and page the largest score and the sum of exp(score - largest), four keys
 * in a thread, then across; pages l, l + 32, ... to lane l, then across. A key's score is the sum over the
 * queries of exp(score - largest) * (1 / sum): those 4 t + i of each 64 to thread t, then across. */
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/types/cache_element.cuh"

#include <math.h>

enum {
    THREADS = 256,
    SIDE = 16,  /* threads side by side in a tile of keys and queries */
    PART = 4,   /* keys, and queries, of a thread */
    SLICE = 32, /* columns multiplied at a time */
    STRIDE = SL_PAGE_TOKENS + PART,
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
    float keys[SLICE][STRIDE], queries[SLICE][STRIDE];
    const float *rows[SL_PAGE_TOKENS]; /* where each query begins; NULL: there are no more */
} product_memory;

/* A warp writes 4 rows by 8 columns at once, to 32 banks. */
template <typename LOAD> static __device__ __forceinline__ void load_slice(float (*to)[STRIDE], LOAD load) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    for (int32_t unit = warp; unit < SL_PAGE_TOKENS / 4 * (SLICE / 8); unit += THREADS / SL_WARP) {
        const int32_t row = unit / (SLICE / 8) * 4 + lane / 8, column = unit % (SLICE / 8) * 8 + lane % 8;
        to[column][row] = load(row, column);
    }
}

/* Scores of queries first + [0, 64) and the page's keys: sums[i][j] of query 4 y + i and key 4 x + j. */
template <int TYPE>
static __device__ __forceinline__ void multiply(const compact_args &args, const compact_view &view,
                                                const unsigned char *keys, int32_t first,
                                                product_memory *memory, float (&sums)[PART][PART]) {
    const int32_t x = (int32_t)threadIdx.x % SIDE, y = (int32_t)threadIdx.x / SIDE;
    const int32_t size = view.cache.key_size, kv_head = (int32_t)blockIdx.y;
    const sl_op_attention &attention = args.compact.attention;
#pragma unroll
    for (int i = 0; i < PART * PART; i++) {
        sums[i / PART][i % PART] = 0;
    }
    if (threadIdx.x < SL_PAGE_TOKENS) {
        const int32_t query = first + (int32_t)threadIdx.x, head = kv_head * args.ratio + query % args.ratio;
        memory->rows[threadIdx.x] =
            query < view.queries ? sl_f32(args.q, query / args.ratio) + head * attention.q_stride : NULL;
    }
    __syncthreads();
    for (int32_t from = 0; from < size; from += SLICE) {
        load_slice(memory->keys, [&](int32_t row, int32_t column) {
            return from + column < size
                       ? sl_cache_element<TYPE>(keys + (uint64_t)row * view.cache.key_bytes, from + column)
                       : 0.0f;
        });
        load_slice(memory->queries, [&](int32_t row, int32_t column) {
            return memory->rows[row] && from + column < size ? memory->rows[row][from + column] : 0.0f;
        });
        __syncthreads();
        const int32_t columns = size - from < SLICE ? size - from : SLICE;
        for (int32_t c = 0; c < columns; c++) {
            const float4 k = *(const float4 *)&memory->keys[c][PART * x];
            const float4 q = *(const float4 *)&memory->queries[c][PART * y];
            const float ks[PART] = {k.x, k.y, k.z, k.w}, qs[PART] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int i = 0; i < PART; i++) {
#pragma unroll
                for (int j = 0; j < PART; j++) {
                    sums[i][j] = fmaf(qs[i], ks[j], sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PART * PART; i++) {
        float &score = sums[i / PART][i % PART];
        score *= attention.scale;
        if (attention.softcap > 0) {
            score = attention.softcap * tanhf(score / attention.softcap);
        }
    }
}

/* Over the threads that have the same queries. */
static __device__ __forceinline__ float side_largest(float value) {
#pragma unroll
    for (int distance = SIDE / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(SL_FULL_WARP, value, distance));
    }
    return value;
}

static __device__ __forceinline__ float side_sum(float value) {
#pragma unroll
    for (int distance = SIDE / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(SL_FULL_WARP, value, distance);
    }
    return value;
}

/* ---- 1: of each page */

template <int TYPE>
static __global__ void __launch_bounds__(THREADS)
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
    const int32_t x = (int32_t)threadIdx.x % SIDE, y = (int32_t)threadIdx.x / SIDE, page = view.table[tile];
    const unsigned char *keys = layer_of(args, view.cache, page < 0 ? 0 : page) +
                                (uint64_t)kv_head * SL_PAGE_TOKENS * view.cache.key_bytes;
    for (int32_t first = 0; first < view.queries; first += SL_PAGE_TOKENS) {
        float scores[PART][PART];
        multiply<TYPE>(args, view, keys, first, &memory, scores);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            const int32_t query = first + PART * y + i;
            const int32_t end =
                page < 0 ? 0 : view.keys - view.rows + query / args.ratio + 1 - tile * SL_PAGE_TOKENS;
            float largest = -INFINITY, sum = 0;
#pragma unroll
            for (int j = 0; j < PART; j++) {
                largest = PART * x + j < end ? fmaxf(largest, scores[i][j]) : largest;
            }
            largest = side_largest(largest);
#pragma unroll
            for (int j = 0; j < PART; j++) {
                sum += PART * x + j < end ? expf(scores[i][j] - largest) : 0.0f;
            }
            sum = side_sum(sum);
            if (x == 0 && query < view.queries) {
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

template <int TYPE>
static __global__ void __launch_bounds__(THREADS)
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
    const int32_t x = (int32_t)threadIdx.x % SIDE, y = (int32_t)threadIdx.x / SIDE, page = view.table[tile];
    const unsigned char *keys = layer_of(args, view.cache, page < 0 ? 0 : page) +
                                (uint64_t)kv_head * SL_PAGE_TOKENS * view.cache.key_bytes;
    float sums[PART] = {0, 0, 0, 0};
    for (int32_t first = 0; first < view.queries; first += SL_PAGE_TOKENS) {
        float scores[PART][PART];
        multiply<TYPE>(args, view, keys, first, &memory, scores);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            const int32_t query = first + PART * y + i;
            if (query < view.queries) {
                const softmax whole = args.wholes[kv_head * args.queries + query];
#pragma unroll
                for (int j = 0; j < PART; j++) {
                    sums[j] += expf(scores[i][j] - whole.largest) * whole.sum;
                }
            }
        }
    }
    float(*across)[STRIDE] = memory.keys; /* [SIDE] */
#pragma unroll
    for (int j = 0; j < PART; j++) {
        across[y][PART * x + j] = sums[j];
    }
    __syncthreads();
    const int32_t key = (int32_t)threadIdx.x;
    if (key < SL_PAGE_TOKENS && key < rest) {
        float sum = 0;
        for (int i = 0; i < SIDE; i++) {
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

typedef struct typed_kernels {
    sl_qtype type;
    void (*sum)(sl_cuda_context, compact_args);
    void (*score)(sl_cuda_context, compact_args);
} typed_kernels;

static const typed_kernels TYPES[] = {
    {SL_QTYPE_F32, compact_sum_kernel<SL_QTYPE_F32>, compact_score_kernel<SL_QTYPE_F32>},
    {SL_QTYPE_F16, compact_sum_kernel<SL_QTYPE_F16>, compact_score_kernel<SL_QTYPE_F16>},
    {SL_QTYPE_BF16, compact_sum_kernel<SL_QTYPE_BF16>, compact_score_kernel<SL_QTYPE_BF16>},
    {SL_QTYPE_Q8_0, compact_sum_kernel<SL_QTYPE_Q8_0>, compact_score_kernel<SL_QTYPE_Q8_0>},
    {SL_QTYPE_FP8, compact_sum_kernel<SL_QTYPE_FP8>, compact_score_kernel<SL_QTYPE_FP8>},
};

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
    const unsigned warps = THREADS / SL_WARP, joins = ((unsigned)queries + warps - 1) / warps;
    const int32_t copies = sl_table_width(compact->keep) < tiles ? sl_table_width(compact->keep) : tiles;
    const sl_launch_shape pages = {dim3((unsigned)tiles, heads), dim3(THREADS), 0};
    const typed_kernels *row = TYPES;
    while (row->type != context->caches[compact->attention.place.group].type) {
        if (++row == TYPES + sizeof TYPES / sizeof *TYPES) {
            return cudaErrorInvalidValue;
        }
    }
    cudaError_t code = sl_launch(context, stream, pages, row->sum, *context, args);
    code = code ? code
                : sl_launch(context, stream, {dim3(joins, heads), dim3(THREADS), 0}, compact_join_kernel,
                            *context, args);
    code = code ? code : sl_launch(context, stream, pages, row->score, *context, args);
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
                .numeric_class = "tile64/fma",
                .batched = true,
                .workspace = workspace},
     .run = run},
};

SL_CUDA_FAMILY(compact) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
