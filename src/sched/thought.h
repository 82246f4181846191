/* A bound on how long a model thinks: after so many tokens of its thoughts, the tokens that close one are put
 * in place of what the model would say.
 *
 * Not thread-safe; the engine's lock covers it. */
#ifndef SL_SCHED_THOUGHT_H
#define SL_SCHED_THOUGHT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_thought sl_thought;

typedef struct sl_thought_options {
    bool open;  /* the text begins inside a thought; else one may be opened, behind blanks */
    bool again; /* others may be opened later, anywhere; the budget is that of all together */
    const char *open_mark, *close_mark; /* copied; not empty */
    int32_t opening; /* the token that a later one begins with, or -1: whatever token has the mark's text */
    int32_t budget;  /* tokens of the thoughts, at least 0 */
    const int32_t *closing; /* [closing_count], copied: what ends it, with the mark; at least one */
    int32_t closing_count;
    /* A token's bytes, which are its alone; special tokens have their text. */
    const char *(*bytes)(const void *owner, int32_t token, size_t *length);
    const void *owner;
} sl_thought_options;

/* On failure (SL_ERR_NOMEM) *thought is NULL. */
int sl_thought_create(const sl_thought_options *options, sl_thought **thought, sl_error *error);
/* NULL is fine. */
void sl_thought_destroy(sl_thought *thought);

/* The next token of the text. */
void sl_thought_take(sl_thought *thought, int32_t token);
/* Is the budget used up, so that the tokens of `closing` come next? They are taken like others. */
bool sl_thought_is_over(const sl_thought *thought);
const int32_t *sl_thought_closing(const sl_thought *thought, int32_t *count);

#endif
