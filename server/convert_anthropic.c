/* The input of Anthropic's Messages API. Shapes: the types of the npm package @anthropic-ai/sdk, 1.12
 * (MessageParam, ContentBlockParam). */
#include "convert.h"

#include "message_list.h"

#include <stdio.h>
#include <string.h>

/* Claude Code begins its system prompt with a line of this name, whose value differs in every request. In a
 * prompt it would keep anything behind it from being found in the cache. */
static const char BILLING[] = "x-anthropic-billing-header:";

static const char *const ROLES[] = {"user", "assistant", "system", NULL};
static const char *const OTHER_BLOCKS[] = {"image",
                                           "document",
                                           "search_result",
                                           "server_tool_use",
                                           "web_search_tool_result",
                                           "web_fetch_tool_result",
                                           "code_execution_tool_result",
                                           "bash_code_execution_tool_result",
                                           "text_editor_code_execution_tool_result",
                                           "tool_search_tool_result",
                                           "tool_reference",
                                           "browser_state",
                                           "mcp_tool_use",
                                           "mcp_tool_result",
                                           "container_upload",
                                           NULL};

typedef struct reader {
    message_list list;
    const char *role;
    http_error *error;
} reader;

/* Refused blocks are named; what is not known is not quoted. */
static int refuse_block(reader *r, const char *path, const char *type) {
    const char *known = type ? known_name(OTHER_BLOCKS, type) : NULL;
    if (!type) {
        return body_refuse(r->error, "%s: must be an object with a type", path);
    }
    return body_refuse(r->error, "%s.type: %s is not supported", path,
                       known ? known : "a block of this type, or here,");
}

static json_t *text_of(reader *r, const char *path, const json_t *block) {
    json_t *string = json_object_get(block, "text");
    if (!json_is_string(string)) {
        refuse_member(r->error, path, ".text", "a string", string);
        return NULL;
    }
    return string;
}

/* ---- system ---- */

static void add_system(reader *r, json_t *string) {
    const char *bytes = json_string_value(string);
    if (json_string_length(string) < sizeof BILLING - 1 || memcmp(bytes, BILLING, sizeof BILLING - 1) != 0) {
        list_text(&r->list, list_message(&r->list, "system", true), string);
        return;
    }
    const char *end = memchr(bytes, '\n', json_string_length(string));
    if (end) {
        json_t *rest = json_stringn_nocheck(end + 1, json_string_length(string) - (size_t)(end + 1 - bytes));
        r->list.failed |= !rest;
        if (json_string_length(rest) > 0) {
            list_text(&r->list, list_message(&r->list, "system", true), rest);
        }
        json_decref(rest);
    }
}

static int read_system(reader *r, const char *path, json_t *system) {
    char at[64];
    if (json_is_string(system)) {
        if (json_string_length(system) > 0) {
            add_system(r, system);
        }
        return 0;
    }
    if (!json_is_array(system)) {
        return refuse_member(r->error, path, "", "a string or an array of text blocks", system);
    }
    for (size_t i = 0; i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i);
        const char *type = json_string_value(json_object_get(block, "type"));
        snprintf(at, sizeof at, "%s[%zu]", path, i);
        if (!type || strcmp(type, "text") != 0) {
            return refuse_block(r, at, type);
        }
        json_t *string = text_of(r, at, block);
        if (!string) {
            return -1;
        }
        add_system(r, string);
    }
    return 0;
}

/* ---- turns ---- */

static json_t *turn_message(reader *r) {
    return list_message(&r->list, r->role, true);
}

static int read_text(reader *r, const char *path, const json_t *block) {
    json_t *string = text_of(r, path, block);
    if (string) {
        list_text(&r->list, turn_message(r), string);
    }
    return string ? 0 : -1;
}

/* The list's messages have no mark for a failed call: its text says what went wrong, and where there is none,
 * that it failed. */
static int read_tool_result(reader *r, const char *path, const json_t *block) {
    json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content"),
           *failed = json_object_get(block, "is_error");
    char at[96];
    if (!json_is_string(id)) {
        return refuse_member(r->error, path, ".tool_use_id", "a string", id);
    }
    if (failed && !json_is_boolean(failed) && !json_is_null(failed)) {
        return refuse_member(r->error, path, ".is_error", "a boolean", failed);
    }
    json_t *message = list_result(&r->list, id);
    if (json_is_string(content)) {
        list_text(&r->list, message, content);
    } else if (content && !json_is_null(content) && !json_is_array(content)) {
        return refuse_member(r->error, path, ".content", "a string or an array of text blocks", content);
    }
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        snprintf(at, sizeof at, "%s.content[%zu]", path, i);
        if (!type || strcmp(type, "text") != 0) {
            return refuse_block(r, at, type);
        }
        json_t *string = text_of(r, at, part);
        if (!string) {
            return -1;
        }
        list_text(&r->list, message, string);
    }
    if (json_is_true(failed) && json_array_size(json_object_get(message, "content")) == 0) {
        json_t *word = json_string("Error");
        r->list.failed |= !word;
        list_text(&r->list, message, word);
        json_decref(word);
    }
    return 0;
}

static int read_tool_use(reader *r, const char *path, const json_t *block) {
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input");
    if (!json_is_string(id)) {
        return refuse_member(r->error, path, ".id", "a string", id);
    }
    if (!json_is_string(name)) {
        return refuse_member(r->error, path, ".name", "a string", name);
    }
    if (!json_is_object(input)) {
        return refuse_member(r->error, path, ".input", "an object", input);
    }
    list_call(&r->list, turn_message(r), id, name, input);
    return 0;
}

static int read_thinking(reader *r, const char *path, const json_t *block) {
    json_t *thinking = json_object_get(block, "thinking");
    if (!json_is_string(thinking)) {
        return refuse_member(r->error, path, ".thinking", "a string", thinking);
    }
    list_reasoning(&r->list, turn_message(r), thinking);
    return 0;
}

static int read_block(reader *r, const char *path, const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    const bool assistant = strcmp(r->role, "assistant") == 0;
    if (type && strcmp(type, "text") == 0) {
        return read_text(r, path, block);
    }
    if (type && !assistant && strcmp(type, "tool_result") == 0) {
        return read_tool_result(r, path, block);
    }
    if (type && assistant && strcmp(type, "tool_use") == 0) {
        return read_tool_use(r, path, block);
    }
    if (type && assistant && strcmp(type, "thinking") == 0) {
        return read_thinking(r, path, block);
    }
    if (type && assistant && strcmp(type, "redacted_thinking") == 0) {
        return 0; /* encrypted by somebody else */
    }
    return refuse_block(r, path, type);
}

static int read_turn(reader *r, size_t index, const json_t *turn) {
    const json_t *role = json_object_get(turn, "role");
    json_t *content = json_object_get(turn, "content");
    char path[96];
    r->role = json_is_string(role) ? known_name(ROLES, json_string_value(role)) : NULL;
    if (!r->role) {
        return body_refuse(r->error, "messages[%zu].role: must be user, assistant or system", index);
    }
    snprintf(path, sizeof path, "messages[%zu].content", index);
    if (strcmp(r->role, "system") == 0) {
        return read_system(r, path, content);
    }
    if (json_is_string(content)) {
        list_text(&r->list, turn_message(r), content);
        return 0;
    }
    if (!json_is_array(content)) {
        return refuse_member(r->error, path, "", "a string or an array of blocks", content);
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        snprintf(path, sizeof path, "messages[%zu].content[%zu]", index, i);
        if (read_block(r, path, json_array_get(content, i))) {
            return -1;
        }
    }
    return 0;
}

/* An assistant's message at the end is the beginning of the answer; without a text it says nothing. */
static int read_end(reader *r, bool *continues) {
    const json_t *last = list_last(&r->list, "assistant");
    const size_t count = json_array_size(r->list.messages);
    *continues = last != NULL;
    if (list_call_count(last) > 0) {
        return body_refuse(r->error, "messages: a tool_use must be followed by its tool_result");
    }
    if (last && json_array_size(json_object_get(last, "content")) == 0) {
        *continues = false;
        r->list.failed |= json_array_remove(r->list.messages, count - 1) != 0;
    }
    return json_array_size(r->list.messages) > 0 || r->list.failed
               ? 0
               : body_refuse(r->error, "messages: has no text");
}

static int read_all(reader *r, json_t *system, const json_t *turns, bool *continues) {
    if (system && !json_is_null(system) && read_system(r, "system", system)) {
        return -1;
    }
    if (!json_is_array(turns)) {
        return refuse_member(r->error, "", "messages", "an array", turns);
    }
    if (json_array_size(turns) == 0) {
        return body_refuse(r->error, "messages: must have at least one message");
    }
    for (size_t i = 0; i < json_array_size(turns); i++) {
        if (read_turn(r, i, json_array_get(turns, i))) {
            return -1;
        }
    }
    return read_end(r, continues);
}

int convert_anthropic(const json_t *system, const json_t *turns, json_t **messages, bool *continues,
                      http_error *error) {
    reader r = {.error = error};
    list_begin(&r.list);
    if (read_all(&r, (json_t *)system, turns, continues)) {
        list_discard(&r.list);
        return -1;
    }
    return list_finish(&r.list, messages, error);
}

/* A tool of the client's own has the type "custom" or none. */
int convert_anthropic_tools(const json_t *tools, json_t **functions, http_error *error) {
    *functions = json_array();
    int failed = *functions ? 0 : error_no_memory(error);
    for (size_t i = 0; !failed && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        json_t *name = json_object_get(tool, "name");
        const bool untyped = !type || json_is_null(type);
        if (!json_is_object(tool) || (!untyped && !json_is_string(type))) {
            failed = body_refuse(error, "tools[%zu]: must be an object, and its type a string", i);
        } else if (!untyped && strcmp(json_string_value(type), "custom") != 0) {
            continue;
        } else if (!json_is_string(name)) {
            failed = body_refuse(error, "tools[%zu].name: must be a string", i);
        } else if (!tools_add(*functions, name, json_object_get(tool, "description"),
                              json_object_get(tool, "input_schema"))) {
            failed = error_no_memory(error);
        }
    }
    if (failed) {
        json_decref(*functions);
        *functions = NULL;
    }
    return failed;
}
