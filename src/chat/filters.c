/* Filters: "value | name(arguments)". */
#include "chat/evaluator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name) static int name(sl_jinja *state, const sl_jinja_call_frame *call, sl_jinja_value *result)

static bool given(sl_jinja_value value) {
    return value.kind != SL_JINJA_MISSING;
}

/* The subject as text, as jinja2's soft_str. */
static int subject_text(sl_jinja *state, const sl_jinja_call_frame *call, sl_view *text) {
    sl_jinja_value string;
    if (sl_jinja_str(state, call->bound[0], &string) || sl_jinja_spend(state, string.length / 16)) {
        return state->code;
    }
    *text = sl_jinja_view(string);
    return 0;
}

/* ---- keys: attribute="a.b.0" ---- */

/* attribute: a string with dots or an integer; parts that are digits are indices. MISSING and NONE give the
 * item. */
static int get_path(sl_jinja *state, sl_jinja_value item, sl_jinja_value attribute, sl_jinja_value *result) {
    *result = item;
    if (sl_jinja_spend(state, 1) || attribute.kind == SL_JINJA_MISSING || attribute.kind == SL_JINJA_NONE) {
        return state->code;
    }
    if (attribute.kind != SL_JINJA_STRING) {
        return sl_jinja_item(state, item, attribute, result);
    }
    sl_view rest = sl_jinja_view(attribute);
    for (bool more = true; more;) {
        const char *dot = rest.length ? memchr(rest.data, '.', rest.length) : NULL;
        sl_view part = {rest.data, dot ? (size_t)(dot - rest.data) : rest.length};
        sl_jinja_value key = sl_jinja_text(part.data, part.length);
        int64_t index = 0;
        size_t digits = 0;
        while (digits < part.length && digits < 9 && part.data[digits] >= '0' && part.data[digits] <= '9') {
            index = index * 10 + part.data[digits++] - '0';
        }
        if (part.length && digits == part.length) {
            key = sl_jinja_int(index);
        }
        if (sl_jinja_spend(state, 1) || sl_jinja_item(state, *result, key, result)) {
            return state->code;
        }
        more = dot != NULL;
        rest.data += part.length + more;
        rest.length -= part.length + more;
    }
    return 0;
}

/* What sort, unique, min and max compare: the attribute, in lower case unless case matters. */
static int get_key(sl_jinja *state, sl_jinja_value item, sl_jinja_value attribute, bool ignore_case,
                   sl_jinja_value *key) {
    sl_jinja_value value;
    return get_path(state, item, attribute, &value) ? state->code
                                                    : sl_jinja_sort_key(state, value, ignore_case, key);
}

/* sort takes several attributes with commas between: the key is then a list. */
static int get_keys(sl_jinja *state, sl_jinja_value item, sl_jinja_value attribute, bool ignore_case,
                    sl_jinja_value *key) {
    if (attribute.kind != SL_JINJA_STRING || !attribute.length ||
        !memchr(attribute.text, ',', attribute.length)) {
        return get_key(state, item, attribute, ignore_case, key);
    }
    size_t count = 1;
    for (uint32_t i = 0; i < attribute.length; i++) {
        count += attribute.text[i] == ',';
    }
    if (sl_jinja_list_new(state, SL_JINJA_LIST, count, key)) {
        return state->code;
    }
    const char *at = attribute.text;
    for (size_t i = 0; i < count; i++) {
        size_t left = (size_t)(attribute.text + attribute.length - at);
        const char *comma = left ? memchr(at, ',', left) : NULL;
        size_t length = comma ? (size_t)(comma - at) : left;
        if (get_key(state, item, sl_jinja_text(at, length), ignore_case, &key->list->items[i])) {
            return state->code;
        }
        at += length + (comma != NULL);
    }
    return 0;
}

FILTER(filter_sort) {
    sl_jinja_list items;
    if (sl_jinja_iterate(state, call->bound[0], &items) ||
        sl_jinja_list_new(state, SL_JINJA_LIST, items.count, result)) {
        return state->code;
    }
    sl_jinja_keyed *keys = sl_jinja_alloc(state, items.count, sizeof *keys);
    for (size_t i = 0; keys && i < items.count; i++) {
        keys[i].index = i;
        if (get_keys(state, items.items[i], call->bound[3], !sl_jinja_truthy(call->bound[2]), &keys[i].key)) {
            return state->code;
        }
    }
    if (!keys || sl_jinja_sort(state, keys, items.count, sl_jinja_truthy(call->bound[1]))) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        result->list->items[i] = items.items[keys[i].index];
    }
    return 0;
}

static int pairs(sl_jinja *state, const sl_jinja_entry *entries, size_t count, sl_jinja_kind kind,
                 sl_jinja_value *result) {
    if (sl_jinja_list_new(state, kind, count, result)) {
        return state->code;
    }
    for (size_t i = 0; i < count; i++) {
        sl_jinja_value *pair = &result->list->items[i];
        if (sl_jinja_list_new(state, SL_JINJA_TUPLE, 2, pair)) {
            return state->code;
        }
        pair->list->items[0] = entries[i].key;
        pair->list->items[1] = entries[i].value;
    }
    return 0;
}

static int need_dict(sl_jinja *state, const sl_jinja_call_frame *call) {
    return call->bound[0].kind == SL_JINJA_DICT
               ? 0
               : sl_jinja_fail(state, SL_ERR_INVALID, "%s takes a dict, not a %s", call->row->name,
                               sl_jinja_type_name(call->bound[0]));
}

FILTER(filter_dictsort) {
    sl_jinja_entry *entries;
    sl_jinja_value by = call->bound[2];
    bool by_value = by.kind == SL_JINJA_STRING && sl_view_is(sl_jinja_view(by), "value");
    if (given(by) && !by_value && !(by.kind == SL_JINJA_STRING && sl_view_is(sl_jinja_view(by), "key"))) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "dictsort sorts by 'key' or 'value'");
    }
    const sl_jinja_order order = {.by_value = by_value,
                                  .ignore_case = !sl_jinja_truthy(call->bound[1]),
                                  .reverse = sl_jinja_truthy(call->bound[3])};
    if (need_dict(state, call) || sl_jinja_sorted_entries(state, call->bound[0].dict, &order, &entries)) {
        return state->code;
    }
    return pairs(state, entries, call->bound[0].dict->count, SL_JINJA_LIST, result);
}

FILTER(filter_items) {
    if (call->bound[0].kind == SL_JINJA_UNDEFINED) {
        return sl_jinja_list_new(state, SL_JINJA_GENERATOR, 0, result);
    }
    if (need_dict(state, call)) {
        return state->code;
    }
    return pairs(state, call->bound[0].dict->entries, call->bound[0].dict->count, SL_JINJA_GENERATOR, result);
}

FILTER(filter_unique) {
    sl_jinja_list items;
    sl_jinja_value seen;
    if (sl_jinja_iterate(state, call->bound[0], &items) ||
        sl_jinja_list_new(state, SL_JINJA_GENERATOR, items.count, result) ||
        sl_jinja_dict_new(state, SL_JINJA_DICT, &seen)) {
        return state->code;
    }
    size_t count = 0;
    for (size_t i = 0; i < items.count; i++) {
        sl_jinja_value key, *found;
        if (get_key(state, items.items[i], call->bound[2], !sl_jinja_truthy(call->bound[1]), &key) ||
            sl_jinja_dict_get(state, seen.dict, key, &found) ||
            (!found && sl_jinja_dict_set(state, seen.dict, key, key))) {
            return state->code;
        }
        if (!found) {
            result->list->items[count++] = items.items[i];
        }
    }
    result->list->count = count;
    return 0;
}

/* detail: -1 min, 1 max */
FILTER(filter_extreme) {
    sl_jinja_list items;
    sl_jinja_value best, key;
    *result = sl_jinja_undefined(sl_view_of("an item of an empty sequence"));
    if (sl_jinja_iterate(state, call->bound[0], &items)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        int order = call->row->detail;
        if (get_key(state, items.items[i], call->bound[2], !sl_jinja_truthy(call->bound[1]), &key) ||
            (i && sl_jinja_compare(state, key, best, &order))) {
            return state->code;
        }
        if (order == call->row->detail) {
            best = key;
            *result = items.items[i];
        }
    }
    return 0;
}

FILTER(filter_sum) {
    sl_jinja_list items;
    *result = given(call->bound[2]) ? call->bound[2] : sl_jinja_int(0);
    if (sl_jinja_iterate(state, call->bound[0], &items)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        sl_jinja_value value;
        if (get_path(state, items.items[i], call->bound[1], &value) ||
            sl_jinja_binary(state, SL_JINJA_ADD, *result, value, result)) {
            return state->code;
        }
    }
    return 0;
}

/* ---- sequences ---- */

FILTER(filter_length) {
    int64_t length;
    if (sl_jinja_length(state, call->bound[0], &length)) {
        return state->code;
    }
    *result = sl_jinja_int(length);
    return 0;
}

FILTER(filter_first) {
    sl_jinja_value value = call->bound[0];
    *result = sl_jinja_undefined(sl_view_of("the first item of an empty sequence"));
    if (value.kind == SL_JINJA_GENERATOR && value.list->count) {
        *result = *value.list->items++;
        value.list->count--;
        return 0;
    }
    sl_jinja_list items;
    if (sl_jinja_iterate(state, value, &items)) {
        return state->code;
    }
    if (items.count) {
        *result = items.items[0];
    }
    return 0;
}

FILTER(filter_last) {
    sl_jinja_list items;
    *result = sl_jinja_undefined(sl_view_of("the last item of an empty sequence"));
    if (call->bound[0].kind == SL_JINJA_GENERATOR) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "last does not take a generator");
    }
    if (sl_jinja_iterate(state, call->bound[0], &items)) {
        return state->code;
    }
    if (items.count) {
        *result = items.items[items.count - 1];
    }
    return 0;
}

FILTER(filter_list) {
    sl_jinja_list items;
    if (sl_jinja_iterate(state, call->bound[0], &items) ||
        sl_jinja_list_new(state, SL_JINJA_LIST, items.count, result)) {
        return state->code;
    }
    if (items.count) {
        memcpy(result->list->items, items.items, items.count * sizeof *items.items);
    }
    return 0;
}

FILTER(filter_reverse) {
    sl_jinja_list items;
    if (sl_jinja_iterate(state, call->bound[0], &items) ||
        sl_jinja_list_new(state, SL_JINJA_GENERATOR, items.count, result)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        result->list->items[i] = items.items[items.count - 1 - i];
    }
    if (call->bound[0].kind != SL_JINJA_STRING) {
        return 0;
    }
    size_t mark = state->out->length;
    for (size_t i = 0; i < items.count; i++) {
        if (sl_jinja_emit_str(state, result->list->items[i])) {
            return state->code;
        }
    }
    return sl_jinja_capture(state, mark, result);
}

FILTER(filter_join) {
    sl_jinja_list items;
    size_t mark = state->out->length;
    sl_jinja_value separator = sl_jinja_text("", 0);
    if ((given(call->bound[1]) && sl_jinja_str(state, call->bound[1], &separator)) ||
        sl_jinja_iterate(state, call->bound[0], &items)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        sl_jinja_value value;
        if ((i && sl_jinja_emit_str(state, separator)) ||
            get_path(state, items.items[i], call->bound[2], &value) || sl_jinja_emit_str(state, value)) {
            return state->code;
        }
    }
    return sl_jinja_capture(state, mark, result);
}

/* Runs the filter or test that map, select and the like were given by name. offset: arguments before the
 * name. */
static int run_named(sl_jinja *state, const sl_jinja_call_frame *call, bool test, size_t offset,
                     sl_jinja_value subject, sl_jinja_value *result) {
    sl_jinja_value name = call->raw->items[offset];
    if (name.kind != SL_JINJA_STRING) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "%s: a name must be a string", call->row->name);
    }
    sl_view view = sl_jinja_view(name);
    const sl_jinja_builtin *row = test ? sl_jinja_find_test(view) : sl_jinja_find_filter(view);
    if (!row) {
        return sl_jinja_fail(state, SL_ERR_UNSUPPORTED, "no %s named '%.*s'", test ? "test" : "filter",
                             (int)view.length, view.data);
    }
    sl_jinja_arguments rest = *call->raw;
    rest.items += offset + 1;
    rest.count -= offset + 1;
    if (sl_jinja_spend(state, 2 + rest.named_count / 8) || sl_jinja_enter(state)) {
        return state->code;
    }
    int code = sl_jinja_run(state, row, subject, &rest, result);
    sl_jinja_leave(state);
    return code;
}

static sl_jinja_value named_argument(const sl_jinja_arguments *arguments, const char *name) {
    for (size_t i = 0; i < arguments->named_count; i++) {
        if (sl_view_is(arguments->names[i], name)) {
            return arguments->named[i];
        }
    }
    return sl_jinja_of(SL_JINJA_MISSING);
}

FILTER(filter_map) {
    sl_jinja_list items;
    sl_jinja_value attribute = named_argument(call->raw, "attribute");
    sl_jinja_value otherwise = named_argument(call->raw, "default");
    if (call->raw->count == 0 && !given(attribute)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "map takes a filter's name or attribute=");
    }
    if (sl_jinja_iterate(state, call->bound[0], &items) ||
        sl_jinja_list_new(state, SL_JINJA_GENERATOR, items.count, result)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        sl_jinja_value *to = &result->list->items[i];
        if (call->raw->count) {
            if (run_named(state, call, false, 0, items.items[i], to)) {
                return state->code;
            }
        } else if (get_path(state, items.items[i], attribute, to)) {
            return state->code;
        } else if (to->kind == SL_JINJA_UNDEFINED && given(otherwise)) {
            *to = otherwise;
        }
    }
    return 0;
}

/* detail: bit 0: keep what fails (reject); bit 1: the first argument is an attribute */
FILTER(filter_select) {
    sl_jinja_list items;
    size_t offset = (call->row->detail & 2) != 0, count = 0;
    if (call->raw->count < offset) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "%s takes an attribute's name", call->row->name);
    }
    if (sl_jinja_iterate(state, call->bound[0], &items) ||
        sl_jinja_list_new(state, SL_JINJA_GENERATOR, items.count, result)) {
        return state->code;
    }
    for (size_t i = 0; i < items.count; i++) {
        sl_jinja_value value = items.items[i], verdict;
        if (offset && get_path(state, value, call->raw->items[0], &value)) {
            return state->code;
        }
        verdict = value;
        if (call->raw->count > offset && run_named(state, call, true, offset, value, &verdict)) {
            return state->code;
        }
        if (sl_jinja_truthy(verdict) != (call->row->detail & 1)) {
            result->list->items[count++] = items.items[i];
        }
    }
    result->list->count = count;
    return 0;
}

/* ---- text ---- */

/* detail: a sl_jinja_case */
FILTER(filter_case) {
    sl_view text;
    if (subject_text(state, call, &text)) {
        return state->code;
    }
    return sl_jinja_change_case(state, text, (sl_jinja_case)call->row->detail, result);
}

FILTER(filter_trim) {
    sl_view text, set = {0};
    sl_jinja_value characters = call->bound[1];
    if (given(characters) && characters.kind != SL_JINJA_NONE) {
        if (characters.kind != SL_JINJA_STRING) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "trim takes a string of characters");
        }
        set = sl_jinja_view(characters);
    }
    if (subject_text(state, call, &text) || sl_jinja_spend(state, sl_jinja_strip_steps(text, set))) {
        return state->code;
    }
    text = sl_jinja_strip(text, set, 3);
    *result = sl_jinja_text(text.data, text.length);
    return 0;
}

FILTER(filter_replace) {
    sl_jinja_arguments arguments = {
        .items = (sl_jinja_value[3]){call->bound[1], call->bound[2], call->bound[3]},
        .count = given(call->bound[3]) && call->bound[3].kind != SL_JINJA_NONE ? 3 : 2};
    sl_jinja_value text;
    if (sl_jinja_str(state, call->bound[0], &text) ||
        sl_jinja_str(state, arguments.items[0], &arguments.items[0]) ||
        sl_jinja_str(state, arguments.items[1], &arguments.items[1])) {
        return state->code;
    }
    return sl_jinja_run(state, sl_jinja_find_method(SL_JINJA_STRING, sl_view_of("replace")), text, &arguments,
                        result);
}

FILTER(filter_string) {
    return sl_jinja_str(state, call->bound[0], result);
}

FILTER(filter_escape) {
    sl_view text;
    size_t mark = state->out->length;
    if (subject_text(state, call, &text)) {
        return state->code;
    }
    size_t start = 0;
    for (size_t i = 0; i < text.length; i++) {
        char c = text.data[i];
        const char *entity = c == '&'    ? "&amp;"
                             : c == '<'  ? "&lt;"
                             : c == '>'  ? "&gt;"
                             : c == '\'' ? "&#39;"
                             : c == '"'  ? "&#34;"
                                         : NULL;
        if (entity) {
            if (sl_jinja_spend(state, 1) || sl_jinja_emit(state, text.data + start, i - start) ||
                sl_jinja_emit_text(state, entity)) {
                return state->code;
            }
            start = i + 1;
        }
    }
    return sl_jinja_emit(state, text.data + start, text.length - start)
               ? state->code
               : sl_jinja_capture(state, mark, result);
}

/* Size of the line break at the start of text, as str.splitlines has it; 0: none. */
static size_t line_break(sl_view text) {
    uint32_t c;
    size_t size = sl_jinja_character(text, &c);
    if (c == '\r' && text.length > 1 && text.data[1] == '\n') {
        return 2;
    }
    bool breaks =
        (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return breaks ? size : 0;
}

FILTER(filter_indent) {
    sl_view text, indent = sl_view_of("    ");
    size_t mark = state->out->length;
    int64_t width = 4;
    char *spaces = NULL;
    if (call->bound[1].kind == SL_JINJA_STRING) {
        indent = sl_jinja_view(call->bound[1]);
    } else if (given(call->bound[1])) {
        if (!sl_jinja_as_int(call->bound[1], &width) || width > 100000) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "indent takes a width up to 100000 or a string");
        }
        indent.length = width < 0 ? 0 : (size_t)width;
        if (!(spaces = sl_jinja_alloc(state, indent.length + 1, 1))) {
            return state->code;
        }
        memset(spaces, ' ', indent.length);
        indent.data = spaces;
    }
    bool first = sl_jinja_truthy(call->bound[2]), blank = sl_jinja_truthy(call->bound[3]);
    if (subject_text(state, call, &text) || (first && sl_jinja_emit(state, indent.data, indent.length))) {
        return state->code;
    }
    for (bool more = true, start = true; more; start = false) {
        size_t length = 0, size = 0;
        while (length < text.length &&
               !(size = line_break((sl_view){text.data + length, text.length - length}))) {
            length++;
        }
        if (sl_jinja_spend(state, 1) ||
            (!start && (length || blank) && sl_jinja_emit(state, indent.data, indent.length)) ||
            sl_jinja_emit(state, text.data, length) || (size && sl_jinja_emit_text(state, "\n"))) {
            return state->code;
        }
        more = size != 0;
        text.data += length + size;
        text.length -= length + size;
    }
    return sl_jinja_capture(state, mark, result);
}

FILTER(filter_format) {
    sl_jinja_value arguments;
    sl_view text;
    if (subject_text(state, call, &text) ||
        sl_jinja_list_new(state, SL_JINJA_TUPLE, call->raw->count, &arguments)) {
        return state->code;
    }
    for (size_t i = 0; i < call->raw->count; i++) {
        arguments.list->items[i] = call->raw->items[i];
    }
    return sl_jinja_format(state, text, arguments, result);
}

static int json_indent(sl_jinja *state, sl_jinja_value value, sl_jinja_json_style *style) {
    int64_t width;
    if (!given(value) || value.kind == SL_JINJA_NONE) {
        return 0;
    }
    style->lines = true;
    style->item_separator = sl_view_of(",");
    if (value.kind == SL_JINJA_STRING) {
        style->indent = sl_jinja_view(value);
        return 0;
    }
    if (!sl_jinja_as_int(value, &width) || width > 1000) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "tojson: indent must be a string or a number up to 1000");
    }
    char *spaces = sl_jinja_alloc(state, (size_t)(width < 0 ? 0 : width) + 1, 1);
    if (!spaces) {
        return state->code;
    }
    style->indent = (sl_view){spaces, width < 0 ? 0 : (size_t)width};
    memset(spaces, ' ', style->indent.length);
    return 0;
}

FILTER(filter_tojson) {
    size_t mark = state->out->length;
    sl_jinja_value separators = call->bound[3];
    sl_jinja_json_style style = {.ensure_ascii = sl_jinja_truthy(call->bound[1]),
                                 .sort_keys = sl_jinja_truthy(call->bound[4]),
                                 .item_separator = sl_view_of(", "),
                                 .key_separator = sl_view_of(": ")};
    if (json_indent(state, call->bound[2], &style)) {
        return state->code;
    }
    if (given(separators) && separators.kind != SL_JINJA_NONE) {
        bool pair = (separators.kind == SL_JINJA_TUPLE || separators.kind == SL_JINJA_LIST) &&
                    separators.list->count == 2 && separators.list->items[0].kind == SL_JINJA_STRING &&
                    separators.list->items[1].kind == SL_JINJA_STRING;
        if (!pair) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "tojson: separators must be two strings");
        }
        style.item_separator = sl_jinja_view(separators.list->items[0]);
        style.key_separator = sl_jinja_view(separators.list->items[1]);
    }
    if (sl_jinja_emit_json(state, call->bound[0], &style)) {
        return state->code;
    }
    return sl_jinja_capture(state, mark, result);
}

/* ---- numbers and the rest ---- */

static bool parse_integer(sl_view text, int base, int64_t *value) {
    text = sl_jinja_strip(text, (sl_view){0}, 3);
    bool negative = text.length && text.data[0] == '-', any = false, separated = false;
    size_t i = text.length && (text.data[0] == '-' || text.data[0] == '+');
    if (text.length > i + 1 && text.data[i] == '0' && (base == 16 || base == 8 || base == 2) &&
        (text.data[i + 1] | 0x20) == (base == 16  ? 'x'
                                      : base == 8 ? 'o'
                                                  : 'b')) {
        i += 2;
    }
    *value = 0;
    for (; i < text.length; i++) {
        char c = text.data[i], lower = (char)(c | 0x20);
        int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
        if (c == '_' && any && !separated) {
            separated = true;
            continue;
        }
        if (digit >= base || __builtin_mul_overflow(*value, base, value) ||
            __builtin_add_overflow(*value, negative ? -digit : digit, value)) {
            return false;
        }
        any = true;
        separated = false;
    }
    return any && !separated;
}

FILTER(filter_int) {
    sl_jinja_value value = call->bound[0];
    int64_t integer, base = 10;
    double real;
    if (given(call->bound[2]) && (!sl_jinja_as_int(call->bound[2], &base) || base < 2 || base > 36)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "int: the base must be from 2 to 36");
    }
    if (value.kind == SL_JINJA_UNDEFINED) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "'%.*s' is undefined", (int)value.length, value.text);
    }
    *result = given(call->bound[1]) ? call->bound[1] : sl_jinja_int(0);
    if (value.kind == SL_JINJA_STRING && sl_jinja_spend(state, value.length / 8)) {
        return state->code;
    }
    if (sl_jinja_as_int(value, &integer) ||
        (value.kind == SL_JINJA_STRING && parse_integer(sl_jinja_view(value), (int)base, &integer))) {
        *result = sl_jinja_int(integer);
        return 0;
    }
    if (value.kind == SL_JINJA_FLOAT ||
        (value.kind == SL_JINJA_STRING && sl_jinja_parse_float(sl_jinja_view(value), &real))) {
        real = value.kind == SL_JINJA_FLOAT ? value.real : real;
        if (isnan(real)) {
            return 0;
        }
        if (!(fabs(real) < 9.2e18)) {
            return sl_jinja_fail(state, SL_ERR_LIMIT, "an integer does not fit in 64 bits");
        }
        *result = sl_jinja_int((int64_t)real);
    }
    return 0;
}

FILTER(filter_float) {
    sl_jinja_value value = call->bound[0];
    double real;
    if (value.kind == SL_JINJA_UNDEFINED) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "'%.*s' is undefined", (int)value.length, value.text);
    }
    *result = given(call->bound[1]) ? call->bound[1] : sl_jinja_float(0);
    if (value.kind == SL_JINJA_STRING && sl_jinja_spend(state, value.length / 16)) {
        return state->code;
    }
    if (sl_jinja_is_number(value)) {
        *result = sl_jinja_float(sl_jinja_as_float(value));
    } else if (value.kind == SL_JINJA_STRING && sl_jinja_parse_float(sl_jinja_view(value), &real)) {
        *result = sl_jinja_float(real);
    }
    return 0;
}

static int need_number(sl_jinja *state, const sl_jinja_call_frame *call) {
    return sl_jinja_is_number(call->bound[0])
               ? 0
               : sl_jinja_fail(state, SL_ERR_INVALID, "%s takes a number, not a %s", call->row->name,
                               sl_jinja_type_name(call->bound[0]));
}

FILTER(filter_abs) {
    int64_t integer;
    if (need_number(state, call)) {
        return state->code;
    }
    if (!sl_jinja_as_int(call->bound[0], &integer)) {
        *result = sl_jinja_float(fabs(call->bound[0].real));
        return 0;
    }
    *result = sl_jinja_int(integer);
    return integer < 0 ? sl_jinja_negate(state, *result, result) : 0;
}

FILTER(filter_round) {
    int64_t precision = 0, integer;
    sl_jinja_value method = call->bound[2];
    sl_view how = method.kind == SL_JINJA_STRING ? sl_jinja_view(method) : sl_view_of("common");
    bool common = sl_view_is(how, "common"), up = sl_view_is(how, "ceil");
    if (need_number(state, call)) {
        return state->code;
    }
    if ((given(call->bound[1]) && !sl_jinja_as_int(call->bound[1], &precision)) || llabs(precision) > 300 ||
        !(common || up || sl_view_is(how, "floor"))) {
        return sl_jinja_fail(state, SL_ERR_INVALID,
                             "round takes a precision and 'common', 'ceil' or 'floor'");
    }
    if (common && precision >= 0 && sl_jinja_as_int(call->bound[0], &integer)) {
        *result = sl_jinja_int(integer);
        return 0;
    }
    double value = sl_jinja_as_float(call->bound[0]), scale = pow(10, (double)llabs(precision));
    if (!isfinite(value)) {
        *result = sl_jinja_float(value);
    } else if (!common) {
        double scaled = precision < 0 ? value / scale : value * scale;
        scaled = up ? ceil(scaled) : floor(scaled);
        *result = sl_jinja_float(precision < 0 ? scaled * scale : scaled / scale);
    } else if (precision < 0) {
        *result = sl_jinja_float(rint(value / scale) * scale);
    } else { /* the decimal expansion is exact, so that this rounds as Python does */
        char text[700];
        if (sl_jinja_spend(state, SL_JINJA_FLOAT_STEPS)) {
            return state->code;
        }
        snprintf(text, sizeof text, "%.*f", (int)precision, value);
        *result = sl_jinja_float(strtod(text, NULL));
    }
    if (common && sl_jinja_as_int(call->bound[0], &integer)) {
        *result = sl_jinja_int((int64_t)result->real);
    }
    return 0;
}

FILTER(filter_default) {
    sl_jinja_value value = call->bound[0];
    bool replace =
        value.kind == SL_JINJA_UNDEFINED || (sl_jinja_truthy(call->bound[2]) && !sl_jinja_truthy(value));
    *result = !replace ? value : given(call->bound[1]) ? call->bound[1] : sl_jinja_text("", 0);
    (void)state;
    return 0;
}

FILTER(filter_safe) {
    return sl_jinja_str(state, call->bound[0], result);
}

FILTER(filter_attr) {
    if (call->bound[1].kind != SL_JINJA_STRING) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "attr takes a name");
    }
    if (call->bound[0].kind == SL_JINJA_DICT) { /* attributes only, not items */
        const sl_jinja_builtin *row = sl_jinja_find_method(SL_JINJA_DICT, sl_jinja_view(call->bound[1]));
        if (!row) {
            *result = sl_jinja_undefined(sl_jinja_view(call->bound[1]));
            return 0;
        }
    }
    return sl_jinja_attribute(state, call->bound[0], sl_jinja_view(call->bound[1]), result);
}

static const sl_jinja_builtin filters[] = {
    {"abs", "", 0, filter_abs, 0},
    {"attr", "name", 1, filter_attr, 0},
    {"capitalize", "", 0, filter_case, SL_JINJA_CAPITALIZE},
    {"count", "", 0, filter_length, 0},
    {"d", "default_value,boolean", 0, filter_default, 0},
    {"default", "default_value,boolean", 0, filter_default, 0},
    {"dictsort", "case_sensitive,by,reverse", 0, filter_dictsort, 0},
    {"e", "", 0, filter_escape, 0},
    {"escape", "", 0, filter_escape, 0},
    {"first", "", 0, filter_first, 0},
    {"float", "default", 0, filter_float, 0},
    {"format", "*", 0, filter_format, 0},
    {"indent", "width,first,blank", 0, filter_indent, 0},
    {"int", "default,base", 0, filter_int, 0},
    {"items", "", 0, filter_items, 0},
    {"join", "d,attribute", 0, filter_join, 0},
    {"last", "", 0, filter_last, 0},
    {"length", "", 0, filter_length, 0},
    {"list", "", 0, filter_list, 0},
    {"lower", "", 0, filter_case, SL_JINJA_LOWER},
    {"map", "*", 0, filter_map, 0},
    {"max", "case_sensitive,attribute", 0, filter_extreme, 1},
    {"min", "case_sensitive,attribute", 0, filter_extreme, -1},
    {"reject", "*", 0, filter_select, 1},
    {"rejectattr", "*", 0, filter_select, 3},
    {"replace", "old,new,count", 2, filter_replace, 0},
    {"reverse", "", 0, filter_reverse, 0},
    {"round", "precision,method", 0, filter_round, 0},
    {"safe", "", 0, filter_safe, 0},
    {"select", "*", 0, filter_select, 0},
    {"selectattr", "*", 0, filter_select, 2},
    {"sort", "reverse,case_sensitive,attribute", 0, filter_sort, 0},
    {"string", "", 0, filter_string, 0},
    {"sum", "attribute,start", 0, filter_sum, 0},
    {"title", "", 0, filter_case, SL_JINJA_TITLE_WORDS},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, filter_tojson, 0},
    {"trim", "chars", 0, filter_trim, 0},
    {"unique", "case_sensitive,attribute", 0, filter_unique, 0},
    {"upper", "", 0, filter_case, SL_JINJA_UPPER},
};

const sl_jinja_builtin *sl_jinja_find_filter(sl_view name) {
    return sl_jinja_find_row(filters, sizeof filters / sizeof *filters, name);
}
