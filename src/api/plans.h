/* What the files of the C API share of plans. */
#ifndef SL_API_PLANS_H
#define SL_API_PLANS_H

#include "api/api.h"
#include "backend/backend.h"
#include "model/model.h"
#include "plan/plan.h"

/* The backend that the options ask for, and a plan of the model on it. */
typedef struct sl_api_plan {
    sl_backend *backend;
    sl_plan *plan;
} sl_api_plan;
int sl_api_plan_open(const sl_model *model, const sluice_engine_options *options, sl_api_plan *plan,
                     sl_error *error);
void sl_api_plan_close(sl_api_plan *plan);

/* As a table for people, or JSON. */
int sl_api_profile_text(const sl_plan_profile *profile, sluice_text_format format, char **text,
                        sluice_error *error);

#endif
