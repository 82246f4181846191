/* How models write replies: thinking, calls of tools, and what stands around them; facts as data. One parser
 * (chat/reply.h) reads every format, and one grammar (chat/reply_grammar.h) holds a model to it. */
#ifndef SL_CHAT_REPLY_FORMATS_H
#define SL_CHAT_REPLY_FORMATS_H

#include "chat/chat.h"
#include "token/tokenizer.h"

#include <stdbool.h>

/* What a reply's texts are at their places; several numbers of one name are alternatives, the first of which
 * is how the model itself writes. In a mark a space or line break stands for any white space or none, "\1"
 * for digits, "\2" for letters and digits, "\3" for white space that some write and the format itself does
 * not; white space at a mark's end only says what the model writes there. */
enum {
    SL_REPLY_THINK_OPEN,
    SL_REPLY_THINK_CLOSE,
    SL_REPLY_SECTION_OPEN, /* around all calls of a row */
    SL_REPLY_SECTION_CLOSE,
    SL_REPLY_SEPARATOR, /* between calls */
    SL_REPLY_CALL_OPEN,
    SL_REPLY_NAME_CLOSE = SL_REPLY_CALL_OPEN + 4, /* between the function's name and the arguments */
    SL_REPLY_CALL_CLOSE = SL_REPLY_NAME_CLOSE + 6,
    SL_REPLY_KEY_OPEN, /* tagged arguments: of each parameter */
    SL_REPLY_KEY_CLOSE,
    SL_REPLY_KEY_CLOSE_JSON, /* where the format itself says that the value is no text */
    SL_REPLY_VALUE_CLOSE,
    SL_REPLY_QUOTE,  /* on both sides of texts, instead of quotation marks */
    SL_REPLY_SILENT, /* outside of calls; no text */
    SL_REPLY_MARKS = SL_REPLY_SILENT + 8,
};
enum { SL_REPLY_CALL_OPENS = 4, SL_REPLY_NAME_CLOSES = 6, SL_REPLY_SILENTS = 8 };

typedef enum sl_reply_arguments {
    SL_REPLY_JSON,     /* an object */
    SL_REPLY_TAGGED,   /* each between marks: texts as they are, others as JSON */
    SL_REPLY_PYTHONIC, /* name=literal, name=literal), as Python writes them */
    SL_REPLY_BARE,     /* an object behind its "{", with names that are not quoted */
} sl_reply_arguments;

typedef struct sl_reply_format {
    const char *name;
    const char *marks[SL_REPLY_MARKS]; /* NULL: there is none */
    sl_reply_arguments arguments;
    /* Not NULL: a call is a JSON object, which has the name and the arguments under these names, and
     * SL_REPLY_NAME_CLOSE has no meaning. */
    const char *name_key, *arguments_key;
    const char
        *id_key;   /* before these: a number of the call, as a text, under this name; NULL: there is none */
    bool at_start; /* calls have no mark of their own: only at the beginning, and of functions that exist */
    bool line_breaks;  /* tagged values stand on lines of their own */
    bool thinks_again; /* thoughts come also later than at the beginning */
    int8_t id_length;  /* of a call's id, which the template wants so long; 0: any */
} sl_reply_format;

/* What the template's text says: the first format whose texts all occur in it; NULL when there is none. */
const sl_reply_format *sl_reply_format_of_template(sl_view template_text);
/* By name, and one by one; NULL when there is none. */
const sl_reply_format *sl_reply_format_named(const char *name);
const sl_reply_format *sl_reply_format_at(int index);
/* Thinking between the tags, and no calls. */
extern const sl_reply_format SL_REPLY_PLAIN;

/* False: calls of tools cannot be told from text. */
bool sl_reply_format_has_calls(const sl_reply_format *format);

/* A text with the vocabulary's special tokens framed as a request's special text has them: each stands
 * between the bytes 0xFF and 0xFE, which are no UTF-8. */
enum { SL_REPLY_FRAME_OPEN = SL_FRAME_OPEN, SL_REPLY_FRAME_CLOSE = SL_FRAME_CLOSE };

/* A copy of the format for one vocabulary: marks that are special tokens there are framed, so that they match
 * those alone. think_open and think_close replace the format's own if it has none; NULL: none. tokenizer
 * NULL: nothing is special. Owned by the caller (sl_free). NULL when memory ran out. */
sl_reply_format *sl_reply_format_bind(const sl_reply_format *format, const sl_tokenizer *tokenizer,
                                      const char *think_open, const char *think_close);

/* A format for a template that is like none of the above: what it writes around the name and the JSON
 * arguments of a call are the marks. Bound; owned by the caller (sl_free). *format stays NULL where they are
 * not clear: another notation of arguments, nothing before the name, or a prompt that the call does not go on
 * from. */
int sl_reply_format_derive(const sl_chat *chat, const sl_tokenizer *tokenizer, sl_reply_format **format,
                           sl_error *error);

#endif
