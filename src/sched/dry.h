/* DRY ("don't repeat yourself"): which tokens would go on a repetition, and what they lose for it
 * (text-generation-webui, pull request 5677). A match at a token of the window is the longest run of tokens
 * that ends in front of it and stands at the end of the sequence too. A match of at least allowed_length
 * tokens costs the token behind it multiplier * base^(length - allowed_length); of several matches in front
 * of the same token the longest counts. A run has no token in which the text of a breaker ends, and such a
 * token loses nothing.
 *
 * Not thread-safe. */
#ifndef SL_SCHED_DRY_H
#define SL_SCHED_DRY_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct sl_dry sl_dry;

/* Distinct tokens of one call; of more those whose match is nearest to the end. */
enum { SL_MOST_REPEATING = 1024, SL_MOST_BREAKERS = 256 };

typedef struct sl_dry_options {
    float multiplier, base; /* finite, at least 0 and at least 1 */
    int32_t allowed_length; /* at least 1 */
    int32_t window;         /* last tokens that are looked at; any number from 1 on */
    int32_t context, vocabulary;
    const char *const *breakers; /* copied; none empty */
    size_t breaker_count;        /* at most SL_MOST_BREAKERS */
    /* A token's bytes, which are its alone; they outlive the call of sl_dry_find. */
    const char *(*bytes)(const void *owner, int32_t token, size_t *length);
    const void *owner;
} sl_dry_options;

typedef struct sl_repeating {
    int32_t token;
    float penalty; /* finite */
} sl_repeating;

/* On failure (SL_ERR_NOMEM, SL_ERR_INVALID) *dry is NULL. */
int sl_dry_create(const sl_dry_options *options, sl_dry **dry, sl_error *error);
/* NULL is fine. */
void sl_dry_destroy(sl_dry *dry);

/* From tokens[count] on the sequence may have other tokens than sl_dry_find saw. */
void sl_dry_rewind(sl_dry *dry, const int32_t *tokens, int32_t count);

/* Tokens that would repeat what came behind tokens[0 .. count - 1], no token twice; borrowed until the next
 * call. But for sl_dry_rewind `count` never falls, and what tokens[] held in the call before it still holds.
 * Costs one pass over the window, and allocates nothing. */
const sl_repeating *sl_dry_find(sl_dry *dry, const int32_t *tokens, int32_t count, int32_t *found);

#endif
