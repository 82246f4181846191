/* How many threads of a pool make its runs, by invented figures and on an invented machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/team.h"

enum { MILLISECOND = 1000000, MOST = 32 };

/* Judged `times` times: 20 ms each, in which thread i was delayed for delays[i] hundredths, and every thread
 * not delayed waited for the longest delay. */
static void judged(sl_team *team, const int *delays, int times) {
    for (int t = 1; t <= times; t++) {
        sl_team_seen seen = {.taken = 20 * MILLISECOND};
        int longest = 0;
        for (int i = 0; i < team->size; i++) {
            longest = delays[i] > longest ? delays[i] : longest;
        }
        for (int i = 0; i < team->size; i++) {
            sl_team_add_delay(&seen, seen.taken / 100 * delays[i]);
            seen.waited += seen.taken / 100 * (longest - delays[i]);
        }
        sl_team_judge(team, &seen, t * seen.taken);
    }
}

static void one_delayed_thread_of_sixteen_leaves(void **state) {
    (void)state;
    for (int delayed = 0; delayed < 16; delayed++) {
        sl_team team = sl_team_begin(16, 16);
        int delays[16] = {0};
        delays[delayed] = 90;
        judged(&team, delays, 1);
        assert_true(team.contended);
        assert_int_equal(team.size, 16); /* it may be chance */
        judged(&team, delays, 1);
        assert_int_equal(team.size, 15);
    }
    /* Two of the team share a processor, since the busy program has one. */
    sl_team team = sl_team_begin(16, 16);
    judged(&team, (int[16]){[2] = 50, [9] = 47}, 2);
    assert_int_equal(team.size, 15);
    /* A thread that is late now and then is none more. */
    team = sl_team_begin(16, 16);
    judged(&team, (int[16]){[2] = 90, [9] = 30}, 2);
    assert_int_equal(team.size, 15);
}

static void as_many_leave_as_were_delayed(void **state) {
    (void)state;
    for (int busy = 1; busy <= 15; busy++) {
        sl_team team = sl_team_begin(16, 16);
        int delays[16] = {0};
        for (int i = 0; i < busy; i++) {
            delays[(i * 5) % 16] = 92;
        }
        judged(&team, delays, 2);
        /* Where most are delayed they wait for nobody, and the team stays. */
        const int waiting = (16 - busy) * 92;
        assert_int_equal(team.size, waiting > 16 * 35 ? 16 - busy : 16);
    }
    /* More threads than processors: those without one leave, and at once. */
    sl_team team = sl_team_begin(32, 16);
    assert_true(team.contended);
    int delays[32] = {0};
    for (int i = 0; i < 16; i++) {
        delays[i] = 90;
    }
    judged(&team, delays, 1);
    assert_int_equal(team.size, 16);
}

static void two_threads_beside_a_program_become_one(void **state) {
    (void)state;
    sl_team team = sl_team_begin(2, 2);
    judged(&team, (int[2]){0, 90}, 1);
    assert_true(team.contended);
    assert_int_equal(team.size, 2);
    judged(&team, (int[2]){0, 90}, 1);
    assert_int_equal(team.size, 1);
    /* Both share a processor, and nobody waits: a team of one would do no more. */
    team = sl_team_begin(2, 2);
    judged(&team, (int[2]){50, 47}, 5);
    assert_true(team.contended);
    assert_int_equal(team.size, 2);
}

static void quiet_machines_keep_their_threads(void **state) {
    (void)state;
    sl_team team = sl_team_begin(2, 2);
    judged(&team, (int[2]){1, 2}, 9);
    assert_int_equal(team.size, 2);
    assert_false(team.contended);
    /* Each thread is delayed for a moment when it wakes; with many this adds up to more than one processor.
     */
    team = sl_team_begin(16, 16);
    int delays[16];
    for (int i = 0; i < 16; i++) {
        delays[i] = i == 3 ? 45 : 10;
    }
    judged(&team, delays, 9);
    assert_int_equal(team.size, 16);
    assert_false(team.contended);
    /* One works and fifteen wait for it, with a processor each; or the kernel does not count delays. */
    const sl_team_seen seen = {.taken = 20 * MILLISECOND, .waited = 15 * 19 * MILLISECOND};
    for (int t = 0; t < 9; t++) {
        sl_team_judge(&team, &seen, t * seen.taken);
    }
    assert_int_equal(team.size, 16);
    assert_false(team.contended);
}

/* A machine of `processors` with `busy` programs that never wait. Runs are 64 ms of work, and twelve times as
 * long where a thread has no processor. */
typedef struct machine {
    int processors, busy;
    int calm; /* so many runs of a team that became larger go well nevertheless, until a thread is moved */
    sl_team team;
    int64_t now;
    sl_team_seen seen;
    int runs; /* since the team became larger */
    bool measures;
    int most, least; /* the team's size since they were set */
    double done;     /* milliseconds of work */
} machine;

static machine make_machine(int processors, int busy) {
    return (machine){.processors = processors, .busy = busy, .team = sl_team_begin(processors, processors)};
}

static void run(machine *m) {
    const int size = m->team.size;
    const int over = size + m->busy - m->processors;
    const int delayed = m->runs++ < m->calm || over < 0 ? 0 : over < size ? over : size;
    const int64_t taken = 64 * MILLISECOND / size * (delayed > 0 ? 12 : 1);
    m->seen.taken += taken;
    m->seen.waited += delayed > 0 ? (size - delayed) * (taken / 10 * 9) : size * (taken / 10);
    m->now += taken;
    m->done += 64;
    bool ends = false;
    if (m->measures && m->seen.taken >= SL_TEAM_JUDGED) {
        for (int i = 0; i < size; i++) {
            sl_team_add_delay(&m->seen, i < delayed ? m->seen.taken / 10 * 9 : m->seen.taken / 50);
        }
        sl_team_judge(&m->team, &m->seen, m->now);
        ends = true;
    }
    if (sl_team_try(&m->team, m->now) || ends) {
        m->seen = (sl_team_seen){0};
    }
    m->measures = m->seen.taken >= SL_TEAM_JUDGED || sl_team_is_unsettled(&m->team);
    m->runs = m->team.size > size ? 0 : m->runs;
    m->most = m->team.size > m->most ? m->team.size : m->most;
    m->least = m->team.size < m->least ? m->team.size : m->least;
}

/* Threads at work, on average. */
static double run_for(machine *m, int milliseconds) {
    const int64_t begin = m->now;
    m->most = 0;
    m->least = MOST;
    m->done = 0;
    while (m->now < begin + (int64_t)milliseconds * MILLISECOND) {
        run(m);
    }
    return m->done * MILLISECOND / (double)(m->now - begin);
}

static void teams_settle_beside_programs(void **state) {
    (void)state;
    for (int busy = 0; busy <= 8; busy++) {
        for (int calm = 0; calm <= 200; calm += 50) {
            machine m = make_machine(16, busy);
            m.calm = calm;
            run_for(&m, 4000);
            const double at_work = run_for(&m, 20000);
            assert_int_equal(m.least, 16 - busy);
            assert_true(at_work > 0.93 * (16 - busy));
            /* The programs end. */
            m.busy = 0;
            run_for(&m, 2500);
            assert_int_equal(m.team.size, 16);
            run_for(&m, 5000);
            assert_int_equal(m.least, 16);
        }
    }
}

static void teams_grow_to_what_is_free(void **state) {
    (void)state;
    machine m = make_machine(16, 8);
    run_for(&m, 4000);
    for (int busy = 7; busy > 0; busy -= 2) {
        m.busy = busy;
        run_for(&m, 4000);
        const double at_work = run_for(&m, 20000);
        assert_int_equal(m.least, 16 - busy);
        assert_true(at_work > 0.93 * (16 - busy));
    }
}

/* A trial costs no more than a twentieth, whatever a run takes. */
static void trials_are_paid_for(void **state) {
    (void)state;
    machine m = make_machine(16, 1);
    run_for(&m, 4000);
    int64_t last = 0, longest = 0;
    int trials = 0;
    while (m.now < INT64_C(30000) * MILLISECOND) {
        const int size = m.team.size;
        const int64_t begin = m.now;
        run(&m);
        if (size == 16) {
            longest = m.now - begin > longest ? m.now - begin : longest;
        } else if (m.team.size == 16) {
            assert_true(last == 0 || m.now - last > 15 * longest);
            last = m.now;
            trials++;
        }
    }
    assert_true(trials > 20);
    assert_true(longest > 40 * MILLISECOND);
}

/* What a trial lost is all that it lost until the team is as small as before, and nothing that went well. */
static void trials_lose_what_went_badly(void **state) {
    (void)state;
    const int delays[16] = {70, 70, 70, 70};
    sl_team team = sl_team_begin(16, 16);
    judged(&team, delays, 2);
    assert_int_equal(team.size, 13);
    judged(&team, (int[16]){70}, 1);
    assert_int_equal(team.size, 12);
    judged(&team, (int[16]){0}, 1);
    assert_true(sl_team_try(&team, team.trial_at));
    judged(&team, delays, 1);
    assert_int_equal(team.size, 13);
    judged(&team, (int[16]){70}, 1);
    assert_int_equal(team.size, 12);
    assert_true(team.trial_at > 20 * 2 * 10 * MILLISECOND);
    /* Of the longer trial only its end is lost, which is 40 ms at most. */
    team = sl_team_begin(16, 16);
    judged(&team, (int[16]){90}, 2);
    assert_int_equal(team.size, 15);
    assert_true(sl_team_try(&team, team.trial_at));
    const sl_team_seen uneven = {.taken = 20 * MILLISECOND, .waited = 6 * 20 * MILLISECOND};
    for (int t = 0; t < 50; t++) {
        sl_team_judge(&team, &uneven, t * uneven.taken);
    }
    assert_int_equal(team.size, 16);
    judged(&team, (int[16]){90}, 2);
    assert_int_equal(team.size, 15);
    assert_true(team.trial_at <= (2 * 20 + 20 * 40) * MILLISECOND);
    /* Nor more than it took. */
    assert_true(sl_team_try(&team, team.trial_at));
    const int64_t now = team.trial_at;
    const sl_team_seen late = {.taken = 20 * MILLISECOND,
                               .waited = 900 * MILLISECOND,
                               .delayed = 19 * MILLISECOND,
                               .kept = 19 * MILLISECOND};
    sl_team_judge(&team, &late, now);
    assert_int_equal(team.size, 15);
    assert_int_equal(team.trial_at, now + 20 * late.taken);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_delayed_thread_of_sixteen_leaves),
        cmocka_unit_test(as_many_leave_as_were_delayed),
        cmocka_unit_test(two_threads_beside_a_program_become_one),
        cmocka_unit_test(quiet_machines_keep_their_threads),
        cmocka_unit_test(teams_settle_beside_programs),
        cmocka_unit_test(teams_grow_to_what_is_free),
        cmocka_unit_test(trials_are_paid_for),
        cmocka_unit_test(trials_lose_what_went_badly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
