/* Matrices of integers (model/packed.h): folders that tests/logits/make_quantised.py wrote as the writers of
 * such folders do, against the same model in F32; what does not fit. */
#include "unit/model/support.h"

#include "base/log.h"
#include "model/files.h"
#include "model/packed.h"
#include "quant/blocks.h"

#include <math.h>

#define FOLDER SLUICE_BINARY_DIR "/test_packed_folder"
#define FILE_F32 SLUICE_BINARY_DIR "/test_packed.gguf"

typedef struct pair {
    const char *folder, *values;
    sl_qtype type;
    bool zeros;
} pair;

static const pair PAIRS[] = {
    {"qwen3-int4", "qwen3-int4-values", SL_QTYPE_Q4_0, false},
    {"qwen3-gptq", "qwen3-int4-values", SL_QTYPE_Q4_0, false},
    {"qwen3-int4-zeros", "qwen3-int4-zeros-values", SL_QTYPE_Q4_1, true},
    {"qwen3-gptq-zeros", "qwen3-int4-zeros-values", SL_QTYPE_Q4_1, true},
    {"qwen3-gptq-v2", "qwen3-int4-zeros-values", SL_QTYPE_Q4_1, true},
    {"qwen3-awq", "qwen3-int4-zeros-values", SL_QTYPE_Q4_1, true},
    {"qwen3-int8", "qwen3-int8-values", SL_QTYPE_Q8_0, false},
    {"qwen3-int8-bytes", "qwen3-int8-values", SL_QTYPE_Q8_0, false},
    {"qwen3-gptq-8", "qwen3-int8-values", SL_QTYPE_Q8_0, false},
    {"qwen3moe-int4", "qwen3moe-int4-values", SL_QTYPE_Q4_0, false},
};
enum { PAIR_COUNT = sizeof PAIRS / sizeof *PAIRS };

static float *decode(const sl_weight *w, size_t *count) {
    *count = (size_t)w->experts * (size_t)w->rows * (size_t)w->columns;
    float *values = malloc(*count * sizeof *values);
    assert_non_null(values);
    sl_qtype_get(w->type)->decode(w->data, values, *count);
    return values;
}

/* Exactly, but for zero points: zero * scale, below 15 * 256 * 2^-13 and so below a half, is rounded to F16.
 * A code's step is 128 times as much or more. */
static void assert_same_values(const sl_weight *a, const sl_weight *b, bool zeros) {
    const float allowed = zeros ? ldexpf(1, -13) : 0;
    size_t count, other;
    float *got = decode(a, &count), *want = decode(b, &other);
    assert_int_equal(count, other);
    for (size_t i = 0; i < count; i++) {
        if (!(fabsf(got[i] - want[i]) <= allowed)) {
            fail_msg("%s: number %zu is %g, not %g", a->name, i, (double)got[i], (double)want[i]);
        }
    }
    free(got);
    free(want);
}

static void assert_same_model(const sl_model *got, const sl_model *want, sl_qtype type, bool zeros) {
    int32_t integers = 0;
    assert_int_equal(got->program.weight_count, want->program.weight_count);
    for (int32_t i = 0; i < got->program.weight_count; i++) {
        assert_same_values(&got->program.weights[i], &want->program.weights[i], zeros);
        integers += got->program.weights[i].type == type;
    }
    assert_true(type == SL_QTYPE_COUNT || integers >= 6);
}

static void folders_hold_the_published_values(void **state) {
    (void)state;
    for (size_t i = 0; i < PAIR_COUNT; i++) {
        char path[512];
        fixture_path(PAIRS[i].folder, path);
        sl_model *got = must_load(path);
        fixture_path(PAIRS[i].values, path);
        sl_model *want = must_load(path);
        assert_same_model(got, want, PAIRS[i].type, PAIRS[i].zeros);
        /* all parameters are counted once, and every tensor but spare biases is in use */
        uint64_t elements[2] = {0, 0};
        for (int t = 0; t < SL_QTYPE_COUNT; t++) {
            elements[0] += got->description.types[t].elements;
            elements[1] += want->description.types[t].elements;
        }
        assert_int_equal(elements[0], elements[1]);
        const int spare = strcmp(PAIRS[i].folder, "qwen3-gptq") == 0 ? 2 * 7 : 0;
        assert_int_equal(got->description.tensors + spare, got->description.file_tensors);
        sl_model_free(got);
        sl_model_free(want);
    }
}

/* Gate's and up's rows are one matrix, so that this program is another one. */
static void experts_may_be_one_tensor(void **state) {
    (void)state;
    char path[512];
    fixture_path("qwen3moe-int4-one", path);
    sl_model *got = must_load(path);
    fixture_path("qwen3moe-int4-values", path);
    sl_model *want = must_load(path);
    assert_int_equal(got->description.tensors, got->description.file_tensors);
    int found = 0;
    for (int32_t i = 0; i < got->program.weight_count; i++) {
        const sl_weight *both = &got->program.weights[i];
        const sl_weight *parts[2] = {NULL, NULL};
        if (!strstr(both->name, "layers.1.mlp.experts.gate_up_proj")) {
            continue;
        }
        for (int32_t k = 0; k < want->program.weight_count; k++) {
            const char *name = want->program.weights[k].name;
            parts[0] =
                strstr(name, "layers.1.mlp.experts.*.gate_proj") ? &want->program.weights[k] : parts[0];
            parts[1] = strstr(name, "layers.1.mlp.experts.*.up_proj") ? &want->program.weights[k] : parts[1];
        }
        size_t count, half;
        float *all = decode(both, &count);
        for (int p = 0; p < 2; p++) {
            float *part = decode(parts[p], &half);
            const size_t expert = half / (size_t)parts[p]->experts;
            for (size_t e = 0; e < (size_t)both->experts; e++) {
                assert_memory_equal(all + (2 * e + (size_t)p) * expert, part + e * expert,
                                    expert * sizeof *all);
            }
            free(part);
            found++;
        }
        free(all);
    }
    assert_int_equal(found, 2);
    sl_model_free(got);
    sl_model_free(want);
}

/* Written as F32 they are what the blocks hold. */
static void folders_can_be_quantised(void **state) {
    (void)state;
    for (size_t i = 0; i < PAIR_COUNT; i++) {
        char path[512];
        sl_error error;
        const sl_quantize_options pure = {.mixture = sl_mixture_find("f32"), .pure = true, .replace = true};
        fixture_path(PAIRS[i].folder, path);
        if (sl_quantize_file(path, FILE_F32, &pure, NULL, NULL, &error)) {
            fail_msg("%s", error.message);
        }
        sl_model *folder = must_load(path), *file = must_load(FILE_F32);
        assert_same_model(file, folder, SL_QTYPE_COUNT, false);
        sl_model_free(folder);
        sl_model_free(file);
        unlink(FILE_F32);
    }
}

/* "layers.N.experts.E" and "layers.N.moe.experts.E": published folders have both. */
static bool edit_spelling(const char *context, edited *t) {
    char rest[128];
    char *at = strstr(t->name, ".experts.");
    (void)context;
    if (at) {
        snprintf(rest, sizeof rest, "%s", at);
        snprintf(at, sizeof t->name - (size_t)(at - t->name), ".moe%s", rest);
    }
    return true;
}

/* Gemma 4 as compressed-tensors has it, experts in NVFP4 beside projections in FP8. */
static void experts_have_two_spellings(void **state) {
    (void)state;
    char path[512];
    fixture_path("gemma4-mixed-values", path);
    sl_model *want = must_load(path);
    for (int i = 0; i < 3; i++) { /* in the last one the config is the text model's inside another */
        const bool moe = i == 1;
        json_t *config = fixture_config("gemma4-mixed");
        config = i < 2 ? config : json_pack("{s:s,s:o}", "model_type", "gemma4", "text_config", config);
        write_config(FOLDER, config);
        json_decref(config);
        write_weights(FOLDER, "gemma4-mixed", moe ? edit_spelling : NULL, NULL, 0);
        sl_model *got = must_load(FOLDER);
        assert_same_model(got, want, SL_QTYPE_COUNT, false);
        assert_int_equal(got->description.tensors, got->description.file_tensors);
        sl_model_free(got);
    }
    sl_model_free(want);
}

/* Rows that are made of parts, in an order of their own, and in two goes. */
static void rows_may_be_parts(void **state) {
    (void)state;
    static const char *const folders[] = {"qwen3-gptq", "qwen3-awq", "qwen3-int4-zeros", "qwen3-int8-bytes"};
    const sl_tensor_part part = {.count = 2,
                                 .runs = {{.rows = 7, .piece = 1, .stride = 8, .first = 3},
                                          {.rows = 9, .piece = 3, .stride = 16, .first = 0}}};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[512];
        sl_source *source;
        sl_error error;
        sl_hf_quantization quantization;
        bool there;
        sl_scaled all, some;
        sl_scaled_notes notes = {0};
        uint64_t bytes;
        fixture_path(folders[i], path);
        assert_int_equal(sl_source_open(path, &source, &error), 0);
        assert_int_equal(sl_hf_read_quantization(sl_source_hf(source), &quantization, &error), 0);
        sl_scaled_query query = {.source = source,
                                 .quantization = &quantization,
                                 .name = "model.layers.1.mlp.down_proj.weight",
                                 .experts = 1,
                                 .rows = 64,
                                 .columns = 128};
        assert_int_equal(sl_scaled_find(&query, &all, &there, &error), 0);
        query.part = &part;
        assert_int_equal(sl_scaled_find(&query, &some, &there, &error), 0);
        assert_true(sl_scaled_bytes(&all, &bytes));
        const size_t row = (size_t)bytes / 64;
        unsigned char *whole = malloc((size_t)bytes), *made = malloc(row * 16);
        assert_non_null(whole);
        assert_non_null(made);
        assert_int_equal(sl_scaled_pack(&all, 0, 64, whole, &notes, &error), 0);
        assert_int_equal(sl_scaled_pack(&some, 0, 5, made, &notes, &error), 0);
        assert_int_equal(sl_scaled_pack(&some, 5, 11, made + 5 * row, &notes, &error), 0);
        for (int r = 0; r < 16; r++) {
            assert_memory_equal(made + (size_t)r * row, whole + (size_t)sl_part_row(&part, r) * row, row);
        }
        free(whole);
        free(made);
        sl_source_close(source);
    }
}

/* ---- numbers that F16 does not hold ---- */

static char told[512];

static void keep_line(void *context, sl_log_level level, const char *line) {
    (void)context, (void)level;
    snprintf(told, sizeof told, "%s", line);
}

typedef struct number {
    const char *name; /* of the tensor whose first one it replaces */
    const void *bytes;
    size_t size;
} number;

static bool edit_number(const char *context, edited *t) {
    const number *n = (const void *)context;
    if (strcmp(t->name, n->name) == 0) {
        memcpy(t->data, n->bytes, n->size);
    }
    return true;
}

static int load_with(const char *fixture, const number *n, sl_model **model, sl_error *error) {
    json_t *config = fixture_config(fixture);
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, fixture, edit_number, (const char *)n, 0);
    return sl_model_load(FOLDER, model, error);
}

/* ---- shapes ---- */

#define Q0 "model.layers.0.self_attn.q_proj."
#define E3 "model.layers.1.mlp.experts.3.down_proj."

/* "x NAME" leaves a tensor out, "d NAME DTYPE" retypes it, "t NAME" transposes it, "h NAME" halves its last
 * dimension and doubles the first, "n NAME OTHER" gives it another name. */
static bool edit_tensor(const char *context, edited *t) {
    char action, name[128], word[128] = "";
    sscanf(context, "%c %127s %127s", &action, name, word);
    if (strcmp(t->name, name) != 0) {
        return true;
    }
    const uint64_t first = t->shape[0];
    const int last = t->rank - 1;
    switch (action) {
    case 'x':
        return false;
    case 'd':
        snprintf(t->dtype, sizeof t->dtype, "%s", word);
        return true;
    case 'n':
        snprintf(t->name, sizeof t->name, "%s", word);
        return true;
    case 't':
        t->shape[0] = t->shape[last];
        t->shape[last] = first;
        return true;
    default:
        t->shape[0] *= 2;
        t->shape[last] /= 2;
        return true;
    }
}

static const struct {
    const char *fixture, *edit;
    int code;
    const char *message;
} REFUSED[] = {
    {"qwen3-int4", "x " Q0 "weight_scale", SL_ERR_FORMAT, Q0 "weight_scale is missing"},
    {"qwen3-int4", "x " Q0 "weight_packed", SL_ERR_FORMAT, Q0 "weight is missing"},
    {"qwen3-int4", "h " Q0 "weight_packed", SL_ERR_FORMAT,
     Q0 "weight_packed is I32 [128][4], must be 8 or 4 columns of the config's to a word"},
    {"qwen3-int4", "d " Q0 "weight_packed F32", SL_ERR_FORMAT,
     Q0 "weight_packed is F32 [64][8], must be I32"},
    {"qwen3-int4", "d " Q0 "weight_scale I16", SL_ERR_FORMAT, Q0 "weight_scale is I16 [64][1], must be F32"},
    {"qwen3-int4", "t " Q0 "weight_scale", SL_ERR_FORMAT,
     Q0 "weight_scale is BF16 [1][64], must be one number"},
    {"qwen3-int4", "h model.layers.1.mlp.down_proj.weight_scale", SL_ERR_FORMAT,
     "down_proj.weight_scale is BF16 [128][1], must be one number for each row, or for each group"},
    {"qwen3-int4", "d " Q0 "weight_shape F64", SL_ERR_FORMAT,
     Q0 "weight_shape is F64 [2], must be two integers"},
    {"qwen3-int4", "n " Q0 "weight_shape " Q0 "weight_g_idx", SL_ERR_UNSUPPORTED,
     Q0 "weight_g_idx: columns in another order"},
    {"qwen3-int4-zeros", "t " Q0 "weight_zero_point", SL_ERR_FORMAT,
     Q0 "weight_zero_point is I32 [1][8], must be I32, a word for 8 rows"},
    {"qwen3-int4-zeros", "d " Q0 "weight_zero_point F32", SL_ERR_FORMAT,
     Q0 "weight_zero_point is F32 [8][1], must be I32"},
    {"qwen3-int8", "n " Q0 "weight_shape " Q0 "weight_zero_point", SL_ERR_UNSUPPORTED,
     Q0 "weight_zero_point: zero points are supported of 4 bits"},
    {"qwen3-int8-bytes", "t model.layers.0.mlp.up_proj.weight", SL_ERR_FORMAT,
     "up_proj.weight is I8 [64][128], must be as large as the config says"},
    {"qwen3-int8-bytes", "x " Q0 "weight_scale", SL_ERR_FORMAT, Q0 "weight_scale is missing"},
    {"qwen3-gptq", "x " Q0 "scales", SL_ERR_FORMAT, Q0 "scales is missing"},
    {"qwen3-gptq", "x " Q0 "qzeros", SL_ERR_FORMAT, Q0 "qzeros is missing"},
    {"qwen3-gptq", "x " Q0 "qweight", SL_ERR_FORMAT, Q0 "weight is missing"},
    {"qwen3-gptq", "t " Q0 "qweight", SL_ERR_FORMAT,
     Q0 "qweight is I32 [64][8], must be I32 [columns / codes of a word][rows]"},
    {"qwen3-gptq", "d " Q0 "qweight F32", SL_ERR_FORMAT, Q0 "qweight is F32 [8][64], must be I32"},
    {"qwen3-gptq", "t " Q0 "scales", SL_ERR_FORMAT, Q0 "scales is F16 [64][1], must be F16"},
    {"qwen3-gptq", "d " Q0 "scales I16", SL_ERR_FORMAT, Q0 "scales is I16 [1][64], must be F16"},
    {"qwen3-gptq", "t " Q0 "qzeros", SL_ERR_FORMAT, Q0 "qzeros is I32 [8][1], must be I32 [groups]"},
    {"qwen3-gptq", "d " Q0 "qzeros F32", SL_ERR_FORMAT, Q0 "qzeros is F32 [1][8], must be I32 [groups]"},
    {"qwen3-gptq", "d " Q0 "g_idx F32", SL_ERR_FORMAT, Q0 "g_idx is F32 [64], must be I32"},
    {"qwen3-gptq", "n " Q0 "qzeros " Q0 "g_idx2", SL_ERR_FORMAT, Q0 "qzeros is missing"},
    {"qwen3-awq", "t " Q0 "qweight", SL_ERR_FORMAT,
     Q0 "qweight is I32 [8][64], must be I32 [columns][rows / 8]"},
    {"qwen3moe-int4", "x " E3 "weight_scale", SL_ERR_FORMAT, E3 "weight_scale is missing"},
    {"qwen3moe-int4", "x " E3 "weight_packed", SL_ERR_FORMAT, E3 "weight is missing"},
    {"qwen3moe-int4-one", "h model.layers.0.mlp.experts.down_proj_packed", SL_ERR_FORMAT,
     "down_proj_packed is I32 [8][64][2], must be 8 or 4 columns"},
    {"qwen3moe-int4-one", "h model.layers.0.mlp.experts.gate_up_proj_scale", SL_ERR_FORMAT,
     "gate_up_proj_scale is BF16 [8][64][1], must be one number"},
};

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        sl_model *model;
        sl_error error = {0};
        json_t *config = fixture_config(REFUSED[i].fixture);
        write_config(FOLDER, config);
        json_decref(config);
        write_weights(FOLDER, REFUSED[i].fixture, edit_tensor, REFUSED[i].edit, 0);
        const int code = sl_model_load(FOLDER, &model, &error);
        if (code != REFUSED[i].code || model || !strstr(error.message, REFUSED[i].message) ||
            !strstr(error.message, FOLDER)) {
            print_error("%s, %s: %d %s\n", REFUSED[i].fixture, REFUSED[i].edit, code, error.message);
            wrong++;
        }
        sl_model_free(model);
    }
    assert_int_equal(wrong, 0);
}

/* What the config asks for is found by the query. */
static void columns_must_be_whole_blocks(void **state) {
    (void)state;
    char path[512];
    sl_source *source;
    sl_error error;
    sl_hf_quantization quantization;
    bool there;
    sl_scaled scaled;
    fixture_path("qwen3moe-int4", path);
    assert_int_equal(sl_source_open(path, &source, &error), 0);
    assert_int_equal(sl_hf_read_quantization(sl_source_hf(source), &quantization, &error), 0);
    const sl_scaled_query query = {.source = source,
                                   .quantization = &quantization,
                                   .name = "model.layers.1.mlp.experts.3.down_proj.weight",
                                   .experts = 1,
                                   .rows = 64,
                                   .columns = 40};
    assert_int_equal(sl_scaled_find(&query, &scaled, &there, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, E3 "weight_packed is for 40 columns"));
    sl_source_close(source);
}

static void words_of_all_experts_are_refused(void **state) {
    (void)state;
    static const char edit[] =
        "n model.layers.0.mlp.experts.gate_up_proj_packed model.layers.0.mlp.experts.gate_up_proj_qweight";
    const sl_hf_quantization quantization = {
        .there = true, .words = SL_HF_WORDS_GPTQ, .bits = 4, .group = 32, .symmetric = true};
    sl_source *source;
    sl_error error;
    bool there;
    sl_scaled scaled;
    json_t *config = fixture_config("qwen3moe-int4-one");
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, "qwen3moe-int4-one", edit_tensor, edit, 0);
    assert_int_equal(sl_source_open(FOLDER, &source, &error), 0);
    const sl_scaled_query query = {.source = source,
                                   .quantization = &quantization,
                                   .name = "model.layers.0.mlp.experts.gate_up_proj",
                                   .experts = 4,
                                   .rows = 64,
                                   .columns = 64};
    assert_int_equal(sl_scaled_find(&query, &scaled, &there, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(
        strstr(error.message, "gate_up_proj_qweight: one tensor of all experts is not supported"));
    sl_source_close(source);
}

/* The folder of one writer with the config of another. */
static void configs_must_fit(void **state) {
    (void)state;
    static const struct {
        const char *fixture, *path, *value, *message;
        int code;
    } cases[] = {
        {"qwen3-gptq", "quantization_config.group_size", "32", "scales is F16 [1][64], must be",
         SL_ERR_FORMAT},
        {"qwen3-gptq", "quantization_config.bits", "8", "qweight is I32 [8][64], must be", SL_ERR_FORMAT},
        {"qwen3-gptq-zeros", "quantization_config.sym", "true", "but the config says 'sym'", SL_ERR_FORMAT},
        {"qwen3-gptq", "quantization_config", NULL, "q_proj.qweight is I32, but config.json has no",
         SL_ERR_UNSUPPORTED},
        {"qwen3-int4", "quantization_config", NULL, "but config.json has no quantization_config",
         SL_ERR_UNSUPPORTED},
        {"qwen3-gptq", "quantization_config.quant_method", "\"mxfp4\"",
         "q_proj.qweight: only config.json's quant_method", SL_ERR_UNSUPPORTED},
        {"qwen3-int4", "intermediate_size", "120", "gate_proj.weight_packed is I32 [128][8], must be",
         SL_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_model *model;
        sl_error error = {0};
        json_t *config = fixture_config(cases[i].fixture);
        json_t *value = cases[i].value ? json_loads(cases[i].value, JSON_DECODE_ANY, NULL) : NULL;
        set_path(config, cases[i].path, value);
        write_config(FOLDER, config);
        json_decref(value);
        json_decref(config);
        write_weights(FOLDER, cases[i].fixture, NULL, NULL, 0);
        if (sl_model_load(FOLDER, &model, &error) != cases[i].code ||
            !strstr(error.message, cases[i].message)) {
            fail_msg("%s, %s: %s", cases[i].fixture, cases[i].path, error.message);
        }
    }
}

static void rounding_is_told(void **state) {
    (void)state;
    static const struct {
        float scale, becomes;
    } cases[] = {{0.100006103515625f, 0.0999755859375f}, {1e-6f, 0x1.1p-20f}, {1e-9f, 0}, {65519, 65504}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const number n = {Q0 "weight_scale", &cases[i].scale, sizeof cases[i].scale};
        sl_model *model;
        sl_error error;
        told[0] = 0;
        sl_log_set(keep_line, NULL);
        assert_int_equal(load_with("qwen3-int8", &n, &model, &error), 0);
        sl_log_set(NULL, NULL);
        const sl_weight *w = NULL;
        for (int32_t k = 0; k < model->program.weight_count && !w; k++) {
            w = strcmp(model->program.weights[k].name, Q0 "weight_packed") == 0 ? &model->program.weights[k]
                                                                                : NULL;
        }
        assert_non_null(w);
        const sl_block_q8_0 *block = w->data;
        assert_true(sl_f16_to_f32(block->scale) == cases[i].becomes);
        /* rows of all matrices: (64 + 32 + 32 + 64 + 128 + 128 + 64) * 2 */
        assert_non_null(strstr(told, "1 of 1024 scales of integers are rounded to f16"));
        sl_model_free(model);
    }
}

static void what_f16_cannot_hold_is_refused(void **state) {
    (void)state;
    static const float large = 65520, infinite = INFINITY;
    static const uint16_t nan = 0x7e00, most = 0x7bff /* 65504 */;
    static const uint32_t eight = 0x77777776, order = 1;
    static const uint16_t bias = 1;
    static const struct {
        const char *fixture;
        number number;
        int code;
        const char *message;
    } cases[] = {
        {"qwen3-int8",
         {Q0 "weight_scale", &large, 4},
         SL_ERR_UNSUPPORTED,
         Q0 "weight_scale: number 0 is too large for f16"},
        {"qwen3-int8",
         {Q0 "weight_scale", &infinite, 4},
         SL_ERR_FORMAT,
         Q0 "weight_scale: number 0 must be finite"},
        {"qwen3-awq", {Q0 "scales", &nan, 2}, SL_ERR_FORMAT, Q0 "scales: number 0 must be finite"},
        {"qwen3-awq",
         {Q0 "scales", &most, 2},
         SL_ERR_UNSUPPORTED,
         Q0 "scales: number 0 times its zero point is too large for f16"},
        {"qwen3-gptq",
         {Q0 "qzeros", &eight, 4},
         SL_ERR_FORMAT,
         Q0 "qzeros: the zero point of row 0, group 0 is 7, but the config says 'sym'"},
        {"qwen3-gptq",
         {Q0 "g_idx", &order, 4},
         SL_ERR_UNSUPPORTED,
         Q0 "g_idx: number 0 is not 0: columns in another order (desc_act)"},
        {"qwen3-gptq", {Q0 "bias", &bias, 2}, SL_ERR_UNSUPPORTED, Q0 "bias is not zero, but models of"},
        {"qwen3-int4",
         {Q0 "weight_shape", &order, 4},
         SL_ERR_FORMAT,
         Q0 "weight_shape is I64 [2], must be the rows and columns that the config asks for"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_model *model;
        sl_error error = {0};
        const int code = load_with(cases[i].fixture, &cases[i].number, &model, &error);
        if (code != cases[i].code || model || !strstr(error.message, cases[i].message) ||
            !strstr(error.message, FOLDER)) {
            print_error("%s, %s: %d %s\n", cases[i].fixture, cases[i].message, code, error.message);
            wrong++;
        }
        sl_model_free(model);
    }
    assert_int_equal(wrong, 0);
}

int main(void) {
    sl_log_set(NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_hold_the_published_values),
        cmocka_unit_test(experts_may_be_one_tensor),
        cmocka_unit_test(folders_can_be_quantised),
        cmocka_unit_test(experts_have_two_spellings),
        cmocka_unit_test(rows_may_be_parts),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(columns_must_be_whole_blocks),
        cmocka_unit_test(words_of_all_experts_are_refused),
        cmocka_unit_test(configs_must_fit),
        cmocka_unit_test(rounding_is_told),
        cmocka_unit_test(what_f16_cannot_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
