/* Arguments as models write them (JSON, Python's literals, objects with bare names) to JSON text, piece by
 * piece. What is not right is put right as far as it can be: the text that comes out, once it is closed, is
 * always JSON. */
#ifndef SL_CHAT_REPLY_LITERAL_H
#define SL_CHAT_REPLY_LITERAL_H

#include "base/text.h"

enum { SL_LITERAL_DEPTH = 64, SL_LITERAL_WORD = 512 };

typedef struct sl_literal {
    const char *quote; /* borrowed: on both sides of texts, beside quotation marks; NULL: none */
    const char *stop;  /* borrowed: a mark that ends a literal that was never closed; NULL: none */
    bool assigns;      /* outermost: name=value, as in a call of Python */
    /* The rest is the literal's own. */
    int depth;
    bool done;
    char opens[SL_LITERAL_DEPTH + 1]; /* '{' or '[' */
    bool is_key[SL_LITERAL_DEPTH + 1], has_items[SL_LITERAL_DEPTH + 1], wants_value[SL_LITERAL_DEPTH + 1];
    char string; /* inside a text: its quotation mark, 'q' for `quote`; 0: outside */
} sl_literal;

typedef enum sl_literal_state {
    SL_LITERAL_MORE,   /* needs what comes next */
    SL_LITERAL_DONE,   /* closed */
    SL_LITERAL_BROKEN, /* stopped at what is no part of it */
} sl_literal_state;

/* `inside`: the opening bracket of an object was read already. Zero-initialise before, and set the members
 * above. */
void sl_literal_begin(sl_literal *literal, bool inside, sl_buffer *out);
/* Reads from the bytes and appends JSON. *used of them are done with; with MORE the rest must come again with
 * what follows it. */
sl_literal_state sl_literal_feed(sl_literal *literal, sl_view bytes, size_t *used, sl_buffer *out);
/* Closes what is open. */
void sl_literal_close(sl_literal *literal, sl_buffer *out);
/* Bytes of a text, inside quotation marks. */
void sl_literal_escape(sl_view bytes, sl_buffer *out);
/* How many bytes at the beginning the mark takes; 0: it is not there; -1: it may be, the bytes end in it. */
long sl_mark_match(const char *mark, sl_view bytes);

#endif
