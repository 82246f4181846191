/* The scheduler from prompts to texts: steps, memory, failures, and steps that follow each other. */
#include "unit/sched/rig.h"

/* ---- tests
 * ----------------------------------------------------------------------------------------------------------
 */

static const shape shapes[] = {
    {64, 0, 0, 0, true, 1, 0},   {64, 0, 0, 0, false, 2, 0}, {40, 100, 14, 0, true, 2, 0},
    {0, 0, 0, 10, true, 2, 0},   {40, 0, 0, 12, true, 2, 0}, {40, 0, 0, 7, false, 1, 0},
    {24, 48, 12, 9, true, 1, 0}, {20, 0, 0, 0, true, 2, 0},  {24, 48, 12, 9, true, 2, 0},
    {64, 0, 0, 0, true, 2, 0},   {40, 0, 0, 7, false, 2, 0}, {40, 48, 14, 30, true, 2, 0},
    {0, 0, 0, 30, true, 1, 0},   {64, 0, 0, 0, true, 2, 2},  {24, 48, 12, 9, true, 2, 2},
    {20, 0, 0, 0, true, 2, 2},   {40, 0, 0, 7, false, 2, 2},
};

static void prompts_are_cut_into_chunks_and_generate(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        rig *r = rig_create(&shapes[i]);
        job j = {0};
        sl_error error;
        assert_int_equal(sl_sequence_create(r->scheduler, &j.work.sequence, &error), 0);
        int32_t tokens[300];
        for (int32_t t = 0; t < 300; t++) {
            tokens[t] = t * 7 % VOCABULARY;
        }
        assert_int_equal(job_submit(r, &j, tokens, 300, 20, SL_LOGITS_ALL), 0);
        job again = j;
        assert_int_equal(job_submit(r, &again, tokens, 1, 1, SL_LOGITS_NONE), SL_ERR_BUSY);
        while (rig_step(r)) {
        }
        assert_true(j.done);
        assert_int_equal(j.finish, SL_FINISH_LENGTH);
        assert_int_equal(j.count, 320);
        assert_int_equal(j.logits_seen, 319);
        job_check(&j);
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        rig_destroy(r);
    }
}

static void equal_beginnings_are_reused(void **state) {
    (void)state;
    static const shape with[] = {
        {64, 0, 0, 0, true, 1, 0}, {40, 100, 20, 0, true, 1, 0}, {40, 0, 0, 12, true, 1, 0}};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        rig *r = rig_create(&with[i]);
        int32_t tokens[200];
        for (int32_t t = 0; t < 200; t++) {
            tokens[t] = t;
        }
        sl_error error;
        job jobs[2] = {0};
        for (int k = 0; k < 2; k++) {
            assert_int_equal(sl_sequence_create(r->scheduler, &jobs[k].work.sequence, &error), 0);
            assert_int_equal(job_submit(r, &jobs[k], tokens, 200, 5, SL_LOGITS_NONE), 0);
            while (rig_step(r)) {
            }
            job_check(&jobs[k]);
        }
        assert_int_equal(jobs[0].work.reused, 0);
        assert_int_equal(jobs[1].work.reused, 199);
        assert_memory_equal(jobs[0].model, jobs[1].model, 205 * sizeof(int32_t));
        for (int k = 0; k < 2; k++) {
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        rig_destroy(r);
    }
}

/* Three works that together need more pages than there are: the later ones are preempted and resumed, and
 * every logits row comes once. */
static void preempted_works_go_on_where_they_were(void **state) {
    (void)state;
    static const shape tight[] = {{12, 0, 0, 0, true, 2, 0},
                                  {12, 0, 0, 0, false, 2, 0},
                                  {12, 48, 14, 0, true, 2, 0},
                                  {12, 0, 0, 9, true, 2, 0}};
    for (size_t i = 0; i < sizeof tight / sizeof *tight; i++) {
        rig *r = rig_create(&tight[i]);
        sl_error error;
        static job jobs[3];
        memset(jobs, 0, sizeof jobs);
        for (int k = 0; k < 3; k++) {
            int32_t tokens[200];
            for (int32_t t = 0; t < 200; t++) {
                tokens[t] = (t * (k + 3) + k) % VOCABULARY;
            }
            assert_int_equal(sl_sequence_create(r->scheduler, &jobs[k].work.sequence, &error), 0);
            assert_int_equal(job_submit(r, &jobs[k], tokens, 200, 250, SL_LOGITS_ALL), 0);
        }
        while (rig_step(r)) {
        }
        assert_true(sl_scheduler_counts(r->scheduler)->preemptions > 0);
        for (int k = 0; k < 3; k++) {
            assert_true(jobs[k].done);
            assert_int_equal(jobs[k].finish, SL_FINISH_LENGTH);
            assert_int_equal(jobs[k].count, 450);
            assert_int_equal(jobs[k].logits_seen, 449);
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        rig_destroy(r);
    }
}

static void what_never_fits_ends_with_a_message(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 4, .reuse = true});
    job j = {0};
    sl_error error;
    assert_int_equal(sl_sequence_create(r->scheduler, &j.work.sequence, &error), 0);
    int32_t tokens[CONTEXT] = {0};
    assert_int_equal(job_submit(r, &j, tokens, 400, 5, SL_LOGITS_NONE), 0);
    while (rig_step(r)) {
    }
    assert_true(j.done);
    assert_int_equal(j.finish, SL_FINISH_ERROR);
    assert_int_equal(j.work.sequence->count, 400);
    sl_sequence_destroy(r->scheduler, j.work.sequence);
    rig_destroy(r);
}

static void submissions_are_checked(void **state) {
    (void)state;
    rig *r = rig_create(&shapes[0]);
    job j = {0};
    sl_error error;
    assert_int_equal(sl_sequence_create(r->scheduler, &j.work.sequence, &error), 0);
    int32_t tokens[CONTEXT + 1] = {VOCABULARY};
    assert_int_equal(job_submit(r, &j, tokens, 0, 5, SL_LOGITS_NONE), SL_ERR_INVALID);
    assert_int_equal(job_submit(r, &j, tokens, 1, 5, SL_LOGITS_NONE), SL_ERR_INVALID);
    tokens[0] = 0;
    assert_int_equal(job_submit(r, &j, tokens, CONTEXT + 1, 5, SL_LOGITS_NONE), SL_ERR_LIMIT);
    assert_int_equal(j.work.sequence->count, 0);
    assert_int_equal(job_submit(r, &j, tokens, CONTEXT - 2, 5, SL_LOGITS_NONE), 0);
    while (rig_step(r)) {
    }
    assert_int_equal(j.finish, SL_FINISH_CONTEXT);
    assert_int_equal(j.count, CONTEXT);
    sl_sequence_destroy(r->scheduler, j.work.sequence);
    rig_destroy(r);
}

/* A prompt of many steps does not hold up who generates, also after it did because memory was short. */
static void single_tokens_go_first(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 14, .steps_in_flight = 1});
    job jobs[2] = {0};
    sl_error error;
    static const int32_t zeros[CONTEXT];
    for (int again = 0; again < 2; again++) {
        for (int k = 0; k < 2; k++) {
            memset(&jobs[k], 0, sizeof jobs[k]);
            assert_int_equal(sl_sequence_create(r->scheduler, &jobs[k].work.sequence, &error), 0);
        }
        assert_int_equal(job_submit(r, &jobs[0], zeros, 5 * CHUNK, 1, SL_LOGITS_NONE), 0);
        assert_int_equal(job_submit(r, &jobs[1], zeros, 1, 5, SL_LOGITS_NONE), 0);
        for (int step = 1; step <= 5; step++) {
            assert_true(rig_step(r));
            assert_int_equal(jobs[1].count, 1 + step);
            assert_int_equal(jobs[0].count, 5 * CHUNK);
        }
        assert_true(rig_step(r));
        assert_int_equal(jobs[0].count, 5 * CHUNK + 1);
        assert_false(rig_step(r));
        /* Together they need 16 pages. */
        for (int k = 0; k < 2 && again == 0; k++) {
            assert_int_equal(job_submit(r, &jobs[k], zeros, 500 - jobs[k].count, 20, SL_LOGITS_NONE), 0);
        }
        while (rig_step(r)) {
        }
        assert_true(sl_scheduler_counts(r->scheduler)->preemptions > 0);
        for (int k = 0; k < 2; k++) {
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
    }
    rig_destroy(r);
}

/* Unless the prompt came first and finds no page: those who are in the step already cannot give theirs. */
static void the_oldest_does_not_starve(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 4, .steps_in_flight = 1});
    job jobs[2] = {0};
    sl_error error;
    static const int32_t zeros[CONTEXT];
    for (int k = 0; k < 2; k++) {
        assert_int_equal(sl_sequence_create(r->scheduler, &jobs[k].work.sequence, &error), 0);
    }
    assert_int_equal(job_submit(r, &jobs[0], zeros, 250, 3, SL_LOGITS_NONE), 0);
    assert_int_equal(job_submit(r, &jobs[1], zeros, 1, 60, SL_LOGITS_NONE), 0);
    while (!jobs[0].done) {
        assert_true(rig_step(r));
    }
    /* One token in each of the two steps that left the prompt a page, and in the one that did not. */
    assert_int_equal(jobs[1].count, 1 + 3);
    while (rig_step(r)) {
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(jobs[k].finish, SL_FINISH_LENGTH);
        job_check(&jobs[k]);
        sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
    }
    rig_destroy(r);
}

static uint32_t seed_state;
static uint32_t draw(uint32_t below) {
    seed_state = seed_state * 1664525u + 1013904223u;
    return (seed_state >> 8) % below;
}

enum { JOBS = 6 };

static void random_act(rig *r, job *jobs) {
    job *j = &jobs[draw(JOBS)];
    sl_error error;
    uint32_t act = draw(10);
    if (j->ghost && j->ghost_until == r->commits) {
        return;
    }
    if (!j->work.sequence) {
        memset(j, 0, sizeof *j);
        j->rig = r;
        assert_int_equal(sl_sequence_create(r->scheduler, &j->work.sequence, &error), 0);
        j->done = true;
        j->may_end = draw(2);
        j->salt = draw(8) == 0;
    } else if (!j->done) {
        j->work.cancelled |= act == 0;
        if (act == 1 && !j->released && draw(3) == 0) {
            job_release(r, j);
        }
    } else if (act == 9 && draw(2)) {
        job_release(r, j);
    } else if (rig_settle(r, j->work.sequence), act < 5) {
        int32_t tokens[200], count = (int32_t)draw(act == 0 ? 200 : 20) + (j->count == 0);
        int32_t alphabet = draw(2) ? 1 : 3; /* few different prompts, so that beginnings are shared */
        for (int32_t t = 0; t < count; t++) {
            tokens[t] = (int32_t)draw((uint32_t)alphabet);
        }
        int32_t generate = (int32_t)draw(40);
        j->adjusts = (adjust_kind)(draw(5) < 3 ? UNADJUSTED : 1 + draw(2));
        j->priority = (int32_t)draw(12) / 10;
        j->group = draw(3);
        j->no_reuse = draw(20) == 0;
        if (j->count + count + generate < 600) {
            assert_int_equal(job_submit(r, j, tokens, count, generate, (sl_logits_wanted)draw(3)), 0);
        }
    } else if (act < 7) {
        int32_t back = (int32_t)draw(draw(2) ? 3 : 200);
        job_cut(j, j->count > back ? j->count - back : 0);
        sl_sequence_rollback(r->scheduler, j->work.sequence, j->count);
    } else if (act < 9) {
        job *to = &jobs[draw(JOBS)];
        if (!to->work.sequence) {
            *to = *j;
            assert_int_equal(sl_sequence_fork(r->scheduler, j->work.sequence, &to->work.sequence, &error), 0);
        }
    } else {
        sl_sequence_destroy(r->scheduler, j->work.sequence);
        j->work.sequence = NULL;
    }
    books_balance(r, jobs, JOBS);
}

static void live(rig *r, int rounds) {
    static job jobs[JOBS];
    memset(jobs, 0, sizeof jobs);
    for (int round = 0; round < rounds; round++) {
        random_act(r, jobs);
        for (uint32_t steps = draw(4); steps > 0; steps--) {
            if (draw(60) == 0) {
                r->executor->fail_in = 1;
            }
            rig_step(r);
            r->executor->fail_in = 0;
            books_balance(r, jobs, JOBS);
        }
    }
    while (rig_step(r)) {
    }
    for (int k = 0; k < JOBS; k++) {
        if (jobs[k].work.sequence) {
            assert_true(jobs[k].done);
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
    }
    books_balance(r, NULL, 0);
    assert_true(r->executor->max_rows <= CHUNK && r->executor->steps > 100);
}

static void random_lives_see_only_their_own_past(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t seed = 1; seed <= 6; seed++) {
            seed_state = seed * 977u + (uint32_t)i;
            rig *r = rig_create_drafting(&shapes[i], seed % 2 ? 0 : (int32_t)seed);
            live(r, 1500);
            const uint64_t following = sl_scheduler_counts(r->scheduler)->following_steps;
            assert_true(shapes[i].steps_in_flight == 1 ? following == 0 : following > 10 || r->drafts > 0);
            const uint64_t halved = sl_scheduler_counts(r->scheduler)->halved_steps;
            assert_true(shapes[i].stages > 1 && r->drafts == 0 ? halved > 100 : halved == 0);
            uint64_t drafted = 0, accepted = 0;
            for (int k = 0; k < SL_DRAFTS; k++) {
                drafted += sl_scheduler_counts(r->scheduler)->drafted[k];
                accepted += sl_scheduler_counts(r->scheduler)->accepted[k];
            }
            assert_true(r->drafts ? accepted > 100 && drafted > accepted : drafted == 0);
            rig_destroy(r);
        }
    }
}

/* Of what was kept, where prompts left more than their budget. */
static void random_lives_keep_what_their_requests_say(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t seed = 1; seed <= 3 && shapes[i].pages > 0; seed++) {
            seed_state = seed * 977u + (uint32_t)i;
            const int32_t budget = seed == 1 ? 40 : seed == 2 ? 64 : 100;
            rig *r = rig_create_keeping(&shapes[i], seed == 2 ? 3 : 0, budget);
            live(r, 900);
            assert_true(r->executor->compactions > 10);
            rig_destroy(r);
        }
    }
}

/* ---- drafts
 * ----------------------------------------------------------------------------------------------------------
 */

static const shape drafting[] = {{64, 0, 0, 40, true, 1, 0},
                                 {0, 0, 0, 40, true, 1, 0},
                                 {40, 48, 14, 40, true, 1, 0},
                                 {64, 0, 0, 0, true, 1, 0}};

/* A sequence with its first `generate` tokens asked for. */
static void start_job(rig *r, job *j, int32_t prompt, int32_t generate) {
    int32_t tokens[CONTEXT];
    sl_error error;
    for (int32_t t = 0; t < prompt; t++) {
        tokens[t] = t * 5 % VOCABULARY;
    }
    if (!j->work.sequence) {
        assert_int_equal(sl_sequence_create(r->scheduler, &j->work.sequence, &error), 0);
    }
    assert_int_equal(job_submit(r, j, tokens, prompt, generate, SL_LOGITS_NONE), 0);
}

/* The rows of all steps are what the cache has, and refused drafts: also where a text ended among drafts that
 * were right, and went on. */
static void no_token_is_in_two_steps(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof drafting / sizeof *drafting; i++) {
        rig *r = rig_create_drafting(&drafting[i], 6);
        const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
        job j = {0};
        uint64_t refused = 0;
        for (int32_t turn = 0; turn < 60; turn++) {
            j.ends_at = j.count + 2 + turn % 13;
            start_job(r, &j, 1, 50);
            while (rig_step(r)) {
            }
            assert_int_equal(j.count, j.ends_at);
            job_check(&j);
            books_balance(r, &j, 1);
            refused = 0;
            for (int k = 0; k < SL_DRAFTS; k++) {
                refused += counts->drafted[k] - counts->accepted[k];
            }
            assert_int_equal(counts->rows, (uint64_t)j.work.sequence->timeline.cached + refused);
        }
        assert_true(counts->accepted[2] > 20 && refused > 20);
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* The index has states of pages' ends, though steps passed them with drafts. */
static void drafts_pass_pages_ends(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof drafting / sizeof *drafting; i++) {
        rig *r = rig_create_drafting(&drafting[i], 6);
        const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
        job jobs[2] = {0};
        sl_error error;
        start_job(r, &jobs[0], 10, 500);
        while (rig_step(r)) {
        }
        for (int32_t length = 5 * SL_PAGE_TOKENS; length > SL_PAGE_TOKENS; length -= SL_PAGE_TOKENS - 1) {
            const uint64_t before = counts->reused_tokens;
            job *j = &jobs[1];
            *j = (job){.no_reuse = false};
            assert_int_equal(sl_sequence_create(r->scheduler, &j->work.sequence, &error), 0);
            assert_int_equal(job_submit(r, j, jobs[0].model, length + 1, 8, SL_LOGITS_NONE), 0);
            while (rig_step(r)) {
            }
            assert_true(counts->reused_tokens - before >= (uint64_t)(length - length % SL_PAGE_TOKENS));
            job_check(j);
            books_balance(r, jobs, 2);
            sl_sequence_destroy(r->scheduler, j->work.sequence);
        }
        sl_sequence_destroy(r->scheduler, jobs[0].work.sequence);
        rig_destroy(r);
    }
}

static void steady_steps_allocate_nothing(void **state) {
    (void)state;
    rig *r = rig_create(&shapes[6]);
    job j = {0};
    sl_error error;
    int32_t token = 1;
    assert_int_equal(sl_sequence_create(r->scheduler, &j.work.sequence, &error), 0);
    assert_int_equal(job_submit(r, &j, &token, 1, 500, SL_LOGITS_NONE), 0);
    rig_step(r);
    uint64_t before = sl_alloc_count();
    while (rig_step(r)) {
    }
    assert_int_equal(j.count, 501);
    assert_int_equal(sl_alloc_count(), before);
    j.adjusts = PENALISED;
    assert_int_equal(job_submit(r, &j, &token, 1, 500, SL_LOGITS_NONE), 0);
    rig_step(r);
    before = sl_alloc_count();
    while (rig_step(r)) {
    }
    assert_int_equal(j.count, 1002);
    assert_int_equal(sl_alloc_count(), before);
    sl_sequence_destroy(r->scheduler, j.work.sequence);
    rig_destroy(r);
}

/* ---- two steps in flight
 * ------------------------------------------------------------------------------------------------ */

static const shape pairs[] = {{40, 0, 0, 0, true, 2, 0},
                              {24, 48, 12, 9, true, 2, 0},
                              {0, 0, 0, 10, true, 2, 0},
                              {40, 0, 0, 7, false, 2, 0}};

/* A step more for a prompt of several tokens: where others could share a recurrent state, one is kept before
 * the prompt's last token. */
static int32_t parts_last(const shape *shape, int32_t pending) {
    return shape->state_slots && shape->reuse && pending > 1;
}

/* Nothing in flight, and the sequence as if its last row had never been computed ahead. */
static void check_settled(const rig *r, const job *j, sl_finish finish) {
    assert_true(j->done);
    assert_int_equal(j->finish, finish);
    assert_null(j->work.sequence->work);
    assert_int_equal(j->work.sequence->in_step, 0);
    assert_int_equal(j->work.sequence->timeline.cached, j->count - 1);
    assert_int_equal(j->work.sequence->timeline.write_count, 0);
    job_check(j);
    books_balance(r, j, 1);
}

/* A text that ends while the next row is under way: the row is dropped, and nothing shows of it, wherever in
 * a page it falls; over and over, so that a slot or page lost each time would be missed. */
static void what_ended_is_dropped_from_the_following_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        rig *r = rig_create(&pairs[i]);
        const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
        job j = {0};
        while (j.count < 200) {
            const sl_scheduler_counters before = *counts;
            const uint64_t submitted = r->executor->steps;
            /* What was left pending goes through with the new prompt's token. */
            const int32_t pending = (j.count > 0) + 1;
            const int32_t steps = 4 + parts_last(&pairs[i], pending);
            j.ends_at = j.count + 4;
            start_job(r, &j, 1, 50);
            while (rig_step(r)) {
            }
            assert_int_equal(j.count, j.ends_at);
            check_settled(r, &j, SL_FINISH_EOS);
            /* Three tokens, one step each and one row for nothing. */
            assert_int_equal(r->executor->steps - submitted, steps);
            assert_int_equal(counts->steps - before.steps, steps);
            assert_int_equal(counts->rows - before.rows, pending + 3);
            assert_int_equal(counts->outputs - before.outputs, 4);
            assert_int_equal(counts->following_steps - before.following_steps, steps - 1);
        }
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        rig_destroy(r);
    }
}

/* What stays in the step goes on as if it had been alone in it. */
static void others_stay_in_the_following_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        rig *r = rig_create(&pairs[i]);
        job jobs[2] = {0};
        jobs[0].ends_at = 15;
        start_job(r, &jobs[0], 10, 60);
        start_job(r, &jobs[1], 20, 60);
        while (jobs[0].done == 0) {
            assert_true(rig_step(r));
        }
        /* The one that ended is still in a step, until that has been waited for. */
        assert_true(r->under_way);
        assert_int_equal(jobs[0].work.sequence->in_step, 1);
        assert_int_equal(jobs[1].count, 25);
        assert_true(rig_step(r));
        assert_int_equal(jobs[0].work.sequence->in_step, 0);
        assert_int_equal(jobs[0].work.sequence->timeline.cached, 14);
        assert_int_equal(jobs[0].count, 15);
        assert_int_equal(jobs[1].count, 26);
        books_balance(r, jobs, 2);
        while (rig_step(r)) {
        }
        assert_int_equal(jobs[1].count, 80);
        assert_int_equal(jobs[1].finish, SL_FINISH_LENGTH);
        for (int k = 0; k < 2; k++) {
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* Ends that are known beforehand cost no row: the last token asked for, and the last that fits. */
static void no_step_follows_the_last_token(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        shape wide = pairs[i];
        wide.pages *= wide.pages ? 2 : 0;
        rig *r = rig_create(&wide);
        job j = {0};
        start_job(r, &j, 10, 30);
        while (rig_step(r)) {
        }
        check_settled(r, &j, SL_FINISH_LENGTH);
        assert_int_equal(j.count, 40);
        assert_int_equal(r->executor->steps, 30 + parts_last(&pairs[i], 10));
        assert_int_equal(sl_scheduler_counts(r->scheduler)->following_steps, 29 + parts_last(&pairs[i], 10));
        start_job(r, &j, 90, 1);
        while (rig_step(r)) {
        }
        const int32_t left = CONTEXT - j.count;
        const uint64_t before = r->executor->steps;
        const uint64_t followed = sl_scheduler_counts(r->scheduler)->following_steps;
        start_job(r, &j, 0, left + 10);
        while (rig_step(r)) {
        }
        assert_int_equal(j.finish, SL_FINISH_CONTEXT);
        assert_int_equal(j.count, CONTEXT);
        /* The token that fills the context goes through too, to no end but that its logits could be wanted.
         */
        assert_int_equal(j.work.sequence->timeline.cached, CONTEXT);
        assert_int_equal(r->executor->steps - before, left + 1);
        assert_int_equal(sl_scheduler_counts(r->scheduler)->following_steps - followed, left);
        job_check(&j);
        books_balance(r, &j, 1);
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        rig_destroy(r);
    }
}

/* It ends as soon as what is in flight is through, whose tokens it still gets. */
static void cancelled_works_are_not_followed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        rig *r = rig_create(&pairs[i]);
        job j = {0};
        for (int again = 0; again < 20; again++) {
            const int32_t before = j.count;
            start_job(r, &j, 1, 100);
            for (int steps = 0; steps < 3; steps++) {
                assert_true(rig_step(r));
            }
            assert_true(r->under_way);
            j.work.cancelled = true;
            assert_true(rig_step(r));
            assert_false(rig_step(r));
            assert_int_equal(j.count, before + 1 + 4 - parts_last(&pairs[i], before ? 2 : 1));
            check_settled(r, &j, SL_FINISH_CANCELLED);
        }
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        rig_destroy(r);
    }
}

/* A step that does not begin leaves its sequences as they were, also behind one that succeeds. */
static void failed_steps_leave_their_sequences(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        for (int fail_in = 1; fail_in <= 3; fail_in++) {
            rig *r = rig_create(&pairs[i]);
            job j = {0};
            for (int again = 0; again < 20; again++) {
                const sl_scheduler_counters before = *sl_scheduler_counts(r->scheduler);
                const int32_t length = j.count, cached = again ? j.work.sequence->timeline.cached : 0;
                const int32_t sampling = fail_in - parts_last(&pairs[i], length - cached + 1);
                r->executor->fail_in = fail_in;
                start_job(r, &j, 1, 100);
                while (rig_step(r)) {
                }
                assert_int_equal(j.finish, SL_FINISH_ERROR);
                assert_int_equal(j.count, length + 1 + (sampling > 1 ? sampling - 1 : 0));
                assert_int_equal(j.work.sequence->in_step, 0);
                assert_int_equal(j.work.sequence->timeline.cached, fail_in == 1 ? cached : j.count - 1);
                assert_int_equal(sl_scheduler_counts(r->scheduler)->steps - before.steps, fail_in - 1);
                job_check(&j);
                books_balance(r, &j, 1);
            }
            start_job(r, &j, 0, 10);
            while (rig_step(r)) {
            }
            check_settled(r, &j, SL_FINISH_LENGTH);
            sl_sequence_destroy(r->scheduler, j.work.sequence);
            rig_destroy(r);
        }
    }
}

/* What the host has to see first: logits that the owner reads, and the tokens that a penalty is on. */
static void what_the_host_must_see_is_not_followed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        rig *r = rig_create(&pairs[i]);
        const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
        job j = {.adjusts = PENALISED};
        start_job(r, &j, 20, 30);
        while (rig_step(r)) {
        }
        check_settled(r, &j, SL_FINISH_LENGTH);
        const uint64_t of_prompt = (uint64_t)parts_last(&pairs[i], 20);
        assert_int_equal(counts->following_steps, of_prompt);
        j.adjusts = BIASED; /* which it need not see */
        start_job(r, &j, 0, 20);
        while (rig_step(r)) {
        }
        check_settled(r, &j, SL_FINISH_LENGTH);
        assert_int_equal(counts->following_steps, of_prompt + 19);
        j.keeps_logits = true;
        assert_int_equal(job_submit(r, &j, (int32_t[1]){0}, 0, 10, SL_LOGITS_LAST), 0);
        for (int32_t seen = 1; seen <= 10; seen++) {
            assert_true(rig_step(r));
            assert_int_equal(j.logits_seen, seen);
            if (seen < 10) {
                assert_false(rig_step(r)); /* until it is told to go on */
            }
            j.work.blocked = false;
        }
        assert_false(rig_step(r));
        check_settled(r, &j, SL_FINISH_LENGTH);
        assert_int_equal(counts->following_steps, of_prompt + 19);
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        rig_destroy(r);
    }
}

/* The rest of a prompt is known, so its steps follow each other, also beside one that generates; it may be
 * cancelled, or a step may fail, anywhere in it. */
static void the_rest_of_a_prompt_follows(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        shape wide = pairs[i];
        wide.pages *= wide.pages ? 3 : 0;
        rig *r = rig_create(&wide);
        const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
        job jobs[2] = {{.no_reuse = true}};
        start_job(r, &jobs[0], 5 * CHUNK, 1);
        while (rig_step(r)) {
        }
        check_settled(r, &jobs[0], SL_FINISH_LENGTH);
        assert_in_range(counts->steps, 5, 9);
        assert_int_equal(counts->following_steps, counts->steps - 1);
        start_job(r, &jobs[1], 1, 200);
        assert_true(rig_step(r));
        for (int what = 0; what < 12; what++) {
            const uint64_t followed = counts->following_steps, steps = counts->steps;
            start_job(r, &jobs[0], 3 * CHUNK / 2, 2);
            for (int step = 0; !jobs[0].done; step++) {
                jobs[0].work.cancelled |= step == what;
                assert_true(rig_step(r));
            }
            assert_int_equal(jobs[0].finish, what < 2 ? SL_FINISH_CANCELLED : jobs[0].finish);
            /* At most one step waits for the one before it when it comes, and one when it goes. */
            assert_true(counts->following_steps - followed + 2 >= counts->steps - steps);
            sl_sequence_rollback(r->scheduler, jobs[0].work.sequence, 0);
            jobs[0].count = 0;
        }
        assert_false(jobs[1].done);
        r->executor->fail_in = 2;
        start_job(r, &jobs[0], 2 * CHUNK, 2);
        while (rig_step(r)) {
        }
        assert_int_equal(jobs[0].finish, SL_FINISH_ERROR);
        assert_int_equal(jobs[1].finish, SL_FINISH_ERROR);
        for (int k = 0; k < 2; k++) {
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* The next step is asked for while the one in flight has a part of its time left, and at once where nothing
 * is known of it; not at all when somebody has come who can be in it. */
static void who_comes_in_time_is_waited_for(void **state) {
    (void)state;
    /* From 0.4 to 8 seconds what is expected goes an eighth of the way. */
    static const double seconds[] = {0.4, 8, 8, 8, 4e-3, 2e-3, 1e-3, 1};
    /* Of steps that were over when they were waited for it shrinks, whatever they seemed to take. */
    static const bool over[] = {false, false, true, true, false, false, false, false};
    static const double grown = 0.4 + (8 - 0.4) / 8;
    static const double after[] = {
        0, 0.3, 0.75 * grown, 0.75 * 0.75 * grown, 0.75 * 0.75 * 0.75 * grown, 3e-3, 1e-3, 0};
    enum { STEPS = sizeof seconds / sizeof *seconds };
    shape wide = pairs[0];
    wide.pages *= wide.pages ? 3 : 0;
    rig *r = rig_create(&wide);
    job jobs[2] = {{.no_reuse = true}, {.no_reuse = true}};
    int32_t bucket;
    sl_error error;
    assert_true(sl_scheduler_follow_after(r->scheduler) < 0);
    start_job(r, &jobs[0], 1, 100);
    for (int i = 0; i < STEPS; i++) {
        assert_true(sl_scheduler_build(r->scheduler, &bucket) > 0);
        assert_int_equal(fake_submit(r->executor, bucket, &error), 0);
        assert_true(fabs(sl_scheduler_follow_after(r->scheduler) - after[i]) < 1e-9);
        if (i == STEPS - 1) {
            start_job(r, &jobs[1], 1, 10);
            assert_true(sl_scheduler_follow_after(r->scheduler) < 0);
        }
        assert_int_equal(fake_wait(r->executor, &error), 0);
        sl_scheduler_measured(r->scheduler, seconds[i], over[i]);
        sl_scheduler_commit(r->scheduler, 0, NULL);
    }
    while (rig_step(r)) {
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(jobs[k].finish, SL_FINISH_LENGTH);
        job_check(&jobs[k]);
        sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
    }
    books_balance(r, NULL, 0);
    rig_destroy(r);
}

/* Where devices work on several steps the first is free before the step in flight is done: more of a prompt
 * is asked for at once, and how long steps took that were not alone is not believed. What takes the step's
 * token has time. */
static void devices_that_overlap_do_not_wait(void **state) {
    enum { CHUNKS = 3 };
    (void)state;
    for (int32_t stages = 1; stages <= 2; stages++) {
        const double known = PLAIN_SECONDS * 0.75;
        shape wide = pairs[0];
        wide.pages *= wide.pages ? 3 : 0;
        rig *r = rig_create(&wide);
        job jobs[2] = {{.no_reuse = true}, {.no_reuse = true}};
        int32_t bucket;
        sl_error error;
        r->backend.stages = stages;
        sl_scheduler_set_halving(r->scheduler, SL_HALVING_NEVER);
        start_job(r, &jobs[0], 1, 1);
        assert_true(rig_step(r)); /* PLAIN_SECONDS are known now */
        start_job(r, &jobs[1], CHUNKS * CHUNK, 3);
        assert_true(sl_scheduler_build(r->scheduler, &bucket) > 0);
        assert_int_equal(fake_submit(r->executor, bucket, &error), 0);
        for (int chunk = 1; chunk <= CHUNKS; chunk++) {
            const double after = stages > 1 && chunk < CHUNKS ? 0 : known;
            assert_true(fabs(sl_scheduler_follow_after(r->scheduler) - after) < 1e-9);
            assert_true(sl_scheduler_follow(r->scheduler, &bucket) > 0);
            assert_int_equal(fake_submit(r->executor, bucket, &error), 0);
            assert_int_equal(fake_wait(r->executor, &error), 0);
            sl_scheduler_measured(r->scheduler, stages > 1 && chunk > 1 ? PLAIN_SECONDS / 100 : PLAIN_SECONDS,
                                  false);
            sl_scheduler_commit(r->scheduler, 0, NULL);
        }
        assert_true(fabs(sl_scheduler_follow_after(r->scheduler) - known) < 1e-9);
        r->under_way = true;
        while (rig_step(r)) {
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(jobs[k].finish, SL_FINISH_LENGTH);
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* Steps that follow are for those who are in them, so nobody may have to wait for that to end; who is blocked
 * waits for something else. */
static void whoever_waits_is_in_the_next_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        rig *r = rig_create(&pairs[i]);
        job jobs[3] = {0};
        start_job(r, &jobs[0], 10, 150);
        for (int steps = 0; steps < 5; steps++) {
            assert_true(rig_step(r));
        }
        assert_true(r->under_way);
        start_job(r, &jobs[1], 20, 5);
        assert_true(rig_step(r)); /* was under way */
        const int32_t steps = 1 + parts_last(&pairs[i], 20), before_it = 16 - parts_last(&pairs[i], 10);
        for (int32_t step = 0; step < steps; step++) {
            assert_true(rig_step(r));
        }
        assert_int_equal(jobs[1].count, 21);
        assert_int_equal(jobs[0].count, before_it + steps);
        while (!jobs[1].done) {
            assert_true(rig_step(r));
        }
        assert_int_equal(jobs[0].count, before_it + steps + 4);
        sl_error error;
        jobs[2].keeps_logits = true;
        assert_int_equal(sl_sequence_create(r->scheduler, &jobs[2].work.sequence, &error), 0);
        assert_int_equal(job_submit(r, &jobs[2], &(int32_t){3}, 1, 9, SL_LOGITS_LAST), 0);
        while (jobs[2].logits_seen == 0) {
            assert_true(rig_step(r));
        }
        const uint64_t before = sl_scheduler_counts(r->scheduler)->following_steps;
        for (int steps = 0; steps < 10; steps++) {
            assert_true(rig_step(r));
        }
        assert_in_range(sl_scheduler_counts(r->scheduler)->following_steps - before, 9, 10);
        assert_int_equal(jobs[2].logits_seen, 1);
        jobs[0].work.cancelled = jobs[2].work.cancelled = true;
        while (rig_step(r)) {
        }
        books_balance(r, jobs, 3);
        for (int k = 0; k < 3; k++) {
            assert_true(jobs[k].done);
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        rig_destroy(r);
    }
}

/* Where only some of them find a page, those go on; the others wait their turn. */
static void who_finds_no_page_is_left_out_of_the_following_step(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 3, .state_slots = 9, .steps_in_flight = 2});
    job jobs[2] = {0};
    int left_out = 0;
    start_job(r, &jobs[0], 60, 40); /* both need a second page from their 65th token on */
    start_job(r, &jobs[1], 62, 40);
    while (rig_step(r)) {
        const bool first = jobs[0].work.sequence->in_step, second = jobs[1].work.sequence->in_step;
        left_out += r->under_way && first != second && !jobs[0].done && !jobs[1].done;
        books_balance(r, jobs, 2);
    }
    assert_int_equal(left_out, 1);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(jobs[k].finish, SL_FINISH_LENGTH);
        assert_int_equal(jobs[k].count, k ? 102 : 100);
        job_check(&jobs[k]);
    }
    for (int k = 0; k < 2; k++) {
        sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
    }
    books_balance(r, NULL, 0);
    rig_destroy(r);
}

/* The device is gone with two steps in flight: every work ends, and what they held can be given back. */
static void a_lost_device_lets_go_of_everything(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        rig *r = rig_create(&pairs[i]);
        job jobs[3] = {0};
        sl_error error;
        start_job(r, &jobs[0], 10, 50);
        start_job(r, &jobs[1], 20, 50);
        for (int steps = 0; steps < 4; steps++) {
            assert_true(rig_step(r));
        }
        assert_true(r->under_way);
        start_job(r, &jobs[2], 30, 50); /* waits */
        sl_fail(&error, SL_ERR_DEVICE, "gone");
        sl_scheduler_fail_all(r->scheduler, &error);
        assert_false(sl_scheduler_has_work(r->scheduler));
        for (int k = 0; k < 3; k++) {
            assert_true(jobs[k].done);
            assert_int_equal(jobs[k].finish, SL_FINISH_ERROR);
            assert_int_equal(jobs[k].work.sequence->in_step, 0);
            assert_null(jobs[k].work.sequence->work);
            job_check(&jobs[k]);
            sl_sequence_destroy(r->scheduler, jobs[k].work.sequence);
        }
        books_balance(r, NULL, 0);
        /* Nothing of it is left: as good as new, were there a device. */
        r->under_way = false;
        r->executor->in_flight = 0;
        job j = {0};
        start_job(r, &j, 10, 50);
        while (rig_step(r)) {
        }
        check_settled(r, &j, SL_FINISH_LENGTH);
        sl_sequence_destroy(r->scheduler, j.work.sequence);
        rig_destroy(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_cut_into_chunks_and_generate),
        cmocka_unit_test(equal_beginnings_are_reused),
        cmocka_unit_test(preempted_works_go_on_where_they_were),
        cmocka_unit_test(what_never_fits_ends_with_a_message),
        cmocka_unit_test(submissions_are_checked),
        cmocka_unit_test(single_tokens_go_first),
        cmocka_unit_test(the_oldest_does_not_starve),
        cmocka_unit_test(random_lives_see_only_their_own_past),
        cmocka_unit_test(random_lives_keep_what_their_requests_say),
        cmocka_unit_test(no_token_is_in_two_steps),
        cmocka_unit_test(drafts_pass_pages_ends),
        cmocka_unit_test(steady_steps_allocate_nothing),
        cmocka_unit_test(what_ended_is_dropped_from_the_following_step),
        cmocka_unit_test(others_stay_in_the_following_step),
        cmocka_unit_test(no_step_follows_the_last_token),
        cmocka_unit_test(cancelled_works_are_not_followed),
        cmocka_unit_test(failed_steps_leave_their_sequences),
        cmocka_unit_test(what_the_host_must_see_is_not_followed),
        cmocka_unit_test(the_rest_of_a_prompt_follows),
        cmocka_unit_test(who_comes_in_time_is_waited_for),
        cmocka_unit_test(devices_that_overlap_do_not_wait),
        cmocka_unit_test(whoever_waits_is_in_the_next_step),
        cmocka_unit_test(who_finds_no_page_is_left_out_of_the_following_step),
        cmocka_unit_test(a_lost_device_lets_go_of_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
