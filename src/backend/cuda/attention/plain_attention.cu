/* Attention over the paged cache, for any mix of prompts and single rows.
 *
 * A unit is one row and one query head. The units of a span that read one key head are cut into tiles of 16,
 * row after row; a block takes one tile and walks the pages that its rows see, decoding keys and values in
 * slices of 64 columns that all units of the tile share. Which block takes what is found on the device from
 * the spans.
 *
 * Class "tile64/fma": keys in tiles of 64, at multiples of 64 of their index in the sequence, in rising
 * order; a tile of which a row sees nothing is skipped. Score = the products of q and k added in order with
 * fmaf, times scale, then softcap. m' = max(m, scores), l and y are multiplied by exp(m - m'), p = exp(score
 * - m'); l += the sum of p, keys 32 apart added first, then over a warp; y += p * v with fmaf in order of
 * key. It starts with m = -infinity, l = 0, or m = sink, l = 1. At the end y *= 1 / l, then y *=
 * sigmoid(gate). Only the row's own sequence takes part. */
#include "backend/cuda/types/cache_types.cuh"
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/types/cache_element.cuh"
#include "program/window.h"

enum {
    THREADS = 128,
    UNITS = 16, /* of a tile */
    HALF = UNITS / 2,
    SLICE = 64, /* columns */
    SLICE_STRIDE = SLICE + 1,
    MOST_SIZE = 576, /* of a head */
    MOST_SHARED = 96 * 1024
};

typedef struct attention_args {
    sl_op_attention attention;
    sl_cuda_operand q, gate, y;
    const float *sinks;
    int32_t ratio; /* query heads per key head */
} attention_args;

/* What the threads of a block share, besides q, acc and slice, whose sizes vary. */
typedef struct tile_state {
    float largest[UNITS], sum[UNITS], correction[UNITS];
    int32_t from[UNITS], to[UNITS]; /* keys of the current tile that the unit sees */
    float scores[UNITS][SLICE_STRIDE];
    int32_t span, first_unit, units;
} tile_state;

/* What they share of varying size. */
typedef struct plain_memory {
    float *q;     /* [UNITS][key_size] */
    float *acc;   /* [UNITS][value_size] */
    float *slice; /* [SL_PAGE_TOKENS][SLICE_STRIDE] */
} plain_memory;

/* The keys or the values of a tile, of which some unit sees [from, to). References: what the kernel's
 * arguments hold is read when it is needed, registers are short. */
typedef struct tile_rows {
    const unsigned char *start;
    const uint64_t &row_bytes;
    const int32_t &size;
    int32_t from, to;
} tile_rows;

/* Columns [column, column + SLICE) of the rows that are seen, to slice[key][column]; the rest is 0. */
template <int TYPE>
static __device__ __forceinline__ void load_slice(const tile_rows &rows, int32_t column, float *slice) {
    for (int32_t i = (int32_t)threadIdx.x; i < SL_PAGE_TOKENS * SLICE; i += THREADS) {
        const int32_t key = i / SLICE, c = i % SLICE;
        const bool there = key >= rows.from && key < rows.to && column + c < rows.size;
        slice[key * SLICE_STRIDE + c] =
            there ? sl_cache_element<TYPE>(rows.start + (uint64_t)key * rows.row_bytes, column + c) : 0.0f;
    }
}

/* By the first warp: span and units of tile `tile`; units is 0 when there is no such tile. */
static __device__ void find_tile(const sl_cuda_context &context, int32_t tile, int32_t ratio,
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
            shared->units = units - shared->first_unit < UNITS ? units - shared->first_unit : UNITS;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
}

static __device__ __forceinline__ int32_t clamp(int32_t value) {
    return value < 0 ? 0 : value > SL_PAGE_TOKENS ? SL_PAGE_TOKENS : value;
}

/* First index that the row at `index` sees. */
static __device__ __forceinline__ int32_t first_seen(const attention_args &args, int32_t window,
                                                     int32_t index) {
    const int32_t first = sl_first_seen(window, index);
    return first > args.attention.first ? first : args.attention.first;
}

/* Behind the last index that the row at `index` sees, of a span that ends in front of `end`. */
static __device__ __forceinline__ int32_t seen_end(const attention_args &args, int32_t window, int32_t index,
                                                   int32_t end) {
    if (!args.attention.both_sides) {
        return index + 1;
    }
    return window > 0 && end - index > window ? index + window : end;
}

/* Scores of a whole tile into shared->scores: thread t takes key t % 64 of every second unit. */
template <int TYPE>
static __device__ __forceinline__ void score_tile(const attention_args &args, const tile_rows &keys,
                                                  const plain_memory &memory, tile_state *shared) {
    const int32_t key = (int32_t)threadIdx.x % SL_PAGE_TOKENS, first = (int32_t)threadIdx.x / SL_PAGE_TOKENS;
    float sums[HALF];
    for (int i = 0; i < HALF; i++) {
        sums[i] = 0;
    }
    for (int32_t column = 0; column < keys.size; column += SLICE) {
        const int32_t columns = keys.size - column < SLICE ? keys.size - column : SLICE;
        load_slice<TYPE>(keys, column, memory.slice);
        __syncthreads();
        for (int32_t c = 0; c < columns; c++) {
            const float k = memory.slice[key * SLICE_STRIDE + c];
#pragma unroll
            for (int i = 0; i < HALF; i++) {
                if (first + 2 * i < shared->units) {
                    sums[i] = fmaf(memory.q[(first + 2 * i) * keys.size + column + c], k, sums[i]);
                }
            }
        }
        __syncthreads();
    }
    const float softcap = args.attention.softcap;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float score = sums[i] * args.attention.scale;
        if (softcap > 0) {
            score = softcap * tanhf(score / softcap);
        }
        shared->scores[first + 2 * i][key] = score;
    }
}

/* Turns a unit's scores into p, negative where the unit does not see the key. One warp per unit. */
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
    __syncwarp(); /* all lanes have read the largest so far */
    if (lane == 0) {
        const bool any = from < to;
        const float correction = any ? expf(before - largest) : 1.0f;
        shared->correction[unit] = correction;
        shared->sum[unit] = shared->sum[unit] * correction + sum;
        shared->largest[unit] = largest;
    }
}

/* acc[unit][column] = acc * correction + sum of p * v: thread t takes column t % 64 of every second unit. */
template <int TYPE>
static __device__ __forceinline__ void add_values(const tile_rows &values, const plain_memory &memory,
                                                  tile_state *shared) {
    const int32_t c = (int32_t)threadIdx.x % SLICE, first = (int32_t)threadIdx.x / SLICE;
    for (int32_t column = 0; column < values.size; column += SLICE) {
        load_slice<TYPE>(values, column, memory.slice);
        __syncthreads();
        float sums[HALF];
        const bool mine = column + c < values.size;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const int32_t unit = first + 2 * i;
            sums[i] = mine && unit < shared->units
                          ? memory.acc[unit * values.size + column + c] * shared->correction[unit]
                          : 0.0f;
        }
        for (int32_t key = values.from; key < values.to; key++) {
            const float v = memory.slice[key * SLICE_STRIDE + c];
#pragma unroll
            for (int i = 0; i < HALF; i++) {
                if (first + 2 * i < shared->units) {
                    const float p = shared->scores[first + 2 * i][key];
                    sums[i] = p < 0 ? sums[i] : fmaf(p, v, sums[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            if (mine && first + 2 * i < shared->units) {
                memory.acc[(first + 2 * i) * values.size + column + c] = sums[i];
            }
        }
        __syncthreads();
    }
}

/* q into shared memory, the running state at its start. */
static __device__ __forceinline__ void start_tile(const attention_args &args, const sl_cuda_cache &cache,
                                                  int32_t first_row, int32_t kv_head,
                                                  const plain_memory &memory, tile_state *shared) {
    for (int32_t i = (int32_t)threadIdx.x; i < shared->units * cache.key_size; i += THREADS) {
        const int32_t unit = shared->first_unit + i / cache.key_size;
        const int32_t head = kv_head * args.ratio + unit % args.ratio;
        memory.q[i] = sl_f32(
            args.q, first_row + unit / args.ratio)[head * args.attention.q_stride + i % cache.key_size];
    }
    for (int32_t i = (int32_t)threadIdx.x; i < shared->units * cache.value_size; i += THREADS) {
        memory.acc[i] = 0;
    }
    if ((int32_t)threadIdx.x < shared->units) {
        const int32_t head = kv_head * args.ratio + (shared->first_unit + (int32_t)threadIdx.x) % args.ratio;
        shared->largest[threadIdx.x] = args.sinks ? args.sinks[head] : -INFINITY;
        shared->sum[threadIdx.x] = args.sinks ? 1.0f : 0.0f;
    }
}

static __device__ void finish_tile(const attention_args &args, const sl_cuda_cache &cache, int32_t first_row,
                                   int32_t kv_head, const float *acc, const tile_state *shared) {
    for (int32_t i = (int32_t)threadIdx.x; i < shared->units * cache.value_size; i += THREADS) {
        const int32_t at = i / cache.value_size, c = i % cache.value_size, unit = shared->first_unit + at;
        const int32_t head = kv_head * args.ratio + unit % args.ratio, row = first_row + unit / args.ratio;
        float value = acc[i] * (shared->sum[at] == 0.0f ? 0.0f : 1.0f / shared->sum[at]);
        if (args.gate.data) {
            value *= sl_sigmoid(sl_f32(args.gate, row)[head * args.attention.gate_stride + c]);
        }
        sl_f32(args.y, row)[head * cache.value_size + c] = value;
    }
}

template <int TYPE>
static __global__ void __launch_bounds__(THREADS)
    attention_kernel(sl_cuda_context context, attention_args args) {
    extern __shared__ float dynamic[];
    __shared__ tile_state shared;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (threadIdx.x < SL_WARP) {
        find_tile(context, (int32_t)blockIdx.x, args.ratio, &shared);
    }
    __syncthreads();
    if (shared.units == 0) {
        return;
    }
    const sl_cache_place place = args.attention.place;
    const sl_cuda_cache &cache = context.caches[place.group];
    const sl_step_span &span = context.spans[shared.span];
    const int32_t kv_head = (int32_t)blockIdx.y, length = span.length[place.group], window = cache.window;
    const int32_t *table = cache.table + (int64_t)span.slot * context.table_width;
    float *acc = dynamic + UNITS * cache.key_size;
    const plain_memory memory = {dynamic, acc, acc + UNITS * cache.value_size};
    start_tile(args, cache, span.first_row, kv_head, memory, &shared);

    const int32_t first = length + shared.first_unit / args.ratio;
    const int32_t final = length + (shared.first_unit + shared.units - 1) / args.ratio;
    const int32_t end = length + span.row_count;
    const int32_t last = seen_end(args, window, final, end) - 1;
    const int32_t lowest = first_seen(args, window, first);
    for (int32_t tile = lowest / SL_PAGE_TOKENS; tile <= last / SL_PAGE_TOKENS; tile++) {
        const int32_t page = table[tile], base = tile * SL_PAGE_TOKENS;
        if (page < 0) {
            continue;
        }
        const unsigned char *layer =
            cache.pages + (uint64_t)page * cache.page_bytes + (uint64_t)place.layer * cache.layer_bytes;
        const int32_t from = clamp(lowest - base), to = clamp(last + 1 - base);
        const tile_rows keys = {layer + (uint64_t)kv_head * SL_PAGE_TOKENS * cache.key_bytes, cache.key_bytes,
                                cache.key_size, from, to};
        const tile_rows values = {layer + cache.values +
                                      (uint64_t)kv_head * SL_PAGE_TOKENS * cache.value_bytes,
                                  cache.value_bytes, cache.value_size, from, to};
        if ((int32_t)threadIdx.x < shared.units) {
            const int32_t index = length + (shared.first_unit + (int32_t)threadIdx.x) / args.ratio;
            shared.from[threadIdx.x] = clamp(first_seen(args, window, index) - base);
            shared.to[threadIdx.x] = clamp(seen_end(args, window, index, end) - base);
        }
        __syncthreads();
        score_tile<TYPE>(args, keys, memory, &shared);
        __syncthreads();
        for (int32_t unit = (int32_t)threadIdx.x / SL_WARP; unit < shared.units; unit += THREADS / SL_WARP) {
            weigh_unit(unit, &shared);
        }
        __syncthreads();
        add_values<TYPE>(values, memory, &shared);
    }
    __syncthreads();
    finish_tile(args, cache, span.first_row, kv_head, memory.acc, &shared);
}

static size_t shared_bytes(const sl_cache_group *group) {
    return (size_t)(UNITS * (group->key_size + group->value_size) + SL_PAGE_TOKENS * SLICE_STRIDE) *
           sizeof(float);
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_cache_group *group = &query->program->groups[query->op->u.attention.place.group];
    if (group->key_size > MOST_SIZE || group->value_size > MOST_SIZE) {
        return "takes head sizes up to 576";
    }
    return NULL;
}

/* The kernel of each type of cache. */
static const struct cache_kernel {
    sl_qtype type;
    void (*kernel)(sl_cuda_context, attention_args);
} TYPES[] = {{SL_QTYPE_F32, attention_kernel<SL_QTYPE_F32>},
             {SL_QTYPE_F16, attention_kernel<SL_QTYPE_F16>},
             {SL_QTYPE_BF16, attention_kernel<SL_QTYPE_BF16>},
             {SL_QTYPE_Q8_0, attention_kernel<SL_QTYPE_Q8_0>},
             {SL_QTYPE_FP8, attention_kernel<SL_QTYPE_FP8>}};

/* Lets the kernels use more shared memory than a launch may by default. */
static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    (void)facts;
    for (const cache_kernel &row : TYPES) {
        code = code ? code
                    : cudaFuncSetAttribute(row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           MOST_SHARED - (int)sizeof(tile_state));
    }
    return code;
}

static SL_CUDA_RUN(run) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const int32_t ratio = attention->heads / group->kv_heads;
    const attention_args args = {
        *attention, op->in[0], op->in[1], op->out[0], (const float *)op->weights[0].data, ratio};
    /* Each span may leave one tile partly empty. */
    const dim3 grid((unsigned)(op->rows[SL_ROWS_STEP] * ratio / UNITS + op->spans),
                    (unsigned)group->kv_heads);
    const sl_launch_shape shape = {grid, dim3(THREADS), (uint32_t)shared_bytes(group)};
    for (const cache_kernel &row : TYPES) {
        if (row.type == context->caches[attention->place.group].type) {
            return sl_launch(context, stream, shape, row.kernel, *context, args);
        }
    }
    return cudaErrorInvalidValue;
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "attention/cuda-plain",
                .op = SL_OP_ATTENTION,
                .numeric_class = "tile64/fma",
                .tolerance = 1e-4f,
                .batched = true,
                .declines = declines},
     .arrangement = SL_CUDA_ATTENTION_PLAIN,
     .run = run},
};

SL_CUDA_FAMILY(plain_attention) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
