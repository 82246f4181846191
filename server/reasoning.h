/* Splits a text that comes in pieces into thinking and answer, at a model's tags. What is fed in pieces gives
 * the same as what is fed at once. */
#ifndef SLUICE_SERVER_REASONING_H
#define SLUICE_SERVER_REASONING_H

#include "text.h"

typedef enum reasoning_phase {
    REASONING_NONE,  /* no tags: all is answer */
    REASONING_START, /* an opening tag may come, after white space */
    REASONING_INSIDE,
    REASONING_AFTER, /* white space behind the closing tag is dropped */
    REASONING_ANSWER,
} reasoning_phase;

typedef struct reasoning_splitter {
    const char *open, *close; /* borrowed */
    reasoning_phase phase;
    text held; /* not decided yet */
} reasoning_splitter;

/* `opened`: the text begins inside. open or close NULL: there are no tags. */
void reasoning_begin(reasoning_splitter *s, const char *open, const char *close, bool opened);
/* Appends what is certain by now. */
void reasoning_feed(reasoning_splitter *s, const char *bytes, size_t length, text *reasoning, text *answer);
/* No more comes. */
void reasoning_finish(reasoning_splitter *s, text *reasoning, text *answer);
void reasoning_free(reasoning_splitter *s);

#endif
