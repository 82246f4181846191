/* Regular expressions, as Python's re, PCRE2 and ECMAScript (ECMA-262, with the flag u) agree on them. Where
 * the sets behind a dot, \d, \w and \s differ, ECMAScript's are meant, as JSON Schema has it. What is no
 * regular language, or is read differently, is refused by name. */
#include "grammar/build.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

enum {
    DEEPEST = 256,
    LONGEST_NAME = 64,
};

typedef struct parser {
    sl_grammar_builder *builder;
    const char *begin, *at, *end;
    int depth;
    sl_error *error;
    bool failed;
} parser;

/* Ranges in a buffer. */
typedef struct set {
    sl_buffer ranges;
} set;

static sl_expression fail_at(parser *parser, const char *at, const char *what) {
    if (!parser->failed) {
        int length = 0;
        while (length < 12 && at + length < parser->end && (unsigned char)at[length] >= 0x20) {
            length++;
        }
        sl_fail(parser->error, SL_ERR_INVALID, "pattern: position %zu: %s (at \"%.*s\")",
                (size_t)(at - parser->begin), what, length, at);
        parser->failed = true;
    }
    return SL_NO_EXPRESSION;
}

static int peek(const parser *parser, int ahead) {
    return parser->end - parser->at > ahead ? (unsigned char)parser->at[ahead] : -1;
}

static bool follows(const parser *parser, const char *text) {
    size_t length = strlen(text);
    return (size_t)(parser->end - parser->at) >= length && memcmp(parser->at, text, length) == 0;
}

/* ---- sets of characters
 * -------------------------------------------------------------------------------------- */

static void add(set *set, uint32_t first, uint32_t last) {
    sl_character_range range = {first, last};
    sl_buffer_append(&set->ranges, &range, sizeof(range));
}

static void add_ranges(set *set, const sl_character_range *ranges, size_t count, bool negated) {
    uint32_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (!negated) {
            add(set, ranges[i].first, ranges[i].last);
        } else if (ranges[i].first > next) {
            add(set, next, ranges[i].first - 1);
        }
        next = ranges[i].last + 1;
    }
    if (negated) {
        add(set, next, 0x10ffff);
    }
}

/* In order, as add_ranges needs them. Spaces: ECMA-262, WhiteSpace and LineTerminator. */
static const sl_character_range DIGITS[] = {{'0', '9'}};
static const sl_character_range WORDS[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const sl_character_range SPACES[] = {
    {9, 13},          {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const sl_character_range LINES[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static const struct {
    char letter;
    const sl_character_range *ranges;
    size_t count;
} CLASSES[] = {{'d', DIGITS, sizeof(DIGITS) / sizeof(*DIGITS)},
               {'w', WORDS, sizeof(WORDS) / sizeof(*WORDS)},
               {'s', SPACES, sizeof(SPACES) / sizeof(*SPACES)}};

/* Unicode's general categories by their short and long names (UAX #44); `mask` has bit i for utf8proc's i. */
#define BIT(name) ((uint32_t)1 << UTF8PROC_CATEGORY_##name)
static const struct {
    const char *name, *long_name;
    uint32_t mask;
} CATEGORIES[] = {
    {"L", "Letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"LC", "Cased_Letter", BIT(LU) | BIT(LL) | BIT(LT)},
    {"Lu", "Uppercase_Letter", BIT(LU)},
    {"Ll", "Lowercase_Letter", BIT(LL)},
    {"Lt", "Titlecase_Letter", BIT(LT)},
    {"Lm", "Modifier_Letter", BIT(LM)},
    {"Lo", "Other_Letter", BIT(LO)},
    {"M", "Mark", BIT(MN) | BIT(MC) | BIT(ME)},
    {"Mn", "Nonspacing_Mark", BIT(MN)},
    {"Mc", "Spacing_Mark", BIT(MC)},
    {"Me", "Enclosing_Mark", BIT(ME)},
    {"N", "Number", BIT(ND) | BIT(NL) | BIT(NO)},
    {"Nd", "Decimal_Number", BIT(ND)},
    {"Nl", "Letter_Number", BIT(NL)},
    {"No", "Other_Number", BIT(NO)},
    {"P", "Punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"Pc", "Connector_Punctuation", BIT(PC)},
    {"Pd", "Dash_Punctuation", BIT(PD)},
    {"Ps", "Open_Punctuation", BIT(PS)},
    {"Pe", "Close_Punctuation", BIT(PE)},
    {"Pi", "Initial_Punctuation", BIT(PI)},
    {"Pf", "Final_Punctuation", BIT(PF)},
    {"Po", "Other_Punctuation", BIT(PO)},
    {"S", "Symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
    {"Sm", "Math_Symbol", BIT(SM)},
    {"Sc", "Currency_Symbol", BIT(SC)},
    {"Sk", "Modifier_Symbol", BIT(SK)},
    {"So", "Other_Symbol", BIT(SO)},
    {"Z", "Separator", BIT(ZS) | BIT(ZL) | BIT(ZP)},
    {"Zs", "Space_Separator", BIT(ZS)},
    {"Zl", "Line_Separator", BIT(ZL)},
    {"Zp", "Paragraph_Separator", BIT(ZP)},
    {"C", "Other", BIT(CC) | BIT(CF) | BIT(CS) | BIT(CO) | BIT(CN)},
    {"Cc", "Control", BIT(CC)},
    {"Cf", "Format", BIT(CF)},
    {"Co", "Private_Use", BIT(CO)},
    {"Cn", "Unassigned", BIT(CN)},
};

static void add_category(set *set, uint32_t mask, bool negated) {
    uint32_t first = 0;
    bool inside = false;
    for (uint32_t c = 0; c <= 0x110000; c++) {
        bool is_in = c < 0x110000 && (((mask >> utf8proc_category((utf8proc_int32_t)c)) & 1) != 0) != negated;
        if (is_in && !inside) {
            first = c;
        } else if (!is_in && inside) {
            add(set, first, c - 1);
        }
        inside = is_in;
    }
}

/* \p{...} and \P{...}, behind the letter. */
static bool read_property(parser *parser, const char *start, bool negated, set *set) {
    static const char *const PREFIXES[] = {"General_Category=", "gc="};
    char name[LONGEST_NAME + 1];
    size_t length = 0;
    if (peek(parser, 0) != '{') {
        fail_at(parser, start, "a property is written \\p{Name}");
        return false;
    }
    parser->at++;
    for (size_t i = 0; i < 2; i++) {
        if (follows(parser, PREFIXES[i])) {
            parser->at += strlen(PREFIXES[i]);
            break;
        }
    }
    while (peek(parser, 0) != '}' && peek(parser, 0) > 0 && length < LONGEST_NAME) {
        name[length++] = *parser->at++;
    }
    name[length] = 0;
    for (size_t i = 0; peek(parser, 0) == '}' && i < sizeof(CATEGORIES) / sizeof(*CATEGORIES); i++) {
        if (strcmp(name, CATEGORIES[i].name) == 0 || strcmp(name, CATEGORIES[i].long_name) == 0) {
            parser->at++;
            add_category(set, CATEGORIES[i].mask, negated);
            return true;
        }
    }
    fail_at(parser, start, "of Unicode's properties only general categories are supported");
    return false;
}

/* ---- escapes
 * ------------------------------------------------------------------------------------------------- */

static int hex_digit(int c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool read_hex(parser *parser, const char *start, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, parser->at++) {
        int digit = hex_digit(peek(parser, 0));
        if (digit < 0) {
            fail_at(parser, start, "an escape lacks hexadecimal digits");
            return false;
        }
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* Behind \u: four digits, a pair of surrogates in two escapes, or digits in braces. */
static bool read_unicode(parser *parser, const char *start, uint32_t *out) {
    if (peek(parser, 0) == '{') {
        int digits = 0;
        for (parser->at++, *out = 0; hex_digit(peek(parser, 0)) >= 0 && digits < 6; digits++, parser->at++) {
            *out = *out << 4 | (uint32_t)hex_digit(peek(parser, 0));
        }
        if (digits == 0 || peek(parser, 0) != '}') {
            fail_at(parser, start, "an escape lacks hexadecimal digits");
            return false;
        }
        parser->at++;
    } else if (!read_hex(parser, start, 4, out)) {
        return false;
    } else if (*out >= 0xd800 && *out <= 0xdbff && peek(parser, 0) == '\\' && peek(parser, 1) == 'u') {
        uint32_t low;
        parser->at += 2;
        if (!read_hex(parser, start, 4, &low)) {
            return false;
        }
        if (low >= 0xdc00 && low <= 0xdfff) {
            *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (*out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff)) {
        fail_at(parser, start, "an escape names no Unicode character");
        return false;
    }
    return true;
}

/* Of escapes that are refused, what they are called. */
static const struct {
    const char *letters, *what;
} REFUSED[] = {
    {"123456789k", "backreferences are not supported"},
    {"bB", "word boundaries (\\b, \\B) are not supported"},
    {"AZzG", "the anchors \\A, \\Z, \\z and \\G are not supported: use ^ and $"},
    {"QE", "quoting by \\Q and \\E is not supported"},
};

/* A backslash and what it stands for: a set (then *is_set), or one character. */
static bool read_escape(parser *parser, bool in_class, set *set, uint32_t *out, bool *is_set) {
    static const char SIMPLE[][2] = {{'t', '\t'}, {'n', '\n'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}};
    const char *start = parser->at;
    int c = peek(parser, 1);
    *is_set = false;
    parser->at += c < 0 ? 1 : 2;
    for (size_t i = 0; i < sizeof(CLASSES) / sizeof(*CLASSES); i++) {
        if (c == CLASSES[i].letter || c == CLASSES[i].letter - 'a' + 'A') {
            add_ranges(set, CLASSES[i].ranges, CLASSES[i].count, c != CLASSES[i].letter);
            *is_set = true;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(SIMPLE) / sizeof(*SIMPLE); i++) {
        if (c == SIMPLE[i][0]) {
            *out = (uint32_t)SIMPLE[i][1];
            return true;
        }
    }
    if (c == 'p' || c == 'P') {
        *is_set = true;
        return read_property(parser, start, c == 'P', set);
    }
    if (c == 'x' || c == 'u') {
        return c == 'x' ? read_hex(parser, start, 2, out) : read_unicode(parser, start, out);
    }
    if (c == 'c' && ((peek(parser, 0) | 0x20) >= 'a' && (peek(parser, 0) | 0x20) <= 'z')) {
        *out = (uint32_t)*parser->at++ & 31;
        return true;
    }
    if ((c == '0' && (peek(parser, 0) < '0' || peek(parser, 0) > '9')) || (c == 'b' && in_class)) {
        *out = c == '0' ? 0 : '\b';
        return true;
    }
    if (c > 0x20 && c < 0x7f && !(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) {
        *out = (uint32_t)c; /* punctuation stands for itself */
        return true;
    }
    for (size_t i = 0; c > 0 && i < sizeof(REFUSED) / sizeof(*REFUSED); i++) {
        if (strchr(REFUSED[i].letters, c)) {
            fail_at(parser, start, REFUSED[i].what);
            return false;
        }
    }
    fail_at(parser, start, c < 0 ? "a backslash at the end" : "an unknown escape");
    return false;
}

static bool read_plain(parser *parser, uint32_t *out) {
    size_t size = sl_utf8_decode(parser->at, (size_t)(parser->end - parser->at), out);
    if (size == 0) {
        fail_at(parser, parser->at, "not valid UTF-8");
        return false;
    }
    parser->at += size;
    return true;
}

/* ---- classes
 * ------------------------------------------------------------------------------------------------- */

static sl_expression finish_set(parser *parser, set *set, bool negated) {
    sl_expression result = SL_NO_EXPRESSION;
    if (set->ranges.failed && !parser->failed) {
        sl_fail(parser->error, SL_ERR_NOMEM, "pattern: out of memory");
        parser->failed = true;
    }
    if (!parser->failed) {
        result =
            sl_expression_character(parser->builder, (const sl_character_range *)(void *)set->ranges.data,
                                    (int32_t)(set->ranges.length / sizeof(sl_character_range)), negated);
    }
    sl_buffer_free(&set->ranges);
    return result;
}

static bool read_member(parser *parser, set *set, uint32_t *out, bool *is_set) {
    *is_set = false;
    if (peek(parser, 0) == '\\') {
        return read_escape(parser, true, set, out, is_set);
    }
    if (peek(parser, 0) == '[' &&
        (peek(parser, 1) == ':' || peek(parser, 1) == '.' || peek(parser, 1) == '=')) {
        fail_at(parser, parser->at, "POSIX classes such as [:alpha:] are not supported");
        return false;
    }
    return read_plain(parser, out);
}

static sl_expression parse_class(parser *parser) {
    set set = {{0}};
    const char *start = parser->at++;
    bool negated = peek(parser, 0) == '^';
    parser->at += negated;
    if (peek(parser, 0) == ']') {
        return fail_at(parser, start, "a class that is empty, or begins with ]: write \\]");
    }
    while (!parser->failed && peek(parser, 0) != ']') {
        uint32_t first, last;
        bool is_set, is_last_set;
        const char *from = parser->at;
        if (peek(parser, 0) < 0) {
            fail_at(parser, start, "a class is not closed");
            break;
        }
        if (!read_member(parser, &set, &first, &is_set) || is_set) {
            continue;
        }
        last = first;
        if (peek(parser, 0) == '-' && peek(parser, 1) != ']' && peek(parser, 1) >= 0) {
            const char *dash = parser->at++;
            size_t had = set.ranges.length;
            if (!read_member(parser, &set, &last, &is_last_set)) {
                break;
            }
            if (is_last_set) { /* the hyphen stands for itself */
                parser->at = dash;
                set.ranges.length = had;
                last = first;
            } else if (last < first) {
                fail_at(parser, from, "a range ends before it begins");
            }
        }
        add(&set, first, last);
    }
    parser->at++;
    return finish_set(parser, &set, negated);
}

/* ---- expressions
 * --------------------------------------------------------------------------------------------- */

static sl_expression parse_choice(parser *parser);

/* What stands behind "(?" and is refused. */
static const struct {
    const char *opening, *what;
} GROUPS[] = {
    {"(?=", "lookahead (?=...) is not supported"},
    {"(?!", "negative lookahead (?!...) is not supported"},
    {"(?<=", "lookbehind (?<=...) is not supported"},
    {"(?<!", "negative lookbehind (?<!...) is not supported"},
    {"(?>", "atomic groups (?>...) are not supported"},
    {"(?P=", "backreferences (?P=name) are not supported"},
    {"(?#", "comments (?#...) are not supported"},
    {"(?(", "conditions (?(...)...) are not supported"},
    {"(?R", "recursion (?R) is not supported"},
    {"(?P>", "recursion (?P>name) is not supported"},
    {"(?&", "recursion (?&name) is not supported"},
    {"(*", "verbs (*...) are not supported"},
};

static bool skip_opening(parser *parser) {
    for (size_t i = 0; i < sizeof(GROUPS) / sizeof(*GROUPS); i++) {
        if (follows(parser, GROUPS[i].opening)) {
            fail_at(parser, parser->at, GROUPS[i].what);
            return false;
        }
    }
    const char *start = parser->at;
    if (follows(parser, "(?:")) {
        parser->at += 3;
        return true;
    }
    if (!follows(parser, "(?")) {
        parser->at++;
        return true;
    }
    const bool is_digit = peek(parser, 2) >= '0' && peek(parser, 2) <= '9';
    if (is_digit) {
        fail_at(parser, start, "recursion (?1) is not supported");
        return false;
    }
    if (!follows(parser, "(?P<") && !follows(parser, "(?<")) {
        fail_at(parser, start, "flags within a pattern are not supported");
        return false;
    }
    parser->at += follows(parser, "(?P<") ? 4 : 3;
    while (peek(parser, 0) == '_' || hex_digit(peek(parser, 0)) >= 0 ||
           ((peek(parser, 0) | 0x20) >= 'a' && (peek(parser, 0) | 0x20) <= 'z')) {
        parser->at++;
    }
    if (peek(parser, 0) != '>') {
        fail_at(parser, start, "a group's name does not end with >");
        return false;
    }
    parser->at++;
    return true;
}

static sl_expression parse_group(parser *parser) {
    const char *start = parser->at;
    if (parser->depth >= DEEPEST) {
        return fail_at(parser, start, "groups are nested too deep");
    }
    if (peek(parser, 1) >= 0 && !skip_opening(parser)) {
        return SL_NO_EXPRESSION;
    }
    parser->at += parser->at == start;
    parser->depth++;
    sl_expression inner = parse_choice(parser);
    parser->depth--;
    if (!parser->failed && peek(parser, 0) != ')') {
        return fail_at(parser, start, "a group is not closed");
    }
    parser->at++;
    return inner;
}

/* {m}, {m,} or {m,n} at the parser's place: true, and behind it. What else begins with a brace is text. */
static bool read_counts(parser *parser, int64_t counts[2]) {
    const char *at = parser->at + 1;
    int number = 0;
    bool any[2] = {false, false};
    counts[0] = counts[1] = 0;
    for (; at < parser->end && *at != '}'; at++) {
        if (*at == ',' && number == 0) {
            number = 1;
        } else if (*at >= '0' && *at <= '9') {
            counts[number] =
                counts[number] > (int64_t)1 << 40 ? counts[number] : counts[number] * 10 + (*at - '0');
            any[number] = true;
        } else {
            return false;
        }
    }
    if (at == parser->end || (!any[0] && !any[1])) {
        return false;
    }
    if (!any[0]) {
        fail_at(parser, parser->at, "a repetition {,n} is read differently: write {0,n}");
        return false;
    }
    counts[1] = number == 0 ? counts[0] : any[1] ? counts[1] : -1;
    if (counts[1] >= 0 && counts[1] < counts[0]) {
        fail_at(parser, parser->at, "a repetition ends below where it begins");
        return false;
    }
    parser->at = at + 1;
    return true;
}

static bool begins_quantifier(parser *parser) {
    int64_t counts[2];
    const char *at = parser->at;
    int c = peek(parser, 0);
    bool is = c == '*' || c == '+' || c == '?' || (c == '{' && read_counts(parser, counts));
    parser->at = at;
    return is;
}

static sl_expression parse_quantifier(parser *parser, sl_expression item, const char *start) {
    int64_t counts[2] = {0, -1};
    int c = peek(parser, 0);
    if (!begins_quantifier(parser)) {
        return item;
    }
    if (c == '{') {
        read_counts(parser, counts);
    } else {
        parser->at++;
        counts[0] = c == '+';
        counts[1] = c == '?' ? 1 : -1;
    }
    if (peek(parser, 0) == '+') {
        return fail_at(parser, start, "possessive repetitions are not supported");
    }
    parser->at += peek(parser, 0) == '?'; /* lazy: the same texts */
    if (begins_quantifier(parser)) {
        return fail_at(parser, parser->at, "there is nothing to repeat");
    }
    return parser->failed ? SL_NO_EXPRESSION
                          : sl_expression_repeat(parser->builder, item, counts[0], counts[1]);
}

static sl_expression parse_atom(parser *parser) {
    int c = peek(parser, 0);
    const char *start = parser->at;
    if (c == '(') {
        return parse_group(parser);
    }
    if (c == '[') {
        return parse_class(parser);
    }
    if (c == '.') {
        parser->at++;
        return sl_expression_character(parser->builder, LINES, sizeof(LINES) / sizeof(*LINES), true);
    }
    if (c == '^' || c == '$') {
        parser->at++;
        if (begins_quantifier(parser)) {
            return fail_at(parser, start, "an anchor is repeated");
        }
        return sl_expression_leaf(parser->builder, c == '^' ? SL_EXPRESSION_BEGIN : SL_EXPRESSION_END);
    }
    if (begins_quantifier(parser)) {
        return fail_at(parser, start, "there is nothing to repeat");
    }
    set set = {{0}};
    uint32_t character = 0;
    bool is_set = false;
    char encoded[4];
    if (c == '\\' ? !read_escape(parser, false, &set, &character, &is_set)
                  : !read_plain(parser, &character)) {
        sl_buffer_free(&set.ranges);
        return SL_NO_EXPRESSION;
    }
    if (is_set) {
        return finish_set(parser, &set, false);
    }
    return sl_expression_literal(parser->builder, encoded, sl_utf8_encode(character, encoded));
}

static bool append(parser *parser, sl_buffer *list, sl_expression item) {
    sl_buffer_append(list, &item, sizeof(item));
    if (list->failed && !parser->failed) {
        sl_fail(parser->error, SL_ERR_NOMEM, "pattern: out of memory");
        parser->failed = true;
    }
    return !parser->failed;
}

static sl_expression parse_sequence(parser *parser) {
    sl_buffer items = {0};
    sl_expression result = SL_NO_EXPRESSION;
    while (!parser->failed && peek(parser, 0) >= 0 && peek(parser, 0) != '|' && peek(parser, 0) != ')') {
        const char *start = parser->at;
        sl_expression item = parse_atom(parser);
        if (parser->failed || !append(parser, &items, parse_quantifier(parser, item, start))) {
            break;
        }
    }
    if (!parser->failed) {
        result = sl_expression_sequence(parser->builder, (const sl_expression *)(void *)items.data,
                                        (int32_t)(items.length / sizeof(sl_expression)));
    }
    sl_buffer_free(&items);
    return result;
}

static sl_expression parse_choice(parser *parser) {
    sl_buffer choices = {0};
    sl_expression result = SL_NO_EXPRESSION;
    while (append(parser, &choices, parse_sequence(parser)) && peek(parser, 0) == '|') {
        parser->at++;
    }
    if (!parser->failed) {
        result = sl_expression_choice(parser->builder, (const sl_expression *)(void *)choices.data,
                                      (int32_t)(choices.length / sizeof(sl_expression)));
    }
    sl_buffer_free(&choices);
    return result;
}

sl_expression sl_expression_regex(sl_grammar_builder *builder, const char *text, size_t count, bool anchored,
                                  sl_error *error) {
    parser parser = {.builder = builder, .begin = text, .at = text, .end = text + count, .error = error};
    sl_expression result = parse_choice(&parser);
    if (!parser.failed && parser.at < parser.end) {
        fail_at(&parser, parser.at, "a parenthesis is closed that was not opened");
    }
    if (!parser.failed) {
        if (!anchored) {
            sl_expression any =
                sl_expression_repeat(builder, sl_expression_character(builder, NULL, 0, true), 0, -1);
            result = sl_expression_sequence(builder, (sl_expression[]){any, result, any}, 3);
        }
        result = sl_expression_scope(builder, result);
        if (result < 0 && sl_grammar_builder_error(builder)->code) {
            sl_fail(error, sl_grammar_builder_error(builder)->code, "%s",
                    sl_grammar_builder_error(builder)->message);
        }
    }
    return parser.failed ? SL_NO_EXPRESSION : result;
}
