/* Does a model fit this machine, and how fast would it be? Memory is what a plan asks for. Speed is an
 * estimate from a model's plan and what this machine was measured to do a moment ago: each generated token
 * reads the weights that it uses from memory once, and prompts are a matter of operations. */
#define _GNU_SOURCE
#include "models.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the memory's rate -----------------------------------------------------------------------------------
 */

enum { READERS_MOST = 64 };
static const size_t READ_BYTES = (size_t)128 << 20; /* more than caches hold, on most machines */
static const double READ_SECONDS = 0.1;

/* Times of blocks short enough that most are read without a break: on a busy machine the middle one is what
 * it does when nothing else runs. */
enum { BLOCK_WORDS = 1 << 20, BLOCKS_MOST = 4096 };

typedef struct reading {
    const uint64_t *words;
    size_t count;
    double middle; /* seconds of a block */
    uint64_t sum;
} reading;

static uint64_t read_block(const uint64_t *words) {
    uint64_t sums[8] = {0};
    for (size_t i = 0; i < BLOCK_WORDS; i += 8) {
        for (size_t k = 0; k < 8; k++) {
            sums[k] += words[i + k];
        }
    }
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static int by_time(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void *read_words(void *context) {
    reading *r = context;
    double times[BLOCKS_MOST];
    int count = 0;
    size_t at = 0;
    const double begin = seconds_now();
    for (double now = begin; now - begin < READ_SECONDS && count < BLOCKS_MOST; count++) {
        r->sum += read_block(r->words + at);
        at = at + 2 * (size_t)BLOCK_WORDS > r->count ? 0 : at + BLOCK_WORDS;
        const double then = now;
        now = seconds_now();
        times[count] = now - then;
    }
    qsort(times, (size_t)count, sizeof *times, by_time);
    r->middle = times[count / 2];
    return NULL;
}

static int processors(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > READERS_MOST ? READERS_MOST : count;
}

/* Bytes a second that all processors read together; 0 when it cannot be measured. */
static double measure_reading(void) {
    reading readings[READERS_MOST];
    pthread_t threads[READERS_MOST];
    const int count = processors();
    const size_t share = READ_BYTES / sizeof(uint64_t) / (size_t)count;
    uint64_t *memory = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return 0;
    }
    madvise(memory, READ_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, READ_BYTES);
    int started = 1; /* this thread is the first */
    readings[0] = (reading){.words = memory, .count = share};
    while (started < count) {
        readings[started] = (reading){.words = memory + (size_t)started * share, .count = share};
        if (pthread_create(&threads[started], NULL, read_words, &readings[started]) != 0) {
            break;
        }
        started++;
    }
    read_words(&readings[0]);
    double rate = 0;
    for (int i = 0; i < started; i++) {
        if (i > 0) {
            pthread_join(threads[i], NULL);
        }
        rate += readings[i].middle > 0 ? BLOCK_WORDS * sizeof(uint64_t) / readings[i].middle : 0;
    }
    munmap(memory, READ_BYTES);
    return rate;
}

/* ---- operations, and what a GPU reads --------------------------------------------------------------------
 */

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

/* A prompt that fills a step: seconds for a token, the best of some times. */
static double read_prompts(sluice_engine *engine, int32_t vocabulary) {
    enum { TOKENS = 128, RUNS = 12 }; /* short enough to be done without a break */
    int32_t tokens[TOKENS];
    double best = 0;
    sluice_error error;
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (i * 37 + 5) % vocabulary;
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
        const double seconds = code == DONE ? done.prompt_seconds / TOKENS : 0;
        best = seconds > 0 && (best <= 0 || seconds < best) ? seconds : best;
        sluice_sequence_release(sequence);
    }
    return best;
}

/* What a small model's steps show: the rate of operations on a CPU, and a GPU's own limits. */
static void measure_engine(const char *path, machine_rates *rates) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_error error;
    sluice_model_info info = {.size = sizeof info};
    const sluice_engine_options options = {
        .size = sizeof options, .sequences = 1, .context = 1024, .no_prefix_reuse = true};
    char *text;
    if (sluice_model_open(path, &model, &error) || sluice_engine_create(model, &options, &engine, &error)) {
        sluice_model_release(model);
        return;
    }
    sluice_model_get_info(model, &info);
    snprintf(rates->device, sizeof rates->device, "%s", sluice_engine_device(engine));
    json_t *plan = plan_of(model, &error);
    const double seconds = read_prompts(engine, info.vocabulary);
    const double operations = number_at(json_object_get(plan, "token"), "operations");
    json_decref(plan);
    if (strncmp(rates->device, "cpu", 3) == 0) {
        rates->operations = seconds > 0 ? operations / seconds : 0;
    } else if (sluice_engine_profile(engine, SLUICE_JSON, &text, &error) == 0) {
        json_t *profile = json_loads(text, 0, NULL);
        rates->bytes = number_at(profile, "read_bytes_per_second");
        rates->operations = number_at(profile, "tensor_operations_per_second");
        json_decref(profile);
        sluice_free(text);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

void measure_machine(machine_rates *rates) {
    char path[DATA_PATH_SIZE];
    if (rates->measured) {
        return;
    }
    rates->measured = true;
    if (find_data("models/" DEFAULT_MODEL ".gguf", path)) {
        measure_engine(path, rates);
    }
    if (!rates->device[0] || strncmp(rates->device, "cpu", 3) == 0) {
        rates->bytes = measure_reading();
    }
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

static void take_plan(const json_t *plan, const machine_rates *rates, fit *fit) {
    const json_t *token = json_object_get(plan, "token");
    const double bytes = number_at(token, "weight_bytes"), operations = number_at(token, "operations");
    fit->needed = (uint64_t)(number_at(plan, "total_bytes") + number_at(plan, "mapped_bytes"));
    fit->available = (uint64_t)number_at(plan, "memory_limit");
    fit->fits = fit->needed <= fit->available;
    fit->generated = bytes > 0 ? rates->bytes / bytes : 0;
    fit->read = operations > 0 ? rates->operations / operations : 0;
}

void judge_model(const char *path, const machine_rates *rates, fit *fit) {
    sluice_model *model = NULL;
    sluice_error error = {0};
    memset(fit, 0, sizeof *fit);
    const sluice_model_options options = {.size = sizeof options, .for_plan = true};
    int code = sluice_model_open_with(path, &options, &model, &error);
    code = code ? code : take_facts(model, fit, &error);
    json_t *plan = code ? NULL : plan_of(model, &error);
    if (plan) {
        take_plan(plan, rates, fit);
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
