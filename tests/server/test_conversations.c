#define _GNU_SOURCE
/* Conversations of Responses, Messages and Ollama as OpenAI's messages. What is expected is written here by
 * hand, from the types of the npm packages openai 7.57, @anthropic-ai/sdk 1.12 and ollama 0.6. */
#include "server/convert.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct example {
    const char *first;    /* instructions, system; NULL: none */
    const char *input;    /* JSON */
    const char *expected; /* JSON; or, where it is refused, what the message has */
} example;

/* JSON with ' for quotes. */
static json_t *load(const char *given) {
    json_error_t error;
    char *text = given ? strdup(given) : NULL;
    for (char *at = text; at && (at = strchr(at, '\'')) != NULL;) {
        *at = '"';
    }
    json_t *value = text ? json_loads(text, JSON_DECODE_ANY, &error) : NULL;
    if (text && !value) {
        fail_msg("bad JSON in the test: %s: %s", error.text, text);
    }
    free(text);
    return value;
}

typedef int (*conversion)(const json_t *first, const json_t *input, json_t **messages, http_error *error);

static void check(const example *examples, size_t count, conversion convert) {
    for (size_t i = 0; i < count; i++) {
        json_t *first = load(examples[i].first), *input = load(examples[i].input),
               *expected = load(examples[i].expected);
        json_t *messages = NULL;
        http_error error = {0};
        if (convert(first, input, &messages, &error)) {
            fail_msg("refused: %s: %s", examples[i].input, error.message);
        }
        if (!json_equal(messages, expected)) {
            char *got = json_dumps(messages, JSON_COMPACT);
            fail_msg("%s\n gave %s\n not %s", examples[i].input, got, examples[i].expected);
        }
        json_decref(messages);
        json_decref(first);
        json_decref(input);
        json_decref(expected);
    }
}

static void check_refused(const example *examples, size_t count, conversion convert) {
    for (size_t i = 0; i < count; i++) {
        json_t *first = load(examples[i].first), *input = load(examples[i].input), *messages = NULL;
        http_error error = {0};
        if (convert(first, input, &messages, &error) == 0) {
            fail_msg("accepted: %s", examples[i].input);
        }
        if (error.status != 400 || !strstr(error.message, examples[i].expected) || messages) {
            fail_msg("%s\n gave %d %s\n without %s", examples[i].input, error.status, error.message,
                     examples[i].expected);
        }
        /* Both begin with the field's path. */
        assert_int_equal(strlen(error.param), strcspn(error.message, " :"));
        assert_memory_equal(error.param, error.message, strlen(error.param));
        /* Words of a request are nobody else's. */
        assert_null(strstr(error.message, "secret"));
        json_decref(first);
        json_decref(input);
    }
}

#define CHECK(examples, convert) check(examples, sizeof examples / sizeof *examples, convert)
#define CHECK_REFUSED(examples, convert) check_refused(examples, sizeof examples / sizeof *examples, convert)

/* ---- Responses ---- */

static void test_responses(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {NULL, "\"Hi\"", "[{'role':'user','content':'Hi'}]"},
        {"\"Be brief\"", "\"Hi\"", "[{'role':'system','content':'Be brief'},{'role':'user','content':'Hi'}]"},
        /* Instructions and what developers say before the first turn are one system message, later ones stay.
         */
        {"\"A\"",
         "[{'role':'developer','content':'B'},{'role':'system','content':[{'type':'input_text','text':'C'},"
         "{'type':'input_text','text':'D'}]},{'role':'user','content':'Hi'},{'role':'developer','content':'E'"
         "}]",
         "[{'role':'system','content':'A\\n\\nB\\n\\nC\\n\\nD'},{'role':'user','content':'Hi'},"
         "{'role':'system','content':'E'}]"},
        {NULL,
         "[{'type':'message','role':'user','content':[{'type':'input_text','text':'a'},{'type':'text','text':"
         "'b'}]},"
         "{'type':'message','id':'m','status':'completed','role':'assistant','content':[{'type':'output_text'"
         ","
         "'text':'c','annotations':[]},{'type':'refusal','refusal':'d'}]},{'role':'user','content':[]}]",
         "[{'role':'user','content':'a\\nb'},{'role':'assistant','content':'c\\nd'},{'role':'user','content':"
         "''}]"},
        /* Calls in a row are of one message, and of the one that spoke before them. */
        {NULL,
         "[{'role':'user','content':'w'},{'role':'assistant','content':'x'},{'type':'function_call','id':'fc_"
         "1',"
         "'call_id':'c1','name':'f','arguments':'{\\\"a\\\": "
         "1}'},{'type':'function_call','call_id':'c2','name':'g',"
         "'arguments':'{}'},{'type':'function_call_output','call_id':'c1','output':'one'},"
         "{'type':'function_call_output','call_id':'c2','output':[{'type':'input_text','text':'two'}]}]",
         "[{'role':'user','content':'w'},{'role':'assistant','content':'x','tool_calls':["
         "{'id':'c1','type':'function','function':{'name':'f','arguments':'{\\\"a\\\": 1}'}},"
         "{'id':'c2','type':'function','function':{'name':'g','arguments':'{}'}}]},"
         "{'role':'tool','content':'one','tool_call_id':'c1'},{'role':'tool','content':'two','tool_call_id':'"
         "c2'}]"},
        /* Thinking goes with the assistant's next message, and nowhere without one; hosted tools leave no
           trace. */
        {NULL,
         "[{'role':'user','content':'w'},{'type':'reasoning','id':'r','summary':[],'encrypted_content':'zz',"
         "'content':[{'type':'reasoning_text','text':'hm'}]},{'type':'web_search_call','id':'s','status':'"
         "completed'},"
         "{'type':'function_call','call_id':'c','name':'f','arguments':'{}'},"
         "{'type':'function_call_output','call_id':'c','output':''},"
         "{'type':'reasoning','summary':[],'content':[{'type':'reasoning_text','text':'lost'}]},"
         "{'role':'user','content':'x'},{'type':'reasoning','id':'r','summary':[],'encrypted_content':'zz'},"
         "{'role':'assistant','content':'y'}]",
         "[{'role':'user','content':'w'},{'role':'assistant','content':'','reasoning_content':'hm','tool_"
         "calls':["
         "{'id':'c','type':'function','function':{'name':'f','arguments':'{}'}}]},"
         "{'role':'tool','content':'','tool_call_id':'c'},{'role':'user','content':'x'},"
         "{'role':'assistant','content':'y'}]"},
    };
    CHECK(EXAMPLES, convert_responses);
}

static void test_responses_refused(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {NULL, "[]", "input: must have"},
        {NULL, "3", "input: must be a string or an array, not a whole number"},
        {"[1]", "'a'", "instructions: must be a string"},
        {NULL, "['secret']", "input[0]: must be an object"},
        {NULL, "[{'role':'user','content':'a'},{'role':'secret','content':'a'}]",
         "input[1].role: must be user"},
        {NULL, "[{'role':'user'}]", "input[0].content: is required"},
        {NULL, "[{'role':'user','content':[{'type':'input_image','image_url':'secret'}]}]",
         "input[0].content[0].type: input_image is not supported"},
        {NULL, "[{'role':'user','content':[{'type':'input_file'}]}]", "input_file"},
        {NULL, "[{'role':'user','content':[{'type':'input_audio'}]}]", "input_audio"},
        {NULL, "[{'role':'user','content':[{'type':'secret'}]}]",
         "content[0].type: this type is not supported"},
        {NULL, "[{'role':'user','content':[{'type':'input_text'}]}]",
         "input[0].content[0].text: must be a string"},
        {NULL, "[{'type':'item_reference','id':'secret'}]", "item_reference"},
        {NULL, "[{'id':'secret'}]", "item_reference"},
        {NULL, "[{'type':'compaction','encrypted_content':'secret'}]", "compaction"},
        {NULL, "[{'type':'secret'}]", "input[0].type"},
        {NULL, "[{'type':'function_call','name':'f','arguments':'{}'}]", "input[0].call_id: is required"},
        {NULL, "[{'type':'function_call','call_id':'c','name':'f','arguments':{}}]",
         "input[0].arguments: must be"},
        {NULL, "[{'type':'function_call_output','call_id':'c'}]", "input[0].output: is required"},
        {NULL, "[{'type':'web_search_call','id':'s'}]", "input: has no message"},
    };
    CHECK_REFUSED(EXAMPLES, convert_responses);
}

/* ---- Messages ---- */

static bool continues;

static int convert_turns(const json_t *system, const json_t *turns, json_t **messages, http_error *error) {
    return convert_anthropic(system, turns, messages, &continues, error);
}

static void test_anthropic(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {NULL, "[{'role':'user','content':'Hi'}]", "[{'role':'user','content':'Hi'}]"},
        {"'Be brief'", "[{'role':'user','content':'Hi'}]",
         "[{'role':'system','content':'Be brief'},{'role':'user','content':'Hi'}]"},
        {"[{'type':'text','text':'A','cache_control':{'type':'ephemeral'}},{'type':'text','text':'B'}]",
         "[{'role':'system','content':'C'},{'role':'user','content':'Hi'}]",
         "[{'role':'system','content':'A\\n\\nB\\n\\nC'},{'role':'user','content':'Hi'}]"},
        /* Turns of one role in a row are one. */
        {NULL,
         "[{'role':'user','content':'a'},{'role':'user','content':[{'type':'text','text':'b'},{'type':'text',"
         "'text':'c'}"
         "]},{'role':'assistant','content':'d'},{'role':'assistant','content':[{'type':'text','text':'e'}]},"
         "{'role':'user','content':'f'}]",
         "[{'role':'user','content':'a\\nb\\nc'},{'role':'assistant','content':'d\\ne'},{'role':'user','"
         "content':'f'}]"},
        {NULL,
         "[{'role':'user','content':'w'},{'role':'assistant','content':[{'type':'thinking','thinking':'hm',"
         "'signature':'s'},{'type':'redacted_thinking','data':'x'},{'type':'text','text':'so'},{'type':'tool_"
         "use',"
         "'id':'t1','name':'f','input':{'a':[1,'é']}},{'type':'tool_use','id':'t2','name':'g','input':{}}]},"
         "{'role':'user','content':[{'type':'tool_result','tool_use_id':'t1','content':'one'},{'type':'tool_"
         "result',"
         "'tool_use_id':'t2','content':[{'type':'text','text':'two'},{'type':'text','text':'three'}]},"
         "{'type':'text','text':'go on'}]}]",
         "[{'role':'user','content':'w'},{'role':'assistant','content':'so','reasoning_content':'hm','tool_"
         "calls':["
         "{'id':'t1','type':'function','function':{'name':'f','arguments':'{\\\"a\\\":[1,\\\"é\\\"]}'}},"
         "{'id':'t2','type':'function','function':{'name':'g','arguments':'{}'}}]},"
         "{'role':'tool','content':'one','tool_call_id':'t1'},{'role':'tool','content':'two\\nthree',"
         "'tool_call_id':'t2'},{'role':'user','content':'go on'}]"},
        /* A failed call says so, if it says nothing else. */
        {NULL,
         "[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t','is_error':true},"
         "{'type':'tool_result','tool_use_id':'u','is_error':true,'content':'no file'},"
         "{'type':'tool_result','tool_use_id':'v','content':[]}]}]",
         "[{'role':'tool','content':'Error','tool_call_id':'t'},{'role':'tool','content':'no "
         "file','tool_call_id':'u'},"
         "{'role':'tool','content':'','tool_call_id':'v'}]"},
    };
    CHECK(EXAMPLES, convert_turns);
}

static void test_anthropic_billing(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {"[{'type':'text','text':'x-anthropic-billing-header: cc_version=2.1; "
         "cch=a1b2;'},{'type':'text','text':'A'}]",
         "[{'role':'user','content':'Hi'}]",
         "[{'role':'system','content':'A'},{'role':'user','content':'Hi'}]"},
        {"'x-anthropic-billing-header: cch=a1b2;\\nA\\nB'", "[{'role':'user','content':'Hi'}]",
         "[{'role':'system','content':'A\\nB'},{'role':'user','content':'Hi'}]"},
        {"'x-anthropic-billing-header: cch=a1b2;'", "[{'role':'user','content':'Hi'}]",
         "[{'role':'user','content':'Hi'}]"},
        /* Elsewhere it is a text like any other. */
        {"'see x-anthropic-billing-header: 1'", "[{'role':'user','content':'x-anthropic-billing-header: 2'}]",
         "[{'role':'system','content':'see x-anthropic-billing-header: 1'},"
         "{'role':'user','content':'x-anthropic-billing-header: 2'}]"},
    };
    CHECK(EXAMPLES, convert_turns);
}

static void test_anthropic_prefill(void **state) {
    (void)state;
    static const struct {
        const char *turns, *expected;
        bool continues;
    } CASES[] = {
        {"[{'role':'user','content':'a'}]", "[{'role':'user','content':'a'}]", false},
        {"[{'role':'user','content':'a'},{'role':'assistant','content':'{'}]",
         "[{'role':'user','content':'a'},{'role':'assistant','content':'{'}]", true},
        {"[{'role':'user','content':'a'},{'role':'assistant','content':''}]",
         "[{'role':'user','content':'a'}]", false},
        {"[{'role':'user','content':'a'},{'role':'assistant','content':'b'},{'role':'user','content':'c'}]",
         "[{'role':'user','content':'a'},{'role':'assistant','content':'b'},{'role':'user','content':'c'}]",
         false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const example one = {NULL, CASES[i].turns, CASES[i].expected};
        check(&one, 1, convert_turns);
        assert_int_equal(continues, CASES[i].continues);
    }
}

static void test_anthropic_refused(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {NULL, "[]", "messages: must have"},
        {NULL, "'secret'", "messages: must be an array"},
        {NULL, "[{'role':'tool','content':'a'}]", "messages[0].role: must be user"},
        {NULL, "[{'role':'user'}]", "messages[0].content: is required"},
        {NULL,
         "[{'role':'user','content':'a'},{'role':'user','content':[{'type':'image','source':'secret'}]}]",
         "messages[1].content[0].type: image is not supported"},
        {NULL, "[{'role':'user','content':[{'type':'document'}]}]", "document"},
        {NULL, "[{'role':'assistant','content':[{'type':'server_tool_use'}]}]", "server_tool_use"},
        {NULL, "[{'role':'user','content':[{'type':'secret'}]}]", "messages[0].content[0].type: "},
        {NULL, "[{'role':'user','content':['secret']}]",
         "messages[0].content[0]: must be an object with a type"},
        {NULL, "[{'role':'user','content':[{'type':'tool_use','id':'t','name':'f','input':{}}]}]",
         "content[0].type"},
        {NULL, "[{'role':'assistant','content':[{'type':'tool_use','id':'t','name':'f','input':'secret'}]}]",
         "content[0].input: must be an object"},
        {NULL, "[{'role':'assistant','content':[{'type':'tool_use','id':'t','name':'f','input':{}}]}]",
         "must be followed by its tool_result"},
        {NULL, "[{'role':'user','content':[{'type':'tool_result','content':'a'}]}]",
         "tool_use_id: is required"},
        {NULL,
         "[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t','content':[{'type':'image'}]}]}"
         "]",
         "messages[0].content[0].content[0].type: image"},
        {"3", "[{'role':'user','content':'a'}]", "system: must be a string"},
        {"[{'type':'image'}]", "[{'role':'user','content':'a'}]", "system[0].type: image"},
        {NULL, "[{'role':'assistant','content':''}]", "messages: has no text"},
    };
    CHECK_REFUSED(EXAMPLES, convert_turns);
}

/* ---- Ollama ---- */

static int convert_chat(const json_t *first, const json_t *turns, json_t **messages, http_error *error) {
    (void)first;
    return convert_ollama(turns, messages, error);
}

static void test_ollama(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {NULL, "[{'role':'system','content':'A'},{'role':'User','content':'Hi','images':[]}]",
         "[{'role':'system','content':'A'},{'role':'user','content':'Hi'}]"},
        {NULL, "[{'role':'assistant','content':'a','thinking':'hm'},{'role':'user'}]",
         "[{'role':'assistant','content':'a','reasoning_content':'hm'},{'role':'user','content':''}]"},
        /* Ollama's calls have no ids, and its results none to name: they are in the same order. */
        {NULL,
         "[{'role':'assistant','content':'','tool_calls':[{'function':{'name':'f','arguments':{'a':1}}},"
         "{'function':{'name':'g','arguments':{}}}]},{'role':'tool','content':'one','tool_name':'f'},"
         "{'role':'tool','content':'two','tool_name':'g'}]",
         "[{'role':'assistant','content':'','tool_calls':[{'id':'call_0','type':'function','function':{'name'"
         ":'f',"
         "'arguments':'{\\\"a\\\":1}'}},{'id':'call_1','type':'function','function':{'name':'g','arguments':'"
         "{}'}}]},"
         "{'role':'tool','content':'one','tool_call_id':'call_0'},"
         "{'role':'tool','content':'two','tool_call_id':'call_1'}]"},
        {NULL,
         "[{'role':'assistant','tool_calls':[{'id':'x','function':{'name':'f','arguments':{}}}]},"
         "{'role':'tool','content':'one','tool_call_id':'x'}]",
         "[{'role':'assistant','content':'','tool_calls':[{'id':'x','type':'function','function':{'name':'f',"
         "'arguments':'{}'}}]},{'role':'tool','content':'one','tool_call_id':'x'}]"},
    };
    CHECK(EXAMPLES, convert_chat);
}

static void test_ollama_refused(void **state) {
    (void)state;
    static const example EXAMPLES[] = {
        {NULL, "{}", "messages: must be an array"},
        {NULL, "[{'role':'secret','content':'a'}]", "messages[0].role: must be"},
        {NULL, "[3]", "messages[0].role: must be"},
        {NULL, "[{'role':'user','content':3}]", "messages[0].content: must be a string"},
        {NULL, "[{'role':'user','content':'a','images':['secret']}]", "messages[0].images"},
        {NULL, "[{'role':'assistant','tool_calls':{}}]", "messages[0].tool_calls: must be an array"},
        {NULL, "[{'role':'assistant','tool_calls':[{}]}]",
         "messages[0].tool_calls[0].function.name: is required"},
        {NULL, "[{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':3}}]}]",
         "function.arguments: must be an object"},
    };
    CHECK_REFUSED(EXAMPLES, convert_chat);
}

/* ---- tools, efforts, sizes ---- */

static int responses_tools(const json_t *first, const json_t *tools, json_t **out, http_error *error) {
    (void)first;
    return convert_responses_tools(tools, out, error);
}

static int anthropic_tools(const json_t *first, const json_t *tools, json_t **out, http_error *error) {
    (void)first;
    return convert_anthropic_tools(tools, out, error);
}

static void test_tools(void **state) {
    (void)state;
    static const example RESPONSES[] = {
        {NULL, NULL, "[]"},
        {NULL,
         "[{'type':'web_search'},{'type':'function','name':'f','description':'d','parameters':{'type':'"
         "object'},"
         "'strict':false},{'type':'custom','name':'x'},{'type':'local_shell'},{'type':'function','name':'g',"
         "'parameters':null}]",
         "[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}},"
         "{'type':'function','function':{'name':'g'}}]"}};
    static const example ANTHROPIC[] = {
        {NULL,
         "[{'type':'web_search_20250305','name':'web_search'},{'name':'f','description':'d','input_schema':{'"
         "type':"
         "'object'},'cache_control':null},{'type':'custom','name':'g','input_schema':{}}]",
         "[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}},"
         "{'type':'function','function':{'name':'g','parameters':{}}}]"}};
    static const example BAD_RESPONSES[] = {
        {NULL, "[{'name':'secret'}]", "tools[0]: must be an object with a type"},
        {NULL, "[{'type':'function'}]", "tools[0].name"}};
    static const example BAD_ANTHROPIC[] = {{NULL, "['secret']", "tools[0]: must be an object"},
                                            {NULL, "[{'type':'custom'}]", "tools[0].name"}};
    CHECK(RESPONSES, responses_tools);
    CHECK(ANTHROPIC, anthropic_tools);
    CHECK_REFUSED(BAD_RESPONSES, responses_tools);
    CHECK_REFUSED(BAD_ANTHROPIC, anthropic_tools);
}

static void test_effort(void **state) {
    (void)state;
    static const char *const CASES[][2] = {{"none", "{'enable_thinking':false}"},
                                           {"low", "{'enable_thinking':true,'reasoning_effort':'low'}"},
                                           {"max", "{'enable_thinking':true,'reasoning_effort':'max'}"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        json_t *options = json_object(), *expected = load(CASES[i][1]);
        assert_true(convert_effort(options, CASES[i][0]));
        assert_true(json_equal(options, expected));
        json_decref(options);
        json_decref(expected);
    }
}

/* As many turns of one role as a body may hold: joining them must not take the square of that. */
static void test_many_turns(void **state) {
    (void)state;
    enum { TURNS = 200000 };
    json_t *turns = json_array(), *messages = NULL;
    http_error error;
    for (size_t i = 0; i < TURNS; i++) {
        json_array_append_new(turns, json_pack("{s:s, s:s}", "role", "user", "content", "abcdefghi"));
    }
    assert_int_equal(convert_anthropic(NULL, turns, &messages, &continues, &error), 0);
    assert_int_equal(json_array_size(messages), 1);
    assert_int_equal(json_string_length(json_object_get(json_array_get(messages, 0), "content")),
                     TURNS * 10 - 1);
    json_decref(turns);
    json_decref(messages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_responses_refused),
        cmocka_unit_test(test_anthropic),
        cmocka_unit_test(test_anthropic_billing),
        cmocka_unit_test(test_anthropic_prefill),
        cmocka_unit_test(test_anthropic_refused),
        cmocka_unit_test(test_ollama),
        cmocka_unit_test(test_ollama_refused),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_effort),
        cmocka_unit_test(test_many_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
