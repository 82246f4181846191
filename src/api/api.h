/* What all files of the C API share: errors, what callers give, and what they get as text. */
#ifndef SL_API_API_H
#define SL_API_API_H

#include "base/error.h"
#include "base/text.h"
#include "sluice.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Copies an internal error out; returns its code. `to` may be NULL. */
int sl_api_error(sluice_error *to, const sl_error *from);
int sl_api_fail(sluice_error *to, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* True, with an SL_ERR_INVALID that names the argument, when a caller gave NULL where there must be
 * something. */
bool sl_api_lacks(const void *given, const char *name, sluice_error *error);
/* The same for an array that may be NULL when it has no elements. */
bool sl_api_lacks_array(const void *given, size_t count, const char *name, sluice_error *error);
/* SL_ERR_INVALID unless `size`, which a caller set, is that of a struct of this library or of an earlier or
 * later one: not 0, a multiple of what such structs are aligned to, and not beyond what one can become. */
int sl_api_check_size(size_t size, const char *name, sluice_error *error);

/* Copies a caller's option struct, whose first member is its size, over a zeroed one of `size` bytes. NULL
 * gives all zeroes. SL_ERR_INVALID when it has no possible size or is larger than this library knows with
 * something set there. */
int sl_api_options(void *options, size_t size, const void *given, const char *name, sluice_error *error);

/* For a function that describes `object` as text: true, with an error, when something is NULL or the format
 * is none. *text is NULL then and otherwise too. */
bool sl_api_lacks_text(const void *object, sluice_text_format format, char **text, sluice_error *error);
/* Hands a buffer's text to the caller, or frees it and fails when it is incomplete. `length` may be NULL. */
int sl_api_give_text(sl_buffer *buffer, char **text, size_t *length, sluice_error *error);
/* Hands a JSON value to the caller as text; takes the value over. NULL is taken for memory that ran out. */
int sl_api_give_json(json_t *value, char **text, sluice_error *error);

#endif
