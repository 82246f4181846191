/* How steps go over several devices all at once, each with its share of heads and columns (tensor
 * parallelism; program/shard.c). Every device has the whole list of ops. Each step goes to all of them with
 * the same block, and where one needs what all have, they meet on the devices (ALL_REDUCE, ALL_GATHER). The
 * host takes no part in that: it submits to one after the other, and the first one's results are those of
 * all. Devices whose submit runs the step, or launches its ops one by one, are called by threads of their
 * own. */
#ifndef SL_PLAN_RANKS_H
#define SL_PLAN_RANKS_H

#include "plan/plan.h"

typedef struct sl_rank_group sl_rank_group;

/* `parts`: [segments], borrowed, like the plan. They become a group. */
int sl_ranks_create(const sl_plan *plan, sl_executor *const *parts, sl_rank_group **ranks, sl_error *error);
/* Steps that are in flight end, as nobody waits for another rank any more. */
void sl_ranks_destroy(sl_rank_group *ranks);

/* What sl_backend_functions says of them. */
void *sl_ranks_block(sl_rank_group *ranks);
int sl_ranks_submit(sl_rank_group *ranks, sl_error *error);
int sl_ranks_resume(sl_rank_group *ranks, sl_error *error);
int sl_ranks_wait(sl_rank_group *ranks, sl_error *error);
const float *sl_ranks_logits(sl_rank_group *ranks);
const int32_t *sl_ranks_tokens(sl_rank_group *ranks);
void sl_ranks_counters(sl_rank_group *ranks, sl_counters *counters);
/* 0 when pools may be read and written: no step is in flight, and all went well. */
int sl_ranks_check_idle(sl_rank_group *ranks, sl_error *error);

#endif
