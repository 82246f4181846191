/* Numbers. Those with bounds are written without exponents, integers too. */
#include "grammar/schema_internal.h"

#include "grammar/build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- decimals ---- */

/* Digits with a decimal point `point` digits behind the first. */
static sl_decimal from_digits(sl_schema_context *c, const char *digits, int point, bool negative) {
    sl_decimal decimal = {negative, "0", "", 0};
    int count = (int)strlen(digits), zeros = 0;
    while (count > 0 && digits[count - 1] == '0') {
        count--;
    }
    while (zeros < count && digits[zeros] == '0') {
        zeros++;
    }
    if (count == zeros) {
        decimal.negative = false;
        return decimal;
    }
    digits += zeros;
    count -= zeros;
    point -= zeros;
    const int whole = point > 0 ? point : 0, fraction = count > point ? count - point : 0;
    char *text = sl_schema_alloc(c, (uint64_t)whole + (uint64_t)fraction + 3, 1);
    if (!text) {
        return decimal;
    }
    for (int i = 0; i < whole; i++) {
        text[i] = i < count ? digits[i] : '0';
    }
    if (whole > 0) {
        decimal.whole = text;
    }
    text += whole + 1;
    for (int i = 0; i < fraction; i++) {
        text[i] = point + i >= 0 ? digits[point + i] : '0';
    }
    decimal.fraction = text;
    return decimal;
}

static sl_decimal from_double(sl_schema_context *c, double value) {
    char text[64], digits[64];
    for (int precision = 0; precision < 17; precision++) { /* the shortest that means the same */
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    int count = 0;
    const char *at = text;
    for (; *at && *at != 'e'; at++) { /* whatever the locale's decimal point is */
        if (*at >= '0' && *at <= '9') {
            digits[count++] = *at;
        }
    }
    digits[count] = '\0';
    sl_decimal decimal = from_digits(c, digits, 1 + (*at ? atoi(at + 1) : 0), text[0] == '-');
    decimal.nearest = value;
    return decimal;
}

sl_decimal sl_schema_decimal(sl_schema_context *c, const json_t *number) {
    char text[64];
    if (!json_is_integer(number)) {
        return from_double(c, json_real_value(number));
    }
    snprintf(text, sizeof text, "%lld", (long long)json_integer_value(number));
    const bool negative = text[0] == '-';
    sl_decimal decimal = from_digits(c, text + negative, (int)strlen(text + negative), negative);
    decimal.nearest = (double)json_integer_value(number);
    return decimal;
}

/* The next double: readers have no numbers between, and round what is written there. */
static sl_decimal neighbour(sl_schema_context *c, const sl_decimal *of, double towards) {
    return from_double(c, nextafter(of->nearest, towards));
}

static int compare_magnitudes(const sl_decimal *a, const sl_decimal *b) {
    const size_t left = strlen(a->whole), right = strlen(b->whole);
    if (left != right) {
        return left < right ? -1 : 1;
    }
    const int whole = strcmp(a->whole, b->whole);
    const int order = whole ? whole : strcmp(a->fraction, b->fraction); /* no zeros at the end */
    return (order > 0) - (order < 0);
}

int sl_decimal_compare(const sl_decimal *a, const sl_decimal *b) {
    if (a->negative != b->negative) {
        return a->negative ? -1 : 1;
    }
    return a->negative ? -compare_magnitudes(a, b) : compare_magnitudes(a, b);
}

/* The value times 10^places, which is whole; false when it does not fit. */
static bool scaled(const sl_decimal *decimal, size_t places, uint64_t *value) {
    const size_t fraction = strlen(decimal->fraction);
    *value = 0;
    for (size_t i = 0; i < strlen(decimal->whole) + places; i++) {
        const size_t behind = i - strlen(decimal->whole);
        const char digit = i < strlen(decimal->whole) ? decimal->whole[i]
                           : behind < fraction        ? decimal->fraction[behind]
                                                      : '0';
        if (*value > (UINT64_MAX - 9) / 10) {
            return false;
        }
        *value = *value * 10 + (uint64_t)(digit - '0');
    }
    return true;
}

int sl_decimal_is_multiple(const sl_decimal *a, const sl_decimal *b) {
    const size_t left = strlen(a->fraction), right = strlen(b->fraction),
                 places = left > right ? left : right;
    uint64_t value, of, remainder = 0;
    if (!scaled(b, places, &of) || of == 0 || of > UINT64_MAX / 16) {
        return -1;
    }
    if (scaled(a, places, &value)) {
        return value % of == 0;
    }
    for (size_t i = 0; i < strlen(a->whole) + places; i++) {
        const size_t behind = i - strlen(a->whole);
        const char digit = i < strlen(a->whole) ? a->whole[i] : behind < left ? a->fraction[behind] : '0';
        remainder = (remainder * 10 + (uint64_t)(digit - '0')) % of;
    }
    return remainder == 0;
}

/* ---- shapes ---- */

static sl_expression digit(sl_schema_context *c, char first, char last) {
    if (first > last) {
        return sl_expression_nothing(c->builder);
    }
    return sl_expression_character(c->builder, &(sl_character_range){(uint32_t)first, (uint32_t)last}, 1,
                                   false);
}

static sl_expression digits(sl_schema_context *c, int64_t least, int64_t most) {
    return most < least || most < 0 ? sl_expression_nothing(c->builder)
                                    : sl_expression_repeat(c->builder, digit(c, '0', '9'), least, most);
}

static sl_expression any_whole(sl_schema_context *c) {
    return sl_schema_choice(c, 2, sl_schema_literal(c, "0"),
                            sl_schema_sequence(c, 2, digit(c, '1', '9'), digits(c, 0, SL_MOST_WHOLE - 1)));
}

/* With its point. */
static sl_expression any_fraction(sl_schema_context *c) {
    return sl_schema_sequence(c, 2, sl_schema_literal(c, "."), digits(c, 1, SL_MOST_FRACTION));
}

/* Up to 239: with all digits before it a double still holds the value, and what is not 0 does not become 0.
 */
static sl_expression any_exponent(sl_schema_context *c) {
    const sl_character_range letters[] = {{'E', 'E'}, {'e', 'e'}}, signs[] = {{'+', '+'}, {'-', '-'}};
    const sl_expression two = digits(c, 1, 2);
    const sl_expression hundreds = sl_schema_sequence(c, 2, sl_schema_literal(c, "1"), digits(c, 2, 2));
    const sl_expression most =
        sl_schema_sequence(c, 3, sl_schema_literal(c, "2"), digit(c, '0', '3'), digits(c, 1, 1));
    return sl_schema_sequence(c, 3, sl_expression_character(c->builder, letters, 2, false),
                              sl_schema_optional(c, sl_expression_character(c->builder, signs, 2, false)),
                              sl_schema_choice(c, 3, two, hundreds, most));
}

static sl_expression prefix_of(sl_schema_context *c, const char *text, size_t count) {
    return sl_expression_literal(c->builder, text, count);
}

/* ---- magnitudes within bounds ---- */

typedef struct magnitude {
    const sl_decimal *value; /* NULL: no bound */
    bool exclusive;
} magnitude;

/* Fractions (with their point, or nothing) that compare with the bound's; the whole parts are equal. */
static sl_expression fraction_within(sl_schema_context *c, const char *bound, bool above, bool exclusive) {
    sl_expression_list list = {0};
    const size_t length = strlen(bound);
    const sl_expression point = sl_schema_literal(c, ".");
    for (size_t i = 0; i < length && i < SL_MOST_FRACTION; i++) {
        const sl_expression same = prefix_of(c, bound, i);
        const sl_expression other =
            above ? digit(c, (char)(bound[i] + 1), '9') : digit(c, '0', (char)(bound[i] - 1));
        sl_schema_add(
            c, &list,
            sl_schema_sequence(c, 4, point, same, other, digits(c, 0, SL_MOST_FRACTION - 1 - (int64_t)i)));
        if (!above) { /* shorter: less, since the bound does not end in zeros */
            sl_schema_add(c, &list,
                          i ? sl_schema_sequence(c, 2, point, same) : sl_expression_empty(c->builder));
        }
    }
    if (length > SL_MOST_FRACTION) {
        return sl_expression_choice(c->builder, list.rows, list.count);
    }
    const int64_t left = SL_MOST_FRACTION - (int64_t)length;
    const sl_expression same = sl_schema_sequence(c, 2, point, prefix_of(c, bound, length));
    const sl_expression zeros =
        sl_expression_repeat(c->builder, sl_schema_literal(c, "0"), length ? 0 : 1, left);
    if (!exclusive) { /* the bound itself */
        sl_schema_add(c, &list, sl_schema_sequence(c, 2, same, zeros));
        if (length == 0) {
            sl_schema_add(c, &list, sl_expression_empty(c->builder));
        }
    }
    if (above) { /* more digits behind it */
        for (int64_t i = 0; i < left; i++) {
            const sl_expression nulls = sl_expression_repeat(c->builder, sl_schema_literal(c, "0"), i, i);
            sl_schema_add(
                c, &list,
                sl_schema_sequence(c, 4, same, nulls, digit(c, '1', '9'), digits(c, 0, left - 1 - i)));
        }
    }
    return sl_expression_choice(c->builder, list.rows, list.count);
}

/* Numerals without a sign on one side of the bound. */
static sl_expression one_side(sl_schema_context *c, magnitude bound, bool above, bool integer) {
    const char *whole = bound.value->whole;
    const size_t length = strlen(whole);
    sl_expression_list list = {0};
    const sl_expression fraction =
        integer ? sl_expression_empty(c->builder) : sl_schema_optional(c, any_fraction(c));
    if (length > SL_MOST_WHOLE) {
        return above ? sl_expression_nothing(c->builder) : sl_schema_sequence(c, 2, any_whole(c), fraction);
    }
    if (above && length < SL_MOST_WHOLE) {
        sl_schema_add(c, &list,
                      sl_schema_sequence(c, 3, digit(c, '1', '9'),
                                         digits(c, (int64_t)length, SL_MOST_WHOLE - 1), fraction));
    } else if (!above && length > 1) {
        sl_schema_add(c, &list, sl_schema_sequence(c, 2, sl_schema_literal(c, "0"), fraction));
        sl_schema_add(
            c, &list,
            sl_schema_sequence(c, 3, digit(c, '1', '9'), digits(c, 0, (int64_t)length - 2), fraction));
    }
    for (size_t i = 0; i < length; i++) {
        const char lowest = i == 0 && length > 1 ? '1' : '0';
        const sl_expression other =
            above ? digit(c, (char)(whole[i] + 1), '9') : digit(c, lowest, (char)(whole[i] - 1));
        const int64_t left = (int64_t)(length - 1 - i);
        sl_schema_add(
            c, &list,
            sl_schema_sequence(c, 4, prefix_of(c, whole, i), other, digits(c, left, left), fraction));
    }
    sl_expression equal = SL_NO_EXPRESSION;
    if (!integer) {
        equal = fraction_within(c, bound.value->fraction, above, bound.exclusive);
    } else if (bound.value->fraction[0] ? !above : !bound.exclusive) {
        equal = sl_expression_empty(c->builder); /* 3 is below 3.5, and not above it */
    }
    if (equal != SL_NO_EXPRESSION) {
        sl_schema_add(c, &list, sl_schema_sequence(c, 2, prefix_of(c, whole, length), equal));
    }
    return sl_expression_choice(c->builder, list.rows, list.count);
}

static sl_expression magnitudes(sl_schema_context *c, magnitude lower, magnitude upper, bool integer) {
    if (!lower.value && !upper.value) {
        const sl_expression whole = any_whole(c);
        return integer ? whole : sl_schema_sequence(c, 2, whole, sl_schema_optional(c, any_fraction(c)));
    }
    if (!lower.value || !upper.value) {
        return one_side(c, lower.value ? lower : upper, lower.value != NULL, integer);
    }
    return sl_expression_both(c->builder, one_side(c, lower, true, integer),
                              one_side(c, upper, false, integer));
}

static bool is_zero(const sl_decimal *decimal) {
    return strcmp(decimal->whole, "0") == 0 && !*decimal->fraction;
}

/* Numerals with a sign between the bounds, without exponents. */
static sl_expression within(sl_schema_context *c, const sl_bound *lower, const sl_bound *upper,
                            bool integer) {
    static const sl_decimal zero = {false, "0", "", 0};
    sl_expression positive = sl_expression_nothing(c->builder), negative = positive;
    if (!upper->is_set || !upper->value.negative) {
        const bool given = lower->is_set && !lower->value.negative;
        const bool needed = given && !(is_zero(&lower->value) && !lower->exclusive);
        positive = magnitudes(c, (magnitude){needed ? &lower->value : NULL, lower->exclusive},
                              (magnitude){upper->is_set ? &upper->value : NULL, upper->exclusive}, integer);
    }
    if (!lower->is_set || lower->value.negative) {
        const bool below = upper->is_set && (upper->value.negative || is_zero(&upper->value));
        magnitude least = {below ? &upper->value : NULL, upper->exclusive};
        if (integer && (!below || is_zero(&upper->value))) {
            least = (magnitude){&zero, true}; /* no -0 */
        } else if (below && is_zero(&upper->value) && !upper->exclusive) {
            least.value = NULL;
        }
        negative = magnitudes(c, least, (magnitude){lower->is_set ? &lower->value : NULL, lower->exclusive},
                              integer);
    }
    return sl_schema_choice(c, 2, positive, sl_schema_sequence(c, 2, sl_schema_literal(c, "-"), negative));
}

/* ---- multiples ---- */

/* A machine that reads a numeral and keeps its remainder. States: 0 begins, 1 is behind a sign, 2 is behind a
 * leading 0, then a remainder of the whole part each, then one for each digit of the fraction and remainder.
 */
static sl_expression multiples(sl_schema_context *c, uint64_t of, size_t places, int32_t entry) {
    enum { MOST_STATES = 1 << 16, FIRST = 3 };
    if (of > MOST_STATES || of * (places + 1) > MOST_STATES) {
        sl_schema_refuse(c, SL_ERR_UNSUPPORTED, entry, "multipleOf", "has too many digits");
        return SL_NO_EXPRESSION;
    }
    sl_loose_machine loose = {.builder = c->builder, .whole = true};
    const int32_t rows = (int32_t)of, states = FIRST + rows * (int32_t)(places + 1);
    uint64_t unit = 1; /* of the last place read, in units of the last place of all */
    sl_machine machine = {0};
    sl_expression made = SL_NO_EXPRESSION;
    for (int32_t i = 0; i <= states; i++) {
        sl_loose_state(&loose); /* the last is the end */
    }
    const int32_t end = states;
#define ARC(from, byte, to)                                                                                  \
    sl_loose_arc_add(&loose, from, (sl_arc){SL_ARC_BYTES, (uint8_t)(byte), (uint8_t)(byte), -1, to})
#define ENDS(from) sl_loose_arc_add(&loose, from, (sl_arc){SL_ARC_EMPTY, 0, 0, -1, end})
    ARC(0, '-', 1);
    ARC(0, '0', 2);
    ENDS(2);
    for (int digit_value = 1; digit_value < 10; digit_value++) {
        ARC(0, '0' + digit_value, FIRST + (int32_t)((uint64_t)digit_value % of));
        ARC(1, '0' + digit_value, FIRST + (int32_t)((uint64_t)digit_value % of));
    }
    for (size_t place = places + 1; place-- > 0;) {
        for (uint64_t rest = 0; rest < of; rest++) {
            const int32_t from = FIRST + (int32_t)(place * of + rest);
            /* As many zeros behind it as places are not written. */
            if ((unsigned __int128)rest * unit % of == 0) {
                ENDS(from);
            }
            for (uint64_t next = 0; next < 10; next++) {
                const int32_t to = (int32_t)((rest * 10 + next) % of);
                if (place == 0) {
                    ARC(from, '0' + (int)next, FIRST + to);
                } else if (place < places) {
                    ARC(from, '0' + (int)next, FIRST + (int32_t)((place + 1) * of) + to);
                }
            }
        }
        unit = unit * 10 % of;
    }
    if (places) { /* the point stands in front of a first digit: a state for each remainder */
        const int32_t points = loose.states;
        for (int32_t rest = 0; rest < rows; rest++) {
            const int32_t point = sl_loose_state(&loose);
            ARC(FIRST + rest, '.', point);
            for (int next = 0; next < 10; next++) {
                ARC(point, '0' + next, FIRST + rows + (rest * 10 + next) % rows);
            }
        }
        ARC(2, '.', points);
        ARC(1, '0', 2);
    }
#undef ARC
#undef ENDS
    sl_determinise_options options = {.start = 0, .accept = end, .most_states = MOST_STATES * 4};
    if (sl_determinise(&loose, &options, &machine) == 0) {
        made = sl_expression_machine(c->builder, &machine);
    }
    sl_loose_free(&loose);
    return made;
}

static sl_expression multiples_of(sl_schema_context *c, const sl_decimal *of, int32_t entry) {
    const size_t places = strlen(of->fraction);
    uint64_t value;
    if (places > SL_MOST_FRACTION || !scaled(of, places, &value)) {
        sl_schema_refuse(c, SL_ERR_UNSUPPORTED, entry, "multipleOf", "has too many digits");
        return SL_NO_EXPRESSION;
    }
    return multiples(c, value, places, entry);
}

/* Those that have a point. */
static sl_expression with_point(sl_schema_context *c, sl_expression numerals) {
    const sl_character_range point[] = {{'.', '.'}};
    const sl_expression others =
        sl_expression_repeat(c->builder, sl_expression_character(c->builder, point, 1, true), 0, -1);
    return sl_expression_except(c->builder, numerals, others);
}

/* ---- leaves ---- */

bool sl_schema_bounds(const sl_schema_leaf *leaf, sl_bound *lower, sl_bound *upper) {
    *lower = *upper = (sl_bound){0};
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_bound *low = &leaf->nodes[i]->lower, *high = &leaf->nodes[i]->upper;
        int order = low->is_set && lower->is_set ? sl_decimal_compare(&low->value, &lower->value) : 1;
        if (low->is_set && (order > 0 || (order == 0 && low->exclusive))) {
            *lower = *low;
        }
        order = high->is_set && upper->is_set ? sl_decimal_compare(&high->value, &upper->value) : -1;
        if (high->is_set && (order < 0 || (order == 0 && high->exclusive))) {
            *upper = *high;
        }
    }
    if (!lower->is_set || !upper->is_set) {
        return true;
    }
    const int order = sl_decimal_compare(&lower->value, &upper->value);
    return order < 0 || (order == 0 && !lower->exclusive && !upper->exclusive);
}

/* With exponents: where there is no bound, or only the sign counts. */
static sl_expression unbounded(sl_schema_context *c, const sl_bound *lower) {
    const sl_expression exponent = sl_schema_optional(c, any_exponent(c));
    const sl_expression minus =
        lower->is_set ? sl_expression_empty(c->builder) : sl_schema_optional(c, sl_schema_literal(c, "-"));
    sl_bound none = {0};
    sl_bound least = lower->is_set ? *lower : none;
    least.value.negative = false;
    const sl_expression mantissa =
        magnitudes(c, (magnitude){least.is_set && least.exclusive ? &least.value : NULL, true},
                   (magnitude){NULL, false}, false);
    return sl_schema_sequence(c, 3, minus, mantissa, exponent);
}

/* What a reader's doubles do not round to an integer: so many of the fraction's first digits that a double
 * holds are neither all 0 nor all 9. */
static sl_expression with_fraction(sl_schema_context *c) {
    enum { HELD = 15 }; /* digits that every double keeps */
    sl_expression_list list = {0};
    for (int length = 0; length < HELD; length++) {
        const sl_expression whole =
            length == 0 ? sl_schema_literal(c, "0")
                        : sl_schema_sequence(c, 2, digit(c, '1', '9'), digits(c, length - 1, length - 1));
        const int64_t held = HELD - length, zeros = length ? held : SL_MOST_FRACTION;
        const sl_expression any = digits(c, 0, SL_MOST_FRACTION);
        const sl_expression zero = sl_schema_literal(c, "0"), nine = sl_schema_literal(c, "9");
        const sl_expression none = sl_schema_choice(
            c, 3, sl_expression_repeat(c->builder, zero, 0, -1),
            sl_schema_sequence(c, 2, sl_expression_repeat(c->builder, zero, zeros, zeros), any),
            sl_schema_sequence(c, 2, sl_expression_repeat(c->builder, nine, held, held), any));
        const sl_expression some = sl_expression_except(c->builder, digits(c, 1, SL_MOST_FRACTION), none);
        sl_schema_add(c, &list, sl_schema_sequence(c, 3, whole, sl_schema_literal(c, "."), some));
    }
    return sl_schema_sequence(c, 2, sl_schema_optional(c, sl_schema_literal(c, "-")),
                              sl_expression_choice(c->builder, list.rows, list.count));
}

static sl_expression without_values(sl_schema_context *c, const sl_schema_leaf *leaf, sl_expression from) {
    sl_expression_list list = {0};
    for (int32_t i = 0; i < leaf->count; i++) {
        for (const sl_schema_values *values = leaf->nodes[i]->forbidden; values; values = values->next) {
            for (size_t at = 0; at < json_array_size(values->array); at++) {
                const json_t *value = json_array_get(values->array, at);
                if (json_is_number(value)) {
                    const sl_decimal is = sl_schema_decimal(c, value);
                    const sl_bound above = {true, true, neighbour(c, &is, -HUGE_VAL)};
                    const sl_bound below = {true, true, neighbour(c, &is, HUGE_VAL)};
                    sl_schema_add(c, &list, within(c, &above, &below, false));
                }
            }
        }
    }
    return list.count ? sl_expression_except(c->builder, from,
                                             sl_expression_choice(c->builder, list.rows, list.count))
                      : from;
}

sl_expression sl_schema_number(sl_schema_context *c, const sl_schema_leaf *leaf) {
    const bool integer = !(leaf->types & SL_TYPE_FRACTION), fraction = !(leaf->types & SL_TYPE_INTEGER);
    sl_bound lower, upper;
    bool plain = !integer && !fraction;
    if (!sl_schema_bounds(leaf, &lower, &upper)) {
        return sl_expression_nothing(c->builder);
    }
    for (int32_t i = 0; i < leaf->count; i++) {
        plain =
            plain && !leaf->nodes[i]->multiple && !leaf->nodes[i]->not_multiple && !leaf->nodes[i]->forbidden;
    }
    if (plain && !upper.is_set && (!lower.is_set || is_zero(&lower.value))) {
        return unbounded(c, &lower);
    }
    if (!integer && lower.is_set && lower.exclusive && !is_zero(&lower.value)) {
        lower = (sl_bound){true, false, neighbour(c, &lower.value, HUGE_VAL)};
    }
    if (!integer && upper.is_set && upper.exclusive && !is_zero(&upper.value)) {
        upper = (sl_bound){true, false, neighbour(c, &upper.value, -HUGE_VAL)};
    }
    sl_expression made = within(c, &lower, &upper, integer);
    for (int32_t i = 0; i < leaf->count && !c->code; i++) {
        const sl_decimal *of = leaf->nodes[i]->multiple;
        if (of) {
            made = sl_expression_both(c->builder, made, multiples_of(c, of, leaf->nodes[i]->entry));
        }
        const sl_decimal *not_of = leaf->nodes[i]->not_multiple;
        if (not_of) { /* in every spelling: zeros behind the point may be left out, or be more */
            const sl_expression zeros = sl_expression_repeat(c->builder, sl_schema_literal(c, "0"), 0, -1);
            const sl_expression all = multiples_of(c, not_of, leaf->nodes[i]->entry);
            const sl_expression point = sl_schema_sequence(c, 2, sl_schema_literal(c, "."), zeros);
            sl_expression longer = sl_schema_sequence(c, 2, all, sl_schema_optional(c, point));
            if (*not_of->fraction) {
                longer = sl_schema_choice(c, 2, longer, sl_schema_sequence(c, 2, with_point(c, all), zeros));
            }
            made = sl_expression_except(c->builder, made, longer);
        }
    }
    if (fraction) {
        made = sl_expression_both(c->builder, made, with_fraction(c));
    }
    return c->code ? SL_NO_EXPRESSION : without_values(c, leaf, made);
}
