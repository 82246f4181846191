/* Logits and greedy text of tiny random models of every family against what Hugging Face transformers
 * computes (README.md here). */
#include "support/engine.h"
#include "support/sanitized.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* Relative: the norm of the difference over the norm of the logits. Absolute: what tells every mutant of the
 * README's table from the model. Where weights are BF16, the AVX-512, AMX and CUDA kernels round activations
 * to BF16 too (8 bits of mantissa), which the oracle does not, and CUDA's for many rows FP8 weights besides.
 * Prompts of FP8 weights round activations to E4M3 (3 bits) on CUDA, unless asked for BF16.
 * NVFP4 and MXFP4 are multiplied as int8, and activations are rounded to that: what the weights are is told
 * by the same model written in F32. */
typedef struct limits {
    double relative, absolute;
} limits;
static const limits f32_limits = {1e-4, 5e-4}, bf16_limits = {2e-2, 2e-1}, int8_limits = {8e-2, 1.5},
                    fp8_limits = {4e-2, 8e-1}, e4m3_limits = {2.5e-1, 3.5},
                    mxfp4_limits = {3e-1, 8}; /* gpt-oss: what its activation clamps is rounded */

static const char *const cases[] = {"llama",
                                    "llama-scaled",
                                    "mistral",
                                    "qwen2",
                                    "qwen3",
                                    "qwen3-tied",
                                    "qwen3-bf16",
                                    "qwen3moe",
                                    "qwen3moe-nonorm",
                                    "gemma3",
                                    "qwen3_5",
                                    "llama-fp8-block",
                                    "llama-nvfp4",
                                    "qwen3-fp8-channel",
                                    "qwen3moe-nvfp4",
                                    "gemma4-e",
                                    "gemma4-dense",
                                    "gemma4-moe",
                                    "qwen3_5_moe",
                                    "qwen3_next",
                                    "gpt_oss",
                                    "gpt_oss-mxfp4",
                                    "ministral3",
                                    "smollm3",
                                    "granite",
                                    "olmo3",
                                    "seed_oss",
                                    "olmo2",
                                    "exaone4",
                                    "hunyuan",
                                    "glm4",
                                    "ernie4_5",
                                    "phi3",
                                    "phi3-long",
                                    "glm4_moe",
                                    "minimax_m2",
                                    "ernie4_5_moe",
                                    "deepseek_v2",
                                    "deepseek_v3",
                                    "deepseek_v3-noq",
                                    "granite-h",
                                    "granite-h-moe",
                                    "nemotron_h",
                                    "nemotron_h-latent",
                                    "lfm2",
                                    "lfm2_moe",
                                    "gpt_oss-truncate",
                                    "hunyuan-alpha",
                                    "glm4_moe-plain",
                                    "hunyuan_moe",
                                    "cohere2",
                                    "mistral4",
                                    "apertus",
                                    "falcon_h1",
                                    "falcon_h1-norm",
                                    "llama4"};

static const char *device = "cpu"; /* --device */

typedef struct oracle {
    char folder[1024];
    json_t *facts, *greedy;
    int32_t tokens[512], prompt[64], continuation[64];
    size_t token_count, prompt_count, continuation_count, position_count, vocabulary;
    float *logits; /* [position_count][vocabulary] */
} oracle;

static size_t read_ids(json_t *array, int32_t *ids) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return json_array_size(array);
}

static json_t *load_json(const char *folder, const char *name) {
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    json_error_t error;
    json_t *value = json_load_file(path, 0, &error);
    if (!value) {
        fail_msg("%s: %s", path, error.text);
    }
    return value;
}

static void oracle_open(oracle *o, const char *name) {
    snprintf(o->folder, sizeof o->folder, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, name);
    o->facts = load_json(o->folder, "case.json");
    o->greedy = load_json(o->folder, "greedy.json");
    o->token_count = read_ids(json_object_get(o->facts, "tokens"), o->tokens);
    o->prompt_count = read_ids(json_object_get(o->greedy, "prompt"), o->prompt);
    o->continuation_count = read_ids(json_object_get(o->greedy, "tokens"), o->continuation);
    o->position_count = json_array_size(json_object_get(o->facts, "positions"));
    o->vocabulary = (size_t)json_integer_value(json_object_get(o->facts, "vocab"));
    char path[2048];
    snprintf(path, sizeof path, "%s/logits.f32", o->folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    o->logits = malloc(o->position_count * o->vocabulary * sizeof(float));
    assert_int_equal(fread(o->logits, sizeof(float), o->position_count * o->vocabulary, file),
                     o->position_count * o->vocabulary);
    fclose(file);
}

static void oracle_close(oracle *o) {
    json_decref(o->facts);
    json_decref(o->greedy);
    free(o->logits);
}

static double compare_logits(const oracle *o, const float *logits, const limits *limit, const char *what) {
    double difference = 0, norm = 0, largest = 0;
    for (size_t i = 0; i < o->position_count; i++) {
        size_t position =
            (size_t)json_integer_value(json_array_get(json_object_get(o->facts, "positions"), i));
        for (size_t v = 0; v < o->vocabulary; v++) {
            double want = o->logits[i * o->vocabulary + v],
                   d = (double)logits[position * o->vocabulary + v] - want;
            difference += d * d;
            norm += want * want;
            largest = fabs(d) > largest ? fabs(d) : largest;
        }
    }
    double relative = sqrt(difference / norm);
    printf("%s: relative %.2e, largest %.2e\n", what, relative, largest);
    if (!(relative <= limit->relative) || !(largest <= limit->absolute)) {
        fail_msg("%s: logits differ from the oracle's: relative %g (limit %g), largest %g (limit %g)", what,
                 relative, limit->relative, largest, limit->absolute);
    }
    return relative;
}

static double check_logits(const oracle *o, sluice_engine *engine, const limits *limit, const char *what) {
    sluice_sequence *sequence = open_sequence(engine);
    float *logits = calloc(o->token_count * o->vocabulary, sizeof(float));
    sluice_request_options read = {
        .size = sizeof read, .tokens = o->tokens, .token_count = o->token_count, .logits = SLUICE_LOGITS_ALL};
    collected got = {.logits = logits, .vocabulary = o->vocabulary, .room = o->token_count};
    collect(submit(sequence, &read), &got);
    const double relative = compare_logits(o, logits, limit, what);
    free(logits);
    sluice_sequence_release(sequence);
    return relative;
}

/* How far the engine may be, from how it rounds the activations that it multiplies with `weights`. */
static const limits *limits_of(const char *weights, const char *isa, sluice_prompt_precision precision) {
    const bool cuda = strncmp(device, "cuda", 4) == 0;
    if (strcmp(weights, "nvfp4") == 0) {
        return &int8_limits;
    }
    if (strcmp(weights, "mxfp4") == 0) {
        return &mxfp4_limits;
    }
    if (strcmp(weights, "fp8") == 0 && cuda) {
        return precision == SLUICE_PROMPT_BF16 ? &fp8_limits : &e4m3_limits;
    }
    const bool rounds = cuda || (isa && (strcmp(isa, "avx512") == 0 || strcmp(isa, "amx") == 0));
    return strcmp(weights, "bf16") == 0 && rounds ? &bf16_limits : &f32_limits;
}

static const char *weights_of(const oracle *o) {
    static const char *const names[] = {"bf16", "nvfp4", "fp8", "mxfp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strstr(strrchr(o->folder, '/'), names[i])) {
            return names[i];
        }
    }
    return "f32";
}

/* A way to run a model that is the oracle's, with these weights. */
typedef struct way {
    const char *weights, *isa;
    int32_t chunk;
    sluice_prompt_precision precision;
} way;

static void check_case(const oracle *o, sluice_model *model, const way *w) {
    const char *isa = w->isa;
    const int32_t chunk = w->chunk;
    /* An F32 cache: the oracle rounds nothing. */
    sluice_engine_options options = {.size = sizeof options,
                                     .device = device,
                                     .isa = isa,
                                     .chunk = chunk,
                                     .context = 512,
                                     .outputs = chunk,
                                     .kv_type = "f32",
                                     .prompt_precision = w->precision};
    sluice_engine *engine = open_engine(model, &options);
    char what[1200];
    snprintf(what, sizeof what, "%s, %s, %s, chunk %d%s", strrchr(o->folder, '/') + 1, w->weights,
             isa ? isa : "as a file", (int)chunk,
             w->precision == SLUICE_PROMPT_BF16 ? ", prompts in BF16" : "");
    const limits *limit = limits_of(w->weights, isa, w->precision);
    check_logits(o, engine, limit, what);

    if (limit != &f32_limits) {
        /* The oracle's choices on the way are closer to each other than what rounding moves. */
        printf("%s: greedy text not compared, activations are rounded\n", what);
        sluice_engine_destroy(engine);
        return;
    }
    if (strstr(o->folder, "phi3-long")) {
        printf("%s: greedy text not compared, the oracle takes LongRoPE's short factors for short texts\n",
               what);
        sluice_engine_destroy(engine);
        return;
    }
    sluice_sequence *sequence = open_sequence(engine);
    int32_t tokens[64];
    sluice_request_options generate = {.size = sizeof generate,
                                       .tokens = o->prompt,
                                       .token_count = o->prompt_count,
                                       .generate = o->continuation_count,
                                       .no_text = true,
                                       .ignore_eos = true};
    collected got = {.tokens = tokens};
    assert_int_equal(collect(submit(sequence, &generate), &got), o->continuation_count);
    assert_memory_equal(tokens, o->continuation, o->continuation_count * sizeof *tokens);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

/* Under a sanitizer two tiers, the next model's others. */
static void check_model(const oracle *o, sluice_model *model, const char *weights) {
    static const char *const tiers[] = {"plain", "avx2", "avxvnni", "avx512", "amx"};
    static size_t turn;
    turn++;
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++) {
        if (SANITIZED && strcmp(device, "cpu") == 0 && (turn + t) % (sizeof tiers / sizeof *tiers) > 1) {
            continue;
        }
        sluice_engine_options probe = {.size = sizeof probe, .device = device, .isa = tiers[t]};
        char *text;
        sluice_error error;
        if (sluice_plan_describe(model, &probe, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error)) {
            printf("%s: skipped: %s\n", tiers[t], error.message);
            continue;
        }
        sluice_free(text);
        check_case(o, model, &(way){weights, tiers[t], 512, SLUICE_PROMPT_AUTO});
        check_case(o, model, &(way){weights, tiers[t], 7, SLUICE_PROMPT_BF16});
        if (strncmp(device, "cuda", 4) == 0) {
            check_case(o, model, &(way){weights, tiers[t], 512, SLUICE_PROMPT_BF16});
            break; /* tiers are the CPU's */
        }
    }
}

/* The same written as a GGUF file, whose names, orders of rows and keys are others. Where GGUF has no key for
 * what a folder says, none is written. */
static void check_written(const oracle *o, const char *name) {
    char file[256];
    sluice_error error;
    snprintf(file, sizeof file, "test_logits-%s-%d.gguf", name, (int)getpid());
    const int code = sluice_quantize(o->folder, file, "f32", NULL, NULL, &error);
    if (code == SLUICE_ERR_UNSUPPORTED) {
        printf("%s: not as GGUF: %s\n", name, error.message);
        return;
    }
    must(code, &error, "quantize");
    sluice_model *model = open_model(file);
    check_case(o, model, &(way){"f32", NULL, 512, SLUICE_PROMPT_AUTO});
    sluice_model_release(model);
    unlink(file);
}

static void family_matches_transformers(void **state) {
    oracle o = {0};
    oracle_open(&o, *state);
    sluice_model *model = open_model(o.folder);
    check_model(&o, model, weights_of(&o));
    sluice_model_release(model);
    if (strcmp(weights_of(&o), "f32") == 0) {
        check_written(&o, *state);
    }
    if (strcmp(weights_of(&o), "nvfp4") == 0 || strcmp(weights_of(&o), "mxfp4") == 0) {
        char file[256];
        sluice_error error;
        snprintf(file, sizeof file, "test_logits-%s-%d.gguf", (const char *)*state, (int)getpid());
        must(sluice_quantize(o.folder, file, "f32", NULL, NULL, &error), &error, "quantize");
        model = open_model(file);
        check_model(&o, model, "f32");
        sluice_model_release(model);
        unlink(file);
    }
    oracle_close(&o);
}

/* What a cache of fewer bits costs, with and without products by cuBLAS. */
static void caches_round_a_little(void **state) {
    static const struct {
        const char *type;
        limits limit;
    } caches[] = {
        {"f16", {3e-3, 3e-2}}, {"bf16", {1.7e-2, 2e-1}}, {"q8_0", {5.5e-2, 7e-1}}, {"fp8", {2.5e-1, 3.5}}};
    oracle o = {0};
    oracle_open(&o, *state);
    sluice_model *model = open_model(o.folder);
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        const bool gpu = strncmp(device, "cuda", 4) == 0;
        for (int asked = 0; asked <= gpu; asked++) {
            sluice_engine_options options = {.size = sizeof options,
                                             .device = device,
                                             .context = 512,
                                             .outputs = 512,
                                             .chunk = 512,
                                             .kv_type = caches[i].type,
                                             .kernels = asked ? "attention/cuda-cublas" : NULL};
            sluice_engine *engine = open_engine(model, &options);
            char what[1200];
            snprintf(what, sizeof what, "%s, cache of %s%s", strrchr(o.folder, '/') + 1, caches[i].type,
                     asked ? ", cuBLAS" : "");
            /* And it does cost that: another type was not taken instead. */
            assert_true(check_logits(&o, engine, &caches[i].limit, what) > caches[i].limit.relative / 6);
            sluice_engine_destroy(engine);
        }
    }
    sluice_model_release(model);
    oracle_close(&o);
}

/* What the engine computes for a folder of floats, of the first model's vocabulary, in place of
 * transformers'. */
static void oracle_from(oracle *o, const char *name) {
    enum { TOKENS = 96 };
    snprintf(o->folder, sizeof o->folder, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, name);
    json_t *positions = json_array();
    for (int32_t i = 0; i < TOKENS; i++) {
        o->tokens[i] = i * 37 % 251;
        json_array_append_new(positions, json_integer(i));
    }
    o->facts = json_pack("{s:o}", "positions", positions);
    o->token_count = o->position_count = TOKENS;
    o->vocabulary = 256;
    o->logits = calloc(TOKENS * o->vocabulary, sizeof(float));
    assert_non_null(o->logits);
}

static void run_all(oracle *o, const char *folder, const limits *limit, const char *what) {
    sluice_engine_options options = {.size = sizeof options,
                                     .device = device,
                                     .context = 512,
                                     .outputs = 512,
                                     .chunk = 512,
                                     .kv_type = "f32",
                                     .deterministic = true};
    sluice_model *model = open_model(folder);
    sluice_engine *engine = open_engine(model, &options);
    if (limit) {
        check_logits(o, engine, limit, what);
    } else {
        sluice_sequence *sequence = open_sequence(engine);
        sluice_request_options read = {.size = sizeof read,
                                       .tokens = o->tokens,
                                       .token_count = o->token_count,
                                       .logits = SLUICE_LOGITS_ALL};
        collected got = {.logits = o->logits, .vocabulary = o->vocabulary, .room = o->token_count};
        collect(submit(sequence, &read), &got);
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* Written as F32, so that nothing is rounded on the way. */
static void run_written(oracle *o, const char *folder, const limits *limit, const char *what) {
    char file[256];
    sluice_error error;
    snprintf(file, sizeof file, "test_logits-integers-%d.gguf", (int)getpid());
    must(sluice_quantize(folder, file, "f32", NULL, NULL, &error), &error, "quantize");
    run_all(o, file, limit, what);
    unlink(file);
}

/* Folders of integers against the same numbers in floats; but zero points are rounded. */
static void integers_are_their_values(void **state) {
    (void)state;
    static const limits same = {0, 0}, zeros = {1e-2, 1e-1};
    static const struct {
        const char *folder, *values;
        const limits *limit;
    } pairs[] = {{"qwen3-int4", "qwen3-int4-values", &same},
                 {"qwen3-gptq", "qwen3-int4-values", &same},
                 {"qwen3-gptq-zeros", "qwen3-int4-zeros-values", &zeros},
                 {"qwen3-awq", "qwen3-int4-zeros-values", &zeros},
                 {"qwen3-gptq-8", "qwen3-int8-values", &same},
                 {"qwen3moe-int4", "qwen3moe-int4-values", &same}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        oracle o = {0};
        char folder[2048];
        oracle_from(&o, pairs[i].values);
        run_written(&o, o.folder, NULL, NULL);
        snprintf(folder, sizeof folder, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, pairs[i].folder);
        run_all(&o, folder, &int8_limits, pairs[i].folder);
        run_written(&o, folder, pairs[i].limit, "the same as F32");
        oracle_close(&o);
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]); /* a case, or a pattern of names */
        }
    }
    enum { CASES = sizeof cases / sizeof *cases };
    struct CMUnitTest tests[CASES + 2];
    for (size_t i = 0; i < CASES; i++) {
        tests[i] =
            (struct CMUnitTest){cases[i], family_matches_transformers, NULL, NULL, (void *)(size_t)cases[i]};
    }
    tests[CASES] = (struct CMUnitTest){"caches_round_a_little", caches_round_a_little, NULL, NULL,
                                       (void *)(size_t) "qwen3"};
    tests[CASES + 1] = (struct CMUnitTest)cmocka_unit_test(integers_are_their_values);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
