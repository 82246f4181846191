/* Names are vLLM's stems, which dashboards and gateways know; Prometheus keeps colons for recording rules, so
 * the prefix is our own unless somebody asks for theirs. */
#include "metrics.h"

#include <dirent.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUCKETS = 24, REQUEST_ROWS = 512, LABEL = 64 };

typedef struct histogram {
    uint64_t counts[BUCKETS + 1]; /* the last: above all bounds */
    double sum;
} histogram;

typedef struct histogram_row {
    const char *name, *help;
    const double *bounds; /* up to BUCKETS, ended by 0 */
} histogram_row;

static const double SHORT_SECONDS[BUCKETS + 1] = {0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02,
                                                  0.025, 0.03,  0.04,  0.05,  0.075, 0.1,  0.15,  0.2,
                                                  0.3,   0.4,   0.5,   0.75,  1,     2.5,  5,     0};
static const double LONG_SECONDS[BUCKETS + 1] = {0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25,
                                                 0.5,   0.75, 1,    2.5,  5,    7.5,  10,  15,
                                                 20,    30,   40,   60,   120,  240,  480, 0};
static const double TOKENS[BUCKETS + 1] = {1,     2,      5,      10,     20,      50,    100,
                                           200,   500,    1000,   2000,   5000,    10000, 20000,
                                           50000, 100000, 200000, 500000, 1000000, 0};

static const histogram_row HISTOGRAMS[METRIC_HISTOGRAMS] = {
    [METRIC_FIRST_TOKEN] = {"time_to_first_token_seconds", "From arrival to the first token.", LONG_SECONDS},
    [METRIC_INTER_TOKEN] = {"inter_token_latency_seconds", "Between tokens of one choice.", SHORT_SECONDS},
    [METRIC_TOKEN_MEAN] = {"request_time_per_output_token_seconds",
                           "Mean for each token after a request's first.", SHORT_SECONDS},
    [METRIC_TOTAL] = {"e2e_request_latency_seconds", "From arrival to the end of the answer.", LONG_SECONDS},
    [METRIC_QUEUE] = {"request_queue_time_seconds", "From submission to the first step.", LONG_SECONDS},
    [METRIC_PREFILL] = {"request_prefill_time_seconds", "From the first step to the first token.",
                        LONG_SECONDS},
    [METRIC_DECODE] = {"request_decode_time_seconds", "From the first token to the last.", LONG_SECONDS},
    [METRIC_PROMPT_TOKENS] = {"request_prompt_tokens", "Tokens of a request's prompts.", TOKENS},
    [METRIC_GENERATION_TOKENS] = {"request_generation_tokens", "Tokens that a choice generated.", TOKENS},
};

static const char *const FINISHES[METRIC_FINISHES] = {"stop", "length", "abort", "error"};

typedef struct request_row {
    char handler[LABEL];
    char method[16];
    int status;
    uint64_t count;
} request_row;

struct metrics {
    pthread_mutex_t mutex;
    char model[2 * LABEL]; /* escaped for a label */
    histogram histograms[METRIC_HISTOGRAMS];
    uint64_t finishes[METRIC_FINISHES];
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    request_row requests[REQUEST_ROWS]; /* routes and statuses are few; what is beyond counts in the last */
    size_t request_rows;
};

metrics *metrics_create(const char *model) {
    metrics *m = calloc(1, sizeof *m);
    if (m) {
        pthread_mutex_init(&m->mutex, NULL);
        size_t at = 0;
        for (const char *c = model; *c && at + 3 < sizeof m->model; c++) {
            if (*c == '"' || *c == '\\') {
                m->model[at++] = '\\';
            }
            m->model[at++] = *c == '\n' ? ' ' : *c;
        }
    }
    return m;
}

void metrics_destroy(metrics *m) {
    if (m) {
        pthread_mutex_destroy(&m->mutex);
        free(m);
    }
}

void metrics_observe(metrics *m, metric_histogram which, double value) {
    const double *bounds = HISTOGRAMS[which].bounds;
    int bucket = 0;
    while (bounds[bucket] != 0 && value > bounds[bucket]) {
        bucket++;
    }
    pthread_mutex_lock(&m->mutex);
    m->histograms[which].counts[bucket]++;
    m->histograms[which].sum += value;
    pthread_mutex_unlock(&m->mutex);
}

void metrics_finish(metrics *m, metric_finish reason) {
    pthread_mutex_lock(&m->mutex);
    m->finishes[reason]++;
    pthread_mutex_unlock(&m->mutex);
}

void metrics_tokens(metrics *m, uint64_t prompt, uint64_t cached, uint64_t generated) {
    pthread_mutex_lock(&m->mutex);
    m->prompt_tokens += prompt;
    m->cached_tokens += cached;
    m->generated_tokens += generated;
    pthread_mutex_unlock(&m->mutex);
}

void metrics_request(metrics *m, const http_record *record) {
    pthread_mutex_lock(&m->mutex);
    size_t i = 0;
    while (i < m->request_rows && (m->requests[i].status != record->status ||
                                   strncmp(m->requests[i].handler, record->route, LABEL - 1) != 0 ||
                                   strncmp(m->requests[i].method, record->method, 15) != 0)) {
        i++;
    }
    if (i == m->request_rows && i < REQUEST_ROWS) {
        snprintf(m->requests[i].handler, LABEL, "%s", record->route);
        snprintf(m->requests[i].method, sizeof m->requests[i].method, "%s", record->method);
        m->requests[i].status = record->status;
        m->request_rows++;
    }
    m->requests[i < REQUEST_ROWS ? i : REQUEST_ROWS - 1].count++;
    pthread_mutex_unlock(&m->mutex);
}

/* ---- the text ---- */

typedef struct writer {
    text *out;
    const char *prefix, *model;
} writer;

static void number(const writer *w, const char *type, const char *name, const char *help, double value) {
    text_format(w->out, "# HELP %s%s %s\n# TYPE %s%s %s\n%s%s{model_name=\"%s\"} %.17g\n", w->prefix, name,
                help, w->prefix, name, type, w->prefix, name, w->model, value);
}

static void write_histogram(const writer *w, const histogram_row *row, const histogram *h) {
    text_format(w->out, "# HELP %s%s %s\n# TYPE %s%s histogram\n", w->prefix, row->name, row->help, w->prefix,
                row->name);
    uint64_t total = 0;
    int bucket = 0;
    for (; row->bounds[bucket] != 0; bucket++) {
        total += h->counts[bucket];
        text_format(w->out, "%s%s_bucket{model_name=\"%s\",le=\"%g\"} %llu\n", w->prefix, row->name, w->model,
                    row->bounds[bucket], (unsigned long long)total);
    }
    total += h->counts[bucket];
    text_format(w->out,
                "%s%s_bucket{model_name=\"%s\",le=\"+Inf\"} %llu\n%s%s_sum{model_name=\"%s\"} %.9g\n"
                "%s%s_count{model_name=\"%s\"} %llu\n",
                w->prefix, row->name, w->model, (unsigned long long)total, w->prefix, row->name, w->model,
                h->sum, w->prefix, row->name, w->model, (unsigned long long)total);
}

static double resident_bytes(void) {
    unsigned long long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &pages, &resident) != 2) {
            resident = 0;
        }
        fclose(file);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double open_descriptors(void) {
    double count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        closedir(folder);
    }
    return count > 3 ? count - 3 : 0; /* ".", ".." and the folder's own */
}

/* What inference gateways ask of model servers, as vLLM has it: facts as labels. There are no adapters. */
static void write_facts(const writer *w, const metric_gauges *g) {
    const unsigned long long page = g->page_tokens, pages = page ? g->cache_tokens / page : 0;
    text_format(w->out,
                "# HELP %scache_config_info Tokens of a page of the cache, and pages.\n"
                "# TYPE %scache_config_info gauge\n",
                w->prefix, w->prefix);
    if (page) { /* else no model is loaded, and nothing is known */
        text_format(w->out,
                    "%scache_config_info{model_name=\"%s\",block_size=\"%llu\",num_gpu_blocks=\"%llu\"} 1\n",
                    w->prefix, w->model, page, pages);
    }
    text_format(w->out,
                "# HELP %slora_requests_info Adapters, of which there are none; the time of asking.\n"
                "# TYPE %slora_requests_info gauge\n%slora_requests_info{model_name=\"%s\",max_lora=\"0\","
                "running_lora_adapters=\"\",waiting_lora_adapters=\"\"} %lld\n",
                w->prefix, w->prefix, w->prefix, w->model, (long long)time(NULL));
}

/* Of the layers whose weights, or experts, are in host memory; where there are none, nothing is said. */
static void write_experts(const writer *w, const metric_gauges *g) {
    static const struct {
        const char *name, *labels, *help;
        size_t offset;
    } ROWS[] = {
        {"expert_cache_hits_total", "", "Chosen experts that the GPU had at hand, once a step.",
         offsetof(metric_experts, hits)},
        {"expert_cache_misses_total", "", "Chosen experts that had to be fetched, once a step.",
         offsetof(metric_experts, misses)},
        {"expert_cache_promotions_total", "", "Fetched experts that were used again, and stay longer.",
         offsetof(metric_experts, promotions)},
        {"expert_bytes_total", ",way=\"streamed\"",
         "Bytes of experts, or of layers without, that came from host memory.",
         offsetof(metric_experts, streamed_bytes)},
        {"expert_bytes_total", ",way=\"fetched\"", NULL, offsetof(metric_experts, fetched_bytes)},
    };
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS && g->expert_layers > 0; r++) {
        if (ROWS[r].help) {
            text_format(w->out, "# HELP %s%s %s\n# TYPE %s%s counter\n", w->prefix, ROWS[r].name,
                        ROWS[r].help, w->prefix, ROWS[r].name);
        }
        for (int i = 0; i < g->expert_layers; i++) {
            uint64_t value;
            memcpy(&value, (const char *)&g->experts[i] + ROWS[r].offset, sizeof value);
            text_format(w->out, "%s%s{model_name=\"%s\",layer=\"%d\"%s} %llu\n", w->prefix, ROWS[r].name,
                        w->model, (int)g->experts[i].layer, ROWS[r].labels, (unsigned long long)value);
        }
    }
}

static void write_gauges(const writer *w, const metric_gauges *g) {
    const double used = (double)g->cache_tokens_used - (double)g->cache_tokens_kept;
    number(w, "gauge", "num_requests_running", "Requests that are in steps.", (double)g->running);
    number(w, "gauge", "num_requests_waiting", "Requests that wait for their first step.",
           (double)g->waiting);
    number(w, "gauge", "kv_cache_usage_perc", "Share of the cache that running sequences hold, 0 to 1.",
           g->cache_tokens ? used / (double)g->cache_tokens : 0);
    number(w, "gauge", "kv_cache_tokens", "Tokens that the cache has room for.", (double)g->cache_tokens);
    number(w, "gauge", "kv_cache_kept_tokens", "Tokens kept for reuse, given up when others need the room.",
           (double)g->cache_tokens_kept);
    number(w, "counter", "num_preemptions_total", "Sequences that gave up their cache and were resumed.",
           (double)g->preemptions);
    number(w, "counter", "steps_total", "Steps of the engine.", (double)g->steps);
    number(w, "counter", "iteration_tokens_total", "Rows of all steps.", (double)g->rows);
    number(w, "counter", "spec_decode_num_draft_tokens_total", "Tokens that were drafted.",
           (double)g->drafted);
    number(w, "counter", "spec_decode_num_accepted_tokens_total", "Drafted tokens that were right.",
           (double)g->accepted);
    number(w, "gauge", "http_connections", "Open connections.", (double)g->connections);
    text_format(w->out,
                "# HELP process_resident_memory_bytes Resident memory.\n# TYPE process_resident_memory_bytes "
                "gauge\nprocess_resident_memory_bytes %.0f\n",
                resident_bytes());
    text_format(w->out,
                "# HELP process_open_fds Open descriptors.\n# TYPE process_open_fds gauge\n"
                "process_open_fds %.0f\n",
                open_descriptors());
}

static void write_requests(const writer *w, const metrics *m) {
    text_format(w->out, "# HELP %shttp_requests_total Answers.\n# TYPE %shttp_requests_total counter\n",
                w->prefix, w->prefix);
    for (size_t i = 0; i < m->request_rows; i++) {
        const request_row *row = &m->requests[i];
        text_format(w->out, "%shttp_requests_total{handler=\"%s\",method=\"%s\",status=\"%d\"} %llu\n",
                    w->prefix, row->handler, row->method, row->status, (unsigned long long)row->count);
    }
    text_format(
        w->out,
        "# HELP %srequest_success_total Choices that ended.\n# TYPE %srequest_success_total counter\n",
        w->prefix, w->prefix);
    for (int i = 0; i < METRIC_FINISHES; i++) {
        text_format(w->out, "%srequest_success_total{model_name=\"%s\",finished_reason=\"%s\"} %llu\n",
                    w->prefix, w->model, FINISHES[i], (unsigned long long)m->finishes[i]);
    }
}

void metrics_write(metrics *m, const metric_gauges *gauges, const char *prefix, text *out) {
    const writer w = {out, prefix, m->model};
    pthread_mutex_lock(&m->mutex);
    number(&w, "counter", "prompt_tokens_total", "Tokens of prompts, reused ones included.",
           (double)m->prompt_tokens);
    number(&w, "counter", "generation_tokens_total", "Generated tokens.", (double)m->generated_tokens);
    number(&w, "counter", "prefix_cache_queries_total",
           "Tokens of prompts that were looked for in the cache.", (double)m->prompt_tokens);
    number(&w, "counter", "prefix_cache_hits_total", "Tokens of prompts that were taken from the cache.",
           (double)m->cached_tokens);
    for (int i = 0; i < METRIC_HISTOGRAMS; i++) {
        write_histogram(&w, &HISTOGRAMS[i], &m->histograms[i]);
    }
    write_requests(&w, m);
    pthread_mutex_unlock(&m->mutex);
    write_gauges(&w, gauges);
    write_experts(&w, gauges);
    write_facts(&w, gauges);
}
