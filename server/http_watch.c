/* The HTTP thread: new connections, those that wait for their first request, clients that leave, deadlines.
 */
#include "http_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, ACCEPTED_AT_ONCE = 64, MANY_CONNECTIONS = 1000 };

/* Seconds for which a refused client may go on sending, and for which nothing is accepted without
 * descriptors. */
static const double LINGER_SECONDS = 2, PAUSE_SECONDS = 0.2;

double http_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void http_wake(http_server *server) {
    const uint64_t one = 1;
    (void)!write(server->wake, &one, sizeof one); /* fails only when it is awake already */
}

void http_wake_exchange(exchange *exchange) {
    http_server *server = exchange->server;
    bool first = false;
    pthread_mutex_lock(&server->lock);
    if (!exchange->ready) {
        exchange->ready = true;
        exchange->next_ready = NULL;
        http_exchange_ref(exchange);
        const bool alone = !server->ready_first;
        first = alone && !server->held;
        *(alone ? &server->ready_first : &server->ready_last->next_ready) = exchange;
        server->ready_last = exchange;
    }
    pthread_mutex_unlock(&server->lock);
    if (first) {
        http_wake(server);
    }
}

void http_server_hold(http_server *server, bool held) {
    pthread_mutex_lock(&server->lock);
    server->held = held;
    const bool ready = server->ready_first && !held;
    pthread_mutex_unlock(&server->lock);
    if (ready) {
        http_wake(server);
    }
}

static void take_ready(http_server *server) {
    for (;;) {
        pthread_mutex_lock(&server->lock);
        exchange *first = server->ready_first;
        if (first) {
            server->ready_first = first->next_ready;
            first->ready = false;
        }
        pthread_mutex_unlock(&server->lock);
        if (!first) {
            return;
        }
        if (first->connection) {
            http_connection_resume(first->connection);
        }
        http_exchange_unref(first);
    }
}

/* ---- connections ---- */

static bool tcp_info(const connection *connection, struct tcp_info *info) {
    socklen_t length = sizeof *info;
    memset(info, 0, sizeof *info);
    return connection->tcp && getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0;
}

uint64_t http_connection_received(const connection *connection) {
    struct tcp_info info;
    return tcp_info(connection, &info) ? info.tcpi_bytes_received : 0;
}

void http_connection_begins(connection *connection) {
    if (connection->fresh) {
        connection->fresh = false;
        atomic_fetch_sub(&connection->server->fresh_count, 1);
    }
}

void http_connection_free(connection *connection) {
    http_server *server = connection->server;
    *(connection->previous ? &connection->previous->next : &server->connections) = connection->next;
    if (connection->next) {
        connection->next->previous = connection->previous;
    }
    http_connection_begins(connection);
    free(connection);
    atomic_fetch_sub(&server->connection_count, 1);
    server->paused_until = 0; /* there may be a descriptor again */
}

/* One that libmicrohttpd does not have. */
static void close_own(connection *connection) {
    close(connection->fd);
    http_connection_free(connection);
}

static bool watch(http_server *server, int fd, void *what, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

void http_connection_linger(connection *connection, int fd) {
    connection->fd = fd;
    connection->phase = LINGERING;
    connection->since = connection->server->now;
    if (fd < 0) {
        http_connection_free(connection);
        return;
    }
    shutdown(fd, SHUT_WR);
    if (!watch(connection->server, fd, connection, EPOLLIN | EPOLLRDHUP | EPOLLET)) {
        close_own(connection);
    }
}

static void drop_exchange(connection *connection) {
    exchange *exchange = connection->exchange;
    if (!exchange) {
        return;
    }
    pthread_mutex_lock(&exchange->lock);
    const bool left = exchange->left;
    pthread_mutex_unlock(&exchange->lock);
    if (!left) {
        http_exchange_leave(exchange);
    }
}

/* Ends a connection of libmicrohttpd: it sees that the socket is closed. Not freed yet. */
static void break_off(connection *connection) {
    drop_exchange(connection);
    shutdown(connection->fd, SHUT_RDWR);
    http_connection_resume(connection);
}

static void close_any(connection *connection) {
    if (connection->mhd) {
        break_off(connection);
    } else {
        close_own(connection);
    }
}

/* The client has closed its end, or the connection is broken. An answer that is complete is still sent, for
 * what it is worth; libmicrohttpd sees by itself what it is waiting to read. */
static void lost(connection *connection) {
    exchange *exchange = connection->exchange;
    connection->left = true;
    if (!exchange || !exchange->dispatched) {
        return;
    }
    pthread_mutex_lock(&exchange->lock);
    const bool unfinished =
        exchange->stage == UNANSWERED || (exchange->stage == STREAMING && !exchange->ended);
    pthread_mutex_unlock(&exchange->lock);
    if (unfinished) {
        break_off(connection);
    }
}

/* ---- parked connections ---- */

/* Refuses what libmicrohttpd has not seen. */
static void refuse_parked(connection *connection, const http_error *error, bool bare);

static void on_parked(connection *connection) {
    http_server *server = connection->server;
    const ssize_t length = recv(connection->fd, server->peeked, PEEKED, MSG_PEEK | MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EINTR) && !connection->left) {
        return;
    }
    if (length <= 0) {
        close_own(connection);
        return;
    }
    if (!connection->begun) {
        connection->begun = true;
        connection->since = server->now;
    }
    if (connection->tls) {
        http_connection_hand_over(connection, DAEMON_TLS);
        return;
    }
    http_error error;
    switch (http_head_check(server->peeked, (size_t)length, &error)) {
    case HEAD_WAIT:
        if (connection->left) {
            close_own(connection);
        }
        break;
    case HEAD_SMALL:
        http_connection_hand_over(connection, DAEMON_SMALL);
        break;
    case HEAD_LARGE:
        http_connection_hand_over(connection, DAEMON_LARGE);
        break;
    case HEAD_REFUSED:
        refuse_parked(connection, &error, length >= 5 && memcmp(server->peeked, "HEAD ", 5) == 0);
        break;
    }
}

static void refuse_parked(connection *connection, const http_error *error, bool bare) {
    http_server *server = connection->server;
    char id[32];
    http_new_id(id);
    http_connection_refuse(connection, id, error, bare);
    if (server->options.record) {
        const http_record record = {.id = id, .method = "OTHER", .route = "", .status = error->status};
        server->options.record(server->options.context, &record);
    }
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    http_connection_linger(connection, connection->fd);
}

/* Throws away what a refused client still sends. */
static void on_lingering(connection *connection) {
    http_server *server = connection->server;
    for (int i = 0; i < 64; i++) { /* what is left after that waits for the next event or the deadline */
        const ssize_t length = recv(connection->fd, server->peeked, PEEKED, MSG_DONTWAIT);
        if (length < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (length <= 0) {
            close_own(connection);
            return;
        }
    }
}

static void on_event(connection *connection, uint32_t events) {
    connection->left |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (connection->phase == PARKED) {
        on_parked(connection);
    } else if (connection->phase == LINGERING) {
        on_lingering(connection);
    } else if (connection->left) {
        lost(connection);
    } else if (connection->phase == IDLE && (events & EPOLLIN)) {
        /* The event of bytes that libmicrohttpd has taken already may come late: they began nothing new. */
        const uint64_t received = http_connection_received(connection);
        if (!received || received != connection->received) {
            connection->phase = HEADERS;
            connection->since = connection->server->now;
        }
    }
}

/* ---- accepting ---- */

static void pause_listeners(http_server *server, bool pause) {
    for (int i = 0; i < server->listener_count; i++) {
        listener *listener = &server->listeners[i];
        if (listener->fd >= 0 && listener->paused != pause) {
            struct epoll_event event = {.events = pause ? 0 : EPOLLIN, .data.ptr = listener};
            epoll_ctl(server->epoll, EPOLL_CTL_MOD, listener->fd, &event);
            listener->paused = pause;
        }
    }
}

/* Closes the connection that has been without a request for longest, to make room; false when there is none.
 */
static void evict(http_server *server) {
    connection *oldest = NULL;
    for (connection *one = server->connections; one; one = one->next) {
        const bool idle =
            (one->phase == PARKED && !one->begun) || one->phase == IDLE || one->phase == LINGERING;
        if (idle && !one->left && one->since < server->now && (!oldest || one->since < oldest->since)) {
            oldest = one;
        }
    }
    if (oldest) {
        oldest->left = true; /* libmicrohttpd's are closed a moment later: not chosen twice */
        close_any(oldest);
    }
}

/* Whether somebody waits and there is room again at once. Else the listeners wait until a connection is gone,
 * or a moment: without descriptors they would be ready for ever. */
static bool make_room(http_server *server, const listener *listener) {
    struct pollfd waiting = {.fd = listener->fd, .events = POLLIN};
    if (poll(&waiting, 1, 0) <= 0) {
        return false; /* nobody has to go yet */
    }
    const size_t before = atomic_load(&server->connection_count);
    evict(server);
    if (atomic_load(&server->connection_count) < before) {
        return true;
    }
    pause_listeners(server, true);
    server->paused_until = server->now + PAUSE_SECONDS;
    return false;
}

static void add_connection(http_server *server, const listener *listener, int fd) {
    connection *made = calloc(1, sizeof *made);
    if (!made) {
        close(fd);
        return;
    }
    *made = (connection){.watched = WATCHED_CONNECTION,
                         .server = server,
                         .next = server->connections,
                         .since = server->now,
                         .fd = fd,
                         .phase = PARKED,
                         .fresh = true,
                         .tls = listener->tls,
                         .tcp = listener->tcp,
                         .loopback = listener->loopback};
    if (server->connections) {
        server->connections->previous = made;
    }
    server->connections = made;
    atomic_fetch_add(&server->connection_count, 1);
    atomic_fetch_add(&server->fresh_count, 1);
    if (!watch(server, fd, made, EPOLLIN | EPOLLRDHUP | EPOLLET)) {
        close_own(made);
    }
}

static void accept_some(http_server *server, listener *listener) {
    for (int i = 0; i < ACCEPTED_AT_ONCE && listener->fd >= 0 && !listener->paused; i++) {
        if (atomic_load(&server->connection_count) >= server->options.connections &&
            !make_room(server, listener)) {
            return;
        }
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            add_connection(server, listener, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            if (!make_room(server, listener)) {
                return;
            }
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return; /* EAGAIN, or a network's own errors, which come with the next connection again */
        }
    }
}

/* ---- deadlines ---- */

/* A number that changes when the peer takes something; `*nothing`: there is nothing for it to take. */
static uint64_t taken_by_peer(const connection *connection, bool *nothing) {
    struct tcp_info info;
    int queued = 0;
    const bool known = ioctl(connection->fd, SIOCOUTQ, &queued) == 0;
    *nothing = known && queued == 0;
    if (tcp_info(connection, &info)) {
        return info.tcpi_bytes_acked;
    }
    return (uint64_t)queued;
}

static bool stalled(connection *connection) {
    http_server *server = connection->server;
    bool nothing;
    const uint64_t taken = taken_by_peer(connection, &nothing);
    connection->flushing &= !nothing;
    if (taken != connection->taken || (nothing && connection->suspended)) {
        connection->taken = taken;
        connection->since = server->now;
    }
    return server->now - connection->since > server->options.stall_seconds;
}

bool http_connection_unsent(const connection *connection) {
    int queued = 0;
    return ioctl(connection->fd, SIOCOUTQ, &queued) == 0 && queued > 0;
}

/* The client has closed its end, and all that it sent is read. libmicrohttpd does not see an end that came
 * before its first read. */
static bool nothing_comes(const connection *connection) {
    int unread = 0;
    return connection->left && !connection->tls && ioctl(connection->fd, FIONREAD, &unread) == 0 &&
           unread == 0;
}

static bool too_late(connection *connection) {
    const http_server *server = connection->server;
    const double passed = server->now - connection->since;
    switch (connection->phase) {
    case PARKED:
        return passed > (connection->begun ? server->options.header_seconds : server->options.idle_seconds);
    case IDLE:
        return connection->flushing ? stalled(connection) : passed > server->options.idle_seconds;
    case HEADERS:
        return nothing_comes(connection) || passed > server->options.header_seconds;
    case BODY:
        return nothing_comes(connection) || passed > server->options.stall_seconds;
    case HANDLED:
        return false;
    case SENDING:
        return stalled(connection);
    case LINGERING:
        return passed > LINGER_SECONDS;
    }
    return false;
}

static void sweep(http_server *server) {
    for (connection *one = server->connections, *next; one; one = next) {
        next = one->next;
        if (too_late(one)) {
            if (one->phase == PARKED && one->begun && !one->tls) {
                http_error error;
                http_error_set(&error, 408, "the request's headers did not come in time");
                refuse_parked(one, &error, false);
                continue;
            }
            if (one->phase == SENDING || one->flushing) { /* what the kernel still holds for it goes too */
                const struct linger now = {.l_onoff = 1};
                setsockopt(one->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
            }
            close_any(one);
        }
    }
    /* Thousands of pools lie between what others allocated: what they were goes back to the system. */
    const size_t count = atomic_load(&server->connection_count);
    server->most_connections = count > server->most_connections ? count : server->most_connections;
    if (server->most_connections >= MANY_CONNECTIONS && count < server->most_connections / 4) {
        server->most_connections = count;
        malloc_trim(0);
    }
}

/* ---- drain and stop ---- */

static void drain(http_server *server) {
    http_listen_close(server);
    atomic_store(&server->drained, true);
    for (connection *one = server->connections, *next; one; one = next) {
        next = one->next;
        int waiting = 0; /* a request that has come already is answered */
        if (((one->phase == PARKED && !one->begun) || one->phase == IDLE) &&
            (ioctl(one->fd, FIONREAD, &waiting) || waiting == 0)) {
            close_any(one);
        }
    }
}

static void close_all(http_server *server) {
    http_listen_close(server);
    for (connection *one = server->connections, *next; one; one = next) {
        next = one->next;
        close_any(one);
    }
    for (int i = 0; i < DAEMON_COUNT; i++) {
        if (server->pollers[i].daemon) {
            MHD_stop_daemon(server->pollers[i].daemon);
            server->pollers[i].daemon = NULL;
        }
    }
    take_ready(server);
}

/* ---- the loop ---- */

static int run_daemons(http_server *server) {
    int wait = -1;
    for (int i = 0; i < DAEMON_COUNT; i++) {
        MHD_UNSIGNED_LONG_LONG timeout = 1;
        if (server->pollers[i].daemon) {
            MHD_run(server->pollers[i].daemon);
            if (MHD_get_timeout(server->pollers[i].daemon, &timeout) == MHD_YES && timeout == 0) {
                wait = 0;
            }
        }
    }
    return wait;
}

static double tick(const http_options *options) {
    double least =
        options->header_seconds < options->stall_seconds ? options->header_seconds : options->stall_seconds;
    least = (options->idle_seconds < least ? options->idle_seconds : least) / 8;
    return least > 0.5 ? 0.5 : least < 0.01 ? 0.01 : least;
}

static void take_events(http_server *server, int timeout) {
    struct epoll_event events[EVENTS];
    listener *accepting[MAX_LISTENERS];
    int count = 0;
    const int found = epoll_wait(server->epoll, events, EVENTS, timeout);
    server->now = http_now();
    for (int i = 0; i < found; i++) {
        const watched *watched = events[i].data.ptr;
        uint64_t number;
        switch (*watched) {
        case WATCHED_WAKE:
            (void)!read(server->wake, &number, sizeof number);
            break;
        case WATCHED_DAEMON:
            break; /* all of them run in each round */
        case WATCHED_LISTENER:
            accepting[count++] = events[i].data.ptr;
            break;
        case WATCHED_CONNECTION:
            on_event(events[i].data.ptr, events[i].events);
            break;
        }
    }
    /* Last: it may free connections that stand among the events. */
    for (int i = 0; i < count; i++) {
        accept_some(server, accepting[i]);
    }
}

void *http_thread(void *argument) {
    http_server *server = argument;
    const double ticks = tick(&server->options);
    int wait = 0;
    for (int i = 0; i < server->listener_count; i++) {
        watch(server, server->listeners[i].fd, &server->listeners[i], EPOLLIN);
    }
    if (server->options.held) {
        pause_listeners(server, true);
        server->paused_until = INFINITY;
    }
    while (!atomic_load(&server->stopping)) {
        const bool timed = server->connections || server->paused_until > server->now;
        take_events(server, wait == 0 ? 0 : timed ? (int)(ticks * 1000) : -1);
        take_ready(server);
        if (atomic_load(&server->unlisten) && !atomic_load(&server->unlistened)) {
            http_listen_close(server);
            atomic_store(&server->unlistened, true);
        }
        if (atomic_load(&server->draining) && !atomic_load(&server->drained)) {
            drain(server);
        }
        wait = run_daemons(server);
        if (server->options.held && atomic_load(&server->accepting)) {
            server->options.held = false;
            server->paused_until = server->now;
        }
        if (server->paused_until <= server->now) {
            pause_listeners(server, false);
        }
        if (server->now >= server->next_sweep) {
            sweep(server);
            server->next_sweep = server->now + ticks;
            wait = 0; /* libmicrohttpd sees now what was broken off */
        }
    }
    close_all(server);
    return NULL;
}
