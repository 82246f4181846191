/* Adjustments of logits as kernels apply them, one definition for host and device. */
#ifndef SL_PROGRAM_ADJUSTMENT_H
#define SL_PROGRAM_ADJUSTMENT_H

#include "program/step.h"
#include "quant/convert.h"

#include <math.h>

/* Those of an output, [output->adjustment_count], from what lies in front of them in the step block. */
SL_INLINE const sl_adjustment *sl_output_adjustments(const sl_step_header *header,
                                                     const sl_table_change *table_changes,
                                                     const sl_step_output *output) {
    const sl_table_change *end = table_changes + header->table_changes;
    return (const sl_adjustment *)(const void *)end + output->adjustment_first;
}

/* Every operation is rounded by itself. A NaN goes in as -infinity, and comes out so. */
SL_INLINE float sl_adjusted_logit(const sl_adjustment *adjustment, float logit) {
    float x = logit == logit ? logit : -INFINITY;
    x = x + adjustment->before;
    x = x > 0 ? x / adjustment->repetition : x * adjustment->repetition;
    x = x + adjustment->after;
    return x == x ? x : -INFINITY;
}

#endif
