/* Arguments that are written one by one (formats in which a call's arguments are no JSON object): what the
 * grammar lets through is read as arguments that satisfy the whole schema of the function, whatever it says
 * of them together. Which arguments satisfy a schema is said by JSON Schema, 2020-12. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/text.h"
#include "chat/reply.h"
#include "chat/reply_grammar.h"
#include "grammar/grammar.h"

#include <string.h>

enum { BYTES = 256, END = BYTES, TOKENS = BYTES + 1, MOST_TEXTS = 10 };

static sl_grammar_vocabulary *vocabulary;

static int make(void **state) {
    static char bytes[BYTES];
    sl_grammar_token tokens[TOKENS] = {{0}};
    sl_error error;
    (void)state;
    for (int i = 0; i < BYTES; i++) {
        bytes[i] = (char)i;
        tokens[i] = (sl_grammar_token){.bytes = &bytes[i], .count = 1};
    }
    tokens[END] = (sl_grammar_token){.is_special = true, .is_end = true};
    vocabulary = sl_grammar_vocabulary_create(tokens, TOKENS, &error);
    return vocabulary ? 0 : -1;
}

static int unmake(void **state) {
    (void)state;
    sl_grammar_vocabulary_release(vocabulary);
    return 0;
}

/* What stands between the function's name and the call's end; and what it is read as, NULL: it cannot come.
 */
typedef struct text {
    const char *written, *arguments;
} text;

typedef struct row {
    const char *format, *parameters;
    text texts[MOST_TEXTS];
} row;

#define P(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define SQUARE                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"square\"},\"side\":{\"type\":\"integer\"}}," \
    "\"required\":[\"kind\",\"side\"]}"
#define NAMED                                                                                                \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"named\"},\"name\":{\"type\":\"string\"}},"   \
    "\"required\":[\"kind\",\"name\"]}"
#define NODE                                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"$ref\":\"#\"}},"          \
    "\"required\":[\"v\"],\"additionalProperties\":false}"
#define DSML                                                                                                 \
    "\xef\xbd\x9c"                                                                                           \
    "DSML"                                                                                                   \
    "\xef\xbd\x9c"
#define DP(name, is_text, value)                                                                             \
    "<" DSML "parameter name=\"" name "\" string=\"" is_text "\">" value "</" DSML "parameter>\n"

static const row ROWS[] = {
    /* unions of texts and others */
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"day\":{\"anyOf\":[{\"type\":\"string\",\"format\":\"date\"},{"
     "\"type\":\"null\"}]}}}",
     {{P("day", "2024-02-29"), "{\"day\": \"2024-02-29\"}"},
      {P("day", "null"), "{\"day\": null}"},
      {"", "{}"},
      {P("day", "soon"), NULL},
      {P("day", "12"), NULL},
      {P("day", "2023-02-29"), NULL}}},
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":[\"string\",\"integer\"],\"maxLength\":3,"
     "\"minimum\":5}}}",
     {{P("x", "abc"), "{\"x\": \"abc\"}"},
      {P("x", "true"), NULL},
      {P("x", "07"), "{\"x\": \"07\"}"},
      {P("x", "7"), "{\"x\": 7}"},
      {P("x", "1.5"), NULL},
      {P("x", "3"), NULL},
      {P("x", " :3"), NULL},
      {P("x", "[]"), "{\"x\": \"[]\"}"},
      {P("x", "abcd"), NULL}}},
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":[\"string\",\"null\"]}}}",
     {{P("x", "123"), "{\"x\": \"123\"}"},
      {P("x", "[1]"), "{\"x\": \"[1]\"}"},
      {P("x", "\"a\""), "{\"x\": \"\\\"a\\\"\"}"},
      {P("x", "null"), "{\"x\": null}"}}},
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"x\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":20},{"
     "\"type\":\"array\",\"items\":{\"type\":\"integer\"}}]}}}",
     {{P("x", "[1, 2]"), "{\"x\": [1, 2]}"},
      {P("x", "[] then"), "{\"x\": \"[] then\"}"},
      {P("x", "[a]"), NULL},
      {P("x", "[true]"), NULL},
      {P("x", "5"), "{\"x\": \"5\"}"}}},
    {"deepseek-v3.2",
     "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":[\"string\",\"integer\"],\"maxLength\":3,"
     "\"minimum\":5}}}",
     {{DP("x", "true", "3"), "{\"x\": \"3\"}"},
      {DP("x", "false", "7"), "{\"x\": 7}"},
      {DP("x", "false", "3"), NULL},
      {DP("x", "false", "\"a\""), NULL},
      {DP("x", "true", "abcd"), NULL}}},
    /* the mark that closes a value, within one */
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"o\":{\"type\":\"object\"}}}",
     {{P("o", "{\"a\": \"</param>\"}"), "{\"o\": {\"a\": \"</param>\"}}"},
      {P("o", "{\"a\": \"</parameter>\"}"), NULL},
      {P("o", "{\"</parameter>\": 1}"), NULL}}},
    /* others than those that are listed */
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"additionalProperties\":{\"enum\":["
     "\"a\",true]}}",
     {{P("n", "1") P("m", "a") P("k", "true"), "{\"n\": 1, \"m\": \"a\", \"k\": true}"},
      {P("n", "a"), NULL},
      {P("m", "1"), NULL},
      {P("m", "b"), NULL}}},
    {"qwen3-coder",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}},\"required\":[\"b\"]}",
     {{P("b", "1"), "{\"b\": 1}"}, {P("a", "true"), NULL}, {"", NULL}}},
    /* choices, references and merging of the whole object */
    {"qwen3-coder",
     "{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":["
     "\"path\"]},"
     "{\"properties\":{\"id\":{\"type\":\"integer\"}},\"required\":[\"id\"]}]}",
     {{P("path", "/"), "{\"path\": \"/\"}"},
      {P("id", "7"), "{\"id\": 7}"},
      {P("id", "x"), NULL},
      {"", NULL}}},
    {"qwen3-coder",
     "{\"oneOf\":[" SQUARE "," NAMED "]}",
     {{P("kind", "square") P("side", "3"), "{\"kind\": \"square\", \"side\": 3}"},
      {P("kind", "named") P("name", "3"), "{\"kind\": \"named\", \"name\": \"3\"}"},
      {P("kind", "named") P("side", "3"), NULL},
      {P("kind", "square") P("name", "3"), NULL},
      {P("kind", "other"), NULL}}},
    {"qwen3-coder",
     "{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "n\"},{\"type\":\"null\"}]},"
     "\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"$ref\":\"#/$defs/w\"}},\"required\":[\"v\"]},"
     "\"w\":{\"type\":\"integer\",\"minimum\":3}}}",
     {{P("v", "3"), "{\"v\": 3}"}, {P("v", "2"), NULL}, {"", NULL}}},
    {"qwen3-coder",
     NODE,
     {{P("v", "1") P("next", "{\"v\": 2, \"next\": {\"v\": 3}}"),
       "{\"v\": 1, \"next\": {\"v\": 2, \"next\": {\"v\": 3}}}"},
      {P("v", "1") P("next", "{\"v\": 2, \"next\": {}}"), NULL},
      {P("v", "1") P("next", "3"), NULL}}},
    {"qwen3-coder",
     "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}},\"required\":[\"a\"]},"
     "{\"properties\":{\"a\":{\"maximum\":5},\"b\":{\"type\":\"string\"}}}]}",
     {{P("a", "4"), "{\"a\": 4}"},
      {P("a", "5") P("b", "x"), "{\"a\": 5, \"b\": \"x\"}"},
      {P("a", "6"), NULL},
      {P("a", "2"), NULL},
      {P("b", "x"), NULL}}},
    {"qwen3-coder",
     "{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":false,"
     "\"anyOf\":[{\"required\":[\"b\"],\"properties\":{\"b\":{\"type\":\"integer\"}}},{\"properties\":{\"a\":"
     "{\"const\":1},\"b\":{}}}]}",
     {{P("a", "1"), "{\"a\": 1}"}, {P("a", "2"), NULL}, {P("b", "1"), NULL}}},
    /* one name, of another kind in each branch: read by all of them, so held for all */
    {"qwen3-coder",
     "{\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"t\"},\"x\":{\"type\":\"string\"}},\"required\":[\"k\","
     "\"x\"]},"
     "{\"properties\":{\"k\":{\"const\":\"n\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"k\",\"x\"]}]}",
     {{P("k", "t") P("x", "a"), "{\"k\": \"t\", \"x\": \"a\"}"},
      {P("k", "t") P("x", "5"), NULL},
      {P("k", "n") P("x", "5"), "{\"k\": \"n\", \"x\": 5}"},
      {P("k", "n") P("x", "a"), NULL}}},
    {"lfm2",
     "{\"oneOf\":[" SQUARE "," NAMED "]}",
     {{"kind=\"square\", side=3", "{\"kind\": \"square\", \"side\": 3}"},
      {"kind=\"named\", name=\"a\"", "{\"kind\": \"named\", \"name\": \"a\"}"},
      {"kind=\"named\", side=3", NULL},
      {"kind=\"square\"", NULL}}},
};

static const struct {
    const char *parameters, *words;
} REFUSED[] = {
    {"{\"oneOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}",
     "oneOf of arguments is held only where"},
    {"{\"oneOf\":[{\"required\":[\"a\"],\"additionalProperties\":{}},{\"required\":[\"b\"],"
     "\"additionalProperties\":{}}]}",
     "oneOf of arguments"},
    {"{\"properties\":{\"a\":{}},\"minProperties\":1}", "minProperties is not held beside the arguments"},
    {"{\"allOf\":[{\"if\":{\"required\":[\"a\"]},\"then\":false}]}", "if is not held"},
    {"{\"$ref\":\"#/$defs/x\"}", "$ref leads to no schema"},
    {"{\"$ref\":\"#\"}", "$ref recurses"},
    {"{\"$ref\":\"https://example.com/x\"}", "$ref outside of the schema"},
    {"{\"anyOf\":[{\"type\":\"string\"},false]}", "nothing satisfies it"},
    {"{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}},\"required\":[\"a\"]}",
     "nothing satisfies what is required of a"},
};

static json_t *tools_of(const char *parameters) {
    json_t *read = json_loads(parameters, 0, NULL);
    assert_non_null(read);
    json_t *tools = json_pack("[{s:{s:s, s:o}}]", "function", "name", "f", "parameters", read);
    assert_non_null(tools);
    return tools;
}

/* NULL: it is refused. */
static sl_grammar *hold(const sl_reply_format *format, json_t *tools, sl_error *error) {
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    const sl_reply_rules rules = {
        .format = format, .tools = tools, .choice = SL_REPLY_REQUIRED, .answer = SL_NO_EXPRESSION};
    assert_non_null(builder);
    const sl_expression root = sl_expression_reply(builder, &rules, error);
    sl_grammar *grammar =
        root == SL_NO_EXPRESSION ? NULL : sl_grammar_compile(builder, root, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return grammar;
}

static void take(void *context, const sl_reply_event *e) {
    if (e->kind == SL_REPLY_ARGUMENT) {
        sl_buffer_append(context, e->text, e->length);
    }
}

static void expect_read(const sl_reply_format *format, json_t *tools, const char *call,
                        const char *arguments) {
    sl_buffer read = {0};
    sl_reply *reply;
    sl_error error;
    const sl_reply_options options = {.format = format, .tools = tools, .event = take, .context = &read};
    assert_int_equal(sl_reply_create(&options, &reply, &error), 0);
    assert_int_equal(sl_reply_feed(reply, call, strlen(call), &error), 0);
    assert_int_equal(sl_reply_finish(reply, false, &error), 0);
    sl_reply_free(reply);
    json_t *is = json_loads(read.data ? read.data : "", 0, NULL), *wanted = json_loads(arguments, 0, NULL);
    if (!is || !json_equal(is, wanted)) {
        fail_msg("%s is read as %s, not %s", call, read.data, arguments);
    }
    json_decref(is);
    json_decref(wanted);
    sl_buffer_free(&read);
}

static void arguments_satisfy_the_whole_schema(void **state) {
    static const struct {
        const char *format, *before, *behind;
    } CALLS[] = {{"qwen3-coder", "<tool_call>\n<function=f>\n", "</function>\n</tool_call>"},
                 {"lfm2", "<|tool_call_start|>[f(", ")]<|tool_call_end|>"},
                 {"deepseek-v3.2", "<" DSML "function_calls>\n<" DSML "invoke name=\"f\">\n",
                  "</" DSML "invoke>\n</" DSML "function_calls>"}};
    (void)state;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        sl_error error = {0};
        size_t at = 0;
        while (strcmp(CALLS[at].format, ROWS[i].format) != 0) {
            at++;
        }
        sl_reply_format *format =
            sl_reply_format_bind(sl_reply_format_named(ROWS[i].format), NULL, NULL, NULL);
        json_t *tools = tools_of(ROWS[i].parameters);
        sl_grammar *grammar = hold(format, tools, &error);
        if (!grammar) {
            fail_msg("%s: %s", ROWS[i].parameters, error.message);
        }
        for (const text *t = ROWS[i].texts; t < ROWS[i].texts + MOST_TEXTS && t->written; t++) {
            sl_buffer call = {0};
            sl_buffer_printf(&call, "%s%s%s", CALLS[at].before, t->written, CALLS[at].behind);
            sl_matcher *matcher = sl_matcher_create(grammar, &error);
            const bool taken = sl_matcher_accept_bytes(matcher, call.data, call.length, &error) == 1 &&
                               sl_matcher_can_end(matcher);
            sl_matcher_destroy(matcher);
            if (taken != (t->arguments != NULL)) {
                fail_msg("%s: %s is %s", ROWS[i].parameters, t->written, taken ? "accepted" : "refused");
            }
            if (taken) {
                expect_read(format, tools, call.data, t->arguments);
            }
            sl_buffer_free(&call);
        }
        sl_grammar_release(grammar);
        json_decref(tools);
        sl_free(format);
    }
}

static void what_is_not_held_is_refused_by_name(void **state) {
    (void)state;
    sl_reply_format *format = sl_reply_format_bind(sl_reply_format_named("qwen3-coder"), NULL, NULL, NULL);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        sl_error error = {0};
        json_t *tools = tools_of(REFUSED[i].parameters);
        sl_grammar *grammar = hold(format, tools, &error);
        if (grammar || !strstr(error.message, REFUSED[i].words) ||
            strncmp(error.message, "tools[0].function.parameters: ", 30) != 0) {
            fail_msg("%s: %s", REFUSED[i].parameters, grammar ? "accepted" : error.message);
        }
        json_decref(tools);
    }
    sl_free(format);
}

/* Every allocation fails once. */
static void memory_may_run_out(void **state) {
    (void)state;
    sl_reply_format *format = sl_reply_format_bind(sl_reply_format_named("qwen3-coder"), NULL, NULL, NULL);
    json_t *tools = tools_of("{\"oneOf\":[" SQUARE "," NAMED "]}");
    for (uint64_t nth = 1;; nth += 1 + nth / 16) {
        sl_error error = {0};
        const uint64_t before = sl_alloc_live_bytes();
        sl_alloc_fail_at(nth);
        sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
        const sl_reply_rules rules = {
            .format = format, .tools = tools, .choice = SL_REPLY_REQUIRED, .answer = SL_NO_EXPRESSION};
        const sl_expression root = builder ? sl_expression_reply(builder, &rules, &error) : SL_NO_EXPRESSION;
        sl_alloc_fail_at(0);
        sl_grammar_builder_destroy(builder);
        assert_int_equal(sl_alloc_live_bytes(), before);
        if (root != SL_NO_EXPRESSION) {
            assert_true(nth > 50);
            break;
        }
        assert_int_equal(error.code, SL_ERR_NOMEM);
    }
    json_decref(tools);
    sl_free(format);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_satisfy_the_whole_schema),
        cmocka_unit_test(what_is_not_held_is_refused_by_name),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests_name("arguments", tests, make, unmake);
}
