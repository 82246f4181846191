/* The C API: which chat template a model talks in. */
#include "api.h"

#include "base/alloc.h"
#include "chat/formats.h"

#include <string.h>

/* The text of a special token, NUL-terminated and owned; NULL when there is none or memory ran out (*failed).
 */
static char *special_text(const sl_tokenizer *tokenizer, int32_t id, bool *failed) {
    if (!tokenizer || id < 0) {
        return NULL;
    }
    sl_view text = sl_tokenizer_token_text(tokenizer, id);
    char *copy = sl_strndup(text.data, text.length);
    *failed |= copy == NULL;
    return copy;
}

/* "a, b, c"; cut where the buffer ends. */
static void list_names(const char *(*name)(const sluice_model *, int), const sluice_model *model, char *to,
                       size_t size) {
    size_t at = 0;
    to[0] = '\0';
    for (int i = 0; name(model, i) && at < size; i++) {
        at += (size_t)snprintf(to + at, size - at, "%s%s", i ? ", " : "", name(model, i));
    }
}

static const char *format_name(const sluice_model *model, int index) {
    (void)model;
    return sl_chat_format_name(index);
}

static int unknown_name(const sluice_model *model, const char *name, sl_error *error) {
    char own[128], formats[320];
    list_names(sluice_chat_template_name, model, own, sizeof own);
    list_names(format_name, model, formats, sizeof formats);
    return sl_fail(error, SL_ERR_NOT_FOUND,
                   "chat template: there is no \"%.60s\": the model has %s; known formats are %s", name,
                   own[0] ? own : "none", formats);
}

/* What to compile; config->source NULL is the built-in ChatML. */
static int choose(sluice_model *model, const sluice_model_options *options, sl_chat_config *config,
                  sl_error *error) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const char *name = options->chat_template_name;
    if (options->chat_template && name) {
        return sl_fail(error, SL_ERR_INVALID,
                       "model options: chat_template and chat_template_name exclude each other");
    }
    if (options->chat_template) {
        model->chat_text = sl_strdup(options->chat_template);
        config->source = model->chat_template = model->chat_text;
        config->name = "chat template";
        return model->chat_text ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for the chat template");
    }
    if (tokenizer) {
        config->source = sl_tokenizer_chat_template(tokenizer, name).data;
    }
    if (config->source && !config->source[0]) {
        config->source = NULL;
    }
    model->chat_template_name = config->source ? name ? name : "default" : NULL;
    if (!config->source && name) {
        config->source = sl_chat_format_source(name);
        config->name = name;
        config->leaves_bos = true;
    }
    model->chat_template = config->source;
    return config->source || !name ? 0 : unknown_name(model, name, error);
}

/* The name outlives the caller's options: the model's own copy of it, or the format's. */
static const char *kept_name(const sluice_model *model, const char *name) {
    for (int i = 0; sluice_chat_template_name(model, i); i++) {
        if (strcmp(sluice_chat_template_name(model, i), name) == 0) {
            return sluice_chat_template_name(model, i);
        }
    }
    for (int i = 0; sl_chat_format_name(i); i++) {
        if (strcmp(sl_chat_format_name(i), name) == 0) {
            return sl_chat_format_name(i);
        }
    }
    return NULL;
}

/* Conversations with tools have a template of their own where the model names one tool_use (transformers,
 * PreTrainedTokenizerBase.get_chat_template). One that does not compile is left aside. */
static int open_tools(sluice_model *model, sl_chat_config config, sl_error *error) {
    sl_error inner;
    config.source =
        model->model->tokenizer ? sl_tokenizer_chat_template(model->model->tokenizer, "tool_use").data : NULL;
    const int result = config.source ? sl_chat_create(&config, &model->chat_tools, &inner) : 0;
    return result == SL_ERR_NOMEM ? sl_fail(error, SL_ERR_NOMEM, "out of memory for the chat template") : 0;
}

int sl_api_open_chat(sluice_model *model, const sluice_model_options *options, sl_error *error) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const bool asked = options->chat_template || options->chat_template_name;
    bool failed = false;
    char *bos = special_text(tokenizer, tokenizer ? sl_tokenizer_bos(tokenizer) : -1, &failed);
    char *eos = special_text(tokenizer, tokenizer ? sl_tokenizer_eos(tokenizer) : -1, &failed);
    sl_chat_config config = {
        .name = model->model->description.name, .bos_token = bos, .eos_token = eos, .tokenizer = tokenizer};
    int result = failed ? SL_ERR_NOMEM : choose(model, options, &config, error);
    if (result == 0) {
        if (options->chat_template_name) {
            model->chat_template_name = kept_name(model, options->chat_template_name);
        } else if (!model->chat_template) {
            model->chat_template_name = "chatml";
        }
        result = sl_chat_create(&config, &model->chat, &model->chat_error);
        if (asked && result) {
            *error = model->chat_error;
        }
        if (!asked && result != SL_ERR_NOMEM) {
            result = result ? 0 : open_tools(model, config, error);
        }
    }
    sl_free(bos);
    sl_free(eos);
    return result == SL_ERR_NOMEM ? sl_fail(error, SL_ERR_NOMEM, "out of memory for the chat template")
                                  : result;
}

void sl_api_close_chat(sluice_model *model) {
    sl_chat_free(model->chat);
    sl_chat_free(model->chat_tools);
    sl_free(model->chat_text);
}

const char *sluice_chat_template_name(const sluice_model *model, int index) {
    return model && model->model->tokenizer && index >= 0
               ? sl_tokenizer_chat_template_name(model->model->tokenizer, index)
               : NULL;
}

const char *sluice_chat_format_name(int index) {
    return index >= 0 ? sl_chat_format_name(index) : NULL;
}
