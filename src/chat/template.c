#include "chat/template.h"

#include "base/alloc.h"
#include "chat/evaluator.h"

struct sl_template {
    sl_arena arena;
    const char *name;
    const sl_jinja_node *root;
};

static const sl_template_limits defaults = {
    .output_bytes = 16u << 20,
    .memory_bytes = 128u << 20,
    .steps = 20000000,
    .depth = 1000,
    .now = 1721952000,
};

int sl_template_compile(const char *source, size_t length, const char *name, sl_template **out,
                        sl_error *error) {
    *out = NULL;
    name = name ? name : "chat template";
    sl_template *compiled = sl_alloc_zero(1, sizeof *compiled);
    if (!compiled) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", name);
    }
    sl_jinja_source shared = {.name = name, .arena = &compiled->arena, .error = error};
    sl_jinja_token *tokens;
    sl_jinja_node *root;
    compiled->name = sl_arena_strndup(&compiled->arena, name, strlen(name));
    int code = compiled->name ? 0 : sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", name);
    if (code || (code = sl_jinja_lex(&shared, (sl_view){source, length}, &tokens)) ||
        (code = sl_jinja_parse(&shared, tokens, &root))) {
        sl_template_free(compiled);
        return code;
    }
    compiled->root = root;
    *out = compiled;
    return 0;
}

void sl_template_free(sl_template *compiled) {
    if (compiled) {
        sl_arena_free(&compiled->arena);
        sl_free(compiled);
    }
}

static sl_template_limits complete(const sl_template_limits *given) {
    sl_template_limits limits = given ? *given : defaults;
    limits.output_bytes = limits.output_bytes ? limits.output_bytes : defaults.output_bytes;
    limits.memory_bytes = limits.memory_bytes ? limits.memory_bytes : defaults.memory_bytes;
    limits.memory_bytes = limits.memory_bytes > 2u << 30 ? 2u << 30 : limits.memory_bytes;
    limits.steps = limits.steps ? limits.steps : defaults.steps;
    limits.depth = limits.depth && limits.depth < defaults.depth ? limits.depth : defaults.depth;
    limits.now = limits.now ? limits.now : defaults.now;
    return limits;
}

int sl_template_render(const sl_template *compiled, json_t *variables, const sl_template_limits *limits,
                       sl_buffer *out, sl_error *error) {
    if (!json_is_object(variables)) {
        return sl_fail(error, SL_ERR_INVALID, "%s: the variables are not an object", compiled->name);
    }
    if (out->failed) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", compiled->name);
    }
    size_t start = out->length;
    sl_jinja state = {.name = compiled->name, .limits = complete(limits), .out = out, .error = error};
    state.memory_left = state.limits.memory_bytes;
    state.steps_left = state.limits.steps;
    state.output_left = state.limits.output_bytes;
    sl_jinja_value values;
    int code = sl_jinja_from_json(&state, variables, &values);
    code = code ? code : sl_jinja_execute(&state, compiled->root, values);
    sl_arena_free(&state.arena);
    if (code) {
        out->length = start;
        out->failed = false;
        if (out->data) {
            out->data[start] = 0;
        }
    }
    return code;
}
