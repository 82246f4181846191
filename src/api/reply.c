/* The C API: replies, read as they come. */
#include "api/replies.h"

#include "base/alloc.h"
#include "chat/reply.h"
#include "format/json.h"

#include <string.h>

/* ---- a model's formats ---- */

static int open_format(const sluice_model *model, const sl_chat *chat, sl_view text, sl_reply_format **format,
                       sl_error *error) {
    const sl_chat_facts *facts = sl_chat_get_facts(chat);
    const sl_reply_format *found = sl_reply_format_of_template(text);
    if (!found && facts->tools) {
        const int result = sl_reply_format_derive(chat, model->model->tokenizer, format, error);
        if (result || *format) {
            return result;
        }
    }
    *format = sl_reply_format_bind(found ? found : &SL_REPLY_PLAIN, model->model->tokenizer,
                                   facts->think_open, facts->think_close);
    return *format ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for the format of replies");
}

int sl_api_open_replies(sluice_model *model, sl_error *error) {
    int result = 0;
    if (model->chat) {
        result = open_format(model, model->chat, sl_view_of(model->chat_template), &model->replies[0], error);
    }
    if (result == 0 && model->chat_tools) {
        result = open_format(model, model->chat_tools,
                             sl_tokenizer_chat_template(model->model->tokenizer, "tool_use"),
                             &model->replies[1], error);
    }
    return result;
}

void sl_api_close_replies(sluice_model *model) {
    sl_free(model->replies[0]);
    sl_free(model->replies[1]);
}

const sl_reply_format *sl_api_reply_format(const sluice_model *model, bool tools) {
    return tools && model->replies[1] ? model->replies[1] : model->replies[0];
}

/* ---- tools ---- */

static bool is_name_character(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c >= 0x80 ||
           (c && strchr("_-./", c));
}

/* Arguments are an object, whatever else a schema without a type allows. */
static bool allows_object(const json_t *parameters) {
    const json_t *type = json_object_get(parameters, "type");
    bool allows = !json_is_string(type) && !json_is_array(type);
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *name = json_string_value(json_array_get(type, i));
        allows = allows || (name && strcmp(name, "object") == 0);
    }
    return allows || (json_is_string(type) && strcmp(json_string_value(type), "object") == 0);
}

static int check_tool(const json_t *tools, size_t index, sl_error *error) {
    enum { MOST = 256 };
    const json_t *tool = json_array_get(tools, index), *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    const char *name = json_string_value(json_object_get(function, "name"));
    if (!name || !*name || strlen(name) > MOST) {
        return sl_fail(error, SL_ERR_INVALID, "tools[%zu].function.name: must be a string of 1 to %d bytes",
                       index, MOST);
    }
    for (const char *at = name; *at; at++) {
        if (!is_name_character((unsigned char)*at)) {
            return sl_fail(error, SL_ERR_INVALID,
                           "tools[%zu].function.name: must be of letters, digits and _ - . /", index);
        }
    }
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters)) {
        return sl_fail(error, SL_ERR_INVALID,
                       "tools[%zu].function.parameters: must be a JSON schema, an object", index);
    }
    if (!allows_object(parameters)) {
        return sl_fail(error, SL_ERR_INVALID,
                       "tools[%zu].function.parameters: #/type: arguments are always an object", index);
    }
    for (size_t i = 0; i < index; i++) {
        const json_t *other = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(other, "name")), name) == 0) {
            return sl_fail(error, SL_ERR_INVALID, "tools[%zu].function.name: tools[%zu] has the same", index,
                           i);
        }
    }
    return 0;
}

int sl_api_read_tools(const char *text, json_t **tools, sl_error *error) {
    enum { MOST = 1024 };
    int result = sl_json_parse(text, strlen(text), "tools", tools, error);
    if (result) {
        error->code = result == SL_ERR_FORMAT ? SL_ERR_INVALID : result;
        return error->code;
    }
    if (!json_is_array(*tools) || json_array_size(*tools) > MOST) {
        result = sl_fail(error, SL_ERR_INVALID, "tools: must be an array of at most %d", MOST);
    }
    for (size_t i = 0; result == 0 && i < json_array_size(*tools); i++) {
        result = check_tool(*tools, i, error);
    }
    if (result) {
        json_decref(*tools);
        *tools = NULL;
    }
    return result;
}

/* ---- where a prompt ends ---- */

static size_t trimmed(const char *text, size_t length) {
    while (length > 0 && strchr(" \t\r\n", text[length - 1])) {
        length--;
    }
    return length;
}

static bool ends_with(const sl_buffer *text, const char *mark) {
    const size_t length = trimmed(text->data, text->length), size = trimmed(mark, strlen(mark));
    return length >= size && memcmp(text->data + length - size, mark, size) == 0;
}

int sluice_prompt_thought(const sluice_model *model, const int32_t *tokens, size_t count, bool tools,
                          sluice_thought *thought, sluice_error *error) {
    enum { LAST = 32 }; /* tokens that the end is seen from */
    if (sl_api_lacks(model, "model", error) || sl_api_lacks(thought, "thought", error) ||
        sl_api_lacks_array(tokens, count, "tokens", error)) {
        return SL_ERR_INVALID;
    }
    const sl_reply_format *format = sl_api_reply_format(model, tools);
    *thought = SLUICE_THOUGHT_NONE;
    if (!format || !format->marks[SL_REPLY_THINK_CLOSE] || !model->model->tokenizer) {
        return 0;
    }
    const size_t last = count < LAST ? count : LAST;
    sl_buffer text = {0};
    sl_error inner;
    sl_detokenizer detokenizer;
    sl_detokenizer_begin(&detokenizer, model->model->tokenizer,
                         SL_DETOKENIZE_SKIP_SPECIAL | SL_DETOKENIZE_CONTINUE | SL_DETOKENIZE_FRAME_SPECIAL);
    int result = 0;
    sl_buffer_text(&text, "");
    for (size_t i = count - last; i < count && result == 0; i++) {
        result = sl_detokenizer_feed(&detokenizer, tokens[i], &text, &inner);
    }
    if (result == 0 && text.failed) {
        result = sl_fail(&inner, SL_ERR_NOMEM, "out of memory for a prompt's end");
    }
    if (result == 0) {
        *thought = ends_with(&text, format->marks[SL_REPLY_THINK_OPEN])    ? SLUICE_THOUGHT_OPEN
                   : ends_with(&text, format->marks[SL_REPLY_THINK_CLOSE]) ? SLUICE_THOUGHT_NONE
                                                                           : SLUICE_THOUGHT_MAY;
    }
    sl_buffer_free(&text);
    return result ? sl_api_error(error, &inner) : 0;
}

/* ---- a reply ---- */

typedef struct queued {
    sl_reply_kind kind;
    int32_t call;
    size_t first, length; /* of the texts */
} queued;

struct sluice_reply {
    sluice_model *model; /* a reference */
    sl_reply *reply;
    sl_buffer texts;  /* of the events */
    sl_buffer events; /* of queued */
    size_t taken;     /* bytes of events */
};

static void on_event(void *context, const sl_reply_event *event) {
    sluice_reply *r = context;
    const queued q = {event->kind, event->call, r->texts.length, event->length};
    sl_buffer_append(&r->texts, event->text, event->length);
    sl_buffer_append(&r->events, &q, sizeof q);
}

int sluice_reply_create(sluice_model *model, const sluice_reply_options *given, sluice_reply **out,
                        sluice_error *error) {
    if (sl_api_lacks(out, "reply", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    sluice_reply_options o;
    sl_error inner;
    if (sl_api_lacks(model, "model", error)) {
        return SL_ERR_INVALID;
    }
    int result = sl_api_options(&o, sizeof o, given, "sluice_reply_options", error);
    if (result) {
        return result;
    }
    if (!model->chat) {
        return sl_api_error(error, &model->chat_error);
    }
    json_t *tools = NULL;
    sluice_reply *r = NULL;
    result = o.tools ? sl_api_read_tools(o.tools, &tools, &inner) : 0;
    if (result == 0 && !(r = sl_alloc_zero(1, sizeof *r))) {
        result = sl_fail(&inner, SL_ERR_NOMEM, "out of memory for a reply");
    }
    if (result == 0) {
        const sl_reply_options options = {
            .format = sl_api_reply_format(model, json_array_size(tools) > 0),
            .tools = json_array_size(tools) > 0 ? tools : NULL,
            .opened = o.opened,
            .keeps_thoughts = o.keeps_thoughts,
            .event = on_event,
            .context = r,
        };
        result = sl_reply_create(&options, &r->reply, &inner);
    }
    json_decref(tools);
    if (result) {
        sl_free(r);
        return sl_api_error(error, &inner);
    }
    r->model = sluice_model_retain(model);
    *out = r;
    return 0;
}

/* What was taken goes. */
static void forget(sluice_reply *r) {
    if (r->taken == r->events.length) {
        sl_buffer_clear(&r->texts);
        sl_buffer_clear(&r->events);
        r->taken = 0;
    }
}

static int checked(const sluice_reply *r, int result, const sl_error *inner, sluice_error *error) {
    return result ? sl_api_error(error, inner)
           : r->texts.failed || r->events.failed
               ? sl_api_fail(error, SL_ERR_NOMEM, "out of memory for a reply")
               : 0;
}

int sluice_reply_feed(sluice_reply *r, const char *text, size_t length, sluice_error *error) {
    sl_error inner = {0};
    if (sl_api_lacks(r, "reply", error) || sl_api_lacks_array(text, length, "text", error)) {
        return SL_ERR_INVALID;
    }
    forget(r);
    return checked(r, length ? sl_reply_feed(r->reply, text, length, &inner) : 0, &inner, error);
}

int sluice_reply_finish(sluice_reply *r, bool cut, sluice_error *error) {
    sl_error inner = {0};
    if (sl_api_lacks(r, "reply", error)) {
        return SL_ERR_INVALID;
    }
    forget(r);
    return checked(r, sl_reply_finish(r->reply, cut, &inner), &inner, error);
}

static sluice_reply_kind kind_of(sl_reply_kind kind) {
    return (sluice_reply_kind)(kind - SL_REPLY_REASONING + SLUICE_REPLY_REASONING);
}

void sluice_reply_next(sluice_reply *r, sluice_reply_event *out) {
    if (!r || !out || sl_api_check_size(out->size, "sluice_reply_event", NULL)) {
        return;
    }
    sluice_reply_event event = {.size = out->size, .kind = SLUICE_REPLY_NONE, .call = -1, .text = ""};
    if (r->taken < r->events.length && !r->texts.failed) {
        queued q;
        memcpy(&q, r->events.data + r->taken, sizeof q);
        r->taken += sizeof q;
        event.kind = kind_of(q.kind);
        event.call = q.call;
        event.text = q.length ? r->texts.data + q.first : "";
        event.text_length = q.length;
    }
    memcpy(out, &event, out->size < sizeof event ? out->size : sizeof event);
}

sluice_reply_kind sluice_reply_stands_in(const sluice_reply *r) {
    return r ? kind_of(sl_reply_stands_in(r->reply)) : SLUICE_REPLY_NONE;
}

void sluice_reply_release(sluice_reply *r) {
    if (r) {
        sl_reply_free(r->reply);
        sl_buffer_free(&r->texts);
        sl_buffer_free(&r->events);
        sluice_model_release(r->model);
        sl_free(r);
    }
}
