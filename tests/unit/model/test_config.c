/* Configs: what is read from config.json and from GGUF metadata, and every rule that refuses one. */
#include "unit/model/support.h"

#include "format/gguf_writer.h"

#include <math.h>

#define FOLDER SLUICE_BINARY_DIR "/test_config_model"

/* ---- config.json ---- */

static int read_json(const json_t *json, sl_config *config, sl_error *error) {
    sl_source *source;
    write_config(FOLDER, json);
    write_text_file(FOLDER, "tokenizer.json", "{}"); /* a folder without weights opens with that */
    assert_int_equal(sl_source_open(FOLDER, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

typedef struct change {
    const char *fixture, *path, *value; /* value: JSON, NULL deletes */
    int code;
    const char *message; /* must be in it, and so must the file's name */
} change;

static const change REFUSED[] = {
    {"llama", "model_type", "\"gpt_neox\"", SL_ERR_UNSUPPORTED, "model_type is \"gpt_neox\""},
    {"llama", "model_type", NULL, SL_ERR_NOT_FOUND, "model_type"},
    {"llama", "num_hidden_layers", "0", SL_ERR_INVALID, "num_hidden_layers is 0, must be 1 to 1024"},
    {"llama", "num_hidden_layers", "-1", SL_ERR_FORMAT, "num_hidden_layers"},
    {"llama", "num_hidden_layers", "5000", SL_ERR_INVALID, "num_hidden_layers is 5000"},
    {"llama", "num_hidden_layers", "\"3\"", SL_ERR_FORMAT, "num_hidden_layers"},
    {"llama", "num_hidden_layers", NULL, SL_ERR_INVALID, "num_hidden_layers is missing"},
    {"llama", "hidden_size", "0", SL_ERR_INVALID, "hidden_size is 0"},
    {"llama", "hidden_size", "18446744073709551615", SL_ERR_FORMAT, "hidden_size"},
    {"llama", "hidden_size", "4294967296", SL_ERR_INVALID, "hidden_size is 4294967296"},
    {"llama", "hidden_size", NULL, SL_ERR_INVALID, "hidden_size is missing"},
    {"llama", "vocab_size", "0", SL_ERR_INVALID, "vocab_size is 0"},
    {"llama", "vocab_size", NULL, SL_ERR_INVALID, "vocab_size is missing"},
    {"llama", "max_position_embeddings", "0", SL_ERR_INVALID, "max_position_embeddings is 0"},
    {"llama", "num_attention_heads", "0", SL_ERR_INVALID, "num_attention_heads is 0"},
    {"llama", "num_attention_heads", "3", SL_ERR_INVALID, "num_key_value_heads is 2: must divide"},
    {"llama", "num_key_value_heads", "0", SL_ERR_INVALID, "num_key_value_heads is 0"},
    {"llama", "num_key_value_heads", "8", SL_ERR_INVALID, "num_key_value_heads is 8: must divide"},
    {"llama", "head_dim", "0", SL_ERR_INVALID, "head_dim is 0"},
    {"llama", "head_dim", "15", SL_ERR_INVALID, "rope.dimension_count is 15: must be even"},
    {"llama", "intermediate_size", "0", SL_ERR_INVALID, "intermediate_size is 0: must be at least 1"},
    {"llama", "rms_norm_eps", "0", SL_ERR_INVALID, "rms_norm_eps is 0"},
    {"llama", "rms_norm_eps", "-1e-6", SL_ERR_INVALID, "rms_norm_eps is -1e-06"},
    {"llama", "hidden_act", "\"gelu_10\"", SL_ERR_UNSUPPORTED, "hidden_act is \"gelu_10\""},
    {"llama", "tie_word_embeddings", "1", SL_ERR_FORMAT, "tie_word_embeddings"},
    {"llama", "quantization_config", "{\"quant_method\":\"auto-round\"}", SL_ERR_UNSUPPORTED,
     "'quantization_config.quant_method' is \"auto-round\", only"},
    {"llama", "quantization_config", "{\"quant_method\":\"gptq\"}", SL_ERR_UNSUPPORTED,
     "'quantization_config.bits' is missing"},
    {"qwen3-gptq", "quantization_config.bits", "2", SL_ERR_UNSUPPORTED, "bits' is 2, only 8 and 4"},
    {"qwen3-gptq", "quantization_config.bits", "3", SL_ERR_UNSUPPORTED, "bits' is 3, only 8 and 4"},
    {"qwen3-gptq", "quantization_config.group_size", NULL, SL_ERR_UNSUPPORTED, "group_size' is missing"},
    {"qwen3-gptq", "quantization_config.group_size", "16", SL_ERR_UNSUPPORTED, "group_size' is 16, only -1"},
    {"qwen3-gptq", "quantization_config.group_size", "48", SL_ERR_UNSUPPORTED, "group_size' is 48, only -1"},
    {"qwen3-gptq", "quantization_config.group_size", "0", SL_ERR_UNSUPPORTED, "group_size' is 0, only -1"},
    {"qwen3-gptq", "quantization_config.group_size", "2097152", SL_ERR_UNSUPPORTED, "group_size' is 2097152"},
    {"qwen3-gptq", "quantization_config.sym", "1", SL_ERR_UNSUPPORTED, "sym' is 1, must be a bool"},
    {"qwen3-gptq-8", "quantization_config.sym", "false", SL_ERR_UNSUPPORTED,
     "zero points of 8 bits are not supported"},
    {"qwen3-gptq", "quantization_config.checkpoint_format", "\"marlin\"", SL_ERR_UNSUPPORTED,
     "checkpoint_format' is \"marlin\""},
    {"qwen3-gptq", "quantization_config.format", "\"bitblas\"", SL_ERR_UNSUPPORTED, "format' is \"bitblas\""},
    {"qwen3-gptq", "quantization_config.is_marlin_format", "true", SL_ERR_UNSUPPORTED,
     "that layout is not supported"},
    {"qwen3-gptq", "quantization_config.pack_dtype", "\"int16\"", SL_ERR_UNSUPPORTED,
     "pack_dtype' is \"int16\""},
    {"qwen3-gptq", "quantization_config.dynamic", "{\"-:a\":{},\"+:b\":{\"bits\":8}}", SL_ERR_UNSUPPORTED,
     "dynamic' is of rules for some modules"},
    {"qwen3-gptq", "quantization_config.dynamic", "[1]", SL_ERR_UNSUPPORTED, "dynamic' is of another type"},
    {"qwen3-awq", "quantization_config.bits", "8", SL_ERR_UNSUPPORTED, "bits' is 8, only 4"},
    {"qwen3-awq", "quantization_config.zero_point", "false", SL_ERR_UNSUPPORTED, "zero_point' is false"},
    {"qwen3-awq", "quantization_config.version", "\"gemv\"", SL_ERR_UNSUPPORTED, "version' is \"gemv\""},
    {"qwen3-awq", "quantization_config.format", "\"gemv_fast\"", SL_ERR_UNSUPPORTED,
     "format' is \"gemv_fast\""},
    {"qwen3-awq", "quantization_config.backend", "\"llm-awq\"", SL_ERR_UNSUPPORTED,
     "backend' is \"llm-awq\""},
    {"qwen3-int4", "quantization_config.config_groups.group_0.weights.num_bits", "3", SL_ERR_UNSUPPORTED,
     "weights.num_bits' is 3, only 8 and 4"},
    {"qwen3-int4", "quantization_config.config_groups.group_0.weights.group_size", "16", SL_ERR_UNSUPPORTED,
     "weights.group_size' is 16, only -1"},
    {"qwen3-int4", "quantization_config.config_groups.group_0.weights.strategy", "\"block\"",
     SL_ERR_UNSUPPORTED, "weights.strategy' is \"block\""},
    {"qwen3-int4", "quantization_config.config_groups.group_0.weights.actorder", "\"group\"",
     SL_ERR_UNSUPPORTED, "weights.actorder' is \"group\", columns must be in their own order"},
    {"qwen3-int8", "quantization_config.config_groups.group_0.weights.symmetric", "false", SL_ERR_UNSUPPORTED,
     "zero points of 8 bits are not supported"},
    {"llama", "quantization_config", "{}", SL_ERR_UNSUPPORTED,
     "'quantization_config.quant_method' is missing"},
    {"llama", "quantization_config", "[]", SL_ERR_FORMAT, "'quantization_config' must be an object"},
    {"llama-fp8-block", "quantization_config.quant_method", "8", SL_ERR_UNSUPPORTED,
     "'quantization_config.quant_method' is 8"},
    {"llama-fp8-block", "quantization_config.fmt", "\"e5m2\"", SL_ERR_UNSUPPORTED,
     "'quantization_config.fmt' is \"e5m2\""},
    {"llama-fp8-block", "quantization_config.weight_block_size", "[128]", SL_ERR_FORMAT,
     "weight_block_size' must be two integers"},
    {"llama-fp8-block", "quantization_config.weight_block_size", "[0,128]", SL_ERR_FORMAT,
     "weight_block_size' must be two integers"},
    {"llama-fp8-block", "quantization_config.weight_block_size", "[128,2097152]", SL_ERR_FORMAT,
     "weight_block_size' must be two integers"},
    {"llama-fp8-block", "quantization_config.weight_block_size", "[128,64]", SL_ERR_UNSUPPORTED,
     "blocks of 64 columns, must be a multiple of 128"},
    {"qwen3-fp8-channel", "quantization_config.format", "\"marlin-24\"", SL_ERR_UNSUPPORTED,
     "'quantization_config.format' is \"marlin-24\""},
    {"qwen3-fp8-channel", "quantization_config.format", NULL, SL_ERR_UNSUPPORTED,
     "'quantization_config.format' is missing"},
    {"qwen3-fp8-channel", "quantization_config.quantization_status", "\"frozen\"", SL_ERR_UNSUPPORTED,
     "quantization_status' is \"frozen\""},
    {"qwen3-fp8-channel", "quantization_config.transform_config", "{\"config_groups\":{}}",
     SL_ERR_UNSUPPORTED, "transforms are not supported"},
    {"qwen3-fp8-channel", "quantization_config.sparsity_config", "{\"format\":\"sparse-24-bitmask\"}",
     SL_ERR_UNSUPPORTED, "sparse weights are not supported"},
    {"qwen3-fp8-channel", "quantization_config.config_groups", "[]", SL_ERR_FORMAT,
     "config_groups' must be an object"},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.type", "\"uint\"",
     SL_ERR_UNSUPPORTED, "weights.type' is \"uint\""},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.num_bits", "6",
     SL_ERR_UNSUPPORTED, "weights.num_bits' is 6, only 8 and 4"},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.num_bits", NULL,
     SL_ERR_UNSUPPORTED, "weights.num_bits' is missing"},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.strategy", "\"group\"",
     SL_ERR_UNSUPPORTED, "weights.strategy' is \"group\""},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.group_size", "128",
     SL_ERR_UNSUPPORTED, "weights.group_size' is 128"},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.symmetric", "false",
     SL_ERR_UNSUPPORTED, "zero points are not supported"},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.dynamic", "true",
     SL_ERR_UNSUPPORTED, "weights must have scales of their own"},
    {"qwen3-fp8-channel", "quantization_config.config_groups.group_0.weights.block_structure", "\"128x128\"",
     SL_ERR_FORMAT, "block_structure' must be two integers"},
    {"qwen3moe-nvfp4", "quantization_config.config_groups.group_0.weights.group_size", "32",
     SL_ERR_UNSUPPORTED, "weights.group_size' is 32, only 16"},
    {"qwen3moe-nvfp4", "quantization_config.config_groups.group_0.weights.strategy", "\"channel\"",
     SL_ERR_UNSUPPORTED, "weights.strategy' is \"channel\""},
    {"llama-nvfp4", "quantization_config.quant_algo", "\"NVFP4_AWQ\"", SL_ERR_UNSUPPORTED,
     "quant_algo' is \"NVFP4_AWQ\""},
    {"llama-nvfp4", "quantization_config.quant_algo", NULL, SL_ERR_UNSUPPORTED, "quant_algo' is missing"},
    {"llama", "num_experts", "8", SL_ERR_UNSUPPORTED, "num_experts is 8: experts are not supported"},
    {"llama", "rope_scaling", "\"yarn\"", SL_ERR_FORMAT, "'rope_scaling' is a string, an object wanted"},
    {"llama", "rope_scaling", "[{\"rope_type\":\"yarn\"}]", SL_ERR_FORMAT, "'rope_scaling' is an array"},
    {"llama", "rope_parameters", "8", SL_ERR_FORMAT, "'rope_parameters' is an integer, an object wanted"},
    {"gemma3", "rope_parameters.full_attention", "true", SL_ERR_FORMAT,
     "'rope_parameters.full_attention' is a bool"},
    {"llama", "text_config", "\"llama\"", SL_ERR_FORMAT, "'text_config' must be an object"},
    {"llama-nvfp4", "quantization_config.group_size", "0", SL_ERR_UNSUPPORTED,
     "'quantization_config.group_size' is 0, only 16"},
    {"qwen3moe-nvfp4", "quantization_config.config_groups.group_0.weights.group_size", "0",
     SL_ERR_UNSUPPORTED, "weights.group_size' is 0, only 16"},
    {"llama", "rope_parameters.rope_type", "\"longrope\"", SL_ERR_FORMAT,
     "short_factor must be an array of 8 numbers"},
    {"llama", "rope_parameters.rope_type", "\"dynamic\"", SL_ERR_UNSUPPORTED,
     "rope_parameters.rope_type is \"dynamic\""},
    {"llama", "logits_scaling", "8", SL_ERR_UNSUPPORTED, "logits_scaling is 8"},
    {"llama", "residual_multiplier", "0.5", SL_ERR_UNSUPPORTED, "residual_multiplier is 0.5"},
    {"llama", "embedding_multiplier", "12", SL_ERR_UNSUPPORTED, "embedding_multiplier is 12"},
    {"llama", "text_config", "{\"model_type\": \"gpt_neox\"}", SL_ERR_UNSUPPORTED,
     "text_config.model_type is \"gpt_neox\""},
    {"llama", "text_config", "{\"model_type\": 3}", SL_ERR_FORMAT, "model_type"},
    {"llama", "rope_parameters.truncate", "0", SL_ERR_FORMAT, "truncate"},
    {"llama", "rope_parameters",
     "{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":4.0,\"beta_fast\":1.0}", SL_ERR_INVALID,
     "beta_fast is 1: must be more than beta_slow"},
    {"llama", "rope_parameters.rope_theta", "0", SL_ERR_INVALID, "rope_parameters.rope_theta is 0"},
    {"llama-scaled", "rope_parameters.factor", "0", SL_ERR_INVALID, "rope_parameters.factor is 0"},
    {"llama-scaled", "rope_parameters.high_freq_factor", "1", SL_ERR_INVALID,
     "must be more than low_freq_factor"},
    {"llama-scaled", "rope_parameters.original_max_position_embeddings", "0", SL_ERR_INVALID,
     "original_max_position_embeddings is 0"},
    {"mistral", "layer_types", "[\"sliding_attention\",\"full_attention\",\"full_attention\"]",
     SL_ERR_INVALID, "sliding_window is 0: must be at least 1"},
    {"qwen3moe", "num_experts_per_tok", "0", SL_ERR_INVALID, "num_experts_per_tok is 0"},
    {"qwen3moe", "num_experts_per_tok", "9", SL_ERR_INVALID, "num_experts_per_tok is 9"},
    {"qwen3moe", "moe_intermediate_size", "0", SL_ERR_INVALID, "moe_intermediate_size is 0"},
    {"qwen3moe", "decoder_sparse_step", "0", SL_ERR_INVALID, "decoder_sparse_step is 0"},
    {"qwen3moe", "mlp_only_layers", "[3]", SL_ERR_INVALID, "mlp_only_layers[0] is not a layer"},
    {"qwen3moe", "n_shared_experts", "1", SL_ERR_UNSUPPORTED,
     "shared experts are not supported in this family"},
    {"qwen3moe", "shared_expert_intermediate_size", "64", SL_ERR_UNSUPPORTED,
     "shared_expert_intermediate_size"},
    {"gemma3", "sliding_window", "0", SL_ERR_INVALID, "sliding_window is 0: must be at least 1"},
    {"gemma3", "layer_types", "[\"full_attention\"]", SL_ERR_INVALID, "layer_types must be an array"},
    {"gemma3", "layer_types", "[\"chunked_attention\",\"a\",\"b\",\"c\"]", SL_ERR_UNSUPPORTED,
     "layer_types[0] is \"chunked_attention\""},
    {"gemma3", "query_pre_attn_scalar", "0", SL_ERR_INVALID, "query_pre_attn_scalar is 0"},
    {"qwen3", "use_bidirectional_attention", "true", SL_ERR_UNSUPPORTED, "use_bidirectional_attention"},
    {"gemma3", "final_logit_softcapping", "-3", SL_ERR_INVALID, "final_logit_softcapping is -3"},
    {"gemma3", "final_logit_softcapping", "5e-324", SL_ERR_INVALID,
     "must be 0 (no cap) or a cap that a float holds"},
    {"gemma3", "attn_logit_softcapping", "1e-50", SL_ERR_INVALID,
     "attn_logit_softcapping is 1e-50: must be 0"},
    {"qwen3_5", "linear_num_value_heads", "3", SL_ERR_INVALID,
     "linear_num_value_heads is 3: must be a multiple"},
    {"qwen3_5", "linear_num_value_heads", "0", SL_ERR_INVALID, "linear_num_value_heads is 0"},
    {"qwen3_5", "linear_num_key_heads", "0", SL_ERR_INVALID, "recurrent layers need"},
    {"qwen3_5", "linear_key_head_dim", "0", SL_ERR_INVALID, "recurrent layers need"},
    {"qwen3_5", "linear_conv_kernel_dim", "0", SL_ERR_INVALID, "recurrent layers need"},
    {"qwen3_5", "linear_conv_kernel_dim", "65", SL_ERR_INVALID, "linear_conv_kernel_dim is 65"},
    {"qwen3_5", "rope_parameters.partial_rotary_factor", "0", SL_ERR_INVALID, "partial_rotary_factor is 0"},
    {"qwen3_5", "rope_parameters.partial_rotary_factor", "2", SL_ERR_INVALID, "partial_rotary_factor is 2"},
    {"qwen3_5", "attn_output_gate", "false", SL_ERR_UNSUPPORTED, "attn_output_gate"},
    {"qwen3_5", "layer_types",
     "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\"]",
     SL_ERR_UNSUPPORTED, "no layer attends"},
    {"qwen3", "layer_types", "[\"full_attention\",\"linear_attention\",\"full_attention\"]", SL_ERR_INVALID,
     "recurrent layers need"},
    {"smollm3", "no_rope_layers", "[1, 1]", SL_ERR_INVALID, "no_rope_layers must be an array"},
    {"smollm3", "no_rope_layers", "3", SL_ERR_INVALID, "no_rope_layers must be an array"},
    {"smollm3", "no_rope_layers", "[1, \"a\", 1, 1]", SL_ERR_FORMAT, "no_rope_layers[1] must be 0 or 1"},
    {"smollm3", "no_rope_layer_interval", "0", SL_ERR_INVALID, "no_rope_layer_interval is 0"},
    {"phi3-long", "rope_parameters.long_factor", "[1]", SL_ERR_FORMAT,
     "long_factor must be an array of 6 numbers"},
    {"phi3-long", "rope_parameters.short_factor", "[1, 2, 3, 4, 5, 0]", SL_ERR_INVALID,
     "short_factor[5] must be a number above 0"},
    {"phi3-long", "rope_parameters.short_factor", "[1, 2, 3, 4, 5, \"6\"]", SL_ERR_INVALID,
     "short_factor[5] must be a number above 0"},
    {"phi3-long", "original_max_position_embeddings", "1", SL_ERR_INVALID,
     "LongRoPE needs an original context"},
    {"phi3", "attention_bias", "true", SL_ERR_UNSUPPORTED, "biases of fused projections"},
    {"hunyuan", "rope_parameters.rope_type", "\"dynamic\"", SL_ERR_UNSUPPORTED, "\"dynamic\""},
    {"hunyuan", "rope_parameters.alpha", "-3", SL_ERR_INVALID, "rope_parameters.alpha is -3"},
    {"ministral3", "rope_parameters.mscale", "-1", SL_ERR_INVALID, "mscale is -1"},
    {"ministral3", "rope_parameters.llama_4_scaling_beta", "\"0.1\"", SL_ERR_FORMAT, "llama_4_scaling_beta"},
    {"glm4", "mlp_bias", "true", SL_ERR_UNSUPPORTED, "biases of fused projections"},
    {"cohere2", "logit_scale", "0", SL_ERR_INVALID, "logit_scale is 0, must be at least"},
    {"cohere2", "logit_scale", "5e-324", SL_ERR_INVALID, "logit_scale is 4.94"},
    {"llama", "logit_scale", "0.5", SL_ERR_UNSUPPORTED, "this scaling of logits is not supported"},
    {"cohere2", "residual_multiplier", "0.5", SL_ERR_UNSUPPORTED, "residual_multiplier is 0.5"},
    {"cohere2", "sliding_window", "0", SL_ERR_INVALID, "there are windowed layers"},
};

static json_t *changed(const change *c) {
    json_t *json = fixture_config(c->fixture);
    json_t *value = c->value ? json_loads(c->value, JSON_DECODE_ANY, NULL) : NULL;
    if (c->value && !value) { /* a number that jansson cannot hold */
        value = json_real(strtod(c->value, NULL));
    }
    set_path(json, c->path, value);
    json_decref(value);
    return json;
}

static void config_json_is_not_believed(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        sl_config config;
        sl_error error = {0};
        json_t *json = changed(&REFUSED[i]);
        const int code = read_json(json, &config, &error);
        json_decref(json);
        if (code != REFUSED[i].code || !strstr(error.message, REFUSED[i].message) ||
            !strstr(error.message, "config.json")) {
            print_error("%s with %s = %s: %d %s\n", REFUSED[i].fixture, REFUSED[i].path,
                        REFUSED[i].value ? REFUSED[i].value : "(absent)", code, error.message);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

static sl_config must_read(json_t *json) {
    sl_config config;
    sl_error error;
    if (read_json(json, &config, &error)) {
        fail_msg("%s", error.message);
    }
    json_decref(json);
    return config;
}

/* The facts that transformers 5.17 wrote into the fixtures' configs. */
static void facts_of_the_fixtures(void **state) {
    (void)state;
    sl_config c = must_read(fixture_config("llama"));
    assert_string_equal(c.family->name, "llama");
    assert_int_equal(c.layers, 3);
    assert_int_equal(c.heads, 4);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_size, 16);
    assert_int_equal(c.rope_layout, SL_ROPE_HALVES);
    assert_false(c.tied);
    assert_float_equal(c.attention_scale, 0.25, 0);
    c = must_read(fixture_config("qwen2"));
    assert_true(c.query_bias && !c.output_bias && c.tied);
    c = must_read(fixture_config("qwen3moe"));
    assert_int_equal(c.experts, 8);
    assert_int_equal(c.experts_used, 2);
    assert_true(c.normalise);
    c = must_read(fixture_config("qwen3moe-nonorm"));
    assert_false(c.normalise);
    c = must_read(fixture_config("gemma3"));
    assert_int_equal(c.window, 48);
    const uint8_t kinds[] = {SL_LAYER_WINDOW, SL_LAYER_WINDOW, SL_LAYER_FULL, SL_LAYER_WINDOW};
    assert_memory_equal(c.kinds, kinds, 4);
    assert_float_equal(c.attention_scale, 1 / sqrt(20), 1e-12);
    assert_float_equal(c.rope.base, 1000000, 0);
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_LINEAR);
    assert_float_equal(c.rope.factor, 8, 0);
    assert_float_equal(c.local_rope.base, 10000, 0);
    assert_int_equal(c.local_rope.scaling, SL_ROPE_SCALING_NONE);
    assert_int_equal(c.activation, SL_ACTIVATION_GELU_TANH);
    c = must_read(fixture_config("qwen3_5"));
    const uint8_t delta[] = {SL_LAYER_DELTA, SL_LAYER_DELTA, SL_LAYER_DELTA, SL_LAYER_FULL};
    assert_memory_equal(c.kinds, delta, 4);
    assert_int_equal(c.rope_dims, 8);
    assert_int_equal(c.delta_value_heads, 4);
}

static json_t *with(json_t *json, const char *path, const char *value) {
    json_t *parsed = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    set_path(json, path, parsed);
    json_decref(parsed);
    return json;
}

/* What transformers 4 wrote, and what is left out when it is the default. */
static void older_and_sparser_configs(void **state) {
    (void)state;
    json_t *json = with(fixture_config("llama"), "rope_parameters", NULL);
    sl_config c = must_read(with(with(json, "rope_theta", "500000.0"), "rope_scaling",
                                 "{\"type\": \"linear\", \"factor\": 4.0}"));
    assert_float_equal(c.rope.base, 500000, 0);
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_LINEAR);
    assert_float_equal(c.rope.factor, 4, 0);
    json = with(with(fixture_config("llama"), "head_dim", "null"), "num_key_value_heads", NULL);
    c = must_read(json);
    assert_int_equal(c.head_size, 16);
    assert_int_equal(c.kv_heads, 4);

    /* The text config of gemma-3-4b-it says no more than this. */
    json = json_pack("{s:s, s:{s:i, s:i, s:s, s:i, s:{s:f, s:s}, s:i}}", "model_type", "gemma3",
                     "text_config", "hidden_size", 2560, "intermediate_size", 10240, "model_type",
                     "gemma3_text", "num_hidden_layers", 34, "rope_scaling", "factor", 8.0, "rope_type",
                     "linear", "sliding_window", 1024);
    c = must_read(json);
    assert_string_equal(c.family->name, "gemma3");
    assert_int_equal(c.heads, 8);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_size, 256);
    assert_int_equal(c.vocabulary, 262208);
    assert_true(c.tied);
    assert_float_equal(c.attention_scale, 1.0 / 16, 0);
    assert_float_equal(c.rope.base, 1000000, 0);
    assert_float_equal(c.rope.factor, 8, 0);
    assert_float_equal(c.local_rope.base, 10000, 0);
    assert_int_equal(c.local_rope.scaling, SL_ROPE_SCALING_NONE);
    for (int i = 0; i < 34; i++) {
        assert_int_equal(c.kinds[i], (i + 1) % 6 == 0 ? SL_LAYER_FULL : SL_LAYER_WINDOW);
    }
    c = must_read(with(with(fixture_config("qwen3_5"), "layer_types", NULL), "full_attention_interval", "2"));
    assert_int_equal(c.kinds[0], SL_LAYER_DELTA);
    assert_int_equal(c.kinds[1], SL_LAYER_FULL);
    assert_int_equal(c.kinds[3], SL_LAYER_FULL);
}

static void must_refuse(json_t *json, int code, const char *text) {
    sl_config config;
    sl_error error = {0};
    assert_int_equal(read_json(json, &config, &error), code);
    json_decref(json);
    if (!strstr(error.message, text)) {
        fail_msg("%s", error.message);
    }
}

/* Keys as the published folders of E4B and 26B-A4B have them, and as transformers writes them since 5.15. */
static json_t *gemma4(const char *more) {
    static const char text[] =
        "{\"model_type\": \"gemma4\", \"text_config\": {\"model_type\": \"gemma4_text\", \"hidden_size\": "
        "2560, "
        "\"intermediate_size\": 10240, \"num_hidden_layers\": 12, \"num_attention_heads\": 8, "
        "\"num_key_value_heads\": 2, \"head_dim\": 256, \"sliding_window\": 512, "
        "\"final_logit_softcapping\": 30.0, "
        "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": "
        "1000000.0, "
        "\"partial_rotary_factor\": 0.25}, \"sliding_attention\": {\"rope_type\": \"default\", "
        "\"rope_theta\": "
        "10000.0}}, \"use_bidirectional_attention\": \"vision\"}}";
    json_t *json = json_loads(text, 0, NULL), *changes = json_loads(more, 0, NULL);
    assert_non_null(changes);
    json_object_update(json_object_get(json, "text_config"), changes);
    json_decref(changes);
    return json;
}

static void layers_of_two_shapes(void **state) {
    (void)state;
    sl_config c = must_read(gemma4("{\"global_head_dim\": 512, \"num_kv_shared_layers\": 6, "
                                   "\"hidden_size_per_layer_input\": 256, \"use_double_wide_mlp\": true}"));
    assert_string_equal(c.family->name, "gemma4");
    assert_int_equal(sl_config_head_size(&c, 0), 256);
    assert_int_equal(sl_config_head_size(&c, 5), 512);
    assert_int_equal(sl_config_rope_dims(&c, 0), 256);
    assert_int_equal(sl_config_rope_dims(&c, 5), 512);
    assert_int_equal(sl_config_kv_heads(&c, 0), 2);
    assert_int_equal(sl_config_kv_heads(&c, 5), 2);
    assert_int_equal(sl_config_feed_forward(&c, 5), 10240);
    assert_int_equal(sl_config_feed_forward(&c, 6), 20480);
    assert_int_equal(sl_config_kv_layer(&c, 5), 5);
    assert_int_equal(sl_config_kv_layer(&c, 10), 4); /* by kind */
    assert_int_equal(sl_config_kv_layer(&c, 11), 5);
    assert_false(sl_config_has_keys(&c, 6));
    assert_int_equal(c.per_layer_width, 256);
    assert_int_equal(c.experts, 0);
    assert_float_equal(c.attention_scale, 1, 0);
    float frequencies[256];
    sl_rope_frequencies(&c.rope, 512, frequencies);
    assert_float_equal(frequencies[1], pow(1e6, -2.0 / 512), 1e-6); /* the whole head in the exponent */
    assert_true(frequencies[63] > 0.03f);                           /* a quarter of the pairs turns */
    assert_true(frequencies[64] < 1e-20f);

    c = must_read(
        gemma4("{\"global_head_dim\": 512, \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1, "
               "\"hidden_size_per_layer_input\": 0, \"enable_moe_block\": true, \"num_experts\": 128, "
               "\"top_k_experts\": 8, \"moe_intermediate_size\": 704}"));
    assert_int_equal(sl_config_kv_heads(&c, 0), 2);
    assert_int_equal(sl_config_kv_heads(&c, 5), 1);
    assert_true(sl_config_has_values(&c, 0));
    assert_false(sl_config_has_values(&c, 5));
    assert_int_equal(c.experts_used, 8);
    assert_int_equal(c.expert_width, 704);
    assert_int_equal(c.per_layer_width, 0);

    c = must_read(
        gemma4("{\"per_layer_config\": {\"05\": {\"head_dim\": 512, \"num_key_value_heads\": 1}, "
               "\"11\": {\"head_dim\": 512, \"num_key_value_heads\": 1}}, \"attention_k_eq_v\": true}"));
    assert_int_equal(sl_config_head_size(&c, 4), 256);
    assert_int_equal(sl_config_head_size(&c, 11), 512);
    assert_int_equal(sl_config_kv_heads(&c, 4), 2);
    assert_int_equal(sl_config_kv_heads(&c, 11), 1);
    assert_int_equal(c.per_layer_width, 256); /* what transformers takes where the key is left out */

    must_refuse(gemma4("{\"per_layer_config\": {\"05\": {\"head_dim\": 512}}}"), SL_ERR_UNSUPPORTED,
                "per_layer_config differs between layers of one kind");
    must_refuse(gemma4("{\"per_layer_config\": {\"12\": {\"head_dim\": 512}}}"), SL_ERR_INVALID,
                "which is no layer");
    must_refuse(gemma4("{\"num_kv_shared_layers\": 7}"), SL_ERR_INVALID,
                "must leave a layer of each kind with keys and values of its own");
    must_refuse(gemma4("{\"use_bidirectional_attention\": \"all\"}"), SL_ERR_UNSUPPORTED, "bidirectional");
}

static void windows_and_dense_layers(void **state) {
    (void)state;
    sl_config c = must_read(with(fixture_config("mistral"), "sliding_window", "48"));
    assert_int_equal(c.window, 48);
    assert_int_equal(c.kinds[0], SL_LAYER_WINDOW);
    assert_int_equal(c.kinds[2], SL_LAYER_WINDOW);
    assert_float_equal(c.local_rope.base, c.rope.base, 0);
    json_t *json = with(with(fixture_config("qwen2"), "layer_types", NULL), "sliding_window", "32");
    c = must_read(json_deep_copy(json));
    assert_int_equal(c.kinds[2], SL_LAYER_FULL); /* use_sliding_window is false */
    c = must_read(with(with(json, "use_sliding_window", "true"), "max_window_layers", "1"));
    assert_int_equal(c.kinds[0], SL_LAYER_FULL);
    assert_int_equal(c.kinds[1], SL_LAYER_WINDOW);
    assert_int_equal(c.window, 32);
    c = must_read(with(fixture_config("qwen3moe"), "mlp_only_layers", "[1]"));
    assert_true(!c.dense[0] && c.dense[1] && !c.dense[2]);
    c = must_read(with(fixture_config("qwen3moe"), "decoder_sparse_step", "2"));
    assert_true(c.dense[0] && !c.dense[1] && c.dense[2]);
    c = must_read(with(fixture_config("llama"), "attention_bias", "true"));
    assert_true(c.query_bias && c.output_bias);
}

static sl_config read_text(const char *text) {
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    if (!json) {
        fail_msg("%s: %s", error.text, text);
    }
    return must_read(json);
}

#define SIZES                                                                                                \
    "\"num_hidden_layers\": 8, \"hidden_size\": 512, \"intermediate_size\": 64, \"vocab_size\": 128, "       \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "

/* The keys of published folders that say what is special, with their values; sizes are small. */
static void mistrals_name_their_text_model(void **state) {
    (void)state;
    sl_config c =
        read_text("{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"mistral\", " SIZES
                  "\"head_dim\": 128, \"max_position_embeddings\": 131072, \"rope_theta\": 1e9, "
                  "\"sliding_window\": null}}");
    assert_string_equal(c.family->name, "mistral");
    assert_int_equal(c.head_size, 128);
    assert_int_equal(c.window, 0);
    assert_float_equal(c.temperature_scale, 0, 0);
    c = read_text(
        "{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"ministral3\", " SIZES
        "\"head_dim\": 128, \"max_position_embeddings\": 262144, \"rope_parameters\": {\"type\": \"yarn\", "
        "\"rope_theta\": 1000000.0, \"factor\": 16.0, \"original_max_position_embeddings\": 16384, "
        "\"mscale_all_dim\": 1.0, \"mscale\": 1.0, \"llama_4_scaling_beta\": 0.1}}}");
    assert_string_equal(c.family->name, "ministral3");
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_YARN);
    assert_float_equal(sl_rope_magnitude(&c.rope), 1, 0);
    assert_float_equal(c.temperature_scale, 0.1, 0);
    assert_int_equal(c.temperature_length, 16384);
    c.rope.mscale = 0.5; /* (0.05 ln 16 + 1) / (0.1 ln 16 + 1) */
    assert_float_equal(sl_rope_magnitude(&c.rope), 0.8914633, 1e-6);
}

static void layers_without_rope(void **state) {
    (void)state;
    sl_config c =
        read_text("{\"model_type\": \"smollm3\", " SIZES "\"max_position_embeddings\": 65536, "
                  "\"rope_theta\": 5000000.0, \"use_sliding_window\": false, \"sliding_window\": null}");
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c.no_rope[i], i % 4 == 3);
        assert_int_equal(c.kinds[i], SL_LAYER_FULL);
    }
    assert_true(c.tied);
    c = read_text("{\"model_type\": \"smollm3\", " SIZES "\"max_position_embeddings\": 65536, "
                  "\"no_rope_layers\": [1, 0, 1, 1, 1, true, false, 1], \"use_sliding_window\": true, "
                  "\"sliding_window\": 32}");
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c.no_rope[i], i == 1 || i == 6);
        assert_int_equal(c.kinds[i], i == 1 || i == 6 ? SL_LAYER_WINDOW : SL_LAYER_FULL);
    }
    c = read_text(
        "{\"model_type\": \"exaone4\", " SIZES "\"max_position_embeddings\": 131072, "
        "\"sliding_window\": 4096, \"sliding_window_pattern\": \"LLLG\", \"layer_types\": ["
        "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\", "
        "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"]}");
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c.no_rope[i], i % 4 == 3);
    }
    c = read_text("{\"model_type\": \"exaone4\", " SIZES "\"max_position_embeddings\": 65536, "
                  "\"sliding_window\": null, \"sliding_window_pattern\": null}");
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c.no_rope[i], false);
        assert_int_equal(c.kinds[i], SL_LAYER_FULL);
    }
    c = read_text("{\"model_type\": \"exaone4\", " SIZES "\"max_position_embeddings\": 65536}");
    assert_int_equal(c.window, 4096); /* Exaone4Config's default */
    assert_true(c.no_rope[3] && !c.no_rope[2] && c.kinds[2] == SL_LAYER_WINDOW);
}

/* OLMo 3: windowed layers have the base without the scaling. */
static void scaling_of_full_layers_alone(void **state) {
    (void)state;
    sl_config c =
        read_text("{\"model_type\": \"olmo3\", " SIZES "\"max_position_embeddings\": 65536, "
                  "\"rope_theta\": 500000, \"sliding_window\": 4096, \"rope_scaling\": {"
                  "\"attention_factor\": 1.2079441541679836, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
                  "\"factor\": 8.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"yarn\"}}");
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_YARN);
    assert_float_equal(sl_rope_magnitude(&c.rope), 1.2079441541679836, 1e-6);
    assert_int_equal(c.local_rope.scaling, SL_ROPE_SCALING_NONE);
    assert_float_equal(c.local_rope.base, 500000, 0);
    assert_float_equal(sl_rope_magnitude(&c.local_rope), 1, 0);
    assert_int_equal(c.kinds[2], SL_LAYER_WINDOW);
    assert_int_equal(c.kinds[3], SL_LAYER_FULL);
    c = read_text("{\"model_type\": \"olmo2\", " SIZES
                  "\"max_position_embeddings\": 4096, \"rope_theta\": 500000}");
    assert_int_equal(c.kinds[0], SL_LAYER_FULL);
}

/* Both formats' logit_scale multiplies; Granite's divides. */
static void logits_are_multiplied(void **state) {
    (void)state;
    static const char plus[] =
        "{\"model_type\": \"cohere\", " SIZES "\"max_position_embeddings\": 8192, \"use_qk_norm\": true}";
    sl_config c = read_text("{\"model_type\": \"cohere2\", " SIZES "\"max_position_embeddings\": 8192, "
                            "\"logit_scale\": 0.25, \"layer_norm_eps\": 1e-05, "
                            "\"sliding_window_pattern\": 2, \"sliding_window\": 4096}");
    assert_float_equal(c.logit_divisor, 4, 0);
    assert_float_equal(c.epsilon, 1e-5, 0);
    assert_int_equal(c.rope_layout, SL_ROPE_PAIRS);
    assert_true(c.tied && c.kinds[0] == SL_LAYER_WINDOW && !c.no_rope[0]);
    assert_true(c.kinds[1] == SL_LAYER_FULL && c.no_rope[1]);
    c = read_text("{\"model_type\": \"cohere\", " SIZES "\"max_position_embeddings\": 8192}");
    assert_float_equal(c.logit_divisor, 16, 0); /* CohereConfig's default */
    assert_true(c.kinds[3] == SL_LAYER_FULL && !c.no_rope[3] && !c.query_norm);
    sl_error error = {0};
    json_t *json = json_loads(plus, 0, NULL);
    assert_int_equal(read_json(json, &c, &error), SL_ERR_UNSUPPORTED);
    json_decref(json);
    assert_non_null(strstr(error.message, "use_qk_norm is 1: norms of queries and keys are not supported"));
}

static void factors_and_biases(void **state) {
    (void)state;
    sl_config c = read_text("{\"model_type\": \"granite\", " SIZES "\"max_position_embeddings\": 131072, "
                            "\"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.22, "
                            "\"attention_multiplier\": 0.015625, \"logits_scaling\": 8.0}");
    assert_float_equal(c.embed_factor, 12, 0);
    assert_float_equal(c.branch_factor, 0.22, 0);
    assert_float_equal(c.attention_scale, 0.015625, 0);
    assert_float_equal(c.logit_divisor, 8, 0);
    c = read_text("{\"model_type\": \"granite\", " SIZES "\"max_position_embeddings\": 4096}");
    assert_float_equal(c.attention_scale, 1, 0); /* GraniteConfig's default */
    c = read_text("{\"model_type\": \"seed_oss\", " SIZES "\"max_position_embeddings\": 524288, "
                  "\"attention_bias\": true, \"attention_out_bias\": false, \"head_dim\": 128}");
    assert_true(c.query_bias && !c.output_bias && !c.mlp_bias);
    c = read_text("{\"model_type\": \"seed_oss\", " SIZES "\"max_position_embeddings\": 4096, "
                  "\"attention_bias\": false, \"attention_out_bias\": true}");
    assert_true(!c.query_bias && c.output_bias);
    c = read_text("{\"model_type\": \"ernie4_5\", " SIZES "\"max_position_embeddings\": 131072, "
                  "\"use_bias\": true}");
    assert_true(c.query_bias && c.output_bias && c.mlp_bias && c.tied);
    assert_int_equal(c.rope_layout, SL_ROPE_PAIRS);
    assert_int_equal(c.head_size, 128);
    c = read_text("{\"model_type\": \"glm4\", " SIZES "\"max_position_embeddings\": 32768, "
                  "\"head_dim\": 128, \"partial_rotary_factor\": 0.5}");
    assert_true(c.query_bias && !c.output_bias && c.fused_gate_up && !c.fused_qkv);
    assert_int_equal(c.rope_dims, 64);
    assert_int_equal(c.rope_layout, SL_ROPE_PAIRS);
}

/* 11158839.9251 and 1.19023807 are what llama.cpp's converters have for these numbers. */
static void longer_contexts(void **state) {
    (void)state;
    sl_config c =
        read_text("{\"model_type\": \"hunyuan_v1_dense\", " SIZES "\"max_position_embeddings\": 262144, "
                  "\"head_dim\": 128, \"rope_theta\": 10000.0, \"rope_scaling\": {\"alpha\": 1000.0, "
                  "\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 1.0, \"mscale\": 1.0, "
                  "\"mscale_all_dim\": 1.0, \"type\": \"dynamic\"}}");
    assert_float_equal(c.rope.base, 11158839.9251, 1e-3);
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_NONE);
    assert_float_equal(sl_rope_magnitude(&c.rope), 1, 0);
    static const char phi[] =
        "{\"model_type\": \"phi3\", \"num_hidden_layers\": 2, \"hidden_size\": 32, \"intermediate_size\": "
        "64, "
        "\"vocab_size\": 128, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"max_position_embeddings\": %d, \"original_max_position_embeddings\": 4096, "
        "\"partial_rotary_factor\": 0.75, \"rope_scaling\": {\"long_factor\": [1, 2.5, 3], "
        "\"short_factor\": [1, 1.5, 2], \"type\": \"longrope\"}, \"sliding_window\": 262144}";
    char text[sizeof phi + 16];
    snprintf(text, sizeof text, phi, 131072);
    c = read_text(text);
    assert_int_equal(c.rope_dims, 6);
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_LONGROPE);
    assert_float_equal(sl_rope_magnitude(&c.rope), 1.19023807, 1e-6);
    assert_true(sl_config_is_long(&c));
    assert_float_equal(c.long_factors[1], 2.5, 0);
    assert_float_equal(c.short_factors[2], 2, 0);
    assert_true(c.fused_qkv && c.fused_gate_up);
    snprintf(text, sizeof text, phi, 4096);
    c = read_text(text);
    assert_false(sl_config_is_long(&c));
    assert_float_equal(sl_rope_magnitude(&c.rope), 1, 0);
}

/* Llama 3's formula worked out by hand for base 10000, 16 dimensions, factor 8, 1, 4 and 64 positions. */
static void rope_frequencies_follow_the_formula(void **state) {
    (void)state;
    static const double wanted[8] = {1.0,
                                     0.24438459943539834,
                                     0.013042256043820465,
                                     0.003952847075210474,
                                     0.00125,
                                     0.0003952847075210474,
                                     0.000125,
                                     3.952847075210474e-05};
    sl_config c = must_read(fixture_config("llama-scaled"));
    float frequencies[8], factors[8];
    sl_rope_frequencies(&c.rope, c.rope_dims, frequencies);
    sl_rope_factors(&c.rope, c.rope_dims, factors);
    for (int i = 0; i < 8; i++) {
        assert_float_equal(frequencies[i] / wanted[i], 1, 1e-6);
        assert_float_equal(frequencies[i] * factors[i] / pow(10000, -i / 8.0), 1, 1e-6);
    }
    c.rope.scaling = SL_ROPE_SCALING_LINEAR;
    sl_rope_frequencies(&c.rope, c.rope_dims, frequencies);
    assert_float_equal(frequencies[4], 0.01 / 8, 1e-9);
}

/* As _compute_yarn_parameters of transformers has it, for base 1e6, 32 dimensions, factor 4 and 128
 * positions. */
static void yarn_follows_the_formula(void **state) {
    (void)state;
    static const double wanted[8] = {1.0,
                                     0.34262840903572306,
                                     0.11114246312743269,
                                     0.03280787165829494,
                                     0.007905694150420948,
                                     0.00333380358040831,
                                     0.0014058533129758727,
                                     0.0005928434264154138};
    static const char yarn[] = "{\"rope_type\": \"yarn\", \"rope_theta\": 1e6, \"factor\": 4.0, "
                               "\"original_max_position_embeddings\": 128}";
    sl_config c = must_read(with(fixture_config("qwen3"), "rope_parameters", yarn));
    float frequencies[16];
    sl_rope_frequencies(&c.rope, c.rope_dims, frequencies);
    for (int i = 0; i < 8; i++) {
        assert_float_equal(frequencies[i] / wanted[i], 1, 1e-6);
    }
    assert_float_equal(sl_rope_magnitude(&c.rope), 1.138629436111989, 1e-6);
    c.rope.attention_factor = 0.5;
    assert_float_equal(sl_rope_magnitude(&c.rope), 0.5, 0);
}

/* ---- GGUF metadata ---- */

typedef struct entry {
    const char *key;
    char type; /* u, f, s, b; a: array of two u32 from `value`'s two numbers; - leaves it out */
    const char *value;
} entry;

static const entry LLAMA[] = {{"general.architecture", 's', "llama"},
                              {"llama.block_count", 'u', "2"},
                              {"llama.context_length", 'u', "128"},
                              {"llama.embedding_length", 'u', "64"},
                              {"llama.feed_forward_length", 'u', "96"},
                              {"llama.attention.head_count", 'u', "4"},
                              {"llama.attention.head_count_kv", 'u', "2"},
                              {"llama.attention.layer_norm_rms_epsilon", 'f', "1e-5"},
                              {"llama.vocab_size", 'u', "256"},
                              {NULL, 0, NULL}};
static const entry QWEN35[] = {{"general.architecture", 's', "qwen35"},
                               {"qwen35.block_count", 'u', "5"},
                               {"qwen35.nextn_predict_layers", 'u', "1"},
                               {"qwen35.context_length", 'u', "128"},
                               {"qwen35.embedding_length", 'u', "64"},
                               {"qwen35.feed_forward_length", 'u', "96"},
                               {"qwen35.attention.head_count", 'u', "4"},
                               {"qwen35.attention.head_count_kv", 'u', "2"},
                               {"qwen35.attention.key_length", 'u', "32"},
                               {"qwen35.attention.value_length", 'u', "32"},
                               {"qwen35.attention.layer_norm_rms_epsilon", 'f', "1e-6"},
                               {"qwen35.rope.dimension_count", 'u', "8"},
                               {"qwen35.ssm.conv_kernel", 'u', "4"},
                               {"qwen35.ssm.inner_size", 'u', "64"},
                               {"qwen35.ssm.state_size", 'u', "16"},
                               {"qwen35.ssm.time_step_rank", 'u', "4"},
                               {"qwen35.ssm.group_count", 'u', "4"},
                               {"qwen35.vocab_size", 'u', "256"},
                               {NULL, 0, NULL}};
static const entry QWEN2[] = {{"general.architecture", 's', "qwen2"},
                              {"qwen2.block_count", 'u', "2"},
                              {"qwen2.context_length", 'u', "128"},
                              {"qwen2.embedding_length", 'u', "64"},
                              {"qwen2.feed_forward_length", 'u', "96"},
                              {"qwen2.attention.head_count", 'u', "4"},
                              {"qwen2.attention.layer_norm_rms_epsilon", 'f', "1e-5"},
                              {"qwen2.vocab_size", 'u', "256"},
                              {NULL, 0, NULL}};
static const entry QWEN3MOE[] = {{"general.architecture", 's', "qwen3moe"},
                                 {"qwen3moe.block_count", 'u', "2"},
                                 {"qwen3moe.context_length", 'u', "128"},
                                 {"qwen3moe.embedding_length", 'u', "64"},
                                 {"qwen3moe.attention.head_count", 'u', "4"},
                                 {"qwen3moe.attention.layer_norm_rms_epsilon", 'f', "1e-5"},
                                 {"qwen3moe.expert_count", 'u', "8"},
                                 {"qwen3moe.expert_used_count", 'u', "2"},
                                 {"qwen3moe.expert_feed_forward_length", 'u', "32"},
                                 {"qwen3moe.vocab_size", 'u', "256"},
                                 {NULL, 0, NULL}};

/* As conversion/ of llama.cpp writes them. */
#define SMALL(name)                                                                                          \
    {"general.architecture", 's', name}, {name ".block_count", 'u', "4"},                                    \
        {name ".context_length", 'u', "128"}, {name ".embedding_length", 'u', "64"},                         \
        {name ".feed_forward_length", 'u', "96"}, {name ".attention.head_count", 'u', "4"},                  \
        {name ".attention.head_count_kv", 'u', "2"},                                                         \
        {name ".attention.layer_norm_rms_epsilon", 'f', "1e-5"}, {                                           \
        name ".vocab_size", 'u', "256"                                                                       \
    }

static const entry MINISTRAL3[] = {SMALL("mistral3"),
                                   {"mistral3.rope.freq_base", 'f', "1e6"},
                                   {"mistral3.rope.scaling.type", 's', "yarn"},
                                   {"mistral3.rope.scaling.factor", 'f', "16"},
                                   {"mistral3.rope.scaling.original_context_length", 'u', "16384"},
                                   {"mistral3.rope.scaling.yarn_log_multiplier", 'f', "1"},
                                   {"mistral3.attention.temperature_scale", 'f', "0.1"},
                                   {NULL, 0, NULL}};
static const entry SMOLLM3[] = {SMALL("smollm3"), {NULL, 0, NULL}};
static const entry GRANITE[] = {SMALL("granite"),
                                {"granite.attention.scale", 'f', "0.015625"},
                                {"granite.embedding_scale", 'f', "12"},
                                {"granite.residual_scale", 'f', "0.22"},
                                {"granite.logit_scale", 'f', "8"},
                                {NULL, 0, NULL}};
#define MAMBA(name)                                                                                          \
    {"general.architecture", 's', name}, {name ".block_count", 'u', "4"},                                    \
        {name ".context_length", 'u', "128"}, {name ".embedding_length", 'u', "64"},                         \
        {name ".attention.head_count", 'u', "4"}, {name ".attention.layer_norm_rms_epsilon", 'f', "1e-5"},   \
        {name ".attention.head_count_kv", 'a', "0 2 0 0"}, {name ".ssm.conv_kernel", 'u', "4"},              \
        {name ".ssm.state_size", 'u', "16"}, {name ".ssm.group_count", 'u', "1"},                            \
        {name ".ssm.inner_size", 'u', "128"}, {name ".ssm.time_step_rank", 'u', "8"}, {                      \
        name ".vocab_size", 'u', "256"                                                                       \
    }
static const entry GRANITE_H[] = {MAMBA("granitehybrid"),
                                  {"granitehybrid.feed_forward_length", 'u', "32"},
                                  {"granitehybrid.expert_count", 'u', "8"},
                                  {"granitehybrid.expert_used_count", 'u', "2"},
                                  {"granitehybrid.expert_shared_feed_forward_length", 'u', "96"},
                                  {"granitehybrid.rope.scaling.finetuned", 'b', "false"},
                                  {"granitehybrid.logit_scale", 'f', "8"},
                                  {NULL, 0, NULL}};
static const entry NEMOTRON_H[] = {MAMBA("nemotron_h"),
                                   {"nemotron_h.feed_forward_length", 'a', "0 0 96 0"},
                                   {"nemotron_h.attention.key_length", 'u', "16"},
                                   {NULL, 0, NULL}};
static const entry OLMO2[] = {SMALL("olmo2"),
                              {"olmo2.rope.freq_base", 'f', "500000"},
                              {"olmo2.attention.sliding_window", 'u', "32"},
                              {"olmo2.attention.sliding_window_pattern", 'a', "1 1 0 1"},
                              {"olmo2.rope.scaling.type", 's', "yarn"},
                              {"olmo2.rope.scaling.factor", 'f', "8"},
                              {"olmo2.rope.scaling.original_context_length", 'u', "8192"},
                              {"olmo2.rope.scaling.yarn_attn_factor", 'f', "1.2079442"},
                              {NULL, 0, NULL}};
static const entry EXAONE4[] = {
    SMALL("exaone4"), {"exaone4.attention.sliding_window", 'u', "32"}, {NULL, 0, NULL}};
static const entry COHERE2[] = {SMALL("cohere2"),
                                {"cohere2.attention.layer_norm_epsilon", 'f', "0.001"},
                                {"cohere2.attention.sliding_window", 'u', "32"},
                                {"cohere2.logit_scale", 'f', "0.25"},
                                {NULL, 0, NULL}};
static const entry PHI3[] = {SMALL("phi3"),
                             {"phi3.rope.dimension_count", 'u', "12"},
                             {"phi3.rope.scaling.original_context_length", 'u', "64"},
                             {"phi3.attention.sliding_window", 'u', "0"},
                             {NULL, 0, NULL}};

static int write_entry(sl_gguf_writer *writer, const entry *e, sl_error *error) {
    uint32_t list[8], count = 0;
    char *end;
    switch (e->type) {
    case 'u':
        return sl_gguf_writer_unsigned(writer, e->key, SL_GGUF_U32, strtoul(e->value, NULL, 10), error);
    case 'f':
        return sl_gguf_writer_float(writer, e->key, SL_GGUF_F32, strtod(e->value, NULL), error);
    case 's':
        return sl_gguf_writer_string(writer, e->key, sl_view_of(e->value), error);
    case 'b':
        return sl_gguf_writer_bool(writer, e->key, e->value[0] == 't', error);
    case '1': /* an array of one */
        list[0] = (uint32_t)strtoul(e->value, NULL, 10);
        return sl_gguf_writer_array(writer, e->key, &(sl_gguf_items){SL_GGUF_U32, list, 1}, error);
    case 't': /* an array of texts */
        return sl_gguf_writer_array(
            writer, e->key, &(sl_gguf_items){SL_GGUF_STRING, (sl_view[]){{"4", 1}, {"4", 1}}, 2}, error);
    case 'a':
        end = (char *)e->value;
        while (*end && count < sizeof list / sizeof *list) {
            list[count++] = (uint32_t)strtoul(end, &end, 10);
        }
        return sl_gguf_writer_array(writer, e->key, &(sl_gguf_items){SL_GGUF_U32, list, count}, error);
    default:
        return 0;
    }
}

/* The base's entries with one in its place, or added. */
static int read_gguf(const entry *base, const entry *change, sl_config *config, sl_error *error) {
    static const char path[] = SLUICE_BINARY_DIR "/test_config.gguf";
    sl_gguf_writer *writer;
    sl_source *source;
    bool replaced = false;
    assert_int_equal(sl_gguf_writer_create(path, &writer, error), 0);
    for (; base->key; base++) {
        const bool same = change && strcmp(base->key, change->key) == 0;
        replaced |= same;
        assert_int_equal(write_entry(writer, same ? change : base, error), 0);
    }
    if (change && !replaced) {
        assert_int_equal(write_entry(writer, change, error), 0);
    }
    assert_int_equal(sl_gguf_writer_begin(writer, NULL, error), 0);
    assert_int_equal(sl_gguf_writer_finish(writer, error), 0);
    sl_gguf_writer_free(writer);
    if (sl_source_open(path, &source, error)) {
        fail_msg("%s", error->message);
    }
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

static const struct {
    const entry *base;
    entry change;
    int code;
    const char *message;
} GGUF_REFUSED[] = {
    {LLAMA, {"general.architecture", 's', "gpt2"}, SL_ERR_UNSUPPORTED, "general.architecture is \"gpt2\""},
    {LLAMA, {"general.type", 's', "adapter"}, SL_ERR_UNSUPPORTED, "general.type is \"adapter\": no model"},
    {LLAMA, {"general.type", 's', "mmproj"}, SL_ERR_UNSUPPORTED, "general.type is \"mmproj\": no model"},
    {LLAMA, {"general.type", 'u', "1"}, SL_ERR_FORMAT, "general.type"},
    {LLAMA,
     {"llama.attention.head_count_kv", '1', "2"},
     SL_ERR_INVALID,
     "llama.attention.head_count_kv has 1 items, but there are 2 layers"},
    {LLAMA, {"llama.attention.head_count", 't', ""}, SL_ERR_FORMAT, "head_count' is array of string"},
    {LLAMA, {"llama.block_count", 'u', "0"}, SL_ERR_INVALID, "llama.block_count is 0"},
    {LLAMA, {"llama.block_count", '-', ""}, SL_ERR_INVALID, "llama.block_count is missing"},
    {LLAMA, {"llama.block_count", 's', "2"}, SL_ERR_FORMAT, "llama.block_count"},
    {LLAMA, {"llama.attention.head_count", 'u', "0"}, SL_ERR_INVALID, "llama.attention.head_count is 0"},
    {LLAMA,
     {"llama.attention.head_count_kv", 'u', "3"},
     SL_ERR_INVALID,
     "llama.attention.head_count_kv is 3: must divide"},
    {LLAMA,
     {"llama.attention.head_count_kv", 'a', "2 4"},
     SL_ERR_UNSUPPORTED,
     "head_count_kv differs between layers"},
    {LLAMA,
     {"llama.attention.head_count", 'u', "5000"},
     SL_ERR_INVALID,
     "llama.attention.head_count is 5000"},
    {LLAMA,
     {"llama.attention.value_length", 'u', "8"},
     SL_ERR_UNSUPPORTED,
     "llama.attention.value_length (8)"},
    {LLAMA,
     {"llama.attention.layer_norm_rms_epsilon", 'f', "0"},
     SL_ERR_INVALID,
     "layer_norm_rms_epsilon is 0"},
    {LLAMA,
     {"llama.attention.layer_norm_rms_epsilon", 'f', "nan"},
     SL_ERR_INVALID,
     "layer_norm_rms_epsilon is"},
    {LLAMA,
     {"llama.rope.dimension_count", 'u', "3"},
     SL_ERR_INVALID,
     "llama.rope.dimension_count is 3: must be even"},
    {LLAMA, {"llama.rope.dimension_count", 'u', "18"}, SL_ERR_INVALID, "must not exceed the head size"},
    {LLAMA,
     {"llama.rope.scaling.type", 's', "longrope"},
     SL_ERR_INVALID,
     "LongRoPE needs an original context"},
    {LLAMA, {"llama.rope.scaling.type", 's', "dynamic"}, SL_ERR_UNSUPPORTED, "\"dynamic\""},
    {LLAMA, {"llama.rope.scaling.type", 's', "su3"}, SL_ERR_UNSUPPORTED, "\"su3\""},
    {LLAMA, {"llama.rope.scaling.attn_factor", 'f', "1.2"}, SL_ERR_UNSUPPORTED, "rope.scaling.attn_factor"},
    {LLAMA, {"llama.attention.temperature_scale", 'f', "0.1"}, SL_ERR_INVALID, "queries grow with"},
    {LLAMA, {"llama.residual_scale", 'f', "0.2"}, SL_ERR_UNSUPPORTED, "llama.residual_scale is 0.2"},
    {LLAMA, {"llama.rope.freq_base", 'f', "inf"}, SL_ERR_INVALID, "llama.rope.freq_base is inf"},
    {LLAMA, {"llama.expert_count", 'u', "8"}, SL_ERR_UNSUPPORTED, "llama.expert_count is 8"},
    {LLAMA, {"llama.attention.causal", 'b', "false"}, SL_ERR_UNSUPPORTED, "llama.attention.causal"},
    {LLAMA, {"llama.logit_scale", 'f', "8"}, SL_ERR_UNSUPPORTED, "llama.logit_scale"},
    {MINISTRAL3,
     {"mistral3.rope.scaling.yarn_log_multiplier", 'f', "-1"},
     SL_ERR_INVALID,
     "yarn_log_multiplier is -1"},
    {MINISTRAL3,
     {"mistral3.attention.temperature_scale", 's', "0.1"},
     SL_ERR_FORMAT,
     "mistral3.attention.temperature_scale"},
    {MINISTRAL3,
     {"mistral3.rope.scaling.attn_factor", 'f', "0"},
     SL_ERR_INVALID,
     "mistral3.rope.scaling.attn_factor is 0"},
    {GRANITE, {"granite.logit_scale", 'f', "0"}, SL_ERR_UNSUPPORTED, "granite.logit_scale is 0"},
    {COHERE2,
     {"cohere2.logit_scale", 'f', "0"},
     SL_ERR_INVALID,
     "cohere2.logit_scale is 0, must be at least"},
    {COHERE2, {"cohere2.logit_scale", 'f', "nan"}, SL_ERR_INVALID, "cohere2.logit_scale is"},
    {COHERE2, {"cohere2.embedding_scale", 'f', "2"}, SL_ERR_UNSUPPORTED, "cohere2.embedding_scale is 2"},
    {GRANITE, {"granite.embedding_scale", 'f', "nan"}, SL_ERR_INVALID, "granite.embedding_scale is"},
    {GRANITE, {"granite.logit_scale", 'f', "1e-42"}, SL_ERR_UNSUPPORTED, "granite.logit_scale is 1.000527"},
    {OLMO2,
     {"olmo2.attention.sliding_window_pattern", '1', "1"},
     SL_ERR_INVALID,
     "olmo2.attention.sliding_window_pattern must be an array"},
    {OLMO2, {"olmo2.rope.freq_base_swa", 'f', "0"}, SL_ERR_INVALID, "olmo2.rope.freq_base_swa is 0"},
    {QWEN2,
     {"qwen2.attention.sliding_window", 'u', "64"},
     SL_ERR_UNSUPPORTED,
     "qwen2.attention.sliding_window is 64"},
    {QWEN3MOE, {"qwen3moe.expert_used_count", 'u', "9"}, SL_ERR_INVALID, "qwen3moe.expert_used_count is 9"},
    {QWEN3MOE,
     {"qwen3moe.expert_shared_count", 'u', "1"},
     SL_ERR_UNSUPPORTED,
     "expert_shared_feed_forward_length is 32: shared experts are not supported in this family"},
    {QWEN3MOE,
     {"qwen3moe.expert_gating_func", 'u', "3"},
     SL_ERR_UNSUPPORTED,
     "qwen3moe.expert_gating_func is 3: only 1 (softmax) and 2 (sigmoid)"},
    {QWEN35, {"qwen35.nextn_predict_layers", 'u', "5"}, SL_ERR_INVALID, "must exceed nextn_predict_layers"},
    {QWEN35, {"qwen35.ssm.inner_size", 'u', "65"}, SL_ERR_INVALID, "qwen35.ssm.inner_size (65)"},
    {QWEN35, {"qwen35.ssm.group_count", 'u', "3"}, SL_ERR_INVALID, "must be a multiple of the key heads"},
    {QWEN35,
     {"qwen35.attention.recurrent_layers", 'a', "1 0"},
     SL_ERR_INVALID,
     "qwen35.attention.recurrent_layers"},
};

static void gguf_metadata_is_not_believed(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof GGUF_REFUSED / sizeof *GGUF_REFUSED; i++) {
        sl_config config;
        sl_error error = {0};
        const int code = read_gguf(GGUF_REFUSED[i].base, &GGUF_REFUSED[i].change, &config, &error);
        if (code != GGUF_REFUSED[i].code || !strstr(error.message, GGUF_REFUSED[i].message) ||
            !strstr(error.message, "test_config.gguf")) {
            print_error("%s = %s: %d %s\n", GGUF_REFUSED[i].change.key, GGUF_REFUSED[i].change.value, code,
                        error.message);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* Meanings of keys and of their absence: llama.cpp's loaders. */
static void gguf_facts(void **state) {
    (void)state;
    sl_config c;
    sl_error error;
    assert_int_equal(read_gguf(LLAMA, NULL, &c, &error), 0);
    assert_int_equal(c.head_size, 16);
    assert_int_equal(c.rope_dims, 16);
    assert_int_equal(c.rope_layout, SL_ROPE_PAIRS);
    assert_float_equal(c.rope.base, 10000, 0);
    assert_true(c.tied); /* no output.weight */
    const entry same = {"llama.attention.head_count_kv", 'a', "2 2"};
    assert_int_equal(read_gguf(LLAMA, &same, &c, &error), 0);
    assert_int_equal(c.kv_heads, 2);
    const entry window = {"qwen2.attention.sliding_window", 'u',
                          "128"}; /* as long as the context: no window */
    assert_int_equal(read_gguf(QWEN2, &window, &c, &error), 0);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.kv_heads, 4);
    assert_true(c.query_bias);
    assert_int_equal(read_gguf(QWEN3MOE, NULL, &c, &error), 0);
    assert_true(c.normalise);
    assert_int_equal(read_gguf(QWEN35, NULL, &c, &error), 0);
    assert_int_equal(c.layers, 4);
    assert_int_equal(c.kinds[2], SL_LAYER_DELTA);
    assert_int_equal(c.kinds[3], SL_LAYER_FULL);
    assert_int_equal(c.delta_value_size, 16);
}

static void gguf_facts_of_more_families(void **state) {
    (void)state;
    sl_config c;
    sl_error error;
    assert_int_equal(read_gguf(MINISTRAL3, NULL, &c, &error), 0);
    assert_string_equal(c.family->name, "ministral3");
    assert_float_equal(sl_rope_magnitude(&c.rope), 1, 0);
    assert_int_equal(c.temperature_length, 16384);
    assert_int_equal(c.rope_layout, SL_ROPE_PAIRS);
    /* m(1) / m(0.5) of 16: 1.2772589 / 1.1386294; and the magnitude times a number of the file. */
    const entry half = {"mistral3.rope.scaling.yarn_log_multiplier", 'f', "0.5"};
    assert_int_equal(read_gguf(MINISTRAL3, &half, &c, &error), 0);
    assert_float_equal(sl_rope_magnitude(&c.rope), 1.1217512, 1e-6);
    const entry times = {"mistral3.rope.scaling.attn_factor", 'f', "2"};
    assert_int_equal(read_gguf(MINISTRAL3, &times, &c, &error), 0);
    assert_float_equal(sl_rope_magnitude(&c.rope), 2, 0);
    assert_int_equal(read_gguf(SMOLLM3, NULL, &c, &error), 0);
    assert_true(!c.no_rope[2] && c.no_rope[3]);
    assert_int_equal(read_gguf(GRANITE, NULL, &c, &error), 0);
    assert_float_equal(c.embed_factor, 12, 0);
    assert_float_equal(c.branch_factor, 0.22, 1e-8);
    assert_float_equal(c.logit_divisor, 8, 0);
    assert_float_equal(c.attention_scale, 0.015625, 0);
    const entry none = {"granite.residual_scale", 'f', "0"};
    assert_int_equal(read_gguf(GRANITE, &none, &c, &error), 0);
    assert_float_equal(c.branch_factor, 1, 0);
    assert_int_equal(read_gguf(GRANITE_H, NULL, &c, &error), 0);
    const uint8_t mixers[] = {SL_LAYER_SSM, SL_LAYER_FULL, SL_LAYER_SSM, SL_LAYER_SSM};
    assert_memory_equal(c.kinds, mixers, 4);
    assert_true(c.no_rope[1] && c.expert_width == 32 && c.shared_width == 96 && c.delta_value_size == 16);
    const entry turns = {"granitehybrid.rope.scaling.finetuned", '-', ""};
    assert_int_equal(read_gguf(GRANITE_H, &turns, &c, &error), 0);
    assert_false(c.no_rope[1]); /* as llama.cpp has it where the key is absent */
    const entry dense = {"granitehybrid.expert_count", 'u', "0"};
    assert_int_equal(read_gguf(GRANITE_H, &dense, &c, &error), 0);
    assert_true(c.experts == 0 && c.experts_used == 0 && c.feed_forward == 96 && c.shared_width == 0);
    assert_int_equal(read_gguf(NEMOTRON_H, NULL, &c, &error), 0);
    const uint8_t blocks[] = {SL_LAYER_SSM, SL_LAYER_FULL, SL_LAYER_FEED_FORWARD, SL_LAYER_SSM};
    assert_memory_equal(c.kinds, blocks, 4);
    assert_true(c.no_rope[1] && c.feed_forward == 96 && c.kv_heads == 2);
    assert_int_equal(read_gguf(OLMO2, NULL, &c, &error), 0);
    const uint8_t kinds[] = {SL_LAYER_WINDOW, SL_LAYER_WINDOW, SL_LAYER_FULL, SL_LAYER_WINDOW};
    assert_memory_equal(c.kinds, kinds, 4);
    assert_int_equal(c.local_rope.scaling, SL_ROPE_SCALING_NONE);
    assert_float_equal(c.local_rope.base, 500000, 0);
    assert_float_equal(sl_rope_magnitude(&c.rope), 1.2079442, 1e-6);
    assert_int_equal(read_gguf(EXAONE4, NULL, &c, &error), 0);
    assert_true(!c.no_rope[2] && c.no_rope[3] && c.kinds[2] == SL_LAYER_WINDOW); /* every fourth is full */
    const entry full = {"exaone4.attention.sliding_window", '-', ""};
    assert_int_equal(read_gguf(EXAONE4, &full, &c, &error), 0);
    assert_true(!c.no_rope[3] && c.kinds[2] == SL_LAYER_FULL);
    assert_int_equal(read_gguf(COHERE2, NULL, &c, &error), 0);
    assert_float_equal(c.epsilon, 1e-3, 1e-9); /* not layer_norm_rms_epsilon */
    assert_float_equal(c.logit_divisor, 4, 0);
    assert_true(!c.no_rope[2] && c.no_rope[3] && c.kinds[3] == SL_LAYER_FULL);
    assert_int_equal(read_gguf(PHI3, NULL, &c, &error), 0);
    assert_int_equal(c.rope_dims, 12);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.rope.scaling, SL_ROPE_SCALING_NONE); /* no tensors of factors */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_is_not_believed),
        cmocka_unit_test(facts_of_the_fixtures),
        cmocka_unit_test(older_and_sparser_configs),
        cmocka_unit_test(layers_of_two_shapes),
        cmocka_unit_test(windows_and_dense_layers),
        cmocka_unit_test(rope_frequencies_follow_the_formula),
        cmocka_unit_test(yarn_follows_the_formula),
        cmocka_unit_test(gguf_metadata_is_not_believed),
        cmocka_unit_test(gguf_facts),
        cmocka_unit_test(gguf_facts_of_more_families),
        cmocka_unit_test(mistrals_name_their_text_model),
        cmocka_unit_test(layers_without_rope),
        cmocka_unit_test(scaling_of_full_layers_alone),
        cmocka_unit_test(factors_and_biases),
        cmocka_unit_test(logits_are_multiplied),
        cmocka_unit_test(longer_contexts),
    };
    return cmocka_run_group_tests_name("model configs", tests, NULL, NULL);
}
