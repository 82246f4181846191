/* Log-probabilities of the tokens that a row of logits may go on with. */
#ifndef SL_SCHED_LOGPROB_H
#define SL_SCHED_LOGPROB_H

#include <stdint.h>

/* The natural logarithm of the sum of exp(logit) over a row: that of a token's probability is its logit less
 * this. The first `top_count` (at most `vocabulary`) of the likeliest tokens go to top[], the likeliest
 * first, of equals the lower id. Computed in doubles, with a relative error of the sum below 1e-9; the result
 * depends on nothing but the row. A row with a NaN gives NaN. Allocates nothing. */
double sl_logprob_total(const float *logits, int32_t vocabulary, int32_t *top, int32_t top_count);

#endif
