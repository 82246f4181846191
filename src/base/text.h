/* Byte strings: borrowed views (sl_view) and a growable buffer (sl_buffer). */
#ifndef SL_BASE_TEXT_H
#define SL_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed bytes, not NUL-terminated. */
typedef struct sl_view {
    const char *data;
    size_t length;
} sl_view;

static inline sl_view sl_view_of(const char *text) {
    sl_view view = {text, text ? strlen(text) : 0};
    return view;
}

static inline bool sl_view_equal(sl_view a, sl_view b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

static inline bool sl_view_is(sl_view a, const char *text) {
    return sl_view_equal(a, sl_view_of(text));
}

/* Zero-initialise before use. After any successful append data[length] is NUL. On a failed append (memory) `failed`
 * is set, and stays set, so that a long row of appends needs one check at the end. */
typedef struct sl_buffer {
    char *data;
    size_t length, capacity;
    bool failed;
} sl_buffer;

void sl_buffer_append(sl_buffer *buffer, const void *data, size_t length);
void sl_buffer_text(sl_buffer *buffer, const char *text);
void sl_buffer_printf(sl_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Empties, keeping the memory. */
void sl_buffer_clear(sl_buffer *buffer);
void sl_buffer_free(sl_buffer *buffer);

/* 64-bit hash of bytes (FNV-1a with a final avalanche); `seed` chains calls. Stable across machines and releases. */
uint64_t sl_hash64(const void *data, size_t length, uint64_t seed);

/* UTF-8, by RFC 3629. Decodes one character at `data` (length > 0): returns its size 1 to 4 and the code point, or 0
 * when the bytes are no valid character. */
size_t sl_utf8_decode(const char *data, size_t length, uint32_t *code_point);
/* Writes 1 to 4 bytes, returns how many; 0 for a value that is no Unicode scalar. */
size_t sl_utf8_encode(uint32_t code_point, char out[4]);

#endif
