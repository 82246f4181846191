#include "format/source.h"

#include "base/alloc.h"
#include "base/map.h"
#include "format/recognize.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

struct sl_source {
    sl_gguf *gguf;
    sl_hf *hf;
};

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int open_file_folder(sl_source *source, const char *path, sl_error *error) {
    const char *slash = strrchr(path, '/');
    char *folder = slash == path ? sl_strdup("/")
                   : slash       ? sl_strndup(path, (size_t)(slash - path))
                                 : sl_strdup(".");
    if (!folder) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory", path);
    }
    int result = sl_hf_open(folder, &source->hf, error);
    sl_free(folder);
    return result;
}

static int open_gguf(sl_source *source, const char *path, sl_error *error) {
    sl_map map = {0};
    int result = sl_map_open(&map, path, error);
    if (result == 0 && (map.size < 4 || memcmp(map.data, "GGUF", 4) != 0)) {
        const char *instead = sl_recognize(map.data, map.size);
        result = instead
                     ? sl_fail(error, SL_ERR_FORMAT, "%s: %s", path, instead)
                     : sl_fail(error, SL_ERR_FORMAT,
                               "%s: no model: expected a GGUF file, a .safetensors file, or a folder with "
                               "config.json and model.safetensors (or model.safetensors.index.json)",
                               path);
    }
    sl_map_close(&map);
    result = result == 0 ? sl_gguf_open(path, &source->gguf, error) : result;
    if (result == SL_ERR_FORMAT && error && sl_recognize_path(path)) {
        sl_error cause = *error;
        sl_fail(error, result, "%s; %s", cause.message, sl_recognize_path(path));
    }
    return result;
}

int sl_source_open(const char *path, sl_source **out, sl_error *error) {
    *out = NULL;
    struct stat status;
    if (stat(path, &status) != 0) {
        return sl_fail(error, SL_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    }
    sl_source *source = sl_alloc_zero(1, sizeof *source);
    if (!source) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory", path);
    }
    int result;
    if (S_ISDIR(status.st_mode)) {
        result = sl_hf_open(path, &source->hf, error);
    } else if (ends_with(path, ".safetensors") || ends_with(path, ".safetensors.index.json")) {
        result = open_file_folder(source, path, error);
    } else {
        result = open_gguf(source, path, error);
    }
    if (result != 0) {
        sl_source_close(source);
        return result;
    }
    *out = source;
    return 0;
}

void sl_source_close(sl_source *source) {
    if (source) {
        sl_gguf_close(source->gguf);
        sl_hf_close(source->hf);
        sl_free(source);
    }
}

const char *sl_source_path(const sl_source *source) {
    return source->gguf ? sl_gguf_path(source->gguf) : sl_hf_path(source->hf);
}

const sl_gguf *sl_source_gguf(const sl_source *source) {
    return source->gguf;
}

const sl_hf *sl_source_hf(const sl_source *source) {
    return source->hf;
}

int sl_source_tensor(const sl_source *source, const char *name, const sl_tensor **tensor, sl_error *error) {
    if (source->hf) {
        return sl_hf_tensor(source->hf, name, tensor, error);
    }
    const sl_tensor *found = sl_gguf_tensor(source->gguf, name);
    if (!found) {
        return sl_fail(error, SL_ERR_NOT_FOUND, "%s: there is no tensor '%.100s'", sl_gguf_path(source->gguf),
                       name);
    }
    *tensor = found;
    return 0;
}

uint64_t sl_source_tensor_count(const sl_source *source) {
    return source->hf ? sl_hf_tensor_count(source->hf) : sl_gguf_tensor_count(source->gguf);
}

const sl_tensor *sl_source_tensor_at(const sl_source *source, uint64_t index, const char **refusal) {
    const sl_safetensors_entry *entry = source->hf ? sl_hf_tensor_at(source->hf, index) : NULL;
    if (refusal) {
        *refusal = entry ? entry->refusal : NULL;
    }
    return entry ? &entry->tensor : sl_gguf_tensor_at(source->gguf, index);
}
