/* Formats found out by asking: a template renders a call, and what it writes around the name and the
 * arguments are the marks. */
#include "base/alloc.h"
#include "chat/reply_formats.h"

#include <jansson.h>

#define NAME "probe_call"
#define ID "probe0001"
#define ANSWER "probe-answer"

enum { MOST_MARK = 256 };

static const sl_template_limits LIMITS = {
    .output_bytes = 1 << 20, .memory_bytes = 16 << 20, .steps = 1 << 20};

/* What the template writes for these messages; NULL data where it refuses. Takes the messages over. */
static int render(const sl_chat *chat, json_t *messages, bool prompt, sl_buffer *out, sl_error *error) {
    json_t *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}}}}]", "type", "function", "function",
                              "name", NAME, "description", "d", "parameters", "type", "object", "properties",
                              "probe_key", "type", "string");
    const sl_chat_request request = {
        .messages = messages, .tools = tools, .add_generation_prompt = prompt, .limits = &LIMITS};
    sl_error refusal;
    int code = messages && tools ? sl_chat_render(chat, &request, out, &refusal) : SL_ERR_NOMEM;
    json_decref(messages);
    json_decref(tools);
    if (code && code != SL_ERR_NOMEM) {
        sl_buffer_clear(out);
        return 0;
    }
    return code ? sl_fail(error, SL_ERR_NOMEM, "chat template: out of memory") : 0;
}

static json_t *conversation(json_t *assistant) {
    return json_pack("[{s:s, s:s}, o*]", "role", "user", "content", "probe-question", assistant);
}

static json_t *call(void) {
    return json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{s:s}}}]}", "role", "assistant", "content", "",
                     "tool_calls", "id", ID, "type", "function", "function", "name", NAME, "arguments",
                     "probe_key", "probe-value");
}

static sl_view find(sl_view text, const char *part) {
    const size_t length = strlen(part);
    for (size_t i = 0; i + length <= text.length; i++) {
        if (memcmp(text.data + i, part, length) == 0) {
            return (sl_view){text.data + i, length};
        }
    }
    return (sl_view){NULL, 0};
}

static sl_view between(const char *from, const char *to) {
    return (sl_view){from, (size_t)(to - from)};
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static sl_view trimmed(sl_view text) {
    while (text.length > 0 && is_blank(text.data[0])) {
        text = (sl_view){text.data + 1, text.length - 1};
    }
    return text;
}

static bool has_text(sl_view text) {
    return trimmed(text).length > 0;
}

/* The object that the arguments are, all of it; NULL data: there is none. */
static sl_view arguments_in(sl_view rest) {
    const sl_view key = find(rest, "probe_key"), value = find(rest, "probe-value");
    if (!key.data || !value.data || value.data < key.data) {
        return (sl_view){NULL, 0};
    }
    const char *first = key.data, *last = value.data + value.length, *end = rest.data + rest.length;
    while (first > rest.data && (first[-1] == '"' || is_blank(first[-1]))) {
        first--;
    }
    while (last < end && (*last == '"' || is_blank(*last))) {
        last++;
    }
    const bool object = first > rest.data && first[-1] == '{' && first[0] && last < end && *last == '}' &&
                        *(key.data - 1) == '"' && value.data[value.length] == '"';
    return object ? between(first - 1, last + 1) : (sl_view){NULL, 0};
}

/* A mark, in which the call's id may be any; true if it can be one. */
static bool add_mark(sl_buffer *marks, sl_view text, size_t *at) {
    sl_view id = find(text, ID);
    *at = marks->length;
    if (text.length > MOST_MARK) {
        return false;
    }
    for (size_t i = 0; i < text.length; i++) {
        if ((unsigned char)text.data[i] < 0x20 && !is_blank(text.data[i])) {
            return false;
        }
    }
    while (id.data) {
        sl_buffer_append(marks, text.data, (size_t)(id.data - text.data));
        sl_buffer_append(marks, "\2", 1);
        text = between(id.data + id.length, text.data + text.length);
        id = find(text, ID);
    }
    sl_buffer_append(marks, text.data, text.length);
    sl_buffer_append(marks, "", 1);
    return !marks->failed;
}

/* What is written between the end of a prompt and the end of a turn; NULL data where that cannot be told. */
static sl_view reply_in(const sl_buffer *prompt, const sl_buffer *called, const sl_buffer *answered) {
    const sl_view whole = {called->data, called->length}, plain = {answered->data, answered->length};
    const sl_view answer = plain.data ? find(plain, ANSWER) : plain;
    if (prompt->length == 0 || !answer.data || whole.length < prompt->length ||
        memcmp(whole.data, prompt->data, prompt->length) != 0) {
        return (sl_view){NULL, 0};
    }
    const sl_view ending = between(answer.data + answer.length, plain.data + plain.length);
    const sl_view reply = between(whole.data + prompt->length, whole.data + whole.length);
    if (reply.length < ending.length ||
        memcmp(reply.data + reply.length - ending.length, ending.data, ending.length) != 0) {
        return (sl_view){NULL, 0};
    }
    return (sl_view){reply.data, reply.length - ending.length};
}

static int make(sl_view reply, const sl_tokenizer *tokenizer, const sl_chat_facts *facts,
                sl_reply_format **format, sl_error *error) {
    const sl_view name = reply.data ? find(reply, NAME) : reply;
    const sl_view rest = name.data ? between(name.data + name.length, reply.data + reply.length) : name;
    const sl_view arguments = name.data ? arguments_in(rest) : name;
    sl_buffer marks = {0};
    size_t open, middle, close;
    if (!arguments.data) {
        return 0;
    }
    const sl_view before = trimmed(between(reply.data, name.data));
    const sl_view behind = between(arguments.data + arguments.length, rest.data + rest.length);
    const sl_view inner = between(rest.data, arguments.data);
    const bool clear = has_text(before) && inner.length > 0 && before.data[0] != '{' &&
                       before.data[0] != '[' && add_mark(&marks, before, &open) &&
                       add_mark(&marks, inner, &middle) && add_mark(&marks, behind, &close);
    if (clear) {
        sl_reply_format found = {.name = "derived"};
        found.marks[SL_REPLY_CALL_OPEN] = marks.data + open;
        found.marks[SL_REPLY_NAME_CLOSE] = marks.data + middle;
        found.marks[SL_REPLY_CALL_CLOSE] = has_text(behind) ? marks.data + close : NULL;
        found.id_length = find(reply, ID).data ? (int8_t)strlen(ID) : 0;
        *format = sl_reply_format_bind(&found, tokenizer, facts->think_open, facts->think_close);
    }
    const bool failed = marks.failed || (clear && !*format);
    sl_buffer_free(&marks);
    return failed ? sl_fail(error, SL_ERR_NOMEM, "out of memory for the format of replies") : 0;
}

int sl_reply_format_derive(const sl_chat *chat, const sl_tokenizer *tokenizer, sl_reply_format **format,
                           sl_error *error) {
    sl_buffer prompt = {0}, called = {0}, answered = {0};
    *format = NULL;
    int code = render(chat, conversation(NULL), true, &prompt, error);
    code = code ? code : render(chat, conversation(call()), false, &called, error);
    code = code ? code
                : render(chat, conversation(json_pack("{s:s, s:s}", "role", "assistant", "content", ANSWER)),
                         false, &answered, error);
    if (code == 0) {
        code = make(reply_in(&prompt, &called, &answered), tokenizer, sl_chat_get_facts(chat), format, error);
    }
    sl_buffer_free(&prompt);
    sl_buffer_free(&called);
    sl_buffer_free(&answered);
    return code;
}
