/* Matrices whose scales are tensors of their own (model/scaled.h): what is refused, and that the ways to say
 * the same give the same weights. What the weights are is told by the logits of tests/logits. */
#include "unit/model/support.h"

#include "base/alloc.h"
#include "base/log.h"
#include "model/files.h"
#include "model/scaled.h"
#include "quant/blocks.h"

#define FOLDER SLUICE_BINARY_DIR "/test_scaled_folder"
#define FROM SLUICE_BINARY_DIR "/test_scaled_from.gguf"
#define TO SLUICE_BINARY_DIR "/test_scaled_to.gguf"

/* Edits, all for the tensors whose name contains NAME (or ends in it, with a $): "x NAME" leaves out, "d NAME
 * DTYPE" retypes, "n NAME END" gives another ending from NAME on, "t NAME" transposes, "s NAME" makes a
 * scalar, "f NAME" a list; "p NAME BYTE" changes the last byte. */
static bool edit_any(const char *context, edited *t) {
    char action, name[128], word[64] = "";
    sscanf(context, "%c %127s %63s", &action, name, word);
    char *end = strchr(name, '$');
    if (end) {
        *end = '\0';
    }
    char *at = strstr(t->name, name);
    at = at && end && at[strlen(name)] != '\0' ? NULL : at;
    uint64_t elements = 1;
    if (!at) {
        return true;
    }
    for (int d = 0; d < t->rank; d++) {
        elements *= t->shape[d];
    }
    switch (action) {
    case 'x':
        return false;
    case 'd':
        snprintf(t->dtype, sizeof t->dtype, "%s", word);
        return true;
    case 'n':
        snprintf(at, sizeof t->name - (size_t)(at - t->name), "%s", word);
        return true;
    case 't': {
        const uint64_t first = t->shape[0];
        t->shape[0] = t->shape[1];
        t->shape[1] = first;
        return true;
    }
    case 's':
        t->rank = elements == 1 ? 0 : t->rank;
        return true;
    case 'f':
        t->shape[0] = elements;
        t->rank = 1;
        return true;
    default: {
        const size_t width = strcmp(t->dtype, "F32") == 0 ? 4 : strcmp(t->dtype, "BF16") == 0 ? 2 : 1;
        t->data[elements * width - 1] = (unsigned char)strtol(word, NULL, 16);
        return true;
    }
    }
}

static int load_edited(const char *fixture, const char *edit, sl_model **model, sl_error *error) {
    json_t *config = fixture_config(fixture);
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, fixture, edit_any, edit, 0);
    return sl_model_load(FOLDER, model, error);
}

#define Q0 "model.layers.0.self_attn.q_proj."
static const struct {
    const char *fixture, *edit;
    int code;
    const char *message;
} REFUSED[] = {
    {"llama-fp8-block", "x " Q0 "weight_scale_inv", SL_ERR_FORMAT, Q0 "weight_scale is missing"},
    {"llama-fp8-block", "d " Q0 "weight_scale_inv I16", SL_ERR_FORMAT,
     Q0 "weight_scale_inv is I16 [1][1], must be F32, BF16 or F16"},
    {"llama-fp8-block", "d " Q0 "weight_scale_inv F8_E8M0", SL_ERR_FORMAT, "'data_offsets' span 2 bytes"},
    {"llama-fp8-block", "t layers.0.mlp.down_proj.weight_scale_inv", SL_ERR_FORMAT,
     "down_proj.weight_scale_inv is BF16 [2][1], must be one number, one for each row, or one for each "
     "block"},
    {"llama-fp8-block", "t layers.1.mlp.down_proj.weight", SL_ERR_FORMAT,
     "down_proj.weight is F8_E4M3 [256][128], must be as large as the config says"},
    {"llama-fp8-block", "d " Q0 "weight$ I8", SL_ERR_UNSUPPORTED, Q0 "weight' (I8) cannot be used"},
    {"llama-fp8-block", "d " Q0 "weight$ F8_E5M2", SL_ERR_UNSUPPORTED, "(F8_E5M2) cannot be used"},
    {"llama-fp8-block", "p " Q0 "weight_scale_inv 7f", SL_ERR_FORMAT,
     Q0 "weight_scale_inv: number 0 must be finite"},
    {"llama-fp8-block", "n layers.1.mlp.up_proj.weight_scale_inv layers.0.mlp.up_proj.weight_scale",
     SL_ERR_FORMAT, "up_proj.weight_scale_inv is BF16 [2][1], must be the only tensor of scales"},
    {"llama-nvfp4", "n " Q0 "input_scale " Q0 "pre_quant_scale", SL_ERR_UNSUPPORTED,
     Q0 "pre_quant_scale is not supported"},
    {"llama-nvfp4", "x " Q0 "weight_scale_2", SL_ERR_FORMAT, Q0 "weight_scale_2 is missing"},
    {"llama-nvfp4", "d " Q0 "weight_scale_2 I32", SL_ERR_FORMAT, "must be F32, one number"},
    {"llama-nvfp4", "p " Q0 "weight_scale_2 bf", SL_ERR_FORMAT,
     "weight_scale_2: number 0 must be above 0 and finite"},
    {"llama-nvfp4", "p layers.1.mlp.up_proj.weight_scale$ 80", SL_ERR_FORMAT,
     "must be a number and not negative"},
    {"llama-nvfp4", "t layers.1.mlp.up_proj.weight", SL_ERR_FORMAT,
     "must be U8, two columns of the config's to a byte"},
    {"qwen3moe-nvfp4", "x layers.1.mlp.experts.3.down_proj.weight_global_scale", SL_ERR_FORMAT,
     "experts.3.down_proj.weight_global_scale is missing"},
    {"qwen3moe-nvfp4", "x layers.1.mlp.experts.3.down_proj.weight_scale", SL_ERR_FORMAT,
     "experts.3.down_proj.weight_scale is missing"},
    {"qwen3moe-nvfp4", "x layers.1.mlp.experts.3.down_proj.weight_packed", SL_ERR_FORMAT,
     "experts.3.down_proj.weight is missing"},
    {"qwen3moe-nvfp4", "d layers.0.self_attn.v_proj.weight_packed I8", SL_ERR_FORMAT,
     "v_proj.weight_packed is I8 [64][64], must be U8"},
    {"qwen3moe-nvfp4", "d layers.0.self_attn.v_proj.weight_scale U8", SL_ERR_FORMAT,
     "v_proj.weight_scale is U8 [64][8], must be F8_E4M3"},
};

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        sl_model *model;
        sl_error error = {0};
        const int code = load_edited(REFUSED[i].fixture, REFUSED[i].edit, &model, &error);
        if (code != REFUSED[i].code || model || !strstr(error.message, REFUSED[i].message) ||
            !strstr(error.message, FOLDER)) {
            print_error("%s, %s: %d %s\n", REFUSED[i].fixture, REFUSED[i].edit, code, error.message);
            wrong++;
        }
        sl_model_free(model);
    }
    assert_int_equal(wrong, 0);
}

static void without_a_config_nothing_is_scaled(void **state) {
    (void)state;
    sl_model *model;
    sl_error error = {0};
    json_t *config = fixture_config("llama-fp8-block");
    json_object_del(config, "quantization_config");
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, "llama-fp8-block", NULL, NULL, 0);
    assert_int_equal(sl_model_load(FOLDER, &model, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "is F8_E4M3, but config.json has no quantization_config"));
}

static void assert_same_weights(const sl_program *a, const sl_program *b) {
    assert_int_equal(a->weight_count, b->weight_count);
    for (int32_t i = 0; i < a->weight_count; i++) {
        assert_int_equal(a->weights[i].type, b->weights[i].type);
        assert_int_equal(a->weights[i].bytes, b->weights[i].bytes);
        assert_memory_equal(a->weights[i].data, b->weights[i].data, (size_t)a->weights[i].bytes);
    }
}

/* Names and shapes that different writers use for the same scales. */
static void scales_have_several_names_and_shapes(void **state) {
    (void)state;
    static const struct {
        const char *fixture, *edit;
    } same[] = {{"llama-fp8-block", "n weight_scale_inv weight_scale"},
                {"llama-fp8-block", "s weight_scale_inv"},
                {"qwen3-fp8-channel", "f weight_scale"},
                {"llama-nvfp4", "f weight_scale_2"},
                {"llama-nvfp4", "x input_scale"},
                {"qwen3moe-nvfp4", "s weight_global_scale"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char path[512];
        sl_model *model;
        sl_error error;
        fixture_path(same[i].fixture, path);
        if (load_edited(same[i].fixture, same[i].edit, &model, &error)) {
            fail_msg("%s, %s: %s", same[i].fixture, same[i].edit, error.message);
        }
        sl_model *fixture = must_load(path);
        assert_same_weights(&model->program, &fixture->program);
        sl_model_free(model);
        sl_model_free(fixture);
    }
}

/* Three blocks of rows, the last one short, by two of columns: all codes are 1, so values are the scales. */
static void every_block_has_its_own_scale(void **state) {
    (void)state;
    enum { ROWS = 300, COLUMNS = 256, BLOCKS = ROWS * COLUMNS / SL_FP8_128_ELEMENTS };
    static unsigned char codes[ROWS * COLUMNS];
    static float values[ROWS * COLUMNS];
    static sl_block_fp8_128 blocks[BLOCKS];
    const float scales[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    const sl_tensor codes_tensor = {.name = "codes", .data = codes};
    const sl_tensor scales_tensor = {.name = "scales", .type = SL_QTYPE_F32, .data = scales};
    const sl_scaled scaled = {.type = SL_QTYPE_FP8_128,
                              .experts = 1,
                              .rows = ROWS,
                              .columns = COLUMNS,
                              .codes = &codes_tensor,
                              .scales = &scales_tensor,
                              .block_rows = 128,
                              .block_columns = 128,
                              .scale_columns = 2,
                              .file = "test"};
    uint64_t bytes;
    sl_error error;
    memset(codes, 0x38, sizeof codes);
    assert_true(sl_scaled_bytes(&scaled, &bytes));
    assert_int_equal(bytes, sizeof blocks);
    assert_int_equal(sl_scaled_pack(&scaled, blocks, &error), 0);
    sl_qtype_get(SL_QTYPE_FP8_128)->decode(blocks, values, ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        assert_true(values[i] == scales[i / COLUMNS / 128][i % COLUMNS / 128]);
    }
}

/* What inspect says: as many parameters as the same model has in F32, and every byte of the file that is
 * used. */
static void descriptions_count_what_is_stored(void **state) {
    (void)state;
    char path[512];
    fixture_path("qwen3moe-nvfp4", path);
    sl_model *model = must_load(path);
    const sl_model_description *d = &model->description;
    const uint64_t attention = 2 * 128 * 128 + 2 * 64 * 128, experts = 4 * 3 * 128 * 128;
    const uint64_t packed = 2 * (attention + experts), matrices = 2 * (4 + 4 * 3);
    assert_int_equal(d->types[SL_QTYPE_NVFP4_128].elements, packed);
    assert_int_equal(d->types[SL_QTYPE_NVFP4_128].tensors, matrices);
    /* two to a byte, a scale for 16, two numbers beside each */
    assert_int_equal(d->types[SL_QTYPE_NVFP4_128].bytes, packed / 2 + packed / 16 + matrices * 8);
    assert_int_equal(d->tensors, d->file_tensors);
    sl_model_free(model);
}

/* ---- GGUF ---- */

/* FROM again with a scale beside two tensors: `numbers` of it beside the experts' `up`. */
static void write_scaled_gguf(const char *other, uint64_t numbers, const float *values) {
    static const char *const scaled[] = {"blk.1.attn_q", "blk.1.ffn_up_exps"};
    sl_gguf *from;
    sl_gguf_writer *writer;
    sl_error error;
    assert_int_equal(sl_gguf_open(FROM, &from, &error), 0);
    assert_int_equal(sl_gguf_writer_create(TO, &writer, &error), 0);
    for (uint64_t i = 0; i < sl_gguf_entry_count(from); i++) {
        assert_int_equal(sl_gguf_writer_copy(writer, sl_gguf_entry_at(from, i), &error), 0);
    }
    for (uint64_t i = 0; i < sl_gguf_tensor_count(from); i++) {
        const sl_tensor *t = sl_gguf_tensor_at(from, i);
        sl_gguf_shape shape = {t->type, t->dim_count, {t->dims[0], t->dims[1], t->dims[2], t->dims[3]}};
        assert_int_equal(sl_gguf_writer_tensor(writer, t->name, &shape, &error), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        char name[64];
        const sl_gguf_shape shape = {SL_QTYPE_F32, 1, {i ? numbers : 1}};
        snprintf(name, sizeof name, "%s.scale", i == 0 && other ? other : scaled[i]);
        assert_int_equal(sl_gguf_writer_tensor(writer, name, &shape, &error), 0);
    }
    assert_int_equal(sl_gguf_writer_begin(writer, NULL, &error), 0);
    for (uint64_t i = 0; i < sl_gguf_tensor_count(from); i++) {
        const sl_tensor *t = sl_gguf_tensor_at(from, i);
        assert_int_equal(sl_gguf_writer_data(writer, t->data, (size_t)t->bytes, &error), 0);
    }
    assert_int_equal(sl_gguf_writer_data(writer, values, sizeof *values, &error), 0);
    assert_int_equal(sl_gguf_writer_data(writer, values, (size_t)numbers * sizeof *values, &error), 0);
    assert_int_equal(sl_gguf_writer_finish(writer, &error), 0);
    sl_gguf_writer_free(writer);
    sl_gguf_close(from);
}

static const sl_weight *find_weight(const sl_model *model, const char *name) {
    for (int32_t i = 0; i < model->program.weight_count; i++) {
        if (strcmp(model->program.weights[i].name, name) == 0) {
            return &model->program.weights[i];
        }
    }
    fail_msg("no weight %s", name);
    return NULL;
}

static float *decode(const sl_weight *w, size_t *count) {
    *count = (size_t)w->experts * (size_t)w->rows * (size_t)w->columns;
    float *values = malloc(*count * sizeof *values);
    sl_qtype_get(w->type)->decode(w->data, values, *count);
    return values;
}

/* Powers of two and three quarters of one, so that every product is exact. */
static void gguf_scales_multiply_their_matrices(void **state) {
    (void)state;
    static const float scales[8] = {0.375f, 2, 0.5f, 1, 3, 0.25f, 0.75f, 4};
    static const char *const names[] = {"blk.1.attn_q.weight", "blk.1.ffn_up_exps.weight",
                                        "blk.0.attn_q.weight"};
    const sl_synth_options options = {.preset = "qwen3moe", .type = SL_QTYPE_NVFP4, .seed = 5, .layers = 2};
    sl_error error;
    assert_int_equal(sl_synth_file(FROM, &options, NULL, &error), 0);
    for (uint64_t numbers = 1; numbers <= 8; numbers += 7) {
        write_scaled_gguf(NULL, numbers, scales);
        sl_model *from = must_load(FROM), *to = must_load(TO);
        for (size_t i = 0; i < 3; i++) {
            const sl_weight *a = find_weight(from, names[i]), *b = find_weight(to, names[i]);
            size_t count, same;
            float *want = decode(a, &count), *got = decode(b, &same);
            assert_int_equal(count, same);
            assert_int_equal(b->type, i == 2 ? SL_QTYPE_NVFP4 : SL_QTYPE_NVFP4_128);
            for (size_t k = 0; k < count; k++) {
                const size_t expert = k / (count / (size_t)a->experts);
                const float scale = i == 2 ? 1.0f : scales[i == 1 && numbers == 8 ? expert : 0];
                assert_true(got[k] == want[k] * scale);
            }
            free(want);
            free(got);
        }
        assert_int_equal(to->description.tensors, to->description.file_tensors);
        sl_model_free(from);
        sl_model_free(to);
    }
    unlink(FROM);
    unlink(TO);
}

/* Written in another type the scales are in the values; in NVFP4 they stay where they are. */
static void gguf_scales_survive_quantize(void **state) {
    (void)state;
    static const float scales[8] = {0.375f, 2, 0.5f, 1, 3, 0.25f, 0.75f, 4};
    const sl_synth_options options = {.preset = "qwen3moe", .type = SL_QTYPE_NVFP4, .seed = 5, .layers = 2};
    static const sl_qtype written[] = {SL_QTYPE_F32, SL_QTYPE_NVFP4};
    sl_error error;
    assert_int_equal(sl_synth_file(FROM, &options, NULL, &error), 0);
    write_scaled_gguf(NULL, 8, scales);
    sl_model *from = must_load(TO);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(sl_quantize_file(TO, FROM, written[i], NULL, &error), 0);
        sl_model *to = must_load(FROM);
        assert_int_equal(to->description.tensors, to->description.file_tensors);
        const char *const names[] = {"blk.1.attn_q.weight", "blk.1.ffn_up_exps.weight"};
        for (size_t k = 0; k < 2; k++) {
            size_t count;
            float *want = decode(find_weight(from, names[k]), &count);
            float *got = decode(find_weight(to, names[k]), &count);
            assert_memory_equal(got, want, count * sizeof *got);
            free(want);
            free(got);
        }
        sl_model_free(to);
    }
    sl_model_free(from);
    unlink(FROM);
    unlink(TO);
}

static void gguf_scales_must_fit(void **state) {
    (void)state;
    static const float scales[8] = {1, 1, 1, 1, 1, 1, 1, 1}, zeros[8] = {0};
    static const struct {
        const char *other;
        sl_qtype type;
        uint64_t numbers;
        bool zero;
        int code;
        const char *message;
    } cases[] = {
        {NULL, SL_QTYPE_NVFP4, 7, false, SL_ERR_FORMAT,
         "ffn_up_exps.scale must be f32, one number for each expert"},
        {NULL, SL_QTYPE_Q8_0, 8, false, SL_ERR_UNSUPPORTED,
         "attn_q.scale: a scale beside weights of q8_0 is not supported"},
        {NULL, SL_QTYPE_NVFP4, 8, true, SL_ERR_FORMAT, "attn_q.scale: number 0 must be above 0 and finite"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sl_synth_options options = {
            .preset = "qwen3moe", .type = cases[i].type, .seed = 5, .layers = 2};
        sl_error error = {0};
        sl_model *model;
        assert_int_equal(sl_synth_file(FROM, &options, NULL, &error), 0);
        write_scaled_gguf(cases[i].other, cases[i].numbers, cases[i].zero ? zeros : scales);
        assert_int_equal(sl_model_load(TO, &model, &error), cases[i].code);
        if (!strstr(error.message, cases[i].message)) {
            fail_msg("%s", error.message);
        }
    }
    unlink(FROM);
    unlink(TO);
}

int main(void) {
    sl_log_set(NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(without_a_config_nothing_is_scaled),
        cmocka_unit_test(scales_have_several_names_and_shapes),
        cmocka_unit_test(every_block_has_its_own_scale),
        cmocka_unit_test(descriptions_count_what_is_stored),
        cmocka_unit_test(gguf_scales_multiply_their_matrices),
        cmocka_unit_test(gguf_scales_survive_quantize),
        cmocka_unit_test(gguf_scales_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
