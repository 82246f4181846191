/* Plans that observe: a place for the sums of every weight that a LINEAR reads. */
#include "plan/build.h"

#include "base/checked.h"

/* Sums [experts][columns] and counts [experts], all doubles. */
static bool add_bytes(const sl_weight *weight, uint64_t *pool) {
    uint64_t bytes;
    return sl_mul_u64((uint64_t)weight->experts, (uint64_t)weight->columns + 1, &bytes) &&
           sl_mul_u64(bytes, sizeof(double), &bytes) && sl_add_u64(*pool, bytes, pool);
}

int sl_plan_observe(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    if (!plan->options.observe) {
        return 0;
    }
    uint64_t *offsets = sl_arena_alloc(&plan->arena, (size_t)program->weight_count, sizeof *offsets);
    if (!offsets) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    for (int32_t w = 0; w < program->weight_count; w++) {
        offsets[w] = UINT64_MAX;
    }
    uint64_t *pool = &deployment->pool_bytes[SL_POOL_OBSERVATIONS];
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op_linear *linear = &program->ops[i].u.linear;
        for (int32_t s = 0; program->ops[i].kind == SL_OP_LINEAR && s < linear->segment_count; s++) {
            const int32_t weight = linear->segments[s].weight;
            if (offsets[weight] != UINT64_MAX) {
                continue;
            }
            offsets[weight] = *pool;
            if (!add_bytes(&program->weights[weight], pool)) {
                return sl_fail(error, SL_ERR_LIMIT, "plan: the observations exceed 64 bits");
            }
        }
    }
    deployment->observations = offsets;
    return 0;
}
