/* What is refused before a handler sees it: malformed framing, foreign hosts, missing keys, unknown routes,
 * bodies that are too large or of a kind that no route takes. And which pages of a browser may read an
 * answer. */
#include "http_internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool refuse(exchange *exchange, int status, const char *message) {
    http_error_set(&exchange->refusal, status, message);
    return false;
}

static size_t count_headers(const exchange *exchange, const char *wanted) {
    size_t count = 0;
    for (const char *name = *exchange->headers ? exchange->headers : NULL; name; name = http_next(name)) {
        count += strcasecmp(name, wanted) == 0;
    }
    return count;
}

/* RFC 9112, 3.2 and 6: one Host, and one way only to tell where the body ends. */
static bool framing(exchange *exchange) {
    const size_t hosts = count_headers(exchange, "Host");
    const size_t lengths = count_headers(exchange, "Content-Length");
    const size_t codings = count_headers(exchange, "Transfer-Encoding");
    if (hosts > 1 || (hosts == 0 && !exchange->old)) {
        return refuse(exchange, 400, "a request has one Host header");
    }
    if (lengths + codings > 1) {
        return refuse(exchange, 400, "a request has one Content-Length or one Transfer-Encoding");
    }
    if (codings && (exchange->old || strcasecmp(exchange_header(exchange, "Transfer-Encoding"), "chunked"))) {
        return refuse(exchange, 400, "the only Transfer-Encoding is chunked, and not in HTTP/1.0");
    }
    exchange->has_body =
        codings || (lengths && strtoull(exchange_header(exchange, "Content-Length"), NULL, 10));
    return true;
}

/* ---- hosts and origins ---- */

/* The name in "name:port", "[::1]:port" or "name"; its length, 0 when there is none. */
static size_t host_name(const char *host, const char **name) {
    *name = host;
    if (*host == '[') {
        const char *end = strchr(host, ']');
        return end && (end[1] == '\0' || end[1] == ':') ? (size_t)(end - host) + 1 : 0;
    }
    return strcspn(host, ":");
}

static bool same_name(const char *name, size_t length, const char *other) {
    return strlen(other) == length && strncasecmp(name, other, length) == 0;
}

/* localhost, 127.0.0.0/8, [::1] */
static bool local_name(const char *name, size_t length) {
    char text[64];
    struct in_addr address;
    if (same_name(name, length, "localhost") || same_name(name, length, "localhost.") ||
        same_name(name, length, "[::1]")) {
        return true;
    }
    if (length >= sizeof text) {
        return false;
    }
    memcpy(text, name, length);
    text[length] = '\0';
    return inet_pton(AF_INET, text, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

static bool host_allowed(const exchange *exchange) {
    const http_options *options = &exchange->server->options;
    const char *host = exchange_header(exchange, "Host");
    const char *name;
    const size_t length = host ? host_name(host, &name) : 0;
    if (!length) {
        return false;
    }
    if (local_name(name, length) || (options->host && same_name(name, length, options->host))) {
        return true;
    }
    for (size_t i = 0; i < options->host_count; i++) {
        const char *allowed;
        const size_t allowed_length = host_name(options->hosts[i], &allowed);
        if (allowed_length == length && strncasecmp(allowed, name, length) == 0) {
            return true;
        }
    }
    return false;
}

static bool origin_allowed(const http_options *options, const char *origin) {
    const char *host = NULL;
    if (strncasecmp(origin, "http://", 7) == 0) {
        host = origin + 7;
    } else if (strncasecmp(origin, "https://", 8) == 0) {
        host = origin + 8;
    }
    if (host) {
        const char *name;
        const size_t length = host_name(host, &name);
        const char *port = name + length;
        const bool plain =
            *port == '\0' || (*port == ':' && port[1] && !port[1 + strspn(port + 1, "0123456789")]);
        if (plain && (same_name(name, length, "localhost") || same_name(name, length, "127.0.0.1") ||
                      same_name(name, length, "[::1]"))) {
            return true;
        }
    }
    for (size_t i = 0; i < options->origin_count; i++) {
        if (strcmp(options->origins[i], "*") == 0 || strcasecmp(options->origins[i], origin) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- keys ---- */

/* The key's index, or -1. Which key it is, where a wrong one differs and how long the keys are do not show
 * in the time this takes: it depends on `length` and on the number of keys. */
static int find_key(const http_options *options, const char *given, size_t length) {
    int found = -1;
    for (size_t i = 0; i < options->key_count; i++) {
        const char *key = options->keys[i];
        const size_t key_length = strlen(key);
        size_t difference = (key_length ^ length) | (key_length == 0);
        size_t at = 0;
        for (size_t j = 0; j < length; j++) {
            difference |= (unsigned char)(given[j] ^ key[at]);
            at++;
            at &= -(size_t)(at < key_length); /* around, without a branch on the key */
        }
        const int equal = -(int)(difference == 0);
        found = (equal & (int)i) | (~equal & found);
    }
    return found;
}

static bool key_allowed(exchange *exchange) {
    const http_options *options = &exchange->server->options;
    int found = -1;
    for (const char *name = *exchange->headers ? exchange->headers : NULL; name; name = http_next(name)) {
        const char *value = name + strlen(name) + 1;
        if (strcasecmp(name, "Authorization") == 0) {
            if (strncasecmp(value, "Bearer", 6) || (value[6] != ' ' && value[6] != '\t')) {
                continue;
            }
            value += 6;
        } else if (strcasecmp(name, "x-api-key")) {
            continue;
        }
        value += strspn(value, " \t"); /* blanks at the end are gone already */
        const int key = find_key(options, value, strlen(value));
        found = key >= 0 ? key : found;
    }
    exchange->key = found;
    return found >= 0;
}

/* ---- bodies ---- */

static bool body_allowed(exchange *exchange) {
    const char *coding = exchange_header(exchange, "Content-Encoding");
    const char *type = exchange_header(exchange, "Content-Type");
    const char *length = exchange_header(exchange, "Content-Length");
    if (length && strtoull(length, NULL, 10) > exchange->server->options.max_body) {
        return refuse(exchange, 413, "the body is larger than this server takes");
    }
    if (coding && strcasecmp(coding, "identity")) {
        return refuse(exchange, 415, "bodies are taken without a Content-Encoding");
    }
    /* Not application/x-www-form-urlencoded: that is what `curl -d` says of a JSON body. */
    static const char FORM[] = "multipart/form-data";
    const size_t size = sizeof FORM - 1;
    if (type && strncasecmp(type, FORM, size) == 0 && (!type[size] || strchr("; \t", type[size]))) {
        return refuse(exchange, 415, "bodies are JSON, not forms");
    }
    return true;
}

void http_guard(exchange *exchange) {
    const http_options *options = &exchange->server->options;
    const char *origin = exchange_header(exchange, "Origin");
    if (origin && origin_allowed(options, origin)) {
        exchange->origin = origin;
    }
    if (exchange->refusal.status || !framing(exchange)) {
        exchange->close = true;
        return;
    }
    if (origin && exchange->connection->loopback && !host_allowed(exchange)) {
        exchange->close = true;
        refuse(exchange, 403, "this server listens on this machine only, and Host names another one");
        return;
    }
    const bool open = exchange->options || (exchange->route && exchange->route->open);
    if (options->key_count && !key_allowed(exchange) && !open) {
        exchange->close = true;
        exchange_add_header(exchange, "WWW-Authenticate", "Bearer");
        refuse(exchange, 401, "a valid key is needed: Authorization: Bearer KEY, or x-api-key");
        return;
    }
    if (!exchange->methods) {
        refuse(exchange, 404, "there is no such route");
        return;
    }
    if (exchange->wrong_method) {
        char allow[64];
        http_route_methods(exchange->methods, allow, sizeof allow);
        exchange_add_header(exchange, "Allow", allow);
        refuse(exchange, 405, "this route does not have that method");
        return;
    }
    exchange->discard = exchange->options || strcmp(exchange->method, "POST") != 0;
    if (exchange->has_body) {
        body_allowed(exchange);
    }
}
