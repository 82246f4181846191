/* Template text to tokens, with Jinja2's white space control. */
#ifndef SL_CHAT_LEXER_H
#define SL_CHAT_LEXER_H

#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"

typedef enum sl_jinja_token_kind {
    SL_JINJA_TOKEN_END,
    SL_JINJA_TOKEN_DATA,      /* text outside tags */
    SL_JINJA_TOKEN_BLOCK,     /* {% */
    SL_JINJA_TOKEN_BLOCK_END, /* %} */
    SL_JINJA_TOKEN_PRINT,     /* {{ */
    SL_JINJA_TOKEN_PRINT_END, /* }} */
    SL_JINJA_TOKEN_NAME,
    SL_JINJA_TOKEN_STRING, /* text: unescaped */
    SL_JINJA_TOKEN_INTEGER,
    SL_JINJA_TOKEN_FLOAT,
    SL_JINJA_TOKEN_OPERATOR, /* text: as written */
} sl_jinja_token_kind;

typedef struct sl_jinja_token {
    sl_jinja_token_kind kind;
    uint32_t line;
    sl_view text;
    union {
        int64_t integer;
        double real;
    };
} sl_jinja_token;

/* What the lexer and the parser share: where memory comes from and how errors are told. */
typedef struct sl_jinja_source {
    const char *name;
    sl_arena *arena;
    sl_error *error;
    int code;
} sl_jinja_source;

enum {
    SL_JINJA_SOURCE_BYTES = 1 << 20, /* longest template */
    SL_JINJA_TOKENS = 1 << 18,
    SL_JINJA_NESTING = 200, /* brackets, blocks, operators and calls inside each other */
};

int sl_jinja_source_fail(sl_jinja_source *source, int code, uint32_t line, const char *format, ...)
    SL_PRINTF(4, 5);
/* *tokens ends with TOKEN_END and lies in the arena. */
int sl_jinja_lex(sl_jinja_source *source, sl_view text, sl_jinja_token **tokens);

#endif
