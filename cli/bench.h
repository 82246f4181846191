/* What the files of `sluice bench` share. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include "cli.h"
#include "cost.h"

#include <time.h>

enum { REPETITIONS = 1000 };  /* at most, as the table of options says */
enum { EXPERT_LAYERS = 512 }; /* models with more of them show the first */

/* Of experts, or layers, in host memory, in a layer or in all: what happened in all runs of a measurement. */
typedef struct expert_run {
    int32_t layer, experts, at_hand;
    uint64_t hits, misses, promotions, streamed, fetched; /* the last two: bytes that were brought */
} expert_run;

/* A prompt, a generation, or one after the other. */
typedef struct measurement {
    int32_t prompt, generate, depth; /* one of the first two may be 0 */
    int repetitions;
    time_t begin;                /* when it was asked for */
    double seconds[REPETITIONS]; /* [repetitions] */
    uint64_t drafted, accepted;  /* tokens, in all of these runs */
    expert_run experts;          /* of all layers */
    expert_run layers[EXPERT_LAYERS];
    int layer_count;
} measurement;

/* Lengths of a prompt and of what is generated after it. */
typedef struct length_pair {
    int32_t prompt, generate;
} length_pair;

/* One measurement as --plot draws it: tokens a second over the repetitions. */
typedef struct speed_point {
    int32_t prompt, generate, depth, sequences, threads;
    int model;                /* its place in the list of -m */
    const char *path;         /* the model's, as it was given */
    char name[256], type[64]; /* the model's, and as model_type says it */
    double mean, least, most;
    double limit; /* what the device allows; 0: not known */
} speed_point;

typedef struct speed_list {
    speed_point *points;
    size_t count, capacity;
    char machine[192];
    bool several, gpu; /* models; what ran is one */
} speed_list;

typedef struct bench {
    settings one; /* those given, with one model, one number of threads and one of sequences */
    length_pair pairs[LIST_ITEMS];
    int pair_count;
    session session;
    held_grammar held;
    sluice_model_info info;
    cost cost;
    int32_t sequences, threads, context;
    int32_t *tokens;     /* [context] */
    int32_t *known;      /* [context]: of --draft-known, what a sequence's text was */
    size_t known_count;  /* 0: it is being written */
    char processor[128]; /* the CPU's name */
    sluice_rates rates;  /* of `rated_threads`; zeros where they are not known */
    int32_t rated_threads;
    bool first;        /* row of output */
    int model;         /* its place in the list */
    speed_list speeds; /* of --plot */
    json_t *rows;
} bench;

/* Of the build: the commit, or "unknown", and how many led to it, or 0. */
extern const char BUILD_COMMIT[];
extern const int BUILD_NUMBER;

/* "qwen3 8.2B Q8_0" / "CUDA" */
void model_type(const bench *b, char name[64]);
void backend_name(const bench *b, char name[32]);
/* A row of the output that is no markdown: printed now, or kept for the end; takes `row` over. NULL: no
 * memory. */
int print_row(bench *b, json_t *row);
/* The row of a measurement, with the profile if there is one. */
int print_measurement(bench *b, const measurement *m, const char *profile);
/* Processors that this process may use. */
int processors(void);
/* Rows of a step. */
int32_t chunk_of(const bench *b);
/* The name of the CPU as the system has it; "" when it has none. */
void processor_name(char name[128]);

/* ---- bench_experts.c -------------------------------------------------------------------------------------
 */

/* Counters of weights in host memory, in front of a measurement's runs and behind them. */
void count_experts(const bench *b, measurement *m, bool begin);
/* Tokens of all these runs. */
double tokens_of(const bench *b, const measurement *m);
/* A table, with a line for each layer; nothing where the GPU fetches none. */
void print_expert_layers(const bench *b, const measurement *m);
/* An array with an object for each layer; NULL: no memory. */
json_t *expert_layers_json(const measurement *m);

/* ---- bench_plot.c ----------------------------------------------------------------------------------------
 */

enum { SPEED_KINDS = 3 }; /* prompts, generations, one after the other */
/* Why these options give no picture; NULL: they give one. */
const char *plot_refusal(const settings *settings);
int plot_collect(speed_list *list, const speed_point *point);
/* The file of --plot. */
int plot_speeds(const speed_list *list, const settings *settings);

/* bench --peak: rates of the device alone. */
int measure_peaks(bench *b);
/* bench --beside: for each length of prompt what it and the sequences that generate meanwhile notice. */
int measure_beside(bench *b);
/* Tokens that a sequence has to hold for that. */
int64_t beside_context(const settings *settings);

#endif
