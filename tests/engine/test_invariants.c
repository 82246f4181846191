/* Rows do not see each other: the logits of a text are the same bits however its steps were cut and whatever
 * ran beside it, on every family, weight type, cache type and instruction tier. And a steady step allocates
 * nothing. */
#include "quant/qtype.h"
#include "support/engine.h"
#include "support/sanitized.h"

#include "base/alloc.h"

#include <stdio.h>
#include <unistd.h>

enum { TOKENS = 150, VOCABULARY = 384, STRANGERS = 7 };

static const char *device = "cpu"; /* --device */
static int32_t length = TOKENS;    /* --tokens: of the text, where it runs whole */
static bool deterministic;         /* asked for on a GPU */

/* Dense, with experts, recurrent: these take every weight type. Those behind them differ from them in the
 * graph alone and take few. */
static const char *const families[] = {"llama",
                                       "qwen3moe",
                                       "qwen3_5",
                                       "mistral",
                                       "qwen2",
                                       "qwen3",
                                       "gemma3",
                                       "gemma4",
                                       "gemma4moe",
                                       "qwen3_5_moe",
                                       "qwen3_next",
                                       "gpt_oss",
                                       "glm4_moe",
                                       "minimax_m2",
                                       "ernie4_5_moe",
                                       "ministral3",
                                       "smollm3",
                                       "granite",
                                       "olmo2",
                                       "exaone4",
                                       "hunyuan",
                                       "glm4",
                                       "phi3",
                                       "hunyuan_moe",
                                       "deepseek_v2",
                                       "deepseek_v3",
                                       "granite_h",
                                       "granite_h_moe",
                                       "nemotron_h",
                                       "nemotron_h_moe",
                                       "nemotron_h_latent",
                                       "lfm2",
                                       "lfm2_moe",
                                       "cohere2",
                                       "mistral4",
                                       "apertus",
                                       "falcon_h1",
                                       "llama4"};
enum { EVERY_TYPE = 3 };
/* NULL: no file has it (what checkpoints' weights become; tests/logits runs those). */
static const char *const types[] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    (gguf_type) == SL_QTYPE_NO_GGUF ? NULL : #name,
#include "quant/qtypes.def"
#undef SL_QTYPE
};
static bool on_gpu(void) {
    return strncmp(device, "cuda", 4) == 0;
}

static const char *const tiers[] = {"plain", "avx2", "avxvnni", "avx512", "amx"};
static const char *const cache_types[] = {"f16", "bf16", "f32", "q8_0", "fp8"};

typedef struct text {
    int32_t tokens[TOKENS];
    float *logits; /* [TOKENS][VOCABULARY] */
} text;

static int32_t token_at(int32_t i) {
    return (int32_t)((uint32_t)(i * 7919 + 13) % VOCABULARY);
}

/* ---- one way to run the text; each compares with the logits of the first
 * ------------------------------------------- */

typedef struct way {
    const char *name;
    int32_t chunk, threads, sequences;
    void (*run)(sluice_engine *engine, const text *reference, float *logits, size_t *from);
    bool no_fusion;
    int32_t second;  /* layers on a second device, a CPU or beside a GPU the GPU; 0: there is one device */
    int32_t experts; /* of so many of the first layers, on the first device; of a GPU alone, in host memory */
    int32_t cache_eighths; /* of these are on the GPU as well, but never less than a row uses; 0: as many as
                              fit */
    bool no_graphs;
    int32_t kept; /* on a GPU alone: weights of so many layers; those of the others are fetched; 0: of all */
    bool ranks;   /* two devices, each with a share of all layers */
} way;

static void read_all(sluice_sequence *sequence, const int32_t *tokens, size_t count, float *logits,
                     size_t first) {
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = tokens,
                                      .token_count = count,
                                      .logits = logits ? SLUICE_LOGITS_ALL : SLUICE_LOGITS_NONE};
    collected got = {.logits = logits, .vocabulary = VOCABULARY, .first = 0, .room = first + count};
    collect(submit(sequence, &options), &got);
}

static void run_alone(sluice_engine *engine, const text *reference, float *logits, size_t *from) {
    sluice_sequence *sequence = open_sequence(engine);
    read_all(sequence, reference->tokens, (size_t)length, logits, 0);
    sluice_sequence_release(sequence);
    *from = 0;
}

/* Others read and generate meanwhile. */
static void run_among_strangers(sluice_engine *engine, const text *reference, float *logits, size_t *from) {
    sluice_sequence *strangers[STRANGERS];
    sluice_request *requests[STRANGERS];
    for (int32_t s = 0; s < STRANGERS; s++) {
        int32_t tokens[TOKENS];
        for (int32_t i = 0; i < TOKENS; i++) {
            tokens[i] = token_at(i * (s + 2) + s);
        }
        strangers[s] = open_sequence(engine);
        sluice_request_options options = {.size = sizeof options,
                                          .tokens = tokens,
                                          .token_count = (size_t)(5 + 11 * s),
                                          .generate = 30,
                                          .ignore_eos = true,
                                          .no_text = true};
        requests[s] = submit(strangers[s], &options);
    }
    run_alone(engine, reference, logits, from);
    for (int32_t s = 0; s < STRANGERS; s++) {
        collected got = {0};
        assert_int_equal(collect(requests[s], &got), 30);
        sluice_sequence_release(strangers[s]);
    }
}

/* The last row alone has an output, beside others of which all rows have one, or the last. */
static void run_for_the_last(sluice_engine *engine, const text *reference, float *logits, size_t *from) {
    enum { TEXTS = 4, THE_TEXT = 2 };
    sluice_sequence *sequences[TEXTS];
    sluice_request *requests[TEXTS];
    for (int32_t s = 0; s < TEXTS; s++) {
        int32_t tokens[TOKENS];
        for (int32_t i = 0; i < TOKENS; i++) {
            tokens[i] = s == THE_TEXT ? reference->tokens[i] : token_at(i * (s + 3) + s);
        }
        sequences[s] = open_sequence(engine);
        sluice_request_options options = {.size = sizeof options,
                                          .tokens = tokens,
                                          .token_count = (size_t)(s == THE_TEXT ? TOKENS : 40 + s),
                                          .logits = s == 1 ? SLUICE_LOGITS_ALL : SLUICE_LOGITS_LAST};
        requests[s] = submit(sequences[s], &options);
    }
    for (int32_t s = 0; s < TEXTS; s++) {
        collected got = {
            .logits = s == THE_TEXT ? logits : NULL, .vocabulary = VOCABULARY, .room = (size_t)TOKENS};
        collect(requests[s], &got);
        sluice_sequence_release(sequences[s]);
    }
    *from = TOKENS - 1;
}

/* A second sequence starts from the first one's pages. */
static void run_reusing(sluice_engine *engine, const text *reference, float *logits, size_t *from) {
    sluice_sequence *first = open_sequence(engine), *second = open_sequence(engine);
    read_all(first, reference->tokens, TOKENS, NULL, 0);
    sluice_request_options beginning = {
        .size = sizeof beginning, .tokens = reference->tokens, .token_count = 140};
    collected got = {0};
    collect(submit(second, &beginning), &got);
    /* Up to the last token or, where a recurrent state has to be there, to the last page's end. */
    assert_true(got.reused == 128 || got.reused == 139);
    read_all(second, reference->tokens + 140, TOKENS - 140, logits, 140);
    sluice_sequence_release(first);
    sluice_sequence_release(second);
    *from = 140;
}

/* Takes back a wrong turn. */
static void run_after_rollback(sluice_engine *engine, const text *reference, float *logits, size_t *from) {
    sluice_sequence *sequence = open_sequence(engine);
    sluice_error error;
    read_all(sequence, reference->tokens, 90, NULL, 0);
    read_all(sequence, reference->tokens + 3, 60, NULL, 0);
    must(sluice_sequence_rollback(sequence, 70, &error), &error, "rollback");
    read_all(sequence, reference->tokens + 70, TOKENS - 70, logits, 70);
    sluice_sequence_release(sequence);
    *from = 70;
}

/* A fork goes the right way, the original another. */
static void run_forked(sluice_engine *engine, const text *reference, float *logits, size_t *from) {
    sluice_sequence *sequence = open_sequence(engine), *fork;
    sluice_error error;
    read_all(sequence, reference->tokens, 75, NULL, 0);
    must(sluice_sequence_fork(sequence, &fork, &error), &error, "fork");
    read_all(sequence, reference->tokens + 9, 30, NULL, 0);
    read_all(fork, reference->tokens + 75, TOKENS - 75, logits, 75);
    sluice_sequence_release(sequence);
    sluice_sequence_release(fork);
    *from = 75;
}

static const way ways[] = {
    {"chunk 512, alone", 512, 1, 1, run_alone, false, 0, 0, 0, false, 0, false}, /* the reference */
    {"chunk 64, alone", 64, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 7, alone", 7, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 1, alone", 1, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 512, 2 threads", 512, 2, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 64, 8 sequences, 2 threads", 64, 2, 8, run_among_strangers, false, 0, 0, 0, false, 0, false},
    {"chunk 512, 4 sequences, the last row", 512, 1, 4, run_for_the_last, false, 0, 0, 0, false, 0, false},
    {"chunk 64, 4 sequences, the last row", 64, 1, 4, run_for_the_last, false, 0, 0, 0, false, 0, false},
    {"chunk 64, prefix reused", 64, 1, 2, run_reusing, false, 0, 0, 0, false, 0, false},
    {"chunk 64, rolled back", 64, 1, 2, run_after_rollback, false, 0, 0, 0, false, 0, false},
    {"chunk 7, forked", 7, 1, 2, run_forked, false, 0, 0, 0, false, 0, false},
};

/* Pairs: every op by its own kernel, and runs of ops fused where the backend can. */
static const way fusion_ways[] = {
    {"chunk 512, single ops", 512, 1, 1, run_alone, true, 0, 0, 0, false, 0, false},
    {"chunk 512, fused", 512, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 40, single ops", 40, 1, 1, run_alone, true, 0, 0, 0, false, 0, false},
    {"chunk 40, fused", 40, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 5, single ops", 5, 1, 1, run_alone, true, 0, 0, 0, false, 0, false},
    {"chunk 5, fused", 5, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 1, single ops", 1, 1, 1, run_alone, true, 0, 0, 0, false, 0, false},
    {"chunk 1, fused", 1, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
};

/* ---- every family, type and tier
 * ------------------------------------------------------------------------------------ */

typedef struct setting {
    const char *family, *type, *tier, *cache_type;
    sluice_prompt_precision precision;
} setting;

/* Bytes of experts in host memory. */
static uint64_t host_weights(sluice_model *model, const sluice_engine_options *options) {
    sluice_error error;
    char *text;
    must(sluice_plan_describe(model, options, SLUICE_PLAN_MEMORY, SLUICE_JSON, &text, &error), &error,
         "plan");
    const char *key = "\"host_weights_bytes\": ", *at = strstr(text, key);
    const uint64_t bytes = at ? strtoull(at + strlen(key), NULL, 10) : 0;
    sluice_free(text);
    assert_true(bytes > 0);
    return bytes;
}

/* Weights in host memory were used, and no step ran other than as it should. */
static void check_fetches(sluice_engine *engine, const way *w) {
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    if (w->experts > 0 && !w->second) {
        assert_true(counters.streamed_bytes + counters.fetched_bytes > 0);
        assert_int_equal(counters.failed_captures, 0);
        assert_true(w->cache_eighths == 0 || w->chunk > 3 || counters.expert_misses > 0);
    } else if (w->kept > 0) {
        assert_true(counters.streamed_bytes > 0);
        assert_int_equal(counters.fetched_bytes + counters.failed_captures, 0);
    } else {
        assert_int_equal(counters.streamed_bytes + counters.fetched_bytes, 0);
    }
}

static sluice_engine_options options_of(sluice_model *model, const setting *s, const way *w) {
    sluice_engine_options options = {.size = sizeof options,
                                     .device = w->ranks     ? on_gpu() ? "cuda:0+cuda:1" : "cpu+cpu"
                                               : !w->second ? device
                                               : on_gpu()   ? "cuda+cpu"
                                                            : "cpu+cpu",
                                     .split = w->ranks ? SLUICE_SPLIT_TENSORS : SLUICE_SPLIT_AUTO,
                                     .gpu_layers = w->second ? w->second : w->kept,
                                     .cpu_experts = w->experts,
                                     .no_graphs = w->no_graphs,
                                     .isa = s->tier,
                                     .prompt_precision = s->precision,
                                     .threads = w->threads,
                                     .chunk = w->chunk,
                                     .sequences = w->sequences,
                                     .context = 256,
                                     .outputs = w->chunk < TOKENS ? w->chunk : TOKENS,
                                     .kv_type = s->cache_type,
                                     .deterministic = deterministic,
                                     .no_fusion = w->no_fusion};
    if (options.outputs < w->sequences) {
        options.outputs = w->sequences;
    }
    if (w->cache_eighths > 0) {
        options.expert_cache = host_weights(model, &options) * (uint64_t)w->cache_eighths / 8;
    }
    return options;
}

/* The logits become the reference's when `against` is NULL, else must be those of that way. */
static void check_way(sluice_model *model, const setting *s, const way *w, text *reference,
                      const way *against) {
    const sluice_engine_options options = options_of(model, s, w);
    sluice_engine *engine = open_engine(model, &options);
    float *logits = calloc((size_t)TOKENS * VOCABULARY, sizeof(float));
    size_t from = 0;
    w->run(engine, reference, logits, &from);
    check_fetches(engine, w);
    sluice_engine_destroy(engine);
    if (!against) {
        memcpy(reference->logits, logits, (size_t)TOKENS * VOCABULARY * sizeof(float));
    }
    for (size_t p = from; p < (size_t)length; p++) {
        if (memcmp(logits + p * VOCABULARY, reference->logits + p * VOCABULARY, VOCABULARY * sizeof(float))) {
            fail_msg("%s %s %s, cache %s: %s: logits of position %zu differ from \"%s\"", s->family, s->type,
                     s->tier, s->cache_type, w->name, p, against ? against->name : "itself");
        }
    }
    free(logits);
}

/* Each group of `group` ways is compared with its first. */
static void check_setting(sluice_model *model, const setting *s, const way *list, size_t count,
                          size_t group) {
    text reference;
    for (int32_t i = 0; i < TOKENS; i++) {
        reference.tokens[i] = token_at(i);
    }
    reference.logits = calloc((size_t)TOKENS * VOCABULARY, sizeof(float));
    for (size_t w = 0; w < count; w++) {
        check_way(model, s, &list[w], &reference, w % group ? &list[w - w % group] : NULL);
    }
    bool varied = false;
    for (size_t i = 1; i < VOCABULARY; i++) {
        varied |= reference.logits[i] != reference.logits[0];
    }
    assert_true(varied);
    free(reference.logits);
}

/* wide: heads of 512, four of which share their keys. */
static sluice_model *make_model_with(const char *family, const char *type, bool wide, int32_t expert_width,
                                     int32_t experts) {
    char path[512];
    snprintf(path, sizeof path, "%s/invariants-%s-%s-%d.gguf", SLUICE_BINARY_DIR, family, type,
             (int)getpid());
    sluice_synth_options options = {.size = sizeof options,
                                    .preset = family,
                                    .type = type,
                                    .seed = 5,
                                    .width = 256,
                                    .feed_forward = 256,
                                    .vocabulary = VOCABULARY,
                                    .heads = wide ? 4 : 0,
                                    .kv_heads = wide ? 1 : 0,
                                    .head_size = wide ? 512 : 0,
                                    .experts = experts,
                                    .expert_width = expert_width};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static sluice_model *make_model(const char *family, const char *type, bool wide) {
    return make_model_with(family, type, wide, strstr(family, "moe") ? 256 : 0, 0);
}

static bool has_tier(sluice_model *model, const char *tier) {
    sluice_engine_options options = {.size = sizeof options, .device = device, .isa = tier};
    sluice_error error;
    char *text;
    if (sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error)) {
        printf("%s: skipped: %s\n", tier, error.message);
        return false;
    }
    sluice_free(text);
    return true;
}

/* On a GPU all. Of the tiers a family takes one with each weight type, in turn: a type is in the products
 * alone, whose rows test_kernels cuts in every tier. Under a sanitizer, which makes plain C slow, one type
 * for each family and two of its tiers. */
static bool in_scope(size_t family, size_t type, size_t tier, bool gpu) {
    const bool few = family >= EVERY_TYPE;
    if (few && gpu) {
        return type == SL_QTYPE_Q8_0 || type == SL_QTYPE_BF16;
    }
    if (SANITIZED && (family + tier) % (sizeof tiers / sizeof *tiers) > 1) {
        return false;
    }
    const size_t turn = (family + tier) % (sizeof types / sizeof *types);
    return gpu || (SANITIZED || few ? type == (SEARCHED_SLOWLY(turn) ? SL_QTYPE_Q8_0 : turn)
                                    : (family + type + tier) % (sizeof tiers / sizeof *tiers) == 0);
}

/* In plain C, which takes longer than the other tiers together, two ways, and under a sanitizer one, others
 * each time: every family takes every way in its other tiers, and test_kernels cuts the rows of every plain
 * kernel. `halves`: every other way, those between in the next tier. */
static void check_every_way(sluice_model *model, const setting *s, size_t turn, bool halves) {
    enum { WAYS = sizeof ways / sizeof *ways };
    const bool slow = SANITIZED || (!on_gpu() && strcmp(s->tier, tiers[0]) == 0);
    way list[WAYS] = {ways[0]};
    size_t count = 1;
    for (size_t w = 0; w < WAYS - 1; w++) {
        const bool one = w == turn % (WAYS - 1), other = !SANITIZED && w == (turn + 3) % (WAYS - 1);
        if (slow ? one || other : !halves || (w + turn) % 2 == 0) {
            list[count++] = ways[1 + w];
        }
    }
    check_setting(model, s, list, count, count);
}

static void family_gives_the_same_bits_every_way(void **state) {
    size_t family = (size_t)((const char *const *)*state - families);
    const bool gpu = on_gpu();
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        if (!types[type]) {
            continue;
        }
        sluice_model *model = NULL;
        for (size_t tier = 0; tier < (gpu ? 1 : sizeof tiers / sizeof *tiers); tier++) {
            const bool wanted = in_scope(family, type, tier, gpu);
            model = wanted && !model ? make_model(families[family], types[type], false) : model;
            if (wanted && has_tier(model, tiers[tier])) {
                const char *cache_type =
                    cache_types[(family + type + tier) % (sizeof cache_types / sizeof *cache_types)];
                const setting s = {families[family], types[type], tiers[tier], cache_type,
                                   SLUICE_PROMPT_AUTO};
                check_every_way(model, &s, family + tier, family >= EVERY_TYPE && !gpu);
                if (gpu) {
                    deterministic = false;
                    check_setting(model, &s, fusion_ways, sizeof fusion_ways / sizeof *fusion_ways, 2);
                    deterministic = true;
                } else if (strcmp(tiers[tier], tiers[0]) != 0) { /* plain C has no runs */
                    check_setting(model, &s, &fusion_ways[2 + (family + tier) % 2 * 2], 2, 2);
                }
            }
        }
        sluice_model_release(model);
    }
}

static int32_t times_in_list(sluice_model *model, const sluice_engine_options *options, const char *name) {
    sluice_error error;
    char *text;
    int32_t count = 0;
    must(sluice_plan_describe(model, options, SLUICE_PLAN_OPS, SLUICE_TEXT, &text, &error), &error, "plan");
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        count++;
    }
    sluice_free(text);
    return count;
}

/* What the bits above are compared for is there: without a run its ops would be compared with themselves. */
static void the_cpu_has_runs(void **state) {
    (void)state;
    static const char *const names[] = {"| rmsnorm+rmsnorm+rope+rope+cache_write/cpu",
                                        "| rmsnorm+quantize/cpu", "| activate+quantize/cpu"};
    sluice_model *model = make_model("qwen3", "q8_0", false);
    for (size_t tier = 1; tier < sizeof tiers / sizeof *tiers; tier++) {
        for (size_t i = 0; i < sizeof names / sizeof *names && !on_gpu() && has_tier(model, tiers[tier]);
             i++) {
            sluice_engine_options options = {.size = sizeof options, .device = "cpu", .isa = tiers[tier]};
            assert_true(times_in_list(model, &options, names[i]) >= 2);
            options.no_fusion = true;
            assert_int_equal(times_in_list(model, &options, names[i]), 0);
        }
    }
    sluice_model_release(model);
}

/* On the CPU a class of its own, where there are tiles. */
static void products_in_bf16_give_the_same_bits_every_way(void **state) {
    (void)state;
    static const char *const models[][2] = {{"qwen3", "q4_k"}, {"qwen3moe", "q4_k"}, {"qwen3", "q8_0"}};
    for (size_t i = 0; !on_gpu() && i < (SANITIZED ? 1 : sizeof models / sizeof *models); i++) {
        sluice_model *model = make_model(models[i][0], models[i][1], false);
        if (has_tier(model, "amx")) {
            const setting s = {models[i][0], models[i][1], "amx", "f16", SLUICE_PROMPT_BF16};
            check_every_way(model, &s, i, false);
        }
        sluice_model_release(model);
    }
}

/* Attention has kernels of their own for them, by rows and by the cache's type. */
static void wide_heads_give_the_same_bits_every_way(void **state) {
    (void)state;
    const bool gpu = on_gpu();
    sluice_model *model = make_model("qwen3", "q8_0", true);
    for (size_t i = 0; i < sizeof cache_types / sizeof *cache_types; i++) {
        const char *tier = gpu ? tiers[0] : tiers[i % (sizeof tiers / sizeof *tiers)];
        if (has_tier(model, tier)) {
            const setting s = {"qwen3, wide heads", "q8_0", tier, cache_types[i], SLUICE_PROMPT_AUTO};
            check_every_way(model, &s, i, false);
        }
    }
    sluice_model_release(model);
}

/* ---- two devices
 * ---------------------------------------------------------------------------------------------------- */

/* Can the model run with so many of its layers on the second device? Where layers share a cache it has fewer.
 */
static bool can_split(sluice_model *model, int32_t second) {
    sluice_engine_options options = {
        .size = sizeof options, .device = on_gpu() ? "cuda+cpu" : "cpu+cpu", .gpu_layers = second};
    sluice_model_info info = {.size = sizeof info};
    sluice_error error;
    char border[64], *text = NULL;
    sluice_model_get_info(model, &info);
    must(sluice_plan_describe(model, &options, SLUICE_PLAN_OPS, SLUICE_TEXT, &text, &error), &error, "plan");
    snprintf(border, sizeof border, ", layers %d to %d\n", info.layers - second, info.layers - 1);
    const bool exactly = second == info.layers || strstr(text, border) != NULL;
    sluice_free(text);
    return exactly;
}

/* What a machine without a GPU can run of the next test on the emulated one: the uncut text, and mixed. */
static void one_border_gives_the_same_bits(void **state) {
    (void)state;
    sluice_model *model = make_model("qwen3", "q8_0", false);
    const setting s = {"qwen3", "q8_0", NULL, "f16", SLUICE_PROMPT_AUTO};
    way list[2] = {ways[0], ways[1]};
    list[0].second = list[1].second = 2;
    check_setting(model, &s, list, 2, 2);
    sluice_model_release(model);
}

/* With the border at every layer in turn, cut and mixed in another way each time: on two CPUs the bits of
 * one; beside a GPU those of the same border uncut. */
static void every_border_gives_the_same_bits(void **state) {
    (void)state;
    for (size_t family = 0; family < sizeof families / sizeof *families; family++) {
        sluice_model *model = make_model(families[family], "q8_0", false);
        sluice_model_info info = {.size = sizeof info};
        sluice_model_get_info(model, &info);
        const setting s = {families[family], "q8_0", NULL, cache_types[family % 5], SLUICE_PROMPT_AUTO};
        int32_t borders = 0;
        for (int32_t second = 1; second <= info.layers; second++) {
            way list[3] = {ways[0], ways[1 + (family + (size_t)second) % 10],
                           ways[1 + (family + (size_t)second + 4) % 10]};
            list[0].second = on_gpu() ? second : 0;
            list[1].second = list[2].second = second;
            /* An engine takes a GPU a second, and sanitizers are slow: one border of each family. */
            const bool wanted = !(on_gpu() || SANITIZED) || second == 1 + (int32_t)family % info.layers;
            if (wanted && can_split(model, second)) {
                check_setting(model, &s, list, 3, 3);
                borders++;
            }
        }
        assert_true(on_gpu() || SANITIZED || borders >= 2);
        sluice_model_release(model);
    }
}

static bool has_experts(sluice_model *model) {
    const sluice_engine_options options = {.size = sizeof options, .device = "cpu"};
    sluice_error error;
    char *text;
    must(sluice_plan_describe(model, &options, SLUICE_PLAN_OPS, SLUICE_TEXT, &text, &error), &error, "plan");
    const bool found = strstr(text, "combine") != NULL;
    sluice_free(text);
    return found;
}

/* Experts of some of the first layers, and of all, on the first device, whoever has the rest of these layers.
 * Returns how many placements there were. */
static int32_t check_experts_apart(size_t family) {
    sluice_model *model = make_model(families[family], "q8_0", false);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    const setting s = {families[family], "q8_0", NULL, cache_types[family % 5], SLUICE_PROMPT_AUTO};
    const int32_t layers = info.layers, placements = on_gpu() || SANITIZED ? 1 : 3;
    int32_t tested = 0;
    for (int32_t k = 0; has_experts(model) && k < placements; k++) {
        const int32_t second = k < 2 ? layers : layers - layers / 2;
        const size_t turn = family + (size_t)k;
        way list[3] = {ways[0], ways[1 + turn % 10], ways[1 + (turn + 4) % 10]};
        list[0].second = on_gpu() ? second : 0;
        list[1].second = list[2].second = second;
        list[1].experts = list[2].experts = k == 1 ? layers / 2 : INT32_MAX;
        list[0].experts = on_gpu() ? list[1].experts : 0;
        if (can_split(model, second)) {
            check_setting(model, &s, list, 3, 3);
            tested++;
        }
    }
    sluice_model_release(model);
    return tested;
}

static bool has_second_gpu(void) {
    sluice_model *model = make_model("qwen3", "q8_0", false);
    const sluice_engine_options options = {.size = sizeof options, .device = "cuda:1"};
    sluice_error error;
    char *text = NULL;
    const bool has =
        sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error) == 0;
    sluice_free(text);
    sluice_model_release(model);
    return has;
}

static void check_ranks(sluice_model *model, const char *name, const char *type, size_t turn) {
    const setting s = {name, type, NULL, cache_types[turn % 5], SLUICE_PROMPT_AUTO};
    way list[3] = {ways[0], ways[1 + turn % 10], ways[1 + (turn + 4) % 10]};
    list[0].ranks = list[1].ranks = list[2].ranks = true;
    check_setting(model, &s, list, SANITIZED ? 2 : 3, 3);
}

/* Two devices that share every layer, cut and mixed in another way for each family: the bits of the uncut
 * text. */
static void ranks_give_the_same_bits(void **state) {
    (void)state;
    if (on_gpu() && !has_second_gpu()) {
        printf("skipped: there is no second GPU\n");
        return;
    }
    for (size_t family = 0; family < sizeof families / sizeof *families; family++) {
        sluice_model *model = make_model(families[family], "q8_0", false);
        check_ranks(model, families[family], "q8_0", family);
        sluice_model_release(model);
    }
    for (size_t i = 0; i < 2; i++) { /* three blocks of weights: a rank has two */
        sluice_model *model = make_model_with("qwen3moe", i ? "q6_k" : "q4_k", false, 768, 0);
        check_ranks(model, "qwen3moe, experts of 768 columns", i ? "q6_k" : "q4_k", i);
        sluice_model_release(model);
    }
}

static void experts_apart_give_the_same_bits(void **state) {
    (void)state;
    int32_t tested = 0;
    for (size_t family = 0; family < sizeof families / sizeof *families; family++) {
        tested += check_experts_apart(family);
    }
    assert_true(tested >= (on_gpu() || SANITIZED ? 5 : 15));
}

/* Of one model: what an emulated GPU has time for. */
static void one_models_experts_apart_give_the_same_bits(void **state) {
    (void)state;
    size_t family = 0;
    while (strcmp(families[family], "qwen3moe") != 0) {
        family++;
    }
    assert_true(check_experts_apart(family) > 0);
}

/* In pairs: all experts on the GPU, and those of all layers, of some, in host memory. With few slots each
 * row's experts put out those of the row before. */
static const way fetching_ways[] = {
    {"chunk 512, resident", 512, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 512, streamed", 512, 1, 1, run_alone, false, 0, INT32_MAX, 1, false, 0, false},
    {"chunk 40, resident", 40, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 40, streamed", 40, 1, 1, run_alone, false, 0, 3, 1, false, 0, false},
    {"chunk 40, resident, eager", 40, 1, 1, run_alone, false, 0, 0, 0, true, 0, false},
    {"chunk 40, streamed, eager", 40, 1, 1, run_alone, false, 0, INT32_MAX, 1, true, 0, false},
    {"chunk 3, resident", 3, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 3, some slots", 3, 1, 1, run_alone, false, 0, INT32_MAX, 6, false, 0, false},
    {"chunk 1, resident", 1, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 1, few slots", 1, 1, 1, run_alone, false, 0, INT32_MAX, 1, false, 0, false},
    {"chunk 5, resident", 5, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 5, as many slots as fit", 5, 1, 1, run_alone, false, 0, INT32_MAX, 0, false, 0, false},
};

static void fetched_experts_give_the_same_bits(void **state) {
    (void)state;
    static const char *const some_types[] = {"q8_0", "q4_k", "q6_k"};
    int32_t tested = 0;
    if (!on_gpu()) {
        skip();
    }
    for (size_t family = 0; family < sizeof families / sizeof *families; family++) {
        const char *type = some_types[family % 3];
        sluice_model *model = make_model(families[family], type, false);
        const setting s = {families[family], type, NULL, "f16", SLUICE_PROMPT_AUTO};
        const size_t count = sizeof fetching_ways / sizeof *fetching_ways;
        if (has_experts(model)) {
            deterministic = false;
            check_setting(model, &s, fetching_ways, count, 2);
            deterministic = true;
            tested++;
        }
        sluice_model_release(model);
    }
    assert_true(tested >= 5);
}

/* Of 32 experts a row uses two: 16 rows need 32 slots, and with fewer get what they chose to a buffer, as do
 * steps of several sequences; 64 rows choose nearly all. */
static const way chosen_ways[] = {
    {"chunk 16, resident", 16, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 16, all in slots", 16, 1, 1, run_alone, false, 0, INT32_MAX, 8, false, 0, false},
    {"chunk 16, few slots", 16, 1, 1, run_alone, false, 0, INT32_MAX, 1, false, 0, false},
    {"chunk 16, few slots, eager", 16, 1, 1, run_alone, false, 0, INT32_MAX, 1, true, 0, false},
    {"chunk 64, few slots", 64, 1, 1, run_alone, false, 0, INT32_MAX, 1, false, 0, false},
    {"chunk 16, few slots, strangers", 16, 1, STRANGERS + 1, run_among_strangers, false, 0, INT32_MAX, 1,
     false, 0, false},
};
static const char *const chosen_words[] = {NULL,
                                           ", chosen experts to slots, 32 slots |",
                                           ", chosen experts to a buffer, 4 slots |",
                                           ", chosen experts to a buffer, 4 slots |",
                                           ", all experts to a buffer |",
                                           ", chosen experts to a buffer, 4 slots |"};

/* All three ways in which experts come give the bits of experts that are there. */
static void chosen_experts_give_the_same_bits(void **state) {
    (void)state;
    enum { WAYS = sizeof chosen_ways / sizeof *chosen_ways };
    if (!on_gpu()) {
        skip();
    }
    sluice_model *model = make_model_with("qwen3moe", "q4_k", false, 256, 32);
    const setting s = {"qwen3moe, 32 experts", "q4_k", NULL, "f16", SLUICE_PROMPT_AUTO};
    for (int w = 0; w < WAYS; w++) {
        const sluice_engine_options options = options_of(model, &s, &chosen_ways[w]);
        assert_true(!chosen_words[w] || times_in_list(model, &options, chosen_words[w]) > 1);
    }
    check_setting(model, &s, chosen_ways, WAYS, WAYS);
    sluice_model_release(model);
}

/* In pairs: all weights on the GPU, and those of all layers but one, or two, in host memory. */
static const way layer_ways[] = {
    {"chunk 40, resident", 40, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 40, one layer kept", 40, 1, 1, run_alone, false, 0, 0, 0, false, 1, false},
    {"chunk 5, resident", 5, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 5, one layer kept", 5, 1, 1, run_alone, false, 0, 0, 0, false, 1, false},
    {"chunk 512, resident", 512, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 512, two layers kept", 512, 1, 1, run_alone, false, 0, 0, 0, false, 2, false},
    {"chunk 40, resident, eager", 40, 1, 1, run_alone, false, 0, 0, 0, true, 0, false},
    {"chunk 40, one layer kept, eager", 40, 1, 1, run_alone, false, 0, 0, 0, true, 1, false},
    {"chunk 1, resident", 1, 1, 1, run_alone, false, 0, 0, 0, false, 0, false},
    {"chunk 1, one layer kept", 1, 1, 1, run_alone, false, 0, 0, 0, false, 1, false},
};
static const way stranger_layer_ways[] = {
    {"chunk 16, strangers", 16, 1, STRANGERS + 1, run_among_strangers, false, 0, 0, 0, false, 0, false},
    {"chunk 16, strangers, one layer kept", 16, 1, STRANGERS + 1, run_among_strangers, false, 0, 0, 0, false,
     1, false},
};

/* Of a model without experts, with as many of the ways. */
static void check_fetched_layers(size_t family, size_t count) {
    static const char *const some_types[] = {"q4_k", "q8_0", "q6_k"};
    const char *type = some_types[family % 3];
    sluice_model *model = make_model(families[family], type, false);
    const setting s = {families[family], type, NULL, "f16", SLUICE_PROMPT_AUTO};
    deterministic = false;
    check_setting(model, &s, layer_ways, count, 2);
    deterministic = true; /* what is in a step with strangers is chance, and so is the numeric class */
    if (count == sizeof layer_ways / sizeof *layer_ways) {
        check_setting(model, &s, stranger_layer_ways, 2, 2);
    }
    sluice_model_release(model);
}

static void fetched_layers_give_the_same_bits(void **state) {
    (void)state;
    int32_t tested = 0;
    if (!on_gpu()) {
        skip();
    }
    for (size_t family = 0; family < sizeof families / sizeof *families; family++) {
        sluice_model *model = make_model(families[family], "q8_0", false);
        const bool is_dense = !has_experts(model);
        sluice_model_release(model);
        if (is_dense) {
            check_fetched_layers(family, sizeof layer_ways / sizeof *layer_ways);
            tested++;
        }
    }
    assert_true(tested >= 15);
}

/* What an emulated GPU has time for: many rows, and few. */
static void one_models_fetched_layers_give_the_same_bits(void **state) {
    (void)state;
    if (!on_gpu()) {
        skip();
    }
    check_fetched_layers(0, 4);
}

/* ---- steady steps
 * --------------------------------------------------------------------------------------------------- */

/* Generates `tokens` tokens and checks that no step after the first few of them allocated or synchronised;
 * returns how many steps that span held. The span begins where this thread sees a token, which on a busy
 * machine may be any number of steps behind the engine. */
static uint64_t steady_span(sluice_engine *engine, uint32_t tokens) {
    sluice_sequence *sequence = open_sequence(engine);
    int32_t token = 1;
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = &token,
                                      .token_count = 1,
                                      .generate = tokens,
                                      .ignore_eos = true,
                                      .no_text = true};
    sluice_request *request = submit(sequence, &options);
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    sluice_counters first = {.size = sizeof first}, last = {.size = sizeof last};
    uint64_t before = 0;
    size_t seen = 0;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        seen += event.kind == SLUICE_EVENT_TOKEN;
        if (seen == 40 && before == 0) {
            sluice_engine_get_counters(engine, &first);
            before = sl_alloc_count();
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    uint64_t after = sl_alloc_count();
    sluice_engine_get_counters(engine, &last);
    assert_int_equal(seen, tokens);
    assert_int_equal(after, before);
    assert_int_equal(last.device_allocations, first.device_allocations);
    assert_int_equal(last.synchronisations, first.synchronisations);
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    return last.steps - first.steps;
}

static void steady_steps_allocate_nothing(void **state) {
    (void)state;
    enum { STEPS = SANITIZED ? 100 : 1000 }; /* who allocates is the same */
    for (size_t family = 3; family < sizeof families / sizeof *families; family++) {
        sluice_model *model = make_model(families[family], "q8_0", false);
        sluice_engine_options options = {
            .size = sizeof options, .device = device, .context = 1200, .sequences = 2, .threads = 2};
        sluice_engine *engine = open_engine(model, &options);
        uint64_t steps = 0;
        for (int spans = 0; spans < 20 && steps < STEPS; spans++) {
            steps += steady_span(engine, STEPS + 50);
        }
        assert_true(steps >= STEPS);
        sluice_engine_destroy(engine);
        sluice_model_release(model);
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
            deterministic = strncmp(device, "cuda", 4) == 0;
        } else if (strcmp(argv[i], "--tokens") == 0) {
            const int tokens = atoi(argv[i + 1]);
            length = tokens > 0 && tokens < TOKENS ? tokens : TOKENS;
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]); /* a family, or a pattern of names */
        }
    }
    enum { FAMILIES = sizeof families / sizeof *families };
    struct CMUnitTest tests[FAMILIES + 13];
    for (size_t i = 0; i < FAMILIES; i++) {
        tests[i] = (struct CMUnitTest){families[i], family_gives_the_same_bits_every_way, NULL, NULL,
                                       (void *)(size_t)&families[i]};
    }
    tests[FAMILIES] = (struct CMUnitTest)cmocka_unit_test(wide_heads_give_the_same_bits_every_way);
    tests[FAMILIES + 3] = (struct CMUnitTest)cmocka_unit_test(one_border_gives_the_same_bits);
    tests[FAMILIES + 5] = (struct CMUnitTest)cmocka_unit_test(one_models_experts_apart_give_the_same_bits);
    tests[FAMILIES + 4] = (struct CMUnitTest)cmocka_unit_test(experts_apart_give_the_same_bits);
    tests[FAMILIES + 2] = (struct CMUnitTest)cmocka_unit_test(every_border_gives_the_same_bits);
    tests[FAMILIES + 6] = (struct CMUnitTest)cmocka_unit_test(fetched_experts_give_the_same_bits);
    tests[FAMILIES + 1] = (struct CMUnitTest)cmocka_unit_test(steady_steps_allocate_nothing);
    tests[FAMILIES + 7] = (struct CMUnitTest)cmocka_unit_test(products_in_bf16_give_the_same_bits_every_way);
    tests[FAMILIES + 8] = (struct CMUnitTest)cmocka_unit_test(fetched_layers_give_the_same_bits);
    tests[FAMILIES + 9] = (struct CMUnitTest)cmocka_unit_test(one_models_fetched_layers_give_the_same_bits);
    tests[FAMILIES + 10] = (struct CMUnitTest)cmocka_unit_test(the_cpu_has_runs);
    tests[FAMILIES + 11] = (struct CMUnitTest)cmocka_unit_test(ranks_give_the_same_bits);
    tests[FAMILIES + 12] = (struct CMUnitTest)cmocka_unit_test(chosen_experts_give_the_same_bits);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
