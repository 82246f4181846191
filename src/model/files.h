/* Writing models: `quantize` and `synth`. */
#ifndef SL_MODEL_FILES_H
#define SL_MODEL_FILES_H

#include "format/gguf_writer.h"

#include <stdbool.h>
#include <stdint.h>

/* `report` may be NULL; it returns false to stop (SL_ERR_CANCELLED). Bytes of weights in the output. */
typedef struct sl_file_progress {
    bool (*report)(void *context, uint64_t done, uint64_t total);
    void *context;
} sl_file_progress;

/* A GGUF copy of a GGUF file or Hugging Face folder, its matrices in `type`: where a row is no whole number
 * of blocks a matrix takes Q8_0 or, failing that, F16; vectors, routers and convolutions become F32, and so
 * do matrices of other ranks than two and three. All metadata of a GGUF file come along as they are, but for
 * general.file_type and general.quantization_version; a folder's config and tokenizer become metadata
 * (SL_ERR_UNSUPPORTED when the tokenizer is not one that GGUF has a name for), and its weights take GGUF's
 * order and offsets as llama.cpp's converters give them. On failure `output` is not there (or as it was).
 *
 * A folder with one tensor per expert has all of its experts copied into memory. */
int sl_quantize_file(const char *input, const char *output, sl_qtype type, const sl_file_progress *progress,
                     sl_error *error);

/* 0 means the preset's own size. */
typedef struct sl_synth_options {
    const char *preset; /* a name of sl_synth_preset */
    sl_qtype type;
    uint64_t seed;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward, vocabulary, experts, experts_used,
        expert_width;
} sl_synth_options;

/* A GGUF file of a model's true shape with random weights, scaled so that activations stay finite and logits
 * are not flat, and a byte-level vocabulary of the right size. The same options give the same file, byte for
 * byte. Types fall back as in sl_quantize_file. */
int sl_synth_file(const char *output, const sl_synth_options *options, const sl_file_progress *progress,
                  sl_error *error);
/* The name at `index`, NULL past the end. */
const char *sl_synth_preset(int index);

/* ---- inside src/model ------------------------------------------------------------------------------------
 */

/* `type`, or what takes its place in a matrix of so many columns. */
sl_qtype sl_file_matrix_type(sl_qtype type, uint64_t columns);
/* general.file_type (llama.cpp's llama_ftype) and general.quantization_version. */
int sl_file_write_type(sl_gguf_writer *writer, sl_qtype type, sl_error *error);
/* Reports, and makes SL_ERR_CANCELLED of an answer of no. */
int sl_file_report(const sl_file_progress *progress, const char *path, uint64_t done, uint64_t total,
                   sl_error *error);
/* tokenizer.ggml.* for a folder's tokenizer.json, padded to `vocabulary` tokens. config_path may be NULL. */
int sl_file_write_tokenizer(sl_gguf_writer *writer, const char *path, const char *config_path,
                            int32_t vocabulary, sl_error *error);

#endif
