/* Endurance: every allocation of the library in loading a model, generating and shutting down fails once
 * (those of jansson's values: tests/unit/format/test_json.c); nothing crashes, nothing leaks, and every
 * failure comes back as an error that says memory ran out. Then misuse and cancellation from other threads.
 */
#include "support/engine.h"

#include "base/alloc.h"

#include <pthread.h>
#include <stdio.h>

typedef struct life {
    const char *model;
    const char *isa;
    bool text;
    const char *device; /* NULL: cpu */
} life;

static int make_grammar(sluice_model *model, sluice_grammar **grammar, sluice_error *error) {
    static const char pattern[] = "[a-z ]{40,60}";
    const sluice_grammar_options options = {
        .size = sizeof options, .kind = SLUICE_GRAMMAR_REGEX, .text = pattern, .length = sizeof pattern - 1};
    return sluice_grammar_create(model, &options, grammar, error);
}

/* Opens, generates a few tokens, closes. 0, or the first error. */
static int live(const life *l, sluice_error *error) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_sequence *sequence = NULL, *fork = NULL;
    sluice_request *request = NULL;
    sluice_grammar *grammar = NULL;
    int32_t tokens[70];
    for (int32_t i = 0; i < 70; i++) {
        tokens[i] = 5 + i;
    }
    const char *stops[] = {"never said"};
    sluice_engine_options engine_options = {.size = sizeof engine_options,
                                            .device = l->device ? l->device : "cpu",
                                            .isa = l->isa,
                                            .threads = 2,
                                            .chunk = 40,
                                            .context = 128,
                                            .sequences = 2};
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = tokens,
                                      .token_count = 70,
                                      .generate = 4,
                                      .temperature = 0.7f,
                                      .ignore_eos = true,
                                      .no_text = !l->text,
                                      .stops = stops,
                                      .stop_count = l->text ? 1 : 0,
                                      .stop_tokens = &tokens[69],
                                      .stop_token_count = 1,
                                      .logprobs = true,
                                      .top_logprobs = 2,
                                      .prompt_logprobs = true};
    int result = sluice_model_open(l->model, &model, error);
    result = result ? result : sluice_engine_create(model, &engine_options, &engine, error);
    result = result ? result : sluice_sequence_create(engine, &sequence, error);
    result = result || !l->text ? result : make_grammar(model, &grammar, error);
    options.grammar = grammar;
    result = result ? result : sluice_submit(sequence, &options, &request, error);
    sluice_event event = {.size = sizeof event};
    while (result == 0 && event.kind != SLUICE_EVENT_DONE) {
        result = sluice_poll(request, -1, &event, error);
    }
    if (result == 0 && event.finish == SLUICE_FINISH_ERROR) {
        *error = event.error;
        result = event.error.code;
    }
    sluice_request_release(request);
    sluice_grammar_release(grammar);
    result = result ? result : sluice_sequence_fork(sequence, &fork, error);
    sluice_sequence_release(fork);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    return result;
}

static void every_allocation_may_fail(void **state) {
    const life *l = *state;
    if (strstr(l->model, "stories") && SLUICE_SHARED_DIR[0] == 0) {
        printf("skipped: ../shared/models is not there\n");
        skip();
    }
    sluice_error error = {0};
    must(live(l, &error), &error, l->model); /* libraries keep what they allocate once */
    uint64_t live_before = sl_alloc_live_bytes(), calls_before = sl_alloc_count();
    must(live(l, &error), &error, l->model);
    uint64_t calls = sl_alloc_count() - calls_before;
    printf("%s: %llu allocations\n", l->model, (unsigned long long)calls);
    /* Each of the first ones, then in growing strides, so that a vocabulary's thousands do not take minutes;
     * a fixed share of all is hit. */
    uint64_t failed = 0;
    for (uint64_t n = 1; n <= calls; n += n < 1500 ? 1 : n / 300) {
        error = (sluice_error){0};
        sl_alloc_fail_at(n);
        int result = live(l, &error);
        sl_alloc_fail_at(0);
        if (result) {
            failed++;
            assert_int_equal(result, SLUICE_ERR_NOMEM);
            assert_true(error.message[0] != 0);
            assert_null(strchr(error.message, '\n'));
        }
        assert_int_equal(sl_alloc_live_bytes(), live_before);
    }
    assert_true(failed > 0);
}

static sluice_engine *engine_of(const char *folder, sluice_model **model) {
    *model = open_model(folder);
    sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .threads = 1, .context = 4096, .sequences = 2, .chunk = 16};
    return open_engine(*model, &options);
}

static void *cancel_soon(void *argument) {
    sluice_cancel(argument);
    return NULL;
}

static void requests_end_when_cancelled(void **state) {
    (void)state;
    sluice_model *model;
    sluice_engine *engine = engine_of(SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3", &model);
    int32_t tokens[3] = {1, 2, 3};
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = tokens,
                                      .token_count = 3,
                                      .generate = 4000,
                                      .ignore_eos = true,
                                      .no_text = true};
    for (int round = 0; round < 20; round++) {
        sluice_sequence *sequence = open_sequence(engine);
        sluice_request *request = submit(sequence, &options);
        sluice_error error;
        sluice_request *second;
        assert_int_equal(sluice_submit(sequence, &options, &second, &error), SLUICE_ERR_BUSY);
        assert_int_equal(sluice_sequence_rollback(sequence, 0, &error), SLUICE_ERR_BUSY);
        pthread_t thread;
        pthread_create(&thread, NULL, cancel_soon, request);
        collected got = {0};
        if (round % 2) {
            pthread_join(thread, NULL);
            sluice_sequence_release(sequence); /* also ends it */
            collect(request, &got);
        } else {
            collect(request, &got);
            pthread_join(thread, NULL);
            sluice_sequence_release(sequence);
        }
        assert_int_equal(got.finish, SLUICE_FINISH_CANCELLED);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

static void misuse_is_refused(void **state) {
    (void)state;
    sluice_model *model;
    sluice_error error;
    sluice_engine *none;
    assert_int_equal(sluice_model_open("/no/such/model.gguf", &model, &error), SLUICE_ERR_IO);
    sluice_engine *engine = engine_of(SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3", &model);
    sluice_engine_options bad[] = {{.size = sizeof bad[0], .device = "tpu"},
                                   {.size = sizeof bad[0], .device = "cpu", .isa = "mmx"},
                                   {.size = sizeof bad[0], .device = "cpu", .kv_type = "q4_k"},
                                   {.size = sizeof bad[0], .device = "cpu", .chunk = -1},
                                   {.size = sizeof bad[0], .device = "cpu", .memory_limit = 1000},
                                   {.device = "cpu"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_true(sluice_engine_create(model, &bad[i], &none, &error) < 0);
        assert_null(none);
        assert_true(error.message[0] != 0);
    }
    sluice_sequence *sequence = open_sequence(engine);
    int32_t tokens[2] = {1, 100000};
    sluice_request *request;
    sluice_request_options requests[] = {
        {.size = sizeof requests[0], .generate = 1},
        {.size = sizeof requests[0], .tokens = tokens, .token_count = 2, .generate = 1},
        {.size = sizeof requests[0], .tokens = tokens, .token_count = 1, .temperature = -1},
        {.size = sizeof requests[0], .tokens = tokens, .token_count = 1, .top_p = 2},
        {.size = sizeof requests[0], .tokens = tokens, .token_count = 1, .logits = (sluice_logits)9},
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        assert_true(sluice_submit(sequence, &requests[i], &request, &error) < 0);
        assert_int_equal(sluice_sequence_length(sequence), 0);
    }
    assert_int_equal(sluice_sequence_rollback(sequence, 1, &error), SLUICE_ERR_INVALID);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* All or none; and those that are accepted start in one step. */
static void requests_start_together(void **state) {
    (void)state;
    enum { COUNT = 4, GENERATED = 5 };
    sluice_model *model = open_model(SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3");
    const sluice_engine_options engine_options = {.size = sizeof engine_options,
                                                  .device = "cpu",
                                                  .threads = 1,
                                                  .context = 256,
                                                  .sequences = COUNT,
                                                  .chunk = 16};
    sluice_engine *engine = open_engine(model, &engine_options);
    int32_t tokens[2] = {1, 100000};
    const sluice_request_options good = {.size = sizeof good,
                                         .tokens = tokens,
                                         .token_count = 1,
                                         .generate = GENERATED,
                                         .ignore_eos = true,
                                         .no_text = true};
    sluice_request_options bad = good;
    bad.token_count = 2;
    sluice_sequence *sequences[COUNT];
    const sluice_request_options *options[COUNT];
    sluice_request *requests[COUNT];
    sluice_error error;
    for (int i = 0; i < COUNT; i++) {
        sequences[i] = open_sequence(engine);
        options[i] = i < COUNT - 1 ? &good : &bad;
    }
    assert_int_equal(sluice_submit_together(sequences, options, COUNT, requests, &error), SLUICE_ERR_INVALID);
    for (int i = 0; i < COUNT; i++) {
        assert_null(requests[i]);
        assert_int_equal(sluice_sequence_length(sequences[i]), 0);
    }
    options[COUNT - 1] = &good;
    sluice_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    sluice_engine_get_counters(engine, &before);
    must(sluice_submit_together(sequences, options, COUNT, requests, &error), &error, "submit");
    for (int i = 0; i < COUNT; i++) {
        collected got = {0};
        assert_int_equal(collect(requests[i], &got), GENERATED);
    }
    sluice_engine_get_counters(engine, &after);
    assert_int_equal(after.steps - before.steps, GENERATED);
    for (int i = 0; i < COUNT; i++) {
        sluice_sequence_release(sequences[i]);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--only") == 0) {
        cmocka_set_test_filter(argv[2]);
    }
    static life lives[] = {
        {SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3moe", NULL, false, NULL},
        {SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3_5", "plain", false, NULL},
        {SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3-bf16", "avx2", false, NULL},
        {SLUICE_SHARED_DIR "/models/stories260K.gguf", NULL, true, NULL},
        {SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3", NULL, false, "cpu+cpu"},
    };
    const struct CMUnitTest tests[] = {
        {"allocations: qwen3moe", every_allocation_may_fail, NULL, NULL, &lives[0]},
        {"allocations: qwen3_5", every_allocation_may_fail, NULL, NULL, &lives[1]},
        {"allocations: qwen3-bf16", every_allocation_may_fail, NULL, NULL, &lives[2]},
        {"allocations: stories260K", every_allocation_may_fail, NULL, NULL, &lives[3]},
        {"allocations: qwen3 on two devices", every_allocation_may_fail, NULL, NULL, &lives[4]},
        cmocka_unit_test(requests_end_when_cancelled),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(requests_start_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
