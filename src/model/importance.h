/* Importance matrices: how much each input column of a matrix matters, as the mean of its squared activations
 * over a text. Written as GGUF, and read in both formats of llama.cpp's llama-imatrix
 * (tools/imatrix/imatrix.cpp): GGUF files with general.type "imatrix" and tensors NAME.in_sum2 (sums of
 * squares, [matrices][columns]) and NAME.counts (rows added up, per matrix), and the older .dat: int32
 * entries, each { int32 length, name, int32 calls, int32 values, float sums[values] }, then int32 chunks,
 * int32 length, name of the text. */
#ifndef SL_MODEL_IMPORTANCE_H
#define SL_MODEL_IMPORTANCE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"
#include "format/index.h"
#include "format/output_file.h"

#include <stdint.h>

typedef struct sl_importance_entry {
    const char *name;
    float *means; /* [count]: matrices times columns */
    uint64_t count;
} sl_importance_entry;

/* Zero-initialise; free after success and failure alike. */
typedef struct sl_importance {
    sl_arena arena;
    sl_importance_entry *entries;
    uint64_t count, capacity;
    sl_name_index index;
    uint64_t chunks;     /* of text that it was made from; 0: not known */
    const char *dataset; /* name of the text; "" when it is not known */
} sl_importance;

/* Which of the two formats it is shows in the first bytes. SL_ERR_FORMAT for a malformed file, also for
 * values that are negative or no finite numbers. */
int sl_importance_read(sl_importance *importance, const char *path, sl_error *error);
/* What was added up for one tensor. */
typedef struct sl_importance_sums {
    const char *name;
    uint64_t columns, matrices;
    const double *sums;   /* of squares: [matrices][columns] */
    const double *counts; /* rows: [matrices] */
} sl_importance_sums;

/* A file that is to be written. */
typedef struct sl_importance_text {
    const char *dataset;         /* name of the text */
    uint32_t chunks, chunk_size; /* pieces of it that were run, and tokens of one */
    const sl_importance_sums *entries;
    uint64_t count;
} sl_importance_text;

/* As GGUF, by the rules of outputs. Entries without any rows are left out, as llama-imatrix does; names must
 * differ. SL_ERR_INVALID when none is left or a sum is no finite float. */
int sl_importance_write(const sl_importance_text *text, const char *path, const sl_output_rules *rules,
                        sl_error *error);
/* NULL when it has nothing about a tensor of that name. */
const sl_importance_entry *sl_importance_find(const sl_importance *importance, const char *name);
void sl_importance_free(sl_importance *importance);

#endif
