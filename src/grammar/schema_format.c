/* Formats of strings as regular expressions, each with where it is defined. Names that are not here are
 * annotations, as the standard says of formats that are not known. */
#include "grammar/schema_internal.h"

#include <stdio.h>

/* RFC 3339, 5.6, with the days that each month has; leap seconds are beside them, below. */
#define LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                                 \
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"          \
    "02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
#define OFFSET "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define FRACTION "(?:\\.\\d+)?"
#define TIME(SECOND) "(?:[01]\\d|2[0-3]):[0-5]\\d:" SECOND FRACTION OFFSET
#define SECOND "[0-5]\\d"
#define ANY_SECOND "(?:[0-5]\\d|60)"
/* RFC 1123, 2.1. */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOSTNAME LABEL "(?:\\." LABEL ")*"
/* RFC 3986, appendix A. */
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 OCTET "\\." OCTET "\\." OCTET "\\." OCTET
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                 \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16  \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32          \
    "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16    \
    ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define UNRESERVED "A-Za-z0-9._~\\-"
/* RFC 3987, 2.2: what is not ASCII stands for itself. */
#define BEYOND "\xc2\xa0-\xf4\x8f\xbf\xbf"
#define SUB_DELIMITERS "!$&'()*+,;="
#define ENCODED "%[0-9A-Fa-f]{2}"
#define PCHAR(U) "(?:[" U SUB_DELIMITERS ":@]|" ENCODED ")"
/* L: what stands for a host besides names, each with its bar: addresses in brackets, or nothing. */
#define LITERAL(U) "\\[(?:" IPV6 "|[vV][0-9A-Fa-f]+\\.[" U SUB_DELIMITERS ":]+)\\]|"
#define AUTHORITY(U, L)                                                                                      \
    "(?:(?:[" U SUB_DELIMITERS ":]|" ENCODED ")*@)?(?:" L "(?:[" U SUB_DELIMITERS "]|" ENCODED ")*)(?::\\d*" \
    ")?"
#define SEGMENTS(U) "(?:/" PCHAR(U) "*)*"
#define HIERARCHY(U, L)                                                                                      \
    "(?://" AUTHORITY(U, L) SEGMENTS(U) "|/(?:" PCHAR(U) "+" SEGMENTS(U) ")?|" PCHAR(U) "+" SEGMENTS(U) ")?"
#define QUERY_FRAGMENT(U) "(?:\\?(?:" PCHAR(U) "|[/?])*)?(?:#(?:" PCHAR(U) "|[/?])*)?"
#define SCHEME "[A-Za-z][A-Za-z0-9+.-]*:"
#define NO_COLON(U) "(?:[" U SUB_DELIMITERS "@]|" ENCODED ")+"
#define RELATIVE(U, L)                                                                                       \
    "(?://" AUTHORITY(U, L) SEGMENTS(U) "|/(?:" PCHAR(U) "+" SEGMENTS(U) ")?|" NO_COLON(U)                   \
        SEGMENTS(U) ")?" QUERY_FRAGMENT(U)
#define URI(U, L) SCHEME HIERARCHY(U, L) QUERY_FRAGMENT(U)
#define REFERENCE(U, L) URI(U, L) "|" RELATIVE(U, L)
/* RFC 5321, 4.1.2. */
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define EMAIL(L) "(?:" ATEXT "(?:\\." ATEXT ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" L HOSTNAME ")"
/* RFC 6531, 3.3. */
#define IDN_EMAIL                                                                                            \
    "(?:[A-Za-z0-9!#$%&'*+/=?^_`{|}~.\xc2\x80-\xf4\x8f\xbf\xbf-]+|"                                          \
    "\"(?:[ !#-\\[\\]-~\xc2\x80-\xf4\x8f\xbf\xbf]|\\\\[ -~])*\")@[A-Za-z0-9." BEYOND "-]+"
/* RFC 6570, 2. */
#define VARCHAR "(?:\\w|" ENCODED ")"
#define VARIABLE VARCHAR "(?:\\.?" VARCHAR ")*(?::[1-9]\\d{0,3}|\\*)?"
#define URI_TEMPLATE                                                                                         \
    "(?:[^\\x00-\\x20\\x7f\"%<>\\\\^`{|}]|" ENCODED "|\\{[+#./;?&=,!@|]?" VARIABLE "(?:," VARIABLE ")*\\})*"
/* RFC 3339, appendix A. */
#define DURATION_TIME "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define DURATION_DAYS "(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"

#define INTERNATIONAL UNRESERVED BEYOND

/* Names of hosts are never written with labels of the form xn--: whether one is Punycode of a valid name is
 * not regular (RFC 5891). */
#define ENCODED_LABEL "[Xx][Nn]--[A-Za-z0-9.-]*"

typedef struct format {
    const char *name, *regex;
    const char *narrow;  /* without rare forms that take many states, beside a length; NULL: the same */
    const char *wide;    /* with what is never written, and more, for negations; NULL: the same */
    const char *leap;    /* what stands before a leap second, which `narrow` leaves out; NULL: it has none */
    const char *without; /* what the expression takes in too much and `wide` may, or NULL */
    int32_t most;        /* characters; 0: no bound */
    const char *refused; /* why it cannot be held, or NULL */
} format;

static const format FORMATS[] = {
    {.name = "date", .regex = DATE, .without = "0000-.*"},
    {.name = "time", .regex = TIME(SECOND), .wide = TIME(ANY_SECOND), .leap = ""},
    {.name = "date-time",
     .regex = DATE "[Tt]" TIME(SECOND),
     .wide = DATE "[Tt]" TIME(ANY_SECOND),
     .leap = DATE "[Tt]",
     .without = "0000-.*"},
    {.name = "duration", .regex = "P(?:\\d+W|" DURATION_DAYS "(?:" DURATION_TIME ")?|" DURATION_TIME ")"},
    {.name = "email",
     .regex = EMAIL("\\[(?:" IPV4 "|IPv6:" IPV6 ")\\]|"),
     .narrow = EMAIL(""),
     .wide = EMAIL("\\[(?:" IPV4 "|IPv6:" IPV6 ")\\]|"),
     .without = ".*@(?:[A-Za-z0-9.-]*\\.)?" ENCODED_LABEL},
    {.name = "idn-email", .regex = IDN_EMAIL},
    {.name = "iri", .regex = URI(INTERNATIONAL, LITERAL(INTERNATIONAL)), .narrow = URI(INTERNATIONAL, "")},
    {.name = "iri-reference",
     .regex = REFERENCE(INTERNATIONAL, LITERAL(INTERNATIONAL)),
     .narrow = REFERENCE(INTERNATIONAL, "")},
    {.name = "uri-template", .regex = URI_TEMPLATE},
    {.name = "hostname",
     .regex = HOSTNAME,
     .wide = HOSTNAME,
     .without = "(?:.*\\.)?" ENCODED_LABEL,
     .most = 253},
    {.name = "idn-hostname", .refused = "which code points may stand in such a name is not held"},
    {.name = "ipv4", .regex = IPV4},
    {.name = "ipv6", .regex = IPV6},
    {.name = "uri", .regex = URI(UNRESERVED, LITERAL(UNRESERVED)), .narrow = URI(UNRESERVED, "")},
    {.name = "uri-reference",
     .regex = REFERENCE(UNRESERVED, LITERAL(UNRESERVED)),
     .narrow = REFERENCE(UNRESERVED, "")},
    /* RFC 4122, RFC 6901 */
    {.name = "uuid", .regex = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {.name = "json-pointer", .regex = "(?:/(?:[^/~]|~[01])*)*"},
    {.name = "relative-json-pointer", .regex = "(?:0|[1-9]\\d*)(?:#|(?:/(?:[^/~]|~[01])*)*)"},
    {.name = "regex", .refused = "what is a regular expression is not held"},
};

int32_t sl_schema_format_find(const char *name) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (strcmp(FORMATS[i].name, name) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

const char *sl_schema_format_refused(int32_t format) {
    return FORMATS[format].refused;
}

/* Leap seconds end a day of UTC (RFC 3339, 5.7), so the offset says which minute of a place's day has them.
 * Offsets are whole quarters of an hour here, as those of all places are: each other minute of the hour would
 * take 400 states. */
static sl_expression leap_second(sl_schema_context *c, const char *before, sl_error *error) {
    enum { HOUR = 60, DAY = 24 * HOUR, QUARTER = 15 };
    sl_buffer text = {0};
    sl_expression made = SL_NO_EXPRESSION;
    sl_buffer_printf(&text, "%s(?:23:59:60" FRACTION "[Zz]", before);
    for (int local = QUARTER - 1; local < DAY; local += QUARTER) {
        const int east = (local + 1) % DAY, west = DAY - 1 - local;
        sl_buffer_printf(&text, "|%02d:%02d:60" FRACTION "(?:\\+%02d:%02d|-%02d:%02d)", local / HOUR,
                         local % HOUR, east / HOUR, east % HOUR, west / HOUR, west % HOUR);
    }
    sl_buffer_text(&text, ")");
    if (text.failed) {
        sl_fail(error, SL_ERR_NOMEM, "no memory for a format");
    } else {
        made = sl_expression_regex(c->builder, text.data, text.length, true, error);
    }
    sl_buffer_free(&text);
    return made;
}

sl_expression sl_schema_format(sl_schema_context *c, const sl_text_rule *rule, sl_error *error) {
    const format *row = &FORMATS[rule->format];
    const bool wide = rule->negated && row->wide;
    const char *regex = wide ? row->wide : rule->narrow && row->narrow ? row->narrow : row->regex;
    sl_expression made = sl_expression_regex(c->builder, regex, strlen(regex), true, error);
    if (made != SL_NO_EXPRESSION && row->leap && !wide && !rule->narrow) {
        made = sl_schema_choice(c, 2, made, leap_second(c, row->leap, error));
    }
    if (made != SL_NO_EXPRESSION && row->without && !wide) {
        const sl_expression those =
            sl_expression_regex(c->builder, row->without, strlen(row->without), true, error);
        made = sl_expression_except(c->builder, made, those);
    }
    if (made != SL_NO_EXPRESSION && row->most) {
        const sl_expression character = sl_expression_character(c->builder, NULL, 0, true);
        made =
            sl_expression_both(c->builder, made, sl_expression_repeat(c->builder, character, 0, row->most));
    }
    return made;
}
