/* What a request changes about logits: the adjustments of every output, against the definition said over
 * again from all tokens of the sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "sched/adjust.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { CONTEXT = 4000, VOCABULARY = 5000, CONSTANTS = 40 };

static uint32_t seed;
static int32_t draw(int32_t below) {
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((seed >> 8) % (uint32_t)below);
}

/* ---- the definition ---- */

typedef struct constants {
    float bias[VOCABULARY];
    bool end[VOCABULARY];
} constants;

/* all[token]: what changes about every token of the vocabulary. */
static void define(const sl_adjust_options *o, const constants *c, const int32_t *tokens, int32_t count,
                   sl_adjustment all[VOCABULARY]) {
    static int32_t seen[VOCABULARY], generated[VOCABULARY];
    const int32_t window = count > o->window ? count - o->window : 0;
    const int32_t first = o->repetition == 1 && window < o->prompt ? o->prompt : window;
    int32_t different = 0;
    memset(seen, 0, sizeof seen);
    memset(generated, 0, sizeof generated);
    for (int32_t token = 0; token < VOCABULARY; token++) {
        const bool banned = c->end[token] && count - o->prompt < o->minimum;
        all[token] = (sl_adjustment){token, banned ? -INFINITY : c->bias[token], 1, 0};
    }
    for (int32_t i = first; i < count; i++) {
        generated[tokens[i]] += i >= o->prompt;
    }
    for (int32_t i = count - 1; i >= first && different < SL_MOST_PENALISED; i--) {
        const int32_t token = tokens[i];
        different += !seen[token]++;
        all[token].repetition = o->repetition;
        all[token].after = generated[token] ? -(o->presence + o->frequency * (float)generated[token]) : 0;
    }
}

static bool is_changed(const sl_adjustment *a) {
    return a->before != 0 || a->repetition != 1 || a->after != 0;
}

static bool are_equal(const sl_adjustment *a, const sl_adjustment *b) {
    return a->before == b->before && a->repetition == b->repetition && a->after == b->after;
}

static void check(sl_adjust *adjust, const sl_adjust_options *o, const constants *c, const int32_t *tokens,
                  int32_t count) {
    static sl_adjustment list[SL_ADJUSTMENTS];
    static sl_adjustment all[VOCABULARY];
    static const sl_adjustment *of[VOCABULARY];
    const int32_t written = sl_adjust_write(adjust, tokens, count, list);
    assert_in_range(written, 0, SL_ADJUSTMENTS);
    memset(of, 0, sizeof of);
    define(o, c, tokens, count, all);
    for (int32_t i = 0; i < written; i++) {
        assert_in_range(list[i].token, 0, VOCABULARY - 1);
        assert_null(of[list[i].token]); /* no token twice */
        of[list[i].token] = &list[i];
    }
    for (int32_t token = 0; token < VOCABULARY; token++) {
        const sl_adjustment none = {.repetition = 1}, *e = &all[token], *got = of[token] ? of[token] : &none;
        if (is_changed(e) != (of[token] != NULL) || !are_equal(e, got)) {
            fail_msg("%d tokens: token %d: %g %g %g expected, %g %g %g written", count, token,
                     (double)e->before, (double)e->repetition, (double)e->after, (double)got->before,
                     (double)got->repetition, (double)got->after);
        }
    }
}

/* ---- tests ---- */

static sl_adjust *create(const sl_adjust_options *o, constants *c) {
    sl_adjust *adjust;
    sl_error error;
    memset(c, 0, sizeof *c);
    assert_int_equal(sl_adjust_create(o, &adjust, &error), 0);
    for (int i = 0; i < o->constants / 2; i++) {
        const int32_t biased = draw(30), end = draw(30);
        if (c->bias[biased] == 0) {
            c->bias[biased] = draw(4) ? (float)(draw(5) + 1) : -INFINITY;
            assert_int_equal(sl_adjust_bias(adjust, biased, c->bias[biased], &error), 0);
        }
        c->end[end] = true;
        assert_int_equal(sl_adjust_end(adjust, end, &error), 0);
    }
    return adjust;
}

static void adjustments_are_as_defined(void **state) {
    (void)state;
    static const int32_t windows[] = {1, 2, 5, 64, 300, INT32_MAX};
    static const float repetitions[] = {1, 1.25f, 0.5f}, presences[] = {0, 0.5f, -1},
                       frequencies[] = {0, 0.25f};
    static int32_t tokens[CONTEXT];
    static constants c;
    for (uint32_t round = 1; round <= 300; round++) {
        seed = round * 7919;
        const sl_adjust_options o = {.repetition = repetitions[draw(3)],
                                     .presence = presences[draw(3)],
                                     .frequency = frequencies[draw(2)],
                                     .window = windows[draw(6)],
                                     .prompt = 1 + draw(draw(2) ? 10 : 400),
                                     .minimum = draw(2) ? draw(30) : 0,
                                     .context = CONTEXT,
                                     .vocabulary = VOCABULARY,
                                     .constants = draw(3) * CONSTANTS / 2};
        const int32_t alphabet = draw(2) ? 30 : 2000, generate = 60;
        for (int32_t i = 0; i < o.prompt + generate; i++) {
            tokens[i] = draw(alphabet);
        }
        sl_adjust *adjust = create(&o, &c);
        assert_int_equal(sl_adjust_reads_tokens(adjust),
                         o.repetition != 1 || o.presence != 0 || o.frequency != 0);
        for (int32_t count = o.prompt; count <= o.prompt + generate; count += draw(3)) {
            check(adjust, &o, &c, tokens, count);
        }
        sl_adjust_destroy(adjust);
    }
}

/* More different tokens than penalties reach; of some the last place in the window is early, or late. */
static void the_latest_of_many_tokens_are_penalised(void **state) {
    (void)state;
    static int32_t tokens[CONTEXT];
    static constants c;
    const sl_adjust_options o = {.repetition = 1.5f,
                                 .frequency = 0.5f,
                                 .window = 3000,
                                 .prompt = 1500,
                                 .context = CONTEXT,
                                 .vocabulary = VOCABULARY,
                                 .constants = CONSTANTS};
    seed = 5;
    for (int32_t i = 0; i < CONTEXT; i++) {
        tokens[i] = draw(8) ? i : draw(i + 1);
    }
    sl_adjust *adjust = create(&o, &c);
    for (int32_t count = 1500; count <= CONTEXT; count += 313) {
        check(adjust, &o, &c, tokens, count);
    }
    static sl_adjustment list[SL_ADJUSTMENTS];
    assert_in_range(sl_adjust_write(adjust, tokens, CONTEXT, list), SL_MOST_PENALISED,
                    SL_MOST_PENALISED + CONSTANTS);
    sl_adjust_destroy(adjust);
}

static void tokens_are_not_read_for_what_does_not_change(void **state) {
    (void)state;
    static constants c;
    const sl_adjust_options o = {.repetition = 1,
                                 .window = 64,
                                 .prompt = 10,
                                 .minimum = 3,
                                 .context = CONTEXT,
                                 .vocabulary = VOCABULARY,
                                 .constants = CONSTANTS};
    seed = 3;
    sl_adjust *adjust = create(&o, &c);
    assert_false(sl_adjust_reads_tokens(NULL));
    assert_false(sl_adjust_reads_tokens(adjust));
    static sl_adjustment list[SL_ADJUSTMENTS];
    int32_t banned = 0, still = 0;
    const int32_t early = sl_adjust_write(adjust, NULL, 12, list);
    for (int32_t i = 0; i < early; i++) {
        banned += list[i].before == -INFINITY;
    }
    const int32_t late = sl_adjust_write(adjust, NULL, 13, list);
    for (int32_t i = 0; i < late; i++) {
        still += list[i].before == -INFINITY;
        assert_true(list[i].before == c.bias[list[i].token]);
    }
    assert_true(banned > still);
    sl_adjust_destroy(adjust);
}

static void penalties_stay_finite(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 2, 2, 2};
    for (int sign = -1; sign <= 1; sign += 2) {
        const sl_adjust_options o = {.repetition = 1,
                                     .frequency = (float)sign * 3e38f,
                                     .window = 64,
                                     .prompt = 1,
                                     .context = CONTEXT,
                                     .vocabulary = VOCABULARY};
        sl_adjust *adjust;
        sl_error error;
        sl_adjustment list[2];
        assert_int_equal(sl_adjust_create(&o, &adjust, &error), 0);
        assert_int_equal(sl_adjust_write(adjust, tokens, 4, list), 1);
        assert_int_equal(list[0].token, 2);
        assert_true(list[0].after == (float)-sign * FLT_MAX);
        sl_adjust_destroy(adjust);
    }
}

static void refused(int result, const sl_error *error, const char *message) {
    assert_int_equal(result, SL_ERR_INVALID);
    if (!strstr(error->message, message)) {
        fail_msg("\"%s\" expected, got \"%s\"", message, error->message);
    }
}

static void constants_are_checked(void **state) {
    (void)state;
    const sl_adjust_options o = {.repetition = 1,
                                 .window = 64,
                                 .minimum = 1,
                                 .context = CONTEXT,
                                 .vocabulary = VOCABULARY,
                                 .constants = SL_MOST_BIASED + SL_MOST_ENDS};
    sl_adjust *adjust;
    sl_error error;
    assert_int_equal(sl_adjust_create(&o, &adjust, &error), 0);
    assert_int_equal(sl_adjust_bias(adjust, 7, 0, &error), 0);
    refused(sl_adjust_bias(adjust, 7, 1, &error), &error, "logit_bias: token 7 is there twice");
    refused(sl_adjust_bias(adjust, -1, 1, &error), &error, "logit_bias: token -1 is not in the vocabulary");
    refused(sl_adjust_bias(adjust, VOCABULARY, 1, &error), &error, "logit_bias: token 5000 is not in");
    refused(sl_adjust_bias(adjust, 8, NAN, &error), &error, "logit_bias: token 8: ");
    refused(sl_adjust_bias(adjust, 9, INFINITY, &error), &error, "logit_bias: token 9: inf");
    refused(sl_adjust_end(adjust, VOCABULARY, &error), &error, "stop_tokens: token 5000");
    for (int32_t i = 1; i < SL_MOST_BIASED; i++) {
        assert_int_equal(sl_adjust_bias(adjust, 100 + i, -INFINITY, &error), 0);
    }
    refused(sl_adjust_bias(adjust, 3000, 1, &error), &error, "logit_bias: more than 1024");
    for (int32_t i = 0; i < SL_MOST_ENDS; i++) {
        assert_int_equal(sl_adjust_end(adjust, 2000 + i, &error), 0);
        assert_int_equal(sl_adjust_end(adjust, 2000 + i / 2, &error), 0);
    }
    refused(sl_adjust_end(adjust, 4000, &error), &error, "stop_tokens: with `minimum` more than 1024");
    static sl_adjustment list[SL_ADJUSTMENTS];
    assert_int_equal(sl_adjust_write(adjust, NULL, 0, list), SL_MOST_BIASED - 1 + SL_MOST_ENDS);
    assert_int_equal(sl_adjust_write(adjust, NULL, 1, list), SL_MOST_BIASED - 1);
    sl_adjust_destroy(adjust);
}

static void memory_failures_leave_nothing(void **state) {
    (void)state;
    const sl_adjust_options o = {
        .repetition = 2, .window = 64, .context = CONTEXT, .vocabulary = VOCABULARY, .constants = 9};
    const uint64_t before = sl_alloc_live_bytes();
    sl_error error;
    sl_adjust *adjust = NULL;
    int nth = 0, result = SL_ERR_NOMEM;
    while (result) {
        sl_alloc_fail_at((uint64_t)++nth);
        result = sl_adjust_create(&o, &adjust, &error);
        if (result) {
            assert_int_equal(result, SL_ERR_NOMEM);
            assert_null(adjust);
            assert_int_equal(sl_alloc_live_bytes(), before);
        }
    }
    sl_alloc_fail_at(0);
    assert_true(nth > 2);
    sl_adjust_destroy(adjust);
    sl_adjust_destroy(NULL);
    assert_int_equal(sl_alloc_live_bytes(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adjustments_are_as_defined),
        cmocka_unit_test(the_latest_of_many_tokens_are_penalised),
        cmocka_unit_test(tokens_are_not_read_for_what_does_not_change),
        cmocka_unit_test(penalties_stay_finite),
        cmocka_unit_test(constants_are_checked),
        cmocka_unit_test(memory_failures_leave_nothing),
    };
    return cmocka_run_group_tests_name("adjust", tests, NULL, NULL);
}
