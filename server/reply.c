#include "server.h"

#include <sys/random.h>

#include <stdio.h>
#include <string.h>

void reply_text(exchange *exchange, text *body) {
    size_t length;
    char *bytes = text_take(body, &length);
    exchange_reply(exchange, 200, "application/json", bytes, length);
}

void reply_json(exchange *exchange, json_t *value) {
    text body = {0};
    text_json_new(&body, value);
    reply_text(exchange, &body);
}

void make_id(const char *prefix, char id[64]) {
    static const char LETTERS[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { RANDOM = 24 };
    unsigned char random[RANDOM] = {0};
    size_t length = (size_t)snprintf(id, 64 - RANDOM, "%s", prefix);
    length = length < 64 - RANDOM ? length : 63 - RANDOM;
    /* Up to 256 bytes come whole once the system has booted. */
    (void)!getrandom(random, sizeof random, 0);
    for (size_t i = 0; i < RANDOM; i++) {
        id[length + i] = LETTERS[random[i] % (sizeof LETTERS - 1)];
    }
    id[length + RANDOM] = '\0';
}

const char *body_model(const json_t *body) {
    return json_string_value(json_object_get(body, "model"));
}

static void write_word(text *out, const char *name, const char *word) {
    text_format(out, ",\"%s\":", name);
    if (word) {
        text_string(out, word, strlen(word));
    } else {
        text_put(out, "null");
    }
}

void write_error(text *out, const http_error *error) {
    text_put(out, "{\"message\":");
    text_string(out, error->message, strlen(error->message));
    write_word(out, "type", error->type);
    write_word(out, "param", *error->param ? error->param : NULL);
    write_word(out, "code", error->code);
    text_put(out, "}");
}
