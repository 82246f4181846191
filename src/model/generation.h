/* What a model's files recommend for generating with it: defaults of sampling, and tokens that end a text. */
#ifndef SL_MODEL_GENERATION_H
#define SL_MODEL_GENERATION_H

#include "format/source.h"
#include "token/tokenizer.h"

/* Numbers that a file may give. */
typedef enum sl_sampling_fact {
    SL_SAMPLING_DO_SAMPLE, /* 0 or 1 */
    SL_SAMPLING_TEMPERATURE,
    SL_SAMPLING_TOP_K,
    SL_SAMPLING_TOP_P,
    SL_SAMPLING_MIN_P,
    SL_SAMPLING_TYPICAL_P,
    SL_SAMPLING_REPETITION_PENALTY,
    SL_SAMPLING_PENALTY_TOKENS,
    SL_SAMPLING_XTC_PROBABILITY,
    SL_SAMPLING_XTC_THRESHOLD,
    SL_SAMPLING_MIROSTAT,
    SL_SAMPLING_MIROSTAT_TAU,
    SL_SAMPLING_MIROSTAT_ETA,
    SL_SAMPLING_COUNT
} sl_sampling_fact;

enum { SL_SAMPLERS_SIZE = 256 };

typedef struct sl_sampling {
    unsigned present; /* 1 << fact, for each that a file gives */
    double values[SL_SAMPLING_COUNT];
    char samplers[SL_SAMPLERS_SIZE]; /* general.sampling.sequence; "" when there is none */
    const char *file;                /* that gives them, borrowed from the source; NULL when none does */
} sl_sampling;

/* From generation_config.json, or from general.sampling.* of a GGUF file. A value of another type, or outside
 * what it can mean, is SL_ERR_FORMAT or SL_ERR_INVALID naming file, key and range. */
int sl_sampling_read(const sl_source *source, sl_sampling *sampling, sl_error *error);

/* eos_token_id of config.json and of generation_config.json (a number or a list) become tokens that end a
 * text, beside the tokenizer's own; its eos is the first of them if it has none. An id outside the vocabulary
 * is logged and left out: small models are often made with a large one's config. */
int sl_read_ends(const sl_source *source, sl_tokenizer *tokenizer, sl_error *error);

#endif
