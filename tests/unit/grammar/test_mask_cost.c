/* What masks cost on outputs as models write them, over a real vocabulary (../shared). As a test: every token
 * of each output is in its mask. With --bench: times of grammars, masks and steps, first uses apart and
 * together. */
#define _GNU_SOURCE
#include "base/alloc.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"
#include "token/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

typedef enum kind { SCHEMA, OBJECT, GBNF, REGEX } kind;

/* About the size of what OpenAI's documents show. */
#define PERSON                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","     \
    "\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":\"email\"},\"address\":"       \
    "{\"$ref\":\"#/$defs/address\"},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"new\",\"regular\","  \
    "\"partner\",\"blocked\"]},\"maxItems\":8},\"score\":{\"type\":\"number\"},\"active\":{\"type\":"        \
    "\"boolean\"},\"notes\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}},\"required\":["         \
    "\"name\","                                                                                              \
    "\"age\",\"email\",\"address\",\"tags\",\"score\",\"active\",\"notes\"],\"additionalProperties\":false," \
    "\"$defs\":{\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\"},\"city\":" \
    "{\"type\":\"string\"},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{5}$\"},\"country\":{\"enum\":"  \
    "[\"DE\",\"FR\",\"IT\",\"US\",\"GB\"]}},\"required\":[\"street\",\"city\",\"zip\",\"country\"],"         \
    "\"additionalProperties\":false}}}"
#define PERSON_TEXT                                                                                          \
    "{\"name\": \"Johannes M\xc3\xbcller\", \"age\": 42, \"email\": \"johannes.mueller@example.com\", "      \
    "\"address\": {\"street\": \"Hauptstra\xc3\x9f"                                                          \
    "e 17\", \"city\": \"Freiburg im Breisgau\", \"zip\": "                                                  \
    "\"79098\", \"country\": \"DE\"}, \"tags\": [\"regular\", \"partner\"], \"score\": 87.25, \"active\": "  \
    "true, \"notes\": \"Prefers to be called in the morning; asked twice about the invoice of "              \
    "March.\\nSays "                                                                                         \
    "the \\\"new\\\" office is on the third floor. \xe5\x8c\x97\xe4\xba\xac\"}"

#define TREE                                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"object\","     \
    "\"properties\":{\"explanation\":{\"type\":\"string\"},\"output\":{\"type\":\"string\"}},\"required\":"  \
    "[\"explanation\",\"output\"],\"additionalProperties\":false}},\"ui\":{\"$ref\":\"#/$defs/node\"}},"     \
    "\"required\":[\"steps\",\"ui\"],\"additionalProperties\":false,\"$defs\":{\"node\":{\"type\":"          \
    "\"object\","                                                                                            \
    "\"properties\":{\"type\":{\"enum\":[\"div\",\"button\",\"header\",\"section\",\"field\",\"form\"]},"    \
    "\"label\":{\"type\":\"string\"},\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"        \
    "node\"}}},"                                                                                             \
    "\"required\":[\"type\",\"label\",\"children\"],\"additionalProperties\":false}}}"
#define TREE_TEXT                                                                                            \
    "{\n  \"steps\": [\n    {\n      \"explanation\": \"First we isolate the term with x by subtracting 7 "  \
    "from both sides of the equation.\",\n      \"output\": \"8x = -30\"\n    },\n    {\n      "             \
    "\"explanation\": \"Then divide both sides by 8; the fraction is reduced afterwards.\",\n      "         \
    "\"output\": \"x = -30 / 8\"\n    }\n  ],\n  \"ui\": {\n    \"type\": \"form\",\n    \"label\": "        \
    "\"User Profile\",\n    \"children\": [\n      {\n        \"type\": \"field\",\n        \"label\": "     \
    "\"First Name\",\n        \"children\": []\n      },\n      {\n        \"type\": \"section\",\n        " \
    "\"label\": \"Buttons\",\n        \"children\": [\n          {\n            \"type\": \"button\",\n"     \
    "            \"label\": \"Save changes\",\n            \"children\": []\n          }\n        ]\n"       \
    "      }\n    ]\n  }\n}"

#define BOUNDS                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":80}," \
    "\"summary\":{\"type\":\"string\",\"maxLength\":1000},\"code\":{\"type\":\"string\",\"pattern\":"        \
    "\"^[A-Z]{2}-[0-9]{4}$\"},\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"points\":{\"type\":" \
    "\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-90,\"maximum\":90},\"minItems\":3,\"maxItems\":" \
    "100}},\"required\":[\"title\",\"summary\",\"code\",\"when\",\"points\"],\"additionalProperties\":"      \
    "false}"
#define BOUNDS_TEXT                                                                                          \
    "{\"title\": \"Quarterly measurements of the northern station, reviewed and corrected\", \"summary\": "  \
    "\"The station has been measured four times. Two values were out of range and had to be measured again " \
    "after the sensor was replaced. The others agree with those of last year within the tolerance. Nothing " \
    "else is to be done before spring.\", \"code\": \"NS-2041\", \"when\": \"2024-11-05T09:30:00Z\", "       \
    "\"points\": [12, -4, 77, 90, -90, 0, 3, 18, 55, 61]}"

#define NAMES                                                                                                \
    "{\"type\":\"object\",\"minProperties\":6,\"additionalProperties\":{\"anyOf\":[{\"type\":\"string\"},"   \
    "{\"$ref\":\"#\"}]}}"
#define NAMES_TEXT                                                                                                \
    "{\"name\": \"Freiburg im Breisgau\", \"country\": \"Germany\", \"river\": \"Dreisam\", \"mayor\": "          \
    "\"Martin Horn\", \"names in other languages\": {\"en\": \"Freiburg\", \"fr\": "                              \
    "\"Fribourg-en-Brisgau\", "                                                                                   \
    "\"it\": \"Friburgo in Brisgovia\", \"la\": \"Friburgum Brisgoviae\", \"ru\": \"Фрайбург\", \"zh\": " \
    "\"弗赖堡\"}, \"name of the region\": \"Baden-Württemberg\", \"founded\": \"1120\"}"

#define JSON_GBNF                                                                                            \
    "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"   \
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"              \
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"                                               \
    "string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}))* "    \
    "\"\\\"\" ws\nnumber ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "        \
    "[1-9]{0,15})? ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}"

static const struct {
    const char *name;
    kind kind;
    const char *grammar, *text;
} CASES[] = {
    {"schema: person", SCHEMA, PERSON, PERSON_TEXT},
    {"schema: recursive", SCHEMA, TREE, TREE_TEXT},
    {"schema: lengths", SCHEMA, BOUNDS, BOUNDS_TEXT},
    {"schema: names", SCHEMA, NAMES, NAMES_TEXT},
    {"json_object", OBJECT, "", TREE_TEXT},
    {"gbnf: json", GBNF, JSON_GBNF, PERSON_TEXT},
    {"regex", REGEX,
     "(?:Dear|Hello) [A-Z][a-z]+,\\n\\n(?:[A-Z][^.!?\\n]{3,200}[.!?] ?){1,6}\\n\\n(?:Yours|Best "
     "regards),\\n.+",
     "Dear Anna,\n\nThank you for the letter of last week about the garden behind the house. We have seen "
     "that the "
     "roses are gone! Would you like to have new ones? They come in white, red and yellow.\n\nBest "
     "regards,\nPaul"},
};
enum { CASES_COUNT = sizeof CASES / sizeof *CASES, MOST_SAMPLES = 4096 };

static sl_tokenizer *tokenizer;
static sl_grammar_vocabulary *vocabulary;

/* Of this thread on a processor: others that use the machine do not count. */
static double seconds_used(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int load(void) {
    char path[512], config[512];
    sl_error error = {0};
    snprintf(path, sizeof path, "%s/tokenizers/qwen3/tokenizer.json", SLUICE_SHARED_DIR);
    snprintf(config, sizeof config, "%s/tokenizers/qwen3/tokenizer_config.json", SLUICE_SHARED_DIR);
    if (!SLUICE_SHARED_DIR[0] || sl_tokenizer_from_json(path, config, &tokenizer, &error)) {
        printf("skipped: ../shared/tokenizers/qwen3 is needed (%s)\n", error.message);
        return 77;
    }
    const int32_t count = sl_tokenizer_size(tokenizer);
    sl_grammar_token *tokens = sl_alloc_zero((size_t)count, sizeof *tokens);
    for (int32_t i = 0; i < count; i++) {
        const sl_view bytes = sl_tokenizer_decode_piece(tokenizer, i);
        const sl_token_type type = sl_tokenizer_token_type(tokenizer, i);
        tokens[i] = (sl_grammar_token){.bytes = bytes.data, .count = (int32_t)bytes.length};
        tokens[i].is_end = sl_tokenizer_is_eog(tokenizer, i);
        tokens[i].is_special = tokens[i].is_end || type == SL_TOKEN_CONTROL;
    }
    vocabulary = sl_grammar_vocabulary_create(tokens, count, &error);
    sl_free(tokens);
    return vocabulary ? 0 : 1;
}

static sl_expression parse(sl_grammar_builder *builder, int number, sl_error *error) {
    const char *text = CASES[number].grammar;
    const sl_json_style style = {0};
    switch (CASES[number].kind) {
    case SCHEMA:
        return sl_expression_schema(builder, text, strlen(text), &style, error);
    case OBJECT:
        return sl_expression_json_object(builder, &style);
    case GBNF:
        return sl_expression_gbnf(builder, text, strlen(text), error);
    case REGEX:
        return sl_expression_regex(builder, text, strlen(text), true, error);
    }
    return SL_NO_EXPRESSION;
}

static sl_grammar *compile(int number, sl_error *error) {
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    sl_expression root = builder ? parse(builder, number, error) : SL_NO_EXPRESSION;
    sl_grammar *grammar = root < 0 ? NULL : sl_grammar_compile(builder, root, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return grammar;
}

/* Microseconds of a mask and a step for each token of the case's text, appended; how many. -1: a token is not
 * in its mask, or an error. */
static int follow(sl_grammar *grammar, int number, double *samples, uint32_t *mask) {
    sl_error error = {0};
    sl_tokens tokens = {0};
    const char *text = CASES[number].text;
    if (sl_tokenizer_encode(tokenizer, text, strlen(text), 0, &tokens, &error)) {
        return -1;
    }
    sl_matcher *matcher = sl_matcher_create(grammar, &error);
    int made = matcher ? 0 : -1;
    for (size_t i = 0; i < tokens.count && made >= 0 && made < MOST_SAMPLES; i++) {
        const int32_t token = tokens.data[i];
        const double begin = seconds_used();
        const int code = sl_matcher_mask(matcher, mask, &error);
        const int taken = code ? code : sl_matcher_accept(matcher, token, &error);
        samples[made++] = 1e6 * (seconds_used() - begin);
        if (taken != 1 || !(mask[token / 32] >> token % 32 & 1)) {
            printf("%s: token %zu of the text (%d) is not allowed: %s\n", CASES[number].name, i, token,
                   error.message);
            made = -1;
        }
    }
    if (made >= 0 && !sl_matcher_can_end(matcher)) {
        printf("%s: the text cannot end\n", CASES[number].name);
        made = -1;
    }
    sl_matcher_destroy(matcher);
    sl_tokens_free(&tokens);
    return made;
}

static int compare_times(const void *a, const void *b) {
    const double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static void print_times(const char *name, const char *which, double *samples, int count) {
    qsort(samples, (size_t)count, sizeof *samples, compare_times);
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += samples[i];
    }
    printf("%-20s %-8s %6d tokens %9.1f %9.1f %9.1f %9.1f us\n", name, which, count, samples[count / 2],
           samples[count * 99 / 100], samples[count - 1], sum / count);
}

enum { ROUNDS = 5 };

static int bench(void) {
    static double first[CASES_COUNT * MOST_SAMPLES], later[CASES_COUNT * MOST_SAMPLES];
    uint32_t *mask = sl_alloc_zero((size_t)sl_tokenizer_size(tokenizer) / 32 + 1, sizeof *mask);
    int first_count = 0, later_count = 0;
    sl_error error = {0};
    printf("vocabulary: %d tokens; a mask and a step: median, 99th percentile, maximum, mean\n",
           sl_tokenizer_size(tokenizer));
    for (int i = 0; i < CASES_COUNT; i++) {
        double times[ROUNDS];
        sl_grammar *grammar = NULL;
        for (int round = 0; round < ROUNDS; round++) {
            const double begin = seconds_used();
            sl_grammar_release(grammar);
            grammar = compile(i, &error);
            times[round] = 1e3 * (seconds_used() - begin);
        }
        if (!grammar) {
            printf("%s: %s\n", CASES[i].name, error.message);
            return 1;
        }
        qsort(times, ROUNDS, sizeof *times, compare_times);
        printf("%-20s compiled in %.2f ms (median of %d)\n", CASES[i].name, times[ROUNDS / 2], ROUNDS);
        const int made = follow(grammar, i, first + first_count, mask);
        const int again = made < 0 ? -1 : follow(grammar, i, later + later_count, mask);
        sl_grammar_release(grammar);
        if (again < 0) {
            return 1;
        }
        double sorted[MOST_SAMPLES];
        memcpy(sorted, first + first_count, (size_t)made * sizeof *sorted);
        print_times(CASES[i].name, "first", sorted, made);
        memcpy(sorted, later + later_count, (size_t)again * sizeof *sorted);
        print_times(CASES[i].name, "later", sorted, again);
        first_count += made;
        later_count += again;
    }
    print_times("all", "first", first, first_count);
    print_times("all", "later", later, later_count);
    sl_free(mask);
    return 0;
}

/* Which token's bit says something else than accepting it; -1: none. */
static int32_t wrong_token(sl_matcher *matcher, const uint32_t *mask) {
    sl_error error;
    for (int32_t i = 0; i < sl_tokenizer_size(tokenizer); i++) {
        const int accepted = sl_matcher_accept(matcher, i, &error);
        if (accepted != (int)(mask[i / 32] >> i % 32 & 1) ||
            (accepted && sl_matcher_rollback(matcher, 1, &error))) {
            return i;
        }
    }
    return -1;
}

/* At some places of each output, every token of the vocabulary. */
static void bits_are_what_is_accepted(void **state) {
    enum { EVERY = 29 };
    uint32_t *mask = sl_alloc_zero((size_t)sl_tokenizer_size(tokenizer) / 32 + 1, sizeof *mask);
    (void)state;
    for (int i = 0; i < CASES_COUNT; i++) {
        sl_error error = {0};
        sl_tokens tokens = {0};
        sl_grammar *grammar = compile(i, &error);
        sl_matcher *matcher = sl_matcher_create(grammar, &error);
        const char *text = CASES[i].text;
        assert_int_equal(sl_tokenizer_encode(tokenizer, text, strlen(text), 0, &tokens, &error), 0);
        for (size_t at = 0; at < tokens.count; at++) {
            if (at % EVERY == (size_t)i || at + 1 == tokens.count) {
                assert_int_equal(sl_matcher_mask(matcher, mask, &error), 0);
                const int32_t wrong = wrong_token(matcher, mask);
                if (wrong >= 0) {
                    fail_msg("%s: place %u: the bit of token %d is wrong", CASES[i].name, (unsigned)at,
                             wrong);
                }
            }
            assert_int_equal(sl_matcher_accept(matcher, tokens.data[at], &error), 1);
        }
        sl_matcher_destroy(matcher);
        sl_grammar_release(grammar);
        sl_tokens_free(&tokens);
    }
    sl_free(mask);
}

static void outputs_are_allowed(void **state) {
    static double samples[MOST_SAMPLES];
    uint32_t *mask = sl_alloc_zero((size_t)sl_tokenizer_size(tokenizer) / 32 + 1, sizeof *mask);
    (void)state;
    for (int i = 0; i < CASES_COUNT; i++) {
        sl_error error = {0};
        sl_grammar *grammar = compile(i, &error);
        if (!grammar) {
            fail_msg("%s: %s", CASES[i].name, error.message);
        }
        assert_true(follow(grammar, i, samples, mask) > 20);
        sl_grammar_release(grammar);
    }
    sl_free(mask);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(outputs_are_allowed),
                                       cmocka_unit_test(bits_are_what_is_accepted)};
    const int code = load();
    if (code) {
        return code;
    }
    const int result =
        argc > 1 && strcmp(argv[1], "--bench") == 0 ? bench() : cmocka_run_group_tests(tests, NULL, NULL);
    sl_grammar_vocabulary_release(vocabulary);
    sl_tokenizer_destroy(tokenizer);
    return result;
}
