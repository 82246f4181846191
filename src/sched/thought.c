#include "sched/thought.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>

typedef enum phase {
    BEFORE, /* a thought may be opened */
    INSIDE,
    BEHIND, /* closed, or there is none; where thoughts may come again, one may be opened */
} phase;

struct sl_thought {
    sl_thought_options options;
    char *open_mark, *close_mark;
    int32_t *closing;
    /* Of a mark: of the first i + 1 bytes, the longest beginning that is also their end. */
    size_t *open_border, *close_border;
    size_t matched; /* bytes of the mark that is looked for */
    phase phase;
    int32_t left;
};

static size_t advance(const char *mark, const size_t *border, size_t matched, char byte) {
    while (matched > 0 && mark[matched] != byte) {
        matched = border[matched - 1];
    }
    return matched + (mark[matched] == byte);
}

/* NULL: no memory. */
static size_t *make_border(const char *mark) {
    size_t *border = sl_alloc_zero(strlen(mark) + 1, sizeof *border);
    for (size_t i = 1; border && mark[0] && mark[i]; i++) {
        border[i] = advance(mark, border, border[i - 1], mark[i]);
    }
    return border;
}

int sl_thought_create(const sl_thought_options *options, sl_thought **out, sl_error *error) {
    const size_t count = (size_t)options->closing_count;
    *out = NULL;
    sl_thought *t = sl_alloc_zero(1, sizeof *t);
    if (t) {
        t->options = *options;
        t->left = options->budget;
        t->phase = options->open ? INSIDE : BEFORE;
        t->open_mark = sl_strdup(options->open_mark);
        t->close_mark = sl_strdup(options->close_mark);
        t->open_border = make_border(options->open_mark);
        t->close_border = make_border(options->close_mark);
        t->closing = sl_alloc_zero(count + 1, sizeof *t->closing);
    }
    if (!t || !t->open_mark || !t->close_mark || !t->open_border || !t->close_border || !t->closing) {
        sl_thought_destroy(t);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the bound of a thought");
    }
    memcpy(t->closing, options->closing, count * sizeof *t->closing);
    *out = t;
    return 0;
}

void sl_thought_destroy(sl_thought *t) {
    if (t) {
        sl_free(t->open_mark);
        sl_free(t->close_mark);
        sl_free(t->open_border);
        sl_free(t->close_border);
        sl_free(t->closing);
        sl_free(t);
    }
}

static void take_before(sl_thought *t, char byte) {
    const bool blank = byte == ' ' || (byte >= '\t' && byte <= '\r');
    if (t->matched == 0 && blank) {
        return;
    }
    if (t->open_mark[t->matched] != byte) {
        t->phase = BEHIND;
        t->matched = 0;
    } else if (!t->open_mark[++t->matched]) {
        t->phase = INSIDE;
        t->matched = 0;
    }
}

static void take_inside(sl_thought *t, char byte) {
    t->matched = advance(t->close_mark, t->close_border, t->matched, byte);
    if (!t->close_mark[t->matched]) {
        t->phase = BEHIND;
        t->matched = 0;
    }
}

static void take_behind(sl_thought *t, char byte) {
    t->matched = advance(t->open_mark, t->open_border, t->matched, byte);
    if (!t->open_mark[t->matched]) {
        t->phase = INSIDE;
        t->matched = 0;
    }
}

void sl_thought_take(sl_thought *t, int32_t token) {
    static void (*const TAKE[])(sl_thought *, char) = {take_before, take_inside, take_behind};
    size_t length;
    const char *bytes = t->options.bytes(t->options.owner, token, &length);
    const int32_t opening = t->options.opening;
    t->left -= t->phase == INSIDE && t->left > 0;
    if (t->phase == BEHIND && t->matched == 0 && opening >= 0 && token != opening) {
        return; /* text that looks like the mark */
    }
    for (size_t i = 0; i < length && (t->phase != BEHIND || t->options.again); i++) {
        TAKE[t->phase](t, bytes[i]);
    }
}

bool sl_thought_is_over(const sl_thought *t) {
    return t->phase == INSIDE && t->left == 0;
}

const int32_t *sl_thought_closing(const sl_thought *t, int32_t *count) {
    *count = t->options.closing_count;
    return t->closing;
}
