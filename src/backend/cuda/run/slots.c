/* Slots of experts that are filled before the first step, as the deployment says which. */
#include "backend/cuda/run/executor.h"
#include "base/alloc.h"
#include "base/checked.h"

#include <string.h>

/* As if the experts had been used one after the other, the most wanted last and each more than once, as far
 * as so many may be protected. Returns how many there are, or SL_NONE for a list that is none. */
static int32_t write_table(const sl_deployment *deployment, const int32_t *first, sl_slot_table *table) {
    const int32_t experts = deployment->program->experts, slots = deployment->expert_slots;
    const sl_slot_arrays a = sl_slot_arrays_of(table, experts, slots);
    int32_t count = 0;
    for (int32_t e = 0; e < experts; e++) {
        a.slot_of[e] = SL_NONE;
    }
    while (count < slots && first[count] != SL_NONE) {
        const int32_t expert = first[count];
        if (expert < 0 || expert >= experts || a.slot_of[expert] != SL_NONE) {
            return SL_NONE;
        }
        a.slot_of[expert] = count;
        a.expert_of[count++] = expert;
    }
    for (int32_t s = 0; s < slots; s++) {
        a.expert_of[s] = s < count ? a.expert_of[s] : SL_NONE;
        a.is_protected[s] = s < count && s < sl_most_protected(slots);
        a.used_at[s] = s < count ? (unsigned long long)(count - s) : 0;
    }
    table->clock = (uint64_t)count;
    return count;
}

/* The experts' weights, each expert's of one use to its slot. */
static int copy_experts(sl_executor *executor, int32_t use, const int32_t *first, int32_t count,
                        sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const sl_weight_use *found = &deployment->weights[use];
    const uint64_t bytes = found->bytes / (uint64_t)deployment->program->experts;
    const unsigned char *from = executor->pools[SL_POOL_HOST_WEIGHTS] + executor->weight_offsets[use];
    unsigned char *to = executor->pools[SL_POOL_FETCHED] + found->slots;
    int status =
        sl_range_inside(found->slots, (uint64_t)count * bytes, deployment->pool_bytes[SL_POOL_FETCHED])
            ? SL_OK
            : sl_fail(error, SL_ERR_INTERNAL, "plan: slots lie outside the pool of experts");
    for (int32_t s = 0; s < count && !status; s++) {
        status = SL_CUDA(cudaMemcpyAsync(to + (uint64_t)s * bytes, from + (uint64_t)first[s] * bytes, bytes,
                                         cudaMemcpyHostToDevice, executor->device.stream),
                         error);
    }
    return status;
}

/* `table` is used again when this returns. */
static int fill_set(sl_executor *executor, int32_t set, sl_slot_table *table, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    const uint64_t bytes = sl_slot_table_bytes(deployment->program->experts, deployment->expert_slots);
    const int32_t *first = deployment->first_experts + (int64_t)set * deployment->expert_slots;
    memset(table, 0, bytes);
    const int32_t count = write_table(deployment, first, table);
    const uint64_t place = deployment->fetch_sets[set].table;
    if (count == SL_NONE || !sl_range_inside(place, bytes, deployment->pool_bytes[SL_POOL_FETCHED])) {
        return sl_fail(error, SL_ERR_INTERNAL, "plan: the first experts of fetch set %d", (int)set);
    }
    int status = SL_OK;
    for (int32_t u = 0; u < deployment->weight_count && count > 0 && !status; u++) {
        if (deployment->weights[u].on_host && deployment->weights[u].set == set) {
            status = copy_experts(executor, u, first, count, error);
        }
    }
    if (!status && count > 0) {
        status = SL_CUDA(cudaMemcpyAsync(executor->pools[SL_POOL_FETCHED] + place, table, bytes,
                                         cudaMemcpyHostToDevice, executor->device.stream),
                         error);
    }
    return status ? status : sl_cuda_synchronize(&executor->device, error);
}

int sl_cuda_fill_slots(sl_executor *executor, sl_error *error) {
    const sl_deployment *deployment = executor->deployment;
    if (!deployment->first_experts || deployment->fetch_set_count == 0) {
        return SL_OK;
    }
    sl_slot_table *table =
        sl_alloc((size_t)sl_slot_table_bytes(deployment->program->experts, deployment->expert_slots));
    int status = table ? SL_OK : sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for a table of slots");
    for (int32_t set = 0; set < deployment->fetch_set_count && !status; set++) {
        status = fill_set(executor, set, table, error);
    }
    if (status) {
        cudaStreamSynchronize(executor->device.stream); /* nothing may be under way from the table */
    }
    sl_free(table);
    return status;
}
