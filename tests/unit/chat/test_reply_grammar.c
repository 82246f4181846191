#define _GNU_SOURCE
/* Grammars of replies: what every format's publisher writes is accepted, what is not a call of a function
 * that exists with arguments of its schema is not, and whatever the mask lets through the parser reads as
 * such a call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "chat/reply.h"
#include "chat/reply_grammar.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":"
    "9},"
    "\"unit\":{\"enum\":[\"C\",\"F\"]},\"at\":{\"$ref\":\"#/$defs/place\"}},\"required\":[\"city\"],"
    "\"$defs\":{\"place\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"boolean\"}},"
    "\"required\":[\"x\"],\"additionalProperties\":false}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}}]";

#define BAR "\xef\xbd\x9c"
#define GAP "\xe2\x96\x81"
#define DSML BAR "DSML" BAR
#define DS(words) "<" BAR words BAR ">"

/* A call of get_weather with the city Lima and 3 days, and a call of get_time behind it, as in the sources
 * that test_reply.c names. */
typedef struct fixture {
    const char *format, *text;
} fixture;

static const fixture FIXTURES[] = {
    {"hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\", \"days\": 3}}\n"
               "</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>"},
    {"llama3-json",
     "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Lima\", \"days\": 3}}; {\"name\": "
     "\"get_time\", \"parameters\": {}}"},
    {"llama-pythonic", "[get_weather(city=\"Lima\", days=3), get_time()]"},
    {"lfm2", "<|tool_call_start|>[get_weather(city=\"Lima\", days=3), get_time()]<|tool_call_end|>"},
    {"olmo3", "<function_calls>\nget_weather(city=\"Lima\", days=3)\nget_time()</function_calls>"},
    {"mistral-list",
     "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\", \"days\": 3}}, "
     "{\"name\": \"get_time\", \"arguments\": {}}]"},
    {"mistral", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Lima\", \"days\": 3}[TOOL_CALLS]get_time[ARGS]{}"},
    {"deepseek-v3",
     DS("tool" GAP "calls" GAP "begin") DS("tool" GAP "call" GAP "begin") "function" DS(
         "tool" GAP "sep") "get_weather\n```json\n{\"city\": \"Lima\", \"days\": "
                           "3}\n```" DS("tool" GAP "call" GAP "end") "\n" DS(
                               "tool" GAP "call" GAP
                               "begin") "function" DS("tool" GAP "sep") "get_"
                                                                        "time"
                                                                        "\n``"
                                                                        "`jso"
                                                                        "n\n{"
                                                                        "}\n`"
                                                                        "`"
                                                                        "`" DS("tool" GAP "call" GAP "end")
                                                                            DS("tool" GAP "calls" GAP "end")},
    {"deepseek-v3.1",
     DS("tool" GAP "calls" GAP "begin") DS("tool" GAP "call" GAP "begin") "get_weather" DS(
         "tool" GAP "sep") "{\"city\": \"Lima\", \"days\": 3}" DS("tool" GAP "call" GAP "end")
         DS("tool" GAP "call" GAP "begin") "get_time" DS("tool" GAP "sep") "{}" DS(
             "tool" GAP "call" GAP "end") DS("tool" GAP "calls" GAP "end")},
    {"deepseek-v3.2",
     "<" DSML "function_calls>\n<" DSML "invoke name=\"get_weather\">\n<" DSML
     "parameter name=\"city\" string=\"true\">Lima</" DSML "parameter>\n<" DSML
     "parameter name=\"days\" string=\"false\">3</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
     "invoke name=\"get_time\">\n</" DSML "invoke>\n</" DSML "function_calls>"},
    {"kimi-k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
     "{\"city\": \"Lima\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.get_time:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
    {"qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nLima\n</"
                    "parameter>\n<parameter=days>\n3\n</parameter>\n"
                    "</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>"},
    {"seed-oss",
     "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Lima</parameter>\n<parameter=days>3</"
     "parameter>\n"
     "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>"},
    {"glm-4.5",
     "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Lima</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>"},
    {"minimax-m2",
     "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
     "name=\"city\">Lima</parameter>\n<parameter "
     "name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n</minimax:tool_call>"},
    {"harmony", "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": "
                "\"Lima\", \"days\": 3}"
                "<|call|><|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>"},
    {"gemma4",
     "<|tool_call>call:get_weather{city:<|\"|>Lima<|\"|>,days:3}<tool_call|><|tool_call>call:get_time{}"
     "<tool_call|>"},
    {"functiongemma",
     "<start_function_call>call:get_weather{city:<escape>Lima<escape>,days:3}<end_function_call>"
     "<start_function_call>call:get_time{}<end_function_call>"},
    {"command-r", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", "
                  "\"parameters\": {\"city\": "
                  "\"Lima\", \"days\": 3}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"get_time\", "
                  "\"parameters\": {}}\n]"
                  "<|END_ACTION|>"},
    {"apertus", "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Lima\", \"days\": 3}}, {\"get_time\": {}}]"
                "<|tools_suffix|>"},
    {"tool-call-list",
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\", \"days\": 3}}, "
     "{\"name\": \"get_time\", \"arguments\": {}}]"},
    {"internlm",
     "<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Lima\", "
     "\"days\": 3}}<|action_end|>\n<|action_start|><|plugin|>\n{\"name\": \"get_time\", \"parameters\": {}}"
     "<|action_end|>"},
    {"tool-calls-list",
     "<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\", \"days\": 3}}, "
     "{\"name\": \"get_time\", \"arguments\": {}}]</tool_calls>"},
    {"nemotron", "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lima\", \"days\": 3}}, "
                 "{\"name\": \"get_time\", \"arguments\": {}}]</TOOLCALL>"},
    {"function-tag",
     "<function=get_weather>{\"city\": \"Lima\", \"days\": 3}</function>\n<function=get_time>{}"
     "</function>"},
};
enum { FIXTURE_COUNT = sizeof FIXTURES / sizeof *FIXTURES, BYTES = 256, END = BYTES, TOKENS = BYTES + 1 };

static json_t *tools;
static sl_grammar_vocabulary *vocabulary;

/* Every byte, and an end. */
static void make_vocabulary(void) {
    static char bytes[BYTES];
    sl_grammar_token tokens[TOKENS] = {{0}};
    sl_error error;
    for (int i = 0; i < BYTES; i++) {
        bytes[i] = (char)i;
        tokens[i] = (sl_grammar_token){.bytes = &bytes[i], .count = 1};
    }
    tokens[END] = (sl_grammar_token){.is_special = true, .is_end = true};
    vocabulary = sl_grammar_vocabulary_create(tokens, TOKENS, &error);
    assert_non_null(vocabulary);
}

typedef struct held {
    sl_reply_format *format;
    sl_grammar *grammar;
} held;

/* `schema`: of the answer, or NULL. */
static held hold(const char *name, sl_reply_rules rules, const char *schema) {
    held h = {.format =
                  sl_reply_format_bind(sl_reply_format_named(name), rules.tokenizer, "<think>", "</think>")};
    sl_error error = {0};
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
    assert_non_null(h.format);
    assert_non_null(builder);
    rules.format = h.format;
    rules.answer =
        schema ? sl_expression_schema(builder, schema, strlen(schema), NULL, &error) : SL_NO_EXPRESSION;
    const sl_expression root = sl_expression_reply(builder, &rules, &error);
    if (root == SL_NO_EXPRESSION) {
        fail_msg("%s: %s", name, error.message);
    }
    h.grammar = sl_grammar_compile(builder, root, vocabulary, &error);
    if (!h.grammar) {
        fail_msg("%s: %s", name, error.message);
    }
    sl_grammar_builder_destroy(builder);
    return h;
}

static void let_go(held *h) {
    sl_grammar_release(h->grammar);
    sl_free(h->format);
}

/* How many bytes the grammar takes; *whole: and the text may end behind them. */
static size_t taken(const held *h, const char *text, bool *whole) {
    sl_error error;
    sl_matcher *matcher = sl_matcher_create(h->grammar, &error);
    size_t count = 0;
    assert_non_null(matcher);
    while (text[count] && sl_matcher_accept(matcher, (unsigned char)text[count], &error) == 1) {
        count++;
    }
    *whole = !text[count] && sl_matcher_can_end(matcher);
    sl_matcher_destroy(matcher);
    return count;
}

static void expect_accepted(const held *h, const char *name, const char *text) {
    bool whole;
    const size_t count = taken(h, text, &whole);
    if (!whole) {
        fail_msg("%s: stopped at %zu, before: %s", name, count, text + count);
    }
}

static void expect_refused(const held *h, const char *name, const char *text) {
    bool whole;
    taken(h, text, &whole);
    if (whole) {
        fail_msg("%s: accepted %s", name, text);
    }
}

/* The text with the first `old` replaced; NULL when it is not there. */
static char *replaced(const char *text, const char *old, const char *by) {
    const char *at = strstr(text, old);
    char *made = at ? malloc(strlen(text) + strlen(by) + 1) : NULL;
    if (made) {
        sprintf(made, "%.*s%s%s", (int)(at - text), text, by, at + strlen(old));
    }
    return made;
}

static const sl_reply_rules REQUIRED = {.choice = SL_REPLY_REQUIRED};

static sl_reply_rules with_tools(sl_reply_rules rules) {
    rules.tools = tools;
    return rules;
}

static void every_format_has_its_calls(void **state) {
    (void)state;
    for (int i = 0; sl_reply_format_at(i); i++) {
        bool found = strcmp(sl_reply_format_at(i)->name, "deepseek-v4") == 0; /* as v3.2 */
        for (int k = 0; k < FIXTURE_COUNT; k++) {
            found |= strcmp(FIXTURES[k].format, sl_reply_format_at(i)->name) == 0;
        }
        if (!found) {
            fail_msg("%s", sl_reply_format_at(i)->name);
        }
    }
    for (int i = 0; i < FIXTURE_COUNT; i++) {
        held h = hold(FIXTURES[i].format, with_tools(REQUIRED), NULL);
        expect_accepted(&h, FIXTURES[i].format, FIXTURES[i].text);
        let_go(&h);
    }
}

static void other_calls_are_refused(void **state) {
    (void)state;
    static const char *const CHANGES[][2] = {
        {"get_weather", "get_wether"},
        {"get_time", "get_times"},
        {"days", "dayz"},
        {"3", "x"},
        {"3", "12"},
        {"city", "CITY"},
        {"get_weather", "get_weather "},
    };
    for (int i = 0; i < FIXTURE_COUNT; i++) {
        held h = hold(FIXTURES[i].format, with_tools(REQUIRED), NULL);
        for (size_t k = 0; k < sizeof CHANGES / sizeof *CHANGES; k++) {
            char *text = replaced(FIXTURES[i].text, CHANGES[k][0], CHANGES[k][1]);
            assert_non_null(text);
            expect_refused(&h, FIXTURES[i].format, text);
            free(text);
        }
        expect_refused(&h, FIXTURES[i].format, "");
        expect_refused(&h, FIXTURES[i].format, "Hello");
        let_go(&h);
    }
}

static void choices_are_held(void **state) {
    (void)state;
    for (int i = 0; i < FIXTURE_COUNT; i++) {
        const fixture *f = &FIXTURES[i];
        held named =
            hold(f->format, with_tools((sl_reply_rules){.choice = SL_REPLY_REQUIRED, .function = "get_time"}),
                 NULL);
        expect_refused(&named, f->format, f->text);
        let_go(&named);
        held one =
            hold(f->format, with_tools((sl_reply_rules){.choice = SL_REPLY_REQUIRED, .single = true}), NULL);
        expect_refused(&one, f->format, f->text);
        let_go(&one);
        held automatic = hold(f->format, with_tools((sl_reply_rules){.choice = SL_REPLY_AUTO}), NULL);
        char *changed = replaced(f->text, "get_weather", "get_whether");
        expect_accepted(&automatic, f->format, f->text);
        expect_accepted(&automatic, f->format, "Hello [x] <b> {\"a\": 1}");
        expect_accepted(&automatic, f->format, "");
        if (!sl_reply_format_named(f->format)->at_start) { /* there it is text */
            expect_refused(&automatic, f->format, changed);
        }
        free(changed);
        let_go(&automatic);
        held none = hold(f->format, with_tools((sl_reply_rules){.choice = SL_REPLY_FORBIDDEN}), NULL);
        expect_refused(&none, f->format, f->text);
        expect_accepted(&none, f->format, "Hello [x] <b> {\"a\": 1}");
        let_go(&none);
    }
}

static void thoughts_stand_before(void **state) {
    (void)state;
    static const char SCHEMA[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
                                 "\"required\":[\"a\"],\"additionalProperties\":false}";
    held open =
        hold("hermes",
             with_tools((sl_reply_rules){.choice = SL_REPLY_REQUIRED, .thought = SL_REPLY_THINKING}), NULL);
    expect_accepted(&open, "open",
                    "hm <tool_call> hm</think>\n\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": "
                    "{}}\n</tool_call>");
    expect_refused(&open, "open",
                   "hm\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>");
    let_go(&open);
    held may =
        hold("hermes", with_tools((sl_reply_rules){.choice = SL_REPLY_AUTO, .thought = SL_REPLY_MAY_THINK}),
             SCHEMA);
    expect_accepted(&may, "may", "<think>hm</think>\n\n{\"a\": 1}");
    expect_accepted(&may, "may", "{\"a\": 1}");
    expect_accepted(&may, "may",
                    "<think></think><tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>");
    expect_refused(&may, "may", "<think>hm</think>\n\n{\"a\": \"1\"}");
    expect_refused(&may, "may", "<think>hm");
    let_go(&may);
    held never = hold("hermes", (sl_reply_rules){.thought = SL_REPLY_NO_THOUGHT}, SCHEMA);
    expect_accepted(&never, "never", "{\"a\": 1}");
    expect_refused(&never, "never", "<think>hm</think>{\"a\": 1}");
    let_go(&never);
    held harmony = hold("harmony", (sl_reply_rules){.thought = SL_REPLY_MAY_THINK}, SCHEMA);
    expect_accepted(
        &harmony, "harmony",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}");
    expect_refused(&harmony, "harmony", "<|channel|>final<|message|>hm");
    let_go(&harmony);
}

/* ---- special tokens ---- */

enum { MARKS = 5, FIRST_MARK = BYTES + 1, SPECIAL_TOKENS = FIRST_MARK + MARKS };

/* Kimi's marks as tokens behind all bytes; the last one is text to the tokenizer, and special to grammars. */
static sl_tokenizer *special_tokenizer(void) {
    static const char json[] =
        "{\"added_tokens\":[{\"id\":257,\"content\":\"<|tool_call_begin|>\",\"special\":true},"
        "{\"id\":258,\"content\":\"<|tool_call_end|>\",\"special\":true},"
        "{\"id\":259,\"content\":\"<|tool_call_argument_begin|>\",\"special\":true},"
        "{\"id\":260,\"content\":\"<|tool_calls_section_begin|>\",\"special\":true},"
        "{\"id\":261,\"content\":\"<|tool_calls_section_end|>\",\"special\":false}],"
        "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0}}}";
    sl_tokenizer *tokenizer;
    sl_error error;
    assert_int_equal(
        sl_tokenizer_from_json_memory(sl_view_of(json), (sl_view){NULL, 0}, "special", &tokenizer, &error),
        0);
    return tokenizer;
}

static bool is_special(const void *owner, int32_t token) {
    (void)owner;
    return token >= FIRST_MARK;
}

/* Bytes are themselves, "\x81" to "\x85" the marks in the order of their ids. False: refused somewhere. */
static bool accepts_tokens(const held *h, const char *text) {
    sl_error error;
    sl_matcher *matcher = sl_matcher_create(h->grammar, &error);
    bool good = true;
    assert_non_null(matcher);
    for (; good && *text; text++) {
        const unsigned char c = (unsigned char)*text;
        good = sl_matcher_accept(matcher, c > 0x80 ? FIRST_MARK + c - 0x81 : c, &error) == 1;
    }
    good = good && sl_matcher_can_end(matcher);
    sl_matcher_destroy(matcher);
    return good;
}

static void marks_that_are_tokens_are_tokens(void **state) {
    (void)state;
    sl_grammar_vocabulary *bytes = vocabulary;
    sl_grammar_token tokens[SPECIAL_TOKENS] = {{0}};
    static char letters[BYTES];
    sl_error error;
    for (int i = 0; i < SPECIAL_TOKENS; i++) {
        letters[i % BYTES] = (char)(i % BYTES);
        tokens[i] = i < BYTES ? (sl_grammar_token){.bytes = &letters[i], .count = 1}
                              : (sl_grammar_token){.is_special = true, .is_end = i == END};
    }
    vocabulary = sl_grammar_vocabulary_create(tokens, SPECIAL_TOKENS, &error);
    assert_non_null(vocabulary);
    sl_tokenizer *tokenizer = special_tokenizer();
    const sl_reply_rules rules = {.tokenizer = tokenizer, .is_special = is_special, .choice = SL_REPLY_AUTO};
    held h = hold("kimi-k2", with_tools(rules), NULL);
    assert_true(accepts_tokens(&h, "Hi.\x84\x81"
                                   "functions.get_time:0\x83{}\x82\x85"));
    assert_true(accepts_tokens(&h, "Marks are spelled <|tool_call_begin|>functions.x:0"));
    /* What closes a section is text to the tokenizer: the grammar wants the token. */
    assert_false(accepts_tokens(&h, "\x84\x81"
                                    "functions.get_time:0\x83{}\x82<|tool_calls_section_end|>"));
    assert_false(accepts_tokens(&h, "\x84\x81"
                                    "functions.get_weather:0\x83{\"city\": \"a\x82\"}\x82\x85"));
    assert_false(accepts_tokens(&h, "Hi\x82"));
    let_go(&h);
    sl_tokenizer_destroy(tokenizer);
    sl_grammar_vocabulary_release(vocabulary);
    vocabulary = bytes;
}

/* ---- walks ---- */

typedef struct reading {
    const char *whole;
    sl_buffer arguments;
    int calls, ends;
} reading;

static bool has_only(const json_t *object, const char *const *keys) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool found = false;
        for (const char *const *k = keys; *k; k++) {
            found |= strcmp(*k, key) == 0;
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

/* What the schema of get_weather says, by hand. */
static bool is_weather(const json_t *a) {
    static const char *const KEYS[] = {"city", "days", "unit", "at", NULL}, *const PLACE[] = {"x", NULL};
    const json_t *days = json_object_get(a, "days"), *unit = json_object_get(a, "unit"),
                 *at = json_object_get(a, "at");
    const char *letter = json_string_value(unit);
    return json_is_object(a) && has_only(a, KEYS) && json_is_string(json_object_get(a, "city")) &&
           (!days ||
            (json_is_integer(days) && json_integer_value(days) >= 1 && json_integer_value(days) <= 9)) &&
           (!unit || (letter && (strcmp(letter, "C") == 0 || strcmp(letter, "F") == 0))) &&
           (!at || (json_is_object(at) && has_only(at, PLACE) && json_is_boolean(json_object_get(at, "x"))));
}

static void take(void *context, const sl_reply_event *e) {
    reading *r = context;
    if (e->kind == SL_REPLY_CALL) {
        r->calls++;
        sl_buffer_clear(&r->arguments);
        sl_buffer_append(&r->arguments, e->text, e->length);
    } else if (e->kind == SL_REPLY_ARGUMENT) {
        sl_buffer_append(&r->arguments, e->text, e->length);
    } else if (e->kind == SL_REPLY_CALL_END) {
        const bool weather = strncmp(r->arguments.data, "get_weather", 11) == 0;
        json_t *a = json_loads(r->arguments.data + (weather ? 11 : 8), JSON_ALLOW_NUL, NULL);
        r->ends++;
        if (weather ? !is_weather(a) : !json_is_object(a) || json_object_size(a) > 0) {
            fail_msg("arguments: %s of %s", r->arguments.data, r->whole);
        }
        json_decref(a);
    } else {
        fail_msg("text beside calls: %.*s: %s", (int)e->length, e->text, r->whole);
    }
}

static uint64_t next(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

/* A mark that closes what is open, if one can come. */
static bool close_mark(const held *h, sl_matcher *matcher, sl_buffer *text) {
    static const int CLOSES[] = {SL_REPLY_QUOTE, SL_REPLY_VALUE_CLOSE, SL_REPLY_CALL_CLOSE,
                                 SL_REPLY_SECTION_CLOSE};
    sl_error error;
    for (size_t i = 0; i < sizeof CLOSES / sizeof *CLOSES; i++) {
        const char *mark = h->format->marks[CLOSES[i]];
        if (mark && sl_matcher_accept_bytes(matcher, mark, strlen(mark), &error) == 1) {
            sl_buffer_text(text, mark);
            return true;
        }
    }
    return false;
}

/* A random text under the mask; false when it did not end in time. */
static bool walk(const held *h, uint64_t *random, sl_buffer *text) {
    enum { MOST = 1200, LONG = 200 };
    uint32_t mask[(TOKENS + 31) / 32];
    sl_error error;
    sl_matcher *matcher = sl_matcher_create(h->grammar, &error);
    bool ended = false;
    assert_non_null(matcher);
    for (int i = 0; i < MOST && !ended; i++) {
        static const char CLOSING[] = "\"<|/>}])";
        int32_t allowed[TOKENS], count = 0, chosen = -1;
        if (i > LONG && close_mark(h, matcher, text)) {
            continue;
        }
        assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
        for (int32_t t = 0; t < TOKENS; t++) {
            if (mask[t / 32] >> (t % 32) & 1) {
                allowed[count++] = t;
            }
        }
        assert_true(count > 0);
        if (i > LONG) {
            chosen = mask[END / 32] >> (END % 32) & 1 ? END : -1;
            for (size_t k = 0; chosen < 0 && next(random) % 4 && k < sizeof CLOSING - 1; k++) {
                const int32_t t = CLOSING[k];
                chosen = mask[t / 32] >> (t % 32) & 1 ? t : -1;
            }
        }
        chosen = chosen >= 0 ? chosen : allowed[next(random) % (uint64_t)count];
        assert_int_equal(sl_matcher_accept(matcher, chosen, &error), 1);
        ended = chosen == END;
        if (!ended) {
            const char byte = (char)chosen;
            sl_buffer_append(text, &byte, 1);
        }
    }
    sl_matcher_destroy(matcher);
    return ended;
}

static void walks_are_calls(void **state) {
    enum { WALKS = 30 };
    uint64_t random = 7;
    (void)state;
    for (int i = 0; i < FIXTURE_COUNT; i++) {
        held h = hold(FIXTURES[i].format, with_tools(REQUIRED), NULL);
        int ended = 0;
        for (int k = 0; k < WALKS; k++) {
            sl_buffer text = {0};
            if (walk(&h, &random, &text)) {
                sl_error error;
                sl_reply *reply;
                reading r = {.whole = text.data};
                const sl_reply_options options = {
                    .format = h.format, .tools = tools, .event = take, .context = &r};
                assert_int_equal(sl_reply_create(&options, &reply, &error), 0);
                assert_int_equal(sl_reply_feed(reply, text.data, text.length, &error), 0);
                assert_int_equal(sl_reply_finish(reply, false, &error), 0);
                if (r.calls == 0 || r.ends != r.calls) {
                    fail_msg("%s: %d calls, %d ends: %s", FIXTURES[i].format, r.calls, r.ends, text.data);
                }
                sl_reply_free(reply);
                sl_buffer_free(&r.arguments);
                ended++;
            }
            sl_buffer_free(&text);
        }
        if (ended < WALKS / 3) {
            fail_msg("%s: only %d of %d walks ended", FIXTURES[i].format, ended, WALKS);
        }
        let_go(&h);
    }
}

/* ---- bounds ---- */

static void hundred_tools_are_fast(void **state) {
    (void)state;
    json_t *mine = tools, *many = json_array();
    struct timespec from, to;
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "function_%d", i);
        json_t *one = json_deep_copy(json_array_get(mine, 0));
        json_object_set_new(json_object_get(one, "function"), "name", json_string(name));
        json_array_append_new(many, one);
    }
    tools = many;
    for (int i = 0; i < FIXTURE_COUNT; i++) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        held h = hold(FIXTURES[i].format, with_tools((sl_reply_rules){.choice = SL_REPLY_AUTO}), NULL);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        let_go(&h);
        const double seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
        printf("%-16s %.1f ms\n", FIXTURES[i].format, seconds * 1e3);
        assert_true(seconds < 5);
    }
    tools = mine;
    json_decref(many);
}

static void schemas_are_refused_by_name(void **state) {
    (void)state;
    json_t *bad =
        json_loads("[{\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":\"g\",\"parameters\":{\"type\":"
                   "\"object\",\"properties\":{\"a\":{\"enum\":[]}},\"required\":[\"a\"]}}}]",
                   0, NULL);
    sl_error error = {0};
    sl_reply_format *format = sl_reply_format_bind(sl_reply_format_named("hermes"), NULL, NULL, NULL);
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
    const sl_reply_rules rules = {.format = format, .tools = bad, .answer = SL_NO_EXPRESSION};
    assert_int_equal(sl_expression_reply(builder, &rules, &error), SL_NO_EXPRESSION);
    assert_int_equal(strncmp(error.message, "tools[1].function.parameters: ", 30), 0);
    sl_grammar_builder_destroy(builder);
    sl_free(format);
    json_decref(bad);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format_has_its_calls),
                                       cmocka_unit_test(other_calls_are_refused),
                                       cmocka_unit_test(choices_are_held),
                                       cmocka_unit_test(thoughts_stand_before),
                                       cmocka_unit_test(walks_are_calls),
                                       cmocka_unit_test(hundred_tools_are_fast),
                                       cmocka_unit_test(schemas_are_refused_by_name),
                                       cmocka_unit_test(marks_that_are_tokens_are_tokens)};
    tools = json_loads(TOOLS, 0, NULL);
    make_vocabulary();
    const int failed = tools ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    sl_grammar_vocabulary_release(vocabulary);
    json_decref(tools);
    return failed;
}
