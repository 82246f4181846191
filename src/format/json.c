#include "format/json.h"

#include "base/map.h"

#include <string.h>

int sl_json_parse(const void *data, size_t size, const char *name, json_t **json, sl_error *error) {
    return sl_json_parse_as((sl_view){data, size}, 0, name, json, error);
}

int sl_json_load(const char *path, size_t most, json_t **json, sl_error *error) {
    *json = NULL;
    sl_map map = {0};
    int result = sl_map_open(&map, path, error);
    if (result == 0 && map.size > most) {
        result =
            sl_fail(error, SL_ERR_LIMIT, "%s: %zu bytes of JSON, at most %zu are read", path, map.size, most);
    }
    if (result == 0) {
        result = sl_json_parse_as((sl_view){(const char *)map.data, map.size}, SL_JSON_INFINITY, path, json,
                                  error);
    }
    sl_map_close(&map);
    return result;
}

const json_t *sl_json_find(const json_t *root, const char *prefix, const char *key) {
    while (prefix && *prefix && root) {
        size_t length = strcspn(prefix, ".");
        root = json_object_getn(root, prefix, length);
        prefix += length + (prefix[length] == '.');
    }
    const json_t *value = json_object_get(root, key);
    return value && !json_is_null(value) ? value : NULL;
}

static const char *type_text(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real",    [JSON_TRUE] = "a bool",
        [JSON_FALSE] = "a bool",       [JSON_NULL] = "null",
    };
    return names[json_typeof(value)];
}

/* What stands on the way to a key is an object, or not there. */
static int check_way(sl_json_place place, const char *prefix, sl_error *error) {
    const json_t *value = place.root;
    for (size_t at = 0; prefix && prefix[at];) {
        const size_t length = strcspn(prefix + at, ".");
        value = json_object_getn(value, prefix + at, length);
        at += length;
        if (value && !json_is_null(value) && !json_is_object(value)) {
            return sl_fail(error, SL_ERR_FORMAT, "%s: '%.*s' is %s, an object wanted", place.file, (int)at,
                           prefix, type_text(value));
        }
        at += prefix[at] == '.';
    }
    return 0;
}

static int find(sl_json_place place, const char *prefix, const char *key, const char *wanted,
                const json_t **value, sl_error *error) {
    const int code = check_way(place, prefix, error);
    if (code) {
        *value = NULL;
        return code;
    }
    *value = sl_json_find(place.root, prefix, key);
    return *value ? 0
                  : sl_fail(error, SL_ERR_NOT_FOUND, "%s: '%s%s%s' is missing (%s wanted)", place.file,
                            prefix ? prefix : "", prefix && *prefix ? "." : "", key, wanted);
}

static int wrong_type(sl_json_place place, const char *prefix, const char *key, const char *wanted,
                      const json_t *value, sl_error *error) {
    return sl_fail(error, SL_ERR_FORMAT, "%s: '%s%s%s' is %s%s, %s wanted", place.file, prefix ? prefix : "",
                   prefix && *prefix ? "." : "", key, type_text(value),
                   json_is_integer(value) && json_integer_value(value) < 0 ? " below 0" : "", wanted);
}

int sl_json_u64(sl_json_place place, const char *prefix, const char *key, uint64_t *value, sl_error *error) {
    const char *wanted = "an integer >= 0";
    const json_t *found;
    int result = find(place, prefix, key, wanted, &found, error);
    if (result == 0 && (!json_is_integer(found) || json_integer_value(found) < 0)) {
        return wrong_type(place, prefix, key, wanted, found, error);
    }
    if (result == 0) {
        *value = (uint64_t)json_integer_value(found);
    }
    return result;
}

int sl_json_f64(sl_json_place place, const char *prefix, const char *key, double *value, sl_error *error) {
    const char *wanted = "a number";
    const json_t *found;
    int result = find(place, prefix, key, wanted, &found, error);
    if (result == 0 && !json_is_number(found)) {
        return wrong_type(place, prefix, key, wanted, found, error);
    }
    if (result == 0) {
        *value = json_number_value(found);
    }
    return result;
}

int sl_json_bool(sl_json_place place, const char *prefix, const char *key, bool *value, sl_error *error) {
    const char *wanted = "a bool";
    const json_t *found;
    int result = find(place, prefix, key, wanted, &found, error);
    if (result == 0 && !json_is_boolean(found)) {
        return wrong_type(place, prefix, key, wanted, found, error);
    }
    if (result == 0) {
        *value = json_is_true(found);
    }
    return result;
}

int sl_json_string(sl_json_place place, const char *prefix, const char *key, const char **value,
                   sl_error *error) {
    const char *wanted = "a string";
    const json_t *found;
    int result = find(place, prefix, key, wanted, &found, error);
    if (result == 0 && !json_is_string(found)) {
        return wrong_type(place, prefix, key, wanted, found, error);
    }
    if (result == 0) {
        *value = json_string_value(found);
    }
    return result;
}
