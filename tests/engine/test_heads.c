/* Norms, rotation and cache write of the heads in attention's launch (src/backend/cuda/flash_decode.cuh): for
 * heads of every size, ratio and cache type, single rows at the borders of pages and parts leave the bits
 * that the ops' own kernels leave. Needs a GPU with compute capability 9.0.
 *
 *     test_heads [--device cuda:N] [--only CASE] */
#include "support/engine.h"

#include <stdio.h>
#include <unistd.h>

enum { GENERATED = 6, VOCABULARY = 320, CONTEXT = 384, LAYERS = 2 };

static const char *device = "cuda";

typedef struct shape {
    const char *name, *family, *cache_type;
    int32_t heads, kv_heads, head_size;
    int32_t prompt; /* tokens in front of the single rows */
    bool norms;
} shape;

static const shape shapes[] = {
    {"four heads a key, a page's end", "qwen3", "f16", 8, 2, 128, 61, true},
    {"eight heads a key", "qwen3", "f16", 8, 1, 64, 126, true},
    {"five heads a key", "llama", "bf16", 10, 2, 64, 30, false},
    {"one head a key", "qwen2", "f16", 4, 4, 64, 62, false},
    {"sixteen heads a key", "llama", "f16", 16, 1, 128, 61, false},
    {"large heads, a window", "gemma3", "f16", 4, 1, 256, 253, true},
    {"the second part", "qwen3", "f16", 8, 2, 128, 253, true},
    {"the first token", "qwen3", "q8_0", 4, 2, 128, 1, true},
    {"blocks of 32", "qwen3", "q8_0", 8, 2, 64, 60, true},
    {"one byte", "qwen3", "fp8", 8, 2, 128, 61, true},
    {"one byte, small heads", "mistral", "fp8", 4, 2, 64, 126, false},
};

static sluice_model *make_model(const shape *s) {
    char path[512];
    snprintf(path, sizeof path, "%s/heads-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = s->family,
                                          .type = "q8_0",
                                          .seed = 3,
                                          .layers = LAYERS,
                                          .width = 256,
                                          .heads = s->heads,
                                          .kv_heads = s->kv_heads,
                                          .head_size = s->head_size,
                                          .feed_forward = 256,
                                          .vocabulary = VOCABULARY};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static sluice_engine_options engine_options(const shape *s, bool no_fusion) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = device,
                                   .chunk = 64,
                                   .sequences = 1,
                                   .context = CONTEXT,
                                   .outputs = 1,
                                   .kv_type = s->cache_type,
                                   .no_fusion = no_fusion};
}

/* Times that the list of single rows names the run. */
static int32_t runs(sluice_model *model, sluice_engine_options options, const shape *s) {
    sluice_error error;
    char *text;
    options.chunk = 1;
    must(sluice_plan_describe(model, &options, SLUICE_PLAN_OPS, SLUICE_TEXT, &text, &error), &error, "plan");
    const char *name =
        s->norms ? "| norms+rope+cache_write+attention/cuda" : "| rope+cache_write+attention/cuda";
    int32_t count = 0;
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        count++;
    }
    sluice_free(text);
    return count;
}

typedef struct result {
    float logits[VOCABULARY];
    int32_t tokens[GENERATED];
} result;

static void run(sluice_model *model, const sluice_engine_options *options, const shape *s, result *result) {
    sluice_engine *engine = open_engine(model, options);
    sluice_sequence *sequence = open_sequence(engine);
    int32_t prompt[CONTEXT];
    for (int32_t i = 0; i < s->prompt; i++) {
        prompt[i] = (i * 71 + 5) % VOCABULARY;
    }
    sluice_request_options request = {.size = sizeof request,
                                      .tokens = prompt,
                                      .token_count = (size_t)s->prompt,
                                      .generate = GENERATED,
                                      .ignore_eos = true,
                                      .no_text = true};
    collected got = {.tokens = result->tokens};
    assert_int_equal(collect(submit(sequence, &request), &got), GENERATED);
    request = (sluice_request_options){
        .size = sizeof request, .tokens = prompt, .token_count = 1, .logits = SLUICE_LOGITS_ALL};
    got = (collected){.logits = result->logits,
                      .vocabulary = VOCABULARY,
                      .first = (size_t)s->prompt + GENERATED,
                      .room = 1};
    collect(submit(sequence, &request), &got);
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.failed_captures, 0);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

static void one_launch_gives_the_ops_bits(void **state) {
    const shape *s = *state;
    sluice_model *model = make_model(s);
    const sluice_engine_options alone = engine_options(s, true), fused = engine_options(s, false);
    assert_int_equal(runs(model, alone, s), 0);
    assert_true(runs(model, fused, s) >= LAYERS);
    static result expected, actual;
    run(model, &alone, s, &expected);
    memset(&actual, 0, sizeof actual);
    run(model, &fused, s, &actual);
    assert_memory_equal(actual.tokens, expected.tokens, sizeof expected.tokens);
    assert_memory_equal(actual.logits, expected.logits, sizeof expected.logits);
    assert_true(expected.logits[0] != expected.logits[1]);
    sluice_model_release(model);
}

/* 0: it can be used. */
static int skip_reason(char *reason, size_t size) {
    sluice_model *model = make_model(&shapes[0]);
    const sluice_engine_options options = engine_options(&shapes[0], false);
    sluice_error error;
    char *text = NULL;
    int code = sluice_plan_describe(model, &options, SLUICE_PLAN_EXPLAIN, SLUICE_TEXT, &text, &error);
    snprintf(reason, size, "%s", code ? error.message : "");
    if (code == 0 && strstr(text, "takes devices of capability 9.0")) {
        snprintf(reason, size, "the GPU is not of capability 9.0");
        code = 1;
    }
    sluice_free(text);
    sluice_model_release(model);
    return code;
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        }
    }
    char reason[512];
    if (skip_reason(reason, sizeof reason)) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    enum { COUNT = sizeof shapes / sizeof *shapes };
    struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        tests[i] = (struct CMUnitTest){shapes[i].name, one_launch_gives_the_ops_bits, NULL, NULL,
                                       (void *)(size_t)&shapes[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
