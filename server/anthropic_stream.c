/* What the Messages API writes: whole messages, and the events that build them up. */
#include "anthropic.h"

#include <stdlib.h>
#include <string.h>

/* ---- small parts ---- */

/* Those of a prompt that were cached are not among its input tokens. */
static void write_usage(text *out, const choice *c) {
    text_format(
        out,
        "\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%zu,"
        "\"output_tokens\":%zu,\"output_tokens_details\":{\"thinking_tokens\":%zu},\"server_tool_use\":null",
        c->prompt_tokens - c->cached_tokens, c->cached_tokens, c->generated_tokens, c->reasoning_tokens);
}

static void write_stop(text *out, const choice *c) {
    const char *reason = api_is_cut(c)   ? "max_tokens"
                         : c->call_count ? "tool_use"
                         : c->stop       ? "stop_sequence"
                                         : "end_turn";
    text_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (c->stop && !c->call_count && !api_is_cut(c)) {
        text_string(out, c->stop, strlen(c->stop));
    } else {
        text_put(out, "null");
    }
}

static void write_thinking(text *out, const char *bytes, size_t length) {
    text_put(out, "{\"type\":\"thinking\",\"thinking\":");
    text_string(out, bytes, length);
    text_put(out, ",\"signature\":\"\"}");
}

static void write_text(text *out, const char *bytes, size_t length) {
    text_put(out, "{\"type\":\"text\",\"text\":");
    text_string(out, bytes, length);
    text_put(out, ",\"citations\":null}");
}

/* The input is an object: of one that a limit cut, what cannot be read is left out. */
static void write_tool(text *out, const tool_call *call, bool whole) {
    text_format(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", call->id);
    text_string(out, call->name.data, call->name.length);
    text_put(out, ",\"input\":");
    if (whole && call->ended) {
        text_add(out, call->arguments.data, call->arguments.length);
    } else {
        text_put(out, "{}");
    }
    text_put(out, "}");
}

/* Without a text there is no block, as in Anthropic's answers. */
static void write_content(text *out, const anthropic_state *s, const choice *c) {
    text_put(out, "[");
    if (c->reasoning.length > 0) {
        write_thinking(out, c->reasoning.data, s->omit_thinking ? 0 : c->reasoning.length);
    }
    if (c->content.length > 0) {
        text_put(out, c->reasoning.length > 0 ? "," : "");
        write_text(out, c->content.data, c->content.length);
    }
    for (size_t i = 0; i < c->call_count; i++) {
        text_put(out, i > 0 || c->reasoning.length > 0 || c->content.length > 0 ? "," : "");
        write_tool(out, &c->calls[i], true);
    }
    text_put(out, "]");
}

/* `whole`: with what was generated; else as it begins. */
static void write_message(text *out, const generation *g, const anthropic_state *s, bool whole) {
    const served_model *m = generation_model(g);
    const choice *c = api_choice(g);
    text_format(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", s->id);
    text_string(out, m->id, strlen(m->id));
    text_put(out, ",\"content\":");
    if (whole) {
        write_content(out, s, c);
        text_put(out, ",");
        write_stop(out, c);
    } else {
        text_put(out, "[],\"stop_reason\":null,\"stop_sequence\":null");
    }
    text_put(out, ",\"stop_details\":null,\"container\":null,\"diagnostics\":null,\"usage\":{");
    write_usage(out, c);
    text_put(out, ",\"cache_creation\":{\"ephemeral_5m_input_tokens\":0,\"ephemeral_1h_input_tokens\":0},"
                  "\"inference_geo\":null,\"service_tier\":\"standard\",\"speed\":null}}");
}

/* ---- events ---- */

static text *begin_event(anthropic_state *s, const char *type) {
    text *out = &s->writer.event;
    text_format(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
    return out;
}

static void send(generation *g, anthropic_state *s) {
    text_put(&s->writer.event, "}\n\n");
    event_send(g, &s->writer);
}

/* The first event says how much of the prompt was cached, which is not known before the first token. */
static void begin_message(generation *g, anthropic_state *s) {
    if (!s->begun) {
        s->begun = true;
        text *out = begin_event(s, "message_start");
        text_put(out, ",\"message\":");
        write_message(out, g, s, false);
        send(g, s);
    }
}

static void close_block(generation *g, anthropic_state *s) {
    if (s->open != BLOCK_NONE) {
        text_format(begin_event(s, "content_block_stop"), ",\"index\":%zu", s->index);
        send(g, s);
        s->index++;
        s->open = BLOCK_NONE;
    }
}

static void enter_block(generation *g, anthropic_state *s, anthropic_block block) {
    if (s->open == block) {
        return;
    }
    close_block(g, s);
    s->open = block;
    text *out = begin_event(s, "content_block_start");
    text_format(out, ",\"index\":%zu,\"content_block\":", s->index);
    if (block == BLOCK_THINKING) {
        write_thinking(out, "", 0);
    } else {
        write_text(out, "", 0);
    }
    send(g, s);
}

static void send_call(generation *g, anthropic_state *s, const choice *c, const call_piece *p) {
    const tool_call *call = &c->calls[p->call];
    if (p->begins) {
        close_block(g, s);
        s->open = BLOCK_TOOL;
        text *out = begin_event(s, "content_block_start");
        text_format(out, ",\"index\":%zu,\"content_block\":", s->index);
        write_tool(out, call, false);
        send(g, s);
    }
    if (p->length > 0) {
        text *out = begin_event(s, "content_block_delta");
        text_format(out,
                    ",\"index\":%zu,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":", s->index);
        text_string(out, call->arguments.data + p->first, p->length);
        text_put(out, "}");
        send(g, s);
    }
    if (p->ends) {
        close_block(g, s);
    }
}

/* `kind`: "text" or "thinking", which name the delta and its member. */
static void send_delta(generation *g, anthropic_state *s, const char *kind, const char *bytes,
                       size_t length) {
    text *out = begin_event(s, "content_block_delta");
    text_format(out, ",\"index\":%zu,\"delta\":{\"type\":\"%s_delta\",\"%s\":", s->index, kind, kind);
    text_string(out, bytes, length);
    text_put(out, "}");
    send(g, s);
}

/* ---- the dialect ---- */

static void begin(generation *g, void *state) {
    anthropic_state *s = state;
    (void)g;
    s->writer.failure =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"out "
        "of memory\"}}\n\n";
}

static void piece_event(generation *g, void *state, const choice *c, const piece *p) {
    anthropic_state *s = state;
    begin_message(g, s);
    if (p->reasoning_length > 0) {
        enter_block(g, s, BLOCK_THINKING);
        if (!s->omit_thinking) {
            send_delta(g, s, "thinking", p->reasoning, p->reasoning_length);
        }
    }
    if (p->content_length > 0) {
        enter_block(g, s, BLOCK_TEXT);
        send_delta(g, s, "text", p->content, p->content_length);
    }
    for (size_t i = 0; i < p->call_count; i++) {
        send_call(g, s, c, &p->calls[i]);
    }
}

static void choice_end(generation *g, void *state, const choice *c) {
    (void)c;
    close_block(g, state);
}

static void end(generation *g, void *state) {
    anthropic_state *s = state;
    const choice *c = api_choice(g);
    if (!generation_get_options(g)->stream) {
        write_message(&s->writer.event, g, s, true);
        reply_text(generation_exchange(g), &s->writer.event);
        return;
    }
    begin_message(g, s);
    text *out = begin_event(s, "message_delta");
    text_put(out, ",\"delta\":{");
    write_stop(out, c);
    text_put(out, ",\"stop_details\":null,\"container\":null},\"usage\":{");
    write_usage(out, c);
    text_put(out, "}");
    send(g, s);
    begin_event(s, "message_stop");
    send(g, s);
}

static void fail(generation *g, void *state, const http_error *error) {
    anthropic_state *s = state;
    text_put(&s->writer.event, "event: error\ndata: ");
    anthropic_write_error(&s->writer.event, error, exchange_id(generation_exchange(g)));
    text_put(&s->writer.event, "\n\n");
    event_send(g, &s->writer);
}

static void release(void *state) {
    anthropic_state *s = state;
    text_free(&s->writer.event);
    free(s);
}

const dialect ANTHROPIC_DIALECT = {
    .name = "messages",
    .content_type = "text/event-stream",
    .heartbeat = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    .begin = begin,
    .piece = piece_event,
    .choice_end = choice_end,
    .end = end,
    .fail = fail,
    .release = release,
};
