/* The generator behind sampling, one definition for host and device: a draw depends on seed and counter
 * alone. */
#ifndef SL_PROGRAM_RANDOM_H
#define SL_PROGRAM_RANDOM_H

#include "program/step.h"
#include "quant/convert.h"

/* The draw, and whether XTC does anything: words of one block. */
enum { SL_RANDOM_DRAW = 0, SL_RANDOM_XTC = 1 };

/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3"): the first or
 * the second of its four words for the key (seed_low, seed_high) and the counter (counter, 0, 0, 0). The
 * upper 24 bits of it, in units of 2^-24: a uniform number in [0, 1) that f32 holds exactly. */
SL_INLINE uint32_t sl_random_24(const sl_sampler *sampler, int word) {
    uint32_t c0 = sampler->counter, c1 = 0, c2 = 0, c3 = 0;
    uint32_t key0 = sampler->seed_low, key1 = sampler->seed_high;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return (word == SL_RANDOM_XTC ? c1 : c0) >> 8;
}

SL_INLINE float sl_random_uniform(const sl_sampler *sampler, int word) {
    return (float)sl_random_24(sampler, word) * (1.0f / 16777216.0f);
}

#endif
