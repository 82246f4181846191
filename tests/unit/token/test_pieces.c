#define _GNU_SOURCE
/* What pre-tokenizers split texts into, against pieces.json (make_pieces.py: another engine's work), and how
 * long that may take: patterns come with models, texts from users. */
#include "support.h"

#include "token/internal.h"

#include <jansson.h>

typedef struct collected {
    sl_buffer lengths;
    const char *at;
} collected;

static int collect(void *context, sl_view piece) {
    collected *c = context;
    if (piece.length > 0) {
        assert_ptr_equal(piece.data, c->at);
        sl_buffer_printf(&c->lengths, "%s%zu", c->lengths.length ? " " : "", piece.length);
        c->at += piece.length;
    }
    return 0;
}

/* The lengths of the pieces, in bytes; the caller frees them. */
static char *split(const sl_tokenizer *tokenizer, sl_view text) {
    sl_splitter splitter = {.tokenizer = tokenizer};
    collected c = {.at = text.data};
    sl_error error;
    sl_buffer_text(&c.lengths, "");
    if (sl_split_run(&splitter, text, collect, &c, &error)) {
        fail_msg("%s", error.message);
    }
    sl_splitter_free(&splitter);
    return c.lengths.data;
}

static void every_name_splits_as_its_pattern(void **state) {
    (void)state;
    json_t *root = json_load_file(SLUICE_SOURCE_DIR "/tests/unit/token/pieces.json", 0, NULL);
    const json_t *texts = json_object_get(root, "texts");
    json_t *rows;
    const char *name;
    int wrong = 0, names = 0;
    assert_non_null(root);
    json_object_foreach(json_object_get(root, "pieces"), name, rows) {
        sl_tokenizer *tokenizer = sl_tokenizer_new();
        unsigned flags;
        sl_error error;
        const json_t *expected =
            json_is_string(rows) ? json_object_get(json_object_get(root, "pieces"), json_string_value(rows))
                                 : rows;
        names++;
        if (sl_pre_tokenizer_set(tokenizer, sl_view_of(name), &flags, &error)) {
            fail_msg("%s", error.message);
        }
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i);
            char *found = split(tokenizer, (sl_view){json_string_value(text), json_string_length(text)});
            const char *wanted = json_string_value(json_array_get(expected, i));
            if (strcmp(found, wanted) != 0) {
                printf("%s, text %zu:\n found    %s\n expected %s\n", name, i, found, wanted);
                wrong++;
            }
            sl_free(found);
        }
        sl_tokenizer_destroy(tokenizer);
    }
    json_decref(root);
    assert_int_equal(wrong, 0);
    assert_true(names > 80);
}

/* The processor's time, so that other programs on the machine do not count. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

enum { LONG = 400000 };

static char *long_text(const char *unit) {
    const size_t step = strlen(unit);
    char *text = malloc(LONG);
    assert_non_null(text);
    for (size_t i = 0; i < LONG; i++) {
        text[i] = unit[i % step];
    }
    return text;
}

/* 0 or the error's code, within seconds whatever it is. */
static int split_long(const char *pattern, const char *unit, size_t *pieces) {
    sl_tokenizer *tokenizer = sl_tokenizer_new();
    sl_splitter splitter = {.tokenizer = tokenizer};
    sl_error error = {0};
    char *text = long_text(unit);
    collected c = {.at = text};
    assert_int_equal(sl_split_add(tokenizer, sl_view_of(pattern), SL_SPLIT_ISOLATED, &error), 0);
    const double begin = seconds();
    const int code = sl_split_run(&splitter, (sl_view){text, LONG}, collect, &c, &error);
    const double taken = seconds() - begin;
    printf("%.40s on %.10s...: %.2f s %s\n", pattern, unit, taken, error.message);
    assert_true(taken < 8); /* a tenth of that on an idle machine */
    *pieces = 0;
    for (size_t i = 0; code == 0 && i < c.lengths.length; i++) {
        *pieces += c.lengths.data[i] == ' ';
    }
    sl_buffer_free(&c.lengths);
    sl_splitter_free(&splitter);
    sl_tokenizer_destroy(tokenizer);
    free(text);
    return code;
}

static void groups_of_digits_take_one_pass(void **state) {
    (void)state;
    static const char *const patterns[] = {SL_PATTERN_TRIPLES, SL_PATTERN_TRIPLES_OF_NUMBERS,
                                           SL_PATTERN_TRIPLES_OF_DIGITS};
    for (size_t i = 0; i < 3; i++) {
        size_t pieces;
        assert_int_equal(split_long(patterns[i], "1", &pieces), 0);
        assert_int_equal(pieces + 1, (LONG + 2) / 3);
        assert_int_equal(split_long(patterns[i], "12 ", &pieces), 0);
    }
}

/* What looks ahead from everywhere is refused before long; what models have goes through. */
static void matching_has_a_budget(void **state) {
    (void)state;
    static const char *const refused[] = {"\\d+(?=x)", "(?:\\d\\d)+(?=x)|\\d", "\\d(?=\\d*x)|\\d(?=.*y)",
                                          "\\d(?!\\d*x)"};
    static const char *const units[] = {"1", " ", "\n", " \n", "a", "A", "aA", "'s", "...", "\xe4\xb8\xad"};
    size_t pieces;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(split_long(refused[i], "1", &pieces), SL_ERR_LIMIT);
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        static const char *const names[] = {"llama-bpe",  "gpt-4o",     "deepseek-v3",  "kimi-k2",
                                            "exaone-moe", "bailingmoe", "deepseek-llm", "default"};
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            sl_tokenizer *tokenizer = sl_tokenizer_new();
            unsigned flags;
            assert_int_equal(sl_pre_tokenizer_set(tokenizer, sl_view_of(names[n]), &flags, NULL), 0);
            char *text = long_text(units[i]);
            const double begin = seconds();
            sl_free(split(tokenizer, (sl_view){text, LONG - LONG % strlen(units[i])}));
            assert_true(seconds() - begin < 8);
            free(text);
            sl_tokenizer_destroy(tokenizer);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_splits_as_its_pattern),
        cmocka_unit_test(groups_of_digits_take_one_pass),
        cmocka_unit_test(matching_has_a_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
