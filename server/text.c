#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and a NUL. */
static bool text_reserve(text *t, size_t more) {
    if (t->failed) {
        return false;
    }
    if (more >= SIZE_MAX / 2 - t->length) {
        t->failed = true;
        return false;
    }
    size_t need = t->length + more + 1;
    if (need <= t->capacity) {
        return true;
    }
    size_t capacity = t->capacity < 64 ? 64 : t->capacity;
    while (capacity < need) {
        capacity *= 2;
    }
    char *data = realloc(t->data, capacity);
    if (!data) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->capacity = capacity;
    return true;
}

void text_add(text *t, const char *bytes, size_t length) {
    if (!text_reserve(t, length)) {
        return;
    }
    if (length) {
        memcpy(t->data + t->length, bytes, length);
    }
    t->length += length;
    t->data[t->length] = '\0';
}

void text_put(text *t, const char *string) {
    text_add(t, string, strlen(string));
}

void text_format(text *t, const char *format, ...) {
    for (int attempt = 0; attempt < 2 && text_reserve(t, 64); attempt++) {
        size_t room = t->capacity - t->length;
        va_list arguments;
        va_start(arguments, format);
        int written = vsnprintf(t->data + t->length, room, format, arguments);
        va_end(arguments);
        if (written >= 0 && (size_t)written < room) {
            t->length += (size_t)written;
            return;
        }
        t->data[t->length] = '\0';
        if (written < 0 || !text_reserve(t, (size_t)written)) {
            break;
        }
    }
    t->failed = true;
}

size_t text_character(const char *bytes, size_t length, size_t *skip) {
    const unsigned char *s = (const unsigned char *)bytes;
    *skip = 1;
    if (!length) {
        return 0;
    }
    if (s[0] < 0x80) {
        return 1;
    }
    /* Table 3-7 of the Unicode standard: the second byte decides overlong forms, surrogates and the end of
     * the range. */
    size_t size = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    unsigned least = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned most = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[0] < 0xc2 || s[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < size; i++) {
        if (i >= length || s[i] < least || s[i] > most) {
            *skip = i;
            return 0;
        }
        least = 0x80;
        most = 0xbf;
    }
    return size;
}

static void add_escaped(text *t, unsigned char byte) {
    static const char NAMED[] = "\b\f\n\r\t\"\\", LETTERS[] = "bfnrt\"\\";
    const char *found = byte ? strchr(NAMED, byte) : NULL;
    if (found) {
        char escaped[2] = {'\\', LETTERS[found - NAMED]};
        text_add(t, escaped, 2);
    } else {
        text_format(t, "\\u%04x", byte);
    }
}

void text_string(text *t, const char *bytes, size_t length) {
    text_add(t, "\"", 1);
    size_t plain = 0; /* where what is copied as it is begins */
    for (size_t i = 0; i < length && !t->failed;) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\') {
            i++;
            continue;
        }
        size_t skip, size = text_character(bytes + i, length - i, &skip);
        if (size > 1) {
            i += size;
            continue;
        }
        text_add(t, bytes + plain, i - plain);
        if (size) {
            add_escaped(t, byte);
            skip = 1;
        } else {
            text_put(t, "\xef\xbf\xbd");
        }
        i += skip;
        plain = i;
    }
    if (length > plain) { /* bytes may be NULL where there are none */
        text_add(t, bytes + plain, length - plain);
    }
    text_add(t, "\"", 1);
}

void text_real(text *t, double value) {
    char number[40] = "0.0";
    if (!isfinite(value)) {
        t->failed = true;
        return;
    }
    for (int digits = 15; value != 0 && digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value) {
            break;
        }
    }
    text_put(t, number);
    if (!strpbrk(number, ".e")) {
        text_put(t, ".0");
    }
}

static void add_members(text *t, const json_t *object) {
    const char *key, *comma = "";
    json_t *member;
    text_put(t, "{");
    json_object_foreach((json_t *)(uintptr_t)object, key, member) {
        text_put(t, comma);
        text_string(t, key, strlen(key));
        text_put(t, ":");
        text_json(t, member);
        comma = ",";
    }
    text_put(t, "}");
}

void text_json(text *t, const json_t *value) {
    if (!value) {
        t->failed = true;
        return;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        add_members(t, value);
        break;
    case JSON_ARRAY:
        text_put(t, "[");
        for (size_t i = 0; i < json_array_size(value); i++) {
            text_put(t, i ? "," : "");
            text_json(t, json_array_get(value, i));
        }
        text_put(t, "]");
        break;
    case JSON_STRING:
        text_string(t, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        text_format(t, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        text_real(t, json_real_value(value));
        break;
    case JSON_TRUE:
        text_put(t, "true");
        break;
    case JSON_FALSE:
        text_put(t, "false");
        break;
    case JSON_NULL:
        text_put(t, "null");
        break;
    }
}

void text_json_new(text *t, json_t *value) {
    text_json(t, value);
    json_decref(value);
}

void text_clear(text *t) {
    t->length = 0;
    t->failed = false;
    if (t->data) {
        t->data[0] = '\0';
    }
}

void text_free(text *t) {
    free(t->data);
    *t = (text){0};
}

char *text_take(text *t, size_t *length) {
    text_add(t, "", 0); /* so that an empty text is one too */
    char *data = t->data;
    *length = t->length;
    if (t->failed) {
        free(data);
        data = NULL;
        *length = 0;
    }
    *t = (text){0};
    return data;
}
