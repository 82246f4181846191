/* What the instructions of the AVX2 tier reach on registers. */
#include "backend/cpu/peak.h"
#include "backend/cpu/unroll.h"

#include <immintrin.h>

enum {
    SUMS = 10,       /* that do not wait for each other: two ports times a latency of 4 or 5 cycles */
    NARROW_SUMS = 4, /* of 16 bits; each has two steps */
    STEPS = 8,       /* until sums of 16 bits, whose products have 4 and 8 bits, become ones of 32 */
    ROUNDS = 4096,
};

/* Weights of 4 bits as unpack.h sums them, which takes the fewest instructions. */
static double int8(void *sink) {
    __m256i sums[NARROW_SUMS], w = _mm256_set1_epi32(0x03070b0f), x = _mm256_set1_epi32(0x2468ace1);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int s = 0; s < NARROW_SUMS; s++) {
        sums[s] = _mm256_set1_epi32(s);
    }
    for (int round = 0; round < ROUNDS / STEPS; round++) {
        __m256i narrow[NARROW_SUMS];
        for (int s = 0; s < NARROW_SUMS; s++) {
            narrow[s] = _mm256_setzero_si256();
        }
        SL_UNROLL
        for (int step = 0; step < STEPS; step++) {
            SL_UNROLL
            for (int s = 0; s < NARROW_SUMS; s++) {
                SL_PEAK_VECTOR(w);
                narrow[s] = _mm256_add_epi16(narrow[s], _mm256_maddubs_epi16(w, x));
                SL_PEAK_VECTOR(narrow[s]); /* added in this order, or all products are kept */
            }
        }
        SL_UNROLL
        for (int s = 0; s < NARROW_SUMS; s++) {
            sums[s] = _mm256_add_epi32(sums[s], _mm256_madd_epi16(narrow[s], ones));
        }
    }
    for (int s = 1; s < NARROW_SUMS; s++) {
        sums[0] = _mm256_add_epi32(sums[0], sums[s]);
    }
    _mm256_storeu_si256(sink, sums[0]);
    return 2.0 * 32 * NARROW_SUMS * STEPS * (ROUNDS / STEPS);
}

static double f32(void *sink) {
    __m256 sums[SUMS], w = _mm256_set1_ps(0.37f), x = _mm256_set1_ps(0.011f);
    for (int s = 0; s < SUMS; s++) {
        sums[s] = _mm256_set1_ps((float)s);
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_UNROLL
        for (int s = 0; s < SUMS; s++) {
            sums[s] = _mm256_fmadd_ps(w, x, sums[s]);
        }
        SL_PEAK_VECTOR(w);
    }
    for (int s = 1; s < SUMS; s++) {
        sums[0] = _mm256_add_ps(sums[0], sums[s]);
    }
    _mm256_storeu_ps(sink, sums[0]);
    return 2.0 * 8 * SUMS * ROUNDS;
}

const sl_cpu_peak sl_cpu_peak_avx2 = {
    .loops = {[SL_WITH_INT8] = int8, [SL_WITH_BF16] = f32, [SL_WITH_F32] = f32}};
