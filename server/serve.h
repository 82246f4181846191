/* The server as a program part: everything that `sluice serve` can be told. */
#ifndef SLUICE_SERVE_H
#define SLUICE_SERVE_H

#include "http.h"

#include "sluice.h"

#include <jansson.h>

typedef struct serve_options {
    http_options http;              /* routes, context and record are set by serve */
    const char *const *model_paths; /* [model_count]; the first answers when a request names none */
    const char *const *model_names; /* [model_count] */
    size_t model_count;
    bool strict_model;
    const sluice_engine_options *engine;
    const sluice_model_options *model; /* for all models; NULL: none */
    const char *expert_stats;          /* a file for them when the only model ends; NULL: none */
    const json_t *template_options;    /* an object: variables of chat templates, where a request does not set
                                          them; NULL: none */
    int64_t thought_tokens;            /* of a thought, where a request does not set it; -1: no bound */
    bool no_model_sampling;     /* requests that say nothing are not sampled as the models' files ask */
    double leave_seconds;       /* after SIGTERM, for which all goes on but /health says 503 */
    double drain_seconds;       /* that running requests get after that */
    bool open_metrics;          /* /metrics needs no key */
    bool json_log;              /* one object a line instead of text */
    const char *metrics_prefix; /* "sluice_" */
    double heartbeat_seconds;   /* of silence in a stream before a comment; 15 */
} serve_options;

/* Binds, loads, serves until SIGTERM or SIGINT, drains. Returns the exit code: 0, 1 after one line on stderr
 * (port, model, device). */
int serve(const serve_options *options);

#endif
