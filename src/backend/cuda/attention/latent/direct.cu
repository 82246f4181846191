/* Latent attention's direct form, for prompts.
 *
 * Absorbed, a query and a key of a head take products of 576 and 512 elements (of DeepSeek's sizes). Directly
 * they take 192 and 128, but keys and values of every head must be made of the latent rows first. That pays
 * where a sequence has many rows in the step: each reads all of its keys. So in one run of ops such sequences
 * go directly, and the others as their own kernels have it.
 *
 * Made keys and values lie in scratch, as a cache of one layer with page tables of its own, so that
 * wgmma_prompt.cu reads them. The scratch is bounded; a sequence has the part of it that its rows are of a
 * full step's, and where its keys need more it does not go directly. What decides is the sequence's rows in
 * the step and its keys alone, so no bits depend on the rest of the step.
 *
 * Class "direct/wgmma128": keys and values are rounded to the cache's type (direct_expand.cu), then attention
 * as in wgmma_prompt.cu; sequences of few rows: the classes of their ops' kernels. */
#include "backend/cuda/attention/latent/latent.h"

enum {
    LEAST_ROWS = 256,  /* of a bucket */
    MOST_ROWS = 12288, /* SL_DIRECT_MOST_SPANS of LEAST_SPAN */
    LEAST_SPAN = 192,  /* rows of a sequence that goes directly: making keys and values takes as long as 170
                          rows save */
    MOST_KEY_SIZE = 256,
    WRITE = 1,
    ATTEND,
    RETURN, /* ops of the run, behind the first */
    ALIGNMENT = 256
};
#define MOST_SCRATCH (UINT64_C(1) << 30)

/* What a run's scratch consists of. */
typedef struct direct_layout {
    int32_t key_size, value_size, heads;
    int32_t pages;
    bool alone; /* all of the step goes directly: it is one sequence's, whose keys have room */
    uint64_t page_bytes, values;     /* of a page; where its values begin */
    uint64_t table, matrices, bytes; /* behind the pages */
} direct_layout;

static int32_t tiles_of(int32_t outputs) {
    return (outputs + SL_DIRECT_OUTPUTS - 1) / SL_DIRECT_OUTPUTS;
}

static int32_t boxes_of(int32_t latent) {
    return (latent + SL_DIRECT_BOX - 1) / SL_DIRECT_BOX;
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
}

/* Inputs of a head, of the HEAD_LINEAR that leads to the latent space. */
static int32_t inputs_of(const sl_program *program, const sl_op *op) {
    const sl_weight *weight = &program->weights[op->u.head_linear.weight];
    return op->u.head_linear.turned ? weight->rows : weight->columns;
}

static direct_layout layout_of(const sl_program *program, const sl_op *ops, const sl_limits *limits) {
    const sl_weight *last = &program->weights[ops[RETURN].u.head_linear.weight];
    const int32_t part = inputs_of(program, &ops[0]), width = sl_table_width(limits->context);
    direct_layout layout = {};
    layout.key_size = part + ops[0].u.head_linear.tail;
    layout.value_size = last->rows;
    layout.heads = last->experts;
    const uint64_t row = 2 * (uint64_t)layout.heads * SL_PAGE_TOKENS;
    layout.values = row * (uint64_t)layout.key_size;
    layout.page_bytes = layout.values + row * (uint64_t)layout.value_size;
    /* Enough for the fewest rows with the longest context. */
    const uint64_t most = MOST_SCRATCH / layout.page_bytes;
    const int32_t shares = limits->sequences > 1 ? (limits->rows + LEAST_SPAN - 1) / LEAST_SPAN : 1;
    const uint64_t wanted = (uint64_t)width * (uint64_t)shares;
    layout.pages = (int32_t)(wanted < most ? wanted : most);
    layout.alone = limits->sequences == 1 && layout.pages == width;
    layout.table = aligned((uint64_t)layout.pages * layout.page_bytes);
    layout.matrices =
        aligned(layout.table + (uint64_t)sl_table_rows(limits) * (uint64_t)width * sizeof(int32_t));
    layout.bytes = layout.matrices + (uint64_t)layout.heads *
                                         (uint64_t)(tiles_of(part) + tiles_of(layout.value_size)) *
                                         (uint64_t)boxes_of(last->columns) * SL_DIRECT_BOX_BYTES;
    return layout;
}

static uint64_t workspace(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    return layout_of(query->program, query->ops, query->limits).bytes;
}

/* Each op reads what the one before wrote, in the order in which latent attention has them. */
static bool is_chain(const sl_fusion_query *query) {
    const sl_op *ops = query->ops, *attend = &ops[ATTEND], *write = &ops[WRITE];
    const sl_cache_group *group = &query->program->groups[attend->u.attention.place.group];
    const sl_op_head_linear *last = &ops[RETURN].u.head_linear;
    const sl_weight *values = &query->program->weights[last->weight];
    return ops[0].out[0].value == attend->in[0].value && ops[0].out[0].column == attend->in[0].column &&
           attend->out[0].value == ops[RETURN].in[0].value &&
           attend->out[0].column == ops[RETURN].in[0].column &&
           write->u.cache_write.place.group == attend->u.attention.place.group &&
           write->u.cache_write.place.layer == attend->u.attention.place.layer && !last->turned &&
           last->tail == 0 && last->x_stride == group->value_size && values->columns == group->value_size &&
           ops[0].u.head_linear.tail == group->key_size - group->value_size &&
           attend->u.attention.q_stride == group->key_size && attend->u.attention.heads == values->experts &&
           query->unread[0][0] && query->unread[ATTEND][0];
}

static const char *sizes_decline(const sl_fusion_query *query) {
    const sl_cache_group *group = &query->program->groups[query->ops[ATTEND].u.attention.place.group];
    const direct_layout layout = layout_of(query->program, query->ops, query->limits);
    const int32_t part = inputs_of(query->program, &query->ops[0]);
    if (layout.key_size > MOST_KEY_SIZE || layout.value_size > MOST_KEY_SIZE) {
        return "takes heads up to 256";
    }
    if (group->value_size > SL_DIRECT_MOST_BOXES * SL_DIRECT_BOX || group->kv_heads != 1) {
        return "takes latent rows of up to 512";
    }
    if ((part | query->ops[0].u.head_linear.tail | layout.value_size | group->value_size) % 8 != 0) {
        return "takes sizes of whole pieces of 16 bytes";
    }
    return (int64_t)layout.pages * SL_PAGE_TOKENS < 4 * query->limits->rows &&
                   layout.pages < sl_table_width(query->limits->context)
               ? "keys and values of all heads would take more than 1 GiB"
               : NULL;
}

static const char *declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    const sl_op_attention *attention = &query->ops[ATTEND].u.attention;
    if (sl_cuda_arrangement_of(query, 0) != SL_CUDA_HEADS_TILE ||
        sl_cuda_arrangement_of(query, RETURN) != SL_CUDA_HEADS_TILE ||
        sl_cuda_arrangement_of(query, ATTEND) != SL_CUDA_LATENT_WGMMA) {
        return "takes head_linear by cuda-tile and attention by cuda-latent-wgmma";
    }
    if (query->rows[SL_ROWS_STEP] < LEAST_ROWS) {
        return "takes 256 rows or more";
    }
    if (query->rows[SL_ROWS_STEP] > MOST_ROWS) {
        return "takes 12288 rows at most";
    }
    if (attention->first > 0 || attention->both_sides || attention->sinks != SL_NONE ||
        query->ops[ATTEND].in[1].value != SL_NONE) {
        return "takes attention to all keys before a row, without sinks and gates";
    }
    return !is_chain(query) ? "takes ops of which each reads the one before" : sizes_decline(query);
}

/* ---- running ---- */

static sl_direct_matrix matrix_of(const sl_cuda_weight &weight, int32_t outputs, bool by_inputs) {
    return {weight, outputs, tiles_of(outputs), by_inputs};
}

/* The ops' own way, for sequences that do not go directly. */
static cudaError_t run_absorbed(const sl_cuda_context *context, const sl_cuda_op *op, sl_direct direct,
                                cudaStream_t stream) {
    const sl_op_attention *attention = &op[ATTEND].op->u.attention;
    const sl_cache_group *group = &op->program->groups[attention->place.group];
    const int32_t rows = op->rows[SL_ROWS_STEP], ratio = attention->heads / group->kv_heads;
    direct.side = SL_DIRECT_OTHERS;
    mma_args args = {};
    args.attention = *attention;
    args.q = op[ATTEND].in[0];
    args.y = op[ATTEND].out[0];
    args.splits = args.parts = 1;
    args.ratio = ratio;
    args.direct = direct;
    const latent_launch_shape shape = {group->key_size, group->value_size, rows,
                                       op->spans,       group->kv_heads,   true};
    cudaError_t code = sl_head_tile_launch(context, op, &direct, stream);
    code = code ? code : sl_latent_wgmma_launch(context, &args, &shape, stream);
    return code ? code : sl_head_tile_launch(context, op + RETURN, &direct, stream);
}

/* Attention to the keys and values that were made. */
static cudaError_t run_direct(const sl_cuda_context *context, const sl_cuda_op *op,
                              const sl_direct_args *made, cudaStream_t stream) {
    sl_cuda_context scratch = *context;
    scratch.caches[made->direct.group] = made->to;
    mma_args args = {};
    args.attention = op[ATTEND].op->u.attention;
    args.attention.place.layer = 0;
    args.attention.q_stride = op->op->u.head_linear.x_stride;
    args.q = op->in[0];
    args.y = op[RETURN].out[0];
    args.splits = args.parts = args.ratio = 1;
    args.direct = made->direct;
    const int32_t key = made->to.key_size, value = made->to.value_size;
    const mma_launch_shape shape = {key > value ? key : value,
                                    op->rows[SL_ROWS_STEP],
                                    op->spans,
                                    made->heads,
                                    false,
                                    key > 128 && key <= 192 && value <= 128};
    return sl_wgmma_prompt_launch(&scratch, &args, &shape, stream);
}

/* Ops: HEAD_LINEAR, CACHE_WRITE, ATTENTION, HEAD_LINEAR. */
static SL_CUDA_RUN(run) {
    const sl_cache_place place = op[ATTEND].op->u.attention.place;
    const sl_cuda_cache &cache = context->caches[place.group];
    const direct_layout layout = layout_of(op->program, op->op, op->limits);
    sl_direct_args args = {};
    args.direct = {SL_DIRECT_ALONE, place.group, layout.alone ? 0 : LEAST_SPAN, layout.pages,
                   op->limits->sequences > 1 ? op->limits->rows : 0};
    args.place = place;
    args.keys = matrix_of(op->weights[0], inputs_of(op->program, op->op), !op->op->u.head_linear.turned);
    args.values = matrix_of(op[RETURN].weights[0], layout.value_size, false);
    args.heads = layout.heads;
    args.latent = cache.value_size;
    args.turning = op->op->u.head_linear.tail;
    args.boxes = boxes_of(args.latent);
    args.matrices = op->scratch + layout.matrices;
    args.to.pages = op->scratch;
    args.to.table = (int32_t *)(void *)(op->scratch + layout.table);
    args.to.page_bytes = args.to.layer_bytes = layout.page_bytes;
    args.to.key_bytes = 2 * (uint64_t)layout.key_size;
    args.to.value_bytes = 2 * (uint64_t)layout.value_size;
    args.to.values = layout.values;
    args.to.kv_heads = layout.heads;
    args.to.key_size = layout.key_size;
    args.to.value_size = layout.value_size;
    args.to.type = cache.type;
    cudaError_t code = op[WRITE].kernel->run(context, op + WRITE, stream);
    code = code ? code : sl_direct_expand(context, &args, stream);
    code = code ? code : run_direct(context, op, &args, stream);
    return code || layout.alone ? code : run_absorbed(context, op, args.direct, stream);
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    return facts->has_wgmma ? sl_direct_expand_prepare() : cudaSuccess;
}

static const sl_cuda_fusion FUSIONS[] = {
    {.fusion = {.name = "latent-direct/cuda",
                .numeric_class = "direct/wgmma128",
                .count = 4,
                .ops = {SL_OP_HEAD_LINEAR, SL_OP_CACHE_WRITE, SL_OP_ATTENTION, SL_OP_HEAD_LINEAR},
                .declines = declines,
                .workspace = workspace},
     .run = run},
};

SL_CUDA_FAMILY(latent_direct) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), prepare};
