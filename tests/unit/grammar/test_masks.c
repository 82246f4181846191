/* Masks bit by bit against accepting each token, for places that random walks reach; going back, copies, what
 * is forced; threads that share a grammar; allocations that fail. */
#define _GNU_SOURCE
#include "support.h"

#include "base/alloc.h"
#include "grammar/schema.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

enum { WORDS = (TOKEN_COUNT + 31) / 32 };
typedef enum kind { SCHEMA, GBNF, REGEX } kind;

static const struct {
    kind kind;
    const char *text;
} GRAMMARS[] = {
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"string\"},\"b\":{\"type\":\"array\",\"items\":"
     "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":120},\"maxItems\":4},\"c\":{\"$ref\":\"#\"},\"d\":"
     "{\"enum\":[true,null,\"abc\",12.5,{\"a\":1}]}}}"},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":9},\"t\":"
     "{\"type\":\"string\",\"maxLength\":100}},\"required\":[\"s\",\"t\"],\"additionalProperties\":false}"},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2,"
     "\"maxItems\":30},\"minItems\":1}"},
    {SCHEMA, "{}"},
    /* names that differ */
    {SCHEMA, "{\"type\":\"object\",\"minProperties\":3}"},
    {SCHEMA, "{\"type\":\"object\",\"minProperties\":4,\"properties\":{\"ab\":{}},\"patternProperties\":{"
             "\"^[ab]{1,2}$\":{\"type\":\"boolean\"},\"^é?c$\":{\"$ref\":\"#\"}},"
             "\"additionalProperties\":false}"},
    {SCHEMA, "{\"anyOf\":[{\"type\":\"object\",\"minProperties\":2,\"propertyNames\":{\"pattern\":"
             "\"^[a/\\\\n]?$\"}},{\"type\":\"object\",\"properties\":{\"a\":{\"const\":12},\"b\":{}}}]}"},
    {GBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\""},
    {GBNF, "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"\""},
    {GBNF, "root ::= \"(\" (root | \"x\"{2,40})* \")\""},
    {GBNF, "root ::= x{3,60} [ab]*\nx ::= [a-c] | \"abc\" | <think>"},
    {GBNF, "root ::= (!<think> \"a\")* | [a-z \\n]* \"c\" | <[256]>"},
    {GBNF, "root ::= (\"ab\" | \"abc\" | \"aab\")+ \"c\"? root? | [^a]"},
    {GBNF, "root ::= (item \",\"?){2,}\nitem ::= \"[\" item{0,3} \"]\" | \"hello world\" | \"xy\"{5}"},
    {REGEX, "(?:[a-z]{3,20}[.!?] ?){1,6}"},
    {REGEX, ".*é.{2}"},
    {REGEX, "(?:ab|bc|cab)*\\n{1,2}(?:x{0,30}y){2}"},
    {REGEX, "[^\\x00-\\x1f\"\\\\]{0,12}"},
};
enum { COUNT = sizeof(GRAMMARS) / sizeof(*GRAMMARS) };

static sl_grammar_vocabulary *vocabulary;
static sl_grammar *grammars[COUNT];

static uint32_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

static sl_expression parse(sl_grammar_builder *builder, int number, sl_error *error) {
    const char *text = GRAMMARS[number].text;
    const sl_json_style style = {0};
    switch (GRAMMARS[number].kind) {
    case SCHEMA:
        return sl_expression_schema(builder, text, strlen(text), &style, error);
    case GBNF:
        return sl_expression_gbnf(builder, text, strlen(text), error);
    case REGEX:
        return sl_expression_regex(builder, text, strlen(text), true, error);
    }
    return SL_NO_EXPRESSION;
}

static sl_grammar *compile(int number, sl_error *error) {
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    if (!builder) {
        return NULL;
    }
    sl_expression expression = parse(builder, number, error);
    sl_grammar *grammar = expression < 0 ? NULL : sl_grammar_compile(builder, expression, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return grammar;
}

static int make(void **state) {
    sl_error error;
    (void)state;
    vocabulary = make_vocabulary(&error);
    for (int i = 0; i < COUNT && vocabulary; i++) {
        grammars[i] = compile(i, &error);
        if (!grammars[i]) {
            print_error("%s: %s\n", GRAMMARS[i].text, error.message);
            return -1;
        }
    }
    return vocabulary ? 0 : -1;
}

static int unmake(void **state) {
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        sl_grammar_release(grammars[i]);
    }
    sl_grammar_vocabulary_release(vocabulary);
    return 0;
}

/* A token of the mask, long ones more often; -1: none. */
static int32_t choose(const uint32_t *mask, uint64_t *random) {
    int32_t chosen = -1;
    uint32_t best = 0;
    for (int32_t i = 0; i < TOKEN_COUNT; i++) {
        const uint32_t weight = next_random(random) >> (i >= FIRST_LONG ? 8 : i == END ? 12 : 10);
        if (has_token(mask, i) && weight >= best) {
            chosen = i;
            best = weight;
        }
    }
    return chosen;
}

static int walk(sl_grammar *grammar, int number, uint64_t random, int steps) {
    uint32_t mask[WORDS];
    sl_error error;
    sl_matcher *matcher = sl_matcher_create(grammar, &error);
    int code = matcher ? 0 : -1;
    for (int step = 0; step < steps && code == 0 && !sl_matcher_has_ended(matcher); step++) {
        const int32_t wrong = wrong_bit(matcher, mask);
        if (wrong != -1) {
            print_error("%s: step %d: token %d\n", GRAMMARS[number].text, step, wrong);
            code = -1;
        }
        const int32_t token = code ? -1 : choose(mask, &random);
        code = code ? code : sl_matcher_accept(matcher, token, &error) == 1 ? 0 : -1;
    }
    sl_matcher_destroy(matcher);
    return code;
}

static void masks_say_what_is_accepted(void **state) {
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        for (uint64_t seed = 1; seed <= 12; seed++) {
            assert_int_equal(walk(grammars[i], i, seed * 0x9e3779b97f4a7c15u, 60), 0);
        }
    }
}

/* Masks on the way out must be those of the way back, and those of a copy that went on elsewhere meanwhile.
 */
static void going_back_and_copies(void **state) {
    enum { STEPS = 40 };
    static uint32_t masks[STEPS + 1][WORDS];
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        uint64_t random = 77 + (uint64_t)i;
        uint32_t mask[WORDS];
        sl_error error;
        sl_matcher *matcher = sl_matcher_create(grammars[i], &error), *copy;
        int steps = 0;
        for (; steps < STEPS && !sl_matcher_has_ended(matcher); steps++) {
            assert_int_equal(sl_matcher_mask(matcher, masks[steps], &error), 0);
            assert_int_equal(sl_matcher_accept(matcher, choose(masks[steps], &random), &error), 1);
        }
        assert_int_equal(sl_matcher_mask(matcher, masks[steps], &error), 0);
        assert_int_equal(sl_matcher_rollback(matcher, steps + 1, &error), SL_ERR_INVALID);
        const int back = steps / 2;
        copy = sl_matcher_copy(matcher, &error);
        assert_non_null(copy);
        assert_int_equal(sl_matcher_rollback(copy, steps - back, &error), 0);
        for (int at = back; at < back + 10 && !sl_matcher_has_ended(copy); at++) {
            assert_int_equal(sl_matcher_mask(copy, mask, &error), 0);
            assert_int_equal(sl_matcher_accept(copy, choose(mask, &random), &error), 1);
        }
        sl_matcher_destroy(copy);
        for (int at = steps; at >= 0; at--) {
            assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
            assert_memory_equal(mask, masks[at], sizeof(mask));
            assert_int_equal(sl_matcher_rollback(matcher, at > 0, &error), 0);
        }
        sl_matcher_destroy(matcher);
    }
}

/* Forced tokens and bytes are the only ones that can follow; where nothing is forced there is a choice. */
static void forced_is_what_alone_follows(void **state) {
    int32_t tokens[16];
    char bytes[32];
    int tokens_seen = 0, bytes_seen = 0;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        uint64_t random = 5 + (uint64_t)i;
        uint32_t mask[WORDS];
        sl_error error;
        sl_matcher *matcher = sl_matcher_create(grammars[i], &error);
        for (int step = 0; step < 40 && !sl_matcher_has_ended(matcher); step++) {
            const int forced = sl_matcher_forced(matcher, tokens, 16, &error);
            const int fixed = sl_matcher_forced_bytes(matcher, bytes, 32, &error);
            assert_true(forced >= 0 && fixed >= 0);
            assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
            int allowed = 0, first = -1;
            for (int32_t t = 0; t < TOKEN_COUNT; t++) {
                allowed += has_token(mask, t);
                first = has_token(mask, t) ? t : first;
                if (t < 256 && has_token(mask, t) && fixed > 0) {
                    assert_int_equal((uint8_t)bytes[0], t);
                }
            }
            assert_int_equal(forced > 0, allowed == 1);
            if (forced > 0) {
                assert_int_equal(tokens[0], first);
            }
            tokens_seen += forced > 0;
            bytes_seen += fixed > 0;
            if (fixed > 1) { /* byte by byte, nothing else is let through */
                sl_matcher *copy = sl_matcher_copy(matcher, &error);
                for (int b = 0; b < fixed; b++) {
                    assert_int_equal(sl_matcher_mask(copy, mask, &error), 0);
                    for (int32_t t = 0; t < 256; t++) {
                        assert_int_equal(has_token(mask, t), t == (uint8_t)bytes[b]);
                    }
                    assert_int_equal(sl_matcher_accept(copy, (uint8_t)bytes[b], &error), 1);
                }
                sl_matcher_destroy(copy);
            }
            assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
            assert_int_equal(sl_matcher_accept(matcher, choose(mask, &random), &error), 1);
        }
        sl_matcher_destroy(matcher);
    }
    assert_true(tokens_seen > 5 && bytes_seen > 20);
}

static void *walk_all(void *context) {
    const uint64_t seed = *(const uint64_t *)context;
    for (int i = 0; i < COUNT; i++) {
        sl_grammar *grammar = sl_grammar_retain(grammars[i]);
        if (walk(grammar, i, seed, 25)) {
            return context;
        }
        sl_grammar_release(grammar);
    }
    return NULL;
}

static void threads_share_a_grammar(void **state) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    uint64_t seeds[THREADS];
    sl_error error;
    (void)state;
    for (int i = 0; i < COUNT; i++) { /* without what is known already */
        sl_grammar_release(grammars[i]);
        grammars[i] = compile(i, &error);
        assert_non_null(grammars[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        seeds[i] = 1000 + (uint64_t)i;
        assert_int_equal(pthread_create(&threads[i], NULL, walk_all, &seeds[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}

static int32_t token_of(const char *text) {
    for (int32_t i = FIRST_LONG; i < TOKEN_COUNT; i++) {
        int32_t count;
        if (strcmp(token_bytes(i, &count), text) == 0) {
            return i;
        }
    }
    return -1;
}

static void accept_bytes_as_tokens(sl_matcher *matcher, const char *text) {
    sl_error error;
    for (; *text; text++) {
        assert_int_equal(sl_matcher_accept(matcher, (uint8_t)*text, &error), 1);
    }
}

/* Tokens that end a text within a character and have a whole name behind it; what was said before going back.
 */
static void names_that_are_there_do_not_follow(void **state) {
    static const char schema[] =
        "{\"type\":\"object\",\"minProperties\":3,\"additionalProperties\":{\"anyOf\":[{"
        "\"type\":[\"string\",\"integer\"]},{\"$ref\":\"#\"}]}}";
    uint32_t mask[WORDS], other[WORDS];
    sl_error error = {0};
    (void)state;
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
    const sl_json_style style = {.compact = true};
    sl_grammar *grammar = sl_grammar_compile(
        builder, sl_expression_schema(builder, schema, strlen(schema), &style, &error), vocabulary, &error);
    sl_matcher *matcher = sl_matcher_create(grammar, &error);
    accept_bytes_as_tokens(matcher, "{\"a\":1,\"b\":\"\xc3");
    assert_int_equal(wrong_bit(matcher, mask), -1);
    assert_false(has_token(mask, token_of("\xa9\",\"a\":")));
    assert_true(has_token(mask, token_of("\xa9\",\"c\":")));
    sl_matcher_rollback(matcher, 6, &error);
    accept_bytes_as_tokens(matcher, "\"");
    assert_int_equal(wrong_bit(matcher, mask), -1);
    assert_false(has_token(mask, token_of("a\"")));
    sl_matcher *copy = sl_matcher_copy(matcher, &error);
    assert_int_equal(sl_matcher_mask(copy, other, &error), 0);
    assert_memory_equal(mask, other, sizeof(mask));
    sl_matcher_destroy(copy);
    sl_matcher_rollback(matcher, 6, &error);
    accept_bytes_as_tokens(matcher, "b\":1,\"");
    assert_int_equal(wrong_bit(matcher, mask), -1);
    assert_true(has_token(mask, token_of("a\"")));
    /* Both begin a name at one place, in two objects. */
    sl_matcher_rollback(matcher, 8, &error);
    accept_bytes_as_tokens(matcher, "{\"a\":{\"c\":0,\"b\":1,\"d\":1");
    assert_int_equal(wrong_bit(matcher, mask), -1);
    assert_true(has_token(mask, token_of("1,\"a\"")));
    assert_false(has_token(mask, token_of("},\"a\"")));
    sl_matcher_destroy(matcher);
    sl_grammar_release(grammar);
    sl_grammar_builder_destroy(builder);
}

/* Compiles, makes masks, goes on, copies: 0, or the first error's code. */
static int use(int number) {
    uint32_t mask[WORDS];
    uint64_t random = 3;
    sl_error error = {0};
    sl_grammar *grammar = compile(number, &error);
    sl_matcher *matcher = grammar ? sl_matcher_create(grammar, &error) : NULL, *copy = NULL;
    int code = matcher ? 0 : error.code;
    for (int step = 0; step < 40 && code == 0 && !sl_matcher_has_ended(matcher); step++) {
        int32_t token;
        code = sl_matcher_mask(matcher, mask, &error);
        code = code ? code : sl_matcher_forced(matcher, &token, 1, &error);
        code = code < 0 ? code : sl_matcher_accept(matcher, choose(mask, &random), &error);
        code = code > 0 ? 0 : code;
    }
    if (code == 0) {
        copy = sl_matcher_copy(matcher, &error);
        code = copy ? sl_matcher_mask(copy, mask, &error) : error.code;
    }
    sl_matcher_destroy(copy);
    sl_matcher_destroy(matcher);
    sl_grammar_release(grammar);
    return code;
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    const int numbers[] = {1, 5, 7, 10, 16};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        const uint64_t held = sl_alloc_live_bytes(), before = sl_alloc_count();
        assert_int_equal(use(numbers[i]), 0);
        const uint64_t count = sl_alloc_count() - before;
        for (uint64_t nth = 1; nth <= count; nth++) {
            sl_alloc_fail_at(nth);
            const int code = use(numbers[i]);
            sl_alloc_fail_at(0);
            /* What is made ahead is made later if it fails. */
            if (code && code != SL_ERR_NOMEM) {
                fail_msg("%s: allocation %u: %d", GRAMMARS[numbers[i]].text, (unsigned)nth, code);
            }
            assert_int_equal(sl_alloc_live_bytes(), held);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_say_what_is_accepted),
        cmocka_unit_test(going_back_and_copies),
        cmocka_unit_test(forced_is_what_alone_follows),
        cmocka_unit_test(threads_share_a_grammar),
        cmocka_unit_test(names_that_are_there_do_not_follow),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
