/* What the files of the C API share of plans. */
#ifndef SL_API_PLANS_H
#define SL_API_PLANS_H

#include "api/api.h"
#include "backend/backend.h"
#include "model/model.h"
#include "plan/estimate.h"

/* What was tried, in order. */
enum { SL_API_PLACES = 5 };
typedef struct sl_api_place {
    char name[64];        /* the devices, and whether weights may be fetched */
    char outcome[256];    /* what lies where, or why there was no room */
    sl_estimate estimate; /* request_seconds 0: there was nothing to compare with */
} sl_api_place;

/* What estimates were made with, of the host and of the device beside it. */
typedef struct sl_api_speeds {
    sl_speeds host, device;
    unsigned host_assumed, device_assumed; /* which of them were not measured: SL_ASSUMED_... */
} sl_api_speeds;

/* The backend that the options ask for, and a plan of the model on it. */
typedef struct sl_api_plan {
    sl_backend *backend;
    sl_plan *plan;
    uint64_t *expert_uses; /* of expert_pin; NULL: none. The plan borrows it */
    sl_api_place places[SL_API_PLACES];
    int place_count, taken; /* taken: the index of the one that was */
    sl_api_speeds speeds;   /* where places have estimates */
} sl_api_plan;

/* A model on its way to devices. */
typedef struct sl_api_placing {
    const sl_program *program, *drafting; /* the latter with the head that drafts; NULL: it is not used */
    const sl_backend_options *options;
    sl_plan_options *plan_options;
    const sluice_engine_options *given;
} sl_api_placing;

int sl_api_plan_open(const sl_model *model, const sluice_engine_options *options, sl_api_plan *plan,
                     sl_error *error);
void sl_api_plan_close(sl_api_plan *plan);

/* places.c: `planned` gets a backend and a plan, or on failure what there is of either and was not closed. */
int sl_api_place_model(const sl_api_placing *placing, sl_api_plan *planned, sl_error *error);
/* What was tried, for people and as fields of an object; nothing where there was no choice. */
void sl_api_print_places(const sl_api_plan *planned, sl_buffer *out);
json_t *sl_api_places_json(const sl_api_plan *planned);
/* NULL: there were no estimates. */
json_t *sl_api_speeds_json(const sl_api_plan *planned);

/* limits.c: the rules of memory_limits. What they say goes to plan->limits. */
int sl_api_take_limits(const sluice_engine_options *options, sl_plan_options *plan, sl_error *error);
/* Bytes that the plan takes of each device are added to those in `taken`, which ends as memory_limits do. */
void sl_api_add_memory(const sl_plan *plan, sluice_memory_limit taken[SLUICE_MEMORY_LIMITS]);

/* As a table for people, or JSON. */
int sl_api_profile_text(const sl_plan_profile *profile, sluice_text_format format, char **text,
                        sluice_error *error);

#endif
