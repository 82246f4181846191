/* sl_grammar: JSON Schema: any bytes as a schema under small limits; what is accepted takes some steps under
 * its mask. */
#include "grammar/grammar.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, TOKENS = BYTES + 1, STEPS = 40 };

static sl_grammar_vocabulary *vocabulary(void) {
    static sl_grammar_vocabulary *made;
    static char bytes[BYTES];
    sl_grammar_token tokens[TOKENS];
    sl_error error;
    if (!made) {
        for (int i = 0; i < BYTES; i++) {
            bytes[i] = (char)i;
            tokens[i] = (sl_grammar_token){.bytes = &bytes[i], .count = 1};
        }
        tokens[BYTES] = (sl_grammar_token){.is_special = true, .is_end = true};
        made = sl_grammar_vocabulary_create(tokens, TOKENS, &error);
    }
    return made;
}

/* A mask that allows nothing, or a token that it allows and the matcher does not take, is a mistake. */
static void take_steps(sl_matcher *matcher, unsigned choice) {
    uint32_t mask[(TOKENS + 31) / 32];
    sl_error error;
    for (int step = 0; step < STEPS && !sl_matcher_has_ended(matcher); step++) {
        int32_t allowed[TOKENS], count = 0;
        const int made = sl_matcher_mask(matcher, mask, &error);
        if (made == SL_ERR_INVALID) {
            fprintf(stderr, "step %d: %s\n", step, error.message);
            abort();
        }
        if (made < 0) {
            return;
        }
        for (int32_t i = 0; i < TOKENS; i++) {
            if (mask[i / 32] >> (i % 32) & 1) {
                allowed[count++] = i;
            }
        }
        choice = choice * 1103515245U + 12345U;
        const int code =
            count ? sl_matcher_accept(matcher, allowed[(choice >> 8) % (unsigned)count], &error) : 0;
        if (code == 0) {
            fprintf(stderr, "step %d: %d tokens are allowed, and one is not accepted\n", step, count);
            abort();
        }
        if (code < 0) {
            return;
        }
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    const sl_grammar_limits limits = {.expressions = 1 << 14, .states = 1 << 14, .bytes = 64 << 20};
    sl_error error = {0};
    sl_grammar_builder *builder = sl_grammar_builder_create(&limits, &error);
    const sl_expression root =
        builder ? sl_expression_schema(builder, (const char *)data, size, NULL, &error) : SL_NO_EXPRESSION;
    if (builder && root == SL_NO_EXPRESSION && (error.code >= 0 || strchr(error.message, '\n'))) {
        fprintf(stderr, "refused with: %d %s\n", error.code, error.message);
        abort();
    }
    sl_grammar *grammar =
        root == SL_NO_EXPRESSION ? NULL : sl_grammar_compile(builder, root, vocabulary(), &error);
    sl_grammar_builder_destroy(builder);
    sl_matcher *matcher = grammar ? sl_matcher_create(grammar, &error) : NULL;
    if (matcher) {
        take_steps(matcher, size ? data[size / 2] : 0);
    }
    sl_matcher_destroy(matcher);
    sl_grammar_release(grammar);
    return 0;
}
