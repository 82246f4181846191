/* What fuzzers of grammars share: a small vocabulary, and texts under the masks. */
#ifndef TESTS_FUZZ_FOLLOW_H
#define TESTS_FUZZ_FOLLOW_H

#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUZZ_BYTES = 256, FUZZ_STEPS = 12 };
static const char *const FUZZ_PIECES[] = {"ab", "abc", "ba", "\"a",      "\\n",
                                          "00", "12",  "  ", "\xc3\xa9", "\xe2\x82"};
enum {
    FUZZ_TOKENS = FUZZ_BYTES + (int)(sizeof(FUZZ_PIECES) / sizeof(*FUZZ_PIECES)) + 1,
    FUZZ_WORDS = (FUZZ_TOKENS + 31) / 32
};

static inline sl_grammar_vocabulary *fuzz_vocabulary(void) {
    static sl_grammar_vocabulary *vocabulary;
    static char bytes[FUZZ_BYTES];
    sl_grammar_token tokens[FUZZ_TOKENS] = {{0}};
    sl_error error;
    for (int i = 0; i < FUZZ_TOKENS && !vocabulary; i++) {
        const char *piece = i >= FUZZ_BYTES && i < FUZZ_TOKENS - 1 ? FUZZ_PIECES[i - FUZZ_BYTES] : "<end>";
        tokens[i] = (sl_grammar_token){.bytes = piece, .count = (int32_t)strlen(piece)};
        if (i < FUZZ_BYTES) {
            bytes[i] = (char)i;
            tokens[i] = (sl_grammar_token){.bytes = &bytes[i], .count = 1};
        }
        tokens[i].is_end = i == FUZZ_TOKENS - 1;
    }
    if (!vocabulary) {
        vocabulary = sl_grammar_vocabulary_create(tokens, FUZZ_TOKENS, &error);
    }
    return vocabulary;
}

static inline sl_grammar_builder *fuzz_builder(void) {
    const sl_grammar_limits limits = {.expressions = 1 << 14, .states = 1 << 13, .bytes = 16 << 20};
    sl_error error;
    return sl_grammar_builder_create(&limits, &error);
}

static inline void fuzz_fail(const char *what, int32_t token) {
    fprintf(stderr, "%s: token %d\n", what, token);
    abort();
}

/* A refusal must have a message. */
static inline void fuzz_follow(sl_grammar_builder *builder, sl_expression root, uint64_t random,
                               sl_error *error) {
    uint32_t mask[FUZZ_WORDS], again[FUZZ_WORDS];
    sl_grammar *grammar = root < 0 ? NULL : sl_grammar_compile(builder, root, fuzz_vocabulary(), error);
    sl_matcher *matcher = grammar ? sl_matcher_create(grammar, error) : NULL;
    if (!grammar && (!error->code || !error->message[0]) && !sl_grammar_builder_error(builder)->code) {
        fuzz_fail("no message", -1);
    }
    for (int step = 0; matcher && step < FUZZ_STEPS && !sl_matcher_has_ended(matcher); step++) {
        int32_t chosen = -1;
        if (sl_matcher_mask(matcher, mask, error)) {
            break;
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (int32_t i = 0; i < FUZZ_TOKENS; i++) {
            const int32_t token = (int32_t)((random >> 33) + (uint64_t)i) % FUZZ_TOKENS;
            const bool allowed = mask[token / 32] >> (token % 32) & 1;
            const int accepted = sl_matcher_accept(matcher, token, error);
            if (accepted >= 0 && accepted != allowed) {
                fuzz_fail(allowed ? "allowed and refused" : "accepted and not allowed", token);
            }
            if (accepted == 1 && sl_matcher_rollback(matcher, 1, error)) {
                fuzz_fail("no way back", token);
            }
            chosen = chosen < 0 && accepted == 1 ? token : chosen;
        }
        if (sl_matcher_mask(matcher, again, error) == 0 && memcmp(mask, again, sizeof(mask)) != 0) {
            fuzz_fail("the mask changed", -1);
        }
        if (chosen < 0 || sl_matcher_accept(matcher, chosen, error) != 1) {
            break;
        }
    }
    sl_matcher_destroy(matcher);
    sl_grammar_release(grammar);
}

#endif
