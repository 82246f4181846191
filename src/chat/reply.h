/* A reply of a model, read as it comes: thinking, content and calls of tools apart, whatever the model's
 * format. What comes in pieces gives the same, joined, as what comes at once.
 *
 * Arguments come out as JSON text always, also where the model writes tags or Python's literals. Marks of the
 * format never come out as text, also when a limit cut the reply inside one; what only looked like the
 * beginning of a mark, or of a call, is content. */
#ifndef SL_CHAT_REPLY_H
#define SL_CHAT_REPLY_H

#include "base/error.h"
#include "chat/reply_formats.h"

#include <jansson.h>

typedef struct sl_reply sl_reply;

typedef enum sl_reply_kind {
    SL_REPLY_REASONING, /* text goes on the thought */
    SL_REPLY_CONTENT,   /* text goes on the answer */
    SL_REPLY_CALL,      /* a call begins: text is the function's name */
    SL_REPLY_ARGUMENT,  /* text goes on the call's arguments */
    SL_REPLY_CALL_END,  /* the arguments are complete */
} sl_reply_kind;

typedef struct sl_reply_event {
    sl_reply_kind kind;
    int32_t call;     /* from 0; of the last three kinds */
    const char *text; /* whole UTF-8 characters if the reply's text is; not NUL-terminated; borrowed for the
                         time of the call */
    size_t length;
} sl_reply_event;

typedef struct sl_reply_options {
    const sl_reply_format *format; /* borrowed until the reply is freed; bound to the model's vocabulary where
                                      special tokens come framed */
    json_t *tools;                 /* array as in the chat completions API; NULL: no calls are looked for.
                                      Kept, and only read */
    bool opened;                   /* the prompt ends inside a thought */
    bool keeps_thoughts;           /* thinking stays in the content, marks and all */
    void (*event)(void *context, const sl_reply_event *event);
    void *context;
} sl_reply_options;

/* On failure *reply is NULL. */
int sl_reply_create(const sl_reply_options *options, sl_reply **reply, sl_error *error);
void sl_reply_free(sl_reply *reply);
/* The next bytes, special tokens framed (reply_formats.h) or not. SL_ERR_NOMEM: the reply is of no use. */
int sl_reply_feed(sl_reply *reply, const char *bytes, size_t count, sl_error *error);
/* No more comes. `cut`: by a limit or the caller, not by the model's own end. */
int sl_reply_finish(sl_reply *reply, bool cut, sl_error *error);
/* Where the reply stands: SL_REPLY_REASONING, SL_REPLY_CONTENT or, inside a call, SL_REPLY_ARGUMENT. */
sl_reply_kind sl_reply_stands_in(const sl_reply *reply);
/* Nothing but blanks, or a possible beginning of a mark, has come yet. */
bool sl_reply_is_undecided(const sl_reply *reply);
int32_t sl_reply_calls(const sl_reply *reply);

#endif
