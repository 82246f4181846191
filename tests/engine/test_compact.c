/* Caches that keep a part of long prompts, on real models: with full attention, windows, layers that share
 * their cache, sinks, latent attention and recurrent state. What is kept is checked against its definition in
 * tests/kernels; here that it depends on requests alone, and on nothing that happens beside or before. */
#include "support/engine.h"
#include "support/sanitized.h"

#include <stdio.h>
#include <unistd.h>

enum { CONTEXT = 448, BUDGET = 128, WINDOW = 32, MOST = 512 };

/* NULL: the small model with a vocabulary of its own. */
static const char *const families[] = {NULL, "gemma3", "qwen3_5", "gemma4", "gpt_oss", "deepseek_v2"};

static sluice_model *model_of(const char *family) {
    if (!family) {
        return open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    }
    char path[512];
    snprintf(path, sizeof path, "%s/compact-%s-%d.gguf", SLUICE_BINARY_DIR, family, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options, .preset = family, .seed = 3};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static size_t vocabulary_of(const sluice_model *model) {
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    return (size_t)info.vocabulary;
}

static const char *device = "cpu";

/* One that reuses nothing, and whose results do not depend on how steps are cut. */
static sluice_engine_options usual(int32_t chunk, int32_t budget) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = device,
                                   .deterministic = true,
                                   .threads = 1,
                                   .chunk = chunk,
                                   .context = CONTEXT,
                                   .sequences = 1,
                                   .no_prefix_reuse = true,
                                   .kv_budget = budget,
                                   .kv_window = WINDOW};
}

static int32_t token_of(int32_t text, int32_t i) {
    return 3 + (int32_t)((uint32_t)(i * 7919 + text * 104729) % 90);
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * 1099511628211u; /* FNV-1a */
    }
    return hash;
}

/* ---- one request */

typedef struct turn {
    sluice_sequence *sequence;
    int32_t text, first, count; /* tokens that it appends */
    size_t generate;
    uint64_t first_row, all; /* hashes of logits, and of the tokens */
    size_t reused;
    sluice_request *request;
} turn;

static void begin_turn(turn *t) {
    int32_t tokens[MOST];
    for (int32_t i = 0; i < t->count; i++) {
        tokens[i] = token_of(t->text, t->first + i);
    }
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = tokens,
                                            .token_count = (size_t)t->count,
                                            .generate = t->generate,
                                            .ignore_eos = true,
                                            .no_text = true,
                                            .logits = SLUICE_LOGITS_LAST};
    t->request = submit(t->sequence, &options);
}

static void end_turn(turn *t, size_t vocabulary) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    do {
        must(sluice_poll(t->request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_LOGITS) {
            const size_t bytes = event.rows * vocabulary * sizeof(float);
            t->first_row = t->first_row ? t->first_row : mix(1, event.logits, bytes);
            t->all = mix(t->all, event.logits, bytes);
        } else if (event.kind == SLUICE_EVENT_TOKEN) {
            t->all = mix(t->all, &event.token, sizeof event.token);
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    if (event.finish == SLUICE_FINISH_ERROR) {
        fail_msg("request: %s", event.error.message);
    }
    t->reused = event.reused_tokens;
    sluice_request_release(t->request);
}

static turn take_turn(sluice_sequence *sequence, turn t, size_t vocabulary) {
    t.sequence = sequence;
    begin_turn(&t);
    end_turn(&t, vocabulary);
    return t;
}

static uint64_t used_tokens(sluice_engine *engine) {
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    return counters.cache_tokens_used;
}

/* ---- tests */

/* As large as the prompt: nothing is dropped. Smaller: the prompt's own logits are those of all of it, what
 * follows is not, and the pages of the rest are given back. */
static void prompts_are_read_whole_and_kept_in_part(void **state) {
    enum { PROMPT = 300, GENERATED = 12 };
    sluice_model *model = model_of(*state);
    const size_t vocabulary = vocabulary_of(model);
    const int32_t budgets[] = {0, PROMPT, BUDGET};
    turn turns[3];
    uint64_t used[3];
    for (int i = 0; i < 3; i++) {
        const sluice_engine_options options = usual(96, budgets[i]);
        sluice_engine *engine = open_engine(model, &options);
        sluice_sequence *sequence = open_sequence(engine);
        turns[i] = take_turn(sequence, (turn){.count = PROMPT, .generate = GENERATED}, vocabulary);
        used[i] = used_tokens(engine);
        sluice_sequence_release(sequence);
        sluice_engine_destroy(engine);
    }
    assert_true(turns[1].all == turns[0].all);
    assert_true(turns[2].first_row == turns[0].first_row);
    assert_true(turns[2].all != turns[0].all);
    assert_int_equal(used[0], (PROMPT + GENERATED - 1 + 63) / 64 * 64);
    assert_int_equal(used[1], used[0]);
    assert_int_equal(used[2], (BUDGET + GENERATED - 1 + 63) / 64 * 64);
    sluice_model_release(model);
}

/* Four conversations: prompts that begin alike, turns long and short, forks, and rollbacks to before and
 * behind the place where something was dropped. Two at a time where the engine takes several. */
typedef struct happened {
    uint64_t reused, preemptions;
} happened;

static uint64_t converse(sluice_model *model, const sluice_engine_options *options, happened *what) {
    enum { SPEAKERS = 4, ROUNDS = 3 };
    static const int32_t counts[ROUNDS][SPEAKERS] = {{300, 200, 310, 140}, {50, 10, 20, 33}, {5, 40, 32, 60}};
    sluice_engine *engine = open_engine(model, options);
    const size_t vocabulary = vocabulary_of(model);
    sluice_sequence *sequences[SPEAKERS];
    uint64_t hash = 1;
    sluice_error error;
    *what = (happened){0};
    for (int i = 0; i < SPEAKERS; i++) {
        sequences[i] = open_sequence(engine);
    }
    for (int round = 0; round < ROUNDS; round++) {
        turn turns[SPEAKERS];
        if (round == 2) {
            /* Into what was dropped / into its window / behind it; and one goes on as another. */
            const int32_t to[] = {150, 195, 312};
            for (int i = 0; i < 3; i++) {
                must(sluice_sequence_rollback(sequences[i], (size_t)to[i], &error), &error, "rollback");
            }
            sluice_sequence_release(sequences[3]);
            must(sluice_sequence_fork(sequences[2], &sequences[3], &error), &error, "fork");
        }
        for (int i = 0; i < SPEAKERS; i++) {
            turns[i] = (turn){.sequence = sequences[i],
                              .text = round * SPEAKERS + (round == 0 ? 0 : i),
                              .count = counts[round][i],
                              .generate = 5};
            begin_turn(&turns[i]);
            if (i % 2 == 1) {
                end_turn(&turns[i - 1], vocabulary);
                end_turn(&turns[i], vocabulary);
            }
        }
        for (int i = 0; i < SPEAKERS; i++) {
            hash = mix(hash, &turns[i].all, sizeof turns[i].all);
            what->reused += turns[i].reused;
        }
    }
    for (int i = 0; i < SPEAKERS; i++) {
        sluice_sequence_release(sequences[i]);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    what->preemptions = counters.preemptions;
    sluice_engine_destroy(engine);
    return hash;
}

static void what_is_kept_depends_on_requests_alone(void **state) {
    const char *family = *state;
    if (SANITIZED && (!family || strcmp(family, "qwen3_5") != 0)) {
        skip(); /* one of them has all paths: memory and order are what sanitizers see */
    }
    sluice_model *model = model_of(*state);
    sluice_engine_options options = usual(512, BUDGET);
    happened what;
    const uint64_t expected = converse(model, &options, &what);
    assert_int_equal(what.reused, 0);
    for (int i = 0; i < 3; i++) {
        options = usual((int32_t[]){64, 7, 100}[i], BUDGET);
        options.sequences = 1 + i;
        options.threads = 1 + i % 2;
        assert_true(converse(model, &options, &what) == expected);
    }
    /* Beginnings that are shared, of which compacted pages are none. */
    options = usual(96, BUDGET);
    options.sequences = 4;
    options.no_prefix_reuse = false;
    assert_true(converse(model, &options, &what) == expected);
    assert_true(what.reused > 100);
    /* Room for one conversation and what is kept of it, so that others lose what they have. */
    options.no_prefix_reuse = true;
    options.cache_tokens = CONTEXT + BUDGET;
    assert_true(converse(model, &options, &what) == expected);
    assert_true(what.preemptions > 0);
    options.no_prefix_reuse = false;
    assert_true(converse(model, &options, &what) == expected);
    options = usual(512, 0);
    assert_true(converse(model, &options, &what) != expected);
    sluice_model_release(model);
}

/* The same prompt again: all is taken over but the rows that choose what is kept. */
static void prompts_are_reused_up_to_their_window(void **state) {
    enum { PROMPT = 300 };
    sluice_model *model = model_of(*state);
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine_options options = usual(96, BUDGET);
    options.no_prefix_reuse = false;
    sluice_engine *engine = open_engine(model, &options);
    turn turns[2];
    for (int i = 0; i < 2; i++) {
        sluice_sequence *sequence = open_sequence(engine);
        turns[i] = take_turn(sequence, (turn){.count = PROMPT, .generate = 8}, vocabulary);
        sluice_sequence_release(sequence);
    }
    assert_int_equal(turns[0].reused, 0);
    assert_int_equal(turns[1].reused, PROMPT - WINDOW);
    assert_true(turns[0].all == turns[1].all);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* Parts on several devices compact their own layers. */
static void several_devices_keep_the_same(void **state) {
    sluice_model *model = model_of(*state);
    happened what;
    sluice_engine_options options = usual(64, BUDGET);
    const uint64_t expected = converse(model, &options, &what);
    const bool cpu = strcmp(device, "cpu") == 0;
    options.device = cpu ? "cpu+cpu" : "cuda+cpu";
    /* A device of another kind has other bits. */
    const uint64_t got = converse(model, &options, &what);
    assert_true(!cpu || got == expected);
    sluice_model_release(model);
}

static void refuse(sluice_model *model, const sluice_engine_options *options, const char *text) {
    sluice_error error;
    sluice_engine *engine;
    assert_int_not_equal(sluice_engine_create(model, options, &engine, &error), 0);
    assert_non_null(strstr(error.message, text));
}

static void budgets_are_checked(void **state) {
    (void)state;
    sluice_model *model = model_of(NULL);
    sluice_engine_options options = usual(64, WINDOW);
    refuse(model, &options, "kv_budget 32 must be more than kv_window 32, and kv_pool 7 odd");
    options = usual(64, BUDGET);
    options.kv_pool = 4;
    refuse(model, &options, "kv_pool 4 odd");
    options = usual(64, -1);
    refuse(model, &options, "kv_budget -1 is not in 1 to");
    options = usual(64, BUDGET);
    options.kv_window = -1;
    refuse(model, &options, "kv_window -1 is not in 1 to");
    options = usual(64, BUDGET);
    options.embeddings = true;
    refuse(model, &options, "kv_budget: for texts that are generated, this plan makes vectors");
    options = usual(64, BUDGET);
    options.device = "cpu";
    options.observe = true;
    refuse(model, &options, "kv_budget: for texts that are generated, this plan observes");
    sluice_model_release(model);
}

/* test_compact [--device cpu|cuda|cuda:N] [--only PATTERN] */
int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else {
            cmocka_set_test_filter(argv[i + 1]);
        }
    }
#define FOR_FAMILY(test, which, name)                                                                        \
    { #test ": " name, test, NULL, NULL, (void *)(size_t)families[which] }
#define FOR_FAMILIES(test)                                                                                   \
    FOR_FAMILY(test, 0, "mini"), FOR_FAMILY(test, 1, "gemma3"), FOR_FAMILY(test, 2, "qwen3_5"),              \
        FOR_FAMILY(test, 3, "gemma4"), FOR_FAMILY(test, 4, "gpt_oss"), FOR_FAMILY(test, 5, "deepseek_v2")
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_are_checked),
        FOR_FAMILIES(prompts_are_read_whole_and_kept_in_part),
        FOR_FAMILIES(what_is_kept_depends_on_requests_alone),
        FOR_FAMILIES(prompts_are_reused_up_to_their_window),
        FOR_FAMILY(several_devices_keep_the_same, 1, "gemma3"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
