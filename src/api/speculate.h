/* What an engine's options say about drafts. */
#ifndef SL_API_SPECULATE_H
#define SL_API_SPECULATE_H

#include "api/plans.h"
#include "sched/drafter.h"
#include "sched/head.h"

#include <pthread.h>

/* All zero: no drafts. */
typedef struct sl_api_speculation {
    sl_draft_source source;
    int32_t drafts; /* of one sequence in a step, at most; 0: none */
    sl_ngram ngram;
    size_t (*draft)(void *context, const int32_t *tokens, size_t count, int32_t *drafts, size_t room);
    void *draft_context;
    sl_head *head; /* the model's own; NULL: it has none, or it is not used */
    /* Of a draft model. */
    sluice_model *model; /* a reference; NULL: there is none */
    bool holds;          /* the weights' data in it */
    sl_api_plan planned;
    sl_executor *executor;
    sl_drafter *drafter;
} sl_api_speculation;

/* Rows that a plan of the model sets aside for drafts. */
int32_t sl_api_draft_rows(const sl_model *model, const sluice_engine_options *options);
/* Checks the options, and loads the draft model if there is one, before the plan of `model` counts the memory
 * that is left. It stays where it is until it is closed, which is to follow, after a failure too. */
int sl_api_speculation_open(sl_api_speculation *speculation, sluice_model *model,
                            const sluice_engine_options *options, sl_error *error);
/* Whether it is the model's own head that the options' drafts would come from. */
bool sl_api_drafts_with_head(const sl_model *model, const sluice_engine_options *options);
/* When the model's plan is made: where that has no place for the head, sequences are searched instead. */
void sl_api_speculation_planned(sl_api_speculation *speculation, const sl_plan *plan);
void sl_api_speculation_close(sl_api_speculation *speculation);
/* Of all pools of the draft model. */
uint64_t sl_api_speculation_bytes(const sl_api_speculation *speculation);
/* Takes the draft model's bytes from the limits, on several devices from that of each. */
void sl_api_speculation_leave(const sl_api_speculation *speculation, sluice_engine_options *options);

/* By the stepping thread, under the lock, which is free meanwhile, and with no step in flight: has the draft
 * model or the head say what it can for the next step. */
void sl_api_draft(sl_api_speculation *speculation, sl_scheduler *scheduler, pthread_mutex_t *mutex);

#endif
