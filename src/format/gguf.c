#include "format/gguf.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/map.h"
#include "format/index.h"
#include "format/recognize.h"

#include <stdio.h>
#include <string.h>

/* The least a file spends on each, so that a declared count can be checked against the bytes that are left
 * before anything is done with it. */
enum {
    MIN_ENTRY_BYTES = 8 + 1 + 4 + 1,      /* key length, key, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* name length, name, dimensions, type, offset */
    MIN_STRING_BYTES = 8,
    MIN_ARRAY_BYTES = 4 + 8, /* item type, count */
    MAX_NAME = 65535,        /* the specification's limit for keys */
};

struct sl_gguf {
    char *path;
    sl_map map; /* zero when the bytes are the caller's */
    const unsigned char *data;
    uint64_t size;
    uint32_t version, alignment;
    sl_arena names;
    sl_gguf_entry *entries;
    sl_tensor *tensors;
    uint32_t *type_numbers; /* [tensor_count] */
    bool any_type;          /* types that are not supported are not refused */
    sl_gguf **parts;        /* the others of a split file */
    uint64_t part_count;
    uint64_t entry_count, tensor_count;
    sl_name_index entry_index, tensor_index;
};

/* A file being read, front to back. `error` is never NULL. */
typedef struct parser {
    sl_gguf *gguf;
    const unsigned char *data;
    uint64_t at, size;
    sl_error *error;
} parser;

static const struct {
    const char *text;
    uint32_t size;
} types[SL_GGUF_TYPE_COUNT] = {
    [SL_GGUF_U8] = {"u8", 1},       [SL_GGUF_I8] = {"i8", 1},     [SL_GGUF_U16] = {"u16", 2},
    [SL_GGUF_I16] = {"i16", 2},     [SL_GGUF_U32] = {"u32", 4},   [SL_GGUF_I32] = {"i32", 4},
    [SL_GGUF_F32] = {"f32", 4},     [SL_GGUF_BOOL] = {"bool", 1}, [SL_GGUF_STRING] = {"string", 0},
    [SL_GGUF_ARRAY] = {"array", 0}, [SL_GGUF_U64] = {"u64", 8},   [SL_GGUF_I64] = {"i64", 8},
    [SL_GGUF_F64] = {"f64", 8},
};

const char *sl_gguf_type_text(sl_gguf_type type) {
    return (uint32_t)type < SL_GGUF_TYPE_COUNT ? types[type].text : "unknown";
}

uint32_t sl_gguf_type_size(sl_gguf_type type) {
    return (uint32_t)type < SL_GGUF_TYPE_COUNT ? types[type].size : 0;
}

/* ---- reading
 * --------------------------------------------------------------------------------------------------- */

static uint64_t load(const unsigned char *bytes, uint32_t width) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < width; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

static uint64_t left(const parser *p) {
    return p->size - p->at;
}

static int truncated(parser *p, const char *what) {
    return sl_fail(p->error, SL_ERR_FORMAT,
                   "the file ends at byte %llu, inside %s: it is not complete, so get it again",
                   (unsigned long long)p->size, what);
}

static int read_u32(parser *p, const char *what, uint32_t *value) {
    if (left(p) < 4) {
        return truncated(p, what);
    }
    *value = (uint32_t)load(p->data + p->at, 4);
    p->at += 4;
    return 0;
}

static int read_u64(parser *p, const char *what, uint64_t *value) {
    if (left(p) < 8) {
        return truncated(p, what);
    }
    *value = load(p->data + p->at, 8);
    p->at += 8;
    return 0;
}

/* Refuses a count of things of at least `least` bytes each that cannot fit in the rest of the file. */
static int check_count(parser *p, const char *what, uint64_t count, uint64_t least) {
    return count <= left(p) / least
               ? 0
               : sl_fail(p->error, SL_ERR_FORMAT, "%s is %llu, but only %llu bytes of file are left", what,
                         (unsigned long long)count, (unsigned long long)left(p));
}

static int read_string(parser *p, const char *what, sl_view *text) {
    uint64_t length;
    int result = read_u64(p, what, &length);
    if (result == 0) {
        result = check_count(p, what, length, 1);
    }
    if (result == 0) {
        text->data = (const char *)p->data + p->at;
        text->length = (size_t)length;
        p->at += length;
    }
    return result;
}

/* A key or a tensor name: copied, so that it has a NUL. */
static int read_name(parser *p, const char *what, bool ascii, const char **name) {
    sl_view text;
    int result = read_string(p, what, &text);
    if (result != 0) {
        return result;
    }
    if (text.length == 0 || text.length > MAX_NAME) {
        return sl_fail(p->error, SL_ERR_FORMAT, "%s is %zu, must be 1 to %d", what, text.length, MAX_NAME);
    }
    size_t bad = sl_name_bad_byte(text.data, text.length, ascii);
    if (bad < text.length) {
        return sl_fail(p->error, SL_ERR_FORMAT, "byte %zu of the name is 0x%02x, must be %s", bad,
                       (unsigned char)text.data[bad], ascii ? "printable ASCII" : "no control character");
    }
    *name = sl_arena_strndup(&p->gguf->names, text.data, text.length);
    return *name ? 0 : sl_fail(p->error, SL_ERR_NOMEM, "no memory for names");
}

/* ---- metadata
 * -------------------------------------------------------------------------------------------------- */

static int read_type(parser *p, const char *what, sl_gguf_type *type) {
    uint32_t number;
    int result = read_u32(p, what, &number);
    if (result != 0) {
        return result;
    }
    if (number >= SL_GGUF_TYPE_COUNT) {
        return sl_fail(p->error, SL_ERR_FORMAT, "%s is %u, must be 0 to %d", what, number,
                       SL_GGUF_TYPE_COUNT - 1);
    }
    *type = (sl_gguf_type)number;
    return 0;
}

/* Passes over `count` values that are no arrays. */
static int pass_values(parser *p, sl_gguf_type type, uint64_t count) {
    int result =
        check_count(p, "the number of values", count, types[type].size ? types[type].size : MIN_STRING_BYTES);
    if (result != 0) {
        return result;
    }
    if (type == SL_GGUF_STRING) {
        sl_view ignored;
        for (uint64_t i = 0; result == 0 && i < count; i++) {
            result = read_string(p, "a string's length", &ignored);
        }
        return result;
    }
    if (type == SL_GGUF_BOOL) {
        for (uint64_t i = 0; i < count; i++) {
            if (p->data[p->at + i] > 1) {
                return sl_fail(p->error, SL_ERR_FORMAT, "a bool is %u, must be 0 or 1", p->data[p->at + i]);
            }
        }
    }
    p->at += count * types[type].size;
    return 0;
}

static int read_array_head(parser *p, sl_gguf_type *item_type, uint64_t *count) {
    int result = read_type(p, "the array's item type", item_type);
    return result == 0 ? read_u64(p, "the array's length", count) : result;
}

/* Passes over the items of one array. Nesting is walked with a stack of what is left at each depth. */
static int pass_items(parser *p, sl_gguf_type type, uint64_t count) {
    uint64_t waiting[SL_GGUF_ARRAY_DEPTH];
    int depth = 0;
    for (;;) {
        int result = 0;
        if (type != SL_GGUF_ARRAY) {
            result = pass_values(p, type, count);
        } else if (depth == SL_GGUF_ARRAY_DEPTH) {
            result = sl_fail(p->error, SL_ERR_LIMIT, "arrays nest more than %d deep", SL_GGUF_ARRAY_DEPTH);
        } else if ((result = check_count(p, "the array's length", count, MIN_ARRAY_BYTES)) == 0) {
            waiting[depth++] = count;
        }
        while (depth > 0 && waiting[depth - 1] == 0) {
            depth--;
        }
        if (result != 0 || depth == 0) {
            return result;
        }
        waiting[depth - 1]--;
        if ((result = read_array_head(p, &type, &count)) != 0) {
            return result;
        }
    }
}

static int read_value(parser *p, sl_gguf_entry *entry) {
    int result = read_type(p, "the value type", &entry->type);
    entry->item_type = entry->type;
    entry->count = 1;
    if (result == 0 && entry->type == SL_GGUF_ARRAY) {
        result = read_array_head(p, &entry->item_type, &entry->count);
    }
    if (result != 0) {
        return result;
    }
    entry->data = p->data + p->at;
    result = pass_items(p, entry->item_type, entry->count);
    entry->bytes = (uint64_t)(p->data + p->at - entry->data);
    return result;
}

/* Puts where in the file it went wrong before the message. */
static int in_part(parser *p, const char *part, uint64_t index, const char *name) {
    char prefix[160];
    if (name) {
        snprintf(prefix, sizeof prefix, "%s '%.100s'", part, name);
    } else {
        snprintf(prefix, sizeof prefix, "%s %llu", part, (unsigned long long)index);
    }
    return sl_fail_prefix(p->error, prefix);
}

static int read_entries(parser *p, uint64_t count) {
    sl_gguf *gguf = p->gguf;
    uint64_t capacity = 0;
    int result = check_count(p, "metadata_kv_count", count, MIN_ENTRY_BYTES);
    for (uint64_t i = 0; result == 0 && i < count; i++) {
        sl_gguf_entry *entries = sl_grow(gguf->entries, i, &capacity, sizeof *entries), entry = {0};
        if (!entries) {
            return sl_fail(p->error, SL_ERR_NOMEM, "no memory for metadata");
        }
        gguf->entries = entries;
        result = read_name(p, "the key's length", true, &entry.key);
        result = result == 0 ? read_value(p, &entry) : result;
        if (result != 0) {
            return in_part(p, "metadata key", i, entry.key);
        }
        entries[i] = entry;
        gguf->entry_count = i + 1;
    }
    if (result == 0 && (result = sl_name_index_reserve(&gguf->entry_index, count, p->error)) == 0) {
        for (uint64_t i = 0; i < count; i++) {
            sl_name_index_add(&gguf->entry_index, gguf->entries[i].key, i);
        }
        const char *twice = sl_name_index_sort(&gguf->entry_index);
        if (twice) {
            result = sl_fail(p->error, SL_ERR_FORMAT, "metadata key '%.100s' is there twice", twice);
        }
    }
    return result;
}

/* ---- tensors
 * --------------------------------------------------------------------------------------------------- */

static int read_dims(parser *p, sl_tensor *tensor) {
    uint32_t count;
    int result = read_u32(p, "the number of dimensions", &count);
    if (result == 0 && count > SL_TENSOR_DIMS) {
        return sl_fail(p->error, SL_ERR_FORMAT, "has %u dimensions, must be at most %d", count,
                       SL_TENSOR_DIMS);
    }
    tensor->elements = 1;
    for (uint32_t i = 0; i < SL_TENSOR_DIMS; i++) {
        tensor->dims[i] = 1;
        if (result == 0 && i < count) {
            result = read_u64(p, "a dimension", &tensor->dims[i]);
        }
        if (result == 0 && (tensor->dims[i] == 0 || tensor->dims[i] > INT64_MAX)) {
            return sl_fail(p->error, SL_ERR_FORMAT, "dimension %u is %llu, must be 1 to 2^63 - 1", i,
                           (unsigned long long)tensor->dims[i]);
        }
        if (result == 0 && !sl_mul_u64(tensor->elements, tensor->dims[i], &tensor->elements)) {
            return sl_fail(p->error, SL_ERR_FORMAT, "the number of elements overflows at dimension %u", i);
        }
    }
    tensor->dim_count = count ? count : 1; /* a scalar */
    return result;
}

static int read_tensor_type(parser *p, sl_tensor *tensor, uint32_t *type_number) {
    int result = read_u32(p, "the type", type_number);
    if (result != 0) {
        return result;
    }
    const uint32_t number = *type_number;
    int type = sl_qtype_from_gguf(number);
    if (type < 0) {
        const char *name = sl_gguf_type_name(number);
        if (p->gguf->any_type) {
            return 0; /* place_tensors finds the size */
        }
        return sl_fail(p->error, SL_ERR_UNSUPPORTED, "type %s (%u) is not supported", name ? name : "unknown",
                       number);
    }
    tensor->type = (sl_qtype)type;
    const sl_qtype_info *info = sl_qtype_get(tensor->type);
    if (tensor->dims[0] % info->block_elements != 0) {
        return sl_fail(p->error, SL_ERR_FORMAT,
                       "a row of %llu elements is no whole number of %s blocks (%u elements)",
                       (unsigned long long)tensor->dims[0], info->name, info->block_elements);
    }
    return sl_qtype_bytes(tensor->type, tensor->elements, &tensor->bytes)
               ? 0
               : sl_fail(p->error, SL_ERR_FORMAT, "the size in bytes overflows");
}

static int read_tensor(parser *p, sl_tensor *tensor, uint64_t *offset, uint32_t *type_number) {
    int result = read_name(p, "the name's length", false, &tensor->name);
    result = result == 0 ? read_dims(p, tensor) : result;
    result = result == 0 ? read_tensor_type(p, tensor, type_number) : result;
    result = result == 0 ? read_u64(p, "the offset", offset) : result;
    if (result == 0 && *offset % p->gguf->alignment != 0) {
        return sl_fail(p->error, SL_ERR_FORMAT, "offset %llu is no multiple of the alignment, %u",
                       (unsigned long long)*offset, p->gguf->alignment);
    }
    return result;
}

/* Where a tensor's data lies, counted from the start of all data. */
typedef struct place {
    uint64_t offset, tensor;
} place;

static int compare_places(const void *left, const void *right) {
    uint64_t a = ((const place *)left)->offset, b = ((const place *)right)->offset;
    return a < b ? -1 : a > b;
}

/* Turns offsets into addresses; sorts `places`. */
static int place_tensors(parser *p, place *places) {
    sl_gguf *gguf = p->gguf;
    uint64_t past = p->at % gguf->alignment, start = past ? p->at + (gguf->alignment - past) : p->at;
    sl_sort(places, gguf->tensor_count, sizeof *places, compare_places);
    uint64_t end = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        uint64_t offset = places[i].offset;
        sl_tensor *tensor = &gguf->tensors[places[i].tensor];
        if (tensor->bytes == 0 && start <= p->size &&
            offset <= p->size - start) { /* of a type that is not supported */
            const uint64_t next = i + 1 < gguf->tensor_count ? places[i + 1].offset : p->size - start;
            tensor->bytes = next > offset ? next - offset : 0;
        }
        if (start > p->size || !sl_range_inside(offset, tensor->bytes, p->size - start)) {
            sl_fail(p->error, SL_ERR_FORMAT,
                    "%llu bytes at offset %llu of the data (which starts at byte %llu) lie beyond the file's "
                    "end (%llu): it is not complete, so get it again",
                    (unsigned long long)tensor->bytes, (unsigned long long)offset, (unsigned long long)start,
                    (unsigned long long)p->size);
            return in_part(p, "tensor", i, tensor->name);
        }
        if (offset < end) {
            sl_fail(p->error, SL_ERR_FORMAT, "offset %llu lies inside another tensor, which ends at %llu",
                    (unsigned long long)offset, (unsigned long long)end);
            return in_part(p, "tensor", i, tensor->name);
        }
        end = offset + tensor->bytes;
        tensor->data = p->data + start + offset;
    }
    return 0;
}

static int read_descriptions(parser *p, uint64_t count, place **places) {
    sl_gguf *gguf = p->gguf;
    uint64_t capacity = 0, place_capacity = 0, number_capacity = 0;
    int result = check_count(p, "tensor_count", count, MIN_TENSOR_BYTES);
    for (uint64_t i = 0; result == 0 && i < count; i++) {
        sl_tensor *tensors = sl_grow(gguf->tensors, i, &capacity, sizeof *tensors), tensor = {0};
        gguf->tensors = tensors ? tensors : gguf->tensors;
        place *grown = sl_grow(*places, i, &place_capacity, sizeof **places);
        *places = grown ? grown : *places;
        uint32_t *numbers = sl_grow(gguf->type_numbers, i, &number_capacity, sizeof *numbers);
        gguf->type_numbers = numbers ? numbers : gguf->type_numbers;
        if (!tensors || !grown || !numbers) {
            return sl_fail(p->error, SL_ERR_NOMEM, "no memory for tensors");
        }
        if ((result = read_tensor(p, &tensor, &grown[i].offset, &numbers[i])) != 0) {
            return in_part(p, "tensor", i, tensor.name);
        }
        tensors[i] = tensor;
        grown[i].tensor = i;
        gguf->tensor_count = i + 1;
    }
    return result;
}

static int read_tensors(parser *p, uint64_t count) {
    sl_gguf *gguf = p->gguf;
    place *places = NULL;
    int result = read_descriptions(p, count, &places);
    result = result == 0 ? place_tensors(p, places) : result;
    sl_free(places);
    if (result == 0 && (result = sl_name_index_reserve(&gguf->tensor_index, count, p->error)) == 0) {
        for (uint64_t i = 0; i < count; i++) {
            sl_name_index_add(&gguf->tensor_index, gguf->tensors[i].name, i);
        }
        const char *twice = sl_name_index_sort(&gguf->tensor_index);
        if (twice) {
            result = sl_fail(p->error, SL_ERR_FORMAT, "tensor '%.100s' is there twice", twice);
        }
    }
    return result;
}

/* ---- the file
 * -------------------------------------------------------------------------------------------------- */

static int read_version(parser *p) {
    uint32_t version;
    if (left(p) < 4 || memcmp(p->data, "GGUF", 4) != 0) {
        const char *instead = sl_recognize(p->data, (size_t)p->size);
        return sl_fail(p->error, SL_ERR_FORMAT, "%s",
                       instead ? instead : "no GGUF file: it does not begin with \"GGUF\"");
    }
    p->at = 4;
    int result = read_u32(p, "the version", &version);
    if (result == 0 && version != 2 && version != 3) {
        return sl_fail(p->error, SL_ERR_UNSUPPORTED,
                       "GGUF version %u%s is not supported, only 2 and 3 in little-endian", version,
                       version != 0 && (version & 0xffff) == 0 ? " (big-endian?)" : "");
    }
    p->gguf->version = version;
    return result;
}

static int read_alignment(parser *p) {
    uint64_t alignment = SL_GGUF_ALIGNMENT;
    int result = sl_gguf_u64(p->gguf, "general.alignment", &alignment, p->error);
    if (result != 0 && result != SL_ERR_NOT_FOUND) {
        return result;
    }
    if (alignment == 0 || alignment % 8 != 0 || alignment > UINT32_MAX) {
        return sl_fail(p->error, SL_ERR_FORMAT,
                       "general.alignment is %llu, must be a multiple of 8 below 2^32",
                       (unsigned long long)alignment);
    }
    p->gguf->alignment = (uint32_t)alignment;
    return 0;
}

static int parse(parser *p) {
    uint64_t tensor_count, entry_count;
    int result = read_version(p);
    result = result == 0 ? read_u64(p, "tensor_count", &tensor_count) : result;
    result = result == 0 ? read_u64(p, "metadata_kv_count", &entry_count) : result;
    result = result == 0 ? read_entries(p, entry_count) : result;
    result = result == 0 ? read_alignment(p) : result;
    return result == 0 ? read_tensors(p, tensor_count) : result;
}

/* Takes the map over. */
static int open_bytes(sl_map map, sl_view bytes, const char *name, bool any_type, sl_gguf **out,
                      sl_error *error) {
    sl_error local = {0};
    sl_gguf *gguf = sl_alloc_zero(1, sizeof *gguf);
    if (!gguf) {
        sl_map_close(&map);
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory", name);
    }
    gguf->map = map;
    gguf->data = (const unsigned char *)bytes.data;
    gguf->size = bytes.length;
    gguf->any_type = any_type;
    gguf->path = sl_strdup(name);
    parser p = {.gguf = gguf, .data = gguf->data, .size = gguf->size, .error = &local};
    int result = gguf->path ? parse(&p) : sl_fail(&local, SL_ERR_NOMEM, "no memory");
    if (result != 0) {
        sl_gguf_close(gguf);
        sl_fail_prefix(&local, name);
        if (error) {
            *error = local;
        }
        return result;
    }
    *out = gguf;
    return 0;
}

static int open_path(const char *path, bool any_type, sl_gguf **gguf, sl_error *error) {
    *gguf = NULL;
    sl_map map = {0};
    int result = sl_map_open(&map, path, error);
    return result == 0
               ? open_bytes(map, (sl_view){(const char *)map.data, map.size}, path, any_type, gguf, error)
               : result;
}

int sl_gguf_open_file(const char *path, sl_gguf **gguf, sl_error *error) {
    return open_path(path, false, gguf, error);
}

int sl_gguf_open_part(const char *path, sl_gguf **gguf, sl_error *error) {
    return open_path(path, true, gguf, error);
}

int sl_gguf_open_memory(const void *data, size_t size, const char *name, sl_gguf **gguf, sl_error *error) {
    *gguf = NULL;
    return open_bytes((sl_map){0}, (sl_view){data, size}, name, false, gguf, error);
}

/* ---- split files
 * ------------------------------------------------------------------------------------------------ */

/* The file among gguf and its parts that has tensor `name` for the first time, from number `from` on. */
static uint64_t holder_of(const sl_gguf *gguf, sl_gguf *const *parts, uint64_t count, const char *name,
                          uint64_t from) {
    for (uint64_t i = from; i <= count; i++) {
        if (sl_name_index_find(i ? &parts[i - 1]->tensor_index : &gguf->tensor_index, name) != UINT64_MAX) {
            return i;
        }
    }
    return count;
}

static int in_two_parts(const sl_gguf *gguf, sl_gguf *const *parts, uint64_t count, const char *name,
                        sl_error *error) {
    const uint64_t first = holder_of(gguf, parts, count, name, 0);
    const uint64_t second = holder_of(gguf, parts, count, name, first + 1);
    return sl_fail(error, SL_ERR_FORMAT, "%s: tensor '%.100s' is also in %s", parts[second - 1]->path, name,
                   first ? parts[first - 1]->path : gguf->path);
}

int sl_gguf_join(sl_gguf *gguf, sl_gguf *const *parts, uint64_t count, sl_error *error) {
    uint64_t total = gguf->tensor_count, at = gguf->tensor_count;
    for (uint64_t i = 0; i < count; i++) {
        total += parts[i]->tensor_count;
    }
    sl_tensor *tensors = sl_alloc_zero(total + 1, sizeof *tensors);
    uint32_t *numbers = sl_alloc_zero(total + 1, sizeof *numbers);
    sl_gguf **list = sl_alloc_zero(count + 1, sizeof *list);
    sl_name_index index = {0};
    int result = tensors && numbers && list ? sl_name_index_reserve(&index, total, error)
                                            : sl_fail(error, SL_ERR_NOMEM, "%s: no memory", gguf->path);
    if (result == 0) {
        for (uint64_t i = 0; i < gguf->tensor_count; i++) {
            tensors[i] = gguf->tensors[i];
            numbers[i] = gguf->type_numbers[i];
        }
        for (uint64_t p = 0; p < count; p++) {
            list[p] = parts[p];
            for (uint64_t i = 0; i < parts[p]->tensor_count; i++, at++) {
                tensors[at] = parts[p]->tensors[i];
                numbers[at] = parts[p]->type_numbers[i];
            }
        }
        for (uint64_t i = 0; i < total; i++) {
            sl_name_index_add(&index, tensors[i].name, i);
        }
        const char *twice = sl_name_index_sort(&index);
        result = twice ? in_two_parts(gguf, parts, count, twice, error) : 0;
    }
    if (result != 0) {
        sl_free(tensors);
        sl_free(numbers);
        sl_free(list);
        sl_name_index_free(&index);
        return result;
    }
    sl_free(gguf->tensors);
    sl_free(gguf->type_numbers);
    sl_name_index_free(&gguf->tensor_index);
    gguf->tensors = tensors;
    gguf->type_numbers = numbers;
    gguf->tensor_index = index;
    gguf->tensor_count = total;
    gguf->parts = list;
    gguf->part_count = count;
    return 0;
}

uint64_t sl_gguf_part_count(const sl_gguf *gguf) {
    return gguf->part_count + 1;
}

uint32_t sl_gguf_type_number(const sl_gguf *gguf, uint64_t index) {
    return gguf->type_numbers[index];
}

void sl_gguf_close(sl_gguf *gguf) {
    if (gguf) {
        for (uint64_t i = 0; i < gguf->part_count; i++) {
            sl_gguf_close(gguf->parts[i]);
        }
        sl_free(gguf->parts);
        sl_free(gguf->type_numbers);
        sl_name_index_free(&gguf->entry_index);
        sl_name_index_free(&gguf->tensor_index);
        sl_free(gguf->entries);
        sl_free(gguf->tensors);
        sl_arena_free(&gguf->names);
        sl_map_close(&gguf->map);
        sl_free(gguf->path);
        sl_free(gguf);
    }
}

const char *sl_gguf_path(const sl_gguf *gguf) {
    return gguf->path;
}

uint32_t sl_gguf_version(const sl_gguf *gguf) {
    return gguf->version;
}

uint32_t sl_gguf_alignment(const sl_gguf *gguf) {
    return gguf->alignment;
}

/* ---- look-ups
 * -------------------------------------------------------------------------------------------------- */

uint64_t sl_gguf_entry_count(const sl_gguf *gguf) {
    return gguf->entry_count;
}

const sl_gguf_entry *sl_gguf_entry_at(const sl_gguf *gguf, uint64_t index) {
    return &gguf->entries[index];
}

const sl_gguf_entry *sl_gguf_find(const sl_gguf *gguf, const char *key) {
    uint64_t item = sl_name_index_find(&gguf->entry_index, key);
    return item == UINT64_MAX ? NULL : &gguf->entries[item];
}

static int find(const sl_gguf *gguf, const char *key, const char *wanted, const sl_gguf_entry **entry,
                sl_error *error) {
    *entry = sl_gguf_find(gguf, key);
    return *entry ? 0
                  : sl_fail(error, SL_ERR_NOT_FOUND, "%s: metadata key '%.100s' is missing (%s wanted)",
                            gguf->path, key, wanted);
}

static int wrong_type(const sl_gguf *gguf, const sl_gguf_entry *entry, const char *wanted, sl_error *error) {
    bool array = entry->type == SL_GGUF_ARRAY;
    return sl_fail(error, SL_ERR_FORMAT, "%s: metadata key '%.100s' is %s%s, %s wanted", gguf->path,
                   entry->key, array ? "array of " : "", sl_gguf_type_text(entry->item_type), wanted);
}

static bool is_signed(sl_gguf_type type) {
    return type == SL_GGUF_I8 || type == SL_GGUF_I16 || type == SL_GGUF_I32 || type == SL_GGUF_I64;
}

static bool is_integer(sl_gguf_type type) {
    return is_signed(type) || type == SL_GGUF_U8 || type == SL_GGUF_U16 || type == SL_GGUF_U32 ||
           type == SL_GGUF_U64;
}

/* Either kind of integer: the bits are those of an int64_t or a uint64_t, and they differ only when U64 >=
 * 2^63. */
static int find_integer(const sl_gguf *gguf, const char *key, bool want_signed, int64_t *value,
                        sl_error *error) {
    const char *wanted = want_signed ? "integer below 2^63" : "integer >= 0";
    const sl_gguf_entry *entry;
    int result = find(gguf, key, wanted, &entry, error);
    if (result != 0) {
        return result;
    }
    if (!is_integer(entry->type)) {
        return wrong_type(gguf, entry, wanted, error);
    }
    int64_t bits = sl_gguf_item_i64(entry, 0);
    if (bits < 0 && want_signed == !is_signed(entry->type)) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: metadata key '%.100s' is an %s out of range, %s wanted",
                       gguf->path, key, sl_gguf_type_text(entry->type), wanted);
    }
    *value = bits;
    return 0;
}

int sl_gguf_u64(const sl_gguf *gguf, const char *key, uint64_t *value, sl_error *error) {
    int64_t bits;
    int result = find_integer(gguf, key, false, &bits, error);
    if (result == 0) {
        *value = (uint64_t)bits;
    }
    return result;
}

int sl_gguf_i64(const sl_gguf *gguf, const char *key, int64_t *value, sl_error *error) {
    return find_integer(gguf, key, true, value, error);
}

int sl_gguf_f64(const sl_gguf *gguf, const char *key, double *value, sl_error *error) {
    const sl_gguf_entry *entry;
    int result = find(gguf, key, "f32 or f64", &entry, error);
    if (result == 0 && entry->type != SL_GGUF_F32 && entry->type != SL_GGUF_F64) {
        return wrong_type(gguf, entry, "f32 or f64", error);
    }
    if (result == 0) {
        *value = sl_gguf_item_f64(entry, 0);
    }
    return result;
}

int sl_gguf_bool(const sl_gguf *gguf, const char *key, bool *value, sl_error *error) {
    const sl_gguf_entry *entry;
    int result = find(gguf, key, "bool", &entry, error);
    if (result == 0 && entry->type != SL_GGUF_BOOL) {
        return wrong_type(gguf, entry, "bool", error);
    }
    if (result == 0) {
        *value = entry->data[0] != 0;
    }
    return result;
}

int sl_gguf_string(const sl_gguf *gguf, const char *key, sl_view *value, sl_error *error) {
    const sl_gguf_entry *entry;
    int result = find(gguf, key, "string", &entry, error);
    if (result == 0 && entry->type != SL_GGUF_STRING) {
        return wrong_type(gguf, entry, "string", error);
    }
    if (result == 0) {
        const unsigned char *cursor = entry->data;
        *value = sl_gguf_next_string(&cursor);
    }
    return result;
}

int sl_gguf_array(const sl_gguf *gguf, const char *key, sl_gguf_type item_type, const sl_gguf_entry **entry,
                  sl_error *error) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "array of %s", sl_gguf_type_text(item_type));
    const sl_gguf_entry *found;
    int result = find(gguf, key, wanted, &found, error);
    if (result == 0 && (found->type != SL_GGUF_ARRAY || found->item_type != item_type)) {
        return wrong_type(gguf, found, wanted, error);
    }
    if (result == 0) {
        *entry = found;
    }
    return result;
}

int64_t sl_gguf_item_i64(const sl_gguf_entry *entry, uint64_t index) {
    if (!is_integer(entry->item_type) && entry->item_type != SL_GGUF_BOOL) {
        return 0;
    }
    uint32_t width = types[entry->item_type].size;
    uint64_t bits = load(entry->data + index * width, width);
    if (is_signed(entry->item_type) && width < 8 && bits >> (8 * width - 1)) {
        bits |= UINT64_MAX << (8 * width);
    }
    return (int64_t)bits;
}

double sl_gguf_item_f64(const sl_gguf_entry *entry, uint64_t index) {
    if (entry->item_type == SL_GGUF_F32) {
        uint32_t bits = (uint32_t)load(entry->data + index * 4, 4);
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    double value = 0;
    if (entry->item_type == SL_GGUF_F64) {
        uint64_t bits = load(entry->data + index * 8, 8);
        memcpy(&value, &bits, sizeof value);
    }
    return value;
}

sl_view sl_gguf_next_string(const unsigned char **cursor) {
    sl_view text = {(const char *)*cursor + 8, (size_t)load(*cursor, 8)};
    *cursor += 8 + text.length;
    return text;
}

uint64_t sl_gguf_tensor_count(const sl_gguf *gguf) {
    return gguf->tensor_count;
}

const sl_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, uint64_t index) {
    return &gguf->tensors[index];
}

const sl_tensor *sl_gguf_tensor(const sl_gguf *gguf, const char *name) {
    uint64_t item = sl_name_index_find(&gguf->tensor_index, name);
    return item == UINT64_MAX ? NULL : &gguf->tensors[item];
}
