/* POST /v1/chat/completions. */
#include "apis.h"
#include "convert.h"
#include "messages.h"
#include "openai.h"
#include "tools.h"
#include "pump.h"

#include <stddef.h>
#include <string.h>

/* ---- the request ---- */

typedef struct chat_fields {
    const json_t *messages, *tools, *tool_choice, *kwargs;
    const char *effort, *reasoning_format;
    bool include_reasoning, parallel_tool_calls;
    bool add_prompt, continue_final;
    bool logprobs;
    int64_t top_logprobs;
    json_t *functions; /* of the handler, which releases it */
    tool_wish wish;
} chat_fields;

#define AT(member) offsetof(chat_fields, member)

static const field FIELDS[] = {
    {"messages", FIELD_ANY, AT(messages), 0, 0, NULL},
    {"tools", FIELD_ARRAY, AT(tools), 0, 0, NULL},
    {"tool_choice", FIELD_ANY, AT(tool_choice), 0, 0, NULL},
    {"parallel_tool_calls", FIELD_BOOL, AT(parallel_tool_calls), 0, 0, NULL},
    {"functions", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"function_call", FIELD_UNSUPPORTED, 0, 0, 0, "\"none\"|\"auto\""},
    {"chat_template", FIELD_UNSUPPORTED, 0, 0, 0, "\"\""},
    {"chat_template_kwargs", FIELD_OBJECT, AT(kwargs), 0, 0, NULL},
    {"reasoning_effort", FIELD_CHOICE, AT(effort), 0, 0, "none|minimal|low|medium|high|xhigh|max"},
    {"reasoning_format", FIELD_CHOICE, AT(reasoning_format), 0, 0, "none|auto|deepseek"},
    {"include_reasoning", FIELD_BOOL, AT(include_reasoning), 0, 0, NULL},
    {"add_generation_prompt", FIELD_BOOL, AT(add_prompt), 0, 0, NULL},
    {"continue_final_message", FIELD_BOOL, AT(continue_final), 0, 0, NULL},
    {"logprobs", FIELD_BOOL, AT(logprobs), 0, 0, NULL},
    {"top_logprobs", FIELD_WHOLE, AT(top_logprobs), 0, BODY_TOP_LOGPROBS, NULL},
    {"echo", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"add_special_tokens", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"suffix", FIELD_UNSUPPORTED, 0, 0, 0, "\"\""},
};

static bool is(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

static int read_tools(chat_fields *f, http_error *error) {
    f->functions = json_array();
    f->wish.single = !f->parallel_tool_calls;
    bool made = f->functions != NULL;
    for (size_t i = 0; made && i < json_array_size(f->tools); i++) {
        json_t *tool = json_array_get(f->tools, i), *function = json_object_get(tool, "function");
        if (!is(json_object_get(tool, "type"), "function") ||
            !json_is_string(json_object_get(function, "name"))) {
            return body_refuse(
                error, "tools[%zu] must be an object with the type \"function\" and a function with a name",
                i);
        }
        made = json_array_append(f->functions, tool) == 0;
    }
    return made ? tools_read_choice(f->tool_choice, &f->functions, &f->wish, error) : error_no_memory(error);
}

/* Options of the template that a client must not set there. */
static int check_kwargs(const json_t *kwargs, http_error *error) {
    static const char *const OWN[] = {"messages",      "tools",          "bos_token",
                                      "eos_token",     "documents",      "add_generation_prompt",
                                      "chat_template", "tokenize",       "continue_final_message",
                                      "conversation",  "raise_exception"};
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) {
        if (json_object_get(kwargs, OWN[i])) {
            return body_refuse(error, "chat_template_kwargs.%s: the name belongs to the template", OWN[i]);
        }
    }
    const json_t *thinking = json_object_get(kwargs, "enable_thinking");
    if (thinking && !json_is_boolean(thinking)) {
        return body_refuse(error, "chat_template_kwargs.enable_thinking must be true or false, not %s",
                           body_type(thinking));
    }
    return 0;
}

static int read_fields(const json_t *body, void *fields, http_error *error) {
    chat_fields *f = fields;
    *f = (chat_fields){.include_reasoning = true, .parallel_tool_calls = true};
    /* Where one of both is not said, it is what the other leaves. */
    const json_t *continues = json_object_get(body, "continue_final_message");
    f->add_prompt = !json_is_true(continues);
    if (body_fields(body, "", FIELDS, sizeof FIELDS / sizeof *FIELDS, f, error) ||
        check_messages(f->messages, "messages", error) || read_tools(f, error) ||
        check_kwargs(f->kwargs, error)) {
        return -1;
    }
    if (f->add_prompt && f->continue_final) {
        return body_refuse(error, "continue_final_message and add_generation_prompt cannot both be true");
    }
    if (f->top_logprobs && !f->logprobs) {
        return body_refuse(error, "top_logprobs needs logprobs to be true");
    }
    return 0;
}

/* A new object; NULL without memory. */
static json_t *template_options(const chat_fields *f) {
    json_t *all = f->kwargs ? json_copy((json_t *)(uintptr_t)f->kwargs) : json_object();
    bool made = all && json_object_set_new(
                           all, f->continue_final ? "continue_final_message" : "add_generation_prompt",
                           json_boolean(f->continue_final || f->add_prompt)) == 0;
    if (made && f->effort) {
        made = json_object_set_new(all, "reasoning_effort", json_string(f->effort)) == 0;
        if (made && !json_object_get(all, "enable_thinking")) {
            made = json_object_set_new(all, "enable_thinking",
                                       json_boolean(strcmp(f->effort, "none") != 0)) == 0;
        }
    }
    if (!made) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

static int add_prompt(generation *g, const chat_fields *f, http_error *error) {
    json_t *options = template_options(f);
    if (!options) {
        const sluice_error inner = {.code = SLUICE_ERR_NOMEM, .message = "out of memory for the prompt"};
        error_from_sluice(&inner, error);
        return -1;
    }
    int code = tools_use(g, f->functions, &f->wish, options, error);
    code = code ? code : add_messages(g, f->messages, options, "messages", error);
    json_decref(options);
    return code;
}

/* ---- the answer ---- */

/* Tokens of the content among `count` entries. */
static size_t shown_entries(const choice *c, size_t first, size_t count) {
    size_t shown = 0;
    for (size_t i = first; i < first + count; i++) {
        shown += !c->entries[i].outside;
    }
    return shown;
}

/* Of the tokens of the content; thinking has none. */
static void write_logprobs(text *out, generation *g, const choice *c, size_t first, size_t count) {
    text_put(out, ",\"logprobs\":");
    if (!generation_get_options(g)->logprobs) {
        text_put(out, "null");
        return;
    }
    text_put(out, "{\"content\":");
    api_write_logprobs(out, g, c, first, count);
    text_put(out, ",\"refusal\":null}");
}

static void begin_choice(generation *g, openai_state *s, const choice *c) {
    if (!s->choices[c->index].begun) {
        s->choices[c->index].begun = true;
        text_put(openai_chunk_begin(s, c),
                 ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
        openai_chunk_close(s, "null");
        openai_chunk_send(g, s, false);
    }
}

/* Thinking that is not shown is silence to those in between. */
static void keep_alive(generation *g, openai_state *s) {
    enum { SECONDS = 10 };
    const double now = monotonic_seconds();
    if (now - s->sent >= SECONDS) {
        exchange_write(generation_exchange(g), OPENAI_HEARTBEAT, strlen(OPENAI_HEARTBEAT));
        s->sent = now;
    }
}

/* A call begins with its name, and goes on with pieces of its arguments. */
static void write_call(generation *g, openai_state *s, const choice *c, const call_piece *p) {
    const tool_call *call = &c->calls[p->call];
    for (int part = p->begins ? 0 : 1; part < 2; part++) {
        if (part == 1 && p->length == 0) {
            continue;
        }
        text *out = openai_chunk_begin(s, c);
        text_format(out, ",\"delta\":{\"tool_calls\":[{\"index\":%zu", p->call);
        if (part == 0) {
            text_format(out, ",\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", call->id);
            text_string(out, call->name.data, call->name.length);
            text_put(out, ",\"arguments\":\"\"");
        } else {
            text_put(out, ",\"function\":{\"arguments\":");
            text_string(out, call->arguments.data + p->first, p->length);
        }
        text_put(out, "}}]},\"logprobs\":null");
        openai_chunk_close(s, "null");
        openai_chunk_send(g, s, generation_get_options(g)->timings_per_token);
    }
}

static void write_calls(generation *g, openai_state *s, const choice *c, const piece *p) {
    for (size_t i = 0; i < p->call_count; i++) {
        write_call(g, s, c, &p->calls[i]);
    }
    s->sent = p->call_count ? monotonic_seconds() : s->sent;
}

static void chat_piece(generation *g, void *state, const choice *c, const piece *p) {
    openai_state *s = state;
    const size_t reasoning = s->hide_reasoning ? 0 : p->reasoning_length;
    const size_t shown = shown_entries(c, p->first_entry, p->entry_count);
    begin_choice(g, s, c);
    if (!p->content_length && !reasoning && !shown) {
        write_calls(g, s, c, p);
        if (p->call_count == 0) {
            keep_alive(g, s);
        }
        return;
    }
    text *out = openai_chunk_begin(s, c);
    text_put(out, ",\"delta\":{");
    if (reasoning) {
        text_put(out, "\"reasoning_content\":");
        text_string(out, p->reasoning, reasoning);
    }
    if (p->content_length || !reasoning) {
        text_put(out, reasoning ? ",\"content\":" : "\"content\":");
        text_string(out, p->content, p->content_length);
    }
    text_put(out, "}");
    if (shown) {
        write_logprobs(out, g, c, p->first_entry, p->entry_count);
    } else {
        text_put(out, ",\"logprobs\":null");
    }
    openai_chunk_close(s, "null");
    openai_chunk_send(g, s, generation_get_options(g)->timings_per_token);
    s->sent = s->hide_reasoning ? monotonic_seconds() : 0;
    write_calls(g, s, c, p);
}

static void chat_choice_end(generation *g, void *state, const choice *c) {
    openai_state *s = state;
    begin_choice(g, s, c);
    text_put(openai_chunk_begin(s, c), ",\"delta\":{},\"logprobs\":null");
    openai_chunk_close(s, openai_finish(c));
    openai_chunk_send(g, s, openai_all_done(g) || generation_get_options(g)->timings_per_token);
}

static void write_choice(generation *g, openai_state *s, const choice *c) {
    text *out = &s->event;
    text_format(out, "%s{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", c->index ? "," : "",
                c->index);
    if (c->call_count && !c->content.length) {
        text_put(out, "null");
    } else {
        text_string(out, c->content.data, c->content.length);
    }
    for (size_t i = 0; i < c->call_count; i++) {
        const tool_call *call = &c->calls[i];
        text_format(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                    i ? "," : ",\"tool_calls\":[", call->id);
        text_string(out, call->name.data, call->name.length);
        text_put(out, ",\"arguments\":");
        text_string(out, call->arguments.data, call->arguments.length);
        text_put(out, i + 1 < c->call_count ? "}}" : "}}]");
    }
    if (c->reasoning.length && !s->hide_reasoning) {
        text_put(out, ",\"reasoning_content\":");
        text_string(out, c->reasoning.data, c->reasoning.length);
    }
    text_put(out, ",\"refusal\":null}");
    write_logprobs(out, g, c, 0, c->entry_count);
    text_put(out, ",\"finish_reason\":");
    text_put(out, openai_finish(c));
    text_put(out, "}");
}

static void chat_end(generation *g, void *state) {
    openai_end(g, state, write_choice);
}

static void chat_progress(generation *g, void *state, size_t read, size_t total) {
    openai_state *s = state;
    const choice *c = generation_choice(g, 0);
    begin_choice(g, s, c);
    text *out = openai_chunk_begin(s, c);
    text_put(out, ",\"delta\":{},\"logprobs\":null");
    openai_chunk_close(s, "null");
    openai_write_progress(g, s, read, total);
    openai_chunk_send(g, s, false);
}

static const dialect CHAT = {
    .name = "chat",
    .content_type = OPENAI_STREAM_TYPE,
    .heartbeat = OPENAI_HEARTBEAT,
    .begin = openai_begin,
    .piece = chat_piece,
    .choice_end = chat_choice_end,
    .end = chat_end,
    .fail = openai_fail,
    .progress = chat_progress,
    .release = openai_state_free,
};

static const openai_names NAMES = {"chatcmpl-", "chat.completion.chunk", "chat.completion"};

static int start(generation *g, const chat_fields *f, http_error *error) {
    generation_options *o = generation_get_options(g);
    openai_state *s = NULL;
    if (openai_read_fields(g, error) || add_prompt(g, f, error) ||
        !(s = openai_state_create(g, &NAMES, error))) {
        generation_discard(g);
        return -1;
    }
    o->logprobs = f->logprobs;
    o->top_logprobs = f->top_logprobs;
    o->keep_reasoning = f->reasoning_format && strcmp(f->reasoning_format, "none") == 0;
    s->hide_reasoning = !f->include_reasoning;
    return generation_start(g, &CHAT, s, "messages", error);
}

void openai_chat(exchange *x, void *context) {
    chat_fields f = {0};
    http_error error;
    generation *g = openai_request(context, x, read_fields, &f);
    if (g && start(g, &f, &error)) {
        exchange_fail(x, &error);
    }
    json_decref(f.functions);
}
