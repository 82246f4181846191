/* Random numbers of a seed: SplitMix64 (Steele, Lea, Flood 2014). */
#ifndef SLUICE_LOAD_RANDOM_H
#define SLUICE_LOAD_RANDOM_H

#include "load.h"

typedef struct load_random {
    uint64_t state;
} load_random;

/* Streams of one seed have nothing to do with each other. */
load_random load_random_new(uint64_t seed, uint64_t stream);
uint64_t load_random_next(load_random *r);
/* From 0 to below 1. */
double load_random_unit(load_random *r);
/* From 0 to below `count`, which is above 0. */
int64_t load_random_below(load_random *r, int64_t count);
double load_random_normal(load_random *r);
/* Gamma of this shape and the scale 1, so of the mean `shape`; shape 1: exponential. */
double load_random_gamma(load_random *r, double shape);
int64_t load_random_length(load_random *r, const load_length *length);

#endif
