/* Pools of a deployment on one GPU, and the context that kernels are given. */
#include "backend/cuda/run/executor.h"
#include "base/checked.h"
#include "program/window.h"

#include <string.h>

/* Zeros: an executor is alone until it is joined. */
static int make_exchange(sl_executor *executor, sl_error *error) {
    const uint64_t bytes = sizeof *executor->exchange;
    int status = sl_cuda_malloc(&executor->device, bytes, (void **)&executor->exchange, error);
    if (!status) {
        status = SL_CUDA(cudaMemsetAsync(executor->exchange, 0, bytes, executor->device.stream), error);
    }
    if (!status) {
        status = sl_cuda_malloc_host(&executor->device, sizeof *executor->meeting,
                                     (void **)&executor->meeting, error);
    }
    if (!status) {
        *executor->meeting = (sl_cuda_meeting){0};
    }
    return status;
}

int sl_cuda_make_pools(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    int status = SL_OK;
    for (int pool = 0; pool < SL_POOL_COUNT && !status; pool++) {
        const uint64_t bytes = deployment->pool_bytes[pool];
        void *memory = NULL;
        if (sl_cuda_is_pinned(pool)) {
            status = sl_cuda_malloc_host(&executor->device, bytes, &memory, error);
        } else {
            status = sl_cuda_malloc(&executor->device, bytes, &memory, error);
        }
        executor->pools[pool] = memory;
        if (!status && pool == SL_POOL_STAGING) {
            memset(memory, 0, bytes);
        } else if (!status && bytes > 0 && pool != SL_POOL_WEIGHTS && !sl_cuda_is_pinned(pool)) {
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
        status = sl_cuda_malloc(&executor->device, sizeof(sl_cuda_control) + slots,
                                (void **)&executor->control, error);
    }
    const uint64_t arrivals = SL_CUDA_ARRIVALS * sizeof(uint32_t);
    if (!status) {
        status = sl_cuda_malloc(&executor->device, arrivals, (void **)&executor->arrivals, error);
    }
    if (!status) {
        status = SL_CUDA(cudaMemsetAsync(executor->arrivals, 0, arrivals, executor->device.stream), error);
    }
    if (!status) {
        status = make_exchange(executor, error);
    }
    if (!status) {
        status = sl_cuda_malloc_host(&executor->device, 2 * sizeof *executor->digests,
                                     (void **)&executor->digests, error);
    }
    const uint64_t sets = (uint64_t)deployment->fetch_set_count;
    const uint64_t counts = sets * SL_CUDA_EXPERT_COUNTS * sizeof *executor->expert_counts;
    if (!status) {
        status = sl_cuda_malloc_host(&executor->device, counts, (void **)&executor->expert_counts, error);
    }
    if (!status) {
        memset(executor->expert_counts, 0, counts);
        executor->fetches = sl_arena_alloc(&executor->arena, (size_t)sets + 1, sizeof *executor->fetches);
        status =
            executor->fetches ? SL_OK : sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for counts of fetches");
    }
    return status;
}

int sl_cuda_make_copies(sl_executor *executor, sl_error *error) {
    sl_cuda_copies *copies = &executor->copies;
    int status = SL_CUDA(cudaStreamCreateWithFlags(&copies->stream, cudaStreamNonBlocking), error);
    if (!status) {
        status = SL_CUDA(cudaEventCreateWithFlags(&copies->may_begin, cudaEventDisableTiming), error);
    }
    for (int i = 0; i < SL_FETCH_BUFFERS && !status; i++) {
        status = SL_CUDA(cudaEventCreateWithFlags(&copies->ended[i], cudaEventDisableTiming), error);
    }
    copies->begun = SL_NONE;
    copies->ahead = true;
    executor->context.copies = copies;
    return status;
}

void sl_cuda_end_copies(sl_cuda_copies *copies) {
    if (copies->stream) {
        cudaStreamSynchronize(copies->stream);
    }
    for (int i = 0; i < SL_FETCH_BUFFERS; i++) {
        if (copies->ended[i]) {
            cudaEventDestroy(copies->ended[i]);
        }
    }
    if (copies->may_begin) {
        cudaEventDestroy(copies->may_begin);
    }
    if (copies->stream) {
        cudaStreamDestroy(copies->stream);
    }
}

static void make_cache(const sl_executor *executor, int32_t group, int32_t *table, sl_cuda_cache *cache) {
    const sl_cache_layout *layout = &executor->deployment->caches[group];
    const sl_cache_group *shape = &executor->deployment->program->groups[group];
    cache->pages = executor->pools[SL_POOL_CACHE] + executor->deployment->cache_offsets[group];
    cache->table = table;
    cache->page_bytes = layout->page_bytes;
    cache->layer_bytes = layout->layer_bytes;
    cache->key_bytes = layout->row_key_bytes;
    cache->value_bytes = shape->values_are_keys ? layout->row_key_bytes : layout->row_value_bytes;
    cache->values =
        shape->values_are_keys ? 0 : (uint64_t)shape->kv_heads * SL_PAGE_TOKENS * layout->row_key_bytes;
    cache->kv_heads = shape->kv_heads;
    cache->key_size = shape->key_size;
    cache->value_size = shape->value_size;
    cache->window = sl_group_window(shape);
    cache->type = layout->type;
}

/* Page tables [group][slots and the spare row][width], all without pages, then the last tokens [slot].
 * Staging: a block per step in flight, then logits and tokens of each. */
sl_cuda_context sl_cuda_tail_context(const sl_executor *executor) {
    const sl_step_layout *layout = &executor->deployment->step;
    sl_cuda_context context = executor->context;
    context.header = sl_step_tail(layout, executor->block);
    context.rows = sl_step_tail_rows(layout, executor->block);
    context.spans = sl_step_tail_spans(layout, executor->block);
    return context;
}

int sl_cuda_make_context(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_program *program = deployment->program;
    const sl_step_layout *layout = &deployment->step;
    sl_cuda_context *context = &executor->context;
    const uint64_t sequences = (uint64_t)deployment->limits.sequences;
    const uint64_t entries =
        (uint64_t)sl_table_rows(&deployment->limits) * (uint64_t)sl_table_width(deployment->limits.context);
    const uint64_t tables = entries * (uint64_t)program->group_count;
    const uint64_t logits =
        (uint64_t)deployment->limits.outputs * (uint64_t)deployment->result_width * sizeof(float);
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
    context->states = sl_step_states(layout, executor->block);
    context->table_changes = sl_step_table_changes(layout, executor->block);
    context->page_copies = sl_step_page_copies(layout, executor->block);
    context->outputs = sl_step_outputs(layout, executor->block);
    context->table_width = sl_table_width(deployment->limits.context);
    context->slots = deployment->limits.sequences;
    context->experts_used = program->experts_used;
    context->arrivals = executor->arrivals;
    context->exchange = executor->exchange;
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

/* ---- for tests, for state that moves, and for what crosses borders ---- */

int sl_cuda_pin(sl_executor *executor, uint64_t bytes, void **memory, sl_error *error) {
    const int status = SL_CUDA(cudaSetDevice(executor->device.index), error);
    return status ? status : sl_cuda_malloc_host(&executor->device, bytes, memory, error);
}

void sl_cuda_unpin(sl_executor *executor, void *memory) {
    (void)executor;
    sl_cuda_free_host(memory);
}

typedef struct range {
    sl_pool_kind pool;
    uint64_t offset, bytes;
} range;

/* Out of the pool when `to` is not NULL, else into it. */
static int copy_pool(sl_executor *executor, const range *range, void *to, const void *from, sl_error *error) {
    int status = sl_cuda_check_fault(executor, error);
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
    return status ? sl_cuda_fault(executor, &why, error) : SL_OK;
}

int sl_cuda_read_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                      sl_error *error) {
    const range range = {pool, offset, bytes};
    return copy_pool(executor, &range, data, NULL, error);
}

int sl_cuda_write_pool(sl_executor *executor, sl_pool_kind pool, uint64_t offset, const void *data,
                       uint64_t bytes, sl_error *error) {
    const range range = {pool, offset, bytes};
    return copy_pool(executor, &range, NULL, data, error);
}
