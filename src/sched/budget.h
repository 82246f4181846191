/* How many rows of prompts may go along with rows that generate, from what steps took so far.
 *
 * Times are seconds. What a clock cannot have measured (below 0, not finite) is left out. No memory of its
 * own: the buckets are the caller's. */
#ifndef SL_SCHED_BUDGET_H
#define SL_SCHED_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

/* Fewer than this never, where so many fit: a prompt gets on whatever a step takes. */
enum { SL_LEAST_PROMPT_ROWS = 32 };

/* One of the sizes that steps are run in. */
typedef struct sl_budget_bucket {
    int32_t rows, outputs;      /* at most */
    double seconds;             /* of its steps with prompts beside rows that generate; 0: not known */
    double plain_seconds;       /* of its steps without prompts; 0: not known */
    int32_t steps, plain_steps; /* of these that were measured, up to 2 */
    double least;               /* that one of its steps takes, whatever is in it; 0: not known */
} sl_budget_bucket;

/* All zero: nothing was measured. */
typedef struct sl_budget {
    bool by_bucket; /* a step costs what its bucket costs, whatever is in it */
    int32_t bucket_count;
    sl_budget_bucket *buckets; /* [bucket_count], from small to large */
    /* Of a step without prompts; of steps with prompts sums of their seconds, number and prompts' rows, in
     * which the last ones weigh most. */
    double plain_seconds, prompt_seconds, prompt_steps, prompt_rows;
    bool plain_known;
} sl_budget;

/* What a step had; other_rows: that generate. */
typedef struct sl_budget_step {
    int32_t bucket, prompt_rows, other_rows;
    bool over; /* it had ended when somebody first waited for it */
} sl_budget_step;

/* It took so long. */
void sl_budget_measured(sl_budget *budget, sl_budget_step step, double seconds);

/* A step that generates `rows` rows (at least 1) with `outputs` outputs has room for `most` more: how many of
 * them prompts may have so that the step takes `seconds` longer than without them. Less than 0 seconds: as
 * long again as without them; 0: no limit. All until a step with prompts was measured; then none until one
 * without was, so that there is something to go by also when prompts never stop coming. */
int32_t sl_budget_rows(const sl_budget *budget, double seconds, int32_t rows, int32_t outputs, int32_t most);

#endif
