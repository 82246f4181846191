#include "openai.h"

#include "pump.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const char OPENAI_STREAM_TYPE[] = "text/event-stream", OPENAI_HEARTBEAT[] = ": ping\n\n";

/* ---- handlers ---- */

static void no_memory(http_error *error) {
    const sluice_error inner = {.code = SLUICE_ERR_NOMEM, .message = "out of memory for the request"};
    error_from_sluice(&inner, error);
}

int openai_open(const server *s, exchange *x, json_t **body, http_error *error) {
    size_t length;
    const char *bytes = exchange_body(x, &length);
    *body = NULL;
    return server_admit(s, x, error) ? -1 : body_parse(bytes, length, body, error);
}

/* A generation of the body's model, which takes it over; NULL: *error. */
static generation *create(server *s, exchange *x, json_t *body, http_error *error) {
    static const field MODEL = {"model", FIELD_TEXT, 0, 0, 0, NULL};
    const char *name = NULL;
    served_model *m = NULL;
    if (body_fields(body, "", &MODEL, 1, &name, error) || !(m = server_model(s, body, error))) {
        json_decref(body);
        return NULL;
    }
    generation *g = generation_create(s, x, m, body);
    if (!g) {
        no_memory(error);
    }
    return g;
}

generation *openai_request(server *s, exchange *x, openai_reader *read, void *fields) {
    http_error error;
    json_t *body = NULL;
    generation *g = NULL;
    if (openai_open(s, x, &body, &error) || read(body, fields, &error)) {
        json_decref(body);
    } else {
        g = create(s, x, body, &error);
    }
    if (!g) {
        exchange_fail(x, &error);
    }
    return g;
}

/* ---- fields ---- */

typedef struct common_fields {
    const json_t *stream_options, *response_format;
    int64_t priority; /* vLLM's: lower is earlier */
} common_fields;

static const field COMMON_FIELDS[] = {
    {"stream_options", FIELD_OBJECT, offsetof(common_fields, stream_options), 0, 0, NULL},
    {"priority", FIELD_WHOLE, offsetof(common_fields, priority), -INT32_MAX, INT32_MAX, NULL},
    {"response_format", FIELD_ANY, offsetof(common_fields, response_format), 0, 0, NULL},
    {"audio", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"modalities", FIELD_UNSUPPORTED, 0, 0, 0, "[\"text\"]|[]"},
    {"prediction", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"web_search_options", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"moderation", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"documents", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"media_io_kwargs", FIELD_UNSUPPORTED, 0, 0, 0, "{}"},
    {"mm_processor_kwargs", FIELD_UNSUPPORTED, 0, 0, 0, "{}"},
    {"prompt_embeds", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"verbose", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
};

static const field STREAM_FIELDS[] = {
    {"include_usage", FIELD_BOOL, offsetof(generation_options, include_usage), 0, 0, NULL},
    {"continuous_usage_stats", FIELD_BOOL, offsetof(generation_options, continuous_usage), 0, 0, NULL},
};

int openai_read_fields(generation *g, http_error *error) {
    const json_t *body = generation_body(g);
    generation_options *o = generation_get_options(g);
    common_fields f = {0};
    if (body_fields(body, "", GENERATION_FIELDS, GENERATION_FIELD_COUNT, o, error) ||
        body_fields(body, "", COMMON_FIELDS, sizeof COMMON_FIELDS / sizeof *COMMON_FIELDS, &f, error) ||
        body_fields(f.stream_options, "stream_options.", STREAM_FIELDS,
                    sizeof STREAM_FIELDS / sizeof *STREAM_FIELDS, o, error)) {
        return -1;
    }
    o->priority = -f.priority;
    o->structured.format = f.response_format;
    return 0;
}

/* ---- the state ---- */

openai_state *openai_state_create(generation *g, const openai_names *names, http_error *error) {
    openai_state *s = calloc(1, sizeof *s);
    char id[64];
    if (s) {
        const served_model *m = generation_model(g);
        make_id(names->id_prefix, id);
        text_format(&s->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%.0f,\"model\":", id,
                    generation_get_options(g)->stream ? names->chunk : names->answer,
                    floor(generation_created(g)));
        text_string(&s->head, m->id, strlen(m->id));
        text_format(&s->head, ",\"system_fingerprint\":\"sluice-%s\",\"choices\":[", sluice_version());
        s->choices = calloc(BODY_CHOICES, sizeof *s->choices);
        s->started = s->sent = monotonic_seconds();
    }
    if (!s || s->head.failed || !s->choices) {
        no_memory(error);
        openai_state_free(s);
        return NULL;
    }
    return s;
}

void openai_state_free(void *state) {
    openai_state *s = state;
    if (!s) {
        return;
    }
    text_free(&s->head);
    text_free(&s->event);
    for (size_t i = 0; i < s->echo_count; i++) {
        text_free(&s->echoes[i]);
    }
    free(s->echoes);
    free(s->choices);
    free(s);
}

/* ---- chunks ---- */

text *openai_chunk_begin(openai_state *s, const choice *c) {
    text_clear(&s->event);
    text_put(&s->event, "data: ");
    text_add(&s->event, s->head.data, s->head.length);
    text_format(&s->event, "{\"index\":%zu", c->index);
    return &s->event;
}

void openai_chunk_close(openai_state *s, const char *finish) {
    text_put(&s->event, ",\"finish_reason\":");
    text_put(&s->event, finish);
    text_put(&s->event, "}]");
}

/* Behind the choices: ends the chunk and writes it. */
static void send_event(generation *g, openai_state *s) {
    static const char FAILED[] = "data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                                 "\"param\":null,\"code\":null}}\n\n";
    text_put(&s->event, "}\n\n");
    if (s->broken) {
        return;
    }
    s->broken = s->event.failed;
    exchange_write(generation_exchange(g), s->broken ? FAILED : s->event.data,
                   s->broken ? sizeof FAILED - 1 : s->event.length);
}

static void write_timings(generation *g, text *out) {
    text_put(out, ",\"timings\":");
    generation_write_timings(g, out);
}

void openai_write_progress(const generation *g, openai_state *s, size_t read, size_t total) {
    generation_usage u;
    generation_get_usage(g, &u);
    text_format(&s->event,
                ",\"prompt_progress\":{\"total\":%zu,\"cache\":%zu,\"processed\":%zu,\"time_ms\":%.0f}",
                total, u.cached_tokens, read, (monotonic_seconds() - s->started) * 1e3);
}

void openai_chunk_send(generation *g, openai_state *s, bool timings) {
    const generation_options *o = generation_get_options(g);
    if (o->include_usage || o->continuous_usage) {
        text_put(&s->event, ",\"usage\":");
        if (o->continuous_usage) {
            generation_write_usage(g, &s->event);
        } else {
            text_put(&s->event, "null");
        }
    }
    if (timings) {
        write_timings(g, &s->event);
    }
    send_event(g, s);
}

void openai_begin(generation *g, void *state) {
    /* Headers are out. Load tools take the first chunk for the first token, so nothing is sent before that.
     */
    (void)g;
    (void)state;
}

/* Usage if asked for, and [DONE]. */
static void end_stream(generation *g, openai_state *s) {
    static const char DONE[] = "data: [DONE]\n\n";
    if (generation_get_options(g)->include_usage) {
        text_clear(&s->event);
        text_put(&s->event, "data: ");
        text_add(&s->event, s->head.data, s->head.length);
        text_put(&s->event, "],\"usage\":");
        generation_write_usage(g, &s->event);
        write_timings(g, &s->event);
        send_event(g, s);
    }
    if (!s->broken) {
        exchange_write(generation_exchange(g), DONE, sizeof DONE - 1);
    }
}

void openai_fail(generation *g, void *state, const http_error *error) {
    openai_state *s = state;
    text_clear(&s->event);
    text_put(&s->event, "data: {\"error\":");
    write_error(&s->event, error);
    send_event(g, s);
}

/* ---- whole answers ---- */

void openai_end(generation *g, openai_state *s,
                void (*write)(generation *g, openai_state *s, const choice *c)) {
    if (generation_get_options(g)->stream) {
        end_stream(g, s);
        return;
    }
    text_clear(&s->event);
    text_add(&s->event, s->head.data, s->head.length);
    for (size_t i = 0; i < generation_choice_count(g); i++) {
        write(g, s, generation_choice(g, i));
    }
    text_put(&s->event, "],\"usage\":");
    generation_write_usage(g, &s->event);
    write_timings(g, &s->event);
    text_put(&s->event, "}");
    reply_text(generation_exchange(g), &s->event);
}

const char *openai_finish(const choice *c) {
    const bool full = c->finish == SLUICE_FINISH_LENGTH || c->finish == SLUICE_FINISH_CONTEXT;
    return full ? "\"length\"" : c->call_count ? "\"tool_calls\"" : "\"stop\"";
}

bool openai_all_done(const generation *g) {
    for (size_t i = 0; i < generation_choice_count(g); i++) {
        if (!generation_choice(g, i)->done) {
            return false;
        }
    }
    return true;
}

void openai_write_logprob(text *out, float logprob) {
    if (isnan(logprob)) {
        text_put(out, "null");
    } else {
        /* Nine digits are every float; no more is known. */
        text_format(out, "%.9g", logprob < -9999.0F ? -9999.0 : (double)logprob);
    }
}

const char *openai_token_bytes(const generation *g, int32_t token, size_t *length) {
    const char *bytes = "";
    *length = 0;
    if (sluice_token_bytes(generation_model(g)->model, token, &bytes, length, NULL)) {
        bytes = "";
        *length = 0;
    }
    return bytes;
}
