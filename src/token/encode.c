#include "token/internal.h"

#include "base/alloc.h"

/* Everything one call needs. */
typedef struct encoder {
    const sl_tokenizer *tokenizer;
    unsigned flags;
    sl_tokens *out;
    sl_error *error;
    sl_merger merger;
    sl_splitter splitter;
    sl_buffer normalizer[2], prepare[2];
} encoder;

static int fail(const encoder *self, int code, size_t length) {
    return sl_fail(self->error, code, "%s a text of %zu bytes",
                   code == SL_ERR_NOMEM ? "out of memory for" : "the tokenizer's normalizer inflates",
                   length);
}

static int encode_piece(void *context, sl_view piece) {
    encoder *self = context;
    int code = sl_merge_piece(&self->merger, self->tokenizer, piece, self->out);
    return code ? fail(self, code, piece.length) : 0;
}

/* Text without added tokens, normalised already. */
static int encode_plain(encoder *self, sl_view text, bool at_start) {
    const sl_tokenizer *tokenizer = self->tokenizer;
    sl_view prepared;
    int code = sl_text_steps_run(tokenizer->prepare, tokenizer->prepare_count, text, at_start, self->prepare,
                                 &prepared);
    if (code) {
        return fail(self, code, text.length);
    }
    return sl_split_run(&self->splitter, prepared, encode_piece, self, self->error);
}

/* ---- added tokens
 * ---------------------------------------------------------------------------------------------------- */

static bool word_before(sl_view text, size_t at) {
    size_t start = at;
    uint32_t c;
    while (start > 0 && at - start < 4) {
        start--;
        if (((unsigned char)text.data[start] & 0xc0) != 0x80) {
            break;
        }
    }
    return start < at && sl_utf8_decode(text.data + start, at - start, &c) == at - start && sl_is_word(c);
}

static bool word_after(sl_view text, size_t at) {
    uint32_t c;
    return at < text.length && sl_utf8_decode(text.data + at, text.length - at, &c) != 0 && sl_is_word(c);
}

/* The longest added token that begins at `at` and may be taken; NULL when there is none. */
static const sl_added_token *match_added(const encoder *self, const sl_trie *trie, sl_view text, size_t at,
                                         size_t *size) {
    const sl_added_token *best = NULL;
    uint32_t node = trie->first[(unsigned char)text.data[at]];
    for (size_t end = at + 1; node; end++) {
        int32_t entry = trie->nodes[node].entry;
        if (entry >= 0) {
            const sl_added_token *added = &self->tokenizer->added[entry];
            bool allowed = (!added->special || (self->flags & SL_TOKENIZE_SPECIAL)) &&
                           (!added->single_word || (!word_before(text, at) && !word_after(text, end)));
            if (allowed) {
                best = added;
                *size = end - at;
            }
        }
        if (end >= text.length) {
            break;
        }
        node = trie->nodes[node].child;
        while (node && trie->nodes[node].byte != (unsigned char)text.data[end]) {
            node = trie->nodes[node].sibling;
        }
    }
    return best;
}

static size_t spaces_before(sl_view text, size_t from, size_t at) {
    while (at > from) {
        size_t start = at - 1;
        while (start > from && ((unsigned char)text.data[start] & 0xc0) == 0x80 && at - start < 4) {
            start--;
        }
        uint32_t c;
        if (sl_utf8_decode(text.data + start, at - start, &c) != at - start || !sl_is_space(c)) {
            break;
        }
        at = start;
    }
    return at;
}

static size_t spaces_after(sl_view text, size_t at) {
    uint32_t c;
    size_t size;
    while (at < text.length && (size = sl_utf8_decode(text.data + at, text.length - at, &c)) != 0 &&
           sl_is_space(c)) {
        at += size;
    }
    return at;
}

typedef int (*segment_function)(encoder *self, sl_view text, bool at_start);

/* Cuts the added tokens of one trie out of `text`, leftmost and longest first, and hands what lies between to
 * `function`. */
static int cut_added(encoder *self, const sl_trie *trie, sl_view text, bool at_start,
                     segment_function function) {
    size_t begin = 0, at = 0;
    while (at < text.length) {
        size_t size = 0;
        const sl_added_token *added = trie->count && trie->first[(unsigned char)text.data[at]]
                                          ? match_added(self, trie, text, at, &size)
                                          : NULL;
        if (!added) {
            at++;
            continue;
        }
        size_t start = added->strip_left ? spaces_before(text, begin, at) : at;
        size_t end = added->strip_right ? spaces_after(text, at + size) : at + size;
        int code = start > begin
                       ? function(self, (sl_view){text.data + begin, start - begin}, at_start && begin == 0)
                       : 0;
        if (code) {
            return code;
        }
        if (sl_tokens_append(self->out, added->id)) {
            return fail(self, SL_ERR_NOMEM, text.length);
        }
        begin = at = end;
    }
    return begin < text.length
               ? function(self, (sl_view){text.data + begin, text.length - begin}, at_start && begin == 0)
               : 0;
}

static int encode_raw(encoder *self, sl_view text, bool at_start) {
    const sl_tokenizer *tokenizer = self->tokenizer;
    sl_view normalized;
    int code = sl_text_steps_run(tokenizer->normalizer, tokenizer->normalizer_count, text, at_start,
                                 self->normalizer, &normalized);
    if (code) {
        return fail(self, code, text.length);
    }
    return cut_added(self, &tokenizer->normalized, normalized, at_start, encode_plain);
}

int sl_tokenizer_encode(const sl_tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                        sl_tokens *out, sl_error *error) {
    if (length > SL_TOKENIZER_MAX_TEXT) {
        return sl_fail(error, SL_ERR_LIMIT, "a text of %zu bytes: at most %zu are accepted", length,
                       SL_TOKENIZER_MAX_TEXT);
    }
    encoder self = {.tokenizer = tokenizer, .flags = flags, .out = out, .error = error};
    self.splitter.tokenizer = tokenizer;
    size_t before = out->count;
    int code = 0;
    if ((flags & SL_TOKENIZE_BOS) && tokenizer->add_bos && sl_tokens_append(out, tokenizer->bos)) {
        code = fail(&self, SL_ERR_NOMEM, length);
    }
    if (code == 0 && length > 0) {
        code = cut_added(&self, &tokenizer->raw, (sl_view){text, length}, true, encode_raw);
    }
    if (code) {
        out->count = before;
    }
    sl_merger_free(&self.merger);
    sl_splitter_free(&self.splitter);
    for (int i = 0; i < 2; i++) {
        sl_buffer_free(&self.normalizer[i]);
        sl_buffer_free(&self.prepare[i]);
    }
    return code;
}
