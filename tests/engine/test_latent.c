/* Latent attention's direct form (src/backend/cuda/attention/latent/direct.cu) against the ops' own kernels:
 * logits of all rows, with and without fusion, within what two ways of rounding differ by. Needs a GPU with
 * compute capability 9.0. The models are folders, whose matrices of keys are turned, and synthetic files,
 * whose are not.
 *
 *     test_latent [--device cuda:N] [--only CASE] */
#include "support/engine.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WIDTH = 64, VOCABULARY = 320, CHUNK = 512, CONTEXT = 640, SEQUENCES = 4, ROUNDS = 2 };
#define RUN "latent-direct/cuda"
#define TOLERANCE 0.03

static const char *device = "cuda";

typedef struct latent_case {
    const char *name, *cache_type;
    int32_t heads, part, rope, value, latent; /* of a folder; heads 0: a synthetic file of that type */
    const char *type;
    int32_t sequences;
    int32_t rows[ROUNDS][SEQUENCES]; /* that each sequence has in a step */
    double tolerance;                /* of a row: the differences' root mean square over its own */
} latent_case;

/* In the first step one sequence goes directly, one is short, one has just enough rows. In the second one has
 * just too few behind many keys, one begins in the middle of a page. */
#define MIXED .sequences = 4, .rows = {{300, 8, 192}, {191, 250, 0, 1}}
/* Each step is one sequence's, which goes directly whatever it has; the second begins in the middle of a
 * page. */
#define ALONE .sequences = 1, .rows = {{300}, {230}}

static const latent_case cases[] = {
    {"one sequence, DeepSeek's heads", "f16", .type = "q8_0", ALONE, .tolerance = 2 * TOLERANCE},
    {"sequences long and short, a bf16 cache", "bf16", 2, 64, 32, 64, 128, MIXED, .tolerance = 2 * TOLERANCE},
    {"one sequence, heads of two tiles", "f16", 2, 192, 64, 256, 64, ALONE, .tolerance = TOLERANCE},
    {"one sequence, odd sizes", "f16", 3, 40, 8, 24, 112, ALONE, .tolerance = TOLERANCE},
};

/* ---- a folder ---- */

typedef struct folder_tensor {
    const char *name;
    int32_t layer;         /* NO_LAYER: of none */
    int32_t rows, columns; /* rows 0: a vector */
} folder_tensor;

enum { LAYERS = 2, NO_LAYER = -1, MOST_TENSORS = 32 };

static int list_tensors(const latent_case *c, folder_tensor *list) {
    const int32_t keys = c->heads * (c->part + c->rope), hidden = 2 * WIDTH;
    const folder_tensor whole[] = {
        {"lm_head.weight", NO_LAYER, VOCABULARY, WIDTH},
        {"model.embed_tokens.weight", NO_LAYER, VOCABULARY, WIDTH},
        {"model.norm.weight", NO_LAYER, 0, WIDTH},
    };
    const folder_tensor layer[] = {
        {"input_layernorm.weight", 0, 0, WIDTH},
        {"post_attention_layernorm.weight", 0, 0, WIDTH},
        {"mlp.gate_proj.weight", 0, hidden, WIDTH},
        {"mlp.up_proj.weight", 0, hidden, WIDTH},
        {"mlp.down_proj.weight", 0, WIDTH, hidden},
        {"self_attn.kv_a_layernorm.weight", 0, 0, c->latent},
        {"self_attn.kv_a_proj_with_mqa.weight", 0, c->latent + c->rope, WIDTH},
        {"self_attn.kv_b_proj.weight", 0, c->heads * (c->part + c->value), c->latent},
        {"self_attn.o_proj.weight", 0, WIDTH, c->heads * c->value},
        {"self_attn.q_proj.weight", 0, keys, WIDTH},
    };
    enum { WHOLE = sizeof whole / sizeof *whole, EACH = sizeof layer / sizeof *layer };
    memcpy(list, whole, sizeof whole);
    for (int32_t l = 0; l < LAYERS; l++) {
        memcpy(list + WHOLE + l * EACH, layer, sizeof layer);
        for (int32_t i = 0; i < EACH; i++) {
            list[WHOLE + l * EACH + i].layer = l;
        }
    }
    return WHOLE + LAYERS * EACH;
}

static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* BF16, large enough that what attends to what matters. */
static void write_tensors(FILE *file, const latent_case *c) {
    static folder_tensor list[MOST_TENSORS];
    const int count = list_tensors(c, list);
    static char header[8192];
    size_t length = 0, offset = 0;
    uint64_t state = 5, bytes;
    for (int i = 0; i < count; i++) {
        const size_t size = (size_t)(list[i].rows ? list[i].rows : 1) * (size_t)list[i].columns * 2;
        char shape[32], name[96];
        if (list[i].layer == NO_LAYER) {
            snprintf(name, sizeof name, "%s", list[i].name);
        } else {
            snprintf(name, sizeof name, "model.layers.%d.%s", (int)list[i].layer, list[i].name);
        }
        snprintf(shape, sizeof shape, list[i].rows ? "%d,%d" : "%.0d%d", list[i].rows, list[i].columns);
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                   i ? "," : "{", name, shape, offset, offset + size);
        offset += size;
    }
    header[length++] = '}';
    while (length % 8 != 0) {
        header[length++] = ' ';
    }
    bytes = length;
    assert_int_equal(fwrite(&bytes, sizeof bytes, 1, file) + fwrite(header, length, 1, file), 2);
    for (int i = 0; i < count; i++) {
        const int32_t rows = list[i].rows ? list[i].rows : 1;
        const float scale = 3.0f / sqrtf((float)list[i].columns);
        for (int32_t e = 0; e < rows * list[i].columns; e++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const float uniform = (float)(state >> 40) / (float)(1 << 23) - 1;
            const uint16_t value = bf16_of(list[i].rows ? scale * uniform : 1 + 0.25f * uniform);
            assert_int_equal(fwrite(&value, sizeof value, 1, file), 1);
        }
    }
}

static void write_config(FILE *file, const latent_case *c) {
    fprintf(
        file,
        "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", "
        "\"attention_bias\": false, \"bos_token_id\": 0, \"eos_token_id\": 1, "
        "\"first_k_dense_replace\": 2, \"head_dim\": %d, \"hidden_act\": \"silu\", \"hidden_size\": %d, "
        "\"intermediate_size\": %d, \"kv_lora_rank\": %d, \"max_position_embeddings\": 4096, "
        "\"moe_intermediate_size\": 16, \"n_group\": 1, \"n_routed_experts\": 8, \"n_shared_experts\": 1, "
        "\"norm_topk_prob\": false, \"num_attention_heads\": %d, \"num_experts_per_tok\": 2, "
        "\"num_hidden_layers\": 2, \"num_key_value_heads\": %d, \"q_lora_rank\": null, "
        "\"qk_nope_head_dim\": %d, \"qk_rope_head_dim\": %d, \"rms_norm_eps\": 1e-6, "
        "\"rope_theta\": 10000.0, \"routed_scaling_factor\": 1.0, \"tie_word_embeddings\": false, "
        "\"topk_group\": 1, \"topk_method\": \"greedy\", \"v_head_dim\": %d, \"vocab_size\": %d}\n",
        c->rope, WIDTH, 2 * WIDTH, c->latent, c->heads, c->heads, c->part, c->rope, c->value, VOCABULARY);
}

static sluice_model *open_folder(const latent_case *c) {
    char path[256], file[300];
    snprintf(path, sizeof path, "%s/latent-%d", SLUICE_BINARY_DIR, (int)getpid());
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(file, sizeof file, "%s/config.json", path);
    FILE *config = fopen(file, "w");
    assert_non_null(config);
    write_config(config, c);
    fclose(config);
    char tensors[300];
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", path);
    FILE *weights = fopen(tensors, "wb");
    assert_non_null(weights);
    write_tensors(weights, c);
    fclose(weights);
    sluice_model *model = open_model(path);
    unlink(file);
    unlink(tensors);
    rmdir(path);
    return model;
}

static sluice_model *open_synthetic(const latent_case *c) {
    char path[256];
    snprintf(path, sizeof path, "%s/latent-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = "deepseek-v2-lite",
                                          .type = c->type,
                                          .seed = 3,
                                          .layers = LAYERS,
                                          .width = 256,
                                          .heads = 2,
                                          .feed_forward = 256,
                                          .experts = 4,
                                          .experts_used = 2,
                                          .expert_width = 256,
                                          .vocabulary = VOCABULARY};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path);
    return model;
}

static sluice_model *open_case(const latent_case *c) {
    return c->heads > 0 ? open_folder(c) : open_synthetic(c);
}

/* ---- runs ---- */

static sluice_engine_options options_of(const latent_case *c, bool no_fusion) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = device,
                                   .chunk = CHUNK,
                                   .sequences = c->sequences,
                                   .context = CONTEXT,
                                   .outputs = c->sequences,
                                   .kv_type = c->cache_type,
                                   .no_fusion = no_fusion,
                                   .no_prefix_reuse = true};
}

typedef struct latent_logits {
    float rows[SEQUENCES][ROUNDS][VOCABULARY];
} latent_logits;

/* All sequences' rows of a round are one step. */
static void run_round(sluice_sequence *const *sequences, const latent_case *c, int32_t round,
                      int32_t lengths[SEQUENCES], latent_logits *logits) {
    const int32_t *rows = c->rows[round];
    static int32_t tokens[SEQUENCES][CONTEXT];
    sluice_request_options asked[SEQUENCES];
    const sluice_request_options *each[SEQUENCES];
    sluice_sequence *taken[SEQUENCES];
    sluice_request *requests[SEQUENCES];
    int32_t whose[SEQUENCES];
    size_t count = 0;
    sluice_error error;
    for (int32_t s = 0; s < SEQUENCES; s++) {
        if (rows[s] == 0) {
            continue;
        }
        for (int32_t i = 0; i < rows[s]; i++) {
            tokens[s][i] = ((lengths[s] + i) * 71 + 5 + 13 * s) % VOCABULARY;
        }
        asked[count] = (sluice_request_options){.size = sizeof *asked,
                                                .tokens = tokens[s],
                                                .token_count = (size_t)rows[s],
                                                .logits = SLUICE_LOGITS_LAST,
                                                .no_text = true};
        each[count] = &asked[count];
        taken[count] = sequences[s];
        whose[count++] = s;
    }
    must(sluice_submit_together(taken, each, count, requests, &error), &error, "submit");
    for (size_t i = 0; i < count; i++) {
        const int32_t s = whose[i];
        lengths[s] += rows[s];
        collected got = {.logits = logits->rows[s][round],
                         .vocabulary = VOCABULARY,
                         .first = (size_t)lengths[s] - 1,
                         .room = 1};
        collect(requests[i], &got);
    }
}

static void run_case(sluice_model *model, const latent_case *c, bool no_fusion, latent_logits *logits) {
    const sluice_engine_options options = options_of(c, no_fusion);
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequences[SEQUENCES];
    int32_t lengths[SEQUENCES] = {0};
    for (int32_t s = 0; s < c->sequences; s++) {
        sequences[s] = open_sequence(engine);
    }
    for (int32_t round = 0; round < ROUNDS; round++) {
        run_round(sequences, c, round, lengths, logits);
    }
    for (int32_t s = 0; s < c->sequences; s++) {
        sluice_sequence_release(sequences[s]);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.steps, ROUNDS);
    assert_int_equal(counters.failed_captures, 0);
    sluice_engine_destroy(engine);
}

/* Whether the plan's largest step, or its explanation, has the text. */
static bool says(sluice_model *model, sluice_engine_options options, sluice_plan_view part,
                 const char *what) {
    sluice_error error;
    char *text;
    must(sluice_plan_describe(model, &options, part, SLUICE_TEXT, &text, &error), &error, "plan");
    const bool found = strstr(text, what) != NULL;
    sluice_free(text);
    return found;
}

static void check_plans(sluice_model *model, const latent_case *c) {
    sluice_engine_options options = options_of(c, false);
    assert_true(says(model, options, SLUICE_PLAN_OPS, RUN));
    assert_true(says(model, options, SLUICE_PLAN_EXPLAIN, RUN " (direct/wgmma128)"));
    options.deterministic = true;
    assert_false(says(model, options, SLUICE_PLAN_OPS, RUN));
    assert_true(says(model, options, SLUICE_PLAN_EXPLAIN, RUN ": its bits depend on how steps are cut"));
    options = options_of(c, true);
    assert_false(says(model, options, SLUICE_PLAN_OPS, RUN));
}

/* Of a row: the differences' root mean square over its own. */
static double difference_of(const float *actual, const float *expected) {
    double squares = 0, differences = 0;
    for (int32_t v = 0; v < VOCABULARY; v++) {
        const double y = (double)expected[v], d = (double)actual[v] - y;
        squares += y * y;
        differences += d * d;
    }
    return sqrt(differences / squares);
}

static void gives_what_the_ops_give(void **state) {
    const latent_case *c = *state;
    static latent_logits expected, actual;
    sluice_model *model = open_case(c);
    check_plans(model, c);
    memset(&expected, 0, sizeof expected);
    memset(&actual, 0, sizeof actual);
    run_case(model, c, true, &expected);
    run_case(model, c, false, &actual);
    sluice_model_release(model);
    for (int32_t s = 0; s < c->sequences; s++) {
        for (int32_t round = 0; round < ROUNDS; round++) {
            if (c->rows[round][s] == 0) {
                continue;
            }
            const double difference = difference_of(actual.rows[s][round], expected.rows[s][round]);
            printf("sequence %d, step %d, %d rows: %.2g\n", s, round, c->rows[round][s], difference);
            if (!(difference <= c->tolerance)) {
                fail_msg("sequence %d, step %d: differs by %.3g of its root mean square", s, round,
                         difference);
            }
        }
    }
}

/* Why the device cannot run the cases, or NULL. */
static const char *cannot_run(void) {
    static char reason[512];
    sluice_model *model = open_case(&cases[0]);
    const sluice_engine_options options = options_of(&cases[0], false);
    sluice_error error;
    char *text = NULL;
    bool cannot = sluice_plan_describe(model, &options, SLUICE_PLAN_EXPLAIN, SLUICE_TEXT, &text, &error) != 0;
    snprintf(reason, sizeof reason, "%s", cannot ? error.message : "");
    if (!cannot && strstr(text, "needs compute capability 9.0")) {
        snprintf(reason, sizeof reason, "needs compute capability 9.0");
        cannot = true;
    }
    sluice_free(text);
    sluice_model_release(model);
    return cannot ? reason : NULL;
}

int main(int argc, char **argv) {
    enum { COUNT = sizeof cases / sizeof *cases };
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        }
    }
    const char *reason = cannot_run();
    if (reason) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        tests[i] = (struct CMUnitTest){cases[i].name, gives_what_the_ops_give, NULL, NULL,
                                       (void *)(size_t)&cases[i]};
    }
    return cmocka_run_group_tests_name("latent", tests, NULL, NULL);
}
