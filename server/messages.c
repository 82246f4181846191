/* Lists of chat messages in OpenAI's form: checked, and made uniform for templates. */
#include "messages.h"

#include "text.h"

#include <stdio.h>
#include <string.h>

/* Where in the list a check is, for messages. */
typedef struct place {
    const char *param; /* of the list */
    size_t message;
    const char *field; /* "", ".content", ... */
    http_error *error;
} place;

static int refuse(const place *p, const char *rule) {
    return body_refuse(p->error, "%s[%zu]%s: %s", p->param, p->message, p->field, rule);
}

static int refuse_type(const place *p, const char *wanted, const json_t *value) {
    return body_refuse(p->error, "%s[%zu]%s must be %s, not %s", p->param, p->message, p->field, wanted,
                       body_type(value));
}

static const json_t *given(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool is(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* ---- parts of contents ---- */

typedef struct part_kind {
    const char *type;
    const char *text; /* the member that holds its text; NULL: not supported */
    const char *what;
} part_kind;

static const part_kind PARTS[] = {
    {"text", "text", NULL},         {"input_text", "text", NULL},   {"output_text", "text", NULL},
    {"refusal", "refusal", NULL},   {"image_url", NULL, "image"},   {"input_image", NULL, "image"},
    {"image", NULL, "image"},       {"image_pil", NULL, "image"},   {"image_embeds", NULL, "image"},
    {"input_audio", NULL, "audio"}, {"audio_url", NULL, "audio"},   {"audio", NULL, "audio"},
    {"video_url", NULL, "video"},   {"input_video", NULL, "video"}, {"video", NULL, "video"},
    {"file", NULL, "file"},         {"input_file", NULL, "file"},   {"document", NULL, "file"},
};

static const part_kind *part_kind_of(const json_t *part) {
    const json_t *type = json_object_get(part, "type");
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        if (is(type, PARTS[i].type)) {
            return &PARTS[i];
        }
    }
    return NULL;
}

static int check_part(const place *p, size_t index, const json_t *part) {
    char field[64];
    place at = {p->param, p->message, field, p->error};
    snprintf(field, sizeof field, "%s[%zu]", p->field, index);
    if (!json_is_object(part)) {
        return refuse_type(&at, "an object", part);
    }
    const json_t *type = json_object_get(part, "type");
    const part_kind *kind = part_kind_of(part);
    if (!kind || !kind->text) {
        snprintf(field, sizeof field, "%s[%zu].type", p->field, index);
        if (!json_is_string(type)) {
            return refuse_type(&at, "a string", type);
        }
        if (!kind) {
            return refuse(&at, "must be \"text\"; a part of another type is not supported");
        }
        return body_refuse(at.error, "%s[%zu]%s: \"%s\" (%s) is not supported by this model", at.param,
                           at.message, at.field, kind->type, kind->what);
    }
    snprintf(field, sizeof field, "%s[%zu].%s", p->field, index, kind->text);
    const json_t *text = json_object_get(part, kind->text);
    return json_is_string(text) ? 0 : refuse_type(&at, "a string", text);
}

/* `empty`: an empty list is fine. */
static int check_content(const place *p, const json_t *content, bool empty) {
    place at = {p->param, p->message, ".content", p->error};
    if (json_is_string(content)) {
        return 0;
    }
    if (!json_is_array(content)) {
        return refuse_type(&at, "a string or an array of parts", content);
    }
    if (!json_array_size(content) && !empty) {
        return refuse(&at, "an array of parts must not be empty");
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        if (check_part(&at, i, json_array_get(content, i))) {
            return -1;
        }
    }
    return 0;
}

/* ---- roles ---- */

static int check_tool_call(const place *p, size_t index, const json_t *call) {
    char field[64];
    place at = {p->param, p->message, field, p->error};
    snprintf(field, sizeof field, ".tool_calls[%zu]", index);
    if (!json_is_object(call)) {
        return refuse_type(&at, "an object", call);
    }
    const json_t *id = given(call, "id"), *type = given(call, "type"), *function = given(call, "function");
    snprintf(field, sizeof field, ".tool_calls[%zu].id", index);
    if (id && !json_is_string(id)) {
        return refuse_type(&at, "a string", id);
    }
    snprintf(field, sizeof field, ".tool_calls[%zu].type", index);
    if (type && !is(type, "function")) {
        return refuse(&at, "must be \"function\"");
    }
    snprintf(field, sizeof field, ".tool_calls[%zu].function", index);
    if (!json_is_object(function)) {
        return refuse_type(&at, "an object", function);
    }
    const json_t *name = given(function, "name"), *arguments = given(function, "arguments");
    snprintf(field, sizeof field, ".tool_calls[%zu].function.name", index);
    if (!json_is_string(name)) {
        return refuse_type(&at, "a string", name);
    }
    snprintf(field, sizeof field, ".tool_calls[%zu].function.arguments", index);
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments)) {
        return refuse_type(&at, "a string with a JSON object", arguments);
    }
    return 0;
}

static int check_tool_calls(const place *p, const json_t *calls) {
    place at = {p->param, p->message, ".tool_calls", p->error};
    if (calls && !json_is_array(calls)) {
        return refuse_type(&at, "an array", calls);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        if (check_tool_call(p, i, json_array_get(calls, i))) {
            return -1;
        }
    }
    return 0;
}

static int check_strings(const place *p, const json_t *message, const char *const *names) {
    for (; *names; names++) {
        const json_t *value = given(message, *names);
        char field[40];
        place at = {p->param, p->message, field, p->error};
        snprintf(field, sizeof field, ".%s", *names);
        if (value && !json_is_string(value)) {
            return refuse_type(&at, "a string", value);
        }
    }
    return 0;
}

static int check_plain(const place *p, const json_t *message) {
    return check_content(p, json_object_get(message, "content"), false);
}

static int check_assistant(const place *p, const json_t *message) {
    static const char *const STRINGS[] = {"refusal", "reasoning_content", "reasoning", NULL};
    const json_t *content = given(message, "content"), *calls = given(message, "tool_calls");
    place at = {p->param, p->message, ".function_call", p->error};
    if (given(message, "function_call")) {
        return refuse(&at, "is not supported; use tool_calls");
    }
    at.field = ".audio";
    if (given(message, "audio")) {
        return refuse(&at, "is not supported");
    }
    if (check_strings(p, message, STRINGS) || check_tool_calls(p, calls)) {
        return -1;
    }
    at.field = ".content";
    if (!content && !json_array_size(calls) && !given(message, "refusal") &&
        !given(message, "reasoning_content") && !given(message, "reasoning")) {
        return refuse(&at, "must be a string or an array of parts where there are no tool_calls");
    }
    return content ? check_content(p, content, true) : 0;
}

static int check_tool(const place *p, const json_t *message) {
    static const char *const STRINGS[] = {"tool_call_id", NULL};
    return check_strings(p, message, STRINGS) ? -1
                                              : check_content(p, json_object_get(message, "content"), true);
}

typedef struct role {
    const char *name, *template_name;
    int (*check)(const place *p, const json_t *message);
} role;

static const role ROLES[] = {
    {"system", "system", check_plain}, {"developer", "system", check_plain},
    {"user", "user", check_plain},     {"assistant", "assistant", check_assistant},
    {"tool", "tool", check_tool},
};

static const role *role_of(const json_t *message) {
    const json_t *name = json_object_get(message, "role");
    for (size_t i = 0; i < sizeof ROLES / sizeof *ROLES; i++) {
        if (is(name, ROLES[i].name)) {
            return &ROLES[i];
        }
    }
    return NULL;
}

static int check_message(const place *p, const json_t *message) {
    static const char *const STRINGS[] = {"name", NULL};
    if (!json_is_object(message)) {
        return refuse_type(p, "an object", message);
    }
    place at = {p->param, p->message, ".role", p->error};
    const json_t *name = json_object_get(message, "role");
    if (!json_is_string(name)) {
        return refuse_type(&at, "a string", name);
    }
    const role *found = role_of(message);
    if (!found) {
        return refuse(&at, is(name, "function") ? "\"function\" is not supported; use \"tool\""
                                                : "must be one of system, developer, user, assistant, tool");
    }
    return check_strings(p, message, STRINGS) ? -1 : found->check(p, message);
}

int check_messages(const json_t *messages, const char *param, http_error *error) {
    if (!json_is_array(messages)) {
        return body_refuse(error, "%s must be an array of messages, not %s", param, body_type(messages));
    }
    if (!json_array_size(messages)) {
        return body_refuse(error, "%s must have at least one message", param);
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const place p = {param, i, "", error};
        if (check_message(&p, json_array_get(messages, i))) {
            return -1;
        }
    }
    return 0;
}

/* ---- the form that templates get: all functions give one reference, or NULL without memory ---- */

static json_t *joined_content(const json_t *content) {
    if (!json_is_array(content)) {
        return content ? json_incref((json_t *)(uintptr_t)content) : json_null();
    }
    text all = {0};
    text_put(&all, "");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const json_t *piece = json_object_get(part, part_kind_of(part)->text);
        text_put(&all, i ? "\n" : "");
        text_add(&all, json_string_value(piece), json_string_length(piece));
    }
    json_t *joined = all.failed ? NULL : json_stringn(all.data, all.length);
    text_free(&all);
    return joined;
}

/* Templates write arguments as JSON themselves, so they get the object that the string holds. */
static json_t *uniform_arguments(const json_t *arguments) {
    if (!arguments) {
        return json_object();
    }
    if (json_is_string(arguments)) {
        json_t *object;
        http_error ignored;
        const size_t length = json_string_length(arguments);
        if (body_parse(json_string_value(arguments), length, &object, &ignored) == 0) {
            return object;
        }
    }
    return json_incref((json_t *)(uintptr_t)arguments);
}

static json_t *uniform_call(const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    json_t *id = (json_t *)(uintptr_t)given(call, "id");
    return json_pack("{s:O*, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name",
                     json_object_get(function, "name"), "arguments",
                     uniform_arguments(given(function, "arguments")));
}

static json_t *uniform_calls(const json_t *calls) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        if (json_array_append_new(all, uniform_call(json_array_get(calls, i)))) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

/* Sets a member when there is one to set; takes `value`. */
static bool set(json_t *object, const char *name, json_t *value) {
    return json_object_set_new(object, name, value) == 0;
}

static bool copy(json_t *to, const json_t *from, const char *name, const char *as) {
    const json_t *value = given(from, name);
    return !value || json_object_set(to, as, (json_t *)(uintptr_t)value) == 0;
}

/* Only members that were checked for the role. */
static json_t *uniform_message(const json_t *message) {
    const role *role = role_of(message);
    const bool assistant = role->check == check_assistant;
    const json_t *content = given(message, "content"),
                 *calls = assistant ? given(message, "tool_calls") : NULL;
    json_t *out = json_object();
    content = content ? content : given(message, "refusal");
    bool made = set(out, "role", json_string(role->template_name)) &&
                set(out, "content", joined_content(content)) && copy(out, message, "name", "name");
    if (made && role->check == check_tool) {
        made = copy(out, message, "tool_call_id", "tool_call_id");
    }
    if (made && assistant) {
        made = copy(out, message, "reasoning", "reasoning_content") &&
               copy(out, message, "reasoning_content", "reasoning_content");
    }
    if (made && json_array_size(calls)) {
        made = set(out, "tool_calls", uniform_calls(calls));
    }
    if (!made) {
        json_decref(out);
        out = NULL;
    }
    return out;
}

json_t *uniform_messages(const json_t *messages) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (json_array_append_new(all, uniform_message(json_array_get(messages, i)))) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}
