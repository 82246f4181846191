/* Families with blocks of their own: numbers of xIELU, factors of Falcon-H1, layers of Llama 4. What is read
 * from folders and GGUF files, and what is refused. */
#include "unit/model/support.h"

#include "model/files.h"

#include <math.h>
#include <string.h>

#define FOLDER SLUICE_BINARY_DIR "/test_config_blocks_model"

static const char SYNTHETIC[] = "test_config_blocks.gguf";

static int read_file_config(const char *path, sl_config *config, sl_error *error) {
    sl_source *source;
    assert_int_equal(sl_source_open(path, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

/* A synthetic file in which `from` is replaced by `to`, of the same size, where it is found first. */
static int read_changed(const char *preset, const void *from, const void *to, size_t size, sl_error *error) {
    const sl_synth_options options = {.preset = preset, .type = SL_QTYPE_Q8_0};
    static sl_config config;
    remove(SYNTHETIC);
    assert_int_equal(sl_synth_file(SYNTHETIC, &options, NULL, error), 0);
    FILE *file = fopen(SYNTHETIC, "r+b");
    assert_non_null(file);
    static char head[1 << 16];
    const size_t length = fread(head, 1, sizeof head, file);
    size_t at = 0;
    while (at + size <= length && memcmp(head + at, from, size) != 0) {
        at++;
    }
    assert_true(at + size <= length);
    fseek(file, (long)at, SEEK_SET);
    assert_int_equal(fwrite(to, 1, size, file), size);
    fclose(file);
    const int code = read_file_config(SYNTHETIC, &config, error);
    remove(SYNTHETIC);
    return code;
}

/* In a folder they are tensors, of which two have no dimension. */
static void xielu_of_a_folder(void **state) {
    (void)state;
    static sl_config config;
    sl_error error;
    assert_int_equal(read_file_config(FIXTURES "/apertus", &config, &error), 0);
    assert_int_equal(config.activation, SL_ACTIVATION_XIELU);
    for (int32_t layer = 0; layer < config.layers; layer++) {
        assert_float_equal(config.xielu[SL_XIELU_BETA][layer], 0.5, 0);
        assert_float_equal(config.xielu[SL_XIELU_EPSILON][layer], -1e-6, 1e-12);
        assert_true(config.xielu[SL_XIELU_POSITIVE][layer] != config.xielu[SL_XIELU_NEGATIVE][layer]);
    }
    assert_true(config.xielu[SL_XIELU_POSITIVE][0] != config.xielu[SL_XIELU_POSITIVE][1]);
}

/* In a GGUF file keys without the architecture's name. */
static void xielu_of_gguf(void **state) {
    (void)state;
    sl_error error;
    assert_int_equal(read_changed("apertus", "xielu.beta", "xielu.beta", 10, &error), 0);
    assert_int_equal(read_changed("apertus", "xielu.beta", "xielu.Beta", 10, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "xielu.beta must be an array of 3 numbers"));
    const float epsilon = -1e-6f, above = 1e-6f;
    assert_int_equal(read_changed("apertus", &epsilon, &above, 4, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "eps at most 0"));
    const float beta = 0.5f, none = NAN;
    assert_int_equal(read_changed("apertus", &beta, &none, 4, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "xIELU's numbers"));
}

static int read_folder(const char *fixture, const char *key, json_t *value, sl_config *config,
                       sl_error *error) {
    json_t *json = fixture_config(fixture);
    if (key) {
        set_path(json, key, value);
    }
    write_config(FOLDER, json);
    write_text_file(FOLDER, "tokenizer.json", "{}"); /* a folder without weights opens with that */
    json_decref(json);
    json_decref(value);
    return read_file_config(FOLDER, config, error);
}

typedef struct refused {
    const char *fixture, *key, *value;
    int code;
    const char *message;
} refused;

static const refused REFUSED[] = {
    {"falcon_h1", "ssm_multipliers", "[1,1,1,1]", SL_ERR_INVALID, "ssm_multipliers must be an array of 5"},
    {"falcon_h1", "mlp_multipliers", "[1,0]", SL_ERR_INVALID, "mlp_multipliers must be an array of 2"},
    {"falcon_h1", "key_multiplier", "0", SL_ERR_INVALID, "key_multiplier is 0"},
    {"falcon_h1", "attention_bias", "true", SL_ERR_UNSUPPORTED, "biases of projections"},
    {"falcon_h1", "projectors_bias", "true", SL_ERR_UNSUPPORTED, "biases of Mamba2's projections"},
    {"falcon_h1", "mamba_d_state", "0", SL_ERR_INVALID, "Mamba2 layers need"},
    {"llama4", "attention_chunk_size", "48", SL_ERR_UNSUPPORTED, "chunks of a power of two"},
    {"llama4", "attention_chunk_size", "null", SL_ERR_UNSUPPORTED, "chunks of a power of two"},
    {"llama4", "moe_layers", "[4]", SL_ERR_INVALID, "moe_layers[0] is not a layer"},
    {"llama4", "layer_types",
     "[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", SL_ERR_UNSUPPORTED,
     "layer_types[0] is \"sliding_attention\""},
    {"gemma3", "layer_types",
     "[\"chunked_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", SL_ERR_UNSUPPORTED,
     "layer_types[0] is \"chunked_attention\""},
};

static void folders_are_not_believed(void **state) {
    (void)state;
    static sl_config config;
    sl_error error;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        const refused *r = &REFUSED[i];
        const int code =
            read_folder(r->fixture, r->key, json_loads(r->value, JSON_DECODE_ANY, NULL), &config, &error);
        if (code != r->code || !strstr(error.message, r->message)) {
            fail_msg("%s with %s = %s: %d %s", r->fixture, r->key, r->value, code, code ? error.message : "");
        }
    }
}

/* What multiplies twice is multiplied into one number. */
static void factors_of_falcon_h1(void **state) {
    (void)state;
    static sl_config config;
    sl_error error;
    assert_int_equal(read_folder("falcon_h1", NULL, NULL, &config, &error), 0);
    assert_float_equal(config.factors.ssm[SL_SSM_GATE], 0.9 * 1.25, 1e-12);
    assert_float_equal(config.factors.ssm[SL_SSM_STEPS], 0.7 * 1.25, 1e-12);
    assert_float_equal(config.factors.attention, 1.2 * 0.8, 1e-12);
    assert_float_equal(config.attention_scale, 1.2 * 1.2 * 0.6 / 4, 1e-12);
    assert_float_equal(config.logit_divisor, 1 / 0.7, 1e-12);
    assert_true(config.embed_factor == 3 && config.factors.down == 1.3 && !config.ssm_norm);
    assert_int_equal(read_folder("falcon_h1", "mamba_rms_norm", json_true(), &config, &error), 0);
    assert_true(config.ssm_norm && !config.ssm_norm_first);
    /* of an architecture whose files have them in the weights */
    assert_int_equal(read_changed("falcon_h1", "falcon-h1.ssm", "falcon-h1.ssm", 13, &error), 0);
}

static void layers_of_llama4(void **state) {
    (void)state;
    static sl_config config;
    sl_error error;
    const uint8_t kinds[] = {SL_LAYER_WINDOW, SL_LAYER_WINDOW, SL_LAYER_WINDOW, SL_LAYER_FULL};
    assert_int_equal(read_folder("llama4", NULL, NULL, &config, &error), 0);
    assert_memory_equal(config.kinds, kinds, 4);
    assert_true(!config.no_rope[2] && config.no_rope[3] && config.window == 32 && config.query_norm);
    assert_true(config.dense[0] && !config.dense[1] && config.dense[2] && !config.dense[3]);
    assert_true(config.feed_forward == 96 && config.expert_width == 32 && config.shared_width == 32);
    assert_true(config.temperature_scale == 0.5 && config.temperature_length == 32 && !config.normalise);
    /* What published folders leave out, or say otherwise. */
    assert_int_equal(read_folder("llama4", "layer_types", NULL, &config, &error), 0);
    assert_memory_equal(config.kinds, kinds, 4);
    assert_int_equal(read_folder("llama4", "no_rope_layers", json_array(), &config, &error), 0);
    assert_true(!config.no_rope[0] && config.no_rope[3]);
    assert_int_equal(read_folder("llama4", "attention_chunk_size", NULL, &config, &error), 0);
    assert_int_equal(config.window, 8192);
    assert_int_equal(read_folder("llama4", "attn_temperature_tuning", json_integer(4), &config, &error), 0);
    assert_true(config.temperature_scale == 0.5);
    assert_int_equal(read_folder("llama4", "attn_temperature_tuning", json_false(), &config, &error), 0);
    assert_true(config.temperature_scale == 0);
    assert_int_equal(read_folder("llama4", "use_qk_norm", json_false(), &config, &error), 0);
    assert_false(config.query_norm);
    assert_int_equal(read_folder("llama4", "moe_layers", json_pack("[i]", 2), &config, &error), 0);
    assert_true(config.dense[1] && !config.dense[2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xielu_of_a_folder),        cmocka_unit_test(xielu_of_gguf),
        cmocka_unit_test(folders_are_not_believed), cmocka_unit_test(factors_of_falcon_h1),
        cmocka_unit_test(layers_of_llama4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
