#define _GNU_SOURCE
#include "format/gguf_writer.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/checked.h"
#include "format/index.h"
#include "format/output_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Writes go out in pieces of this size, or directly from the caller when a chunk is at least as large. */
enum { BUFFER_SIZE = 4 << 20 };

typedef enum writer_state { DECLARING, WRITING, FINISHED, FAILED } writer_state;

typedef struct declared_tensor {
    const char *name;
    sl_gguf_shape shape;
    uint64_t bytes;
} declared_tensor;

struct sl_gguf_writer {
    const char *path;      /* in `arena` */
    sl_output_file output; /* nothing is open in a writer that only counts */
    writer_state state;
    sl_arena arena;
    const char **keys;
    declared_tensor *tensors;
    uint64_t key_count, key_capacity, tensor_count, tensor_capacity;
    uint64_t alignment;
    sl_buffer metadata;     /* the entries as they stand in the file */
    unsigned char *pending; /* [BUFFER_SIZE] */
    size_t pending_bytes;
    uint64_t current, done; /* the tensor being written and how much of it */
};

static int fail_state(sl_gguf_writer *writer, const char *what, sl_error *error) {
    writer->state = FAILED;
    return sl_fail(error, SL_ERR_INVALID, "%s: %s", writer->path, what);
}

static int fail_memory(sl_gguf_writer *writer, sl_error *error) {
    writer->state = FAILED;
    return sl_fail(error, SL_ERR_NOMEM, "%s: no memory to write", writer->path);
}

static int fail_io(sl_gguf_writer *writer, const char *what, sl_error *error) {
    writer->state = FAILED;
    return sl_fail(error, SL_ERR_IO, "%s: cannot %s: %s", writer->path, what, strerror(errno));
}

int sl_gguf_writer_create(const char *path, sl_gguf_writer **out, sl_error *error) {
    const sl_output_rules rules = {.replace = true};
    return sl_gguf_writer_open(path, &rules, out, error);
}

int sl_gguf_writer_open(const char *path, const sl_output_rules *rules, sl_gguf_writer **out,
                        sl_error *error) {
    *out = NULL;
    sl_gguf_writer *writer = sl_alloc_zero(1, sizeof *writer);
    if (!writer) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory to write", path);
    }
    writer->alignment = SL_GGUF_ALIGNMENT;
    writer->path = path; /* for the messages until there is a copy */
    const char *copy = sl_arena_strndup(&writer->arena, path, strlen(path));
    writer->pending = sl_alloc(BUFFER_SIZE);
    int result = copy && writer->pending ? 0 : fail_memory(writer, error);
    if (result == 0) {
        writer->path = copy;
        result = rules ? sl_output_file_open(&writer->output, copy, rules, error) : 0;
    }
    if (result != 0) {
        sl_gguf_writer_free(writer);
        return result;
    }
    *out = writer;
    return 0;
}

void sl_gguf_writer_free(sl_gguf_writer *writer) {
    if (!writer) {
        return;
    }
    sl_output_file_discard(&writer->output);
    sl_buffer_free(&writer->metadata);
    sl_free(writer->pending);
    sl_free(writer->keys);
    sl_free(writer->tensors);
    sl_arena_free(&writer->arena);
    sl_free(writer);
}

/* ---- metadata
 * -------------------------------------------------------------------------------------------------- */

static void put(sl_buffer *buffer, uint64_t value, uint32_t width) {
    unsigned char bytes[8];
    for (uint32_t i = 0; i < width; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    sl_buffer_append(buffer, bytes, width);
}

static void put_string(sl_buffer *buffer, sl_view text) {
    put(buffer, text.length, 8);
    sl_buffer_append(buffer, text.data, text.length);
}

static bool name_is_valid(const char *name, bool ascii) {
    size_t length = strlen(name);
    return length >= 1 && length <= 65535 && sl_name_bad_byte(name, length, ascii) == length;
}

/* Key and type; the value follows in `metadata`. */
static int start_entry(sl_gguf_writer *writer, const char *key, sl_gguf_type type, sl_error *error) {
    if (writer->state != DECLARING) {
        return fail_state(writer, "metadata after the data began, or after an error", error);
    }
    if (!name_is_valid(key, true)) {
        return fail_state(writer, "a metadata key must be 1 to 65535 printable ASCII characters", error);
    }
    const char **keys = sl_grow(writer->keys, writer->key_count, &writer->key_capacity, sizeof *keys);
    writer->keys = keys ? keys : writer->keys;
    const char *copy = sl_arena_strndup(&writer->arena, key, strlen(key));
    if (!keys || !copy) {
        return fail_memory(writer, error);
    }
    keys[writer->key_count++] = copy;
    put_string(&writer->metadata, sl_view_of(key));
    put(&writer->metadata, type, 4);
    return 0;
}

static int end_entry(sl_gguf_writer *writer, sl_error *error) {
    return writer->metadata.failed ? fail_memory(writer, error) : 0;
}

static int put_scalar(sl_gguf_writer *writer, const char *key, sl_gguf_type type, uint64_t bits,
                      sl_error *error) {
    if (strcmp(key, "general.alignment") == 0) {
        if (type != SL_GGUF_U32 || bits == 0 || bits % 8 != 0) {
            return fail_state(writer, "general.alignment must be a u32, a multiple of 8", error);
        }
        writer->alignment = bits;
    }
    int result = start_entry(writer, key, type, error);
    if (result == 0) {
        put(&writer->metadata, bits, sl_gguf_type_size(type));
        result = end_entry(writer, error);
    }
    return result;
}

int sl_gguf_writer_unsigned(sl_gguf_writer *writer, const char *key, sl_gguf_type type, uint64_t value,
                            sl_error *error) {
    uint32_t width = sl_gguf_type_size(type);
    bool fits = type == SL_GGUF_U8 || type == SL_GGUF_U16 || type == SL_GGUF_U32 || type == SL_GGUF_U64;
    if (!fits || (width < 8 && value >> (8 * width))) {
        return fail_state(writer, "the type is no unsigned integer that holds the value", error);
    }
    return put_scalar(writer, key, type, value, error);
}

int sl_gguf_writer_signed(sl_gguf_writer *writer, const char *key, sl_gguf_type type, int64_t value,
                          sl_error *error) {
    uint32_t width = sl_gguf_type_size(type);
    bool fits = type == SL_GGUF_I8 || type == SL_GGUF_I16 || type == SL_GGUF_I32 || type == SL_GGUF_I64;
    int64_t most = fits ? (int64_t)(UINT64_MAX >> (65 - 8 * width)) : 0;
    if (!fits || value > most || value < -most - 1) {
        return fail_state(writer, "the type is no signed integer that holds the value", error);
    }
    return put_scalar(writer, key, type, (uint64_t)value, error);
}

int sl_gguf_writer_float(sl_gguf_writer *writer, const char *key, sl_gguf_type type, double value,
                         sl_error *error) {
    uint64_t bits;
    if (type == SL_GGUF_F32) {
        float narrow = (float)value;
        uint32_t bits32;
        memcpy(&bits32, &narrow, sizeof bits32);
        bits = bits32;
    } else if (type == SL_GGUF_F64) {
        memcpy(&bits, &value, sizeof bits);
    } else {
        return fail_state(writer, "the type is neither f32 nor f64", error);
    }
    return put_scalar(writer, key, type, bits, error);
}

int sl_gguf_writer_bool(sl_gguf_writer *writer, const char *key, bool value, sl_error *error) {
    return put_scalar(writer, key, SL_GGUF_BOOL, value, error);
}

int sl_gguf_writer_string(sl_gguf_writer *writer, const char *key, sl_view value, sl_error *error) {
    int result = start_entry(writer, key, SL_GGUF_STRING, error);
    if (result == 0) {
        put_string(&writer->metadata, value);
        result = end_entry(writer, error);
    }
    return result;
}

int sl_gguf_writer_array(sl_gguf_writer *writer, const char *key, const sl_gguf_items *items,
                         sl_error *error) {
    uint32_t width = sl_gguf_type_size(items->type);
    uint64_t bytes = 0;
    if ((width == 0 && items->type != SL_GGUF_STRING) || !sl_mul_u64(items->count, width, &bytes)) {
        return fail_state(writer, "an array must hold strings, numbers or bools", error);
    }
    int result = start_entry(writer, key, SL_GGUF_ARRAY, error);
    if (result != 0) {
        return result;
    }
    put(&writer->metadata, items->type, 4);
    put(&writer->metadata, items->count, 8);
    if (items->type == SL_GGUF_STRING) {
        for (uint64_t i = 0; i < items->count; i++) {
            put_string(&writer->metadata, ((const sl_view *)items->items)[i]);
        }
    } else {
        sl_buffer_append(&writer->metadata, items->items, (size_t)bytes);
    }
    return end_entry(writer, error);
}

int sl_gguf_writer_copy(sl_gguf_writer *writer, const sl_gguf_entry *entry, sl_error *error) {
    if (strcmp(entry->key, "general.alignment") == 0) {
        uint64_t alignment = (uint64_t)sl_gguf_item_i64(entry, 0);
        return put_scalar(writer, entry->key, SL_GGUF_U32, alignment, error);
    }
    int result = start_entry(writer, entry->key, entry->type, error);
    if (result == 0) {
        if (entry->type == SL_GGUF_ARRAY) {
            put(&writer->metadata, entry->item_type, 4);
            put(&writer->metadata, entry->count, 8);
        }
        sl_buffer_append(&writer->metadata, entry->data, (size_t)entry->bytes);
        result = end_entry(writer, error);
    }
    return result;
}

/* ---- tensors
 * --------------------------------------------------------------------------------------------------- */

int sl_gguf_writer_tensor(sl_gguf_writer *writer, const char *name, const sl_gguf_shape *shape,
                          sl_error *error) {
    if (writer->state != DECLARING) {
        return fail_state(writer, "a tensor declared after the data began, or after an error", error);
    }
    if (!name_is_valid(name, false)) {
        return fail_state(writer, "a tensor's name must be 1 to 65535 bytes without control characters",
                          error);
    }
    uint64_t elements = 1, bytes = 0;
    bool valid = (uint32_t)shape->type < SL_QTYPE_COUNT &&
                 sl_qtype_get(shape->type)->gguf_type != SL_QTYPE_NO_GGUF && shape->dim_count >= 1 &&
                 shape->dim_count <= SL_TENSOR_DIMS;
    for (uint32_t i = 0; valid && i < shape->dim_count; i++) {
        valid = shape->dims[i] > 0 && sl_mul_u64(elements, shape->dims[i], &elements);
    }
    valid = valid && shape->dims[0] % sl_qtype_get(shape->type)->block_elements == 0 &&
            sl_qtype_bytes(shape->type, elements, &bytes);
    if (!valid) {
        writer->state = FAILED;
        return sl_fail(error, SL_ERR_INVALID, "%s: tensor '%.100s' has no valid type and shape", writer->path,
                       name);
    }
    declared_tensor *tensors =
        sl_grow(writer->tensors, writer->tensor_count, &writer->tensor_capacity, sizeof *tensors);
    writer->tensors = tensors ? tensors : writer->tensors;
    const char *copy = sl_arena_strndup(&writer->arena, name, strlen(name));
    if (!tensors || !copy) {
        return fail_memory(writer, error);
    }
    tensors[writer->tensor_count++] = (declared_tensor){copy, *shape, bytes};
    return 0;
}

/* The first multiple of the alignment from `value` on; false when it overflows. */
static bool align(const sl_gguf_writer *writer, uint64_t value, uint64_t *aligned) {
    uint64_t past = value % writer->alignment;
    return sl_add_u64(value, past ? writer->alignment - past : 0, aligned);
}

/* ---- output
 * ---------------------------------------------------------------------------------------------------- */

static int write_all(sl_gguf_writer *writer, const unsigned char *data, uint64_t size, sl_error *error) {
    while (size > 0 && writer->output.temporary) {
        ssize_t written = write(writer->output.file, data, size < (1u << 30) ? size : 1u << 30);
        if (written < 0 && errno != EINTR) {
            return fail_io(writer, "write", error);
        }
        data += written > 0 ? written : 0;
        size -= written > 0 ? (uint64_t)written : 0;
    }
    return 0;
}

static int flush(sl_gguf_writer *writer, sl_error *error) {
    size_t bytes = writer->pending_bytes;
    writer->pending_bytes = 0;
    return write_all(writer, writer->pending, bytes, error);
}

static int output(sl_gguf_writer *writer, const unsigned char *data, uint64_t size, sl_error *error) {
    int result = size > BUFFER_SIZE - writer->pending_bytes ? flush(writer, error) : 0;
    if (result != 0 || size == 0) {
        return result;
    }
    if (size >= BUFFER_SIZE) {
        return write_all(writer, data, size, error);
    }
    memcpy(writer->pending + writer->pending_bytes, data, size);
    writer->pending_bytes += size;
    return 0;
}

/* Zero bytes up to the alignment from a place that is `position` past an aligned one. */
static int pad(sl_gguf_writer *writer, uint64_t position, sl_error *error) {
    static const unsigned char zeros[4096];
    uint64_t aligned = position;
    int result = align(writer, position, &aligned) ? 0 : fail_state(writer, "the size overflows", error);
    for (uint64_t rest = aligned - position; result == 0 && rest > 0;) {
        uint64_t now = rest < sizeof zeros ? rest : sizeof zeros;
        result = output(writer, zeros, now, error);
        rest -= now;
    }
    return result;
}

static int refuse_duplicates(sl_gguf_writer *writer, sl_error *error) {
    for (int tensors = 0; tensors <= 1; tensors++) {
        sl_name_index index = {0};
        uint64_t count = tensors ? writer->tensor_count : writer->key_count;
        if (sl_name_index_reserve(&index, count, error) != 0) {
            return fail_memory(writer, error);
        }
        for (uint64_t i = 0; i < count; i++) {
            sl_name_index_add(&index, tensors ? writer->tensors[i].name : writer->keys[i], i);
        }
        const char *twice = sl_name_index_sort(&index);
        sl_name_index_free(&index);
        if (twice) {
            writer->state = FAILED;
            return sl_fail(error, SL_ERR_INVALID, "%s: %s '%.100s' was given twice", writer->path,
                           tensors ? "tensor" : "metadata key", twice);
        }
    }
    return 0;
}

/* The descriptions of all tensors, after the metadata; `data_bytes` receives the padded size of the data. */
static bool put_descriptions(sl_gguf_writer *writer, uint64_t *data_bytes) {
    uint64_t offset = 0;
    for (uint64_t i = 0; i < writer->tensor_count; i++) {
        const declared_tensor *tensor = &writer->tensors[i];
        put_string(&writer->metadata, sl_view_of(tensor->name));
        put(&writer->metadata, tensor->shape.dim_count, 4);
        for (uint32_t d = 0; d < tensor->shape.dim_count; d++) {
            put(&writer->metadata, tensor->shape.dims[d], 8);
        }
        put(&writer->metadata, sl_qtype_get(tensor->shape.type)->gguf_type, 4);
        put(&writer->metadata, offset, 8);
        if (!sl_add_u64(offset, tensor->bytes, &offset) || !align(writer, offset, &offset)) {
            return false;
        }
    }
    *data_bytes = offset;
    return true;
}

int sl_gguf_writer_begin(sl_gguf_writer *writer, uint64_t *file_bytes, sl_error *error) {
    enum { HEADER_BYTES = 4 + 4 + 8 + 8 };
    if (writer->state != DECLARING) {
        return fail_state(writer, "begun twice, or after an error", error);
    }
    int result = refuse_duplicates(writer, error);
    if (result != 0) {
        return result;
    }
    uint64_t data_bytes = 0, start = 0, total = 0;
    bool fits = put_descriptions(writer, &data_bytes);
    sl_buffer header = {0};
    sl_buffer_append(&header, "GGUF", 4);
    put(&header, 3, 4);
    put(&header, writer->tensor_count, 8);
    put(&header, writer->key_count, 8);
    if (header.failed || writer->metadata.failed) {
        sl_buffer_free(&header);
        return fail_memory(writer, error);
    }
    result = output(writer, (const unsigned char *)header.data, HEADER_BYTES, error);
    sl_buffer_free(&header);
    if (result == 0) {
        result = output(writer, (const unsigned char *)writer->metadata.data, writer->metadata.length, error);
    }
    uint64_t end = HEADER_BYTES + (uint64_t)writer->metadata.length;
    sl_buffer_free(&writer->metadata);
    if (result == 0 && (!fits || !align(writer, end, &start) || !sl_add_u64(start, data_bytes, &total))) {
        return fail_state(writer, "the size of all tensors overflows", error);
    }
    if (result == 0 && (result = pad(writer, end, error)) == 0) {
        writer->state = WRITING;
        if (file_bytes) {
            *file_bytes = total;
        }
    }
    return result;
}

int sl_gguf_writer_data(sl_gguf_writer *writer, const void *data, uint64_t size, sl_error *error) {
    const unsigned char *bytes = data;
    if (writer->state != WRITING) {
        return fail_state(writer, "data before begin, or after an error", error);
    }
    while (size > 0) {
        if (writer->current == writer->tensor_count) {
            return fail_state(writer, "more data than the tensors hold", error);
        }
        uint64_t whole = writer->tensors[writer->current].bytes, rest = whole - writer->done;
        uint64_t now = size < rest ? size : rest;
        int result = output(writer, bytes, now, error);
        bytes += now;
        size -= now;
        writer->done += now;
        if (result == 0 && writer->done == whole) {
            result = pad(writer, whole, error);
            writer->current++;
            writer->done = 0;
        }
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

int sl_gguf_writer_finish(sl_gguf_writer *writer, sl_error *error) {
    if (writer->state != WRITING || writer->current != writer->tensor_count) {
        return fail_state(writer, "finished before every tensor is complete, or after an error", error);
    }
    int result = flush(writer, error);
    if (result != 0) {
        return result;
    }
    result = writer->output.temporary ? sl_output_file_commit(&writer->output, error) : 0;
    writer->state = result == 0 ? FINISHED : FAILED;
    return result;
}
