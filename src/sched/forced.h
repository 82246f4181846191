/* Tokens that come next whatever the model says: the end of a thought that has taken long enough, and texts
 * that a grammar leaves no choice about. They need no step of their own: they are appended as rows of the
 * next one.
 *
 * Where a grammar allows one text only, its tokens are those that the tokenizer makes of it, as the model
 * knows the text. Tokens at the end that might be others if more were known of what follows are left to the
 * model. Which tokens are forced depends on the text alone, so that it is the same with log-probabilities,
 * where they are taken one by one, and without.
 *
 * Not thread-safe; the engine's lock covers it. */
#ifndef SL_SCHED_FORCED_H
#define SL_SCHED_FORCED_H

#include "grammar/grammar.h"
#include "sched/thought.h"
#include "token/tokenizer.h"

typedef struct sl_forced sl_forced;

typedef struct sl_forced_options {
    const sl_tokenizer *tokenizer; /* NULL: a grammar forces nothing */
    const sl_grammar_vocabulary *vocabulary;
    int32_t tokens; /* of the program's vocabulary */
} sl_forced_options;

/* On failure (SL_ERR_NOMEM) *forced is NULL. The thought is taken over, also on failure; NULL: none. */
int sl_forced_create(const sl_forced_options *options, sl_thought *thought, sl_forced **forced,
                     sl_error *error);
/* NULL is fine. */
void sl_forced_destroy(sl_forced *forced);

/* Finds out what is forced at the beginning, where `matcher` (NULL: none) stands. */
void sl_forced_begin(sl_forced *forced, sl_matcher *matcher);
/* A token was appended, the forced one if there was one, and `matcher` stands behind it: finds out what comes
 * then. */
void sl_forced_take(sl_forced *forced, int32_t token, sl_matcher *matcher);
/* The next forced token; SL_NONE: there is none. */
int32_t sl_forced_next(const sl_forced *forced);

#endif
