/* The HTTP side of the server: connections, routes, keys, limits and answers, over libmicrohttpd. It knows
 * nothing of models.
 *
 * One thread runs all connections with epoll. A request whose route is `quick` is answered there; any other
 * is given to a worker thread once its body is complete, while its connection is suspended. Who has an
 * exchange answers it from any thread, at once or over time, and never waits for the client.
 *
 * An exchange is one request and its answer. It is reference-counted: the handler has it during its call, and
 * longer with exchange_retain. When the client leaves first, writes are accepted and dropped, and `gone` is
 * called. */
#ifndef SLUICE_HTTP_H
#define SLUICE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct http_server http_server;
typedef struct exchange exchange;

/* An error as a client sees it. Text never has words of the request's body in it. */
typedef struct http_error {
    int status;
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* "context_length_exceeded", ...; NULL: null */
    char param[96];   /* the field's path; "": null */
    char message[512];
    int retry_after; /* seconds, as header; 0: none */
    int64_t prompt_tokens,
        context; /* of a prompt that is too long; as n_prompt_tokens and n_ctx in the body; 0: none */
} http_error;

typedef struct route {
    const char *method; /* "GET" (answers HEAD too) or "POST" */
    const char *path; /* "/v1/models/{}": {} as last segment takes the rest of the path, at least one byte */
    bool open;        /* needs no key */
    bool quick;       /* answered on the HTTP thread: must not wait, and has no body */
    void (*handle)(exchange *exchange, void *context);
    /* The body of an error, for errors that are found here as well (401, 413, ...): an owned text, NULL when
     * there is no memory. NULL: OpenAI's shape. */
    char *(*error_body)(const http_error *error, const char *request_id);
} route;

/* What one request came to, for the log and the metrics. Counts that do not apply are 0. */
typedef struct http_record {
    const char *id, *method, *route; /* the route's path, or "" when there was none: of bounded variety */
    int status;                      /* 499: the client left before it had its answer */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    double queue_seconds, prompt_seconds, generate_seconds, total_seconds;
} http_record;

typedef struct http_options {
    const char *host;      /* a name or an address; NULL: none, with unix_path or sockets */
    int port;              /* 0: any, see http_server_port */
    const char *unix_path; /* a socket file, made and removed; without TLS; NULL: none */
    int inherited_socket;  /* a listening socket that somebody else made (socket activation); 0: none */
    bool held;             /* connections wait until http_server_accept */
    const char *tls_certificate, *tls_key; /* PEM files, both or none */
    const char *const *keys;               /* any of them is right; none: everybody may */
    size_t key_count;
    const char *const *origins; /* that may read answers, besides those on this machine; "*": all */
    size_t origin_count;
    const char *const
        *hosts; /* names that a Host header may have on a loopback address, besides local ones */
    size_t host_count;
    uint64_t max_body;     /* bytes */
    double header_seconds; /* from the first byte of a request to the end of its headers */
    double stall_seconds;  /* a body that does not come, an answer that is not taken */
    double idle_seconds;   /* a connection without a request */
    unsigned connections;  /* at once, fewer when there are not as many descriptors; idle ones give way to new
                              ones */
    unsigned workers;      /* threads */
    const route *routes;   /* must outlive the server */
    size_t route_count;
    void *context; /* of handlers */
    void (*record)(void *context,
                   const http_record *record); /* when an answer is complete; any thread; may be NULL */
} http_options;

/* Binds, listens and serves. On failure *server is NULL and `message` is one line that names what was wrong
 * ("port 8080 on 127.0.0.1: address already in use"). Handlers may run before it returns. */
int http_server_start(const http_options *options, http_server **server, char *message, size_t size);
/* The port it listens on (the first, when there are several); 0: none. */
int http_server_port(const http_server *server);
/* Those who connected to a server that is `held`, and all after them, are served from here on. */
void http_server_accept(http_server *server);
/* While held, what is written is sent when the thread of the connections wakes for something else, or when it
 * is let go. */
void http_server_hold(http_server *server, bool held);
/* Answers say `Connection: close` from here on; nothing else changes. */
void http_server_leave(http_server *server);
/* No new connections from here on: true when that is so, which takes a moment. Those that are there go on. */
bool http_server_unlisten(http_server *server);
/* No new connections from here on, answers say `Connection: close`, idle connections are closed. Requests
 * that come still are handled: handlers decide what they answer while draining. True when all that is so, which
 * takes a moment: until then requests come that are not late, and http_server_open may be 0 just before one. */
bool http_server_drain(http_server *server);
/* Connections of which no request has come yet, as far as its headers go. */
size_t http_server_fresh(const http_server *server);
/* Exchanges without a complete answer, and connections. */
size_t http_server_open(const http_server *server);
size_t http_server_connections(const http_server *server);
/* Breaks what is left, joins all threads, closes and frees. NULL is fine. Exchanges that somebody still has
 * may be written to and released after it; nobody is there to read that. */
void http_server_stop(http_server *server);

/* ---- the request; texts live as long as the exchange ---- */

const char *exchange_id(const exchange *exchange); /* "req_..."; the header x-request-id of the answer */
const char *exchange_argument(const exchange *exchange); /* what {} took, percent-decoded; "" */
const char *exchange_header(const exchange *exchange, const char *name); /* NULL when there is none */
const char *exchange_query(const exchange *exchange, const char *name);  /* NULL when there is none */
const char *exchange_body(const exchange *exchange, size_t *length); /* NUL-terminated beyond its length */
bool exchange_late(const exchange *exchange); /* its headers came after the drain had begun */
int exchange_key(const exchange *exchange);   /* index of the key it came with; -1: the server has none */

/* ---- the answer ---- */

exchange *exchange_retain(exchange *exchange);
/* The last reference of an unanswered exchange answers 500. */
void exchange_release(exchange *exchange);
/* `gone` is called at most once, from any thread and possibly at once, when the client left before its answer
 * was complete. It must neither wait nor use the exchange. With `gone` NULL it is not called any more, nor
 * still running, from the return on. A client that closes only its sending side counts as one that left. */
void exchange_on_gone(exchange *exchange, void (*gone)(void *context), void *context);
/* A header of the answer; before it begins. Copied. */
void exchange_add_header(exchange *exchange, const char *name, const char *value);
/* A whole answer; takes over `body` (from malloc), NULL answers 500. Once. */
void exchange_reply(exchange *exchange, int status, const char *type, char *body, size_t length);
void exchange_fail(exchange *exchange, const http_error *error);
/* Begins an answer of unknown length: status and headers go out at once. "text/event-stream" brings
 * Cache-Control and X-Accel-Buffering along. */
void exchange_stream(exchange *exchange, int status, const char *type);
/* Appends to a stream; copied. False: the client has left, or no memory (then the stream is broken off). */
bool exchange_write(exchange *exchange, const char *data, size_t length);
/* Bytes written that the socket has not taken. */
size_t exchange_pending(const exchange *exchange);
/* Ends a stream. `broken`: without the closing chunk, so that the client sees that something is missing. */
void exchange_end(exchange *exchange, bool broken);
/* For the record: counts and times, kept until the answer is complete. */
void exchange_note(exchange *exchange, const http_record *counts);

#endif
