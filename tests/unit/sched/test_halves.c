/* Two halves of those who generate: when they pay, against devices whose steps take known times; and who is
 * in which step, against the backend that remembers. */
#define RIG_SLOTS 8
#include "unit/sched/rig.h"

#include "sched/halves.h"

/* ---- when they pay
 * --------------------------------------------------------------------------------------------------- */

/* Seconds of each stage's step: `fixed`, and `row` for each row. */
typedef struct costs {
    double fixed[2], row[2];
} costs;

static double stage_seconds(const costs *c, int stage, int32_t rows) {
    return c->fixed[stage] + c->row[stage] * rows;
}

/* Of a round in which each of so many has a token, by definition. */
static double whole_seconds(const costs *c, int32_t works) {
    return stage_seconds(c, 0, works) + stage_seconds(c, 1, works);
}

static double half_seconds(const costs *c, int32_t rows) {
    return fmax(stage_seconds(c, 0, rows), stage_seconds(c, 1, rows));
}

static double halved_seconds(const costs *c, int32_t works) {
    return half_seconds(c, works / 2) + half_seconds(c, works - works / 2);
}

/* So many rounds; returns how many went in halves. */
static int run_rounds(sl_halves *h, const costs *c, int32_t works, int rounds) {
    int halved = 0;
    for (int round = 0; round < rounds; round++) {
        if (!sl_halves_pay(h, works)) {
            sl_halves_measured(h, (sl_halves_step){works, works, false}, whole_seconds(c, works));
            continue;
        }
        halved++;
        const int32_t halves[] = {works - works / 2, works / 2};
        for (int half = 0; half < 2; half++) {
            sl_halves_measured(h, (sl_halves_step){works, halves[half], true}, half_seconds(c, halves[half]));
        }
    }
    return halved;
}

/* Of weights alone nothing is gained where stages are equal, and half is lost where one has all the work. */
static const costs devices[] = {
    {{0, 0}, {1, 1}}, {{1, 1}, {1, 1}},         {{1, 1}, {0.1, 0.1}}, {{1, 1}, {0, 0}},
    {{1, 3}, {1, 3}}, {{0.1, 10}, {0.01, 0.1}}, {{0, 0}, {2, 1}},     {{1e-4, 1e-4}, {2e-5, 1e-5}},
};
enum { DEVICES = sizeof devices / sizeof *devices };

static void the_quicker_way_is_kept(void **state) {
    enum { ROUNDS = 20000 };
    int kept[2] = {0};
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        for (int32_t works = 2; works <= 64; works *= 2) {
            sl_halves h = {0};
            const costs *c = &devices[d];
            const bool pays = halved_seconds(c, works) < 0.97 * whole_seconds(c, works);
            assert_false(sl_halves_pay(&h, works));
            const int halved = run_rounds(&h, c, works, ROUNDS);
            /* Both were tried, and the other way is tried seldom. */
            assert_in_range(halved, pays ? ROUNDS * 97 / 100 : 1, pays ? ROUNDS - 1 : ROUNDS * 3 / 100);
            assert_true(sl_halves_pay(&h, works) == pays);
            kept[pays]++;
        }
    }
    assert_true(kept[false] > 5 && kept[true] > 5);
}

/* The first trial is over before 64 tokens are there. */
static void it_is_known_soon(void **state) {
    (void)state;
    sl_halves h = {0};
    run_rounds(&h, &devices[0], 8, 32);
    assert_true(sl_halves_pay(&h, 8));
    h = (sl_halves){0};
    assert_in_range(run_rounds(&h, &devices[5], 8, 64), 1, 16);
    assert_false(sl_halves_pay(&h, 8));
}

/* What pays for many need not for few. */
static void sizes_are_apart(void **state) {
    const costs c = {{10, 14}, {1, 1}};
    sl_halves h = {0};
    (void)state;
    for (int turn = 0; turn < 10; turn++) {
        run_rounds(&h, &c, 2, 100);
        run_rounds(&h, &c, 64, 100);
    }
    assert_false(halved_seconds(&c, 2) < whole_seconds(&c, 2));
    assert_false(sl_halves_pay(&h, 2));
    assert_true(halved_seconds(&c, 64) < 0.97 * whole_seconds(&c, 64));
    assert_true(sl_halves_pay(&h, 64) && sl_halves_pay(&h, 40));
}

/* Devices that become others are found out. */
static void what_changes_is_tried_again(void **state) {
    sl_halves h = {0};
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        run_rounds(&h, &devices[turn % 2 ? 0 : 5], 16, 20000);
        assert_true(sl_halves_pay(&h, 16) == (turn % 2 == 1));
    }
}

/* A round that took long for reasons of its own decides nothing, nor do steps that say nothing, or times that
 * no clock has; and a trial in which nothing can be measured ends. */
static void accidents_do_not_count(void **state) {
    static const double none[] = {0, -1, NAN, INFINITY, 1e300};
    const costs *c = &devices[5];
    (void)state;
    for (int32_t at = 0; at < 40; at++) {
        sl_halves h = {0};
        run_rounds(&h, c, 8, at);
        sl_halves_measured(&h, (sl_halves_step){8, 8, sl_halves_pay(&h, 8)}, at % 2 ? 1e5 : 1e-9);
        run_rounds(&h, c, 8, 100);
        assert_false(sl_halves_pay(&h, 8));
    }
    sl_halves h = {0};
    for (size_t i = 0; i < sizeof none / sizeof *none * 100; i++) {
        sl_halves_measured(&h, (sl_halves_step){8, 8, false}, none[i / 100]);
        assert_false(sl_halves_pay(&h, 8));
    }
    for (int i = 0; i < 100; i++) {
        sl_halves_measured(&h, (sl_halves_step){8, 0, false}, 1);
        sl_halves_measured(&h, (sl_halves_step){1, 1, false}, 1);
        assert_false(sl_halves_pay(&h, 8));
    }
    int rounds = 0;
    for (; !sl_halves_pay(&h, 8); rounds++) {
        assert_true(rounds < 100);
        run_rounds(&h, c, 8, 1);
    }
    for (rounds = 0; sl_halves_pay(&h, 8); rounds++) {
        assert_true(rounds < 100);
        sl_halves_measured(&h, (sl_halves_step){8, 0, true}, 1);
    }
}

/* Rounds of more sequences say nothing of fewer: the trial is for those alone that were there when it began.
 */
static void who_comes_in_a_trial_ends_it(void **state) {
    (void)state;
    for (int32_t at = 0; at < 24; at++) {
        /* Weights alone, so that a token of 8 takes little more than half of one of 5, either way. */
        sl_halves h = {0};
        const costs *c = &devices[5];
        run_rounds(&h, c, 5, at);
        run_rounds(&h, c, 8, 100);
        assert_false(sl_halves_pay(&h, 8));
        h = (sl_halves){0};
        run_rounds(&h, &devices[3], 5, at);
        run_rounds(&h, &devices[3], 8, 100);
        assert_false(sl_halves_pay(&h, 8));
    }
}

/* ---- who is in which step
 * -------------------------------------------------------------------------------------------- */

enum { JOBS = RIG_SLOTS, PROMPT = 5 };

static rig *open_rig(int32_t stages) {
    return rig_create(&(shape){.pages = 64, .steps_in_flight = 2, .stages = stages});
}

static void start_job_with(rig *r, job *j, int32_t prompt, int32_t generate, sl_logits_wanted logits) {
    int32_t tokens[CONTEXT];
    sl_error error;
    for (int32_t t = 0; t < prompt; t++) {
        tokens[t] = t * 5 % VOCABULARY;
    }
    assert_int_equal(sl_sequence_create(r->scheduler, &j->work.sequence, &error), 0);
    assert_int_equal(job_submit(r, j, tokens, prompt, generate, logits), 0);
}

static void start_job(rig *r, job *j, int32_t prompt, int32_t generate) {
    start_job_with(r, j, prompt, generate, SL_LOGITS_NONE);
}

static void close_rig(rig *r, job *jobs, int count) {
    while (rig_step(r)) {
        books_balance(r, jobs, count);
    }
    for (int k = 0; k < count; k++) {
        assert_true(jobs[k].done);
        job_check(&jobs[k]);
        sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
    }
    books_balance(r, NULL, 0);
    rig_destroy(r);
}

static int count_in_step(const job *jobs, int count) {
    int in_step = 0;
    for (int k = 0; k < count; k++) {
        assert_in_range(jobs[k].work.sequence->in_step, 0, 1);
        in_step += jobs[k].work.sequence->in_step;
    }
    return in_step;
}

/* Two steps are in flight, each for half of them, and both go on; with one stage a step is for all. */
static void each_half_has_a_step(void **state) {
    (void)state;
    for (int32_t stages = 1; stages <= 3; stages++) {
        for (int count = 2; count <= JOBS; count++) {
            rig *r = open_rig(stages);
            const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
            job jobs[JOBS] = {0};
            for (int k = 0; k < count; k++) {
                start_job(r, &jobs[k], PROMPT, 40);
            }
            for (int step = 0; step < 4; step++) {
                assert_true(rig_step(r));
            }
            for (int step = 0; step < 20; step++) {
                const sl_scheduler_counters before = *counts;
                assert_true(rig_step(r));
                const int64_t tokens = (int64_t)(counts->generated_tokens - before.generated_tokens);
                const int here = stages > 1 ? count_in_step(jobs, count) : count;
                assert_int_equal(count_in_step(jobs, count), here);
                assert_in_range(tokens, stages > 1 ? count / 2 : count, stages > 1 ? (count + 1) / 2 : count);
                assert_int_equal(counts->halved_steps - before.halved_steps, stages > 1);
            }
            for (int k = 1; k < count; k++) {
                assert_in_range(jobs[k].count - jobs[0].count + 1, 0, 2);
            }
            close_rig(r, jobs, count);
        }
    }
}

/* Whoever comes, and has read his prompt, is in the smaller half; when some end the halves are equal again.
 */
static void halves_stay_equal(void **state) {
    (void)state;
    rig *r = open_rig(2);
    const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
    job jobs[JOBS] = {0};
    int running = 0, stable = 0;
    for (; running < JOBS; running++) {
        /* The first end first. */
        start_job(r, &jobs[running], running % 3 ? PROMPT : 2 * CHUNK + PROMPT, 40 + 12 * running);
        for (int step = 0; step < 10; step++) {
            assert_true(rig_step(r));
        }
    }
    while (running > 1) {
        int now = 0;
        const uint64_t before = counts->generated_tokens;
        for (int pair = 0; pair < 2; pair++) {
            assert_true(rig_step(r));
        }
        for (int k = 0; k < JOBS; k++) {
            now += !jobs[k].done;
        }
        /* A round after nothing has changed everybody has a token, and two rounds after the halves are equal.
         */
        stable = now == running ? stable + 1 : 0;
        if (stable > 0) {
            assert_in_range((int64_t)(counts->generated_tokens - before), running - 1, running + 1);
        }
        if (stable > 1) {
            assert_in_range(count_in_step(jobs, JOBS), running / 2, (running + 1) / 2);
        }
        running = now;
    }
    close_rig(r, jobs, JOBS);
}

/* The chunks of a prompt are in the steps of both. */
static void prompts_go_with_either(void **state) {
    enum { CHUNKS = 6 };
    (void)state;
    rig *r = open_rig(2);
    const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
    job jobs[3] = {0};
    jobs[2].no_reuse = true;
    start_job(r, &jobs[0], PROMPT, 60);
    start_job(r, &jobs[1], PROMPT, 60);
    for (int step = 0; step < 6; step++) {
        assert_true(rig_step(r));
    }
    start_job(r, &jobs[2], CHUNKS * CHUNK, 20);
    int both = 0;
    while (jobs[2].count == CHUNKS * CHUNK) {
        const uint64_t before = counts->generated_tokens;
        assert_true(rig_step(r));
        both += jobs[2].work.sequence->in_step && r->prompt_rows > 0;
        assert_in_range(counts->generated_tokens - before, 1, 2);
    }
    assert_true(both >= CHUNKS - 1);
    close_rig(r, jobs, 3);
}

/* Of a half that is cancelled the other one knows nothing. */
static void a_half_is_cancelled(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        for (int steps = 4; steps < 8; steps++) {
            rig *r = open_rig(2);
            job jobs[4] = {0};
            for (int k = 0; k < 4; k++) {
                start_job(r, &jobs[k], PROMPT, 40);
            }
            for (int step = 0; step < steps; step++) {
                assert_true(rig_step(r));
            }
            for (int k = 0; k < 4; k++) {
                jobs[k].work.cancelled = jobs[k].work.sequence->in_step == first;
            }
            for (int step = 0; step < 2; step++) {
                assert_true(rig_step(r));
            }
            assert_true(rig_step(r));
            int cancelled = 0;
            for (int k = 0; k < 4; k++) {
                cancelled += jobs[k].done;
                assert_true(!jobs[k].done || jobs[k].finish == SL_FINISH_CANCELLED);
            }
            assert_int_equal(cancelled, 2);
            close_rig(r, jobs, 4);
        }
    }
}

/* A step that fails ends those who are in it, and nobody else. The first two are of prompts, and follow them.
 */
static void a_half_fails(void **state) {
    (void)state;
    for (int fail_in = 1; fail_in <= 8; fail_in++) {
        rig *r = open_rig(2);
        job jobs[4] = {0};
        for (int k = 0; k < 4; k++) {
            start_job(r, &jobs[k], PROMPT, 40);
        }
        r->executor->fail_in = fail_in;
        while (rig_step(r)) {
            books_balance(r, jobs, 4);
        }
        int failed = 0;
        for (int k = 0; k < 4; k++) {
            failed += jobs[k].finish == SL_FINISH_ERROR;
            assert_true(jobs[k].finish == SL_FINISH_ERROR || jobs[k].count == PROMPT + 40);
        }
        assert_int_equal(failed, fail_in <= 2 ? 4 : 2);
        close_rig(r, jobs, 4);
    }
}

/* Whoever begins like another waits for it, though halves take turns. */
static void equal_prompts_are_read_once(void **state) {
    enum { LONG = 5 * SL_PAGE_TOKENS, REST = LONG - 2 * SL_PAGE_TOKENS };
    (void)state;
    rig *r = rig_create(&(shape){.pages = 64, .reuse = true, .steps_in_flight = 2, .stages = 2});
    job jobs[4] = {0};
    for (int k = 0; k < 4; k++) {
        start_job_with(r, &jobs[k], k < 2 ? PROMPT : LONG, 60, k == 2 ? SL_LOGITS_LAST : SL_LOGITS_NONE);
        for (int step = 0; k == 1 && step < 6; step++) {
            assert_true(rig_step(r));
        }
    }
    while (rig_step(r)) {
        books_balance(r, jobs, 4);
    }
    assert_true(sl_scheduler_counts(r->scheduler)->reused_tokens >= REST);
    close_rig(r, jobs, 4);
}

/* Files are read while nothing is in flight: for who waits for them the halves stop. */
static void who_waits_for_files_is_not_forgotten(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 64, .reuse = true, .steps_in_flight = 2, .stages = 2});
    job jobs[3] = {0};
    sl_load load;
    for (int k = 0; k < 2; k++) {
        start_job(r, &jobs[k], PROMPT, 60);
    }
    for (int step = 0; step < 6; step++) {
        assert_true(rig_step(r));
    }
    assert_true(r->under_way);
    sl_scheduler_loads(r->scheduler);
    start_job(r, &jobs[2], PROMPT, 10);
    for (int step = 0; step < 2; step++) {
        assert_true(rig_step(r));
    }
    /* As long as nobody does, each half has its step all the same. */
    const int32_t before[] = {jobs[0].count, jobs[1].count};
    for (int step = 0; step < 10; step++) {
        assert_false(r->under_way);
        assert_true(rig_step(r));
    }
    assert_true(jobs[0].count >= before[0] + 5 && jobs[1].count >= before[1] + 5);
    assert_false(r->under_way);
    assert_ptr_equal(sl_scheduler_unread(r->scheduler, &load), &jobs[2].work);
    sl_scheduler_loaded(r->scheduler, &jobs[2].work, &load, false);
    for (int step = 0; step < 6; step++) {
        assert_true(rig_step(r));
    }
    assert_true(r->under_way && jobs[2].count > PROMPT);
    close_rig(r, jobs, 3);
}

/* Who comes with a higher priority gets a slot, but not of one that is in flight. */
static void who_is_in_flight_keeps_its_slot(void **state) {
    enum { GENERATING = JOBS - 1, COMING = 2 };
    (void)state;
    for (int steps = 12; steps < 14; steps++) {
        rig *r = open_rig(2);
        job jobs[GENERATING + COMING] = {0};
        for (int k = 0; k < GENERATING; k++) {
            start_job(r, &jobs[k], PROMPT, 40);
        }
        for (int step = 0; step < steps; step++) {
            assert_true(rig_step(r));
        }
        for (int k = GENERATING; k < GENERATING + COMING; k++) {
            jobs[k].priority = 1; /* the first finds a free one */
            start_job(r, &jobs[k], PROMPT, 5);
        }
        for (int step = 0; step < 6; step++) {
            assert_true(rig_step(r));
            for (int k = 0; k < GENERATING + COMING; k++) {
                assert_true(!jobs[k].work.sequence->in_step || jobs[k].work.sequence->slot != SL_NONE);
            }
        }
        assert_true(jobs[GENERATING].count > PROMPT && jobs[GENERATING + 1].count > PROMPT);
        close_rig(r, jobs, GENERATING + COMING);
    }
}

/* With drafts steps are for all. */
static void drafts_are_not_divided(void **state) {
    (void)state;
    rig *r = rig_create_drafting(&(shape){.pages = 64, .steps_in_flight = 2, .stages = 2}, 3);
    job jobs[4] = {0};
    for (int k = 0; k < 4; k++) {
        start_job(r, &jobs[k], PROMPT, 40);
    }
    while (rig_step(r)) {
    }
    assert_int_equal(sl_scheduler_counts(r->scheduler)->halved_steps, 0);
    close_rig(r, jobs, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_quicker_way_is_kept),
        cmocka_unit_test(it_is_known_soon),
        cmocka_unit_test(sizes_are_apart),
        cmocka_unit_test(what_changes_is_tried_again),
        cmocka_unit_test(who_comes_in_a_trial_ends_it),
        cmocka_unit_test(accidents_do_not_count),
        cmocka_unit_test(each_half_has_a_step),
        cmocka_unit_test(halves_stay_equal),
        cmocka_unit_test(prompts_go_with_either),
        cmocka_unit_test(a_half_is_cancelled),
        cmocka_unit_test(a_half_fails),
        cmocka_unit_test(equal_prompts_are_read_once),
        cmocka_unit_test(who_waits_for_files_is_not_forgotten),
        cmocka_unit_test(drafts_are_not_divided),
        cmocka_unit_test(who_is_in_flight_keeps_its_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
