/* Messages to a prompt, with the model's chat template. */
#include "server.h"

#include "messages.h"

#include <string.h>

static int no_memory(http_error *error) {
    const sluice_error inner = {.code = SLUICE_ERR_NOMEM, .message = "out of memory for the prompt"};
    error_from_sluice(&inner, error);
    return -1;
}

/* A member of the request's options, or of the server's where the request has none. */
static const json_t *option_of(const served_model *m, const json_t *kwargs, const char *name) {
    const json_t *own = json_object_get(kwargs, name);
    return own ? own : json_object_get(m->template_options, name);
}

/* A new object of both; NULL without memory. */
static json_t *all_options(const served_model *m, const json_t *kwargs) {
    json_t *all = m->template_options ? json_copy((json_t *)(uintptr_t)m->template_options) : json_object();
    if (all && kwargs && json_object_update(all, (json_t *)(uintptr_t)kwargs)) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* The library's texts for a list of messages and its options. */
static int prompt_inputs(const served_model *m, const json_t *messages, const json_t *kwargs, text *list,
                         text *options, http_error *error) {
    text_json_new(list, uniform_messages(messages));
    text_json_new(options, all_options(m, kwargs));
    return list->failed || options->failed ? no_memory(error) : 0;
}

/* What a template refuses is the client's to change. */
static int refused(const sluice_error *inner, const char *param, http_error *error) {
    error_from_sluice(inner, error);
    if (inner->code == SLUICE_ERR_LIMIT) {
        body_refuse_as(error, param, "%s", inner->message);
    }
    if (error->status == 400) {
        snprintf(error->param, sizeof error->param, "%s", param);
    }
    return -1;
}

int messages_to_tokens(const served_model *m, const json_t *messages, const json_t *kwargs, const char *param,
                       prompt_tokens *prompt, http_error *error) {
    text list = {0}, options = {0};
    sluice_error inner = {0};
    *prompt = (prompt_tokens){0};
    int code = prompt_inputs(m, messages, kwargs, &list, &options, error);
    if (!code &&
        sluice_chat_tokens(m->model, list.data, options.data, &prompt->tokens, &prompt->count, &inner)) {
        code = refused(&inner, param, error);
    }
    text_free(&list);
    text_free(&options);
    return code;
}

int messages_to_text(const served_model *m, const json_t *messages, const json_t *kwargs, const char *param,
                     char **prompt, http_error *error) {
    text list = {0}, options = {0};
    sluice_error inner = {0};
    *prompt = NULL;
    int code = prompt_inputs(m, messages, kwargs, &list, &options, error);
    if (!code && sluice_chat_render(m->model, list.data, options.data, prompt, &inner)) {
        code = refused(&inner, param, error);
    }
    text_free(&list);
    text_free(&options);
    return code;
}

int add_messages(generation *g, const json_t *messages, const json_t *kwargs, const char *param,
                 http_error *error) {
    const served_model *m = generation_model(g);
    prompt_tokens prompt;
    sluice_thought thought;
    sluice_error inner;
    if (messages_to_tokens(m, messages, kwargs, param, &prompt, error)) {
        return -1;
    }
    const bool tools = json_object_get(kwargs, "tools") != NULL;
    if (sluice_prompt_thought(m->model, prompt.tokens, prompt.count, tools, &thought, &inner)) {
        sluice_free(prompt.tokens);
        error_from_sluice(&inner, error);
        return -1;
    }
    if (thought == SLUICE_THOUGHT_MAY && json_is_false(option_of(m, kwargs, "enable_thinking"))) {
        thought = SLUICE_THOUGHT_NONE;
    }
    generation_expect_reply(g, thought);
    return generation_add_prompt(g, prompt.tokens, prompt.count, error);
}
