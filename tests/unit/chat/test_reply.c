/* Replies of every format, read whole, cut in two at every byte and ended at every byte. What they are to
 * give is what the publishers' pages or other engines' tests say of the same text; the source stands beside
 * each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "chat/chat.h"
#include "chat/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Functions that fixtures call; types decide what is a text where a format does not say. */
static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"metric\":{\"type\":\"string\"},\"days\":{\"type\":"
    "\"integer\"},"
    "\"wind\":{\"type\":[\"boolean\",\"null\"]},\"at\":{\"$ref\":\"#/$defs/place\"},"
    "\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"free\":{}},"
    "\"$defs\":{\"place\":{\"type\":\"object\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"register_user\"}}]";

typedef struct reading {
    sl_buffer reasoning, content, calls;
    int32_t open; /* a call without its end; -1: none */
    int events;
} reading;

static void take(void *context, const sl_reply_event *e) {
    reading *to = context;
    to->events++;
    switch (e->kind) {
    case SL_REPLY_REASONING:
        sl_buffer_append(&to->reasoning, e->text, e->length);
        break;
    case SL_REPLY_CONTENT:
        assert_int_equal(to->open, -1);
        sl_buffer_append(&to->content, e->text, e->length);
        break;
    case SL_REPLY_CALL:
        assert_int_equal(to->open, -1);
        to->open = e->call;
        sl_buffer_append(&to->calls, e->text, e->length);
        break;
    case SL_REPLY_ARGUMENT:
        assert_int_equal(to->open, e->call);
        assert_true(e->length > 0);
        sl_buffer_append(&to->calls, e->text, e->length);
        break;
    case SL_REPLY_CALL_END:
        assert_int_equal(to->open, e->call);
        to->open = -1;
        sl_buffer_text(&to->calls, "\n");
    }
}

static const char *text_of(const sl_buffer *buffer) {
    return buffer->data ? buffer->data : "";
}

static void free_reading(reading *r) {
    sl_buffer_free(&r->reasoning);
    sl_buffer_free(&r->content);
    sl_buffer_free(&r->calls);
}

typedef struct fixture {
    const char *format;
    bool opened;
    const char *text;
    const char *reasoning, *content;
    const char *calls; /* name and arguments, a line for each */
    bool no_tools;
} fixture;

static json_t *tools;

/* In pieces of the given sizes; the rest at once. */
static reading read_pieces(const fixture *f, const char *text, size_t length, const size_t *cuts,
                           size_t count, bool cut) {
    reading r = {.open = -1};
    sl_error error;
    sl_reply *reply;
    const sl_reply_format *named = sl_reply_format_named(f->format);
    sl_reply_format *format =
        sl_reply_format_bind(named ? named : &SL_REPLY_PLAIN, NULL, "<think>", "</think>");
    const sl_reply_options options = {.format = format,
                                      .tools = f->no_tools ? NULL : tools,
                                      .opened = f->opened,
                                      .event = take,
                                      .context = &r};
    assert_non_null(format);
    assert_int_equal(sl_reply_create(&options, &reply, &error), 0);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(sl_reply_feed(reply, text + at, cuts[i] - at, &error), 0);
        at = cuts[i];
    }
    assert_int_equal(sl_reply_feed(reply, text + at, length - at, &error), 0);
    assert_int_equal(sl_reply_finish(reply, cut, &error), 0);
    sl_reply_free(reply);
    sl_free(format);
    return r;
}

static void expect_same(const fixture *f, const reading *r) {
    assert_string_equal(text_of(&r->reasoning), f->reasoning ? f->reasoning : "");
    assert_string_equal(text_of(&r->content), f->content ? f->content : "");
    assert_string_equal(text_of(&r->calls), f->calls ? f->calls : "");
    assert_int_equal(r->open, -1);
}

#define BAR "\xef\xbd\x9c"
#define GAP "\xe2\x96\x81"

static const fixture FIXTURES[] = {
    /* Qwen's documentation, "Function Calling", the answer of Qwen3 with two calls. */
    {"hermes", false,
     "<think>\nTwo things are wanted.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
     "{\"city\": \"San Francisco, CA, USA\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", "
     "\"arguments\": {\"city\": \"Lima\", \"days\": 2}}\n</tool_call>",
     "Two things are wanted.", NULL,
     "get_weather{\"city\": \"San Francisco, CA, USA\"}\nget_weather{\"city\": \"Lima\", \"days\": 2}\n",
     false},
    /* vLLM, tests of the Hermes parser: text in front, no line breaks, arguments first, unicode, a closing
     * mark in a string. */
    {"hermes", false,
     "I'll look.\n<tool_call>{\"arguments\": {\"city\": \"S\xc3\xa3o \\\"Paulo\\\" </tool_call>\"}, "
     "\"name\": "
     "\"get_weather\"}</tool_call>\nDone.",
     NULL, "I'll look.Done.", "get_weather{\"city\": \"S\xc3\xa3o \\\"Paulo\\\" </tool_call>\"}\n", false},
    {"hermes", true, "Let me\n think</think>\n\nHi <b>there</b>\n", "Let me\n think", "Hi <b>there</b>\n",
     NULL, false},
    /* No arguments in four ways; arguments as a text of JSON. */
    {"hermes", false,
     "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
     "\"get_time\"}\n</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": null}\n</tool_call>"
     "<tool_call>{\"name\": \"get_time\", \"arguments\": \"\"}</tool_call><tool_call>{\"name\": "
     "\"get_weather\", "
     "\"arguments\": \"{\\\"city\\\": \\\"Oslo\\\"}\", \"id\": 7}</tool_call>",
     NULL, NULL, "get_time{}\nget_time{}\nget_time{}\nget_time{}\nget_weather{\"city\": \"Oslo\"}\n", false},
    /* What is no call is content. */
    {"hermes", false, "The tag <tool_call> opens a call, <tool_call>{\"a\": 1}</tool_call> does not.", NULL,
     "The tag <tool_call> opens a call, <tool_call>{\"a\": 1}</tool_call> does not.", NULL, false},
    {"hermes", false, "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", NULL,
     "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", NULL, true},
    {"plain", false, " \n<think>a</think>b <think>c</think>", "a", "b <think>c</think>", NULL, false},
    /* Meta's prompt format of Llama 3.1, "JSON based tool calling"; vLLM's tests of the parser: several with
     * semicolons between. */
    {"llama3-json", false,
     "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"San Francisco\"}}; {\"name\": \"get_time\", "
     "\"parameters\": {}}",
     NULL, NULL, "get_weather{\"city\": \"San Francisco\"}\nget_time{}\n", false},
    {"llama3-json", false, "<|python_tag|>{\"name\": \"get_time\", \"parameters\": {}}", NULL, NULL,
     "get_time{}\n", false},
    {"llama3-json", false,
     "{\"name\": \"Alice\", \"age\": 3} and {\"name\": \"get_time\", \"parameters\": {}}", NULL,
     "{\"name\": \"Alice\", \"age\": 3} and {\"name\": \"get_time\", \"parameters\": {}}", NULL, false},
    /* vLLM, tests of the pythonic parser. */
    {"llama-pythonic", false, "[get_weather(city='San Francisco', metric='celsius'), get_time()]", NULL, NULL,
     "get_weather{\"city\": \"San Francisco\", \"metric\": \"celsius\"}\nget_time{}\n", false},
    {"llama-pythonic", false,
     "[register_user(name='John Doe', age=37, address={'city': 'San Francisco', 'state': 'CA'}, role=None, "
     "passed_test=True, aliases=['John', 'Johnny'])]",
     NULL, NULL,
     "register_user{\"name\": \"John Doe\", \"age\": 37, \"address\": {\"city\": \"San Francisco\", "
     "\"state\": "
     "\"CA\"}, \"role\": null, \"passed_test\": true, \"aliases\": [\"John\", \"Johnny\"]}\n",
     false},
    {"llama-pythonic", false, "[get_weather(city='Martha\\'s Vineyard', metric='\\\"cool units\\\"')]", NULL,
     NULL, "get_weather{\"city\": \"Martha's Vineyard\", \"metric\": \"\\\"cool units\\\"\"}\n", false},
    {"llama-pythonic", false, "[1, 2] is a list", NULL, "[1, 2] is a list", NULL, false},
    /* Liquid AI's documentation of LFM2, "Tool use". */
    {"lfm2", false,
     "Let me check that.<|tool_call_start|>[get_weather(city=\"12345\")]<|tool_call_end|>Checking.", NULL,
     "Let me check that.Checking.", "get_weather{\"city\": \"12345\"}\n", false},
    /* Ai2's template of OLMo 3: a call a line. */
    {"olmo3", false, "<function_calls>\nget_weather(city=\"Lima\", days=3)\nget_time()\n</function_calls>",
     NULL, NULL, "get_weather{\"city\": \"Lima\", \"days\": 3}\nget_time{}\n", false},
    /* Mistral's v3 tokenizer; v11 and later. */
    {"mistral-list", false,
     "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": "
     "\"bbc5b7ede\"}, "
     "{\"name\": \"get_time\", \"arguments\": {}, \"id\": \"wV49Wn2Vb\"}]",
     NULL, NULL, "get_weather{\"city\": \"Paris\"}\nget_time{}\n", false},
    {"mistral", false,
     "[THINK]Hm.[/THINK]I look it up.[TOOL_CALLS]get_weather[CALL_ID]bbc5b7ede[ARGS]{\"city\": \"Paris\"}"
     "[TOOL_CALLS]get_time[ARGS]{}",
     "Hm.", "I look it up.", "get_weather{\"city\": \"Paris\"}\nget_time{}\n", false},
    /* DeepSeek's templates of R1 and V3, and V3.1. */
    {"deepseek-v3", true,
     "ok</think>\n\n<" BAR "tool" GAP "calls" GAP "begin" BAR "><" BAR "tool" GAP "call" GAP "begin" BAR
     ">function<" BAR "tool" GAP "sep" BAR ">get_weather\n```json\n{\"city\": \"Tokyo\"}\n```<" BAR "tool" GAP
     "call" GAP "end" BAR ">\n<" BAR "tool" GAP "call" GAP "begin" BAR ">function<" BAR "tool" GAP "sep" BAR
     ">get_time\n```json\n{}\n```<" BAR "tool" GAP "call" GAP "end" BAR "><" BAR "tool" GAP "calls" GAP
     "end" BAR ">",
     "ok", NULL, "get_weather{\"city\": \"Tokyo\"}\nget_time{}\n", false},
    {"deepseek-v3.1", false,
     "<" BAR "tool" GAP "calls" GAP "begin" BAR "><" BAR "tool" GAP "call" GAP "begin" BAR ">get_weather<" BAR
     "tool" GAP "sep" BAR ">{\"city\": \"Tokyo\"}<" BAR "tool" GAP "call" GAP "end" BAR "><" BAR "tool" GAP
     "calls" GAP "end" BAR ">",
     NULL, NULL, "get_weather{\"city\": \"Tokyo\"}\n", false},
    /* DeepSeek V3.2's encoding, its page's example. */
    {"deepseek-v3.2", false,
     "\n\n<" BAR "DSML" BAR "function_calls>\n<" BAR "DSML" BAR "invoke name=\"get_weather\">\n<" BAR
     "DSML" BAR "parameter name=\"city\" string=\"true\">5</" BAR "DSML" BAR "parameter>\n<" BAR "DSML" BAR
     "parameter name=\"days\" string=\"false\">3</" BAR "DSML" BAR "parameter>\n</" BAR "DSML" BAR
     "invoke>\n</" BAR "DSML" BAR "function_calls>",
     NULL, NULL, "get_weather{\"city\": \"5\", \"days\": 3}\n", false},
    /* Kimi's page on tool calls; SGLang's and vLLM's tests write blanks around the marks. */
    {"kimi-k2", false,
     "I'll help. <|tool_calls_section_begin|> <|tool_call_begin|>\nfunctions.get_weather:0 "
     "<|tool_call_argument_begin|>{\"city\": \"\xe6\x9d\xad\xe5\xb7\x9e\"}<|tool_call_end|> "
     "<|tool_call_begin|>"
     "functions.get_time:11<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     NULL, "I'll help.", "get_weather{\"city\": \"\xe6\x9d\xad\xe5\xb7\x9e\"}\nget_time{}\n", false},
    /* vLLM, tests of the Qwen3-Coder parser. */
    {"qwen3-coder", false,
     "Sure! Let me check.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nDallas\n\nTX "
     "\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n<parameter=wind>\nTrue\n</parameter>\n<parameter=at>\n{\"x\": 1, "
     "\"y\": "
     "\"</p>\"}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=get_time>\n</function>\n</tool_call>",
     NULL, "Sure! Let me check.",
     "get_weather{\"city\": \"Dallas\\n\\nTX \", \"days\": 3, \"wind\": true, \"at\": {\"x\": 1, \"y\": "
     "\"</p>\"}, "
     "\"note\": null}\nget_time{}\n",
     false},
    {"qwen3-coder", false,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n</parameter>\n<parameter=note>\n12\n</"
     "parameter>\n"
     "<parameter=free>\nabc\n</parameter>\n</function>\n</tool_call>",
     NULL, NULL, "get_weather{\"city\": \"\", \"note\": \"12\", \"free\": \"abc\"}\n", false},
    /* ByteDance's page of Seed-OSS. */
    {"seed-oss", false,
     "<seed:think>\nHm.\n</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Barcelona"
     "</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
     "Hm.", NULL, "get_weather{\"city\": \"Barcelona\", \"days\": 2}\n", false},
    /* vLLM, tests of the GLM-4.5 parser; GLM-4.7's template writes no line breaks. */
    {"glm-4.5", false,
     "<think></think>\nI will "
     "help.<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Dallas</arg_value>"
     "\n<arg_key>days</arg_key>\n<arg_value>7</arg_value>\n</tool_call>\n<tool_call>get_time</tool_call>"
     "<tool_call>get_weather<arg_key>city</arg_key><arg_value> x </arg_value></tool_call>",
     NULL, "I will help.",
     "get_weather{\"city\": \"Dallas\", \"days\": 7}\nget_time{}\nget_weather{\"city\": \" x \"}\n", false},
    /* MiniMax's guide to M2's tool calls. */
    {"minimax-m2", true,
     "Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">San \"F\""
     "</parameter>\n<parameter name=\"at\">[1, 2]</parameter>\n</invoke>\n<invoke "
     "name=\"get_time\">\n</invoke>\n"
     "</minimax:tool_call>",
     "Hm.", NULL, "get_weather{\"city\": \"San \\\"F\\\"\", \"at\": [1, 2]}\nget_time{}\n", false},
    /* OpenAI's harmony guide: a thought, a preamble, a call; the answer. */
    {"harmony", false,
     "<|channel|>analysis<|message|>Need to use function get_weather.<|end|><|start|>assistant<|channel|>"
     "commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
     "<|constrain|>json<|message|>{\"city\":\"San Francisco\"}<|call|>",
     "Need to use function get_weather.", "I look.", "get_weather{\"city\": \"San Francisco\"}\n", false},
    {"harmony", false, "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}",
     NULL, NULL, "get_time{}\n", false},
    {"harmony", false,
     "<|channel|>analysis<|message|>2 + 2.<|end|><|start|>assistant<|channel|>final<|message|>4", "2 + 2.",
     "4", NULL, true},
    /* Google's page on Gemma 4's function calls. */
    {"gemma4", false,
     "<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|\"|>quite \"hi\"\\ "
     "<b>,}<|\"|>,days:3,"
     "free:[1,{a:true,b:<|\"|>x<|\"|>}]}<tool_call|><|tool_call>call:get_time{}<tool_call|>",
     "Hm.", NULL,
     "get_weather{\"city\": \"quite \\\"hi\\\"\\\\ <b>,}\", \"days\": 3, \"free\": [1, {\"a\": true, \"b\": "
     "\"x\"}]}\nget_time{}\n",
     false},
    {"functiongemma", false,
     "<start_function_call>call:get_weather{city:<escape>London<escape>}<end_function_call>", NULL, NULL,
     "get_weather{\"city\": \"London\"}\n", false},
    /* Cohere's Command A; Apertus; IBM's Granite 3.3; InternLM 2.5; NVIDIA's Nemotron Nano 2;
       Functionary 3.1. */
    {"command-r", false,
     "<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
     "\"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}},\n    {\"tool_call_id\": \"1\", "
     "\"tool_name\": \"get_time\", \"parameters\": {}}\n]<|END_ACTION|>",
     "I will look.", NULL, "get_weather{\"city\": \"Rome\"}\nget_time{}\n", false},
    {"command-r", false, "<|START_RESPONSE|>Hello<|END_RESPONSE|>", NULL, "Hello", NULL, false},
    {"apertus", false,
     "<|inner_prefix|>Hm.<|inner_suffix|><|tools_prefix|>[{\"get_weather\": {\"city\": \"Bern\"}}, "
     "{\"get_time\": "
     "{}}]<|tools_suffix|>",
     "Hm.", NULL, "get_weather{\"city\": \"Bern\"}\nget_time{}\n", false},
    {"tool-call-list", false,
     "<|tool_call|>[{\"arguments\": {\"city\": \"Oslo\"}, \"name\": \"get_weather\"}, {\"name\": "
     "\"get_time\", "
     "\"arguments\": {}}]",
     NULL, NULL, "get_weather{\"city\": \"Oslo\"}\nget_time{}\n", false},
    {"internlm", false,
     "ok<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Bonn\"}}"
     "<|action_end|>\n",
     NULL, "ok", "get_weather{\"city\": \"Bonn\"}\n", false},
    {"nemotron", false,
     "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bonn\"}}]</TOOLCALL>", NULL, NULL,
     "get_weather{\"city\": \"Bonn\"}\n", false},
    {"function-tag", false, "<function=get_weather>{\"city\": \"Bonn\"}</function>", NULL, NULL,
     "get_weather{\"city\": \"Bonn\"}\n", false},
    /* Broken: what can be saved is JSON, and no mark comes out. */
    {"hermes", false,
     "<tool_call>{\"name\": \"get_weather\", \"arguments\": {'city': 'Rio\nGrande', \"days\": "
     "3,}}</tool_call>"
     "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\", \"days\": [1</tool_call>end",
     NULL, "end",
     "get_weather{\"city\": \"Rio\\nGrande\", \"days\": 3}\nget_weather{\"city\": \"x\", \"days\": [1]}\n",
     false},
};
enum { FIXTURE_COUNT = sizeof FIXTURES / sizeof *FIXTURES };

static void replies_are_what_they_are(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        const fixture *f = &FIXTURES[i];
        reading r = read_pieces(f, f->text, strlen(f->text), NULL, 0, false);
        expect_same(f, &r);
        free_reading(&r);
    }
}

static void pieces_give_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        const fixture *f = &FIXTURES[i];
        const size_t length = strlen(f->text);
        size_t all[2048];
        assert_true(length <= 2048);
        for (size_t cut = 0; cut <= length; cut++) {
            reading r = read_pieces(f, f->text, length, &cut, 1, false);
            expect_same(f, &r);
            free_reading(&r);
            all[cut < 2047 ? cut : 2047] = cut;
        }
        reading r = read_pieces(f, f->text, length, all, length, false);
        expect_same(f, &r);
        free_reading(&r);
    }
}

static bool begins(const char *whole, const sl_buffer *part, bool but_blanks) {
    size_t length = part->length;
    while (but_blanks && length > 0 && strchr(" \n", part->data[length - 1])) {
        length--; /* blanks that a mark would have swallowed */
    }
    return length == 0 || (length <= strlen(whole) && memcmp(whole, part->data, length) == 0);
}

/* What stands for a character that was cut is left out. */
static void drop_replacement(sl_buffer *part) {
    if (part->length >= 3 && memcmp(part->data + part->length - 3, "\xef\xbf\xbd", 3) == 0) {
        part->data[part->length -= 3] = '\0';
    }
}

/* As decoders end a text whose last character is not whole; *length: of both. */
static void replace_cut_character(char *text, size_t *length) {
    size_t start = *length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xc0) == 0x80) {
        start--;
    }
    memcpy(text + start - 1, "\xef\xbf\xbd", 4);
    *length = start + 2;
}

/* What a limit leaves is a beginning of what would have come, but for texts that are no call after all. */
static void a_limit_leaks_no_mark(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        const fixture *f = &FIXTURES[i];
        for (size_t end = 0; end <= strlen(f->text); end++) {
            char text[2048];
            size_t length = end;
            assert_true(end + 4 < sizeof text);
            memcpy(text, f->text, end);
            if (((unsigned char)f->text[end] & 0xc0) == 0x80) {
                replace_cut_character(text, &length);
            }
            reading r = read_pieces(f, text, length, NULL, 0, true);
            if (((unsigned char)f->text[end] & 0xc0) == 0x80) {
                drop_replacement(&r.reasoning);
                drop_replacement(&r.content);
                drop_replacement(&r.calls);
            }
            if (!begins(f->reasoning ? f->reasoning : "", &r.reasoning, true) ||
                !begins(f->content ? f->content : "", &r.content, true) ||
                !begins(f->calls ? f->calls : "", &r.calls, false)) {
                fail_msg("%s: %.*s gives \"%s\", \"%s\", \"%s\"", f->format, (int)end, f->text,
                         text_of(&r.reasoning), text_of(&r.content), text_of(&r.calls));
            }
            free_reading(&r);
        }
    }
}

/* A reply that the model itself ends inside a call: the arguments are JSON all the same. */
static void calls_that_end_early_are_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        const fixture *f = &FIXTURES[i];
        for (size_t end = 0; end <= strlen(f->text); end++) {
            if (((unsigned char)f->text[end] & 0xc0) == 0x80) {
                continue; /* inside a character, where no token's text ends */
            }
            reading r = read_pieces(f, f->text, end, NULL, 0, false);
            assert_int_equal(r.open, -1);
            const char *at = text_of(&r.calls);
            for (const char *line; (line = strchr(at, '\n')); at = line + 1) {
                const char *brace = strchr(at, '{');
                json_error_t why;
                assert_non_null(brace);
                json_t *arguments = json_loadb(brace, (size_t)(line - brace), 0, &why);
                if (!json_is_object(arguments)) {
                    fail_msg("%s: %.*s gives %s (%s)", f->format, (int)end, f->text, brace, why.text);
                }
                json_decref(arguments);
            }
            free_reading(&r);
        }
    }
}

/* ---- special tokens ---- */

/* A vocabulary in which Kimi's marks are special tokens. */
static sl_tokenizer *special_tokenizer(void) {
    static const char json[] =
        "{\"added_tokens\":[{\"id\":200,\"content\":\"<|tool_call_begin|>\",\"special\":true},"
        "{\"id\":201,\"content\":\"<|tool_call_end|>\",\"special\":true},"
        "{\"id\":202,\"content\":\"<|tool_call_argument_begin|>\",\"special\":true},"
        "{\"id\":203,\"content\":\"<|tool_calls_section_begin|>\",\"special\":true},"
        "{\"id\":204,\"content\":\"<|tool_calls_section_end|>\",\"special\":true},"
        "{\"id\":205,\"content\":\"<think>\",\"special\":false}],"
        "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0}}}";
    sl_tokenizer *tokenizer;
    sl_error error;
    if (sl_tokenizer_from_json_memory(sl_view_of(json), (sl_view){NULL, 0}, "special", &tokenizer, &error)) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

static reading read_with(const sl_reply_format *format, const char *text) {
    reading r = {.open = -1};
    sl_error error;
    sl_reply *reply;
    const sl_reply_options options = {.format = format, .tools = tools, .event = take, .context = &r};
    assert_int_equal(sl_reply_create(&options, &reply, &error), 0);
    for (size_t i = 0; text[i]; i++) {
        assert_int_equal(sl_reply_feed(reply, text + i, 1, &error), 0);
    }
    assert_int_equal(sl_reply_finish(reply, false, &error), 0);
    sl_reply_free(reply);
    return r;
}

#define IS(text) "\xff<|" text "|>\xfe"

static void special_tokens_are_no_text(void **state) {
    (void)state;
    sl_tokenizer *tokenizer = special_tokenizer();
    sl_reply_format *format =
        sl_reply_format_bind(sl_reply_format_named("kimi-k2"), tokenizer, "<think>", "</think>");
    assert_non_null(format);
    assert_string_equal(format->marks[SL_REPLY_SECTION_OPEN], IS("tool_calls_section_begin"));
    assert_string_equal(format->marks[SL_REPLY_THINK_OPEN], "<think>");
    /* The model writes the marks' texts without meaning them, also inside of arguments; a token that is no
     * mark of the format is nothing. */
    reading r = read_with(
        format,
        "Text <|tool_call_begin|>functions.get_time:0 " IS("other") "stays." IS("tool_calls_section_begin")
            IS("tool_call_begin") "functions.get_weather:0" IS(
                "tool_call_argument_begin") "{\"city\": \"<|tool_call_end|>\"}" IS("tool_call_end")
                IS("tool_calls_section_end"));
    assert_string_equal(text_of(&r.content), "Text <|tool_call_begin|>functions.get_time:0 stays.");
    assert_string_equal(text_of(&r.calls), "get_weather{\"city\": \"<|tool_call_end|>\"}\n");
    free_reading(&r);
    /* One inside a string ends the call: no string holds a special token. */
    r = read_with(format, IS("tool_calls_section_begin") IS("tool_call_begin") "functions.get_weather:0" IS(
                              "tool_call_argument_begin") "{\"city\": \"Li" IS("tool_call_end")
                              IS("tool_calls_section_end") "ok");
    assert_string_equal(text_of(&r.content), "ok");
    assert_string_equal(text_of(&r.calls), "get_weather{\"city\": \"Li\"}\n");
    free_reading(&r);
    sl_free(format);
    sl_tokenizer_destroy(tokenizer);
}

/* ---- templates ---- */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        return NULL;
    }
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

/* What a template writes for an answer with a call, parsed again, is the call. */
static void expect_round_trip(const char *source, const char *format_name, int calls) {
    static const char question[] = "{\"role\":\"user\",\"content\":\"probe?\"}";
    static const char call[] =
        "{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
        "\"arguments\":{\"city\":\"<b>\\\"Rio\\\"\\n\",\"days\":-2}}}";
    const sl_reply_format *found = sl_reply_format_of_template(sl_view_of(source));
    assert_non_null(found);
    assert_string_equal(found->name, format_name);
    sl_reply_format *format = sl_reply_format_bind(found, NULL, "<think>", "</think>");
    assert_non_null(format);
    sl_chat *chat;
    sl_error error;
    char messages[1024];
    sl_buffer prompt = {0}, whole = {0};
    const sl_chat_config config = {.source = source};
    if (sl_chat_create(&config, &chat, &error)) {
        fail_msg("%s", error.message);
    }
    snprintf(messages, sizeof messages, "[%s]", question);
    json_t *list = json_loads(messages, 0, NULL);
    sl_chat_request request = {.messages = list, .tools = tools, .add_generation_prompt = true};
    assert_int_equal(sl_chat_render(chat, &request, &prompt, &error), 0);
    json_decref(list);
    snprintf(messages, sizeof messages,
             "[%s,{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[%s%s%s]}]", question, call,
             calls > 1 ? "," : "", calls > 1 ? call : "");
    list = json_loads(messages, 0, NULL);
    request.messages = list;
    request.add_generation_prompt = false;
    if (sl_chat_render(chat, &request, &whole, &error)) {
        fail_msg("%s", error.message);
    }
    json_decref(list);
    assert_true(whole.length > prompt.length);
    assert_memory_equal(whole.data, prompt.data, prompt.length);
    char *reply = whole.data + prompt.length;
    char *end = strstr(reply, "<|im_end|>");
    end = end ? end : strstr(reply, "<|eot_id|>");
    assert_non_null(end);
    *end = '\0';
    reading r = read_with(format, reply);
    assert_string_equal(text_of(&r.content), "");
    assert_string_equal(text_of(&r.calls),
                        calls > 1 ? "get_weather{\"city\": \"<b>\\\"Rio\\\"\\n\", \"days\": -2}\n"
                                    "get_weather{\"city\": \"<b>\\\"Rio\\\"\\n\", \"days\": -2}\n"
                                  : "get_weather{\"city\": \"<b>\\\"Rio\\\"\\n\", \"days\": -2}\n");
    free_reading(&r);
    sl_buffer_free(&prompt);
    sl_buffer_free(&whole);
    sl_chat_free(chat);
    sl_free(format);
}

static void templates_and_formats_agree(void **state) {
    (void)state;
    char *mini = read_text(SLUICE_SOURCE_DIR "/models/chat_template.jinja");
    assert_non_null(mini);
    expect_round_trip(mini, "hermes", 1);
    expect_round_trip(mini, "hermes", 2);
    free(mini);
    static const struct {
        const char *path, *format;
        int calls;
    } SHARED[] = {{SLUICE_SHARED_DIR "/tokenizers/qwen3/tokenizer_config.json", "hermes", 2},
                  {SLUICE_SHARED_DIR "/tokenizers/llama3_2/tokenizer_config.json", "llama3-json", 1}};
    for (size_t i = 0; i < 2; i++) {
        json_t *config = json_load_file(SHARED[i].path, 0, NULL);
        const char *source = json_string_value(json_object_get(config, "chat_template"));
        if (source) {
            expect_round_trip(source, SHARED[i].format, SHARED[i].calls);
        }
        json_decref(config);
    }
}

/* A template that is like none that is known; the marks are those that it writes itself. */
static void unknown_templates_are_asked(void **state) {
    (void)state;
    static const struct {
        const char *call, *text; /* how it writes one; NULL: no marks can be told */
    } TEMPLATES[] = {
        {"'@@call ' + c.function.name + ' with ' + (c.function.arguments | tojson) + ' @@'",
         "@@call get_weather with {\"city\": \"Lima\"} @@"},
        {"'<<' + c.id + ':' + c.function.name + '>>' + (c.function.arguments | tojson)",
         "<<abc123:get_weather>>{\"city\": \"Lima\"}"},
        {"'Calls: {\"tool\": \"' + c.function.name + '\", \"with\": ' + (c.function.arguments | tojson) + "
         "'}'",
         "Calls: {\"tool\": \"get_weather\", \"with\": {\"city\": \"Lima\"}}"},
        {"c.function.name + (c.function.arguments | tojson)", NULL},
        {"'@@' + c.function.name + '@@'", NULL},
    };
    for (size_t i = 0; i < sizeof TEMPLATES / sizeof *TEMPLATES; i++) {
        char source[1024];
        sl_chat *chat;
        sl_error error;
        sl_reply_format *format;
        snprintf(source, sizeof source,
                 "{%% for t in tools or [] %%}{{ t | tojson }}{%% endfor %%}{%% for m in messages %%}"
                 "[{{ m.role }}]{{ m.content }}{%% for c in m.tool_calls or [] %%}{{ %s }}{%% endfor %%}[end]"
                 "{%% endfor %%}{%% if add_generation_prompt %%}[assistant]{%% endif %%}",
                 TEMPLATES[i].call);
        const sl_chat_config config = {.source = source};
        assert_int_equal(sl_chat_create(&config, &chat, &error), 0);
        assert_int_equal(sl_reply_format_derive(chat, NULL, &format, &error), 0);
        assert_int_equal(format != NULL, TEMPLATES[i].text != NULL);
        if (format) {
            reading r = read_with(format, TEMPLATES[i].text);
            assert_string_equal(text_of(&r.calls), "get_weather{\"city\": \"Lima\"}\n");
            assert_string_equal(text_of(&r.content), "");
            free_reading(&r);
            r = read_with(format, "What is @@ and << and Calls: {?");
            assert_string_equal(text_of(&r.content), "What is @@ and << and Calls: {?");
            assert_string_equal(text_of(&r.calls), "");
            free_reading(&r);
        }
        sl_free(format);
        sl_chat_free(chat);
    }
}

static const char *tagged_call(void) {
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        if (strcmp(FIXTURES[i].format, "qwen3-coder") == 0) {
            return FIXTURES[i].text;
        }
    }
    fail();
    return NULL;
}

static void a_lack_of_memory_leaves_nothing_behind(void **state) {
    (void)state;
    const uint64_t live = sl_alloc_live_bytes();
    for (uint64_t nth = 1;; nth++) {
        reading r = {.open = -1};
        sl_error error;
        sl_reply *reply = NULL;
        const char *text = tagged_call();
        sl_alloc_fail_at(nth);
        sl_reply_format *format =
            sl_reply_format_bind(sl_reply_format_named("qwen3-coder"), NULL, "<think>", "</think>");
        const sl_reply_options options = {.format = format, .tools = tools, .event = take, .context = &r};
        int code = format ? sl_reply_create(&options, &reply, &error) : SL_ERR_NOMEM;
        code = code ? code : sl_reply_feed(reply, text, strlen(text), &error);
        code = code ? code : sl_reply_finish(reply, false, &error);
        sl_alloc_fail_at(0);
        sl_reply_free(reply);
        sl_free(format);
        free_reading(&r);
        assert_int_equal(sl_alloc_live_bytes(), live);
        if (code == 0) {
            assert_true(nth > 3);
            break;
        }
        assert_int_equal(code, SL_ERR_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(replies_are_what_they_are),
                                       cmocka_unit_test(pieces_give_the_same),
                                       cmocka_unit_test(a_limit_leaks_no_mark),
                                       cmocka_unit_test(calls_that_end_early_are_whole),
                                       cmocka_unit_test(special_tokens_are_no_text),
                                       cmocka_unit_test(templates_and_formats_agree),
                                       cmocka_unit_test(unknown_templates_are_asked),
                                       cmocka_unit_test(a_lack_of_memory_leaves_nothing_behind)};
    tools = json_loads(TOOLS, 0, NULL);
    const int failed = tools ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    json_decref(tools);
    return failed;
}
