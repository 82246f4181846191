/* Several devices that compute each step together, each with a share of heads and columns: what they say is
 * what one device says, but for rounding; how steps are cut changes no bit of it; and all else that an engine
 * does it does on them as well. */
#include "support/engine.h"

#include "backend/backend.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURE(family) SLUICE_SOURCE_DIR "/tests/logits/fixtures/" family
#define MINI SLUICE_SOURCE_DIR "/models/mini.gguf"
#define MINI_MOE SLUICE_SOURCE_DIR "/models/mini-moe.gguf"

enum { TOKENS = 100, GENERATE = 40, SEQUENCES = 4, CONTEXT = 512 };

static const char *one = "cpu", *two = "cpu+cpu", *three = "cpu+cpu+cpu"; /* --device cuda: GPUs */

static sluice_engine_options options_of(bool ranks) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = ranks ? two : one,
                                   .split = ranks ? SLUICE_SPLIT_TENSORS : SLUICE_SPLIT_AUTO,
                                   .threads = 1,
                                   .sequences = SEQUENCES,
                                   .outputs = TOKENS,
                                   .deterministic = true,
                                   .context = CONTEXT};
}

static size_t vocabulary_of(sluice_model *model) {
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    return (size_t)info.vocabulary;
}

static void fill(int32_t *tokens, size_t vocabulary, int32_t seed) {
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)((uint32_t)(i * 7919 + 13 + seed * 101) % vocabulary);
    }
}

/* Logits of a text: [TOKENS][vocabulary], which the caller frees. */
static float *read_text(sluice_model *model, const sluice_engine_options *options) {
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine *engine = open_engine(model, options);
    sluice_sequence *sequence = open_sequence(engine);
    int32_t tokens[TOKENS];
    fill(tokens, vocabulary, 0);
    float *logits = calloc(TOKENS * vocabulary, sizeof *logits);
    const sluice_request_options o = {
        .size = sizeof o, .tokens = tokens, .token_count = TOKENS, .logits = SLUICE_LOGITS_ALL};
    collected got = {.logits = logits, .vocabulary = vocabulary, .room = TOKENS};
    collect(submit(sequence, &o), &got);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return logits;
}

/* The root mean square of the difference, of that of the logits. */
static double distance(const float *a, const float *b, size_t count) {
    double difference = 0, square = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        square += (double)a[i] * a[i];
    }
    return sqrt(difference / square);
}

static void ranks_say_what_one_says(void **state) {
    sluice_model *model = open_model(*state);
    const size_t count = TOKENS * vocabulary_of(model);
    sluice_engine_options options = options_of(false);
    float *expected = read_text(model, &options);
    options = options_of(true);
    float *together = read_text(model, &options);
    const double apart = distance(expected, together, count);
    printf("%s: two ranks are %.2g from one device\n", (const char *)*state, apart);
    assert_true(apart < 0.05);
    options.chunk = 7;
    options.outputs = 7;
    float *cut = read_text(model, &options);
    assert_memory_equal(cut, together, count * sizeof *cut);
    free(cut);
    free(together);
    free(expected);
    sluice_model_release(model);
}

/* By each op's own kernel, and by runs of ops. In chunks of 7 rows and of all: few rows are exchanged by the
 * launch that norms them. */
static void runs_of_ops_change_no_bit(void **state) {
    sluice_model *model = open_model(*state);
    const size_t count = TOKENS * vocabulary_of(model);
    for (int32_t i = 0; i < 4; i++) {
        sluice_engine_options options = options_of(true);
        options.deterministic = i / 2 == 0;
        options.chunk = options.outputs = i % 2 == 0 ? 7 : TOKENS;
        float *together = read_text(model, &options);
        options.no_fusion = true;
        float *apart = read_text(model, &options);
        assert_memory_equal(apart, together, count * sizeof *apart);
        free(apart);
        free(together);
    }
    sluice_model_release(model);
}

/* ---- generating ---- */

static sluice_request *begin(sluice_sequence *sequence, int32_t number, size_t vocabulary) {
    int32_t tokens[TOKENS];
    fill(tokens, vocabulary, number);
    const sluice_request_options o = {.size = sizeof o,
                                      .tokens = tokens,
                                      .token_count = (size_t)(20 + 7 * number),
                                      .generate = GENERATE,
                                      .temperature = number % 2 ? 0.8f : 0,
                                      .seed = 5,
                                      .ignore_eos = true,
                                      .no_text = true};
    return submit(sequence, &o);
}

/* Alone or beside others, greedy or drawn: the same tokens. */
static void sequences_do_not_see_each_other(void **state) {
    sluice_model *model = open_model(*state);
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine_options options = options_of(true);
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequences[SEQUENCES];
    sluice_request *requests[SEQUENCES];
    int32_t together[SEQUENCES][GENERATE], alone[GENERATE];
    for (int32_t s = 0; s < SEQUENCES; s++) {
        sequences[s] = open_sequence(engine);
        requests[s] = begin(sequences[s], s, vocabulary);
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        collected got = {.tokens = together[s]};
        assert_int_equal(collect(requests[s], &got), GENERATE);
        sluice_sequence_release(sequences[s]);
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        sluice_sequence *sequence = open_sequence(engine);
        collected got = {.tokens = alone};
        assert_int_equal(collect(begin(sequence, s, vocabulary), &got), GENERATE);
        assert_memory_equal(alone, together[s], sizeof alone);
        sluice_sequence_release(sequence);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.failed_captures, 0);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* A cancelled prompt leaves the others what they are. */
static void cancelled_ones_go(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine_options options = options_of(true);
    sluice_engine *engine = open_engine(model, &options);
    int32_t expected[GENERATE], beside[GENERATE];
    sluice_sequence *first = open_sequence(engine);
    collected got = {.tokens = expected};
    collect(begin(first, 0, vocabulary), &got);
    sluice_sequence_release(first);
    sluice_sequence *kept = open_sequence(engine), *dropped = open_sequence(engine);
    sluice_request *stays = begin(kept, 0, vocabulary), *goes = begin(dropped, 1, vocabulary);
    sluice_cancel(goes);
    got.tokens = beside;
    assert_int_equal(collect(stays, &got), GENERATE);
    assert_memory_equal(beside, expected, sizeof beside);
    got.tokens = NULL;
    collect(goes, &got);
    sluice_sequence_release(kept);
    sluice_sequence_release(dropped);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- grammars: steps that wait for their masks ---- */

static char *text_under_grammar(sluice_model *model, bool ranks) {
    static const char rules[] = "root ::= \"(\" [a-z ]+ \")\"";
    sluice_engine_options options = options_of(ranks);
    sluice_error error;
    sluice_grammar *grammar;
    const sluice_grammar_options held = {
        .size = sizeof held, .kind = SLUICE_GRAMMAR_GBNF, .text = rules, .length = sizeof rules - 1};
    must(sluice_grammar_create(model, &held, &grammar, &error), &error, "grammar");
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequence = open_sequence(engine);
    int32_t tokens[TOKENS];
    fill(tokens, vocabulary_of(model), 1);
    const sluice_request_options o = {
        .size = sizeof o, .tokens = tokens, .token_count = 20, .generate = 30, .grammar = grammar};
    sluice_request *request = submit(sequence, &o);
    sluice_event event = {.size = sizeof event};
    char *text = calloc(1, 4096);
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_TOKEN && event.text) {
            strncat(text, event.text, 4095 - strlen(text));
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    sluice_grammar_release(grammar);
    return text;
}

static void grammars_hold(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    char *expected = text_under_grammar(model, false), *text = text_under_grammar(model, true);
    assert_int_equal(text[0], '(');
    assert_string_equal(text, expected);
    free(expected);
    free(text);
    sluice_model_release(model);
}

/* ---- pages on disk ---- */

/* Reads 100 tokens and generates: how many were reused. logits: [GENERATE][vocabulary], of what was drawn. */
static size_t live_with_folder(sluice_model *model, const char *folder, bool ranks, float *logits) {
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine_options options = options_of(ranks);
    options.cache_folder = folder;
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequence = open_sequence(engine);
    int32_t prompt[TOKENS];
    fill(prompt, vocabulary, 3);
    const sluice_request_options o = {.size = sizeof o,
                                      .tokens = prompt,
                                      .token_count = TOKENS,
                                      .generate = GENERATE,
                                      .logits = SLUICE_LOGITS_LAST,
                                      .ignore_eos = true,
                                      .no_text = true};
    collected got = {.logits = logits, .vocabulary = vocabulary, .first = TOKENS - 1, .room = GENERATE};
    assert_int_equal(collect(submit(sequence, &o), &got), GENERATE);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return got.reused;
}

static void pages_come_back_from_disk(void **state) {
    sluice_model *model = open_model(*state);
    const size_t count = GENERATE * vocabulary_of(model);
    float *first = calloc(count, sizeof *first), *second = calloc(count, sizeof *second);
    char folder[256], command[300];
    snprintf(folder, sizeof folder, "%s/ranks-%d", SLUICE_BINARY_DIR, (int)getpid());
    assert_int_equal(live_with_folder(model, folder, true, first), 0);
    assert_int_equal(live_with_folder(model, folder, true, second), 64);
    assert_memory_equal(first, second, count * sizeof *first);
    /* Pages of one device are laid out otherwise: they are no pages of this engine. */
    assert_int_equal(live_with_folder(model, folder, false, second), 0);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    free(first);
    free(second);
    sluice_model_release(model);
}

/* ---- faults: devices whose calls fail when they are told to ---- */

int __real_sl_backend_open(const char *device, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error);
int __wrap_sl_backend_open(const char *device, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error);

static const sl_backend_functions *real;
static sl_backend_functions failing; /* real, but for what may fail */
static sl_executor *members[2];      /* as they joined */
static struct {
    bool in_wait; /* else in submit */
    int rank, countdown;
} failure;

/* Ranks call this at once: only who is meant counts. */
static int fail_now(const sl_executor *executor, bool in_wait, int status, sl_error *error) {
    if (in_wait != failure.in_wait || executor != members[failure.rank] || failure.countdown == 0) {
        return status;
    }
    return --failure.countdown == 0 ? sl_fail(error, SL_ERR_DEVICE, "it has failed") : status;
}

static int join_and_note(sl_executor *const *ranks, int32_t count, sl_error *error) {
    members[0] = ranks[0];
    members[1] = ranks[1];
    return real->join(ranks, count, error);
}

static int submit_or_fail(sl_executor *executor, int32_t bucket, sl_error *error) {
    return fail_now(executor, false, real->submit(executor, bucket, error), error);
}

static int wait_or_fail(sl_executor *executor, sl_error *error) {
    return fail_now(executor, true, real->wait(executor, error), error);
}

int __wrap_sl_backend_open(const char *device, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error) {
    const int status = __real_sl_backend_open(device, options, backend, error);
    if (status == 0) {
        real = (*backend)->functions;
        failing = *real;
        failing.join = join_and_note;
        failing.submit = submit_or_fail;
        failing.wait = wait_or_fail;
        (*backend)->functions = &failing;
    }
    return status;
}

/* A rank that fails ends the engine, is named, and leaves nobody waiting. */
static void a_rank_that_fails_ends_all(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    const size_t vocabulary = vocabulary_of(model);
    for (int i = 0; i < 12; i++) {
        sluice_engine_options options = options_of(true);
        sluice_engine *engine = open_engine(model, &options);
        sluice_sequence *sequence = open_sequence(engine);
        sluice_event event = {.size = sizeof event};
        sluice_error error;
        char message[64];
        failure.rank = i % 2;
        failure.in_wait = i / 2 % 2;
        failure.countdown = 1 + i / 4 * 5;
        snprintf(message, sizeof message, "device %d of %s: it has failed", failure.rank + 1, two);
        sluice_request *request = begin(sequence, 0, vocabulary), *none;
        do {
            must(sluice_poll(request, -1, &event, &error), &error, "poll");
        } while (event.kind != SLUICE_EVENT_DONE);
        assert_int_equal(event.finish, SLUICE_FINISH_ERROR);
        assert_int_equal(event.error.code, SLUICE_ERR_DEVICE);
        assert_non_null(strstr(event.error.message, message));
        const sluice_request_options o = {.size = sizeof o, .tokens = (const int32_t[]){1}, .token_count = 1};
        assert_int_equal(sluice_submit(sequence, &o, &none, &error), SLUICE_ERR_DEVICE);
        sluice_request_release(request);
        sluice_sequence_release(sequence);
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
}

/* ---- what is divided ---- */

/* What a plan says. The caller frees it. */
static char *describe(sluice_model *model, const sluice_engine_options *options, sluice_plan_view view,
                      sluice_text_format format) {
    sluice_error error;
    char *text[1] = {NULL};
    must(sluice_plan_describe(model, options, view, format, text, &error), &error, "plan");
    return text[0];
}

/* Bytes of weights on all devices, and of those that are read in the file. */
static uint64_t weight_bytes(sluice_model *model, const sluice_engine_options *options) {
    char *memory = describe(model, options, SLUICE_PLAN_MEMORY, SLUICE_JSON);
    json_t *plan = json_loads(memory, 0, NULL), *row;
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(plan, "mapped_bytes"));
    size_t i;
    json_array_foreach(json_object_get(plan, "memory"), i, row) {
        const bool counts = strcmp(json_string_value(json_object_get(row, "name")), "weights") == 0;
        bytes += counts ? (uint64_t)json_integer_value(json_object_get(row, "bytes")) : 0;
    }
    json_decref(plan);
    sluice_free(memory);
    return bytes;
}

static int32_t times_in(const char *text, const char *what) {
    int32_t count = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) {
        count++;
    }
    return count;
}

/* Each rank reduces twice in every layer and gathers the logits; of weights both have norms and the
 * embedding.
 */
static void shares_are_shares(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    sluice_engine_options options = options_of(true);
    char *ops = describe(model, &options, SLUICE_PLAN_OPS, SLUICE_TEXT);
    assert_int_equal(times_in(ops, "  all_reduce "), 2 * 2 * info.layers);
    assert_int_equal(times_in(ops, "  all_gather "), 2);
    sluice_free(ops);
    const uint64_t both = weight_bytes(model, &options);
    options = options_of(false);
    const uint64_t alone = weight_bytes(model, &options);
    printf("weights: %llu bytes, two ranks have %llu\n", (unsigned long long)alone, (unsigned long long)both);
    assert_true(alone <= both && both < alone + alone / 2);
    sluice_model_release(model);
}

/* Queries beside the one row, or key head, that all of them read: heads are divided, and that is whole. */
static void queries_beside_a_whole_key_are_divided(void **state) {
    sluice_model *model = open_model(*state);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    sluice_engine_options options = options_of(true);
    char divided[64], *text = describe(model, &options, SLUICE_PLAN_EXPLAIN, SLUICE_TEXT);
    snprintf(divided, sizeof divided, "%d of %d layers' attention", (int)info.layers, (int)info.layers);
    assert_non_null(strstr(text, divided));
    assert_null(strstr(text, "whole: "));
    sluice_free(text);
    sluice_model_release(model);
}

/* Heads that do not divide by three are computed whole by each. */
static void what_does_not_divide_is_whole(void **state) {
    (void)state;
    if (strncmp(three, "cuda", 4) == 0) {
        printf("skipped: it is the same on three CPU devices, and GPUs are two\n");
        return;
    }
    sluice_model *model = open_model(MINI);
    const size_t count = TOKENS * vocabulary_of(model);
    sluice_engine_options options = options_of(false);
    float *expected = read_text(model, &options);
    options = options_of(true);
    options.device = three;
    char *text = describe(model, &options, SLUICE_PLAN_EXPLAIN, SLUICE_TEXT);
    assert_non_null(strstr(text, "rank 2 of 3"));
    assert_non_null(strstr(text, "whole: "));
    sluice_free(text);
    float *together = read_text(model, &options);
    assert_true(distance(expected, together, count) < 0.05);
    free(together);
    free(expected);
    sluice_model_release(model);
}

static void refuse(sluice_model *model, const sluice_engine_options *options, const char *why) {
    sluice_error error;
    char *text;
    assert_int_not_equal(sluice_plan_describe(model, options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error),
                         0);
    if (!strstr(error.message, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, why);
    }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    sluice_engine_options options = options_of(true);
    options.device = one;
    refuse(model, &options, "name those that share a model, as in cuda:0+cuda:1");
    options = options_of(true);
    options.gpu_layers = 2;
    refuse(model, &options, "neither gpu layers nor cpu experts");
    options = options_of(true);
    options.split = (sluice_split)7;
    refuse(model, &options, "7 is no sluice_split");
    sluice_model_release(model);
    model = open_model(FIXTURE("deepseek_v3"));
    options = options_of(true);
    options.kv_budget = 128;
    refuse(model, &options, "all query heads read one key head");
    sluice_model_release(model);
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        } else if (strcmp(argv[i], "--device") == 0 && strncmp(argv[i + 1], "cuda", 4) == 0) {
            one = "cuda:0";
            two = "cuda:0+cuda:1";
            three = "cuda:0+cuda:1+cuda:2";
        }
    }
    sluice_model *model = open_model(MINI);
    sluice_engine_options options = options_of(true);
    sluice_error error;
    char *text;
    if (sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error)) {
        printf("skipped: %s: %s\n", two, error.message);
        return 77;
    }
    sluice_free(text);
    sluice_model_release(model);
#define FOR_MODEL(test, path, label)                                                                         \
    { #test " " label, test, NULL, NULL, (void *)(path) }
    const struct CMUnitTest tests[] = {
        FOR_MODEL(ranks_say_what_one_says, MINI, "mini"),
        FOR_MODEL(ranks_say_what_one_says, MINI_MOE, "mini-moe"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("qwen3"), "qwen3"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("gemma3"), "gemma3"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("gpt_oss"), "gpt_oss"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("qwen3_5"), "qwen3_5"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("nemotron_h"), "nemotron_h"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("lfm2"), "lfm2"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("deepseek_v2"), "deepseek_v2"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("deepseek_v3"), "deepseek_v3"),
        FOR_MODEL(ranks_say_what_one_says, FIXTURE("gemma4-dense"), "gemma4-dense"),
        FOR_MODEL(runs_of_ops_change_no_bit, MINI, "mini"),
        FOR_MODEL(runs_of_ops_change_no_bit, FIXTURE("gemma3"), "gemma3"),
        FOR_MODEL(runs_of_ops_change_no_bit, FIXTURE("gpt_oss"), "gpt_oss"),
        FOR_MODEL(sequences_do_not_see_each_other, MINI, "mini"),
        FOR_MODEL(sequences_do_not_see_each_other, FIXTURE("qwen3_5"), "qwen3_5"),
        cmocka_unit_test(cancelled_ones_go),
        cmocka_unit_test(grammars_hold),
        FOR_MODEL(pages_come_back_from_disk, MINI, "mini"),
        FOR_MODEL(pages_come_back_from_disk, FIXTURE("qwen3_5"), "qwen3_5"),
        FOR_MODEL(pages_come_back_from_disk, FIXTURE("deepseek_v2"), "deepseek_v2"),
        FOR_MODEL(pages_come_back_from_disk, FIXTURE("deepseek_v3"), "deepseek_v3"),
        FOR_MODEL(pages_come_back_from_disk, FIXTURE("gemma4-dense"), "gemma4-dense"),
        cmocka_unit_test(a_rank_that_fails_ends_all),
        cmocka_unit_test(shares_are_shares),
        FOR_MODEL(queries_beside_a_whole_key_are_divided, FIXTURE("deepseek_v2"), "deepseek_v2"),
        FOR_MODEL(queries_beside_a_whole_key_are_divided, FIXTURE("gemma4-dense"), "gemma4-dense"),
        cmocka_unit_test(what_does_not_divide_is_whole),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
