/* The messages of Ollama's /api/chat. Shapes: api/types.go of ollama 0.12 to 0.14 (Message, ToolCall). */
#include "convert.h"

#include "message_list.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char *const ROLES[] = {"user", "assistant", "system", "tool", NULL};

typedef struct reader {
    message_list list;
    json_t *waiting; /* ids of calls, in their order */
    size_t answered; /* of these */
    http_error *error;
} reader;

/* A member that must be a string where it is there. */
static int read_string(reader *r, const char *path, const json_t *object, const char *name, json_t **value) {
    char dotted[32];
    *value = json_object_get(object, name);
    if (json_is_null(*value)) {
        *value = NULL;
    }
    snprintf(dotted, sizeof dotted, ".%s", name);
    return !*value || json_is_string(*value) ? 0 : refuse_member(r->error, path, dotted, "a string", *value);
}

static int read_call(reader *r, const char *path, const json_t *call, json_t *message) {
    const json_t *function = json_object_get(call, "function");
    json_t *name = json_object_get(function, "name"), *arguments = json_object_get(function, "arguments"),
           *id;
    char made[32];
    if (!json_is_string(name)) {
        return refuse_member(r->error, path, ".function.name", "a string", name);
    }
    if (!json_is_object(arguments) && !json_is_string(arguments)) {
        return refuse_member(r->error, path, ".function.arguments", "an object", arguments);
    }
    if (read_string(r, path, call, "id", &id)) {
        return -1;
    }
    snprintf(made, sizeof made, "call_%zu", json_array_size(r->waiting));
    id = json_string_length(id) > 0 ? json_incref(id) : json_string(made);
    r->list.failed |= !id || json_array_append(r->waiting, id);
    list_call(&r->list, message, id, name, arguments);
    json_decref(id);
    return 0;
}

static int read_calls(reader *r, const char *path, const json_t *calls, json_t *message) {
    char at[80];
    if (!calls || json_is_null(calls)) {
        return 0;
    }
    if (!json_is_array(calls)) {
        return refuse_member(r->error, path, ".tool_calls", "an array", calls);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        snprintf(at, sizeof at, "%s.tool_calls[%zu]", path, i);
        if (read_call(r, at, json_array_get(calls, i), message)) {
            return -1;
        }
    }
    return 0;
}

/* A tool's message may name its call; else it answers the first one that has no answer yet. */
static json_t *begin_result(reader *r, json_t *id) {
    if (json_string_length(id) > 0) {
        return list_result(&r->list, id);
    }
    json_t *next = json_array_get(r->waiting, r->answered);
    if (next) {
        r->answered++;
        return list_result(&r->list, next);
    }
    json_t *made = json_string("call_unknown");
    json_t *message = list_result(&r->list, made);
    r->list.failed |= !made;
    json_decref(made);
    return message;
}

static const char *role_of(const json_t *turn) {
    const char *given = json_string_value(json_object_get(turn, "role"));
    char lower[16];
    size_t i = 0;
    for (; given && given[i] && i + 1 < sizeof lower; i++) {
        lower[i] = (char)tolower((unsigned char)given[i]);
    }
    lower[i] = 0;
    return known_name(ROLES, lower);
}

static int read_turn(reader *r, size_t index, const json_t *turn) {
    const char *role = role_of(turn);
    const json_t *images = json_object_get(turn, "images");
    json_t *content, *thinking, *id;
    char path[48];
    snprintf(path, sizeof path, "messages[%zu]", index);
    if (!role) {
        return body_refuse(r->error, "%s.role: must be user, assistant, system or tool", path);
    }
    if (images && !json_is_null(images) && !(json_is_array(images) && json_array_size(images) == 0)) {
        return body_refuse(r->error, "%s.images: images are not supported", path);
    }
    if (read_string(r, path, turn, "content", &content) ||
        read_string(r, path, turn, "thinking", &thinking) ||
        read_string(r, path, turn, "tool_call_id", &id)) {
        return -1;
    }
    const bool is_tool = strcmp(role, "tool") == 0, is_assistant = strcmp(role, "assistant") == 0;
    json_t *message = is_tool ? begin_result(r, id) : list_message(&r->list, role, false);
    list_text(&r->list, message, content);
    if (!is_assistant) {
        return 0;
    }
    list_reasoning(&r->list, message, thinking);
    return read_calls(r, path, json_object_get(turn, "tool_calls"), message);
}

int convert_ollama(const json_t *turns, json_t **messages, http_error *error) {
    reader r = {.waiting = json_array(), .error = error};
    int failed = 0;
    list_begin(&r.list);
    r.list.failed |= !r.waiting;
    if (!json_is_array(turns)) {
        failed = refuse_member(error, "", "messages", "an array", turns);
    }
    for (size_t i = 0; !failed && i < json_array_size(turns); i++) {
        failed = read_turn(&r, i, json_array_get(turns, i));
    }
    json_decref(r.waiting);
    if (failed) {
        list_discard(&r.list);
        return -1;
    }
    return list_finish(&r.list, messages, error);
}
