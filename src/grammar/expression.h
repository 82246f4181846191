/* Expressions: what the front ends of grammars (GBNF, regular expressions, JSON Schema, reply formats) build,
 * and the automaton is compiled from.
 *
 * A builder holds rules and expressions over bytes. Expressions are numbers; parts are built before what
 * contains them, rules may be referred to before they are defined, so that they can recurse. A failure
 * (memory, a bound) sticks: everything built after it is SL_NO_EXPRESSION, and sl_grammar_compile returns it.
 * One thread at a time. */
#ifndef SL_GRAMMAR_EXPRESSION_H
#define SL_GRAMMAR_EXPRESSION_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_grammar_builder sl_grammar_builder;
typedef int32_t sl_expression;

enum { SL_NO_EXPRESSION = -1 };

/* What one grammar may be, so that its source cannot cost more. 0: the default beside it. */
typedef struct sl_grammar_limits {
    int32_t expressions; /* 1 << 20 */
    int32_t states;      /* 1 << 19, of all automata made on the way to it */
    uint64_t bytes;      /* 256 MiB, of everything held at once */
} sl_grammar_limits;

/* Code points, both ends included; surrogates are never matched. */
typedef struct sl_character_range {
    uint32_t first, last;
} sl_character_range;

/* limits NULL: the defaults. NULL on failure. */
sl_grammar_builder *sl_grammar_builder_create(const sl_grammar_limits *limits, sl_error *error);
void sl_grammar_builder_destroy(sl_grammar_builder *builder);
/* What stuck, with code 0 if nothing did. */
const sl_error *sl_grammar_builder_error(const sl_grammar_builder *builder);

/* The empty text, and what no text is. */
sl_expression sl_expression_empty(sl_grammar_builder *builder);
sl_expression sl_expression_nothing(sl_grammar_builder *builder);
/* These bytes. */
sl_expression sl_expression_literal(sl_grammar_builder *builder, const char *bytes, size_t count);
/* One code point in the ranges (negated: outside them) as UTF-8. */
sl_expression sl_expression_character(sl_grammar_builder *builder, const sl_character_range *ranges,
                                      int32_t count, bool negated);
/* A special token of the vocabulary, which no bytes match. */
sl_expression sl_expression_token(sl_grammar_builder *builder, int32_t token);
/* Any other token, special or not. */
sl_expression sl_expression_other_token(sl_grammar_builder *builder, int32_t token);
/* The token with that text (negated: any other), which the vocabulary must have when the grammar is compiled.
 */
sl_expression sl_expression_token_text(sl_grammar_builder *builder, const char *text, size_t count,
                                       bool negated);
sl_expression sl_expression_sequence(sl_grammar_builder *builder, const sl_expression *parts, int32_t count);
sl_expression sl_expression_choice(sl_grammar_builder *builder, const sl_expression *parts, int32_t count);
/* most -1: no bound. Costs memory by its logarithm where `of` is large: copies are not made. */
sl_expression sl_expression_repeat(sl_grammar_builder *builder, sl_expression of, int64_t least,
                                   int64_t most);

/* The texts of `of` as they are written inside a JSON string: quotation marks, backslashes and control
 * characters only escaped, a slash both ways, everything else as itself. */
sl_expression sl_expression_json_escaped(sl_grammar_builder *builder, sl_expression of);

/* The quotation mark that begins, or ends, the name of a JSON object's member that no member before it has:
 * what a matcher looks up in the text. Between the two stands sl_expression_json_escaped of texts. There must
 * be more texts than such members, or a matcher may find no way on. */
sl_expression sl_expression_name_quote(sl_grammar_builder *builder, bool ends);

/* A rule to be defined later; the name is for messages. Its number, or -1. */
int32_t sl_grammar_rule(sl_grammar_builder *builder, const char *name);
void sl_grammar_define(sl_grammar_builder *builder, int32_t rule, sl_expression expression);
sl_expression sl_expression_rule(sl_grammar_builder *builder, int32_t rule);

/* Of regular expressions, those that reach no recursion and no special token; others stick as an error.
 * Determinised and minimised within the builder's limits. */
/* Texts of both. */
sl_expression sl_expression_both(sl_grammar_builder *builder, sl_expression left, sl_expression right);
/* Texts of `from` that `without` does not match; `from` SL_NO_EXPRESSION: all valid UTF-8. */
sl_expression sl_expression_except(sl_grammar_builder *builder, sl_expression from, sl_expression without);
/* Valid UTF-8 that nowhere contains the text. What stands before a mark. */
sl_expression sl_expression_until(sl_grammar_builder *builder, const char *text, size_t count);
/* How many texts there are, at most `most`, or 0 while something stuck. */
int64_t sl_expression_count(sl_grammar_builder *builder, sl_expression expression, int64_t most);
/* True when no text matches; false also while something stuck. */
bool sl_expression_is_nothing(sl_grammar_builder *builder, sl_expression expression);

/* Front ends. `text` need not end with a zero. Errors name line or position, and what is not supported by its
 * own name. */
/* llama.cpp's GBNF; the rule `root` is the result. */
sl_expression sl_expression_gbnf(sl_grammar_builder *builder, const char *text, size_t count,
                                 sl_error *error);
/* A regular expression as Python, ECMAScript and PCRE agree on it. `anchored`: it must match the whole text
 * (as vLLM's `regex`); else ^ and $ say so (as JSON Schema's `pattern`). */
sl_expression sl_expression_regex(sl_grammar_builder *builder, const char *text, size_t count, bool anchored,
                                  sl_error *error);

#endif
