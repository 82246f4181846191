/* RoPE's frequencies and their scaling. */
#include "model/config.h"

#include <math.h>

/* The frequency of pair `pair` without scaling. */
static double plain(const sl_rope_config *rope, int32_t dims, int32_t pair) {
    return pow(rope->base, -2.0 * pair / dims);
}

static double divisor(const sl_rope_config *rope, double frequency) {
    if (rope->scaling == SL_ROPE_SCALING_NONE) {
        return 1;
    }
    if (rope->scaling == SL_ROPE_SCALING_LINEAR) {
        return rope->factor;
    }
    /* Llama 3: waves longer than the old context are stretched, short ones left alone, with a ramp between.
     */
    const double wavelength = 2 * 3.14159265358979323846 / frequency;
    if (wavelength > rope->original_context / rope->low_factor) {
        return rope->factor;
    }
    if (wavelength < rope->original_context / rope->high_factor) {
        return 1;
    }
    const double smooth =
        (rope->original_context / wavelength - rope->low_factor) / (rope->high_factor - rope->low_factor);
    return 1 / ((1 - smooth) / rope->factor + smooth);
}

void sl_rope_frequencies(const sl_rope_config *rope, int32_t dims, float *frequencies) {
    for (int32_t pair = 0; pair < dims / 2; pair++) {
        const double frequency = plain(rope, dims, pair);
        frequencies[pair] = (float)(frequency / divisor(rope, frequency));
    }
}

void sl_rope_factors(const sl_rope_config *rope, int32_t dims, float *factors) {
    for (int32_t pair = 0; pair < dims / 2; pair++) {
        factors[pair] = (float)divisor(rope, plain(rope, dims, pair));
    }
}
