/* The C API: on which devices a model lies, and what else was tried. */
#include "api/plans.h"

#include "base/log.h"
#include "plan/split.h"

#include <stdio.h>
#include <string.h>

static int plan_here(const sl_api_placing *where, sl_api_plan *planned, sl_error *error) {
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
    } else if (plan->segments[0].program.ranks > 0) {
        snprintf(text, size, "everything, a share of all layers on each of %d devices", plan->segment_count);
        return;
    }
    for (int32_t i = 0; plan->options.host_experts <= 0 && i < plan->segment_count && length < size; i++) {
        const sl_plan_segment *segment = &plan->segments[i];
        length += (size_t)snprintf(text + length, size - length, "%s%d of %d layers on %s", i ? ", " : "",
                                   segment->end_layer - segment->first_layer, layers,
                                   sl_split_part_name(plan->backend, i));
    }
}

static void note_place(const sl_api_placing *where, const char *device, sl_api_plan *planned, int code,
                       const sl_error *error) {
    if (planned->place_count == SL_API_PLACES) {
        return;
    }
    planned->taken = planned->place_count;
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

static int plan_on(const sl_api_placing *where, const char *device, sl_api_plan *planned, sl_error *error) {
    const sl_split_kind kind =
        where->given->split == SLUICE_SPLIT_TENSORS ? SL_SPLIT_TENSORS : SL_SPLIT_LAYERS;
    int code = strchr(device, '+') ? sl_split_open(device, kind, where->options, &planned->backend, error)
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
static void tell_of_layers(const sl_api_placing *where, const sl_plan *plan) {
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

static void tell_of_fetches(const sl_api_placing *where, const sl_plan *plan) {
    if (where->program->experts == 0) {
        tell_of_layers(where, plan);
    } else if (plan->deployment.fetch_set_count > 0) {
        sl_log(where->given->cpu_experts > 0 ? SL_LOG_INFO : SL_LOG_WARNING,
               "device: the experts of %d of %d layers are in host memory, and %d of %d in each of them on "
               "the GPU, which fetches others; with device cuda+cpu the CPU computes them",
               plan->deployment.fetch_set_count, sl_program_layers(where->program),
               plan->deployment.expert_slots, where->program->experts);
    }
}

/* The CPU has experts, or layers, that do not fit the GPU. */
static void tell_of_host(const sl_api_placing *where, const sl_plan *plan) {
    if (plan->options.host_experts > 0) {
        sl_log(SL_LOG_WARNING,
               "device: not all fits the GPU; the experts of %d of %d layers are on the CPU. With device "
               "cuda the GPU fetches them",
               plan->options.host_experts, sl_program_layers(where->program));
        return;
    }
    const sl_plan_segment *last = &plan->segments[plan->segment_count - 1];
    sl_log(SL_LOG_WARNING,
           "device: %d of %d layers are on the GPU, where not all fit; the rest runs on the CPU%s",
           last->end_layer - last->first_layer, sl_program_layers(where->program),
           where->program->experts > 0 ? ""
                                       : ". For long prompts there is device cuda: the GPU computes all "
                                         "layers, and fetches the weights that do not fit");
}

/* On a GPU alone. What does not fit is fetched from host memory: of a model with experts these, else whole
 * layers. */
static int plan_on_gpu(const sl_api_placing *where, const char *device, sl_api_plan *planned,
                       sl_error *error) {
    if (where->plan_options->host_experts == 0) {
        where->plan_options->host_experts = SL_NONE;
    }
    if (where->plan_options->host_layers == 0) {
        where->plan_options->host_layers = SL_NONE;
    }
    const int code = plan_on(where, device, planned, error);
    if (code == 0) {
        tell_of_fetches(where, planned->plan);
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
static int plan_on_one_or_all(const sl_api_placing *where, const char *one, const char *all,
                              sl_api_plan *planned, sl_error *error) {
    int code = plan_on(where, one, planned, error);
    if (is_too_small(planned, code)) {
        const sl_error why = *error;
        drop_trial(planned);
        code = plan_on(where, all, planned, error);
        if (code == 0) {
            tell_of_host(where, planned->plan);
        }
        *error = code == SL_ERR_LIMIT ? why : *error;
    }
    return code;
}

/* ---- the fastest of what is possible ---- */

/* In the order of preference: where two are about as fast, a GPU alone leaves the processors to others. */
enum { FETCHING, BESIDE_HOST, ON_HOST, TRIALS };

typedef struct trial {
    sl_backend *backend;
    sl_plan *plan; /* NULL: it was not tried, or did not fit */
    int place;     /* in planned->places */
} trial;

static void close_trials(trial trials[TRIALS]) {
    for (int i = 0; i < TRIALS; i++) {
        sl_plan_destroy(trials[i].plan);
        sl_backend_close(trials[i].backend);
    }
}

/* What has no room, and what is not possible with this model, leaves the choice to the others. */
static int try_all(const sl_api_placing *where, const char *gpu, const char *all, trial trials[TRIALS],
                   sl_api_plan *planned, sl_error *error) {
    const char *const devices[TRIALS] = {[FETCHING] = gpu, [BESIDE_HOST] = all, [ON_HOST] = "cpu"};
    const int32_t asked = where->plan_options->host_experts;
    int first = SL_OK, fitting = 0;
    for (int i = 0; i < (asked > 0 ? (int)ON_HOST : (int)TRIALS); i++) {
        where->plan_options->host_experts = i == FETCHING && asked == 0 ? SL_NONE : asked;
        where->plan_options->host_layers = i == FETCHING ? SL_NONE : 0;
        sl_error why;
        trials[i].place = planned->place_count;
        const int code = plan_on(where, devices[i], planned, &why);
        trials[i].backend = planned->backend;
        trials[i].plan = planned->plan;
        planned->backend = NULL;
        planned->plan = NULL;
        if (code && code != SL_ERR_LIMIT && code != SL_ERR_UNSUPPORTED) {
            *error = why;
            return code;
        }
        if (code && !first) {
            *error = why;
            first = code;
        }
        fitting += code == 0;
        if (asked > 0 && fitting > 0) {
            break; /* how many experts lie in host memory was said: the first that has room */
        }
    }
    where->plan_options->host_experts = asked;
    where->plan_options->host_layers = 0;
    return fitting > 0 ? SL_OK : first;
}

static void measure(sl_backend *backend, bool is_host, sl_speeds *speeds, unsigned *assumed) {
    sl_error why;
    memset(speeds, 0, sizeof *speeds);
    if (backend && backend->functions->speeds && backend->functions->speeds(backend, speeds, &why)) {
        sl_log(SL_LOG_WARNING, "device: how fast %s is was not measured: %s", backend->name, why.message);
    }
    *assumed = sl_speeds_assume(is_host, speeds);
}

/* The index of the one to take, where some fit. */
static int choose(const trial trials[TRIALS], sl_api_plan *planned) {
    sl_api_speeds *speeds = &planned->speeds;
    sl_backend *both = trials[BESIDE_HOST].backend;
    measure(both ? sl_split_part(both, 0) : trials[ON_HOST].backend, true, &speeds->host,
            &speeds->host_assumed);
    measure(trials[FETCHING].backend, false, &speeds->device, &speeds->device_assumed);
    const sl_speeds pair[] = {speeds->host, speeds->device}; /* the host is the first of several */
    sl_estimate estimates[TRIALS] = {{.request_seconds = 0}};
    for (int i = 0; i < TRIALS; i++) {
        if (trials[i].plan) {
            sl_plan_estimate(trials[i].plan, i == FETCHING ? &pair[1] : pair, &estimates[i]);
            planned->places[trials[i].place].estimate = estimates[i];
        }
    }
    return sl_estimate_choose(estimates, TRIALS);
}

/* "cuda:0+cuda:1+...", all GPUs there are; false where there is one. */
static bool name_gpus(const sl_api_placing *where, char *names, size_t size) {
    size_t length = (size_t)snprintf(names, size, "cuda:0");
    int32_t count = 1;
    for (bool more = true; more && count < SL_MOST_DEVICES; count += more) {
        char name[16];
        sl_backend *backend = NULL;
        sl_error none;
        snprintf(name, sizeof name, "cuda:%d", count);
        more = sl_backend_open(name, where->options, &backend, &none) == 0;
        sl_backend_close(backend);
        if (more) {
            length += (size_t)snprintf(names + length, size - length, "+%s", name);
        }
    }
    return count > 1;
}

/* All on one GPU where it fits, or else on all of them, whose memory is faster than any other. Else whatever
 * takes the least time by estimates. */
static int plan_anywhere(const sl_api_placing *where, const char *gpu, const char *all, sl_api_plan *planned,
                         sl_error *error) {
    trial trials[TRIALS] = {{.backend = NULL}};
    if (where->plan_options->host_experts == 0) {
        const int code = plan_on(where, "auto", planned, error);
        if (!is_too_small(planned, code)) {
            return code;
        }
        drop_trial(planned);
        char gpus[16 * SL_MOST_DEVICES];
        if (name_gpus(where, gpus, sizeof gpus)) {
            const int together = plan_on(where, gpus, planned, error);
            if (together != SL_ERR_LIMIT && together != SL_ERR_UNSUPPORTED) {
                return together;
            }
            drop_trial(planned);
        }
    }
    const int code = try_all(where, gpu, all, trials, planned, error);
    if (code == 0) {
        const bool asked = where->plan_options->host_experts > 0;
        trial *best = &trials[!asked                  ? choose(trials, planned)
                              : trials[FETCHING].plan ? FETCHING
                                                      : BESIDE_HOST];
        planned->taken = best->place;
        planned->backend = best->backend;
        planned->plan = best->plan;
        *best = (trial){.backend = NULL};
        if (best == &trials[FETCHING]) {
            tell_of_fetches(where, planned->plan);
        } else if (best == &trials[BESIDE_HOST]) {
            tell_of_host(where, planned->plan);
        } else {
            sl_log(SL_LOG_WARNING,
                   "device: not all fits the GPU, and the CPU is estimated to be faster alone; sluice "
                   "plan lists what was tried");
        }
    }
    close_trials(trials);
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
static int plan_with_layers(const sl_api_placing *where, const char *gpu, const char *all,
                            sl_api_plan *planned, sl_error *error) {
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
static int plan_with_weights(const sl_api_placing *where, const char *device, sl_api_plan *planned,
                             sl_error *error) {
    const int32_t layers = sl_program_layers(where->program);
    if (where->given->gpu_layers >= layers) {
        return plan_on(where, device, planned, error);
    }
    where->plan_options->host_layers = layers - where->given->gpu_layers;
    return plan_on_gpu(where, device, planned, error);
}

/* Whether one of the devices is the host. */
static bool names_host(const char *device) {
    for (const char *at = device; *at; at += *at == '+') {
        const size_t length = strcspn(at, "+");
        if (length == 3 && memcmp(at, "cpu", 3) == 0) {
            return true;
        }
        at += length;
    }
    return false;
}

/* What was said of several devices: SL_ERR_INVALID where it does not go together. */
static int check_split(const sl_api_placing *where, const char *device, sl_error *error) {
    const sluice_split split = where->given->split;
    if ((unsigned)split > SLUICE_SPLIT_TENSORS) {
        return sl_fail(error, SL_ERR_INVALID, "split: %d is no sluice_split", (int)split);
    }
    if (split != SLUICE_SPLIT_AUTO && !strchr(device, '+')) {
        return sl_fail(error, SL_ERR_INVALID,
                       "split: the device is %s; name those that share a model, as in cuda:0+cuda:1", device);
    }
    const int32_t asked = where->given->gpu_layers;
    const bool some = asked == SLUICE_NO_LAYERS || (asked > 0 && asked < sl_program_layers(where->program));
    if (split == SLUICE_SPLIT_TENSORS && (some || where->given->cpu_experts != 0)) {
        return sl_fail(error, SL_ERR_INVALID,
                       "split: tensors of all layers are on all devices, so neither gpu layers nor cpu "
                       "experts can be given");
    }
    if (some && asked > 0 && strchr(device, '+') && !names_host(device)) {
        return sl_fail(error, SL_ERR_INVALID, "gpu layers: %d of %d, but the devices are %s; name %s+cpu",
                       asked, sl_program_layers(where->program), device, device);
    }
    return 0;
}

int sl_api_place_model(const sl_api_placing *where, sl_api_plan *planned, sl_error *error) {
    char device[96];
    snprintf(device, sizeof device, "%s", where->given->device ? where->given->device : "auto");
    for (char *at = strchr(device, ','); at; at = strchr(at, ',')) {
        *at = '+'; /* as lists are written elsewhere */
    }
    const bool is_auto = strcmp(device, "auto") == 0;
    const bool gpus_alone = strchr(device, '+') && !names_host(device);
    char gpu[32], all[48];
    if (strlen(device) >= sizeof all) {
        return sl_fail(error, SL_ERR_INVALID, "device: %s...: too long a list", device);
    }
    if (where->given->gpu_layers < SLUICE_NO_LAYERS) {
        return sl_fail(error, SL_ERR_INVALID, "gpu layers: %d", where->given->gpu_layers);
    }
    const int refused = check_split(where, device, error);
    if (refused) {
        return refused;
    }
    /* All of them are where several GPUs, or ranks, are all there is. */
    const bool all_there = gpus_alone || where->given->split == SLUICE_SPLIT_TENSORS;
    const int32_t asked = all_there && where->given->gpu_layers > 0 ? 0 : where->given->gpu_layers;
    beside_host(is_auto ? "cuda" : device, gpu, sizeof gpu);
    snprintf(all, sizeof all, "%s+cpu", gpu);
    if (asked == SLUICE_NO_LAYERS) {
        return plan_on(where, "cpu", planned, error);
    }
    if (strchr(device, '+')) {
        snprintf(all, sizeof all, "%s", device);
    }
    const bool shared = where->given->split != SLUICE_SPLIT_AUTO || gpus_alone;
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
    if ((apart || shared) && strchr(device, '+')) {
        return plan_on(where, all, planned, error);
    }
    if (is_auto) {
        return plan_anywhere(where, gpu, all, planned, error);
    }
    return strchr(device, '+') && gpu[0] ? plan_on_one_or_all(where, gpu, all, planned, error)
                                         : plan_on(where, device, planned, error);
}

/* ---- what was tried ---- */

static void print_estimate(const sl_estimate *estimate, sl_buffer *out) {
    if (estimate->request_seconds > 0) {
        sl_buffer_printf(out, "; %.3g ms a token, %.3g ms a prompt of %d", 1e3 * estimate->token_seconds,
                         1e3 * estimate->prompt_seconds, SL_TYPICAL_PROMPT);
    }
}

static void print_speeds(const char *device, const sl_speeds *speeds, unsigned assumed, sl_buffer *out) {
    static const char *const marks[] = {"", " (assumed)"};
    sl_buffer_printf(out, "%-12s%s: memory %.4g GB/s%s, products %.3g TOPS%s", "speeds", device,
                     1e-9 * speeds->rates.read_bytes, marks[(assumed & SL_ASSUMED_MEMORY) > 0],
                     1e-12 * sl_rates_of(&speeds->rates, SL_WITH_INT8),
                     marks[(assumed & SL_ASSUMED_PRODUCTS) > 0]);
    if (speeds->bus_bytes > 0) {
        sl_buffer_printf(out, ", bus %.3g GB/s%s, a border %.2g us%s", 1e-9 * speeds->bus_bytes,
                         marks[(assumed & SL_ASSUMED_BUS) > 0], 1e6 * speeds->border_seconds,
                         marks[(assumed & SL_ASSUMED_BORDER) > 0]);
    }
    sl_buffer_text(out, "\n");
}

static void print_choice(const sl_api_plan *planned, sl_buffer *out) {
    const double taken = planned->places[planned->taken].estimate.request_seconds;
    double least = taken;
    for (int i = 0; i < planned->place_count; i++) {
        const double seconds = planned->places[i].estimate.request_seconds;
        least = seconds > 0 && seconds < least ? seconds : least;
    }
    sl_buffer_printf(out, "%-12s%.3g s for a prompt of %d and %d generated tokens", "chosen for", taken,
                     SL_TYPICAL_PROMPT, SL_TYPICAL_REPLY);
    if (least < taken) {
        sl_buffer_printf(out, "; the least is %.3g s, and less than a tenth decides nothing\n", least);
    } else {
        sl_buffer_text(out, ", the least\n");
    }
    print_speeds("cpu", &planned->speeds.host, planned->speeds.host_assumed, out);
    print_speeds("gpu", &planned->speeds.device, planned->speeds.device_assumed, out);
}

/* The one that was taken is the last. */
void sl_api_print_places(const sl_api_plan *planned, sl_buffer *out) {
    for (int pass = 0; planned->place_count > 1 && pass < 2; pass++) {
        for (int i = 0; i < planned->place_count; i++) {
            const sl_api_place *place = &planned->places[i];
            if ((i == planned->taken) == (pass == 1)) {
                sl_buffer_printf(out, "%-12s%s: %s", pass ? "placed on" : "tried", place->name,
                                 place->outcome);
                print_estimate(&place->estimate, out);
                sl_buffer_text(out, "\n");
            }
        }
    }
    if (planned->place_count > 0 && planned->places[planned->taken].estimate.request_seconds > 0) {
        print_choice(planned, out);
    }
}

static json_t *estimate_json(const sl_estimate *estimate) {
    return estimate->request_seconds > 0
               ? json_pack("{s:f, s:f, s:f, s:f}", "token_seconds", estimate->token_seconds, "prompt_seconds",
                           estimate->prompt_seconds, "long_prompt_token_seconds",
                           estimate->long_prompt_seconds, "request_seconds", estimate->request_seconds)
               : json_null();
}

json_t *sl_api_places_json(const sl_api_plan *planned) {
    json_t *places = json_array();
    for (int i = 0; places && i < planned->place_count; i++) {
        const sl_api_place *place = &planned->places[i];
        json_array_append_new(places, json_pack("{s:s, s:s, s:b, s:o}", "devices", place->name, "outcome",
                                                place->outcome, "taken", i == planned->taken, "estimate",
                                                estimate_json(&place->estimate)));
    }
    return places;
}

static json_t *device_json(const sl_speeds *speeds, unsigned assumed) {
    static const struct {
        unsigned which;
        const char *name;
    } SPEEDS[] = {{SL_ASSUMED_MEMORY, "read_bytes"},
                  {SL_ASSUMED_PRODUCTS, "operations"},
                  {SL_ASSUMED_BUS, "bus_bytes"},
                  {SL_ASSUMED_BORDER, "border_seconds"}};
    json_t *names = json_array();
    for (size_t i = 0; names && i < sizeof SPEEDS / sizeof *SPEEDS; i++) {
        if (assumed & SPEEDS[i].which) {
            json_array_append_new(names, json_string(SPEEDS[i].name));
        }
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "read_bytes", speeds->rates.read_bytes, "operations",
                     sl_rates_of(&speeds->rates, SL_WITH_INT8), "bus_bytes", speeds->bus_bytes,
                     "border_seconds", speeds->border_seconds, "assumed", names);
}

json_t *sl_api_speeds_json(const sl_api_plan *planned) {
    const sl_api_speeds *speeds = &planned->speeds;
    return speeds->host.rates.read_bytes > 0
               ? json_pack("{s:o, s:o}", "cpu", device_json(&speeds->host, speeds->host_assumed), "gpu",
                           device_json(&speeds->device, speeds->device_assumed))
               : json_null();
}
