/* Text of a request: whole characters, stop texts held back until they are certain, nothing after them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "sched/output.h"

#include <string.h>

/* Byte-level: the two bytes of "é" (0xc3 0xa9) are tokens 4 and 5. */
static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":8,\"content\":\"<end>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\\u0120\":3,\"\\u00c3\":4,\"\\u00a9\":"
    "5,"
    "\"ab\":6,\"bc\":7},\"merges\":[[\"a\",\"b\"],[\"b\",\"c\"]]}}";
enum { A, B, C, SPACE, E_FIRST, E_SECOND, AB, BC, END };

static sl_tokenizer *tokenizer;

static int set_up(void **state) {
    (void)state;
    sl_error error;
    sl_view json = {tokenizer_json, sizeof tokenizer_json - 1};
    if (sl_tokenizer_from_json_memory(json, (sl_view){NULL, 0}, "test", &tokenizer, &error)) {
        print_error("%s\n", error.message);
        return 1;
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sl_tokenizer_destroy(tokenizer);
    return 0;
}

typedef struct expectation {
    int32_t token;
    const char *released; /* all text that may be shown after it */
} expectation;

/* Feeds until a stop; returns which one, or -1. */
static int32_t feed(const char *const *stops, size_t stop_count, const expectation *steps, size_t count,
                    const char *end) {
    sl_output output;
    sl_error error;
    sl_output_options options = {.tokenizer = tokenizer,
                                 .continues = true,
                                 .stops = stops,
                                 .stop_count = stop_count,
                                 .expected_tokens = 1};
    assert_int_equal(sl_output_init(&output, &options, &error), 0);
    bool stopped = false;
    for (size_t i = 0; i < count; i++) {
        assert_false(stopped);
        assert_int_equal(sl_output_feed(&output, steps[i].token, &stopped, &error), 0);
        assert_int_equal(output.released, strlen(steps[i].released));
        assert_memory_equal(output.text.data, steps[i].released, output.released);
    }
    if (!stopped) {
        assert_int_equal(sl_output_finish(&output, &error), 0);
    }
    assert_int_equal(output.released, strlen(end));
    assert_string_equal(output.text.data, end);
    int32_t stop = output.stop;
    assert_int_equal(stopped, stop >= 0);
    sl_output_free(&output);
    return stop;
}

#define FEED(stops, count, end, ...)                                                                         \
    feed(stops, count, (const expectation[]){__VA_ARGS__},                                                   \
         sizeof((const expectation[]){__VA_ARGS__}) / sizeof(expectation), end)

static void characters_come_whole(void **state) {
    (void)state;
    assert_int_equal(-1, FEED(NULL, 0,
                              "a\xc3\xa9"
                              "b",
                              {A, "a"}, {E_FIRST, "a"}, {E_SECOND, "a\xc3\xa9"},
                              {B, "a\xc3\xa9"
                                  "b"}));
    assert_int_equal(-1, FEED(NULL, 0, "a\xef\xbf\xbd", {A, "a"}, {E_FIRST, "a"}));
    assert_int_equal(-1, FEED(NULL, 0, "ab", {A, "a"}, {END, "a"}, {B, "ab"}));
}

static void stops_are_held_back_and_cut(void **state) {
    (void)state;
    static const char *const stops[] = {"bca", "cc"};
    assert_int_equal(0, FEED(stops, 2, "a", {A, "a"}, {B, "a"}, {C, "a"}, {A, "a"}));
    assert_int_equal(0, FEED(stops, 2, "a", {A, "a"}, {BC, "a"},
                             {AB, "a"})); /* what comes after a stop in the same token goes too */
    assert_int_equal(-1, FEED(stops, 2, "abcb", {A, "a"}, {BC, "a"}, {B, "abc"}));
    assert_int_equal(1, FEED(stops, 2, "b", {B, ""}, {C, ""}, {C, "b"}));
    static const char *const accent[] = {"\xc3\xa9"};
    assert_int_equal(0, FEED(accent, 1, "a", {A, "a"}, {E_FIRST, "a"}, {E_SECOND, "a"}));
}

/* The first that is complete byte by byte counts; of those that end with one byte the longest. */
static void the_first_complete_stop_counts(void **state) {
    (void)state;
    static const char *const nested[] = {"abca", "bc"};
    assert_int_equal(1, FEED(nested, 2, "a", {A, ""}, {BC, "a"}));
    assert_int_equal(1, FEED(nested, 2, "a", {AB, ""}, {C, "a"}));
    static const char *const same_end[] = {"c", "bc", "bc", "cbc"};
    assert_int_equal(1, FEED(same_end, 4, "a", {A, "a"}, {BC, "a"}));
    assert_int_equal(0, FEED(same_end, 4, "a", {A, "a"}, {C, "a"}));
    static const char *const same_beginning[] = {"bca", "bc"};
    assert_int_equal(1, FEED(same_beginning, 2, "a", {A, "a"}, {BC, "a"}));
}

/* A stop text that begins again inside itself. */
static void overlapping_beginnings_are_found(void **state) {
    (void)state;
    static const char *const stops[] = {"abac"};
    assert_int_equal(0, FEED(stops, 1, "ab", {AB, ""}, {AB, "ab"}, {A, "ab"}, {C, "ab"}));
    assert_int_equal(-1, FEED(stops, 1, "ababab", {AB, ""}, {AB, "ab"}, {AB, "abab"}));
}

typedef struct match {
    size_t begin;
    int32_t stop;
} match;

/* The definition: the least end; of those the longest; of equal ones the first. */
static match first_complete(const char *text, const char *const *stops, int32_t count) {
    match best = {SIZE_MAX, -1};
    size_t best_end = SIZE_MAX;
    for (int32_t i = 0; i < count; i++) {
        const char *at = strstr(text, stops[i]);
        const size_t begin = at ? (size_t)(at - text) : SIZE_MAX;
        const size_t end = at ? begin + strlen(stops[i]) : SIZE_MAX;
        if (at && (end < best_end || (end == best_end && begin < best.begin))) {
            best = (match){begin, i};
            best_end = end;
        }
    }
    return best;
}

/* Random texts of few letters, cut into tokens at random: the cut changes neither the stop nor the text, and
 * at no time is more shown than what comes before the stop. */
static void cuts_change_nothing(void **state) {
    (void)state;
    static const char *const bytes[] = {[A] = "a", [B] = "b", [C] = "c", [AB] = "ab", [BC] = "bc"};
    static const int32_t choices[] = {A, B, C, AB, BC};
    static const char *const stops[] = {"cca", "abab", "bcb", "ccab", "babc"};
    unsigned random = 1;
    int ended = 0;
    for (int round = 0; round < 3000; round++) {
        sl_output output;
        sl_error error;
        sl_output_options options = {
            .tokenizer = tokenizer, .continues = true, .stops = stops, .stop_count = 5};
        char text[64] = "";
        assert_int_equal(sl_output_init(&output, &options, &error), 0);
        bool stopped = false;
        for (int i = 0; i < 12 && !stopped; i++) {
            random = random * 1664525u + 1013904223u;
            const int32_t token = choices[(random >> 16) % 5];
            strcat(text, bytes[token]);
            const match expected = first_complete(text, stops, 5);
            assert_int_equal(sl_output_feed(&output, token, &stopped, &error), 0);
            assert_int_equal(stopped, expected.stop >= 0);
            assert_int_equal(output.stop, expected.stop);
            assert_memory_equal(output.text.data, text, output.released);
            assert_true(!stopped || output.released == expected.begin);
        }
        ended += stopped;
        sl_output_free(&output);
    }
    assert_true(ended > 500 && ended < 2900);
}

static void bad_stops_are_refused(void **state) {
    (void)state;
    sl_output output;
    sl_error error;
    static const char *const empty[] = {""};
    static const char *const fine[] = {"x"};
    static const char *const cut[] = {"\xa9"};
    assert_int_equal(
        sl_output_init(&output, &(sl_output_options){.tokenizer = tokenizer, .stops = cut, .stop_count = 1},
                       &error),
        SL_ERR_INVALID);
    assert_int_equal(
        sl_output_init(&output, &(sl_output_options){.tokenizer = tokenizer, .stops = empty, .stop_count = 1},
                       &error),
        SL_ERR_INVALID);
    assert_int_equal(sl_output_init(&output, &(sl_output_options){.stops = fine, .stop_count = 1}, &error),
                     SL_ERR_INVALID);
    uint64_t live = sl_alloc_live_bytes();
    for (uint64_t n = 1; n <= 4; n++) {
        sl_alloc_fail_at(n);
        assert_int_equal(
            sl_output_init(&output,
                           &(sl_output_options){.tokenizer = tokenizer, .stops = fine, .stop_count = 1},
                           &error),
            SL_ERR_NOMEM);
        sl_alloc_fail_at(0);
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(characters_come_whole),
                                       cmocka_unit_test(stops_are_held_back_and_cut),
                                       cmocka_unit_test(the_first_complete_stop_counts),
                                       cmocka_unit_test(overlapping_beginnings_are_found),
                                       cmocka_unit_test(cuts_change_nothing),
                                       cmocka_unit_test(bad_stops_are_refused)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
