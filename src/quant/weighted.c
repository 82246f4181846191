#include "quant/weighted.h"

#include "quant/codec.h"

#include <stddef.h>

bool sl_qtype_encode_weighted(sl_qtype type, const float *values, const float *importance, void *blocks,
                              uint64_t count) {
    (void)type, (void)values, (void)importance, (void)blocks, (void)count;
    return false;
}
