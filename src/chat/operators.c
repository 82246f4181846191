/* What operators, attributes and subscripts do to values. */
#include "chat/evaluator.h"

#include <math.h>
#include <stdio.h>

static int overflow(sl_jinja *state) {
    return sl_jinja_fail(state, SL_ERR_LIMIT, "an integer does not fit in 64 bits");
}

static int wrong_types(sl_jinja *state, const char *symbol, sl_jinja_value a, sl_jinja_value b) {
    if (a.kind == SL_JINJA_UNDEFINED || b.kind == SL_JINJA_UNDEFINED) {
        sl_jinja_value undefined = a.kind == SL_JINJA_UNDEFINED ? a : b;
        return sl_jinja_fail(state, SL_ERR_INVALID, "'%.*s' is undefined", (int)undefined.length,
                             undefined.text);
    }
    return sl_jinja_fail(state, SL_ERR_INVALID, "unsupported operand types for %s: '%s' and '%s'", symbol,
                         sl_jinja_type_name(a), sl_jinja_type_name(b));
}

static int concatenate_text(sl_jinja *state, sl_view a, sl_view b, sl_jinja_value *result) {
    char *both = sl_jinja_alloc(state, a.length + b.length + 1, 1);
    if (!both || sl_jinja_spend(state, (a.length + b.length) / 64)) {
        return state->code;
    }
    if (a.length) {
        memcpy(both, a.data, a.length);
    }
    if (b.length) {
        memcpy(both + a.length, b.data, b.length);
    }
    *result = sl_jinja_text(both, a.length + b.length);
    return 0;
}

static int add_containers(sl_jinja *state, sl_jinja_value a, sl_jinja_value b, sl_jinja_value *result) {
    if (a.kind == SL_JINJA_STRING) {
        return concatenate_text(state, sl_jinja_view(a), sl_jinja_view(b), result);
    }
    if (sl_jinja_list_new(state, a.kind, a.list->count + b.list->count, result)) {
        return state->code;
    }
    for (size_t i = 0; i < result->list->count; i++) {
        result->list->items[i] = i < a.list->count ? a.list->items[i] : b.list->items[i - a.list->count];
    }
    return 0;
}

static bool is_sequence(sl_jinja_value value) {
    return value.kind == SL_JINJA_STRING || value.kind == SL_JINJA_LIST || value.kind == SL_JINJA_TUPLE;
}

static int repeat(sl_jinja *state, sl_jinja_value value, int64_t times, sl_jinja_value *result) {
    size_t count = value.kind == SL_JINJA_STRING ? value.length : value.list->count;
    uint64_t total = count;
    times = times < 0 ? 0 : times;
    if (__builtin_mul_overflow(total, (uint64_t)times, &total) || total > state->limits.memory_bytes) {
        return sl_jinja_fail(state, SL_ERR_LIMIT, "the rendering computes more than %llu bytes",
                             (unsigned long long)state->limits.memory_bytes);
    }
    if (value.kind != SL_JINJA_STRING) {
        if (sl_jinja_list_new(state, value.kind, total, result)) {
            return state->code;
        }
        for (size_t i = 0; i < total; i++) {
            result->list->items[i] = value.list->items[i % count];
        }
        return 0;
    }
    char *text = sl_jinja_alloc(state, total + 1, 1);
    if (!text || sl_jinja_spend(state, total / 16)) {
        return state->code;
    }
    for (size_t done = 0, size = count; done < total; done += size) { /* what is there already, doubled */
        size = done == 0 ? count : done < total - done ? done : total - done;
        memcpy(text + done, done == 0 ? value.text : text, size);
    }
    *result = sl_jinja_text(text, total);
    return 0;
}

static int integer_power(sl_jinja *state, int64_t base, int64_t exponent, sl_jinja_value *result) {
    if (exponent < 0) {
        if (base == 0) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "0 cannot be raised to a negative power");
        }
        *result = sl_jinja_float(pow((double)base, (double)exponent));
        return 0;
    }
    int64_t value = 1;
    for (;;) {
        if ((exponent & 1) && __builtin_mul_overflow(value, base, &value)) {
            return overflow(state);
        }
        exponent >>= 1;
        if (exponent == 0) {
            break;
        }
        if (__builtin_mul_overflow(base, base, &base)) {
            return overflow(state);
        }
    }
    *result = sl_jinja_int(value);
    return 0;
}

static int integer_arithmetic(sl_jinja *state, sl_jinja_operator operation, int64_t a, int64_t b,
                              sl_jinja_value *result) {
    int64_t value = 0;
    bool over = false;
    switch (operation) {
    case SL_JINJA_ADD:
        over = __builtin_add_overflow(a, b, &value);
        break;
    case SL_JINJA_SUBTRACT:
        over = __builtin_sub_overflow(a, b, &value);
        break;
    case SL_JINJA_MULTIPLY:
        over = __builtin_mul_overflow(a, b, &value);
        break;
    case SL_JINJA_POWER:
        return integer_power(state, a, b, result);
    default:
        if (b == 0) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "division by zero");
        }
        if (operation == SL_JINJA_DIVIDE) {
            *result = sl_jinja_float((double)a / (double)b);
            return 0;
        }
        if (b == -1) {
            over = operation == SL_JINJA_FLOOR_DIVIDE && __builtin_sub_overflow(0, a, &value);
            break;
        }
        int64_t remainder = a % b;
        bool adjust = remainder != 0 && (remainder < 0) != (b < 0); /* the remainder has the divisor's sign */
        value = operation == SL_JINJA_MODULO ? remainder + (adjust ? b : 0) : a / b - adjust;
    }
    *result = sl_jinja_int(value);
    return over ? overflow(state) : 0;
}

static int float_arithmetic(sl_jinja *state, sl_jinja_operator operation, double a, double b,
                            sl_jinja_value *result) {
    double value;
    switch (operation) {
    case SL_JINJA_ADD:
        value = a + b;
        break;
    case SL_JINJA_SUBTRACT:
        value = a - b;
        break;
    case SL_JINJA_MULTIPLY:
        value = a * b;
        break;
    case SL_JINJA_POWER:
        value = pow(a, b);
        if ((isnan(value) && !isnan(a) && !isnan(b)) || (isinf(value) && isfinite(a) && isfinite(b))) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "the result of ** is out of range");
        }
        break;
    default:
        if (b == 0) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "division by zero");
        }
        if (operation == SL_JINJA_DIVIDE) {
            value = a / b;
            break;
        }
        value = fmod(a, b);
        double quotient = (a - value) / b;
        if (value != 0 && (value < 0) != (b < 0)) {
            value += b;
            quotient -= 1;
        } else if (value == 0) {
            value = copysign(0, b);
        }
        if (operation == SL_JINJA_FLOOR_DIVIDE) {
            value = quotient == 0 ? copysign(0, a / b) : floor(quotient) + (quotient - floor(quotient) > 0.5);
        }
    }
    *result = sl_jinja_float(value);
    return 0;
}

int sl_jinja_binary(sl_jinja *state, sl_jinja_operator operation, sl_jinja_value a, sl_jinja_value b,
                    sl_jinja_value *result) {
    static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "**"};
    int64_t x, y;
    bool a_int = sl_jinja_as_int(a, &x), b_int = sl_jinja_as_int(b, &y);
    if (a_int && b_int) {
        return integer_arithmetic(state, operation, x, y, result);
    }
    if (sl_jinja_is_number(a) && sl_jinja_is_number(b)) {
        return float_arithmetic(state, operation, sl_jinja_as_float(a), sl_jinja_as_float(b), result);
    }
    if (operation == SL_JINJA_ADD && a.kind == b.kind && is_sequence(a)) {
        return add_containers(state, a, b, result);
    }
    if (operation == SL_JINJA_MULTIPLY && is_sequence(a) && b_int) {
        return repeat(state, a, y, result);
    }
    if (operation == SL_JINJA_MULTIPLY && is_sequence(b) && a_int) {
        return repeat(state, b, x, result);
    }
    if (operation == SL_JINJA_MODULO && a.kind == SL_JINJA_STRING) {
        return sl_jinja_format(state, sl_jinja_view(a), b, result);
    }
    return wrong_types(state, symbols[operation], a, b);
}

int sl_jinja_negate(sl_jinja *state, sl_jinja_value a, sl_jinja_value *result) {
    if (a.kind == SL_JINJA_FLOAT) {
        *result = sl_jinja_float(-a.real);
        return 0;
    }
    int64_t integer;
    if (!sl_jinja_as_int(a, &integer)) {
        return wrong_types(state, "unary -", a, sl_jinja_int(0));
    }
    return integer_arithmetic(state, SL_JINJA_SUBTRACT, 0, integer, result);
}

int sl_jinja_test_compare(sl_jinja *state, sl_jinja_operator operation, sl_jinja_value a, sl_jinja_value b,
                          bool *result) {
    int order;
    switch (operation) {
    case SL_JINJA_EQUAL:
    case SL_JINJA_NOT_EQUAL:
        if (sl_jinja_equal(state, a, b, result)) {
            return state->code;
        }
        *result = *result == (operation == SL_JINJA_EQUAL);
        return 0;
    case SL_JINJA_IN:
    case SL_JINJA_NOT_IN:
        if (sl_jinja_contains(state, b, a, result)) {
            return state->code;
        }
        *result = *result == (operation == SL_JINJA_IN);
        return 0;
    default:
        if (sl_jinja_compare(state, a, b, &order)) {
            return state->code;
        }
        *result = order != 2 && (operation == SL_JINJA_LESS         ? order < 0
                                 : operation == SL_JINJA_LESS_EQUAL ? order <= 0
                                 : operation == SL_JINJA_GREATER    ? order > 0
                                                                    : order >= 0);
        return 0;
    }
}

/* ---- attributes and items ---- */

static bool loop_attribute(const sl_jinja_loop *loop, sl_view name, sl_jinja_value *result) {
    int64_t index = (int64_t)loop->index, count = (int64_t)loop->items.count;
    const struct {
        const char *name;
        sl_jinja_value value;
    } rows[] = {
        {"index", sl_jinja_int(index + 1)},
        {"index0", sl_jinja_int(index)},
        {"revindex", sl_jinja_int(count - index)},
        {"revindex0", sl_jinja_int(count - index - 1)},
        {"first", sl_jinja_bool(index == 0)},
        {"last", sl_jinja_bool(index + 1 == count)},
        {"length", sl_jinja_int(count)},
        {"depth", sl_jinja_int(1)}, /* counts recursive loops only */
        {"depth0", sl_jinja_int(0)},
        {"previtem", index > 0 ? loop->items.items[index - 1] : sl_jinja_undefined(sl_view_of("previtem"))},
        {"nextitem",
         index + 1 < count ? loop->items.items[index + 1] : sl_jinja_undefined(sl_view_of("nextitem"))},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (sl_view_is(name, rows[i].name)) {
            *result = rows[i].value;
            return true;
        }
    }
    return false;
}

/* A method or a computed attribute; *found tells. */
static int find_attribute(sl_jinja *state, sl_jinja_value value, sl_view name, sl_jinja_value *result,
                          bool *found) {
    *found = value.kind == SL_JINJA_LOOP && loop_attribute(value.loop, name, result);
    if (*found) {
        return 0;
    }
    const sl_jinja_builtin *row = sl_jinja_find_method(value.kind, name);
    if (row) {
        sl_jinja_method *method = sl_jinja_alloc(state, 1, sizeof *method);
        if (!method) {
            return state->code;
        }
        *method = (sl_jinja_method){.self = value, .row = row};
        *result = (sl_jinja_value){.kind = SL_JINJA_METHOD, .method = method};
        *found = true;
    }
    return 0;
}

static int refuse_undefined(sl_jinja *state, sl_jinja_value value) {
    return sl_jinja_fail(state, SL_ERR_INVALID, "'%.*s' is undefined", (int)value.length, value.text);
}

int sl_jinja_attribute(sl_jinja *state, sl_jinja_value value, sl_view name, sl_jinja_value *result) {
    bool found;
    if (value.kind == SL_JINJA_UNDEFINED) {
        return refuse_undefined(state, value);
    }
    if (find_attribute(state, value, name, result, &found) || found) {
        return state->code;
    }
    bool has_names = value.kind == SL_JINJA_DICT || value.kind == SL_JINJA_NAMESPACE;
    sl_jinja_value *item = NULL;
    if (has_names && sl_jinja_dict_get(state, value.dict, sl_jinja_text(name.data, name.length), &item)) {
        return state->code;
    }
    *result = item ? *item : sl_jinja_undefined(name);
    return 0;
}

/* Python's index: negative numbers count from the end; false when outside. */
static bool normal_index(int64_t *index, int64_t count) {
    *index += *index < 0 ? count : 0;
    return *index >= 0 && *index < count;
}

static int text_item(sl_jinja *state, sl_view text, int64_t index, sl_jinja_value *result) {
    *result = sl_jinja_undefined(sl_view_of("index out of range"));
    const uint64_t touched = index < 0 || (uint64_t)index > text.length ? text.length : (uint64_t)index;
    if (sl_jinja_spend(state, touched / 8)) {
        return state->code;
    }
    if (normal_index(&index, index < 0 ? (int64_t)sl_jinja_count_characters(text) : INT64_MAX)) {
        size_t at = sl_jinja_character_offset(text, (size_t)index);
        uint32_t code_point;
        if (at < text.length) {
            *result = sl_jinja_text(
                text.data + at, sl_jinja_character((sl_view){text.data + at, text.length - at}, &code_point));
        }
    }
    return 0;
}

static bool hashable(sl_jinja_value key) {
    return sl_jinja_is_number(key) || key.kind == SL_JINJA_STRING || key.kind == SL_JINJA_NONE ||
           key.kind == SL_JINJA_TUPLE;
}

int sl_jinja_item(sl_jinja *state, sl_jinja_value value, sl_jinja_value key, sl_jinja_value *result) {
    int64_t index;
    bool found;
    *result = sl_jinja_undefined(key.kind == SL_JINJA_STRING ? sl_jinja_view(key) : sl_view_of("item"));
    if (value.kind == SL_JINJA_UNDEFINED) {
        return refuse_undefined(state, value);
    }
    if (value.kind == SL_JINJA_DICT && hashable(key)) {
        sl_jinja_value *item;
        if (sl_jinja_dict_get(state, value.dict, key, &item)) {
            return state->code;
        }
        if (item) {
            *result = *item;
            return 0;
        }
    } else if (value.kind == SL_JINJA_STRING && sl_jinja_as_int(key, &index)) {
        return text_item(state, sl_jinja_view(value), index, result);
    } else if ((value.kind == SL_JINJA_LIST || value.kind == SL_JINJA_TUPLE ||
                value.kind == SL_JINJA_RANGE) &&
               sl_jinja_as_int(key, &index)) {
        if (normal_index(&index, (int64_t)value.list->count)) {
            *result = value.list->items[index];
        }
        return 0;
    }
    if (key.kind == SL_JINJA_STRING && value.kind == SL_JINJA_NAMESPACE) {
        return sl_jinja_attribute(state, value, sl_jinja_view(key), result);
    }
    if (key.kind == SL_JINJA_STRING && find_attribute(state, value, sl_jinja_view(key), result, &found)) {
        return state->code;
    }
    return 0;
}

/* One end of a slice: NONE gives `missing`, the rest is clamped to [low, high] as Python does. */
static int slice_end(sl_jinja *state, sl_jinja_value part, int64_t count, const int64_t bounds[2],
                     int64_t missing, int64_t *result) {
    if (part.kind == SL_JINJA_NONE) {
        *result = missing;
        return 0;
    }
    if (!sl_jinja_as_int(part, result)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "a slice index cannot be a %s", sl_jinja_type_name(part));
    }
    *result += *result < 0 ? count : 0;
    *result = *result < bounds[0] ? bounds[0] : *result > bounds[1] ? bounds[1] : *result;
    return 0;
}

static int slice_text(sl_jinja *state, sl_view text, int64_t start, int64_t stop, sl_jinja_value *result) {
    size_t from = sl_jinja_character_offset(text, (size_t)start);
    sl_view rest = {text.data + from, text.length - from};
    size_t length = stop > start ? sl_jinja_character_offset(rest, (size_t)(stop - start)) : 0;
    *result = sl_jinja_text(rest.data, length);
    return sl_jinja_spend(state, (from + length) / 16);
}

static int join_characters(sl_jinja *state, const sl_jinja_list *list, sl_jinja_value *result) {
    size_t mark = state->out->length;
    for (size_t i = 0; i < list->count; i++) {
        if (sl_jinja_emit(state, list->items[i].text, list->items[i].length)) {
            return state->code;
        }
    }
    return sl_jinja_capture(state, mark, result);
}

int sl_jinja_slice(sl_jinja *state, sl_jinja_value value, const sl_jinja_value parts[3],
                   sl_jinja_value *result) {
    int64_t count, start, stop, step = 1;
    if (value.kind == SL_JINJA_UNDEFINED) {
        return refuse_undefined(state, value);
    }
    bool text = value.kind == SL_JINJA_STRING;
    if (!text && value.kind != SL_JINJA_LIST && value.kind != SL_JINJA_TUPLE &&
        value.kind != SL_JINJA_RANGE) {
        *result =
            sl_jinja_undefined(sl_view_of("slice")); /* a lookup that fails, as Python's sandbox has it */
        return 0;
    }
    if (parts[2].kind != SL_JINJA_NONE && (!sl_jinja_as_int(parts[2], &step) || step == 0)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "a slice step must be an integer and not 0");
    }
    if (sl_jinja_length(state, value, &count)) {
        return state->code;
    }
    const int64_t bounds[2] = {step > 0 ? 0 : -1, step > 0 ? count : count - 1};
    if (slice_end(state, parts[0], count, bounds, bounds[step < 0], &start) ||
        slice_end(state, parts[1], count, bounds, bounds[step > 0], &stop)) {
        return state->code;
    }
    if (text && step == 1) {
        return slice_text(state, sl_jinja_view(value), start, stop, result);
    }
    uint64_t distance = step > 0 ? (stop > start ? (uint64_t)(stop - start) : 0)
                                 : (start > stop ? (uint64_t)(start - stop) : 0);
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    sl_jinja_list items;
    if (sl_jinja_iterate(state, value, &items) ||
        sl_jinja_list_new(state,
                          value.kind == SL_JINJA_RANGE ? SL_JINJA_LIST
                          : text                       ? SL_JINJA_LIST
                                                       : value.kind,
                          (size_t)((distance + stride - 1) / stride), result)) {
        return state->code;
    }
    int64_t at = start;
    for (size_t i = 0; i < result->list->count; i++) {
        result->list->items[i] = items.items[at];
        if (i + 1 < result->list->count) { /* a huge step must not overflow behind the last item */
            at += step;
        }
    }
    return text ? join_characters(state, result->list, result) : 0;
}

/* ---- formatting with "%" ---- */

typedef struct format_spec {
    bool left, zero, plus;
    int width, precision; /* precision: -1 when not given */
} format_spec;

static int read_number(sl_view format, size_t *at, int *number) {
    *number = 0;
    while (*at < format.length && format.data[*at] >= '0' && format.data[*at] <= '9') {
        if (*number > 1000) {
            return -1;
        }
        *number = *number * 10 + format.data[(*at)++] - '0';
    }
    return 0;
}

static int read_spec(sl_jinja *state, sl_view format, size_t *at, format_spec *spec) {
    *spec = (format_spec){.precision = -1};
    for (; *at < format.length && strchr("-0+", format.data[*at]); ++*at) {
        spec->left = spec->left || format.data[*at] == '-';
        spec->zero = spec->zero || format.data[*at] == '0';
        spec->plus = spec->plus || format.data[*at] == '+';
    }
    int code = read_number(format, at, &spec->width);
    if (!code && *at < format.length && format.data[*at] == '.') {
        ++*at;
        code = read_number(format, at, &spec->precision);
    }
    if (code || spec->width > 1000 || spec->precision > 300) {
        return sl_jinja_fail(state, SL_ERR_LIMIT, "a format's width or precision is too large");
    }
    return 0;
}

static int pad(sl_jinja *state, sl_jinja_value text, const format_spec *spec, bool number) {
    if (sl_jinja_spend(state, text.length / 16 + (uint64_t)spec->width / 4)) {
        return state->code;
    }
    int64_t fill = spec->width - (int64_t)sl_jinja_count_characters(sl_jinja_view(text));
    bool zero = spec->zero && number && !spec->left;
    sl_view body = sl_jinja_view(text);
    if (zero && fill > 0 && body.length && (body.data[0] == '-' || body.data[0] == '+')) {
        if (sl_jinja_emit(state, body.data++, 1)) {
            return state->code;
        }
        body.length--;
    }
    for (int64_t i = 0; i < fill && !spec->left; i++) {
        if (sl_jinja_emit_text(state, zero ? "0" : " ")) {
            return state->code;
        }
    }
    if (sl_jinja_emit(state, body.data, body.length)) {
        return state->code;
    }
    for (int64_t i = 0; i < fill && spec->left; i++) {
        if (sl_jinja_emit_text(state, " ")) {
            return state->code;
        }
    }
    return 0;
}

static int format_one(sl_jinja *state, char kind, const format_spec *spec, sl_jinja_value value) {
    char number[700];
    sl_jinja_value text;
    size_t mark = state->out->length;
    if (kind == 's' || kind == 'r') {
        if ((kind == 's' ? sl_jinja_emit_str(state, value) : sl_jinja_emit_repr(state, value)) ||
            sl_jinja_capture(state, mark, &text)) {
            return state->code;
        }
        if (spec->precision >= 0) {
            text.length = (uint32_t)sl_jinja_character_offset(sl_jinja_view(text), (size_t)spec->precision);
        }
        return pad(state, text, spec, false);
    }
    if (!sl_jinja_is_number(value) || !memchr("dixXfFgeE", kind, 9)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "format %%%c does not take a %s", kind,
                             sl_jinja_type_name(value));
    }
    if (kind == 'd' || kind == 'i' || kind == 'x' || kind == 'X') {
        int64_t integer;
        if (!sl_jinja_as_int(value, &integer)) {
            if (kind == 'x' || kind == 'X' || !(fabs(value.real) < 9.2e18)) {
                return sl_jinja_fail(state, SL_ERR_INVALID, "format %%%c does not take a float", kind);
            }
            integer = (int64_t)value.real;
        }
        unsigned long long size = integer < 0 ? 0 - (unsigned long long)integer : (unsigned long long)integer;
        snprintf(number, sizeof number,
                 kind == 'x'   ? "%s%llx"
                 : kind == 'X' ? "%s%llX"
                               : "%s%llu",
                 integer < 0  ? "-"
                 : spec->plus ? "+"
                              : "",
                 size);
    } else {
        char pattern[8] = {'%', '.', '*', kind};
        if (sl_jinja_spend(state, SL_JINJA_FLOAT_STEPS)) {
            return state->code;
        }
        double real = sl_jinja_as_float(value);
        int precision = spec->precision < 0 ? 6 : spec->precision;
        number[0] = '+';
        snprintf(number + 1, sizeof number - 1, pattern, precision, real);
        bool sign = spec->plus && number[1] != '-';
        text = sl_jinja_text(number + !sign, strlen(number) - !sign);
        return pad(state, text, spec, true);
    }
    return pad(state, sl_jinja_text(number, strlen(number)), spec, true);
}

int sl_jinja_format(sl_jinja *state, sl_view format, sl_jinja_value arguments, sl_jinja_value *result) {
    size_t mark = state->out->length, used = 0, at = 0;
    size_t count = arguments.kind == SL_JINJA_TUPLE ? arguments.list->count : 1;
    const sl_jinja_value *items = arguments.kind == SL_JINJA_TUPLE ? arguments.list->items : &arguments;
    if (sl_jinja_spend(state, format.length / 16)) {
        return state->code;
    }
    while (at < format.length) {
        size_t start = at;
        while (at < format.length && format.data[at] != '%') {
            at++;
        }
        if (sl_jinja_emit(state, format.data + start, at - start)) {
            return state->code;
        }
        if (at == format.length) {
            break;
        }
        at++;
        format_spec spec;
        if (sl_jinja_spend(state, 2) || read_spec(state, format, &at, &spec)) {
            return state->code;
        }
        char kind = at < format.length ? format.data[at++] : 0;
        if (kind == '%') {
            if (sl_jinja_emit_text(state, "%")) {
                return state->code;
            }
            continue;
        }
        if (kind == 0 || used == count) {
            return sl_jinja_fail(state, SL_ERR_INVALID,
                                 kind ? "not enough arguments for a format" : "incomplete format");
        }
        if (format_one(state, kind, &spec, items[used++])) {
            return state->code;
        }
    }
    if (used < count && (arguments.kind == SL_JINJA_TUPLE || !(arguments.kind == SL_JINJA_DICT))) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "not all arguments of a format were used");
    }
    return sl_jinja_capture(state, mark, result);
}
