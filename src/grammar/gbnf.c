/* GBNF, llama.cpp's notation of grammars, as its grammars/README.md and parser have it. A rule is
 * `name ::= alternatives`; a line's end ends it, except within parentheses and behind `|` and `::=`. */
#include "grammar/expression.h"

#include "base/alloc.h"
#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    DEEPEST = 256,
    LONGEST_CODE = 256, /* of a token reference */
};

typedef struct name_entry {
    sl_view name;
    int32_t rule;
    bool defined;
    const char *at; /* where it is used first */
} name_entry;

typedef struct parser {
    sl_grammar_builder *builder;
    const char *at, *end, *begin;
    name_entry *names;
    int32_t name_count, name_capacity;
    int32_t *table; /* name + 1 by hash */
    int32_t table_capacity;
    int depth;
    sl_error *error;
    bool failed;
} parser;

static int line_of(const parser *parser, const char *at) {
    int line = 1;
    for (const char *c = parser->begin; c < at; c++) {
        line += *c == '\n';
    }
    return line;
}

static sl_expression fail(parser *parser, const char *what) {
    if (!parser->failed) {
        char found[64] = "the end";
        if (parser->at < parser->end) {
            int length = 0;
            while (length < 16 && parser->at + length < parser->end && parser->at[length] != '\n' &&
                   parser->at[length] != '\r') {
                length++;
            }
            snprintf(found, sizeof(found), "\"%.*s\"", length, parser->at);
        }
        sl_fail(parser->error, SL_ERR_INVALID, "grammar: line %d: %s, at %s", line_of(parser, parser->at),
                what, found);
        parser->failed = true;
    }
    return SL_NO_EXPRESSION;
}

static int peek(const parser *parser, int ahead) {
    return parser->end - parser->at > ahead ? (unsigned char)parser->at[ahead] : -1;
}

static void skip_space(parser *parser, bool lines) {
    for (;; parser->at++) {
        int c = peek(parser, 0);
        if (c == '#') {
            while (peek(parser, 1) != '\n' && peek(parser, 1) != '\r' && peek(parser, 1) != -1) {
                parser->at++;
            }
        } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
            return;
        }
    }
}

static bool is_name(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static sl_view read_name(parser *parser) {
    sl_view name = {parser->at, 0};
    while (is_name(peek(parser, 0))) {
        parser->at++;
        name.length++;
    }
    return name;
}

static bool grow_names(parser *parser) {
    if (parser->name_count < parser->name_capacity) {
        return true;
    }
    int32_t capacity = parser->name_capacity ? parser->name_capacity * 2 : 64;
    name_entry *names = sl_realloc(parser->names, (size_t)capacity * sizeof(*names));
    if (!names) {
        return false;
    }
    parser->names = names;
    parser->name_capacity = capacity;
    int32_t *table = sl_alloc_zero((size_t)capacity * 2, sizeof(*table));
    if (!table) {
        return false;
    }
    sl_free(parser->table);
    parser->table = table;
    parser->table_capacity = capacity * 2;
    for (int32_t i = 0; i < parser->name_count; i++) {
        uint64_t at = sl_hash64(names[i].name.data, names[i].name.length, 0);
        while (table[at & (uint64_t)(capacity * 2 - 1)]) {
            at++;
        }
        table[at & (uint64_t)(capacity * 2 - 1)] = i + 1;
    }
    return true;
}

/* The entry of a name, made if there is none; NULL: an error stuck. */
static name_entry *find_name(parser *parser, sl_view name, const char *at) {
    if (!grow_names(parser)) {
        sl_fail(parser->error, SL_ERR_NOMEM, "grammar: out of memory");
        parser->failed = true;
        return NULL;
    }
    uint64_t last = (uint64_t)(parser->table_capacity - 1), place = sl_hash64(name.data, name.length, 0);
    for (; parser->table[place & last]; place++) {
        name_entry *entry = &parser->names[parser->table[place & last] - 1];
        if (sl_view_equal(entry->name, name)) {
            return entry;
        }
    }
    char text[65];
    size_t length = name.length < sizeof(text) - 1 ? name.length : sizeof(text) - 1;
    memcpy(text, name.data, length);
    text[length] = 0;
    name_entry *entry = &parser->names[parser->name_count];
    *entry = (name_entry){.name = name, .rule = sl_grammar_rule(parser->builder, text), .at = at};
    parser->table[place & last] = ++parser->name_count;
    return entry;
}

/* ---- characters
 * ---------------------------------------------------------------------------------------------- */

static bool read_hex(parser *parser, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, parser->at++) {
        int c = peek(parser, 0);
        int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0) {
            fail(parser, "a hexadecimal digit is expected");
            return false;
        }
        *out = *out << 4 | (uint32_t)value;
    }
    return true;
}

/* One character of a literal or a class, with its escapes. */
static bool read_character(parser *parser, uint32_t *out) {
    int c = peek(parser, 0);
    if (c < 0) {
        fail(parser, "a literal or a class does not end");
        return false;
    }
    if (c != '\\') {
        size_t size = sl_utf8_decode(parser->at, (size_t)(parser->end - parser->at), out);
        if (size == 0) {
            fail(parser, "not valid UTF-8");
            return false;
        }
        parser->at += size;
        return true;
    }
    const char *start = parser->at;
    c = peek(parser, 1);
    parser->at += c < 0 ? 1 : 2;
    switch (c) {
    case 'x':
        return read_hex(parser, 2, out);
    case 'u':
    case 'U':
        if (!read_hex(parser, c == 'u' ? 4 : 8, out)) {
            return false;
        }
        if (*out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff)) {
            parser->at = start;
            fail(parser, "an escape names no Unicode character");
            return false;
        }
        return true;
    case 't':
        *out = '\t';
        return true;
    case 'r':
        *out = '\r';
        return true;
    case 'n':
        *out = '\n';
        return true;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
        *out = (uint32_t)c;
        return true;
    default:
        parser->at = start;
        fail(parser, "an unknown escape");
        return false;
    }
}

static sl_expression parse_literal(parser *parser) {
    sl_buffer bytes = {0};
    parser->at++;
    while (peek(parser, 0) != '"') {
        uint32_t character;
        char encoded[4];
        if (!read_character(parser, &character)) {
            sl_buffer_free(&bytes);
            return SL_NO_EXPRESSION;
        }
        sl_buffer_append(&bytes, encoded, sl_utf8_encode(character, encoded));
    }
    parser->at++;
    sl_expression result = SL_NO_EXPRESSION;
    if (bytes.failed) {
        sl_fail(parser->error, SL_ERR_NOMEM, "grammar: out of memory");
        parser->failed = true;
    } else {
        result = sl_expression_literal(parser->builder, bytes.data, bytes.length);
    }
    sl_buffer_free(&bytes);
    return result;
}

static sl_expression parse_class(parser *parser) {
    sl_buffer ranges = {0};
    const char *start = parser->at++;
    bool negated = peek(parser, 0) == '^';
    parser->at += negated;
    while (peek(parser, 0) != ']') {
        sl_character_range range;
        if (!read_character(parser, &range.first)) {
            sl_buffer_free(&ranges);
            return SL_NO_EXPRESSION;
        }
        range.last = range.first;
        if (peek(parser, 0) == '-' && peek(parser, 1) != ']') {
            const char *dash = parser->at++;
            if (!read_character(parser, &range.last)) {
                sl_buffer_free(&ranges);
                return SL_NO_EXPRESSION;
            }
            if (range.last < range.first) {
                sl_buffer_free(&ranges);
                parser->at = dash;
                return fail(parser, "a range ends before it begins");
            }
        }
        sl_buffer_append(&ranges, &range, sizeof(range));
    }
    parser->at++;
    sl_expression result = SL_NO_EXPRESSION;
    if (ranges.failed) {
        sl_fail(parser->error, SL_ERR_NOMEM, "grammar: out of memory");
        parser->failed = true;
    } else if (ranges.length == 0) {
        parser->at = start;
        fail(parser, "an empty class");
    } else {
        result = sl_expression_character(parser->builder, (const sl_character_range *)(void *)ranges.data,
                                         (int32_t)(ranges.length / sizeof(sl_character_range)), negated);
    }
    sl_buffer_free(&ranges);
    return result;
}

/* ---- tokens and numbers
 * -------------------------------------------------------------------------------------- */

static bool read_number(parser *parser, int64_t *out) {
    if (peek(parser, 0) < '0' || peek(parser, 0) > '9') {
        fail(parser, "a number is expected");
        return false;
    }
    for (*out = 0; peek(parser, 0) >= '0' && peek(parser, 0) <= '9'; parser->at++) {
        if (*out > INT_MAX) {
            fail(parser, "a number is too large");
            return false;
        }
        *out = *out * 10 + (peek(parser, 0) - '0');
    }
    return true;
}

/* <[7]>, <text>, and with ! in front any other token. */
static sl_expression parse_token(parser *parser) {
    bool negated = peek(parser, 0) == '!';
    const char *start = parser->at;
    parser->at += negated;
    if (peek(parser, 0) != '<') {
        return fail(parser, "a token such as <[7]> or <text> is expected");
    }
    if (peek(parser, 1) == '[') {
        int64_t token;
        parser->at += 2;
        if (!read_number(parser, &token)) {
            return SL_NO_EXPRESSION;
        }
        if (peek(parser, 0) != ']' || peek(parser, 1) != '>' || token > INT_MAX) {
            return fail(parser, "]> is expected");
        }
        parser->at += 2;
        return negated ? sl_expression_other_token(parser->builder, (int32_t)token)
                       : sl_expression_token(parser->builder, (int32_t)token);
    }
    const char *text = parser->at;
    while (peek(parser, 0) != '>') {
        if (peek(parser, 0) < 0 || peek(parser, 0) == '\n' || parser->at - text > LONGEST_CODE) {
            parser->at = start;
            return fail(parser, "a token's text does not end with >");
        }
        parser->at++;
    }
    parser->at++;
    return sl_expression_token_text(parser->builder, text, (size_t)(parser->at - text), negated);
}

/* ---- rules
 * --------------------------------------------------------------------------------------------------- */

static sl_expression parse_alternatives(parser *parser, bool nested);

static sl_expression parse_item(parser *parser, bool nested) {
    int c = peek(parser, 0);
    if (c == '"') {
        return parse_literal(parser);
    }
    if (c == '[') {
        return parse_class(parser);
    }
    if (c == '<' || c == '!') {
        return parse_token(parser);
    }
    if (c == '.') {
        parser->at++;
        return sl_expression_character(parser->builder, NULL, 0, true);
    }
    if (c == '(') {
        const char *start = parser->at++;
        if (parser->depth >= DEEPEST) {
            return fail(parser, "parentheses are nested too deep");
        }
        parser->depth++;
        skip_space(parser, true);
        sl_expression inner = parse_alternatives(parser, true);
        parser->depth--;
        if (parser->failed) {
            return SL_NO_EXPRESSION;
        }
        if (peek(parser, 0) != ')') {
            parser->at = peek(parser, 0) < 0 ? start : parser->at;
            return fail(parser, "a parenthesis is not closed");
        }
        parser->at++;
        return inner;
    }
    (void)nested;
    const char *start = parser->at;
    name_entry *entry = find_name(parser, read_name(parser), start);
    return entry ? sl_expression_rule(parser->builder, entry->rule) : SL_NO_EXPRESSION;
}

/* *, +, ? and {m,n} behind an item, as many as there are. */
static sl_expression parse_repetitions(parser *parser, sl_expression item, bool nested) {
    for (;;) {
        int64_t least = 0, most = -1;
        skip_space(parser, nested);
        int c = peek(parser, 0);
        if (parser->failed || (c != '*' && c != '+' && c != '?' && c != '{')) {
            return item;
        }
        parser->at++;
        if (c == '{') {
            skip_space(parser, nested);
            if (!read_number(parser, &least)) {
                return SL_NO_EXPRESSION;
            }
            most = least;
            skip_space(parser, nested);
            if (peek(parser, 0) == ',') {
                parser->at++;
                skip_space(parser, nested);
                most = -1;
                if (peek(parser, 0) != '}' && !read_number(parser, &most)) {
                    return SL_NO_EXPRESSION;
                }
                skip_space(parser, nested);
            }
            if (peek(parser, 0) != '}' || (most >= 0 && most < least)) {
                return fail(parser, peek(parser, 0) == '}' ? "a repetition ends below where it begins"
                                                           : "} is expected");
            }
            parser->at++;
        } else {
            least = c == '+';
            most = c == '?' ? 1 : -1;
        }
        item = sl_expression_repeat(parser->builder, item, least, most);
    }
}

static bool begins_item(int c) {
    return c == '"' || c == '[' || c == '<' || c == '!' || c == '.' || c == '(' || is_name(c);
}

static bool append(parser *parser, sl_buffer *list, sl_expression item) {
    sl_buffer_append(list, &item, sizeof(item));
    if (list->failed && !parser->failed) {
        sl_fail(parser->error, SL_ERR_NOMEM, "grammar: out of memory");
        parser->failed = true;
    }
    return !parser->failed;
}

static sl_expression parse_sequence(parser *parser, bool nested) {
    sl_buffer items = {0};
    sl_expression result = SL_NO_EXPRESSION;
    while (!parser->failed && begins_item(peek(parser, 0))) {
        sl_expression item = parse_item(parser, nested);
        if (parser->failed || !append(parser, &items, parse_repetitions(parser, item, nested))) {
            break;
        }
    }
    int c = peek(parser, 0);
    if (c == '*' || c == '+' || c == '?' || c == '{') {
        fail(parser, "there is nothing to repeat");
    }
    if (!parser->failed) {
        result = sl_expression_sequence(parser->builder, (const sl_expression *)(void *)items.data,
                                        (int32_t)(items.length / sizeof(sl_expression)));
    }
    sl_buffer_free(&items);
    return result;
}

static sl_expression parse_alternatives(parser *parser, bool nested) {
    sl_buffer choices = {0};
    sl_expression result = SL_NO_EXPRESSION;
    while (append(parser, &choices, parse_sequence(parser, nested)) && peek(parser, 0) == '|') {
        parser->at++;
        skip_space(parser, true);
    }
    if (!parser->failed) {
        result = sl_expression_choice(parser->builder, (const sl_expression *)(void *)choices.data,
                                      (int32_t)(choices.length / sizeof(sl_expression)));
    }
    sl_buffer_free(&choices);
    return result;
}

static void parse_rule(parser *parser) {
    const char *start = parser->at;
    sl_view name = read_name(parser);
    if (name.length == 0) {
        fail(parser, "the name of a rule is expected");
        return;
    }
    name_entry *entry = find_name(parser, name, start);
    if (!entry) {
        return;
    }
    if (entry->defined) {
        parser->at = start;
        fail(parser, "a rule is defined twice");
        return;
    }
    entry->defined = true;
    int32_t rule = entry->rule; /* the entry moves when names are added */
    skip_space(parser, false);
    if (peek(parser, 0) != ':' || peek(parser, 1) != ':' || peek(parser, 2) != '=') {
        fail(parser, "::= is expected");
        return;
    }
    parser->at += 3;
    skip_space(parser, true);
    sl_expression body = parse_alternatives(parser, false);
    if (parser->failed) {
        return;
    }
    if (peek(parser, 0) != '\n' && peek(parser, 0) != '\r' && peek(parser, 0) != -1) {
        fail(parser, "the end of the line is expected");
        return;
    }
    sl_grammar_define(parser->builder, rule, body);
    skip_space(parser, true);
}

sl_expression sl_expression_gbnf(sl_grammar_builder *builder, const char *text, size_t count,
                                 sl_error *error) {
    parser parser = {.builder = builder, .at = text, .begin = text, .end = text + count, .error = error};
    int32_t root = -1;
    skip_space(&parser, true);
    while (!parser.failed && parser.at < parser.end) {
        parse_rule(&parser);
    }
    for (int32_t i = 0; !parser.failed && i < parser.name_count; i++) {
        const name_entry *entry = &parser.names[i];
        if (!entry->defined) {
            sl_fail(error, SL_ERR_INVALID, "grammar: line %d: the rule %.*s is not defined",
                    line_of(&parser, entry->at), (int)(entry->name.length < 64 ? entry->name.length : 64),
                    entry->name.data);
            parser.failed = true;
        }
        root = sl_view_is(entry->name, "root") ? entry->rule : root;
    }
    if (!parser.failed && builder && sl_grammar_builder_error(builder)->code) {
        sl_fail(error, sl_grammar_builder_error(builder)->code, "%s",
                sl_grammar_builder_error(builder)->message);
        parser.failed = true;
    }
    if (!parser.failed && root < 0) {
        sl_fail(error, SL_ERR_INVALID, "grammar: there is no rule root");
        parser.failed = true;
    }
    sl_free(parser.names);
    sl_free(parser.table);
    return parser.failed ? SL_NO_EXPRESSION : sl_expression_rule(builder, root);
}
