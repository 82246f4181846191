/* What the files of quantize share; nobody else includes it. */
#ifndef SL_MODEL_QUANTIZE_H
#define SL_MODEL_QUANTIZE_H

#include "base/arena.h"
#include "model/files.h"

/* Which place of the source the index-th row or column of the output comes from. */
typedef enum order_kind {
    ORDER_SAME,
    ORDER_PAIRS,  /* heads of `size`: the two halves of a head side by side, element by element (GGUF's RoPE
                     pairs) */
    ORDER_PART,   /* blocks of `size` out of blocks of 2 * size, from their `part`-th half */
    ORDER_TILED,  /* from `first` on, blocks of `size`: block t is the source's t % heads * ratio + t / heads,
                     so that those which share a key head lie `heads` apart and not side by side */
    ORDER_JOINED, /* for each key head `ratio` of the second `heads` * `ratio`, then as many of the first */
} order_kind;

typedef struct file_order {
    order_kind kind;
    uint64_t size, part, first, heads, ratio;
} file_order;

typedef struct file_tensor {
    const char *name;
    sl_gguf_shape shape; /* as written */
    sl_qtype wanted;     /* what shape.type fell back from, or the same */
    bool exact;          /* stays F32 whatever the mixture */
    uint64_t rows, columns, row_bytes;
    sl_qtype from;
    const unsigned char *data; /* the source's [rows][columns], or more with ORDER_PART */
    uint64_t from_row_bytes;
    file_order row_order, column_order;
    const sl_tensor *scale;  /* NVFP4: beside the matrix, scales of all its elements; NULL: none */
    const sl_tensor *matrix; /* and in a tensor of such scales: whose they are */
    const float *scales;     /* to be multiplied in, [scale_count]; NULL: none */
    uint64_t scale_count;
    float add;               /* to every element */
    bool negated_exp;        /* -exp of every element */
    bool turned; /* the source has matrices [columns][shape.dims[1]], those written are transposed */
    const float *importance; /* of the columns as written, [matrices][columns]; NULL: not known */
} file_tensor;

typedef struct file_list {
    sl_arena arena; /* names, and values that are in no file */
    file_tensor *tensors;
    uint64_t count, capacity, bytes;
} file_list;

/* Declares and writes all tensors: everything after the metadata. Without `data` only the descriptions.
 * `file_bytes` (may be NULL) receives the size of the file. */
typedef struct file_job {
    sl_gguf_writer *writer;
    const char *path;
    const sl_file_progress *progress;
    uint64_t *file_bytes;
    bool data;
} file_job;
int sl_file_write_list(const file_job *job, const file_list *list, sl_error *error);

#endif
