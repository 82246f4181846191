/* Regular expressions against Python's re (regex_cases.json, written by make_regex_cases.py), and what is
 * refused. */
#include "support.h"

#include "base/alloc.h"

#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

static sl_grammar_vocabulary *vocabulary;

static int make(void **state) {
    sl_error error;
    (void)state;
    vocabulary = make_vocabulary(&error);
    return vocabulary ? 0 : -1;
}

static int unmake(void **state) {
    (void)state;
    sl_grammar_vocabulary_release(vocabulary);
    return 0;
}

/* NULL and the error's code where the pattern is refused, or nothing matches it. */
static sl_grammar *compile(const char *pattern, size_t length, bool anchored, sl_error *error) {
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    error->code = 0;
    sl_expression expression = sl_expression_regex(builder, pattern, length, anchored, error);
    sl_grammar *grammar = NULL;
    if (expression >= 0) {
        grammar = sl_grammar_compile(builder, expression, vocabulary, error);
    }
    sl_grammar_builder_destroy(builder);
    return grammar;
}

static void texts_match_as_python_says(void **state) {
    json_error_t json_error;
    json_t *cases = json_load_file(SLUICE_SOURCE_DIR "/tests/unit/grammar/regex_cases.json", 0, &json_error);
    size_t index, row, wrong = 0, checked = 0;
    json_t *item, *text;
    (void)state;
    assert_non_null(cases);
    json_array_foreach(cases, index, item) {
        const char *pattern = json_string_value(json_array_get(item, 0));
        for (int anchored = 0; anchored < 2; anchored++) {
            sl_error error;
            sl_grammar *grammar = compile(pattern, strlen(pattern), anchored, &error);
            if (!grammar && !strstr(error.message, "no text matches")) {
                fail_msg("%s: %s", pattern, error.message);
            }
            json_array_foreach(json_array_get(item, 1), row, text) {
                json_t *value = json_array_get(text, 0);
                const char *bytes = json_string_value(value);
                bool expected = json_is_true(json_array_get(text, anchored ? 1 : 2));
                bool found = grammar && match(grammar, bytes, json_string_length(value)) == 1;
                checked++;
                if (found != expected) {
                    wrong++;
                    print_error("%s %s \"%s\": expected %d\n", pattern, anchored ? "whole" : "anywhere",
                                bytes, expected);
                }
            }
            sl_grammar_release(grammar);
        }
    }
    assert_true(checked > 10000);
    assert_int_equal(wrong, 0);
    json_decref(cases);
}

/* What is no regular language, or is read in different ways by those who have it. */
static const struct {
    const char *pattern, *message;
} REFUSED[] = {
    {"(a)\\1", "backreferences"},
    {"(?=a)b", "lookahead"},
    {"(?!a)b", "negative lookahead"},
    {"(?<=a)b", "lookbehind"},
    {"(?<!a)b", "negative lookbehind"},
    {"(?P<n>a)(?P=n)", "backreferences"},
    {"(?<n>a)\\k<n>", "backreferences"},
    {"(?>a)", "atomic groups"},
    {"a*+", "possessive"},
    {"a++", "possessive"},
    {"\\bword", "word boundaries"},
    {"\\Bword", "word boundaries"},
    {"(?R)", "recursion"},
    {"(?1)", "recursion"},
    {"(?i)a", "flags"},
    {"(?", "flags"},
    {"a(?<", "a group's name"},

    {"(?(1)a|b)", "conditions"},
    {"(", "not closed"},
    {")", "not opened"},
    {"[a", "not closed"},
    {"[b-a]", "ends before"},
    {"a{3,2}", "ends below"},
    {"*a", "nothing to repeat"},
    {"a**", "nothing to repeat"},
    {"\\", ""},
    {"\\u12", "hexadecimal"},
    {"\\p{Nowhere}", "general categories"},
};

static void others_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(REFUSED) / sizeof(*REFUSED); i++) {
        sl_error error = {0};
        /* Without a zero behind it, so that a sanitizer sees what is read beyond it. */
        const size_t length = strlen(REFUSED[i].pattern);
        char *pattern = sl_alloc(length);
        assert_non_null(pattern);
        memcpy(pattern, REFUSED[i].pattern, length);
        sl_grammar *grammar = compile(pattern, length, true, &error);
        sl_free(pattern);
        if (grammar || !strstr(error.message, "pattern: position") ||
            !strstr(error.message, REFUSED[i].message)) {
            fail_msg("%s: \"%s\", expected \"%s\"", REFUSED[i].pattern, error.message, REFUSED[i].message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_match_as_python_says),
                                       cmocka_unit_test(others_are_refused_by_name)};
    return cmocka_run_group_tests(tests, make, unmake);
}
