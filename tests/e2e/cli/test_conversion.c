/* A Hugging Face folder written as GGUF in F32 is the same model: the same logits through the public
 * interface, for every family of the logits suite. What differs is the order of rows, norms' offsets and
 * RoPE's layout. */
#include "support/engine.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static const double relative_limit = 1e-5;

static const char *const cases[] = {
    "llama",    "llama-scaled",    "mistral", "qwen2",   "qwen3",           "qwen3-tied",       "qwen3-bf16",
    "qwen3moe", "qwen3moe-nonorm", "gemma3",  "qwen3_5", "llama-fp8-block", "qwen3-fp8-channel"};

enum { TOKENS = 160, VOCABULARY = 256 };

static void read_tokens(const char *folder, int32_t tokens[TOKENS]) {
    char path[1200];
    snprintf(path, sizeof path, "%s/case.json", folder);
    json_t *facts = json_load_file(path, 0, NULL);
    assert_non_null(facts);
    const json_t *ids = json_object_get(facts, "tokens");
    assert_int_equal(json_array_size(ids), TOKENS);
    for (size_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    json_decref(facts);
}

static float *logits_of(sluice_model *model, const int32_t tokens[TOKENS]) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .isa = "plain",
                                           .context = 256,
                                           .sequences = 1,
                                           .outputs = TOKENS,
                                           .kv_type = "f32"};
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequence = open_sequence(engine);
    float *logits = calloc((size_t)TOKENS * VOCABULARY, sizeof *logits);
    const sluice_request_options read = {
        .size = sizeof read, .tokens = tokens, .token_count = TOKENS, .logits = SLUICE_LOGITS_ALL};
    collected got = {.logits = logits, .vocabulary = VOCABULARY, .room = TOKENS};
    collect(submit(sequence, &read), &got);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return logits;
}

static double relative_difference(const float *a, const float *b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < (size_t)TOKENS * VOCABULARY; i++) {
        const double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

static void folder_and_file_agree(void **state) {
    char folder[1024], file[1200];
    sluice_error error;
    int32_t tokens[TOKENS];
    snprintf(folder, sizeof folder, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, (const char *)*state);
    snprintf(file, sizeof file, "%s/test_conversion-%s.gguf", SLUICE_BINARY_DIR, (const char *)*state);
    read_tokens(folder, tokens);
    unlink(file);
    must(sluice_quantize(folder, file, "f32", NULL, NULL, &error), &error, "quantize");
    sluice_model *from = open_model(folder), *to;
    must(sluice_model_open(file, &to, &error), &error, file);
    sluice_model_info a = {.size = sizeof a}, b = {.size = sizeof b};
    sluice_model_get_info(from, &a);
    sluice_model_get_info(to, &b);
    assert_string_equal(a.family, strcmp(*state, "mistral") == 0 ? "mistral" : b.family);
    assert_int_equal(a.layers, b.layers);
    float *want = logits_of(from, tokens), *got = logits_of(to, tokens);
    const double difference = relative_difference(got, want);
    print_message("%s: relative %.2e\n", (const char *)*state, difference);
    assert_true(difference <= relative_limit);
    free(want);
    free(got);
    sluice_model_release(from);
    sluice_model_release(to);
    unlink(file);
}

int main(void) {
    struct CMUnitTest tests[sizeof cases / sizeof *cases];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tests[i] = (struct CMUnitTest){cases[i], folder_and_file_agree, NULL, NULL, (void *)(size_t)cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
