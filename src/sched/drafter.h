/* Drafts by a second, smaller model: a scheduler of its own over a plan of its own, with a sequence for each
 * slot of the model that it drafts for. That sequence is kept to the same tokens: what they have in common
 * stays cached, the rest is read again, and then it says the likeliest tokens that follow. */
#ifndef SL_SCHED_DRAFTER_H
#define SL_SCHED_DRAFTER_H

#include "sched/scheduler.h"
#include "token/tokenizer.h"

typedef struct sl_drafter sl_drafter;

typedef struct sl_drafter_options {
    const sl_plan *plan; /* outlives the drafter, as the executor and the tokenizer do */
    sl_executor *executor;
    const sl_tokenizer *tokenizer; /* whose ends of texts it stops at; NULL: none */
    int32_t slots;                 /* of the model that it drafts for */
} sl_drafter_options;

/* On failure *drafter is NULL. */
int sl_drafter_create(const sl_drafter_options *options, sl_drafter **drafter, sl_error *error);
/* NULL is fine. */
void sl_drafter_destroy(sl_drafter *drafter);

/* With no step of `target` in flight, under its lock: takes what its next step may need drafts for. False:
 * nothing does. Otherwise sl_drafter_end must follow, and until then `target` may be called but for building
 * steps. */
bool sl_drafter_begin(sl_drafter *drafter, sl_scheduler *target);
/* Without the lock: runs the draft model. An error leaves fewer drafts; SL_ERR_DEVICE ends them for good. */
int sl_drafter_run(sl_drafter *drafter, sl_error *error);
/* Under the lock again. The next step of `target` finds the drafts. */
void sl_drafter_end(sl_drafter *drafter, sl_scheduler *target);

/* The function of its sl_draft_source, with the drafter as context. */
int32_t sl_drafter_draft(void *drafter, const sl_draft_query *query, int32_t *drafts);

#endif
