/* Mirostat: sampling that keeps the surprise of tokens near a target (Basu, Ramachandran, Keskar, Varshney:
 * "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", arXiv 2007.14966). How
 * candidates are cut depends on the surprise of the token before, which takes all logits to know; so they
 * come to the host, and the token is drawn there.
 *
 * Not thread-safe. */
#ifndef SL_SCHED_MIROSTAT_H
#define SL_SCHED_MIROSTAT_H

#include "base/error.h"
#include "program/step.h"

typedef struct sl_mirostat sl_mirostat;

typedef struct sl_mirostat_options {
    int32_t version;   /* 1: the paper's, with Zipf's exponent estimated; 2: cut at the surprise itself */
    float tau, eta;    /* the target in bits, and the rate of learning */
    float temperature; /* above 0 */
    int32_t vocabulary;
} sl_mirostat_options;

/* On failure (SL_ERR_NOMEM) *mirostat is NULL. */
int sl_mirostat_create(const sl_mirostat_options *options, sl_mirostat **mirostat, sl_error *error);
/* NULL is fine. */
void sl_mirostat_destroy(sl_mirostat *mirostat);
/* The most surprise that the next token may have (mu), in bits; 2 tau at first. */
double sl_mirostat_most(const sl_mirostat *mirostat);
/* What a row's token is drawn from. */
typedef struct sl_mirostat_row {
    const float *logits; /* [vocabulary] */
    const sl_adjustment *adjustments;
    int32_t adjustment_count;
    const uint32_t *mask; /* NULL: every token may come */
} sl_mirostat_row;

/* Draws a token by `random` in [0, 1), and learns from it. SL_NO_TOKEN: there is nothing to draw from. */
int32_t sl_mirostat_sample(sl_mirostat *mirostat, const sl_mirostat_row *row, double random);

#endif
