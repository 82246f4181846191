#define _POSIX_C_SOURCE 200809L
#include "format/hf.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "format/index.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tensor of the folder, and the file that must have it. */
typedef struct placed {
    const char *name, *shard; /* borrowed from the index while it is read */
    const sl_safetensors_entry *entry;
    const sl_safetensors *file;
} placed;

struct sl_hf {
    sl_arena arena;
    const char *path, *config_path, *quant_config_path, *generation_path, *tokenizer_path,
        *tokenizer_config_path;
    json_t *config, *quant_config, *generation; /* the last two: NULL when there is none */
    bool no_config;                             /* `config` stands for a file that is not there */
    sl_safetensors **shards;
    uint64_t shard_count;
    placed *tensors;
    uint64_t tensor_count;
    sl_name_index index;
};

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "no memory for the folder's contents");
}

/* *path: "folder/name", or NULL when there is no such file. */
static int locate(sl_hf *hf, const char *name, const char **path, sl_error *error) {
    struct stat status;
    *path = sl_arena_printf(&hf->arena, "%s/%s", hf->path, name);
    if (!*path) {
        return no_memory(error);
    }
    if (stat(*path, &status) != 0) {
        *path = NULL;
    }
    return 0;
}

static int load_object(const char *path, json_t **object, sl_error *error) {
    const int result = sl_json_load(path, SL_HF_CONFIG_LIMIT, object, error);
    return result == 0 && !json_is_object(*object)
               ? sl_fail(error, SL_ERR_FORMAT, "%s: must be a JSON object", path)
               : result;
}

/* The first name in the folder that ends so; false when there is none. */
static bool find_ending(const sl_hf *hf, const char *ending, char name[256]) {
    DIR *folder = opendir(hf->path);
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder)) != NULL;) {
        const size_t length = strlen(entry->d_name), end = strlen(ending);
        found = length > end && strcmp(entry->d_name + length - end, ending) == 0;
        snprintf(name, 256, "%s", entry->d_name);
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

/* `what` is missing; what else lies there says what to do. */
static int incomplete_folder(const sl_hf *hf, const char *what, sl_error *error) {
    char name[256];
    if (find_ending(hf, ".gguf", name)) {
        return sl_fail(error, SL_ERR_NOT_FOUND, "%s: a folder without %s; to open its GGUF file, give %s/%s",
                       hf->path, what, hf->path, name);
    }
    if (find_ending(hf, ".incomplete", name) || find_ending(hf, ".part", name)) {
        return sl_fail(error, SL_ERR_NOT_FOUND, "%s: a folder without %s: its download has not finished (%s)",
                       hf->path, what, name);
    }
    if (find_ending(hf, ".bin", name) || find_ending(hf, ".pt", name) || find_ending(hf, ".pth", name)) {
        return sl_fail(
            error, SL_ERR_NOT_FOUND,
            "%s: a folder without %s; PyTorch's files (%s) are not read, get the .safetensors files",
            hf->path, what, name);
    }
    return sl_fail(error, SL_ERR_NOT_FOUND,
                   "%s: a folder without %s; a model's folder has config.json, tokenizer.json and "
                   "model.safetensors (or its parts and model.safetensors.index.json)",
                   hf->path, what);
}

static int read_config(sl_hf *hf, sl_error *error) {
    int result = locate(hf, "config.json", &hf->config_path, error);
    result = result == 0 ? locate(hf, "hf_quant_config.json", &hf->quant_config_path, error) : result;
    result = result == 0 ? locate(hf, "generation_config.json", &hf->generation_path, error) : result;
    result = result == 0 ? locate(hf, "tokenizer.json", &hf->tokenizer_path, error) : result;
    result = result == 0 ? locate(hf, "tokenizer_config.json", &hf->tokenizer_config_path, error) : result;
    if (result == 0 && hf->quant_config_path) {
        result = load_object(hf->quant_config_path, &hf->quant_config, error);
    }
    if (result == 0 && hf->generation_path) {
        result = load_object(hf->generation_path, &hf->generation, error);
    }
    if (result != 0) {
        return result;
    }
    if (hf->config_path) {
        return load_object(hf->config_path, &hf->config, error);
    }
    if (!hf->tokenizer_path) {
        return incomplete_folder(hf, "config.json", error);
    }
    hf->config = json_object();
    hf->no_config = true;
    hf->config_path = sl_arena_printf(&hf->arena, "%s/config.json", hf->path);
    return hf->config && hf->config_path ? 0 : no_memory(error);
}

/* One file with all tensors. */
static int read_single(sl_hf *hf, const char *path, sl_error *error) {
    if (!(hf->shards = sl_alloc_zero(1, sizeof *hf->shards))) {
        return no_memory(error);
    }
    int result = sl_safetensors_open(path, &hf->shards[0], error);
    if (result != 0) {
        return result;
    }
    hf->shard_count = 1;
    hf->tensor_count = sl_safetensors_count(hf->shards[0]);
    if (!(hf->tensors = sl_alloc_zero(hf->tensor_count, sizeof *hf->tensors))) {
        return no_memory(error);
    }
    for (uint64_t i = 0; i < hf->tensor_count; i++) {
        hf->tensors[i].file = hf->shards[0];
        hf->tensors[i].entry = sl_safetensors_at(hf->shards[0], i);
    }
    return 0;
}

static int compare_shards(const void *left, const void *right) {
    return strcmp(((const placed *)left)->shard, ((const placed *)right)->shard);
}

static int compare_data(const void *left, const void *right) {
    const unsigned char *a = ((const placed *)left)->entry->tensor.data;
    const unsigned char *b = ((const placed *)right)->entry->tensor.data;
    return a < b ? -1 : a > b;
}

/* An index may name files of its own folder only. */
static bool is_plain_file_name(const char *name) {
    size_t length = strlen(name);
    return length > 0 && sl_name_bad_byte(name, length, false) == length && !strchr(name, '/') &&
           !strchr(name, '\\') && !strstr(name, "..") && strcmp(name, ".") != 0;
}

static int read_weight_map(sl_hf *hf, const char *path, json_t *map, sl_error *error) {
    const char *name;
    json_t *value;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: 'weight_map' must be an object with tensors", path);
    }
    if (!(hf->tensors = sl_alloc_zero(json_object_size(map), sizeof *hf->tensors))) {
        return no_memory(error);
    }
    json_object_foreach(map, name, value) {
        const char *shard = json_string_value(value);
        if (sl_name_bad_byte(name, strlen(name), false) < strlen(name)) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "%s: 'weight_map': a tensor's name holds a control character", path);
        }
        if (!shard || !is_plain_file_name(shard)) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "%s: 'weight_map': the file of tensor '%.100s' must be a plain file name", path,
                           name);
        }
        hf->tensors[hf->tensor_count++] = (placed){.name = name, .shard = shard};
    }
    sl_sort(hf->tensors, hf->tensor_count, sizeof *hf->tensors, compare_shards);
    return 0;
}

/* The tensors `from` to `to` are those of one shard. */
static int open_shard(sl_hf *hf, uint64_t from, uint64_t to, sl_error *error) {
    const char *path = sl_arena_printf(&hf->arena, "%s/%s", hf->path, hf->tensors[from].shard);
    if (!path) {
        return no_memory(error);
    }
    sl_safetensors *file;
    int result = sl_safetensors_open(path, &file, error);
    if (result == SL_ERR_IO && access(path, F_OK) != 0) {
        return sl_fail(error, SL_ERR_IO,
                       "%s: the index names it, but it is not there: has the download finished?", path);
    }
    if (result != 0) {
        return result;
    }
    hf->shards[hf->shard_count++] = file;
    for (uint64_t i = from; i < to; i++) {
        placed *tensor = &hf->tensors[i];
        tensor->file = file;
        tensor->entry = sl_safetensors_find(file, tensor->name);
        if (!tensor->entry) {
            return sl_fail(error, SL_ERR_FORMAT, "%s: tensor '%.100s' is missing, the index puts it here",
                           path, tensor->name);
        }
    }
    sl_sort(hf->tensors + from, to - from, sizeof *hf->tensors, compare_data);
    return 0;
}

static int open_shards(sl_hf *hf, sl_error *error) {
    uint64_t shards = 0, count = hf->tensor_count;
    for (uint64_t i = 0; i < count; i++) {
        shards += i == 0 || compare_shards(&hf->tensors[i - 1], &hf->tensors[i]) != 0;
    }
    if (!(hf->shards = sl_alloc_zero(shards, sizeof *hf->shards))) {
        return no_memory(error);
    }
    int result = 0;
    for (uint64_t from = 0, to; result == 0 && from < count; from = to) {
        for (to = from + 1; to < count && compare_shards(&hf->tensors[from], &hf->tensors[to]) == 0;) {
            to++;
        }
        result = open_shard(hf, from, to, error);
    }
    return result;
}

static int read_shards(sl_hf *hf, const char *path, sl_error *error) {
    json_t *index;
    int result = sl_json_load(path, SL_HF_INDEX_LIMIT, &index, error);
    result = result == 0 ? read_weight_map(hf, path, json_object_get(index, "weight_map"), error) : result;
    result = result == 0 ? open_shards(hf, error) : result;
    for (uint64_t i = 0; i < hf->tensor_count; i++) {
        hf->tensors[i].name = hf->tensors[i].shard = NULL; /* they go with the index */
    }
    json_decref(index);
    return result;
}

/* An index names one shard for each tensor; another shard may not have it too. */
static int check_shards(const sl_hf *hf, sl_error *error) {
    for (uint64_t s = 0; hf->shard_count > 1 && s < hf->shard_count; s++) {
        const sl_safetensors *file = hf->shards[s];
        for (uint64_t i = 0; i < sl_safetensors_count(file); i++) {
            const char *name = sl_safetensors_at(file, i)->tensor.name;
            const uint64_t item = sl_name_index_find(&hf->index, name);
            if (item != UINT64_MAX && hf->tensors[item].file != file) {
                return sl_fail(error, SL_ERR_FORMAT,
                               "%s: tensor '%.100s' is here, but the index puts it into %s",
                               sl_safetensors_path(file), name,
                               strrchr(sl_safetensors_path(hf->tensors[item].file), '/') + 1);
            }
        }
    }
    return 0;
}

static int read_weights(sl_hf *hf, sl_error *error) {
    const char *single, *index;
    int result = locate(hf, "model.safetensors", &single, error);
    result = result == 0 ? locate(hf, "model.safetensors.index.json", &index, error) : result;
    if (result == 0 && single) {
        result = read_single(hf, single, error);
    } else if (result == 0 && index) {
        result = read_shards(hf, index, error);
    } else if (result == 0 && !hf->tokenizer_path) {
        result = incomplete_folder(hf, "weights", error);
    }
    result = result == 0 ? sl_name_index_reserve(&hf->index, hf->tensor_count, error) : result;
    for (uint64_t i = 0; result == 0 && i < hf->tensor_count; i++) {
        sl_name_index_add(&hf->index, hf->tensors[i].entry->tensor.name, i);
    }
    if (result == 0) {
        sl_name_index_sort(&hf->index); /* the keys of one JSON object differ */
        result = check_shards(hf, error);
    }
    return result;
}

int sl_hf_open(const char *folder, sl_hf **out, sl_error *error) {
    *out = NULL;
    sl_hf *hf = sl_alloc_zero(1, sizeof *hf);
    if (!hf) {
        return no_memory(error);
    }
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    hf->path = sl_arena_strndup(&hf->arena, folder, length);
    int result = hf->path ? read_config(hf, error) : no_memory(error);
    result = result == 0 ? read_weights(hf, error) : result;
    if (result != 0) {
        sl_hf_close(hf);
        return result;
    }
    *out = hf;
    return 0;
}

void sl_hf_close(sl_hf *hf) {
    if (hf) {
        for (uint64_t i = 0; i < hf->shard_count; i++) {
            sl_safetensors_close(hf->shards[i]);
        }
        sl_free(hf->shards);
        sl_free(hf->tensors);
        sl_name_index_free(&hf->index);
        json_decref(hf->config);
        json_decref(hf->quant_config);
        json_decref(hf->generation);
        sl_arena_free(&hf->arena);
        sl_free(hf);
    }
}

int sl_hf_check_complete(const sl_hf *hf, sl_error *error) {
    return hf->no_config           ? incomplete_folder(hf, "config.json", error)
           : hf->tensor_count == 0 ? incomplete_folder(hf, "weights", error)
                                   : 0;
}

const char *sl_hf_path(const sl_hf *hf) {
    return hf->path;
}

const json_t *sl_hf_config(const sl_hf *hf) {
    return hf->config;
}

sl_json_place sl_hf_config_place(const sl_hf *hf) {
    return (sl_json_place){hf->config, hf->config_path};
}

sl_json_place sl_hf_quant_config_place(const sl_hf *hf) {
    return (sl_json_place){hf->quant_config, hf->quant_config_path};
}

sl_json_place sl_hf_generation_place(const sl_hf *hf) {
    return (sl_json_place){hf->generation, hf->generation_path};
}

int sl_hf_u64(const sl_hf *hf, const char *prefix, const char *key, uint64_t *value, sl_error *error) {
    return sl_json_u64(sl_hf_config_place(hf), prefix, key, value, error);
}

int sl_hf_f64(const sl_hf *hf, const char *prefix, const char *key, double *value, sl_error *error) {
    return sl_json_f64(sl_hf_config_place(hf), prefix, key, value, error);
}

int sl_hf_bool(const sl_hf *hf, const char *prefix, const char *key, bool *value, sl_error *error) {
    return sl_json_bool(sl_hf_config_place(hf), prefix, key, value, error);
}

int sl_hf_string(const sl_hf *hf, const char *prefix, const char *key, const char **value, sl_error *error) {
    return sl_json_string(sl_hf_config_place(hf), prefix, key, value, error);
}

const char *sl_hf_tokenizer_path(const sl_hf *hf) {
    return hf->tokenizer_path;
}

const char *sl_hf_tokenizer_config_path(const sl_hf *hf) {
    return hf->tokenizer_config_path;
}

uint64_t sl_hf_tensor_count(const sl_hf *hf) {
    return hf->tensor_count;
}

const sl_safetensors_entry *sl_hf_tensor_at(const sl_hf *hf, uint64_t index) {
    return hf->tensors[index].entry;
}

const sl_safetensors_entry *sl_hf_find(const sl_hf *hf, const char *name) {
    const uint64_t item = sl_name_index_find(&hf->index, name);
    return item == UINT64_MAX ? NULL : hf->tensors[item].entry;
}

int sl_hf_tensor(const sl_hf *hf, const char *name, const sl_tensor **tensor, sl_error *error) {
    uint64_t item = sl_name_index_find(&hf->index, name);
    if (item == UINT64_MAX) {
        return sl_fail(error, SL_ERR_NOT_FOUND, "%s: there is no tensor '%.100s'", hf->path, name);
    }
    return sl_safetensors_tensor(hf->tensors[item].file, name, tensor, error);
}
