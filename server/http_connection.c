/* What libmicrohttpd calls, always on the HTTP thread: a request's first line, its head, its body, its end;
 * and the answers that it is given. */
#include "http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static connection *connection_of(struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void enter(connection *connection, phase phase) {
    connection->phase = phase;
    connection->since = connection->server->now;
}

static void suspend(connection *connection) {
    MHD_suspend_connection(connection->mhd);
    connection->suspended = true;
}

void http_connection_resume(connection *connection) {
    if (connection->suspended) {
        connection->suspended = false;
        MHD_resume_connection(connection->mhd);
    }
}

/* ---- answers ---- */

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t size) {
    exchange *exchange = context;
    connection *connection = exchange->connection;
    pthread_mutex_lock(&exchange->lock);
    ssize_t given = (ssize_t)(exchange->data_end - exchange->data_begin);
    exchange->sent = position; /* it asks for more only when the socket has all that it was given */
    if (exchange->left || !connection) {
        given = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (given > 0) {
        given = (size_t)given > size ? (ssize_t)size : given;
        memcpy(buffer, exchange->data + exchange->data_begin, (size_t)given);
        exchange->data_begin += (size_t)given;
        if (exchange->data_begin == exchange->data_end) {
            exchange->data_begin = exchange->data_end = 0;
        }
    } else if (exchange->ended) {
        given = exchange->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        exchange->waiting = true;
    }
    pthread_mutex_unlock(&exchange->lock);
    if (given == 0) {
        suspend(connection);
    } else if (connection) {
        connection->since = connection->server->now;
    }
    return given;
}

static void stream_done(void *context) {
    http_exchange_unref(context);
}

static void add_cors(struct MHD_Response *response, const exchange *exchange) {
    if (!exchange->origin) {
        return;
    }
    MHD_add_response_header(response, "Access-Control-Allow-Origin", exchange->origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    MHD_add_response_header(response, "Vary", "Origin");
}

/* The names in a list of headers that are tokens, behind those that clients are known to send. */
static void allowed_headers(const char *requested, char *text, size_t size) {
    size_t at = (size_t)snprintf(text, size,
                                 "authorization, content-type, x-api-key, anthropic-version, anthropic-beta");
    while (requested && *requested) {
        requested += strspn(requested, ", \t");
        size_t length = strcspn(requested, ", \t");
        if (http_token(requested, length) && at + length + 3 < size) {
            at += (size_t)snprintf(text + at, size - at, ", %.*s", (int)length, requested);
        }
        requested += length;
    }
}

static void answer_options(exchange *exchange) {
    char methods[64], headers[2048];
    http_route_methods(exchange->methods, methods, sizeof methods);
    exchange_add_header(exchange, "Allow", methods);
    if (exchange->origin && exchange_header(exchange, "Access-Control-Request-Method")) {
        allowed_headers(exchange_header(exchange, "Access-Control-Request-Headers"), headers, sizeof headers);
        exchange_add_header(exchange, "Access-Control-Allow-Methods", methods);
        exchange_add_header(exchange, "Access-Control-Allow-Headers", headers);
        exchange_add_header(exchange, "Access-Control-Max-Age", "600");
    }
    exchange_reply(exchange, 204, NULL, calloc(1, 1), 0);
}

/* Gives the answer to libmicrohttpd. The stage is not UNANSWERED, so nobody else changes what is read here.
 */
static enum MHD_Result send_answer(connection *connection, exchange *exchange) {
    struct MHD_Response *response;
    if (exchange->stage == STREAMING && !exchange->head) {
        http_exchange_ref(exchange);
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_stream, exchange, stream_done);
        if (!response) {
            http_exchange_unref(exchange);
        }
    } else {
        response =
            MHD_create_response_from_buffer(exchange->reply_length, exchange->reply,
                                            exchange->reply ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
        if (response) {
            exchange->reply = NULL;
        }
    }
    if (!response) {
        return MHD_NO;
    }
    if (exchange->type) {
        MHD_add_response_header(response, "Content-Type", exchange->type);
    }
    for (const answer_header *header = exchange->answer_headers; header; header = header->next) {
        MHD_add_response_header(response, header->name, header->value);
    }
    add_cors(response, exchange);
    if (exchange->close || atomic_load(&connection->server->leaving)) {
        MHD_add_response_header(response, "Connection", "close");
    }
    enum MHD_Result queued = MHD_NO; /* an answer without its id is none */
    if (MHD_add_response_header(response, "x-request-id", exchange->id) == MHD_YES) {
        enter(connection, SENDING);
        connection->taken = UINT64_MAX;
        queued = MHD_queue_response(connection->mhd, (unsigned)exchange->status, response);
    }
    MHD_destroy_response(response);
    return queued;
}

/* ---- requests ---- */

static void *on_line(void *context, const char *target, struct MHD_Connection *mhd) {
    connection *connection = connection_of(mhd);
    exchange *exchange = connection ? http_exchange_new(context, target) : NULL;
    if (!exchange) {
        return NULL;
    }
    exchange->connection = connection;
    connection->exchange = exchange;
    if (connection->phase == IDLE) {
        enter(connection, HEADERS);
    }
    return exchange;
}

/* The head is complete. What is refused while a body may follow is refused now, and the connection closed
 * behind it; else when libmicrohttpd has the whole request, so that the connection can go on. */
static enum MHD_Result on_head(exchange *exchange, const char *method, const char *version) {
    connection *connection = exchange->connection;
    exchange->begun = true;
    exchange->late = atomic_load(&exchange->server->drained);
    atomic_fetch_add(&exchange->server->open, 1);
    http_connection_begins(connection);
    if (http_request_read(exchange, method, version)) {
        return MHD_NO;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (info && info->header_size > MAX_HEADERS && !exchange->refusal.status) {
        http_error_set(&exchange->refusal, 431, "the request's headers are too large");
    }
    http_route_find(exchange, method);
    http_guard(exchange);
    enter(connection, exchange->has_body ? BODY : HANDLED);
    if (exchange->refusal.status && (exchange->has_body || exchange->close)) {
        exchange->close = connection->linger = true;
        exchange->dispatched = true;
        exchange_fail(exchange, &exchange->refusal);
        exchange_release(exchange);
        return send_answer(connection, exchange);
    }
    return MHD_YES;
}

static bool grow_body(exchange *exchange, size_t length) {
    enum { FIRST = 16 * 1024, FIRST_MOST = 1024 * 1024 };
    const size_t needed = exchange->length + length + 1;
    if (needed <= exchange->capacity) {
        return true;
    }
    size_t capacity = exchange->capacity * 2;
    if (!capacity) {
        const char *declared = exchange_header(exchange, "Content-Length");
        const unsigned long long whole = declared ? strtoull(declared, NULL, 10) + 1 : FIRST;
        capacity = whole < FIRST_MOST ? (size_t)whole : FIRST_MOST;
    }
    capacity = capacity < needed ? needed : capacity;
    char *body = realloc(exchange->body, capacity);
    if (!body) {
        return false;
    }
    exchange->body = body;
    exchange->capacity = capacity;
    return true;
}

/* Bytes of a body beyond the limit that are read over TLS. */
static const uint64_t OVER_TLS = 64 << 20;

/* libmicrohttpd takes no answer in the middle of a body. This one goes straight to the socket, which has
 * nothing else to send then, and the connection is closed behind it. `bare`: to HEAD, whose answers have no
 * body. */
static void send_raw(const connection *connection, const char *id, const route *route,
                     const http_error *error, bool bare) {
    char head[512];
    char *body = http_error_text(route, error, id);
    const size_t length = body ? strlen(body) : 0;
    const int size = snprintf(head, sizeof head,
                              "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
                              "x-request-id: %s\r\nContent-Length: %zu\r\n\r\n",
                              error->status, MHD_get_reason_phrase_for((unsigned)error->status), id, length);
    struct iovec parts[2] = {{head, (size_t)size}, {body, bare ? 0 : length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    (void)!sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    free(body);
}

void http_connection_refuse(const connection *connection, const char *id, const http_error *error,
                            bool bare) {
    send_raw(connection, id, NULL, error, bare);
}

static enum MHD_Result on_body(exchange *exchange, const char *data, size_t *length) {
    connection *connection = exchange->connection;
    const uint64_t limit = exchange->server->options.max_body;
    connection->since = exchange->server->now;
    if (*length > limit - exchange->read || exchange->read > limit) {
        http_error error;
        http_error_set(&error, 413, "the body is larger than this server takes");
        if (!connection->tls) {
            exchange->status = error.status;
            connection->linger = true;
            send_raw(connection, exchange->id, exchange->route, &error, exchange->head);
            return MHD_NO;
        }
        /* Nothing can be said between TLS and libmicrohttpd: the rest is read, within limits, and thrown
         * away. */
        exchange->refusal = error;
        exchange->close = exchange->discard = true;
        if (exchange->read > limit && exchange->read - limit > OVER_TLS) {
            return MHD_NO;
        }
    }
    exchange->read += *length;
    if (!exchange->discard) {
        if (!grow_body(exchange, *length)) {
            return MHD_NO;
        }
        memcpy(exchange->body + exchange->length, data, *length);
        exchange->length += *length;
        exchange->body[exchange->length] = '\0';
    }
    *length = 0;
    return MHD_YES;
}

/* Starts the answer, once. */
static void dispatch(connection *connection, exchange *exchange) {
    exchange->dispatched = true;
    enter(connection, HANDLED);
    if (exchange->refusal.status) {
        exchange_fail(exchange, &exchange->refusal);
    } else if (exchange->options) {
        answer_options(exchange);
    } else if (exchange->route->quick) {
        exchange->route->handle(exchange, exchange->server->options.context);
    } else {
        http_work_add(exchange->server, exchange);
        return;
    }
    exchange_release(exchange);
}

/* The whole request is there. Called again each time the connection is resumed without an answer. */
static enum MHD_Result on_whole(exchange *exchange) {
    connection *connection = exchange->connection;
    if (!exchange->dispatched) {
        dispatch(connection, exchange);
    }
    pthread_mutex_lock(&exchange->lock);
    const bool unfinished =
        exchange->stage == UNANSWERED || (exchange->stage == STREAMING && !exchange->ended);
    if (connection->left && unfinished && !exchange->left) {
        pthread_mutex_unlock(&exchange->lock);
        http_exchange_leave(exchange);
        pthread_mutex_lock(&exchange->lock);
    }
    const bool left = exchange->left;
    const bool wait = !left && exchange->stage == UNANSWERED;
    exchange->waiting = wait;
    pthread_mutex_unlock(&exchange->lock);
    if (wait) {
        suspend(connection);
        return MHD_YES;
    }
    return left ? MHD_NO : send_answer(connection, exchange);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *mhd, const char *target,
                                  const char *method, const char *version, const char *data, size_t *length,
                                  void **request) {
    (void)context, (void)mhd, (void)target;
    exchange *exchange = *request;
    if (!exchange) {
        return MHD_NO;
    }
    if (!exchange->begun) {
        return on_head(exchange, method, version);
    }
    return *length ? on_body(exchange, data, length) : on_whole(exchange);
}

/* The request has ended, one way or the other. */
static void on_end(void *context, struct MHD_Connection *mhd, void **request,
                   enum MHD_RequestTerminationCode code) {
    (void)mhd;
    http_server *server = context;
    exchange *exchange = *request;
    *request = NULL;
    if (!exchange) {
        return;
    }
    connection *connection = exchange->connection;
    pthread_mutex_lock(&exchange->lock);
    const bool answered = exchange->stage == REPLIED || exchange->ended;
    http_record record = exchange->record;
    record.status = exchange->status;
    const bool left = exchange->left, broken = exchange->broken;
    pthread_mutex_unlock(&exchange->lock);
    if (left || (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && record.status < 400 && !broken)) {
        record.status = 499;
    }
    if (!answered && !left && code == MHD_REQUEST_TERMINATED_WITH_ERROR && record.status == 499 &&
        !exchange->dispatched) {
        record.status = 400; /* libmicrohttpd's own answer to a malformed body */
        connection->linger = true;
    }
    if (!left) {
        http_exchange_leave(exchange); /* what is still written is dropped */
    }
    if (!exchange->dispatched) {
        exchange_release(exchange);
    }
    exchange->connection = NULL;
    connection->exchange = NULL;
    connection->received = http_connection_received(connection);
    enter(connection, IDLE);
    connection->flushing = http_connection_unsent(connection);
    if (exchange->begun) {
        record.id = exchange->id;
        record.method = exchange->method;
        record.route = exchange->route ? exchange->route->path : "";
        record.total_seconds = http_now() - exchange->started;
        if (server->options.record) {
            server->options.record(server->options.context, &record);
        }
        atomic_fetch_sub(&server->open, 1);
    }
    http_exchange_unref(exchange);
}

static void on_connection(void *context, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code) {
    http_server *server = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection *connection = server->adding;
        server->adding = NULL;
        connection->mhd = mhd;
        *socket_context = connection;
        return;
    }
    connection *connection = *socket_context;
    connection->mhd = NULL;
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    if (connection->linger && !atomic_load(&server->stopping)) {
        http_connection_linger(connection, dup(connection->fd));
    } else {
        http_connection_free(connection);
    }
}

/* ---- daemons ---- */

int http_daemons_start(http_server *server, char *message, size_t size) {
    static const size_t POOLS[DAEMON_COUNT] = {SMALL_POOL, LARGE_POOL, LARGE_POOL};
    const unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET;
    for (int i = 0; i < DAEMON_COUNT; i++) {
        const bool tls = i == DAEMON_TLS;
        if (tls && !server->certificate) {
            continue;
        }
        /* Our own count of connections holds, theirs must never be reached. */
        struct MHD_OptionItem options[] = {
            {MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)POOLS[i], NULL},
            {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)server->options.connections + 4096, NULL},
            {MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL},
            {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_end, server},
            {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, server},
            {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)on_line, server},
            {tls ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, server->certificate},
            {MHD_OPTION_HTTPS_MEM_KEY, 0, server->key},
            {MHD_OPTION_END, 0, NULL},
        };
        poller *poller = &server->pollers[i];
        poller->watched = WATCHED_DAEMON;
        poller->daemon = MHD_start_daemon(flags | (tls ? MHD_USE_TLS : 0), 0, NULL, NULL, on_request, server,
                                          MHD_OPTION_ARRAY, options, MHD_OPTION_END);
        const union MHD_DaemonInfo *info =
            poller->daemon ? MHD_get_daemon_info(poller->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = poller};
        if (!info || epoll_ctl(server->epoll, EPOLL_CTL_ADD, info->epoll_fd, &event)) {
            if (tls) {
                return http_fail(message, size, "certificate %s, key %s: not a PEM certificate and its key",
                                 server->options.tls_certificate, server->options.tls_key);
            }
            return http_fail(message, size, "the HTTP library does not start: no memory or no descriptors");
        }
    }
    return 0;
}

void http_connection_hand_over(connection *connection, int which) {
    http_server *server = connection->server;
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    if (getpeername(connection->fd, (struct sockaddr *)&address, &length)) {
        length = sizeof(struct sockaddr); /* it has left already: libmicrohttpd only keeps this */
    }
    connection->phase = HEADERS;
    server->adding = connection;
    if (MHD_add_connection(server->pollers[which].daemon, connection->fd, (struct sockaddr *)&address,
                           length) != MHD_YES &&
        server->adding) {
        http_connection_free(connection); /* the descriptor is closed in any case */
    }
    server->adding = NULL;
}
