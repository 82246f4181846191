/* Builds files byte by byte, from the formats' descriptions and nothing of the library's. */
#ifndef TESTS_UNIT_FORMAT_BYTES_H
#define TESTS_UNIT_FORMAT_BYTES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    unsigned char *data;
    size_t size, capacity;
} bytes;

static inline void put_bytes(bytes *b, const void *data, size_t size) {
    if (b->size + size > b->capacity) {
        b->capacity = (b->size + size) * 2;
        b->data = realloc(b->data, b->capacity);
        if (!b->data) {
            abort();
        }
    }
    if (size) {
        memcpy(b->data + b->size, data, size);
    }
    b->size += size;
}

static inline void put_number(bytes *b, uint64_t value, int width) {
    for (int i = 0; i < width; i++, value >>= 8) {
        unsigned char byte = value & 0xff;
        put_bytes(b, &byte, 1);
    }
}

static inline void put_u32(bytes *b, uint64_t value) {
    put_number(b, value, 4);
}

static inline void put_u64(bytes *b, uint64_t value) {
    put_number(b, value, 8);
}

static inline void put_text(bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put_bytes(b, text, strlen(text));
}

static inline void put_zeros_to(bytes *b, size_t multiple) {
    while (b->size % multiple) {
        put_number(b, 0, 1);
    }
}

/* ---- GGUF ---- */
static inline void put_header(bytes *b, uint32_t version, uint64_t tensors, uint64_t entries) {
    put_bytes(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, entries);
}

static inline void put_key(bytes *b, const char *key, uint32_t type) {
    put_text(b, key);
    put_u32(b, type);
}

/* A whole safetensors file. */
static inline void put_safetensors(bytes *b, const char *header, const void *data, size_t size) {
    put_text(b, header);
    put_bytes(b, data, size);
}

/* An exact copy on the heap, so that a sanitizer sees a read past its end. */
static inline unsigned char *exact_copy(const void *data, size_t size) {
    unsigned char *copy = malloc(size ? size : 1);
    if (!copy) {
        abort();
    }
    memcpy(copy, data, size);
    return copy;
}

static inline void write_file(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        abort();
    }
}

#endif
