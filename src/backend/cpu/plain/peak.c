/* What the plain tier's loops reach on numbers in the first cache. */
#include "backend/cpu/peak.h"
#include "backend/cpu/plain/plain.h"

#include <string.h>

enum { NUMBERS = 2048, ROUNDS = 16 };

static double int8(void *sink) {
    int8_t a[NUMBERS], b[NUMBERS];
    int32_t sum = 0;
    for (int i = 0; i < NUMBERS; i++) {
        a[i] = (int8_t)(i * 7);
        b[i] = (int8_t)(i * 13);
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_PEAK_MEMORY(a);
        for (int i = 0; i < NUMBERS; i++) {
            sum += a[i] * b[i];
        }
    }
    memcpy(sink, &sum, sizeof sum);
    return 2.0 * NUMBERS * ROUNDS;
}

static double f32(void *sink) {
    float a[NUMBERS], b[NUMBERS], sum = 0;
    for (int i = 0; i < NUMBERS; i++) {
        a[i] = 0.25f + 0.001f * (float)i;
        b[i] = 0.5f - 0.001f * (float)i;
    }
    for (int round = 0; round < ROUNDS; round++) {
        SL_PEAK_MEMORY(a);
        sum += sl_plain_dot(a, b, NUMBERS);
    }
    memcpy(sink, &sum, sizeof sum);
    return 2.0 * NUMBERS * ROUNDS;
}

const sl_cpu_peak sl_cpu_peak_plain = {
    .loops = {[SL_WITH_INT8] = int8, [SL_WITH_BF16] = f32, [SL_WITH_F32] = f32}};
