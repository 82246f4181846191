/* sluice template: messages in, the prompt that the model gets out. */
#define _GNU_SOURCE
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int show_names(const sluice_model *model) {
    printf("of the model:");
    for (int i = 0; sluice_chat_template_name(model, i); i++) {
        printf(" %s", sluice_chat_template_name(model, i));
    }
    printf("%s\nwell-known:", sluice_chat_template_name(model, 0) ? "" : " none");
    for (int i = 0; sluice_chat_format_name(i); i++) {
        printf(" %s", sluice_chat_format_name(i));
    }
    printf("\n");
    return DONE;
}

static int show_source(const sluice_model *model) {
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    if (!info.chat_template) {
        return fail("template: the model has no chat template, and ChatML is used: "
                    "--chat-template chatml --show prints that");
    }
    fputs(info.chat_template, stdout);
    return DONE;
}

static json_t *token_list(const int32_t *tokens, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++) {
        json_array_append_new(list, json_integer(tokens[i]));
    }
    return list;
}

/* As text the prompt and nothing else, so that it can go into a file or `sluice run --raw --special`. */
static int print_prompt(const settings *s, const sluice_model *model, const char *messages,
                        const char *options) {
    sluice_error error;
    char *text = NULL;
    int32_t *tokens = NULL;
    size_t count = 0;
    if (sluice_chat_render(model, messages, options, &text, &error)) {
        return fail_with(&error);
    }
    int code = DONE;
    if (strcmp(s->output, "json") == 0) {
        sluice_chat_facts facts = {.size = sizeof facts};
        code = sluice_chat_tokens(model, messages, options, &tokens, &count, &error) ||
                       sluice_chat_get_facts(model, &facts, &error)
                   ? fail_with(&error)
                   : print_json(json_pack("{s:s, s:s?, s:s, s:o}", "model", s->model, "template",
                                          facts.template_name, "text", text, "tokens",
                                          token_list(tokens, count)));
    } else {
        fputs(text, stdout);
    }
    sluice_free(tokens);
    sluice_free(text);
    return code;
}

/* {"messages": [...], "tools": [...]} as in a request to a server, or the list alone. A newline at the end of
 * plain text is not part of the message. */
static json_t *read_messages(const settings *s, json_t *options) {
    size_t length;
    int code;
    json_error_t error;
    char *text = read_prompt("template", s, &length, &code);
    if (!text) {
        return NULL;
    }
    json_t *messages = s->prompt ? json_pack("[{s:s, s:s#}]", "role", "user", "content", text, (int)length)
                                 : json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!messages) {
        fail("template: %s: %s", s->file ? s->file : "standard input", s->prompt ? "not UTF-8" : error.text);
        return NULL;
    }
    json_t *list = json_object_get(messages, "messages"), *tools = json_object_get(messages, "tools");
    if (tools) {
        json_object_set(options, "tools", tools);
    }
    if (list) {
        json_incref(list);
        json_decref(messages);
        messages = list;
    }
    if (s->system && json_is_array(messages)) {
        json_array_insert_new(messages, 0, json_pack("{s:s, s:s}", "role", "system", "content", s->system));
    }
    return messages;
}

static int render_messages(const settings *s, const sluice_model *model) {
    json_t *options = template_options(s);
    if (!options) {
        return WRONG_USAGE;
    }
    json_t *messages = read_messages(s, options);
    if (s->no_generation_prompt) {
        json_object_set_new(options, "add_generation_prompt", json_false());
    }
    char *list = messages ? json_dumps(messages, 0) : NULL, *variables = json_dumps(options, 0);
    int code = FAILED;
    if (messages) {
        code = list && variables ? print_prompt(s, model, list, variables) : fail("out of memory");
    }
    json_decref(messages);
    json_decref(options);
    free(list);
    free(variables);
    return code;
}

int template_command(const settings *s) {
    session session = {0};
    sluice_error error;
    sluice_chat_facts facts = {.size = sizeof facts};
    int code = open_model_text(s, &session);
    if (code == DONE && s->list) {
        code = show_names(session.model);
    } else if (code == DONE && s->show) {
        code = show_source(session.model);
    } else if (code == DONE && sluice_chat_get_facts(session.model, &facts, &error)) {
        code = fail_with(&error);
    } else if (code == DONE) {
        if (facts.builtin) {
            fail("template: the model has no chat template: ChatML is used (--chat-template NAME takes "
                 "another)");
        }
        code = render_messages(s, session.model);
    }
    close_session(&session);
    return code;
}
