/* Does a model fit this machine, and how fast would it be? Memory is what a plan asks for. Speed is an
 * estimate: the limit that follows from what tokens cost and from what this machine was measured to do a
 * moment ago, and the share of it that models reach. */
#include "cost.h"
#include "models.h"

#include <stdlib.h>
#include <string.h>

/* How docs/models.md measured them: the share of the memory's rate that generating reaches, and what matrices
 * of larger models gain over those of the built-in one. */
static const double GENERATED_SHARE = 0.75, READ_GAIN = 1.3;

/* A second's operations of prompts that fill a step: the best of some times. */
static double measure_prompts(sluice_engine *engine, const sluice_model *model) {
    enum { TOKENS = 512, RUNS = 6 };
    int32_t tokens[TOKENS];
    double best = 0;
    sluice_error error;
    cost cost;
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (i * 37 + 5) % info.vocabulary;
    }
    if (read_cost(model, &cost, &error)) {
        return 0;
    }
    for (int run = 0; run < RUNS; run++) {
        const sluice_request_options options = {.size = sizeof options,
                                                .tokens = tokens,
                                                .token_count = TOKENS,
                                                .generate = 1,
                                                .no_text = true,
                                                .ignore_eos = true};
        sluice_sequence *sequence;
        sluice_event done;
        if (sluice_sequence_create(engine, &sequence, &error)) {
            return 0;
        }
        const int code = generate(sequence, &options, NULL, NULL, &done);
        const double seconds = code == DONE ? done.prompt_seconds : 0;
        best = seconds > 0 && (best <= 0 || seconds < best) ? seconds : best;
        sluice_sequence_release(sequence);
    }
    return best > 0 ? all_products(cost.operations) * TOKENS / best : 0;
}

static json_t *plan_of(const sluice_model *model, sluice_error *error) {
    const sluice_engine_options options = {.size = sizeof options, .sequences = 1};
    char *text;
    if (sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_JSON, &text, error)) {
        return NULL;
    }
    json_t *plan = json_loads(text, 0, NULL);
    sluice_free(text);
    if (!plan) {
        error->code = SLUICE_ERR_NOMEM;
        snprintf(error->message, sizeof error->message, "out of memory for the plan");
    }
    return plan;
}

static double number_at(const json_t *object, const char *member) {
    return json_number_value(json_object_get(object, member));
}

void measure_machine(machine_rates *rates) {
    char path[DATA_PATH_SIZE];
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_error error;
    const sluice_engine_options options = {
        .size = sizeof options, .sequences = 1, .context = 1024, .no_prefix_reuse = true};
    if (rates->measured) {
        return;
    }
    rates->measured = true;
    rates->all = (sluice_rates){.size = sizeof rates->all};
    if (!find_data("models/" DEFAULT_MODEL ".gguf", path) || sluice_model_open(path, &model, &error)) {
        return;
    }
    if (sluice_engine_create(model, &options, &engine, &error) == 0) {
        snprintf(rates->device, sizeof rates->device, "%s", sluice_engine_device(engine));
        if (sluice_engine_measure_rates(engine, &rates->all, &error)) {
            rates->all = (sluice_rates){.size = sizeof rates->all};
        }
        rates->reading =
            rates->all.threads > 0 ? READ_GAIN * measure_prompts(engine, model) : rates->all.bf16_products;
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- one model -------------------------------------------------------------------------------------------
 */

/* The type that most weights have. */
static void take_type(const json_t *facts, fit *fit) {
    const json_t *types = json_object_get(facts, "types");
    double most = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *row = json_array_get(types, i);
        const char *name = json_string_value(json_object_get(row, "type"));
        if (name && number_at(row, "elements") > most) {
            most = number_at(row, "elements");
            snprintf(fit->type, sizeof fit->type, "%s", name);
        }
    }
}

static int take_facts(const sluice_model *model, fit *fit, sluice_error *error) {
    sluice_model_info info = {.size = sizeof info};
    char *text;
    sluice_model_get_info(model, &info);
    snprintf(fit->family, sizeof fit->family, "%s", info.family);
    fit->parameters = info.parameters;
    fit->weight_bytes = info.bytes;
    fit->context = info.context;
    const int code = sluice_model_describe(model, SLUICE_JSON, &text, error);
    if (code == 0) {
        json_t *facts = json_loads(text, 0, NULL);
        take_type(facts, fit);
        json_decref(facts);
        sluice_free(text);
    }
    return code;
}

/* The numbers of "needs N bytes (...), the limit is M". */
static bool take_refusal(const char *message, fit *fit) {
    const char *needs = strstr(message, "needs "), *limit = strstr(message, "the limit is ");
    fit->needed = needs ? strtoull(needs + 6, NULL, 10) : 0;
    fit->available = limit ? strtoull(limit + 13, NULL, 10) : 0;
    return fit->needed > 0 && fit->available > 0;
}

static void take_speeds(const cost *cost, const machine_rates *rates, fit *fit) {
    const double bytes = step_bytes(cost, 1), operations = all_products(cost->operations);
    fit->generated = bytes > 0 ? GENERATED_SHARE * rates->all.read_bytes / bytes : 0;
    fit->read = operations > 0 ? rates->reading / operations : 0;
}

static void take_plan(const json_t *plan, fit *fit) {
    fit->needed = (uint64_t)(number_at(plan, "total_bytes") + number_at(plan, "mapped_bytes"));
    fit->available = (uint64_t)number_at(plan, "memory_limit");
    fit->fits = fit->needed <= fit->available;
}

void judge_model(const char *path, const machine_rates *rates, fit *fit) {
    sluice_model *model = NULL;
    sluice_error error = {0};
    cost cost;
    memset(fit, 0, sizeof *fit);
    const sluice_model_options options = {.size = sizeof options, .for_plan = true};
    int code = sluice_model_open_with(path, &options, &model, &error);
    code = code ? code : take_facts(model, fit, &error);
    code = code ? code : read_cost(model, &cost, &error);
    json_t *plan = code ? NULL : plan_of(model, &error);
    if (plan) {
        take_plan(plan, fit);
        take_speeds(&cost, rates, fit);
    } else if (error.code != SLUICE_ERR_LIMIT || !take_refusal(error.message, fit)) {
        /* Without the path in front, which of a stand-in says nothing. */
        const size_t length = strlen(path);
        const bool named =
            strncmp(error.message, path, length) == 0 && strncmp(error.message + length, ": ", 2) == 0;
        snprintf(fit->why_not, sizeof fit->why_not, "%s", error.message + (named ? length + 2 : 0));
    }
    json_decref(plan);
    sluice_model_release(model);
}

json_t *fit_json(const fit *fit) {
    if (fit->why_not[0]) {
        return json_pack("{s:b, s:s}", "runs", 0, "why_not", fit->why_not);
    }
    return json_pack("{s:b, s:s, s:s, s:I, s:I, s:i, s:b, s:I, s:I, s:f, s:f}", "runs", 1, "family",
                     fit->family, "type", fit->type, "parameters", (json_int_t)fit->parameters,
                     "weight_bytes", (json_int_t)fit->weight_bytes, "context", fit->context, "fits",
                     fit->fits, "memory_needed", (json_int_t)fit->needed, "memory_available",
                     (json_int_t)fit->available, "estimated_tokens_per_second_generated", fit->generated,
                     "estimated_tokens_per_second_read", fit->read);
}
