/* A server's life: options, threads, the queue of requests for workers. */
#include "http_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- options: copied, for the server outlives what its caller read them from ---- */

static bool copy_text(const char **text) {
    if (*text) {
        *text = strdup(*text);
        return *text != NULL;
    }
    return true;
}

static bool copy_list(const char *const **list, size_t *count) {
    const char *const *from = *list;
    const size_t length = *count;
    *count = 0;
    const char **made = calloc(length + 1, sizeof *made);
    *list = made;
    for (size_t i = 0; made && i < length; i++) {
        made[i] = strdup(from[i]);
        if (!made[i]) {
            return false;
        }
        *count = i + 1;
    }
    return made != NULL;
}

/* All of them even after a failure, so that what is freed is ours. */
static bool copy_options(http_options *options) {
    bool copied = copy_text(&options->host);
    copied &= copy_text(&options->unix_path);
    copied &= copy_text(&options->tls_certificate);
    copied &= copy_text(&options->tls_key);
    copied &= copy_list(&options->keys, &options->key_count);
    copied &= copy_list(&options->origins, &options->origin_count);
    copied &= copy_list(&options->hosts, &options->host_count);
    return copied;
}

static void wipe(void *memory, size_t size) {
    explicit_bzero(memory, size);
    free(memory);
}

static void free_list(const char *const *list, size_t count) {
    for (size_t i = 0; list && i < count; i++) {
        wipe((char *)list[i], strlen(list[i])); /* keys are among them */
    }
    free((void *)list);
}

static void free_options(http_options *options) {
    free((char *)options->host);
    free((char *)options->unix_path);
    free((char *)options->tls_certificate);
    free((char *)options->tls_key);
    free_list(options->keys, options->key_count);
    free_list(options->origins, options->origin_count);
    free_list(options->hosts, options->host_count);
}

/* ---- memory ---- */

void http_server_unref(http_server *server) {
    if (atomic_fetch_sub(&server->references, 1) != 1) {
        return;
    }
    if (server->wake >= 0) {
        close(server->wake);
    }
    if (server->epoll >= 0) {
        close(server->epoll);
    }
    if (server->key) {
        wipe(server->key, strlen(server->key));
    }
    free(server->certificate);
    free(server->workers);
    free_options(&server->options);
    pthread_cond_destroy(&server->work);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

static http_server *make_server(const http_options *options) {
    http_server *server = calloc(1, sizeof *server);
    if (!server) {
        return NULL;
    }
    server->epoll = server->wake = -1;
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->work, NULL);
    atomic_init(&server->references, 1);
    server->options = *options;
    server->options.workers = options->workers ? options->workers : 1;
    server->wake_watched = WATCHED_WAKE;
    server->now = http_now();
    if (!copy_options(&server->options)) {
        http_server_unref(server);
        return NULL;
    }
    return server;
}

/* A whole file as text, or NULL with a message. */
static char *read_file(const char *path, char *message, size_t size) {
    enum { MOST = 1024 * 1024 };
    FILE *file = fopen(path, "rbe");
    char *text = file ? malloc(MOST + 1) : NULL;
    const size_t length = text ? fread(text, 1, MOST + 1, file) : 0;
    if (!text || ferror(file) || length == 0 || length > MOST) {
        http_fail(message, size, "%s: %s", path,
                  !file           ? strerror(errno)
                  : length > MOST ? "larger than 1 MiB"
                                  : "not readable, or empty");
        free(text);
        text = NULL;
    } else {
        text[length] = '\0';
    }
    if (file) {
        fclose(file);
    }
    return text;
}

/* ---- workers ---- */

void http_work_add(http_server *server, exchange *exchange) {
    exchange->next_work = NULL;
    pthread_mutex_lock(&server->lock);
    *(server->work_first ? &server->work_last->next_work : &server->work_first) = exchange;
    server->work_last = exchange;
    pthread_cond_signal(&server->work);
    pthread_mutex_unlock(&server->lock);
}

static exchange *take_work(http_server *server) {
    pthread_mutex_lock(&server->lock);
    while (!server->work_first && !server->quit) {
        pthread_cond_wait(&server->work, &server->lock);
    }
    exchange *taken = server->work_first;
    if (taken) {
        server->work_first = taken->next_work;
    }
    pthread_mutex_unlock(&server->lock);
    return taken;
}

static void *worker_thread(void *argument) {
    http_server *server = argument;
    exchange *taken;
    while ((taken = take_work(server))) {
        pthread_mutex_lock(&taken->lock);
        const bool left = taken->left;
        pthread_mutex_unlock(&taken->lock);
        if (!left) {
            taken->route->handle(taken, server->options.context);
        }
        exchange_release(taken);
    }
    return NULL;
}

/* ---- life ---- */

/* As many descriptors as we may have, and a limit of connections that leaves some for everything else. */
static void fit_limits(http_server *server) {
    enum { OTHERS = 64 };
    struct rlimit limit;
    unsigned *connections = &server->options.connections;
    *connections = *connections ? *connections : 1024;
    if (getrlimit(RLIMIT_NOFILE, &limit)) {
        return;
    }
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur != RLIM_INFINITY && *connections + OTHERS > limit.rlim_cur) {
        *connections =
            limit.rlim_cur > 2 * OTHERS ? (unsigned)(limit.rlim_cur - OTHERS) : (unsigned)limit.rlim_cur / 2;
    }
}

static int start_threads(http_server *server, char *message, size_t size) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the caller's; SIGPIPE nobody's */
    int error = 0;
    server->workers = calloc(server->options.workers, sizeof *server->workers);
    for (unsigned i = 0; server->workers && i < server->options.workers && !error; i++) {
        error = pthread_create(&server->workers[i], NULL, worker_thread, server);
        server->worker_count += !error;
    }
    if (server->workers && !error) {
        error = pthread_create(&server->thread, NULL, http_thread, server);
        server->thread_started = !error;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return server->thread_started ? 0
                                  : http_fail(message, size, "threads: %s", strerror(error ? error : ENOMEM));
}

static int start(http_server *server, char *message, size_t size) {
    const http_options *options = &server->options;
    fit_limits(server);
    if (options->tls_certificate || options->tls_key) {
        if (!options->tls_certificate || !options->tls_key) {
            return http_fail(message, size, "TLS needs a certificate and a key, not one of them");
        }
        server->certificate = read_file(options->tls_certificate, message, size);
        server->key = server->certificate ? read_file(options->tls_key, message, size) : NULL;
        if (!server->key) {
            return -1;
        }
    }
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->wake_watched};
    if (server->epoll < 0 || server->wake < 0 ||
        epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->wake, &event)) {
        return http_fail(message, size, "events: %s", strerror(errno));
    }
    if (http_listen(server, message, size) || http_daemons_start(server, message, size)) {
        return -1;
    }
    return start_threads(server, message, size);
}

int http_server_start(const http_options *options, http_server **server, char *message, size_t size) {
    *server = NULL;
    http_server *made = make_server(options);
    if (!made) {
        return http_fail(message, size, "out of memory");
    }
    *server = made; /* handlers may run before the end of this and look at it */
    if (start(made, message, size)) {
        *server = NULL;
        http_server_stop(made);
        return -1;
    }
    return 0;
}

int http_server_port(const http_server *server) {
    return server->port;
}

void http_server_accept(http_server *server) {
    atomic_store(&server->accepting, true);
    http_wake(server);
}

void http_server_leave(http_server *server) {
    atomic_store(&server->leaving, true);
}

bool http_server_unlisten(http_server *server) {
    if (!atomic_exchange(&server->unlisten, true)) {
        http_wake(server);
    }
    return atomic_load(&server->unlistened);
}

bool http_server_drain(http_server *server) {
    atomic_store(&server->leaving, true);
    if (!atomic_exchange(&server->draining, true)) {
        http_wake(server);
    }
    return atomic_load(&server->drained);
}

size_t http_server_open(const http_server *server) {
    return atomic_load(&server->open);
}

size_t http_server_fresh(const http_server *server) {
    return atomic_load(&server->fresh_count);
}

size_t http_server_connections(const http_server *server) {
    return atomic_load(&server->connection_count);
}

void http_server_stop(http_server *server) {
    if (!server) {
        return;
    }
    atomic_store(&server->stopping, true);
    if (server->thread_started) {
        http_wake(server);
        pthread_join(server->thread, NULL);
    } else { /* it failed to start */
        http_listen_close(server);
        for (int i = 0; i < DAEMON_COUNT; i++) {
            if (server->pollers[i].daemon) {
                MHD_stop_daemon(server->pollers[i].daemon);
            }
        }
    }
    pthread_mutex_lock(&server->lock);
    server->quit = true;
    pthread_cond_broadcast(&server->work);
    pthread_mutex_unlock(&server->lock);
    for (unsigned i = 0; i < server->worker_count; i++) {
        pthread_join(server->workers[i], NULL);
    }
    http_server_unref(server);
}
