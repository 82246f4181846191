/* Adjustments and masks of logits as kernels apply them, one definition for host and device. */
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

/* The output's mask of so many tokens, from the same place; NULL: it has none. */
SL_INLINE const uint32_t *sl_output_mask(const sl_step_header *header, const sl_table_change *table_changes,
                                         const sl_step_output *output, int32_t tokens) {
    const sl_table_change *end = table_changes + header->table_changes + header->adjustments;
    return output->mask < 0 ? NULL
                            : (const uint32_t *)(const void *)end +
                                  (uint64_t)output->mask * (uint64_t)sl_mask_words(tokens);
}

SL_INLINE bool sl_is_masked(const uint32_t *mask, int32_t token) {
    return !(mask[token / 32] >> (token % 32) & 1u);
}

/* A logit that is no number as infinity, which no other becomes by it: the largest of a row is then not
 * finite.
 */
SL_INLINE float sl_number_logit(float logit) {
    return logit == logit ? logit : INFINITY;
}

/* Every operation is rounded by itself. */
SL_INLINE float sl_adjusted_logit(const sl_adjustment *adjustment, float logit) {
    if (logit != logit) {
        return sl_number_logit(logit);
    }
    float x = logit + adjustment->before;
    x = x > 0 ? x / adjustment->repetition : x * adjustment->repetition;
    x = x + adjustment->after;
    return x == x ? x : -INFINITY;
}

#endif
