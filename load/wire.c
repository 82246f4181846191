#include "wire.h"

#include "series.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static const double TICK = 0.005; /* seconds */
enum { EVENTS = 256, TICKS_MOST = 2000 };

double load_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct timespec to_timespec(double seconds) {
    const time_t whole = (time_t)seconds;
    return (struct timespec){whole, (long)((seconds - (double)whole) * 1e9)};
}

/* `what` CURL_POLL_REMOVE comes before the socket is closed. `known`: is it in the set? */
static int on_socket(CURL *easy, curl_socket_t socket, int what, void *context, void *known) {
    (void)easy;
    load_wire *wire = context;
    struct epoll_event event = {.data.fd = socket};
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(wire->poll, EPOLL_CTL_DEL, socket, &event);
        curl_multi_assign(wire->multi, socket, NULL);
        return 0;
    }
    event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (epoll_ctl(wire->poll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event)) {
        wire->failed = true;
    }
    curl_multi_assign(wire->multi, socket, wire);
    return 0;
}

static int on_timer(CURLM *multi, long milliseconds, void *context) {
    (void)multi;
    load_wire *wire = context;
    wire->curl_due = milliseconds < 0 ? 0 : load_now() + 1e-3 * (double)milliseconds;
    return 0;
}

static int watch(load_wire *wire, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    return descriptor < 0 ? -1 : epoll_ctl(wire->poll, EPOLL_CTL_ADD, descriptor, &event);
}

int load_wire_open(load_wire *wire, char message[LOAD_MESSAGE]) {
    *wire = (load_wire){.poll = -1, .timer = -1, .clock = -1};
    wire->multi = curl_multi_init();
    wire->poll = epoll_create1(EPOLL_CLOEXEC);
    wire->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    wire->clock = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    wire->next_tick = load_now() + TICK;
    const struct itimerspec ticks = {to_timespec(TICK), to_timespec(wire->next_tick)};
    if (!wire->multi || wire->poll < 0 || watch(wire, wire->timer) || watch(wire, wire->clock) ||
        timerfd_settime(wire->clock, TFD_TIMER_ABSTIME, &ticks, NULL)) {
        snprintf(message, LOAD_MESSAGE, "cannot wait for connections: %s",
                 errno ? strerror(errno) : "out of memory");
        load_wire_close(wire);
        return -1;
    }
    curl_multi_setopt(wire->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(wire->multi, CURLMOPT_SOCKETDATA, wire);
    curl_multi_setopt(wire->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(wire->multi, CURLMOPT_TIMERDATA, wire);
    curl_multi_setopt(wire->multi, CURLMOPT_MAXCONNECTS, (long)LOAD_RUNNING);
    curl_multi_setopt(wire->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    return 0;
}

static void close_descriptor(int *descriptor) {
    if (*descriptor >= 0) {
        close(*descriptor);
    }
    *descriptor = -1;
}

void load_wire_close(load_wire *wire) {
    if (wire->multi) {
        curl_multi_cleanup(wire->multi);
    }
    wire->multi = NULL;
    close_descriptor(&wire->timer);
    close_descriptor(&wire->clock);
    close_descriptor(&wire->poll);
}

static void act(load_wire *wire, curl_socket_t socket, int what) {
    int running;
    wire->stamp = load_now();
    if (curl_multi_socket_action(wire->multi, socket, what, &running) != CURLM_OK) {
        wire->failed = true;
    }
}

static void act_when_due(load_wire *wire) {
    if (wire->curl_due > 0 && load_now() >= wire->curl_due) {
        wire->curl_due = 0;
        act(wire, CURL_SOCKET_TIMEOUT, 0);
    }
}

static int read_ticks(load_wire *wire, load_series *late) {
    uint64_t count = 0;
    int result = 0;
    if (read(wire->clock, &count, sizeof count) != sizeof count) {
        return 0;
    }
    const double now = load_now();
    for (uint64_t i = 0; i < count && i < TICKS_MOST && result == 0; i++) {
        const double lateness = now - (wire->next_tick + TICK * (double)i);
        result = load_series_add(late, lateness > 0 ? 1000 * lateness : 0);
    }
    wire->next_tick += TICK * (double)count;
    return result;
}

/* Sets the timer to what is due first. */
static void arm(load_wire *wire, double due) {
    if (wire->curl_due > 0 && (due <= 0 || wire->curl_due < due)) {
        due = wire->curl_due;
    }
    if (due != wire->armed) {
        const struct itimerspec once = {.it_value = to_timespec(due)};
        timerfd_settime(wire->timer, TFD_TIMER_ABSTIME, &once, NULL);
        wire->armed = due;
    }
}

int load_wire_wait(load_wire *wire, double due, load_series *late) {
    struct epoll_event events[EVENTS];
    uint64_t expired;
    act_when_due(wire);
    arm(wire, due);
    const int count = epoll_wait(wire->poll, events, EVENTS, 1000);
    if (count < 0 && errno != EINTR) {
        return -1;
    }
    int result = 0;
    for (int i = 0; i < count && result == 0; i++) {
        const int descriptor = events[i].data.fd;
        const uint32_t what = events[i].events;
        if (descriptor == wire->clock) {
            result = read_ticks(wire, late);
        } else if (descriptor == wire->timer) {
            wire->armed = read(wire->timer, &expired, sizeof expired) > 0 ? 0 : wire->armed;
        } else {
            act(wire, descriptor,
                (what & EPOLLIN ? CURL_CSELECT_IN : 0) | (what & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                    (what & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0));
        }
    }
    act_when_due(wire);
    return result || wire->failed ? -1 : 0;
}
