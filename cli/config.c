/* Options from JSON files: {"port": 9000, "model": ["a.gguf", "b.gguf"], "strict-model": true}. */
#define _GNU_SOURCE
#include "options.h"

#include <pwd.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_SIZE = 64, NUMBER_SIZE = 40 };

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

const char *keep_text(settings *settings, const char *text) {
    json_t *kept = json_string_nocheck(text); /* a path may be of any bytes */
    return json_array_append_new(settings->texts, kept) ? NULL : json_string_value(kept);
}

static const char *text_of(const json_t *value, settings *settings) {
    char number[NUMBER_SIZE];
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else {
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
    }
    return keep_text(settings, number);
}

/* `place`: what messages call the file. */
static int set_member(const command *command, const char *name, const json_t *value, const char *place,
                      settings *settings) {
    if (json_is_false(value) || json_is_null(value)) {
        return DONE;
    }
    if (json_is_true(value)) {
        return set_option(command, name, NULL, settings);
    }
    if (!json_is_string(value) && !json_is_number(value)) {
        fail("%s: %s in %s: must be a text, a number, true, false or an array of texts", command->name, name,
             place);
        return WRONG_USAGE;
    }
    const char *text = text_of(value, settings);
    return text ? set_option(command, name, text, settings) : fail("out of memory");
}

static int set_members(const command *command, const json_t *root, settings *settings) {
    const char *key, *place = "the file of --config";
    json_t *value;
    int code = DONE;
    json_object_foreach((json_t *)root, key, value) {
        char name[KEY_SIZE];
        snprintf(name, sizeof name, "--%s", key);
        if (strcmp(name, "--config") == 0 || strcmp(name, "--help") == 0 ||
            strcmp(name, "--no-config") == 0) {
            fail("%s: %s does not belong into the file of --config", command->name, name);
            return WRONG_USAGE;
        }
        const size_t count = json_is_array(value) ? json_array_size(value) : 1;
        for (size_t i = 0; code == DONE && i < count; i++) {
            code = set_member(command, name, json_is_array(value) ? json_array_get(value, i) : value, place,
                              settings);
        }
    }
    return code;
}

/* What the command line gives in place of the file's. */
static void clear_given(const command *command, int count, char **arguments, settings *settings) {
    for (int i = 0; i < count; i++) {
        char name[KEY_SIZE];
        if (arguments[i][0] == '-') {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(arguments[i], "="), arguments[i]);
            clear_list(command, name, settings);
        }
    }
}

/* The object of a file; NULL after a message. */
static json_t *load_object(const command *command, const char *path) {
    json_error_t error = {.line = 1, .text = "out of memory"};
    size_t length;
    char *text = read_all(path, &length);
    json_t *root = text ? json_loadb(text, length, 0, &error) : NULL;
    if (text && !json_is_object(root)) {
        fail("%s: %s: line %d: %s", command->name, path, root ? 1 : error.line,
             root ? "must be an object" : error.text);
        json_decref(root);
        root = NULL;
    }
    free(text);
    return root;
}

/* ---- the user's own file ---------------------------------------------------------------------------------
 */

/* ~/.config/sluice/config.json, the home being that of the password database; false: there is none. */
static bool user_path(char path[DATA_PATH_SIZE]) {
    struct passwd entry, *found = NULL;
    char buffer[4096];
    return getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found) == 0 && found &&
           snprintf(path, DATA_PATH_SIZE, "%s/.config/sluice/config.json", found->pw_dir) < DATA_PATH_SIZE &&
           access(path, F_OK) == 0;
}

static bool is_left_out(int count, char **arguments) {
    for (int i = 0; i < count && strcmp(arguments[i], "--") != 0; i++) {
        if (strcmp(arguments[i], "--no-config") == 0) {
            return true;
        }
    }
    return false;
}

/* It is for all commands: each takes the options that it has. */
static int read_user_file(const command *command, settings *settings) {
    char path[DATA_PATH_SIZE], named[DATA_PATH_SIZE + 64];
    const char *key;
    json_t *value;
    if (!(command->bit & (IN_NAMES | IN_ENGINE)) || !user_path(path)) {
        return DONE;
    }
    struct command in_file = *command; /* whose messages name the file */
    snprintf(named, sizeof named, "%s: %s", command->name, path);
    in_file.name = named;
    if (!(settings->user_root = load_object(command, path))) {
        return WRONG_USAGE;
    }
    int code = DONE;
    json_object_foreach(settings->user_root, key, value) {
        char name[KEY_SIZE];
        snprintf(name, sizeof name, "--%s", key);
        const int known = is_for_user(command, name);
        if (!known || strcmp(name, "--no-config") == 0) {
            fail("%s: there is no option %s for this file: it may have those of the engine and of models by "
                 "name",
                 named, name);
            return WRONG_USAGE;
        }
        code = code == DONE && known == 2 ? set_member(&in_file, name, value, path, settings) : code;
    }
    return code;
}

int read_config(const command *command, int count, char **arguments, settings *settings) {
    const char *path = command->bit == IN_SERVE ? config_path(count, arguments) : NULL;
    if (!(settings->texts = json_array())) {
        return fail("out of memory");
    }
    int code = is_left_out(count, arguments) ? DONE : read_user_file(command, settings);
    if (code != DONE || !path) {
        return code;
    }
    if (!(settings->config_root = load_object(command, path))) {
        return WRONG_USAGE;
    }
    code = set_members(command, settings->config_root, settings);
    if (code == DONE) {
        clear_given(command, count, arguments, settings);
    }
    return code;
}
