/* GGUF v2 and v3 (little-endian), as specified in ggml's docs/gguf.md: typed metadata and tensor views over one read-only map.
 * Everything is checked when the file is opened: after that a look-up cannot fail on a malformed file. */
#ifndef SL_FORMAT_GGUF_H
#define SL_FORMAT_GGUF_H

#include "base/error.h"
#include "base/text.h"
#include "format/tensor.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum sl_gguf_type {
    SL_GGUF_U8,
    SL_GGUF_I8,
    SL_GGUF_U16,
    SL_GGUF_I16,
    SL_GGUF_U32,
    SL_GGUF_I32,
    SL_GGUF_F32,
    SL_GGUF_BOOL,
    SL_GGUF_STRING,
    SL_GGUF_ARRAY,
    SL_GGUF_U64,
    SL_GGUF_I64,
    SL_GGUF_F64,
    SL_GGUF_TYPE_COUNT
} sl_gguf_type;

typedef struct sl_gguf sl_gguf;

/* One metadata entry. Values are read through the functions below. */
typedef struct sl_gguf_entry {
    const char *key;
    sl_gguf_type type;
    sl_gguf_type item_type; /* of an array's elements */
    uint64_t count;         /* of an array's elements; 1 otherwise */
    const unsigned char *data; /* the raw value in the map: for an array its first element, for a string its length field */
} sl_gguf_entry;

/* On success *gguf owns the map; sl_gguf_close frees it. On failure *gguf is NULL. Immutable afterwards, so any thread may read. */
int sl_gguf_open(const char *path, sl_gguf **gguf, sl_error *error);
void sl_gguf_close(sl_gguf *gguf);
const char *sl_gguf_path(const sl_gguf *gguf);
uint32_t sl_gguf_version(const sl_gguf *gguf);

uint64_t sl_gguf_entry_count(const sl_gguf *gguf);
const sl_gguf_entry *sl_gguf_entry_at(const sl_gguf *gguf, uint64_t index);
/* NULL when there is no such key. */
const sl_gguf_entry *sl_gguf_find(const sl_gguf *gguf, const char *key);

/* Typed look-ups. SL_ERR_NOT_FOUND when the key is absent, SL_ERR_FORMAT when its type or range does not fit; both name file,
 * key, the type found and the type wanted. `error` may be NULL. Integer look-ups accept every integer type whose value fits; f64 accepts F32 and F64. */
int sl_gguf_u64(const sl_gguf *gguf, const char *key, uint64_t *value, sl_error *error);
int sl_gguf_i64(const sl_gguf *gguf, const char *key, int64_t *value, sl_error *error);
int sl_gguf_f64(const sl_gguf *gguf, const char *key, double *value, sl_error *error);
int sl_gguf_bool(const sl_gguf *gguf, const char *key, bool *value, sl_error *error);
int sl_gguf_string(const sl_gguf *gguf, const char *key, sl_view *value, sl_error *error);
/* An array of `item_type`. */
int sl_gguf_array(const sl_gguf *gguf, const char *key, sl_gguf_type item_type, const sl_gguf_entry **entry, sl_error *error);
/* Element `index` < entry->count of an array of integers (any width, bool too) / of F32 or F64. */
int64_t sl_gguf_item_i64(const sl_gguf_entry *entry, uint64_t index);
double sl_gguf_item_f64(const sl_gguf_entry *entry, uint64_t index);
/* Walks an array of strings in order: *cursor starts at entry->data; call at most entry->count times. */
sl_view sl_gguf_next_string(const unsigned char **cursor);
const char *sl_gguf_type_text(sl_gguf_type type);

uint64_t sl_gguf_tensor_count(const sl_gguf *gguf);
const sl_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, uint64_t index);
/* NULL when there is none. */
const sl_tensor *sl_gguf_tensor(const sl_gguf *gguf, const char *name);

#endif
