/* What the files of the C API share of plans. */
#ifndef SL_API_PLANS_H
#define SL_API_PLANS_H

#include "api/api.h"
#include "backend/backend.h"
#include "model/model.h"
#include "plan/plan.h"

/* The backend that the options ask for, and a plan of the model on it. */
/* What was tried, in order; the last one was taken. */
enum { SL_API_PLACES = 4 };
typedef struct sl_api_place {
    char name[64];     /* the devices, and whether weights may be fetched */
    char outcome[256]; /* what lies where, or why there was no room */
} sl_api_place;

typedef struct sl_api_plan {
    sl_backend *backend;
    sl_plan *plan;
    uint64_t *expert_uses; /* of expert_pin; NULL: none. The plan borrows it */
    sl_api_place places[SL_API_PLACES];
    int place_count;
} sl_api_plan;
int sl_api_plan_open(const sl_model *model, const sluice_engine_options *options, sl_api_plan *plan,
                     sl_error *error);
void sl_api_plan_close(sl_api_plan *plan);

/* limits.c: the rules of memory_limits. What they say goes to plan->limits. */
int sl_api_take_limits(const sluice_engine_options *options, sl_plan_options *plan, sl_error *error);
/* Bytes that the plan takes of each device are added to those in `taken`, which ends as memory_limits do. */
void sl_api_add_memory(const sl_plan *plan, sluice_memory_limit taken[SLUICE_MEMORY_LIMITS]);

/* As a table for people, or JSON. */
int sl_api_profile_text(const sl_plan_profile *profile, sluice_text_format format, char **text,
                        sluice_error *error);

#endif
