/* Encoding where some columns matter more than others. */
#ifndef SL_QUANT_WEIGHTED_H
#define SL_QUANT_WEIGHTED_H

#include "quant/qtype.h"

/* Like the type's encode, for blocks in which the sum of importance * (decoded - value)^2 is to be small: of
 * no block is it larger than what encode gives. `importance`: [count], finite and not negative. False, and
 * nothing is written, when the type has no such encoder: all but k-quants and IQ1 to IQ4. */
bool sl_qtype_encode_weighted(sl_qtype type, const float *values, const float *importance, void *blocks,
                              uint64_t count);

#endif
