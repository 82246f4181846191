/* Matrices that have scales in tensors of their own: checkpoints' FP8 and NVFP4 (format/quantization.h), and
 * GGUF's NVFP4 with a scale for the whole matrix. They become blocks of FP8_128 and NVFP4_128, with the same
 * values: their codes and scales, those of larger parts repeated in every block. Inside src/model.
 *
 * With w the module's name in a checkpoint, [rows][columns] of a matrix, and E2M1's two numbers of a byte in
 * the order of its nibbles:
 *
 * - w.weight F8_E4M3 [rows][columns], and w.weight_scale or w.weight_scale_inv, F32, BF16 or F16: one number,
 *   [rows], [rows][1], or one for each block of the config's size: value = code * scale
 * - the same of all experts, w F8_E4M3 [experts][rows][columns] and w_scale or w_scale_inv of as many
 *   dimensions, or [experts], or one number (gate_up_proj: gate's rows, then up's)
 * - w.weight U8 [rows][columns / 2], w.weight_scale F8_E4M3 [rows][columns / 16] and w.weight_scale_2 F32,
 * one number: value = code * (weight_scale * weight_scale_2)
 * - w.weight_packed U8, w.weight_scale likewise, w.weight_global_scale F32, one number: value = code *
 *   (weight_scale * (1 / weight_global_scale))
 *
 * - w_blocks U8 [experts][rows][columns / 32][16] and w_scales U8 [experts][rows][columns / 32], MXFP4: value
 * = code * 2^(scale - 127), in the same order of nibbles. GGUF's blocks are the same numbers, with columns j
 * and j + 16 in a byte
 *
 * Integers of 4 and 8 bits: model/packed.h.
 *
 * And matrices that need an order that no file has, of any type: rows that are parts of another tensor's
 * (model/part.h), and w [experts][columns][rows], which is turned.
 *
 * In GGUF, beside w.weight of type NVFP4, w.scale F32: one number for each expert, or one. Scales of
 * activations (input_scale, input_global_scale) are not used. Rows that are no whole blocks of 128 become
 * BF16, values rounded to it. */
#ifndef SL_MODEL_SCALED_H
#define SL_MODEL_SCALED_H

#include "format/quantization.h"
#include "model/bind.h"
#include "model/part.h"

enum { SL_SCALED_IGNORED = 2 };

typedef enum sl_scaled_kind {
    SL_SCALED_FP8,
    SL_SCALED_NVFP4,
    SL_SCALED_GGUF, /* NVFP4 */
    SL_SCALED_MXFP4,
    SL_SCALED_INTEGERS,
    SL_SCALED_ROWS,  /* as they are */
    SL_SCALED_TURNED /* [columns][rows] */
} sl_scaled_kind;

/* How a matrix of integers lies: model/packed.h. */
typedef enum sl_packing { SL_PACKING_ROWS, SL_PACKING_BYTES, SL_PACKING_GPTQ, SL_PACKING_AWQ } sl_packing;

typedef struct sl_integers {
    sl_packing packing;
    int32_t bits;
    uint64_t group, groups;         /* columns that share a scale, and how many such groups a row has */
    bool less_one;                  /* zero points are stored less one */
    bool middle;                    /* zero points must be the middle of the codes */
    bool one;                       /* a single scale */
    const sl_tensor *zeros, *order; /* may be NULL */
} sl_integers;

/* What became of numbers on the way. */
typedef struct sl_scaled_notes {
    uint64_t scales, rounded; /* to F16: all, and those that it does not hold */
} sl_scaled_notes;

/* Borrowed from the source. */
typedef struct sl_scaled {
    sl_scaled_kind kind;
    sl_qtype type; /* that they become */
    int32_t experts, rows, columns;
    sl_tensor_part part;                     /* which rows of the source's; without runs: all */
    int32_t source_rows;                     /* of one matrix, in the source */
    const sl_tensor *codes, *scales, *whole; /* scales or whole may be NULL */
    bool divides;                            /* by whole */
    uint64_t block_rows, block_columns;      /* of FP8, that share one of `scales` */
    uint64_t scale_columns;                  /* of FP8, numbers in a row of `scales` */
    uint64_t scale_step;                     /* of FP8, numbers from an expert's to the next's; 0: the same */
    sl_integers integers;
    const sl_tensor *ignored[SL_SCALED_IGNORED];
    const char *file;
} sl_scaled;

/* Where to look. */
typedef struct sl_scaled_query {
    const sl_source *source;
    const sl_hf_quantization *quantization;
    const char *name;               /* of the weight in the source: "...weight" */
    int32_t experts, rows, columns; /* there */
    const sl_tensor_part *part;     /* NULL: all rows */
    bool own_scale;                 /* GGUF's "....scale" beside it is a tensor that the model has itself */
} sl_scaled_query;

/* *there: whether the weight is such a matrix; then every tensor of it was checked, but for the numbers in
 * it. */
int sl_scaled_find(const sl_scaled_query *query, sl_scaled *scaled, bool *there, sl_error *error);
/* Of a tensor without scales, whose shape was checked: rows in the order of the query's part, turned where
 * the tensor holds [experts][columns][rows]. */
void sl_scaled_rows(const sl_scaled_query *query, const sl_tensor *tensor, bool turned, sl_scaled *scaled);
/* What sl_weight.scale_rows is of the blocks. */
int32_t sl_scaled_scale_rows(const sl_scaled *scaled);
/* Bytes of all blocks; false when that overflows. */
bool sl_scaled_bytes(const sl_scaled *scaled, uint64_t *bytes);
/* Writes those of `rows` rows, of all experts' from `first` on, and adds to *notes. SL_ERR_FORMAT names a
 * tensor with a scale that is none. */
int sl_scaled_pack(const sl_scaled *scaled, uint64_t first, uint64_t rows, void *to, sl_scaled_notes *notes,
                   sl_error *error);
/* Whether a folder has a matrix under this name, itself or as tensors beside it. */
bool sl_scaled_is_there(const sl_hf *hf, const char *name);
/* The row of the source, of all experts', that row `row` of those that are made is. */
uint64_t sl_scaled_row(const sl_scaled *scaled, uint64_t row);

#endif
