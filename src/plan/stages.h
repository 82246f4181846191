/* How steps go over several devices. Sections that follow one another and whose parts have no others are a
 * *stage*: layers of one device are one, and where devices take turns within a step (experts apart) all of it
 * is. Each stage has a thread, and the parts' executors are called by that alone while steps are in flight.
 * It runs one step after the other; what later stages need of a step it carries off before it begins the
 * next: to host memory, or between devices of one backend that can send (sl_backend_functions.send) to a
 * landing place on the other device, of which each border has one for every step on its way. So a stage works
 * on one step while the stage behind it works on the step before. A step whose
 * rows take sampled tokens begins when the step before is done; a step with masks_later stops in front of the
 * last stage until it is resumed. */
#ifndef SL_PLAN_STAGES_H
#define SL_PLAN_STAGES_H

#include "plan/plan.h"

typedef struct sl_stages sl_stages;

enum { SL_SPLIT_STEPS = 2 }; /* in flight */

/* Of a plan on several devices. */
int32_t sl_stages_count(const sl_plan *plan);
/* Host memory for steps on their way, beside the parts' pools: blocks, what crosses borders and is not sent,
 * and results. Of a plan that has its limits and its partition. */
uint64_t sl_stages_bytes(const sl_plan *plan);
/* SL_POOL_EXCHANGE of a part, for a partition of the plan's program: landing places of what others send. */
uint64_t sl_stages_landing_bytes(const sl_plan *plan, const sl_partition *partition, int32_t part);
/* Is what crosses there sent from device to device? */
bool sl_stages_sends(const sl_plan *plan, const sl_border *border);

/* `parts`: [segments], borrowed, like the plan. */
int sl_stages_create(const sl_plan *plan, sl_executor *const *parts, sl_stages **stages, sl_error *error);
/* Waits for what devices are at, not for steps to end. */
void sl_stages_destroy(sl_stages *stages);

/* What sl_backend_functions says of them. */
void *sl_stages_block(sl_stages *stages);
int sl_stages_submit(sl_stages *stages, sl_error *error);
int sl_stages_resume(sl_stages *stages, sl_error *error);
int sl_stages_wait(sl_stages *stages, sl_error *error);
const float *sl_stages_logits(sl_stages *stages);
const int32_t *sl_stages_tokens(sl_stages *stages);
void sl_stages_counters(sl_stages *stages, sl_counters *counters);
/* 0 when pools may be read and written: all steps were waited for, and all went well. */
int sl_stages_check_idle(sl_stages *stages, sl_error *error);

#endif
