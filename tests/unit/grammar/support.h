/* What the tests of grammars share: a vocabulary, and whether a grammar has a text. */
#ifndef TESTS_UNIT_GRAMMAR_SUPPORT_H
#define TESTS_UNIT_GRAMMAR_SUPPORT_H

#include "grammar/grammar.h"

#include <string.h>

enum { SPECIAL = 256, END = 257, FIRST_LONG = 258 };

/* Tokens 0 to 255 are the bytes, then a special one (<think>), an end, and these. */
static const char *const LONG_TOKENS[] = {
    "ab",          "abc",     "bb",
    "aab",         "\"",      "\",\"",
    "\": ",        "{\"",     "\"}",
    "true",        "false",   "0.",
    "12",          "1",       "\n",
    "\n\n",        " a",      " the",
    "é",           "\xc3",    "\xa9\xc3\xa9",
    "\xe2\x82",    "€uro",    "a]",
    "],[",         "hello",   "hell",
    "o wor",       "xy",      "yx",
    "x",           "xx",      "xxxx",
    "ba",          "aaa",     "bab",
    "cab",         "c",       "ac",
    "cc",          "bc",      "abcabc",
    "))",          "((",      "\"a\"",
    "a\"",         ",\"b\":", "a\":1,\"a",
    "\":0,\"a\":", "\xa9\"",  "\xa9\",\"a\":",
    "1,\"a\"",     "},\"a\"", "\xa9\",\"c\":",
    "\\u00",       "\\/",
};
enum { LONG_COUNT = sizeof(LONG_TOKENS) / sizeof(*LONG_TOKENS), TOKEN_COUNT = FIRST_LONG + LONG_COUNT };

static inline const char *token_bytes(int32_t token, int32_t *count) {
    static char bytes[256];
    if (token < 256) {
        bytes[token] = (char)token;
        *count = 1;
        return &bytes[token];
    }
    const char *text = token == SPECIAL ? "<think>"
                       : token == END   ? "<end>"
                                        : LONG_TOKENS[token - FIRST_LONG];
    *count = (int32_t)strlen(text);
    return text;
}

static inline sl_grammar_vocabulary *make_vocabulary(sl_error *error) {
    sl_grammar_token tokens[TOKEN_COUNT];
    for (int32_t i = 0; i < TOKEN_COUNT; i++) {
        tokens[i] = (sl_grammar_token){.is_special = i == SPECIAL || i == END, .is_end = i == END};
        tokens[i].bytes = token_bytes(i, &tokens[i].count);
    }
    return sl_grammar_vocabulary_create(tokens, TOKEN_COUNT, error);
}

/* 1: the grammar has the text; 0: it has not; 2: it has only texts that begin so; negative: an error. */
static inline int match(sl_grammar *grammar, const char *text, size_t count) {
    sl_error error;
    sl_matcher *matcher = sl_matcher_create(grammar, &error);
    if (!matcher) {
        return error.code;
    }
    int code = sl_matcher_accept_bytes(matcher, text, count, &error);
    if (code == 1) {
        code = sl_matcher_can_end(matcher) ? 1 : 2;
    }
    sl_matcher_destroy(matcher);
    return code;
}

static inline bool has_token(const uint32_t *mask, int32_t token) {
    return mask[token / 32] >> (token % 32) & 1;
}

/* The token of which accepting says something else than its bit in the mask, -1 if there is none, or less: an
 * error. */
static inline int32_t wrong_bit(sl_matcher *matcher, uint32_t *mask) {
    sl_error error;
    if (sl_matcher_mask(matcher, mask, &error)) {
        return -2;
    }
    for (int32_t i = 0; i < TOKEN_COUNT; i++) {
        const int accepted = sl_matcher_accept(matcher, i, &error);
        if (accepted != has_token(mask, i) || (accepted && sl_matcher_rollback(matcher, 1, &error))) {
            return i;
        }
    }
    return -1;
}

#endif
