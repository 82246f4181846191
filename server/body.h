/* Bodies of requests: JSON that nobody trusts, read by tables of fields. A message names the field, the rule
 * and the type of what was there; never its value. */
#ifndef SLUICE_SERVER_BODY_H
#define SLUICE_SERVER_BODY_H

#include "http.h"

#include <jansson.h>

/* Bounds on what one body may hold. */
enum {
    BODY_DEPTH = 256,      /* nested arrays and objects */
    BODY_KEYS = 1 << 16,   /* members of all objects together */
    BODY_VALUES = 1 << 22, /* elements of all arrays and members together */
    BODY_STOPS = 16,       /* stop texts */
    BODY_CHOICES = 128,    /* n, and prompts of one request */
    BODY_TOP_LOGPROBS = 20,
    BODY_BIASES = 1024,
};

/* All functions that return int: 0, or -1 with *error filled (400 and invalid_request_error unless said
 * otherwise). */

/* An object; one reference for the caller. Time is linear and small also for hostile bodies. */
int body_parse(const char *bytes, size_t length, json_t **root, http_error *error);

/* 400 with a formatted message that begins with a field's path ("messages[3].content must be ..."), written
 * as OpenAI's API does; the path becomes the error's param as well. Returns -1. */
int body_refuse(http_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for messages that begin otherwise; NULL: no param. */
int body_refuse_as(http_error *error, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

typedef enum field_kind {
    FIELD_BOOL,        /* bool */
    FIELD_WHOLE,       /* int64_t within least .. most; 3.0 is a whole number */
    FIELD_REAL,        /* double within least .. most */
    FIELD_TEXT,        /* const char *, borrowed from the body; most > 0: of least .. most characters */
    FIELD_CHOICE,      /* const char *: one of `choices`, separated by | */
    FIELD_ARRAY,       /* json_t *, borrowed */
    FIELD_OBJECT,      /* json_t *, borrowed */
    FIELD_ANY,         /* json_t *, borrowed */
    FIELD_UNSUPPORTED, /* known, not there yet: refused by name unless its value is one of `choices` (JSON
                          texts, separated by |), which change nothing */
} field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    size_t offset; /* in the target; untouched when the field is absent or null */
    double least, most;
    const char *choices;
} field;

/* Reads the fields of a table that the object has; others are left alone. `path` stands before names in
 * messages
 * ("stream_options."), "" at the root. */
int body_fields(const json_t *object, const char *path, const field *fields, size_t count, void *target,
                http_error *error);
/* "a string", "an array", ... */
const char *body_type(const json_t *value);

#endif
