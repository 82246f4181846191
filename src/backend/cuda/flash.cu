/* Flash attention: which kernel of flash.cuh an op takes, and the launch that adds chunks. */
#include "backend/cuda/flash.cuh"
#include "backend/cuda/heads.cuh"
#include "backend/cuda/flash_split.h"

enum {
    MERGE_THREADS = 128,
    MOST_SIZE = 512,
    MOST_TILE_SIZE = 256, /* of a head, in the arrangement for many rows */
    MOST_WGMMA_SIZE = 256,
    MOST_WGMMA_SPLIT_SIZE = 128,
    MOST_DECODE_SIZE = 256,
    MOST_FUSED_ROWS = 8, /* with heads made in the same launch */
    FEW_SPANS = 8,       /* up to which a step's sequences are too few to give every block whole rows */
    LEAST_WGMMA_ROWS = 64
};
#define MOST_SCRATCH (UINT64_C(256) << 20)

/* After a launch with partials: adds the chunks of one row and head, in order. A thread has EACH columns, and
 * BATCH chunks on their way at a time. */
template <int EACH, int BATCH>
static __global__ void __launch_bounds__(MERGE_THREADS)
    merge_kernel(sl_cuda_context context, flash_args args) {
    const int32_t row = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    if (row >= context.header->rows) {
        return;
    }
    const int32_t group = args.attention.place.group;
    const sl_cuda_cache &cache = context.caches[group];
    const sl_step_span &span = context.spans[context.rows[row].span];
    const int32_t index = span.length[group] + row - span.first_row, size = cache.value_size;
    const int32_t keys = FLASH_CHUNK_TILES * FLASH_KEYS, stride = FLASH_PARTIAL_HEAD + size;
    const int32_t first = flash_first_seen(cache.window, index) / keys, last = index / keys;
    if (first == last) {
        return;
    }
    const float *from =
        args.partials + (((int64_t)row * args.attention.heads + head) * args.splits + first) * stride;
    float largest = args.sinks ? args.sinks[head] * FLASH_LOG2_E : -INFINITY;
    float sum = args.sinks ? 1.0f : 0.0f;
    float total[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        total[i] = 0;
    }
    for (int32_t chunk = first; chunk <= last; chunk += BATCH, from += BATCH * stride) {
        float m[BATCH], l[BATCH], y[BATCH][EACH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const bool there = chunk + k <= last;
            m[k] = there ? from[k * stride] : 0.0f;
            l[k] = there ? from[k * stride + 1] : 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int32_t c = (int32_t)threadIdx.x + MERGE_THREADS * i;
                y[k][i] = there && c < size ? from[k * stride + FLASH_PARTIAL_HEAD + c] : 0.0f;
            }
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (chunk + k <= last) {
                float keep, add;
                flash_merge(m[k], l[k], &largest, &sum, &keep, &add);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    total[i] = total[i] * keep + y[k][i] * add;
                }
            }
        }
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float *gate = args.gate.data ? sl_f32(args.gate, row) + head * args.attention.gate_stride : NULL;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t c = (int32_t)threadIdx.x + MERGE_THREADS * i;
        if (c < size) {
            sl_f32(args.y, row)[head * size + c] = flash_finish(args, gate, c, total[i], factor);
        }
    }
}

static cudaError_t merge(const sl_cuda_context *context, const flash_args *args, int32_t rows, int32_t size,
                         cudaStream_t stream) {
    const dim3 grid((unsigned)rows, (unsigned)args->attention.heads);
    if (size <= MERGE_THREADS) {
        merge_kernel<1, 16><<<grid, MERGE_THREADS, 0, stream>>>(*context, *args);
    } else if (size <= 2 * MERGE_THREADS) {
        merge_kernel<2, 8><<<grid, MERGE_THREADS, 0, stream>>>(*context, *args);
    } else {
        merge_kernel<MOST_SIZE / MERGE_THREADS, 4><<<grid, MERGE_THREADS, 0, stream>>>(*context, *args);
    }
    return cudaGetLastError();
}

static int32_t splits_of(int32_t table_width) {
    return (table_width + FLASH_CHUNK_TILES - 1) / FLASH_CHUNK_TILES;
}

static int32_t size_of(const sl_cache_group *group) {
    return group->key_size > group->value_size ? group->key_size : group->value_size;
}

uint64_t sl_cuda_flash_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const uint64_t floats = /* of a part; DECODE_HEAD is what a fused run puts before it */
        DECODE_HEAD + (uint64_t)query->program->groups[attention->place.group].value_size;
    return (uint64_t)query->rows[SL_ROWS_STEP] * (uint64_t)attention->heads *
           (uint64_t)splits_of(sl_table_width(query->limits->context)) * floats * sizeof(float);
}

uint64_t sl_cuda_flash_decode_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    return (uint64_t)query->rows[SL_ROWS_STEP] * (uint64_t)attention->heads *
           (uint64_t)decode_most_parts(group->kv_heads) * (uint64_t)(DECODE_HEAD + group->value_size) *
           sizeof(float);
}

static bool is_hopper(int device) {
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major == 9;
}

static bool is_decode(const sl_cuda_kernel *kernel) {
    return kernel->run == sl_cuda_flash_decode || kernel->run == sl_cuda_flash_decode_split;
}

/* What only the kernels of flash_decode.cuh refuse. */
static const char *decode_declines(const sl_op_attention *attention, const sl_cache_group *group,
                                   int32_t rows, int device) {
    if (rows > DECODE_MOST_ROWS) {
        return "takes 64 rows at most";
    }
    if (size_of(group) > MOST_DECODE_SIZE) {
        return "takes head sizes up to 256";
    }
    if (rows * attention->heads > SL_CUDA_ARRIVALS) {
        return "takes fewer heads";
    }
    return is_hopper(device) ? NULL : "takes devices of capability 9.0";
}

static int32_t bytes_needed(sl_qtype type, int32_t size, bool few) {
    return type == SL_QTYPE_BF16   ? sl_flash_bytes_bf16(size, few)
           : type == SL_QTYPE_Q8_0 ? sl_flash_bytes_q8_0(size, few)
           : type == SL_QTYPE_FP8  ? sl_flash_bytes_fp8(size, few)
                                   : sl_flash_bytes_f16(size, few);
}

/* The kernel's weight_type is the cache's type. */
const char *sl_cuda_flash_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const bool wgmma_split = row->run == sl_cuda_flash_wgmma_split;
    const bool wgmma = row->run == sl_cuda_flash_wgmma || wgmma_split, decode = is_decode(row);
    const bool few = !wgmma && row->run != sl_cuda_flash_whole;
    const int device = query->backend->options.device;
    const sl_qtype type = query->cache_type;
    if (type != row->weight_type) {
        return "takes caches of another type";
    }
    if (wgmma && size_of(group) > MOST_WGMMA_SIZE) {
        return "takes head sizes up to 256";
    }
    if (wgmma_split && size_of(group) > MOST_WGMMA_SPLIT_SIZE) {
        return "takes head sizes up to 128";
    }
    if (wgmma && query->rows[SL_ROWS_STEP] < LEAST_WGMMA_ROWS) {
        return "takes 64 rows or more";
    }
    if (row->most_rows > 0 && size_of(group) <= MOST_TILE_SIZE &&
        query->rows[SL_ROWS_STEP] > row->most_rows) {
        return "takes fewer rows";
    }
    if (size_of(group) > (few ? MOST_SIZE : MOST_TILE_SIZE)) {
        return few ? "takes head sizes up to 512" : "takes head sizes up to 256";
    }
    if (group->key_size % 8 != 0 || group->value_size % 8 != 0) {
        return "takes head sizes that are multiples of 8";
    }
    if (type == SL_QTYPE_FP8 && (group->key_size % 16 != 0 || group->value_size % 16 != 0)) {
        return "takes head sizes that are multiples of 16";
    }
    if (!(attention->scale > 0)) {
        return "takes positive scales";
    }
    if (kernel->workspace && kernel->workspace(kernel, query) > MOST_SCRATCH) {
        return "its parts would take more than 256 MiB";
    }
    if (decode) {
        return decode_declines(attention, group, query->rows[SL_ROWS_STEP], device);
    }
    int most = 0;
    if (wgmma && !is_hopper(device)) {
        return "takes devices of capability 9.0";
    }
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess ||
        bytes_needed(type, size_of(group), few) > most) {
        return "the device has too little shared memory for this head size";
    }
    return NULL;
}

cudaError_t sl_cuda_flash_prepare(int device) {
    int most = 0;
    cudaError_t code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code == cudaSuccess ? sl_flash_prepare_f16(most) : code;
    code = code == cudaSuccess ? sl_flash_prepare_bf16(most) : code;
    code = code == cudaSuccess ? sl_flash_prepare_q8_0(most) : code;
    code = code == cudaSuccess ? sl_flash_prepare_fp8(most) : code;
    if (code != cudaSuccess || !is_hopper(device)) {
        return code;
    }
    code = sl_flash_prepare_wgmma();
    code = code == cudaSuccess ? sl_decode_prepare_f16() : code;
    code = code == cudaSuccess ? sl_decode_prepare_bf16() : code;
    code = code == cudaSuccess ? sl_decode_prepare_q8_0() : code;
    return code == cudaSuccess ? sl_decode_prepare_fp8() : code;
}

typedef enum flash_way { WAY_WHOLE, WAY_FEW, WAY_SPLIT, WAY_WGMMA, WAY_WGMMA_SPLIT } flash_way;

static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, flash_way way,
                          cudaStream_t stream) {
    const bool split = way == WAY_SPLIT, few = split || way == WAY_FEW;
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const flash_args args = {*attention,
                             op->in[0],
                             op->in[1],
                             op->out[0],
                             (const float *)op->weights[0].data,
                             split ? (float *)op->scratch : NULL,
                             split ? splits_of(context->table_width) : 1,
                             1,
                             attention->heads / group->kv_heads};
    const flash_launch_shape shape = {size_of(group), op->rows[SL_ROWS_STEP], op->spans, group->kv_heads,
                                      few};
    const sl_qtype type = context->caches[attention->place.group].type;
    cudaError_t code = way == WAY_WGMMA         ? sl_flash_launch_wgmma(context, &args, &shape, stream)
                       : way == WAY_WGMMA_SPLIT ? sl_flash_launch_wgmma_split(context, &args, &shape, stream)
                       : type == SL_QTYPE_BF16  ? sl_flash_launch_bf16(context, &args, &shape, stream)
                       : type == SL_QTYPE_Q8_0  ? sl_flash_launch_q8_0(context, &args, &shape, stream)
                       : type == SL_QTYPE_FP8   ? sl_flash_launch_fp8(context, &args, &shape, stream)
                                                : sl_flash_launch_f16(context, &args, &shape, stream);
    if (code == cudaSuccess && split) {
        code = merge(context, &args, shape.rows, group->value_size, stream);
    }
    return code;
}

/* heads: NULL, or what makes the heads in the same launch. */
/* quantize: the QUANTIZE behind it in the run, or NULL. */
static cudaError_t decode(const sl_cuda_context *context, const sl_cuda_op *op, const sl_cuda_op *quantize,
                          const sl_heads_args *heads, cudaStream_t stream) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    sl_cuda_operand y = op->out[0];
    y.data = quantize && op->unread[0] ? NULL : y.data;
    const bool chunks = op->kernel->run != sl_cuda_flash_decode;
    const int32_t most_parts = chunks ? splits_of(context->table_width) : decode_most_parts(group->kv_heads);
    const int32_t item_parts = op->spans <= FEW_SPANS ? 1 : most_parts;
    const decode_args args = {*attention,
                              op->in[0],
                              op->in[1],
                              y,
                              quantize ? quantize->out[0] : sl_cuda_operand{},
                              (const float *)op->weights[0].data,
                              (float *)op->scratch,
                              context->arrivals,
                              most_parts,
                              attention->heads / group->kv_heads,
                              op->spans,
                              op->rows[SL_ROWS_STEP],
                              item_parts,
                              (most_parts - 1) / item_parts + 1,
                              chunks ? FLASH_CHUNK_TILES : 0,
                              group->layers};
    const flash_launch_shape shape = {size_of(group), op->rows[SL_ROWS_STEP], op->spans, group->kv_heads,
                                      true};
    switch (context->caches[attention->place.group].type) {
    case SL_QTYPE_BF16:
        return sl_decode_launch_bf16(context, &args, heads, &shape, stream);
    case SL_QTYPE_Q8_0:
        return sl_decode_launch_q8_0(context, &args, heads, &shape, stream);
    case SL_QTYPE_FP8:
        return sl_decode_launch_fp8(context, &args, heads, &shape, stream);
    default:
        return sl_decode_launch_f16(context, &args, heads, &shape, stream);
    }
}

SL_CUDA_RUN(sl_cuda_flash_decode) {
    return decode(context, op, NULL, NULL, stream);
}

SL_CUDA_RUN(sl_cuda_flash_decode_split) {
    return decode(context, op, NULL, NULL, stream);
}

/* Ops: those of sl_cuda_heads, ATTENTION, and QUANTIZE if there is one. */
SL_CUDA_RUN(sl_cuda_heads_decode) {
    const sl_heads_args heads = sl_heads_args_of(context, op);
    const sl_cuda_op *last = op + op->run_length - 1;
    return last->op->kind == SL_OP_QUANTIZE ? decode(context, last - 1, last, &heads, stream)
                                            : decode(context, last, NULL, &heads, stream);
}

/* Ops: ATTENTION, QUANTIZE. */
SL_CUDA_RUN(sl_cuda_decode_quantize) {
    return decode(context, op, op + 1, NULL, stream);
}

/* The QUANTIZE at ops[i], behind the attention. */
static const char *quantize_declines(const sl_fusion_query *query, int32_t i) {
    const sl_op *quantize = &query->ops[i], *attention = quantize - 1;
    const sl_cache_group *group = &query->program->groups[attention->u.attention.place.group];
    return quantize->in[0].value != attention->out[0].value ||
                   quantize->in[0].column != attention->out[0].column ||
                   quantize->u.quantize.width != attention->u.attention.heads * group->value_size
               ? "takes ops of which each reads the one before"
           : query->values[quantize->out[0].value].type == SL_VALUE_Q8_32 &&
                   group->value_size % SL_Q8_32_GROUP != 0
               ? "quantizes to groups of 32 that heads consist of"
               : NULL;
}

const char *sl_cuda_heads_decode_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const int32_t last = fusion->count - 1 - (fusion->ops[fusion->count - 1] == SL_OP_QUANTIZE);
    const sl_op *attention = &query->ops[last], *write = attention - 1, *rope = write - 2;
    const sl_cuda_kernel *kernel = (const sl_cuda_kernel *)query->kernels[last];
    if (!is_decode(kernel) && kernel->run != sl_cuda_flash_split) {
        return "takes attention by cuda-flash-decode or cuda-flash-split";
    }
    /* A row reads its keys for itself, and makes those of its sequence's earlier rows in the step. */
    if (query->rows[SL_ROWS_STEP] > MOST_FUSED_ROWS) {
        return "takes 8 rows at most";
    }
    if (query->rows[SL_ROWS_STEP] > query->limits->sequences) {
        return "takes no more rows than there are sequences";
    }
    sl_fusion heads = *fusion;
    heads.count = last;
    const char *reason = sl_cuda_heads_declines(&heads, query);
    reason = reason ? reason
                    : decode_declines(&attention->u.attention,
                                      &query->program->groups[attention->u.attention.place.group],
                                      query->rows[SL_ROWS_STEP], query->backend->options.device);
    reason = reason || last == fusion->count - 1 ? reason : quantize_declines(query, last + 1);
    if (reason) {
        return reason;
    }
    if (attention->in[0].value != rope->out[0].value || attention->in[0].column != rope->out[0].column ||
        attention->u.attention.q_stride != rope->u.rope.stride ||
        attention->u.attention.heads != rope->u.rope.heads ||
        attention->u.attention.place.group != write->u.cache_write.place.group ||
        attention->u.attention.place.layer != write->u.cache_write.place.layer) {
        return "takes ops of which each reads the one before";
    }
    return query->unread[last - 3][0] && query->unread[last - 2][0]
               ? NULL
               : "takes queries and keys that nobody else reads";
}

const char *sl_cuda_decode_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    return !is_decode((const sl_cuda_kernel *)query->kernels[0]) ? "takes attention by cuda-flash-decode"
                                                                 : quantize_declines(query, 1);
}

SL_CUDA_RUN(sl_cuda_flash_whole) {
    return launch(context, op, WAY_WHOLE, stream);
}

SL_CUDA_RUN(sl_cuda_flash_few) {
    return launch(context, op, WAY_FEW, stream);
}

SL_CUDA_RUN(sl_cuda_flash_split) {
    return launch(context, op, WAY_SPLIT, stream);
}

SL_CUDA_RUN(sl_cuda_flash_wgmma) {
    return launch(context, op, WAY_WGMMA, stream);
}

SL_CUDA_RUN(sl_cuda_flash_wgmma_split) {
    return launch(context, op, WAY_WGMMA_SPLIT, stream);
}
