/* A growing text. After a failed allocation it takes no more and says so; the rest of the code need not look.
 */
#ifndef SLUICE_SERVER_TEXT_H
#define SLUICE_SERVER_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct text {
    char *data; /* NUL-terminated when not NULL; from malloc */
    size_t length, capacity;
    bool failed;
} text;

void text_add(text *t, const char *bytes, size_t length);
void text_put(text *t, const char *string);
void text_format(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes. What is no UTF-8 becomes U+FFFD. */
void text_string(text *t, const char *bytes, size_t length);
/* A finite JSON number that reads back as the same double; with a point or an exponent. Others fail the text.
 */
void text_real(text *t, double value);
/* A JSON value, compact; reals with 17 significant digits or fewer where that is exact. NULL: fails the text.
 */
void text_json(text *t, const json_t *value);
/* The same, and one reference less. */
void text_json_new(text *t, json_t *value);
void text_clear(text *t);
void text_free(text *t);
/* The bytes, owned by the caller; NULL when it failed. The text is empty afterwards. */
char *text_take(text *t, size_t *length);

/* Bytes of the UTF-8 character that `bytes` begins with. 0: none, and *skip bytes, at least 1, are what one
 * U+FFFD stands for. */
size_t text_character(const char *bytes, size_t length, size_t *skip);

#endif
