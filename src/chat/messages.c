#include "chat/messages.h"

#include "format/json.h"

#include <string.h>

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "messages: out of memory");
}

static bool is_text(const json_t *object, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, text) == 0;
}

/* ---- content
 * ------------------------------------------------------------------------------------------------------------
 */

/* The text of a part; NULL with the error set when it is none. */
static const json_t *text_of_part(const json_t *part, size_t message, size_t number, sl_error *error) {
    const json_t *text = json_object_get(part, "text");
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type) {
        sl_fail(error, SL_ERR_INVALID, "messages[%zu].content[%zu]: not an object with a type", message,
                number);
        return NULL;
    }
    if (strcmp(type, "text") != 0) {
        sl_fail(error, SL_ERR_INVALID,
                "messages[%zu].content[%zu]: a part of type \"%.40s\" is not supported, only \"text\"",
                message, number, type);
        return NULL;
    }
    if (!json_is_string(text)) {
        sl_fail(error, SL_ERR_INVALID, "messages[%zu].content[%zu].text: not a string", message, number);
        return NULL;
    }
    return text;
}

/* All texts of a list of parts, with newlines between. */
static int join_parts(const json_t *parts, size_t message, json_t **joined, sl_error *error) {
    sl_buffer text = {0};
    json_t *part;
    size_t number;
    *joined = NULL;
    json_array_foreach((json_t *)parts, number, part) {
        const json_t *piece = text_of_part(part, message, number, error);
        if (!piece) {
            sl_buffer_free(&text);
            return SL_ERR_INVALID;
        }
        sl_buffer_append(&text, "\n", number > 0);
        sl_buffer_append(&text, json_string_value(piece), json_string_length(piece));
    }
    if (!text.failed) {
        *joined = json_stringn_nocheck(text.data ? text.data : "", text.length);
    }
    sl_buffer_free(&text);
    return *joined ? 0 : no_memory(error);
}

static json_t *part_of(json_t *text) {
    return json_pack("{s:s, s:O}", "type", "text", "text", text);
}

/* In place. */
static int prepare_content(json_t *message, size_t number, const sl_chat_format *format, sl_error *error) {
    json_t *content = json_object_get(message, "content"), *joined = NULL;
    if (json_is_array(content)) {
        int code = join_parts(content, number, &joined, error);
        if (code) {
            return code;
        }
        if (format->only_parts || (format->parts && !is_text(message, "role", "tool"))) {
            json_decref(joined);
            return 0;
        }
    } else if (!content || json_is_null(content)) {
        const bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
        joined = calls && format->null_content ? json_null() : json_string("");
    } else if (json_is_string(content)) {
        joined = json_incref(content);
    } else {
        return sl_fail(error, SL_ERR_INVALID, "messages[%zu].content: neither text nor a list of parts",
                       number);
    }
    if (format->only_parts && json_is_string(joined)) {
        json_t *list = json_pack("[o]", part_of(joined));
        json_decref(joined);
        joined = list;
    }
    return json_object_set_new(message, "content", joined) ? no_memory(error) : 0;
}

/* ---- tool calls
 * ---------------------------------------------------------------------------------------------------------
 */

static int append_text(const char *text, size_t length, void *buffer) {
    sl_buffer_append(buffer, text, length);
    return 0;
}

/* Text that is no object stays text: a model wrote it, and the template says what it makes of it. In place.
 */
static int prepare_arguments(json_t *function, const sl_chat_format *format, sl_error *error) {
    json_t *arguments = json_object_get(function, "arguments"), *other = NULL;
    if (format->object_arguments && json_is_string(arguments)) {
        const size_t length = json_string_length(arguments);
        const int code = length ? sl_json_parse_as((sl_view){json_string_value(arguments), length},
                                                   SL_JSON_LAST_COUNTS, "arguments", &other, NULL)
                                : 0;
        other = length ? other : json_object();
        if (code == SL_ERR_NOMEM || (!length && !other)) {
            return no_memory(error);
        }
        if (other && !json_is_object(other)) {
            json_decref(other);
            other = NULL;
        }
        return other && json_object_set_new(function, "arguments", other) ? no_memory(error) : 0;
    }
    if (format->text_arguments && json_is_object(arguments)) {
        sl_buffer text = {0};
        const bool written = json_dump_callback(arguments, append_text, &text, 0) == 0 && !text.failed;
        other = written ? json_stringn_nocheck(text.data, text.length) : NULL;
        sl_buffer_free(&text);
        return json_object_set_new(function, "arguments", other) ? no_memory(error) : 0;
    }
    return 0;
}

static int prepare_calls(json_t *message, size_t number, const sl_chat_format *format, sl_error *error) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (calls && !json_is_array(calls)) {
        return sl_fail(error, SL_ERR_INVALID, "messages[%zu].tool_calls: not a list", number);
    }
    if (json_array_size(calls) == 0) {
        json_object_del(message, "tool_calls");
        return 0;
    }
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function");
        function = function ? function : call; /* some write its name and arguments there */
        if (!json_is_object(function) || !json_is_string(json_object_get(function, "name"))) {
            return sl_fail(error, SL_ERR_INVALID,
                           "messages[%zu].tool_calls[%zu]: not an object with a function's name", number, i);
        }
        const int code = prepare_arguments(function, format, error);
        if (code) {
            return code;
        }
    }
    return 0;
}

/* ---- messages
 * -----------------------------------------------------------------------------------------------------------
 */

static void drop_nulls(json_t *object) {
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value) {
        if (json_is_null(value)) {
            json_object_del(object, key);
        }
    }
}

static int prepare_message(json_t *message, size_t number, const sl_chat_format *format, sl_error *error) {
    if (!json_is_object(message)) {
        return sl_fail(error, SL_ERR_INVALID, "messages[%zu]: not an object", number);
    }
    if (!json_is_string(json_object_get(message, "role"))) {
        return sl_fail(error, SL_ERR_INVALID, "messages[%zu].role: not a string", number);
    }
    drop_nulls(message);
    if (is_text(message, "role", "developer") &&
        json_object_set_new(message, "role", json_string("system"))) {
        return no_memory(error);
    }
    json_t *reasoning = json_object_get(message, "reasoning");
    if (json_is_string(reasoning) && !json_object_get(message, "reasoning_content") &&
        json_object_set(message, "reasoning_content", reasoning)) {
        return no_memory(error);
    }
    const int code = prepare_calls(message, number, format, error);
    return code ? code : prepare_content(message, number, format, error);
}

int sl_chat_prepare_messages(json_t *messages, const sl_chat_format *format, json_t **prepared,
                             sl_error *error) {
    *prepared = NULL;
    json_t *copy = json_deep_copy(messages), *message;
    if (!copy) {
        return no_memory(error);
    }
    size_t number;
    json_array_foreach(copy, number, message) {
        const int code = prepare_message(message, number, format, error);
        if (code) {
            json_decref(copy);
            return code;
        }
    }
    *prepared = copy;
    return 0;
}

static json_t *joined(const json_t *text, sl_view more) {
    sl_buffer buffer = {0};
    sl_buffer_append(&buffer, json_string_value(text), json_string_length(text));
    sl_buffer_append(&buffer, more.data, more.length);
    json_t *result = buffer.failed ? NULL : json_stringn_nocheck(buffer.data, buffer.length);
    sl_buffer_free(&buffer);
    return result;
}

int sl_chat_extend_last(json_t *prepared, sl_view text, sl_error *error) {
    const size_t count = json_array_size(prepared);
    if (count == 0) {
        return sl_fail(error, SL_ERR_INVALID, "continue_final_message: there is no message");
    }
    json_t *message = json_array_get(prepared, count - 1), *content = json_object_get(message, "content");
    json_t *more = json_stringn_nocheck(text.data, text.length);
    int failed;
    if (json_is_array(content)) {
        const size_t parts = json_array_size(content);
        json_t *last = parts ? json_array_get(content, parts - 1) : NULL;
        failed = last ? json_object_set_new(last, "text", joined(json_object_get(last, "text"), text))
                      : json_array_append_new(content, more ? part_of(more) : NULL);
    } else if (json_is_string(content)) {
        failed = json_object_set_new(message, "content", joined(content, text));
    } else {
        failed = json_object_set(message, "content", more);
    }
    json_decref(more);
    return failed ? no_memory(error) : 0;
}
