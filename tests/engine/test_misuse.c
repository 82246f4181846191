/* What callers get wrong: NULL for every pointer, counts without arrays, sizes that no struct has, numbers
 * out of range. Functions that can fail say SLUICE_ERR_INVALID with a line that names the argument; the
 * others do nothing. */
#include "support/engine.h"

#include <stdio.h>
#include <unistd.h>

static sluice_model *model;
static sluice_engine *engine;
static sluice_error error;

static int set_up(void **state) {
    (void)state;
    const sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .threads = 1, .sequences = 2, .context = 64};
    model = open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    engine = open_engine(model, &options);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    return 0;
}

/* A call refused: its code, and an argument's name in the message. */
static void refused(int result, const char *name, int line) {
    if (result != SLUICE_ERR_INVALID || error.code != result || !strstr(error.message, name)) {
        fail_msg("line %d: %d (%s), expected INVALID and \"%s\"", line, result, error.message, name);
    }
    error = (sluice_error){0};
}

#define REFUSED(call, name) refused((call), (name), __LINE__)

/* Out-parameters that must be NULL after a failure begin as this. */
static void *const something = &model;

static void pointers_of_models_are_checked(void **state) {
    (void)state;
    sluice_model *opened = something;
    REFUSED(sluice_model_open(NULL, &opened, &error), "path");
    assert_null(opened);
    REFUSED(sluice_model_open("x", NULL, &error), "model");
    opened = something;
    REFUSED(sluice_model_open_text(NULL, &opened, &error), "path");
    assert_null(opened);
    REFUSED(sluice_model_open_text("x", NULL, &error), "model");
    assert_int_equal(sluice_model_open(NULL, NULL, NULL), SLUICE_ERR_INVALID);
    assert_int_not_equal(sluice_model_open("", &opened, &error), 0);
    assert_int_not_equal(sluice_model_open("\xff\xfe", &opened, &error), 0);
    sluice_model_options options = {.size = sizeof options};
    opened = something;
    REFUSED(sluice_model_open_with(NULL, &options, &opened, &error), "path");
    assert_null(opened);
    REFUSED(sluice_model_open_with("x", &options, NULL, &error), "model");
    options.size = 3;
    REFUSED(sluice_model_open_with("x", &options, &opened, &error), "size");
    sluice_sampling_facts sampling = {.size = sizeof sampling, .top_k = 77};
    sluice_model_get_sampling(NULL, &sampling);
    sluice_model_get_sampling(model, NULL);
    sampling.size = 0;
    sluice_model_get_sampling(model, &sampling);
    assert_int_equal(sampling.top_k, 77);
    assert_null(sluice_chat_template_name(NULL, 0));
    for (int i = 0; i < 2; i++) {
        const int index = i ? INT32_MAX : -1;
        assert_null(sluice_chat_template_name(model, index));
        assert_null(sluice_chat_format_name(index));
        assert_null(sluice_quantize_type(index, NULL));
    }
    assert_null(sluice_model_retain(NULL));
    sluice_model_release(NULL);
    sluice_model_info info = {.size = sizeof info, .layers = 77};
    sluice_model_get_info(NULL, &info);
    sluice_model_get_info(model, NULL);
    assert_int_equal(info.layers, 77);
    info.size = 0;
    sluice_model_get_info(model, &info);
    assert_int_equal(info.layers, 77);
    sluice_free(NULL);
    assert_non_null(sluice_status_name(12345));
    assert_non_null(sluice_status_name(INT32_MIN));
}

static void pointers_of_descriptions_are_checked(void **state) {
    (void)state;
    char *text = something;
    REFUSED(sluice_model_describe(NULL, SLUICE_TEXT, &text, &error), "model");
    assert_null(text);
    REFUSED(sluice_model_describe(model, SLUICE_TEXT, NULL, &error), "text");
    REFUSED(sluice_model_describe(model, (sluice_text_format)7, &text, &error), "format");
    REFUSED(sluice_plan_describe(NULL, NULL, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error), "model");
    REFUSED(sluice_plan_describe(model, NULL, SLUICE_PLAN_MEMORY, SLUICE_TEXT, NULL, &error), "text");
    REFUSED(sluice_plan_describe(model, NULL, (sluice_plan_view)-1, SLUICE_TEXT, &text, &error), "view");
    REFUSED(sluice_plan_describe(model, NULL, SLUICE_PLAN_OPS, (sluice_text_format)-1, &text, &error),
            "format");
    text = something;
    REFUSED(sluice_engine_profile(NULL, SLUICE_TEXT, &text, &error), "engine");
    assert_null(text);
    REFUSED(sluice_engine_profile(engine, SLUICE_TEXT, NULL, &error), "text");
    REFUSED(sluice_engine_profile(engine, (sluice_text_format)9, &text, &error), "format");
    sluice_rates rates = {.size = sizeof rates};
    REFUSED(sluice_engine_measure_rates(NULL, &rates, &error), "engine");
    REFUSED(sluice_engine_measure_rates(engine, NULL, &error), "rates");
}

static void pointers_of_texts_are_checked(void **state) {
    (void)state;
    int32_t *tokens = something, token = 5;
    size_t count = 9;
    REFUSED(sluice_tokenize(NULL, "a", 1, 0, &tokens, &count, &error), "model");
    assert_null(tokens);
    assert_int_equal(count, 0);
    REFUSED(sluice_tokenize(model, NULL, 1, 0, &tokens, &count, &error), "text");
    REFUSED(sluice_tokenize(model, "a", 1, 0, NULL, &count, &error), "tokens");
    REFUSED(sluice_tokenize(model, "a", 1, 0, &tokens, NULL, &error), "count");
    assert_int_equal(sluice_tokenize(model, NULL, 0, 0, &tokens, &count, &error), 0);
    assert_int_equal(count, 0);
    sluice_free(tokens);
    assert_int_equal(sluice_tokenize(model, "\xff\xc0 \xed\xa0\x80", 6, ~0u, &tokens, &count, &error), 0);
    assert_true(count > 0);
    sluice_free(tokens);
    char *text = something;
    size_t length = 3;
    REFUSED(sluice_detokenize(NULL, &token, 1, 0, &text, &length, &error), "model");
    assert_null(text);
    assert_int_equal(length, 0);
    REFUSED(sluice_detokenize(model, NULL, 1, 0, &text, &length, &error), "tokens");
    REFUSED(sluice_detokenize(model, &token, 1, 0, NULL, &length, &error), "text");
    REFUSED(sluice_detokenize(model, &token, 1, 0, &text, NULL, &error), "length");
    assert_int_equal(sluice_detokenize(model, NULL, 0, 0, &text, &length, &error), 0);
    sluice_free(text);
    token = INT32_MIN;
    REFUSED(sluice_detokenize(model, &token, 1, 0, &text, &length, &error), "token");
    const char *bytes;
    REFUSED(sluice_token_bytes(NULL, 1, &bytes, &length, &error), "model");
    REFUSED(sluice_token_bytes(model, 1, NULL, &length, &error), "bytes");
    REFUSED(sluice_token_bytes(model, 1, &bytes, NULL, &error), "length");
    REFUSED(sluice_token_bytes(model, -1, &bytes, &length, &error), "token");
    REFUSED(sluice_token_bytes(model, INT32_MAX, &bytes, &length, &error), "token");
}

static void pointers_of_conversations_are_checked(void **state) {
    (void)state;
    char *text = something;
    int32_t *tokens = something;
    size_t count;
    REFUSED(sluice_chat_render(NULL, "[]", NULL, &text, &error), "model");
    assert_null(text);
    REFUSED(sluice_chat_render(model, NULL, NULL, &text, &error), "messages");
    REFUSED(sluice_chat_render(model, "[]", NULL, NULL, &error), "text");
    REFUSED(sluice_chat_render(model, "", NULL, &text, &error), "messages");
    REFUSED(sluice_chat_render(model, "[\"\xff\"]", NULL, &text, &error), "messages");
    REFUSED(sluice_chat_render(model, "[]", "[]", &text, &error), "options");
    REFUSED(sluice_chat_tokens(NULL, "[]", NULL, &tokens, &count, &error), "model");
    assert_null(tokens);
    REFUSED(sluice_chat_tokens(model, NULL, NULL, &tokens, &count, &error), "messages");
    REFUSED(sluice_chat_tokens(model, "[]", NULL, NULL, &count, &error), "tokens");
    REFUSED(sluice_chat_tokens(model, "[]", NULL, &tokens, NULL, &error), "count");
    sluice_chat_facts facts = {.size = sizeof facts};
    REFUSED(sluice_chat_get_facts(NULL, &facts, &error), "model");
    REFUSED(sluice_chat_get_facts(model, NULL, &error), "facts");
    facts.size = 0;
    REFUSED(sluice_chat_get_facts(model, &facts, &error), "size");
}

static void pointers_of_engines_are_checked(void **state) {
    (void)state;
    sluice_engine *made = something;
    REFUSED(sluice_engine_create(NULL, NULL, &made, &error), "model");
    assert_null(made);
    REFUSED(sluice_engine_create(model, NULL, NULL, &error), "engine");
    sluice_engine_destroy(NULL);
    sluice_counters counters = {.size = sizeof counters, .steps = 1234567};
    sluice_engine_get_counters(NULL, &counters);
    sluice_engine_get_counters(engine, NULL);
    assert_int_equal(counters.steps, 1234567);
    counters.size = 0;
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.steps, 1234567);
    assert_int_equal(sluice_engine_context(NULL), 0);
    assert_int_equal(sluice_engine_sequences(NULL), 0);
    assert_string_equal(sluice_engine_device(NULL), "");
    sluice_sequence *sequence = something;
    REFUSED(sluice_sequence_create(NULL, &sequence, &error), "engine");
    assert_null(sequence);
    REFUSED(sluice_sequence_create(engine, NULL, &error), "sequence");
    sequence = something;
    REFUSED(sluice_sequence_fork(NULL, &sequence, &error), "sequence");
    assert_null(sequence);
    REFUSED(sluice_sequence_rollback(NULL, 0, &error), "sequence");
    assert_int_equal(sluice_sequence_length(NULL), 0);
    assert_null(sluice_sequence_tokens(NULL));
    sluice_sequence_release(NULL);
    sequence = open_sequence(engine);
    REFUSED(sluice_sequence_fork(sequence, NULL, &error), "fork");
    REFUSED(sluice_sequence_rollback(sequence, SIZE_MAX, &error), "length");
    sluice_sequence_release(sequence);
}

/* ---- options
 * ------------------------------------------------------------------------------------------------------- */

static void sizes_that_no_struct_has_are_refused(void **state) {
    (void)state;
    /* As large as any size that is read, and all zero but for what is set here. */
    union {
        size_t size;
        sluice_engine_options engine;
        sluice_request_options request;
        sluice_synth_options synth;
        unsigned char bytes[8192];
    } options = {0};
    const size_t sizes[] = {
        0,    1,    4,        12,           sizeof(size_t) - 1, sizeof(sluice_request_options) - 1,
        4097, 8192, SIZE_MAX, SIZE_MAX - 7, (size_t)1 << 40};
    sluice_sequence *sequence = open_sequence(engine);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sluice_engine *made;
        sluice_request *request;
        char *text;
        options.size = sizes[i];
        REFUSED(sluice_engine_create(model, &options.engine, &made, &error), "size");
        REFUSED(sluice_plan_describe(model, &options.engine, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error),
                "size");
        REFUSED(sluice_submit(sequence, &options.request, &request, &error), "size");
        REFUSED(sluice_synth("/no/such/folder/x", &options.synth, NULL, NULL, &error), "size");
    }
    /* A later header's struct is fine as long as nothing is set that this library does not know. */
    options.size = 2048;
    sluice_request *request;
    int32_t token = 1;
    options.request.tokens = &token;
    options.request.token_count = 1;
    request = submit(sequence, &options.request);
    collect(request, &(collected){0});
    options.bytes[2047] = 1;
    REFUSED(sluice_submit(sequence, &options.request, &request, &error), "does not know");
    sluice_sequence_release(sequence);
}

static void requests_with_wrong_options_are_refused(void **state) {
    (void)state;
    static const int32_t token = 1, wrong = -1, huge = INT32_MAX;
    static const sluice_logit_bias bias = {-5, 1};
    static const char *const nothing[] = {NULL}, *const empty[] = {""}, *const bad[] = {"\xff"};
    static const sluice_sampler no_sampler[] = {(sluice_sampler)99};
    enum { SIZE = sizeof(sluice_request_options) };
    const struct {
        const char *named;
        sluice_request_options options;
    } cases[] = {
        {"tokens", {.token_count = 1}},
        {"tokens", {.token_count = SIZE_MAX}},
        {"stops", {.stop_count = 1}},
        {"stops", {.stops = nothing, .stop_count = SIZE_MAX}},
        {"stop", {.stops = nothing, .stop_count = 1}},
        {"stop", {.stops = empty, .stop_count = 1}},
        {"stop", {.stops = bad, .stop_count = 1}},
        {"stop_tokens", {.stop_token_count = 1}},
        {"stop", {.stop_tokens = &token, .stop_token_count = SIZE_MAX}},
        {"stop_tokens", {.stop_tokens = &wrong, .stop_token_count = 1}},
        {"stop_tokens", {.stop_tokens = &huge, .stop_token_count = 1}},
        {"logit_bias", {.logit_bias_count = 1}},
        {"logit_bias", {.logit_bias = &bias, .logit_bias_count = SIZE_MAX}},
        {"bias", {.logit_bias = &bias, .logit_bias_count = 1}},
        {"token", {.tokens = &wrong, .token_count = 1}},
        {"token", {.tokens = &huge, .token_count = 1}},
        {"samplers", {.sampler_count = 1}},
        {"samplers", {.samplers = no_sampler, .sampler_count = 1}},
        {"samplers", {.samplers = no_sampler, .sampler_count = SIZE_MAX}},
        {"dry_breakers", {.dry_breaker_count = 1}},
        {"dry_breakers", {.dry_multiplier = 1, .dry_breakers = nothing, .dry_breaker_count = 1}},
        {"dry_breakers", {.dry_multiplier = 1, .dry_breakers = nothing, .dry_breaker_count = SIZE_MAX}},
        {"dry", {.dry_multiplier = 1, .dry_allowed_length = -1}},
        {"mirostat", {.mirostat = 3}},
        {"mirostat", {.mirostat = -1}},
        {"temperature", {.temperature = -1}},
        {"top_p", {.top_p = -1}},
        {"min_p", {.min_p = 2}},
        {"top_k", {.top_k = -1}},
        {"typical_p", {.typical_p = -1}},
        {"repetition_penalty", {.repetition_penalty = -1}},
        {"penalty_tokens", {.penalty_tokens = -2}},
        {"logits", {.logits = (sluice_logits)99}},
        {"top_logprobs", {.logprobs = true, .top_logprobs = -1}},
        {"top_logprobs", {.logprobs = true, .top_logprobs = INT32_MAX}},
    };
    sluice_sequence *sequence = open_sequence(engine);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_request_options options = cases[i].options;
        sluice_request *request = something;
        options.size = SIZE;
        options.generate = 1;
        if (!options.tokens && !options.token_count) {
            options.tokens = &token;
            options.token_count = 1;
        }
        const int result = sluice_submit(sequence, &options, &request, &error);
        assert_null(request);
        if (options.token_count == SIZE_MAX && options.tokens) {
            assert_int_equal(result, SLUICE_ERR_LIMIT);
        } else {
            refused(result, cases[i].named, (int)i);
        }
    }
    sluice_sequence_release(sequence);
}

static void grammars_are_checked(void **state) {
    (void)state;
    sluice_grammar_options options = {
        .size = sizeof options, .kind = SLUICE_GRAMMAR_REGEX, .text = "a", .length = 1};
    sluice_grammar *grammar = something;
    REFUSED(sluice_grammar_create(NULL, &options, &grammar, &error), "model");
    assert_null(grammar);
    REFUSED(sluice_grammar_create(model, NULL, &grammar, &error), "options");
    REFUSED(sluice_grammar_create(model, &options, NULL, &error), "grammar");
    options.size = 3;
    REFUSED(sluice_grammar_create(model, &options, &grammar, &error), "size");
    options.size = sizeof options;
    options.kind = (sluice_grammar_kind)99;
    REFUSED(sluice_grammar_create(model, &options, &grammar, &error), "kind");
    options.kind = SLUICE_GRAMMAR_GBNF;
    options.text = NULL;
    REFUSED(sluice_grammar_create(model, &options, &grammar, &error), "text");
    options.kind = SLUICE_GRAMMAR_JSON_OBJECT;
    options.thought = (sluice_thought)7;
    REFUSED(sluice_grammar_create(model, &options, &grammar, &error), "thought");
    options.thought = SLUICE_THOUGHT_OPEN;
    assert_int_equal(sluice_grammar_create(model, &options, &grammar, &error), SLUICE_ERR_UNSUPPORTED);
    assert_null(grammar);
    assert_null(sluice_grammar_retain(NULL));
    sluice_grammar_release(NULL);
}

static void replies_are_checked(void **state) {
    (void)state;
    static const char TOOLS[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    sluice_reply_options options = {.size = sizeof options, .tools = TOOLS};
    sluice_reply *reply = something;
    sluice_thought thought;
    const int32_t tokens[] = {1};
    REFUSED(sluice_reply_create(NULL, &options, &reply, &error), "model");
    assert_null(reply);
    REFUSED(sluice_reply_create(model, &options, NULL, &error), "reply");
    options.size = 3;
    REFUSED(sluice_reply_create(model, &options, &reply, &error), "size");
    options.size = sizeof options;
    options.tools = "{}";
    REFUSED(sluice_reply_create(model, &options, &reply, &error), "tools");
    options.tools = "[{\"function\":{\"name\":\"a b\"}}]";
    REFUSED(sluice_reply_create(model, &options, &reply, &error), "tools[0].function.name");
    options.tools = "[{\"function\":{\"name\":\"a\",\"parameters\":{\"type\":[\"string\"]}}}]";
    REFUSED(sluice_reply_create(model, &options, &reply, &error), "tools[0].function.parameters: #/type");
    options.tools = "[";
    REFUSED(sluice_reply_create(model, &options, &reply, &error), "tools");
    assert_null(reply);
    REFUSED(sluice_reply_feed(NULL, "", 0, &error), "reply");
    REFUSED(sluice_reply_finish(NULL, false, &error), "reply");
    sluice_reply_next(NULL, NULL);
    sluice_reply_release(NULL);
    assert_int_equal(sluice_reply_stands_in(NULL), SLUICE_REPLY_NONE);
    REFUSED(sluice_prompt_thought(NULL, tokens, 1, false, &thought, &error), "model");
    REFUSED(sluice_prompt_thought(model, NULL, 1, false, &thought, &error), "tokens");
    REFUSED(sluice_prompt_thought(model, tokens, 1, false, NULL, &error), "thought");
    options.tools = TOOLS;
    assert_int_equal(sluice_reply_create(model, &options, &reply, &error), 0);
    REFUSED(sluice_reply_feed(reply, NULL, 1, &error), "text");
    sluice_reply_event event = {.size = sizeof event};
    sluice_reply_next(reply, &event);
    assert_int_equal(event.kind, SLUICE_REPLY_NONE);
    sluice_reply_release(reply);
}

static void pointers_of_requests_are_checked(void **state) {
    (void)state;
    const int32_t token = 1;
    const sluice_request_options options = {
        .size = sizeof options, .tokens = &token, .token_count = 1, .generate = 2, .ignore_eos = true};
    const sluice_request_options *const both[] = {&options, &options};
    sluice_sequence *sequence = open_sequence(engine);
    sluice_sequence *const pair[] = {sequence, NULL};
    sluice_request *requests[2] = {something, something};
    REFUSED(sluice_submit(NULL, &options, requests, &error), "sequence");
    assert_null(requests[0]);
    REFUSED(sluice_submit(sequence, &options, NULL, &error), "requests");
    REFUSED(sluice_submit_together(NULL, both, 2, requests, &error), "sequences");
    REFUSED(sluice_submit_together(pair, NULL, 1, requests, &error), "options");
    REFUSED(sluice_submit_together(pair, both, 2, requests, &error), "sequence");
    assert_null(requests[1]);
    assert_int_equal(sluice_submit_together(NULL, NULL, 0, NULL, &error), 0);
    sluice_event event = {.size = sizeof event};
    REFUSED(sluice_poll(NULL, 0, &event, &error), "request");
    sluice_cancel(NULL);
    sluice_request_release(NULL);
    size_t read = 5, total = 5;
    sluice_request_progress(NULL, &read, &total);
    assert_int_equal(read, 5);
    sluice_request *request = submit(sequence, &options);
    sluice_request_progress(request, NULL, &total);
    sluice_request_progress(request, &read, NULL);
    REFUSED(sluice_poll(request, -1, NULL, &error), "event");
    const size_t sizes[] = {0, 1, sizeof(size_t), sizeof event - 1, SIZE_MAX, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        event.size = sizes[i];
        REFUSED(sluice_poll(request, -1, &event, &error), "size");
    }
    /* No event was lost to those. */
    int32_t tokens[2];
    assert_int_equal(collect(request, &(collected){.tokens = tokens}), 2);
    sluice_sequence_release(sequence);
}

/* ---- files
 * ---------------------------------------------------------------------------------------------------------
 */

static void pointers_of_files_are_checked(void **state) {
    (void)state;
    const char *const path = "/tmp/sluice-misuse.gguf";
    REFUSED(sluice_quantize(NULL, path, "q8_0", NULL, NULL, &error), "input");
    REFUSED(sluice_quantize("x", NULL, "q8_0", NULL, NULL, &error), "output");
    REFUSED(sluice_quantize("x", path, NULL, NULL, NULL, &error), "type");
    REFUSED(sluice_quantize("x", path, "", NULL, NULL, &error), "type");
    sluice_quantize_options quantize = {.size = sizeof quantize, .pattern_count = 1};
    const sluice_type_pattern pattern = {NULL, NULL};
    REFUSED(sluice_quantize_file(NULL, path, NULL, &error), "input");
    REFUSED(sluice_quantize_file("x", NULL, NULL, &error), "output");
    REFUSED(sluice_quantize_file("x", path, &quantize, &error), "patterns");
    quantize.patterns = &pattern;
    REFUSED(sluice_quantize_file("x", path, &quantize, &error), "patterns");
    quantize.pattern_count = SIZE_MAX;
    REFUSED(sluice_quantize_file("x", path, &quantize, &error), "patterns");
    sluice_sampler samplers[SLUICE_SAMPLERS];
    size_t count;
    REFUSED(sluice_samplers_parse(NULL, samplers, &count, &error), "samplers");
    REFUSED(sluice_samplers_parse("k", NULL, &count, &error), "samplers");
    REFUSED(sluice_samplers_parse("k", samplers, NULL, &error), "count");
    REFUSED(sluice_samplers_parse("\xff", samplers, &count, &error), "samplers");
    const sluice_synth_options none = {.size = sizeof none}, all = {.size = sizeof all, .preset = "llama"};
    const sluice_synth_options negative = {.size = sizeof negative, .preset = "llama", .layers = -1};
    REFUSED(sluice_synth(NULL, &all, NULL, NULL, &error), "output");
    REFUSED(sluice_synth(path, NULL, NULL, NULL, &error), "preset");
    REFUSED(sluice_synth(path, &none, NULL, NULL, &error), "preset");
    assert_int_not_equal(sluice_synth(path, &negative, NULL, NULL, &error), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void limits_of_devices_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *names[3];
        uint64_t host;
        const char *said; /* NULL: accepted */
    } CASES[] = {
        {{"gpu"}, 0, "\"gpu\" is no device: there are cpu, cuda and cuda:N"},
        {{"cuda:"}, 0, "is no device"},
        {{"cuda:01"}, 0, "is no device"},
        {{"cuda:x"}, 0, "is no device"},
        {{"cuda:12345"}, 0, "is no device"},
        {{"CPU"}, 0, "is no device"},
        {{"auto"}, 0, "is no device"},
        {{"cuda+cpu"}, 0, "is no device"},
        {{"cuda:1", "cpu", "cuda:1"}, 0, "cuda:1 is given twice"},
        {{"cpu"}, 1 << 30, "also given as the host's memory limit"},
        {{"cpu"}, 0, NULL},
        {{"cpu", "cuda", "cuda:0"}, 0, NULL},
        {{"cuda:9999"}, 1 << 30, NULL},
    };
    char *text = something;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        sluice_engine_options options = {
            .size = sizeof options, .device = "cpu", .threads = 1, .host_memory_limit = CASES[i].host};
        for (int k = 0; k < 3 && CASES[i].names[k]; k++) {
            snprintf(options.memory_limits[k].device, sizeof options.memory_limits[k].device, "%s",
                     CASES[i].names[k]);
            options.memory_limits[k].bytes = (uint64_t)1 << 40;
        }
        const int code =
            sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error);
        if (CASES[i].said) {
            refused(code, CASES[i].said, (int)i);
        } else {
            must(code, &error, "plan");
            sluice_free(text);
        }
    }
    sluice_engine_options unended = {.size = sizeof unended, .device = "cpu"};
    memset(unended.memory_limits, 'c', sizeof unended.memory_limits);
    REFUSED(sluice_plan_describe(model, &unended, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error),
            "is no device");
    /* The CPU's is what bounds it, ahead of the limit without a name. */
    sluice_engine_options small = {.size = sizeof small,
                                   .device = "cpu",
                                   .memory_limit = (uint64_t)1 << 40,
                                   .memory_limits = {{"cpu", 1000}}};
    assert_int_equal(sluice_plan_describe(model, &small, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error),
                     SLUICE_ERR_LIMIT);
    assert_non_null(strstr(error.message, "the limit is 1000"));
}

static void limits_are_shared(void **state) {
    (void)state;
    sluice_memory_limit limits[SLUICE_MEMORY_LIMITS] = {
        {"cuda", 1000}, {"cuda:1", 500}, {"cpu", 0}, {"cuda:2", 10}};
    const sluice_memory_limit taken[SLUICE_MEMORY_LIMITS] = {
        {"cuda:0", 300}, {"cuda:1", 400}, {"cuda:2", 10}, {"cpu", 70}, {"cuda:10", 200}};
    sluice_memory_limits_leave(limits, taken);
    assert_int_equal(limits[0].bytes, 700); /* cuda:0 is the fullest of those without a name of their own */
    assert_int_equal(limits[1].bytes, 100);
    assert_int_equal(limits[2].bytes, 0); /* no limit stays none */
    assert_int_equal(limits[3].bytes, 1); /* and one that is reached does not become none */
    sluice_memory_limits_leave(NULL, taken);
    sluice_memory_limits_leave(limits, NULL);
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_string_equal(counters.memory_on[0].device, "cpu");
    assert_true(counters.memory_on[0].bytes == counters.memory && counters.memory > 0);
    assert_string_equal(counters.memory_on[1].device, "");
}

static void files_about_experts_are_checked(void **state) {
    (void)state;
    const char *path = "expert-stats-of-misuse.json";
    REFUSED(sluice_engine_write_expert_stats(NULL, path, false, &error), "engine");
    REFUSED(sluice_engine_write_expert_stats(engine, NULL, false, &error), "path");
    assert_int_equal(sluice_engine_write_expert_stats(engine, path, false, &error), SLUICE_ERR_UNSUPPORTED);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(sluice_engine_get_expert_counters(NULL, NULL, NULL), 0);
    assert_int_equal(sluice_engine_get_expert_counters(engine, NULL, NULL), 0);
    sluice_engine *made = something;
    const sluice_engine_options options = {.size = sizeof options, .device = "cpu", .expert_pin = path};
    REFUSED(sluice_engine_create(model, &options, &made, &error), "the model has no experts");
    assert_null(made);
}

static void numbers_of_engines_are_checked(void **state) {
    (void)state;
    const sluice_engine_options cases[] = {
        {.threads = -1},        {.threads = 100000},
        {.chunk = -1},          {.sequences = -1},
        {.context = -1},        {.outputs = -1},
        {.state_slots = -1},    {.queue = -1},
        {.device = ""},         {.isa = ""},
        {.kv_type = ""},        {.device = "\xff"},
        {.kv_type = "q3"},      {.prompt_seconds = 1e300},
        {.threads = INT32_MIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_engine_options options = cases[i];
        sluice_engine *made = something;
        options.size = sizeof options;
        options.device = options.device ? options.device : "cpu";
        if (sluice_engine_create(model, &options, &made, &error) == 0 || made) {
            fail_msg("case %zu was accepted", i);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointers_of_models_are_checked),
        cmocka_unit_test(pointers_of_descriptions_are_checked),
        cmocka_unit_test(pointers_of_texts_are_checked),
        cmocka_unit_test(pointers_of_conversations_are_checked),
        cmocka_unit_test(pointers_of_engines_are_checked),
        cmocka_unit_test(sizes_that_no_struct_has_are_refused),
        cmocka_unit_test(requests_with_wrong_options_are_refused),
        cmocka_unit_test(grammars_are_checked),
        cmocka_unit_test(replies_are_checked),
        cmocka_unit_test(pointers_of_requests_are_checked),
        cmocka_unit_test(pointers_of_files_are_checked),
        cmocka_unit_test(numbers_of_engines_are_checked),
        cmocka_unit_test(limits_of_devices_are_checked),
        cmocka_unit_test(limits_are_shared),
        cmocka_unit_test(files_about_experts_are_checked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
