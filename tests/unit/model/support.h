/* Model files for tests: fixtures of transformers with changes, folders and GGUF files written beside the
 * build. */
#ifndef TESTS_UNIT_MODEL_SUPPORT_H
#define TESTS_UNIT_MODEL_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"
#include "unit/format/bytes.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURES SLUICE_SOURCE_DIR "/tests/logits/fixtures"

static inline void fixture_path(const char *name, char path[512]) {
    snprintf(path, 512, "%s/%s", FIXTURES, name);
}

/* The caller frees it. */
static inline sl_model *must_load(const char *path) {
    sl_model *model;
    sl_error error;
    if (sl_model_load(path, &model, &error)) {
        fail_msg("%s", error.message);
    }
    return model;
}

static inline json_t *fixture_config(const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s/config.json", FIXTURES, name);
    json_t *config = json_load_file(path, 0, NULL);
    if (!config) {
        fail_msg("cannot read %s", path);
    }
    return config;
}

/* Sets what stands at a path of keys separated by dots; value NULL deletes. Takes no reference. */
static inline void set_path(json_t *root, const char *path, json_t *value) {
    char keys[128];
    char *key = keys, *dot;
    snprintf(keys, sizeof keys, "%s", path);
    for (; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        *dot = '\0';
        json_t *inner = json_object_get(root, key);
        if (!inner) {
            json_object_set_new(root, key, inner = json_object());
        }
        root = inner;
    }
    if (value) {
        json_object_set(root, key, value);
    } else {
        json_object_del(root, key);
    }
}

static inline void write_text_file(const char *folder, const char *name, const char *text) {
    char path[1024];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(path, text, strlen(text));
}

static inline void write_config(const char *folder, const json_t *config) {
    char *text = json_dumps(config, JSON_INDENT(1));
    assert_non_null(text);
    write_text_file(folder, "config.json", text);
    free(text);
}

/* A folder's weights again, with changes: `edit` may rename, reshape or retype a tensor or change its data,
 * and returns false to leave it out. */
typedef struct edited {
    char name[128], dtype[8];
    uint64_t shape[4]; /* outermost first */
    int rank;
    unsigned char *data;
} edited;
typedef bool (*tensor_edit)(const char *context, edited *tensor);

/* `padding` spaces in the header move the data; a multiple of 8 keeps it aligned. */
static inline void write_weights(const char *folder, const char *fixture, tensor_edit edit,
                                 const char *context, int padding) {
    char path[1024];
    sl_source *source;
    sl_error error;
    bytes data = {0}, file = {0};
    sl_buffer header = {0};
    fixture_path(fixture, path);
    if (sl_source_open(path, &source, &error)) {
        fail_msg("%s", error.message);
    }
    sl_buffer_text(&header, "{");
    for (uint64_t i = 0; i < sl_source_tensor_count(source); i++) {
        const sl_tensor *tensor = sl_source_tensor_at(source, i, NULL);
        const size_t bytes_of = (size_t)tensor->bytes;
        const sl_safetensors_entry *entry = sl_hf_tensor_at(sl_source_hf(source), i);
        edited e = {.rank = (int)entry->rank, .data = malloc(bytes_of)};
        memcpy(e.data, tensor->data, bytes_of);
        snprintf(e.name, sizeof e.name, "%s", tensor->name);
        snprintf(e.dtype, sizeof e.dtype, "%s", entry->dtype);
        for (int d = 0; d < e.rank; d++) {
            e.shape[d] = tensor->dims[e.rank - 1 - d];
        }
        if (edit && !edit(context, &e)) {
            free(e.data);
            continue;
        }
        sl_buffer_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header.length > 1 ? "," : "",
                         e.name, e.dtype);
        for (int d = 0; d < e.rank; d++) {
            sl_buffer_printf(&header, "%s%llu", d ? "," : "", (unsigned long long)e.shape[d]);
        }
        sl_buffer_printf(&header, "],\"data_offsets\":[%zu,%zu]}", data.size, data.size + bytes_of);
        put_bytes(&data, e.data, bytes_of);
        free(e.data);
    }
    sl_buffer_text(&header, "}");
    while (header.length % 8 != 0) {
        sl_buffer_text(&header, " ");
    }
    sl_buffer_printf(&header, "%*s", padding, "");
    put_safetensors(&file, header.data, data.data, data.size);
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_file(path, file.data, file.size);
    sl_source_close(source);
    sl_buffer_free(&header);
    free(data.data);
    free(file.data);
}

#endif
