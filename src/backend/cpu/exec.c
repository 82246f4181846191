#define _GNU_SOURCE
/* The CPU backend: makes the pools of a deployment, resolves its ops to {function, pointers}, and runs steps.
 */
#include "backend/cpu/group.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/peak.h"
#include "backend/host_memory.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/map.h"

#include <stdio.h>
#include <string.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <unistd.h>

typedef struct cpu_backend {
    sl_backend base; /* first */
    const sl_kernel *kernels[SL_CPU_KERNELS_MAX];
    int32_t kernel_count;
    char description[128];
} cpu_backend;

typedef struct bucket {
    sl_cpu_op *ops;
    int32_t op_count;
    _Atomic int32_t *cursors; /* [op_count][2] */
} bucket;

struct sl_executor {
    const sl_deployment *deployment;
    sl_arena arena;
    sl_pool *threads;
    unsigned char *pools[SL_POOL_COUNT];
    const unsigned char **weights; /* per weight use: its packed copy, or the file's bytes */
    bucket *buckets;
    sl_cpu_taken *taken;          /* [2][threads]: ops, or runs of them, have the one and the other in turn */
    int32_t running;              /* bucket of the last step */
    int32_t first, end;           /* ops of its section that runs, or ran last */
    sl_step_header header;        /* of the last step: a profile runs it again */
    sl_cpu_context context, tail; /* of all rows, and of those with outputs alone */
    sl_kernel_count *counts;
    int32_t count_count;
    uint64_t steps;
};

/* ---- resolving
 * ---------------------------------------------------------------------------------------------- */

static const uint32_t element_bytes[SL_VALUE_TYPE_COUNT] = {
    [SL_VALUE_F32] = 4,   [SL_VALUE_I32] = 4,      [SL_VALUE_BF16] = 2,
    [SL_VALUE_Q8_32] = 1, [SL_VALUE_E4M3_128] = 1, [SL_VALUE_Q8_256] = 1};

static int resolve_operand(const sl_executor *executor, const sl_lowered *lowered, const sl_operand *operand,
                           sl_cpu_operand *result, sl_error *error) {
    memset(result, 0, sizeof *result);
    if (operand->value == SL_NONE) {
        return SL_OK;
    }
    const sl_value *value = &lowered->values[operand->value];
    const uint64_t offset = lowered->value_offsets[operand->value];
    const uint64_t bytes = sl_value_bytes(value, lowered->rows);
    if (offset == UINT64_MAX ||
        !sl_range_inside(offset, bytes, executor->deployment->pool_bytes[SL_POOL_WORKSPACE])) {
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

/* The copy of a weight that a kernel reads: one that its own pack function made, or the file's bytes. */
static int resolve_weight(const sl_executor *executor, int32_t index, const sl_kernel *kernel,
                          sl_cpu_weight *result, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_weight *weight = &deployment->program->weights[index];
    uint64_t bytes = weight->bytes;
    result->type = weight->type;
    result->experts = weight->experts;
    result->rows = weight->rows;
    result->columns = weight->columns;
    result->data = weight->data;
    if (!sl_qtype_bytes(weight->type, (uint64_t)weight->columns, &result->row_bytes)) {
        return sl_fail(error, SL_ERR_INTERNAL, "weight %s: a row is no whole number of blocks", weight->name);
    }
    for (int32_t u = 0; kernel && kernel->pack && u < deployment->weight_count; u++) {
        const sl_weight_use *use = &deployment->weights[u];
        if (use->weight == index && use->layout && use->layout->pack == kernel->pack) {
            result->data = executor->weights[u];
            result->packed = true;
            result->expert_bytes = use->bytes / (uint64_t)weight->experts;
            return SL_OK;
        }
    }
    if (kernel && kernel->pack && !(kernel->takes_unpacked && executor->context.backend->options.no_repack)) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s has no copy for %s", weight->name,
                       kernel->name);
    }
    result->expert_bytes = bytes / (uint64_t)weight->experts;
    return SL_OK;
}

static int resolve_weights(const sl_executor *executor, const sl_op *op, const sl_kernel *kernel,
                           sl_cpu_op *result, sl_error *error) {
    int status = SL_OK;
    if (op->kind == SL_OP_LINEAR) {
        result->weight_count = op->u.linear.segment_count;
        for (int32_t s = 0; s < result->weight_count && !status; s++) {
            const sl_linear_segment *segment = &op->u.linear.segments[s];
            status = resolve_weight(executor, segment->weight, kernel, &result->weights[s], error);
            result->weights[s].column = segment->column;
            if (segment->bias != SL_NONE) {
                result->weights[s].bias = executor->deployment->program->weights[segment->bias].data;
            }
        }
        return status;
    }
    int32_t indices[SL_OP_WEIGHTS];
    result->weight_count = sl_op_weights(op, indices);
    for (int32_t i = 0; i < result->weight_count && !status; i++) {
        if (indices[i] != SL_NONE) {
            status = resolve_weight(executor, indices[i], NULL, &result->weights[i], error);
        }
    }
    return status;
}

/* A set of an op's own for each would be too much to make zero for every step. */
static void resolve_taken(sl_executor *executor, bucket *bucket) {
    const int32_t threads = sl_pool_threads(executor->threads);
    for (int32_t i = 0, turn = 0; i < bucket->op_count; i += bucket->ops[i].run_length, turn ^= 1) {
        bucket->ops[i].taken = executor->taken + turn * threads;
    }
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

/* An OBSERVE finds its sums by the deployment's table. */
static int check_observation(const sl_deployment *deployment, int32_t index, sl_error *error) {
    const sl_weight *weight = &deployment->program->weights[index];
    const uint64_t bytes = (uint64_t)weight->experts * ((uint64_t)weight->columns + 1) * sizeof(double);
    if (!deployment->observations || !sl_range_inside(deployment->observations[index], bytes,
                                                      deployment->pool_bytes[SL_POOL_OBSERVATIONS])) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: the sums of weight %s lie outside the observations",
                       weight->name);
    }
    return SL_OK;
}

static int resolve_op(sl_executor *executor, const sl_lowered *lowered, int32_t index, sl_cpu_op *result,
                      sl_error *error) {
    const sl_op *op = &lowered->ops[index];
    const uint64_t scratch = lowered->scratch_offsets[index];
    const uint64_t workspace = executor->deployment->pool_bytes[SL_POOL_WORKSPACE];
    int status = SL_OK;
    result->op = op;
    result->kernel = (const sl_cpu_kernel *)(const void *)lowered->kernels[index];
    result->run = result->kernel->run;
    result->run_length = lowered->fusions && lowered->fusions[index] ? lowered->fusions[index]->count : 1;
    result->counted = SL_ROWS_STEP;
    result->is_tail = sl_op_is_tail(lowered->values, op);
    for (int i = 0; i < SL_OP_INPUTS && !status; i++) {
        status = resolve_operand(executor, lowered, &op->in[i], &result->in[i], error);
    }
    for (int i = 0; i < SL_OP_OUTPUTS && !status; i++) {
        status = resolve_operand(executor, lowered, &op->out[i], &result->out[i], error);
    }
    if (!status) {
        status = resolve_weights(executor, op, lowered->kernels[index], result, error);
    }
    if (!status && op->kind == SL_OP_OBSERVE) {
        status = check_observation(executor->deployment, op->u.observe.weight, error);
    }
    if (status) {
        return status;
    }
    if (op->out[0].value != SL_NONE) {
        result->counted = result->out[0].rows;
    }
    if (result->kernel->kernel.workspace) {
        sl_kernel_query query = {.backend = executor->context.backend,
                                 .program = executor->deployment->program,
                                 .values = lowered->values,
                                 .op = op,
                                 .rows = sl_rows_of_op(lowered, op),
                                 .span_rows = sl_span_rows_of_op(lowered, op),
                                 .limits = &executor->deployment->limits};
        if (op->kind == SL_OP_COMPACT) {
            query.cache_type = executor->deployment->caches[op->u.compact.attention.place.group].type;
        } else if (op->kind == SL_OP_ATTENTION) {
            query.cache_type = executor->deployment->caches[op->u.attention.place.group].type;
        } else if (op->kind == SL_OP_RECALL) {
            query.cache_type = executor->deployment->caches[op->u.recall.place.group].type;
        } else if (op->kind == SL_OP_CACHE_WRITE) {
            query.cache_type = executor->deployment->caches[op->u.cache_write.place.group].type;
        }
        result->scratch_bytes = result->kernel->kernel.workspace(&result->kernel->kernel, &query);
        if (!sl_range_inside(scratch, result->scratch_bytes, workspace)) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: the scratch of %s lies outside the workspace",
                           result->kernel->kernel.name);
        }
        result->scratch = executor->pools[SL_POOL_WORKSPACE] + scratch;
    }
    result->count = count_of(executor, &result->kernel->kernel);
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
        return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for the op list");
    }
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        const sl_lowered *lowered = &deployment->buckets[b];
        bucket *bucket = &executor->buckets[b];
        bucket->op_count = lowered->op_count;
        bucket->ops = sl_arena_alloc(&executor->arena, (size_t)lowered->op_count, sizeof(sl_cpu_op));
        bucket->cursors = sl_arena_alloc(&executor->arena, (size_t)lowered->op_count, 2 * sizeof(int32_t));
        if (!bucket->ops || !bucket->cursors) {
            return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for the op list");
        }
        for (int32_t i = 0; i < lowered->op_count; i++) {
            bucket->ops[i].cursors = bucket->cursors + 2 * (int64_t)i;
            const int status = resolve_op(executor, lowered, i, &bucket->ops[i], error);
            if (status) {
                return status;
            }
        }
        resolve_taken(executor, bucket);
    }
    return SL_OK;
}

/* ---- pools and weights
 * -------------------------------------------------------------------------------------- */

/* On several nodes each stays on one. */
static int start_threads(int32_t threads, sl_pool **pool, sl_error *error) {
    sl_cpu_nodes nodes;
    sl_cpu_nodes_here("", &nodes);
    const int status = sl_pool_create(threads, pool, error);
    return status || nodes.count == 1 ? status : sl_pool_bind(*pool, &nodes, error);
}

static int make_threads(sl_executor *executor, sl_error *error) {
    const int32_t threads = executor->context.backend->options.threads;
    const int status = start_threads(threads, &executor->threads, error);
    executor->taken = status ? NULL : sl_alloc_zero(2 * (size_t)threads, sizeof *executor->taken);
    if (!status && !executor->taken) {
        return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for %d threads", (int)threads);
    }
    return status;
}

static int make_pools(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    for (int pool = 0; pool < SL_POOL_COUNT; pool++) {
        executor->pools[pool] = sl_alloc((size_t)deployment->pool_bytes[pool]);
        if (!executor->pools[pool]) {
            return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for a pool of %llu bytes",
                           (unsigned long long)deployment->pool_bytes[pool]);
        }
        sl_alloc_prefer_huge(executor->pools[pool], (size_t)deployment->pool_bytes[pool]);
    }
    /* The cache, the state and the weights are written before they are read. */
    memset(executor->pools[SL_POOL_WORKSPACE], 0, deployment->pool_bytes[SL_POOL_WORKSPACE]);
    memset(executor->pools[SL_POOL_TABLES], 0, deployment->pool_bytes[SL_POOL_TABLES]);
    memset(executor->pools[SL_POOL_STAGING], 0, deployment->pool_bytes[SL_POOL_STAGING]);
    memset(executor->pools[SL_POOL_OBSERVATIONS], 0, deployment->pool_bytes[SL_POOL_OBSERVATIONS]);
    return SL_OK;
}

/* Page tables [group][slots and the spare row][width], all without pages, then the last tokens [slot]. */
static int make_context(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_program *program = deployment->program;
    sl_cpu_context *context = &executor->context;
    unsigned char *block = executor->pools[SL_POOL_STAGING];
    const uint64_t sequences = (uint64_t)deployment->limits.sequences;
    const uint64_t entries =
        (uint64_t)sl_table_rows(&deployment->limits) * (uint64_t)sl_table_width(deployment->limits.context);
    const uint64_t tables = entries * (uint64_t)program->group_count;
    if ((tables + sequences) * sizeof(int32_t) > deployment->pool_bytes[SL_POOL_TABLES] ||
        deployment->step.bytes > deployment->pool_bytes[SL_POOL_STAGING] ||
        (uint64_t)deployment->state_slots * program->state_bytes > deployment->pool_bytes[SL_POOL_STATE]) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: the pool of tables, state or staging is too small");
    }
    context->deployment = deployment;
    context->program = program;
    context->pool = executor->threads;
    context->header = sl_step_head(block);
    context->rows = sl_step_rows(&deployment->step, block);
    context->spans = sl_step_spans(&deployment->step, block);
    context->states = sl_step_states(&deployment->step, block);
    context->table_changes = sl_step_table_changes(&deployment->step, block);
    context->page_copies = sl_step_page_copies(&deployment->step, block);
    context->outputs = sl_step_outputs(&deployment->step, block);
    context->table_width = sl_table_width(deployment->limits.context);
    int32_t *table = (int32_t *)(void *)executor->pools[SL_POOL_TABLES];
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_layout *cache = &deployment->caches[g];
        context->tables[g] = table + (uint64_t)g * entries;
        context->caches[g] = executor->pools[SL_POOL_CACHE] + deployment->cache_offsets[g];
        if (!sl_range_inside(deployment->cache_offsets[g], (uint64_t)cache->pages * cache->page_bytes,
                             deployment->pool_bytes[SL_POOL_CACHE])) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: the pages of group %s lie outside the cache",
                           program->groups[g].name);
        }
    }
    for (uint64_t i = 0; i < tables; i++) {
        table[i] = SL_NONE;
    }
    context->last_tokens = table + tables;
    context->state = executor->pools[SL_POOL_STATE];
    context->observations = executor->pools[SL_POOL_OBSERVATIONS];
    executor->tail = *context;
    executor->tail.header = sl_step_tail(&deployment->step, block);
    executor->tail.rows = sl_step_tail_rows(&deployment->step, block);
    executor->tail.spans = sl_step_tail_spans(&deployment->step, block);
    return SL_OK;
}

/* A copy that is made, and how it is cut: every thread has a share of each expert's rows, in as many parts.
 */
typedef struct packed_weight {
    const sl_weight *weight;
    const sl_kernel *layout;
    unsigned char *packed;
    uint64_t expert_bytes, file_expert_bytes, file_row_bytes; /* of the copy; of the file */
    int32_t parts;                                            /* of a share of one expert */
    int32_t first;                                            /* part, of all of a share */
} packed_weight;

typedef struct packing {
    const sl_progress *progress; /* NULL: none */
    packed_weight *weights;      /* in the order of their parts */
    int32_t count;
    int32_t parts;       /* of all weights, of one share */
    int32_t shares;      /* one for each thread */
    sl_cpu_taken *taken; /* [shares] */
    uint64_t total;
    _Atomic int32_t ended;
    _Atomic uint64_t done;
    _Atomic bool stopped;
} packing;

/* Bytes of the file that a thread packs before it gives their pages back. */
enum { PACKED_AT_ONCE = 1 << 20 };

static void pack_part(packing *packing, const packed_weight *w, int32_t share, int32_t part) {
    sl_weight expert = *w->weight;
    const int32_t index = part / w->parts;
    int32_t first, end, from, to;
    sl_cpu_share_rows(expert.rows, share, packing->shares, &first, &end);
    sl_cpu_share_rows(end - first, part % w->parts, w->parts, &from, &to);
    if (from >= to) {
        return;
    }
    first += from;
    const int32_t rows = to - from;
    expert.experts = 1;
    expert.data = (const unsigned char *)expert.data + (uint64_t)index * w->file_expert_bytes;
    w->layout->pack(&expert, w->packed + (uint64_t)index * w->expert_bytes, first, rows);
    sl_map_give_back((const unsigned char *)expert.data + (uint64_t)first * w->file_row_bytes,
                     (size_t)rows * w->file_row_bytes);
    atomic_fetch_add_explicit(&packing->done, w->expert_bytes * (uint64_t)rows / (uint64_t)expert.rows,
                              memory_order_relaxed);
}

/* Asks whoever wants to see how far it is, on one thread. */
static bool is_stopped(packing *packing, int thread) {
    const sl_progress *progress = thread == 0 ? packing->progress : NULL;
    if (progress && !progress->report(progress->context, atomic_load(&packing->done), packing->total)) {
        atomic_store(&packing->stopped, true);
    }
    return atomic_load(&packing->stopped);
}

/* What threads touch at the same moment gets memory side by side. Where they then also read it at the same
 * moment they were in each other's way, presumably in the same banks of memory. So each begins at another
 * weight. */
static int32_t rotate_part(const packing *packing, int32_t share, int32_t part) {
    return (int32_t)((part + (int64_t)packing->parts * share / packing->shares) % packing->parts);
}

/* The first touch of the copies' pages: each thread begins with its own share of all weights. */
static void pack_parts(void *context, int thread, int threads) {
    packing *packing = context;
    sl_cpu_taking taking =
        sl_cpu_taking_of(packing->taken, &packing->ended, packing->shares, thread, threads);
    int32_t w = 0;
    while (sl_cpu_next_share(&taking)) {
        for (;;) {
            const int32_t unit = is_stopped(packing, thread) ? -1 : sl_cpu_next_unit(&taking, packing->parts);
            if (unit < 0) {
                break;
            }
            const int32_t part = rotate_part(packing, taking.share, unit);
            while (part < packing->weights[w].first) {
                w--;
            }
            while (w + 1 < packing->count && part >= packing->weights[w + 1].first) {
                w++;
            }
            pack_part(packing, &packing->weights[w], taking.share, part - packing->weights[w].first);
        }
    }
}

/* Copies lie one after the other at multiples of 64. */
static int list_copies(sl_executor *executor, packing *packing, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    uint64_t offset = 0;
    for (int32_t u = 0; u < deployment->weight_count; u++) {
        const sl_weight_use *use = &deployment->weights[u];
        const sl_weight *weight = &deployment->program->weights[use->weight];
        executor->weights[u] = weight->data;
        if (!use->layout || !use->layout->pack) {
            continue;
        }
        if (!sl_range_inside(offset, use->bytes, deployment->pool_bytes[SL_POOL_WEIGHTS])) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: the copy of %s lies outside the pool",
                           weight->name);
        }
        packed_weight *w = &packing->weights[packing->count++];
        const uint64_t experts = (uint64_t)weight->experts;
        *w = (packed_weight){.weight = weight,
                             .layout = use->layout,
                             .packed = executor->pools[SL_POOL_WEIGHTS] + offset,
                             .expert_bytes = use->bytes / experts,
                             .file_expert_bytes = weight->bytes / experts,
                             .file_row_bytes = weight->bytes / experts / (uint64_t)weight->rows,
                             .first = packing->parts};
        const uint64_t parts = w->file_expert_bytes / (uint64_t)packing->shares / PACKED_AT_ONCE + 1;
        if (parts * experts > (uint64_t)(INT32_MAX - packing->parts)) {
            return sl_fail(error, SL_ERR_LIMIT, "cpu: weight %s has too many parts to pack", weight->name);
        }
        w->parts = (int32_t)parts;
        packing->parts += (int32_t)(parts * experts);
        packing->total += use->bytes;
        executor->weights[u] = w->packed;
        offset = (offset + use->bytes + 63) & ~(uint64_t)63;
    }
    return SL_OK;
}

static int load_weights(sl_executor *executor, const sl_progress *progress, sl_error *error) {
    const size_t count = (size_t)executor->deployment->weight_count;
    packing packing = {.progress = progress && progress->report ? progress : NULL,
                       .shares = sl_pool_threads(executor->threads),
                       .taken = executor->taken};
    executor->weights = sl_arena_alloc(&executor->arena, count, sizeof *executor->weights);
    packing.weights = sl_arena_alloc(&executor->arena, count, sizeof *packing.weights);
    if (!executor->weights || !packing.weights) {
        return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for the list of weights");
    }
    const int status = list_copies(executor, &packing, error);
    if (status) {
        return status;
    }
    sl_pool_run(executor->threads, pack_parts, &packing);
    /* Pages that two parts have in common, and those that came back with a neighbour's. */
    for (int32_t w = 0; w < packing.count; w++) {
        sl_map_give_back(packing.weights[w].weight->data, packing.weights[w].weight->bytes);
    }
    if (atomic_load(&packing.stopped) ||
        (packing.progress && !progress->report(progress->context, packing.total, packing.total))) {
        return sl_fail(error, SL_ERR_CANCELLED, "loading was stopped");
    }
    return SL_OK;
}

static void destroy_executor(sl_executor *executor) {
    if (!executor) {
        return;
    }
    sl_pool_destroy(executor->threads);
    sl_free(executor->taken);
    sl_cpu_group_leave(executor->context.group);
    for (int pool = 0; pool < SL_POOL_COUNT; pool++) {
        sl_free(executor->pools[pool]);
    }
    sl_arena_free(&executor->arena);
    sl_free(executor);
}

static int deploy(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                  sl_executor **result, sl_error *error) {
    sl_executor *executor = sl_alloc_zero(1, sizeof *executor);
    if (!executor) {
        return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for an executor");
    }
    executor->deployment = deployment;
    executor->context.backend = backend;
    int status = make_threads(executor, error);
    if (!status) {
        status = make_pools(executor, error);
    }
    if (!status) {
        status = make_context(executor, error);
    }
    if (!status) {
        status = load_weights(executor, progress, error);
    }
    if (!status) {
        status = resolve_buckets(executor, error);
    }
    if (status) {
        destroy_executor(executor);
        return status;
    }
    *result = executor;
    return SL_OK;
}

/* ---- steps
 * -------------------------------------------------------------------------------------------------- */

static void *step_block(sl_executor *executor) {
    return executor->pools[SL_POOL_STAGING];
}

static const sl_cpu_context *context_of(const sl_executor *executor, const sl_cpu_op *op) {
    return op->is_tail ? &executor->tail : &executor->context;
}

/* Makes the set zero that the op after this one has: the op before, which had it, is over. A smaller team
 * does that for those who are not there. */
static void reset_next(const sl_executor *executor, const sl_cpu_op *op, int thread, int threads) {
    const int32_t shares = sl_pool_threads(executor->threads);
    sl_cpu_taken *next = executor->taken + (op->taken == executor->taken ? shares : 0);
    for (int32_t i = thread; i < shares; i += threads) {
        atomic_store_explicit(&next[i].asked, 0, memory_order_relaxed);
    }
}

/* An op, or the run that begins with it. */
static void run_op(const sl_executor *executor, const sl_cpu_op *op, int thread, int threads) {
    reset_next(executor, op, thread, threads);
    if (op->is_tail && executor->tail.counts[SL_ROWS_STEP] == 0) {
        return;
    }
    if (op->run_length > 1) {
        sl_cpu_run_by_rows(context_of(executor, op), op, thread, threads);
    } else {
        op->run(context_of(executor, op), op, thread, threads);
    }
}

static void run_ops(void *argument, int thread, int threads) {
    const sl_executor *executor = argument;
    const bucket *bucket = &executor->buckets[executor->running];
    for (int32_t i = executor->first; i < executor->end; i += bucket->ops[i].run_length) {
        if (i > executor->first) {
            sl_pool_barrier(executor->threads);
        }
        run_op(executor, &bucket->ops[i], thread, threads);
    }
}

#ifndef NDEBUG
/* What a step block may hold, and besides that the pools' ends, which only a deployment knows. */
static int check_block(const sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_cpu_context *context = &executor->context;
    const int status =
        sl_step_check(&deployment->step, deployment->program, executor->pools[SL_POOL_STAGING], error);
    if (status) {
        return status;
    }
    for (int32_t i = 0; i < context->header->table_changes; i++) {
        const sl_table_change *change = &context->table_changes[i];
        if (change->page >= deployment->caches[change->group].pages) {
            return sl_fail(error, SL_ERR_INVALID, "step: table change %d: page %d does not exist", (int)i,
                           (int)change->page);
        }
    }
    for (int32_t i = 0; i < context->header->page_copies; i++) {
        const sl_page_copy *copy = &context->page_copies[i];
        const int32_t pages = deployment->caches[copy->group].pages;
        if (copy->source >= pages || copy->target >= pages) {
            return sl_fail(error, SL_ERR_INVALID, "step: page copy %d: page %d or %d does not exist", (int)i,
                           (int)copy->source, (int)copy->target);
        }
    }
    for (int32_t i = 0; i < context->header->spans; i++) {
        const sl_step_span *span = &context->spans[i];
        for (int32_t k = -1; k < span->state_count; k++) {
            const int32_t slot = k < 0 ? span->state_read : context->states[span->state_first + k];
            if (slot >= deployment->state_slots) {
                return sl_fail(error, SL_ERR_INVALID, "step: span %d: state slot %d does not exist", (int)i,
                               (int)slot);
            }
        }
    }
    return SL_OK;
}
#endif

static void reset_cursors(bucket *bucket) {
    for (int32_t i = 0; i < 2 * bucket->op_count; i++) {
        atomic_store_explicit(&bucket->cursors[i], 0, memory_order_relaxed);
    }
}

static void reset_taken(sl_executor *executor) {
    for (int32_t i = 0; i < 2 * sl_pool_threads(executor->threads); i++) {
        atomic_store_explicit(&executor->taken[i].asked, 0, memory_order_relaxed);
    }
}

/* From where the section before ended to the first op of the next one. */
static void run_section(sl_executor *executor) {
    bucket *bucket = &executor->buckets[executor->running];
    executor->first = executor->end;
    const int32_t section = sl_op_section(bucket->ops[executor->first].op, 0);
    while (executor->end < bucket->op_count &&
           sl_op_section(bucket->ops[executor->end].op, section) == section) {
        executor->end++;
    }
    reset_taken(executor);
    sl_pool_run(executor->threads, run_ops, executor);
    for (int32_t i = executor->first; i < executor->end; i++) {
        bucket->ops[i].count->calls++;
        const sl_cpu_op *op = &bucket->ops[i];
        op->count->rows += (uint64_t)context_of(executor, op)->counts[op->counted];
    }
}

static int submit(sl_executor *executor, int32_t index, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_step_header *header = executor->context.header;
    if (index < 0 || index >= deployment->bucket_count) {
        return sl_fail(error, SL_ERR_INVALID, "step: there is no bucket %d", (int)index);
    }
    const sl_lowered *lowered = &deployment->buckets[index];
    if (header->rows < 0 || header->rows > lowered->rows[SL_ROWS_STEP] || header->outputs < 0 ||
        header->outputs > lowered->rows[SL_ROWS_OUTPUT] || header->spans < 0 ||
        header->spans > deployment->limits.sequences) {
        return sl_fail(error, SL_ERR_INVALID,
                       "step: %d rows, %d outputs and %d sequences do not fit bucket %d", (int)header->rows,
                       (int)header->outputs, (int)header->spans, (int)index);
    }
#ifndef NDEBUG
    const int status = check_block(executor, error);
    if (status) {
        return status;
    }
#endif
    bucket *bucket = &executor->buckets[index];
    executor->running = index;
    executor->header = *header;
    executor->context.counts[SL_ROWS_STEP] = header->rows;
    executor->context.counts[SL_ROWS_EXPERT] = header->rows * deployment->program->experts_used;
    executor->context.counts[SL_ROWS_OUTPUT] = header->outputs;
    sl_tail_rows(executor->context.counts, executor->tail.counts);
    if (deployment->program->has_tail) {
        sl_step_write_tail(&deployment->step, executor->pools[SL_POOL_STAGING]);
    }
    reset_cursors(bucket);
    executor->end = 0;
    run_section(executor);
    executor->steps++;
    return SL_OK;
}

static int proceed(sl_executor *executor, sl_error *error) {
    if (executor->steps == 0 || executor->end == executor->buckets[executor->running].op_count) {
        return sl_fail(error, SL_ERR_INTERNAL, "step: it has no other section");
    }
    run_section(executor);
    return SL_OK;
}

static int join(sl_executor *const *ranks, int32_t count, sl_error *error) {
    sl_cpu_group *group;
    const int status = sl_cpu_group_create(count, &group, error);
    for (int32_t i = 0; i < count && !status; i++) {
        ranks[i]->context.group = ranks[i]->tail.group = group;
        ranks[i]->context.rank = ranks[i]->tail.rank = i;
    }
    return status;
}

/* submit has run the step already. */
static int wait_for_step(sl_executor *executor, sl_error *error) {
    (void)executor, (void)error;
    return SL_OK;
}

static const void *result_of(const sl_executor *executor, int32_t value) {
    const sl_lowered *lowered = &executor->deployment->buckets[executor->running];
    if (value == SL_NONE || lowered->value_offsets[value] == UINT64_MAX) {
        return NULL;
    }
    return executor->pools[SL_POOL_WORKSPACE] + lowered->value_offsets[value];
}

static const float *logits(sl_executor *executor) {
    return result_of(executor, executor->deployment->result);
}

static const int32_t *tokens(sl_executor *executor) {
    return result_of(executor, executor->deployment->tokens);
}

static int check_range(const sl_executor *executor, sl_pool_kind pool, uint64_t offset, uint64_t bytes,
                       sl_error *error) {
    if ((unsigned)pool >= SL_POOL_COUNT ||
        !sl_range_inside(offset, bytes, executor->deployment->pool_bytes[pool])) {
        return sl_fail(error, SL_ERR_INVALID, "%llu bytes at %llu lie outside pool %d",
                       (unsigned long long)bytes, (unsigned long long)offset, (int)pool);
    }
    return SL_OK;
}

static int read_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                     sl_error *error) {
    const int status = check_range(executor, pool, offset, bytes, error);
    if (!status) {
        memcpy(data, executor->pools[pool] + offset, bytes);
    }
    return status;
}

static int write_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, const void *data,
                      uint64_t bytes, sl_error *error) {
    const int status = check_range(executor, pool, offset, bytes, error);
    if (!status) {
        memcpy(executor->pools[pool] + offset, data, bytes);
    }
    return status;
}

static void counters(const sl_executor *executor, sl_counters *result) {
    memset(result, 0, sizeof *result);
    result->steps = executor->steps;
    result->eager_steps = executor->steps;
    result->kernels = executor->counts;
    result->kernel_count = executor->count_count;
}

/* ---- profile
 * ------------------------------------------------------------------------------------------------ */

typedef struct timed_run {
    const sl_executor *executor;
    double *ends; /* [op_count + 1]: when the first op began, and when each was done by all threads */
} timed_run;

static void run_timed(void *argument, int thread, int threads) {
    const timed_run *run = argument;
    const bucket *bucket = &run->executor->buckets[run->executor->running];
    int32_t ended = 0;
    for (int32_t i = 0;; i += bucket->ops[i].run_length) {
        sl_pool_barrier(run->executor->threads);
        if (thread == 0) {
            const double now = sl_seconds_now();
            while (ended <= i) { /* a run's time is that of its first op */
                run->ends[ended++] = now;
            }
        }
        sl_pool_barrier(run->executor->threads); /* nobody works on the next op before the clock was read */
        if (i == bucket->op_count) {
            return;
        }
        run_op(run->executor, &bucket->ops[i], thread, threads);
    }
}

static uint64_t memory_available(const sl_backend *backend);

/* At most half of what memory there is, for the while. */
static int measure_rates(sl_executor *executor, sl_rates *rates, sl_error *error) {
    const sl_backend *backend = executor->context.backend;
    return sl_cpu_peak_rates(executor->threads, backend->options.isa, memory_available(backend) / 2, rates,
                             error);
}

/* Likewise, by threads of its own. */
static int measure_speeds(sl_backend *backend, sl_speeds *speeds, sl_error *error) {
    sl_pool *pool;
    memset(speeds, 0, sizeof *speeds);
    int code = start_threads(backend->options.threads, &pool, error);
    if (code == 0) {
        code = sl_cpu_peak_rates(pool, backend->options.isa, memory_available(backend) / 2, &speeds->rates,
                                 error);
    }
    sl_pool_destroy(pool);
    return code;
}

/* The whole step some times, a clock between its ops; of each op the quickest. */
static int profile_step(sl_executor *executor, sl_profile *profile, sl_error *error) {
    enum { RUNS = 3 };
    bucket *bucket = &executor->buckets[executor->running];
    const size_t ops = (size_t)bucket->op_count;
    double *ends = executor->steps > 0 ? sl_alloc_zero(2 * ops + 1, sizeof *ends) : NULL;
    if (!ends) {
        return executor->steps > 0 ? sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for a profile")
                                   : sl_fail(error, SL_ERR_INVALID, "profile: no step has run yet");
    }
    double *best = ends + ops + 1;
    timed_run run = {executor, ends};
    *sl_step_head(executor->pools[SL_POOL_STAGING]) = executor->header;
    for (int r = 0; r < RUNS; r++) {
        reset_cursors(bucket);
        reset_taken(executor);
        sl_pool_run(executor->threads, run_timed, &run);
        for (size_t i = 0; i < ops; i++) {
            const double seconds = ends[i + 1] - ends[i];
            best[i] = r == 0 || seconds < best[i] ? seconds : best[i];
        }
        const double all = ends[ops] - ends[0];
        profile->step_seconds = r == 0 || all < profile->step_seconds ? all : profile->step_seconds;
    }
    memset(profile->seconds, 0, (size_t)profile->group_count * sizeof *profile->seconds);
    for (size_t i = 0; i < ops; i++) {
        profile->seconds[profile->groups[i]] += best[i];
    }
    sl_free(ends);
    return measure_rates(executor, &profile->rates, error);
}

/* ---- the backend
 * -------------------------------------------------------------------------------------------- */

static const sl_kernel *const *kernels(const sl_backend *backend, int32_t *count) {
    const cpu_backend *cpu = (const cpu_backend *)(const void *)backend;
    *count = cpu->kernel_count;
    return cpu->kernels;
}

/* A number in a small file of the system's, after `key` when that is not empty; UINT64_MAX when it is not
 * there. */
static uint64_t system_number(const char *path, const char *key) {
    char line[256];
    unsigned long long value;
    uint64_t result = UINT64_MAX;
    FILE *file = fopen(path, "r");
    while (file && result == UINT64_MAX && fgets(line, sizeof line, file)) {
        const size_t length = strlen(key);
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%llu", &value) == 1) {
            result = value;
        }
    }
    if (file) {
        fclose(file);
    }
    return result;
}

uint64_t sl_host_memory_available(void) {
    const uint64_t kib = system_number("/proc/meminfo", "MemAvailable:");
    const uint64_t limit = system_number("/sys/fs/cgroup/memory.max", "");
    const uint64_t used = system_number("/sys/fs/cgroup/memory.current", "");
    const uint64_t cached = system_number("/sys/fs/cgroup/memory.stat", "file ");
    uint64_t available =
        kib != UINT64_MAX ? kib * 1024 : (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        const uint64_t held = cached != UINT64_MAX && cached < used ? used - cached : used;
        const uint64_t left = held < limit ? limit - held : 0;
        available = left < available ? left : available;
    }
    return available;
}

static uint64_t memory_available(const sl_backend *backend) {
    (void)backend;
    return sl_host_memory_available();
}

static void destroy(sl_backend *backend) {
    sl_free(backend);
}

static const sl_backend_functions functions = {
    .kernels = kernels,
    .fusions = sl_cpu_fusions,
    .deploy = deploy,
    .destroy_executor = destroy_executor,
    .step_block = step_block,
    .submit = submit,
    .proceed = proceed,
    .join = join,
    .wait = wait_for_step,
    .logits = logits,
    .tokens = tokens,
    .read = read_pool,
    .write = write_pool,
    .counters = counters,
    .profile = profile_step,
    .rates = measure_rates,
    .speeds = measure_speeds,
    .memory_available = memory_available,
    .destroy = destroy,
};

/* Plain kernels use the C library's functions, whose last bits are its own. */
static const char *numerics(void) {
#ifdef __GLIBC__
    return gnu_get_libc_version();
#else
    return NULL;
#endif
}

static int32_t choose_threads(int32_t asked) {
    const int32_t processors = sl_cpu_count();
    if (asked > processors) {
        sl_log(
            SL_LOG_WARNING,
            "threads: %d are more than the %d processor%s that this process may use (affinity, quota of its "
            "control group): they take turns",
            (int)asked, (int)processors, processors == 1 ? "" : "s");
    }
    return asked > 0 ? asked : sl_cpu_threads();
}

void sl_cpu_describe(const sl_backend_options *options, int nodes, char *text, size_t bytes) {
    char on_nodes[32] = "";
    if (nodes > 1) {
        snprintf(on_nodes, sizeof on_nodes, ", %d nodes", nodes);
    }
    snprintf(text, bytes, "%s, %d thread%s%s", sl_isa_name(options->isa), (int)options->threads,
             options->threads == 1 ? "" : "s", on_nodes);
}

int sl_cpu_backend_create(const sl_backend_options *options, sl_backend **backend, sl_error *error) {
    cpu_backend *cpu = sl_alloc_zero(1, sizeof *cpu);
    if (!cpu) {
        return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory for the backend");
    }
    if (options->threads < 0 || options->threads > 1024 || (unsigned)options->isa >= SL_ISA_COUNT) {
        const int threads = (int)options->threads, isa = (int)options->isa;
        sl_free(cpu);
        return sl_fail(error, SL_ERR_INVALID,
                       "cpu: %d threads (0 to 1024) or instruction set %d is not valid", threads, isa);
    }
    cpu->base.functions = &functions;
    cpu->base.name = "cpu";
    cpu->base.maps_weights = true;
    cpu->base.steps_in_flight = 1;
    cpu->base.chunk = 512;
    cpu->base.fixed_buckets = false;
    cpu->base.options = *options;
    cpu->base.options.threads = choose_threads(options->threads);
    cpu->base.options.isa = options->isa < sl_cpu_isa() ? options->isa : sl_cpu_isa();
    cpu->base.options.deterministic = true;
    cpu->kernel_count = sl_cpu_registry(cpu->kernels);
    sl_cpu_nodes nodes;
    sl_cpu_nodes_here("", &nodes);
    sl_cpu_describe(&cpu->base.options, nodes.count, cpu->description, sizeof cpu->description);
    cpu->base.description = cpu->description;
    cpu->base.numerics = numerics();
    *backend = &cpu->base;
    return SL_OK;
}
