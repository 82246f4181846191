/* The factor of a rope's temperature, one definition for host and device. */
#ifndef SL_PROGRAM_TEMPERATURE_H
#define SL_PROGRAM_TEMPERATURE_H

#include "program/program.h"
#include "quant/convert.h"

#include <math.h>

SL_INLINE float sl_rope_temperature_factor(const sl_rope_temperature *temperature, int32_t position) {
    const int32_t periods = (position + temperature->offset) / temperature->length;
    return 1.0f + temperature->scale * logf(1.0f + (float)periods);
}

#endif
