/* The op list of each family, compared with the text under golden/. A difference is a change of what a model
 * computes or of how it is said: read it line by line before accepting it with --update. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/files.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct golden {
    const char *name; /* golden/NAME.txt */
    const char
        *model; /* below the repository; with a leading @ below SLUICE_SHARED_DIR; ~PRESET: synthetic */
} golden;

static const golden CASES[] = {
    {"llama", "tests/logits/fixtures/llama"},
    {"llama-scaled", "tests/logits/fixtures/llama-scaled"},
    {"llama-gguf", "@models/stories260K.gguf"},
    {"mistral", "tests/logits/fixtures/mistral"},
    {"qwen2", "tests/logits/fixtures/qwen2"},
    {"qwen3", "tests/logits/fixtures/qwen3"},
    {"qwen3-tied", "tests/logits/fixtures/qwen3-tied"},
    {"qwen3moe", "tests/logits/fixtures/qwen3moe"},
    {"gemma3", "tests/logits/fixtures/gemma3"},
    {"qwen3_5", "tests/logits/fixtures/qwen3_5"},
    {"ministral3", "~ministral3"},
    {"smollm3", "~smollm3"},
    {"granite", "~granite"},
    {"olmo2", "~olmo2"},
    {"exaone4", "~exaone4"},
    {"hunyuan", "~hunyuan"},
    {"glm4", "~glm4"},
    {"phi3", "~phi3"},
    {"qwen3_5_moe", "tests/logits/fixtures/qwen3_5_moe"},
    {"qwen3_next", "tests/logits/fixtures/qwen3_next"},
    {"gpt_oss", "tests/logits/fixtures/gpt_oss"},
    {"glm4_moe", "tests/logits/fixtures/glm4_moe"},
    {"minimax_m2", "tests/logits/fixtures/minimax_m2"},
    {"ernie4_5_moe", "tests/logits/fixtures/ernie4_5_moe"},
    {"lfm2", "tests/logits/fixtures/lfm2"},
    {"lfm2_moe", "tests/logits/fixtures/lfm2_moe"},
    {"hunyuan_moe", "~hunyuan_moe"},
    {"deepseek_v2", "tests/logits/fixtures/deepseek_v2"},
    {"deepseek_v3", "tests/logits/fixtures/deepseek_v3"},
    {"deepseek_v3-gguf", "~deepseek_v3"},
    {"mistral4", "tests/logits/fixtures/mistral4"},
    {"apertus", "tests/logits/fixtures/apertus"},
    {"falcon_h1", "tests/logits/fixtures/falcon_h1"},
    {"falcon_h1-gguf", "~falcon_h1"},
    {"llama4", "tests/logits/fixtures/llama4"},
    {"granite-h", "tests/logits/fixtures/granite-h"},
    {"granite-h-moe", "tests/logits/fixtures/granite-h-moe"},
    {"nemotron_h", "tests/logits/fixtures/nemotron_h"},
    {"nemotron_h-latent", "tests/logits/fixtures/nemotron_h-latent"},
    {"cohere2", "tests/logits/fixtures/cohere2"},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

static bool update;

static bool path_of(const golden *c, char path[512]) {
    if (c->model[0] == '~') {
        const sl_synth_options options = {.preset = c->model + 1, .type = SL_QTYPE_Q8_0};
        sl_error error;
        snprintf(path, 512, "test_golden-%s.gguf", c->name);
        remove(path);
        if (sl_synth_file(path, &options, NULL, &error)) {
            fail_msg("%s", error.message);
        }
        return true;
    }
    if (c->model[0] != '@') {
        snprintf(path, 512, "%s/%s", SLUICE_SOURCE_DIR, c->model);
        return true;
    }
    snprintf(path, 512, "%s/%s", SLUICE_SHARED_DIR, c->model + 1);
    FILE *file = SLUICE_SHARED_DIR[0] ? fopen(path, "rb") : NULL;
    if (file) {
        fclose(file);
    }
    return file != NULL;
}

static void read_file(const char *path, sl_buffer *text) {
    FILE *file = fopen(path, "rb");
    char chunk[4096];
    for (size_t size; file && (size = fread(chunk, 1, sizeof chunk, file)) > 0;) {
        sl_buffer_append(text, chunk, size);
    }
    if (file) {
        fclose(file);
    }
}

/* Says where two texts part. */
static bool same(const char *path, const sl_buffer *wanted, const sl_buffer *found) {
    const char *w = wanted->data ? wanted->data : "", *f = found->data ? found->data : "";
    if (strcmp(w, f) == 0) {
        return true;
    }
    int line = 1;
    while (true) {
        const size_t wl = strcspn(w, "\n"), fl = strcspn(f, "\n");
        if (wl != fl || memcmp(w, f, wl) != 0 || w[wl] != f[fl]) {
            print_error("%s:%d\n  golden: %.*s\n  now:    %.*s\naccept with: test_golden --update\n", path,
                        line, (int)wl, w, (int)fl, f);
            return false;
        }
        w += wl + 1;
        f += fl + 1;
        line++;
    }
}

static void op_list_is_golden(void **state) {
    const golden *c = *state;
    char path[512], text_path[512];
    sl_error error;
    sl_model *model;
    if (!path_of(c, path)) {
        print_message("%s: no %s here\n", c->name, c->model);
        skip();
    }
    if (sl_model_load(path, &model, &error)) {
        fail_msg("%s", error.message);
    }
    sl_buffer found = {0}, wanted = {0};
    sl_program_print(&model->program, &found);
    if (c->model[0] == '~') {
        remove(path);
    }
    assert_false(found.failed);
    assert_true(found.length > 0);
    sl_model_free(model);
    snprintf(text_path, sizeof text_path, "%s/tests/plan/golden/%s.txt", SLUICE_SOURCE_DIR, c->name);
    if (update) {
        FILE *file = fopen(text_path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(found.data, 1, found.length, file), found.length);
        assert_int_equal(fclose(file), 0);
    }
    read_file(text_path, &wanted);
    const bool equal = same(text_path, &wanted, &found);
    sl_buffer_free(&found);
    sl_buffer_free(&wanted);
    assert_true(equal);
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[CASE_COUNT];
    update = argc > 1 && strcmp(argv[1], "--update") == 0;
    memset(tests, 0, sizeof tests);
    for (int i = 0; i < CASE_COUNT; i++) {
        tests[i].name = CASES[i].name;
        tests[i].test_func = op_list_is_golden;
        tests[i].initial_state = (void *)(uintptr_t)&CASES[i];
    }
    return cmocka_run_group_tests_name("golden op lists", tests, NULL, NULL);
}
