/* What Ollama's API writes: objects, one a line in a stream. */
#include "ollama.h"

#include "pump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

char *ollama_error_body(const http_error *error, const char *request_id) {
    text body = {0};
    size_t length;
    (void)request_id;
    text_put(&body, "{\"error\":");
    text_string(&body, error->message, strlen(error->message));
    text_put(&body, "}");
    return text_take(&body, &length);
}

void ollama_write_time(text *out, double seconds) {
    const time_t whole = (time_t)seconds;
    struct tm parts;
    char date[32] = "1970-01-01T00:00:00";
    if (gmtime_r(&whole, &parts)) {
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
    }
    text_format(out, "\"%s.%06dZ\"", date, (int)((seconds - (double)whole) * 1e6));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void ollama_write_head(text *out, const served_model *m) {
    text_put(out, "{\"model\":");
    text_string(out, m->id, strlen(m->id));
    text_put(out, ",\"created_at\":");
    ollama_write_time(out, now());
}

/* Pieces of an answer, "" and 0 for none. */
typedef struct words {
    const char *content, *thinking;
    size_t content_length, thinking_length;
    const choice *of;
    size_t first_call, call_count; /* of its calls */
} words;

/* Arguments are objects, so a call is told when it is complete. */
static void write_calls(text *out, const words *w) {
    for (size_t i = w->first_call; i < w->first_call + w->call_count; i++) {
        const tool_call *call = &w->of->calls[i];
        text_format(out, "%s{\"id\":\"%s\",\"function\":{\"index\":%zu,\"name\":",
                    i > w->first_call ? "," : ",\"tool_calls\":[", call->id, i);
        text_string(out, call->name.data, call->name.length);
        text_put(out, ",\"arguments\":");
        text_add(out, call->arguments.data, call->arguments.length);
        text_put(out, "}}");
    }
    text_put(out, w->call_count ? "]" : "");
}

/* One that a limit cut has no object. */
static size_t complete_calls(const choice *c) {
    size_t count = c->call_count;
    while (count > 0 && !c->calls[count - 1].ended) {
        count--;
    }
    return count;
}

static void write_words(text *out, const ollama_state *s, const words *w) {
    text_put(out, s->chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    text_string(out, w->content, w->content_length);
    if (w->thinking_length > 0) {
        text_put(out, ",\"thinking\":");
        text_string(out, w->thinking, w->thinking_length);
    }
    if (s->chat) {
        write_calls(out, w);
    }
    text_put(out, s->chat ? "}" : "");
}

static void write_logprobs(text *out, const generation *g, const ollama_state *s, const choice *c,
                           size_t first, size_t count) {
    if (s->logprobs && count > 0) {
        text_put(out, ",\"logprobs\":");
        api_write_logprobs(out, g, c, first, count);
    }
}

static long long nanoseconds(double seconds) {
    return seconds > 0 ? (long long)(seconds * 1e9) : 0;
}

static void write_end(text *out, const ollama_state *s, const choice *c) {
    const sluice_event *e = &c->ended;
    text_format(
        out,
        ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%lld,\"load_duration\":%lld,"
        "\"prompt_eval_count\":%zu,\"prompt_eval_duration\":%lld,\"eval_count\":%zu,\"eval_duration\":%lld}",
        api_is_cut(c) ? "length" : "stop", nanoseconds(monotonic_seconds() - s->started + s->load_seconds),
        nanoseconds(s->load_seconds), c->prompt_tokens, nanoseconds(e->prompt_seconds - e->queue_seconds),
        c->generated_tokens, nanoseconds(e->generate_seconds));
}

static void send(generation *g, ollama_state *s) {
    text_put(&s->writer.event, "\n");
    event_send(g, &s->writer);
}

/* ---- the dialect ---- */

static void begin(generation *g, void *state) {
    ollama_state *s = state;
    (void)g;
    s->writer.failure = "{\"error\":\"out of memory\"}\n";
}

static void piece_line(generation *g, void *state, const choice *c, const piece *p) {
    ollama_state *s = state;
    text *out = &s->writer.event;
    words w = {p->content, p->reasoning, p->content_length, p->reasoning_length, c, 0, 0};
    for (size_t i = 0; i < p->call_count; i++) {
        w.first_call = p->calls[i].ends && w.call_count == 0 ? p->calls[i].call : w.first_call;
        w.call_count += p->calls[i].ends;
    }
    if (p->call_count && !w.call_count && !w.content_length && !w.thinking_length) {
        return;
    }
    ollama_write_head(out, generation_model(g));
    write_words(out, s, &w);
    write_logprobs(out, g, s, c, p->first_entry, p->entry_count);
    text_put(out, ",\"done\":false}");
    send(g, s);
}

static void choice_end(generation *g, void *state, const choice *c) {
    (void)g;
    (void)state;
    (void)c;
}

static void end(generation *g, void *state) {
    ollama_state *s = state;
    const choice *c = api_choice(g);
    const bool stream = generation_get_options(g)->stream;
    text *out = &s->writer.event;
    words w = {"", "", 0, 0, c, 0, 0};
    if (!stream) {
        w = (words){c->content.data,  c->reasoning.data, c->content.length, c->reasoning.length, c, 0,
                    complete_calls(c)};
    }
    ollama_write_head(out, generation_model(g));
    write_words(out, s, &w);
    write_logprobs(out, g, s, c, 0, stream ? 0 : c->entry_count);
    write_end(out, s, c);
    if (stream) {
        send(g, s);
    } else {
        reply_text(generation_exchange(g), out);
    }
}

static void fail(generation *g, void *state, const http_error *error) {
    ollama_state *s = state;
    text *out = &s->writer.event;
    text_put(out, "{\"error\":");
    text_string(out, error->message, strlen(error->message));
    text_put(out, "}");
    send(g, s);
}

static void release(void *state) {
    ollama_state *s = state;
    text_free(&s->writer.event);
    free(s);
}

/* There is nothing in such a stream that clients would pass over, so it has no heartbeat. */
const dialect OLLAMA_DIALECT = {
    .name = "ollama",
    .content_type = "application/x-ndjson",
    .begin = begin,
    .piece = piece_line,
    .choice_end = choice_end,
    .end = end,
    .fail = fail,
    .release = release,
};
