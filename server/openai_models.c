/* GET /v1/models, and the table of OpenAI's routes. */
#include "openai.h"
#include "vectors.h"

#include <math.h>
#include <string.h>

static void write_model(text *out, const model_status *m) {
    text_put(out, "{\"id\":");
    text_string(out, m->id, strlen(m->id));
    text_format(out, ",\"object\":\"model\",\"created\":%.0f,\"owned_by\":\"sluice\"", floor(m->created));
    /* What is not known before a model was loaded is left out rather than 0. */
    if (m->context) {
        text_format(out,
                    ",\"max_model_len\":%d,\"meta\":{\"n_ctx\":%d,\"n_ctx_train\":%d,\"n_vocab\":%d,"
                    "\"n_params\":%llu,\"size\":%llu}",
                    m->context, m->context, m->trained_context, m->vocabulary,
                    (unsigned long long)m->parameters, (unsigned long long)m->bytes);
    }
    text_put(out, "}");
}

/* The list that Codex and Ollama's clients look for. */
static void write_name(text *out, const model_status *m) {
    static const char *const NAMES[] = {"id", "slug", "name", "model", "display_name"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        text_format(out, "%s\"%s\":", i ? "," : "{", NAMES[i]);
        text_string(out, m->id, strlen(m->id));
    }
    if (m->context) {
        text_format(out, ",\"context_window\":%d", m->context);
    }
    text_put(out, "}");
}

static size_t count_of(const server *s) {
    return s->models ? models_count(s->models) : 0;
}

static void list_models(exchange *x, void *context) {
    const server *s = context;
    text data = {0}, names = {0}, body = {0};
    for (size_t i = 0; i < count_of(s); i++) {
        model_status status;
        models_get_status(s->models, i, &status);
        text_put(&data, i ? "," : "");
        text_put(&names, i ? "," : "");
        write_model(&data, &status);
        write_name(&names, &status);
    }
    text_put(&body, "{\"object\":\"list\",\"data\":[");
    text_add(&body, data.data, data.length);
    text_put(&body, "],\"models\":[");
    text_add(&body, names.data, names.length);
    text_put(&body, "]}");
    body.failed |= data.failed || names.failed;
    text_free(&data);
    text_free(&names);
    reply_text(x, &body);
}

static void one_model(exchange *x, void *context) {
    const server *s = context;
    const char *id = exchange_argument(x);
    for (size_t i = 0; i < count_of(s); i++) {
        model_status status;
        models_get_status(s->models, i, &status);
        if (strcmp(status.id, id) == 0) {
            text body = {0};
            write_model(&body, &status);
            reply_text(x, &body);
            return;
        }
    }
    exchange_fail(
        x, &(http_error){.status = 404,
                         .type = "not_found_error",
                         .code = "model_not_found",
                         .param = "model",
                         .message = "there is no model of that name; GET /v1/models lists those there are"});
}

static const route ROUTES[] = {
    {"POST", "/v1/chat/completions", false, false, openai_chat, NULL},
    {"POST", "/chat/completions", false, false, openai_chat, NULL},
    {"POST", "/v1/completions", false, false, openai_completions, NULL},
    {"POST", "/completions", false, false, openai_completions, NULL},
    {"POST", "/v1/embeddings", false, false, vectors_openai, NULL},
    {"POST", "/embeddings", false, false, vectors_openai, NULL},
    {"POST", "/v1/rerank", false, false, vectors_rerank, NULL},
    {"POST", "/rerank", false, false, vectors_rerank, NULL},
    {"POST", "/v2/rerank", false, false, vectors_rerank, NULL},
    {"GET", "/v1/models", false, true, list_models, NULL},
    {"GET", "/models", false, true, list_models, NULL},
    {"GET", "/v1/models/{}", false, true, one_model, NULL},
    {"GET", "/models/{}", false, true, one_model, NULL},
};
const route_table OPENAI_ROUTES = {ROUTES, sizeof ROUTES / sizeof *ROUTES};
