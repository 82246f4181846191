/* Anthropic's POST /v1/messages and /v1/messages/count_tokens. Names and shapes: the types of the npm package
 * @anthropic-ai/sdk, 1.12. */
#include "anthropic.h"

#include "convert.h"
#include "openai.h"
#include "tools.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON and texts are borrowed from the body; NULL: not given. */
typedef struct anthropic_fields {
    const json_t *system, *messages, *tools, *tool_choice, *thinking, *output_config, *stops;
    const json_t *output_format, *config_format;
    json_t *functions; /* of the tools, as chat tools; of the handler, which releases it */
    tool_wish wish;
    const char *thinking_type, *display, *effort;
    int64_t max_tokens, budget; /* -1: not given */
    double temperature;
    bool counts; /* count_tokens: nothing is generated */
} anthropic_fields;

#define AT(member) offsetof(anthropic_fields, member)

static const field FIELDS[] = {
    {"system", FIELD_ANY, AT(system), 0, 0, NULL},
    {"messages", FIELD_ANY, AT(messages), 0, 0, NULL},
    {"tools", FIELD_ARRAY, AT(tools), 0, 0, NULL},
    {"tool_choice", FIELD_OBJECT, AT(tool_choice), 0, 0, NULL},
    {"thinking", FIELD_OBJECT, AT(thinking), 0, 0, NULL},
    {"output_config", FIELD_OBJECT, AT(output_config), 0, 0, NULL},
    {"output_format", FIELD_ANY, AT(output_format), 0, 0, NULL},
    {"stop_sequences", FIELD_ARRAY, AT(stops), 0, 0, NULL},
    {"max_tokens", FIELD_WHOLE, AT(max_tokens), 1, 1e19, NULL},
    {"temperature", FIELD_REAL, AT(temperature), 0, 1, NULL},
    {"mcp_servers", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"container", FIELD_UNSUPPORTED, 0, 0, 0, "\"\""},
    /* A conversation is read as it came: what to clear from it is the client's to do, and with nothing
     * cleared nothing is lost. */
};

static const field THINKING_FIELDS[] = {
    {"type", FIELD_CHOICE, AT(thinking_type), 0, 0, "enabled|disabled|adaptive|between_tools"},
    {"budget_tokens", FIELD_WHOLE, AT(budget), 1, 1e19, NULL},
    {"display", FIELD_CHOICE, AT(display), 0, 0, "summarized|omitted"},
};

static const field OUTPUT_FIELDS[] = {
    {"effort", FIELD_CHOICE, AT(effort), 0, 0, "low|medium|high|xhigh|max"},
    {"format", FIELD_ANY, AT(config_format), 0, 0, NULL},
};

#define READ(object, path, fields, target, error)                                                            \
    body_fields(object, path, fields, sizeof fields / sizeof *fields, target, error)

static int check_stops(const json_t *stops, http_error *error) {
    if (json_array_size(stops) > BODY_STOPS) {
        return body_refuse(error, "stop_sequences: at most %d are allowed", BODY_STOPS);
    }
    for (size_t i = 0; i < json_array_size(stops); i++) {
        if (json_string_length(json_array_get(stops, i)) == 0) {
            return body_refuse(error, "stop_sequences.%zu: must be a string that is not empty", i);
        }
    }
    return 0;
}

/* On failure too, f->functions is the caller's. */
static int read_fields(const json_t *body, void *fields, http_error *error) {
    anthropic_fields *f = fields;
    if (READ(body, "", FIELDS, f, error) || READ(f->thinking, "thinking.", THINKING_FIELDS, f, error) ||
        READ(f->output_config, "output_config.", OUTPUT_FIELDS, f, error)) {
        return -1;
    }
    if (f->thinking && !f->thinking_type) {
        return body_refuse(error, "thinking.type: is required");
    }
    if (f->max_tokens < 0 && !f->counts) {
        return body_refuse(error, "max_tokens: is required, a whole number of at least 1");
    }
    return check_stops(f->stops, error) || convert_anthropic_tools(f->tools, &f->functions, error) ||
                   tools_read_anthropic(f->tool_choice, &f->wish, error)
               ? -1
               : 0;
}

/* Options of the template; NULL without memory. */
static json_t *template_options(const anthropic_fields *f, bool continues) {
    json_t *all = json_object();
    bool made = all != NULL;
    if (f->effort) {
        made = made && convert_effort(all, f->effort);
    }
    if (f->thinking &&
        (strcmp(f->thinking_type, "enabled") == 0 || strcmp(f->thinking_type, "disabled") == 0)) {
        made = made && json_object_set_new(all, "enable_thinking",
                                           json_boolean(strcmp(f->thinking_type, "enabled") == 0)) == 0;
    }
    if (continues) {
        made = made && json_object_set_new(all, "continue_final_message", json_true()) == 0;
    }
    if (!made) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

static int add_prompt(generation *g, const anthropic_fields *f, http_error *error) {
    json_t *messages = NULL;
    bool continues = false;
    if (convert_anthropic(f->system, f->messages, &messages, &continues, error)) {
        return -1;
    }
    json_t *kwargs = template_options(f, continues);
    if (!kwargs) {
        json_decref(messages);
        return error_no_memory(error);
    }
    if (tools_use(g, f->functions, &f->wish, kwargs, error)) {
        json_decref(messages);
        json_decref(kwargs);
        return -1;
    }
    return api_add_messages(g, messages, kwargs, "messages", error);
}

static int start(generation *g, const anthropic_fields *f, http_error *error) {
    generation_options *o = generation_get_options(g);
    anthropic_state *s = NULL;
    int failed = api_read_fields(g, error) || add_prompt(g, f, error) ? -1 : 0;
    if (!failed && !(s = calloc(1, sizeof *s))) {
        failed = error_no_memory(error);
    }
    if (failed) {
        generation_discard(g);
        return -1;
    }
    make_id("msg_", s->id);
    s->omit_thinking = f->display && strcmp(f->display, "omitted") == 0;
    o->max_tokens = f->max_tokens;
    o->thought_tokens = f->budget >= 0 ? f->budget : o->thought_tokens;
    o->structured.format = f->config_format ? f->config_format : f->output_format;
    o->structured.format_path = f->config_format ? "output_config.format" : "output_format";
    o->stop = f->stops ? f->stops : o->stop;
    return generation_start(g, &ANTHROPIC_DIALECT, s, "messages", error);
}

/* ---- errors ---- */

static const struct {
    int status;
    const char *type;
} ERROR_TYPES[] = {
    {400, "invalid_request_error"}, {401, "authentication_error"}, {402, "billing_error"},
    {403, "permission_error"},      {404, "not_found_error"},      {408, "timeout_error"},
    {413, "request_too_large"},     {429, "rate_limit_error"},     {503, "overloaded_error"},
    {504, "timeout_error"},         {529, "overloaded_error"},
};

void anthropic_write_error(text *out, const http_error *error, const char *request_id) {
    const char *type = error->status < 500 ? "invalid_request_error" : "api_error";
    char message[sizeof error->message];
    for (size_t i = 0; i < sizeof ERROR_TYPES / sizeof *ERROR_TYPES; i++) {
        if (ERROR_TYPES[i].status == error->status) {
            type = ERROR_TYPES[i].type;
        }
    }
    /* Agents look for Anthropic's own words, and then make the conversation shorter. */
    if (error->context > 0 && error->prompt_tokens > 0) {
        snprintf(message, sizeof message, "prompt is too long: %lld tokens > %lld maximum",
                 (long long)error->prompt_tokens, (long long)error->context);
    } else {
        snprintf(message, sizeof message, "%s", error->message);
    }
    text_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    text_string(out, message, strlen(message));
    text_put(out, "},\"request_id\":");
    text_string(out, request_id ? request_id : "", request_id ? strlen(request_id) : 0);
    text_put(out, "}");
}

char *anthropic_error_body(const http_error *error, const char *request_id) {
    text body = {0};
    size_t length;
    anthropic_write_error(&body, error, request_id);
    return text_take(&body, &length);
}

/* ---- handlers ---- */

/* NULL: the exchange has its answer. */
static generation *open_request(server *s, exchange *x, anthropic_fields *f) {
    exchange_add_header(x, "request-id", exchange_id(x)); /* where Anthropic's packages look for it */
    return openai_request(s, x, read_fields, f);
}

static void create(exchange *x, void *context) {
    anthropic_fields f = {.max_tokens = -1, .budget = -1};
    http_error error;
    generation *g = open_request(context, x, &f);
    if (g && start(g, &f, &error)) {
        exchange_fail(x, &error);
    }
    json_decref(f.functions);
}

static void count(exchange *x, void *context) {
    anthropic_fields f = {.max_tokens = -1, .budget = -1, .counts = true};
    http_error error;
    size_t tokens;
    generation *g = open_request(context, x, &f);
    if (g && add_prompt(g, &f, &error)) {
        exchange_fail(x, &error);
    } else if (g) {
        generation_prompt(g, 0, &tokens);
        reply_json(x, json_pack("{s:I}", "input_tokens", (json_int_t)tokens));
    }
    generation_discard(g);
    json_decref(f.functions);
}

static const route ROUTES[] = {
    {"POST", "/v1/messages", false, false, create, anthropic_error_body},
    {"POST", "/v1/messages/count_tokens", false, false, count, anthropic_error_body},
};
const route_table ANTHROPIC_ROUTES = {ROUTES, sizeof ROUTES / sizeof *ROUTES};
