/* What the blocks of a program are built with: weights by their meaning, values named after their layer, ops.
 * Knows no block. Inside src/model. */
#ifndef SL_MODEL_BUILDER_H
#define SL_MODEL_BUILDER_H

#include "model/bind.h"

/* The residual stream on its way through the layers: its value is `value` plus `pending` where there is one,
 * which the next norm adds. */
typedef struct sl_stream {
    int32_t value, pending; /* program values; pending may be SL_NONE */
} sl_stream;

typedef struct sl_builder {
    const sl_config *config;
    sl_binding *binding;
    sl_program *program;
    int32_t layer;                               /* SL_NONE before and after the layers */
    sl_cache_place places[SL_CONFIG_LAYERS + 1]; /* of layers with keys of their own */
    int32_t draft_layers;                        /* that are built: 0 or the config's */
    sl_cache_place kept;                         /* of the rows that the head reads, with draft layers */
    int32_t per_layer; /* value [layers][per_layer_width]: each layer's own embedding; SL_NONE without */
    sl_stream stream;
} sl_builder;

static inline sl_operand sl_at(int32_t value, int32_t column) {
    const sl_operand operand = {value, column};
    return operand;
}
/* The weight of a tensor in the builder's layer, or the model's; SL_NONE when the model has none. */
int32_t sl_build_weight(const sl_builder *b, sl_tensor_id id);
/* A value named after its layer. */
int32_t sl_build_value(sl_builder *b, const char *name, sl_rows rows, int32_t width);
/* The same for a value of any type. */
int32_t sl_build_typed(sl_builder *b, sl_value value);
/* NULL when memory ran out. */
sl_op *sl_build_op(sl_builder *b, sl_op_kind kind);
/* A linear op from x to columns of y, one segment per weight, side by side from column 0 on; biases may be
 * NULL. For experts the router's outputs, else NULL. */
typedef struct sl_build_projection {
    int32_t x, y;
    const sl_tensor_id *weights, *biases;
    int32_t count;
    const int32_t *routing; /* ids, schedule */
} sl_build_projection;
/* NULL when memory ran out. */
sl_op *sl_build_linear(sl_builder *b, const sl_build_projection *projection);
/* Columns of a value times a factor, in place; nothing where that is 1. */
void sl_build_factor(sl_builder *b, sl_operand x, int32_t width, double factor);
/* A norm's parameters for `groups` groups, `stride` apart; NULL when memory ran out. */
sl_op *sl_build_norm(sl_builder *b, int32_t weight, int32_t groups, int32_t width, int32_t stride);

#endif
