/* Configs of families with short convolutions: published spellings of config.json and GGUF headers, what is
 * left out, and the rules of their keys. */
#include "unit/model/support.h"

#include "format/gguf_writer.h"

#define FOLDER SLUICE_BINARY_DIR "/test_config_conv_model"

/* ---- config.json ---- */

/* LFM2-1.2B, but for keys that no reader asks for. */
#define OLDER                                                                                                \
    "\"model_type\":\"lfm2\",\"block_auto_adjust_ff_dim\":true,\"block_ff_dim\":12288,"                      \
    "\"block_ffn_dim_multiplier\":1.0,\"block_multiple_of\":256,\"conv_L_cache\":3,\"conv_bias\":false,"     \
    "\"full_attn_idxs\":[2,5,8,10,12,14],\"hidden_size\":2048,\"max_position_embeddings\":128000,"           \
    "\"norm_eps\":1e-05,\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"      \
    "\"theta\":1000000.0,\"tie_embedding\":true,\"vocab_size\":65536"

static int read_json(json_t *json, sl_config *config, sl_error *error) {
    sl_source *source;
    write_config(FOLDER, json);
    json_decref(json);
    write_text_file(FOLDER, "tokenizer.json", "{}"); /* a folder without weights opens with that */
    assert_int_equal(sl_source_open(FOLDER, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

static const sl_config *must_read(json_t *json) {
    static sl_config config;
    sl_error error;
    if (read_json(json, &config, &error)) {
        fail_msg("%s", error.message);
    }
    return &config;
}

/* The older config with more keys; the last of two counts. */
static json_t *older(const char *more) {
    char text[2048];
    json_error_t where;
    snprintf(text, sizeof text, "{" OLDER "%s}", more);
    json_t *json = json_loads(text, 0, &where);
    if (!json) {
        fail_msg("%s at %d", where.text, where.position);
    }
    return json;
}

static json_t *changed(const char *fixture, const char *path, const char *value) {
    json_t *json = fixture_config(fixture), *parsed = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    set_path(json, path, parsed);
    json_decref(parsed);
    return json;
}

static void published_configs(void **state) {
    (void)state;
    const sl_config *c = must_read(older(""));
    for (int32_t layer = 0; layer < 16; layer++) {
        const bool attends = (0x5524 >> layer & 1) != 0;
        assert_int_equal(c->kinds[layer], attends ? SL_LAYER_FULL : SL_LAYER_CONV);
    }
    assert_true(c->short_conv_taps == 3 && c->tied && c->query_norm && c->head_size == 64);
    assert_int_equal(c->feed_forward, 8192);
    assert_float_equal(c->rope.base, 1e6, 0);
    assert_float_equal(c->epsilon, 1e-5, 0);
    assert_int_equal(must_read(older(",\"rope_theta\":5000000.0,\"theta\":5000000.0"))->rope.base, 5000000);
    assert_false(must_read(older(",\"tie_embedding\":false"))->tied);

    c = must_read(fixture_config("lfm2"));
    assert_true(c->kinds[0] == SL_LAYER_CONV && c->kinds[1] == SL_LAYER_FULL && c->kinds[2] == SL_LAYER_CONV);
    assert_int_equal(c->feed_forward, 128); /* 100, rounded up to a multiple of 32 */
    assert_float_equal(c->epsilon, 1e-4, 0);
}

static void what_is_left_out(void **state) {
    (void)state;
    assert_float_equal(must_read(changed("lfm2", "norm_eps", NULL))->epsilon, 1e-5, 0);
    assert_int_equal(must_read(changed("lfm2", "conv_L_cache", NULL))->short_conv_taps, 3);
    assert_int_equal(must_read(changed("lfm2", "block_multiple_of", NULL))->feed_forward, 256);
    assert_int_equal(must_read(changed("lfm2", "block_auto_adjust_ff_dim", NULL))->feed_forward, 128);
    assert_int_equal(must_read(changed("lfm2", "block_auto_adjust_ff_dim", "false"))->feed_forward, 150);
    assert_int_equal(must_read(changed("lfm2", "block_ffn_dim_multiplier", "1.5"))->feed_forward, 160);
    assert_int_equal(must_read(changed("lfm2", "block_ffn_dim_multiplier", "null"))->feed_forward, 100);
    assert_int_equal(must_read(changed("lfm2", "block_ff_dim", "90"))->feed_forward, 64);
    const sl_config *c = must_read(changed("lfm2", "layer_types", NULL));
    assert_true(c->kinds[0] == SL_LAYER_FULL && c->kinds[2] == SL_LAYER_FULL);
}

static void config_json_is_not_believed(void **state) {
    (void)state;
    static const struct {
        const char *path, *value;
        int code;
        const char *message;
    } refused[] = {
        {"conv_L_cache", "0", SL_ERR_INVALID, "conv_L_cache is 0: must be at least 2"},
        {"conv_L_cache", "1", SL_ERR_INVALID, "conv_L_cache is 1: must be at least 2"},
        {"conv_L_cache", "65", SL_ERR_INVALID, "conv_L_cache is 65"},
        {"conv_bias", "true", SL_ERR_UNSUPPORTED, "biases of short convolutions are not supported"},
        {"layer_types", "[\"conv\",\"conv\",\"conv\"]", SL_ERR_UNSUPPORTED, "no layer attends"},
        {"layer_types", "[\"conv\",\"linear_attention\",\"full_attention\"]", SL_ERR_INVALID,
         "recurrent layers need"},
        {"sliding_window", "64", SL_ERR_UNSUPPORTED, "windows beside short convolutions"},
        {"intermediate_size", "0", SL_ERR_INVALID, "intermediate_size is 0: must be at least 1"},
        {"block_multiple_of", "0", SL_ERR_INVALID, "block_multiple_of is 0"},
        {"block_ff_dim", "0", SL_ERR_INVALID, "block_ff_dim is 0"},
        {"block_ffn_dim_multiplier", "1e9", SL_ERR_INVALID, "block_ffn_dim_multiplier is 1000000000"},
        {"block_ffn_dim_multiplier", "-1", SL_ERR_INVALID, "block_ffn_dim_multiplier is -1"},
    };
    static const struct {
        const char *more;
        int code;
        const char *message;
    } older_refused[] = {
        {",\"full_attn_idxs\":[2,16]", SL_ERR_INVALID, "full_attn_idxs[1] is not a layer"},
        {",\"full_attn_idxs\":[\"2\"]", SL_ERR_INVALID, "full_attn_idxs[0] is not a layer"},
        {",\"full_attn_idxs\":2", SL_ERR_FORMAT, "full_attn_idxs must be an array"},
        {",\"full_attn_idxs\":[]", SL_ERR_UNSUPPORTED, "no layer attends"},
        {",\"block_ff_dim\":4194304,\"block_ffn_dim_multiplier\":1000.0", SL_ERR_INVALID, "too wide"},
    };
    static sl_config config;
    sl_error error = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const int code = read_json(changed("lfm2", refused[i].path, refused[i].value), &config, &error);
        if (code != refused[i].code || !strstr(error.message, refused[i].message)) {
            fail_msg("%s = %s: %d %s", refused[i].path, refused[i].value, code, error.message);
        }
    }
    for (size_t i = 0; i < sizeof older_refused / sizeof *older_refused; i++) {
        const int code = read_json(older(older_refused[i].more), &config, &error);
        if (code != older_refused[i].code || !strstr(error.message, older_refused[i].message)) {
            fail_msg("%s: %d %s", older_refused[i].more, code, error.message);
        }
    }
    assert_int_equal(
        read_json(changed("qwen3", "layer_types", "[\"conv\",\"conv\",\"full_attention\"]"), &config, &error),
        SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "and a family that has them"));
}

/* LFM2-8B-A1B. */
static void experts(void **state) {
    (void)state;
    static const char text[] =
        "{\"model_type\":\"lfm2_moe\",\"conv_L_cache\":3,\"conv_bias\":false,\"hidden_size\":2048,"
        "\"intermediate_size\":7168,\"layer_types\":[\"conv\",\"conv\",\"full_attention\",\"conv\"],"
        "\"max_position_embeddings\":128000,\"moe_intermediate_size\":1792,\"norm_eps\":1e-05,"
        "\"norm_topk_prob\":true,\"num_attention_heads\":32,\"num_dense_layers\":2,\"num_experts\":32,"
        "\"num_experts_per_tok\":4,\"num_hidden_layers\":4,\"num_key_value_heads\":8,"
        "\"rope_theta\":1000000.0,\"routed_scaling_factor\":1.0,\"use_expert_bias\":true,"
        "\"vocab_size\":65536}";
    const sl_config *c = must_read(json_loads(text, 0, NULL));
    assert_true(c->experts == 32 && c->experts_used == 4 && c->expert_width == 1792 && c->tied);
    assert_true(c->feed_forward == 7168 && c->dense[0] && c->dense[1] && !c->dense[2] && !c->dense[3]);
    assert_true(c->router == SL_ROUTER_SIGMOID && c->normalise && c->kinds[2] == SL_LAYER_FULL);
    assert_float_equal(c->expert_scale, 1, 0);
    assert_true(must_read(changed("lfm2_moe", "norm_topk_prob", NULL))->normalise);
    assert_float_equal(must_read(changed("lfm2_moe", "routed_scaling_factor", NULL))->expert_scale, 1, 0);
    static sl_config config;
    sl_error error = {0};
    assert_int_equal(read_json(changed("lfm2_moe", "use_expert_bias", "false"), &config, &error),
                     SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "use_expert_bias: this router without its bias"));
}

/* ---- GGUF headers, as llama.cpp's converters write them ---- */

typedef struct header {
    const char *architecture;
    int32_t taps, window;
    uint32_t kv_heads[4];
} header;

static int read_gguf(const header *h, sl_config *config, sl_error *error) {
    static const char path[] = SLUICE_BINARY_DIR "/test_config_conv.gguf";
    static const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"block_count", 4},          {"context_length", 128},     {"embedding_length", 64},
                   {"feed_forward_length", 96}, {"attention.head_count", 4}, {"vocab_size", 256}};
    const sl_gguf_items kv_heads = {SL_GGUF_I32, h->kv_heads, 4};
    sl_gguf_writer *writer;
    sl_source *source;
    char key[64];
    assert_int_equal(sl_gguf_writer_create(path, &writer, error), 0);
    sl_gguf_writer_string(writer, "general.architecture", sl_view_of(h->architecture), error);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", h->architecture, numbers[i].key);
        sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, numbers[i].value, error);
    }
    snprintf(key, sizeof key, "%s.attention.head_count_kv", h->architecture);
    sl_gguf_writer_array(writer, key, &kv_heads, error);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", h->architecture);
    sl_gguf_writer_float(writer, key, SL_GGUF_F32, 1e-5, error);
    snprintf(key, sizeof key, "%s.shortconv.l_cache", h->architecture);
    sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)h->taps, error);
    snprintf(key, sizeof key, "%s.attention.sliding_window", h->architecture);
    if (h->window > 0) {
        sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)h->window, error);
    }
    assert_int_equal(sl_gguf_writer_begin(writer, NULL, error), 0);
    assert_int_equal(sl_gguf_writer_finish(writer, error), 0);
    sl_gguf_writer_free(writer);
    assert_int_equal(sl_source_open(path, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

static void gguf_headers(void **state) {
    (void)state;
    static const struct {
        header header;
        const char *message;
    } refused[] = {
        {{"lfm2", 3, 0, {0, 0, 0, 0}}, "lfm2.attention.head_count_kv is 0"},
        {{"lfm2", 3, 0, {0, 2, 0, 4}}, "differs between layers of one kind"},
        {{"lfm2", 1, 0, {0, 2, 0, 2}}, "lfm2.shortconv.l_cache is 1: must be at least 2"},
        {{"lfm2", 3, 64, {0, 2, 0, 2}}, "lfm2.attention.sliding_window is 64: windows beside"},
    };
    static sl_config config;
    sl_error error = {0};
    const header valid = {"lfm2", 3, 0, {0, 2, 0, 2}};
    assert_int_equal(read_gguf(&valid, &config, &error), 0);
    const uint8_t kinds[] = {SL_LAYER_CONV, SL_LAYER_FULL, SL_LAYER_CONV, SL_LAYER_FULL};
    assert_memory_equal(config.kinds, kinds, 4);
    assert_true(config.kv_heads == 2 && config.short_conv_taps == 3 && config.feed_forward == 96);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_true(read_gguf(&refused[i].header, &config, &error) < 0);
        if (!strstr(error.message, refused[i].message)) {
            fail_msg("%s", error.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_configs),
        cmocka_unit_test(what_is_left_out),
        cmocka_unit_test(config_json_is_not_believed),
        cmocka_unit_test(experts),
        cmocka_unit_test(gguf_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
