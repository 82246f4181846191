#include "bytes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int load_bytes_add(load_bytes *bytes, const char *more, size_t length) {
    if (length >= SIZE_MAX / 4 - bytes->length) {
        return -1;
    }
    const size_t need = bytes->length + length + 1;
    if (need > bytes->capacity) {
        size_t capacity = bytes->capacity ? 2 * bytes->capacity : 256;
        capacity = capacity < need ? need : capacity;
        char *data = realloc(bytes->data, capacity);
        if (!data) {
            return -1;
        }
        bytes->data = data;
        bytes->capacity = capacity;
    }
    if (length > 0) {
        memcpy(bytes->data + bytes->length, more, length);
    }
    bytes->length += length;
    bytes->data[bytes->length] = '\0';
    return 0;
}

void load_bytes_clear(load_bytes *bytes) {
    bytes->length = 0;
    if (bytes->data) {
        bytes->data[0] = '\0';
    }
}

void load_bytes_free(load_bytes *bytes) {
    free(bytes->data);
    *bytes = (load_bytes){0};
}
