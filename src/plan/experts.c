/* Experts in host memory beside a device: which layers', how many of them the device has as well, and where.
 */
#include "plan/build.h"

#include "backend/host_memory.h"
#include "base/checked.h"

/* ---- of a plan that is being made ---- */

/* The layer of experts that the op multiplies with; SL_NONE where there are none. */
static int32_t expert_layer(const sl_op *op) {
    return op->kind == SL_OP_LINEAR && op->in[1].value != SL_NONE ? op->layer : SL_NONE;
}

int32_t sl_fetch_set_of(const sl_plan *plan, const sl_op *op) {
    const int32_t layer = expert_layer(op);
    for (int32_t i = 0; layer != SL_NONE && i < plan->deployment.fetch_set_count; i++) {
        if (plan->deployment.fetch_sets[i].layer == layer) {
            return i;
        }
    }
    return SL_NONE;
}

int sl_list_fetch_sets(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    const int32_t layers = plan->options.host_experts;
    if (layers <= 0) {
        return 0;
    }
    sl_fetch_set *sets = sl_arena_alloc(&plan->arena, (size_t)layers, sizeof *sets);
    if (!sets) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    deployment->fetch_sets = sets;
    for (int32_t i = 0; i < program->op_count; i++) {
        const int32_t layer = expert_layer(&program->ops[i]);
        if (layer >= 0 && layer < layers && sl_fetch_set_of(plan, &program->ops[i]) == SL_NONE) {
            sets[deployment->fetch_set_count++] = (sl_fetch_set){.layer = layer};
        }
    }
    deployment->expert_slots = plan->options.expert_slots;
    return 0;
}

static bool take(uint64_t bytes, uint64_t *end) {
    uint64_t aligned;
    return sl_align_u64(bytes, SL_FETCH_ALIGNMENT, &aligned) && sl_add_u64(*end, aligned, end);
}

/* false when it passes 64 bits */
static bool lay_out(sl_plan *plan, sl_fetch_set *sets, uint64_t *end) {
    sl_deployment *deployment = &plan->deployment;
    const uint64_t experts = (uint64_t)deployment->program->experts;
    const uint64_t slots = (uint64_t)deployment->expert_slots;
    uint64_t largest = 0;
    bool streams = false, good = true;
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
        streams = streams || deployment->buckets[b].rows[SL_ROWS_EXPERT] > deployment->expert_slots;
    }
    deployment->buffer_bytes = streams ? largest : 0;
    good = good && sl_mul_u64(SL_FETCH_BUFFERS, deployment->buffer_bytes, end);
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

/* The most used experts of each set, the lower number first where two are used alike; unused ones come by
 * themselves. */
static int choose_first(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const int32_t experts = deployment->program->experts, slots = deployment->expert_slots;
    const size_t count = (size_t)deployment->fetch_set_count * (size_t)slots;
    int32_t *first = sl_arena_alloc(&plan->arena, count, sizeof *first);
    bool *taken = sl_arena_alloc(&plan->arena, (size_t)experts, sizeof *taken);
    if (!first || !taken) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
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

int sl_lay_out_fetches(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    if (deployment->fetch_set_count == 0) {
        return 0;
    }
    sl_fetch_set *sets = sl_arena_alloc(&plan->arena, (size_t)deployment->fetch_set_count, sizeof *sets);
    if (!sets) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    for (int32_t s = 0; s < deployment->fetch_set_count; s++) {
        sets[s].layer = deployment->fetch_sets[s].layer;
    }
    deployment->fetch_sets = sets;
    if (!lay_out(plan, sets, &deployment->pool_bytes[SL_POOL_EXPERTS])) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: the experts exceed 64 bits");
    }
    const uint64_t limit =
        plan->options.host_memory_limit ? plan->options.host_memory_limit : sl_host_memory_available();
    const uint64_t needed = deployment->pool_bytes[SL_POOL_HOST_WEIGHTS];
    if (needed > limit) {
        return sl_fail(error, SL_ERR_LIMIT,
                       "plan: the experts of %d layers need %llu bytes of host memory, the limit is %llu",
                       plan->options.host_experts, (unsigned long long)needed, (unsigned long long)limit);
    }
    return plan->options.expert_uses ? choose_first(plan, error) : 0;
}

/* ---- the choice ---- */

typedef struct choice {
    const sl_program *program;
    sl_backend *backend;
    const sl_plan_options *given;
    sl_plan_options options; /* of the next trial */
    int32_t layers;          /* of the model */
    sl_plan *plan;           /* the last trial that fitted */
} choice;

/* Bytes of one expert in all of the first `layers` layers. */
static uint64_t expert_bytes(const sl_program *program, int32_t layers) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        const int32_t layer = expert_layer(op);
        for (int32_t s = 0; layer >= 0 && layer < layers && s < op->u.linear.segment_count; s++) {
            sum += program->weights[op->u.linear.segments[s].weight].bytes;
        }
    }
    return sum / (uint64_t)program->experts;
}

static int32_t within(uint64_t slots, const sl_program *program) {
    const uint64_t least = (uint64_t)program->experts_used, most = (uint64_t)program->experts;
    return (int32_t)(slots < least ? least : slots > most ? most : slots);
}

/* To begin with: as many as were asked for, or a quarter of the experts. */
static int32_t usual_slots(const choice *c, int32_t layers) {
    const uint64_t bytes = expert_bytes(c->program, layers);
    return c->given->expert_slots > 0   ? within((uint64_t)c->given->expert_slots, c->program)
           : c->given->expert_cache > 0 ? within(c->given->expert_cache / (bytes > 0 ? bytes : 1), c->program)
                                        : within(((uint64_t)c->program->experts + 3) / 4, c->program);
}

/* 0 with the plan in c->plan, or SL_ERR_LIMIT with *error, or another error. */
static int try(choice *c, int32_t layers, int32_t slots, sl_error *error) {
    sl_plan *made;
    c->options.host_experts = layers;
    c->options.expert_slots = slots;
    const int code = sl_plan_make(c->program, c->backend, &c->options, &made, error);
    if (code == 0) {
        sl_plan_destroy(c->plan);
        c->plan = made;
    }
    return code;
}

enum { NEAR_GUESS = 4 }; /* trials beside a guess; a plan takes long to make */

/* How many layers would be enough, as the plan with all of them says. */
static int32_t guess_layers(const choice *c) {
    const int32_t layers = c->plan->options.host_experts;
    const uint64_t used = sl_plan_bytes(c->plan), limit = c->plan->options.memory_limit;
    const uint64_t kept = (uint64_t)(c->program->experts - c->plan->options.expert_slots);
    const uint64_t layer = expert_bytes(c->program, layers) / (uint64_t)layers * kept;
    const uint64_t less = layer > 0 && limit > used ? (limit - used) / layer : 0;
    return less < (uint64_t)layers ? layers - (int32_t)less : 1;
}

/* The least number of layers from `low` on that fits with the usual slots. With all layers in host memory and
 * still no room: the most slots that fit. */
static int find_layers(choice *c, int32_t low, sl_error *error) {
    int32_t high = c->layers;
    int code = try(c, high, usual_slots(c, high), error);
    if (code == SL_ERR_LIMIT) {
        int32_t least = c->program->experts_used, most = usual_slots(c, high) - 1, found = SL_NONE;
        while (least <= most) {
            const int32_t slots = least + (most - least) / 2;
            code = try(c, high, slots, error);
            if (code && code != SL_ERR_LIMIT) {
                return code;
            }
            found = code ? found : slots;
            least = code ? least : slots + 1;
            most = code ? slots - 1 : most;
        }
        return found == SL_NONE ? SL_ERR_LIMIT : 0;
    }
    int32_t guess = code == 0 ? guess_layers(c) : high;
    for (int32_t trials = 0; code == 0 && low < high; trials++) {
        const int32_t near = guess < low ? low : guess < high ? guess : high - 1;
        const int32_t middle = trials < NEAR_GUESS ? near : low + (high - low) / 2;
        code = try(c, middle, usual_slots(c, middle), error);
        if (code == 0) {
            high = middle;
            guess = middle - 1;
        } else if (code == SL_ERR_LIMIT) {
            low = middle + 1;
            guess = middle + 1;
            code = 0;
        }
    }
    return code;
}

/* As many more slots as there is room for. */
static int grow_slots(choice *c, sl_error *error) {
    const int32_t layers = c->plan->options.host_experts, least = c->plan->options.expert_slots;
    const uint64_t bytes = expert_bytes(c->program, layers), used = sl_plan_bytes(c->plan);
    const uint64_t left = c->plan->options.memory_limit > used ? c->plan->options.memory_limit - used : 0;
    int32_t slots = within((uint64_t)least + left / (bytes > 0 ? bytes : 1), c->program);
    while (slots > least) {
        const int code = try(c, layers, slots, error);
        if (code != SL_ERR_LIMIT) {
            return code;
        }
        slots -= (slots - least + 7) / 8;
    }
    return 0;
}

/* Larger chunks read the experts less often, and leave less room for them: as large as costs an eighth of the
 * layers at most. */
static int find_chunk(choice *c, int32_t low, sl_error *error) {
    enum { MOST_CHUNK = 8192 };
    const int32_t usual = c->given->chunk ? c->given->chunk : c->backend->chunk;
    const int32_t context = c->given->context;
    c->options.chunk = usual;
    int code = find_layers(c, low, error);
    if (code || c->given->chunk) {
        return code;
    }
    sl_plan *best = c->plan;
    const int32_t most = best->options.host_experts + c->layers / 8;
    c->plan = NULL;
    for (int32_t chunk = MOST_CHUNK; chunk > usual && code == 0; chunk /= 2) {
        sl_error why;
        c->options.chunk = chunk;
        if (chunk > (context > usual ? context : usual)) {
            continue;
        }
        code = try(c, most < c->layers ? most : c->layers, best->options.expert_slots, &why);
        if (code == 0) {
            code = find_layers(c, low, error);
            break;
        }
        code = code == SL_ERR_LIMIT ? 0 : code;
    }
    if (c->plan) {
        sl_plan_destroy(best);
    } else {
        c->plan = best;
    }
    c->options.chunk = c->plan->options.chunk;
    return code;
}

/* A cache for all sequences where it fits, else one that shrinks. */
static int find_all(choice *c, int32_t low, sl_error *error) {
    const uint64_t asked = c->given->cache_tokens;
    c->options.cache_tokens = asked ? asked : sl_plan_usual_cache(c->given);
    int code = find_chunk(c, low, error);
    if (code == SL_ERR_LIMIT && asked == 0) {
        c->options.cache_tokens = 0;
        code = find_chunk(c, low, error);
    }
    return code;
}

int sl_plan_with_experts(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                         sl_plan **plan, sl_error *error) {
    choice c = {.program = program, .backend = backend, .given = options, .options = *options};
    const bool is_free = options->host_experts < 0;
    c.layers = sl_program_layers(program);
    *plan = NULL;
    if (is_free) {
        c.options.host_experts = c.options.expert_slots = 0;
        const int code = sl_plan_make(program, backend, &c.options, plan, error);
        if (code != SL_ERR_LIMIT || options->observe) {
            return code;
        }
    } else {
        c.layers = options->host_experts < c.layers ? options->host_experts : c.layers;
    }
    if (options->observe) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: observations are made of experts on the device");
    }
    c.options.host_experts = 0;
    int code = find_all(&c, is_free ? 1 : c.layers, error);
    if (code == 0 && options->expert_slots == 0 && options->expert_cache == 0) {
        code = grow_slots(&c, error);
    }
    if (code) {
        sl_plan_destroy(c.plan);
        return code;
    }
    *plan = c.plan;
    return 0;
}
