/* What the parts of the server share. */
#ifndef SLUICE_SERVER_SERVER_H
#define SLUICE_SERVER_SERVER_H

#include "generation.h"
#include "http.h"
#include "metrics.h"
#include "models.h"

/* LEAVING: requests are taken as ever, but /health says 503, so that balancers send theirs elsewhere. */
typedef enum server_life {
    SERVER_LOADING,
    SERVER_READY,
    SERVER_LEAVING,
    SERVER_DRAINING,
    SERVER_FAILED
} server_life;

struct server {
    const struct serve_options *options;
    models *models;
    metrics *metrics;
    struct pump *pump;
    struct vectors *vectors;
    http_server *http;
    struct log *log;
    double started;   /* seconds since 1970 */
    _Atomic int life; /* server_life */
    bool socket_stays; /* systemd's: it outlives this server */
};

server_life server_get_life(const server *s);
/* For handlers that begin work: 0, or -1 with 503 and Retry-After while loading, and for what came after the
 * drain had begun. */
int server_admit(const server *s, const exchange *x, http_error *error);
/* For /health: the same, and -1 while leaving too. */
int server_healthy(const server *s, http_error *error);
/* The model that a body names, with one reference; NULL with *error. */
served_model *server_model(server *s, const json_t *body, http_error *error);

/* ---- routes: tables of each API, concatenated in routes.c ---- */
typedef struct route_table {
    const route *routes;
    size_t count;
} route_table;
/* Owned by the caller (free); NULL: no memory. */
route *routes_join(size_t *count);
extern const route_table OPENAI_ROUTES, RESPONSES_ROUTES, ANTHROPIC_ROUTES, OLLAMA_ROUTES, NATIVE_ROUTES,
    PAGE_ROUTES;

/* ---- small things for handlers ---- */
/* A copy of a JSON text as reply, 200. */
void reply_json(exchange *exchange, json_t *value); /* one reference less */
void reply_text(exchange *exchange, text *body);    /* taken */
/* "chatcmpl-" and 24 random letters; `id` has room for 64. */
void make_id(const char *prefix, char id[64]);
/* `model` of `body`, when it is a string. */
const char *body_model(const json_t *body);
/* One message list of OpenAI's kind, checked (roles, contents, parts, tool calls): 400 that names
 * messages[i].field. Other APIs make such a list and have it checked here too. */
int check_messages(const json_t *messages, const char *param, http_error *error);
/* A checked list as the model's template renders it; kwargs: object of template options or NULL. What a
 * template refuses is 400 in its words. *prompt is owned by the caller (sluice_free). */
typedef struct prompt_tokens {
    int32_t *tokens;
    size_t count;
} prompt_tokens;
int messages_to_tokens(const served_model *m, const json_t *messages, const json_t *kwargs, const char *param,
                       prompt_tokens *prompt, http_error *error);
int messages_to_text(const served_model *m, const json_t *messages, const json_t *kwargs, const char *param,
                     char **prompt, http_error *error);
/* OpenAI's object of an error, {"message", "type", "param", "code"}. */
void write_error(text *out, const http_error *error);
/* Messages to tokens with the model's template; kwargs: object of template options or NULL. Adds the prompt
 * and sets what reasoning to expect. */
int add_messages(generation *g, const json_t *messages, const json_t *kwargs, const char *param,
                 http_error *error);

#endif
