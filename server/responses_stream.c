/* What the Responses API writes: whole objects, and the events that build them up. */
#include "responses.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- small parts ---- */

static void member_text(text *out, const char *name, const char *value) {
    text_format(out, ",\"%s\":", name);
    if (value) {
        text_string(out, value, strlen(value));
    } else {
        text_put(out, "null");
    }
}

static void member_json(text *out, const char *name, const json_t *value, const char *otherwise) {
    text_format(out, ",\"%s\":", name);
    if (value) {
        text_json(out, value);
    } else {
        text_put(out, otherwise);
    }
}

static void member_whole(text *out, const char *name, int64_t value) {
    if (value < 0) {
        text_format(out, ",\"%s\":null", name);
    } else {
        text_format(out, ",\"%s\":%lld", name, (long long)value);
    }
}

static void member_real(text *out, const char *name, double value) {
    text_format(out, ",\"%s\":", name);
    text_real(out, value);
}

/* ---- items ---- */

static void write_reasoning_part(text *out, const choice *c) {
    text_put(out, "{\"type\":\"reasoning_text\",\"text\":");
    text_string(out, c->reasoning.data, c->reasoning.length);
    text_put(out, "}");
}

static void write_reasoning(text *out, const responses_state *s, const choice *c, const char *status) {
    text_format(out, "{\"id\":\"%s\",\"type\":\"reasoning\",\"summary\":[],\"content\":[", s->reasoning_id);
    if (c) {
        write_reasoning_part(out, c);
    }
    text_format(out, "]%s,\"status\":\"%s\"}",
                s->fields.encrypted_reasoning ? ",\"encrypted_content\":null" : "", status);
}

/* `c` NULL: nothing was written yet. */
static void write_text_part(text *out, const generation *g, const responses_state *s, const choice *c) {
    text_put(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":");
    if (c && s->fields.logprobs) {
        api_write_logprobs(out, g, c, 0, c->entry_count);
    } else {
        text_put(out, "[]");
    }
    text_put(out, ",\"text\":");
    text_string(out, c ? c->content.data : "", c ? c->content.length : 0);
    text_put(out, "}");
}

static void write_message(text *out, const generation *g, const responses_state *s, const choice *c,
                          const char *status) {
    text_format(out,
                "{\"id\":\"%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[",
                s->message_id, status);
    if (c) {
        write_text_part(out, g, s, c);
    }
    text_put(out, "]}");
}

/* The item's id is made of the call's. */
static void write_call_id(text *out, const tool_call *call) {
    const char *own = strncmp(call->id, "call_", 5) == 0 ? call->id + 5 : call->id;
    text_format(out, "\"fc_%s\"", own);
}

/* `whole`: with its arguments. */
static void write_call(text *out, const tool_call *call, bool whole, const char *status) {
    text_put(out, "{\"id\":");
    write_call_id(out, call);
    text_format(out, ",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\",\"name\":", status,
                call->id);
    text_string(out, call->name.data, call->name.length);
    text_put(out, ",\"arguments\":");
    text_string(out, call->arguments.data, whole ? call->arguments.length : 0);
    text_put(out, "}");
}

/* An answer has a message unless all of it was thinking or calls. */
static bool has_message(const choice *c) {
    return c->content.length > 0 || (c->reasoning.length == 0 && c->call_count == 0);
}

static void write_output(text *out, const generation *g, const responses_state *s, const char *status) {
    const choice *c = api_choice(g);
    const bool message = has_message(c);
    text_put(out, "[");
    if (c->reasoning.length > 0) {
        write_reasoning(out, s, c, message || c->call_count ? "completed" : status);
        text_put(out, message || c->call_count ? "," : "");
    }
    if (message) {
        write_message(out, g, s, c, c->call_count ? "completed" : status);
        text_put(out, c->call_count ? "," : "");
    }
    for (size_t i = 0; i < c->call_count; i++) {
        const tool_call *call = &c->calls[i];
        write_call(out, call, true, call->ended ? "completed" : status);
        text_put(out, i + 1 < c->call_count ? "," : "");
    }
    text_put(out, "]");
}

/* ---- the whole object ---- */

static void write_usage(text *out, const generation *g) {
    generation_usage u;
    generation_get_usage(g, &u);
    text_format(
        out,
        "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu,\"cache_write_tokens\":0},"
        "\"output_tokens\":%zu,\"output_tokens_details\":{\"reasoning_tokens\":%zu},\"total_tokens\":%zu}",
        u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens,
        u.prompt_tokens + u.completion_tokens);
}

/* OpenAI's words for what went wrong are few. */
static const char *error_word(const http_error *error) {
    return error->status == 429  ? "rate_limit_exceeded"
           : error->status < 500 ? "invalid_prompt"
                                 : "server_error";
}

/* What was asked, as it came out. */
static void write_settings(text *out, generation *g, const responses_state *s) {
    const responses_fields *f = &s->fields;
    const generation_options *o = generation_get_options(g);
    member_json(out, "instructions", f->instructions, "null");
    member_json(out, "metadata", f->metadata, "{}");
    member_json(out, "tools", f->tools, "[]");
    member_json(out, "tool_choice", f->tool_choice, "\"auto\"");
    text_format(out, ",\"parallel_tool_calls\":%s", f->parallel_tool_calls ? "true" : "false");
    member_real(out, "temperature", o->temperature);
    member_real(out, "top_p", o->top_p);
    member_real(out, "presence_penalty", o->presence_penalty);
    member_real(out, "frequency_penalty", o->frequency_penalty);
    member_whole(out, "max_output_tokens", f->max_output_tokens);
    member_whole(out, "max_tool_calls", f->max_tool_calls);
    member_whole(out, "top_logprobs", f->top_logprobs);
    text_put(out, ",\"reasoning\":{\"effort\":");
    text_json_new(out, f->effort ? json_string(f->effort) : json_null());
    member_text(out, "summary", f->summary);
    text_put(out, "},\"text\":{\"verbosity\":");
    text_json_new(out, json_string(f->verbosity ? f->verbosity : "medium"));
    member_json(out, "format", f->format, "{\"type\":\"text\"}");
    text_put(out, "}");
    member_text(out, "truncation", f->truncation);
    member_text(out, "user", f->user);
    member_text(out, "safety_identifier", f->safety_identifier);
    member_text(out, "prompt_cache_key", f->prompt_cache_key);
    member_text(out, "prompt_cache_retention", f->prompt_cache_retention);
    text_put(
        out,
        ",\"service_tier\":\"default\",\"store\":false,\"background\":false,\"previous_response_id\":null,"
        "\"conversation\":null,\"prompt\":null");
}

static void write_response(text *out, generation *g, const responses_state *s, const char *status,
                           const http_error *error) {
    const served_model *m = generation_model(g);
    const bool running = strcmp(status, "in_progress") == 0, incomplete = strcmp(status, "incomplete") == 0;
    text_format(
        out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"completed_at\":",
        s->id, (long long)generation_created(g), status);
    if (strcmp(status, "completed") == 0) {
        text_format(out, "%lld", (long long)time(NULL));
    } else {
        text_put(out, "null");
    }
    text_put(out, ",\"error\":");
    if (error) {
        text_format(out, "{\"code\":\"%s\"", error_word(error));
        member_text(out, "message", error->message);
        text_put(out, "}");
    } else {
        text_put(out, "null");
    }
    text_format(out, ",\"incomplete_details\":%s",
                incomplete ? "{\"reason\":\"max_output_tokens\"}" : "null");
    member_text(out, "model", m->id);
    text_put(out, ",\"output\":");
    if (running || error) {
        text_put(out, "[]");
    } else {
        write_output(out, g, s, status);
    }
    write_settings(out, g, s);
    text_put(out, ",\"usage\":");
    if (running) {
        text_put(out, "null");
    } else {
        write_usage(out, g);
    }
    text_put(out, "}");
}

/* ---- events ---- */

static text *begin_event(responses_state *s, const char *type) {
    text *out = &s->writer.event;
    text_format(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%llu", type, type,
                (unsigned long long)s->sequence++);
    return out;
}

static void send(generation *g, responses_state *s) {
    text_put(&s->writer.event, "}\n\n");
    event_send(g, &s->writer);
}

/* An event of a content part; its own members follow. */
static text *begin_part_event(responses_state *s, const char *type) {
    text *out = begin_event(s, type);
    text_format(out, ",\"item_id\":\"%s\",\"output_index\":%zu,\"content_index\":0",
                s->open == ITEM_REASONING ? s->reasoning_id : s->message_id, s->output_index);
    return out;
}

static void send_lifecycle(generation *g, responses_state *s, const char *type, const char *status,
                           const http_error *error) {
    text *out = begin_event(s, type);
    text_put(out, ",\"response\":");
    write_response(out, g, s, status, error);
    send(g, s);
}

static void send_item(generation *g, responses_state *s, const char *type, const choice *c,
                      const char *status) {
    text *out = begin_event(s, type);
    text_format(out, ",\"output_index\":%zu,\"item\":", s->output_index);
    if (s->open == ITEM_REASONING) {
        write_reasoning(out, s, c, status);
    } else {
        write_message(out, g, s, c, status);
    }
    send(g, s);
}

static void open_item(generation *g, responses_state *s, response_item item) {
    s->open = item;
    s->started_message |= item == ITEM_MESSAGE;
    send_item(g, s, "response.output_item.added", NULL, "in_progress");
    text *out = begin_part_event(s, "response.content_part.added");
    text_put(out, ",\"part\":");
    if (item == ITEM_REASONING) {
        text_put(out, "{\"type\":\"reasoning_text\",\"text\":\"\"}");
    } else {
        write_text_part(out, g, s, NULL);
    }
    send(g, s);
}

/* An event of a call's item; its own members follow. */
static text *begin_call_event(responses_state *s, const tool_call *call, const char *type) {
    text *out = begin_event(s, type);
    text_put(out, ",\"item_id\":");
    write_call_id(out, call);
    text_format(out, ",\"output_index\":%zu", s->output_index);
    return out;
}

static void send_call_item(generation *g, responses_state *s, const tool_call *call, bool done,
                           const char *status) {
    text *out = begin_event(s, done ? "response.output_item.done" : "response.output_item.added");
    text_format(out, ",\"output_index\":%zu,\"item\":", s->output_index);
    write_call(out, call, done, status);
    send(g, s);
}

static void close_call(generation *g, responses_state *s, const choice *c, const char *status) {
    const tool_call *call = &c->calls[s->call];
    text *out = begin_call_event(s, call, "response.function_call_arguments.done");
    text_put(out, ",\"name\":");
    text_string(out, call->name.data, call->name.length);
    text_put(out, ",\"arguments\":");
    text_string(out, call->arguments.data, call->arguments.length);
    send(g, s);
    send_call_item(g, s, call, true, call->ended ? "completed" : status);
    s->output_index++;
    s->open = ITEM_NONE;
}

static void close_item(generation *g, responses_state *s, const char *status) {
    const choice *c = api_choice(g);
    const bool thinks = s->open == ITEM_REASONING;
    if (s->open == ITEM_NONE) {
        return;
    }
    if (s->open == ITEM_CALL) {
        close_call(g, s, c, status);
        return;
    }
    text *out = begin_part_event(s, thinks ? "response.reasoning_text.done" : "response.output_text.done");
    text_put(out, ",\"text\":");
    text_string(out, thinks ? c->reasoning.data : c->content.data,
                thinks ? c->reasoning.length : c->content.length);
    if (!thinks) {
        text_put(out, ",\"logprobs\":");
        api_write_logprobs(out, g, c, 0, s->fields.logprobs ? c->entry_count : 0);
    }
    send(g, s);
    out = begin_part_event(s, "response.content_part.done");
    text_put(out, ",\"part\":");
    if (thinks) {
        write_reasoning_part(out, c);
    } else {
        write_text_part(out, g, s, c);
    }
    send(g, s);
    send_item(g, s, "response.output_item.done", c, status);
    s->output_index++;
    s->open = ITEM_NONE;
}

static void enter_item(generation *g, responses_state *s, response_item item) {
    if (s->open != item) {
        close_item(g, s, "completed");
        open_item(g, s, item);
    }
}

static void send_call(generation *g, responses_state *s, const choice *c, const call_piece *p) {
    const tool_call *call = &c->calls[p->call];
    if (p->begins) {
        close_item(g, s, "completed");
        s->open = ITEM_CALL;
        s->call = p->call;
        send_call_item(g, s, call, false, "in_progress");
    }
    if (p->length > 0) {
        text *out = begin_call_event(s, call, "response.function_call_arguments.delta");
        text_put(out, ",\"delta\":");
        text_string(out, call->arguments.data + p->first, p->length);
        send(g, s);
    }
    if (p->ends) {
        close_item(g, s, "completed");
    }
}

/* ---- the dialect ---- */

static void begin(generation *g, void *state) {
    responses_state *s = state;
    s->writer.failure =
        "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"out of "
        "memory\",\"param\":null,\"sequence_number\":0}\n\n";
    send_lifecycle(g, s, "response.created", "in_progress", NULL);
    send_lifecycle(g, s, "response.in_progress", "in_progress", NULL);
}

static void piece_event(generation *g, void *state, const choice *c, const piece *p) {
    responses_state *s = state;
    if (p->reasoning_length > 0) {
        enter_item(g, s, ITEM_REASONING);
        text *out = begin_part_event(s, "response.reasoning_text.delta");
        text_put(out, ",\"delta\":");
        text_string(out, p->reasoning, p->reasoning_length);
        send(g, s);
    }
    if (p->content_length > 0 || (s->fields.logprobs && api_has_logprobs(c, p))) {
        enter_item(g, s, ITEM_MESSAGE);
        text *out = begin_part_event(s, "response.output_text.delta");
        text_put(out, ",\"delta\":");
        text_string(out, p->content, p->content_length);
        text_put(out, ",\"logprobs\":");
        api_write_logprobs(out, g, c, p->first_entry, s->fields.logprobs ? p->entry_count : 0);
        send(g, s);
    }
    for (size_t i = 0; i < p->call_count; i++) {
        send_call(g, s, c, &p->calls[i]);
    }
}

static void choice_end(generation *g, void *state, const choice *c) {
    (void)g;
    (void)state;
    (void)c;
}

static void end(generation *g, void *state) {
    responses_state *s = state;
    const choice *c = api_choice(g);
    const char *status = api_is_cut(c) ? "incomplete" : "completed";
    if (!generation_get_options(g)->stream) {
        write_response(&s->writer.event, g, s, status, NULL);
        reply_text(generation_exchange(g), &s->writer.event);
        return;
    }
    if (s->open == ITEM_NONE && !s->started_message && has_message(c)) {
        open_item(g, s, ITEM_MESSAGE);
    }
    close_item(g, s, status);
    send_lifecycle(g, s, api_is_cut(c) ? "response.incomplete" : "response.completed", status, NULL);
}

/* Clients of the API look for the first event, the npm package throws at the second. */
static void fail(generation *g, void *state, const http_error *error) {
    responses_state *s = state;
    send_lifecycle(g, s, "response.failed", "failed", error);
    text *out = begin_event(s, "error");
    text_format(out, ",\"code\":\"%s\"", error_word(error));
    member_text(out, "message", error->message);
    member_text(out, "param", *error->param ? error->param : NULL);
    send(g, s);
}

static void release(void *state) {
    responses_state *s = state;
    text_free(&s->writer.event);
    free(s);
}

const dialect RESPONSES_DIALECT = {
    .name = "responses",
    .content_type = "text/event-stream",
    .heartbeat = ": ping\n\n",
    .begin = begin,
    .piece = piece_event,
    .choice_end = choice_end,
    .end = end,
    .fail = fail,
    .release = release,
};
