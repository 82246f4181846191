/* What the mask of a schema lets through. Reads lines of JSON {"schema": ..., "texts": [...]} and writes for
 * each a line {"accepted": [...], "stops": [...], "walks": [...], "unfinished": N} or {"error": "...",
 * "code": N}: whether each text can be the whole answer, and answers that random choices under the mask lead
 * to. */
#define _GNU_SOURCE
#include "base/text.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 256, MOST_STEPS = 3000 };

/* Besides all bytes: pieces that cross the borders of JSON's tokens, as those of a vocabulary do. */
static const char *const PIECES[] = {
    "{\"",      "\"}",          "\":",
    "\": ",     "\": \"",       "\",",
    "\", \"",   ", ",           "},",
    "}}",       "[{",           "}]",
    "[[",       "]]",           "[\"",
    "\"]",      "true",         "false",
    "null",     "12",           "00",
    "-1",       "0.",           ".5",
    "e1",       "\n",           "\n  ",
    "  ",       "ab",           "the",
    "\xc3\xa9", "\xe5\x8c\x97", "\xf0\x9f\xa4\x97",
    "\\\"",     "\\n",          "\\u00",
    "a1",       "id",           "@b.",
    "2024-",    ":00",          "http://",
    "::",       "1.1.",         "{}",
    "[]",       "{\n",          "\\\\",
    "a\"",      "\"a\"",        "a\":1,\"a",
    "\",\"a",   "\\/",          "1\"",
};
enum { TOKENS = BYTES + 1 + (int)(sizeof PIECES / sizeof *PIECES), WORDS = (TOKENS + 31) / 32 };

typedef struct walker {
    sl_grammar_vocabulary *vocabulary;
    uint64_t random;
    int walks;
} walker;

static uint32_t next_random(walker *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 32);
}

static const char *token_text(int token, char byte[2], int *length) {
    if (token >= BYTES) {
        *length = (int)strlen(PIECES[token - BYTES]);
        return PIECES[token - BYTES];
    }
    byte[0] = (char)token;
    *length = 1;
    return byte;
}

/* The more a text has grown, the more what closes it is preferred. */
static uint32_t weight(int token, int steps) {
    char byte[2];
    int length;
    const char *text = token_text(token, byte, &length);
    const uint32_t closing = 4 + (uint32_t)steps / 2;
    if (strchr("\"}]", text[0]) && text[0] && length == 1) {
        return closing * 6;
    }
    return token >= 0x80 && token < BYTES ? 1 : token < BYTES ? 3 : 8;
}

/* 1: finished; 0: too long; negative: an error. */
static int walk(walker *w, sl_matcher *matcher, sl_buffer *out, sl_error *error) {
    uint32_t mask[WORDS];
    for (int step = 0; step < MOST_STEPS; step++) {
        uint32_t sum = 0;
        int chosen = -1;
        int code = sl_matcher_mask(matcher, mask, error);
        if (code < 0) {
            return code;
        }
        for (int token = 0; token < TOKENS; token++) {
            if (mask[token / 32] >> (token % 32) & 1) {
                const uint32_t own = token == TOKENS - 1 ? 8 + (uint32_t)step : weight(token, step);
                sum += own;
                if (next_random(w) % sum < own) {
                    chosen = token;
                }
            }
        }
        if (chosen < 0) {
            return sl_fail(error, SL_ERR_INTERNAL, "nothing can follow: %s", out->data ? out->data : "");
        }
        code = sl_matcher_accept(matcher, chosen, error);
        if (code != 1) {
            return code < 0 ? code : sl_fail(error, SL_ERR_INTERNAL, "an allowed token is not accepted");
        }
        if (chosen == TOKENS - 1) {
            return 1;
        }
        char byte[2];
        int length;
        const char *text = token_text(chosen, byte, &length);
        sl_buffer_append(out, text, (size_t)length);
    }
    return 0;
}

/* *stops: how many bytes can stand there. */
static int accepts(sl_grammar *grammar, const char *text, int *stops, sl_error *error) {
    sl_matcher *matcher = sl_matcher_create(grammar, error);
    int code = 1;
    if (!matcher) {
        return error->code;
    }
    for (*stops = 0; text[*stops] && code == 1; *stops += code == 1) {
        code = sl_matcher_accept_bytes(matcher, text + *stops, 1, error);
    }
    code = code == 1 ? sl_matcher_can_end(matcher) : code;
    sl_matcher_destroy(matcher);
    return code;
}

static int answer(walker *w, sl_grammar *grammar, const json_t *texts, json_t *out, sl_error *error) {
    json_t *accepted = json_array(), *stops = json_array(), *walks = json_array();
    int unfinished = 0, stop;
    json_object_set_new(out, "accepted", accepted);
    json_object_set_new(out, "stops", stops);
    json_object_set_new(out, "walks", walks);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const int code = accepts(grammar, json_string_value(json_array_get(texts, i)), &stop, error);
        if (code < 0) {
            return code;
        }
        json_array_append_new(accepted, json_boolean(code));
        json_array_append_new(stops, json_integer(stop));
    }
    for (int i = 0; i < w->walks; i++) {
        sl_buffer text = {0};
        sl_matcher *matcher = sl_matcher_create(grammar, error);
        const int code = matcher ? walk(w, matcher, &text, error) : error->code;
        if (code == 1) {
            json_array_append_new(walks, json_stringn(text.data ? text.data : "", text.length));
        }
        unfinished += code == 0;
        sl_matcher_destroy(matcher);
        sl_buffer_free(&text);
        if (code < 0) {
            return code;
        }
    }
    json_object_set_new(out, "unfinished", json_integer(unfinished));
    return 0;
}

static void one_line(walker *w, const json_t *row, json_t *out) {
    struct timespec from, to;
    sl_error error = {0};
    char *text = json_dumps(json_object_get(row, "schema"), JSON_ENCODE_ANY | JSON_COMPACT);
    const char *given = json_string_value(json_object_get(row, "text"));
    const sl_json_style style = {.compact = json_is_true(json_object_get(row, "compact"))};
    clock_gettime(CLOCK_MONOTONIC, &from);
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
    const char *schema = given ? given : text ? text : "";
    sl_expression root =
        builder ? sl_expression_schema(builder, schema, strlen(schema), &style, &error) : SL_NO_EXPRESSION;
    sl_grammar *grammar =
        root == SL_NO_EXPRESSION ? NULL : sl_grammar_compile(builder, root, w->vocabulary, &error);
    sl_grammar_builder_destroy(builder);
    clock_gettime(CLOCK_MONOTONIC, &to);
    json_object_set_new(
        out, "milliseconds",
        json_real((double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6));
    if (!grammar || answer(w, grammar, json_object_get(row, "texts"), out, &error)) {
        json_object_set_new(out, "error", json_string(error.message));
        json_object_set_new(out, "code", json_integer(error.code));
    }
    sl_grammar_release(grammar);
    free(text);
}

int main(int count, char **arguments) {
    sl_grammar_token tokens[TOKENS];
    char bytes[BYTES][2];
    sl_error error = {0};
    walker w = {.random = 0x9e3779b97f4a7c15, .walks = count > 1 ? atoi(arguments[1]) : 0};
    if (count > 2) {
        w.random ^= strtoull(arguments[2], NULL, 10) * 0xd1342543de82ef95;
    }
    for (int i = 0; i < TOKENS - 1; i++) {
        int length;
        const char *text = token_text(i, bytes[i < BYTES ? i : 0], &length);
        tokens[i] = (sl_grammar_token){.bytes = text, .count = length};
    }
    tokens[TOKENS - 1] = (sl_grammar_token){.is_special = true, .is_end = true};
    w.vocabulary = sl_grammar_vocabulary_create(tokens, TOKENS, &error);
    if (!w.vocabulary) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL), *out = json_object();
        if (row) {
            one_line(&w, row, out);
        } else {
            json_object_set_new(out, "error", json_string("the line is no JSON"));
        }
        char *text = json_dumps(out, JSON_COMPACT);
        puts(text ? text : "{}");
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(row);
    }
    free(line);
    sl_grammar_vocabulary_release(w.vocabulary);
    return 0;
}
