/* Requests held to a grammar, through the public interface: what comes is in the grammar, whatever the
 * sampler, and whatever else runs. Regular expressions are judged by the C library's, JSON by jansson.
 *
 *     test_constrained [--device cuda:N] [--only TEST] */
#include "support/engine.h"
#include "support/sanitized.h"

#include "base/alloc.h"

#include <jansson.h>
#include <regex.h>
#include <stdio.h>
#include <unistd.h>

enum { SEQUENCES = 8, ROOM = 512 };

static sluice_model *model;
static const char *device = "cpu"; /* --device */

static int set_up(void **state) {
    (void)state;
    model = open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sluice_model_release(model);
    return 0;
}

static sluice_engine *start(int32_t sequences) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = device,
                                           .deterministic = true,
                                           .threads = 2,
                                           .chunk = 64,
                                           .sequences = sequences,
                                           .context = ROOM};
    return open_engine(model, &options);
}

static sluice_grammar *grammar_of(sluice_grammar_kind kind, const char *text) {
    sluice_error error;
    sluice_grammar *grammar;
    const sluice_grammar_options options = {
        .size = sizeof options, .kind = kind, .text = text, .length = text ? strlen(text) : 0};
    must(sluice_grammar_create(model, &options, &grammar, &error), &error, text ? text : "grammar");
    return grammar;
}

static const char SCHEMA[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, \"age\": "
    "{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 120}, \"tags\": {\"type\": \"array\", \"items\": "
    "{\"enum\": [\"red\", \"green\", \"blue\"]}, \"maxItems\": 3}}, \"required\": [\"name\", \"age\", "
    "\"tags\"], \"additionalProperties\": false}";

/* What SCHEMA says. */
static bool fits_schema(const char *text) {
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *tag;
    const json_t *age = json_object_get(root, "age"), *tags = json_object_get(root, "tags");
    const char *name = json_string_value(json_object_get(root, "name"));
    size_t index, characters = 0;
    for (const char *at = name; at && *at; at++) {
        characters += ((unsigned char)*at & 0xc0) != 0x80;
    }
    bool fits = json_object_size(root) == 3 && name && characters <= 12 && json_is_integer(age) &&
                json_integer_value(age) >= 3 && json_integer_value(age) <= 120 && json_is_array(tags) &&
                json_array_size(tags) <= 3;
    json_array_foreach(tags, index, tag) {
        const char *color = json_string_value(tag);
        fits = fits && color && (!strcmp(color, "red") || !strcmp(color, "green") || !strcmp(color, "blue"));
    }
    json_decref(root);
    return fits;
}

/* ---- one request ---- */

typedef struct answer {
    char text[32 * ROOM]; /* of the longest pieces */
    size_t length;
    int32_t tokens[ROOM];
    size_t count;
    sluice_finish finish;
    size_t reused;
} answer;

static sluice_request *ask(sluice_sequence *sequence, sluice_grammar *grammar, uint64_t seed,
                           float temperature) {
    sluice_error error;
    int32_t *tokens;
    size_t count;
    const char *messages =
        "[{\"role\": \"user\", \"content\": \"Tell me who lives in the house by the river, "
        "how old they are, and which colours they like best of all.\"}]";
    must(sluice_chat_tokens(model, messages, NULL, &tokens, &count, &error), &error, "prompt");
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = tokens,
                                            .token_count = count,
                                            .generate = 300,
                                            .temperature = temperature,
                                            .seed = seed,
                                            .grammar = grammar};
    sluice_request *request = submit(sequence, &options);
    sluice_free(tokens);
    return request;
}

static void take(sluice_request *request, answer *a) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    a->length = a->count = 0;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        assert_true(a->length + event.text_length < sizeof a->text);
        memcpy(a->text + a->length, event.text, event.text_length);
        a->length += event.text_length;
        if (event.kind == SLUICE_EVENT_TOKEN) {
            a->tokens[a->count++] = event.token;
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    if (event.finish == SLUICE_FINISH_ERROR) {
        fail_msg("request: %s", event.error.message);
    }
    a->text[a->length] = '\0';
    a->finish = event.finish;
    a->reused = event.reused_tokens;
    sluice_request_release(request);
}

static void run(sluice_engine *engine, sluice_grammar *grammar, uint64_t seed, float temperature, answer *a) {
    sluice_sequence *sequence = open_sequence(engine);
    take(ask(sequence, grammar, seed, temperature), a);
    sluice_sequence_release(sequence);
}

/* ---- tests ---- */

/* At a temperature at which the model writes anything. */
static void a_schema_holds(void **state) {
    (void)state;
    sluice_engine *engine = start(1);
    sluice_grammar *grammar = grammar_of(SLUICE_GRAMMAR_JSON_SCHEMA, SCHEMA);
    answer a;
    int other = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        run(engine, grammar, seed, 2, &a);
        if (a.finish != SLUICE_FINISH_EOS || !fits_schema(a.text)) {
            fail_msg("seed %d, finish %d: %s", (int)seed, (int)a.finish, a.text);
        }
        run(engine, NULL, seed, 2, &a);
        other += !fits_schema(a.text);
    }
    assert_int_equal(other, 12); /* without it nothing like that comes */
    run(engine, grammar, 0, 0, &a);
    assert_true(fits_schema(a.text));
    sluice_grammar_release(grammar);
    sluice_engine_destroy(engine);
}

static void other_kinds_hold(void **state) {
    static const struct {
        sluice_grammar_kind kind;
        const char *text, *pattern;
    } cases[] = {
        {SLUICE_GRAMMAR_REGEX, "(cat|dog)s? [0-9]{2,4}", "^(cat|dog)s? [0-9]{2,4}$"},
        {SLUICE_GRAMMAR_GBNF, "root ::= item (\", \" item){1,3}\nitem ::= [a-c]+ \"!\"",
         "^[a-c]+!(, [a-c]+!){1,3}$"},
        {SLUICE_GRAMMAR_GBNF, "root ::= \"(\" root \")\" | \"x\"", "^\\(*x\\)*$"},
        {SLUICE_GRAMMAR_JSON_OBJECT, NULL, "^\\{"},
    };
    (void)state;
    sluice_engine *engine = start(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_grammar *grammar = grammar_of(cases[i].kind, cases[i].text);
        regex_t pattern;
        assert_int_equal(regcomp(&pattern, cases[i].pattern, REG_EXTENDED), 0);
        for (uint64_t seed = 1; seed <= (SANITIZED ? 1 : 4); seed++) {
            answer a;
            run(engine, grammar, seed, 1.5f, &a);
            if (a.finish == SLUICE_FINISH_EOS && regexec(&pattern, a.text, 0, NULL, 0) != 0) {
                fail_msg("case %zu, seed %d: %s", i, (int)seed, a.text);
            }
            /* Grammars without a bound may run into the limit. */
            assert_true(a.finish == SLUICE_FINISH_EOS || (i >= 1 && a.finish == SLUICE_FINISH_LENGTH));
        }
        regfree(&pattern);
        sluice_grammar_release(grammar);
    }
    sluice_engine_destroy(engine);
}

/* Beside others, held and free, from a cached prompt, and after its sequence's memory was taken. */
static void a_text_is_its_own(void **state) {
    static answer alone[SEQUENCES], beside[SEQUENCES];
    sluice_grammar *grammars[SEQUENCES] = {NULL};
    (void)state;
    grammars[0] = grammar_of(SLUICE_GRAMMAR_JSON_SCHEMA, SCHEMA);
    grammars[1] = grammar_of(SLUICE_GRAMMAR_REGEX, "([a-z]+ ){5,9}[a-z]+\\.");
    grammars[3] = sluice_grammar_retain(grammars[0]);
    grammars[4] = grammar_of(SLUICE_GRAMMAR_GBNF, "root ::= [A-Z]{20,40}");
    grammars[6] = sluice_grammar_retain(grammars[1]);
    for (int i = 0; i < SEQUENCES; i++) {
        sluice_engine *engine = start(1);
        run(engine, grammars[i], (uint64_t)i, i % 2 ? 0.9f : 0, &alone[i]);
        sluice_engine_destroy(engine);
    }
    for (int cached = 0; cached < 2; cached++) {
        const sluice_engine_options options = {.size = sizeof options,
                                               .device = device,
                                               .deterministic = true,
                                               .threads = 2,
                                               .chunk = 64,
                                               .sequences = SEQUENCES,
                                               .context = ROOM,
                                               .cache_tokens = cached ? 0 : 4 * ROOM};
        sluice_engine *engine = open_engine(model, &options);
        sluice_sequence *sequences[SEQUENCES];
        sluice_request *requests[SEQUENCES];
        answer before;
        if (cached) {
            run(engine, NULL, 77, 1, &before);
        }
        for (int i = 0; i < SEQUENCES; i++) {
            sequences[i] = open_sequence(engine);
            requests[i] = ask(sequences[i], grammars[i], (uint64_t)i, i % 2 ? 0.9f : 0);
        }
        for (int i = 0; i < SEQUENCES; i++) {
            take(requests[i], &beside[i]);
            assert_string_equal(beside[i].text, alone[i].text);
            assert_int_equal(beside[i].count, alone[i].count);
            assert_memory_equal(beside[i].tokens, alone[i].tokens, alone[i].count * sizeof(int32_t));
            assert_true(!cached || beside[i].reused > 0);
            sluice_sequence_release(sequences[i]);
        }
        sluice_engine_destroy(engine);
    }
    for (int i = 0; i < SEQUENCES; i++) {
        sluice_grammar_release(grammars[i]);
    }
}

/* Bias, penalties, a minimum and other samplers beside a grammar; log-probabilities are those without it. */
static void other_options_go_with_it(void **state) {
    (void)state;
    sluice_engine *engine = start(1);
    sluice_grammar *grammar = grammar_of(SLUICE_GRAMMAR_REGEX, "(yes|no){1,3}");
    sluice_error error;
    int32_t *tokens;
    size_t count;
    must(sluice_tokenize(model, "Is it so? ", 10, SLUICE_TOKENIZE_BOS, &tokens, &count, &error), &error,
         "text");
    for (int32_t mirostat = 0; mirostat <= 2; mirostat++) {
        const sluice_request_options options = {.size = sizeof options,
                                                .tokens = tokens,
                                                .token_count = count,
                                                .generate = 40,
                                                .temperature = 1.5f,
                                                .seed = 5,
                                                .top_k = 3,
                                                .top_p = 0.5f,
                                                .min_p = 0.2f,
                                                .repetition_penalty = 1.3f,
                                                .mirostat = mirostat,
                                                .minimum = 30,
                                                .ignore_eos = true,
                                                .logprobs = true,
                                                .grammar = grammar};
        sluice_sequence *sequence = open_sequence(engine);
        answer a;
        take(submit(sequence, &options), &a);
        assert_int_equal(a.finish, SLUICE_FINISH_EOS);
        regex_t pattern;
        assert_int_equal(regcomp(&pattern, "^(yes|no){1,3}$", REG_EXTENDED), 0);
        if (regexec(&pattern, a.text, 0, NULL, 0) != 0) {
            fail_msg("mirostat %d: %s", (int)mirostat, a.text);
        }
        regfree(&pattern);
        sluice_sequence_release(sequence);
    }
    sluice_free(tokens);
    sluice_grammar_release(grammar);
    sluice_engine_destroy(engine);
}

static void what_cannot_be_held_is_refused(void **state) {
    static const struct {
        sluice_grammar_kind kind;
        const char *text, *words;
    } cases[] = {
        {SLUICE_GRAMMAR_JSON_SCHEMA, "{", ""},
        {SLUICE_GRAMMAR_JSON_SCHEMA, "{\"type\": \"nothing\"}", "type"},
        {SLUICE_GRAMMAR_JSON_SCHEMA, "{\"properties\": {\"a\": {\"enum\": []}}, \"required\": [\"a\"]}",
         "enum"},
        {SLUICE_GRAMMAR_GBNF, "root ::= other", "other"},
        {SLUICE_GRAMMAR_GBNF, "root ::= \"a", ""},
        {SLUICE_GRAMMAR_REGEX, "(a", ""},
        {SLUICE_GRAMMAR_REGEX, "(?<=a)b", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_error error = {0};
        sluice_grammar *grammar = (void *)&error;
        const sluice_grammar_options options = {.size = sizeof options,
                                                .kind = cases[i].kind,
                                                .text = cases[i].text,
                                                .length = strlen(cases[i].text)};
        if (sluice_grammar_create(model, &options, &grammar, &error) == 0) {
            fail_msg("%s: taken", cases[i].text);
        }
        assert_null(grammar);
        if (error.code == SLUICE_ERR_NOMEM || !error.message[0] || !strstr(error.message, cases[i].words)) {
            fail_msg("%s: %s", cases[i].text, error.message);
        }
    }
}

/* A grammar outlives nobody it needs, and belongs to its model. */
static void references_are_counted(void **state) {
    (void)state;
    sluice_engine *engine = start(1);
    sluice_sequence *sequence = open_sequence(engine);
    sluice_grammar *grammar = grammar_of(SLUICE_GRAMMAR_REGEX, "[a-z]{30,60}");
    sluice_request *request = ask(sequence, grammar, 1, 1);
    const uint64_t bytes = sluice_grammar_bytes(grammar);
    sluice_grammar *small = grammar_of(SLUICE_GRAMMAR_REGEX, "[a-z]{2}"),
                   *kept = sluice_grammar_retain(grammar);
    assert_true(sluice_grammar_bytes(small) > 0 && sluice_grammar_bytes(NULL) == 0);
    sluice_grammar *large = grammar_of(SLUICE_GRAMMAR_JSON_SCHEMA, SCHEMA);
    assert_true(sluice_grammar_bytes(large) > sluice_grammar_bytes(small));
    sluice_grammar_release(small);
    sluice_grammar_release(large);
    sluice_grammar_release(grammar); /* the request has its own */
    answer a;
    take(request, &a);
    assert_true(strspn(a.text, "abcdefghijklmnopqrstuvwxyz") == a.length && a.length >= 30);
    assert_true(sluice_grammar_bytes(kept) > bytes); /* masks stay with it */
    sluice_grammar_release(kept);
    sluice_model *own = model;
    sluice_error error;
    model = open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    grammar = grammar_of(SLUICE_GRAMMAR_JSON_OBJECT, NULL);
    sluice_model_release(model); /* the grammar has it */
    model = own;
    const int32_t token = 5;
    const sluice_request_options options = {
        .size = sizeof options, .tokens = &token, .token_count = 1, .generate = 1, .grammar = grammar};
    assert_int_equal(sluice_submit(sequence, &options, &request, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "another model"));
    sluice_grammar_release(grammar);
    sluice_grammar_release(NULL);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

/* ---- texts without a choice ---- */

static const char FIXED[] =
    "root ::= \"The inn on the hill is open from noon, and the \" (\"cook\" | \"guest\") \" has a "
    "room with a view of the whole valley.\" [!?]";

static uint64_t steps_of(sluice_engine *engine) {
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    return counters.steps;
}

/* Appended as rows of the next step, and so in fewer steps than tokens; the same tokens one by one, where
 * each has a log-probability. */
static void a_text_without_a_choice_takes_few_steps(void **state) {
    (void)state;
    sluice_engine *engine = start(1);
    sluice_grammar *grammar = grammar_of(SLUICE_GRAMMAR_GBNF, FIXED);
    static answer fast, slow;
    const int32_t prompt[] = {5, 6, 7, 8};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        sluice_request_options options = {.size = sizeof options,
                                          .tokens = prompt,
                                          .token_count = 4,
                                          .generate = 200,
                                          .temperature = 1,
                                          .seed = seed,
                                          .grammar = grammar};
        sluice_sequence *sequence = open_sequence(engine);
        uint64_t before = steps_of(engine);
        take(submit(sequence, &options), &fast);
        const uint64_t few = steps_of(engine) - before;
        sluice_sequence_release(sequence);
        options.logprobs = true;
        sequence = open_sequence(engine);
        before = steps_of(engine);
        take(submit(sequence, &options), &slow);
        const uint64_t many = steps_of(engine) - before;
        sluice_sequence_release(sequence);
        assert_string_equal(fast.text, slow.text);
        assert_int_equal(fast.count, slow.count);
        assert_memory_equal(fast.tokens, slow.tokens, fast.count * sizeof(int32_t));
        assert_int_equal(fast.finish, SLUICE_FINISH_EOS);
        assert_true(strncmp(fast.text, "The inn on the hill", 19) == 0 &&
                    strchr("!?", fast.text[fast.length - 1]));
        assert_true(many >= slow.count);
        assert_true(few < many / 2);
        /* As the tokenizer writes it, but where it may go on. */
        int32_t *tokens;
        size_t count;
        sluice_error error;
        must(sluice_tokenize(model, fast.text, 34, 0, &tokens, &count, &error), &error, "text");
        assert_memory_equal(tokens, fast.tokens, (count - 1) * sizeof *tokens);
        sluice_free(tokens);
        /* A limit cuts it anywhere. */
        options.logprobs = false;
        options.generate = 5;
        sequence = open_sequence(engine);
        take(submit(sequence, &options), &fast);
        sluice_sequence_release(sequence);
        assert_int_equal(fast.count, 5);
        assert_int_equal(fast.finish, SLUICE_FINISH_LENGTH);
        assert_memory_equal(fast.tokens, slow.tokens, 5 * sizeof(int32_t));
    }
    sluice_grammar_release(grammar);
    sluice_engine_destroy(engine);
}

/* ---- steps that follow each other ---- */

/* Small enough for an emulated GPU. Temperatures are above 1 for those who draw. */
static sluice_model *small_model(void) {
    char path[512];
    sluice_error error;
    snprintf(path, sizeof path, "%s/constrained-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = "qwen3",
                                          .type = "q8_0",
                                          .seed = 3,
                                          .layers = 2,
                                          .width = 64,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_size = 64,
                                          .feed_forward = 64,
                                          .vocabulary = 320};
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *made = open_model(path);
    unlink(path); /* the map stays */
    return made;
}

enum { MIXED = 5, MIXED_TOKENS = 20 };
static const char *const PATTERNS[MIXED] = {NULL, "[a-d]{12,18}", NULL, "([xyz][0-9]){4,9}", "[A-Z]+"};

static sluice_request *ask_mixed(sluice_sequence *sequence, sluice_grammar *grammar, int which) {
    int32_t prompt[8];
    for (int i = 0; i < 8; i++) {
        prompt[i] = 40 + 13 * which + i;
    }
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = prompt,
                                            .token_count = (size_t)(3 + which),
                                            .generate = MIXED_TOKENS,
                                            .temperature = which % 2 ? 1.5f : 0,
                                            .seed = (uint64_t)which,
                                            .ignore_eos = which == 2,
                                            .grammar = grammar};
    return submit(sequence, &options);
}

/* All of them at once (together), or one after the other. */
static void run_mixed(sluice_engine *engine, sluice_grammar *const *grammars, bool together,
                      answer *answers) {
    sluice_sequence *sequences[MIXED];
    sluice_request *requests[MIXED];
    for (int i = 0; i < MIXED; i++) {
        sequences[i] = open_sequence(engine);
        requests[i] = ask_mixed(sequences[i], grammars[i], i);
        if (!together) {
            take(requests[i], &answers[i]);
        }
    }
    for (int i = 0; i < MIXED; i++) {
        if (together) {
            take(requests[i], &answers[i]);
        }
        sluice_sequence_release(sequences[i]);
    }
}

static void check_mixed(sluice_grammar *const *grammars, const answer *answers, const answer *expected) {
    for (int i = 0; i < MIXED; i++) {
        assert_int_equal(answers[i].count, expected[i].count);
        assert_memory_equal(answers[i].tokens, expected[i].tokens, expected[i].count * sizeof(int32_t));
        assert_int_equal(answers[i].finish, expected[i].finish);
        if (grammars[i]) {
            char pattern[64];
            regex_t compiled;
            snprintf(pattern, sizeof pattern, "^%s$", PATTERNS[i]);
            assert_int_equal(regcomp(&compiled, pattern, REG_EXTENDED), 0);
            if (answers[i].finish == SLUICE_FINISH_EOS && regexec(&compiled, answers[i].text, 0, NULL, 0)) {
                fail_msg("%s: %s", pattern, answers[i].text);
            }
            regfree(&compiled);
        }
    }
}

/* Held and free requests beside each other, some of which end early, from graphs and eagerly: the tokens that
 * each gives alone. A GPU has two steps under way then, of which the second begins without its masks. */
static void steps_may_begin_without_masks(void **state) {
    static answer alone[MIXED], answers[MIXED];
    sluice_grammar *grammars[MIXED] = {NULL}, *none[MIXED] = {NULL};
    sluice_model *own = model;
    (void)state;
    model = small_model();
    for (int i = 0; i < MIXED; i++) {
        grammars[i] = PATTERNS[i] ? grammar_of(SLUICE_GRAMMAR_REGEX, PATTERNS[i]) : NULL;
    }
    for (int eager = 0; eager < 2; eager++) {
        const sluice_engine_options options = {.size = sizeof options,
                                               .device = device,
                                               .threads = 2,
                                               .chunk = 16,
                                               .sequences = MIXED,
                                               .context = 64,
                                               .deterministic = true,
                                               .no_prefix_reuse = true,
                                               .no_graphs = eager};
        const bool graphs = strncmp(device, "cuda", 4) == 0 && !eager;
        sluice_engine *engine = open_engine(model, &options);
        sluice_counters free_steps = {.size = sizeof free_steps}, counters = {.size = sizeof counters};
        run_mixed(engine, none, true, answers);
        run_mixed(engine, none, false, answers);
        sluice_engine_get_counters(engine, &free_steps);
        run_mixed(engine, grammars, false, eager ? answers : alone);
        check_mixed(grammars, eager ? answers : alone, alone);
        for (int round = 0; round < 2; round++) {
            run_mixed(engine, grammars, true, answers);
            check_mixed(grammars, answers, alone);
        }
        sluice_engine_get_counters(engine, &counters);
        assert_int_equal(counters.failed_captures, 0);
        /* What comes before the masks is captured apart from whole steps. */
        assert_int_equal(counters.captured_buckets > free_steps.captured_buckets, graphs);
        assert_int_equal(counters.replayed_steps > free_steps.replayed_steps, graphs);
        sluice_engine_destroy(engine);
    }
    for (int i = 0; i < MIXED; i++) {
        sluice_grammar_release(grammars[i]);
    }
    sluice_model_release(model);
    model = own;
}

/* ---- many at once ---- */

enum { MANY = 32 };

static sluice_request *ask_many(sluice_sequence *sequence, sluice_grammar *const *kinds, int which) {
    const int32_t prompt[] = {5 + which, 40, 90 + which % 7};
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = prompt,
                                            .token_count = 3,
                                            .generate = 24,
                                            .temperature = which % 3 ? 1.2f : 0,
                                            .seed = (uint64_t)which,
                                            .grammar = kinds[which % 3]};
    return submit(sequence, &options);
}

/* False: it ended with an error. A poll that finds no memory loses nothing: the next one gives the event. */
static bool take_or_fail(sluice_request *request, answer *a) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    a->count = 0;
    do {
        event.kind = SLUICE_EVENT_NONE;
        const int code = sluice_poll(request, -1, &event, &error);
        if (code != SLUICE_ERR_NOMEM) {
            must(code, &error, "poll");
        }
        if (code == 0 && event.kind == SLUICE_EVENT_TOKEN) {
            a->tokens[a->count++] = event.token;
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    sluice_request_release(request);
    return event.finish != SLUICE_FINISH_ERROR;
}

/* How many fail when the n-th allocation after they were submitted does; the others give what they do alone.
 */
static int run_many(sluice_engine *engine, sluice_grammar *const *kinds, const answer *alone, uint64_t nth) {
    static answer a;
    sluice_sequence *sequences[MANY];
    sluice_request *requests[MANY];
    int failed = 0;
    for (int i = 0; i < MANY; i++) {
        sequences[i] = open_sequence(engine);
    }
    for (int i = 0; i < MANY; i++) {
        requests[i] = ask_many(sequences[i], kinds, i);
    }
    sl_alloc_fail_at(nth);
    for (int i = 0; i < MANY; i++) {
        const bool whole = take_or_fail(requests[i], &a);
        failed += !whole;
        assert_true(whole ? a.count == alone[i].count : a.count <= alone[i].count);
        assert_memory_equal(a.tokens, alone[i].tokens, a.count * sizeof(int32_t));
    }
    sl_alloc_fail_at(0);
    for (int i = 0; i < MANY; i++) {
        sluice_sequence_release(sequences[i]);
    }
    return failed;
}

/* A matcher that finds no memory ends its own request; 31 neighbours, held and free, go on. */
static void others_go_on_beside_one_that_fails(void **state) {
    static answer alone[MANY];
    sluice_model *own = model;
    int failed = 0;
    (void)state;
    model = small_model();
    for (uint64_t nth = 0; nth <= 40; nth += nth < 10 ? 1 : 10) {
        /* New each time: masks that were made once need no memory. */
        sluice_grammar *kinds[] = {grammar_of(SLUICE_GRAMMAR_REGEX, "([a-z]{1,5} ){3,9}[A-Z]+"), NULL,
                                   grammar_of(SLUICE_GRAMMAR_GBNF, "root ::= \"x\" | \"(\" root \")\"")};
        const sluice_engine_options options = {.size = sizeof options,
                                               .device = "cpu",
                                               .threads = 2,
                                               .chunk = 64,
                                               .sequences = MANY,
                                               .context = 64,
                                               .no_prefix_reuse = true};
        sluice_engine *engine = open_engine(model, &options);
        for (int i = 0; i < MANY && nth == 0; i++) {
            sluice_sequence *sequence = open_sequence(engine);
            assert_true(take_or_fail(ask_many(sequence, kinds, i), &alone[i]));
            sluice_sequence_release(sequence);
        }
        const int fallen = run_many(engine, kinds, alone, nth);
        assert_in_range(fallen, 0, nth > 0);
        failed += fallen;
        sluice_engine_destroy(engine);
        sluice_grammar_release(kinds[0]);
        sluice_grammar_release(kinds[2]);
    }
    assert_true(failed > 0);
    sluice_model_release(model);
    model = own;
}

/* Every tier of the CPU's kernels; under a sanitizer those that have instructions of their own for eight
 * bits. */
static void tiers_give_one_text(void **state) {
    static answer first, a;
    static const char *const tiers[] = {"plain", "avx2", "avxvnni", "avx512", "amx"};
    (void)state;
    sluice_grammar *grammar = grammar_of(SLUICE_GRAMMAR_JSON_SCHEMA, SCHEMA);
    const size_t from = SANITIZED ? 2 : 0;
    bool ran = false;
    for (size_t i = from; i < sizeof tiers / sizeof *tiers; i++) {
        const sluice_engine_options options = {.size = sizeof options,
                                               .device = "cpu",
                                               .isa = tiers[i],
                                               .threads = 2,
                                               .chunk = 64,
                                               .sequences = 1,
                                               .context = ROOM};
        sluice_engine *engine;
        sluice_error error;
        if (sluice_engine_create(model, &options, &engine, &error)) {
            printf("%s: %s\n", tiers[i], error.message); /* this machine has it not */
            continue;
        }
        run(engine, grammar, 1, 0, ran ? &a : &first);
        assert_string_equal(ran ? a.text : first.text, first.text);
        assert_true(fits_schema(first.text));
        ran = true;
        sluice_engine_destroy(engine);
    }
    sluice_grammar_release(grammar);
}

/* ---- thoughts ---- */

/* A template whose prompt ends inside a thought, or not. */
static sluice_model *thinking_model(bool open) {
    sluice_error error;
    sluice_model *opened;
    const sluice_model_options options = {
        .size = sizeof options,
        .chat_template =
            open ? "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% "
                   "endfor %}<|im_start|>assistant\n<think>\n"
                 : "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] "
                   "}}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"};
    must(sluice_model_open_with(SLUICE_SOURCE_DIR "/models/mini.gguf", &options, &opened, &error), &error,
         "template");
    return opened;
}

static void answer_in_time(sluice_engine *engine, sluice_grammar *grammar, sluice_thought thought,
                           size_t tokens, answer *a) {
    const int32_t prompt[] = {5, 6, 7, 8};
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = prompt,
                                            .token_count = 4,
                                            .generate = 200,
                                            .temperature = 1.5f,
                                            .seed = 3,
                                            .ignore_eos = !grammar,
                                            .grammar = grammar,
                                            .thought = thought,
                                            .thought_tokens = tokens};
    sluice_sequence *sequence = open_sequence(engine);
    take(submit(sequence, &options), a);
    sluice_sequence_release(sequence);
}

/* At the bound the mark comes, and behind it what the grammar says. */
static void a_thought_is_closed_in_time(void **state) {
    sluice_model *own = model;
    (void)state;
    model = thinking_model(true);
    sluice_engine *engine = start(2);
    sluice_error error;
    sluice_grammar *grammar;
    const sluice_grammar_options options = {.size = sizeof options,
                                            .kind = SLUICE_GRAMMAR_REGEX,
                                            .text = "[A-Z]{3,8}",
                                            .length = 10,
                                            .thought = SLUICE_THOUGHT_OPEN};
    must(sluice_grammar_create(model, &options, &grammar, &error), &error, "grammar");
    const size_t bounds[] = {0, 1, 7, 40};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        static answer a, free_text;
        answer_in_time(engine, NULL, SLUICE_THOUGHT_OPEN, bounds[i], &a);
        answer_in_time(engine, NULL, SLUICE_THOUGHT_NONE, 0, &free_text);
        assert_null(strstr(free_text.text, "</think>")); /* by itself the model never says it */
        assert_memory_equal(a.tokens, free_text.tokens, bounds[i] * sizeof(int32_t));
        int32_t *mark;
        size_t count;
        must(sluice_tokenize(model, "\n</think>\n\n", 11, SLUICE_TOKENIZE_SPECIAL, &mark, &count, &error),
             &error, "mark");
        assert_true(a.count >= bounds[i] + count);
        assert_memory_equal(a.tokens + bounds[i], mark, count * sizeof *mark);
        answer_in_time(engine, grammar, SLUICE_THOUGHT_OPEN, bounds[i], &a);
        const char *close = strstr(a.text, "</think>");
        assert_non_null(close);
        assert_memory_equal(a.tokens + bounds[i], mark, count * sizeof *mark);
        sluice_free(mark);
        assert_int_equal(a.finish, SLUICE_FINISH_EOS);
        const size_t letters = strspn(close + 10, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        assert_true(letters >= 3 && letters <= 8 && close[10 + letters] == '\0');
    }
    sluice_grammar_release(grammar);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    model = own;
}

/* Where none was opened, a bound changes nothing, and a grammar holds at once or behind a thought. */
static void a_thought_may_be_left_out(void **state) {
    sluice_model *own = model;
    (void)state;
    model = thinking_model(false);
    sluice_engine *engine = start(2);
    sluice_error error;
    sluice_grammar *grammar;
    static answer bounded, free_text;
    answer_in_time(engine, NULL, SLUICE_THOUGHT_MAY, 2, &bounded);
    answer_in_time(engine, NULL, SLUICE_THOUGHT_NONE, 0, &free_text);
    assert_string_equal(bounded.text, free_text.text);
    const sluice_grammar_options options = {.size = sizeof options,
                                            .kind = SLUICE_GRAMMAR_REGEX,
                                            .text = "[A-Z]{3,8}",
                                            .length = 10,
                                            .thought = SLUICE_THOUGHT_MAY};
    must(sluice_grammar_create(model, &options, &grammar, &error), &error, "grammar");
    answer_in_time(engine, grammar, SLUICE_THOUGHT_MAY, 20, &bounded);
    const char *close = strstr(bounded.text, "</think>");
    assert_true(!close == (bounded.text[0] != '<'));
    const char *word = close ? close + strspn(close + 8, "\n") + 8 : bounded.text;
    assert_true(strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == strlen(word) && strlen(word) >= 3);
    sluice_grammar_release(grammar);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    model = own;
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        }
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_holds),
        cmocka_unit_test(other_kinds_hold),
        cmocka_unit_test(a_text_is_its_own),
        cmocka_unit_test(other_options_go_with_it),
        cmocka_unit_test(what_cannot_be_held_is_refused),
        cmocka_unit_test(references_are_counted),
        cmocka_unit_test(a_text_without_a_choice_takes_few_steps),
        cmocka_unit_test(steps_may_begin_without_masks),
        cmocka_unit_test(others_go_on_beside_one_that_fails),
        cmocka_unit_test(tiers_give_one_text),
        cmocka_unit_test(a_thought_is_closed_in_time),
        cmocka_unit_test(a_thought_may_be_left_out),
    };
    return cmocka_run_group_tests_name("constrained", tests, set_up, tear_down);
}
