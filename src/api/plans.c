/* The C API: plans, made and described. */
#include "api/plans.h"

#include "api/experts.h"
#include "api/models.h"
#include "api/speculate.h"
#include "base/alloc.h"
#include "base/log.h"
#include "plan/split.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int parse_cache_type(const char *name, sl_qtype *type, sl_error *error) {
    int parsed = name ? sl_qtype_parse_cache(name) : SL_QTYPE_F16;
    if (parsed < 0) {
        return sl_fail(error, SL_ERR_INVALID, "kv type: \"%s\" is not one of %s", name, sl_qtype_cache_names);
    }
    *type = (sl_qtype)parsed;
    return 0;
}

static int backend_options(const sluice_engine_options *o, sl_backend_options *out, sl_error *error) {
    int isa = o->isa ? sl_isa_parse(o->isa) : (int)sl_cpu_isa();
    if (isa < 0) {
        return sl_fail(error, SL_ERR_INVALID, "isa: \"%s\" is not one of plain, avx2, avxvnni, avx512, amx",
                       o->isa);
    }
    if (!sl_cpu_has((sl_isa)isa)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "isa: this machine has %s, not %s",
                       sl_isa_name(sl_cpu_isa()), o->isa);
    }
    _Static_assert((int)SLUICE_PROMPT_FP8 == (int)SL_PRECISION_FP8 &&
                       SL_PRECISION_COUNT == SLUICE_PROMPT_FP8 + 1,
                   "the same precisions in the same order");
    if ((unsigned)o->prompt_precision >= SL_PRECISION_COUNT) {
        return sl_fail(error, SL_ERR_INVALID, "prompt precision: %d is no sluice_prompt_precision",
                       (int)o->prompt_precision);
    }
    *out = (sl_backend_options){.threads = o->threads,
                                .isa = (sl_isa)isa,
                                .no_graphs = o->no_graphs,
                                .no_fusion = o->no_fusion,
                                .no_repack = o->no_repack,
                                .deterministic = o->deterministic,
                                .prompt_precision = (sl_precision)o->prompt_precision};
    return 0;
}

/* ---- on which devices
 * --------------------------------------------------------------------------------------------------- */

typedef struct places {
    const sl_program *program, *drafting; /* the latter with the head that drafts; NULL: it is not used */
    const sl_backend_options *options;
    sl_plan_options *plan_options;
    const sluice_engine_options *given;
} places;

static int plan_here(const places *where, sl_api_plan *planned, sl_error *error) {
    /* The head drafts on one device: several go without it, unless it was asked for. */
    const bool asked = where->given->speculate == SLUICE_SPECULATE_MTP;
    const bool drafts = where->drafting && (asked || sl_split_count(planned->backend) == 0);
    return sl_plan_create(drafts ? where->drafting : where->program, planned->backend, where->plan_options,
                          &planned->plan, error);
}

/* What a plan has where. */
static void describe_place(const sl_plan *plan, char *text, size_t size) {
    const int32_t layers = sl_program_layers(plan->deployment.program);
    size_t length = 0;
    if (plan->deployment.fetch_set_count > 0) {
        snprintf(text, size, "everything, but the %s of %d of %d layers are in host memory",
                 plan->options.host_layers > 0 ? "weights" : "experts", plan->deployment.fetch_set_count,
                 layers);
    } else if (plan->options.host_experts > 0) {
        snprintf(text, size, "everything, but the experts of %d of %d layers are on the CPU",
                 plan->options.host_experts, layers);
    } else if (plan->segment_count == 0) {
        snprintf(text, size, "everything");
    }
    for (int32_t i = 0; plan->options.host_experts <= 0 && i < plan->segment_count && length < size; i++) {
        const sl_plan_segment *segment = &plan->segments[i];
        length +=
            (size_t)snprintf(text + length, size - length, "%s%d of %d layers on %s", i ? ", " : "",
                             segment->end_layer - segment->first_layer, layers, segment->plan->backend->name);
    }
}

static void note_place(const places *where, const char *device, sl_api_plan *planned, int code,
                       const sl_error *error) {
    if (planned->place_count == SL_API_PLACES) {
        return;
    }
    sl_api_place *place = &planned->places[planned->place_count++];
    const bool experts = where->program->experts > 0;
    const bool fetches = (experts ? where->plan_options->host_experts : where->plan_options->host_layers) < 0;
    snprintf(place->name, sizeof place->name, "%s%s", device,
             !fetches  ? ""
             : experts ? ", fetching experts"
                       : ", fetching weights");
    if (code) {
        snprintf(place->outcome, sizeof place->outcome, "%s", error->message);
    } else {
        describe_place(planned->plan, place->outcome, sizeof place->outcome);
    }
}

static int plan_on(const places *where, const char *device, sl_api_plan *planned, sl_error *error) {
    int code = strchr(device, '+') ? sl_split_open(device, where->options, &planned->backend, error)
                                   : sl_backend_open(device, where->options, &planned->backend, error);
    code = code ? code : plan_here(where, planned, error);
    note_place(where, device, planned, code, error);
    return code;
}

/* What `device` names besides the host: "cuda" of "cuda+cpu"; "" when there is nothing else. */
static void beside_host(const char *device, char *name, size_t size) {
    name[0] = '\0';
    for (const char *at = device; *at && !name[0]; at += *at == '+') {
        const size_t length = strcspn(at, "+");
        if (length != 3 || memcmp(at, "cpu", 3) != 0) {
            snprintf(name, size, "%.*s", (int)length, at);
        }
        at += length;
    }
}

/* Weights of whole layers that come from host memory, if there are any. */
static void tell_of_layers(const places *where, const sl_plan *plan) {
    const int32_t count = plan->deployment.fetch_set_count, asked = where->plan_options->host_layers;
    const int32_t layers = sl_program_layers(where->program);
    if (count > 0) {
        sl_log(where->given->gpu_layers > 0 ? SL_LOG_INFO : SL_LOG_WARNING,
               "device: the weights of %d of %d layers are in host memory, and the GPU fetches them in each "
               "step; with device cuda+cpu the CPU computes layers that do not fit",
               count, layers);
    }
    if (asked > count) {
        sl_log(SL_LOG_WARNING,
               "gpu layers: %d instead of %d: weights of the others are read in several places",
               layers - count, layers - asked);
    }
}

/* On a GPU alone. What does not fit is fetched from host memory: of a model with experts these, else whole
 * layers. */
static int plan_on_gpu(const places *where, const char *device, sl_api_plan *planned, sl_error *error) {
    if (where->plan_options->host_experts == 0) {
        where->plan_options->host_experts = SL_NONE;
    }
    if (where->plan_options->host_layers == 0) {
        where->plan_options->host_layers = SL_NONE;
    }
    const int code = plan_on(where, device, planned, error);
    if (code == 0 && where->program->experts == 0) {
        tell_of_layers(where, planned->plan);
    } else if (code == 0 && planned->plan->deployment.fetch_set_count > 0) {
        sl_log(where->given->cpu_experts > 0 ? SL_LOG_INFO : SL_LOG_WARNING,
               "device: the experts of %d of %d layers are in host memory, and %d of %d in each of them on "
               "the GPU, which fetches others; with device cuda+cpu the CPU computes them",
               planned->plan->deployment.fetch_set_count, sl_program_layers(where->program),
               planned->plan->deployment.expert_slots, where->program->experts);
    }
    return code;
}

/* The CPU has experts, or layers, that do not fit the GPU. */
static int plan_beside_host(const places *where, const char *all, sl_api_plan *planned, sl_error *error) {
    const int code = plan_on(where, all, planned, error);
    if (code == 0 && planned->plan->options.host_experts > 0) {
        sl_log(SL_LOG_WARNING,
               "device: not all fits the GPU; the experts of %d of %d layers are on the CPU. With device "
               "cuda the GPU fetches them",
               planned->plan->options.host_experts, sl_program_layers(where->program));
    } else if (code == 0) {
        sl_log(SL_LOG_WARNING,
               "device: %d of %d layers are on the GPU, where not all fit; the rest runs on the CPU%s",
               planned->plan->segments[planned->plan->segment_count - 1].end_layer -
                   planned->plan->segments[planned->plan->segment_count - 1].first_layer,
               sl_program_layers(where->program),
               where->program->experts > 0 ? ""
                                           : ". For long prompts there is device cuda: the GPU computes all "
                                             "layers, and fetches the weights that do not fit");
    }
    return code;
}

/* A backend that is none of the host's memory refused for want of room. */
static bool is_too_small(const sl_api_plan *planned, int code) {
    return code == SL_ERR_LIMIT && planned->backend && !planned->backend->maps_weights;
}

/* Of a place that was too small; what the options were read to stays. */
static void drop_trial(sl_api_plan *planned) {
    sl_plan_destroy(planned->plan);
    sl_backend_close(planned->backend);
    planned->plan = NULL;
    planned->backend = NULL;
}

/* Everything on one device when it fits there, since nothing then has to cross a border. */
static int plan_on_one_or_all(const places *where, const char *one, const char *all, sl_api_plan *planned,
                              sl_error *error) {
    int code = plan_on(where, one, planned, error);
    if (is_too_small(planned, code)) {
        const sl_error why = *error;
        drop_trial(planned);
        code = plan_beside_host(where, all, planned, error);
        *error = code == SL_ERR_LIMIT ? why : *error;
    }
    return code;
}

/* The fastest of what is possible. A GPU that fetches experts measured several times as fast as a CPU that
 * computes them (docs/placement.md); it needs as much host memory that can be pinned. Weights of whole layers
 * are never fetched unasked: each token would wait for all of them. */
static int plan_anywhere(const places *where, const char *gpu, const char *all, sl_api_plan *planned,
                         sl_error *error) {
    const int32_t asked = where->plan_options->host_experts;
    int code = asked > 0 ? SL_ERR_LIMIT : plan_on(where, "auto", planned, error);
    if (asked > 0 || (is_too_small(planned, code) && where->program->experts > 0)) {
        drop_trial(planned);
        code = plan_on_gpu(where, gpu, planned, error);
    }
    if (is_too_small(planned, code)) {
        const sl_error why = *error;
        drop_trial(planned);
        where->plan_options->host_experts = asked;
        code = plan_beside_host(where, all, planned, error);
        *error = code == SL_ERR_LIMIT ? why : *error;
    }
    return code;
}

/* At most so many of the last layers, as a border in front of them is possible. */
static int32_t layers_behind_border(const sl_program *program, int32_t asked) {
    const int32_t layers = sl_program_layers(program);
    int32_t possible = asked < layers ? asked : layers;
    const char *reason = NULL, *why = NULL;
    while (possible > 0 && (reason = sl_program_cut_declines(
                                program, sl_program_layer_begin(program, layers - possible))) != NULL) {
        why = reason;
        possible--;
    }
    if (why) {
        sl_log(SL_LOG_WARNING, "gpu layers: %d instead of %d: %s", possible, asked, why);
    }
    return possible;
}

/* As many layers on the GPU as were asked for, the others on the CPU. */
static int plan_with_layers(const places *where, const char *gpu, const char *all, sl_api_plan *planned,
                            sl_error *error) {
    const int32_t layers = sl_program_layers(where->program);
    const int32_t asked = layers_behind_border(where->program, where->given->gpu_layers);
    if (asked >= layers && gpu[0] && where->plan_options->host_experts == 0) {
        return plan_on(where, gpu, planned, error);
    }
    where->plan_options->layers[0] = asked < layers ? layers - asked : 0;
    where->plan_options->layers[1] = layers - where->plan_options->layers[0];
    return plan_on(where, all, planned, error);
}

/* Weights of as many layers on the GPU as were asked for, those of the others in host memory. */
static int plan_with_weights(const places *where, const char *device, sl_api_plan *planned, sl_error *error) {
    const int32_t layers = sl_program_layers(where->program);
    if (where->given->gpu_layers >= layers) {
        return plan_on(where, device, planned, error);
    }
    where->plan_options->host_layers = layers - where->given->gpu_layers;
    return plan_on_gpu(where, device, planned, error);
}

static int place_model(const places *where, sl_api_plan *planned, sl_error *error) {
    const char *device = where->given->device ? where->given->device : "auto";
    const bool is_auto = strcmp(device, "auto") == 0;
    const int32_t asked = where->given->gpu_layers;
    char gpu[32], all[48];
    if (asked < SLUICE_NO_LAYERS) {
        return sl_fail(error, SL_ERR_INVALID, "gpu layers: %d", asked);
    }
    beside_host(is_auto ? "cuda" : device, gpu, sizeof gpu);
    snprintf(all, sizeof all, "%s+cpu", gpu);
    if (asked == SLUICE_NO_LAYERS) {
        return plan_on(where, "cpu", planned, error);
    }
    if (strchr(device, '+')) {
        snprintf(all, sizeof all, "%s", device);
    }
    if (asked > 0 && !gpu[0] && !strchr(device, '+')) {
        return sl_fail(error, SL_ERR_INVALID, "gpu layers: %d, but the device is %s", asked, device);
    }
    const bool apart = where->plan_options->host_experts > 0;
    const bool alone = gpu[0] && !is_auto && !strchr(device, '+');
    if ((asked > 0 || apart) && is_auto) {
        /* As people's scripts say it on any machine. */
        const int code = sl_backend_open(device, where->options, &planned->backend, error);
        if (code || planned->backend->maps_weights) {
            sl_log(SL_LOG_WARNING, "gpu layers: there is no GPU here, so all layers run on the CPU");
            return code ? code : plan_here(where, planned, error);
        }
        drop_trial(planned);
    }
    if (asked > 0 && alone && where->program->experts == 0) {
        return plan_with_weights(where, device, planned, error);
    }
    if (asked > 0) {
        return plan_with_layers(where, gpu, all, planned, error);
    }
    if (alone) {
        return plan_on_gpu(where, device, planned, error);
    }
    if (apart && strchr(device, '+')) {
        return plan_on(where, all, planned, error);
    }
    if (is_auto) {
        return plan_anywhere(where, gpu, all, planned, error);
    }
    return strchr(device, '+') && gpu[0] ? plan_on_one_or_all(where, gpu, all, planned, error)
                                         : plan_on(where, device, planned, error);
}

int sl_api_plan_open(const sl_model *model, const sluice_engine_options *o, sl_api_plan *planned,
                     sl_error *error) {
    memset(planned, 0, sizeof *planned);
    if (!sl_api_has_weights(model)) {
        return sl_api_no_weights(error);
    }
    sl_backend_options options;
    int result = backend_options(o, &options, error);
    enum { USUAL_CONTEXT = 4096 };
    int32_t most = model->config.context > 0 ? model->config.context : USUAL_CONTEXT;
    sl_plan_options plan_options = {
        .chunk = o->chunk,
        .sequences = o->sequences,
        .context = o->context             ? o->context
                   : most < USUAL_CONTEXT ? most
                                          : USUAL_CONTEXT,
        .outputs = o->outputs,
        .cache_tokens = o->cache_tokens,
        .state_slots = o->state_slots,
        .memory_limit = o->memory_limit,
        .prefer = o->kernels,
        .embed = o->embeddings,
        .observe = o->observe,
        .drafts = sl_api_draft_rows(model, o),
        .host_memory_limit = o->host_memory_limit,
        .kv_budget = o->kv_budget,
        .kv_window = o->kv_window,
        .kv_pool = o->kv_pool,
        .host_experts = model->program.experts > 0 ? o->cpu_experts : 0,
        .expert_cache = o->expert_cache,
    };
    if (result == 0 &&
        (o->chunk < 0 || o->sequences < 0 || o->context < 0 || o->outputs < 0 || o->state_slots < 0)) {
        result =
            sl_fail(error, SL_ERR_INVALID,
                    "chunk %d, sequences %d, context %d, outputs %d, state slots %d: none may be negative",
                    o->chunk, o->sequences, o->context, o->outputs, o->state_slots);
    }
    if (result == 0 && o->cpu_experts < 0) {
        result = sl_fail(error, SL_ERR_INVALID, "cpu experts: %d layers", o->cpu_experts);
    }
    if (result == 0 && o->cpu_experts > 0 && model->program.experts == 0) {
        sl_log(SL_LOG_WARNING, "cpu experts: the model has none");
    }
    if (result == 0 && o->context > most) {
        sl_log(SL_LOG_WARNING, "context: %d tokens are more than the %d that the model was made for",
               o->context, most);
    }
    if (result == 0) {
        result = parse_cache_type(o->kv_type, &plan_options.cache_type, error);
    }
    result = result ? result : sl_api_take_limits(o, &plan_options, error);
    if (result == 0 && o->expert_pin) {
        result = sl_api_read_expert_uses(model, o->expert_pin, &planned->expert_uses, error);
        plan_options.expert_uses = planned->expert_uses;
    }
    if (result == 0) {
        const sl_program *drafting = sl_api_drafts_with_head(model, o) ? &model->drafting : NULL;
        const places where = {&model->program, drafting, &options, &plan_options, o};
        result = place_model(&where, planned, error);
    }
    if (result == 0 && o->expert_pin && planned->plan->deployment.fetch_set_count == 0) {
        sl_log(SL_LOG_INFO, "expert pin: the GPU fetches no experts here, so there are none to be at hand");
    }
    if (result) {
        sl_api_plan_close(planned);
    }
    return result;
}

void sl_api_plan_close(sl_api_plan *planned) {
    sl_plan_destroy(planned->plan);
    sl_backend_close(planned->backend);
    sl_free(planned->expert_uses);
    memset(planned, 0, sizeof *planned);
}

/* What one token of one sequence costs with an empty cache: bytes of weights read, floating-point operations.
 * Each page of the cache is read besides. */
static json_t *token_json(const sl_plan *plan) {
    const sl_program *program = plan->deployment.program;
    const int32_t used = program->experts_used > 0 ? program->experts_used : 1;
    const int32_t rows[SL_ROWS_COUNT] = {[SL_ROWS_STEP] = 1, [SL_ROWS_EXPERT] = used, [SL_ROWS_OUTPUT] = 1};
    sl_cost sum = {0};
    for (int32_t i = 0; i < program->op_count - program->draft_ops; i++) {
        const sl_cost cost = sl_op_cost(program, &program->ops[i], rows, 0);
        sum.operations += cost.operations;
        sum.weight_bytes += cost.weight_bytes;
    }
    return json_pack("{s:I, s:I}", "weight_bytes", (json_int_t)sum.weight_bytes, "operations",
                     (json_int_t)sum.operations);
}

static json_t *places_json(const sl_api_plan *planned) {
    json_t *places = json_array();
    for (int i = 0; places && i < planned->place_count; i++) {
        json_array_append_new(places,
                              json_pack("{s:s, s:s, s:b}", "devices", planned->places[i].name, "outcome",
                                        planned->places[i].outcome, "taken", i == planned->place_count - 1));
    }
    return places;
}

/* Where there was no choice there is nothing to say. */
static void print_places(const sl_api_plan *planned, sl_buffer *out) {
    for (int i = 0; planned->place_count > 1 && i < planned->place_count; i++) {
        sl_buffer_printf(out, "%-12s%s: %s\n", i == planned->place_count - 1 ? "placed on" : "tried",
                         planned->places[i].name, planned->places[i].outcome);
    }
}

static json_t *memory_json(const sl_api_plan *planned) {
    const sl_plan *plan = planned->plan;
    json_t *rows = json_array();
    for (int32_t i = 0; rows && i < plan->memory_count; i++) {
        const sl_memory_row *row = &plan->memory[i];
        json_array_append_new(rows, json_pack("{s:s, s:I, s:s, s:s*}", "name", row->name, "bytes",
                                              (json_int_t)row->bytes, "detail", row->detail, "device",
                                              row->device));
    }
    const uint64_t limit = plan->options.memory_limit;
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "device", plan->backend->description,
                     "memory", rows, "total_bytes", (json_int_t)sl_plan_bytes(plan), "host_weights_bytes",
                     (json_int_t)plan->deployment.pool_bytes[SL_POOL_HOST_WEIGHTS], "mapped_bytes",
                     (json_int_t)plan->mapped_bytes, "memory_limit",
                     limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit), "token",
                     token_json(plan), "places", places_json(planned));
}

/* Lines of text as a JSON array. */
static json_t *lines_json(const sl_buffer *text) {
    json_t *lines = json_array();
    for (const char *at = text->data; lines && at && *at;) {
        size_t length = strcspn(at, "\n");
        json_array_append_new(lines, json_stringn(at, length));
        at += length + (at[length] == '\n');
    }
    return lines;
}

int sluice_plan_describe(const sluice_model *model, const sluice_engine_options *given, sluice_plan_view view,
                         sluice_text_format format, char **text, sluice_error *error) {
    if (sl_api_lacks_text(model, format, text, error)) {
        return SL_ERR_INVALID;
    }
    if ((unsigned)view > SLUICE_PLAN_EXPLAIN) {
        return sl_api_fail(error, SL_ERR_INVALID, "view: %d is no sluice_plan_view", (int)view);
    }
    sluice_engine_options options;
    int result = sl_api_options(&options, sizeof options, given, "sluice_engine_options", error);
    if (result) {
        return result;
    }
    sl_error inner;
    sl_api_plan planned;
    result = sl_api_plan_open(model->model, &options, &planned, &inner);
    if (result) {
        return sl_api_error(error, &inner);
    }
    sl_buffer buffer = {0};
    if (view == SLUICE_PLAN_OPS) {
        sl_plan_print_ops(planned.plan, planned.plan->deployment.bucket_count - 1, &buffer);
    } else if (view == SLUICE_PLAN_EXPLAIN) {
        print_places(&planned, &buffer);
        sl_plan_explain(planned.plan, &buffer);
    } else if (format == SLUICE_TEXT) {
        sl_plan_print_memory(planned.plan, &buffer);
        print_places(&planned, &buffer);
    }
    if (format == SLUICE_TEXT) {
        result = sl_api_give_text(&buffer, text, NULL, error);
    } else {
        json_t *value = view == SLUICE_PLAN_MEMORY ? memory_json(&planned) : lines_json(&buffer);
        sl_buffer_free(&buffer);
        result = sl_api_give_json(value, text, error);
    }
    sl_api_plan_close(&planned);
    return result;
}
