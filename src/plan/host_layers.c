/* Weights in host memory beside a device: of how many layers, and how many of their experts the device has as
 * well. Of a program with experts these are the experts, else all that LINEARs read.
 */
#include "plan/build.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <stdio.h>

/* ---- the choice ---- */

typedef struct choice {
    const sl_program *program;
    sl_backend *backend;
    const sl_plan_options *given;
    sl_plan_options options; /* of the next trial */
    int32_t layers;          /* that may be in host memory */
    sl_plan *plan;           /* the last trial that fitted */
    /* Of a program without experts: the layers that can be in host memory, and what each takes there. */
    sl_arena arena;
    int32_t *list;
    uint64_t *bytes;
    int32_t listed;
} choice;

static bool has_experts(const choice *c) {
    return c->program->experts > 0;
}

/* Bytes of one expert in all of the first `layers` layers. */
static uint64_t expert_bytes(const sl_program *program, int32_t layers) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        const bool reads = op->kind == SL_OP_LINEAR && op->in[1].value != SL_NONE && op->layer >= 0;
        for (int32_t s = 0; reads && op->layer < layers && s < op->u.linear.segment_count; s++) {
            sum += program->weights[op->u.linear.segments[s].weight].bytes;
        }
    }
    return sum / (uint64_t)program->experts;
}

/* What is fetched is never packed: it takes as much as in the plan. */
static int list_layers(choice *c, sl_error *error) {
    const int code = sl_list_layers_to_fetch(c->program, &c->arena, &c->list, &c->listed, error);
    c->bytes = code ? NULL : sl_arena_alloc(&c->arena, (size_t)c->listed + 1, sizeof *c->bytes);
    if (code || !c->bytes) {
        return code ? code : sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    for (int32_t i = 0; i < c->program->op_count; i++) {
        const sl_op *op = &c->program->ops[i];
        int32_t weights[SL_OP_WEIGHTS], at = 0;
        const int32_t count = op->kind == SL_OP_LINEAR ? sl_op_weights(op, weights) : 0;
        while (at < c->listed && c->list[at] != op->layer) {
            at++;
        }
        for (int32_t w = 0; w < count && at < c->listed; w++) {
            uint64_t bytes;
            if (weights[w] != SL_NONE &&
                (!sl_stored_bytes(c->backend->column_multiple, &c->program->weights[weights[w]], &bytes) ||
                 !sl_align_u64(bytes, SL_POOL_ALIGNMENT, &bytes) ||
                 !sl_add_u64(c->bytes[at], bytes, &c->bytes[at]))) {
                return sl_fail(error, SL_ERR_LIMIT, "plan: the weights exceed 64 bits");
            }
        }
    }
    return 0;
}

/* What so many layers take of host memory. */
static uint64_t layer_bytes(const choice *c, int32_t layers) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < layers; i++) {
        const uint64_t one = c->bytes[sl_spread_layer(i, layers, c->listed)];
        sum += one < UINT64_MAX - sum ? one : UINT64_MAX - sum;
    }
    return sum;
}

/* Of layers in host memory, as a plan has them. */
static int32_t layers_of(const choice *c, const sl_plan *plan) {
    return has_experts(c) ? plan->options.host_experts : plan->options.host_layers;
}

static int32_t within(uint64_t slots, const sl_program *program) {
    const uint64_t least = (uint64_t)program->experts_used, most = (uint64_t)program->experts;
    return (int32_t)(slots < least ? least : slots > most ? most : slots);
}

/* To begin with: as many as were asked for, or a quarter of the experts. */
static int32_t usual_slots(const choice *c, int32_t layers) {
    if (!has_experts(c)) {
        return 0;
    }
    const uint64_t bytes = expert_bytes(c->program, layers);
    return c->given->expert_slots > 0   ? within((uint64_t)c->given->expert_slots, c->program)
           : c->given->expert_cache > 0 ? within(c->given->expert_cache / (bytes > 0 ? bytes : 1), c->program)
                                        : within(((uint64_t)c->program->experts + 3) / 4, c->program);
}

/* 0 with the plan in c->plan, or SL_ERR_LIMIT with *error, or another error. */
static int try(choice *c, int32_t layers, int32_t slots, sl_error *error) {
    sl_plan *made;
    c->options.host_experts = has_experts(c) ? layers : 0;
    c->options.host_layers = has_experts(c) ? 0 : layers;
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
    const int32_t layers = layers_of(c, c->plan);
    const uint64_t used = sl_plan_bytes(c->plan), limit = c->plan->options.memory_limit;
    const uint64_t kept = (uint64_t)(c->program->experts - c->plan->options.expert_slots);
    const uint64_t layer = has_experts(c) ? expert_bytes(c->program, layers) / (uint64_t)layers * kept
                                          : layer_bytes(c, layers) / (uint64_t)layers;
    const uint64_t less = layer > 0 && limit > used ? (limit - used) / layer : 0;
    return less < (uint64_t)layers ? layers - (int32_t)less : 1;
}

/* The least number of layers from `low` on that fits with the usual slots. With all layers in host memory and
 * still no room: the most slots of experts that fit. */
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

/* Larger chunks read the weights less often, and leave less room for them: as large as costs an eighth of the
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
    const int32_t most = layers_of(c, best) + c->layers / 8;
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

/* As many layers as host memory has room for, when they are as few as must be. */
static int32_t most_layers(const choice *c, uint64_t limit) {
    int32_t layers = c->listed;
    while (layers > 0 && layer_bytes(c, layers) > limit) {
        layers--;
    }
    return layers;
}

/* Of how many layers, at most, what is fetched lies in host memory; and their list. */
static int bound_layers(choice *c, uint64_t *host_limit, sl_error *error) {
    const int32_t asked = has_experts(c) ? c->given->host_experts : c->given->host_layers;
    *host_limit = UINT64_MAX;
    c->layers = sl_program_layers(c->program);
    if (!has_experts(c)) {
        const int code = list_layers(c, error);
        if (code) {
            return code;
        }
        if (c->listed == 0) {
            return sl_fail(error, SL_ERR_UNSUPPORTED,
                           "plan: there is no layer whose weights could be in host memory by themselves");
        }
        *host_limit = sl_plan_host_limit(sl_plan_limit(c->given, "cpu", 0, c->given->host_memory_limit));
        c->layers = asked < 0 ? most_layers(c, *host_limit) : c->listed;
    }
    c->layers = asked >= 0 && asked < c->layers ? asked : c->layers;
    return 0;
}

static int choose(choice *c, bool is_free, sl_error *error) {
    uint64_t host_limit;
    char all[120];
    int code = bound_layers(c, &host_limit, error);
    if (code) {
        return code;
    }
    code = c->layers > 0 ? find_all(c, is_free ? 1 : c->layers, error) : SL_ERR_LIMIT;
    if (code == SL_ERR_LIMIT && is_free && !has_experts(c) && c->layers < c->listed) {
        snprintf(all, sizeof all, "host memory, limit %llu, has room for the weights of %d of %d layers",
                 (unsigned long long)host_limit, (int)c->layers, (int)c->listed);
        return sl_fail_prefix(error, all);
    }
    if (code == 0 && has_experts(c) && c->given->expert_slots == 0 && c->given->expert_cache == 0) {
        code = grow_slots(c, error);
    }
    return code;
}

int sl_plan_with_fetches(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                         sl_plan **plan, sl_error *error) {
    choice c = {.program = program, .backend = backend, .given = options, .options = *options};
    const bool is_free = (has_experts(&c) ? options->host_experts : options->host_layers) < 0;
    *plan = NULL;
    if (is_free) {
        c.options.host_experts = c.options.host_layers = c.options.expert_slots = 0;
        const int code = sl_plan_make(program, backend, &c.options, plan, error);
        if (code != SL_ERR_LIMIT || options->observe) {
            return code;
        }
    }
    if (options->observe) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: observations are made of weights on the device");
    }
    c.options.host_experts = c.options.host_layers = 0;
    const int code = choose(&c, is_free, error);
    sl_arena_free(&c.arena);
    if (code) {
        sl_plan_destroy(c.plan);
        return code;
    }
    *plan = c.plan;
    return 0;
}
