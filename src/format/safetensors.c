#include "format/safetensors.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/map.h"
#include "format/index.h"
#include "format/recognize.h"
#include "format/json.h"

#include <stdio.h>
#include <string.h>

struct sl_safetensors {
    char *path;
    sl_map map;                /* zero when the bytes are the caller's */
    const unsigned char *data; /* after the header */
    uint64_t size;
    sl_arena names;
    sl_safetensors_entry *entries; /* sorted by offset */
    uint64_t count;
    sl_name_index index;
};

/* Bits of one element, and the type that computes with it (-1: none yet). */
static const struct dtype {
    const char *name;
    uint32_t bits;
    int type;
} dtypes[] = {
    {"F32", 32, SL_QTYPE_F32},
    {"F16", 16, SL_QTYPE_F16},
    {"BF16", 16, SL_QTYPE_BF16},
    {"F64", 64, -1},
    {"C64", 64, -1},
    {"I64", 64, -1},
    {"U64", 64, -1},
    {"I32", 32, -1},
    {"U32", 32, -1},
    {"I16", 16, -1},
    {"U16", 16, -1},
    {"I8", 8, -1},
    {"U8", 8, -1},
    {"BOOL", 8, -1},
    {"F8_E4M3", 8, -1},
    {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F8_E4M3FNUZ", 8, -1},
    {"F8_E5M2FNUZ", 8, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
    {"F4", 4, -1},
};

static const struct dtype *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

/* A JSON array of integers >= 0, item `index`. */
static bool item_u64(const json_t *array, size_t index, uint64_t *value) {
    const json_t *item = json_array_get(array, index);
    if (!json_is_integer(item) || json_integer_value(item) < 0) {
        return false;
    }
    *value = (uint64_t)json_integer_value(item);
    return true;
}

/* Fills rank, dims (turned round: innermost first) and elements. */
static int read_shape(sl_safetensors_entry *entry, const json_t *shape, sl_error *error) {
    if (!json_is_array(shape)) {
        return sl_fail(error, SL_ERR_FORMAT, "'shape' must be an array");
    }
    sl_tensor *tensor = &entry->tensor;
    size_t rank = json_array_size(shape);
    entry->rank = rank > UINT32_MAX ? UINT32_MAX : (uint32_t)rank;
    tensor->dim_count = rank == 0 ? 1 : rank < SL_TENSOR_DIMS ? (uint32_t)rank : SL_TENSOR_DIMS;
    tensor->elements = 1;
    for (size_t i = 0; i < SL_TENSOR_DIMS; i++) {
        tensor->dims[i] = 1;
    }
    for (size_t i = 0; i < rank; i++) {
        uint64_t size, place = rank - 1 - i;
        if (!item_u64(shape, i, &size)) {
            return sl_fail(error, SL_ERR_FORMAT, "'shape' item %zu must be an integer >= 0", i);
        }
        if (!sl_mul_u64(tensor->elements, size, &tensor->elements)) {
            return sl_fail(error, SL_ERR_FORMAT, "the number of elements overflows at 'shape' item %zu", i);
        }
        if (place < SL_TENSOR_DIMS) {
            tensor->dims[place] = size;
        }
    }
    return 0;
}

/* Fills data and bytes. */
static int read_offsets(const sl_safetensors *file, sl_safetensors_entry *entry, const json_t *offsets,
                        sl_error *error) {
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 || !item_u64(offsets, 0, &begin) || !item_u64(offsets, 1, &end)) {
        return sl_fail(error, SL_ERR_FORMAT, "'data_offsets' must be two integers >= 0");
    }
    if (begin <= end && end > file->size) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "'data_offsets' end at byte %llu, but the file has %llu bytes of data: it is not "
                       "complete, so get it again",
                       (unsigned long long)end, (unsigned long long)file->size);
    }
    if (begin > end) {
        return sl_fail(error, SL_ERR_FORMAT, "'data_offsets' are %llu and %llu, must ascend",
                       (unsigned long long)begin, (unsigned long long)end);
    }
    entry->tensor.data = file->data + begin;
    entry->tensor.bytes = end - begin;
    return 0;
}

static int check_dtype(sl_safetensors_entry *entry, sl_error *error) {
    sl_tensor *tensor = &entry->tensor;
    const struct dtype *dtype = find_dtype(entry->dtype);
    uint64_t bits = 0;
    if (dtype &&
        (!sl_mul_u64(tensor->elements, dtype->bits, &bits) || bits % 8 != 0 || bits / 8 != tensor->bytes)) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "'data_offsets' span %llu bytes, but 'shape' has %llu elements of %u bits",
                       (unsigned long long)tensor->bytes, (unsigned long long)tensor->elements, dtype->bits);
    }
    if (!dtype || dtype->type < 0) {
        entry->refusal = "its dtype is not supported";
    } else if (tensor->elements == 0) {
        entry->refusal = "a dimension is 0";
    } else if (entry->rank > SL_TENSOR_DIMS) {
        entry->refusal = "it has more than 4 dimensions";
    } else {
        tensor->type = (sl_qtype)dtype->type;
    }
    return 0;
}

static int read_entry(sl_safetensors *file, const json_t *value, sl_safetensors_entry *entry,
                      sl_error *error) {
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype || sl_name_bad_byte(dtype, strlen(dtype), true) < strlen(dtype)) {
        return sl_fail(error, SL_ERR_FORMAT, "must be an object with a 'dtype' of printable ASCII");
    }
    if (!(entry->dtype = sl_arena_strndup(&file->names, dtype, strlen(dtype)))) {
        return sl_fail(error, SL_ERR_NOMEM, "no memory for names");
    }
    int result = read_shape(entry, json_object_get(value, "shape"), error);
    result = result == 0 ? read_offsets(file, entry, json_object_get(value, "data_offsets"), error) : result;
    return result == 0 ? check_dtype(entry, error) : result;
}

static int compare_places(const void *left, const void *right) {
    const sl_tensor *a = &((const sl_safetensors_entry *)left)->tensor;
    const sl_tensor *b = &((const sl_safetensors_entry *)right)->tensor;
    if (a->data != b->data) {
        return (const unsigned char *)a->data < (const unsigned char *)b->data ? -1 : 1;
    }
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

_Static_assert(sizeof(sl_safetensors_entry) <= SL_SORT_ITEM_SIZE, "entries are sorted");

/* Sorted by place, each begins where the one before it ends, and the last ends with the file. */
static int check_coverage(sl_safetensors *file, sl_error *error) {
    sl_sort(file->entries, file->count, sizeof *file->entries, compare_places);
    const unsigned char *end = file->data;
    for (uint64_t i = 0; i < file->count; i++) {
        const sl_tensor *tensor = &file->entries[i].tensor;
        const unsigned char *begin = tensor->data;
        if (begin != end) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "tensor '%.100s' begins at byte %llu of the data, %s byte %llu", tensor->name,
                           (unsigned long long)(begin - file->data),
                           begin < end ? "but another ends at" : "leaving a gap from",
                           (unsigned long long)(end - file->data));
        }
        end = begin + tensor->bytes;
    }
    return end == file->data + file->size
               ? 0
               : sl_fail(error, SL_ERR_FORMAT, "the tensors end at byte %llu of the data, which has %llu",
                         (unsigned long long)(end - file->data), (unsigned long long)file->size);
}

static int read_names(sl_safetensors *file, json_t *header, sl_error *error) {
    const char *name;
    json_t *value;
    file->entries = sl_alloc_zero(json_object_size(header), sizeof *file->entries);
    if (!file->entries) {
        return sl_fail(error, SL_ERR_NOMEM, "no memory for tensors");
    }
    json_object_foreach(header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        sl_safetensors_entry *entry = &file->entries[file->count];
        size_t length = strlen(name);
        if (length == 0 || sl_name_bad_byte(name, length, false) < length) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "the name of tensor %llu is empty or holds a control character",
                           (unsigned long long)file->count);
        }
        if (!(entry->tensor.name = sl_arena_strndup(&file->names, name, length))) {
            return sl_fail(error, SL_ERR_NOMEM, "no memory for names");
        }
        if (read_entry(file, value, entry, error) != 0) {
            char prefix[128];
            snprintf(prefix, sizeof prefix, "tensor '%.100s'", name);
            return sl_fail_prefix(error, prefix);
        }
        file->count++;
    }
    int result = check_coverage(file, error);
    result = result == 0 ? sl_name_index_reserve(&file->index, file->count, error) : result;
    for (uint64_t i = 0; result == 0 && i < file->count; i++) {
        sl_name_index_add(&file->index, file->entries[i].tensor.name, i);
    }
    if (result == 0) {
        sl_name_index_sort(&file->index); /* jansson refused duplicates */
    }
    return result;
}

static int read_header(sl_safetensors *file, const unsigned char *data, size_t size, sl_error *error) {
    uint64_t length = 0;
    for (size_t i = 0; i < 8 && i < size; i++) {
        length |= (uint64_t)data[i] << (8 * i);
    }
    const char *instead = sl_recognize(data, size);
    if (instead) {
        return sl_fail(error, SL_ERR_FORMAT, "%s", instead);
    }
    if (size < 8 || length > size - 8 || length > SL_SAFETENSORS_HEADER_LIMIT) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "the header's length is %llu, must be at most %d and inside the file (%zu)",
                       (unsigned long long)length, SL_SAFETENSORS_HEADER_LIMIT, size);
    }
    if (length == 0 || data[8] != '{') {
        return sl_fail(error, SL_ERR_FORMAT, "no safetensors file: the header does not begin with '{'");
    }
    file->data = data + 8 + length;
    file->size = size - 8 - length;
    json_t *header;
    int result = sl_json_parse(data + 8, (size_t)length, "the header", &header, error);
    result = result == 0 ? read_names(file, header, error) : result;
    json_decref(header);
    return result;
}

/* Takes the map over. */
static int open_bytes(sl_map map, const void *data, size_t size, const char *name, sl_safetensors **out,
                      sl_error *error) {
    sl_error local = {0};
    sl_safetensors *file = sl_alloc_zero(1, sizeof *file);
    if (!file) {
        sl_map_close(&map);
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory", name);
    }
    file->map = map;
    file->path = sl_strdup(name);
    int result =
        file->path ? read_header(file, data, size, &local) : sl_fail(&local, SL_ERR_NOMEM, "no memory");
    if (result != 0) {
        sl_safetensors_close(file);
        sl_fail_prefix(&local, name);
        if (error) {
            *error = local;
        }
        return result;
    }
    *out = file;
    return 0;
}

int sl_safetensors_open(const char *path, sl_safetensors **file, sl_error *error) {
    *file = NULL;
    sl_map map = {0};
    int result = sl_map_open(&map, path, error);
    return result == 0 ? open_bytes(map, map.data, map.size, path, file, error) : result;
}

int sl_safetensors_open_memory(const void *data, size_t size, const char *name, sl_safetensors **file,
                               sl_error *error) {
    *file = NULL;
    return open_bytes((sl_map){0}, data, size, name, file, error);
}

void sl_safetensors_close(sl_safetensors *file) {
    if (file) {
        sl_name_index_free(&file->index);
        sl_free(file->entries);
        sl_arena_free(&file->names);
        sl_map_close(&file->map);
        sl_free(file->path);
        sl_free(file);
    }
}

const char *sl_safetensors_path(const sl_safetensors *file) {
    return file->path;
}

uint64_t sl_safetensors_count(const sl_safetensors *file) {
    return file->count;
}

const sl_safetensors_entry *sl_safetensors_at(const sl_safetensors *file, uint64_t index) {
    return &file->entries[index];
}

const sl_safetensors_entry *sl_safetensors_find(const sl_safetensors *file, const char *name) {
    uint64_t item = sl_name_index_find(&file->index, name);
    return item == UINT64_MAX ? NULL : &file->entries[item];
}

int sl_safetensors_tensor(const sl_safetensors *file, const char *name, const sl_tensor **tensor,
                          sl_error *error) {
    const sl_safetensors_entry *entry = sl_safetensors_find(file, name);
    if (!entry) {
        return sl_fail(error, SL_ERR_NOT_FOUND, "%s: there is no tensor '%.100s'", file->path, name);
    }
    if (entry->refusal) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "%s: tensor '%.100s' (%.16s) cannot be used: %s",
                       file->path, name, entry->dtype, entry->refusal);
    }
    *tensor = &entry->tensor;
    return 0;
}
