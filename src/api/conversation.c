/* The C API: which chat template a model talks in, and conversations as text and as tokens. */
#include "api/replies.h"

#include "base/alloc.h"
#include "chat/formats.h"
#include "format/json.h"

#include <string.h>

/* ---- the template ---- */

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

/* ---- conversations ---- */

static json_t *parse_json(const char *text, const char *name, bool (*is_kind)(const json_t *),
                          sluice_error *error) {
    json_t *value;
    sl_error inner;
    const int code = sl_json_parse(text, strlen(text), name, &value, &inner);
    if (code) {
        inner.code = code == SL_ERR_FORMAT ? SL_ERR_INVALID : code;
        sl_api_error(error, &inner);
        return NULL;
    }
    if (!is_kind(value)) {
        sl_api_fail(error, SL_ERR_INVALID, "%s: not of the expected kind", name);
        json_decref(value);
        return NULL;
    }
    return value;
}

static bool is_array(const json_t *value) {
    return json_is_array(value);
}

static bool is_object(const json_t *value) {
    return json_is_object(value);
}

/* A conversation as it came in, parsed; free_chat after success and failure alike. */
typedef struct chat_input {
    json_t *messages, *options, *extra;
    sl_chat_request request;
} chat_input;

static void free_chat(chat_input *input) {
    json_decref(input->messages);
    json_decref(input->options);
    json_decref(input->extra);
}

static int read_chat(const sluice_model *model, const char *messages, const char *options, chat_input *input,
                     sluice_error *error) {
    *input = (chat_input){0};
    if (sl_api_lacks(messages, "messages", error)) {
        return SL_ERR_INVALID;
    }
    if (!model->chat) {
        return sl_api_error(error, &model->chat_error);
    }
    input->messages = parse_json(messages, "messages", is_array, error);
    if (!input->messages) {
        return SL_ERR_INVALID;
    }
    input->options = options ? parse_json(options, "options", is_object, error) : NULL;
    if (options && !input->options) {
        return SL_ERR_INVALID;
    }
    sl_error inner;
    input->request.messages = input->messages;
    int result = sl_chat_read_options(input->options, &input->request, &input->extra, &inner);
    return result ? sl_api_error(error, &inner) : 0;
}

/* A template of its own for conversations with tools, as transformers takes it. */
static const sl_chat *chat_for(const sluice_model *model, const sl_chat_request *request) {
    return model->chat_tools && json_array_size(request->tools) > 0 ? model->chat_tools : model->chat;
}

int sluice_chat_render(const sluice_model *model, const char *messages, const char *options, char **text,
                       sluice_error *error) {
    if (sl_api_lacks_text(model, SLUICE_TEXT, text, error)) {
        return SL_ERR_INVALID;
    }
    chat_input input;
    sl_buffer buffer = {0};
    sl_error inner;
    int result = read_chat(model, messages, options, &input, error);
    if (result == 0 &&
        (result = sl_chat_render(chat_for(model, &input.request), &input.request, &buffer, &inner)) != 0) {
        sl_buffer_free(&buffer);
        sl_api_error(error, &inner);
    }
    free_chat(&input);
    return result ? result : sl_api_give_text(&buffer, text, NULL, error);
}

int sluice_chat_tokens(const sluice_model *model, const char *messages, const char *options, int32_t **tokens,
                       size_t *count, sluice_error *error) {
    if (sl_api_lacks_list(model, tokens, count, error)) {
        return SL_ERR_INVALID;
    }
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    if (!tokenizer) {
        return sl_api_no_tokenizer(error);
    }
    chat_input input;
    sl_tokens list = {0};
    sl_error inner;
    int result = read_chat(model, messages, options, &input, error);
    if (result == 0 && (result = sl_chat_encode(chat_for(model, &input.request), tokenizer, &input.request,
                                                &list, &inner)) != 0) {
        sl_tokens_free(&list);
        sl_api_error(error, &inner);
    }
    free_chat(&input);
    return result ? result : sl_api_give_tokens(&list, tokens, count, error);
}

int sluice_chat_get_facts(const sluice_model *model, sluice_chat_facts *out, sluice_error *error) {
    if (sl_api_lacks(model, "model", error) || sl_api_lacks(out, "facts", error) ||
        sl_api_check_size(out->size, "sluice_chat_facts", error)) {
        return SL_ERR_INVALID;
    }
    if (!model->chat) {
        return sl_api_error(error, &model->chat_error);
    }
    const sl_chat_facts *facts = sl_chat_get_facts(model->chat);
    const sl_reply_format *plain = sl_api_reply_format(model, false),
                          *format = sl_api_reply_format(model, true);
    sluice_chat_facts all = {
        .size = out->size,
        .builtin = facts->builtin,
        .tools = facts->tools || (model->chat_tools && sl_chat_get_facts(model->chat_tools)->tools),
        .parts = facts->parts,
        .enable_thinking = facts->enable_thinking,
        .thinks = facts->thinks,
        .think_open = facts->think_open,
        .think_close = facts->think_close,
        .template_name = model->chat_template_name,
        .reply_format = format->name,
        .call_id_length = format->id_length,
        .marks_thoughts = plain->marks[SL_REPLY_THINK_CLOSE] != NULL,
    };
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
    return 0;
}
