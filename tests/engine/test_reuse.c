/* What is reused between sequences, on real models with full attention, windows and recurrent state: how
 * much, and that nothing of it shows in tokens or logits. */
#include "support/engine.h"
#include "support/sanitized.h"

#include <stdio.h>
#include <unistd.h>

enum { CONTEXT = 512, MOST = 1024 };

/* NULL: the small model with a vocabulary of its own. */
static const char *const families[] = {NULL, "gemma3", "qwen3_5"};

static bool is_recurrent(const char *family) {
    return family && strcmp(family, "qwen3_5") == 0;
}

static sluice_model *model_of(const char *family) {
    if (!family) {
        return open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    }
    char path[512];
    snprintf(path, sizeof path, "%s/reuse-%s-%d.gguf", SLUICE_BINARY_DIR, family, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = family,
                                          .seed = 3,
                                          .width = 256,
                                          .feed_forward = 256,
                                          .vocabulary = 384};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static sluice_engine *engine_of(sluice_model *model, int32_t sequences, bool reuse) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .threads = 1,
                                           .chunk = 96,
                                           .context = CONTEXT,
                                           .sequences = sequences,
                                           .no_prefix_reuse = !reuse};
    return open_engine(model, &options);
}

static int32_t token_of(int32_t text, int32_t i) {
    return 3 + (int32_t)((uint32_t)(i * 7919 + text * 104729) % 90);
}

/* ---- one request, all of it
 * -------------------------------------------------------------------------------------------- */

typedef struct answer {
    int32_t tokens[MOST]; /* the sequence's, prompt included */
    size_t count;
    uint64_t logits; /* of all sampled rows, hashed */
    sluice_event done;
} answer;

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * 1099511628211u; /* FNV-1a */
    }
    return hash;
}

/* Appends the generated tokens; releases the request. */
static void finish_answer(sluice_request *request, size_t vocabulary, answer *a) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_LOGITS) {
            a->logits = mix(a->logits, event.logits, event.rows * vocabulary * sizeof(float));
        } else if (event.kind == SLUICE_EVENT_TOKEN) {
            a->tokens[a->count++] = event.token;
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    a->done = event;
    sluice_request_release(request);
}

static sluice_request_options options_of(const answer *a, size_t from, size_t generate) {
    return (sluice_request_options){.size = sizeof(sluice_request_options),
                                    .tokens = a->tokens + from,
                                    .token_count = a->count - from,
                                    .generate = generate,
                                    .ignore_eos = true,
                                    .no_text = true,
                                    .logits = SLUICE_LOGITS_LAST};
}

static size_t vocabulary_of(const sluice_model *model) {
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    return (size_t)info.vocabulary;
}

/* A new sequence reads all of `a` and goes on. */
static void answer_anew(sluice_engine *engine, size_t vocabulary, answer *a,
                        sluice_request_options *options) {
    sluice_sequence *sequence = open_sequence(engine);
    finish_answer(submit(sequence, options), vocabulary, a);
    sluice_sequence_release(sequence);
}

/* ---- conversations
 * ------------------------------------------------------------------------------------------------ */

/* Turns of a chat, each a new sequence that reads the whole conversation: all is taken over but what is new
 * and the last token, which was sampled and not computed. The same bits as without. */
static void chats_go_on_to_the_token(void **state) {
    const char *family = *state;
    sluice_model *model = model_of(family);
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine *with = engine_of(model, 2, true), *without = engine_of(model, 2, false);
    static answer reused, computed;
    memset(&reused, 0, sizeof reused);
    memset(&computed, 0, sizeof computed);
    for (int32_t turn = 0; turn < 5; turn++) {
        const size_t known = reused.count ? reused.count - 1 : 0;
        for (int32_t i = 0; i < 37; i++) {
            reused.tokens[reused.count++] = token_of(turn, i);
            computed.tokens[computed.count++] = token_of(turn, i);
        }
        sluice_request_options o = options_of(&reused, 0, 23);
        const size_t prompt = reused.count;
        answer_anew(with, vocabulary, &reused, &o);
        o = options_of(&computed, 0, 23);
        answer_anew(without, vocabulary, &computed, &o);
        assert_int_equal(reused.done.reused_tokens, known);
        assert_int_equal(reused.done.reuse_matched, known);
        assert_int_equal(reused.done.prompt_tokens, prompt);
        assert_int_equal(reused.done.reuse, SLUICE_REUSE_NEW);
        assert_int_equal(computed.done.reused_tokens, 0);
        assert_int_equal(computed.done.reuse, SLUICE_REUSE_OFF);
        assert_true(reused.done.queue_seconds >= 0 &&
                    reused.done.queue_seconds <= reused.done.prompt_seconds);
        assert_int_equal(reused.count, computed.count);
        assert_memory_equal(reused.tokens, computed.tokens, reused.count * sizeof *reused.tokens);
        assert_true(reused.logits == computed.logits);
    }
    sluice_engine_destroy(with);
    sluice_engine_destroy(without);
    sluice_model_release(model);
}

/* The same answer once more, and one to a prompt that parts from it. */
static void prompts_are_read_once(void **state) {
    const char *family = *state;
    sluice_model *model = model_of(family);
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine *engine = engine_of(model, 2, true);
    static answer a[3];
    memset(a, 0, sizeof a);
    for (int32_t round = 0; round < 3; round++) {
        for (int32_t i = 0; i < 150; i++) {
            a[round].tokens[a[round].count++] = token_of(round == 2 && i >= 140 ? 8 : 7, i);
        }
        sluice_request_options o = options_of(&a[round], 0, 10);
        answer_anew(engine, vocabulary, &a[round], &o);
    }
    assert_int_equal(a[1].done.reused_tokens, 149);
    assert_int_equal(a[1].done.reuse, SLUICE_REUSE_ALL);
    assert_memory_equal(a[0].tokens, a[1].tokens, a[0].count * sizeof *a[0].tokens);
    assert_true(a[0].logits == a[1].logits);
    assert_int_equal(a[2].done.reuse_matched, 140);
    assert_int_equal(a[2].done.reused_tokens, is_recurrent(family) ? 128 : 140);
    assert_int_equal(a[2].done.reuse, is_recurrent(family) ? SLUICE_REUSE_STATE : SLUICE_REUSE_NEW);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* More conversations than sequences, in turns. */
static void conversations_take_turns(void **state) {
    enum { CHATS = 10 };
    sluice_model *model = model_of(*state);
    const size_t vocabulary = vocabulary_of(model);
    sluice_engine *engine = engine_of(model, 8, true);
    static answer chats[CHATS];
    memset(chats, 0, sizeof chats);
    for (int32_t turn = 0; turn < 4; turn++) {
        for (int32_t c = 0; c < CHATS; c++) {
            answer *a = &chats[c];
            const size_t known = a->count ? a->count - 1 : 0;
            for (int32_t i = 0; i < 30; i++) {
                a->tokens[a->count++] = token_of(10 + c, turn * 30 + i);
            }
            sluice_request_options o = options_of(a, 0, 15);
            o.logits = SLUICE_LOGITS_NONE;
            answer_anew(engine, vocabulary, a, &o);
            assert_int_equal(a->done.reused_tokens, known);
        }
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

static void equal_prompts_at_once(void **state) {
    enum { COUNT = 6, PROMPT = 300 };
    sluice_model *model = model_of(*state);
    sluice_engine *engine = engine_of(model, 8, true);
    static answer a[COUNT];
    memset(a, 0, sizeof a);
    sluice_sequence *sequences[COUNT];
    sluice_request *requests[COUNT];
    sluice_request_options each[COUNT];
    const sluice_request_options *options[COUNT];
    for (int32_t s = 0; s < COUNT; s++) {
        for (int32_t i = 0; i < PROMPT; i++) {
            a[s].tokens[a[s].count++] = token_of(1, i);
        }
        each[s] = options_of(&a[s], 0, 8);
        each[s].logits = SLUICE_LOGITS_NONE;
        options[s] = &each[s];
        sequences[s] = open_sequence(engine);
    }
    sluice_error error;
    must(sluice_submit_together(sequences, options, COUNT, requests, &error), &error, "submit");
    for (int32_t s = 0; s < COUNT; s++) {
        finish_answer(requests[s], 0, &a[s]);
        assert_int_equal(a[s].done.reused_tokens, s ? PROMPT - 1 : 0);
        assert_memory_equal(a[s].tokens, a[0].tokens, a[0].count * sizeof *a[0].tokens);
        sluice_sequence_release(sequences[s]);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.rows, PROMPT + (COUNT - 1) + COUNT * 7);
    assert_int_equal(counters.prompt_tokens, COUNT * PROMPT);
    assert_int_equal(counters.generated_tokens, COUNT * 8);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

static void salts_and_no_reuse(void **state) {
    sluice_model *model = model_of(*state);
    sluice_engine *engine = engine_of(model, 2, true);
    static const struct {
        uint64_t salt;
        bool no_reuse;
        size_t reused;
    } rows[] = {{1, true, 0}, {1, false, 0}, {2, false, 0}, {1, false, 99}, {2, true, 0}, {2, false, 99}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static answer a;
        memset(&a, 0, sizeof a);
        for (int32_t t = 0; t < 100; t++) {
            a.tokens[a.count++] = token_of(1, t);
        }
        sluice_request_options o = options_of(&a, 0, 3);
        o.logits = SLUICE_LOGITS_NONE;
        o.cache_salt = rows[i].salt;
        o.no_reuse = rows[i].no_reuse;
        answer_anew(engine, 0, &a, &o);
        assert_int_equal(a.done.reused_tokens, rows[i].reused);
        assert_int_equal(a.done.reuse == SLUICE_REUSE_OFF, rows[i].no_reuse);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- a queue
 * ----------------------------------------------------------------------------------------------------------
 */

/* All together, so that none of them has started when the next is counted. */
static void a_full_queue_is_busy(void **state) {
    (void)state;
    sluice_model *model = model_of(NULL);
    sluice_engine_options options = {.size = sizeof options,
                                     .device = "cpu",
                                     .threads = 1,
                                     .context = CONTEXT,
                                     .sequences = 1,
                                     .queue = 1};
    sluice_engine *engine = open_engine(model, &options);
    const int32_t token = 5;
    const sluice_request_options o = {.size = sizeof o,
                                      .tokens = &token,
                                      .token_count = 1,
                                      .generate = 5,
                                      .ignore_eos = true,
                                      .no_text = true};
    const sluice_request_options *each[] = {&o, &o, &o};
    sluice_sequence *sequences[3];
    sluice_request *requests[3];
    sluice_error error;
    for (int i = 0; i < 3; i++) {
        sequences[i] = open_sequence(engine);
    }
    assert_int_equal(sluice_submit_together(sequences, each, 3, requests, &error), SLUICE_ERR_BUSY);
    assert_string_equal(error.message, "queue: 1 requests wait already, the limit is 1");
    assert_int_equal(sluice_sequence_length(sequences[0]), 0);
    must(sluice_submit_together(sequences, each, 2, requests, &error), &error, "submit");
    for (int i = 0; i < 2; i++) {
        collected got = {0};
        assert_int_equal(collect(requests[i], &got), 5);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.running, 0);
    assert_int_equal(counters.waiting, 0);
    for (int i = 0; i < 3; i++) {
        sluice_sequence_release(sequences[i]);
    }
    sluice_engine_destroy(engine);
    options.queue = -1;
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_INVALID);
    sluice_model_release(model);
}

/* ---- random lives
 * ------------------------------------------------------------------------------------------------ */

enum { LIVES = 7, ROUNDS = SANITIZED ? 12 : 30 };

static uint32_t seed_state;
static uint32_t draw(uint32_t below) {
    seed_state = seed_state * 1664525u + 1013904223u;
    return (seed_state >> 8) % below;
}

typedef struct life {
    sluice_sequence *sequence;
    answer text;
    uint64_t salt;
    sluice_request *request;
    bool ends_early; /* cancelled or released under way: where it ends depends on the moment */
    size_t before;   /* tokens before its request */
} life;

static void start_life(sluice_engine *engine, life *l, bool reuse) {
    const int32_t text = (int32_t)draw(3), count = 1 + (int32_t)draw(120);
    l->before = l->text.count;
    for (int32_t i = 0; i < count; i++) {
        l->text.tokens[l->text.count] = token_of(text, (int32_t)l->text.count);
        l->text.count++;
    }
    sluice_request_options o = options_of(&l->text, l->before, 1 + draw(25));
    o.logits = draw(6) == 0 ? SLUICE_LOGITS_LAST : SLUICE_LOGITS_NONE;
    o.temperature = draw(3) == 0 ? 0.9f : 0;
    o.seed = draw(2);
    o.priority = (int32_t)draw(3);
    o.group = draw(3);
    o.cache_salt = l->salt;
    o.no_reuse = draw(10) == 0;
    o.no_reuse &= reuse;
    l->ends_early = draw(5) == 0;
    l->sequence = l->sequence ? l->sequence : open_sequence(engine);
    l->request = submit(l->sequence, &o);
}

/* Ends what was started, and does something to its sequence. */
static void end_life(life *l, life *lives, size_t vocabulary) {
    sluice_error error;
    const uint32_t act = draw(8), where = draw(LIVES), back = draw(90);
    if (l->ends_early) {
        if (act % 2) {
            sluice_cancel(l->request);
        } else {
            sluice_sequence_release(l->sequence);
            l->sequence = NULL;
        }
        answer unused = {0};
        finish_answer(l->request, vocabulary, &unused);
        l->text.count = l->sequence ? l->before : 0;
        if (l->sequence) {
            must(sluice_sequence_rollback(l->sequence, l->before, &error), &error, "rollback");
        }
        return;
    }
    finish_answer(l->request, vocabulary, &l->text);
    if (act < 3 || l->text.count > CONTEXT - 150) {
        sluice_sequence_release(l->sequence);
        l->sequence = NULL;
        l->text.count = 0;
        l->salt = act == 0;
    } else if (act < 5) {
        l->text.count -= back < l->text.count ? back : l->text.count;
        must(sluice_sequence_rollback(l->sequence, l->text.count, &error), &error, "rollback");
    } else if (act == 5 && !lives[where].sequence) {
        lives[where] = *l;
        lives[where].request = NULL;
        must(sluice_sequence_fork(l->sequence, &lives[where].sequence, &error), &error, "fork");
    }
}

/* What the script gives; only the moments are by chance. */
static uint64_t live(sluice_model *model, bool reuse, uint32_t seed, uint64_t *reused) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .threads = 1,
                                           .chunk = 64,
                                           .context = CONTEXT,
                                           .sequences = 3,
                                           .cache_tokens = reuse ? 768 : 0,
                                           .state_slots = reuse ? 9 : 0,
                                           .prompt_seconds = reuse ? -1 : 0,
                                           .no_prefix_reuse = !reuse};
    sluice_engine *engine = open_engine(model, &options);
    const size_t vocabulary = vocabulary_of(model);
    static life lives[LIVES];
    memset(lives, 0, sizeof lives);
    uint64_t hash = 14695981039346656037u;
    seed_state = seed;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LIVES; i++) {
            lives[i].request = NULL;
            if (draw(3) > 0) {
                start_life(engine, &lives[i], reuse);
            }
        }
        for (int i = 0; i < LIVES; i++) {
            if (lives[i].request) {
                end_life(&lives[i], lives, vocabulary);
                hash = mix(hash, lives[i].text.tokens, lives[i].text.count * sizeof(int32_t));
                hash = mix(hash, &lives[i].text.logits, sizeof lives[i].text.logits);
            }
        }
    }
    for (int i = 0; i < LIVES; i++) {
        sluice_sequence_release(lives[i].sequence);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.running + counters.waiting, 0);
    assert_int_equal(counters.cache_tokens_used, counters.cache_tokens_kept);
    assert_true(reuse || counters.cache_tokens_used == 0);
    *reused = counters.reused_tokens;
    sluice_engine_destroy(engine);
    return hash;
}

static void random_lives_are_those_without_reuse(void **state) {
    sluice_model *model = model_of(*state);
    for (uint32_t seed = 1; seed <= 3; seed++) {
        uint64_t reused, none;
        const uint64_t with = live(model, true, seed, &reused), without = live(model, false, seed, &none);
        assert_true(with == without);
        assert_true(reused > 100 && none == 0);
    }
    sluice_model_release(model);
}

int main(void) {
#define FOR_FAMILY(test, which, name)                                                                        \
    { #test ": " name, test, NULL, NULL, (void *)(size_t)families[which] }
#define FOR_FAMILIES(test)                                                                                   \
    FOR_FAMILY(test, 0, "mini"), FOR_FAMILY(test, 1, "gemma3"), FOR_FAMILY(test, 2, "qwen3_5")
    const struct CMUnitTest tests[] = {
        FOR_FAMILIES(chats_go_on_to_the_token),
        FOR_FAMILIES(prompts_are_read_once),
        FOR_FAMILIES(conversations_take_turns),
        FOR_FAMILIES(equal_prompts_at_once),
        FOR_FAMILIES(salts_and_no_reuse),
        cmocka_unit_test(a_full_queue_is_busy),
        FOR_FAMILIES(random_lives_are_those_without_reuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
