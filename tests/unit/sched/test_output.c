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

/* Feeds until a stop; returns whether there was one. */
static bool feed(const char *const *stops, size_t stop_count, const expectation *steps, size_t count,
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
    sl_output_free(&output);
    return stopped;
}

#define FEED(stops, count, end, ...)                                                                         \
    feed(stops, count, (const expectation[]){__VA_ARGS__},                                                   \
         sizeof((const expectation[]){__VA_ARGS__}) / sizeof(expectation), end)

static void characters_come_whole(void **state) {
    (void)state;
    assert_false(FEED(NULL, 0,
                      "a\xc3\xa9"
                      "b",
                      {A, "a"}, {E_FIRST, "a"}, {E_SECOND, "a\xc3\xa9"},
                      {B, "a\xc3\xa9"
                          "b"}));
    assert_false(FEED(NULL, 0, "a\xef\xbf\xbd", {A, "a"}, {E_FIRST, "a"}));
    assert_false(FEED(NULL, 0, "ab", {A, "a"}, {END, "a"}, {B, "ab"}));
}

static void stops_are_held_back_and_cut(void **state) {
    (void)state;
    static const char *const stops[] = {"bca", "cc"};
    assert_true(FEED(stops, 2, "a", {A, "a"}, {B, "a"}, {C, "a"}, {A, "a"}));
    assert_true(FEED(stops, 2, "a", {A, "a"}, {BC, "a"},
                     {AB, "a"})); /* what comes after a stop in the same token goes too */
    assert_false(FEED(stops, 2, "abcb", {A, "a"}, {BC, "a"}, {B, "abc"}));
    assert_true(FEED(stops, 2, "b", {B, ""}, {C, ""}, {C, "b"}));
    static const char *const accent[] = {"\xc3\xa9"};
    assert_true(FEED(accent, 1, "a", {A, "a"}, {E_FIRST, "a"}, {E_SECOND, "a"}));
}

static void bad_stops_are_refused(void **state) {
    (void)state;
    sl_output output;
    sl_error error;
    static const char *const empty[] = {""};
    static const char *const fine[] = {"x"};
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
                                       cmocka_unit_test(bad_stops_are_refused)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
