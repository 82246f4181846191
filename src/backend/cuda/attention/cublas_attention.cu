/* Attention by batched products of cuBLAS, to compare the others with; taken only when asked for.
 *
 * Keys and values of every span are copied out of their pages, rows one behind the other as far as the
 * context goes, zeros where nothing was written; caches of f32 and fp8 as f32, of f16 and q8_0 as f16, of
 * bf16 as bf16. A tile is 64 units of a span, a unit being a row and a query head of one key head. For a
 * slice of tiles at a time: scores = q K^T for all keys of the context, a softmax over those that a row sees,
 * its probabilities (in the same type) times V. All of it has the bucket's shape, whatever the lengths are:
 * slow, and simple.
 *
 * The order of adding is the library's, which may choose by the number of products, and a tile's rows share
 * them: the bits may depend on the cut. A probability of zero meets values that a row does not see, so that a
 * value which is not finite reaches all rows of its span in the step. */
#include "backend/cuda/linear/bf16/bf16_cublas.h"
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/run/library.h"
#include "backend/cuda/types/types.cuh"
#include "program/window.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

enum { UNITS = 64, THREADS = 256, POINTERS = 6 };
#define LIBRARY_BYTES (UINT64_C(32) << 20) /* of the library's own */
#define SLICE_BYTES (UINT64_C(256) << 20)  /* of what a slice of tiles needs, about */
#define MOST_SCRATCH (UINT64_C(1) << 30)

/* Of one op in one bucket; all counts are the bucket's. */
typedef struct dense_shape {
    int32_t heads, kv_heads, ratio, keys, values, context, spans;
    int32_t tiles, slice; /* of all key heads alike; `slice` of them at a time */
    uint32_t element;     /* bytes */
} dense_shape;

typedef struct dense_args {
    sl_op_attention attention;
    sl_cuda_operand q, gate, y;
    const float *sinks;
    dense_shape shape;
    int32_t first_tile;
    unsigned char *k, *v;         /* [spans][kv_heads][context][keys or values] */
    unsigned char *queries;       /* [slice][kv_heads][UNITS][keys] */
    float *scores;                /* [slice][kv_heads][UNITS][context] */
    unsigned char *probabilities; /* the same */
    float *sums;                  /* [slice][kv_heads][UNITS] */
    float *outputs;               /* [slice][kv_heads][UNITS][values] */
    void **pointers;              /* [POINTERS][slice * kv_heads] */
    unsigned char *library;
} dense_args;

static cudaDataType type_of(sl_qtype cache) {
    return cache == SL_QTYPE_F32 || cache == SL_QTYPE_FP8 ? CUDA_R_32F
           : cache == SL_QTYPE_BF16                       ? CUDA_R_16BF
                                                          : CUDA_R_16F;
}

static dense_shape shape_of(const sl_program *program, const sl_op *op, int32_t rows, int32_t spans,
                            int32_t table_width, sl_qtype cache) {
    const sl_cache_group *group = &program->groups[op->u.attention.place.group];
    dense_shape s = {};
    s.heads = op->u.attention.heads;
    s.kv_heads = group->kv_heads;
    s.ratio = s.heads / s.kv_heads;
    s.keys = group->key_size;
    s.values = group->value_size;
    s.context = table_width * SL_PAGE_TOKENS;
    s.spans = spans;
    s.element = type_of(cache) == CUDA_R_32F ? 4 : 2;
    s.tiles = rows * s.ratio / UNITS + spans; /* each span may leave one partly empty */
    const uint64_t tile = (uint64_t)s.kv_heads * UNITS * (uint64_t)s.context * (4 + s.element);
    const uint64_t most = SLICE_BYTES / tile;
    s.slice = most < 1 ? 1 : most < (uint64_t)s.tiles ? (int32_t)most : s.tiles;
    return s;
}

static unsigned char *take(unsigned char **at, uint64_t bytes) {
    unsigned char *start = *at;
    *at += (bytes + 255) / 256 * 256;
    return start;
}

/* Lays the scratch out from `at` on; returns its end. */
static unsigned char *lay_out(dense_args *args, unsigned char *at) {
    const dense_shape *s = &args->shape;
    const uint64_t rows = (uint64_t)s->spans * (uint64_t)s->kv_heads * (uint64_t)s->context;
    const uint64_t batch = (uint64_t)s->slice * (uint64_t)s->kv_heads, units = batch * UNITS;
    args->library = take(&at, LIBRARY_BYTES);
    args->k = take(&at, rows * (uint64_t)s->keys * s->element);
    args->v = take(&at, rows * (uint64_t)s->values * s->element);
    args->queries = take(&at, units * (uint64_t)s->keys * s->element);
    args->scores = (float *)take(&at, units * (uint64_t)s->context * sizeof(float));
    args->probabilities = take(&at, units * (uint64_t)s->context * s->element);
    args->sums = (float *)take(&at, units * sizeof(float));
    args->outputs = (float *)take(&at, units * (uint64_t)s->values * sizeof(float));
    args->pointers = (void **)take(&at, POINTERS * batch * sizeof(void *));
    return at;
}

static __device__ __forceinline__ void put(float *row, int64_t i, float x) {
    row[i] = x;
}

static __device__ __forceinline__ void put(__half *row, int64_t i, float x) {
    row[i] = __float2half_rn(x);
}

static __device__ __forceinline__ void put(__nv_bfloat16 *row, int64_t i, float x) {
    row[i] = __float2bfloat16_rn(x);
}

/* A block per page of the context, key head and span. */
template <typename ELEMENT>
static __global__ void __launch_bounds__(THREADS) collect_kernel(sl_cuda_context context, dense_args args) {
    const dense_shape &s = args.shape;
    if ((int32_t)blockIdx.z >= context.header->spans) {
        return;
    }
    const sl_cache_place place = args.attention.place;
    const sl_cuda_cache &cache = context.caches[place.group];
    const sl_step_span &span = context.spans[blockIdx.z];
    const int32_t tile = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    const int32_t written = span.length[place.group] + span.row_count - tile * SL_PAGE_TOKENS;
    const int32_t page =
        written > 0 ? cache.table[(int64_t)span.slot * context.table_width + tile] : (int32_t)SL_NONE;
    const unsigned char *layer = cache.pages + (uint64_t)(page < 0 ? 0 : page) * cache.page_bytes +
                                 (uint64_t)place.layer * cache.layer_bytes;
    const unsigned char *keys = layer + (uint64_t)head * SL_PAGE_TOKENS * cache.key_bytes;
    const unsigned char *values = layer + (uint64_t)s.kv_heads * SL_PAGE_TOKENS * cache.key_bytes +
                                  (uint64_t)head * SL_PAGE_TOKENS * cache.value_bytes;
    const int64_t row = ((int64_t)blockIdx.z * s.kv_heads + head) * s.context + tile * SL_PAGE_TOKENS;
    for (int32_t which = 0; which < 2; which++) {
        const int32_t size = which ? s.values : s.keys;
        const uint64_t bytes = which ? cache.value_bytes : cache.key_bytes;
        const unsigned char *from = which ? values : keys;
        ELEMENT *to = (ELEMENT *)(which ? args.v : args.k) + row * size;
        for (int32_t i = (int32_t)threadIdx.x; i < SL_PAGE_TOKENS * size; i += THREADS) {
            const unsigned char *at = from + (uint64_t)(i / size) * bytes;
            const bool there = page >= 0 && i / size < written;
            put(to, i,
                !there                       ? 0.0f
                : cache.type == SL_QTYPE_FP8 ? sl_e4m3_to_f32(at[i % size])
                                             : sl_decode(cache.type, at, bytes, i % size));
        }
    }
}

/* Where a tile's units are; units is 0 when there is no such tile. */
typedef struct dense_tile {
    int32_t span, first_unit, units;
} dense_tile;

static __device__ dense_tile find_tile(const sl_cuda_context &context, int32_t tile, int32_t ratio) {
    for (int32_t s = 0; s < context.header->spans; s++) {
        const int32_t units = context.spans[s].row_count * ratio, tiles = (units + UNITS - 1) / UNITS;
        if (tile < tiles) {
            const int32_t rest = units - tile * UNITS;
            const dense_tile found = {s, tile * UNITS, rest < UNITS ? rest : UNITS};
            return found;
        }
        tile -= tiles;
    }
    const dense_tile none = {0, 0, 0};
    return none;
}

/* A block per tile of the slice and key head: its queries, and the addresses of its products. */
template <typename ELEMENT>
static __global__ void __launch_bounds__(THREADS) queries_kernel(sl_cuda_context context, dense_args args) {
    const dense_shape &s = args.shape;
    const int32_t head = (int32_t)blockIdx.y, at = (int32_t)blockIdx.x * s.kv_heads + head;
    const dense_tile tile = find_tile(context, args.first_tile + (int32_t)blockIdx.x, s.ratio);
    const int32_t first_row = context.spans[tile.span].first_row, batch = s.slice * s.kv_heads;
    ELEMENT *queries = (ELEMENT *)args.queries + (int64_t)at * UNITS * s.keys;
    for (int32_t i = (int32_t)threadIdx.x; i < UNITS * s.keys; i += THREADS) {
        const int32_t unit = tile.first_unit + i / s.keys;
        const int32_t query_head = head * s.ratio + unit % s.ratio;
        put(queries, i,
            i / s.keys < tile.units
                ? sl_f32(args.q,
                         first_row + unit / s.ratio)[query_head * args.attention.q_stride + i % s.keys]
                : 0.0f);
    }
    if (threadIdx.x == 0) {
        const int64_t row = ((int64_t)tile.span * s.kv_heads + head) * s.context;
        args.pointers[at] = (ELEMENT *)args.k + row * s.keys;
        args.pointers[batch + at] = queries;
        args.pointers[2 * batch + at] = args.scores + (int64_t)at * UNITS * s.context;
        args.pointers[3 * batch + at] = (ELEMENT *)args.v + row * s.values;
        args.pointers[4 * batch + at] = (ELEMENT *)args.probabilities + (int64_t)at * UNITS * s.context;
        args.pointers[5 * batch + at] = args.outputs + (int64_t)at * UNITS * s.values;
    }
}

static __device__ __forceinline__ float finish_score(const sl_op_attention &attention, float product) {
    const float score = product * attention.scale;
    return attention.softcap > 0 ? attention.softcap * tanhf(score / attention.softcap) : score;
}

/* A warp per unit. */
template <typename ELEMENT>
static __global__ void __launch_bounds__(THREADS) soften_kernel(sl_cuda_context context, dense_args args) {
    const dense_shape &s = args.shape;
    const int32_t head = (int32_t)blockIdx.y, lane = (int32_t)threadIdx.x % SL_WARP;
    const dense_tile tile = find_tile(context, args.first_tile + (int32_t)blockIdx.x, s.ratio);
    const sl_step_span &span = context.spans[tile.span];
    const int32_t window = context.caches[args.attention.place.group].window;
    for (int32_t u = (int32_t)threadIdx.x / SL_WARP; u < UNITS; u += THREADS / SL_WARP) {
        const int64_t at = ((int64_t)blockIdx.x * s.kv_heads + head) * UNITS + u;
        const float *scores = args.scores + at * s.context;
        ELEMENT *probabilities = (ELEMENT *)args.probabilities + at * s.context;
        const int32_t unit = tile.first_unit + u;
        const int32_t index = span.length[args.attention.place.group] + unit / s.ratio;
        const int32_t to = u < tile.units ? index + 1 : 0;
        const int32_t from = sl_first_seen(window, index);
        const float sink = args.sinks ? args.sinks[head * s.ratio + unit % s.ratio] : -INFINITY;
        float largest = sink, sum = 0;
        for (int32_t i = from + lane; i < to; i += SL_WARP) {
            largest = fmaxf(largest, finish_score(args.attention, scores[i]));
        }
        for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
        }
        for (int32_t i = lane; i < s.context; i += SL_WARP) {
            const bool seen = i >= from && i < to;
            const float p = seen ? expf(finish_score(args.attention, scores[i]) - largest) : 0.0f;
            put(probabilities, i, p);
            sum += p;
        }
        sum = sl_warp_sum(sum);
        if (lane == 0) {
            args.sums[at] = sum + (args.sinks ? expf(sink - largest) : 0.0f);
        }
    }
}

static __global__ void __launch_bounds__(THREADS) finish_kernel(sl_cuda_context context, dense_args args) {
    const dense_shape &s = args.shape;
    const int32_t head = (int32_t)blockIdx.y;
    const dense_tile tile = find_tile(context, args.first_tile + (int32_t)blockIdx.x, s.ratio);
    const int32_t first_row = context.spans[tile.span].first_row;
    for (int32_t i = (int32_t)threadIdx.x; i < tile.units * s.values; i += THREADS) {
        const int64_t at = ((int64_t)blockIdx.x * s.kv_heads + head) * UNITS;
        const int32_t u = i / s.values, c = i % s.values, unit = tile.first_unit + u;
        const int32_t query_head = head * s.ratio + unit % s.ratio, row = first_row + unit / s.ratio;
        const float sum = args.sums[at + u];
        float value = args.outputs[at * s.values + i] * (sum == 0.0f ? 0.0f : 1.0f / sum);
        if (args.gate.data) {
            value *= sl_sigmoid(sl_f32(args.gate, row)[query_head * args.attention.gate_stride + c]);
        }
        sl_f32(args.y, row)[query_head * s.values + c] = value;
    }
}

static cudaError_t multiply(const sl_cuda_context *context, const dense_args *args, cudaDataType type,
                            bool scores, cudaStream_t stream) {
    const dense_shape *s = &args->shape;
    const int32_t batch = s->slice * s->kv_heads;
    sl_cuda_gemm_call call = {};
    void **pointers = args->pointers + (scores ? 0 : 3 * batch);
    call.a_transposed = scores;
    call.m = scores ? s->context : s->values;
    call.n = UNITS;
    call.k = scores ? s->keys : s->context;
    call.type = type;
    call.a = pointers;
    call.b = pointers + batch;
    call.c = pointers + 2 * batch;
    call.a_stride = scores ? s->keys : s->values;
    call.b_stride = call.k;
    call.c_stride = call.m;
    call.count = batch;
    call.workspace = args->library;
    call.workspace_bytes = LIBRARY_BYTES;
    return sl_cuda_gemm(sl_cuda_cublas_gemm(context->blas), &call, stream);
}

template <typename ELEMENT>
static cudaError_t launch(const sl_cuda_context *context, dense_args *args, cudaDataType type,
                          cudaStream_t stream) {
    const dense_shape *s = &args->shape;
    const dim3 pages((unsigned)(s->context / SL_PAGE_TOKENS), (unsigned)s->kv_heads, (unsigned)s->spans);
    const dim3 tiles((unsigned)s->slice, (unsigned)s->kv_heads);
    collect_kernel<ELEMENT><<<pages, THREADS, 0, stream>>>(*context, *args);
    cudaError_t code = cudaGetLastError();
    for (args->first_tile = 0; args->first_tile < s->tiles && code == cudaSuccess;
         args->first_tile += s->slice) {
        queries_kernel<ELEMENT><<<tiles, THREADS, 0, stream>>>(*context, *args);
        code = multiply(context, args, type, true, stream);
        if (code == cudaSuccess) {
            soften_kernel<ELEMENT><<<tiles, THREADS, 0, stream>>>(*context, *args);
            code = multiply(context, args, type, false, stream);
        }
        if (code == cudaSuccess) {
            finish_kernel<<<tiles, THREADS, 0, stream>>>(*context, *args);
            code = cudaGetLastError();
        }
    }
    return code;
}

static SL_CUDA_RUN(run) {
    const sl_qtype cache = context->caches[op->op->u.attention.place.group].type;
    const cudaDataType type = type_of(cache);
    dense_args args = {};
    args.attention = op->op->u.attention;
    args.q = op->in[0];
    args.gate = op->in[1];
    args.y = op->out[0];
    args.sinks = (const float *)op->weights[0].data;
    args.shape =
        shape_of(op->program, op->op, op->rows[SL_ROWS_STEP], op->spans, context->table_width, cache);
    lay_out(&args, op->scratch + (256 - (uintptr_t)op->scratch % 256) % 256);
    return type == CUDA_R_32F    ? launch<float>(context, &args, type, stream)
           : type == CUDA_R_16BF ? launch<__nv_bfloat16>(context, &args, type, stream)
                                 : launch<__half>(context, &args, type, stream);
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const int32_t rows = query->rows[SL_ROWS_STEP], sequences = query->limits->sequences;
    dense_args args = {};
    args.shape =
        shape_of(query->program, query->op, rows, rows < sequences ? rows : sequences,
                 sl_table_width(query->limits->context), ((const sl_cuda_kernel *)kernel)->weight_type);
    unsigned char *const start = (unsigned char *)(uintptr_t)256; /* distances only */
    return 256 + (uint64_t)(lay_out(&args, start) - start);
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    if (query->cache_type != ((const sl_cuda_kernel *)kernel)->weight_type) {
        return "takes caches of another type";
    }
    if (query->op->u.attention.both_sides) {
        return "looks back only";
    }
    if (query->op->u.attention.first > 0) {
        return "looks back to the first key";
    }
    if (query->program->groups[query->op->u.attention.place.group].values_are_keys) {
        return "takes values beside the keys";
    }
    if (workspace_of(kernel, query) > MOST_SCRATCH) {
        return "its copies of keys and values would take more than 1 GiB";
    }
    return sl_cuda_gemm_there() ? NULL : "needs libcublas.so.13, which is not there";
}

static int prepare(sl_cuda_context *context, sl_cuda_op *op, sl_error *error) {
    (void)op;
    return sl_cuda_cublas_make_gemm(context, error);
}

/* Tolerances as in mma.cu, for the same reasons. */
#define CUBLAS(ID, type_name, class_name, most)                                                              \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-cublas-" #type_name,                                              \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = class_name "/cublas",                                                    \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .on_request = true,                                                                       \
                   .cut_dependent = true,                                                                    \
                   .declines = declines,                                                                     \
                   .workspace = workspace_of},                                                               \
        .arrangement = SL_CUDA_ATTENTION_CUBLAS, .weight_type = SL_QTYPE_##ID, .run = run,                   \
        .prepare = prepare                                                                                   \
    }
static const sl_cuda_kernel KERNELS[] = {
    CUBLAS(F16, f16, "f16", 1e-2f),        CUBLAS(BF16, bf16, "bf16", 5e-2f),  CUBLAS(F32, f32, "f32", 1e-4f),
    CUBLAS(Q8_0, q8_0, "q8_0:f16", 0.15f), CUBLAS(FP8, fp8, "fp8:f32", 1e-3f),
};

SL_CUDA_FAMILY(cublas_attention) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
