/* Latent attention: what published files say, in both formats, the rules of the keys, and files that were
 * made before llama.cpp split the matrix of keys and values. */
#include "unit/model/support.h"

#include "format/gguf_writer.h"
#include "model/files.h"

#include <math.h>

#define FOLDER SLUICE_BINARY_DIR "/test_config_latent_model"

#define LITE                                                                                                 \
    "\"model_type\":\"deepseek_v2\",\"attention_bias\":false,\"aux_loss_alpha\":0.001,"                      \
    "\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":10944,"  \
    "\"kv_lora_rank\":512,\"max_position_embeddings\":163840,\"moe_intermediate_size\":1408,"                \
    "\"moe_layer_freq\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,\"norm_topk_prob\":false,"          \
    "\"num_attention_heads\":16,\"num_experts_per_tok\":6,\"num_hidden_layers\":27,"                         \
    "\"num_key_value_heads\":16,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,"    \
    "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":0.707,"                     \
    "\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},"                 \
    "\"rope_theta\":10000,\"routed_scaling_factor\":1.0,\"scoring_func\":\"softmax\","                       \
    "\"tie_word_embeddings\":false,\"v_head_dim\":128,\"vocab_size\":102400"
#define GREEDY ",\"q_lora_rank\":null,\"n_group\":1,\"topk_group\":1,\"topk_method\":\"greedy\""
#define V3                                                                                                   \
    "\"model_type\":\"deepseek_v3\",\"attention_bias\":false,\"first_k_dense_replace\":3,"                   \
    "\"hidden_act\":\"silu\",\"hidden_size\":7168,\"intermediate_size\":18432,\"kv_lora_rank\":512,"         \
    "\"max_position_embeddings\":163840,\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,"                \
    "\"n_group\":8,\"n_routed_experts\":256,\"n_shared_experts\":1,\"norm_topk_prob\":true,"                 \
    "\"num_attention_heads\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":61,"                        \
    "\"num_key_value_heads\":128,\"num_nextn_predict_layers\":1,\"q_lora_rank\":1536,"                       \
    "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,"                               \
    "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"                       \
    "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},"                   \
    "\"rope_theta\":10000,\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\","                       \
    "\"tie_word_embeddings\":false,\"topk_group\":4,\"topk_method\":\"noaux_tc\",\"v_head_dim\":128,"        \
    "\"vocab_size\":129280"

#define FLASH                                                                                                \
    "\"model_type\":\"glm4_moe_lite\",\"attention_bias\":false,\"hidden_act\":\"silu\","                     \
    "\"hidden_size\":2048,\"intermediate_size\":10240,\"kv_lora_rank\":512,"                                 \
    "\"max_position_embeddings\":202752,\"moe_intermediate_size\":1536,\"n_group\":1,"                       \
    "\"n_routed_experts\":64,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":20,"     \
    "\"num_experts_per_tok\":4,\"num_hidden_layers\":3,\"num_key_value_heads\":20,"                          \
    "\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":1.0,\"q_lora_rank\":768,"                      \
    "\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"         \
    "\"rope_theta\":1000000,\"routed_scaling_factor\":1.8,\"tie_word_embeddings\":false,"                    \
    "\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"v_head_dim\":256,\"vocab_size\":154880"

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

/* Without a rank of queries, experts chosen of all; the larger V2 has both. */
static void deepseek_v2(void **state) {
    (void)state;
    const sl_config *c = must_read("{" LITE GREEDY "}");
    assert_true(c->latent == 512 && c->query_rank == 0 && c->head_size == 192 && c->rope_dims == 64);
    assert_true(c->value_size == 128 && c->kv_heads == 1 && c->heads == 16 && c->latent_joined);
    assert_true(c->experts == 64 && c->experts_used == 6 && c->shared_width == 2816 && c->dense[0]);
    assert_true(c->router == SL_ROUTER_SOFTMAX && !c->normalise && !c->choosing_bias && !c->dense[1]);
    assert_true(c->expert_groups == 1 && c->expert_scale == 1);
    assert_int_equal(c->rope_layout, SL_ROPE_PAIRS);
    const double magnitude = 0.1 * 0.707 * log(40) + 1;
    assert_float_equal(c->attention_scale, magnitude * magnitude / sqrt(192), 1e-12);
    assert_float_equal(sl_rope_magnitude(&c->rope), 1, 1e-7);
    c = must_read("{" LITE ",\"q_lora_rank\":1536,\"n_group\":8,\"topk_group\":3,"
                  "\"topk_method\":\"group_limited_greedy\"}");
    assert_true(c->query_rank == 1536 && c->expert_groups == 8 && c->expert_groups_used == 3);
    assert_true(c->group_by_best);
    /* groups that are not asked for */
    c = must_read("{" LITE
                  ",\"q_lora_rank\":1536,\"n_group\":8,\"topk_group\":3,\"topk_method\":\"greedy\"}");
    assert_int_equal(c->expert_groups, 1);
}

static void deepseek_v3(void **state) {
    (void)state;
    const sl_config *c = must_read("{" V3 "}");
    assert_true(c->latent == 512 && c->query_rank == 1536 && c->head_size == 192 && c->value_size == 128);
    assert_true(c->layers == 61 && c->dense[2] && !c->dense[3] && c->shared_width == 2048);
    assert_true(c->router == SL_ROUTER_SIGMOID && c->normalise && c->choosing_bias && c->expert_scale == 2.5);
    assert_true(c->expert_groups == 8 && c->expert_groups_used == 4 && !c->group_by_best);
    const double magnitude = 0.1 * log(40) + 1;
    assert_float_equal(c->attention_scale, magnitude * magnitude / sqrt(192), 1e-12);
    assert_float_equal(c->latent_epsilon, 1e-6, 0);
    /* whatever the config says of the other norms; and another spelling of the family */
    assert_float_equal(must_read("{" V3 ",\"rms_norm_eps\":1e-05}")->latent_epsilon, 1e-6, 0);
    assert_int_equal(must_read("{" V3 ",\"model_type\":\"kimi_k2\"}")->latent, 512);
}

/* Values wider than the part of keys that does not turn; no YaRN. Dense layers are the first one, or are
 * listed. */
static void glm4_moe_lite(void **state) {
    (void)state;
    const sl_config *c = must_read("{" FLASH "}");
    assert_true(c->latent == 512 && c->query_rank == 768 && c->head_size == 256 && c->value_size == 256);
    assert_true(c->router == SL_ROUTER_SIGMOID && c->choosing_bias && c->normalise && c->expert_scale == 1.8);
    assert_true(c->dense[0] && !c->dense[1] && !c->dense[2] && c->expert_groups == 1);
    assert_true(c->epsilon == 1e-5 && c->latent_epsilon == 1e-6 && c->rope.base == 1e6);
    assert_float_equal(c->attention_scale, 1.0 / 16, 1e-12);
    c = must_read("{" FLASH ",\"first_k_dense_replace\":2}");
    assert_true(c->dense[0] && c->dense[1] && !c->dense[2]);
    c = must_read("{" FLASH ",\"first_k_dense_replace\":2,"
                  "\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}");
    assert_true(!c->dense[0] && c->dense[1] && !c->dense[2]);
}

/* Queries that grow with the position, also inside a model with eyes. */
static void mistral4(void **state) {
    (void)state;
#define SMALL4                                                                                               \
    "\"model_type\":\"mistral4\",\"attention_bias\":false,\"first_k_dense_replace\":0,"                      \
    "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":12288,\"kv_lora_rank\":256,"         \
    "\"max_position_embeddings\":1048576,\"moe_intermediate_size\":2048,\"n_group\":1,"                      \
    "\"n_routed_experts\":128,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":32,"    \
    "\"num_experts_per_tok\":4,\"num_hidden_layers\":36,\"num_key_value_heads\":32,\"q_lora_rank\":1024,"    \
    "\"qk_nope_head_dim\":64,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,\"rope_interleave\":true,"       \
    "\"rope_parameters\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":128.0,"                            \
    "\"llama_4_scaling_beta\":0.1,\"mscale\":1.0,\"mscale_all_dim\":1.0,"                                    \
    "\"original_max_position_embeddings\":8192,\"partial_rotary_factor\":0.5,\"rope_theta\":10000.0,"        \
    "\"rope_type\":\"yarn\",\"type\":\"yarn\"},\"routed_scaling_factor\":1.0,"                               \
    "\"tie_word_embeddings\":false,\"topk_group\":1,\"v_head_dim\":128,\"vocab_size\":131072"
    static const char *const texts[] = {"{" SMALL4 "}",
                                        "{\"model_type\":\"mistral3\",\"text_config\":{" SMALL4 "}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const sl_config *c = must_read(texts[i]);
        assert_true(c->latent == 256 && c->query_rank == 1024 && c->head_size == 128 && c->rope_dims == 64);
        assert_true(c->value_size == 128 && c->kv_heads == 1 && !c->dense[0] && c->shared_width == 2048);
        assert_true(c->router == SL_ROUTER_SOFTMAX && c->normalise && !c->choosing_bias);
        assert_true(c->temperature_scale == 0.1 && c->temperature_length == 8192);
        const double magnitude = 0.1 * log(128) + 1;
        assert_float_equal(c->attention_scale, magnitude * magnitude / sqrt(128), 1e-12);
        assert_float_equal(sl_rope_magnitude(&c->rope), 1, 1e-7);
    }
}

static void config_json_is_not_believed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *message;
    } refused[] = {
        {"{" V3 ",\"kv_lora_rank\":0}", SL_ERR_INVALID, "kv_lora_rank is 0: must be at least 1"},
        {"{" V3 ",\"v_head_dim\":0}", SL_ERR_INVALID, "kv_lora_rank is 512: must be at least 1, with a size"},
        {"{" V3 ",\"kv_lora_rank\":5000}", SL_ERR_INVALID, "kv_lora_rank is 5000"},
        {"{" V3 ",\"qk_nope_head_dim\":0}", SL_ERR_INVALID,
         "rope.dimension_count is 64: must leave elements"},
        {"{" V3 ",\"qk_rope_head_dim\":63}", SL_ERR_INVALID, "rope.dimension_count is 63: must be even"},
        {"{" V3 ",\"rope_interleave\":false}", SL_ERR_UNSUPPORTED, "rope_interleave: RoPE of halves"},
        {"{" V3 ",\"attention_bias\":true}", SL_ERR_UNSUPPORTED, "biases of the projections of latent"},
        {"{" LITE ",\"topk_method\":\"noaux_tc\"}", SL_ERR_UNSUPPORTED, "topk_method is \"noaux_tc\""},
        {"{" LITE ",\"topk_method\":\"other\"}", SL_ERR_UNSUPPORTED, "topk_method is \"other\""},
        {"{" V3 ",\"n_group\":7}", SL_ERR_INVALID, "n_group is 7: must divide"},
        {"{" FLASH ",\"mlp_layer_types\":[\"dense\"]}", SL_ERR_INVALID, "mlp_layer_types must be an array"},
        {"{" FLASH ",\"mlp_layer_types\":[\"dense\",\"sparse\",\"thick\"]}", SL_ERR_UNSUPPORTED,
         "mlp_layer_types[2] is \"thick\""},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        static sl_config c;
        sl_error error = {0};
        assert_int_equal(read_text(refused[i].text, &c, &error), refused[i].code);
        if (!strstr(error.message, refused[i].message)) {
            fail_msg("%s: %s", refused[i].message, error.message);
        }
    }
}

/* ---- GGUF ---- */

static void make_gguf(const char *fixture, char path[512]) {
    char folder[512];
    sl_error error;
    fixture_path(fixture, folder);
    snprintf(path, 512, "%s/test_config_latent-%s.gguf", SLUICE_BINARY_DIR, fixture);
    const sl_quantize_options options = {.mixture = sl_mixture_find("f32"), .pure = true, .replace = true};
    if (sl_quantize_file(folder, path, &options, NULL, NULL, &error)) {
        fail_msg("%s", error.message);
    }
}

/* The keys that llama.cpp's converter writes, with its values. */
static void gguf_says_the_same(void **state) {
    (void)state;
    static const struct {
        const char *key;
        double value;
    } expected[] = {{"attention.kv_lora_rank", 16},
                    {"attention.q_lora_rank", 24},
                    {"attention.key_length", 24},
                    {"attention.value_length", 16},
                    {"attention.key_length_mla", 24},
                    {"attention.value_length_mla", 12},
                    {"attention.head_count_kv", 1},
                    {"rope.dimension_count", 8},
                    {"expert_group_count", 4},
                    {"expert_group_used_count", 2},
                    {"expert_gating_func", 2},
                    {"expert_weights_scale", 2.5},
                    {"leading_dense_block_count", 1},
                    {"expert_shared_count", 1},
                    {"rope.scaling.yarn_log_multiplier", 0.1}};
    char path[512], key[128];
    sl_gguf *gguf;
    sl_error error;
    make_gguf("deepseek_v3", path);
    assert_int_equal(sl_gguf_open(path, &gguf, &error), 0);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        snprintf(key, sizeof key, "deepseek2.%s", expected[i].key);
        const sl_gguf_entry *entry = sl_gguf_find(gguf, key);
        if (!entry) {
            fail_msg("%s is missing", key);
        }
        const double value =
            entry->type == SL_GGUF_F32 ? sl_gguf_item_f64(entry, 0) : (double)sl_gguf_item_i64(entry, 0);
        assert_float_equal(value, expected[i].value, 1e-6);
    }
    sl_gguf_close(gguf);
    sl_model *folder_model, *file_model = must_load(path);
    char folder[512];
    fixture_path("deepseek_v3", folder);
    folder_model = must_load(folder);
    const sl_config *a = &folder_model->config, *b = &file_model->config;
    assert_true(b->latent == 16 && b->query_rank == 24 && b->head_size == 24 && b->value_size == 12);
    assert_true(!b->latent_joined && b->choosing_bias && !b->group_by_best && b->kv_heads == 1);
    assert_true(b->router == SL_ROUTER_SIGMOID && b->normalise && b->expert_groups == 4);
    assert_float_equal(a->attention_scale, b->attention_scale, 1e-7);
    assert_float_equal(sl_rope_magnitude(&b->rope), 1, 1e-6);
    sl_model_free(folder_model);
    sl_model_free(file_model);
}

/* A file of V2: no bias of the choice, so a softmax, and groups by their best. */
static void gguf_of_v2(void **state) {
    (void)state;
    char path[512];
    make_gguf("deepseek_v2", path);
    sl_model *model = must_load(path);
    const sl_config *c = &model->config;
    assert_true(!c->choosing_bias && c->group_by_best && c->router == SL_ROUTER_SOFTMAX && !c->normalise);
    assert_true(c->query_rank == 0 && c->expert_scale == 1);
    sl_model_free(model);
}

/* What a converter before the split wrote in place of a file's keys and tensors. */
typedef struct old_file {
    const sl_gguf *from;
    sl_gguf_writer *writer;
    sl_error error;
    int32_t heads, part, value, latent;
} old_file;

static bool is_of_heads(const char *name) {
    return strstr(name, "attn_k_b") || strstr(name, "attn_v_b");
}

static void copy_old_metadata(old_file *f) {
    for (uint64_t i = 0; i < sl_gguf_entry_count(f->from); i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(f->from, i);
        if (!strstr(entry->key, "key_length") && !strstr(entry->key, "value_length") &&
            !strstr(entry->key, "head_count_kv")) {
            assert_int_equal(sl_gguf_writer_copy(f->writer, entry, &f->error), 0);
        }
    }
    const struct {
        const char *key;
        int32_t value;
    } keys[] = {{"deepseek2.attention.key_length", f->part + 8},
                {"deepseek2.attention.value_length", f->value},
                {"deepseek2.attention.head_count_kv", f->heads}};
    for (size_t i = 0; i < 3; i++) {
        sl_gguf_writer_unsigned(f->writer, keys[i].key, SL_GGUF_U32, (uint64_t)keys[i].value, &f->error);
    }
}

static void declare_old(old_file *f, const sl_tensor *tensor) {
    sl_gguf_shape shape = {.type = tensor->type, .dim_count = tensor->dim_count};
    memcpy(shape.dims, tensor->dims, sizeof shape.dims);
    char name[128];
    snprintf(name, sizeof name, "%s", tensor->name);
    if (strstr(name, "attn_k_b")) {
        snprintf(strstr(name, "attn_k_b"), 32, "attn_kv_b.weight");
        shape.dim_count = 2;
        shape.dims[0] = (uint64_t)f->latent;
        shape.dims[1] = (uint64_t)(f->heads * (f->part + f->value));
        shape.dims[2] = 1;
    }
    assert_int_equal(sl_gguf_writer_tensor(f->writer, name, &shape, &f->error), 0);
}

/* For each head its keys, turned back, then its values. */
static void write_joined(old_file *f, const float *keys, const float *values) {
    float row[64];
    for (int32_t head = 0; head < f->heads; head++) {
        for (int32_t i = 0; i < f->part; i++) {
            for (int32_t k = 0; k < f->latent; k++) {
                row[k] = keys[(head * f->latent + k) * f->part + i];
            }
            assert_int_equal(
                sl_gguf_writer_data(f->writer, row, (uint64_t)f->latent * sizeof *row, &f->error), 0);
        }
        assert_int_equal(sl_gguf_writer_data(f->writer, values + head * f->value * f->latent,
                                             (uint64_t)(f->value * f->latent) * sizeof *values, &f->error),
                         0);
    }
}

static void write_old(const char *from, const char *path) {
    old_file f = {.heads = 4, .part = 16, .value = 12, .latent = 16};
    sl_gguf *gguf;
    assert_int_equal(sl_gguf_open(from, &gguf, &f.error), 0);
    f.from = gguf;
    assert_int_equal(sl_gguf_writer_create(path, &f.writer, &f.error), 0);
    copy_old_metadata(&f);
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
        const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        if (!strstr(tensor->name, "attn_v_b")) {
            declare_old(&f, tensor);
        }
    }
    assert_int_equal(sl_gguf_writer_begin(f.writer, NULL, &f.error), 0);
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
        const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        if (strstr(tensor->name, "attn_k_b")) {
            char name[128];
            snprintf(name, sizeof name, "%s", tensor->name);
            memcpy(strstr(name, "attn_k_b"), "attn_v_b", 8);
            write_joined(&f, tensor->data, sl_gguf_tensor(gguf, name)->data);
        } else if (!is_of_heads(tensor->name)) {
            assert_int_equal(sl_gguf_writer_data(f.writer, tensor->data, tensor->bytes, &f.error), 0);
        }
    }
    assert_int_equal(sl_gguf_writer_finish(f.writer, &f.error), 0);
    sl_gguf_writer_free(f.writer);
    sl_gguf_close(gguf);
}

static const sl_op *nth_of_heads(const sl_program *p, int nth) {
    for (int32_t i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind == SL_OP_HEAD_LINEAR && nth-- == 0) {
            return &p->ops[i];
        }
    }
    return NULL;
}

/* The same numbers as the folder's, where the matrix is joined too. */
static void files_from_before_the_split(void **state) {
    (void)state;
    char path[512], folder[512];
    make_gguf("deepseek_v3-noq", path);
    write_old(path, SLUICE_BINARY_DIR "/test_config_latent-old.gguf");
    fixture_path("deepseek_v3-noq", folder);
    sl_model *old = must_load(SLUICE_BINARY_DIR "/test_config_latent-old.gguf"), *wanted = must_load(folder);
    const sl_config *c = &old->config;
    assert_true(c->latent_joined && c->head_size == 24 && c->value_size == 12 && c->kv_heads == 1);
    for (int nth = 0; nth < 6; nth++) {
        const sl_op *a = nth_of_heads(&old->program, nth), *b = nth_of_heads(&wanted->program, nth);
        const sl_weight *w = &old->program.weights[a->u.head_linear.weight],
                        *v = &wanted->program.weights[b->u.head_linear.weight];
        assert_true(a->u.head_linear.turned == (nth % 2 == 0) && b->u.head_linear.turned == (nth % 2 == 0));
        assert_true(w->experts == 4 && w->rows == (nth % 2 ? 12 : 16) && w->columns == 16);
        assert_true(w->bytes == v->bytes && memcmp(w->data, v->data, (size_t)w->bytes) == 0);
    }
    assert_null(nth_of_heads(&old->program, 6));
    sl_model_free(old);
    sl_model_free(wanted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek_v2),
        cmocka_unit_test(deepseek_v3),
        cmocka_unit_test(glm4_moe_lite),
        cmocka_unit_test(mistral4),
        cmocka_unit_test(config_json_is_not_believed),
        cmocka_unit_test(gguf_says_the_same),
        cmocka_unit_test(gguf_of_v2),
        cmocka_unit_test(files_from_before_the_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
