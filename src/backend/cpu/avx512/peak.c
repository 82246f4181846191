/* What the instructions of the AVX-512 tier reach on registers. */
#include "backend/cpu/peak.h"
#include "backend/cpu/unroll.h"

#include <immintrin.h>

/* Sums that do not wait for each other: more than two ports times the longest latency, 5 cycles. */
enum { SUMS = 12, ROUNDS = 4096 };

static double int8(void *sink) {
    __m512i sums[SUMS], w = _mm512_set1_epi32(0x13579bdf), x = _mm512_set1_epi32(0x2468ace1);
    for (int s = 0; s < SUMS; s++) {
        sums[s] = _mm512_set1_epi32(s);
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_UNROLL
        for (int s = 0; s < SUMS; s++) {
            sums[s] = _mm512_dpbusd_epi32(sums[s], w, x);
        }
        SL_PEAK_VECTOR(w);
    }
    for (int s = 1; s < SUMS; s++) {
        sums[0] = _mm512_add_epi32(sums[0], sums[s]);
    }
    _mm512_storeu_si512(sink, sums[0]);
    return 2.0 * 64 * SUMS * ROUNDS;
}

static double bf16(void *sink) {
    __m512 sums[SUMS];
    __m512bh w = (__m512bh)_mm512_set1_epi32(0x3f803e80), x = (__m512bh)_mm512_set1_epi32((int)0xbc003c01);
    for (int s = 0; s < SUMS; s++) {
        sums[s] = _mm512_set1_ps((float)s);
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_UNROLL
        for (int s = 0; s < SUMS; s++) {
            sums[s] = _mm512_dpbf16_ps(sums[s], w, x);
        }
        SL_PEAK_VECTOR(w);
    }
    for (int s = 1; s < SUMS; s++) {
        sums[0] = _mm512_add_ps(sums[0], sums[s]);
    }
    _mm512_storeu_ps(sink, sums[0]);
    return 2.0 * 32 * SUMS * ROUNDS;
}

static double f32(void *sink) {
    __m512 sums[SUMS], w = _mm512_set1_ps(0.37f), x = _mm512_set1_ps(0.011f);
    for (int s = 0; s < SUMS; s++) {
        sums[s] = _mm512_set1_ps((float)s);
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_UNROLL
        for (int s = 0; s < SUMS; s++) {
            sums[s] = _mm512_fmadd_ps(w, x, sums[s]);
        }
        SL_PEAK_VECTOR(w);
    }
    for (int s = 1; s < SUMS; s++) {
        sums[0] = _mm512_add_ps(sums[0], sums[s]);
    }
    _mm512_storeu_ps(sink, sums[0]);
    return 2.0 * 16 * SUMS * ROUNDS;
}

const sl_cpu_peak sl_cpu_peak_avx512 = {
    .loops = {[SL_WITH_INT8] = int8, [SL_WITH_BF16] = bf16, [SL_WITH_F32] = f32}};
