/* Mirostat, against the formulas of its paper (arXiv 2007.14966) on sorted probabilities, and by what it
 * promises: the mean surprise comes to the target. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sched/mirostat.h"

#include <math.h>
#include <stdlib.h>

enum { VOCABULARY = 3000, TOKENS = 400 };

static uint32_t seed;
static double uniform(void) {
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / 16777216.0;
}

typedef struct candidate {
    double p;
    int32_t id;
} candidate;

static int by_probability(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id - y->id;
}

/* Zipf-like with noise, in any order of ids. */
static void make_logits(float *logits, double exponent) {
    for (int32_t i = 0; i < VOCABULARY; i++) {
        const int32_t rank = (i * 1201) % VOCABULARY + 1;
        logits[i] = (float)(-exponent * log(rank) + 0.3 * uniform());
    }
}

static void sort_candidates(const float *logits, double temperature, candidate *c) {
    double total = 0;
    for (int32_t i = 0; i < VOCABULARY; i++) {
        c[i] = (candidate){exp((double)logits[i] / temperature), i};
        total += c[i].p;
    }
    for (int32_t i = 0; i < VOCABULARY; i++) {
        c[i].p /= total;
    }
    qsort(c, VOCABULARY, sizeof *c, by_probability);
}

/* Equation 30 and algorithm 1. */
static int32_t count_of_version_1(const candidate *c, double mu) {
    double above = 0, below = 0;
    for (int i = 1; i < 100; i++) {
        const double t = log((i + 1.0) / i), b = log(c[i - 1].p / c[i].p);
        above += t * b;
        below += t * t;
    }
    const double s = above / below, epsilon = s - 1;
    const double k = pow(epsilon * pow(2, mu) / (1 - pow(VOCABULARY, -epsilon)), 1 / s);
    return k < 1 ? 1 : k > VOCABULARY ? VOCABULARY : (int32_t)k;
}

static int32_t count_of_version_2(const candidate *c, double mu) {
    int32_t count = 1;
    while (count < VOCABULARY && -log2(c[count].p) <= mu) {
        count++;
    }
    return count;
}

static void check(int32_t version) {
    static float logits[VOCABULARY];
    static candidate c[VOCABULARY];
    const sl_mirostat_options o = {
        .version = version, .tau = 4, .eta = 0.1f, .temperature = 0.9f, .vocabulary = VOCABULARY};
    sl_mirostat *m;
    sl_error error;
    double mu = 8, surprises = 0;
    int32_t rare = 0;
    seed = 5;
    assert_int_equal(sl_mirostat_create(&o, &m, &error), 0);
    for (int i = 0; i < TOKENS; i++) {
        make_logits(logits, 0.8 + 0.6 * uniform());
        assert_true(fabs(sl_mirostat_most(m) - mu) < 1e-9);
        sort_candidates(logits, (double)o.temperature, c);
        const int32_t count = version == 1 ? count_of_version_1(c, mu) : count_of_version_2(c, mu);
        const int32_t token = sl_mirostat_sample(m, &(sl_mirostat_row){.logits = logits}, uniform());
        double total = 0;
        int32_t rank = -1;
        for (int32_t k = 0; k < count; k++) {
            total += c[k].p;
            rank = c[k].id == token ? k : rank;
        }
        assert_true(rank >= 0); /* among those that are left */
        const double surprise = -log2(c[rank].p / total);
        mu -= (double)o.eta * (surprise - (double)o.tau);
        surprises += i >= TOKENS / 4 ? surprise : 0;
        rare += rank > 10;
    }
    sl_mirostat_destroy(m);
    assert_true(fabs(surprises / (TOKENS - TOKENS / 4) - 4) < 0.2);
    assert_true(rare > TOKENS / 10);
}

static void version_1_is_the_papers(void **state) {
    (void)state;
    check(1);
}

static void version_2_cuts_at_the_surprise(void **state) {
    (void)state;
    check(2);
}

/* Draws follow the probabilities of what is left: Pearson's chi-square, the 99.9th percentile of 7 degrees.
 */
static void draws_are_fair(void **state) {
    float logits[64];
    double expected[8], total = 0, chi = 0;
    int32_t times[8] = {0};
    (void)state;
    for (int i = 0; i < 64; i++) {
        logits[i] = i < 8 ? -0.3f * (float)i : -40.0f;
    }
    for (int i = 0; i < 8; i++) {
        total += expected[i] = exp(-0.3 * i);
    }
    const sl_mirostat_options o = {.version = 2, .tau = 10, .eta = 0, .temperature = 1, .vocabulary = 64};
    sl_mirostat *m;
    sl_error error;
    seed = 9;
    assert_int_equal(sl_mirostat_create(&o, &m, &error), 0);
    for (int i = 0; i < 20000; i++) {
        const int32_t token = sl_mirostat_sample(m, &(sl_mirostat_row){.logits = logits}, uniform());
        assert_in_range(token, 0, 7);
        times[token]++;
    }
    for (int i = 0; i < 8; i++) {
        const double e = 20000 * expected[i] / total;
        chi += (times[i] - e) * (times[i] - e) / e;
    }
    assert_true(chi < 24.32);
    sl_mirostat_destroy(m);
}

static void adjustments_count_and_no_number_is_found(void **state) {
    float logits[64] = {0};
    const sl_adjustment ban = {.token = 5, .before = 50, .repetition = 1};
    const sl_mirostat_options o = {.version = 1, .tau = 1, .eta = 0.1f, .temperature = 1, .vocabulary = 64};
    const sl_mirostat_row banned = {.logits = logits, .adjustments = &ban, .adjustment_count = 1};
    const uint32_t mask[] = {1u << 3 | 1u << 31, 0}, none[] = {0, 0};
    sl_mirostat_row masked = banned;
    sl_mirostat *m;
    sl_error error;
    (void)state;
    assert_int_equal(sl_mirostat_create(&o, &m, &error), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(sl_mirostat_sample(m, &banned, 0.99), 5);
    }
    masked.mask = mask;
    logits[31] = -50;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(sl_mirostat_sample(m, &masked, 0.99), 3);
    }
    masked.mask = none;
    assert_int_equal(sl_mirostat_sample(m, &masked, 0.5), SL_NO_TOKEN);
    logits[7] = NAN;
    assert_int_equal(sl_mirostat_sample(m, &banned, 0.5), SL_NO_TOKEN);
    for (int i = 0; i < 64; i++) {
        logits[i] = -INFINITY;
    }
    assert_int_equal(sl_mirostat_sample(m, &(sl_mirostat_row){.logits = logits}, 0.5), SL_NO_TOKEN);
    sl_mirostat_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_is_the_papers),
        cmocka_unit_test(version_2_cuts_at_the_surprise),
        cmocka_unit_test(draws_are_fair),
        cmocka_unit_test(adjustments_count_and_no_number_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
