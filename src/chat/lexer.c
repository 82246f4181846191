#include "chat/lexer.h"

#include "chat/value.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct lexer {
    sl_jinja_source *source;
    sl_view text;
    size_t at;
    uint32_t line;
    sl_jinja_token *tokens;
    size_t count, capacity;
    char open[SL_JINJA_NESTING]; /* the closing brackets that are due */
    size_t open_count;
} lexer;

int sl_jinja_source_fail(sl_jinja_source *source, int code, uint32_t line, const char *format, ...) {
    char rule[SL_ERROR_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rule, sizeof rule, format, arguments);
    va_end(arguments);
    source->code = code;
    return sl_fail(source->error, code, "%s: line %u: %s", source->name, line, rule);
}

static int fail(lexer *in, const char *rule) {
    return sl_jinja_source_fail(in->source, SL_ERR_FORMAT, in->line, "%s", rule);
}

static int no_memory(lexer *in) {
    return sl_jinja_source_fail(in->source, SL_ERR_NOMEM, in->line, "out of memory");
}

static int push(lexer *in, sl_jinja_token_kind kind, sl_view text) {
    if (in->count == in->capacity) {
        size_t capacity = in->capacity ? in->capacity * 2 : 256;
        if (capacity > SL_JINJA_TOKENS) {
            return sl_jinja_source_fail(in->source, SL_ERR_LIMIT, in->line, "more than %d tokens",
                                        SL_JINJA_TOKENS);
        }
        sl_jinja_token *tokens = sl_arena_alloc(in->source->arena, capacity, sizeof *tokens);
        if (!tokens) {
            return no_memory(in);
        }
        if (in->count) {
            memcpy(tokens, in->tokens, in->count * sizeof *tokens);
        }
        in->tokens = tokens;
        in->capacity = capacity;
    }
    in->tokens[in->count++] = (sl_jinja_token){.kind = kind, .line = in->line, .text = text};
    return 0;
}

static char peek(const lexer *in, size_t ahead) {
    return in->at + ahead < in->text.length ? in->text.data[in->at + ahead] : 0;
}

static sl_view rest(const lexer *in) {
    return (sl_view){in->text.data + in->at, in->text.length - in->at};
}

static void advance(lexer *in, size_t count) {
    for (size_t i = 0; i < count; i++) {
        in->line += in->text.data[in->at++] == '\n';
    }
}

static void skip_space(lexer *in) {
    size_t left = sl_jinja_strip(rest(in), (sl_view){0}, 1).length;
    advance(in, in->text.length - in->at - left);
}

static bool at_text(const lexer *in, const char *text) {
    size_t length = strlen(text);
    return in->text.length - in->at >= length && memcmp(in->text.data + in->at, text, length) == 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

/* ---- text between tags ---- */

/* Text before a tag: a "-" in the tag strips all white space, no sign strips the indentation of a tag that is
 * the first thing on its line (not of a print). line_start: does `text` begin at the start of a line? */
static sl_view before_tag(sl_view text, char sign, bool print, bool line_start) {
    if (sign == '-') {
        return sl_jinja_strip(text, (sl_view){0}, 2);
    }
    if (sign == '+' || print) {
        return text;
    }
    size_t line = text.length;
    while (line > 0 && text.data[line - 1] != '\n') {
        line--;
    }
    sl_view indent = {text.data + line, text.length - line};
    if ((line > 0 || line_start) && sl_jinja_strip(indent, (sl_view){0}, 1).length == 0) {
        text.length = line;
    }
    return text;
}

/* Consumes a sign before the tag's end and, as trim_blocks asks, one newline after it. False: not at the end.
 */
static bool tag_end(lexer *in, const char *end, bool plus) {
    char sign = peek(in, 0);
    bool signed_end =
        (sign == '-' || (sign == '+' && plus)) && peek(in, 1) == end[0] && peek(in, 2) == end[1];
    if (!signed_end && !(sign == end[0] && peek(in, 1) == end[1])) {
        return false;
    }
    advance(in, signed_end ? 3 : 2);
    if (signed_end && sign == '-') {
        skip_space(in);
    } else if (!signed_end && end[0] != '}' && peek(in, 0) == '\n') {
        advance(in, 1);
    }
    return true;
}

static char sign_at(const lexer *in, size_t ahead) {
    char sign = peek(in, ahead);
    return sign == '-' || sign == '+' ? sign : 0;
}

static int comment(lexer *in) {
    advance(in, sign_at(in, 2) ? 3 : 2);
    while (in->at < in->text.length) {
        if (tag_end(in, "#}", true)) {
            return 0;
        }
        advance(in, 1);
    }
    return fail(in, "missing end of comment tag");
}

/* At "{%": moves behind "{% word" and gives true when that is what stands here. */
static bool block_word(lexer *in, const char *word) {
    lexer saved = *in;
    advance(in, sign_at(in, 2) ? 3 : 2);
    skip_space(in);
    if (at_text(in, word)) {
        advance(in, strlen(word));
        skip_space(in);
        return true;
    }
    in->at = saved.at;
    in->line = saved.line;
    return false;
}

/* At "{%": a whole raw block. *taken: whether it was one. */
static int raw_block(lexer *in, bool *taken) {
    size_t at = in->at;
    uint32_t line = in->line;
    *taken = block_word(in, "raw") && (at_text(in, "%}") || at_text(in, "-%}"));
    if (!*taken) {
        in->at = at;
        in->line = line;
        return 0;
    }
    bool strip = peek(in, 0) == '-';
    advance(in, strip ? 3 : 2);
    if (strip) {
        skip_space(in);
    }
    size_t start = in->at;
    while (in->at < in->text.length) {
        if (!at_text(in, "{%")) {
            advance(in, 1);
            continue;
        }
        char sign = sign_at(in, 2);
        size_t end = in->at;
        uint32_t end_line = in->line;
        if (block_word(in, "endraw") && tag_end(in, "%}", true)) {
            sl_view body = {in->text.data + start, end - start};
            bool line_start = start == 0 || in->text.data[start - 1] == '\n';
            return push(in, SL_JINJA_TOKEN_DATA, before_tag(body, sign, false, line_start));
        }
        in->at = end;
        in->line = end_line;
        advance(in, 2);
    }
    return fail(in, "missing end of raw directive");
}

/* ---- inside tags ---- */

static int integer_token(lexer *in) {
    static const struct {
        char letter;
        int base;
    } prefixes[] = {{'b', 2}, {'o', 8}, {'x', 16}};
    int base = 10;
    size_t length = 0;
    for (size_t i = 0; i < 3 && peek(in, 0) == '0'; i++) {
        if ((peek(in, 1) | 0x20) == prefixes[i].letter) {
            base = prefixes[i].base;
            length = 2;
        }
    }
    int64_t value = 0;
    bool any = false;
    for (;; length++) {
        char c = peek(in, length);
        if (c == '_') {
            continue;
        }
        int digit = is_digit(c)                              ? c - '0'
                    : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                             : 99;
        if (digit >= base) {
            break;
        }
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
            return fail(in, "an integer does not fit in 64 bits");
        }
        any = true;
    }
    if (!any || is_name(peek(in, length)) || (base == 10 && value > 0 && peek(in, 0) == '0')) {
        return fail(in, "malformed number");
    }
    if (push(in, SL_JINJA_TOKEN_INTEGER, (sl_view){in->text.data + in->at, length})) {
        return in->source->code;
    }
    in->tokens[in->count - 1].integer = value;
    advance(in, length);
    return 0;
}

static size_t digits_from(const lexer *in, size_t ahead) {
    size_t length = 0;
    while (is_digit(peek(in, ahead + length)) || (length && peek(in, ahead + length) == '_')) {
        length++;
    }
    return length;
}

/* Digits with a fraction, an exponent or both; 0 when no float stands here. */
static size_t float_length(const lexer *in) {
    if (in->at > 0 && in->text.data[in->at - 1] == '.') {
        return 0;
    }
    size_t length = digits_from(in, 0), whole = length;
    if (peek(in, length) == '.' && is_digit(peek(in, length + 1))) {
        length += 1 + digits_from(in, length + 1);
    }
    if ((peek(in, length) | 0x20) == 'e') {
        size_t sign = peek(in, length + 1) == '+' || peek(in, length + 1) == '-';
        size_t digits = digits_from(in, length + 1 + sign);
        length += digits ? 1 + sign + digits : 0;
    }
    return length > whole ? length : 0;
}

static int number_token(lexer *in) {
    size_t length = float_length(in);
    if (length == 0) {
        return integer_token(in);
    }
    sl_view text = {in->text.data + in->at, length};
    double value;
    if (!sl_jinja_parse_float(text, &value)) {
        return fail(in, "malformed number");
    }
    if (push(in, SL_JINJA_TOKEN_FLOAT, text)) {
        return in->source->code;
    }
    in->tokens[in->count - 1].real = value;
    advance(in, length);
    return 0;
}

/* The value of `count` digits to a base at data; false when there are fewer. */
static bool escape_digits(const char *data, size_t left, size_t count, int base, uint32_t *value) {
    *value = 0;
    for (size_t i = 0; i < count; i++) {
        char c = i < left ? data[i] : 0;
        int digit = is_digit(c)                              ? c - '0'
                    : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                             : 99;
        if (digit >= base) {
            return false;
        }
        *value = *value * (uint32_t)base + (uint32_t)digit;
    }
    return true;
}

/* One escape after its backslash, as Python's unicode-escape. Gives the bytes read, or 0 for a malformed one.
 */
static size_t unescape(const char *data, size_t left, char out[4], size_t *written) {
    static const char letters[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    static const struct {
        char letter;
        uint8_t digits;
    } wide[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    uint32_t value;
    *written = 0;
    if (data[0] == '\n') {
        return 1;
    }
    for (const char *pair = letters; *pair; pair += 2) {
        if (*pair == data[0]) {
            out[0] = pair[1];
            *written = 1;
            return 1;
        }
    }
    for (size_t i = 0; i < 3; i++) {
        if (data[0] == wide[i].letter) {
            bool good = escape_digits(data + 1, left - 1, wide[i].digits, 16, &value);
            *written = good ? sl_utf8_encode(value, out) : 0;
            return *written ? 1u + wide[i].digits : 0;
        }
    }
    for (size_t digits = 3; digits >= 1; digits--) {
        if (escape_digits(data, left, digits, 8, &value)) {
            *written = sl_utf8_encode(value, out);
            return digits;
        }
    }
    if (data[0] == 'N') {
        return 0;
    }
    out[0] = '\\'; /* not an escape: the backslash stays */
    out[1] = data[0];
    *written = 2;
    return 1;
}

static int string_token(lexer *in) {
    char quote = peek(in, 0);
    size_t length = 1;
    bool escapes = false;
    while (in->at + length < in->text.length && peek(in, length) != quote) {
        escapes = escapes || peek(in, length) == '\\';
        length += peek(in, length) == '\\' ? 2 : 1;
    }
    if (in->at + length >= in->text.length) {
        return fail(in, "a string is not closed");
    }
    sl_view text = {in->text.data + in->at + 1, length - 1};
    if (escapes) {
        char *copy = sl_arena_alloc(in->source->arena, text.length + 1, 1);
        size_t written = 0;
        if (!copy) {
            return no_memory(in);
        }
        for (size_t i = 0; i < text.length;) {
            if (text.data[i] != '\\') {
                copy[written++] = text.data[i++];
                continue;
            }
            char bytes[4];
            size_t count, used = unescape(text.data + i + 1, text.length - i - 1, bytes, &count);
            if (used == 0) {
                return fail(in, "a string has a malformed escape");
            }
            memcpy(copy + written, bytes, count); /* never longer than what it stands for */
            written += count;
            i += 1 + used;
        }
        text = (sl_view){copy, written};
    }
    if (push(in, SL_JINJA_TOKEN_STRING, text)) {
        return in->source->code;
    }
    advance(in, length + 1);
    return 0;
}

static int operator_token(lexer *in) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    size_t i = 0, total = sizeof operators / sizeof *operators;
    while (i < total && !at_text(in, operators[i])) {
        i++;
    }
    if (i == total) {
        return sl_jinja_source_fail(in->source, SL_ERR_FORMAT, in->line, "unexpected character 0x%02x",
                                    (unsigned char)peek(in, 0));
    }
    char c = operators[i][0];
    if (c == '(' || c == '[' || c == '{') {
        if (in->open_count == SL_JINJA_NESTING) {
            return sl_jinja_source_fail(in->source, SL_ERR_LIMIT, in->line, "brackets nested deeper than %d",
                                        SL_JINJA_NESTING);
        }
        in->open[in->open_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (in->open_count == 0 || in->open[--in->open_count] != c) {
            return sl_jinja_source_fail(in->source, SL_ERR_FORMAT, in->line, "unexpected '%c'", c);
        }
    }
    size_t length = strlen(operators[i]);
    if (push(in, SL_JINJA_TOKEN_OPERATOR, (sl_view){in->text.data + in->at, length})) {
        return in->source->code;
    }
    advance(in, length);
    return 0;
}

/* The inside of a block or print tag and its end. */
static int tag(lexer *in, bool print) {
    if (push(in, print ? SL_JINJA_TOKEN_PRINT : SL_JINJA_TOKEN_BLOCK, rest(in))) {
        return in->source->code;
    }
    advance(in, sign_at(in, 2) ? 3 : 2);
    in->open_count = 0;
    for (;;) {
        skip_space(in);
        if (in->at == in->text.length) {
            return fail(in, print ? "'{{' is not closed" : "'{%' is not closed");
        }
        uint32_t line = in->line;
        if (in->open_count == 0 && tag_end(in, print ? "}}" : "%}", !print)) {
            if (push(in, print ? SL_JINJA_TOKEN_PRINT_END : SL_JINJA_TOKEN_BLOCK_END, (sl_view){0})) {
                return in->source->code;
            }
            in->tokens[in->count - 1].line = line;
            return 0;
        }
        char c = peek(in, 0);
        int code;
        if (is_digit(c)) {
            code = number_token(in);
        } else if (is_name(c)) {
            size_t length = 1;
            while (is_name(peek(in, length))) {
                length++;
            }
            code = push(in, SL_JINJA_TOKEN_NAME, (sl_view){in->text.data + in->at, length});
            advance(in, length);
        } else {
            code = c == '\'' || c == '"' ? string_token(in) : operator_token(in);
        }
        if (code) {
            return code;
        }
    }
}

static int data_and_tag(lexer *in) {
    size_t start = in->at;
    bool line_start = start == 0 || in->text.data[start - 1] == '\n';
    size_t end = start;
    while (end < in->text.length && !(in->text.data[end] == '{' && end + 1 < in->text.length &&
                                      memchr("%{#", in->text.data[end + 1], 3))) {
        end++;
    }
    sl_view data = {in->text.data + start, end - start};
    char kind = end < in->text.length ? in->text.data[end + 1] : 0;
    if (kind) {
        char sign = end + 2 < in->text.length ? in->text.data[end + 2] : 0;
        data = before_tag(data, sign, kind == '{', line_start);
    }
    if (data.length && push(in, SL_JINJA_TOKEN_DATA, data)) {
        return in->source->code;
    }
    advance(in, end - start);
    bool raw = false;
    if (kind == '%' && (raw_block(in, &raw) || raw)) {
        return in->source->code;
    }
    return kind == 0 ? 0 : kind == '#' ? comment(in) : tag(in, kind == '{');
}

/* Newlines become \n; one at the end is dropped. */
static char *normalise(lexer *in, sl_view text, size_t *length) {
    char *copy = sl_arena_alloc(in->source->arena, text.length + 1, 1);
    *length = 0;
    for (size_t i = 0; copy && i < text.length; i++) {
        char c = text.data[i];
        if (c == '\r') {
            c = '\n';
            i += i + 1 < text.length && text.data[i + 1] == '\n';
        }
        copy[(*length)++] = c;
    }
    if (copy && *length && copy[*length - 1] == '\n') {
        --*length;
    }
    return copy;
}

int sl_jinja_lex(sl_jinja_source *source, sl_view text, sl_jinja_token **tokens) {
    lexer in = {.source = source, .line = 1};
    if (text.length > SL_JINJA_SOURCE_BYTES) {
        return sl_jinja_source_fail(source, SL_ERR_LIMIT, 1, "longer than %d bytes", SL_JINJA_SOURCE_BYTES);
    }
    for (size_t i = 0; i < text.length;) {
        uint32_t code_point;
        size_t size = sl_utf8_decode(text.data + i, text.length - i, &code_point);
        if (size == 0) {
            return sl_jinja_source_fail(source, SL_ERR_FORMAT, in.line, "not UTF-8");
        }
        in.line += code_point == '\n';
        i += size;
    }
    in.line = 1;
    in.text.data = normalise(&in, text, &in.text.length);
    if (!in.text.data) {
        return no_memory(&in);
    }
    while (in.at < in.text.length) {
        if (data_and_tag(&in)) {
            return source->code;
        }
    }
    if (push(&in, SL_JINJA_TOKEN_END, (sl_view){0})) {
        return source->code;
    }
    *tokens = in.tokens;
    return 0;
}
