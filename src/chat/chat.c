#include "chat/chat.h"

#include "base/alloc.h"

struct sl_chat {
    sl_template *compiled;
    char *bos_token, *eos_token;
    bool builtin;
};

/* ChatML, the format most models without a template of their own were trained on. */
static const char chatml[] =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

int sl_chat_create(const sl_chat_config *config, sl_chat **out, sl_error *error) {
    *out = NULL;
    sl_chat *chat = sl_alloc_zero(1, sizeof *chat);
    if (!chat) {
        return sl_fail(error, SL_ERR_NOMEM, "chat template: out of memory");
    }
    chat->builtin = !config->source || !config->source[0];
    const char *source = chat->builtin ? chatml : config->source;
    int code =
        sl_template_compile(source, strlen(source), chat->builtin ? "built-in ChatML template" : config->name,
                            &chat->compiled, error);
    chat->bos_token = code ? NULL : sl_strdup(config->bos_token ? config->bos_token : "");
    chat->eos_token = code ? NULL : sl_strdup(config->eos_token ? config->eos_token : "");
    if (!code && (!chat->bos_token || !chat->eos_token)) {
        code = sl_fail(error, SL_ERR_NOMEM, "chat template: out of memory");
    }
    if (code) {
        sl_chat_free(chat);
        return code;
    }
    *out = chat;
    return 0;
}

void sl_chat_free(sl_chat *chat) {
    if (chat) {
        sl_template_free(chat->compiled);
        sl_free(chat->bos_token);
        sl_free(chat->eos_token);
        sl_free(chat);
    }
}

bool sl_chat_is_builtin(const sl_chat *chat) {
    return chat->builtin;
}

/* NULL when memory ran out. The request's values are shared, not copied. */
static json_t *variables_of(const sl_chat *chat, const sl_chat_request *request) {
    json_t *variables = json_object();
    bool failed =
        !variables || json_object_set(variables, "messages", request->messages) ||
        json_object_set_new(variables, "tools", request->tools ? json_incref(request->tools) : json_null()) ||
        json_object_set_new(variables, "bos_token", json_string(chat->bos_token)) ||
        json_object_set_new(variables, "eos_token", json_string(chat->eos_token)) ||
        json_object_set_new(variables, "add_generation_prompt",
                            json_boolean(request->add_generation_prompt)) ||
        (request->extra && json_object_update(variables, request->extra));
    if (failed) {
        json_decref(variables);
        return NULL;
    }
    return variables;
}

int sl_chat_render(const sl_chat *chat, const sl_chat_request *request, sl_buffer *out, sl_error *error) {
    if (!json_is_array(request->messages) || (request->tools && !json_is_array(request->tools)) ||
        (request->extra && !json_is_object(request->extra))) {
        return sl_fail(error, SL_ERR_INVALID, "chat: messages and tools must be arrays, extra an object");
    }
    json_t *variables = variables_of(chat, request);
    if (!variables) {
        return sl_fail(error, SL_ERR_NOMEM, "chat: out of memory, or a special token is not UTF-8");
    }
    int code = sl_template_render(chat->compiled, variables, request->limits, out, error);
    json_decref(variables);
    return code;
}
