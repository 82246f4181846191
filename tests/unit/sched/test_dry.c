/* DRY, against its definition: every place of the window compared with the end, token by token, and breakers
 * looked for in the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "sched/dry.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { CONTEXT = 600, VOCABULARY = 12 };

static uint32_t seed;
static int32_t draw(int32_t below) {
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((seed >> 8) % (uint32_t)below);
}

/* Some are part of a breaker, some have one inside, one is empty. */
static const char *const TEXTS[VOCABULARY] = {"a", "b",  "c", "\n", "x:y", "-",
                                              "-", "->", "",  "ab", "<",   "end>"};

static const char *bytes(const void *owner, int32_t token, size_t *length) {
    (void)owner;
    *length = strlen(TEXTS[token]);
    return TEXTS[token];
}

/* Does the text of a breaker end inside the token at `at`? */
static bool breaks(const sl_dry_options *o, const int32_t *tokens, int32_t at) {
    static char text[CONTEXT * 8];
    size_t length = 0, begin = 0;
    for (int32_t i = 0; i <= at; i++) {
        begin = length;
        length += (size_t)snprintf(text + length, sizeof text - length, "%s", TEXTS[tokens[i]]);
    }
    for (size_t b = 0; b < o->breaker_count; b++) {
        const size_t size = strlen(o->breakers[b]);
        for (size_t end = begin + 1; end <= length; end++) {
            if (end >= size && memcmp(text + end - size, o->breakers[b], size) == 0) {
                return true;
            }
        }
    }
    return false;
}

static void check(const sl_dry_options *o, sl_dry *dry, const int32_t *tokens, const bool *is_break,
                  int32_t count) {
    int32_t longest[VOCABULARY] = {0}, found, written[VOCABULARY] = {0};
    const int32_t first = count > o->window ? count - o->window : 0;
    for (int32_t next = first + 1; next < count; next++) {
        int32_t length = 0;
        while (next - 1 - length >= first && tokens[next - 1 - length] == tokens[count - 1 - length] &&
               !is_break[next - 1 - length] && !is_break[count - 1 - length]) {
            length++;
        }
        if (!is_break[next] && length > longest[tokens[next]]) {
            longest[tokens[next]] = length;
        }
    }
    const sl_repeating *list = sl_dry_find(dry, tokens, count, &found);
    for (int32_t i = 0; i < found; i++) {
        const int32_t over = longest[list[i].token] - o->allowed_length;
        assert_int_equal(written[list[i].token]++, 0);
        assert_true(over >= 0);
        const double expected = (double)o->multiplier * pow((double)o->base, over);
        assert_true(fabs((double)list[i].penalty - fmin(expected, 3.4028234663852886e38)) <= 1e-6 * expected);
    }
    for (int32_t token = 0; token < VOCABULARY; token++) {
        if (longest[token] >= o->allowed_length && !written[token]) {
            fail_msg("%d tokens: %d, behind a match of %d, is not there", count, token, longest[token]);
        }
    }
}

static void matches_are_the_definitions(void **state) {
    static const char *const breakers[] = {"\n", ":", "-->", "<end", "b"};
    static bool is_break[CONTEXT];
    static int32_t tokens[CONTEXT];
    int64_t penalised = 0;
    (void)state;
    seed = 1;
    for (int round = 0; round < 60; round++) {
        sl_error error;
        sl_dry *dry;
        const sl_dry_options o = {.multiplier = 0.8f,
                                  .base = round % 7 == 6 ? 900.0f : 1.75f,
                                  .allowed_length = 1 + round % 4,
                                  .window = round % 3 ? 1 + draw(200) : INT32_MAX,
                                  .context = CONTEXT,
                                  .vocabulary = VOCABULARY,
                                  .breakers = breakers,
                                  .breaker_count = (size_t)(round % 6),
                                  .bytes = bytes};
        assert_int_equal(sl_dry_create(&o, &dry, &error), 0);
        const int32_t letters = 2 + draw(VOCABULARY - 2), prompt = draw(100);
        for (int32_t i = 0; i < CONTEXT; i++) {
            const bool again = i > 40 && draw(10) > 0;
            tokens[i] = again ? tokens[i - 1 - draw(3)] : draw(letters);
            if (i > 60 && draw(4) == 0) {
                const int32_t from = draw(i - 30), run = draw(20);
                for (int32_t k = 0; k < run && i < CONTEXT; k++) {
                    tokens[i++] = tokens[from + k];
                }
                i--;
            }
        }
        for (int32_t i = 0; i < CONTEXT; i++) {
            is_break[i] = breaks(&o, tokens, i);
        }
        for (int32_t count = prompt; count < CONTEXT; count += 1 + draw(3) / 2) {
            int32_t found;
            check(&o, dry, tokens, is_break, count);
            sl_dry_find(dry, tokens, count, &found);
            penalised += found;
        }
        sl_dry_destroy(dry);
    }
    assert_true(penalised > 10000);
}

/* The example of pull request 5677: what went on after "b c d" last time loses most. */
static void a_known_example(void **state) {
    static const int32_t tokens[] = {0, 1, 2, 5, 0, 1, 2};
    const sl_dry_options o = {.multiplier = 1,
                              .base = 2,
                              .allowed_length = 2,
                              .window = INT32_MAX,
                              .context = 16,
                              .vocabulary = VOCABULARY,
                              .bytes = bytes};
    sl_error error;
    sl_dry *dry;
    int32_t found;
    (void)state;
    assert_int_equal(sl_dry_create(&o, &dry, &error), 0);
    const sl_repeating *list = sl_dry_find(dry, tokens, 7, &found);
    assert_int_equal(found, 1);
    assert_int_equal(list[0].token, 5);
    assert_true(list[0].penalty == 2.0f); /* a match of 3: 1 * 2^(3 - 2) */
    sl_dry_destroy(dry);
}

static void a_long_repetition_costs_no_time(void **state) {
    enum { MANY = 100000 };
    const sl_dry_options o = {.multiplier = 1,
                              .base = 2,
                              .allowed_length = 2,
                              .window = INT32_MAX,
                              .context = MANY,
                              .vocabulary = VOCABULARY,
                              .bytes = bytes};
    int32_t *tokens = sl_alloc_zero(MANY, sizeof *tokens);
    sl_error error;
    sl_dry *dry;
    int32_t found;
    (void)state;
    assert_int_equal(sl_dry_create(&o, &dry, &error), 0);
    for (int32_t count = MANY - 50; count < MANY; count++) {
        assert_non_null(sl_dry_find(dry, tokens, count, &found));
        assert_int_equal(found, 1);
    }
    sl_dry_destroy(dry);
    sl_free(tokens);
}

static void what_cannot_be_is_refused(void **state) {
    static const char *const empty[] = {"a", ""};
    sl_dry_options o = {.multiplier = 1,
                        .base = 2,
                        .allowed_length = 2,
                        .window = 9,
                        .context = 16,
                        .vocabulary = VOCABULARY,
                        .bytes = bytes,
                        .breakers = empty,
                        .breaker_count = 2};
    sl_error error;
    sl_dry *dry;
    (void)state;
    assert_int_equal(sl_dry_create(&o, &dry, &error), SL_ERR_INVALID);
    assert_string_equal(error.message, "dry_breakers 1: is empty");
    o.breaker_count = SL_MOST_BREAKERS + 1;
    assert_int_equal(sl_dry_create(&o, &dry, &error), SL_ERR_INVALID);
    assert_null(dry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_are_the_definitions),
        cmocka_unit_test(a_known_example),
        cmocka_unit_test(a_long_repetition_costs_no_time),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
