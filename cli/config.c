/* Options from a JSON file: {"port": 9000, "model": ["a.gguf", "b.gguf"], "strict-model": true}. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 64, NUMBER_SIZE = 40 };

/* The value after the last --config, or NULL. */
static const char *config_path(int count, char **arguments) {
    const char *path = NULL;
    for (int i = 0; i < count && strcmp(arguments[i], "--") != 0; i++) {
        if (strncmp(arguments[i], "--config=", 9) == 0) {
            path = arguments[i] + 9;
        } else if (strcmp(arguments[i], "--config") == 0 && i + 1 < count) {
            path = arguments[i + 1];
        }
    }
    return path;
}

/* Numbers become texts that live as long as the JSON: members of an array beside it. */
static const char *text_of(const json_t *value, json_t *texts) {
    char number[NUMBER_SIZE];
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else {
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
    }
    json_t *text = json_string(number);
    json_array_append_new(texts, text);
    return json_string_value(text);
}

static int set_member(const command *command, const char *name, const json_t *value, json_t *texts,
                      settings *settings) {
    if (json_is_false(value) || json_is_null(value)) {
        return DONE;
    }
    if (json_is_true(value)) {
        return set_option(command, name, NULL, settings);
    }
    if (!json_is_string(value) && !json_is_number(value)) {
        fail("%s: %s in the file of --config: must be a text, a number, true, false or an array of texts",
             command->name, name);
        return WRONG_USAGE;
    }
    const char *text = text_of(value, texts);
    return text ? set_option(command, name, text, settings) : fail("out of memory");
}

static int set_members(const command *command, const json_t *root, json_t *texts, settings *settings) {
    const char *key;
    json_t *value;
    int code = DONE;
    json_object_foreach((json_t *)root, key, value) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "--%s", key);
        if (strcmp(name, "--config") == 0 || strcmp(name, "--help") == 0) {
            fail("%s: %s does not belong into the file of --config", command->name, name);
            return WRONG_USAGE;
        }
        const size_t count = json_is_array(value) ? json_array_size(value) : 1;
        for (size_t i = 0; code == DONE && i < count; i++) {
            code = set_member(command, name, json_is_array(value) ? json_array_get(value, i) : value, texts,
                              settings);
        }
    }
    return code;
}

/* What the command line gives in place of the file's. */
static void clear_given(const command *command, int count, char **arguments, settings *settings) {
    for (int i = 0; i < count; i++) {
        char name[NAME_SIZE];
        if (arguments[i][0] == '-') {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(arguments[i], "="), arguments[i]);
            clear_list(command, name, settings);
        }
    }
}

int read_config(const command *command, int count, char **arguments, settings *settings) {
    const char *path = command->bit == IN_SERVE ? config_path(count, arguments) : NULL;
    if (!path) {
        return DONE;
    }
    json_error_t error = {.line = 1, .text = "out of memory"};
    size_t length;
    char *text = read_all(path, &length);
    if (!text) {
        return WRONG_USAGE;
    }
    json_t *root = json_loadb(text, length, 0, &error), *texts = json_array();
    free(text);
    if (!json_is_object(root) || !texts) {
        fail("%s: %s: line %d: %s", command->name, path, root ? 1 : error.line,
             root ? "must be an object" : error.text);
        json_decref(root);
        json_decref(texts);
        return WRONG_USAGE;
    }
    settings->config_root = root;
    settings->config_texts = texts;
    const int code = set_members(command, root, texts, settings);
    if (code == DONE) {
        clear_given(command, count, arguments, settings);
    }
    return code;
}
