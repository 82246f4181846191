/* What the files of the C API share of engines, sequences and requests. One thread per engine builds steps,
 * runs them and hands out what they gave; everything that callers share with it is under one lock, which is
 * not held while a step runs. */
#ifndef SL_API_ENGINE_H
#define SL_API_ENGINE_H

#include "api.h"

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
    double step_seconds;
    sl_plan_step last_step; /* what ran last, for a profile; no rows: nothing did */
    bool stepping;          /* a step runs, without the lock */
    bool reuses_prefixes;
};

struct sluice_sequence {
    sluice_engine *engine;
    sl_sequence *core;
};

struct sluice_request {
    sl_work work; /* first: callbacks get a pointer to it */
    sluice_engine *engine;
    sl_output output;
    bool ignore_eos;
    /* What was generated so far; under the engine's lock. */
    int32_t *tokens;   /* [token_room] */
    size_t *text_ends; /* [token_room]: bytes that may be shown with each token */
    size_t token_room, token_count;
    float *logits; /* [logits_room][vocabulary], owned */
    size_t logits_room, logits_rows, logits_position;
    size_t logits_after; /* tokens that come before the logits */
    bool logits_ready;   /* not handed out yet */
    bool logits_lent;    /* handed out, until the next poll */
    bool done;
    sl_finish finish;
    sl_error error;
    size_t prompt_tokens;
    double submitted, started, first_token, ended; /* seconds; started 0: never */
    /* Of the polling thread. */
    size_t polled_tokens, polled_text;
    sl_buffer text;
    bool done_polled;
};

/* Seconds of a clock that only goes forward. */
double sl_api_seconds(void);

/* Under the lock: waits until no step in flight holds the sequence. */
void sl_api_wait_for_steps(sluice_engine *engine, const sl_sequence *core);

#endif
