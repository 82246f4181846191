/* Loading models: every family's fixture, tensors that contradict the config, GGUF files that a config
 * implies, and what happens when memory runs out. */
#define _GNU_SOURCE
#include "unit/model/support.h"

#include "base/alloc.h"
#include "base/log.h"

#include <math.h>

#define FOLDER SLUICE_BINARY_DIR "/test_model_folder"
#define GGUF SLUICE_BINARY_DIR "/test_model.gguf"

static const char *const ALL[] = {"llama",           "llama-scaled", "mistral",    "qwen2",
                                  "qwen3",           "qwen3-tied",   "qwen3-bf16", "qwen3moe",
                                  "qwen3moe-nonorm", "gemma3",       "qwen3_5"};
enum { ALL_COUNT = sizeof ALL / sizeof *ALL };

static sl_model *load_fixture(const char *name) {
    char path[512];
    fixture_path(name, path);
    return must_load(path);
}

static int count_ops(const sl_program *program, sl_op_kind kind) {
    int count = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        count += program->ops[i].kind == kind;
    }
    return count;
}

static const sl_weight *find_weight(const sl_program *program, const char *name) {
    for (int32_t i = 0; i < program->weight_count; i++) {
        if (strcmp(program->weights[i].name, name) == 0) {
            return &program->weights[i];
        }
    }
    fail_msg("no weight %s", name);
    return NULL;
}

/* transformers wrote exactly the tensors that its own model has: all must find a use. */
static void every_family_loads(void **state) {
    (void)state;
    for (int i = 0; i < ALL_COUNT; i++) {
        sl_model *model = load_fixture(ALL[i]);
        const sl_model_description *d = &model->description;
        assert_string_equal(d->name, ALL[i]);
        assert_memory_equal(d->family, ALL[i], strcspn(ALL[i], "-"));
        assert_string_equal(d->format, "safetensors");
        assert_int_equal(d->tensors, d->file_tensors);
        uint64_t elements = 0, bytes = 0;
        for (uint64_t t = 0; t < sl_source_tensor_count(model->source); t++) {
            elements += sl_source_tensor_at(model->source, t, NULL)->elements;
            bytes += sl_source_tensor_at(model->source, t, NULL)->bytes;
        }
        assert_int_equal(d->parameters, elements);
        assert_int_equal(d->bytes, bytes);
        assert_int_equal(d->types[strcmp(ALL[i], "qwen3-bf16") == 0 ? SL_QTYPE_BF16 : SL_QTYPE_F32].elements,
                         elements);
        assert_null(model->tokenizer);
        assert_null(model->chat_template.data);
        sl_model_free(model);
    }
}

static void programs_have_their_parts(void **state) {
    (void)state;
    sl_model *model = load_fixture("gemma3");
    const sl_program *p = &model->program;
    assert_int_equal(p->group_count, 2);
    assert_int_equal(p->groups[0].layers, 1);
    assert_int_equal(p->groups[1].layers, 3);
    assert_int_equal(p->groups[1].window, 48);
    assert_int_equal(count_ops(p, SL_OP_RMSNORM), 4 * 6 + 1);
    assert_int_equal(count_ops(p, SL_OP_GATHER), 1);
    /* sqrt(64) and 1 + w */
    assert_float_equal(p->ops[1].u.embed.scale, 8, 0);
    assert_float_equal(p->ops[2].u.rmsnorm.weight_offset, 1, 0);
    sl_model_free(model);

    model = load_fixture("qwen3_5");
    p = &model->program;
    assert_int_equal(p->state_count, 3);
    assert_int_equal(p->states[0].channels, 128);
    assert_int_equal(count_ops(p, SL_OP_DELTA_SCAN), 3);
    assert_int_equal(count_ops(p, SL_OP_ATTENTION), 1);
    for (int32_t i = 0; i < p->op_count; i++) {
        const sl_op *op = &p->ops[i];
        if (op->kind == SL_OP_RMSNORM) { /* the gated norm alone has a plain weight */
            assert_float_equal(op->u.rmsnorm.weight_offset, op->in[2].value == SL_NONE ? 1 : 0, 0);
        }
    }
    sl_model_free(model);

    model = load_fixture("qwen3moe");
    p = &model->program;
    assert_int_equal(p->experts, 8);
    const sl_weight *experts = find_weight(p, "model.layers.1.mlp.experts.*.up_proj.weight");
    assert_int_equal(experts->experts, 8);
    const sl_tensor *fifth;
    assert_int_equal(
        sl_source_tensor(model->source, "model.layers.1.mlp.experts.5.up_proj.weight", &fifth, NULL), 0);
    assert_memory_equal((const char *)experts->data + 5 * fifth->bytes, fifth->data, fifth->bytes);
    sl_model_free(model);

    model = load_fixture("qwen3-tied");
    p = &model->program;
    assert_int_equal(p->ops[p->op_count - 2].u.linear.segments[0].weight, p->ops[1].u.embed.weight);
    sl_model_free(model);

    model = load_fixture("qwen3-bf16"); /* vectors become f32, matrices stay in the map */
    p = &model->program;
    const sl_weight *norm = find_weight(p, "model.norm.weight");
    const sl_tensor *stored;
    assert_int_equal(sl_source_tensor(model->source, "model.norm.weight", &stored, NULL), 0);
    assert_int_equal(norm->type, SL_QTYPE_F32);
    uint16_t half;
    memcpy(&half, (const char *)stored->data + 2, 2);
    union {
        uint32_t bits;
        float value;
    } widened = {(uint32_t)half << 16};
    assert_float_equal(((const float *)norm->data)[1], widened.value, 0);
    assert_int_equal(find_weight(p, "lm_head.weight")->type, SL_QTYPE_BF16);
    sl_model_free(model);
}

/* ---- tensors that contradict the config ---- */

static bool edit_named(const char *context, edited *t) {
    char action, name[128];
    sscanf(context, "%c %127s", &action, name);
    if (strcmp(t->name, name) != 0) {
        return true;
    }
    const uint64_t first = t->shape[0];
    switch (action) {
    case 'x': /* missing */
        return false;
    case 't': /* the other way round */
        t->shape[0] = t->shape[t->rank - 1];
        t->shape[t->rank - 1] = first;
        return true;
    case 'i': /* of a type that weights cannot have */
        snprintf(t->dtype, sizeof t->dtype, "I32");
        return true;
    case 'h': /* half as many columns, of twice the rows */
        t->shape[0] *= 2;
        t->shape[t->rank - 1] /= 2;
        return true;
    default:
        return true;
    }
}

static const struct {
    const char *fixture, *edit;
    int code;
    const char *message;
} CONTRADICTIONS[] = {
    {"llama", "x model.embed_tokens.weight", SL_ERR_FORMAT, "tensor model.embed_tokens.weight is missing"},
    {"llama", "x lm_head.weight", SL_ERR_FORMAT, "tensor lm_head.weight is missing"},
    {"llama", "x model.layers.2.mlp.up_proj.weight", SL_ERR_FORMAT,
     "tensor model.layers.2.mlp.up_proj.weight is missing"},
    {"llama", "t model.layers.0.mlp.up_proj.weight", SL_ERR_FORMAT,
     "tensor model.layers.0.mlp.up_proj.weight has the shape [64][96], the config asks for [96][64]"},
    {"llama", "h model.layers.1.self_attn.q_proj.weight", SL_ERR_FORMAT,
     "[128][32], the config asks for [64][64]"},
    {"llama", "i model.layers.1.self_attn.k_proj.weight", SL_ERR_UNSUPPORTED,
     "model.layers.1.self_attn.k_proj.weight"},
    {"qwen2", "x model.layers.0.self_attn.v_proj.bias", SL_ERR_FORMAT, "v_proj.bias is missing"},
    {"qwen3", "x model.layers.0.self_attn.q_norm.weight", SL_ERR_FORMAT, "q_norm.weight is missing"},
    {"gemma3", "x model.layers.3.post_feedforward_layernorm.weight", SL_ERR_FORMAT,
     "post_feedforward_layernorm.weight is missing"},
    {"qwen3moe", "x model.layers.1.mlp.experts.7.down_proj.weight", SL_ERR_FORMAT,
     "experts.7.down_proj.weight is missing"},
    {"qwen3moe", "t model.layers.1.mlp.experts.3.gate_proj.weight", SL_ERR_FORMAT,
     "experts.3.gate_proj.weight has the shape [64][32]"},
    {"qwen3_5", "x model.layers.0.linear_attn.A_log", SL_ERR_FORMAT, "linear_attn.A_log is missing"},
    {"qwen3_5", "h model.layers.0.linear_attn.conv1d.weight", SL_ERR_FORMAT, "conv1d.weight has the shape"},
};

static void tensors_must_fit_the_config(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof CONTRADICTIONS / sizeof *CONTRADICTIONS; i++) {
        sl_model *model;
        sl_error error = {0};
        json_t *config = fixture_config(CONTRADICTIONS[i].fixture);
        write_config(FOLDER, config);
        json_decref(config);
        write_weights(FOLDER, CONTRADICTIONS[i].fixture, edit_named, CONTRADICTIONS[i].edit, 0);
        const int code = sl_model_load(FOLDER, &model, &error);
        if (code != CONTRADICTIONS[i].code || model || !strstr(error.message, CONTRADICTIONS[i].message) ||
            !strstr(error.message, FOLDER)) {
            print_error("%s, %s: %d %s\n", CONTRADICTIONS[i].fixture, CONTRADICTIONS[i].edit, code,
                        error.message);
            wrong++;
        }
        sl_model_free(model);
    }
    assert_int_equal(wrong, 0);
}

static bool add_prefix(const char *context, edited *t) {
    char name[128];
    const bool trunk = strncmp(t->name, "model.", 6) == 0;
    const char *head = strncmp(context, "model", 5) == 0 ? "" : "language_model.";
    snprintf(name, sizeof name, "%s%s", trunk ? context : head, trunk ? t->name + 6 : t->name);
    memcpy(t->name, name, sizeof name);
    return true;
}

/* The text model inside a multimodal checkpoint. */
static void other_prefixes_are_found(void **state) {
    (void)state;
    static const char *const prefixes[] = {"model.language_model.", "language_model.model."};
    for (int i = 0; i < 2; i++) {
        json_t *wrapped = json_object(), *text = fixture_config("qwen3_5");
        json_object_set_new(wrapped, "model_type", json_string("qwen3_5"));
        json_object_set_new(wrapped, "text_config", text);
        write_config(FOLDER, wrapped);
        json_decref(wrapped);
        write_weights(FOLDER, "qwen3_5", add_prefix, prefixes[i], 0);
        sl_model *model = must_load(FOLDER);
        assert_int_equal(model->description.tensors, model->description.file_tensors);
        sl_model_free(model);
    }
}

static void keep_line(void *context, sl_log_level level, const char *line) {
    if (level == SL_LOG_WARNING) {
        snprintf(context, 256, "%s", line);
    }
}

static bool rename_one(const char *context, edited *t) {
    if (strcmp(t->name, context) == 0) {
        snprintf(t->name, sizeof t->name, "mtp.fc.weight");
    }
    return true;
}

static void unused_tensors_are_said_once(void **state) {
    (void)state;
    char line[256] = "";
    json_t *config = fixture_config("llama");
    json_object_set_new(config, "tie_word_embeddings", json_true());
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, "llama", rename_one, "lm_head.weight", 0);
    sl_log_set(keep_line, line);
    sl_model *model = must_load(FOLDER);
    sl_log_set(NULL, NULL);
    assert_non_null(strstr(line, "1 of 30 tensors are not used: mtp.*"));
    assert_int_equal(model->description.tensors + 1, model->description.file_tensors);
    sl_model_free(model);
}

/* The fixture has 256 rows in its embedding. */
static void the_tokenizer_fits_the_vocabulary(void **state) {
    (void)state;
    static const char format[] = "{%s\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                                 "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":%d},\"merges\":[]}}";
    static const char added[] = "\"added_tokens\":[{\"id\":256,\"content\":\"<image>\",\"special\":true}],";
    static const struct {
        const char *added;
        int last, code;
    } rows[] = {{"", 255, 0}, {"", 256, SL_ERR_FORMAT}, {added, 1, 0}};
    json_t *config = fixture_config("llama");
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, "llama", NULL, NULL, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        sl_model *model;
        sl_error error;
        snprintf(text, sizeof text, format, rows[i].added, rows[i].last);
        write_text_file(FOLDER, "tokenizer.json", text);
        const int code = sl_model_load(FOLDER, &model, &error);
        assert_int_equal(code, rows[i].code);
        if (code) {
            assert_non_null(
                strstr(error.message, "256 tokens (vocab_size), but the tokenizer's 'b' is token 256"));
        }
        sl_model_free(model);
    }
    unlink(FOLDER "/tokenizer.json");
}

/* A header of odd length puts every tensor at an address that floats cannot be read from. */
static void unaligned_tensors_are_copied(void **state) {
    (void)state;
    json_t *config = fixture_config("llama");
    write_config(FOLDER, config);
    json_decref(config);
    write_weights(FOLDER, "llama", NULL, NULL, 1);
    sl_model *odd = must_load(FOLDER), *even = load_fixture("llama");
    assert_int_equal(odd->program.weight_count, even->program.weight_count);
    for (int32_t i = 0; i < odd->program.weight_count; i++) {
        const sl_weight *weight = &odd->program.weights[i];
        assert_int_equal((uintptr_t)weight->data % 4, 0);
        assert_memory_equal(weight->data, find_weight(&even->program, weight->name)->data, weight->bytes);
    }
    assert_true(odd->description.owned_bytes > even->description.owned_bytes);
    sl_model_free(odd);
    sl_model_free(even);
}

/* ---- transformers 5's fused experts ---- */

/* Writes the fixture's experts as one gate_up_proj and one down_proj per layer. */
static void write_fused(const char *fixture) {
    char path[600], name[160];
    sl_source *source;
    sl_error error;
    sl_buffer header = {0};
    bytes data = {0}, file = {0};
    fixture_path(fixture, path);
    assert_int_equal(sl_source_open(path, &source, &error), 0);
    sl_buffer_text(&header, "{");
    for (uint64_t i = 0; i < sl_source_tensor_count(source); i++) {
        const sl_tensor *t = sl_source_tensor_at(source, i, NULL);
        if (!strstr(t->name, ".experts.")) {
            sl_buffer_printf(&header, "\"%s\":{\"dtype\":\"F32\",\"shape\":[", t->name);
            for (uint32_t d = t->dim_count; d-- > 0;) {
                sl_buffer_printf(&header, "%llu%s", (unsigned long long)t->dims[d], d ? "," : "");
            }
            sl_buffer_printf(&header, "],\"data_offsets\":[%zu,%zu]},", data.size,
                             data.size + (size_t)t->bytes);
            put_bytes(&data, t->data, t->bytes);
        }
    }
    static const char *const parts[2][2] = {{"gate_proj", "up_proj"}, {"down_proj", NULL}};
    for (int layer = 0; layer < 3; layer++) {
        for (int half = 0; half < 2; half++) {
            const size_t first = data.size;
            for (int e = 0; e < 8; e++) {
                for (int k = 0; k < 2 && parts[half][k]; k++) {
                    const sl_tensor *t;
                    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e,
                             parts[half][k]);
                    assert_int_equal(sl_source_tensor(source, name, &t, &error), 0);
                    put_bytes(&data, t->data, t->bytes);
                }
            }
            sl_buffer_printf(&header,
                             "\"model.layers.%d.mlp.experts.%s\":{\"dtype\":\"F32\",\"shape\":[8,64,%d],"
                             "\"data_offsets\":[%zu,%zu]}%s",
                             layer, half ? "down_proj" : "gate_up_proj", half ? 32 : 64, first, data.size,
                             layer == 2 && half == 1 ? "}" : ",");
        }
    }
    while (header.length % 8 != 0) {
        sl_buffer_text(&header, " ");
    }
    put_safetensors(&file, header.data, data.data, data.size);
    snprintf(path, sizeof path, "%s/model.safetensors", FOLDER);
    write_file(path, file.data, file.size);
    json_t *config = fixture_config(fixture);
    write_config(FOLDER, config);
    json_decref(config);
    sl_source_close(source);
    sl_buffer_free(&header);
    free(data.data);
    free(file.data);
}

static void fused_experts_are_read_in_place(void **state) {
    (void)state;
    write_fused("qwen3moe");
    sl_model *fused = must_load(FOLDER), *separate = load_fixture("qwen3moe");
    assert_int_equal(fused->description.tensors, fused->description.file_tensors);
    assert_true(fused->description.owned_bytes < separate->description.owned_bytes);
    const sl_weight *both = find_weight(&fused->program, "model.layers.1.mlp.experts.gate_up_proj");
    const sl_weight *up = find_weight(&separate->program, "model.layers.1.mlp.experts.*.up_proj.weight");
    assert_int_equal(both->rows, 2 * up->rows);
    const uint64_t part = up->bytes / 8;
    for (uint64_t e = 0; e < 8; e++) {
        assert_memory_equal((const char *)both->data + (2 * e + 1) * part, (const char *)up->data + e * part,
                            part);
    }
    assert_int_equal(fused->program.op_count, separate->program.op_count);
    sl_model_free(fused);
    sl_model_free(separate);
}

/* ---- GGUF ---- */

typedef struct gguf_job {
    sl_gguf_writer *writer;
    const sl_config *config;
    bool begun;
} gguf_job;

/* Declares, or (second walk) fills with a small pattern; what the RoPE factors hold is the config's. */
static int put_tensor(void *context, const sl_gguf_tensor_fact *t, sl_error *error) {
    gguf_job *job = context;
    const uint64_t count = t->dims[0] * t->dims[1] * t->dims[2];
    if (!job->begun) {
        sl_gguf_shape shape = {SL_QTYPE_F32, t->dim_count, {t->dims[0], t->dims[1], t->dims[2], t->dims[3]}};
        return sl_gguf_writer_tensor(job->writer, t->name, &shape, error);
    }
    float *values = calloc(count, sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)(i % 7) / 8;
    }
    if (t->id == SL_TENSOR_ROPE_FACTORS) {
        sl_rope_factors(&job->config->rope, job->config->rope_dims, values);
    }
    if (t->id == SL_TENSOR_ROPE_LONG || t->id == SL_TENSOR_ROPE_SHORT) {
        const bool is_long = t->id == SL_TENSOR_ROPE_LONG;
        memcpy(values, is_long ? job->config->long_factors : job->config->short_factors,
               count * sizeof *values);
    }
    const int code = sl_gguf_writer_data(job->writer, values, count * sizeof *values, error);
    free(values);
    return code;
}

static void write_gguf(const sl_config *config) {
    gguf_job job = {.config = config};
    sl_error error;
    int code = sl_gguf_writer_create(GGUF, &job.writer, &error);
    code = code ? code : sl_config_write_gguf_metadata(config, job.writer, &error);
    code = code ? code : sl_config_tensors(config, put_tensor, &job, &error);
    code = code ? code : sl_gguf_writer_begin(job.writer, NULL, &error);
    job.begun = true;
    code = code ? code : sl_config_tensors(config, put_tensor, &job, &error);
    code = code ? code : sl_gguf_writer_finish(job.writer, &error);
    sl_gguf_writer_free(job.writer);
    if (code) {
        fail_msg("%s", error.message);
    }
}

/* A config written as GGUF is read as the same facts and gives a program of the same ops. */
static void configs_survive_gguf(void **state) {
    (void)state;
    for (int i = 0; i < ALL_COUNT; i++) {
        sl_model *hf = load_fixture(ALL[i]);
        sl_config config = hf->config;
        config.naming = SL_NAMING_GGUF;
        config.rope_layout = config.family->gguf_rope;
        config.rope_factors = config.rope.scaling == SL_ROPE_SCALING_LLAMA3;
        write_gguf(&config);
        sl_model *gguf = must_load(GGUF);
        const sl_config *c = &gguf->config;
        assert_int_equal(gguf->description.tensors, gguf->description.file_tensors);
        if (config.family->gguf) {
            assert_ptr_equal(c->family, config.family);
        }
        assert_int_equal(c->layers, config.layers);
        assert_int_equal(c->context, config.context);
        assert_int_equal(c->rope_dims, config.rope_dims);
        assert_int_equal(c->rope_layout, config.rope_layout);
        assert_int_equal(c->window, config.window);
        assert_int_equal(c->tied, config.tied);
        assert_int_equal(c->query_bias, config.query_bias);
        assert_int_equal(c->activation, config.activation);
        assert_float_equal(c->epsilon / config.epsilon, 1, 1e-6);
        assert_float_equal(c->attention_scale, config.attention_scale, 1e-6);
        assert_memory_equal(c->kinds, config.kinds, (size_t)config.layers);
        assert_int_equal(c->normalise, config.normalise);
        assert_int_equal(gguf->program.op_count, hf->program.op_count);
        for (int32_t op = 0; op < hf->program.op_count; op++) {
            assert_int_equal(gguf->program.ops[op].kind, hf->program.ops[op].kind);
            if (hf->program.ops[op].kind == SL_OP_ROPE) {
                const int32_t a = hf->program.ops[op].u.rope.frequencies,
                              b = gguf->program.ops[op].u.rope.frequencies;
                for (int32_t f = 0; f < config.rope_dims / 2; f++) {
                    assert_float_equal(((const float *)gguf->program.weights[b].data)[f] /
                                           ((const float *)hf->program.weights[a].data)[f],
                                       1, 1e-6);
                }
            }
        }
        sl_model_free(gguf);
        sl_model_free(hf);
    }
}

static void yarn_survives_gguf(void **state) {
    (void)state;
    sl_model *hf = load_fixture("qwen3");
    sl_config config = hf->config;
    config.naming = SL_NAMING_GGUF;
    config.rope.scaling = SL_ROPE_SCALING_YARN;
    config.rope.factor = 4;
    config.rope.original_context = 128;
    config.rope.beta_fast = 16;
    write_gguf(&config);
    sl_model *gguf = must_load(GGUF);
    float wanted[16], found[16];
    sl_rope_frequencies(&config.rope, config.rope_dims, wanted);
    sl_rope_frequencies(&gguf->config.rope, gguf->config.rope_dims, found);
    assert_memory_equal(wanted, found, sizeof wanted);
    for (int32_t i = 0; i < gguf->program.op_count; i++) {
        if (gguf->program.ops[i].kind == SL_OP_ROPE) {
            assert_float_equal(gguf->program.ops[i].u.rope.magnitude, 1.1386294, 1e-6);
        }
    }
    sl_model_free(gguf);
    sl_model_free(hf);
}

static sl_config phi3(int32_t context) {
    sl_config c;
    sl_config_init(&c, sl_family_find("phi3"), SL_NAMING_GGUF);
    c.layers = 1;
    c.width = c.feed_forward = 32;
    c.heads = 2;
    c.kv_heads = 1;
    c.head_size = 16;
    c.rope_dims = 6;
    c.vocabulary = 64;
    c.context = context;
    c.attention_scale = 0.25;
    c.rope.base = 10000;
    c.rope.scaling = SL_ROPE_SCALING_LONGROPE;
    c.rope.original_context = 64;
    c.rope.attention_factor = 1.25;
    for (int i = 0; i < 3; i++) {
        c.short_factors[i] = 1 + 0.5f * (float)i;
        c.long_factors[i] = 2 + (float)i;
    }
    c.local_rope = c.rope;
    return c;
}

static void fail_each_allocation(const char *path);

/* 10000^(-2 i / 6) by either list; by the context that the file declares. */
static void longrope_chooses_a_list(void **state) {
    (void)state;
    static const float plain[] = {1, 0.046415888f, 0.0021544347f};
    for (int32_t context = 64; context <= 128; context += 64) {
        const sl_config config = phi3(context);
        write_gguf(&config);
        sl_model *model = must_load(GGUF);
        assert_int_equal(model->description.tensors, model->description.file_tensors);
        assert_true(model->config.fused_qkv && model->config.fused_gate_up);
        int turned = 0;
        for (int32_t i = 0; i < model->program.op_count; i++) {
            const sl_op *op = &model->program.ops[i];
            if (op->kind != SL_OP_ROPE) {
                continue;
            }
            const float *found = model->program.weights[op->u.rope.frequencies].data;
            for (int pair = 0; pair < 3; pair++) {
                const float divisor = context > 64 ? 2 + (float)pair : 1 + 0.5f * (float)pair;
                assert_float_equal(found[pair] / (plain[pair] / divisor), 1, 1e-6);
            }
            assert_float_equal(op->u.rope.magnitude, 1.25, 0);
            turned++;
        }
        assert_int_equal(turned, 2);
        sl_model_free(model);
    }
}

static void longrope_is_not_believed(void **state) {
    (void)state;
    sl_model *model;
    sl_error error;
    sl_config config = phi3(128);
    config.long_factors[1] = 0;
    write_gguf(&config);
    assert_int_equal(sl_model_load(GGUF, &model, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "tensor rope_factors_long.weight: element 1 must be above 0"));
    config = phi3(128);
    config.rope_dims = 4; /* the file says so of its tensors, and 6 of the head */
    gguf_job job = {.config = &config};
    assert_int_equal(sl_gguf_writer_create(GGUF, &job.writer, &error), 0);
    const sl_config six = phi3(128);
    assert_int_equal(sl_config_write_gguf_metadata(&six, job.writer, &error), 0);
    assert_int_equal(sl_config_tensors(&config, put_tensor, &job, &error), 0);
    assert_int_equal(sl_gguf_writer_begin(job.writer, NULL, &error), 0);
    job.begun = true;
    assert_int_equal(sl_config_tensors(&config, put_tensor, &job, &error), 0);
    assert_int_equal(sl_gguf_writer_finish(job.writer, &error), 0);
    sl_gguf_writer_free(job.writer);
    assert_int_equal(sl_model_load(GGUF, &model, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "has the shape [2], the config asks for [3]"));
    write_gguf(&six);
    fail_each_allocation(GGUF);
}

static void what_gguf_cannot_say_is_not_written(void **state) {
    (void)state;
    sl_gguf_writer *writer;
    sl_error error;
    sl_model *qwen = load_fixture("qwen2"), *moe = load_fixture("qwen3moe");
    sl_config config = qwen->config;
    config.window = 32;
    config.kinds[1] = SL_LAYER_WINDOW;
    assert_int_equal(sl_gguf_writer_create(GGUF, &writer, &error), 0);
    assert_int_equal(sl_config_write_gguf_metadata(&config, writer, &error), SL_ERR_UNSUPPORTED);
    config = moe->config;
    config.dense[1] = true;
    assert_int_equal(sl_config_write_gguf_metadata(&config, writer, &error), SL_ERR_UNSUPPORTED);
    sl_gguf_writer_free(writer);
    sl_model_free(qwen);
    sl_model_free(moe);
}

/* What a model is called is shown on terminals and in JSON. */
static void names_are_printable_text(void **state) {
    (void)state;
    static const char odd[] = "odd \xff\x1b[1m\xc3\xa9\xc3";
    char long_name[140], target[512];
    fixture_path("qwen3", target);
    unlink(odd);
    assert_int_equal(symlink(target, odd), 0);
    sl_model *model = must_load(odd);
    assert_string_equal(model->description.name, "odd ??[1m\xc3\xa9?");
    sl_model_free(model);
    unlink(odd);
    /* 126 bytes and a character of two: 128 would leave no room for the end, half of it is no text. */
    memset(long_name, 'n', 126);
    strcpy(long_name + 126, "\xc3\xa9");
    unlink(long_name);
    assert_int_equal(symlink(target, long_name), 0);
    model = must_load(long_name);
    assert_int_equal(strlen(model->description.name), 126);
    assert_memory_equal(model->description.name, long_name, 126);
    sl_model_free(model);
    unlink(long_name);
}

static void a_trained_gguf_loads(void **state) {
    (void)state;
    if (!SLUICE_SHARED_DIR[0]) {
        print_message("no folder of shared models here\n");
        skip();
    }
    sl_model *model = must_load(SLUICE_SHARED_DIR "/models/stories260K.gguf");
    assert_string_equal(model->description.format, "GGUF");
    assert_int_equal(model->config.layers, 5); /* as its README says */
    assert_int_equal(model->config.width, 64);
    assert_int_equal(model->config.heads, 8);
    assert_int_equal(model->config.kv_heads, 4);
    assert_int_equal(model->config.vocabulary, 512);
    assert_true(model->config.tied);
    assert_int_equal(model->config.rope_layout, SL_ROPE_PAIRS);
    assert_non_null(model->tokenizer);
    assert_int_equal(model->description.tensors, model->description.file_tensors);
    sl_model_free(model);
}

/* ---- memory ---- */

static void fail_each_allocation(const char *path) {
    const uint64_t live = sl_alloc_live_bytes();
    for (uint64_t nth = 1;; nth++) {
        sl_model *model;
        sl_error error = {0};
        const uint64_t before = sl_alloc_count();
        sl_alloc_fail_at(nth);
        const int code = sl_model_load(path, &model, &error);
        sl_alloc_fail_at(0);
        const bool reached = sl_alloc_count() - before >= nth;
        sl_model_free(model);
        assert_int_equal(sl_alloc_live_bytes(), live);
        if (code == 0) {
            assert_false(reached);
            assert_true(nth > 20);
            return;
        }
        if (code != SL_ERR_NOMEM || !error.message[0]) {
            fail_msg("allocation %llu: %d %s", (unsigned long long)nth, code, error.message);
        }
    }
}

static void no_allocation_failure_leaks(void **state) {
    (void)state;
    char path[512];
    static const char *const names[] = {"qwen3moe", "qwen3_5", "gemma3"};
    for (int i = 0; i < 3; i++) {
        fixture_path(names[i], path);
        fail_each_allocation(path);
    }
    sl_model *model = load_fixture("llama-scaled");
    sl_config config = model->config;
    config.naming = SL_NAMING_GGUF;
    config.rope_factors = true;
    write_gguf(&config);
    sl_model_free(model);
    fail_each_allocation(GGUF);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_loads),
        cmocka_unit_test(programs_have_their_parts),
        cmocka_unit_test(tensors_must_fit_the_config),
        cmocka_unit_test(other_prefixes_are_found),
        cmocka_unit_test(unused_tensors_are_said_once),
        cmocka_unit_test(the_tokenizer_fits_the_vocabulary),
        cmocka_unit_test(unaligned_tensors_are_copied),
        cmocka_unit_test(fused_experts_are_read_in_place),
        cmocka_unit_test(configs_survive_gguf),
        cmocka_unit_test(yarn_survives_gguf),
        cmocka_unit_test(longrope_chooses_a_list),
        cmocka_unit_test(longrope_is_not_believed),
        cmocka_unit_test(what_gguf_cannot_say_is_not_written),
        cmocka_unit_test(names_are_printable_text),
        cmocka_unit_test(a_trained_gguf_loads),
        cmocka_unit_test(no_allocation_failure_leaks),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
