#include "round.h"

#include "series.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { AT_ONCE = 32 }; /* requests that begin before those that run get their turn */
static const double RETRY_SECONDS = 0.1, RETRY_MOST = 10, PROGRESS_SECONDS = 0.1;

/* ---- clients ---------------------------------------------------------------------------------------------
 */

static load_client *new_client(load_round *r) {
    if (r->count == r->most) {
        const size_t most = r->most ? 2 * r->most : 16;
        load_client **clients = realloc(r->clients, most * sizeof *clients);
        if (!clients) {
            return NULL;
        }
        r->clients = clients;
        r->most = most;
    }
    load_client *c = malloc(sizeof *c);
    if (!c || load_client_open(r->load, c)) {
        free(c);
        return NULL;
    }
    c->stamp = &r->wire.stamp;
    c->live = &r->live;
    c->counts_from = r->counts_from;
    r->clients[r->count++] = c;
    return c;
}

/* May another request begin? */
static bool may_begin(const load_round *r) {
    return r->options->requests == 0 || r->result->started < r->options->requests;
}

static int begin_request(load_round *r, load_client *c) {
    const double now = load_now();
    if (load_client_prepare(r->load, c, now) || curl_multi_add_handle(r->wire.multi, c->easy) != CURLM_OK) {
        return -1;
    }
    c->number = r->result->started++;
    c->running = true;
    r->running++;
    if (r->running > r->result->most_running) {
        r->result->most_running = r->running;
    }
    return 0;
}

static int begin_talk(load_round *r, load_client *c, double due) {
    r->busy++;
    c->due = due;
    return load_talk_begin(&r->load->work, &c->talk, r->load->next_talk++) ? -1 : begin_request(r, c);
}

/* A place for a conversation; NULL: none is free, or no memory, which *failed says. */
static load_client *take_place(load_round *r, bool *failed) {
    load_client *c = r->idle;
    const int64_t most = r->result->concurrency > 0 ? r->result->concurrency : LOAD_RUNNING;
    *failed = false;
    if (c) {
        r->idle = c->next;
        return c;
    }
    if ((int64_t)r->count >= most) {
        return NULL;
    }
    c = new_client(r);
    *failed = c == NULL;
    return c;
}

/* ---- who asks when ---------------------------------------------------------------------------------------
 */

static void rest(load_round *r, load_client *c, double wake) {
    c->wake = wake;
    if (wake <= load_now()) {
        c->next = NULL;
        *r->ready_end = c;
        r->ready_end = &c->next;
        return;
    }
    c->next = r->resting;
    r->resting = c;
    r->soonest = r->soonest <= 0 || wake < r->soonest ? wake : r->soonest;
}

/* Those whose rest is over. */
static void wake_due(load_round *r) {
    const double now = load_now();
    if (r->soonest <= 0 || now < r->soonest) {
        return;
    }
    load_client *list = r->resting;
    r->resting = NULL;
    r->soonest = 0;
    while (list) {
        load_client *c = list;
        list = c->next;
        rest(r, c, c->wake);
    }
}

static int go_on(load_round *r, load_client *c) {
    if (!may_begin(r)) {
        return 0;
    }
    if (c->talk.turn > 0) {
        c->due = c->wake;
        return begin_request(r, c);
    }
    return begin_talk(r, c, c->wake);
}

/* Gaps between arrivals have the mean 1 / rate, whatever the burstiness. */
static double draw_gap(load_round *r) {
    const double shape = r->options->burstiness;
    return load_random_gamma(&r->arrivals, shape) / (shape * r->result->rate);
}

static int begin_arrivals(load_round *r) {
    double now = load_now();
    for (int i = 0; i < AT_ONCE && r->next_arrival <= now && may_begin(r); i++, now = load_now()) {
        bool failed;
        load_client *c = take_place(r, &failed);
        if (!c) {
            r->next_waited = r->result->held = true;
            return failed ? -1 : 0;
        }
        /* What came while there was no place is late by no fault of the generator. */
        r->places_from = r->next_waited ? now : r->places_from;
        const double from = r->next_arrival > r->places_from ? r->next_arrival : r->places_from;
        if (load_series_add(&r->result->late, 1000 * (now - from))) {
            return -1;
        }
        if (begin_talk(r, c, r->next_arrival)) {
            return -1;
        }
        r->next_arrival += draw_gap(r);
        r->next_waited = false;
    }
    return 0;
}

static int begin_due(load_round *r) {
    int result = 0;
    wake_due(r);
    for (int i = 0; i < AT_ONCE && r->ready && result == 0; i++) {
        load_client *c = r->ready;
        r->ready = c->next;
        r->ready_end = r->ready ? r->ready_end : &r->ready;
        result = go_on(r, c);
    }
    return result == 0 && r->result->rate > 0 ? begin_arrivals(r) : result;
}

/* When something is to begin; 0: when something ends. */
static double next_due(const load_round *r) {
    double due = r->ready ? load_now() : r->soonest;
    const bool arrives = r->result->rate > 0 && !r->next_waited && may_begin(r);
    if (arrives && (due <= 0 || r->next_arrival < due)) {
        due = r->next_arrival;
    }
    return due;
}

/* ---- what ends -------------------------------------------------------------------------------------------
 */

/* After an answer: the next turn, the next conversation of a closed loop, or a free place. */
static int follow(load_round *r, load_client *c, load_outcome outcome, double now) {
    if (outcome == LOAD_DONE && load_talk_goes_on(&r->load->work, &c->talk)) {
        if (load_talk_answer(&r->load->work, &c->talk, &c->answer.text)) {
            return -1;
        }
        rest(r, c, now + r->options->think);
        return 0;
    }
    r->busy--;
    load_talk_end(&c->talk);
    if (r->result->rate > 0) {
        c->next = r->idle;
        r->idle = c;
        return 0;
    }
    double wait = outcome == LOAD_FAILED ? RETRY_SECONDS : 0;
    if (outcome == LOAD_FAILED && c->retry_after > 0) {
        wait = c->retry_after < RETRY_MOST ? c->retry_after : RETRY_MOST;
    }
    rest(r, c, now + wait);
    return 0;
}

static int collect(load_round *r) {
    int left, result = 0;
    const CURLMsg *message;
    while (result == 0 && (message = curl_multi_info_read(r->wire.multi, &left)) != NULL) {
        char *pointer = NULL;
        const CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &pointer);
        load_client *c = (load_client *)(void *)pointer;
        const double now = load_now();
        const load_outcome outcome = load_client_judge(c, code, now);
        curl_multi_remove_handle(r->wire.multi, c->easy);
        c->running = false;
        r->running--;
        result = load_count(r, c, outcome);
        result = result == 0 ? follow(r, c, outcome, now) : result;
    }
    return result;
}

/* ---- the run ---------------------------------------------------------------------------------------------
 */

/* false: it is to end. */
static bool show_progress(load_round *r, double now) {
    const load_options *o = r->options;
    if (!o->progress || now < r->next_progress) {
        return true;
    }
    r->next_progress = now + PROGRESS_SECONDS;
    const load_progress progress = {
        .seconds = now - r->began,
        .warm = now >= r->counts_from,
        .started = r->result->started,
        .done = r->result->done,
        .failed = r->result->failed,
        .running = r->running,
        .tokens = r->live,
    };
    return o->progress(o->progress_context, &progress);
}

static bool has_ended(load_round *r) {
    const double now = load_now();
    if (!show_progress(r, now)) {
        r->result->interrupted = true;
        return true;
    }
    return (r->ends > 0 && now >= r->ends) || (!may_begin(r) && r->running == 0);
}

static int begin_clients(load_round *r) {
    const double now = load_now();
    int result = 0;
    for (int32_t i = 0; i < r->result->concurrency && result == 0; i++) {
        load_client *c = new_client(r);
        result = c ? 0 : -1;
        if (c) {
            rest(r, c, now);
        }
    }
    return result;
}

static int run_round(load_round *r) {
    int result = r->result->rate > 0 ? 0 : begin_clients(r);
    while (result == 0 && !has_ended(r)) {
        result = begin_due(r);
        double due = next_due(r);
        due = r->ends > 0 && (due <= 0 || r->ends < due) ? r->ends : due;
        result = result == 0 ? load_wire_wait(&r->wire, due, &r->result->late) : result;
        result = result == 0 ? collect(r) : result;
    }
    return result;
}

/* Those whom the end cuts off. */
static int cut(load_round *r) {
    const double now = load_now();
    int result = 0;
    for (size_t i = 0; i < r->count && result == 0; i++) {
        load_client *c = r->clients[i];
        c->end = now;
        result = c->running ? load_count(r, c, LOAD_UNFINISHED) : 0;
    }
    return result;
}

static void close_round(load_round *r) {
    for (size_t i = 0; i < r->count; i++) {
        if (r->clients[i]->running) {
            curl_multi_remove_handle(r->wire.multi, r->clients[i]->easy);
        }
        load_client_close(r->clients[i]);
        free(r->clients[i]);
    }
    free(r->clients);
    load_wire_close(&r->wire);
}

static double processor_seconds(void) {
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    return (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
           1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
}

int load_run(load *load, double rate, int32_t concurrency, load_result *result, char message[LOAD_MESSAGE]) {
    const load_options *o = load->options;
    *result = (load_result){.rate = rate, .concurrency = concurrency};
    load_round r = {.load = load, .options = o, .result = result};
    r.ready_end = &r.ready;
    if (load_wire_open(&r.wire, message)) {
        return -1;
    }
    const double processor = processor_seconds();
    r.began = load_now();
    r.counts_from = r.began + o->warmup;
    r.ends = o->seconds > 0 ? r.counts_from + o->seconds : 0;
    r.arrivals = load_random_new(o->seed ^ 0x61727269u, (uint64_t)load->next_talk);
    r.next_arrival = rate > 0 ? r.began + draw_gap(&r) : 0;
    int code = run_round(&r);
    const double now = load_now();
    code = code == 0 ? cut(&r) : code;
    result->processor_seconds = processor_seconds() - processor;
    result->wall_seconds = now - r.began;
    if (code == 0) {
        load_conclude(&r, now);
    } else {
        snprintf(message, LOAD_MESSAGE, "out of memory or descriptors, or the trace cannot be written");
        load_result_free(result);
    }
    close_round(&r);
    return code;
}
