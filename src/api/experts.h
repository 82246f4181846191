/* What the files of the C API share about experts in host memory. */
#ifndef SL_API_EXPERTS_H
#define SL_API_EXPERTS_H

#include "api/api.h"
#include "backend/backend.h"
#include "model/model.h"

/* How often each expert was used by a file of sluice_engine_write_expert_stats: [layers][experts], with zeros
 * for the layer of a head that drafts. *uses is freed by the caller. Messages begin with "expert pin". */
int sl_api_read_expert_uses(const sl_model *model, const char *path, uint64_t **uses, sl_error *error);

/* Memory for what the engine counts of each layer, when its plan is there; and what the backend counted by
 * the end of a step, for which the rule of take_counts holds. */
int sl_api_begin_expert_counts(sluice_engine *engine, sl_error *error);
void sl_api_take_expert_counts(sluice_engine *engine, const sl_counters *counters);

#endif
