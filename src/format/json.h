/* JSON files that are not believed: one place where jansson is asked to read them. */
#ifndef SL_FORMAT_JSON_H
#define SL_FORMAT_JSON_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses a whole text, refusing duplicate keys. *json is a new reference on success, else NULL; `name` stands
 * for the file in messages (one line, with the line of the mistake). SL_ERR_FORMAT, or SL_ERR_NOMEM (except
 * that jansson calls a string for which it found no memory bad syntax). */
int sl_json_parse(const void *data, size_t size, const char *name, json_t **json, sl_error *error);
/* The same for a file; SL_ERR_LIMIT above `most` bytes. */
int sl_json_load(const char *path, size_t most, json_t **json, sl_error *error);

/* Typed look-ups into a value read from `file`. `prefix` is NULL or the path of objects to go through first,
 * separated by dots ("text_config.rope_parameters"). SL_ERR_NOT_FOUND when the key (or an object of the path)
 * is absent or null, SL_ERR_FORMAT when its type does not fit; both name file, key, the type found and the
 * type wanted. `error` may be NULL. f64 accepts integers too. On failure *value is untouched. Strings and
 * objects are borrowed from `root`. */
typedef struct sl_json_place {
    const json_t *root;
    const char *file;
} sl_json_place;
int sl_json_u64(sl_json_place place, const char *prefix, const char *key, uint64_t *value, sl_error *error);
int sl_json_f64(sl_json_place place, const char *prefix, const char *key, double *value, sl_error *error);
int sl_json_bool(sl_json_place place, const char *prefix, const char *key, bool *value, sl_error *error);
int sl_json_string(sl_json_place place, const char *prefix, const char *key, const char **value,
                   sl_error *error);
/* Any type; NULL when absent or null. */
const json_t *sl_json_find(const json_t *root, const char *prefix, const char *key);

#endif
