/* Configs of families with experts: what their published config.json and GGUF headers say, what is left out,
 * and the rules of their keys. */
#include "unit/model/support.h"

#include "format/gguf_writer.h"

#include <math.h>

#define FOLDER SLUICE_BINARY_DIR "/test_config_experts_model"

/* ---- config.json, as published but for keys that no reader asks for ---- */

#define GPT_OSS                                                                                              \
    "\"model_type\":\"gpt_oss\",\"attention_bias\":true,\"head_dim\":64,\"hidden_act\":\"silu\","            \
    "\"hidden_size\":2880,\"initial_context_length\":4096,\"intermediate_size\":2880,"                       \
    "\"max_position_embeddings\":131072,\"num_attention_heads\":64,\"num_experts_per_tok\":4,"               \
    "\"num_hidden_layers\":24,\"num_key_value_heads\":8,\"num_local_experts\":32,\"rms_norm_eps\":1e-05,"    \
    "\"rope_theta\":150000,\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,"       \
    "\"vocab_size\":201088,\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":"  \
    "[\"model.layers.*.self_attn\",\"model.layers.*.mlp.router\"]}"
#define YARN                                                                                                 \
    "\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"                                \
    "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\""
#define QWEN35                                                                                               \
    "\"model_type\":\"qwen3_5_moe\",\"tie_word_embeddings\":false,\"text_config\":{"                         \
    "\"model_type\":\"qwen3_5_moe_text\",\"full_attention_interval\":4,\"head_dim\":256,"                    \
    "\"hidden_act\":\"silu\",\"hidden_size\":2048,\"linear_conv_kernel_dim\":4,"                             \
    "\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,"                 \
    "\"linear_value_head_dim\":128,\"max_position_embeddings\":262144,\"moe_intermediate_size\":512,"        \
    "\"mtp_num_hidden_layers\":1,\"num_attention_heads\":16,\"num_experts\":256,"                            \
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":40,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,"   \
    "\"rope_parameters\":{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],"                          \
    "\"partial_rotary_factor\":0.25,\"rope_theta\":10000000,\"rope_type\":\"default\"},"                     \
    "\"shared_expert_intermediate_size\":512,\"vocab_size\":248320}"
#define NEXT                                                                                                 \
    "\"model_type\":\"qwen3_next\",\"decoder_sparse_step\":1,\"full_attention_interval\":4,"                 \
    "\"head_dim\":256,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":5120,"              \
    "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,"                  \
    "\"linear_num_value_heads\":32,\"linear_value_head_dim\":128,\"max_position_embeddings\":262144,"        \
    "\"moe_intermediate_size\":512,\"norm_topk_prob\":true,\"num_attention_heads\":16,"                      \
    "\"num_experts\":512,\"num_experts_per_tok\":10,\"num_hidden_layers\":48,\"num_key_value_heads\":2,"     \
    "\"partial_rotary_factor\":0.25,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":10000000,"   \
    "\"shared_expert_intermediate_size\":512,\"tie_word_embeddings\":false,\"vocab_size\":151936"
#define GLM                                                                                                  \
    "\"model_type\":\"glm4_moe\",\"attention_bias\":true,\"first_k_dense_replace\":1,\"head_dim\":128,"      \
    "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":10944,"                              \
    "\"max_position_embeddings\":131072,\"moe_intermediate_size\":1408,\"n_group\":1,"                       \
    "\"n_routed_experts\":128,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":96,"    \
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":46,\"num_key_value_heads\":8,"                          \
    "\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":0.5,\"rms_norm_eps\":1e-05,"                   \
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"tie_word_embeddings\":false,\"topk_group\":1,"           \
    "\"vocab_size\":151552"
#define MINIMAX                                                                                              \
    "\"model_type\":\"minimax_m2\",\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":3072,"           \
    "\"intermediate_size\":1536,\"max_position_embeddings\":196608,\"mtp_transformer_layers\":1,"            \
    "\"num_attention_heads\":48,\"num_experts_per_tok\":8,\"num_hidden_layers\":62,"                         \
    "\"num_key_value_heads\":8,\"num_local_experts\":256,\"num_mtp_modules\":3,\"rms_norm_eps\":1e-06,"      \
    "\"rope_theta\":5000000,\"rotary_dim\":64,\"scoring_func\":\"sigmoid\",\"shared_intermediate_size\":0,"  \
    "\"tie_word_embeddings\":false,\"use_qk_norm\":true,\"vocab_size\":200064"
#define ERNIE                                                                                                \
    "\"model_type\":\"ernie4_5_moe\",\"hidden_act\":\"silu\",\"hidden_size\":2560,"                          \
    "\"intermediate_size\":12288,\"max_position_embeddings\":131072,\"moe_capacity\":[64,64,64],"            \
    "\"moe_gate\":\"topk\",\"moe_intermediate_size\":1536,\"moe_k\":6,\"moe_layer_end_index\":27,"           \
    "\"moe_layer_interval\":1,\"moe_layer_start_index\":1,\"moe_num_experts\":64,"                           \
    "\"moe_num_shared_experts\":2,\"moe_use_aux_free\":true,\"num_attention_heads\":20,"                     \
    "\"num_hidden_layers\":28,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"       \
    "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"use_bias\":false,\"vocab_size\":103424"
#define HUNYUAN                                                                                              \
    "\"model_type\":\"hunyuan_v1_moe\",\"attention_head_dim\":128,\"hidden_act\":\"silu\","                  \
    "\"hidden_size\":4096,\"intermediate_size\":3072,\"max_position_embeddings\":32768,"                     \
    "\"moe_intermediate_size\":[3072,3072],\"moe_topk\":[8,8],\"num_attention_heads\":32,"                   \
    "\"num_experts\":64,\"num_hidden_layers\":2,\"num_key_value_heads\":8,\"num_shared_expert\":[1,1],"      \
    "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,\"use_qk_norm\":true,"       \
    "\"use_mixed_mlp_moe\":true,\"vocab_size\":128167,\"rope_scaling\":{\"alpha\":1000.0,"                   \
    "\"beta_fast\":32,\"beta_slow\":1,\"factor\":1.0,\"mscale\":1.0,\"mscale_all_dim\":0.0,"                 \
    "\"type\":\"dynamic\"}"

#define GRANITE_H                                                                                            \
    "\"model_type\":\"granitemoehybrid\",\"attention_multiplier\":0.0078125,\"embedding_multiplier\":12,"    \
    "\"hidden_act\":\"silu\",\"hidden_size\":1536,\"intermediate_size\":512,"                                \
    "\"layer_types\":[\"mamba\",\"mamba\",\"attention\",\"mamba\"],\"logits_scaling\":6,"                    \
    "\"mamba_chunk_size\":256,\"mamba_conv_bias\":true,\"mamba_d_conv\":4,\"mamba_d_head\":64,"              \
    "\"mamba_d_state\":128,\"mamba_expand\":2,\"mamba_n_groups\":1,\"mamba_n_heads\":48,"                    \
    "\"max_position_embeddings\":131072,\"num_attention_heads\":12,\"num_experts_per_tok\":6,"               \
    "\"num_hidden_layers\":4,\"num_key_value_heads\":4,\"position_embedding_type\":\"nope\","                \
    "\"residual_multiplier\":0.22,\"rms_norm_eps\":1e-05,\"rope_theta\":10000,"                              \
    "\"shared_intermediate_size\":1024,\"tie_word_embeddings\":true,\"vocab_size\":100352"
#define NEMOTRON                                                                                             \
    "\"model_type\":\"nemotron_h\",\"chunk_size\":128,\"conv_kernel\":4,\"head_dim\":128,"                   \
    "\"hidden_size\":2688,\"intermediate_size\":1856,\"layer_norm_epsilon\":1e-05,"                          \
    "\"mamba_head_dim\":64,\"mamba_hidden_act\":\"silu\",\"mamba_num_heads\":64,"                            \
    "\"mamba_proj_bias\":false,\"max_position_embeddings\":262144,\"mlp_hidden_act\":\"relu2\","             \
    "\"moe_intermediate_size\":1856,\"moe_shared_expert_intermediate_size\":3712,\"n_group\":1,"             \
    "\"n_groups\":8,\"n_routed_experts\":128,\"n_shared_experts\":1,\"norm_topk_prob\":true,"                \
    "\"num_attention_heads\":32,\"num_experts_per_tok\":6,\"num_hidden_layers\":6,"                          \
    "\"num_key_value_heads\":2,\"routed_scaling_factor\":2.5,\"ssm_state_size\":128,"                        \
    "\"tie_word_embeddings\":false,\"topk_group\":1,\"use_bias\":false,\"use_conv_bias\":true,"              \
    "\"vocab_size\":131072"

static int read_text(const char *text, sl_config *config, sl_error *error) {
    sl_source *source;
    json_error_t where;
    json_t *json = json_loads(text, 0, &where);
    if (!json) {
        fail_msg("%s at %d", where.text, where.position);
    }
    write_config(FOLDER, json);
    json_decref(json);
    write_text_file(FOLDER, "tokenizer.json", "{}"); /* a folder without weights opens with that */
    assert_int_equal(sl_source_open(FOLDER, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

static const sl_config *must_read(const char *text) {
    static sl_config config;
    sl_error error;
    if (read_text(text, &config, &error)) {
        fail_msg("%s", error.message);
    }
    return &config;
}

static bool dense_are(const sl_config *c, int32_t leading) {
    bool are = true;
    for (int32_t layer = 0; layer < c->layers; layer++) {
        are &= c->dense[layer] == (layer < leading);
    }
    return are;
}

static void gpt_oss(void **state) {
    (void)state;
    const sl_config *c = must_read("{" GPT_OSS "," YARN ",\"truncate\":false}}");
    assert_true(c->experts == 32 && c->experts_used == 4 && c->expert_width == 2880 && c->shared_width == 0);
    assert_true(c->normalise && c->router == SL_ROUTER_SOFTMAX && c->expert_scale == 1);
    assert_true(c->query_bias && c->output_bias && !c->mlp_bias && !c->query_norm);
    assert_int_equal(c->activation, SL_ACTIVATION_SWIGLU_OAI);
    assert_true(c->swiglu_alpha == 1.702 && c->swiglu_limit == 7);
    assert_int_equal(c->window, 128);
    for (int32_t layer = 0; layer < 24; layer++) {
        assert_int_equal(c->kinds[layer], layer % 2 ? SL_LAYER_FULL : SL_LAYER_WINDOW);
    }
    assert_true(c->rope_dims == 64 && c->rope.exact && c->local_rope.exact);
    /* a key that is not there is false in this family; in both formats */
    assert_true(must_read("{" GPT_OSS "," YARN "}}")->rope.exact);
    assert_false(must_read("{" GPT_OSS "," YARN ",\"truncate\":true}}")->rope.exact);
    assert_float_equal(must_read("{" GPT_OSS ",\"swiglu_alpha\":1.5}")->swiglu_alpha, 1.5, 0);
}

/* _compute_yarn_parameters of transformers, worked out in double for the numbers of gpt-oss. */
static void the_ends_of_yarns_ramp_may_be_fractions(void **state) {
    (void)state;
    static const int pairs[] = {0, 8, 9, 12, 17, 18, 31};
    static const double exact[] = {1.0,
                                   0.050813274815461475,
                                   0.03170569618466377,
                                   0.006794959489732219,
                                   0.00012931870124506317,
                                   3.8308812373753384e-05,
                                   3.0235114281192144e-07},
                        rounded[] = {1.0,
                                     0.050813274815461475,
                                     0.031620752275346484,
                                     0.007015713910504388,
                                     0.0002279477957951252,
                                     3.8308812373753384e-05,
                                     3.0235114281192144e-07};
    float frequencies[32];
    const sl_config *c = must_read("{" GPT_OSS "," YARN ",\"truncate\":false}}");
    sl_rope_frequencies(&c->rope, 64, frequencies);
    assert_float_equal(sl_rope_magnitude(&c->rope), 1.3465735902799727, 1e-6);
    for (int i = 0; i < 7; i++) {
        assert_float_equal(frequencies[pairs[i]] / exact[i], 1, 1e-6);
    }
    c = must_read("{" GPT_OSS "," YARN ",\"truncate\":true}}");
    sl_rope_frequencies(&c->rope, 64, frequencies);
    for (int i = 0; i < 7; i++) {
        assert_float_equal(frequencies[pairs[i]] / rounded[i], 1, 1e-6);
    }
}

static void qwen(void **state) {
    (void)state;
    const sl_config *c = must_read("{" QWEN35 "}");
    assert_string_equal(c->family->name, "qwen3_5_moe");
    assert_true(c->experts == 256 && c->experts_used == 8 && c->expert_width == 512);
    assert_true(c->shared_width == 512 && c->normalise && dense_are(c, 0));
    assert_true(c->rope_dims == 64 && c->delta_value_heads == 32 && !c->delta_tiled);
    assert_true(c->kinds[2] == SL_LAYER_DELTA && c->kinds[3] == SL_LAYER_FULL);
    c = must_read("{" NEXT "}");
    assert_string_equal(c->family->name, "qwen3_next");
    assert_true(c->experts == 512 && c->experts_used == 10 && c->shared_width == 512 && dense_are(c, 0));
    assert_true(c->rope_dims == 64 && c->normalise);
    assert_false(must_read("{" NEXT ",\"norm_topk_prob\":false}")->normalise);
    c = must_read("{" NEXT ",\"mlp_only_layers\":[0,1]}");
    assert_true(dense_are(c, 2) && c->feed_forward == 5120);
    c = must_read("{" NEXT ",\"decoder_sparse_step\":2}");
    assert_true(c->dense[0] && !c->dense[1] && c->dense[2]);
}

static void mamba(void **state) {
    (void)state;
    const sl_config *c = must_read("{" GRANITE_H ",\"num_local_experts\":62}");
    assert_true(c->experts == 62 && c->experts_used == 6 && c->expert_width == 512 &&
                c->shared_width == 1024);
    assert_true(c->delta_key_heads == 1 && c->delta_value_heads == 48 && c->delta_key_size == 128);
    assert_true(c->delta_value_size == 64 && c->delta_taps == 4 && c->ssm_conv_bias && c->ssm_norm);
    assert_true(c->kinds[1] == SL_LAYER_SSM && c->kinds[2] == SL_LAYER_FULL && c->no_rope[2]);
    assert_true(c->normalise && c->branch_factor == 0.22 && c->step_least == 0 && isinf(c->step_most));
    c = must_read("{" GRANITE_H
                  ",\"num_local_experts\":0,\"time_step_limit\":[0.001,{\"__float__\":\"Infinity\"}]}");
    assert_true(c->experts == 0 && c->experts_used == 0 && c->feed_forward == 1024 && c->shared_width == 0);
    assert_true(c->step_least == 0.001 && isinf(c->step_most));
    c = must_read("{" GRANITE_H ",\"num_local_experts\":0,\"mamba_conv_bias\":false}");
    assert_false(c->ssm_conv_bias);

    c = must_read("{" NEMOTRON ",\"hybrid_override_pattern\":\"MEM*-E\",\"time_step_limit\":[0.0,1e39]}");
    static const uint8_t kinds[] = {SL_LAYER_SSM,  SL_LAYER_FEED_FORWARD, SL_LAYER_SSM,
                                    SL_LAYER_FULL, SL_LAYER_FEED_FORWARD, SL_LAYER_FEED_FORWARD};
    assert_string_equal(c->family->name, "nemotron_h_moe");
    assert_memory_equal(c->kinds, kinds, 6);
    assert_true(c->dense[4] && !c->dense[1] && !c->dense[5] && isinf(c->step_most) && c->no_rope[3]);
    assert_true(c->experts == 128 && c->expert_width == 1856 && c->shared_width == 3712 &&
                c->latent_width == 0);
    assert_true(c->router == SL_ROUTER_SIGMOID && c->expert_scale == 2.5 && c->delta_key_heads == 8);
    assert_true(c->activation == SL_ACTIVATION_RELU_SQUARED && c->epsilon == 1e-5);
    assert_true(!sl_config_has_feed_forward(c, 0) && sl_config_has_feed_forward(c, 1));
    /* transformers 5: words, and layers that nobody else counts; without experts another row of facts */
    c = must_read("{" NEMOTRON
                  ",\"layers_block_type\":[\"linear_attention\",\"moe\",\"full_attention\",\"mlp\","
                  "\"mamba\",\"moe\"],\"moe_latent_size\":1024}");
    assert_true(c->kinds[0] == SL_LAYER_SSM && c->kinds[2] == SL_LAYER_FULL && c->dense[3] && !c->dense[5]);
    assert_int_equal(c->latent_width, 1024);
    c = must_read("{" NEMOTRON ",\"hybrid_override_pattern\":\"M-M*--\"}");
    assert_string_equal(c->family->name, "nemotron_h");
    assert_true(c->experts == 0 && c->feed_forward == 1856 && c->kinds[1] == SL_LAYER_FEED_FORWARD);
}

static void rows_of_facts(void **state) {
    (void)state;
    const sl_config *c = must_read("{" GLM "}");
    assert_true(c->experts == 128 && c->experts_used == 8 && c->expert_width == 1408);
    assert_true(c->shared_width == 1408 && c->normalise && c->router == SL_ROUTER_SIGMOID);
    assert_true(dense_are(c, 1) && c->layers == 46 && c->expert_groups == 1 && c->expert_groups_used == 1);
    assert_true(c->query_bias && !c->output_bias && !c->query_norm && c->rope_dims == 64);
    assert_true(must_read("{" GLM ",\"use_qk_norm\":true}")->query_norm);
    assert_float_equal(must_read("{" GLM ",\"routed_scaling_factor\":2.5}")->expert_scale, 2.5, 0);
    assert_int_equal(must_read("{" GLM ",\"n_shared_experts\":2}")->shared_width, 2816);
    c = must_read("{" GLM ",\"n_group\":8,\"topk_group\":4}");
    assert_true(c->expert_groups == 8 && c->expert_groups_used == 4);

    c = must_read("{" MINIMAX "}");
    assert_true(c->experts == 256 && c->expert_width == 1536 && c->shared_width == 0 && c->query_norm);
    assert_true(c->rope_dims == 64 && c->router == SL_ROUTER_SIGMOID && c->normalise && !c->query_bias);

    c = must_read("{" ERNIE "}");
    assert_true(c->experts == 64 && c->experts_used == 6 && c->expert_width == 1536 && c->tied);
    assert_true(c->shared_width == 3072 && dense_are(c, 1) && c->rope_layout == SL_ROPE_PAIRS);
    assert_true(c->router == SL_ROUTER_SOFTMAX && c->router_least_sum == 1e-12 && c->normalise);
    c = must_read("{" ERNIE ",\"moe_layer_interval\":2,\"moe_layer_end_index\":4}");
    assert_true(c->dense[0] && !c->dense[1] && c->dense[2] && !c->dense[3] && c->dense[4] && c->dense[5]);
    assert_true(dense_are(must_read("{" ERNIE ",\"moe_layer_end_index\":-1}"), 1));

    c = must_read("{" HUNYUAN "}");
    assert_true(c->experts == 64 && c->experts_used == 8 && c->expert_width == 3072);
    assert_true(c->shared_width == 3072 && c->normalise && c->query_norm && c->head_size == 128);
    assert_float_equal(c->rope.base, 10000 * pow(1000, 128.0 / 126), 1e-3);
}

static void config_json_is_not_believed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *message;
    } refused[] = {
        {"{" GLM ",\"n_group\":7,\"topk_group\":1}", SL_ERR_INVALID, "n_group is 7: must divide"},
        {"{" GLM ",\"n_group\":128,\"topk_group\":8}", SL_ERR_INVALID, "n_group is 128: must divide"},
        {"{" GLM ",\"n_group\":8,\"topk_group\":9}", SL_ERR_INVALID, "topk_group is 9: must be 1 to"},
        {"{" GLM ",\"n_group\":32,\"topk_group\":1}", SL_ERR_INVALID, "topk_group is 1: must be 1 to"},
        {"{" MINIMAX ",\"n_group\":8,\"topk_group\":4}", SL_ERR_UNSUPPORTED, "n_group is 8: grouped experts"},
        {"{" MINIMAX ",\"n_shared_experts\":1}", SL_ERR_UNSUPPORTED, "shared experts are not supported"},
        {"{" GLM ",\"routed_scaling_factor\":-1}", SL_ERR_INVALID, "routed_scaling_factor is -1"},
        {"{" GLM ",\"first_k_dense_replace\":-1}", SL_ERR_FORMAT, "first_k_dense_replace"},
        {"{" GLM ",\"intermediate_size\":0}", SL_ERR_INVALID, "there are layers without experts"},
        {"{" ERNIE ",\"moe_layer_interval\":0}", SL_ERR_INVALID, "moe_layer_interval is 0, must be 1"},
        {"{" ERNIE ",\"use_bias\":true}", SL_ERR_UNSUPPORTED, "biases of fused projections, and of experts"},
        {"{" HUNYUAN ",\"moe_topk\":[8,4]}", SL_ERR_UNSUPPORTED, "moe_topk is a list of other than equal"},
        {"{" HUNYUAN ",\"num_experts\":[64,\"x\"]}", SL_ERR_UNSUPPORTED, "num_experts is a list"},
        {"{" GRANITE_H ",\"num_local_experts\":0,\"mamba_n_groups\":2}", SL_ERR_UNSUPPORTED,
         "more than one group of Mamba2"},
        {"{" GRANITE_H ",\"num_local_experts\":0,\"mamba_n_groups\":5}", SL_ERR_INVALID,
         "must be a multiple of the key heads, or groups"},
        {"{" GRANITE_H ",\"num_local_experts\":0,\"mamba_d_state\":0}", SL_ERR_INVALID, "Mamba2 layers need"},
        {"{" GRANITE_H ",\"mamba_proj_bias\":true}", SL_ERR_UNSUPPORTED, "biases of Mamba2's projections"},
        {"{" GRANITE_H ",\"num_local_experts\":0,\"time_step_limit\":[0.5,0.1]}", SL_ERR_INVALID,
         "time_step_limit must be two rising numbers"},
        {"{" GRANITE_H ",\"num_local_experts\":0,\"time_step_limit\":[0.5]}", SL_ERR_FORMAT,
         "time_step_limit must be an array of two numbers"},
        {"{" NEMOTRON ",\"hybrid_override_pattern\":\"MEM*-X\"}", SL_ERR_UNSUPPORTED, "has \"X\""},
        {"{" NEMOTRON ",\"hybrid_override_pattern\":\"MEM*\"}", SL_ERR_INVALID,
         "must have num_hidden_layers (6)"},
        {"{" NEMOTRON ",\"hybrid_override_pattern\":\"M-MM--\"}", SL_ERR_UNSUPPORTED, "no layer attends"},
        {"{" NEMOTRON ",\"mamba_hidden_act\":\"relu\"}", SL_ERR_UNSUPPORTED,
         "only silu is supported in Mamba2"},
        {"{" GPT_OSS ",\"moe_latent_size\":64}", SL_ERR_UNSUPPORTED, "experts of another width"},
        {"{" GPT_OSS ",\"layer_types\":[\"moe\"],\"num_hidden_layers\":1}", SL_ERR_UNSUPPORTED,
         "no layer attends"},
        {"{" GPT_OSS ",\"swiglu_limit\":-7}", SL_ERR_INVALID, "swiglu_limit is -7"},
        {"{" GPT_OSS ",\"num_experts_per_tok\":33}", SL_ERR_INVALID, "num_experts_per_tok is 33"},
        {"{" GPT_OSS ",\"intermediate_size\":0}", SL_ERR_INVALID, "must be at least 1: there are experts"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        static sl_config config;
        sl_error error = {0};
        const int code = read_text(refused[i].text, &config, &error);
        if (code != refused[i].code || !strstr(error.message, refused[i].message)) {
            print_error("%s...: %d %s\n", refused[i].message, code, error.message);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- GGUF headers, as llama.cpp's converters write them ---- */

typedef struct number {
    const char *key;
    double value; /* with a fraction: F32, else U32 */
} number;

static const number GPT_OSS_GGUF[] = {{"block_count", 24},
                                      {"context_length", 131072},
                                      {"embedding_length", 2880},
                                      {"feed_forward_length", 2880},
                                      {"attention.head_count", 64},
                                      {"attention.head_count_kv", 8},
                                      {"attention.key_length", 64},
                                      {"attention.value_length", 64},
                                      {"attention.layer_norm_rms_epsilon", 1e-5},
                                      {"attention.sliding_window", 128},
                                      {"expert_count", 32},
                                      {"expert_used_count", 4},
                                      {"expert_feed_forward_length", 2880},
                                      {"rope.freq_base", 150000.5},
                                      {"rope.scaling.factor", 32.5},
                                      {"rope.scaling.original_context_length", 4096},
                                      {"vocab_size", 201088},
                                      {NULL, 0}};
static const number GLM_GGUF[] = {{"block_count", 47},
                                  {"nextn_predict_layers", 1},
                                  {"context_length", 131072},
                                  {"embedding_length", 4096},
                                  {"feed_forward_length", 10944},
                                  {"attention.head_count", 96},
                                  {"attention.head_count_kv", 8},
                                  {"attention.key_length", 128},
                                  {"attention.value_length", 128},
                                  {"attention.layer_norm_rms_epsilon", 1e-5},
                                  {"rope.dimension_count", 64},
                                  {"expert_count", 128},
                                  {"expert_used_count", 8},
                                  {"expert_shared_count", 1},
                                  {"expert_feed_forward_length", 1408},
                                  {"leading_dense_block_count", 1},
                                  {"expert_weights_scale", 2.5},
                                  {"vocab_size", 151552},
                                  {NULL, 0}};

static int read_gguf(const char *architecture, const number *numbers, const number *change, sl_config *config,
                     sl_error *error) {
    static const char path[] = SLUICE_BINARY_DIR "/test_config_experts.gguf";
    sl_gguf_writer *writer;
    sl_source *source;
    assert_int_equal(sl_gguf_writer_create(path, &writer, error), 0);
    sl_gguf_writer_string(writer, "general.architecture", sl_view_of(architecture), error);
    if (strcmp(architecture, "gpt-oss") == 0) {
        sl_gguf_writer_string(writer, "gpt-oss.rope.scaling.type", sl_view_of("yarn"), error);
    }
    for (bool last = false; !last; numbers++) {
        last = !numbers->key;
        const number *n = last ? change : numbers;
        char key[128];
        if (!n || (!last && change && strcmp(change->key, n->key) == 0)) {
            continue;
        }
        snprintf(key, sizeof key, "%s.%s", architecture, n->key);
        assert_int_equal(n->value == floor(n->value)
                             ? sl_gguf_writer_unsigned(writer, key, SL_GGUF_U32, (uint64_t)n->value, error)
                             : sl_gguf_writer_float(writer, key, SL_GGUF_F32, n->value, error),
                         0);
    }
    assert_int_equal(sl_gguf_writer_begin(writer, NULL, error), 0);
    assert_int_equal(sl_gguf_writer_finish(writer, error), 0);
    sl_gguf_writer_free(writer);
    assert_int_equal(sl_source_open(path, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

static void gguf_says_the_same(void **state) {
    (void)state;
    static sl_config c;
    sl_error error;
    if (read_gguf("gpt-oss", GPT_OSS_GGUF, NULL, &c, &error)) {
        fail_msg("%s", error.message);
    }
    assert_true(c.experts == 32 && c.expert_width == 2880 && c.normalise && c.rope.exact);
    assert_int_equal(c.activation, SL_ACTIVATION_SWIGLU_OAI);
    assert_true(c.swiglu_alpha == 1.702 && c.swiglu_limit == 7 && c.window == 128);
    assert_true(c.kinds[0] == SL_LAYER_WINDOW && c.kinds[1] == SL_LAYER_FULL && c.kinds[23] == SL_LAYER_FULL);
    assert_true(c.rope.scaling == SL_ROPE_SCALING_YARN && c.rope.original_context == 4096);
    if (read_gguf("glm4moe", GLM_GGUF, NULL, &c, &error)) {
        fail_msg("%s", error.message);
    }
    assert_true(c.layers == 46 && dense_are(&c, 1) && c.shared_width == 1408 && c.rope_dims == 64);
    assert_true(c.router == SL_ROUTER_SIGMOID && c.normalise && c.expert_scale == 2.5 && !c.query_norm);
    assert_int_equal(read_gguf("glm4moe", GLM_GGUF, &(number){"expert_gating_func", 1}, &c, &error), 0);
    assert_int_equal(c.router, SL_ROUTER_SOFTMAX);
}

static void gguf_metadata_is_not_believed(void **state) {
    (void)state;
    static const struct {
        number change;
        int code;
        const char *message;
    } refused[] = {
        {{"expert_gating_func", 4}, SL_ERR_UNSUPPORTED, "glm4moe.expert_gating_func is 4: only 1 (softmax)"},
        {{"expert_group_count", 7}, SL_ERR_INVALID, "glm4moe.expert_group_count is 7: must divide"},
        {{"leading_dense_block_count", 5000}, SL_ERR_INVALID, "leading_dense_block_count is 5000"},
        {{"expert_shared_count", 257}, SL_ERR_INVALID, "expert_shared_count is 257"},
        {{"nextn_predict_layers", 47}, SL_ERR_INVALID, "must exceed nextn_predict_layers (47)"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        static sl_config c;
        sl_error error = {0};
        assert_int_equal(read_gguf("glm4moe", GLM_GGUF, &refused[i].change, &c, &error), refused[i].code);
        assert_non_null(strstr(error.message, refused[i].message));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt_oss),
        cmocka_unit_test(the_ends_of_yarns_ramp_may_be_fractions),
        cmocka_unit_test(qwen),
        cmocka_unit_test(mamba),
        cmocka_unit_test(rows_of_facts),
        cmocka_unit_test(config_json_is_not_believed),
        cmocka_unit_test(gguf_says_the_same),
        cmocka_unit_test(gguf_metadata_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
