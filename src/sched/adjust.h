/* What a request changes about the logits that its tokens are sampled from: bias, tokens that may not come
 * yet, and penalties on what came. Made once for a request, which owns it; the scheduler has it write the
 * adjustments of every output. A step costs as much as there are adjustments, however long the sequence is
 * (DRY: one pass over its window), and allocates nothing.
 *
 * Not thread-safe; the engine's lock covers it. */
#ifndef SL_SCHED_ADJUST_H
#define SL_SCHED_ADJUST_H

#include "base/error.h"
#include "program/step.h"
#include "sched/dry.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_adjust sl_adjust;

/* Distinct tokens of one request. Of penalised ones there may be more: then only the latest count. */
enum { SL_MOST_BIASED = 1024, SL_MOST_ENDS = 1024, SL_MOST_PENALISED = 1024 };

typedef struct sl_adjust_options {
    float repetition;          /* of all tokens of the window; 1: none */
    float presence, frequency; /* of generated tokens of the window, once and for each time; 0: none */
    int32_t window;            /* last tokens of the sequence; any number from 1 on */
    int32_t prompt;            /* tokens of the sequence before the first generated one */
    int32_t minimum;           /* generated tokens before an end may come */
    int32_t context, vocabulary;
    int32_t constants;         /* tokens that will get a bias or be ends, at most */
    const sl_dry_options *dry; /* copied; NULL: none */
} sl_adjust_options;

/* On failure (SL_ERR_NOMEM) *adjust is NULL. */
int sl_adjust_create(const sl_adjust_options *options, sl_adjust **adjust, sl_error *error);
/* NULL is fine. */
void sl_adjust_destroy(sl_adjust *adjust);

/* Before the first sl_adjust_write. `bias` is finite or -INFINITY. SL_ERR_INVALID for a token outside the
 * vocabulary or one that has a bias, and for more than SL_MOST_BIASED. */
int sl_adjust_bias(sl_adjust *adjust, int32_t token, float bias, sl_error *error);
/* Before the first sl_adjust_write: a token that may not come before `minimum`. The same one more often is
 * fine. SL_ERR_INVALID for a token outside the vocabulary, and for more than SL_MOST_ENDS. */
int sl_adjust_end(sl_adjust *adjust, int32_t token, sl_error *error);

/* Do the adjustments depend on which tokens the sequence has? If not, their number is all that
 * sl_adjust_write looks at. NULL: no. */
bool sl_adjust_reads_tokens(const sl_adjust *adjust);

/* From tokens[count] on the sequence may have other tokens than sl_adjust_write saw: drafts were refused. The
 * next call costs one pass over the window. NULL is fine. */
void sl_adjust_rewind(sl_adjust *adjust, const int32_t *tokens, int32_t count);

/* The adjustments of the token that comes behind tokens[0 .. count - 1]; no token twice, at most
 * SL_ADJUSTMENTS. Returns how many. But for sl_adjust_rewind `count` never falls, and what tokens[] held
 * in the call before it still holds. */
int32_t sl_adjust_write(sl_adjust *adjust, const int32_t *tokens, int32_t count, sl_adjustment *to);

#endif
