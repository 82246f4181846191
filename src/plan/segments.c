/* Plans for several devices: who gets which layers, a plan for each, and what the whole needs. */
#include "plan/build.h"
#include "plan/split.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

static bool is_host(const sl_backend *backend) {
    return strcmp(backend->name, "cpu") == 0;
}

static void drop_segment(sl_plan_segment *segment) {
    sl_plan_destroy(segment->plan);
    sl_program_free(&segment->program);
    segment->plan = NULL;
}

/* Of the kernels that the caller prefers, those that this device has: a plan refuses names that none has. */
static const char *preferred_here(sl_plan *plan, const sl_backend *backend) {
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
    const char *kept = list.length && !list.failed ? sl_arena_printf(&plan->arena, "%s", list.data) : NULL;
    sl_buffer_free(&list);
    return kept;
}

/* The plan of layers [first, end) on device `index`, with what stands before and behind them. */
static int plan_segment(sl_plan *plan, int32_t index, const sl_plan_options *options,
                        sl_plan_segment *segment, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    sl_backend *backend = sl_split_part(plan->backend, index);
    const bool last = index + 1 == sl_split_count(plan->backend);
    const sl_program_range range = {index == 0 ? 0 : sl_program_layer_begin(program, segment->first_layer),
                                    last ? program->op_count
                                         : sl_program_layer_begin(program, segment->end_layer)};
    sl_plan_options own = *options;
    own.embed = last && options->embed;
    own.outputs = options->outputs - options->drafts;
    own.prefer = preferred_here(plan, backend);
    own.memory_limit = is_host(backend) ? options->host_memory_limit : options->memory_limit;
    segment->program = (sl_program){0};
    segment->plan = NULL;
    int code = sl_program_slice(program, range, &segment->program, error);
    code = code ? code : sl_plan_create(&segment->program, backend, &own, &segment->plan, error);
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

/* Most of the layers before `end` that fit device `index`: *first is where they begin. */
static int fill_device(sl_plan *plan, int32_t index, const sl_plan_options *options, int32_t end,
                       int32_t *first, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    int32_t fits = SL_NONE, low = 0, high = end;
    while (low <= high) {
        const int32_t middle = low + (high - low) / 2;
        sl_plan_segment trial = {.first_layer = next_cut(program, middle, end), .end_layer = end};
        const int code = plan_segment(plan, index, options, &trial, error);
        if (code == 0) {
            drop_segment(&trial);
            fits = trial.first_layer;
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

static int choose_layers(sl_plan *plan, sl_error *error) {
    const int32_t count = sl_split_count(plan->backend);
    sl_plan_options options = plan->options;
    int32_t end = sl_program_layers(plan->deployment.program);
    const uint64_t whole =
        (uint64_t)options.sequences * (uint64_t)sl_table_width(options.context) * SL_PAGE_TOKENS;
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

static int plan_all(sl_plan *plan, uint64_t cache_tokens, sl_error *error) {
    sl_plan_options options = plan->options;
    options.cache_tokens = cache_tokens;
    for (int32_t d = 0, at = 0; d < sl_split_count(plan->backend); d++) {
        sl_plan_segment *segment = &plan->segments[d];
        if (segment->plan) {
            drop_segment(segment);
        }
        segment->first_layer = at;
        segment->end_layer = at += plan->options.layers[d];
        const int code = plan_segment(plan, d, &options, segment, error);
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
    plan->memory = sl_arena_alloc(&plan->arena, (size_t)rows + 1, sizeof *plan->memory);
    if (!plan->memory) {
        return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    }
    memset(plan->deployment.pool_bytes, 0, sizeof plan->deployment.pool_bytes);
    plan->options.memory_limit = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const sl_plan *own = plan->segments[s].plan;
        for (int32_t i = 0; i < own->memory_count; i++) {
            plan->memory[plan->memory_count] = own->memory[i];
            plan->memory[plan->memory_count++].device = own->backend->name;
        }
        for (int p = 0; p < SL_POOL_COUNT; p++) {
            plan->deployment.pool_bytes[p] += own->deployment.pool_bytes[p];
        }
        plan->mapped_bytes += own->mapped_bytes;
        plan->options.memory_limit += own->options.memory_limit;
    }
    return 0;
}

int sl_plan_segments(sl_plan *plan, sl_error *error) {
    if (plan->options.observe) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: observations are made on one device");
    }
    int code = check_layers(plan, error);
    code = code ? code : agree_on_pages(plan, error);
    code = code ? code : sl_plan_fixed_pools(plan, error);
    if (code) {
        return code;
    }
    if (!sl_plan_set_pages(plan, plan->options.cache_tokens / SL_PAGE_TOKENS)) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: the cache exceeds 64 bits");
    }
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const sl_plan_segment *segment = &plan->segments[s];
        sl_log(SL_LOG_INFO, "plan: %d of %d layers, from %d on, on %s",
               segment->end_layer - segment->first_layer, sl_program_layers(plan->deployment.program),
               segment->first_layer, segment->plan->backend->name);
    }
    sl_split_use(plan->backend, plan);
    return join_memory(plan, error);
}
