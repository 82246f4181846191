/* Bytes that grow. */
#ifndef SLUICE_LOAD_BYTES_H
#define SLUICE_LOAD_BYTES_H

#include <stddef.h>

typedef struct load_bytes {
    char *data; /* NUL-terminated when not NULL */
    size_t length, capacity;
} load_bytes;

/* 0; -1: no memory, and nothing was added. */
int load_bytes_add(load_bytes *bytes, const char *more, size_t length);
void load_bytes_clear(load_bytes *bytes);
void load_bytes_free(load_bytes *bytes);

#endif
