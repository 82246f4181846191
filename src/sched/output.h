/* From sampled tokens to text that may be shown: whole UTF-8 characters, and nothing that could still become
 * a stop text. */
#ifndef SL_SCHED_OUTPUT_H
#define SL_SCHED_OUTPUT_H

#include "base/text.h"
#include "token/tokenizer.h"

/* A stop text as an automaton (Knuth, Morris, Pratt): a byte of text costs the same however long it is. */
typedef struct sl_stop {
    char *text; /* owned; UTF-8 */
    size_t
        *border; /* [length]: of the first i + 1 bytes, the longest beginning that is also their end; owned */
    size_t length;
    size_t matched; /* the longest end of the text so far with which it begins */
} sl_stop;

typedef struct sl_output {
    sl_detokenizer detokenizer;
    bool has_text; /* false: tokens only */
    bool framed;   /* inside a special token's frame */
    sl_buffer text;
    size_t released; /* bytes of text that may be shown */
    sl_stop *stops;  /* [stop_count], owned */
    size_t stop_count;
    int32_t stop; /* the one that ended the text; -1: none */
} sl_output;

/* tokenizer NULL: no text ever comes. `continues`: the tokens go on from text that was there before.
 * expected_tokens sizes the buffer, so that feeding seldom allocates. On failure nothing is left to free. */
typedef struct sl_output_options {
    const sl_tokenizer *tokenizer;
    bool continues;
    bool special; /* control tokens are in the text, framed (tokenizer.h); no stop text reaches into them */
    const char *const *stops;
    size_t stop_count;
    size_t expected_tokens;
} sl_output_options;
int sl_output_init(sl_output *output, const sl_output_options *options, sl_error *error);
void sl_output_free(sl_output *output);
/* Adds a token. *stopped: a stop text is complete; the text then ends before it. The first to be complete
 * counts, byte by byte, whatever tokens the text came in; of several that end with the same byte the longest,
 * of equal ones the first given. */
int sl_output_feed(sl_output *output, int32_t token, bool *stopped, sl_error *error);
/* No more tokens: releases what was held back. */
int sl_output_finish(sl_output *output, sl_error *error);

#endif
