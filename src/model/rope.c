/* RoPE's frequencies and their scaling. */
#include "model/config.h"

#include <math.h>

static const double TWO_PI = 6.28318530717958647693;

/* The frequency of pair `pair` without scaling. */
static double plain(const sl_rope_config *rope, int32_t dims, int32_t pair) {
    return pow(rope->base, -2.0 * pair / dims);
}

/* Llama 3: waves longer than the old context are stretched, short ones left alone, with a ramp between. */
static double llama3_divisor(const sl_rope_config *rope, double frequency) {
    const double wavelength = TWO_PI / frequency;
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

/* The pair (a fraction) that makes so many turns in the original context. */
static double turning_pair(const sl_rope_config *rope, int32_t dims, double turns) {
    return dims * log(rope->original_context / (turns * TWO_PI)) / (2 * log(rope->base));
}

/* YaRN: pairs that turn often are left alone, slow ones stretched, with a ramp over pairs between. */
static double yarn_divisor(const sl_rope_config *rope, int32_t dims, int32_t pair) {
    const double first = turning_pair(rope, dims, rope->beta_fast),
                 last = turning_pair(rope, dims, rope->beta_slow);
    const double low = fmax(rope->exact ? first : floor(first), 0);
    double high = fmin(rope->exact ? last : ceil(last), dims - 1);
    if (low == high) {
        high += 0.001;
    }
    const double ramp = fmin(fmax((pair - low) / (high - low), 0), 1);
    return 1 / (ramp / rope->factor + 1 - ramp);
}

static double divisor(const sl_rope_config *rope, int32_t dims, int32_t pair) {
    switch (rope->scaling) {
    case SL_ROPE_SCALING_LINEAR:
        return rope->factor;
    case SL_ROPE_SCALING_LLAMA3:
        return llama3_divisor(rope, plain(rope, dims, pair));
    case SL_ROPE_SCALING_YARN:
        return yarn_divisor(rope, dims, pair);
    case SL_ROPE_SCALING_PROPORTIONAL: /* what GGUF files hold for pairs that stand */
        return pair < (int32_t)(rope->part * dims / 2) ? rope->factor : 1e30;
    default:
        return 1;
    }
}

void sl_rope_frequencies(const sl_rope_config *rope, int32_t dims, float *frequencies) {
    for (int32_t pair = 0; pair < dims / 2; pair++) {
        frequencies[pair] = (float)(plain(rope, dims, pair) / divisor(rope, dims, pair));
    }
}

void sl_rope_factors(const sl_rope_config *rope, int32_t dims, float *factors) {
    for (int32_t pair = 0; pair < dims / 2; pair++) {
        factors[pair] = (float)divisor(rope, dims, pair);
    }
}

static double yarn_magnitude(double factor, double mscale) {
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

double sl_rope_latent_scale(const sl_rope_config *rope) {
    const double magnitude =
        rope->scaling == SL_ROPE_SCALING_YARN ? yarn_magnitude(rope->factor, rope->mscale_all) : 1;
    return magnitude * magnitude;
}

float sl_rope_magnitude(const sl_rope_config *rope) {
    const bool yarn = rope->scaling == SL_ROPE_SCALING_YARN;
    if (!yarn && rope->scaling != SL_ROPE_SCALING_LONGROPE) {
        return 1;
    }
    if (rope->attention_factor > 0) {
        return (float)rope->attention_factor;
    }
    if (yarn && rope->mscale > 0 && rope->mscale_all > 0) {
        return (float)(yarn_magnitude(rope->factor, rope->mscale) /
                       yarn_magnitude(rope->factor, rope->mscale_all));
    }
    return yarn ? (float)yarn_magnitude(rope->factor, 1) : 1;
}
