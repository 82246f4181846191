#include "sched/logprob.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256, LANES = 8 };

/* e to the power of values that are not positive, relative error below 1e-9: 2^n by the exponent's bits, 2^f
 * for -0.5
 * <= f <= 0.5 by Taylor's series. In a loop without calls or branches, which compilers turn into vector
 * instructions: a vocabulary has 150,000 of these. */
static void exponentials(const float *logits, int32_t count, float most, double *out) {
    const double round = 6755399441055744.0; /* 1.5 * 2^52: adding it leaves the integer in the low bits */
    const double log2_e = 1.4426950408889634;
    float near[BLOCK];
    const float least = most - 700;
    for (int32_t i = 0; i < count; i++) {
        near[i] = logits[i] < least ? least : logits[i];
    }
    for (int32_t i = 0; i < count; i++) {
        const double x = ((double)near[i] - (double)most) * log2_e;
        const double rounded = x + round;
        const double f = x - (rounded - round);
        double power = 1.3215486790144309e-6; /* ln(2)^k / k!, k = 8 downwards */
        power = power * f + 1.5252733804059840e-5;
        power = power * f + 1.5403530393381609e-4;
        power = power * f + 1.3333558146428443e-3;
        power = power * f + 9.6181291076284771e-3;
        power = power * f + 5.5504108664821580e-2;
        power = power * f + 2.4022650695910072e-1;
        power = power * f + 6.9314718055994531e-1;
        power = power * f + 1.0;
        uint64_t bits;
        double scale;
        memcpy(&bits, &rounded, sizeof bits);
        bits = (bits + 1023) << 52;
        memcpy(&scale, &bits, sizeof scale);
        out[i] = power * scale;
    }
}

static float largest(const float *logits, int32_t count) {
    float lanes[LANES];
    for (int j = 0; j < LANES; j++) {
        lanes[j] = logits[0];
    }
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
        }
    }
    float most = lanes[0];
    for (int j = 1; j < LANES; j++) {
        most = lanes[j] > most ? lanes[j] : most;
    }
    for (; i < count; i++) {
        most = logits[i] > most ? logits[i] : most;
    }
    return most;
}

/* Few are wanted of many: what is smaller than the last of those found costs one comparison. */
static void find_top(const float *logits, int32_t vocabulary, int32_t *top, int32_t top_count) {
    int32_t found = 0;
    for (int32_t i = 0; i < vocabulary; i++) {
        if (found == top_count && !(logits[i] > logits[top[found - 1]])) {
            continue;
        }
        int32_t at = found < top_count ? found++ : found - 1;
        for (; at > 0 && logits[i] > logits[top[at - 1]]; at--) {
            top[at] = top[at - 1];
        }
        top[at] = i;
    }
}

double sl_logprob_total(const float *logits, int32_t vocabulary, int32_t *top, int32_t top_count) {
    const float most = largest(logits, vocabulary);
    double block[BLOCK], sums[LANES] = {0};
    for (int32_t at = 0; at < vocabulary; at += BLOCK) {
        const int32_t count = vocabulary - at < BLOCK ? vocabulary - at : BLOCK;
        exponentials(logits + at, count, most, block);
        memset(block + count, 0, (size_t)(BLOCK - count) * sizeof *block);
        for (int i = 0; i < BLOCK; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                sums[j] += block[i + j];
            }
        }
    }
    double sum = 0;
    for (int j = 0; j < LANES; j++) {
        sum += sums[j];
    }
    if (top_count > 0) {
        find_top(logits, vocabulary, top, top_count);
    }
    return (double)most + log(sum);
}
