/* Plans for several devices: who gets which layers, a plan for each, and what the whole needs. */
#include "plan/build.h"
#include "plan/split.h"
#include "plan/stages.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static bool is_host(const sl_backend *backend) {
    return strcmp(backend->name, "cpu") == 0;
}

static bool has_ranks(const sl_plan *plan) {
    return sl_split_kind_of(plan->backend) == SL_SPLIT_TENSORS;
}

static void drop_segment(sl_plan_segment *segment) {
    sl_plan_destroy(segment->plan);
    sl_program_free(&segment->program);
    segment->plan = NULL;
}

/* Of the kernels that the caller prefers, those that this device has: a plan refuses names that none has. */
static const char *preferred_here(const sl_plan *plan, const sl_backend *backend, sl_arena *arena) {
    int32_t count = 0;
    const sl_kernel *const *kernels = backend->functions->kernels(backend, &count);
    sl_buffer list = {0};
    for (const char *name = plan->options.prefer; name && *name;) {
        const size_t length = strcspn(name, ",");
        int32_t k = 0;
        while (k < count && strncmp(kernels[k]->name, name, length) != 0) {
            k++;
        }
        if (k < count) {
            sl_buffer_printf(&list, "%s%.*s", list.length ? "," : "", (int)length, name);
        }
        name += length + (name[length] == ',');
    }
    const char *kept = list.length && !list.failed ? sl_arena_printf(arena, "%s", list.data) : NULL;
    sl_buffer_free(&list);
    return kept;
}

/* ---- who runs what ---- */

/* owners[op_count], by the layers of each device; what stands in front of the layers belongs to the first,
 * what stands behind them to the last. */
static void own_layers(const sl_plan *plan, const int32_t *layers, int32_t *owners) {
    const sl_program *program = plan->deployment.program;
    const int32_t last = sl_split_count(plan->backend) - 1;
    for (int32_t d = 0, at = 0, op = 0; d <= last; d++) {
        at += layers[d];
        const int32_t end = d == last ? program->op_count : sl_program_layer_begin(program, at);
        for (; op < end; op++) {
            owners[op] = d;
        }
    }
}

/* Experts of the first layers to the host, which is the first device. */
static void own_experts(const sl_plan *plan, int32_t layers, int32_t *owners) {
    const sl_program *program = plan->deployment.program;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sl_op *op = &program->ops[i];
        if (op->layer >= 0 && op->layer < layers && sl_program_is_expert(program, op)) {
            owners[i] = 0;
        }
    }
}

/* Fills *partition, which is freed on failure. */
static int divide(const sl_plan *plan, const int32_t *layers, int32_t host_experts, sl_partition *partition,
                  sl_error *error) {
    const sl_program *program = plan->deployment.program;
    int32_t *owners = sl_alloc_zero((size_t)program->op_count + 1, sizeof *owners);
    *partition = (sl_partition){0};
    int code = owners ? 0 : sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    if (code == 0) {
        own_layers(plan, layers, owners);
        own_experts(plan, host_experts, owners);
        code = sl_program_partition(program, owners, sl_split_count(plan->backend), partition, error);
    }
    sl_free(owners);
    if (code) {
        sl_partition_free(partition);
        sl_fail_prefix(error, "plan");
    }
    return code;
}

/* The plan of what device `index` does of the partition. */
static int plan_segment(const sl_plan *plan, const sl_partition *partition, int32_t index,
                        const sl_plan_options *options, sl_plan_segment *segment, sl_error *error) {
    sl_backend *backend = sl_split_part(plan->backend, index);
    sl_plan_options own = *options;
    sl_arena names = {0};
    own.embed = (has_ranks(plan) || index + 1 == partition->parts) && options->embed;
    own.outputs = options->outputs - options->drafts;
    own.host_experts = own.expert_slots = 0; /* the partition says where experts are */
    own.prefer = preferred_here(plan, backend, &names);
    own.memory_limit = options->memory_limit;
    own.landing_bytes = has_ranks(plan) ? 0 : sl_stages_landing_bytes(plan, partition, index);
    if (is_host(backend)) {
        own.memory_limit = options->host_memory_limit ? options->host_memory_limit - plan->flight_bytes : 0;
        for (int i = 0; i < SL_DEVICE_LIMITS; i++) {
            own.limits[i].bytes -= strcmp(own.limits[i].device, "cpu") == 0 ? plan->flight_bytes : 0;
        }
    }
    segment->program = (sl_program){0};
    segment->plan = NULL;
    int code = has_ranks(plan)
                   ? sl_program_shard(plan->deployment.program, index, sl_split_count(plan->backend),
                                      &segment->program, error)
                   : sl_program_slice(plan->deployment.program, partition, index, &segment->program, error);
    code = code ? code : sl_plan_create(&segment->program, backend, &own, &segment->plan, error);
    sl_arena_free(&names);
    if (code) {
        drop_segment(segment);
    }
    return code;
}

/* ---- who gets which layers ---- */

/* The least first layer at or above `first` at which the program may be cut; `end` where there is none. */
static int32_t next_cut(const sl_program *program, int32_t first, int32_t end) {
    while (first < end && sl_program_cut_declines(program, sl_program_layer_begin(program, first))) {
        first++;
    }
    return first;
}

/* Does device `index` have room for layers [first, end)? 0 or SL_ERR_LIMIT, or another error. */
static int try_layers(const sl_plan *plan, int32_t index, const sl_plan_options *options, int32_t first,
                      int32_t end, sl_error *error) {
    int32_t layers[SL_MOST_DEVICES] = {0};
    sl_partition partition;
    sl_plan_segment trial = {0};
    layers[index - 1] = first;
    layers[index] = end - first;
    int code = divide(plan, layers, options->host_experts, &partition, error);
    code = code ? code : plan_segment(plan, &partition, index, options, &trial, error);
    drop_segment(&trial);
    sl_partition_free(&partition);
    return code;
}

/* Most of the layers before `end` that fit device `index`: *first is where they begin. */
static int fill_device(sl_plan *plan, int32_t index, const sl_plan_options *options, int32_t end,
                       int32_t *first, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    int32_t fits = SL_NONE, low = 0, high = end;
    while (low <= high) {
        const int32_t middle = low + (high - low) / 2, cut = next_cut(program, middle, end);
        const int code = try_layers(plan, index, options, cut, end, error);
        if (code == 0) {
            fits = cut;
            high = middle - 1;
        } else if (code != SL_ERR_LIMIT) {
            return code;
        } else {
            low = middle + 1;
        }
    }
    *first = fits;
    return fits == SL_NONE ? SL_ERR_LIMIT : 0;
}

/* All layers on the last device, experts of as few of the first ones as possible on the host: experts are
 * most of what a model weighs and little of what a token reads. SL_ERR_LIMIT: even without any it has no
 * room. */
static int choose_experts(sl_plan *plan, const sl_plan_options *options, sl_error *error) {
    const int32_t last = sl_split_count(plan->backend) - 1;
    const int32_t layers = sl_program_layers(plan->deployment.program);
    int32_t fits = SL_NONE, low = 0, high = layers;
    if (plan->deployment.program->experts == 0 || options->host_experts > 0 || last != 1 ||
        !is_host(sl_split_part(plan->backend, 0)) || is_host(sl_split_part(plan->backend, 1))) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: no experts to be placed");
    }
    while (low <= high) {
        sl_plan_options trial = *options;
        trial.host_experts = low + (high - low) / 2;
        const int code = try_layers(plan, last, &trial, 0, layers, error);
        if (code && code != SL_ERR_LIMIT) {
            return code;
        }
        if (code == 0) {
            fits = trial.host_experts;
            high = fits - 1;
        } else {
            low = trial.host_experts + 1;
        }
    }
    if (fits == SL_NONE) {
        return SL_ERR_LIMIT;
    }
    plan->options.host_experts = fits;
    plan->options.layers[last] = layers;
    return 0;
}

/* As many layers on each device, where none is the host and all have room. SL_ERR_LIMIT: one has not. */
static int choose_evenly(sl_plan *plan, const sl_plan_options *options, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    const int32_t count = sl_split_count(plan->backend), layers = sl_program_layers(program);
    int32_t ends[SL_MOST_DEVICES + 1] = {0};
    for (int32_t d = 0; d < count; d++) {
        if (is_host(sl_split_part(plan->backend, d))) {
            return SL_ERR_LIMIT;
        }
        ends[d + 1] = d + 1 == count ? layers : next_cut(program, layers * (d + 1) / count, layers);
    }
    for (int32_t d = 0; d < count; d++) {
        plan->options.layers[d] = ends[d + 1] - ends[d];
    }
    for (int32_t d = 0; d < count; d++) {
        sl_partition partition;
        sl_plan_segment trial = {0};
        int code = divide(plan, plan->options.layers, 0, &partition, error);
        code = code ? code : plan_segment(plan, &partition, d, options, &trial, error);
        drop_segment(&trial);
        sl_partition_free(&partition);
        if (code) {
            return code;
        }
    }
    return 0;
}

static int choose_layers(sl_plan *plan, sl_error *error) {
    const int32_t count = sl_split_count(plan->backend);
    sl_plan_options options = plan->options;
    int32_t end = sl_program_layers(plan->deployment.program);
    const uint64_t whole = ((uint64_t)options.sequences * (uint64_t)sl_table_width(options.context) +
                            (uint64_t)sl_table_width(options.kv_budget)) *
                           SL_PAGE_TOKENS;
    options.cache_tokens = plan->options.cache_tokens ? plan->options.cache_tokens : whole;
    const int experts = choose_experts(plan, &options, error);
    if (experts != SL_ERR_LIMIT) {
        return experts;
    }
    const int even = choose_evenly(plan, &options, error);
    if (even != SL_ERR_LIMIT) {
        return even;
    }
    memset(plan->options.layers, 0, sizeof plan->options.layers);
    for (int32_t d = count - 1; d > 0; d--) {
        int32_t first = end;
        options.cache_tokens = plan->options.cache_tokens ? plan->options.cache_tokens : whole;
        int code = fill_device(plan, d, &options, end, &first, error);
        if (code == SL_ERR_LIMIT && !plan->options.cache_tokens) {
            options.cache_tokens = 0; /* with fewer pages, then */
            code = fill_device(plan, d, &options, end, &first, error);
        }
        if (code) {
            return code;
        }
        plan->options.layers[d] = end - first;
        end = first;
    }
    plan->options.layers[0] = end;
    return 0;
}

static int check_layers(sl_plan *plan, sl_error *error) {
    const int32_t count = sl_split_count(plan->backend), layers = sl_program_layers(plan->deployment.program);
    const int32_t *given = plan->options.layers;
    int64_t sum = 0;
    if (plan->options.host_experts < 0 ||
        (plan->options.host_experts > 0 && !is_host(sl_split_part(plan->backend, 0)))) {
        return sl_fail(error, SL_ERR_INVALID, "plan: experts of %d layers on the host, which is none of %s",
                       plan->options.host_experts, plan->backend->name);
    }
    if (plan->options.host_experts > layers) {
        plan->options.host_experts = layers;
    }
    for (int32_t d = 0; d < count; d++) {
        if (given[d] < 0) {
            return sl_fail(error, SL_ERR_INVALID, "plan: %d layers on device %d", given[d], d);
        }
        sum += given[d];
    }
    if (sum == 0) {
        return choose_layers(plan, error);
    }
    if (sum != layers) {
        return sl_fail(error, SL_ERR_INVALID, "plan: %lld layers on %d devices, the model has %d",
                       (long long)sum, count, layers);
    }
    for (int32_t d = 0, at = 0; d + 1 < count; d++) {
        at += given[d];
        const char *reason = sl_program_cut_declines(plan->deployment.program,
                                                     sl_program_layer_begin(plan->deployment.program, at));
        if (reason) {
            return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: no border can be in front of layer %d: %s", at,
                           reason);
        }
    }
    return 0;
}

/* ---- the whole ---- */

/* What steps take along lies in host memory, whatever the devices are. */
static int plan_flights(sl_plan *plan, sl_error *error) {
    const uint64_t limit = plan->options.host_memory_limit;
    plan->flight_bytes = sl_stages_bytes(plan);
    return limit == 0 || plan->flight_bytes < limit
               ? 0
               : sl_fail(error, SL_ERR_LIMIT,
                         "plan: what steps take from device to device needs %llu bytes of host memory, the "
                         "limit is %llu",
                         (unsigned long long)plan->flight_bytes, (unsigned long long)limit);
}

/* Ranks have all layers each, so nobody can be given some. */
static int check_ranks(const sl_plan *plan, sl_error *error) {
    for (int32_t d = 0; d < sl_split_count(plan->backend); d++) {
        if (plan->options.layers[d] != 0) {
            return sl_fail(error, SL_ERR_INVALID,
                           "plan: %d layers on device %d, but tensors are split, so each has a share of all",
                           plan->options.layers[d], d);
        }
    }
    return plan->options.host_experts == 0
               ? 0
               : sl_fail(error, SL_ERR_INVALID, "plan: experts on the host, but tensors are split");
}

/* Ranks that have the same key head and other query heads would keep other keys of a prompt. */
static int check_budget(const sl_plan *plan, sl_error *error) {
    const sl_program *whole = plan->deployment.program, *part = &plan->segments[0].program;
    if (!has_ranks(plan) || plan->options.kv_budget == 0) {
        return 0;
    }
    for (int32_t i = 0, k = 0; i < whole->op_count; i++) {
        if (whole->ops[i].kind != SL_OP_ATTENTION) {
            continue;
        }
        while (part->ops[k].kind != SL_OP_ATTENTION) {
            k++;
        }
        const sl_op_attention *all = &whole->ops[i].u.attention, *own = &part->ops[k++].u.attention;
        const int32_t group = all->place.group;
        if (own->heads < all->heads && part->groups[group].kv_heads == whole->groups[group].kv_heads) {
            return sl_fail(error, SL_ERR_UNSUPPORTED,
                           "plan: kv_budget: all query heads read one key head, and ranks have some of them "
                           "each; leave it out, or give devices layers each");
        }
    }
    return 0;
}

static int divide_all(sl_plan *plan, sl_error *error) {
    if (has_ranks(plan)) {
        return check_ranks(plan, error);
    }
    int code = check_layers(plan, error);
    code =
        code ? code : divide(plan, plan->options.layers, plan->options.host_experts, &plan->partition, error);
    return code ? code : plan_flights(plan, error);
}

static void tell(const sl_plan *plan) {
    const int32_t layers = sl_program_layers(plan->deployment.program);
    sl_buffer shares = {0};
    if (has_ranks(plan)) {
        sl_program_describe_shards(plan->deployment.program, plan->segment_count, &shares);
        sl_log(SL_LOG_INFO, "plan: divided by %d: %s", plan->segment_count, shares.data ? shares.data : "");
        sl_buffer_free(&shares);
        return;
    }
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const sl_plan_segment *segment = &plan->segments[s];
        sl_log(SL_LOG_INFO, "plan: %d of %d layers, from %d on, on %s",
               segment->end_layer - segment->first_layer, layers, segment->first_layer,
               sl_split_part_name(plan->backend, s));
    }
}

static int plan_all(sl_plan *plan, uint64_t cache_tokens, sl_error *error) {
    sl_plan_options options = plan->options;
    options.cache_tokens = cache_tokens;
    for (int32_t d = 0, at = 0; d < sl_split_count(plan->backend); d++) {
        sl_plan_segment *segment = &plan->segments[d];
        if (segment->plan) {
            drop_segment(segment);
        }
        segment->first_layer = at;
        segment->end_layer =
            has_ranks(plan) ? sl_program_layers(plan->deployment.program) : (at += plan->options.layers[d]);
        const int code = plan_segment(plan, &plan->partition, d, &options, segment, error);
        if (code) {
            return code;
        }
        plan->segment_count = d + 1 > plan->segment_count ? d + 1 : plan->segment_count;
    }
    return 0;
}

/* All have as many pages: their numbers are those of one cache. */
static int agree_on_pages(sl_plan *plan, sl_error *error) {
    uint64_t least = UINT64_MAX;
    bool same = true;
    int code = plan_all(plan, plan->options.cache_tokens, error);
    if (code) {
        return code;
    }
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const uint64_t tokens = plan->segments[s].plan->options.cache_tokens;
        same = same && (s == 0 || tokens == least);
        least = tokens < least ? tokens : least;
    }
    plan->options.cache_tokens = least;
    return same ? 0 : plan_all(plan, least, error);
}

static int join_memory(sl_plan *plan, sl_error *error) {
    int32_t rows = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        rows += plan->segments[s].plan->memory_count;
    }
    plan->memory = sl_arena_alloc(&plan->arena, (size_t)rows + 2, sizeof *plan->memory);
    if (!plan->memory) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    memset(plan->deployment.pool_bytes, 0, sizeof plan->deployment.pool_bytes);
    plan->options.memory_limit = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const sl_plan *own = plan->segments[s].plan;
        for (int32_t i = 0; i < own->memory_count; i++) {
            plan->memory[plan->memory_count] = own->memory[i];
            plan->memory[plan->memory_count++].device = sl_split_part_name(plan->backend, s);
        }
        for (int p = 0; p < SL_POOL_COUNT; p++) {
            plan->deployment.pool_bytes[p] += own->deployment.pool_bytes[p];
        }
        plan->mapped_bytes += own->mapped_bytes;
        plan->options.memory_limit += own->options.memory_limit;
    }
    if (has_ranks(plan)) {
        return 0;
    }
    sl_memory_row *row = &plan->memory[plan->memory_count++];
    *row = (sl_memory_row){.pool = SL_POOL_STAGING, .bytes = plan->flight_bytes, .device = "cpu"};
    snprintf(row->name, sizeof row->name, "between devices");
    snprintf(row->detail, sizeof row->detail, "%d steps on their way", SL_SPLIT_STEPS);
    plan->deployment.pool_bytes[SL_POOL_STAGING] += plan->flight_bytes;
    plan->options.memory_limit += plan->options.host_memory_limit > 0 ? plan->flight_bytes : 0;
    return 0;
}

int sl_plan_segments(sl_plan *plan, sl_error *error) {
    if (plan->options.observe) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: observations are made on one device");
    }
    if (plan->deployment.program->draft_ops > 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: a model's own head drafts on one device");
    }
    int code = divide_all(plan, error);
    code = code ? code : agree_on_pages(plan, error);
    code = code ? code : check_budget(plan, error);
    code = code ? code : sl_plan_fixed_pools(plan, error);
    if (code) {
        return code;
    }
    if (!sl_plan_set_pages(plan, plan->options.cache_tokens / SL_PAGE_TOKENS)) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: the cache exceeds 64 bits");
    }
    tell(plan);
    sl_split_use(plan->backend, plan);
    return join_memory(plan, error);
}
