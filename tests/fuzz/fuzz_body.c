/* server/body.c server/fields.c server/messages.c server/text.c: any bytes as a request's body: its JSON, the
 * fields that APIs share and one of every kind, and its messages. jansson is the second opinion on what JSON
 * is. */
#include "generation.h"
#include "messages.h"

#include "text.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kinds {
    bool flag;
    int64_t whole;
    double real;
    const char *text, *word;
    const json_t *array, *object, *any;
} kinds;

/* All have one name, so that one value meets every kind. */
static const field KINDS[] = {
    {"a", FIELD_ANY, offsetof(kinds, any), 0, 0, NULL},
    {"a", FIELD_BOOL, offsetof(kinds, flag), 0, 0, NULL},
    {"a", FIELD_WHOLE, offsetof(kinds, whole), -1e19, 1e19, NULL},
    {"a", FIELD_REAL, offsetof(kinds, real), -1, 1, NULL},
    {"a", FIELD_TEXT, offsetof(kinds, text), 1, 5, NULL},
    {"a", FIELD_CHOICE, offsetof(kinds, word), 0, 0, "low|high"},
    {"a", FIELD_ARRAY, offsetof(kinds, array), 0, 0, NULL},
    {"a", FIELD_OBJECT, offsetof(kinds, object), 0, 0, NULL},
    {"a", FIELD_UNSUPPORTED, 0, 0, 0, "0|[]|{\"type\":\"text\"}"},
};

static void report(const char *what, const char *message) {
    fprintf(stderr, "%s: %s\n", what, message);
    abort();
}

/* Refusals are 400, name something and are UTF-8, like all that goes into a JSON answer. */
static void check_refusal(const http_error *error) {
    if (error->status != 400 || !error->type || !*error->message) {
        report("a refusal is not 400 with words", error->message);
    }
}

/* What we refuse, jansson refuses too, but for bounds of ours. */
static void check_refused_text(const char *bytes, size_t length, const http_error *error) {
    static const char *const OURS[] = {"nested too deeply", "too many", "more than 512",
                                       "must be a JSON object"};
    for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++) {
        if (strstr(error->message, OURS[i])) {
            return;
        }
    }
    /* jansson takes a NUL behind a value for the end. */
    json_t *value = memchr(bytes, 0, length) ? NULL : json_loadb(bytes, length, JSON_DECODE_ANY, NULL);
    if (value) {
        report("jansson reads what was refused", error->message);
    }
}

static void check_round_trip(const json_t *root) {
    text written = {0};
    http_error error = {0};
    json_t *again = NULL;
    text_json(&written, root);
    if (written.failed || body_parse(written.data, written.length, &again, &error)) {
        report("what was written cannot be read", error.message);
    }
    if (!json_equal(root, again)) {
        report("what was written reads differently", written.data);
    }
    json_decref(again);
    text_free(&written);
}

static void check_members(const json_t *root) {
    http_error error;
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        kinds target = {0};
        if (body_fields(root, "", &KINDS[i], 1, &target, &error)) {
            check_refusal(&error);
        }
    }
    generation_options options = {0};
    if (body_fields(root, "", GENERATION_FIELDS, GENERATION_FIELD_COUNT, &options, &error)) {
        check_refusal(&error);
    }
    const json_t *messages = json_object_get(root, "messages");
    if (check_messages(messages, "messages", &error)) {
        check_refusal(&error);
        return;
    }
    json_t *uniform = uniform_messages(messages);
    if (json_array_size(uniform) != json_array_size(messages)) {
        report("checked messages cannot be made uniform", "");
    }
    json_decref(uniform);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    const char *bytes = (const char *)data;
    json_t *root;
    http_error error;
    if (body_parse(bytes, size, &root, &error)) {
        check_refusal(&error);
        check_refused_text(bytes, size, &error);
        return 0;
    }
    check_round_trip(root);
    check_members(root);
    json_decref(root);
    return 0;
}
