/* Load on a server with OpenAI's API (sluice, llama-server, vLLM, SGLang), and what its clients see of it.
 *
 * One thread, libcurl's multi interface over epoll. It talks to the host of the URL and to no other: no
 * redirect is followed, no proxy taken. Functions return 0, or -1 with one line in `message`. */
#ifndef SLUICE_LOAD_H
#define SLUICE_LOAD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { LOAD_MESSAGE = 512, LOAD_KINDS = 16, LOAD_RUNNING = 16000 };

/* Tokens; drawn anew for each request when the deviation is above 0, and at least 1. */
typedef struct load_length {
    double mean, deviation;
} load_length;

/* Milliseconds that a request must meet to be good; 0: any. */
typedef struct load_objective {
    double first; /* to the first token */
    double gap;   /* the longest between two tokens that follow each other */
    double token; /* time per output token: the mean of those gaps by tokens, not events */
    double whole; /* to the last token */
} load_objective;

/* What a person may want to see while it runs. */
typedef struct load_progress {
    double seconds;
    bool warm; /* what ends from now on counts */
    int64_t started, done, failed, running;
    double tokens; /* that came since it counts */
} load_progress;

typedef struct load_options {
    const char *url;            /* http://HOST:PORT, with or without /v1; https too */
    const char *model;          /* NULL: the first that the server names */
    bool completions;           /* else chat completions */
    const char *key;            /* sent as a bearer; NULL: none */
    const char *const *headers; /* [header_count], "Name: value" */
    size_t header_count;
    const char *ca_file; /* PEM; NULL: the system's */
    /* When it ends: both, or one of them 0. */
    int64_t requests;
    double seconds;
    double warmup;     /* seconds at the beginning; what ends in them does not count */
    double timeout;    /* seconds of one request */
    double burstiness; /* shape of the gamma distribution of the gaps between arrivals; 1: Poisson */
    /* What is asked. */
    load_length prompt, answer; /* tokens; answer.mean 0: the server's own bound */
    const char *prompts;        /* the text of a file of prompts; NULL: random words */
    size_t prompts_length;
    const char *prompts_name;  /* for messages */
    int32_t id_least, id_most; /* prompts are lists of such token ids; both 0: words */
    int32_t shared, groups;    /* tokens that all of a group begin with */
    int32_t turns;             /* of a conversation */
    double think;              /* seconds between an answer and the next turn */
    bool ignore_eos;
    double temperature;  /* below 0: the server's own */
    const json_t *extra; /* an object: further fields of each request; NULL: none */
    double abort_share;  /* of requests whose client leaves in the middle */
    uint64_t seed;
    load_objective objective;
    FILE *trace; /* one JSON object a line for each request as it ends; NULL: none */
    bool (*progress)(void *context, const load_progress *progress); /* false ends the run */
    void *progress_context;
} load_options;

/* Numbers of one kind, in ascending order once a run has ended. */
typedef struct load_series {
    float *values; /* [count] */
    size_t count, capacity;
} load_series;

/* The quantile `q` from 0 to 1 of ascending values, as numpy's default has it: at q (count - 1), linear
 * between the two neighbours. 0 of none. */
double load_quantile(const load_series *series, double q);
double load_mean(const load_series *series);
/* Of the population, as numpy.std. */
double load_deviation(const load_series *series);

/* Why requests failed. */
typedef struct load_error {
    char kind[80];     /* "HTTP 429", "timed out" */
    char example[160]; /* the first one's message */
    int64_t count;
} load_error;

typedef struct load_result {
    double rate;         /* conversations a second; 0: as soon as one ends */
    int32_t concurrency; /* at once; 0: no bound but LOAD_RUNNING */
    double seconds;      /* that count */
    int64_t started;     /* in all; the others are those that ended in the seconds that count */
    int64_t done, failed, aborted;
    int64_t unfinished;        /* were cut off by the end */
    int64_t refused;           /* of the failed: 429 and 503 */
    int64_t refused_with_wait; /* of those: with Retry-After */
    int64_t good;              /* done, and met all objectives */
    double generated;          /* tokens that came in those seconds, of unfinished requests too */
    int64_t prompt_tokens;     /* of done requests that said their usage */
    int64_t cached_tokens;     /* of those, as far as the server told */
    int64_t answer_tokens;     /* of done requests: by usage, else events */
    int64_t text_events;       /* of done requests */
    int64_t by_usage;          /* done requests that said it */
    int64_t not_streamed;      /* done requests that were answered as one JSON value */
    int64_t short_answers;     /* with ignore_eos: fewer tokens than were asked for */
    double prompt_wanted;      /* mean tokens that random prompts aimed at; 0: none */
    int64_t most_running;
    bool held;        /* arrivals waited for a free place */
    bool interrupted; /* the progress function ended it */
    /* Milliseconds, of done requests. */
    load_series connect, first_byte, first, gap, token, whole;
    load_series late;         /* ms: of the generator itself, clock ticks and arrivals */
    double processor_seconds; /* of this process, in all of the run */
    double wall_seconds;      /* all of the run, the warmup too */
    load_error errors[LOAD_KINDS];
    size_t error_count;
} load_result;

void load_result_free(load_result *result);

typedef struct load load;

/* Reads the prompts and, without a model's name, asks the server for it. The options must outlive the load.
 */
int load_open(const load_options *options, load **opened, char message[LOAD_MESSAGE]);
void load_close(load *load);
const char *load_model(const load *load);
/* Until the end of the options, or the progress function's. rate 0: `concurrency` clients that ask again as
 * soon as they are answered; concurrency 0: no bound. Prompts are others in each run of a load. On failure
 * *result is empty. */
int load_run(load *load, double rate, int32_t concurrency, load_result *result, char message[LOAD_MESSAGE]);

/* ---- what is told of results
 * ---------------------------------------------------------------------------------- */

/* Was the generator the bottleneck? One line in `line` when it was. */
bool load_was_late(const load_result *result, char line[LOAD_MESSAGE]);
/* The fields of vLLM's benchmark where they mean the same. NULL: no memory. */
json_t *load_json(const load *load, const load_result *result);
void load_print(FILE *out, const load *load, const load_result *result);
/* A sweep: one row for each result. */
void load_print_sweep(FILE *out, const load *load, const load_result *results, size_t count);
/* An SVG file: of one result its percentiles, of several throughput and latency over the rate or the
 * concurrency. */
int load_plot(const char *path, const load *load, const load_result *results, size_t count,
              char message[LOAD_MESSAGE]);

#endif
