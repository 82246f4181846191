/* JSON Schema: which texts a schema's grammar has, by the standard (draft 2020-12), and how schemas that
 * cannot be held are refused. The cases are those of the standard's texts and of its public suite, as facts.
 */
#include "support.h"

#include "base/alloc.h"
#include "base/text.h"
#include "grammar/schema.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
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

static sl_grammar *compile(const char *text, size_t count, bool compact, sl_error *error) {
    const sl_json_style style = {.compact = compact};
    *error = (sl_error){0};
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    if (!builder) {
        return NULL;
    }
    const sl_expression root = sl_expression_schema(builder, text, count, &style, error);
    sl_grammar *grammar = root < 0 ? NULL : sl_grammar_compile(builder, root, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return grammar;
}

static const struct {
    const char *schema;
    const char *valid[10], *invalid[10];
} CASES[] = {
    {"true", {"null", "-1.5e+10", "\"a\"", "[]", "{\"a\": [1, {}]}"}, {"", "nul", "[1,]", "{a: 1}", "01"}},
    {"{\"type\":\"integer\"}", {"0", "-7", "120"}, {"1.0", "1e3", "-", "-0", "01", "\"1\"", "true"}},
    {"{\"type\":\"number\"}", {"0", "-0.5", "1e-07", "2E+30"}, {".5", "1.", "1e", "+1", "NaN"}},
    {"{\"type\":[\"string\",\"null\"]}", {"null", "\"\""}, {"1", "[]"}},
    /* texts */
    {"{\"minLength\":2,\"maxLength\":3,\"type\":\"string\"}",
     {"\"ab\"", "\"\\\"\\n\\u0001\"", "\"\xf0\x9f\xa4\x97\xe5\x8c\x97\""},
     {"\"a\"", "\"abcd\"", "\"a\n\"", "\"\xf0\x9f\xa4\x97\""}},
    {"{\"pattern\":\"^\\\"b?$\",\"type\":\"string\"}", {"\"\\\"b\"", "\"\\\"\""}, {"\"b\"", "\"\"b\""}},
    {"{\"pattern\":\"b\",\"maxLength\":2,\"type\":\"string\"}", {"\"b\"", "\"ab\""}, {"\"a\"", "\"aab\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"1963-06-19T08:30:06.283185Z\"", "\"1937-01-01T12:00:27.87+00:20\"", "\"1998-12-31T23:59:60Z\"",
      "\"1998-12-31T15:59:60.123-08:00\""},
     {"\"1998-12-31T23:58:60Z\"", "\"2016-12-31T24:59:60+01:00\"", "\"1990-02-31T15:59:59Z\"",
      "\"2013-350T01:01:01\"", "\"1963-06-19 08:30:06Z\""}},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::1\"", "\"1::d6:192.168.0.1\"", "\"1:2:3:4:5:6:7:8\""},
     {"\"12345::\"", "\"1:1:1:1:1:1:1:1:1\"", "\":2:3:4:5:6:7:8\"", "\"::1::\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"2eb8aa08-aa98-11ea-b4aa-73b441d16380\""},
     {"\"2eb8aa08aa9811eab4aa73b441d16380\"", "\"2eb8aa08-aa98-11ea-b4aa-73b441d1638\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(?!ab)[a-z]+-(?=.*9)[0-9]+$\"}",
     {"\"ba-19\"", "\"a-9\""},
     {"\"ab-9\"", "\"abc-9\"", "\"b-8\"", "\"a-\""}},
    {"{\"type\":\"string\",\"format\":\"uri-template\"}",
     {"\"http://example.com/dictionary/{term:1}/{term}\""},
     {"\"http://example.com/dictionary/{term:1}/{term\""}},
    /* leap seconds where 23:59 of UTC is */
    {"{\"type\":\"string\",\"format\":\"time\"}",
     {"\"23:59:59Z\"", "\"08:30:06.283185-08:00\"", "\"23:59:60Z\"", "\"23:59:60+00:00\"",
      "\"01:29:60+01:30\"", "\"23:29:60+23:30\"", "\"15:59:60-08:00\"", "\"00:29:60-23:30\"",
      "\"05:44:60.5+05:45\"", "\"14:29:60-09:30\""},
     {"\"22:59:60Z\"", "\"23:58:60Z\"", "\"23:59:60+01:00\"", "\"23:59:60+00:30\"", "\"23:59:60-01:00\"",
      "\"23:59:60-00:30\"", "\"05:44:60+05:15\"", "\"23:59:61Z\"", "\"24:00:00Z\"", "\"12:00:00\""}},
    {"{\"enum\":[\"23:59:60Z\",\"22:59:60Z\",\"12:00:00Z\",\"08:14:60+08:15\"],\"format\":\"time\"}",
     {"\"23:59:60Z\"", "\"12:00:00Z\"", "\"08:14:60+08:15\""},
     {"\"22:59:60Z\""}},
    {"{\"type\":\"string\",\"format\":\"time\",\"maxLength\":20}",
     {"\"23:59:59Z\"", "\"23:59:59.25+01:00\""},
     {"\"22:59:60Z\"", "\"23:59:59.1234567+01:00\""}},
    /* RFC 5891 has them, but they are never written, and no negation takes them in */
    {"{\"type\":\"string\",\"not\":{\"format\":\"time\"}}",
     {"\"22:59:61Z\"", "\"noon\""},
     {"\"23:59:60Z\"", "\"12:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"hostname\"}",
     {"\"a--b.com\"", "\"xn\"", "\"r3---sn.example\"", "\"axn--b\""},
     {"\"xn--X\"", "\"xn--hello-txk\"", "\"a.XN--aa---o47jg78q\"", "\"xn--qmbc\"", "\"-a\"", "\"a.\""}},
    {"{\"type\":\"string\",\"not\":{\"format\":\"hostname\"}}",
     {"\"-a\"", "\"a..b\""},
     {"\"xn--qmbc\"", "\"a\"", "\"a.xn--qmbc\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}",
     {"\"joe.bloggs@example.com\"", "\"\\\"@xn--\\\"@a.b\"", "\"xn--a@b\""},
     {"\"2962\"", "\"joe@xn--X.com\"", "\"joe@a.xn--X\""}},
    {"{\"type\":\"string\",\"format\":\"of my own\"}", {"\"anything\""}, {"1"}},
    /* numbers */
    {"{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":120}",
     {"-5", "0", "9", "99", "119"},
     {"-6", "120", "999", "-10"}},
    {"{\"type\":\"number\",\"minimum\":1.25,\"maximum\":10}",
     {"1.25", "1.3", "2", "9.99", "10", "10.0"},
     {"1.2", "1", "10.01", "0.5", "11", "1.249"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-0.5,\"exclusiveMaximum\":0.5}",
     {"0", "-0.49", "0.4999"},
     {"0.5", "-0.5", "-0.50", "1"}},
    {"{\"minimum\":3,\"exclusiveMinimum\":true}", {"3.1", "\"any other type\""}, {"3", "2"}},
    {"{\"type\":\"integer\",\"multipleOf\":7}", {"0", "7", "-14", "98"}, {"1", "8", "-15", "97"}},
    {"{\"type\":\"number\",\"multipleOf\":0.01}", {"4.02", "0.07", "-3"}, {"4.021", "0.001"}},
    {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", {"1.5", "0.25"}, {"1", "1.0"}},
    /* constants */
    {"{\"enum\":[6,\"foo\",[],true,{\"foo\": 12}]}",
     {"6", "\"foo\"", "[]", "true", "{\"foo\": 12}", "{\"foo\":12}"},
     {"7", "\"fo\"", "[1]", "false", "{\"foo\": false}", "{}"}},
    {"{\"const\":{\"a\":\"\\\"\",\"b\":[1.5,null]}}",
     {"{\"a\":\"\\\"\",\"b\":[1.5,null]}", "{\n  \"a\": \"\\\"\",\n  \"b\": [1.5, null]\n}"},
     {"{\"b\":[1.5,null],\"a\":\"\\\"\"}", "{\"a\":\"\\\"\"}"}},
    {"{\"enum\":[1,\"a\",\"bb\"],\"type\":\"string\",\"minLength\":2}", {"\"bb\""}, {"1", "\"a\""}},
    {"{\"not\":{\"const\":\"a\"},\"type\":\"string\"}", {"\"b\"", "\"aa\"", "\"\""}, {"\"a\"", "1"}},
    {"{\"not\":{\"enum\":[[1],2]},\"type\":[\"array\",\"integer\"]}",
     {"1", "[]", "[2]", "[1,1]"},
     {"2", "[1]"}},
    /* arrays */
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1, 2]", "[1,2,3]", "[\n  1\n]"},
     {"[]", "[1,2,3,4]", "[\"a\"]", "[1  ]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"items\":false}",
     {"[]", "[1]", "[1,null]"},
     {"[null]", "[1,null,1]", "[1,1]"}},
    {"{\"type\":\"array\",\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2}}",
     {"[1]", "[1,2,2]"},
     {"[2]", "[1,1]"}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true}",
     {"[]", "[3,1,2]", "[2]"},
     {"[1,1]", "[1,2,1]", "[1,2,3,1]"}},
    {"{\"type\":\"array\",\"contains\":{\"const\":5},\"maxContains\":1}",
     {"[5]", "[3,5,4]"},
     {"[]", "[5,5]", "[4]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":1000000000}",
     {"[]", "[null,null]"},
     {"[1]"}},
    /* objects */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},"
     "\"required\":[\"b\"],\"additionalProperties\":false}",
     {"{\"a\":1,\"b\":null}", "{\"b\": null}"},
     {"{\"b\":null,\"a\":1}", "{\"a\":1}", "{}", "{\"b\":null,\"c\":1}", "{\"b\":null,\"b\":null}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}}}",
     {"{}", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"aa\":[],\"b\":{}}"},
     {"{\"a\":2}", "{\"b\":2,\"a\":1}", "{\"b\":1,\"a\":2}"}},
    {"{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"y$\":{\"maximum\":3}},"
     "\"additionalProperties\":false}",
     {"{\"x\":9}", "{\"y\":null}", "{\"xy\":3}"},
     {"{\"xy\":4}", "{\"xy\":null}", "{\"z\":1}", "{\"y\":4}"}},
    {"{\"type\":\"object\",\"minProperties\":2}",
     {"{\"a\":1,\"b\":1}", "{\"a\":{\"a\":1,\"b\":1},\"b\":\"a\\\"\"}", "{\"\":1,\"a\":1}",
      "{\"a\":[{\"b\":1}],\"ab\":{\"c\":\"{\\\"\"},\"b\":1}"},
     {"{}", "{\"a\":1}", "{\"a\":1,\"a\":2}", "{\"\":1,\"\":1}", "{\"/\":1,\"\\/\":1}",
      "{\"\\n\":1,\"\\u000A\":1}", "{\"a\":\"{\",\"a\":1}", "{\"\\\"\":[\"]\"], \"\\\"\" :1}",
      "{\"b\":{\"a\":1,\"c\":{}},\"b\":1}"}},
    {"{\"type\":\"object\",\"minProperties\":3,\"properties\":{\"c\":{\"type\":\"null\"}},"
     "\"patternProperties\":{"
     "\"^[ab]$\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
     {"{\"c\":null,\"a\":1,\"b\":2}", "{\"c\":null,\"b\":1,\"a\":2}"},
     {"{\"a\":1,\"b\":2}", "{\"c\":null,\"a\":1}", "{\"c\":null,\"a\":1,\"a\":2}",
      "{\"c\":null,\"a\":1,\"b\":2,\"a\":3}"}},
    {"{\"type\":\"object\",\"not\":{\"maxProperties\":1}}",
     {"{\"a\":1,\"b\":1}"},
     {"{\"a\":1}", "{\"a\":1,\"a\":2}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2},\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"ab\":1,\"b\":2}"},
     {"{}", "{\"abc\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"additionalProperties\":false,"
     "\"minProperties\":2}",
     {"{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1}"},
     {"{}", "{\"a\":1}", "{\"c\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\\\"\\n\":{\"const\":1}},\"additionalProperties\":false}",
     {"{\"a\\\"\\n\":1}"},
     {"{\"a\\\"n\":1}"}},
    /* what combines schemas */
    {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{\"a\":{"
     "\"type\":"
     "\"integer\",\"maximum\":5}}}],\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"null\"}},"
     "\"unevaluatedProperties\":false}",
     {"{\"a\":4}", "{\"b\":null,\"a\":5}"},
     {"{\"a\":2}", "{\"a\":6}", "{\"b\":null}", "{\"a\":4,\"c\":1}", "{\"a\":3.5}"}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", {"1", "2.5", "-3"}, {"3", "1.5"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"oneOf\":[{\"required\":[\"a\"]},{"
     "\"required\":"
     "[\"b\"]}],\"additionalProperties\":false}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
    {"{\"if\":{\"type\":\"integer\"},\"then\":{\"minimum\":3},\"else\":{\"type\":\"string\"}}",
     {"3", "\"a\""},
     {"2", "1.5", "null", "[]"}},
    {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]},\"properties\":{\"a\":{},\"b\":{}}}",
     {"{}", "{\"b\":1}", "{\"a\":1,\"b\":1}"},
     {"{\"a\":1}", "{\"a\":1,\"c\":1}"}},
    {"{\"$ref\":\"#/$defs/a~1b%25\",\"$defs\":{\"a/b%\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
     {"[]", "[[],[[]]]"},
     {"[1]", "null"}},
    {"{\"$id\":\"http://x.org/root.json\",\"$ref\":\"folder/item.json#n\",\"$defs\":{\"A\":{\"$id\":"
     "\"http://x.org/folder/item.json\",\"$defs\":{\"B\":{\"$anchor\":\"n\",\"const\":1}}}}}",
     {"1"},
     {"2"}},
    {"{\"title\":\"t\",\"description\":\"d\",\"default\":1,\"examples\":[2],\"$comment\":\"c\","
     "\"deprecated\":true,"
     "\"x-own\":3,\"type\":\"null\"}",
     {"null"},
     {"1"}},
};

static void texts_are_those_of_the_standard(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        sl_error error;
        sl_grammar *grammar = compile(CASES[i].schema, strlen(CASES[i].schema), false, &error);
        if (!grammar) {
            fail_msg("%s: %s", CASES[i].schema, error.message);
        }
        for (int at = 0; at < 20; at++) {
            const bool valid = at < 10;
            const char *text = valid ? CASES[i].valid[at] : CASES[i].invalid[at - 10];
            if (text && (match(grammar, text, strlen(text)) == 1) != valid) {
                fail_msg("%s: %s is %s", CASES[i].schema, text, valid ? "valid" : "not valid");
            }
        }
        sl_grammar_release(grammar);
    }
}

static void compact_texts_have_no_space(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}},"
                                 "\"required\":[\"a\"]}";
    sl_error error;
    sl_grammar *grammar = compile(schema, strlen(schema), true, &error);
    assert_non_null(grammar);
    assert_int_equal(match(grammar, "{\"a\":[1,2]}", 11), 1);
    assert_int_equal(match(grammar, "{\"a\": [1,2]}", 12), 0);
    assert_int_equal(match(grammar, "{\"a\":[1, 2]}", 12), 0);
    sl_grammar_release(grammar);
}

static const struct {
    const char *schema, *words;
} REFUSED[] = {
    {"{\"type\":\"strin\"}", "#/type: a type is one of"},
    {"{\"properties\":{\"a\":{\"type\":[]}},\"type\":\"object\",\"required\":[\"a\"]}",
     "#/properties/a/type"},
    {"{\"enum\":[]}", "#/enum: is empty"},
    {"{\"$ref\":\"#\"}", "#: refers to itself"},
    {"{\"anyOf\":[{\"$ref\":\"#\"}]}", "refers to itself"},
    {"{\"$ref\":\"#/$defs/x\"}", "#/$ref: there is no '#/$defs/x'"},
    {"{\"$ref\":\"https://example.com/a.json\"}", "is outside this document"},
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "nothing satisfies it"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "nothing satisfies it"},
    {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "nothing satisfies it"},
    {"{\"type\":\"object\",\"minProperties\":3,\"propertyNames\":{\"enum\":[\"a\",\"b\"]}}",
     "nothing satisfies it"},
    {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", "nothing satisfies it"},
    {"{\"const\":1,\"type\":\"string\"}", "nothing satisfies it"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "nothing satisfies it"},
    {"false", "nothing satisfies it"},
    {"1", "a schema must be an object or a boolean"},
    {"{},{}", "a schema must be an object or a boolean"},
    {"{\"type\":", "not JSON"},
    {"{\"minLength\":-1}", "#/minLength: must be a whole number"},
    {"{\"$schema\":\"https://example.com/dialect\"}",
     "#/$schema: 'https://example.com/dialect' is a dialect"},
    {"{\"multipleOf\":0}", "#/multipleOf: must be a number above 0"},
    {"{\"required\":\"a\"}", "#/required: must be an array of names"},
    {"{\"items\":3}", "#/items: a schema must be"},
    {"{\"type\":\"string\",\"pattern\":\"(\"}", "#/pattern: "},
    {"{\"items\":{\"patternProperties\":{\"(\":{}}}}", "#/items/patternProperties: "},
    {"{\"type\":\"number\",\"minimum\":1e64}", "#/minimum: "},
    {"{\"type\":\"number\",\"exclusiveMaximum\":-1e300}", "#/exclusiveMaximum: "},
    {"{\"format\":\"regex\"}", "#/format: 'regex' is refused"},
    {"{\"not\":{\"format\":\"idn-hostname\"}}", "#/not/format: 'idn-hostname' is refused"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"uniqueItems\":true}}", "#/items/uniqueItems: "},
    {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}", "#/uniqueItems: "},
    {"{\"type\":\"array\",\"contains\":{\"const\":1},\"minItems\":3}", "#/contains: "},
    {"{\"anyOf\":[{\"required\":[\"a\"]}],\"unevaluatedProperties\":false}", "#/unevaluatedProperties: "},
    {"{\"not\":{\"type\":\"array\",\"uniqueItems\":true}}", "#/not/uniqueItems: cannot be negated"},
};

static void what_cannot_be_held_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        sl_error error;
        sl_grammar *grammar = compile(REFUSED[i].schema, strlen(REFUSED[i].schema), false, &error);
        if (grammar || !strstr(error.message, REFUSED[i].words) || strchr(error.message, '\n')) {
            fail_msg("%s: %s", REFUSED[i].schema, grammar ? "accepted" : error.message);
        }
        assert_true(error.code < 0);
    }
}

/* Two hundred thousand constants, deep schemas, products of choices: an answer, or an error. */
static void large_schemas_are_bounded(void **state) {
    (void)state;
    sl_buffer text = {0};
    sl_error error;
    sl_buffer_text(&text, "{\"enum\":[");
    for (int i = 0; i < 200000; i++) {
        sl_buffer_printf(&text, "%s\"value %d\"", i ? "," : "", i);
    }
    sl_buffer_text(&text, "]}");
    sl_grammar *grammar = compile(text.data, text.length, false, &error);
    if (grammar) {
        assert_int_equal(match(grammar, "\"value 199999\"", 14), 1);
        assert_int_equal(match(grammar, "\"value 200000\"", 14), 0);
    } else {
        assert_int_equal(error.code, SL_ERR_LIMIT);
    }
    sl_grammar_release(grammar);
    sl_buffer_clear(&text);
    for (int i = 0; i < 10000; i++) {
        sl_buffer_text(&text, "{\"items\":");
    }
    assert_null(compile(text.data, text.length, false, &error));
    assert_int_equal(error.code, SL_ERR_LIMIT);
    sl_buffer_clear(&text);
    sl_buffer_text(&text, "{\"type\":\"object\",\"allOf\":[");
    for (int i = 0; i < 60; i++) { /* 2 to the 60th ways */
        sl_buffer_printf(&text,
                         "%s{\"anyOf\":[{\"properties\":{\"a%d\":{\"type\":\"null\"}}},{\"properties\":"
                         "{\"b%d\":{\"type\":\"null\"}}}]}",
                         i ? "," : "", i, i);
    }
    sl_buffer_text(&text, "]}");
    assert_null(compile(text.data, text.length, false, &error));
    assert_int_equal(error.code, SL_ERR_LIMIT);
    sl_buffer_free(&text);
}

/* Every allocation fails once: an error, and nothing is left behind. */
static void memory_may_run_out(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3,\"multipleOf\":2},"
        "\"b\":{\"enum\":[1,\"x\",[2]]}},\"patternProperties\":{\"^p\":{\"type\":\"string\",\"format\":"
        "\"date\"}},"
        "\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"$defs\":{\"c\":{\"$id\":\"x\"}}}";
    for (uint64_t nth = 1;; nth += 1 + nth / 16) {
        const uint64_t before = sl_alloc_live_bytes();
        sl_error error = {0};
        sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
        assert_non_null(builder);
        sl_alloc_fail_at(nth);
        const sl_expression root = sl_expression_schema(builder, schema, strlen(schema), NULL, &error);
        sl_alloc_fail_at(0);
        sl_grammar_builder_destroy(builder);
        assert_true(root >= 0 || error.code == SL_ERR_NOMEM);
        assert_int_equal(sl_alloc_live_bytes(), before);
        if (root >= 0) {
            assert_true(nth > 100);
            return;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_standard),
        cmocka_unit_test(compact_texts_have_no_space),
        cmocka_unit_test(what_cannot_be_held_is_refused_by_name),
        cmocka_unit_test(large_schemas_are_bounded),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
