/* Tests: "value is name(arguments)". */
#include "chat/evaluator.h"

#include <math.h>
#include <utf8proc.h>

#define TEST(name) static int name(sl_jinja *state, const sl_jinja_call_frame *call, sl_jinja_value *result)

static int verdict(sl_jinja_value *result, bool value) {
    *result = sl_jinja_bool(value);
    return 0;
}

/* detail: bits of the kinds that pass */
#define KIND(kind) (1 << (kind))

TEST(test_kind) {
    (void)state;
    return verdict(result, call->row->detail & KIND(call->bound[0].kind));
}

/* detail: 0 false, 1 true */
TEST(test_truth) {
    (void)state;
    return verdict(result,
                   call->bound[0].kind == SL_JINJA_BOOL && call->bound[0].boolean == call->row->detail);
}

/* detail: a sl_jinja_operator */
TEST(test_operator) {
    bool holds;
    if (sl_jinja_test_compare(state, (sl_jinja_operator)call->row->detail, call->bound[0], call->bound[1],
                              &holds)) {
        return state->code;
    }
    return verdict(result, holds);
}

/* detail: the remainder to find; the divisor is 2 or an argument */
TEST(test_divisible) {
    sl_jinja_value divisor = call->bound[1].kind == SL_JINJA_MISSING ? sl_jinja_int(2) : call->bound[1],
                   remainder;
    bool equal;
    if (sl_jinja_binary(state, SL_JINJA_MODULO, call->bound[0], divisor, &remainder) ||
        sl_jinja_equal(state, remainder, sl_jinja_int(call->row->detail), &equal)) {
        return state->code;
    }
    return verdict(result, equal);
}

/* detail: the utf8proc category that all cased characters must have */
TEST(test_case) {
    sl_jinja_value string;
    if (sl_jinja_str(state, call->bound[0], &string) || sl_jinja_spend(state, string.length / 4)) {
        return state->code;
    }
    bool any = false;
    for (sl_view text = sl_jinja_view(string); text.length;) {
        uint32_t c;
        size_t size = sl_jinja_character(text, &c);
        int category = utf8proc_category((utf8proc_int32_t)c);
        text.data += size;
        text.length -= size;
        if (category == call->row->detail) {
            any = true;
        } else if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
                   category == UTF8PROC_CATEGORY_LT) {
            return verdict(result, false);
        }
    }
    return verdict(result, any);
}

TEST(test_sameas) {
    sl_jinja_value a = call->bound[0], b = call->bound[1];
    bool equal = false;
    if (a.kind == b.kind && (sl_jinja_is_number(a) || a.kind == SL_JINJA_NONE || a.kind == SL_JINJA_STRING)) {
        if (sl_jinja_equal(state, a, b, &equal)) {
            return state->code;
        }
    } else if (a.kind == b.kind && a.kind != SL_JINJA_UNDEFINED) {
        equal = a.list == b.list;
    }
    return verdict(result, equal);
}

/* detail: 0 a filter's name, 1 a test's */
TEST(test_name) {
    (void)state;
    if (call->bound[0].kind != SL_JINJA_STRING) {
        return verdict(result, false);
    }
    sl_view name = sl_jinja_view(call->bound[0]);
    return verdict(result,
                   (call->row->detail ? sl_jinja_find_test(name) : sl_jinja_find_filter(name)) != NULL);
}

enum {
    NUMBERS = KIND(SL_JINJA_BOOL) | KIND(SL_JINJA_INT) | KIND(SL_JINJA_FLOAT),
    SEQUENCES = KIND(SL_JINJA_UNDEFINED) | KIND(SL_JINJA_STRING) | KIND(SL_JINJA_LIST) |
                KIND(SL_JINJA_TUPLE) | KIND(SL_JINJA_RANGE) | KIND(SL_JINJA_DICT),
    ITERABLES = SEQUENCES | KIND(SL_JINJA_GENERATOR) | KIND(SL_JINJA_VIEW) | KIND(SL_JINJA_LOOP),
    CALLABLES =
        KIND(SL_JINJA_FUNCTION) | KIND(SL_JINJA_METHOD) | KIND(SL_JINJA_MACRO) | KIND(SL_JINJA_UNDEFINED),
};

static const sl_jinja_builtin tests[] = {
    {"!=", "other", 1, test_operator, SL_JINJA_NOT_EQUAL},
    {"<", "other", 1, test_operator, SL_JINJA_LESS},
    {"<=", "other", 1, test_operator, SL_JINJA_LESS_EQUAL},
    {"==", "other", 1, test_operator, SL_JINJA_EQUAL},
    {">", "other", 1, test_operator, SL_JINJA_GREATER},
    {">=", "other", 1, test_operator, SL_JINJA_GREATER_EQUAL},
    {"boolean", "", 0, test_kind, KIND(SL_JINJA_BOOL)},
    {"callable", "", 0, test_kind, CALLABLES},
    {"defined", "", 0, test_kind, ~KIND(SL_JINJA_UNDEFINED)},
    {"divisibleby", "num", 1, test_divisible, 0},
    {"eq", "other", 1, test_operator, SL_JINJA_EQUAL},
    {"equalto", "other", 1, test_operator, SL_JINJA_EQUAL},
    {"escaped", "", 0, test_kind, 0},
    {"even", "", 0, test_divisible, 0},
    {"false", "", 0, test_truth, 0},
    {"filter", "", 0, test_name, 0},
    {"float", "", 0, test_kind, KIND(SL_JINJA_FLOAT)},
    {"ge", "other", 1, test_operator, SL_JINJA_GREATER_EQUAL},
    {"greaterthan", "other", 1, test_operator, SL_JINJA_GREATER},
    {"gt", "other", 1, test_operator, SL_JINJA_GREATER},
    {"in", "seq", 1, test_operator, SL_JINJA_IN},
    {"integer", "", 0, test_kind, KIND(SL_JINJA_INT)},
    {"iterable", "", 0, test_kind, ITERABLES},
    {"le", "other", 1, test_operator, SL_JINJA_LESS_EQUAL},
    {"lessthan", "other", 1, test_operator, SL_JINJA_LESS},
    {"lower", "", 0, test_case, UTF8PROC_CATEGORY_LL},
    {"lt", "other", 1, test_operator, SL_JINJA_LESS},
    {"mapping", "", 0, test_kind, KIND(SL_JINJA_DICT)},
    {"ne", "other", 1, test_operator, SL_JINJA_NOT_EQUAL},
    {"none", "", 0, test_kind, KIND(SL_JINJA_NONE)},
    {"number", "", 0, test_kind, NUMBERS},
    {"odd", "", 0, test_divisible, 1},
    {"sameas", "other", 1, test_sameas, 0},
    {"sequence", "", 0, test_kind, SEQUENCES},
    {"string", "", 0, test_kind, KIND(SL_JINJA_STRING)},
    {"test", "", 0, test_name, 1},
    {"true", "", 0, test_truth, 1},
    {"undefined", "", 0, test_kind, KIND(SL_JINJA_UNDEFINED)},
    {"upper", "", 0, test_case, UTF8PROC_CATEGORY_LU},
};

const sl_jinja_builtin *sl_jinja_find_test(sl_view name) {
    return sl_jinja_find_row(tests, sizeof tests / sizeof *tests, name);
}
