/* Weights of a source, found by name, checked against the config and put into a program. Inside src/model. */
#ifndef SL_MODEL_BIND_H
#define SL_MODEL_BIND_H

#include "model/config.h"
#include "model/owned.h"

/* How much of the source has one type. */
typedef struct sl_type_use {
    uint64_t tensors, elements, bytes;
} sl_type_use;

/* Indices of program weights; SL_NONE for what a model has not. */
typedef struct sl_binding {
    int32_t model[SL_TENSOR_COUNT];
    int32_t draft_layers; /* of those that the config may have, how many the source has */
    int32_t (
        *layers)[SL_TENSOR_COUNT]; /* [config->layers + config->draft_layers]; freed by sl_binding_free */
    int32_t rope, local_rope;      /* frequencies of full and windowed layers; SL_NONE where no layer asks */
    const sl_tensor **used;        /* the source's tensors that are in use, each once; freed likewise */
    size_t tensors;                /* how many */
    sl_type_use
        types[SL_QTYPE_COUNT]; /* of those: weights as they are computed with, bytes as they are stored */
} sl_binding;

/* Adds every weight of the config to the program. Matrices stay where they are mapped. Owned copies are made
 * of vectors, convolution kernels and constants (as F32), of matrices that the file put at an address their
 * element type cannot be read from, of those whose scales are tensors (model/scaled.h), and of a checkpoint's
 * one-tensor-per-expert matrices, which become one block of all experts: that doubles their memory (maps are
 * dropped under pressure, copies are not) until a device has them (sl_model_let_go). On failure the
 * binding is empty; what `owned` and the program hold is freed with them. */
int sl_model_bind(const sl_config *config, const sl_source *source, sl_program *program, sl_owned *owned,
                  sl_binding *binding, sl_error *error);
void sl_binding_free(sl_binding *binding);

/* The source's tensor of that meaning; NULL without. */
const sl_tensor *sl_model_tensor(const sl_config *config, const sl_source *source, sl_tensor_id id,
                                 int32_t layer);

#endif
