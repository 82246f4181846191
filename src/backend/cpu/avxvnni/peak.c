/* What the instruction of the AVX-VNNI tier reaches on registers. */
#include "backend/cpu/peak.h"
#include "backend/cpu/unroll.h"

#include <immintrin.h>

/* Sums that do not wait for each other: two ports times the longest latency, 5 cycles. */
enum { SUMS = 10, ROUNDS = 4096 };

static double int8(void *sink) {
    __m256i sums[SUMS], w = _mm256_set1_epi32(0x13579bdf), x = _mm256_set1_epi32(0x2468ace1);
    for (int s = 0; s < SUMS; s++) {
        sums[s] = _mm256_set1_epi32(s);
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_UNROLL
        for (int s = 0; s < SUMS; s++) {
            sums[s] = _mm256_dpbusd_avx_epi32(sums[s], w, x);
        }
        SL_PEAK_VECTOR(w);
    }
    for (int s = 1; s < SUMS; s++) {
        sums[0] = _mm256_add_epi32(sums[0], sums[s]);
    }
    _mm256_storeu_si256(sink, sums[0]);
    return 2.0 * 32 * SUMS * ROUNDS;
}

const sl_cpu_peak sl_cpu_peak_avxvnni = {.loops = {[SL_WITH_INT8] = int8}};
