/* server/http*.c: any bytes on a connection, cut into writes, against the HTTP side of the server on real
 * sockets. A reader of RFC 9112 of our own walks over the same bytes: what is ambiguous must be refused and
 * end the connection, so that nobody can hide a request in another one. Answers must be HTTP/1.1 themselves,
 * the connection must end, nothing may stay open, and the next client must be served.
 *
 * Input: a byte of flags, the number of cuts (0 to 7), for each a position in 16 bits (the highest: and a
 * pause); the rest is what is sent. */
#include "http.h"

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { OVER_TCP = 1, LEAVE_EARLY = 2, MOST_CUTS = 7, MAX_BODY = 1 << 15, MOST_ANSWER = 1 << 20 };

static http_server *server;
static char folder[] = "/tmp/fuzz_http_XXXXXX";
static char path[sizeof folder + 8];
static char answer[MOST_ANSWER + 1];

static void report(const char *what, const char *detail, size_t length) {
    fprintf(stderr, "%s\n%.*s\n", what, (int)length, detail);
    abort();
}

/* ---- a small application ---- */

static void handle_health(exchange *exchange, void *context) {
    (void)context;
    exchange_reply(exchange, 200, "text/plain", strdup("well"), 4);
}

static void handle_echo(exchange *exchange, void *context) {
    (void)context;
    size_t length;
    const char *body = exchange_body(exchange, &length);
    if (length > MAX_BODY || body[length] != '\0') {
        report("a body is too long or has no end", "", 0);
    }
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, body, length + 1);
    }
    exchange_reply(exchange, 200, "application/octet-stream", copy, length);
}

static void handle_stream(exchange *exchange, void *context) {
    (void)context;
    const char *query = exchange_query(exchange, "q");
    exchange_stream(exchange, 200, "text/plain");
    exchange_write(exchange, "one\n", 4);
    exchange_write(exchange, query ? query : "-", query ? strlen(query) : 1);
    exchange_end(exchange, false);
}

static void handle_item(exchange *exchange, void *context) {
    (void)context;
    char *copy = strdup(exchange_argument(exchange));
    exchange_add_header(exchange, "x-agent", exchange_header(exchange, "user-agent") ? "some" : "none");
    exchange_reply(exchange, 200, "text/plain", copy, copy ? strlen(copy) : 0);
}

static const route ROUTES[] = {
    {.method = "GET", .path = "/health", .open = true, .quick = true, .handle = handle_health},
    {.method = "POST", .path = "/echo", .handle = handle_echo},
    {.method = "GET", .path = "/stream", .handle = handle_stream},
    {.method = "GET", .path = "/items/{}", .handle = handle_item},
};

static void stop_server(void) {
    http_server_stop(server);
    rmdir(folder);
}

/* libFuzzer's timer interrupts: a connection that had begun then goes on by itself. */
static bool connects(int fd, const void *address, socklen_t size) {
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    while (connect(fd, address, size)) {
        if (errno == EISCONN) {
            return true;
        }
        if (errno != EINTR && errno != EALREADY) {
            return false;
        }
        poll(&wait, 1, 10);
    }
    return true;
}

static int connect_unix(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !connects(fd, &address, sizeof address)) {
        report("nobody listens at the socket any more", path, strlen(path));
    }
    return fd;
}

/* Closing resets such a connection: ports are not used up. */
static int connect_tcp(void) {
    const struct linger now = {.l_onoff = 1};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)http_server_port(server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) ||
        !connects(fd, &address, sizeof address)) {
        report("nobody listens at the port any more", "", 0);
    }
    return fd;
}

static void start_server(void) {
    char message[256];
    http_options options = {.host = "127.0.0.1",
                            .unix_path = path,
                            .max_body = MAX_BODY,
                            .header_seconds = 2,
                            .stall_seconds = 2,
                            .idle_seconds = 2,
                            .connections = 64,
                            .workers = 1,
                            .routes = ROUTES,
                            .route_count = sizeof ROUTES / sizeof *ROUTES};
    if (!mkdtemp(folder)) {
        report("no folder for a socket", folder, strlen(folder));
    }
    snprintf(path, sizeof path, "%s/socket", folder);
    if (http_server_start(&options, &server, message, sizeof message)) {
        report("the server does not start", message, strlen(message));
    }
    atexit(stop_server);
}

/* ---- what the bytes ask for ---- */

typedef enum reading {
    WHOLE,  /* a request, and what is behind it may be another one */
    REFUSE, /* it must be refused, and the connection ended behind the refusal */
    UNSURE, /* nothing is said about what follows */
} reading;

typedef struct request {
    size_t size; /* WHOLE: bytes of head and body */
    bool head;   /* its answer has no body */
} request;

static bool named(const char *line, size_t length, const char *name) {
    return length == strlen(name) && strncasecmp(line, name, length) == 0;
}

/* Length of a line with its CRLF; 0 when there is no such line, or it has a control character or another
 * CR. */
static size_t line_size(const char *bytes, size_t length) {
    for (size_t i = 0; i + 1 < length; i++) {
        if (bytes[i] == '\r' && bytes[i + 1] == '\n') {
            return i + 2;
        }
        if ((unsigned char)bytes[i] < 32 || bytes[i] == 127) {
            return 0;
        }
    }
    return 0;
}

/* The body's chunks: their size with the end, 0 when that is not plain to see. */
static size_t chunks_size(const char *bytes, size_t length) {
    size_t at = 0;
    for (;;) {
        size_t digits = 0, size = 0;
        while (at < length && digits < 5 && isxdigit((unsigned char)bytes[at])) {
            const int digit = tolower((unsigned char)bytes[at++]);
            size = size * 16 + (size_t)(isdigit(digit) ? digit - '0' : digit - 'a' + 10);
            digits++;
        }
        if (!digits || length - at < size + 4 || memcmp(bytes + at, "\r\n", 2) != 0 ||
            memcmp(bytes + at + 2 + size, "\r\n", 2) != 0) {
            return 0;
        }
        at += size + 4;
        if (size == 0) {
            return at;
        }
    }
}

typedef struct framing {
    int lengths, codings, hosts;
    const char *value; /* of the last length or coding, without blanks around it */
    size_t value_length;
} framing;

/* A field's line without its end. RFC 9112, 5 has a server refuse a blank before the colon, and lets it join
 * folded lines. libmicrohttpd drops fields without a name. */
static reading read_field(const char *line, size_t length, framing *f) {
    const char *colon = memchr(line, ':', length);
    const size_t name = colon ? (size_t)(colon - line) : 0;
    if (line[0] == ' ' || line[0] == '\t' || line[0] == ':') {
        return UNSURE;
    }
    if (!name || line[name - 1] == ' ' || line[name - 1] == '\t') {
        return REFUSE;
    }
    const bool is_length = named(line, name, "Content-Length"),
               is_coding = named(line, name, "Transfer-Encoding");
    f->hosts += named(line, name, "Host");
    f->lengths += is_length;
    f->codings += is_coding;
    if (is_length || is_coding) {
        const char *value = colon + 1, *end = line + length;
        while (value < end && (*value == ' ' || *value == '\t')) {
            value++;
        }
        while (end > value && (end[-1] == ' ' || end[-1] == '\t')) {
            end--;
        }
        f->value = value;
        f->value_length = (size_t)(end - value);
    }
    return WHOLE;
}

static reading read_body(const char *bytes, size_t length, const framing *f, request *r) {
    if (f->lengths + f->codings > 1 || f->hosts > 1) {
        return REFUSE; /* RFC 9112, 6.3 and 3.2 */
    }
    if (f->codings) {
        if (!named(f->value, f->value_length, "chunked")) {
            return REFUSE;
        }
        const size_t size = chunks_size(bytes + r->size, length - r->size);
        r->size += size;
        return size && size < MAX_BODY ? WHOLE : UNSURE;
    }
    if (f->lengths) {
        size_t size = 0;
        for (size_t i = 0; i < f->value_length; i++) {
            if (!isdigit((unsigned char)f->value[i])) {
                return REFUSE;
            }
            size = size > MAX_BODY ? size : size * 10 + (size_t)(f->value[i] - '0');
        }
        if (!f->value_length || size > MAX_BODY) {
            return REFUSE;
        }
        r->size += size;
        return r->size <= length ? WHOLE : UNSURE;
    }
    return WHOLE;
}

/* The request at the beginning of the bytes. Only what a strict reader is sure of: lines of plain HTTP/1.1.
 */
static reading read_request(const char *bytes, size_t length, request *r) {
    framing f = {0};
    size_t size = line_size(bytes, length);
    const char *space = memchr(bytes, ' ', size ? size : 0);
    if (!space || size < 14 || memcmp(bytes + size - 11, " HTTP/1.1\r\n", 11) != 0 || space[1] != '/' ||
        memchr(space + 1, ' ', (size_t)(bytes + size - 11 - space - 1)) || size > 4096) {
        return UNSURE;
    }
    for (const char *byte = bytes; byte < space; byte++) {
        if (!isupper((unsigned char)*byte)) {
            return UNSURE;
        }
    }
    *r = (request){size, (size_t)(space - bytes) == 4 && memcmp(bytes, "HEAD", 4) == 0};
    reading found = WHOLE;
    while ((size = line_size(bytes + r->size, length - r->size)) > 2) {
        const reading line = read_field(bytes + r->size, size - 2, &f);
        found = found == UNSURE || line == UNSURE ? UNSURE : found == REFUSE ? REFUSE : line;
        r->size += size;
        if (r->size > 8192) {
            return UNSURE;
        }
    }
    if (size == 0) {
        return UNSURE; /* the head does not end, or has something odd */
    }
    r->size += size;
    return found == WHOLE ? read_body(bytes, length, &f, r) : found;
}

/* ---- what was answered ---- */

typedef struct answers {
    size_t at, length; /* of `answer` */
    int status;        /* of the last one read */
    bool closes, cut;  /* it says so; it ended too early */
    bool ours;         /* it has our id; else libmicrohttpd wrote it */
} answers;

/* One line, without its end; NULL: cut off. */
static const char *answer_line(answers *a, size_t *length) {
    const char *line = answer + a->at;
    const char *end = memmem(line, a->length - a->at, "\r\n", 2);
    a->cut |= !end;
    *length = end ? (size_t)(end - line) : 0;
    a->at = end ? a->at + *length + 2 : a->length;
    return end ? line : NULL;
}

static void skip(answers *a, size_t size) {
    a->cut |= a->length - a->at < size;
    a->at += a->cut ? a->length - a->at : size;
}

static void read_answer_chunks(answers *a) {
    for (size_t size = 1; size && !a->cut;) {
        size_t length;
        const char *line = answer_line(a, &length);
        char *end = NULL;
        size = line ? strtoul(line, &end, 16) : 0;
        if (line && (end == line || (*end != '\r' && *end != ';'))) {
            report("a chunk without a size", line, length);
        }
        skip(a, size);
        line = answer_line(a, &length);
        if (line && length) {
            report("a chunk that does not end where its size says", line, length);
        }
    }
}

/* Reads one answer; `head`: 1 it has no body, 0 it has, -1 not known. */
static void read_answer(answers *a, int head) {
    size_t length, name, content = 0;
    int lengths = 0, chunked = 0;
    const char *line = answer_line(a, &length);
    a->closes = a->ours = false;
    if (!line) {
        return;
    }
    if (length < 12 || memcmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
        line[8] != ' ' || (a->status = atoi(line + 9)) < 100 || a->status > 599 ||
        (length > 12 && line[12] != ' ')) {
        report("an answer without a status line", line, length);
    }
    while ((line = answer_line(a, &length)) && length) {
        const char *colon = memchr(line, ':', length);
        name = colon ? (size_t)(colon - line) : 0;
        if (!name || memchr(line, ' ', name) || memchr(line, '\0', length) || memchr(line, '\n', length)) {
            report("an answer's header is malformed", line, length);
        }
        if (named(line, name, "Content-Length")) {
            lengths++;
            content = strtoul(colon + 1, NULL, 10);
        }
        chunked += named(line, name, "Transfer-Encoding");
        a->ours |= named(line, name, "x-request-id");
        a->closes |= named(line, name, "Connection") && strncasecmp(colon + 2, "close", 5) == 0;
    }
    if (!line || a->status == 204 || a->status == 304 || a->status < 200) {
        return;
    }
    if (lengths + chunked > 1 || (lengths + chunked == 0 && !a->closes)) {
        report("an answer's body has no end, or two", answer, a->at);
    }
    const bool follows = a->at == a->length || strncmp(answer + a->at, "HTTP/1.", 7) == 0;
    if (head == 1 || (head < 0 && follows)) {
        if (head == 1 && !follows) {
            report("a body for HEAD", answer, a->length);
        }
    } else if (chunked) {
        read_answer_chunks(a);
    } else {
        skip(a, lengths ? content : a->length - a->at);
    }
}

/* libmicrohttpd answers by itself what it cannot parse, and closes the connection. Its 0.9.75 writes the head
 * of that answer twice for some faults of a connection's second request; but no request must be answered
 * behind it. */
static void check_foreign_end(const answers *a) {
    if (a->status < 400 || memmem(answer + a->at, a->length - a->at, "x-request-id", 12)) {
        report("libmicrohttpd's own answer is not the last one", answer, a->length);
    }
}

/* The answers against what was asked. */
static void check_answers(const char *bytes, size_t length, size_t answered) {
    answers a = {.length = answered};
    size_t at = 0;
    bool sure = true;
    while (a.at < a.length && !a.cut) {
        request r = {0};
        const reading found = sure ? read_request(bytes + at, length - at, &r) : UNSURE;
        sure = found == WHOLE;
        at += sure ? r.size : 0;
        do {
            read_answer(&a, found == WHOLE ? r.head : -1);
        } while (a.status < 200 && a.at < a.length && !a.cut);
        if (a.cut || a.status < 200) {
            return; /* the client's leaving cut it off */
        }
        if (!a.ours) {
            check_foreign_end(&a);
            return;
        }
        if (found == REFUSE && (a.status < 400 || a.at != a.length)) {
            report("an ambiguous request was not refused, or the connection went on behind it", bytes,
                   length);
        }
        if (sure && a.status == 400 && !a.closes) {
            report("a malformed request did not end the connection", bytes, length);
        }
    }
}

/* ---- one connection ---- */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Adds what comes to `answer` until the end, or until nothing comes for some milliseconds; whether it ended.
 */
static bool read_some(int fd, size_t *length, int milliseconds) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int ready;
    while ((ready = poll(&wait, 1, milliseconds)) != 0 && *length < MOST_ANSWER) {
        const ssize_t got = ready < 0 ? ready : recv(fd, answer + *length, MOST_ANSWER - *length, 0);
        if (got < 0 && errno == EINTR) {
            continue; /* libFuzzer's timer */
        }
        if (got <= 0) {
            return true;
        }
        *length += (size_t)got;
    }
    return *length == MOST_ANSWER;
}

static void write_cut(int fd, const unsigned char *cuts, size_t count, const char *bytes, size_t length) {
    size_t positions[MOST_CUTS + 1], at = 0;
    for (size_t i = 0; i < count; i++) {
        positions[i] = cuts[2 * i] + ((size_t)(cuts[2 * i + 1] & 0x7f) << 8);
    }
    positions[count] = length;
    for (size_t i = 0; i <= count && at < length; i++) {
        const size_t end = positions[i] < length ? positions[i] : length;
        if (end > at) {
            const ssize_t sent = send(fd, bytes + at, end - at, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0 || (size_t)sent < end - at) {
                return; /* refused already, or nobody reads so much */
            }
            at = end;
        }
        if (i < count && cuts[2 * i + 1] & 0x80) {
            const struct timespec pause = {.tv_nsec = 300000};
            nanosleep(&pause, NULL);
        }
    }
}

static void check_alive(void) {
    static const char REQUEST[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const int fd = connect_unix();
    size_t length = 0;
    send(fd, REQUEST, sizeof REQUEST - 1, MSG_NOSIGNAL);
    if (!read_some(fd, &length, 10000) || length < 16 || memcmp(answer, "HTTP/1.1 200", 12) != 0 ||
        memcmp(answer + length - 4, "well", 4) != 0) {
        report("the server is not alive", answer, length);
    }
    close(fd);
    for (const double end = now() + 10; http_server_connections(server) || http_server_open(server);) {
        if (now() > end) {
            report("connections or exchanges are left", "", 0);
        }
        const struct timespec pause = {.tv_nsec = 50000};
        nanosleep(&pause, NULL);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    if (!server) {
        start_server();
    }
    const size_t count = size > 1 ? data[1] & MOST_CUTS : 0;
    if (size < 2 + 2 * count) {
        return 0;
    }
    const char *bytes = (const char *)data + 2 + 2 * count;
    const size_t length = size - 2 - 2 * count;
    const int fd = data[0] & OVER_TCP ? connect_tcp() : connect_unix();
    size_t answered = 0;
    write_cut(fd, data + 2, count, bytes, length);
    if (!(data[0] & LEAVE_EARLY)) {
        bool ended = read_some(fd, &answered, 3);
        shutdown(fd, SHUT_WR);
        ended = ended || read_some(fd, &answered, 10000);
        if (!ended) {
            report("the connection does not end", bytes, length);
        }
        answer[answered] = '\0';
        check_answers(bytes, length, answered);
    }
    close(fd);
    check_alive();
    return 0;
}
