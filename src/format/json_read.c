/* Reads JSON (RFC 8259) into jansson's values. Not by jansson's own parser: that one has no bound on memory,
 * and 2.14 can crash when a large text runs out of memory. Every text is read twice: first
 * only to check it and to add up what its values will take, then to make them. */
#include "format/json.h"

#include "format/recognize.h"

#include <errno.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "base/text.h"

typedef enum expectation {
    EXPECT_VALUE,
    EXPECT_FIRST_VALUE, /* of an array, or its end */
    EXPECT_KEY,
    EXPECT_FIRST_KEY, /* of an object, or its end */
    EXPECT_MORE,      /* a comma, or the end of what is open */
    EXPECT_END,
} expectation;

/* What values take with jansson 2.14 on 64-bit machines, malloc's own part included. Tables grow by doubling:
 * each entry counts twice. Texts are one byte longer than their bytes. */
enum {
    OBJECT_BYTES = 240,
    MEMBER_BYTES = 112,
    ARRAY_BYTES = 152,
    ITEM_BYTES = 16,
    STRING_BYTES = 64,
    NUMBER_BYTES = 32
};

typedef struct reader {
    const char *text;
    size_t length, at;
    bool build;          /* the second time */
    bool large_integers; /* become reals */
    bool infinity;       /* is a number */
    bool last_counts;
    uint64_t memory, most_memory;
    size_t depth;
    bool objects[SL_JSON_DEPTH]; /* of what is open: whether it is an object */
    json_t *open[SL_JSON_DEPTH]; /* borrowed from the root */
    json_t *root;
    sl_buffer key, string; /* unescaped */
    expectation next;
    int code;
    char fault[128]; /* what is wrong at `at` */
} reader;

static bool fault(reader *r, int code, const char *words) {
    r->code = code;
    snprintf(r->fault, sizeof r->fault, "%s", words);
    return false;
}

static bool no_memory(reader *r) {
    return fault(r, SL_ERR_NOMEM, "no memory to read the JSON");
}

static bool malformed(reader *r, const char *words) {
    return fault(r, SL_ERR_FORMAT, words);
}

static bool spend(reader *r, uint64_t bytes) {
    r->memory += bytes;
    return r->memory <= r->most_memory ||
           fault(r, SL_ERR_LIMIT, "more values than a file of this size may have");
}

static unsigned char byte_at(const reader *r, size_t at) {
    return at < r->length ? (unsigned char)r->text[at] : 0;
}

static void skip_space(reader *r) {
    while (r->at < r->length && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) {
        r->at++;
    }
}

/* ---- texts ---- */

/* The code unit of \uXXXX at `at`, or -1. */
static int unit_at(const reader *r, size_t at) {
    int unit = 0;
    if (byte_at(r, at) != '\\' || byte_at(r, at + 1) != 'u') {
        return -1;
    }
    for (size_t i = at + 2; i < at + 6; i++) {
        const unsigned char c = byte_at(r, i);
        const int digit = c >= '0' && c <= '9'   ? c - '0'
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

static bool read_unicode_escape(reader *r, sl_buffer *out) {
    const int unit = unit_at(r, r->at);
    uint32_t character = (uint32_t)unit;
    size_t bytes = 6;
    if (unit < 0) {
        return malformed(r, "\\u without four hexadecimal digits");
    }
    if (unit == 0) {
        return malformed(r, "\\u0000, which texts cannot hold");
    }
    if (unit >= 0xdc00 && unit <= 0xdfff) {
        return malformed(r, "the second half of a surrogate pair without the first");
    }
    if (unit >= 0xd800 && unit <= 0xdbff) {
        const int second = unit_at(r, r->at + 6);
        if (second < 0xdc00 || second > 0xdfff) {
            return malformed(r, "the first half of a surrogate pair without the second");
        }
        character = 0x10000 + (((uint32_t)unit - 0xd800) << 10) + ((uint32_t)second - 0xdc00);
        bytes = 12;
    }
    char encoded[4];
    if (r->build) {
        sl_buffer_append(out, encoded, sl_utf8_encode(character, encoded));
    }
    r->at += bytes;
    return true;
}

static bool read_escape(reader *r, sl_buffer *out) {
    static const char kinds[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char kind = (char)byte_at(r, r->at + 1);
    if (kind == 'u') {
        return read_unicode_escape(r, out);
    }
    const char *found = kind ? strchr(kinds, kind) : NULL;
    if (!found) {
        return malformed(r, "an escape that JSON does not have");
    }
    if (r->build) {
        sl_buffer_append(out, &values[found - kinds], 1);
    }
    r->at += 2;
    return true;
}

/* Bytes that stand for themselves, up to a quote, a backslash or what may not be there. */
static bool read_plain(reader *r, sl_buffer *out) {
    const size_t from = r->at;
    while (r->at < r->length) {
        const unsigned char c = (unsigned char)r->text[r->at];
        if (c == '"' || c == '\\') {
            break;
        }
        if (c < 0x20) {
            return malformed(r, "a control character in a text");
        }
        uint32_t character;
        const size_t size = c < 0x80 ? 1 : sl_utf8_decode(r->text + r->at, r->length - r->at, &character);
        if (size == 0) {
            return malformed(r, "bytes that are not UTF-8");
        }
        r->at += size;
    }
    if (r->build) {
        sl_buffer_append(out, r->text + from, r->at - from);
    }
    return r->at < r->length || malformed(r, "the end, within a text");
}

/* From its first quote; *bytes: as written in the file. */
static bool read_text(reader *r, sl_buffer *out, size_t *bytes) {
    const size_t from = ++r->at;
    sl_buffer_clear(out);
    while (byte_at(r, r->at) != '"' || r->at >= r->length) {
        if (byte_at(r, r->at) == '\\' ? !read_escape(r, out) : !read_plain(r, out)) {
            return false;
        }
    }
    *bytes = r->at++ - from;
    if (r->build && !out->failed) {
        sl_buffer_append(out, "", 0); /* has a NUL when it is empty too */
    }
    return !out->failed || no_memory(r);
}

/* ---- values ---- */

/* Puts a value where it belongs; takes the reference over. */
static bool put(reader *r, json_t *value) {
    if (!r->build) {
        return true;
    }
    if (!value) {
        return no_memory(r);
    }
    int failed = 0;
    if (r->depth == 0) {
        r->root = value;
    } else if (r->objects[r->depth - 1]) {
        failed = json_object_setn_new_nocheck(r->open[r->depth - 1], r->key.data, r->key.length, value);
    } else {
        failed = json_array_append_new(r->open[r->depth - 1], value);
    }
    return !failed || no_memory(r);
}

static bool open_container(reader *r, bool object) {
    if (r->depth == SL_JSON_DEPTH) {
        return fault(r, SL_ERR_LIMIT, "a depth of more than 64 arrays and objects");
    }
    json_t *value = !r->build ? NULL : object ? json_object() : json_array();
    if (!spend(r, object ? OBJECT_BYTES : ARRAY_BYTES) || !put(r, value)) {
        return false;
    }
    r->open[r->depth] = value;
    r->objects[r->depth++] = object;
    r->next = object ? EXPECT_FIRST_KEY : EXPECT_FIRST_VALUE;
    r->at++;
    return true;
}

static size_t skip_digits(reader *r) {
    const size_t from = r->at;
    while (byte_at(r, r->at) >= '0' && byte_at(r, r->at) <= '9') {
        r->at++;
    }
    return r->at - from;
}

/* `number` is as JSON wants it; strtod wants the locale's decimal point. */
static double real_value(char *number) {
    char *point = strchr(number, '.');
    if (point) {
        *point = localeconv()->decimal_point[0];
    }
    return strtod(number, NULL);
}

static bool read_number(reader *r) {
    enum { LONGEST = 512 };
    const size_t from = r->at;
    bool whole = true;
    r->at += byte_at(r, r->at) == '-';
    const bool zero = byte_at(r, r->at) == '0';
    const size_t digits = skip_digits(r);
    if (!digits || (zero && digits > 1)) {
        return malformed(r, "a number with no digit, or with a 0 before others");
    }
    if (byte_at(r, r->at) == '.') {
        whole = false;
        r->at++;
        if (!skip_digits(r)) {
            return malformed(r, "a number without a digit after its point");
        }
    }
    if (byte_at(r, r->at) == 'e' || byte_at(r, r->at) == 'E') {
        whole = false;
        r->at++;
        r->at += byte_at(r, r->at) == '+' || byte_at(r, r->at) == '-';
        if (!skip_digits(r)) {
            return malformed(r, "a number without a digit in its exponent");
        }
    }
    const size_t length = r->at - from;
    if (length > LONGEST) {
        return malformed(r, "a number of more than 512 characters");
    }
    char number[LONGEST + 1];
    memcpy(number, r->text + from, length);
    number[length] = '\0';
    errno = 0;
    const long long integer = whole ? strtoll(number, NULL, 10) : 0;
    if (whole && errno == ERANGE && !r->large_integers) {
        return malformed(r, "a whole number outside 64 bits");
    }
    whole = whole && errno == 0;
    if (!spend(r, NUMBER_BYTES)) {
        return false;
    }
    const double real = whole ? 0 : real_value(number);
    if (!isfinite(real)) {
        return malformed(r, "a number too large for a double");
    }
    r->next = EXPECT_MORE;
    return put(r, !r->build ? NULL : whole ? json_integer(integer) : json_real(real));
}

static bool read_word(reader *r) {
    static const char *const words[] = {"true", "false", "null", "Infinity"};
    for (int i = 0; i < (r->infinity ? 4 : 3); i++) {
        const size_t length = strlen(words[i]);
        if (r->length - r->at >= length && memcmp(r->text + r->at, words[i], length) == 0) {
            r->at += length;
            r->next = EXPECT_MORE;
            return i == 3 ? spend(r, NUMBER_BYTES) && put(r, r->build ? json_real(DBL_MAX) : NULL)
                          : put(r, i == 0   ? json_true()
                                   : i == 1 ? json_false()
                                            : json_null());
        }
    }
    return malformed(r,
                     r->at < r->length ? "something that begins no value" : "the end, where a value belongs");
}

static bool read_value(reader *r) {
    const unsigned char c = byte_at(r, r->at);
    if (r->depth > 0 && !r->objects[r->depth - 1] && !spend(r, ITEM_BYTES)) {
        return false;
    }
    if (c == '{' || c == '[') {
        return open_container(r, c == '{');
    }
    if (r->depth == 0) {
        return malformed(r, "neither an object nor an array");
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        return read_number(r);
    }
    if (c != '"') {
        return read_word(r);
    }
    size_t bytes;
    if (!read_text(r, &r->string, &bytes) || !spend(r, STRING_BYTES + bytes)) {
        return false;
    }
    r->next = EXPECT_MORE;
    return put(r, r->build ? json_stringn_nocheck(r->string.data, r->string.length) : NULL);
}

static bool read_key(reader *r) {
    size_t bytes;
    const size_t from = r->at;
    if (byte_at(r, r->at) != '"') {
        return malformed(r, "no name in quotes, where a member begins");
    }
    if (!read_text(r, &r->key, &bytes)) {
        return false;
    }
    if (bytes > SL_JSON_KEY) {
        return fault(r, SL_ERR_LIMIT, "a member's name of more than 65535 bytes");
    }
    if (r->build && !r->last_counts && json_object_getn(r->open[r->depth - 1], r->key.data, r->key.length)) {
        r->at = from;
        fault(r, SL_ERR_FORMAT, "");
        snprintf(r->fault, sizeof r->fault, "a duplicate of member '%.60s'", r->key.data);
        return false;
    }
    skip_space(r);
    if (byte_at(r, r->at) != ':') {
        return malformed(r, "no colon after a member's name");
    }
    r->at++;
    r->next = EXPECT_VALUE;
    return spend(r, MEMBER_BYTES + bytes);
}

static bool close_container(reader *r) {
    r->depth--;
    r->at++;
    r->next = EXPECT_MORE;
    return true;
}

static bool read_more(reader *r) {
    const bool object = r->objects[r->depth - 1];
    if (byte_at(r, r->at) == ',') {
        r->at++;
        r->next = object ? EXPECT_KEY : EXPECT_VALUE;
        return true;
    }
    return byte_at(r, r->at) == (object ? '}' : ']')
               ? close_container(r)
               : malformed(r, object ? "no comma or } after a member" : "no comma or ] after an item");
}

static bool step(reader *r) {
    switch (r->next) {
    case EXPECT_FIRST_KEY:
        return byte_at(r, r->at) == '}' ? close_container(r) : read_key(r);
    case EXPECT_KEY:
        return read_key(r);
    case EXPECT_FIRST_VALUE:
        return byte_at(r, r->at) == ']' ? close_container(r) : read_value(r);
    case EXPECT_MORE:
        return read_more(r);
    default:
        return read_value(r);
    }
}

static bool read_all(reader *r) {
    r->at = r->memory = 0;
    r->next = EXPECT_VALUE;
    for (;;) {
        skip_space(r);
        if (r->next == EXPECT_MORE && r->depth == 0) {
            return r->at == r->length || malformed(r, "something behind the end of the value");
        }
        if (!step(r)) {
            return false;
        }
    }
}

static int report(const reader *r, const char *name, sl_error *error) {
    size_t line = 1, column = 1;
    if (r->code == SL_ERR_NOMEM) {
        return sl_fail(error, r->code, "%s: %s", name, r->fault);
    }
    const char *instead = r->code == SL_ERR_FORMAT ? sl_recognize(r->text, r->length) : NULL;
    if (instead) {
        return sl_fail(error, r->code, "%s: %s", name, instead);
    }
    for (size_t i = 0; i < r->at && i < r->length; i++) {
        column = r->text[i] == '\n' ? 1 : column + 1;
        line += r->text[i] == '\n';
    }
    return sl_fail(error, r->code, "%s: %s: line %zu, column %zu: %s", name,
                   r->code == SL_ERR_LIMIT ? "JSON beyond a limit" : "not JSON", line, column, r->fault);
}

int sl_json_parse_as(sl_view text, unsigned flags, const char *name, json_t **json, sl_error *error) {
    *json = NULL;
    if (text.length > SL_JSON_BYTES) {
        return sl_fail(error, SL_ERR_LIMIT, "%s: %zu bytes of JSON, at most %d are read", name, text.length,
                       SL_JSON_BYTES);
    }
    const uint64_t most = SL_JSON_MEMORY_BASE + (uint64_t)text.length * SL_JSON_MEMORY_FACTOR;
    reader r = {.text = text.data,
                .length = text.length,
                .large_integers = flags & SL_JSON_LARGE_INTEGERS,
                .infinity = flags & SL_JSON_INFINITY,
                .last_counts = flags & SL_JSON_LAST_COUNTS,
                .most_memory = most < SL_JSON_MEMORY ? most : SL_JSON_MEMORY};
    bool done = read_all(&r);
    if (done) {
        r.build = true;
        done = read_all(&r);
    }
    sl_buffer_free(&r.key);
    sl_buffer_free(&r.string);
    if (!done) {
        json_decref(r.root);
        return report(&r, name, error);
    }
    *json = r.root;
    return 0;
}
