/* JSON that is not believed: what RFC 8259 allows comes out as jansson's own parser has it, what it does not
 * is refused with its place, small texts stay small in memory, and memory may run out anywhere. */
#define _GNU_SOURCE
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void values_are_as_jansson_reads_them(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{}",
        "[]",
        " [ ] ",
        "{\"a\":[1,-2,0,-0,3.5,1e3,-1.25E-2,9223372036854775807,-9223372036854775808]}",
        "[true,false,null,\"\",[[]],{\"\":{}}]",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83d\\ude00 \xc3\xa9 \xf0\x9f\x98\x80\"]",
        "{\"k\\u00e9y\":\"v\",\"k\":{\"k\":[{\"k\":1}]}}\n",
        "[1\n,\t2 ,\r\n3]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *found, *expected = json_loads(texts[i], JSON_REJECT_DUPLICATES, NULL);
        sl_error error;
        assert_non_null(expected);
        if (sl_json_parse(texts[i], strlen(texts[i]), "text", &found, &error)) {
            fail_msg("%s: %s", texts[i], error.message);
        }
        assert_true(json_equal(found, expected));
        json_decref(found);
        json_decref(expected);
    }
}

static void what_is_no_json_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"", "line 1, column 1: neither an object nor an array"},
        {"1", "column 1: neither"},
        {"{\"a\":1,\n}", "line 2, column 1: no name"},
        {"[1,]", "column 4: something that begins no value"},
        {"[1", "column 3: no comma or ]"},
        {"[1 2]", "column 4: no comma or ]"},
        {"{\"a\" 1}", "column 6: no colon"},
        {"{\"a\":1]", "no comma or }"},
        {"{} x", "column 4: something behind the end"},
        {"[01]", "a number with no digit, or with a 0 before others"},
        {"[1.]", "after its point"},
        {"[1e]", "exponent"},
        {"[-]", "no digit"},
        {"[NaN]", "begins no value"},
        {"[tru]", "begins no value"},
        {"[1e999]", "too large for a double"},
        {"[9223372036854775808]", "outside 64 bits"},
        {"[\"a\nb\"]", "control character"},
        {"[\"a", "within a text"},
        {"[\"\xff\"]", "not UTF-8"},
        {"[\"\xed\xa0\x80\"]", "not UTF-8"},
        {"[\"\\x\"]", "an escape that JSON does not have"},
        {"[\"\\u12g4\"]", "four hexadecimal digits"},
        {"[\"\\u0000\"]", "\\u0000"},
        {"[\"\\ud800\"]", "surrogate"},
        {"[\"\\udc00\"]", "surrogate"},
        {"{\"a\":1,\"b\":{\"a\":1},\"a\":2}", "column 20: a duplicate of member 'a'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *json;
        sl_error error;
        assert_int_equal(sl_json_parse(rows[i].text, strlen(rows[i].text), "x.json", &json, &error),
                         SL_ERR_FORMAT);
        assert_null(json);
        if (!strstr(error.message, "x.json: not JSON: line ") || !strstr(error.message, rows[i].words)) {
            fail_msg("%s: %s", rows[i].text, error.message);
        }
    }
}

static void flags(void **state) {
    (void)state;
    json_t *json;
    const sl_view large = sl_view_of("[1000000000000000019884624838656]"),
                  twice = sl_view_of("{\"a\":1,\"a\":2}");
    assert_int_equal(sl_json_parse_as(large, SL_JSON_LARGE_INTEGERS, "x", &json, NULL), 0);
    assert_float_equal(json_real_value(json_array_get(json, 0)), 1e30, 1e16);
    json_decref(json);
    const sl_view endless = sl_view_of("{\"time_step_limit\":[0.0,Infinity]}");
    assert_int_equal(sl_json_parse_as(endless, 0, "x", &json, NULL), SL_ERR_FORMAT);
    assert_int_equal(sl_json_parse_as(endless, SL_JSON_INFINITY, "x", &json, NULL), 0);
    const json_t *limits = json_object_get(json, "time_step_limit");
    assert_float_equal(json_real_value(json_array_get(limits, 1)), DBL_MAX, 0);
    json_decref(json);
    assert_int_equal(sl_json_parse_as(twice, SL_JSON_LAST_COUNTS, "x", &json, NULL), 0);
    assert_int_equal(json_integer_value(json_object_get(json, "a")), 2);
    json_decref(json);
}

/* Of this process on a processor: others may have it meanwhile. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What jansson's allocations add up to at their most: counted, since the bound is on them. */
static size_t held, most_held;

static void *count_alloc(size_t size) {
    size_t *block = malloc(size + 16);
    if (block) {
        *block = size + 16;
        held += size + 16;
        most_held = held > most_held ? held : most_held;
    }
    return block ? (char *)block + 16 : NULL;
}

static void count_free(void *memory) {
    if (memory) {
        size_t *block = (size_t *)(void *)((char *)memory - 16);
        held -= *block;
        free(block);
    }
}

/* `unit` again and again between `open` and `close`. */
static char *repeat(const char *open, const char *unit, const char *close, size_t bytes, size_t *length) {
    const size_t step = strlen(unit);
    char *text = malloc(bytes + 64);
    assert_non_null(text);
    size_t at = (size_t)sprintf(text, "%s", open);
    while (at + step + 32 < bytes) {
        memcpy(text + at, unit, step);
        at += step;
    }
    *length = at + (size_t)sprintf(text + at, "%s", close);
    return text;
}

static void small_texts_stay_small(void **state) {
    (void)state;
    static const struct {
        const char *open, *unit, *close, *words;
        int code;
    } rows[] = {
        {"", "[", "", "a depth of more than 64", SL_ERR_LIMIT},
        {"", "{\"a\":", "", "a depth of more than 64", SL_ERR_LIMIT},
        {"[", "[],", "0]", "more values than", SL_ERR_LIMIT},
        {"[", "{},", "0]", "more values than", SL_ERR_LIMIT},
        {"[", "[[[[[[]]]]]],", "0]", "more values than", SL_ERR_LIMIT},
        {"[", "\"\",", "0]", "more values than", SL_ERR_LIMIT},
        {"[", "0,", "0]", "more values than", SL_ERR_LIMIT},
        {"[", "{\"a\":0},", "0]", "more values than", SL_ERR_LIMIT},
    };
    json_set_alloc_funcs(count_alloc, count_free);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t bytes = 1 << 10; bytes <= 90 << 20; bytes *= 300) {
            size_t length;
            char *text = repeat(rows[i].open, rows[i].unit, rows[i].close, bytes, &length);
            json_t *json;
            sl_error error;
            held = most_held = 0;
            const double begin = seconds();
            const int code = sl_json_parse(text, length, "x.json", &json, &error);
            assert_true(seconds() - begin < 5); /* a tenth of that on an idle machine */
            assert_true(most_held <= SL_JSON_MEMORY_BASE + length * SL_JSON_MEMORY_FACTOR);
            assert_true(most_held <= SL_JSON_MEMORY);
            if (bytes > 80 << 20) {
                assert_int_equal(code, rows[i].code);
                assert_non_null(strstr(error.message, rows[i].words));
            }
            json_decref(json);
            assert_int_equal(held, 0);
            free(text);
        }
    }
    json_set_alloc_funcs(malloc, free);
}

static void names_are_not_too_long(void **state) {
    (void)state;
    for (size_t size = SL_JSON_KEY; size <= SL_JSON_KEY + 1; size++) {
        char *text = malloc(size + 16);
        memset(text, 'a', size + 16);
        memcpy(text, "{\"", 2);
        memcpy(text + 2 + size, "\":1}", 5);
        json_t *json;
        sl_error error;
        const int code = sl_json_parse(text, strlen(text), "x.json", &json, &error);
        assert_int_equal(code, size > SL_JSON_KEY ? SL_ERR_LIMIT : 0);
        json_decref(json);
        free(text);
    }
}

/* 64 arrays in each other are read, one more is refused. */
static void the_depth_is_bounded(void **state) {
    (void)state;
    for (size_t depth = 64; depth <= 65; depth++) {
        char text[2 * 65];
        sl_error error;
        json_t *json = NULL;
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        const int code = sl_json_parse(text, 2 * depth, "depth", &json, &error);
        assert_int_equal(code, depth == 64 ? 0 : SL_ERR_LIMIT);
        json_decref(json);
    }
}

/* As many values as the largest vocabularies have, as tightly written as can be. */
static void vocabularies_fit(void **state) {
    (void)state;
    enum { TOKENS = 262144, MERGES = 514906 };
    sl_buffer text = {0};
    sl_buffer_text(&text, "{\"vocab\":{");
    for (int i = 0; i < TOKENS; i++) {
        sl_buffer_printf(&text, "%s\"%x\":%d", i ? "," : "", i, i);
    }
    sl_buffer_text(&text, "},\"merges\":[");
    for (int i = 0; i < MERGES; i++) {
        sl_buffer_printf(&text, "%s[\"%x\",\"%x\"]", i ? "," : "", i % 16, i % 7);
    }
    sl_buffer_text(&text, "]}");
    json_t *json;
    sl_error error;
    json_set_alloc_funcs(count_alloc, count_free);
    held = most_held = 0;
    if (sl_json_parse(text.data, text.length, "tokenizer.json", &json, &error)) {
        fail_msg("%s", error.message);
    }
    printf("%zu bytes of text, %zu of values\n", text.length, most_held);
    json_decref(json);
    json_set_alloc_funcs(malloc, free);
    sl_buffer_free(&text);
}

static uint64_t fail_in;

static void *failing_alloc(size_t size) {
    return fail_in && --fail_in == 0 ? NULL : malloc(size);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char text[] =
        "{\"a long name that jansson copies\":[\"a long text that the parser keeps\",1,2.5,"
        "[],{}],\"b\":{\"c\":[1,2,3,4,5,6,7,8,9,10]},\"d\":1,\"e\":2,\"f\":3,\"g\":4,"
        "\"h\":5,\"i\":6,\"j\":7,\"k\":8,\"l\":\"\\u00e9\"}";
    json_set_alloc_funcs(failing_alloc, free);
    const uint64_t before = sl_alloc_live_bytes();
    for (int ours = 0; ours < 2; ours++) {
        int code = SL_ERR_NOMEM;
        uint64_t nth = 0;
        while (code == SL_ERR_NOMEM) {
            json_t *json;
            sl_error error;
            nth++;
            fail_in = ours ? 0 : nth;
            sl_alloc_fail_at(ours ? nth : 0);
            code = sl_json_parse(text, sizeof text - 1, "x.json", &json, &error);
            sl_alloc_fail_at(0);
            fail_in = 0;
            assert_true(code == 0 || code == SL_ERR_NOMEM);
            assert_true((json != NULL) == (code == 0));
            json_decref(json);
            assert_int_equal(sl_alloc_live_bytes(), before);
        }
        assert_true(nth > (ours ? 2 : 20));
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_as_jansson_reads_them),
        cmocka_unit_test(what_is_no_json_is_refused_with_its_place),
        cmocka_unit_test(flags),
        cmocka_unit_test(small_texts_stay_small),
        cmocka_unit_test(names_are_not_too_long),
        cmocka_unit_test(the_depth_is_bounded),
        cmocka_unit_test(vocabularies_fit),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
