/* What sequences take over of each other, and whose turn it is. Contents are checked by the rig all along. */
#include "unit/sched/rig.h"

enum { MOST = 16 };

static const shape full = {64, 0, 0, 0, true, 1, 0}, windowed = {64, 100, 30, 0, true, 1, 0},
                   recurrent = {64, 0, 0, 24, true, 1, 0};
static const shape *const kinds[] = {&full, &windowed, &recurrent};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void open_job(rig *r, job *j) {
    sl_error error;
    memset(j, 0, sizeof *j);
    assert_int_equal(sl_sequence_create(r->scheduler, &j->work.sequence, &error), 0);
}

static void close_job(rig *r, job *j) {
    assert_true(j->done);
    job_check(j);
    sl_sequence_destroy(r->scheduler, j->work.sequence);
    j->work.sequence = NULL;
}

static void run_all(rig *r) {
    while (rig_step(r)) {
    }
}

/* Tokens that differ from those of another `text` from the first on. */
static void write_text(int32_t *tokens, int32_t count, int32_t text) {
    for (int32_t i = 0; i < count; i++) {
        tokens[i] = (i * 7 + text * 131 + 1) % VOCABULARY;
    }
}

static void submit_tokens(rig *r, job *j, const int32_t *tokens, int32_t count, int32_t generate) {
    assert_int_equal(job_submit(r, j, tokens, count, generate, SL_LOGITS_NONE), 0);
}

/* A new sequence reads tokens and generates; what it took over comes back. */
static int32_t read_anew(rig *r, job *j, const int32_t *tokens, int32_t count, int32_t generate) {
    open_job(r, j);
    submit_tokens(r, j, tokens, count, generate);
    run_all(r);
    return j->work.reused;
}

/* ---- taking over
 * ------------------------------------------------------------------------------------------------- */

/* A conversation goes on from the last token that was computed, whatever became of the sequence that did. */
static void answers_are_taken_over_to_the_token(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        rig *r = rig_create(kinds[k]);
        job first, second;
        int32_t text[400];
        write_text(text, 400, 1);
        assert_int_equal(read_anew(r, &first, text, 100, 30), 0);
        memcpy(text, first.model, 130 * sizeof *text);
        close_job(r, &first);
        /* The last token was sampled and never computed. */
        assert_int_equal(read_anew(r, &second, text, 135, 10), 129);
        assert_int_equal(second.work.reuse, SL_REUSE_NEW);
        assert_int_equal(second.work.matched, 129);
        close_job(r, &second);
        /* Another answer to the same prompt. */
        assert_int_equal(read_anew(r, &second, text, 100, 10), 99);
        assert_int_equal(second.work.reuse, SL_REUSE_ALL);
        close_job(r, &second);
        /* An answer that goes on differently: a state is there only where the prompt ends. */
        text[105] = (text[105] + 1) % VOCABULARY;
        assert_int_equal(read_anew(r, &second, text, 120, 10), k == 2 ? 99 : 105);
        assert_int_equal(second.work.reuse, k == 2 ? SL_REUSE_STATE : SL_REUSE_NEW);
        assert_int_equal(second.work.matched, 105);
        close_job(r, &second);
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* Ten conversations take turns; each finds all that it had. */
static void many_conversations_find_their_ends(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        shape roomy = *kinds[k];
        roomy.pages = 100;
        roomy.window_pages *= 2;
        rig *r = rig_create(&roomy);
        static int32_t texts[10][CONTEXT];
        int32_t counts[10];
        for (int turn = 0; turn < 5; turn++) {
            for (int c = 0; c < 10; c++) {
                const int32_t known = turn ? counts[c] - 1 : 0;
                job j;
                counts[c] = turn ? counts[c] : 0;
                write_text(texts[c] + counts[c], 40, 10 * turn + c);
                assert_int_equal(read_anew(r, &j, texts[c], counts[c] + 40, 20), known);
                counts[c] += 60;
                memcpy(texts[c], j.model, (size_t)counts[c] * sizeof **texts);
                close_job(r, &j);
            }
        }
        rig_destroy(r);
    }
}

/* Where a text was found to part from another, its state is worth more than those that steps happened to
 * leave: it outlives the reading of other texts, and the next to part there goes on from it. */
static void states_are_kept_where_texts_part(void **state) {
    (void)state;
    shape tight = recurrent;
    tight.state_slots = 12;
    rig *r = rig_create(&tight);
    for (int i = 0; i < 7; i++) {
        const bool other = i != 0 && i != 4 && i != 6;
        int32_t text[300];
        job j;
        write_text(text, 300, other ? 10 + i : 1);
        write_text(text + 200, 100, 20 + i);
        /* The first text's states were forgotten when the second came; not the one that the second left. */
        assert_int_equal(read_anew(r, &j, text, 300, 1), i < 6 ? 0 : 192);
        assert_int_equal(j.work.matched, other || i == 0 ? 0 : 200);
        close_job(r, &j);
    }
    rig_destroy(r);
}

static void why_no_more_was_reused(void **state) {
    (void)state;
    rig *r = rig_create(&full);
    int32_t text[200];
    job j;
    write_text(text, 200, 1);
    assert_int_equal(read_anew(r, &j, text, 200, 1), 0);
    assert_int_equal(j.work.reuse, SL_REUSE_NEW);
    assert_int_equal(j.work.matched, 0);
    close_job(r, &j);
    open_job(r, &j);
    assert_int_equal(job_submit(r, &j, text, 150, 1, SL_LOGITS_ALL), 0);
    run_all(r);
    assert_int_equal(j.work.reused, 0);
    assert_int_equal(j.work.reuse, SL_REUSE_LOGITS);
    assert_int_equal(j.work.matched, 150);
    assert_int_equal(j.logits_seen, 150);
    close_job(r, &j);
    const sl_scheduler_counters *counts = sl_scheduler_counts(r->scheduler);
    assert_int_equal(counts->prompt_tokens, 350);
    assert_int_equal(counts->generated_tokens, 2);
    rig_destroy(r);
    shape off = full;
    off.reuse = false;
    r = rig_create(&off);
    assert_int_equal(read_anew(r, &j, text, 100, 1), 0);
    assert_int_equal(j.work.reuse, SL_REUSE_OFF);
    close_job(r, &j);
    rig_destroy(r);
}

static void salts_and_no_reuse_stay_apart(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        rig *r = rig_create(kinds[k]);
        int32_t text[150];
        write_text(text, 150, 1);
        /* In this order: salt, no_reuse, what is taken over. */
        static const struct {
            uint64_t salt;
            bool no_reuse;
            int32_t reused;
        } rows[] = {{5, true, 0},    {5, false, 0},   {6, false, 0},   {0, false, 0},
                    {5, false, 149}, {6, false, 149}, {0, false, 149}, {0, true, 0}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            job j;
            open_job(r, &j);
            j.salt = rows[i].salt;
            j.no_reuse = rows[i].no_reuse;
            submit_tokens(r, &j, text, 150, 5);
            run_all(r);
            assert_int_equal(j.work.reused, rows[i].reused);
            assert_int_equal(j.work.reuse == SL_REUSE_OFF, rows[i].no_reuse);
            close_job(r, &j);
        }
        rig_destroy(r);
    }
}

/* What is kept of sequences that are gone goes before what a sequence has that is still there. */
static void kept_pages_go_before_idle_sequences(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 10, .reuse = true, .steps_in_flight = 1});
    int32_t text[300];
    job idle, gone, next;
    write_text(text, 300, 1);
    read_anew(r, &idle, text, 250, 1);
    write_text(text, 300, 2);
    read_anew(r, &gone, text, 250, 1);
    close_job(r, &gone);
    write_text(text, 300, 3);
    read_anew(r, &next, text, 300, 1);
    assert_int_equal(idle.work.sequence->timeline.cached, 250);
    close_job(r, &next);
    close_job(r, &idle);
    books_balance(r, NULL, 0);
    rig_destroy(r);
}

/* ---- at once
 * ----------------------------------------------------------------------------------------------------------
 */

/* Six prompts of which more are equal than there are slots: one is read, and five take it over. */
static void equal_prompts_at_once_are_read_once(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        rig *r = rig_create(kinds[k]);
        static job jobs[6];
        int32_t text[300];
        write_text(text, 300, 1);
        for (int i = 0; i < 6; i++) {
            open_job(r, &jobs[i]);
            submit_tokens(r, &jobs[i], text, 300, 4);
        }
        run_all(r);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(jobs[i].work.reused, i ? 299 : 0);
            assert_int_equal(jobs[i].count, 304);
            close_job(r, &jobs[i]);
        }
        assert_int_equal(sl_scheduler_counts(r->scheduler)->rows, 300 + 5 + 6 * 3);
        rig_destroy(r);
    }
}

/* They part in the middle: what they have in common is read once. */
static void common_beginnings_at_once_are_read_once(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        rig *r = rig_create(kinds[k]);
        static job jobs[3];
        int32_t text[300];
        for (int i = 0; i < 3; i++) {
            write_text(text, 300, 1);
            write_text(text + 170, 130, 2 + i);
            open_job(r, &jobs[i]);
            submit_tokens(r, &jobs[i], text, 300, 2);
        }
        run_all(r);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(jobs[i].work.reused, i == 0 ? 0 : k == 2 ? 128 : 170);
            close_job(r, &jobs[i]);
        }
        rig_destroy(r);
    }
}

/* Nobody waits for one that does not go on, or with which it shares nothing. */
static void nobody_waits_in_vain(void **state) {
    (void)state;
    enum { CANCELLED, BLOCKED, RELEASED, SALT, NO_REUSE, WAYS };
    for (int way = 0; way < WAYS; way++) {
        rig *r = rig_create(&full);
        job jobs[2];
        int32_t text[300];
        write_text(text, 300, 1);
        for (int i = 0; i < 2; i++) {
            open_job(r, &jobs[i]);
        }
        jobs[0].keeps_logits = way == BLOCKED;
        jobs[0].salt = way == SALT;
        jobs[0].no_reuse = way == NO_REUSE;
        assert_int_equal(
            job_submit(r, &jobs[0], text, 300, 2, way == BLOCKED ? SL_LOGITS_ALL : SL_LOGITS_NONE), 0);
        submit_tokens(r, &jobs[1], text, 300, 2);
        assert_true(rig_step(r));
        const bool waits = way == CANCELLED || way == BLOCKED || way == RELEASED;
        assert_int_equal(jobs[1].work.started, !waits);
        if (way == CANCELLED) {
            jobs[0].work.cancelled = true;
        } else if (way == RELEASED) {
            job_release(r, &jobs[0]);
        }
        for (int step = 0; step < 10 && !jobs[1].done; step++) {
            rig_step(r);
        }
        assert_true(jobs[1].done);
        /* One step had been done; what the blocked one has is kept when it ends. */
        assert_int_equal(jobs[1].work.reused, way == CANCELLED || way == RELEASED ? 96 : 0);
        jobs[0].work.cancelled = true;
        jobs[0].work.blocked = false;
        run_all(r);
        assert_true(jobs[0].done);
        if (way != RELEASED) {
            close_job(r, &jobs[0]);
        }
        close_job(r, &jobs[1]);
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* Slots and memory of those who wait for their owners are there for others, when nobody could run else. */
static void blocked_works_keep_nobody_out(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 9, .reuse = true, .steps_in_flight = 1});
    job blocked[SLOTS], last;
    int32_t text[500];
    for (int i = 0; i < SLOTS; i++) {
        write_text(text, 500, i);
        open_job(r, &blocked[i]);
        blocked[i].keeps_logits = true;
        blocked[i].priority = 1;
        assert_int_equal(job_submit(r, &blocked[i], text, 150, 3, SL_LOGITS_LAST), 0);
    }
    run_all(r);
    write_text(text, 500, 9);
    open_job(r, &last);
    submit_tokens(r, &last, text, 500, 1);
    run_all(r);
    assert_true(last.done);
    assert_int_equal(last.finish, SL_FINISH_LENGTH);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < SLOTS; i++) {
            assert_int_equal(blocked[i].logits_seen, turn + 1);
            blocked[i].work.blocked = false;
        }
        run_all(r);
    }
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(blocked[i].count, 153);
        close_job(r, &blocked[i]);
    }
    close_job(r, &last);
    rig_destroy(r);
}

/* A sequence may be given up at any time: at once it is nobody's, and its memory comes back. */
static void release_does_not_wait(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        for (int steps = 0; steps < 8; steps++) {
            shape two = *kinds[k];
            two.steps_in_flight = 2;
            rig *r = rig_create(&two);
            job j;
            int32_t text[100];
            write_text(text, 100, 1);
            open_job(r, &j);
            submit_tokens(r, &j, text, 100, 50);
            for (int step = 0; step < steps; step++) {
                assert_true(rig_step(r));
            }
            job_release(r, &j);
            books_balance(r, &j, 1);
            while (rig_step(r)) {
                books_balance(r, &j, 1);
            }
            assert_true(j.done);
            assert_int_equal(j.finish, SL_FINISH_CANCELLED);
            books_balance(r, NULL, 0);
            rig_destroy(r);
        }
    }
}

/* The same for one that has ended while its next row is under way. */
static void ended_sequences_are_freed_behind_their_last_row(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        shape two = *kinds[k];
        two.steps_in_flight = 2;
        rig *r = rig_create(&two);
        job j;
        int32_t text[100];
        write_text(text, 100, 1);
        open_job(r, &j);
        j.ends_at = 110;
        submit_tokens(r, &j, text, 100, 50);
        while (!j.done) {
            assert_true(rig_step(r));
        }
        assert_true(r->under_way);
        job_release(r, &j);
        books_balance(r, &j, 1);
        assert_true(rig_step(r));
        books_balance(r, NULL, 0);
        rig_destroy(r);
    }
}

/* A row that nothing can be sampled from ends its work with an error that says where, also when a step behind
 * it is under way already; others get all their tokens. */
static void rows_that_are_not_finite_end_their_work(void **state) {
    (void)state;
    static const sl_logits_wanted wanted[] = {SL_LOGITS_NONE, SL_LOGITS_LAST, SL_LOGITS_ALL};
    static const int32_t places[] = {7, 19, 20, 27, 38}; /* of a prompt of 20 and 20 generated */
    for (int k = 0; k < 2 * 3 * 5; k++) {
        const shape one = {64, 100, 30, 24, true, 1 + k % 2, 0};
        const sl_logits_wanted logits = wanted[k / 2 % 3];
        const int32_t place = places[k / 6];
        rig *r = rig_create(&one);
        job jobs[3], again;
        int32_t text[20];
        for (int i = 0; i < 3; i++) {
            open_job(r, &jobs[i]);
            write_text(text, 20, i);
            assert_int_equal(job_submit(r, &jobs[i], text, 20, 20, i == 1 ? logits : SL_LOGITS_NONE), 0);
        }
        r->executor->broken_at[1] = place; /* slots are given in order */
        while (!jobs[0].done || !jobs[1].done || !jobs[2].done) {
            assert_true(rig_step(r));
            books_balance(r, jobs, 3);
        }
        assert_int_equal(jobs[0].finish, SL_FINISH_LENGTH);
        assert_int_equal(jobs[2].finish, SL_FINISH_LENGTH);
        assert_int_equal(jobs[0].count, 40);
        assert_int_equal(jobs[2].count, 40);
        if (place >= 19 || logits == SL_LOGITS_ALL) {
            char said[64];
            snprintf(said, sizeof said, "position %d: logits are not finite", place);
            assert_int_equal(jobs[1].finish, SL_FINISH_ERROR);
            assert_int_equal(jobs[1].error.code, SL_ERR_INTERNAL);
            assert_string_equal(jobs[1].error.message, said);
            assert_int_equal(jobs[1].count, place < 20 ? 20 : place + 1);
        } else { /* nothing was asked of that row */
            assert_int_equal(jobs[1].finish, SL_FINISH_LENGTH);
        }
        rig_settle(r, jobs[1].work.sequence);
        job_check(&jobs[1]);
        memset(r->executor->broken_at, 0, sizeof r->executor->broken_at);
        open_job(r, &again);
        write_text(text, 20, 1);
        submit_tokens(r, &again, text, 20, 20);
        run_all(r);
        assert_int_equal(again.finish, SL_FINISH_LENGTH);
        for (int i = 0; i < 3; i++) {
            close_job(r, &jobs[i]);
        }
        close_job(r, &again);
        rig_destroy(r);
    }
}

/* ---- turns
 * ------------------------------------------------------------------------------------------------------ */

static void start_many(rig *r, job *jobs, int count, int32_t generate, uint64_t group) {
    for (int i = 0; i < count; i++) {
        int32_t text[20];
        write_text(text, 20, (int32_t)group * 20 + i);
        open_job(r, &jobs[i]);
        jobs[i].group = group;
        submit_tokens(r, &jobs[i], text, 20, generate);
    }
}

static void higher_priorities_run_first(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        rig *r = rig_create(kinds[k]);
        static job jobs[5], high[2];
        start_many(r, jobs, 5, 40, 0);
        for (int step = 0; step < 5; step++) {
            rig_step(r);
        }
        assert_false(jobs[3].work.started);
        for (int i = 0; i < 2; i++) {
            int32_t text[20];
            write_text(text, 20, 30 + i);
            open_job(r, &high[i]);
            high[i].priority = 1 + i;
            submit_tokens(r, &high[i], text, 20, 10);
        }
        const int32_t before = jobs[2].count;
        rig_step(r);
        assert_true(high[0].work.started && high[1].work.started);
        assert_int_equal(jobs[2].count, before); /* the last come gave up its slot */
        while (!high[0].done || !high[1].done) {
            assert_true(rig_step(r));
            assert_false(jobs[3].work.started);
        }
        run_all(r);
        assert_int_equal(sl_scheduler_counts(r->scheduler)->preemptions, 0);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(jobs[i].count, 60);
            close_job(r, &jobs[i]);
        }
        close_job(r, &high[0]);
        close_job(r, &high[1]);
        rig_destroy(r);
    }
}

/* Memory is taken from lower priorities, though they came first. */
static void lower_priorities_give_up_memory(void **state) {
    (void)state;
    rig *r = rig_create(&(shape){.pages = 6, .reuse = true, .steps_in_flight = 1});
    job low, high;
    int32_t text[300];
    write_text(text, 300, 1);
    open_job(r, &low);
    submit_tokens(r, &low, text, 250, 50);
    for (int step = 0; step < 5; step++) {
        rig_step(r);
    }
    write_text(text, 300, 2);
    open_job(r, &high);
    high.priority = 1;
    submit_tokens(r, &high, text, 250, 50);
    while (!high.done) {
        assert_true(rig_step(r));
    }
    assert_false(low.done);
    assert_true(sl_scheduler_counts(r->scheduler)->preemptions > 0);
    run_all(r);
    close_job(r, &high);
    close_job(r, &low);
    rig_destroy(r);
}

/* Who sends many does not keep out who sends one; and where both have many they get as much. */
static void groups_take_turns(void **state) {
    (void)state;
    rig *r = rig_create(&full);
    static job many[MOST], one, few[4];
    start_many(r, many, MOST, 30, 1);
    for (int step = 0; step < 5; step++) {
        rig_step(r);
    }
    start_many(r, &one, 1, 10, 2);
    for (int step = 0; step < 10; step++) {
        rig_step(r);
    }
    assert_true(one.done);
    start_many(r, few, 4, 60, 3);
    int32_t before = 0, after = 0;
    for (int i = 0; i < MOST; i++) {
        before += many[i].count;
    }
    while (!few[3].done) {
        assert_true(rig_step(r));
    }
    for (int i = 0; i < MOST; i++) {
        after += many[i].count;
    }
    /* Three slots for two groups: one and two in turn. 4 * 80 tokens beside so many. */
    assert_in_range(after - before, 4 * 60 / 3, 4 * 60 * 2);
    run_all(r);
    for (int i = 0; i < MOST; i++) {
        close_job(r, &many[i]);
    }
    for (int i = 0; i < 4; i++) {
        close_job(r, &few[i]);
    }
    close_job(r, &one);
    rig_destroy(r);
}

static int32_t count_tokens(const job *jobs, int count) {
    int32_t tokens = 0;
    for (int i = 0; i < count; i++) {
        tokens += jobs[i].work.started ? jobs[i].count : 0;
    }
    return tokens;
}

/* With more groups than slots, whoever was served more waits for the others; but who was away has saved up
 * nothing. */
static void groups_are_served_as_much(void **state) {
    (void)state;
    enum { GROUPS = 6, EACH = 4 };
    rig *r = rig_create(&(shape){.pages = 128, .steps_in_flight = 1});
    static job jobs[EACH][GROUPS], away[8], here[8];
    for (int32_t i = 0; i < EACH; i++) {
        for (int32_t g = 0; g < GROUPS; g++) {
            int32_t text[200];
            write_text(text, 200, i * GROUPS + g);
            open_job(r, &jobs[i][g]);
            jobs[i][g].group = (uint64_t)g;
            submit_tokens(r, &jobs[i][g], text, g == 0 ? 200 : 20, 5);
        }
    }
    while (!jobs[EACH - 1][GROUPS - 1].work.started) {
        assert_true(rig_step(r));
    }
    assert_true(jobs[0][0].done);
    assert_false(jobs[1][0].work.started);
    run_all(r);
    start_many(r, here, 1, 400, 7);
    for (int step = 0; step < 380; step++) {
        assert_true(rig_step(r));
    }
    const int32_t before = here[0].count;
    start_many(r, here + 1, 7, 30, 7);
    start_many(r, away, 8, 30, 8);
    while (!away[7].done && !here[7].done) {
        assert_true(rig_step(r));
    }
    const int32_t difference = count_tokens(away, 8) - (count_tokens(here, 8) - before);
    assert_in_range(difference + 100, 0, 200);
    run_all(r);
    for (int i = 0; i < 8; i++) {
        close_job(r, &away[i]);
        close_job(r, &here[i]);
    }
    for (int i = 0; i < EACH * GROUPS; i++) {
        close_job(r, &jobs[i / GROUPS][i % GROUPS]);
    }
    rig_destroy(r);
}

/* A request that could run now does not wait. */
static void the_queue_is_bounded(void **state) {
    (void)state;
    rig *r = rig_create_with(&full, &(sl_scheduler_options){.reuse = true, .queue = 2});
    static job jobs[7];
    start_many(r, jobs, SLOTS + 2, 5, 0);
    sl_error error;
    sl_scheduler_load load;
    for (int again = 0; again < 2; again++) {
        open_job(r, &jobs[5]);
        jobs[5].work = (sl_work){.sequence = jobs[5].work.sequence, .generate = 1};
        assert_int_equal(sl_scheduler_submit(r->scheduler, &jobs[5].work, (int32_t[]){1}, 1, &error),
                         SL_ERR_BUSY);
        assert_string_equal(error.message, "queue: 2 requests wait already, the limit is 2");
        assert_int_equal(jobs[5].work.sequence->count, 0);
        sl_sequence_destroy(r->scheduler, jobs[5].work.sequence);
        sl_scheduler_get_load(r->scheduler, &load);
        assert_int_equal(load.running, again ? SLOTS : 0);
        assert_int_equal(load.waiting, again ? 2 : SLOTS + 2);
        rig_step(r);
    }
    jobs[0].work.cancelled = true;
    rig_step(r); /* ends it, and one that waited starts */
    start_many(r, &jobs[5], 1, 5, 0);
    run_all(r);
    for (int i = 0; i < 6; i++) {
        close_job(r, &jobs[i]);
    }
    sl_scheduler_get_load(r->scheduler, &load);
    assert_int_equal(load.running + load.waiting, 0);
    assert_int_equal(load.cache_tokens, 64 * 64);
    assert_true(load.used_tokens > 0 && load.used_tokens == load.kept_tokens);
    rig_destroy(r);
}

/* ---- rows
 * ----------------------------------------------------------------------------------------------------------
 */

static void long_prompts_leave_rows_to_short_ones(void **state) {
    (void)state;
    rig *r = rig_create(&full);
    job jobs[2];
    int32_t text[800];
    write_text(text, 800, 1);
    open_job(r, &jobs[0]);
    submit_tokens(r, &jobs[0], text, 800, 1);
    write_text(text, 800, 2);
    open_job(r, &jobs[1]);
    submit_tokens(r, &jobs[1], text, 40, 1);
    assert_true(rig_step(r));
    assert_true(jobs[1].done);
    assert_int_equal(r->prompt_rows, CHUNK);
    assert_int_equal(jobs[0].work.sequence->timeline.cached, CHUNK - 40);
    run_all(r);
    close_job(r, &jobs[0]);
    close_job(r, &jobs[1]);
    rig_destroy(r);
}

/* The rows of prompts beside who generates are as many as fit the time; alone they take the whole step. */
static void prompts_do_not_hold_up_who_generates(void **state) {
    (void)state;
    static const struct {
        double seconds;
        int32_t rows;
    } bounds[] = {{0.7, 64}, {0.001, 32}, {-1, 32}, {0, CHUNK}, {100, CHUNK}};
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
        rig *r = rig_create_with(&full,
                                 &(sl_scheduler_options){.reuse = true, .prompt_seconds = bounds[b].seconds});
        job generating, prompt;
        int32_t text[800];
        write_text(text, 800, 1);
        open_job(r, &generating);
        submit_tokens(r, &generating, text, 50, 200);
        for (int step = 0; step < 20; step++) {
            assert_true(rig_step(r));
        }
        write_text(text, 800, 2);
        open_job(r, &prompt);
        submit_tokens(r, &prompt, text, 800, 1);
        const int32_t before = generating.count;
        int32_t steps = 0;
        while (!prompt.done) {
            assert_true(rig_step(r));
            const int32_t most = bounds[b].rows < CHUNK ? bounds[b].rows : CHUNK - 1;
            assert_true(prompt.done || r->prompt_rows == most);
            steps++;
        }
        assert_int_equal(generating.count - before, steps);
        generating.work.cancelled = true;
        run_all(r);
        close_job(r, &generating);
        close_job(r, &prompt);
        rig_destroy(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_taken_over_to_the_token),
        cmocka_unit_test(many_conversations_find_their_ends),
        cmocka_unit_test(states_are_kept_where_texts_part),
        cmocka_unit_test(why_no_more_was_reused),
        cmocka_unit_test(salts_and_no_reuse_stay_apart),
        cmocka_unit_test(kept_pages_go_before_idle_sequences),
        cmocka_unit_test(equal_prompts_at_once_are_read_once),
        cmocka_unit_test(common_beginnings_at_once_are_read_once),
        cmocka_unit_test(nobody_waits_in_vain),
        cmocka_unit_test(blocked_works_keep_nobody_out),
        cmocka_unit_test(release_does_not_wait),
        cmocka_unit_test(ended_sequences_are_freed_behind_their_last_row),
        cmocka_unit_test(rows_that_are_not_finite_end_their_work),
        cmocka_unit_test(higher_priorities_run_first),
        cmocka_unit_test(lower_priorities_give_up_memory),
        cmocka_unit_test(groups_take_turns),
        cmocka_unit_test(groups_are_served_as_much),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(long_prompts_leave_rows_to_short_ones),
        cmocka_unit_test(prompts_do_not_hold_up_who_generates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
