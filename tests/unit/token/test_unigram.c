#define _GNU_SOURCE
/* Unigram tokenizers against unigram.json (make_unigram.mjs: what Hugging Face's library makes of the same
 * files), and what is wrong with a file. */
#include "support.h"

#include "format/gguf_writer.h"

#include <jansson.h>
#include <unistd.h>

static json_t *read_fixture(void) {
    json_t *root = json_load_file(SLUICE_SOURCE_DIR "/tests/unit/token/unigram.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static int load(const json_t *made, sl_tokenizer **tokenizer, sl_error *error) {
    char *text = json_dumps(made, JSON_COMPACT);
    const int code =
        sl_tokenizer_from_json_memory(sl_view_of(text), (sl_view){NULL, 0}, "test", tokenizer, error);
    free(text);
    return code;
}

static sl_tokenizer *load_row(const json_t *row) {
    sl_tokenizer *tokenizer;
    sl_error error;
    if (load(json_object_get(row, "tokenizer"), &tokenizer, &error)) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

static bool has_ids(const sl_tokens *got, const json_t *wanted) {
    bool same = got->count == json_array_size(wanted);
    for (size_t i = 0; same && i < got->count; i++) {
        same = got->data[i] == json_integer_value(json_array_get(wanted, i));
    }
    return same;
}

static int check_case(const sl_tokenizer *tokenizer, const char *name, const json_t *one) {
    const json_t *text = json_object_get(one, "text");
    sl_tokens got = {0};
    sl_error error;
    assert_int_equal(sl_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                                         SL_TOKENIZE_SPECIAL | SL_TOKENIZE_BOS | SL_TOKENIZE_END, &got,
                                         &error),
                     0);
    const bool same = has_ids(&got, json_object_get(one, "ids"));
    if (!same) {
        print_error("%s, '%s':", name, json_string_value(text));
        for (size_t i = 0; i < got.count; i++) {
            print_error(" %d", got.data[i]);
        }
        print_error("\n");
    }
    sl_tokens_free(&got);
    return !same;
}

static void texts_become_the_librarys_tokens(void **state) {
    (void)state;
    json_t *root = read_fixture();
    int wrong = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *row = json_array_get(root, i), *cases = json_object_get(row, "cases");
        sl_tokenizer *tokenizer = load_row(row);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            wrong += check_case(tokenizer, json_string_value(json_object_get(row, "name")),
                                json_array_get(cases, k));
        }
        assert_true(json_array_size(cases) > 30);
        assert_int_equal(sl_tokenizer_pair_gap(tokenizer), 2);
        sl_tokenizer_destroy(tokenizer);
    }
    json_decref(root);
    assert_int_equal(wrong, 0);
}

/* The bytes of a map, which the fixture has in base64. */
static size_t decode(const char *text, unsigned char *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = 0;
    uint32_t bits = 0;
    for (size_t i = 0; text[i] && text[i] != '='; i++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, text[i]) - digits);
        if (i % 4) {
            out[length++] = (unsigned char)(bits >> (6 - i % 4 * 2));
        }
    }
    return length;
}

/* The first tokenizer as llama.cpp's converter writes XLM-R's. */
static void write_gguf(const char *path, const json_t *made, sl_gguf_type map_type) {
    enum { MOST = 2000 };
    static sl_view texts[MOST];
    static float scores[MOST];
    static int32_t types[MOST];
    static unsigned char map[1 << 16];
    const json_t *vocabulary = json_object_get(json_object_get(made, "model"), "vocab");
    const uint64_t count = json_array_size(vocabulary);
    sl_gguf_writer *writer;
    assert_true(count < MOST);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(vocabulary, i);
        texts[i] = sl_view_of(json_string_value(json_array_get(entry, 0)));
        scores[i] = (float)json_number_value(json_array_get(entry, 1));
        types[i] = i == 3 ? SL_TOKEN_UNKNOWN : i < 3 || i + 1 == count ? SL_TOKEN_CONTROL : SL_TOKEN_NORMAL;
    }
    const json_t *blob = json_object_get(json_object_get(made, "normalizer"), "precompiled_charsmap");
    const size_t size = decode(json_string_value(blob), map);
    const struct {
        const char *key;
        sl_gguf_items items;
    } arrays[] = {{"tokenizer.ggml.tokens", {SL_GGUF_STRING, texts, count}},
                  {"tokenizer.ggml.scores", {SL_GGUF_F32, scores, count}},
                  {"tokenizer.ggml.token_type", {SL_GGUF_I32, types, count}},
                  {"tokenizer.ggml.precompiled_charsmap", {map_type, map, size}}};
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                                        "tokenizer.ggml.add_space_prefix",
                                        "tokenizer.ggml.remove_extra_whitespaces"};
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.padding_token_id",
                                      "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id"};
    assert_int_equal(sl_gguf_writer_create(path, &writer, NULL), 0);
    assert_int_equal(sl_gguf_writer_string(writer, "tokenizer.ggml.model", sl_view_of("t5"), NULL), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(sl_gguf_writer_array(writer, arrays[i].key, &arrays[i].items, NULL), 0);
        assert_int_equal(sl_gguf_writer_bool(writer, flags[i], true, NULL), 0);
        assert_int_equal(sl_gguf_writer_unsigned(writer, ids[i], SL_GGUF_U32, i, NULL), 0);
    }
    assert_int_equal(sl_gguf_writer_begin(writer, NULL, NULL), 0);
    assert_int_equal(sl_gguf_writer_finish(writer, NULL), 0);
    sl_gguf_writer_free(writer);
}

static void gguf_files_give_the_same(void **state) {
    (void)state;
    json_t *root = read_fixture();
    const json_t *row = json_array_get(root, 0), *cases = json_object_get(row, "cases");
    char path[256];
    int wrong = 0;
    snprintf(path, sizeof path, "%s/test_unigram_%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    for (int round = 0; round < 2; round++) {
        sl_tokenizer *tokenizer;
        sl_gguf *gguf;
        sl_error error;
        write_gguf(path, json_object_get(row, "tokenizer"), round ? SL_GGUF_I8 : SL_GGUF_U8);
        assert_int_equal(sl_gguf_open(path, &gguf, &error), 0);
        unlink(path);
        if (sl_tokenizer_from_gguf(gguf, &tokenizer, &error)) {
            fail_msg("%s", error.message);
        }
        for (size_t k = 0; k < json_array_size(cases); k++) {
            const char *text = json_string_value(json_object_get(json_array_get(cases, k), "text"));
            /* A token that strips what is before it is a fact that GGUF does not keep. */
            wrong += strstr(text, "<mask>") ? 0 : check_case(tokenizer, "GGUF", json_array_get(cases, k));
        }
        assert_int_equal(sl_tokenizer_pair_gap(tokenizer), 2);
        sl_tokenizer_destroy(tokenizer);
        sl_gguf_close(gguf);
    }
    json_decref(root);
    assert_int_equal(wrong, 0);
}

/* The same cut whatever a text is cut into by places that no token reaches across, and in linear time. */
static void long_words_are_quick(void **state) {
    (void)state;
    enum { SIZE = 2000000 };
    json_t *root = read_fixture();
    sl_tokenizer *tokenizer = load_row(json_array_get(root, 0));
    char *text = malloc(SIZE);
    sl_tokens got = {0};
    sl_error error;
    struct timespec from, to;
    assert_non_null(text);
    memset(text, 'a', SIZE);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from); /* not that of other programs */
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, SIZE, 0, &got, &error), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    assert_true(got.count > SIZE / 8 && got.count < SIZE);
    assert_true(to.tv_sec - from.tv_sec < 10);
    sl_tokens_free(&got);
    free(text);
    sl_tokenizer_destroy(tokenizer);
    json_decref(root);
}

static void refuse(json_t *made, const char *reason) {
    sl_tokenizer *tokenizer;
    sl_error error = {0};
    assert_int_not_equal(load(made, &tokenizer, &error), 0);
    assert_null(tokenizer);
    if (!strstr(error.message, reason)) {
        fail_msg("'%s' has no '%s'", error.message, reason);
    }
}

static void broken_files_are_refused(void **state) {
    (void)state;
    json_t *root = read_fixture();
    json_t *made = json_object_get(json_array_get(root, 0), "tokenizer");
    json_t *model = json_object_get(made, "model"), *normalizer = json_object_get(made, "normalizer");
    json_object_set_new(normalizer, "precompiled_charsmap", json_string("not base64!"));
    refuse(made, "is no base64");
    json_object_set_new(normalizer, "precompiled_charsmap", json_string("/////w=="));
    refuse(made, "does not fit");
    json_object_set_new(normalizer, "precompiled_charsmap", json_string(""));
    json_object_set_new(model, "unk_id", json_integer(100000));
    refuse(made, "model.unk_id");
    json_object_set_new(model, "unk_id", json_integer(3));
    json_array_append_new(json_object_get(model, "vocab"), json_string("no score"));
    refuse(made, "is not [\"text\", score]");
    json_decref(root);
}

/* Units that lead outside the array, and texts without an end. */
static void hostile_maps_are_read_within_bounds(void **state) {
    (void)state;
    json_t *root = read_fixture();
    json_t *made = json_object_get(json_array_get(root, 0), "tokenizer");
    uint64_t random = 7;
    for (int round = 0; round < 200; round++) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char map[400] = "QAAAAA"; /* a trie of 64 bytes */
        for (size_t i = 6; i + 1 < sizeof map; i++) {
            map[i] = digits[next_random(&random) % (round % 2 ? 64 : 4)];
        }
        json_object_set_new(json_object_get(made, "normalizer"), "precompiled_charsmap", json_string(map));
        sl_tokenizer *tokenizer = NULL;
        sl_error error;
        sl_tokens got = {0};
        if (load(made, &tokenizer, &error) == 0) {
            const char *text = "any text \xc3\xa9 \xe6\x97\xa5 e\xcc\x81 \x01\x02\x03\xff";
            sl_tokenizer_encode(tokenizer, text, strlen(text), 0, &got, &error);
        }
        sl_tokens_free(&got);
        sl_tokenizer_destroy(tokenizer);
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_the_librarys_tokens),
        cmocka_unit_test(gguf_files_give_the_same),
        cmocka_unit_test(long_words_are_quick),
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(hostile_maps_are_read_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
