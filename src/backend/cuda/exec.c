/* The executor: pools of a deployment on one GPU, its ops resolved to {launch function, pointers}, and steps
 * as graphs.
 *
 * A step is one copy of the step block's used bytes, one graph launch (or the same launches eagerly), copies
 * of the outputs to pinned memory, and an event. Kernels copy the block in front of a graph and the tokens
 * behind it (stage.cu), the copy engine does the rest. Small buckets are captured at start-up, the others
 * when they are first needed. In the first step of a captured bucket both ways run, from the same caches, and
 * what they leave in the workspace (logits and tokens among it) must be the same bits; a step can be run
 * twice because it reads and writes different state slots, writes the same keys and values again, and the
 * last tokens are put back in between. */
#include "backend/cuda/cublas.h"
#include "backend/cuda/stage.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/log.h"

#include <string.h>

typedef enum bucket_state {
    BUCKET_NEW,      /* to be captured when it is needed */
    BUCKET_CAPTURED, /* to be compared with eager in its first step */
    BUCKET_REPLAYED,
    BUCKET_EAGER,
} bucket_state;

typedef struct bucket {
    sl_cuda_op *ops;
    int32_t op_count;
    cudaGraphExec_t graph;
    bucket_state state;
} bucket;

/* Besides the pools, in device memory. */
typedef struct control {
    unsigned long long replayed, eager; /* digests of the workspace */
    int32_t last_tokens[];              /* [slot]: as they were before the step */
} control;

/* What a step in flight has in pinned memory. */
typedef struct stage {
    unsigned char *block;
    float *logits;
    int32_t *tokens;
    cudaEvent_t finished;
} stage;

struct sl_executor {
    sl_cuda_device device;
    const sl_deployment *deployment;
    sl_arena arena;
    bool no_graphs;
    unsigned char *pools[SL_POOL_COUNT]; /* on the device, but for staging: pinned host memory */
    unsigned char *block;                /* the device's copy of the step block */
    control *control;
    uint32_t *arrivals;
    unsigned long long *digests; /* pinned: replayed, eager */
    stage stages[SL_CUDA_STAGES];
    int32_t next, in_flight;  /* the stage to fill; how many before it are not waited for */
    uint64_t *weight_offsets; /* per weight use */
    bucket *buckets;
    sl_cuda_context context;
    sl_kernel_count *counts;
    int32_t count_count;
    int32_t last_bucket; /* that was submitted */
    uint64_t steps, eager_steps, replayed_steps, captured, failed;
};

/* ---- resolving ---- */

static const uint32_t element_bytes[SL_VALUE_TYPE_COUNT] = {
    [SL_VALUE_F32] = 4, [SL_VALUE_I32] = 4, [SL_VALUE_BF16] = 2, [SL_VALUE_Q8_32] = 1};

static int resolve_operand(const sl_executor *executor, const sl_lowered *lowered, const sl_operand *operand,
                           sl_cuda_operand *result, sl_error *error) {
    if (operand->value == SL_NONE) {
        return SL_OK;
    }
    const sl_value *value = &lowered->values[operand->value];
    const uint64_t offset = lowered->value_offsets[operand->value];
    if (offset == UINT64_MAX || !sl_range_inside(offset, sl_value_bytes(value, lowered->rows),
                                                 executor->deployment->pool_bytes[SL_POOL_WORKSPACE])) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: value %s lies outside the workspace", value->name);
    }
    unsigned char *start = executor->pools[SL_POOL_WORKSPACE] + offset;
    result->head = value->fixed > 0 ? (int32_t *)(void *)start : NULL;
    result->data = start + (uint64_t)value->fixed * element_bytes[value->type];
    result->row_bytes = sl_value_row_bytes(value->type, value->width);
    result->width = value->width;
    result->column = operand->column;
    result->type = value->type;
    result->rows = value->rows;
    return SL_OK;
}

/* kernel: whose layout is wanted; NULL: the file's. */
static int resolve_weight(const sl_executor *executor, int32_t index, const sl_cuda_kernel *kernel,
                          sl_cuda_weight *result, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_weight *weight = &deployment->program->weights[index];
    const bool packed = kernel && kernel->kernel.pack;
    int32_t use = 0;
    while (use < deployment->weight_count &&
           (deployment->weights[use].weight != index ||
            (deployment->weights[use].layout ? deployment->weights[use].layout->pack : NULL) !=
                (packed ? kernel->kernel.pack : NULL))) {
        use++;
    }
    if (use == deployment->weight_count) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s is used but not listed", weight->name);
    }
    result->type = packed ? kernel->packed_type : weight->type;
    if (!sl_qtype_bytes(result->type, (uint64_t)weight->columns, &result->row_bytes)) {
        return sl_fail(error, SL_ERR_INTERNAL, "weight %s: a row is no whole number of blocks", weight->name);
    }
    result->data = executor->pools[SL_POOL_WEIGHTS] + executor->weight_offsets[use];
    result->expert_bytes = deployment->weights[use].bytes / (uint64_t)weight->experts;
    result->experts = weight->experts;
    result->rows = weight->rows;
    result->columns = weight->columns;
    return SL_OK;
}

/* The weights of an op that is not LINEAR, in the order of its parameter struct. */
static int32_t op_weights(const sl_op *op, int32_t indices[2]) {
    indices[0] = indices[1] = SL_NONE;
    switch (op->kind) {
    case SL_OP_EMBED:
        indices[0] = op->u.embed.weight;
        return 1;
    case SL_OP_RMSNORM:
        indices[0] = op->u.rmsnorm.weight;
        return 1;
    case SL_OP_ROPE:
        indices[0] = op->u.rope.frequencies;
        return 1;
    case SL_OP_ATTENTION:
        indices[0] = op->u.attention.sinks;
        return 1;
    case SL_OP_ROUTER:
        indices[0] = op->u.router.bias;
        return 1;
    case SL_OP_DELTA_CONV:
        indices[0] = op->u.delta_conv.weight;
        return 1;
    case SL_OP_DELTA_SCAN:
        indices[0] = op->u.delta_scan.a_log;
        indices[1] = op->u.delta_scan.dt_bias;
        return 2;
    default:
        return 0;
    }
}

static int resolve_weights(const sl_executor *executor, const sl_op *op, sl_cuda_op *result,
                           sl_error *error) {
    int status = SL_OK;
    if (op->kind == SL_OP_LINEAR) {
        result->weight_count = op->u.linear.segment_count;
        for (int32_t s = 0; s < result->weight_count && !status; s++) {
            const sl_linear_segment *segment = &op->u.linear.segments[s];
            status = resolve_weight(executor, segment->weight, result->kernel, &result->weights[s], error);
            result->weights[s].column = segment->column;
            if (!status && segment->bias != SL_NONE) {
                sl_cuda_weight bias = {0};
                status = resolve_weight(executor, segment->bias, NULL, &bias, error);
                result->weights[s].bias = (const float *)(const void *)bias.data;
            }
        }
        return status;
    }
    int32_t indices[2];
    result->weight_count = op_weights(op, indices);
    for (int32_t i = 0; i < result->weight_count && !status; i++) {
        if (indices[i] != SL_NONE) {
            status = resolve_weight(executor, indices[i], NULL, &result->weights[i], error);
        }
    }
    return status;
}

/* One count per kernel that any bucket uses; `counts` has room for all ops. */
static sl_kernel_count *count_of(sl_executor *executor, const sl_kernel *kernel) {
    for (int32_t i = 0; i < executor->count_count; i++) {
        if (executor->counts[i].kernel == kernel) {
            return &executor->counts[i];
        }
    }
    executor->counts[executor->count_count].kernel = kernel;
    return &executor->counts[executor->count_count++];
}

static int resolve_scratch(const sl_executor *executor, const sl_lowered *lowered, int32_t index,
                           sl_cuda_op *result, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_kernel *kernel = &result->kernel->kernel;
    if (!kernel->workspace) {
        return SL_OK;
    }
    const sl_kernel_query query = {.program = deployment->program,
                                   .values = lowered->values,
                                   .op = result->op,
                                   .rows = lowered->rows,
                                   .limits = &deployment->limits};
    if (!sl_range_inside(lowered->scratch_offsets[index], kernel->workspace(kernel, &query),
                         deployment->pool_bytes[SL_POOL_WORKSPACE])) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: the scratch of %s lies outside the workspace",
                       kernel->name);
    }
    result->scratch = executor->pools[SL_POOL_WORKSPACE] + lowered->scratch_offsets[index];
    return SL_OK;
}

static int resolve_op(sl_executor *executor, const sl_lowered *lowered, int32_t index, sl_cuda_op *result,
                      sl_error *error) {
    const sl_op *op = &lowered->ops[index];
    const int32_t rows = lowered->rows[SL_ROWS_STEP], sequences = executor->deployment->limits.sequences;
    int status = SL_OK;
    result->op = op;
    result->kernel = (const sl_cuda_kernel *)(const void *)lowered->kernels[index];
    result->program = executor->deployment->program;
    result->rows = lowered->rows;
    if (lowered->fusions && lowered->fusions[index]) {
        result->fusion = (const sl_cuda_fusion *)(const void *)lowered->fusions[index];
    }
    result->run_length = result->fusion ? result->fusion->fusion.count : 1;
    for (int i = 0; i < SL_OP_OUTPUTS && lowered->unread; i++) {
        result->unread[i] = lowered->unread[index][i];
    }
    result->spans = rows < sequences ? rows : sequences;
    for (int i = 0; i < SL_OP_INPUTS && !status; i++) {
        status = resolve_operand(executor, lowered, &op->in[i], &result->in[i], error);
    }
    for (int i = 0; i < SL_OP_OUTPUTS && !status; i++) {
        status = resolve_operand(executor, lowered, &op->out[i], &result->out[i], error);
    }
    if (!status) {
        status = resolve_weights(executor, op, result, error);
    }
    if (!status) {
        status = resolve_scratch(executor, lowered, index, result, error);
    }
    result->counted = op->out[0].value != SL_NONE ? result->out[0].rows : SL_ROWS_STEP;
    result->count = count_of(executor, &result->kernel->kernel);
    if (!status && result->kernel->prepare) {
        status = result->kernel->prepare(&executor->context, result, error);
    }
    return status;
}

/* Is every value written in the list before it is read? If not, somebody else fills it (a test of one op),
 * and the list may not give the same when it is run twice. `written` has room for all values. */
static bool is_self_contained(const sl_lowered *lowered, bool *written) {
    memset(written, 0, (size_t)lowered->value_count * sizeof *written);
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        for (int in = 0; in < SL_OP_INPUTS; in++) {
            if (op->in[in].value != SL_NONE && !written[op->in[in].value]) {
                return false;
            }
        }
        for (int out = 0; out < SL_OP_OUTPUTS; out++) {
            if (op->out[out].value != SL_NONE) {
                written[op->out[out].value] = true;
            }
        }
    }
    return true;
}

static int resolve_bucket(sl_executor *executor, int32_t index, sl_error *error) {
    const sl_lowered *lowered = &executor->deployment->buckets[index];
    bucket *bucket = &executor->buckets[index];
    bucket->op_count = lowered->op_count;
    bucket->ops = sl_arena_alloc(&executor->arena, (size_t)lowered->op_count, sizeof(sl_cuda_op));
    bool *written = sl_arena_alloc(&executor->arena, (size_t)lowered->value_count, sizeof *written);
    if (!bucket->ops || !written) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the op list");
    }
    bucket->state = !executor->no_graphs && is_self_contained(lowered, written) ? BUCKET_NEW : BUCKET_EAGER;
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const int status = resolve_op(executor, lowered, i, &bucket->ops[i], error);
        if (status) {
            return status;
        }
    }
    return SL_OK;
}

static int resolve_buckets(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    uint64_t ops = 0;
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        ops += (uint64_t)deployment->buckets[b].op_count;
    }
    executor->buckets = sl_arena_alloc(&executor->arena, (size_t)deployment->bucket_count, sizeof(bucket));
    executor->counts = sl_arena_alloc(&executor->arena, (size_t)ops, sizeof(sl_kernel_count));
    if (!executor->buckets || !executor->counts) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the op list");
    }
    int status = SL_OK;
    for (int32_t b = 0; b < deployment->bucket_count && !status; b++) {
        status = resolve_bucket(executor, b, error);
    }
    return status;
}

/* ---- pools ---- */

static int make_pools(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    int status = SL_OK;
    for (int pool = 0; pool < SL_POOL_COUNT && !status; pool++) {
        const uint64_t bytes = deployment->pool_bytes[pool];
        void *memory = NULL;
        if (pool == SL_POOL_STAGING) {
            status = sl_cuda_malloc_host(&executor->device, bytes, &memory, error);
        } else {
            status = sl_cuda_malloc(&executor->device, bytes, &memory, error);
        }
        executor->pools[pool] = memory;
        if (!status && pool == SL_POOL_STAGING) {
            memset(memory, 0, bytes);
        } else if (!status && bytes > 0 && pool != SL_POOL_WEIGHTS) {
            status = SL_CUDA(cudaMemsetAsync(memory, 0, bytes, executor->device.stream), error);
        }
    }
    const uint64_t slots = (uint64_t)deployment->limits.sequences * sizeof(int32_t);
    if (!status) {
        status = sl_cuda_malloc(&executor->device, deployment->step.bytes, (void **)&executor->block, error);
    }
    if (!status) {
        status = SL_CUDA(cudaMemsetAsync(executor->block, 0, deployment->step.bytes, executor->device.stream),
                         error);
    }
    if (!status) {
        status =
            sl_cuda_malloc(&executor->device, sizeof(control) + slots, (void **)&executor->control, error);
    }
    const uint64_t arrivals = SL_CUDA_ARRIVALS * sizeof(uint32_t);
    if (!status) {
        status = sl_cuda_malloc(&executor->device, arrivals, (void **)&executor->arrivals, error);
    }
    if (!status) {
        status = SL_CUDA(cudaMemsetAsync(executor->arrivals, 0, arrivals, executor->device.stream), error);
    }
    if (!status) {
        status = sl_cuda_malloc_host(&executor->device, 2 * sizeof *executor->digests,
                                     (void **)&executor->digests, error);
    }
    return status;
}

static void make_cache(const sl_executor *executor, int32_t group, int32_t *table, sl_cuda_cache *cache) {
    const sl_cache_layout *layout = &executor->deployment->caches[group];
    const sl_cache_group *shape = &executor->deployment->program->groups[group];
    cache->pages = executor->pools[SL_POOL_CACHE] + executor->deployment->cache_offsets[group];
    cache->table = table;
    cache->page_bytes = layout->page_bytes;
    cache->layer_bytes = layout->layer_bytes;
    cache->key_bytes = layout->row_key_bytes;
    cache->value_bytes = layout->row_value_bytes;
    cache->kv_heads = shape->kv_heads;
    cache->key_size = shape->key_size;
    cache->value_size = shape->value_size;
    cache->window = shape->window;
    cache->type = layout->type;
}

/* Page tables [group][slot][width], all without pages, then the last tokens [slot]. Staging: a block per
 * step in flight, then logits and tokens of each. */
static int make_context(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_program *program = deployment->program;
    const sl_step_layout *layout = &deployment->step;
    sl_cuda_context *context = &executor->context;
    const uint64_t sequences = (uint64_t)deployment->limits.sequences;
    const uint64_t entries = sequences * (uint64_t)sl_table_width(deployment->limits.context);
    const uint64_t tables = entries * (uint64_t)program->group_count;
    const uint64_t logits =
        (uint64_t)deployment->limits.outputs * (uint64_t)program->vocabulary * sizeof(float);
    const uint64_t tokens = (uint64_t)deployment->limits.outputs * sizeof(int32_t);
    if ((tables + sequences) * sizeof(int32_t) > deployment->pool_bytes[SL_POOL_TABLES] ||
        SL_CUDA_STAGES * (layout->bytes + logits + tokens) > deployment->pool_bytes[SL_POOL_STAGING] ||
        (uint64_t)deployment->state_slots * program->state_bytes > deployment->pool_bytes[SL_POOL_STATE]) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: the pool of tables, state or staging is too small");
    }
    for (int i = 0; i < SL_CUDA_STAGES; i++) {
        /* The blocks first: they begin at multiples of 64. */
        unsigned char *results = executor->pools[SL_POOL_STAGING] + SL_CUDA_STAGES * layout->bytes +
                                 (uint64_t)i * (logits + tokens);
        executor->stages[i].block = executor->pools[SL_POOL_STAGING] + (uint64_t)i * layout->bytes;
        executor->stages[i].logits = (float *)(void *)results;
        executor->stages[i].tokens = (int32_t *)(void *)(results + logits);
    }
    context->header = sl_step_head(executor->block);
    context->rows = sl_step_rows(layout, executor->block);
    context->spans = sl_step_spans(layout, executor->block);
    context->table_changes = sl_step_table_changes(layout, executor->block);
    context->page_copies = sl_step_page_copies(layout, executor->block);
    context->outputs = sl_step_outputs(layout, executor->block);
    context->table_width = sl_table_width(deployment->limits.context);
    context->experts_used = program->experts_used;
    context->arrivals = executor->arrivals;
    context->state = executor->pools[SL_POOL_STATE];
    context->state_bytes = program->state_bytes;
    int32_t *table = (int32_t *)(void *)executor->pools[SL_POOL_TABLES];
    context->last_tokens = table + tables;
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_layout *cache = &deployment->caches[g];
        if (!sl_range_inside(deployment->cache_offsets[g], (uint64_t)cache->pages * cache->page_bytes,
                             deployment->pool_bytes[SL_POOL_CACHE])) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: the pages of group %s lie outside the cache",
                           program->groups[g].name);
        }
        make_cache(executor, g, table + (uint64_t)g * entries, &context->caches[g]);
    }
    /* Each byte of SL_NONE is 255. */
    return tables == 0
               ? SL_OK
               : SL_CUDA(cudaMemsetAsync(table, 255, tables * sizeof(int32_t), executor->device.stream),
                         error);
}

/* ---- running ---- */

static int run_eagerly(sl_executor *executor, const bucket *bucket, sl_error *error) {
    for (int32_t i = 0; i < bucket->op_count; i += bucket->ops[i].run_length) {
        const sl_cuda_op *op = &bucket->ops[i];
        const int status = sl_cuda_result(
            sl_cuda_inject() ? cudaErrorUnknown
                             : sl_cuda_run_of(op)(&executor->context, op, executor->device.stream),
            "launch", error);
        if (status) {
            sl_fail_prefix(error, sl_cuda_name_of(op));
            return status;
        }
    }
    return SL_OK;
}

static void give_up_graph(sl_executor *executor, bucket *bucket, const char *why) {
    const int32_t index = (int32_t)(bucket - executor->buckets);
    if (bucket->graph) {
        cudaGraphExecDestroy(bucket->graph);
        bucket->graph = NULL;
        executor->captured--;
    }
    cudaGetLastError();
    bucket->state = BUCKET_EAGER;
    executor->failed++;
    sl_log(SL_LOG_WARNING, "cuda: bucket %d (%d rows) runs eagerly: %s", index,
           executor->deployment->buckets[index].rows[SL_ROWS_STEP], why);
}

static int record(sl_executor *executor, const bucket *bucket, cudaGraph_t *graph, sl_error *error) {
    int status =
        SL_CUDA(cudaStreamBeginCapture(executor->device.stream, cudaStreamCaptureModeThreadLocal), error);
    if (status) {
        return status;
    }
    status = run_eagerly(executor, bucket, error);
    /* The capture must end in any case; it is an error of its own only if all went well before. */
    sl_error ending = {.code = SL_OK};
    const int ended =
        sl_cuda_result(cudaStreamEndCapture(executor->device.stream, graph), "cudaStreamEndCapture", &ending);
    if (!status && ended) {
        *error = ending;
        status = ended;
    }
    return status;
}

/* On failure the bucket is eager from now on. */
static void capture(sl_executor *executor, bucket *bucket) {
    sl_error error = {.code = SL_OK};
    cudaGraph_t graph = NULL;
    int status = record(executor, bucket, &graph, &error);
    if (!status) {
        executor->device.allocations++; /* a graph takes device memory */
        status = SL_CUDA(cudaGraphInstantiate(&bucket->graph, graph, 0), &error);
    }
    if (!status) {
        executor->captured++;
        bucket->state = BUCKET_CAPTURED;
        status = SL_CUDA(cudaGraphUpload(bucket->graph, executor->device.stream), &error);
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    if (status) {
        give_up_graph(executor, bucket, error.message);
    }
}

static int copy_last_tokens(sl_executor *executor, bool back, sl_error *error) {
    const uint64_t bytes = (uint64_t)executor->deployment->limits.sequences * sizeof(int32_t);
    int32_t *saved = executor->control->last_tokens, *tokens = executor->context.last_tokens;
    return SL_CUDA(cudaMemcpyAsync(back ? tokens : saved, back ? saved : tokens, bytes,
                                   cudaMemcpyDeviceToDevice, executor->device.stream),
                   error);
}

static int digest(sl_executor *executor, unsigned long long *result, sl_error *error) {
    return SL_CUDA(sl_cuda_digest(executor->pools[SL_POOL_WORKSPACE],
                                  executor->deployment->pool_bytes[SL_POOL_WORKSPACE], result,
                                  executor->device.stream),
                   error);
}

/* The first step of a captured bucket: replayed, then run eagerly, so that what counts is eager's. Only a
 * failure of the eager run is an error. */
static int compare_ways(sl_executor *executor, bucket *bucket, sl_error *error) {
    control *control = executor->control;
    sl_error why = {.code = SL_OK};
    int status = copy_last_tokens(executor, false, error);
    if (!status) {
        status = SL_CUDA(cudaMemsetAsync(control, 0, sizeof *control, executor->device.stream), error);
    }
    if (status) {
        return status;
    }
    int replayed = SL_CUDA(cudaGraphLaunch(bucket->graph, executor->device.stream), &why);
    if (!replayed) {
        replayed = digest(executor, &control->replayed, &why);
    }
    status = copy_last_tokens(executor, true, error);
    if (!status) {
        status = run_eagerly(executor, bucket, error);
    }
    if (!status) {
        status = digest(executor, &control->eager, error);
    }
    if (!status) {
        status = SL_CUDA(cudaMemcpyAsync(executor->digests, control, 2 * sizeof *executor->digests,
                                         cudaMemcpyDeviceToHost, executor->device.stream),
                         error);
    }
    if (!status) {
        status = sl_cuda_synchronize(&executor->device, error);
    }
    if (status) {
        return status;
    }
    if (replayed || executor->digests[0] != executor->digests[1]) {
        give_up_graph(executor, bucket, replayed ? why.message : "its replay differs from the eager run");
    } else {
        bucket->state = BUCKET_REPLAYED;
    }
    return SL_OK;
}

static int run_bucket(sl_executor *executor, bucket *bucket, sl_error *error) {
    if (bucket->state == BUCKET_NEW) {
        capture(executor, bucket);
    }
    if (bucket->state == BUCKET_REPLAYED) {
        executor->replayed_steps++;
        return SL_CUDA(cudaGraphLaunch(bucket->graph, executor->device.stream), error);
    }
    executor->eager_steps++;
    return bucket->state == BUCKET_CAPTURED ? compare_ways(executor, bucket, error)
                                            : run_eagerly(executor, bucket, error);
}

/* The used bytes of the stage's block, to the device. A graph begins when the kernel in front of it has
 * ended; the first launches of an eager run may begin earlier, and read the block before they wait for
 * anything, so that no kernel can bring it there. */
static int bring_block(sl_executor *executor, const stage *stage, bool before_graph, sl_error *error) {
    const uint64_t bytes = sl_step_used_bytes(&executor->deployment->step, stage->block);
    cudaStream_t stream = executor->device.stream;
    return before_graph ? SL_CUDA(sl_cuda_copy_staged(executor->block, stage->block, bytes, stream), error)
                        : SL_CUDA(cudaMemcpyAsync(executor->block, stage->block, bytes,
                                                  cudaMemcpyHostToDevice, stream),
                                  error);
}

/* NULL: the bucket does not make it. */
static const unsigned char *result_of(const sl_executor *executor, const sl_lowered *lowered, int32_t value) {
    return value == SL_NONE || lowered->value_offsets[value] == UINT64_MAX
               ? NULL
               : executor->pools[SL_POOL_WORKSPACE] + lowered->value_offsets[value];
}

/* Logits are many bytes, and few steps want them: the copy engine leaves the processors to others. */
static int copy_results(sl_executor *executor, const sl_lowered *lowered, const stage *stage,
                        sl_error *error) {
    const sl_program *program = executor->deployment->program;
    const sl_step_header *header = sl_step_head(stage->block);
    const uint64_t outputs = (uint64_t)header->outputs;
    const unsigned char *tokens = result_of(executor, lowered, program->tokens);
    const unsigned char *logits = result_of(executor, lowered, program->logits);
    int status = SL_OK;
    if (tokens && outputs > 0) {
        status = SL_CUDA(
            sl_cuda_copy_staged(stage->tokens, tokens, outputs * sizeof(int32_t), executor->device.stream),
            error);
    }
    if (!status && logits && outputs > 0 && header->want_logits) {
        status = SL_CUDA(cudaMemcpyAsync(stage->logits, logits,
                                         outputs * (uint64_t)program->vocabulary * sizeof(float),
                                         cudaMemcpyDeviceToHost, executor->device.stream),
                         error);
    }
    return status;
}

static int run_step(sl_executor *executor, int32_t index, sl_error *error) {
    bucket *bucket = &executor->buckets[index];
    const stage *stage = &executor->stages[executor->next];
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = bring_block(executor, stage, bucket->state == BUCKET_REPLAYED, error);
    }
    if (!status) {
        status = run_bucket(executor, bucket, error);
    }
    if (!status) {
        status = copy_results(executor, &executor->deployment->buckets[index], stage, error);
    }
    return status ? status : SL_CUDA(cudaEventRecord(stage->finished, executor->device.stream), error);
}

/* Remembers the error: nothing that comes after it can be trusted. */
static int fault(sl_executor *executor, const sl_error *why, sl_error *error) {
    executor->device.fault = *why;
    executor->device.fault.code = SL_ERR_DEVICE;
    executor->in_flight = 0;
    return sl_fail(error, SL_ERR_DEVICE, "%s", why->message);
}

static int check_fault(const sl_executor *executor, sl_error *error) {
    return executor->device.fault.code ? sl_fail(error, SL_ERR_DEVICE, "%s", executor->device.fault.message)
                                       : SL_OK;
}

static void *step_block(sl_executor *executor) {
    return executor->stages[executor->next].block;
}

#ifndef NDEBUG
/* What a step block may hold, and besides that the pools' ends, which only a deployment knows. */
static int check_block(const sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    void *block = executor->stages[executor->next].block;
    const sl_step_header *header = sl_step_head(block);
    const int status = sl_step_check(&deployment->step, deployment->program, block, error);
    for (int32_t i = 0; i < header->table_changes && !status; i++) {
        const sl_table_change *change = &sl_step_table_changes(&deployment->step, block)[i];
        if (change->page >= deployment->caches[change->group].pages) {
            return sl_fail(error, SL_ERR_INVALID, "step: table change %d: page %d does not exist", (int)i,
                           (int)change->page);
        }
    }
    for (int32_t i = 0; i < header->page_copies && !status; i++) {
        const sl_page_copy *copy = &sl_step_page_copies(&deployment->step, block)[i];
        const int32_t pages = deployment->caches[copy->group].pages;
        if (copy->source >= pages || copy->target >= pages) {
            return sl_fail(error, SL_ERR_INVALID, "step: page copy %d: page %d or %d does not exist", (int)i,
                           (int)copy->source, (int)copy->target);
        }
    }
    for (int32_t i = 0; i < header->spans && !status; i++) {
        const sl_step_span *span = &sl_step_spans(&deployment->step, block)[i];
        if (span->state_read >= deployment->state_slots || span->state_write >= deployment->state_slots) {
            return sl_fail(error, SL_ERR_INVALID, "step: span %d: state slot %d or %d does not exist", (int)i,
                           (int)span->state_read, (int)span->state_write);
        }
    }
    return status;
}
#endif

static int submit(sl_executor *executor, int32_t index, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_step_header *header = sl_step_head(executor->stages[executor->next].block);
    int status = check_fault(executor, error);
    if (status) {
        return status;
    }
    if (index < 0 || index >= deployment->bucket_count) {
        return sl_fail(error, SL_ERR_INVALID, "step: there is no bucket %d", (int)index);
    }
    if (executor->in_flight == SL_CUDA_STAGES) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: %d are under way already", SL_CUDA_STAGES);
    }
    const sl_lowered *lowered = &deployment->buckets[index];
    if (header->rows < 0 || header->rows > lowered->rows[SL_ROWS_STEP] || header->outputs < 0 ||
        header->outputs > lowered->rows[SL_ROWS_OUTPUT] || header->spans < 0 ||
        header->spans > deployment->limits.sequences || header->table_changes < 0 ||
        header->table_changes > deployment->step.max_table_changes || header->adjustments < 0 ||
        header->adjustments > deployment->limits.adjustments) {
        return sl_fail(error, SL_ERR_INVALID, "step: %d rows, %d outputs, %d sequences do not fit bucket %d",
                       (int)header->rows, (int)header->outputs, (int)header->spans, (int)index);
    }
#ifndef NDEBUG
    status = check_block(executor, error);
    if (status) {
        return status;
    }
#endif
    sl_error why = {.code = SL_OK};
    status = run_step(executor, index, &why);
    if (status) {
        return fault(executor, &why, error);
    }
    const int32_t counts[SL_ROWS_COUNT] = {[SL_ROWS_STEP] = header->rows,
                                           [SL_ROWS_EXPERT] =
                                               header->rows * deployment->program->experts_used,
                                           [SL_ROWS_OUTPUT] = header->outputs};
    const bucket *bucket = &executor->buckets[index];
    for (int32_t i = 0; i < bucket->op_count; i++) {
        bucket->ops[i].count->calls++;
        bucket->ops[i].count->rows += (uint64_t)counts[bucket->ops[i].counted];
    }
    executor->steps++;
    executor->last_bucket = index;
    executor->next = (executor->next + 1) % SL_CUDA_STAGES;
    executor->in_flight++;
    return SL_OK;
}

static int32_t oldest(const sl_executor *executor) {
    return (executor->next + SL_CUDA_STAGES - executor->in_flight) % SL_CUDA_STAGES;
}

/* The stage before the oldest in flight. */
static int32_t waited_for(const sl_executor *executor) {
    return (oldest(executor) + SL_CUDA_STAGES - 1) % SL_CUDA_STAGES;
}

static int wait_for_step(sl_executor *executor, sl_error *error) {
    int status = check_fault(executor, error);
    if (status || executor->in_flight == 0) {
        return status;
    }
    sl_error why = {.code = SL_OK};
    status = SL_CUDA(cudaEventSynchronize(executor->stages[oldest(executor)].finished), &why);
    executor->in_flight--;
    return status ? fault(executor, &why, error) : SL_OK;
}

static const float *logits(sl_executor *executor) {
    return executor->stages[waited_for(executor)].logits;
}

static const int32_t *tokens(sl_executor *executor) {
    return executor->stages[waited_for(executor)].tokens;
}

/* ---- pools ---- */

typedef struct range {
    sl_pool_kind pool;
    uint64_t offset, bytes;
} range;

/* Out of the pool when `to` is not NULL, else into it. */
static int copy_pool(sl_executor *executor, const range *range, void *to, const void *from, sl_error *error) {
    int status = check_fault(executor, error);
    if (status) {
        return status;
    }
    if ((unsigned)range->pool >= SL_POOL_COUNT ||
        !sl_range_inside(range->offset, range->bytes, executor->deployment->pool_bytes[range->pool])) {
        return sl_fail(error, SL_ERR_INVALID, "%llu bytes at %llu lie outside pool %d",
                       (unsigned long long)range->bytes, (unsigned long long)range->offset, (int)range->pool);
    }
    unsigned char *at = executor->pools[range->pool] + range->offset;
    sl_error why = {.code = SL_OK};
    status = SL_CUDA(cudaSetDevice(executor->device.index), &why);
    if (!status) {
        status = SL_CUDA(cudaMemcpyAsync(to ? to : (void *)at, to ? (const void *)at : from, range->bytes,
                                         cudaMemcpyDefault, executor->device.stream),
                         &why);
    }
    if (!status) {
        status = SL_CUDA(cudaStreamSynchronize(executor->device.stream), &why);
    }
    return status ? fault(executor, &why, error) : SL_OK;
}

static int read_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                     sl_error *error) {
    const range range = {pool, offset, bytes};
    return copy_pool(executor, &range, data, NULL, error);
}

static int write_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, const void *data,
                      uint64_t bytes, sl_error *error) {
    const range range = {pool, offset, bytes};
    return copy_pool(executor, &range, NULL, data, error);
}

static void counters(const sl_executor *executor, sl_counters *result) {
    memset(result, 0, sizeof *result);
    result->steps = executor->steps;
    result->eager_steps = executor->eager_steps;
    result->replayed_steps = executor->replayed_steps;
    result->device_allocations = executor->device.allocations;
    result->synchronisations = executor->device.synchronisations;
    result->captured_buckets = executor->captured;
    result->failed_captures = executor->failed;
    result->kernels = executor->counts;
    result->kernel_count = executor->count_count;
}

static int profile_step(sl_executor *executor, sl_profile *profile, sl_error *error) {
    int status = check_fault(executor, error);
    if (status) {
        return status;
    }
    if (executor->steps == 0) {
        return sl_fail(error, SL_ERR_INVALID, "profile: no step has run yet");
    }
    const bucket *bucket = &executor->buckets[executor->last_bucket];
    const sl_cuda_list list = {&executor->context, bucket->ops, bucket->op_count};
    sl_error why = {.code = SL_OK};
    status = sl_cuda_profile(&executor->device, &list, executor->pools[SL_POOL_WEIGHTS],
                             executor->deployment->pool_bytes[SL_POOL_WEIGHTS], profile, &why);
    return status ? fault(executor, &why, error) : SL_OK;
}

/* ---- deploying ---- */

/* Also of one that was made in part. Errors do not matter any more. */
static void destroy_executor(sl_executor *executor) {
    if (!executor) {
        return;
    }
    cudaSetDevice(executor->device.index);
    if (executor->device.stream) {
        cudaStreamSynchronize(executor->device.stream);
    }
    for (int32_t b = 0; executor->buckets && b < executor->deployment->bucket_count; b++) {
        if (executor->buckets[b].graph) {
            cudaGraphExecDestroy(executor->buckets[b].graph);
        }
    }
    for (int pool = 0; pool < SL_POOL_COUNT; pool++) {
        if (pool == SL_POOL_STAGING) {
            sl_cuda_free_host(executor->pools[pool]);
        } else {
            sl_cuda_free(executor->pools[pool]);
        }
    }
    sl_cuda_cublas_destroy(executor->context.blas);
    sl_cuda_free(executor->block);
    sl_cuda_free(executor->control);
    sl_cuda_free(executor->arrivals);
    sl_cuda_free_host(executor->digests);
    for (int i = 0; i < SL_CUDA_STAGES; i++) {
        if (executor->stages[i].finished) {
            cudaEventDestroy(executor->stages[i].finished);
        }
    }
    if (executor->device.stream) {
        cudaStreamDestroy(executor->device.stream);
    }
    cudaGetLastError();
    sl_arena_free(&executor->arena);
    sl_free(executor);
}

/* The copies of a step by kernels, in words of 16 bytes and of 4: of an empty step's block, which the
 * device's copy is anyway, and of one token. */
static int warm_up_copies(sl_executor *executor, sl_error *error) {
    int status = bring_block(executor, &executor->stages[0], true, error);
    if (!status) {
        status = SL_CUDA(sl_cuda_copy_staged(executor->stages[0].tokens, executor->context.last_tokens,
                                             sizeof(int32_t), executor->device.stream),
                         error);
    }
    return status;
}

/* Every bucket once with the empty step that the block holds now: no kernel has to be loaded later, and a
 * launch that the device refuses fails here. Then the small buckets are captured. */
static int warm_up(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    int status = SL_OK;
    for (int32_t b = 0; b < deployment->bucket_count && !status; b++) {
        status = run_eagerly(executor, &executor->buckets[b], error);
    }
    if (!status) {
        status = digest(executor, &executor->control->eager, error);
    }
    if (!status) {
        status = warm_up_copies(executor, error);
    }
    for (int32_t b = 0; b < deployment->bucket_count && !status; b++) {
        const bool small = deployment->buckets[b].rows[SL_ROWS_STEP] <= deployment->limits.sequences;
        if (small && executor->buckets[b].state == BUCKET_NEW) {
            capture(executor, &executor->buckets[b]);
        }
    }
    return status ? status : sl_cuda_synchronize(&executor->device, error);
}

static int build(sl_executor *executor, const sl_progress *progress, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    if (!status) {
        status = SL_CUDA(cudaStreamCreateWithFlags(&executor->device.stream, cudaStreamNonBlocking), error);
    }
    int major = 0;
    if (!status) {
        status = SL_CUDA(
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, executor->device.index), error);
        executor->context.dependent_launches = major >= 9;
    }
    if (!status) {
        status = SL_CUDA(cudaDeviceGetAttribute(&executor->context.processors, cudaDevAttrMultiProcessorCount,
                                                executor->device.index),
                         error);
    }
    if (!status) {
        status =
            SL_CUDA(cudaDeviceGetAttribute(&executor->context.shared_bytes,
                                           cudaDevAttrMaxSharedMemoryPerBlockOptin, executor->device.index),
                    error);
    }
    for (int i = 0; i < SL_CUDA_STAGES && !status; i++) {
        status =
            SL_CUDA(cudaEventCreateWithFlags(&executor->stages[i].finished, cudaEventDisableTiming), error);
    }
    if (!status) {
        status = make_pools(executor, error);
    }
    if (!status) {
        status = make_context(executor, error);
    }
    if (!status) {
        executor->weight_offsets = sl_arena_alloc(&executor->arena, (size_t)deployment->weight_count,
                                                  sizeof *executor->weight_offsets);
        status = executor->weight_offsets
                     ? sl_cuda_upload(&executor->device, deployment, executor->pools[SL_POOL_WEIGHTS],
                                      executor->weight_offsets, progress, error)
                     : sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the list of weights");
    }
    if (!status) {
        status = resolve_buckets(executor, error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_attention_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_flash_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_delta_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_matmul_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_sample_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_matvec_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_mmq_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_experts_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_skinny_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_thin_prepare(executor->device.index), error);
    }
    if (!status) {
        status = SL_CUDA(sl_cuda_planes_prepare(executor->device.index), error);
    }
    return status ? status : warm_up(executor, error);
}

static int deploy(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                  sl_executor **result, sl_error *error) {
    *result = NULL;
    sl_executor *executor = sl_alloc_zero(1, sizeof *executor);
    if (!executor) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the executor");
    }
    executor->deployment = deployment;
    executor->device.index = backend->options.device;
    executor->no_graphs = backend->options.no_graphs;
    const int status = build(executor, progress, error);
    if (status) {
        destroy_executor(executor);
        return status;
    }
    *result = executor;
    return SL_OK;
}

/* ---- the backend ---- */

static const sl_kernel *const *kernels(const sl_backend *backend, int32_t *count) {
    (void)backend;
    return sl_cuda_registry(count);
}

static const sl_fusion *const *fusions(const sl_backend *backend, int32_t *count) {
    (void)backend;
    return sl_cuda_fusions(count);
}

/* Part of what is free is left to the driver: graphs, kernels' local memory. */
static uint64_t memory_available(const sl_backend *backend) {
    enum { RESERVE = 256 << 20 };
    size_t available = 0, total = 0;
    if (cudaSetDevice(backend->options.device) != cudaSuccess ||
        cudaMemGetInfo(&available, &total) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return available > RESERVE ? available - RESERVE : 0;
}

static void destroy(sl_backend *backend) {
    sl_free(backend);
}

const sl_backend_functions sl_cuda_functions = {
    .kernels = kernels,
    .fusions = fusions,
    .deploy = deploy,
    .destroy_executor = destroy_executor,
    .step_block = step_block,
    .submit = submit,
    .wait = wait_for_step,
    .logits = logits,
    .tokens = tokens,
    .read = read_pool,
    .write = write_pool,
    .counters = counters,
    .profile = profile_step,
    .memory_available = memory_available,
    .destroy = destroy,
};
