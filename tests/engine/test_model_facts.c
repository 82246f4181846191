#define _GNU_SOURCE /* symlink */
/* What a model's files say about generating, through the public interface: defaults of sampling, tokens that
 * end a text. Keys and meanings: transformers' GenerationConfig, gguf-py's constants.py. */
#include "support/engine.h"
#include "unit/format/bytes.h"

#include "api/models.h"
#include "base/alloc.h"
#include "format/gguf_writer.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER SLUICE_BINARY_DIR "/test_model_facts"
#define GGUF SLUICE_BINARY_DIR "/test_model_facts.gguf"

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":3,\"content\":\"<a>\",\"special\":true},{\"id\":4,\"content\":\"<b>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
    "\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";

static void put(const char *name, const char *text) {
    char path[600];
    mkdir(FOLDER, 0777);
    snprintf(path, sizeof path, "%s/%s", FOLDER, name);
    if (text) {
        write_file(path, text, strlen(text));
    } else {
        remove(path);
    }
}

/* A folder of text files; NULL: without that file. */
static int open_folder(const char *config, const char *generation, const char *tokenizer_config,
                       sluice_model **model, sluice_error *error) {
    put("tokenizer.json", tokenizer_json);
    put("config.json", config);
    put("generation_config.json", generation);
    put("tokenizer_config.json", tokenizer_config);
    return sluice_model_open_text(FOLDER, model, error);
}

static sluice_model *must_open(const char *config, const char *generation, const char *tokenizer_config) {
    sluice_model *model;
    sluice_error error;
    must(open_folder(config, generation, tokenizer_config, &model, &error), &error, "open");
    return model;
}

static void sampling_of_a_folder(void **state) {
    (void)state;
    sluice_sampling_facts facts = {.size = sizeof facts};
    sluice_model *model = must_open("{}",
                                    "{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,"
                                    "\"min_p\":null,\"repetition_penalty\":1}",
                                    NULL);
    sluice_model_get_sampling(model, &facts);
    assert_int_equal(facts.present, SLUICE_SAMPLING_DO_SAMPLE | SLUICE_SAMPLING_TEMPERATURE |
                                        SLUICE_SAMPLING_TOP_K | SLUICE_SAMPLING_TOP_P |
                                        SLUICE_SAMPLING_REPETITION_PENALTY);
    assert_true(facts.do_sample);
    assert_float_equal(facts.temperature, 0.6f, 0);
    assert_int_equal(facts.top_k, 20);
    assert_float_equal(facts.top_p, 0.95f, 0);
    assert_float_equal(facts.min_p, 0, 0);
    assert_float_equal(facts.repetition_penalty, 1, 0);
    assert_string_equal(facts.file, FOLDER "/generation_config.json");
    assert_null(facts.samplers);
    sluice_model_release(model);

    model = must_open("{}", NULL, NULL);
    sluice_model_get_sampling(model, &facts);
    assert_int_equal(facts.present, 0);
    assert_null(facts.file);
    sluice_model_release(model);
}

static void write_gguf(void) {
    static const sl_view texts[] = {{"<unk>", 5}, {"<s>", 3}, {"</e>", 4}, {"<t>", 3}, {"a", 1}, {"[e~[", 4}};
    static const float scores[6];
    static const int32_t types[] = {SL_TOKEN_UNKNOWN, SL_TOKEN_CONTROL, SL_TOKEN_CONTROL,
                                    SL_TOKEN_CONTROL, SL_TOKEN_NORMAL,  SL_TOKEN_CONTROL};
    static const sl_gguf_items arrays[] = {
        {SL_GGUF_STRING, texts, 6}, {SL_GGUF_F32, scores, 6}, {SL_GGUF_I32, types, 6}};
    sl_gguf_writer *w;
    assert_int_equal(sl_gguf_writer_create(GGUF, &w, NULL), 0);
    sl_gguf_writer_string(w, "general.architecture", sl_view_of("llama"), NULL);
    sl_gguf_writer_float(w, "general.sampling.temp", SL_GGUF_F32, 0.75, NULL);
    sl_gguf_writer_signed(w, "general.sampling.top_k", SL_GGUF_I32, 64, NULL);
    sl_gguf_writer_signed(w, "general.sampling.penalty_last_n", SL_GGUF_I32, -1, NULL);
    sl_gguf_writer_float(w, "general.sampling.penalty_repeat", SL_GGUF_F32, 1.125, NULL);
    sl_gguf_writer_signed(w, "general.sampling.mirostat", SL_GGUF_I32, 2, NULL);
    sl_gguf_writer_string(w, "general.sampling.sequence", sl_view_of("top_k;temperature"), NULL);
    sl_gguf_writer_string(w, "tokenizer.ggml.model", sl_view_of("llama"), NULL);
    sl_gguf_writer_array(w, "tokenizer.ggml.tokens", &arrays[0], NULL);
    sl_gguf_writer_array(w, "tokenizer.ggml.scores", &arrays[1], NULL);
    sl_gguf_writer_array(w, "tokenizer.ggml.token_type", &arrays[2], NULL);
    sl_gguf_writer_unsigned(w, "tokenizer.ggml.eos_token_id", SL_GGUF_U32, 2, NULL);
    sl_gguf_writer_unsigned(w, "tokenizer.ggml.eot_token_id", SL_GGUF_U32, 3, NULL);
    assert_int_equal(sl_gguf_writer_begin(w, NULL, NULL), 0);
    assert_int_equal(sl_gguf_writer_finish(w, NULL), 0);
    sl_gguf_writer_free(w);
}

static void check_ends(const sluice_model *model, const char *expected) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    char found[64] = "";
    for (int32_t id = 0; id < sl_tokenizer_size(tokenizer); id++) {
        if (sl_tokenizer_is_eog(tokenizer, id)) {
            snprintf(found + strlen(found), sizeof found - strlen(found), "%d ", id);
        }
    }
    assert_string_equal(found, expected);
}

static void a_gguf_says_both(void **state) {
    (void)state;
    write_gguf();
    sluice_model *model;
    sluice_error error;
    must(sluice_model_open_text(GGUF, &model, &error), &error, "open");
    sluice_sampling_facts facts = {.size = sizeof facts};
    sluice_model_get_sampling(model, &facts);
    assert_int_equal(facts.present, SLUICE_SAMPLING_TEMPERATURE | SLUICE_SAMPLING_TOP_K |
                                        SLUICE_SAMPLING_PENALTY_TOKENS | SLUICE_SAMPLING_REPETITION_PENALTY |
                                        SLUICE_SAMPLING_MIROSTAT);
    assert_float_equal(facts.temperature, 0.75f, 0);
    assert_int_equal(facts.top_k, 64);
    assert_int_equal(facts.penalty_tokens, -1);
    assert_float_equal(facts.repetition_penalty, 1.125f, 0);
    assert_int_equal(facts.mirostat, 2);
    assert_string_equal(facts.samplers, "top_k;temperature");
    assert_string_equal(facts.file, GGUF);
    /* eos, eot, and MiniMax's end of a message, known by its text. */
    check_ends(model, "2 3 5 ");
    sluice_model_release(model);
    remove(GGUF);
}

static void ends_of_a_folder(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation, *tokenizer_config, *ends;
        int eos;
    } rows[] = {
        {"{}", NULL, NULL, "", -1},
        {"{}", NULL, "{\"eos_token\":\"<s>\"}", "2 ", 2},
        {"{\"eos_token_id\":3}", NULL, "{\"eos_token\":\"<s>\"}", "2 3 ", 2},
        {"{\"eos_token_id\":[3,4]}", NULL, NULL, "3 4 ", 3},
        {"{\"eos_token_id\":3}", "{\"eos_token_id\":[4,2]}", NULL, "2 3 4 ", 4},
        {"{\"text_config\":{\"eos_token_id\":3}}", "{\"eos_token_id\":null}", NULL, "3 ", 3},
        {"{\"eos_token_id\":99}", NULL, NULL, "", -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sluice_model *model = must_open(rows[i].config, rows[i].generation, rows[i].tokenizer_config);
        check_ends(model, rows[i].ends);
        assert_int_equal(sl_tokenizer_eos(model->model->tokenizer), rows[i].eos);
        sluice_model_release(model);
    }
}

static void wrong_values_are_named(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation, *words;
        int code;
    } rows[] = {
        {"{}", "{\"temperature\":\"hot\"}", "generation_config.json: 'temperature' is a string",
         SLUICE_ERR_FORMAT},
        {"{}", "{\"top_p\":1.5}", "generation_config.json: top_p is 1.5, must be 0 to 1", SLUICE_ERR_INVALID},
        {"{}", "{\"top_k\":1.5}", "top_k is 1.5, must be an integer of -1 to", SLUICE_ERR_INVALID},
        {"{}", "{\"repetition_penalty\":0}", "repetition_penalty is 0, must be", SLUICE_ERR_INVALID},
        {"{}", "[]", "generation_config.json: must be a JSON object", SLUICE_ERR_FORMAT},
        {"{\"eos_token_id\":\"</s>\"}", NULL, "config.json: eos_token_id must be an integer or a list",
         SLUICE_ERR_FORMAT},
        {"{\"eos_token_id\":[[1]]}", NULL, "config.json: eos_token_id must be an integer or a list",
         SLUICE_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sluice_model *model;
        sluice_error error;
        assert_int_equal(open_folder(rows[i].config, rows[i].generation, NULL, &model, &error), rows[i].code);
        if (!strstr(error.message, rows[i].words)) {
            fail_msg("%s", error.message);
        }
    }
}

/* The member of the row of "keys" or "tensors" whose `member` is `name`. */
static const json_t *row_of(const json_t *file, const char *list, const char *member, const char *name) {
    const json_t *rows = json_object_get(file, list);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(rows, i), member));
        if (text && strcmp(text, name) == 0) {
            return json_array_get(rows, i);
        }
    }
    fail_msg("no %s", name);
    return NULL;
}

/* What a model wants is in its description: the folder of a fixture with a tokenizer and a template beside
 * it. */
static void wants_are_described(void **state) {
    (void)state;
    static const char *const wanted[] = {"sampling    temperature 0.6, top_k 20\n",
                                         "ends        <a> (3), <b> (4)\n", "replies     hermes\n",
                                         "thinking    may come first; enable_thinking decides\n"};
    static const char chat_template[] =
        "{\"eos_token\":\"<a>\",\"chat_template\":\"{% for m in messages %}<s>{{ m.role }}: {{ m.content "
        "}}<a>"
        "{% endfor %}{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{\\\"name\\\": "
        "n}</tool_call>"
        "{% endif %}{% if add_generation_prompt %}<s>assistant: {% if enable_thinking is defined and not "
        "enable_thinking %}<think></think>{% endif %}{% endif %}\"}";
    char from[600], to[600], *text;
    sluice_model *model;
    sluice_error error;
    json_error_t json_error;
    put("tokenizer.json", tokenizer_json);
    put("generation_config.json", "{\"temperature\":0.6,\"top_k\":20,\"eos_token_id\":[3,4]}");
    put("tokenizer_config.json", chat_template);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/tests/logits/fixtures/llama/%s", SLUICE_SOURCE_DIR, files[i]);
        snprintf(to, sizeof to, "%s/%s", FOLDER, files[i]);
        remove(to);
        assert_int_equal(symlink(from, to), 0);
    }
    must(sluice_model_open(FOLDER, &model, &error), &error, "open");
    must(sluice_model_describe(model, SLUICE_TEXT, &text, &error), &error, "describe");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (!strstr(text, wanted[i])) {
            fail_msg("no \"%s\" in:\n%s", wanted[i], text);
        }
    }
    sluice_free(text);
    must(sluice_model_describe(model, SLUICE_JSON, &text, &error), &error, "describe");
    json_t *json = json_loads(text, 0, &json_error);
    assert_non_null(json);
    assert_float_equal(json_real_value(json_object_get(json_object_get(json, "sampling"), "temperature")),
                       0.6, 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(json, "ends"), 1)), 4);
    assert_true(json_is_true(json_object_get(json, "enable_thinking")));
    json_decref(json);
    sluice_free(text);
    sluice_model_release(model);
    put("config.json", NULL);
    put("model.safetensors", NULL);
}

static void files_are_described(void **state) {
    (void)state;
    char *text;
    sluice_error error;
    write_gguf();
    must(sluice_file_describe(GGUF, &text, &error), &error, "describe");
    json_t *file = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(file, "family")), "llama");
    assert_int_equal(json_array_size(json_object_get(file, "keys")), 13);
    const json_t *row = row_of(file, "keys", "key", "general.sampling.penalty_last_n");
    assert_string_equal(json_string_value(json_object_get(row, "type")), "i32");
    assert_int_equal(json_integer_value(json_object_get(row, "value")), -1);
    row = row_of(file, "keys", "key", "tokenizer.ggml.tokens");
    assert_int_equal(json_integer_value(json_object_get(row, "count")), 6);
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "value"), 4)), "a");
    sluice_free(text);
    json_decref(file);
    int code = SLUICE_ERR_NOMEM;
    const uint64_t live = sl_alloc_live_bytes();
    for (uint64_t nth = 1; code == SLUICE_ERR_NOMEM; nth++) {
        sl_alloc_fail_at(nth);
        code = sluice_file_describe(GGUF, &text, &error);
        sl_alloc_fail_at(0);
        assert_true(code == 0 || code == SLUICE_ERR_NOMEM);
        sluice_free(text);
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
    remove(GGUF);
    put("x.gguf", "no model");
    assert_int_equal(sluice_file_describe(FOLDER "/x.gguf", &text, &error), SLUICE_ERR_FORMAT);
    assert_null(text);
}

/* Matrices that are copied when a model is opened are copied for the first engine where it was opened for
 * plans: the same tokens, and copies are what these models have. */
static void opened_for_plans(void **state) {
    (void)state;
    static const char *const KINDS[] = {"qwen3-fp8-channel", "llama-nvfp4", "qwen3moe"};
    enum { TOKENS = 12 };
    const int32_t prompt[] = {5, 6, 7, 8, 9};
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
        char path[512];
        int32_t tokens[2][TOKENS];
        snprintf(path, sizeof path, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, KINDS[k]);
        for (int plan = 0; plan < 2; plan++) {
            const sluice_model_options how = {.size = sizeof how, .for_plan = plan == 1};
            const sluice_engine_options options = {
                .size = sizeof options, .device = "cpu", .threads = 1, .sequences = 1, .context = 64};
            const sluice_request_options request = {.size = sizeof request,
                                                    .tokens = prompt,
                                                    .token_count = 5,
                                                    .generate = TOKENS,
                                                    .ignore_eos = true,
                                                    .no_text = true};
            sluice_model *model;
            sluice_error error;
            must(sluice_model_open_with(path, &how, &model, &error), &error, path);
            sluice_engine *engine = open_engine(model, &options);
            sluice_sequence *sequence = open_sequence(engine);
            collected into = {.tokens = tokens[plan]};
            assert_int_equal(collect(submit(sequence, &request), &into), TOKENS);
            sluice_sequence_release(sequence);
            sluice_engine_destroy(engine);
            sluice_model_release(model);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampling_of_a_folder), cmocka_unit_test(a_gguf_says_both),
        cmocka_unit_test(ends_of_a_folder),     cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(wants_are_described),  cmocka_unit_test(files_are_described),
        cmocka_unit_test(opened_for_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
