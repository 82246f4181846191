/* What the conversions of all APIs share. */
#include "convert.h"

#include "message_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int error_no_memory(http_error *error) {
    *error = (http_error){.status = 503, .type = "server_error", .code = "out_of_memory", .retry_after = 1};
    snprintf(error->message, sizeof error->message,
             "the server is out of memory for this request; try again");
    return -1;
}

const char *known_name(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name) != 0) {
        names++;
    }
    return *names;
}

int refuse_member(http_error *error, const char *path, const char *name, const char *wanted,
                  const json_t *value) {
    if (!value || json_is_null(value)) {
        return body_refuse(error, "%s%s: is required and must be %s", path, name, wanted);
    }
    return body_refuse(error, "%s%s: must be %s, not %s", path, name, wanted, body_type(value));
}

/* ---- the list ---- */

static void set(message_list *list, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new_nocheck(object, key, value)) {
        list->failed = true;
    }
}

static void append(message_list *list, json_t *array, json_t *value) {
    if (json_array_append_new(array, value)) {
        list->failed = true;
    }
}

void list_begin(message_list *list) {
    list->messages = json_array();
    list->failed = !list->messages;
}

json_t *list_last(const message_list *list, const char *role) {
    const size_t count = json_array_size(list->messages);
    json_t *last = count ? json_array_get(list->messages, count - 1) : NULL;
    const char *has = json_string_value(json_object_get(last, "role"));
    return has && strcmp(has, role) == 0 ? last : NULL;
}

json_t *list_message(message_list *list, const char *role, bool joins) {
    json_t *message = joins || strcmp(role, "system") == 0 ? list_last(list, role) : NULL;
    if (!message) {
        message = json_object();
        set(list, message, "role", json_string(role));
        set(list, message, "content", json_array());
        append(list, list->messages, message);
    }
    return list->failed ? NULL : message;
}

void list_text(message_list *list, json_t *message, json_t *string) {
    if (message && json_string_length(string) > 0) {
        append(list, json_object_get(message, "content"), json_incref(string));
    }
}

static json_t *member_array(message_list *list, json_t *message, const char *key) {
    if (message && !json_object_get(message, key)) {
        set(list, message, key, json_array());
    }
    return json_object_get(message, key);
}

void list_reasoning(message_list *list, json_t *message, json_t *string) {
    if (message && json_string_length(string) > 0) {
        append(list, member_array(list, message, "reasoning_content"), json_incref(string));
    }
}

void list_call(message_list *list, json_t *message, json_t *id, json_t *name, json_t *arguments) {
    if (!message) {
        return;
    }
    json_t *call = json_object(), *function = json_object();
    set(list, function, "name", json_incref(name));
    if (json_is_string(arguments)) {
        set(list, function, "arguments", json_incref(arguments));
    } else {
        char *dumped = json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
        set(list, function, "arguments", dumped ? json_string_nocheck(dumped) : NULL);
        free(dumped);
    }
    set(list, call, "id", json_incref(id));
    set(list, call, "type", json_string("function"));
    set(list, call, "function", function);
    append(list, member_array(list, message, "tool_calls"), call);
}

size_t list_call_count(const json_t *message) {
    return json_array_size(json_object_get(message, "tool_calls"));
}

json_t *list_result(message_list *list, json_t *id) {
    json_t *message = list_message(list, "tool", false);
    if (message) {
        set(list, message, "tool_call_id", json_incref(id));
    }
    return message;
}

/* The texts of an array as one string. */
static json_t *join(const json_t *array, const char *between) {
    const size_t count = json_array_size(array), gap = strlen(between);
    if (count == 1) {
        return json_incref(json_array_get(array, 0));
    }
    size_t length = 1;
    for (size_t i = 0; i < count; i++) {
        length += json_string_length(json_array_get(array, i)) + gap;
    }
    char *bytes = malloc(length), *at = bytes;
    if (!bytes) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(array, i);
        if (i > 0) {
            memcpy(at, between, gap);
            at += gap;
        }
        memcpy(at, json_string_value(one), json_string_length(one));
        at += json_string_length(one);
    }
    json_t *joined = json_stringn_nocheck(bytes, (size_t)(at - bytes));
    free(bytes);
    return joined;
}

static void finish_message(message_list *list, json_t *message) {
    const json_t *texts = json_object_get(message, "content"),
                 *reasoning = json_object_get(message, "reasoning_content");
    const char *role = json_string_value(json_object_get(message, "role"));
    /* System messages were texts of their own; the rest were parts of one. */
    set(list, message, "content", join(texts, role && strcmp(role, "system") == 0 ? "\n\n" : "\n"));
    if (reasoning) {
        set(list, message, "reasoning_content", join(reasoning, "\n"));
    }
}

int list_finish(message_list *list, json_t **messages, http_error *error) {
    for (size_t i = 0; !list->failed && i < json_array_size(list->messages); i++) {
        finish_message(list, json_array_get(list->messages, i));
    }
    if (list->failed) {
        list_discard(list);
        return error_no_memory(error);
    }
    *messages = list->messages;
    *list = (message_list){0};
    return 0;
}

void list_discard(message_list *list) {
    json_decref(list->messages);
    *list = (message_list){0};
}

/* ---- tools and options of templates ---- */

bool tools_add(json_t *functions, json_t *name, json_t *description, json_t *parameters) {
    json_t *function = json_pack("{s:O, s:O*, s:O*}", "name", name, "description",
                                 json_is_null(description) ? NULL : description, "parameters",
                                 json_is_null(parameters) ? NULL : parameters);
    return json_array_append_new(functions,
                                 json_pack("{s:s, s:o}", "type", "function", "function", function)) == 0;
}

bool convert_effort(json_t *options, const char *effort) {
    if (strcmp(effort, "none") == 0) {
        return json_object_set_new(options, "enable_thinking", json_false()) == 0;
    }
    return json_object_set_new(options, "enable_thinking", json_true()) == 0 &&
           json_object_set_new(options, "reasoning_effort", json_string(effort)) == 0;
}
