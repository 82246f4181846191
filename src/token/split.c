#define _GNU_SOURCE /* memmem */
#include "token/internal.h"

#include "base/alloc.h"

#include <utf8proc.h>

/* ---- character classes
 * --------------------------------------------------------------------------------------------- */

/* Unicode's White_Space. */
bool sl_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

bool sl_is_word(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* ---- patterns
 * ------------------------------------------------------------------------------------------------------ */

/* \s of Oniguruma is White_Space; PCRE2's also has U+180E, and this is what it is written out as. */
#define SPACE_RANGES                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"

/* Copies a pattern, replacing \s and \S, and refuses what Oniguruma (Ruby syntax, as Hugging Face compiles
 * it) and PCRE2 read differently: \h, nested classes and intersections, a possessive {n,m}+, and (?m). */
static int translate(sl_view pattern, sl_buffer *out, sl_error *error) {
    bool in_class = false;
    size_t class_start = 0;
    const char *refused = NULL;
    for (size_t i = 0; i < pattern.length && !refused; i++) {
        char c = pattern.data[i], next = i + 1 < pattern.length ? pattern.data[i + 1] : 0;
        if (c == '\\' && next) {
            i++;
            if (next == 's') {
                sl_buffer_text(out, in_class ? SPACE_RANGES : "[" SPACE_RANGES "]");
            } else if (next == 'S' && !in_class) {
                sl_buffer_text(out, "[^" SPACE_RANGES "]");
            } else if (strchr("hHKGRXyYOkgCNQE", next) || (next == 'S' && in_class)) {
                refused = "an escape that has no equal";
            } else {
                size_t from = i - 1;
                if (i + 1 < pattern.length && pattern.data[i + 1] == '{') { /* \p{..}, \x{..} */
                    const char *end = memchr(pattern.data + i, '}', pattern.length - i);
                    i = end ? (size_t)(end - pattern.data) : i;
                }
                sl_buffer_append(out, pattern.data + from, i + 1 - from);
            }
            continue;
        }
        if (in_class && c == '[' && next != ':') {
            refused = "a class inside a class";
        } else if (in_class && c == '&' && next == '&') {
            refused = "an intersection of classes";
        } else if (!in_class && c == '}' && next == '+') {
            refused = "'+' after a counted repetition";
        } else if (!in_class && c == '(' && next == '*') {
            refused = "a verb";
        } else if (!in_class && c == '(' && next == '?') {
            for (size_t j = i + 2;
                 j < pattern.length && ((pattern.data[j] | 32) >= 'a' && (pattern.data[j] | 32) <= 'z');
                 j++) {
                if (!strchr("ix", pattern.data[j])) {
                    refused = "an inline option other than i and x";
                }
            }
        }
        if (!in_class && c == '[') {
            in_class = true;
            class_start = i + (next == '^' ? 2 : 1);
        } else if (in_class && c == ']' && i > class_start) {
            in_class = false;
        } else if (in_class && c == '[' && next == ':') { /* [:alpha:] */
            const char *end = memmem(pattern.data + i, pattern.length - i, ":]", 2);
            size_t until = end ? (size_t)(end - pattern.data) + 1 : i;
            sl_buffer_append(out, pattern.data + i, until - i);
            i = until;
            c = pattern.data[i];
        }
        sl_buffer_append(out, &c, 1);
    }
    if (refused) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "pattern '%.*s': %s is not supported",
                       (int)(pattern.length < 200 ? pattern.length : 200), pattern.data, refused);
    }
    return out->failed ? sl_fail(error, SL_ERR_NOMEM, "out of memory for a pattern") : 0;
}

static void *regex_malloc(size_t size, void *context) {
    (void)context;
    return sl_alloc(size);
}

static void regex_free(void *memory, void *context) {
    (void)context;
    sl_free(memory);
}

static int compile(sl_tokenizer *tokenizer, sl_view pattern, pcre2_code **code, sl_error *error) {
    if (!tokenizer->regex_context) {
        tokenizer->regex_context = pcre2_general_context_create(regex_malloc, regex_free, NULL);
    }
    pcre2_compile_context *context =
        tokenizer->regex_context ? pcre2_compile_context_create(tokenizer->regex_context) : NULL;
    if (!context) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a pattern");
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    int number = 0;
    PCRE2_SIZE offset = 0;
    *code = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.length,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                              PCRE2_NO_AUTO_CAPTURE | PCRE2_USE_OFFSET_LIMIT,
                          &number, &offset, context);
    pcre2_compile_context_free(context);
    if (!*code) {
        if (number == PCRE2_ERROR_NOMEMORY ||
            number == 121 /* ERR21: the compiler's own allocation failed */) {
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for a pattern");
        }
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(number, message, sizeof message);
        return sl_fail(error, SL_ERR_UNSUPPORTED, "pattern '%.*s' does not compile at byte %zu: %s",
                       (int)(pattern.length < 150 ? pattern.length : 150), pattern.data, (size_t)offset,
                       (const char *)message);
    }
    /* Without a JIT the interpreter runs the same pattern. */
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    return 0;
}

static sl_split_kind kind_of(sl_view pattern) {
    return sl_view_is(pattern, SL_PATTERN_TRIPLES)              ? SL_SPLIT_TRIPLES
           : sl_view_is(pattern, SL_PATTERN_TRIPLES_OF_DIGITS)  ? SL_SPLIT_TRIPLES_OF_DIGITS
           : sl_view_is(pattern, SL_PATTERN_TRIPLES_OF_NUMBERS) ? SL_SPLIT_TRIPLES_AT_BOUNDARY
                                                                : SL_SPLIT_PATTERN;
}

int sl_split_add(sl_tokenizer *tokenizer, sl_view pattern, sl_split_behavior behavior, sl_error *error) {
    if (tokenizer->split_count == SL_TOKENIZER_MAX_STAGES) {
        return sl_fail(error, SL_ERR_LIMIT, "more than %d splits in the pre-tokenizer",
                       SL_TOKENIZER_MAX_STAGES);
    }
    if (pattern.length > SL_TOKENIZER_MAX_PATTERN) {
        return sl_fail(error, SL_ERR_LIMIT, "a pattern of %zu bytes: at most %d are accepted", pattern.length,
                       SL_TOKENIZER_MAX_PATTERN);
    }
    sl_buffer translated = {0};
    sl_split split = {.kind = kind_of(pattern), .behavior = behavior};
    if (split.kind == SL_SPLIT_TRIPLES_OF_DIGITS) {
        split.behavior = SL_SPLIT_WITH_NEXT; /* the pattern matches places, and a text is cut there */
    }
    int code = split.kind == SL_SPLIT_PATTERN ? translate(pattern, &translated, error) : 0;
    if (code == 0 && split.kind == SL_SPLIT_PATTERN) {
        code = compile(tokenizer, (sl_view){translated.data ? translated.data : "", translated.length},
                       &split.code, error);
    }
    sl_buffer_free(&translated);
    if (code == 0) {
        tokenizer->splits[tokenizer->split_count++] = split;
    }
    return code;
}

/* ---- running
 * ------------------------------------------------------------------------------------------------------- */

/* Steps of matching granted to a whole text: the patterns of real models take a few per byte. What a pattern
 * takes is not told, so attempts are bounded, and it is the bounds that are counted: nothing for the first,
 * which is enough for all but long runs of white space. */
enum { FREE_STEPS = 256, LEAST_BUDGET = 50000000, BUDGET_PER_BYTE = 64 };
/* Bytes in which one attempt may begin, and how far behind them it may look without being counted: one step
 * of `.*` goes to the end of what there is. */
enum { WINDOW = 4096, HORIZON = 4096 };

static int prepare(sl_splitter *splitter, size_t stage, sl_error *error) {
    pcre2_general_context *general = splitter->tokenizer->regex_context;
    if (!splitter->limits) {
        splitter->limits = pcre2_match_context_create(general);
    }
    if (!splitter->matches[stage]) {
        splitter->matches[stage] = pcre2_match_data_create(1, general);
    }
    if (!splitter->limits || !splitter->matches[stage]) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for splitting");
    }
    return 0;
}

void sl_splitter_free(sl_splitter *splitter) {
    for (size_t i = 0; i < SL_TOKENIZER_MAX_STAGES; i++) {
        pcre2_match_data_free(splitter->matches[i]);
    }
    pcre2_match_context_free(splitter->limits);
}

/* text[start, end) */
typedef struct span {
    size_t start, end;
} span;

/* ---- groups of three digits ---- */

static bool is_digit(sl_split_kind kind, uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_ND ||
           (kind == SL_SPLIT_TRIPLES &&
            (category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO));
}

/* `text` is UTF-8 from `at` on. */
static size_t character_at(sl_view text, size_t at, uint32_t *c) {
    const size_t size = sl_utf8_decode(text.data + at, text.length - at, c);
    return size ? size : 1;
}

/* The next run of digits at or after `from`; false when there is none. */
static bool find_run(sl_split_kind kind, sl_view text, size_t from, sl_digit_run *run) {
    uint32_t c = 0;
    size_t at = from, size = 0;
    while (at < text.length && (size = character_at(text, at, &c), !is_digit(kind, c))) {
        at += size;
    }
    *run = (sl_digit_run){.from = text.data + at};
    while (at < text.length && (size = character_at(text, at, &c), is_digit(kind, c))) {
        at += size;
        run->left++;
    }
    run->end = text.data + at;
    const bool there = run->left > 0;
    if (kind == SL_SPLIT_TRIPLES_AT_BOUNDARY && at < text.length && sl_is_word(c)) {
        run->left = 0; /* a number that a word goes on from is left alone */
    } else if (kind == SL_SPLIT_TRIPLES_OF_DIGITS && run->left < 3) {
        run->left = 0;
    }
    return there;
}

/* As next_match. */
static int next_triple(sl_splitter *splitter, size_t stage, sl_view text, size_t from, span *found_at) {
    const sl_split_kind kind = splitter->tokenizer->splits[stage].kind;
    sl_digit_run *run = &splitter->runs[stage];
    while (run->from != text.data + from || run->left == 0 || run->end > text.data + text.length) {
        if (!find_run(kind, text, from, run)) {
            return 0;
        }
        from = (size_t)((run->left ? run->from : run->end) - text.data);
    }
    size_t digits = run->left % 3;
    uint32_t c;
    found_at->start = from;
    if (kind == SL_SPLIT_TRIPLES_OF_DIGITS) { /* none where the rest is not whole threes */
        for (size_t skip = digits; skip > 0; skip--) {
            from += character_at(text, from, &c);
        }
        run->left -= digits;
        found_at->start = from;
        digits = 3;
    }
    digits = digits ? digits : 3;
    for (size_t i = 0; i < digits; i++) {
        from += character_at(text, from, &c);
    }
    run->left -= digits;
    run->from = text.data + from;
    found_at->end = from;
    return 1;
}

/* ---- patterns ---- */

enum { NO_MATCH = 0, MATCH = 1, NO_STEPS = 2, SEES_END = 3 };

static int match_once(sl_splitter *splitter, size_t stage, sl_view text, size_t from, uint32_t options) {
    const pcre2_code *code = splitter->tokenizer->splits[stage].code;
    pcre2_match_data *match = splitter->matches[stage];
    options |= PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    const int found =
        pcre2_match(code, (PCRE2_SPTR)text.data, text.length, from, options, match, splitter->limits);
    return found == PCRE2_ERROR_JIT_STACKLIMIT ? pcre2_match(code, (PCRE2_SPTR)text.data, text.length, from,
                                                             options | PCRE2_NO_JIT, match, splitter->limits)
                                               : found;
}

/* The longest beginning of `text` of at most `length` bytes that ends with a whole character. */
static size_t whole_characters(sl_view text, size_t length) {
    length = length < text.length ? length : text.length;
    while (length < text.length && ((unsigned char)text.data[length] & 0xc0) == 0x80) {
        length--;
    }
    return length;
}

/* One attempt whose matches begin in [from, last], with so many steps for each beginning. What it sees of the
 * text ends a little behind. If it wants to know what follows, one beginning is tried again and sees twice as
 * much. */
static int attempt(sl_splitter *splitter, size_t stage, sl_view text, span beginnings, uint32_t steps,
                   sl_error *error) {
    size_t seen = whole_characters(text, beginnings.end + HORIZON);
    pcre2_set_match_limit(splitter->limits, steps);
    pcre2_set_offset_limit(splitter->limits, beginnings.end);
    int found;
    while ((found = match_once(splitter, stage, (sl_view){text.data, seen}, beginnings.start,
                               seen < text.length ? PCRE2_PARTIAL_HARD : 0)) == PCRE2_ERROR_PARTIAL) {
        if (beginnings.end > beginnings.start) {
            return SEES_END; /* from a beginning that the match data tells */
        }
        seen = whole_characters(text, beginnings.start + (seen - beginnings.start) * 2);
        const uint64_t cost = seen - beginnings.start;
        if (cost > splitter->budget) {
            found = PCRE2_ERROR_MATCHLIMIT;
            splitter->budget = 0;
            break;
        }
        splitter->budget -= cost;
    }
    if (found == PCRE2_ERROR_NOMATCH || found == PCRE2_ERROR_MATCHLIMIT) {
        return found == PCRE2_ERROR_NOMATCH ? NO_MATCH : NO_STEPS;
    }
    if (found < 0) {
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(found, message, sizeof message);
        return sl_fail(error, found == PCRE2_ERROR_NOMEMORY ? SL_ERR_NOMEM : SL_ERR_LIMIT,
                       "splitting %zu bytes of text by the tokenizer's pattern %zu: %s", text.length, stage,
                       (const char *)message);
    }
    return MATCH;
}

/* Attempts at one beginning with more and more steps, as long as the text has any left. */
static int attempt_here(sl_splitter *splitter, size_t stage, sl_view text, size_t at, sl_error *error) {
    uint64_t steps = FREE_STEPS;
    for (;;) {
        const int found = attempt(splitter, stage, text, (span){at, at}, (uint32_t)steps, error);
        if (found != NO_STEPS) {
            return found;
        }
        steps = steps * 8 < UINT32_MAX ? steps * 8 : UINT32_MAX;
        steps = steps < splitter->budget ? steps : splitter->budget;
        if (steps == 0) {
            return sl_fail(
                error, SL_ERR_LIMIT,
                "splitting %zu bytes of text by the tokenizer's pattern %zu: it takes more steps than "
                "a text of this size may (match limit)",
                text.length, stage);
        }
        splitter->budget -= steps;
    }
}

/* The next match at or after `from`: 1 and where it is, 0 when there is none. */
static int next_match(sl_splitter *splitter, size_t stage, sl_view text, size_t from, span *found_at,
                      sl_error *error) {
    int found = NO_MATCH;
    for (size_t at = from; at < text.length && found == NO_MATCH;) {
        const size_t last = whole_characters(text, at + WINDOW);
        found = attempt(splitter, stage, text, (span){at, last}, FREE_STEPS, error);
        if (found == NO_STEPS ||
            found == SEES_END) { /* of the former nobody tells where: somewhere from here on */
            uint32_t c;
            at = found == SEES_END ? pcre2_get_startchar(splitter->matches[stage]) : at;
            found = attempt_here(splitter, stage, text, at, error);
            at += found == NO_MATCH ? character_at(text, at, &c) : 0;
            continue;
        }
        at = last;
    }
    if (found != MATCH) {
        return found;
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(splitter->matches[stage]);
    *found_at = (span){bounds[0], bounds[1]};
    /* \K is refused and lookbehinds cannot consume, so a match goes forward. */
    if (found_at->start < from || found_at->end <= found_at->start || found_at->end > text.length) {
        return sl_fail(error, SL_ERR_INTERNAL, "the tokenizer's pattern %zu matched backwards", stage);
    }
    return 1;
}

typedef struct split_sink {
    sl_piece_function function;
    void *context;
    sl_error *error;
} split_sink;

static int run_stage(sl_splitter *splitter, size_t stage, sl_view text, const split_sink *sink) {
    if (text.length == 0) {
        return 0;
    }
    if (stage == splitter->tokenizer->split_count) {
        return sink->function(sink->context, text);
    }
    sl_split_behavior behavior = splitter->tokenizer->splits[stage].behavior;
    size_t begin = 0, at = 0; /* text[begin, at) waits to be joined with what follows */
    while (at < text.length) {
        span match = {at, at};
        int found = splitter->tokenizer->splits[stage].kind == SL_SPLIT_PATTERN
                        ? next_match(splitter, stage, text, at, &match, sink->error)
                        : next_triple(splitter, stage, text, at, &match);
        if (found < 0) {
            return found;
        }
        if (!found) {
            break;
        }
        size_t cuts[2] = {match.start, match.end};
        if (behavior == SL_SPLIT_WITH_PREVIOUS) {
            cuts[0] = begin;
        } else if (behavior == SL_SPLIT_WITH_NEXT) {
            cuts[1] = match.start;
        }
        int code = run_stage(splitter, stage + 1, (sl_view){text.data + begin, cuts[0] - begin}, sink);
        if (code == 0 && behavior != SL_SPLIT_REMOVED) {
            code = run_stage(splitter, stage + 1, (sl_view){text.data + cuts[0], cuts[1] - cuts[0]}, sink);
        }
        if (code) {
            return code;
        }
        begin = behavior == SL_SPLIT_REMOVED ? match.end : cuts[1];
        at = match.end;
    }
    return run_stage(splitter, stage + 1, (sl_view){text.data + begin, text.length - begin}, sink);
}

int sl_split_run(sl_splitter *splitter, sl_view text, sl_piece_function function, void *context,
                 sl_error *error) {
    size_t stages = splitter->tokenizer->split_count;
    split_sink sink = {function, context, error};
    if (stages == 0) {
        return run_stage(splitter, 0, text, &sink);
    }
    for (size_t i = 0; i < stages; i++) {
        int code = prepare(splitter, i, error);
        if (code) {
            return code;
        }
    }
    splitter->budget += (splitter->begun ? 0 : LEAST_BUDGET) + (uint64_t)text.length * BUDGET_PER_BYTE;
    splitter->begun = true;
    memset(splitter->runs, 0, sizeof splitter->runs);
    /* PCRE2 may only see UTF-8: runs of other bytes are pieces by themselves. */
    for (size_t at = 0; at < text.length;) {
        size_t end = at;
        uint32_t c;
        bool valid = sl_utf8_decode(text.data + at, text.length - at, &c) != 0;
        while (end < text.length) {
            unsigned char byte = (unsigned char)text.data[end];
            size_t size = byte < 0x80 ? 1 : sl_utf8_decode(text.data + end, text.length - end, &c);
            if ((size != 0) != valid) {
                break;
            }
            end += size ? size : 1;
        }
        sl_view run = {text.data + at, end - at};
        int code = run_stage(splitter, valid ? 0 : stages, run, &sink);
        if (code) {
            return code;
        }
        at = end;
    }
    return 0;
}
