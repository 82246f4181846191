/* Real vocabularies: llama.cpp's cases (GGUF) and Hugging Face's ids (tokenizer.json), round trips, streams
 * of random ids, time to load, time as the text grows. Needs ../shared. */
#define _GNU_SOURCE
#include "support.h"
#include "support/sanitized.h"

#include <utf8proc.h>

static const char *const vocabularies[] = {"ggml-vocab-gpt-2.gguf", "ggml-vocab-falcon.gguf",
                                           "ggml-vocab-phi-3.gguf", "qwen3", "llama3_2"};
enum { VOCABULARIES = 5, FALCON = 1, PHI = 2 };
static sl_tokenizer *loaded[VOCABULARIES];

static void open_text(sl_map *map, const char *name, const char *kind) {
    char path[512];
    sl_error error = {0};
    bool gguf = strstr(name, ".gguf") != NULL;
    snprintf(path, sizeof path, "%s/tokenizers/%s%s.%s", SLUICE_SHARED_DIR, name, gguf ? "" : "/cases", kind);
    if (sl_map_open(map, path, &error)) {
        fail_msg("%s", error.message);
    }
}

static void every_published_case_passes(void **state) {
    (void)state;
    static const char separator[] = "\n__ggml_vocab_test__\n";
    for (int v = 0; v < VOCABULARIES; v++) {
        sl_map input = {0}, output = {0};
        open_text(&input, vocabularies[v], "inp");
        open_text(&output, vocabularies[v], "out");
        const char *text = (const char *)input.data, *end = text + input.size;
        const char *line = (const char *)output.data, *lines_end = line + output.size;
        int cases = 0;
        while (text < end) {
            const char *stop = text;
            while (stop < end && ((size_t)(end - stop) < sizeof separator - 1 ||
                                  memcmp(stop, separator, sizeof separator - 1) != 0)) {
                stop++;
            }
            sl_tokens expected = {0};
            const char *line_end = line < lines_end ? memchr(line, '\n', (size_t)(lines_end - line)) : NULL;
            line_end = line_end ? line_end : lines_end;
            while (line < line_end) {
                char *after;
                long id = strtol(line, &after, 10);
                if (after == line || after > line_end) {
                    break;
                }
                sl_tokens_append(&expected, (int32_t)id);
                line = after;
            }
            line = line_end + 1;
            for (unsigned flags = 0; flags <= SL_TOKENIZE_SPECIAL; flags++) {
                check_encode(loaded[v], (sl_view){text, (size_t)(stop - text)}, flags, expected.data,
                             expected.count);
            }
            sl_tokens_free(&expected);
            cases++;
            text = stop + (sizeof separator - 1);
        }
        assert_true(cases > 40);
        print_message("%s: %d cases\n", vocabularies[v], cases);
        sl_map_close(&input);
        sl_map_close(&output);
    }
}

/* Random text: mostly ASCII words, with characters of every plane, marks in any order, and runs of white
 * space. */
static void random_text(sl_buffer *out, uint64_t *seed, int characters) {
    sl_buffer_clear(out);
    while (characters > 0) {
        uint64_t random = next_random(seed);
        int run = 1 + (int)(random >> 60);
        uint32_t base = 0;
        switch ((random >> 32) % 8) {
        case 0:
            base = 0x300; /* marks */
            break;
        case 1:
            base = (uint32_t)((random >> 8) % 0x110000);
            if (base >= 0x7ffc0 && base < 0xc0000) {
                base = 0x4e00; /* their first byte is 0xf2, for which falcon has no token */
            }
            break;
        case 2:
            base = 0xac00;
            break;
        case 3:
            base = 0xc0;
            break;
        default:
            break;
        }
        for (; run > 0 && characters > 0; run--, characters--) {
            char bytes[4];
            random = next_random(seed);
            uint32_t c =
                base ? base + (random >> 40) % 64 : (uint32_t) " aeb\n\t1.TsE'\r-(x"[(random >> 40) % 16];
            sl_buffer_append(out, bytes, sl_utf8_encode(c, bytes));
        }
    }
}

static void byte_level_round_trips(void **state) {
    (void)state;
    sl_buffer text = {0}, back = {0};
    uint64_t seed = 20;
    for (int v = 0; v < VOCABULARIES; v++) {
        for (int i = 0; i < 400 && v != PHI; i++) {
            random_text(&text, &seed, 1 + i);
            sl_tokens ids = {0};
            assert_int_equal(sl_tokenizer_encode(loaded[v], text.data, text.length, 0, &ids, NULL), 0);
            sl_buffer_clear(&back);
            assert_int_equal(sl_tokenizer_decode(loaded[v], ids.data, ids.count, 0, &back, NULL), 0);
            char *expected = NULL; /* Qwen's normaliser is NFC, the others have none */
            if (strcmp(vocabularies[v], "qwen3") == 0) {
                expected = (char *)utf8proc_NFC((const utf8proc_uint8_t *)text.data);
                assert_non_null(expected);
            }
            assert_string_equal(back.data, expected ? expected : text.data);
            free(expected);
            sl_tokens_free(&ids);
        }
    }
    /* Bytes that are no UTF-8 come back, too, token by token. */
    for (int v = 0; v < VOCABULARIES; v++) {
        /* Falcon's vocabulary file has no tokens for these bytes; they are left out of the ids. */
        static const char missing[] =
            "\x03\x04\x05\x0b\x11\x13\x14\x15\x16\x17\x19\x1c\x1d\x1e\xc0\xc1\xf2\xf5\xf6"
            "\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff";
        char bytes[256], kept[256];
        size_t keep = 0;
        for (int i = 0; i < 256; i++) {
            bytes[i] = (char)(255 - i);
            if (v != FALCON || !memchr(missing, bytes[i], sizeof missing - 1)) {
                kept[keep++] = bytes[i];
            }
        }
        sl_tokens ids = {0};
        sl_buffer_clear(&back);
        assert_int_equal(sl_tokenizer_encode(loaded[v], bytes, sizeof bytes, 0, &ids, NULL), 0);
        for (size_t i = 0; i < ids.count; i++) {
            sl_view piece = sl_tokenizer_decode_piece(loaded[v], ids.data[i]);
            sl_buffer_append(&back, piece.data, piece.length);
        }
        size_t prefix = v == PHI; /* the space that SentencePiece puts in front */
        assert_int_equal(back.length, keep + prefix);
        assert_memory_equal(back.data + prefix, kept, keep);
        sl_tokens_free(&ids);
    }
    sl_buffer_free(&text);
    sl_buffer_free(&back);
}

static void streams_are_whole_characters(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int v = 0; v < VOCABULARIES; v++) {
        for (unsigned flags = 0; flags < 4; flags++) {
            enum { COUNT = 20000 };
            static int32_t ids[COUNT];
            sl_buffer streamed = {0}, whole = {0};
            sl_detokenizer detokenizer;
            sl_detokenizer_begin(&detokenizer, loaded[v], flags);
            for (int i = 0; i < COUNT; i++) {
                /* Half of them from the first ids: there are the single bytes. */
                uint64_t random = next_random(&seed);
                ids[i] =
                    (int32_t)((random >> 8) % (random & 1 ? 259u : (uint64_t)sl_tokenizer_size(loaded[v])));
                size_t before = streamed.length;
                assert_int_equal(sl_detokenizer_feed(&detokenizer, ids[i], &streamed, NULL), 0);
                assert_true(detokenizer.pending_length <= 3);
                for (size_t at = before; at < streamed.length;) {
                    uint32_t c;
                    size_t size = sl_utf8_decode(streamed.data + at, streamed.length - at, &c);
                    assert_true(size > 0);
                    at += size;
                }
            }
            assert_int_equal(sl_detokenizer_flush(&detokenizer, &streamed, NULL), 0);
            assert_int_equal(sl_tokenizer_decode(loaded[v], ids, COUNT, flags, &whole, NULL), 0);
            assert_int_equal(streamed.length, whole.length);
            assert_memory_equal(streamed.data, whole.data, whole.length);
            sl_buffer_free(&streamed);
            sl_buffer_free(&whole);
        }
    }
}

static void special_tokens_need_the_flag(void **state) {
    (void)state;
    CHECK_ENCODE(loaded[3], "<|im_start|>", SL_TOKENIZE_SPECIAL, 151644);
    CHECK_ENCODE(loaded[3], "<tool_call>", 0, 151657); /* added, not special */
    CHECK_ENCODE(loaded[4], "<|eot_id|>", SL_TOKENIZE_SPECIAL | SL_TOKENIZE_BOS, 128000, 128009);
    CHECK_ENCODE(loaded[0], "<|endoftext|>", SL_TOKENIZE_SPECIAL, 50256);
    for (int v = 0; v < VOCABULARIES; v++) {
        sl_tokens ids = {0};
        static const char text[] = "<|im_start|><|eot_id|><|endoftext|><s></s><unk><|end|>";
        assert_int_equal(sl_tokenizer_encode(loaded[v], text, strlen(text), 0, &ids, NULL), 0);
        for (size_t i = 0; i < ids.count; i++) {
            assert_int_not_equal(sl_tokenizer_token_type(loaded[v], ids.data[i]), SL_TOKEN_CONTROL);
        }
        sl_tokens_free(&ids);
    }
    assert_true(sl_tokenizer_is_eog(loaded[3], 151645) && sl_tokenizer_is_eog(loaded[4], 128009));
    assert_true(sl_tokenizer_chat_template(loaded[3], NULL).length > 1000);
    assert_int_equal(sl_tokenizer_chat_template(loaded[PHI], NULL).length, 269);
    assert_false(sl_tokenizer_adds_bos(loaded[3]));
    assert_true(sl_tokenizer_adds_bos(loaded[PHI]));
}

static double load_seconds[VOCABULARIES];

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void loading_is_quick(void **state) {
    (void)state;
    for (int v = 0; v < VOCABULARIES && !SANITIZED; v++) {
        assert_true(load_seconds[v] < (strstr(vocabularies[v], ".gguf") ? 2 : 6));
    }
}

/* The processor's time, so that other programs on the machine do not count. */
static double encode_seconds(const sl_tokenizer *tokenizer, const char *text, size_t length) {
    sl_tokens ids = {0};
    double start = processor_seconds();
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, length, 0, &ids, NULL), 0);
    double seconds = processor_seconds() - start;
    assert_true(ids.count > 0);
    sl_tokens_free(&ids);
    return seconds;
}

static void time_is_nearly_linear(void **state) {
    (void)state;
    /* Ten times the text: quadratic would be 100 times. Linear is up to 20, as the longer one leaves the caches. */
    enum { LONG = SANITIZED ? 400000 : 4000000, SHORT = LONG / 10, MOST = 40 };
    static const char kinds[] = "a \nW"; /* W: one word of mixed letters */
    char *text = malloc(LONG);
    assert_non_null(text);
    for (int v = 0; v < VOCABULARIES; v++) {
        for (int k = 0; k < 4; k++) {
            uint64_t seed = 3;
            for (size_t i = 0; i < LONG; i++) {
                text[i] = kinds[k] == 'W' ? (char)('a' + next_random(&seed) % 26) : kinds[k];
            }
            double ratio = 1e9;
            /* Again if need be: a ratio of two times is only as quiet as the machine. */
            for (int attempt = 0; attempt < 3 && ratio >= MOST; attempt++) {
                double short_time = encode_seconds(loaded[v], text, SHORT);
                double long_time = encode_seconds(loaded[v], text, LONG);
                double found = long_time / short_time;
                ratio = found < ratio ? found : ratio;
                print_message("%s '%c': %.3f s for %d bytes, %.3f s for %d: %.1f times\n", vocabularies[v],
                              kinds[k] == '\n' ? 'n' : kinds[k], short_time, SHORT, long_time, LONG, found);
            }
            assert_true(ratio < MOST || SANITIZED);
        }
    }
    free(text);
}

int main(void) {
    if (SLUICE_SHARED_DIR[0] == 0) {
        printf("skipped: no ../shared\n");
        return 77;
    }
    for (int i = 0; i < VOCABULARIES; i++) {
        double start = processor_seconds();
        loaded[i] = load_shared(vocabularies[i]);
        load_seconds[i] = processor_seconds() - start;
        printf("%s: %.0f ms\n", vocabularies[i], load_seconds[i] * 1e3);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_published_case_passes),
        cmocka_unit_test(byte_level_round_trips),
        cmocka_unit_test(streams_are_whole_characters),
        cmocka_unit_test(special_tokens_need_the_flag),
        cmocka_unit_test(loading_is_quick),
        cmocka_unit_test(time_is_nearly_linear),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < VOCABULARIES; i++) {
        sl_tokenizer_destroy(loaded[i]);
    }
    return failed;
}
