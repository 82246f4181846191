/* Characters of UTF-8 text, counted and classified as Python's str does. */
#define _GNU_SOURCE
#include "chat/value.h"

#include <utf8proc.h>

bool sl_jinja_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

size_t sl_jinja_character(sl_view text, uint32_t *code_point) {
    size_t size = sl_utf8_decode(text.data, text.length, code_point);
    if (size == 0) {
        *code_point = 0xfffd;
        return 1;
    }
    return size;
}

size_t sl_jinja_last_character(sl_view text, uint32_t *code_point) {
    for (size_t size = 1; size <= 4 && size <= text.length; size++) {
        sl_view last = {text.data + text.length - size, size};
        if ((last.data[0] & 0xc0) != 0x80 && sl_utf8_decode(last.data, size, code_point) == size) {
            return size;
        }
    }
    *code_point = 0xfffd;
    return 1;
}

size_t sl_jinja_character_offset(sl_view text, size_t number) {
    size_t at = 0;
    while (number > 0 && at < text.length) {
        uint32_t code_point;
        at += sl_jinja_character((sl_view){text.data + at, text.length - at}, &code_point);
        number--;
    }
    return at;
}

size_t sl_jinja_count_characters(sl_view text) {
    size_t count = 0;
    for (size_t at = 0; at < text.length; count++) {
        uint32_t code_point;
        at += sl_jinja_character((sl_view){text.data + at, text.length - at}, &code_point);
    }
    return count;
}

size_t sl_jinja_find(sl_view text, sl_view part, size_t from) {
    if (from > text.length || part.length > text.length - from) {
        return SIZE_MAX;
    }
    if (part.length == 0) {
        return from;
    }
    const char *found = memmem(text.data + from, text.length - from, part.data, part.length);
    return found ? (size_t)(found - text.data) : SIZE_MAX;
}

static bool stripped(sl_view character, uint32_t code_point, sl_view set) {
    return set.data ? sl_jinja_find(set, character, 0) != SIZE_MAX : sl_jinja_is_space(code_point);
}

uint64_t sl_jinja_strip_steps(sl_view text, sl_view set) {
    return text.length / (set.data ? 4 : 16) + text.length * (uint64_t)(set.length / 64);
}

sl_view sl_jinja_strip(sl_view text, sl_view set, int ends) {
    uint32_t c;
    while ((ends & 1) && text.length) {
        size_t size = sl_jinja_character(text, &c);
        if (!stripped((sl_view){text.data, size}, c, set)) {
            break;
        }
        text.data += size;
        text.length -= size;
    }
    while ((ends & 2) && text.length) {
        size_t size = sl_jinja_last_character(text, &c);
        if (!stripped((sl_view){text.data + text.length - size, size}, c, set)) {
            break;
        }
        text.length -= size;
    }
    return text;
}

static bool has_case(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

static bool ends_word(uint32_t c) {
    return sl_jinja_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

static int emit_cased(sl_jinja *state, uint32_t c, sl_jinja_case how) {
    utf8proc_int32_t code_point = (utf8proc_int32_t)c;
    if (how == SL_JINJA_SWAP_CASE) {
        how = utf8proc_category(code_point) == UTF8PROC_CATEGORY_LU ? SL_JINJA_LOWER : SL_JINJA_UPPER;
    }
    if (c == 0xdf && how != SL_JINJA_LOWER) { /* the one full mapping that is common: sharp s */
        return sl_jinja_emit_text(state, how == SL_JINJA_UPPER ? "SS" : "Ss");
    }
    utf8proc_int32_t mapped = how == SL_JINJA_LOWER   ? utf8proc_tolower(code_point)
                              : how == SL_JINJA_UPPER ? utf8proc_toupper(code_point)
                                                      : utf8proc_totitle(code_point);
    char bytes[4];
    return sl_jinja_emit(state, bytes, sl_utf8_encode((uint32_t)mapped, bytes));
}

int sl_jinja_change_case(sl_jinja *state, sl_view text, sl_jinja_case style, sl_jinja_value *result) {
    size_t mark = state->out->length;
    bool start = true;
    if (sl_jinja_spend(state, text.length / 4)) {
        return state->code;
    }
    while (text.length) {
        uint32_t c;
        size_t size = sl_jinja_character(text, &c);
        sl_jinja_case how = style;
        if (style == SL_JINJA_CAPITALIZE || style == SL_JINJA_TITLE) {
            how = start ? SL_JINJA_TITLE : SL_JINJA_LOWER;
        } else if (style == SL_JINJA_TITLE_WORDS) {
            how = start ? SL_JINJA_UPPER : SL_JINJA_LOWER;
        }
        if (emit_cased(state, c, how)) {
            return state->code;
        }
        start = style == SL_JINJA_TITLE ? !has_case(c) : style == SL_JINJA_TITLE_WORDS && ends_word(c);
        text.data += size;
        text.length -= size;
    }
    return sl_jinja_capture(state, mark, result);
}
