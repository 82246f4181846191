/* GBNF: what llama.cpp's notation means, text by text, and what is refused and where. */
#include "support.h"

#include "base/alloc.h"

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

static sl_grammar *compile(const char *text, sl_error *error) {
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    if (!builder) {
        return NULL;
    }
    sl_expression expression = sl_expression_gbnf(builder, text, strlen(text), error);
    sl_grammar *grammar = expression < 0 ? NULL : sl_grammar_compile(builder, expression, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return grammar;
}

/* Grammars with texts that they have and texts that they have not. Those with a name are the cases of
 * llama.cpp's tests/test-grammar-integration.cpp, as facts. */
static const struct {
    const char *name, *grammar;
    const char *matched[12], *refused[12];
} CASES[] = {
    {"simple",
     "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= number\nnumber ::= [0-9]+",
     {"42", "1+2+3+4+5", "123+456"},
     {"+", "/ 3", "1+2+3+4+5+", "12a45"}},
    {"medium complexity",
     "root ::= expression\nexpression ::= term ws ((\"+\"|\"-\") ws term)*\nterm ::= factor ws "
     "((\"*\"|\"/\") ws "
     "factor)*\nfactor ::= number | variable | \"(\" expression \")\" | function-call\nnumber ::= [0-9]+\n"
     "variable ::= [a-zA-Z_][a-zA-Z0-9_]*\nfunction-call ::= variable ws \"(\" (expression (\",\" ws "
     "expression)*)? "
     "\")\"\nws ::= [ \\t\\n\\r]?",
     {"42", "1*2*3*4*5", "x", "x+10", "x1+y2", "(a+b)*(c-d)", "func()", "func(x,y+2)", "a*(b+c)-d/e",
      "f(g(x),h(y,z))", "x + 10", "x1 + y2"},
     {"+", "/ 3x", "x + + y", "a * / b", "func(,)", "func(x y)", "(a + b", "x + y)", "a + b * (c - d", "42 +",
      "(x + y) * (a + b", "f(g(x), h(y, z)"}},
    {"any char",
     "root ::= \"A\" . \"C\"",
     {"ABC", "A\nC", "AéC"},
     {"AC", "ABBC",
      "A\xff"
      "C"}},
    {"special chars",
     "root ::= \"abc\" \"[]\\\"\\\\\" [a\\]\\-]",
     {"abc[]\"\\a", "abc[]\"\\]", "abc[]\"\\-"},
     {"abc[]\"\\", "abc[]a", "abc[]\"\\b"}},
    {"star", "root ::= \"a\"*", {"", "a", "aaaaa", "aaaaaaaaaaaaaaaaaa"}, {"b", "ab", "aab", "ba"}},
    {"plus", "root ::= \"a\"+", {"a", "aaaaa"}, {"", "b", "ab"}},
    {"question", "root ::= \"a\"?", {"", "a"}, {"b", "aa"}},
    {"mixed",
     "root ::= cons+ vowel* cons? (vowel cons)*\nvowel ::= [aeiouy]\ncons ::= [bcdfghjklmnpqrstvwxyz]",
     {"yes", "no", "noyes", "crwth", "four", "bryyyy"},
     {"yess", "yesno", "forty", "catyyy"}},
    {"exact", "root ::= [ab]{4}", {"aaaa", "bbbb", "abab"}, {"a", "b", "aaaaa"}},
    {"at least", "root ::= [ab]{4,}", {"aaaa", "aaaaab", "bbbb", "ababab"}, {"", "aba"}},
    {"at most", "root ::= [ab]{0,4}", {"", "a", "aa", "aaaa"}, {"aaaaa"}},
    {"between many",
     "root ::= (\"0x\" [A-F0-9]{2} \" \"?){3,5}",
     {"0xFF 0x12 0xAB", "0xFF 0x12 0xAB 0x00 0x00"},
     {"", "0xFF", "0xFF 0x12", "0xFF 0x12 0xAB 0x00 0x00 0x00"}},
    {"many", "root ::= \"a\"{200} [ab]{0,1000000000}", {NULL}, {"a", "aaab", ""}},
    {"recursion", "root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"", "(x", "x)", "((x)"}},
    {"right recursion", "root ::= \"a\" root | \"b\"", {"b", "aaab"}, {"a", "aba"}},
    {"ambiguous",
     "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"",
     {"a", "aab", "aac", "aaabc"},
     {"", "ab", "aabb"}},
    {"palindromes",
     "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"\"",
     {"", "aa", "abba", "baab", "aabbaa"},
     {"a", "ab", "abab"}},
    {"names",
     "root ::= a-1 B_2\na-1 ::= \"x\" # comment \"\n# another\n\nB_2 ::=\n  \"y\" |\n  \"z\"",
     {"xy", "xz"},
     {"x", "xyz"}},
    {"groups over lines", "root ::= (\n \"a\"\n | # b\n \"b\" )+\r\n", {"ab", "b"}, {"", "c"}},
    {"escapes", "root ::= \"\\x41\\u00e9\\U0001F600\\t\\r\\n\"", {"Aé😀\t\r\n"}, {"A"}},
    {"classes", "root ::= [^\\n\\x80-\\U0010ffff]+ [ぁ-ゟ]", {"abcぁ"}, {"éぁ", "a", "\nぁ"}},
    {"class with a hyphen at its end", "root ::= [a-]+", {"a-a"}, {"b"}},
    {"empty alternative", "root ::= \"a\" ( | \"b\") \"c\"", {"ac", "abc"}, {"abbc"}},
    {"empty loops", "root ::= ((\"a\"?)* b*){0,1000}\nb ::= c*\nc ::= \"b\"?", {"", "aabba"}, {"c"}},
    {"chained repetitions", "root ::= \"ab\"?+ \"c\"{2}{2}", {"cccc", "ababcccc"}, {"ccc", "ccccc"}},
};

static void texts_match(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        sl_error error;
        sl_grammar *grammar = compile(CASES[i].grammar, &error);
        if (!grammar) {
            fail_msg("%s: %s", CASES[i].name, error.message);
        }
        for (int j = 0; j < 12; j++) {
            const char *yes = CASES[i].matched[j], *no = CASES[i].refused[j];
            if (yes && match(grammar, yes, strlen(yes)) != 1) {
                fail_msg("%s: \"%s\" is refused", CASES[i].name, yes);
            }
            if (no && match(grammar, no, strlen(no)) == 1) {
                fail_msg("%s: \"%s\" is accepted", CASES[i].name, no);
            }
        }
        sl_grammar_release(grammar);
    }
}

static const struct {
    const char *grammar, *message;
} REFUSED[] = {
    {"", "there is no rule root"},
    {"a ::= \"x\"", "there is no rule root"},
    {"root ::= a", "line 1: the rule a is not defined"},
    {"root ::= \"x\"\nb ::= (\n\"y\"", "line 2: a parenthesis is not closed"},
    {"root ::= \"x", "line 1: a literal or a class does not end"},
    {"root ::= \"\\q\"", "line 1: an unknown escape, at \"\\q\"\""},
    {"root ::= \"\\ud800\"", "names no Unicode character"},
    {"root ::= \"\\x4\"", "a hexadecimal digit is expected"},
    {"root ::= [z-a]", "a range ends before it begins"},
    {"root ::= []", "an empty class"},
    {"root := \"x\"", "::= is expected"},
    {"root ::= *", "there is nothing to repeat"},
    {"root ::= \"x\"{3,2}", "a repetition ends below where it begins"},
    {"root ::= \"x\"{,2}", "a number is expected"},
    {"root ::= \"x\"{2", "} is expected"},
    {"root ::= \"x\" )", "the end of the line is expected"},
    {"root ::= \"x\"\nroot ::= \"y\"", "line 2: a rule is defined twice"},
    {"root ::= \"\xff\"", "not valid UTF-8"},
    {"root ::= <nowhere>", "the vocabulary has no token <nowhere>"},
    {"root ::= <[100000]>", "the vocabulary has no token 100000"},
    {"root ::= <[1>", "]> is expected"},
    {"root ::= root \"a\" | \"b\"", "the rule root can begin with itself"},
    {"root ::= a? b\nb ::= \"\" c\nc ::= root \"x\" | \"y\"\na ::= \"a\"", "can begin with itself"},
    {"root ::= root", "no text matches"},
    {"root ::= \"a\" root", "no text matches"},
};

static void errors_name_what_is_wrong(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(REFUSED) / sizeof(*REFUSED); i++) {
        sl_error error = {0};
        sl_grammar *grammar = compile(REFUSED[i].grammar, &error);
        if (grammar || !strstr(error.message, REFUSED[i].message)) {
            fail_msg("%s: \"%s\", expected \"%s\"", REFUSED[i].grammar, error.message, REFUSED[i].message);
        }
    }
}

static void tokens_stand_for_themselves(void **state) {
    sl_error error;
    uint32_t mask[(TOKEN_COUNT + 31) / 32];
    (void)state;
    sl_grammar *grammar = compile("root ::= <think> !<think>* <[256]> \"x\"", &error);
    assert_non_null(grammar);
    sl_matcher *matcher = sl_matcher_create(grammar, &error);
    assert_int_equal(sl_matcher_accept_bytes(matcher, "<think>", 7, &error), 0);
    assert_int_equal(sl_matcher_accept(matcher, 'x', &error), 0);
    assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
    for (int32_t i = 0; i < TOKEN_COUNT; i++) {
        assert_int_equal(mask[i / 32] >> i % 32 & 1, i == SPECIAL);
    }
    assert_int_equal(sl_matcher_accept(matcher, SPECIAL, &error), 1);
    assert_int_equal(sl_matcher_accept(matcher, 0xff, &error), 1); /* any token, whatever its bytes */
    assert_int_equal(sl_matcher_accept(matcher, FIRST_LONG + 3, &error), 1);
    assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
    for (int32_t i = 0; i < TOKEN_COUNT; i++) {
        assert_int_equal(mask[i / 32] >> i % 32 & 1, i != END);
    }
    assert_int_equal(sl_matcher_accept(matcher, END, &error), 0);
    assert_int_equal(sl_matcher_accept(matcher, SPECIAL, &error), 1);
    assert_int_equal(sl_matcher_accept(matcher, SPECIAL, &error), 0);
    assert_int_equal(sl_matcher_accept(matcher, 'x', &error), 1);
    assert_true(sl_matcher_can_end(matcher));
    assert_false(sl_matcher_has_ended(matcher));
    assert_int_equal(sl_matcher_accept(matcher, END, &error), 1);
    assert_true(sl_matcher_has_ended(matcher));
    sl_matcher_destroy(matcher);
    sl_grammar_release(grammar);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_match),
                                       cmocka_unit_test(errors_name_what_is_wrong),
                                       cmocka_unit_test(tokens_stand_for_themselves)};
    return cmocka_run_group_tests(tests, make, unmake);
}
