/* WordPiece, as BERT's tokenization.py (google-research/bert) has it: clean the text, split it at blanks and
 * punctuation, and take the longest tokens of each word from its beginning on. */
#include "token/internal.h"

#include <utf8proc.h>

/* Words with more characters are unknown. */
enum { LONGEST_WORD = 100 };

/* BERT's blocks of CJK Unified Ideographs and their extensions. */
static bool is_ideograph(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void append_character(sl_buffer *out, uint32_t c) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t size = utf8proc_encode_char((utf8proc_int32_t)c, bytes);
    sl_buffer_append(out, (const char *)bytes, (size_t)size);
}

/* One character decomposed, without its marks, in lower case. */
static void append_lower(sl_buffer *out, uint32_t c) {
    enum { PARTS = 32 };
    utf8proc_int32_t parts[PARTS];
    int last = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char((utf8proc_int32_t)c, parts, PARTS, UTF8PROC_DECOMPOSE, &last);
    for (utf8proc_ssize_t i = 0; i < count && i < PARTS; i++) {
        if (utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN) {
            append_character(out, (uint32_t)utf8proc_tolower(parts[i]));
        }
    }
}

int sl_normalize_words(sl_view text, bool lower, sl_buffer *out) {
    for (size_t at = 0; at < text.length;) {
        uint32_t c;
        const size_t size = sl_utf8_decode(text.data + at, text.length - at, &c);
        at += size ? size : 1;
        const bool blank = size && (c == '\t' || c == '\n' || c == '\r' || sl_is_space(c));
        const utf8proc_category_t category = size ? utf8proc_category((utf8proc_int32_t)c) : 0;
        if (blank) {
            sl_buffer_text(out, " ");
        } else if (size == 0 || c == 0 || c == 0xFFFD || category == UTF8PROC_CATEGORY_CC ||
                   category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO ||
                   category == UTF8PROC_CATEGORY_CS || category == UTF8PROC_CATEGORY_CN) {
            continue;
        } else {
            const bool alone = is_ideograph(c);
            sl_buffer_text(out, alone ? " " : "");
            if (lower) {
                append_lower(out, c);
            } else {
                append_character(out, c);
            }
            sl_buffer_text(out, alone ? " " : "");
        }
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}

int sl_wordpiece_splits(sl_tokenizer *tokenizer, sl_error *error) {
    const int code = sl_split_add(tokenizer, sl_view_of("\\s+"), SL_SPLIT_REMOVED, error);
    return code ? code
                : sl_split_add(tokenizer, sl_view_of("[!-/:-@\\[-`{-~\\p{P}]"), SL_SPLIT_ISOLATED, error);
}

static size_t count_characters(sl_view text) {
    size_t count = 0;
    for (size_t i = 0; i < text.length; i++) {
        count += ((unsigned char)text.data[i] & 0xc0) != 0x80;
    }
    return count;
}

/* The longest plain token that begins at `at`; -1: there is none. */
static int32_t longest(const sl_tokenizer *tokenizer, sl_view word, size_t at, sl_buffer *key, size_t *end) {
    const sl_view prefix = at == 0 ? tokenizer->word_begin : tokenizer->word_inside;
    for (*end = word.length; *end > at; --*end) {
        if (*end < word.length && ((unsigned char)word.data[*end] & 0xc0) == 0x80) {
            continue; /* inside a character */
        }
        sl_buffer_clear(key);
        sl_buffer_append(key, prefix.data, prefix.length);
        sl_buffer_append(key, word.data + at, *end - at);
        const int32_t id = key->failed ? -1
                                       : sl_text_table_find(&tokenizer->by_text, tokenizer->tokens,
                                                            (sl_view){key->data, key->length});
        if (id >= 0 && sl_token_is_plain(&tokenizer->tokens[id])) {
            return id;
        }
    }
    return -1;
}

int sl_wordpiece(const sl_tokenizer *tokenizer, sl_view word, sl_tokens *out) {
    const size_t before = out->count;
    bool known = count_characters(word) <= LONGEST_WORD;
    sl_buffer key = {0};
    int code = 0;
    for (size_t at = 0, end; known && code == 0 && at < word.length; at = end) {
        const int32_t id = longest(tokenizer, word, at, &key, &end);
        known = id >= 0;
        code = known ? sl_tokens_append(out, id) : 0;
    }
    code = key.failed ? SL_ERR_NOMEM : code;
    sl_buffer_free(&key);
    if (code || known) {
        return code;
    }
    out->count = before;
    return tokenizer->unk >= 0 ? sl_tokens_append(out, tokenizer->unk) : 0;
}
