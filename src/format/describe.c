#include "format/describe.h"

#include "format/source.h"

#include <stdio.h>
#include <string.h>

/* Texts of files need not be UTF-8, which JSON's are: other bytes become U+FFFD. */
static json_t *text_value(sl_view text) {
    sl_buffer valid = {0};
    for (size_t at = 0; at < text.length;) {
        uint32_t c;
        const size_t size = sl_utf8_decode(text.data + at, text.length - at, &c);
        if (size) {
            sl_buffer_append(&valid, text.data + at, size);
        } else {
            sl_buffer_text(&valid, "\xef\xbf\xbd");
        }
        at += size ? size : 1;
    }
    sl_buffer_append(&valid, "", 0);
    json_t *value = valid.failed ? NULL : json_stringn_nocheck(valid.data, valid.length);
    sl_buffer_free(&valid);
    return value;
}

/* Appends what must be there: on failure the list goes, and the caller's json_pack fails for it. */
static json_t *append(json_t *list, json_t *row) {
    if (!list || json_array_append_new(list, row)) {
        json_decref(list ? NULL : row);
        json_decref(list);
        return NULL;
    }
    return list;
}

/* ---- GGUF ---- */

static json_t *gguf_item(const sl_gguf_entry *entry, uint64_t index, const unsigned char **cursor) {
    switch (entry->item_type) {
    case SL_GGUF_STRING:
        return text_value(sl_gguf_next_string(cursor));
    case SL_GGUF_F32:
    case SL_GGUF_F64: {
        json_t *real = json_real(sl_gguf_item_f64(entry, index));
        return real ? real : json_null(); /* not finite: JSON has no word for it */
    }
    case SL_GGUF_BOOL:
        return json_boolean(sl_gguf_item_i64(entry, index));
    case SL_GGUF_U64: {
        char digits[32];
        const uint64_t value = (uint64_t)sl_gguf_item_i64(entry, index);
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
        return value > INT64_MAX ? json_string(digits) : json_integer((json_int_t)value);
    }
    default:
        return json_integer(sl_gguf_item_i64(entry, index));
    }
}

static json_t *gguf_value(const sl_gguf_entry *entry) {
    const unsigned char *cursor = entry->data;
    if (entry->type != SL_GGUF_ARRAY) {
        return gguf_item(entry, 0, &cursor);
    }
    json_t *items = json_array();
    for (uint64_t i = 0; i < entry->count && i < SL_DESCRIBE_ITEMS && entry->item_type != SL_GGUF_ARRAY;
         i++) {
        items = append(items, gguf_item(entry, i, &cursor));
    }
    return items;
}

static json_t *gguf_keys(const sl_gguf *gguf) {
    json_t *keys = json_array();
    for (uint64_t i = 0; i < sl_gguf_entry_count(gguf); i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(gguf, i);
        char type[64];
        snprintf(type, sizeof type, "%s%s", entry->type == SL_GGUF_ARRAY ? "array of " : "",
                 sl_gguf_type_text(entry->item_type));
        keys = append(keys, json_pack("{s:s, s:s, s:I, s:o}", "key", entry->key, "type", type, "count",
                                      (json_int_t)entry->count, "value", gguf_value(entry)));
    }
    return keys;
}

static json_t *tensor_row(const char *name, const char *type, json_t *shape, uint64_t bytes) {
    return json_pack("{s:o, s:s, s:o, s:I}", "name", text_value(sl_view_of(name)), "type", type, "shape",
                     shape, "bytes", (json_int_t)bytes);
}

static json_t *gguf_tensors(const sl_gguf *gguf) {
    json_t *tensors = json_array();
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
        const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        const uint32_t number = sl_gguf_type_number(gguf, i);
        const char *known = sl_gguf_type_name(number);
        char type[32];
        json_t *shape = json_array();
        snprintf(type, sizeof type, "%u", number);
        for (uint32_t d = 0; d < tensor->dim_count; d++) {
            shape = append(shape, json_integer((json_int_t)tensor->dims[d]));
        }
        tensors = append(tensors, tensor_row(tensor->name, known ? known : type, shape, tensor->bytes));
    }
    return tensors;
}

static json_t *gguf_text(const sl_gguf *gguf, const char *key) {
    sl_view text;
    return sl_gguf_string(gguf, key, &text, NULL) == 0 ? text_value(text) : json_null();
}

static json_t *describe_gguf(const sl_gguf *gguf) {
    return json_pack("{s:s, s:I, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "format", "GGUF", "parts",
                     (json_int_t)sl_gguf_part_count(gguf), "version", (int)sl_gguf_version(gguf), "alignment",
                     (int)sl_gguf_alignment(gguf), "type", gguf_text(gguf, "general.type"), "family",
                     gguf_text(gguf, "general.architecture"), "name", gguf_text(gguf, "general.name"), "keys",
                     gguf_keys(gguf), "tensors", gguf_tensors(gguf));
}

/* ---- Hugging Face folders ---- */

/* Members of objects inside are keys with dots. Depth is bounded by the parser. */
static void add_members(json_t **keys, const json_t *object, const char *prefix) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        static const char *const types[] = {
            [JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
            [JSON_INTEGER] = "integer", [JSON_REAL] = "real",   [JSON_TRUE] = "bool",
            [JSON_FALSE] = "bool",      [JSON_NULL] = "null"};
        sl_buffer name = {0};
        sl_buffer_printf(&name, "%s%s%s", prefix, *prefix ? "." : "", key);
        if (name.failed) {
            json_decref(*keys);
            *keys = NULL;
        } else if (json_is_object(value)) {
            add_members(keys, value, name.data);
        } else {
            json_t *shown = json_is_array(value) ? json_array() : json_incref(value);
            for (size_t i = 0; i < json_array_size(value) && i < SL_DESCRIBE_ITEMS; i++) {
                json_array_append(shown, json_array_get(value, i));
            }
            *keys = append(*keys, json_pack("{s:s, s:s, s:I, s:o}", "key", name.data, "type",
                                            types[json_typeof(value)], "count",
                                            (json_int_t)(json_is_array(value) ? json_array_size(value) : 1),
                                            "value", shown));
        }
        sl_buffer_free(&name);
    }
}

static json_t *hf_tensors(const sl_hf *hf) {
    json_t *tensors = json_array();
    for (uint64_t i = 0; i < sl_hf_tensor_count(hf); i++) {
        const sl_safetensors_entry *entry = sl_hf_tensor_at(hf, i);
        json_t *shape = json_array();
        const uint32_t rank = entry->rank < SL_TENSOR_DIMS ? entry->rank : SL_TENSOR_DIMS;
        for (uint32_t d = 0; d < rank; d++) {
            shape = append(shape, json_integer((json_int_t)entry->tensor.dims[rank - 1 - d]));
        }
        tensors = append(tensors, tensor_row(entry->tensor.name, entry->dtype, shape, entry->tensor.bytes));
    }
    return tensors;
}

static json_t *describe_hf(const sl_hf *hf) {
    json_t *keys = json_array();
    const json_t *family = json_object_get(sl_hf_config(hf), "model_type");
    add_members(&keys, sl_hf_config(hf), "");
    return json_pack("{s:s, s:n, s:O, s:n, s:o, s:o}", "format", "safetensors", "type", "family",
                     json_is_string(family) ? family : json_null(), "name", "keys", keys, "tensors",
                     hf_tensors(hf));
}

/* ---- sums ---- */

/* Adds a tensor to the row of its type. */
static void count_type(json_t *types, const json_t *tensor) {
    const char *type = json_string_value(json_object_get(tensor, "type"));
    const json_int_t bytes = json_integer_value(json_object_get(tensor, "bytes"));
    json_t *row = NULL;
    for (size_t i = 0; i < json_array_size(types) && !row; i++) {
        json_t *candidate = json_array_get(types, i);
        const char *known = json_string_value(json_object_get(candidate, "type"));
        row = type && known && strcmp(known, type) == 0 ? candidate : NULL;
    }
    if (!row &&
        (row = json_pack("{s:s, s:i, s:i}", "type", type ? type : "", "tensors", 0, "bytes", 0)) != NULL) {
        json_array_append_new(types, row);
    }
    json_t *count = json_object_get(row, "tensors"), *sum = json_object_get(row, "bytes");
    json_integer_set(count, json_integer_value(count) + 1);
    json_integer_set(sum, json_integer_value(sum) + bytes);
}

static int finish(const char *path, json_t *all, const sl_error *incomplete, json_t **description,
                  sl_error *error) {
    json_t *types = json_array();
    const json_t *tensors = json_object_get(all, "tensors");
    json_int_t bytes = 0;
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i);
        bytes += json_integer_value(json_object_get(tensor, "bytes"));
        count_type(types, tensor);
    }
    int failed = !all || json_object_set_new(all, "path", text_value(sl_view_of(path)));
    failed |= json_object_set_new(all, "tensor_count", json_integer((json_int_t)json_array_size(tensors)));
    failed |= json_object_set_new(all, "bytes", json_integer(bytes));
    failed |= json_object_set_new(all, "types", types);
    if (incomplete) {
        failed |= json_object_set_new(all, "incomplete", json_string(incomplete->message));
    }
    if (failed) {
        json_decref(all);
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory to describe it", path);
    }
    *description = all;
    return 0;
}

int sl_describe(const char *path, json_t **description, sl_error *error) {
    sl_source *source;
    sl_error local;
    *description = NULL;
    int code = sl_source_open(path, &source, &local);
    if (code == 0) {
        json_t *all = sl_source_gguf(source) ? describe_gguf(sl_source_gguf(source))
                                             : describe_hf(sl_source_hf(source));
        code = finish(path, all, NULL, description, error);
        sl_source_close(source);
        return code;
    }
    sl_gguf *part;
    uint64_t parts = 1;
    if (code == SL_ERR_NOMEM || sl_gguf_open_part(path, &part, NULL) != 0) {
        return sl_fail(error, code, "%s", local.message);
    }
    sl_gguf_u64(part, "split.count", &parts, NULL);
    code = finish(path, describe_gguf(part), parts > 1 ? &local : NULL, description, error);
    sl_gguf_close(part);
    return code;
}
