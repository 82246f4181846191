/* Matrices whose scales are tensors of their own (model/scaled.h): what is refused, and that the ways to say
 * the same give the same weights. What the weights are is told by the logits of tests/logits. */
#include "unit/model/support.h"

#include "base/alloc.h"
#include "base/log.h"
#include "model/files.h"
#include "model/scaled.h"
#include "quant/blocks.h"

#include <math.h>

#define FOLDER SLUICE_BINARY_DIR "/test_scaled_folder"
#define MODELOPT_FILE "hf_quant_config.json"
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
    const sl_scaled scaled = {.kind = SL_SCALED_FP8,
                              .type = SL_QTYPE_FP8_128,
                              .experts = 1,
                              .rows = ROWS,
                              .source_rows = ROWS,
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
    assert_int_equal(sl_scaled_pack(&scaled, 0, ROWS, blocks, NULL, &error), 0);
    sl_qtype_get(SL_QTYPE_FP8_128)->decode(blocks, values, ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        assert_true(values[i] == scales[i / COLUMNS / 128][i % COLUMNS / 128]);
    }
}

/* Rows with the same scales are told of, and have them: blocks of 128, one row, the whole matrix. */
static void rows_with_the_same_scales_are_known(void **state) {
    (void)state;
    static const struct {
        const char *fixture;
        int32_t rows;
    } known[] = {{"llama-fp8-block", 128}, {"qwen3-fp8-channel", 1}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        char path[512];
        fixture_path(known[k].fixture, path);
        sl_model *model = must_load(path);
        int32_t found = 0;
        for (int32_t i = 0; i < model->program.weight_count; i++) {
            const sl_weight *w = &model->program.weights[i];
            const sl_block_fp8_128 *blocks = w->data;
            const int32_t columns = w->columns / SL_FP8_128_ELEMENTS;
            if (w->type != SL_QTYPE_FP8_128) {
                assert_int_equal(w->scale_rows, 0);
                continue;
            }
            found++;
            assert_int_equal(w->scale_rows, known[k].rows < w->rows ? known[k].rows : w->rows);
            for (int32_t at = 0; at < w->rows * columns; at++) {
                const int32_t row = at / columns, first = row / w->scale_rows * w->scale_rows;
                assert_true(blocks[at].scale == blocks[first * columns + at % columns].scale);
            }
        }
        assert_true(found > 0);
        sl_model_free(model);
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

/* ---- ModelOpt's own file ---- */

static void write_modelopt_file(const char *text) {
    json_t *config = fixture_config("llama-nvfp4");
    json_object_del(config, "quantization_config");
    write_config(FOLDER, config);
    json_decref(config);
    write_text_file(FOLDER, MODELOPT_FILE, text);
    write_weights(FOLDER, "llama-nvfp4", NULL, NULL, 0);
}

#define BY_MODELOPT "{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.33.0\"},\"quantization\":"

/* As ModelOpt writes it, and with what other versions leave out or add. */
static void modelopts_own_file_says_the_same(void **state) {
    (void)state;
    static const char *const texts[] = {
        BY_MODELOPT "{\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":\"FP8\",\"group_size\":16,"
                    "\"exclude_modules\":[\"lm_head\"]}}",
        BY_MODELOPT "{\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":null,\"group_size\":null}}",
        BY_MODELOPT
        "{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"model.layers.0.mlp.up_proj\":"
        "{\"quant_algo\":\"W4A16_NVFP4\",\"group_size\":16},\"model.layers.1.mlp.up_proj\":"
        "{\"quant_algo\":\"FP8\"}}}}",
        "{\"quantization\":{\"quant_algo\":\"NVFP4\",\"has_zero_point\":false,\"pre_quant_scale\":false}}"};
    char path[512];
    fixture_path("llama-nvfp4", path);
    sl_model *fixture = must_load(path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_modelopt_file(texts[i]);
        sl_model *model = must_load(FOLDER);
        assert_same_weights(&model->program, &fixture->program);
        sl_model_free(model);
    }
    unlink(FOLDER "/" MODELOPT_FILE);
    sl_model_free(fixture);
}

static void modelopts_own_file_is_not_believed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *message;
    } refused[] = {
        {"[]", SL_ERR_FORMAT, MODELOPT_FILE ": must be a JSON object"},
        {"{", SL_ERR_FORMAT, MODELOPT_FILE},
        {BY_MODELOPT "[]}", SL_ERR_FORMAT, MODELOPT_FILE ": 'quantization' must be an object"},
        {"{}", SL_ERR_FORMAT, MODELOPT_FILE ": 'quantization' must be an object"},
        {"{\"producer\":{\"name\":\"other\"},\"quantization\":{\"quant_algo\":\"NVFP4\"}}",
         SL_ERR_UNSUPPORTED, MODELOPT_FILE ": 'producer.name' is \"other\", only \"modelopt\""},
        {BY_MODELOPT "{\"quant_algo\":\"NVFP4_AWQ\"}}", SL_ERR_UNSUPPORTED,
         "'quantization.quant_algo' is \"NVFP4_AWQ\", only"},
        {BY_MODELOPT "{\"quant_algo\":8}}", SL_ERR_UNSUPPORTED, "'quantization.quant_algo' is 8, only"},
        {BY_MODELOPT "{\"quant_algo\":\"NVFP4\",\"group_size\":32}}", SL_ERR_UNSUPPORTED,
         "'quantization.group_size' is 32, only 16"},
        {BY_MODELOPT "{\"quant_algo\":\"NVFP4\",\"group_size\":0}}", SL_ERR_UNSUPPORTED,
         "'quantization.group_size' is 0, only 16"},
        {BY_MODELOPT "{\"quant_algo\":\"NVFP4\",\"has_zero_point\":true}}", SL_ERR_UNSUPPORTED,
         "'quantization.has_zero_point' is true"},
        {BY_MODELOPT "{\"quant_algo\":\"NVFP4\",\"pre_quant_scale\":true}}", SL_ERR_UNSUPPORTED,
         "'quantization.pre_quant_scale' is true"},
        {BY_MODELOPT "{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":[]}}", SL_ERR_FORMAT,
         "'quantization.quantized_layers' must be an object"},
        {BY_MODELOPT "{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"a\":{\"quant_algo\":"
                     "\"W4A8_AWQ\"}}}}",
         SL_ERR_UNSUPPORTED, "'quantization.quantized_layers.*.quant_algo' is \"W4A8_AWQ\""},
        {BY_MODELOPT "{\"quant_algo\":null,\"kv_cache_quant_algo\":\"FP8\"}}", SL_ERR_UNSUPPORTED,
         "no hf_quant_config.json has a quant_algo"}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        sl_model *model;
        sl_error error = {0};
        write_modelopt_file(refused[i].text);
        const int code = sl_model_load(FOLDER, &model, &error);
        if (code != refused[i].code || !strstr(error.message, refused[i].message)) {
            print_error("%s: %d %s\n", refused[i].text, code, error.message);
            wrong++;
        }
        sl_model_free(model);
    }
    unlink(FOLDER "/" MODELOPT_FILE);
    assert_int_equal(wrong, 0);
}

/* ---- all experts' matrices in one tensor ---- */

/* How a writer lays scales out: dimensions behind the experts', or none of its own. */
typedef enum layout { OF_BLOCKS, OF_ROWS, OF_EXPERTS, LIST, ONE, LAYOUTS } layout;

enum { EXPERTS = 4, WIDTH = 128 };

typedef struct folder {
    sl_buffer header;
    bytes data;
} folder;

static void add_tensor(folder *f, const char *name, const char *dtype, const char *shape, size_t size) {
    sl_buffer_printf(&f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                     f->header.length ? "," : "{", name, dtype, shape, f->data.size - size, f->data.size);
}

/* E4M3 numbers of one bit: 1, -2, 0.5, -0.25, 4, 0 and 0.0625, in an order of their own in every matrix. */
static const unsigned char CODES[] = {0x38, 0xc0, 0x30, 0xa8, 0x48, 0x00, 0x18};
static const float VALUES[] = {1, -2, 0.5f, -0.25f, 4, 0, 0.0625f};

static size_t code_at(int expert, int half, int row, int column) {
    return (size_t)(expert * 3 + half * 2 + row * 5 + column * (row % 3 + 1)) % 7;
}

/* Powers of two, one for each block, row or expert. */
static float scale_at(layout l, int expert, int row, int column) {
    const int from = l == OF_BLOCKS ? row / 128 * 2 + column / 128 : l == OF_ROWS ? row : 0;
    return l == ONE ? 0.5f : ldexpf(1, (expert * 5 + from * 3) % 11 - 8);
}

/* One expert's matrix. half 0: gate's rows and up's, half 1: down's. */
typedef struct part {
    layout l;
    int expert, half, rows, columns;
} part;

static void put_part(folder *f, const part *p, bool scales) {
    const int step = !scales ? 1 : p->l == OF_BLOCKS ? 128 : p->l == OF_ROWS ? 1 : p->rows;
    const int wide = !scales ? 1 : p->l == OF_BLOCKS ? 128 : p->columns;
    for (int row = 0; row < p->rows; row += step) {
        for (int column = 0; column < p->columns; column += wide) {
            const float scale = scale_at(p->l, p->expert, row, column);
            const unsigned char code = CODES[code_at(p->expert, p->half, row, column)];
            put_bytes(&f->data, scales ? (const void *)&scale : &code, scales ? sizeof scale : 1);
        }
    }
}

static void put_parts(folder *f, part p, bool scales) {
    for (p.expert = 0; p.expert < (scales && p.l == ONE ? 1 : EXPERTS); p.expert++) {
        put_part(f, &p, scales);
    }
}

static void put_stacked(folder *f, layout l, int layer, int half, int inner) {
    const int rows = half ? WIDTH : 2 * inner, columns = half ? inner : WIDTH;
    const part p = {l, 0, half, rows, columns};
    char name[128], shape[64];
    size_t from = f->data.size;
    put_parts(f, p, false);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", layer, half ? "down_proj" : "gate_up_proj");
    snprintf(shape, sizeof shape, "%d,%d,%d", EXPERTS, rows, columns);
    add_tensor(f, name, "F8_E4M3", shape, f->data.size - from);
    from = f->data.size;
    put_parts(f, p, true);
    snprintf(name + strlen(name), sizeof name - strlen(name), l == OF_ROWS ? "_scale" : "_scale_inv");
    if (l == ONE) {
        shape[0] = 0;
    } else if (l == LIST) {
        snprintf(shape, sizeof shape, "%d", EXPERTS);
    } else {
        const int parts = l == OF_BLOCKS ? (rows + 127) / 128 : l == OF_ROWS ? rows : 1;
        snprintf(shape, sizeof shape, "%d,%d,%d", EXPERTS, parts, l == OF_BLOCKS ? (columns + 127) / 128 : 1);
    }
    add_tensor(f, name, "F32", shape, f->data.size - from);
}

/* The fixture with other experts, `inner` wide. */
static void write_stacked(layout l, int inner) {
    static const char blocks[] = "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}";
    folder f = {0};
    bytes file = {0};
    sl_source *source;
    sl_error error;
    char path[512];
    fixture_path("qwen3moe-nvfp4", path);
    assert_int_equal(sl_source_open(path, &source, &error), 0);
    for (uint64_t i = 0; i < sl_source_tensor_count(source); i++) {
        const sl_safetensors_entry *entry = sl_hf_tensor_at(sl_source_hf(source), i);
        if (!strstr(entry->tensor.name, ".experts.")) {
            char shape[64] = "";
            for (uint32_t d = entry->rank; d-- > 0;) {
                snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%llu%s",
                         (unsigned long long)entry->tensor.dims[d], d ? "," : "");
            }
            put_bytes(&f.data, entry->tensor.data, entry->tensor.bytes);
            add_tensor(&f, entry->tensor.name, entry->dtype, shape, entry->tensor.bytes);
        }
    }
    for (int i = 0; i < 4; i++) {
        put_stacked(&f, l, i / 2, i % 2, inner);
    }
    sl_buffer_text(&f.header, "}");
    put_safetensors(&file, f.header.data, f.data.data, f.data.size);
    json_t *config = fixture_config("qwen3moe-nvfp4"), *quantization = json_loads(blocks, 0, NULL);
    json_t *width = json_integer(inner);
    set_path(config, "quantization_config", quantization);
    set_path(config, "moe_intermediate_size", width);
    write_config(FOLDER, config);
    write_file(FOLDER "/model.safetensors", file.data, file.size);
    json_decref(width);
    json_decref(quantization);
    json_decref(config);
    sl_source_close(source);
    sl_buffer_free(&f.header);
    free(f.data.data);
    free(file.data);
}

static void assert_values(const sl_weight *w, layout l, int half) {
    size_t count, i = 0;
    float *values = decode(w, &count);
    assert_int_equal(w->experts, EXPERTS);
    for (int e = 0; e < EXPERTS; e++) {
        for (int row = 0; row < w->rows; row++) {
            for (int column = 0; column < w->columns; column++, i++) {
                const float want = VALUES[code_at(e, half, row, column)] * scale_at(l, e, row, column);
                if (!(values[i] == want)) {
                    fail_msg("%s: expert %d, row %d, column %d: %g, not %g", w->name, e, row, column,
                             (double)values[i], (double)want);
                }
            }
        }
    }
    free(values);
}

/* Rows of 192 columns are no whole blocks: down becomes BF16, which holds these values. */
static void experts_of_one_tensor_have_scales(void **state) {
    (void)state;
    for (int l = 0; l < LAYOUTS; l++) {
        for (int inner = 192; inner <= 256; inner += 64) {
            write_stacked((layout)l, inner);
            sl_model *model = must_load(FOLDER);
            const sl_weight *both = find_weight(model, "model.layers.1.mlp.experts.gate_up_proj");
            const sl_weight *down = find_weight(model, "model.layers.0.mlp.experts.down_proj");
            assert_int_equal(both->type, SL_QTYPE_FP8_128);
            assert_int_equal(down->type, inner == 192 ? SL_QTYPE_BF16 : SL_QTYPE_FP8_128);
            assert_values(both, (layout)l, 0);
            assert_values(down, (layout)l, 1);
            assert_int_equal(model->description.tensors, model->description.file_tensors);
            sl_model_free(model);
        }
    }
}

/* What a device has needs no copy here, until somebody else asks. */
static void copies_come_and_go(void **state) {
    (void)state;
    write_stacked(OF_BLOCKS, 256);
    sl_model *model = must_load(FOLDER);
    sl_error error;
    const sl_weight *w = find_weight(model, "model.layers.1.mlp.experts.gate_up_proj");
    unsigned char *before = malloc((size_t)w->bytes);
    assert_non_null(before);
    memcpy(before, w->data, (size_t)w->bytes);
    assert_int_equal(sl_model_hold(model, &error), 0);
    assert_int_equal(sl_model_hold(model, &error), 0);
    sl_model_let_go(model, true);
    assert_memory_equal(w->data, before, (size_t)w->bytes); /* somebody else holds it */
    sl_model_let_go(model, true);
    size_t same = 0;
    for (size_t i = 0; i < (size_t)w->bytes; i++) {
        same += ((const unsigned char *)w->data)[i] == before[i];
    }
    assert_in_range(same, 0, w->bytes / 2);
    assert_int_equal(sl_model_hold(model, &error), 0);
    assert_memory_equal(w->data, before, (size_t)w->bytes);
    sl_model_let_go(model, false);
    assert_memory_equal(w->data, before, (size_t)w->bytes);
    free(before);
    sl_model_free(model);
}

static void experts_of_one_tensor_must_fit(void **state) {
    (void)state;
    static const struct {
        const char *path, *value, *message;
    } cases[] = {
        {"quantization_config.weight_block_size", "[64,128]",
         "experts.gate_up_proj_scale_inv is F32 [4][4][1], must be one number"},
        {"moe_intermediate_size", "128", "experts.gate_up_proj is F8_E4M3 [4][512][128], must be as large"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_model *model;
        sl_error error = {0};
        write_stacked(OF_BLOCKS, 256);
        json_t *config = json_load_file(FOLDER "/config.json", 0, NULL);
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);
        set_path(config, cases[i].path, value);
        write_config(FOLDER, config);
        json_decref(value);
        json_decref(config);
        assert_int_equal(sl_model_load(FOLDER, &model, &error), SL_ERR_FORMAT);
        if (!strstr(error.message, cases[i].message)) {
            fail_msg("%s", error.message);
        }
    }
}

/* 176 columns of NVFP4: a block and three groups of the next. */
static void short_rows_become_bf16(void **state) {
    (void)state;
    enum { ROWS = 3, COLUMNS = 176 };
    static const unsigned char numbers[] = {0x31, 0xf4, 0x29}; /* 0.5 1.5, 2 -6, -0.5 1 */
    static const float pairs[][2] = {{0.5f, 1.5f}, {2, -6}, {-0.5f, 1}};
    unsigned char codes[ROWS * COLUMNS / 2], scales[ROWS * COLUMNS / 16];
    uint16_t plain[ROWS * COLUMNS];
    float values[ROWS * COLUMNS];
    const float whole = 4;
    for (size_t i = 0; i < sizeof codes; i++) {
        codes[i] = numbers[i % 3];
    }
    for (size_t i = 0; i < sizeof scales; i++) {
        scales[i] = (unsigned char)(0x28 + 8 * (i % 5)); /* 2^-2 to 2^2 */
    }
    const sl_tensor codes_tensor = {.name = "codes", .data = codes},
                    scales_tensor = {.name = "scales", .data = scales},
                    whole_tensor = {.name = "whole", .type = SL_QTYPE_F32, .data = &whole, .elements = 1};
    const sl_scaled scaled = {.kind = SL_SCALED_NVFP4,
                              .type = SL_QTYPE_BF16,
                              .experts = 1,
                              .rows = ROWS,
                              .source_rows = ROWS,
                              .columns = COLUMNS,
                              .codes = &codes_tensor,
                              .scales = &scales_tensor,
                              .whole = &whole_tensor,
                              .divides = true,
                              .file = "test"};
    uint64_t bytes;
    sl_error error;
    assert_true(sl_scaled_bytes(&scaled, &bytes));
    assert_int_equal(bytes, sizeof plain);
    assert_int_equal(sl_scaled_pack(&scaled, 0, ROWS, plain, NULL, &error), 0);
    sl_qtype_get(SL_QTYPE_BF16)->decode(plain, values, ROWS * COLUMNS);
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        assert_true(values[i] == pairs[i / 2 % 3][i % 2] * ldexpf(1, (int)(i / 16 % 5) - 2) / 4);
    }
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
        const sl_quantize_options pure = {
            .mixture = sl_mixture_find(sl_qtype_get(written[i])->name), .pure = true, .replace = true};
        assert_int_equal(sl_quantize_file(TO, FROM, &pure, NULL, NULL, &error), 0);
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
        cmocka_unit_test(rows_with_the_same_scales_are_known),
        cmocka_unit_test(descriptions_count_what_is_stored),
        cmocka_unit_test(modelopts_own_file_says_the_same),
        cmocka_unit_test(modelopts_own_file_is_not_believed),
        cmocka_unit_test(experts_of_one_tensor_have_scales),
        cmocka_unit_test(copies_come_and_go),
        cmocka_unit_test(experts_of_one_tensor_must_fit),
        cmocka_unit_test(short_rows_become_bf16),
        cmocka_unit_test(gguf_scales_multiply_their_matrices),
        cmocka_unit_test(gguf_scales_survive_quantize),
        cmocka_unit_test(gguf_scales_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
