/* Patterns with looks ahead, (?=...) and (?!...), where these stand between parts of the whole pattern: what
 * comes behind one is then the texts of the rest that it allows. Elsewhere the regular expression refuses
 * them. */
#include "grammar/schema_internal.h"

typedef struct pattern_parts {
    size_t before;             /* bytes in front of the first look ahead */
    size_t inside, inside_end; /* what it looks for */
    bool negative;
} pattern_parts;

/* The end of the group, class or single character that begins at `at`. */
static size_t skip_part(const char *pattern, size_t at) {
    int depth = 0;
    bool in_class = false;
    do {
        const char now = pattern[at];
        if (now == '\\' && pattern[at + 1]) {
            at++;
        } else if (in_class) {
            in_class = now != ']';
        } else if (now == '[') {
            in_class = true;
        } else {
            depth += (now == '(') - (now == ')');
        }
        at += pattern[at] != '\0';
    } while (pattern[at] && (depth > 0 || in_class));
    return at;
}

/* False: it has no look ahead of its own, or is a choice as a whole. */
static bool find_parts(const char *pattern, pattern_parts *parts) {
    bool found = false;
    size_t at = 0;
    while (pattern[at]) {
        const bool ahead = strncmp(pattern + at, "(?!", 3) == 0 || strncmp(pattern + at, "(?=", 3) == 0;
        const size_t end = skip_part(pattern, at);
        if (pattern[at] == '|') {
            return false;
        }
        if (ahead && !found) {
            *parts = (pattern_parts){at, at + 3, end - 1, pattern[at + 2] == '!'};
            found = pattern[end - 1] == ')' && !(pattern[end] && strchr("*+?{", pattern[end]));
            if (!found) {
                return false;
            }
        }
        at = end;
    }
    return found;
}

/* What the pattern matches from the text's beginning on, to its end or beyond. */
static sl_expression from_begin(sl_schema_context *c, sl_view pattern, sl_error *error) {
    sl_buffer text = {0};
    sl_expression made = SL_NO_EXPRESSION;
    sl_buffer_text(&text, "^(?:");
    sl_buffer_append(&text, pattern.data, pattern.length);
    sl_buffer_text(&text, ")");
    if (text.failed) {
        sl_fail(error, SL_ERR_NOMEM, "no memory for a pattern");
    } else {
        made = sl_expression_regex(c->builder, text.data, text.length, false, error);
    }
    sl_buffer_free(&text);
    return made;
}

/* The rest of a pattern, whose looks ahead are resolved from the last to the first. */
static sl_expression rest_of(sl_schema_context *c, const char *pattern, int depth, sl_error *error) {
    pattern_parts parts;
    if (!find_parts(pattern, &parts)) {
        return from_begin(c, sl_view_of(pattern), error);
    }
    if (depth == 0) {
        sl_fail(error, SL_ERR_LIMIT, "a pattern with too many looks ahead");
        return SL_NO_EXPRESSION;
    }
    const sl_view inside = {pattern + parts.inside, parts.inside_end - parts.inside};
    const sl_expression ahead = from_begin(c, inside, error);
    sl_expression rest =
        ahead == SL_NO_EXPRESSION ? ahead : rest_of(c, pattern + parts.inside_end + 1, depth - 1, error);
    if (rest == SL_NO_EXPRESSION) {
        return rest;
    }
    rest = parts.negative ? sl_expression_except(c->builder, rest, ahead)
                          : sl_expression_both(c->builder, rest, ahead);
    if (parts.before == 0) {
        return rest;
    }
    const sl_expression before = sl_expression_regex(c->builder, pattern, parts.before, true, error);
    return before == SL_NO_EXPRESSION ? before : sl_schema_sequence(c, 2, before, rest);
}

sl_expression sl_schema_pattern(sl_schema_context *c, const char *pattern, sl_error *error) {
    enum { MOST = 16 };
    pattern_parts parts;
    if (*pattern != '^' || !find_parts(pattern + 1, &parts)) {
        return sl_expression_regex(c->builder, pattern, strlen(pattern), false, error);
    }
    return rest_of(c, pattern + 1, MOST, error);
}
