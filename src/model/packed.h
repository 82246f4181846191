/* Matrices of integers with a scale for a group of columns, or for a row, as checkpoints have them. They
 * become Q4_0, of codes with zero points Q4_1, and of 8 bits Q8_0, with the same codes: every block of 32
 * columns has its group's scale. Inside src/model.
 *
 * With w the module's name, rows and columns of the matrix, G groups of columns, and words of 32 bits that
 * hold 8 codes of 4 bits or 4 of 8, the lowest bits first:
 *
 * - compressed-tensors, pack-quantized: w.weight_packed I32 [rows][columns / 8], w.weight_scale [rows][G],
 *   w.weight_zero_point I32 [rows / 8][G] or none, w.weight_shape (two integers); of all experts in one
 *   tensor w_packed, w_scale and w_shape with [experts] in front
 * - compressed-tensors, int-quantized: w.weight I8 [rows][columns] with a sign, w.weight_scale [rows][1] or
 *   one number
 * - GPTQ: w.qweight I32 [columns / 8][rows], w.scales [G][rows], w.qzeros I32 [G][rows / 8], each less one
 *   unless the format is "gptq_v2", and w.g_idx I32 [columns], every column's group
 * - AWQ, gemm: w.qweight I32 [columns][rows / 8], w.scales [G][rows], w.qzeros I32 [G][rows / 8]; a word's
 *   codes are rows 0, 2, 4, 6, 1, 3, 5, 7 of 8
 *
 * value = (code - zero) * scale, zero 8 (of 8 bits 128, with a sign 0) where there are no zero points. That
 * qzeros are stored less one is undone for a whole word, carries included, as GPTQModel does
 * (convert_gptq_v1_to_v2_format). Scales are F16, BF16 or F32 and become F16.
 *
 * Sources: compressed-tensors (pack_to_int32), AutoGPTQ and GPTQModel (QuantLinear.pack), AutoAWQ
 * (WQLinear_GEMM). */
#ifndef SL_MODEL_PACKED_H
#define SL_MODEL_PACKED_H

#include "model/scaled.h"

/* Looks for such a matrix behind the name of sl_scaled_query. */
typedef struct sl_finder {
    const sl_scaled_query *query;
    const sl_hf *hf; /* NULL: GGUF */
    const char *file;
    sl_error *error;
} sl_finder;

/* The tensor that is called as the query's, with another ending. NULL: there is none. */
const sl_safetensors_entry *sl_find_sibling(const sl_finder *f, const char *ending);
/* Exactly [rows][columns], of experts in one tensor [experts][rows][columns]. */
bool sl_find_has_shape(const sl_finder *f, const sl_safetensors_entry *entry, uint64_t rows,
                       uint64_t columns);
bool sl_find_has_dtype(const sl_safetensors_entry *entry, const char *dtype);
/* Both fail, by the name of the tensor. */
int sl_find_wrong(const sl_finder *f, const sl_safetensors_entry *entry, const char *rule);
int sl_find_missing(const sl_finder *f, const char *ending);

/* `codes` is w.weight_packed, w.weight or w.qweight. */
int sl_packed_find(const sl_finder *f, const sl_safetensors_entry *codes, sl_scaled *scaled);
/* As sl_scaled_pack. SL_ERR_UNSUPPORTED names a tensor with a number that the blocks do not hold. */
int sl_packed_pack(const sl_scaled *scaled, uint64_t first, uint64_t rows, void *to, sl_scaled_notes *notes,
                   sl_error *error);

#endif
