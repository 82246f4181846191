/* Fetch sets of a plan that is being made: which weights lie in host memory beside the device, which experts
 * the device has as well, and where all lies there.
 */
#include "plan/build.h"

#include "backend/host_memory.h"
#include "base/checked.h"

#include <math.h>
#include <string.h>

static int out_of_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
}

static bool has_experts(const sl_op *op) {
    return op->in[1].value != SL_NONE;
}

int32_t sl_fetch_set_of(const sl_plan *plan, const sl_op *op) {
    for (int32_t i = 0; op->kind == SL_OP_LINEAR && i < plan->deployment.fetch_set_count; i++) {
        const sl_fetch_set *set = &plan->deployment.fetch_sets[i];
        if (set->layer == op->layer && (set->experts > 0) == has_experts(op)) {
            return i;
        }
    }
    return SL_NONE;
}

double sl_experts_chosen(const sl_program *program, int32_t rows) {
    return program->experts * (1 - pow(1 - (double)program->experts_used / program->experts, rows));
}

/* To slots where all that a step may choose has one: ids and schedule get their numbers, and nothing is
 * copied twice. Of more rows the chosen experts come to a buffer, as long as that leaves experts out. It is
 * waited for, while all experts of a layer come as the layer in front computes: so where nearly all are
 * chosen, bringing all takes less. */
sl_fetch_way sl_fetch_way_of(const sl_plan *plan, int32_t rows) {
    static const double NEARLY_ALL = 0.95;
    const sl_program *program = plan->deployment.program;
    return (int64_t)rows * program->experts_used <= plan->deployment.expert_slots ? SL_FETCH_TO_SLOTS
           : sl_experts_chosen(program, rows) < NEARLY_ALL * program->experts     ? SL_FETCH_TO_BUFFER
                                                                                  : SL_FETCH_ALL;
}

/* Whose weights these are: of a layer, unless ops beside its LINEARs read them too. */
static bool find_owners(const sl_program *program, sl_arena *arena, int32_t **owners) {
    int32_t *found = sl_arena_alloc(arena, (size_t)program->weight_count + 1, sizeof *found);
    if (!found) {
        return false;
    }
    for (int32_t w = 0; w < program->weight_count; w++) {
        found[w] = INT32_MAX; /* nobody's so far */
    }
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        const bool drafts = i >= program->op_count - program->draft_ops;
        const int32_t owner = op->kind == SL_OP_LINEAR && !has_experts(op) && !drafts ? op->layer : SL_NONE;
        int32_t weights[SL_OP_WEIGHTS];
        const int32_t count = sl_op_weights(op, weights);
        for (int32_t w = 0; w < count; w++) {
            if (weights[w] != SL_NONE) {
                int32_t *now = &found[weights[w]];
                *now = *now == INT32_MAX || *now == owner ? owner : SL_NONE;
            }
        }
    }
    *owners = found;
    return true;
}

int sl_list_layers_to_fetch(const sl_program *program, sl_arena *arena, int32_t **layers, int32_t *count,
                            sl_error *error) {
    const int32_t all = sl_program_layers(program);
    enum { UNSEEN, SEEN, UNFIT };
    int32_t *owners, last = SL_NONE;
    int32_t *list = sl_arena_alloc(arena, (size_t)all + 1, sizeof *list);
    unsigned char *states = sl_arena_alloc(arena, (size_t)all + 1, sizeof *states);
    if (!list || !states || !find_owners(program, arena, &owners)) {
        return out_of_memory(error);
    }
    for (int32_t l = 0; l < all; l++) {
        states[l] = UNSEEN;
    }
    for (int32_t i = 0; i < program->op_count - program->draft_ops; i++) {
        const sl_op *op = &program->ops[i];
        if (op->kind != SL_OP_LINEAR || op->layer < 0 || has_experts(op)) {
            continue;
        }
        bool fit = states[op->layer] == UNSEEN || (states[op->layer] == SEEN && last == op->layer);
        int32_t weights[SL_OP_WEIGHTS];
        const int32_t weight_count = sl_op_weights(op, weights);
        for (int32_t w = 0; w < weight_count; w++) {
            fit = fit && (weights[w] == SL_NONE || owners[weights[w]] == op->layer);
        }
        states[op->layer] = fit ? SEEN : UNFIT;
        last = op->layer;
    }
    *count = 0;
    for (int32_t l = 0; l < all; l++) {
        if (states[l] == SEEN) {
            list[(*count)++] = l;
        }
    }
    *layers = list;
    return 0;
}

/* Sets of experts, of the first layers. */
static void list_experts(sl_plan *plan, sl_fetch_set *sets) {
    sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (op->kind == SL_OP_LINEAR && has_experts(op) && op->layer >= 0 &&
            op->layer < plan->options.host_experts && sl_fetch_set_of(plan, op) == SL_NONE) {
            sets[deployment->fetch_set_count++] =
                (sl_fetch_set){.layer = op->layer, .experts = program->experts};
        }
    }
    deployment->expert_slots = plan->options.expert_slots;
}

static int list_layers(sl_plan *plan, sl_fetch_set *sets, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    int32_t *layers, all;
    const int code = sl_list_layers_to_fetch(deployment->program, &plan->arena, &layers, &all, error);
    if (code) {
        return code;
    }
    const int32_t count = plan->options.host_layers < all ? plan->options.host_layers : all;
    for (int32_t i = 0; i < count; i++) {
        sets[i] = (sl_fetch_set){.layer = layers[sl_spread_layer(i, count, all)]};
    }
    plan->options.host_layers = deployment->fetch_set_count = count;
    return 0;
}

int sl_list_fetch_sets(sl_plan *plan, sl_error *error) {
    const int32_t experts = plan->options.host_experts, layers = plan->options.host_layers;
    if (experts <= 0 && layers <= 0) {
        return 0;
    }
    sl_fetch_set *sets =
        sl_arena_alloc(&plan->arena, (size_t)(experts > layers ? experts : layers), sizeof *sets);
    if (!sets) {
        return out_of_memory(error);
    }
    plan->deployment.fetch_sets = sets;
    if (experts > 0) {
        list_experts(plan, sets);
        return 0;
    }
    return list_layers(plan, sets, error);
}

static bool take(uint64_t bytes, uint64_t *end) {
    uint64_t aligned;
    return sl_align_u64(bytes, SL_FETCH_ALIGNMENT, &aligned) && sl_add_u64(*end, aligned, end);
}

/* Slots and tables, behind the buffers. false when it passes 64 bits */
static bool lay_out_experts(sl_plan *plan, sl_fetch_set *sets, uint64_t *end) {
    sl_deployment *deployment = &plan->deployment;
    const uint64_t experts = (uint64_t)deployment->program->experts;
    const uint64_t slots = (uint64_t)deployment->expert_slots;
    bool good = true;
    for (int32_t u = 0; u < deployment->weight_count; u++) {
        sl_weight_use *use = &deployment->weights[u];
        uint64_t bytes;
        if (use->on_host) {
            use->slots = *end;
            good = good && sl_mul_u64(use->bytes / experts, slots, &bytes) && take(bytes, end);
        }
    }
    for (int32_t s = 0; s < deployment->fetch_set_count; s++) {
        sets[s].table = *end;
        good = good && take(sl_slot_table_bytes((int32_t)experts, deployment->expert_slots), end);
    }
    return good;
}

/* Likewise, with the buffers. */
static bool lay_out(sl_plan *plan, sl_fetch_set *sets, uint64_t *end) {
    sl_deployment *deployment = &plan->deployment;
    const bool of_experts = sets[0].experts > 0;
    uint64_t largest = 0;
    bool has_buffers = !of_experts, good = true;
    for (int32_t u = 0; u < deployment->weight_count; u++) {
        sl_weight_use *use = &deployment->weights[u];
        if (use->on_host) {
            sl_fetch_set *set = &sets[use->set];
            use->in_buffer = set->table; /* until tables have their places: how much of a buffer is taken */
            set->bytes += use->bytes;
            good = good && take(use->bytes, &set->table);
            largest = set->table > largest ? set->table : largest;
        }
    }
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        has_buffers = has_buffers ||
                      sl_fetch_way_of(plan, deployment->buckets[b].rows[SL_ROWS_STEP]) != SL_FETCH_TO_SLOTS;
    }
    deployment->buffer_bytes = has_buffers ? largest : 0;
    const uint64_t buffers = !of_experts && deployment->fetch_set_count == 1 ? 1 : SL_FETCH_BUFFERS;
    good = good && sl_mul_u64(buffers, deployment->buffer_bytes, end);
    if (!of_experts) {
        for (int32_t s = 0; s < deployment->fetch_set_count; s++) {
            sets[s].table = 0;
        }
        return good;
    }
    return lay_out_experts(plan, sets, end) && good;
}

/* The most used experts of each set, the lower number first where two are used alike; unused ones come by
 * themselves. */
static int choose_first(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const int32_t experts = deployment->program->experts, slots = deployment->expert_slots;
    const size_t count = (size_t)deployment->fetch_set_count * (size_t)slots;
    int32_t *first = sl_arena_alloc(&plan->arena, count, sizeof *first);
    bool *taken = sl_arena_alloc(&plan->arena, (size_t)experts, sizeof *taken);
    if (!first || !taken) {
        return out_of_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        const int32_t layer = deployment->fetch_sets[i / (size_t)slots].layer;
        const uint64_t *uses = plan->options.expert_uses + (int64_t)layer * experts;
        int32_t best = SL_NONE;
        for (int32_t e = 0; e < experts; e++) {
            taken[e] = taken[e] && i % (size_t)slots > 0;
            best = !taken[e] && uses[e] > (best == SL_NONE ? 0 : uses[best]) ? e : best;
        }
        first[i] = best;
        if (best != SL_NONE) {
            taken[best] = true;
        }
    }
    deployment->first_experts = first;
    return 0;
}

double sl_plan_first_share(const sl_plan *plan) {
    const sl_deployment *deployment = &plan->deployment;
    const int32_t experts = deployment->program->experts, slots = deployment->expert_slots;
    double all = 0, held = 0;
    for (int32_t s = 0; deployment->first_experts && s < deployment->fetch_set_count; s++) {
        const uint64_t *uses = plan->options.expert_uses + (int64_t)deployment->fetch_sets[s].layer * experts;
        const int32_t *first = deployment->first_experts + (int64_t)s * slots;
        for (int32_t e = 0; e < experts; e++) {
            all += (double)uses[e];
        }
        for (int32_t i = 0; i < slots && first[i] != SL_NONE; i++) {
            held += (double)uses[first[i]];
        }
    }
    return all > 0 ? held / all : 0;
}

uint64_t sl_plan_host_limit(uint64_t asked) {
    return asked > 0 ? asked : sl_host_memory_available();
}

int sl_lay_out_fetches(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    if (deployment->fetch_set_count == 0) {
        return 0;
    }
    sl_fetch_set *sets = sl_arena_alloc(&plan->arena, (size_t)deployment->fetch_set_count, sizeof *sets);
    if (!sets) {
        return out_of_memory(error);
    }
    memcpy(sets, deployment->fetch_sets, (size_t)deployment->fetch_set_count * sizeof *sets);
    deployment->fetch_sets = sets;
    if (!lay_out(plan, sets, &deployment->pool_bytes[SL_POOL_FETCHED])) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: the weights in host memory exceed 64 bits");
    }
    const uint64_t limit = sl_plan_host_limit(plan->options.host_memory_limit);
    const uint64_t needed = deployment->pool_bytes[SL_POOL_HOST_WEIGHTS];
    if (needed > limit) {
        return sl_fail(error, SL_ERR_LIMIT,
                       "plan: the %s of %d layers need %llu bytes of host memory, the limit is %llu",
                       sets[0].experts > 0 ? "experts" : "weights",
                       sets[0].experts > 0 ? plan->options.host_experts : plan->options.host_layers,
                       (unsigned long long)needed, (unsigned long long)limit);
    }
    return sets[0].experts > 0 && plan->options.expert_uses ? choose_first(plan, error) : 0;
}
