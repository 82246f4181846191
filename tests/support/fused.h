/* What the tests of fused runs share: a model runs with and without fusion, and must give the same bits. */
#ifndef SLUICE_TESTS_SUPPORT_FUSED_H
#define SLUICE_TESTS_SUPPORT_FUSED_H

#include "support/engine.h"

#include <stdio.h>
#include <unistd.h>

enum { FUSED_GENERATED = 6, FUSED_VOCABULARY = 320, FUSED_CONTEXT = 640, FUSED_RUNS = 4, FUSED_PROMPTS = 8 };
enum { FUSED_LONGEST = 1024 }; /* of a first prompt */

static const char *fused_device = "cuda";
static int32_t fused_tokens = FUSED_GENERATED; /* that each sequence generates, at most FUSED_GENERATED */

typedef struct fused_run {
    const char *name; /* "quantize+linear/cuda" */
    int32_t least;    /* times in the list of the largest step */
} fused_run;

typedef struct fused_case {
    const char *name, *family, *type, *cache_type;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward;
    int32_t experts, experts_used, expert_width;
    int32_t prompt; /* tokens in front of the single rows */
    /* Several sequences, of `prompt` tokens and these (0: no more), in steps of up to so many rows, which are
     * parts of prompts and single rows in all mixes; 0: one sequence, whose runs are those of one row. */
    int32_t rows, more[FUSED_PROMPTS - 1];
    bool deterministic;
    sluice_prompt_precision precision;
    const char *needs; /* NULL, or a kernel without which the case is left out, in the list unfused */
    fused_run runs[FUSED_RUNS]; /* that must be in the list, and without fusion are not */
} fused_case;

static inline sluice_model *fused_model(const fused_case *c) {
    char path[512];
    snprintf(path, sizeof path, "%s/fused-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = c->family,
                                          .type = c->type,
                                          .seed = 3,
                                          .layers = c->layers,
                                          .width = c->width,
                                          .heads = c->heads,
                                          .kv_heads = c->kv_heads,
                                          .head_size = c->head_size,
                                          .feed_forward = c->feed_forward,
                                          .vocabulary = FUSED_VOCABULARY,
                                          .experts = c->experts,
                                          .experts_used = c->experts_used,
                                          .expert_width = c->expert_width};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static inline sluice_engine_options fused_options(const fused_case *c, bool no_fusion) {
    const int32_t context = c->prompt + FUSED_GENERATED;
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = fused_device,
                                   .chunk = c->rows > 0 ? c->rows : 64,
                                   .sequences = c->rows > 0 ? c->rows : 1,
                                   .context = context > FUSED_CONTEXT ? context : FUSED_CONTEXT,
                                   .outputs = c->rows > 0 ? c->rows : 1,
                                   .kv_type = c->cache_type,
                                   .deterministic = c->deterministic,
                                   .no_fusion = no_fusion,
                                   .prompt_precision = c->precision,
                                   .no_prefix_reuse = true};
}

/* Times that the list of the case's largest step, or of single rows, names the run. */
static inline int32_t fused_count(sluice_model *model, const fused_case *c, sluice_engine_options options,
                                  const char *run) {
    sluice_error error;
    char *text, name[128];
    options.chunk = c->rows > 0 ? c->rows : 1;
    must(sluice_plan_describe(model, &options, SLUICE_PLAN_OPS, SLUICE_TEXT, &text, &error), &error, "plan");
    snprintf(name, sizeof name, "| %s", run);
    int32_t count = 0;
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        count++;
    }
    sluice_free(text);
    return count;
}

typedef struct fused_result {
    float logits[FUSED_PROMPTS][FUSED_GENERATED][FUSED_VOCABULARY]; /* that the tokens were chosen by */
    int32_t tokens[FUSED_PROMPTS][FUSED_GENERATED];
} fused_result;

static inline int32_t fused_prompt(const fused_case *c, int32_t i) {
    return i == 0 ? c->prompt : i < FUSED_PROMPTS ? c->more[i - 1] : 0;
}

/* A token of every sequence that has begun and has not all of its own; two more begin with their prompts. */
static inline void fused_round(sluice_sequence *const *sequences, const fused_case *c, int32_t count,
                               int32_t round, fused_result *result) {
    static int32_t prompts[FUSED_PROMPTS][FUSED_LONGEST];
    const int32_t first = round < fused_tokens ? 0 : 2 * (round - fused_tokens + 1);
    const int32_t end = 2 * (round + 1) < count ? 2 * (round + 1) : count;
    sluice_request_options asked[FUSED_PROMPTS];
    const sluice_request_options *each[FUSED_PROMPTS];
    sluice_request *requests[FUSED_PROMPTS];
    sluice_error error;
    for (int32_t i = first; i < end; i++) {
        const size_t length = i / 2 == round ? (size_t)fused_prompt(c, i) : 0;
        for (size_t k = 0; k < length; k++) {
            prompts[i][k] = ((int32_t)k * 71 + 5 + 13 * i) % FUSED_VOCABULARY;
        }
        asked[i] = (sluice_request_options){.size = sizeof *asked,
                                            .tokens = prompts[i],
                                            .token_count = length,
                                            .generate = 1,
                                            .logits = SLUICE_LOGITS_LAST,
                                            .ignore_eos = true,
                                            .no_text = true};
        each[i] = &asked[i];
    }
    must(sluice_submit_together(sequences + first, each + first, (size_t)(end - first), requests + first,
                                &error),
         &error, "submit");
    for (int32_t i = first; i < end; i++) {
        const int32_t token = round - i / 2;
        collected got = {.tokens = &result->tokens[i][token],
                         .logits = result->logits[i][token],
                         .vocabulary = FUSED_VOCABULARY,
                         .first = (size_t)(fused_prompt(c, i) + token) - 1,
                         .room = 1};
        assert_int_equal(collect(requests[i], &got), 1);
    }
}

/* Tokens behind the prompts, all but a sequence's first by one row of a step each. In rounds: a request that
 * gives logits waits for whoever reads them, and which rows are together in a step, which may choose other
 * kernels, must not depend on when that is. */
static inline void fused_generate(sluice_model *model, const sluice_engine_options *options,
                                  const fused_case *c, fused_result *result) {
    sluice_engine *engine = open_engine(model, options);
    sluice_sequence *sequences[FUSED_PROMPTS];
    int32_t count = 0;
    while (fused_prompt(c, count) > 0) {
        sequences[count++] = open_sequence(engine);
    }
    for (int32_t round = 0; round < (count - 1) / 2 + fused_tokens; round++) {
        fused_round(sequences, c, count, round, result);
    }
    for (int32_t i = 0; i < count; i++) {
        sluice_sequence_release(sequences[i]);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.failed_captures, 0);
    sluice_engine_destroy(engine);
}

/* The test of a case, its initial state. */
static inline void fused_leaves_the_ops_bits(void **state) {
    const fused_case *c = *state;
    sluice_model *model = fused_model(c);
    const sluice_engine_options alone = fused_options(c, true), fused = fused_options(c, false);
    if (c->needs && fused_count(model, c, alone, c->needs) == 0) {
        sluice_model_release(model);
        printf("skipped: the plan has no %s\n", c->needs);
        skip();
    }
    for (int i = 0; i < FUSED_RUNS && c->runs[i].name; i++) {
        assert_int_equal(fused_count(model, c, alone, c->runs[i].name), 0);
        const int32_t count = fused_count(model, c, fused, c->runs[i].name);
        if (count < c->runs[i].least) {
            fail_msg("%s: %d times, not %d", c->runs[i].name, count, c->runs[i].least);
        }
    }
    static fused_result expected, actual;
    memset(&expected, 0, sizeof expected);
    fused_generate(model, &alone, c, &expected);
    memset(&actual, 0, sizeof actual);
    fused_generate(model, &fused, c, &actual);
    assert_memory_equal(actual.tokens, expected.tokens, sizeof expected.tokens);
    assert_memory_equal(actual.logits, expected.logits, sizeof expected.logits);
    const float *last = expected.logits[0][fused_tokens - 1];
    assert_true(last[0] != last[1]);
    sluice_model_release(model);
}

/* Why the device cannot run the cases, in `reason`; false: it can. `without`: what `explain` says then. */
static inline bool fused_cannot_run(const fused_case *c, const char *without, char *reason, size_t size) {
    sluice_model *model = fused_model(c);
    const sluice_engine_options options = fused_options(c, false);
    sluice_error error;
    char *text = NULL;
    bool cannot = sluice_plan_describe(model, &options, SLUICE_PLAN_EXPLAIN, SLUICE_TEXT, &text, &error) != 0;
    snprintf(reason, size, "%s", cannot ? error.message : "");
    if (!cannot && strstr(text, without)) {
        snprintf(reason, size, "the GPU's kernel says: %s", without);
        cannot = true;
    }
    sluice_free(text);
    sluice_model_release(model);
    return cannot;
}

/* PROGRAM [--device cuda:N] [--only CASE] [--skip CASE] [--every N] [--tokens N]
 * CASE may have * and ?; --every takes the first of each N cases. */
static inline int fused_main(int argc, char **argv, const fused_case *cases, size_t count,
                             const char *without) {
    int every = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            fused_device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        } else if (strcmp(argv[i], "--skip") == 0) {
            cmocka_set_skip_filter(argv[i + 1]);
        } else if (strcmp(argv[i], "--every") == 0) {
            every = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--tokens") == 0) {
            fused_tokens = atoi(argv[i + 1]);
        }
    }
    if (every < 1) {
        fprintf(stderr, "--every: 1 or more\n");
        return 2;
    }
    if (fused_tokens < 1 || fused_tokens > FUSED_GENERATED) {
        fprintf(stderr, "--tokens: 1 to %d\n", FUSED_GENERATED);
        return 2;
    }
    char reason[512];
    if (fused_cannot_run(&cases[0], without, reason, sizeof reason)) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (!tests) {
        return 1;
    }
    size_t taken = 0;
    for (size_t i = 0; i < count; i += (size_t)every) {
        tests[taken++] = (struct CMUnitTest){cases[i].name, fused_leaves_the_ops_bits, NULL, NULL,
                                             (void *)(size_t)&cases[i]};
    }
    const int failed = _cmocka_run_group_tests("fused", tests, taken, NULL, NULL);
    free(tests);
    return failed;
}

#endif
