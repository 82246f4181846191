/* Bounds on thoughts: where a thought begins and ends, whatever tokens its marks come in, and when it has to
 * be closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "sched/thought.h"

#include <string.h>

static const char *const TEXTS[] = {"word", " ",     "\n", "<think>", "</think>",   "<thi", "nk>",
                                    "</",   "think", ">",  "<",       "x</think>y", ""};
enum {
    WORD,
    SPACE,
    LINE,
    OPEN,
    CLOSE,
    OPEN_1,
    OPEN_2,
    CLOSE_1,
    CLOSE_2,
    CLOSE_3,
    ANGLE,
    CLOSE_INSIDE,
    EMPTY
};

static const char *bytes(const void *owner, int32_t token, size_t *length) {
    (void)owner;
    *length = strlen(TEXTS[token]);
    return TEXTS[token];
}

enum { ONCE = -2 };

/* opening: of later thoughts; ONCE: there are none. */
static sl_thought *begin(bool open, int32_t budget, int32_t opening) {
    static const int32_t closing[] = {LINE, CLOSE};
    const sl_thought_options options = {.open = open,
                                        .again = opening != ONCE,
                                        .opening = opening == ONCE ? -1 : opening,
                                        .open_mark = "<think>",
                                        .close_mark = "</think>",
                                        .budget = budget,
                                        .closing = closing,
                                        .closing_count = 2,
                                        .bytes = bytes};
    sl_thought *thought;
    sl_error error;
    assert_int_equal(sl_thought_create(&options, &thought, &error), 0);
    return thought;
}

/* After how many of the tokens it is over for the first time; -1: never. */
static int over_after(bool open, int32_t budget, int32_t opening, const int32_t *tokens, int count) {
    sl_thought *thought = begin(open, budget, opening);
    int found = sl_thought_is_over(thought) ? 0 : -1;
    for (int i = 0; i < count; i++) {
        sl_thought_take(thought, tokens[i]);
        found = found < 0 && sl_thought_is_over(thought) ? i + 1 : found;
    }
    sl_thought_destroy(thought);
    return found;
}

#define AFTER(open, budget, ...)                                                                             \
    over_after(open, budget, ONCE, (const int32_t[]){__VA_ARGS__},                                           \
               sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t))
#define AFTER_AGAIN(opening, budget, ...)                                                                    \
    over_after(false, budget, opening, (const int32_t[]){__VA_ARGS__},                                       \
               sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t))

static void the_bound_is_kept(void **state) {
    (void)state;
    assert_int_equal(AFTER(true, 0, WORD), 0);
    assert_int_equal(AFTER(true, 3, WORD, SPACE, WORD, WORD), 3);
    assert_int_equal(AFTER(true, 3, WORD, EMPTY, WORD, WORD), 3); /* every token counts */
    assert_int_equal(AFTER(true, 5, WORD, SPACE, WORD, WORD), -1);
    /* closed in time, in one token, in three, and inside of one */
    assert_int_equal(AFTER(true, 3, WORD, CLOSE, WORD, WORD, WORD), -1);
    assert_int_equal(AFTER(true, 4, WORD, CLOSE_1, CLOSE_2, CLOSE_3, WORD, WORD), -1);
    assert_int_equal(AFTER(true, 3, WORD, CLOSE_1, CLOSE_2, CLOSE_3), 3);
    assert_int_equal(AFTER(true, 2, CLOSE_INSIDE, WORD, WORD), -1);
    assert_int_equal(AFTER(true, 4, ANGLE, CLOSE, WORD, WORD, WORD), -1); /* "<</think>" */
    /* what is opened, behind blanks; else there is no thought */
    assert_int_equal(AFTER(false, 0, SPACE, LINE, OPEN, WORD), 3);
    assert_int_equal(AFTER(false, 2, OPEN_1, OPEN_2, WORD, WORD, WORD), 4);
    assert_int_equal(AFTER(false, 1, WORD, OPEN, WORD, WORD), -1);
    assert_int_equal(AFTER(false, 0, OPEN_1, WORD, OPEN, WORD), -1);
    /* once */
    assert_int_equal(AFTER(false, 2, OPEN, WORD, CLOSE, OPEN, WORD, WORD, WORD), -1);
}

/* Formats in which a reply may think more than once: all its thoughts share the budget. */
static void later_thoughts_count(void **state) {
    (void)state;
    assert_int_equal(AFTER_AGAIN(-1, 4, OPEN, WORD, CLOSE, WORD, OPEN, WORD, WORD, WORD), 7);
    assert_int_equal(AFTER_AGAIN(OPEN, 4, OPEN, WORD, CLOSE, WORD, OPEN, WORD, WORD, WORD), 7);
    assert_int_equal(AFTER_AGAIN(OPEN, 2, OPEN, WORD, CLOSE, WORD, OPEN, WORD), 5); /* none is left for it */
    assert_int_equal(AFTER_AGAIN(OPEN, 9, OPEN, CLOSE, OPEN, CLOSE, OPEN, WORD, WORD), -1);
    /* the first one behind other text */
    assert_int_equal(AFTER_AGAIN(-1, 1, WORD, OPEN, WORD), 3);
    assert_int_equal(AFTER_AGAIN(-1, 0, WORD, ANGLE, OPEN, WORD), 3); /* "<<think>" */
    assert_int_equal(AFTER_AGAIN(-1, 0, WORD, OPEN_1, WORD, OPEN_1, OPEN_2, WORD), 5);
    assert_int_equal(AFTER_AGAIN(OPEN_1, 0, WORD, OPEN_1, OPEN_2, WORD), 3);
    /* text that looks like the mark */
    assert_int_equal(AFTER_AGAIN(OPEN, 0, WORD, OPEN_1, OPEN_2, WORD), -1);
    assert_int_equal(AFTER_AGAIN(OPEN_1, 0, WORD, OPEN, WORD), -1);
}

static void closing_ends_it(void **state) {
    (void)state;
    sl_thought *thought = begin(true, 1, ONCE);
    int32_t count;
    sl_thought_take(thought, WORD);
    const int32_t *closing = sl_thought_closing(thought, &count);
    assert_int_equal(count, 2);
    for (int32_t i = 0; i < count; i++) {
        assert_true(sl_thought_is_over(thought));
        sl_thought_take(thought, closing[i]);
    }
    assert_false(sl_thought_is_over(thought));
    sl_thought_destroy(thought);
    sl_thought_destroy(NULL);
}

static void memory_may_fail(void **state) {
    (void)state;
    const uint64_t live = sl_alloc_live_bytes();
    const sl_thought_options options = {.open_mark = "a",
                                        .close_mark = "b",
                                        .closing = (const int32_t[]){1},
                                        .closing_count = 1,
                                        .bytes = bytes};
    sl_thought *thought;
    sl_error error;
    int result = SL_ERR_NOMEM;
    for (uint64_t n = 1; result == SL_ERR_NOMEM; n++) {
        sl_alloc_fail_at(n);
        result = sl_thought_create(&options, &thought, &error);
        sl_alloc_fail_at(0);
        assert_true(result == 0 || thought == NULL);
    }
    assert_int_equal(result, 0);
    sl_thought_destroy(thought);
    assert_int_equal(sl_alloc_live_bytes(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_is_kept),
        cmocka_unit_test(later_thoughts_count),
        cmocka_unit_test(closing_ends_it),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests_name("thought", tests, NULL, NULL);
}
