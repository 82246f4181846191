#include "body.h"

#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(http_error *error, const char *format, va_list arguments) {
    *error = (http_error){.status = 400, .type = "invalid_request_error"};
    vsnprintf(error->message, sizeof error->message, format, arguments);
}

int body_refuse(http_error *error, const char *format, ...) {
    static const char PATH[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]";
    va_list arguments;
    va_start(arguments, format);
    refuse(error, format, arguments);
    va_end(arguments);
    snprintf(error->param, sizeof error->param, "%.*s", (int)strspn(error->message, PATH), error->message);
    return -1;
}

int body_refuse_as(http_error *error, const char *param, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    refuse(error, format, arguments);
    va_end(arguments);
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    return -1;
}

static int no_memory(http_error *error) {
    *error = (http_error){.status = 500, .type = "server_error", .message = "out of memory"};
    return -1;
}

/* ---- the scan: all rules of RFC 8259 and our bounds, in one pass without recursion or memory ---- */

typedef enum expectation {
    EXPECT_VALUE,
    EXPECT_FIRST, /* of an array, or its end */
    EXPECT_KEY,
    EXPECT_FIRST_KEY, /* of an object, or its end */
    EXPECT_COLON,
    EXPECT_MORE, /* a comma, or the end of what is open */
    EXPECT_END,
} expectation;

typedef struct scanner {
    const char *text;
    size_t length, at;
    size_t keys, values, depth;
    expectation next;
    bool objects[BODY_DEPTH]; /* of what is open: whether it is an object */
    const char *fault;        /* what is wrong at `at` */
} scanner;

static bool fault(scanner *s, const char *words) {
    s->fault = words;
    return false;
}

static unsigned char byte_at(const scanner *s, size_t at) {
    return at < s->length ? (unsigned char)s->text[at] : 0;
}

/* The code unit of \uXXXX at `at`, or -1. */
static int scan_unit(const scanner *s, size_t at) {
    int unit = 0;
    if (byte_at(s, at) != '\\' || byte_at(s, at + 1) != 'u') {
        return -1;
    }
    for (size_t i = at + 2; i < at + 6; i++) {
        unsigned char c = byte_at(s, i);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            return -1;
        }
        unit = unit * 16 + digit;
    }
    return unit;
}

static bool scan_escape(scanner *s) {
    unsigned char kind = byte_at(s, s->at + 1);
    if (kind != 'u') {
        if (!kind || !strchr("\"\\/bfnrt", kind)) {
            return fault(s, "an escape that JSON does not have");
        }
        s->at += 2;
        return true;
    }
    int unit = scan_unit(s, s->at);
    if (unit < 0) {
        return fault(s, "\\u without four hexadecimal digits");
    }
    if (unit == 0) {
        return fault(s, "\\u0000, which texts cannot hold");
    }
    if (unit >= 0xdc00 && unit <= 0xdfff) {
        return fault(s, "the second half of a surrogate pair without the first");
    }
    if (unit >= 0xd800 && unit <= 0xdbff) {
        int second = scan_unit(s, s->at + 6);
        if (second < 0xdc00 || second > 0xdfff) {
            return fault(s, "the first half of a surrogate pair without the second");
        }
        s->at += 6;
    }
    s->at += 6;
    return true;
}

static bool scan_string(scanner *s) {
    s->at++;
    while (s->at < s->length) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c == '\\') {
            if (!scan_escape(s)) {
                return false;
            }
        } else if (c < 0x20) {
            return fault(s, "a control character in a string");
        } else if (c < 0x80) {
            s->at++;
        } else {
            size_t skip, size = text_character(s->text + s->at, s->length - s->at, &skip);
            if (!size) {
                return fault(s, "bytes that are not UTF-8");
            }
            s->at += size;
        }
    }
    return fault(s, "the text ends within a string");
}

static size_t scan_digits(scanner *s) {
    size_t from = s->at;
    while (byte_at(s, s->at) >= '0' && byte_at(s, s->at) <= '9') {
        s->at++;
    }
    return s->at - from;
}

static bool scan_number(scanner *s) {
    enum { LONGEST = 512 };
    size_t from = s->at;
    bool whole = true;
    s->at += byte_at(s, s->at) == '-';
    bool zero = byte_at(s, s->at) == '0';
    size_t digits = scan_digits(s);
    if (!digits || (zero && digits > 1)) {
        return fault(s, "a number with no digit, or with a 0 before others");
    }
    if (byte_at(s, s->at) == '.') {
        whole = false;
        s->at++;
        if (!scan_digits(s)) {
            return fault(s, "a number without a digit after its point");
        }
    }
    if (byte_at(s, s->at) == 'e' || byte_at(s, s->at) == 'E') {
        whole = false;
        s->at++;
        s->at += byte_at(s, s->at) == '+' || byte_at(s, s->at) == '-';
        if (!scan_digits(s)) {
            return fault(s, "a number without a digit in its exponent");
        }
    }
    size_t length = s->at - from;
    char number[LONGEST + 1];
    s->at = from;
    if (length > LONGEST) {
        return fault(s, "a number of more than 512 characters");
    }
    memcpy(number, s->text + from, length);
    number[length] = '\0';
    errno = 0;
    if (whole) {
        strtoll(number, NULL, 10);
    }
    if (errno == ERANGE) {
        return fault(s, "a whole number outside 64 bits");
    }
    if (!whole && !isfinite(strtod(number, NULL))) {
        return fault(s, "a number too large for a double");
    }
    s->at = from + length;
    return true;
}

static bool scan_word(scanner *s) {
    static const char *const WORDS[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        size_t length = strlen(WORDS[i]);
        if (s->length - s->at >= length && memcmp(s->text + s->at, WORDS[i], length) == 0) {
            s->at += length;
            return true;
        }
    }
    return fault(s, "something that begins no JSON value");
}

static void scan_closed(scanner *s) {
    s->next = s->depth ? EXPECT_MORE : EXPECT_END;
}

static bool scan_value(scanner *s) {
    unsigned char c = (unsigned char)s->text[s->at];
    if (++s->values > BODY_VALUES) {
        return fault(s, "too many values");
    }
    if (c == '{' || c == '[') {
        if (s->depth == BODY_DEPTH) {
            return fault(s, "arrays and objects nested too deeply");
        }
        s->objects[s->depth++] = c == '{';
        s->next = c == '{' ? EXPECT_FIRST_KEY : EXPECT_FIRST;
        s->at++;
        return true;
    }
    bool well = c == '"'                             ? scan_string(s)
                : c == '-' || (c >= '0' && c <= '9') ? scan_number(s)
                                                     : scan_word(s);
    scan_closed(s);
    return well;
}

static bool scan_key(scanner *s) {
    if (s->text[s->at] != '"') {
        return fault(s, "the name of a member is missing");
    }
    if (++s->keys > BODY_KEYS) {
        return fault(s, "too many members");
    }
    s->next = EXPECT_COLON;
    return scan_string(s);
}

static bool scan_close(scanner *s) {
    s->at++;
    s->depth--;
    scan_closed(s);
    return true;
}

/* One step at a byte that is no white space. */
static bool scan_step(scanner *s) {
    unsigned char c = (unsigned char)s->text[s->at];
    switch (s->next) {
    case EXPECT_FIRST:
        return c == ']' ? scan_close(s) : scan_value(s);
    case EXPECT_VALUE:
        return scan_value(s);
    case EXPECT_FIRST_KEY:
        return c == '}' ? scan_close(s) : scan_key(s);
    case EXPECT_KEY:
        return scan_key(s);
    case EXPECT_COLON:
        if (c != ':') {
            return fault(s, "a colon is missing");
        }
        s->next = EXPECT_VALUE;
        s->at++;
        return true;
    case EXPECT_MORE:
        if (c == (s->objects[s->depth - 1] ? '}' : ']')) {
            return scan_close(s);
        }
        if (c != ',') {
            return fault(s, "a comma or a closing bracket is missing");
        }
        s->next = s->objects[s->depth - 1] ? EXPECT_KEY : EXPECT_VALUE;
        s->at++;
        return true;
    case EXPECT_END:
        break;
    }
    return fault(s, "more text after the value");
}

static bool scan(scanner *s) {
    for (; s->at < s->length;) {
        char c = s->text[s->at];
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
            s->at++;
        } else if (!scan_step(s)) {
            return false;
        }
    }
    return s->next == EXPECT_END || fault(s, "the text ends too early");
}

static int refuse_text(const scanner *s, http_error *error) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < s->at; i++) {
        line += s->text[i] == '\n';
        column = s->text[i] == '\n' ? 1 : column + 1;
    }
    return body_refuse_as(error, NULL,
                          "the body is not JSON that can be read: line %zu, column %zu (byte %zu): %s", line,
                          column, s->at, s->fault);
}

int body_parse(const char *bytes, size_t length, json_t **root, http_error *error) {
    *root = NULL;
    scanner s = {.text = bytes, .length = length};
    if (length >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        s.at = 3; /* a byte order mark, which RFC 8259 allows to skip */
    }
    size_t begin = s.at;
    while (s.at < length && strchr(" \n\r\t", s.text[s.at]) && s.text[s.at]) {
        s.at++;
    }
    if (s.at == length) {
        return body_refuse_as(error, NULL, "the body is empty; it must be a JSON object");
    }
    if (!scan(&s)) {
        return refuse_text(&s, error);
    }
    /* What the scan has passed fails here only without memory. */
    json_t *value = json_loadb(bytes + begin, length - begin, JSON_DECODE_ANY, NULL);
    if (!value) {
        return no_memory(error);
    }
    if (!json_is_object(value)) {
        body_refuse_as(error, NULL, "the body must be a JSON object, not %s", body_type(value));
        json_decref(value);
        return -1;
    }
    *root = value;
    return 0;
}

/* ---- fields ---- */

const char *body_type(const json_t *value) {
    if (!value) {
        return "nothing";
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number with a fraction or an exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

typedef struct reading {
    const char *path;
    const field *field;
    const json_t *value;
    http_error *error;
} reading;

static int refuse_type(const reading *r, const char *wanted) {
    return body_refuse(r->error, "%s%s must be %s, not %s", r->path, r->field->name, wanted,
                       body_type(r->value));
}

/* A bound beyond these is none. */
static const double NO_LEAST = -9.2e18, NO_MOST = 9.2e18;

static int refuse_range(const reading *r, const char *kind) {
    const field *f = r->field;
    char range[96] = "";
    if (f->least > NO_LEAST && f->most < NO_MOST) {
        snprintf(range, sizeof range, " from %.15g to %.15g", f->least, f->most);
    } else if (f->least > NO_LEAST) {
        snprintf(range, sizeof range, " of at least %.15g", f->least);
    } else if (f->most < NO_MOST) {
        snprintf(range, sizeof range, " of at most %.15g", f->most);
    }
    if (json_is_number(r->value)) {
        return body_refuse(r->error, "%s%s must be %s%s", r->path, f->name, kind, range);
    }
    return body_refuse(r->error, "%s%s must be %s%s, not %s", r->path, f->name, kind, range,
                       body_type(r->value));
}

static int read_whole(const reading *r, int64_t *target) {
    const field *f = r->field;
    double real = json_number_value(r->value);
    bool fits = json_is_integer(r->value) ||
                (json_is_real(r->value) && real == trunc(real) && real >= -0x1p63 && real < 0x1p63);
    if (!fits || real < f->least || real > f->most) {
        return refuse_range(r, "a whole number");
    }
    *target = json_is_integer(r->value) ? json_integer_value(r->value) : (int64_t)real;
    return 0;
}

static int read_real(const reading *r, double *target) {
    double real = json_number_value(r->value);
    if (!json_is_number(r->value) || real < r->field->least || real > r->field->most) {
        return refuse_range(r, "a number");
    }
    *target = real;
    return 0;
}

static int read_text(const reading *r, const char **target) {
    const field *f = r->field;
    if (!json_is_string(r->value)) {
        return refuse_type(r, "a string");
    }
    const char *string = json_string_value(r->value);
    if (f->most > 0) {
        size_t characters = 0;
        for (const char *c = string; *c; c++) {
            characters += ((unsigned char)*c & 0xc0) != 0x80;
        }
        if ((double)characters < f->least || (double)characters > f->most) {
            return body_refuse(r->error, "%s%s must have %.15g to %.15g characters", r->path, f->name,
                               f->least, f->most);
        }
    }
    *target = string;
    return 0;
}

/* Calls `match` for each of the parts of `choices`; true when one did. */
static bool any_choice(const char *choices,
                       bool (*match)(const char *part, size_t length, const json_t *value),
                       const json_t *value) {
    for (const char *part = choices; part && *part;) {
        size_t length = strcspn(part, "|");
        if (match(part, length, value)) {
            return true;
        }
        part += length + (part[length] == '|');
    }
    return false;
}

static bool is_text(const char *part, size_t length, const json_t *value) {
    return json_string_length(value) == length && memcmp(json_string_value(value), part, length) == 0;
}

static bool is_value(const char *part, size_t length, const json_t *value) {
    json_t *choice = json_loadb(part, length, JSON_DECODE_ANY, NULL);
    bool equal = json_is_number(choice) && json_is_number(value)
                     ? json_number_value(choice) == json_number_value(value)
                     : json_equal(choice, value);
    json_decref(choice);
    return equal;
}

static int read_choice(const reading *r, const char **target) {
    if (!json_is_string(r->value)) {
        return refuse_type(r, "a string");
    }
    if (!any_choice(r->field->choices, is_text, r->value)) {
        return body_refuse(r->error, "%s%s must be one of %s", r->path, r->field->name, r->field->choices);
    }
    *target = json_string_value(r->value);
    return 0;
}

static int read_field(const reading *r, void *target) {
    switch (r->field->kind) {
    case FIELD_BOOL:
        if (!json_is_boolean(r->value)) {
            return refuse_type(r, "true or false");
        }
        *(bool *)target = json_is_true(r->value);
        return 0;
    case FIELD_WHOLE:
        return read_whole(r, target);
    case FIELD_REAL:
        return read_real(r, target);
    case FIELD_TEXT:
        return read_text(r, target);
    case FIELD_CHOICE:
        return read_choice(r, target);
    case FIELD_ARRAY:
        if (!json_is_array(r->value)) {
            return refuse_type(r, "an array");
        }
        break;
    case FIELD_OBJECT:
        if (!json_is_object(r->value)) {
            return refuse_type(r, "an object");
        }
        break;
    case FIELD_ANY:
        break;
    case FIELD_UNSUPPORTED:
        return any_choice(r->field->choices, is_value, r->value)
                   ? 0
                   : body_refuse(r->error, "%s%s is not supported", r->path, r->field->name);
    }
    *(const json_t **)target = r->value;
    return 0;
}

int body_fields(const json_t *object, const char *path, const field *fields, size_t count, void *target,
                http_error *error) {
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        reading r = {.path = path, .field = &fields[i], .value = value, .error = error};
        if (value && !json_is_null(value) && read_field(&r, (char *)target + fields[i].offset)) {
            return -1;
        }
    }
    return 0;
}
