#include "base/text.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>

static bool reserve(sl_buffer *buffer, size_t more) {
    uint64_t need;
    if (buffer->failed || !sl_add_u64(buffer->length, (uint64_t)more + 1, &need)) {
        buffer->failed = true;
        return false;
    }
    if (need > buffer->capacity) {
        size_t capacity = buffer->capacity ? buffer->capacity : 128;
        while (capacity < need) {
            capacity *= 2;
        }
        char *data = sl_realloc(buffer->data, capacity);
        if (!data) {
            buffer->failed = true;
            return false;
        }
        buffer->data = data;
        buffer->capacity = capacity;
    }
    return true;
}

void sl_buffer_append(sl_buffer *buffer, const void *data, size_t length) {
    if (reserve(buffer, length)) {
        if (length) {
            memcpy(buffer->data + buffer->length, data, length);
        }
        buffer->length += length;
        buffer->data[buffer->length] = 0;
    }
}

void sl_buffer_text(sl_buffer *buffer, const char *text) {
    sl_buffer_append(buffer, text, strlen(text));
}

void sl_buffer_printf(sl_buffer *buffer, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length >= 0 && reserve(buffer, (size_t)length)) {
        vsnprintf(buffer->data + buffer->length, (size_t)length + 1, format, again);
        buffer->length += (size_t)length;
    }
    va_end(again);
}

void sl_buffer_clear(sl_buffer *buffer) {
    buffer->length = 0;
    buffer->failed = false;
    if (buffer->data) {
        buffer->data[0] = 0;
    }
}

void sl_buffer_free(sl_buffer *buffer) {
    sl_free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

uint64_t sl_hash64(const void *data, size_t length, uint64_t seed) {
    const unsigned char *bytes = data;
    uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    hash ^= hash >> 33;
    hash *= 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 33);
}

size_t sl_utf8_decode(const char *data, size_t length, uint32_t *code_point) {
    const unsigned char *s = (const unsigned char *)data;
    if (s[0] < 0x80) {
        *code_point = s[0];
        return 1;
    }
    size_t size = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || length < size) {
        return 0;
    }
    uint32_t value = s[0] & (0xffu >> (size + 1));
    for (size_t i = 1; i < size; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        value = value << 6 | (s[i] & 0x3f);
    }
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < smallest[size] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
        return 0;
    }
    *code_point = value;
    return size;
}

size_t sl_utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xd800 && c <= 0xdfff) {
            return 0;
        }
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    if (c > 0x10ffff) {
        return 0;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}
