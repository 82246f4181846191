#include "model/pattern.h"

#include "base/alloc.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

enum { MATCH_STEPS = 100000, MOST_LENGTH = 1000 };

struct sl_pattern {
    char *text;
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_code *code;
    pcre2_match_data *match;
};

static void *take(size_t size, void *context) {
    (void)context;
    return sl_alloc(size);
}

static void give(void *memory, void *context) {
    (void)context;
    sl_free(memory);
}

void sl_pattern_free(sl_pattern *pattern) {
    if (pattern) {
        pcre2_match_data_free(pattern->match);
        pcre2_code_free(pattern->code);
        pcre2_match_context_free(pattern->limits);
        pcre2_general_context_free(pattern->memory);
        sl_free(pattern->text);
        sl_free(pattern);
    }
}

static int compile(sl_pattern *p, const char *text, sl_error *error) {
    int number = 0;
    PCRE2_SIZE offset = 0;
    p->text = sl_strdup(text);
    p->memory = pcre2_general_context_create(take, give, NULL);
    p->limits = p->memory ? pcre2_match_context_create(p->memory) : NULL;
    pcre2_compile_context *context = p->limits ? pcre2_compile_context_create(p->memory) : NULL;
    if (context) {
        pcre2_set_parens_nest_limit(context, 50);
        p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_NEVER_BACKSLASH_C, &number,
                                &offset, context);
        pcre2_compile_context_free(context);
    }
    p->match = p->code ? pcre2_match_data_create(1, p->memory) : NULL;
    if (p->match && p->text) {
        pcre2_set_match_limit(p->limits, MATCH_STEPS);
        return 0;
    }
    if (number == 0 || number == PCRE2_ERROR_NOMEMORY || number == 121 /* the compiler's own allocation */ ||
        p->code) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a pattern");
    }
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(number, message, sizeof message);
    return sl_fail(error, SL_ERR_INVALID, "pattern \"%.100s\" is no regular expression: %s (at %zu)", text,
                   (const char *)message, (size_t)offset);
}

int sl_pattern_compile(const char *text, sl_pattern **pattern, sl_error *error) {
    *pattern = NULL;
    if (strlen(text) > MOST_LENGTH) {
        return sl_fail(error, SL_ERR_LIMIT, "pattern: has more than %d bytes", MOST_LENGTH);
    }
    sl_pattern *made = sl_alloc_zero(1, sizeof *made);
    const int code =
        made ? compile(made, text, error) : sl_fail(error, SL_ERR_NOMEM, "out of memory for a pattern");
    if (code) {
        sl_pattern_free(made);
        return code;
    }
    *pattern = made;
    return 0;
}

int sl_pattern_find(const sl_pattern *p, const char *name, bool *found, sl_error *error) {
    const int result = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, p->match, p->limits);
    *found = result >= 0;
    if (result >= 0 || result == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    return result == PCRE2_ERROR_NOMEMORY
               ? sl_fail(error, SL_ERR_NOMEM, "out of memory for a pattern")
               : sl_fail(error, SL_ERR_LIMIT, "pattern \"%.100s\" takes too many steps on %.100s", p->text,
                         name);
}
