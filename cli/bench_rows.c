/* sluice bench: its rows as Markdown, CSV and JSON. */
#define _GNU_SOURCE
#include "bench.h"

#include <math.h>
#include <string.h>
#include <sys/utsname.h>

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
    double speeds[REPETITIONS], nanoseconds[REPETITIONS]; /* the latter whole numbers */
    statistics speed, time;
    double gigabytes, teraops; /* a second; bytes only where the weights are read once for known rows */
    double token_bytes;
    double limit; /* tokens a second that the device allows; 0: not known */
} report;

/* With drafts the steps are fewer than the tokens, nobody knows by how many. */
static bool has_drafts(const settings *s) {
    return (s->speculate && strcmp(s->speculate, "off") != 0) || s->draft || s->draft_known;
}

int32_t chunk_of(const bench *b) {
    const bool gpu = strncmp(sluice_engine_device(b->session.engine), "cpu", 3) != 0;
    return b->one.chunk ? b->one.chunk : gpu ? 2048 : 512;
}

static void summarize_all(const bench *b, const measurement *m, report *r) {
    const double tokens = (double)(m->prompt + m->generate) * b->sequences;
    for (int i = 0; i < m->repetitions; i++) {
        r->speeds[i] = tokens / m->seconds[i];
        r->nanoseconds[i] = round(m->seconds[i] * 1e9);
    }
    r->speed = summarize(r->speeds, m->repetitions);
    r->time = summarize(r->nanoseconds, m->repetitions);
    /* The head sees a prompt's last row, and each that is generated. */
    const double headed = (m->prompt ? 1 : 0) + m->generate;
    const double head = all_products(b->cost.head_operations) * headed / (m->prompt + m->generate);
    r->teraops = (all_products(b->cost.operations) + head) * r->speed.mean * 1e-12;
    r->token_bytes = m->prompt ? 0 : step_bytes(&b->cost, b->sequences) / b->sequences;
    r->gigabytes = r->token_bytes * r->speed.mean * 1e-9;
    const demand asked = {.prompt = m->prompt,
                          .generate = m->generate,
                          .depth = m->depth,
                          .sequences = b->sequences,
                          .chunk = chunk_of(b),
                          .cache_element_bytes = cache_element_bytes(b->one.kv_type)};
    const double least = has_drafts(&b->one) ? 0 : least_seconds(&b->cost, &asked, &b->rates);
    r->limit = least > 0 ? tokens / least : 0;
}

/* As llama-bench names them: "pp512", "tg128", "pp512+tg128", " @ d4096" behind them. */
static void test_name(const measurement *m, char name[64]) {
    int length = m->prompt ? snprintf(name, 64, "pp%d", m->prompt) : 0;
    if (m->generate) {
        length += snprintf(name + length, 64 - (size_t)length, "%stg%d", m->prompt ? "+" : "", m->generate);
    }
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

void processor_name(char name[128]) {
    char line[256];
    struct utsname system;
    FILE *file = fopen("/proc/cpuinfo", "r"); /* "model name\t: ..." on x86; ARM has no such line */
    name[0] = '\0';
    while (file && !name[0] && fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            const char *at = strchr(line, ':') + 1;
            at += strspn(at, " \t");
            snprintf(name, 128, "%.*s", (int)strcspn(at, "\n"), at);
        }
    }
    if (file) {
        fclose(file);
    }
    if (!name[0] && uname(&system) == 0) {
        snprintf(name, 128, "%s", system.machine);
    }
}

void backend_name(const bench *b, char name[32]) {
    const char *device = sluice_engine_device(b->session.engine);
    snprintf(name, 32, "%.*s", (int)strcspn(device, ":,("), device);
    for (char *at = name; *at; at++) {
        *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
    }
}

/* Megabytes of weights that came from host memory for a token, how many of the chosen experts were on the
 * GPU, and how many came to stay there. */
static void print_experts(const bench *b, const measurement *m) {
    const expert_run *e = &m->experts;
    const double tokens = tokens_of(b, m);
    char hits[16] = "-";
    if (e->hits + e->misses > 0) {
        snprintf(hits, sizeof hits, "%.1f %%", 100.0 * (double)e->hits / (double)(e->hits + e->misses));
    }
    printf(" %12.2f | %7s | %8llu |", tokens > 0 ? 1e-6 * (double)(e->streamed + e->fetched) / tokens : 0,
           hits, (unsigned long long)e->promotions);
}

static void print_markdown(bench *b, const measurement *m, const report *r) {
    char type[64], backend[32], test[64], speed[64], size[32], parameters[32], limit[16] = "-";
    const bool more = b->one.verbose, drafts = has_drafts(&b->one);
    const double mib = (double)b->info.bytes / (1 << 20), millions = (double)b->info.parameters * 1e-6;
    model_type(b, type);
    backend_name(b, backend);
    test_name(m, test);
    snprintf(speed, sizeof speed, "%.2f ± %.2f", r->speed.mean, r->speed.deviation);
    snprintf(size, sizeof size, mib >= 1024 ? "%.2f GiB" : "%.2f MiB", mib >= 1024 ? mib / 1024 : mib);
    snprintf(parameters, sizeof parameters, millions >= 1000 ? "%.2f B" : "%.2f M",
             millions >= 1000 ? millions / 1000 : millions);
    if (r->limit > 0) {
        snprintf(limit, sizeof limit, "%.0f %%", 100 * r->speed.mean / r->limit);
    }
    if (b->first) {
        printf("| %-24s | %10s | %10s | %-8s | %7s | %6s | %5s | %15s | %20s | %5s |%s%s\n", "model", "size",
               "params", "backend", "threads", "type_k", "n_seq", "test", "t/s", "limit",
               more ? "  MB/token |    GB/s |     TOPS | from host MB |    hits | promoted |" : "",
               drafts ? "  drafted |  right |" : "");
        printf("| ------------------------ | ---------: | ---------: | -------- | ------: | -----: | ----: | "
               "--------------: | "
               "-------------------: | ----: |%s%s\n",
               more ? " --------: | ------: | -------: | -----------: | ------: | -------: |" : "",
               drafts ? " -------: | -----: |" : "");
    }
    /* The plus-minus sign takes two bytes. */
    printf("| %-24s | %10s | %10s | %-8s | %7d | %6s | %5d | %15s | %21s | %5s |", type, size, parameters,
           backend, b->threads, b->one.kv_type, b->sequences, test, speed, limit);
    if (more) {
        printf(" %9.1f | %7.2f | %8.3f |", r->token_bytes * 1e-6, r->gigabytes, r->teraops);
        print_experts(b, m);
    }
    if (drafts) {
        printf(" %8llu | %4.0f %% |", (unsigned long long)m->drafted,
               m->drafted ? 100.0 * (double)m->accepted / (double)m->drafted : 0);
    }
    printf("\n");
}

static json_t *numbers(const double *values, int count, bool whole) {
    json_t *array = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(array, whole ? json_integer((json_int_t)values[i]) : json_real(values[i]));
    }
    return array;
}

/* What was built and on what it runs. */
static json_t *machine_facts(const bench *b) {
    char type[64], backend[32];
    const char *device = sluice_engine_device(b->session.engine);
    const bool gpu = strncmp(device, "cpu", 3) != 0;
    const int32_t chunk = chunk_of(b);
    model_type(b, type);
    backend_name(b, backend);
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:s, s:s, s:i}",
                     "build_commit", BUILD_COMMIT, "build_number", BUILD_NUMBER, "cpu_info", b->processor,
                     "gpu_info", gpu ? device : "", "backends", backend, "model_filename", b->one.model,
                     "model_type", type, "model_size", (json_int_t)b->info.bytes, "model_n_params",
                     (json_int_t)b->info.parameters, "n_batch", chunk, "n_ubatch", chunk, "n_threads",
                     b->threads, "type_k", b->one.kv_type, "type_v", b->one.kv_type, "flash_attn",
                     1 /* attention never stores the whole matrix of scores */);
}

/* Fields and their order are llama-bench's where it has them (tools/llama-bench, test::get_fields); ours
 * follow. */
static json_t *make_row(const bench *b, const measurement *m, const report *r) {
    char begin[32] = "";
    struct tm parts;
    if (gmtime_r(&m->begin, &parts)) {
        strftime(begin, sizeof begin, "%FT%TZ", &parts);
    }
    json_t *row = machine_facts(b);
    json_t *measured = json_pack(
        "{s:i, s:i, s:i, s:s, s:I, s:I, s:f, s:f}", "n_prompt", m->prompt, "n_gen", m->generate, "n_depth",
        m->depth, "test_time", begin, "avg_ns", (json_int_t)llround(r->time.mean), "stddev_ns",
        (json_int_t)llround(r->time.deviation), "avg_ts", r->speed.mean, "stddev_ts", r->speed.deviation);
    json_t *ours = json_pack(
        "{s:s, s:s, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}",
        "version", sluice_version(), "device_info", sluice_engine_device(b->session.engine), "n_sequences",
        b->sequences, "weight_bytes_per_token", r->token_bytes, "gb_per_second", r->gigabytes, "tops",
        r->teraops, "expert_hits", (json_int_t)m->experts.hits, "expert_misses",
        (json_int_t)m->experts.misses, "expert_promotions", (json_int_t)m->experts.promotions, "expert_bytes",
        (json_int_t)(m->experts.streamed + m->experts.fetched), "draft_n", (json_int_t)m->drafted,
        "draft_n_accepted", (json_int_t)m->accepted, "limit_ts", r->limit, "limit_fraction",
        r->limit > 0 ? r->speed.mean / r->limit : 0, "int8_operations_per_second", b->rates.int8_operations,
        "bf16_operations_per_second", b->rates.bf16_operations, "f32_operations_per_second",
        b->rates.f32_operations, "read_bytes_per_second", b->rates.read_bytes);
    bool complete = json_object_update(row, measured) == 0;
    if (strcmp(b->one.output, "json") == 0) {
        complete &=
            json_object_set_new(row, "samples_ns", numbers(r->nanoseconds, m->repetitions, true)) == 0 &&
            json_object_set_new(row, "samples_ts", numbers(r->speeds, m->repetitions, false)) == 0;
    }
    complete &= json_object_update(row, ours) == 0;
    if (strcmp(b->one.output, "json") == 0 && m->layer_count > 0) {
        complete &= json_object_set_new(row, "expert_layers", expert_layers_json(m)) == 0;
    }
    json_decref(measured);
    json_decref(ours);
    if (!complete) {
        json_decref(row);
    }
    return complete ? row : NULL;
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
        } else if (json_is_integer(value)) {
            printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
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
    if (strcmp(b->one.output, "csv") == 0) {
        print_csv(b, row);
        json_decref(row);
    } else {
        json_array_append_new(b->rows, row);
    }
    b->first = false;
    fflush(stdout);
    return DONE;
}

/* For --plot. */
static int keep_speed(bench *b, const measurement *m, const report *r) {
    const char *slash = strrchr(b->one.model, '/'), *device = sluice_engine_device(b->session.engine);
    const bool gpu = strncmp(device, "cpu", 3) != 0;
    speed_point p = {.prompt = m->prompt,
                     .generate = m->generate,
                     .depth = m->depth,
                     .sequences = b->sequences,
                     .threads = b->threads,
                     .model = b->model,
                     .path = b->one.model,
                     .mean = r->speed.mean,
                     .least = r->speed.mean,
                     .most = r->speed.mean};
    for (int i = 0; i < m->repetitions; i++) {
        p.least = fmin(p.least, r->speeds[i]);
        p.most = fmax(p.most, r->speeds[i]);
    }
    p.limit = r->limit;
    snprintf(p.name, sizeof p.name, "%s", slash && slash[1] ? slash + 1 : b->one.model);
    model_type(b, p.type);
    b->speeds.gpu = gpu;
    snprintf(b->speeds.machine, sizeof b->speeds.machine, "%.180s",
             gpu || !b->processor[0] ? device : b->processor);
    return plot_collect(&b->speeds, &p);
}

int print_measurement(bench *b, const measurement *m, const char *profile) {
    static report r;
    summarize_all(b, m, &r);
    if (b->one.plot && keep_speed(b, m, &r) != DONE) {
        return FAILED;
    }
    if (strcmp(b->one.output, "md") == 0) {
        print_markdown(b, m, &r);
        if (b->one.verbose) {
            print_expert_layers(b, m);
        }
        if (profile) {
            printf("\n%s\n", profile);
        }
        /* The next row needs the head of the table again. */
        b->first = profile || (b->one.verbose && m->layer_count > 0);
        fflush(stdout);
        return DONE;
    }
    json_t *row = make_row(b, m, &r);
    if (!row) {
        return fail("bench: out of memory");
    }
    if (profile) {
        json_object_set_new(row, "profile", json_loads(profile, 0, NULL));
    }
    return print_row(b, row);
}
