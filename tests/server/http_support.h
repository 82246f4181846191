/* A small application over the HTTP side of the server, and a small client. */
#ifndef SLUICE_TEST_HTTP_SUPPORT_H
#define SLUICE_TEST_HTTP_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "http.h"

#include <pthread.h>
#include <stdatomic.h>

/* Seconds: longer than anything that is expected to happen takes, sanitizers and a busy machine included. */
extern const double PATIENCE;
double now(void);
void pause_for(double seconds);

/* ---- the application: routes of all kinds, see ROUTES ---- */

extern atomic_int gone_count, handled_count; /* calls of `gone`, and of the handler of /echo */

typedef struct kept_record {
    char id[64], method[16], route[64];
    int status;
    uint64_t generated;
    int count;
} kept_record;
extern pthread_mutex_t record_lock;
extern kept_record last_record;

http_options defaults(void);
http_server *start(const http_options *options);
/* The exchange that /hold or /feed was called with last, once; the caller releases it. NULL: none came. */
exchange *take_held(void);
void reply_text(exchange *exchange, const char *text);

/* ---- the client ---- */

int connect_server(const http_server *server);
bool send_bytes(int fd, const void *data, size_t length);
void send_text(int fd, const char *text);

enum { TEXT = 1 << 16 };
extern char text[TEXT + 1]; /* what was read last */

/* Reads into `text` until `end` is there (NULL: until the connection ends) or patience is; whether it came.
 */
bool read_until(int fd, const char *end);
/* One request on a connection of its own, read to the end of the connection; the status, or -1. */
int ask(const http_server *server, const char *request);
/* The same for HTTP/1.1 with `Host: localhost` and `Connection: close`. */
int ask_simple(const http_server *server, const char *line, const char *headers, const char *body);
bool answer_has(const char *words);
/* Whether it comes to that within patience. */
bool reaches(atomic_int *count, int wanted);
bool all_closed(const http_server *server, size_t left);

#endif
