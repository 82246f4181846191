/* Texts with marks: what others wrote into a text cannot become a special token, and all else is as without
 * marks. */
#include "support.h"

/* Byte-level. "<e>" and "%" are special, "<t>" is not; "<s w>" is special and wants no letters beside it. */
static const char tokenizer_json[] =
    "{\"added_tokens\":["
    "{\"id\":10,\"content\":\"<e>\",\"special\":true},"
    "{\"id\":11,\"content\":\"<t>\",\"special\":false},"
    "{\"id\":12,\"content\":\"%\",\"special\":true},"
    "{\"id\":13,\"content\":\"<sw>\",\"special\":true,\"single_word\":true},"
    "{\"id\":14,\"content\":\"NE\",\"special\":true,\"normalized\":true}],"
    "\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\"e\":1,\">\":2,\"t\":3,\"%x\":4,\"a\":5,\"s\":6,\"w\":7,"
    "\"N\":8,"
    "\"E\":9,\"ae\":15,\"/\":16},\"merges\":[[\"a\",\"e\"]]}}";
enum {
    LESS,
    LETTER_E,
    GREATER,
    LETTER_T,
    UNUSED,
    A,
    S,
    W,
    N,
    BIG_E,
    END,
    TAG,
    PERCENT,
    WORD,
    NORMAL,
    AE,
    SLASH
};

static const sl_view mark = {"\xef\xb7\x90", 3};
static sl_tokenizer *tokenizer;

static int set_up(void **state) {
    (void)state;
    sl_error error;
    const sl_view json = {tokenizer_json, sizeof tokenizer_json - 1};
    if (sl_tokenizer_from_json_memory(json, (sl_view){NULL, 0}, "test", &tokenizer, &error)) {
        print_error("%s\n", error.message);
        return 1;
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sl_tokenizer_destroy(tokenizer);
    return 0;
}

static void expect(const char *text, const int32_t *expected, size_t count) {
    sl_tokens found = {0};
    sl_error error = {0};
    if (sl_tokenizer_encode_marked(tokenizer, sl_view_of(text), mark, SL_TOKENIZE_SPECIAL, &found, &error)) {
        fail_msg("%s", error.message);
    }
    check_ids(text, &found, expected, count);
    sl_tokens_free(&found);
}

#define EXPECT(text, ...)                                                                                    \
    expect(text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
#define M "\xef\xb7\x90"

static void marks_part_special_tokens_only(void **state) {
    (void)state;
    EXPECT("a<e>a", A, END, A);
    EXPECT("a<" M "e>a", A, LESS, LETTER_E, GREATER, A);
    EXPECT("<e" M ">", LESS, LETTER_E, GREATER);
    EXPECT("<" M "e" M M "><e>", LESS, LETTER_E, GREATER, END);
    EXPECT("<" M "t>", TAG);
    EXPECT("a" M "e", AE);
    EXPECT("a" M, A);
    EXPECT("<" M "<e>", LESS, END); /* the mark of what stands in front */
    EXPECT("<e>" M "a" M "<e>", LESS, LETTER_E, GREATER, A, END);
    EXPECT("%a", PERCENT, A);
    EXPECT("N" M "E"
           "NE",
           N, BIG_E, NORMAL);
}

static void single_words_are_found_as_before(void **state) {
    (void)state;
    EXPECT("<sw>", WORD);
    EXPECT("<sw>a", LESS, S, W, GREATER, A);
    EXPECT("<" M "sw>", LESS, S, W, GREATER);
}

static void marked_as(const char *text, const char *expected) {
    sl_buffer out = {0};
    sl_tokenizer_mark_special(tokenizer, sl_view_of(text), mark, &out);
    assert_string_equal(out.data, expected);
    sl_buffer_free(&out);
}

static void special_tokens_are_marked_whole_and_cut_off(void **state) {
    (void)state;
    marked_as("", "");
    marked_as("a<t>e>", "a<t>e>");
    marked_as("a<e>a", "a<" M "e>a");
    marked_as("<<e><e", "<<" M "e><" M "e");
    marked_as("a<", "a<" M);
    marked_as("a<x", "a<x");
    marked_as("%", "%" M);
    marked_as("xNE", "xN" M "E");
    marked_as("\xff<e>", "\xff<" M "e>");
}

/* Random strings of others between the text's own special tokens: the tokens are those of the pieces, each by
 * itself where none may be special. */
static void random_texts_of_others_stay_text(void **state) {
    (void)state;
    static const char *const pieces[] = {"<e>", "<", "e>", "%", "<t>", "a", "ae", "<s", "w>", "N", "E", "/"};
    uint64_t random = 1;
    for (int round = 0; round < 3000; round++) {
        sl_tokens expected = {0}, found = {0};
        sl_buffer text = {0};
        sl_error error;
        for (int part = 0; part < 3; part++) {
            char theirs[64] = "";
            for (int i = 0; i < 4; i++) {
                strcat(theirs, pieces[next_random(&random) % (sizeof pieces / sizeof *pieces)]);
            }
            assert_int_equal(sl_tokenizer_encode(tokenizer, theirs, strlen(theirs), 0, &expected, &error), 0);
            assert_int_equal(sl_tokens_append(&expected, END), 0);
            sl_tokenizer_mark_special(tokenizer, sl_view_of(theirs), mark, &text);
            sl_buffer_text(&text, "<e>");
        }
        assert_int_equal(sl_tokenizer_encode_marked(tokenizer, (sl_view){text.data, text.length}, mark,
                                                    SL_TOKENIZE_SPECIAL, &found, &error),
                         0);
        check_ids(text.data, &found, expected.data, expected.count);
        sl_tokens_free(&expected);
        sl_tokens_free(&found);
        sl_buffer_free(&text);
    }
}

static void a_lack_of_memory_changes_nothing(void **state) {
    (void)state;
    static const char text[] = "ae<" M "e>a<e>N" M "E";
    const uint64_t live = sl_alloc_live_bytes();
    sl_error error;
    for (uint64_t nth = 1;; nth++) {
        sl_tokens found = {0};
        sl_alloc_fail_at(nth);
        const int code = sl_tokenizer_encode_marked(tokenizer, sl_view_of(text), mark, SL_TOKENIZE_SPECIAL,
                                                    &found, &error);
        sl_alloc_fail_at(0);
        assert_int_equal(found.count > 0, code == 0);
        sl_tokens_free(&found);
        assert_int_equal(sl_alloc_live_bytes(), live);
        if (code == 0) {
            assert_true(nth > 3);
            break;
        }
        assert_int_equal(code, SL_ERR_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(marks_part_special_tokens_only),
                                       cmocka_unit_test(single_words_are_found_as_before),
                                       cmocka_unit_test(special_tokens_are_marked_whole_and_cut_off),
                                       cmocka_unit_test(random_texts_of_others_stay_text),
                                       cmocka_unit_test(a_lack_of_memory_changes_nothing)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
