/* The C API: models, opened and described. */
#include "api/conduct.h"
#include "api/replies.h"

#include "base/alloc.h"

#include <string.h>

static int open_with(const char *path, const sluice_model_options *options, sluice_model **out,
                     sluice_error *error) {
    if (sl_api_lacks(out, "model", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    if (sl_api_lacks(path, "path", error)) {
        return SL_ERR_INVALID;
    }
    sluice_model *model = sl_alloc_zero(1, sizeof *model);
    if (!model) {
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for a model");
    }
    model->references = 1;
    pthread_mutex_init(&model->vocabulary_mutex, NULL);
    sl_error inner;
    int result = options->text_only  ? sl_model_load_tokenizer(path, &model->model, &inner)
                 : options->for_plan ? sl_model_load_for_plan(path, &model->model, &inner)
                                     : sl_model_load(path, &model->model, &inner);
    if (result) {
        pthread_mutex_destroy(&model->vocabulary_mutex);
        sl_free(model);
        return sl_api_error(error, &inner);
    }
    result = sl_api_open_chat(model, options, &inner);
    result = result ? result : sl_api_open_replies(model, &inner);
    if (result) {
        sluice_model_release(model);
        return sl_api_error(error, &inner);
    }
    *out = model;
    return 0;
}

int sluice_model_open(const char *path, sluice_model **out, sluice_error *error) {
    return open_with(path, &(sluice_model_options){.size = sizeof(sluice_model_options)}, out, error);
}

int sluice_model_open_text(const char *path, sluice_model **out, sluice_error *error) {
    return open_with(path, &(sluice_model_options){.size = sizeof(sluice_model_options), .text_only = true},
                     out, error);
}

int sluice_model_open_with(const char *path, const sluice_model_options *given, sluice_model **out,
                           sluice_error *error) {
    sluice_model_options options;
    if (sl_api_lacks(out, "model", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    const int result = sl_api_options(&options, sizeof options, given, "model options", error);
    return result ? result : open_with(path, &options, out, error);
}

bool sl_api_has_weights(const sl_model *model) {
    return model->program.op_count > 0;
}

int sl_api_no_weights(sl_error *error) {
    return sl_fail(error, SL_ERR_INVALID, "model: it was opened for its text alone, without weights");
}

sluice_model *sluice_model_retain(sluice_model *model) {
    if (model) {
        atomic_fetch_add(&model->references, 1);
    }
    return model;
}

void sluice_model_release(sluice_model *model) {
    if (model && atomic_fetch_sub(&model->references, 1) == 1) {
        sl_api_close_replies(model);
        sl_api_close_chat(model);
        sl_grammar_vocabulary_release(model->vocabulary);
        pthread_mutex_destroy(&model->vocabulary_mutex);
        sl_model_free(model->model);
        sl_free(model);
    }
}

void sluice_model_get_info(const sluice_model *m, sluice_model_info *out) {
    if (!m || !out) {
        return;
    }
    const sl_model *model = m->model;
    const sl_tokenizer *tokenizer = model->tokenizer;
    sluice_model_info all = {
        .size = out->size,
        .name = model->description.name,
        .family = model->description.family,
        .parameters = model->description.parameters,
        .bytes = model->description.bytes,
        .layers = model->config.layers,
        .width = model->program.width,
        .vocabulary = model->program.vocabulary,
        .context = model->config.context,
        .bos = tokenizer ? sl_tokenizer_bos(tokenizer) : -1,
        .eos = tokenizer ? sl_tokenizer_eos(tokenizer) : -1,
        .has_tokenizer = tokenizer != NULL,
        .chat_template = m->chat_template,
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

void sluice_model_get_embedding(const sluice_model *m, sluice_embedding_facts *out) {
    if (!m || !out) {
        return;
    }
    static const sluice_pooling poolings[] = {[SL_POOLING_NONE] = SLUICE_POOLING_NONE,
                                              [SL_POOLING_MEAN] = SLUICE_POOLING_MEAN,
                                              [SL_POOLING_CLS] = SLUICE_POOLING_CLS,
                                              [SL_POOLING_LAST] = SLUICE_POOLING_LAST};
    const sl_embedding *e = &m->model->embedding;
    const sluice_embedding_facts all = {
        .size = out->size,
        .embeds = e->given,
        .generates = m->model->program.logits != SL_NONE,
        .ranks = e->classifier_count > 0,
        .pooling = poolings[e->pooling == SL_POOLING_RANK ? e->ranked : e->pooling],
        .normalise = e->normalise,
        .width = e->layer_count > 0 ? e->layers[e->layer_count - 1].rows : m->model->program.width,
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

static float sampling_value(const sl_sampling *sampling, sl_sampling_fact fact) {
    return (float)sampling->values[fact];
}

#define SAME_BIT(name)                                                                                       \
    _Static_assert((int)SLUICE_SAMPLING_##name == 1 << SL_SAMPLING_##name, "bits are positions of facts");
SAME_BIT(DO_SAMPLE)
SAME_BIT(TEMPERATURE)
SAME_BIT(TOP_K)
SAME_BIT(TOP_P)
SAME_BIT(MIN_P)
SAME_BIT(TYPICAL_P)
SAME_BIT(REPETITION_PENALTY)
SAME_BIT(PENALTY_TOKENS)
SAME_BIT(XTC_PROBABILITY)
SAME_BIT(XTC_THRESHOLD)
SAME_BIT(MIROSTAT)
SAME_BIT(MIROSTAT_TAU)
SAME_BIT(MIROSTAT_ETA)

void sluice_model_get_sampling(const sluice_model *model, sluice_sampling_facts *out) {
    if (!model || !out) {
        return;
    }
    const sl_sampling *from = &model->model->sampling;
    const sluice_sampling_facts all = {
        .size = out->size,
        .present = from->present,
        .file = from->file,
        .samplers = from->samplers[0] ? from->samplers : NULL,
        .do_sample = from->values[SL_SAMPLING_DO_SAMPLE] != 0,
        .temperature = sampling_value(from, SL_SAMPLING_TEMPERATURE),
        .top_k = (int32_t)from->values[SL_SAMPLING_TOP_K],
        .top_p = sampling_value(from, SL_SAMPLING_TOP_P),
        .min_p = sampling_value(from, SL_SAMPLING_MIN_P),
        .typical_p = sampling_value(from, SL_SAMPLING_TYPICAL_P),
        .repetition_penalty = sampling_value(from, SL_SAMPLING_REPETITION_PENALTY),
        .penalty_tokens = (int32_t)from->values[SL_SAMPLING_PENALTY_TOKENS],
        .xtc_probability = sampling_value(from, SL_SAMPLING_XTC_PROBABILITY),
        .xtc_threshold = sampling_value(from, SL_SAMPLING_XTC_THRESHOLD),
        .mirostat = (int32_t)from->values[SL_SAMPLING_MIROSTAT],
        .mirostat_tau = sampling_value(from, SL_SAMPLING_MIROSTAT_TAU),
        .mirostat_eta = sampling_value(from, SL_SAMPLING_MIROSTAT_ETA),
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

/* "products": what those with its weights are computed with. */
static json_t *describe_types(const sl_model_description *d) {
    static const char *const arithmetics[SL_ARITHMETICS] = {"int8", "bf16", "f32"};
    json_t *types = json_array();
    for (int t = 0; types && t < SL_QTYPE_COUNT; t++) {
        if (d->types[t].tensors) {
            json_array_append_new(
                types, json_pack("{s:s, s:I, s:I, s:I, s:s}", "type", sl_qtype_get((sl_qtype)t)->name,
                                 "tensors", (json_int_t)d->types[t].tensors, "elements",
                                 (json_int_t)d->types[t].elements, "bytes", (json_int_t)d->types[t].bytes,
                                 "products", arithmetics[sl_qtype_arithmetic((sl_qtype)t)]));
        }
    }
    return types;
}

static json_t *describe_weights(const sl_program *program) {
    json_t *weights = json_array();
    for (int32_t i = 0; weights && i < program->weight_count; i++) {
        const sl_weight *w = &program->weights[i];
        json_array_append_new(weights,
                              json_pack("{s:s, s:s, s:i, s:i, s:i, s:I}", "name", w->name, "type",
                                        sl_qtype_get(w->type)->name, "experts", w->experts, "rows", w->rows,
                                        "columns", w->columns, "bytes", (json_int_t)w->bytes));
    }
    return weights;
}

/* Per group of the cache, of all its layers: what a token keeps, and what a row costs for each key it sees.
 */
static json_t *describe_attention(const sl_program *program) {
    json_t *groups = json_array();
    for (int32_t g = 0; groups && g < program->group_count; g++) {
        const sl_cache_group *group = &program->groups[g];
        const int32_t size = group->key_size + (group->values_are_keys ? 0 : group->value_size);
        json_int_t operations = 0;
        for (int32_t i = 0; i < program->op_count; i++) {
            const sl_op *op = &program->ops[i];
            if (op->kind == SL_OP_ATTENTION && op->u.attention.place.group == g) {
                operations += 2 * (json_int_t)op->u.attention.heads * (group->key_size + group->value_size);
            }
        }
        json_array_append_new(groups, json_pack("{s:i, s:I, s:I}", "window", group->window,
                                                "cache_elements_per_token",
                                                (json_int_t)group->layers * group->kv_heads * size,
                                                "operations_per_key", operations));
    }
    return groups;
}

static json_t *describe_json(const sluice_model *of) {
    const sl_model *model = of->model;
    const sl_model_description *d = &model->description;
    const sl_config *c = &model->config;
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, "
        "s:o}",
        "name", d->name, "family", d->family, "format", d->format, "parameters", (json_int_t)d->parameters,
        "bytes", (json_int_t)d->bytes, "tensors", (json_int_t)d->tensors, "file_tensors",
        (json_int_t)d->file_tensors, "layers", c->layers, "draft_layers", c->draft_layers, "width",
        model->program.width, "heads", c->heads, "kv_heads", c->kv_heads, "head_size", c->head_size,
        "vocabulary", model->program.vocabulary, "context", c->context, "experts", model->program.experts,
        "experts_used", model->program.experts_used, "types", describe_types(d), "attention",
        describe_attention(&model->program), "weights", describe_weights(&model->program));
    if (json && !sl_api_add_conduct(of, json)) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static void describe_text(const sluice_model *of, sl_buffer *out) {
    const sl_model *model = of->model;
    const sl_model_description *d = &model->description;
    const sl_config *c = &model->config;
    sl_buffer_printf(out, "name        %s\nfamily      %s (%s)\n", d->name, d->family, d->format);
    sl_buffer_printf(out, "parameters  %llu (%.2f B)\n", (unsigned long long)d->parameters,
                     (double)d->parameters * 1e-9);
    sl_buffer_printf(out, "weights     %llu bytes in %llu tensors\n", (unsigned long long)d->bytes,
                     (unsigned long long)d->tensors);
    sl_buffer_printf(out, "layers      %d, %d wide\n", c->layers, model->program.width);
    sl_buffer_printf(out, "heads       %d over %d of keys and values, size %d\n", c->heads, c->kv_heads,
                     c->head_size);
    if (c->draft_layers > 0) {
        sl_buffer_printf(out, "draft head  %d layer\n", c->draft_layers);
    }
    if (model->program.experts) {
        sl_buffer_printf(out, "experts     %d, %d used\n", model->program.experts,
                         model->program.experts_used);
    }
    sl_buffer_printf(out, "vocabulary  %d\ncontext     %d\n", model->program.vocabulary, c->context);
    sl_buffer_printf(out, "tokenizer   %s\ntemplate    %s\n", model->tokenizer ? "yes" : "none",
                     model->chat_template.data ? "yes" : "none (ChatML is used)");
    sl_api_describe_conduct(of, out);
    for (int t = 0; t < SL_QTYPE_COUNT; t++) {
        if (d->types[t].tensors) {
            sl_buffer_printf(out, "%-11s %llu tensors, %llu elements, %llu bytes\n",
                             sl_qtype_get((sl_qtype)t)->name, (unsigned long long)d->types[t].tensors,
                             (unsigned long long)d->types[t].elements, (unsigned long long)d->types[t].bytes);
        }
    }
    sl_buffer_text(out, "\n");
    for (int32_t i = 0; i < model->program.weight_count; i++) {
        const sl_weight *w = &model->program.weights[i];
        sl_buffer_printf(out, "%-40s %-5s ", w->name, sl_qtype_get(w->type)->name);
        if (w->experts > 1) {
            sl_buffer_printf(out, "%d x ", w->experts);
        }
        sl_buffer_printf(out, "%d x %d  %llu bytes\n", w->rows, w->columns, (unsigned long long)w->bytes);
    }
}

int sluice_model_describe(const sluice_model *model, sluice_text_format format, char **text,
                          sluice_error *error) {
    if (sl_api_lacks_text(model, format, text, error)) {
        return SL_ERR_INVALID;
    }
    sl_error inner;
    if (!sl_api_has_weights(model->model)) {
        return sl_api_no_weights(&inner), sl_api_error(error, &inner);
    }
    if (format == SLUICE_JSON) {
        return sl_api_give_json(describe_json(model), text, error);
    }
    sl_buffer buffer = {0};
    describe_text(model, &buffer);
    return sl_api_give_text(&buffer, text, NULL, error);
}
