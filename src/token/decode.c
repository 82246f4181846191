#include "token/internal.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

void sl_detokenizer_begin(sl_detokenizer *detokenizer, const sl_tokenizer *tokenizer, unsigned flags) {
    *detokenizer = (sl_detokenizer){
        .tokenizer = tokenizer,
        .flags = flags,
        .strip = tokenizer->strip_start && !(flags & SL_DETOKENIZE_CONTINUE),
    };
}

/* May these bytes (1 to 3) go on to be one character? RFC 3629's table of second bytes. */
static bool is_prefix(const unsigned char *bytes, size_t length) {
    unsigned char first = bytes[0];
    size_t size = first >= 0xc2 && first <= 0xdf   ? 2
                  : (first & 0xf0) == 0xe0         ? 3
                  : first >= 0xf0 && first <= 0xf4 ? 4
                                                   : 0;
    if (length >= size) {
        return false;
    }
    if (length > 1) {
        unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        if (bytes[1] < low || bytes[1] > high) {
            return false;
        }
    }
    return length < 3 || (bytes[2] & 0xc0) == 0x80;
}

static void feed_byte(sl_detokenizer *self, unsigned char byte, sl_buffer *out) {
    if (self->pending_length == 0 && byte < 0x80) {
        sl_buffer_append(out, &byte, 1);
        return;
    }
    self->pending[self->pending_length++] = byte;
    uint32_t c;
    if (sl_utf8_decode((const char *)self->pending, self->pending_length, &c) == self->pending_length) {
        sl_buffer_append(out, self->pending, self->pending_length);
        self->pending_length = 0;
    } else if (!is_prefix(self->pending, self->pending_length)) {
        /* What was pending before this byte is a maximal part of a character; this byte begins anew, unless
         * it is the first and can begin nothing. */
        bool alone = self->pending_length == 1;
        sl_buffer_append(out, replacement, 3);
        self->pending_length = 0;
        if (!alone) {
            feed_byte(self, byte, out);
        }
    }
}

static void feed_framed(sl_detokenizer *self, sl_view bytes, sl_buffer *out) {
    static const unsigned char open = SL_FRAME_OPEN, close = SL_FRAME_CLOSE;
    if (self->pending_length > 0) {
        sl_buffer_append(out, replacement, 3);
        self->pending_length = 0;
    }
    sl_buffer_append(out, &open, 1);
    sl_buffer_append(out, bytes.data, bytes.length);
    sl_buffer_append(out, &close, 1);
}

static int feed(sl_detokenizer *self, int32_t id, sl_buffer *out) {
    const sl_token *token = &self->tokenizer->tokens[id];
    if ((self->flags & SL_DETOKENIZE_FRAME_SPECIAL) && token->type == SL_TOKEN_CONTROL) {
        feed_framed(self, token->bytes, out);
        return out->failed ? SL_ERR_NOMEM : 0;
    }
    if ((self->flags & SL_DETOKENIZE_SKIP_SPECIAL) &&
        (token->type == SL_TOKEN_CONTROL || token->type == SL_TOKEN_UNKNOWN)) {
        return 0;
    }
    sl_view bytes = token->bytes;
    if (bytes.length > 0 && self->strip) {
        self->strip = false;
        if (bytes.data[0] == ' ' &&
            (token->type == SL_TOKEN_NORMAL || token->type == SL_TOKEN_USER_DEFINED)) {
            bytes.data++;
            bytes.length--;
        }
    }
    for (size_t i = 0; i < bytes.length; i++) {
        feed_byte(self, (unsigned char)bytes.data[i], out);
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}

int sl_detokenizer_feed(sl_detokenizer *detokenizer, int32_t id, sl_buffer *out, sl_error *error) {
    if (id < 0 || (size_t)id >= detokenizer->tokenizer->count) {
        return sl_fail(error, SL_ERR_INVALID, "token id %d is outside the vocabulary of %zu", id,
                       detokenizer->tokenizer->count);
    }
    return feed(detokenizer, id, out) ? sl_fail(error, SL_ERR_NOMEM, "out of memory for decoded text") : 0;
}

int sl_detokenizer_flush(sl_detokenizer *detokenizer, sl_buffer *out, sl_error *error) {
    if (detokenizer->pending_length > 0) {
        sl_buffer_append(out, replacement, 3);
        detokenizer->pending_length = 0;
    }
    return out->failed ? sl_fail(error, SL_ERR_NOMEM, "out of memory for decoded text") : 0;
}

int sl_tokenizer_decode(const sl_tokenizer *tokenizer, const int32_t *ids, size_t count, unsigned flags,
                        sl_buffer *out, sl_error *error) {
    sl_detokenizer detokenizer;
    size_t before = out->length;
    sl_detokenizer_begin(&detokenizer, tokenizer, flags);
    int code = 0;
    for (size_t i = 0; i < count && code == 0; i++) {
        code = sl_detokenizer_feed(&detokenizer, ids[i], out, error);
    }
    if (code == 0) {
        code = sl_detokenizer_flush(&detokenizer, out, error);
    }
    if (code && out->data) {
        out->length = before;
        out->data[before] = 0;
    }
    return code;
}
