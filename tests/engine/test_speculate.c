#define _GNU_SOURCE
/* Drafts, through the public interface: whatever is drafted, texts and log-probabilities are those of an
 * engine without, bit for bit; and what is drafted right is not computed again.
 *
 *     test_speculate [--device cuda:N] [--only TEST] [--model TEXT]
 *
 * --model: of those whose texts are compared, the ones with that in their names. */
#include "support/engine.h"

#include "base/alloc.h"

#include <stdio.h>
#include <unistd.h>

enum { SEQUENCES = 3, GENERATE = 40, ROOM = 256, DRAFTS = 5 };

static const char *device = "cpu"; /* --device */
static const char *of_model = "";  /* --model */

#define FIXTURE(family) SLUICE_SOURCE_DIR "/tests/logits/fixtures/" family
static const char MINI[] = SLUICE_SOURCE_DIR "/models/mini.gguf";
static const char *const models[] = {MINI,
                                     SLUICE_SOURCE_DIR "/models/mini-moe.gguf",
                                     FIXTURE("llama"),
                                     FIXTURE("llama-scaled"),
                                     FIXTURE("mistral"),
                                     FIXTURE("qwen2"),
                                     FIXTURE("qwen3"),
                                     FIXTURE("qwen3-bf16"),
                                     FIXTURE("qwen3moe"),
                                     FIXTURE("qwen3_5"),
                                     FIXTURE("gemma3")};
/* Synthetic ones, of families without a fixture. */
static const char *const presets[] = {"gemma4",   "gemma4moe", "qwen3_5_moe", "qwen3_next",
                                      "gpt_oss",  "glm4_moe",  "minimax_m2",  "ernie4_5_moe",
                                      "lfm2_moe", "granite_h", "nemotron_h"};

/* ---- drafts that are right, wrong, or both by turns
 * ------------------------------------------------------------------- */

typedef enum drafting { RIGHT, WRONG, BOTH } drafting;

/* Texts that requests give without drafts. */
typedef struct oracle {
    drafting kind;
    int32_t vocabulary;
    int32_t texts[SEQUENCES][ROOM];
    size_t lengths[SEQUENCES];
    size_t asked;
} oracle;

static size_t draft(void *context, const int32_t *tokens, size_t count, int32_t *drafts, size_t room) {
    oracle *o = context;
    size_t written = 0;
    o->asked++;
    for (int i = 0; i < SEQUENCES; i++) {
        const int32_t *text = o->texts[i];
        if (o->lengths[i] <= count || memcmp(text, tokens, count * sizeof *tokens) != 0) {
            continue;
        }
        for (; written < room && count + written < o->lengths[i]; written++) {
            const bool wrong = o->kind == WRONG || (o->kind == BOTH && (count + written) % 7 == 3);
            drafts[written] = (text[count + written] + wrong) % o->vocabulary;
        }
        return written;
    }
    return 0;
}

static sluice_engine_options options_of(oracle *o) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = device,
                                   .deterministic = true,
                                   .threads = 2,
                                   .chunk = 48,
                                   .sequences = SEQUENCES,
                                   .context = ROOM,
                                   .speculate = o ? SLUICE_SPECULATE_CALLER : SLUICE_SPECULATE_OFF,
                                   .drafts = o ? DRAFTS : 0,
                                   .draft_always = o != NULL,
                                   .draft = o ? draft : NULL,
                                   .draft_context = o};
}

static sluice_engine *start(sluice_model *model, oracle *o) {
    const sluice_engine_options options = options_of(o);
    return open_engine(model, &options);
}

static sluice_counters count(sluice_engine *engine) {
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    return counters;
}

static int32_t vocabulary_of(const sluice_model *model) {
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    return info.vocabulary;
}

/* ---- what requests give
 * ------------------------------------------------------------------------------------------------ */

typedef struct outcome {
    int32_t tokens[ROOM];
    float logprobs[ROOM];
    char text[8 * ROOM];
    size_t count, length;
    sluice_finish finish;
    int32_t stop, stop_token;
    size_t generated, drafted, accepted;
} outcome;

/* The rest of a request's events. */
static void take(sluice_request *request, outcome *into) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    memset(into, 0, sizeof *into);
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_TOKEN) {
            into->logprobs[into->count] = event.logprob;
            into->tokens[into->count++] = event.token;
        }
        assert_true(into->length + event.text_length < sizeof into->text);
        memcpy(into->text + into->length, event.text, event.text_length);
        into->length += event.text_length;
    } while (event.kind != SLUICE_EVENT_DONE);
    if (event.finish == SLUICE_FINISH_ERROR) {
        fail_msg("request: %s", event.error.message);
    }
    into->finish = event.finish;
    into->stop = event.stop;
    into->stop_token = event.stop_token;
    into->drafted = event.drafted_tokens;
    into->accepted = event.accepted_tokens;
    into->generated = event.generated_tokens;
    sluice_request_release(request);
}

static void must_agree(const outcome *got, const outcome *expected, const char *what) {
    assert_int_equal(got->count, got->generated);
    if (got->count != expected->count || got->length != expected->length ||
        memcmp(got->tokens, expected->tokens, got->count * sizeof *got->tokens) != 0 ||
        memcmp(got->text, expected->text, got->length) != 0 || got->finish != expected->finish ||
        got->stop != expected->stop || got->stop_token != expected->stop_token) {
        fail_msg("%s: another text than without drafts", what);
    }
    for (size_t i = 0; i < got->count; i++) {
        if (memcmp(&got->logprobs[i], &expected->logprobs[i], sizeof(float)) != 0) {
            fail_msg("%s: token %zu: log-probability %g, without drafts %g", what, i,
                     (double)got->logprobs[i], (double)expected->logprobs[i]);
        }
    }
}

/* Requests side by side, one of each kind. */
static void fill_requests(sluice_request_options *requests, int32_t prompts[SEQUENCES][32],
                          int32_t vocabulary) {
    for (int i = 0; i < SEQUENCES; i++) {
        for (int t = 0; t < 32; t++) {
            prompts[i][t] = (3 + i + t * (7 + i)) % vocabulary;
        }
        requests[i] = (sluice_request_options){.size = sizeof *requests,
                                               .tokens = prompts[i],
                                               .token_count = 20 + (size_t)i * 5,
                                               .generate = GENERATE,
                                               .ignore_eos = true,
                                               .no_text = true};
    }
    requests[1].temperature = 1;
    requests[1].seed = 77;
    requests[1].logprobs = true;
    requests[2].temperature = 0.8f;
    requests[2].seed = 5;
    requests[2].repetition_penalty = 1.3f;
    requests[2].presence_penalty = 0.4f;
    requests[2].penalty_tokens = 16;
    requests[2].dry_multiplier = 0.8f;
    requests[2].dry_allowed_length = 1;
}

static void run_all(sluice_engine *engine, const sluice_request_options *options, outcome *into) {
    sluice_sequence *sequences[SEQUENCES];
    sluice_request *requests[SEQUENCES];
    const sluice_request_options *each[SEQUENCES];
    sluice_error error;
    for (int i = 0; i < SEQUENCES; i++) {
        sequences[i] = open_sequence(engine);
        each[i] = &options[i];
    }
    must(sluice_submit_together(sequences, each, SEQUENCES, requests, &error), &error, "submit");
    for (int i = 0; i < SEQUENCES; i++) {
        take(requests[i], &into[i]);
        sluice_sequence_release(sequences[i]);
    }
}

static void learn(oracle *o, int i, const sluice_request_options *request, const outcome *said) {
    memcpy(o->texts[i], request->tokens, request->token_count * sizeof(int32_t));
    memcpy(o->texts[i] + request->token_count, said->tokens, said->count * sizeof(int32_t));
    o->lengths[i] = request->token_count + said->count;
}

/* A synthetic model, whose file is gone when it is open. */
static sluice_model *open_preset(const char *name, sluice_synth_head head) {
    char path[512];
    sluice_error error;
    snprintf(path, sizeof path, "%s/speculate-%s-%d.gguf", SLUICE_BINARY_DIR, name, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = name,
                                          .head = head,
                                          .type = "q8_0",
                                          .seed = 3,
                                          .width = 128,
                                          .feed_forward = 128,
                                          .vocabulary = 320};
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, name);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

/* One of `models`, or a synthetic one. */
static const char *name_of(size_t index) {
    const size_t files = sizeof models / sizeof *models;
    return index < files ? models[index] : presets[index - files];
}

static sluice_model *open_case(size_t index) {
    return index < sizeof models / sizeof *models ? open_model(name_of(index))
                                                  : open_preset(name_of(index), SLUICE_SYNTH_HEAD_PRESET);
}

static void texts_are_those_without_drafts(void **state) {
    (void)state;
    static oracle o;
    static outcome expected[SEQUENCES], got[SEQUENCES];
    for (size_t m = 0; m < (sizeof models + sizeof presets) / sizeof *models; m++) {
        const char *name = name_of(m);
        if (!strstr(name, of_model)) {
            continue;
        }
        sluice_model *model = open_case(m);
        int32_t prompts[SEQUENCES][32];
        sluice_request_options requests[SEQUENCES];
        o = (oracle){.vocabulary = vocabulary_of(model)};
        fill_requests(requests, prompts, o.vocabulary);
        sluice_engine *plain = start(model, NULL);
        run_all(plain, requests, expected);
        const uint64_t steps = count(plain).steps, rows = count(plain).rows;
        assert_int_equal(count(plain).drafted, 0);
        sluice_engine_destroy(plain);
        for (int i = 0; i < SEQUENCES; i++) {
            learn(&o, i, &requests[i], &expected[i]);
        }
        for (o.kind = RIGHT; o.kind <= BOTH; o.kind++) {
            sluice_engine *engine = start(model, &o);
            run_all(engine, requests, got);
            const sluice_counters counters = count(engine);
            for (int i = 0; i < SEQUENCES; i++) {
                must_agree(&got[i], &expected[i], name);
                assert_true(got[i].drafted > 0 && (got[i].accepted > 0) == (o.kind != WRONG));
            }
            assert_int_equal(counters.generated_tokens, SEQUENCES * GENERATE);
            /* No token is in two steps, whatever was refused in front of it. */
            if (counters.rows != rows + counters.drafted - counters.accepted) {
                fail_msg("%s: %d rows for %d, %d of %d drafts right", name, (int)counters.rows, (int)rows,
                         (int)counters.accepted, (int)counters.drafted);
            }
            assert_true(counters.drafted_at[0] > 0 && counters.accepted <= counters.drafted);
            if (o.kind == RIGHT) {
                assert_int_equal(counters.accepted, counters.drafted);
                assert_true(counters.steps < steps * 2 / 3);
            }
            sluice_engine_destroy(engine);
        }
        sluice_model_release(model);
    }
}

/* ---- where texts end
 * ---------------------------------------------------------------------------------------------------- */

static int32_t *tokens_of(sluice_model *model, const char *text, size_t *length) {
    int32_t *tokens;
    sluice_error error;
    must(sluice_tokenize(model, text, strlen(text), SLUICE_TOKENIZE_BOS, &tokens, length, &error), &error,
         "tokenize");
    return tokens;
}

/* One request with right drafts beside the same without; what they leave is gone on from. */
static void compare_one(sluice_model *model, const sluice_request_options *request, const char *what) {
    static oracle o;
    static outcome expected, got, again;
    o = (oracle){.vocabulary = vocabulary_of(model)};
    sluice_engine *engines[2] = {start(model, NULL), NULL};
    sluice_sequence *sequence = open_sequence(engines[0]);
    take(submit(sequence, request), &expected);
    learn(&o, 0, request, &expected);
    /* The text would go on: drafts reach past the end. */
    sluice_request_options longer = *request;
    longer.generate = expected.count + 2 * DRAFTS;
    longer.stop_count = longer.stop_token_count = 0;
    longer.grammar = NULL;
    longer.ignore_eos = true;
    sluice_sequence *other = open_sequence(engines[0]);
    take(submit(other, &longer), &got);
    if (memcmp(got.tokens, expected.tokens, expected.count * sizeof *got.tokens) == 0) {
        learn(&o, 0, request, &got);
    }
    sluice_sequence_release(other);
    const int32_t more[] = {7, 8, 9};
    const sluice_request_options next = {
        .size = sizeof next, .tokens = more, .token_count = 3, .generate = 10, .ignore_eos = true};
    const bool full = sluice_sequence_length(sequence) + 13 > ROOM;
    outcome after = {0};
    if (!full) {
        take(submit(sequence, &next), &after);
    }
    sluice_sequence_release(sequence);
    for (o.kind = RIGHT; o.kind <= BOTH; o.kind++) {
        engines[1] = start(model, &o);
        sequence = open_sequence(engines[1]);
        take(submit(sequence, request), &got);
        must_agree(&got, &expected, what);
        assert_true(o.kind == WRONG || got.accepted > 0);
        if (!full) {
            take(submit(sequence, &next), &again);
            must_agree(&again, &after, what);
        }
        sluice_sequence_release(sequence);
        sluice_engine_destroy(engines[1]);
    }
    sluice_engine_destroy(engines[0]);
}

/* Without drafts. */
static void say(sluice_model *model, const sluice_request_options *request, outcome *said) {
    sluice_engine *engine = start(model, NULL);
    sluice_sequence *sequence = open_sequence(engine);
    take(submit(sequence, request), said);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

static void a_recurrent_models_ends_are_ends(void **state) {
    (void)state;
    static outcome said;
    sluice_model *model = open_model(FIXTURE("qwen3_5"));
    const int32_t tokens[] = {5, 6, 7, 8};
    sluice_request_options request = {.size = sizeof request,
                                      .tokens = tokens,
                                      .token_count = 4,
                                      .generate = 70,
                                      .ignore_eos = true,
                                      .no_text = true};
    say(model, &request, &said);
    /* In front of a page's end, and behind it. */
    for (size_t at = 50; at < 70; at += 3) {
        request.stop_tokens = &said.tokens[at];
        request.stop_token_count = 1;
        compare_one(model, &request, "a recurrent model's stop token");
        request.stop_token_count = 0;
        request.generate = at;
        compare_one(model, &request, "a recurrent model's limit");
        request.generate = 70;
    }
    sluice_model_release(model);
}

static void ends_inside_drafts_are_ends(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    size_t length;
    int32_t *tokens = tokens_of(model, "Once upon a time there was a", &length);
    static outcome said;
    sluice_request_options request = {
        .size = sizeof request, .tokens = tokens, .token_count = length, .generate = 60, .ignore_eos = true};
    say(model, &request, &said);
    for (size_t generate = 17; generate <= 23; generate += 2) {
        request.generate = generate;
        compare_one(model, &request, "a limit of tokens");
    }
    request.generate = 60;
    for (size_t at = 10; at < 14; at += 2) {
        /* The stop text lies across tokens' ends. */
        char stop[8] = {0};
        memcpy(stop, said.text + 5 * at, 6);
        const char *stops[] = {stop};
        sluice_request_options stopped = request;
        stopped.stops = stops;
        stopped.stop_count = 1;
        compare_one(model, &stopped, stop);
        stopped = request;
        stopped.stop_tokens = &said.tokens[at];
        stopped.stop_token_count = 1;
        compare_one(model, &stopped, "a stop token");
        sluice_request_options ended = request;
        ended.ignore_eos = false;
        ended.minimum = at;
        ended.generate = 80;
        compare_one(model, &ended, "the end of the text");
    }
    request.generate = ROOM;
    compare_one(model, &request, "the end of the context");
    sluice_free(tokens);
    sluice_model_release(model);
}

/* One whose prompts end inside a thought. */
static sluice_model *thinking_model(void) {
    sluice_error error;
    sluice_model *model;
    const sluice_model_options options = {
        .size = sizeof options,
        .chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% "
                         "endfor %}<|im_start|>assistant\n<think>\n"};
    must(sluice_model_open_with(MINI, &options, &model, &error), &error, "template");
    return model;
}

static void grammars_and_thoughts_hold(void **state) {
    (void)state;
    sluice_model *model = thinking_model();
    static const char SCHEMA[] = "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", "
                                 "\"maxLength\": 12}, \"age\": {\"type\": \"integer\", \"maximum\": 120}, "
                                 "\"tags\": {\"type\": \"array\", \"items\": {\"enum\": [\"red\", "
                                 "\"green\"]}, \"maxItems\": 3}}, \"required\": [\"name\", \"age\", "
                                 "\"tags\"], \"additionalProperties\": false}";
    const sluice_grammar_options options[] = {
        {.size = sizeof *options,
         .kind = SLUICE_GRAMMAR_JSON_SCHEMA,
         .text = SCHEMA,
         .length = sizeof SCHEMA - 1},
        {.size = sizeof *options, .kind = SLUICE_GRAMMAR_REGEX, .text = "[a-z ]{40,60}!", .length = 14}};
    size_t length;
    int32_t *tokens = tokens_of(model, "Once upon a time", &length);
    for (int i = 0; i < 2; i++) {
        sluice_error error;
        sluice_grammar *grammar;
        must(sluice_grammar_create(model, &options[i], &grammar, &error), &error, "grammar");
        for (int sampled = 0; sampled < 4; sampled++) {
            const sluice_request_options request = {.size = sizeof request,
                                                    .tokens = tokens,
                                                    .token_count = length,
                                                    .generate = 150,
                                                    .temperature = sampled ? 1.0f : 0,
                                                    .seed = (uint64_t)sampled,
                                                    .presence_penalty = sampled == 2 ? 0.5f : 0,
                                                    .logprobs = sampled == 3,
                                                    .grammar = grammar};
            compare_one(model, &request, "a grammar");
        }
        sluice_grammar_release(grammar);
    }
    for (size_t budget = 8; budget < 14; budget += 2) {
        const sluice_request_options request = {.size = sizeof request,
                                                .tokens = tokens,
                                                .token_count = length,
                                                .generate = 60,
                                                .thought = SLUICE_THOUGHT_OPEN,
                                                .thought_tokens = budget};
        compare_one(model, &request, "a thought");
    }
    sluice_free(tokens);
    sluice_model_release(model);
}

/* ---- sources
 * ------------------------------------------------------------------------------------------------------------
 */

static const char REPEATING[] = "one two three four five six seven. one two three four five six seven. "
                                "one two three four five six seven. one two three four";

/* Text and counts of a request to an engine with such drafts. */
static void run_with(sluice_model *model, const sluice_engine_options *options,
                     const sluice_request_options *request, outcome *got) {
    sluice_engine *engine = open_engine(model, options);
    sluice_sequence *sequence = open_sequence(engine);
    take(submit(sequence, request), got);
    assert_int_equal(count(engine).drafted, got->drafted);
    assert_int_equal(count(engine).accepted, got->accepted);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

static void what_repeats_itself_is_drafted(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    static outcome expected, got;
    size_t length;
    int32_t *tokens = tokens_of(model, REPEATING, &length);
    const sluice_request_options request = {.size = sizeof request,
                                            .tokens = tokens,
                                            .token_count = length,
                                            .generate = 100,
                                            .repetition_penalty = 0.3f, /* so that it does repeat itself */
                                            .penalty_tokens = -1,
                                            .ignore_eos = true};
    sluice_engine_options options = options_of(NULL);
    run_with(model, &options, &request, &expected);
    assert_int_equal(expected.drafted, 0);
    options.speculate = SLUICE_SPECULATE_AUTO;
    options.draft_always = true;
    run_with(model, &options, &request, &got);
    must_agree(&got, &expected, "n-grams");
    assert_true(got.accepted > 40);
    options.draft_always = false;
    options.ngram_longest = options.ngram_shortest = 3;
    run_with(model, &options, &request, &got);
    must_agree(&got, &expected, "n-grams of 3");
    /* Requests may want fewer. */
    sluice_request_options none = request;
    none.drafts = -1;
    run_with(model, &options, &none, &got);
    must_agree(&got, &expected, "no drafts");
    assert_int_equal(got.drafted, 0);
    none.drafts = 1;
    options.draft_always = true;
    run_with(model, &options, &none, &got);
    must_agree(&got, &expected, "single drafts");
    assert_true(got.accepted > 20);
    none.drafts = 2;
    none.least_drafts = 3;
    run_with(model, &options, &none, &got);
    assert_int_equal(got.drafted, 0);
    sluice_free(tokens);
    sluice_model_release(model);
}

static void a_draft_model_drafts(void **state) {
    (void)state;
    static outcome expected[SEQUENCES], got[SEQUENCES];
    static const char *const paths[] = {MINI, FIXTURE("qwen3"), FIXTURE("qwen3_5")};
    for (size_t m = 0; m < sizeof paths / sizeof *paths; m++) {
        sluice_model *model = open_model(paths[m]), *small = open_model(paths[m]);
        int32_t prompts[SEQUENCES][32];
        sluice_request_options requests[SEQUENCES];
        fill_requests(requests, prompts, vocabulary_of(model));
        sluice_engine *plain = start(model, NULL);
        run_all(plain, requests, expected);
        sluice_engine_destroy(plain);
        sluice_engine_options options = options_of(NULL);
        options.speculate = SLUICE_SPECULATE_AUTO;
        options.draft_model = small;
        options.draft_always = true;
        sluice_engine *engine = open_engine(model, &options);
        for (int round = 0; round < 2; round++) {
            run_all(engine, requests, got);
            for (int i = 0; i < SEQUENCES; i++) {
                must_agree(&got[i], &expected[i], "a draft model");
                assert_true(got[i].drafted > 0);
            }
            /* It says what it says itself. */
            assert_int_equal(got[0].drafted, got[0].accepted);
        }
        sluice_engine_destroy(engine);
        sluice_model_release(small);
        sluice_model_release(model);
    }
}

/* The head of a model with random weights is nearly always wrong, that of a settled one right. The second
 * round goes on from pages that the first one left. */
static void a_models_own_head_drafts(void **state) {
    (void)state;
    static outcome expected[SEQUENCES], got[SEQUENCES];
    static const char *const names[] = {"qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe", "deepseek_v3"};
    static const char *const caches[] = {"f16", "q8_0"};
    for (size_t m = 0; m < 2 * sizeof names / sizeof *names; m++) {
        const bool agrees = m % 2;
        const char *name = names[m / 2];
        if (!strstr(name, of_model)) {
            continue;
        }
        sluice_model *model =
            open_preset(name, agrees ? SLUICE_SYNTH_HEAD_AGREEING : SLUICE_SYNTH_HEAD_RANDOM);
        int32_t prompts[SEQUENCES][32];
        sluice_request_options requests[SEQUENCES];
        fill_requests(requests, prompts, vocabulary_of(model));
        sluice_engine_options options = options_of(NULL);
        options.kv_type = caches[m / 2 % 2];
        sluice_engine *plain = open_engine(model, &options);
        run_all(plain, requests, expected);
        sluice_engine_destroy(plain);
        options.speculate = agrees ? SLUICE_SPECULATE_AUTO : SLUICE_SPECULATE_MTP;
        options.drafts = DRAFTS;
        options.draft_always = true;
        sluice_engine *engine = open_engine(model, &options);
        for (int round = 0; round < 2; round++) {
            run_all(engine, requests, got);
            for (int i = 0; i < SEQUENCES; i++) {
                must_agree(&got[i], &expected[i], name);
                assert_true(got[i].drafted > 0);
            }
            if (agrees) {
                assert_int_equal(got[0].drafted, got[0].accepted);
                assert_true(got[0].drafted > GENERATE / 2);
            }
        }
        assert_true(!agrees || count(engine).drafted > count(engine).accepted); /* what is drawn is not */
        assert_true(agrees || count(engine).accepted < count(engine).drafted / 4);
        options.draft_always = false;
        sluice_engine_destroy(engine);
        engine = open_engine(model, &options);
        run_all(engine, requests, got);
        for (int i = 0; i < SEQUENCES; i++) {
            must_agree(&got[i], &expected[i], name);
        }
        sluice_engine_destroy(engine);
        sluice_model_release(model);
    }
}

static uint64_t planned_bytes(sluice_model *model, const sluice_engine_options *options) {
    sluice_error error;
    char *text = NULL;
    must(sluice_plan_describe(model, options, SLUICE_PLAN_MEMORY, SLUICE_JSON, &text, &error), &error,
         "plan");
    const char *total = strstr(text, "\"total_bytes\":");
    assert_non_null(total);
    const uint64_t bytes = strtoull(strchr(total, ':') + 1, NULL, 10);
    sluice_free(text);
    return bytes;
}

/* The draft model's layers lie on the devices as the model's do: the memory is that of two such plans. */
static void a_draft_model_lies_on_the_same_devices(void **state) {
    (void)state;
    static outcome expected[SEQUENCES], got[SEQUENCES];
    static const int32_t layers[] = {1, 2, SLUICE_NO_LAYERS};
    sluice_model *model = open_model(MINI), *small = open_model(MINI);
    int32_t prompts[SEQUENCES][32];
    sluice_request_options requests[SEQUENCES];
    fill_requests(requests, prompts, vocabulary_of(model));
    sluice_engine_options on_host = options_of(NULL);
    on_host.device = "cpu"; /* another device has other bits */
    sluice_engine *plain = open_engine(model, &on_host);
    run_all(plain, requests, expected);
    sluice_engine_destroy(plain);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        sluice_engine_options options = options_of(NULL);
        options.device = "cpu+cpu";
        options.gpu_layers = layers[i];
        const uint64_t alone = planned_bytes(small, &options);
        options.speculate = SLUICE_SPECULATE_DRAFT;
        options.draft_model = small;
        options.draft_always = true;
        const uint64_t drafted = planned_bytes(model, &options);
        sluice_engine *engine = open_engine(model, &options);
        assert_int_equal(count(engine).memory, alone + drafted);
        run_all(engine, requests, got);
        for (int k = 0; k < SEQUENCES; k++) {
            must_agree(&got[k], &expected[k], "a draft model on two devices");
            assert_true(got[k].drafted > 0);
        }
        sluice_engine_destroy(engine);
    }
    /* A limit that either fits alone is too small for both. */
    sluice_engine_options options = options_of(NULL);
    sluice_engine *engine = NULL;
    sluice_error error;
    options.device = "cpu+cpu";
    options.gpu_layers = 1;
    options.cache_tokens = 1024;
    options.speculate = SLUICE_SPECULATE_DRAFT;
    options.draft_model = small;
    const uint64_t one = planned_bytes(model, &options);
    options.host_memory_limit = one;
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_LIMIT);
    options.host_memory_limit = 0;
    options.memory_limits[0] = (sluice_memory_limit){"cpu", one};
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_LIMIT);
    sluice_model_release(small);
    sluice_model_release(model);
}

static void requests_end_when_cancelled(void **state) {
    (void)state;
    static oracle o;
    static outcome got, expected;
    sluice_model *model = open_model(FIXTURE("qwen3_5"));
    o = (oracle){.vocabulary = vocabulary_of(model)};
    const int32_t tokens[] = {5, 6, 7, 8};
    sluice_request_options request = {.size = sizeof request,
                                      .tokens = tokens,
                                      .token_count = 4,
                                      .generate = 200,
                                      .ignore_eos = true,
                                      .no_text = true};
    sluice_engine *plain = start(model, NULL);
    sluice_sequence *sequence = open_sequence(plain);
    take(submit(sequence, &request), &expected);
    learn(&o, 0, &request, &expected);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(plain);
    o.kind = BOTH;
    sluice_engine *engine = start(model, &o);
    for (int round = 0; round < 20; round++) {
        sequence = open_sequence(engine);
        sluice_request *r = submit(sequence, &request);
        sluice_event event = {.size = sizeof event};
        sluice_error error;
        for (int i = 0; i < round; i++) {
            must(sluice_poll(r, -1, &event, &error), &error, "poll");
        }
        sluice_cancel(r);
        take(r, &got);
        /* What came is the text's beginning, and the sequence goes on from there. */
        const size_t length = sluice_sequence_length(sequence);
        assert_memory_equal(sluice_sequence_tokens(sequence), o.texts[0], length * sizeof(int32_t));
        if (got.finish == SLUICE_FINISH_CANCELLED && length < 204) {
            const sluice_request_options rest = {
                .size = sizeof rest, .generate = 204 - length, .ignore_eos = true, .no_text = true};
            take(submit(sequence, &rest), &got);
            assert_memory_equal(sluice_sequence_tokens(sequence), o.texts[0], 204 * sizeof(int32_t));
        }
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- failures
 * -----------------------------------------------------------------------------------------------------------
 */

static int live(sluice_model *model, sluice_error *error) {
    sluice_engine *engine = NULL;
    sluice_sequence *sequence = NULL;
    sluice_request *request = NULL;
    int32_t tokens[12];
    for (int32_t i = 0; i < 12; i++) {
        tokens[i] = 5 + i;
    }
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .threads = 1,
                                           .chunk = 16,
                                           .context = 64,
                                           .sequences = 1,
                                           .speculate = SLUICE_SPECULATE_DRAFT,
                                           .draft_model = model,
                                           .draft_always = true};
    const sluice_request_options o = {.size = sizeof o,
                                      .tokens = tokens,
                                      .token_count = 12,
                                      .generate = 12,
                                      .presence_penalty = 0.2f,
                                      .ignore_eos = true};
    int result = sluice_engine_create(model, &options, &engine, error);
    result = result ? result : sluice_sequence_create(engine, &sequence, error);
    result = result ? result : sluice_submit(sequence, &o, &request, error);
    sluice_event event = {.size = sizeof event};
    while (result == 0 && event.kind != SLUICE_EVENT_DONE) {
        result = sluice_poll(request, -1, &event, error);
    }
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return result;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    sluice_model *model = open_model(FIXTURE("qwen3"));
    sluice_error error = {0};
    must(live(model, &error), &error, "first");
    const uint64_t live_before = sl_alloc_live_bytes(), calls_before = sl_alloc_count();
    must(live(model, &error), &error, "second");
    const uint64_t calls = sl_alloc_count() - calls_before;
    uint64_t failed = 0;
    for (uint64_t n = 1; n <= calls; n++) {
        sl_alloc_fail_at(n);
        const int result = live(model, &error);
        sl_alloc_fail_at(0);
        failed += result != 0;
        assert_true(result == 0 || result == SLUICE_ERR_NOMEM);
        assert_int_equal(sl_alloc_live_bytes(), live_before);
    }
    assert_true(failed > 0);
    sluice_model_release(model);
}

static void refuse(sluice_model *model, sluice_engine_options options, int code, const char *words) {
    sluice_error error;
    sluice_engine *engine;
    options.size = sizeof options;
    options.device = "cpu";
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), code);
    if (!strstr(error.message, words)) {
        fail_msg("\"%s\" does not say \"%s\"", error.message, words);
    }
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI), *other = open_model(FIXTURE("qwen3"));
    refuse(model, (sluice_engine_options){.speculate = 77}, SLUICE_ERR_INVALID, "speculate");
    refuse(model, (sluice_engine_options){.speculate = SLUICE_SPECULATE_MTP}, SLUICE_ERR_UNSUPPORTED, "mtp");
    refuse(model, (sluice_engine_options){.speculate = SLUICE_SPECULATE_DRAFT}, SLUICE_ERR_INVALID,
           "draft_model");
    refuse(model, (sluice_engine_options){.speculate = SLUICE_SPECULATE_CALLER}, SLUICE_ERR_INVALID, "draft");
    refuse(model, (sluice_engine_options){.speculate = SLUICE_SPECULATE_AUTO, .drafts = SLUICE_DRAFTS + 1},
           SLUICE_ERR_INVALID, "drafts");
    refuse(
        model,
        (sluice_engine_options){.speculate = SLUICE_SPECULATE_NGRAM, .ngram_longest = 2, .ngram_shortest = 3},
        SLUICE_ERR_INVALID, "ngram");
    refuse(model, (sluice_engine_options){.speculate = SLUICE_SPECULATE_AUTO, .draft_model = other},
           SLUICE_ERR_INVALID, "vocabulary");
    sluice_model_release(other);
    sluice_model_release(model);
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        } else if (strcmp(argv[i], "--model") == 0) {
            of_model = argv[i + 1];
        }
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_without_drafts),
        cmocka_unit_test(ends_inside_drafts_are_ends),
        cmocka_unit_test(a_recurrent_models_ends_are_ends),
        cmocka_unit_test(grammars_and_thoughts_hold),
        cmocka_unit_test(what_repeats_itself_is_drafted),
        cmocka_unit_test(a_draft_model_drafts),
        cmocka_unit_test(a_models_own_head_drafts),
        cmocka_unit_test(a_draft_model_lies_on_the_same_devices),
        cmocka_unit_test(requests_end_when_cancelled),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
