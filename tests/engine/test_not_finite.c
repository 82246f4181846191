/* A model with weights that are no numbers: a request that meets them ends with an error that names the
 * position, and those beside it give the tokens that a model without them gives. */
#include "support/engine.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define FIXTURE SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3"
#define FOLDER SLUICE_BINARY_DIR "/test_not_finite"

enum { PROMPT = 6, GENERATE = 12, ODD = 77 }; /* the token ODD has a NaN in its embedding */
static const int32_t CLEAN[PROMPT] = {5, 6, 7, 8, 9, 10}, WRONG[PROMPT] = {5, 6, 7, 8, ODD, 10};

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* safetensors: eight bytes with the header's length, the header, and the tensors, F32 here. */
static void put_nan(char *file, const char *tensor, int32_t row) {
    uint64_t length;
    memcpy(&length, file, sizeof length);
    json_t *header = json_loadb(file + 8, length, 0, NULL);
    const json_t *entry = json_object_get(header, tensor);
    assert_string_equal(json_string_value(json_object_get(entry, "dtype")), "F32");
    const json_int_t width = json_integer_value(json_array_get(json_object_get(entry, "shape"), 1));
    const json_int_t first = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
    const float odd = NAN;
    memcpy(file + 8 + length + (size_t)first + (size_t)row * (size_t)width * sizeof odd, &odd, sizeof odd);
    json_decref(header);
}

static int make_folder(void **state) {
    (void)state;
    size_t size;
    mkdir(FOLDER, 0777);
    char *bytes = read_file(FIXTURE "/config.json", &size);
    write_file(FOLDER "/config.json", bytes, size);
    free(bytes);
    bytes = read_file(FIXTURE "/model.safetensors", &size);
    put_nan(bytes, "model.embed_tokens.weight", ODD);
    write_file(FOLDER "/model.safetensors", bytes, size);
    free(bytes);
    return 0;
}

static sluice_engine *start(const char *folder, const char *isa) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .isa = isa,
                                           .threads = 2,
                                           .chunk = 64,
                                           .sequences = 4,
                                           .context = 128};
    sluice_model *model = open_model(folder);
    sluice_engine *engine = open_engine(model, &options);
    sluice_model_release(model);
    return engine;
}

/* Ways of drawing a token, each with its own path through the engine. */
static const sluice_request_options WAYS[] = {
    {.temperature = 0},
    {.temperature = 1, .seed = 3, .top_k = 20},
    {.temperature = 1, .seed = 3, .mirostat = 2},
    {.temperature = 0, .logprobs = true, .top_logprobs = 3, .prompt_logprobs = true},
    {.temperature = 0.5f, .seed = 4, .logits = SLUICE_LOGITS_ALL},
};
enum { WAY_COUNT = sizeof WAYS / sizeof *WAYS };

static sluice_request_options request_of(const sluice_request_options *way, const int32_t *tokens) {
    /* The token itself is not to be drawn. */
    static const sluice_logit_bias never[] = {{ODD, -INFINITY}};
    sluice_request_options o = *way;
    o.size = sizeof o;
    o.tokens = tokens;
    o.token_count = PROMPT;
    o.generate = GENERATE;
    o.ignore_eos = true;
    o.no_text = true;
    o.logit_bias = never;
    o.logit_bias_count = 1;
    return o;
}

/* To the end of a request that must fail there; returns the tokens that it gave first. */
static size_t expect_error(sluice_request *request, const char *message) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    size_t count = 0;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        count += event.kind == SLUICE_EVENT_TOKEN;
    } while (event.kind != SLUICE_EVENT_DONE);
    assert_int_equal(event.finish, SLUICE_FINISH_ERROR);
    assert_string_equal(event.error.message, message);
    sluice_request_release(request);
    return count;
}

static void usual_tokens(const char *isa, int32_t usual[WAY_COUNT][GENERATE]) {
    sluice_engine *engine = start(FIXTURE, isa);
    for (int i = 0; i < WAY_COUNT; i++) {
        const sluice_request_options options = request_of(&WAYS[i], CLEAN);
        sluice_sequence *sequence = open_sequence(engine);
        collected into = {.tokens = usual[i]};
        assert_int_equal(collect(submit(sequence, &options), &into), GENERATE);
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
}

static void others_go_on(void **state) {
    int32_t usual[WAY_COUNT][GENERATE], tokens[GENERATE];
    usual_tokens(*state, usual);
    sluice_engine *engine = start(FOLDER, *state);
    for (int i = 0; i < 2 * WAY_COUNT; i++) { /* the second time from the cache */
        const sluice_request_options *way = &WAYS[i % WAY_COUNT];
        const sluice_request_options clean = request_of(way, CLEAN), wrong = request_of(way, WRONG);
        sluice_sequence *first = open_sequence(engine), *second = open_sequence(engine);
        sluice_request *fails = submit(first, &wrong), *goes_on = submit(second, &clean);
        collected into = {.tokens = tokens};
        /* With a row of logits for each token the first that is wrong is told, else the prompt's last. */
        const bool each = way->prompt_logprobs || way->logits == SLUICE_LOGITS_ALL;
        assert_int_equal(expect_error(fails, each ? "position 4: logits are not finite"
                                                  : "position 5: logits are not finite"),
                         0);
        assert_int_equal(collect(goes_on, &into), GENERATE);
        assert_memory_equal(tokens, usual[i % WAY_COUNT], sizeof tokens);
        sluice_sequence_release(first);
        sluice_sequence_release(second);
    }
    sluice_engine_destroy(engine);
}

/* The wrong token is drawn first: what came before the error is given. */
static void while_generating(void **state) {
    static const sluice_logit_bias at_once[] = {{ODD, 1e6f}};
    sluice_engine *engine = start(FOLDER, *state);
    for (int i = 0; i < WAY_COUNT; i++) {
        sluice_request_options options = request_of(&WAYS[i], CLEAN);
        options.logit_bias = at_once;
        sluice_sequence *sequence = open_sequence(engine);
        assert_int_equal(expect_error(submit(sequence, &options), "position 6: logits are not finite"), 1);
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
}

int main(void) {
    static char plain[] = "plain";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(others_go_on, plain),
        cmocka_unit_test_prestate(others_go_on, NULL),
        cmocka_unit_test_prestate(while_generating, plain),
        cmocka_unit_test_prestate(while_generating, NULL),
    };
    return cmocka_run_group_tests(tests, make_folder, NULL);
}
