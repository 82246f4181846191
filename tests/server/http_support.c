/* See http_support.h. */
#include "http_support.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

const double PATIENCE = 40;

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void pause_for(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* ---- a small application ---- */

atomic_int gone_count, handled_count;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static exchange *held; /* the last exchange of /hold or /feed */
pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;
kept_record last_record;

static void on_record(void *context, const http_record *record) {
    (void)context;
    pthread_mutex_lock(&record_lock);
    snprintf(last_record.id, sizeof last_record.id, "%s", record->id);
    snprintf(last_record.method, sizeof last_record.method, "%s", record->method);
    snprintf(last_record.route, sizeof last_record.route, "%s", record->route);
    last_record.status = record->status;
    last_record.generated = record->generated_tokens;
    last_record.count++;
    pthread_mutex_unlock(&record_lock);
}

static void on_gone(void *context) {
    (void)context;
    atomic_fetch_add(&gone_count, 1);
}

static void hold(exchange *exchange) {
    pthread_mutex_lock(&held_lock);
    struct exchange *before = held;
    held = exchange_retain(exchange);
    pthread_mutex_unlock(&held_lock);
    if (before) {
        exchange_release(before);
    }
}

exchange *take_held(void) {
    for (double end = now() + PATIENCE; now() < end; pause_for(0.002)) {
        pthread_mutex_lock(&held_lock);
        exchange *taken = held;
        held = NULL;
        pthread_mutex_unlock(&held_lock);
        if (taken) {
            return taken;
        }
    }
    return NULL;
}

void reply_text(exchange *exchange, const char *text) {
    exchange_reply(exchange, 200, "text/plain", strdup(text), strlen(text));
}

static void handle_quick(exchange *exchange, void *context) {
    (void)context;
    reply_text(exchange, "quick");
}

static void handle_echo(exchange *exchange, void *context) {
    (void)context;
    size_t length;
    const char *body = exchange_body(exchange, &length);
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, body, length + 1); /* with the NUL behind it */
    }
    atomic_fetch_add(&handled_count, 1);
    exchange_reply(exchange, 200, "application/octet-stream", copy, length);
}

static void handle_hold(exchange *exchange, void *context) {
    (void)context;
    exchange_on_gone(exchange, on_gone, NULL);
    hold(exchange);
}

static void handle_feed(exchange *exchange, void *context) {
    (void)context;
    exchange_on_gone(exchange, on_gone, NULL);
    exchange_stream(exchange, 200, "text/event-stream");
    hold(exchange);
}

static void handle_count(exchange *exchange, void *context) {
    (void)context;
    exchange_stream(exchange, 200, "text/plain");
    for (int i = 0; i < 5; i++) {
        char text[16];
        exchange_write(exchange, text, (size_t)snprintf(text, sizeof text, "line %d\n", i));
    }
    exchange_end(exchange, false);
}

static void handle_forget(exchange *exchange, void *context) {
    (void)exchange, (void)context;
}

static void handle_item(exchange *exchange, void *context) {
    (void)context;
    const char *query = exchange_query(exchange, "q");
    const char *agent = exchange_header(exchange, "user-agent");
    char text[512];
    snprintf(text, sizeof text, "[%s][%s][%s][%d]", exchange_argument(exchange), query ? query : "-",
             agent ? agent : "-", exchange_key(exchange));
    exchange_add_header(exchange, "x-extra", "1");
    http_record record = {.generated_tokens = 7};
    exchange_note(exchange, &record);
    reply_text(exchange, text);
}

static char *own_error(const http_error *error, const char *id) {
    char *text = NULL;
    return asprintf(&text, "{\"own\":%d,\"id\":\"%s\"}", error->status, id) < 0 ? NULL : text;
}

static void handle_fail(exchange *exchange, void *context) {
    (void)context;
    http_error error = {.status = 503, .type = "server_error", .code = "busy", .retry_after = 3};
    snprintf(error.message, sizeof error.message, "not \"now\"");
    exchange_fail(exchange, &error);
}

static const route ROUTES[] = {
    {.method = "GET", .path = "/quick", .open = true, .quick = true, .handle = handle_quick},
    {.method = "GET", .path = "/key", .quick = true, .handle = handle_quick},
    {.method = "POST", .path = "/echo", .handle = handle_echo},
    {.method = "POST", .path = "/own", .handle = handle_echo, .error_body = own_error},
    {.method = "POST", .path = "/hold", .handle = handle_hold},
    {.method = "GET", .path = "/feed", .handle = handle_feed},
    {.method = "GET", .path = "/count", .handle = handle_count},
    {.method = "GET", .path = "/forget", .handle = handle_forget},
    {.method = "GET", .path = "/items/{}", .handle = handle_item},
    {.method = "GET", .path = "/fail", .handle = handle_fail},
};

http_options defaults(void) {
    http_options options = {.host = "127.0.0.1",
                            .max_body = 1 << 20,
                            .header_seconds = 90,
                            .stall_seconds = 90,
                            .idle_seconds = 120,
                            .connections = 1000,
                            .workers = 2,
                            .routes = ROUTES,
                            .route_count = sizeof ROUTES / sizeof *ROUTES,
                            .record = on_record};
    return options;
}

http_server *start(const http_options *options) {
    http_server *server;
    char message[256] = "";
    if (http_server_start(options, &server, message, sizeof message)) {
        fail_msg("%s", message);
    }
    return server;
}

/* ---- a small client ---- */

static int connect_port(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

int connect_server(const http_server *server) {
    return connect_port(http_server_port(server));
}

bool send_bytes(int fd, const void *data, size_t length) {
    for (size_t sent = 0; sent < length;) {
        const ssize_t now_sent = send(fd, (const char *)data + sent, length - sent, MSG_NOSIGNAL);
        if (now_sent <= 0) {
            return false;
        }
        sent += (size_t)now_sent;
    }
    return true;
}

void send_text(int fd, const char *text) {
    assert_true(send_bytes(fd, text, strlen(text)));
}

char text[TEXT + 1];

/* Reads into `text` until `end` is there (NULL: until the connection ends) or patience is; whether it came.
 */
bool read_until(int fd, const char *end) {
    size_t length = 0;
    const double until = now() + PATIENCE;
    text[0] = '\0';
    while (length < TEXT && now() < until) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 50) <= 0) {
            continue;
        }
        const ssize_t got = recv(fd, text + length, TEXT - length, 0);
        if (got <= 0) {
            return !end && got == 0;
        }
        length += (size_t)got;
        text[length] = '\0';
        if (end && memmem(text, length, end, strlen(end))) {
            return true;
        }
    }
    return false;
}

/* One request on a connection of its own, read to the end of the connection. */
int ask(const http_server *server, const char *request) {
    const int fd = connect_server(server);
    send_text(fd, request);
    const bool ended = read_until(fd, NULL);
    close(fd);
    return ended && strncmp(text, "HTTP/1.1 ", 9) == 0 ? atoi(text + 9) : -1;
}

/* One request without an end of its own: `Host` and `Connection: close` are added. */
int ask_simple(const http_server *server, const char *line, const char *headers, const char *body) {
    char request[4096];
    snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n%s", line,
             headers, body);
    return ask(server, request);
}

bool answer_has(const char *words) {
    return strstr(text, words) != NULL;
}

bool reaches(atomic_int *count, int wanted) {
    for (double end = now() + PATIENCE; now() < end; pause_for(0.001)) {
        if (atomic_load(count) == wanted) {
            return true;
        }
    }
    return false;
}

bool all_closed(const http_server *server, size_t left) {
    for (double end = now() + PATIENCE; now() < end; pause_for(0.001)) {
        if (http_server_connections(server) == left) {
            return true;
        }
    }
    return false;
}
