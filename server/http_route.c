/* Which route a request is for. */
#include "http_internal.h"

#include <stdio.h>
#include <string.h>

enum { METHOD_GET = 1, METHOD_POST = 2, METHOD_OTHER = 4 };

static unsigned method_bit(const char *method) {
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) {
        return METHOD_GET;
    }
    return strcmp(method, "POST") == 0 ? METHOD_POST : METHOD_OTHER;
}

/* What {} took of `path`, "" for a route without it, NULL when the route's path is another one. */
static const char *match(const route *route, const char *path) {
    const size_t length = strlen(route->path);
    if (length >= 2 && strcmp(route->path + length - 2, "{}") == 0) {
        return strncmp(route->path, path, length - 2) == 0 && path[length - 2] ? path + length - 2 : NULL;
    }
    return strcmp(route->path, path) == 0 ? "" : NULL;
}

void http_route_find(exchange *exchange, const char *method) {
    const http_options *options = &exchange->server->options;
    const unsigned wanted = method_bit(method);
    if (strcmp(exchange->target, "*") == 0) { /* OPTIONS for the server as a whole */
        exchange->methods = METHOD_GET | METHOD_POST;
        return;
    }
    /* Whole paths win over those with {}. For the wrong method any route of the path serves: its errors have
     * the shape that clients of that path read. */
    for (int open_ended = 0; open_ended < 2 && !exchange->methods; open_ended++) {
        for (size_t i = 0; i < options->route_count; i++) {
            const route *candidate = &options->routes[i];
            const char *argument = match(candidate, exchange->target);
            if (!argument || (*argument != '\0') != open_ended) {
                continue;
            }
            const unsigned bit = method_bit(candidate->method);
            exchange->methods |= bit;
            if (!exchange->route || (bit == wanted && method_bit(exchange->route->method) != wanted)) {
                exchange->route = candidate;
                exchange->argument = argument;
            }
        }
    }
    exchange->wrong_method = exchange->methods && !exchange->options && !(exchange->methods & wanted);
}

void http_route_methods(unsigned methods, char *text, size_t size) {
    snprintf(text, size, "%s%sOPTIONS", methods & METHOD_GET ? "GET, HEAD, " : "",
             methods & METHOD_POST ? "POST, " : "");
}
