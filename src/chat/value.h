/* Values of a running template, with Python's semantics, and the interpreter's state. Everything a rendering
 * makes lies in one arena that is dropped at its end; strings and slices are views and are never changed. */
#ifndef SL_CHAT_VALUE_H
#define SL_CHAT_VALUE_H

#include "base/arena.h"
#include "chat/template.h"

#include <stdbool.h>

typedef enum sl_jinja_kind {
    SL_JINJA_MISSING, /* no argument was given; never seen by a template */
    SL_JINJA_UNDEFINED,
    SL_JINJA_NONE,
    SL_JINJA_BOOL,
    SL_JINJA_INT,
    SL_JINJA_FLOAT,
    SL_JINJA_STRING,
    SL_JINJA_LIST,
    SL_JINJA_TUPLE,
    SL_JINJA_GENERATOR, /* what lazy filters give: always true, can be walked once */
    SL_JINJA_RANGE,
    SL_JINJA_VIEW, /* dict.keys(), values(), items() */
    SL_JINJA_DICT,
    SL_JINJA_NAMESPACE,
    SL_JINJA_LOOP,
    SL_JINJA_FUNCTION,
    SL_JINJA_METHOD,
    SL_JINJA_MACRO,
} sl_jinja_kind;

typedef struct sl_jinja_list sl_jinja_list;
typedef struct sl_jinja_dict sl_jinja_dict;
typedef struct sl_jinja_loop sl_jinja_loop;
typedef struct sl_jinja_macro sl_jinja_macro;
typedef struct sl_jinja_method sl_jinja_method;
typedef struct sl_jinja_builtin sl_jinja_builtin;
typedef struct sl_jinja_scope sl_jinja_scope;

typedef struct sl_jinja_value {
    sl_jinja_kind kind;
    uint32_t length; /* bytes of text */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text;    /* STRING; for UNDEFINED the name that was looked up */
        sl_jinja_list *list; /* LIST, TUPLE, GENERATOR, RANGE, VIEW */
        sl_jinja_dict *dict; /* DICT, NAMESPACE */
        sl_jinja_loop *loop;
        sl_jinja_macro *macro;
        sl_jinja_method *method;
        const sl_jinja_builtin *function;
    };
} sl_jinja_value;

struct sl_jinja_list {
    sl_jinja_value *items;
    size_t count;
    const char *label;         /* VIEW: what Python prints before the items */
    int64_t start, stop, step; /* RANGE */
};

typedef struct sl_jinja_entry {
    sl_jinja_value key, value;
    uint64_t hash;
} sl_jinja_entry;

/* In insertion order; `slots` (a power of two of entry numbers plus one) is there from nine entries on. */
struct sl_jinja_dict {
    sl_jinja_entry *entries;
    uint32_t *slots;
    size_t count, capacity, slot_count;
};

struct sl_jinja_loop {
    sl_jinja_list items;
    size_t index;
    sl_jinja_value changed; /* arguments of the last loop.changed() */
};

struct sl_jinja_scope {
    sl_jinja_scope *parent;
    sl_jinja_dict names;
    bool kept; /* a macro refers to it */
};

/* The state of one rendering. */
typedef struct sl_jinja {
    const char *name;
    sl_arena arena;
    uint64_t memory_left, steps_left, output_left;
    sl_template_limits limits; /* with the defaults filled in */
    unsigned depth;
    uint32_t line;           /* of the statement or expression being evaluated */
    sl_buffer *out;          /* also the place where strings are built: see sl_jinja_capture */
    sl_jinja_value captured; /* subject of the filters of a block set or filter block */
    int code;
    sl_error *error;
} sl_jinja;

/* ---- limits, memory, errors: functions that return int give 0 or the negative code kept in state->code ----
 */
int sl_jinja_fail(sl_jinja *state, int code, const char *format, ...) SL_PRINTF(3, 4);
int sl_jinja_spend(sl_jinja *state, uint64_t steps);
/* Bounds the recursion; each success is paired with sl_jinja_leave. */
int sl_jinja_enter(sl_jinja *state);
void sl_jinja_leave(sl_jinja *state);
/* Zeroed; NULL with state->code set. */
void *sl_jinja_alloc(sl_jinja *state, size_t count, size_t size);
int sl_jinja_emit(sl_jinja *state, const void *data, size_t length);
int sl_jinja_emit_text(sl_jinja *state, const char *text);
/* Takes what was emitted since `mark` (a length of state->out) back out of the output, as a string. */
int sl_jinja_capture(sl_jinja *state, size_t mark, sl_jinja_value *result);

/* ---- making values ---- */
sl_jinja_value sl_jinja_of(sl_jinja_kind kind);
sl_jinja_value sl_jinja_bool(bool value);
sl_jinja_value sl_jinja_int(int64_t value);
sl_jinja_value sl_jinja_float(double value);
/* Borrows; lengths above UINT32_MAX never occur, because limits and jansson's input are checked before. */
sl_jinja_value sl_jinja_text(const char *text, size_t length);
sl_jinja_value sl_jinja_undefined(sl_view name);
/* A list, tuple or generator with room for `count` items, all MISSING. */
int sl_jinja_list_new(sl_jinja *state, sl_jinja_kind kind, size_t count, sl_jinja_value *result);
int sl_jinja_dict_new(sl_jinja *state, sl_jinja_kind kind, sl_jinja_value *result);
/* A deep copy of a JSON value; strings are borrowed. */
int sl_jinja_from_json(sl_jinja *state, json_t *json, sl_jinja_value *result);

/* ---- dictionaries ---- */
int sl_jinja_dict_set(sl_jinja *state, sl_jinja_dict *dict, sl_jinja_value key, sl_jinja_value value);
/* *found is NULL when the key is not there; an unhashable key is an error. */
int sl_jinja_dict_get(sl_jinja *state, const sl_jinja_dict *dict, sl_jinja_value key, sl_jinja_value **found);
/* By text: cannot fail, NULL when it is not there. */

/* ---- Python's protocols ---- */
sl_view sl_jinja_view(sl_jinja_value string);
/* Items live in a list: LIST, TUPLE, GENERATOR, RANGE, VIEW. */
bool sl_jinja_has_items(sl_jinja_value value);
bool sl_jinja_is_number(sl_jinja_value value); /* bool, int, float */
/* bool and int as an integer; false for all else. */
bool sl_jinja_as_int(sl_jinja_value value, int64_t *result);
double sl_jinja_as_float(sl_jinja_value value); /* of a number */
const char *sl_jinja_type_name(sl_jinja_value value);
bool sl_jinja_truthy(sl_jinja_value value);
int sl_jinja_equal(sl_jinja *state, sl_jinja_value a, sl_jinja_value b, bool *result);
/* *order: negative, 0, positive, or 2 when a NaN makes every comparison false. */
int sl_jinja_compare(sl_jinja *state, sl_jinja_value a, sl_jinja_value b, int *order);
int sl_jinja_length(sl_jinja *state, sl_jinja_value value, int64_t *length);
/* The items to walk over: characters of strings, keys of dicts; a generator is used up. Arrays are shared,
 * not copied. */
int sl_jinja_iterate(sl_jinja *state, sl_jinja_value value, sl_jinja_list *items);
int sl_jinja_contains(sl_jinja *state, sl_jinja_value container, sl_jinja_value item, bool *result);

/* ---- printing (print.c) ---- */
/* Emits str(value), repr(value) or json.dumps(value). */
int sl_jinja_emit_str(sl_jinja *state, sl_jinja_value value);
int sl_jinja_emit_repr(sl_jinja *state, sl_jinja_value value);
typedef struct sl_jinja_json_style {
    bool ensure_ascii, sort_keys, lines; /* lines: one item per line, indented */
    sl_view indent, item_separator, key_separator;
} sl_jinja_json_style;
int sl_jinja_emit_json(sl_jinja *state, sl_jinja_value value, const sl_jinja_json_style *style);
/* str(value) as a string; a string is given back as it is. */
int sl_jinja_str(sl_jinja *state, sl_jinja_value value, sl_jinja_value *result);
/* Python's repr of a float; out has room for 40 bytes. */
enum { SL_JINJA_FLOAT_STEPS = 200 }; /* of printing a float: what exact decimals cost at most */
void sl_jinja_float_text(double value, char out[40]);
/* Python's float(text): false when it is no number. Independent of the locale. */
bool sl_jinja_parse_float(sl_view text, double *result);

/* ---- sorting (sort.c) ---- */
/* What a value is sorted by: a string in lower case when case does not matter, all else itself. */
int sl_jinja_sort_key(sl_jinja *state, sl_jinja_value value, bool ignore_case, sl_jinja_value *key);
typedef struct sl_jinja_keyed {
    sl_jinja_value key;
    size_t index; /* where the item was */
} sl_jinja_keyed;
/* By key; those that are equal, or that cannot be ordered (a NaN), stay in the order they had. */
int sl_jinja_sort(sl_jinja *state, sl_jinja_keyed *items, size_t count, bool reverse);
typedef struct sl_jinja_order {
    bool by_value, ignore_case, reverse;
} sl_jinja_order;
/* *entries: a dict's entries in that order, dict->count of them. */
int sl_jinja_sorted_entries(sl_jinja *state, const sl_jinja_dict *dict, const sl_jinja_order *order,
                            sl_jinja_entry **entries);

/* ---- operators (operators.c) ---- */
typedef enum sl_jinja_operator {
    SL_JINJA_ADD,
    SL_JINJA_SUBTRACT,
    SL_JINJA_MULTIPLY,
    SL_JINJA_DIVIDE,
    SL_JINJA_FLOOR_DIVIDE,
    SL_JINJA_MODULO,
    SL_JINJA_POWER,
    SL_JINJA_EQUAL,
    SL_JINJA_NOT_EQUAL,
    SL_JINJA_LESS,
    SL_JINJA_LESS_EQUAL,
    SL_JINJA_GREATER,
    SL_JINJA_GREATER_EQUAL,
    SL_JINJA_IN,
    SL_JINJA_NOT_IN,
} sl_jinja_operator;
int sl_jinja_binary(sl_jinja *state, sl_jinja_operator operation, sl_jinja_value a, sl_jinja_value b,
                    sl_jinja_value *result);
int sl_jinja_negate(sl_jinja *state, sl_jinja_value a, sl_jinja_value *result);
int sl_jinja_test_compare(sl_jinja *state, sl_jinja_operator operation, sl_jinja_value a, sl_jinja_value b,
                          bool *result);
/* value.name: methods before items, as Python's getattr; UNDEFINED when there is neither. */
int sl_jinja_attribute(sl_jinja *state, sl_jinja_value value, sl_view name, sl_jinja_value *result);
/* value[key]: items before methods. */
int sl_jinja_item(sl_jinja *state, sl_jinja_value value, sl_jinja_value key, sl_jinja_value *result);
/* value[start:stop:step]; parts that are not written are NONE. */
int sl_jinja_slice(sl_jinja *state, sl_jinja_value value, const sl_jinja_value parts[3],
                   sl_jinja_value *result);
/* The "%" of a string: printf with %s %r %d %i %x %f %g %%. arguments: a tuple or one value. */
int sl_jinja_format(sl_jinja *state, sl_view format, sl_jinja_value arguments, sl_jinja_value *result);

/* ---- characters (text.c) ---- */
bool sl_jinja_is_space(uint32_t code_point);
/* One character; a byte that is not UTF-8 counts as one. Returns its size. */
size_t sl_jinja_character(sl_view text, uint32_t *code_point);
/* Size of the last character of a non-empty text. */
size_t sl_jinja_last_character(sl_view text, uint32_t *code_point);
size_t sl_jinja_count_characters(sl_view text);
/* Byte offset of a character number, at most text.length. */
size_t sl_jinja_character_offset(sl_view text, size_t number);
/* Removes characters of `set` (white space when set.data is NULL) from the ends: 1 left, 2 right, 3 both. */
sl_view sl_jinja_strip(sl_view text, sl_view set, int ends);
/* What that costs at most, to be spent before. */
uint64_t sl_jinja_strip_steps(sl_view text, sl_view set);
/* Offset of `part` in `text` at or after `from`, or SIZE_MAX. Linear. */
size_t sl_jinja_find(sl_view text, sl_view part, size_t from);
typedef enum sl_jinja_case {
    SL_JINJA_LOWER,
    SL_JINJA_UPPER,
    SL_JINJA_CAPITALIZE,  /* first upper, rest lower */
    SL_JINJA_TITLE,       /* str.title(): upper after every character without case */
    SL_JINJA_TITLE_WORDS, /* the title filter: upper after white space and - ( { [ < */
    SL_JINJA_SWAP_CASE,
} sl_jinja_case;
int sl_jinja_change_case(sl_jinja *state, sl_view text, sl_jinja_case style, sl_jinja_value *result);

#endif
