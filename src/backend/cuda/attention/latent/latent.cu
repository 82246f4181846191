/* Attention where values are the keys' first columns: which kernel of latent_kernel.cuh an op takes. */
#include "backend/cuda/attention/latent/latent_kernel.cuh"
#include "backend/cuda/attention/mma_merge.cuh"

enum {
    MOST_SPLIT_ROWS = 64,
    MOST_WGMMA_UNITS = 1 << 20, /* that hopper_divide() takes */
    WIDE_UNITS = 64             /* of a span, from which on blocks have as many */
};
#define MOST_SCRATCH (UINT64_C(256) << 20)

static const sl_latent_type *const TYPES[] = {&sl_latent_cache_f16, &sl_latent_cache_bf16,
                                              &sl_latent_cache_q8_0, &sl_latent_cache_fp8};

static const sl_latent_type *type_of(sl_qtype type) {
    for (const sl_latent_type *row : TYPES) {
        if (row->type == type) {
            return row;
        }
    }
    return NULL;
}

static int32_t splits_of(int32_t table_width) {
    return growing_chunk_of(table_width - 1) + 1;
}

static uint64_t workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const uint64_t rows = (uint64_t)query->rows[SL_ROWS_STEP], heads = (uint64_t)attention->heads;
    const uint64_t chunks = (uint64_t)splits_of(sl_table_width(query->limits->context));
    const int32_t size = query->program->groups[attention->place.group].value_size;
    return rows * heads * chunks * (uint64_t)(MMA_PARTIAL_HEAD + size) * sizeof(float);
}

/* The kernel's weight_type is the cache's type. */
static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const int32_t bytes = type_of(row->weight_type)->bytes(group->key_size, group->value_size);
    const int32_t piece = row->weight_type == SL_QTYPE_FP8 ? 16 : 8;
    if (query->cache_type != row->weight_type) {
        return "takes caches of another type";
    }
    if (!group->values_are_keys) {
        return "takes values that are part of the keys";
    }
    if (attention->both_sides) {
        return "looks back only";
    }
    if (attention->first >= MMA_KEYS << GROWING_CHUNK_SHIFT) {
        return "looks back to one of the first 256 keys";
    }
    if (bytes == 0) {
        return "takes keys up to 576 and values up to 512";
    }
    if (row->most_rows > 0 && query->rows[SL_ROWS_STEP] > row->most_rows) {
        return "takes fewer rows";
    }
    if (group->key_size % piece != 0 || group->value_size % 8 != 0) {
        return "takes keys of whole pieces of 16 bytes";
    }
    if (!(attention->scale > 0)) {
        return "takes positive scales";
    }
    if (kernel->workspace && kernel->workspace(kernel, query) > MOST_SCRATCH) {
        return "its parts would take more than 256 MiB";
    }
    return bytes > sl_cuda_facts_of(query->backend)->block_bytes
               ? "the device has too little shared memory for this head size"
               : NULL;
}

static const char *wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const int32_t rows = query->rows[SL_ROWS_STEP];
    if (group->window != 0) {
        return "takes groups without a window";
    }
    if (attention->first > 0) {
        return "looks back to the first key";
    }
    if (rows <= MOST_SPLIT_ROWS) {
        return "takes more than 64 rows";
    }
    if ((int64_t)rows * (attention->heads / group->kv_heads) > MOST_WGMMA_UNITS) {
        return "takes fewer rows";
    }
    const char *reason = declines(kernel, query);
    return reason ? reason : sl_cuda_device_declines(SL_CUDA_LATENT_WGMMA, sl_cuda_facts_of(query->backend));
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = facts->has_wgmma ? sl_latent_wgmma_prepare() : cudaSuccess;
    for (const sl_latent_type *row : TYPES) {
        code = code ? code : row->prepare(facts->block_bytes);
    }
    return code;
}

static SL_CUDA_RUN(run) {
    const bool split = op->kernel->arrangement == SL_CUDA_LATENT_ROWS64;
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const int32_t rows = op->rows[SL_ROWS_STEP], ratio = attention->heads / group->kv_heads;
    const mma_args args = {*attention,
                           op->in[0],
                           op->in[1],
                           op->out[0],
                           (const float *)op->weights[0].data,
                           split ? (float *)op->scratch : NULL,
                           split ? splits_of(context->table_width) : 1,
                           1,
                           ratio,
                           false,
                           {},
                           {}};
    const latent_launch_shape shape = {
        group->key_size, group->value_size, rows,
        op->spans,       group->kv_heads,   rows * ratio / op->spans >= WIDE_UNITS};
    cudaError_t code =
        op->kernel->arrangement == SL_CUDA_LATENT_WGMMA
            ? sl_latent_wgmma_launch(context, &args, &shape, stream)
            : type_of(context->caches[attention->place.group].type)->launch(context, &args, &shape, stream);
    if (code == cudaSuccess && split) {
        const unsigned columns = (unsigned)(group->value_size + MERGE_THREADS - 1) / MERGE_THREADS;
        const sl_launch_shape merge = {dim3((unsigned)rows, (unsigned)attention->heads, columns),
                                       dim3(MERGE_THREADS), 0};
        code = sl_launch(context, stream, merge, mma_merge_kernel<latent_chunks, 1, 16>, *context, args);
    }
    return code;
}

/* Tolerances: as in mma.cu. */
#define LATENT(ID, shape, arranged, class_name, least, limit, most, ...)                                     \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-latent-" shape,                                                   \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = class_name,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   __VA_ARGS__},                                                                             \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .most_rows = limit, .least_rows = least,      \
        .run = run                                                                                           \
    }
#define WGMMA(ID, type_name, product, most)                                                                  \
    LATENT(ID, "wgmma-" #type_name, SL_CUDA_LATENT_WGMMA, product "/wgmma64/pair", MOST_SPLIT_ROWS + 1, 0,   \
           most, .declines = wgmma_declines)
#define EVERY_ROWS(ID, type_name, product, most)                                                             \
    LATENT(ID, "rows64-" #type_name, SL_CUDA_LATENT_ROWS64, product "/latent64", 0, MOST_SPLIT_ROWS, most,   \
           .declines = declines, .workspace = workspace),                                                    \
        LATENT(ID, "prompt-" #type_name, SL_CUDA_LATENT_PROMPT, product "/latent64", 0, 0, most,             \
               .declines = declines)

static const sl_cuda_kernel KERNELS[] = {
    EVERY_ROWS(F16, f16, "f16", 1e-2f),        WGMMA(F16, f16, "f16", 1e-2f),
    EVERY_ROWS(BF16, bf16, "bf16", 5e-2f),     WGMMA(BF16, bf16, "bf16", 5e-2f),
    EVERY_ROWS(Q8_0, q8_0, "q8_0:f16", 0.15f), EVERY_ROWS(FP8, fp8, "fp8:f16", 0.15f),
};

SL_CUDA_FAMILY(latent_attention) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
