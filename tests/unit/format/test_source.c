/* Model folders, and the one view over folders and GGUF files. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "format/source.h"
#include "unit/format/bytes.h"

#include <sys/stat.h>
#include <unistd.h>

#define FOLDER SLUICE_BINARY_DIR "/test_source"

static const char *const names[] = {
    "config.json",     "tokenizer.json",  "tokenizer_config.json",        "model.safetensors",
    "one.safetensors", "two.safetensors", "model.safetensors.index.json", "model.gguf"};

static int clean(void **state) {
    (void)state;
    mkdir(FOLDER, 0777);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", FOLDER, names[i]);
        unlink(path);
    }
    return 0;
}

static void write_text(const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", FOLDER, name);
    write_file(path, text, strlen(text));
}

/* One f16 tensor of two elements per name, filled with the name's first letter. */
static void write_shard(const char *file, const char *first, const char *second) {
    char header[512], data[8], path[4096];
    bytes b = {0};
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[0,4]},"
             "\"%s\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]}}",
             first, second);
    memset(data, first[0], 4), memset(data + 4, second[0], 4);
    put_safetensors(&b, header, data, 8);
    snprintf(path, sizeof path, "%s/%s", FOLDER, file);
    write_file(path, b.data, b.size);
    free(b.data);
}

static const char config[] =
    "{\"hidden_size\": 64, \"eps\": 1e-6, \"theta\": 10000, \"tie\": true, \"type\": \"llama\","
    " \"low\": -1, \"gone\": null,"
    " \"text_config\": {\"layers\": 5, \"rope_parameters\": {\"factor\": 2.5}}}";

static void write_folder(void) {
    write_text("config.json", config);
    write_text("tokenizer.json", "{}");
    write_shard("one.safetensors", "a", "b");
    write_shard("two.safetensors", "c", "d");
    write_text("model.safetensors.index.json", "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"d\":"
                                               "\"two.safetensors\",\"a\":\"one.safetensors\","
                                               "\"c\":\"two.safetensors\",\"b\":\"one.safetensors\"}}");
}

static void shards_are_one_folder(void **state) {
    (void)state;
    write_folder();
    sl_hf *hf;
    sl_error error;
    const sl_tensor *tensor;
    assert_int_equal(sl_hf_open(FOLDER "/", &hf, &error), 0);
    assert_string_equal(sl_hf_path(hf), FOLDER);
    assert_string_equal(sl_hf_tokenizer_path(hf), FOLDER "/tokenizer.json");
    assert_null(sl_hf_tokenizer_config_path(hf));
    assert_int_equal(sl_hf_tensor_count(hf), 4);
    for (int i = 0; i < 4; i++) {
        const char name[2] = {(char)('a' + i), 0};
        assert_string_equal(sl_hf_tensor_at(hf, (uint64_t)i)->tensor.name, name);
        assert_int_equal(sl_hf_tensor(hf, name, &tensor, &error), 0);
        assert_int_equal(tensor->dims[0], 2);
        assert_int_equal(*(const char *)tensor->data, name[0]);
    }
    assert_int_equal(sl_hf_tensor(hf, "e", &tensor, &error), SL_ERR_NOT_FOUND);
    assert_string_equal(error.message, FOLDER ": there is no tensor 'e'");
    sl_hf_close(hf);
    /* one file goes before the index */
    write_shard("model.safetensors", "x", "y");
    assert_int_equal(sl_hf_open(FOLDER, &hf, &error), 0);
    assert_int_equal(sl_hf_tensor_count(hf), 2);
    assert_int_equal(sl_hf_tensor(hf, "y", &tensor, &error), 0);
    sl_hf_close(hf);
}

static void no_tensor_is_in_two_shards(void **state) {
    (void)state;
    write_folder();
    write_shard("two.safetensors", "c", "a");
    write_text(
        "model.safetensors.index.json",
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    sl_hf *hf;
    sl_error error;
    assert_int_equal(sl_hf_open(FOLDER, &hf, &error), SL_ERR_FORMAT);
    assert_string_equal(error.message,
                        FOLDER "/two.safetensors: tensor 'a' is here, but the index puts it into "
                               "one.safetensors");
    /* A tensor that the index does not name at all is left alone. */
    write_shard("two.safetensors", "c", "z");
    assert_int_equal(sl_hf_open(FOLDER, &hf, &error), 0);
    sl_hf_close(hf);
}

static void config_values_are_typed(void **state) {
    (void)state;
    write_folder();
    sl_hf *hf;
    sl_error error;
    uint64_t u = 0;
    double f = 0;
    bool flag = false;
    const char *text;
    assert_int_equal(sl_hf_open(FOLDER, &hf, &error), 0);
    assert_int_equal(sl_hf_u64(hf, NULL, "hidden_size", &u, &error), 0);
    assert_int_equal(u, 64);
    assert_int_equal(sl_hf_u64(hf, "text_config", "layers", &u, &error), 0);
    assert_int_equal(u, 5);
    assert_int_equal(sl_hf_f64(hf, "text_config.rope_parameters", "factor", &f, &error), 0);
    assert_true(f == 2.5);
    assert_int_equal(sl_hf_f64(hf, NULL, "theta", &f, &error), 0);
    assert_true(f == 10000);
    assert_int_equal(sl_hf_bool(hf, "", "tie", &flag, &error), 0);
    assert_true(flag);
    assert_int_equal(sl_hf_string(hf, NULL, "type", &text, &error), 0);
    assert_string_equal(text, "llama");
    assert_int_equal(sl_hf_u64(hf, NULL, "eps", &u, &error), SL_ERR_FORMAT);
    assert_string_equal(error.message, FOLDER "/config.json: 'eps' is a real, an integer >= 0 wanted");
    assert_int_equal(sl_hf_u64(hf, NULL, "low", &u, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "'low' is an integer below 0"));
    assert_int_equal(sl_hf_bool(hf, NULL, "type", &flag, &error), SL_ERR_FORMAT);
    assert_int_equal(sl_hf_string(hf, NULL, "text_config", &text, &error), SL_ERR_FORMAT);
    assert_int_equal(sl_hf_f64(hf, NULL, "type", &f, &error), SL_ERR_FORMAT);
    assert_int_equal(sl_hf_u64(hf, NULL, "gone", &u, &error), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_hf_u64(hf, "text_config.rope", "factor", &u, &error), SL_ERR_NOT_FOUND);
    assert_string_equal(error.message,
                        FOLDER "/config.json: 'text_config.rope.factor' is missing (an integer >= 0 wanted)");
    assert_int_equal(sl_hf_u64(hf, "hidden_size", "x", &u, NULL), SL_ERR_FORMAT);
    assert_true(json_is_object(sl_hf_config(hf)));
    sl_hf_close(hf);
}

static void broken_folders_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *file, *text;
        int code;
        const char *part;
    } rows[] = {
        {"config.json", "[1]", SL_ERR_FORMAT, "config.json: must be a JSON object"},
        {"config.json", "{\"a\": 1,\n}", SL_ERR_FORMAT, "config.json: not JSON: line 2"},
        {"config.json", "", SL_ERR_FORMAT, "config.json: not JSON"},
        {"model.safetensors.index.json", "{}", SL_ERR_FORMAT, "'weight_map' must be an object"},
        {"model.safetensors.index.json", "{\"weight_map\":{}}", SL_ERR_FORMAT,
         "'weight_map' must be an object"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}", SL_ERR_FORMAT,
         "must be a plain file name"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", SL_ERR_FORMAT,
         "the file of tensor 'a' must be a plain file name"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../one.safetensors\"}}", SL_ERR_FORMAT,
         "plain"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"..\"}}", SL_ERR_FORMAT, "plain"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\".\"}}", SL_ERR_FORMAT, "plain"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"\"}}", SL_ERR_FORMAT, "plain"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"x\\ny\"}}", SL_ERR_FORMAT, "plain"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\\nb\":\"x\"}}", SL_ERR_FORMAT,
         "control character"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"three.safetensors\"}}", SL_ERR_IO,
         "/three.safetensors: the index names it, but it is not there"},
        {"model.safetensors.index.json",
         "{\"weight_map\":{\"a\":\"one.safetensors\",\"d\":\"one.safetensors\"}}", SL_ERR_FORMAT,
         "one.safetensors: tensor 'd' is missing"},
        {"model.safetensors.index.json",
         "{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}}", SL_ERR_FORMAT,
         "duplicate"},
        {"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"config.json\"}}", SL_ERR_FORMAT,
         "config.json: the header's length"},
        {"two.safetensors", "short", SL_ERR_FORMAT, "two.safetensors: the header's length"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_hf *hf;
        sl_error error = {0};
        uint64_t live = sl_alloc_live_bytes();
        write_folder();
        write_text(rows[i].file, rows[i].text);
        int result = sl_hf_open(FOLDER, &hf, &error);
        if (result != rows[i].code || !strstr(error.message, rows[i].part)) {
            print_message("%s: %s\n", rows[i].text, error.message);
        }
        assert_int_equal(result, rows[i].code);
        assert_non_null(strstr(error.message, rows[i].part));
        assert_null(hf);
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
}

static void sources_are_what_their_path_is(void **state) {
    (void)state;
    sl_source *source;
    sl_error error;
    const sl_tensor *tensor;
    const char *refusal = "?";
    assert_int_equal(sl_source_open(FOLDER, &source, &error), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(error.message, "a folder without config.json"));
    write_text("config.json", config);
    assert_int_equal(sl_source_open(FOLDER, &source, &error), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(error.message, "a folder without weights"));
    assert_int_equal(sl_source_open(FOLDER "/config.json", &source, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "expected a GGUF file, a .safetensors file, or a folder"));
    assert_int_equal(sl_source_open(FOLDER "/gone", &source, &error), SL_ERR_IO);
    assert_null(source);
    static const char *const paths[] = {FOLDER, FOLDER "/one.safetensors",
                                        FOLDER "/model.safetensors.index.json"};
    write_folder();
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(sl_source_open(paths[i], &source, &error), 0);
        assert_null(sl_source_gguf(source));
        assert_non_null(sl_source_hf(source));
        assert_string_equal(sl_source_path(source), FOLDER);
        assert_int_equal(sl_source_tensor_count(source), 4);
        assert_string_equal(sl_source_tensor_at(source, 3, &refusal)->name, "d");
        assert_null(refusal);
        assert_int_equal(sl_source_tensor(source, "c", &tensor, &error), 0);
        assert_int_equal(sl_source_tensor(source, "z", &tensor, NULL), SL_ERR_NOT_FOUND);
        sl_source_close(source);
    }
    for (int parts = 1; parts <= 2; parts++) {
        bytes b = {0};
        put_header(&b, 3, 1, 1), put_key(&b, "split.count", 2), put_number(&b, (uint64_t)parts, 2);
        put_text(&b, "t"), put_u32(&b, 1), put_u64(&b, 1), put_u32(&b, 0), put_u64(&b, 0);
        put_zeros_to(&b, 32), put_u32(&b, 0);
        write_file(FOLDER "/model.gguf", b.data, b.size);
        free(b.data);
        int result = sl_source_open(FOLDER "/model.gguf", &source, &error);
        assert_int_equal(result, parts == 1 ? 0 : SL_ERR_NOT_FOUND); /* no split.no */
        if (result == 0) {
            assert_null(sl_source_hf(source));
            assert_string_equal(sl_source_path(source), FOLDER "/model.gguf");
            assert_int_equal(sl_source_tensor_count(source), 1);
            assert_string_equal(sl_source_tensor_at(source, 0, NULL)->name, "t");
            assert_int_equal(sl_source_tensor(source, "t", &tensor, &error), 0);
            assert_int_equal(sl_source_tensor(source, "z", &tensor, &error), SL_ERR_NOT_FOUND);
            assert_non_null(strstr(error.message, "model.gguf: there is no tensor 'z'"));
        }
        sl_source_close(source);
    }
}

static void a_tokenizer_alone_opens(void **state) {
    (void)state;
    sl_source *source;
    sl_error error;
    uint64_t value;
    write_text("tokenizer.json", "{}");
    write_text("tokenizer_config.json", "{}");
    assert_int_equal(sl_source_open(FOLDER, &source, &error), 0);
    const sl_hf *hf = sl_source_hf(source);
    assert_int_equal(sl_source_tensor_count(source), 0);
    assert_string_equal(sl_hf_tokenizer_config_path(hf), FOLDER "/tokenizer_config.json");
    assert_int_equal(sl_hf_u64(hf, NULL, "hidden_size", &value, &error), SL_ERR_NOT_FOUND);
    sl_source_close(source);
}

static void memory_that_runs_out_is_an_error(void **state) {
    (void)state;
    write_folder();
    json_set_alloc_funcs(sl_alloc, sl_free);
    for (int single = 0; single <= 1; single++) {
        if (single) {
            write_shard("model.safetensors", "x", "y");
        }
        uint64_t live = sl_alloc_live_bytes();
        int result = SL_ERR_NOMEM;
        for (uint64_t nth = 1; result != 0; nth++) {
            sl_source *source;
            sl_error error = {0};
            assert_true(nth < 1000);
            sl_alloc_fail_at(nth);
            result = sl_source_open(FOLDER, &source, &error);
            sl_alloc_fail_at(0);
            assert_true(result == 0 || result == SL_ERR_NOMEM);
            assert_int_equal(error.code, result);
            if (result == 0) {
                assert_true(nth > 20);
                assert_int_equal(sl_source_tensor_count(source), single ? 2 : 4);
            }
            sl_source_close(source);
            assert_int_equal(sl_alloc_live_bytes(), live);
        }
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(shards_are_one_folder, clean),
        cmocka_unit_test_setup(no_tensor_is_in_two_shards, clean),
        cmocka_unit_test_setup(config_values_are_typed, clean),
        cmocka_unit_test_setup(broken_folders_are_refused, clean),
        cmocka_unit_test_setup(sources_are_what_their_path_is, clean),
        cmocka_unit_test_setup(a_tokenizer_alone_opens, clean),
        cmocka_unit_test_setup(memory_that_runs_out_is_an_error, clean),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clean(NULL);
    rmdir(FOLDER);
    return failed;
}
