/* Writing models: `quantize` and `synth`. */
#ifndef SL_MODEL_FILES_H
#define SL_MODEL_FILES_H

#include "format/gguf_writer.h"
#include "model/mixture.h"

#include <stdbool.h>
#include <stdint.h>

/* `report` may be NULL; it returns false to stop (SL_ERR_CANCELLED). Bytes of weights in the output. */
typedef struct sl_file_progress {
    bool (*report)(void *context, uint64_t done, uint64_t total);
    void *context;
} sl_file_progress;

/* A regular expression, found anywhere in a tensor's name, and the type of the matrices that it names. */
typedef struct sl_type_pattern {
    const char *pattern;
    sl_qtype type;
} sl_type_pattern;

/* One tensor of the output. */
typedef struct sl_quantized_tensor {
    const char *name;
    uint32_t dim_count;
    uint64_t dims[SL_TENSOR_DIMS];
    sl_qtype from, to;
    sl_qtype wanted; /* what `to` fell back from because of the rows' length; else the same */
    uint64_t from_bytes, to_bytes;
} sl_quantized_tensor;

/* Zero: no, none, by the mixture. */
typedef struct sl_quantize_options {
    const sl_mixture *mixture;
    bool pure;                                    /* the mixture's base for every matrix */
    const sl_qtype *output_type, *embedding_type; /* of output.weight and token_embd.weight */
    const sl_type_pattern *patterns;              /* for the others; the first that matches decides */
    uint64_t pattern_count;
    const char *importance; /* path of an importance matrix */
    bool replace;           /* an existing output may go */
    bool dry_run;           /* weights are not read and nothing is written; `output` may be NULL */
    /* Called for every tensor, in order, before anything is written; may be NULL. */
    void (*tensor)(void *context, const sl_quantized_tensor *tensor);
    void *context;
} sl_quantize_options;

/* A GGUF copy of a GGUF file or Hugging Face folder, its matrices in the types that the options say, or what
 * sl_mixture_fallback makes of these; vectors, routers and convolutions become F32, and so do matrices of
 * other ranks than two and three. All metadata of a GGUF file come along as they are, but for those that
 * speak of its types and parts; a folder's config and tokenizer become metadata (SL_ERR_UNSUPPORTED when the
 * tokenizer is not one that GGUF has a name for), and its weights take GGUF's order and offsets as
 * llama.cpp's converters give them. A weight that is no finite number, or too large for its type, is
 * SL_ERR_FORMAT and names its tensor. On failure `output` is not there (or as it was). `file_bytes` (may be
 * NULL) receives the output's size.
 *
 * A folder with one tensor per expert has all of its experts copied into memory. */
int sl_quantize_file(const char *input, const char *output, const sl_quantize_options *options,
                     const sl_file_progress *progress, uint64_t *file_bytes, sl_error *error);

/* 0 means the preset's own size. */
typedef enum sl_synth_head {
    SL_SYNTH_HEAD_PRESET,
    SL_SYNTH_HEAD_NONE,
    SL_SYNTH_HEAD_RANDOM,
    SL_SYNTH_HEAD_AGREEING, /* what layers add is 0, and the head passes the token's embedding on */
} sl_synth_head;

typedef struct sl_synth_options {
    const char *preset; /* a name of sl_synth_preset */
    sl_qtype type;
    uint64_t seed;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward, vocabulary, experts, experts_used,
        expert_width;
    const sl_qtype *expert_type; /* of the experts' matrices; NULL: type */
    double expert_skew; /* share of all choices that a fifth of each layer's experts gets; 0: as it comes */
    sl_synth_head head; /* that drafts, where the family may have one */
    bool keep;          /* an existing output stays, and is an error */
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

/* general.file_type (llama.cpp's llama_ftype) and general.quantization_version. */
int sl_file_write_type(sl_gguf_writer *writer, uint32_t file_type, sl_error *error);
/* Reports, and makes SL_ERR_CANCELLED of an answer of no. */
int sl_file_report(const sl_file_progress *progress, const char *path, uint64_t done, uint64_t total,
                   sl_error *error);
/* tokenizer.ggml.* for a folder's tokenizer.json, padded to `vocabulary` tokens. config_path may be NULL. */
int sl_file_write_tokenizer(sl_gguf_writer *writer, const char *path, const char *config_path,
                            int32_t vocabulary, sl_error *error);

#endif
