#include "answer.h"

#include "series.h"

#include <string.h>

enum { BODY_MOST = 16 << 20 };

void load_answer_clear(load_answer *a) {
    load_answer fresh = {
        .prompt_tokens = -1, .answer_tokens = -1, .cached_tokens = -1, .gaps = a->gaps, .text = a->text};
    fresh.body = a->body;
    fresh.event = a->event;
    fresh.pattern = a->pattern;
    *a = fresh;
    a->gaps.count = 0;
    load_bytes_clear(&a->text);
    load_bytes_clear(&a->body);
    load_bytes_clear(&a->event);
    load_pattern_clear(&a->pattern);
}

void load_answer_free(load_answer *a) {
    load_series_free(&a->gaps);
    load_bytes_free(&a->text);
    load_bytes_free(&a->body);
    load_bytes_free(&a->event);
    load_pattern_free(&a->pattern);
}

/* One line without control characters; of UTF-8 no part of a character at its end. */
static void one_line(const char *from, size_t length, char *to, size_t size) {
    size_t count = length < size - 1 ? length : size - 1;
    while (count > 0 && count < length && ((unsigned char)from[count] & 0xc0) == 0x80) {
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        to[i] = (unsigned char)from[i] < ' ' || from[i] == 0x7f ? ' ' : from[i];
    }
    to[count] = '\0';
}

static int fail(load_answer *a, const char *why) {
    if (!a->failed) {
        one_line(why, strlen(why), a->error, sizeof a->error);
    }
    a->failed = true;
    return -1;
}

/* The message of {"error": {"message": ...}}, {"error": "..."} or {"message": "..."}; NULL: there is none. */
static const char *message_of(const json_t *value) {
    const json_t *error = json_object_get(value, "error");
    const json_t *message = json_object_get(json_is_object(error) ? error : value, "message");
    return json_is_string(error) ? json_string_value(error) : json_string_value(message);
}

void load_error_text(const char *body, size_t length, char text[160]) {
    json_error_t error;
    json_t *value = json_loadb(body, length, JSON_ALLOW_NUL, &error);
    const char *message = message_of(value);
    one_line(message ? message : body, message ? strlen(message) : length, text, 160);
    json_decref(value);
}

static void read_count(const json_t *value, int64_t *count) {
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *count = json_integer_value(value);
    }
}

static void read_usage(load_answer *a, const json_t *usage) {
    read_count(json_object_get(usage, "prompt_tokens"), &a->prompt_tokens);
    read_count(json_object_get(usage, "completion_tokens"), &a->answer_tokens);
    read_count(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"),
               &a->cached_tokens);
}

/* Is there text under that name? Kept when it belongs to the answer. */
static bool has_text(load_answer *a, const json_t *holder, const char *name, bool keep) {
    const json_t *text = json_object_get(holder, name);
    const size_t length = json_string_length(text);
    if (length > 0 && keep && a->keep_text && load_bytes_add(&a->text, json_string_value(text), length)) {
        fail(a, "out of memory");
    }
    return length > 0;
}

/* Text, a thought or a call: what a model generated. */
static bool read_choice(load_answer *a, const json_t *choice) {
    const json_t *message = json_object_get(choice, "delta");
    message = message ? message : json_object_get(choice, "message");
    bool any = has_text(a, choice, "text", true);
    any = has_text(a, message, "content", true) || any;
    any = has_text(a, message, "reasoning_content", false) || has_text(a, message, "reasoning", false) || any;
    any = json_array_size(json_object_get(message, "tool_calls")) > 0 || any;
    const json_t *reason = json_object_get(choice, "finish_reason");
    if (json_is_string(reason)) {
        one_line(json_string_value(reason), json_string_length(reason), a->reason, sizeof a->reason);
        a->ended = true;
    }
    return any;
}

static int count_text(load_answer *a, double now) {
    if (a->first > 0 && load_series_add(&a->gaps, 1000 * (now - a->last))) {
        return fail(a, "out of memory");
    }
    a->first = a->first > 0 ? a->first : now;
    a->last = now;
    a->text_events++;
    return 0;
}

static int read_value(load_answer *a, const json_t *value, double now) {
    if (!json_is_object(value)) {
        return fail(a, "what came is no JSON object");
    }
    const json_t *error = json_object_get(value, "error");
    if (error && !json_is_null(error)) {
        const char *message = message_of(value);
        a->told = true;
        return fail(a, message ? message : "an error without a message");
    }
    read_usage(a, json_object_get(value, "usage"));
    const json_t *choices = json_object_get(value, "choices");
    bool any = false;
    for (size_t i = 0; i < json_array_size(choices); i++) {
        any = read_choice(a, json_array_get(choices, i)) || any;
    }
    return a->failed || (any && count_text(a, now)) ? -1 : 0;
}

static int read_json(load_answer *a, const load_bytes *bytes, double now) {
    json_error_t error;
    json_t *value = json_loadb(bytes->data ? bytes->data : "", bytes->length, JSON_ALLOW_NUL, &error);
    const int result = value ? read_value(a, value, now) : fail(a, "what came is no JSON");
    if (result == 0 && a->streamed) {
        load_pattern_learn(&a->pattern, bytes, value);
    }
    json_decref(value);
    return result;
}

/* An event that is like one before, but for its text. */
static int add_text(load_answer *a, const char *text, size_t length, double now) {
    return a->keep_text && load_bytes_add(&a->text, text, length) ? fail(a, "out of memory")
                                                                  : count_text(a, now);
}

static int read_event(load_answer *a, double now) {
    const char *text;
    size_t length;
    int result = 0;
    if (strcmp(a->event.data, "[DONE]") == 0) {
        a->ended = true;
    } else if (load_pattern_fits(&a->pattern, &a->event, &text, &length)) {
        result = add_text(a, text, length, now);
    } else {
        result = read_json(a, &a->event, now);
    }
    load_bytes_clear(&a->event);
    return result;
}

/* A line of a stream, without its end. An empty one ends an event; of fields only the data matter. */
static int read_line(load_answer *a, const char *line, size_t length, double now) {
    if (length == 0) {
        return a->event.length > 0 ? read_event(a, now) : 0;
    }
    if (length < 5 || memcmp(line, "data:", 5) != 0) {
        return 0;
    }
    const size_t skip = length > 5 && line[5] == ' ' ? 6 : 5;
    if (a->event.length > 0 && load_bytes_add(&a->event, "\n", 1)) {
        return fail(a, "out of memory");
    }
    return load_bytes_add(&a->event, line + skip, length - skip) ? fail(a, "out of memory") : 0;
}

int load_answer_read(load_answer *a, const char *bytes, size_t length, double now) {
    if (a->failed) {
        return -1;
    }
    if (load_bytes_add(&a->body, bytes, length)) {
        return fail(a, "out of memory");
    }
    size_t at = 0;
    int result = 0;
    while (a->streamed && result == 0) {
        const char *end = memchr(a->body.data + at, '\n', a->body.length - at);
        if (!end) {
            break;
        }
        const size_t next = (size_t)(end - a->body.data) + 1;
        const size_t bare = next - 1 > at && end[-1] == '\r' ? next - 2 : next - 1;
        result = read_line(a, a->body.data + at, bare - at, now);
        at = next;
    }
    if (at > 0) {
        memmove(a->body.data, a->body.data + at, a->body.length - at + 1);
        a->body.length -= at;
    }
    if (a->body.length > BODY_MOST || a->event.length > BODY_MOST) {
        return fail(a, "an event or answer of more than 16 MiB");
    }
    return result;
}

int load_answer_end(load_answer *a, double now) {
    if (a->failed) {
        return -1;
    }
    if (!a->streamed) {
        if (read_json(a, &a->body, now)) {
            return -1;
        }
        a->ended = true;
        return 0;
    }
    /* A last event without the empty line that should end it. */
    int result = a->body.length > 0 ? read_line(a, a->body.data, a->body.length, now) : 0;
    result = result == 0 && a->event.length > 0 ? read_event(a, now) : result;
    return result == 0 && !a->ended ? fail(a, "the stream broke off before its end") : result;
}
