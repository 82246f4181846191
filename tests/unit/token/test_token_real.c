/* Real vocabularies: llama.cpp's cases (GGUF) and Hugging Face's ids (tokenizer.json), round trips, streams
 * of random ids, time to load, time as the text grows. Needs ../shared. */
#define _GNU_SOURCE
#include "support.h"

static const char *const vocabularies[] = {"ggml-vocab-gpt-2.gguf", "ggml-vocab-falcon.gguf",
                                           "ggml-vocab-phi-3.gguf", "qwen3", "llama3_2"};
enum { VOCABULARIES = 5, PHI = 2 };
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

int main(void) {
    if (SLUICE_SHARED_DIR[0] == 0) {
        printf("skipped: no ../shared\n");
        return 77;
    }
    for (int i = 0; i < VOCABULARIES; i++) {
        double start = now();
        loaded[i] = load_shared(vocabularies[i]);
        printf("%s: %.0f ms\n", vocabularies[i], (now() - start) * 1e3);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_published_case_passes),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < VOCABULARIES; i++) {
        sl_tokenizer_destroy(loaded[i]);
    }
    return failed;
}
