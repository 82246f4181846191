/* Grammars that are made to cost: each ends in a grammar or an error within a bound of time and memory, also
 * while texts are followed. */
#define _GNU_SOURCE
#include "support.h"

#include "base/alloc.h"
#include "base/text.h"
#include "grammar/schema.h"
#include "support/sanitized.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
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

/* Of this thread on a processor. */
static double seconds_used(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

typedef enum kind { SCHEMA, GBNF, REGEX } kind;

static sl_grammar *compile(kind kind, const char *text, sl_error *error) {
    const sl_json_style style = {0};
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    sl_expression made = kind == SCHEMA ? sl_expression_schema(builder, text, strlen(text), &style, error)
                         : kind == GBNF ? sl_expression_gbnf(builder, text, strlen(text), error)
                                        : sl_expression_regex(builder, text, strlen(text), true, error);
    sl_grammar *grammar = made < 0 ? NULL : sl_grammar_compile(builder, made, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return grammar;
}

/* Compiles, and follows the text byte by byte with a mask at each; the error's code, or 0. */
static int use(kind kind, const char *grammar_text, const char *text, int repeat, double *slowest) {
    uint32_t mask[(TOKEN_COUNT + 31) / 32];
    sl_error error = {0};
    double begin = seconds_used();
    sl_grammar *grammar = compile(kind, grammar_text, &error);
    *slowest = seconds_used() - begin;
    sl_matcher *matcher = grammar ? sl_matcher_create(grammar, &error) : NULL;
    int code = matcher ? 0 : error.code;
    const size_t length = strlen(text);
    for (size_t i = 0; i < length * (size_t)repeat && code == 0; i++) {
        begin = seconds_used();
        code = sl_matcher_mask(matcher, mask, &error);
        const int accepted = code ? code : sl_matcher_accept(matcher, (uint8_t)text[i % length], &error);
        const double took = seconds_used() - begin;
        *slowest = took > *slowest ? took : *slowest;
        code = accepted < 0 ? accepted : code;
        if (accepted != 1) {
            break;
        }
    }
    sl_matcher_destroy(matcher);
    sl_grammar_release(grammar);
    return code;
}

static const struct {
    const char *name;
    kind kind;
    const char *grammar, *text;
    int repeat;
} CASES[] = {
    {"all splits", GBNF, "root ::= \"a\" | root2 root2\nroot2 ::= \"a\" | root root", "a", 200},
    {"sums", GBNF, "root ::= \"a\" (\"a\"* root \"a\"* root)*", "a", 80},
    {"three ways", GBNF, "root ::= \"a\" root \"a\" root | \"a\" root | \"a\"", "a", 150},
    {"palindromes", GBNF, "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"a\" | \"b\"", "ab", 300},
    {"counts in counts", GBNF,
     "root ::= x{0,1000}\nx ::= y{0,1000}\ny ::= z{1,1000}\nz ::= \"ab\" | \"a\" | \"bb\"", "ab", 60},
    {"ambiguous counts", GBNF,
     "root ::= x{3,900} y{3,900} x{3,900} y{5,}\nx ::= \"a\"{1,30}\ny ::= \"a\"{2,40}", "a", 100},
    {"exponential machine", REGEX, "(?:a|b)*a(?:a|b){24}c", "ab", 100},
    {"wide exponential machine", REGEX, "(?:.*a.{22}|.*b.{21}|.*c.{20}){3}", "abc", 60},
    {"counts of counts", REGEX, "(?:(?:(?:[a-c]{1,100}b){1,100}c){1,100}a){1,100}", "abc", 15},
    {"huge counts", REGEX, "(?:[a-z]{0,1000000000}b){1000000}", "ab", 50},
    {"nested stars", REGEX, "(?:(?:(?:(?:a*)*b*)*c*)*)*", "abc", 200},
    {"huge array", SCHEMA,
     "{\"type\":\"array\",\"minItems\":1000000000,\"items\":{\"type\":\"array\",\"maxItems\":1000000000}}",
     "[[1,[2]],", 40},
    {"pattern and not", SCHEMA,
     "{\"type\":\"string\",\"allOf\":[{\"pattern\":\"a.{14}b\"},{\"pattern\":\"b.{15}a\"},{\"not\":{"
     "\"pattern\":"
     "\"c.{13}a\"}}]}",
     "\"abc", 10},
};

static void costs_are_bounded(void **state) {
    const double slack = SANITIZED ? 40 : 6; /* for others on the processor's other half and in its caches */
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        const uint64_t held = sl_alloc_live_bytes();
        double slowest;
        const int code = use(CASES[i].kind, CASES[i].grammar, CASES[i].text, CASES[i].repeat, &slowest);
        print_message("%-26s %d, %.3f s at most\n", CASES[i].name, code, slowest);
        assert_true(code == 0 || code == SL_ERR_LIMIT || code == SL_ERR_UNSUPPORTED ||
                    code == SL_ERR_INVALID);
        assert_true(slowest < 4 * slack);
        assert_int_equal(sl_alloc_live_bytes(), held);
    }
}

typedef void writer(sl_buffer *out, int index);

static void literal(sl_buffer *out, int i) {
    sl_buffer_printf(out, "%s\"value-%d-%x\"", i ? "," : "", i, (unsigned)i * 2654435761u);
}

static void alternative(sl_buffer *out, int i) {
    sl_buffer_printf(out, "%s\"word %d %x\"", i ? "|" : "", i, (unsigned)i * 2654435761u);
}

static void property(sl_buffer *out, int i) {
    sl_buffer_printf(out, "%s\"key-%d\":{\"type\":\"string\"}", i ? "," : "", i);
}

static void rule(sl_buffer *out, int i) {
    sl_buffer_printf(out, "r%d ::= \"a\" r%d \"b\" | \"c\"\n", i, i + 1);
}

static void opening(sl_buffer *out, int i) {
    (void)i;
    sl_buffer_text(out, "(");
}

static void choice(sl_buffer *out, int i) {
    sl_buffer_printf(out, "%s(?:[a-%c].*%c)", i ? "|" : "", 'b' + i % 20, 'a' + i % 23);
}

static void optional(sl_buffer *out, int i) {
    (void)i;
    sl_buffer_text(out, "a?");
}

static const struct {
    const char *name;
    kind kind;
    const char *before, *after;
    writer *write;
    int count;
    const char *text;
} LONG_CASES[] = {
    {"200 000 values", SCHEMA, "{\"enum\":[", "]}", literal, 200000, "\"value-17"},
    {"200 000 words", GBNF, "root ::= ", "", alternative, 200000, "word 17"},
    {"3 000 properties", SCHEMA, "{\"type\":\"object\",\"properties\":{", "}}", property, 3000,
     "{\"key-12\": \""},
    {"50 000 rules", GBNF, "root ::= r0\n", "r50000 ::= \"x\"", rule, 50000, "a"},
    {"100 000 parentheses", GBNF, "root ::= ", "", opening, 100000, "a"},
    {"100 000 parentheses", REGEX, "", "", opening, 100000, "a"},
    {"a choice of loops", REGEX, "(?:", "){2,5}", choice, 60, "abc"},
    {"8 000 options", REGEX, "", "", optional, 8000, "a"},
};

static void long_sources_are_bounded(void **state) {
    const double slack = SANITIZED ? 40 : 6; /* for others on the processor's other half and in its caches */
    (void)state;
    for (size_t i = 0; i < sizeof(LONG_CASES) / sizeof(*LONG_CASES); i++) {
        sl_buffer source = {0};
        double slowest;
        sl_buffer_text(&source, LONG_CASES[i].before);
        /* Under a sanitizer fewer, which a rule that is missing at the end then refuses. */
        for (int j = 0; j < LONG_CASES[i].count / (SANITIZED ? 20 : 1); j++) {
            LONG_CASES[i].write(&source, j);
        }
        sl_buffer_text(&source, LONG_CASES[i].after);
        const int code = use(LONG_CASES[i].kind, source.data, LONG_CASES[i].text, 1, &slowest);
        print_message("%-26s %d, %.3f s at most\n", LONG_CASES[i].name, code, slowest);
        assert_true(code == 0 || code == SL_ERR_LIMIT || code == SL_ERR_INVALID);
        assert_true(slowest < 6 * slack);
        sl_buffer_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(costs_are_bounded),
                                       cmocka_unit_test(long_sources_are_bounded)};
    return cmocka_run_group_tests(tests, make, unmake);
}
