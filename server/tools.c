#include "tools.h"

#include "convert.h"
#include "pump.h"

#include <stdlib.h>
#include <string.h>

static bool is(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* Chat completions have the name inside "function", Responses beside the type. */
static const char *name_in(const json_t *object) {
    const json_t *function = json_object_get(object, "function");
    return json_string_value(json_object_get(function ? function : object, "name"));
}

static bool has_function(const json_t *functions, const char *name) {
    for (size_t i = 0; i < json_array_size(functions); i++) {
        if (strcmp(name_in(json_array_get(functions, i)), name) == 0) {
            return true;
        }
    }
    return false;
}

static int read_mode(const json_t *mode, tool_wish *wish) {
    static const struct {
        const char *name;
        sluice_tool_choice choice;
    } MODES[] = {
        {"none", SLUICE_TOOLS_NONE}, {"auto", SLUICE_TOOLS_AUTO}, {"required", SLUICE_TOOLS_REQUIRED}};
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
        if (is(mode, MODES[i].name)) {
            wish->choice = MODES[i].choice;
            return 0;
        }
    }
    return -1;
}

/* Those that are allowed, in their order. */
static int leave_allowed(const json_t *allowed, json_t **functions, http_error *error) {
    json_t *some = json_array();
    bool made = some != NULL;
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        const char *name = name_in(json_array_get(allowed, i));
        if (is(json_object_get(json_array_get(allowed, i), "type"), "function") &&
            (!name || !has_function(*functions, name))) {
            json_decref(some);
            return body_refuse(error, "tool_choice.tools[%zu] names a function that is not among the tools",
                               i);
        }
    }
    for (size_t i = 0; made && i < json_array_size(*functions); i++) {
        json_t *function = json_array_get(*functions, i);
        bool wanted = false;
        for (size_t k = 0; k < json_array_size(allowed); k++) {
            const char *name = name_in(json_array_get(allowed, k));
            wanted |= name && strcmp(name, name_in(function)) == 0;
        }
        made = !wanted || json_array_append(some, function) == 0;
    }
    if (!made) {
        json_decref(some);
        return error_no_memory(error);
    }
    json_decref(*functions);
    *functions = some;
    return 0;
}

int tools_read_choice(const json_t *choice, json_t **functions, tool_wish *wish, http_error *error) {
    const json_t *type = json_object_get(choice, "type");
    if (!choice || json_is_null(choice)) {
        return 0;
    }
    if (is(type, "allowed_tools")) {
        const json_t *inner = json_object_get(choice, "allowed_tools");
        inner = inner ? inner : choice;
        if (read_mode(json_object_get(inner, "mode"), wish) || wish->choice == SLUICE_TOOLS_NONE) {
            return body_refuse(error, "tool_choice.mode must be \"auto\" or \"required\"");
        }
        return leave_allowed(json_object_get(inner, "tools"), functions, error);
    }
    if (json_is_object(choice)) {
        wish->function = name_in(choice);
        wish->choice = SLUICE_TOOLS_REQUIRED;
        return is(type, "function") && wish->function
                   ? 0
                   : body_refuse(error,
                                 "tool_choice must have the type \"function\" and a function with a name");
    }
    return read_mode(choice, wish)
               ? body_refuse(error, "tool_choice must be \"none\", \"auto\", \"required\" or an object that "
                                    "names a function")
               : 0;
}

int tools_read_anthropic(const json_t *choice, tool_wish *wish, http_error *error) {
    const json_t *type = json_object_get(choice, "type"),
                 *single = json_object_get(choice, "disable_parallel_tool_use");
    if (!choice) {
        return 0;
    }
    if (single && !json_is_boolean(single) && !json_is_null(single)) {
        return body_refuse(error, "tool_choice.disable_parallel_tool_use must be true or false, not %s",
                           body_type(single));
    }
    wish->single = json_is_true(single);
    wish->choice = is(type, "none")                      ? SLUICE_TOOLS_NONE
                   : is(type, "any") || is(type, "tool") ? SLUICE_TOOLS_REQUIRED
                                                         : SLUICE_TOOLS_AUTO;
    if (is(type, "tool")) {
        wish->function = json_string_value(json_object_get(choice, "name"));
        return wish->function ? 0 : body_refuse(error, "tool_choice.name: must be a string");
    }
    return is(type, "auto") || is(type, "any") || is(type, "none")
               ? 0
               : body_refuse(error, "tool_choice.type: must be auto, any, tool or none");
}

static bool writes_calls(const generation *g) {
    return strcmp(g->model->facts.reply_format, "plain") != 0;
}

static int check(const generation *g, const json_t *functions, const tool_wish *wish, http_error *error) {
    if (json_array_size(functions) == 0) {
        return wish->choice == SLUICE_TOOLS_REQUIRED
                   ? body_refuse(error, "tool_choice asks for a call, but there are no tools")
                   : 0;
    }
    if (wish->function && !has_function(functions, wish->function)) {
        return body_refuse(error, "tool_choice names a function that is not among the tools");
    }
    if (wish->choice == SLUICE_TOOLS_NONE) {
        return 0;
    }
    if (!g->model->facts.tools) {
        return body_refuse(error, "tools: this model's chat template does not take any; tool_choice \"none\" "
                                  "leaves them out");
    }
    return writes_calls(g) ? 0
                           : body_refuse(error, "tools: how this model writes calls is not known; "
                                                "tool_choice \"none\" leaves them out");
}

/* A new array in which every function has a description and parameters: templates read both without asking,
 * as Hugging Face's library makes them for all functions. */
static json_t *described(const json_t *functions) {
    json_t *all = json_array();
    bool made = all != NULL;
    for (size_t i = 0; made && i < json_array_size(functions); i++) {
        json_t *tool = json_copy(json_array_get(functions, i));
        json_t *function = json_copy(json_object_get(tool, "function"));
        const json_t *description = json_object_get(function, "description"),
                     *parameters = json_object_get(function, "parameters");
        made = function &&
               ((description && !json_is_null(description)) ||
                json_object_set_new(function, "description", json_string("")) == 0) &&
               ((parameters && !json_is_null(parameters)) ||
                json_object_set_new(function, "parameters",
                                    json_pack("{s:s, s:{}}", "type", "object", "properties")) == 0);
        made = json_object_set_new(tool, "function", function) == 0 && made;
        made = json_array_append_new(all, tool) == 0 && made;
    }
    if (!made) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

int tools_use(generation *g, json_t *functions, const tool_wish *wish, json_t *options, http_error *error) {
    generation_options *o = generation_get_options(g);
    if (check(g, functions, wish, error)) {
        return -1;
    }
    const bool offered = wish->choice != SLUICE_TOOLS_NONE;
    if (json_array_size(functions) == 0 || (!offered && !writes_calls(g))) {
        return 0;
    }
    free(g->tools);
    g->tools = json_dumps(functions, JSON_COMPACT);
    o->tool_choice = wish->choice;
    o->tool_function = wish->function;
    o->single_call = wish->single;
    return g->tools && (!offered || json_object_set_new(options, "tools", described(functions)) == 0)
               ? 0
               : error_no_memory(error);
}
