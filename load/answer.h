/* An answer as its bytes come: a stream of events (Server-Sent Events, as the HTML standard has them) with
 * OpenAI's chunks, or one JSON value. */
#ifndef SLUICE_LOAD_ANSWER_H
#define SLUICE_LOAD_ANSWER_H

#include "bytes.h"
#include "load.h"
#include "pattern.h"

typedef struct load_answer {
    bool streamed;  /* set by the caller: else the body is one JSON value */
    bool keep_text; /* set by the caller */
    bool ended;     /* [DONE], or a reason why the text ends */
    bool failed;    /* `error` says why */
    bool told;      /* and the server said it */
    int64_t text_events;
    double first, last; /* when events with text came, in seconds; 0: none yet */
    load_series gaps;   /* ms between them */
    char reason[32];    /* why the text ends; "": not told */
    int64_t prompt_tokens, answer_tokens, cached_tokens; /* -1: not told */
    load_bytes text;                                     /* of the answer, without thoughts */
    char error[160];
    load_bytes body, event; /* what is not read yet: lines, data */
    load_pattern pattern;   /* of this stream's events */
} load_answer;

/* Keeps its memory for the next answer. */
void load_answer_clear(load_answer *answer);
void load_answer_free(load_answer *answer);
/* `now`: when the bytes came. 0; -1: the answer failed. */
int load_answer_read(load_answer *answer, const char *bytes, size_t length, double now);
/* Nothing comes any more. 0; -1: the answer failed. */
int load_answer_end(load_answer *answer, double now);
/* The message of an error's body: its "error" or "message", else its beginning, in one line. */
void load_error_text(const char *body, size_t length, char text[160]);

#endif
