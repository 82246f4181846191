#include "chat/reply_literal.h"

#include "chat/reply_formats.h"

#include <string.h>

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool in_run(char kind, char c) {
    return kind == '\1' ? is_digit(c) : kind == '\2' ? is_digit(c) || is_letter(c) : is_blank(c);
}

/* U+FFFD at the end: what decoders give of a character that a limit cut. */
static bool is_cut_character(sl_view bytes, size_t at) {
    return bytes.length - at == 3 && memcmp(bytes.data + at, "\xef\xbf\xbd", 3) == 0;
}

long sl_mark_match(const char *mark, sl_view bytes) {
    size_t at = 0;
    for (; *mark; mark++) {
        if (is_blank(*mark) && !mark[1]) {
            break; /* blanks behind a mark are left to what follows it */
        }
        if (*mark == '\1' || *mark == '\2' || *mark == '\3' || is_blank(*mark)) {
            while (at < bytes.length && in_run(*mark, bytes.data[at])) {
                at++;
            }
            if (at == bytes.length) {
                return -1; /* more of the run may come */
            }
        } else if (at == bytes.length || ((unsigned char)*mark >= 0xc0 && is_cut_character(bytes, at))) {
            return -1;
        } else if (bytes.data[at++] != *mark) {
            return 0;
        }
    }
    return (long)at;
}

void sl_literal_escape(sl_view bytes, sl_buffer *out) {
    size_t from = 0;
    for (size_t i = 0; i < bytes.length; i++) {
        const unsigned char c = (unsigned char)bytes.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        sl_buffer_append(out, bytes.data + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\') {
            sl_buffer_printf(out, "\\%c", c);
        } else if (c == '\n' || c == '\t' || c == '\r') {
            sl_buffer_printf(out, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        } else {
            sl_buffer_printf(out, "\\u%04x", c);
        }
    }
    sl_buffer_append(out, bytes.data + from, bytes.length - from);
}

/* ---- structure ---- */

static void open_bracket(sl_literal *l, char bracket, sl_buffer *out) {
    l->depth++;
    l->opens[l->depth] = bracket;
    l->is_key[l->depth] = bracket == '{';
    l->has_items[l->depth] = l->wants_value[l->depth] = false;
    sl_buffer_append(out, &bracket, 1);
}

void sl_literal_begin(sl_literal *l, bool inside, sl_buffer *out) {
    l->depth = 0;
    l->done = false;
    l->string = 0;
    l->opens[0] = '[';
    l->is_key[0] = l->has_items[0] = l->wants_value[0] = false;
    if (inside) {
        open_bracket(l, '{', out);
    }
}

/* What stands in front of a name or a value. */
static void begin_item(sl_literal *l, sl_buffer *out) {
    const int d = l->depth;
    if (d > 0 && l->has_items[d] && !l->wants_value[d]) {
        sl_buffer_text(out, ", ");
    }
    l->has_items[d] = true;
}

/* Behind a name stands ":" even if none was written. */
static void end_item(sl_literal *l, sl_buffer *out) {
    const int d = l->depth;
    if (d > 0 && l->opens[d] == '{' && l->is_key[d]) {
        sl_buffer_text(out, ": ");
        l->is_key[d] = false;
        l->wants_value[d] = true;
    } else if (d > 0) {
        l->is_key[d] = l->opens[d] == '{';
        l->wants_value[d] = false;
    }
    l->done = d == 0;
}

static void close_bracket(sl_literal *l, sl_buffer *out) {
    if (l->wants_value[l->depth]) {
        sl_buffer_text(out, "null");
    }
    sl_buffer_text(out, l->opens[l->depth] == '{' ? "}" : "]");
    l->depth--;
    end_item(l, out);
}

void sl_literal_close(sl_literal *l, sl_buffer *out) {
    if (l->string) {
        sl_buffer_text(out, "\"");
        l->string = 0;
        end_item(l, out);
    }
    while (l->depth > 0) {
        close_bracket(l, out);
    }
}

/* ---- words ---- */

/* RFC 8259, section 6. */
static bool is_number(sl_view w) {
    size_t i = w.length > 0 && w.data[0] == '-', digits = 0;
    const size_t first = i;
    for (; i < w.length && is_digit(w.data[i]); i++) {
        digits++;
    }
    if (digits == 0 || (digits > 1 && w.data[first] == '0')) {
        return false;
    }
    if (i < w.length && w.data[i] == '.') {
        for (digits = 0, i++; i < w.length && is_digit(w.data[i]); i++) {
            digits++;
        }
        if (digits == 0) {
            return false;
        }
    }
    if (i < w.length && (w.data[i] == 'e' || w.data[i] == 'E')) {
        i += 1 + (i + 1 < w.length && (w.data[i + 1] == '+' || w.data[i + 1] == '-'));
        for (digits = 0; i < w.length && is_digit(w.data[i]); i++) {
            digits++;
        }
        if (digits == 0) {
            return false;
        }
    }
    return i == w.length;
}

static void write_word(sl_literal *l, sl_view w, sl_buffer *out) {
    static const char *const WORDS[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                           {"False", "false"}, {"null", "null"}, {"None", "null"}};
    const bool key = l->depth > 0 && l->is_key[l->depth];
    begin_item(l, out);
    for (size_t i = 0; !key && i < sizeof WORDS / sizeof *WORDS; i++) {
        if (sl_view_is(w, WORDS[i][0])) {
            sl_buffer_text(out, WORDS[i][1]);
            end_item(l, out);
            return;
        }
    }
    if (!key && is_number(w)) {
        sl_buffer_append(out, w.data, w.length);
    } else {
        sl_buffer_text(out, "\"");
        sl_literal_escape(w, out);
        sl_buffer_text(out, "\"");
    }
    end_item(l, out);
}

static bool ends_word(const sl_literal *l, char c) {
    return is_blank(c) || strchr(",:[]{}()\"'", c) || (unsigned char)c >= SL_REPLY_FRAME_CLOSE ||
           (c == '=' && l->assigns && l->depth == 1) || (l->stop && c == l->stop[0]) ||
           (l->quote && c == l->quote[0]);
}

/* ---- texts ---- */

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* An escape of JSON or Python at the beginning of the bytes. Returns its size; 0: the bytes end in it. */
static size_t write_escape(sl_view b, sl_buffer *out) {
    if (b.length < 2) {
        return 0;
    }
    const char c = b.data[1];
    const size_t digits = c == 'u' ? 4 : c == 'x' ? 2 : 0;
    for (size_t i = 0; i < digits; i++) {
        if (b.length <= 2 + i) {
            return 0;
        }
        if (!is_hex(b.data[2 + i])) {
            sl_buffer_text(out, "\\\\");
            return 1;
        }
    }
    if (digits) {
        sl_buffer_printf(out, "\\u%s%.*s", digits == 2 ? "00" : "", (int)digits, b.data + 2);
    } else if (c && strchr("\"\\/bfnrt", c)) {
        sl_buffer_append(out, b.data, 2);
    } else if (c == '\'') {
        sl_buffer_text(out, "'");
    } else if (c != '\n') { /* Python goes on behind it; other escapes stand for themselves */
        sl_buffer_text(out, "\\\\");
        return 1;
    }
    return 2 + digits;
}

static void end_string(sl_literal *l, sl_buffer *out) {
    sl_buffer_text(out, "\"");
    l->string = 0;
    end_item(l, out);
}

static sl_literal_state feed_string(sl_literal *l, sl_view b, size_t *used, sl_buffer *out) {
    size_t at = *used, from = at;
    while (at < b.length) {
        const char c = b.data[at];
        const sl_view rest = {b.data + at, b.length - at};
        size_t size = 0;
        if (l->string == 'q' && c == l->quote[0]) {
            const long match = sl_mark_match(l->quote, rest);
            if (match < 0) {
                break;
            }
            size = (size_t)match;
        }
        const bool ends = size > 0 || (l->string != 'q' && c == l->string);
        if (!ends && (unsigned char)c >= SL_REPLY_FRAME_CLOSE) {
            sl_literal_escape((sl_view){b.data + from, at - from}, out);
            *used = at;
            return SL_LITERAL_BROKEN;
        }
        if (!ends && (c != '\\' || l->string == 'q')) {
            at++;
            continue;
        }
        sl_literal_escape((sl_view){b.data + from, at - from}, out);
        from = at;
        if (ends) {
            *used = at + (size ? size : 1);
            end_string(l, out);
            return SL_LITERAL_MORE;
        }
        size = write_escape(rest, out);
        if (size == 0) {
            break;
        }
        at += size;
        from = at;
    }
    sl_literal_escape((sl_view){b.data + from, at - from}, out);
    *used = at;
    return SL_LITERAL_MORE;
}

/* ---- the whole ---- */

/* One character or word outside of texts. Returns its size; 0: more must come; -1: it is no part of it. */
static long step(sl_literal *l, sl_view b, sl_buffer *out) {
    const char c = b.data[0];
    if (l->quote && c == l->quote[0]) {
        const long match = sl_mark_match(l->quote, b);
        if (match != 0) {
            if (match > 0) {
                begin_item(l, out);
                sl_buffer_text(out, "\"");
                l->string = 'q';
            }
            return match > 0 ? match : 0;
        }
    }
    if ((unsigned char)c >= SL_REPLY_FRAME_CLOSE) {
        return -1;
    }
    if (l->stop && c == l->stop[0]) {
        const long match = sl_mark_match(l->stop, b);
        return match > 0 ? -1 : match < 0 ? 0 : 1;
    }
    switch (c) {
    case '"':
    case '\'':
        begin_item(l, out);
        sl_buffer_text(out, "\"");
        l->string = c;
        return 1;
    case '{':
    case '[':
    case '(':
        if (l->depth == SL_LITERAL_DEPTH) {
            return -1;
        }
        if (l->depth > 0 && l->is_key[l->depth]) {
            return 1; /* no name of JSON */
        }
        begin_item(l, out);
        open_bracket(l, c == '{' ? '{' : '[', out);
        return 1;
    case '}':
    case ']':
    case ')':
        if (l->depth == 0) {
            return -1;
        }
        close_bracket(l, out);
        return 1;
    case ',':
        if (l->wants_value[l->depth]) {
            sl_buffer_text(out, "null");
            end_item(l, out);
        }
        return 1;
    default:
        if (ends_word(l, c)) {
            return 1; /* white space, ":" and "=", which are written by themselves */
        }
    }
    size_t length = 1;
    while (length < b.length && !ends_word(l, b.data[length])) {
        length++;
    }
    if (length > SL_LITERAL_WORD) {
        return -1;
    }
    if (length == b.length) {
        return 0;
    }
    write_word(l, (sl_view){b.data, length}, out);
    return (long)length;
}

sl_literal_state sl_literal_feed(sl_literal *l, sl_view bytes, size_t *used, sl_buffer *out) {
    *used = 0;
    while (!l->done && *used < bytes.length) {
        if (l->string) {
            const size_t before = *used;
            if (feed_string(l, bytes, used, out) == SL_LITERAL_BROKEN) {
                return SL_LITERAL_BROKEN;
            }
            if (l->string || *used == before) {
                return SL_LITERAL_MORE;
            }
            continue;
        }
        const long size = step(l, (sl_view){bytes.data + *used, bytes.length - *used}, out);
        if (size < 0) {
            return SL_LITERAL_BROKEN;
        }
        if (size == 0) {
            return SL_LITERAL_MORE;
        }
        *used += (size_t)size;
    }
    return l->done ? SL_LITERAL_DONE : SL_LITERAL_MORE;
}
