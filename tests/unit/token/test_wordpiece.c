/* WordPiece against the examples of BERT's own tests (google-research/bert, tokenization_test.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "token/tokenizer.h"

#include <stdio.h>

/* A tokenizer.json of these tokens, in the order of their ids. */
static sl_tokenizer *make(const char *const *tokens, size_t count, bool lower) {
    sl_buffer json = {0};
    sl_error error;
    sl_tokenizer *tokenizer;
    sl_buffer_printf(
        &json,
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"[CLS]\", \"special\": true}, {\"id\": 2, "
        "\"content\": \"[SEP]\", \"special\": true}], \"normalizer\": {\"type\": "
        "\"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, "
        "\"strip_accents\": null, \"lowercase\": %s}, \"pre_tokenizer\": {\"type\": "
        "\"BertPreTokenizer\"}, \"post_processor\": {\"type\": \"BertProcessing\", \"sep\": "
        "[\"[SEP]\", 2], \"cls\": [\"[CLS]\", 1]}, \"decoder\": {\"type\": \"WordPiece\"}, "
        "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", "
        "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": {",
        lower ? "true" : "false");
    for (size_t i = 0; i < count; i++) {
        sl_buffer_printf(&json, "%s\"%s\": %zu", i ? ", " : "", tokens[i], i);
    }
    sl_buffer_text(&json, "}}}");
    if (sl_tokenizer_from_json_memory((sl_view){json.data, json.length}, (sl_view){NULL, 0}, "test",
                                      &tokenizer, &error)) {
        fail_msg("%s", error.message);
    }
    sl_buffer_free(&json);
    return tokenizer;
}

static void check(const sl_tokenizer *tokenizer, const char *text, unsigned flags, const int32_t *want,
                  size_t count) {
    sl_tokens got = {0};
    sl_error error;
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, strlen(text), flags, &got, &error), 0);
    if (got.count != count || (count > 0 && memcmp(got.data, want, count * sizeof *want) != 0)) {
        print_error("%s:", text);
        for (size_t i = 0; i < got.count; i++) {
            print_error(" %d", got.data[i]);
        }
        fail_msg(": other tokens");
    }
    sl_tokens_free(&got);
}

#define CHECK(tokenizer, text, flags, ...)                                                                   \
    check(tokenizer, text, flags, (const int32_t[]){__VA_ARGS__},                                            \
          sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* test_full_tokenizer, test_wordpiece_tokenizer */
static void words_become_their_longest_pieces(void **state) {
    (void)state;
    static const char *const tokens[] = {"[UNK]", "[CLS]", "[SEP]", "want",  "##want", "##ed",
                                         "wa",    "un",    "runn",  "##ing", ","};
    sl_tokenizer *t = make(tokens, sizeof tokens / sizeof *tokens, true);
    CHECK(t,
          "UNwant\xc3\xa9"
          "d,running",
          0, 7, 4, 5, 10, 8, 9);
    CHECK(t, "unwanted running", 0, 7, 4, 5, 8, 9);
    CHECK(t, "unwantedX running", 0, 0, 8, 9);
    CHECK(t, "unwanted", SL_TOKENIZE_BOS | SL_TOKENIZE_END, 1, 7, 4, 5, 2);
    check(t, "", 0, NULL, 0);
    assert_int_equal(sl_tokenizer_closing(t), 2);
    sl_tokenizer_destroy(t);
}

/* test_chinese, test_basic_tokenizer_lower, test_basic_tokenizer_no_lower */
static void texts_are_cleaned_and_split(void **state) {
    (void)state;
    static const char *const tokens[] = {"[UNK]", "[CLS]", "[SEP]", "ah",  "\xe5\x8d\x9a", "\xe6\x8e\xa8",
                                         "zz",    "hello", "!",     "how", "are",          "you",
                                         "?",     "HeLLo", "Are",   "yoU"};
    const size_t count = sizeof tokens / sizeof *tokens;
    sl_tokenizer *lower = make(tokens, count, true), *cased = make(tokens, count, false);
    CHECK(lower, "ah\xe5\x8d\x9a\xe6\x8e\xa8zz", 0, 3, 4, 5, 6);
    CHECK(lower, " \tHeLLo!how  \n Are yoU?  ", 0, 7, 8, 9, 10, 11, 12);
    CHECK(cased, " \tHeLLo!how  \n Are yoU?  ", 0, 13, 8, 9, 14, 15, 12);
    CHECK(lower, "H\xc3\xa9llo", 0, 7);
    CHECK(cased, "H\xc3\xa9llo", 0, 0);
    CHECK(lower, "he\x01llo \xef\xbf\xbd", 0, 7); /* control characters and U+FFFD go */
    sl_tokenizer_destroy(lower);
    sl_tokenizer_destroy(cased);
}

/* Special tokens that somebody writes into a text stay text. */
static void special_tokens_are_asked_for(void **state) {
    (void)state;
    static const char *const tokens[] = {"[UNK]", "[CLS]", "[SEP]", "[", "]", "sep", "cls"};
    sl_tokenizer *t = make(tokens, sizeof tokens / sizeof *tokens, true);
    CHECK(t, "[SEP]", 0, 3, 5, 4);
    CHECK(t, "[SEP]", SL_TOKENIZE_SPECIAL, 2);
    sl_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_become_their_longest_pieces),
        cmocka_unit_test(texts_are_cleaned_and_split),
        cmocka_unit_test(special_tokens_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
