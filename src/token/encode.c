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
    sl_view mark; /* length 0: there are none */
    sl_buffer plain;
} encoder;

static bool is_mark(sl_view mark, sl_view text, size_t at) {
    return mark.length > 0 && mark.length <= text.length - at &&
           memcmp(text.data + at, mark.data, mark.length) == 0;
}

/* Where the text goes on behind marks. */
static size_t skip_marks(sl_view mark, sl_view text, size_t at) {
    while (is_mark(mark, text, at)) {
        at += mark.length;
    }
    return at;
}

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

/* The text without marks: itself, or in the encoder's buffer. */
static int remove_marks(encoder *self, sl_view *text) {
    sl_buffer_clear(&self->plain);
    size_t begin = 0;
    for (size_t at = 0; self->mark.length > 0 && at < text->length;) {
        const size_t next = skip_marks(self->mark, *text, at);
        if (next > at) {
            sl_buffer_append(&self->plain, text->data + begin, at - begin);
            begin = next;
        }
        at = next > at ? next : at + 1;
    }
    if (begin > 0) {
        sl_buffer_append(&self->plain, text->data + begin, text->length - begin);
        *text = (sl_view){self->plain.data, self->plain.length};
    }
    return self->plain.failed ? SL_ERR_NOMEM : 0;
}

/* Text without added tokens, normalised already. */
static int encode_plain(encoder *self, sl_view text, bool at_start) {
    const sl_tokenizer *tokenizer = self->tokenizer;
    sl_view prepared;
    if (remove_marks(self, &text)) {
        return fail(self, SL_ERR_NOMEM, text.length);
    }
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

/* The longest added token that begins at `at` and may be taken; NULL when there is none. A special one has no
 * mark in it, nor right behind it: a mark behind its only character would be there. */
static const sl_added_token *match_added(const encoder *self, const sl_trie *trie, sl_view text, size_t at,
                                         size_t *size) {
    const sl_added_token *best = NULL;
    bool marked = false;
    uint32_t node = trie->first[(unsigned char)text.data[at]];
    for (size_t end = at + 1; node;) {
        const size_t next = skip_marks(self->mark, text, end);
        marked |= next > end;
        int32_t entry = trie->nodes[node].entry;
        if (entry >= 0) {
            const sl_added_token *added = &self->tokenizer->added[entry];
            bool allowed = (!added->special || ((self->flags & SL_TOKENIZE_SPECIAL) && !marked)) &&
                           (!added->single_word || (!word_before(text, at) && !word_after(text, next)));
            if (allowed) {
                best = added;
                *size = end - at;
            }
        }
        if (next >= text.length) {
            break;
        }
        node = sl_trie_child(trie, node, text.data[next]);
        end = next + 1;
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

/* text[begin .. end), without marks at its ends, to `function` unless nothing is left. */
static int hand_on(encoder *self, sl_view text, size_t begin, size_t end, bool at_start,
                   segment_function function) {
    const sl_view mark = self->mark;
    sl_view part = {text.data, end};
    at_start = at_start && begin == 0;
    begin = skip_marks(mark, part, begin);
    while (part.length - begin >= mark.length && is_mark(mark, part, part.length - mark.length)) {
        part.length -= mark.length;
    }
    return part.length > begin ? function(self, (sl_view){text.data + begin, part.length - begin}, at_start)
                               : 0;
}

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
        int code = hand_on(self, text, begin, start, at_start, function);
        if (code) {
            return code;
        }
        if (sl_tokens_append(self->out, added->id)) {
            return fail(self, SL_ERR_NOMEM, text.length);
        }
        begin = at = end;
    }
    return hand_on(self, text, begin, text.length, at_start, function);
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

int sl_tokenizer_encode_marked(const sl_tokenizer *tokenizer, sl_view text, sl_view mark, unsigned flags,
                               sl_tokens *out, sl_error *error) {
    if (text.length > SL_TOKENIZER_MAX_TEXT) {
        return sl_fail(error, SL_ERR_LIMIT, "a text of %zu bytes: at most %zu are accepted", text.length,
                       SL_TOKENIZER_MAX_TEXT);
    }
    encoder self = {.tokenizer = tokenizer, .flags = flags, .out = out, .error = error, .mark = mark};
    self.splitter.tokenizer = tokenizer;
    size_t before = out->count;
    int code = 0;
    if ((flags & SL_TOKENIZE_BOS) && tokenizer->add_bos && sl_tokens_append(out, tokenizer->bos)) {
        code = fail(&self, SL_ERR_NOMEM, text.length);
    }
    if (code == 0 && text.length > 0) {
        code = cut_added(&self, &tokenizer->raw, text, true, encode_raw);
    }
    if (code == 0 && (flags & SL_TOKENIZE_END) && tokenizer->closing >= 0 &&
        sl_tokens_append(out, tokenizer->closing)) {
        code = fail(&self, SL_ERR_NOMEM, text.length);
    }
    if (code) {
        out->count = before;
    }
    sl_merger_free(&self.merger);
    sl_splitter_free(&self.splitter);
    sl_buffer_free(&self.plain);
    for (int i = 0; i < 2; i++) {
        sl_buffer_free(&self.normalizer[i]);
        sl_buffer_free(&self.prepare[i]);
    }
    return code;
}

int sl_tokenizer_encode(const sl_tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                        sl_tokens *out, sl_error *error) {
    return sl_tokenizer_encode_marked(tokenizer, (sl_view){text, length}, (sl_view){NULL, 0}, flags, out,
                                      error);
}

/* ---- marks
 * ------------------------------------------------------------------------------------------------------------
 */

/* Does a special token's text begin at `at`, or does the text end where one could go on? */
static bool begins_special(const sl_tokenizer *tokenizer, const sl_trie *trie, sl_view text, size_t at) {
    uint32_t node = trie->count ? trie->first[(unsigned char)text.data[at]] : 0;
    for (size_t end = at + 1; node; end++) {
        const sl_added_node *here = &trie->nodes[node];
        if (here->entry >= 0 && tokenizer->added[here->entry].special) {
            return true;
        }
        if (end == text.length) {
            return here->child != 0;
        }
        node = sl_trie_child(trie, node, text.data[end]);
    }
    return false;
}

void sl_tokenizer_mark_special(const sl_tokenizer *tokenizer, sl_view text, sl_view mark, sl_buffer *out) {
    size_t begin = 0;
    for (size_t at = 0; at < text.length;) {
        uint32_t character;
        const size_t size = sl_utf8_decode(text.data + at, text.length - at, &character);
        const bool found = begins_special(tokenizer, &tokenizer->raw, text, at) ||
                           begins_special(tokenizer, &tokenizer->normalized, text, at);
        at += size ? size : 1;
        if (found) {
            sl_buffer_append(out, text.data + begin, at - begin);
            sl_buffer_append(out, mark.data, mark.length);
            begin = at;
        }
    }
    sl_buffer_append(out, text.data + begin, text.length - begin);
}
