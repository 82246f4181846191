/* How many rows prompts get beside those who generate, against devices whose steps take known times: what is
 * given must be the most that the definition allows, once everything was measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sched/budget.h"

#include <math.h>

enum { BUCKETS = 6, WHOLE = SL_LEAST_PROMPT_ROWS };

static const int32_t bucket_rows[BUCKETS] = {16, 64, 128, 256, 512, 2048};

/* Seconds of a step in each bucket, and without prompts with 10 rows. */
typedef struct device {
    double seconds[BUCKETS], plain;
} device;

static const device devices[] = {
    {{0.004, 0.005, 0.006, 0.009, 0.02, 0.08}, 0.0035}, /* as a GPU's */
    {{1, 1, 1, 1, 1, 1}, 1},                            /* nothing costs more */
    {{0.001, 0.1, 0.2, 0.4, 0.8, 3.2}, 0.001},          /* everything does */
    {{1e-9, 2e-9, 4e-9, 8e-9, 16e-9, 64e-9}, 1e-9},
    {{1e5, 2e5, 3e5, 4e5, 5e5, 6e5}, 1e5},
    {{0, 0, 0, 0, 0, 0}, 0}, /* a clock that stands still */
};
enum { DEVICES = sizeof devices / sizeof *devices };

typedef struct rig {
    sl_budget budget;
    sl_budget_bucket buckets[BUCKETS];
} rig;

static void open_rig(rig *r, bool by_bucket) {
    *r = (rig){.budget = {.by_bucket = by_bucket, .bucket_count = BUCKETS}};
    r->budget.buckets = r->buckets;
    for (int b = 0; b < BUCKETS; b++) {
        r->buckets[b] = (sl_budget_bucket){.rows = bucket_rows[b], .outputs = bucket_rows[b]};
    }
}

/* A step beside ten rows that generate. */
static void ran(rig *r, int bucket, int32_t prompt_rows, double seconds) {
    sl_budget_measured(&r->budget, (sl_budget_step){bucket, prompt_rows, 10, false}, seconds);
}

/* So many steps without prompts and in each bucket. */
static void measure(rig *r, const device *d, int steps) {
    for (int i = 0; i < steps; i++) {
        ran(r, 0, 0, d->plain);
        for (int b = 0; b < BUCKETS; b++) {
            ran(r, b, bucket_rows[b] - 10, d->seconds[b]);
        }
    }
}

static int32_t least(int32_t most) {
    return most < WHOLE ? most : WHOLE;
}

/* By definition: of the buckets that hold more than 10 rows and last no longer than `limit`, the rows of the
 * largest before one that lasts longer. */
static int32_t defined_rows(const device *d, double limit, int32_t most) {
    int32_t rows = 0;
    for (int b = 0; b < BUCKETS && d->seconds[b] <= limit; b++) {
        rows = bucket_rows[b] - 10;
    }
    rows = rows >= most ? most : rows / WHOLE * WHOLE;
    return rows < least(most) ? least(most) : rows;
}

static void buckets_that_fit_are_filled(void **state) {
    (void)state;
    static const int32_t mosts[] = {1, 31, 32, 33, 100, 118, 500, 2038};
    static const double longer[] = {-1, 1e-4, 0.002, 0.0055, 0.1, 1, 1e5};
    for (int i = 0; i < DEVICES; i++) {
        rig r;
        open_rig(&r, true);
        measure(&r, &devices[i], 3);
        const double kept = r.buckets[0].seconds;
        for (int b = 0; b < BUCKETS; b++) { /* as measured, not faded */
            r.buckets[b].seconds = devices[i].seconds[b];
        }
        assert_true(kept <= devices[i].seconds[0] && kept >= 0.9 * devices[i].seconds[0]);
        for (size_t k = 0; k < sizeof longer / sizeof *longer && i < DEVICES - 1; k++) {
            const double limit = devices[i].plain + (longer[k] < 0 ? devices[i].plain : longer[k]);
            for (size_t m = 0; m < sizeof mosts / sizeof *mosts; m++) {
                assert_int_equal(sl_budget_rows(&r.budget, longer[k], 10, 1, mosts[m]),
                                 defined_rows(&devices[i], limit, mosts[m]));
            }
        }
    }
}

/* What a bucket that no prompt was in yet costs is not known, but a small step up is tried. */
static void unknown_buckets_are_tried(void **state) {
    (void)state;
    rig r;
    open_rig(&r, true);
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 2038), 2038);
    ran(&r, BUCKETS - 1, 2048, 0.08);
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 2038), 0);
    assert_int_equal(sl_budget_rows(&r.budget, 0, 10, 1, 2038), 2038);
    ran(&r, 0, 0, 1); /* the first may be slow */
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 2038), 0);
    ran(&r, 0, 0, 0.0035);
    const int32_t first = sl_budget_rows(&r.budget, -1, 10, 1, 2038);
    assert_int_equal(first, WHOLE); /* 16 rows are the next bucket, 64 that of the least prompt */
    for (int i = 0; i < 2; i++) {
        ran(&r, 1, 54, 0.005);
    }
    assert_int_equal(sl_budget_rows(&r.budget, 0.02, 10, 1, 2038),
                     96); /* 128, however long the rest may take */
    /* Whatever it then costs, the search ends at what the definition says. */
    for (int step = 0; step < 40; step++) {
        const int32_t rows = sl_budget_rows(&r.budget, -1, 10, 1, 2038) + 10;
        int b = 0;
        while (bucket_rows[b] < rows) {
            b++;
        }
        ran(&r, b, rows - 10, devices[0].seconds[b]);
        ran(&r, 0, 0, devices[0].plain);
    }
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 2038), defined_rows(&devices[0], 0.007, 2038));
}

/* Outputs count as rows do: a bucket without room for one more is not a choice. */
static void outputs_need_room(void **state) {
    (void)state;
    rig r;
    open_rig(&r, true);
    measure(&r, &devices[1], 3);
    for (int b = 0; b < BUCKETS - 1; b++) {
        r.buckets[b].outputs = 4;
    }
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 3, 100), 100);
    r.buckets[BUCKETS - 1].seconds = 5;
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 3, 1000), 480);
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 4, 1000), WHOLE);
}

/* Without buckets a row costs the same everywhere: seconds / seconds of a row. */
static void rows_that_fit_without_buckets(void **state) {
    (void)state;
    const double plain = 0.4, row = 0.01;
    rig r;
    open_rig(&r, false);
    ran(&r, 0, 100, plain + 100 * row);
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 500), 0);
    for (int i = 0; i < 50; i++) {
        ran(&r, 0, 0, plain);
        ran(&r, 0, 100 + i, plain + (100 + i) * row);
    }
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 500), 32); /* 40 fit */
    assert_int_equal(sl_budget_rows(&r.budget, 0.7, 10, 1, 500), 64);
    assert_int_equal(sl_budget_rows(&r.budget, 1.3, 10, 1, 500), 128); /* 130 */
    assert_int_equal(sl_budget_rows(&r.budget, 1e9, 10, 1, 500), 500);
}

static void check_all(const rig *r) {
    static const int32_t mosts[] = {1, 5, 31, 32, 33, 64, 100, 1000, 2047, INT32_MAX};
    for (int32_t rows = 1; rows < 2048; rows = rows * 3 + 1) {
        for (size_t m = 0; m < sizeof mosts / sizeof *mosts; m++) {
            assert_int_equal(sl_budget_rows(&r->budget, 0, rows, 1, mosts[m]), mosts[m]);
            const int32_t by_default = sl_budget_rows(&r->budget, -1, rows, 1, mosts[m]);
            assert_in_range(by_default, least(mosts[m]), mosts[m]);
            int32_t before = 0;
            for (double seconds = 1e-12; seconds < 1e9; seconds *= 3) {
                const int32_t now = sl_budget_rows(&r->budget, seconds, rows, 1, mosts[m]);
                assert_in_range(now, least(mosts[m]), mosts[m]);
                assert_true(now >= before);
                before = now;
            }
        }
    }
}

/* Whatever was measured: a prompt always gets on, never more rows than there are, and more time is never
 * fewer rows. What no clock can have measured changes nothing. */
static void any_times_give_a_sound_budget(void **state) {
    (void)state;
    static const double times[] = {0, 1e-300, 1e-9, 0.01, 3, 1e6, 1e300, INFINITY, -INFINITY, NAN, -1};
    enum { TIMES = sizeof times / sizeof *times, IMPOSSIBLE = 6 };
    unsigned random = 1;
    for (int round = 0; round < 60; round++) {
        rig r;
        open_rig(&r, round % 2);
        ran(&r, 0, 0, 0.01);
        ran(&r, 0, 0, round % 3 ? 0 : 0.01);
        for (int i = 0; i < round * 4; i++) {
            random = random * 1664525u + 1013904223u;
            const int kind = (int)(random >> 8) % TIMES;
            const int bucket = (int)(random >> 16) % BUCKETS;
            const sl_budget before = r.budget;
            const double seconds = r.buckets[bucket].seconds;
            ran(&r, bucket, random >> 28 ? bucket_rows[bucket] : 0, times[kind]);
            if (kind >= IMPOSSIBLE) {
                assert_memory_equal(&before, &r.budget, sizeof before);
                assert_true(seconds == r.buckets[bucket].seconds);
            }
        }
        check_all(&r);
    }
}

/* One slow step does not close a bucket for ever. */
static void slow_buckets_are_tried_again(void **state) {
    (void)state;
    rig r;
    open_rig(&r, true);
    measure(&r, &devices[1], 3);
    for (int i = 0; i < 20; i++) {
        ran(&r, BUCKETS - 1, 2000, 10);
    }
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 2038), 480);
    int steps = 0;
    while (sl_budget_rows(&r.budget, -1, 10, 1, 2038) < 2038 && steps++ < 5000) {
        ran(&r, 4, 480, 1);
        ran(&r, 0, 0, 1);
    }
    assert_in_range(steps, 500, 4999);
}

/* Sequences that begin together grow together, and then all of them begin again: a step's time is a saw. A
 * bucket that is too slow is hardly ever taken for that. */
static void steps_that_grow_change_no_choice(void **state) {
    (void)state;
    static const double shares[BUCKETS] = {1.05, 1.25, 1.65, 2.2, 3.5, 12};
    enum { CYCLES = 8, STEPS = 1000, BURST = 14, EVERY = 27, PROMPT = 5 };
    rig r;
    open_rig(&r, true);
    ran(&r, BUCKETS - 1, 2038, 0.04);
    int too_long = 0, prompts = 0, filled = 0;
    for (int i = 0; i < CYCLES * STEPS; i++) {
        const int at = i % STEPS;
        const double plain = 0.00325 + 0.0008 * at / STEPS;
        if (at >= BURST && at % EVERY >= PROMPT) {
            ran(&r, 0, 0, plain);
            continue;
        }
        const int32_t rows = sl_budget_rows(&r.budget, -1, 10, 1, 2038);
        int b = 0;
        while (bucket_rows[b] < rows + 10) {
            b++;
        }
        ran(&r, b, rows, plain * shares[b]);
        prompts += i >= STEPS;
        filled += i >= STEPS && b == 2;
        too_long += i >= STEPS && shares[b] > 2;
    }
    assert_in_range(too_long, 0, (CYCLES - 1) * STEPS / 150);
    assert_in_range(filled, prompts * 9 / 10, prompts);
}

/* As long again as without prompts is less for them than for many. */
static void few_sequences_wait_for_less(void **state) {
    (void)state;
    static const double seconds[BUCKETS] = {0.003, 0.004, 0.0055, 0.0085, 0.018, 0.07};
    rig r;
    open_rig(&r, true);
    for (int i = 0; i < 3; i++) {
        ran(&r, 0, 0, 0.0026);
        ran(&r, 1, 0, 0.004);
        for (int b = 0; b < BUCKETS; b++) {
            ran(&r, b, bucket_rows[b] - 10, seconds[b]);
        }
    }
    assert_int_equal(sl_budget_rows(&r.budget, -1, 10, 1, 2000), 32); /* 64 rows take 4 ms, 128 5.5 of 5.2 */
    assert_int_equal(sl_budget_rows(&r.budget, -1, 40, 1, 2000), 64); /* 128 take 5.5 of 8 */
    /* Prompts alone are no measure of prompts beside others. */
    for (int i = 0; i < 3; i++) {
        sl_budget_measured(&r.budget, (sl_budget_step){3, 256, 0, false}, 0.001);
    }
    assert_int_equal(sl_budget_rows(&r.budget, -1, 40, 1, 2000), 64);
}

/* Of the times that a bucket's steps took the shortest, and longer ones when they go on. */
static void the_least_that_a_step_takes(void **state) {
    (void)state;
    rig r;
    open_rig(&r, true);
    ran(&r, 1, 0, 3);
    assert_true(r.buckets[1].least == 3 && r.buckets[0].least == 0);
    ran(&r, 1, 50, 2);
    assert_true(r.buckets[1].least == 2);
    ran(&r, 1, 50, 10);
    assert_true(r.buckets[1].least > 2 && r.buckets[1].least <= 3);
    for (int i = 0; i < 50; i++) {
        ran(&r, 1, 0, 10);
    }
    assert_true(r.buckets[1].least > 9.9 && r.buckets[1].least <= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_that_fit_are_filled),
        cmocka_unit_test(unknown_buckets_are_tried),
        cmocka_unit_test(outputs_need_room),
        cmocka_unit_test(rows_that_fit_without_buckets),
        cmocka_unit_test(any_times_give_a_sound_budget),
        cmocka_unit_test(slow_buckets_are_tried_again),
        cmocka_unit_test(steps_that_grow_change_no_choice),
        cmocka_unit_test(few_sequences_wait_for_less),
        cmocka_unit_test(the_least_that_a_step_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
