#include "pump.h"

#include "serve.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes that a client may leave unread before its events are left with the engine, which holds them anyway.
 */
enum { UNREAD_BYTES = 1 << 20 };
/* Runs that are served before their connections are told. */
enum { TOLD_TOGETHER = 16 };

/* Where steps are made by the same processors each round of serving stops them for a while: events of so much
 * time are served in one. The more who are served the longer a round takes, and the longer are events
 * gathered. */
static const double LEAST_GATHERING = 0.004, MOST_GATHERING = 0.008, GATHERING_FOR_EACH = 0.0005;

static const double TICK_SECONDS = 0.25, STALLED_SECONDS = 0.02, FIRST_HEARTBEAT_SECONDS = 1;

struct pump {
    struct server *server;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* Under the lock. */
    choice_run *first, *last; /* runs that may have events */
    generation *begun;        /* new ones, the latest first */
    generation *active;       /* all that were begun; changed by the thread alone */
    size_t count;             /* begun or active */
    bool attention;           /* somebody left, or all are to end */
    bool breaking, stop;
    bool gathering; /* the thread waits for more events than there are */
    bool ended;     /* a request has, whose events wait: somebody may have another one for its place */
    http_error breaking_error;
    /* Of the thread. */
    bool stalled;
    bool gathers; /* the last that was served has the same processors */
    double gather_until;
    int32_t untold; /* runs that were served */
};

/* ---- the queue ---- */

static void enqueue(pump *p, choice_run *run) {
    if (!run->queued) {
        run->queued = true;
        run->next = NULL;
        run->previous = p->last;
        *(p->last ? &p->last->next : &p->first) = run;
        p->last = run;
    }
}

static void unlink_run(pump *p, choice_run *run) {
    if (run->queued) {
        run->queued = false;
        *(run->previous ? &run->previous->next : &p->first) = run->next;
        *(run->next ? &run->next->previous : &p->last) = run->previous;
    }
}

void pump_notify(void *context) {
    choice_run *run = context;
    pump *p = run->choice->of->pump;
    pthread_mutex_lock(&p->mutex);
    const bool ended = run->queued; /* told twice */
    const bool idle = !p->first && !p->gathering;
    p->ended |= ended;
    if (run->choice->of->begun) {
        enqueue(p, run);
    }
    if (idle || ended) {
        pthread_cond_signal(&p->wake);
    }
    pthread_mutex_unlock(&p->mutex);
}

void pump_begin(pump *p, generation *g) {
    pthread_mutex_lock(&p->mutex);
    g->next_begun = p->begun;
    p->begun = g;
    p->count++;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

static void on_gone(void *context) {
    generation *g = context;
    pump *p = g->pump;
    pthread_mutex_lock(&p->mutex);
    g->gone = true;
    p->attention = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

size_t pump_count(pump *p) {
    pthread_mutex_lock(&p->mutex);
    const size_t count = p->count;
    pthread_mutex_unlock(&p->mutex);
    return count;
}

void pump_break_all(pump *p, const http_error *error) {
    pthread_mutex_lock(&p->mutex);
    p->breaking = p->attention = true;
    p->breaking_error = *error;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

/* ---- entries: tokens with their log-probabilities ---- */

static bool add_entry(token_entry **entries, size_t *count, size_t *room, choice *c, const sluice_event *e) {
    choice_run *run = c->run;
    if (*count == *room) {
        const size_t larger = *room ? 2 * *room : 64;
        token_entry *grown = realloc(*entries, larger * sizeof *grown);
        if (!grown) {
            return false;
        }
        *entries = grown;
        *room = larger;
    }
    if (c->top_count + e->top_count > run->top_room) {
        const size_t larger = 2 * run->top_room + e->top_count + 64;
        sluice_logprob *grown = realloc(c->tops, larger * sizeof *grown);
        if (!grown) {
            return false;
        }
        c->tops = grown;
        run->top_room = larger;
    }
    if (e->top_count) {
        memcpy(c->tops + c->top_count, e->top, e->top_count * sizeof *c->tops);
    }
    (*entries)[(*count)++] =
        (token_entry){e->token, e->logprob, (uint32_t)c->top_count, (uint32_t)e->top_count, false};
    c->top_count += e->top_count;
    return true;
}

/* ---- events ---- */

static void cancel_all(generation *g) {
    for (size_t i = 0; !g->cancelled && i < g->choice_count; i++) {
        if (g->runs[i].request) {
            sluice_cancel(g->runs[i].request);
        }
    }
    g->cancelled = true;
}

/* The first error is what the client hears. */
static void set_error(generation *g, const http_error *error) {
    if (!g->error.status) {
        g->error = *error;
    }
    cancel_all(g);
}

static void set_sluice_error(generation *g, int code, const char *message) {
    const bool ended =
        code == SLUICE_ERR_DEVICE || code == SLUICE_ERR_IO; /* of the engine's device or its files */
    if (ended) {
        g->server->life = SERVER_FAILED;
    }
    sluice_error inner = {.code = ended ? SLUICE_ERR_DEVICE : code};
    http_error error;
    snprintf(inner.message, sizeof inner.message, "%s", message);
    error_from_sluice(&inner, &error);
    set_error(g, &error);
}

static bool is_quiet(const generation *g) {
    return g->gone || g->error.status;
}

/* A new call, with an id such as the model's template takes. */
static bool begin_call(const generation *g, choice *c, const sluice_reply_event *e) {
    choice_run *run = c->run;
    if (c->call_count == run->call_room) {
        const size_t larger = 2 * run->call_room + 4;
        tool_call *grown = realloc(c->calls, larger * sizeof *grown);
        if (!grown) {
            return false;
        }
        c->calls = grown;
        run->call_room = larger;
    }
    tool_call *call = &c->calls[c->call_count++];
    const int32_t length = g->model->facts.call_id_length;
    *call = (tool_call){.ended = false};
    make_id(length ? "" : "call_", call->id);
    if (length) {
        call->id[length] = '\0';
    }
    text_add(&call->name, e->text, e->text_length);
    text_put(&call->arguments, "");
    return !call->name.failed && !call->arguments.failed;
}

/* The piece that tells of the call; the last one where that goes on. NULL: no memory. */
static call_piece *piece_of_call(choice *c, bool begins) {
    choice_run *run = c->run;
    const size_t call = c->call_count - 1;
    call_piece *last = run->call_piece_count ? &run->call_pieces[run->call_piece_count - 1] : NULL;
    if (last && last->call == call && !begins) {
        return last;
    }
    if (run->call_piece_count == run->call_piece_room) {
        const size_t larger = 2 * run->call_piece_room + 4;
        call_piece *grown = realloc(run->call_pieces, larger * sizeof *grown);
        if (!grown) {
            return NULL;
        }
        run->call_pieces = grown;
        run->call_piece_room = larger;
    }
    call_piece *p = &run->call_pieces[run->call_piece_count++];
    *p = (call_piece){.call = call, .begins = begins, .first = c->calls[call].arguments.length};
    return p;
}

static bool take_call_event(const generation *g, choice *c, const sluice_reply_event *e) {
    const bool begins = e->kind == SLUICE_REPLY_CALL;
    if (begins && !begin_call(g, c, e)) {
        return false;
    }
    call_piece *p = piece_of_call(c, begins);
    tool_call *call = &c->calls[c->call_count - 1];
    if (p && e->kind == SLUICE_REPLY_ARGUMENTS) {
        text_add(&call->arguments, e->text, e->text_length);
        p->length += e->text_length;
    } else if (p && e->kind == SLUICE_REPLY_CALL_END) {
        call->ended = p->ends = true;
    }
    return p && !call->arguments.failed;
}

/* Text of an event to the choice. False: no memory. */
static bool read_reply(const generation *g, choice *c, const sluice_event *e, bool last) {
    choice_run *run = c->run;
    if (!run->reply) {
        text_add(&c->content, e->text, e->text_length);
        return !c->content.failed;
    }
    const bool cut = last && e->finish != SLUICE_FINISH_EOS;
    bool good = sluice_reply_feed(run->reply, e->text, e->text_length, NULL) == 0 &&
                (!last || sluice_reply_finish(run->reply, cut, NULL) == 0);
    sluice_reply_event part = {.size = sizeof part};
    while (good && (sluice_reply_next(run->reply, &part), part.kind != SLUICE_REPLY_NONE)) {
        if (part.kind == SLUICE_REPLY_REASONING || part.kind == SLUICE_REPLY_CONTENT) {
            text_add(part.kind == SLUICE_REPLY_CONTENT ? &c->content : &c->reasoning, part.text,
                     part.text_length);
        } else {
            good = take_call_event(g, c, &part);
        }
    }
    return good && !c->content.failed && !c->reasoning.failed;
}

static sluice_reply_kind place_of(const choice_run *run) {
    return run->reply ? sluice_reply_stands_in(run->reply) : SLUICE_REPLY_CONTENT;
}

/* Text of an event to the choice, and both to the dialect. */
static void take_text(generation *g, choice *c, const sluice_event *e, bool last) {
    choice_run *run = c->run;
    const size_t content = c->content.length, reasoning = c->reasoning.length, entries = c->entry_count;
    const bool before = place_of(run) == SLUICE_REPLY_CONTENT;
    run->call_piece_count = 0;
    if (!read_reply(g, c, e, last)) {
        set_sluice_error(g, SLUICE_ERR_NOMEM, "out of memory for the answer's text");
        return;
    }
    const bool after = place_of(run) == SLUICE_REPLY_CONTENT, grew = c->content.length > content;
    for (size_t i = entries; !grew && !(before && after) && i < run->entry_total; i++) {
        c->entries[i].outside = true;
    }
    const bool told = grew || !after || c->reasoning.length > reasoning || run->call_piece_count > 0 ||
                      (!run->reply && e->text_length > 0);
    if (told || (last && e->finish != SLUICE_FINISH_STOP)) {
        c->entry_count = run->entry_total;
    }
    const piece p = {.content = c->content.data ? c->content.data + content : "",
                     .content_length = c->content.length - content,
                     .reasoning = c->reasoning.data ? c->reasoning.data + reasoning : "",
                     .reasoning_length = c->reasoning.length - reasoning,
                     .first_entry = entries,
                     .entry_count = c->entry_count - entries,
                     .calls = run->call_pieces,
                     .call_count = run->call_piece_count};
    if (g->streaming && !is_quiet(g) &&
        (p.content_length || p.reasoning_length || p.entry_count || p.call_count)) {
        g->dialect->piece(g, g->state, c, &p);
        g->last_write = monotonic_seconds();
    }
}

static void take_token(generation *g, choice *c, const sluice_event *e) {
    choice_run *run = c->run;
    metrics *m = g->server->metrics;
    const double now = monotonic_seconds();
    metrics_observe(m, run->last_token > 0 ? METRIC_INTER_TOKEN : METRIC_FIRST_TOKEN,
                    now - (run->last_token > 0 ? run->last_token : g->arrived));
    if (run->last_token > 0) { /* as seen from here; the engine's own times come with the end */
        c->ended.generate_seconds += now - run->last_token;
    } else {
        c->ended.prompt_seconds = now - g->arrived;
    }
    run->last_token = now;
    c->generated_tokens++;
    c->cached_tokens = e->reused_tokens;
    if (g->options.logprobs && !add_entry(&c->entries, &run->entry_total, &run->entry_room, c, e)) {
        set_sluice_error(g, SLUICE_ERR_NOMEM, "out of memory for log-probabilities");
    }
    const bool inside = place_of(run) == SLUICE_REPLY_REASONING;
    take_text(g, c, e, false);
    c->reasoning_tokens += inside || place_of(run) == SLUICE_REPLY_REASONING;
}

static metric_finish finish_of(const generation *g, const choice *c) {
    if (g->gone) {
        return METRIC_ABORT;
    }
    switch (c->finish) {
    case SLUICE_FINISH_EOS:
    case SLUICE_FINISH_STOP:
        return METRIC_STOP;
    case SLUICE_FINISH_LENGTH:
    case SLUICE_FINISH_CONTEXT:
        return METRIC_LENGTH;
    case SLUICE_FINISH_CANCELLED:
        return METRIC_ABORT;
    default:
        return METRIC_ERROR;
    }
}

static void observe_choice(const generation *g, const choice *c) {
    metrics *m = g->server->metrics;
    const sluice_event *e = &c->ended;
    metrics_finish(m, finish_of(g, c));
    metrics_observe(m, METRIC_QUEUE, e->queue_seconds);
    metrics_observe(m, METRIC_PREFILL, e->prompt_seconds - e->queue_seconds);
    metrics_observe(m, METRIC_DECODE, e->generate_seconds);
    metrics_observe(m, METRIC_GENERATION_TOKENS, (double)c->generated_tokens);
    if (c->generated_tokens > 1) {
        metrics_observe(m, METRIC_TOKEN_MEAN, e->generate_seconds / (double)(c->generated_tokens - 1));
    }
    const bool first = c->index % (size_t)g->options.n == 0;
    metrics_tokens(m, first ? c->prompt_tokens : 0, first ? c->cached_tokens : 0, c->generated_tokens);
}

static void take_end(generation *g, choice *c, const sluice_event *e) {
    choice_run *run = c->run;
    c->finish = e->finish;
    c->ended = *e;
    c->ended.text = "";
    c->ended.text_length = 0;
    c->ended.top = NULL;
    c->generated_tokens = e->generated_tokens;
    c->cached_tokens = e->reused_tokens;
    c->stop = e->finish == SLUICE_FINISH_STOP && e->stop >= 0 && (size_t)e->stop < g->stop_count
                  ? g->stops[e->stop]
                  : NULL;
    if (e->finish == SLUICE_FINISH_EOS && run->entry_total > c->entry_count) {
        run->entry_total--; /* the token that ended it is no part of the text */
    }
    take_text(g, c, e, true);
    c->done = true;
    if (e->finish == SLUICE_FINISH_ERROR) {
        set_sluice_error(g, e->error.code, e->error.message);
    } else if (e->finish == SLUICE_FINISH_CANCELLED && !is_quiet(g)) {
        set_sluice_error(g, SLUICE_ERR_CANCELLED, "the request was ended by the server");
    }
    observe_choice(g, c);
    sluice_request_release(run->request);
    sluice_sequence_release(run->sequence);
    run->request = NULL;
    run->sequence = NULL;
    if (g->streaming && !is_quiet(g)) {
        g->dialect->choice_end(g, g->state, c);
        g->last_write = monotonic_seconds();
    }
    g->done_count++;
}

/* ---- the life of a generation ---- */

static void note_counts(const generation *g) {
    generation_usage u;
    generation_get_usage(g, &u);
    const sluice_event *e = &g->choices[0].ended;
    const http_record counts = {.prompt_tokens = u.prompt_tokens,
                                .cached_tokens = u.cached_tokens,
                                .generated_tokens = u.completion_tokens,
                                .queue_seconds = e->queue_seconds,
                                .prompt_seconds = e->prompt_seconds - e->queue_seconds,
                                .generate_seconds = e->generate_seconds};
    exchange_note(g->exchange, &counts);
}

/* 503 says that nothing was done, so that another server may be asked. What had a step is not asked again. */
static void settle_status(generation *g) {
    bool worked = false;
    for (size_t i = 0; i < g->choice_count; i++) {
        const sluice_event *e = &g->choices[i].ended;
        worked |= e->prompt_seconds > e->queue_seconds;
    }
    if (g->error.status == 503 && worked) {
        g->error.status = 500;
        g->error.retry_after = 0;
    }
}

static void end_generation(pump *p, generation *g) {
    settle_status(g);
    metrics_observe(g->server->metrics, METRIC_PROMPT_TOKENS, (double)g->choices[0].prompt_tokens);
    metrics_observe(g->server->metrics, METRIC_TOTAL, monotonic_seconds() - g->arrived);
    note_counts(g);
    if (g->streaming) {
        if (g->error.status && g->dialect->fail) {
            g->dialect->fail(g, g->state, &g->error);
        } else if (!g->error.status && !g->gone) {
            g->dialect->end(g, g->state);
        }
        exchange_end(g->exchange, g->gone);
    } else if (g->error.status) {
        exchange_fail(g->exchange, &g->error);
    } else if (!g->gone) {
        g->dialect->end(g, g->state);
    }
    exchange_on_gone(g->exchange, NULL, NULL);
    pthread_mutex_lock(&p->mutex);
    for (size_t i = 0; i < g->choice_count; i++) {
        unlink_run(p, &g->runs[i]);
    }
    *(g->previous ? &g->previous->next : &p->active) = g->next;
    if (g->next) {
        g->next->previous = g->previous;
    }
    pthread_mutex_unlock(&p->mutex);
    generation_free(g);
    pthread_mutex_lock(&p->mutex);
    p->count--;
    pthread_mutex_unlock(&p->mutex);
}

static void begin_generation(pump *p, generation *g) {
    pthread_mutex_lock(&p->mutex);
    g->next = p->active;
    g->previous = NULL;
    if (p->active) {
        p->active->previous = g;
    }
    p->active = g;
    g->begun = true;
    for (size_t i = 0; i < g->choice_count; i++) {
        enqueue(p, &g->runs[i]);
    }
    if (p->breaking) {
        p->attention = true;
    }
    pthread_mutex_unlock(&p->mutex);
    exchange_on_gone(g->exchange, on_gone, g);
    g->last_write = monotonic_seconds();
    if (g->options.stream) {
        exchange_stream(g->exchange, 200, g->dialect->content_type);
        g->streaming = true;
        g->dialect->begin(g, g->state);
    }
}

/* All events that a run has by now. False: its generation has ended. */
static bool serve_run(pump *p, choice_run *run) {
    choice *c = run->choice;
    generation *g = c->of;
    while (run->request) {
        if (g->streaming && !g->gone && !g->cancelled && exchange_pending(g->exchange) > UNREAD_BYTES) {
            g->stalled = p->stalled = true;
            return true;
        }
        sluice_event e = {.size = sizeof e};
        sluice_error error;
        if (sluice_poll(run->request, 0, &e, &error)) {
            /* The event stays where it is and nothing tells of it again: the next tick asks once more. */
            set_sluice_error(g, error.code, error.message);
            g->stalled = p->stalled = true;
            return true;
        }
        switch (e.kind) {
        case SLUICE_EVENT_TOKEN:
            take_token(g, c, &e);
            break;
        case SLUICE_EVENT_PROMPT:
            if (!add_entry(&c->prompt_entries, &c->prompt_entry_count, &run->prompt_entry_room, c, &e)) {
                set_sluice_error(g, SLUICE_ERR_NOMEM, "out of memory for log-probabilities");
            }
            break;
        case SLUICE_EVENT_DONE:
            take_end(g, c, &e);
            break;
        default:
            return true;
        }
    }
    if (g->done_count == g->choice_count) {
        end_generation(p, g);
        return false;
    }
    return true;
}

/* Of those whose client has left, or all, the requests are ended. */
static void attend(pump *p) {
    pthread_mutex_lock(&p->mutex);
    p->attention = false;
    const bool breaking = p->breaking;
    const http_error error = p->breaking_error;
    pthread_mutex_unlock(&p->mutex);
    for (generation *g = p->active; g; g = g->next) {
        if (breaking && !g->cancelled) {
            set_error(g, &error);
        } else if (g->gone && !g->cancelled) {
            cancel_all(g);
        }
    }
}

/* What a client hears while there is nothing to say. */
static void keep_alive(generation *g, double now) {
    const bool waits = g->choices[0].generated_tokens == 0;
    const bool progress = waits && g->options.return_progress && g->dialect->progress && g->runs[0].request;
    const double patience = progress              ? TICK_SECONDS
                            : waits && !g->beaten ? FIRST_HEARTBEAT_SECONDS
                                                  : g->server->options->heartbeat_seconds;
    if (!g->streaming || is_quiet(g) || now - g->last_write < patience - TICK_SECONDS / 2) {
        return;
    }
    if (progress) {
        size_t read = 0, total = 0;
        sluice_request_progress(g->runs[0].request, &read, &total);
        g->dialect->progress(g, g->state, read, total);
    } else if (g->dialect->heartbeat) {
        exchange_write(g->exchange, g->dialect->heartbeat, strlen(g->dialect->heartbeat));
    }
    g->last_write = now;
    g->beaten = true;
}

static void tick(pump *p, double now) {
    p->stalled = false;
    for (generation *g = p->active; g; g = g->next) {
        if (g->stalled && (g->gone || g->cancelled || exchange_pending(g->exchange) <= UNREAD_BYTES)) {
            g->stalled = false;
            pthread_mutex_lock(&p->mutex);
            for (size_t i = 0; i < g->choice_count; i++) {
                enqueue(p, &g->runs[i]);
            }
            pthread_mutex_unlock(&p->mutex);
        }
        p->stalled |= g->stalled;
        keep_alive(g, now);
    }
}

static bool is_urgent(const pump *p) {
    return p->begun || p->attention || p->stop;
}

static void wait_until(pump *p, double seconds) {
    const struct timespec until = {.tv_sec = (time_t)seconds,
                                   .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    pthread_cond_timedwait(&p->wake, &p->mutex, &until);
}

/* Under the lock: waits for something to do, at most to the next tick. */
static void wait_for_work(pump *p, double next_tick) {
    p->gathering = true;
    while (!is_urgent(p) && !p->ended && monotonic_seconds() < p->gather_until) {
        wait_until(p, p->gather_until);
    }
    p->gathering = false;
    p->ended = p->ended && p->first;
    if (p->first || is_urgent(p)) {
        return;
    }
    if (!p->active) {
        pthread_cond_wait(&p->wake, &p->mutex);
        return;
    }
    wait_until(p, next_tick);
}

/* One of the queue. The connections hear of it with others. */
static void serve_queued(pump *p, choice_run *run) {
    p->gathers = run->choice->of->model->on_host;
    if (p->untold++ == 0) {
        http_server_hold(p->server->http, true);
    }
    serve_run(p, run);
}

/* Under the lock, which it lets go of: at the queue's end, or when many have waited. */
static void tell_connections(pump *p) {
    if (p->untold == 0 || (p->first && p->untold < TOLD_TOGETHER && !p->stop)) {
        return;
    }
    const double longest = LEAST_GATHERING + (double)p->count * GATHERING_FOR_EACH;
    p->gather_until = p->first || !p->gathers ? 0 : monotonic_seconds() + fmin(longest, MOST_GATHERING);
    p->untold = 0;
    pthread_mutex_unlock(&p->mutex);
    http_server_hold(p->server->http, false);
    pthread_mutex_lock(&p->mutex);
}

static void *pump_thread(void *argument) {
    pump *p = argument;
    double next_tick = 0;
    pthread_mutex_lock(&p->mutex);
    while (!p->stop) {
        wait_for_work(p, next_tick);
        generation *begun = p->begun;
        choice_run *run = p->first;
        const bool attention = p->attention;
        p->begun = NULL;
        if (run) {
            unlink_run(p, run);
        }
        pthread_mutex_unlock(&p->mutex);
        for (generation *next; begun; begun = next) {
            next = begun->next_begun;
            begin_generation(p, begun);
        }
        if (attention) {
            attend(p);
        }
        if (run) {
            serve_queued(p, run);
        }
        const double now = monotonic_seconds();
        if (now >= next_tick) {
            tick(p, now);
            next_tick = now + (p->stalled ? STALLED_SECONDS : TICK_SECONDS);
        }
        pthread_mutex_lock(&p->mutex);
        tell_connections(p);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* ---- */

pump *pump_create(struct server *server) {
    pump *p = calloc(1, sizeof *p);
    if (!p) {
        return NULL;
    }
    p->server = server;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&p->thread, NULL, pump_thread, p)) {
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->mutex);
        free(p);
        return NULL;
    }
    return p;
}

/* Those that did not end in time. Their engines may tell of them until each is freed. */
static void break_off(pump *p) {
    for (generation *g; (g = p->begun);) {
        p->begun = g->next_begun;
        g->next = p->active;
        p->active = g;
    }
    for (generation *g = p->active; g; g = g->next) {
        exchange_on_gone(g->exchange, NULL, NULL);
        cancel_all(g);
        pthread_mutex_lock(&p->mutex);
        g->begun = false;
        for (size_t i = 0; i < g->choice_count; i++) {
            unlink_run(p, &g->runs[i]);
        }
        pthread_mutex_unlock(&p->mutex);
    }
    for (generation *g = p->active, *next; g; g = next) {
        next = g->next;
        generation_free(g);
    }
}

void pump_stop(pump *p) {
    if (!p) {
        return;
    }
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
}

void pump_destroy(pump *p) {
    if (!p) {
        return;
    }
    break_off(p);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

/* One place, as llama-server shows it. */
static void describe_place(text *out, size_t index, const generation *g, int32_t context) {
    text_format(out, "%s{\"id\":%zu,\"n_ctx\":%d,\"is_processing\":%s", index ? "," : "", index, context,
                g ? "true" : "false");
    if (g) {
        text_put(out, ",\"model\":");
        text_string(out, g->model->id, strlen(g->model->id));
        text_format(out, ",\"n_prompt_tokens\":%zu,\"request\":\"%s\"", g->choices[0].prompt_tokens,
                    exchange_id(g->exchange));
    }
    text_put(out, "}");
}

void pump_describe(pump *p, text *out) {
    model_status status;
    size_t index = 0;
    models_get_status(p->server->models, 0, &status);
    text_put(out, "[");
    pthread_mutex_lock(&p->mutex);
    for (const generation *g = p->active; g; g = g->next) {
        for (size_t i = 0; i < g->choice_count; i++) {
            describe_place(out, index++, g, g->model->context);
        }
    }
    pthread_mutex_unlock(&p->mutex);
    while (index < (size_t)status.sequences) {
        describe_place(out, index++, NULL, status.context);
    }
    text_put(out, "]");
}
