/* How a model wants to be used, for descriptions of it. */
#ifndef SL_API_CONDUCT_H
#define SL_API_CONDUCT_H

#include "api/models.h"

#include <jansson.h>

/* Lines of what the files say of sampling, of ends of a turn, of replies and thinking. */
void sl_api_describe_conduct(const sluice_model *model, sl_buffer *out);
/* The same as members of an object. False when memory ran out. */
bool sl_api_add_conduct(const sluice_model *model, json_t *description);

#endif
