/* Global functions and the methods of strings, dicts, lists and loops. */
#include "chat/evaluator.h"

#include <stdio.h>
#include <utf8proc.h>

#define FUNCTION(name)                                                                                       \
    static int name(sl_jinja *state, const sl_jinja_call_frame *call, sl_jinja_value *result)

enum { RANGE_ITEMS = 100000 }; /* as the sandbox of jinja2 */

static bool given(sl_jinja_value value) {
    return value.kind != SL_JINJA_MISSING && value.kind != SL_JINJA_NONE;
}

static int wrong_argument(sl_jinja *state, const sl_jinja_call_frame *call, const char *rule) {
    return sl_jinja_fail(state, SL_ERR_INVALID, "%s() takes %s", call->row->name, rule);
}

/* ---- global functions ---- */

FUNCTION(function_range) {
    int64_t bounds[3] = {0, 0, 1};
    for (int i = 0; i < 3; i++) {
        if (call->bound[i + 1].kind != SL_JINJA_MISSING && !sl_jinja_as_int(call->bound[i + 1], &bounds[i])) {
            return wrong_argument(state, call, "integers");
        }
    }
    if (call->bound[2].kind == SL_JINJA_MISSING) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0) {
        return wrong_argument(state, call, "a step that is not 0");
    }
    uint64_t distance = step > 0 ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0)
                                 : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    uint64_t count = distance / stride + (distance % stride != 0);
    if (count > RANGE_ITEMS) {
        return sl_jinja_fail(state, SL_ERR_LIMIT, "range() gives more than %d items", RANGE_ITEMS);
    }
    if (sl_jinja_list_new(state, SL_JINJA_RANGE, (size_t)count, result)) {
        return state->code;
    }
    result->list->start = start;
    result->list->stop = stop;
    result->list->step = step;
    for (size_t i = 0; i < count; i++) {
        result->list->items[i] = sl_jinja_int((int64_t)((uint64_t)start + i * (uint64_t)step));
    }
    return 0;
}

/* detail: the kind to make, DICT or NAMESPACE. Arguments: at most one dict or list of pairs, then names. */
FUNCTION(function_dict) {
    const sl_jinja_arguments *raw = call->raw;
    if (sl_jinja_dict_new(state, (sl_jinja_kind)call->row->detail, result)) {
        return state->code;
    }
    if (raw->count > 1) {
        return wrong_argument(state, call, "one dict or list of pairs");
    }
    sl_jinja_list items = {0};
    bool copy = raw->count && raw->items[0].kind == SL_JINJA_DICT;
    if (raw->count && sl_jinja_iterate(state, raw->items[0], &items)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        sl_jinja_value key = items.items[i], value;
        if (copy) {
            value = raw->items[0].dict->entries[i].value;
        } else {
            sl_jinja_list pair;
            if (sl_jinja_iterate(state, items.items[i], &pair)) {
                return state->code;
            }
            if (pair.count != 2) {
                return wrong_argument(state, call, "pairs");
            }
            key = pair.items[0];
            value = pair.items[1];
        }
        if (sl_jinja_dict_set(state, result->dict, key, value)) {
            return state->code;
        }
    }
    for (size_t i = 0; i < raw->named_count; i++) {
        sl_jinja_value key = sl_jinja_text(raw->names[i].data, raw->names[i].length);
        if (sl_jinja_dict_set(state, result->dict, key, raw->named[i])) {
            return state->code;
        }
    }
    return 0;
}

FUNCTION(function_raise) {
    sl_jinja_value text;
    if (sl_jinja_str(state, call->bound[1], &text)) {
        return state->code;
    }
    (void)result;
    return sl_jinja_fail(state, SL_ERR_INVALID, "the template refuses: %.*s",
                         (int)(text.length < 400 ? text.length : 400), text.text);
}

typedef struct calendar {
    int64_t year;
    int month, day, hour, minute, second, weekday, year_day; /* month and weekday from 0, Sunday is 0 */
} calendar;

/* Seconds since 1970 to the proleptic Gregorian calendar: years counted from March, in eras of 400. */
static calendar calendar_of(int64_t seconds) {
    int64_t days = seconds / 86400, rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    int64_t shifted = days + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    int64_t of_era = shifted - era * 146097;
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year + year / 4 - year / 100);
    int64_t from_march = (5 * of_year + 2) / 153;
    calendar c = {.day = (int)(of_year - (153 * from_march + 2) / 5 + 1),
                  .month = (int)(from_march < 10 ? from_march + 2 : from_march - 10),
                  .hour = (int)(rest / 3600),
                  .minute = (int)(rest / 60 % 60),
                  .second = (int)(rest % 60),
                  .weekday = (int)(((days + 4) % 7 + 7) % 7)};
    c.year = year + era * 400 + (c.month < 2);
    bool leap = (c.year % 4 == 0 && c.year % 100 != 0) || c.year % 400 == 0;
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    c.year_day = before[c.month] + c.day + (leap && c.month > 1);
    return c;
}

/* One conversion of strftime in the C locale; false: not known. */
static bool format_time(char kind, bool unpadded, const calendar *c, char *out, size_t size) {
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    int twelve = c->hour % 12 ? c->hour % 12 : 12, year = (int)(c->year % 100);
    const struct {
        char kind;
        int width, value;
    } numbers[] = {{'d', 2, c->day},    {'m', 2, c->month + 1}, {'H', 2, c->hour}, {'I', 2, twelve},
                   {'M', 2, c->minute}, {'S', 2, c->second},    {'y', 2, year},    {'j', 3, c->year_day}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].kind == kind) {
            snprintf(out, size, "%0*d", unpadded ? 1 : numbers[i].width, numbers[i].value);
            return true;
        }
    }
    switch (kind) {
    case 'Y':
        snprintf(out, size, "%lld", (long long)c->year);
        return true;
    case 'B':
    case 'b':
    case 'h':
        snprintf(out, size, "%.*s", kind == 'B' ? 20 : 3, months[c->month]);
        return true;
    case 'A':
    case 'a':
        snprintf(out, size, "%.*s", kind == 'A' ? 20 : 3, days[c->weekday]);
        return true;
    case 'p':
        snprintf(out, size, "%s", c->hour < 12 ? "AM" : "PM");
        return true;
    case 'e':
        snprintf(out, size, unpadded ? "%d" : "%2d", c->day);
        return true;
    case 'w':
        snprintf(out, size, "%d", c->weekday);
        return true;
    case 'F':
        snprintf(out, size, "%lld-%02d-%02d", (long long)c->year, c->month + 1, c->day);
        return true;
    case 'D':
        snprintf(out, size, "%02d/%02d/%02d", c->month + 1, c->day, year);
        return true;
    case 'T':
        snprintf(out, size, "%02d:%02d:%02d", c->hour, c->minute, c->second);
        return true;
    case 'R':
        snprintf(out, size, "%02d:%02d", c->hour, c->minute);
        return true;
    case 'Z': /* Python's naive times have no zone */
    case 'z':
        *out = 0;
        return true;
    case '%':
        snprintf(out, size, "%%");
        return true;
    default:
        return false;
    }
}

FUNCTION(function_strftime_now) {
    if (call->bound[1].kind != SL_JINJA_STRING) {
        return wrong_argument(state, call, "a format");
    }
    sl_view format = sl_jinja_view(call->bound[1]);
    if (sl_jinja_spend(state, format.length)) {
        return state->code;
    }
    calendar now = calendar_of(state->limits.now);
    size_t mark = state->out->length;
    for (size_t i = 0; i < format.length; i++) {
        char text[64] = {format.data[i], 0};
        if (format.data[i] == '%') {
            bool unpadded = i + 1 < format.length && format.data[i + 1] == '-';
            i += 1 + unpadded;
            if (i >= format.length || !format_time(format.data[i], unpadded, &now, text, sizeof text)) {
                return wrong_argument(
                    state, call, "the conversions %a %A %b %B %d %D %e %F %H %I %j %m %M %p %S %T %y %Y");
            }
        }
        if (sl_jinja_emit_text(state, text)) {
            return state->code;
        }
    }
    return sl_jinja_capture(state, mark, result);
}

/* ---- strings ---- */

static sl_view self_text(const sl_jinja_call_frame *call) {
    return sl_jinja_view(call->bound[0]);
}

static int need_text(sl_jinja *state, const sl_jinja_call_frame *call, size_t index, sl_view *text) {
    if (call->bound[index].kind != SL_JINJA_STRING) {
        return wrong_argument(state, call, "a string");
    }
    *text = sl_jinja_view(call->bound[index]);
    return sl_jinja_spend(state, self_text(call).length / 8);
}

/* detail: the ends, as sl_jinja_strip */
FUNCTION(method_strip) {
    sl_view set = {0}, text = self_text(call);
    if (given(call->bound[1]) && need_text(state, call, 1, &set)) {
        return state->code;
    }
    if (sl_jinja_spend(state, sl_jinja_strip_steps(text, set))) {
        return state->code;
    }
    text = sl_jinja_strip(text, set, call->row->detail);
    *result = sl_jinja_text(text.data, text.length);
    return 0;
}

/* detail: a sl_jinja_case */
FUNCTION(method_case) {
    return sl_jinja_change_case(state, self_text(call), (sl_jinja_case)call->row->detail, result);
}

typedef struct parts {
    sl_jinja_value *items;
    size_t count, capacity;
} parts;

static int add_part(sl_jinja *state, parts *list, const char *data, size_t length) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        sl_jinja_value *items = sl_jinja_alloc(state, capacity, sizeof *items);
        if (!items) {
            return state->code;
        }
        if (list->count) {
            memcpy(items, list->items, list->count * sizeof *items);
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = sl_jinja_text(data, length);
    return sl_jinja_spend(state, 1);
}

static int list_of_parts(sl_jinja *state, const parts *list, bool backwards, sl_jinja_value *result) {
    if (sl_jinja_list_new(state, SL_JINJA_LIST, list->count, result)) {
        return state->code;
    }
    for (size_t i = 0; i < list->count; i++) {
        result->list->items[i] = list->items[backwards ? list->count - 1 - i : i];
    }
    return 0;
}

/* Words with white space between, from the left or from the right; the last one takes what is left,
 * with the white space at its far end. */
static int split_words(sl_jinja *state, sl_view text, bool right, int64_t most, parts *list) {
    while ((text = sl_jinja_strip(text, (sl_view){0}, right ? 2 : 1)).length) {
        size_t length = 0;
        uint32_t c;
        if (most-- == 0) {
            return add_part(state, list, text.data, text.length);
        }
        while (length < text.length) {
            sl_view rest = {right ? text.data : text.data + length, text.length - length};
            size_t size = right ? sl_jinja_last_character(rest, &c) : sl_jinja_character(rest, &c);
            if (sl_jinja_is_space(c)) {
                break;
            }
            length += size;
        }
        if (add_part(state, list, right ? text.data + text.length - length : text.data, length)) {
            return state->code;
        }
        text.data += right ? 0 : length;
        text.length -= length;
    }
    return 0;
}

/* Offset of the last `part` in `text`, or SIZE_MAX. The caller pays: text.length * part.length at worst. */
static size_t find_last(sl_view text, sl_view part) {
    for (size_t at = text.length < part.length ? SIZE_MAX : text.length - part.length; at != SIZE_MAX; at--) {
        if (memcmp(text.data + at, part.data, part.length) == 0) {
            return at;
        }
    }
    return SIZE_MAX;
}

static int split_by(sl_jinja *state, sl_view text, sl_view separator, bool right, int64_t most, parts *list) {
    if (right && sl_jinja_spend(state, text.length / 16 * (separator.length / 16 + 1))) {
        return state->code;
    }
    for (; most != 0; most--) {
        size_t at = right ? find_last(text, separator) : sl_jinja_find(text, separator, 0);
        if (at == SIZE_MAX) {
            break;
        }
        size_t end = at + separator.length;
        if (add_part(state, list, right ? text.data + end : text.data, right ? text.length - end : at)) {
            return state->code;
        }
        text = right ? (sl_view){text.data, at} : (sl_view){text.data + end, text.length - end};
    }
    return add_part(state, list, text.data, text.length);
}

/* detail: 1 from the right */
FUNCTION(method_split) {
    int64_t most = -1;
    sl_view separator;
    parts list = {0};
    bool right = call->row->detail;
    if (given(call->bound[2]) && !sl_jinja_as_int(call->bound[2], &most)) {
        return wrong_argument(state, call, "an integer as maxsplit");
    }
    most = most < 0 ? INT64_MAX : most;
    if (sl_jinja_spend(state, call->bound[0].length / (right ? 4 : 8))) {
        return state->code;
    }
    if (!given(call->bound[1])) {
        if (split_words(state, self_text(call), right, most, &list)) {
            return state->code;
        }
    } else if (need_text(state, call, 1, &separator)) {
        return state->code;
    } else if (separator.length == 0) {
        return wrong_argument(state, call, "a separator that is not empty");
    } else if (split_by(state, self_text(call), separator, right, most, &list)) {
        return state->code;
    }
    return list_of_parts(state, &list, right, result);
}

FUNCTION(method_splitlines) {
    parts list = {0};
    bool keep = sl_jinja_truthy(call->bound[1]);
    sl_view text = self_text(call);
    size_t start = 0, at = 0;
    if (sl_jinja_spend(state, text.length / 16)) {
        return state->code;
    }
    while (at < text.length) {
        uint32_t c;
        size_t size = sl_jinja_character((sl_view){text.data + at, text.length - at}, &c);
        bool ends =
            (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (c == '\r' && at + 1 < text.length && text.data[at + 1] == '\n') {
            size = 2;
        }
        if (ends) {
            if (add_part(state, &list, text.data + start, at - start + (keep ? size : 0))) {
                return state->code;
            }
            start = at + size;
        }
        at += size;
    }
    if (start < at && add_part(state, &list, text.data + start, at - start)) {
        return state->code;
    }
    return list_of_parts(state, &list, false, result);
}

static bool has_end(sl_view text, sl_view part, bool end) {
    return part.length <= text.length &&
           sl_view_equal((sl_view){text.data + (end ? text.length - part.length : 0), part.length}, part);
}

/* detail: 1 endswith */
FUNCTION(method_has_end) {
    sl_jinja_value part = call->bound[1];
    sl_jinja_list one = {.items = &part, .count = 1};
    const sl_jinja_list *list = part.kind == SL_JINJA_TUPLE ? part.list : &one;
    *result = sl_jinja_bool(false);
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].kind != SL_JINJA_STRING) {
            return wrong_argument(state, call, "a string or a tuple of strings");
        }
        if (sl_jinja_spend(state, list->items[i].length / 64 + 1)) {
            return state->code;
        }
        if (has_end(self_text(call), sl_jinja_view(list->items[i]), call->row->detail)) {
            *result = sl_jinja_bool(true);
        }
    }
    return 0;
}

/* detail: 1 removesuffix */
FUNCTION(method_remove_end) {
    sl_view text = self_text(call), part;
    if (need_text(state, call, 1, &part)) {
        return state->code;
    }
    if (has_end(text, part, call->row->detail)) {
        text.data += call->row->detail ? 0 : part.length;
        text.length -= part.length;
    }
    *result = sl_jinja_text(text.data, text.length);
    return 0;
}

FUNCTION(method_replace) {
    sl_view text = self_text(call), old, new;
    size_t mark = state->out->length, at = 0;
    int64_t most = -1;
    if (need_text(state, call, 1, &old) || need_text(state, call, 2, &new)) {
        return state->code;
    }
    if (given(call->bound[3]) && !sl_jinja_as_int(call->bound[3], &most)) {
        return wrong_argument(state, call, "an integer as count");
    }
    for (bool first = true; most != 0 && at <= text.length; most--, first = false) {
        /* an empty `old` is found before every character and at the end */
        uint32_t c;
        size_t found = sl_jinja_find(text, old, at);
        if (old.length == 0 && !first) {
            if (at == text.length) {
                break;
            }
            found = at + sl_jinja_character((sl_view){text.data + at, text.length - at}, &c);
        }
        if (found == SIZE_MAX) {
            break;
        }
        if (sl_jinja_emit(state, text.data + at, found - at) || sl_jinja_emit(state, new.data, new.length) ||
            sl_jinja_spend(state, 2)) {
            return state->code;
        }
        at = found + old.length;
    }
    if (sl_jinja_emit(state, text.data + at, text.length - at)) {
        return state->code;
    }
    return sl_jinja_capture(state, mark, result);
}

/* detail: bit 0: from the right; bit 1: an error when it is not there */
FUNCTION(method_find) {
    sl_view text = self_text(call), part;
    if (need_text(state, call, 1, &part)) {
        return state->code;
    }
    size_t found;
    if (call->row->detail & 1) {
        if (sl_jinja_spend(state, text.length / 16 * (part.length / 16 + 1))) {
            return state->code;
        }
        found = find_last(text, part);
    } else {
        found = sl_jinja_find(text, part, 0);
    }
    if (found == SIZE_MAX && (call->row->detail & 2)) {
        return wrong_argument(state, call, "a string that is there");
    }
    *result = sl_jinja_int(
        found == SIZE_MAX ? -1 : (int64_t)sl_jinja_count_characters((sl_view){text.data, found}));
    return 0;
}

FUNCTION(method_count) {
    sl_view text = self_text(call), part;
    int64_t count = 0;
    if (need_text(state, call, 1, &part)) {
        return state->code;
    }
    if (part.length == 0) {
        *result = sl_jinja_int((int64_t)sl_jinja_count_characters(text) + 1);
        return 0;
    }
    for (size_t at = 0; (at = sl_jinja_find(text, part, at)) != SIZE_MAX; at += part.length) {
        if (sl_jinja_spend(state, 1)) {
            return state->code;
        }
        count++;
    }
    *result = sl_jinja_int(count);
    return 0;
}

FUNCTION(method_join) {
    sl_jinja_list items;
    size_t mark = state->out->length;
    if (sl_jinja_iterate(state, call->bound[1], &items)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        if (items.items[i].kind != SL_JINJA_STRING) {
            return wrong_argument(state, call, "strings only");
        }
        if (sl_jinja_spend(state, 1) || (i && sl_jinja_emit_str(state, call->bound[0])) ||
            sl_jinja_emit_str(state, items.items[i])) {
            return state->code;
        }
    }
    return sl_jinja_capture(state, mark, result);
}

enum { CLASS_DIGIT, CLASS_LETTER, CLASS_LETTER_OR_DIGIT, CLASS_SPACE };

static bool in_class(uint32_t c, int class) {
    int category = utf8proc_category((utf8proc_int32_t)c);
    bool digit = category == UTF8PROC_CATEGORY_ND;
    bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    return class == CLASS_DIGIT    ? digit
           : class == CLASS_LETTER ? letter
           : class == CLASS_SPACE
               ? sl_jinja_is_space(c)
               : letter || digit || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

/* detail: the class that every character must be of */
FUNCTION(method_class) {
    sl_view text = self_text(call);
    bool all = text.length > 0;
    if (sl_jinja_spend(state, text.length / 4)) {
        return state->code;
    }
    while (all && text.length) {
        uint32_t c;
        size_t size = sl_jinja_character(text, &c);
        all = in_class(c, call->row->detail);
        text.data += size;
        text.length -= size;
    }
    *result = sl_jinja_bool(all);
    return 0;
}

/* detail: 0 islower, 1 isupper */
FUNCTION(method_is_case) {
    return sl_jinja_run(state, sl_jinja_find_test(sl_view_of(call->row->detail ? "upper" : "lower")),
                        call->bound[0], call->raw, result);
}

/* ---- dicts, lists, loops ---- */

enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

/* detail: what the view shows */
FUNCTION(method_view) {
    static const char *const labels[] = {"dict_keys", "dict_values", "dict_items"};
    const sl_jinja_dict *dict = call->bound[0].dict;
    if (sl_jinja_list_new(state, SL_JINJA_VIEW, dict->count, result)) {
        return state->code;
    }
    result->list->label = labels[call->row->detail];
    for (size_t i = 0; i < dict->count; i++) {
        sl_jinja_value *item = &result->list->items[i];
        if (call->row->detail != VIEW_ITEMS) {
            *item = call->row->detail == VIEW_KEYS ? dict->entries[i].key : dict->entries[i].value;
            continue;
        }
        if (sl_jinja_list_new(state, SL_JINJA_TUPLE, 2, item)) {
            return state->code;
        }
        item->list->items[0] = dict->entries[i].key;
        item->list->items[1] = dict->entries[i].value;
    }
    return 0;
}

FUNCTION(method_get) {
    sl_jinja_value *found;
    if (sl_jinja_dict_get(state, call->bound[0].dict, call->bound[1], &found)) {
        return state->code;
    }
    *result = found                                     ? *found
              : call->bound[2].kind == SL_JINJA_MISSING ? sl_jinja_of(SL_JINJA_NONE)
                                                        : call->bound[2];
    return 0;
}

FUNCTION(method_copy) {
    (void)state;
    *result = call->bound[0]; /* nothing can change either of them */
    return 0;
}

/* detail: 0 count, 1 index */
FUNCTION(method_search) {
    const sl_jinja_list *list = call->bound[0].list;
    int64_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        bool equal;
        if (sl_jinja_equal(state, list->items[i], call->bound[1], &equal)) {
            return state->code;
        }
        if (equal && call->row->detail) {
            *result = sl_jinja_int((int64_t)i);
            return 0;
        }
        count += equal;
    }
    if (call->row->detail) {
        return wrong_argument(state, call, "an item that is there");
    }
    *result = sl_jinja_int(count);
    return 0;
}

FUNCTION(method_cycle) {
    if (call->raw->count == 0) {
        return wrong_argument(state, call, "at least one item");
    }
    *result = call->raw->items[call->bound[0].loop->index % call->raw->count];
    return 0;
}

FUNCTION(method_changed) {
    sl_jinja_value now;
    sl_jinja_loop *loop = call->bound[0].loop;
    bool equal = false;
    if (sl_jinja_list_new(state, SL_JINJA_TUPLE, call->raw->count, &now)) {
        return state->code;
    }
    for (size_t i = 0; i < call->raw->count; i++) {
        now.list->items[i] = call->raw->items[i];
    }
    if (loop->changed.kind == SL_JINJA_TUPLE && sl_jinja_equal(state, loop->changed, now, &equal)) {
        return state->code;
    }
    loop->changed = now;
    *result = sl_jinja_bool(!equal);
    return 0;
}

/* ---- tables ---- */

static const sl_jinja_builtin functions[] = {
    {"dict", "*", 0, function_dict, SL_JINJA_DICT},
    {"namespace", "*", 0, function_dict, SL_JINJA_NAMESPACE},
    {"raise_exception", "message", 1, function_raise, 0},
    {"range", "start,stop,step", 1, function_range, 0},
    {"strftime_now", "format", 1, function_strftime_now, 0},
};

static const sl_jinja_builtin string_methods[] = {
    {"capitalize", "", 0, method_case, SL_JINJA_CAPITALIZE},
    {"count", "sub", 1, method_count, 0},
    {"endswith", "suffix", 1, method_has_end, 1},
    {"find", "sub", 1, method_find, 0},
    {"index", "sub", 1, method_find, 2},
    {"isalnum", "", 0, method_class, CLASS_LETTER_OR_DIGIT},
    {"isalpha", "", 0, method_class, CLASS_LETTER},
    {"isdigit", "", 0, method_class, CLASS_DIGIT},
    {"islower", "", 0, method_is_case, 0},
    {"isspace", "", 0, method_class, CLASS_SPACE},
    {"isupper", "", 0, method_is_case, 1},
    {"join", "iterable", 1, method_join, 0},
    {"lower", "", 0, method_case, SL_JINJA_LOWER},
    {"lstrip", "chars", 0, method_strip, 1},
    {"removeprefix", "prefix", 1, method_remove_end, 0},
    {"removesuffix", "suffix", 1, method_remove_end, 1},
    {"replace", "old,new,count", 2, method_replace, 0},
    {"rfind", "sub", 1, method_find, 1},
    {"rindex", "sub", 1, method_find, 3},
    {"rsplit", "sep,maxsplit", 0, method_split, 1},
    {"rstrip", "chars", 0, method_strip, 2},
    {"split", "sep,maxsplit", 0, method_split, 0},
    {"splitlines", "keepends", 0, method_splitlines, 0},
    {"startswith", "prefix", 1, method_has_end, 0},
    {"strip", "chars", 0, method_strip, 3},
    {"swapcase", "", 0, method_case, SL_JINJA_SWAP_CASE},
    {"title", "", 0, method_case, SL_JINJA_TITLE},
    {"upper", "", 0, method_case, SL_JINJA_UPPER},
};

/* Methods that change their object are not there: the sandbox gives an undefined value for them, too. */
static const sl_jinja_builtin dict_methods[] = {
    {"copy", "", 0, method_copy, 0},
    {"get", "key,default", 1, method_get, 0},
    {"items", "", 0, method_view, VIEW_ITEMS},
    {"keys", "", 0, method_view, VIEW_KEYS},
    {"values", "", 0, method_view, VIEW_VALUES},
};

static const sl_jinja_builtin list_methods[] = {
    {"copy", "", 0, method_copy, 0},
    {"count", "value", 1, method_search, 0},
    {"index", "value", 1, method_search, 1},
};

static const sl_jinja_builtin loop_methods[] = {
    {"changed", "*", 0, method_changed, 0},
    {"cycle", "*", 0, method_cycle, 0},
};

const sl_jinja_builtin *sl_jinja_find_row(const sl_jinja_builtin *rows, size_t count, sl_view name) {
    for (size_t i = 0; i < count; i++) {
        if (sl_view_is(name, rows[i].name)) {
            return &rows[i];
        }
    }
    return NULL;
}

const sl_jinja_builtin *sl_jinja_find_function(sl_view name) {
    return sl_jinja_find_row(functions, sizeof functions / sizeof *functions, name);
}

#define ROWS(table) table, sizeof table / sizeof *table

const sl_jinja_builtin *sl_jinja_find_method(sl_jinja_kind kind, sl_view name) {
    switch (kind) {
    case SL_JINJA_STRING:
        return sl_jinja_find_row(ROWS(string_methods), name);
    case SL_JINJA_DICT:
        return sl_jinja_find_row(ROWS(dict_methods), name);
    case SL_JINJA_LIST:
    case SL_JINJA_TUPLE:
        return sl_jinja_find_row(ROWS(list_methods), name);
    case SL_JINJA_LOOP:
        return sl_jinja_find_row(ROWS(loop_methods), name);
    default:
        return NULL;
    }
}
