/* All routes in one table, and what stands before every handler that begins work. */
#include "server.h"

#include "pump.h"
#include "serve.h"

#include <stdlib.h>
#include <string.h>

server_life server_get_life(const server *s) {
    return (server_life)s->life;
}

static int refuse(server_life life, http_error *error) {
    static const char *const reasons[] = {[SERVER_LOADING] = "the model is being loaded; try again soon",
                                          [SERVER_LEAVING] = "the server is about to shut down",
                                          [SERVER_DRAINING] = "the server is shutting down",
                                          [SERVER_FAILED] = "the engine has failed; the server is ending"};
    static const char *const codes[] = {[SERVER_LOADING] = "model_loading",
                                        [SERVER_LEAVING] = "server_draining",
                                        [SERVER_DRAINING] = "server_draining",
                                        [SERVER_FAILED] = "engine_ended"};
    *error = (http_error){.status = 503, .type = "server_error", .code = codes[life], .retry_after = 2};
    snprintf(error->message, sizeof error->message, "%s", reasons[life]);
    return -1;
}

int server_admit(const server *s, const exchange *x, http_error *error) {
    const server_life life = server_get_life(s);
    const bool taken = life == SERVER_READY || life == SERVER_LEAVING ||
                       (life == SERVER_DRAINING && !exchange_late(x));
    return taken ? 0 : refuse(life, error);
}

int server_healthy(const server *s, http_error *error) {
    const server_life life = server_get_life(s);
    return life == SERVER_READY ? 0 : refuse(life, error);
}

served_model *server_model(server *s, const json_t *body, http_error *error) {
    return models_acquire(s->models, body_model(body), error);
}

route *routes_join(size_t *count) {
    static const route_table *const tables[] = {&OPENAI_ROUTES, &RESPONSES_ROUTES, &ANTHROPIC_ROUTES,
                                                &OLLAMA_ROUTES, &NATIVE_ROUTES,    &PAGE_ROUTES};
    *count = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        *count += tables[i]->count;
    }
    route *all = calloc(*count, sizeof *all);
    for (size_t i = 0, at = 0; all && i < sizeof tables / sizeof *tables; i++) {
        memcpy(all + at, tables[i]->routes, tables[i]->count * sizeof *all);
        at += tables[i]->count;
    }
    return all;
}
