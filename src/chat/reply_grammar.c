#include "chat/reply_grammar.h"

#include "base/alloc.h"
#include "chat/reply_internal.h"
#include "grammar/schema.h"

#include <string.h>

typedef struct maker {
    sl_grammar_builder *builder;
    const sl_reply_rules *rules;
    const sl_reply_format *format;
    sl_error *error;
    bool failed; /* error is set */
    sl_expression any_text;
} maker;

/* ---- small parts ---- */

static sl_expression text_of(maker *m, const char *text) {
    return sl_expression_literal(m->builder, text, strlen(text));
}

static sl_expression row(maker *m, const sl_expression *parts, int32_t count) {
    return sl_expression_sequence(m->builder, parts, count);
}

static sl_expression either(maker *m, sl_expression a, sl_expression b) {
    return sl_expression_choice(m->builder, (sl_expression[]){a, b}, 2);
}

static sl_expression optional(maker *m, sl_expression of) {
    return sl_expression_repeat(m->builder, of, 0, 1);
}

static sl_expression any_times(maker *m, sl_expression of) {
    return sl_expression_repeat(m->builder, of, 0, -1);
}

static sl_expression any_text(maker *m) {
    if (m->any_text == SL_NO_EXPRESSION) {
        m->any_text = any_times(m, sl_expression_character(m->builder, NULL, 0, true));
    }
    return m->any_text;
}

static sl_expression no_memory(maker *m) {
    if (!m->failed) {
        sl_fail(m->error, SL_ERR_NOMEM, "out of memory for the grammar of a reply");
    }
    m->failed = true;
    return SL_NO_EXPRESSION;
}

/* ---- marks ---- */

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* A special token that the text begins with: its bytes in the mark, and *token; 0: none. */
static size_t token_at(const maker *m, const char *at, int32_t *token) {
    enum { LONGEST = 64 };
    const sl_tokenizer *tokenizer = m->rules->tokenizer;
    if (!tokenizer) {
        return 0;
    }
    if ((unsigned char)*at == SL_REPLY_FRAME_OPEN) {
        const char *close = strchr(at, SL_REPLY_FRAME_CLOSE - 256);
        *token = close ? sl_tokenizer_find(tokenizer, (sl_view){at + 1, (size_t)(close - at - 1)}) : -1;
        return close && *token >= 0 ? (size_t)(close + 1 - at) : 0;
    }
    const size_t left = strlen(at);
    for (size_t length = left < LONGEST ? left : LONGEST; m->rules->is_special && length > 1; length--) {
        *token = sl_tokenizer_find(tokenizer, (sl_view){at, length});
        if (*token >= 0 && sl_tokenizer_token_type(tokenizer, *token) == SL_TOKEN_USER_DEFINED &&
            m->rules->is_special(m->rules->owner, *token)) {
            return length;
        }
    }
    return 0;
}

static sl_expression word(maker *m, bool digits) {
    enum { MOST_DIGITS = 9, MOST_LETTERS = 64 };
    static const sl_character_range ALL[] = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
    return sl_expression_repeat(m->builder, sl_expression_character(m->builder, ALL, digits ? 1 : 3, false),
                                1, digits ? MOST_DIGITS : MOST_LETTERS);
}

static bool is_plain(const char *at) {
    return *at && !is_blank(*at) && (unsigned char)*at > 3 && (unsigned char)*at < SL_REPLY_FRAME_CLOSE;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* White space in a mark may be left out, unless there is nothing else in it, or a word would join the name in
 * front of it. */
static sl_expression mark_text(maker *m, const char *mark) {
    sl_expression all = sl_expression_empty(m->builder);
    const size_t blanks = strspn(mark, " \n");
    const char *kept = mark + (mark[blanks] == '\0' || (blanks == 1 && is_letter(mark[1])) ? blanks : 0);
    for (size_t size; *mark; mark += size) {
        int32_t token;
        sl_expression part;
        size = token_at(m, mark, &token);
        if (size > 0) {
            part = sl_expression_token(m->builder, token);
        } else if (is_blank(*mark)) {
            size = 1;
            part = sl_expression_literal(m->builder, mark, 1);
            part = mark < kept ? part : optional(m, part);
        } else if ((unsigned char)*mark <= 3) {
            size = 1;
            part = *mark == 3 ? sl_expression_empty(m->builder) : word(m, *mark == 1);
        } else {
            for (size = 1; is_plain(mark + size) && token_at(m, mark + size, &token) == 0;) {
                size++;
            }
            part = sl_expression_literal(m->builder, mark, size);
        }
        all = row(m, (sl_expression[]){all, part}, 2);
    }
    return all;
}

/* The empty text where the format has no such mark. */
static sl_expression mark(maker *m, int which) {
    const char *text = m->format->marks[which];
    return text ? mark_text(m, text) : sl_expression_empty(m->builder);
}

/* Any of alternatives; the empty text where there is none. */
static sl_expression any_mark(maker *m, int first, int count) {
    sl_expression all[SL_REPLY_MARKS];
    int32_t found = 0;
    for (int i = first; i < first + count; i++) {
        if (m->format->marks[i]) {
            all[found++] = mark_text(m, m->format->marks[i]);
        }
    }
    return found ? sl_expression_choice(m->builder, all, found) : sl_expression_empty(m->builder);
}

/* What a mark begins with that text could spell as well. Empty for a control token, which no text spells. */
static sl_view beginning(const char *mark) {
    size_t length = 0;
    while (is_plain(mark + length)) {
        length++;
    }
    return (sl_view){mark, length};
}

static sl_expression text_before(maker *m, int which) {
    const sl_view begin = beginning(m->format->marks[which]);
    return begin.length > 0 ? sl_expression_until(m->builder, begin.data, begin.length) : any_text(m);
}

/* ---- schemas ---- */

/* The tool that is being written, for messages. */
typedef struct function {
    size_t index;
    const char *name;
    json_t *parameters; /* an object, or NULL: it takes none */
    json_t *variants;   /* of sl_reply_variants, where arguments are written one by one */
} function;

static int append(const char *bytes, size_t count, void *buffer) {
    sl_buffer_append(buffer, bytes, count);
    return 0;
}

static sl_expression schema(maker *m, const function *f, const json_t *of, const sl_json_style *style) {
    sl_error inner = {0};
    sl_buffer text = {0};
    if (json_dump_callback(of, append, &text, JSON_COMPACT | JSON_ENCODE_ANY) || text.failed) {
        sl_buffer_free(&text);
        return no_memory(m);
    }
    const sl_expression made = sl_expression_schema(m->builder, text.data, text.length, style, &inner);
    sl_buffer_free(&text);
    if (made == SL_NO_EXPRESSION && !m->failed) {
        m->failed = true;
        const sl_error *stuck = inner.code ? &inner : sl_grammar_builder_error(m->builder);
        sl_fail(m->error, stuck->code, "tools[%zu].function.parameters: %s", f->index, stuck->message);
    }
    return made;
}

/* Without others than those that are listed, where it says nothing of others. Arguments are an object always.
 * A new reference. */
static json_t *closed(const json_t *parameters) {
    static const char *const OPENS[] = {"additionalProperties",
                                        "patternProperties",
                                        "unevaluatedProperties",
                                        "propertyNames",
                                        "$ref",
                                        "allOf",
                                        "anyOf",
                                        "oneOf",
                                        "$dynamicRef"};
    json_t *copy = json_copy((json_t *)(uintptr_t)parameters);
    bool open = !json_is_object(json_object_get(parameters, "properties"));
    for (size_t i = 0; i < sizeof OPENS / sizeof *OPENS; i++) {
        open = open || json_object_get(parameters, OPENS[i]);
    }
    if (copy && ((!open && json_object_set_new(copy, "additionalProperties", json_false())) ||
                 (!json_object_get(parameters, "type") &&
                  json_object_set_new(copy, "type", json_string("object"))))) {
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}

static sl_expression object(maker *m, const function *f, const sl_json_style *style) {
    if (!f->parameters) {
        return text_of(m, "{}");
    }
    json_t *all = closed(f->parameters);
    const sl_expression made = all ? schema(m, f, all, style) : no_memory(m);
    json_decref(all);
    return made;
}

/* ---- arguments ---- */

/* An argument that is written by itself. */
typedef struct argument {
    const char *name; /* NULL: any that is not listed */
    json_t *schemas;  /* pointers, as in sl_reply_variants */
} argument;

/* Its values of these kinds (0: any). */
static sl_expression values(maker *m, const function *f, const argument *a, unsigned kinds,
                            const sl_json_style *style) {
    json_t *of = sl_reply_value_schema(f->parameters, a->schemas, kinds);
    const sl_expression made = of ? schema(m, f, of, style) : no_memory(m);
    json_decref(of);
    return made;
}

/* Texts that the reader takes for values of these kinds: see the words of JSON and Python in reply_literal.c.
 */
static sl_expression read_as(maker *m, unsigned kinds) {
    static const struct {
        unsigned kind;
        const char *pattern;
    } ROWS[] = {{SL_ARGUMENT_NULL, "null|None"},
                {SL_ARGUMENT_BOOLEAN, "true|True|false|False"},
                {SL_ARGUMENT_NUMBER, "-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d+)?"},
                {SL_ARGUMENT_ARRAY, "[\\[(][\\s\\S]*[)}\\]]"},
                {SL_ARGUMENT_OBJECT, "\\{[\\s\\S]*[)}\\]]"}};
    sl_error error;
    sl_buffer text = {0};
    const char *bar = "";
    sl_buffer_text(&text, "[ \\n\\r\\t,:]*(?:");
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        if (kinds & ROWS[i].kind) {
            sl_buffer_printf(&text, "%s%s", bar, ROWS[i].pattern);
            bar = "|";
        }
    }
    sl_buffer_text(&text, ")[ \\n\\r\\t]*");
    const sl_expression made =
        text.failed ? no_memory(m) : sl_expression_regex(m->builder, text.data, text.length, true, &error);
    sl_buffer_free(&text);
    return made;
}

/* As they stand between the marks, without what would be read as one of `others`. */
static sl_expression bare_texts(maker *m, const function *f, const argument *a, unsigned others) {
    const sl_json_style style = {
        .own_quotes = true, .quote = sl_expression_empty(m->builder), .may_be_nothing = true};
    sl_expression made = values(m, f, a, SL_ARGUMENT_TEXT, &style);
    made = sl_expression_both(m->builder, made, text_before(m, SL_REPLY_VALUE_CLOSE));
    return others ? sl_expression_except(m->builder, made, read_as(m, others)) : made;
}

/* As JSON, in which the mark behind the value does not stand. */
static sl_expression json_values(maker *m, const function *f, const argument *a, unsigned kinds) {
    const sl_view close = beginning(m->format->marks[SL_REPLY_VALUE_CLOSE]);
    char text[64];
    const bool spelled = close.length > 0 && close.length < sizeof text;
    if (spelled) {
        memcpy(text, close.data, close.length);
        text[close.length] = '\0';
    }
    const sl_json_style style = {.without = spelled ? text : NULL, .may_be_nothing = true};
    return values(m, f, a, kinds, &style);
}

/* Behind the name. */
static sl_expression tagged_rest(maker *m, int name_close, sl_expression value) {
    const sl_expression line =
        m->format->line_breaks ? optional(m, text_of(m, "\n")) : sl_expression_empty(m->builder);
    const sl_expression parts[] = {
        mark(m, name_close), line, value, line, mark(m, SL_REPLY_VALUE_CLOSE), optional(m, text_of(m, "\n"))};
    return row(m, parts, sizeof parts / sizeof *parts);
}

static sl_expression tagged_argument(maker *m, const function *f, sl_expression name, const argument *a) {
    const unsigned kinds = sl_reply_kinds(f->parameters, a->name),
                   other = SL_ARGUMENT_ANY & ~SL_ARGUMENT_TEXT;
    const bool told = m->format->marks[SL_REPLY_KEY_CLOSE_JSON] != NULL; /* by the mark behind the name */
    const bool text = told || kinds & SL_ARGUMENT_TEXT, json = told || kinds != SL_ARGUMENT_TEXT;
    sl_expression all[2];
    int32_t count = 0;
    if (text) {
        all[count++] = tagged_rest(m, SL_REPLY_KEY_CLOSE, bare_texts(m, f, a, told ? 0 : kinds & other));
    }
    if (json) {
        const unsigned only = told ? other : text ? kinds & other : 0;
        all[count++] =
            tagged_rest(m, told ? SL_REPLY_KEY_CLOSE_JSON : SL_REPLY_KEY_CLOSE, json_values(m, f, a, only));
    }
    const sl_expression rest = sl_expression_choice(m->builder, all, count);
    return row(m, (sl_expression[]){mark(m, SL_REPLY_KEY_OPEN), name, rest}, 3);
}

/* Names that no argument of the function has. */
static sl_expression some_name(maker *m, const function *f) {
    enum { MOST = 64 };
    static const sl_character_range LETTERS[] = {{'-', '-'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const char *key;
    json_t *unused, *variant;
    size_t index;
    sl_expression listed = sl_expression_nothing(m->builder);
    json_array_foreach(f->variants, index, variant) {
        json_object_foreach(json_object_get(variant, "properties"), key, unused) {
            listed = either(m, listed, text_of(m, key));
        }
    }
    return sl_expression_except(
        m->builder,
        sl_expression_repeat(m->builder, sl_expression_character(m->builder, LETTERS, 5, false), 1, MOST),
        listed);
}

typedef sl_expression write_argument(maker *m, const function *f, sl_expression name, const argument *a);

/* The arguments of one variant, in order: items[i], and whether they are required. The last may come any
 * number of times, if `others` says so. */
typedef struct argument_list {
    sl_expression *items;
    bool *required;
    int32_t count;
    sl_expression other; /* or SL_NO_EXPRESSION */
} argument_list;

static void free_list(argument_list *list) {
    sl_free(list->items);
    sl_free(list->required);
}

static bool make_list(maker *m, const function *f, json_t *variant, write_argument *write,
                      argument_list *list) {
    json_t *properties = json_object_get(variant, "properties"), *schemas;
    json_t *others = json_object_get(variant, "others");
    const char *key;
    *list = (argument_list){.items = sl_alloc_zero(json_object_size(properties) + 1, sizeof *list->items),
                            .required = sl_alloc_zero(json_object_size(properties) + 1, sizeof(bool)),
                            .other = SL_NO_EXPRESSION};
    if (!list->items || !list->required) {
        no_memory(m);
        return false;
    }
    json_object_foreach(properties, key, schemas) {
        const argument a = {key, schemas};
        const int32_t at = list->count++;
        list->required[at] = json_object_get(json_object_get(variant, "required"), key) != NULL;
        list->items[at] = write(m, f, text_of(m, key), &a);
        if (!m->failed && list->required[at] && sl_expression_is_nothing(m->builder, list->items[at])) {
            m->failed = true;
            sl_fail(m->error, SL_ERR_INVALID,
                    "tools[%zu].function.parameters: nothing satisfies what is required of %.64s", f->index,
                    key);
        }
    }
    if (others) {
        list->other = write(m, f, some_name(m, f), &(argument){NULL, others});
    }
    return !m->failed;
}

static sl_expression tagged_list(maker *m, const function *f, json_t *variant) {
    sl_expression all = optional(m, text_of(m, "\n"));
    argument_list list;
    if (make_list(m, f, variant, tagged_argument, &list)) {
        for (int32_t i = 0; i < list.count; i++) {
            all = row(
                m, (sl_expression[]){all, list.required[i] ? list.items[i] : optional(m, list.items[i])}, 2);
        }
        if (list.other != SL_NO_EXPRESSION) {
            all = row(m, (sl_expression[]){all, any_times(m, list.other)}, 2);
        }
    }
    free_list(&list);
    return m->failed ? SL_NO_EXPRESSION : all;
}

/* name=value: JSON's literals and Python's. */
static sl_expression pythonic_argument(maker *m, const function *f, sl_expression name, const argument *a) {
    json_t *of = sl_reply_value_schema(f->parameters, a->schemas, 0);
    const char *type = json_string_value(json_object_get(of, "type"));
    const sl_json_style style = {.may_be_nothing = true};
    sl_expression value = of ? schema(m, f, of, &style) : no_memory(m);
    if (type && strcmp(type, "boolean") == 0 && json_object_size(of) == 1) {
        value = either(m, value, either(m, text_of(m, "True"), text_of(m, "False")));
    }
    json_decref(of);
    return row(m, (sl_expression[]){name, text_of(m, "="), value}, 3);
}

/* Each of a list may be left out unless it is required; commas stand between those that are there. `rest`:
 * what may follow when something came before the i-th, `without` when nothing did. */
static sl_expression comma_list(maker *m, const function *f, json_t *variant) {
    const sl_expression comma = row(m, (sl_expression[]){text_of(m, ","), optional(m, text_of(m, " "))}, 2);
    sl_expression rest = sl_expression_empty(m->builder), without = rest;
    argument_list list;
    if (!make_list(m, f, variant, pythonic_argument, &list)) {
        free_list(&list);
        return SL_NO_EXPRESSION;
    }
    if (list.other != SL_NO_EXPRESSION) {
        rest = any_times(m, row(m, (sl_expression[]){comma, list.other}, 2));
        without = optional(m, row(m, (sl_expression[]){list.other, rest}, 2));
    }
    for (int32_t i = list.count; i-- > 0;) {
        const int32_t rule = sl_grammar_rule(m->builder, "arguments"); /* stands at two places */
        sl_grammar_define(m->builder, rule, rest);
        const sl_expression behind = sl_expression_rule(m->builder, rule);
        const sl_expression here = row(m, (sl_expression[]){list.items[i], behind}, 2);
        const sl_expression next = row(m, (sl_expression[]){comma, here}, 2);
        without = list.required[i] ? here : either(m, here, without);
        rest = list.required[i] ? next : either(m, next, behind);
    }
    free_list(&list);
    return without;
}

/* Arguments that are no JSON object: any of the objects that the schema allows. */
static sl_expression one_by_one(maker *m, const function *of,
                                sl_expression (*write)(maker *m, const function *f, json_t *variant)) {
    sl_error error = {0};
    function f = *of;
    sl_expression all = sl_expression_nothing(m->builder);
    json_t *variant;
    size_t index;
    f.variants = sl_reply_variants(f.parameters, &error);
    if (!f.variants && !m->failed) {
        m->failed = true;
        sl_fail(m->error, error.code, "tools[%zu].function.parameters: %s (in the format %s of this model)",
                f.index, error.message, m->format->name);
    }
    json_array_foreach(f.variants, index, variant) {
        all = m->failed ? SL_NO_EXPRESSION : either(m, all, write(m, &f, variant));
    }
    json_decref(f.variants);
    return m->failed ? SL_NO_EXPRESSION : all;
}

static sl_expression arguments(maker *m, const function *f) {
    switch (m->format->arguments) {
    case SL_REPLY_TAGGED:
        return one_by_one(m, f, tagged_list);
    case SL_REPLY_PYTHONIC:
        return row(m, (sl_expression[]){one_by_one(m, f, comma_list), text_of(m, ")")}, 2);
    case SL_REPLY_BARE: {
        const char *quote = m->format->marks[SL_REPLY_QUOTE];
        int32_t token;
        const sl_json_style style = {.compact = true,
                                     .own_quotes = true,
                                     .quote = mark(m, SL_REPLY_QUOTE),
                                     .quote_text = token_at(m, quote, &token) ? NULL : quote,
                                     .bare_keys = true};
        return object(m, f, &style);
    }
    default:
        return object(m, f, NULL);
    }
}

/* ---- calls ---- */

static sl_expression space(maker *m) {
    return optional(m, text_of(m, " "));
}

/* "name": "of it", "arguments": {...}, behind the name's quotation mark. */
static sl_expression named_rest(maker *m, const function *f) {
    const sl_expression parts[] = {text_of(m, f->name),
                                   text_of(m, "\","),
                                   space(m),
                                   text_of(m, "\""),
                                   text_of(m, m->format->arguments_key),
                                   text_of(m, "\":"),
                                   space(m),
                                   arguments(m, f)};
    return row(m, parts, sizeof parts / sizeof *parts);
}

static sl_expression function_rest(maker *m, const function *f) {
    if (m->format->name_key) {
        return named_rest(m, f);
    }
    /* An object's opening bracket is the mark behind the name. */
    const sl_expression close = m->format->arguments == SL_REPLY_BARE
                                    ? sl_expression_empty(m->builder)
                                    : any_mark(m, SL_REPLY_NAME_CLOSE, SL_REPLY_NAME_CLOSES);
    return row(m, (sl_expression[]){text_of(m, f->name), close, arguments(m, f)}, 3);
}

static sl_expression member(maker *m, const char *key) {
    const sl_expression parts[] = {text_of(m, "\""), text_of(m, key), text_of(m, "\":"), space(m),
                                   text_of(m, "\"")};
    return row(m, parts, sizeof parts / sizeof *parts);
}

/* Up to the name. */
static sl_expression call_beginning(maker *m) {
    const sl_reply_format *format = m->format;
    const sl_expression open = any_mark(m, SL_REPLY_CALL_OPEN, SL_REPLY_CALL_OPENS);
    if (!format->name_key) {
        return open;
    }
    sl_expression id = sl_expression_empty(m->builder);
    if (format->id_key) {
        const sl_expression parts[] = {member(m, format->id_key), word(m, true), text_of(m, "\","), space(m)};
        id = optional(m, row(m, parts, sizeof parts / sizeof *parts));
    }
    const sl_expression parts[] = {open, text_of(m, "{"), space(m), id, member(m, format->name_key)};
    return row(m, parts, sizeof parts / sizeof *parts);
}

/* Around and between the calls of a section. */
static sl_expression few_blanks(maker *m) {
    enum { MOST = 8 };
    return sl_expression_repeat(m->builder, either(m, text_of(m, "\n"), text_of(m, " ")), 0, MOST);
}

static bool is_wanted(const maker *m, const char *name) {
    return !m->rules->function || strcmp(m->rules->function, name) == 0;
}

/* All functions' names with what follows them, as a choice; only the names if `names`. */
static sl_expression functions(maker *m, bool names) {
    const size_t count = json_array_size(m->rules->tools);
    sl_expression *all = sl_alloc_zero(count + 1, sizeof *all);
    int32_t found = 0;
    if (!all) {
        return no_memory(m);
    }
    for (size_t i = 0; i < count && !m->failed; i++) {
        json_t *given = json_object_get(json_array_get(m->rules->tools, i), "function");
        json_t *parameters = json_object_get(given, "parameters");
        const function f = {.index = i,
                            .name = json_string_value(json_object_get(given, "name")),
                            .parameters = json_is_object(parameters) ? parameters : NULL};
        if (f.name && (names || is_wanted(m, f.name))) {
            all[found++] = names ? text_of(m, f.name) : function_rest(m, &f);
        }
    }
    const sl_expression made = m->failed ? SL_NO_EXPRESSION : sl_expression_choice(m->builder, all, found);
    sl_free(all);
    return made;
}

static sl_expression calls(maker *m) {
    const bool named = m->format->name_key != NULL;
    const sl_expression end =
        named ? row(m, (sl_expression[]){space(m), text_of(m, "}")}, 2) : sl_expression_empty(m->builder);
    const sl_expression parts[] = {call_beginning(m), functions(m, false), end, mark(m, SL_REPLY_CALL_CLOSE)};
    const int32_t rule = sl_grammar_rule(m->builder, "call");
    sl_grammar_define(m->builder, rule, row(m, parts, 4));
    const sl_expression call = sl_expression_rule(m->builder, rule);
    sl_expression all = call;
    if (!m->rules->single) {
        const bool in_section = m->format->marks[SL_REPLY_SECTION_OPEN] != NULL;
        const sl_expression blanks = in_section ? few_blanks(m) : sl_expression_empty(m->builder);
        const sl_expression separator =
            m->format->marks[SL_REPLY_SEPARATOR]
                ? row(m, (sl_expression[]){mark(m, SL_REPLY_SEPARATOR), blanks}, 2)
                : few_blanks(m);
        all = row(m, (sl_expression[]){call, any_times(m, row(m, (sl_expression[]){separator, call}, 2))}, 2);
    }
    if (!m->format->marks[SL_REPLY_SECTION_OPEN]) {
        return all;
    }
    const sl_expression line = few_blanks(m);
    const sl_expression section[] = {mark(m, SL_REPLY_SECTION_OPEN), line, all, line,
                                     mark(m, SL_REPLY_SECTION_CLOSE)};
    return row(m, section, sizeof section / sizeof *section);
}

/* ---- text ---- */

/* Texts that begin a call, as far as they can be spelled. */
static int32_t call_beginnings(const maker *m, sl_view found[SL_REPLY_CALL_OPENS + 1]) {
    int32_t count = 0;
    const bool section = m->format->marks[SL_REPLY_SECTION_OPEN] != NULL;
    for (int i = section ? SL_REPLY_SECTION_OPEN : SL_REPLY_CALL_OPEN;
         i < (section ? SL_REPLY_SECTION_OPEN + 1 : SL_REPLY_CALL_OPEN + SL_REPLY_CALL_OPENS); i++) {
        const char *text = m->format->marks[i];
        const sl_view begin = text ? beginning(text) : (sl_view){0};
        if (begin.length > 0) {
            found[count++] = begin;
        }
    }
    return count;
}

/* Text in which no call begins. */
static sl_expression free_text(maker *m) {
    sl_view begins[SL_REPLY_CALL_OPENS + 1];
    const int32_t count = m->rules->tools && !m->format->at_start ? call_beginnings(m, begins) : 0;
    if (count == 0) {
        return any_text(m);
    }
    if (count == 1) {
        return sl_expression_until(m->builder, begins[0].data, begins[0].length);
    }
    sl_expression all[SL_REPLY_CALL_OPENS + 1];
    for (int32_t i = 0; i < count; i++) {
        all[i] = sl_expression_literal(m->builder, begins[i].data, begins[i].length);
    }
    const sl_expression with[] = {any_text(m), sl_expression_choice(m->builder, all, count), any_text(m)};
    return sl_expression_except(m->builder, SL_NO_EXPRESSION, row(m, with, 3));
}

/* A reply that does not begin as a call of a function that exists. */
static sl_expression first_text(maker *m) {
    if (!m->rules->tools || !m->format->at_start) {
        return free_text(m);
    }
    static const sl_character_range BLANK[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    const sl_expression blanks = any_times(m, sl_expression_character(m->builder, BLANK, 3, false));
    const bool named = m->format->name_key != NULL;
    const sl_expression call[] = {blanks,
                                  text_of(m, named ? "{" : "["),
                                  blanks,
                                  named ? text_of(m, "\"") : sl_expression_empty(m->builder),
                                  text_of(m, named ? m->format->name_key : ""),
                                  named ? text_of(m, "\"") : sl_expression_empty(m->builder),
                                  blanks,
                                  named ? text_of(m, ":") : sl_expression_empty(m->builder),
                                  blanks,
                                  named ? text_of(m, "\"") : sl_expression_empty(m->builder),
                                  functions(m, true),
                                  text_of(m, named ? "\"" : "("),
                                  any_text(m)};
    return sl_expression_except(m->builder, SL_NO_EXPRESSION, row(m, call, sizeof call / sizeof *call));
}

/* ---- the whole ---- */

/* What stands in a thought, and its end. */
static sl_expression inside_thought(maker *m) {
    const sl_expression line = text_of(m, "\n");
    return row(m,
               (sl_expression[]){text_before(m, SL_REPLY_THINK_CLOSE), mark(m, SL_REPLY_THINK_CLOSE),
                                 sl_expression_repeat(m->builder, line, 0, 2)},
               3);
}

static sl_expression whole_thought(maker *m) {
    return row(m, (sl_expression[]){mark(m, SL_REPLY_THINK_OPEN), inside_thought(m)}, 2);
}

static sl_expression thought(maker *m) {
    if (!m->format->marks[SL_REPLY_THINK_CLOSE] || m->rules->thought == SL_REPLY_NO_THOUGHT) {
        return sl_expression_empty(m->builder);
    }
    return m->rules->thought == SL_REPLY_THINKING ? inside_thought(m) : optional(m, whole_thought(m));
}

/* Text with marks in it that are none. */
static sl_expression content(maker *m) {
    const bool thinks = m->format->thinks_again && m->rules->thought != SL_REPLY_NO_THOUGHT;
    if (!m->format->marks[SL_REPLY_SILENT] && !thinks) {
        return first_text(m);
    }
    sl_expression between = any_mark(m, SL_REPLY_SILENT, SL_REPLY_SILENTS);
    if (thinks) {
        between = m->format->marks[SL_REPLY_SILENT] ? either(m, between, whole_thought(m)) : whole_thought(m);
    }
    const sl_expression more = any_times(m, row(m, (sl_expression[]){between, free_text(m)}, 2));
    return row(m, (sl_expression[]){first_text(m), more}, 2);
}

static sl_expression silence(maker *m, int64_t most) {
    return sl_expression_repeat(m->builder, any_mark(m, SL_REPLY_SILENT, SL_REPLY_SILENTS), 0, most);
}

static sl_expression held_answer(maker *m) {
    return row(m, (sl_expression[]){silence(m, 2), m->rules->answer, silence(m, 1)}, 3);
}

static sl_expression body(maker *m) {
    const bool offered = m->rules->tools && m->rules->choice != SL_REPLY_FORBIDDEN;
    const bool held = m->rules->answer != SL_NO_EXPRESSION;
    if (!offered) {
        return held ? held_answer(m) : content(m);
    }
    const sl_expression called = row(m, (sl_expression[]){calls(m), silence(m, 1)}, 2);
    const sl_expression at_once = row(m, (sl_expression[]){silence(m, 1), called}, 2);
    if (m->rules->choice == SL_REPLY_REQUIRED) {
        return at_once;
    }
    if (held || m->format->at_start) {
        return either(m, held ? held_answer(m) : content(m), at_once);
    }
    return row(m, (sl_expression[]){content(m), optional(m, called)}, 2);
}

sl_expression sl_expression_reply(sl_grammar_builder *builder, const sl_reply_rules *rules, sl_error *error) {
    maker m = {.builder = builder,
               .rules = rules,
               .format = rules->format,
               .error = error,
               .any_text = SL_NO_EXPRESSION};
    const sl_expression all = row(&m, (sl_expression[]){thought(&m), body(&m)}, 2);
    if (!m.failed && all == SL_NO_EXPRESSION) {
        *error = *sl_grammar_builder_error(builder);
    }
    return m.failed ? SL_NO_EXPRESSION : all;
}
