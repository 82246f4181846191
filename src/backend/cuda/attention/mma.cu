/* Flash attention: which kernel of mma_kernel.cuh an op takes, and the launch that adds chunks. */
#include "backend/cuda/attention/mma_kernel.cuh"
#include "backend/cuda/attention/mma_merge.cuh"
#include "backend/cuda/rows/heads.cuh"
#include "backend/cuda/attention/mma.h"

enum {
    MOST_SIZE = 512,
    MOST_WGMMA_SPLIT_SIZE = 128,
    MOST_FUSED_ROWS = 8, /* with heads made in the same launch */
    FEW_SPANS = 8,       /* up to which a step's sequences are too few to give every block whole rows */
    LEAST_WGMMA_ROWS = 64,
    MOST_RANGED_ROWS = 256,
    MOST_RANGED_ROWS_DET = 128,
    MOST_MIXED_ROWS = 256 /* of more, those of one row each are few beside the others */
};
#define MOST_SCRATCH (UINT64_C(256) << 20)
#define MOST_RANGES_SCRATCH (UINT64_C(1) << 30)

static cudaError_t merge_chunks(const sl_cuda_context *context, const mma_args *args, int32_t rows,
                                int32_t size, cudaStream_t stream) {
    const dim3 grid((unsigned)rows, (unsigned)args->attention.heads);
    if (size <= MERGE_THREADS) {
        mma_merge_kernel<mma_chunks, 1, 16><<<grid, MERGE_THREADS, 0, stream>>>(*context, *args);
    } else if (size <= 2 * MERGE_THREADS) {
        mma_merge_kernel<mma_chunks, 2, 8><<<grid, MERGE_THREADS, 0, stream>>>(*context, *args);
    } else {
        mma_merge_kernel<mma_chunks, MOST_SIZE / MERGE_THREADS, 4>
            <<<grid, MERGE_THREADS, 0, stream>>>(*context, *args);
    }
    return cudaGetLastError();
}

static int32_t splits_of(int32_t table_width) {
    return (table_width + MMA_CHUNK_TILES - 1) / MMA_CHUNK_TILES;
}

static int32_t size_of(const sl_cache_group *group) {
    return group->key_size > group->value_size ? group->key_size : group->value_size;
}

/* Keys that a row can see. */
static int32_t most_keys_of(const sl_cache_group *group, int32_t keys) {
    const int32_t window = sl_group_window(group), seen = window < 0 ? -window : window;
    return seen > 0 && seen < keys ? seen : keys;
}

/* Ranges of keys that wgmma leaves of a row, at most; 1: rows see too few keys to cut them. */
static int32_t ranges_of(const sl_cache_group *group, int32_t table_width, bool chunks) {
    const int32_t keys = most_keys_of(group, table_width * SL_PAGE_TOKENS);
    const int32_t tiles = chunks ? (int32_t)MMA_CHUNK_TILES : (int32_t)RANGE_TILES,
                  least = tiles * SL_PAGE_TOKENS;
    const int32_t all = chunks ? splits_of(table_width) : mma_range_of(table_width - 1) + 1;
    const int32_t most = (keys + least - 2) / least + 1;
    return keys <= RANGE_TILES * SL_PAGE_TOKENS ? 1 : most < all ? most : all;
}

/* Whether wgmma reads a copy. */
static bool is_copied(sl_qtype type) {
    return type == SL_QTYPE_Q8_0 || type == SL_QTYPE_FP8;
}

static uint64_t ranges_bytes(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const int32_t ranges = ranges_of(group, sl_table_width(query->limits->context), kernel->deterministic);
    return ranges == 1 ? 0
                       : (uint64_t)query->rows[SL_ROWS_STEP] * (uint64_t)attention->heads * (uint64_t)ranges *
                             (uint64_t)(DECODE_HEAD + group->value_size) * sizeof(float);
}

/* The copy, and behind it the parts. */
static uint64_t copy_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cache_group *group = &query->program->groups[query->op->u.attention.place.group];
    (void)kernel;
    return is_copied(query->cache_type) ? sl_decoded_cache_of(group, query->limits).bytes : 0;
}

static uint64_t ranges_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    return copy_workspace(kernel, query) + ranges_bytes(kernel, query);
}

/* Rows whose parts several blocks may have: of more, a block has a row's parts all. */
static uint64_t shared_rows(const sl_kernel_query *query) {
    const int32_t rows = query->rows[SL_ROWS_STEP];
    return (uint64_t)(rows < DECODE_MOST_ROWS ? rows : DECODE_MOST_ROWS);
}

static uint64_t chunks_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const uint64_t floats = /* of a part; DECODE_HEAD is what a fused run puts before it */
        DECODE_HEAD + (uint64_t)query->program->groups[attention->place.group].value_size;
    return shared_rows(query) * (uint64_t)attention->heads *
           (uint64_t)splits_of(sl_table_width(query->limits->context)) * floats * sizeof(float);
}

static uint64_t decode_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    return shared_rows(query) * (uint64_t)attention->heads * (uint64_t)decode_most_parts(group->kv_heads) *
           (uint64_t)(DECODE_HEAD + group->value_size) * sizeof(float);
}

/* What a launch left in parts. */
static cudaError_t merge(const sl_cuda_context *context, const sl_cuda_op *op, const mma_args *args,
                         cudaStream_t stream) {
    const int32_t rows = op->rows[SL_ROWS_STEP];
    const int32_t size = op->program->groups[args->attention.place.group].value_size;
    switch (op->kernel->arrangement) {
    case SL_CUDA_MMA_ROWS16:
        return merge_chunks(context, args, rows, size, stream);
    case SL_CUDA_WGMMA_RANGES_DET:
        return mma_merge_ranges<mma_chunks>(context, args, rows, size, stream);
    default:
        return mma_merge_ranges<mma_ranges>(context, args, rows, size, stream);
    }
}

static const struct cache_type {
    const sl_mma_type *mma;
    const sl_decode_type *decode;
} TYPES[] = {{&sl_mma_cache_f16, &sl_decode_cache_f16},
             {&sl_mma_cache_bf16, &sl_decode_cache_bf16},
             {&sl_mma_cache_q8_0, &sl_decode_cache_q8_0},
             {&sl_mma_cache_fp8, &sl_decode_cache_fp8}};

static const cache_type *type_of(sl_qtype type) {
    for (const cache_type &row : TYPES) {
        if (row.mma->type == type) {
            return &row;
        }
    }
    return NULL;
}

static int32_t decode_most_rows(int32_t span_rows) {
    return span_rows == 1 ? DECODE_MOST_SPANS : DECODE_MOST_ROWS;
}

static bool is_ranged(sl_cuda_arrangement arrangement) {
    return arrangement == SL_CUDA_WGMMA_RANGES || arrangement == SL_CUDA_WGMMA_RANGES_DET;
}

/* What only the kernels refuse that stand in front of those for generation, as they take some of its steps.
 */
static const char *few_rows_decline(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const bool ranged = is_ranged(((const sl_cuda_kernel *)kernel)->arrangement);
    const int32_t rows = query->rows[SL_ROWS_STEP], units = size_of(group) > 256 ? 64 : 128;
    const bool few = rows <= DECODE_MOST_ROWS;
    if (query->span_rows == 1 || (few && 2 * query->limits->sequences > rows)) {
        return "leaves steps of a row of each sequence to others";
    }
    if ((ranged || few) &&
        ranges_of(group, sl_table_width(query->limits->context), kernel->deterministic) == 1) {
        return "takes rows that see more than 1024 keys";
    }
    const int32_t runs = (rows * (attention->heads / group->kv_heads) + units - 1) / units * group->kv_heads;
    return ranged && 4 * runs >= 3 * sl_cuda_facts_of(query->backend)->processors
               ? "has rows enough for all processors without ranges"
           : ranges_bytes(kernel, query) > MOST_RANGES_SCRATCH ? "its ranges would take more than 1 GiB"
                                                               : NULL;
}

static bool is_wgmma(sl_cuda_arrangement arrangement) {
    return arrangement == SL_CUDA_WGMMA_PROMPT || arrangement == SL_CUDA_WGMMA_PROMPT_DET ||
           arrangement == SL_CUDA_DECODE_PROMPT || is_ranged(arrangement);
}

static bool is_decode(sl_cuda_arrangement arrangement) {
    return arrangement == SL_CUDA_DECODE || arrangement == SL_CUDA_DECODE_DET;
}

/* What only the kernels of decode.cuh refuse. */
static const char *decode_declines(const sl_op_attention *attention, const sl_cache_group *group,
                                   int32_t rows, int32_t span_rows, const sl_cuda_facts *facts) {
    const int32_t most_rows = decode_most_rows(span_rows);
    if (attention->both_sides) {
        return "looks back only";
    }
    if (rows > most_rows) {
        return most_rows == DECODE_MOST_ROWS ? "takes 64 rows at most" : "takes 512 sequences at most";
    }
    if (size_of(group) > MOST_SIZE) {
        return "takes head sizes up to 512";
    }
    if (rows <= DECODE_MOST_ROWS && rows * attention->heads > SL_CUDA_ARRIVALS) {
        return "takes fewer heads";
    }
    return sl_cuda_device_declines(SL_CUDA_DECODE, facts);
}

/* The kernel's weight_type is the cache's type. */
static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const bool wgmma_split =
        row->arrangement == SL_CUDA_WGMMA_PROMPT_DET || row->arrangement == SL_CUDA_WGMMA_RANGES_DET;
    const bool mixed = row->arrangement == SL_CUDA_DECODE_PROMPT;
    const bool ranges = is_ranged(row->arrangement) || mixed;
    const bool wgmma = is_wgmma(row->arrangement);
    const bool few = !wgmma && row->arrangement != SL_CUDA_MMA_PROMPT;
    const sl_cuda_facts *facts = sl_cuda_facts_of(query->backend);
    const sl_qtype type = query->cache_type;
    if (type != row->weight_type) {
        return "takes caches of another type";
    }
    if (attention->both_sides) {
        return "looks back only";
    }
    if (attention->first > 0 && row->arrangement != SL_CUDA_DECODE) {
        return "looks back to the first key";
    }
    if (group->values_are_keys) {
        return "takes values beside the keys";
    }
    if (size_of(group) > MOST_SIZE) {
        return "takes head sizes up to 512";
    }
    if (wgmma_split && size_of(group) > MOST_WGMMA_SPLIT_SIZE) {
        return "takes head sizes up to 128";
    }
    if (query->rows[SL_ROWS_STEP] < row->least_rows) {
        return "takes 64 rows or more";
    }
    const int32_t most_rows =
        is_decode(row->arrangement) ? decode_most_rows(query->span_rows) : row->most_rows;
    /* What has no room for the kernel for many rows has the others for them. */
    if (most_rows > 0 && query->rows[SL_ROWS_STEP] > most_rows &&
        type_of(type)->mma->bytes(size_of(group), false) <= facts->block_bytes) {
        return "takes fewer rows";
    }
    if (mixed && query->limits->sequences == 1) {
        return "takes several sequences";
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
    const char *reason = ranges ? few_rows_decline(kernel, query) : NULL;
    if (reason) {
        return reason;
    }
    if (wgmma && is_copied(type) && sl_decoded_cache_of(group, query->limits).rounds == 0) {
        return "a layer's keys and values in f16 would take more than 4 GiB";
    }
    if (!wgmma && kernel->workspace && kernel->workspace(kernel, query) > MOST_SCRATCH) {
        return "its parts would take more than 256 MiB";
    }
    if (is_decode(row->arrangement)) {
        return decode_declines(attention, group, query->rows[SL_ROWS_STEP], query->span_rows, facts);
    }
    if (type_of(type)->mma->bytes(size_of(group), few) > facts->block_bytes) {
        return "the device has too little shared memory for this head size";
    }
    return sl_cuda_device_declines(row->arrangement, facts);
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = facts->has_wgmma ? sl_wgmma_prompt_prepare() : cudaSuccess;
    for (const cache_type &row : TYPES) {
        code = code ? code : row.mma->prepare(facts->block_bytes);
        code = code || !facts->has_wgmma ? code : row.decode->prepare();
    }
    return code;
}

static mma_args args_of(const sl_cuda_context *context, const sl_cuda_op *op) {
    const sl_cuda_arrangement arrangement = op->kernel->arrangement;
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const bool beside = arrangement == SL_CUDA_DECODE_PROMPT, det = op->kernel->kernel.deterministic;
    const int32_t splits = arrangement == SL_CUDA_MMA_ROWS16  ? splits_of(context->table_width)
                           : beside || is_ranged(arrangement) ? ranges_of(group, context->table_width, det)
                                                              : 1;
    const bool partial = splits > 1 || arrangement == SL_CUDA_MMA_ROWS16;
    const uint64_t copy = is_wgmma(arrangement) && is_copied(context->caches[attention->place.group].type)
                              ? sl_decoded_cache_of(group, op->limits).bytes
                              : 0;
    return {*attention,
            op->in[0],
            op->in[1],
            op->out[0],
            (const float *)op->weights[0].data,
            partial ? (float *)(void *)(op->scratch + copy) : NULL,
            splits,
            1,
            attention->heads / group->kv_heads,
            beside,
            {},
            {}};
}

static cudaError_t attend_by_wgmma(const sl_cuda_context *context, const sl_cuda_op *op, const mma_args *args,
                                   cudaStream_t stream) {
    const sl_cache_group *group = &op->program->groups[args->attention.place.group];
    const mma_launch_shape shape = {size_of(group), op->rows[SL_ROWS_STEP], op->spans, group->kv_heads, false,
                                    false};
    const bool split = op->kernel->kernel.deterministic;
    return split ? sl_wgmma_prompt_launch_split(context, args, &shape, stream)
                 : sl_wgmma_prompt_launch(context, args, &shape, stream);
}

/* Of caches that wgmma does not read: a copy, and the attention to it, of some of the spans after the others.
 */
static cudaError_t attend_to_copies(const sl_cuda_context *context, const sl_cuda_op *op, mma_args args,
                                    cudaStream_t stream) {
    const sl_cache_place place = args.attention.place;
    const sl_decoded_cache layout = sl_decoded_cache_of(&op->program->groups[place.group], op->limits);
    cudaError_t code = cudaSuccess;
    args.attention.place.layer = 0;
    for (int32_t round = 0; round < layout.rounds && code == cudaSuccess; round++) {
        sl_cuda_context copied = *context;
        const sl_decoded_args copy = {place, {round * layout.slots, layout.slots}, !args.beside};
        args.decoded = copy.slots;
        code = sl_decode_cache(&copied, op, &copy, op->scratch, stream);
        code = code ? code : attend_by_wgmma(&copied, op, &args, stream);
    }
    return code;
}

/* Up to 16, up to 64, or more rows by mma, or by wgmma: what is before a merge. */
static cudaError_t attend(const sl_cuda_context *context, const sl_cuda_op *op, const mma_args *args,
                          cudaStream_t stream) {
    const sl_cuda_arrangement arrangement = op->kernel->arrangement;
    const sl_cache_group *group = &op->program->groups[args->attention.place.group];
    const sl_qtype type = context->caches[args->attention.place.group].type;
    if (is_wgmma(arrangement)) {
        return is_copied(type) ? attend_to_copies(context, op, *args, stream)
                               : attend_by_wgmma(context, op, args, stream);
    }
    const bool few = arrangement == SL_CUDA_MMA_ROWS16 || arrangement == SL_CUDA_MMA_ROWS64;
    const mma_launch_shape shape = {size_of(group), op->rows[SL_ROWS_STEP], op->spans, group->kv_heads, few,
                                    false};
    return type_of(type)->mma->launch(context, args, &shape, stream);
}

static SL_CUDA_RUN(run) {
    const mma_args args = args_of(context, op);
    cudaError_t code = attend(context, op, &args, stream);
    if (code == cudaSuccess && args.partials) {
        code = merge(context, op, &args, stream);
    }
    return code;
}

/* heads: NULL, or what makes the heads in the same launch. quantize: the QUANTIZE behind it in the run, or
 * NULL. */
static cudaError_t decode(const sl_cuda_context *context, const sl_cuda_op *op, const sl_cuda_op *quantize,
                          const sl_heads_args *heads, cudaStream_t stream) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    sl_cuda_operand y = op->out[0];
    y.data = quantize && op->unread[0] ? NULL : y.data;
    const bool beside = op->kernel->arrangement == SL_CUDA_DECODE_PROMPT;
    const bool chunks = op->kernel->arrangement != SL_CUDA_DECODE && !beside;
    const int32_t most_parts = chunks ? splits_of(context->table_width) : decode_most_parts(group->kv_heads);
    const int32_t item_parts = op->spans <= FEW_SPANS && !beside ? 1 : most_parts;
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
                              chunks ? MMA_CHUNK_TILES : 0,
                              group->layers,
                              beside};
    const int32_t rows = beside ? op->spans : op->rows[SL_ROWS_STEP];
    const mma_launch_shape shape = {size_of(group), rows, op->spans, group->kv_heads, true, false};
    return type_of(context->caches[attention->place.group].type)
        ->decode->launch(context, &args, heads, &shape, stream);
}

static SL_CUDA_RUN(run_decode) {
    return decode(context, op, NULL, NULL, stream);
}

/* Spans of several rows by wgmma, and beside it those of one row by decode. */
static SL_CUDA_RUN(run_decode_prompt) {
    const mma_args args = args_of(context, op);
    cudaError_t code = attend(context, op, &args, stream);
    code = code ? code : decode(context, op, NULL, NULL, stream);
    return code || !args.partials ? code : merge(context, op, &args, stream);
}

/* Ops: those of heads.cu, ATTENTION, and QUANTIZE if there is one. */
static SL_CUDA_RUN(run_heads_decode) {
    const sl_heads_args heads = sl_heads_args_of(context, op);
    const sl_cuda_op *last = op + op->run_length - 1;
    return last->op->kind == SL_OP_QUANTIZE ? decode(context, last - 1, last, &heads, stream)
                                            : decode(context, last, NULL, &heads, stream);
}

/* Ops: ATTENTION, QUANTIZE. */
static SL_CUDA_RUN(run_decode_quantize) {
    return decode(context, op, op + 1, NULL, stream);
}

/* The QUANTIZE at ops[i], behind the attention. */
static const char *quantize_declines(const sl_fusion_query *query, int32_t i) {
    const sl_op *quantize = &query->ops[i], *attention = quantize - 1;
    const sl_cache_group *group = &query->program->groups[attention->u.attention.place.group];
    sl_codes codes;
    return quantize->in[0].value != attention->out[0].value ||
                   quantize->in[0].column != attention->out[0].column ||
                   quantize->u.quantize.width != attention->u.attention.heads * group->value_size
               ? "takes ops of which each reads the one before"
           : query->values[quantize->out[0].value].type == SL_VALUE_Q8_32 &&
                   group->value_size % SL_Q8_32_GROUP != 0
               ? "quantizes to groups of 32 that heads consist of"
           : sl_value_codes(query->values[quantize->out[0].value].type, &codes)
               ? "quantizes to BF16 and q8_32"
           : sl_cuda_is_padded(query, quantize) ? SL_CUDA_PADS_NOT
                                                : NULL;
}

static const char *heads_decode_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const int32_t last = fusion->count - 1 - (fusion->ops[fusion->count - 1] == SL_OP_QUANTIZE);
    const sl_op *attention = &query->ops[last], *write = attention - 1, *rope = write - 2;
    const sl_cuda_arrangement arrangement = sl_cuda_arrangement_of(query, last);
    if (!is_decode(arrangement) && arrangement != SL_CUDA_MMA_ROWS16) {
        return "takes attention by cuda-decode or cuda-mma-rows16";
    }
    /* A row reads its keys for itself, and makes those of its sequence's earlier rows in the step. */
    if (query->rows[SL_ROWS_STEP] > MOST_FUSED_ROWS) {
        return "takes 8 rows at most";
    }
    if (query->rows[SL_ROWS_STEP] > query->limits->sequences) {
        return "takes no more rows than there are sequences";
    }
    if (rope->u.rope.temperature.width > 0) {
        return "takes queries without a temperature";
    }
    sl_fusion heads = *fusion;
    heads.count = last;
    const char *reason = sl_heads_declines(&heads, query);
    reason = reason ? reason
                    : decode_declines(&attention->u.attention,
                                      &query->program->groups[attention->u.attention.place.group],
                                      query->rows[SL_ROWS_STEP], 1, sl_cuda_facts_of(query->backend));
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

static const char *decode_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    return is_decode(sl_cuda_arrangement_of(query, 0)) ? quantize_declines(query, 1)
                                                       : "takes attention by cuda-decode";
}

/* ---- rows ---- */

/* q and p are rounded to f16 or bf16, by 2^-12 or 2^-9 of themselves (and q8_0's values to f16). What that
 * does to a score is done to its exponential: scores of some tens are off by up to 1e-2 and p with them. q8_0
 * is tested with outliers, whose scores are hundreds. */
#define ATTENTION(ID, shape, arranged, class_name, least, limit, most, function, ...)                        \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-" shape,                                                          \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = class_name,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   __VA_ARGS__},                                                                             \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .most_rows = limit, .least_rows = least,      \
        .run = function                                                                                      \
    }
#define MMA_CLASS "/mma64/split512"
#define DECODE(ID, type_name, product, most)                                                                 \
    ATTENTION(ID, "decode-" #type_name, SL_CUDA_DECODE, product "/decode16", 0, DECODE_MOST_ROWS, most,      \
              run_decode, .declines = declines, .workspace = decode_workspace)
#define WGMMA(ID, type_name, product, most)                                                                  \
    ATTENTION(ID, "wgmma-prompt-" #type_name, SL_CUDA_WGMMA_PROMPT, product "/wgmma128", LEAST_WGMMA_ROWS,   \
              0, most, run, .declines = declines, .workspace = copy_workspace)
/* Of few rows by ranges of their keys. */
#define RANGES(ID, type_name, product, most)                                                                 \
    ATTENTION(ID, "wgmma-ranges-" #type_name, SL_CUDA_WGMMA_RANGES, product "/wgmma128/split1024",           \
              LEAST_WGMMA_ROWS, MOST_RANGED_ROWS, most, run, .declines = declines,                           \
              .workspace = ranges_workspace)
#define RANGES_DET(ID, type_name, product, most)                                                             \
    ATTENTION(ID, "wgmma-ranges-det-" #type_name, SL_CUDA_WGMMA_RANGES_DET, product MMA_CLASS,               \
              LEAST_WGMMA_ROWS, MOST_RANGED_ROWS_DET, most, run, .deterministic = true,                      \
              .declines = declines, .workspace = ranges_workspace)
/* One row of a sequence has the bits of decode, several those of wgmma: they depend on the cut. */
#define DECODE_PROMPT(ID, type_name, product, most)                                                          \
    ATTENTION(ID, "decode-prompt-" #type_name, SL_CUDA_DECODE_PROMPT,                                        \
              product "/decode16+wgmma128/split1024", LEAST_WGMMA_ROWS, MOST_MIXED_ROWS, most,               \
              run_decode_prompt, .cut_dependent = true, .declines = declines, .workspace = ranges_workspace)
/* The class of mma for few rows and with wgmma, for deterministic plans: others are served by faster classes.
 */
#define DECODE_DET(ID, type_name, product, most)                                                             \
    ATTENTION(ID, "decode-det-" #type_name, SL_CUDA_DECODE_DET, product MMA_CLASS, 0, DECODE_MOST_ROWS,      \
              most, run_decode, .deterministic = true, .declines = declines, .workspace = chunks_workspace)
#define WGMMA_DET(ID, type_name, product, most)                                                              \
    ATTENTION(ID, "wgmma-prompt-det-" #type_name, SL_CUDA_WGMMA_PROMPT_DET, product MMA_CLASS,               \
              LEAST_WGMMA_ROWS, 0, most, run, .deterministic = true, .declines = declines,                   \
              .workspace = copy_workspace)
#define MMAS(ID, type_name, product, most)                                                                   \
    ATTENTION(ID, "mma-rows16-" #type_name, SL_CUDA_MMA_ROWS16, product MMA_CLASS, 0, 16, most, run,         \
              .declines = declines, .workspace = chunks_workspace),                                          \
        ATTENTION(ID, "mma-rows64-" #type_name, SL_CUDA_MMA_ROWS64, product MMA_CLASS, 0, 64, most, run,     \
                  .declines = declines),                                                                     \
        ATTENTION(ID, "mma-prompt-" #type_name, SL_CUDA_MMA_PROMPT, product MMA_CLASS, 0, 0, most, run,      \
                  .declines = declines)
#define EVERY_ROWS(ID, type_name, product, most)                                                             \
    DECODE(ID, type_name, product, most), DECODE_DET(ID, type_name, product, most),                          \
        MMAS(ID, type_name, product, most)
/* Where the keys of many rows are read by wgmma: of q8_0 and fp8 from a copy. */
#define BY_WGMMA(ID, type_name, product, most)                                                               \
    DECODE_PROMPT(ID, type_name, product, most), WGMMA(ID, type_name, product, most),                        \
        WGMMA_DET(ID, type_name, product, most), RANGES(ID, type_name, product, most),                       \
        RANGES_DET(ID, type_name, product, most)
static const sl_cuda_kernel KERNELS[] = {
    EVERY_ROWS(F16, f16, "f16", 1e-2f),        BY_WGMMA(F16, f16, "f16", 1e-2f),
    EVERY_ROWS(BF16, bf16, "bf16", 5e-2f),     BY_WGMMA(BF16, bf16, "bf16", 5e-2f),
    EVERY_ROWS(Q8_0, q8_0, "q8_0:f16", 0.15f), EVERY_ROWS(FP8, fp8, "fp8:f16", 0.15f),
    BY_WGMMA(Q8_0, q8_0, "q8_0:f16", 0.15f),   BY_WGMMA(FP8, fp8, "fp8:f16", 0.15f),
};

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run_heads_decode, heads_decode_declines, "norms+rope+cache_write+attention+quantize",
                   SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION,
                   SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_heads_decode, heads_decode_declines, "rope+cache_write+attention+quantize", SL_OP_ROPE,
                   SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION, SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_heads_decode, heads_decode_declines, "norms+rope+cache_write+attention", SL_OP_RMSNORM,
                   SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION),
    SL_CUDA_FUSION(run_heads_decode, heads_decode_declines, "rope+cache_write+attention", SL_OP_ROPE,
                   SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION),
    SL_CUDA_FUSION(run_decode_quantize, decode_quantize_declines, "attention+quantize", SL_OP_ATTENTION,
                   SL_OP_QUANTIZE),
};

SL_CUDA_FAMILY(mma_attention) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_ROWS(FUSIONS), prepare};
