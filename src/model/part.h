/* Tensors whose rows a file has inside another tensor. Inside src/model. */
#ifndef SL_MODEL_PART_H
#define SL_MODEL_PART_H

#include "model/config.h"

enum { SL_PART_RUNS = 3 };

/* Rows of the other tensor: those of each run, one run after the other. A run's rows come in pieces of
 * `piece` neighbours, which begin `stride` apart, the first at `first`. */
typedef struct sl_tensor_part {
    sl_tensor_id of;
    int32_t count;
    struct {
        int32_t rows, piece, stride, first;
    } runs[SL_PART_RUNS];
} sl_tensor_part;

/* Where tensor `id` may be found in another one, or in rows of another order. False when it stands by itself
 * in every file. */
bool sl_config_part(const sl_config *config, sl_tensor_id id, sl_tensor_part *part);
int32_t sl_part_rows(const sl_tensor_part *part);
/* The other tensor's row of which row `row` is made. */
int32_t sl_part_row(const sl_tensor_part *part, int32_t row);

#endif
