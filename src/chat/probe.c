#include "chat/probe.h"

#include <string.h>

/* A hostile template must not take long to open. */
static const sl_template_limits limits = {
    .output_bytes = 1u << 20, .memory_bytes = 16u << 20, .steps = 1000000};

json_t *sl_chat_make_variables(const sl_chat_variables *v) {
    json_t *variables = json_object();
    bool failed =
        !variables || json_object_set(variables, "messages", v->messages) ||
        json_object_set_new(variables, "tools", v->tools ? json_incref(v->tools) : json_null()) ||
        json_object_set_new(variables, "bos_token", json_string(v->bos_token)) ||
        json_object_set_new(variables, "eos_token", json_string(v->eos_token)) ||
        json_object_set_new(variables, "add_generation_prompt", json_boolean(v->add_generation_prompt));
    if (failed) {
        json_decref(variables);
        return NULL;
    }
    return variables;
}

/* One rendering: a conversation, and what goes with it. */
typedef struct question {
    json_t *messages; /* taken over; NULL: memory ran out */
    bool tools;
    const char *variable; /* a boolean variable, or NULL */
    bool value;
} question;

typedef struct answer {
    bool rendered;
    sl_buffer text;
} answer;

static json_t *probe_tools(void) {
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function",
                     "function", "name", "probe_tool", "description", "probe", "parameters", "type", "object",
                     "properties", "probe_argument", "type", "string", "description", "probe", "required",
                     "probe_argument");
}

static json_t *variables_of(const sl_chat_probe *probe, const question *q) {
    json_t *tools = q->tools ? probe_tools() : NULL, *variables = NULL;
    if (q->messages && (tools || !q->tools)) {
        variables = sl_chat_make_variables(&(sl_chat_variables){.messages = q->messages,
                                                                .tools = tools,
                                                                .bos_token = probe->bos_token,
                                                                .eos_token = probe->eos_token,
                                                                .add_generation_prompt = true});
    }
    if (variables && q->variable && json_object_set_new(variables, q->variable, json_boolean(q->value))) {
        json_decref(variables);
        variables = NULL;
    }
    json_decref(q->messages);
    json_decref(tools);
    return variables;
}

static int ask(const sl_chat_probe *probe, question q, answer *a, sl_error *error) {
    sl_error refusal;
    json_t *variables = variables_of(probe, &q);
    sl_buffer_clear(&a->text);
    a->rendered = false;
    if (!variables) {
        return sl_fail(error, SL_ERR_NOMEM, "chat template: out of memory");
    }
    const int code = sl_template_render(probe->compiled, variables, &limits, &a->text, &refusal);
    json_decref(variables);
    a->rendered = code == 0;
    return code == SL_ERR_NOMEM ? sl_fail(error, code, "%s", refusal.message) : 0;
}

static bool has(const answer *a, const char *text) {
    return a->rendered && a->text.data && strstr(a->text.data, text) != NULL;
}

static bool same(const answer *a, const answer *b) {
    return a->rendered && b->rendered &&
           sl_view_equal((sl_view){a->text.data, a->text.length}, (sl_view){b->text.data, b->text.length});
}

/* ---- content as parts
 * --------------------------------------------------------------------------------------------------- */

static json_t *content_of(const char *text, bool as_parts) {
    return as_parts ? json_pack("[{s:s, s:s}]", "type", "text", "text", text) : json_string(text);
}

static json_t *turn(const char *role, const char *text, bool as_parts) {
    return json_pack("{s:s, s:o}", "role", role, "content", content_of(text, as_parts));
}

static json_t *one_turn(bool as_parts) {
    return json_pack("[o]", turn("user", "probe-a", as_parts));
}

static json_t *turns(bool system, bool as_parts) {
    json_t *list = json_pack("[o, o, o]", turn("user", "probe-b", as_parts),
                             turn("assistant", "probe-c", as_parts), turn("user", "probe-d", as_parts));
    if (list && system && json_array_insert_new(list, 0, turn("system", "probe-a", as_parts))) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

/* With a system message, and without one for templates that refuse it. */
static int probe_parts(const sl_chat_probe *probe, answer a[2], sl_chat_format *format, sl_error *error) {
    for (int i = 0; i < 2; i++) {
        int code = ask(probe, (question){.messages = turns(i == 0, false)}, &a[0], error);
        code = code ? code : ask(probe, (question){.messages = turns(i == 0, true)}, &a[1], error);
        if (code) {
            return code;
        }
        const bool text_arrives = has(&a[0], "probe-b") && has(&a[0], "probe-d");
        const bool parts_arrive = has(&a[1], "probe-b") && has(&a[1], "probe-d") && !has(&a[1], "type");
        if (text_arrives || parts_arrive) {
            format->parts = text_arrives ? same(&a[0], &a[1]) : parts_arrive;
            format->only_parts = !text_arrives;
            break;
        }
    }
    return 0;
}

/* ---- tools
 * --------------------------------------------------------------------------------------------------------------
 */

/* The arguments as a template writes them that is given text. */
static const char arguments_text[] = "{\"probe_key\": \"probe-value\"}";

static json_t *call_turns(bool null_content, bool object_arguments) {
    json_t *arguments =
        object_arguments ? json_pack("{s:s}", "probe_key", "probe-value") : json_string(arguments_text);
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", "probe0001", "type", "function", "function",
                             "name", "probe_call", "arguments", arguments);
    json_t *assistant = json_pack("{s:s, s:o, s:[o]}", "role", "assistant", "content",
                                  null_content ? json_null() : json_string(""), "tool_calls", call);
    json_t *result = json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "tool_call_id", "probe0001", "name",
                               "probe_call", "content", "probe-b");
    return json_pack("[o, o, o]", turn("user", "probe-a", false), assistant, result);
}

static bool shows_object(const answer *a) {
    return has(a, "probe_call") && has(a, "probe_key") && has(a, "probe-value") && !has(a, "\\\"probe_key");
}

static int probe_calls(const sl_chat_probe *probe, answer a[2], sl_chat_format *format, sl_error *error) {
    bool text[2], object[2], none[2];
    for (int i = 0; i < 2; i++) {
        int code = ask(probe, (question){.messages = call_turns(i == 1, false), .tools = true}, &a[0], error);
        code =
            code ? code
                 : ask(probe, (question){.messages = call_turns(i == 1, true), .tools = true}, &a[1], error);
        if (code) {
            return code;
        }
        text[i] = has(&a[0], "probe_call") && has(&a[0], arguments_text);
        object[i] = shows_object(&a[1]);
        none[i] = has(&a[0], "None") || has(&a[1], "None");
    }
    const bool with_empty = text[0] || object[0], with_null = text[1] || object[1];
    const int content = with_empty ? 0 : 1;
    format->null_content = with_null && (!with_empty || none[1] == none[0]);
    format->object_arguments = !text[content] && object[content];
    format->text_arguments = text[content] && !object[content];
    return 0;
}

/* ---- thinking
 * ------------------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *open, *close;
} think_tags[] = {
    {"<think>", "</think>"},           /* DeepSeek, Qwen and most others */
    {"[THINK]", "[/THINK]"},           /* Magistral */
    {"<seed:think>", "</seed:think>"}, /* Seed-OSS */
};

static bool ends_with(const answer *a, const char *end) {
    size_t length = a->rendered ? a->text.length : 0, size = strlen(end);
    while (length > 0 && strchr(" \t\r\n", a->text.data[length - 1])) {
        length--;
    }
    return length >= size && memcmp(a->text.data + length - size, end, size) == 0;
}

static bool in_vocabulary(const sl_tokenizer *tokenizer, const char *text) {
    return tokenizer && sl_tokenizer_find(tokenizer, sl_view_of(text)) >= 0;
}

static void find_tags(const sl_chat_probe *probe, const answer *prompt, sl_chat_facts *facts) {
    for (size_t i = 0; i < sizeof think_tags / sizeof *think_tags && !facts->thinks; i++) {
        const char *open = think_tags[i].open, *close = think_tags[i].close;
        facts->thinks = ends_with(prompt, open);
        const bool known = strstr(probe->source.data, close) ||
                           (in_vocabulary(probe->tokenizer, open) && in_vocabulary(probe->tokenizer, close));
        if (facts->thinks || (known && !facts->think_open)) {
            facts->think_open = open;
            facts->think_close = close;
        }
    }
}

int sl_chat_run_probes(const sl_chat_probe *probe, sl_chat_format *format, sl_chat_facts *facts,
                       sl_error *error) {
    static const char variable[] = "enable_thinking";
    answer a[2] = {{0}, {0}};
    int code = probe_parts(probe, a, format, error);
    const bool parts = format->only_parts;
    code = code ? code : probe_calls(probe, a, format, error);
    code = code ? code : ask(probe, (question){.messages = one_turn(parts), .tools = true}, &a[0], error);
    facts->tools = has(&a[0], "probe_tool");
    facts->parts = format->parts;
    code = code ? code : ask(probe, (question){one_turn(parts), false, variable, true}, &a[0], error);
    code = code ? code : ask(probe, (question){one_turn(parts), false, variable, false}, &a[1], error);
    facts->enable_thinking = a[0].rendered && a[1].rendered && !same(&a[0], &a[1]);
    code = code ? code : ask(probe, (question){.messages = one_turn(parts)}, &a[0], error);
    if (code == 0) {
        find_tags(probe, &a[0], facts);
    }
    sl_buffer_free(&a[0].text);
    sl_buffer_free(&a[1].text);
    return code;
}
