/* Chunks of a prompt that is alone: how large, and that steps have such rows where nobody said how many. */
#define RIG_SLOTS 3
#include "unit/sched/rig.h"

#include "sched/chunks.h"

/* ---- how large
 * ------------------------------------------------------------------------------------------------------- */

/* By hand, from (k + s - 1) (a + rows). */
static const struct {
    sl_chunks chunks;
    int32_t rest, rows;
} table[] = {
    {{1, 2048, 256}, 8192, 2048},   /* one stage: nothing is at once */
    {{2, 2048, 0}, 8192, 2048},     /* nothing is known */
    {{2, 2048, 256}, 512, 512},     /* 2 * 768 as 3 * 512 */
    {{2, 2048, 256}, 1024, 512},    /* 3 * 768 against 2 * 1280 */
    {{2, 2048, 256}, 2048, 1024},   /* 3 * 1280 as 4 * 960, against 2 * 2304 */
    {{2, 2048, 256}, 8192, 2048},   /* 5 * 2304 as 9 * 1280 */
    {{2, 2048, 400}, 2048, 1024},   /* 3 * 1424 against 4 * 1104 */
    {{2, 2048, 400}, 8192, 2048},   /* 5 * 2448 against 6 * 2064 */
    {{2, 512, 32}, 512, 128},       /* 5 * 160 as 6 * 144, against 3 * 288 */
    {{3, 2048, 256}, 2048, 512},    /* 6 * 768 against 5 * 960 and 4 * 1280 */
    {{2, 96, 16}, 192, 64},         /* 4 * 80 against 3 * 112 */
    {{2, 2048, 256}, 100000, 2048}, /* the step's rows are the most */
    {{2, 100, 256}, 1000, 100},     /* no multiple of 64 */
    {{2, 16, 16}, 100, 16},         {{2, 2048, 256}, 1, 64},
    {{2, 2048, 256}, 0, 2048},      {{4, INT32_MAX, INT32_MAX}, INT32_MAX, 1 << 30},
};

static void chunks_take_the_least_turns(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const int32_t rows = sl_chunk_rows(&table[i].chunks, table[i].rest);
        if (rows != table[i].rows) {
            fail_msg("row %zu: %d rows of %d, not %d", i, rows, table[i].rest, table[i].rows);
        }
    }
}

/* ---- in steps
 * -------------------------------------------------------------------------------------------------------- */

static void start(rig *r, job *j, int32_t prompt, int32_t generate, sl_logits_wanted logits) {
    int32_t tokens[CONTEXT];
    sl_error error;
    for (int32_t t = 0; t < prompt; t++) {
        tokens[t] = t * 5 % VOCABULARY;
    }
    assert_int_equal(sl_sequence_create(r->scheduler, &j->work.sequence, &error), 0);
    assert_int_equal(job_submit(r, j, tokens, prompt, generate, logits), 0);
}

static rig *open_rig(bool is_usual, int32_t stages, int32_t fixed_rows) {
    rig *r = rig_create(&(shape){.pages = 64, .steps_in_flight = 2, .stages = stages});
    r->plan.is_usual_chunk = is_usual;
    r->plan.fixed_rows = fixed_rows;
    return r;
}

static void end(rig *r, job *jobs, int count) {
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

/* Rows of the steps that read a prompt of so many. */
static void check_steps(rig *r, int32_t prompt, sl_logits_wanted logits, const int32_t *rows, int count) {
    job j = {.no_reuse = true};
    start(r, &j, prompt, 1, logits);
    for (int step = 0; step < count; step++) {
        assert_true(rig_step(r));
        assert_int_equal(r->prompt_rows, rows[step]);
    }
    end(r, &j, 1);
}

static void a_prompt_alone_is_cut_to_suit(void **state) {
    static const int32_t thirds[] = {64, 64, 64}, whole[] = {96, 96}, rest[] = {64, 64, 64, 64, 33};
    (void)state;
    check_steps(open_rig(true, 2, 16), 192, SL_LOGITS_NONE, thirds, 3);
    check_steps(open_rig(true, 2, 16), 289, SL_LOGITS_NONE, rest, 5);
    check_steps(open_rig(false, 2, 16), 192, SL_LOGITS_NONE, whole, 2); /* somebody said 96 */
    check_steps(open_rig(true, 1, 16), 192, SL_LOGITS_NONE, whole, 2);
    check_steps(open_rig(true, 2, 0), 192, SL_LOGITS_NONE, whole, 2);
    /* No step follows one whose logits somebody waits for. */
    check_steps(open_rig(true, 2, 16), 192, SL_LOGITS_LAST, whole, 2);
}

/* Beside others steps are not at once, as not all are in each of them. */
static void prompts_of_several_are_not_cut(void **state) {
    (void)state;
    rig *r = open_rig(true, 2, 16);
    job jobs[2] = {{.no_reuse = true}, {.no_reuse = true}};
    start(r, &jobs[0], 192, 1, SL_LOGITS_NONE);
    start(r, &jobs[1], 192, 1, SL_LOGITS_NONE);
    for (int step = 0; step < 3; step++) {
        assert_true(rig_step(r));
        assert_int_equal(r->prompt_rows, CHUNK);
    }
    end(r, jobs, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_take_the_least_turns),
        cmocka_unit_test(a_prompt_alone_is_cut_to_suit),
        cmocka_unit_test(prompts_of_several_are_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
