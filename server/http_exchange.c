/* Exchanges: references, and answers from any thread. The states are described in http_internal.h. */
#include "http_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void http_new_id(char id[32]) {
    static atomic_uint count;
    unsigned char random[12] = {0};
    const unsigned number = atomic_fetch_add(&count, 1);
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) {
        const double now = http_now(); /* unique in this process at least */
        memcpy(random, &now, sizeof now);
        memcpy(random + sizeof now, &number, sizeof number);
    }
    int at = snprintf(id, 32, "req_");
    for (size_t i = 0; i < sizeof random; i++) {
        at += snprintf(id + at, 32 - (size_t)at, "%02x", random[i]);
    }
}

exchange *http_exchange_new(http_server *server, const char *target) {
    exchange *made = calloc(1, sizeof *made);
    if (!made) {
        return NULL;
    }
    made->target = strdup(target);
    if (!made->target || pthread_mutex_init(&made->lock, NULL)) {
        free(made->target);
        free(made);
        return NULL;
    }
    atomic_init(&made->references, 2); /* the connection's and the users' */
    atomic_init(&made->users, 1);
    made->server = server;
    made->key = -1;
    made->argument = "";
    made->method = "OTHER";
    made->started = http_now();
    http_new_id(made->id);
    atomic_fetch_add(&server->references, 1);
    return made;
}

void http_exchange_ref(exchange *exchange) {
    atomic_fetch_add(&exchange->references, 1);
}

void http_exchange_unref(exchange *exchange) {
    if (atomic_fetch_sub(&exchange->references, 1) != 1) {
        return;
    }
    for (answer_header *header = exchange->answer_headers; header;) {
        answer_header *next = header->next;
        free(header);
        header = next;
    }
    pthread_mutex_destroy(&exchange->lock);
    free(exchange->target);
    free(exchange->query);
    free(exchange->headers);
    free(exchange->body);
    free(exchange->type);
    free(exchange->reply);
    free(exchange->data);
    http_server_unref(exchange->server);
    free(exchange);
}

exchange *exchange_retain(exchange *exchange) {
    atomic_fetch_add(&exchange->users, 1);
    return exchange;
}

void exchange_release(exchange *exchange) {
    if (atomic_fetch_sub(&exchange->users, 1) != 1) {
        return;
    }
    pthread_mutex_lock(&exchange->lock);
    const bool unanswered = exchange->stage == UNANSWERED && !exchange->left;
    const bool unended = exchange->stage == STREAMING && !exchange->ended && !exchange->left;
    pthread_mutex_unlock(&exchange->lock);
    if (unanswered) {
        exchange_reply(exchange, 500, NULL, NULL, 0);
    } else if (unended) {
        exchange_end(exchange, true);
    }
    http_exchange_unref(exchange);
}

/* ---- the request ---- */

const char *exchange_id(const exchange *exchange) {
    return exchange->id;
}

const char *exchange_argument(const exchange *exchange) {
    return exchange->argument;
}

const char *exchange_header(const exchange *exchange, const char *name) {
    return http_value(exchange->headers, name, true);
}

const char *exchange_query(const exchange *exchange, const char *name) {
    return http_value(exchange->query, name, false);
}

const char *exchange_body(const exchange *exchange, size_t *length) {
    if (length) {
        *length = exchange->length;
    }
    return exchange->body ? exchange->body : "";
}

bool exchange_late(const exchange *exchange) {
    return exchange->late;
}

int exchange_key(const exchange *exchange) {
    return exchange->key;
}

/* ---- errors ---- */

static const struct {
    int status;
    const char *type, *code;
} KINDS[] = {
    {400, "invalid_request_error", NULL},
    {401, "authentication_error", "invalid_api_key"},
    {403, "permission_error", "host_not_allowed"},
    {404, "invalid_request_error", "not_found"},
    {405, "invalid_request_error", "method_not_allowed"},
    {408, "invalid_request_error", "request_timeout"},
    {413, "invalid_request_error", "request_too_large"},
    {414, "invalid_request_error", "uri_too_long"},
    {415, "invalid_request_error", "unsupported_media_type"},
    {431, "invalid_request_error", "headers_too_large"},
    {505, "invalid_request_error", "http_version_not_supported"},
};

void http_error_set(http_error *error, int status, const char *message) {
    memset(error, 0, sizeof *error);
    error->status = status;
    error->type = "server_error";
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (KINDS[i].status == status) {
            error->type = KINDS[i].type;
            error->code = KINDS[i].code;
        }
    }
    snprintf(error->message, sizeof error->message, "%s", message);
}

char *http_error_text(const route *route, const http_error *error, const char *id) {
    if (route && route->error_body) {
        return route->error_body(error, id);
    }
    json_t *json = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", error->message, "type",
                             error->type ? error->type : "server_error", "param",
                             *error->param ? error->param : NULL, "code", error->code);
    if (error->context > 0) {
        json_t *inside = json_object_get(json, "error");
        json_object_set_new(inside, "n_prompt_tokens", json_integer(error->prompt_tokens));
        json_object_set_new(inside, "n_ctx", json_integer(error->context));
    }
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

/* ---- the answer ---- */

/* Adds to the list of headers; the lock is held, or nobody else has the exchange yet. */
static bool add_header(exchange *exchange, const char *name, const char *value) {
    const size_t name_size = strlen(name) + 1, value_size = strlen(value) + 1;
    if (strpbrk(value, "\r\n") || !http_token(name, name_size - 1)) {
        return false;
    }
    answer_header *header = malloc(sizeof *header + name_size + value_size);
    if (!header) {
        return false;
    }
    memcpy(header->name, name, name_size);
    header->value = header->name + name_size;
    memcpy(header->value, value, value_size);
    header->next = NULL;
    answer_header **end = &exchange->answer_headers;
    while (*end) {
        end = &(*end)->next;
    }
    *end = header;
    return true;
}

void exchange_add_header(exchange *exchange, const char *name, const char *value) {
    pthread_mutex_lock(&exchange->lock);
    if (exchange->stage == UNANSWERED && !exchange->left) {
        add_header(exchange, name, value);
    }
    pthread_mutex_unlock(&exchange->lock);
}

typedef struct answer {
    stage stage;
    int status, retry_after;
    const char *type;
    char *body; /* owned; NULL: empty */
    size_t length;
} answer;

/* Whether the exchange took it; the body is taken over in any case. */
static bool begin_answer(exchange *exchange, answer *answer) {
    char *type = answer->type ? strdup(answer->type) : NULL;
    pthread_mutex_lock(&exchange->lock);
    const bool taken = exchange->stage == UNANSWERED && !exchange->left;
    bool wake = false;
    if (taken) {
        if (answer->retry_after > 0) {
            char seconds[16];
            snprintf(seconds, sizeof seconds, "%d", answer->retry_after);
            add_header(exchange, "Retry-After", seconds);
        }
        exchange->stage = answer->stage;
        exchange->status = answer->status;
        exchange->type = type;
        exchange->reply = answer->body;
        exchange->reply_length = answer->body ? answer->length : 0;
        type = NULL;
        answer->body = NULL;
        if (answer->stage == REPLIED) {
            exchange->gone = NULL;
        }
        wake = exchange->waiting;
        exchange->waiting = false;
    }
    pthread_mutex_unlock(&exchange->lock);
    free(type);
    free(answer->body);
    if (wake) {
        http_wake_exchange(exchange);
    }
    return taken;
}

void exchange_reply(exchange *exchange, int status, const char *type, char *body, size_t length) {
    if (!body) {
        http_error error;
        http_error_set(&error, 500, "the server failed to answer");
        exchange_fail(exchange, &error);
        return;
    }
    answer answer = {.stage = REPLIED, .status = status, .type = type, .body = body, .length = length};
    begin_answer(exchange, &answer);
}

void exchange_fail(exchange *exchange, const http_error *error) {
    answer answer = {.stage = REPLIED,
                     .status = error->status,
                     .retry_after = error->retry_after,
                     .type = "application/json",
                     .body = http_error_text(exchange->route, error, exchange->id)};
    answer.length = answer.body ? strlen(answer.body) : 0;
    begin_answer(exchange, &answer);
}

void exchange_stream(exchange *exchange, int status, const char *type) {
    if (type && strcmp(type, "text/event-stream") == 0) {
        exchange_add_header(exchange, "Cache-Control", "no-cache");
        exchange_add_header(exchange, "X-Accel-Buffering", "no");
    }
    answer answer = {.stage = STREAMING, .status = status, .type = type};
    begin_answer(exchange, &answer);
}

/* Room for `length` more bytes behind data_end. The lock is held. */
static bool make_room(exchange *exchange, size_t length) {
    const size_t used = exchange->data_end - exchange->data_begin;
    if (exchange->data_capacity - exchange->data_end >= length) {
        return true;
    }
    if (used) {
        memmove(exchange->data, exchange->data + exchange->data_begin, used);
    }
    exchange->data_begin = 0;
    exchange->data_end = used;
    if (exchange->data_capacity - used >= length) {
        return true;
    }
    if (length > SIZE_MAX / 4 || used > SIZE_MAX / 4) {
        return false;
    }
    size_t capacity = exchange->data_capacity ? exchange->data_capacity : 512;
    while (capacity < used + length) {
        capacity *= 2;
    }
    char *data = realloc(exchange->data, capacity);
    if (!data) {
        return false;
    }
    exchange->data = data;
    exchange->data_capacity = capacity;
    return true;
}

bool exchange_write(exchange *exchange, const char *data, size_t length) {
    pthread_mutex_lock(&exchange->lock);
    bool taken = exchange->stage == STREAMING && !exchange->ended && !exchange->left;
    bool wake = false;
    if (taken && length) {
        if (exchange->head) {
            /* Nothing of a body is sent. */
        } else if (make_room(exchange, length)) {
            memcpy(exchange->data + exchange->data_end, data, length);
            exchange->data_end += length;
            exchange->written += length;
        } else {
            exchange->ended = exchange->broken = true;
            exchange->gone = NULL;
            taken = false;
        }
        wake = exchange->waiting;
        exchange->waiting = false;
    }
    pthread_mutex_unlock(&exchange->lock);
    if (wake) {
        http_wake_exchange(exchange);
    }
    return taken;
}

size_t exchange_pending(const exchange *constant) {
    exchange *exchange = (struct exchange *)constant; /* for its lock */
    pthread_mutex_lock(&exchange->lock);
    const uint64_t pending = exchange->left ? 0 : exchange->written - exchange->sent;
    pthread_mutex_unlock(&exchange->lock);
    return (size_t)pending;
}

void exchange_end(exchange *exchange, bool broken) {
    pthread_mutex_lock(&exchange->lock);
    bool wake = false;
    if (exchange->stage == STREAMING && !exchange->ended && !exchange->left) {
        exchange->ended = true;
        exchange->broken = broken;
        exchange->gone = NULL;
        wake = exchange->waiting;
        exchange->waiting = false;
    }
    pthread_mutex_unlock(&exchange->lock);
    if (wake) {
        http_wake_exchange(exchange);
    }
}

void exchange_note(exchange *exchange, const http_record *counts) {
    pthread_mutex_lock(&exchange->lock);
    exchange->record = *counts;
    pthread_mutex_unlock(&exchange->lock);
}

/* ---- clients that leave ---- */

void exchange_on_gone(exchange *exchange, void (*gone)(void *context), void *context) {
    pthread_mutex_lock(&exchange->lock);
    const bool complete = exchange->stage == REPLIED || exchange->ended;
    const bool left = exchange->left && !complete;
    if (!exchange->left && !complete) {
        exchange->gone = gone;
        exchange->gone_context = context;
    }
    if (left && gone) {
        gone(context);
    }
    pthread_mutex_unlock(&exchange->lock);
}

void http_exchange_leave(exchange *exchange) {
    pthread_mutex_lock(&exchange->lock);
    void (*gone)(void *) = exchange->gone;
    exchange->left = true;
    exchange->waiting = false;
    exchange->gone = NULL;
    exchange->data_begin = exchange->data_end = 0;
    if (gone) {
        gone(exchange->gone_context);
    }
    pthread_mutex_unlock(&exchange->lock);
}
