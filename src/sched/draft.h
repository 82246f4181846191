/* Drafts: tokens that are likely to come next. A step carries them as rows behind the sequence's last token,
 * each with an output, and the scheduler keeps as many as are what the model says itself (Leviathan, Kalman,
 * Matias: "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192, with one candidate
 * that is kept or not). What is sampled depends on seed and position, so a text is the same with any drafts.
 */
#ifndef SL_SCHED_DRAFT_H
#define SL_SCHED_DRAFT_H

#include "program/step.h"

#include <stdbool.h>
#include <stdint.h>

enum { SL_DRAFTS = SL_SPAN_STATES - 1 }; /* of one sequence in one step, at most */

/* The sequence in slot `slot` has tokens[0, count): what may come behind them? */
typedef struct sl_draft_query {
    const int32_t *tokens;
    int32_t count, slot;
    int32_t most; /* at least 1 */
} sl_draft_query;

/* Where drafts come from. Called while a step is built, from the thread that builds it; must not wait. */
typedef struct sl_draft_source {
    /* Writes tokens of the vocabulary, at most `most`; returns how many. NULL: there are no drafts. */
    int32_t (*draft)(void *context, const sl_draft_query *query, int32_t *drafts);
    void *context;
} sl_draft_source;

/* Prompt lookup: the last `longest` tokens, or fewer down to `shortest`, are looked for in the sequence, the
 * latest place first, and what came behind them there is drafted (Saxena: "Prompt Lookup Decoding", 2023).
 * One pass over the sequence for each length. `context` of the source's function is an sl_ngram. */
typedef struct sl_ngram {
    int32_t longest, shortest; /* at least 1 */
} sl_ngram;
int32_t sl_ngram_draft(void *ngram, const sl_draft_query *query, int32_t *drafts);

#endif
