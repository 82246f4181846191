/* JSON that is not believed: all of it that the library reads goes through here. */
#ifndef SL_FORMAT_JSON_H
#define SL_FORMAT_JSON_H

#include "base/error.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bounds of every text: a small file must not become large in memory. With SL_JSON_MEMORY_FACTOR bytes for
 * each byte of text the tightest tokenizer.json fits (a merge is ["a","b"], in 10 bytes); a vocabulary of
 * 262144 tokens and 514906 merges takes about 200 MB. */
enum {
    SL_JSON_DEPTH = 64,
    SL_JSON_KEY = 65535,       /* bytes of a member's name, as written */
    SL_JSON_BYTES = 256 << 20, /* of text */
    SL_JSON_MEMORY_BASE = 1 << 20,
    SL_JSON_MEMORY_FACTOR = 40,
    SL_JSON_MEMORY = 512 << 20 /* of values, whatever the text's size */
};

/* Parses a whole text, which is an object or an array, refusing members of the same name. *json is a new
 * reference on success, else NULL; `name` stands for the file in messages (one line, with line and column of
 * the mistake). SL_ERR_FORMAT, SL_ERR_LIMIT for the bounds above, SL_ERR_NOMEM. */
int sl_json_parse(const void *data, size_t size, const char *name, json_t **json, sl_error *error);
enum {
    SL_JSON_LARGE_INTEGERS = 1, /* those outside 64 bits become reals; otherwise they are SL_ERR_FORMAT */
    SL_JSON_LAST_COUNTS = 2,    /* of members of the same name */
    SL_JSON_INFINITY = 4,       /* the word, which Python writes, is the largest number */
};
int sl_json_parse_as(sl_view text, unsigned flags, const char *name, json_t **json, sl_error *error);
/* The same for a model's file, which may say Infinity; SL_ERR_LIMIT above `most` bytes. */
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
