/* Bodies of requests: JSON that nobody trusts, tables of fields, lists of messages, and texts. What is
 * expected comes from RFC 8259, the Unicode standard and OpenAI's reference. */
#include "generation.h"
#include "messages.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static json_t *parsed(const char *json) {
    json_t *root = NULL;
    http_error error = {0};
    if (body_parse(json, strlen(json), &root, &error)) {
        fail_msg("%s: %s", json, error.message);
    }
    return root;
}

/* ---- JSON ---- */

typedef struct faulty {
    const char *json, *says;
} faulty;

static const faulty FAULTY[] = {
    {"", "empty"},
    {" \n\t ", "empty"},
    {"\xef\xbb\xbf", "empty"},
    {"[]", "not an array"},
    {"\"x\"", "not a string"},
    {"null", "not null"},
    {"12", "not a whole number"},
    {"{", "ends too early"},
    {"{\"a\"", "ends too early"},
    {"{\"a\":", "ends too early"},
    {"{\"a\":1", "ends too early"},
    {"{\"a\":1,", "ends too early"},
    {"{\"a\":1,}", "name of a member"},
    {"{,}", "name of a member"},
    {"{a:1}", "name of a member"},
    {"{'a':1}", "name of a member"},
    {"{\"a\" 1}", "colon"},
    {"{\"a\":1 \"b\":2}", "comma"},
    {"{\"a\":[1 2]}", "comma"},
    {"{\"a\":[1}", "comma"},
    {"{\"a\":[1,]}", "no JSON value"},
    {"{\"a\":}", "no JSON value"},
    {"{\"a\":tru}", "no JSON value"},
    {"{\"a\":True}", "no JSON value"},
    {"{\"a\":NaN}", "no JSON value"},
    {"{\"a\":Infinity}", "no JSON value"},
    {"{\"a\":-Infinity}", "number"},
    {"{\"a\":+1}", "no JSON value"},
    {"{\"a\":.5}", "no JSON value"},
    {"{\"a\":01}", "number"},
    {"{\"a\":1.}", "number"},
    {"{\"a\":1e}", "number"},
    {"{\"a\":1e+}", "number"},
    {"{\"a\":-}", "number"},
    {"{\"a\":0x10}", "comma"},
    {"{\"a\":1e999}", "too large"},
    {"{\"a\":-1e999}", "too large"},
    {"{\"a\":9223372036854775808}", "64 bits"},
    {"{\"a\":-9223372036854775809}", "64 bits"},
    {"{} {}", "more text"},
    {"{}x", "more text"},
    {"{}]", "more text"},
    {"// c\n{}", "no JSON value"},
    {"{\"a\":\"\n\"}", "control character"},
    {"{\"a\":\"x", "ends within a string"},
    {"{\"a\":\"x\\", "escape"},
    {"{\"a\":\"\\x\"}", "escape"},
    {"{\"a\":\"\\u12\"}", "hexadecimal"},
    {"{\"a\":\"\\u12g4\"}", "hexadecimal"},
    {"{\"a\":\"\\u0000\"}", "\\u0000"},
    {"{\"\\u0000\":1}", "\\u0000"},
    {"{\"a\":\"\\ud800\"}", "surrogate"},
    {"{\"a\":\"\\ud800\\u0041\"}", "surrogate"},
    {"{\"a\":\"\\ud800\\ud800\"}", "surrogate"},
    {"{\"a\":\"\\udc00\"}", "surrogate"},
    {"{\"a\":\"\x80\"}", "UTF-8"},
    {"{\"a\":\"\xc0\xaf\"}", "UTF-8"},         /* overlong */
    {"{\"a\":\"\xe0\x80\xaf\"}", "UTF-8"},     /* overlong */
    {"{\"a\":\"\xed\xa0\x80\"}", "UTF-8"},     /* a surrogate */
    {"{\"a\":\"\xf4\x90\x80\x80\"}", "UTF-8"}, /* beyond U+10FFFF */
    {"{\"a\":\"\xf8\x88\x80\x80\x80\"}", "UTF-8"},
    {"{\"a\":\"\xe4\xb8\"}", "UTF-8"},
    {"{\"a\":\"\xe4", "UTF-8"},
};

static void broken_json_is_400_and_says_what(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(FAULTY); i++) {
        json_t *root = (json_t *)&root;
        http_error error = {0};
        assert_int_equal(body_parse(FAULTY[i].json, strlen(FAULTY[i].json), &root, &error), -1);
        assert_null(root);
        assert_int_equal(error.status, 400);
        assert_string_equal(error.type, "invalid_request_error");
        if (!strstr(error.message, FAULTY[i].says)) {
            fail_msg("%s: \"%s\" does not say \"%s\"", FAULTY[i].json, error.message, FAULTY[i].says);
        }
    }
}

static void a_fault_has_line_column_and_byte(void **state) {
    (void)state;
    static const char JSON[] = "{\n  \"a\": 1,\n  \"secret\": sesame}";
    json_t *root;
    http_error error = {0};
    assert_int_equal(body_parse(JSON, sizeof JSON - 1, &root, &error), -1);
    assert_non_null(strstr(error.message, "line 3, column 13 (byte 24)"));
    assert_null(strstr(error.message, "sesame"));
    assert_null(strstr(error.message, "secret"));
}

static void good_json_is_read(void **state) {
    (void)state;
    static const char NUL[] = {'{', '}', '\0'};
    json_t *root;
    http_error error = {0};
    assert_int_equal(body_parse(NUL, sizeof NUL, &root, &error), -1); /* behind the value */
    static const char *const GOOD[] = {
        "{}",
        " {\r\n\t} ",
        "\xef\xbb\xbf{}",
        "{\"a\":[[],{},[{}],0,-0,0.5,-1e-7,1E+2,true,false,null,\"\"]}",
        "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\"}",
        "{\"a\":9223372036854775807,\"b\":-9223372036854775808,\"c\":1e-999}",
        "{\"\":\"\xf0\x9f\xa4\x97\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\"}",
    };
    for (size_t i = 0; i < COUNT(GOOD); i++) {
        json_decref(parsed(GOOD[i]));
    }
    root = parsed("{\"a\":\"\\ud83e\\udd17\",\"b\":1,\"b\":2}");
    assert_string_equal(json_string_value(json_object_get(root, "a")), "\xf0\x9f\xa4\x97");
    assert_int_equal(json_integer_value(json_object_get(root, "b")), 2); /* the last wins */
    json_decref(root);
}

static double seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC; /* of this program, not of others */
}

/* `count` times `unit` between `before` and `after`. */
static char *repeated(const char *before, const char *unit, size_t count, const char *after, size_t *length) {
    const size_t size = strlen(unit), first = strlen(before), last = strlen(after);
    char *all = malloc(first + size * count + last + 1);
    assert_non_null(all);
    memcpy(all, before, first);
    for (size_t i = 0; i < count; i++) {
        memcpy(all + first + i * size, unit, size);
    }
    memcpy(all + first + size * count, after, last + 1);
    *length = first + size * count + last;
    return all;
}

typedef struct bomb {
    const char *before, *unit;
    size_t count;
    const char *after, *says;
} bomb;

static void bombs_are_refused_at_once(void **state) {
    (void)state;
    static const bomb BOMBS[] = {
        {"{\"a\":", "[", 10000, "", "nested"},          {"{\"a\":", "[", 1 << 22, "", "nested"},
        {"", "{\"a\":", 10000, "", "nested"},           {"{", "\"a\":1,", 1000000, "\"a\":1}", "members"},
        {"{\"a\":[", "0,", 5000000, "0]}", "values"},   {"{\"a\":", "9", 1000000, "}", "512"},
        {"{\"a\":0.", "9", 1000000, "}", "512"},        {"", "\x01", 1 << 26, "", "no JSON value"},
        {"{\"a\":\"", "x", 1 << 26, "", "ends within"},
    };
    for (size_t i = 0; i < COUNT(BOMBS); i++) {
        size_t length;
        char *json = repeated(BOMBS[i].before, BOMBS[i].unit, BOMBS[i].count, BOMBS[i].after, &length);
        json_t *root;
        http_error error = {0};
        const double start = seconds();
        assert_int_equal(body_parse(json, length, &root, &error), -1);
        if (!strstr(error.message, BOMBS[i].says)) {
            fail_msg("bomb %zu: %s", i, error.message);
        }
        assert_true(seconds() - start < 5); /* milliseconds, but for sanitizers and a busy machine */
        free(json);
    }
}

static void bounds_are_met_exactly(void **state) {
    (void)state;
    for (size_t extra = 0; extra < 2; extra++) {
        size_t length, inner;
        char *open = repeated("{\"a\":", "[", BODY_DEPTH - 1 + extra, "", &length);
        char *json = repeated(open, "]", BODY_DEPTH - 1 + extra, "}", &inner);
        json_t *root;
        http_error error;
        assert_int_equal(body_parse(json, inner, &root, &error), extra ? -1 : 0);
        json_decref(root);
        free(open);
        free(json);
        json = repeated("{", "\"a\":1,", BODY_KEYS - 1 + extra, "\"b\":1}", &length);
        assert_int_equal(body_parse(json, length, &root, &error), extra ? -1 : 0);
        json_decref(root);
        free(json);
    }
}

/* ---- fields ---- */

typedef struct sample {
    bool flag;
    int64_t whole;
    double real;
    const char *text, *word;
    const json_t *array, *object, *any;
} sample;

#define AT(member) offsetof(sample, member)
static const field SAMPLE[] = {
    {"flag", FIELD_BOOL, AT(flag), 0, 0, NULL},
    {"whole", FIELD_WHOLE, AT(whole), -2, 10, NULL},
    {"least", FIELD_WHOLE, AT(whole), 0, 1e19, NULL},
    {"free", FIELD_WHOLE, AT(whole), -1e19, 1e19, NULL},
    {"real", FIELD_REAL, AT(real), 0, 1, NULL},
    {"text", FIELD_TEXT, AT(text), 1, 3, NULL},
    {"word", FIELD_CHOICE, AT(word), 0, 0, "low|medium|high"},
    {"array", FIELD_ARRAY, AT(array), 0, 0, NULL},
    {"object", FIELD_OBJECT, AT(object), 0, 0, NULL},
    {"any", FIELD_ANY, AT(any), 0, 0, NULL},
    {"later", FIELD_UNSUPPORTED, 0, 0, 0, "0|[]|\"\"|{\"type\":\"text\"}"},
    {"never", FIELD_UNSUPPORTED, 0, 0, 0, ""},
};

static int read_sample(const char *json, sample *s, http_error *error) {
    static json_t *kept; /* what the fields point into */
    json_decref(kept);
    kept = parsed(json);
    *error = (http_error){0};
    return body_fields(kept, "in.", SAMPLE, COUNT(SAMPLE), s, error);
}

static void fields_are_strict(void **state) {
    (void)state;
    /* name of the field, its value, words of the message */
    static const char *const BAD[][3] = {
        {"flag", "1", "true or false, not a whole number"},
        {"flag", "\"true\"", "not a string"},
        {"whole", "true", "a whole number from -2 to 10, not a boolean"},
        {"whole", "\"1\"", "not a string"},
        {"whole", "3.5", "from -2 to 10"},
        {"whole", "11", "from -2 to 10"},
        {"whole", "-3", "from -2 to 10"},
        {"whole", "1e300", "from -2 to 10"},
        {"least", "-1", "of at least 0"},
        {"free", "1e19", "a whole number"},
        {"free", "9223372036854775808.0", "a whole number"},
        {"real", "1.5", "a number from 0 to 1"},
        {"real", "\"0.5\"", "not a string"},
        {"real", "false", "not a boolean"},
        {"text", "5", "a string, not a whole number"},
        {"text", "\"\"", "1 to 3 characters"},
        {"text", "\"abcd\"", "1 to 3 characters"},
        {"word", "\"lo\"", "one of low|medium|high"},
        {"word", "\"low|medium\"", "one of low|medium|high"},
        {"word", "\"\"", "one of"},
        {"word", "{}", "a string, not an object"},
        {"array", "{}", "an array, not an object"},
        {"object", "[]", "an object, not an array"},
        {"later", "1", "not supported"},
        {"later", "[0]", "not supported"},
        {"later", "false", "not supported"},
        {"later", "{\"type\":\"json\"}", "not supported"},
        {"never", "0", "not supported"},
        {"never", "{}", "not supported"},
    };
    for (size_t i = 0; i < COUNT(BAD); i++) {
        char json[200], named[32];
        sample s = {0};
        const sample untouched = {0};
        http_error error;
        snprintf(json, sizeof json, "{\"%s\":%s}", BAD[i][0], BAD[i][1]);
        snprintf(named, sizeof named, "in.%s", BAD[i][0]);
        assert_int_equal(read_sample(json, &s, &error), -1);
        assert_int_equal(error.status, 400);
        assert_string_equal(error.param, named);
        if (strncmp(error.message, named, strlen(named)) || !strstr(error.message, BAD[i][2])) {
            fail_msg("%s: %s", json, error.message);
        }
        assert_memory_equal(&s, &untouched, sizeof s);
    }
}

static void fields_are_read(void **state) {
    (void)state;
    sample s = {.whole = 7, .real = 0.5, .flag = true};
    http_error error;
    assert_int_equal(read_sample("{\"whole\":null,\"real\":null,\"flag\":null,\"later\":null,\"never\":null,"
                                 "\"other\":{\"x\":[1]}}",
                                 &s, &error),
                     0);
    assert_true(s.flag && s.whole == 7 && s.real == 0.5);
    assert_int_equal(
        read_sample("{\"whole\":3.0,\"real\":1,\"flag\":false,\"text\":\"\xc3\xa4\xc3\xb6\xc3\xbc\","
                    "\"word\":\"medium\",\"array\":[1],\"object\":{},\"any\":false,"
                    "\"later\":0.0}",
                    &s, &error),
        0);
    assert_true(!s.flag && s.whole == 3 && s.real == 1);
    assert_string_equal(s.text, "\xc3\xa4\xc3\xb6\xc3\xbc");
    assert_string_equal(s.word, "medium");
    assert_true(json_is_array(s.array) && json_is_object(s.object) && json_is_false(s.any));
    static const char *const NEUTRAL[] = {"0", "[]", "\"\"", "{\"type\":\"text\"}"};
    for (size_t i = 0; i < COUNT(NEUTRAL); i++) {
        char json[64];
        snprintf(json, sizeof json, "{\"later\":%s}", NEUTRAL[i]);
        assert_int_equal(read_sample(json, &s, &error), 0);
    }
    assert_int_equal(read_sample("{\"free\":9223372036854775807}", &s, &error), 0);
    assert_true(s.whole == INT64_MAX);
    assert_int_equal(read_sample("{\"free\":-9223372036854775808}", &s, &error), 0);
    assert_true(s.whole == INT64_MIN);
}

/* What llama-server, vLLM and OpenAI document of their parameters; true: accepted. */
typedef struct parameter {
    const char *json;
    bool fine;
} parameter;

static const parameter PARAMETERS[] = {
    {"\"temperature\":0", true},
    {"\"temperature\":2", true},
    {"\"temperature\":-0.1", false},
    {"\"top_p\":1", true},
    {"\"top_p\":1.01", false},
    {"\"top_k\":-1", true},
    {"\"top_k\":-2", false},
    {"\"top_k\":1.5", false},
    {"\"min_p\":1", true},
    {"\"min_p\":-1", false},
    {"\"presence_penalty\":-2", true},
    {"\"presence_penalty\":2.5", false},
    {"\"frequency_penalty\":-2.5", false},
    {"\"repeat_penalty\":1.1", true},
    {"\"repeat_penalty\":0", false},
    {"\"repetition_penalty\":-1", false},
    {"\"seed\":-1", true},
    {"\"seed\":1.5", false},
    {"\"n\":128", true},
    {"\"n\":0", false},
    {"\"n\":-1", false},
    {"\"n\":129", false},
    {"\"n\":1000000", false},
    {"\"max_tokens\":0", true},
    {"\"max_tokens\":-1", false},
    {"\"max_tokens\":\"5\"", false},
    {"\"max_completion_tokens\":0", false},
    {"\"cache_salt\":\"\"", false},
    {"\"ignore_eos\":1", false},
    {"\"stream\":\"yes\"", false},
    {"\"dry_multiplier\":0", true},
    {"\"dry_multiplier\":0.8", true},
    {"\"dry_multiplier\":-1", false},
    {"\"dry_base\":0.5", false},
    {"\"dry_allowed_length\":1.5", false},
    {"\"dry_penalty_last_n\":-2", false},
    {"\"dry_sequence_breakers\":\"x\"", false},
    {"\"dry_base\":1.75", true},
    {"\"xtc_probability\":0.5", true},
    {"\"xtc_probability\":1.5", false},
    {"\"xtc_threshold\":-1", false},
    {"\"top_n_sigma\":\"x\"", false},
    {"\"mirostat\":2", true},
    {"\"mirostat\":3", false},
    {"\"mirostat_tau\":0", false},
    {"\"mirostat_eta\":-1", false},
    {"\"dynatemp_range\":0.0", true},
    {"\"dynatemp_range\":0.5", true},
    {"\"dynatemp_range\":-1", false},
    {"\"grammar\":\"\"", true},
    {"\"grammar\":\"root ::= \\\"a\\\"\"", true},
    {"\"grammar\":5", false},
    {"\"json_schema\":{\"type\":\"object\"}", true},
    {"\"guided_json\":{}", true},
    {"\"structured_outputs\":[]", false},
    {"\"structural_tag\":\"{}\"", false},
    {"\"use_beam_search\":false", true},
    {"\"use_beam_search\":true", false},
    {"\"bad_words\":[\"x\"]", false},
    {"\"lora\":[]", true},
    {"\"lora\":[{\"id\":0,\"scale\":1}]", false},
    {"\"metadata\":{},\"store\":true,\"user\":\"u\",\"service_tier\":\"auto\",\"verbosity\":\"low\"", true},
    {"\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\",\"nonsense\":[1,{}]", true},
};

static int read_options(const char *members, generation_options *o, json_t **body, http_error *error) {
    char json[400];
    snprintf(json, sizeof json, "{%s}", members);
    *body = parsed(json);
    return body_fields(*body, "", GENERATION_FIELDS, GENERATION_FIELD_COUNT, o, error);
}

static void parameters_are_honoured_or_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(PARAMETERS); i++) {
        generation_options o = {0};
        http_error error = {0};
        json_t *body;
        const int code = read_options(PARAMETERS[i].json, &o, &body, &error);
        if ((code == 0) != PARAMETERS[i].fine) {
            fail_msg("%s: %s", PARAMETERS[i].json, code ? error.message : "accepted");
        }
        json_decref(body);
    }
}

static void of_two_names_one_wins(void **state) {
    (void)state;
    generation_options o = {0};
    http_error error;
    json_t *body;
    assert_int_equal(read_options("\"max_completion_tokens\":5,\"max_tokens\":9,\"n_predict\":-1,"
                                  "\"repetition_penalty\":1.5,\"repeat_penalty\":1.25,\"repeat_last_n\":-1,"
                                  "\"seed\":-9223372036854775808",
                                  &o, &body, &error),
                     0);
    assert_int_equal(o.max_tokens, 5);
    assert_true(o.repetition_penalty == 1.5 && o.penalty_tokens == -1 && o.seed == INT64_MIN);
    json_decref(body);
}

/* ---- messages ---- */

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"

static void messages_are_checked(void **state) {
    (void)state;
    /* the list, and the beginning of what is said; NULL: fine */
    static const char *const LISTS[][2] = {
        {"[" USER "]", NULL},
        {"[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
         "\"text\":\"d\"}]}," USER "]",
         NULL},
        {"[{\"role\":\"user\",\"content\":\"\",\"name\":null}]", NULL},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\","
         "\"content\":[{\"type\":\"text\",\"text\":\"r\"}]}]",
         NULL},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]",
         NULL},
        {"[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\"}]", NULL},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"},"
         "{\"type\":\"output_text\",\"text\":\"x\"}]}]",
         NULL},
        {"{}", "messages must be an array of messages, not an object"},
        {"\"hi\"", "messages must be an array of messages, not a string"},
        {"[]", "messages must have at least one message"},
        {"[" USER ",5]", "messages[1] must be an object, not a whole number"},
        {"[{}]", "messages[0].role must be a string, not nothing"},
        {"[{\"role\":7}]", "messages[0].role must be a string, not a whole number"},
        {"[{\"role\":\"wizard\",\"content\":\"x\"}]", "messages[0].role: must be one of"},
        {"[{\"role\":\"function\",\"name\":\"f\",\"content\":\"x\"}]", "messages[0].role: \"function\""},
        {"[{\"role\":\"user\"}]", "messages[0].content must be a string or an array of parts, not nothing"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content must be a string"},
        {"[{\"role\":\"user\",\"content\":3}]", "messages[0].content must be a string"},
        {"[{\"role\":\"user\",\"content\":{}}]", "messages[0].content must be a string"},
        {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content: an array of parts must not be empty"},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", "messages[0].content[0] must be an object"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text must be"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]", "messages[0].content[0].type must be"},
        {"[" USER
         ",{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\"}}]}]",
         "messages[1].content[0].type: \"image_url\" (image) is not supported"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]",
         "messages[0].content[0].type: \"input_audio\" (audio) is not supported"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"sesame\"}]}]", "messages[0].content[0].type: must be"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"name\":5}]", "messages[0].name must be a string"},
        {"[{\"role\":\"assistant\"}]", "messages[0].content: must be"},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}]", "messages[0].content: must be"},
        {"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":{}}]",
         "messages[0].tool_calls must be an array"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls[0] must be an object"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"custom\"}]}]",
         "messages[0].tool_calls[0].type"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":1}]}]", "messages[0].tool_calls[0].id must be"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\"}]}]",
         "messages[0].tool_calls[0].function must"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]",
         "messages[0].tool_calls[0].function.name must be"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":[]}}]}]",
         "messages[0].tool_calls[0].function.arguments must be"},
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"function_call\":{}}]", "messages[0].function_call"},
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":[]}]", "messages[0].reasoning must be"},
        {"[{\"role\":\"tool\"}]", "messages[0].content must be"},
        {"[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":9}]", "messages[0].tool_call_id must be"},
    };
    for (size_t i = 0; i < COUNT(LISTS); i++) {
        json_t *list = json_loads(LISTS[i][0], JSON_DECODE_ANY, NULL);
        http_error error = {0};
        const char *says = LISTS[i][1];
        assert_non_null(list);
        const int code = check_messages(list, "messages", &error);
        if ((code == 0) != (says == NULL) || (says && strncmp(error.message, says, strlen(says)) != 0)) {
            fail_msg("%s: %s", LISTS[i][0], code ? error.message : "accepted");
        }
        assert_null(strstr(error.message, "wizard"));
        assert_null(strstr(error.message, "sesame"));
        if (code) {
            /* The path that the message begins with. */
            assert_int_equal(strlen(error.param), strcspn(error.message, " :"));
            assert_memory_equal(error.param, says, strcspn(says, " :"));
        }
        json_decref(list);
    }
}

static void messages_become_uniform(void **state) {
    (void)state;
    json_t *list =
        json_loads("[{\"role\":\"developer\",\"content\":\"d\",\"extra\":1,\"tool_calls\":[7],"
                   "\"reasoning\":8,\"tool_call_id\":9},"
                   "{\"role\":\"user\",\"name\":\"n\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                   "{\"type\":\"input_text\",\"text\":\"b\"}]},"
                   "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":["
                   "{\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}},"
                   "{\"function\":{\"name\":\"g\",\"arguments\":\"not json\"}},"
                   "{\"function\":{\"name\":\"h\"}}]},"
                   "{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"},"
                   "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":[]}]",
                   0, NULL);
    json_t *expected = json_loads(
        "[{\"role\":\"system\",\"content\":\"d\"},{\"role\":\"user\",\"name\":\"n\",\"content\":\"a\\nb\"},"
        "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\",\"tool_calls\":["
        "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"not json\"}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"h\",\"arguments\":{}}}]},"
        "{\"role\":\"assistant\",\"content\":\"no\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"\"}]",
        0, NULL);
    http_error error;
    assert_non_null(list);
    assert_non_null(expected);
    assert_int_equal(check_messages(list, "messages", &error), 0);
    json_t *uniform = uniform_messages(list);
    if (!json_equal(uniform, expected)) {
        char *shown = json_dumps(uniform, 0);
        print_error("%s\n", shown);
        free(shown);
        fail();
    }
    json_decref(list);
    json_decref(uniform);
    json_decref(expected);
}

/* ---- texts ---- */

static void strings_are_json(void **state) {
    (void)state;
    /* U+FFFD once for every maximal part of a broken character: table 3-8 of the Unicode standard. */
    static const char *const STRINGS[][2] = {
        {"plain", "\"plain\""},
        {"\"\\/\b\f\n\r\t", "\"\\\"\\\\/\\b\\f\\n\\r\\t\""},
        {"\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\""},
        {"\xc3\xa4\xf0\x9f\xa4\x97", "\"\xc3\xa4\xf0\x9f\xa4\x97\""},
        {"a\xf1\x80\x80\xe1\x80\xc2z", "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\""},
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xe4\xb8", "\"\xef\xbf\xbd\""},
        {"\xff\x41", "\"\xef\xbf\xbd\x41\""},
    };
    for (size_t i = 0; i < COUNT(STRINGS); i++) {
        text t = {0};
        text_string(&t, STRINGS[i][0], strlen(STRINGS[i][0]));
        assert_string_equal(t.data, STRINGS[i][1]);
        text_free(&t);
    }
}

static void reals_are_exact(void **state) {
    (void)state;
    static const double REALS[] = {0, -0.0, 1, 0.1, -1.5, 1e300, 5e-324, DBL_MAX, 1.0 / 3, 123456789.0, 1e22};
    for (size_t i = 0; i < COUNT(REALS); i++) {
        text t = {0};
        text_real(&t, REALS[i]);
        json_error_t error;
        json_t *back = json_loads(t.data, JSON_DECODE_ANY, &error);
        assert_true(json_is_real(back));
        assert_true(json_real_value(back) == REALS[i]);
        json_decref(back);
        text_free(&t);
    }
    text short_form = {0}, none = {0};
    text_real(&short_form, 0.1);
    assert_string_equal(short_form.data, "0.1");
    text_free(&short_form);
    text_real(&none, NAN);
    assert_true(none.failed);
    text_free(&none);
}

static void values_round_trip(void **state) {
    (void)state;
    static const char JSON[] = "{\"a\":[1,-2,0.5,true,false,null,\"x\\\"y\"],\"b\":{},\"c\":[]}";
    json_t *value = parsed(JSON);
    text t = {0};
    text_json_new(&t, value);
    assert_string_equal(t.data, JSON);
    text_clear(&t);
    text_json(&t, NULL);
    assert_true(t.failed);
    size_t length = 1;
    assert_null(text_take(&t, &length));
    assert_int_equal(length, 0);
    char *empty = text_take(&t, &length);
    assert_non_null(empty);
    assert_string_equal(empty, "");
    free(empty);
    text_format(&t, "%0200d|%s", 7, "end"); /* longer than the room that there is at first */
    assert_int_equal(t.length, 204);
    assert_string_equal(t.data + 199, "7|end");
    text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_json_is_400_and_says_what),
        cmocka_unit_test(a_fault_has_line_column_and_byte),
        cmocka_unit_test(good_json_is_read),
        cmocka_unit_test(bombs_are_refused_at_once),
        cmocka_unit_test(bounds_are_met_exactly),
        cmocka_unit_test(fields_are_strict),
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(parameters_are_honoured_or_refused),
        cmocka_unit_test(of_two_names_one_wins),
        cmocka_unit_test(messages_are_checked),
        cmocka_unit_test(messages_become_uniform),
        cmocka_unit_test(strings_are_json),
        cmocka_unit_test(reals_are_exact),
        cmocka_unit_test(values_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
