/* Prompts, messages and the chat format: what run, chat, template and serve have in common. */
#define _GNU_SOURCE
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *read_prompt(const char *command, const settings *s, size_t *length, int *code) {
    *code = WRONG_USAGE;
    if (s->prompt && s->file) {
        fail("%s: -p and -f exclude each other", command);
        return NULL;
    }
    if (!s->prompt && !s->file && isatty(STDIN_FILENO)) {
        fail("%s: no text: give one with -p, with -f, or on standard input", command);
        return NULL;
    }
    char *text = s->prompt ? strdup(s->prompt) : read_all(s->file, length);
    if (s->prompt && text) {
        *length = strlen(text);
    } else if (s->prompt) {
        fail("out of memory");
    }
    *code = text ? DONE : FAILED;
    return text;
}

/* ---- the template ----------------------------------------------------------------------------------------
 */

static bool is_format(const char *name) {
    for (int i = 0; sluice_chat_format_name(i); i++) {
        if (strcmp(sluice_chat_format_name(i), name) == 0) {
            return true;
        }
    }
    return false;
}

/* A path as people write them, so that one that is missing is no name. */
static bool looks_like_path(const char *text) {
    const char *dot = strrchr(text, '.');
    return strchr(text, '/') || (dot && (strcmp(dot, ".jinja") == 0 || strcmp(dot, ".txt") == 0));
}

int model_options(const settings *s, sluice_model_options *options, char **text) {
    struct stat status;
    const char *given = s->chat_template;
    *options = (sluice_model_options){.size = sizeof *options};
    if (!given) {
        return DONE;
    }
    if (strstr(given, "{{") || strstr(given, "{%")) {
        options->chat_template = given;
    } else if (!is_format(given) &&
               (looks_like_path(given) || (stat(given, &status) == 0 && S_ISREG(status.st_mode)))) {
        size_t length;
        char *read = read_all(given, &length);
        *text = read ? realloc(read, length + 1) : NULL;
        if (!*text) {
            free(read);
            return FAILED;
        }
        (*text)[length] = '\0';
        if (strlen(*text) != length) {
            return fail("%s: not a text: it has a zero byte", given);
        }
        options->chat_template = *text;
    } else {
        options->chat_template_name = given;
    }
    return DONE;
}

/* KEY=VALUE, the value as JSON when it is some, else as text. */
static int add_template_option(json_t *options, const char *text) {
    const char *equals = strchr(text, '=');
    char key[128];
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof key) {
        fail("--template-option wants KEY=VALUE, as enable_thinking=false, not \"%s\"", text);
        return WRONG_USAGE;
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    value = value ? value : json_string(equals + 1);
    if (!value || json_object_set_new(options, key, value)) {
        fail("--template-option: not UTF-8: %s", text);
        return WRONG_USAGE;
    }
    return DONE;
}

json_t *template_options(const settings *s) {
    json_error_t error;
    json_t *options =
        s->template_kwargs ? json_loads(s->template_kwargs, JSON_REJECT_DUPLICATES, &error) : json_object();
    if (!json_is_object(options)) {
        fail("--chat-template-kwargs wants a JSON object, as {\"enable_thinking\": false}, not \"%s\"",
             s->template_kwargs);
        json_decref(options);
        return NULL;
    }
    for (int i = 0; i < s->template_options.count; i++) {
        if (add_template_option(options, s->template_options.items[i]) != DONE) {
            json_decref(options);
            return NULL;
        }
    }
    return options;
}

/* ---- messages --------------------------------------------------------------------------------------------
 */

int add_message(json_t *messages, const char *role, const char *text, size_t length) {
    json_t *content = json_stringn(text, length);
    if (!content) {
        return fail("a message must be UTF-8");
    }
    return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", content))
               ? fail("out of memory")
               : DONE;
}

int render_tokens(const sluice_model *model, const settings *settings, const json_t *messages,
                  int32_t **tokens, size_t *count) {
    sluice_error error;
    json_t *options = template_options(settings);
    if (!options) {
        return WRONG_USAGE;
    }
    char *list = json_dumps(messages, 0), *variables = json_dumps(options, 0);
    int code = list && variables ? DONE : fail("out of memory");
    if (code == DONE && sluice_chat_tokens(model, list, variables, tokens, count, &error)) {
        code = fail_with(&error);
    }
    json_decref(options);
    free(list);
    free(variables);
    return code == DONE && *count == 0 ? fail("the chat template renders to nothing") : code;
}
