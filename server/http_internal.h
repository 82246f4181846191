/* What the files of the HTTP side share. Only they include it.
 *
 * Threads. The HTTP thread runs every connection and is the only one that calls libmicrohttpd, which runs
 * without threads of its own and is polled through its epoll descriptor. Workers call handlers. Any thread
 * may write to an exchange. So a `connection` belongs to the HTTP thread alone and has no lock; an `exchange`
 * has one.
 *
 * A connection goes through these phases (all transitions on the HTTP thread):
 *
 *   PARKED     accepted, not yet known to libmicrohttpd. What arrives is only looked at (MSG_PEEK), until the
 *              headers of the first request are complete: so an idle connection costs nearly nothing, a
 * deadline for headers is exact, and a malformed request is refused with a body of ours.
 *     -> HEADERS (handed over), LINGERING (refused), freed (left, too late)
 *   IDLE       between requests.                 -> HEADERS (something arrived), freed
 *   HEADERS    the headers are not complete.     -> BODY, HANDLED (complete), freed
 *   BODY       a body is read.                   -> HANDLED, freed
 *   HANDLED    the exchange has no answer yet; suspended in libmicrohttpd unless the route is quick.
 *     -> SENDING (answer queued), freed (client left)
 *   SENDING    an answer goes out; suspended when a stream has nothing to send. -> IDLE, LINGERING, freed
 *   LINGERING  answered and closed for writing while the client may still be sending: what comes is thrown
 * away, since closing at once would reset the connection under the answer. -> freed
 *
 * libmicrohttpd does not look at a suspended connection, and it does not say that one which only sends has
 * lost its reader. So every socket is in an epoll set of our own as well, edge-triggered, from accept to the
 * moment before libmicrohttpd closes it: no descriptor is ever used after that, whatever gets its number
 * next.
 *
 * An exchange, under its lock:
 *
 *   UNANSWERED --reply, fail--> REPLIED
 *   UNANSWERED --stream--> STREAMING --end, out of memory--> STREAMING and ended
 *
 * and beside it `left`, set once by the HTTP thread when the connection is lost or the server stops. The
 * first of "answered completely" and "left" wins: what comes after `left` is dropped; `gone` is called when
 * `left` comes first, under the lock, so that nobody gives up what it uses meanwhile. `waiting` is set by the
 * HTTP thread as it suspends the connection, and taken by whoever has something for it, who then puts the
 * exchange on the server's ready list: many writes, one waking. An exchange that is on the list when its
 * connection dies finds `connection` NULL there.
 *
 * References of an exchange: its connection, all its users together (the handler's call and exchange_retain),
 * the work queue's is the users'; the ready list; the stream that libmicrohttpd reads. Each holds the
 * server's memory too, so that an exchange may be released after http_server_stop. */
#ifndef SLUICE_HTTP_INTERNAL_H
#define SLUICE_HTTP_INTERNAL_H

#include "http.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    MAX_HEADERS = 64 * 1024, /* bytes of a request's head */
    MAX_TARGET = 15 * 1024,  /* bytes of its target */
    PEEKED = 16 * 1024,      /* bytes of a first head that are waited for and looked at */
    SMALL_POOL = 24 * 1024, /* libmicrohttpd's memory of a connection, all resident after its first request */
    LARGE_POOL = 256 * 1024, /* the same, for large heads and TLS */
    MAX_LISTENERS = 16,
};

typedef struct connection connection;

/* What an event of the epoll set belongs to: first member of what it points to. */
typedef enum watched { WATCHED_WAKE, WATCHED_DAEMON, WATCHED_LISTENER, WATCHED_CONNECTION } watched;

typedef struct listener {
    watched watched;
    int fd;        /* -1: closed */
    bool tls, tcp; /* tcp: TCP_INFO is there */
    bool loopback; /* bound to an address of this machine only */
    bool paused;   /* no descriptors left: not polled */
} listener;

enum { DAEMON_SMALL, DAEMON_LARGE, DAEMON_TLS, DAEMON_COUNT };

typedef struct poller {
    watched watched;
    struct MHD_Daemon *daemon; /* NULL: not used */
} poller;

typedef enum phase { PARKED, IDLE, HEADERS, BODY, HANDLED, SENDING, LINGERING } phase;

struct connection {
    watched watched;
    http_server *server;
    connection *previous, *next;
    struct MHD_Connection *mhd; /* NULL: parked or lingering */
    exchange *exchange;         /* between a request's first line and the end of its answer */
    double since;               /* of the phase, or of the last progress in it; seconds */
    uint64_t taken;    /* SENDING: what the peer had taken at `since`, in whatever unit the socket has */
    uint64_t received; /* TCP: bytes that had come when the last request was complete */
    int fd;
    phase phase;
    bool tls, tcp, loopback;
    bool fresh;     /* no request of it has come yet, as far as its headers go */
    bool begun;     /* PARKED: something has arrived */
    bool suspended; /* in libmicrohttpd */
    bool left;      /* the client has closed its end */
    bool flushing;  /* IDLE: the kernel still has some of the last answer */
    bool linger;    /* it may still be sending when we close */
};

typedef enum stage { UNANSWERED, REPLIED, STREAMING } stage;

typedef struct answer_header {
    struct answer_header *next;
    char *value; /* behind the name */
    char name[];
} answer_header;

struct exchange {
    atomic_int references, users;
    http_server *server;
    connection *connection; /* HTTP thread; NULL: the request has ended there */

    /* The request: written by the HTTP thread before a handler is called, then constant. */
    char id[32];
    double started;
    const route *route;      /* NULL: none */
    const char *method;      /* of bounded variety */
    bool head, options, old; /* old: HTTP/1.0 */
    bool begun, dispatched, has_body, discard, close, wrong_method;
    bool late;     /* came after the drain had begun */
    char *target;  /* as it came; then its path, decoded */
    char *query;   /* name, value, name, value, ..., each NUL-terminated, then an empty name */
    char *headers; /* the same */
    const char *argument, *origin; /* origin: that may read the answer, or NULL */
    char *body;
    size_t length, capacity, read; /* read: bytes of the body, kept or not */
    int key;
    unsigned methods;   /* of the path, as bits: see http_route.c */
    http_error refusal; /* status 0: none */

    pthread_mutex_t lock; /* of what follows */
    stage stage;
    bool waiting, left, ended, broken;
    int status;
    char *type;
    answer_header *answer_headers;
    char *reply;
    size_t reply_length;
    char *data; /* of a stream: not yet given to libmicrohttpd */
    size_t data_begin, data_end, data_capacity;
    uint64_t written, sent;
    void (*gone)(void *context);
    void *gone_context;
    http_record record;

    /* under the server's lock */
    exchange *next_ready, *next_work;
    bool ready;
};

struct http_server {
    atomic_int references;
    http_options options; /* its texts and lists are copies */
    int epoll, wake;
    watched wake_watched;
    listener listeners[MAX_LISTENERS];
    int listener_count;
    poller pollers[DAEMON_COUNT];
    char *certificate, *key; /* PEM */
    int port;
    dev_t socket_device; /* of the file at unix_path that we made */
    ino_t socket_inode;
    bool socket_made;

    pthread_t thread;
    bool thread_started;
    atomic_bool unlisten, unlistened, accepting, leaving, draining, drained, stopping;
    atomic_size_t open, connection_count, fresh_count;
    double now, paused_until, next_sweep;
    size_t most_connections; /* since memory was last given back */
    connection *connections;
    connection *adding; /* the one in MHD_add_connection */
    char peeked[PEEKED + 1];

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work;
    bool held; /* under the lock: who is ready is not told yet */
    exchange *ready_first, *ready_last;
    exchange *work_first, *work_last;
    bool quit;
    pthread_t *workers;
    unsigned worker_count;
};

double http_now(void);
void http_server_unref(http_server *server);

/* ---- http_exchange.c ---- */

/* A new exchange with one reference and one user's; NULL without memory. */
exchange *http_exchange_new(http_server *server, const char *target);
void http_exchange_ref(exchange *exchange);
void http_exchange_unref(exchange *exchange);
/* The connection is lost, or the server stops. Once. */
void http_exchange_leave(exchange *exchange);
/* An error in the shape of the exchange's route; owned, NULL without memory. */
char *http_error_text(const route *route, const http_error *error, const char *id);
void http_error_set(http_error *error, int status, const char *message);
void http_new_id(char id[32]);

/* ---- http_request.c: the request as bytes and texts ---- */

typedef enum head_verdict { HEAD_WAIT, HEAD_SMALL, HEAD_LARGE, HEAD_REFUSED } head_verdict;
/* Looks at the first bytes of a connection; HEAD_WAIT: more must come. HEAD_REFUSED fills `error`. */
head_verdict http_head_check(const char *bytes, size_t length, http_error *error);
/* Copies headers, splits target and query; 0, or -1 without memory. What is wrong goes to `refusal`. */
int http_request_read(exchange *exchange, const char *method, const char *version);
bool http_token(const char *text, size_t length);
/* The next name after `name` in a list of names and values, NULL at the end. */
const char *http_next(const char *name);
const char *http_value(const char *list, const char *name, bool any_case);

/* ---- http_route.c ---- */

void http_route_find(exchange *exchange, const char *method);
/* "GET, HEAD, OPTIONS" of exchange->methods. */
void http_route_methods(unsigned methods, char *text, size_t size);

/* ---- http_guard.c ---- */

/* Refuses what may not be: hosts, keys, kinds and lengths of bodies. Fills refusal, key and origin. */
void http_guard(exchange *exchange);

/* ---- http_listen.c ---- */

int http_listen(http_server *server, char *message, size_t size);
void http_listen_close(http_server *server);
int http_fail(char *message, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- http_connection.c: libmicrohttpd ---- */

int http_daemons_start(http_server *server, char *message, size_t size);
/* Gives a parked connection to libmicrohttpd. */
void http_connection_hand_over(connection *connection, int which);
/* Answers on a parked connection, past libmicrohttpd. `bare`: without the body. */
void http_connection_refuse(const connection *connection, const char *id, const http_error *error, bool bare);
/* Lets a suspended connection go on. */
void http_connection_resume(connection *connection);

/* ---- http_watch.c: the HTTP thread ---- */

void *http_thread(void *server);
/* Something is ready for the connection of this exchange. Any thread. */
void http_wake_exchange(exchange *exchange);
void http_wake(http_server *server);
/* Forgets it; its descriptor is somebody else's business. */
/* A request of it has come. */
void http_connection_begins(connection *connection);
void http_connection_free(connection *connection);
/* Keeps a second descriptor of a socket that is about to be closed, and reads it empty. */
void http_connection_linger(connection *connection, int fd);
/* Whether the kernel has bytes that the peer has not taken. */
bool http_connection_unsent(const connection *connection);
/* Bytes that have come (TCP), 0 when the socket does not say. */
uint64_t http_connection_received(const connection *connection);

/* ---- http_server.c ---- */

void http_work_add(http_server *server, exchange *exchange);

#endif
