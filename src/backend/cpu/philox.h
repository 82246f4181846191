/* The sampler's random numbers. */
#ifndef SL_BACKEND_CPU_PHILOX_H
#define SL_BACKEND_CPU_PHILOX_H

#include "program/step.h"

/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3"): the first of
 * the four words for counter (counter, 0, 0, 0), as a fraction of 1 with 24 bits. */
static inline float sl_philox_uniform(const sl_sampler *sampler) {
    uint32_t words[4] = {sampler->counter, 0, 0, 0};
    uint32_t keys[2] = {sampler->seed_low, sampler->seed_high};
    for (int round = 0; round < 10; round++) {
        const uint64_t first = (uint64_t)0xD2511F53u * words[0], third = (uint64_t)0xCD9E8D57u * words[2];
        words[0] = (uint32_t)(third >> 32) ^ words[1] ^ keys[0];
        words[1] = (uint32_t)third;
        words[2] = (uint32_t)(first >> 32) ^ words[3] ^ keys[1];
        words[3] = (uint32_t)first;
        keys[0] += 0x9E3779B9u;
        keys[1] += 0xBB67AE85u;
    }
    return (float)(words[0] >> 8) * 0x1p-24f;
}

#endif
