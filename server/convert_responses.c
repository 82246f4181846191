/* The input of OpenAI's Responses API. Shapes: the types of the npm package openai, 7.57 (ResponseInputItem).
 */
#include "convert.h"

#include "message_list.h"

#include <stdio.h>
#include <string.h>

static const char *const ROLES[] = {"user", "assistant", "system", "developer", NULL};
static const char *const TEXT_PARTS[] = {"input_text",   "output_text",    "text",
                                         "summary_text", "reasoning_text", NULL};
static const char *const OTHER_PARTS[] = {"input_image", "input_file", "input_audio",         "image_url",
                                          "audio",       "file",       "computer_screenshot", NULL};
/* What hosted tools did, and what they were: these tools are not offered here either. */
static const char *const SKIPPED[] = {
    "file_search_call",  "computer_call",           "computer_call_output",
    "web_search_call",   "tool_search_call",        "tool_search_output",
    "additional_tools",  "image_generation_call",   "code_interpreter_call",
    "local_shell_call",  "local_shell_call_output", "shell_call",
    "shell_call_output", "apply_patch_call",        "apply_patch_call_output",
    "mcp_list_tools",    "mcp_approval_request",    "mcp_approval_response",
    "mcp_call",          "custom_tool_call",        "custom_tool_call_output",
    "program",           "program_output",          NULL};
static const char *const REFUSED[] = {"item_reference", "compaction", "compaction_trigger", NULL};

/* An input on its way into a list. */
typedef struct reader {
    message_list list;
    json_t *reasoning; /* texts that wait for the assistant's next message; borrowed from the input */
    http_error *error;
} reader;

/* Texts of `content`, a string or parts, into `message`. */
static int read_content(reader *r, const char *path, json_t *content, json_t *message) {
    if (json_is_string(content)) {
        list_text(&r->list, message, content);
        return 0;
    }
    if (!json_is_array(content)) {
        return refuse_member(r->error, path, "", "a string or an array of parts", content);
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type) {
            return body_refuse(r->error, "%s[%zu]: must be an object with a type", path, i);
        }
        const bool refusal = strcmp(type, "refusal") == 0;
        const char *other = known_name(OTHER_PARTS, type);
        if (!refusal && !known_name(TEXT_PARTS, type)) {
            return body_refuse(r->error, "%s[%zu].type: %s is not supported, only texts are", path, i,
                               other ? other : "this type");
        }
        const char *key = refusal ? "refusal" : "text";
        json_t *string = json_object_get(part, key);
        if (!json_is_string(string)) {
            return body_refuse(r->error, "%s[%zu].%s: must be a string", path, i, key);
        }
        list_text(&r->list, message, string);
    }
    return 0;
}

static void add_reasoning(reader *r, json_t *message) {
    for (size_t i = 0; i < json_array_size(r->reasoning); i++) {
        list_reasoning(&r->list, message, json_object_get(json_array_get(r->reasoning, i), "text"));
    }
    r->reasoning = NULL;
}

static int read_message(reader *r, const char *path, const json_t *item) {
    const json_t *role = json_object_get(item, "role");
    const char *known = json_is_string(role) ? known_name(ROLES, json_string_value(role)) : NULL;
    char content[64];
    if (!known) {
        return body_refuse(r->error, "%s.role: must be user, assistant, system or developer", path);
    }
    json_t *message = list_message(&r->list, strcmp(known, "developer") == 0 ? "system" : known, false);
    if (strcmp(known, "assistant") == 0) {
        add_reasoning(r, message);
    }
    r->reasoning = NULL;
    snprintf(content, sizeof content, "%s.content", path);
    return read_content(r, content, json_object_get(item, "content"), message);
}

static int read_call(reader *r, const char *path, const json_t *item) {
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id)) {
        return refuse_member(r->error, path, ".call_id", "a string", id);
    }
    if (!json_is_string(name)) {
        return refuse_member(r->error, path, ".name", "a string", name);
    }
    if (!json_is_string(arguments)) {
        return refuse_member(r->error, path, ".arguments", "a string", arguments);
    }
    json_t *message = list_message(&r->list, "assistant", !r->reasoning);
    add_reasoning(r, message);
    list_call(&r->list, message, id, name, arguments);
    return 0;
}

static int read_result(reader *r, const char *path, const json_t *item) {
    json_t *id = json_object_get(item, "call_id");
    char output[64];
    if (!json_is_string(id)) {
        return refuse_member(r->error, path, ".call_id", "a string", id);
    }
    snprintf(output, sizeof output, "%s.output", path);
    r->reasoning = NULL;
    return read_content(r, output, json_object_get(item, "output"), list_result(&r->list, id));
}

static int read_item(reader *r, const char *path, const json_t *item) {
    if (!json_is_object(item)) {
        return body_refuse(r->error, "%s: must be an object, not %s", path, body_type(item));
    }
    const json_t *given = json_object_get(item, "type");
    const bool untyped = !given || json_is_null(given);
    const char *type =
        untyped ? (json_object_get(item, "role") ? "message" : "item_reference") : json_string_value(given);
    if (!type) {
        return refuse_member(r->error, path, ".type", "a string", given);
    }
    if (strcmp(type, "message") == 0) {
        return read_message(r, path, item);
    }
    if (strcmp(type, "function_call") == 0) {
        return read_call(r, path, item);
    }
    if (strcmp(type, "function_call_output") == 0) {
        return read_result(r, path, item);
    }
    if (strcmp(type, "reasoning") == 0) {
        r->reasoning = json_object_get(item, "content");
        return 0;
    }
    const char *refused = known_name(REFUSED, type);
    if (refused) {
        return body_refuse(r->error, "%s.type: %s is not supported, because nothing is stored here", path,
                           refused);
    }
    return known_name(SKIPPED, type)
               ? 0
               : body_refuse(r->error, "%s.type: is no type of an input item that is known here", path);
}

static int read_input(reader *r, json_t *input) {
    char path[32];
    if (json_is_string(input)) {
        list_text(&r->list, list_message(&r->list, "user", false), input);
        return 0;
    }
    if (!json_is_array(input) || json_array_size(input) == 0) {
        return json_is_array(input) ? body_refuse(r->error, "input: must have at least one item")
                                    : refuse_member(r->error, "", "input", "a string or an array", input);
    }
    for (size_t i = 0; i < json_array_size(input); i++) {
        snprintf(path, sizeof path, "input[%zu]", i);
        if (read_item(r, path, json_array_get(input, i))) {
            return -1;
        }
    }
    return json_array_size(r->list.messages) > 0 || r->list.failed
               ? 0
               : body_refuse(r->error, "input: has no message");
}

int convert_responses(const json_t *instructions, const json_t *input, json_t **messages, http_error *error) {
    reader r = {.error = error};
    list_begin(&r.list);
    if (json_is_string(instructions)) {
        list_text(&r.list, list_message(&r.list, "system", false), (json_t *)instructions);
    } else if (instructions && !json_is_null(instructions)) {
        list_discard(&r.list);
        return refuse_member(error, "", "instructions", "a string", instructions);
    }
    if (read_input(&r, (json_t *)input)) {
        list_discard(&r.list);
        return -1;
    }
    return list_finish(&r.list, messages, error);
}

int convert_responses_tools(const json_t *tools, json_t **functions, http_error *error) {
    *functions = json_array();
    int failed = *functions ? 0 : error_no_memory(error);
    for (size_t i = 0; !failed && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        json_t *name = json_object_get(tool, "name");
        if (!type) {
            failed = body_refuse(error, "tools[%zu]: must be an object with a type", i);
        } else if (strcmp(type, "function") != 0) {
            continue;
        } else if (!json_is_string(name)) {
            failed = body_refuse(error, "tools[%zu].name: must be a string", i);
        } else if (!tools_add(*functions, name, json_object_get(tool, "description"),
                              json_object_get(tool, "parameters"))) {
            failed = error_no_memory(error);
        }
    }
    if (failed) {
        json_decref(*functions);
        *functions = NULL;
    }
    return failed;
}
