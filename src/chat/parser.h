/* Tokens to a tree. The tree is immutable and lies in the template's arena. */
#ifndef SL_CHAT_PARSER_H
#define SL_CHAT_PARSER_H

#include "chat/lexer.h"
#include "chat/value.h"

typedef enum sl_jinja_node_kind {
    /* statements */
    SL_JINJA_BODY,         /* items */
    SL_JINJA_DATA,         /* constant */
    SL_JINJA_PRINT,        /* a */
    SL_JINJA_IF,           /* items: condition, body, condition, body ...; a: else or NULL */
    SL_JINJA_FOR,          /* target a in b if c (or NULL): items[0]; else items[1] (or NULL) */
    SL_JINJA_SET,          /* target a = b */
    SL_JINJA_SET_BLOCK,    /* target a = body b through filters c (or NULL) */
    SL_JINJA_MACRO_BLOCK,  /* name(names, the last of them with the defaults in items): body a */
    SL_JINJA_CALL_BLOCK,   /* call a with the macro b as its caller */
    SL_JINJA_FILTER_BLOCK, /* body b through filters c */
    SL_JINJA_WITH,         /* targets items = others: body a */
    SL_JINJA_SCOPED,       /* body a in a scope of its own: generation blocks */
    SL_JINJA_BREAK,
    SL_JINJA_CONTINUE,
    /* expressions */
    SL_JINJA_CONSTANT,
    SL_JINJA_NAME,          /* name */
    SL_JINJA_LIST_OF,       /* items */
    SL_JINJA_TUPLE_OF,      /* items; also a target */
    SL_JINJA_DICT_OF,       /* items: keys; others: values */
    SL_JINJA_GET_ATTRIBUTE, /* a.name; also a target, when a is a namespace */
    SL_JINJA_GET_ITEM,      /* a[b] */
    SL_JINJA_GET_SLICE,     /* a[items[0]:items[1]:items[2]], each may be NULL */
    SL_JINJA_CALL,          /* a(items, names=others, *b, **c) */
    SL_JINJA_FILTER,        /* a | name(items, names=others, *b, **c); a NULL: what was captured */
    SL_JINJA_TEST,          /* a is [not] name(items, names=others) */
    SL_JINJA_NOT,
    SL_JINJA_NEGATE,
    SL_JINJA_POSITIVE,
    SL_JINJA_AND,
    SL_JINJA_OR,
    SL_JINJA_BINARY,      /* a operation b */
    SL_JINJA_CONCATENATE, /* items */
    SL_JINJA_COMPARE,     /* a, then items, each an OPERAND */
    SL_JINJA_OPERAND,     /* operation a */
    SL_JINJA_CONDITIONAL, /* a if b else c (or NULL) */
} sl_jinja_node_kind;

/* What a macro gets besides its parameters, and only when its body names it. */
enum { SL_JINJA_USES_VARARGS = 1, SL_JINJA_USES_KWARGS = 2, SL_JINJA_USES_CALLER = 4 };

typedef struct sl_jinja_node sl_jinja_node;
struct sl_jinja_node {
    sl_jinja_node_kind kind;
    sl_jinja_operator operation;
    uint32_t line;
    uint16_t height; /* of the tree below */
    bool negated;    /* TEST */
    uint8_t uses;    /* MACRO_BLOCK: bits of the SL_JINJA_USES_ names in its body */
    uint32_t count, other_count;
    sl_view name;
    sl_jinja_value constant;
    sl_jinja_node *a, *b, *c;
    sl_jinja_node **items, **others;
    sl_view *names; /* MACRO: name_count of them; calls: other_count of them */
    uint32_t name_count;
    const sl_jinja_builtin
        *builtin; /* FILTER, TEST: NULL when there is none of that name, an error when it is run */
};

int sl_jinja_parse(sl_jinja_source *source, sl_jinja_token *tokens, sl_jinja_node **root);

#endif
