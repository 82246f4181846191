/* sluice bench: tokens a second, with llama-bench's columns. */
#define _GNU_SOURCE
#include "bench.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct measurement {
    int32_t prompt, generate, depth; /* one of the first two is 0 */
    int repetitions;
    double seconds[1001]; /* [repetitions] */
} measurement;

/* ---- costs -----------------------------------------------------------------------------------------------
 */

static bool name_has(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

static void add_weight(cost *c, const json_t *weight, bool tied) {
    const char *name = json_string_value(json_object_get(weight, "name"));
    const double experts = (double)json_integer_value(json_object_get(weight, "experts"));
    const double rows = (double)json_integer_value(json_object_get(weight, "rows"));
    const double columns = (double)json_integer_value(json_object_get(weight, "columns"));
    const double bytes = (double)json_integer_value(json_object_get(weight, "bytes"));
    const bool embedding = name_has(name, "token_embd") || name_has(name, "embed_tokens");
    const bool head = embedding || name_has(name, "lm_head") || strcmp(name, "output.weight") == 0;
    if (embedding && !tied) {
        return; /* one row of it */
    }
    if (experts > 1) {
        c->expert_bytes += bytes;
        c->operations += 2 * rows * columns * c->experts_used;
    } else {
        c->bytes += bytes;
        *(head ? &c->head_operations : &c->operations) += rows > 1 ? 2 * rows * columns : 0;
    }
}

static bool has_head(const json_t *weights) {
    for (size_t i = 0; i < json_array_size(weights); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(weights, i), "name"));
        if (name_has(name, "lm_head") || strcmp(name, "output.weight") == 0) {
            return true;
        }
    }
    return false;
}

static int read_costs(bench *b) {
    sluice_error error;
    char *text;
    if (sluice_model_describe(b->session.model, SLUICE_JSON, &text, &error)) {
        return fail_with(&error);
    }
    json_t *facts = json_loads(text, 0, NULL);
    sluice_free(text);
    if (!facts) {
        return fail("bench: out of memory");
    }
    const json_t *weights = json_object_get(facts, "weights"), *types = json_object_get(facts, "types");
    const bool tied = !has_head(weights);
    b->cost.experts = (double)json_integer_value(json_object_get(facts, "experts"));
    b->cost.experts_used = (double)json_integer_value(json_object_get(facts, "experts_used"));
    for (size_t i = 0; i < json_array_size(weights); i++) {
        add_weight(&b->cost, json_array_get(weights, i), tied);
    }
    json_int_t most = -1;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *type = json_array_get(types, i);
        const json_int_t bytes = json_integer_value(json_object_get(type, "bytes"));
        if (bytes > most) {
            most = bytes;
            snprintf(b->cost.type, sizeof b->cost.type, "%s",
                     json_string_value(json_object_get(type, "type")));
        }
    }
    json_decref(facts);
    return DONE;
}

/* Bytes of weights that a step of `rows` tokens reads: experts by the share that so many random choices
 * touch. */
static double step_bytes(const cost *c, double rows) {
    const double share = c->experts > 0 ? 1 - pow(1 - c->experts_used / c->experts, rows) : 0;
    return c->bytes + c->expert_bytes * share;
}

/* ---- measuring -------------------------------------------------------------------------------------------
 */

static int append(bench *b, sluice_sequence **sequences, int32_t from, int32_t count, int32_t generated,
                  double *seconds) {
    enum { MOST = 4096 };
    sluice_error error;
    sluice_request *requests[MOST] = {NULL};
    int code = DONE;
    const sluice_request_options work = {.size = sizeof work,
                                         .tokens = b->tokens + from,
                                         .token_count = (size_t)count,
                                         .generate = (size_t)generated,
                                         .no_text = true,
                                         .ignore_eos = true};
    const sluice_request_options *options[MOST];
    for (int32_t i = 0; i < b->sequences; i++) {
        options[i] = &work;
    }
    const double begin = seconds_now();
    code = sluice_submit_together(sequences, options, (size_t)b->sequences, requests, &error)
               ? fail_with(&error)
               : DONE;
    for (int32_t i = 0; i < b->sequences && code == DONE; i++) {
        sluice_event event = {.size = sizeof event};
        do {
            code = sluice_poll(requests[i], 100, &event, &error) ? fail_with(&error) : DONE;
            code = code == DONE && interrupted() ? fail("cancelled") : code;
        } while (code == DONE && event.kind != SLUICE_EVENT_DONE);
        if (code == DONE && event.finish != SLUICE_FINISH_LENGTH) {
            code = event.finish == SLUICE_FINISH_ERROR
                       ? fail_with(&event.error)
                       : fail("bench: a sequence ended early: %s", finish_name(event.finish));
        }
    }
    *seconds = seconds_now() - begin;
    for (int32_t i = 0; i < b->sequences; i++) {
        sluice_request_release(requests[i]);
    }
    return code;
}

/* Each repetition goes on from copies of sequences that hold `depth` tokens. */
static int repeat(bench *b, sluice_sequence **deep, sluice_sequence **forks, const measurement *m,
                  double *seconds) {
    sluice_error error;
    int code = DONE;
    for (int32_t i = 0; i < b->sequences && code == DONE; i++) {
        const int result = m->depth ? sluice_sequence_fork(deep[i], &forks[i], &error)
                                    : sluice_sequence_create(b->session.engine, &forks[i], &error);
        code = result ? fail_with(&error) : DONE;
    }
    /* A generated token is one pass; the first comes from the pass of one token that is read. */
    code = code != DONE
               ? code
               : append(b, forks, m->depth, m->prompt ? m->prompt : 1, m->prompt ? 1 : m->generate, seconds);
    for (int32_t i = 0; i < b->sequences; i++) {
        sluice_sequence_release(forks[i]);
        forks[i] = NULL;
    }
    return code;
}

static int measure(bench *b, measurement *m) {
    sluice_error error;
    double ignored;
    sluice_sequence **deep = calloc((size_t)b->sequences, sizeof *deep);
    sluice_sequence **forks = calloc((size_t)b->sequences, sizeof *forks);
    int code = deep && forks ? DONE : fail("bench: out of memory");
    for (int32_t i = 0; i < b->sequences && code == DONE && m->depth; i++) {
        code = sluice_sequence_create(b->session.engine, &deep[i], &error) ? fail_with(&error) : DONE;
    }
    code = code == DONE && m->depth ? append(b, deep, 0, m->depth, 0, &ignored) : code;
    code = code == DONE ? repeat(b, deep, forks, m, &ignored) : code;
    for (m->repetitions = 0; m->repetitions < b->settings->repetitions && code == DONE; m->repetitions++) {
        code = repeat(b, deep, forks, m, &m->seconds[m->repetitions]);
    }
    for (int32_t i = 0; i < b->sequences && deep; i++) {
        sluice_sequence_release(deep[i]);
    }
    free(deep);
    free(forks);
    return code;
}

/* ---- printing --------------------------------------------------------------------------------------------
 */

typedef struct statistics {
    double mean, deviation;
} statistics;

static statistics summarize(const double *values, int count) {
    statistics s = {0, 0};
    for (int i = 0; i < count; i++) {
        s.mean += values[i] / count;
    }
    for (int i = 0; i < count; i++) {
        s.deviation += (values[i] - s.mean) * (values[i] - s.mean) / (count > 1 ? count - 1 : 1);
    }
    s.deviation = sqrt(s.deviation);
    return s;
}

typedef struct report {
    double speeds[1001], nanoseconds[1001];
    statistics speed, time;
    double gigabytes, teraops; /* a second; bytes only where the weights are read once for known rows */
    double token_bytes;
} report;

static void summarize_all(const bench *b, const measurement *m, report *r) {
    const double tokens = (double)(m->prompt + m->generate) * b->sequences;
    for (int i = 0; i < m->repetitions; i++) {
        r->speeds[i] = tokens / m->seconds[i];
        r->nanoseconds[i] = m->seconds[i] * 1e9;
    }
    r->speed = summarize(r->speeds, m->repetitions);
    r->time = summarize(r->nanoseconds, m->repetitions);
    const double head = m->prompt ? b->cost.head_operations / m->prompt : b->cost.head_operations;
    r->teraops = (b->cost.operations + head) * r->speed.mean * 1e-12;
    r->token_bytes = m->prompt ? 0 : step_bytes(&b->cost, b->sequences) / b->sequences;
    r->gigabytes = r->token_bytes * r->speed.mean * 1e-9;
}

static void test_name(const measurement *m, char name[64]) {
    int length = snprintf(name, 64, "%s%d", m->prompt ? "pp" : "tg", m->prompt ? m->prompt : m->generate);
    if (m->depth) {
        snprintf(name + length, 64 - (size_t)length, " @ d%d", m->depth);
    }
}

void model_type(const bench *b, char name[64]) {
    const double billions = (double)b->info.parameters * 1e-9;
    int length = billions >= 1 ? snprintf(name, 64, "%s %.1fB ", b->info.family, billions)
                               : snprintf(name, 64, "%s %.2fM ", b->info.family, billions * 1e3);
    for (const char *at = b->cost.type; *at && length < 63; at++) {
        name[length++] = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
    }
    name[length] = '\0';
}

void backend_name(const bench *b, char name[32]) {
    const char *device = sluice_engine_device(b->session.engine);
    snprintf(name, 32, "%.*s", (int)strcspn(device, ":,("), device);
    for (char *at = name; *at; at++) {
        *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
    }
}

static void print_markdown(bench *b, const measurement *m, const report *r) {
    char type[64], backend[32], test[64], speed[64], size[32], parameters[32];
    const bool more = b->settings->verbose;
    const double mib = (double)b->info.bytes / (1 << 20), millions = (double)b->info.parameters * 1e-6;
    model_type(b, type);
    backend_name(b, backend);
    test_name(m, test);
    snprintf(speed, sizeof speed, "%.2f ± %.2f", r->speed.mean, r->speed.deviation);
    snprintf(size, sizeof size, mib >= 1024 ? "%.2f GiB" : "%.2f MiB", mib >= 1024 ? mib / 1024 : mib);
    snprintf(parameters, sizeof parameters, millions >= 1000 ? "%.2f B" : "%.2f M",
             millions >= 1000 ? millions / 1000 : millions);
    if (b->first) {
        printf("| %-24s | %10s | %10s | %-8s | %7s | %6s | %5s | %15s | %20s |%s\n", "model", "size",
               "params", "backend", "threads", "type_k", "n_seq", "test", "t/s",
               more ? "  MB/token |    GB/s |     TOPS |" : "");
        printf("| ------------------------ | ---------: | ---------: | -------- | ------: | -----: | ----: | "
               "--------------: | "
               "-------------------: |%s\n",
               more ? " --------: | ------: | -------: |" : "");
    }
    /* The plus-minus sign takes two bytes. */
    printf("| %-24s | %10s | %10s | %-8s | %7d | %6s | %5d | %15s | %21s |", type, size, parameters, backend,
           b->threads, b->settings->kv_type, b->sequences, test, speed);
    if (more) {
        printf(" %9.1f | %7.2f | %8.3f |", r->token_bytes * 1e-6, r->gigabytes, r->teraops);
    }
    printf("\n");
}

static json_t *numbers(const double *values, int count) {
    json_t *array = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(array, json_real(values[i]));
    }
    return array;
}

/* Fields and their order are llama-bench's where it has them. */
static json_t *make_row(const bench *b, const measurement *m, const report *r) {
    char type[64], backend[32];
    model_type(b, type);
    backend_name(b, backend);
    const settings *s = b->settings;
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, "
        "s:f, s:f, s:f}",
        "build", sluice_version(), "device_info", sluice_engine_device(b->session.engine), "backends",
        backend, "model_filename", s->model, "model_type", type, "model_size", (json_int_t)b->info.bytes,
        "model_n_params", (json_int_t)b->info.parameters, "n_ubatch", s->chunk ? s->chunk : 512, "n_threads",
        b->threads, "type_k", s->kv_type, "type_v", s->kv_type, "n_prompt", m->prompt, "n_gen", m->generate,
        "n_depth", m->depth, "n_sequences", b->sequences, "avg_ns", r->time.mean, "stddev_ns",
        r->time.deviation, "avg_ts", r->speed.mean, "stddev_ts", r->speed.deviation, "weight_bytes_per_token",
        r->token_bytes, "gb_per_second", r->gigabytes, "tops", r->teraops);
    if (row && strcmp(s->output, "json") == 0) {
        json_object_set_new(row, "samples_ns", numbers(r->nanoseconds, m->repetitions));
        json_object_set_new(row, "samples_ts", numbers(r->speeds, m->repetitions));
    }
    return row;
}

static void print_csv(const bench *b, const json_t *row) {
    const char *key;
    json_t *value;
    int column = 0;
    if (b->first) {
        json_object_foreach((json_t *)row, key, value) {
            printf("%s%s", column++ ? "," : "", key);
        }
        printf("\n");
    }
    column = 0;
    json_object_foreach((json_t *)row, key, value) {
        printf("%s", column++ ? "," : "");
        if (json_is_string(value)) {
            putchar('"');
            for (const char *at = json_string_value(value); *at; at++) {
                printf(*at == '"' ? "\"\"" : "%c", *at);
            }
            putchar('"');
        } else {
            printf("%.15g", json_number_value(value));
        }
    }
    printf("\n");
}

int print_row(bench *b, json_t *row) {
    if (!row) {
        return fail("bench: out of memory");
    }
    if (strcmp(b->settings->output, "csv") == 0) {
        print_csv(b, row);
        json_decref(row);
    } else {
        json_array_append_new(b->rows, row);
    }
    b->first = false;
    fflush(stdout);
    return DONE;
}

/* Where the time of the last step goes, as text or as JSON; NULL when nobody asked. */
static int read_profile(const bench *b, char **profile) {
    sluice_error error;
    *profile = NULL;
    const bool text = strcmp(b->settings->output, "md") == 0;
    return b->settings->profile &&
                   sluice_engine_profile(b->session.engine, text ? SLUICE_TEXT : SLUICE_JSON, profile, &error)
               ? fail_with(&error)
               : DONE;
}

static int print_measurement(bench *b, const measurement *m, const char *profile) {
    static report r;
    summarize_all(b, m, &r);
    if (strcmp(b->settings->output, "md") == 0) {
        print_markdown(b, m, &r);
        if (profile) {
            printf("\n%s\n", profile);
            b->first = true; /* the next row needs the head of the table again */
            return fflush(stdout), DONE;
        }
    } else {
        json_t *row = make_row(b, m, &r);
        if (!row) {
            return fail("bench: out of memory");
        }
        if (profile) {
            json_object_set_new(row, "profile", json_loads(profile, 0, NULL));
        }
        return print_row(b, row);
    }
    b->first = false;
    fflush(stdout);
    return DONE;
}

/* ---- the command -----------------------------------------------------------------------------------------
 */

static int32_t most_of(const number_list *list) {
    int32_t most = 0;
    for (int i = 0; i < list->count; i++) {
        most = list->items[i] > most ? list->items[i] : most;
    }
    return most;
}

static int processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* The same numbers in every run. */
static int make_tokens(bench *b) {
    b->tokens = malloc((size_t)b->context * sizeof *b->tokens);
    uint64_t state = 1;
    for (int32_t i = 0; i < b->context && b->tokens; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((state >> 33) % (uint64_t)b->info.vocabulary);
    }
    return b->tokens ? DONE : fail("bench: out of memory");
}

static int prepare(bench *b) {
    const settings *s = b->settings;
    int64_t needed = (int64_t)most_of(&s->depths) + 2;
    needed += most_of(&s->prompts) > most_of(&s->generates) ? most_of(&s->prompts) : most_of(&s->generates);
    if (needed > INT32_MAX) {
        return fail("bench: %lld tokens in one sequence are too many", (long long)needed);
    }
    needed = s->beside ? beside_context(s) : needed;
    b->context = s->context > needed ? s->context : (int32_t)needed;
    b->threads = s->threads ? s->threads : processors();
    b->sequences = s->beside ? s->beside + 1 : s->sequences ? s->sequences : 1;
    int code = open_model(s, &b->session);
    if (code != DONE) {
        return code;
    }
    b->info.size = sizeof b->info;
    sluice_model_get_info(b->session.model, &b->info);
    sluice_engine_options options;
    engine_options(s, 1, &options);
    options.context = b->context;
    options.sequences = b->sequences;
    options.no_prefix_reuse = true;
    if (most_of(&s->depths) > 0 && !s->cache_tokens) {
        /* The deep sequences stay; a copy takes the pages that it fills, and one that both had begun. */
        options.cache_tokens =
            (uint64_t)b->sequences * ((uint64_t)b->context + (uint64_t)most_of(&s->depths) + 256);
    }
    code = read_costs(b);
    code = code == DONE ? make_tokens(b) : code;
    return code == DONE ? open_engine(&b->session, &options) : code;
}

static int measure_all(bench *b) {
    const settings *s = b->settings;
    static measurement m;
    int code = DONE;
    for (int d = 0; d < s->depths.count; d++) {
        for (int i = 0; i < s->prompts.count + s->generates.count && code == DONE; i++) {
            const bool prompt = i < s->prompts.count;
            m.prompt = prompt ? s->prompts.items[i] : 0;
            m.generate = prompt ? 0 : s->generates.items[i - s->prompts.count];
            m.depth = s->depths.items[d];
            if (m.prompt + m.generate > 0) {
                char *profile = NULL;
                code = measure(b, &m);
                code = code == DONE ? read_profile(b, &profile) : code;
                code = code == DONE ? print_measurement(b, &m, profile) : code;
                sluice_free(profile);
            }
        }
    }
    return code;
}

int bench_command(const settings *settings) {
    bench b = {.settings = settings, .first = true, .rows = json_array()};
    if (settings->sequences > 4096) {
        fail("bench: at most 4096 sequences");
        return WRONG_USAGE;
    }
    if (settings->beside && (most_of(&settings->prompts) == 0 || settings->generates.items[0] == 0)) {
        json_decref(b.rows);
        fail("bench: --beside wants the prompt's tokens (-p) and how many are generated before it (-n)");
        return WRONG_USAGE;
    }
    if (settings->profile && strcmp(settings->output, "csv") == 0) {
        json_decref(b.rows);
        fail("bench: --profile has no place in -o csv; md and json have one");
        return WRONG_USAGE;
    }
    int code = prepare(&b);
    catch_interrupt();
    code = code != DONE ? code : settings->beside ? measure_beside(&b) : measure_all(&b);
    release_interrupt();
    if (code == DONE && strcmp(settings->output, "json") == 0) {
        code = print_json(json_incref(b.rows));
    }
    json_decref(b.rows);
    free(b.tokens);
    close_session(&b.session);
    return code;
}
