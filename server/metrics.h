/* Counters and histograms of the server, in Prometheus' text format. Thread-safe; observing takes a short
 * lock. */
#ifndef SLUICE_SERVER_METRICS_H
#define SLUICE_SERVER_METRICS_H

#include "http.h"
#include "text.h"

typedef struct metrics metrics;

typedef enum metric_histogram {
    METRIC_FIRST_TOKEN,   /* seconds from arrival to the first token */
    METRIC_INTER_TOKEN,   /* seconds between tokens of one choice */
    METRIC_TOKEN_MEAN,    /* seconds for each token after the first, of one choice */
    METRIC_TOTAL,         /* seconds of a request */
    METRIC_QUEUE,         /* before its first step */
    METRIC_PREFILL,       /* first step to first token */
    METRIC_DECODE,        /* first token to last */
    METRIC_PROMPT_TOKENS, /* of a request */
    METRIC_GENERATION_TOKENS,
    METRIC_HISTOGRAMS
} metric_histogram;

typedef enum metric_finish {
    METRIC_STOP,
    METRIC_LENGTH,
    METRIC_ABORT,
    METRIC_ERROR,
    METRIC_FINISHES
} metric_finish;

/* `model`: the label model_name. Label values are of bounded variety: routes, methods and statuses. */
metrics *metrics_create(const char *model);
void metrics_destroy(metrics *m);
void metrics_observe(metrics *m, metric_histogram histogram, double value);
void metrics_finish(metrics *m, metric_finish reason);
void metrics_tokens(metrics *m, uint64_t prompt, uint64_t cached, uint64_t generated);
void metrics_request(metrics *m, const http_record *record);

/* Of experts in host memory, in a layer. */
typedef struct metric_experts {
    int32_t layer;
    uint64_t hits, misses, promotions, streamed_bytes, fetched_bytes;
} metric_experts;
enum { METRIC_LAYERS = 512 };

/* What is not counted here, at the time of asking. */
typedef struct metric_gauges {
    uint64_t running, waiting, cache_tokens, cache_tokens_used, cache_tokens_kept, preemptions, steps, rows;
    uint64_t reused_tokens, connections, drafted, accepted, page_tokens;
    metric_experts
        experts[METRIC_LAYERS]; /* in the order of layers; of models that have the same, their sum */
    int expert_layers;
} metric_gauges;
/* `prefix`: before every name, "sluice_" or "vllm:". */
void metrics_write(metrics *m, const metric_gauges *gauges, const char *prefix, text *out);

#endif
