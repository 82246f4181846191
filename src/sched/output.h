/* From sampled tokens to text that may be shown: whole UTF-8 characters, and nothing that could still become
 * a stop text. */
#ifndef SL_SCHED_OUTPUT_H
#define SL_SCHED_OUTPUT_H

#include "base/text.h"
#include "token/tokenizer.h"

typedef struct sl_output {
    sl_detokenizer detokenizer;
    bool has_text; /* false: tokens only */
    sl_buffer text;
    size_t released; /* bytes of text that may be shown */
    char **stops;    /* [stop_count], owned */
    size_t *stop_lengths;
    size_t stop_count, longest_stop;
} sl_output;

/* tokenizer NULL: no text ever comes. `continues`: the tokens go on from text that was there before.
 * expected_tokens sizes the buffer, so that feeding seldom allocates. On failure nothing is left to free. */
typedef struct sl_output_options {
    const sl_tokenizer *tokenizer;
    bool continues;
    const char *const *stops;
    size_t stop_count;
    size_t expected_tokens;
} sl_output_options;
int sl_output_init(sl_output *output, const sl_output_options *options, sl_error *error);
void sl_output_free(sl_output *output);
/* Adds a token. *stopped: a stop text is complete; the text then ends before it. */
int sl_output_feed(sl_output *output, int32_t token, bool *stopped, sl_error *error);
/* No more tokens: releases what was held back. */
int sl_output_finish(sl_output *output, sl_error *error);

#endif
