/* A model's own head as a source of drafts: the program's list of ops that drafts, run before a step on the
 * executor and the cache of the model itself.
 *
 * The rows are those that the next step has too, for each sequence its last token and then what was drafted:
 * one row a pass, as many passes as drafts are wanted. Their pages are reserved for the while, and written
 * again by the step. */
#ifndef SL_SCHED_HEAD_H
#define SL_SCHED_HEAD_H

#include "sched/scheduler.h"

typedef struct sl_head sl_head;

/* For a scheduler of at most so many slots. `tokenizer` may be NULL; nothing is drafted behind a token of its
 * that ends a generation. */
int sl_head_create(int32_t slots, const sl_tokenizer *tokenizer, sl_head **head, sl_error *error);
void sl_head_destroy(sl_head *head);

/* With no step in flight, under the scheduler's lock: reserves what the sequences need that could use drafts
 * now; false when there are none. Nobody frees or changes these until sl_head_end. The scheduler's program
 * has draft ops. */
bool sl_head_begin(sl_head *head, sl_scheduler *scheduler);
/* Needs no lock. On failure there are no drafts; a device's fault is final. */
int sl_head_run(sl_head *head, sl_error *error);
/* Under the lock again, behind every sl_head_begin that returned true. */
void sl_head_end(sl_head *head);

/* sl_draft_source.draft with the sl_head as context. */
int32_t sl_head_draft(void *head, const sl_draft_query *query, int32_t *drafts);

#endif
