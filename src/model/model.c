#include "model/model.h"

#include "base/alloc.h"
#include "base/map.h"
#include "model/build.h"

#include <stdio.h>

static int load_tokenizer(sl_model *model, sl_error *error) {
    const sl_gguf *gguf = sl_source_gguf(model->source);
    int code = 0;
    if (gguf) {
        code = sl_gguf_find(gguf, "tokenizer.ggml.model")
                   ? sl_tokenizer_from_gguf(gguf, &model->tokenizer, error)
                   : 0;
    } else {
        const sl_hf *hf = sl_source_hf(model->source);
        const char *path = sl_hf_tokenizer_path(hf);
        code = path ? sl_tokenizer_from_json(path, sl_hf_tokenizer_config_path(hf), &model->tokenizer, error)
                    : 0;
    }
    code = code ? code : sl_sampling_read(model->source, &model->sampling, error);
    if (code == 0 && model->tokenizer) {
        code = sl_read_ends(model->source, model->tokenizer, error);
        model->chat_template = sl_tokenizer_chat_template(model->tokenizer, NULL);
    }
    return code;
}

/* As much as fits, in whole characters. Names are shown on terminals and in JSON: what is no UTF-8, and
 * control characters, become question marks. */
static void copy_name(sl_view name, char *to, size_t size) {
    size_t length = 0;
    for (size_t at = 0; at < name.length;) {
        uint32_t c;
        size_t step = sl_utf8_decode(name.data + at, name.length - at, &c);
        const bool shown = step > 0 && c >= 0x20 && (c < 0x7f || c > 0x9f);
        step = step > 0 ? step : 1;
        if (length + (shown ? step : 1) >= size) {
            break;
        }
        if (shown) {
            memcpy(to + length, name.data + at, step);
            length += step;
        } else {
            to[length++] = '?';
        }
        at += step;
    }
    to[length] = '\0';
}

static void describe_name(const sl_model *model, sl_model_description *d) {
    const sl_gguf *gguf = sl_source_gguf(model->source);
    const char *path = sl_source_path(model->source);
    sl_view name;
    if (!gguf || sl_gguf_string(gguf, "general.name", &name, NULL) != 0 || name.length == 0) {
        size_t end = strlen(path);
        while (end > 1 && path[end - 1] == '/') {
            end--;
        }
        size_t first = end;
        while (first > 0 && path[first - 1] != '/') {
            first--;
        }
        name.data = path + first;
        name.length = end - first;
    }
    copy_name(name, d->name, sizeof d->name);
}

static void describe(sl_model *model, const sl_binding *binding) {
    sl_model_description *d = &model->description;
    describe_name(model, d);
    d->family = model->config.family->name;
    d->format = sl_source_gguf(model->source) ? "GGUF" : "safetensors";
    d->owned_bytes = model->owned.bytes;
    d->tensors = binding->tensors;
    d->file_tensors = sl_source_tensor_count(model->source);
    memcpy(d->types, binding->types, sizeof d->types);
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        d->parameters += d->types[type].elements;
        d->bytes += d->types[type].bytes;
    }
}

/* Every token that text can become must have a row of the embedding. Added tokens may lie beyond (Gemma 3 has
 * one for images in models without eyes): what writes them gets an error. */
static int check_vocabulary(const sl_model *model, sl_error *error) {
    const int32_t size = model->tokenizer ? sl_tokenizer_size(model->tokenizer) : 0;
    for (int32_t id = model->config.vocabulary; id < size; id++) {
        const sl_token_type type = sl_tokenizer_token_type(model->tokenizer, id);
        const sl_view text = sl_tokenizer_token_text(model->tokenizer, id);
        if (type == SL_TOKEN_NORMAL || type == SL_TOKEN_BYTE) {
            return sl_fail(
                error, SL_ERR_FORMAT,
                "%s: the model's vocabulary has %d tokens (vocab_size), but the tokenizer's '%.*s' "
                "is token %d",
                sl_source_path(model->source), model->config.vocabulary,
                (int)(text.length < 60 ? text.length : 60), text.data, id);
        }
    }
    return 0;
}

static int load(sl_model *model, const char *path, sl_error *error) {
    sl_binding binding;
    int code = sl_source_open(path, &model->source, error);
    if (code == 0 && sl_source_hf(model->source)) {
        code = sl_hf_check_complete(sl_source_hf(model->source), error);
    }
    code = code ? code : sl_config_read(model->source, &model->config, error);
    code = code ? code : load_tokenizer(model, error);
    code = code ? code : check_vocabulary(model, error);
    if (code) {
        return code;
    }
    code = sl_model_bind(&model->config, model->source, &model->program, &model->owned, &binding, error);
    if (code) {
        return code;
    }
    model->config.draft_layers = binding.draft_layers;
    code = sl_model_build(&model->config, &binding, &model->program, error);
    if (code == 0 && binding.draft_layers > 0) {
        code = sl_model_build_drafting(&model->config, &binding, &model->program, &model->drafting, error);
    }
    code = code ? code : sl_embedding_read(model->source, &model->config, &model->embedding, error);
    code = code ? code : sl_embedding_take_head(&model->program, model->tokenizer, &model->embedding, error);
    describe(model, &binding);
    sl_binding_free(&binding);
    return code;
}

static int load_for_plan(sl_model *model, const char *path, sl_error *error) {
    model->owned.later = true;
    model->dropped = true;
    return load(model, path, error);
}

static int load_only_tokenizer(sl_model *model, const char *path, sl_error *error) {
    int code = sl_source_open(path, &model->source, error);
    code = code ? code : load_tokenizer(model, error);
    if (code == 0 && !model->tokenizer) {
        return sl_fail(error, SL_ERR_NOT_FOUND, "%s: there is no tokenizer", path);
    }
    if (code == 0) {
        describe_name(model, &model->description);
        model->description.family = "";
        model->description.format = sl_source_gguf(model->source) ? "GGUF" : "safetensors";
    }
    return code;
}

static int load_with(int (*load_it)(sl_model *model, const char *path, sl_error *error), const char *path,
                     sl_model **model, sl_error *error) {
    *model = NULL;
    sl_model *loaded = sl_alloc_zero(1, sizeof *loaded);
    if (!loaded) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", path);
    }
    pthread_mutex_init(&loaded->mutex, NULL);
    sl_map_begin();
    int code = load_it(loaded, path, error);
    code = code ? code : sl_model_check(loaded, error);
    if (code) {
        sl_model_free(loaded);
        loaded = NULL;
    }
    code = sl_map_end(code, error);
    if (code) {
        sl_model_free(loaded);
        loaded = NULL;
    }
    *model = loaded;
    return code;
}

int sl_model_check(const sl_model *model, sl_error *error) {
    const uint64_t count = sl_map_losses() > 0 ? sl_source_tensor_count(model->source) : 0;
    for (uint64_t i = 0; i < count; i++) {
        const char *refusal;
        const int code = sl_map_check(sl_source_tensor_at(model->source, i, &refusal)->data, error);
        if (code) {
            return code;
        }
    }
    return 0;
}

int sl_model_load(const char *path, sl_model **model, sl_error *error) {
    return load_with(load, path, model, error);
}

int sl_model_load_for_plan(const char *path, sl_model **model, sl_error *error) {
    return load_with(load_for_plan, path, model, error);
}

int sl_model_load_tokenizer(const char *path, sl_model **model, sl_error *error) {
    return load_with(load_only_tokenizer, path, model, error);
}

void sl_model_free(sl_model *model) {
    if (!model) {
        return;
    }
    sl_program_free(&model->drafting);
    sl_program_free(&model->program);
    sl_owned_free(&model->owned);
    sl_embedding_free(&model->embedding);
    sl_tokenizer_destroy(model->tokenizer);
    sl_source_close(model->source);
    pthread_mutex_destroy(&model->mutex);
    sl_free(model);
}

int sl_model_hold(sl_model *model, sl_error *error) {
    pthread_mutex_lock(&model->mutex);
    const int code = model->dropped ? sl_owned_make_copies(&model->owned, error) : 0;
    if (code == 0) {
        model->dropped = false;
        model->holders++;
    }
    pthread_mutex_unlock(&model->mutex);
    return code;
}

void sl_model_let_go(sl_model *model, bool drop) {
    pthread_mutex_lock(&model->mutex);
    if (--model->holders == 0 && drop) {
        sl_owned_drop_copies(&model->owned);
        model->dropped = true;
    }
    pthread_mutex_unlock(&model->mutex);
}
