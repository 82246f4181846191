/* How many drafts are worth it: against the sum written out, for costs of steps that are made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sched/draft.h"
#include "sched/pace.h"

#include <math.h>
#include <string.h>

/* Steps of a device whose time is `fixed`, and `row` for each row beyond `free` ones. */
typedef struct costs {
    double fixed, row;
    int32_t free;
} costs;

static double seconds(const costs *c, int32_t rows) {
    return c->fixed + c->row * (rows > c->free ? rows - c->free : 0);
}

static sl_pace measured(const costs *c, int32_t rows) {
    sl_pace pace = {0};
    for (int round = 0; round < 60; round++) {
        for (int32_t r = 1; r <= rows; r++) {
            sl_pace_measured(&pace, r, seconds(c, r));
        }
    }
    return pace;
}

/* Tokens a second with so many drafts, each right with the same probability if those before it are. */
static double rate(const costs *c, int32_t rows, double tokens, double chance, int32_t drafts) {
    double gain = 0;
    for (int32_t i = 1; i <= drafts; i++) {
        gain += pow(chance, i);
    }
    return (tokens + gain) / seconds(c, rows + drafts);
}

static void as_many_as_give_most_tokens_a_second(void **state) {
    (void)state;
    const costs devices[] = {{1, 0.02, 0}, {1, 0.3, 0}, {0.1, 1, 0}, {1, 0.5, 4}, {1, 0.001, 8}};
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        const sl_pace pace = measured(&devices[d], 64);
        for (int percent = 0; percent <= 100; percent += 5) {
            for (int32_t sequences = 1; sequences <= 40; sequences += 13) {
                const sl_luck luck = {.chances = {.right = {percent / 100.0}, .made = 1}};
                const int32_t chosen = sl_pace_choose(&pace, &luck, sequences, sequences, 8);
                double best = 0;
                for (int32_t k = 0; k <= 8; k++) {
                    best = fmax(best, rate(&devices[d], sequences, sequences, percent / 100.0, k));
                }
                /* What was measured fades a little until it is measured again. */
                assert_true(rate(&devices[d], sequences, sequences, percent / 100.0, chosen) > 0.95 * best);
            }
        }
    }
    /* Where every row costs as much, drafts are for those that are right; where many sequences fill the
     * device, for nobody. */
    const sl_pace linear = measured(&devices[2], 64);
    const sl_luck half = {.chances = {.right = {0.5}, .made = 1}};
    assert_int_equal(sl_pace_choose(&linear, &half, 1, 1, 8), 0);
    assert_int_equal(sl_pace_choose(&linear, &half, 40, 40, 8), 0);
    assert_true(sl_pace_is_full(&linear, 40, 40));
    const sl_pace cheap = measured(&devices[4], 64);
    assert_int_equal(sl_pace_choose(&cheap, &half, 1, 1, 8), 8); /* (2 - 2^-8) / 1.001 > 2 - 2^-7 */
    assert_false(sl_pace_is_full(&cheap, 1, 1));
}

static void who_is_wrong_is_asked_seldom(void **state) {
    (void)state;
    sl_pace pace = measured(&(costs){1, 0.3, 0}, 16);
    sl_luck luck = sl_luck_begin(&pace);
    int drafts = 0;
    for (int token = 0; token < 2000; token++) {
        if (luck.pause == 0) {
            const int32_t chosen = sl_pace_choose(&pace, &luck, 1, 1, 8);
            if (chosen == 0) {
                sl_luck_rest(&luck);
            }
            drafts += chosen > 0 ? chosen : 1;
            sl_pace_note(&pace, &luck, chosen > 0 ? chosen : 1, 0);
        }
        sl_luck_pass(&luck);
    }
    assert_in_range(drafts, 10, 60);
    /* The next sequence begins with what that one taught. */
    const sl_luck next = sl_luck_begin(&pace);
    assert_int_equal(sl_pace_choose(&pace, &next, 1, 1, 8), 0);
    /* And who is right again is asked again. */
    luck.pause = 0;
    for (int i = 0; i < 20; i++) {
        sl_pace_note(&pace, &luck, 1, 1);
    }
    assert_int_equal(luck.pause, 0);
    assert_true(sl_pace_choose(&pace, &luck, 1, 1, 8) > 4);
}

/* Seconds of `tokens` tokens of a new engine, whose first step with so many rows is slow, and whose drafts
 * are right or not; `draft` is what each takes. */
static double live(const costs *c, double draft, bool right, int32_t tokens, int32_t sequences) {
    sl_pace pace = {0};
    bool met[SL_PACE_ROWS + 1] = {false};
    double sum = 0;
    for (int32_t s = 0; s < sequences; s++) {
        sl_luck luck = sl_luck_begin(&pace);
        for (int32_t left = tokens; left > 0;) {
            const bool open = luck.pause == 0 && left > 1;
            const int32_t worth = open ? sl_pace_choose(&pace, &luck, 1, 1, left > 8 ? 8 : left - 1) : 0;
            if (open && worth == 0) {
                sl_luck_rest(&luck);
            }
            const int32_t drafts = open && worth == 0 && !sl_pace_is_full(&pace, 1, 1) ? 1 : worth;
            const double step = seconds(c, 1 + drafts) * (met[1 + drafts] ? 1 : 10);
            /* All but the first steps count. */
            sum += met[1 + drafts] ? step + drafts * draft : 0;
            met[1 + drafts] = true;
            sl_pace_measured(&pace, 1 + drafts, step);
            sl_pace_drafted(&pace, drafts, drafts * draft);
            for (int32_t i = 0; i < 1 + (right ? drafts : 0); i++, left--) {
                sl_luck_pass(&luck);
            }
            if (drafts > 0) {
                sl_pace_note(&pace, &luck, drafts, right ? drafts : 0);
            }
        }
    }
    return sum;
}

static void a_new_engine_finds_what_is_worth_it(void **state) {
    (void)state;
    const struct {
        costs device;
        double draft;
    } cases[] = {{{2.3, 0.45, 0}, 0.55},
                 {{1, 0.1, 0}, 0.3},
                 {{1, 1, 0}, 0.2},
                 {{1, 0.02, 0}, 0.02},
                 {{1, 0.3, 4}, 0.1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const costs *c = &cases[i].device;
        const double draft = cases[i].draft;
        double best = INFINITY;
        for (int32_t k = 0; k <= 8; k++) {
            best = fmin(best, (seconds(c, 1 + k) + k * draft) / (1 + k));
        }
        assert_true(live(c, draft, true, 256, 4) < 1.05 * best * 4 * 256);
        assert_true(live(c, draft, false, 256, 4) < 1.05 * seconds(c, 1) * 4 * 256);
    }
}

/* Three drafts are right each time and the fourth never is: three are asked. */
static void each_draft_has_a_chance_of_its_own(void **state) {
    (void)state;
    sl_pace pace = measured(&(costs){1, 0.2, 0}, 16);
    sl_luck luck = sl_luck_begin(&pace);
    for (int i = 0; i < 40; i++) {
        sl_pace_note(&pace, &luck, 6, 3);
    }
    assert_int_equal(sl_pace_choose(&pace, &luck, 1, 1, 8), 3);
    assert_true(sl_luck_gain(&luck, 3) > 2.9);
    assert_true(sl_luck_gain(&luck, 8) < 3.1);
    /* The next sequence begins with what that one taught. */
    const sl_luck next = sl_luck_begin(&pace);
    assert_int_equal(sl_pace_choose(&pace, &next, 1, 1, 8), 3);
}

static void more_rows_than_are_told_apart(void **state) {
    (void)state;
    sl_pace pace = {0};
    const sl_luck luck = sl_luck_begin(&pace);
    assert_in_range(sl_pace_choose(&pace, &luck, 3 * SL_PACE_ROWS, 3 * SL_PACE_ROWS, 4), 0, 4);
}

static void one_slow_step_is_forgotten(void **state) {
    (void)state;
    const costs device = {1, 0.05, 0};
    sl_pace pace = measured(&device, 9);
    const sl_luck luck = {.chances = {.right = {0.9}, .made = 1}};
    const int32_t usual = sl_pace_choose(&pace, &luck, 1, 1, 8);
    assert_true(usual >= 4);
    sl_pace_measured(&pace, 1 + usual, 100);
    assert_true(sl_pace_choose(&pace, &luck, 1, 1, 8) >= 3);
    const double wrong[] = {-1, 0, INFINITY, NAN, 1e9};
    const sl_pace before = pace;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sl_pace_measured(&pace, 3, wrong[i]);
        sl_pace_drafted(&pace, 3, wrong[i]);
    }
    assert_memory_equal(&pace, &before, sizeof pace);
    /* Drafts that take as long as they save are not worth it. */
    sl_pace_drafted(&pace, 4, 8);
    assert_int_equal(sl_pace_choose(&pace, &luck, 1, 1, 8), 0);
}

/* ---- prompt lookup ---- */

static int32_t look_up(int32_t longest, int32_t shortest, const int32_t *tokens, int32_t count, int32_t most,
                       int32_t *drafts) {
    sl_ngram ngram = {longest, shortest};
    const sl_draft_query query = {tokens, count, 0, most};
    return sl_ngram_draft(&ngram, &query, drafts);
}

static void what_came_before_is_drafted(void **state) {
    (void)state;
    int32_t drafts[8];
    const int32_t text[] = {1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3};
    /* Three tokens, and not the later place of two. */
    assert_int_equal(look_up(4, 1, text, 13, 3, drafts), 3);
    assert_memory_equal(drafts, ((int32_t[]){4, 5, 9}), 3 * sizeof *drafts);
    assert_int_equal(look_up(2, 1, text, 13, 3, drafts), 3);
    assert_memory_equal(drafts, ((int32_t[]){7, 8, 1}), 3 * sizeof *drafts);
    /* Not the last tokens themselves, and nothing shorter than is wanted. */
    assert_int_equal(look_up(4, 4, text, 13, 3, drafts), 0);
    assert_int_equal(look_up(4, 1, text, 5, 3, drafts), 0);
    assert_int_equal(look_up(4, 1, text, 1, 3, drafts), 0);
    /* What repeats itself goes on past the end. */
    const int32_t round[] = {5, 6, 5, 6, 5};
    assert_int_equal(look_up(3, 1, round, 5, 6, drafts), 6);
    assert_memory_equal(drafts, ((int32_t[]){6, 5, 6, 5, 6, 5}), 6 * sizeof *drafts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_as_give_most_tokens_a_second),
        cmocka_unit_test(who_is_wrong_is_asked_seldom),
        cmocka_unit_test(a_new_engine_finds_what_is_worth_it),
        cmocka_unit_test(each_draft_has_a_chance_of_its_own),
        cmocka_unit_test(more_rows_than_are_told_apart),
        cmocka_unit_test(one_slow_step_is_forgotten),
        cmocka_unit_test(what_came_before_is_drafted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
