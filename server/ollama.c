/* Ollama's POST /api/chat and /api/generate. Names and shapes: api/types.go of ollama 0.14 and the npm
 * package ollama, 0.6. */
#include "ollama.h"

#include "convert.h"
#include "message_list.h"
#include "openai.h"
#include "pump.h"
#include "tools.h"
#include "vectors.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* JSON and texts are borrowed from the body; NULL: not given. */
typedef struct ollama_fields {
    const char *model, *prompt, *system;
    const json_t *messages, *options, *think, *format, *tools;
    bool stream, raw, logprobs;
    int64_t top_logprobs;
    int64_t context; /* num_ctx; 0: not given */
} ollama_fields;

#define AT(member) offsetof(ollama_fields, member)
#define OPTION(member) offsetof(generation_options, member)

/* keep_alive is not here: models stay loaded. Nor is `truncate` and `shift`: what does not fit is refused,
 * never cut. */
static const field FIELDS[] = {
    {"model", FIELD_TEXT, AT(model), 0, 0, NULL},
    {"options", FIELD_OBJECT, AT(options), 0, 0, NULL},
    {"stream", FIELD_BOOL, AT(stream), 0, 0, NULL},
    {"think", FIELD_ANY, AT(think), 0, 0, NULL},
    {"logprobs", FIELD_BOOL, AT(logprobs), 0, 0, NULL},
    {"top_logprobs", FIELD_WHOLE, AT(top_logprobs), 0, BODY_TOP_LOGPROBS, NULL},
    {"format", FIELD_ANY, AT(format), 0, 0, NULL},
    {"_debug_render_only", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
};

static const field CHAT_FIELDS[] = {
    {"messages", FIELD_ARRAY, AT(messages), 0, 0, NULL},
    {"tools", FIELD_ARRAY, AT(tools), 0, 0, NULL},
};

static const field GENERATE_FIELDS[] = {
    {"prompt", FIELD_TEXT, AT(prompt), 0, 0, NULL},   {"system", FIELD_TEXT, AT(system), 0, 0, NULL},
    {"raw", FIELD_BOOL, AT(raw), 0, 0, NULL},         {"suffix", FIELD_UNSUPPORTED, 0, 0, 0, "\"\""},
    {"template", FIELD_UNSUPPORTED, 0, 0, 0, "\"\""}, {"context", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"images", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
};

/* Options of the runner (num_gpu, num_thread, num_batch, use_mmap, ...) are the server's to choose and change
 * no answer; num_keep says what a prompt that is cut keeps, and none is cut. */
static const field OPTIONS[] = {
    {"temperature", FIELD_REAL, OPTION(temperature), 0, 1e6, NULL},
    {"top_k", FIELD_WHOLE, OPTION(top_k), -1, INT32_MAX, NULL},
    {"top_p", FIELD_REAL, OPTION(top_p), 0, 1, NULL},
    {"min_p", FIELD_REAL, OPTION(min_p), 0, 1, NULL},
    {"typical_p", FIELD_REAL, OPTION(typical_p), 0, 1, NULL},
    {"seed", FIELD_WHOLE, OPTION(seed), -1e19, 1e19, NULL},
    {"num_predict", FIELD_WHOLE, OPTION(max_tokens), -2, 1e19, NULL},
    {"repeat_penalty", FIELD_REAL, OPTION(repetition_penalty), 0.001, 1000, NULL},
    {"repeat_last_n", FIELD_WHOLE, OPTION(penalty_tokens), -1, INT32_MAX, NULL},
    {"presence_penalty", FIELD_REAL, OPTION(presence_penalty), -2, 2, NULL},
    {"frequency_penalty", FIELD_REAL, OPTION(frequency_penalty), -2, 2, NULL},
    {"stop", FIELD_ANY, OPTION(stop), 0, 0, NULL},
    {"mirostat", FIELD_WHOLE, OPTION(mirostat), 0, 2, NULL},
    {"mirostat_tau", FIELD_REAL, OPTION(mirostat_tau), 0.001, 1000, NULL},
    {"mirostat_eta", FIELD_REAL, OPTION(mirostat_eta), 0.000001, 1000, NULL},
    {"tfs_z", FIELD_UNSUPPORTED, 0, 0, 0, "1"},
};

static const field CONTEXT_FIELD[] = {{"num_ctx", FIELD_WHOLE, AT(context), 0, INT32_MAX, NULL}};

#define READ(object, path, fields, target, error)                                                            \
    body_fields(object, path, fields, sizeof fields / sizeof *fields, target, error)

static bool is(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

static int read_fields(const json_t *body, bool chat, ollama_fields *f, http_error *error) {
    static const char *const LEVELS[] = {"low", "medium", "high", "max"};
    *f = (ollama_fields){.stream = true};
    if (READ(body, "", FIELDS, f, error) ||
        (chat ? READ(body, "", CHAT_FIELDS, f, error) : READ(body, "", GENERATE_FIELDS, f, error)) ||
        READ(f->options, "options.", CONTEXT_FIELD, f, error)) {
        return -1;
    }
    bool known = !f->think || json_is_boolean(f->think);
    for (size_t i = 0; !known && i < sizeof LEVELS / sizeof *LEVELS; i++) {
        known = is(f->think, LEVELS[i]);
    }
    return known ? 0 : body_refuse(error, "think: must be true, false, low, medium, high or max");
}

/* ---- the prompt ---- */

/* Options of the template; NULL without memory. */
static json_t *template_options(const ollama_fields *f) {
    json_t *all = json_object();
    bool made = all != NULL;
    if (json_is_string(f->think)) {
        made = made && convert_effort(all, json_string_value(f->think));
    } else if (f->think) {
        made = made && json_object_set(all, "enable_thinking", (json_t *)f->think) == 0;
    }
    if (!made) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* Functions as in chat completions, whose type may be left out. */
static int use_tools(generation *g, const ollama_fields *f, json_t *kwargs, http_error *error) {
    const tool_wish wish = {.choice = SLUICE_TOOLS_AUTO};
    json_t *functions = json_array();
    int code = functions ? 0 : error_no_memory(error);
    for (size_t i = 0; !code && i < json_array_size(f->tools); i++) {
        const json_t *function = json_object_get(json_array_get(f->tools, i), "function");
        json_t *name = json_object_get(function, "name");
        if (!json_is_string(name)) {
            code = body_refuse(error, "tools[%zu].function.name: must be a string", i);
        } else if (!tools_add(functions, name, json_object_get(function, "description"),
                              json_object_get(function, "parameters"))) {
            code = error_no_memory(error);
        }
    }
    code = code ? code : tools_use(g, functions, &wish, kwargs, error);
    json_decref(functions);
    return code;
}

static int add_chat(generation *g, const ollama_fields *f, json_t *messages, http_error *error) {
    json_t *kwargs = template_options(f);
    if (!messages || !kwargs) {
        json_decref(messages);
        json_decref(kwargs);
        return error_no_memory(error);
    }
    if (use_tools(g, f, kwargs, error)) {
        json_decref(messages);
        json_decref(kwargs);
        return -1;
    }
    return api_add_messages(g, messages, kwargs, f->messages ? "messages" : "prompt", error);
}

static int add_raw(generation *g, const ollama_fields *f, http_error *error) {
    int32_t *tokens;
    size_t count;
    sluice_error inner;
    if (sluice_tokenize(generation_model(g)->model, f->prompt, strlen(f->prompt),
                        SLUICE_TOKENIZE_SPECIAL | SLUICE_TOKENIZE_BOS, &tokens, &count, &inner)) {
        error_from_sluice(&inner, error);
        return -1;
    }
    return generation_add_prompt(g, tokens, count, error);
}

static int add_prompt(generation *g, const ollama_fields *f, http_error *error) {
    json_t *messages = NULL;
    const served_model *m = generation_model(g);
    if (f->context > m->context) {
        return body_refuse(error, "options.num_ctx: %lld is more than the %d tokens of context here",
                           (long long)f->context, m->context);
    }
    if (f->think && !json_is_false(f->think) && !m->facts.marks_thoughts) {
        return body_refuse(error, "think: this model does not support thinking");
    }
    if (f->raw) {
        return add_raw(g, f, error);
    }
    if (f->messages) {
        return convert_ollama(f->messages, &messages, error) ? -1 : add_chat(g, f, messages, error);
    }
    const bool system = f->system && *f->system;
    messages = system ? json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "system", "content", f->system, "role",
                                  "user", "content", f->prompt)
                      : json_pack("[{s:s, s:s}]", "role", "user", "content", f->prompt);
    return add_chat(g, f, messages, error);
}

/* ---- handlers ---- */

static int read_options(generation *g, const ollama_fields *f, http_error *error) {
    generation_options *o = generation_get_options(g);
    if (READ(f->options, "options.", OPTIONS, o, error)) {
        return -1;
    }
    o->stream = f->stream;
    o->structured.format = f->format;
    o->structured.format_path = "format";
    o->logprobs = f->logprobs;
    o->top_logprobs = f->logprobs ? f->top_logprobs : 0;
    /* Anything below 1 is no limit, and any seed below 0 a random one. */
    o->max_tokens = o->max_tokens > 0 ? o->max_tokens : -1;
    o->seed = o->seed < 0 ? -1 : o->seed;
    return 0;
}

static int start(generation *g, const ollama_fields *f, bool chat, double load_seconds, http_error *error) {
    ollama_state *s = NULL;
    int failed = read_options(g, f, error) || add_prompt(g, f, error) ? -1 : 0;
    if (!failed && !(s = calloc(1, sizeof *s))) {
        failed = error_no_memory(error);
    }
    if (failed) {
        generation_discard(g);
        return -1;
    }
    s->chat = chat;
    s->logprobs = f->logprobs;
    s->load_seconds = load_seconds;
    s->started = monotonic_seconds();
    return generation_start(g, &OLLAMA_DIALECT, s, chat ? "messages" : "prompt", error);
}

/* The answer to a request without a prompt, whose use is that the model is loaded afterwards. */
static void reply_loaded(exchange *x, const served_model *m, bool chat) {
    text out = {0};
    ollama_write_head(&out, m);
    text_put(&out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : ",\"response\":\"\"");
    text_put(&out, ",\"done\":true,\"done_reason\":\"load\"}");
    reply_text(x, &out);
}

/* Takes over the body. */
static int handle(server *s, exchange *x, json_t *body, bool chat, http_error *error) {
    ollama_fields f;
    const double before = monotonic_seconds();
    served_model *m = NULL;
    if (!read_fields(body, chat, &f, error)) {
        char *name = f.model ? ollama_name(f.model) : NULL;
        if (f.model && !name) {
            error_no_memory(error);
        } else {
            m = models_acquire(s->models, name, error);
        }
        free(name);
    }
    if (!m) {
        json_decref(body);
        return -1;
    }
    if (chat ? json_array_size(f.messages) == 0 : !f.prompt || !*f.prompt) {
        reply_loaded(x, m, chat);
        models_release(s->models, m);
        json_decref(body);
        return 0;
    }
    const double load_seconds = monotonic_seconds() - before;
    generation *g = generation_create(s, x, m, body);
    return g ? start(g, &f, chat, load_seconds, error) : error_no_memory(error);
}

static void handle_route(exchange *x, server *s, bool chat) {
    http_error error;
    json_t *body = NULL;
    if (openai_open(s, x, &body, &error) || handle(s, x, body, chat, &error)) {
        exchange_fail(x, &error);
    }
}

static void chat(exchange *x, void *context) {
    handle_route(x, context, true);
}

static void generate(exchange *x, void *context) {
    handle_route(x, context, false);
}

static const route ROUTES[] = {
    {"POST", "/api/chat", false, false, chat, ollama_error_body},
    {"POST", "/api/generate", false, false, generate, ollama_error_body},
    {"POST", "/api/embed", false, false, vectors_ollama, ollama_error_body},
    {"POST", "/api/embeddings", false, false, vectors_ollama_single, ollama_error_body},
    {"GET", "/api/version", false, true, ollama_version, ollama_error_body},
    {"GET", "/api/tags", false, false, ollama_tags, ollama_error_body},
    {"GET", "/api/ps", false, false, ollama_running, ollama_error_body},
    {"POST", "/api/show", false, false, ollama_show, ollama_error_body},
};
const route_table OLLAMA_ROUTES = {ROUTES, sizeof ROUTES / sizeof *ROUTES};
