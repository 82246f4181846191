/* Writing models: `quantize` and `synth`. */
#ifndef SL_MODEL_FILES_H
#define SL_MODEL_FILES_H

#include "base/error.h"
#include "quant/qtype.h"

#include <stdbool.h>
#include <stdint.h>

/* `report` may be NULL; it returns false to stop (SL_ERR_CANCELLED). Bytes of the output. */
typedef struct sl_file_progress {
    bool (*report)(void *context, uint64_t done, uint64_t total);
    void *context;
} sl_file_progress;

/* A GGUF copy of a GGUF file or Hugging Face folder, its matrices in `type`: where a row is no whole number
 * of blocks the matrix keeps Q8_0 or, failing that, F16; vectors stay F32. The tokenizer and all metadata
 * come along. On failure `output` is not there (or as it was). */
int sl_quantize_file(const char *input, const char *output, sl_qtype type, const sl_file_progress *progress,
                     sl_error *error);

/* 0 means the preset's own size. */
typedef struct sl_synth_options {
    const char *preset;
    sl_qtype type;
    uint64_t seed;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward, vocabulary, experts, experts_used,
        expert_width;
} sl_synth_options;

/* A GGUF file of a model's true shape with random weights, scaled so that activations stay finite and logits
 * are not flat, and a byte-level vocabulary of the right size. The same options give the same file. */
int sl_synth_file(const char *output, const sl_synth_options *options, const sl_file_progress *progress,
                  sl_error *error);

#endif
