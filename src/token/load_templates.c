/* The chat templates that lie beside a tokenizer.json (transformers, tokenization_utils_base.py and
 * processing_utils.py):
 *   chat_template.jinja                  the default one, in place of tokenizer_config.json's
 *   additional_chat_templates/NAME.jinja others by their names
 *   chat_template.json                   {"chat_template": ...} of processors, where no other default is */
#define _GNU_SOURCE
#include "base/map.h"
#include "format/json.h"
#include "token/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, MOST_BYTES = 4 << 20, MOST_FILES = 64 };

/* FOLDER/NAME of the folder of `beside`; false when the path is too long. */
static bool path_beside(const char *beside, const char *name, char path[PATH_SIZE]) {
    const char *slash = strrchr(beside, '/');
    const int folder = slash ? (int)(slash - beside) + 1 : 0;
    return snprintf(path, PATH_SIZE, "%.*s%s", folder, beside, name) < PATH_SIZE;
}

static int check_text(sl_view text, const char *path, sl_error *error) {
    uint32_t c;
    for (size_t at = 0, step; at < text.length; at += step) {
        step = sl_utf8_decode(text.data + at, text.length - at, &c);
        if (step == 0 || c == 0) {
            return sl_fail(error, SL_ERR_FORMAT, "%s: byte %zu is not UTF-8 text", path, at);
        }
    }
    return 0;
}

static int add_file(sl_tokenizer *tokenizer, sl_view name, const char *path, sl_error *error) {
    sl_map map = {0};
    int code = sl_map_open(&map, path, error);
    if (code) {
        return code;
    }
    sl_view text = {(const char *)map.data, map.size};
    if (text.length >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
        text = (sl_view){text.data + 3, text.length - 3};
    }
    if (map.size > MOST_BYTES) {
        code = sl_fail(error, SL_ERR_LIMIT, "%s: larger than %d bytes", path, MOST_BYTES);
    }
    code = code ? code : check_text(text, path, error);
    code = code ? code : sl_tokenizer_add_template(tokenizer, name, text, error);
    sl_map_close(&map);
    return code;
}

static int is_template(const struct dirent *entry) {
    const size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 6 && strcmp(entry->d_name + length - 6, ".jinja") == 0;
}

static int add_folder(sl_tokenizer *tokenizer, const char *beside, sl_error *error) {
    char folder[PATH_SIZE], path[PATH_SIZE];
    struct dirent **entries = NULL;
    if (!path_beside(beside, "additional_chat_templates", folder) || access(folder, F_OK)) {
        return 0;
    }
    const int count = scandir(folder, &entries, is_template, alphasort);
    int code = 0;
    if (count < 0) {
        return sl_fail(error, errno == ENOMEM ? SL_ERR_NOMEM : SL_ERR_IO, "%s: cannot read the folder: %s",
                       folder, strerror(errno));
    }
    if (count > MOST_FILES) {
        code = sl_fail(error, SL_ERR_LIMIT, "%s: more than %d templates", folder, MOST_FILES);
    }
    for (int i = 0; i < count; i++) {
        const sl_view name = {entries[i]->d_name, strlen(entries[i]->d_name) - 6};
        if (code == 0 && snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < PATH_SIZE) {
            code = add_file(tokenizer, name, path, error);
        }
        free(entries[i]);
    }
    free(entries);
    return code;
}

static int add_processor_file(sl_tokenizer *tokenizer, const char *path, sl_error *error) {
    json_t *root;
    const char *text;
    int code = sl_json_load(path, MOST_BYTES, &root, error);
    if (code) {
        return code;
    }
    code = sl_json_string((sl_json_place){root, path}, NULL, "chat_template", &text, error);
    if (code == 0) {
        code = sl_tokenizer_add_template(tokenizer, sl_view_of("default"), sl_view_of(text), error);
    }
    json_decref(root);
    return code == SL_ERR_NOT_FOUND ? 0 : code;
}

int sl_tokenizer_load_templates(sl_tokenizer *tokenizer, const char *beside, sl_error *error) {
    char path[PATH_SIZE];
    int code = 0;
    if (path_beside(beside, "chat_template.jinja", path) && access(path, F_OK) == 0) {
        code = add_file(tokenizer, sl_view_of("default"), path, error);
    }
    code = code ? code : add_folder(tokenizer, beside, error);
    if (code == 0 && !sl_tokenizer_chat_template(tokenizer, NULL).data &&
        path_beside(beside, "chat_template.json", path) && access(path, F_OK) == 0) {
        code = add_processor_file(tokenizer, path, error);
    }
    return code;
}
