/* Files that are written: quantize and synth. Expected values are worked out here from the source's tensors,
 * or are published (parameter counts, token ids). */
#include "support.h"

#include "base/alloc.h"
#include "base/map.h"
#include "model/files.h"
#include "support/sanitized.h"

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#define OUT SLUICE_BINARY_DIR "/test_files-out.gguf"
#define SECOND SLUICE_BINARY_DIR "/test_files-second.gguf"

static void must(int code, const sl_error *error) {
    if (code) {
        fail_msg("%s", error->message);
    }
}

static void synth(const char *path, const char *preset, sl_qtype type, uint64_t seed) {
    sl_error error;
    const sl_synth_options options = {.preset = preset, .type = type, .seed = seed};
    must(sl_synth_file(path, &options, NULL, &error), &error);
}

/* All matrices in one type, over whatever file is there. */
static int quantize(const char *from, const char *to, sl_qtype type, const sl_file_progress *progress,
                    sl_error *error) {
    /* The mixture that is called IQ2_S is mostly IQ2_XS. */
    const char *name = type == SL_QTYPE_IQ2_S ? "IQ2_M" : sl_qtype_get(type)->name;
    const sl_quantize_options options = {.mixture = sl_mixture_find(name), .pure = true, .replace = true};
    return sl_quantize_file(from, to, &options, progress, NULL, error);
}

static sl_gguf *open_gguf(const char *path) {
    sl_gguf *gguf;
    sl_error error;
    must(sl_gguf_open(path, &gguf, &error), &error);
    return gguf;
}

static float *decode(const sl_tensor *tensor) {
    float *values = malloc((size_t)tensor->elements * sizeof *values);
    assert_non_null(values);
    sl_qtype_get(tensor->type)->decode(tensor->data, values, tensor->elements);
    return values;
}

static bool is_there(const char *path) {
    return access(path, F_OK) == 0;
}

/* Files of the test's folder whose names begin with this test's: none may stay behind. */
static int leftovers(void) {
    DIR *folder = opendir(SLUICE_BINARY_DIR);
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += strncmp(entry->d_name, "test_files-", 11) == 0;
    }
    closedir(folder);
    return count;
}

/* Some types are what checkpoints' weights become in memory. */
static bool is_written(int type) {
    return sl_qtype_get((sl_qtype)type)->gguf_type != SL_QTYPE_NO_GGUF;
}

static bool is_tried(int type) {
    return is_written(type) && !SEARCHED_SLOWLY(type);
}

/* ---- synth ---- */

static void presets_and_types_load(void **state) {
    (void)state;
    static const char *const small[] = {"llama",    "mistral", "qwen2",  "qwen3",
                                        "qwen3moe", "gemma3",  "qwen3_5"};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        for (int type = 0; type < SL_QTYPE_COUNT; type++) {
            /* A third of the pairs, and one preset with each type whose encoder searches: test_invariants
             * opens them all. */
            if (!is_tried(type) || (i + (size_t)type) % 3 != 0 || (SEARCHED(type) && i >= 3)) {
                continue;
            }
            sl_error error;
            sl_model *model;
            synth(OUT, small[i], (sl_qtype)type, 1);
            must(sl_model_load(OUT, &model, &error), &error);
            /* GGUF has no word for Mistral. */
            assert_string_equal(model->config.family->name, strcmp(small[i], "mistral") ? small[i] : "llama");
            assert_true(model->description.types[type].tensors > 0);
            assert_int_equal(model->description.tensors, model->description.file_tensors);
            assert_int_equal(sl_tokenizer_size(model->tokenizer), model->config.vocabulary);
            assert_non_null(model->chat_template.data);
            sl_model_free(model);
        }
    }
    unlink(OUT);
}

/* Standard deviation and mean of a matrix. */
static void check_spread(const sl_tensor *tensor, double wanted) {
    float *values = decode(tensor);
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < tensor->elements; i++) {
        assert_true(isfinite(values[i]));
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    const double mean = sum / (double)tensor->elements;
    const double deviation = sqrt(squares / (double)tensor->elements - mean * mean);
    /* With some two bits an element, what is left out is a good part of the whole; ternary numbers are
     * farther out. */
    const sl_qtype_info *type = sl_qtype_get(tensor->type);
    const double slack = 8 * type->block_bytes < 2.6 * type->block_elements ? 0.2 : 0.05;
    if (fabs(deviation / wanted - 1) > slack || fabs(mean) > 0.05 * wanted) {
        fail_msg("%s: mean %g, deviation %g, wanted 0 and %g", tensor->name, mean, deviation, wanted);
    }
    free(values);
}

static void random_weights_have_the_right_spread(void **state) {
    (void)state;
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        if (!is_tried(type)) {
            continue;
        }
        synth(OUT, "qwen3moe", (sl_qtype)type, 3);
        sl_gguf *gguf = open_gguf(OUT);
        for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
            const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
            const bool exact = tensor->dim_count == 1 || strstr(tensor->name, "ffn_gate_inp");
            assert_int_equal(tensor->type, exact ? SL_QTYPE_F32 : (sl_qtype)type);
            if (tensor->dim_count > 1) {
                check_spread(tensor, 1 / sqrt((double)tensor->dims[0]));
            }
        }
        /* Neighbouring rows are not copies of each other. */
        const sl_tensor *q = sl_gguf_tensor(gguf, "blk.0.attn_q.weight");
        assert_memory_not_equal(q->data, (const char *)q->data + q->bytes / 2, (size_t)q->bytes / 512);
        sl_gguf_close(gguf);
    }
    unlink(OUT);
}

static bool same_files(const char *a, const char *b) {
    sl_map first = {0}, second = {0};
    sl_error error;
    must(sl_map_open(&first, a, &error), &error);
    must(sl_map_open(&second, b, &error), &error);
    const bool same = first.size == second.size && memcmp(first.data, second.data, first.size) == 0;
    sl_map_close(&first);
    sl_map_close(&second);
    return same;
}

static void the_seed_decides(void **state) {
    (void)state;
    synth(OUT, "qwen3", SL_QTYPE_Q4_K, 5);
    synth(SECOND, "qwen3", SL_QTYPE_Q4_K, 5);
    assert_true(same_files(OUT, SECOND));
    synth(SECOND, "qwen3", SL_QTYPE_Q4_K, 6);
    assert_false(same_files(OUT, SECOND));
    unlink(OUT);
    unlink(SECOND);
}

typedef struct size {
    uint64_t parameters, vocabulary;
} size;

/* 0: as the preset has it. */
static size size_of(const char *preset, int32_t layers, int32_t vocabulary, int32_t width) {
    sl_error error;
    sl_model *model;
    const sl_synth_options options = {
        .preset = preset, .type = SL_QTYPE_Q4_0, .layers = layers, .vocabulary = vocabulary, .width = width};
    must(sl_synth_file(OUT, &options, NULL, &error), &error);
    must(sl_model_load(OUT, &model, &error), &error);
    const size found = {model->description.parameters, (uint64_t)model->config.vocabulary};
    sl_model_free(model);
    return found;
}

/* The published counts. Whole files would take long, so from one and two layers, two small vocabularies, and
 * the vocabulary of a narrow model. */
static void large_presets_have_the_published_size(void **state) {
    (void)state;
    static const struct {
        const char *preset;
        uint64_t layers, parameters;
    } published[] = {{"qwen3-0.6b", 28, 596049920}, {"qwen3-8b", 36, 8190735360}};
    enum { FEW = 320, MORE = 384 };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const char *preset = published[i].preset;
        const uint64_t one = size_of(preset, 1, FEW, 0).parameters;
        const uint64_t layer = size_of(preset, 2, FEW, 0).parameters - one;
        const uint64_t tokens = size_of(preset, 1, MORE, 0).parameters - one;
        const uint64_t vocabulary = size_of(preset, 1, 0, 32).vocabulary;
        assert_int_equal(one + (published[i].layers - 1) * layer + (vocabulary - FEW) * tokens / (MORE - FEW),
                         published[i].parameters);
    }
    unlink(OUT);
}

static void wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        sl_synth_options options;
        const char *word;
    } wrong[] = {{{.preset = "gpt5"}, "gpt5"},
                 {{.preset = "qwen3", .heads = 3}, "head_count_kv"},
                 {{.preset = "qwen3", .head_size = 7}, "dimension_count"},
                 {{.preset = "qwen3", .vocabulary = 100}, "260"},
                 {{.preset = "qwen3", .layers = -1}, "block_count"},
                 {{.preset = "llama", .experts = 4, .experts_used = 2, .expert_width = 64}, "experts"},
                 {{.preset = "qwen3moe", .experts_used = 9}, "expert_used_count"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sl_error error = {0};
        assert_true(sl_synth_file(OUT, &wrong[i].options, NULL, &error) < 0);
        if (!strstr(error.message, wrong[i].word)) {
            fail_msg("\"%s\" does not name %s", error.message, wrong[i].word);
        }
        assert_false(is_there(OUT));
    }
}

/* ---- quantize ---- */

static void metadata_come_along(void **state) {
    (void)state;
    sl_error error;
    synth(OUT, "gemma3", SL_QTYPE_F32, 1);
    must(quantize(OUT, SECOND, SL_QTYPE_Q8_0, NULL, &error), &error);
    sl_gguf *from = open_gguf(OUT), *to = open_gguf(SECOND);
    assert_int_equal(sl_gguf_entry_count(from), sl_gguf_entry_count(to));
    for (uint64_t i = 0; i < sl_gguf_entry_count(from); i++) {
        const sl_gguf_entry *a = sl_gguf_entry_at(from, i), *b = sl_gguf_find(to, a->key);
        if (!b) {
            fail_msg("%s is lost", a->key);
        }
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->bytes, b->bytes);
        if (strcmp(a->key, "general.file_type") != 0) {
            assert_memory_equal(a->data, b->data, (size_t)a->bytes);
        }
    }
    uint64_t type = 0;
    must(sl_gguf_u64(to, "general.file_type", &type, &error), &error);
    assert_int_equal(type, 7); /* LLAMA_FTYPE_MOSTLY_Q8_0 */
    sl_gguf_close(from);
    sl_gguf_close(to);
    unlink(OUT);
    unlink(SECOND);
}

/* Every tensor is what its type's reference makes of the source's values. */
static void check_reference_encoding(const sl_synth_options *options, sl_qtype type) {
    sl_error error;
    must(sl_synth_file(OUT, options, NULL, &error), &error);
    must(quantize(OUT, SECOND, type, NULL, &error), &error);
    sl_gguf *from = open_gguf(OUT), *to = open_gguf(SECOND);
    assert_int_equal(sl_gguf_tensor_count(from), sl_gguf_tensor_count(to));
    for (uint64_t i = 0; i < sl_gguf_tensor_count(from); i++) {
        const sl_tensor *a = sl_gguf_tensor_at(from, i), *b = sl_gguf_tensor(to, a->name);
        assert_non_null(b);
        assert_memory_equal(a->dims, b->dims, sizeof a->dims);
        const bool exact = a->dim_count == 1 || strstr(a->name, "ffn_gate_inp");
        assert_int_equal(b->type, exact ? SL_QTYPE_F32 : type);
        float *values = decode(a);
        void *blocks = malloc((size_t)b->bytes);
        sl_qtype_get(b->type)->encode(values, blocks, a->elements);
        assert_memory_equal(blocks, b->data, (size_t)b->bytes);
        free(blocks);
        free(values);
    }
    sl_gguf_close(from);
    sl_gguf_close(to);
}

static void values_are_the_reference_encoding(void **state) {
    (void)state;
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        const sl_synth_options options = {
            .preset = "qwen3moe", .type = SL_QTYPE_BF16, .seed = 2, .layers = 1};
        if (is_tried(type)) {
            check_reference_encoding(&options, (sl_qtype)type);
        }
    }
    /* Matrices that are more than one batch of rows. */
    const sl_synth_options large = {
        .preset = "llama", .type = SL_QTYPE_F16, .layers = 1, .vocabulary = 40001};
    check_reference_encoding(&large, SL_QTYPE_Q8_0);
    unlink(OUT);
    unlink(SECOND);
}

static void odd_widths_fall_back(void **state) {
    (void)state;
    sl_error error;
    const sl_synth_options options = {
        .preset = "llama", .type = SL_QTYPE_Q4_K, .width = 96, .feed_forward = 36};
    must(sl_synth_file(OUT, &options, NULL, &error), &error);
    must(quantize(OUT, SECOND, SL_QTYPE_Q6_K, NULL, &error), &error);
    for (int i = 0; i < 2; i++) {
        sl_gguf *gguf = open_gguf(i ? SECOND : OUT);
        assert_int_equal(sl_gguf_tensor(gguf, "blk.0.attn_q.weight")->type,
                         i ? SL_QTYPE_Q8_0 : SL_QTYPE_Q5_0);                                 /* rows of 96 */
        assert_int_equal(sl_gguf_tensor(gguf, "blk.0.ffn_down.weight")->type, SL_QTYPE_F16); /* of 36 */
        assert_int_equal(sl_gguf_tensor(gguf, "blk.0.attn_output.weight")->type,
                         i ? SL_QTYPE_Q6_K : SL_QTYPE_Q4_K); /* of 256 */
        assert_int_equal(sl_gguf_tensor(gguf, "blk.0.attn_norm.weight")->type, SL_QTYPE_F32);
        sl_gguf_close(gguf);
    }
    unlink(OUT);
    unlink(SECOND);
}

/* One matrix of 8 rows, in `type`, with `value` in row 5. */
static void write_matrix(sl_qtype type, float value) {
    enum { ROWS = 8, COLUMNS = 64 };
    float values[ROWS * COLUMNS] = {0};
    unsigned char blocks[sizeof values];
    const sl_gguf_shape shape = {.type = type, .dim_count = 2, .dims = {COLUMNS, ROWS}};
    uint64_t bytes;
    sl_gguf_writer *writer;
    sl_error error;
    values[5 * COLUMNS + 7] = value;
    sl_qtype_get(type)->encode(values, blocks, ROWS * COLUMNS);
    assert_true(sl_qtype_bytes(type, ROWS * COLUMNS, &bytes));
    must(sl_gguf_writer_create(OUT, &writer, &error), &error);
    must(sl_gguf_writer_tensor(writer, "blk.3.ffn_up.weight", &shape, &error), &error);
    must(sl_gguf_writer_begin(writer, NULL, &error), &error);
    must(sl_gguf_writer_data(writer, blocks, bytes, &error), &error);
    must(sl_gguf_writer_finish(writer, &error), &error);
    sl_gguf_writer_free(writer);
}

static void weights_that_are_no_numbers_are_named(void **state) {
    (void)state;
    static const struct {
        sl_qtype from, to;
        float value;
        const char *word; /* NULL: nothing is wrong */
    } cases[] = {{SL_QTYPE_F32, SL_QTYPE_Q8_0, NAN, "no finite number"},
                 {SL_QTYPE_F32, SL_QTYPE_F32, NAN, "no finite number"},
                 {SL_QTYPE_F32, SL_QTYPE_Q4_0, INFINITY, "no finite number"},
                 {SL_QTYPE_F16, SL_QTYPE_F16, -INFINITY, "no finite number"},
                 {SL_QTYPE_BF16, SL_QTYPE_Q5_1, NAN, "no finite number"},
                 {SL_QTYPE_F32, SL_QTYPE_F16, 1e6f, "too large for f16"},
                 {SL_QTYPE_F32, SL_QTYPE_Q8_0, 1e38f, "too large for q8_0"},
                 {SL_QTYPE_F32, SL_QTYPE_Q8_0, 1e6f, NULL},
                 {SL_QTYPE_F32, SL_QTYPE_BF16, 1e38f, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_error error = {0};
        write_matrix(cases[i].from, cases[i].value);
        const int code = quantize(OUT, SECOND, cases[i].to, NULL, &error);
        assert_int_equal(code, cases[i].word ? SL_ERR_FORMAT : 0);
        assert_int_equal(is_there(SECOND), !cases[i].word);
        if (cases[i].word && (!strstr(error.message, cases[i].word) ||
                              !strstr(error.message, "blk.3.ffn_up.weight: row 5 "))) {
            fail_msg("%s", error.message);
        }
        unlink(SECOND);
    }
    unlink(OUT);
    assert_int_equal(leftovers(), 0);
}

typedef struct seen {
    uint64_t tensors, from_bytes, to_bytes, fallen;
} seen;

static void see_tensor(void *context, const sl_quantized_tensor *tensor) {
    seen *s = context;
    s->tensors++;
    s->from_bytes += tensor->from_bytes;
    s->to_bytes += tensor->to_bytes;
    s->fallen += tensor->to != tensor->wanted;
}

static void dry_runs_tell_the_size(void **state) {
    (void)state;
    static const char *const presets[] = {"qwen3moe", "qwen3_5", "llama"};
    for (int i = 0; i < 3; i++) {
        sl_error error;
        seen dry = {0}, wet = {0};
        uint64_t dry_bytes = 0, bytes = 0;
        const sl_synth_options synthetic = {
            .preset = presets[i], .type = SL_QTYPE_BF16, .width = i == 2 ? 96 : 0};
        must(sl_synth_file(OUT, &synthetic, NULL, &error), &error);
        sl_quantize_options options = {
            .mixture = sl_mixture_find("Q3_K_M"), .dry_run = true, .tensor = see_tensor, .context = &dry};
        must(sl_quantize_file(OUT, NULL, &options, NULL, &dry_bytes, &error), &error);
        assert_int_equal(leftovers(), 1);
        options.dry_run = false;
        options.context = &wet;
        must(sl_quantize_file(OUT, SECOND, &options, NULL, &bytes, &error), &error);
        sl_map map = {0};
        sl_gguf *gguf = open_gguf(SECOND);
        must(sl_map_open(&map, SECOND, &error), &error);
        assert_int_equal(dry_bytes, map.size);
        assert_int_equal(bytes, map.size);
        assert_memory_equal(&dry, &wet, sizeof dry);
        uint64_t data = 0, type = 0;
        for (uint64_t t = 0; t < sl_gguf_tensor_count(gguf); t++) {
            data += sl_gguf_tensor_at(gguf, t)->bytes;
        }
        assert_int_equal(wet.to_bytes, data);
        assert_int_equal(wet.tensors, sl_gguf_tensor_count(gguf));
        assert_int_equal(wet.fallen > 0, i == 2);
        must(sl_gguf_u64(gguf, "general.file_type", &type, &error), &error);
        assert_int_equal(type, 12); /* LLAMA_FTYPE_MOSTLY_Q3_K_M */
        sl_gguf_close(gguf);
        sl_map_close(&map);
        unlink(SECOND);
    }
    unlink(OUT);
}

/* What the checkpoint's linear-attention tensors become, by the description in tests/logits/README.md: value
 * head h = k * ratio + j of the checkpoint is head j * keys + k of the file; the decay is -exp(A_log); norms
 * but the gated one have 1 added. */
static void recurrent_layers_take_the_files_order(void **state) {
    (void)state;
    enum { KEYS = 2, RATIO = 2, SIZE = 16, WIDTH = 64 };
    char folder[512];
    sl_error error;
    sl_source *source;
    fixture_path("qwen3_5", folder);
    must(quantize(folder, OUT, SL_QTYPE_F32, NULL, &error), &error);
    must(sl_source_open(folder, &source, &error), &error);
    sl_gguf *gguf = open_gguf(OUT);
    static const char *const names[][2] = {
        {"model.layers.0.linear_attn.in_proj_qkv.weight", "blk.0.attn_qkv.weight"},
        {"model.layers.0.linear_attn.out_proj.weight", "blk.0.ssm_out.weight"},
        {"model.layers.0.linear_attn.A_log", "blk.0.ssm_a"},
        {"model.layers.0.linear_attn.norm.weight", "blk.0.ssm_norm.weight"},
        {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"}};
    float *a[5], *b[5];
    for (int i = 0; i < 5; i++) {
        const sl_tensor *tensor;
        must(sl_source_tensor(source, names[i][0], &tensor, &error), &error);
        a[i] = decode(tensor);
        assert_non_null(sl_gguf_tensor(gguf, names[i][1]));
        b[i] = decode(sl_gguf_tensor(gguf, names[i][1]));
    }
    const int before = 2 * KEYS * SIZE, values = KEYS * RATIO * SIZE;
    assert_memory_equal(a[0], b[0], (size_t)before * WIDTH * sizeof(float));
    for (int k = 0; k < KEYS; k++) {
        for (int j = 0; j < RATIO; j++) {
            const int from = k * RATIO + j, to = j * KEYS + k;
            assert_memory_equal(a[0] + (before + from * SIZE) * WIDTH, b[0] + (before + to * SIZE) * WIDTH,
                                SIZE * WIDTH * sizeof(float));
            for (int row = 0; row < WIDTH; row++) {
                assert_memory_equal(a[1] + row * values + from * SIZE, b[1] + row * values + to * SIZE,
                                    SIZE * sizeof(float));
            }
            assert_true(fabs((double)b[2][to] + exp((double)a[2][from])) < 1e-5);
        }
    }
    assert_memory_equal(a[3], b[3], SIZE * sizeof(float));
    for (int i = 0; i < WIDTH; i++) {
        assert_true(b[4][i] == a[4][i] + 1);
    }
    for (int i = 0; i < 5; i++) {
        free(a[i]);
        free(b[i]);
    }
    sl_gguf_close(gguf);
    sl_source_close(source);
    unlink(OUT);
}

/* ---- the tokenizer of a folder ---- */

static void write_tokenizer_file(const char *folder, const char *config_path, int32_t vocabulary) {
    static const float one = 1;
    const sl_gguf_shape shape = {.type = SL_QTYPE_F32, .dim_count = 1, .dims = {1}};
    sl_gguf_writer *writer;
    sl_error error;
    must(sl_gguf_writer_create(OUT, &writer, &error), &error);
    must(sl_file_write_tokenizer(writer, folder, config_path, vocabulary, &error), &error);
    must(sl_gguf_writer_tensor(writer, "x", &shape, &error), &error);
    must(sl_gguf_writer_begin(writer, NULL, &error), &error);
    must(sl_gguf_writer_data(writer, &one, sizeof one, &error), &error);
    must(sl_gguf_writer_finish(writer, &error), &error);
    sl_gguf_writer_free(writer);
}

/* cases.inp and cases.out: texts between separator lines, and the ids that the published tokenizer gives. */
static void check_cases(const sl_tokenizer *tokenizer, const char *folder) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[600], *line;
    sl_map input = {0}, output = {0};
    sl_error error;
    snprintf(path, sizeof path, "%s/cases.inp", folder);
    must(sl_map_open(&input, path, &error), &error);
    snprintf(path, sizeof path, "%s/cases.out", folder);
    must(sl_map_open(&output, path, &error), &error);
    char *text = sl_strndup((const char *)input.data, input.size);
    char *lines = line = sl_strndup((const char *)output.data, output.size), *at = text;
    int cases = 0;
    for (; at && *line; cases++) {
        char *end = strstr(at, separator);
        const size_t length = end ? (size_t)(end - at) : strlen(at);
        sl_tokens tokens = {0};
        must(sl_tokenizer_encode(tokenizer, at, length, 0, &tokens, &error), &error);
        char *line_end = strchr(line, '\n');
        *line_end = '\0';
        for (size_t i = 0; i < tokens.count; i++) {
            assert_int_equal(tokens.data[i], strtol(line, &line, 10));
        }
        assert_int_equal(strspn(line, " "), strlen(line));
        sl_tokens_free(&tokens);
        line = line_end + 1;
        at = end ? end + sizeof separator - 1 : NULL;
    }
    assert_true(cases > 40);
    sl_free(text);
    sl_free(lines);
    sl_map_close(&input);
    sl_map_close(&output);
}

static void published_tokenizers_survive(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t vocabulary;
    } folders[] = {{"qwen3", 151936}, {"llama3_2", 128256}};
    for (int i = 0; i < 2; i++) {
        char folder[512], path[600], config_path[600];
        sl_error error;
        sl_tokenizer *from, *to;
        snprintf(folder, sizeof folder, "%s/tokenizers/%s", SLUICE_SHARED_DIR, folders[i].name);
        snprintf(path, sizeof path, "%s/tokenizer.json", folder);
        snprintf(config_path, sizeof config_path, "%s/tokenizer_config.json", folder);
        if (!is_there(path)) {
            print_message("skipped: there is no %s\n", path);
            skip();
        }
        write_tokenizer_file(path, config_path, folders[i].vocabulary);
        sl_gguf *gguf = open_gguf(OUT);
        must(sl_tokenizer_from_json(path, config_path, &from, &error), &error);
        must(sl_tokenizer_from_gguf(gguf, &to, &error), &error);
        assert_int_equal(sl_tokenizer_size(to), folders[i].vocabulary);
        assert_int_equal(sl_tokenizer_bos(to), sl_tokenizer_bos(from));
        assert_int_equal(sl_tokenizer_eos(to), sl_tokenizer_eos(from));
        assert_int_equal(sl_tokenizer_adds_bos(to), sl_tokenizer_adds_bos(from));
        assert_true(
            sl_view_equal(sl_tokenizer_chat_template(to, NULL), sl_tokenizer_chat_template(from, NULL)));
        check_cases(to, folder);
        sl_tokenizer_destroy(from);
        sl_tokenizer_destroy(to);
        sl_gguf_close(gguf);
    }
    unlink(OUT);
}

/* The keys: gguf-py's Keys.Tokenizer.CHAT_TEMPLATE, CHAT_TEMPLATE_N and CHAT_TEMPLATES. */
static void named_templates_survive(void **state) {
    (void)state;
#define NAMED SLUICE_BINARY_DIR "/named_templates"
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"decoder\":{\"type\":\"ByteLevel\"}}";
    sl_error error;
    sl_view text;
    mkdir(NAMED, 0777);
    mkdir(NAMED "/additional_chat_templates", 0777);
    write_file(NAMED "/tokenizer.json", json, sizeof json - 1);
    write_file(NAMED "/chat_template.jinja", "usual", 5);
    write_file(NAMED "/additional_chat_templates/rag.jinja", "with documents", 14);
    write_tokenizer_file(NAMED "/tokenizer.json", NULL, 3);
    sl_gguf *gguf = open_gguf(OUT);
    must(sl_gguf_string(gguf, "tokenizer.chat_template", &text, &error), &error);
    assert_true(sl_view_is(text, "usual"));
    must(sl_gguf_string(gguf, "tokenizer.chat_template.rag", &text, &error), &error);
    assert_true(sl_view_is(text, "with documents"));
    assert_non_null(sl_gguf_find(gguf, "tokenizer.chat_templates"));
    sl_tokenizer *to;
    must(sl_tokenizer_from_gguf(gguf, &to, &error), &error);
    assert_string_equal(sl_tokenizer_chat_template_name(to, 0), "default");
    assert_string_equal(sl_tokenizer_chat_template_name(to, 1), "rag");
    assert_null(sl_tokenizer_chat_template_name(to, 2));
    sl_tokenizer_destroy(to);
    sl_gguf_close(gguf);
    unlink(OUT);
}

static void a_tokenizer_without_a_name_is_refused(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"[a-f]+\"},\"behavior\":\"Isolated\",\"invert\":false},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}}";
    char path[] = SLUICE_BINARY_DIR "/test_files-tokenizer.json";
    sl_error error = {0};
    sl_gguf_writer *writer;
    write_file(path, json, sizeof json - 1);
    must(sl_gguf_writer_create(OUT, &writer, &error), &error);
    assert_int_equal(sl_file_write_tokenizer(writer, path, NULL, 2, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "pre_tokenizer"));
    assert_non_null(strstr(error.message, path));
    sl_gguf_writer_free(writer);
    unlink(path);
    assert_int_equal(leftovers(), 0);
}

/* ---- nothing half-written stays ---- */

typedef struct counted {
    uint64_t calls, stop_at, last, total;
} counted;

static bool count_progress(void *context, uint64_t done, uint64_t total) {
    counted *c = context;
    assert_true(done >= c->last && done <= total);
    c->last = done;
    c->total = total;
    return ++c->calls != c->stop_at;
}

static void progress_counts_and_cancels(void **state) {
    (void)state;
    sl_error error;
    for (int which = 0; which < 2; which++) {
        const sl_synth_options options = {.preset = "qwen3moe", .type = SL_QTYPE_Q8_0};
        counted all = {0}, stopped = {.stop_at = 20};
        sl_file_progress progress = {count_progress, &all};
        synth(SECOND, "qwen3moe", SL_QTYPE_F16, 1);
        must(which ? quantize(SECOND, OUT, SL_QTYPE_Q8_0, &progress, &error)
                   : sl_synth_file(OUT, &options, &progress, &error),
             &error);
        assert_true(all.calls > 20);
        assert_true(all.total > 0 && all.last == all.total);
        /* A file of that name stays as it was. */
        write_file(OUT, "old", 3);
        progress.context = &stopped;
        assert_int_equal(which ? quantize(SECOND, OUT, SL_QTYPE_Q8_0, &progress, &error)
                               : sl_synth_file(OUT, &options, &progress, &error),
                         SL_ERR_CANCELLED);
        sl_map map = {0};
        must(sl_map_open(&map, OUT, &error), &error);
        assert_int_equal(map.size, 3);
        sl_map_close(&map);
        assert_int_equal(leftovers(), 2);
        unlink(OUT);
        unlink(SECOND);
    }
}

/* 0: synth, 1: quantize of a folder, 2: quantize of a file. */
static int write_one(int which, sl_error *error) {
    char folder[512];
    const sl_synth_options options = {.preset = "llama", .type = SL_QTYPE_F32, .layers = 1};
    fixture_path("qwen3moe", folder);
    return which == 0 ? sl_synth_file(OUT, &options, NULL, error)
                      : quantize(which == 1 ? folder : SECOND, OUT, SL_QTYPE_Q8_0, NULL, error);
}

static void no_allocation_failure_leaks(void **state) {
    (void)state;
    synth(SECOND, "llama", SL_QTYPE_Q8_0, 1);
    const uint64_t live = sl_alloc_live_bytes();
    for (int which = 0; which < 3; which++) {
        int code = SL_ERR_NOMEM;
        for (uint64_t nth = 1; code; nth++) {
            sl_error error = {0};
            sl_alloc_fail_at(nth);
            code = write_one(which, &error);
            sl_alloc_fail_at(0);
            assert_int_equal(sl_alloc_live_bytes(), live);
            if (code && (code != SL_ERR_NOMEM || !error.message[0] || is_there(OUT))) {
                fail_msg("allocation %llu: %d %s", (unsigned long long)nth, code, error.message);
            }
            assert_true(code || nth > 15);
        }
        unlink(OUT);
    }
    unlink(SECOND);
    assert_int_equal(leftovers(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_and_types_load),
        cmocka_unit_test(random_weights_have_the_right_spread),
        cmocka_unit_test(the_seed_decides),
        cmocka_unit_test(large_presets_have_the_published_size),
        cmocka_unit_test(wrong_options_are_refused_by_name),
        cmocka_unit_test(metadata_come_along),
        cmocka_unit_test(values_are_the_reference_encoding),
        cmocka_unit_test(odd_widths_fall_back),
        cmocka_unit_test(weights_that_are_no_numbers_are_named),
        cmocka_unit_test(dry_runs_tell_the_size),
        cmocka_unit_test(recurrent_layers_take_the_files_order),
        cmocka_unit_test(published_tokenizers_survive),
        cmocka_unit_test(named_templates_survive),
        cmocka_unit_test(a_tokenizer_without_a_name_is_refused),
        cmocka_unit_test(progress_counts_and_cancels),
        cmocka_unit_test(no_allocation_failure_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
