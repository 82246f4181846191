/* The grammar of a whole reply, made from its format's description: thinking, an answer, calls of tools. What
 * it allows, the parser (chat/reply.h) reads as just that. */
#ifndef SL_CHAT_REPLY_GRAMMAR_H
#define SL_CHAT_REPLY_GRAMMAR_H

#include "chat/reply_formats.h"
#include "grammar/expression.h"

#include <jansson.h>

typedef enum sl_reply_choice {
    SL_REPLY_AUTO,      /* calls may come behind text; what begins as one is one */
    SL_REPLY_FORBIDDEN, /* nothing that begins as a call */
    SL_REPLY_REQUIRED,  /* calls, and no text */
} sl_reply_choice;

typedef enum sl_reply_thought {
    SL_REPLY_NO_THOUGHT,
    SL_REPLY_MAY_THINK, /* it may be opened */
    SL_REPLY_THINKING,  /* the prompt ends inside it */
} sl_reply_thought;

/* Everything is borrowed for the time of the call. */
typedef struct sl_reply_rules {
    const sl_reply_format *format; /* bound */
    const sl_tokenizer *tokenizer; /* NULL: every mark is text */
    /* Of tokens that are text to the tokenizer: does the vocabulary of grammars take it for a special one?
     * Marks that are such tokens are written as those. NULL: none is. */
    bool (*is_special)(const void *owner, int32_t token);
    const void *owner;
    json_t *tools; /* array as in the chat completions API, names checked; NULL: none */
    sl_reply_choice choice;
    const char *function; /* the only one that may be called; NULL: any */
    bool single;          /* no more than one call */
    sl_reply_thought thought;
    sl_expression answer; /* of the text, where there is no call; SL_NO_EXPRESSION: any */
} sl_reply_rules;

/* Arguments are held to the functions' "parameters": properties in their order, and no others where the
 * schema lists some and says nothing of others; {} where a function has none. SL_NO_EXPRESSION on failure,
 * with "tools[0].function.parameters: ..." in `error` where a schema is not held, or what stuck in the
 * builder. */
sl_expression sl_expression_reply(sl_grammar_builder *builder, const sl_reply_rules *rules, sl_error *error);

#endif
