/* How long steps of a plan would take, by plain arithmetic: bytes and products over what devices do in a
 * second. Device auto chooses by it where a model does not fit its GPU; nothing else does. */
#ifndef SL_PLAN_ESTIMATE_H
#define SL_PLAN_ESTIMATE_H

#include "plan/plan.h"

/* A request that stands for all: placements are compared by how long it takes. */
enum { SL_TYPICAL_PROMPT = 512, SL_TYPICAL_REPLY = 128 };

typedef struct sl_estimate {
    double token_seconds;       /* of a generated token of one sequence, behind a typical prompt */
    double prompt_seconds;      /* of a typical prompt */
    double long_prompt_seconds; /* of one token of a prompt in full chunks */
    double request_seconds;     /* of a typical prompt and reply; 0: there is no estimate */
} sl_estimate;

enum { SL_ASSUMED_MEMORY = 1, SL_ASSUMED_PRODUCTS = 2, SL_ASSUMED_BUS = 4, SL_ASSUMED_BORDER = 8 };

/* Puts an assumption where a speed is not known: of the host, or of a device behind a bus. Returns which were
 * put, as a sum of SL_ASSUMED_... */
unsigned sl_speeds_assume(bool is_host, sl_speeds *speeds);

/* `speeds`: of the plan's device, or of each of its segments. Where bus_bytes is 0 it is the host, whose
 * memory is at hand. */
void sl_plan_estimate(const sl_plan *plan, const sl_speeds *speeds, sl_estimate *estimate);

/* The first whose request takes at most a tenth longer than the shortest one: what is measured a little
 * differently each time turns no choice, and those in front are preferred. SL_NONE: there is no estimate. */
int32_t sl_estimate_choose(const sl_estimate *estimates, int32_t count);

#endif
