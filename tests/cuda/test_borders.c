/* Layers on each of two GPUs: the bits of one GPU, with chunks of a prompt on both at once. What crosses the
 * border goes from device to device: the plan has room for it there, which counts in that device's limit, and
 * none on the host.
 *
 *     test_borders [--only PATTERN] */
#include "support/engine.h"

#include <stdio.h>

#define FIXTURE(family) SLUICE_SOURCE_DIR "/tests/logits/fixtures/" family

enum { CHUNK = 8, PROMPT = 11 * CHUNK + 3, GENERATE = 6, LAST = 3, CONTEXT = 128, TURNS = 2 };

static const int32_t *prompt_of(int32_t which) {
    static int32_t tokens[CONTEXT];
    for (int32_t i = 0; i < CONTEXT; i++) {
        tokens[i] = 3 + (37 * i + i / 7 + 11 * which) % 90;
    }
    return tokens;
}

static sluice_engine_options options_of(const char *device, bool no_graphs) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = device,
                                   .chunk = CHUNK,
                                   .context = CONTEXT,
                                   .sequences = 2,
                                   .cache_tokens = 4 * CONTEXT,
                                   .no_prefix_reuse = true,
                                   .deterministic = true,
                                   .no_graphs = no_graphs};
}

/* What a sequence read and generated, and the logits of rows that see all of it. */
typedef struct life {
    int32_t tokens[TURNS][GENERATE];
    float *logits; /* [TURNS][LAST][vocabulary] */
} life;

static void live(sluice_model *model, const sluice_engine_options *options, size_t vocabulary, life *l) {
    sluice_engine *engine = open_engine(model, options);
    for (int32_t turn = 0; turn < TURNS; turn++) {
        sluice_sequence *sequence = open_sequence(engine);
        const sluice_request_options first = {.size = sizeof first,
                                              .tokens = prompt_of(turn),
                                              .token_count = PROMPT,
                                              .generate = GENERATE,
                                              .ignore_eos = true,
                                              .no_text = true};
        collected got = {.tokens = l->tokens[turn]};
        assert_int_equal(collect(submit(sequence, &first), &got), GENERATE);
        const sluice_request_options rest = {
            .size = sizeof rest, .tokens = prompt_of(turn), .token_count = LAST, .logits = SLUICE_LOGITS_ALL};
        collected seen = {.logits = l->logits + (size_t)turn * LAST * vocabulary,
                          .vocabulary = vocabulary,
                          .first = sluice_sequence_length(sequence),
                          .room = LAST};
        collect(submit(sequence, &rest), &seen);
        sluice_sequence_release(sequence);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.failed_captures, 0);
    sluice_engine_destroy(engine);
}

static void two_give_the_bits_of_one(void **state) {
    sluice_model *model = open_model(*state);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    const size_t vocabulary = (size_t)info.vocabulary, count = TURNS * LAST * vocabulary;
    life one = {.logits = calloc(count, sizeof(float))}, two = {.logits = calloc(count, sizeof(float))};
    for (int no_graphs = 0; no_graphs < 2; no_graphs++) {
        const sluice_engine_options alone = options_of("cuda:0", no_graphs);
        const sluice_engine_options both = options_of("cuda:0+cuda:1", no_graphs);
        live(model, &alone, vocabulary, &one);
        live(model, &both, vocabulary, &two);
        assert_memory_equal(two.tokens, one.tokens, sizeof one.tokens);
        assert_memory_equal(two.logits, one.logits, count * sizeof(float));
        assert_true(one.logits[0] != one.logits[1]);
    }
    free(one.logits);
    free(two.logits);
    sluice_model_release(model);
}

static void describe(sluice_model *model, const sluice_engine_options *options, sluice_plan_view view,
                     char **text) {
    sluice_error error;
    must(sluice_plan_describe(model, options, view, SLUICE_TEXT, text, &error), &error, "plan");
}

/* What the plan says of the second device's layers, with so many bytes for it; 0: no limit. */
static void describe_second(sluice_model *model, sluice_engine_options options, uint64_t bytes,
                            char line[128]) {
    options.memory_limits[0] = (sluice_memory_limit){.device = "cuda:1", .bytes = bytes};
    char *text;
    describe(model, &options, SLUICE_PLAN_EXPLAIN, &text);
    const char *at = strstr(text, "segment 1: cuda:1");
    assert_true(at != NULL);
    snprintf(line, 128, "%.*s", (int)strcspn(at, "\n"), at);
    sluice_free(text);
}

static uint64_t taken_on(const sluice_counters *counters, const char *device) {
    for (int i = 0; i < SLUICE_MEMORY_LIMITS; i++) {
        if (strcmp(counters->memory_on[i].device, device) == 0) {
            return counters->memory_on[i].bytes;
        }
    }
    fail_msg("nothing is planned on %s", device);
    return 0;
}

static void what_is_sent_is_planned_where_it_lands(void **state) {
    sluice_model *model = open_model(*state);
    const sluice_engine_options options = options_of("cuda:0+cuda:1", false);
    char *memory, *chosen;
    describe(model, &options, SLUICE_PLAN_MEMORY, &memory);
    describe(model, &options, SLUICE_PLAN_EXPLAIN, &chosen);
    const char *row = strstr(memory, "cuda:1 landing places");
    assert_true(row != NULL);
    assert_null(strstr(memory, "cuda:0 landing places"));
    assert_non_null(strstr(chosen, "values of segment 0: from device to device"));
    const uint64_t landing = strtoull(row + strlen("cuda:1 landing places"), NULL, 10);
    assert_true(landing > 0);
    sluice_free(memory);
    sluice_free(chosen);
    sluice_engine *engine = open_engine(model, &options);
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    const uint64_t taken = taken_on(&counters, "cuda:1");
    sluice_engine_destroy(engine);
    assert_true(taken > landing);
    /* All that is planned there fits a limit of so many bytes, and of one less it has fewer layers. */
    char all[128], enough[128], less[128];
    describe_second(model, options, 0, all);
    describe_second(model, options, taken, enough);
    describe_second(model, options, taken - 1, less);
    assert_string_equal(enough, all);
    assert_string_not_equal(less, all);
    sluice_model_release(model);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--only") == 0) {
        cmocka_set_test_filter(argv[2]);
    }
    const sluice_engine_options options = options_of("cuda:0+cuda:1", true);
    sluice_model *model = open_model(FIXTURE("qwen3"));
    sluice_engine *engine;
    sluice_error error;
    if (sluice_engine_create(model, &options, &engine, &error)) {
        printf("skipped: %s\n", error.message);
        return error.code == SLUICE_ERR_UNSUPPORTED || error.code == SLUICE_ERR_INVALID ? 77 : 1;
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
#define FOR_FAMILY(test, family)                                                                             \
    { #test ": " family, test, NULL, NULL, (void *)(size_t)FIXTURE(family) }
    const struct CMUnitTest tests[] = {
        FOR_FAMILY(what_is_sent_is_planned_where_it_lands, "qwen3"),
        FOR_FAMILY(two_give_the_bits_of_one, "qwen3"),
        FOR_FAMILY(two_give_the_bits_of_one, "qwen3_5"),
        FOR_FAMILY(two_give_the_bits_of_one, "gemma4-e"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
