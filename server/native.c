/* Health, metrics, and the routes of llama-server and vLLM that look at a server or at its tokens. */
#include "server.h"

#include "pump.h"
#include "sampling.h"
#include "serve.h"
#include "vectors.h"

#include <stdlib.h>
#include <string.h>

/* ---- health, metrics ---- */

static void health(exchange *x, void *context) {
    server *s = context;
    http_error error;
    text body = {0};
    size_t length;
    if (server_healthy(s, &error)) {
        exchange_fail(x, &error);
        return;
    }
    text_put(&body, "{\"status\":\"ok\"}");
    char *bytes = text_take(&body, &length);
    exchange_reply(x, 200, "application/json", bytes, length);
}

static void add_counters(metric_gauges *g, const sluice_counters *c) {
    g->running += c->running;
    g->waiting += c->waiting;
    g->cache_tokens += c->cache_tokens;
    g->cache_tokens_used += c->cache_tokens_used;
    g->cache_tokens_kept += c->cache_tokens_kept;
    g->preemptions += c->preemptions;
    g->steps += c->steps;
    g->rows += c->rows;
    g->reused_tokens += c->reused_tokens;
    g->drafted += c->drafted;
    g->accepted += c->accepted;
    g->page_tokens = c->page_tokens;
}

static void add_experts(void *context, const sluice_expert_counters *c) {
    metric_gauges *g = context;
    int at = 0;
    while (at < g->expert_layers && g->experts[at].layer < c->layer) {
        at++;
    }
    if (at == g->expert_layers || g->experts[at].layer != c->layer) {
        if (g->expert_layers == METRIC_LAYERS) {
            return;
        }
        memmove(&g->experts[at + 1], &g->experts[at], (size_t)(g->expert_layers++ - at) * sizeof *g->experts);
        g->experts[at] = (metric_experts){.layer = c->layer};
    }
    metric_experts *all = &g->experts[at];
    all->hits += c->hits;
    all->misses += c->misses;
    all->promotions += c->promotions;
    all->streamed_bytes += c->streamed_bytes;
    all->fetched_bytes += c->fetched_bytes;
}

static void metrics_route(exchange *x, void *context) {
    server *s = context;
    metric_gauges gauges = {.connections = http_server_connections(s->http)};
    for (size_t i = 0; i < models_count(s->models); i++) {
        sluice_counters counters;
        if (models_get_counters(s->models, i, &counters, NULL, 0)) {
            add_counters(&gauges, &counters);
            models_get_experts(s->models, i, add_experts, &gauges);
        }
    }
    text body = {0};
    size_t length;
    metrics_write(s->metrics, &gauges, s->options->metrics_prefix, &body);
    char *bytes = text_take(&body, &length);
    exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", bytes, length);
}

static void load_route(exchange *x, void *context) {
    const server *s = context;
    reply_json(x, json_pack("{s:I}", "server_load", (json_int_t)pump_count(s->pump)));
}

static void version(exchange *x, void *context) {
    (void)context;
    reply_json(x, json_pack("{s:s}", "version", sluice_version()));
}

static void ping(exchange *x, void *context) {
    (void)context;
    reply_json(x, json_object());
}

/* ---- llama-server's /props and /slots ---- */

/* What a request gets that says nothing, by llama-server's names; NULL: no memory. */
static json_t *default_settings(const served_model *m) {
    const generation_options o = generation_defaults(m);
    text order = {0};
    model_sampling_write_order(&m->sampling, &order);
    json_t *samplers = order.failed ? NULL : json_loads(order.data, 0, NULL);
    text_free(&order);
    return json_pack("{s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, "
                     "s:f, s:f, s:o}",
                     "temperature", o.temperature, "top_k", o.top_k, "top_p", o.top_p, "min_p", o.min_p,
                     "typical_p", o.typical_p, "repeat_penalty", o.repetition_penalty, "presence_penalty",
                     o.presence_penalty, "frequency_penalty", o.frequency_penalty, "repeat_last_n",
                     o.penalty_tokens, "n_predict", o.max_tokens, "xtc_probability", o.xtc_probability,
                     "xtc_threshold", o.xtc_threshold, "dry_multiplier", o.dry_multiplier, "dry_base",
                     o.dry_base, "dry_allowed_length", o.dry_allowed_length, "dry_penalty_last_n",
                     o.dry_penalty_last_n, "mirostat", o.mirostat, "mirostat_tau", o.mirostat_tau,
                     "mirostat_eta", o.mirostat_eta, "samplers", samplers);
}

static void props(exchange *x, void *context) {
    server *s = context;
    http_error error;
    served_model *m = server_admit(s, x, &error) ? NULL : server_model(s, NULL, &error);
    if (!m) {
        exchange_fail(x, &error);
        return;
    }
    json_t *defaults = default_settings(m);
    json_t *body = json_pack("{s:{s:i, s:o}, s:i, s:s, s:s, s:s?, s:s, s:s, s:{s:b, s:b}}",
                             "default_generation_settings", "n_ctx", m->context, "params", defaults,
                             "total_slots", m->sequences, "model_path", m->path, "model_alias", m->id,
                             "chat_template", m->info.chat_template, "build_info", sluice_version(), "device",
                             sluice_engine_device(m->engine), "modalities", "vision", 0, "audio", 0);
    models_release(s->models, m);
    reply_json(x, body);
}

static void slots(exchange *x, void *context) {
    server *s = context;
    text body = {0};
    pump_describe(s->pump, &body);
    reply_text(x, &body);
}

/* ---- sluice's own ---- */

/* The bytes of every pool of memory that the first model's engine was planned with. */
static void plan(exchange *x, void *context) {
    server *s = context;
    http_error error;
    served_model *m = server_admit(s, x, &error) ? NULL : server_model(s, NULL, &error);
    if (!m) {
        exchange_fail(x, &error);
        return;
    }
    /* Only what lies around the plan is made for each request: jansson's reader does not survive that memory
     * fails. */
    json_t *body = json_copy(m->plan);
    const json_t *row;
    json_int_t total = 0;
    size_t i;
    json_array_foreach(json_object_get(m->plan, "memory"), i, row) {
        total += json_integer_value(json_object_get(row, "bytes"));
    }
    if (json_object_size(body) != json_object_size(m->plan) ||
        json_object_set_new(body, "total_bytes", json_integer(total)) ||
        json_object_set_new(body, "model", json_string(m->id))) {
        const sluice_error inner = {.code = SLUICE_ERR_NOMEM, .message = "out of memory"};
        error_from_sluice(&inner, &error);
        exchange_fail(x, &error);
        json_decref(body);
    } else {
        reply_json(x, body);
    }
    models_release(s->models, m);
}

/* ---- tokens ---- */

typedef struct token_request {
    server *server;
    served_model *model;
    json_t *body;
} token_request;

static void release(token_request *r) {
    models_release(r->server->models, r->model);
    json_decref(r->body);
}

/* The body and its model; false: answered. */
static bool open_request(exchange *x, server *s, token_request *r) {
    http_error error;
    size_t length;
    const char *bytes = exchange_body(x, &length);
    *r = (token_request){.server = s};
    if (server_admit(s, x, &error) || body_parse(bytes, length, &r->body, &error) ||
        !(r->model = server_model(s, r->body, &error))) {
        json_decref(r->body);
        exchange_fail(x, &error);
        return false;
    }
    return true;
}

typedef struct tokenize_fields {
    const char *content, *prompt;
    const json_t *messages, *kwargs;
    bool add_special, parse_special, with_pieces, return_token_strs;
} tokenize_fields;

static const field TOKENIZE_FIELDS[] = {
    {"content", FIELD_TEXT, offsetof(tokenize_fields, content), 0, 0, NULL},
    {"prompt", FIELD_TEXT, offsetof(tokenize_fields, prompt), 0, 0, NULL},
    {"messages", FIELD_ARRAY, offsetof(tokenize_fields, messages), 0, 0, NULL},
    {"chat_template_kwargs", FIELD_OBJECT, offsetof(tokenize_fields, kwargs), 0, 0, NULL},
    {"add_special", FIELD_BOOL, offsetof(tokenize_fields, add_special), 0, 0, NULL},
    {"add_special_tokens", FIELD_BOOL, offsetof(tokenize_fields, add_special), 0, 0, NULL},
    {"parse_special", FIELD_BOOL, offsetof(tokenize_fields, parse_special), 0, 0, NULL},
    {"with_pieces", FIELD_BOOL, offsetof(tokenize_fields, with_pieces), 0, 0, NULL},
    {"return_token_strs", FIELD_BOOL, offsetof(tokenize_fields, return_token_strs), 0, 0, NULL},
};

/* A piece as llama-server writes it: text, or bytes where it is no UTF-8. */
static void write_piece(text *out, const char *bytes, size_t length) {
    json_t *whole = json_stringn(bytes, length);
    if (whole) {
        text_json_new(out, whole);
        return;
    }
    for (size_t i = 0; i < length; i++) {
        text_format(out, "%s%d", i ? "," : "[", (unsigned char)bytes[i]);
    }
    text_put(out, length ? "]" : "[]");
}

static void write_tokens(text *out, const token_request *r, const tokenize_fields *f, const int32_t *tokens,
                         size_t count) {
    text_put(out, "{\"tokens\":[");
    for (size_t i = 0; i < count; i++) {
        const char *bytes = "";
        size_t length = 0;
        if (f->with_pieces) {
            sluice_token_bytes(r->model->model, tokens[i], &bytes, &length, NULL);
            text_format(out, "%s{\"id\":%d,\"piece\":", i ? "," : "", tokens[i]);
            write_piece(out, bytes, length);
            text_put(out, "}");
        } else {
            text_format(out, "%s%d", i ? "," : "", tokens[i]);
        }
    }
    text_format(out, "],\"count\":%zu,\"max_model_len\":%d", count, r->model->context);
    if (f->return_token_strs) {
        text_put(out, ",\"token_strs\":[");
        for (size_t i = 0; i < count; i++) {
            const char *bytes = "";
            size_t length = 0;
            sluice_token_bytes(r->model->model, tokens[i], &bytes, &length, NULL);
            text_put(out, i ? "," : "");
            text_string(out, bytes, length);
        }
        text_put(out, "]");
    }
    text_put(out, "}");
}

static int tokenize_body(const token_request *r, const tokenize_fields *f, int32_t **tokens, size_t *count,
                         http_error *error) {
    sluice_error inner = {0};
    int failed;
    if (f->messages) {
        if (check_messages(f->messages, "messages", error)) {
            return -1;
        }
        prompt_tokens prompt;
        failed = messages_to_tokens(r->model, f->messages, f->kwargs, "messages", &prompt, error);
        *tokens = failed ? NULL : prompt.tokens;
        *count = failed ? 0 : prompt.count;
        return failed;
    } else {
        const char *content = f->content ? f->content : f->prompt;
        const unsigned flags =
            (f->parse_special ? SLUICE_TOKENIZE_SPECIAL : 0u) | (f->add_special ? SLUICE_TOKENIZE_BOS : 0u);
        if (!content) {
            return body_refuse(error, "content: missing; a text, or `prompt`, or `messages`");
        }
        failed = sluice_tokenize(r->model->model, content, strlen(content), flags, tokens, count, &inner);
    }
    if (failed) {
        error_from_sluice(&inner, error);
    }
    return failed;
}

static void tokenize(exchange *x, void *context) {
    token_request r;
    tokenize_fields f = {.parse_special = true};
    http_error error;
    int32_t *tokens = NULL;
    size_t count = 0;
    text body = {0};
    if (!open_request(x, context, &r)) {
        return;
    }
    if (body_fields(r.body, "", TOKENIZE_FIELDS, sizeof TOKENIZE_FIELDS / sizeof *TOKENIZE_FIELDS, &f,
                    &error) ||
        tokenize_body(&r, &f, &tokens, &count, &error)) {
        exchange_fail(x, &error);
    } else {
        write_tokens(&body, &r, &f, tokens, count);
        reply_text(x, &body);
    }
    sluice_free(tokens);
    release(&r);
}

/* Ids of an array, checked; NULL: *error. */
static int32_t *read_ids(const token_request *r, size_t *count, http_error *error) {
    const json_t *ids = json_object_get(r->body, "tokens");
    if (!json_is_array(ids)) {
        body_refuse(error, "tokens: must be an array of token ids, not %s", ids ? body_type(ids) : "absent");
        return NULL;
    }
    *count = json_array_size(ids);
    int32_t *tokens = calloc(*count + 1, sizeof *tokens);
    for (size_t i = 0; tokens && i < *count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= r->model->info.vocabulary) {
            body_refuse(error, "tokens[%zu]: must be a token id below %d", i, r->model->info.vocabulary);
            free(tokens);
            return NULL;
        }
        tokens[i] = (int32_t)json_integer_value(id);
    }
    if (!tokens) {
        const sluice_error inner = {.code = SLUICE_ERR_NOMEM, .message = "out of memory"};
        error_from_sluice(&inner, error);
    }
    return tokens;
}

static void detokenize(exchange *x, void *context) {
    token_request r;
    http_error error;
    sluice_error inner = {0};
    char *content = NULL;
    size_t count = 0, length = 0;
    if (!open_request(x, context, &r)) {
        return;
    }
    int32_t *tokens = read_ids(&r, &count, &error);
    if (!tokens) {
        exchange_fail(x, &error);
    } else if (sluice_detokenize(r.model->model, tokens, count, SLUICE_TOKENIZE_SPECIAL, &content, &length,
                                 &inner)) {
        error_from_sluice(&inner, &error);
        exchange_fail(x, &error);
    } else {
        text body = {0};
        text_put(&body, "{\"content\":");
        text_string(&body, content, length);
        text_put(&body, ",\"prompt\":");
        text_string(&body, content, length);
        text_put(&body, "}");
        reply_text(x, &body);
    }
    sluice_free(content);
    free(tokens);
    release(&r);
}

static void apply_template(exchange *x, void *context) {
    token_request r;
    http_error error;
    char *prompt = NULL;
    if (!open_request(x, context, &r)) {
        return;
    }
    const json_t *messages = json_object_get(r.body, "messages"), *kwargs = NULL;
    static const field fields[] = {{"chat_template_kwargs", FIELD_OBJECT, 0, 0, 0, NULL}};
    int failed = body_fields(r.body, "", fields, 1, &kwargs, &error);
    failed = failed ? failed : check_messages(messages, "messages", &error);
    failed = failed ? failed : messages_to_text(r.model, messages, kwargs, "messages", &prompt, &error);
    if (failed) {
        exchange_fail(x, &error);
    } else {
        reply_json(x, json_pack("{s:s}", "prompt", prompt));
    }
    sluice_free(prompt);
    release(&r);
}

static const route ROUTES[] = {
    {"GET", "/health", true, true, health, NULL},
    {"GET", "/v1/health", true, true, health, NULL},
    {"GET", "/ping", false, true, ping, NULL},
    {"GET", "/version", false, true, version, NULL},
    {"GET", "/load", false, true, load_route, NULL},
    {"GET", "/metrics", false, true, metrics_route, NULL},
    {"GET", "/props", false, false, props, NULL},
    {"GET", "/slots", false, true, slots, NULL},
    {"GET", "/plan", false, false, plan, NULL},
    {"POST", "/embedding", false, false, vectors_native, NULL},
    {"POST", "/reranking", false, false, vectors_rerank, NULL},
    {"POST", "/v1/reranking", false, false, vectors_rerank, NULL},
    {"POST", "/tokenize", false, false, tokenize, NULL},
    {"POST", "/detokenize", false, false, detokenize, NULL},
    {"POST", "/apply-template", false, false, apply_template, NULL},
};
const route_table NATIVE_ROUTES = {ROUTES, sizeof ROUTES / sizeof *ROUTES};
