/* A request as bytes and texts: what the head of a first request looks like before libmicrohttpd sees it, and
 * what is kept of every request. The grammar is that of RFC 9112 (HTTP/1.1) and RFC 9110 (fields). */
#include "http_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool token_byte(char byte) {
    return isalnum((unsigned char)byte) || (byte && strchr("!#$%&'*+-.^_`|~", byte));
}

bool http_token(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] >= 128 || !token_byte(text[i])) {
            return false;
        }
    }
    return length > 0;
}

static bool control_byte(char byte) {
    return ((unsigned char)byte < 32 && byte != '\t') || byte == 127;
}

/* ---- the head as bytes ---- */

static head_verdict refuse(http_error *error, int status, const char *message) {
    http_error_set(error, status, message);
    return HEAD_REFUSED;
}

/* METHOD SP target SP HTTP/1.x, without the end of the line. */
static head_verdict check_request_line(const char *line, size_t length, http_error *error) {
    const char *end = line + length;
    const char *target = memchr(line, ' ', length);
    if (!target || !http_token(line, (size_t)(target - line))) {
        return refuse(error, 400, "the request line has no method");
    }
    target++;
    const char *version = memchr(target, ' ', (size_t)(end - target));
    if (!version || version == target) {
        return refuse(error, 400, "the request line has no target or no version");
    }
    for (const char *byte = target; byte < version; byte++) {
        if (control_byte(*byte) || *byte == '\t') {
            return refuse(error, 400, "the request's target has a control character");
        }
    }
    if ((size_t)(version - target) > MAX_TARGET) {
        return refuse(error, 414, "the request's target is too long");
    }
    version++;
    if (end - version != 8 || memcmp(version, "HTTP/", 5) != 0 || !isdigit((unsigned char)version[5]) ||
        version[6] != '.' || !isdigit((unsigned char)version[7])) {
        return refuse(error, 400, "the request line does not end in an HTTP version");
    }
    if (version[5] != '1') {
        return refuse(error, 505, "this server speaks HTTP/1.1 and HTTP/1.0");
    }
    return HEAD_WAIT;
}

static head_verdict check_length(const char *value, const char *end, http_error *error) {
    while (value < end && (*value == ' ' || *value == '\t')) {
        value++;
    }
    const char *digit = value;
    while (digit < end && isdigit((unsigned char)*digit)) {
        digit++;
    }
    if (digit == value || digit != end) {
        return refuse(error, 400, "Content-Length is not a number");
    }
    return end - value > 18 ? refuse(error, 413, "the body is too large") : HEAD_WAIT;
}

static head_verdict check_field(const char *line, size_t length, http_error *error) {
    const char *end = line + length;
    const char *colon = memchr(line, ':', length);
    if (!colon || !http_token(line, (size_t)(colon - line))) {
        return refuse(error, 400, "a header's name is not a token followed by a colon");
    }
    for (const char *byte = colon + 1; byte < end; byte++) {
        if (control_byte(*byte)) {
            return refuse(error, 400, "a header has a control character");
        }
    }
    static const char NAME[] = "Content-Length";
    if ((size_t)(colon - line) == sizeof NAME - 1 && strncasecmp(line, NAME, sizeof NAME - 1) == 0) {
        return check_length(colon + 1, end, error);
    }
    return HEAD_WAIT;
}

/* What has come of the first line is at least the beginning of one. */
static head_verdict check_beginning(const char *bytes, size_t length, http_error *error) {
    const char *space = memchr(bytes, ' ', length);
    const size_t method = space ? (size_t)(space - bytes) : length;
    /* The CR of the line's end may have come without its LF. */
    if (length && !http_token(bytes, method) && !(method == length && bytes[length - 1] == '\r')) {
        return refuse(error, 400, "the request line has no method");
    }
    return HEAD_WAIT;
}

/* Whether a whole head of so many bytes, fields and arguments fits libmicrohttpd's small pool, beside the
 * head of an answer. It keeps a record of up to 80 bytes for each field, argument and cookie. */
static bool fits_small(const char *bytes, size_t length, size_t lines) {
    size_t records = lines;
    for (size_t i = 0; i < length; i++) {
        records += bytes[i] == '&' || bytes[i] == ';' || bytes[i] == ',';
    }
    return length < SMALL_POOL / 3 && 2 * length + 96 * records + 2048 < SMALL_POOL;
}

head_verdict http_head_check(const char *bytes, size_t length, http_error *error) {
    size_t at = 0, lines = 0;
    for (int blank = 0; blank < 2 && at < length;
         blank++) { /* RFC 9112, 2.2: empty lines in front are skipped */
        if (bytes[at] == '\n') {
            at++;
        } else if (bytes[at] == '\r' && at + 1 < length && bytes[at + 1] == '\n') {
            at += 2;
        }
    }
    if (at < length && bytes[at] == '\r') {
        return at + 1 == length ? HEAD_WAIT : refuse(error, 400, "the request line has no method");
    }
    while (at < length) {
        const char *line = bytes + at;
        const char *end = memchr(line, '\n', length - at);
        if (!end) {
            break;
        }
        size_t size = (size_t)(end - line);
        at += size + 1;
        if (size && line[size - 1] == '\r') {
            size--;
        }
        if (size == 0 && lines > 0) {
            return fits_small(bytes, length, lines) ? HEAD_SMALL : HEAD_LARGE;
        }
        head_verdict verdict =
            lines == 0 ? check_request_line(line, size, error) : check_field(line, size, error);
        if (verdict != HEAD_WAIT) {
            return verdict;
        }
        lines++;
    }
    if (lines == 0 && check_beginning(bytes + at, length - at, error) == HEAD_REFUSED) {
        return HEAD_REFUSED;
    }
    if (length < PEEKED) {
        return HEAD_WAIT;
    }
    return lines ? HEAD_LARGE : refuse(error, 414, "the request's target is too long");
}

/* ---- lists of names and values ---- */

const char *http_next(const char *name) {
    if (!name || !*name) {
        return NULL;
    }
    const char *value = name + strlen(name) + 1;
    const char *next = value + strlen(value) + 1;
    return *next ? next : NULL;
}

const char *http_value(const char *list, const char *wanted, bool any_case) {
    for (const char *name = list && *list ? list : NULL; name; name = http_next(name)) {
        if ((any_case ? strcasecmp(name, wanted) : strcmp(name, wanted)) == 0) {
            return name + strlen(name) + 1;
        }
    }
    return NULL;
}

typedef struct collected {
    char *text; /* NULL while sizes are counted */
    size_t size;
    bool bad;
} collected;

static enum MHD_Result collect(void *context, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    collected *all = context;
    const size_t name_size = strlen(name) + 1;
    size_t value_size = value ? strlen(value) + 1 : 1;
    if (!http_token(name, name_size - 1)) {
        all->bad = true;
        return MHD_YES; /* an empty name would end the list */
    }
    for (size_t i = 0; i + 1 < value_size; i++) {
        all->bad |= control_byte(value[i]);
    }
    while (value_size > 1 && (value[value_size - 2] == ' ' || value[value_size - 2] == '\t')) {
        value_size--;
    }
    if (all->text) {
        memcpy(all->text + all->size, name, name_size);
        if (value_size > 1) {
            memcpy(all->text + all->size + name_size, value, value_size - 1);
        }
        all->text[all->size + name_size + value_size - 1] = '\0';
    }
    all->size += name_size + value_size;
    return MHD_YES;
}

static int copy_headers(exchange *exchange) {
    struct MHD_Connection *mhd = exchange->connection->mhd;
    collected all = {0};
    MHD_get_connection_values(mhd, MHD_HEADER_KIND, collect, &all);
    all.text = malloc(all.size + 1);
    if (!all.text) {
        return -1;
    }
    all.size = 0;
    MHD_get_connection_values(mhd, MHD_HEADER_KIND, collect, &all);
    all.text[all.size] = '\0';
    exchange->headers = all.text;
    if (all.bad) {
        http_error_set(&exchange->refusal, 400, "a header is malformed");
    }
    return 0;
}

/* ---- target ---- */

static int hex(char digit) {
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    digit = (char)(digit | 32);
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Decodes `length` bytes to `to`, which may be `from`; the length, or -1 for a bad escape or a NUL. */
static long decode(const char *from, size_t length, char *to, bool plus) {
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        char byte = from[i];
        if (byte == '%') {
            const int high = i + 2 < length ? hex(from[i + 1]) : -1;
            const int low = i + 2 < length ? hex(from[i + 2]) : -1;
            if (high < 0 || low < 0 || high + low == 0) {
                return -1;
            }
            byte = (char)(high * 16 + low);
            i += 2;
        } else if (byte == '+' && plus) {
            byte = ' ';
        }
        to[at++] = byte;
    }
    return (long)at;
}

/* Pairs of "a=b&c" to a list; a pair with a bad escape is left out. */
static int read_query(exchange *exchange, const char *query) {
    const size_t length = strlen(query);
    char *list = malloc(2 * length + 4);
    if (!list) {
        return -1;
    }
    size_t at = 0;
    for (const char *pair = query; *pair;) {
        const char *end = strchrnul(pair, '&');
        const char *equals = memchr(pair, '=', (size_t)(end - pair));
        const size_t name_length = (size_t)((equals ? equals : end) - pair);
        const char *value = equals ? equals + 1 : end;
        const long name = decode(pair, name_length, list + at, true);
        if (name > 0) {
            list[at + (size_t)name] = '\0';
            const size_t value_at = at + (size_t)name + 1;
            const long size = decode(value, (size_t)(end - value), list + value_at, true);
            if (size >= 0) {
                at = value_at + (size_t)size;
                list[at++] = '\0';
            }
        }
        pair = *end ? end + 1 : end;
    }
    list[at] = '\0';
    exchange->query = list;
    return 0;
}

/* Splits the target: the path decoded and without a slash at its end, the query as a list. */
static int read_target(exchange *exchange) {
    char *target = exchange->target;
    for (const char *byte = target; *byte; byte++) {
        if (control_byte(*byte) || *byte == ' ' || *byte == '\t') {
            http_error_set(&exchange->refusal, 400,
                           "the request's target has a blank or a control character");
            return 0;
        }
    }
    char *query = strchr(target, '?');
    if (query) {
        *query = '\0';
        if (read_query(exchange, query + 1)) {
            return -1;
        }
    }
    char *path = target;
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        path = strchr(strchr(target, ':') + 3, '/'); /* RFC 9112, 3.2.2: servers take it */
        if (!path) {
            path = target + strlen(target) - 1;
            *path = '/';
        }
    }
    if (*path != '/' && !(exchange->options && strcmp(path, "*") == 0)) {
        http_error_set(&exchange->refusal, 400, "the request's target is no path");
        return 0;
    }
    long length = decode(path, strlen(path), target, false);
    if (length < 0) {
        http_error_set(&exchange->refusal, 400, "the request's path has a bad escape");
        *target = '\0';
        return 0;
    }
    if (length > 1 && target[length - 1] == '/') {
        length--;
    }
    target[length] = '\0';
    return 0;
}

int http_request_read(exchange *exchange, const char *method, const char *version) {
    static const char *const METHODS[] = {"GET",    "HEAD",  "POST",  "OPTIONS", "PUT",
                                          "DELETE", "PATCH", "TRACE", "CONNECT"};
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (strcmp(method, METHODS[i]) == 0) {
            exchange->method = METHODS[i];
        }
    }
    exchange->head = strcmp(method, "HEAD") == 0;
    exchange->options = strcmp(method, "OPTIONS") == 0;
    exchange->old = strcmp(version, "HTTP/1.0") == 0;
    const size_t target_length = strlen(exchange->target);
    if (copy_headers(exchange) || read_target(exchange)) {
        return -1;
    }
    if (!http_token(method, strlen(method))) {
        http_error_set(&exchange->refusal, 400, "the request line has no method");
    } else if (target_length > MAX_TARGET) {
        http_error_set(&exchange->refusal, 414, "the request's target is too long");
    }
    return 0;
}
