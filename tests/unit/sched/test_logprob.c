/* Log-probabilities of a row against their definition with libm's functions in long double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "sched/logprob.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 3000, TOP = 32 };

static unsigned random_state = 1;

static float random_logit(float spread) {
    random_state = random_state * 1664525u + 1013904223u;
    return ((float)(random_state >> 8) / (float)(1 << 24) - 0.5f) * spread;
}

static double defined_total(const float *logits, int32_t count) {
    long double most = logits[0], sum = 0;
    for (int32_t i = 1; i < count; i++) {
        most = logits[i] > most ? logits[i] : most;
    }
    for (int32_t i = 0; i < count; i++) {
        sum += expl((long double)logits[i] - most);
    }
    return (double)(most + logl(sum));
}

static const float *sorted_logits;

static int by_rank(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    const float left = sorted_logits[*x], right = sorted_logits[*y];
    return left != right ? (left < right) - (left > right) : (*x > *y) - (*x < *y);
}

static void check(const float *logits, int32_t count, int32_t top_count) {
    static int32_t order[MOST];
    int32_t top[TOP];
    assert_true(fabs(sl_logprob_total(logits, count, top, top_count) - defined_total(logits, count)) < 2e-9);
    for (int32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    sorted_logits = logits;
    qsort(order, (size_t)count, sizeof *order, by_rank);
    for (int32_t i = 0; i < top_count; i++) {
        assert_int_equal(top[i], order[i]);
    }
}

static void rows_agree_with_the_definition(void **state) {
    (void)state;
    static const int32_t counts[] = {1, 2, 7, 8, 9, 255, 256, 257, 513, MOST};
    static const float spreads[] = {0, 1e-3f, 1, 20, 300, 2000};
    static float logits[MOST];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t s = 0; s < sizeof spreads / sizeof *spreads; s++) {
            for (int32_t i = 0; i < counts[c]; i++) {
                /* Few different values, so that there are ties. */
                logits[i] = roundf(random_logit(spreads[s]) * 8) / 8 + 5;
            }
            check(logits, counts[c], counts[c] < TOP ? counts[c] : TOP);
            check(logits, counts[c], 1);
            check(logits, counts[c], 0);
        }
    }
}

static void rising_and_falling_rows(void **state) {
    (void)state;
    static float logits[MOST];
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int32_t i = 0; i < MOST; i++) {
            logits[i] = (float)(sign * i) * 0.01f;
        }
        check(logits, MOST, TOP);
    }
}

/* Tokens that are excluded count as nothing; nothing is known of a row with a NaN. */
static void infinities_and_nan(void **state) {
    (void)state;
    float logits[20];
    for (int i = 0; i < 20; i++) {
        logits[i] = i == 3 || i == 11 ? 1.0f : -INFINITY;
    }
    int32_t top[3];
    uint64_t allocations = sl_alloc_count();
    assert_true(fabs(sl_logprob_total(logits, 20, top, 3) - (1.0 + log(2.0))) < 1e-9);
    assert_int_equal(top[0], 3);
    assert_int_equal(top[1], 11);
    assert_int_equal(top[2], 0);
    for (int i = 0; i < 20; i += 19) {
        logits[i] = NAN;
        assert_true(isnan(sl_logprob_total(logits, 20, top, 3)));
        logits[i] = 0;
    }
    assert_int_equal(sl_alloc_count(), allocations);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_agree_with_the_definition),
                                       cmocka_unit_test(rising_and_falling_rows),
                                       cmocka_unit_test(infinities_and_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
