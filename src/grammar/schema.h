/* JSON Schema (draft 2020-12, and what of draft 7 people still write) as expressions over JSON texts. */
#ifndef SL_GRAMMAR_SCHEMA_H
#define SL_GRAMMAR_SCHEMA_H

#include "grammar/expression.h"

/* How the JSON texts are written. All zero: as models write it best. */
typedef struct sl_json_style {
    bool compact; /* no whitespace at all; else at most one space or a line break with indentation */
    /* Strings stand between two of `quote`, and nothing in them is escaped. Names of objects too, unless they
     * stand as they are (bare_keys). */
    bool own_quotes, bare_keys;
    sl_expression quote;
    const char *quote_text; /* of a quote that is text: no string contains it; NULL: it is a special token */
    const char *without;    /* no string and no name contains this text either; NULL: they may */
    bool may_be_nothing;    /* a schema that nothing satisfies is no error: no text matches */
} sl_json_style;

/* The texts that the schema accepts, written with properties in the schema's order. A keyword that is neither
 * held nor an annotation is refused by name with its path (a JSON pointer); so are schemas that nothing
 * satisfies. `text` is the schema's JSON and need not end with a zero. */
sl_expression sl_expression_schema(sl_grammar_builder *builder, const char *text, size_t count,
                                   const sl_json_style *style, sl_error *error);
/* Any JSON object (`json_object`), and any JSON value. */
sl_expression sl_expression_json_object(sl_grammar_builder *builder, const sl_json_style *style);
sl_expression sl_expression_json_value(sl_grammar_builder *builder, const sl_json_style *style);

#endif
