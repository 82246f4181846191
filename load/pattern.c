#include "pattern.h"

#include <string.h>

enum { MOST_TRIES = 8 };

void load_pattern_clear(load_pattern *p) {
    load_bytes_clear(&p->event);
    p->before = p->after = 0;
    p->tries = 0;
}

void load_pattern_free(load_pattern *p) {
    load_bytes_free(&p->event);
    *p = (load_pattern){0};
}

static bool is_none(const json_t *value) {
    return !value || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
}

/* The text of an event that has this and nothing else that an answer is about; NULL: it is another. */
static const json_t *only_text(const json_t *value) {
    static const char *const others[] = {"reasoning_content", "reasoning", "tool_calls"};
    const json_t *choices = json_object_get(value, "choices"), *choice = json_array_get(choices, 0);
    const json_t *text = json_object_get(choice, "text"), *delta = json_object_get(choice, "delta");
    bool alone = json_array_size(choices) == 1 && is_none(json_object_get(value, "error")) &&
                 is_none(json_object_get(value, "usage")) &&
                 is_none(json_object_get(choice, "finish_reason")) && !json_object_get(choice, "message") &&
                 !text != !delta;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        alone = alone && is_none(json_object_get(delta, others[i]));
    }
    text = text ? text : json_object_get(delta, "content");
    return alone && json_string_length(text) > 0 ? text : NULL;
}

/* Characters that mean themselves in a string of JSON. */
static bool is_plain(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] > 0x7e || text[i] == '"' ||
            text[i] == '\\') {
            return false;
        }
    }
    return length > 0;
}

/* The same text may stand elsewhere: it is the text's if another there is what is read. */
static bool is_place(const load_bytes *event, size_t at, const json_t *text) {
    const size_t length = json_string_length(text);
    load_bytes other = {0};
    json_error_t error;
    json_t *value = NULL;
    if (load_bytes_add(&other, event->data, at + length) == 0 && load_bytes_add(&other, "+", 1) == 0 &&
        load_bytes_add(&other, event->data + at + length, event->length - at - length) == 0) {
        value = json_loadb(other.data, other.length, JSON_ALLOW_NUL, &error);
    }
    const json_t *read = only_text(value);
    const bool is = json_string_length(read) == length + 1 &&
                    memcmp(json_string_value(read), other.data + at, length + 1) == 0;
    json_decref(value);
    load_bytes_free(&other);
    return is;
}

void load_pattern_learn(load_pattern *p, const load_bytes *event, const json_t *value) {
    const json_t *text = p->before == 0 && p->tries < MOST_TRIES ? only_text(value) : NULL;
    const size_t length = json_string_length(text);
    if (!text || !is_plain(json_string_value(text), length)) {
        return;
    }
    p->tries++;
    for (size_t at = 1; at + length < event->length; at++) {
        if (event->data[at - 1] == '"' && event->data[at + length] == '"' &&
            memcmp(event->data + at, json_string_value(text), length) == 0 && is_place(event, at, text)) {
            load_bytes_clear(&p->event);
            if (load_bytes_add(&p->event, event->data, event->length) == 0) {
                p->before = at;
                p->after = event->length - at - length;
            }
            return;
        }
    }
}

bool load_pattern_fits(const load_pattern *p, const load_bytes *event, const char **text, size_t *length) {
    if (p->before == 0 || event->length <= p->before + p->after ||
        memcmp(event->data, p->event.data, p->before) != 0 ||
        memcmp(event->data + event->length - p->after, p->event.data + p->event.length - p->after,
               p->after) != 0) {
        return false;
    }
    *text = event->data + p->before;
    *length = event->length - p->before - p->after;
    return is_plain(*text, *length);
}
