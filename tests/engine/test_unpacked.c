/* An engine with no_repack reads weights where the file is mapped: no copy of them is planned, and the logits
 * are the same bits, on every weight type and instruction tier. */
#include "quant/qtype.h"
#include "support/engine.h"
#include "support/sanitized.h"

#include <stdio.h>
#include <unistd.h>

/* No whole number of panels; in the feed-forward block more columns than are packed at once. */
enum { TOKENS = 20, VOCABULARY = 390, FEED_FORWARD = 2304 };

/* With biases, and with experts. */
static const char *const families[] = {"qwen2", "qwen3moe"};
static const struct way {
    const char *tier;
    sluice_prompt_precision precision;
} ways[] = {{"plain", SLUICE_PROMPT_AUTO},  {"avx2", SLUICE_PROMPT_AUTO}, {"avxvnni", SLUICE_PROMPT_AUTO},
            {"avx512", SLUICE_PROMPT_AUTO}, {"amx", SLUICE_PROMPT_AUTO},  {"amx", SLUICE_PROMPT_BF16}};
/* NULL: no file has it. */
static const char *const types[] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    (gguf_type) == SL_QTYPE_NO_GGUF ? NULL : #name,
#include "quant/qtypes.def"
#undef SL_QTYPE
};

static sluice_model *make_model(const char *family, const char *type) {
    char path[512];
    snprintf(path, sizeof path, "%s/unpacked-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = family,
                                          .type = type,
                                          .seed = 5,
                                          .layers = 1,
                                          .width = 256,
                                          .feed_forward = FEED_FORWARD,
                                          .expert_width = strstr(family, "moe") ? FEED_FORWARD : 0,
                                          .vocabulary = VOCABULARY};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static sluice_engine_options options_of(const struct way *way, bool no_repack) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = "cpu",
                                   .isa = way->tier,
                                   .prompt_precision = way->precision,
                                   .threads = 2,
                                   .chunk = 16, /* a step of many rows, and one of few */
                                   .sequences = 1,
                                   .context = 64,
                                   .outputs = 16,
                                   .no_repack = no_repack};
}

static bool has_tier(sluice_model *model, const struct way *way) {
    const sluice_engine_options options = options_of(way, false);
    sluice_error error;
    char *text = NULL;
    const int result = sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error);
    sluice_free(text);
    return result == 0;
}

/* Bytes that were planned. */
static uint64_t run(sluice_model *model, const struct way *way, bool no_repack, float *logits) {
    const sluice_engine_options engine_options = options_of(way, no_repack);
    int32_t tokens[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (i * 7919 + 13) % VOCABULARY;
    }
    sluice_engine *engine = open_engine(model, &engine_options);
    sluice_sequence *sequence = open_sequence(engine);
    const sluice_request_options options = {
        .size = sizeof options, .tokens = tokens, .token_count = TOKENS, .logits = SLUICE_LOGITS_ALL};
    collected got = {.logits = logits, .vocabulary = VOCABULARY, .room = TOKENS};
    collect(submit(sequence, &options), &got);
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return counters.memory;
}

static void unpacked_weights_give_the_same_bits(void **state) {
    (void)state;
    static float packed[TOKENS * VOCABULARY], unpacked[TOKENS * VOCABULARY];
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        const char *family = families[type % (sizeof families / sizeof *families)];
        sluice_model *model = types[type] && !SEARCHED_SLOWLY(type) ? make_model(family, types[type]) : NULL;
        for (size_t tier = 0; model && tier < sizeof ways / sizeof *ways; tier++) {
            if (!has_tier(model, &ways[tier]) || (SANITIZED && (type + tier) % 16 != 0)) {
                continue;
            }
            memset(unpacked, 0, sizeof unpacked);
            const uint64_t with = run(model, &ways[tier], false, packed);
            const uint64_t without = run(model, &ways[tier], true, unpacked);
            if (memcmp(packed, unpacked, sizeof packed)) {
                fail_msg("%s %s %s: logits differ", family, types[type], ways[tier].tier);
            }
            assert_true(tier == 0 ? with == without : without < with);
        }
        sluice_model_release(model);
    }
}

/* The plan says that nothing is packed, and what it reads in the file. */
static void plans_have_no_copies(void **state) {
    (void)state;
    sluice_model *model = make_model("qwen2", "q8_0");
    const sluice_engine_options options = options_of(&(struct way){NULL, SLUICE_PROMPT_AUTO}, true);
    sluice_error error;
    char *text = NULL;
    must(sluice_plan_describe(model, &options, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error), &error,
         "plan");
    assert_null(strstr(text, "packed for"));
    assert_non_null(strstr(text, "mapped weights"));
    sluice_free(text);
    sluice_model_release(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpacked_weights_give_the_same_bits),
        cmocka_unit_test(plans_have_no_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
