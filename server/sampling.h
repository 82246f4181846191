/* How those who made a model would sample from it: the defaults of its requests. */
#ifndef SLUICE_SERVER_SAMPLING_H
#define SLUICE_SERVER_SAMPLING_H

#include "generation.h"

/* What the model's files ask for. */
void model_sampling_read(const sluice_model *model, model_sampling *out);
/* "temperature 0.6, top_k 20", by the names of request fields; false: they ask for nothing. */
bool model_sampling_describe(const model_sampling *m, text *out);
/* Into the options of a request whose fields were not read yet. */
void model_sampling_set(const model_sampling *m, generation_options *options);
/* The order of samplers, the usual one if the files have none, as a JSON array. */
void model_sampling_write_order(const model_sampling *m, text *out);

#endif
