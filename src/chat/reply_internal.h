/* What the reader of replies and their grammar share. For src/chat alone. */
#ifndef SL_CHAT_REPLY_INTERNAL_H
#define SL_CHAT_REPLY_INTERNAL_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* Kinds of values, as bits. */
enum {
    SL_ARGUMENT_TEXT = 1,
    SL_ARGUMENT_NULL = 2,
    SL_ARGUMENT_BOOLEAN = 4,
    SL_ARGUMENT_NUMBER = 8,
    SL_ARGUMENT_ARRAY = 16,
    SL_ARGUMENT_OBJECT = 32,
    SL_ARGUMENT_ANY = 63
};

/* Kinds that the argument of this name may have, by the schema of all arguments, whichever of its branches
 * holds; all of them where it does not say. NULL: an argument that has no schema of its own. */
unsigned sl_reply_kinds(json_t *parameters, const char *key);

/* The objects that the schema of all arguments allows, where each argument is looked at alone: a new array
 * of {"properties": {NAME: [POINTER, ...]}, "required": {NAME: true}, "others": [POINTER, ...]}. All schemas
 * that the pointers lead to hold for the argument, and those in "others" for arguments that are not listed;
 * without "others" there are none. What is written as one of the objects satisfies the schema, `oneOf` too.
 * NULL on failure, with what is not held in `error`. parameters NULL: no arguments. */
json_t *sl_reply_variants(json_t *parameters, sl_error *error);
/* The schema of a value for which the list's pointers hold, as a document of its own, and of these kinds
 * (0: any). A new reference; NULL: no memory. */
json_t *sl_reply_value_schema(json_t *parameters, json_t *pointers, unsigned kinds);

#endif
