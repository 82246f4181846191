/* The life of the server: bind, load, serve, drain. */
#include "serve.h"

#include "log.h"
#include "pump.h"
#include "vectors.h"
#include "sampling.h"
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

/* A descriptor 0 to 2 that is closed would become a socket, and the log would go there. */
static void fill_standard_descriptors(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    if (fd > 2) {
        close(fd);
    }
}

static void record(void *context, const http_record *r) {
    server *s = context;
    metrics_request(s->metrics, r);
    log_request(s->log, r);
}

/* ---- loading, beside the thread that waits for signals ---- */

typedef struct loader {
    server *server;
    pthread_t thread;
    http_error error;
    _Atomic bool done;
    bool failed;
} loader;

static void *load_default(void *argument) {
    loader *l = argument;
    served_model *m = models_acquire(l->server->models, NULL, &l->error);
    l->failed = !m;
    if (m) {
        log_message(l->server->log, "ready: %s, %d tokens, %d sequences, %s", m->id, m->context, m->sequences,
                    sluice_engine_device(m->engine));
        models_release(l->server->models, m);
        int loading = SERVER_LOADING;
        atomic_compare_exchange_strong(&l->server->life, &loading, SERVER_READY);
        http_server_accept(l->server->http);
        sd_notify(0, "READY=1");
    }
    l->done = true;
    return NULL;
}

/* ---- signals ---- */

/* The next SIGTERM or SIGINT, or 0 when none came in that time. */
static int wait_for_signal(const sigset_t *signals, double seconds) {
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    const int got = sigtimedwait(signals, NULL, &time);
    return got > 0 ? got : 0;
}

/* A second signal: the process ends here. */
static void end_at_signal(const sigset_t *signals, double seconds) {
    const int again = wait_for_signal(signals, seconds);
    if (again) {
        signal(again, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, signals, NULL);
        raise(again);
    }
}

/* Until all answers are complete or the time is over. */
static void drain(server *s, const sigset_t *signals, double seconds) {
    const double until = monotonic_seconds() + seconds;
    while ((!http_server_drain(s->http) || http_server_open(s->http) || pump_count(s->pump)) &&
           monotonic_seconds() < until) {
        end_at_signal(signals, 0.005);
    }
}

/* All goes on, but /health says 503 and connections are not kept: who balances sends the next requests
 * elsewhere, and none comes upon a closed door. */
static void leave(server *s, const sigset_t *signals, double seconds) {
    int ready = SERVER_READY;
    if (seconds <= 0 || !atomic_compare_exchange_strong(&s->life, &ready, SERVER_LEAVING)) {
        return;
    }
    log_message(s->log, "leaving: draining begins in %.1f s", seconds);
    http_server_leave(s->http);
    const double until = monotonic_seconds() + seconds;
    while (s->life == SERVER_LEAVING && monotonic_seconds() < until) {
        end_at_signal(signals, 0.01);
    }
}

enum { HAND_OVER_SECONDS = 5 };

/* A socket that stays has the next server's clients in its queue. Those who were taken from it are served
 * here, also when their request is still on its way. */
static void hand_over(server *s, const sigset_t *signals) {
    const double until = monotonic_seconds() + HAND_OVER_SECONDS;
    int ready = SERVER_READY;
    if (!s->socket_stays) {
        return;
    }
    atomic_compare_exchange_strong(&s->life, &ready, SERVER_LEAVING);
    http_server_leave(s->http);
    while (s->life == SERVER_LEAVING && monotonic_seconds() < until &&
           (!http_server_unlisten(s->http) || http_server_fresh(s->http))) {
        end_at_signal(signals, 0.005);
    }
}

static void end_all(server *s, const char *message, const char *code) {
    http_error error = {.status = 503, .type = "server_error", .code = code, .retry_after = 2};
    snprintf(error.message, sizeof error.message, "%s", message);
    pump_break_all(s->pump, &error);
}

/* Returns the exit code. */
static int run_until_signal(server *s, loader *l, const sigset_t *signals) {
    enum { SECONDS_TO_BREAK = 5 };
    bool loaded = false;
    int got = 0;
    while (!got && s->life != SERVER_FAILED) {
        got = wait_for_signal(signals, loaded ? 0.25 : 0.01);
        if (!loaded && l->done) {
            loaded = true;
            if (l->failed) {
                log_message(s->log, "%s", l->error.message);
                return 1;
            }
        }
    }
    sd_notify(0, "STOPPING=1");
    leave(s, signals, s->options->leave_seconds);
    hand_over(s, signals);
    const bool failed = s->life == SERVER_FAILED;
    if (!failed) {
        s->life = SERVER_DRAINING;
    }
    const size_t open = http_server_open(s->http);
    log_message(s->log, failed ? "the engine has failed, ending" : "draining: %zu requests, at most %.0f s",
                open, s->options->drain_seconds);
    drain(s, signals, failed ? 1 : s->options->drain_seconds);
    if (pump_count(s->pump)) {
        end_all(s, "the server is shutting down", "server_draining");
        drain(s, signals, SECONDS_TO_BREAK);
    }
    return failed ? 1 : 0;
}

/* ---- */

static int fail_early(const char *message) {
    fprintf(stderr, "sluice: serve: %s\n", message);
    return 1;
}

/* A sluice_progress: a server that is told to end does not finish loading first. */
static bool goes_on(void *context, uint64_t done, uint64_t total) {
    const server *s = context;
    (void)done;
    (void)total;
    return server_get_life(s) != SERVER_DRAINING;
}

/* What people who send requests to a model may want to know of it; models.h's `loaded`. */
static void say_loaded(void *context, const served_model *m) {
    const server *s = context;
    text values = {0};
    if (model_sampling_describe(&m->sampling, &values) && !values.failed) {
        log_message(s->log, "%s: the model's own sampling, where a request does not say otherwise: %s (%s)",
                    m->id, values.data, m->sampling.facts.file);
    }
    if (m->facts.builtin) {
        log_message(s->log,
                    "%s: the model has no chat template: ChatML is used (--chat-template NAME takes another)",
                    m->id);
    }
    if (m->sampling.refused) {
        log_message(s->log, "%s: the order of samplers in %s is not followed: %s", m->id,
                    m->sampling.facts.file, m->sampling.error.message);
    }
    text_free(&values);
}

static void complain(void *context, const char *line) {
    const server *s = context;
    log_message(s->log, "%s", line);
}

static int make_parts(server *s, const serve_options *o, http_error *error) {
    sluice_engine_options engine = *o->engine;
    engine.progress = goes_on;
    engine.progress_context = s;
    const models_options models = {.paths = o->model_paths,
                                   .names = o->model_names,
                                   .count = o->model_count,
                                   .strict = o->strict_model,
                                   .engine = &engine,
                                   .model = o->model,
                                   .template_options = o->template_options,
                                   .thought_tokens = o->thought_tokens,
                                   .no_sampling = o->no_model_sampling,
                                   .loaded = say_loaded,
                                   .loaded_context = s,
                                   .expert_stats = o->expert_stats,
                                   .complain = complain};
    s->options = o;
    s->started = (double)time(NULL);
    s->log = log_create(STDERR_FILENO, o->json_log);
    s->metrics = metrics_create(o->model_names[0]);
    s->pump = pump_create(s);
    s->vectors = vectors_create(s);
    snprintf(error->message, sizeof error->message, "out of memory");
    return !s->log || !s->metrics || !s->pump || !s->vectors ? -1 : models_create(&models, &s->models, error);
}

static void say_where(const server *s, const serve_options *o) {
    if (o->http.unix_path) {
        log_message(s->log, "listening on unix:%s", o->http.unix_path);
    }
    if (http_server_port(s->http)) {
        const bool v6 = o->http.host && strchr(o->http.host, ':');
        log_message(s->log, "listening on %s://%s%s%s:%d", o->http.tls_certificate ? "https" : "http",
                    v6 ? "[" : "", o->http.host ? o->http.host : "localhost", v6 ? "]" : "",
                    http_server_port(s->http));
    }
}

static int start(server *s, http_options *http, char *message, size_t size) {
    http->context = s;
    http->record = record;
    if (sd_listen_fds(1) > 0) {
        http->inherited_socket = SD_LISTEN_FDS_START;
        http->host = NULL;
        s->socket_stays = true;
        http->held = true; /* who connects finds the model loaded: the socket was there before, and stays */
    }
    return http_server_start(http, &s->http, message, size);
}

int serve(const serve_options *o) {
    fill_standard_descriptors();
    signal(SIGPIPE, SIG_IGN);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* in all threads from here on */
    server s = {.life = SERVER_LOADING};
    http_error error = {0};
    http_options http = o->http;
    route *routes = routes_join(&http.route_count);
    http.routes = routes;
    for (size_t i = 0; routes && o->open_metrics && i < http.route_count; i++) {
        routes[i].open |= strcmp(routes[i].path, "/metrics") == 0;
    }
    char message[512] = "out of memory";
    int code = !routes || make_parts(&s, o, &error) ? fail_early(error.message) : 0;
    if (code == 0 && start(&s, &http, message, sizeof message)) {
        code = fail_early(message);
    }
    loader l = {.server = &s};
    if (code == 0) {
        say_where(&s, o);
        code = pthread_create(&l.thread, NULL, load_default, &l) ? fail_early("cannot start a thread") : 0;
        if (code == 0) {
            code = run_until_signal(&s, &l, &signals);
            pthread_join(l.thread, NULL);
        }
    }
    pump_stop(s.pump); /* its thread speaks with the connections' */
    http_server_stop(s.http);
    vectors_destroy(s.vectors);
    pump_destroy(s.pump);
    models_destroy(s.models);
    metrics_destroy(s.metrics);
    log_destroy(s.log);
    free(routes);
    return code;
}
