/* GGUF v2 and v3 (little-endian), as specified in ggml's docs/gguf.md: typed metadata and tensor views over
 * one read-only map. Everything is checked when the file is opened: after that a look-up cannot fail on a
 * malformed file. What is checked beyond the specification's structure: keys are printable ASCII and unique;
 * tensor names are unique and without control characters; booleans are 0 or 1; arrays nest at most
 * SL_GGUF_ARRAY_DEPTH deep; tensor types are those of quant/qtypes.def; no dimension is 0; a row holds whole
 * blocks; data lies inside the file at an aligned offset and belongs to one tensor. */
#ifndef SL_FORMAT_GGUF_H
#define SL_FORMAT_GGUF_H

#include "base/error.h"
#include "base/text.h"
#include "format/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* The numbers are those of the file. */
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

enum { SL_GGUF_ARRAY_DEPTH = 16, SL_GGUF_ALIGNMENT = 32 /* when a file names none */ };

typedef struct sl_gguf sl_gguf;

/* One metadata entry. Values are read through the functions below. */
typedef struct sl_gguf_entry {
    const char *key;
    sl_gguf_type type;
    sl_gguf_type item_type; /* of an array's elements; `type` otherwise */
    uint64_t count;         /* of an array's elements; 1 otherwise */
    const unsigned char
        *data; /* the raw value in the map: for an array its first element, for a string its length field */
    uint64_t bytes; /* of the raw value, counted from `data` */
} sl_gguf_entry;

/* On success *gguf owns the map; sl_gguf_close frees it. On failure *gguf is NULL. Immutable afterwards, so
 * any thread may read. SL_ERR_FORMAT for a malformed file, SL_ERR_UNSUPPORTED for a version or a tensor type
 * that is not read here. */
int sl_gguf_open(const char *path, sl_gguf **gguf,
                 sl_error *error); /* gguf_split.c: all parts of a split file */
/* The same over bytes that the caller keeps until sl_gguf_close; `name` stands for the path in messages. */
int sl_gguf_open_memory(const void *data, size_t size, const char *name, sl_gguf **gguf, sl_error *error);
/* One file of a split one, or a file that is not split. */
int sl_gguf_open_file(const char *path, sl_gguf **gguf, sl_error *error);
/* The file alone, for looking at it: of a split file only this part; tensors of types that are not supported
 * are there too, with sl_gguf_type_number and the bytes up to the next tensor. */
int sl_gguf_open_part(const char *path, sl_gguf **gguf, sl_error *error);
/* Takes the parts' tensors into `gguf`, behind its own, and the parts over. SL_ERR_FORMAT when a tensor is in
 * two of them; then nothing has changed. */
int sl_gguf_join(sl_gguf *gguf, sl_gguf *const *parts, uint64_t count, sl_error *error);
void sl_gguf_close(sl_gguf *gguf); /* NULL is fine */
const char *sl_gguf_path(const sl_gguf *gguf);
uint32_t sl_gguf_version(const sl_gguf *gguf);
/* general.alignment, or SL_GGUF_ALIGNMENT: a multiple of 8, not always a power of two. */
uint32_t sl_gguf_alignment(const sl_gguf *gguf);

uint64_t sl_gguf_entry_count(const sl_gguf *gguf);
/* In the file's order; index < sl_gguf_entry_count. */
const sl_gguf_entry *sl_gguf_entry_at(const sl_gguf *gguf, uint64_t index);
/* NULL when there is no such key. */
const sl_gguf_entry *sl_gguf_find(const sl_gguf *gguf, const char *key);

/* Typed look-ups. SL_ERR_NOT_FOUND when the key is absent, SL_ERR_FORMAT when its type or range does not fit;
 * both name file, key, the type found and the type wanted. `error` may be NULL. Integer look-ups accept every
 * integer type whose value fits; f64 accepts F32 and F64. On failure *value is untouched. */
int sl_gguf_u64(const sl_gguf *gguf, const char *key, uint64_t *value, sl_error *error);
int sl_gguf_i64(const sl_gguf *gguf, const char *key, int64_t *value, sl_error *error);
int sl_gguf_f64(const sl_gguf *gguf, const char *key, double *value, sl_error *error);
int sl_gguf_bool(const sl_gguf *gguf, const char *key, bool *value, sl_error *error);
int sl_gguf_string(const sl_gguf *gguf, const char *key, sl_view *value, sl_error *error);
/* An array of `item_type`. */
int sl_gguf_array(const sl_gguf *gguf, const char *key, sl_gguf_type item_type, const sl_gguf_entry **entry,
                  sl_error *error);
/* Element `index` < entry->count of an array (or scalar) of integers of any width, bool too / of F32 or F64.
 * A U64 above INT64_MAX comes back as its two's complement. Other element types give 0. */
int64_t sl_gguf_item_i64(const sl_gguf_entry *entry, uint64_t index);
double sl_gguf_item_f64(const sl_gguf_entry *entry, uint64_t index);
/* Walks an array of strings in order: *cursor starts at entry->data; call at most entry->count times. */
sl_view sl_gguf_next_string(const unsigned char **cursor);

/* "u8" ... "f64", "unknown" for a number that is no type. */
const char *sl_gguf_type_text(sl_gguf_type type);
/* Bytes of one value; 0 for strings, arrays and numbers that are no type. */
uint32_t sl_gguf_type_size(sl_gguf_type type);

/* Files that make it up: 1, or the parts of a split one. */
uint64_t sl_gguf_part_count(const sl_gguf *gguf);
/* The number that the file gives for the type of the tensor at `index`; sl_gguf_type_name knows its name. */
uint32_t sl_gguf_type_number(const sl_gguf *gguf, uint64_t index);

uint64_t sl_gguf_tensor_count(const sl_gguf *gguf);
/* In the file's order; index < sl_gguf_tensor_count. */
const sl_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, uint64_t index);
/* NULL when there is none. */
const sl_tensor *sl_gguf_tensor(const sl_gguf *gguf, const char *name);

#endif
