/* What the files of the C API share of engines, sequences and requests. One thread per engine builds steps,
 * runs them and hands out what they gave; everything that callers share with it is under one lock, which is
 * not held while a step runs. */
#ifndef SL_API_ENGINE_H
#define SL_API_ENGINE_H

#include "api/grammars.h"
#include "api/plans.h"
#include "api/speculate.h"
#include "sched/output.h"
#include "sched/scheduler.h"

#include <pthread.h>

struct sluice_engine {
    sluice_model *model; /* a reference */
    sl_api_plan planned;
    char device[256]; /* backend and its description */
    sl_executor *executor;
    sl_scheduler *scheduler;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work_came; /* for the thread */
    pthread_cond_t step_done; /* for everybody else */
    bool thread_runs, stop;
    bool holds;  /* the weights' data in the model */
    bool failed; /* the device is gone; `failure` says how */
    sl_error failure;
    unsigned losses; /* sl_map_losses when the model's files were checked last */
    double step_seconds;
    sluice_counters counted;        /* what the backend counted by the end of the last step; the rest is 0 */
    sl_fetch_count *expert_counts; /* [fetch sets]: likewise */
    sl_plan_step last_step;         /* what ran last, for a profile; no rows: nothing did */
    bool stepping;                  /* a step runs, without the lock */
    bool saving; /* a page goes to the disk, without the lock */
    bool reuses_prefixes;
    int32_t *ends; /* [end_count]: the tokens that end a text */
    int32_t end_count;
    sl_store *store;   /* what cache_folder holds; NULL: none */
    sl_keeper *keeper; /* likewise */
    sl_api_speculation speculation;
    sluice_embedding *embeddings; /* that are not finished, in order of submission */
};

struct sluice_sequence {
    sluice_engine *engine;
    sl_sequence *core;
};

/* Log-probabilities of tokens in order, with the likeliest beside each. Set aside at submit. */
typedef struct sl_api_logprobs {
    float *logprobs;     /* [room]; NULL: not asked for */
    sluice_logprob *top; /* [room][top_count] */
    size_t room, count;
} sl_api_logprobs;

struct sluice_request {
    sl_work work; /* first: callbacks get a pointer to it */
    sluice_engine *engine;
    sl_output output;
    sluice_grammar *grammar; /* a reference; NULL: none */
    bool ignore_eos;
    int32_t *stop_tokens; /* [stop_token_count], in rising order, owned */
    size_t stop_token_count;
    int32_t stop_token; /* that ended it; -1: none */
    void (*notify)(void *context);
    void *notify_context;
    bool notify_due; /* the next event is to be told */
    /* What was generated so far; under the engine's lock. */
    int32_t *tokens;   /* [token_room] */
    size_t *text_ends; /* [token_room]: bytes that may be shown with each token */
    size_t token_room, token_count;
    int32_t top_count;         /* likeliest tokens beside each log-probability */
    sl_api_logprobs generated; /* of `tokens` */
    sl_api_logprobs prompt;    /* of prompt_copy, from the first on */
    int32_t *prompt_copy;      /* [prompt_tokens], with log-probabilities of the prompt; owned */
    int32_t prompt_position;   /* of the first appended token in the sequence */
    const float *sampled_row;  /* logits of the token that comes next; inside a commit only */
    float *logits;             /* [logits_room][vocabulary], owned */
    size_t logits_room, logits_rows, logits_position;
    int32_t logits_from; /* the first position whose logits the caller gets; INT32_MAX: none */
    size_t logits_after; /* tokens that come before the logits */
    bool logits_ready;   /* not handed out yet */
    bool logits_lent;    /* handed out, until the next poll */
    bool done;
    sl_finish finish;
    sl_error error;
    size_t prompt_tokens;
    double submitted, started, first_token, ended; /* seconds; started 0: never */
    /* Of the polling thread. */
    size_t polled_tokens, polled_prompt, polled_text;
    sl_buffer text;
    bool done_polled;
};

/* keep.c: what the cache keeps on disk, of an engine with cache_folder. The first is called before the
 * weights' data is let go, the second when the scheduler is there. */
int sl_api_keep_open(sluice_engine *engine, const sluice_engine_options *options, sl_error *error);
int sl_api_keep_begin(sluice_engine *engine, sl_error *error);
/* By the stepping thread, under the lock, which is free meanwhile, and with no step in flight. Loads some of
 * what waiting requests can begin from; *more: there is more of that. */
int sl_api_keep_load(sluice_engine *engine, bool *more, sl_error *error);
/* Likewise, when there is nothing else to do: saves one page. *more: there may be another. */
int sl_api_keep_save(sluice_engine *engine, bool *more, sl_error *error);
/* When the thread has ended: saves the rest, unless the device is gone, and frees all. */
void sl_api_keep_close(sluice_engine *engine);

/* embed.c, by the stepping thread, under the lock and with no step in flight: begins texts where there is
 * room, and finishes embeddings whose texts are done. */
void sl_api_feed(sluice_engine *engine);

/* Under the lock: waits until no step in flight holds the sequence. */
void sl_api_wait_for_steps(sluice_engine *engine, const sl_sequence *core);

/* A token's bytes; `owner` is the tokenizer. */
const char *sl_api_bytes_of(const void *owner, int32_t token, size_t *length);

/* What a request's options say about sampling (sampling.c). */
int sl_api_check_sampling(const sluice_request_options *options, sl_error *error);
/* Of options that were checked; the counter is left. */
void sl_api_fill_sampler(const sluice_request_options *options, sl_sampler *sampler);
/* What the request changes about logits, and how it draws, if it does: request->work.adjust and mirostat are
 * then the request's, on failure too. */
int sl_api_make_sampling(sluice_request *request, const sluice_request_options *options,
                         const sl_sequence *core, sl_error *error);

/* What the request's text is held to: its grammar and the bound of its thought (bounds.c). The same. */
int sl_api_make_bounds(sluice_request *request, const sluice_request_options *options, sl_error *error);

#endif
