/* How values print: Python's str and repr, and json.dumps. */
#include "chat/value.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* The shortest digits that read back as the same value, as CPython's float_repr: fixed for exponents -4
 * to 15. */
void sl_jinja_float_text(double value, char out[40]) {
    if (isnan(value) || isinf(value)) {
        strcpy(out, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    char scientific[40] = "", digits[20];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(scientific, sizeof scientific, "%.*e", precision, value);
        if (strtod(scientific, NULL) == value) {
            break;
        }
    }
    size_t count = 0;
    const char *at = scientific;
    for (; *at != 'e'; at++) { /* skips the sign and whatever the locale's decimal point is */
        if (*at >= '0' && *at <= '9' && count < 17) {
            digits[count++] = *at;
        }
    }
    int exponent = atoi(at + 1);
    while (count > 1 && digits[count - 1] == '0') {
        count--;
    }
    char *to = out;
    if (signbit(value)) {
        *to++ = '-';
    }
    int length = (int)count;
    if (exponent < -4 || exponent >= 16) {
        sprintf(to, "%c%s%.*se%c%02d", digits[0], length > 1 ? "." : "", length - 1, digits + 1,
                exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        sprintf(to, "0.%.*s%.*s", -exponent - 1, "000", length, digits);
    } else if (length <= exponent + 1) {
        sprintf(to, "%.*s%.*s.0", length, digits, exponent + 1 - length, "0000000000000000");
    } else {
        sprintf(to, "%.*s.%.*s", exponent + 1, digits, length - exponent - 1, digits + exponent + 1);
    }
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool sl_jinja_parse_float(sl_view text, double *result) {
    char copy[400];
    size_t length = 0;
    bool digits = false;
    text = sl_jinja_strip(text, (sl_view){0}, 3);
    for (size_t i = 0; i < text.length; i++) {
        char c = text.data[i];
        if (length + 1 >= sizeof copy) {
            return false;
        }
        if (c == '_') { /* only between digits */
            if (i == 0 || i + 1 == text.length || !is_digit(text.data[i - 1]) ||
                !is_digit(text.data[i + 1])) {
                return false;
            }
            continue;
        }
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (c == 'x' || c == 'X' || c == 'p' || c == 'P' ||
            !(letter || is_digit(c) || c == '+' || c == '-' || c == '.')) {
            return false;
        }
        digits = digits || is_digit(c) || letter;
        copy[length++] = c == '.' ? localeconv()->decimal_point[0] : c;
    }
    copy[length] = 0;
    char *end;
    *result = strtod(copy, &end);
    return digits && length > 0 && *end == 0;
}

static int emit_character_escape(sl_jinja *state, uint32_t c, bool json) {
    char text[16];
    if (c > 0xffff && json) {
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                 0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
        snprintf(text, sizeof text, json || c > 0xff ? c > 0xffff ? "\\U%08x" : "\\u%04x" : "\\x%02x", c);
    }
    return sl_jinja_emit_text(state, text);
}

static bool printable(uint32_t c) {
    if (c < 0x7f) {
        return c >= 0x20;
    }
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

/* Emits text between quotes. special: pairs of a character and the letter that stands for it after a
 * backslash. */
static int emit_quoted(sl_jinja *state, sl_view text, char quote, const char *special, bool json,
                       bool ascii) {
    if (sl_jinja_spend(state, text.length / 4) || sl_jinja_emit(state, &quote, 1)) {
        return state->code;
    }
    size_t start = 0, at = 0;
    while (at < text.length) {
        uint32_t c;
        size_t size = sl_jinja_character((sl_view){text.data + at, text.length - at}, &c);
        const char *letter = NULL;
        for (const char *pair = special; *pair && !letter; pair += 2) {
            letter = (uint32_t)*pair == c ? pair + 1 : NULL;
        }
        bool plain = json ? c >= 0x20 && (!ascii || c < 0x7f) : printable(c);
        if (plain && !letter && c != (uint32_t)quote) {
            at += size;
            continue;
        }
        char pair[2] = {'\\', letter ? *letter : quote};
        if (sl_jinja_emit(state, text.data + start, at - start) ||
            (letter || c == (uint32_t)quote ? sl_jinja_emit(state, pair, 2)
                                            : emit_character_escape(state, c, json))) {
            return state->code;
        }
        at += size;
        start = at;
    }
    if (sl_jinja_emit(state, text.data + start, at - start)) {
        return state->code;
    }
    return sl_jinja_emit(state, &quote, 1);
}

static int emit_items(sl_jinja *state, const sl_jinja_list *list, const char *open, const char *close) {
    if (sl_jinja_emit_text(state, open)) {
        return state->code;
    }
    for (size_t i = 0; i < list->count; i++) {
        if ((i && sl_jinja_emit_text(state, ", ")) || sl_jinja_emit_repr(state, list->items[i])) {
            return state->code;
        }
    }
    return sl_jinja_emit_text(state, close);
}

static int emit_dict(sl_jinja *state, const sl_jinja_dict *dict) {
    if (sl_jinja_emit_text(state, "{")) {
        return state->code;
    }
    for (size_t i = 0; i < dict->count; i++) {
        if ((i && sl_jinja_emit_text(state, ", ")) || sl_jinja_emit_repr(state, dict->entries[i].key) ||
            sl_jinja_emit_text(state, ": ") || sl_jinja_emit_repr(state, dict->entries[i].value)) {
            return state->code;
        }
    }
    return sl_jinja_emit_text(state, "}");
}

static int emit_container(sl_jinja *state, sl_jinja_value value) {
    switch (value.kind) {
    case SL_JINJA_LIST:
        return emit_items(state, value.list, "[", "]");
    case SL_JINJA_TUPLE:
        return emit_items(state, value.list, "(", value.list->count == 1 ? ",)" : ")");
    case SL_JINJA_VIEW:
        if (sl_jinja_emit_text(state, value.list->label)) {
            return state->code;
        }
        return emit_items(state, value.list, "([", "])");
    case SL_JINJA_DICT:
        return emit_dict(state, value.dict);
    default: /* a namespace */
        if (sl_jinja_emit_text(state, "<Namespace ") || emit_dict(state, value.dict)) {
            return state->code;
        }
        return sl_jinja_emit_text(state, ">");
    }
}

static int emit_range(sl_jinja *state, const sl_jinja_list *list) {
    char text[80];
    snprintf(text, sizeof text, list->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
             (long long)list->start, (long long)list->stop, (long long)list->step);
    return sl_jinja_emit_text(state, text);
}

int sl_jinja_emit_repr(sl_jinja *state, sl_jinja_value value) {
    char text[80];
    if (sl_jinja_spend(state, value.kind == SL_JINJA_FLOAT ? SL_JINJA_FLOAT_STEPS : 2)) {
        return state->code;
    }
    switch (value.kind) {
    case SL_JINJA_NONE:
        return sl_jinja_emit_text(state, "None");
    case SL_JINJA_BOOL:
        return sl_jinja_emit_text(state, value.boolean ? "True" : "False");
    case SL_JINJA_INT:
        snprintf(text, sizeof text, "%lld", (long long)value.integer);
        return sl_jinja_emit_text(state, text);
    case SL_JINJA_FLOAT:
        sl_jinja_float_text(value.real, text);
        return sl_jinja_emit_text(state, text);
    case SL_JINJA_STRING: {
        sl_view view = sl_jinja_view(value);
        bool single = view.length && memchr(view.data, '\'', view.length);
        bool both = single && memchr(view.data, '"', view.length);
        return emit_quoted(state, view, single && !both ? '"' : '\'', "\\\\\nn\rr\tt", false, false);
    }
    case SL_JINJA_RANGE:
        return emit_range(state, value.list);
    case SL_JINJA_LIST:
    case SL_JINJA_TUPLE:
    case SL_JINJA_VIEW:
    case SL_JINJA_DICT:
    case SL_JINJA_NAMESPACE: {
        if (sl_jinja_enter(state)) {
            return state->code;
        }
        int code = emit_container(state, value);
        sl_jinja_leave(state);
        return code;
    }
    case SL_JINJA_MISSING:
    case SL_JINJA_UNDEFINED:
        return sl_jinja_emit_text(state, "Undefined");
    default:
        snprintf(text, sizeof text, "<%s>", sl_jinja_type_name(value));
        return sl_jinja_emit_text(state, text);
    }
}

int sl_jinja_emit_str(sl_jinja *state, sl_jinja_value value) {
    if (value.kind == SL_JINJA_STRING) {
        return sl_jinja_emit(state, value.text, value.length);
    }
    return value.kind == SL_JINJA_UNDEFINED ? 0 : sl_jinja_emit_repr(state, value);
}

int sl_jinja_str(sl_jinja *state, sl_jinja_value value, sl_jinja_value *result) {
    if (value.kind == SL_JINJA_STRING) {
        *result = value;
        return 0;
    }
    size_t mark = state->out->length;
    if (sl_jinja_emit_str(state, value)) {
        return state->code;
    }
    return sl_jinja_capture(state, mark, result);
}

/* ---- json.dumps ---- */

static int emit_json(sl_jinja *state, sl_jinja_value value, const sl_jinja_json_style *style, unsigned level);

static int emit_new_line(sl_jinja *state, const sl_jinja_json_style *style, unsigned level) {
    if (!style->lines) {
        return 0;
    }
    if (sl_jinja_emit_text(state, "\n")) {
        return state->code;
    }
    for (unsigned i = 0; i < level; i++) {
        if (sl_jinja_emit(state, style->indent.data, style->indent.length)) {
            return state->code;
        }
    }
    return 0;
}

static int emit_json_string(sl_jinja *state, sl_view text, const sl_jinja_json_style *style) {
    return emit_quoted(state, text, '"', "\\\\\nn\rr\tt\bb\ff", true, style->ensure_ascii);
}

static int emit_json_list(sl_jinja *state, const sl_jinja_list *list, const sl_jinja_json_style *style,
                          unsigned level) {
    if (list->count == 0) {
        return sl_jinja_emit_text(state, "[]");
    }
    for (size_t i = 0; i < list->count; i++) {
        sl_view before = i ? style->item_separator : sl_view_of("[");
        if (sl_jinja_emit(state, before.data, before.length) || emit_new_line(state, style, level + 1) ||
            emit_json(state, list->items[i], style, level + 1)) {
            return state->code;
        }
    }
    return emit_new_line(state, style, level) || sl_jinja_emit_text(state, "]") ? state->code : 0;
}

static int emit_json_number(sl_jinja *state, sl_jinja_value value) {
    if (value.kind == SL_JINJA_FLOAT && !isfinite(value.real)) {
        return sl_jinja_emit_text(state, isnan(value.real) ? "NaN"
                                         : value.real < 0  ? "-Infinity"
                                                           : "Infinity");
    }
    if (value.kind == SL_JINJA_BOOL) {
        return sl_jinja_emit_text(state, value.boolean ? "true" : "false");
    }
    return sl_jinja_emit_repr(state, value);
}

/* Keys that are no strings are written as strings; a tuple is refused. */
static int emit_json_key(sl_jinja *state, sl_jinja_value key, const sl_jinja_json_style *style) {
    if (key.kind == SL_JINJA_STRING) {
        return emit_json_string(state, sl_jinja_view(key), style);
    }
    if (key.kind != SL_JINJA_NONE && !sl_jinja_is_number(key)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "tojson: a key cannot be a %s", sl_jinja_type_name(key));
    }
    if (sl_jinja_emit_text(state, "\"") ||
        (key.kind == SL_JINJA_NONE ? sl_jinja_emit_text(state, "null") : emit_json_number(state, key))) {
        return state->code;
    }
    return sl_jinja_emit_text(state, "\"");
}

static int emit_json_dict(sl_jinja *state, const sl_jinja_dict *dict, const sl_jinja_json_style *style,
                          unsigned level) {
    if (dict->count == 0) {
        return sl_jinja_emit_text(state, "{}");
    }
    sl_jinja_entry *entries = dict->entries;
    if (style->sort_keys && sl_jinja_sorted_entries(state, dict, &(sl_jinja_order){0}, &entries)) {
        return state->code;
    }
    for (size_t i = 0; i < dict->count; i++) {
        sl_view before = i ? style->item_separator : sl_view_of("{");
        if (sl_jinja_emit(state, before.data, before.length) || emit_new_line(state, style, level + 1) ||
            emit_json_key(state, entries[i].key, style) ||
            sl_jinja_emit(state, style->key_separator.data, style->key_separator.length) ||
            emit_json(state, entries[i].value, style, level + 1)) {
            return state->code;
        }
    }
    return emit_new_line(state, style, level) || sl_jinja_emit_text(state, "}") ? state->code : 0;
}

static int emit_json(sl_jinja *state, sl_jinja_value value, const sl_jinja_json_style *style,
                     unsigned level) {
    if (sl_jinja_spend(state, 1)) {
        return state->code;
    }
    if (value.kind == SL_JINJA_NONE) {
        return sl_jinja_emit_text(state, "null");
    }
    if (value.kind == SL_JINJA_STRING) {
        return emit_json_string(state, sl_jinja_view(value), style);
    }
    if (sl_jinja_is_number(value)) {
        return emit_json_number(state, value);
    }
    if (value.kind != SL_JINJA_LIST && value.kind != SL_JINJA_TUPLE && value.kind != SL_JINJA_DICT) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "tojson: a value of type %s has no JSON form",
                             sl_jinja_type_name(value));
    }
    if (sl_jinja_enter(state)) {
        return state->code;
    }
    int code = value.kind == SL_JINJA_DICT ? emit_json_dict(state, value.dict, style, level)
                                           : emit_json_list(state, value.list, style, level);
    sl_jinja_leave(state);
    return code;
}

int sl_jinja_emit_json(sl_jinja *state, sl_jinja_value value, const sl_jinja_json_style *style) {
    return emit_json(state, value, style, 0);
}
