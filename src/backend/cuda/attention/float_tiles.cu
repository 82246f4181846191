/* Attention over F32 caches: how many units a block takes, and whether blocks share a row's keys. */
#include "backend/cuda/attention/float_tiles.cuh"

enum {
    MOST_SIZE = 512,
    FEW_UNITS = 8, /* of a block; with few, keys come as fast as memory gives them */
    SOME_UNITS = 32,
    MANY_UNITS = 64,
    MOST_SHARED_UNITS = 1 << 14,
    BLOCKS_EACH = 2 /* for a processor: with fewer, blocks share rows by ranges of their keys */
};
#define MOST_SCRATCH (UINT64_C(256) << 20)

/* Calls `what`(SIZE, MINE, THREADS, BLOCKS) for a head size and the units that a block is to have. */
#define FOR_SIZE(size, units, what)                                                                          \
    if ((units) <= FEW_UNITS) {                                                                              \
        if ((size) <= 64) {                                                                                  \
            what(64, 1, 128, 4);                                                                             \
        } else if ((size) <= 128) {                                                                          \
            what(128, 1, 128, 3);                                                                            \
        } else if ((size) <= 256) {                                                                          \
            what(256, 1, 128, 1);                                                                            \
        } else {                                                                                             \
            what(512, 1, 128, 1);                                                                            \
        }                                                                                                    \
    } else if ((units) <= SOME_UNITS) {                                                                      \
        if ((size) <= 64) {                                                                                  \
            what(64, 2, 256, 2);                                                                             \
        } else if ((size) <= 128) {                                                                          \
            what(128, 2, 256, 2);                                                                            \
        } else if ((size) <= 256) {                                                                          \
            what(256, 2, 256, 1);                                                                            \
        } else {                                                                                             \
            what(512, 2, 256, 1);                                                                            \
        }                                                                                                    \
    } else {                                                                                                 \
        if ((size) <= 64) {                                                                                  \
            what(64, 4, 256, 2);                                                                             \
        } else if ((size) <= 128) {                                                                          \
            what(128, 4, 256, 2);                                                                            \
        } else if ((size) <= 256) {                                                                          \
            what(256, 4, 256, 1);                                                                            \
        } else {                                                                                             \
            what(512, 2, 256, 1);                                                                            \
        }                                                                                                    \
    }

static int32_t bytes_of(int32_t size, int32_t units) {
#define BYTES(SIZE, MINE, THREADS, BLOCKS) return float_shape<SIZE, MINE, THREADS, BLOCKS>::BYTES
    FOR_SIZE(size, units, BYTES)
}

static int32_t units_of(int32_t size, int32_t units) {
#define UNITS(SIZE, MINE, THREADS, BLOCKS) return float_shape<SIZE, MINE, THREADS, BLOCKS>::UNITS
    FOR_SIZE(size, units, UNITS)
}

static int32_t size_of(const sl_cache_group *group) {
    return group->key_size > group->value_size ? group->key_size : group->value_size;
}

/* Ranges of which a row has parts, at most. */
static int32_t ranges_of(const sl_cache_group *group, int32_t table_width) {
    const int32_t window = sl_group_window(group), keys = window < 0 ? -window : window;
    const int32_t least = float_ranges::CHUNKS << GROWING_CHUNK_SHIFT; /* tiles of a range */
    const int32_t most = (keys + least * SL_PAGE_TOKENS - 2) / (least * SL_PAGE_TOKENS) + 1;
    const int32_t all = float_ranges::of(table_width - 1) + 1;
    return keys > 0 && most < all ? most : all;
}

/* Of more units, every device has blocks enough without sharing a row's keys. */
static uint64_t scratch_of(const sl_program *program, const sl_op_attention *attention,
                           const sl_limits *limits, int32_t rows) {
    const sl_cache_group *group = &program->groups[attention->place.group];
    const int32_t ranges = ranges_of(group, sl_table_width(limits->context));
    const uint64_t units = (uint64_t)rows * (uint64_t)attention->heads;
    const uint64_t bytes =
        units * (uint64_t)ranges * (uint64_t)(DECODE_HEAD + group->value_size) * sizeof(float);
    return ranges == 1 || units >= MOST_SHARED_UNITS || bytes > MOST_SCRATCH ? 0 : bytes;
}

static uint64_t workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return scratch_of(query->program, &query->op->u.attention, query->limits, query->rows[SL_ROWS_STEP]);
}

/* How an op is launched: by its bucket alone. */
typedef struct float_choice {
    int32_t units;  /* of a block */
    bool walk;      /* a block has all ranges of its units */
    int32_t runs;   /* of units, of a key head */
    int32_t ranges; /* of a row, at most */
} float_choice;

static float_choice choose(const sl_cuda_context *context, const sl_cuda_op *op) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const int32_t ratio = attention->heads / group->kv_heads, rows = op->rows[SL_ROWS_STEP];
    const int32_t size = size_of(group), units = rows <= op->spans ? ratio : rows * ratio;
    float_choice choice;
    choice.units = units <= FEW_UNITS ? FEW_UNITS : units <= SOME_UNITS ? SOME_UNITS : MANY_UNITS;
    if (bytes_of(size, choice.units) > op->facts->block_bytes) {
        choice.units = bytes_of(size, SOME_UNITS) > op->facts->block_bytes ? FEW_UNITS : SOME_UNITS;
    }
    choice.runs = mma_runs(rows, op->spans, ratio, units_of(size, choice.units));
    choice.ranges = ranges_of(group, context->table_width);
    choice.walk = choice.ranges > 1 && (choice.runs * group->kv_heads >= BLOCKS_EACH * context->processors ||
                                        scratch_of(op->program, attention, op->limits, rows) == 0);
    return choice;
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    return query->cache_type != SL_QTYPE_F32 ? "takes caches of another type"
           : attention->both_sides           ? "looks back only"
           : attention->first > 0            ? "looks back to the first key"
           : group->values_are_keys          ? "takes values beside the keys"
           : size_of(group) > MOST_SIZE      ? "takes head sizes up to 512"
           : group->key_size % SL_QUAD != 0 || group->value_size % SL_QUAD != 0
               ? "takes head sizes that are multiples of 4"
           : bytes_of(size_of(group), FEW_UNITS) > sl_cuda_facts_of(query->backend)->block_bytes
               ? "the device has too little shared memory for this head size"
               : NULL;
}

template <typename SHAPE>
static cudaError_t launch(const sl_cuda_context *context, const mma_args *args, int32_t kv_heads,
                          const float_choice &choice, cudaStream_t stream) {
    const unsigned ranges = choice.walk ? 1u : (unsigned)choice.ranges;
    const sl_launch_shape shape = {dim3((unsigned)kv_heads, (unsigned)choice.runs, ranges),
                                   dim3(SHAPE::THREADS), (uint32_t)SHAPE::BYTES};
    return choice.walk ? sl_launch(context, stream, shape, float_tiles_kernel<SHAPE, true>, *context, *args)
                       : sl_launch(context, stream, shape, float_tiles_kernel<SHAPE, false>, *context, *args);
}

static cudaError_t launch_size(const sl_cuda_context *context, const mma_args *args,
                               const sl_cache_group *group, const float_choice &choice, cudaStream_t stream) {
#define LAUNCH(SIZE, MINE, THREADS, BLOCKS)                                                                  \
    return launch<float_shape<SIZE, MINE, THREADS, BLOCKS>>(context, args, group->kv_heads, choice, stream)
    FOR_SIZE(size_of(group), choice.units, LAUNCH)
}

static SL_CUDA_RUN(run) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const float_choice choice = choose(context, op);
    const mma_args args = {*attention,
                           op->in[0],
                           op->in[1],
                           op->out[0],
                           (const float *)op->weights[0].data,
                           choice.walk || choice.ranges == 1 ? NULL : (float *)(void *)op->scratch,
                           choice.ranges,
                           1,
                           attention->heads / group->kv_heads,
                           false,
                           {},
                           {}};
    const cudaError_t code = launch_size(context, &args, group, choice, stream);
    return code || !args.partials ? code
                                  : mma_merge_ranges<float_ranges>(context, &args, op->rows[SL_ROWS_STEP],
                                                                   group->value_size, stream);
}

template <typename SHAPE> static cudaError_t prepare_shape(int32_t most) {
    if (SHAPE::BYTES > most) {
        return cudaSuccess;
    }
    const cudaError_t code = sl_allow_shared(float_tiles_kernel<SHAPE, true>, SHAPE::BYTES);
    return code ? code : sl_allow_shared(float_tiles_kernel<SHAPE, false>, SHAPE::BYTES);
}

/* Lets the kernels of all sizes use the shared memory they need, if the device has it. */
static cudaError_t prepare(const sl_cuda_facts *facts) {
    static const int32_t sizes[] = {64, 128, 256, 512}, units[] = {FEW_UNITS, SOME_UNITS, MANY_UNITS};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 12 && code == cudaSuccess; i++) {
#define PREPARE(SIZE, MINE, THREADS, BLOCKS)                                                                 \
    code = prepare_shape<float_shape<SIZE, MINE, THREADS, BLOCKS>>(facts->block_bytes)
        FOR_SIZE(sizes[i % 4], units[i / 4], PREPARE)
    }
    return code;
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "attention/cuda-tile-f32",
                .op = SL_OP_ATTENTION,
                .numeric_class = "tile64/fma32/split512",
                .tolerance = 1e-4f,
                .batched = true,
                .declines = declines,
                .workspace = workspace},
     .arrangement = SL_CUDA_ATTENTION_FLOATS,
     .weight_type = SL_QTYPE_F32,
     .run = run},
};

SL_CUDA_FAMILY(float_attention) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
