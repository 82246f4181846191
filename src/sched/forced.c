#include "sched/forced.h"

#include "base/alloc.h"
#include "base/text.h"
#include "program/program.h"

#include <string.h>

enum {
    MOST_BYTES = 256,  /* looked ahead at once */
    LEAST_BYTES = 2,   /* one byte is seldom worth a tokenization */
    MOST_TOKENS = 256, /* one for each byte, or of what closes a thought */
    LONGEST = 64,      /* ends of a text that may go on as another token */
};

struct sl_forced {
    sl_forced_options options;
    sl_thought *thought; /* owned; NULL: none */
    sl_tokens scratch;
    int32_t tokens[MOST_TOKENS];
    int32_t count, taken;
};

int sl_forced_create(const sl_forced_options *options, sl_thought *thought, sl_forced **out,
                     sl_error *error) {
    sl_forced *f = sl_alloc_zero(1, sizeof *f);
    *out = f;
    if (!f) {
        sl_thought_destroy(thought);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for tokens that are forced");
    }
    f->options = *options;
    f->thought = thought;
    return 0;
}

void sl_forced_destroy(sl_forced *f) {
    if (f) {
        sl_thought_destroy(f->thought);
        sl_tokens_free(&f->scratch);
        sl_free(f);
    }
}

int32_t sl_forced_next(const sl_forced *f) {
    return f && f->taken < f->count ? f->tokens[f->taken] : SL_NONE;
}

/* How many of the first bytes are tokenized the same whatever follows them: up to where the longest end
 * begins that some longer token begins with. */
static size_t settled(const sl_forced *f, const char *bytes, size_t count) {
    size_t at = count > LONGEST ? count - LONGEST : 0;
    while (at < count && !sl_grammar_vocabulary_extends(f->options.vocabulary, bytes + at, count - at)) {
        at++;
    }
    return at;
}

/* Without the last character, if it is not whole. */
static size_t whole_characters(const char *bytes, size_t count) {
    size_t at = 0;
    uint32_t character;
    for (size_t size; at < count && (size = sl_utf8_decode(bytes + at, count - at, &character)) > 0;) {
        at += size;
    }
    return at;
}

/* Failures leave nothing forced: the model then says the same, token by token. */
static void force_text(sl_forced *f, const char *bytes, size_t count) {
    sl_error ignored;
    const size_t end = settled(f, bytes, count);
    f->scratch.count = 0;
    if (end == 0 || sl_tokenizer_encode(f->options.tokenizer, bytes, count, 0, &f->scratch, &ignored)) {
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < f->scratch.count && f->count < MOST_TOKENS; i++) {
        const int32_t token = f->scratch.data[i];
        const sl_view piece = sl_tokenizer_decode_piece(f->options.tokenizer, token);
        if (token >= f->options.tokens || piece.length == 0 || piece.length > end - at ||
            memcmp(bytes + at, piece.data, piece.length) != 0 ||
            !sl_grammar_vocabulary_is_text(f->options.vocabulary, token)) {
            return;
        }
        f->tokens[f->count++] = token;
        at += piece.length;
    }
}

void sl_forced_begin(sl_forced *f, sl_matcher *matcher) {
    sl_error ignored;
    char bytes[MOST_BYTES];
    f->count = f->taken = 0;
    if (f->thought && sl_thought_is_over(f->thought)) {
        int32_t count;
        const int32_t *closing = sl_thought_closing(f->thought, &count);
        f->count = count < MOST_TOKENS ? count : MOST_TOKENS;
        memcpy(f->tokens, closing, (size_t)f->count * sizeof *closing);
    } else if (matcher && f->options.tokenizer) {
        const int count = sl_matcher_forced_bytes(matcher, bytes, MOST_BYTES, &ignored);
        const size_t whole = count > 0 ? whole_characters(bytes, (size_t)count) : 0;
        if (whole >= LEAST_BYTES) {
            force_text(f, bytes, whole);
        }
    }
}

void sl_forced_take(sl_forced *f, int32_t token, sl_matcher *matcher) {
    const bool expected = sl_forced_next(f) == token;
    f->taken += expected;
    if (f->thought) {
        sl_thought_take(f->thought, token);
    }
    if (sl_forced_next(f) == SL_NONE) {
        sl_forced_begin(f, matcher);
    }
}
