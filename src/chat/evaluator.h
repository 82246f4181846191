/* Running a tree; what filters, tests and functions are made of. */
#ifndef SL_CHAT_EVALUATOR_H
#define SL_CHAT_EVALUATOR_H

#include "chat/parser.h"
#include "chat/value.h"

/* The arguments of one call. */
typedef struct sl_jinja_arguments {
    sl_jinja_value *items;
    size_t count;
    sl_view *names;
    sl_jinja_value *named;
    size_t named_count;
} sl_jinja_arguments;

enum { SL_JINJA_PARAMETERS = 8 };

/* bound[0]: the subject of a filter, test or method (MISSING for a function); bound[1..]: the parameters in
 * the order of the row's list, MISSING where not given. raw: the call's arguments, for rows that take any
 * ("*"). */
typedef struct sl_jinja_call_frame {
    const sl_jinja_builtin *row;
    const sl_jinja_arguments *raw;
    sl_jinja_value bound[SL_JINJA_PARAMETERS];
} sl_jinja_call_frame;
typedef int (*sl_jinja_function)(sl_jinja *state, const sl_jinja_call_frame *call, sl_jinja_value *result);

/* One row of the tables of filters, tests, functions and methods. */
struct sl_jinja_builtin {
    const char *name;
    const char *parameters; /* names with commas between; "*": any arguments, not bound */
    unsigned required;      /* how many of them must be given */
    sl_jinja_function function;
    int detail; /* what a shared function does for this row */
};

struct sl_jinja_method {
    sl_jinja_value self;
    const sl_jinja_builtin *row;
};

struct sl_jinja_macro {
    const sl_jinja_node *node;
    sl_jinja_scope *scope; /* where it was defined */
};

/* NULL when there is no such row. */
const sl_jinja_builtin *sl_jinja_find_filter(sl_view name);
const sl_jinja_builtin *sl_jinja_find_test(sl_view name);
const sl_jinja_builtin *sl_jinja_find_function(sl_view name);
/* By the kind of value. */
const sl_jinja_builtin *sl_jinja_find_method(sl_jinja_kind kind, sl_view name);
const sl_jinja_builtin *sl_jinja_find_row(const sl_jinja_builtin *rows, size_t count, sl_view name);

/* Binds the arguments to a row's parameters and runs it. */
int sl_jinja_run(sl_jinja *state, const sl_jinja_builtin *row, sl_jinja_value subject,
                 const sl_jinja_arguments *arguments, sl_jinja_value *result);
/* Calls any value: function, method, macro. */
int sl_jinja_call(sl_jinja *state, sl_jinja_value callee, const sl_jinja_arguments *arguments,
                  sl_jinja_value *result);

/* Writes the template's text to state->out. variables: a DICT. */
int sl_jinja_execute(sl_jinja *state, const sl_jinja_node *root, sl_jinja_value variables);

#endif
