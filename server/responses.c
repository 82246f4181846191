/* OpenAI's POST /v1/responses, without its store: every request brings its whole conversation. Names and
 * shapes: the types of the npm package openai, 7.57. */
#include "responses.h"

#include "convert.h"
#include "openai.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(responses_fields, member)

static const field FIELDS[] = {
    {"input", FIELD_ANY, AT(input), 0, 0, NULL},
    {"instructions", FIELD_ANY, AT(instructions), 0, 0, NULL},
    {"tools", FIELD_ARRAY, AT(tools), 0, 0, NULL},
    {"tool_choice", FIELD_ANY, AT(tool_choice), 0, 0, NULL},
    {"parallel_tool_calls", FIELD_BOOL, AT(parallel_tool_calls), 0, 0, NULL},
    {"max_tool_calls", FIELD_WHOLE, AT(max_tool_calls), 1, INT32_MAX, NULL},
    {"metadata", FIELD_OBJECT, AT(metadata), 0, 0, NULL},
    {"include", FIELD_ARRAY, AT(include), 0, 0, NULL},
    {"reasoning", FIELD_OBJECT, AT(reasoning), 0, 0, NULL},
    {"text", FIELD_OBJECT, AT(text), 0, 0, NULL},
    {"stream_options", FIELD_OBJECT, AT(stream_options), 0, 0, NULL},
    {"max_output_tokens", FIELD_WHOLE, AT(max_output_tokens), 1, 1e19, NULL},
    {"top_logprobs", FIELD_WHOLE, AT(top_logprobs), 0, BODY_TOP_LOGPROBS, NULL},
    {"temperature", FIELD_REAL, AT(temperature), 0, 2, NULL},
    /* A prompt that does not fit is refused either way: nothing says what "auto" may leave out. */
    {"truncation", FIELD_CHOICE, AT(truncation), 0, 0, "auto|disabled"},
    {"store", FIELD_BOOL, AT(store), 0, 0, NULL},
    {"user", FIELD_TEXT, AT(user), 0, 0, NULL},
    {"safety_identifier", FIELD_TEXT, AT(safety_identifier), 0, 0, NULL},
    {"prompt_cache_key", FIELD_TEXT, AT(prompt_cache_key), 0, 0, NULL},
    {"prompt_cache_retention", FIELD_TEXT, AT(prompt_cache_retention), 0, 0, NULL},
    {"service_tier", FIELD_TEXT, AT(service_tier), 0, 0, NULL},
    /* What needs a store, and what is not there. */
    {"previous_response_id", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"conversation", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"prompt", FIELD_UNSUPPORTED, 0, 0, 0, ""},
    {"background", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
    {"context_management", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"moderation", FIELD_UNSUPPORTED, 0, 0, 0, ""},
};

static const field REASONING_FIELDS[] = {
    {"effort", FIELD_CHOICE, AT(effort), 0, 0, "none|minimal|low|medium|high|xhigh|max"},
    {"summary", FIELD_CHOICE, AT(summary), 0, 0, "auto|concise|detailed|none"},
    {"generate_summary", FIELD_CHOICE, AT(summary), 0, 0, "auto|concise|detailed|none"},
};

static const field TEXT_FIELDS[] = {
    {"verbosity", FIELD_CHOICE, AT(verbosity), 0, 0, "low|medium|high"},
    {"format", FIELD_ANY, AT(format), 0, 0, NULL},
};

static const field STREAM_FIELDS[] = {
    {"include_obfuscation", FIELD_UNSUPPORTED, 0, 0, 0, "false"},
};

#define READ(object, path, fields, target, error)                                                            \
    body_fields(object, path, fields, sizeof fields / sizeof *fields, target, error)

static bool is(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* What `include` may name: log-probabilities are given, the rest belongs to hosted tools, of which there are
 * none, and to reasoning, which is not encrypted here. */
static int read_include(responses_fields *f, http_error *error) {
    static const char *const KNOWN[] = {
        "reasoning.encrypted_content",   "file_search_call.results",
        "web_search_call.results",       "web_search_call.action.sources",
        "message.input_image.image_url", "computer_call_output.output.image_url",
        "code_interpreter_call.outputs"};
    for (size_t i = 0; i < json_array_size(f->include); i++) {
        const json_t *name = json_array_get(f->include, i);
        bool known = is(name, "message.output_text.logprobs");
        f->logprobs |= known;
        f->encrypted_reasoning |= is(name, KNOWN[0]);
        for (size_t k = 0; !known && k < sizeof KNOWN / sizeof *KNOWN; k++) {
            known = is(name, KNOWN[k]);
        }
        if (!known) {
            return body_refuse(error, "include[%zu] is nothing that an answer can include", i);
        }
    }
    f->logprobs |= f->top_logprobs > 0;
    return 0;
}

/* Hosted tools are not here, so that nothing can be asked of them. */
static int read_choice(responses_fields *f, http_error *error) {
    const json_t *type = json_object_get(f->tool_choice, "type");
    f->wish.single = !f->parallel_tool_calls;
    if (json_is_string(type) && !is(type, "function") && !is(type, "allowed_tools")) {
        return body_refuse(error, "tool_choice asks for a tool that is not here; only functions are");
    }
    return tools_read_choice(f->tool_choice, &f->functions, &f->wish, error);
}

/* On failure too, f->functions is the caller's. */
static int read_fields(const json_t *body, void *fields, http_error *error) {
    responses_fields *f = fields;
    *f = (responses_fields){.counts = f->counts,
                            .parallel_tool_calls = true,
                            .store = true,
                            .max_output_tokens = -1,
                            .max_tool_calls = -1,
                            .truncation = "disabled"};
    if (READ(body, "", FIELDS, f, error)) {
        return -1;
    }
    if (READ(f->reasoning, "reasoning.", REASONING_FIELDS, f, error) ||
        READ(f->text, "text.", TEXT_FIELDS, f, error) ||
        READ(f->stream_options, "stream_options.", STREAM_FIELDS, f, error)) {
        return -1;
    }
    return read_include(f, error) || convert_responses_tools(f->tools, &f->functions, error) ||
                   read_choice(f, error)
               ? -1
               : 0;
}

/* Options of the template; NULL without memory. */
static json_t *template_options(const responses_fields *f) {
    json_t *all = json_object();
    bool made = all != NULL;
    if (f->effort) {
        made = made && convert_effort(all, f->effort);
    }
    if (!made) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

static int add_prompt(generation *g, const responses_fields *f, http_error *error) {
    json_t *messages = NULL;
    if (convert_responses(f->instructions, f->input, &messages, error)) {
        return -1;
    }
    json_t *kwargs = template_options(f);
    if (!kwargs) {
        json_decref(messages);
        return error_no_memory(error);
    }
    if (tools_use(g, f->functions, &f->wish, kwargs, error)) {
        json_decref(messages);
        json_decref(kwargs);
        return -1;
    }
    return api_add_messages(g, messages, kwargs, "input", error);
}

static responses_state *create_state(const responses_fields *f) {
    responses_state *s = calloc(1, sizeof *s);
    if (s) {
        s->fields = *f;
        s->fields.functions = NULL;
        make_id("resp_", s->id);
        make_id("rs_", s->reasoning_id);
        make_id("msg_", s->message_id);
    }
    return s;
}

static int start(generation *g, const responses_fields *f, http_error *error) {
    generation_options *o = generation_get_options(g);
    responses_state *s = NULL;
    int failed = api_read_fields(g, error) || add_prompt(g, f, error) ? -1 : 0;
    if (!failed && !(s = create_state(f))) {
        failed = error_no_memory(error);
    }
    if (failed) {
        generation_discard(g);
        return -1;
    }
    o->logprobs = f->logprobs;
    o->top_logprobs = f->top_logprobs;
    o->structured.format = f->format;
    o->structured.format_path = "text.format";
    if (f->max_output_tokens >= 0) {
        o->max_tokens = f->max_output_tokens;
    }
    return generation_start(g, &RESPONSES_DIALECT, s, "input", error);
}

/* ---- handlers ---- */

static void create(exchange *x, void *context) {
    responses_fields f = {0};
    http_error error;
    generation *g = openai_request(context, x, read_fields, &f);
    if (g && start(g, &f, &error)) {
        exchange_fail(x, &error);
    }
    json_decref(f.functions);
}

static void count_input(exchange *x, void *context) {
    responses_fields f = {.counts = true};
    http_error error;
    size_t count;
    generation *g = openai_request(context, x, read_fields, &f);
    if (g && add_prompt(g, &f, &error)) {
        exchange_fail(x, &error);
    } else if (g) {
        generation_prompt(g, 0, &count);
        reply_json(
            x, json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)count));
    }
    generation_discard(g);
    json_decref(f.functions);
}

static void stored(exchange *x, void *context) {
    (void)context;
    http_error error = {.status = 404, .type = "invalid_request_error", .code = "not_found"};
    strcpy(error.message,
           "there is no such response: this server stores none, a request brings its whole conversation");
    exchange_fail(x, &error);
}

static const route ROUTES[] = {
    {"POST", "/v1/responses", false, false, create, NULL},
    {"POST", "/responses", false, false, create, NULL},
    {"POST", "/v1/responses/input_tokens", false, false, count_input, NULL},
    {"POST", "/responses/input_tokens", false, false, count_input, NULL},
    {"GET", "/v1/responses/{}", false, true, stored, NULL},
    {"DELETE", "/v1/responses/{}", false, true, stored, NULL},
};
const route_table RESPONSES_ROUTES = {ROUTES, sizeof ROUTES / sizeof *ROUTES};
