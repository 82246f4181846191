/* Writes GGUF v3. In this order: create; metadata and tensor declarations; begin; the bytes of all tensors in
 * the order of declaration, in chunks of any size; finish. The bytes go to a new file beside the target,
 * which takes the target's name when it is complete: nobody ever sees half a file. Not thread-safe. After an
 * error only free may follow. */
#ifndef SL_FORMAT_GGUF_WRITER_H
#define SL_FORMAT_GGUF_WRITER_H

#include "format/gguf.h"
#include "format/output_file.h"

typedef struct sl_gguf_writer sl_gguf_writer;

/* Opens a file beside `path`, which replaces a regular file of that name. */
int sl_gguf_writer_create(const char *path, sl_gguf_writer **writer, sl_error *error);
/* The same by `rules`; what they borrow must live as long as the writer. NULL: no file is touched, all else
 * is as with one, and begin says how large it would be. */
int sl_gguf_writer_open(const char *path, const sl_output_rules *rules, sl_gguf_writer **writer,
                        sl_error *error);
/* Frees; unless finish succeeded, also removes what was written. NULL is fine. */
void sl_gguf_writer_free(sl_gguf_writer *writer);

/* ---- metadata: keys are printable ASCII; a key set twice is refused by begin
 * ------------------------------------- */

/* U8, U16, U32, U64 / I8, I16, I32, I64 / F32, F64. SL_ERR_INVALID when the value does not fit the type. */
int sl_gguf_writer_unsigned(sl_gguf_writer *writer, const char *key, sl_gguf_type type, uint64_t value,
                            sl_error *error);
int sl_gguf_writer_signed(sl_gguf_writer *writer, const char *key, sl_gguf_type type, int64_t value,
                          sl_error *error);
int sl_gguf_writer_float(sl_gguf_writer *writer, const char *key, sl_gguf_type type, double value,
                         sl_error *error);
int sl_gguf_writer_bool(sl_gguf_writer *writer, const char *key, bool value, sl_error *error);
int sl_gguf_writer_string(sl_gguf_writer *writer, const char *key, sl_view value, sl_error *error);

/* What an array holds. `items`: sl_view[count] for SL_GGUF_STRING; for the other types (not arrays) count
 * values of the C type of that width (bool as a byte 0 or 1), little-endian as on every machine that this
 * runs on. */
typedef struct sl_gguf_items {
    sl_gguf_type type;
    const void *items;
    uint64_t count;
} sl_gguf_items;
int sl_gguf_writer_array(sl_gguf_writer *writer, const char *key, const sl_gguf_items *items,
                         sl_error *error);

/* An entry of an open file, any type, byte for byte. */
int sl_gguf_writer_copy(sl_gguf_writer *writer, const sl_gguf_entry *entry, sl_error *error);

/* ---- tensors
 * ---------------------------------------------------------------------------------------------------- */

/* dims[0] is the innermost; 1 <= dim_count <= SL_TENSOR_DIMS; dims[0] holds whole blocks. */
typedef struct sl_gguf_shape {
    sl_qtype type;
    uint32_t dim_count;
    uint64_t dims[SL_TENSOR_DIMS];
} sl_gguf_shape;
int sl_gguf_writer_tensor(sl_gguf_writer *writer, const char *name, const sl_gguf_shape *shape,
                          sl_error *error);

/* Writes everything up to the data. `file_bytes` (may be NULL) receives the size that the file will have. */
int sl_gguf_writer_begin(sl_gguf_writer *writer, uint64_t *file_bytes, sl_error *error);
/* The next bytes of the current tensor; a chunk may run on into the tensors after it. Padding is put in
 * between. */
int sl_gguf_writer_data(sl_gguf_writer *writer, const void *data, uint64_t size, sl_error *error);
/* Refused unless every tensor is complete. Then the file has its name. */
int sl_gguf_writer_finish(sl_gguf_writer *writer, sl_error *error);

#endif
