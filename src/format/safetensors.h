/* One safetensors file, by the format of Hugging Face's safetensors library: 8 bytes of header length
 * (little-endian), a JSON header, the data. Everything is checked when the file is opened: offsets follow
 * each other without gap or overlap and cover the data exactly, each tensor has the size that its shape and
 * dtype say, no name comes twice. Every tensor is listed; those that the engine cannot use (dtype, a
 * dimension of 0, too many dimensions) are refused when they are looked up. */
#ifndef SL_FORMAT_SAFETENSORS_H
#define SL_FORMAT_SAFETENSORS_H

#include "base/error.h"
#include "format/tensor.h"

#include <stddef.h>

enum { SL_SAFETENSORS_HEADER_LIMIT = 100000000 /* bytes; the reference implementation's */ };

typedef struct sl_safetensors sl_safetensors;

typedef struct sl_safetensors_entry {
    /* name, data, bytes and elements always hold, dims where rank is at most 4. type holds only when
     * `refusal` is NULL. */
    sl_tensor tensor;
    const char *dtype;   /* as the file says it: "BF16" */
    const char *refusal; /* why the engine cannot use it; NULL when it can */
    uint32_t rank;       /* dimensions in the file, 0 for a scalar */
} sl_safetensors_entry;

/* On success *file owns the map; on failure it is NULL. Immutable afterwards, so any thread may read. */
int sl_safetensors_open(const char *path, sl_safetensors **file, sl_error *error);
/* The same over bytes that the caller keeps until close; `name` stands for the path in messages. */
int sl_safetensors_open_memory(const void *data, size_t size, const char *name, sl_safetensors **file,
                               sl_error *error);
void sl_safetensors_close(sl_safetensors *file); /* NULL is fine */
const char *sl_safetensors_path(const sl_safetensors *file);

uint64_t sl_safetensors_count(const sl_safetensors *file);
/* In the order of the data; index < sl_safetensors_count. */
const sl_safetensors_entry *sl_safetensors_at(const sl_safetensors *file, uint64_t index);
/* NULL when there is none. */
const sl_safetensors_entry *sl_safetensors_find(const sl_safetensors *file, const char *name);
/* A tensor to compute with: SL_ERR_NOT_FOUND, or SL_ERR_UNSUPPORTED naming tensor, dtype and reason. */
int sl_safetensors_tensor(const sl_safetensors *file, const char *name, const sl_tensor **tensor,
                          sl_error *error);

#endif
